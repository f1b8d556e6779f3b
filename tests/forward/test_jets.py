"""`jet` and `taylor`: the numbers of JAX, of nested jvp, and of closed forms; whatever the code of f is."""

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import fullgrad
from fullgrad import implicit, quantizers, safe, soft, spikes
from fullgrad.forward import jet, taylor
from fullgrad.forward._curve import along_curves, derivatives_by_jvp
from tests.forward.golden import FUNCTIONS

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
ORDER = 3
X = torch.linspace(0.15, 1.35, 5, dtype=torch.float64)
V = torch.tensor([0.5, -1.0, 0.25, 0.75, -0.6], dtype=torch.float64)
W = torch.linspace(-1, 1, 25, dtype=torch.float64).reshape(5, 5).sin()


def floating(tree):
    return [y for y in pytree.tree_leaves(tree) if isinstance(y, torch.Tensor) and y.is_floating_point()]


def nested(f, x, series):
    """The leaves of f's result and of its derivatives along curves, by nested jvp of all of f."""
    with fullgrad.completing():
        return derivatives_by_jvp(lambda *x: floating(f(*x)), x, series)


def check(f, x=X, v=V, order=ORDER):
    """Compare a Taylor series, and the second order that several directions share, with nested jvp."""
    zero = torch.zeros_like(x)
    found = [floating(y) for y in taylor(f, x, v, order)]
    torch.testing.assert_close(found, nested(f, [x], [[v], *[[zero]] * (order - 1)]), rtol=1e-9, atol=1e-9)
    directions = torch.stack([v, x.cos(), v * x])
    shared = along_curves(lambda x: floating(f(x)), [x], [[directions], [zero]], True)[2]
    each = [nested(f, [x], [[d], [zero]])[2] for d in directions]
    torch.testing.assert_close(shared, [sum(parts) for parts in zip(*each, strict=True)], rtol=1e-9, atol=1e-9)


# --- Oracles --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", FUNCTIONS)
@pytest.mark.short(of=4)
def test_jets_are_those_of_jax(text):
    x, series, w = (torch.tensor(GOLDEN[name], dtype=torch.float64) for name in ("x", "series", "w"))
    f = eval(f"lambda x: {text}", {**vars(torch), "w": w})
    for order in (1, 2, 6):
        value, derivatives = jet(f, (x,), (list(series[:order]),))
        for found, wanted in zip([value, *derivatives], GOLDEN["jets"][text], strict=False):
            torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("f", "wanted"),
    [
        (lambda t: 1 / (1 - t), [float(math.factorial(k)) for k in range(9)]),
        (torch.sin, [math.sin(k * math.pi / 2) for k in range(9)]),
        (torch.log1p, [0.0, *[(-1.0) ** (k - 1) * math.factorial(k - 1) for k in range(1, 9)]]),
        (torch.tan, [0.0, 1.0, 0.0, 2.0, 0.0, 16.0, 0.0, 272.0, 0.0]),
    ],
)
def test_closed_forms_to_order_8(f, wanted):
    found = taylor(f, torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64), 8)
    torch.testing.assert_close(torch.stack(found), torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_under_autocast_values_have_the_dtype_of_the_function():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2), nn.LayerNorm(2)), X.float()
    exact = taylor(lambda x: net.double()(x), X, V, 2)
    net.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = taylor(net, x, V.float(), 2)
        assert {y.dtype for y in found} == {net(x).dtype} == {torch.bfloat16}
    torch.testing.assert_close([y.double() for y in found], exact, rtol=0.1, atol=0.1)


HALF = {
    "norm": lambda x: x.norm(),
    "layer norm": lambda x: F.layer_norm(x, (5,)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, :, None], x[None, :, None], x[None, :, None]),
    "silu": F.silu,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALF)
def test_in_half_precision_nothing_overflows_or_cancels(name, dtype):
    """The squares of these elements are infinite in float16."""
    f, x, v = HALF[name], (X * 600).to(dtype), (V * 600).to(dtype)
    found, exact = taylor(f, x, v, 1), taylor(f, x.double(), v.double(), 1)
    assert {y.dtype for y in found} == {dtype}
    torch.testing.assert_close([y.double() for y in found], exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("f", [lambda x: x.float() + W[0], lambda x: W[0] - x.float(), lambda x: x.softmax(0, torch.float32)])
def test_derivatives_have_the_dtype_of_the_value(f):
    assert len({y.dtype for y in taylor(f, X, V, 2)}) == 1


def test_a_detached_or_drawn_tensor_has_no_derivative():
    """torch's own `detach_` is one at the innermost level of nested forward mode alone."""

    def drawn(x):
        torch.manual_seed(0)
        return x.clone().normal_() * x + x.clone().clamp(0, 1).bernoulli_() * x

    def written_noise(x):
        torch.manual_seed(0)
        return torch.empty_like(x).normal_() * x + torch.empty_like(x).bernoulli_() * x

    for f, wanted in ((lambda x: x.clone().detach_() * x * x, lambda x: X * x * x), (drawn, written_noise)):
        torch.testing.assert_close(taylor(f, X, V, 2), taylor(wanted, X, V, 2))
    nan = torch.tensor([math.nan, -1.0, 0.0, 1.0])
    torch.testing.assert_close(taylor(torch.relu, nan, torch.ones(4), 1)[1], torch.tensor([1.0, 0.0, 0.0, 1.0]))


def test_order_0_is_the_value():
    assert torch.equal(taylor(torch.sin, X, V, 0)[0], X.sin())
    assert len(taylor(torch.sin, X, V, 0)) == 1


def test_arguments_and_results_are_trees():
    x, series = {"a": X, "b": [V]}, {"a": [V, X], "b": [[X, V]]}
    value, derivatives = jet(lambda t, c: (t["a"] * t["b"][0] * c, {"n": t["a"].argmax()}), (x, X), (series, [V, V]))
    first = nested(lambda a, b, c: a * b * c, [X, V, X], [[V, X, V], [X, V, V]])
    torch.testing.assert_close([value[0], *derivatives[0]], [y for (y,) in first])
    assert value[1]["n"] == 4
    assert derivatives[1]["n"] == [0, 0]


# --- Functions of torch ---------------------------------------------------------------------------------------------------


ATEN = torch.ops.aten
ROWS = torch.tensor([0, 1, 1, 2, 4])
LOWER = torch.ones(5, 5).tril().double().where(torch.ones(5, 5).triu() < 1, 1e-9)


def attend(query, key, value, mask=None):
    return F.scaled_dot_product_attention(key=key[:, None], query=query[:, None], value=value[:, None], attn_mask=mask)[:, 0]


def written(x):
    y = x.sin()
    y[1:3].mul_(x[0])
    y += x
    y[0] = x[1]
    y.clamp_(max=1.0).div_(x + 2)
    return y


def into_a_constant(x):
    y = torch.zeros(5, dtype=x.dtype)
    y[1:] = x[1:].sin()
    return y * x


def viewed_in_place(x):
    y, z = torch.outer(x, x), (x * x).clone()
    row = y[0]
    y.t_().swapaxes_(0, 1).unsqueeze_(0).squeeze_()
    y.transpose_(0, 1)
    row.mul_(x[1])
    z %= 0.7
    z.as_strided_((2, 2), (1, 2))
    return torch.cat([y * W, z.abs().polygamma_(1)[:1].repeat(1, 3)[:, :5]])


def branches(x):
    total = x.sum() * 0
    for row in x:
        total = total + (row.exp() if row > 0.5 else row**3)
    return total * len(x)


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x


CODE = {
    "dtypes": lambda x: (x.float() * 3).double() * float(x[0]) + x.to(torch.float32).mean(dtype=torch.float64) + x.long(),
    "complex numbers": lambda x: torch.fft.fft(x).exp().abs() + torch.view_as_real(torch.complex(x, x.sin()).square()).sum(-1),
    "a scripted function": scripted,
    "operators": lambda x: 2**x + x**x + x**3 - 1 / x + 3 * x / 2 - (2 - x) @ x + abs(-x) + x.square().sqrt().rsqrt(),
    "attributes": lambda x: torch.outer(x, x).mT.real @ W[: x.shape[0], : x.numel()] * x.new_ones(5).to(x.dtype),
    "isinstance": lambda x: x * 2 if isinstance(x, torch.Tensor) else x,
    "unbound methods": lambda x: torch.Tensor.sum(torch.Tensor.sin(x)),
    "in place": written,
    "written into a constant": into_a_constant,
    "branches": branches,
    "einsum": lambda x: torch.einsum("i,j,ij->j", x, x.sin(), W),
    "reductions": lambda x: x.cumprod(0) * x.max() + x.logsumexp(0) + x.std() + x.topk(2).values.sum() + x.prod(),
    "norms": lambda x: x.norm() * torch.linalg.vector_norm(x) + torch.linalg.norm(x) + x.norm(p=1),
    "indices": lambda x: x[[0, 2]].repeat(2) * torch.cat([x[1:], x[:1]]).flip(0)[:4] + x.gather(0, torch.tensor([1, 1, 0, 4])),
    "matrices": lambda x: torch.linalg.inv(W + torch.diag(x + 3)) @ x + torch.linalg.slogdet(W + torch.diag(x + 3))[1],
    "chains": lambda x: F.softplus(x).log().erf() + F.gelu(x).atan() + F.silu(x).asinh() + torch.logit(x / 2),
    "sizes": lambda x: x.view(5, 1).expand(5, 2).reshape(-1)[: len(x)] * x.unfold(0, 3, 1).sum(),
    "constants of numpy": lambda x: torch.where(x > 0.5, x, np.float64(2.0)) + x.masked_fill(x < 0.5, np.finfo("f4").min) + True,
    "complex constants": lambda x: torch.where(x > 0.5, x, 1j).exp().abs() + (x + 1j).log().imag,
    "keywords": lambda x: torch.add(alpha=2, other=W[0], input=x).sin() + x.index_add(dim=0, alpha=2, index=ROWS, source=W[1]) * x
    + F.linear(weight=W, input=x, bias=W[0]) * torch.div(other=x.exp(), input=x) + torch.logsumexp(input=x, dim=0)
    + F.linear(W, weight=x) * torch.layer_norm(input=x, normalized_shape=(5,)) + attend(key=x, query=x.sin(), value=W[0]),
    "a mask of nothing": lambda x: attend(x, x.sin(), x * x, torch.ones(5, 5).tril(-1) > 0) + attend(x, x, x, -math.inf * LOWER),
    "memory shared by elements": lambda x: (x * x).expand(3, 5).sum_to_size(1, 5) * torch.broadcast_to(x, (3, 5)).cumprod(0),
    "overloads in place": lambda x: [y := x * 1, ATEN.mul_.Tensor(y, x), ATEN.add_.Tensor(y, x, alpha=2), y * y],
    "remainders in place": lambda x: [y := x * 3, v := y[:2], y.__imod__(0.7), v * v],
    "views in place": viewed_in_place,
    "where": lambda x: torch.where(x > 0.5, x.sin(), 2.0) + torch.maximum(x, 1 - x) + x.masked_fill(x < 0.5, 0.0),
    "a derivative inside": lambda x: grad(lambda x: (x.sin() * x).sum())(x) * x,
    "a jvp inside": lambda x: jvp(torch.sin, (x,), (x,))[1] * x,
    "a vmap inside": lambda x: vmap(lambda a: a.sin() * a)(x) * x,
    "a jet inside": lambda x: taylor(lambda y: (y * x).sin(), x, x * V, 2)[2],
    "torch.autograd.grad": lambda x: torch.autograd.grad((lambda y: (y.sin() * x).sum())(y := x * 1), y, create_graph=True)[0] * x
    if x.requires_grad
    else x,
    "checkpoint": lambda x: fullgrad.checkpoint(lambda y: y.sin() * x, x) * x,
    "torch's checkpoint": lambda x: torch_checkpoint(lambda y: y.sin() * x, x, use_reentrant=False) * x,
    "no derivative": lambda x: x.detach() * x + x.round() * x.sign() + torch.ones_like(x),
    "a constant": lambda x: torch.ones(3, dtype=torch.float64),
    "functional_call": lambda x: functional_call(nn.Linear(5, 5), {"weight": torch.outer(x, x.sin()), "bias": x}, (x,)),
}  # fmt: skip

if torch.__version__.startswith("2.11."):  # which has no tangent of its checkpoint: docs/families/forward.md
    del CODE["torch's checkpoint"]


@pytest.mark.parametrize("name", CODE)
@pytest.mark.short(of=3)
def test_ordinary_code_has_the_jets_of_nested_jvp(name):
    check(CODE[name])


def modules():
    torch.manual_seed(0)
    first = lambda m: lambda x: m(x)[0]  # noqa: E731
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    padding = torch.tensor([[False, False, True]])
    made = {
        "linear": nn.Linear(4, 5), "conv": nn.Conv1d(3, 2, 3, padding=1), "layer_norm": nn.LayerNorm(4),
        "rms_norm": nn.RMSNorm(4), "batch_norm": nn.BatchNorm1d(4, track_running_stats=False),
        "group_norm": nn.Sequential(nn.Unflatten(1, (4, 1)), nn.GroupNorm(2, 4)), "attention": attention,
        "gru": nn.GRU(4, 5), "lstm": nn.LSTM(4, 5), "pool": nn.MaxPool1d(2), "prelu": nn.PReLU(), "silu": nn.SiLU(),
        "softmax": nn.Softmax(-1), "bilinear": nn.Bilinear(4, 4, 2), "embedding": nn.Embedding(3, 4), "encoder": encoder,
        "in_place": nn.Sequential(nn.Linear(4, 4), nn.SiLU(inplace=True)), "upsample": nn.Upsample(scale_factor=2, mode="linear"),
    }  # fmt: skip
    for module in made.values():
        module.double()
    calls = dict(made)
    calls |= {"gru": first(made["gru"]), "lstm": first(made["lstm"]), "bilinear": lambda x: made["bilinear"](x, x.sin())}
    calls["embedding"] = lambda x: made["embedding"](torch.tensor([0, 2, 1])) * x
    calls["encoder"] = lambda x: encoder(x[None], src_key_padding_mask=padding)
    calls["attention"] = lambda x: attention(x[None], x[None].sin(), x[None], attn_mask=torch.ones(3, 3).triu(1).bool())[0]
    calls["upsample"] = lambda x: made["upsample"](x[None])
    return calls


MODULES = modules()


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_the_jets_of_nested_jvp(name):
    x = torch.linspace(-1, 1.4, 12, dtype=torch.float64).reshape(3, 4).sin()
    check(lambda x: MODULES[name](x).sin(), x, x.cos(), 2)


RANDOM = ("rand", "bernoulli", "dropout", "multinomial", "normal", "cauchy", "exponential", "geometric", "uniform", "rrelu")
PARTS = 120


def operators_of_torch(part):
    """One part of torch's operators; their list takes seconds to import."""
    from torch.testing._internal.common_methods_invocations import op_db

    suited = [op for op in op_db if op.supports_forward_ad and torch.float64 in op.dtypes]
    return [op for op in suited if not any(word in op.name for word in (*RANDOM, "empty", "as_strided"))][part::PARTS]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.exhaustive(but=1)
@pytest.mark.filterwarnings("ignore")  # samples of torch use deprecated functions
def test_operators_of_torch_have_the_jets_of_nested_jvp(part):
    samples = [(op, sample) for op in operators_of_torch(part) for sample in list(op.sample_inputs("cpu", torch.float64))[:4]]
    for op, sample in samples:
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        where = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor) and v.is_floating_point() and v.numel()]
        x = [leaves[i].detach().clone() for i in where]
        if not x or sum(t.numel() for t in x) > 400:
            continue

        def f(*tensors, op=op, leaves=leaves, where=where, spec=spec):
            given = list(leaves)
            for i, t in zip(where, tensors, strict=True):
                given[i] = t
            args, kwargs = pytree.tree_unflatten(given, spec)
            return [y for y in pytree.tree_leaves(op(*args, **kwargs)) if isinstance(y, torch.Tensor) and y.is_floating_point()]

        series = [[torch.randn_like(t) for t in x] for _ in range(2)]
        try:
            wanted = nested(f, x, series)
        except Exception:
            continue
        value, derivatives = jet(f, tuple(x), tuple([list(parts) for parts in zip(*series, strict=True)]))
        found = [value, *[[d[k] for d in derivatives] for k in range(2)]]
        finite = lambda y: torch.where(y.isfinite(), y, 0.0)  # noqa: E731
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(
                list(map(finite, a)), list(map(finite, b)), rtol=1e-7, atol=1e-7, msg=f"{op.formatted_name}: {{}}".format
            )


# --- Declared derivatives ---------------------------------------------------------------------------------------------------


class Spike(fullgrad.Elementwise):
    reads = {0: (0,)}

    @staticmethod
    def forward(x):
        return (x > 0.5).to(x.dtype)

    @staticmethod
    def vjp_term(i, v, x):
        return v * torch.sigmoid(x) * torch.sigmoid(-x)


class Old(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0.5).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g / (1 + ctx.saved_tensors[0].abs()) ** 2


def by_jvp():
    f = fullgrad.custom_jvp(torch.round)  # it has the name of torch's function, which must not be its rule
    f.defjvps(lambda t, y, x: t * x.cos())
    return f


def by_vjp():
    f = fullgrad.custom_vjp(torch.round)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * x.cos(),))
    return f


CUSTOM_JVP, CUSTOM_VJP, THROUGH = by_jvp(), by_vjp(), fullgrad.straight_through(torch.round, torch.sin)
SQRT = implicit.root(lambda z, x: z * z - x)(lambda z, x: x.sqrt())
CUMSUM = fullgrad.linear_map(lambda x: x.cumsum(0), lambda g: g.flip(0).cumsum(0).flip(0))
DECLARED = {
    "round": lambda x: fullgrad.round(x * 3) ** 2,
    "apply": lambda x: fullgrad.Round.apply(x * 3) * x,
    "by keyword": lambda x: fullgrad.Clamp.apply(x, max_value=x.mean()) * x,
    "an Elementwise": lambda x: Spike.apply(x) * x + Spike.apply(x).sin(),
    "a parameter that moves": lambda x: spikes.atan(x, alpha=x.exp()) * x,
    "lsq": lambda x: quantizers.lsq(x, x.abs().mean(), -4, 3) ** 2,
    "sort": lambda x: soft.sort(x).values * x if hasattr(soft.sort(x), "values") else soft.sort(x) * x,
    "rank_st": lambda x: fullgrad.rank_st(x).sin() * x,
    "topk_mask_st": lambda x: fullgrad.topk_mask_st(x, 2) * x,
    "safe": lambda x: safe.norm(x) * x,
    "a module": lambda x: fullgrad.nn.Round()(x * 3) * x,
    "st": lambda x: fullgrad.st(lambda x, mode="smooth": soft.round(x * 2, mode=mode))(x) * x,
    "grad_replace": lambda x: fullgrad.grad_replace(lambda x, forward: (x > 0.5).to(x.dtype) if forward else x.sigmoid())(x) * x,
    "replace_grad": lambda x: fullgrad.replace_grad(x.round(), x.sin()) * x,
    "custom_jvp": lambda x: CUSTOM_JVP(x) * x,
    "custom_vjp": lambda x: CUSTOM_VJP(x) * x,
    "straight_through": lambda x: THROUGH(x) * x,
    "linear_map": lambda x: CUMSUM(x.sin()) * x,
    "with_reference": lambda x: fullgrad.with_reference(torch.sin, torch.sin)(x) * x,
    "root": lambda x: SQRT(torch.ones_like(x), x) * x,
    "solve": lambda x: implicit.solve(lambda w, x: (x * x + 1) * w + w.sum(), x.sin(), x) * x,
    "adopt": lambda x: fullgrad.adopt(Old)(x) * x,
}


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.short(of=4)
def test_declared_derivatives_are_followed(name):
    with torch.no_grad() if name == "st" else torch.enable_grad():
        check(DECLARED[name])


class Layer(nn.Module):
    """A matrix, as an argument of operators made of functions, or captured by them."""

    def __init__(self, use):
        super().__init__()
        self.weight, self.use = nn.Parameter(W.clone()), use

    def forward(self, y):
        return self.use(self, y)


CAPTURED = {
    "root": lambda net, y: implicit.root(lambda z: z * z - (net.weight @ y).exp())(lambda z: (net.weight @ y / 2).exp())(y),
    "root of a module": lambda net, y: implicit.root(lambda z, net, y: z * z - (net.weight @ y).exp())(
        lambda z, net, y: (net.weight @ y / 2).exp()
    )(y, net, y),
    "solve": lambda net, y: implicit.solve(lambda w: net.weight @ w + 3 * w, y),
    "solve of a module": lambda net, y: implicit.solve(lambda w, net: net.weight @ w + 3 * w, y, net),
    "checkpoint": lambda net, y: fullgrad.checkpoint(lambda y: (net.weight @ y).sin(), y),
    "straight_through": lambda net, y: fullgrad.straight_through(
        lambda y: (net.weight @ y).round(), lambda y: (net.weight @ y).sin()
    )(y),
    "with_reference": lambda net, y: fullgrad.with_reference(lambda y: net.weight @ y, lambda y: (net.weight @ y).sin())(y),
    "with_reference of a module": lambda net, y: fullgrad.with_reference(
        lambda net, y: net.weight @ y, lambda net, y: (net.weight @ y).sin()
    )(net, y),
    "closure_convert": lambda net, y: (lambda f, more: f(y, *more))(
        *fullgrad.closure_convert(lambda y: (net.weight @ y).sin(), y)
    ),
}


@pytest.mark.parametrize("name", CAPTURED)
@pytest.mark.short(of=3)
def test_operators_made_of_functions_follow_what_moves_and_is_captured(name):
    layer = Layer(CAPTURED[name])
    check(lambda x: functional_call(layer, {"weight": W * x}, (V,)))


def test_a_function_of_another_package_is_adopted():
    f = lambda x: fullgrad.adopt(Old)(x) * x  # noqa: E731
    found = taylor(lambda x: Old.apply(x) * x, X, V, 3)
    torch.testing.assert_close(found, taylor(f, X, V, 3))


def test_a_value_that_moves_and_is_captured_by_a_rule_is_not_lost():
    def f(x):
        g = fullgrad.custom_jvp(lambda y: y * x)
        g.defjvps(lambda t, z, y: t * x)
        return g(torch.ones_like(x))

    with pytest.raises((RuntimeError, TypeError, NotImplementedError), match="custom_jvp"):
        taylor(f, X, V, 1)


# --- Surroundings -----------------------------------------------------------------------------------------------------------


def test_transforms_around_a_jet():
    f, third = lambda x: (W @ (W @ x).tanh()).exp().sum(), lambda f: lambda x: taylor(f, x, V, 3)[3]
    reference = lambda x: derivatives_by_jvp(lambda x: [f(x)], [x], [[V], [0 * V], [0 * V]])[3][0]  # noqa: E731
    batch = torch.stack([X, X.sin()])
    torch.testing.assert_close(grad(third(f))(X), grad(reference)(X))
    torch.testing.assert_close(vmap(grad(third(f)))(batch), torch.stack([grad(reference)(x) for x in batch]))
    torch.testing.assert_close(jvp(third(f), (X,), (V,)), jvp(reference, (X,), (V,)))
    torch.testing.assert_close(taylor(third(f), X, V, 1), taylor(f, X, V, 4)[3:])


def test_a_backward_reaches_parameters():
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    parameters = [p for k, p in net.named_parameters() if k != "2.bias"]
    found = torch.autograd.grad(taylor(net, X, V, 3)[3].sum(), parameters)
    wanted = torch.autograd.grad(derivatives_by_jvp(lambda x: [net(x)], [X], [[V], [0 * V], [0 * V]])[3][0].sum(), parameters)
    torch.testing.assert_close(found, wanted)


def test_the_given_tensors_stay_as_they_are():
    x, v = X.clone(), V.clone()
    taylor(lambda x: x.mul_(2).add_(1), x, v, 2)
    assert torch.equal(x, X)
    assert torch.equal(v, V)


def test_one_dropout_mask_of_value_and_derivatives():
    torch.manual_seed(0)
    value, first, second = taylor(lambda x: F.dropout(x * x, 0.5), X, V, 2)
    mask = value / (X * X)
    torch.testing.assert_close(first, mask * 2 * X * V)
    torch.testing.assert_close(second, mask * 2 * V * V)
    assert set(mask.round().tolist()) == {0.0, 2.0}


@pytest.mark.long
def test_compiled_code_that_makes_a_jet_is_right():
    f = lambda x: taylor(lambda x: F.layer_norm(x.sin(), (5,)), x, V, 2)[2].sum()  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.compile(f, backend="aot_eager")(X), f(X))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: jet(3, (X,), ([V],)), TypeError),
        (lambda: jet(torch.sin, X, [V]), TypeError),
        (lambda: jet(torch.sin, (X,), ([V], [V])), ValueError),
        (lambda: jet(torch.sin, (X,), (V,)), TypeError),
        (lambda: jet(torch.mul, (X, X), ([V], [V, V])), ValueError),
        (lambda: jet(torch.sin, (X,), ([V[0]],)), ValueError),
        (lambda: taylor(torch.sin, X, V, -1), ValueError),
        (lambda: taylor(torch.sin, X, V, 1.5), TypeError),
        (lambda: taylor(torch.sin, X, V[:2], 1), ValueError),
        (lambda: taylor(torch.sin, torch.arange(3), torch.arange(3), 1), TypeError),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(call, error):
    with pytest.raises(error, match=r"^(jet|taylor): "):
        call()
