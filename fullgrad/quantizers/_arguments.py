"""Argument checks of the family, and parameters that hold one number per block."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import noise_for
from fullgrad._core.opmath import HALF
from fullgrad._dispatch import holds, same_shape
from fullgrad.rounding._modes import DETERMINISTIC, ROUNDINGS

# A number, or a tensor that may learn.
Parameter = Tensor | float
Inside = Literal["rounded", "exact", "all"]

INSIDE = ("rounded", "exact", "all")

_FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
# The bounds above which a scale is positive, above which its reciprocal is finite too, and below which the scale is finite, in
# float32 and float64: half a unit around the smallest and the largest numbers.
_SCALES = {
    torch.float32: (2.0**-150, 2.0**-128 + 2.0**-150, 2.0**128 - 2.0**103),
    torch.float64: (0.0, 2.0**-1024, math.inf),
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the computation for inputs of a dtype: float32 for half precision."""
    return torch.float32 if dtype in HALF else dtype


def floating_input(name: str, argument: str, x: Any) -> Tensor:
    """A real tensor; integers are converted to the default dtype."""
    # The first half of the condition spares the common argument a call.
    if not isinstance(x, Tensor) or x.dtype not in _FLOATING:
        checks.real_tensor(name, argument, x)
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def check_scale(name: str, argument: str, value: Any, dtype: torch.dtype, reciprocal: bool = False) -> None:
    """Require a real tensor, or a number that is positive and finite in the dtype of the computation.

    The reciprocal, if used, must be finite, too. Elements of a tensor must be positive where they can be read without waiting.
    """
    if isinstance(value, Tensor):
        if value.dtype not in _FLOATING:
            checks.real_tensor(name, argument, value)
        checks.positive_elements(name, argument, value)
        return
    if value.__class__ is not float:
        checks.real_number_or_tensor(name, argument, value)
    positive, invertible, finite = _SCALES[torch.float64 if dtype == torch.float64 else torch.float32]
    least = invertible if reciprocal else positive
    known = value.__class__ is float and (value > least) is True and (value < finite) is True  # as in `checks`
    if not known and not (holds(value > least) and holds(value < finite)):
        word = ", and so must its reciprocal" if reciprocal else ""
        raise ValueError(f"{name}: `{argument}` must be positive and finite in {compute_dtype(dtype)}{word}, got {value}.")


def rounding_noise(
    name: str,
    x: Tensor,
    rounding: Any,
    noise: Tensor | None,
    generator: Generator | None,
    roundings: Sequence[str] = ROUNDINGS,
) -> Tensor | None:
    """The noise of stochastic rounding; None for the other roundings."""
    if rounding == "stochastic" and "stochastic" in roundings:
        return noise_for(name, x, noise, generator).detach()
    checks.choice(name, "rounding", rounding, roundings)
    if noise is not None or generator is not None:
        raise ValueError(f"{name}: `noise` and `generator` are for `rounding='stochastic'` alone, got {rounding!r}.")
    return None


def integer(name: str, argument: str, value: Any) -> int:
    """An integer of any kind except bool, as a plain int."""
    if value.__class__ is int:
        return value
    if isinstance(value, torch.SymInt) or (isinstance(value, int) and not isinstance(value, bool)):
        return int(value)  # a number that changes between calls of compiled code is compiled again
    index = None if isinstance(value, (bool, Tensor)) else checks.as_integer(value)
    if index is not None:
        return index
    raise TypeError(f"{name}: `{argument}` must be an integer, got a value of type {type(value).__name__}: {value!r}.")


def check_levels(name: str, value: Any) -> int:
    """A number of levels, at least two."""
    value = integer(name, "levels", value)
    if value < 2:
        raise ValueError(f"{name}: `levels` must be at least 2, got {value}.")
    return value


def check_range(name: str, quant_min: Any, quant_max: Any, dtype: torch.dtype) -> tuple[int, int]:
    """Two increasing integers that are exact in the dtype of the computation, as are all integers between them."""
    if not (quant_min.__class__ is int and quant_max.__class__ is int):
        quant_min, quant_max = integer(name, "quant_min", quant_min), integer(name, "quant_max", quant_max)
    most = 2**53 if dtype == torch.float64 else 2**24
    if not -most <= quant_min < quant_max <= most:
        raise ValueError(
            f"{name}: `quant_min` must be less than `quant_max`, and both within {most} in {compute_dtype(dtype)}, "
            f"got {quant_min} and {quant_max}."
        )
    return quant_min, quant_max


def checked_window(name: str, value: Any, argument: str = "window") -> Any:
    """A nonnegative number, or a real tensor, as a constant; None for no window."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        checks.real_tensor(name, argument, value)
        return value.detach()
    checks.real_number(name, argument, value)
    if not holds(value >= 0):
        raise ValueError(f"{name}: `{argument}` must not be negative, got {value}.")
    return float(value)


def in_blocks(name: str, x: Tensor, dim: int | None, parameters: dict[str, Any]) -> tuple[torch.Size | None, list[Any]]:
    """The shape of ``x`` split into blocks, None if there are none, and the parameters, which broadcast to that shape.

    A parameter is a number, or broadcasts to ``x``, or has as many dimensions with sizes that divide those of ``x``: then it has
    one number per block. With ``dim`` it has one number for each index of that dimension.
    """
    values = list(parameters.values())
    most = 0
    for p in values:
        most = max(most, p.ndim) if isinstance(p, Tensor) else most
    if most == 0:
        if dim is not None:
            check_dim(name, dim, x.ndim)
        return None, values
    if dim is not None:
        d = check_dim(name, dim, x.ndim)
        return None, [_along(name, key, p, x, d) if isinstance(p, Tensor) and p.ndim else p for key, p in parameters.items()]
    blocked = False
    for key, p in parameters.items():
        blocked |= is_per_block(name, key, p, x.shape)
    if not blocked:
        return None, values
    counts = _counts(x.shape, [p.shape for p in values if isinstance(p, Tensor)])
    split: list[int] = []
    for n, count in zip(x.shape, counts, strict=True):
        split += [n] if count is None else [count, n // count]
    return torch.Size(split), [_per_block(p, x.shape, counts) if isinstance(p, Tensor) else p for p in values]


def is_per_block(name: str, key: str, p: Any, shape: torch.Size) -> bool:
    """Whether a parameter has one number per block of a tensor of a shape, and does not broadcast to it."""
    if not isinstance(p, Tensor) or checks.can_broadcast(p.shape, shape):
        return False
    if p.ndim != len(shape) or not all(holds(k > 0) and holds(n % k == 0) for n, k in zip(shape, p.shape, strict=True)):
        raise ValueError(
            f"{name}: `{key}` must broadcast to the shape {tuple(shape)} of x, or have as many dimensions with sizes that divide "
            f"those of x, got shape {tuple(p.shape)}."
        )
    return True


def check_dim(name: str, dim: Any, ndim: int) -> int:
    """A dimension of a tensor, counted from the front."""
    if dim.__class__ is not int:
        dim = integer(name, "dim", dim)
    count = max(ndim, 1)
    if not -count <= dim < count:
        raise IndexError(f"{name}: `dim` must be from {-count} to {count - 1} for {ndim} dimensions, got {dim}.")
    return dim % count


def _along(name: str, key: str, p: Tensor, x: Tensor, d: int) -> Tensor:
    size = x.shape[d] if x.ndim else 1
    if p.ndim != 1 or not holds(p.shape[0] == size):
        raise ValueError(f"{name}: `{key}` must have one number for each of the {size} along `dim`, got shape {tuple(p.shape)}.")
    return p.view([size if i == d else 1 for i in range(x.ndim)])


def _counts(shape: torch.Size, others: Sequence[torch.Size]) -> list[int | None]:
    """The number of blocks of each dimension; None for a dimension in which no parameter has blocks."""
    counts: list[int | None] = []
    for i, n in enumerate(shape):
        sizes = [other[i - len(shape)] for other in others if len(other) >= len(shape) - i]
        some = [k for k in sizes if k not in (1, n)]
        # Blocks of several sizes are split into common parts. One number per element is one number per part.
        counts.append(math.lcm(*some) if some and n not in sizes else n if some else None)
    return counts


def _per_block(p: Tensor, shape: torch.Size, counts: Sequence[int | None]) -> Tensor:
    """A parameter with one number per block, per element or for all, reshaped for ``x`` in the split shape."""
    p = p.view((1,) * (len(shape) - p.ndim) + p.shape)
    for d, count in enumerate(counts):
        if count is not None and p.shape[d] not in (1, count):
            p = p.repeat_interleave(count // p.shape[d], d)
    split: list[int] = []
    for k, count in zip(p.shape, counts, strict=True):
        split += [k] if count is None else [k, 1]
    return p.view(split)


def expanded(x: Tensor, *parameters: Any) -> Tensor:
    """``x`` expanded to its broadcast shape with all parameters: under ``vmap``, all samples may share one ``x``."""
    shapes = [p.shape for p in parameters if isinstance(p, Tensor) and p.ndim]
    if not shapes:
        return x
    shape = checks.broadcast_shape(x.shape, *shapes)
    return x if same_shape(x.shape, shape) else x.expand(shape)


__all__ = ["DETERMINISTIC", "INSIDE", "ROUNDINGS", "Inside", "Parameter"]
