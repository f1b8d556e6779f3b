"""`replace_grad`: the value of one tensor with the derivative of another."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.batching import in_front
from fullgrad._core.function import Function, alias, is_identity, saves_nothing
from fullgrad._dispatch import has_shape


def replace_grad(value: Tensor, surrogate: Tensor) -> Tensor:
    r"""The value of one tensor with the derivative of another.

    .. math::
        y = v, \qquad D_v = 0, \quad D_u = 1

    for ``value`` :math:`v` and ``surrogate`` :math:`u`, whose derivatives of every order are those of the result. Unlike
    ``surrogate + (value - surrogate).detach()`` the value is exact for every number, infinities and NaN included. Nothing is
    saved.

    Args:
        value: Any shape, floating. Gets no gradient.
        surrogate: Same shape and dtype. Gets the gradient unchanged.

    Returns:
        ``value`` as a view.

    Raises:
        TypeError: An argument is not a floating tensor, or the two differ in dtype.
        ValueError: The two differ in shape.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.4, -1.6])
        >>> torch.func.jvp(lambda x: fullgrad.replace_grad(x.round(), x**2), (x,), (torch.ones(2),))
        (tensor([ 0., -2.]), tensor([ 0.8000, -3.2000]))

    Source: the detach trick; ``softtorch.grad_replace``.
    """
    checks.floating_tensor("replace_grad", "value", value)
    checks.floating_tensor("replace_grad", "surrogate", surrogate)
    return of_pair(value, surrogate)


def of_pair(value: Tensor, surrogate: Tensor) -> Tensor:
    """The same for tensors that may be complex."""
    if value.dtype != surrogate.dtype:
        raise TypeError(
            f"replace_grad: `value` and `surrogate` must have one dtype, got dtypes {value.dtype} and {surrogate.dtype}."
        )
    if not has_shape(value.shape, surrogate.shape):
        raise ValueError(
            "replace_grad: `value` and `surrogate` must have one shape, got shapes "
            f"{tuple(value.shape)} and {tuple(surrogate.shape)}."
        )
    if value.device != surrogate.device:
        raise RuntimeError(
            f"replace_grad: `value` and `surrogate` must be on one device, got devices {value.device} and {surrogate.device}."
        )
    return ReplaceGrad.apply(value, surrogate)


class ReplaceGrad(Function):
    """The operator of :func:`replace_grad`."""

    whole_dims = 0

    recompute_in_backward = True

    @staticmethod
    @is_identity
    def forward(value: Tensor, surrogate: Tensor) -> Tensor:
        return alias(value)

    setup_context = staticmethod(saves_nothing)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, g

    @staticmethod
    def jvp(ctx: Any, t_value: Tensor | None, t: Tensor | None) -> Any:
        return torch.zeros_like(t_value) if t is None and t_value is not None else t

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return ReplaceGrad.apply(*in_front(info, in_dims, args, 2)), 0
