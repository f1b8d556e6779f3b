"""`round`: to the nearest integer, derivative 1."""

from torch import Tensor

from fullgrad import _checks
from fullgrad._function import pure
from fullgrad.rounding._straight_through import StraightThrough


def round(x: Tensor) -> Tensor:
    r"""Round to the nearest integer, halves to even, with the straight-through derivative.

    .. math::
        y = \operatorname{round}(x), \qquad D(x) = 1

    The value is that of :func:`torch.round`, bit for bit. Higher derivatives are 0. Nothing is saved.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.5, 0.4, 2.5], requires_grad=True)
        >>> y = fullgrad.round(x)
        >>> y
        tensor([-2., 0., 2.], grad_fn=<RoundBackward>)
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)

    Source: ``spikingjelly.activation_based.quantize.round``.
    """
    _checks.real_tensor("round", "x", x)
    return Round.apply(x)


class Round(StraightThrough):
    """The operator of :func:`round`."""

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return x.round()
