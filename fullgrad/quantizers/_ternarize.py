"""`ternarize`: three values, with scales that learn."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad._core.shards import reshaped
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter, expanded
from fullgrad.quantizers._arithmetic import to_compute
from fullgrad.quantizers._signs import pass_in_window, with_nan


def ternarize(
    x: Tensor,
    threshold: Parameter,
    scale: Parameter = 1.0,
    negative_scale: Parameter | None = None,
    *,
    window: Parameter | None = None,
    scale_gradient: bool = False,
) -> Tensor:
    r"""Three values: ``scale`` above a threshold, minus it (or minus ``negative_scale``) below its negative, else 0.

    .. math::
        y = s_p\,[\,x > t\,] - s_n\,[\,x < -t\,], \qquad D_x = [\,|x| \le w\,], \quad
        D_{s_p} = [\,x > t\,], \quad D_{s_n} = -[\,x < -t\,]

    Where there is one scale, its derivative is the sum of the two. With ``scale_gradient``, :math:`D_x` is multiplied by
    :math:`s_p` above the threshold and by :math:`s_n` below its negative, and :math:`D_{s_p}` and :math:`D_{s_n}` have the
    derivatives that make the second derivatives symmetric. The threshold and the window have no gradient: the value does not
    change with them. Higher derivatives are 0. NaN stays. Half precision is computed in float32 and rounded once. Saved: ``x``,
    and parameters that are tensors, as far as gradients need them; nothing without a window, ``scale_gradient`` and a tensor as
    scale.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        threshold: A number that is not negative; or a tensor that broadcasts to ``x``, or has one number per block, as in
            :func:`fake_quantize`.
        scale: The value above the threshold: any number, or a tensor as for ``threshold``.
        negative_scale: Minus the value below its negative; None for ``scale``.
        window: The largest absolute value at which the gradient passes: a nonnegative number, or a tensor; None for all.
        scale_gradient: Whether the gradient of ``x`` is multiplied by the scale, as in trained ternary quantization.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` or a parameter is not real.
        ValueError: ``threshold`` or ``window`` is negative, or a parameter has another shape.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> w, scale = torch.tensor([-1.5, -0.2, 0.3, 0.7]), torch.tensor(0.5, requires_grad=True)
        >>> y = quantizers.ternarize(w, 0.25, scale)
        >>> y.detach()
        tensor([-0.5000,  0.0000,  0.5000,  0.5000])
        >>> torch.autograd.grad(y.sum(), scale)
        (tensor(1.),)

    Source: Li et al., https://arxiv.org/abs/1605.04711; Zhu et al., https://arxiv.org/abs/1612.01064;
        ``larq.quantizers.SteTern``.
    """
    x = _arguments.floating_input("ternarize", "x", x)
    checks.real_number_or_tensor("ternarize", "threshold", threshold)
    threshold = _arguments.checked_window("ternarize", threshold, "threshold")
    checks.real_number_or_tensor("ternarize", "scale", scale)
    if negative_scale is not None:
        checks.real_number_or_tensor("ternarize", "negative_scale", negative_scale)
    window = _arguments.checked_window("ternarize", window)
    parameters = {"threshold": threshold, "scale": scale, "negative_scale": negative_scale, "window": window}
    split, parameters = _arguments.in_blocks("ternarize", x, None, parameters)
    options = bool(scale_gradient), negative_scale is not None
    if split is None:
        return Ternarize.apply(x, *parameters, *options)
    return reshaped(Ternarize.apply(reshaped(x, split), *parameters, *options), x.shape)


class Ternarize(Elementwise):
    """The operator of :func:`ternarize`."""

    in_pieces = True

    @staticmethod
    def reads(x: Tensor, threshold: Any, scale: Any, negative_scale: Any, window: Any, scale_gradient: bool, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        is_identity = window is None and not scale_gradient
        return {0: () if is_identity else range(5), 1: (), 2: (0, 1, 4), 3: (0, 1, 4), 4: ()}

    @staticmethod
    def forward(
        x: Tensor,
        threshold: Parameter,
        scale: Parameter,
        negative_scale: Parameter | None,
        window: Parameter | None,
        scale_gradient: bool,
        has_negative_scale: bool,
    ) -> Tensor:
        return cast(_value(x, threshold, scale, negative_scale, window, has_negative_scale), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, threshold: Any, scale: Any, negative_scale: Any, window: Any, *rest: Any) -> Any:
        if i in (1, 4):
            return None
        if i == 0 and window is None and not rest[0]:
            return v
        dtype = v.dtype
        x, v, t, p, n, w = to_compute(x, v, threshold, scale, negative_scale, window)
        scale_gradient, has_negative_scale = rest
        if i == 0:
            if scale_gradient:
                v = torch.where(x > t, v * p, torch.where(x < -t, v * (n if has_negative_scale else p), v))
            return pass_in_window(v, x, w).to(dtype)
        above, below = 1.0, 0.0 if has_negative_scale else 1.0
        if i == 3:
            above, below = 0.0, 1.0
        return v * TernaryCode.apply(x, t, w, above, below, scale_gradient)


@pointwise(opmath=True)
def _value(x: Tensor, threshold: Any, scale: Any, negative_scale: Any, window: Any, has_negative_scale: bool) -> Tensor:
    x, t, p, n = to_compute(expanded(x, threshold, scale, negative_scale, window), threshold, scale, negative_scale)
    x = x.detach()
    if isinstance(t, Tensor):
        code = (x > t).to(x.dtype) - (x < -t).to(x.dtype)
    else:
        code = torch.sign(torch.nn.functional.hardshrink(x, t))
        code = torch.where(code == 0, 0, code)  # no -0
    if has_negative_scale:  # one of the summands is 0
        return with_nan(torch.clamp(code, min=0) * p + torch.clamp(code, max=0) * n, x)
    return with_nan(code * p, x)


class TernaryCode(Elementwise):
    """The derivatives with respect to scales: ``above`` over the threshold, ``-below`` under its negative. Where the gradient of
    ``x`` has the scale as factor, they have derivatives with respect to ``x``.
    """

    reads = {0: (0, 1, 2), 1: (), 2: ()}

    @staticmethod
    def forward(
        x: Tensor, threshold: Parameter, window: Parameter | None, above: float, below: float, scale_gradient: bool
    ) -> Tensor:
        x = expanded(x, threshold, window)
        return (x > threshold).to(x.dtype) * above - (x < -threshold).to(x.dtype) * below

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, threshold: Any, window: Any, above: float, below: float, scale_gradient: bool) -> Any:
        if i != 0:
            return None
        if not scale_gradient:
            return torch.zeros_like(v)
        v = torch.where(x > threshold, v * above, torch.where(x < -threshold, v * below, 0))
        return pass_in_window(v, x, window)
