"""The operators that `completing` completes, by name, with their formulas in operations whose derivatives torch has right.

A formula takes and returns what the operator of torch does, or returns NotImplemented where torch's own is to be called.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

WRONG = "forward mode, differentiated again, is wrong"
NO_SECOND = "there is no derivative of its backward"
NO_THIRD = "reverse over forward, differentiated again, raises"
NAN_THIRD = "third derivatives are NaN"
NAN_OF_TANGENT = "the gradient of a tangent is NaN"
NAN_EAGER_THIRD = "third derivatives are NaN, in eager code too"
NAN_AT_INFINITIES = "it is NaN where both are -inf, from the second derivative on in eager code too"
NO_PADDED_THIRD = "there is no third derivative where an output is padded"
NO_FORWARD_OF_BACKWARD = "there is no forward mode of its backward under no_grad"
NO_FORWARD = "there is no forward mode"
WRONG_FORWARD = "forward mode is wrong"
NO_VMAP = "vmap does not batch it"
NO_DERIVATIVE = "there is no derivative"
WRONG_GRADIENT = "the gradient is wrong"
REFUSED = "the gradient is wrong; inside it is refused"
NO_WEIGHTS = "the tangent by weights is 0, and there is no gradient by them"
NO_BATCH = "there is no batch of gradients by its parameters, nor a derivative of cuDNN's backward"


class Completed(NamedTuple):
    """An operator of torch.

    ``formula`` is made of torch's operations alone, since torch refuses others where it has begun to process a transform.
    ``lean`` is called instead where a user calls the operator, and may use operators of this package. ``batched`` says that
    torch cannot batch it, and ``issue`` is torch's public one. With ``has_first`` torch's first derivative in reverse mode is
    right, and taken where it is all that is asked for. With some arguments torch lacks a derivative in eager code, too, as
    ``is_missing`` says of them; with ``keeps_first`` that is none of the first ones. With ``is_prepared`` torch's derivatives are
    right of the arguments that the formula returns.
    """

    formula: Callable[..., Any]
    lacks: str
    batched: bool = False
    lean: Callable[..., Any] | None = None
    issue: int | None = None
    slopes: Callable[..., "Slopes"] | None = None
    has_first: bool = False
    is_missing: Callable[[Sequence[Any]], bool] | None = None
    keeps_first: bool = False
    is_prepared: bool = False


# The derivatives of a function of single elements by its arguments, by their places: each a function that computes it, and the
# shape in which the argument broadcasts, None for its own.
Slopes = dict[int, tuple[Callable[[], Tensor], tuple[int, ...] | None]]


class Whole(NamedTuple):
    """A result of a formula whose value is to stay: it has drawn random numbers or copies some, or torch's kernel takes no such
    arguments.
    """

    value: Any


COMPLETED: dict[str, Completed] = {}
# Operators that torch's backwards call, which lack derivatives, by their names. Their formulas are for eager code.
BACKWARDS: dict[str, tuple[Callable[..., Any], tuple[int, ...], bool, Callable[..., bool] | None]] = {}
# Operators of which torch has no derivative in place.
NOT_IN_PLACE = ("asinh", "acosh", "atanh")
# Operators that other calls of torch with the same value replace under a transform, by their names. Eager code does not see them.
REPLACED: dict[str, Callable[..., Any]] = {}
# What makes tensors such that torch's own rule of an operator for a batch is right, by the operator's name.
PREPARED: dict[str, Callable[..., Sequence[Any]]] = {}
# Functions of torch in Python, and higher-order operators, which other code replaces where a derivative may be taken, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {}
HIGHER_ORDER: dict[str, Callable[..., Any]] = {}


def replaces_function(name: str) -> Callable[[Any], Any]:
    """A decorator that enters what is called in place of a function of torch in Python."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[name] = function
        return function

    return enter


# Attributes of torch by owner and name, functions in Python, and those that are in place of them inside.
ATTRIBUTES: list[tuple[Any, str, Callable[..., Any]]] = []


def completes_backward(
    name: str, *results: int, has_first: bool = False, crashes: Callable[..., bool] | None = None
) -> Callable[[Any], Any]:
    """A decorator that enters the formula of an operator that torch's backward calls. The arguments at ``results`` are results of
    the forward, which a formula computes again. With ``has_first`` torch has its first derivative right. ``crashes`` says of
    arguments in eager code whether torch's own reads memory that is none of theirs.
    """

    def enter(formula: Callable[..., Any]) -> Callable[..., Any]:
        BACKWARDS[name] = formula, results, has_first, crashes
        return formula

    return enter


def completes(
    name: str,
    lacks: str,
    *,
    batched: bool = False,
    lean: Any = None,
    issue: int | None = None,
    has_first: bool = False,
    is_missing: Callable[[Sequence[Any]], bool] | None = None,
    keeps_first: bool = False,
    is_prepared: bool = False,
) -> Callable[[Any], Any]:
    """A decorator that enters the formula of an operator of ``torch.ops.aten``."""

    def enter(formula: Callable[..., Any]) -> Callable[..., Any]:
        own = Completed(formula, lacks, batched, lean, issue, None, has_first, is_missing, keeps_first, is_prepared)
        COMPLETED[name] = own
        return formula

    return enter


def completes_by_slopes(name: str, lacks: str, *, has_first: bool = False) -> Callable[[Any], Any]:
    """A decorator that enters an operator of single elements by its derivatives: a function of its value and its arguments. These
    are functions of the arguments, whose own derivatives are the next ones. If forward mode alone is lacking, or with
    ``has_first``, reverse mode is torch's.
    """

    def enter(slopes: Callable[..., Slopes]) -> Callable[..., Slopes]:
        COMPLETED[name] = Completed(slopes, lacks, slopes=slopes, has_first=has_first)
        return slopes

    return enter


def replaces(name: str) -> Callable[[Any], Any]:
    """A decorator that enters what is called under a transform in place of an operator, unless it returns NotImplemented."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        REPLACED[name] = function
        return function

    return enter


def prepares(name: str) -> Callable[[Any], Any]:
    """A decorator that enters a function of the arguments that torch's rule for a batch gets."""

    def enter(function: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
        PREPARED[name] = function
        return function

    return enter


def valued(y: Tensor, value: Tensor) -> Tensor:
    """A tensor with the numbers of another, and its own derivatives.

    The copy saves nothing for a derivative, and what is written below a detached tensor is seen by no transform.
    """
    y = y.to(value.dtype, copy=True)
    try:
        y.detach().copy_(value)
    except RuntimeError:  # vmap: the number is that of all samples, of which torch's kernel has one each
        y = y + torch.zeros_like(value)
        y.detach().copy_(value)
    return y


def unit_of(most: Tensor) -> Tensor:
    """The largest size, by which squares neither over- nor underflow; 1 of zeros and of what is not finite."""
    return torch.where((most > 0) & most.isfinite(), most, 1)


def without_slope(x: Tensor, where: Tensor) -> Tensor:
    """0, and NaN at some places, where its derivatives are NaN, too."""
    return torch.expm1(torch.where(where, x, 0)) * torch.where(where, torch.nan, 0).to(x.dtype)


def absolute(x: Tensor) -> Tensor:
    """The absolute value; torch's has the slope 0 at NaN."""
    return x.abs() + without_slope(x, x.isnan())


def needs_gradient(args: Sequence[Any], i: int) -> bool:
    """Whether an argument of an operator is there, and is differentiated in eager code."""
    return len(args) > i and args[i] is not None and args[i].requires_grad


def accumulated(x: Tensor) -> Tensor:
    """The tensor in the precision of sums: half precision in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
