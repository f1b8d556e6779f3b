"""Losses of one sample with parameters and a batch, in float64, and what `vmap(grad)` says about them."""

import contextlib
import functools
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

import fullgrad
from fullgrad import quantizers

F64 = torch.float64


class Model(NamedTuple):
    """A loss of one sample, its parameters, and a batch."""

    loss: Any
    params: Any
    batch: tuple[Any, ...]
    context: Any = contextlib.nullcontext


def numbers(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + 31 * math.prod(shape))
    return scale * torch.randn(*shape, dtype=F64, generator=generator)


def indices(most, *shape, seed=0):
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(seed))


def of_module(module, *batch, to_loss=lambda y: y.square().sum(), frozen=()):
    module = module.double()
    named = {k: p.detach() for k, p in module.named_parameters()}
    fixed = {k: p for k, p in named.items() if k.startswith(frozen)} if frozen else {}
    params = {k: p for k, p in named.items() if k not in fixed}
    return Model(lambda p, *x: to_loss(functional_call(module, {**fixed, **p}, x)), params, batch)


MODELS = {}


def model(function):
    MODELS[function.__name__] = function
    return function


# --- Networks -------------------------------------------------------------------------------------------------------------


@model
def mlp():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    return of_module(net, numbers(5, 6))


@model
def convolutions():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, dilation=2, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(6, 12, 1), nn.MaxPool2d(2), nn.Flatten(0), nn.Linear(48, 3),
    )  # fmt: skip
    return of_module(net, numbers(4, 1, 2, 9, 9))


@model
def convolutions_with_a_dimension_of_samples():
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 2), nn.Flatten(), nn.Linear(16, 2))
    made = of_module(net, numbers(4, 8, 4, 4))
    return made._replace(loss=lambda p, x: made.loss(p, x[None]))


@model
def convolution_1d_and_3d():
    params = {"one": numbers(4, 3, 2), "bias": numbers(4), "three": numbers(3, 2, 2, 2, 2)}

    def loss(p, x, z):
        one = F.conv1d(x, p["one"], p["bias"], 2, padding=1)
        return one.sin().sum() * F.conv3d(z, p["three"], padding="same").cos().mean() + F.conv3d(z, p["three"]).sin().sum()

    return Model(loss, params, (numbers(4, 3, 7), numbers(4, 2, 3, 3, 3)))


@model
def transformer_block():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return of_module(layer, numbers(3, 1, 5, 8), to_loss=lambda y: y.sin().sum())


@model
def attention_with_other_widths():
    layer = nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    made = of_module(layer, numbers(3, 5, 8), numbers(3, 4, 6), numbers(3, 4, 4))
    return made._replace(loss=lambda p, *x: functional_call(layer, p, x)[0].square().sum())


class Language(nn.Module):
    def __init__(self, words=11, width=6, padding=None):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=padding)
        self.norm, self.mix, self.up = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, i):
        h = self.words(i)
        q, k, v = self.mix(self.norm(h)).chunk(3, -1)
        h = h + self.up(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return h @ self.words.weight.T


@model
def tied_embedding():
    return of_module(Language(), indices(11, 4, 7))


@model
def embedding_with_padding():
    net = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Linear(4, 3))
    return of_module(net, indices(7, 5, 9))


@model
def embedding_with_a_negative_padding():
    params = numbers(7, 4), numbers(6)
    return Model(
        lambda p, i, s: (F.embedding(i, p[0], padding_idx=-1).sin() @ p[1][:4]).sum() * s, params, (indices(7, 5, 9), numbers(5))
    )


@model
def embedding_scaled_by_frequency():
    return Model(
        lambda p, i: F.embedding(i, p, scale_grad_by_freq=False).sin().sum() * p.sum(), numbers(5, 3), (indices(5, 4, 6),)
    )


@model
def embedding_of_one_word():
    return Model(lambda p, i: F.embedding(i, p).square().sum(), numbers(5, 3), (indices(5, 4),))


class Cell(nn.Module):
    def __init__(self, n=4, m=5):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(n, m), nn.Linear(m, 2)

    def forward(self, x):
        state = [x.sum() * torch.zeros(1, 5, dtype=x.dtype)] * 2  # torch adds to it in place
        for step in x:
            state = self.cell(step[None], state)
        return self.out(state[0])


@model
def cell_in_a_loop():
    made = of_module(Cell(), numbers(3, 6, 4))
    return made._replace(context=fullgrad.completing)


@model
def written_out_recurrence():
    params = {"in": numbers(5, 3), "again": numbers(5, 5, scale=0.3), "bias": numbers(5)}

    def loss(p, x):
        h = torch.zeros(5, dtype=F64)
        for step in x:
            h = torch.tanh(F.linear(step, p["in"]) + F.linear(h, p["again"], p["bias"]))
        return h.square().sum()

    return Model(loss, params, (numbers(4, 6, 3),))


@model
def low_rank():
    params, fixed = {"down": numbers(6, 2), "up": numbers(2, 5)}, numbers(6, 5, seed=3)
    return Model(lambda p, x: (x @ fixed + x @ p["down"] @ p["up"]).square().sum(), params, (numbers(4, 3, 6),))


@model
def low_rank_merged():
    params, fixed = {"down": numbers(6, 2), "up": numbers(2, 5)}, numbers(6, 5, seed=3)
    return Model(lambda p, x: (x @ (fixed + p["down"] @ p["up"])).square().sum(), params, (numbers(4, 3, 6),))


@model
def learned_steps():
    params = {"w": numbers(6, 5), "s": torch.tensor(0.3, dtype=F64), "v": numbers(2, 6), "t": torch.tensor(0.2, dtype=F64)}

    def loss(p, x):
        h = torch.tanh(F.linear(x, quantizers.lsq(p["w"], p["s"], bits=3)))
        return F.linear(h, quantizers.lsq(p["v"], p["t"], bits=3)).square().sum()

    return Model(loss, params, (numbers(4, 5),))


@model
def learned_steps_of_sequences():
    made = learned_steps()
    return made._replace(batch=(numbers(4, 7, 5),))


@model
def quantized_by_channel():
    params = {
        "w": numbers(6, 5),
        "s": numbers(6, 1).abs() + 0.1,
        "z": torch.zeros(6, 1, dtype=F64),
        "c": numbers(4, 2, 2, 2),
        "d": numbers(4, 1, 1, 1).abs() + 0.1,
    }

    def loss(p, x, z):
        w = quantizers.fake_quantize(p["w"], p["s"], p["z"], -4, 3)
        c = quantizers.fake_quantize(p["c"], p["d"], 0, -4, 3)
        return (x @ w.T).square().sum() + F.conv2d(z, c).square().sum()

    return Model(loss, params, (numbers(4, 3, 5), numbers(4, 2, 3, 3)))


@model
def quantized_by_column_and_group():
    params = {"w": numbers(4, 6), "s": numbers(6).abs() + 0.1, "g": numbers(2, 1, 6).abs() + 0.1}

    def loss(p, x):
        w = fullgrad.step_quantize(p["w"], p["s"])
        grouped = fullgrad.step_quantize(p["w"].reshape(2, 2, 6), p["g"]).reshape(4, 6)
        return F.linear(x, w).square().sum() + F.linear(x.sin(), grouped).square().sum()

    return Model(loss, params, (numbers(5, 6),))


class Squashed(fullgrad.Elementwise):
    """tanh of a multiple, rounded; an operator of a user."""

    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x, scale):
        return torch.round(3 * torch.tanh(x * scale)) / 3

    @staticmethod
    def vjp_term(i, v, x, scale):
        slope = 1 - torch.tanh(x * scale) ** 2
        return v * slope * (scale if i == 0 else x)


@model
def operator_of_a_user():
    params = {"w": numbers(4, 6), "s": numbers(4, 1)}
    return Model(lambda p, x: (Squashed.apply(-p["w"], p["s"].tanh()).t() @ x).square().sum(), params, (numbers(5, 4),))


class Bounded(fullgrad.Elementwise):
    """A map of the gradient's elements that is not linear, and says so."""

    reads = {0: (0,)}
    is_linear = False

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def vjp_term(i, v, x):
        return v.clamp(-0.1, 0.1)


class OwnRule(Squashed):
    """An elementwise value with a rule for the whole gradient."""

    @staticmethod
    def vjp(ctx, g):
        return g / g.norm(), None


@model
def operators_of_a_user_with_other_rules():
    def loss(p, x):
        return (F.linear(x, Bounded.apply(p["w"])) * F.linear(x, OwnRule.apply(p["v"], 0.5))).sum()

    return Model(loss, {"w": numbers(3, 4), "v": numbers(3, 4, seed=1)}, (numbers(5, 4),))


@model
def spikes_over_time():
    params = {"w": numbers(6, 4), "u": numbers(6, 6), "v": numbers(2, 6), "threshold": torch.tensor(0.4, dtype=F64)}

    def loss(p, x):
        u, s, total = torch.zeros(6, dtype=F64), torch.zeros(6, dtype=F64), 0
        for step in x:
            u = 0.8 * u * (1 - s) + F.linear(step, p["w"]) + F.linear(s, p["u"])
            s = fullgrad.spikes.atan(u, threshold=p["threshold"])
            total = total + F.linear(s, p["v"])
        return total.square().sum()

    return Model(loss, params, (numbers(3, 5, 4),))


@model
def mixture_of_experts():
    params = {"gate": numbers(3, 4), "experts": numbers(3, 4, 4), "one": numbers(4, 4)}

    def loss(p, x):
        chosen = fullgrad.soft.proj_simplex(x @ p["gate"].T, softness=1.0, mode="c0")
        outputs = torch.einsum("ti,eio->teo", x, p["experts"]) + torch.bmm(x[:, None], p["one"].expand(x.shape[0], 4, 4))
        return (chosen[..., None] * outputs).sum(1).square().sum()

    return Model(loss, params, (numbers(4, 3, 4),))


@model
def frozen():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    return of_module(net, numbers(5, 6), frozen=("0", "2.bias"))


@model
def batch_norm_without_statistics():
    net = nn.Sequential(
        nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(0), nn.Linear(12, 2)
    )
    return of_module(net, numbers(4, 1, 2, 3, 3), to_loss=lambda y: y.sin().sum())


# --- Uses of parameters ---------------------------------------------------------------------------------------------------


@model
def unused():
    return Model(lambda p, x: (x @ p["w"]).sum().sin(), {"w": numbers(3, 3), "not": numbers(4)}, (numbers(5, 3),))


@model
def no_parameter_used():
    return Model(lambda p, x: x.sum(), {"w": numbers(3, 3)}, (numbers(5, 3),))


@model
def without_data():
    return Model(
        lambda p, x: (x @ p["w"]).sum().sin() + p["w"].square().sum() + p["b"].cos(),
        {"w": numbers(3, 3), "b": numbers(1)[0]},
        (numbers(5, 3),),
    )


@model
def only_without_data():
    return Model(
        lambda p, x: p["w"].square().sum() + F.linear(p["c"], p["w"]).sum(),
        {"w": numbers(3, 3), "c": numbers(3)},
        (numbers(5, 3),),
    )


@model
def constant_input():
    fixed = numbers(4, 3, seed=5)
    return Model(lambda p, x: (torch.tanh(fixed @ p[0]) @ p[1] @ x).sum(), [numbers(3, 3), numbers(3, 5)], (numbers(6, 5),))


@model
def bias_alone():
    return Model(lambda p, x: (F.linear(x, torch.eye(3, dtype=F64), p).sin()).sum(), numbers(3), (numbers(5, 3),))


@model
def elementwise():
    return Model(lambda p, x: (x * p["w"].exp() + p["b"]).sin().sum(), {"w": numbers(3, 4), "b": numbers(4)}, (numbers(5, 3, 4),))


@model
def tied_linear():
    return Model(lambda p, x: (torch.tanh(F.linear(x, p)) @ p).square().sum(), numbers(4, 4), (numbers(5, 4),))


@model
def two_ways_round():
    return Model(
        lambda p, x: (p @ x).sin().sum() + (x @ p).cos().sum() + (p @ torch.outer(x, x)).sum().sin(),
        numbers(4, 4),
        (numbers(5, 4),),
    )


@model
def sliced_and_overlapping():
    return Model(
        lambda p, x: (x @ p[:, :5]).sin().sum() + (x @ p[:, 3:]).cos().sum() + (x @ p).sin().sum(),
        numbers(4, 8),
        (numbers(5, 4),),
    )


@model
def also_elementwise():
    return Model(lambda p, x: (x @ p).sin().sum() + (p * x[:, None]).cos().sum(), numbers(4, 4), (numbers(5, 4),))


@model
def transposed_in_all_ways():
    def loss(p, x):
        first = (
            x @ p["a"].T + x @ p["b"].mT.contiguous() + x @ p["c"].t() + x @ p["d"].permute(1, 0) + x @ p["e"].transpose(-2, 1)
        )
        return first.sin().sum() + F.linear(x, p["f"].transpose(0, 0)).cos().sum() + (x @ p["g"].T.T.T).sin().sum()

    return Model(loss, {k: numbers(4, 4, seed=ord(k)) for k in "abcdefg"}, (numbers(5, 4),))


@model
def products_by_other_names():
    def loss(p, x, y):
        first = torch.mv(p["a"], x) + torch.matmul(x, p["b"]) + x.matmul(p["c"]) + torch.addmm(p["bias"], y, p["d"]).sum(0)
        second = torch.mm(y, p["e"]) + y.mm(p["f"]) + torch.addmm(p["bias"], y, p["g"], alpha=2) + torch.mm(p["h"], y.mT).mT
        return first.sin().sum() + second.sin().sum() + (p["h"] @ torch.stack([y.mT, 2 * y.mT])).cos().sum()

    return Model(
        loss, {"bias": numbers(4), **{k: numbers(4, 4, seed=ord(k)) for k in "abcdefgh"}}, (numbers(5, 4), numbers(5, 3, 4))
    )


@model
def products_by_keyword():
    def loss(p, x, y):
        first = torch.mv(p["a"], vec=x) + torch.matmul(other=p["b"], input=x) + x.matmul(other=p["c"])
        second = torch.mm(mat2=p["d"], input=y) + y.mm(mat2=p["e"]) + torch.addmm(mat1=y, mat2=p["f"], input=p["bias"])
        return first.sin().sum() + second.sin().sum()

    return Model(
        loss, {"bias": numbers(4), **{k: numbers(4, 4, seed=ord(k)) for k in "abcdef"}}, (numbers(5, 4), numbers(5, 3, 4))
    )


@model
def scaled_weights():
    def loss(p, x):
        w = torch.tanh(p["w"]) * p["s"] / p["r"]
        return F.linear(x, w).sin().sum() + F.linear(x, p["w"] * p["w"]).cos().sum() + F.linear(x, -p["u"] * p["s"]).sum().sin()

    params = {"w": numbers(4, 3), "u": numbers(4, 3), "s": numbers(4, 1), "r": numbers(1)[0].exp()}
    return Model(loss, params, (numbers(5, 3),))


@model
def two_quantized_copies():
    def loss(p, x):
        first, second = fullgrad.step_quantize(p, 0.25), fullgrad.step_quantize(p, 0.5)
        return F.linear(torch.tanh(F.linear(x, first)), second).square().sum() + F.linear(x.sin(), first).sum().sin()

    return Model(loss, numbers(4, 4), (numbers(5, 4),))


@model
def masked_by_data():
    return Model(
        lambda p, x: F.linear(x, p["w"] * (x > 0).to(F64)).square().sum() + F.linear(x, p["v"] * x).sin().sum(),
        {"w": numbers(4, 3), "v": numbers(2, 3)},
        (numbers(5, 3),),
    )


@model
def written_in_place():
    def loss(p, x):
        w = p["w"].clone()
        w[:2] *= 3
        u = p["u"].clone().mul_(2)
        u.t_()
        y = F.linear(x, w)
        y += 1
        return y.sin().sum() + (F.linear(x, u).relu_() @ p["u"]).sum().cos()

    return Model(loss, {"w": numbers(4, 3), "u": numbers(3, 3)}, (numbers(5, 3),))


@model
def written_after_use():
    def loss(p, x):
        w = p.clone()
        first = (x @ w.detach()).sum()
        v = fullgrad.step_quantize(w, 0.5)
        v[0] = 0
        return (x @ v).sin().sum() * first

    return Model(loss, numbers(3, 4), (numbers(5, 3),))


@model
def weights_that_are_written_after_use():
    def loss(p, x):
        w, v = p.clone(), p * 2
        y = F.linear(x, w).sin().sum() + (x @ v.T).cos().sum()
        w.mul_(3)
        v.detach().zero_()
        return y + F.linear(x, w).sin().sum()

    return Model(loss, numbers(4, 3), (numbers(5, 3),))


# --- Transforms, operators and contexts inside of the loss ------------------------------------------------------------------


@model
def gradient_penalty():
    def loss(p, x):
        f = lambda x: torch.tanh(x @ p["w"]) @ p["v"]  # noqa: E731
        return f(x) + grad(f)(x).square().sum()

    return Model(loss, {"w": numbers(3, 5), "v": numbers(5)}, (numbers(5, 3),))


@model
def gradient_penalty_by_autograd():
    def loss(p, x):
        h = x @ p["w"]
        y = torch.tanh(h) @ p["v"]
        (slope,) = torch.autograd.grad(y, h, create_graph=True)
        (of_weight,) = torch.autograd.grad(y, p["w"], create_graph=True)
        return y.sin() + slope.square().sum() + of_weight.square().sum()

    return Model(loss, {"w": numbers(3, 5), "v": numbers(5)}, (numbers(5, 3),))


@model
def one_step_of_training():
    def loss(p, x, y):
        inner = lambda w: F.linear(x, w).sin().sum()  # noqa: E731
        return F.linear(y, p - 0.1 * grad(inner)(p)).square().sum()

    return Model(loss, numbers(3, 4), (numbers(5, 4), numbers(5, 4)))


@model
def vmap_inside():
    return Model(
        lambda p, x: vmap(lambda row: torch.tanh(F.linear(row, p["w"]) @ p["v"]))(x).sum().sin(),
        {"w": numbers(4, 3), "v": numbers(4)},
        (numbers(5, 6, 3),),
    )


@model
def vmap_over_a_parameter():
    return Model(lambda p, x: vmap(lambda w: F.linear(x, w).sin().sum())(p).prod(), numbers(3, 4, 3), (numbers(5, 3),))


@model
def jvp_inside():
    def loss(p, x):
        f = lambda x: torch.tanh(F.linear(x, p["w"])) @ p["v"]  # noqa: E731
        return torch.func.jvp(f, (x,), (x.cos(),))[1] + torch.func.hessian(f)(x).sum()

    return Model(loss, {"w": numbers(4, 3), "v": numbers(4)}, (numbers(5, 3),))


@model
def dual_numbers_inside():
    def loss(p, x):
        with torch.autograd.forward_ad.dual_level():
            y = torch.tanh(F.linear(torch.autograd.forward_ad.make_dual(x, x.cos()), p["w"])) @ p["v"]
            value, tangent = torch.autograd.forward_ad.unpack_dual(y)
        return value.sin() + tangent.square()

    return Model(loss, {"w": numbers(4, 3), "v": numbers(4)}, (numbers(5, 3),))


@model
def checkpoint():
    def loss(p, x):
        block = functools.partial(fullgrad.checkpoint, lambda w, x: torch.tanh(F.linear(x, w)))
        return block(p["w"], block(p["w"], x)).sum() + F.linear(x, p["v"]).sum().sin()

    return Model(loss, {"w": numbers(3, 3), "v": numbers(2, 3)}, (numbers(5, 3),))


@model
def checkpoint_of_torch():
    def loss(p, x):
        block = lambda x: torch.tanh(F.linear(x, p["w"]))  # noqa: E731
        return torch.utils.checkpoint.checkpoint(block, block(x), use_reentrant=False).square().sum()

    return Model(loss, {"w": numbers(3, 3)}, (numbers(5, 3),), lambda: fullgrad.adopting(checkpoint=True))


class Signs(torch.autograd.Function):
    """A Function of another package, which torch does not batch."""

    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return torch.sign(w)

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * (w.abs() < 1)


@model
def adopted():
    def loss(p, x):
        return F.linear(torch.tanh(F.linear(x, Signs.apply(p["w"]))), p["v"]).square().sum()

    return Model(loss, {"w": numbers(4, 3), "v": numbers(2, 4)}, (numbers(5, 3),), fullgrad.adopting)


@fullgrad.custom_vjp
def _own(w, x):
    return torch.tanh(x @ w)


_own.defvjp(lambda w, x: (_own(w, x), (w, x)), lambda kept, g: (2 * torch.outer(kept[1], g), g @ kept[0].T))


@model
def declared_operators():
    def loss(p, x):
        h = _own(p["w"], x)
        hard = fullgrad.straight_through(torch.sign, torch.tanh)(h @ p["v"])
        return (hard * h.sum()).sum() + fullgrad.clip_grad(x @ p["w"], 0.1).square().sum()

    return Model(loss, {"w": numbers(3, 4), "v": numbers(4, 4)}, (numbers(5, 3),))


@model
def nonlinear_in_the_cotangent():
    def loss(p, x):
        h = fullgrad.clip_grad(x @ p["w"], 0.05)
        return fullgrad.scale_grad(torch.tanh(h)).square().sum()

    return Model(loss, {"w": numbers(3, 4)}, (numbers(5, 3),))


@model
def hooks_on_gradients():
    def loss(p, x):
        h = x @ p["w"]
        h.register_hook(lambda g: g.clamp(-0.1, 0.1))
        return torch.tanh(h).square().sum() + (x @ p["v"]).sum()

    return Model(loss, {"w": numbers(3, 4), "v": numbers(3, 4)}, (numbers(5, 3),))


@model
def hooks_on_weights():
    def loss(p, x):
        quantized, turned = fullgrad.step_quantize(p["u"], 0.5), p["v"].T
        first = F.linear(x, quantized).square().sum()
        for weight in (p["w"], quantized, turned):
            weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
        return first + F.linear(x, p["w"]).square().sum() + (x @ turned).square().sum() + F.linear(x, p["free"]).sum()

    return Model(loss, {k: numbers(4, 3, seed=ord(k[0])) for k in ("u", "v", "w", "free")}, (numbers(5, 3),))


@model
def equilibrium():
    def loss(p, x):
        step = lambda z: torch.tanh(F.linear(z, p["w"]) + F.linear(x, fullgrad.step_quantize(p["u"], 0.25), p["b"]))  # noqa: E731
        with torch.no_grad():
            z = functools.reduce(lambda z, _: step(z), range(30), torch.zeros(4, dtype=F64))
        z, start = step(z), z.detach() + 0 * p["b"]
        after = step(start)

        def solve(g):
            pulled = lambda u, _: torch.autograd.grad(after, start, u, retain_graph=True)[0] + g  # noqa: E731
            return functools.reduce(pulled, range(30), g)

        z.register_hook(solve)
        return z.square().sum()

    return Model(loss, {"w": numbers(4, 4, scale=0.2), "u": numbers(4, 3), "b": numbers(4)}, (numbers(5, 3),))


@model
def without_gradient_for_a_part():
    def loss(p, x):
        with torch.no_grad():
            scale = F.linear(x, p["w"]).norm()
        return F.linear(x, p["w"]).sin().sum() / scale + F.linear(x, p["w"].detach()).sum()

    return Model(loss, {"w": numbers(3, 4)}, (numbers(5, 4),))


@model
def completed():
    made = of_module(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.SiLU(), nn.Linear(6, 2)), numbers(5, 4))
    return made._replace(loss=fullgrad.completing(made.loss))


@fullgrad.implicit.fixed_point(lambda z, w, x: torch.tanh(F.linear(z, w) / 4 + x))
def solve(z, w, x):
    for _ in range(80):
        z = torch.tanh(F.linear(z, w) / 4 + x)
    return z


@model
def solved():
    def loss(p, x):
        z = solve(torch.zeros_like(x), p["w"], x)
        return z.square().sum() + F.linear(x, p["w"]).sum().sin()

    return Model(loss, {"w": numbers(3, 3)}, (numbers(5, 3),))


# --- Trees ----------------------------------------------------------------------------------------------------------------


@model
def list_and_dict():
    def loss(p, b):
        return (F.linear(b["x"], p[0]["w"], p[1]) * b["more"][0]).square().sum()

    return Model(loss, [{"w": numbers(2, 3)}, numbers(2)], ({"x": numbers(5, 3), "more": [numbers(5)]},))


@model
def one_tensor():
    return Model(lambda p, x: (x @ p).square().sum(), numbers(3, 2), (numbers(5, 3),))


@model
def batch_of_one():
    return Model(lambda p, x: (x @ p["w"]).square().sum(), {"w": numbers(3, 2)}, (numbers(1, 4, 3),))


@model
def two_dtypes():
    params = {"w": numbers(3, 4), "v": numbers(4, 4).float()}
    return Model(lambda p, x: (torch.tanh(x @ p["w"]).float() @ p["v"]).square().sum().double(), params, (numbers(5, 3),))


@model
def weights_by_way_of_complex_numbers():
    def loss(p, x):
        w = (p["w"].to(torch.complex128) * (1 + 2j)).to(F64)
        return F.linear(x, w).sin().sum() + F.linear(x, p["z"].to(F64)).cos().sum()

    return Model(loss, {"w": numbers(4, 3), "z": torch.complex(numbers(2, 3), numbers(2, 3, seed=1))}, (numbers(5, 3),))


@model
def complex_numbers():
    params = {"w": torch.complex(numbers(3, 4), numbers(3, 4, seed=1)), "v": numbers(3, 4)}
    return Model(
        lambda p, x: (x.to(p["w"].dtype) @ p["w"]).abs().square().sum() + (x @ p["v"]).sum().sin(), params, (numbers(5, 3),)
    )


# --- The oracle -----------------------------------------------------------------------------------------------------------


def gradients(made, **options):
    """What `vmap(grad)` gives, a list of tensors."""
    dims = options.pop("in_dims", (None, *(0,) * len(made.batch)))
    found = vmap(grad(made.loss), in_dims=dims, **options)(made.params, *made.batch)
    return torch.utils._pytree.tree_leaves(found)


def in_rows(found):
    """Real numbers, a row for each sample."""
    real = [torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in found]
    return torch.cat([g.reshape(len(g), math.prod(g.shape[1:])).double() for g in real], 1)
