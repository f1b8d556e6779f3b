"""Cases of the family `clamping`."""

import torch

import fullgrad
from fullgrad._suite.cases._case import Case, numbers, straight_through
from fullgrad.testing._subject import by_cotangent_map

X = numbers(4, 3)
LOW, HIGH = -numbers(3, seed=5).abs(), numbers(4, 1, seed=6).abs()


def _between(x, low, high):
    """torch.clamp with one number and one tensor."""
    return torch.clamp(torch.clamp(x, min=low), max=high)


def _linear(x, eps=1e-5):
    return (x - x.amin()) / ((x.amax() - x.amin()) + eps)


CASES = [
    Case(
        name="lower_bound",
        covers=("lower_bound", "LowerBound"),
        operator=fullgrad.lower_bound,
        inputs=(X, 0.5),
        surrogate=by_cotangent_map(
            lambda g, x, b: g * ((x >= b) | (g < 0)),
            lambda x, b: torch.clamp(x, min=b),
            lambda t, x, b: t * (x >= b),
        ),
        value=lambda x, b: torch.clamp(x, min=b),
        linear=False,
    ),
    Case(
        name="lower_bound, identity",
        long=True,
        covers=("lower_bound", "LowerBound"),
        operator=fullgrad.lower_bound,
        inputs=(X, LOW, "identity"),
        surrogate=lambda x, b, _: straight_through(torch.maximum(x, b.detach()), x) + torch.where(x < b, b - b.detach(), 0),
        value=lambda x, b, _: torch.maximum(x, b),
        smooth_forwards={fullgrad.LowerBound: lambda x, b, _: x + torch.where(x.detach() < b.detach(), b, 0)},
    ),
    Case(
        name="lower_bound, inside",
        long=True,
        covers=("lower_bound",),
        operator=fullgrad.lower_bound,
        inputs=(X, LOW, "inside"),
        surrogate=lambda x, b, _: torch.maximum(x, b),
        value=lambda x, b, _: torch.maximum(x, b),
        smooth_forwards={},
    ),
    Case(
        name="upper_bound",
        covers=("upper_bound", "UpperBound"),
        operator=fullgrad.upper_bound,
        inputs=(X, 0.5),
        surrogate=by_cotangent_map(
            lambda g, x, b: g * ((x <= b) | (g > 0)),
            lambda x, b: torch.clamp(x, max=b),
            lambda t, x, b: t * (x <= b),
        ),
        value=lambda x, b: torch.clamp(x, max=b),
        linear=False,
    ),
    Case(
        name="clamp",
        covers=("clamp", "Clamp"),
        operator=fullgrad.clamp,
        inputs=(X, -1.0, 1.5),
        surrogate=torch.clamp,
        value=torch.clamp,
        smooth_forwards={},
    ),
    Case(
        name="clamp from below",
        long=True,
        covers=("clamp",),
        operator=fullgrad.clamp,
        inputs=(X, -1.0, None),
        surrogate=torch.clamp,
        value=torch.clamp,
        smooth_forwards={},
    ),
    Case(
        name="clamp from above",
        long=True,
        covers=("clamp",),
        operator=fullgrad.clamp,
        inputs=(X, None, 0.7),
        surrogate=torch.clamp,
        value=torch.clamp,
        smooth_forwards={},
    ),
    Case(
        name="clamp with tensor bounds",
        long=True,
        covers=("clamp",),
        operator=fullgrad.clamp,
        inputs=(X, LOW, HIGH),
        surrogate=torch.clamp,
        value=torch.clamp,
        smooth_forwards={},
    ),
    Case(
        name="clamp between a number and a tensor",
        long=True,
        covers=("clamp",),
        operator=fullgrad.clamp,
        inputs=(X, -0.5, HIGH),
        surrogate=_between,
        value=_between,
        smooth_forwards={},
    ),
    Case(
        name="clamp_backward",
        long=True,
        elementwise=False,
        covers=("clamp_backward",),
        # Linear in the gradient; the input of the clamp is a constant of the gradient's size.
        operator=lambda g, low, high: fullgrad.clamp_backward(g, 1.3 * g.detach(), low, high),
        inputs=(X, -1.0, 1.5),
        surrogate=lambda g, low, high: g * ((1.3 * g.detach() >= low) & (1.3 * g.detach() <= high)),
        max_saved_bytes=8,
    ),
    Case(
        name="clamp_by_linear",
        elementwise=False,
        of="tensors",
        covers=("clamp_by_linear", "ClampByLinear"),
        operator=fullgrad.clamp_by_linear,
        inputs=(X,),
        surrogate=_linear,
        smooth_forwards={},
    ),
]
