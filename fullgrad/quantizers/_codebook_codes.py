"""`codebook_codes`: the indices of `codebook_quantize`."""

from torch import Tensor

from fullgrad._core.shards import reshaped
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter
from fullgrad.quantizers._arithmetic import to_compute
from fullgrad.quantizers._codebook_quantize import CodebookIndex, check_codebook
from fullgrad.quantizers._codes import smallest_dtype


def codebook_codes(x: Tensor, codebook: Tensor, scale: Parameter | None = None) -> Tensor:
    r"""The indices of the levels that :func:`codebook_quantize` computes; without a derivative.

    .. math::
        k = \operatorname{argmin}_j |x / s - c_j|

    ``codebook[k.long()] * s`` is ``codebook_quantize(x, codebook, s)`` bit for bit, where the product is computed in the dtype of
    ``x``, or in float32 for half precision. A tie goes to the lower level. NaN has no level and becomes that of the largest.
    Nothing is saved.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        codebook: At least one number, in one dimension and in any order.
        scale: Positive: a number; or a tensor that broadcasts to ``x``, or has one number per block, as in :func:`fake_quantize`;
            None for 1.

    Returns:
        A tensor of the shape of ``x``, in the first of uint8, int16 and int32 that has the last index.

    Raises:
        TypeError: ``x``, ``codebook`` or ``scale`` is not real.
        ValueError: ``codebook`` is empty or has other dimensions, or ``scale`` is a number that is not positive and finite or has
            another shape.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x, codebook = torch.tensor([-2.0, 0.1, 0.4, 0.9]), torch.tensor([-1.0, 0.0, 1.0])
        >>> quantizers.codebook_codes(x, codebook)
        tensor([0, 1, 1, 2], dtype=torch.uint8)

    Source: Dettmers et al., https://arxiv.org/abs/2305.14314.
    """
    x = _arguments.floating_input("codebook_codes", "x", x).detach()
    check_codebook("codebook_codes", codebook)
    if scale is not None:
        _arguments.check_scale("codebook_codes", "scale", scale, x.dtype)
    split, (scale,) = _arguments.in_blocks("codebook_codes", x, None, {"scale": scale})
    scale = scale.detach() if isinstance(scale, Tensor) else scale
    if split is None:
        return CodebookCodes.apply(x, scale, codebook.detach())
    return reshaped(CodebookCodes.apply(reshaped(x, split), scale, codebook.detach()), x.shape)


class CodebookCodes(CodebookIndex):
    """The operator of :func:`codebook_codes`."""

    @staticmethod
    def forward(x: Tensor, scale: Parameter | None, codebook: Tensor) -> Tensor:
        return CodebookIndex.forward(*to_compute(x, scale, codebook)).to(smallest_dtype(0, codebook.shape[-1] - 1))
