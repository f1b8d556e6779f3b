"""`jumprelu`."""

from typing import Any, Literal

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.windows import where_inside
from fullgrad.soft._relaxation import FLOATING, floating
from fullgrad.spikes._arguments import Parameter
from fullgrad.spikes._values import expanded

INPUT_GRADIENTS = ("mask", "ste")


def jumprelu(x: Tensor, threshold: Parameter, bandwidth: Parameter, input_gradient: Literal["mask", "ste"] = "mask") -> Tensor:
    r"""The input where it exceeds a threshold, else 0, with a pseudo-derivative by which the threshold learns.

    .. math::
        y = x\,[\,x > \theta\,], \qquad
        D_\theta = -\frac{\theta}{\varepsilon}\left[\,|x - \theta| < \tfrac{\varepsilon}{2}\,\right], \qquad
        D_x = [\,x > \theta\,] \quad \text{or} \quad D_x = [\,x > \theta\,] - D_\theta

    The threshold learns from the elements in a window of width :math:`\varepsilon` around it. With ``input_gradient="mask"``,
    as in the paper, the input has the derivative of the value; with ``"ste"`` the jump at the threshold has the same rectangle as
    its slope in both directions, so that a shift of ``x`` and ``threshold`` together gives the derivative of ``x`` alone: sparse
    autoencoders then train their encoder by the estimator, too. On the threshold the value and ``D_x`` of ``"mask"`` are 0;
    at the ends of the window the rectangle is 0. Where ``x`` or the threshold is NaN the value is NaN and the gradients are 0.
    Minus infinity gives 0. A ``threshold`` below 0 is used as it is; to keep it positive, give the exponential of a parameter.
    Second derivatives are those of :math:`\theta / \varepsilon`; the value does not depend on ``bandwidth``, which gets a
    gradient from them alone. Half precision is computed in float32 and rounded once. Saved: ``x``, and ``threshold`` and
    ``bandwidth`` if they are tensors; nothing beyond inputs.

    Args:
        x: The pre-activations, any shape; floating, or integer (which gives the default dtype).
        threshold: The threshold :math:`\theta` in the unit of ``x``: a number, or a tensor that broadcasts with ``x``, such as
            one number per feature, and gets its own gradient.
        bandwidth: The width :math:`\varepsilon` of the window in the unit of ``x``, positive: a number or a tensor. The smaller
            it is, the fewer elements move the threshold, each by more.
        input_gradient: The derivative by ``x``, ``"mask"`` or ``"ste"``.

    Returns:
        A tensor of the broadcast shape, of the dtype of ``x - threshold``. A float32 threshold makes it float32.

    Raises:
        TypeError: ``x`` is not a real tensor, or another argument is neither a real tensor nor a number.
        ValueError: ``bandwidth`` is a number that is not positive and finite, or ``input_gradient`` another string.

    Example:
        >>> import torch, fullgrad
        >>> x, threshold = torch.tensor([0.5, 0.99, 1.02, 3.0]), torch.tensor(1.0)
        >>> fullgrad.spikes.jumprelu(x, threshold, 0.1)
        tensor([0.0000, 0.0000, 1.0200, 3.0000])
        >>> torch.func.grad(lambda t: fullgrad.spikes.jumprelu(x, t, 0.1).sum())(threshold)
        tensor(-20.)
        >>> torch.func.grad(lambda x: fullgrad.spikes.jumprelu(x, threshold, 0.1, "ste").sum())(x)
        tensor([ 0., 10., 11.,  1.])

    Source: Rajamanoharan et al., https://arxiv.org/abs/2407.14435; ``sae_lens``, ``jumprelu_ste_to_input`` of which is ``"ste"``.
    """
    if not (x.__class__ is Tensor and x.dtype in FLOATING):
        checks.real_tensor("jumprelu", "x", x)
        x = floating(x)
    checks.real_number_or_tensor("jumprelu", "threshold", threshold)
    checks.positive_number_or_tensor("jumprelu", "bandwidth", bandwidth)
    checks.choice("jumprelu", "input_gradient", input_gradient, INPUT_GRADIENTS)
    return Jumprelu.apply(x, threshold, bandwidth, input_gradient)


class Jumprelu(Elementwise):
    """The operator of :func:`jumprelu`."""

    in_pieces = opmath = True

    @staticmethod
    def reads(x: Any, threshold: Any, bandwidth: Any, input_gradient: str) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inputs that each partial derivative reads."""
        return {0: (0, 1) if input_gradient == "mask" else (0, 1, 2), 1: (0, 1, 2), 2: ()}

    @staticmethod
    def forward(x: Tensor, threshold: Parameter, bandwidth: Parameter, input_gradient: str) -> Tensor:
        # The sum is NaN where the comparisons fail; a product would be NaN at minus infinity.
        y = torch.where(x > threshold, x, torch.where(x <= threshold, 0, x + threshold))
        return expanded(y, bandwidth)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, threshold: Any, bandwidth: Any, input_gradient: str) -> Tensor | None:
        if i == 2:
            return None  # the value does not depend on it
        if i == 1:
            return -_rectangle(v, x, threshold, bandwidth)
        # The value's own comparison, written the other way: compiled code would keep one that both share.
        passed = torch.where(threshold < x, v, 0)
        return passed if input_gradient == "mask" else passed + _rectangle(v, x, threshold, bandwidth)


def _rectangle(v: Tensor, x: Tensor, threshold: Any, bandwidth: Any) -> Tensor:
    """``v`` times the height of the jump over the width of the window, inside the window."""
    return where_inside(v * (threshold / bandwidth), x - threshold, -0.5 * bandwidth, 0.5 * bandwidth)
