"""The order statistics as written in plain torch: softtorch's formulas with matrices, and the detach trick.

The cases of the tests have formulas too, for rows of four. The methods here are formulas for rows of any length:
softsort, neuralsort and the kernel of ranks, in the smooth mode.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from fullgrad._suite.cases._case import straight_through


def _standard(x: Tensor) -> Tensor:
    r = x - x.mean(-1, keepdim=True)
    return torch.sigmoid(r / (r.square().mean(-1, keepdim=True) + 1e-6).sqrt())


def _softsort(x: Tensor, softness: float) -> Tensor:
    """The weights of all places, ascending: a softmax of distances to the sorted row."""
    z = _standard(x)
    return torch.softmax(-(torch.sort(z).values.unsqueeze(-1) - z.unsqueeze(-2)).abs() / softness, -1)


def _neuralsort(x: Tensor, softness: float) -> Tensor:
    z, n = _standard(x), x.shape[-1]
    d = z.unsqueeze(-1) - z.unsqueeze(-2)
    a = (d * torch.tanh(d / (2 * softness))).sum(-1)
    coefficients = torch.arange(1 - n, n, 2, dtype=x.dtype, device=x.device)
    return torch.softmax((coefficients[:, None] * z.unsqueeze(-2) - a.unsqueeze(-2)) / softness, -1)


def _rank(weights: Callable[[Tensor, float], Tensor], x: Tensor, softness: float) -> Tensor:
    p = weights(x, softness)
    places = torch.arange(x.shape[-1], 0, -1, dtype=x.dtype, device=x.device)
    return (places.unsqueeze(-1) * p).sum(-2) / p.sum(-2)


def _softsort_rank(x: Tensor, softness: float) -> Tensor:
    """The ranks: each element is compared with the sorted row, and its rank is the mean of the places close to it."""
    z = _standard(x)
    p = torch.softmax(-(z.unsqueeze(-1) - torch.sort(z, descending=True).values.unsqueeze(-2)).abs() / softness, -1)
    return (p * torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)).sum(-1)


def _sigmoid_rank(x: Tensor, softness: float) -> Tensor:
    z = _standard(x)
    return 0.5 + torch.sigmoid((z.unsqueeze(-2) - z.unsqueeze(-1)) / softness).sum(-1)


def _quantile(p: Tensor) -> Tensor:
    """The weights between the two places of q = 0.25, as in the cases."""
    place = 0.25 * (p.shape[-1] - 1)
    return torch.lerp(p[..., int(place), :], p[..., min(int(place) + 1, p.shape[-1] - 1), :], place % 1)


# The weights that each statistic uses.
_PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda p: p[..., -1, :],
    "min": lambda p: p[..., 0, :],
    "median": lambda p: p[..., (p.shape[-1] - 1) // 2, :],
    "quantile": _quantile,
    "sort": lambda p: p,
    "topk": lambda p: p[..., -2:, :].flip(-2),
}


def _statistic(name: str, weights: Callable[[Tensor, float], Tensor]) -> Callable[[Tensor, float], Tensor]:
    def places(x: Tensor, softness: float) -> Tensor:
        return _PLACES[name.removeprefix("arg")](weights(x, softness))

    def values(x: Tensor, softness: float) -> Tensor:
        p = places(x, softness)
        return (p @ x.unsqueeze(-1)).squeeze(-1) if p.ndim > x.ndim else (p * x).sum(-1)

    if name == "rank":
        return functools.partial(_rank, weights)
    return places if name.startswith("arg") else values


def straight(
    hard: Callable[[Tensor], Tensor], relaxation: Callable[[Tensor, float], Tensor]
) -> Callable[[Tensor, float], Tensor]:
    """The detach trick."""

    def composite(x: Tensor, softness: float) -> Tensor:
        return straight_through(hard(x), relaxation(x, softness))

    return composite


def relaxation(name: str, method: str) -> Callable[[Tensor, float], Tensor] | None:
    """The composite of a statistic by a method, if it is a formula."""
    if name == "rank" and method in ("sigmoid", "softsort"):
        return {"sigmoid": _sigmoid_rank, "softsort": _softsort_rank}[method]
    weights = {"softsort": _softsort, "neuralsort": _neuralsort}.get(method)
    return None if weights is None else _statistic(name, weights)
