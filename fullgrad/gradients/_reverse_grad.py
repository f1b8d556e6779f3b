"""`reverse_grad`: the gradient with its sign reversed."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad.gradients._scale import Scale


def reverse_grad(x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    r"""The input itself, whose gradient is reversed and scaled.

    .. math::
        y = x, \qquad D(x) = -s

    for ``scale`` :math:`s`. The map is linear: ``jvp`` reverses the tangent. It is ``scale_bwd(x, -scale)``. Saved: ``scale`` if
    it is a tensor.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        scale: A number, or a tensor that broadcasts to the shape of ``x``.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``scale`` is neither a number nor a real tensor.
        ValueError: ``scale`` has a shape that does not broadcast to that of ``x``.

    Example:
        >>> import torch, fullgrad
        >>> torch.func.grad_and_value(lambda x: fullgrad.reverse_grad(x, 0.1))(torch.tensor(3.0))
        (tensor(-0.1000), tensor(3.))

    Source: Ganin, Lempitsky, https://arxiv.org/abs/1409.7495.
    """
    checks.real_tensor("reverse_grad", "x", x)
    checks.real_number_or_tensor("reverse_grad", "scale", scale)
    checks.broadcasts_to("reverse_grad", "scale", scale, "x", x.shape)
    return Scale.apply(x, 1.0, -scale)
