"""Cases of the family `blackbox`, with constant noise, and with noise that is drawn.

A mean of draws has the weight of each, which is 1 at the point itself, in its surrogate. The second derivative of a loss is a
mean with such weights, too, and symmetric for the pair of draws that its case has.
"""

import math
from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad import blackbox
from fullgrad._core.noise import gumbel_like, normal_like
from fullgrad._suite.cases._case import Case, numbers, straight_through
from fullgrad._suite.cases.sampling import gumbel, uniform
from fullgrad.testing._subject import by_cotangent_map

X, COSTS, TARGET = numbers(3, 2, scale=0.7, seed=3), numbers(4, 3, seed=3), numbers(3, 2, seed=4)
# Fewer elements, where a gradient calls the function for each.
SHORT = numbers(2, 2, scale=0.7, seed=3)
HALF = (torch.float16, torch.bfloat16)


def _opmath(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF else x


def _positive(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _largest(x: Tensor) -> Tensor:
    return (x == (x.amax(-1, keepdim=True) if x.shape[-1] else x)).to(x.dtype)


def _cheapest(x: Tensor) -> Tensor:
    return _largest(-x)


def _normal(x: Tensor, *sizes: int) -> Tensor:
    return torch.erfinv(2 * uniform(x, *sizes) - 1) * math.sqrt(2)


# --- Means of draws ------------------------------------------------------------------------------------------------------


def _weighted(x: Tensor, values: Tensor, log_weights: Tensor) -> Tensor:
    """The mean of values, whose derivative is that of a mean of their differences to the other ones, by weights that move."""
    count = len(values)
    others = (values.sum(0) - values) / (count - 1)
    w = torch.exp(log_weights).reshape(count, *[1] * x.ndim)
    return straight_through(values.mean(0), (w * (values - others)).mean(0))


def _log_weights(d: Tensor, z: Tensor, distribution: str = "normal") -> Tensor:
    terms = z * d - d * d / 2 if distribution == "normal" else d - torch.exp(-z) * (torch.exp(d) - 1)
    return terms.flatten(1).sum(-1)


def _perturbed(x: Tensor, distribution: str) -> Tensor:
    z = (_normal if distribution == "normal" else gumbel)(x, 3)
    sigma = 1.5
    return _weighted(x, _largest(x.detach() + sigma * z), _log_weights((x - x.detach()) / sigma, z, distribution))


def _smoothed(x: Tensor) -> Tensor:
    """The pair of a draw has the baseline of the other pairs."""
    z, sigma = _normal(x, 3), 1.5
    up, down = _positive(x.detach() + sigma * z), _positive(x.detach() - sigma * z)
    d = (x - x.detach()) / sigma
    others = ((up + down).sum(0) - up - down) / 4
    w, v = (torch.exp(_log_weights(d, s * z)).reshape(3, *[1] * x.ndim) for s in (1, -1))
    return straight_through((up + down).mean(0) / 2, (w * (up - others) + v * (down - others)).mean(0) / 2)


def _pair(x: Tensor) -> Tensor:
    """Two draws, by which all elements become positive, or all negative."""
    return 8 * torch.tensor([1.0, -1.0], dtype=_opmath(x).dtype, device=x.device).reshape(2, *[1] * x.ndim).expand(2, *x.shape)


def _loss(x: Tensor, t: Tensor) -> Tensor:
    """The gradient by x is half of one plus the difference of the weights of the two draws, less the target."""
    d = (x - x.detach()).sum()
    of_weights = (torch.cosh(8 * d) - 1) / 8  # the integral of half of exp(8 d) - exp(-8 d)
    constant = ((_positive(x.detach() + _pair(x)) * (x.detach() + _pair(x))).sum() / 2).detach()
    return constant + d / 2 + of_weights - (x * t).sum()


def _case(name: str, operator: Any, inputs: tuple[Any, ...], surrogate: Any, words: str = "", **options: Any) -> Case:
    return Case(
        name=f"blackbox.{name}{' ' * bool(words)}{words}",
        covers=(f"blackbox.{name}",),
        operator=operator,
        inputs=inputs,
        surrogate=surrogate,
        elementwise=False,
        max_saved_bytes=None,
        of="tensors",
        **options,
    )


def _draws(noise_like: Any, *sizes: int) -> Any:
    def drawn(x: Tensor, *_: Any, generator: Generator | None = None) -> Tensor:
        return noise_like(_opmath(x).expand(*sizes, *x.shape), generator=generator)

    return drawn


# --- Solvers that are called again, and custom rules ---------------------------------------------------------------


def _interpolation(g: Tensor, x: Tensor) -> Tensor:
    x, g = x.detach(), g.detach()
    return (_cheapest(x + 2.5 * g) - _cheapest(x)) / 2.5


def _maximum_likelihood(g: Tensor, x: Tensor) -> Tensor:
    score = x.detach() + gumbel(x)
    return (_largest(score) - _largest(score - 2.5 * g.detach())) / 2.5


def _square(x: Tensor) -> Tensor:
    return x * x - x


def _surrogate_loss(cost: Tensor, log_prob: Tensor) -> Tensor:
    """The terms of each sample, with the costs of all others as baseline."""
    terms = []
    for i in range(len(cost)):
        rest = torch.cat([cost[:i], cost[i + 1 :]]).sum(0) / (
            len(cost) - 1
        )  # which torch 2.13 does not compile for nested tangents
        terms.append((cost[i] - rest) * torch.exp(log_prob[i] - log_prob[i].detach()) + rest)
    return torch.stack(terms).mean(0)


CASES: list[Case] = [
    _case(
        "perturbed",
        lambda x: blackbox.perturbed(_largest, x, samples=3, sigma=1.5, noise=_normal(x, 3)),
        (X,),
        lambda x: _perturbed(x, "normal"),
        draws=_draws(normal_like, 3),
        random_operator=lambda x, **noise: blackbox.perturbed(_largest, x, samples=3, sigma=1.5, **noise),
    ),
    _case(
        "perturbed",
        lambda x: blackbox.perturbed(_largest, x, samples=3, sigma=1.5, distribution="gumbel", noise=gumbel(x, 3)),
        (X,),
        lambda x: _perturbed(x, "gumbel"),
        words="gumbel",
        exhaustive=True,
        draws=_draws(gumbel_like, 3),
        random_operator=lambda x, **noise: blackbox.perturbed(_largest, x, samples=3, distribution="gumbel", **noise),
    ),
    _case(
        "smoothed",
        lambda x: blackbox.smoothed(_positive, x, samples=3, sigma=1.5, noise=_normal(x, 3)),
        (X,),
        _smoothed,
        long=True,
        draws=_draws(normal_like, 3),
        random_operator=lambda x, **noise: blackbox.smoothed(_positive, x, samples=3, sigma=1.5, **noise),
    ),
    _case(
        "fenchel_young_loss",
        lambda x, t: blackbox.fenchel_young_loss(_positive, x, t, samples=2, noise=_pair(x)),
        (X, TARGET),
        _loss,
        long=True,
        draws=_draws(normal_like, 2),
        random_operator=lambda x, t, **noise: blackbox.fenchel_young_loss(_positive, x, t, samples=2, **noise),
    ),
    _case(
        "interpolated",
        lambda x: blackbox.interpolated(_cheapest, x, 2.5),
        (COSTS,),
        by_cotangent_map(_interpolation, lambda x: _cheapest(x.detach())),
        linear=False,
        has_tangent=False,
        long=True,
    ),
    _case(
        "imle",
        lambda x: blackbox.imle(_largest, x, lam=2.5, noise=gumbel(x)),
        (COSTS,),
        by_cotangent_map(_maximum_likelihood, lambda x: _largest(x.detach() + gumbel(x))),
        linear=False,
        has_tangent=False,
        long=True,
        draws=_draws(gumbel_like),
        random_operator=lambda x, **noise: blackbox.imle(_largest, x, lam=2.5, **noise),
    ),
    _case(
        "negative_identity",
        lambda x: blackbox.negative_identity(_cheapest, x),
        (COSTS,),
        lambda x: straight_through(_cheapest(x.detach()), -x),
        value=_cheapest,
        long=True,
    ),
    _case(
        "finite_difference",
        lambda x: blackbox.finite_difference(_square, x, 0.5),
        (SHORT,),
        _square,
        value=_square,
        long=True,
    ),
    _case(
        "score_function",
        blackbox.score_function,
        (COSTS, numbers(4, 3, seed=5)),
        _surrogate_loss,
        long=True,
    ),
]
