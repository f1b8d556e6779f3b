"""Cases of the family `soft` and its straight-through versions: each in every mode, with the formulas as plain torch code."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad import soft
from fullgrad._suite.cases._case import Case, numbers, straight_through
from fullgrad.soft import _abs, _clamp, _closeness, _comparisons, _histogram, _round, _sigmoidal, _sign, _softrelu
from fullgrad.soft._mode_names import AnyStepMode

X, Y = numbers(4, 3, scale=0.7), numbers(4, 1, scale=0.7, seed=1)
TRUTH, OTHER = torch.sigmoid(numbers(4, 3, seed=2)), torch.sigmoid(numbers(3, seed=3))
WEIGHTS = torch.softmax(numbers(3, scale=1.0, seed=4), 0)
SOFT = 0.25


# --- The formulas as they stand, one operation after another ----------------------------------------------------------


def _step(x, s, mode):
    if mode == "smooth":
        return torch.sigmoid(x / s)
    u = x / (5 * s)
    if mode == "c0":
        inside = 0.5 + 0.5 * u
    elif mode == "c1":
        inside = 0.5 + u * (3 / 4 - 1 / 4 * (u * u))
    else:
        v = u * u
        inside = 0.5 + u * (15 / 16 - v * (10 / 16 - 3 / 16 * v))
    return torch.where(u < -1, 0.0, torch.where(u < 1, inside, 1.0))


def _relu(x, s, mode, gated=False):
    if gated:
        return x * _step(x, s, mode)
    if mode == "smooth":
        return s * torch.nn.functional.softplus(x / s, threshold=100.0)
    u = x / (5 * s)
    v = u * u
    if mode == "c0":
        inside = 1 / 4 + u / 2 + v / 4
    elif mode == "c1":
        inside = 3 / 16 + u / 2 + v * (3 / 8 - v / 16)
    else:
        inside = 5 / 32 + u / 2 + v * (15 / 32 - v * (5 / 32 - v / 32))
    return torch.where(u < -1, 0.0, torch.where(u < 1, 5 * s * inside, x))


def _sign_of(x, s, mode):
    return 2 * _step(x, s, mode) - 1


def _abs_of(x, s, mode):
    return x * _sign_of(x, s, mode)


def _clamp_of(x, low, high, s, mode, gated=False):
    return low + _relu(x - low, s, mode, gated) - _relu(x - high, s, mode, gated)


def _round_of(x, s, mode, radius=5):
    c = torch.floor(x)
    total = c
    for n in range(-radius, radius + 1):
        total = total + n * (_step(x - c - n + 0.5, s, mode) - _step(x - c - n - 0.5, s, mode))
    return total


def _eq_of(x, y, s, mode, epsilon=1e-10):
    return 2 - 2 * _step(torch.clamp(_abs_of(x - y, s, mode) - epsilon, min=0), s, mode)


def _isclose_of(x, y, s, rtol, atol, mode, epsilon=1e-10):
    q = _abs_of(x - y, s, mode) - atol - rtol * _abs_of(y, s, mode) - epsilon
    return 2 - 2 * _step(torch.clamp(q, min=0), s, mode)


def _constant(v):
    """The constant value: torch's Heaviside step, for one, has no forward mode."""
    return v.detach() if isinstance(v, Tensor) else v


def _isclose(x, y, rtol=0.1, atol=0.05):
    """The value of torch.isclose, which under vmap warns that it is slow."""
    return ((x == y) | (((x - y).abs() <= atol + rtol * y.abs()) & y.isfinite())).to(x.dtype)


def _heaviside(x):
    return torch.heaviside(x, torch.full((), 0.5, dtype=x.dtype, device=x.device))


# --- The cases --------------------------------------------------------------------------------------------------------


def _without(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A class's own forward, made soft where it is hard."""
    return lambda *args: forward(*args[:-1], False)


def _pairs(
    name: str,
    operator_class: Any,
    formula: Callable[..., Tensor],
    hard: Callable[..., Tensor],
    inputs: tuple[Any, ...],
    *,
    has_straight_through: bool = True,
    repeats: bool = False,
    label: str = "",
    modes: tuple[str, ...] = ("smooth", "c0", "c1", "c2"),
    short: str = "c2",
    **options: Any,
) -> Iterator[Case]:
    """A relaxation and its straight-through version in each mode; ``formula(*inputs, softness, mode)`` is differentiable.

    The two share their rules, so every run checks one of them in one mode and the other in another; the rest take turns. The
    short suite has the straight-through version in the mode ``short``, c2, or c0 where c2 makes large graphs, unless the class
    ``repeats``.
    """
    for mode in modes:
        relaxation = functools.partial(formula, mode=mode)
        shared: dict[str, Any] = {
            "inputs": (*inputs, SOFT),
            "smooth_forwards": {operator_class: _without(operator_class.forward)},
        }
        yield Case(
            name=f"soft.{name} {mode}{label}",
            covers=(f"soft.{name}",),
            operator=functools.partial(getattr(soft, name), mode=mode, **options),
            surrogate=relaxation,
            exhaustive=mode != "smooth" or bool(label),
            long=True,
            **shared,
        )
        if has_straight_through:
            yield Case(
                name=f"{name}_st {mode}{label}",
                covers=(f"{name}_st",),
                operator=functools.partial(getattr(fullgrad, f"{name}_st"), mode=mode, **options),
                surrogate=lambda *a, relaxation=relaxation: straight_through(hard(*map(_constant, a[:-1])), relaxation(*a)),
                value=lambda *a: hard(*a[:-1]),
                exhaustive=mode not in ("c2", short) or bool(label),
                long=repeats or mode != short,
                **shared,
            )


def _two_sided(
    name: str, operator_class: Any, formula: Callable[..., Tensor], repeats: bool = True, **options: Any
) -> Iterator[Case]:
    """An operator of two tensors whose hard value is torch's comparison of that name."""
    hard = lambda x, y: getattr(torch, name)(x, y).to(x.dtype)  # noqa: E731
    yield from _pairs(name, operator_class, formula, hard, (X, Y), repeats=repeats, **options)


WIDTHS = 0.2 + 0.1 * numbers(4, 1, seed=7).abs()


def _with_widths() -> Iterator[Case]:
    """Cases with a softness for each row, which gets its gradient."""
    formulas = {
        "abs": (_abs.Abs, _abs_of, torch.abs, (X,)),
        "clamp": (_clamp.Clamp, _clamp_of, torch.clamp, (X, -0.6, 0.8)),
        "eq": (_closeness.Closeness, _eq_of, lambda x, y: (x == y).to(x.dtype), (X, Y)),
        "greater": (
            _comparisons.Comparison,
            lambda x, y, s, mode: _step(x - y - 1e-10, s, mode),
            lambda x, y: (x > y).to(x.dtype),
            (X, Y),
        ),
        "heaviside": (_sigmoidal.Sigmoidal, _step, _heaviside, (X,)),
        "relu": (_softrelu.Softrelu, _relu, torch.relu, (X,)),
        "round": (_round.Round, _round_of, torch.round, (X,)),
        "sign": (_sign.Sign, _sign_of, torch.sign, (X,)),
    }
    for name, (operator, formula, hard, inputs) in formulas.items():
        for case in _pairs(name, operator, formula, hard, inputs, label=" with widths", modes=("smooth", "c2")):
            yield dataclasses.replace(case, inputs=(*inputs, WIDTHS))


def _plain(
    name: str,
    formula: Callable[..., Tensor],
    *inputs: Any,
    max_saved_bytes: int | None = 0,
    label: str = "",
    elementwise: bool = False,
    **options: Any,
) -> Case:
    """The case of an operator that is made of torch's own, compared with its formula."""
    return Case(
        name=f"soft.{name}{label}",
        covers=(f"soft.{name}",),
        operator=functools.partial(getattr(soft, name), **options),
        inputs=inputs,
        surrogate=formula,
        smooth_forwards={},
        max_saved_bytes=max_saved_bytes,
        elementwise=elementwise,
        long=True,
    )


def _geometric_mean(x, dim):
    return torch.clamp(x, min=1e-10).log().mean(dim).exp()


def _window(x, p, length, dim):
    rolled = [p[i] * x.roll(-i, dim) for i in range(x.shape[dim])]
    return torch.stack(rolled).sum(0).narrow(dim, 0, length)


RELAXATIONS = [
    *_pairs("sigmoidal", _sigmoidal.Sigmoidal, _step, torch.abs, (X,), has_straight_through=False),
    *_pairs("heaviside", _sigmoidal.Sigmoidal, _step, _heaviside, (X,)),
    *_pairs("sign", _sign.Sign, _sign_of, torch.sign, (X,)),
    *_pairs("abs", _abs.Abs, _abs_of, torch.abs, (X,)),
    *_pairs("softrelu", _softrelu.Softrelu, _relu, torch.relu, (X,), has_straight_through=False),
    *_pairs("relu", _softrelu.Softrelu, _relu, torch.relu, (X,)),
    *_pairs("relu", _softrelu.Softrelu, functools.partial(_relu, gated=True), torch.relu, (X,), label=" gated", gated=True),
    *_pairs("clamp", _clamp.Clamp, _clamp_of, torch.clamp, (X, -0.6, 0.8)),
    *_pairs(
        "clamp", _clamp.Clamp, functools.partial(_clamp_of, gated=True), torch.clamp, (X, -0.6, 0.8), label=" gated", gated=True
    ),
    *_pairs("clamp", _clamp.Clamp, _clamp_of, torch.clamp, (X, Y - 1, Y + 0.3), label=" with tensor bounds"),
    *_pairs("round", _round.Round, _round_of, torch.round, (X,), short="c0"),
    *_two_sided("greater", _comparisons.Comparison, lambda x, y, s, mode: _step(x - y - 1e-10, s, mode), repeats=False),
    *_two_sided("greater_equal", _comparisons.Comparison, lambda x, y, s, mode: _step(x - y + 1e-10, s, mode)),
    *_two_sided("less", _comparisons.Comparison, lambda x, y, s, mode: 1 - _step(x - y + 1e-10, s, mode)),
    *_two_sided("less_equal", _comparisons.Comparison, lambda x, y, s, mode: 1 - _step(x - y - 1e-10, s, mode)),
    *_two_sided("eq", _closeness.Closeness, _eq_of),
    *_two_sided("not_equal", _closeness.Closeness, lambda x, y, s, mode: 1 - _eq_of(x, y, s, mode)),
    *_pairs(
        "isclose",
        _closeness.Closeness,
        lambda x, y, s, mode: _isclose_of(x, y, s, 0.1, 0.05, mode),
        _isclose,
        (X, Y),
        short="c0",
        rtol=0.1,
        atol=0.05,
    ),
    *_with_widths(),
]

LOGIC = [
    _plain("logical_not", lambda x: 1 - x, TRUTH, elementwise=True),
    _plain("logical_and", torch.mul, TRUTH, OTHER, elementwise=True),
    # Besides its inputs it keeps a number 1, four bytes for any size.
    _plain("logical_or", lambda x, y: 1 - (1 - x) * (1 - y), TRUTH, OTHER, max_saved_bytes=1, elementwise=True),
    _plain(
        "logical_xor",
        lambda x, y: 1 - (1 - x * (1 - y)) * (1 - (1 - x) * y),
        TRUTH,
        OTHER,
        max_saved_bytes=None,
        elementwise=True,
    ),
    _plain("all", lambda x: x[..., 0] * x[..., 1:].prod(-1), TRUTH),
    _plain("any", lambda x: 1 - (1 - x[..., 0]) * (1 - x[..., 1:]).prod(-1), TRUTH, max_saved_bytes=None),
    _plain("all", _geometric_mean, TRUTH, 0, max_saved_bytes=None, label=" mean", use_geometric_mean=True),
    _plain(
        "any",
        lambda x, dim: 1 - _geometric_mean(1 - x, dim),
        TRUTH,
        0,
        max_saved_bytes=None,
        label=" mean",
        use_geometric_mean=True,
    ),
    _plain(
        "logical_or",
        lambda x, y: 1 - _geometric_mean(torch.stack(torch.broadcast_tensors(1 - x, 1 - y)), 0),
        TRUTH,
        OTHER,
        max_saved_bytes=None,
        label=" mean",
        use_geometric_mean=True,
    ),
    _plain("where", lambda c, x, y: x * c + y * (1 - c), TRUTH, X, Y, max_saved_bytes=None, elementwise=True),
    _plain(
        "take_along_dim",
        lambda x, p, dim: (p * x.unsqueeze(-2)).sum(-1),
        X,
        torch.softmax(numbers(4, 2, 3, seed=8), -1),
        1,
        max_saved_bytes=None,
    ),
    _plain(
        "take",
        lambda x, p, dim: (x.unsqueeze(-2) * p).sum(-1),
        X,
        torch.softmax(numbers(2, 3, seed=9), -1),
        1,
        max_saved_bytes=None,
    ),
    _plain("index_select", lambda x, p, dim: (x * p).sum(dim, keepdim=True), X, WEIGHTS, 1, max_saved_bytes=None),
    _plain("narrow", _window, X, WEIGHTS, 2, 1, max_saved_bytes=None),
]

BINS, LOW, HIGH = 4, -1.2, 1.3


def _histogram_in(mode: AnyStepMode, x: Tensor, softness: Any, weight: Any) -> Tensor:
    return soft.histogram(x, BINS, LOW, HIGH, -1, softness, mode, weight)


def _histogram_of(mode: AnyStepMode, x: Tensor, softness: Any, weight: Any) -> Tensor:
    edges = torch.linspace(LOW, HIGH, BINS + 1, dtype=x.dtype, device=x.device)
    steps = _step(x[..., None] - edges, softness if softness.ndim == 0 else softness[..., None], mode)
    return ((steps[..., :-1] - steps[..., 1:]) * (1 if weight is None else weight[..., None])).sum(-2)


def _histograms() -> Iterator[Case]:
    """Soft counts in each mode, with a width for all and with one for each row."""
    of_one = torch.tensor(SOFT, dtype=torch.float64)
    modes: tuple[AnyStepMode, ...] = ("smooth", "c0", "c1", "c2")
    for mode in modes:
        for label, softness in (("", of_one), (" with widths", WIDTHS)):
            yield Case(
                name=f"soft.histogram {mode}{label}",
                covers=("soft.histogram",),
                operator=functools.partial(_histogram_in, mode),
                inputs=(X, softness, OTHER),
                surrogate=functools.partial(_histogram_of, mode),
                smooth_forwards={_histogram.Histogram: _histogram.Histogram.forward},
                exhaustive=mode != "smooth" or bool(label),
                long=mode != "smooth" or bool(label),
                of="rows",
                elementwise=False,
            )


CASES = [*RELAXATIONS, *LOGIC, *_histograms()]
