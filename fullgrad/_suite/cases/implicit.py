"""Cases of the family `implicit`, whose solutions have closed forms."""

import torch

from fullgrad import implicit
from fullgrad._suite.cases._case import Case, numbers

X, Y, Z = numbers(4, 3, scale=0.7), numbers(4, 3, scale=0.7, seed=1), numbers(4, 3, scale=0.7, seed=2)


@implicit.root(lambda z, x, y: torch.exp(z) - x * x - y * y - 1)
def _log(init, x, y):
    return torch.log(x * x + y * y + 1)


def _logarithm(x, y):
    return torch.log(x * x + y * y + 1)


@implicit.fixed_point(lambda z, x: z - (z * z - x * x - 1) / 4, linear_solve="gmres")
def _babylonian(init, x):
    return torch.sqrt(x * x + 1)


def _hypotenuse(x):
    return torch.sqrt(x * x + 1)


@implicit.argmin(lambda z, x, y: ((z - x) * (z - x) + y * y * z * z).sum(), linear_solve="cg", vmap_method="broadcast")
def _shrunk(init, x, y):
    return x / (y * y + 1)


def _quotient(x, y):
    return x / (y * y + 1)


def _solved(x, b):
    b = b + torch.zeros_like(x)
    return implicit.solve(lambda w, x: (x * x + 1) * w + w.sum(-1, keepdim=True), b, x)


def _sherman_morrison(x, b):
    d = x * x + 1
    w = b / d
    return w - w.sum(-1, keepdim=True) / ((1 / d).sum(-1, keepdim=True) + 1) / d


def _cubic(z, x):
    return (z * z + 1) * z - x * x * x


def _slope(z, x, g):
    return 3 * x * x * g / (3 * z * z + 1)


CASES = [
    Case(
        name="implicit.root",
        elementwise=False,
        covers=("implicit.root",),
        operator=lambda x, y: _log(torch.zeros_like(x), x, y),
        inputs=(X, Y),
        surrogate=_logarithm,
        value=_logarithm,
    ),
    Case(
        name="implicit.fixed_point",
        elementwise=False,
        covers=("implicit.fixed_point",),
        operator=lambda x: _babylonian(torch.ones_like(x), x),
        inputs=(X,),
        surrogate=_hypotenuse,
        value=_hypotenuse,
    ),
    Case(
        name="implicit.argmin",
        elementwise=False,
        covers=("implicit.argmin",),
        operator=lambda x, y: _shrunk(torch.zeros_like(x), x, y),
        inputs=(X, Y),
        surrogate=_quotient,
        value=_quotient,
    ),
    Case(
        name="implicit.solve",
        elementwise=False,
        covers=("implicit.solve",),
        operator=_solved,
        inputs=(X, Y),
        surrogate=_sherman_morrison,
        max_saved_bytes=Y.nbytes,  # the right-hand side, which the case computes
    ),
    Case(
        name="implicit.root_vjp",
        elementwise=False,
        covers=("implicit.root_vjp",),
        operator=lambda z, x, g: implicit.root_vjp(_cubic, z, (x,), g)[0],
        inputs=(X, Y, Z),
        surrogate=_slope,
    ),
    Case(
        name="implicit.root_jvp",
        elementwise=False,
        covers=("implicit.root_jvp",),
        operator=lambda z, x, t: implicit.root_jvp(_cubic, z, (x,), (t,)),
        inputs=(X, Y, Z),
        surrogate=_slope,
    ),
]
