"""`leaky_k_relu`."""

from typing import Any

from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import where_left, where_right
from fullgrad.spikes._surrogate import Step


def leaky_k_relu(
    v: Tensor,
    leak: Parameter = 0.0,
    k: Parameter = 1.0,
    threshold: Parameter = 0.0,
    grad_scale: Parameter = 1.0,
    tie: float = 1.0,
) -> Tensor:
    r"""A spike with one slope below the threshold and another above.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad u < 0: \; d = l, \; R = l u; \qquad \text{else} \; d = k, \; R = k u; \qquad
        \frac{\partial R}{\partial l} = \min(u, 0), \quad \frac{\partial R}{\partial k} = \max(u, 0)

    At the threshold the slope is that of the side of the value: ``k`` for ``tie=1.0``. snntorch's ``heaviside`` is
    ``leaky_k_relu(v, tie=0.0)``; its ``LSO(a)``, which cannot run in 1.0.0, has ``leak=a``, its ``triangular(a)``
    ``leak=a, k=-a``.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        leak: The slope below the threshold: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
        k: The slope above it, a number or a tensor.
        threshold: The position of the step: a number or a tensor, in the unit of ``v``.
        grad_scale: A factor of the slope, a number or a tensor.
        tie: The value at the threshold: 1.0, 0.0 or 0.5.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``v - threshold``.

    Raises:
        TypeError: ``v`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: A parameter is a number out of its range, or ``tie`` has another value.

    Example:
        >>> import torch, fullgrad
        >>> v = torch.tensor([-1.0, 0.0, 0.5])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.leaky_k_relu))(v)
        tensor([0., 1., 1.])

    Source: ``spikingjelly.activation_based.surrogate.LeakyKReLU``.
    """
    v = checked_step("leaky_k_relu", v, threshold, grad_scale, tie, real={"leak": leak, "k": k})
    return LeakyKRelu.apply(v, leak, k, threshold, grad_scale, tie)


class LeakyKRelu(Step):
    """The operator of :func:`leaky_k_relu`."""

    in_pieces = "half"
    parameters = ("leak", "k")
    jumps_at_threshold = True

    @staticmethod
    def slope_times(v: Tensor, u: Tensor, leak: Any, k: Any, tie: float) -> Tensor:
        if leak.__class__ is float and leak == 0.0:
            return where_right(v, u, tie) * k
        return where_right(v, u, tie) * k + where_left(v, u, tie) * leak

    @staticmethod
    def rise(u: Tensor, leak: Any, k: Any, tie: float) -> Tensor:
        return where_right(u, u, tie) * k + where_left(u, u, tie) * leak

    @staticmethod
    def rise_by(i: int, u: Tensor, leak: Any, k: Any, tie: float) -> Tensor:
        return (where_right if i else where_left)(u, u, tie)
