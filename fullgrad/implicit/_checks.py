"""Checks of arguments, solutions and values of equations."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import has_shape, ordered, pytree
from fullgrad._engine.call import Result
from fullgrad._engine.differentiated import is_floating
from fullgrad.implicit._vectors import flat


def check_kinds(label: str, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that have no derivatives, or that are no vectors."""
    for t in tensors:
        if t.is_quantized:
            raise TypeError(f"{label}: an argument must be a real tensor, got dtype {t.dtype}.")
        if torch.masked.is_masked_tensor(t):
            raise NotImplementedError(f"{label}: masked tensors are not taken; use their data, x.get_data().")
        if t.is_nested:
            raise NotImplementedError(f"{label}: nested tensors are not taken; use torch.func.vmap, or the buffer, x.values().")


def like_init(label: str, solution: Any, init: Any, start: Sequence[Tensor]) -> Any:
    """The solution as a solver must return it: with the structure ``init`` of its first argument, whose tensors are ``start``.
    Numbers become tensors.
    """
    if isinstance(solution, (int, float, complex)) and start and init.__class__ is float:
        solution = torch.as_tensor(solution, dtype=start[0].dtype, device=start[0].device)
    others = [v for v in pytree.tree_leaves(solution) if not isinstance(v, Tensor) and v is not None]
    if others:
        kind = type(others[0])
        raise TypeError(
            f"{label}: the solution must be tensors, got a value of type {kind.__module__}.{kind.__name__}. An array of "
            "numpy becomes one by torch.from_numpy, and a number one like `init`, if that is a tensor."
        )
    if not start:
        return solution
    solution = ordered(solution, init)
    found, wanted = pytree.tree_structure(solution), pytree.tree_structure(init)
    if found != wanted:
        raise TypeError(f"{label}: the solution must have the structure of `init`, {wanted}, got {found}.")
    for y, x in zip(Result(solution).tensors, start, strict=False):
        if y.dtype != x.dtype:
            raise TypeError(f"{label}: the solution must have the dtype of `init`, {x.dtype}, got {y.dtype}.")
        if y.shape != x.shape:
            raise ValueError(f"{label}: the solution must have the shape of `init`, {tuple(x.shape)}, got {tuple(y.shape)}.")
    return solution


def check_solution(label: str, tensors: Sequence[Tensor]) -> None:
    """Check that a solution consists of tensors of one floating dtype."""
    if not tensors or len({t.dtype for t in tensors}) > 1 or not is_floating(tensors[0].dtype):
        found = sorted({str(t.dtype) for t in tensors}) or "none"
        raise TypeError(f"{label}: the solution must be tensors of one floating dtype, got {found}.")


def vector_of(label: str, values: Sequence[Any], like: Sequence[Tensor]) -> Tensor:
    """The vector of values of an equation, which are like the solution. Autocast may change their dtype."""
    for r, z in zip(values, like, strict=True):
        if not isinstance(r, Tensor):
            raise TypeError(f"{label} must be tensors like the solution, got a value of type {type(r).__name__}.")
        if not has_shape(r.shape, z.shape):
            raise ValueError(f"{label} must have the shape of the solution, {tuple(z.shape)}, got {tuple(r.shape)}.")
        if r.dtype.is_complex and not z.dtype.is_complex:
            raise TypeError(f"{label} must be real, as the solution is, got {r.dtype}.")
    return flat([r.to(z.dtype) for r, z in zip(values, like, strict=True)])
