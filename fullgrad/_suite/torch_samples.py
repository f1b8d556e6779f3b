"""Samples on which torch's own operators are judged: small ones of torch's descriptions of them (OpInfo), and samples of our own
where torch has none: modules, decompositions that exported graphs have, and operators without a description.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fullgrad._dispatch import operator_database, pytree

_MOST = 1000


class Sample(NamedTuple):
    """A call: its outputs as a function of tensors, the tensors, and the places of those that have a derivative.

    ``surrogate`` has the derivative that the call declares, where it is not that of the value.
    """

    name: str
    outputs: Callable[..., list[Tensor]]
    inputs: tuple[Tensor, ...]
    differentiated: tuple[int, ...]
    surrogate: Callable[..., list[Tensor]] | None = None
    has_dtype: bool = False  # a dtype is among the arguments
    is_ours: bool = False


class Operator(NamedTuple):
    """A name, and the samples, of which torch's are at most so many."""

    name: str
    samples: Callable[[int], Iterator[Sample]]


@functools.cache
def operators() -> list[Operator]:
    """Every operator that has a derivative, but those that are `NOT_JUDGED`."""
    found = []
    for op in operator_database():
        if op.supports_autograd and name_of(op) not in OURS_ALONE:
            found.append(Operator(name_of(op), functools.partial(_samples, op)))
            if op.inplace_variant is not None:
                found.append(Operator(f"{name_of(op)}, in place", functools.partial(_in_place, op)))
    found += [Operator(name, functools.partial(_of_ours, name)) for name in dict.fromkeys([s.name for s in OWN])]
    by_name: dict[str, Operator] = {}
    for name, samples in found:  # those of ours come first
        other = by_name.get(name)
        both = samples if other is None else functools.partial(_both, samples, other.samples)
        by_name[name] = Operator(name, both)
    return [op for name, op in by_name.items() if name not in NOT_JUDGED]


def _both(first: Any, second: Any, count: int) -> Iterator[Sample]:
    yield from first(count)
    yield from second(count)


def _of_ours(name: str, _: int) -> Iterator[Sample]:
    return iter([s for s in OWN if s.name == name])


def name_of(op: Any) -> str:
    """The name of an operator with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _samples(op: Any, count: int) -> Iterator[Sample]:
    """Some that lie far apart in torch's list, and a complex one."""
    found = [s for s in _eligible(op, op.op, torch.float64) if _runs(s)]
    yield from found[:: max(1, -(-len(found) // count))][:count]
    if torch.complex128 in op.supported_backward_dtypes("cpu"):
        yield from [s for s in _eligible(op, op.op, torch.complex128) if _runs(s)][1:2]


def _in_place(op: Any, count: int) -> Iterator[Sample]:
    found = _eligible(op, lambda x, *args, **kwargs: op.inplace_variant(x.clone(), *args, **kwargs), torch.float64, True)
    yield from [s for s in found if _runs(s)][:2][-1:]


def _runs(sample: Sample) -> bool:
    try:
        sample.outputs(*sample.inputs)
    except Exception:
        return False
    return True


def _eligible(op: Any, function: Callable[..., Any], dtype: torch.dtype, in_place: bool = False) -> Iterator[Sample]:
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        if in_place and sample.broadcasts_input:
            continue
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        where = [i for i, v in enumerate(leaves) if isinstance(v, Tensor)]
        inputs = tuple([leaves[i] for i in where])
        of = tuple([k for k, v in enumerate(inputs) if v.requires_grad and v.numel() and v.dtype == dtype])
        if not of or any(v.layout != torch.strided or v.is_nested or v.numel() > _MOST for v in inputs):
            continue

        def outputs(
            *xs: Tensor, leaves: Any = leaves, spec: Any = spec, where: Any = where, of: Any = of, sample: Any = sample
        ) -> Any:
            own = list(leaves)
            for k, (i, x) in enumerate(zip(where, xs, strict=True)):
                own[i] = x if k in of else x.clone()  # which the call may change
            first, args, kwargs = pytree.tree_unflatten(own, spec)
            torch.default_generator.manual_seed(0)
            y = op.gradcheck_wrapper(function, first, *args, **kwargs)
            return _floating(y if sample.output_process_fn_grad is None else sample.output_process_fn_grad(y))

        has_dtype = any(isinstance(v, torch.dtype) for v in leaves)
        yield Sample(name_of(op), outputs, tuple([v.detach() for v in inputs]), of, has_dtype=has_dtype)


def _floating(y: Any) -> list[Tensor]:
    return [v for v in pytree.tree_leaves(y) if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex())]


# --- Samples of our own -------------------------------------------------------------------------------------------------------

OWN: list[Sample] = []


def _own(
    name: str, f: Callable[..., Any], *inputs: Tensor, surrogate: Callable[..., Any] | None = None, constant: Any = ()
) -> None:
    def outputs(*xs: Tensor) -> list[Tensor]:
        torch.default_generator.manual_seed(0)
        return _floating(f(*[x.clone() if i in constant else x for i, x in enumerate(xs)]))  # which the call may change

    of = tuple([i for i, v in enumerate(inputs) if (v.is_floating_point() or v.is_complex()) and i not in constant])
    OWN.append(Sample(name, outputs, inputs, of, surrogate and (lambda *xs: _floating(surrogate(*xs))), is_ours=True))


def _numbers(*shape: int, low: float | None = None, high: float = 1.0) -> Tensor:
    """Normal numbers, or numbers between bounds."""
    generator = torch.Generator().manual_seed(len(OWN) + 7 * len(shape) + sum(shape))
    if low is None:
        return torch.randn(shape, dtype=torch.float64, generator=generator)
    return torch.rand(shape, dtype=torch.float64, generator=generator) * (high - low) + low


def _module(
    make: Callable[[], nn.Module], call: Callable[[nn.Module, Sequence[Tensor]], Any] | None, *inputs: Tensor, name: str = ""
) -> None:
    """A module as a function of its inputs and parameters; its buffers are new in each call."""
    torch.default_generator.manual_seed(0)
    module = make().double()
    names = [n for n, _ in module.named_parameters()]
    parameters = [p.detach() + 0.05 * (k + 1) for k, (_, p) in enumerate(module.named_parameters())]
    buffers = {n: b.detach() for n, b in module.named_buffers()}
    run = call or (lambda m, xs: m(*xs))

    def f(*xs: Tensor) -> Any:
        state = dict(zip(names, xs[len(inputs) :], strict=True)) | {n: b.clone() for n, b in buffers.items()}
        return torch.func.functional_call(
            _Called(module, run), {f"module.{n}": v for n, v in state.items()}, (xs[: len(inputs)],)
        )

    _own(name or f"nn.{type(module).__name__}", f, *inputs, *parameters)


class _Called(nn.Module):
    def __init__(self, module: nn.Module, run: Any) -> None:
        super().__init__()
        self.module, self.run = module, run

    def forward(self, xs: Any) -> Any:
        return self.run(self.module, xs)


def _fill() -> None:
    aten, x = torch.ops.aten, _numbers
    # Weight normalization, and networks of a step.
    _own("_weight_norm", lambda v, g: torch._weight_norm(v, g, 0), x(3, 4), x(3, 1))
    _own("_weight_norm", lambda v, g: torch._weight_norm(v, g, 1), x(3, 4), x(1, 4))
    _own("_weight_norm_interface", lambda v, g: aten._weight_norm_interface(v, g, 0)[0], x(3, 4), x(3, 1))
    with_norm = torch.nn.utils.parametrizations.weight_norm
    _module(lambda: with_norm(nn.Linear(3, 2)), None, x(2, 3), name="nn.utils.parametrizations.weight_norm")
    _own("norm_except_dim", lambda v: torch.norm_except_dim(v, 2, 0), x(3, 4))
    for cell, states in ((nn.LSTMCell, 2), (nn.GRUCell, 1), (nn.RNNCell, 1)):
        call = (lambda m, xs: m(xs[0], (xs[1], xs[2]))) if states == 2 else None
        _module(lambda cell=cell: cell(3, 2), call, x(2, 3), *[x(2, 2) for _ in range(states)])
    _module(lambda: nn.RNNCell(3, 2, nonlinearity="relu"), None, x(2, 3), x(2, 2))
    for network in (nn.LSTM, nn.GRU, nn.RNN):
        _module(lambda network=network: network(3, 2, num_layers=2, bidirectional=True), None, x(3, 2, 3))
    # Attention and transformers.
    q, k, v = x(1, 2, 3, 4), x(1, 2, 3, 4), x(1, 2, 3, 4)
    for mask in (None, torch.tensor([[0.0, -1.0, 0.5]], dtype=torch.float64).expand(1, 1, 3, 3)):
        _own(
            "_scaled_dot_product_flash_attention_for_cpu",
            lambda q, k, v, mask=mask: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask)[0],
            *(q, k, v),
        )
    _own(
        "_scaled_dot_product_attention_math",
        lambda q, k, v: aten._scaled_dot_product_attention_math(q, k, v, None, 0.0, True)[0],
        q,
        k,
        v,
    )
    _own("scaled_dot_product_attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), q, k, v)
    for batch_first in (True, False):
        _module(
            lambda b=batch_first: nn.MultiheadAttention(4, 2, batch_first=b), lambda m, xs: m(xs[0], xs[0], xs[0]), x(2, 3, 4)
        )
    _module(lambda: nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True), None, x(2, 3, 4))
    _module(lambda: nn.TransformerDecoderLayer(4, 2, 4, dropout=0.0, batch_first=True), None, x(1, 2, 4), x(1, 3, 4))
    # Norms, as exported graphs have them.
    a, w, b, mean, var = x(3, 2, 2), x(2), x(2), x(2), x(2, low=0.5)
    for training in (True, False):
        _own(
            "_native_batch_norm_legit",
            lambda a, w, b, m, s, t=training: aten._native_batch_norm_legit(a, w, b, m, s, t, 0.1, 1e-5)[0],
            *(a, w, b, mean, var),
            constant=(3, 4),
        )
        _own(
            "native_batch_norm",
            lambda a, w, b, m, s, t=training: aten.native_batch_norm(a, w, b, m, s, t, 0.1, 1e-5)[0],
            *(a, w, b, mean, var),
            constant=(3, 4),
        )
    _own(
        "_native_batch_norm_legit.no_stats",
        lambda a, w, b: aten._native_batch_norm_legit.no_stats(a, w, b, True, 0.1, 1e-5)[0],
        a,
        w,
        b,
    )
    _own(
        "_native_batch_norm_legit_no_training",
        lambda a, w, b, m, s: aten._native_batch_norm_legit_no_training(a, w, b, m, s, 0.1, 1e-5)[0],
        *(a, w, b, mean, var),
        constant=(3, 4),
    )
    _own(
        "_batch_norm_with_update",
        lambda a, w, b, m, s: aten._batch_norm_with_update(a, w, b, m, s, 0.1, 1e-5)[0],
        *(a, w, b, mean, var),
        constant=(3, 4),
    )
    _own("native_layer_norm", lambda a, w, b: aten.native_layer_norm(a, [4], w, b, 1e-5)[0], x(3, 4), x(4), x(4))
    _own("native_group_norm", lambda a, w, b: aten.native_group_norm(a, w, b, 2, 4, 3, 2, 1e-5)[0], x(2, 4, 3), x(4), x(4))
    _own("_fused_rms_norm", lambda a, w: aten._fused_rms_norm(a, [4], w, 1e-5)[0], x(3, 4), x(4))
    for norm, shape in (
        (nn.BatchNorm1d(2, track_running_stats=False), (3, 2)),
        (nn.InstanceNorm1d(2, affine=True), (2, 2, 4)),
        (nn.SyncBatchNorm(2, track_running_stats=False), (3, 2)),
    ):
        _module(lambda norm=norm: norm, None, x(*shape))
    # Quantization-aware training.
    _fake_quantization()
    # Losses and layers.
    target, lengths = torch.tensor([[1, 2], [2, 1]]), (torch.tensor([4, 4]), torch.tensor([2, 1]))
    _own("nn.functional.ctc_loss", lambda s: F.ctc_loss(s.log_softmax(-1), target, *lengths, reduction="none"), x(4, 2, 3))
    _own("nn.functional.ctc_loss", lambda s: F.ctc_loss(s.log_softmax(-1), target, *lengths), x(4, 2, 3))
    of_lengths = lambda s, n, m: F.ctc_loss(s.log_softmax(-1), target, n, m)  # noqa: E731
    _own("nn.functional.ctc_loss", of_lengths, x(4, 2, 3), torch.tensor([4, 3]), torch.tensor([2, 1]))
    for loss in (
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.soft_margin_loss,
        F.binary_cross_entropy_with_logits,
        F.poisson_nll_loss,
    ):
        _own(f"nn.functional.{loss.__name__}", lambda s, t, loss=loss: loss(s, t), x(3, 2), x(3, 2), constant=(1,))
    _own(
        "nn.functional.embedding_bag",
        lambda w, s: F.embedding_bag(torch.tensor([[0, 2], [1, 3]]), w, per_sample_weights=s, mode="sum"),
        x(4, 2),
        x(2, 2),
    )
    _own(
        "nn.functional.embedding_bag",
        lambda w, s: F.embedding_bag(torch.tensor([[0, 2], [1, 3]]), w, per_sample_weights=s, mode="sum", padding_idx=3),
        x(4, 2),
        x(2, 2),
    )
    _own("nn.functional.embedding_bag", lambda w: F.embedding_bag(torch.tensor([[0, 2], [1, 3]]), w, mode="mean"), x(4, 2))
    _own("nn.functional.multi_margin_loss", lambda s: F.multi_margin_loss(s, torch.tensor([0, 2])), x(2, 3))
    labels = torch.tensor([0, 2])
    _own("nn.functional.one_hot", lambda i, s: F.one_hot(i, 3) * s, labels, x(2, 3))
    for loss in (F.multi_margin_loss, F.nll_loss, F.cross_entropy):
        for reduction in ("none", "mean"):
            weighted = functools.partial(loss, reduction=reduction)
            _own(f"nn.functional.{loss.__name__}", lambda s, w, f=weighted: f(s, labels, weight=w), x(2, 3), x(3, low=1, high=2))
    _own("nn.functional.cross_entropy", lambda s, i: F.cross_entropy(s, i, label_smoothing=0.1), x(2, 3), labels)
    _own(
        "nn.functional.cross_entropy",
        lambda s, w, i: F.cross_entropy(s, i, w, ignore_index=2, label_smoothing=0.1),
        *(x(2, 3), x(3, low=1, high=2), labels),
    )
    _own("nn.functional.nll_loss", lambda s, w: F.nll_loss(s, labels[None], weight=w), x(1, 3, 2), x(3, low=1, high=2))
    _own(
        "nn.functional.binary_cross_entropy",
        lambda s, t, w: F.binary_cross_entropy(s, t, weight=w),
        *(x(2, 3, low=0.2, high=0.8), x(2, 3, low=0.2, high=0.8), x(3, low=1, high=2)),
    )
    _own(
        "nn.functional.multilabel_margin_loss",
        lambda s: F.multilabel_margin_loss(s, torch.tensor([[0, 2, -1], [1, -1, 0]])),
        x(2, 3),
    )
    _own("nn.functional.rrelu", lambda s: F.rrelu(s, training=False), x(2, 3))
    _own("nn.functional.alpha_dropout", lambda s: F.alpha_dropout(s, 0.5, training=True), x(2, 3))
    _own("nn.functional.dropout3d", lambda s: F.dropout3d(s, 0.5), x(1, 2, 2, 2, 2))
    _own("nn.functional.feature_alpha_dropout", lambda s: F.feature_alpha_dropout(s, 0.5, training=True), x(2, 3, 2))
    _own("conv_tbc", lambda s, w, b: torch.conv_tbc(s, w, b, 1), x(3, 2, 2), x(2, 2, 3), x(3))
    _own(
        "nn.functional.conv_transpose1d",
        lambda s, w: F.conv_transpose1d(s, w, stride=2, output_padding=1),
        x(1, 2, 3),
        x(2, 2, 2),
    )
    _own("_upsample_bilinear2d_aa", lambda s: aten._upsample_bilinear2d_aa(s, [2, 3], False, None, None), x(1, 1, 4, 4))
    _own("_upsample_bicubic2d_aa", lambda s: aten._upsample_bicubic2d_aa(s, [2, 3], False, None, None), x(1, 1, 4, 4))
    # Linear algebra.
    scales = torch.diag(torch.tensor([1e8, 1, 1, 1, 1], dtype=torch.float64))
    for f in (torch.linalg.det, torch.linalg.slogdet, torch.logdet):
        _own(f"{'linalg.' if f is not torch.logdet else ''}{f.__name__.removeprefix('linalg_')}", f, scales)
        _own(
            f"{'linalg.' if f is not torch.logdet else ''}{f.__name__.removeprefix('linalg_')}",
            f,
            x(2, 5, 5) + 3 * torch.eye(5).double(),
        )
    _own("linalg.det", torch.linalg.det, torch.diag(torch.tensor([1.0, 2, 0, 3, 4])).double())
    for p in (1, -math.inf, "fro"):
        _own("linalg.cond", lambda s, p=p: torch.linalg.cond(s, p), x(2, 3, 3) + 2 * torch.eye(3).double())
    _own("linalg.eigvalsh", lambda s: torch.linalg.eigvalsh(s + s.mT), x(3, 3))
    _own("linalg.eigh", lambda s: [v.abs() for v in torch.linalg.eigh(s + s.mT)], x(3, 3))
    positive, part = x(3, 3), lambda s: (s + s.mT) / 2
    positive = positive @ positive.mT + torch.eye(3)
    turned = lambda s: part(s) + (s - s.mT) - (s - s.mT).detach()  # noqa: E731  a symmetric matrix with any tangent
    for name, factor in (("cholesky", torch.cholesky), ("linalg.cholesky", torch.linalg.cholesky)):
        _own(name, lambda s, f=factor: f(turned(s)), positive, surrogate=lambda s, f=factor: f(part(s)))
    _own("triangular_solve", lambda b, s: torch.triangular_solve(b, s)[0], x(3, 2), x(3, 3) + 2 * torch.eye(3).double())
    _own(
        "linalg.ldl_solve",
        lambda s, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(s + s.mT), b),
        x(3, 3) + 2 * torch.eye(3).double(),
        x(3, 2),
        constant=(0,),
    )
    # Products, indices and special functions.
    _own("prod", lambda s: torch.stack([s.prod(), s.cumprod(0)[2]]), torch.tensor([30, 1 / 30, 30, 1 / 30], dtype=torch.float64))
    _own("prod", lambda s: s.prod(-1), torch.tensor([[1.0, 0, 2, 0], [0, 3, 1, 2]], dtype=torch.float64))
    _own("cumprod", lambda s: s.cumprod(0), torch.tensor([1.0, 0, 2, 0, 3, -1], dtype=torch.float64))
    _own("index_fill", lambda s, v: s.index_fill(0, torch.tensor([0, 2]), v), x(3, 2), x())
    _own("masked_select", lambda s: s.masked_select(torch.tensor([True, False, True])), x(2, 3))
    _own("masked_scatter", lambda s, v: s.masked_scatter(torch.tensor([[True, False], [True, True]]), v), x(2, 2), x(4))
    _own("tensor_split", lambda s: torch.tensor_split(s, torch.tensor([1, 3])), x(5))
    _own("slice_scatter", lambda s, v: torch.slice_scatter(s, v, 0, 1, 3), x(4, 2), x(2, 2))
    _own("ldexp", lambda s, k: torch.ldexp(s, k), x(3), torch.tensor([-2, 1, 3]))
    _own("igamma", torch.igamma, x(3, low=1, high=3), x(3, low=1, high=3), constant=(0,))
    _own("igammac", torch.igammac, x(3, low=1, high=3), x(3, low=1, high=3), constant=(0,))
    _own("special.zeta", torch.special.zeta, x(3, low=2, high=3), x(3, low=1, high=3), constant=(0,))
    _own("logcumsumexp", lambda s: s.logcumsumexp(0), x(4))
    for name in (
        "bessel_j0",
        "bessel_j1",
        "bessel_y0",
        "bessel_y1",
        "modified_bessel_i0",
        "modified_bessel_i1",
        "modified_bessel_k0",
        "modified_bessel_k1",
        "scaled_modified_bessel_k0",
        "scaled_modified_bessel_k1",
        "spherical_bessel_j0",
        "airy_ai",
    ):
        _own(f"special.{name}", getattr(torch.special, name), x(3, low=0.5, high=3))
    for name in (
        "chebyshev_polynomial_t",
        "chebyshev_polynomial_u",
        "chebyshev_polynomial_v",
        "chebyshev_polynomial_w",
        "hermite_polynomial_h",
        "hermite_polynomial_he",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
        "shifted_chebyshev_polynomial_t",
        "shifted_chebyshev_polynomial_u",
        "shifted_chebyshev_polynomial_v",
        "shifted_chebyshev_polynomial_w",
    ):
        _own(
            f"special.{name}",
            lambda s, n, name=name: getattr(torch.special, name)(s, n),
            x(3, low=0.1, high=0.9),
            torch.tensor([2, 3, 4]),
        )
    # Numbers, which have no dimension, and an index of one place.
    _own("roll", lambda s: s.roll(1), x())
    _own("flip", lambda s: s.flip(0), x())
    _own("squeeze", lambda s: s.squeeze(-1), x())
    place = torch.tensor(1)
    _own("index_select", lambda s: s.index_select(0, place), x(3, 2))
    _own("index_add", lambda s, v: s.index_add(0, place, v), x(3, 2), x(1, 2))
    # An input that is ignored, complex signs, and powers.
    lost = torch.full((2, 1), math.nan, dtype=torch.float64)
    _own("addmm", lambda s, v: torch.addmm(lost, s, v, beta=0), x(2, 3), x(3, 2))
    _own("sgn", lambda s: torch.complex(s, s * s).sgn().real, x(2))
    _own("vander", torch.vander, x(3))
    _own("vander", lambda s: torch.vander(s, 4, True), x(3))


def _fake_quantization() -> None:
    """Straight-through operators: the value is rounded, the derivative that of the clamp (and, by a scale that learns, LSQ's)."""
    x = _numbers(2, 3)

    def soft(x: Tensor, scale: Any, zero: Any, low: int, high: int) -> Tensor:
        code = x / scale + zero
        is_inside = (code.round() >= low) & (code.round() <= high)  # half a step more than the range, as in torch
        return (torch.where(is_inside, code, code.clamp(low, high)) - zero) * scale

    _own(
        "fake_quantize_per_tensor_affine",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -5, 5),
        x,
        surrogate=lambda x: soft(x, 0.1, 3, -5, 5),
    )
    scale, zero = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([0, 1, -2], dtype=torch.int32)
    _own(
        "fake_quantize_per_channel_affine",
        lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -8, 7),
        x,
        surrogate=lambda x: soft(x, scale.double(), zero, -8, 7),
    )
    on = torch.tensor([1])

    def observed(x: Tensor) -> Tensor:
        low, high = torch.tensor(-1.0), torch.tensor(1.0)
        return torch._fused_moving_avg_obs_fq_helper(
            x.float(), on, on, low, high, torch.tensor([0.1]), torch.tensor([0], dtype=torch.int32), 0.01, -8, 7, 0
        )[0].double()

    _own("_fused_moving_avg_obs_fq_helper", observed, x)


_fill()

# --- What is not judged -------------------------------------------------------------------------------------------------------

# torch's samples of these have statistics among the results that the backward needs, and that have no derivative themselves.
OURS_ALONE = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_layer_norm")

NOT_JUDGED: dict[str, str] = {
    **dict.fromkeys(
        ("nn.functional.max_unpool2d", "nn.functional.max_unpool3d"), "torch's samples write several numbers to one place"
    ),
    **dict.fromkeys(
        ("as_strided, in place", "as_strided.partial_views, in place"),
        "its result depends on memory beyond the input, which a batch does not have",
    ),
    "as_strided_scatter": "its result depends on memory beyond the input, where places of the view overlap",
    "chalf": "its result is in complex half precision, for which torch has few kernels",
    **dict.fromkeys(("normal", "normal.number_mean"), "torch declares its derivatives 0; torch.distributions.Normal has rsample"),
    "to_sparse": "its result is sparse, which the transforms do not take",
    "sparse.mm.reduce": "its inputs are sparse, which the transforms do not take",
    "sparse.sampled_addmm": "its inputs are sparse, which the transforms do not take",
    "torch.ops.aten._efficient_attention_forward": "it has a kernel for GPUs alone",
    "torch.ops.aten._flash_attention_forward": "it has a kernel for GPUs alone",
}
# torch's kernels of the former take a step for each whole number between a negative number and 9, and never end at -1e30; that of
# eigenvalues crashes at NaN.
NOT_AT_UNITS = re.compile("polygamma|zeta|digamma|linalg.eig(vals)?$")


class Difference(NamedTuple):
    """An intended difference from torch's own, by names of operators, of what is tried, and by samples, with the reason."""

    operators: re.Pattern[str]
    kinds: re.Pattern[str]
    reason: str
    of: Callable[[Sample], bool] = lambda sample: True


MAY_DIFFER = [
    Difference(
        re.compile("^cumprod$"),
        re.compile("^gradient with (NaN|infinity)$"),
        "cumprod: torch takes the product of two zeros and a number that is not finite for 0 in a gradient",
        lambda sample: bool((sample.inputs[0] == 0).any()),
    ),
    Difference(
        re.compile("_scaled_dot_product_flash_attention_for_cpu$|^nn.functional.scaled_dot_product_attention$"),
        re.compile("^value (with NaN|at 1e30|of unlike scales), float(32|64), under vmap$"),
        "flash attention: torch's loop over a batch is wrong where samples are not contiguous; NaN is where the formula has it",
    ),
    Difference(
        re.compile("^nn.functional.scaled_dot_product_attention$"),
        re.compile("^value( of whole numbers| with infinity)?, float32, under vmap$"),
        "attention: scores of about 100 are rounded in another order by the formula than by torch's kernel",
    ),
    Difference(
        re.compile("^(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu|nn.functional.scaled_dot_product_attention)$"),
        re.compile("^gradient (at 1e6|at 1e30|of unlike scales)$"),
        "flash attention: torch's own gradient is rounding alone where one score is far above the others",
    ),
    Difference(
        re.compile("^conv_tbc$"),
        re.compile("^value with infinity, float(32|64), under vmap$"),
        "conv_tbc: infinity less infinity in a batch is NaN in the formula, which torch's order of sums may avoid",
    ),
    Difference(
        re.compile("^index_reduce.(amax|amin), in place$"),
        re.compile("^gradient with infinity$"),
        "index_reduce: torch counts a number that is excluded among those that share a slope",
    ),
    Difference(
        re.compile("^(pca|svd)_lowrank$"),
        re.compile("third|over .* over"),
        "svd_lowrank and pca_lowrank: differences of the third order have few digits where a random projection is in between",
    ),
    Difference(
        re.compile("^nn.functional.ctc_loss$"),
        re.compile("^gradient at 1e30$"),
        "ctc_loss: the logarithm of 0 is -1e30 in the formula, so that logarithms of that size have no gradient",
    ),
    Difference(
        re.compile("^nn.LSTM$"),
        re.compile("^value at 1e30, float32"),
        "nn.LSTM: products that overflow are NaN in the formula, which torch's order of sums may avoid",
    ),
    Difference(
        re.compile("^nn.Transformer(Encoder|Decoder)Layer$"),
        re.compile("^value, b?float16, under vmap$|^gradient of equal numbers$"),
        "transformers: errors of operators in a row add up in half precision, and where norms divide by 0 and a little",
    ),
    Difference(
        re.compile("(slog|log)det$"),
        re.compile("^gradient with infinity$"),
        "slogdet and logdet: torch's own gradient is 0 where the matrix has an infinite number",
    ),
    Difference(
        re.compile("^logcumsumexp$"),
        re.compile("^gradient (at 1e6|at 1e30|of unlike scales)$"),
        "logcumsumexp: torch's own gradient has few digits, or none, where numbers are large",
    ),
    Difference(
        re.compile("^_segment_reduce.(lengths|offsets)$"),
        re.compile("^gradient of (whole|equal) numbers$"),
        "segment_reduce: torch's equal numbers share a slope that is positive, and each has the whole of one that is negative",
    ),
    Difference(
        re.compile("^cholesky_inverse$"),
        re.compile("^gradient (at 1e6|at 1e30|of unlike scales)$"),
        "cholesky_inverse: torch's own gradient is rounding alone where a factor is large below a diagonal of 1",
    ),
    Difference(
        re.compile("^ormqr$"),
        re.compile("^gradient (at 1e6|of unlike scales)$"),
        "ormqr: torch's own gradient is that of reflections, and wrong where the numbers are others than those of geqrf",
    ),
    Difference(
        re.compile("^nn.functional.grid_sample$"),
        re.compile("^gradient at 1e30$"),
        "grid_sample: slopes that cancel outside of an image do so in the formula up to rounding",
    ),
    Difference(
        re.compile("^polar$"),
        re.compile("^gradient of (whole|equal) numbers$"),
        "polar: torch's own gradient is 0 by a size of 0, and has the other sign by a negative one",
    ),
]


def _minors(a: Tensor) -> Tensor:
    """The determinant by minors, a polynomial, whose gradient divides by nothing; torch's where a number is not finite."""
    return _by_columns(a, -1) if a.isfinite().all() else torch.linalg.det(a)


def _by_columns(a: Tensor, sign: int) -> Tensor:
    """The determinant, or with the sign 1 the permanent, which says how much terms cancel."""
    n = a.shape[-1]
    of_columns: dict[tuple[int, ...], Tensor] = {(): torch.ones(a.shape[:-2], dtype=a.dtype)}
    for row in range(n - 1, -1, -1):
        of_columns = {
            columns: sum(  # type: ignore[misc]
                [sign**k * a[..., row, c] * of_columns[columns[:k] + columns[k + 1 :]] for k, c in enumerate(columns)]
            )
            for columns in itertools.combinations(range(n), n - row)
        }
    return of_columns[tuple(range(n))]


def _sinc(x: Tensor) -> Tensor:
    """By two terms of its series next to 0, where torch's gradient is a difference of numbers that are almost equal."""
    is_small = x.abs() < 1e-6
    return torch.where(is_small, 1 - (math.pi * x).square() / 6, torch.where(is_small, 1, x).sinc())


# Operators of which torch's own gradient is wrong: functions in operations whose gradient is right, and the size of their terms,
# or None if they are like the result.
GRADIENTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor] | None]] = {
    "ldexp": (lambda x, k: x * torch.exp2(k.to(x.dtype)), lambda x, k: (x * torch.exp2(k.to(x.dtype))).abs()),
    "linalg.det": (_minors, lambda a: _by_columns(a.nan_to_num(0, 0, 0).abs(), 1)),
    "sinc": (_sinc, None),
    "special.i1": (lambda x: torch.special.i1(x) + 0 * x.square(), None),  # torch's at NaN is 0.5
}

# What is refused on purpose, by the name of the operator and the words of the error, with the reason.
MAY_RAISE: list[tuple[re.Pattern[str], re.Pattern[str], str]] = [
    (
        re.compile(", in place$"),
        re.compile(
            "vmap: .* is not possible|output with shape|vmap: It looks like you're attempting|more than one element of the wri"
        ),
        "vmap does not write the samples of a batch into a tensor of which there is one",
    ),
    (
        re.compile(""),
        re.compile("running_mean|running statistics"),
        "running statistics that a batch shares cannot be updated by each of its samples",
    ),
    (
        re.compile("^_fused_moving_avg_obs_fq_helper$"),
        re.compile("cannot take the statistics of a batch"),
        "an observer of fake quantization does not take the statistics of each sample of a batch",
    ),
    (
        re.compile("^nn.functional.gaussian_nll_loss$"),
        re.compile("vmap: inplace arithmetic"),
        "a tangent that all samples share is not changed in place by each of them, as gaussian_nll_loss does",
    ),
    (
        re.compile(""),
        re.compile("same randomness with a batched tensor input"),
        "vmap does not share random numbers between samples whose distributions differ",
    ),
    (
        re.compile("^nn.functional.feature_alpha_dropout.with_train$"),
        re.compile("bernoulli_scalar_cpu_.*Complex"),
        "torch draws no mask of complex numbers for feature_alpha_dropout",
    ),
    (
        re.compile("rrelu"),
        re.compile("do not yet support aten::rrelu"),
        "vmap does not draw the slopes of rrelu in training",
    ),
    (
        re.compile("^(index_put|masked_select)"),
        re.compile("can support dynamic shape|Attempted to vmap over `mask`"),
        "vmap does not take a mask of each sample where what it selects may differ in size",
    ),
    (
        re.compile("^to$"),
        re.compile("required rank 4 tensor"),
        "vmap does not put a batch of images in channels_last order",
    ),
    (
        re.compile("^squeeze, in place$"),
        re.compile("SmallVector unable to grow"),
        "vmap does not take squeeze_ of all dimensions",
    ),
    (
        re.compile("^linalg.(eigvals|polar)$"),
        re.compile("input tensor should not contain infs or NaNs|failed to converge because the input matrix is ill-conditioned"),
        "torch takes no matrix with NaN or infinity where eigenvalues are asked for",
    ),
    (
        re.compile("^special.airy_ai$"),
        re.compile("no derivative with respect|UserWarning"),
        "Airy's function has no derivative in torch",
    ),
]
