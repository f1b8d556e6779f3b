"""Order statistics: golden values, exact hard values, per-sample gradients, the defects of others, errors."""

import collections
import inspect
import itertools
import json
import math
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import fullgrad
from fullgrad import soft
from fullgrad._fast.small_rows import rows as small_rows
from fullgrad.losses import _rows as loss_rows
from fullgrad.soft.order import _rows as order_rows
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.methods import LAPLACE_METHODS, PERMUTATION_METHODS, RANK_METHODS, SORT_METHODS, WEIGHTED_SUM_METHODS
from fullgrad.testing._subject import close, equal

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan
MODES = ("smooth", "c0", "c1", "c2")
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["cases"]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- golden values ----------------------------------------------------------------------------------------------------


def one_of_each_first(cases):
    """One case of every function and method, then the second ones, and so on."""
    seen, places = collections.Counter(), []
    for case in cases:
        kind = case["op"], case["kwargs"].get("method")
        places.append(seen[kind])
        seen[kind] += 1
    return [case for _, case in sorted(zip(places, cases, strict=True), key=lambda pair: pair[0])]


@pytest.mark.long(but=40)
@pytest.mark.parametrize(
    "case", one_of_each_first(GOLDEN), ids=lambda c: f"{c['op']}-{'-'.join(str(v) for v in c['kwargs'].values())}"
)
def test_golden(case):
    """Values, gradients and Hessian-vector products equal those of an independent implementation in float64."""
    name, options = case["op"], dict(case["kwargs"])
    for marginal in ("mu", "nu"):
        if marginal in options:
            options[marginal] = torch.tensor(options[marginal], dtype=torch.float64)
    inputs = {k: torch.tensor(v, dtype=torch.float64) for k, v in case["inputs"].items()}
    if name == "median" and options["method"] not in WEIGHTED_SUM_METHODS:
        del options["dim"]  # with it there would be indices
    function = getattr(fullgrad, name) if name.endswith("_st") else getattr(soft, name.removesuffix("_indices"))

    def call(values):
        y = function(**values, **options)
        return y.indices if name == "topk_indices" else y if isinstance(y, torch.Tensor) else y[0]

    def total(values):
        y = call(values).flatten()
        return (torch.arange(1, len(y) + 1, dtype=torch.float64) * y).sum()

    # A plan is that of a solver there too.
    solved = options.get("method") == "ot" or name == "proj_transport_polytope"
    torch.testing.assert_close(
        call(inputs), torch.tensor(case["out"], dtype=torch.float64), rtol=1e-10, atol=1e-8 if solved else 1e-9
    )
    if case.get("kink") or "grad" not in case:
        return
    gradients = grad(total)(inputs)
    for key, expected in case["grad"].items():
        atol = 1e-4 if solved else 1e-8
        torch.testing.assert_close(gradients[key], torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=atol)
    if "hvp" in case:
        direction = {k: torch.tensor(v, dtype=torch.float64) for k, v in case["hvp_v"].items()}
        _, products = jvp(grad(total), (inputs,), (direction,))
        for key, expected in case["hvp"].items():
            torch.testing.assert_close(products[key], torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)


# --- exact values -----------------------------------------------------------------------------------------------------

TIES = torch.tensor([[0.5, -1.0, 0.5, 2.0, -1.0], [NAN, 1.0, INF, -INF, 0.0], [0.0, -0.0, 0.0, 3.0, 3.0]])
EXACT = {
    "max": (lambda x: fullgrad.max_st(x, 1), lambda x: torch.max(x, 1)),
    "max over all": (fullgrad.max_st, torch.max),
    "max keepdim": (lambda x: fullgrad.max_st(x, 0, True), lambda x: torch.max(x, 0, True)),
    "min": (lambda x: fullgrad.min_st(x, -2), lambda x: torch.min(x, -2)),
    "min over all": (fullgrad.min_st, torch.min),
    "median": (lambda x: fullgrad.median_st(x, 1), lambda x: torch.median(x, 1)),
    "median over all": (fullgrad.median_st, torch.median),
    "median keepdim": (lambda x: fullgrad.median_st(x, 0, keepdim=True), lambda x: torch.median(x, 0, keepdim=True)),
    "sort": (fullgrad.sort_st, torch.sort),
    "sort descending": (lambda x: fullgrad.sort_st(x, 0, True), lambda x: torch.sort(x, 0, True)),
    "topk": (lambda x: fullgrad.topk_st(x, 3), lambda x: torch.topk(x, 3)),
    "topk dim": (lambda x: fullgrad.topk_st(x, 2, 0), lambda x: torch.topk(x, 2, 0)),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_straight_through_returns_what_torch_does(name, dtype, requires_grad, device):
    """Values and integer indices, ties, NaN and infinities are torch's, in torch's own type."""
    straight_through, plain = EXACT[name]
    x = TIES.to(device, dtype, copy=True).requires_grad_(requires_grad)
    actual, expected = straight_through(x), plain(x.detach())
    assert type(actual) is type(expected)
    for a, e in zip(*((v,) if isinstance(v, torch.Tensor) else v for v in (actual, expected)), strict=True):
        equal(a.detach(), e)


def torch_selects_quantiles(x):
    """Whether torch.quantile selects elements instead of sorting, so that it finds any of several zeros, of either sign.

    It does since torch 2.15, on the CPU: https://github.com/pytorch/pytorch/pull/188394
    """
    found, least = torch.quantile(x, 0.0, -1, interpolation="lower"), x.sort().values[:, 0]
    return bool((found.signbit() != least.signbit())[found == 0].any())


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantile_is_that_of_torch(interpolation, dtype, device):
    """Every interpolation, one and several quantiles, dims and keepdim agree with torch; the sign of a zero if torch sorts."""
    x = torch.cat((TIES.to(dtype), numbers(4, 5).to(dtype))).to(device)
    either = 0.0 if torch_selects_quantiles(x) else -0.0  # adding 0.0 to -0.0 gives 0.0, and adding -0.0 changes no number
    for q in (0.0, 0.3, 0.5, 1.0, torch.tensor([0.1, 0.77, 0.25], dtype=dtype, device=device)):
        for dim in (None, 0, -1):
            for keepdim in (False, True):
                expected = torch.quantile(x, q, dim, keepdim, interpolation=interpolation)
                found = fullgrad.quantile_st(x, q, dim, keepdim, interpolation=interpolation)
                equal(found + either, expected + either)
                shape = soft.quantile(x[3:], q, dim, keepdim, interpolation=interpolation).shape
                assert shape == torch.quantile(x[3:], q, dim, keepdim, interpolation=interpolation).shape


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
def test_a_quantile_on_an_element_beside_infinity_is_that_element(interpolation):
    """Rows with their own quantiles are right, too: an element without a share is not multiplied by 0."""
    x = torch.tensor([[1.0, 3.0, INF], [-INF, 3.0, 4.0]])
    for q in (0.5, torch.tensor([0.5])):
        equal(fullgrad.quantile_st(x, q, 1, interpolation=interpolation).flatten(), torch.tensor([3.0, 3.0]))
    own = vmap(lambda x, q: fullgrad.quantile_st(x, q, interpolation=interpolation))(x, torch.full((2,), 0.5))
    equal(own, torch.tensor([3.0, 3.0]))
    traced = make_fx(lambda x: fullgrad.quantile_st(x, 0.5, 1, interpolation=interpolation))(x)
    equal(traced(x), torch.tensor([3.0, 3.0]))


def test_rank_counts_in_order(device):
    """Ranks count from 1, the largest first by default, equal elements by position; without a dim among all elements."""
    x = torch.tensor([[3.0, 1.0, 3.0], [2.0, 2.0, 9.0]], device=device)
    equal(fullgrad.rank_st(x, 1), torch.tensor([[1.0, 3.0, 2.0], [2.0, 3.0, 1.0]], device=device))
    equal(fullgrad.rank_st(x, 1, descending=False), torch.tensor([[2.0, 1.0, 3.0], [1.0, 2.0, 3.0]], device=device))
    equal(fullgrad.rank_st(x), torch.tensor([[2.0, 6.0, 3.0], [4.0, 5.0, 1.0]], device=device))


@pytest.mark.parametrize("name", ["argmax", "argmin", "argmedian", "argsort"])
def test_weights_of_straight_through_are_those_of_torchs_index(name):
    """A weight of one stands at torch's index, in the last dimension."""
    x = numbers(3, 4, 2)
    index = torch.median(x, 1).indices if name == "argmedian" else getattr(torch, name)(x, dim=1)
    expected = torch.nn.functional.one_hot(index, 4).to(x.dtype)
    equal(getattr(fullgrad, f"{name}_st")(x, dim=1), expected)
    equal(getattr(soft, name)(x, dim=1, mode="hard"), expected)
    assert getattr(soft, name)(x, dim=1).shape == expected.shape


# --- relaxations ------------------------------------------------------------------------------------------------------

CALLS = {
    **{f"{n} {m}": (n, m) for n in ("argmax", "argmin", "argmedian") for m in PERMUTATION_METHODS},
    **{f"{n} {m}": (n, m) for n in ("max", "min", "median", "sort", "rank") for m in SORT_METHODS},
}


def call(name, method, x, **options):
    """Call a statistic, and return one tensor."""
    if name != "sort":
        options.setdefault("dim", -1)
    if name == "median" and method not in WEIGHTED_SUM_METHODS:  # it has no indices, which a median along a dim returns
        return soft.quantile(x, 0.5, interpolation="lower", method=method, **options)
    y = getattr(soft, name)(x, method=method, **options)
    return y if isinstance(y, torch.Tensor) else y[0]


@pytest.mark.short(of=3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", CALLS)
def test_hard_in_the_limit(key, mode):
    """With a small softness a relaxation is the hard statistic."""
    name, method = CALLS[key]
    softness = 1e-3 if method == "ot" and mode == "smooth" else 1e-4
    x = torch.tensor([0.3, -0.8, 1.2, 0.5, -0.1], dtype=torch.float64)
    close(call(name, method, x, softness=softness, mode=mode), call(name, method, x, mode="hard"), rtol=0, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", PERMUTATION_METHODS)
def test_weights_are_positive_and_sum_to_1(method, mode):
    """Each row of weights is a distribution, by every method."""
    x = numbers(3, 6)
    for weights in (soft.argsort(x, method=method, mode=mode), soft.argquantile(x, [0.2, 0.6], -1, method=method, mode=mode)):
        assert (weights >= 0).all()
        close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.sampled(of=3)
@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [k for k, (n, m) in CALLS.items() if n in ("sort", "rank") and m != "sorting_network"])
def test_a_graph_computes_what_eager_code_does(key, mode):
    """Value, gradient and tangent of a graph are right in every mode, also for other numbers than it was traced with."""
    name, method = CALLS[key]

    def value(x):
        return call(name, method, x, softness=0.5, mode=mode)

    def all_of(x):
        return value(x), grad(lambda x: value(x).sin().sum())(x), jvp(value, (x,), (x.cos(),))[1]

    x, other = numbers(2, 3), numbers(2, 3, seed=1)
    torch.testing.assert_close(make_fx(all_of)(x)(other), all_of(other), rtol=1e-9, atol=1e-9)


@pytest.mark.long(but=4)
@pytest.mark.parametrize("key", CALLS)
def test_dims_and_batches(key):
    """A statistic along any dim is that of each row by itself; None treats all as one row."""
    name, method = CALLS[key]
    x = numbers(2, 4, 3)
    for dim in range(-3, 3):
        rows = x.movedim(dim, -1)
        expected = torch.stack([torch.stack([call(name, method, row) for row in matrix]) for matrix in rows])
        actual = call(name, method, x, dim=dim)
        if name in ("sort", "rank"):
            actual = actual.movedim(dim, -1)
        close(actual, expected)
        total = lambda x, dim: call(name, method, x, dim=dim).sin().sum()  # noqa: E731
        close(grad(total)(x, dim), grad(total)(rows, -1).movedim(-1, dim))
    if name != "sort":
        flat = getattr(soft, name)(x, method=method)
        close(flat.flatten(), call(name, method, x.flatten()).flatten())


@pytest.mark.parametrize("call", [soft.sort, fullgrad.sort_st, soft.topk, fullgrad.topk_st])
def test_indices_where_they_are_wanted(call):
    """Values are the same with and without indices."""
    x, k = numbers(2, 5), {"k": 2} if "topk" in call.__name__ else {}
    found, alone = call(x, **k), call(x, **k, return_indices=False)
    assert alone.indices is None
    close(alone.values, found.values)
    if call in (soft.sort, soft.topk):
        assert found.indices.shape == (*found.values.shape, 5)
    else:
        equal(x.gather(-1, found.indices), found.values)


@pytest.mark.parametrize("method", [m for m in SORT_METHODS if m not in WEIGHTED_SUM_METHODS])
def test_weights_that_a_method_does_not_have_are_refused(method):
    """A median with its indices, and a quantile with its weights, raise and say how their value alone is found."""
    x = numbers(2, 5)
    with pytest.raises(
        ValueError, match=r"median: `method` must have weights, .* quantile\(x, 0.5, dim, interpolation='lower'\)"
    ):
        soft.median(x, 1, method=method)
    for f in (soft.quantile, fullgrad.quantile_st):
        with pytest.raises(ValueError, match=r"quantile(_st)?: `method` must have weights, .* return_argquantile=False"):
            f(x, 0.5, 1, method=method, return_argquantile=True)
    alone = soft.quantile(x, 0.5, 1, interpolation="lower", method=method)
    close(alone, torch.stack([soft.median(row, method=method) for row in x]))
    weights = soft.quantile(x, 0.5, 1, mode="hard", method=method, return_argquantile=True)[1]
    equal(weights, soft.argquantile(x, 0.5, 1, mode="hard"))
    assert fullgrad.median_st(x, 1, method=method).indices.dtype == torch.int64


@pytest.mark.short(of=4)
@pytest.mark.parametrize("mode", ["smooth", "c1"])
@pytest.mark.parametrize(("name", "method"), [("sort", m) for m in SORT_METHODS] + [("rank", m) for m in RANK_METHODS])
def test_autocast_changes_no_derivative(name, method, mode):
    """Inside autocast values, tangents, gradients and both kinds of second derivatives have the digits of float32."""
    x, t, g = (numbers(2, 40, seed=seed).float() for seed in range(3))

    def f(x):
        return call(name, method, x, mode=mode, **({"return_indices": False} if name == "sort" else {}))

    def gradient(x):
        return vjp(f, x)[1](g)[0]

    def by_autograd(x):
        x = x.clone().requires_grad_()
        first = torch.autograd.grad(f(x), x, g, create_graph=True)[0]
        return torch.stack([first, *torch.autograd.grad(first, x, t)])

    def tangent(x):
        return jvp(f, (x,), (t,))[1]

    for derivative in (
        f,
        tangent,
        gradient,
        by_autograd,
        lambda x: vjp(gradient, x)[1](t)[0],
        lambda x: jvp(tangent, (x,), (t,))[1],
    ):
        expected = derivative(x)
        with torch.autocast("cpu", torch.bfloat16):
            found = derivative(x)
        assert ((found - expected).abs().max() <= 1e-5 * expected.abs().max()).item()


@pytest.mark.parametrize("softness", [0.125, torch.tensor(0.125)])
@pytest.mark.parametrize("n", [5, 700])
@pytest.mark.parametrize("mode", ["smooth", "laplace"])
@pytest.mark.parametrize("descending", [True, False])
def test_ranks_in_the_tail_have_all_digits(mode, descending, softness, n):
    """The gradient of a rank by sigmoids is as accurate 57 softnesses away from all others as near them: an element does not
    meet itself.
    """
    x = torch.tensor([0.25, 0.25 + 27 / 8, 0.25 - 17 / 8, 0.375, 6.0]).repeat(n // 5)
    x = 3 * (x + torch.arange(n // 5).repeat_interleave(5) * 16)

    def rank(x):
        return soft.rank(x, -1, softness, mode, "sigmoid", descending=descending, standardize=False)[1]

    along = (torch.arange(n) == 1).to(x.dtype)

    z = (x.double()[1] - x.double()) / 0.125
    slopes = torch.sigmoid(z) * torch.sigmoid(-z) if mode == "smooth" else torch.exp(-z.abs()) / 2
    exact = (slopes / 0.125)[torch.arange(n) != 1].sum() * (-1 if descending else 1)
    for found in (grad(rank)(x)[1], jvp(rank, (x,), (along,))[1]):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["argmax", "max", "argmedian", "median", "argquantile", "quantile"])
def test_keepdim(name):
    """keepdim works as in torch, and for the weights."""
    x = numbers(2, 4, 3)
    function = getattr(soft, name)
    q = (0.5,) if "quantile" in name else ()
    for dim in (None, 1, -1):
        plain, kept = function(x, *q, dim=dim), function(x, *q, dim=dim, keepdim=True)
        plain, kept = ((y if isinstance(y, torch.Tensor) else y[0]) for y in (plain, kept))
        where = (0, 1, 2) if dim is None else (dim % 3,)
        shape = tuple(1 if i in where else n for i, n in enumerate(x.shape))
        assert kept.shape == ((*shape, plain.shape[-1]) if name.startswith("arg") else shape)
        close(kept.flatten(), plain.flatten())


@pytest.mark.parametrize("name", ["max", "median", "quantile"])
def test_keepdim_of_a_row_and_of_a_number(name):
    """A row keeps one dimension of size 1, and a number none."""
    q = (0.5,) if name == "quantile" else ()
    for call in (getattr(soft, name), getattr(fullgrad, f"{name}_st")):
        for x, shape in ((numbers(4), (1,)), (numbers(), ())):
            for dim in (None, 0, -1):
                y = call(x, *q, dim=dim, keepdim=True)
                y = y if isinstance(y, torch.Tensor) else y[0]
                assert y.shape == shape


@pytest.mark.parametrize("method", [m for m in SORT_METHODS if m != "ot"])  # which has other anchors for some elements
@pytest.mark.parametrize("call", [soft.topk, fullgrad.topk_st])
def test_topk_is_the_head_of_a_sort(call, method):
    """Values, weights and gradients are those of a descending sort, for some and all elements."""
    x = numbers(2, 5)
    sort = soft.sort if call is soft.topk else fullgrad.sort_st
    whole = sort(x, descending=True, method=method)
    assert type(call(x[0, 0], 1, return_indices=False)) is type(call(x, 1)) is torch.return_types.topk
    assert type(sort(x[0, 0], return_indices=False)) is type(sort(x)) is torch.return_types.sort
    for k in (1, 3, 5):
        found = call(x, k, method=method)
        close(found.values, whole.values[:, :k], rtol=1e-6, atol=1e-8)
        if call is soft.topk and whole.indices is not None:
            close(found.indices, whole.indices[:, :k], rtol=1e-6, atol=1e-8)
        head = lambda x, k=k: sort(x, descending=True, method=method).values[:, :k].sin().sum()  # noqa: E731
        ours = lambda x, k=k: call(x, k, method=method).values.sin().sum()  # noqa: E731
        close(grad(ours)(x), grad(head)(x), rtol=1e-6, atol=1e-8)
        if method in ("softsort", "neuralsort"):
            close(jacrev(grad(ours))(x), jacrev(grad(head))(x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", SORT_METHODS)
def test_one_element(method):
    """A row of one, and a 0-dimensional tensor, have their element and its derivative."""
    for x in (torch.tensor([3.0]), torch.tensor(3.0)):
        assert soft.sort(x, method=method).values.shape == x.shape
        close(soft.max(x, method=method), torch.tensor(3.0), rtol=1e-3, atol=1e-3)
        equal(fullgrad.sort_st(x, method=method).values, x)
        close(soft.rank(x, method=method), torch.ones_like(x))
        assert grad(lambda x: fullgrad.max_st(x, method=method))(x).isfinite().all()


def test_empty_rows():
    """Nothing sorts to nothing; the largest of nothing is an error."""
    for x in (torch.zeros(0), torch.zeros(2, 0)):
        assert fullgrad.sort_st(x).values.shape == x.shape
    for method in SORT_METHODS:
        assert soft.sort(torch.zeros(0, 3), method=method).values.shape == (0, 3)
        assert soft.rank(torch.zeros(0, 3), dim=-1, method=method).shape == (0, 3)
    with pytest.raises(ValueError, match="max_st: `x` must have at least one element"):
        fullgrad.max_st(torch.zeros(2, 0), 1)


# --- per sample -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SORT_METHODS)
@pytest.mark.parametrize("name", ["sort_st", "topk_st", "rank_st"])
def test_gradients_per_sample(name, method):
    """``vmap(grad)`` equals the loop."""
    x = numbers(6, 8)
    weights = torch.arange(1.0, 9.0, dtype=torch.float64)

    def loss(row):
        y = fullgrad.topk_st(row, 3, method=method) if name == "topk_st" else getattr(fullgrad, name)(row, method=method)
        y = y if isinstance(y, torch.Tensor) else y.values
        return (weights[: len(y)] * y).sum()

    close(vmap(grad(loss))(x), torch.stack([grad(loss)(row) for row in x]))


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
@pytest.mark.parametrize("name", ["max", "min", "median", "argmax", "argmedian"])
def test_statistics_of_all_elements_per_sample(name, shape):
    """Without a dimension a sample is one row: soft, hard and straight-through."""
    x = numbers(4, *shape)
    for f, options in ((getattr(soft, name), {}), (getattr(soft, name), {"mode": "hard"}), (getattr(fullgrad, f"{name}_st"), {})):

        def total(x, f=f, options=options):
            y = f(x, **options)
            return (y.flatten() * torch.arange(1, 1 + y.numel())).sum()

        gradients, values = vmap(torch.func.grad_and_value(total))(x)
        for sample, gradient, value in zip(x, gradients, values, strict=True):
            torch.testing.assert_close((gradient, value), torch.func.grad_and_value(total)(sample))


@pytest.mark.parametrize("method", SORT_METHODS)
def test_softness_per_sample(method):
    """Softnesses may differ between samples, also in two batches, and have gradients, transport included."""
    x, s = numbers(3, 5), torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)

    def loss(row, s):
        return soft.sort(row, softness=s, method=method, return_indices=False).values.square().sum()

    for argnum in (0, 1):
        expected = torch.stack([grad(loss, argnum)(*pair) for pair in zip(x, s, strict=True)])
        close(vmap(grad(loss, argnum))(x, s), expected)
        nested = vmap(vmap(grad(loss, argnum)))(torch.stack((x, x.flip(0))), torch.stack((s, s.flip(0))))
        close(nested, torch.stack((expected, expected.flip(0))))
    h = 1e-6
    numeric = torch.stack([(loss(r, t + h) - loss(r, t - h)) / (2 * h) for r, t in zip(x, s, strict=True)])
    close(vmap(grad(loss, 1))(x, s), numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.short
@pytest.mark.parametrize("mode", ["smooth", "hard"])
@pytest.mark.parametrize("name", ["max", "argmax", "median", "argmedian", "quantile", "argquantile", "sort", "topk", "rank"])
def test_an_output_may_be_changed_in_place(name, mode):
    """An output is not a view of the operator's tensors, for which autograd would refuse the change."""
    given = {"quantile": {"q": 0.3}, "argquantile": {"q": 0.5}, "topk": {"k": 2}, "sort": {}}.get(name, {})
    for function in (getattr(soft, name), getattr(fullgrad, f"{name}_st")):
        x = numbers(3, 4).requires_grad_()
        y = function(x, dim=-1, mode=mode, **given)
        for v in [y] if isinstance(y, torch.Tensor) else y:
            if v.is_floating_point():
                once = v.detach().clone()
                equal(v.mul_(2).detach(), 2 * once)


@pytest.mark.long(but=3)
@pytest.mark.parametrize("method", PERMUTATION_METHODS)
@pytest.mark.parametrize("name", ["quantile", "median", "argquantile", "argmax", "rank", "topk"])
def test_softness_per_sample_of_other_statistics(name, method):
    """Softnesses may differ between samples, in two batches, for one place, two neighbors and several places."""
    x, s = numbers(2, 3, 5), torch.tensor([[0.1, 0.5, 1.0], [0.3, 0.2, 0.7]], dtype=torch.float64)
    given = {"quantile": {"q": 0.3}, "argquantile": {"q": (0.2, 0.6)}, "topk": {"k": 2, "return_indices": False}}.get(name, {})
    if name == "median" and method not in WEIGHTED_SUM_METHODS:  # which has no indices along a dimension
        name, given = "quantile", {"q": 0.5, "interpolation": "lower"}

    def loss(row, s):
        y = getattr(soft, name)(row, dim=-1, softness=s, method=method, **given)
        return (y if isinstance(y, torch.Tensor) else y.values).sin().sum()

    for argnum in (0, 1):
        slope = grad(loss, argnum)
        expected = torch.stack(
            [torch.stack([slope(*pair) for pair in zip(*some, strict=True)]) for some in zip(x, s, strict=True)]
        )
        close(vmap(vmap(slope))(x, s), expected)
        close(vmap(slope)(x[0], s[0]), expected[0])


def test_quantile_per_sample():
    """A quantile for each sample has torch's value, and a gradient."""
    x, q = numbers(4, 7), torch.tensor([0.0, 0.31, 0.5, 1.0], dtype=torch.float64)
    equal(vmap(fullgrad.quantile_st)(x, q), torch.stack([torch.quantile(*pair) for pair in zip(x, q, strict=True)]))
    slope = vmap(grad(lambda x, q: soft.quantile(x, q), 1))(x, q)
    close(slope, torch.stack([grad(lambda q, row=row: soft.quantile(row, q))(at) for row, at in zip(x, q, strict=True)]))


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "method"),
    [(n, m) for n in ("sort", "rank", "max") for m in SORT_METHODS] + [("rank", "sigmoid")],
)
def test_second_derivatives_are_those_of_the_first(name, method, mode):
    """The Hessian is the numerical derivative of the gradient. In softtorch 0.1.1 it is silently wrong for softsort and
    neuralsort in c1 and c2, fast_soft_sort, and transport, or raises.
    """
    x = torch.tensor([0.3, -0.8, 1.2, 0.52, -0.1, 0.9], dtype=torch.float64)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5, -1.0], dtype=torch.float64)

    def loss(x):
        y = call(name, method, x, softness=0.3, mode=mode)
        return (weights * y.sin()).sum() if y.ndim else y.sin()

    h = 1e-6
    numeric = torch.stack([(grad(loss)(x + h * e) - grad(loss)(x - h * e)) / (2 * h) for e in torch.eye(6, dtype=torch.float64)])
    for second in (hessian(loss)(x), jacrev(jacrev(loss))(x)):
        close(second, numeric, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("softness", [1.0, 0.3, 0.1, 0.05])
def test_transport_gradient_is_exact(softness):
    """The gradient of a sort by transport is the numerical one, where a truncated solver is off by up to a half."""
    x = torch.tensor([0.3, -0.8, 1.2, 0.5, -0.1], dtype=torch.float64)
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)

    def loss(x):
        return (weights * soft.sort(x, softness=softness, method="ot").values).sum()

    h = 1e-6
    numeric = torch.stack([(loss(x + h * e) - loss(x - h * e)) / (2 * h) for e in torch.eye(5, dtype=torch.float64)])
    close(grad(loss)(x), numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", WEIGHTED_SUM_METHODS)
def test_without_a_gate_the_weights_are_constants(method):
    """The derivative is the transpose of the weights, and the second one 0."""
    x = numbers(5)
    weights = soft.argsort(x, method=method)
    rows = torch.arange(1.0, 6.0, dtype=torch.float64)

    def loss(x):
        return (rows * soft.sort(x, method=method, gated_grad=False).values).sum()

    close(grad(loss)(x), weights.mT @ rows)
    close(hessian(loss)(x), torch.zeros(5, 5, dtype=torch.float64))


@pytest.mark.parametrize("method", ["softsort", "neuralsort"])
def test_gradient_at_ties(method):
    """Equal elements get equal gradients by a convention: the distance between them has the derivative 0."""
    x = torch.tensor([0.5, -1.0, 0.5, 2.0, -1.0], dtype=torch.float64)
    g = grad(lambda x: (torch.arange(1.0, 6.0, dtype=torch.float64) * soft.sort(x, method=method).values).sum())(x)
    assert g.isfinite().all()
    if method == "neuralsort":
        close(g[[0, 1]], g[[2, 4]])


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def with_tied_ends(n, dtype, seed=0):
    """A row whose first, middle and last elements are equal: kernels compute what fills no vector in another way."""
    x = numbers(n, seed=seed).to(dtype)
    x[n // 2] = x[-1] = x[0].item()
    return x


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_elements_are_compared_as_equal_numbers(dtype, strided):
    """Wherever they stand in a row of any length: standardized elements are ties where the elements are."""
    for n, seed in itertools.product(range(2, 71), range(8)):
        x = with_tied_ends(n, dtype, seed).to(torch.promote_types(dtype, torch.float32))
        x = torch.stack((x, 2 * x), -1)[:, 0] if strided else x
        found = [order_rows.standardized(x).z, loss_rows.standardized(loss_rows.Rows(x, x, None, None))]
        rows = small_rows.small_rows(x, 0.1, -1, ("smooth", "softsort", True, True, "ranks", False), n)
        for z in (*found, rows.z):
            assert z[0] == z[-1] == z[n // 2], n
            torch.testing.assert_close(z, torch.sigmoid(z.logit()))


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("name", ["sort", "rank"])
def test_ties_anywhere_in_a_row_of_any_length_have_the_gradient_of_the_matrix(name, dtype):
    """The slope of the distance of equal elements is 0, in both directions."""

    def by_matrix(x):
        z = torch.sigmoid((x - x.mean()) / (x.var(correction=0) + 1e-6).sqrt())
        order = torch.sort(x.detach(), stable=True).indices
        same = x.detach()[:, None] == x.detach()[order]
        weights = torch.softmax(torch.where(same, 0, (z[:, None] - z[order]).abs()) / -0.1, -1 if name == "rank" else 0)
        return weights @ torch.arange(1.0, len(x) + 1, dtype=x.dtype) if name == "rank" else x @ weights

    def by_operator(x):
        return call(name, "softsort", x, descending=False, softness=0.1)

    within = 1e-4 if dtype == torch.float32 else 1e-11
    for n, seed in itertools.product(range(2, 71), range(4)):
        x, g = with_tied_ends(n, dtype, seed), torch.linspace(-1, 2, n, dtype=dtype).sin()
        found, wanted = vjp(by_operator, x)[1](g)[0], vjp(by_matrix, x.double())[1](g.double())[0]
        torch.testing.assert_close(found, wanted.to(dtype), rtol=0, atol=within * wanted.abs().max().item())


# --- the defects of others --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [12, 40, 600])
@pytest.mark.parametrize("name", ["rank", "sort"])
def test_equal_elements_take_places_in_the_order_of_the_row(name, n):
    """The gradient is that of all pairs behind a stable sort, also where a row is too long for pairs."""
    x, g = torch.arange(n).mul(7).remainder(5).double(), torch.linspace(-1, 2, n, dtype=torch.float64)

    def by_pairs(x):
        a = torch.sort(x, stable=True).values
        distances = (a.unsqueeze(-1) - x).abs() / 0.7
        if name == "sort":
            return torch.softmax(-distances, -1) @ x
        return torch.arange(1.0, n + 1, dtype=torch.float64) @ torch.softmax(-distances, 0)

    operator = {"rank": soft.rank, "sort": lambda x, **options: soft.sort(x, **options).values}[name]
    options = {"method": "softsort", "softness": 0.7, "standardize": False, "descending": False}
    found, wanted = [grad(lambda x, f=f: (g * f(x)).sum())(x) for f in (lambda x: operator(x, **options), by_pairs)]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("softness", [1.0, 1e-3, 1e-9])
@pytest.mark.parametrize("method", ["softsort", "neuralsort", "sigmoid", "lapsum"])
def test_ties_have_their_mean_rank_however_far_from_0(method, softness):
    """Ties among elements that are large beside the softness do not depend on their size."""
    for n in (7, 300):
        x = torch.full((n,), 1 / 3, dtype=torch.float64)
        mode = {"mode": "laplace"} if method in ("sigmoid", "lapsum") else {}
        ranks = soft.rank(x, method=method, softness=softness, standardize=False, **mode)
        torch.testing.assert_close(ranks, torch.full_like(x, (n + 1) / 2), rtol=1e-14 * n, atol=0)


@pytest.mark.long(but=10)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [k for k, (_, m) in CALLS.items() if m not in ("sorting_network", "fast_soft_sort")])
def test_the_unit_may_be_any(key, mode):
    """Results do not depend on the unit where numbers are not standardized, and the softness is in their unit."""
    name, method = CALLS[key]
    x = numbers(5)

    def found(unit):
        def f(x):
            return call(name, method, x, softness=0.4 * unit, mode=mode, standardize=False)

        (y, slopes), power = torch.func.vjp(f, unit * x), 0 if "arg" in name or name == "rank" else 1
        return y / unit**power, slopes(torch.cos(y / unit**power))[0] * unit ** (1 - power)

    for unit in (1e-30, 1e-6, 1e6, 1e30):
        torch.testing.assert_close(found(unit), found(1.0), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", SORT_METHODS)
def test_ranks_of_times_are_those_of_what_has_passed(method, mode):
    """Ranks of numbers far from 0 that are not standardized, such as seconds since 1970, are right."""
    x = torch.tensor([3.0, 0.0, 7.0, 4.0, 0.0], dtype=torch.float64)
    passed, times = [soft.rank(v, -1, softness=2.0, mode=mode, method=method, standardize=False) for v in (x, x + 2.0**31)]
    torch.testing.assert_close(times, passed, rtol=1e-6, atol=0)


@pytest.mark.parametrize("standardize", [False, True])
def test_rows_of_a_network_do_not_see_each_other(standardize):
    """Padding belongs to the row, not to the batch."""
    x = numbers(2, 5)
    scaled = torch.stack((x[0], 100 * x[1]))
    first, second = (soft.sort(v, method="sorting_network", standardize=standardize).values[0] for v in (x, scaled))
    equal(first, second)


@pytest.mark.parametrize("method", SORT_METHODS)
@pytest.mark.parametrize("masked", [INF, -INF])
def test_infinity_does_not_poison_ranks_and_gradients(masked, method):
    """Ranks of a row with an infinity are finite and in order, and so are gradients of hard values."""
    x = torch.tensor([0.3, masked, 1.2, 0.5], dtype=torch.float64)
    ranks = soft.rank(x, method=method, softness=0.01, descending=False)
    close(ranks, fullgrad.rank_st(x, descending=False), rtol=0, atol=0.3)
    for name in ("max_st", "sort_st", "topk_st"):
        options = {"k": 2} if name == "topk_st" else {}

        def loss(x, name=name, options=options):
            y = getattr(fullgrad, name)(x, method=method, **options)
            y = y if isinstance(y, torch.Tensor) else y.values
            return torch.where(y.isfinite(), y, 0).sum()

        g = grad(loss)(x)
        assert g.isfinite().all()
        assert g[1] == 0 or name != "max_st"


@pytest.mark.parametrize("method", SORT_METHODS)
def test_nan_stays_in_its_row(method):
    """A NaN makes its row NaN and leaves the others alone."""
    x = numbers(3, 4)
    broken = torch.stack((x[0], torch.full((4,), NAN, dtype=torch.float64), x[2]))
    for name in ("sort", "rank"):
        actual, expected = (call(name, method, v, **({"dim": -1})) for v in (broken, x))
        close(actual[[0, 2]], expected[[0, 2]])  # fewer rows may be summed in another order
        assert actual[1].isnan().all()


def test_rows_of_large_numbers_do_not_overflow():
    """Squares of numbers beyond 1e19 overflow in float32; the row is standardized all the same."""
    x = torch.tensor([1e30, -1e30, 3e29])
    close(soft.rank(x, softness=1e-3, method="softsort"), torch.tensor([1.0, 3.0, 2.0]))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"softness": 0.0}, ValueError, "`softness` must be positive and finite, got 0.0"),
        (
            {"softness": torch.ones(3)},
            ValueError,
            r"`softness` must be a number or a tensor without dimensions, got shape \(3,\)",
        ),
        ({"mode": "c3"}, ValueError, "`mode` must be one of 'hard', 'smooth', 'c0', 'c1', 'c2'(, 'laplace')?, got 'c3'"),
        ({"method": "quick"}, ValueError, "`method` must be one of .*, got 'quick'"),
        ({"dim": 2}, IndexError, "`dim` must be from -1 to 0 for 1 dimensions, got 2"),
        ({"dim": (0,)}, TypeError, r"`dim` must be an integer or None, got \(0,\)"),
        (
            {"method": "fast_soft_sort", "gated_grad": False},
            ValueError,
            "`gated_grad` must be True for the method 'fast_soft_sort'",
        ),
    ],
)
def test_errors_name_the_argument(arguments, kind, message):
    """The error has the name, the rule and the value."""
    for name in ("max", "sort"):
        with pytest.raises(kind, match=f"{name}: {message}"):
            getattr(soft, name)(torch.ones(3), **arguments)
        with pytest.raises(kind, match=f"{name}_st: {message}"):
            getattr(fullgrad, f"{name}_st")(torch.ones(3), **arguments)


def test_errors_of_k_and_q():
    """Values of k and q outside their range, or unknown, are refused."""
    x = torch.ones(3)
    with pytest.raises(ValueError, match="topk: `k` must be at most 3, got 4"):
        soft.topk(x, 4)
    with pytest.raises(ValueError, match="topk_st: `k` must be a positive integer, got 0"):
        fullgrad.topk_st(x, 0)
    with pytest.raises(ValueError, match=r"quantile: `q` must be from 0 to 1, got 1.5"):
        soft.quantile(x, 1.5)
    with pytest.raises(ValueError, match=r"quantile_st: `interpolation` must be one of .*, got 'cubic'"):
        fullgrad.quantile_st(x, 0.5, interpolation="cubic")
    with pytest.raises(TypeError, match="quantile: `q` must be a number"):
        soft.quantile(x, "half")


STATISTICS = (
    "argmax",
    "argmedian",
    "argmin",
    "argquantile",
    "argsort",
    "max",
    "median",
    "min",
    "quantile",
    "rank",
    "sort",
    "topk",
)


@pytest.mark.parametrize("name", STATISTICS)
def test_types_and_docstring_name_the_methods(name):
    """The literals and the documented lists are those of the table of methods."""
    methods = PERMUTATION_METHODS if name.startswith("arg") else RANK_METHODS if name == "rank" else SORT_METHODS
    methods += tuple(method for method in LAPLACE_METHODS.get(name, ()) if method not in methods)
    for function in (getattr(soft, name), getattr(fullgrad, f"{name}_st")):
        assert get_args(inspect.signature(function).parameters["method"].annotation) == methods
        (lines,) = re.findall(r"^ *method: (.*(?:\n {8}.*)*)", inspect.getdoc(function), re.MULTILINE)
        assert set(re.findall(r"``\"(\w+)\"``", lines)) - {"laplace"} == set(methods)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", STATISTICS)
def test_straight_through_has_the_derivative_of_the_relaxation(name):
    """Derivatives by every method, in reverse and forward mode, are those of the relaxation; the value is hard."""
    x, given = numbers(3, 5, seed=1), {"topk": (3,), "quantile": (0.3,), "argquantile": (0.3,)}.get(name, ())
    relaxed, straight = getattr(soft, name), getattr(fullgrad, f"{name}_st")

    def first(function, **options):
        def output(x):
            y = function(x, *given, **dim, **options)
            return y if isinstance(y, torch.Tensor) else y[0]

        return output

    dim = {} if name == "median" else {"dim": -1}  # with which a median has indices, which not every method has
    for method in get_args(inspect.signature(straight).parameters["method"].annotation):
        f, g = (
            first(function, method=method, mode="laplace" if method == "lapsum" else "smooth") for function in (relaxed, straight)
        )
        y, pulled = vjp(g, x)
        expected, pull = vjp(f, x)
        equal(y, first(straight, mode="hard")(x))
        assert not y.equal(expected)
        cotangent = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
        (slope,) = pull(cotangent)
        assert slope.count_nonzero() > 2
        close(pulled(cotangent)[0], slope)
        leaf = x.clone().requires_grad_()
        close(torch.autograd.grad(g(leaf), leaf, cotangent)[0], slope)
        close(jvp(g, (x,), (x.cos(),))[1], jvp(f, (x,), (x.cos(),))[1])
    # Of a softness that learns, too, next to numbers that do not.
    softness = torch.tensor(0.2, dtype=x.dtype, requires_grad=True)
    slopes = [torch.autograd.grad(first(f, softness=softness)(x), softness, cotangent)[0] for f in (relaxed, straight)]
    assert slopes[0] != 0
    close(slopes[1], slopes[0])


@pytest.mark.parametrize("call", [soft.quantile, soft.argquantile, fullgrad.quantile_st, fullgrad.argquantile_st])
def test_median_is_no_interpolation(call):
    """The lower median is a function of its own, and its internal name is not accepted."""
    with pytest.raises(ValueError, match="`interpolation` must be one of 'linear'"):
        call(torch.arange(4.0), 0.3, interpolation="median")


# --- rows without elements --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function", [soft.sort, soft.argsort, soft.rank, fullgrad.sort_st, fullgrad.argsort_st, fullgrad.rank_st]
)
@pytest.mark.parametrize("mode", ["smooth", "hard"])
def test_rows_of_nothing(function, mode):
    """Rows without elements are sorted as by torch, with an empty gradient."""

    def first(x):
        y = function(x, 1, mode=mode)
        return y if isinstance(y, torch.Tensor) else y[0]

    x = torch.zeros(3, 0, requires_grad=True)
    y = first(x)
    assert y.shape == ((3, 0, 0) if "argsort" in function.__name__ else (3, 0))
    assert torch.autograd.grad(y.sum(), x)[0].shape == (3, 0)
    assert vmap(grad(lambda x: first(x).sum()))(torch.zeros(2, 3, 0)).shape == (2, 3, 0)


@pytest.mark.parametrize("function", [soft.quantile, fullgrad.quantile_st, fullgrad.max_st, fullgrad.median_st, fullgrad.sort_st])
def test_no_rows(function):
    """No rows give no results; torch.quantile refuses them."""
    x = torch.zeros(0, 3, requires_grad=True)
    y = function(x, 0.3, 1) if "quantile" in function.__name__ else function(x, 1)
    y = y if isinstance(y, torch.Tensor) else y[0]
    assert y.shape == ((0, 3) if "sort" in function.__name__ else (0,))
    assert torch.autograd.grad(y.sum(), x)[0].shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardizing_is_taken_back_everywhere(dtype):
    """The ends 0 and 1, which are infinitely far away, count as numbers that are 10 roundings, or 1e-10, from them."""
    least = max(1e-10, 10 * torch.finfo(dtype).eps)
    x = torch.tensor([0.0, least / 2, least, 0.25, 1.0], dtype=dtype)
    mean, deviation = torch.tensor(3.0, dtype=dtype), torch.tensor(2.0, dtype=dtype)
    rows = Rows(x, x, 0.1, "smooth", None, mean, deviation, torch.ones_like(mean))
    far = 2 * math.log((1 - least) / least)
    expected = torch.tensor([3 - far, 3 - far, 3 - far, 3 - 2 * math.log(3), 3 + far], dtype=dtype)
    torch.testing.assert_close(rows.restore(x), expected, rtol=torch.finfo(dtype).eps * 1e3 + 1e-7, atol=0)
    assert rows._replace(mean=None).restore(x) is x


@pytest.mark.parametrize("method", SORT_METHODS)
def test_several_quantiles_of_each_sample(method):
    """Quantiles have derivatives under vmap, also where rows and quantiles are not as many as samples."""
    f = lambda x, q: soft.quantile(x, q, dim=-1, method=method)  # noqa: E731
    by_q = grad(lambda q, x: f(x, q).sum())
    for rows in (2, 3, 6):
        x, q = numbers(3, rows, 6), torch.rand(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        torch.testing.assert_close(vmap(f)(x, q), torch.stack([f(a, b) for a, b in zip(x, q, strict=True)]))
        torch.testing.assert_close(vmap(by_q)(q, x), torch.stack([by_q(b, a) for a, b in zip(x, q, strict=True)]))


@pytest.mark.parametrize("n", [3, 5, 6, 7])
def test_ranks_of_a_sorting_network_of_large_numbers(n):
    """The padding of a row lies beyond its largest element in any unit."""
    torch.manual_seed(0)
    x = torch.randn(50, n) * 1e8
    found = soft.rank(x, dim=-1, method="sorting_network", standardize=False)
    torch.testing.assert_close(found, x.argsort(descending=True).argsort().to(x.dtype) + 1)


@pytest.mark.parametrize("name", ["rank", "rank_st", "argmax", "argmedian_st"])
def test_a_sorting_network_makes_no_matrix(name):
    """Ranks and the weights of one place take O(n log² n) memory, and so do their first and second derivatives."""
    n = 512
    f = getattr(fullgrad if name.endswith("_st") else soft, name)
    x = torch.randn(n, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.profiler.profile(profile_memory=True, acc_events=True) as found:
        (first,) = torch.autograd.grad(f(x, dim=-1, method="sorting_network").square().sum(), x, create_graph=True)
        torch.autograd.grad(first.square().sum(), x)
    assert max(e.cpu_memory_usage for e in found.events()) < 4 * n * n  # one matrix


@pytest.mark.parametrize("interpolation", ["linear", "lower", "nearest", "midpoint"])
def test_a_quantile_that_is_nan(interpolation):
    """As NaN among the numbers: it raises nothing, and the result is NaN."""
    q = torch.tensor([0.5, torch.nan])
    found = fullgrad.quantile_st(torch.arange(5.0), q, interpolation=interpolation)
    torch.testing.assert_close(found, torch.tensor([2.0, torch.nan]), equal_nan=True)
