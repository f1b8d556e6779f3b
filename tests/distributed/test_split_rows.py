"""Rows of which ranks have parts: no rank gets the whole row."""

import collections
import threading
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing import assert_close

from fullgrad import soft
from tests.distributed.ranks import laid_out, needs_threads, on_ranks, whole

pytestmark = needs_threads

OPERATORS = {
    "sparsemax": soft.sparsemax,
    "entmax 1.5": soft.entmax,
    "entmax 4/3": lambda x: soft.entmax(x, 4 / 3),
    "entmax 1.3": lambda x: soft.entmax(x, 1.3),
    "entmax 2.5": lambda x: soft.entmax(x, 2.5),
    "normmax": soft.normmax,
    "proj_simplex c0": lambda x: soft.proj_simplex(x, mode="c0"),
    "proj_simplex c2": lambda x: soft.proj_simplex(x, softness=2.0, mode="c2"),
}


def of_ranks(function, x, placements, shape):
    """The whole results of a function of a distributed tensor, which are those of every rank."""

    def run(mesh):
        return [whole(y).detach() for y in function(laid_out(x, mesh, placements).requires_grad_())]

    results = on_ranks(shape, run)
    for r in results:
        if isinstance(r, Exception):
            raise r
    return results


def value_and_gradients(f, x):
    """The value, a gradient, and a gradient of that one."""
    y = f(x)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return y, g, torch.autograd.grad(g.square().sum(), x)[0]


# The meshes and placements, and the elements of a row. (torch itself does not gather what is split twice in uneven parts.)
SPLITS = {
    "one": ((1,), (Shard(1),), 11),
    "two": ((2,), (Shard(1),), 11),
    "three": ((3,), (Shard(1),), 11),
    "four": ((4,), (Shard(1),), 11),
    "rows and parts": ((2, 2), (Shard(0), Shard(1)), 11),
    "twice": ((2, 2), (Shard(1), Shard(1)), 12),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", OPERATORS)
def test_value_and_derivatives_are_those_of_one_process(name, split):
    """On one to four ranks with uneven parts, to the second derivative."""
    shape, placements, n = SPLITS[split]
    f, x = OPERATORS[name], torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = value_and_gradients(f, x.clone().requires_grad_())
    for found in of_ranks(lambda x: value_and_gradients(f, x), x, placements, shape):
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPERATORS)
def test_ranks_exchange_two_numbers_for_each_row_and_round(name):
    """No rank gets the row: at most 12 exchanges find the threshold, and three give the derivative. Above an exponent of 2, whose
    weights rise steeply, there are as many as passes in one process.
    """
    f, most, counts = OPERATORS[name], 104 if name == "entmax 2.5" else 12, collections.defaultdict(list)
    x = torch.randn(2, 3001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exchange = dist.all_reduce

    def noting(t, **options):
        counts[threading.get_ident()].append(t.numel())
        return exchange(t, **options)

    def both(mesh):
        leaf, sizes = laid_out(x, mesh, (Shard(1),)).requires_grad_(), counts[threading.get_ident()]
        y = f(leaf)
        first = len(sizes)
        (g,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        return first, len(sizes) - first, max(sizes), y.placements, g.placements

    with (
        mock.patch.object(dist, "all_reduce", noting),
        mock.patch.object(DTensor, "redistribute", side_effect=AssertionError("a row is gathered")),
    ):
        for first, later, largest, *placements in on_ranks((2,), both):
            assert 0 < first <= most
            assert 0 < later <= 3
            assert largest <= 2 * len(x)
            assert placements == [(Shard(1),)] * 2


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_that_are_not_finite_reach_all_parts(name, special):
    """As in one process."""
    x = torch.linspace(-1, 1, 14, dtype=torch.float64).reshape(2, 7)
    x[1, 2] = special
    for (y,) in of_ranks(lambda x: [OPERATORS[name](x)], x, (Shard(1),), (3,)):
        assert_close(y, OPERATORS[name](x), equal_nan=True)


@pytest.mark.parametrize("f", [soft.entmax, soft.normmax])
def test_a_learned_exponent_gets_the_gradient_of_all_parts(f):
    """Each rank has a part of the sum; a part of a row without a derivative of its own, too."""
    x = torch.randn(3, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha = torch.tensor([[1.3], [1.7], [2.2]], dtype=torch.float64)

    def gradients(x, alpha):
        alpha = alpha.requires_grad_()
        y = f(x, alpha)
        weights = torch.arange(11.0, dtype=torch.float64)
        weights = weights if not isinstance(y, DTensor) else laid_out(weights, y.device_mesh, (Shard(0),))
        g = torch.autograd.grad((y * weights).sum(), [x, alpha], create_graph=True)
        return [*g, torch.autograd.grad(g[1].square().sum(), x)[0]]

    expected = gradients(x.clone().requires_grad_(), alpha.clone())
    found = of_ranks(lambda x: gradients(x, laid_out(alpha, x.device_mesh, (Replicate(),))), x, (Shard(1),), (3,))
    for some in found:
        assert_close(some, [e.detach() for e in expected], rtol=1e-9, atol=1e-9)
