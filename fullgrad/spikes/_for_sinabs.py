"""`for_sinabs`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullgrad._core import checks


class for_sinabs:  # called like a function
    r"""A surrogate as ``spike_fn`` of the layers of sinabs.

    These layers need an object with ``required_states`` and ``apply``, which functions and modules lack. The layer's
    ``spike_threshold`` is passed on; its ``surrogate_grad_fn`` is not used.

    Args:
        surrogate: An operator of this family with a threshold: ``surrogate(v, threshold=t)``.
        learn_threshold: Whether the layer's threshold gets the gradient of the spike. An adaptive threshold gets none in sinabs:
            gradients are the published ones only with False.

    Raises:
        TypeError: ``surrogate`` is not callable.

    Example:
        >>> import torch, fullgrad
        >>> spike_fn = fullgrad.spikes.for_sinabs(fullgrad.spikes.multi_spike)
        >>> spike_fn.apply(torch.tensor([0.5, 2.5]), 1.0, None)  # what a layer does
        tensor([0., 2.])

    Source: ``sinabs.activation``.
    """

    required_states = ("v_mem",)

    def __init__(self, surrogate: Callable[..., Tensor], learn_threshold: bool = False) -> None:
        checks.function("for_sinabs", "surrogate", surrogate)
        self.surrogate, self.learn_threshold = surrogate, learn_threshold

    def apply(self, v_mem: Tensor, spike_threshold: Any, surrogate_grad_fn: Any = None) -> Tensor:
        """The spikes of a membrane potential."""
        if isinstance(spike_threshold, Tensor) and not self.learn_threshold:
            spike_threshold = spike_threshold.detach()
        return self.surrogate(v_mem, threshold=spike_threshold)

    def __repr__(self) -> str:
        name = getattr(self.surrogate, "__name__", repr(self.surrogate))
        return f"for_sinabs({name}{', learn_threshold=True' * self.learn_threshold})"
