"""Properties of `losses`: metrics of other packages as limits, ties, constant rows, NaN, and ranks that descent improves."""

import functools
import math
import random

import pytest
import torch
from torch.func import grad, hessian, jacrev, vmap

from fullgrad import losses, soft
from fullgrad.testing._subject import close, like

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan
METHODS = ["softsort", "neuralsort", "fast_soft_sort", "sigmoid"]
SHARP = {"softness": 1e-7, "standardize": False}


def raises(error, match):
    """`pytest.raises` of a message that begins with the name of the function."""
    return pytest.raises(error, match=f"^{match}")


def rows(*shape, seed=0):
    return like(torch.empty(shape, dtype=torch.float64), seed)


def with_ties(*shape, seed=0):
    return (rows(*shape, seed=seed) * 2).round()


# --- spearman ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_limit_is_that_of_scipy(method):
    """As the softness becomes small, ties of the target and of the prediction included."""
    stats = pytest.importorskip("scipy.stats")
    for x, y in (
        (rows(6, 9), rows(6, 9, seed=1)),
        (rows(6, 9), with_ties(6, 9, seed=1)),
        (with_ties(6, 9), with_ties(6, 9, seed=1)),
    ):
        if method == "fast_soft_sort" and x.equal(x.round()):
            continue  # its ranks of equal numbers have the mean of 1 to n as their mean, but are not those of scipy
        expected = [1 - stats.spearmanr(a, b).statistic for a, b in zip(x.numpy(), y.numpy(), strict=True)]
        found = losses.spearman(x, y, method=method, reduction="none", **SHARP)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_the_formula():
    """One minus the correlation of soft ranks with hard ranks, and its derivatives; along a dimension, and reduced."""
    x, y = rows(3, 5, 2), rows(3, 5, 2, seed=1)

    def by_hand(x):
        z = torch.sigmoid((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0))
        r = soft.rank(z, 1, softness=0.2, descending=False, standardize=False)
        q = y.argsort(1).argsort(1).double()
        r, q = r - r.mean(1, keepdim=True), q - 2
        return 1 - (r * q).sum(1) / (r.square().sum(1) * q.square().sum(1)).sqrt()

    operator = lambda x, how="none": losses.spearman(x, y, dim=1, softness=0.2, method="neuralsort", reduction=how)  # noqa: E731
    assert operator(x).shape == (3, 2)
    close(operator(x), by_hand(x))
    close(operator(x, "mean"), by_hand(x).mean())
    close(operator(x, "sum"), by_hand(x).sum())
    close(grad(lambda x: operator(x, "sum"))(x), grad(lambda x: by_hand(x).sum())(x))
    close(hessian(lambda x: operator(x, "sum"))(x), hessian(lambda x: by_hand(x).sum())(x))


def test_its_ends():
    """0 for the order of the target, 2 for its reverse."""
    y = rows(4, 7)
    close(losses.spearman(y**3, y, **SHARP), torch.tensor(0.0, dtype=torch.float64))
    close(losses.spearman(-y, y, **SHARP), torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
def test_constant_rows_have_no_correlation(method):
    """The loss is 1, the derivatives 0; other rows are not changed."""
    x, y = rows(3, 5), rows(3, 5, seed=1)
    x[0], y[1] = 0.3, -2.0
    loss = lambda x: losses.spearman(x, y, softness=1.0, method=method, reduction="none")  # noqa: E731
    assert loss(x)[:2].tolist() == [1, 1]
    g = grad(lambda x: loss(x).sum())(x)
    assert g[:2].abs().sum() == 0
    assert g[2].abs().sum() > 0
    assert g.isfinite().all()
    assert hessian(lambda x: loss(x).sum())(x).isfinite().all()
    assert losses.spearman(torch.tensor([2.0]), torch.tensor([1.0])) == 1
    assert losses.spearman(torch.tensor(2.0), torch.tensor(1.0), reduction="none").shape == ()


@pytest.mark.parametrize("function", [losses.spearman, losses.ndcg, losses.listnet, losses.lambda_loss])
def test_a_row_with_nan_is_nan(function):
    """In the prediction or in the target, also beside a constant row; other rows are not changed."""
    x, y = rows(5, 4), rows(5, 4, seed=1).abs()
    clean = function(x, y, reduction="none")
    x[0, 1], y[1, 2], x[2, 0], y[3, 3] = NAN, NAN, NAN, NAN
    y[2], x[3] = 0.0, 0.0
    found = function(x, y, reduction="none")
    assert found.isnan().tolist() == [True] * 4 + [False]
    close(found[4], clean[4])


def test_infinite_predictions_are_ranked():
    """They are the first and the last."""
    x, y = torch.tensor([INF, 0.5, -INF, 0.1], dtype=torch.float64), torch.tensor([3, 2, 0, 1])
    close(losses.spearman(x, y, softness=1e-7), torch.tensor(0.0, dtype=torch.float64))
    assert grad(losses.spearman)(x, y).isfinite().all()


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.sampled(of=2)
def test_descent_sorts(method):
    """Descent of the first loss brings a prediction into the order of its target, of the second one improves the hard metric."""
    x, y = rows(8), rows(8, seed=3)

    def descended(function):
        moved = x
        for _ in range(200):
            moved = moved - 0.5 * grad(function)(moved)
        return moved

    moved = descended(lambda x: losses.spearman(x, y, softness=1.0, method=method))
    assert torch.equal(moved.argsort(), y.argsort())
    gains = y - y.min()
    moved = descended(lambda x: losses.ndcg(x, gains, softness=1.0, method=method))
    assert exact(moved, gains) > exact(x, gains) + 0.005


# --- ndcg -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("k", [1, 4, 5, 6, None])
def test_the_formula_of_ndcg(k, standardize):
    """The discounts of soft ranks times a cut, and their derivatives; from as many elements as there are on, there is no cut."""
    x, v, s, n = rows(3, 5), rows(3, 5, seed=1).abs(), 0.2, 5

    def by_hand(x):
        deviation = x.std(1, keepdim=True, correction=0)
        z = torch.sigmoid((x - x.mean(1, keepdim=True)) / deviation) if standardize else x
        r = soft.rank(z, 1, softness=s, method="neuralsort", standardize=False)
        width = n * s / (1 if standardize else (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)).detach())
        places = torch.arange(1, n + 1).double()
        cut = lambda r: 1 if k is None or k >= n else 0.5 + torch.atan((k + 0.5 - r) / width) / math.pi  # noqa: E731
        best = v.sort(1, descending=True).values * cut(places) / torch.log2(1 + places)
        return 1 - (v * cut(r) / torch.log2(1 + r)).sum(1) / best.sum(1)

    operator = lambda x: losses.ndcg(  # noqa: E731
        x, v, k, softness=s, method="neuralsort", standardize=standardize, reduction="none"
    )
    close(operator(x), by_hand(x))
    close(grad(lambda x: operator(x).sum())(x), grad(lambda x: by_hand(x).sum())(x))
    x = x * 1e-4  # nothing is added to the variance
    close(operator(x), by_hand(x))


def exact(scores, relevance, k=None, exponential=False):
    """The definition, of one row without ties of scores."""
    gains = [2.0**v - 1 if exponential else float(v) for v in relevance.tolist()]
    order = sorted(range(len(gains)), key=lambda i: -scores[i].item())
    k = len(gains) if k is None else k
    discounted = lambda values: sum(v / math.log2(i + 2) for i, v in enumerate(values[:k]))  # noqa: E731
    best = discounted(sorted(gains, reverse=True))
    return discounted([gains[i] for i in order]) / best if best else 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [None, 1, 3, 7, 50])
def test_the_limit_is_the_definition(k, method):
    """As the softness becomes small, with ties of the relevance, and without any."""
    x, v = rows(6, 7), with_ties(6, 7, seed=1).abs()
    v[2] = 0
    for exponential in (False, True):
        gain = "exponential" if exponential else "linear"
        found = losses.ndcg(x, v, k, gain=gain, method=method, reduction="none", **SHARP)
        expected = [1 - exact(a, b, k, exponential) for a, b in zip(x, v, strict=True)]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [None, 3])
def test_the_limit_is_that_of_scikit_learn(k):
    """As the softness becomes small; its mean over rows, too."""
    metrics = pytest.importorskip("sklearn.metrics")
    x, v = rows(6, 7), with_ties(6, 7, seed=1).abs()
    expected = 1 - metrics.ndcg_score(v.numpy(), x.numpy(), k=k)
    assert losses.ndcg(x, v, k, **SHARP).item() == pytest.approx(expected, abs=1e-6)


def test_equal_scores_share_a_rank():
    """The discount is that of the mean rank; it is near the mean of the discounts, which scikit-learn has."""
    x, v = torch.zeros(3, dtype=torch.float64), torch.tensor([1, 0, 0])
    close(losses.ndcg(x, v), torch.tensor(1 - 1 / math.log2(3), dtype=torch.float64))


@pytest.mark.parametrize("k", [None, 1, 4])
def test_the_hard_mode_is_the_metric(k):
    """As in scikit-learn and scipy, of equal scores too, wherever they stand, and of masked rows; without a gradient."""
    metrics, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    x, v = with_ties(8, 9) / 3, with_ties(8, 9, seed=1).abs() + torch.eye(8, 9, dtype=torch.float64)
    x[:, 3] = x[:, 3] + 1e9  # next to which the others are equal when a row is standardized
    mask = rows(8, 9, seed=2) > -0.5
    for name, of_row, hard in (
        ("ndcg", lambda a, b: metrics.ndcg_score(b[None], a[None], k=k), lambda *a, **m: losses.ndcg(*a, k, mode="hard", **m)),
        ("spearman", lambda a, b: stats.spearmanr(a, b).statistic, lambda *a, **m: losses.spearman(*a, mode="hard", **m)),
    ):
        expected = torch.tensor([1 - of_row(a.numpy(), b.numpy()) for a, b in zip(x, v, strict=True)], dtype=torch.float64)
        close(hard(x, v, reduction="none"), expected)
        close(hard(x.flip(-1), v.flip(-1), reduction="none"), expected)
        close(hard(x.float(), v.float(), reduction="none").double(), expected, atol=1e-6, rtol=1e-6)
        close(vmap(hard)(x, v), expected)
        alone = [1 - of_row(a[m].numpy(), b[m].numpy()) for a, b, m in zip(x, v, mask, strict=True)]
        filled = torch.where(mask, x, torch.nan)
        close(hard(filled, v, mask=mask, reduction="none"), torch.tensor(alone, dtype=torch.float64))
        assert grad(lambda x: hard(x, v))(x).abs().sum() == 0, name  # noqa: B023


def test_rows_without_a_gain():
    """The loss is 1 and its derivatives 0, of both orders; other rows are not changed."""
    x, v = rows(2, 4), torch.tensor([[0, 0, 0, 0], [1, 0, 2, 0]])
    assert losses.ndcg(x, v, reduction="none")[0] == 1
    g = grad(losses.ndcg)(x, v)
    assert g[0].abs().sum() == 0
    assert g[1].abs().sum() > 0
    assert hessian(losses.ndcg)(x, v).isfinite().all()


def test_elements_that_fill_a_row():
    """With the score minus infinity and the relevance 0 they leave the sharp loss as it is."""
    x, v = rows(3, 5), with_ties(3, 5, seed=1).abs()
    filled = torch.cat((x, torch.full((3, 2), -INF)), -1), torch.cat((v, torch.zeros(3, 2)), -1)
    torch.testing.assert_close(losses.ndcg(*filled, softness=1e-6), losses.ndcg(x, v, softness=1e-6), rtol=1e-6, atol=1e-6)
    assert grad(losses.ndcg)(*filled).isfinite().all()


# --- both -------------------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("function", [losses.spearman, losses.ndcg])
ALL = pytest.mark.parametrize("function", [losses.spearman, losses.ndcg, losses.listnet, losses.lambda_loss])
ARGUMENTS = {losses.spearman: ("prediction", "target")}


@ALL
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(function, dtype):
    """Half precision is computed in float32; targets may have any dtype, integers too."""
    x, y = rows(3, 6).to(dtype), with_ties(3, 6, seed=1).abs()
    expected = function(x.double(), y)
    tolerance = {2: 1e-2, 4: 1e-4, 8: 1e-9}[dtype.itemsize]
    for target in (y, y.to(dtype), y.long()):
        leaf = x.clone().requires_grad_()
        found = function(leaf, target)
        assert found.dtype == dtype
        torch.testing.assert_close(found.detach().double(), expected, rtol=tolerance, atol=tolerance)
        (g,) = torch.autograd.grad(found, leaf)
        torch.testing.assert_close(g.double(), grad(function)(x.double(), y), rtol=0.05, atol=max(tolerance, 1e-3))
    assert function(y.long(), y).dtype == torch.get_default_dtype()


@ALL
def test_per_sample(function):
    """Rows, samples, views and dimensions are the same."""
    x, y = rows(4, 6), rows(4, 6, seed=1).abs()
    loop = torch.stack([function(a, b) for a, b in zip(x, y, strict=True)])
    close(function(x, y, reduction="none"), loop)
    close(vmap(function)(x, y), loop)
    close(vmap(function, (0, None))(x, y[0]), torch.stack([function(a, y[0]) for a in x]))
    close(vmap(function, (None, 0))(x[0], y), torch.stack([function(x[0], b) for b in y]))
    close(function(x.T, y.T, dim=0, reduction="none"), loop)
    assert function(x[:0], y[:0], reduction="none").shape == (0,)


@BOTH
def test_the_target_gets_no_gradient_and_the_softness_does(function):
    """A target is a constant; a softness that is a tensor learns."""
    x, y = rows(6).requires_grad_(), rows(6, seed=1).abs().requires_grad_()
    softness = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    loss = function(x, y, softness=softness)
    to_x, to_y, to_softness = torch.autograd.grad(loss, (x, y, softness), allow_unused=True)
    assert to_y is None
    assert to_x.abs().sum() > 0
    h = 1e-5
    by_difference = (function(x, y, softness=0.3 + h) - function(x, y, softness=0.3 - h)) / (2 * h)
    torch.testing.assert_close(to_softness, by_difference.detach(), rtol=1e-5, atol=1e-8)


@ALL
def test_errors_name_the_rule(function):
    """The name, the rule, and the value found."""
    name, (first, second) = function.__name__, ARGUMENTS.get(function, ("scores", "relevance"))
    x = torch.ones(2, 3)
    with raises(TypeError, f"{name}: `{first}` must be a tensor, got a value of type list"):
        function([1.0], x)
    with raises(TypeError, rf"{name}: `{second}` must be a real tensor, got dtype torch.bool: pass `{second}.float\(\)`"):
        function(x, x > 0)
    with raises(ValueError, rf"{name}: `{second}` must have the shape \(2, 3\) of `{first}`, got \(3,\)"):
        function(x, x[0])
    with raises(ValueError, rf"{name}: `{first}` must have at least one element along `dim`, got shape \(2, 0\)"):
        function(x[:, :0], x[:, :0])
    with raises(IndexError, f"{name}: `dim` must be from -2 to 1 for 2 dimensions, got 2"):
        function(x, x, dim=2)
    with raises(TypeError, f"{name}: `dim` must be an integer, got None"):
        function(x, x, dim=None)
    with raises(ValueError, f"{name}: `reduction` must be one of 'none', 'mean', 'sum', got 'max'"):
        function(x, x, reduction="max")
    with raises(TypeError, f"{name}: `mask` must be a bool tensor, got dtype torch.float32"):
        function(x, x, mask=x)
    with raises(ValueError, rf"{name}: `mask` must have the shape \(2, 3\) of `{first}`, got \(3,\)"):
        function(x, x, mask=x[0] > 0)
    with raises(ValueError, rf"{name}: `weight` must broadcast to the shape \(2,\) of `{first}` without `dim`, got shape \(3,\)"):
        function(x, x, weight=x[0])
    with raises(ValueError, rf"{name}: `weight` must not be negative, got -1.0"):
        function(x, x, weight=-x[:, 0])


@BOTH
def test_errors_of_soft_ranks(function):
    """Their softness and method."""
    name, x = function.__name__, torch.ones(2, 3)
    with raises(ValueError, f"{name}: `softness` must be positive and finite, got 0"):
        function(x, x, softness=0)
    with raises(ValueError, f"{name}: `method` must be one of .*, got 'bubble'"):
        function(x, x, method="bubble")
    with raises(ValueError, rf"{name}: `method` must be one of 'sigmoid', 'lapsum' with a `mask`, got 'neuralsort'"):
        function(x, x, mask=x > 0, method="neuralsort")


def test_errors_of_gains():
    """The arguments of losses of gains."""
    x = torch.ones(2, 3)
    with raises(ValueError, "ndcg: `k` must be a positive integer, got 0"):
        losses.ndcg(x, x, 0)
    with raises(ValueError, "ndcg: `gain` must be one of 'linear', 'exponential', got 'log'"):
        losses.ndcg(x, x, gain="log")
    with raises(ValueError, "lambda_loss: `scheme` must be one of 'ndcg2', 'lambdarank', got 'ranknet'"):
        losses.lambda_loss(x, x, scheme="ranknet")
    padded = torch.tensor([[2, 0, -1], [1, -1, -1]])
    for function in (losses.ndcg, losses.lambda_loss):
        name = function.__name__
        with raises(
            ValueError, f"{name}: `relevance` must not be negative, got -1 among its elements; `mask=relevance >= 0` leaves"
        ):
            function(x, padded)
        assert function(x, padded, mask=padded >= 0).isfinite()
        # Where elements cannot be read the row is NaN.
        assert vmap(function)(x, torch.tensor([[2, 0, -1], [1, 0, 0]])).isnan().tolist() == [True, False]


@pytest.mark.parametrize("mode", ["smooth", "c0", "c1"])
def test_ranks_lie_between_one_and_n(mode):
    """An element whose weights underflow has its hard rank: no rank is below 1, and no gain is divided by a logarithm of 1."""
    for n in (5, 300):
        x = rows(20, n, seed=3).float()
        found = soft.rank(x, -1, mode=mode)
        assert (found >= 1 - 1e-4).all()
        assert (found <= n + 1e-2).all()
        assert grad(lambda x: losses.ndcg(x, torch.ones(20, n), mode=mode))(x).abs().max() < 10  # noqa: B023


@pytest.mark.parametrize("loss", [losses.spearman, losses.ndcg])
def test_the_unit_of_predictions_does_not_matter(loss):
    """Nor does it where the range passes a power of 2, or overflows."""
    x, y = rows(3, 6), rows(3, 6, seed=1).abs()
    x = x / (x.amax(1, keepdim=True) - x.amin(1, keepdim=True))
    for unit in (1e-300, 1e-12, 1e-3, 1 - 1e-12, 1 + 1e-12, 1e12, 1.7e308):
        close(loss(x * unit, y), loss(x, y), rtol=1e-10, atol=1e-10)
        close(grad(loss)(x * unit, y) * unit, grad(loss)(x, y), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("k", [None, 1, 2])
@pytest.mark.parametrize("standardize", [False, True])
def test_a_constant_row_has_the_gradient_of_its_ranks(k, standardize):
    """Of scores that are all equal, as at the start of training, in order of relevance; no cut is as wide as they are close."""
    relevance = torch.tensor([3.0, 0.0, 1.0])
    slope = grad(lambda x: losses.ndcg(x, relevance, k, standardize=standardize))(torch.zeros(3))
    assert slope.isfinite().all()
    assert standardize or slope[0] < slope[2] < slope[1]


@pytest.mark.parametrize("relevance", [1e-10, 1e-4, 1.0])
def test_small_gains_keep_their_digits(relevance):
    """``2**v - 1`` is v log 2 for a small v."""
    x, v = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]) * relevance
    expected = losses.ndcg(x.double(), v.double(), gain="exponential")
    close(losses.ndcg(x, v, gain="exponential"), expected.float())
    if relevance < 1e-6:
        close(expected.float(), losses.ndcg(x, v))


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("gain", ["linear", "exponential"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_unit_of_gains_does_not_matter(dtype, gain, k):
    """Sums of gains over- and underflow in none: relevance times a constant, or with exponential gains one that is added."""
    x = rows(5).float()
    v = torch.tensor([2.0, 1.0, 0.5, 1.5, 2.0], dtype=dtype)
    ends = {torch.float32: (1e-40, 1.5e38), torch.float64: (1e-310, 8e307)}[dtype]
    one, *others = [v * c for c in (1, *ends)] if gain == "linear" else [v + c for c in (40, 127, 1000, 1e5)]
    f = functools.partial(losses.ndcg, k=k, gain=gain)
    for other in others:
        close(f(x, other), f(x, one), rtol=1e-4, atol=0)
        close(grad(f)(x, other), grad(f)(x, one), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("loss", [losses.spearman, losses.ndcg])
def test_the_mode_laplace(loss):
    """The mode laplace has the methods of the ranks."""
    x, y = rows(3, 6), rows(3, 6, seed=1).abs()
    close(loss(x, y, mode="laplace", method="lapsum"), loss(x, y, mode="laplace", method="sigmoid"))


# --- the default trains -----------------------------------------------------------------------------------------------


def metric(function, x, y, k=None):
    """The hard metric of each row, 1 for the right order: a loop in plain Python, or scipy's."""
    if function is losses.ndcg:
        return [exact(a, b, k) for a, b in zip(x, y, strict=True)]
    stats = pytest.importorskip("scipy.stats")
    return [stats.spearmanr(a.numpy(), b.numpy()).statistic for a, b in zip(x, y, strict=True)]


@BOTH
@pytest.mark.parametrize("n", [2, 3, 10, 200])
def test_the_default_sorts(function, n):
    """Free scores in units from 1e-2 to 1e2 end in the right order, whatever the first one is."""
    unit = torch.tensor([1e-2, 1.0, 1e2, 1.0]).repeat(2).unsqueeze(-1)
    x, y = like(torch.empty(8, n), n), like(torch.empty(8, n), 1)
    y = (2 * y).abs().round() if function is losses.ndcg else y
    y[:, 0] = y[:, 0] + 1  # some gain
    x.requires_grad_()
    optimizer = torch.optim.Adam([x], 0.1, eps=1e-30)
    for _ in range(100):
        optimizer.zero_grad()
        function(x * unit, y).backward()
        optimizer.step()
    assert min(metric(function, x.detach() * unit, y)) > 0.999


@BOTH
@pytest.mark.long
@pytest.mark.parametrize("n", [5000, 50_000])
def test_the_default_improves_long_rows(function, n):
    """In steps that take milliseconds, without a matrix of pairs."""
    x, y = like(torch.empty(1, n), 3), like(torch.empty(1, n), 1)
    y = (2 * y).abs().round() if function is losses.ndcg else y
    (before,) = metric(function, x, y)
    x.requires_grad_()
    optimizer = torch.optim.Adam([x], 0.1, eps=1e-30)
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(fits(n), lambda v: v):
            loss = function(x, y)
        loss.backward()
        optimizer.step()
    (after,) = metric(function, x.detach(), y)
    assert 1 - after < 0.3 * (1 - before)


def fits(n):
    """What is saved is of the size of the row."""

    def pack(v):
        assert v.numel() <= 4 * n
        return v

    return pack


@BOTH
def test_two_elements_have_a_derivative(function):
    """Of the sign that brings them into order, and the same in every unit; one that is relative to the spread would be 0."""
    y = torch.tensor([2.0, 1.0])
    for x in ([0.3, 0.9], [0.9, 0.3], [3e4, 9e4]):
        g = grad(function)(torch.tensor(x), y) * max(x)
        assert g[0] < -1e-3
        assert g[1] > 1e-3


@pytest.mark.parametrize("standardize", [True, False])
def test_the_correlation_of_two_elements_does_not_depend_on_the_softness(standardize):
    """Nor does the derivative by it say so, of masked rows either; that by the prediction is the one of a number."""
    x, y, softness = torch.tensor([[0.3, 0.9, 0.4], [0.1, 0.2, 0.9]]), torch.tensor([[2.0, 1.0, 3.0]] * 2), torch.tensor(0.7)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    f = lambda x, s, m: losses.spearman(x, y, mask=m, softness=s, standardize=standardize, reduction="none")  # noqa: E731
    both, of_three = (jacrev(f, 1)(x, softness, m) for m in (mask, None))
    assert both[0] == 0
    assert both[1] == of_three[1] != 0
    assert grad(lambda s: losses.spearman(x[:, :2], y[:, :2], softness=s, standardize=standardize))(softness) == 0
    close(*(grad(lambda x: f(x, s, mask).sum())(x) for s in (softness, 0.7)))  # noqa: B023


@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("fraction", [0.02, 0.1])
def test_every_row_with_a_gain_has_a_gradient(n, fraction):
    """At k = 10 and 1, however far below the cut: each relevant element that is not among the first k is drawn upwards."""
    x = like(torch.empty(32, n), n)
    v = (torch.rand(32, n, generator=torch.Generator().manual_seed(1)) < fraction).float()
    v[:, 0] = 1
    below = x.argsort(-1, descending=True).argsort(-1) >= 10
    for k, softness in ((10, None), (1, None), (10, 0.1)):
        g = grad(lambda x: losses.ndcg(x, v, k, softness=softness, reduction="sum"))(x)  # noqa: B023
        assert (g[(v > 0) & below] < 0).all()
        assert (g.abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("k", [10, None])
def test_training_improves_the_metric_of_new_rows(k):
    """A linear model of noisy, graded relevance, few of it not 0: the metric at 10 of rows that it has not seen."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(8, generator=generator)
    features = torch.randn(48, 100, 8, generator=generator)
    noise = 0.5 * torch.randn(48, 100, generator=generator)
    relevance = ((features @ weights / weights.norm() + noise).unsqueeze(-1) > torch.tensor([1.5, 2.0, 2.5])).sum(-1).float()
    w = torch.randn(8, generator=generator).requires_grad_()

    def new():
        return sum(metric(losses.ndcg, features[32:] @ w.detach(), relevance[32:], 10)) / 16

    before, optimizer = new(), torch.optim.Adam([w], 0.1)
    for _ in range(40):
        optimizer.zero_grad()
        losses.ndcg(features[:32] @ w, relevance[:32], k).backward()
        optimizer.step()
    best = sum(metric(losses.ndcg, features[32:] @ weights, relevance[32:], 10)) / 16
    assert before < best - 0.3
    assert new() > best - 0.05


# --- masks and weights ------------------------------------------------------------------------------------------------


def lengths():
    """Rows of different length, and a mask that scatters their elements among others, which are of any kind."""
    chosen = random.Random(0)
    mask = torch.tensor([[i in chosen.sample(range(9), m) for i in range(9)] for m in (0, 1, 2, 3, 5, 9)])
    mask[:, 0] = torch.tensor([False, True, True, True, True, True])
    x, y = rows(6, 9), with_ties(6, 9, seed=1).abs()
    other = torch.tensor([NAN, INF, -INF, 1e300, -1.0, 5.0, 0.0, -1e300, 7.0], dtype=torch.float64)
    return torch.where(mask, x, other), torch.where(mask, y, other.flip(-1)), mask


@BOTH
@pytest.mark.parametrize(
    "options",
    [{}, {"softness": 0.1}, {"method": "lapsum"}, {"mode": "smooth"}, {"mode": "c1"}, {"standardize": False}, {"mode": "hard"}],
    ids=str,
)
def test_a_masked_row_is_the_row_without_the_others(function, options):
    """Value and derivatives; the others have the gradient 0, and a row without an element has the loss 0."""
    x, y, mask = lengths()
    kinds = [options] if function is losses.spearman else [options, {"k": 2, **options}]
    for kind in kinds:
        found = function(x, y, mask=mask, reduction="none", **kind)
        g = grad(lambda x: function(x, y, mask=mask, reduction="sum", **kind))(x)  # noqa: B023
        assert found[0] == 0
        assert (g[~mask] == 0).all()
        for i in range(1, 6):
            a, b = x[i][mask[i]], y[i][mask[i]]
            close(found[i], function(a, b, **kind))
            close(g[i][mask[i]], grad(lambda a: function(a, b, **kind))(a))  # noqa: B023
        close(function(x, y, mask=mask, **kind), found[1:].mean())


@ALL
def test_masks_under_transforms(function):
    """A mask per sample, shared ones, along another dimension; second derivatives; a batch of empty rows is 0."""
    x, y, mask = lengths()
    found = function(x, y, mask=mask, reduction="none")
    call = lambda x, y, mask: function(x, y, mask=mask)  # noqa: E731
    close(vmap(call)(x, y, mask), found)
    a, b = rows(6, 9), rows(6, 9, seed=1).abs()
    close(vmap(call, (0, 0, None))(a, b, mask[4]), function(a, b, mask=mask[4].expand(6, 9), reduction="none"))
    close(
        vmap(call, (None, None, 0))(a[0], b[0], mask),
        function(a[:1].expand(6, 9), b[:1].expand(6, 9), mask=mask, reduction="none"),
    )
    close(function(x.T, y.T, mask=mask.T, dim=0, reduction="none"), found)
    h = hessian(lambda x: function(x, y[4], mask=mask[4]))(x[4])
    kept = mask[4]
    close(h[kept][:, kept], hessian(lambda x: function(x, y[4][kept]))(x[4][kept]))
    leaf = x[:1].clone().requires_grad_()
    empty = function(leaf, y[:1], mask=mask[:1])
    empty.backward()
    assert empty == 0
    assert (leaf.grad == 0).all()


@ALL
def test_weights_of_rows(function):
    """Each loss times its weight; the mean is that with the weights, from which empty rows are left out."""
    x, y, mask = lengths()
    weight = torch.tensor([3.0, 1.0, 0.0, 2.0, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    plain = function(x, y, mask=mask, reduction="none")
    close(function(x, y, mask=mask, weight=weight, reduction="none"), weight * plain)
    close(function(x, y, mask=mask, weight=weight, reduction="sum"), (weight * plain).sum())
    mean = function(x, y, mask=mask, weight=weight)
    close(mean, (weight * plain).sum() / weight[1:].sum())
    (g,) = torch.autograd.grad(mean, weight)
    close(g[1:], ((plain - mean) / weight[1:].sum())[1:].detach())
    close(function(x, y, mask=mask, weight=torch.tensor(2.0)), plain[1:].mean())
    assert function(x, y, mask=mask, weight=torch.zeros(6)) == 0


# --- surrogates -------------------------------------------------------------------------------------------------------

SURROGATES = pytest.mark.parametrize("function", [losses.listnet, losses.lambda_loss])


def test_the_formula_of_listnet():
    """The cross entropy of two softmaxes; least where scores are the relevance plus a number."""
    x, y = rows(4, 6), with_ties(4, 6, seed=1).abs()
    found = losses.listnet(x, y, reduction="none")
    close(found, torch.nn.functional.cross_entropy(x, y.softmax(-1), reduction="none"))
    close(grad(losses.listnet)(x, y), (x.softmax(-1) - y.softmax(-1)) / 4)
    close(grad(losses.listnet)(y + 3, y), torch.zeros(4, 6, dtype=torch.float64))


@pytest.mark.parametrize("scheme", ["ndcg2", "lambdarank"])
@pytest.mark.parametrize("gain", ["linear", "exponential"])
def test_the_formula_of_lambda_loss(scheme, gain):
    """Pair by pair, in Python's numbers: equal scores stand in the order of the row, and equal relevance makes no pair."""
    x, y = with_ties(7), with_ties(7, seed=1).abs()
    discount = lambda r: 1 / math.log2(1 + r)  # noqa: E731
    gains = y.tolist() if gain == "linear" else [2**v - 1 for v in y.tolist()]
    order = sorted(range(7), key=lambda i: -x[i].item())
    total = 0.0
    for i in range(7):
        for j in range(7):
            r, s = order.index(i) + 1, order.index(j) + 1
            low, high = (abs(r - s), abs(r - s) + 1) if scheme == "ndcg2" else (r, s)
            if y[i] > y[j]:
                step = abs(discount(low) - discount(high)) * (gains[i] - gains[j])
                total += step * math.log2(1 + math.exp(x[j].item() - x[i].item()))
    total /= sum(g * discount(r) for r, g in enumerate(sorted(gains, reverse=True), 1))
    close(losses.lambda_loss(x, y, gain=gain, scheme=scheme), torch.tensor(total, dtype=torch.float64))


def test_lambdarank_weights_a_pair_by_its_change_of_ndcg():
    """As the metric itself says, of a row in which the two have changed places."""
    x, y = rows(7), with_ties(7, seed=1).abs()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(7):
        for j in range(7):
            if y[i] > y[j]:
                swapped = x.clone()
                swapped[i], swapped[j] = x[j], x[i]
                total += abs(exact(swapped, y) - exact(x, y)) * torch.log2(1 + torch.exp(x[j] - x[i]))
    close(losses.lambda_loss(x, y, scheme="lambdarank"), total)


@SURROGATES
def test_a_masked_row_of_a_surrogate_is_the_row_without_the_others(function):
    """Value and derivatives; numbers that are masked may be anything, and a row without an element has the loss 0."""
    x, y, mask = lengths()
    x, y = torch.where(mask, x, NAN), torch.where(mask, y, -1.0)
    found = function(x, y, mask=mask, reduction="none")
    g = grad(lambda x: function(x, y, mask=mask, reduction="sum"))(x)
    assert found[0] == 0
    assert (g[~mask] == 0).all()
    for i in range(1, 6):
        a, b = x[i][mask[i]], y[i][mask[i]]
        close(found[i], function(a, b))
        close(g[i][mask[i]], grad(function)(a, b))


def test_infinite_scores_of_surrogates():
    """Minus infinity is the last place: without relevance it costs nothing, and its gradient is finite."""
    x, y = torch.tensor([1.0, -INF, 0.0], dtype=torch.float64), torch.tensor([2, 0, 1])
    assert grad(losses.lambda_loss)(x, y).isfinite().all()
    close(losses.listnet(x, y.double().masked_fill(y == 0, -INF)), losses.listnet(x[[0, 2]], y[[0, 2]]))


@pytest.mark.parametrize("scheme", ["ndcg2", "lambdarank"])
def test_weights_of_far_places_keep_their_digits(scheme):
    """In float32 a row of 3,000 elements has the gradient of float64: neighboring discounts differ in their last digits."""
    x, y = rows(3000), with_ties(3000, seed=1).abs()
    expected = grad(losses.lambda_loss)(x.float().double(), y, scheme=scheme)
    found = grad(losses.lambda_loss)(x.float(), y.float(), scheme=scheme)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-6 * expected.abs().max().item())
