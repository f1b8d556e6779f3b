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

    # With counts, the two ends of each bin.
    sample: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    dims: tuple[int, ...]
    # How many numbers are in each bin; None for a sample of numbers.
    counts: Tensor | None = None
    # How many numbers there are if the sample does not have all.
    total: int = 0


class Observer:
    """Collects what a method needs of the numbers of batches: the ends and the mean, and either counts or a sample or none."""

    def __init__(self, counts: bool, sample: bool) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._histogram = _Histogram() if counts else None
        self._samples: list[Tensor] | None = [] if sample else None
        self._ends: tuple[Tensor, Tensor] | None = None
        self._sum, self._total = torch.zeros((), dtype=torch.float64), 0

    def add(self, x: Tensor) -> None:
        """Look at the numbers of a tensor, which may change or be freed afterwards."""
        x = x.detach().flatten()
        if not x.numel():
            return
        low, high = x.amin(), x.amax()
        if self._histogram is not None:
            self._histogram.add(x, float(torch.maximum(-low, high)))
        if self._samples is not None:
            chosen = None if x.numel() <= _SAMPLE else torch.randint(x.numel(), (_SAMPLE,), generator=self._generator)
            self._samples.append(x.clone() if chosen is None else x[chosen.to(x.device)])
        self._sum, self._total = self._sum.to(x.device) + x.abs().double().sum(), self._total + x.numel()
        known = self._ends
        self._ends = (low, high) if known is None else (torch.minimum(known[0], low), torch.maximum(known[1], high))

    def seen(self) -> Seen | None:
        """The numbers of all batches, or None if there were none."""
        if self._ends is None:
            return None
        low, high = self._ends
        wide = torch.promote_types(low.dtype, torch.float32)
        ends = (low.to(wide), high.to(wide), (self._sum / self._total).to(wide), (0,))
        if self._histogram is not None:
            bins, counts = self._histogram.bins(low.double(), high.double())
            return Seen(bins, *ends, counts)
        sample = torch.cat(self._samples) if self._samples else low.new_empty(0)
        return Seen(sample, *ends, total=self._total if self._total > len(sample) else 0)


class _Histogram:
    """Counts of numbers in bins of one width around 0, but for 0 itself, which has no error. If a number is beyond them, the
    width doubles, and bins are joined.
    """

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
        self._counts[middle] -= (x == 0).sum()

    def bins(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The two ends of bins with numbers, which are between the lowest and the highest, and how many there are."""
        (places,) = torch.nonzero(self._counts, as_tuple=True)
        width = 2.0**self._exponent / (_BINS // 2)
        left = (places.double() - _BINS // 2) * width
        right = torch.minimum(left + width, high)
        left = torch.minimum(torch.maximum(left, low), right - width / 64)  # not of width 0, where all numbers are one
        return torch.stack([left, right]), self._counts[places]


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
    """The scale and the zero point with the least squared error among those of 81 ranges, the whole one first."""
    scale, zero_point = grid(1.0)
    least = _error(seen, scale, zero_point, low, high)
    for fraction in torch.linspace(0.2 if high > 1 else 0.05, 1.2, 80).tolist():
        s, z = grid(fraction)
        error = _error(seen, s, z, low, high)
        scale = torch.where(error < least, s, scale)
        zero_point = torch.where(error < least, z, zero_point) if isinstance(z, Tensor) else z
        least = torch.minimum(error, least)
    return scale, zero_point


def _error(seen: Seen, scale: Tensor, zero_point: Any, low: int, high: int) -> Tensor:
    """The mean squared error, or its sum over the bins."""
    if seen.counts is not None:
        left, right = (_integral(x, scale.double(), zero_point, low, high) for x in seen.sample)
        return ((right - left) / (seen.sample[1] - seen.sample[0]) * seen.counts).sum()

    def squares(x: Tensor) -> Tensor:
        x = x.detach().to(scale.dtype)
        return (fake_quantize(x, scale, zero_point, low, high) - x).square()

    error = squares(seen.sample).mean(seen.dims, keepdim=bool(scale.ndim))
    # A sample may lack the ends, which are far from the range with many bits.
    return error + squares(torch.stack([seen.low, seen.high])).sum() / seen.total if seen.total else error


def _integral(x: Tensor, scale: Tensor, zero_point: Any, low: int, high: int) -> Tensor:
    """An antiderivative of the squared error, which is continuous where the code changes."""
    n = torch.clamp(torch.round(x / scale) + zero_point, low, high) - zero_point
    return n * scale**3 / 12 + (x - n * scale) ** 3 / 3
