"""`soft_sign`."""

from torch import Tensor

from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._formulas import by_sum, saturating
from fullgrad.spikes._surrogate import HeavyTailedStep


def soft_sign(
    v: Tensor, alpha: Parameter = 2.0, threshold: Parameter = 0.0, grad_scale: Parameter = 1.0, tie: float = 1.0
) -> Tensor:
    r"""A spike with the slope of a soft sign.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad z = \alpha u, \qquad d(u) = \frac{\alpha / 2}{(1 + |z|)^2}, \qquad
        R(u) = \frac{z}{2 (1 + |z|)}

    The tails fall as the inverse square, with a corner at the threshold, where the second derivative is 0.

    Args:
        v: The membrane potential, any shape; floating, or integer (which gives the default dtype).
        alpha: The inverse width, positive: a number, or a tensor that broadcasts with ``v`` and gets its own gradient.
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
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.soft_sign))(v)
        tensor([0.1111, 1.0000, 0.2500])

    Source: ``spikingjelly.activation_based.surrogate.SoftSign``.
    """
    v = checked_step("soft_sign", v, threshold, grad_scale, tie, {"alpha": alpha})
    return SoftSign.apply(v, alpha, threshold, grad_scale, tie)


class SoftSign(HeavyTailedStep):
    """The operator of :func:`soft_sign`."""

    decay = 2
    distance = staticmethod(by_sum)

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        return saturating(z, 1.0) * 0.5
