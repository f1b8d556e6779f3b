"""Jagged nested tensors: each public function is right for them, forward and backward, or says why it cannot be."""

import pytest
import torch
from torch import Tensor

import fullgrad
from fullgrad import losses, quantizers, soft, spikes
from tests.ecosystem.calls import CALLS

OFFSETS = torch.tensor([0, 1, 3])
# They reduce the whole tensor, which is here the whole buffer.
OF_WHOLE_TENSORS = {"clamp_by_linear", "scale_grad", "clip_grad_norm"}
# The classes of a loss are jagged as well; the operators of the others are no public functions, and compute with the input.
RAISING = {
    "soft.entmax_loss",
    "stochastic_round",
    "quantizers.dorefa_gradient",
    "quantizers.nvfp4_quantize",
    "ScaleTracker",
    "map_grad",
    "safe.where",
    *(case.name for case in CALLS if case.name.startswith("implicit.")),
    *(f"blackbox.{name}" for name in fullgrad.blackbox.__all__),
    "blackbox.perturbed gumbel",
    *(f"averages by {way}" for way in ("scans", "prefix sums", "blocks of rows")),
}


def jagged(values, offsets=OFFSETS):
    """A nested tensor with this buffer."""
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def value_and_gradient(call, values):
    """The value and gradient of a function of the buffer."""
    values = values.clone().requires_grad_(values.is_floating_point())
    found = call(values)
    found = [v for v in (found if isinstance(found, tuple) else (found,)) if isinstance(v, Tensor)]
    found = [v.values() if v.is_nested else v for v in found]
    if not any(v.requires_grad for v in found):
        return found, values.new_zeros(values.shape)
    total = sum((v.square().sum() for v in found if v.requires_grad), torch.tensor(0.0, dtype=values.dtype))
    return found, torch.autograd.grad(total, values)[0]


@pytest.mark.short
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_jagged_tensor_is_right_or_an_error(case):
    """A jagged tensor of samples like the case's input equals the loop over the samples; other tensors broadcast."""
    x, *rest = case.inputs
    values = torch.stack([x, x.flip(-1) if x.ndim else x / 2, x * 0.75] if x.is_floating_point() else [x, x, x])
    if case.name in RAISING:
        with pytest.raises((ValueError, NotImplementedError)):
            value_and_gradient(lambda v: case.operator(jagged(v), *rest), values)
        return
    found, gradient = value_and_gradient(lambda v: case.operator(jagged(v), *rest), values)
    if case.name in OF_WHOLE_TENSORS:
        expected, true = value_and_gradient(lambda v: case.operator(v, *rest), values)
    else:
        loop = [value_and_gradient(lambda v: case.operator(v, *rest), v) for v in values]
        expected = [torch.stack(parts) for parts in zip(*(parts for parts, _ in loop), strict=True)]
        true = torch.stack([part for _, part in loop])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, equal_nan=True, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, true, equal_nan=True, rtol=1e-9, atol=1e-9)


def second(call, x):
    """A second derivative with respect to a leaf, jagged or plain; None where there is none.

    Without ``values()``, whose derivative makes torch's own nested tensor, a global, a part of the graph.
    """
    found = call(x)
    found = [v for v in (found if isinstance(found, tuple) else (found,)) if isinstance(v, Tensor) and v.requires_grad]
    total = sum((v.pow(3).sum() for v in found), torch.tensor(0.0))
    if not total.requires_grad:
        return None
    (g,) = torch.autograd.grad(total, x, create_graph=True)
    if not g.requires_grad:
        return None
    (h,) = torch.autograd.grad(g.square().sum(), x)
    return h.values() if h.is_nested else h


# Their cases compute with the input as well, by operations of which torch lacks the second derivative.
ONCE = {"straight_through", "quantizers.vector_quantize, identity"}


@pytest.mark.parametrize("case", [c for c in CALLS if c.name not in RAISING | ONCE], ids=lambda case: case.name)
def test_a_second_derivative_is_right(case):
    """The leaf is jagged: torch cannot differentiate twice through the construction of a jagged tensor from a buffer."""
    x, *rest = case.inputs
    if not x.is_floating_point():
        return
    values = torch.stack([x, x.flip(-1) if x.ndim else x / 2, x * 0.75])
    call = lambda v: case.operator(v, *rest)  # noqa: E731
    found = second(call, jagged(values.clone()).requires_grad_())
    if case.name in OF_WHOLE_TENSORS:
        expected = second(call, values.clone().requires_grad_())
    else:
        loop = [second(call, v.clone().requires_grad_()) for v in values]
        expected = None if loop[0] is None else torch.stack(loop)
    assert (found is None) == (expected is None)
    if expected is not None:
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-9, atol=1e-9)


ELEMENTWISE = {
    "round": fullgrad.round,
    "soft_round": fullgrad.soft_round,
    "clamp": lambda x: fullgrad.clamp(x, -1.0, torch.full((3,), 0.5, dtype=x.dtype)),
    "soft.abs": soft.abs,
    "greater_st": lambda x: fullgrad.greater_st(x, 0.3),
    "atan": lambda x: spikes.atan(x, threshold=0.2),
    "fake_quantize": lambda x: quantizers.fake_quantize(x, torch.tensor(0.1, dtype=x.dtype)),
}
OF_ROWS = {
    "soft.sort": lambda x: soft.sort(x, -1).values,
    "sort_st": lambda x: fullgrad.sort_st(x, -1).values,
    "soft.rank": lambda x: soft.rank(x, -1),
    "soft.argmax": lambda x: soft.argmax(x, -1),
    "soft.max": lambda x: soft.max(x, -1).values,
    "soft.quantile": lambda x: soft.quantile(x, 0.3, -1),
    "median_st": lambda x: fullgrad.median_st(x, -1).values,
    "soft.topk": lambda x: soft.topk(x, 2, -1).values,
    "soft.entmax": lambda x: soft.entmax(x, 1.5, -1),
    "soft.sparsemax": lambda x: soft.sparsemax(x, -1),
    "mx_quantize": lambda x: quantizers.mx_quantize(x, block_size=3),
}


@pytest.mark.long(but=4)
@pytest.mark.parametrize("call", [*ELEMENTWISE.values(), *OF_ROWS.values()], ids=[*ELEMENTWISE, *OF_ROWS])
@pytest.mark.sampled(of=3)
def test_compiled_code_is_right(call):
    """Forward and backward are right in one graph."""
    values = torch.tensor([[0.3, -1.7, 0.8], [2.2, 0.1, -0.4], [1.4, -0.6, 0.9]], dtype=torch.float64)
    compiled, x = torch.compile(call, backend="aot_eager", fullgraph=True), jagged(values).requires_grad_()
    y = compiled(x)
    (gradient,) = torch.autograd.grad(y.values().square().sum(), x)
    (value,), plain = value_and_gradient(call, values)
    torch.testing.assert_close(y.values(), value, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient.values(), plain, rtol=1e-12, atol=1e-14)


def test_order_statistics_go_along_the_dimensions_behind_the_ragged_one():
    """``dim`` may be negative or positive, and torch's return types hold jagged tensors."""
    values = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for dim, inner in ((-1, -1), (2, 1)):
        found, expected = soft.sort(jagged(values), dim), soft.sort(values, inner)
        assert type(found) is torch.return_types.sort
        assert torch.equal(found.values.values(), expected.values)
        assert torch.equal(found.indices.values(), expected.indices)
        assert torch.equal(soft.max(jagged(values), dim).values.values(), soft.max(values, inner).values)


@pytest.mark.parametrize(("dims", "inner"), [((2, 3), (1, 2)), ((-1, 2), (-1, 1)), ((-2,), (-2,))])
def test_several_dimensions_behind_the_ragged_one(dims, inner):
    """Dimensions may be counted from the front or the back."""
    values = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (found,), gradient = value_and_gradient(lambda v: fullgrad.clip_grad_norm(jagged(v) * 1.0, 0.5, dims), values)
    (expected,), plain = value_and_gradient(lambda v: fullgrad.clip_grad_norm(v * 1.0, 0.5, inner), values)
    assert torch.equal(found, expected)
    torch.testing.assert_close(gradient, plain)


def test_a_result_has_the_offsets_of_its_input():
    """A result has the offsets of its input, so that torch adds the two."""
    x = jagged(torch.randn(3, 4))
    assert torch.equal((x + fullgrad.round(x)).values(), x.values() + x.values().round())
    assert fullgrad.clamp(x, min_value=fullgrad.round(x)).shape == x.shape


X, ROWS = jagged(torch.randn(3, 4)), jagged(torch.rand(3))
ERRORS = {
    "the ragged dimension": (lambda: soft.sort(X, 1), "must be behind the ragged dimension 1 .* got 1"),
    "the ragged dimension from the end": (lambda: soft.max(X, -2), "soft|max: `dim` must be behind .* got -2"),
    "rows of different length": (lambda: losses.ndcg(ROWS, ROWS), r"ndcg: .* pad it by `to_padded_tensor\(0\)` and pass `mask=`"),
    "rows without a mask": (lambda: fullgrad.sort_st(ROWS, -1), r"sort_st: .* call it row by row, for `unbind\(\)`; got dim=-1"),
    "ranks of rows": (lambda: fullgrad.rank_st(ROWS), r"rank_st: .* call it row by row, for `unbind\(\)`; got dim=None"),
    "losses along the ragged dimension": (lambda: losses.listnet(X, X, dim=1), "listnet: .* got 1. For rows .* pass `mask=`"),
    "one of several": (lambda: fullgrad.clip_grad_norm(X, 1.0, (1, 2)), "clip_grad_norm: `dim` must be behind .* got 1"),
    "the batch": (lambda: soft.narrow(X, torch.ones(3), 1, 0), "must be behind .* got 0"),
    "no dimension": (lambda: fullgrad.rank_st(X), "rank_st: `dim` must be given for a jagged tensor"),
    "ragged rows": (lambda: quantizers.bsq(jagged(torch.randn(3))), "bsq: the ragged dimension must not be among the last 1"),
    "several quantiles": (lambda: soft.quantile(X, [0.2, 0.5, 0.7], -1), "`q` must be one number"),
    "other offsets": (lambda: fullgrad.clamp(X, jagged(torch.ones(3, 4), torch.tensor([0, 2, 3]))), "must have the same offsets"),
    "a tensor for each sample": (lambda: spikes.atan(X, torch.ones(2, 1, 1)), "`alpha` must be jagged as well, or broadcast"),
    "a transposed tensor": (lambda: fullgrad.round(X.transpose(1, 2)), "must have its ragged dimension behind the batch"),
}


@pytest.mark.short
@pytest.mark.parametrize("name", ERRORS)
def test_what_a_buffer_cannot_say_is_an_error(name):
    """The error gives the function, the rule and what was found."""
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        call()


class Norm(fullgrad.Function):
    """The length of rows, as a user's operator."""

    whole_dims = 1

    @staticmethod
    def forward(x):
        return x.norm(dim=-1, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x / x.norm(dim=-1, keepdim=True)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return (t * x).sum(-1, keepdim=True) / x.norm(dim=-1, keepdim=True)

    @staticmethod
    def vmap(info, in_dims, x):
        return Norm.apply(x.movedim(in_dims[0], 0)), 0


def test_an_operator_of_rows_takes_jagged_tensors():
    """The declaration for distributed tensors counts; a row may not be ragged."""
    x = torch.randn(3, 4, dtype=torch.float64)
    found, expected = value_and_gradient(lambda v: Norm.apply(jagged(v)), x), value_and_gradient(Norm.apply, x)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="Norm: the ragged dimension must not be among the last 1"):
        Norm.apply(jagged(x[:, 0]))


def test_a_tensor_with_holes_is_an_error():
    """Elements between the samples belong to no sample."""
    x = torch.nested.nested_tensor_from_jagged(torch.randn(5, 2), torch.tensor([0, 3, 5]), lengths=torch.tensor([2, 1]))
    with pytest.raises(ValueError, match=r"clamp_by_linear: `x` must have .* no holes"):
        fullgrad.clamp_by_linear(x)
