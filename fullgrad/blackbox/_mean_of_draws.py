"""Means over draws of noise, with the derivatives of every order that the density of the noise gives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.noise import gumbel_like, noise_for, normal_like
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.rule import declared
from fullgrad._engine.transpose import by_reference

DISTRIBUTIONS = {"normal": normal_like, "gumbel": gumbel_like}


def drawn(
    name: str, x: Tensor, samples: Any, sigma: Any, distribution: str, noise: Tensor | None, generator: Generator | None
) -> Tensor:
    """Noise for a number of draws, in the first dimension, without a derivative; the arguments are checked."""
    samples = checks.positive_integer(name, "samples", samples, 2**31)
    checks.positive_number(name, "sigma", sigma)
    checks.choice(name, "distribution", distribution, DISTRIBUTIONS)
    given = noise_for(name, x, noise, generator, DISTRIBUTIONS[distribution], (samples,))
    return given.detach().to(x.dtype)


def mean_of_draws(x: Tensor, y: Tensor, z: Tensor, sigma: float, distribution: str, pairs: bool = False) -> Tensor:
    """The mean of values at ``x + sigma z``; of pairs, the second half of the values is that at ``x - sigma z``.

    The draws stay where they are when x moves, and get other weights: the quotient of their densities. Derivatives of the
    weighted mean are unbiased estimators of those of the expectation. A constant that does not depend on a draw does not change
    the expectation of its term, and so each value is taken less the mean of the other draws.
    """
    mean = y.mean(0)
    if not is_differentiated([x]):
        return mean

    def weighted(x: Tensor, y: Tensor, z: Tensor) -> Sequence[Tensor]:
        count, shape = z.shape[0], y.shape[1:]
        y = y.unflatten(0, (2 if pairs else 1, count))
        if count > 1:
            of_draw = y.mean(0)
            y = y - (of_draw.sum(0) - of_draw) / (count - 1)
        w = _weights(moved(x) / sigma, z, distribution, pairs)
        return [(w.reshape(len(w), count, *[1] * len(shape)) * y).sum((0, 1)) / (count * len(w))]

    return declared(by_reference(weighted), [mean], [x, y, z])[0]


def moved(x: Tensor) -> Tensor:
    """Zeros with the derivative of x; an infinite element has none."""
    return torch.where(x.isfinite(), x - x.detach(), 0)


def _weights(d: Tensor, z: Tensor, distribution: str, pairs: bool) -> Tensor:
    """The density of each draw after a move by d, in units of sigma, over the one before."""
    if distribution == "gumbel":
        return torch.exp(_of_each(d - torch.exp(-z) * torch.expm1(d))).unsqueeze(0)
    along, square = _of_each(z * d), (d * d).sum() / 2
    return torch.exp(torch.stack([along, -along] if pairs else [along]) - square)


def _of_each(v: Tensor) -> Tensor:
    """The sum of the elements of each draw. Dimensions stay apart: torch does not join those of a DTensor."""
    return v.sum(tuple(range(1, v.ndim))) if v.ndim > 1 else v


def products(a: Tensor, b: Tensor) -> Tensor:
    """The products of elements; 0 times infinity is 0."""
    return torch.where((a == 0) | (b == 0), 0, a * b)
