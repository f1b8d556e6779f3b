"""torch's control flow as plain Python, whose operations have every derivative.

torch runs these functions by a compiler, which takes no tensors of transforms. The derivatives of its backwards are missing or,
for `scan` and `while_loop`, wrong without an error.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, can_read_numbers, has_data, innermost, is_recorded, pytree, torch_function
from fullgrad.completion._registry import HIGHER_ORDER, replaces_function


def _chosen(name: str, condition: Any) -> bool | Tensor:
    """A condition as a bool, or as a tensor if the samples of a batch have their own."""
    if not isinstance(condition, Tensor):
        return bool(condition)
    if condition.numel() != 1:
        raise RuntimeError(
            f"{name}: the condition must be a bool or a tensor with one element, got shape {tuple(condition.shape)}."
        )
    own = condition if torch.compiler.is_dynamo_compiling() else innermost(condition)
    if torch.compiler.is_dynamo_compiling() or is_recorded() or not has_data(own) or not can_read_numbers(own):
        raise NotImplementedError(
            f"{name} has no derivative or batch in compiled or recorded code, as of torch.func.linearize, where its condition is "
            "not known. Call the transform outside of it, or use torch.where."
        )
    if own.numel() == 1:
        return below_transforms(lambda: bool(own))
    return condition.reshape(()) != 0


def _selected(name: str, condition: Tensor, given: Any, other: Any) -> Any:
    """Element by element, for samples that choose by themselves."""
    leaves, spec = pytree.tree_flatten(given)
    others, other_spec = pytree.tree_flatten(other)
    if spec != other_spec:
        raise RuntimeError(f"{name}: both results must have one structure, got {spec} and {other_spec}.")
    return pytree.tree_unflatten([_where(condition, v, w) for v, w in zip(leaves, others, strict=True)], spec)


def _where(condition: Tensor, given: Any, other: Any) -> Any:
    if given is None or (given is other):
        return given
    return torch.where(condition, given, other)


@replaces_function("cond")
def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """One of two functions. Where the samples of a batch differ, both are called."""
    chosen = _chosen("torch.cond", pred)
    if isinstance(chosen, Tensor):
        return _selected("torch.cond", chosen, true_fn(*operands), false_fn(*operands))
    return true_fn(*operands) if chosen else false_fn(*operands)


def _any(condition: Tensor) -> bool:
    own = innermost(condition)
    return below_transforms(lambda: bool(own.any()))


@replaces_function("while_loop")
def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]) -> Any:
    """A loop. Where the samples of a batch differ, the body is called for all of them until the last one ends."""
    carried = tuple(carried_inputs)
    while True:
        chosen = _chosen("torch.while_loop", cond_fn(*carried))
        if isinstance(chosen, Tensor):
            if not _any(chosen):
                return carried
        elif not chosen:
            return carried
        found = body_fn(*carried)
        if not isinstance(found, (tuple, list)) or len(found) != len(carried):
            raise RuntimeError(f"torch.while_loop: body_fn must return a tuple of {len(carried)} values, got {found!r}.")
        carried = _selected("torch.while_loop", chosen, tuple(found), carried) if isinstance(chosen, Tensor) else tuple(found)


def _stacked(name: str, results: Sequence[Any], dim: int = 0) -> Any:
    """The results of all steps, leaf by leaf."""
    leaves, specs = zip(*[pytree.tree_flatten(y) for y in results], strict=True)
    if any(spec != specs[0] for spec in specs):
        raise RuntimeError(f"{name}: all steps must return one structure, got {specs[0]} and another.")
    columns = zip(*leaves, strict=True)
    return pytree.tree_unflatten([torch.stack(c, dim) if isinstance(c[0], Tensor) else c[0] for c in columns], specs[0])


def _steps(name: str, xs: Any, dim: int = 0) -> list[Any]:
    """The parts of all tensors along a dimension."""
    leaves, spec = pytree.tree_flatten(xs)
    if not leaves or not all(isinstance(x, Tensor) and -x.ndim <= dim < x.ndim for x in leaves):
        raise RuntimeError(f"{name}: `xs` must consist of tensors with the dimension {dim}.")
    count = leaves[0].shape[dim]
    if not count or any(x.shape[dim] != count for x in leaves):
        raise RuntimeError(f"{name}: `xs` must have one length, which is not 0, got {[tuple(x.shape) for x in leaves]}.")
    return [pytree.tree_unflatten([x.select(dim, i) for x in leaves], spec) for i in range(count)]


@replaces_function("map")
def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """A function of each row."""
    return _stacked("map", [f(x, *args) for x in _steps("map", xs)])


@replaces_function("scan")
def scan(combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """A function of the state and each row, which returns the next state and a result."""
    if not pytree.tree_leaves(xs):
        return init, []
    spec, results = pytree.tree_flatten(init)[1], []
    steps = _steps("scan", xs, dim)
    for x in reversed(steps) if reverse else steps:
        init, y = combine_fn(init, x)
        if pytree.tree_flatten(init)[1] != spec:
            raise RuntimeError(f"scan: the next state must have the structure of the state, {spec}.")
        results.append(y)
    results = results[::-1] if reverse else results
    return init, _placed(_stacked("scan", results), dim % pytree.tree_leaves(xs)[0].ndim)


def _placed(results: Any, dim: int) -> Any:
    """The dimension of the steps, where a result has so many."""
    return pytree.tree_map(lambda y: y.movedim(0, dim) if isinstance(y, Tensor) and dim < y.ndim else y, results)


@replaces_function("associative_scan")
def associative_scan(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """By torch's operations, and not by a kernel."""
    mode = "generic" if combine_mode == "pointwise" else combine_mode
    return torch_function("associative_scan")(combine_fn, xs, dim, reverse, mode)


# The operators behind these functions, which compiled code calls, with flat arguments.


def _enter() -> None:
    def of_cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any, **options: Any) -> Any:
        return cond(pred, true_fn, false_fn, operands)

    def of_loop(cond_fn: Any, body_fn: Any, carried: Any, more: Any, **options: Any) -> Any:
        return while_loop(lambda *v: cond_fn(*v, *more), lambda *v: body_fn(*v, *more), carried)

    def of_map(f: Any, xs: Any, more: Any, **options: Any) -> Any:
        return map(lambda x: f(*x, *more), list(xs))

    def of_scan(combine: Any, init: Any, xs: Any, more: Any = (), **options: Any) -> Any:
        n = len(init)

        def step(state: Any, x: Any) -> Any:
            found = list(combine(*state, *x, *more))
            return found[:n], found[n:]

        state, results = scan(step, list(init), list(xs))
        return (*state, *results)

    def of_associative(combine: Any, xs: Any, more: Any = (), **options: Any) -> Any:
        return associative_scan(lambda one, other: combine(*one, *other, *more), list(xs), 0)

    HIGHER_ORDER.update(associative_scan=of_associative, cond=of_cond, while_loop=of_loop, map_impl=of_map, scan=of_scan)


_enter()
