"""`step_quantize`: rounding to multiples of a step, with derivative 1."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import to_opmath
from fullgrad._core.pieces import pointwise
from fullgrad.rounding._round import Round


def step_quantize(x: Tensor, step: Tensor | float = 1.0) -> Tensor:
    r"""Round to the nearest multiple of ``step``, with the straight-through derivative.

    .. math::
        y = \operatorname{round}(x / s)\, s, \qquad D_x = 1, \quad D_s = \operatorname{round}(x / s) - x / s

    :math:`D_s`, the gradient of a tensor ``step`` that requires one, is the derivative of this formula with that of ``round``
    being 1, as in learned step size quantization; in spikingjelly such a step gets no gradient. Higher derivatives are 0. Half
    precision is computed in float32 and rounded once. Saved: ``x`` and ``step`` if ``step`` is a tensor, else nothing.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        step: A positive number, or a tensor that broadcasts with ``x``. The elements of a tensor are not checked, since that
            would wait for the device: 0 gives NaN, and a negative step acts as its absolute value.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` or ``step`` is not real.
        ValueError: ``step`` is a number that is not positive and finite.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.1, 0.4, 0.8], requires_grad=True)
        >>> y = fullgrad.step_quantize(x, 0.25)
        >>> y.detach()
        tensor([0.0000, 0.5000, 0.7500])
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)

    Source: ``spikingjelly.activation_based.quantize.step_quantize``; for :math:`D_s`, Esser et al.,
        https://arxiv.org/abs/1902.08153.
    """
    _check("step_quantize", x, step)
    return StepQuantize.apply(x, step)


def step_quantize_forward(x: Tensor, step: Tensor | float = 1.0) -> Tensor:
    r"""The value of :func:`step_quantize` alone: plain torch code, whose derivative with respect to ``x`` is 0.

    .. math::
        y = \operatorname{round}(x / s)\, s

    Half precision is computed in float32 and rounded once.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        step: A positive number, or a tensor that broadcasts with ``x``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` or ``step`` is not real.
        ValueError: ``step`` is a number that is not positive and finite.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.step_quantize_forward(torch.tensor([0.1, 0.4, 0.8]), 0.25)
        tensor([0.0000, 0.5000, 0.7500])

    Source: ``spikingjelly.activation_based.quantize.step_quantize_forward``.
    """
    _check("step_quantize_forward", x, step)
    return multiple(x, step)


class StepQuantize(Elementwise):
    """The operator of :func:`step_quantize`."""

    in_pieces = True
    reads = {0: (), 1: (0, 1)}

    @staticmethod
    def forward(x: Tensor, step: Tensor | float = 1.0) -> Tensor:
        return multiple(x, step)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, step: Any) -> Tensor:
        if i == 0:
            return v
        v, x, step = to_opmath(v, x, step)
        u = x / step
        return v * (Round.apply(u) - u)  # their derivatives cancel


@replaceable
@pointwise(opmath=True)
def multiple(x: Tensor, step: Any) -> Tensor:
    return torch.round(x / step) * step


def _check(name: str, x: Any, step: Any) -> None:
    checks.real_tensor(name, "x", x)
    if isinstance(step, Tensor):
        checks.real_tensor(name, "step", step)
    else:
        checks.positive_number(name, "step", step)
