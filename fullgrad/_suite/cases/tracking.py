"""Cases of the family `tracking`: the identity, under every transform."""

import torch

import fullgrad
from fullgrad._suite.cases._case import Case, numbers
from fullgrad.tracking import _scale_tracker

X = numbers(4, 3)
PAIR = fullgrad.ScalePair()


class _Module(torch.nn.Module):
    def forward(self, x):
        return x.sin()


# A module whose context stays open.
TRACKED = _Module()
CONTEXT = fullgrad.track_scales(TRACKED)
SCALES = CONTEXT.__enter__()


CASES = [
    Case(
        name="ScaleTracker",
        elementwise=False,
        covers=("ScaleTracker", "ScalePair"),
        operator=lambda x: fullgrad.ScaleTracker.apply(x, PAIR),
        inputs=(X,),
        surrogate=lambda x: x.clone(),
        value=lambda x: x,
        smooth_forwards={_scale_tracker.Tracker: lambda x, *_: x.clone()},
    ),
    Case(
        name="track_scales",
        long=True,
        elementwise=False,
        covers=("track_scales", "ModuleScales"),
        operator=TRACKED,
        inputs=(X,),
        surrogate=torch.sin,
        value=torch.sin,
        smooth_forwards={_scale_tracker.Tracker: lambda x, *_: x.clone()},
        max_saved_bytes=None,
    ),
]
