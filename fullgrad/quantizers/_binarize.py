"""`binarize`: two values, with a scale that learns."""

from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad._core.shards import reshaped
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter, expanded
from fullgrad.quantizers._arithmetic import to_compute
from fullgrad.quantizers._signs import pass_in_window, sign

AT_ZERO = (1.0, -1.0, 0.0)


def binarize(x: Tensor, scale: Parameter = 1.0, *, window: Parameter | None = 1.0, at_zero: float = 1.0) -> Tensor:
    r"""Two values, plus and minus ``scale``, with the derivative 1 in a window.

    .. math::
        y = s \operatorname{sgn}(x), \qquad D_x = [\,|x| \le w\,], \quad D_s = \operatorname{sgn}(x)

    The scale does not multiply :math:`D_x`; where a paper has it do so, write the product, ``scale * binarize(x)``. Higher
    derivatives are 0. NaN stays. Half precision is computed in float32 and rounded once. Saved: ``x``, and ``scale`` and
    ``window`` where they are tensors; nothing for ``window=None`` with a number as scale.

    BinaryConnect is ``binarize(w)``, LFQ ``binarize(x, s, window=None, at_zero=-1.0)``, and one bit of ParetoQ
    ``binarize(w, scale_bwd(a, w.numel() ** -0.5), window=a, at_zero=0.0)``.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        scale: Any number; or a tensor that broadcasts to ``x``, or has one number per block, as in :func:`fake_quantize`.
        window: The largest absolute value at which the gradient passes: a nonnegative number, or a tensor as for ``scale``, which
            has no gradient; None for all.
        at_zero: The sign of 0: 1.0, -1.0 or 0.0.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x``, ``scale`` or ``window`` is not real.
        ValueError: ``window`` is negative, ``at_zero`` has another value, or a parameter has another shape.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> w = torch.tensor([-1.5, -0.2, 0.0, 0.7], requires_grad=True)
        >>> y = quantizers.binarize(w, 0.5)
        >>> y.detach()
        tensor([-0.5000, -0.5000,  0.5000,  0.5000])
        >>> torch.autograd.grad(y.sum(), w)
        (tensor([0., 1., 1., 1.]),)

    Source: Courbariaux et al., BinaryConnect, https://arxiv.org/abs/1511.00363; ``larq.quantizers.SteSign``.
    """
    x = _arguments.floating_input("binarize", "x", x)
    checks.real_number_or_tensor("binarize", "scale", scale)
    window = _arguments.checked_window("binarize", window)
    if at_zero not in AT_ZERO:
        raise ValueError(f"binarize: `at_zero` must be one of {', '.join(map(str, AT_ZERO))}, got {at_zero!r}.")
    split, (scale, window) = _arguments.in_blocks("binarize", x, None, {"scale": scale, "window": window})
    if split is None:
        return Binarize.apply(x, scale, window, float(at_zero))
    return reshaped(Binarize.apply(reshaped(x, split), scale, window, float(at_zero)), x.shape)


class Binarize(Elementwise):
    """The operator of :func:`binarize`."""

    in_pieces = True

    @staticmethod
    def reads(x: Tensor, scale: Parameter, window: Parameter | None, at_zero: float) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {0: () if window is None else (0, 2), 1: (0,), 2: ()}

    @staticmethod
    def forward(x: Tensor, scale: Parameter, window: Parameter | None, at_zero: float) -> Tensor:
        return cast(_value(x, scale, window, at_zero), x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Any, scale: Any, window: Any, at_zero: float) -> Tensor | None:
        if i == 0:
            return v if window is None else pass_in_window(v, x, window if not isinstance(window, Tensor) else window.to(x.dtype))
        if i == 1:
            x, v = to_compute(x, v)
            return v * sign(x, at_zero)
        return None


@pointwise(opmath=True)
def _value(x: Tensor, scale: Any, window: Any, at_zero: float) -> Tensor:
    x, scale = to_compute(expanded(x, scale, window), scale)
    return sign(x, at_zero) * scale
