"""Numbers that change from call to call of compiled code: symbols while it is traced, numbers when its graph runs."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import is_tracing

SYMBOLS = frozenset({torch.SymInt, torch.SymFloat})


class _Running(threading.local):
    """The numbers of the graph that runs in this thread, by the identities of their symbols; None if no node of ours runs."""

    numbers: dict[int, Any] | None = None


_running = _Running()


def concrete(value: Any) -> Any:
    """The number of a symbol in a node of a graph that runs; the symbol itself while code is traced."""
    numbers = _running.numbers
    if numbers is None:
        return value
    if id(value) not in numbers:
        if is_tracing():  # code of the node is compiled while it runs
            return value
        raise RuntimeError(
            "A number that changes from call to call of compiled code is missing where an operator made of functions runs. Pass "
            "it to the operator as a tensor."
        )
    return numbers[id(value)]


def running_numbers() -> tuple[Any, ...]:
    """The numbers of the node that runs, on which what is kept between calls depends."""
    return tuple((_running.numbers or {}).values())


@contextlib.contextmanager
def running(symbols: Sequence[Any], numbers: Sequence[Any]) -> Iterator[None]:
    """A context in which a node of a graph runs, with numbers in the places of symbols."""
    before = _running.numbers
    _running.numbers = {id(s): n for s, n in zip(symbols, numbers, strict=True)}
    try:
        yield
    finally:
        _running.numbers = before


def as_inputs(symbols: Sequence[Any]) -> tuple[list[Any], list[Tensor]]:
    """Symbols as inputs of a node, which takes integers and tensors."""
    integers: list[Any] = [s for s in symbols if isinstance(s, torch.SymInt)]
    floats: list[Any] = [s for s in symbols if isinstance(s, torch.SymFloat)]
    if not floats:
        return integers, []
    # Inductor puts the tensor that it has of a number in the place of the factor; a node of the number itself it would compile
    # for each value again.
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return integers, [one * s for s in floats]


def of_inputs(symbols: Sequence[Any], integers: Sequence[int], floats: Sequence[Tensor]) -> list[Any]:
    """The numbers of symbols, from the inputs of a node that runs."""
    given, others = iter(integers), iter(floats)
    return [next(others).item() if isinstance(s, torch.SymFloat) else int(next(given)) for s in symbols]
