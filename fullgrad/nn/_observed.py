"""The numbers that `quantize_` has seen, and the scales that it computes from them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad.nn._quantized_layer import affine, positive, within
from fullgrad.quantizers import fake_quantize

METHODS = ("max", "mean", "mse", "percentile", "histogram")
# The part of the numbers that is within the range of ``"percentile"``.
_INSIDE = 0.999
# Numbers of one batch that a scale is computed from, besides its ends and its mean.
_SAMPLE = 2**14
# The bins of ``"histogram"``.
_BINS = 2**14


class Seen(NamedTuple):
    """A tensor, or a sample of the numbers of many, with what is known of all: the ends and the mean size, by channel."""

    sample: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    dims: tuple[int, ...]
    # How many numbers each one of the sample stands for; None for one.
    counts: Tensor | None = None


class Observer:
    """Collects the numbers of batches."""

    def __init__(self, counts: bool) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._histogram = _Histogram() if counts else None
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, x: Tensor) -> None:
        """Look at the numbers of a tensor."""
        x = x.detach().flatten()
        if not x.numel():
            return
        low, high = x.amin(), x.amax()
        sample = x[:0]
        if self._histogram is not None:
            self._histogram.add(x, float(torch.maximum(-low, high)))
        else:
            chosen = None if x.numel() <= _SAMPLE else torch.randint(x.numel(), (_SAMPLE,), generator=self._generator)
            sample = x if chosen is None else x[chosen.to(x.device)]
        self._parts.append((sample, low, high, x.abs().double().sum(), torch.tensor(x.numel())))

    def seen(self) -> Seen | None:
        """The numbers of all batches, or None if there were none."""
        if not self._parts:
            return None
        samples, lows, highs, totals, counts = zip(*self._parts, strict=True)
        sample, low, high = torch.cat(samples), torch.stack(lows).amin(), torch.stack(highs).amax()
        mean = torch.stack(totals).sum() / torch.stack(counts).sum().item()
        wide = torch.promote_types(sample.dtype, torch.float32)
        ends = (low.to(wide), high.to(wide), mean.to(wide), (0,))
        if self._histogram is None:
            return Seen(sample, *ends)
        centers, numbers = self._histogram.bins()
        return Seen(centers.to(wide), *ends, numbers.to(wide))


class _Histogram:
    """Counts of numbers in bins of one width around 0. Where a number is beyond them, the width doubles, and bins are joined."""

    def __init__(self) -> None:
        self._exponent, self._counts = 0, torch.zeros(0, dtype=torch.int64)

    def add(self, x: Tensor, largest: float) -> None:
        """Count numbers, the size of which is at most the largest; not if one is not finite, which is an error later."""
        if not math.isfinite(largest):
            return
        exponent, middle = math.frexp(largest or 2.0**-126)[1], _BINS // 2
        if not len(self._counts):
            self._exponent, self._counts = exponent, torch.zeros(_BINS, dtype=torch.int64, device=x.device)
        elif exponent > self._exponent:
            joined = torch.arange(-middle, middle, device=x.device) >> min(exponent - self._exponent, 40)
            self._counts = torch.zeros_like(self._counts).index_add_(0, joined + middle, self._counts)
            self._exponent = exponent
        places = torch.floor(x.double() * (middle * 2.0**-self._exponent)).long() + middle
        self._counts += torch.bincount(places, minlength=_BINS)

    def bins(self) -> tuple[Tensor, Tensor]:
        """The centers of bins with numbers, and how many there are."""
        (places,) = torch.nonzero(self._counts, as_tuple=True)
        return (places.double() + 0.5 - _BINS // 2) * (2.0**self._exponent / (_BINS // 2)), self._counts[places]


def scale_of(seen: Seen, low: int, high: int, method: str, exact: bool) -> Tensor:
    """A positive scale for each channel, in float32 at least: one in half precision could be 0. If it is exact, the largest
    number over the scale is not above the largest code by an error of rounding.
    """
    if method == "mean":
        return positive(2 * seen.mean / math.sqrt(high))
    divided = within if exact else torch.true_divide
    largest = positive(divided(torch.maximum(-seen.low, seen.high), high))
    if method == "max":
        return largest
    if method == "percentile":
        sizes = seen.sample.detach().abs().to(largest.dtype).movedim(seen.dims, [*range(-len(seen.dims), 0)])
        flat = sizes.flatten(-len(seen.dims))
        return positive(divided(_quantile(flat, _INSIDE).reshape(largest.shape), high))
    return _best(seen, lambda fraction: (largest * fraction, 0), low, high)[0]


def affine_of(seen: Seen, low: int, high: int, method: str, exact: bool) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of all numbers, with both ends within the range if they are exact."""
    if method == "max":
        return affine(seen.low, seen.high, low, high, exact)
    if method == "percentile":
        x = seen.sample.detach().to(seen.low.dtype)
        return affine(-_quantile(-x, (1 + _INSIDE) / 2), _quantile(x, (1 + _INSIDE) / 2), low, high, exact)
    return _best(seen, lambda fraction: affine(seen.low * fraction, seen.high * fraction, low, high), low, high)


def _quantile(x: Tensor, part: float) -> Tensor:
    return x.kthvalue(math.ceil(part * x.shape[-1]), -1).values


def _best(seen: Seen, grid: Callable[[float], tuple[Tensor, Any]], low: int, high: int) -> tuple[Tensor, Any]:
    """The scale and the zero point with the least squared error among those of 80 ranges."""
    scale, zero_point = grid(1.0)
    x, least = seen.sample.detach().to(scale.dtype), torch.full_like(scale, math.inf)
    for fraction in torch.linspace(0.2 if high > 1 else 0.05, 1.2, 80).tolist():
        s, z = grid(fraction)
        error = (fake_quantize(x, s, z, low, high) - x).square()
        error = (error if seen.counts is None else error * seen.counts).mean(seen.dims, keepdim=bool(scale.ndim))
        scale = torch.where(error < least, s, scale)
        zero_point = torch.where(error < least, z, zero_point) if isinstance(z, Tensor) else z
        least = torch.minimum(error, least)
    return scale, zero_point
