"""The ways to round to an integer, of `round` and of every quantizer."""

from collections.abc import Callable

import torch
from torch import Tensor

_OF_TORCH: dict[str, Callable[..., Tensor]] = {
    "half_even": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
}

DETERMINISTIC = (*_OF_TORCH, "away", "half_away", "half_zero", "half_up", "half_down", "dpu")
ROUNDINGS = (*DETERMINISTIC, "stochastic")


def round_to_integer(x: Tensor, mode: str, noise: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """``x`` rounded, with the sign of ``x`` where that gives 0; exact, as the fraction of a number is. ``out`` may be ``x``."""
    of_torch = _OF_TORCH.get(mode)
    if of_torch is not None:
        return of_torch(x, out=out)
    t = torch.trunc(x)
    f = (x - t).abs()  # NaN where x is infinite, so that no comparison holds
    if mode == "dpu":
        return torch.where(x < 0, _away_where(f > 0.5, t, x), torch.round(x))
    return _away_where(_is_away(mode, x, f, noise), t, x)


def _away_where(mask: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """The next integer away from zero, with the sign of ``x`` where that is 0."""
    return t + torch.copysign(mask.to(t.dtype), x)


def _is_away(mode: str, x: Tensor, f: Tensor, noise: Tensor | None) -> Tensor:
    """Where a number with the fraction ``f`` moves away from zero."""
    if mode == "stochastic":
        assert noise is not None
        return noise < f
    if mode == "away":
        return f > 0
    if mode == "half_away":
        return f >= 0.5
    if mode == "half_zero":
        return f > 0.5
    return torch.where(x > 0 if mode == "half_up" else x < 0, f >= 0.5, f > 0.5)
