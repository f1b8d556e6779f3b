"""`bsq`: binary spherical quantization."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import without_parts
from fullgrad._dispatch import holds, square_root, uses_last_dims
from fullgrad.gradients._scale import Scale
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._binarize import Binarize


@uses_last_dims(1)
def bsq(x: Tensor, scale: float = 1.0) -> Tensor:
    r"""Binary spherical quantization: vectors to the corners of a cube on a sphere.

    .. math::
        u = s\, x / \lVert x \rVert, \qquad y = \frac{s}{\sqrt d} \operatorname{sgn}(u), \qquad D_x = \partial u / \partial x

    for the last dimension, of size *d*: the true derivative of the projection to the sphere, with a straight-through sign, which
    is -1 at 0. Half precision is computed in float32. Saved: what a norm and a quotient save.

    Args:
        x: Of shape (…, d); floating, or integer (which gives the default dtype).
        scale: The radius, a positive number.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``scale`` is not a number.
        ValueError: ``x`` has no dimension or an empty last one, or ``scale`` is not positive and finite.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> quantizers.bsq(torch.tensor([[3.0, -4.0], [0.1, 0.2]]))
        tensor([[ 0.7071, -0.7071],
                [ 0.7071,  0.7071]])

    Source: Zhao et al., https://arxiv.org/abs/2406.07548; ``vector_quantize_pytorch.LFQ`` with ``spherical=True``.
    """
    x = _arguments.floating_input("bsq", "x", x)
    checks.positive_number("bsq", "scale", scale)
    if x.ndim == 0 or not holds(x.shape[-1] != 0):
        raise ValueError(f"bsq: `x` must have a last dimension that is not empty, got shape {tuple(x.shape)}.")
    (wide,) = to_opmath(x)
    # The direction does not depend on the size, whose square could over- or underflow.
    largest = without_parts(wide.detach().abs().amax(-1, keepdim=True))
    v = wide / torch.where((largest == 0) | largest.isinf(), 1, largest)
    squares = without_parts((v * v).sum(-1, keepdim=True))
    # An operator, since torch cannot compile a number times a tensor under two forward derivatives.
    u = Scale.apply(v / torch.sqrt(torch.where(squares == 0, 1, squares)), scale, scale)
    return Binarize.apply(u, scale / square_root(x.shape[-1]), None, -1.0).to(x.dtype)
