"""`pact`: activations with a learned bound."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad.clamping._clamp import clamp
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter
from fullgrad.rounding._step_quantize import step_quantize


def pact(x: Tensor, alpha: Parameter, bits: int = 4) -> Tensor:
    r"""Parameterized clipping activation: a grid from 0 to a bound that learns.

    .. math::
        y = \frac{\alpha}{n} \operatorname{round}\Bigl(\frac{n}{\alpha} \operatorname{clamp}(x, 0, \alpha)\Bigr), \qquad
        D_x = [\,0 \le x \le \alpha\,], \quad D_\alpha = [\,x > \alpha\,], \qquad n = 2^b - 1

    Higher derivatives are 0. The operator is :func:`fullgrad.step_quantize` of :func:`fullgrad.clamp`, with a step that is a
    constant. Half precision is computed in float32 and rounded once. Saved: what these save.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        alpha: The bound, positive: a number or a tensor that broadcasts to ``x``.
        bits: A positive integer, up to 53.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` or ``alpha`` is not real, or ``bits`` is not an integer.
        ValueError: ``alpha`` is a number that is not positive and finite or has another shape, or ``bits`` is out of its range.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x, alpha = torch.tensor([-1.0, 0.4, 2.0, 5.0]), torch.tensor(3.0, requires_grad=True)
        >>> y = quantizers.pact(x, alpha, 2)
        >>> y.detach()
        tensor([0., 0., 2., 3.])
        >>> torch.autograd.grad(y.sum(), alpha)
        (tensor(1.),)

    Source: Choi et al., https://arxiv.org/abs/1805.06085.
    """
    x = _arguments.floating_input("pact", "x", x)
    _arguments.check_scale("pact", "alpha", alpha, x.dtype)
    bits = checks.positive_integer("pact", "bits", bits, 53)
    if not isinstance(alpha, Tensor):
        return step_quantize(clamp(x, 0.0, float(alpha)), float(alpha) / (2.0**bits - 1))
    checks.broadcasts_to("pact", "alpha", alpha, "x", x.shape)
    alpha = alpha.to(x.dtype)
    (wide,) = to_opmath(alpha.detach())
    return step_quantize(clamp(x, 0.0, alpha), wide / (2.0**bits - 1)).to(x.dtype)
