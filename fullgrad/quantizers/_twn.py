"""`twn`: ternary weights with the threshold and the scale of their own mean."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import without_parts
from fullgrad.gradients._magnitude import Dim, dims_of, largest
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._ternarize import Ternarize

_LARGE = {torch.float32: 2.0**64, torch.float64: 2.0**512}


def twn(w: Tensor, dim: Dim = None) -> Tensor:
    r"""Ternary weight networks: three values, with nothing to choose.

    .. math::
        t = 0.7 \operatorname{mean} |w|, \qquad s = \operatorname{mean}_{|w| > t} |w|, \qquad
        y = s\,([\,w > t\,] - [\,w < -t\,]), \qquad D(w) = 1

    The threshold and the scale are constants; means are over ``dim``, and under ``vmap`` of each sample. The value is that of
    :func:`ternarize`. Higher derivatives are 0. Half precision is computed in float32. Nothing is saved.

    Args:
        w: Any shape, not empty; floating, or integer (which gives the default dtype).
        dim: The dimensions that share a threshold and a scale, an int or several; None for all.

    Returns:
        A tensor of the shape and dtype of ``w``.

    Raises:
        TypeError: ``w`` is not a real tensor, or ``dim`` is not an integer.
        ValueError: ``w`` is empty, or ``dim`` is empty or names a dimension twice.
        IndexError: ``w`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> quantizers.twn(torch.tensor([-1.5, -0.25, 0.25, 0.75, 0.75]))
        tensor([-1.,  0.,  0.,  1.,  1.])

    Source: Li et al., https://arxiv.org/abs/1605.04711.
    """
    w = _arguments.floating_input("twn", "w", w)
    checks.not_empty("twn", "w", w)
    checks.dim("twn", dim, w.ndim)
    (wide,) = to_opmath(w)
    size = wide.detach().abs()
    dims = dims_of(dim, w.ndim)
    # Sums of large numbers would overflow; a power of two changes no digit.
    most = largest(size, dims)
    unit = torch.where(most > _LARGE[size.dtype], torch.full_like(most, _LARGE[size.dtype]), 1)
    size = size / unit
    threshold = without_parts(0.7 * size.mean(dims, keepdim=True))
    beyond = (size > threshold).to(size.dtype)
    count = without_parts(beyond.sum(dims, keepdim=True)).clamp(min=1)
    scale = without_parts((size * beyond).sum(dims, keepdim=True)) / count * unit
    threshold = threshold * unit
    return Ternarize.apply(wide, threshold, scale, None, None, False, False).to(w.dtype)
