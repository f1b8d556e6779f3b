"""`Relaxation`: the rules of every elementwise relaxation and its straight-through version, written once."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import recomputed
from fullgrad._core.opmath import HALF, cast, to_opmath
from fullgrad._core.pieces import chunked, chunked_terms
from fullgrad._core.shards import without_parts
from fullgrad._dispatch import (
    Rules,
    at_least,
    can_reuse_buffers,
    can_skip_autograd,
    in_legacy_vmap,
    innermost,
    is_compiling,
    is_tracing,
    same_shape,
)
from fullgrad.soft._curves import LARGEST, SMALLEST, Softness
from fullgrad.soft._mode_names import MODES

# The other side of a comparison.
Operand = Tensor | float


class Relaxation(Elementwise):
    r"""An elementwise function of tensors, a softness and constants, with :math:`D_i` the partial derivatives of its soft value.

    A subclass defines ``forward(*operands, *constants, mode, hard)``, the soft value or, where ``hard`` is true, the value of
    the operator it relaxes; and ``vjp_term(i, v, *operands, *constants, mode, hard, output)``, which is :math:`v D_i` in plain
    torch code, so that derivatives of every order are those of the relaxation. Only inputs are saved, and the output where
    ``vjp_term`` reads it. The rules are written here, not derived from ``reads`` as in `Elementwise`: in half precision the
    terms are computed in float32.
    """

    # How many inputs may be tensors: x, its other operands or bounds, and the softness, in this order.
    operands = 2
    # Whether `vjp_term` reads the output, in smooth mode.
    reads_output = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        for rule in _rules(cls):
            setattr(cls, rule.__name__, staticmethod(rule))
        super().__init_subclass__(**kwargs)

    @classmethod
    def vjp_terms_in_half(cls, needed: tuple[bool, ...], g: Tensor, *args: Any) -> Sequence[Tensor | None] | None:
        """`vjp_terms` for half precision by fused kernels that compute in float32; None where there are none."""
        return None


def _rules(cls: Any) -> tuple[Callable[..., Any], ...]:
    """``setup_context``, ``vjp`` and ``jvp`` of a class, as plain functions: class methods slow down small calls."""
    term, operands, reads_output = cls.vjp_term, cls.operands, cls.reads_output
    no_other_gradients = (None,) * (len(inspect.signature(cls.forward).parameters) - 1)
    are_scalars = Rules.SCALAR_TYPES.issuperset

    # `ctx.kept` is the tuple of all other inputs where x is the only tensor; else a list of all inputs, None for each tensor.

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        value = output if reads_output and inputs[-2] == "smooth" and not inputs[-1] else None
        others = inputs[1:]
        if are_scalars(map(type, others)):
            ctx.kept, saved = others, (inputs[0], value)
        else:
            ctx.kept = [None if isinstance(v, Tensor) else v for v in inputs]
            saved = (*[v if isinstance(v, Tensor) else None for v in inputs[:operands]], value)
        ctx.dtype = output.dtype
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    def inputs_and_output(ctx: Any) -> tuple[Any, ...]:
        kept, (*tensors, value) = ctx.kept, ctx.saved_tensors
        if kept.__class__ is tuple:
            return tensors[0], *kept, value
        return *[k if t is None else t for t, k in zip(tensors, kept)], *kept[operands:], value  # noqa: B905

    # Autograd sums a gradient to the shape of its input, and converts it to its dtype.

    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.kept
        if kept.__class__ is tuple and g.dtype not in HALF:
            x, value = ctx.saved_tensors
            return term(0, g, x, *kept, value), *no_other_gradients
        args, needed, parts = inputs_and_output(ctx), ctx.needs_input_grad, None
        is_half = g.dtype in HALF
        if is_half:
            parts = cls.vjp_terms_in_half(needed, g, *args)
            args = (*args[:-1], None)  # a value that was rounded to half precision has lost its slope
        if parts is None and (is_half or sum(needed) > 1):
            parts = chunked_terms(cls.vjp_terms, needed, g, args, widen=True)
        if parts is None:
            parts = cls.vjp_terms(needed, *to_opmath(g, *args))
        return (*parts, *no_other_gradients)[: len(needed)]

    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        *inputs, output = inputs_and_output(ctx)
        wide = to_opmath(*inputs, None if output is not None and output.dtype in HALF else output)
        total: Any = None
        for i, t in enumerate(tangents):
            if t is not None:
                part = term(i, *to_opmath(t), *wide)
                total = part if total is None else total + part
        return cast(total, ctx.dtype)

    return setup_context, vjp, jvp


def can_use_torch_ops(x: Tensor, softness: Softness, mode: str) -> bool:
    """Whether the arguments are valid and torch's own operations may compute the soft value: they cost less than an operator, and
    their derivatives of every order are the true ones. Not in half precision, where each operation would round.
    """
    return (  # pyright: ignore[reportReturnType]
        mode == "smooth"
        and softness.__class__ is float
        and SMALLEST < softness < LARGEST
        and isinstance(x, Tensor)
        and x.dtype in WIDE
    )


def is_small(x: Tensor) -> bool:
    """Whether the number of operations counts more than the number of elements; never in compiled code, which may not know it."""
    return not is_compiling() and innermost(x).numel() <= 1024  # with all batches


def soft_value(dtype: torch.dtype, formula: Callable[..., Tensor], *args: Any) -> Tensor:
    """The value of a formula, computed in float32 at least and rounded once."""
    if dtype in WIDE and args[0].dtype is dtype and not any(isinstance(a, Tensor) for a in args[1:]):
        return formula(*args)
    if dtype in HALF:
        parts = chunked(lambda *a: (formula(*a),), [(args[0].shape, dtype)], *args)
        if parts is not None:
            return parts[0]
    return cast(formula(*to_opmath(*args)), dtype)


def check(name: str, x: Any, softness: Any, mode: Any, modes: tuple[str, ...] = MODES) -> tuple[Tensor, Softness]:
    """The checked arguments that all relaxations share: ``x`` as a floating tensor, and a softness that is safe to divide by."""
    # Fast path for the common arguments.
    if (
        isinstance(x, Tensor)
        and x.dtype in FLOATING
        and softness.__class__ is float
        and SMALLEST < softness < _INFINITY
        and mode in modes
    ):
        return x, softness
    checks.real_tensor(name, "x", x)
    checks.choice(name, "mode", mode, modes)
    if isinstance(softness, Tensor):
        checks.real_tensor(name, "softness", softness)
    else:
        checks.positive_number(name, "softness", softness)
    x = floating(x)
    return x, softness if isinstance(softness, Tensor) else divisor(softness, x.dtype)


def divisor(softness: float, dtype: torch.dtype) -> float:
    """The softness, raised to the smallest normal number of the dtype of the computation: a subnormal may have no reciprocal."""
    return at_least(softness, torch.finfo(torch.promote_types(dtype, torch.float32)).smallest_normal)


def check_other(name: str, argument: str, y: Any) -> Any:
    """The other operand, checked: a number or a floating tensor."""
    if y.__class__ is float or (isinstance(y, Tensor) and y.dtype in FLOATING):
        return y
    checks.real_number_or_tensor(name, argument, y)
    return floating(y) if isinstance(y, Tensor) else y


def only_value_needed(x: Any, softness: Any, mode: Any) -> bool:
    """Whether the hard value is all that a straight-through operator computes: the arguments are valid, no derivative is needed,
    and the softness has no shape.
    """
    return (
        can_skip_autograd(x)
        and x.dtype in FLOATING
        and softness.__class__ is float
        and 0.0 < softness < _INFINITY
        and mode in MODES
    )


def is_constant(y: Any) -> bool:
    """Whether the other operand needs no derivative."""
    return y.__class__ is float or not isinstance(y, Tensor) or can_skip_autograd(y)


FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
WIDE = frozenset({torch.float32, torch.float64})
_INFINITY = float("inf")


def compared(compare: Callable[..., Tensor], x: Tensor, y: Any, value_only: bool = False) -> Tensor:
    """A comparison as 0 or 1 in the floating dtype of x - y, written in that dtype where possible: torch converts bools slowly.

    ``value_only`` states that `only_value_needed` holds, which saves part of the test.
    """
    number = y.__class__ is float or not isinstance(y, Tensor)
    dtype = x.dtype if number or y.dtype == x.dtype else torch.result_type(x, y)
    plain = not (is_tracing() or in_legacy_vmap()) if value_only else can_reuse_buffers()
    if plain and (number or y.shape == x.shape or y.ndim == 0):
        return compare(x, y, out=torch.empty_like(x, dtype=dtype))
    return as_number(recomputed(compare, x, y), dtype)


def as_number(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as 0 and 1. Compiled code vectorizes the conversion of bools to float32, but not to half precision."""
    return (mask.float() if dtype in HALF and is_compiling() else mask).to(dtype)


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
