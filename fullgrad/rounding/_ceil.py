"""`ceil`: rounding up to the next integer, with derivative 1."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import pure
from fullgrad.rounding._straight_through import StraightThrough


def ceil(x: Tensor) -> Tensor:
    r"""Round up to the next integer, with the straight-through derivative.

    .. math::
        y = \operatorname{ceil}(x), \qquad D(x) = 1

    The value is that of :func:`torch.ceil`, bit for bit. Higher derivatives are 0. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.5, 0.4, 2.5], requires_grad=True)
        >>> y = fullgrad.ceil(x)
        >>> y.detach()
        tensor([-1., 1., 3.])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)

    Source: ``spikingjelly.activation_based.quantize.ceil``.
    """
    checks.real_tensor("ceil", "x", x)
    return Ceil.apply(x)


class Ceil(StraightThrough):
    """The operator of :func:`ceil`."""

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return x.ceil()
