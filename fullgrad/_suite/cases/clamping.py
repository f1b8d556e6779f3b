"""Cases of the family `clamping`."""

import torch

import fullgrad
from fullgrad._suite.cases._case import Case, numbers

X = numbers(4, 3)
LOW, HIGH = -numbers(3, seed=5).abs(), numbers(4, 1, seed=6).abs()


def _between(x, low, high):
    """torch.clamp with one number and one tensor."""
    return torch.clamp(torch.clamp(x, min=low), max=high)


def _linear(x, eps=1e-5):
    return (x - x.amin()) / ((x.amax() - x.amin()) + eps)


CASES = [
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
