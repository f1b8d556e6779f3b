"""`floor`: rounding down to the previous integer, with derivative 1."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import pure
from fullgrad.rounding._straight_through import StraightThrough


def floor(x: Tensor) -> Tensor:
    r"""Round down to the previous integer, with the straight-through derivative.

    .. math::
        y = \operatorname{floor}(x), \qquad D(x) = 1

    The value is that of :func:`torch.floor`, bit for bit. Higher derivatives are 0. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.5, 0.4, 2.5], requires_grad=True)
        >>> y = fullgrad.floor(x)
        >>> y.detach()
        tensor([-2., 0., 2.])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)

    Source: ``spikingjelly.activation_based.quantize.floor``.
    """
    checks.real_tensor("floor", "x", x)
    return Floor.apply(x)


class Floor(StraightThrough):
    """The operator of :func:`floor`."""

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return x.floor()
