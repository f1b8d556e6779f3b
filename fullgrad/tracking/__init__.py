"""The scale of values, gradients and tangents, recorded as they pass."""

from fullgrad._core.public import make_public
from fullgrad.tracking._scale_pair import ScalePair
from fullgrad.tracking._scale_tracker import ScaleTracker
from fullgrad.tracking._track_scales import ModuleScales, track_scales

__all__ = ["ModuleScales", "ScalePair", "ScaleTracker", "track_scales"]

make_public(__name__, "fullgrad")
