"""Cases of the simplex family. A threshold is a constant solution with two steps of Newton's method, as in `order`."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad import soft
from fullgrad._suite.cases._case import Case, numbers, straight_through
from fullgrad._suite.cases.order import _newton
from fullgrad._suite.cases.sampling import _subsets
from fullgrad.soft._mode_names import StepMode
from fullgrad.soft.simplex._capped_simplex import Capped
from fullgrad.soft.simplex._topk_mask_st import TopKMaskST

X = numbers(2, 4, scale=0.7, seed=3)
ABOVE_1 = torch.tensor([[0.3], [0.7]], dtype=torch.float64)  # of the exponent, positive in the samples of a batch too
K = torch.tensor([[1.3], [2.0]], dtype=torch.float64)
RADIUS = torch.tensor([[0.4], [1.7]], dtype=torch.float64)
SOFTNESS = torch.tensor(0.4, dtype=torch.float64)
TARGET = torch.softmax(numbers(2, 4, seed=5), -1)


def _power(t: Tensor, e: Any) -> Tensor:
    return torch.where(t > 0, torch.where(t > 0, t, 1) ** e, 0)


def _constant(v: Any) -> Any:
    return v.detach() if isinstance(v, Tensor) else v


def _entmax(x: Tensor, alpha: Any) -> Tensor:
    a = alpha - 1
    top, at = soft.entmax(x.detach(), _constant(alpha)).max(-1, keepdim=True)
    solution = x.detach().gather(-1, at) - (top ** _constant(a) - 1) / _constant(a)

    def step(theta: Tensor) -> Tensor:
        p = _power(1 + a * (x - theta), 1 / a)
        return (p.sum(-1, keepdim=True) - 1) / _power(p, 1 - a).sum(-1, keepdim=True)

    return _power(1 + a * (x - _newton(solution, step)), 1 / a)


def _normmax(x: Tensor, alpha: Any) -> Tensor:
    m, a = alpha / (alpha - 1), alpha - 1
    p = soft.normmax(x.detach(), _constant(alpha))
    top, at = p.max(-1, keepdim=True)
    norm = (p ** _constant(alpha)).sum(-1, keepdim=True) ** (1 / _constant(alpha))
    solution = x.detach().gather(-1, at) - (top / norm) ** _constant(a)

    def step(theta: Tensor) -> Tensor:
        t = torch.clamp(x - theta, min=0)
        return (_power(t, m).sum(-1, keepdim=True) - 1) / (m * _power(t, m - 1)).sum(-1, keepdim=True)

    q = _power(x - _newton(solution, step), m - 1)
    return q / q.sum(-1, keepdim=True)


def _laplace(z: Tensor) -> Tensor:
    tail = torch.exp(-z.abs()) / 2
    return torch.where(z < 0, tail, 1 - tail)


CURVES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "smooth": (torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z)),
    "laplace": (_laplace, lambda z: torch.exp(-z.abs()) / 2),
    "c0": (lambda z: torch.clamp(z / 10 + 0.5, 0, 1), lambda z: (z.abs() < 5).to(z.dtype) / 10),
}


def _capped(x: Tensor, k: Any, softness: Any, mode: str) -> Tensor:
    curve, slope = CURVES[mode]
    v = x / softness
    _, z = Capped.apply(v.detach(), _constant(k) if isinstance(k, Tensor) else float(k), mode, None)
    solution = (v.detach() - z)[..., :1]

    def step(theta: Tensor) -> Tensor:
        return (curve(v - theta).sum(-1, keepdim=True) - k) / slope(v - theta).sum(-1, keepdim=True)

    return curve(v - _newton(solution, step))


def _mask(x: Tensor, k: int) -> Tensor:
    return torch.zeros_like(x).scatter(-1, x.topk(k, -1).indices, 1.0)


def _euclidean_ball(x: Tensor, radius: Any) -> Tensor:
    return x * torch.clamp(radius / (x * x).sum(-1, keepdim=True).sqrt(), max=1)


def _ball_of_sums(x: Tensor, radius: Any) -> Tensor:
    """By the sorted row, whose first elements are the support."""
    size, places = x.abs().sort(-1, descending=True).values, torch.arange(1, x.shape[-1] + 1, device=x.device)
    thresholds = (size.cumsum(-1) - radius) / places
    count = (size > thresholds).sum(-1, keepdim=True)
    return torch.sign(x) * torch.clamp(x.abs() - torch.clamp(thresholds.gather(-1, count - 1), min=0), min=0)


def _tsallis(p: Tensor, alpha: Any) -> Tensor:
    return ((_power(p, alpha) - p) / (alpha * (alpha - 1))).sum(-1)


def _norm(p: Tensor, alpha: Any) -> Tensor:
    return (_power(p, alpha).sum(-1, keepdim=True) ** (1 / alpha)).squeeze(-1)


def _loss(weights: Callable[..., Tensor], omega: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def surrogate(x: Tensor, y: Tensor, alpha: Any) -> Tensor:
        p = weights(x, alpha)
        return (x * (p - y)).sum(-1) - omega(p, alpha) + omega(y, alpha)

    return surrogate


def _lapsum(x: Tensor, softness: Any) -> Tensor:
    u = x / softness
    solution = soft.sort(x.detach(), softness=softness, mode="laplace", method="lapsum", standardize=False).values / softness
    heights = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device) + 0.5

    def step(y: Tensor) -> Tensor:
        d = y.unsqueeze(-1) - u.unsqueeze(-2)
        return (heights - _laplace(d).sum(-1)) / (torch.exp(-d.abs()) / 2).sum(-1)

    return softness * _newton(solution, step)


def _ranks(x: Tensor, softness: Any) -> Tensor:
    return 0.5 + _laplace((x.unsqueeze(-2) - x.unsqueeze(-1)) / softness).sum(-1)


def _case(name: str, operator: Any, inputs: tuple[Any, ...], surrogate: Any, words: str = "", **options: Any) -> Case:
    return Case(
        name=f"{name}{' ' * bool(words)}{words}",
        covers=(name,),
        operator=operator,
        inputs=inputs,
        surrogate=surrogate,
        smooth_forwards=options.pop("smooth_forwards", {}),
        max_saved_bytes=options.pop("max_saved_bytes", 8),
        of="rows",
        elementwise=False,
        **options,
    )


_VARIANTS: tuple[StepMode, ...] = ("laplace", "c0")

CASES: list[Case] = [
    _case("soft.entmax", lambda x, a: soft.entmax(x, 1 + a), (X, ABOVE_1), lambda x, a: _entmax(x, 1 + a), max_saved_bytes=2),
    _case("soft.entmax", soft.entmax, (X, 1.5), _entmax, "1.5", exhaustive=True),
    _case("soft.entmax", soft.entmax, (X, 2.5), _entmax, "2.5", exhaustive=True, max_saved_bytes=0),
    _case("soft.sparsemax", soft.sparsemax, (X,), lambda x: _entmax(x, 2.0), long=True),
    _case(
        "soft.normmax",
        lambda x, a: soft.normmax(x, 1 + 3 * a),
        (X, ABOVE_1),
        lambda x, a: _normmax(x, 1 + 3 * a),
        max_saved_bytes=2,
    ),
    _case(
        "soft.proj_capped_simplex",
        lambda x, k, s: soft.proj_capped_simplex(x, k, softness=s),
        (X, K, SOFTNESS),
        lambda x, k, s: _capped(x, k, s, "smooth"),
        max_saved_bytes=40,
    ),
    *[
        _case(
            "soft.proj_capped_simplex",
            functools.partial(soft.proj_capped_simplex, k=1.5, softness=0.4, mode=mode),
            (X,),
            lambda x, mode=mode: _capped(x, 1.5, 0.4, mode),
            f"in {mode}",
            exhaustive=True,
            max_saved_bytes=16,
        )
        for mode in _VARIANTS
    ],
    _case("soft.proj_ball", soft.proj_ball, (X, RADIUS), _euclidean_ball, max_saved_bytes=None),
    _case(
        "soft.proj_ball",
        lambda x, r: soft.proj_ball(x, r, ord=1),
        (X, RADIUS),
        _ball_of_sums,
        "of sums",
        max_saved_bytes=None,
    ),
    _case(
        "soft.proj_ball",
        lambda x, r: soft.proj_ball(x, r, ord=torch.inf),
        (X, RADIUS),
        lambda x, r: torch.minimum(torch.maximum(x, -r), r),
        "of the largest",
        max_saved_bytes=None,
        long=True,
    ),
    _case(
        "topk_mask_st",
        lambda x, s: fullgrad.topk_mask_st(x, 2, softness=s),
        (X, SOFTNESS),
        lambda x, s: straight_through(_mask(x.detach(), 2), _capped(x, 2.0, s, "smooth")),
        value=lambda x, s: _mask(x, 2),
        smooth_forwards={TopKMaskST: lambda x, s, k, mode: soft.proj_capped_simplex(x, k, softness=s, mode=mode)},
        max_saved_bytes=0,
    ),
    _case("soft.subset_marginals", lambda x: soft.subset_marginals(x, 2), (X,), _subsets, max_saved_bytes=0),
    _case(
        "soft.entmax_loss",
        lambda x, y, a: soft.entmax_loss(x, y, 1 + a, reduction="none"),
        (X, TARGET, ABOVE_1),
        lambda x, y, a: _loss(_entmax, _tsallis)(x, y, 1 + a),
        max_saved_bytes=None,
    ),
    _case(
        "soft.normmax_loss",
        lambda x, y, a: soft.normmax_loss(x, y, 1 + 3 * a, reduction="none"),
        (X, TARGET, ABOVE_1),
        lambda x, y, a: _loss(_normmax, _norm)(x, y, 1 + 3 * a),
        max_saved_bytes=None,
        long=True,
    ),
    _case(
        "soft.sort",
        lambda x: soft.sort(x, softness=0.4, mode="laplace", method="lapsum", standardize=False).values,
        (X,),
        lambda x: _lapsum(x, 0.4),
        "lapsum",
        max_saved_bytes=None,
    ),
    _case(
        "soft.rank",
        lambda x: soft.rank(x, -1, softness=0.4, mode="laplace", method="sigmoid", standardize=False),
        (X,),
        lambda x: _ranks(x, 0.4),
        "laplace sigmoid",
        max_saved_bytes=None,
        exhaustive=True,
    ),
]
