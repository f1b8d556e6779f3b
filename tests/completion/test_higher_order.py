"""torch's control flow and `flex_attention` inside `completing`: the derivatives of the same function in plain operations."""

import itertools
import math

import pytest
import torch
from torch import _higher_order_ops as ops
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vjp, vmap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_leaves

import fullgrad
from fullgrad.completion import _completing
from tests.completion.test_completing import peak, seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]


def loss(f):
    return lambda x: sum(
        ((y * 0.7).sin() * torch.linspace(1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in tree_leaves(f(x))
    )


def eager(f, x, order):
    """The derivative of `torch.autograd`, for the second order along cosines."""
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(f)(x), x, create_graph=order == 2)
    return g if order == 1 else torch.autograd.grad((g * x.detach().cos()).sum(), x)[0]


def of_dual(f, x):
    with forward_ad.dual_level():
        return [forward_ad.unpack_dual(y).tangent for y in tree_leaves(f(forward_ad.make_dual(x, x.cos())))]


def batch(x):
    return torch.stack([x, x.flip(0) * 2, x.sin() - 1])


TRANSFORMS = {
    "value": lambda f, x: f(x),
    "backward": lambda f, x: eager(f, x, 1),
    "backward of backward": lambda f, x: eager(f, x, 2),
    "grad": lambda f, x: grad(loss(f))(x),
    "vjp": lambda f, x: vjp(loss(f), x)[1](x.new_ones(())),
    "jvp": lambda f, x: jvp(f, (x,), (x.cos(),)),
    "dual level": of_dual,
    "vmap": lambda f, x: vmap(f)(batch(x)),
    "vmap of grad": lambda f, x: vmap(grad(loss(f)))(batch(x)),
    "vmap of jvp": lambda f, x: vmap(lambda x: jvp(f, (x,), (x.cos(),)))(batch(x)),
    "hessian": lambda f, x: hessian(loss(f))(x),
    "jvp of grad": lambda f, x: jvp(grad(loss(f)), (x,), (x.cos(),)),
    "grad of jvp": lambda f, x: grad(lambda x: jvp(loss(f), (x,), (x.cos(),))[1])(x),
    "jvp of jvp": lambda f, x: jvp(lambda x: jvp(f, (x,), (x.cos(),))[1], (x,), (x,)),
}


# --- Control flow ---------------------------------------------------------------------------------------------------------

X = seeded(4, 3)
W = seeded(5, 3).flip(-1)[1]  # which functions capture


def plain_scan(x):
    state, results = torch.ones(3, dtype=x.dtype), []
    for row in x.flip(0):
        state, y = state * 0.5 + row.sin() * W, (state * row, row.exp())
        results.append(y)
    return state, [torch.stack(column[::-1]) for column in zip(*results, strict=True)]


def plain_loop(x):
    """As long as the sum is small, for each sample of a batch."""
    for _ in range(3):
        x = torch.where(x.abs().sum() < 20, x * 1.5 + W, x)
    return x


def of_operator(name, *args):
    return getattr(torch.ops.higher_order, name)(*args)


CONTROL_FLOW = {
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda x: (x.sin() * W, x.exp()), lambda x: (x.cos() * x, x * x), (x,)),
        lambda x: (torch.where(x.sum() > 0, x.sin() * W, x.cos() * x), torch.where(x.sum() > 0, x.exp(), x * x)),
    ),
    "cond of a constant": (
        lambda x: torch.cond(torch.tensor(False), lambda x: x.sin(), lambda x: x.cos() * x, (x,)),
        lambda x: x.cos() * x,
    ),
    "map": (lambda x: ops.map(lambda row, w: {"a": row.sin() * w}, x, W), lambda x: x.sin() * W),
    "scan": (
        lambda x: ops.scan(
            lambda c, row: (c * 0.5 + row.sin() * W, [c * row, row.exp()]), torch.ones(3, dtype=x.dtype), x, reverse=True
        ),
        plain_scan,
    ),
    "scan of columns": (
        lambda x: ops.scan(lambda c, column: (c + column, c * column), torch.zeros_like(x[:, 0]), x, dim=1),
        lambda x: (x.sum(1), (x.cumsum(1) - x) * x),
    ),
    "associative_scan": (
        lambda x: ops.associative_scan(lambda a, b: a * b, x.sin(), 0, combine_mode="generic"),
        lambda x: x.sin().cumprod(0),
    ),
    "while_loop": (
        lambda x: ops.while_loop(
            lambda i, x: (i < 3) & (x.abs().sum() < 20), lambda i, x: (i + 1, x * 1.5 + W), (torch.tensor(0), x)
        )[1],
        plain_loop,
    ),
    "operator cond": (
        lambda x: of_operator("cond", torch.tensor(True), lambda x: (x.sin() * x,), lambda x: (x,), (x,)),
        lambda x: x.sin() * x,
    ),
    "operator map_impl": (lambda x: of_operator("map_impl", lambda x, w: (x.sin() * w,), [x], [W]), lambda x: x.sin() * W),
    "operator scan": (
        lambda x: of_operator("scan", lambda c, x, w: (c + x.sin(), c * w), [x[0]], [x], (W,)),
        lambda x: (x[0] + x.sin().sum(0), (x[0] + x.sin().cumsum(0) - x.sin()) * W),
    ),
    "operator associative_scan": (
        lambda x: of_operator("associative_scan", lambda a, b: [a * b], [x.sin()], ()),
        lambda x: x.sin().cumprod(0),
    ),
    "operator while_loop": (
        lambda x: of_operator("while_loop", lambda i, x: i < 2, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x), ())[1],
        lambda x: x.sin().sin(),
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_control_flow(name, transform):
    """Each operator under each transform is the plain function, also where the samples of a batch take other ways."""
    f, plain = CONTROL_FLOW[name]
    with fullgrad.completing():
        found = TRANSFORMS[transform](f, X)
    torch.testing.assert_close(tree_leaves(found), tree_leaves(TRANSFORMS[transform](plain, X)))


def test_weights_that_branches_capture():
    """Parameters that are no arguments have their gradients, of each sample, too."""
    weight = W.clone().requires_grad_()

    def f(w, x, cond):
        return loss(lambda x: cond(x.sum() > 0, lambda x: w * x, lambda x: w.sin() * x, (x,)))(x)

    def by_where(p, yes, no, given):
        return torch.where(p, yes(*given), no(*given))

    with fullgrad.completing():
        found = vmap(grad(f), (None, 0, None))(W, batch(X), torch.cond)
        (of_weight,) = torch.autograd.grad(f(weight, X, torch.cond), weight)
    torch.testing.assert_close(found, vmap(grad(f), (None, 0, None))(W, batch(X), by_where))
    torch.testing.assert_close(of_weight, grad(f)(W, X, by_where))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CONTROL_FLOW if not name.startswith("operator")])
def test_compiled_control_flow(name):
    """Compiled transforms are right, or raise with the operator's name where a condition is not known."""
    f, plain = CONTROL_FLOW[name]
    ways = {"jvp of grad": lambda f: jvp(grad(loss(f)), (X,), (X.cos(),)), "vmap": lambda f: vmap(f)(batch(X))}
    with fullgrad.completing():
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(X), f(X))
        for way in ways.values():
            compiled = torch.compile(lambda way=way: way(f), backend="aot_eager", fullgraph=True)
            if name.startswith(("cond", "while")):
                with pytest.raises(Exception, match=f"torch.{name.split()[0]} has no derivative or batch in compiled"):
                    compiled()
            else:
                torch.testing.assert_close(tree_leaves(compiled()), tree_leaves(way(plain)))


def test_wrong_control_flow_is_refused():
    """Arguments that do not fit raise, by name."""
    count = itertools.count(1)
    calls = {
        r"torch.cond: the condition .* got shape \(4, 3\)": lambda x: torch.cond(x > 0, torch.sin, torch.cos, (x,)),
        "torch.while_loop: body_fn must return a tuple of 1 values": lambda x: ops.while_loop(
            lambda x: x.sum() < 9, torch.exp, (x,)
        ),
        "scan: the next state must have the structure": lambda x: ops.scan(lambda c, x: ((c, c), x), x[0], x),
        "map: all steps must return one structure": lambda x: ops.map(lambda x: [x] * next(count), x),
        "map: `xs` must have one length": lambda x: ops.map(torch.sin, x[:0]),
    }
    with fullgrad.completing():
        for message, call in calls.items():
            with pytest.raises(RuntimeError, match=message):
                jvp(call, (X,), (X,))


@pytest.mark.long
@pytest.mark.parametrize("name", ["cond", "while_loop", "scan"])
def test_compiled_before_inside_and_after(name):
    """Code that was compiled outside of the context is right inside of it, and after it."""
    compiled = torch.compile(CONTROL_FLOW[name][0], backend="aot_eager", fullgraph=True)
    expected = CONTROL_FLOW[name][1](X)
    torch.testing.assert_close(tree_leaves(compiled(X)), tree_leaves(expected))
    with fullgrad.completing():
        torch.testing.assert_close(tree_leaves(compiled(X)), tree_leaves(expected))
    torch.testing.assert_close(tree_leaves(compiled(X)), tree_leaves(expected))


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * x, lambda x: x.cos() * x, (x,))


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True])
def test_exported_control_flow(strict):
    """An export inside the context keeps torch's operator, and its program has every derivative there."""
    with fullgrad.completing():
        program = torch.export.export(Branches(), (X,), strict=strict)
        assert "cond" in program.graph_module.code
        found = hessian(loss(program.module()))(X)
    torch.testing.assert_close(found, hessian(loss(lambda x: torch.where(x.sum() > 0, x.sin() * x, x.cos() * x)))(X))


def test_torch_is_as_before():
    """Outside of the context torch's own functions stand there again, and its rules are called, whose errors are torch's."""

    def functions():
        return torch.cond.__code__, flex_attention.__code__

    def rules():
        table = torch.ops.higher_order.cond
        return dict(table.functorch_table), dict(table.py_kernels)

    def found():
        called = lambda x: torch.ops.higher_order.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # noqa: E731
        try:
            return jvp(called, (X,), (X,))
        except Exception as error:
            return type(error), str(error)

    _completing.restore()
    before = functions(), rules(), found()
    with fullgrad.completing():
        assert all(now != then for now, then in zip(functions(), before[0], strict=True))
        torch.testing.assert_close(found()[1], (X.cos() if X.sum() > 0 else -X.sin()) * X)
    assert (functions(), found()) == (before[0], before[2])
    _completing.restore()
    assert (functions(), rules(), found()) == before


# --- flex_attention -------------------------------------------------------------------------------------------------------

N, D = 5, 4
Q = seeded(2, 4, N, D)
K, V = seeded(2, 2, 4, N, D)[1] * 0.7, seeded(3, 2, 4, N, D)[2][..., :3]
BIAS = seeded(4, 7, 7)[:, 2:, 2:]
DOCUMENT = torch.tensor([0, 0, 1, 1, 2])


def by_hand(q, k, v, change=lambda s: s, seen=None):
    """Attention and the logarithms of its sums, in plain operations."""
    k, v = [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]
    scores = change(q @ k.mT / math.sqrt(q.shape[-1]))
    weights = scores.exp() if seen is None else scores.exp() * seen
    sums = weights.sum(-1)
    return weights @ v / sums.clamp(min=1e-300)[..., None], sums.log()


def causal(b, h, i, j):
    return i >= j


def of_documents(b, h, i, j):
    return (DOCUMENT[i] == DOCUMENT[j]) & ((b == 0) | (i != 3))  # the second sample has a row without keys


ROWS, COLUMNS = torch.arange(N)[:, None], torch.arange(N)
SEEN = ((DOCUMENT[:, None] == DOCUMENT) & ((torch.arange(2)[:, None, None] == 0) | (ROWS != 3)))[:, None]


def mask(of, n=N):
    return create_block_mask(of, 2 if n == N else None, None, n, n, device="cpu")


def with_sums(y_sums):
    y, aux = y_sums
    return y, getattr(aux, "lse", aux)


FLEX = {
    "no change": (lambda x: flex_attention(x, K, V), lambda x: by_hand(x, K, V)[0]),
    "soft cap": (
        lambda x: flex_attention(x, K, V, lambda s, b, h, i, j: torch.tanh(s) * 2),
        lambda x: by_hand(x, K, V, lambda s: torch.tanh(s) * 2)[0],
    ),
    "keys and values": (
        lambda x: flex_attention(Q, x, x.sin(), lambda s, b, h, i, j: s - (i - j).abs() * 2.0 ** -(h + 1.0)),
        lambda x: by_hand(Q, x, x.sin(), lambda s: s - (ROWS - COLUMNS).abs() * 0.5 ** torch.arange(1.0, 5)[:, None, None])[0],
    ),
    "captured bias": (
        lambda x: flex_attention(Q, K, V, lambda s, b, h, i, j: s * x[0, h, 0, 0] + x[0, h, i, j % 4]),
        lambda x: by_hand(Q, K, V, lambda s: s * x[0, :, :1, :1] + x[0][..., [0, 1, 2, 3, 0]])[0],
    ),
    "captured row": (
        lambda x: flex_attention(x, K, V, lambda s, b, h, i, j: s + (BIAS[h][i] * x[b, h, 0, 0]).sum() * (j == 1)),
        lambda x: by_hand(x, K, V, lambda s: s + BIAS.sum(-1)[None, :, :, None] * x[:, :, :1, :1] * (COLUMNS == 1))[0],
    ),
    "groups": (
        lambda x: flex_attention(Q, x[:, :2], V[:, 2:], enable_gqa=True, scale=0.5),
        lambda x: by_hand(Q, x[:, :2], V[:, 2:])[0],
    ),
    "causal, with sums": (
        lambda x: with_sums(flex_attention(x, K, x, block_mask=mask(causal), return_lse=True)),
        lambda x: by_hand(x, K, x, seen=ROWS >= COLUMNS),
    ),
    "documents, rows without keys": (
        lambda x: flex_attention(x, K, V, block_mask=mask(of_documents)),
        lambda x: by_hand(x, K, V, seen=SEEN)[0],
    ),
    "operator": (
        lambda x: torch.ops.higher_order.flex_attention(
            x, K, V, lambda s, b, h, i, j, w: s * w[h], mask(causal).as_tuple(), 0.5, {}, (BIAS[:, 0, 0],), ()
        )[0],
        lambda x: by_hand(x, K, V, lambda s: s * BIAS[:, :1, :1], ROWS >= COLUMNS)[0],
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FLEX)
def test_flex_attention(name, transform):
    """Each change of scores and mask under each transform is attention by hand."""
    f, plain = FLEX[name]
    with fullgrad.completing():
        found = TRANSFORMS[transform](f, Q)
    torch.testing.assert_close(tree_leaves(found), tree_leaves(TRANSFORMS[transform](plain, Q)), rtol=1e-6, atol=1e-8)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_of_flex_attention(dtype):
    """The value is torch's, bit for bit, and lies in memory as the queries do."""
    q = Q.transpose(1, 2).contiguous().transpose(1, 2)
    given = [x.to(dtype) for x in (q, K, V)]
    options = {"score_mod": lambda s, b, h, i, j: s * 0.7 + BIAS.float()[h, i, j], "block_mask": mask(of_documents)}
    expected = flex_attention(*given, **options)
    with fullgrad.completing():
        found = vjp(lambda q: flex_attention(q, *given[1:], **options), given[0])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert found.stride() == expected.stride()
    found.transpose(1, 2).view(2, N, -1)


@pytest.mark.long(but=1)
def test_autocast():
    """Products are in the precision of autocast, as torch's are."""
    x = Q.float()
    with torch.autocast("cpu", torch.bfloat16):
        expected = flex_attention(x, x, x, lambda s, b, h, i, j: s * 2)
        with fullgrad.completing():
            found = vjp(lambda x: flex_attention(x, x, x, lambda s, b, h, i, j: s * 2), x)[0]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "jvp of grad"])
def test_compiled_flex_attention(transform):
    """A compiled transform has the same numbers."""
    f, x = FLEX["soft cap"][0], Q
    with fullgrad.completing():
        torch._dynamo.reset()
        found = torch.compile(lambda x: TRANSFORMS[transform](f, x), backend="aot_eager", fullgraph=True)(x)
        torch.testing.assert_close(tree_leaves(found), tree_leaves(TRANSFORMS[transform](FLEX["soft cap"][1], x)))


@pytest.mark.long
def test_compiled_gradients_call_the_kernels(monkeypatch):
    """A compiled first gradient has torch's operators, forward and backward, on a device with both; all else is the formula."""
    monkeypatch.setattr("fullgrad.completion._flex_attention._WITHOUT_BACKWARD", set())  # this one may have kernels
    nodes = []

    def noted(graph, inputs):
        nodes.extend(str(n.target) for n in graph.graph.nodes)
        return graph

    def loss(x, bias=BIAS):
        y, sums = flex_attention(x, K, V, lambda s, b, h, i, j: s + bias[h, i, j], block_mask=mask(causal), return_lse=True)
        return y.square().sum() + sums.sin().sum()

    def both(x):
        return grad(loss, (0, 1))(x, BIAS)

    programs = {"grad": grad(loss), "captured": both}
    for name, f in programs.items():
        torch._dynamo.reset()
        nodes.clear()
        with fullgrad.completing():
            expected = tree_leaves(f(Q))
            found = torch.compile(f, backend=aot_autograd(fw_compiler=noted), fullgraph=True)(Q)
        torch.testing.assert_close(tree_leaves(found), expected)
        assert ("flex_attention_backward" in nodes) == ("flex_attention" in nodes) == (name == "grad")


@pytest.mark.long
def test_a_compiled_function_under_transforms():
    """The usual compiled `flex_attention` has its derivatives under transforms that are not compiled."""
    compiled = torch.compile(flex_attention, backend="aot_eager")
    with fullgrad.completing():
        for name in ("value", "jvp of grad", "jvp of jvp", "vmap of grad"):
            found = TRANSFORMS[name](lambda x: compiled(x, K, V, lambda s, b, h, i, j: torch.tanh(s) * 2), Q)
            torch.testing.assert_close(tree_leaves(found), tree_leaves(TRANSFORMS[name](FLEX["soft cap"][1], Q)))


@pytest.mark.long
def test_a_compiled_kernel_with_the_plain_function_as_reference():
    """A compiled `flex_attention` is a kernel whose derivatives of every order are those of the plain one."""
    f = lambda q: flex_attention(q, K, V, lambda s, b, h, i, j: torch.tanh(s) * 2)  # noqa: E731
    op = fullgrad.with_reference(torch.compile(f, backend="aot_eager", fullgraph=True), f)
    with fullgrad.completing():
        for name in ("value", "grad", "jvp of grad", "jvp of jvp", "vmap of grad"):
            found, expected = TRANSFORMS[name](op, Q), TRANSFORMS[name](FLEX["soft cap"][1], Q)
            torch.testing.assert_close(tree_leaves(found), tree_leaves(expected))


@pytest.mark.long
@pytest.mark.parametrize("way", ["grad", "jvp", "backward of backward"])
def test_many_queries(way):
    """Blocks of queries have the same derivatives, with a part of the memory of all scores."""
    n = 1200
    q, k, v = seeded(3, 1, 1, n, 64).float()
    slope, ahead, seen = torch.tensor(0.1), torch.arange(n)[:, None] - torch.arange(n), mask(causal, n)

    def f(x):
        change = lambda s, b, h, i, j: s - slope * (i - j)  # noqa: E731
        return with_sums(flex_attention(q, k * x[0, 0, 0, 0], x, change, seen, return_lse=True))

    def plain(x):
        return by_hand(q, k * x[0, 0, 0, 0], x, lambda s: torch.where(ahead >= 0, s - slope * ahead, -torch.inf))

    found, expected = [], []
    of_plain = peak(lambda: expected.append(TRANSFORMS[way](plain, v)))
    with fullgrad.completing():
        most = peak(lambda: found.append(TRANSFORMS[way](f, v)))
    torch.testing.assert_close(tree_leaves(found), tree_leaves(expected), rtol=1e-3, atol=1e-3)
    assert most < of_plain / 4, most / of_plain
