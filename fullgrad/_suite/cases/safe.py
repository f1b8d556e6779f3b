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


def _matrix(x):
    """Numbers as rows of one number."""
    return x if x.ndim > 1 else x.unsqueeze(-1)


def _cdist(x, y, ord=2):
    return safe.cdist(_matrix(x), _matrix(y), ord)


def _distances(x, y, ord=2):
    return _norm(_matrix(x).unsqueeze(-2) - _matrix(y).unsqueeze(-3), ord, -1)


def _torch_distances(x, y, ord=2):
    """torch has none in half precision on a CPU, and none that keeps all digits otherwise."""
    wide, other = [_matrix(v.float() if v.dtype in (torch.float16, torch.bfloat16) else v) for v in (x, y)]
    return torch.cdist(wide, other, ord, "donot_use_mm_for_euclid_dist").to(x.dtype)


def _unit(x, ord=2):
    return x / _norm(x, ord, -1).unsqueeze(-1)


def _torch_unit(x, ord=2):
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    norm = torch.linalg.vector_norm(wide, ord, -1, keepdim=True)
    overflows = norm.isinf() & wide.isfinite().all(-1, keepdim=True)
    top = torch.frexp(wide.abs().amax(-1, keepdim=True)).exponent.clamp(max=1023)
    scaled = torch.where(overflows, torch.ldexp(wide, 1 - top), wide)
    return torch.nn.functional.normalize(scaled, ord, -1).to(x.dtype)


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
    _case("xlogy", safe.xlogy, (X, POSITIVE), lambda x, y: x * torch.log(y), torch.xlogy),
    _case("xlogy with a number", safe.xlogy, (X, 1.7), lambda x, y: x * math.log(y), torch.xlogy, long=True),
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
    _case("cdist", _cdist, (X, Y), _distances, _torch_distances, of="matrices", elementwise=False),
    _case("cdist of order 3", _cdist, (X, Y, 3), _distances, _torch_distances, of="matrices", elementwise=False, long=True),
    _case("normalize", safe.normalize, (X,), _unit, _torch_unit, of="rows", elementwise=False, max_saved_bytes=None),
    _case(
        "normalize of order 3",
        safe.normalize,
        (X, 3),
        _unit,
        _torch_unit,
        of="rows",
        elementwise=False,
        max_saved_bytes=None,
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
