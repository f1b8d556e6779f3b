"""`proj_ball`: the projection onto a ball."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import rows_code
from fullgrad._dispatch import surely
from fullgrad.clamping._clamp import Clamp
from fullgrad.safe._normalize import unit_vectors
from fullgrad.soft._relaxation import checked_floating
from fullgrad.soft.order.projections.simplex import Excess
from fullgrad.soft.simplex._entmax import per_row

# An element lower than the largest of its row by more radii than 1 is not in the support.
_BELOW = -2.0


def proj_ball(x: Tensor, radius: Tensor | float = 1.0, ord: Literal[1, 2] | float = 2, dim: int = -1) -> Tensor:
    r"""The nearest vectors whose norm is at most ``radius``, along a dimension.

    .. math::
        y = \arg\min_{\lVert y \rVert_p \le r} \lVert y - x \rVert_2, \qquad D_x = I,\; D_r = 0 \;\text{ where }
        \lVert x \rVert_p \le r, \quad \text{else} \\
        p = 2:\; y = r u, \quad D_x = \frac{r}{\lVert x \rVert} (I - u u^\top), \quad D_r = u, \quad
        u = \frac{x}{\lVert x \rVert} \\
        p = 1:\; y = s \circ [\,|x| - \theta\,]_+, \quad \lVert y \rVert_1 = r, \quad
        D_x = \operatorname{diag}(z^2) - \frac{z z^\top}{z^\top z}, \quad D_r = \frac{z}{z^\top z}, \quad
        s = \operatorname{sgn} x, \quad z = s \circ [y \ne 0] \\
        p = \infty:\; y = \operatorname{clamp}(x, -r, r), \quad D_x = [\,|x_i| \le r\,], \quad D_r = s \circ [\,|x| > r\,]

    The derivatives are the true ones, of every order; the boundary belongs to the inside. With p = 1 and 2 a row with an infinity
    or NaN has NaN. Half precision is computed in float32. Saved: numbers of each element.

    On a device the host waits for the rounds that find the threshold of p = 1.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        radius: The radius r, positive: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and gets its own
            gradient.
        ord: The order p of the norm: 1, 2 or infinity.
        dim: The dimension of a vector.

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, ``radius`` is not a real number or tensor, or ``dim`` is not an integer.
        ValueError: ``radius`` is not positive, or has another shape, or ``ord`` is not 1, 2 or infinity.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([3.0, -4.0, 0.0])
        >>> fullgrad.soft.proj_ball(x)
        tensor([ 0.6000, -0.8000,  0.0000])
        >>> fullgrad.soft.proj_ball(x, 3.0, ord=1)
        tensor([ 1., -2.,  0.])
        >>> fullgrad.soft.proj_ball(x, 3.0, ord=float("inf"))
        tensor([ 3., -3.,  0.])

    Source: ``jaxopt.projection.projection_l2_ball``, ``projection_l1_ball``, ``projection_linf_ball``; Duchi et al.,
    https://doi.org/10.1145/1390156.1390191.
    """
    x = checked_floating("proj_ball", "x", x)
    checks.positive_number_or_tensor("proj_ball", "radius", radius)
    if isinstance(radius, Tensor):
        checks.positive_elements("proj_ball", "radius", radius)
    checks.real_number("proj_ball", "ord", ord)
    if ord not in _PROJECTIONS:
        raise ValueError(f"proj_ball: `ord` must be 1, 2 or infinity, got {ord}.")
    checks.one_dim("proj_ball", dim, x.ndim)
    if x.ndim == 0:
        return proj_ball(x.reshape(1), radius, ord, -1).reshape(())
    if isinstance(radius, Tensor):
        radius = per_row("proj_ball", radius, x, dim, "radius")
    wide, radius = to_opmath(x, radius)
    return rows_code("proj_ball", _PROJECTIONS[ord], wide.movedim(dim, -1), radius).movedim(-1, dim).to(x.dtype)


def _euclidean(x: Tensor, radius: Any) -> Tensor:
    v, r = x.detach(), radius.detach() if isinstance(radius, Tensor) else radius
    norm, relative = [torch.linalg.vector_norm(n, dim=-1, keepdim=True) for n in (v, v / r)]
    # A norm whose squares under- or overflow says nothing; relative to the radius it does.
    inside = torch.where((norm == 0) | (norm == torch.inf), relative <= 1, norm <= r)
    return torch.where(inside, x, radius * unit_vectors(torch.where(inside, 1, x), 2, (x.ndim - 1,)))


def _of_sums(x: Tensor, radius: Any) -> Tensor:
    if surely(x.shape[-1] == 0):
        return x.clone()
    r = radius.detach() if isinstance(radius, Tensor) else radius
    inside = x.detach().abs().sum(-1, keepdim=True) <= r
    size = torch.where(inside, 0, x.abs())
    v = ((size - size.detach().amax(-1, keepdim=True)) / radius).clamp(min=_BELOW)
    return torch.where(inside, x, torch.sgn(x.detach()) * (radius * Excess.apply(v, 1)))


def _of_largest(x: Tensor, radius: Any) -> Tensor:
    return Clamp.apply(x, -radius, radius)


_PROJECTIONS = {1: _of_sums, 2: _euclidean, math.inf: _of_largest}
