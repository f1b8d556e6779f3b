"""Derivatives of large tensors, computed piece by piece, equal those computed whole."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing import assert_close

import fullgrad
from fullgrad._core import pieces
from fullgrad._core.opmath import to_opmath
from fullgrad._suite.bench._operators import bound, enlarged, tensors
from fullgrad._suite.cases import CASES
from fullgrad._suite.cases.soft import RELAXATIONS
from fullgrad.testing._subject import equal

pytestmark = pytest.mark.short
LARGE = max(pieces.FEWEST, torch.get_num_threads()) * pieces.PIECE + 1
ELEMENTWISE = [c for c in CASES if not c.exhaustive and c.of == "elements"]


def value_and_gradients(case, inputs):
    """The value and the gradients, with the same noise and cotangent each time."""
    torch.manual_seed(0)
    leaves = [v.clone().requires_grad_() for v in tensors(inputs)]
    y = bound(case.operator, inputs)(*leaves)
    g = torch.linspace(-1, 1, y.numel()).to(y.dtype).reshape(y.shape)
    return y.detach(), torch.autograd.grad(y, leaves, g, allow_unused=True)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda c: c.name)
def test_pieces_give_what_the_whole_gives(case, dtype, monkeypatch):
    """Values agree to the last bit, those with an exponential and gradients to some roundings: torch's exponential differs for
    the last few of a piece. The gradient of a parameter is a sum.
    """
    gates = ("sampling.hard_concrete", "sampling.relaxed_bernoulli")
    has_exponential = (case.name.startswith("soft.") and "smooth" in case.name) or case.name.startswith(gates)
    inputs = enlarged(case, 91, 91, dtype, "cpu")
    value, gradients = value_and_gradients(case, inputs)
    for piece in (8, 4):  # one row and a part of one
        monkeypatch.setattr(pieces, "PIECE", piece)
        again, slopes = value_and_gradients(case, inputs)
        if has_exponential:
            assert_close(again, value, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
        else:
            equal(again, value)
        for a, b in zip(slopes, gradients, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                eps = torch.finfo(dtype).eps
                rtol, atol = (16 * eps, 0) if a.shape == value.shape else (8 * eps, 1e-5)
                assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda c: c.name)
def test_derivatives_that_are_recorded_are_those_of_the_whole(case, monkeypatch):
    """Gradients differentiated again, and tangents of leaves that require a gradient: the cotangent alone requires none."""
    inputs = enlarged(case, 91, 91, torch.float32, "cpu")

    def derivatives():
        torch.manual_seed(0)
        leaves = [v.clone().requires_grad_() for v in tensors(inputs)]
        f = bound(case.operator, inputs)
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(f(*[forward_ad.make_dual(v, torch.ones_like(v)) for v in leaves])).tangent
        y = f(*leaves)
        first = torch.autograd.grad(
            y, leaves, torch.linspace(-1, 1, y.numel()).reshape(y.shape), create_graph=True, allow_unused=True
        )
        total = sum(v.sin().sum() for v in first if v is not None and v.requires_grad)
        again = torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, torch.Tensor) else ()
        return tangent, *first, *again

    torch.manual_seed(0)
    expected = derivatives()
    monkeypatch.setattr(pieces, "PIECE", 8)
    for a, b in zip(derivatives(), expected, strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=[pytest.mark.exhaustive] * c.exhaustive) for c in RELAXATIONS])
def test_large_tensors_of_half_precision_give_what_small_ones_give(case, dtype, monkeypatch):
    """Value and gradient are the same, to the last bit, whether computed whole or in pieces; the gradient of a broadcast operand
    is a sum in float32 either way, rounded once.
    """
    inputs = enlarged(case, 91, 91, dtype, "cpu")
    value, gradients = value_and_gradients(case, inputs)
    used, computed = [], pieces.computed_in_pieces
    monkeypatch.setattr(pieces, "computed_in_pieces", lambda *args: used.append(computed(*args)) or used[-1])
    for piece in (8, 4):  # one row and a part of one
        monkeypatch.setattr(pieces, "PIECE", piece)
        again, slopes = value_and_gradients(case, inputs)
        equal(again, value)
        for a, b in zip(slopes, gradients, strict=True):
            if a.shape == value.shape:
                equal(a, b)
            else:
                torch.testing.assert_close(a, b, rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert any(parts is not None for parts in used)


@torch.no_grad()
def test_pieces_cover_every_layout_and_broadcast_shape(monkeypatch):
    """Pieces equal the whole, for transposed, strided and expanded tensors, and for operands that
    broadcast in leading, inner and all dimensions.
    """
    monkeypatch.setattr(pieces, "PIECE", 8)
    numbers = torch.randn(5, 6, 7).bfloat16()
    layouts = {
        "contiguous": numbers,
        "transposed": numbers.transpose(0, 2),
        "strided": numbers[:, ::2],
        "expanded": numbers[:, :1].expand(5, 6, 7),
        "flat": numbers.reshape(-1),
        "with dimensions of size 1": numbers.reshape(1, 5, 1, 42),
    }
    for x in layouts.values():
        for shape in ((), (1,), x.shape[-1:], (*x.shape[:-1], 1), (1, *x.shape[1:])):
            y = torch.randn(shape).bfloat16()
            outputs = [(x.shape, x.dtype), (y.shape, y.dtype), (x.shape, x.dtype), None]
            found = pieces.computed_in_pieces(lambda x, y: (x.sin() * y, x * y, None, y), (x, y), outputs, to_opmath)
            assert found is not None
            value, gradient, *rest = found
            wide, other = x.float(), y.float()
            equal(value, (wide.sin() * other).to(x.dtype))
            torch.testing.assert_close(gradient.float(), (wide * other).to(gradient.dtype).float().sum_to_size(y.shape))
            assert rest == [None, None]


@pytest.mark.parametrize("shape", [(5, 6, 7), (64,), (3, 1, 50), (2, 9)])
@pytest.mark.parametrize("size", [1, 8, 20, 63])
def test_pieces_are_about_as_large_as_asked_for(shape, size):
    """Pieces have less than twice that size, and hold every element once."""
    x = torch.arange(torch.Size(shape).numel()).reshape(shape)
    parts = [x[piece] for piece in pieces.pieces_of(x.shape, size)]
    assert max(p.numel() for p in parts) < 2 * size
    assert torch.cat([p.flatten() for p in parts]).sort().values.equal(x.flatten())


class Normalized(fullgrad.Elementwise):
    """A term that asks for the number of elements, as LSQ's does."""

    reads = {0: (), 1: (0,)}

    @staticmethod
    def forward(x, scale):
        return x * scale

    @staticmethod
    def vjp_term(i, v, x, scale):
        return v if i == 0 else v * x / x.numel() ** 0.5


def test_an_operator_that_does_not_say_so_is_computed_whole():
    """A sum, or a number of elements, in a term of a user's operator would be another one in pieces."""
    x, scale = torch.randn(LARGE, dtype=torch.float64, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    _, found = torch.autograd.grad(Normalized.apply(x, scale).sum(), (x, scale))
    assert_close(found, (x.sum() / LARGE**0.5).float())


class Scaled(fullgrad.Elementwise):
    """A product whose derivative notes the sizes for which it is computed."""

    in_pieces = True
    reads = {0: (1,), 1: (0,)}
    sizes: list[int] = []

    @staticmethod
    def forward(x, scale):
        return x * scale

    @staticmethod
    def vjp_term(i, v, x, scale):
        Scaled.sizes.append(v.numel())
        return v * scale if i == 0 else v * x


@pytest.mark.parametrize("learned", [False, True])
def test_a_large_derivative_is_computed_in_pieces_where_the_operator_says_so(learned):
    """Each term is computed for pieces that hold every element once, whether one gradient is wanted or several."""
    x, scale = torch.randn(LARGE, requires_grad=True), torch.tensor(2.0, requires_grad=learned)
    Scaled.sizes.clear()
    torch.autograd.grad(Scaled.apply(x, scale).sum(), (x, scale)[: 1 + learned])
    assert max(Scaled.sizes) < LARGE
    assert sum(Scaled.sizes) == LARGE * (1 + learned)


def test_a_formula_is_computed_in_pieces_where_it_is_not_recorded(monkeypatch):
    """A graph of many pieces would cost more than it saves, as would a small tensor's."""
    monkeypatch.setattr(pieces, "PIECE", 8)
    shapes = []

    def formula(x, y):
        shapes.append(tuple(x.shape))
        return x * y + 1

    x, y = torch.randn(64, 4), torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(pieces.pointwise(formula)(x, y), x * y + 1, rtol=0, atol=0)
        assert len(shapes) > 1
        assert sum(rows for rows, _ in shapes) == 64
        shapes.clear()
        pieces.pointwise(formula)(x[:1], y)
        pieces.pointwise(formula)(y, x)  # a value of more elements than the first operand
        assert shapes == [(1, 4), (4,)]
        shapes.clear()
    x.requires_grad_()
    pieces.pointwise(formula)(x, y)
    torch.func.vmap(pieces.pointwise(formula), in_dims=(0, None))(torch.randn(3, 64, 4), y)
    assert shapes == [(64, 4), (64, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sigmoidal", "sign", "greater", "less"])
def test_a_large_smooth_step_is_right_in_its_tails(name, dtype):
    """Its value and slope are those of a small one as far as numbers reach, where 1 - S is 0; at infinity and NaN, too."""
    softness, f = 0.1, getattr(fullgrad.soft, name)
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0])
    x = torch.cat([torch.linspace(-8.5, 8.5, LARGE), ends]).to(dtype).requires_grad_()
    parts = x.detach().split(2**15)

    def derived(x):
        y = f(x, 0.0) if name in ("greater", "less") else f(x, softness)
        return y.detach(), *torch.autograd.grad(y.sum(), x)

    value, slope = derived(x)
    expected, slopes = map(torch.cat, zip(*[derived(part.requires_grad_()) for part in parts], strict=True))
    finfo = torch.finfo(dtype)
    assert_close(value, expected, rtol=4 * finfo.eps, atol=finfo.tiny, equal_nan=True)
    assert_close(slope, slopes, rtol=384 * finfo.eps, atol=finfo.tiny, equal_nan=True)
    assert slope[:-5].abs().min() > 0


def test_a_large_first_tensor_may_have_fewer_dimensions_than_the_value():
    """Pieces are those of the first tensor; an operand with more dimensions has others."""
    x, softness = torch.linspace(-1, 1, LARGE).half(), torch.tensor([[0.2], [0.4]], dtype=torch.float16)
    parts = [fullgrad.soft.sigmoidal(part, softness, "c1") for part in x.split(2**15)]
    equal(fullgrad.soft.sigmoidal(x, softness, "c1"), torch.cat(parts, -1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("inside", ["exact", "all"])
@pytest.mark.parametrize("scale", [None, 0.7, "tensor", "per row"])
def test_a_codebook_in_pieces_and_counted_is_that_of_a_search(dtype, inside, scale, monkeypatch):
    """All gradients of an unsorted codebook with two equal levels agree; ties, infinities and NaN included."""
    g = torch.Generator().manual_seed(0)
    x = (torch.randn(6, 40, generator=g) * 2).to(dtype)
    codebook = torch.tensor([0.5, -2.0, -0.5, 1.5, 1.5, 0.25], dtype=dtype).requires_grad_()
    x[0, :6] = torch.tensor([1.0, -1.25, 0.375, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    if isinstance(scale, str):
        scale = torch.full((6, 1) if scale == "per row" else (), 0.7, dtype=dtype).requires_grad_()
    x.requires_grad_()
    leaves = [v for v in (x, codebook, scale) if isinstance(v, torch.Tensor)]
    cotangent = torch.randn(6, 40, generator=g).to(dtype)

    def computed():
        y = fullgrad.quantizers.codebook_quantize(x, codebook, scale, inside=inside)
        return y.detach(), *torch.autograd.grad(y, leaves, cotangent)

    value, to_x, *others = computed()
    for piece, many in ((2**18, 0), (40, 1000), (16, 0)):
        monkeypatch.setattr(pieces, "PIECE", piece)
        monkeypatch.setattr("fullgrad._fast.codebooks._MANY", many)
        again, again_to_x, *again_others = computed()
        equal(again, value)
        equal(again_to_x, to_x)
        for a, b in zip(again_others, others, strict=True):
            assert_close(a, b, rtol=16 * torch.finfo(dtype).eps, atol=1e-5, equal_nan=True)


def test_a_codebook_for_each_sample_in_pieces_is_that_of_a_loop(monkeypatch):
    """A piece of several samples has no codebook of its own."""
    x, codebooks = torch.randn(3, 4, 10), torch.randn(3, 5)
    monkeypatch.setattr(pieces, "PIECE", 8)

    def gradients_and_value(x, codebook):
        def total(x, codebook):
            y = fullgrad.quantizers.codebook_quantize(x, codebook)
            return y.square().sum(), y

        gradients, y = torch.func.grad(total, (0, 1), has_aux=True)(x, codebook)
        return *gradients, y

    batched = torch.func.vmap(gradients_and_value)(x, codebooks)
    looped = [gradients_and_value(*sample) for sample in zip(x, codebooks, strict=True)]
    for one, many in zip(batched, zip(*looped, strict=True), strict=True):
        assert_close(one, torch.stack(many))
