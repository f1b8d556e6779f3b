"""Cases of the family `gradients`. Those whose map of the cotangent is not linear have the map as their oracle."""

import torch

import fullgrad
from fullgrad._suite.cases._case import Case, numbers
from fullgrad.testing._subject import by_cotangent_map

X = numbers(4, 3)
FACTOR = numbers(4, 1, seed=5)


def _identity(x, *_):
    return x


def _normalized(g, x, dim=None):
    m = g.abs().amax() if dim is None else g.abs().amax(dim, keepdim=True)
    return torch.where(m == 0, g, g / torch.where(m == 0, 1.0, m))


def _bounds(x):
    """Bounds of the shape of x, constant, beyond which some cotangents of the checks lie."""
    # torch.linspace would fix symbolic sizes.
    n = x.numel()
    return (0.1 + torch.arange(n, dtype=x.dtype, device=x.device) * (0.8 / max(n - 1, 1))).reshape(x.shape)


def _clipped_norm(g, x, max_norm, dim=None, norm_type=2.0):
    norm = torch.linalg.vector_norm(g, norm_type, dim, keepdim=True)
    return torch.where(norm > max_norm, g * (max_norm / norm), g)


def _unit(g):
    return g / torch.sqrt(1 + (g * g).sum())


CASES = [
    Case(
        name="map_grad",
        elementwise=False,
        covers=("map_grad", "MapGrad"),
        operator=fullgrad.map_grad,
        inputs=(X, _unit),
        surrogate=by_cotangent_map(lambda g, x, f: f(g)),
        value=_identity,
        linear=False,
    ),
    Case(
        name="scale_grad",
        elementwise=False,
        covers=("scale_grad",),
        operator=fullgrad.scale_grad,
        inputs=(X,),
        surrogate=by_cotangent_map(_normalized),
        value=_identity,
        linear=False,
    ),
    Case(
        name="scale_grad by rows",
        long=True,
        elementwise=False,
        covers=("scale_grad", "ScaleGrad"),
        operator=fullgrad.scale_grad,
        inputs=(X, -1),
        surrogate=by_cotangent_map(_normalized),
        value=_identity,
        linear=False,
    ),
    Case(
        name="scale",
        covers=("scale", "Scale"),
        operator=fullgrad.scale,
        inputs=(X, 2.0, 0.7),
        surrogate=lambda x, f, b: b * x + (f * x - b * x).detach(),
        value=lambda x, f, b: x * f,
        smooth_forwards={fullgrad.Scale: lambda x, f, b: x * b},
    ),
    Case(
        name="scale by a tensor",
        long=True,
        covers=("scale", "Scale"),
        # One tensor as the factor of both value and gradient is multiplication.
        operator=lambda x, f: fullgrad.scale(x, f, f),
        inputs=(X, FACTOR),
        surrogate=torch.mul,
        value=torch.mul,
        smooth_forwards={},
    ),
    Case(
        name="scale_fwd",
        long=True,
        covers=("scale_fwd",),
        operator=fullgrad.scale_fwd,
        inputs=(X, 3.0),
        surrogate=lambda x, s: x + (s * x - x).detach(),
        value=lambda x, s: x * s,
        smooth_forwards={fullgrad.Scale: lambda x, f, b: x.clone()},
    ),
    Case(
        name="scale_bwd",
        long=True,
        covers=("scale_bwd",),
        operator=fullgrad.scale_bwd,
        inputs=(X, 3.0),
        surrogate=lambda x, s: s * x + (x - s * x).detach(),
        value=_identity,
        smooth_forwards={fullgrad.Scale: lambda x, f, b: x * b},
    ),
    Case(
        name="reverse_grad",
        long=True,
        covers=("reverse_grad",),
        operator=fullgrad.reverse_grad,
        inputs=(X, 0.5),
        surrogate=lambda x, s: -s * x + (x + s * x).detach(),
        value=_identity,
        smooth_forwards={fullgrad.Scale: lambda x, f, b: x * b},
    ),
    Case(
        name="clip_grad",
        covers=("clip_grad", "ClipGrad"),
        operator=fullgrad.clip_grad,
        inputs=(X, 0.3),
        surrogate=by_cotangent_map(lambda g, x, m: g.clamp(-m, m)),
        value=_identity,
        linear=False,
    ),
    Case(
        name="clip_grad by a tensor",
        long=True,
        elementwise=False,
        covers=("clip_grad",),
        operator=lambda x: fullgrad.clip_grad(x, _bounds(x)),
        inputs=(X,),
        surrogate=by_cotangent_map(lambda g, x: torch.maximum(torch.minimum(g, _bounds(x)), -_bounds(x))),
        value=_identity,
        max_saved_bytes=8,
        linear=False,
    ),
    Case(
        name="clip_grad_norm",
        elementwise=False,
        covers=("clip_grad_norm", "ClipGradNorm"),
        operator=fullgrad.clip_grad_norm,
        inputs=(X, 0.7),
        surrogate=by_cotangent_map(_clipped_norm),
        value=_identity,
        linear=False,
    ),
    Case(
        name="clip_grad_norm by columns",
        long=True,
        elementwise=False,
        covers=("clip_grad_norm",),
        operator=fullgrad.clip_grad_norm,
        inputs=(X, 0.7, 0, 3.0),
        surrogate=by_cotangent_map(_clipped_norm),
        value=_identity,
        linear=False,
    ),
    Case(
        name="mask_grad",
        elementwise=False,
        covers=("mask_grad", "MaskGrad"),
        # The mask is a constant, a byte per element.
        operator=lambda x: fullgrad.mask_grad(x, x.detach() > 0),
        inputs=(X,),
        surrogate=lambda x: torch.where(x > 0, x, x.detach()),
        value=_identity,
        smooth_forwards={fullgrad.MaskGrad: lambda x, mask: torch.where(mask, x, torch.zeros_like(x))},
        max_saved_bytes=1,
    ),
    Case(
        name="nan_to_num_grad",
        covers=("nan_to_num_grad", "NanToNumGrad"),
        operator=fullgrad.nan_to_num_grad,
        inputs=(X,),
        surrogate=by_cotangent_map(lambda g, x: torch.nan_to_num(g)),
        value=_identity,
        linear=False,
    ),
]
