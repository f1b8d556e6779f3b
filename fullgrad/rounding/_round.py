"""`round`: rounding to the nearest integer, or by another mode, with derivative 1."""

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import pure
from fullgrad.rounding._ceil import Ceil
from fullgrad.rounding._floor import Floor
from fullgrad.rounding._modes import DETERMINISTIC, round_to_integer
from fullgrad.rounding._straight_through import StraightThrough
from fullgrad.rounding._trunc import Trunc


def round(x: Tensor, mode: str = "half_even") -> Tensor:
    r"""Round to the nearest integer, or by another mode, with the straight-through derivative.

    .. math::
        y = \operatorname{round}(x), \qquad D(x) = 1

    The value is that of :func:`torch.round`, bit for bit. Higher derivatives are 0. Nothing is saved.

    With :math:`t = \operatorname{trunc}(x)` and :math:`f = |x - t|`, which is exact, the modes are

    * ``"half_even"``: to the nearest, halves to even;
    * ``"half_away"``, ``"half_zero"``: to the nearest, halves away from zero, or toward it;
    * ``"half_up"``, ``"half_down"``: to the nearest, halves toward :math:`+\infty`, or :math:`-\infty`;
    * ``"floor"``, ``"ceil"``, ``"trunc"``: down, up, toward zero, as torch;
    * ``"away"``: :math:`t + \operatorname{sgn}(x)\,[\,f > 0\,]`;
    * ``"dpu"``: as ``"half_even"``, but negative halves up.

    Zeros keep the sign of ``x``, and infinities and NaN stay.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).
        mode: One of the above.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.
        ValueError: There is no such mode.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-1.5, 0.4, 2.5], requires_grad=True)
        >>> y = fullgrad.round(x)
        >>> y
        tensor([-2., 0., 2.], grad_fn=<RoundBackward>)
        >>> torch.autograd.grad(y.sum(), x)
        (tensor([1., 1., 1.]),)
        >>> fullgrad.round(x.detach(), "half_away")
        tensor([-2., 0., 3.])

    Source: ``spikingjelly.activation_based.quantize.round``; the modes of brevitas, QONNX and the C standard.
    """
    checks.real_tensor("round", "x", x)
    if mode == "half_even":
        return Round.apply(x)
    torch_mode = _TORCH_MODES.get(mode) if isinstance(mode, str) else None
    if torch_mode is not None:
        return torch_mode.apply(x)
    checks.choice("round", "mode", mode, DETERMINISTIC)
    return RoundByMode.apply(x, mode)


class Round(StraightThrough):
    """The operator of :func:`round`."""

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return x.round()


class RoundByMode(StraightThrough):
    """The operator of :func:`round` with a mode that torch lacks."""

    @staticmethod
    def forward(x: Tensor, mode: str) -> Tensor:
        return round_to_integer(x, mode) if x.is_floating_point() else x.trunc()


_TORCH_MODES: dict[str, type[StraightThrough]] = {"floor": Floor, "ceil": Ceil, "trunc": Trunc}
