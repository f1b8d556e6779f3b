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
from fullgrad._dispatch.split_rows import Row, on_parts
from fullgrad.soft.order.kernels.on_parts import split_on_parts
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


# How many numbers of a row and rank are in an exchange at most: sums and slopes at up to 8 thresholds, or where ranks search at
# 17 or 33 thresholds, or elements of each rank with their places.
SIZES = {"entmax 2.5": 66, "entmax 8": 66, **dict.fromkeys(("proj_capped_simplex", "topk_mask_st"), 256)}
MODES = ("smooth", "laplace", "c0", "c1", "c2")
COUNTED = {
    **{name: f for name, f in OPERATORS.items() if name.split()[0] not in SIZES},
    "entmax 8": lambda x: soft.entmax(x, 8.0),
    "normmax 20": lambda x: soft.normmax(x, 20.0),
    "max c0": lambda x: soft.max(x, -1, mode="c0").values,
    "argmax c0": lambda x: soft.argmax(x, -1, mode="c0"),
    **{
        f"proj_capped_simplex {m} {k}": lambda x, m=m, k=k: soft.proj_capped_simplex(x, k, mode=m)
        for m in MODES
        for k in (1, 2.6, 1e-3)
    },
    **{f"topk_mask_st {m}": lambda x, m=m: fullgrad.topk_mask_st(x, 3, mode=m) for m in MODES},
}


def rows_of_all_kinds(n, dtype):
    """Random rows, large and small ones, rows of ties and gaps, and elements that come nearer to a number, or a join, without
    end."""
    generator, i = torch.Generator().manual_seed(0), torch.arange(n, dtype=torch.float64)
    normal, other = torch.randn(2, n, generator=generator, dtype=torch.float64)
    signs, nearer = torch.where(other > 0, 1.0, -1.0), 2.0 ** -(i % 60)
    rows = [normal * s for s in (1.0, 0.1, 1e3, 1e-30, 1e30)] + [normal + 1e6, normal * 1e26 + 1e30, (normal / other) ** 5]
    rows += [
        torch.ones(n),
        signs,
        (normal * 4).round() / 2,
        torch.where(i == n // 2, 1e30, normal * 1e-3),
        torch.where(i > 0, -0.5, 0.5),
    ]
    rows += [
        -nearer,
        signs * nearer,
        0.5 * signs - nearer,
        -0.5 + signs * nearer,
        -1 / (i + 1),
        -1 / (i + 1) ** 2,
        -(i + 1).log(),
        -i,
    ]
    rows += [(i % 2) * 1e3 + normal, torch.where(i < 3, 3e5, -3e5) + normal, signs * 10 ** (20 * normal.sin())]
    return torch.stack(rows).to(dtype)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("ranks", [2, 1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", COUNTED)
def test_ranks_exchange_a_few_numbers_for_each_row_and_round(name, dtype, ranks):
    """No rank gets the row: each way takes at most 12 exchanges, for rows of any numbers. A gradient that is computed again takes
    those of its value.
    """
    f, counts, x = COUNTED[name], collections.defaultdict(list), rows_of_all_kinds(3001, dtype)
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

    largest_allowed = next((size for start, size in SIZES.items() if name.startswith(start)), 16)
    with (
        mock.patch.object(dist, "all_reduce", noting),
        mock.patch.object(DTensor, "redistribute", side_effect=AssertionError("a row is gathered")),
    ):
        for result in on_ranks((ranks,), both):
            if isinstance(result, Exception):
                raise result
            first, later, largest, placements = result
            assert 0 < first <= 12
            assert 0 < later <= (12 if name.startswith("topk_mask_st") else 4)
            assert largest <= largest_allowed * len(x) * (ranks if largest_allowed == 256 else max(1, ranks / 4))
            assert placements == (Shard(1),)


def test_thresholds_of_rows_of_all_kinds_are_those_of_one_process():
    """Weights sum to k, on one process as on parts, also to a small k where the weights have tails, and to one near n."""
    for dtype, within in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        x = rows_of_all_kinds(3001, dtype)
        for mode in MODES:
            for k in (1, 2.6, 1500, 2999, 3000.7, *((1e-3,) if mode in ("smooth", "laplace") else ())):
                expected = soft.proj_capped_simplex(x, k, mode=mode)
                assert (expected.double().sum(-1) - k).abs().amax() <= 20 * within * k
                for (y,) in of_ranks(lambda x, k=k, mode=mode: [soft.proj_capped_simplex(x, k, mode=mode)], x, (Shard(1),), (2,)):
                    assert_close(y, expected, rtol=0, atol=within)


@pytest.mark.parametrize("n", [1, 3, 90, 700])
def test_the_split_of_a_row_is_that_of_a_sort(n):
    """At every k: how many of the largest each rank has, their last and the next, the ends of the row; with ties, NaN, infinities
    and ranks without an element.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.cat((torch.randint(-2, 3, (8, n), generator=generator).double(), torch.randn(8, n, generator=generator).double()))
    for i, special in enumerate((torch.nan, torch.inf, -torch.inf)):
        x[i::3][torch.rand(x[i::3].shape, generator=generator) < 0.2] = special
    whole_row = x.sort(dim=-1, descending=True, stable=True)
    behind = torch.nn.functional.pad(whole_row.values, (0, 1), value=-torch.inf)
    for k in {1, n // 3 + 1, n // 2 + 1, n}:
        for ranks in (1, 2, 4):
            parts = [*x.chunk(ranks, -1)]
            parts += [x[:, :0]] * (ranks - len(parts))
            starts = [sum(p.shape[-1] for p in parts[:r]) for r in range(ranks)]

            def run(mesh, parts=parts, k=k):
                r = mesh.get_local_rank()
                with on_parts(Row(summed_over(mesh), r, mesh.size(), n)):
                    return split_on_parts(parts[r].sort(-1, descending=True).values, torch.full((len(x), 1), k))

            for r, split in enumerate(on_ranks((ranks,), run)):
                if isinstance(split, Exception):
                    raise split
                chosen = whole_row.indices[:, :k]
                inside = (chosen >= starts[r]) & (chosen < starts[r] + parts[r].shape[-1])
                assert torch.equal(split.count, inside.sum(-1, keepdim=True))
                found = torch.cat(split[1:], -1)
                assert_close(found, behind[:, [k - 1, k, 0, n - 1]], rtol=0, atol=0, equal_nan=True)


def summed_over(mesh):
    """The sum over the ranks of a mesh."""

    def total(t):
        t = t.clone()
        dist.all_reduce(t, group=mesh.get_group(0))
        return t

    return total


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_count_that_learns_across_a_gap(dtype, mode):
    """As in one process, where all slopes are small, or underflow, and at k = 0 and k = n."""
    x = torch.tensor([[5.3, 5, 0, -0.05, -0.1], [30, 30.05, -30, -29.9, -40], [3, 1, 2, 1.5, -torch.inf], [2, 1, 0, 2, 3]]).to(
        dtype
    )
    for k in (torch.full((4, 1), 2.0), torch.tensor([[0.0], [5.0], [4.0], [0.5]])):

        def gradients(x, k=k):
            k = k.to(dtype).requires_grad_()
            count = laid_out(k, x.device_mesh, (Replicate(),)) if isinstance(x, DTensor) else k
            y = soft.proj_capped_simplex(x, count, mode=mode)
            g = torch.arange(5.0).to(dtype)
            g = laid_out(g, x.device_mesh, (Shard(0),)) if isinstance(x, DTensor) else g
            return [y, *torch.autograd.grad((y * g).sum(), [x, count])]

        expected = [v.detach() for v in gradients(x.clone().requires_grad_())]
        for found in of_ranks(gradients, x, (Shard(1),), (2,)):
            assert_close(found, expected, rtol=1e-4, atol=1e-5)


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
