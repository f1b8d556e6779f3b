"""`Spike`: a surrogate as a module."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._core import checks
from fullgrad._dispatch import unscriptable


@unscriptable
class Spike(nn.Module):
    r"""A surrogate with its parameters, some of which may learn: a part of a network, and of the neurons of other packages.

    ``Spike(spikes.atan, alpha=3.0)(v)`` is ``spikes.atan(v, alpha=3.0)``. Tensors are kept as buffers, those that are named in
    ``learn`` as parameters; numbers as they are.

    Args:
        surrogate: An operator of this family, or any function of a tensor with named arguments.
        learn: The names of the arguments that learn. A number becomes a parameter in the default dtype.
        **parameters: Arguments of the surrogate by name.

    Raises:
        TypeError: ``surrogate`` is not callable, or has no argument of a name.
        ValueError: ``learn`` names an argument that is not given.

    Example:
        >>> import torch, fullgrad
        >>> from fullgrad import spikes
        >>> spike = spikes.Spike(spikes.atan, alpha=torch.full((3, 1), 2.0), threshold=1.0, learn=("alpha",))
        >>> spike
        Spike(atan, alpha=Parameter of shape (3, 1), threshold=1.0)
        >>> spike(torch.randn(3, 8)).sum().backward()
        >>> spike.alpha.grad.shape
        torch.Size([3, 1])
    """

    def __init__(self, surrogate: Callable[..., Tensor], *, learn: Sequence[str] = (), **parameters: Any) -> None:
        super().__init__()
        checks.function("Spike", "surrogate", surrogate)
        self.surrogate, self.numbers = surrogate, {}
        learn = (learn,) if isinstance(learn, str) else tuple(learn)
        known = [*inspect.signature(surrogate).parameters][1:]
        for name in parameters:
            checks.known_argument("Spike", name, known)
        for name in learn:
            checks.known_argument("Spike", name, [*parameters], "learn")
        for name, value in parameters.items():
            if name in learn:
                value = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(float(value))
                self.register_parameter(name, nn.Parameter(value))
            elif isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                self.numbers[name] = value
        self.names = tuple(parameters)

    def forward(self, v: Tensor) -> Tensor:
        """The surrogate of ``v`` with the arguments that were given."""
        tensors = {name: getattr(self, name) for name in self.names if name not in self.numbers}
        return self.surrogate(v, **self.numbers, **tensors)

    def extra_repr(self) -> str:
        """The surrogate and its arguments, in the order in which they were given."""
        words = [f"{name}={self._shown(name)}" for name in self.names]
        return ", ".join([getattr(self.surrogate, "__name__", repr(self.surrogate)), *words])

    def _shown(self, name: str) -> str:
        if name in self.numbers:
            return repr(self.numbers[name])
        tensor = getattr(self, name)
        return f"{'Parameter' if isinstance(tensor, nn.Parameter) else 'tensor'} of shape {tuple(tensor.shape)}"
