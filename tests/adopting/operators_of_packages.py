"""Operators of torch.library, written in the style of published packages, each with its function in plain torch code.

The kernels compute with numpy or below autograd, so that no transform can look into them; the backwards are plain torch code, or
call other operators. The packages whose operators these are like:

* flash-attention, xformers: flash_forward, rotary, dropout_with_mask, split_heads · Liger-Kernel: rms_norm, swiglu,
  fused_cross_entropy, linear_kl · apex, TransformerEngine: layer_norm_stats, softcap, l2_normalize
* vLLM, MegaBlocks: moe_combine, grouped_matmul · torchao: quantized_matmul, fake_quantize · FBGEMM: jagged_softmax
* torch-scatter: segment_sum · sphericart: spherical · torch-cluster, PyTorch3D: pairwise, huber_of_pairs
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import fullgrad

_SPACE = "fullgradtests"  # the namespace is that of a package


class Case(NamedTuple):
    """An operator with its inputs, and plain torch code for the same function."""

    name: str
    op: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Tensor, ...]


CASES: list[Case] = []


def case(name: str, op: Any, reference: Any, *inputs: Tensor) -> None:
    CASES.append(Case(name, op, reference, inputs))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def operator(function: Any = None, **options: Any) -> Any:
    """`torch.library.custom_op`, named by its function."""
    if function is None:
        return lambda function: operator(function, **options)
    return torch.library.custom_op(f"{_SPACE}::{function.__name__}", function, mutates_args=(), **options)


# --- Norms --------------------------------------------------------------------------------------------------------------------


@operator
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    rows = x.detach().numpy()
    return torch.from_numpy(rows / np.sqrt((rows**2).mean(-1, keepdims=True) + eps)) * weight


@rms_norm.register_fake
def _(x, weight, eps=1e-6):
    return torch.empty_like(x)


def _rms_setup(ctx, inputs, output):
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _rms_backward(ctx, g):
    x, weight = ctx.saved_tensors
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + ctx.eps)
    normed, own = x * scale, g * weight
    gx = scale * (own - normed * (own * normed).mean(-1, keepdim=True))
    return gx, (g * normed).flatten(0, -2).sum(0) if g.ndim > 1 else g * normed, None


rms_norm.register_autograd(_rms_backward, setup_context=_rms_setup)


def _rms(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


case("rms_norm", rms_norm, _rms, draw(3, 4), draw(4))
case("rms_norm, eps by name", lambda x, w: rms_norm(x, w, eps=0.5), lambda x, w: _rms(x, w, 0.5), draw(3, 4), draw(4))
case("rms_norm, as a packet", lambda x, w: torch.ops.fullgradtests.rms_norm(x, w), _rms, draw(3, 4), draw(4))
case("rms_norm, as an overload", lambda x, w: torch.ops.fullgradtests.rms_norm.default(x, w), _rms, draw(3, 4), draw(4))


@operator
def layer_norm_stats(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    return (x - mean) * rstd * weight + bias, mean, rstd


@layer_norm_stats.register_fake
def _(x, weight, bias):
    return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1), x.new_empty(*x.shape[:-1], 1)


def _ln_setup(ctx, inputs, output):
    x, weight, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, weight, mean, rstd)


def _ln_backward(ctx, g, g_mean, g_rstd):
    x, weight, mean, rstd = ctx.saved_tensors
    n = x.shape[-1]
    hat, own = (x - mean) * rstd, g * weight
    gx = rstd * (own - own.mean(-1, keepdim=True) - hat * (own * hat).mean(-1, keepdim=True))
    gx = gx + g_mean / n - g_rstd * rstd.pow(3) * (x - mean) / n
    return gx, (g * hat).reshape(-1, n).sum(0), g.reshape(-1, n).sum(0)


layer_norm_stats.register_autograd(_ln_backward, setup_context=_ln_setup)


def _ln(x, weight, bias):
    mean, rstd = x.mean(-1, keepdim=True), torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    return (x - mean) * rstd * weight + bias, mean, rstd


case("layer_norm_stats", layer_norm_stats, _ln, draw(3, 4), draw(4), draw(4, seed=3))

# A norm whose backward is an operator of its own, with a derivative of its own.


@operator
def l2_normalize(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


@operator
def l2_normalize_backward(g: Tensor, x: Tensor) -> Tensor:
    size = x.norm(dim=-1, keepdim=True)
    return g / size - x * (g * x).sum(-1, keepdim=True) / size**3


@l2_normalize.register_fake
def _(x):
    return torch.empty_like(x)


@l2_normalize_backward.register_fake
def _(g, x):
    return torch.empty_like(x)


def _l2_second(ctx, h):
    g, x = ctx.saved_tensors
    size = x.norm(dim=-1, keepdim=True)

    def dot(a, b):
        return (a * b).sum(-1, keepdim=True)

    gg = h / size - x * dot(h, x) / size**3
    gx = -x * dot(g, h) / size**3 - (h * dot(g, x) + g * dot(h, x)) / size**3 + 3 * x * dot(g, x) * dot(h, x) / size**5
    return gg, gx


l2_normalize.register_autograd(
    lambda ctx, g: l2_normalize_backward(g, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
l2_normalize_backward.register_autograd(_l2_second, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
case("l2_normalize, a backward that is an operator", l2_normalize, lambda x: x / x.norm(dim=-1, keepdim=True), draw(3, 4))

# --- Activations --------------------------------------------------------------------------------------------------------------


@operator
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    a = gate.detach().numpy()
    return torch.from_numpy(a / (1 + np.exp(-a))) * up


@swiglu.register_fake
def _(gate, up):
    return torch.empty_like(gate)


def _swiglu_backward(ctx, g):
    gate, up = ctx.saved_tensors
    s = torch.sigmoid(gate)
    return g * up * s * (1 + gate * (1 - s)), g * gate * s


swiglu.register_autograd(_swiglu_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
case("swiglu", swiglu, lambda gate, up: F.silu(gate) * up, draw(3, 4), draw(3, 4, seed=1))


@operator
def softcap(x: Tensor, cap: float, inplace_of: Tensor | None = None) -> Tensor:
    return cap * torch.tanh(x / cap)


@softcap.register_fake
def _(x, cap, inplace_of=None):
    return torch.empty_like(x)


def _softcap_setup(ctx, inputs, output):
    ctx.cap = inputs[1]
    ctx.save_for_backward(output)


softcap.register_autograd(
    lambda ctx, g: (g * (1 - (ctx.saved_tensors[0] / ctx.cap) ** 2), None, None), setup_context=_softcap_setup
)


def softcap_of_three(x: Tensor) -> Tensor:
    return softcap(x, 3.0)


case("softcap, the output saved", softcap_of_three, lambda x: 3 * torch.tanh(x / 3), draw(3, 4))


@operator
def dropout_with_mask(x: Tensor, mask: Tensor, *, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    return x * mask * scale, mask.to(torch.int64).sum(-1)


@dropout_with_mask.register_fake
def _(x, mask, *, scale=2.0):
    return torch.empty_like(x), mask.new_empty(mask.shape[:-1], dtype=torch.int64)


def _mask_setup(ctx, inputs, keyword_only_inputs, output):
    ctx.scale = keyword_only_inputs["scale"]
    ctx.save_for_backward(inputs[1])


dropout_with_mask.register_autograd(lambda ctx, g, _: (g * ctx.saved_tensors[0] * ctx.scale, None), setup_context=_mask_setup)
_MASK = torch.tensor([True, False, True, True])
case(
    "dropout_with_mask, an integer output, a keyword",
    lambda x: dropout_with_mask(x, _MASK, scale=4.0)[0].sin(),
    lambda x: (x * _MASK * 4).sin(),
    draw(3, 4),
)

# --- Attention ----------------------------------------------------------------------------------------------------------------


@operator
def flash_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v, torch.logsumexp(scores, -1)


@flash_forward.register_fake
def _(q, k, v, causal):
    return torch.empty_like(q), q.new_empty(q.shape[:-1])


def _flash_setup(ctx, inputs, output):
    q, k, v, ctx.causal = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse)


def _flash_backward(ctx, g, g_lse):
    q, k, v, out, _ = ctx.saved_tensors
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.mT * scale
    if ctx.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    weights = torch.softmax(scores, -1)
    gv = weights.mT @ g
    gs = weights * (g @ v.mT - (g * out).sum(-1, keepdim=True)) * scale
    return gs @ k, gs.mT @ q, gv, None


flash_forward.register_autograd(_flash_backward, setup_context=_flash_setup)


def _attention(q, k, v, causal):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v


case(
    "flash_forward",
    lambda q, k, v: flash_forward(q, k, v, True)[0],
    lambda q, k, v: _attention(q, k, v, True),
    draw(2, 3, 4),
    draw(2, 3, 4, seed=1),
    draw(2, 3, 4, seed=2),
)


@operator
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@rotary.register_fake
def _(x, cos, sin):
    return torch.empty_like(x)


def _rotary_backward(ctx, g):
    cos, sin = ctx.saved_tensors
    return rotary(g, cos, -sin), None, None


rotary.register_autograd(_rotary_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[1:]))
_COS, _SIN = draw(3, 2).cos(), draw(3, 2).sin()


def _rotary(x):
    a, b = x.chunk(2, -1)
    return torch.cat([a * _COS - b * _SIN, b * _COS + a * _SIN], -1)


case("rotary, a backward that is itself", lambda x: rotary(x, _COS, _SIN), _rotary, draw(3, 4))

# --- Losses -------------------------------------------------------------------------------------------------------------------


@operator
def fused_cross_entropy(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)


@fused_cross_entropy.register_fake
def _(logits, target, smoothing=0.0):
    return logits.new_empty(logits.shape[:-1])


def _ce_setup(ctx, inputs, output):
    logits, target, ctx.smoothing = inputs
    ctx.save_for_backward(logits, target)


def _ce_backward(ctx, g):
    logits, target = ctx.saved_tensors
    n = logits.shape[-1]
    wanted = F.one_hot(target, n).to(logits.dtype) * (1 - ctx.smoothing) + ctx.smoothing / n
    return (logits.softmax(-1) - wanted) * g.unsqueeze(-1), None, None


fused_cross_entropy.register_autograd(_ce_backward, setup_context=_ce_setup)
_TARGET = torch.tensor([1, 0, 3])
case(
    "fused_cross_entropy",
    lambda x: fused_cross_entropy(x, _TARGET, 0.2),
    lambda x: F.cross_entropy(x, _TARGET, reduction="none", label_smoothing=0.2),
    draw(3, 4),
)


@operator
def linear_kl(x: Tensor, weight: Tensor, teacher: Tensor) -> Tensor:
    return F.kl_div((x @ weight.T).log_softmax(-1), teacher, reduction="none").sum(-1)


@linear_kl.register_fake
def _(x, weight, teacher):
    return x.new_empty(x.shape[:-1])


def _kl_backward(ctx, g):
    x, weight, teacher = ctx.saved_tensors
    inner = g.unsqueeze(-1) * ((x @ weight.T).softmax(-1) * teacher.sum(-1, keepdim=True) - teacher)
    return inner @ weight if ctx.needs_input_grad[0] else None, inner.T @ x if ctx.needs_input_grad[1] else None, None


linear_kl.register_autograd(_kl_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
_TEACHER = draw(3, 5).softmax(-1)
case(
    "linear_kl, gradients by need",
    lambda x, w: linear_kl(x, w, _TEACHER),
    lambda x, w: F.kl_div((x @ w.T).log_softmax(-1), _TEACHER, reduction="none").sum(-1),
    draw(3, 4),
    draw(5, 4),
)

# --- Mixtures of experts ------------------------------------------------------------------------------------------------------


@operator
def moe_combine(parts: list[Tensor], gates: Tensor) -> Tensor:
    return sum(p * w for p, w in zip(parts, gates.unbind(-1), strict=True))


@moe_combine.register_fake
def _(parts, gates):
    return torch.empty_like(parts[0])


def _combine_setup(ctx, inputs, output):
    parts, gates = inputs
    ctx.count = len(parts)
    ctx.save_for_backward(*parts, gates)


def _combine_backward(ctx, g):
    *parts, gates = ctx.saved_tensors
    return [g * w for w in gates.unbind(-1)], torch.stack([(g * p).sum() for p in parts], -1)


moe_combine.register_autograd(_combine_backward, setup_context=_combine_setup)
case(
    "moe_combine, a list of tensors",
    lambda a, b, gates: moe_combine([a, b], gates),
    lambda a, b, gates: a * gates[0] + b * gates[1],
    draw(3, 4),
    draw(3, 4, seed=1),
    draw(2),
)


@operator
def split_heads(x: Tensor, count: int) -> list[Tensor]:
    return [part.clone() for part in x.chunk(count, -1)]


@split_heads.register_fake
def _(x, count):
    return [torch.empty_like(part) for part in x.chunk(count, -1)]


split_heads.register_autograd(lambda ctx, grads: (torch.cat(grads, -1), None), setup_context=lambda ctx, inputs, output: None)
case(
    "split_heads, a list of results",
    lambda x: [part.sin() for part in split_heads(x, 2)],
    lambda x: [part.sin() for part in x.chunk(2, -1)],
    draw(3, 4),
)

# --- Quantized products -------------------------------------------------------------------------------------------------------


@operator
def quantized_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return x @ (weight.to(x.dtype) * scale[:, None]).T


@quantized_matmul.register_fake
def _(x, weight, scale):
    return x.new_empty(x.shape[0], weight.shape[0])


def _quantized_backward(ctx, g):
    x, weight, scale = ctx.saved_tensors
    whole = weight.to(g.dtype)
    return (g * scale) @ whole, None, (g * (x @ whole.T)).sum(0)


quantized_matmul.register_autograd(_quantized_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
_INT8 = torch.randint(-9, 9, (5, 4), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
case(
    "quantized_matmul, integer weights",
    lambda x, s: quantized_matmul(x, _INT8, s),
    lambda x, s: x @ (_INT8.double() * s[:, None]).T,
    draw(3, 4),
    draw(5),
)


@operator
def fake_quantize(x: Tensor, scale: Tensor) -> Tensor:
    return torch.round(x / scale) * scale


@fake_quantize.register_fake
def _(x, scale):
    return torch.empty_like(x)


def _fake_backward(ctx, g):
    x, scale = ctx.saved_tensors
    inside = (x / scale).abs() <= 7
    return g * inside, (g * (torch.round(x / scale) - x / scale) * inside).sum()


fake_quantize.register_autograd(_fake_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return torch.round(x / scale) * scale

    backward = staticmethod(_fake_backward)


_SCALE = torch.tensor(0.3, dtype=torch.float64)
case("fake_quantize, a straight-through derivative", fake_quantize, fullgrad.adopt(_FakeQuantize), draw(3, 4), _SCALE)

# --- Graphs and jagged rows ----------------------------------------------------------------------------------------------------


@operator
def segment_sum(x: Tensor, index: Tensor, count: int) -> Tensor:
    y = np.zeros((count, *x.shape[1:]))
    np.add.at(y, index.numpy(), x.detach().numpy())
    return torch.from_numpy(y)


@segment_sum.register_fake
def _(x, index, count):
    return x.new_empty(count, *x.shape[1:])


segment_sum.register_autograd(
    lambda ctx, g: (g[ctx.saved_tensors[0]], None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)
_NODES = torch.tensor([0, 2, 0, 1])
case(
    "segment_sum, an index",
    lambda x: segment_sum(x.sin(), _NODES, 3).exp(),
    lambda x: torch.zeros(3, 2, dtype=x.dtype).index_add(0, _NODES, x.sin()).exp(),
    draw(4, 2),
)


@operator
def grouped_matmul(x: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
    """The rows of each expert times its weights."""
    parts = [part @ w for part, w in zip(x.split(sizes), weights, strict=True)]
    return torch.cat(parts)


@grouped_matmul.register_fake
def _(x, weights, sizes):
    return x.new_empty(len(x), weights.shape[-1])


def _grouped_setup(ctx, inputs, output):
    x, weights, ctx.sizes = inputs
    ctx.save_for_backward(x, weights)


def _grouped_backward(ctx, g):
    x, weights = ctx.saved_tensors
    of_weights = [a.mT @ b for a, b in zip(x.split(ctx.sizes), g.split(ctx.sizes), strict=True)]
    return grouped_matmul(g, weights.mT.contiguous(), ctx.sizes), torch.stack(of_weights), None


grouped_matmul.register_autograd(_grouped_backward, setup_context=_grouped_setup)
case(
    "grouped_matmul, a list of numbers, a backward that is itself",
    lambda x, w: grouped_matmul(x, w, [1, 2]),
    lambda x, w: torch.cat([x[:1] @ w[0], x[1:] @ w[1]]),
    draw(3, 2),
    draw(2, 2, 3),
)


@operator
def jagged_softmax(values: Tensor, sizes: list[int]) -> Tensor:
    """The softmax of each part of a jagged row."""
    return torch.cat([part.softmax(0) for part in values.split(sizes)])


@jagged_softmax.register_fake
def _(values, sizes):
    return torch.empty_like(values)


def _jagged_setup(ctx, inputs, output):
    ctx.sizes = inputs[1]
    ctx.save_for_backward(output)


def _jagged_backward(ctx, g):
    parts = zip(ctx.saved_tensors[0].split(ctx.sizes), g.split(ctx.sizes), strict=True)
    return torch.cat([y * (h - (h * y).sum()) for y, h in parts]), None


jagged_softmax.register_autograd(_jagged_backward, setup_context=_jagged_setup)
case(
    "jagged_softmax, the output saved",
    lambda x: jagged_softmax(x, [2, 3]),
    lambda x: torch.cat([x[:2].softmax(0), x[2:].softmax(0)]),
    draw(5),
)


@operator
def huber_of_pairs(x: Tensor, y: Tensor, delta: float) -> Tensor:
    """A loss of all pairs, as forces and point clouds have it."""
    d = np.abs(x.detach().numpy()[:, None] - y.detach().numpy()[None])
    return torch.tensor(np.where(d < delta, d**2 / 2, delta * (d - delta / 2)).sum())


@huber_of_pairs.register_fake
def _(x, y, delta):
    return x.new_empty(())


def _huber_setup(ctx, inputs, output):
    ctx.delta = inputs[2]
    ctx.save_for_backward(*inputs[:2])


def _huber_backward(ctx, g):
    x, y = ctx.saved_tensors
    slope = g * (x[:, None] - y).clamp(-ctx.delta, ctx.delta)
    return slope.sum(1), -slope.sum(0), None


huber_of_pairs.register_autograd(_huber_backward, setup_context=_huber_setup)


def _huber(d, delta):
    return torch.where(d < delta, d * d / 2, delta * (d - delta / 2)).sum()


case(
    "huber_of_pairs, a number",
    lambda x, y: huber_of_pairs(x, y, 0.5),
    lambda x, y: _huber((x[:, None] - y).abs(), 0.5),
    draw(3),
    draw(2),
)


# --- Operators of a `torch.library.Library`, as those of C++ are --------------------------------------------------------------

LIBRARY = torch.library.Library(_SPACE, "FRAGMENT")
LIBRARY.define("spherical(Tensor xyz, int degree=2) -> Tensor")
LIBRARY.define("spherical_backward(Tensor g, Tensor xyz) -> Tensor")
LIBRARY.define("pairwise(Tensor x, Tensor y) -> Tensor")
LIBRARY.define("pairwise.scaled(Tensor x, Tensor y, float scale) -> Tensor")
LIBRARY.define("opaque_square(Tensor x) -> Tensor")
LIBRARY.define("opaque_double(Tensor x) -> Tensor")
LIBRARY.define("own_kernel(Tensor x) -> Tensor")
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.define("count(Tensor x) -> Tensor")


def _harmonics(xyz):
    x, y, z = xyz.unbind(-1)
    return torch.stack([x * y, y * z, z * x, x * x - y * y, 3 * z * z], -1)


def _harmonics_backward(g, xyz):
    x, y, z = xyz.unbind(-1)
    a, b, c, d, e = g.unbind(-1)
    return torch.stack([a * y + c * z + 2 * d * x, a * x + b * z - 2 * d * y, b * y + c * x + 6 * e * z], -1)


LIBRARY.impl("spherical", lambda xyz, degree=2: _harmonics(xyz), "CPU")
LIBRARY.impl("spherical_backward", _harmonics_backward, "CPU")
torch.library.register_fake(f"{_SPACE}::spherical", lambda xyz, degree=2: xyz.new_empty(*xyz.shape[:-1], 5), lib=LIBRARY)
torch.library.register_fake(f"{_SPACE}::spherical_backward", lambda g, xyz: torch.empty_like(xyz), lib=LIBRARY)
torch.library.register_autograd(
    f"{_SPACE}::spherical",
    lambda ctx, g: (torch.ops.fullgradtests.spherical_backward(g, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    lib=LIBRARY,
)


def _harmonics_second(ctx, h):
    g, xyz = ctx.saved_tensors
    _, pull = torch.func.vjp(_harmonics_backward, g, xyz)
    return pull(h)


torch.library.register_autograd(
    f"{_SPACE}::spherical_backward",
    _harmonics_second,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    lib=LIBRARY,
)
case(
    "spherical, of a library, a backward that is an operator",
    lambda x: torch.ops.fullgradtests.spherical(x),
    _harmonics,
    draw(4, 3),
)

for overload in ("", ".scaled"):
    name = f"{_SPACE}::pairwise{overload}"
    LIBRARY.impl(f"pairwise{overload}", lambda x, y, scale=1.0: scale * (x[:, None] - y[None]).pow(2).sum(-1), "CPU")
    torch.library.register_fake(name, lambda x, y, scale=1.0: x.new_empty(len(x), len(y)), lib=LIBRARY)


def _pairwise_setup(ctx, inputs, output):
    ctx.scale = inputs[2] if len(inputs) > 2 else 1.0
    ctx.save_for_backward(*inputs[:2])


def _pairwise_backward(ctx, g):
    x, y = ctx.saved_tensors
    inner = 2 * ctx.scale * g[..., None] * (x[:, None] - y[None])
    return inner.sum(1), -inner.sum(0)


torch.library.register_autograd(f"{_SPACE}::pairwise", _pairwise_backward, setup_context=_pairwise_setup, lib=LIBRARY)
torch.library.register_autograd(
    f"{_SPACE}::pairwise.scaled",
    lambda ctx, g: (*_pairwise_backward(ctx, g), None),
    setup_context=_pairwise_setup,
    lib=LIBRARY,
)
for scales in ((), (0.5,)):
    case(
        f"pairwise, overload {len(scales)}",
        lambda x, y, s=scales: torch.ops.fullgradtests.pairwise(x, y, *s),
        lambda x, y, s=scales: (s[0] if s else 1.0) * (x[:, None] - y[None]).pow(2).sum(-1),
        draw(3, 4),
        draw(2, 4),
    )

# An operator whose backward is opaque: it has a first derivative, and no other.
LIBRARY.impl("opaque_square", lambda x: x * x, "CPU")
LIBRARY.impl("opaque_double", lambda x: torch.from_numpy(np.asarray(2 * x.detach().numpy())), "CPU")
for one in ("opaque_square", "opaque_double"):
    torch.library.register_fake(f"{_SPACE}::{one}", lambda x: torch.empty_like(x), lib=LIBRARY)
torch.library.register_autograd(
    f"{_SPACE}::opaque_square",
    lambda ctx, g: g * torch.ops.fullgradtests.opaque_double(*ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    lib=LIBRARY,
)

# Operators without a rule that can be read.
LIBRARY.impl("own_kernel", lambda x: 3 * x, "CPU")


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x.detach()

    @staticmethod
    def backward(ctx, g):
        return 3 * g


LIBRARY.impl("own_kernel", lambda x: _Own.apply(x), "Autograd")
LIBRARY.impl("composite", lambda x: x.sin() * x, "CompositeImplicitAutograd")
LIBRARY.impl("count", lambda x: (x > 0).sum(), "CPU")
case("composite, of torch's operators", lambda x: torch.ops.fullgradtests.composite(x), lambda x: x.sin() * x, draw(3, 4))


@torch.library.custom_op(f"{_SPACE}::add_into", mutates_args=("out",))
def add_into(x: Tensor, out: Tensor) -> None:
    out.add_(x)
