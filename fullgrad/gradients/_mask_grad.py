"""`mask_grad`: the gradient of some elements only."""

from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import alias, is_identity
from fullgrad._core.windows import where_positive
from fullgrad.gradients._cotangent_map import CotangentMap


def mask_grad(x: Tensor, mask: Tensor) -> Tensor:
    r"""The input itself, with a gradient where ``mask`` is true.

    .. math::
        y = x, \qquad D(x) = [\,\mathrm{mask}\,]

    Masked elements get 0 even where the gradient is infinite or NaN. The map is linear: ``jvp`` masks the tangent. Higher
    derivatives are 0. Saved: ``mask``.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        mask: Bool; broadcasts to the shape of ``x``.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``mask`` is not a bool tensor.
        ValueError: ``mask`` has a shape that does not broadcast to that of ``x``.
        RuntimeError: ``mask`` is on another device.

    Example:
        >>> import torch, fullgrad
        >>> x, mask = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True])
        >>> torch.func.grad(lambda x: (fullgrad.mask_grad(x, mask) ** 2).sum())(x)
        tensor([2., 0., 6.])

    Source: ``torch.where(mask, x, x.detach())``, without its copy.
    """
    checks.real_tensor("mask_grad", "x", x)
    checks.bool_tensor("mask_grad", "mask", mask)
    checks.broadcasts_to("mask_grad", "mask", mask, "x", x.shape)
    return MaskGrad.apply(x, mask)


class MaskGrad(CotangentMap):
    """The operator of :func:`mask_grad`."""

    is_linear = True
    whole_dims = 0

    @staticmethod
    @is_identity
    def forward(x: Tensor, mask: Tensor) -> Tensor:
        return alias(x)

    # Not an `Elementwise`, whose check for derivatives a mask does not need; small calls are faster.

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return where_positive(g, *ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        return where_positive(t, *ctx.saved_tensors)
