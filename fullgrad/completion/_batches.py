"""Operators that `vmap` alone lacks: numbers that are the same for all samples, copies of rows, values and dtypes of samples."""

import functools
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import active_transforms, get_unwrapped, innermost, is_wrapped
from fullgrad.completion._registry import NO_VMAP, completes, prepares

LOST_NUMBER = (
    "vmap: a tensor that is differentiated became a number, which has no derivative: by `item()` or `float(x)`, in a list of"
    " `torch.tensor`, or as an argument that torch takes for a number, such as the `alpha` of elu. Write the formula with the"
    " tensor, by `torch.stack` for a list, or detach it."
)


def _requires_gradient(x: Tensor) -> bool:
    """Whether the numbers of a batch have a gradient outside of it."""
    return x.requires_grad or (is_wrapped(x) and _requires_gradient(get_unwrapped(x)))


@completes("item", NO_VMAP, batched=True)
@completes("_local_scalar_dense", NO_VMAP, batched=True)
def _number(x: Tensor) -> bool | int | float | complex:
    # A list of `torch.tensor` is read below the transforms that are inside of the batch, of which nothing is known there.
    if (x.is_floating_point() or x.is_complex()) and (active_transforms()[-1] != "Vmap" or _requires_gradient(x)):
        raise RuntimeError(LOST_NUMBER)
    every = innermost(x).reshape(-1)
    if every.numel() and bool((every == every[0]).all()):
        return every[0].item()
    raise RuntimeError(
        "vmap: the samples of the batch have several numbers where Python code asks for one; use torch.where instead."
    )


@completes("equal", NO_VMAP, batched=True)
def _equal(x: Tensor, y: Tensor) -> bool:
    return bool(_number((x == y).all()))


@completes("allclose", NO_VMAP, batched=True)
def _allclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(_number(torch.isclose(x, y, rtol, atol, equal_nan).all()))


@completes("is_nonzero", NO_VMAP, batched=True)
def _condition(x: Tensor) -> bool:
    return bool(_number(x != 0))


@completes("unbind_copy.int", NO_VMAP, batched=True)
def _unbind_copy(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [v.clone() for v in torch.unbind(x, dim)]


@completes("index_fill.int_Tensor", NO_VMAP, batched=True)
def _index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """torch gives all samples the value of the last one where ``x`` is that of all."""
    if not x.ndim:
        return _index_fill(x.reshape(1), 0, index, value).reshape(())
    is_filled = torch.zeros(x.shape[dim], dtype=torch.bool, device=x.device).index_fill(0, index, True)
    return torch.where(is_filled.reshape(-1, *[1] * (x.ndim - 1 - dim % x.ndim)), value.to(x.dtype), x)


# --- Dtypes: a number of each sample widens none of a row, for which torch takes it, with the dimension of the samples ----------


def _cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the dtype that a sample's result has."""
    if all(v.dtype == tensors[0].dtype for v in tensors):
        return tensors
    numbers, rows = [v for v in tensors if not v.ndim], [v for v in tensors if v.ndim]
    ends = [v[0].to(functools.reduce(torch.promote_types, [w.dtype for w in v])) for v in (numbers, rows) if v]
    dtype = torch.result_type(ends[0], ends[-1])
    return tuple([v.to(dtype) for v in tensors])


@prepares("where.self")
def _where(condition: Tensor, x: Tensor, other: Tensor) -> Any:
    if x.dtype == other.dtype:
        return condition, x, other
    dtype = torch.result_type(x, other)  # which knows a number of Python, of which torch has made a tensor
    return condition, x.to(dtype), other.to(dtype)


@prepares("addcmul")
@prepares("addcdiv")
def _of_three(x: Tensor, first: Tensor, second: Tensor, **_: Any) -> Any:
    return _cast(x, first, second)


@prepares("clamp.Tensor")
def _clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Any:
    own = iter(_cast(*[v for v in (x, min, max) if v is not None]))
    return [v if v is None else next(own) for v in (x, min, max)]


@prepares("lerp.Tensor")
def _lerp(x: Tensor, end: Tensor, weight: Tensor) -> Any:
    """torch refuses a weight of another dtype, unless it is a number."""
    return (x, end, weight) if weight.ndim or x.dtype != end.dtype else _cast(x, end, weight)


@prepares("bitwise_and_.Tensor")
@prepares("bitwise_or_.Tensor")
@prepares("bitwise_xor_.Tensor")
def _bits(x: Tensor, other: Tensor) -> Any:
    """torch writes to a copy in the wider dtype, which nobody sees; the bits of a narrower one are the same."""
    return x, other.to(x.dtype) if torch.can_cast(other.dtype, x.dtype) else other
