"""Cases of the order statistics: each by every method in every mode, against n by n formulas in plain torch code.

Solutions of equations are written by Newton's method: a constant solution, and two steps from it, which keep the value and
give derivatives of up to the third order.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad import soft
from fullgrad._core.opmath import wide
from fullgrad._suite.cases._case import Case, numbers, straight_through
from fullgrad._suite.cases.soft import _abs_of, _step
from fullgrad.soft.order import _numbers
from fullgrad.soft.order._operators import extremum as _extremum
from fullgrad.soft.order._operators import quantile as _quantile
from fullgrad.soft.order._operators import rank as _rank
from fullgrad.soft.order._operators import sort as _sort
from fullgrad.soft.order.kernels import blocks as _blocks
from fullgrad.soft.order.kernels import exponential as _exponential
from fullgrad.soft.order.kernels import window as _window
from fullgrad.soft.order.methods import PERMUTATION_METHODS, RANK_METHODS, SORT_METHODS, WEIGHTED_SUM_METHODS
from fullgrad.soft.order.methods import pairwise_sigmoid as _pairwise_sigmoid
from fullgrad.soft.order.projections import permutahedron as _permutahedron
from fullgrad.soft.order.projections import simplex as _simplex
from fullgrad.soft.order.projections import transport_polytope as _transport

X = numbers(2, 4, seed=3)
SOFT = 0.4
MODES = ("smooth", "c0", "c1", "c2")
POWERS = {"c0": 1, "c1": 2, "c2": 3}


# --- The projections --------------------------------------------------------------------------------------------------


def _newton(solution: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
    """Two Newton steps from the library's solution, a constant; they would move away from a wrong one."""
    theta = solution.detach()
    for _ in range(2):
        theta = theta + step(theta)
    return theta


def _project(v: Tensor, mode: str) -> Tensor:
    """The projection of rows onto the simplex."""
    if mode == "smooth":
        return torch.exp(v - torch.logsumexp(v, -1, keepdim=True))
    alpha = POWERS[mode]

    def step(theta):
        t = torch.clamp(v - theta, min=0)
        return ((t**alpha).sum(-1, keepdim=True) - 1) / (alpha * (t ** (alpha - 1) * (t > 0)).sum(-1, keepdim=True))

    theta = _newton((v.detach() - _simplex.Excess.apply(v.detach(), alpha)).amax(-1, keepdim=True), step)
    return torch.clamp(v - theta, min=0) ** alpha


def _permuted(u: Tensor, w: Tensor, mode: str) -> Tensor:
    """The projection of rows onto the permutahedron of w, with constant blocks."""
    u, order = torch.sort(u, descending=True)
    w = torch.sort(w, descending=True).values
    t, first = _permutahedron.Isotonic.apply(u.detach(), w.detach(), mode)
    same = (first.unsqueeze(-1) == first.unsqueeze(-2)).to(u.dtype)

    def total(values):
        return (same * values.unsqueeze(-2)).sum(-1)

    if mode == "c0":
        level = (total(u) - total(w)) / same.sum(-1)
    elif mode == "smooth":
        level = torch.log(total(torch.exp(u))) - torch.log(total(torch.exp(w)))
    else:
        alpha = POWERS[mode]
        # On a block of one element, the level makes t^alpha equal to w.
        t = torch.where(same.sum(-1) == 1, w.detach().sign() * w.detach().abs() ** (1 / alpha), t.detach())

        def step(level):
            t = u.unsqueeze(-2) - level.unsqueeze(-1)
            excess = (same * t * t.abs() ** (alpha - 1)).sum(-1) - total(w)
            return excess / (alpha * (same * t.abs() ** (alpha - 1)).sum(-1))

        level = _newton(u.detach() - t, step)
    t = u - level
    y = t if mode in ("smooth", "c0") else t * t.abs() ** (POWERS[mode] - 1)
    return y.gather(-1, torch.argsort(order))


def _plan(cost: Tensor, mu: Tensor, nu: Tensor, mode: str) -> Tensor:
    """The transport plan: constant potentials, and three steps of Newton's method.

    After two steps, the second derivative still has the error of the constants, 1e-8.
    """
    n, m = cost.shape[-2:]
    f, g = _transport.Potentials.apply(cost.detach(), mu.detach(), nu.detach(), mode)
    potentials = torch.cat((f, g), -1).detach()
    for _ in range(3):
        t = potentials[..., :n, None] + potentials[..., None, n:] - cost
        if mode == "smooth":
            plan = slope = torch.exp(t)
        else:
            t = torch.clamp(t, min=0)
            plan, slope = t ** POWERS[mode], POWERS[mode] * t ** (POWERS[mode] - 1) * (t > 0)
        rows, columns = slope.sum(-1), slope.sum(-2)
        matrix = torch.cat(
            (torch.cat((torch.diag_embed(rows), slope), -1), torch.cat((slope.mT, torch.diag_embed(columns)), -1)), -2
        )
        # The two potentials may shift against each other; keeping their difference fixed makes the system regular.
        gauge = torch.cat((cost.new_ones(n), -cost.new_ones(m)))
        lack = torch.cat((mu - plan.sum(-1), nu - plan.sum(-2)), -1)
        # torch.linalg.solve loses terms where forward mode is nested: https://github.com/pytorch/pytorch/issues/192540.
        potentials = potentials + (torch.linalg.inv(matrix + gauge[:, None] * gauge) @ lack.unsqueeze(-1)).squeeze(-1)
    t = potentials[..., :n, None] + potentials[..., None, n:] - cost
    return torch.exp(t) if mode == "smooth" else torch.clamp(t, min=0) ** POWERS[mode]


# --- The methods ------------------------------------------------------------------------------------------------------


def _standard(x: Tensor, added: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + added).sqrt()
    return torch.sigmoid((x - mean) / deviation), mean, deviation


def _network(v: Tensor, s: Any, mode: str) -> tuple[Tensor, Tensor]:
    """Values and weights of a bitonic network for rows of four."""
    p = torch.eye(4, dtype=v.dtype, device=v.device).expand(*v.shape[:-1], 4, 4)
    for pairs in ([(0, 1), (3, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]):
        values, rows = list(v.unbind(-1)), list(p.unbind(-2))
        for i, j in pairs:
            c = _step(values[i] - values[j], s, mode)
            values[i], values[j] = values[i] * (1 - c) + values[j] * c, values[j] * (1 - c) + values[i] * c
            c = c.unsqueeze(-1)
            rows[i], rows[j] = rows[i] * (1 - c) + rows[j] * c, rows[j] * (1 - c) + rows[i] * c
        v, p = torch.stack(values, -1), torch.stack(rows, -2)
    return v, p


def _weights(
    x: Tensor, s: Any, mode: str, method: str, groups: tuple[list[float], list[float]] | None = None, added: float = 1e-6
) -> Tensor:
    """The weights in all places, ascending, or those of transport to anchors with given numbers of elements."""
    z, n = _standard(x, added)[0], x.shape[-1]
    if method == "softsort":
        return _project(-(torch.sort(z).values.unsqueeze(-1) - z.unsqueeze(-2)).abs() / s, mode)
    if method == "neuralsort":
        a = _abs_of(z.unsqueeze(-1) - z.unsqueeze(-2), s, mode).sum(-1)
        coefficients = torch.arange(1 - n, n, 2, dtype=x.dtype, device=x.device)
        return _project((coefficients[:, None] * z.unsqueeze(-2) - a.unsqueeze(-2)) / s, mode)
    if method == "sorting_network":
        return _network(z, s, mode)[1]
    anchors, counts = groups or ([i / (n - 1) for i in range(n)], [1.0] * n)
    batch = x.shape[:-1]
    shares = (x.new_tensor(counts) / n).clamp(min=1e-12)
    cost = (z.unsqueeze(-1) - x.new_tensor(anchors)).square() / s
    return n * _plan(cost, x.new_full((*batch, n), 1 / n), (shares / shares.sum()).expand(*batch, -1), mode).mT


def _direct(x: Tensor, s: Any, mode: str, method: str) -> Tensor:
    """The values in all places of a method without weights."""
    z, mean, deviation = _standard(x)
    n = x.shape[-1]
    if method == "sorting_network":
        y = _network(z, s, mode)[0]
    else:
        y = _permuted(torch.arange(n, dtype=x.dtype, device=x.device).expand(x.shape) / (n - 1) / s, z, mode)
    return torch.log(y / (1 - y)) * deviation + mean


def _apply(p: Tensor, x: Tensor) -> Tensor:
    return (p * x.unsqueeze(-2)).sum(-1)


def _values(x, s, mode, method, groups=None):
    return _apply(_weights(x, s, mode, method, groups), x) if method in WEIGHTED_SUM_METHODS else _direct(x, s, mode, method)


def _ranks(x, s, mode, method, descending=True, added=1e-6):
    z, n = _standard(x, added)[0], x.shape[-1]
    i = torch.arange(1, n + 1, dtype=x.dtype, device=x.device)
    if method == "sigmoid":
        y = 0.5 + _step(z.unsqueeze(-1) - z.unsqueeze(-2), s, mode).sum(-1)
    elif method == "fast_soft_sort":
        return (n - 1) * _permuted((-z if descending else z) / s, (i / (n - 1)).expand(x.shape), mode)
    elif method == "softsort":
        y = _apply(_project(-(z.unsqueeze(-1) - torch.sort(z).values.unsqueeze(-2)).abs() / s, mode), i.expand(x.shape))
    else:
        p = _weights(x, s, mode, method, added=added)
        y = _apply(p.mT, i.expand(x.shape)) / p.sum(-2)
    return n + 1 - y if descending else y


# --- The cases --------------------------------------------------------------------------------------------------------

LARGEST = ([0.0, 1.0], [3.0, 1.0])
TWO = ([1.0, 0.5, 0.0], [1.0, 1.0, 2.0])
QUARTILE = ([0.0, 1 / 3, 2 / 3, 1.0], [0.0, 1.0, 1.0, 2.0])
MIDDLE = ([0.0, 0.5, 1.0], [1.0, 1.0, 2.0])


def _at(place: int, anchor: int, groups: Any, sign: int = 1) -> Callable[..., Tensor]:
    """A formula: the weights in a place, or of an anchor of transport; of the negated row if the sign is -1."""

    def formula(x, s, mode, method):
        if method == "ot":
            return _weights(sign * x, s, mode, method, groups)[..., anchor, :]
        return _weights(sign * x, s, mode, method)[..., place, :]

    return formula


def _value_at(place: int, weights: Callable[..., Tensor], sign: int = 1) -> Callable[..., Tensor]:
    def formula(x, s, mode, method):
        if method in WEIGHTED_SUM_METHODS:
            return (weights(x, s, mode, method) * x).sum(-1)
        return sign * _direct(sign * x, s, mode, method)[..., place]

    return formula


def _first_two(x, s, mode, method):
    p = _weights(x, s, mode, method, TWO if method == "ot" else None)
    return p[..., :2, :] if method == "ot" else p[..., -2:, :].flip(-2)


def _first_values(x, s, mode, method):
    return (
        _apply(_first_two(x, s, mode, method), x)
        if method in WEIGHTED_SUM_METHODS
        else _direct(x, s, mode, method)[..., -2:].flip(-1)
    )


def _quarter(x, s, mode, method):
    """q = 0.25 of four elements: three quarters of the way from the first place to the second."""
    p = _weights(x, s, mode, method, QUARTILE if method == "ot" else None)
    low, high = (p[..., 1, :], p[..., 2, :]) if method == "ot" else (p[..., 0, :], p[..., 1, :])
    return torch.lerp(low, high, low.new_tensor(0.75))


def _quarter_value(x, s, mode, method):
    if method in WEIGHTED_SUM_METHODS:
        return (_quarter(x, s, mode, method) * x).sum(-1)
    y = _direct(x, s, mode, method)
    return torch.lerp(y[..., 0], y[..., 1], y.new_tensor(0.75))


def _one_hot(index, x):
    return torch.zeros(*index.shape, x.shape[-1], dtype=x.dtype, device=x.device).scatter(-1, index.unsqueeze(-1), 1)


def _hard_quartile(x):
    order, place = torch.argsort(x, dim=-1, stable=True), 0.25 * (x.shape[-1] - 1)
    low, high = (_one_hot(order[..., i], x) for i in (math.floor(place), math.ceil(place)))
    return torch.lerp(low, high, x.new_tensor(place % 1))


def _quartile_by_sort(x):
    """The value of `torch.quantile`, which has no batching rule."""
    values, place = torch.sort(x, dim=-1).values, 0.25 * (x.shape[-1] - 1)
    values = values.float() if x.dtype in (torch.float16, torch.bfloat16) else values
    return torch.lerp(values[..., math.floor(place)], values[..., math.ceil(place)], values.new_tensor(place % 1)).to(x.dtype)


def _hard_rank(x):
    return (torch.argsort(torch.argsort(x, dim=-1, descending=True, stable=True), dim=-1) + 1).to(x.dtype)


def _quantile_of(x):
    return torch.quantile(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, 0.25, -1).to(x.dtype)


_argmax, _argmin, _median = _at(3, 1, LARGEST), _at(3, 1, LARGEST, -1), _at(1, 1, MIDDLE)
# The options, formula(x, s, mode, method), hard value, methods and operator class of each statistic.
STATISTICS: dict[str, tuple[dict[str, Any], Any, Any, tuple[str, ...], Any]] = {
    "argmax": ({"dim": -1}, _argmax, lambda x: _one_hot(x.argmax(-1), x), PERMUTATION_METHODS, _extremum.Extremum),
    "argmin": ({"dim": -1}, _argmin, lambda x: _one_hot(x.argmin(-1), x), PERMUTATION_METHODS, _extremum.Extremum),
    "max": ({"dim": -1}, _value_at(3, _argmax), lambda x: x.max(-1).values, SORT_METHODS, _extremum.Extremum),
    "min": ({"dim": -1}, _value_at(3, _argmin, -1), lambda x: x.min(-1).values, SORT_METHODS, _extremum.Extremum),
    "argmedian": ({"dim": -1}, _median, lambda x: _one_hot(x.median(-1).indices, x), PERMUTATION_METHODS, _quantile.Quantile),
    "median": ({"dim": -1}, _value_at(1, _median), lambda x: x.median(-1).values, SORT_METHODS, _quantile.Quantile),
    "argquantile": ({"q": 0.25, "dim": -1}, _quarter, _hard_quartile, PERMUTATION_METHODS, _quantile.Quantile),
    "quantile": (
        {"q": 0.25, "dim": -1},
        _quarter_value,
        lambda x: (_hard_quartile(x) * x).sum(-1),
        SORT_METHODS,
        _quantile.Quantile,
    ),
    "argsort": ({}, _weights, lambda x: _one_hot(torch.argsort(x, -1), x), PERMUTATION_METHODS, _sort.Sort),
    "sort": ({}, _values, lambda x: torch.sort(x, -1).values, SORT_METHODS, _sort.Sort),
    "topk": ({"k": 2}, _first_values, lambda x: torch.topk(x, 2, -1).values, SORT_METHODS, _sort.Sort),
    "rank": ({"dim": -1}, _ranks, _hard_rank, RANK_METHODS, _rank.Rank),
}
# Values that torch cannot linearize.
EXACT = {"quantile": _quantile_of}
# Soft statistics that return weights beside their values by default.
PAIRED = ("max", "min", "median", "sort", "topk")


def _both(name: str, formula: Any) -> Any:
    """One formula of the values and, for methods that have them, the weights."""
    weights = {"max": _argmax, "min": _argmin, "median": _median, "sort": _weights, "topk": _first_two}[name]

    def joined(x, s, mode, method):
        y = formula(x, s, mode, method)
        return torch.cat((y.flatten(), weights(x, s, mode, method).flatten())) if method in WEIGHTED_SUM_METHODS else y

    return joined


def _relaxed(operator_class: Any) -> Callable[..., Any]:
    """The relaxation as the forward of its straight-through version, with integer indices if it has them."""

    def forward(*args: Any) -> Any:
        y = operator_class.relaxed(*args)
        several = "values_and_indices" in args[-1]
        return (y, torch.zeros(y.shape, dtype=torch.int64, device=y.device)) if several else y

    return forward


def _soft(name: str, method: str, mode: str) -> Case:
    options, formula, *_ = STATISTICS[name]
    call = functools.partial(getattr(soft, name), **options, mode=mode, method=method)
    if name == "median" and method not in WEIGHTED_SUM_METHODS:  # which has no indices along a dimension
        call = functools.partial(soft.quantile, q=0.5, interpolation="lower", **options, mode=mode, method=method)
    formula = _both(name, formula) if name in PAIRED else formula
    return Case(
        name=f"soft.{name} {method} {mode}",
        covers=(f"soft.{name}",),
        operator=lambda x, s: call(x, softness=s),
        inputs=(X, _softness(method, mode)),
        surrogate=functools.partial(formula, mode=mode, method=method),
        smooth_forwards={},
        of="rows",
        exhaustive=f"soft.{name} {method} {mode}" not in EVERYDAY | SHORT,
        long=f"soft.{name} {method} {mode}" not in SHORT,
    )


def _straight_through_version(name: str, method: str, mode: str) -> Case:
    options, formula, hard, _, operator_class = STATISTICS[name]
    exact: Any = EXACT.get(name, hard)
    call = functools.partial(getattr(fullgrad, f"{name}_st"), **options, mode=mode, method=method)
    return Case(
        name=f"{name}_st {method} {mode}",
        covers=(f"{name}_st",),
        operator=lambda x, s: call(x, softness=s),
        inputs=(X, _softness(method, mode)),
        surrogate=lambda x, s: straight_through(hard(x.detach()), formula(x, s, mode, method)),
        value=lambda x, s: exact(x),
        smooth_forwards={operator_class: _relaxed(operator_class)},
        of="rows",
        exhaustive=f"{name}_st {method} {mode}" not in EVERYDAY | SHORT,
        long=f"{name}_st {method} {mode}" not in SHORT,
    )


def _softness(method: str, mode: str) -> float:
    """The softness: if it is small in the sparse modes, a plan falls apart, and the formula's system is singular."""
    return SOFT if method != "ot" or mode == "smooth" else 2.0 if mode == "c0" else 1.0


# Every run checks a relaxation and a straight-through version of each operator class, in all modes and by all methods except
# transport, which has its projection; the rest take turns.
EVERYDAY = {
    "soft.max softsort c1",
    "argmin_st sorting_network smooth",
    "soft.argmedian neuralsort c0",
    "quantile_st softsort smooth",
    "soft.topk sorting_network c2",
    "sort_st neuralsort smooth",
    "soft.rank sigmoid c0",
    "rank_st fast_soft_sort c1",
}
# One case of each operator class, by the methods and in the modes with the smallest graphs; they also call the classes of the
# projections onto the simplex and the permutahedron.
SHORT = {
    "argmin_st softsort c0",
    "soft.argmedian softsort smooth",
    "sort_st neuralsort smooth",
    "rank_st fast_soft_sort smooth",
}


def _logarithms(name: str, method: str) -> Case:
    options, formula, *_ = STATISTICS[name]
    call = functools.partial(getattr(soft, name), **options, method=method, return_log_probs=True)
    return Case(
        name=f"soft.{name} {method} logarithms",
        covers=(f"soft.{name}",),
        operator=lambda x, s: call(x, softness=s),
        inputs=(X, torch.tensor(SOFT, dtype=torch.float64)),
        surrogate=lambda x, s: torch.log(formula(x, s, "smooth", method)),
        smooth_forwards={},
        max_saved_bytes=None,
        of="rows",
        elementwise=False,
        long=True,
    )


LOGARITHMS = [_logarithms("argmin", "softsort"), _logarithms("argsort", "softsort"), _logarithms("argsort", "neuralsort")]


MU, NU = torch.softmax(numbers(2, 3, scale=0.5, seed=5), -1), torch.softmax(numbers(2, 4, scale=0.5, seed=6), -1)
WIDTH = torch.tensor(0.7, dtype=torch.float64)


def _projection(name: str, formula: Callable[..., Tensor], *inputs: Tensor) -> list[Case]:
    """The cases of a projection, in every mode, with all inputs differentiated."""

    def call(mode: str) -> Callable[..., Tensor]:
        return lambda *a: getattr(soft, name)(*a[:-1], softness=a[-1], mode=mode)

    return [
        Case(
            name=f"soft.{name} {mode}",
            covers=(f"soft.{name}",),
            operator=call(mode),
            inputs=(*inputs, WIDTH),
            surrogate=functools.partial(formula, mode=mode),
            smooth_forwards={},
            max_saved_bytes=None,
            of="matrices" if name == "proj_transport_polytope" else "rows",
            exhaustive=mode != {"proj_simplex": "c2", "proj_permutahedron": "smooth"}.get(name, "c1"),
            long=name != "proj_transport_polytope",
        )
        for mode in MODES
    ]


PROJECTIONS = [
    *_projection("proj_simplex", lambda x, s, mode: _project(x / s, mode), X),
    *_projection("proj_permutahedron", lambda z, w, s, mode: _permuted(z / s, w, mode), X, numbers(2, 4, seed=4)),
    *_projection(
        "proj_transport_polytope",
        lambda c, mu, nu, s, mode: 3 * _plan(c / s, mu, nu * (mu.sum(-1, keepdim=True) / nu.sum(-1, keepdim=True)), mode),
        numbers(2, 3, 4, scale=0.3, seed=7).abs(),
        MU,
        NU,
    ),
]


def _kernel(name: str, operator: Callable[..., Any], weights: Callable[[Tensor], Tensor]) -> Case:
    """Averages of a row h over an ascending row u, on short rows, by code for rows too long for a matrix."""

    def call(u: Tensor, h: Tensor) -> Tensor:
        return operator(torch.sort(wide(u), -1).values, wide(h)).to(h.dtype)

    return Case(
        name=name,
        covers=(),
        operator=call,
        inputs=(numbers(2, 4, seed=8), numbers(2, 4, seed=9)),
        surrogate=lambda u, h: _apply(weights(torch.sort(u, -1).values), h),
        smooth_forwards={},
        max_saved_bytes=None,
        of="rows",
        elementwise=False,
    )


def _near(u: Tensor, mode: str) -> Tensor:
    return _project(-(u.unsqueeze(-1) - u.unsqueeze(-2)).abs(), mode)


def _placed(u: Tensor) -> Tensor:
    distances = _abs_of(u.unsqueeze(-1) - u.unsqueeze(-2), 1, "smooth").sum(-1)
    coefficients = torch.arange(-3, 4, 2, dtype=u.dtype, device=u.device)
    return _project(coefficients.unsqueeze(-1) * u.unsqueeze(-2) - distances.unsqueeze(-2), "smooth")


def _by_blocks(u: Tensor, h: Tensor) -> Tensor:
    return _blocks.Blocked.apply(_blocks.Spec("Values", "smooth"), u, _pairwise_sigmoid.distances(u, "smooth"), h)[0]


KERNELS = [
    _kernel("averages by scans", lambda u, h: _exponential.averages(u, h, _numbers.tie_bounds(u)), lambda u: _near(u, "smooth")),
    _kernel("averages by prefix sums", lambda u, h: _window.averages(u, h, _numbers.tie_bounds(u), 2), lambda u: _near(u, "c1")),
    _kernel("averages by blocks of rows", _by_blocks, _placed),
]


def _joined_quantile(hard: Any) -> Callable[..., Tensor]:
    """The value and the weights of the quartile, as one row."""
    return lambda *args: torch.cat([torch.as_tensor(part(*args)).flatten() for part in hard])


# The straight-through versions with outputs that they do not have by default.
WITH_OR_WITHOUT_WEIGHTS = [
    Case(
        name="quantile_st with weights",
        covers=("quantile_st",),
        operator=lambda x: fullgrad.quantile_st(x, 0.25, -1, softness=SOFT, method="softsort", return_argquantile=True),
        inputs=(X,),
        surrogate=lambda x: straight_through(
            _joined_quantile((_quartile_by_sort, _hard_quartile))(x.detach()),
            _joined_quantile((_quarter_value, _quarter))(x, SOFT, "smooth", "softsort"),
        ),
        smooth_forwards={_quantile.Quantile: _relaxed(_quantile.Quantile)},
        of="rows",
        exhaustive=True,
        long=True,
    ),
    Case(
        name="sort_st without indices",
        covers=("sort_st",),
        operator=lambda x: fullgrad.sort_st(x, softness=SOFT, method="softsort", return_indices=False),
        inputs=(X,),
        surrogate=lambda x: straight_through(x.detach().sort(-1).values, _values(x, SOFT, "smooth", "softsort")),
        smooth_forwards={_sort.Sort: _relaxed(_sort.Sort)},
        of="rows",
        exhaustive=True,
        long=True,
    ),
]


CASES = [
    *LOGARITHMS,
    *PROJECTIONS,
    *KERNELS,
    *[
        make(name, method, mode)
        for name, (_, _, _, methods, _) in STATISTICS.items()
        for method in methods
        for mode in MODES
        for make in (_soft, _straight_through_version)
    ],
    *WITH_OR_WITHOUT_WEIGHTS,
]
