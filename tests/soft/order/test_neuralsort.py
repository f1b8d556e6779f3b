"""NeuralSort and the pairwise ranks: blocks equal the whole, at every order, under every transform, in O(n) memory."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fullgrad import soft
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels import blocks as _blocks
from fullgrad.soft.order.methods import METHODS, neuralsort, pairwise_sigmoid
from fullgrad.soft.order.projections.simplex import project

MODES = ("smooth", "c0", "c1", "c2")
double = torch.float64
close = torch.testing.assert_close


# --- the formulas with whole matrices ---------------------------------------------------------------------------------


def dense_weights(u, mode):
    n = u.shape[-1]
    a = soft.abs(u.unsqueeze(-1) - u.unsqueeze(-2), 1.0, mode).sum(-1)
    c = torch.arange(n - 1, -n, -2, dtype=u.dtype)
    return project(-(c.unsqueeze(-1) * u.unsqueeze(-2) + a.unsqueeze(-2)), mode)


def dense_values(u, x, mode):
    return (dense_weights(u, mode) @ x.unsqueeze(-1)).squeeze(-1)


def dense_ranks(u, mode):
    p = dense_weights(u, mode)
    i, mass = torch.arange(1, u.shape[-1] + 1, dtype=u.dtype), p.sum(-2)
    lacks = mass < 1e-290  # which have their hard rank
    hard = u.argsort(dim=-1, stable=True).argsort(-1).to(u.dtype) + 1
    return torch.where(lacks, hard, (i.unsqueeze(-1) * p).sum(-2) / torch.where(lacks, 1, mass))


def dense_pairwise(u, mode):
    return 0.5 + soft.sigmoidal(u.unsqueeze(-1) - u.unsqueeze(-2), 1.0, mode).sum(-1)


def soft_values(u, x, mode):
    return METHODS["neuralsort"].values(Rows(x, u, 1.0, mode))


def soft_ranks(u, mode, method="neuralsort"):
    return METHODS[method].ranks(Rows(u, u, 1.0, mode))


def soft_weights(u, mode, places):
    return METHODS["neuralsort"].weights(Rows(u, u, 1.0, mode), torch.tensor(places, device=u.device))


# What is computed by blocks, and whole: functions of u, x and the mode.
FUNCTIONS = {
    "values": (soft_values, dense_values),
    "ranks": (lambda u, x, mode: soft_ranks(u, mode), lambda u, x, mode: dense_ranks(u, mode)),
    "pairwise": (lambda u, x, mode: soft_ranks(u, mode, "sigmoid"), lambda u, x, mode: dense_pairwise(u, mode)),
    "weights": (
        lambda u, x, mode: (soft_weights(u, mode, [0, -1 + u.shape[-1]]) * x.unsqueeze(-2)).sum(-1),
        lambda u, x, mode: dense_values(u, x, mode)[..., [0, -1]],
    ),
}
named = pytest.mark.parametrize("name", FUNCTIONS)
in_modes = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def blocks(monkeypatch):
    """A function that sets the size of blocks, which are tiny at first."""

    def resize(size, rows):
        monkeypatch.setattr(_blocks, "BLOCK", size)
        monkeypatch.setattr(neuralsort, "ROWS", rows)

    resize(8, 2)
    return resize


def point(*shape, scale=2.0, seed=0, dtype=double):
    generator = torch.Generator().manual_seed(seed)
    u, x = torch.randn(2, *shape, generator=generator, dtype=double)
    return (u * scale).to(dtype), x.to(dtype)


def total(f, mode):
    """A scalar with a gradient and a second derivative."""

    def of(u, x):
        y = f(u, x, mode)
        return (y.sin() * torch.arange(1, y.shape[-1] + 1, dtype=y.dtype)).sum()

    return of


# --- equal to whole matrices ------------------------------------------------------------------------------------------


@pytest.mark.short(of=3)
@in_modes
@named
@pytest.mark.parametrize(("size", "rows", "shape"), [(8, 2, (6,)), (30, 2, (2, 1, 7)), (400, 4, (60,)), (10**6, 32, (6,))])
def test_blocks_are_those_of_dense_formulas(blocks, name, mode, size, rows, shape):
    """Value, gradient and Hessian-vector product equal those of dense formulas."""
    blocks(size, rows)
    u, x = point(*shape)
    found = []
    for f in FUNCTIONS[name]:
        a, b = u.clone().requires_grad_(), x.clone().requires_grad_()
        g = torch.autograd.grad(total(f, mode)(a, b), (a, b), create_graph=True, materialize_grads=True)
        h = torch.autograd.grad((g[0] * x).sum() + (g[1] * u).sum(), (a, b), materialize_grads=True)
        found.append((f(u, x, mode), *g, *h))
    close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.long(but=2)
@named
def test_windows_leave_out_zeros_alone(blocks, name):
    """Elements far from their place have no weight: windows leave out zeros, also where scores are not concave."""
    blocks(500, 4)
    for mode in MODES:
        for scale in (0.5, 8.0, 60.0):
            u, x = point(90, scale=scale, seed=1)
            u[:20] = u[0]
            f, dense = FUNCTIONS[name]
            close(f(u, x, mode), dense(u, x, mode), rtol=1e-9, atol=1e-9)
            close(grad(total(f, mode))(u, x), grad(total(dense, mode))(u, x), rtol=1e-7, atol=1e-8)
            if scale == 8.0:
                found, expected = (jvp(grad(total(g, mode)), (u, x), (x, u))[1] for g in (f, dense))
                close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


def test_windows_are_narrow():
    """A block has far fewer columns than n, and each row is in one block."""
    u = torch.linspace(0, 10, 4096)
    for mode in MODES:
        args = u, pairwise_sigmoid.distances(u, mode), u
        found = list(neuralsort.Values.blocks(mode, 2**16, *args))
        assert [i for b in found for i in range(b.top, b.bottom)] == list(range(4096))
        assert sum((b.bottom - b.top) * (b.right - b.left) for b in found) < 4096**2 / 4
        assert all((b.bottom - b.top) * (b.right - b.left) <= 2**16 for b in found)


# --- golden values ----------------------------------------------------------------------------------------------------

GOLDEN = [
    (
        *("rank", "c0", True, 1.0, [-3.0, -1.5, -2.2, -0.7, -4.1]),
        [3.948634396601, 1.9474497633, 2.851057517864, 1.606137239808, 4.426337052114],
        [1.534999415817, 0.999876607787, -4.159083408191, 1.062964592624, 0.5612427919629],
        [-0.4046516525572, 0.4267248729034, -0.8418522956921, -0.8999932344548, 1.7197723098],
    ),
    (
        *("rank", "c1", True, 0.1, [0.3, -0.8, 1.2, 0.5, -0.1]),
        [2.90571026046, 5.0, 1.0, 2.020511360771, 4.033603959191],
        [5.203055018562, 0.2327314336748, 0.01850042948952, -3.237270322456, -2.217016559271],
        [105.1556016846, -12.26256235093, 12.34150431969, -118.122037321, 12.88749366761],
    ),
    (
        *("rank", "c2", True, 1.0, [0.5, -1.0, 0.5, 2.0, -1.0]),
        [2.675414875144, 4.282870209289, 2.675414875144, 1.487993184829, 4.282870209289],
        [0.1428199357863, 1.461096105807, -1.851669036968, 0.8544245182745, -0.6066715228998],
        [0.3447604601345, 1.792669095021, 0.1754706210944, -0.450680775963, -1.862219400288],
    ),
    (
        *("rank", "smooth", True, 1.0, [0.5, -1.0, 0.5, 2.0, -1.0]),
        [2.746022823822, 3.789127025765, 2.746022823822, 1.95432756771, 3.789127025765],
        [1.116029878872, 0.5479928040873, -0.4049071756683, -0.3555612331422, -0.9035542741491],
        [0.1338599620482, 0.4270027721182, -0.1192216060977, -0.2579553303548, -0.1836857977204],
    ),
    (
        *("sort", "c0", False, 1.0, [0.3, -0.8, 1.2, 0.5, -0.1]),
        [-0.7052027162374, -0.5333966139775, 0.2331299330878, 0.8952246343414, 1.114060918999],
        [0.2800696497639, 3.658175257738, 9.150889426945, 0.2185617859103, 1.692303879643],
        [2.350607273908, 0.6931293491171, 0.6718827913736, -2.214168922288, -1.501450492076],
    ),
    (
        *("sort", "c1", False, 0.1, [-3.0, -1.5, -2.2, -0.7, -4.1]),
        [-4.01602079858, -3.0, -2.2, -1.522821447765, -0.7590722934463],
        [2.28981503139, 2.057432640501, 3.723398224159, 5.898457251455, 1.030896852495],
        [-5.292531975435, 0.1244199704242, 9.550505019572, -3.719904060643, -0.6624889539486],
    ),
    (
        *("sort", "c2", False, 0.1, [0.3, -0.8, 1.2, 0.5, -0.1]),
        [-0.799743211124, -0.1, 0.3024216459326, 0.4957147575693, 1.2],
        [2.675539838607, 0.9557818914031, 5.024840247712, 4.094866708026, 2.248971314252],
        [-1.746588459764, -1.454890188552, 0.9409164548776, -2.571628068207, 4.83219026164],
    ),
    (
        *("sort", "smooth", False, 1.0, [0.5, -1.0, 0.5, 2.0, -1.0]),
        [-0.5467694345172, -0.2403925419812, 0.1711079534379, 0.6277436818534, 1.044701390646],
        [2.964852348669, 2.314198379344, 2.964852348669, 4.441898543974, 2.314198379344],
        [0.9618833013714, 0.02875925395237, -0.8466261463232, -0.05762848169037, -0.08638792730572],
    ),
]


@pytest.mark.short
@pytest.mark.parametrize("size", [8, 1000])
@pytest.mark.parametrize(
    ("op", "mode", "descending", "softness", "x", "out", "gradient", "product"),
    GOLDEN,
    ids=lambda v: str(v) if type(v) is str else "",
)
def test_golden(blocks, size, op, mode, descending, softness, x, out, gradient, product):
    """Values and derivatives of an independent implementation, for standardized rows, are equal. Descending order is -u."""
    blocks(size, 2)

    def f(x):
        h = (x - x.mean()) / (x.var(unbiased=False) + 1e-6).sqrt()
        u = torch.sigmoid(h) / softness
        return soft_values(u, x, mode) if op == "sort" else soft_ranks(-u if descending else u, mode)

    def weighted(x):
        return (f(x) * torch.arange(1, 6, dtype=double)).sum()

    x = torch.tensor(x, dtype=double)
    direction = torch.tensor(
        [0.5403023058681, -0.4161468365471, -0.9899924966004, -0.6536436208636, 0.2836621854632], dtype=double
    )
    close(f(x), torch.tensor(out, dtype=double), rtol=1e-10, atol=1e-9)
    g, h = jvp(grad(weighted), (x,), (direction,))
    close(g, torch.tensor(gradient, dtype=double), rtol=1e-8, atol=1e-8)
    close(h, torch.tensor(product, dtype=double), rtol=1e-5, atol=1e-5)


# --- derivatives are right, under every transform ----------------------------------------------------------------------


@pytest.mark.long
@named
@pytest.mark.parametrize("mode", ["smooth", "c1"])
def test_gradcheck(blocks, name, mode):
    inputs = [v.requires_grad_() for v in point(5)]

    def f(u, x):
        return FUNCTIONS[name][0](u, x, mode)

    assert gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, inputs, check_batched_grad=True, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.short
@pytest.mark.parametrize("name", ["values", "ranks"])
@pytest.mark.parametrize("mode", ["c1", "c2"])
def test_second_derivative(blocks, name, mode):
    """The second derivative is right, where softtorch 0.1.1 is off by 0.26 of 4.0, and for ranks by 4.9 of 48."""
    u, x = point(6, seed=3)
    f = total(FUNCTIONS[name][0], mode)
    step = 1e-5

    def slope(u):
        return grad(f)(u, x)

    numeric = torch.stack([(slope(u + step * e) - slope(u - step * e)) / (2 * step) for e in torch.eye(6, dtype=double)])
    for found in (hessian(f)(u, x), jacrev(grad(f))(u, x), jacfwd(jacfwd(f))(u, x), jacrev(jacrev(f))(u, x)):
        close(found, numeric, rtol=1e-5, atol=1e-5 * float(numeric.abs().max()))


@pytest.mark.short
@named
def test_vmap(blocks, name):
    """Batches of rows, of u alone, and of x alone, as one call and as a loop, are equal."""
    f = total(FUNCTIONS[name][0], "c1")
    u, x = point(3, 6)
    both = grad(f, argnums=(0, 1))
    loop = [both(a, b) for a, b in zip(u, x, strict=True)]
    close(vmap(both)(u, x), tuple(torch.stack(g) for g in zip(*loop, strict=True)))
    loop = [both(a, x[0]) for a in u]
    close(vmap(both, (1, None))(u.mT, x[0]), tuple(torch.stack(g) for g in zip(*loop, strict=True)))
    loop = [both(u[0], b) for b in x]
    close(vmap(both, (None, 0))(u[0], x), tuple(torch.stack(g) for g in zip(*loop, strict=True)))
    # The gradient of what was not batched is that of the sum.
    close(grad(lambda a: vmap(f, (None, 0))(a, x).sum())(u[0]), sum(g[0] for g in loop))


@pytest.mark.short
@named
def test_batched_cotangents(blocks, name):
    u, x = point(6)
    u.requires_grad_()
    y = FUNCTIONS[name][0](u, x, "smooth")
    cotangents = torch.randn(4, *y.shape, dtype=double, generator=torch.Generator().manual_seed(0))
    (batched,) = torch.autograd.grad(y, u, cotangents, is_grads_batched=True, retain_graph=True)
    close(batched, torch.stack([torch.autograd.grad(y, u, c, retain_graph=True)[0] for c in cotangents]))


@pytest.mark.short
@named
def test_forward_mode(blocks, name):
    """Dual tensors work without a transform."""
    f, dense = FUNCTIONS[name]
    u, x = point(2, 5)
    with torch.autograd.forward_ad.dual_level():
        found = [
            torch.autograd.forward_ad.unpack_dual(g(torch.autograd.forward_ad.make_dual(u, x), x, "c2"))[1] for g in (f, dense)
        ]
    close(*found, rtol=1e-9, atol=1e-9)


# --- compiled and traced ----------------------------------------------------------------------------------------------


@pytest.mark.short
@named
def test_compile(blocks, name):
    """Value and gradient are one node each, whose blocks are not traced."""
    f = FUNCTIONS[name][0]
    u, x = point(40)
    blocks(200, 4)
    compiled = torch.compile(lambda u, x: f(u, x, "c1"), fullgraph=True, backend="aot_eager")
    a, b = (u.clone().requires_grad_() for _ in range(2))
    y, z = f(a, x, "c1"), compiled(b, x)
    close(z, y)
    w = torch.arange(y.shape[-1], dtype=double)
    close(torch.autograd.grad(z, b, w), torch.autograd.grad(y, a, w))
    traced = make_fx(grad(total(f, "c1")))(u, x)
    close(traced(u + 0.1, x), grad(total(f, "c1"))(u + 0.1, x))
    assert len(traced.graph.nodes) < 150
    assert sum("by_blocks" in str(node.target) for node in traced.graph.nodes) == {"pairwise": 2, "weights": 2}.get(name, 4)


@pytest.mark.long
def test_compiled_hessian(blocks):
    """A tracer records only a few blocks beyond the first derivative."""
    f = total(soft_values, "smooth")
    u, x = point(6)
    traced = make_fx(jacrev(grad(f)))(u, x)
    close(traced(u + 0.1, x), hessian(f)(u + 0.1, x), rtol=1e-9, atol=1e-9)


def test_meta(blocks):
    """Meta tensors get shapes without numbers."""
    u = torch.empty(3, 50, device="meta", requires_grad=True)
    for name, (f, _) in FUNCTIONS.items():
        y = f(u, u, "c1")
        assert y.shape == ((3, 2) if name == "weights" else (3, 50))
        assert torch.autograd.grad(y.sum(), u)[0].shape == (3, 50)


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@in_modes
@named
@pytest.mark.parametrize("size", [0, 100])
def test_small(blocks, name, mode, size):
    """Rows of one element, and no rows, work."""
    blocks(size, 1)
    f = FUNCTIONS[name][0]
    for shape in ((1,), (3, 1), (0, 4)):
        u, x = (v.requires_grad_() for v in point(*shape))
        y = f(u, x, mode)
        expected = (2,) if name == "weights" else shape[-1:]
        assert y.shape == (*shape[:-1], *expected)
        assert torch.autograd.grad(y.sum(), u)[0].shape == shape
        if shape[-1] == 1:
            close(y, torch.ones_like(y) if name in ("ranks", "pairwise") else x.expand(y.shape))


@pytest.mark.short
@named
@pytest.mark.parametrize("size", [8, 1000])
def test_nan(blocks, name, size):
    """A row with a NaN is NaN, and the others are right."""
    blocks(size, 2)
    u, x = point(2, 6)
    u[1, 3] = torch.nan
    for mode in MODES:
        y = FUNCTIONS[name][0](u, x, mode)
        assert y[1].isnan().all()
        close(y[0], FUNCTIONS[name][0](u[0], x[0], mode))


@pytest.mark.short(of=3)
@named
@in_modes
def test_float32(blocks, name, mode):
    """float32 is right also far from 0: subtracting a constant moves no weight."""
    blocks(2000, 4)
    u, x = point(200, scale=4.0, dtype=torch.float32)
    f = FUNCTIONS[name][0]
    for shift in (0, 256):
        v = u + shift
        found, exact = f(v, x, mode), f(v.double(), x.double(), mode)
        assert found.dtype == torch.float32
        close(found.double(), exact, rtol=2e-3, atol=2e-3)
        close(grad(total(f, mode))(v, x).double(), grad(total(f, mode))(v.double(), x.double()), rtol=2e-2, atol=2e-2 * 200)


@pytest.mark.short
@named
@in_modes
def test_descending(blocks, name, mode):
    """Descending order is that of -u."""
    u, x = point(7)
    f = FUNCTIONS[name][0]
    if name in ("ranks", "pairwise"):
        close(f(-u, x, mode), 8 - f(u, x, mode))
    else:
        close(f(-u, x, mode), f(u, x, mode).flip(-1))


def test_weights(blocks):
    """Weights are rows in the given order, which sum to 1."""
    u, _ = point(2, 6)
    for mode in MODES:
        p = soft_weights(u, mode, [4, 0])
        close(p, dense_weights(u, mode)[..., [4, 0], :])
        close(p.sum(-1), torch.ones(2, 2, dtype=double))


@pytest.mark.short
@named
def test_value_and_gradient_save_the_arguments_alone(blocks, name):
    """The value and the gradient save only the arguments; second derivatives also a block."""
    blocks(2**10, 8)
    u, x = (v.requires_grad_() for v in point(300))
    saved = []

    def keep(t):
        saved.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = FUNCTIONS[name][0](u, x, "c1")
        (g,) = torch.autograd.grad(y.sin().sum(), u, create_graph=True)
        assert max(saved) <= 2 * 300
        torch.autograd.grad(g.sin().sum(), u, create_graph=True)
    assert max(saved) <= 2**10


def test_where_subnormal_numbers_are_flushed():
    """The limit of windows is no subnormal number."""
    x = torch.linspace(0, 1, 2048, dtype=torch.float64)
    expected = soft.rank(x, method="neuralsort")
    torch.set_flush_denormal(True)
    try:
        found = soft.rank(x, method="neuralsort")
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found, expected)


def test_a_default_device_changes_nothing():
    """Constants are made on the device of the input."""
    x = torch.randn(3, 8)
    expected = soft.max(x, -1, mode="c0", method="neuralsort")
    with torch.device("meta"):
        found = soft.max(x, -1, mode="c0", method="neuralsort")
    assert torch.equal(found[0], expected[0])
