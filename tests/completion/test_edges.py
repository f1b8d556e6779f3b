"""Edges at which formulas might differ from torch inside `completing`: bounds, infinities, nothing at all, wrong arguments."""

import itertools
import math
import time
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import fullgrad
from fullgrad._dispatch import pytree
from fullgrad.completion import _completing
from fullgrad.completion._registry import BACKWARDS
from tests.completion.test_completing import CALLS, seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
X = torch.arange(8.0).reshape(2, 4)
LONGS = torch.zeros(0, dtype=torch.long)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_grids_that_end_on_bounds(padding, align):
    """The identity's gradient is torch's, with and without a graph: what is clipped has no slope, nor has the bound."""
    image, weight = [torch.sin(torch.arange(16.0, dtype=torch.float64) * k).reshape(1, 1, 4, 4) for k in (1, 2)]

    def loss(theta):
        grid = F.affine_grid(theta, (1, 1, 4, 4), align_corners=align)
        return (F.grid_sample(image, grid, align_corners=align, padding_mode=padding) * weight).sum()

    theta = torch.eye(2, 3, dtype=torch.float64)[None]
    expected = grad(loss)(theta)
    with fullgrad.completing():
        leaf = theta.clone().requires_grad_()
        for found in (
            grad(loss)(theta),
            *[torch.autograd.grad(loss(leaf), leaf, create_graph=graph)[0] for graph in (True, False)],
        ):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids_that_are_no_numbers(padding, mode, value):
    """They have torch's own values in a batch, too, by each kind of dimensions, and a gradient by the image that is theirs."""
    f = lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=False)  # noqa: E731
    grid, x = torch.zeros(2, 1, 1, 3, 2), torch.stack([X, X.sin()]).reshape(2, 1, 1, 2, 4)
    grid[1] = torch.tensor([[value, 0.3], [0.3, value], [value, value]])
    expected = torch.stack([f(a, b) for a, b in zip(x, grid, strict=True)])
    with fullgrad.completing():
        for i, j in itertools.product((0, 2, -1), (0, 3, -1)):
            found = vmap(f, in_dims=(i, j))(x.movedim(0, i), grid.movedim(0, j))
            torch.testing.assert_close(found, expected, equal_nan=True)
        slopes = vmap(grad(lambda x, g: f(x, g).nan_to_num(0, 0, 0).sum()))(x, grid)
    torch.testing.assert_close((slopes * x).sum((1, 2, 3, 4)), expected.nan_to_num(0, 0, 0).sum((1, 2, 3, 4)))  # it is linear


GRIDS = [("bilinear", "zeros"), *itertools.product(("nearest", "bicubic"), ("zeros", "border", "reflection"))]


@pytest.mark.parametrize(("mode", "padding"), GRIDS)
@pytest.mark.parametrize("align", [True, False])
def test_gradients_at_grids_that_are_no_numbers(mode, padding, align):
    """They are torch's own, NaN where these are; torch crashes there in other cases."""
    places = [
        p for p in itertools.product((math.nan, math.inf, -math.inf, 0.2, -1.7), repeat=2) if not all(map(math.isfinite, p))
    ]
    f = lambda x, g: (F.grid_sample(x, g, mode, padding, align) * torch.tensor([1.0, 2.0]).reshape(2, 1, 1)).sum()  # noqa: E731
    for place in places:
        x, g = torch.stack([X, X.sin()])[None, :, :3], torch.tensor([[[place, (0.1, -0.3)]]])
        leaves = [v.clone().requires_grad_() for v in (x, g)]
        expected = torch.autograd.grad(f(*leaves), leaves)
        with fullgrad.completing():
            for found in (
                grad(f, (0, 1))(x, g),
                tuple(v[0] for v in vmap(grad(f, (0, 1)))(x[None], g[None])),
            ):
                torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("width", [1, 3, 20])
@pytest.mark.parametrize(
    "function", [lambda a, b: torch.cdist(a, b, p=math.inf), lambda a, b: F.pdist(torch.cat([a, b]), p=math.inf)]
)
def test_a_largest_difference_that_is_no_number(function, width):
    """Its gradient is torch's own: NaN in its column for pairs of two batches, and in its row within one."""
    f = lambda a, b: function(a, b).sum()  # noqa: E731
    for column in {0, width // 2, width - 1}:
        a, b = seeded(2, width), seeded(2, width).cos()
        a[1, column] = math.nan
        expected = grad(f, (0, 1))(a, b)
        with fullgrad.completing():
            torch.testing.assert_close(grad(f, (0, 1))(a, b), expected, equal_nan=True)
            found = vmap(grad(f, (0, 1)))(a[None], b[None])
            torch.testing.assert_close(tuple(v[0] for v in found), expected, equal_nan=True)


def test_infinite_positions_have_no_largest_difference():
    c = torch.tensor([[0.1, 0.2, 0.3], [math.inf, 0.0, 1.0]])
    f = lambda c: torch.cdist(c, c.flip(0), p=math.inf).sum()  # noqa: E731
    expected = grad(f)(c)
    with fullgrad.completing():
        found = grad(f)(c)
    assert found[1].isnan().tolist() == expected[1].isnan().tolist() == [True, False, False]
    torch.testing.assert_close(found[1, 1:], expected[1, 1:])


MOST = 2**24 + 1  # no number of float32


@pytest.mark.parametrize("reduce", ["mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool])
def test_reductions_of_integers_at_indices(reduce, dtype):
    """They have no derivative, and the numbers of torch to the last digit: a mean is rounded down, and a sum wraps around."""
    index, source = torch.tensor([0, 0, 1]), torch.tensor([[2, -5, 9], [MOST, -9, 3]]).to(dtype)
    for numbers, include_self in itertools.product(([-7, 5], [MOST, -MOST]), (True, False)):
        x = torch.tensor([numbers, numbers[::-1]]).to(dtype)
        f = lambda x, v, s=include_self: x.index_reduce(0, index, v, reduce, include_self=s)  # noqa: E731
        try:
            right = torch.stack([f(*v) for v in zip(x, source, strict=True)])
        except RuntimeError:
            continue  # torch has no such kernel
        with fullgrad.completing():
            found = vmap(f)(x, source)
        assert torch.equal(found, right)
        assert found.dtype == dtype


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_of_nothing(reduce, include_self):
    """An empty index leaves everything as it is."""
    calls = (
        lambda x: x.index_reduce(0, LONGS, x[:0], reduce, include_self=include_self),
        lambda x: x.scatter_reduce(0, LONGS.reshape(0, 1).expand(0, 4), x[:0], reduce, include_self=include_self),
    )
    with fullgrad.completing():
        for f in calls:
            assert torch.equal(vmap(f)(X[None])[0], X)
            assert torch.equal(grad(lambda x: f(x).sum())(X), torch.ones(2, 4))  # noqa: B023


@pytest.mark.parametrize(("a", "b"), [(math.inf, 1.0), (1.0, math.inf), (math.inf, -math.inf), (-math.inf, -2.0), (3.0, 3.0)])
def test_infinite_logarithms(a, b):
    """Sums of exponentials with an infinite one have torch's gradients, and second derivatives of 0."""
    x = torch.tensor([a, b], dtype=torch.float64)
    f = lambda x: torch.logaddexp(x[0], x[1])  # noqa: E731
    expected = grad(f)(x)
    with fullgrad.completing():
        torch.testing.assert_close(grad(f)(x), expected)
        if math.isinf(a) or math.isinf(b):
            assert torch.equal(hessian(f)(x), torch.zeros(2, 2, dtype=torch.float64))


WRONG_ARGUMENTS = {
    "another normalized shape": (lambda x: F.layer_norm(x, (7,)), X),
    "a weight of one": (lambda x: nn.LayerNorm(1)(x), X),
    "a matrix that is not square": (torch.linalg.det, X),
    "an odd size": (lambda x: F.glu(x[:, :3]), X),
    "an index beyond": (lambda x: x.scatter_reduce(0, torch.full((1, 4), 9), x[:1], "prod"), X),
    "an index below": (lambda x: x.index_reduce(0, torch.tensor([-1]), x[:1], "amax"), X),
    "a source that is too short": (lambda x: x.index_reduce(0, torch.tensor([0, 1]), x[:1], "prod"), X),
    "a row below": (lambda x: F.embedding_bag(torch.tensor([[-1, 1]]), x, mode="mean"), X),
    "a bag beyond": (lambda x: F.embedding_bag(torch.tensor([0]), x, torch.tensor([0, 3])), X),
    "a first bag that does not begin at 0": (lambda x: F.embedding_bag(torch.tensor([0, 1]), x, torch.tensor([1, 2])), X),
    "a label below": (lambda x: F.multilabel_margin_loss(x[0], torch.tensor([-2, 0, 1, -1])), X),
    "a negative norm": (lambda x: torch.cdist(x, x, p=-1), X),
    "a threshold of 0": (lambda x: F.huber_loss(x, x + 1, delta=0), X),
    "no factor": (lambda x: torch.mvlgamma(x + 9, 0), X),
    "two dtypes": (lambda x: F.grid_sample(x.reshape(1, 1, 2, 4).double(), torch.zeros(1, 1, 1, 2), align_corners=True), X),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_what_torch_refuses_is_refused(name):
    """Also under a transform, where a formula might compute a number."""
    f, x = WRONG_ARGUMENTS[name]
    with fullgrad.completing():
        for run in (grad(lambda x: f(x).sum()), lambda x: jvp(f, (x,), (x,))):
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                run(x)


def test_nothing_to_attend_to():
    """Queries without numbers, rows of distances without columns, bags without rows, and no data."""
    q = torch.empty(1, 2, 3, 0)
    with fullgrad.completing():
        value = grad(lambda v: F.scaled_dot_product_attention(q, q, v).sum())(torch.ones(1, 2, 3, 4))
        torch.testing.assert_close(value, torch.ones(1, 2, 3, 4))
        assert grad(lambda x: torch.cdist(x, x, p=math.inf).sum())(torch.empty(2, 0)).shape == (2, 0)
        bags = grad(lambda w: F.embedding_bag(LONGS, w, torch.tensor([0, 0]), mode="max").sum())(X)
        assert torch.equal(bags, torch.zeros(2, 4))
        meta = grad(lambda q: F.scaled_dot_product_attention(q, q, q).sum())(torch.empty(1, 2, 5, 4, device="meta"))
        assert meta.shape == (1, 2, 5, 4)


def test_long_attention_is_by_blocks(monkeypatch):
    """Blocks have the values and derivatives of the whole, with masks, for causal rows, and for groups of queries."""
    from fullgrad.completion import _attention

    q = torch.sin(torch.arange(2 * 40 * 2, dtype=torch.float64)).reshape(1, 2, 40, 2)
    mask = torch.cos(torch.arange(1600.0, dtype=torch.float64)).reshape(40, 40)
    calls = {
        "plain": lambda q: F.scaled_dot_product_attention(q, q, q),
        "causal": lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "mask": lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask * q[0, 0, :, :1]),
        "bool mask": lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask > 0.9),
        "groups": lambda q: F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], enable_gqa=True),
    }
    for name, f in calls.items():
        g = lambda q: f(q).sin().sum()  # noqa: B023, E731
        found = []
        with fullgrad.completing():
            for whole in (1024, 8):
                monkeypatch.setattr(_attention, "_WHOLE", whole)
                products = jvp(grad(g), (q,), (q,))[1], grad(lambda q: jvp(g, (q,), (q,))[1])(q)  # noqa: B023
                leaf = q.clone().requires_grad_()
                (slope,) = torch.autograd.grad(g(leaf), leaf, create_graph=True)
                found.append([*products, *torch.autograd.grad((slope * q).sum(), leaf)])
        torch.testing.assert_close(found[0], found[1], msg=name)


def test_operators_in_place():
    """Those that change their input have the derivatives of those that do not."""
    x = torch.tensor([0.0, 0.5, 2.0, 0.0])
    calls = {
        nn.Hardsigmoid(inplace=True): F.hardsigmoid,
        lambda x: x.cumprod_(0): lambda x: x.cumprod(0),
        lambda x: x.scatter_reduce_(0, torch.tensor([0, 0]), x[2:].clone(), "prod"): lambda x: x.scatter_reduce(
            0, torch.tensor([0, 0]), x[2:], "prod"
        ),
        lambda x: x.index_reduce_(0, torch.tensor([0, 0]), x[2:].clone(), "mean"): lambda x: x.index_reduce(
            0, torch.tensor([0, 0]), x[2:], "mean"
        ),
    }
    with fullgrad.completing():
        for inside, outside in calls.items():
            f, g = [lambda x, h=h: (h(x * 1.5) ** 2).sum() for h in (inside, outside)]
            for nested in (hessian, lambda f: lambda x: jvp(lambda x: jvp(f, (x,), (x.cos(),))[1], (x,), (x.sin() + 1,))[1]):
                torch.testing.assert_close(nested(f)(x), nested(g)(x))


def test_values_of_samples_fill_their_own():
    """Also where what they fill, or the indices, are the same for all samples, with derivatives."""
    value, index = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2])
    indices = torch.tensor([[0, 1], [1, 1], [2, 3]])
    with fullgrad.completing():
        for x, fill in ((X, 1), (X[:, :3], -1), (X.mT, 0)):
            expected = torch.stack([x.index_fill(fill, index.clamp(max=x.shape[fill] - 1), v) for v in value])
            found = vmap(lambda v: x.index_fill(fill, index.clamp(max=x.shape[fill] - 1), v))(value)  # noqa: B023
            assert torch.equal(found, expected)
        found = vmap(lambda i, v: X[0].index_fill(0, i, v))(indices, value)
        assert torch.equal(found, torch.stack([X[0].index_fill(0, i, v) for i, v in zip(indices, value, strict=True)]))
        slopes = vmap(grad(lambda v: (X[0].index_fill(0, index, v) ** 2).sum()))(value)
        assert torch.equal(slopes, 4 * value)


def test_generators_are_not_decorated():
    """They would run outside of the context."""

    def numbers():
        yield 1

    async def later():
        return 1

    for function in (numbers, later):
        with pytest.raises(TypeError, match="open it inside"):
            fullgrad.completing()(function)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mask", [None, torch.tensor([[False, False, True]])])
def test_the_fast_path_of_an_encoder(norm_first, mask):
    """Its fused kernel, taken where no parameter needs a gradient, has the derivatives of the layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=norm_first).double().eval()
    x, t = torch.randn(2, 1, 3, 4, dtype=torch.float64)
    run = lambda x: layer(x, src_key_padding_mask=mask)[:, :2].sin().sum()  # noqa: E731
    ways = {
        "forward": lambda: jvp(run, (x,), (t,))[1],
        "forward over forward": lambda: jvp(lambda x: jvp(run, (x,), (t,))[1], (x,), (t,))[1],
        "forward over reverse": lambda: jvp(grad(run), (x,), (t,))[1],
    }
    with fullgrad.completing():
        expected = {name: way() for name, way in ways.items()}
        layer.requires_grad_(False)
        for name, way in ways.items():
            torch.testing.assert_close(way(), expected[name], msg=name)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_of_samples_by_the_parameters_of_networks(kind):
    """torch adds batched numbers in place to those of parameters, which `vmap` refuses."""
    torch.manual_seed(0)
    network, batch = kind(2, 3, 2, bidirectional=True, batch_first=True).double(), torch.randn(3, 1, 4, 2, dtype=torch.float64)
    parameters = dict(network.named_parameters())

    def loss(parameters, x):
        return functional_call(network, parameters, (x,))[0].sin().sum()

    with fullgrad.completing():
        found = vmap(grad(loss), (None, 0))(parameters, batch)
        for i, x in enumerate(batch):
            expected = torch.autograd.grad(loss(parameters, x), list(parameters.values()))
            torch.testing.assert_close([g[i] for g in found.values()], list(expected))


def test_conditions_of_a_batch():
    """A condition in Python on which all samples agree is theirs; one on which they do not is an error."""

    def f(x):
        return x.sin() if torch.any(x > 0) else x

    def loss(x, v):
        return F.gaussian_nll_loss(x, x.cos(), v)

    x, v = torch.rand(3, 2) + 0.1, torch.rand(3, 2) + 0.1
    with fullgrad.completing():
        torch.testing.assert_close(vmap(grad(lambda x: f(x).sum()))(x), x.cos())
        with pytest.raises(RuntimeError, match="have several numbers"):
            vmap(f)(torch.tensor([1.0, -1.0]))
        found = vmap(grad(loss))(x, v)
        torch.testing.assert_close(found, torch.stack([grad(loss)(a, b) for a, b in zip(x, v, strict=True)]))
        rows = vmap(lambda x: torch.unbind_copy(x)[1])(x)
        assert torch.equal(rows, x[:, 1])


# --- Never worse than torch -------------------------------------------------------------------------------------------------

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
UNITS = (1e-30, 1e-8, 1.0, 1e8, 1e30)


def with_nan(x):
    """A copy whose first number is none."""
    x = x.clone()
    x.view(-1)[0] = math.nan
    return x


def tensors_of(function, *args):
    return [v for v in pytree.tree_leaves(function(*args)) if isinstance(v, torch.Tensor)]


# torch alone computes a mask of one dimension only where it needs a gradient.
@pytest.mark.parametrize("name", [n for n in CALLS if n != "scaled_dot_product_attention, groups"])
def test_the_value_is_torchs_at_every_scale(name):
    """Under a transform it is that of torch's own kernel, to the last bit, in every dtype and where a number is NaN."""
    f, x = CALLS[name]
    seen = 0
    for dtype in DTYPES:
        for own in [v for unit in UNITS for v in ((x * unit).to(dtype), with_nan((x * unit).to(dtype)))]:
            try:
                expected = tensors_of(f, own)
            except (RuntimeError, ValueError):
                continue  # what torch does not compute
            seen += 1
            with fullgrad.completing():
                found = tensors_of(lambda x: jvp(f, (x,), (x.cos(),))[0], own)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert seen


# Functions of tensors, their arguments, and the gradients of the sum.
HALF, FULL = torch.tensor([300, 1 / 300, 300, 1 / 300], dtype=torch.float16), torch.tensor([1e30, 1e-30, 1e30, 1e-30])
UNLIKE = torch.diag(torch.tensor([1e8, 1, 1, 1, 1]))
GRADIENTS = {
    "determinant of unlike scales": (torch.linalg.det, UNLIKE, torch.diag(torch.tensor([1, 1e8, 1e8, 1e8, 1e8]))),
    "determinant in float64": (torch.linalg.det, UNLIKE.double(), torch.diag(torch.tensor([1, 1e8, 1e8, 1e8, 1e8])).double()),
    "determinant with a small row": (
        lambda x: torch.linalg.det(x),
        torch.diag(torch.tensor([1e-30, 1, 0, 3, 1e30])),
        torch.diag(torch.tensor([0, 0, 3, 0, 0.0])),
    ),
    "product in half precision": (torch.prod, HALF, HALF.flip(0)),
    "product that overflows between": (torch.prod, FULL, FULL.flip(0)),
    "product next to a small zero": (
        lambda x: x.prod(0),
        torch.tensor([[1e-30, 0.0, 2e-30], [0.0, 3e-30, -1e-30]]),
        torch.tensor([[0.0, 3e-30, -1e-30], [1e-30, 0.0, 2e-30]]),
    ),
    "cumulative product": (lambda x: x.cumprod(0)[3], FULL[[0, 1, 1, 0]], FULL[[1, 0, 0, 1]]),
    "margin of 0": (lambda x: F.multi_margin_loss(x, torch.tensor([0])), torch.tensor([[2.0, 1.0]]), torch.zeros(1, 2)),
    "margin of 0 of several labels": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[0, -1]])),
        torch.tensor([[2.0, 1.0]]),
        torch.zeros(1, 2),
    ),
    "infinite error": (
        lambda x: F.huber_loss(x, torch.zeros(3), delta=3.0, reduction="sum"),
        torch.tensor([math.inf, -math.inf, 1.0]),
        torch.tensor([3.0, -3.0, 1.0]),
    ),
    "an end that is no number": (F.hardsigmoid, torch.tensor([math.nan, -3.0, 3.0]), torch.zeros(3)),
    "the largest of equal distances": (
        lambda x: torch.cdist(x, torch.zeros(1, 2), p=math.inf),
        torch.tensor([[3.0, 3.0], [1.0, 2.0]]),
        torch.tensor([[1.0, 1.0], [0.0, 1.0]]),
    ),
    "the largest of equal rows": (
        lambda w: F.embedding_bag(torch.tensor([[0, 1]]), w, mode="max"),
        torch.ones(2, 2),
        torch.tensor([[1.0, 1.0], [0.0, 0.0]]),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_at_scales_and_kinks(name):
    """They are finite numbers where the operator has them, and torch's at a kink."""
    f, x, expected = GRADIENTS[name]
    loss = lambda x: f(x).sum()  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(grad(loss)(x), expected, rtol=1e-3, atol=0)
        slope = jvp(loss, (x,), (torch.ones_like(x),))[1]
        torch.testing.assert_close(slope, expected.sum(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_derivatives_of_long_products_in_half_precision(dtype):
    """A thousand factors near 1 lose no digits between."""
    x = (1 + torch.linspace(-0.05, 0.05, 1000)).to(dtype)
    with fullgrad.completing():
        for f in (torch.prod, lambda x: x.cumprod(0)[-1]):
            torch.testing.assert_close(grad(f)(x), (torch.prod(x.double()) / x.double()).to(dtype), rtol=0.01, atol=0)


SAMPLES = {
    "bags": lambda w: F.embedding_bag(torch.tensor([[0, 2], [1, 3]]), w, mode="sum"),
    "means of bags": lambda w: F.embedding_bag(torch.tensor([[0, 2], [1, 3]]), w, mode="mean"),
    "margins": lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 0, 1]), reduction="none"),
    "margins of several labels": lambda x: F.multilabel_margin_loss(
        x, torch.tensor([[0, -1], [1, 0], [1, -1], [0, 1]]), reduction="none"
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_no_number_stays_in_its_row(name):
    """In the value under each transform, as in torch."""
    f = SAMPLES[name]
    x = torch.arange(8.0).reshape(4, 2).sin()
    x[1, 1] = math.nan
    expected = f(x)
    with fullgrad.completing():
        values = jvp(f, (x,), (torch.ones_like(x),))[0], vmap(f)(x[None])[0], torch.func.vjp(f, x)[0]
    for found in values:
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_gradient_of_an_inverse_that_torch_has_rounded_away():
    """Of a factor with large numbers below its diagonal, next to that of fractions."""
    low = seeded(4, 4).tril(-1) * 1e3 + torch.eye(4, dtype=torch.float64)
    of = [[Fraction(v) for v in row] for row in low.tolist()]
    n = range(4)

    def product(a, b):
        return [[sum(a[i][k] * b[k][j] for k in n) for j in n] for i in n]

    inverse = [[Fraction(i == j) for j in n] for i in n]
    for j, i in itertools.product(n, n):
        if i > j:
            inverse[i][j] = -sum(of[i][k] * inverse[k][j] for k in range(j, i))
    own = product([*map(list, zip(*inverse, strict=True))], inverse)
    # The sum of X = (L L^T)^-1 has the gradient -2 X 1 X L, in its lower triangle.
    exact = product(product(product(own, [[Fraction(1)] * 4] * 4), own), of)
    expected = torch.tensor([[-2 * float(exact[i][j]) if i > j else 0.0 for j in n] for i in n], dtype=torch.float64)
    with fullgrad.completing():
        found = grad(lambda a: torch.cholesky_inverse(a.tril(-1) + torch.eye(4, dtype=torch.float64)).sum())(low)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_a_matrix_that_is_no_number_stays_alone():
    """The others of its batch have their determinants and gradients, and a singular one a sign."""
    x = torch.eye(5).repeat(2, 1, 1)
    x[1, 2, 2] = math.nan
    with fullgrad.completing():
        found = vmap(grad(torch.linalg.det))(x)
        assert jvp(torch.linalg.slogdet, (torch.zeros(2, 2),), (torch.eye(2),))[0].sign == 0
    torch.testing.assert_close(found[0], torch.eye(5))
    assert found[1].isnan().all()


def test_logarithms_of_sums_of_complex_exponentials():
    """They are torch's own."""
    a, b = torch.tensor([1 + 1j, -0.5j]), torch.tensor([2 - 1j, 3.0])
    expected = jvp(torch.logaddexp, (a, b), (b, a))
    with fullgrad.completing():
        torch.testing.assert_close(jvp(torch.logaddexp, (a, b), (b, a)), expected)


def test_running_variances_are_not_below_0():
    """Those of numbers that hardly differ are torch's, to the last bit."""
    for dtype in (torch.float32, torch.float64):
        for spread in (0, 1e-6, 1e-3, 1.0):
            x = (0.7 + spread * torch.arange(12.0).reshape(4, 3).sin()).to(dtype)
            kept = [[torch.zeros(3, dtype=dtype), torch.zeros(3, dtype=dtype)] for _ in range(2)]
            F.batch_norm(x, *kept[0], training=True)
            with fullgrad.completing():
                jvp(lambda x: F.batch_norm(x, *kept[1], training=True), (x,), (x,))  # noqa: B023
            torch.testing.assert_close(kept[1], kept[0], rtol=0, atol=0)


def test_the_next_context_takes_no_time():
    """Kernels stay for it, until torch's operators were called many times outside."""
    with fullgrad.completing():
        pass
    kept, times = _completing._state.library, []
    for _ in range(20):
        start = time.perf_counter()
        with fullgrad.completing():
            times.append(time.perf_counter() - start)
    assert min(times) < 1e-4
    assert _completing._state.library is kept


def test_kernels_do_not_stay_forever(monkeypatch):
    """After many calls outside torch has its own, and the next context brings the others again."""
    monkeypatch.setattr(_completing, "_MOST_OUTSIDE", 3)
    with fullgrad.completing():
        pass
    for _ in range(5):
        assert F.glu(X).shape == (2, 2)
    assert _completing._state.library is None
    with fullgrad.completing():
        assert jvp(F.glu, (X,), (X,))[1].shape == (2, 2)


OF_FORMULAS = (
    "_native_multi",
    "_transformer",
    "ldexp",
    "linalg_ldl",
    "logcumsumexp",
    "logaddexp",
    "nll_loss",
    "binary_cross",
    "polar",
    "linspace",
    "logspace",
    "vander",
    "sinc",
    "var.correction",  # over no dimensions
    "var_mean.correction",
)


@pytest.mark.parametrize("name", [n for n in CALLS if not n.startswith((*OF_FORMULAS, "multi_margin_loss, by", "linalg_cond"))])
def test_the_graph_of_eager_code_is_torchs(name):
    """Its nodes are those of torch, written in C++, and their number is the same."""
    f, x = CALLS[name]

    def nodes():
        seen, todo = [], [f(x.clone().requires_grad_()).grad_fn]
        while todo:
            node = todo.pop()
            if node is not None and node not in seen:
                seen.append(node)
                todo += [n for n, _ in node.next_functions]
        return sorted(n.name() for n in seen)

    expected = nodes()
    with fullgrad.completing():
        assert nodes() == expected


# --- Backwards of kernels that the CPU lacks, as they are ---------------------------------------------------------------------


def given(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def test_backwards_of_attention_on_a_gpu():
    """Their formulas take what torch's operators do, and give the gradients of queries, keys, values and masks."""
    q, k, v, mask = *(given(1, 2, 3, 4, seed=s) for s in range(3)), given(1, 2, 3, 3, seed=3)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v, mask)
        alone = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    g = torch.ones_like(y)
    expected, without = torch.autograd.grad(y, (q, k, v, mask), g), torch.autograd.grad(alone, (q, k, v), g)
    of = lambda name: BACKWARDS[f"_scaled_dot_product_{name}_backward"][0]  # noqa: E731
    nothing, needed = [None] * 4, [True] * 4
    efficient = of("efficient_attention")(g, q, k, v, mask, *nothing, 0.0, needed, False)
    others = of("fused_attention_overrideable")(g, q, k, v, mask, needed, *nothing, 3, 3, 0.0, False)
    torch.testing.assert_close([tuple(efficient), tuple(others)], [expected, expected])
    cudnn = of("cudnn_attention")(g, q, k, v, *nothing, mask, None, None, 3, 3, 0.0, False)
    torch.testing.assert_close(cudnn, expected[:3])
    flash = of("flash_attention")(g, q, k, v, *nothing, 3, 3, 0.0, True)
    torch.testing.assert_close(flash, without)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_backward_of_recurrent_networks_on_a_gpu(bidirectional):
    """Its formula takes what torch's operator does, and gives the gradients of input, states and weights."""
    torch.manual_seed(0)
    network = nn.LSTM(2, 3, 2, bidirectional=bidirectional).double()
    x, h, c = given(4, 1, 2), *(given(4 if bidirectional else 2, 1, 3, seed=s) for s in (1, 2))
    y, (last_h, last_c) = network(x, (h, c))
    weights, g = list(network.parameters()), [v.cos().detach() for v in (y, last_h, last_c)]
    expected = torch.autograd.grad((y, last_h, last_c), (x, h, c, *weights), g)
    options = 2, 3, 0, 2, False, 0.0, True, bidirectional, [], None, None, [True] * 4
    found = BACKWARDS["_cudnn_rnn_backward"][0](x, weights, 4, None, h, c, y, *g, *options)
    torch.testing.assert_close((*found[:3], *found[3]), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_slope_that_is_not_used_spoils_no_gradient(value):
    """As in torch's own eager gradient of prelu, where a weight is not a number."""
    x, w = torch.tensor([-1.0, 0.5, 2.0]), torch.tensor([value])
    f = lambda x, w: F.prelu(x, w).sin().sum()  # noqa: E731
    leaves = [v.clone().requires_grad_() for v in (x, w)]
    expected = torch.autograd.grad(f(*leaves), leaves)
    with fullgrad.completing():
        torch.testing.assert_close(grad(f, (0, 1))(x, w), expected, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"weight": X[0]}, {"pos_weight": X[0] / 4}, {"weight": X[0], "pos_weight": X[0] / 4}])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_infinite_logits(options, reduction):
    """Values and gradients are those of eager code, and second derivatives are 0."""
    x = torch.tensor([[-math.inf, math.inf, 0.3, -math.inf], [math.inf, -math.inf, -120.0, 90.0]])
    t = torch.tensor([[1.0, 0.0, 0.6, 0.0], [1.0, 0.4, 0.0, 1.0]])
    f = lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=reduction, **options)  # noqa: E731
    leaves = [v.clone().requires_grad_() for v in (x, t)]
    expected = torch.autograd.grad(f(*leaves).sum(), leaves)
    loss = lambda x, t: f(x, t).sum()  # noqa: E731
    with fullgrad.completing():
        assert torch.equal(vmap(f)(x[None], t[None])[0].nan_to_num(-1), f(x, t).nan_to_num(-1))
        torch.testing.assert_close(grad(loss, (0, 1))(x, t), expected, equal_nan=True)
        found = vmap(grad(loss, (0, 1)))(x[None], t[None])
        torch.testing.assert_close(tuple(v[0] for v in found), expected, equal_nan=True)
        bent = hessian(loss)(x, t)
    assert not bent.isnan().any()
    assert not bent.view(8, 8)[x.isinf().view(-1)].any()


BAGS, LABELS, STEPS = torch.tensor([[0, 2], [1, 3]]), torch.tensor([[1], [2]]), (torch.tensor([4, 2]), torch.tensor([1, 1]))
NOT_COUNTED = {  # the shapes of tensors, and a place of one of them that does not count
    "rows of padding": (lambda w, p: F.embedding_bag(BAGS, w, mode="sum", per_sample_weights=p, padding_idx=2), 0, 2),
    "weights of padding": (lambda w, p: F.embedding_bag(BAGS, w, mode="sum", per_sample_weights=p, padding_idx=2), 1, (0, 1)),
    "rows of padding, means": (lambda w, p: F.embedding_bag(BAGS, w, mode="mean", padding_idx=2) * p, 0, 2),
    "rows of padding, largest": (lambda w, p: F.embedding_bag(BAGS, w, mode="max", padding_idx=2) * p, 0, 2),
    "steps behind the last": (lambda x, p: F.ctc_loss(x.unflatten(1, (2, 3)), LABELS, *STEPS) * p, 0, (3, 4)),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", NOT_COUNTED)
def test_what_does_not_count_is_in_no_derivative(name, value):
    """Neither in the first nor in the second ones, in eager code and by transforms."""
    f, i, place = NOT_COUNTED[name]
    xs = [seeded(4, 6).unflatten(1, (2, 3)).log_softmax(-1).flatten(1) if "steps" in name else seeded(4, 2), seeded(2, 2)]
    ones = tuple([torch.ones_like(x) for x in xs])
    loss = lambda *xs: f(*xs).sin().sum()  # noqa: E731

    def results():
        leaves = [x.clone().requires_grad_() for x in xs]
        first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sum() for g in first), leaves, materialize_grads=True)
        of_batch = vmap(grad(loss, (0, 1)))(*[x[None] for x in xs])
        return *first, *second, *grad(loss, (0, 1))(*xs), *of_batch, *jvp(grad(loss, (0, 1)), tuple(xs), ones)[1]

    found = []
    for v in (0.0, value):
        xs[i][place] = v
        with fullgrad.completing():
            found.append(results())
    torch.testing.assert_close(found[1], found[0])


NOT_NUMBERS = {
    "huber_loss": lambda x: F.huber_loss(x, torch.zeros(2, 2)),
    "huber_loss by the target": lambda x: F.huber_loss(torch.zeros(2, 2), x),
    "cdist, sums": lambda x: torch.cdist(x, torch.zeros(1, 2), p=1),
    "cdist, largest": lambda x: torch.cdist(x, torch.zeros(1, 2), p=math.inf),
    "pdist, sums": lambda x: torch.pdist(x, 1),
    "pdist, largest": lambda x: torch.pdist(x, math.inf),
    "logit": lambda x: torch.logit(x / 3),
    "logit, clamped": lambda x: torch.logit(x / 3, 0.1),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, torch.zeros(2, 2)),
    "logit, clamped, half precision": lambda x: torch.logit(x.half() / 3, 0.1),
}


@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_what_is_no_number_has_no_number_as_its_slope(name):
    """The gradient is NaN where torch's is, in reverse mode, forward mode, a batch and inside of a second derivative."""
    loss = lambda x: NOT_NUMBERS[name](x).sum()  # noqa: E731
    x = torch.tensor([[math.nan, 1.0], [1.0, 2.0]])
    expected = grad(loss)(x)
    is_none = expected.isnan() | (x.isnan() if "logit" in name else False)  # torch's is NaN at some sizes of a tensor
    assert is_none.any()
    with fullgrad.completing():
        found = grad(loss)(x), jvp(grad(loss), (x,), (x.sign(),))[0], vmap(grad(loss))(x[None])[0]
        tangent = jvp(loss, (x,), (torch.ones_like(x),))[1]
    assert tangent.isnan()
    for g in found:
        assert g[is_none].isnan().all()
        torch.testing.assert_close(g[1], expected[1], equal_nan=True)


OF_UNIT_SIZE = {
    "layer_norm": lambda x, eps: F.layer_norm(x, (4,), eps=eps),
    "group_norm": lambda x, eps: F.group_norm(x, 1, eps=eps),
    "instance_norm": lambda x, eps: F.instance_norm(x[None], eps=eps)[0],
    "batch_norm": lambda x, eps: F.batch_norm(x.mT, None, None, training=True, eps=eps).mT,
    "rms_norm": lambda x, eps: F.rms_norm(x, (4,), eps=eps),
    "renorm": lambda x, eps: torch.renorm(x / x.detach().abs().max() * 1e20, 2, 0, 1.0),
    "renorm of cubes": lambda x, eps: torch.renorm(x / x.detach().abs().max() * 1e13, 3, 0, 1.0),
}


@pytest.mark.parametrize("unit", [1e15, 1e-15])
@pytest.mark.parametrize("eps", [1e-5, 1e-35])
@pytest.mark.parametrize("name", OF_UNIT_SIZE)
def test_norms_of_large_and_small_numbers(name, eps, unit):
    """Their derivatives in float32 are those in float64, though squares of the numbers over- or underflow in between."""
    x = torch.tensor([[1.0, 2, 4, 8], [3, 1, -2, 5]], dtype=torch.float64) * unit
    weight = torch.tensor([1.0, -2, 3, 5], dtype=torch.float64)

    def derivatives(dtype):
        own, t = x.to(dtype), (x.flip(1) * weight).to(dtype)
        f = lambda x: OF_UNIT_SIZE[name](x, eps)  # noqa: E731
        loss = lambda x: (f(x) * weight.to(dtype)).sum()  # noqa: E731
        return grad(loss)(own) * unit, jvp(f, (own,), (t,))[1], *[v * unit for v in jvp(grad(loss), (own,), (t,))]

    with fullgrad.completing():
        found, expected = derivatives(torch.float32), derivatives(torch.float64)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_powers_of_complex_numbers_have_second_tangents(shape):
    """Also of one number, of which torch takes no view in forward mode."""
    x, t = [torch.randn(shape, dtype=torch.complex128) for _ in range(2)]
    loss = lambda x: (torch.linalg.vander(x, N=2).abs() ** 3).sum()  # noqa: E731
    for second in (lambda: jvp(lambda x: jvp(loss, (x,), (t,))[1], (x,), (t,))[1], lambda: jvp(grad(loss), (x,), (t,))[1]):
        with fullgrad.completing():
            found = second()
        torch.testing.assert_close(found, second())


def test_running_logarithms_of_large_numbers():
    """A gradient of `torch.func` has the digits of the formula, where torch's own loses those of the numbers."""
    x, w = 1e6 * torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([1.0, -2.0, 3.0, 5.0])
    with fullgrad.completing():
        found = grad(lambda x: (x.logcumsumexp(0) * w).sum())(x)
        samples = vmap(grad(lambda x: (x.logcumsumexp(0) * w).sum()))(torch.stack([x, x]))
    torch.testing.assert_close(found, w)
    torch.testing.assert_close(samples, torch.stack([w, w]))


@pytest.mark.parametrize("count", [0, 1])
def test_samples_without_a_step(count):
    """The loss of one does not depend on anything, with labels or without, and the other samples keep their derivatives."""
    x, t = [torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    targets, lengths = torch.tensor([[1, 1], [1, 2]]), (torch.tensor([0, 3]), torch.tensor([count, 2]))

    def loss(x):
        return F.ctc_loss(x.log_softmax(-1), targets, *lengths, reduction="none").nan_to_num(posinf=0).sin().sum()

    def alone(x):
        return F.ctc_loss(x[:, 1:].log_softmax(-1), targets[1:], *[v[1:] for v in lengths], reduction="none").sin().sum()

    with fullgrad.completing():
        for derivative in (grad, lambda f: lambda x: jvp(f, (x,), (t,))[1], lambda f: lambda x: jvp(grad(f), (x,), (t,))[1]):
            torch.testing.assert_close(derivative(loss)(x), derivative(alone)(x))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("unit", [1e-30, 1e-12, 1e10, 1e30])
def test_second_derivatives_of_distances_at_scales(p, unit):
    """They are those of the same rows in another unit, in every nesting, also where squares or cubes are out of range."""
    x, t = torch.tensor([[1.0, 2, 4], [3, 1, 7], [0.5, 1, 1]]), torch.tensor([[3.0, -1, 2], [1, 1, -1], [0, 2, 1]])
    g = torch.tensor([1.0, -2.0, 3.0])

    def eager(f, x, t):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad((torch.autograd.grad(f(leaf), leaf, create_graph=True)[0] * t).sum(), leaf)[0]

    nestings = (
        (lambda f, x, t: jvp(grad(f), (x,), (t,))[1], 1),
        (lambda f, x, t: jvp(lambda x: jvp(f, (x,), (t,))[1], (x,), (t,))[1], unit),
        (eager, 1),
    )
    with fullgrad.completing():
        for f in (lambda x: (F.pdist(x, p) * g).sum(), lambda x: (torch.cdist(x, x[:1].roll(1, 1), p)[:, 0] * g).sum()):
            for nested, scale in nestings:
                found = nested(f, x * unit, t * unit) / scale
                torch.testing.assert_close(found, nested(f, x, t), rtol=1e-4, atol=1e-4)


PLAIN_FORWARD = {
    "attention": lambda x: F.scaled_dot_product_attention(x, x.cos(), x.sin(), is_causal=True),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(x, x.cos(), x.sin(), x @ x.mT),
    "ctc_loss": lambda x: F.ctc_loss(x[0], torch.tensor([[1, 2], [2, 2]]), *torch.tensor([[4, 3], [2, 1]])),
}


@pytest.mark.parametrize("name", PLAIN_FORWARD)
def test_backward_of_a_plain_tangent(name):
    """A tangent of `torch.autograd.forward_ad` has the gradient of one of `torch.func`."""
    f = PLAIN_FORWARD[name]
    x, t = [torch.randn(1, 4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    with fullgrad.completing():
        expected = grad(lambda x: jvp(f, (x,), (t,))[1].sin().sum())(x)
        with torch.autograd.forward_ad.dual_level():
            leaf = x.clone().requires_grad_()
            tangent = torch.autograd.forward_ad.unpack_dual(f(torch.autograd.forward_ad.make_dual(leaf, t))).tangent
            torch.testing.assert_close(torch.autograd.grad(tangent.sin().sum(), leaf)[0], expected)


BOUNDED = {
    "clamp": torch.clamp,
    "clamp from below": lambda x, low, high: torch.clamp(x, min=low),
    "clamp from above": lambda x, low, high: torch.clamp(x, max=high),
    "clamp_min": lambda x, low, high: torch.clamp_min(x, low),
    "clamp_max": lambda x, low, high: torch.clamp_max(x, high),
    "clamp in place": lambda x, low, high: x.clone().clamp_(low, high),
    "fmax": lambda x, low, high: torch.fmax(x, low),
    "fmin": lambda x, low, high: torch.fmin(x, high),
    "maximum": lambda x, low, high: torch.maximum(x, low),
    "minimum": lambda x, low, high: torch.minimum(x, high),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_slopes_at_ties(name):
    """Forward mode has those of reverse mode, which are torch's own of eager code: of bounds that are equal, or cross, too."""
    f, numbers = BOUNDED[name], torch.tensor([-1.0, 0.0, 1.0, math.inf, math.nan])
    inputs = torch.cartesian_prod(numbers, numbers, numbers).unbind(-1)
    leaves = [v.clone().requires_grad_() for v in inputs]
    expected = torch.autograd.grad(f(*leaves).sum(), leaves, materialize_grads=True)
    with fullgrad.completing():
        for i, v in enumerate(inputs):
            of = lambda v, i=i: f(*inputs[:i], v, *inputs[i + 1 :])  # noqa: E731
            value, found = jvp(of, (v,), (torch.ones_like(v),))
            torch.testing.assert_close(found, expected[i], rtol=0, atol=0)
            torch.testing.assert_close(value, f(*inputs), rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(grad(lambda v, of=of: of(v).sum())(v), expected[i], rtol=0, atol=0)


def test_an_angle_of_zeros():
    """Its tangent is torch's gradient, which is 0, in place, too; other derivatives are torch's in every nesting."""
    y, x = torch.cartesian_prod(*[torch.tensor([0.0, -0.0, 1.0, -2.0])] * 2).unbind(-1)
    expected = [grad(lambda *a: torch.atan2(*a).sum(), argnums=i)(y, x) for i in (0, 1)]
    point = torch.tensor([0.7, -1.2], dtype=torch.float64)
    f = lambda p: torch.atan2(p[0], p[1])  # noqa: E731
    second = hessian(f)(point)
    with fullgrad.completing():
        for of in (torch.atan2, lambda y, x: y.clone().atan2_(x)):
            for i, t in enumerate(((torch.ones_like(y), torch.zeros_like(x)), (torch.zeros_like(y), torch.ones_like(x)))):
                torch.testing.assert_close(jvp(of, (y, x), t)[1], expected[i])
                torch.testing.assert_close(grad(lambda *a, of=of: of(*a).sum(), argnums=i)(y, x), expected[i])
        with torch.autograd.forward_ad.dual_level():
            dual = torch.atan2(torch.autograd.forward_ad.make_dual(y, torch.ones_like(y)), x)
            torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, expected[0])
        for a, b in itertools.product((jacfwd, jacrev), repeat=2):
            torch.testing.assert_close(a(b(f))(point), second)
            torch.testing.assert_close(vmap(a(b(f)))(point[None]), second[None])


def test_complex_numbers_by_size_and_angle():
    """Their gradient by a size of 0 or below is that of the product with a cosine, where torch's is 0, or has the other sign."""
    size, angle = torch.cartesian_prod(torch.tensor([-1.5, -0.0, 0.0, 2.0]), torch.tensor([-2.0, 0.0, 0.5])).unbind(-1)
    expected = angle.cos(), -size * angle.sin()
    with fullgrad.completing():
        leaves = [v.clone().requires_grad_() for v in (size, angle)]
        y = torch.polar(*leaves)
        eager = torch.autograd.grad(y.real.sum(), leaves)
        under = grad(lambda *a: torch.polar(*a).real.sum(), argnums=(0, 1))(size, angle)
    assert torch.equal(y, torch.polar(size, angle))
    for found in (eager, under):
        torch.testing.assert_close(found, expected)


PLACES = list(itertools.product([1.5, 0.0, -2.0, math.inf, -math.inf, math.nan], repeat=3))


def of_other_factors(x):
    """The derivatives of running products: NaN by one of two factors that are not finite."""
    slopes = torch.zeros(len(x), len(x))
    for k, i in itertools.product(range(len(x)), repeat=2):
        if i <= k:
            slopes[k, i] = math.prod(x[:i] + x[i + 1 : k + 1])
            if not math.isfinite(x[i]) and sum(not math.isfinite(v) for v in x[: k + 1]) > 1:
                slopes[k, i] = math.nan
    return slopes


@pytest.mark.parametrize("of", [jacfwd, jacrev])
def test_running_products_with_infinities(of):
    """Each product has the derivatives by its factors, before and behind an infinity or NaN, and 0 by others."""
    x, expected = torch.tensor(PLACES), torch.stack([of_other_factors(list(x)) for x in PLACES])
    with fullgrad.completing():
        alone = torch.stack([of(lambda x: x.cumprod(0))(v) for v in x])
        batch = vmap(of(lambda x: x.cumprod(0)))(x)
    for found in (alone, batch):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_blocks_of_attention_with_a_mask_of_one_dimension():
    """Groups of heads that share keys have it, of more queries than one block, too, where torch's kernel takes no such mask."""
    q, k, mask = torch.ones(1, 2, 1030, 2), torch.ones(1, 1, 1030, 2), torch.ones(2, 1030)
    f = lambda mask: F.scaled_dot_product_attention(q, k, k, mask, enable_gqa=True)  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(vmap(f)(mask), torch.ones(2, *q.shape))
