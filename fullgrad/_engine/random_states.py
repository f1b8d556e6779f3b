"""The states of torch's random generators, and of the global ones of Python and numpy."""

import contextlib
import ctypes
import functools
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import is_tracing

# Torch makes a tensor of a state while it holds the generator's mutex. There Python may collect garbage and run another thread,
# which asks for the same state, waits for the mutex, and does not let the first one go on.
_LOCK = threading.RLock()


@contextlib.contextmanager
def same_draws(own: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """A context that restores the states of the random generators, and of a user's own, at its end."""
    before = random_states(own)
    try:
        yield
    finally:
        restore_random_states(before, own)


def random_states(own: Sequence[torch.Generator] = ()) -> list[Tensor]:
    """The states of a user's own generators, and of torch's, of the CPU and of each device of the accelerator."""
    with _LOCK:
        return [*[g.get_state() for g in own], *[state() for state, _ in _generators()]]


def untraced_random_states() -> list[Tensor]:
    """`random_states`, or none in code that is traced, which cannot restore them."""
    return [] if is_tracing() else random_states()


def restore_random_states(states: Sequence[Tensor], own: Sequence[torch.Generator] = ()) -> None:
    """Restore what `random_states` returned; a device that has been initialized since keeps its state."""
    restoring = [*[g.set_state for g in own], *[restore for _, restore in _generators()]]
    with _LOCK:
        for restore, state in zip(restoring, states, strict=False):
            restore(state)


def host_states() -> list[Any]:
    """The states of the global generators of Python and, if it is imported, of numpy, which `==` compares."""
    numpy = sys.modules.get("numpy")
    return [random.getstate(), *([] if numpy is None else [pickle.dumps(numpy.random.get_state(legacy=False))])]


def restore_host_states(states: Sequence[Any]) -> None:
    """Restore what `host_states` returned."""
    random.setstate(states[0])
    for state in states[1:]:
        sys.modules["numpy"].random.set_state(pickle.loads(state))


def host_marks() -> list[Any]:
    """Values that change with the states, and cost much less; not where numpy hands out a normal number that it has in store."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return [random.getstate()]
    generator: Any = getattr(numpy.random, "get_bit_generator", lambda: None)()
    if type(generator).__name__ != "MT19937":  # another one that a user has chosen, or an old numpy
        return host_states()
    return [random.getstate(), ctypes.string_at(generator.ctypes.state_address, _BYTES)]


_BYTES = 625 * 4  # the key and the position of MT19937


def _generators() -> Sequence[tuple[Callable[[], Tensor], Callable[[Tensor], Any]]]:
    """The functions that read and restore the state of each generator."""
    cpu = torch.default_generator.get_state, torch.default_generator.set_state
    device = torch.accelerator.current_accelerator()
    module: Any = device and torch.get_device_module(device)
    if module is None or not getattr(module, "is_initialized", lambda: True)():
        return (cpu,)
    if device.type == "mps":  # it has one device, and its functions take none  # pyright: ignore
        return cpu, (module.get_rng_state, module.set_rng_state)
    devices = range(module.device_count())
    return cpu, *[
        (functools.partial(module.get_rng_state, i), functools.partial(module.set_rng_state, device=i)) for i in devices
    ]
