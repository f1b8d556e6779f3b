"""`as_node`: code that torch cannot trace, as one node of a graph, for any tracer."""

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import is_exporting, is_recorded, opaque, usual_keys, without_modes
from fullgrad._engine.closure import Refusing
from fullgrad._engine.symbols import as_inputs, of_inputs, running

# Code that graphs call. Its key is no other's, in any process, so that no graph in torch's cache on disk has it.
_codes: dict[str, tuple[Any, list[Any]]] = {}
_process, _count = uuid.uuid4().hex, itertools.count()


def as_node(code: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    inner = code.sample
    if is_exporting():  # a graph that another process loads holds the value alone, of code that can be traced
        try:
            return code.run(tensors)
        except Exception as error:
            raise NotImplementedError(
                f"{inner.closure.name} is code that torch.export cannot save: another process would not find it. Make the code "
                'an operator by torch.library.custom_op, with register_fake, and say vmap_method="map"; or use torch.compile.'
            ) from error
    key = f"{_process}-{next(_count)}"
    _codes[key] = code, []
    inner.closure.refuse()
    # When a graph runs, a tensor cannot become an input.
    inner.closure, inner.is_below = Refusing(inner.closure.name, checks=False), False
    try:
        return _of_key(key, list(tensors), *as_inputs(inner.symbols))
    finally:
        if not is_recorded():  # without a tracer, as of tensors without data or in another mode, no graph will call it
            del _codes[key]


def _like_of_key(key: str, tensors: list[Tensor], integers: list[int], floats: list[Tensor]) -> list[Tensor]:
    code, kinds = _codes[key]
    results = code.like(tensors)
    kinds[:] = [_kind(y) for y in results]
    return results


def _kind(tensor: Tensor) -> tuple[tuple[int | None, ...], torch.dtype]:
    """The shape, with None for a size that a graph does not know, and the dtype."""
    return tuple([n if isinstance(n, int) else None for n in tensor.shape]), tensor.dtype


def _is_kind(tensor: Tensor, kind: tuple[tuple[int | None, ...], torch.dtype]) -> bool:
    shape, dtype = kind
    sizes = zip(tensor.shape, shape, strict=False)
    return tensor.dtype == dtype and tensor.ndim == len(shape) and all(n is None or m == n for m, n in sizes)


@contextlib.contextmanager
def code_of(key: str, integers: Sequence[int], floats: Sequence[Tensor]) -> Iterator[Any]:
    """The code of a node, and a context in which it may run with the numbers that the node got."""
    code = _codes[key][0]
    symbols = code.sample.symbols
    with running(symbols, of_inputs(symbols, integers, floats)):
        yield code


_SCHEMA = "(str key, Tensor[] tensors, SymInt[] integers, Tensor[] floats) -> Tensor[]"


@opaque("function", fake=_like_of_key, schema=_SCHEMA, reads_values=True)
def _of_key(key: str, tensors: list[Tensor], integers: list[int], floats: list[Tensor]) -> list[Tensor]:
    kinds = _codes[key][1]
    with without_modes(), usual_keys(), code_of(key, integers, floats) as code:  # which may use autograd
        results = code.run(tensors)
    if kinds and not (len(kinds) == len(results) and all(map(_is_kind, results, kinds))):
        raise RuntimeError(
            f"{code.sample.closure.name} was compiled for results of (shape, dtype) {kinds}, and returns "
            f"{[_kind(y) for y in results]}. State them by `like`, a function of the same arguments that returns empty tensors "
            "like the result."
        )
    return results
