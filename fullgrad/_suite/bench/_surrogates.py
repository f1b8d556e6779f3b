"""Targets of spikes, next to spikingjelly: ``python -m fullgrad bench targets``."""

from collections.abc import Iterator

import torch

from fullgrad import spikes
from fullgrad._suite.bench._comparison import Comparison, forward_and_backward
from fullgrad._suite.bench._peers import SURROGATES, load


def surrogates(device: str = "cpu") -> Iterator[Comparison]:
    """Comparisons of forward and backward of every surrogate that both have, if the package is installed."""
    for n, most in ((16, 1.0), (4_000_000, 0.5)):
        v = torch.randn(n, device=device)
        for case, name in SURROGATES.items():
            theirs = load(f"spikingjelly.activation_based.surrogate:{name}")
            if theirs is not None:
                ours = getattr(spikes, case.removeprefix("spikes."))
                yield forward_and_backward(case, (v,), ours, {"spikingjelly": theirs()}, most)
        counts = load("spikingjelly.activation_based.surrogate:MultiLevelSpikeCount")
        if counts is not None:
            yield forward_and_backward("spikes.spike_count", (v,), spikes.spike_count, {"spikingjelly": counts(4)}, most)
