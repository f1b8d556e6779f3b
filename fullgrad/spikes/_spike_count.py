"""`spike_count`."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.windows import where_between
from fullgrad.spikes._arguments import check_window, checked
from fullgrad.spikes._surrogate import Surrogate


def spike_count(v: Tensor, max_spikes: int = 4, window: tuple[float, float] | None = None) -> Tensor:
    r"""The nearest number of spikes, with the straight-through slope 1 in a window.

    .. math::
        y = \operatorname{round}(\operatorname{clamp}(v, 0, n)), \qquad D_v = [\,l \le v \le h\,]

    Halves go to the even number. The ends belong to the window; the slope is 0 where ``v`` is NaN. Higher derivatives are 0.
    Saved: ``v``.

    Args:
        v: The membrane potential over the threshold, any shape; floating, or integer (which gives the default dtype).
        max_spikes: The largest count, a positive integer.
        window: Where the slope is 1, two numbers; None for 0 and the largest count.

    Returns:
        A tensor of the shape of ``v``.

    Raises:
        TypeError: ``v`` is not a real tensor, or an argument is not a number.
        ValueError: ``max_spikes`` is not positive, or the window is empty.

    Example:
        >>> import torch, fullgrad
        >>> v = torch.tensor([-0.5, 1.25, 9.0])
        >>> fullgrad.spikes.spike_count(v)
        tensor([0., 1., 4.])
        >>> torch.func.vmap(torch.func.grad(fullgrad.spikes.spike_count))(v)
        tensor([0., 1., 0.])

    Source: ``spikingjelly.activation_based.surrogate.MultiLevelSpikeCount``.
    """
    v = checked("spike_count", "v", v, 1.0, (1.0,))
    max_spikes = checks.positive_integer("spike_count", "max_spikes", max_spikes, 2**53)
    if not (window is None or (isinstance(window, (tuple, list)) and len(window) == 2)):
        raise TypeError(f"spike_count: `window` must be two numbers or None, got {window!r}.")
    low, high = (0.0, float(max_spikes)) if window is None else window
    check_window("spike_count", low, high)
    return SpikeCount.apply(v, max_spikes, low, high)


class SpikeCount(Surrogate):
    """The operator of :func:`spike_count`."""

    in_pieces = "half"
    reads = {0: (0,)}

    @staticmethod
    def forward(v: Tensor, max_spikes: int, low: float, high: float) -> Tensor:
        return torch.round(torch.clamp(v, 0, max_spikes))

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor, max_spikes: int, low: float, high: float) -> Tensor:
        return where_between(v, x, low, high)
