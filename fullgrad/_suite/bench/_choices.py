"""Targets of random operators and of the simplex: ``python -m fullgrad bench targets``."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad import sampling, soft
from fullgrad._suite.bench._comparison import Comparison, forward_and_backward
from fullgrad._suite.bench._peers import load

Operator = Callable[..., Any]


def _detached_bernoulli(p: Tensor) -> Tensor:
    """The straight-through estimator as most people write it."""
    return p + (torch.bernoulli(p.detach()) - p).detach()


def choices(device: str = "cpu") -> Iterator[Comparison]:
    """Comparisons of forward and backward with torch's, with a softmax, and with the bisections of the package ``entmax``."""
    for n, target in ((100, None), (16_384, None), (1_000_000, 0.4)):
        p = torch.rand(n, device=device)
        yield _compare("sampling.bernoulli_st", p, sampling.bernoulli_st, "detach trick", _detached_bernoulli, target)
    torchs = functools.partial(torch.nn.functional.gumbel_softmax, hard=True)
    softmax = functools.partial(torch.softmax, dim=-1)
    for rows, n in ((1, 10), (256, 64), (16_384, 64)):
        x = torch.randn(rows, n, device=device)
        noise, large = sampling.gumbel_like(x), rows > 1000
        ours = functools.partial(sampling.gumbel_softmax, hard=True)
        yield _compare("sampling.gumbel_softmax hard", x, ours, "torch", torchs, 0.5 if large else None)
        given = functools.partial(sampling.gumbel_softmax, noise=noise)
        rivals = {"torch.softmax": softmax, "softmax of the sum": lambda x, noise=noise: torch.softmax(x + noise, -1)}
        yield forward_and_backward(
            "sampling.gumbel_softmax, noise given", (x,), given, rivals, 1.2 if large else None, turns="choices"
        )
        for name in ("categorical_st", "reinmax", "gapped_st"):
            given = functools.partial(getattr(sampling, name), noise=noise)
            yield _compare(f"sampling.{name}, noise given", x, given, "torch.softmax", softmax, None)
    yield from _sparse(device)


def _sparse(device: str) -> Iterator[Comparison]:
    """Comparisons with the package ``entmax``, if it is installed."""
    if load("entmax:sparsemax") is None:
        return
    sparsemax, entmax15, bisect, normmax, budget = (
        load(f"entmax:{name}") for name in ("sparsemax", "entmax15", "entmax_bisect", "normmax_bisect", "budget_bisect")
    )
    for rows, n in ((1, 10), (256, 64), (64, 1000), (4, 50_000)):
        x, k = torch.randn(rows, n, device=device), max(n // 8, 1)
        yield _compare("soft.sparsemax", x, soft.sparsemax, "entmax", sparsemax, None)
        yield _compare("soft.entmax 1.5", x, soft.entmax, "entmax", entmax15, None)
        ours = functools.partial(soft.entmax, alpha=1.3)
        yield _compare("soft.entmax 1.3", x, ours, "entmax", functools.partial(bisect, alpha=1.3, n_iter=24), 0.4)
        yield _compare("soft.normmax", x, soft.normmax, "entmax", functools.partial(normmax, alpha=2.0), None)
        ours = functools.partial(soft.proj_capped_simplex, k=k, mode="c0")
        yield _compare("soft.proj_capped_simplex c0", x, ours, "entmax", functools.partial(budget, budget=k), 1.0)


def _compare(name: str, x: Tensor, ours: Operator, rival: str, theirs: Operator, target: float | None) -> Comparison:
    return forward_and_backward(name, (x,), ours, {rival: theirs}, target, turns="choices")
