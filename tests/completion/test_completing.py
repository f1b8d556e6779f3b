"""torch's own operators inside `completing`: next to differences, next to torch's value and gradient, and as before after it."""

import contextlib
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.multiprocessing.reductions import StorageWeakRef

import fullgrad
from fullgrad.completion import _completing
from fullgrad.completion._registry import COMPLETED, NO_DERIVATIVE, NO_VMAP, NO_WEIGHTS, WRONG_GRADIENT

# torch.cholesky is deprecated, and index_reduce in beta.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]

NESTINGS = {
    "reverse over reverse": lambda f: jacrev(jacrev(f)),
    "forward over reverse": lambda f: jacfwd(jacrev(f)),
    "reverse over forward": lambda f: jacrev(jacfwd(f)),
    "forward over forward": lambda f: jacfwd(jacfwd(f)),
}


def of_differences(f, x):
    """The second derivative by differences of the first, which torch's own reverse mode has right."""
    step, rows = 1e-5, []
    for e in torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape):
        rows.append((grad(f)(x + step * e) - grad(f)(x - step * e)) / (2 * step))
    return torch.stack(rows).reshape(*x.shape, *x.shape)


def seeded(*shape, low=None):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x if low is None else x.abs() + low


def matrix():
    return seeded(3, 3) / 4 + torch.eye(3, dtype=torch.float64)


W, B, M = *seeded(2, 6), seeded(5, 5) / 4
torch.manual_seed(0)
networks = {
    "LSTM": nn.LSTM(2, 3, 2, bidirectional=True, proj_size=2).double(),
    "GRU": nn.GRU(2, 3, 2, bidirectional=True, bias=False).double(),
    "tanh": nn.RNN(2, 3).double(),
    "relu": nn.RNN(2, 3, nonlinearity="relu").double(),
    "LSTM cell": nn.LSTMCell(2, 3, bias=False).double(),
    "GRU cell": nn.GRUCell(2, 3).double(),
    "tanh cell": nn.RNNCell(2, 3).double(),
    "relu cell": nn.RNNCell(2, 3, nonlinearity="relu").double(),
}
ZEROS = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0, -1.0], dtype=torch.float64)
BAGS = seeded(3, 2)
ENCODER = seeded(12, 4), seeded(12), seeded(4, 4), seeded(4)
FEED = [*(v + 1 for v in seeded(4, 4).unbind()), seeded(6, 4), seeded(6), seeded(4, 6), seeded(4)]


def fused(attention, x, *options):
    """The fused attention of a tensor with itself."""
    return attention(x, x, x, 4, 2, *ENCODER, *options)


def packed(x):
    """Sequences of two lengths."""
    return nn.utils.rnn.pack_padded_sequence(x, [3, 2])


# Formulas of what has no kernel on the CPU are called as they are.
ELSEWHERE = {"cudnn_batch_norm", "_ctc_loss.Tensor"}
# A function that calls each operator, and where its second derivative is taken.
CALLS = {
    "native_layer_norm": (lambda x: F.layer_norm(x, (6,), W, B), seeded(2, 6)),
    "native_group_norm": (lambda x: F.group_norm(x, 2, W[:4], B[:4]), seeded(2, 4, 2)),
    "native_batch_norm": (lambda x: F.batch_norm(x, None, None, W[:3], B[:3], training=True), seeded(4, 3)),
    "native_batch_norm in evaluation": (lambda x: F.batch_norm(x, W[:3], B[:3].square(), W[3:], B[3:]), seeded(4, 3)),
    "_scaled_dot_product_flash_attention_for_cpu": (
        lambda x: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*x.reshape(3, 1, 1, 3, 2).unbind(), scale=0.5)[0],
        seeded(3, 3, 2),
    ),
    "scaled_dot_product_attention": (
        lambda x: F.scaled_dot_product_attention(*x.reshape(3, 1, 1, 3, 2).unbind(), is_causal=True),
        seeded(3, 3, 2),
    ),
    "_safe_softmax": (
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.tensor([[True, False], [False, False]])),
        seeded(1, 1, 2, 3),
    ),
    "scaled_dot_product_attention, groups": (
        lambda x: F.scaled_dot_product_attention(
            x[:6].reshape(1, 2, 3, 1), x[6:9].reshape(1, 1, 3, 1), x[9:12].reshape(1, 1, 3, 1), x[12:], enable_gqa=True
        ),
        seeded(15),
    ),
    "_linalg_det": (torch.linalg.det, matrix()),
    "_linalg_det, of rank 4": (
        lambda x: torch.linalg.det(x @ M),
        torch.diag(torch.tensor([1.0, 2, 0, 3, 4])).double(),
    ),
    "_linalg_det, of rank 3": (
        lambda x: torch.linalg.det(x @ M),
        torch.diag(torch.tensor([1.0, 2, 0, 0, 4])).double(),
    ),
    "_linalg_det, of 2 rows": (lambda x: torch.linalg.det(x), seeded(4, 2, 2)),
    "_linalg_slogdet": (lambda a: torch.linalg.slogdet(a)[1], matrix()),
    "_linalg_solve_ex": (lambda a: torch.linalg.solve(a, a @ W[:3] + B[:3]) + torch.linalg.solve(a, W[3:].expand(3)), matrix()),
    "cholesky_inverse": (lambda a: torch.cholesky_inverse(a.tril()), matrix()),
    "cholesky_solve": (lambda a: torch.cholesky_solve(W[:3, None] @ a[:1], a.tril()), matrix()),
    "linalg_householder_product": (lambda x: torch.linalg.householder_product(x[:2].mT, x[2, :2]), seeded(3, 3)),
    "ormqr": (lambda x: torch.ormqr(x[:2].mT, x[2, :2], x.sin(), transpose=True), seeded(3, 3)),
    "ormqr, from the right": (lambda x: torch.ormqr(x[:2].mT, x[2, :2], x.sin(), left=False), seeded(3, 3)),
    "prod": (lambda x: torch.prod(x), ZEROS),
    "prod.dim_int": (lambda x: x.reshape(2, 3).prod(0, keepdim=True), ZEROS),
    "cumprod": (lambda x: x.cumprod(0), ZEROS),
    "segment_reduce": (
        lambda x: torch.segment_reduce(x, "prod", lengths=torch.tensor([2, 0, 1, 1]), initial=2.0),
        seeded(4, 2),
    ),
    "segment_reduce, mean": (
        lambda x: torch.segment_reduce(
            x * x, "mean", offsets=torch.tensor([[0, 1, 3], [0, 0, 3]]), axis=1, unsafe=True, initial=0
        ),
        seeded(2, 3),
    ),
    "segment_reduce, max": (lambda x: torch.segment_reduce(x, "max", lengths=torch.tensor([2, 2])), seeded(4)),
    "silu": (F.silu, 4 * seeded(6)),
    "mish": (F.mish, 4 * seeded(6)),
    "logit": (lambda x: torch.logit(x.sigmoid(), 0.2), seeded(6)),
    "glu": (F.glu, seeded(2, 6)),
    "hardsigmoid": (F.hardsigmoid, 4 * seeded(6)),
    "sinc": (torch.sinc, torch.tensor([0, 0.1, -0.7, 1.3], dtype=torch.float64)),
    "clamp.Tensor": (lambda x: x.square().clamp(W.sin(), x + B), seeded(6)),
    "clamp_min.Tensor": (lambda x: x.square().clamp_min(x + B), seeded(6)),
    "clamp_max.Tensor": (lambda x: x.square().clamp_max(x + B), seeded(6)),
    "fmax": (lambda x: torch.fmax(x.square(), x + B), seeded(6)),
    "fmin": (lambda x: torch.fmin(x.square(), x + B), seeded(6)),
    "maximum": (lambda x: torch.maximum(x.square(), x + B), seeded(6)),
    "minimum": (lambda x: torch.minimum(x.square(), x + B), seeded(6)),
    "polar": (lambda x: torch.polar(x, x.square()).real + torch.polar(x.sin(), W).imag, seeded(6)),
    "linalg_cond": (lambda a: torch.linalg.cond(a, 1), matrix()),
    "linalg_cond, of rows": (lambda a: torch.linalg.cond(a, -math.inf), matrix()),
    "linalg_cond.p_str": (lambda a: torch.linalg.cond(torch.stack([a, a.mT @ a]), "fro"), matrix()),
    "huber_loss": (lambda x: F.huber_loss(x, 2 * W, delta=0.7), seeded(6)),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, W.sign()), seeded(6)),
    "nll_loss_forward": (
        lambda x: F.nll_loss(x[:6].reshape(2, 3), torch.tensor([1, 0]), weight=x[6:].square()),
        seeded(9),
    ),
    "nll_loss_forward, of which one is ignored": (
        lambda x: F.cross_entropy(x[:6].reshape(2, 3), torch.tensor([1, 0]), x[6:], ignore_index=0, reduction="sum"),
        seeded(9),
    ),
    "nll_loss2d_forward": (
        lambda x: F.cross_entropy(x[:6].reshape(1, 3, 2), torch.tensor([[1, 0]]), x[6:].square(), label_smoothing=0.1),
        seeded(9),
    ),
    "binary_cross_entropy": (
        lambda x: F.binary_cross_entropy(x[:3].sigmoid(), x[3:6].sigmoid(), x[6:], reduction="none"),
        seeded(9),
    ),
    "binary_cross_entropy_backward": (
        lambda x: torch.ops.aten.binary_cross_entropy_backward(x[:3], x[3:6].sigmoid(), W[:3].sigmoid(), None, 0),
        seeded(6),
    ),
    "multi_margin_loss, by weights": (
        lambda x: F.multi_margin_loss(x[:6].reshape(2, 3), torch.tensor([1, 0]), p=2, weight=x[6:], reduction="none"),
        seeded(9),
    ),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.tensor([1, 0]), p=2, weight=W[:3].square()), seeded(2, 3)),
    "multilabel_margin_loss_forward": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[2, 0, -1], [1, -1, 0]])),
        seeded(2, 3),
    ),
    "_fused_rms_norm": (lambda x: torch.ops.aten._fused_rms_norm(x, (6,), W[0], None)[0], seeded(2, 6)),
    "lstm.input": (lambda x: networks["LSTM"](x.reshape(3, 1, 2))[0], seeded(6)),
    "gru.input": (lambda x: networks["GRU"](x.reshape(3, 1, 2))[0], seeded(6)),
    "rnn_tanh.input": (lambda x: networks["tanh"](x.reshape(3, 1, 2))[0], seeded(6)),
    "rnn_relu.input": (lambda x: networks["relu"](x.reshape(3, 1, 2))[0], seeded(6)),
    **{
        f"{name}.data": (lambda x, n=n: networks[n](packed(x.reshape(3, 2, 2)))[0].data, seeded(12))
        for name, n in {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "tanh", "rnn_relu": "relu"}.items()
    },
    "_pack_padded_sequence": (lambda x: packed(x.reshape(3, 2, 1)).data, seeded(6)),
    "_pad_packed_sequence": (
        lambda x: nn.utils.rnn.pad_packed_sequence(packed(x.reshape(3, 2, 1)), padding_value=2.0, total_length=4)[0],
        seeded(6),
    ),
    "_native_multi_head_attention": (
        lambda x: fused(torch._native_multi_head_attention, x, torch.tensor([[False, False, True]]), True, True, 1)[0],
        seeded(1, 3, 4),
    ),
    "_transformer_encoder_layer_fwd": (
        lambda x: torch._transformer_encoder_layer_fwd(x, 4, 2, *ENCODER, True, False, 1e-5, *FEED, torch.eye(3).bool(), 0),
        seeded(1, 3, 4),
    ),
    "_transformer_encoder_layer_fwd, norm first": (
        lambda x: torch._transformer_encoder_layer_fwd(x, 4, 2, *ENCODER, True, True, 1e-5, *FEED),
        seeded(1, 3, 4),
    ),
    "_weight_norm_interface": (lambda x: torch._weight_norm(x[:, :3], x[:, 3:]), seeded(2, 4)),
    "_native_batch_norm_legit": (
        lambda x: torch.ops.aten._native_batch_norm_legit(x, W[:3], B[:3], W[3:] * 0, B[3:] * 0, True, 0.1, 1e-5)[0],
        seeded(4, 3),
    ),
    "_native_batch_norm_legit.no_stats": (
        lambda x: torch.ops.aten._native_batch_norm_legit.no_stats(x, W[:3], B[:3], True, 0.1, 1e-5)[0],
        seeded(4, 3),
    ),
    "_batch_norm_with_update": (
        lambda x: torch.ops.aten._batch_norm_with_update(x, W[:3], B[:3], W[3:] * 0, B[3:] * 0, 0.1, 1e-5)[0],
        seeded(4, 3),
    ),
    "native_dropout_backward": (
        lambda x: torch.ops.aten.native_dropout_backward(x * x, torch.tensor([True, False, True]), 1.5),
        seeded(3),
    ),
    "ldexp.Tensor": (lambda x: torch.ldexp(x, torch.tensor([-2, 0, 3])), seeded(2, 3)),
    **{
        f"{name}.{overload}": (lambda x, name=name, of=of: getattr(torch.ops.aten, name)(*of(x), 4, dtype=x.dtype), B[:2])
        for name in ("linspace", "logspace")
        for overload, of in (
            ("Tensor_Tensor", lambda x: (x[0], x[1])),
            ("Tensor_Scalar", lambda x: (x[0], 0.25)),
            ("Scalar_Tensor", lambda x: (0.25, x[1])),
        )
    },
    "_prelu_kernel": (lambda x: F.prelu(x, x[0, :2].square()), seeded(3, 2)),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, 3, -1), seeded(2, 3)),
    "norm.Scalar": (lambda x: torch.ops.aten.norm.Scalar(x, 2), seeded(2, 3)),
    "norm.ScalarOpt_dtype": (lambda x: torch.ops.aten.norm.ScalarOpt_dtype(x, 3, dtype=x.dtype), seeded(2, 3)),
    "norm.ScalarOpt_dim": (lambda x: torch.ops.aten.norm.ScalarOpt_dim(x, None, [1], True), seeded(2, 3)),
    "norm.ScalarOpt_dim_dtype": (
        lambda x: torch.ops.aten.norm.ScalarOpt_dim_dtype(x, 1.5, [0], False, dtype=x.dtype),
        seeded(2, 3),
    ),
    "dist": (lambda x: torch.dist(x, 2 * W), seeded(6)),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 0.5), seeded(2, 3)),
    "std.correction": (lambda x: x.std(-1, correction=0), seeded(2, 3)),
    "std_mean.correction": (lambda x: torch.stack(torch.std_mean(x, 0)), seeded(2, 3)),
    "var.correction": (lambda x: x.var((), correction=0), seeded(2, 3)),
    "var_mean.correction": (lambda x: torch.stack(torch.var_mean(x, (), keepdim=True)), seeded(2, 3)),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), seeded(2, 3)),
    "masked_scatter": (lambda x: x.masked_scatter(W > 0, x[:5].square()), seeded(6)),
    "triangular_solve": (
        lambda a: torch.triangular_solve(W[:3, None] @ a[:1], a, transpose=True, unitriangular=True)[0],
        matrix(),
    ),
    "linalg_ldl_solve": (lambda x: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(M[:3, :3] + M[:3, :3].mT), x), seeded(3, 2)),
    "linalg_eig": (lambda a: (lambda e: e[1].abs() * (e[0].real + e[0].imag.square()))(torch.linalg.eig(a)), matrix()),
    "_linalg_eigh": (lambda a: (lambda e: e[1].square() * e[0])(torch.linalg.eigh(a + a.mT)), matrix()),
    "logaddexp": (lambda x: torch.logaddexp(x, W), seeded(6)),
    "_cdist_forward": (lambda x: torch.cdist(x[:2], x[2:], p=3), seeded(5, 2)),
    "_euclidean_dist": (lambda x: torch.cdist(x[:2], x[2:], compute_mode="use_mm_for_euclid_dist"), seeded(5, 2)),
    "_pdist_forward": (lambda x: F.pdist(x, 1.5), seeded(4, 2)),
    "cholesky": (lambda a: torch.cholesky(a @ a.mT), matrix()),
    "linalg_cholesky_ex": (lambda a: torch.linalg.cholesky(a @ a.mT), matrix()),
    "sgn": (lambda x: torch.complex(x, x * x + 1).sgn().real, seeded(4)),
    "vander": (torch.vander, seeded(4)),
    "mvlgamma": (lambda x: torch.mvlgamma(x, 2), seeded(3, low=2)),
    "grid_sampler_2d": (lambda x: F.grid_sample(W.reshape(1, 1, 2, 3), x.reshape(1, 2, 1, 2), align_corners=True), seeded(4) / 3),
    "grid_sampler_2d, bicubic": (
        lambda x: F.grid_sample(W.reshape(1, 1, 2, 3), x.reshape(1, 2, 1, 2), mode="bicubic", align_corners=False),
        seeded(4) / 3,
    ),
    "grid_sampler_3d": (
        lambda x: F.grid_sample(
            x[:8].reshape(1, 1, 2, 2, 2), x[8:].reshape(1, 1, 1, 1, 3), padding_mode="reflection", align_corners=False
        ),
        seeded(11) / 3,
    ),
    "scatter_reduce.two": (
        lambda x: x.scatter_reduce(0, torch.tensor([0, 0, 2, 0]), x[:4] * torch.tensor([0, 1, 2, 3.0]), "prod"),
        seeded(5),
    ),
    "index_reduce": (lambda x: x.index_reduce(0, torch.tensor([0, 0, 2, 0]), x[:4] + 1, "prod"), seeded(5)),
    "index_reduce, mean": (
        lambda x: x.index_reduce(0, torch.tensor([0, 0, 2]), x[:3] * x[:3], "mean", include_self=False),
        seeded(4),
    ),
    "_embedding_bag": (
        lambda x: F.embedding_bag(
            torch.tensor([0, 2, 1, 2]), x, torch.tensor([0, 3]), mode="sum", per_sample_weights=x[:2].flatten()
        ),
        seeded(3, 2),
    ),
    "_embedding_bag_forward_only": (
        lambda x: F.embedding_bag(torch.tensor([[0, 2], [1, 2]]), BAGS, mode="sum", per_sample_weights=x.reshape(2, 2)),
        seeded(4),
    ),
    "lstm_cell": (
        lambda x: networks["LSTM cell"](x[:4].reshape(2, 2), (x[4:].reshape(2, 3), x[4:].reshape(2, 3)))[1],
        seeded(10),
    ),
    "gru_cell": (lambda x: networks["GRU cell"](x[:4].reshape(2, 2), x[4:].reshape(2, 3)), seeded(10)),
    "rnn_tanh_cell": (lambda x: networks["tanh cell"](x), seeded(2)),
    "rnn_relu_cell": (lambda x: networks["relu cell"](x), seeded(2)),
    "_ctc_loss": (
        lambda x: F.ctc_loss(
            x.reshape(4, 2, 3).log_softmax(-1), torch.tensor([[1, 1], [2, 0]]), (4, 3), (2, 1), reduction="none"
        ),
        seeded(24),
    ),
    "conv_tbc": (lambda x: torch.conv_tbc(x.reshape(4, 1, 2), torch.cat([W, B]).reshape(3, 2, 2), x[:2], 1), seeded(8)),
    "_convolution_double_backward": (
        lambda x: F.conv_transpose1d(
            x.reshape(1, 2, 4), x[:6].reshape(2, 1, 3) ** 2, x[:2], stride=2, output_padding=1, padding=1, groups=2
        ),
        seeded(8),
    ),
    "_embedding_bag, max": (
        lambda x: F.embedding_bag(torch.tensor([0, 2, 1, 2]), x, torch.tensor([0, 3]), mode="max"),
        seeded(3, 2),
    ),
}


if not hasattr(torch.ops.aten, "cholesky"):
    del CALLS["cholesky"]  # which torch 2.15 has no more
for of_two in ("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor", "fmax", "fmin"):
    if of_two not in COMPLETED:
        del CALLS[of_two]  # which this torch has right


def test_every_operator_has_a_call():
    """And `operators` lists it, where torch has it."""
    lacking = {name for name, own in COMPLETED.items() if own.lacks != NO_VMAP} - ELSEWHERE
    lacking = {name for name in lacking if not (COMPLETED[name].slopes or "quant" in name or "fq_" in name)}  # test_layers
    lacking = {name for name in lacking if not name.startswith("special_")}  # test_special
    known = {name for name in lacking if f"aten::{name}" in fullgrad.completion.operators()}
    assert {name.partition(",")[0].removesuffix(" in evaluation") for name in CALLS} == known
    assert lacking - known <= {"cholesky"}


def scalar(name):
    f, x = CALLS[name]
    return lambda x: (f(x) * 0.7).sin().sum(), x


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives(name, nesting):
    """In each nesting they are those of differences."""
    f, x = scalar(name)
    with fullgrad.completing():
        expected = of_differences(f, x)
        found = NESTINGS[nesting](f)(x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CALLS if "batch_norm" not in name])
def test_batches(name):
    """Gradients and Hessians of a batch are those of its samples."""
    f, x = scalar(name)
    batch = torch.stack([x, 0.9 * x])
    with fullgrad.completing():
        for of in (grad(f), hessian(f)):
            torch.testing.assert_close(vmap(of)(batch), torch.stack([of(v) for v in batch]))


# torch has no value for a batch of masks of one dimension.
@pytest.mark.parametrize("name", [name for name in CALLS if "batch_norm" not in name and not name.endswith("groups")])
def test_no_samples(name):
    """A batch of none has values and derivatives of their shapes."""
    f, x = CALLS[name]
    with fullgrad.completing():
        for of in (f, grad(lambda x: f(x).sum()), lambda x: jvp(f, (x,), (x,))[1]):
            assert vmap(of)(x.new_zeros(0, *x.shape)).shape == (0, *of(x).shape)


OF_NO_RULE = {
    "margin": lambda x: F.soft_margin_loss(x, torch.ones(3, 4), reduction="none"),
    "quantile": lambda x: x.quantile(0.4, 1),
    "labels": lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 0, -1, 0]] * 3), reduction="none"),
    "weight": lambda x: torch._weight_norm(x, x[:, :1], 0),
    "quantization": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -2, 2),
    "bag": lambda x: F.embedding_bag(torch.tensor([[0, 1, 2]]), x, mode="max"),
}


@pytest.mark.parametrize("name", OF_NO_RULE)
def test_no_samples_where_torch_has_a_loop(name):
    """By all dimensions, around another batch, inside of one, and with the gradient by what the samples share."""
    f, shared = OF_NO_RULE[name], torch.ones(3, 4, requires_grad=True)
    shape = f(shared).shape
    with fullgrad.completing():
        found = vmap(lambda x, w: (f(x * w), torch.ones(2)), in_dims=(1, None), out_dims=(-1, None))(torch.zeros(3, 0, 4), shared)
        assert found[0].shape == (*shape, 0)
        assert found[1].shape == (2,)
        assert not torch.autograd.grad(found[0].sum(), shared)[0].any()
        assert vmap(vmap(f))(torch.zeros(2, 0, 3, 4)).shape == (2, 0, *shape)
        assert vmap(vmap(f), in_dims=2)(torch.zeros(5, 3, 0, 4)).shape == (0, 5, *shape)
    with pytest.raises(RuntimeError):
        vmap(f)(torch.zeros(0, 3, 4))


def test_errors_of_no_samples_are_torchs():
    def f(x):
        return torch.linalg.inv(x.renorm(2, 0, 1.0))  # of equal rows there is none

    with fullgrad.completing(), pytest.raises(RuntimeError, match="size 0"):
        vmap(f)(torch.zeros(0, 3, 3))


def test_third_derivatives_of_products():
    """They are right where factors are 0, too."""
    z, v = torch.zeros((), dtype=torch.float64), seeded(6)
    for f in (torch.prod, lambda x: x.cumprod(0).sum(), lambda x: x.reshape(3, 2).prod(0).sum()):
        line = lambda s, f=f: f(ZEROS + s * v)  # noqa: E731
        with fullgrad.completing():
            for _ in range(3):
                line = lambda s, f=line: jvp(f, (s,), (torch.ones_like(s),))[1]  # noqa: E731
            found = line(z)
        # A polynomial of degree 6, by its values at 7 points.
        points = torch.arange(-3.0, 4.0, dtype=torch.float64)
        values = torch.stack([f(ZEROS + s * v) for s in points])
        coefficients = torch.linalg.solve(points[:, None] ** torch.arange(7), values)
        torch.testing.assert_close(found, 6 * coefficients[3])


# torch's second derivative of a determinant whose rank is two or more below full is NaN in eager code: docs/limits.md.
EAGER = [
    name
    for name in CALLS
    if COMPLETED[name.partition(",")[0].removesuffix(" in evaluation")].lacks not in (NO_DERIVATIVE, WRONG_GRADIENT, NO_WEIGHTS)
]
_RAISE = ("multi_margin_loss, by weights", "linalg_cond", "linalg_cond, of rows", "linalg_cond.p_str", "vander")
for torchs_fails in (*_RAISE, "var.correction", "var_mean.correction"):
    EAGER.remove(torchs_fails)
EAGER.remove("_linalg_det, of rank 3")


@pytest.mark.parametrize("name", EAGER)
def test_eager_code_is_torchs_own(name):
    """Value and gradient are the same to the last bit, and have derivatives of their own."""
    f, x = scalar(name)

    def first():
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        return y.detach(), torch.autograd.grad(y, leaf)[0]

    expected = first()
    with fullgrad.completing():
        torch.testing.assert_close(first(), expected, rtol=0, atol=0)
        leaf = x.clone().requires_grad_()
        slope = torch.autograd.grad(f(leaf), leaf, create_graph=True)[0]
        second = torch.autograd.grad(slope.sum(), leaf)[0]
        torch.testing.assert_close(second, jvp(grad(f), (x,), (torch.ones_like(x),))[1])


# torch's third derivative at a singular matrix is wrong in eager code: docs/limits.md.
WRONG_THIRD = {"_linalg_det, of rank 4"}


@pytest.mark.parametrize("name", [name for name in EAGER if name not in WRONG_THIRD])
def test_third_derivatives_of_eager_code(name):
    """Backward of backward of backward, along a line, is that of differences of the second derivative."""
    f, x = scalar(name)
    direction = seeded(*x.shape).flip(-1)

    def derivative(x, order):
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        for _ in range(order):
            if not y.requires_grad:
                return torch.zeros((), dtype=x.dtype)
            (slope,) = torch.autograd.grad(y, leaf, create_graph=True, materialize_grads=True)
            y = (slope * direction).sum()
        return y.detach()

    step = 1e-5 * direction
    with fullgrad.completing():
        expected = (derivative(x + step, 2) - derivative(x - step, 2)) / 2e-5
        torch.testing.assert_close(derivative(x, 3), expected, rtol=1e-5, atol=1e-5)


BIASED = {
    "layer_norm": lambda x, b: F.layer_norm(x, (4,), None, b),
    "group_norm": lambda x, b: F.group_norm(x, 2, None, b),
    "batch_norm": lambda x, b: F.batch_norm(x, None, None, None, b, training=True),
    "batch_norm in evaluation": lambda x, b: F.batch_norm(x, W[:4], W[:4].square(), None, b),
    "batch_norm of graphs": lambda x, b: torch.ops.aten._native_batch_norm_legit.no_stats(x, None, b, True, 0.1, 1e-5)[0],
    "instance_norm": lambda x, b: F.instance_norm(x[..., None].expand(*x.shape, 2) * W[:2], bias=b),
}


@pytest.mark.parametrize("name", BIASED)
def test_norms_with_a_bias_and_no_weight(name):
    """In eager code they have torch's value and first gradient, where it has one, and the next ones of `torch.func`."""
    inputs = seeded(3, 4), seeded(4)
    f = lambda x, b: BIASED[name](x, b).sin().sum()  # noqa: E731

    def first(**kwargs):
        leaves = [v.clone().requires_grad_() for v in inputs]
        y = f(*leaves)
        return y, torch.autograd.grad(y, leaves, **kwargs), leaves

    own = None if name == "group_norm" else first()[1]
    with fullgrad.completing():
        y, slopes, leaves = first(create_graph=True)
        assert torch.equal(y, f(*inputs))
        torch.testing.assert_close(first()[1], slopes if own is None else own, rtol=0, atol=0)
        torch.testing.assert_close([v.detach() for v in slopes], list(grad(f, (0, 1))(*inputs)))
        found = torch.autograd.grad(sum(v.sin().sum() for v in slopes), leaves)
        expected = grad(lambda *given: sum(v.sin().sum() for v in grad(f, (0, 1))(*given)), (0, 1))(*inputs)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("p", [1, -1, math.inf, -math.inf, "fro"])
def test_condition_numbers_of_eager_code(p):
    """They have torch's value, and every derivative, which torch has none of."""
    a = torch.stack([matrix(), matrix().mT.exp()])
    f = lambda a: torch.linalg.cond(a, p).log().sum()  # noqa: E731
    leaf = a.clone().requires_grad_()
    with fullgrad.completing():
        y = f(leaf)
        assert torch.equal(y.detach(), f(a))
        (slope,) = torch.autograd.grad(y, leaf, create_graph=True)
        torch.testing.assert_close(slope.detach(), grad(f)(a))
        (second,) = torch.autograd.grad(slope.sum(), leaf)
        torch.testing.assert_close(second, jvp(grad(f), (a,), (torch.ones_like(a),))[1])
    assert torch.equal(y.detach(), f(a))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("loss", [F.nll_loss, F.cross_entropy, F.multi_margin_loss, F.binary_cross_entropy])
def test_weights_of_losses(loss, reduction):
    """Constant ones leave eager code torch's own; else there is a gradient by them, which is that of `torch.func`."""
    target = B[:6].sigmoid().reshape(2, 3) if loss is F.binary_cross_entropy else torch.tensor([2, 0])
    x, weight = W.sigmoid().reshape(2, 3), B[:3].exp()
    f = lambda x, weight: loss(x, target, weight=weight, reduction=reduction).sin().sum()  # noqa: E731
    leaf, both = x.clone().requires_grad_(), [v.clone().requires_grad_() for v in (x, weight)]
    expected = torch.autograd.grad(f(leaf, weight), leaf)[0]
    with fullgrad.completing():
        torch.testing.assert_close(torch.autograd.grad(f(leaf, weight), leaf)[0], expected, rtol=0, atol=0)
        found = torch.autograd.grad(f(*both), both)
        torch.testing.assert_close(found, grad(f, (0, 1))(x, weight))
        torch.testing.assert_close(found[0], expected)
        value, tangent = jvp(f, (x, weight), (x, weight))
    torch.testing.assert_close(value, f(x, weight), rtol=0, atol=0)
    torch.testing.assert_close(tangent, sum((g * v).sum() for g, v in zip(found, (x, weight), strict=True)))


def test_integer_exponents_have_a_gradient():
    """A power of two below 1 is the slope, which torch has as 0."""
    x = torch.ones(3, requires_grad=True)
    with fullgrad.completing():
        (found,) = torch.autograd.grad(torch.ldexp(x, torch.tensor([-2, 0, 1])).sum(), x)
    assert found.tolist() == [0.25, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["native_layer_norm", "native_group_norm", "native_batch_norm", "glu", "hardsigmoid"])
def test_values_of_the_formulas_in_other_dtypes(name, dtype):
    """Under a transform the value is torch's up to rounding, in its dtype."""
    calls = {
        "native_layer_norm": lambda x: F.layer_norm(x, (6,)),
        "native_group_norm": lambda x: F.group_norm(x, 2),
        "native_batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "glu": F.glu,
        "hardsigmoid": F.hardsigmoid,
    }
    x = seeded(4, 6).to(dtype)
    expected = calls[name](x)
    with fullgrad.completing():
        found = jvp(calls[name], (x,), (x,))[0]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=4 * eps, atol=4 * eps)


def wrong_by_torch():
    """Whether torch's forward over forward of a norm is wrong."""
    f, x = scalar("native_layer_norm")
    return not torch.allclose(jacfwd(jacfwd(f))(x), of_differences(f, x), atol=1e-4)


def test_torch_is_as_before_afterwards():
    """Also after an error, and where contexts are nested."""
    before = wrong_by_torch()
    with fullgrad.completing():
        with pytest.raises(ZeroDivisionError), fullgrad.completing():
            1 / 0  # noqa: B018
        assert not wrong_by_torch()
    assert wrong_by_torch() == before
    assert not fullgrad.completing()(wrong_by_torch)()
    assert not fullgrad.completing(wrong_by_torch)()
    with pytest.raises(TypeError, match="`function` must be callable, got a value of type int"):
        fullgrad.completing(3)
    assert wrong_by_torch() == before


def test_other_threads():
    """The context is that of the process, until the last thread has left it."""
    found, entered, leave = [], threading.Event(), threading.Event()

    def other():
        with fullgrad.completing():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with fullgrad.completing():
        pass
    found.append(wrong_by_torch())
    leave.set()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize("first", ["of a trace", "of a user"])
def test_a_context_of_a_user_while_another_thread_traces(monkeypatch, first):
    """It is whole, and is closed whole, whichever of the two ends first."""
    before = torch.cond.__code__
    of_trace, of_user = _completing.completed(), fullgrad.completing()
    _completing.install()
    with monkeypatch.context() as patch:
        patch.setattr(_completing, "is_tracing", lambda: True)
        of_trace.__enter__()
    of_user.__enter__()
    assert torch.cond.__code__ is not before
    for context in (of_trace, of_user) if first == "of a trace" else (of_user, of_trace):
        assert not wrong_by_torch()
        context.__exit__(None, None, None)
    assert torch.cond.__code__ is before
    assert not fullgrad.completing(wrong_by_torch)()


FIRST = """
import sys
import torch
import fullgrad
from torch.func import jacfwd, jvp, vmap

x = torch.randn(3, 4)
try:
    torch.compile(vmap(jacfwd(lambda x: x.sin() * x.tolist()[0])), backend="eager", fullgraph=True)(x)
except Exception:
    with getattr(fullgrad, sys.argv[1])():
        torch.testing.assert_close(jvp(torch.sin, (x,), (x,))[1], x * x.cos())
    torch.testing.assert_close(jvp(torch.sin, (x,), (x,))[1], x * x.cos())
    print("done")
"""


@pytest.mark.long
@pytest.mark.parametrize("context", ["completing", "adopting"])
def test_a_first_context_after_a_trace_that_failed(context):
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST, context], capture_output=True, text=True)
    assert run.stdout == "done\n", run.stderr[-1500:]


def test_no_thread_writes_graphs_to_a_cache():
    """torch's caches on disk and elsewhere do not know of other kernels: the settings hold in each thread, also where users set
    them, and are theirs afterwards.
    """
    config, found, steps = torch._functorch.config, [], threading.Barrier(2)

    def look():
        with config.patch(enable_autograd_cache=True, enable_remote_autograd_cache=True):
            for _ in range(3):
                steps.wait(60)
                found.append((config.enable_autograd_cache, config.enable_remote_autograd_cache))
                steps.wait(60)

    before = config.enable_autograd_cache, config.enable_remote_autograd_cache
    thread = threading.Thread(target=look)
    thread.start()
    for context in (contextlib.nullcontext(), fullgrad.completing(), contextlib.nullcontext()):
        with context:
            steps.wait(60)
            steps.wait(60)
    thread.join()
    assert found == [(True, True), (False, False), (True, True)]
    assert (config.enable_autograd_cache, config.enable_remote_autograd_cache) == before


@pytest.mark.long
def test_compiled_code_is_compiled_again():
    """A transform that was compiled before follows the context. What it gives outside is wrong in several ways."""
    x, t = seeded(2, 6), seeded(2, 6).flip(-1)
    f = lambda x: (F.layer_norm(x, (6,)) * 0.7).sin().sum()  # noqa: E731
    compiled = torch.compile(lambda x: jvp(lambda x: jvp(f, (x,), (t,))[1], (x,), (t,))[1], backend="aot_eager")
    compiled(x)
    expected = (jvp(grad(f), (x,), (t,))[1] * t).sum()
    with fullgrad.completing():
        torch.testing.assert_close(compiled(x), expected)


def test_running_statistics():
    """A norm under a transform updates them once, as torch does, and refuses those that a batch shares."""
    x = seeded(4, 3)
    kept = {}
    for transformed in (False, True):
        kept[transformed] = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        f = lambda x, kept=kept[transformed]: F.batch_norm(x, *kept, training=True)  # noqa: E731
        with fullgrad.completing():
            if transformed:
                jvp(lambda x, f=f: jvp(f, (x,), (x,))[1], (x,), (x,))
            else:
                f(x)
    torch.testing.assert_close(kept[True], kept[False])
    with fullgrad.completing(), pytest.raises(RuntimeError, match="were not batched"):
        vmap(jacfwd(lambda x: F.batch_norm(x, *kept[True], training=True)))(torch.stack([x, x]))


# --- Whole models -----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """A block of a language model, with causal attention."""

    def __init__(self):
        super().__init__()
        self.norm, self.of, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.of(self.norm(x)).unflatten(-1, (2, 6)).transpose(-2, -3).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2))


class Residual(nn.Module):
    """A block of a ResNet. torch.func refuses the counter of running statistics, for torch's own derivatives too."""

    def __init__(self, track=False):
        super().__init__()
        norm = nn.BatchNorm2d(2, track_running_stats=track)
        self.layers = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, bias=False), norm, nn.SiLU(), nn.Conv2d(2, 2, 1))

    def forward(self, x):
        return torch.tanh(x + self.layers(x))


class Upsampling(nn.Module):
    """A block of a U-Net."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x):
        return F.interpolate(F.silu(self.norm(self.conv(x))), scale_factor=2, mode="bilinear")


class Recurrent(nn.Module):
    """The states of a recurrent network."""

    def __init__(self, kind):
        super().__init__()
        self.cell = kind(2, 2, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]


class Decoder(nn.Module):
    """torch's decoder layer, with itself as the memory."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x, x)


class Experts(nn.Module):
    """A mixture of experts with soft routing."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(3, 2), nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.GELU()) for _ in range(2)])

    def forward(self, x):
        shares = self.gate(F.layer_norm(x, (3,))).softmax(-1)
        return sum(shares[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))


MODELS = {
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), (1, 3, 4)),
    "encoder in evaluation": (lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True).eval(), (1, 3, 4)),
    "decoder": (Decoder, (1, 2, 4)),
    "LSTM": (lambda: Recurrent(nn.LSTM), (1, 3, 2)),
    "GRU": (lambda: Recurrent(nn.GRU), (1, 3, 2)),
    "ResNet": (Residual, (2, 2, 2, 2)),
    "ResNet in evaluation": (lambda: Residual(track=True).eval(), (1, 2, 2, 2)),
    "GPT": (Attention, (1, 3, 4)),
    "U-Net": (Upsampling, (1, 2, 2, 2)),
    "experts": (Experts, (2, 3)),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    make, shape = MODELS[request.param]
    return make().double(), seeded(*shape)


def test_second_derivatives_of_models(model):
    """All nestings agree with differences, for untouched modules."""
    module, x = model
    f = lambda x: module(x).sin().sum()  # noqa: E731
    expected = of_differences(f, x)
    with fullgrad.completing():
        for nesting in NESTINGS.values():
            torch.testing.assert_close(nesting(f)(x), expected, rtol=1e-6, atol=1e-6)


def test_fourth_derivatives_along_a_line(model):
    """Nested tangents to the fourth order are those of differences of the third."""
    module, x = model
    t = seeded(*x.shape).flip(-1)

    def line(f, order):
        for _ in range(order):
            f = lambda s, f=f: jvp(f, (s,), (torch.ones_like(s),))[1]  # noqa: E731
        return f

    f, zero, step = lambda s: module(x + s * t).sin().sum(), torch.zeros((), dtype=torch.float64), 1e-4
    with fullgrad.completing():
        third = line(f, 3)
        expected = (third(zero + step) - third(zero - step)) / (2 * step)
        torch.testing.assert_close(line(f, 4)(zero), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_samples(model):
    """`vmap(grad)` by parameters, as for per-sample gradients, and `vmap(hessian)` by the input."""
    module, x = model
    parameters, batch = dict(module.named_parameters()), torch.stack([x, 0.5 * x])

    def loss(parameters, x):
        return functional_call(module, parameters, (x,)).sin().sum()

    with fullgrad.completing():
        found = vmap(grad(loss), (None, 0))(parameters, batch)
        seconds = vmap(hessian(lambda x: module(x).sin().sum()))(batch)
        for i, v in enumerate(batch):
            expected = torch.autograd.grad(loss(parameters, v), list(parameters.values()))
            torch.testing.assert_close([g[i] for g in found.values()], list(expected))
            torch.testing.assert_close(seconds[i], hessian(lambda x: module(x).sin().sum())(v))


def test_the_page_has_every_operator():
    """With what torch lacks."""
    page = (Path(__file__).parents[2] / "docs" / "completing.md").read_text()
    for name, lacks in fullgrad.completion.operators().items():
        assert f"| `{name.removeprefix('aten::')}` | {lacks} |" in page


def test_laplacian():
    """Of a physics-informed network, at a batch of points: by tangents of tangents, by the Hessian, and by differences."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)).double()
    u, points, directions = lambda x: network(x).squeeze(-1), seeded(3, 2), torch.eye(2, dtype=torch.float64)

    def by_tangents(x):
        return sum(jvp(lambda x, e=e: jvp(u, (x,), (e,))[1], (x,), (e,))[1] for e in directions)

    def by_differences(x, h=1e-4):
        return sum((u(x + h * e) - 2 * u(x) + u(x - h * e)) / h**2 for e in directions)

    with fullgrad.completing():
        found = vmap(by_tangents)(points)
        torch.testing.assert_close(found, vmap(lambda x: hessian(u)(x).trace())(points))
        by_parameters = grad(lambda p: functional_call(network, p, (points,)).sum())(dict(network.named_parameters()))
        assert by_parameters.keys() == dict(network.named_parameters()).keys()
    torch.testing.assert_close(found, by_differences(points), rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
def test_memory_of_attention():
    """Second derivatives at many queries take at most 8 times the memory of inputs and outputs, in every nesting."""
    n, d = 2048, 64
    x, t = [tuple(torch.randn(3, 1, 1, n, d, generator=torch.Generator().manual_seed(k)).unbind()) for k in range(2)]

    def f(*x):
        return F.scaled_dot_product_attention(*x, is_causal=True).sin().sum()

    def slope(*x):
        return sum((g * v).sum() for g, v in zip(grad(f, (0, 1, 2))(*x), t, strict=True))

    def eager():
        leaves = [v.clone().requires_grad_() for v in x]
        slopes = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
        torch.autograd.grad(sum((a * b).sum() for a, b in zip(slopes, t, strict=True)), leaves)

    ways = {
        "reverse": lambda: grad(f, (0, 1, 2))(*x),
        "reverse over reverse": lambda: grad(slope, (0, 1, 2))(*x),
        "forward over reverse": lambda: jvp(grad(f, (0, 1, 2)), x, t),
        "reverse over forward": lambda: grad(lambda *x: jvp(f, x, t)[1], (0, 1, 2))(*x),
        "forward over forward": lambda: jvp(lambda *x: jvp(f, x, t)[1], x, t),
        "eager": eager,
    }
    with fullgrad.completing():
        for name, way in ways.items():
            assert peak(way) < 8 * 4 * n * d * 4, name


def peak(run):
    """The most bytes that were held at once beyond those before."""
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        run()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def kept_after_backward(f, x):
    """Whether the memory of the argument and of the result is kept, after the backward of a loss that is alive."""
    x = x.clone().requires_grad_() * 1
    y = f(x)
    memory = [StorageWeakRef(t.untyped_storage()) for t in (x, y)]
    loss = (y * y).sum()
    del x, y
    loss.backward()
    return [not m.expired() for m in memory]


@pytest.mark.parametrize("name", CALLS)
def test_a_loss_that_is_alive_keeps_nothing(name):
    """A backward frees what the forward has saved, as in torch alone."""
    f, x = CALLS[name]
    with fullgrad.completing():
        assert kept_after_backward(f, x) == [False, False]


def test_a_second_backward_is_refused_as_in_torch():
    """Unless the graph is retained."""
    x = seeded(5, 2).requires_grad_()
    with fullgrad.completing():
        loss = torch.cdist(x[:2], x[2:], p=3).sum()
        first = torch.autograd.grad(loss, x, retain_graph=True)[0]
        assert torch.equal(torch.autograd.grad(loss, x)[0], first)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, x)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_checkpoint_keeps_the_context_of_its_call_for_a_backward_outside(dropout):
    """A function that is computed again has the derivatives and the dropout mask of the context in which it was called."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True).double()
    x, v = seeded(2, 3, 5, 8)

    def gradients(f):
        torch.manual_seed(1)
        with fullgrad.completing():
            value, tangent = jvp(f, (x,), (v,))
        return torch.autograd.grad((value - tangent.sin()).square().sum(), list(layer.parameters()))

    torch.testing.assert_close(gradients(lambda x: fullgrad.checkpoint(layer, x)), gradients(layer))


@pytest.mark.long
def test_batches_of_hessians_compile():
    """Their tangents are symbolic zeros, views of which torch hides from a tracer."""
    f = vmap(hessian(lambda x: F.layer_norm(3 * x, (2,)).sin().sum()))
    x = torch.linspace(-1, 2, 6, dtype=torch.float64).reshape(3, 2)
    with fullgrad.completing():
        torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(x), f(x))
