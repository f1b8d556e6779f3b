"""Random numbers where a class runs sample by sample, or is tried out."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import has_data, is_tracing


def same_draws(tensors: Sequence[Tensor]) -> Any:
    """A context after which random numbers go on as if nothing had been drawn."""
    return torch.random.fork_rng({t.device for t in tensors if t.is_cuda})


class Draws:
    """What ``randomness`` means where ``vmap`` is a loop: an error, the same numbers for each sample, or different ones."""

    def __init__(self, name: str, randomness: str, tensors: Sequence[Tensor]) -> None:
        self.name, self.randomness = name, randomness
        self.devices = {t.device for t in tensors if t.is_cuda}
        self.start = None if randomness == "different" or is_tracing() or not all(map(has_data, tensors)) else self.state()

    def state(self) -> list[Tensor]:
        """Of the CPU, and of the devices of the tensors."""
        return [torch.get_rng_state(), *[torch.cuda.get_rng_state(d) for d in self.devices]]

    def sample(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)`` for one sample."""
        if self.start is None:
            return function(*args)
        if self.randomness == "same":
            torch.set_rng_state(self.start[0])
            for device, state in zip(self.devices, self.start[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
        result = function(*args)
        if self.randomness == "error" and any(not torch.equal(a, b) for a, b in zip(self.start, self.state(), strict=True)):
            raise RuntimeError(f"vmap: {self.name} draws random numbers, which needs a randomness other than 'error'.")
        return result
