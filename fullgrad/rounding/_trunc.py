"""`trunc`: rounding toward zero, with derivative 1."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import pure
from fullgrad.rounding._straight_through import StraightThrough


def trunc(x: Tensor) -> Tensor:
    r"""Round toward zero, with the straight-through derivative.

    .. math::
        y = \operatorname{trunc}(x), \qquad D(x) = 1

    The value is that of :func:`torch.trunc`, bit for bit: negative fractions become -0.0. Higher derivatives are 0. Nothing is
    saved.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.5, 0.4, 2.5], requires_grad=True)
        >>> y = fullgrad.trunc(x)
        >>> y.detach()
        tensor([-1., 0., 2.])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)

    Source: ``brevitas.function.round_to_zero_ste``, which loses the sign of zero.
    """
    checks.real_tensor("trunc", "x", x)
    return Trunc.apply(x)


class Trunc(StraightThrough):
    """The operator of :func:`trunc`."""

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return x.trunc()
