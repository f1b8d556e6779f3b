"""`flex_attention` by plain operations: by blocks of queries where there are many, as the usual attention."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fullgrad._core.autocast import is_autocast
from fullgrad._dispatch import (
    active_transforms,
    are_differentiated,
    below_transforms,
    flex_attention_by,
    innermost,
    is_tracing,
    pytree,
    require_grad,
    torch_function,
)
from fullgrad._engine.rule import Rule, declared
from fullgrad._engine.transpose import by_reference, scattered, transpose
from fullgrad.completion._attention import lowered, query_block
from fullgrad.completion._reductions import logsumexp, softmax
from fullgrad.completion._registry import HIGHER_ORDER, replaces_function
from fullgrad.functions import checkpoint

# At most so many blocks, each of which costs a call of the functions of users.
_BLOCKS = 32
_WITHOUT_BACKWARD = {"cpu"}  # devices for which torch compiles no backward


class _Indexing(TorchFunctionMode):
    """A lookup in a table by indices that are tensors of one element, which Python would read, as an operation of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            indices = pytree.tree_leaves(args[1])
            if all(isinstance(i, (Tensor, int)) and not isinstance(i, bool) for i in indices):
                table = args[0]
                return torch.ops.aten.index.Tensor(table, [torch.as_tensor(i, device=table.device) for i in indices])
        return func(*args, **(kwargs or {}))


def _for_all(function: Callable[..., Any], places: Sequence[Tensor], *scores: Tensor) -> Tensor:
    """A function of one score and its place, for all scores; ``places`` are batches, heads, queries and keys."""
    n = len(scores)
    for dim in (3, 2, 1, 0):
        function = torch.vmap(function, in_dims=(*[0] * n, *[0 if i == dim else None for i in range(4)]))
    with _Indexing():
        return function(*scores, *places)


def _rows(
    score_mod: Callable[..., Any],
    mask_mod: Callable[..., Any],
    scale: float,
    first: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The results for some queries from the one at ``first`` on; logarithms are to the base 2."""
    precision = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(precision) @ key.to(precision).mT * scale
    places = [torch.arange(n, device=query.device) for n in scores.shape]
    places[2] = places[2] + first
    is_seen = _for_all(mask_mod, places)
    scores = torch.where(is_seen, _for_all(score_mod, places, scores), -torch.inf)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    safe = torch.where(nothing, 0, scores)  # an infinite row has no derivative
    weights = torch.where(nothing, 0, softmax(safe, -1)).to(query.dtype)
    sums = torch.where(nothing.squeeze(-1), -torch.inf, logsumexp(safe, -1))
    return weights @ value, sums / math.log(2), scores.amax(-1).detach() / math.log(2)


def _in_memory_as(x: Tensor, strides: Sequence[int]) -> Tensor:
    """Numbers in the order in memory that the queries have, but those of one query side by side."""
    order = sorted(range(3), key=lambda i: strides[i], reverse=True)
    inverse = [order.index(i) for i in range(3)]
    return x.permute(*order, 3).contiguous().permute(*inverse, 3)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: Any,
    of_scores: Sequence[Any] = (),
    of_masks: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    device = query.device.type
    if is_autocast(device):
        lower = torch.get_autocast_dtype(device)
        query, key, value = [lowered(x, lower) for x in (query, key, value)]
        with torch.autocast(device, enabled=False):
            return _attention(query, key, value, score_mod, block_mask, scale, kernel_options, of_scores, of_masks)
    groups = query.shape[1] // key.shape[1]
    own_key, own_value = [x.repeat_interleave(groups, 1).expand(query.shape[0], *[-1] * 3).to(x.dtype) for x in (key, value)]
    own_value = own_value.to(query.dtype)
    own_score = (lambda *given: score_mod(*given, *of_scores)) if of_scores else score_mod
    own_mask = (lambda *given: block_mask[-1](*given, *of_masks)) if of_masks else block_mask[-1]
    n, size = query.shape[2], query_block(query)
    if size is None:
        found = _rows(own_score, own_mask, scale, 0, query, own_key, own_value)
    else:
        parts, size = [], max(size, -(-n // _BLOCKS))
        for first in range(0, n, size):
            of_block = functools.partial(_rows, own_score, own_mask, scale, first)
            parts.append(checkpoint(of_block, query[:, :, first : first + size], own_key, own_value))
        found = [torch.cat(some, 2) for some in zip(*parts, strict=True)]
    return _in_memory_as(found[0], query.stride()), found[1], found[2]


@functools.cache
def _function() -> Callable[..., Any]:
    return flex_attention_by(torch_function("flex_attention"), _attention)


@replaces_function("flex_attention")
def flex_attention(*args: Any, **kwargs: Any) -> Any:
    """torch's function, which checks the arguments, with plain operations in place of its operator."""
    if torch.compiler.is_dynamo_compiling():
        return torch_function("flex_attention")(*args, **kwargs)  # whose operator has its rules under transforms
    return _function()(*args, **kwargs)


def _operator(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The operator that compiled code calls, under transforms: by its kernels where a first gradient is all that is asked for."""
    leaves, spec = pytree.tree_flatten(args)
    where = [i for i, v in enumerate(leaves) if isinstance(v, Tensor)]
    tensors = [leaves[i] for i in where]  # query, key and value first

    def call(function: Callable[..., Any], given: Sequence[Tensor]) -> Any:
        own = list(leaves)
        for i, v in zip(where, given, strict=True):
            own[i] = v
        return function(*pytree.tree_unflatten(own, spec))

    if not _has_kernels(tensors, has_columns=args[4][7] is not None):
        return _attention(*args)
    rule, values = _kernels(call, [innermost(v) for v in tensors])
    return tuple(declared(rule, values, tensors))  # pyright: ignore[reportReturnType]


def _has_kernels(tensors: Sequence[Tensor], has_columns: bool) -> bool:
    """Whether torch's compiled forward and backward compute what is asked for: no batch, no tangent, no second derivative, and no
    gradient by a captured tensor, which torch's backward without a compiler does not give here. The backward reads the columns of
    a mask.
    """
    if not is_tracing() or active_transforms() != ["Grad"] or tensors[0].device.type in _WITHOUT_BACKWARD or not has_columns:
        return False
    return not (any(innermost(v).requires_grad for v in tensors) or any(are_differentiated(tensors[3:])))


def _kernels(call: Callable[..., Any], inputs: Sequence[Tensor]) -> tuple[Rule, Sequence[Tensor]]:
    """The values of torch's operator, and its gradients by its own backward, whose derivatives are those of the formula."""

    def values() -> Any:
        own = [v.detach() for v in inputs]
        for v in own[:3]:
            require_grad(v)
        with torch.enable_grad():
            outputs = call(torch.ops.higher_order.flex_attention, own)
        return own, outputs, [y.detach() for y in outputs]

    own, outputs, found = below_transforms(values)

    def formula(*given: Tensor) -> Sequence[Tensor]:
        return call(_attention, given)

    of_formula = by_reference(formula)

    def pull(given: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Any:
        if active_transforms() not in ([], ["Grad"]):  # a batch of gradients
            return of_formula.pull(given, cotangents, needs)
        where, n = tuple([i for i, needed in enumerate(needs) if needed]), len(given)

        def gradients() -> Any:
            gs = [innermost(g).detach() for g in cotangents[:2]]
            return torch.autograd.grad(outputs[:2], [own[i] for i in where], gs, retain_graph=True, materialize_grads=True)

        of_gradient = by_reference(lambda *all: transpose(formula, all[:n], where)(*all[n:]))
        return scattered(n, where, declared(of_gradient, below_transforms(gradients), [*given, *cotangents]))

    return Rule(pull, of_formula.push), found


HIGHER_ORDER["flex_attention"] = _operator
