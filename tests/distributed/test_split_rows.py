"""Rows of which ranks have parts: no rank gets the whole row."""

import collections
import threading
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing import assert_close

import fullgrad
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
    "proj_capped_simplex": lambda x: soft.proj_capped_simplex(x, 3),
    "proj_capped_simplex c1, not whole": lambda x: soft.proj_capped_simplex(x, 2.6, mode="c1"),
    "topk_mask_st": lambda x: fullgrad.topk_mask_st(x, 3, mode="laplace"),
    "max": lambda x: soft.max(x, -1).values,
    "max as it is": lambda x: soft.max(x, -1, keepdim=True, mode="c1", standardize=False).values,
    "min c0": lambda x: soft.min(x, -1, keepdim=True, mode="c0").indices,
    "argmax": lambda x: soft.argmax(x, -1),
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


# Functions of a tensor and a dimension along which plain code reduces, too.
EMPTY = {
    "sparsemax": soft.sparsemax,
    **{f"entmax {a:.2}": lambda x, dim, a=a: soft.entmax(x, a, dim) for a in (1.2, 4 / 3, 1.5, 2.5)},
    "normmax": lambda x, dim: soft.normmax(x, 2.0, dim),
    **{f"proj_simplex {m}": lambda x, dim, m=m: soft.proj_simplex(x, dim, 0.5, m) for m in ("smooth", "c0", "c1")},
    "proj_capped_simplex": lambda x, dim: soft.proj_capped_simplex(x, 1.5, dim),
    "topk_mask_st": lambda x, dim: fullgrad.topk_mask_st(x, 2, dim),
    **{f"proj_ball {p}": lambda x, dim, p=p: soft.proj_ball(x, 0.4, p, dim) for p in (1, 2, float("inf"))},
    "subset_marginals": lambda x, dim: soft.subset_marginals(x, 2, dim),
    **{n: lambda x, dim, n=n: getattr(soft, n)(x, dim, method="softsort").values for n in ("max", "min")},
    "argmax": lambda x, dim: soft.argmax(x, dim),
    "rank": lambda x, dim: soft.rank(x, dim, method="softsort"),
    "sort": lambda x, dim: soft.sort(x, dim, method="fast_soft_sort").values,
    "sort_st": lambda x, dim: fullgrad.sort_st(x, dim, method="softsort", return_indices=False).values,
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_rank_without_an_element_takes_part(name):
    """Rows that are shorter than the ranks, along any dimension: the last rank has nothing to reduce."""
    f, x = EMPTY[name], torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for dim in (1, 0):
        rows = x if dim else x.T.contiguous()
        expected = value_and_gradients(lambda x, dim=dim: f(x, dim), rows.clone().requires_grad_())
        for found in of_ranks(lambda x, dim=dim: value_and_gradients(lambda x: f(x, dim), x), rows, (Shard(dim),), (4,)):
            for a, b in zip(found, expected, strict=True):
                assert_close(a, b.detach(), rtol=1e-9, atol=1e-9)


# How many numbers of a row are in an exchange: sums and slopes at up to 8 thresholds, or at 16, or more where ranks search.
SIZES = {"entmax 2.5": 34, "proj_capped_simplex": 256, "proj_capped_simplex c1, not whole": 256, "topk_mask_st": 256}


@pytest.mark.parametrize("name", OPERATORS)
def test_ranks_exchange_a_few_numbers_for_each_row_and_round(name):
    """No rank gets the row: each way takes at most 12 exchanges, of which 8 more find the k-th largest of float64 numbers. A
    gradient that is computed again takes those of its value.
    """
    f, counts = OPERATORS[name], collections.defaultdict(list)
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
        return first, len(sizes) - first, max(sizes), g.placements

    with (
        mock.patch.object(dist, "all_reduce", noting),
        mock.patch.object(DTensor, "redistribute", side_effect=AssertionError("a row is gathered")),
    ):
        for first, later, largest, placements in on_ranks((2,), both):
            assert 0 < first <= (20 if name in SIZES else 12)
            assert 0 < later <= (20 if name == "topk_mask_st" else 5)
            assert largest <= SIZES.get(name, 16) * len(x)
            assert placements == (Shard(1),)


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


def test_a_count_and_a_softness_that_learn_get_the_gradients_of_all_parts():
    """One for each row, along another dimension than the last."""
    x = torch.randn(11, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    k, softness = torch.tensor([1.0, 2.5, 4.0], dtype=torch.float64), torch.tensor([[0.2, 0.5, 1.0]], dtype=torch.float64)

    def gradients(x, *numbers):
        numbers = [v.requires_grad_() for v in numbers]
        y = soft.proj_capped_simplex(x, numbers[0].unsqueeze(0), 0, numbers[1])
        g = torch.autograd.grad((y * x.detach()).sum(), [x, *numbers], create_graph=True)
        return [y, *g, *torch.autograd.grad(g[2].square().sum(), [x, *numbers])]

    expected = gradients(x.clone().requires_grad_(), k.clone(), softness.clone())
    found = of_ranks(
        lambda x: gradients(x, *[laid_out(v, x.device_mesh, (Replicate(),)) for v in (k, softness)]), x, (Shard(0),), (3,)
    )
    for some in found:
        assert_close(some, [e.detach() for e in expected], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shift", [1e6, 1e30])
def test_rows_far_from_0_keep_their_digits(shift):
    """As in one process: the threshold is found near it."""
    x = torch.randn(2, 41, generator=torch.Generator().manual_seed(0))
    for rows, tolerance in ((x + shift, 1e-6), (x * shift, 1e-6)):
        for f in (lambda x: soft.proj_capped_simplex(x, 7), lambda x: soft.max(x, -1).indices):
            for (y,) in of_ranks(lambda x, f=f: [f(x)], rows, (Shard(1),), (3,)):
                assert_close(y, f(rows), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_first_of_equal_elements_are_among_the_largest(dtype):
    """Ranks agree on how many of the ties each takes; NaN is the largest number, as in torch."""
    x = torch.randint(-2, 3, (6, 23), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 5], x[1, 7], x[2, 9], x[3] = torch.nan, torch.inf, -torch.inf, -0.0
    for k in (0, 1, 9, 23):
        order = x.sort(dim=-1, descending=True, stable=True).indices
        expected = torch.zeros_like(x).scatter(-1, order[:, :k], 1.0)
        for (y,) in of_ranks(lambda x, k=k: [fullgrad.topk_mask_st(x, k)], x, (Shard(1),), (3,)):
            assert torch.equal(y, expected)


@pytest.mark.parametrize("mode", ["smooth", "laplace", "c0", "c1", "c2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_of_any_size_have_the_sum(dtype, mode):
    """As in one process: elements many softnesses apart, from large numbers to small ones, with ties, and for each row a k."""
    exponents = torch.linspace(-30, 30, 13).double()
    x = torch.stack([(10**e) * torch.tensor([3.0, 1.0, 2.0, -1.0, 0.0, 5.0, 2.0]).double() for e in exponents])
    x = torch.cat((x, x.flatten()[: 7 * 13 : 7].sin()[:, None] * 10 ** exponents.flip(0)[:, None] * x.sign())).to(dtype)
    k = torch.linspace(0.4, 6.6, len(x)).to(dtype)[:, None]
    for some in (1.4, 3, 6, k, k.round()):
        expected = soft.proj_capped_simplex(x, some, mode=mode)

        def split(x, k=some):
            k = laid_out(k, x.device_mesh, (Replicate(),)) if isinstance(k, torch.Tensor) else k
            return [soft.proj_capped_simplex(x, k, mode=mode)]

        assert_close(expected.sum(-1, keepdim=True), torch.zeros_like(expected[:, :1]) + some, rtol=1e-5, atol=0)
        for (y,) in of_ranks(split, x, (Shard(1),), (3,)):
            assert_close(y, expected, rtol=0, atol=1e-5)


# Rows with elements on the joins of a step, on one side or both, and with gaps in which only the tails of steps differ.
ON_JOINS = [[2, 1, 0.5, 0, -1, -2], [1, 1, 0.5, 0, -1, -2], [1, 0.5, 0.5, 0, 0, 0], [0.5, 3, -1, 2, 1, 2], [7, 6, 5, 1, 2, 3]]
IN_GAPS = [[30, 20, 10, 3, 2, 1], [300, 200, 100, 60, 20, -5], [70, 12, 5, 1, 0, -90], [40, 40, 40, 0, 0, 0], [4, 3, 2, 1, 0, -1]]


@pytest.mark.parametrize("mode", ["smooth", "laplace", "c0", "c1", "c2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_on_joins_and_in_gaps_are_those_of_one_process(dtype, mode):
    """A threshold that is off by a digit lies on another side of a join, or is as near to one neighbor as to none."""
    generator = torch.Generator().manual_seed(0)
    halves = torch.randn(24, 6, generator=generator).mul(4).round() / 2
    x = torch.cat((torch.tensor([*ON_JOINS, *IN_GAPS]), halves)).to(dtype)
    g = torch.randn(x.shape, generator=generator).to(dtype)
    within = {torch.float64: 1e-9, torch.float32: 1e-2, torch.bfloat16: 2e-2}[dtype]
    for softness, k in ((1.0, 2), (0.05, 2), (0.05, 2.5), (0.05, 3)):
        of_both = (
            lambda x, k, s: soft.proj_capped_simplex(x, k, -1, s, mode),
            lambda x, k, s: fullgrad.topk_mask_st(x, k, -1, s, mode),
        )
        for f in of_both[: 1 + (k != 2.5)]:

            def gradient(x, f=f, k=k, s=softness):
                cotangent = laid_out(g, x.device_mesh, (Shard(1),)) if isinstance(x, DTensor) else g
                return [torch.autograd.grad(f(x, k, s), x, cotangent)[0]]

            (expected,) = gradient(x.clone().requires_grad_())
            for (found,) in of_ranks(gradient, x, (Shard(1),), (2,)):
                unit = expected.abs().amax(-1, keepdim=True).clamp(min=1e-3)
                assert_close(found / unit, expected / unit, rtol=0, atol=within)
