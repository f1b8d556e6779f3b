"""`xnor`: binary weights with the scale of their own mean."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import elementwise_code, without_parts
from fullgrad.gradients._magnitude import Dim, dims_of
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._binarize import Binarize


def xnor(w: Tensor, dim: Dim = None, *, scale_gradient: bool = True) -> Tensor:
    r"""The weights of XNOR-Net: signs, times the mean of the absolute values.

    .. math::
        y = a \operatorname{sgn}(w), \quad a = \operatorname{mean} |w|, \qquad
        \mathrm{jvp}(t) = a\,[\,|w| \le 1\,]\, t + \operatorname{sgn}(w)\, \operatorname{mean}(\operatorname{sgn}(w)\, t)

    The value is the product of the mean, over ``dim`` and under ``vmap`` of each sample, and :func:`binarize`. Without
    ``scale_gradient`` the mean is a constant, and the second term is missing, as in larq. Half precision is computed in float32.
    Saved: what these operations save.

    Args:
        w: Any shape, not empty; floating, or integer (which gives the default dtype).
        dim: The dimensions that share a mean, an int or several; None for all.
        scale_gradient: Whether the mean has its derivative.

    Returns:
        A tensor of the shape and dtype of ``w``.

    Raises:
        TypeError: ``w`` is not a real tensor, or ``dim`` is not an integer.
        ValueError: ``w`` is empty, or ``dim`` is empty or names a dimension twice.
        IndexError: ``w`` has no such dimension.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> quantizers.xnor(torch.tensor([[-1.5, 0.5], [0.25, 0.75]]), dim=1)
        tensor([[-1.0000,  1.0000],
                [ 0.5000,  0.5000]])

    Source: Rastegari et al., https://arxiv.org/abs/1603.05279; ``larq.quantizers.MagnitudeAwareSign``.
    """
    w = _arguments.floating_input("xnor", "w", w)
    checks.not_empty("xnor", "w", w)
    checks.dim("xnor", dim, w.ndim)
    (wide,) = to_opmath(w)
    size = elementwise_code("xnor", torch.abs, wide if scale_gradient else wide.detach())
    mean = without_parts(size.mean(dims_of(dim, w.ndim), keepdim=True))
    return (mean * Binarize.apply(wide, 1.0, 1.0, 1.0)).to(w.dtype)
