"""Cases of the family `safe`, whose derivatives away from singular points are torch's."""

import math

import torch

from fullgrad import safe
from fullgrad._suite.cases._case import Case, numbers

X, Y = numbers(4, 3), numbers(4, 3, seed=1)
POSITIVE = X.abs() + 0.1
INSIDE = X.tanh() * 0.9


def _case(name, operator, inputs, surrogate, value=None, **options):
    return Case(
        name=f"safe.{name}",
        covers=(f"safe.{name.split()[0]}",),
        operator=operator,
        inputs=inputs,
        surrogate=surrogate,
        value=value or surrogate,
        smooth_forwards={},
        **options,
    )


def _norm(x, ord=2, dim=None):
    """The formula: torch lacks some of the transforms of its own norm."""
    return x.abs().amax(dim) if ord == math.inf else x.abs().pow(ord).sum(dim).pow(1 / ord)


def _chosen(x, y):
    return safe.where(x > 0, lambda x, y: torch.log(x) * y, lambda x, y: x * torch.exp(y), x, y)


def _replaced_twice(x, y):
    y = y + torch.zeros_like(x)
    return torch.where(x > 0, torch.log(torch.where(x > 0, x, 1)) * y, x * torch.exp(y))


CASES = [
    _case("sqrt", safe.sqrt, (POSITIVE,), torch.sqrt),
    _case("log", safe.log, (POSITIVE,), torch.log),
    _case("log1p", safe.log1p, (POSITIVE - 0.9,), torch.log1p),
    _case("div", safe.div, (X, Y), torch.div),
    _case("div by a number", safe.div, (X, 0.3), torch.div, long=True),
    _case("pow", safe.pow, (POSITIVE, Y), torch.pow),
    _case("pow with a number", safe.pow, (POSITIVE, 1.7), torch.pow, long=True),
    _case("acos", safe.acos, (INSIDE,), torch.acos),
    _case("asin", safe.asin, (INSIDE,), torch.asin),
    _case("atan2", safe.atan2, (Y, X), torch.atan2),
    _case("norm", safe.norm, (X, 2, -1), _norm, torch.linalg.vector_norm, of="rows", elementwise=False),
    _case("norm of all", safe.norm, (X,), _norm, torch.linalg.vector_norm, of="tensors", elementwise=False, long=True),
    _case("norm of order 3.5", safe.norm, (X, 3.5, -1), _norm, torch.linalg.vector_norm, of="rows", elementwise=False, long=True),
    _case("norm of order 1.5", safe.norm, (X, 1.5, -1), _norm, torch.linalg.vector_norm, of="rows", elementwise=False, long=True),
    _case("norm of order 0.5", safe.norm, (X, 0.5, -1), _norm, torch.linalg.vector_norm, of="rows", elementwise=False, long=True),
    _case(
        "norm of order inf",
        safe.norm,
        (X, math.inf, -1),
        _norm,
        torch.linalg.vector_norm,
        of="rows",
        elementwise=False,
        long=True,
    ),
    Case(
        name="safe.where",
        covers=("safe.where",),
        operator=_chosen,
        inputs=(X, Y),
        surrogate=_replaced_twice,
        value=_replaced_twice,
        elementwise=False,
        max_saved_bytes=None,
    ),
]
