"""Rules from plain differentiable code: `by_reference`, and the transposes of functions that autograd makes."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.recomputed import pullback
from fullgrad._dispatch import in_legacy_vmap, outside_saved_tensor_hooks
from fullgrad._engine.differentiated import is_differentiated, is_floating, may_differ
from fullgrad._engine.rule import Maybe, Rule, declared


def by_reference(reference: Callable[..., Sequence[Tensor]]) -> Rule:
    """The derivative of a function of the inputs, which is plain differentiable code."""
    return _rule(reference, lambda function, tensors: function(*tensors))


def recomputed(reference: Callable[..., Sequence[Tensor]]) -> Rule:
    """`by_reference` where each derivative is itself such an operator, which keeps its inputs alone.

    Else a derivative keeps what it computes wherever it might be differentiated again, as torch.func lets any gradient be.
    """
    return _rule(reference, kept_alone)


def _rule(reference: Callable[..., Sequence[Tensor]], run: Callable[..., Sequence[Tensor]]) -> Rule:
    """The derivative of a function of the inputs; ``run(function, tensors)`` calls what computes it."""

    def floating(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple([y for y in reference(*inputs) if may_differ(y)])

    def pull(inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        where, n = tuple([i for i, needed in enumerate(needs) if needed]), len(inputs)
        back = lambda *all: transpose(floating, all[:n], where)(*all[n:])  # noqa: E731
        return scattered(n, where, run(back, [*inputs, *[g for g in cotangents if may_differ(g)]]))

    def push(inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        where, n = tuple([i for i, t in enumerate(tangents) if t is not None]), len(inputs)
        back = lambda *all: transpose(floating, all[:n], where)(*all[n:])  # noqa: E731
        pushed = lambda *all: transposed(back, all[:n], like)(*all[n:])  # noqa: E731
        return run(pushed, [*inputs, *[t for t in tangents if t is not None]])

    return Rule(pull, push)


def kept_alone(function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """``function(*tensors)``, whose graph holds the tensors alone."""
    if in_legacy_vmap():
        return function(*tensors)
    is_last = not is_differentiated(tensors)
    with contextlib.nullcontext() if is_dynamo_compiling() else outside_saved_tensor_hooks():  # nothing that it saves is kept
        values = function(*(tensors if is_last else [t.detach() for t in tensors]))
    return values if is_last else declared(recomputed(function), values, tensors)


def transpose(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], where: tuple[int, ...]
) -> Callable[..., tuple[Tensor, ...]]:
    """The function that pulls cotangents of the results back to the inputs at ``where``, itself differentiable."""
    pull = pullback(lambda *all: tuple(function(*all)), inputs, where)
    return lambda *cotangents: pull(cotangents)


def transposed(
    linear: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], like: Sequence[Any]
) -> Callable[..., tuple[Tensor, ...]]:
    """The transpose of ``linear(*inputs, *v)``, which is linear in ``v``, tensors like those that ``like`` describes.

    It is the derivative by ``v``, at a ``v`` that is not special: not at 0, which a function may leave out.
    """
    v = [torch.full(shape, 0.7, dtype=dtype, device=device) for shape, dtype, device in like if is_floating(dtype)]
    return transpose(linear, [*inputs, *v], tuple(range(len(inputs), len(inputs) + len(v))))


def scattered(count: int, where: tuple[int, ...], values: Sequence[Tensor]) -> list[Tensor | None]:
    """A list of ``count`` entries with values at ``where``, and None elsewhere."""
    found: list[Tensor | None] = [None] * count
    for i, v in zip(where, values, strict=True):
        found[i] = v
    return found
