"""`Relaxation`: the rules of every elementwise relaxation and its straight-through version, written once."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.shards import without_parts
from fullgrad._dispatch import at_least, same_shape
from fullgrad.soft._curves import SMALLEST, Softness
from fullgrad.soft._mode_names import MODES

# The other side of a comparison.
Operand = Tensor | float


class Relaxation(Elementwise):
    r"""An elementwise function of tensors, a softness and constants, with :math:`D_i` the partial derivatives of its soft value.

    A subclass defines ``forward(*operands, *constants, mode, hard)``, the soft value or, where ``hard`` is true, the value of
    the operator it relaxes; and ``vjp_term(i, v, *operands, *constants, mode, hard)``, which is :math:`v D_i` in plain torch
    code, so that derivatives of every order are those of the relaxation. Terms and soft values are computed in float32 at least.
    """

    in_pieces = opmath = True


def check(name: str, x: Any, softness: Any, mode: Any, modes: tuple[str, ...] = MODES) -> tuple[Tensor, Softness]:
    """The checked arguments that all relaxations share: ``x`` as a floating tensor, and a softness that is safe to divide by."""
    # Fast path for the common arguments.
    if (
        isinstance(x, Tensor)
        and x.dtype in FLOATING
        and softness.__class__ is float
        and (softness > SMALLEST) is True  # as in `checks`
        and (softness < _INFINITY) is True
        and mode in modes
    ):
        return x, softness
    checks.real_tensor(name, "x", x)
    checks.choice(name, "mode", mode, modes)
    if isinstance(softness, Tensor):
        checks.real_tensor(name, "softness", softness)
        checks.positive_elements(name, "softness", softness)
    else:
        checks.positive_number(name, "softness", softness)
    x = floating(x)
    return x, softness if isinstance(softness, Tensor) else divisor(softness, x.dtype)


def divisor(softness: float, dtype: torch.dtype) -> float:
    """The softness, raised to the smallest normal number of the dtype of the computation: a subnormal may have no reciprocal."""
    return at_least(softness, torch.finfo(torch.promote_types(dtype, torch.float32)).smallest_normal)


def over_softness(x: Tensor, softness: Softness) -> Tensor:
    """x over the softness. An infinity, as that of a masked element, takes no part in the derivative with respect to the
    softness: it would be multiplied by a weight of 0.
    """
    if not isinstance(softness, Tensor):
        return x / softness
    infinite = x.detach().abs() == torch.inf
    return torch.where(infinite, x, torch.where(infinite, 0, x) / softness)


def check_other(name: str, argument: str, y: Any) -> Any:
    """The other operand, checked: a number or a floating tensor."""
    if y.__class__ is float or (isinstance(y, Tensor) and y.dtype in FLOATING):
        return y
    checks.real_number_or_tensor(name, argument, y)
    return floating(y) if isinstance(y, Tensor) else y


FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_INFINITY = float("inf")


def expand_to_softness_shape(value: Tensor, softness: Softness) -> Tensor:
    """A hard value in the shape of the soft one, where the softness has more dimensions."""
    if softness.__class__ is float or not isinstance(softness, Tensor) or softness.ndim == 0:
        return value
    shape = checks.broadcast_shape(value.shape, softness.shape)
    return value if same_shape(value.shape, shape) else value.expand(shape).clone()


def with_zero_derivative(value: Tensor, *inputs: Any) -> Tensor:
    """A step of the inputs, with the derivative 0 instead of none."""
    for x in inputs:
        if isinstance(x, Tensor):
            value = value + 0 * torch.sign(x)
    return value


def checked_floating(name: str, argument: str, x: Tensor) -> Tensor:
    """A real tensor, checked; integers in the default dtype."""
    if not (x.__class__ is Tensor and x.dtype in FLOATING):  # one call less for floating tensors
        checks.real_tensor(name, argument, x)
        x = without_parts(floating(x))
    return x


def floating(x: Tensor) -> Tensor:
    """A tensor as a floating one: integers in the default dtype."""
    return x if x.dtype in FLOATING or x.is_floating_point() else x.to(torch.get_default_dtype())
