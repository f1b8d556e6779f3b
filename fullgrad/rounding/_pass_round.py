"""`pass_round`: `round` under its name in shok."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad.rounding._round import Round

PassRound = Round


def pass_round(x: Tensor) -> Tensor:
    r"""Round and pass the gradient through: :func:`fullgrad.round` under another name.

    .. math::
        y = \operatorname{round}(x), \qquad D(x) = 1

    Nothing is saved.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> torch.func.grad(lambda x: fullgrad.pass_round(x) ** 2)(torch.tensor(1.7))
        tensor(4.)

    Source: ``shok.utils.functions.PassRound``.
    """
    checks.real_tensor("pass_round", "x", x)
    return Round.apply(x)
