"""Cases of the family `functions`: the combinators. The straight-through versions of relaxations are in `soft`."""

import torch

import fullgrad
from fullgrad._suite.cases._case import Case, numbers, straight_through

X, Y = numbers(4, 3, scale=0.7), numbers(4, 3, scale=0.7, seed=1)


# Made of operations that torch 2.13 can compile under forward over forward, unlike a number times a tensor, or a sine.


def _soft(x, y):
    return torch.sigmoid(x * x) * y


def _hard(x, y):
    return (x > 0).to(x.dtype) * y


def _by_mode(x, y, mode="smooth"):
    return _hard(x, y) if mode == "hard" else _soft(x, y)


def _by_pass(x, y, forward):
    return _hard(x, y) if forward else _soft(x, y)


def _surrogate(x, y):
    return straight_through(_hard(x, y), _soft(x, y))


def _soft_step(x):
    return torch.sigmoid(x * x)


def _step(x):
    return (x > 0).to(x.dtype)


def _slope(x):
    s = torch.sigmoid(x * x)
    return (x + x) * s * (1 - s)


@fullgrad.custom_jvp
def _by_tangent(x):
    return _step(x)


_by_tangent.defjvp(lambda primals, tangents: (_by_tangent(*primals), _slope(*primals) * tangents[0]))


@fullgrad.custom_vjp
def _by_gradient(x):
    return _step(x)


_by_gradient.defvjp(lambda x: (_by_gradient(x), (_slope(x),)), lambda residuals, g: (g * residuals[0],))


@fullgrad.custom_gradient
def _by_pullback(x):
    return _step(x), lambda g: (g * _slope(x),)


def _centered(x):
    return x - x.mean(-1, keepdim=True)


def _gradients(inputs, outputs, g):
    x, y = inputs
    return g * y * _slope(x), g * torch.sigmoid(x * x)


CASES = [
    Case(
        name="replace_grad",
        elementwise=False,
        covers=("replace_grad", "ReplaceGrad"),
        operator=lambda x, y: fullgrad.replace_grad(_hard(x, y), _soft(x, y)),
        inputs=(X, Y),
        surrogate=_surrogate,
        value=_hard,
        smooth_forwards={fullgrad.ReplaceGrad: lambda value, surrogate: surrogate.clone()},
        max_saved_bytes=None,
    ),
    Case(
        name="st",
        long=True,
        elementwise=False,
        covers=("st",),
        operator=fullgrad.st(_by_mode),
        inputs=(X, Y),
        surrogate=_surrogate,
        value=_hard,
        max_saved_bytes=None,
    ),
    Case(
        name="grad_replace",
        long=True,
        elementwise=False,
        covers=("grad_replace",),
        operator=fullgrad.grad_replace(_by_pass),
        inputs=(X, Y),
        surrogate=_surrogate,
        value=_hard,
        max_saved_bytes=None,
    ),
    Case(
        name="straight_through",
        elementwise=False,
        covers=("straight_through",),
        operator=fullgrad.straight_through(_hard, _soft),
        inputs=(X, Y),
        surrogate=_surrogate,
        value=_hard,
    ),
    Case(
        name="custom_gradient",
        long=True,
        elementwise=False,
        covers=("custom_gradient",),
        operator=_by_pullback,
        inputs=(X,),
        surrogate=lambda x: straight_through(_step(x), _soft_step(x)),
        value=_step,
        max_saved_bytes=None,
    ),
    Case(
        name="custom_jvp",
        long=True,
        elementwise=False,
        covers=("custom_jvp",),
        operator=_by_tangent,
        inputs=(X,),
        surrogate=lambda x: straight_through(_step(x), _soft_step(x)),
        value=_step,
        max_saved_bytes=None,
    ),
    Case(
        name="custom_vjp",
        elementwise=False,
        covers=("custom_vjp",),
        operator=_by_gradient,
        inputs=(X,),
        surrogate=lambda x: straight_through(_step(x), _soft_step(x)),
        value=_step,
        max_saved_bytes=None,
    ),
    Case(
        name="linear_map",
        elementwise=False,
        covers=("linear_map",),
        operator=fullgrad.linear_map(_centered, _centered),
        inputs=(X,),
        surrogate=_centered,
        value=_centered,
    ),
    Case(
        name="with_reference",
        elementwise=False,
        covers=("with_reference",),
        operator=fullgrad.with_reference(_hard, _soft),
        inputs=(X, Y),
        surrogate=_surrogate,
        value=_hard,
    ),
    Case(
        name="with_reference and a backward",
        long=True,
        elementwise=False,
        covers=("with_reference",),
        operator=fullgrad.with_reference(_hard, _soft, backward=_gradients, vmap_method="broadcast"),
        inputs=(X, Y),
        surrogate=_surrogate,
        value=_hard,
        max_saved_bytes=None,
    ),
    Case(
        name="checkpoint",
        elementwise=False,
        covers=("checkpoint",),
        operator=lambda x, y: fullgrad.checkpoint(_soft, x, y),
        inputs=(X, Y),
        surrogate=_soft,
        value=_soft,
    ),
]
