"""Operators that act on the gradient: the value is the input itself."""

from fullgrad._core.public import make_public
from fullgrad.gradients._clip_grad import ClipGrad, clip_grad
from fullgrad.gradients._clip_grad_norm import ClipGradNorm, clip_grad_norm
from fullgrad.gradients._map_grad import MapGrad, map_grad
from fullgrad.gradients._mask_grad import MaskGrad, mask_grad
from fullgrad.gradients._nan_to_num_grad import NanToNumGrad, nan_to_num_grad
from fullgrad.gradients._reverse_grad import reverse_grad
from fullgrad.gradients._scale import Scale, scale, scale_bwd, scale_fwd
from fullgrad.gradients._scale_grad import ScaleGrad, scale_grad

__all__ = [
    "ClipGrad",
    "ClipGradNorm",
    "MapGrad",
    "MaskGrad",
    "NanToNumGrad",
    "Scale",
    "ScaleGrad",
    "clip_grad",
    "clip_grad_norm",
    "map_grad",
    "mask_grad",
    "nan_to_num_grad",
    "reverse_grad",
    "scale",
    "scale_bwd",
    "scale_fwd",
    "scale_grad",
]

make_public(__name__, "fullgrad")
