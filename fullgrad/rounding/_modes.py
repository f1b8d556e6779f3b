"""The rounding modes of `round` and of every quantizer."""

from collections.abc import Callable

import torch
from torch import Tensor

_TORCH_MODES: dict[str, Callable[..., Tensor]] = {
    "half_even": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
}

DETERMINISTIC = (*_TORCH_MODES, "away", "half_away", "half_zero", "half_up", "half_down", "dpu")
ROUNDINGS = (*DETERMINISTIC, "stochastic")


def round_to_integer(x: Tensor, mode: str, noise: Tensor | None = None) -> Tensor:
    """``x`` rounded exactly to an integer; zeros have the sign of ``x``."""
    torch_mode = _TORCH_MODES.get(mode)
    if torch_mode is not None:
        return torch_mode(x)
    t = torch.trunc(x)
    f = (x - t).abs()  # NaN where x is infinite, so that no comparison holds
    if mode == "dpu":
        return torch.where(x < 0, _away_where(f > 0.5, t, x), torch.round(x))
    return _away_where(_is_away(mode, x, f, noise), t, x)


def _away_where(mask: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """``t`` moved away from zero by one where ``mask`` is true; zeros have the sign of ``x``."""
    return t + torch.copysign(mask.to(t.dtype), x)


def _is_away(mode: str, x: Tensor, f: Tensor, noise: Tensor | None) -> Tensor:
    """The mask of the numbers, with fractions ``f``, that move away from zero."""
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
