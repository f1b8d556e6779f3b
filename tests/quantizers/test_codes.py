"""The integers of quantizers: those of the values, to the last bit, and of torch's own formats."""

import itertools

import pytest
import torch
from torch.func import grad, jvp, vmap

import fullgrad
from fullgrad import quantizers
from fullgrad.quantizers import FloatFormat
from fullgrad.quantizers._formats import NAMED
from fullgrad.testing._subject import equal

pytestmark = pytest.mark.short
INF, NAN = float("inf"), float("nan")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def numbers(dtype, count=4096, width=3.0):
    """Normal numbers, ties of a grid of tenths and halves, zeros and infinities; the first dimension has 8 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, count // 8, generator=generator, dtype=torch.float64) * width
    x[:, :64] = torch.arange(-32, 32) * 0.05
    x[0, :4] = torch.tensor([0.0, -0.0, INF, -INF])
    return x.to(dtype)


def compute(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# --- Integers --------------------------------------------------------------------------------------------------------------


PARAMETERS = {
    "numbers": (0.1, 3, {}),
    "tensors": (torch.tensor(0.1), torch.tensor(3.0), {}),
    "per channel": (torch.linspace(0.05, 0.4, 8), torch.tensor([0, 1, -3, 7, -8, 2, 0, 0]), {"dim": 0}),
    "per row": (torch.linspace(0.05, 0.4, 8).unsqueeze(1), 0, {}),
    "groups": (torch.linspace(0.05, 0.4, 32).reshape(8, 4), 1, {}),
    "a fractional zero point": (0.1, 2.25, {"round_zero_point": False}),
}


def restored(codes, x, scale, zero_point, low, high, options):
    """The value of integers, by the formula."""
    x = compute(x)

    def one(p):
        if not isinstance(p, torch.Tensor):
            return torch.tensor(p, dtype=x.dtype)
        p = p.to(x.dtype)
        if "dim" in options:
            p = p.unsqueeze(1)
        return p.repeat_interleave(x.shape[1] // p.shape[1], 1) if p.ndim == 2 and p.shape[1] > 1 else p

    s, z = one(scale), one(zero_point)
    if options.get("round_zero_point", True):
        z = z.round().clamp(low, high)
    return (codes.to(x.dtype) - z) * s


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("reciprocal", [True, False])
def test_codes_give_the_value_of_fake_quantize(dtype, name, reciprocal):
    """The integers, less the zero point, times the scale are the value to the last bit, for every kind of parameter and range."""
    scale, zero_point, options = PARAMETERS[name]
    options = {**options, "reciprocal": reciprocal}
    x = numbers(dtype)
    for low, high in ((-128, 127), (-8, 7), (-1000, 1000), (-8, 255)):
        found = quantizers.codes(x, scale, zero_point, low, high, **options)
        assert found.shape == x.shape
        assert found.min() >= low and found.max() <= high and not found.requires_grad  # noqa: PT018
        expected = quantizers.fake_quantize(x, scale, zero_point, low, high, **options)
        equal(restored(found, x, scale, zero_point, low, high, options).to(dtype), expected)


@pytest.mark.parametrize("rounding", ["floor", "half_away", "stochastic"])
def test_codes_of_other_roundings(rounding):
    """A mode, and noise, have the integers of the value that they give."""
    x = numbers(torch.float32)
    options = {"noise": torch.rand(x.shape)} if rounding == "stochastic" else {}
    found = quantizers.codes(x, 0.25, 1, rounding=rounding, **options)
    equal((found.float() - 1) * 0.25, quantizers.fake_quantize(x, 0.25, 1, rounding=rounding, **options))


@pytest.mark.parametrize(
    ("bounds", "dtype"),
    [
        ((-128, 127), torch.int8),
        ((0, 255), torch.uint8),
        ((0, 15), torch.uint8),
        ((-8, 7), torch.int8),
        ((-1, 128), torch.int16),
        ((0, 65535), torch.int32),
        ((-(2**40), 2**40), torch.int64),
    ],
)
def test_the_dtype_is_the_smallest(bounds, dtype):
    """The range alone decides about the dtype, and both of its ends are reached."""
    found = quantizers.codes(torch.tensor([-1e20, 1e20], dtype=torch.float64), 1.0, max(bounds[0], 0), *bounds)
    assert found.dtype == dtype
    assert found.tolist() == [*bounds]


def test_nan_has_the_smallest_code_as_in_torch():
    """An integer cannot tell NaN; torch's operators on the CPU give the smallest."""
    x = torch.tensor([NAN, INF, -INF, 0.3])
    assert quantizers.codes(x, 0.1, 2, -8, 7).tolist() == [-8, 7, -8, 5]
    theirs = torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7)
    equal((quantizers.codes(x, 0.1, 2, -8, 7).float() - 2) * 0.1, theirs)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_codes_equal_those_of_torch():
    """`torch.quantize_per_tensor` has the same integers for a scale whose reciprocal is exact, so that a division is one."""
    x = numbers(torch.float32, width=20.0)
    theirs = torch.quantize_per_tensor(x, 0.25, 3, torch.qint8).int_repr()
    equal(quantizers.codes(x, 0.25, 3), theirs)


# --- Codebooks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 0.7, torch.linspace(0.5, 2, 8).unsqueeze(1), torch.linspace(0.5, 2, 32).reshape(8, 4)])
def test_codebook_codes_give_the_value_of_codebook_quantize(dtype, scale):
    """The level at the index, times the scale, is the value to the last bit; the codebook is in any order."""
    x = numbers(dtype)
    codebook = quantizers.levels("nf4")[torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    found = quantizers.codebook_codes(x, codebook, scale)
    assert found.dtype == torch.uint8
    level = codebook.to(compute(x).dtype)[found.long()]
    s = 1 if scale is None else scale
    if isinstance(s, torch.Tensor):
        s = s.repeat_interleave(x.shape[1] // s.shape[1], 1)
    equal((level * s).to(dtype), quantizers.codebook_quantize(x, codebook, scale))


def test_the_index_of_a_long_codebook_fits():
    """257 levels need more than a byte."""
    codebook = torch.arange(257.0)
    found = quantizers.codebook_codes(codebook, codebook)
    assert found.dtype == torch.int16
    assert found.tolist() == [*range(257)]


# --- Float formats ---------------------------------------------------------------------------------------------------------

OWN = {f: getattr(torch, f) for f in NAMED if hasattr(torch, f) and f.startswith(("float8", "float16", "bfloat16"))}


@pytest.mark.parametrize("name", OWN)
def test_float_codes_are_the_bits_of_torch(name):
    """For every number of the format, and numbers between, the bits are those of torch's cast."""
    dtype = OWN[name]
    width = torch.uint8 if dtype.itemsize == 1 else torch.int16
    bits = torch.arange(256**dtype.itemsize, dtype=torch.int32).to(width)
    x = bits.view(dtype).float()
    known = ~x.isnan()
    equal(quantizers.float_codes(x[known], dtype, saturate=False), bits[known])
    torch.manual_seed(0)
    between = torch.cat([torch.randn(20_000) * scale for scale in (1e-6, 1e-3, 1.0, 60.0)])
    equal(quantizers.float_codes(between, name).view(dtype).float(), quantizers.float_quantize(between, name))
    assert quantizers.float_codes(torch.tensor(NAN), name).view(dtype).isnan()


@pytest.mark.parametrize("name", sorted({*NAMED} - {*OWN}) + ["own", "no subnormals"])
def test_float_codes_count_the_numbers_of_a_format(name):
    """The codes of the positive numbers in order are 0, 1, 2, …, and those of the negative ones have the highest bit besides."""
    own = {"own": FloatFormat(3, 4, 6, "finite"), "no subnormals": FloatFormat(3, 2, 3, "fn", subnormals=False)}
    format = own.get(name) or NAMED[name]
    numbers = format.numbers()
    positive = numbers[numbers >= 0]
    first = [0, *range(1, len(positive))] if format.subnormals else [0, *range(4, 4 + len(positive) - 1)]
    found = quantizers.float_codes(positive, format)
    assert found.dtype == torch.uint8
    assert found.tolist() == first
    sign = 2 ** (format.bits - 1)
    assert quantizers.float_codes(-positive[1:], format).tolist() == [code + sign for code in first[1:]]
    assert quantizers.float_codes(torch.tensor(-0.0), format).item() == (0 if format.kind == "fnuz" else sign)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 0.3, torch.linspace(0.5, 2, 8).unsqueeze(1), torch.linspace(0.5, 2, 32).reshape(8, 4)])
def test_float_codes_give_the_value_of_float_quantize(dtype, scale):
    """The number of the bits, times the scale, is the value to the last bit."""
    x = numbers(dtype)
    number = quantizers.float_codes(x, torch.float8_e4m3fn, scale).view(torch.float8_e4m3fn).to(compute(x).dtype)
    s = torch.tensor(1.0 if scale is None else scale, dtype=number.dtype) if not isinstance(scale, torch.Tensor) else scale
    s = s.repeat_interleave(x.shape[1] // s.shape[1], 1).to(number.dtype) if s.ndim else s
    equal((number * s).to(dtype), quantizers.float_quantize(x, torch.float8_e4m3fn, scale))


def test_the_widest_formats():
    """All bits of float32 and float64 are their own."""
    x = torch.randn(1000, dtype=torch.float64) * 10.0 ** torch.randint(-300, 300, (1000,)).double()
    equal(quantizers.float_codes(x, FloatFormat(11, 52)), x.view(torch.int64))
    y = torch.randn(1000) * 10.0 ** torch.randint(-44, 37, (1000,))
    equal(quantizers.float_codes(y, FloatFormat(8, 23)), y.view(torch.int32))
    assert quantizers.float_codes(torch.tensor([INF, -INF, NAN]), NAMED["float4_e2m1fn"]).tolist() == [7, 15, 0]
    assert quantizers.float_codes(torch.tensor([INF, -INF]), torch.float8_e5m2, saturate=False).tolist() == [124, 252]


# --- All of them -----------------------------------------------------------------------------------------------------------

CODEBOOK = torch.tensor([-1.0, -0.25, 0.5, 1.5])
CALLS = {
    "codes": lambda x, s: quantizers.codes(x, s),
    "codebook_codes": lambda x, s: quantizers.codebook_codes(x, CODEBOOK, s),
    "float_codes": lambda x, s: quantizers.float_codes(x, "float8_e4m3fn", s),
}
EACH = pytest.mark.parametrize("name", CALLS)


@EACH
def test_batches_equal_the_loop(name):
    """Every choice of batched arguments, nested too, has the integers of the samples."""
    call, x, s = CALLS[name], torch.randn(3, 4, 5), torch.rand(3, 1, 5) + 0.1
    equal(vmap(call)(x, s), torch.stack([call(*pair) for pair in zip(x, s, strict=True)]))
    equal(vmap(call, (None, 0))(x[0], s), torch.stack([call(x[0], each) for each in s]))
    equal(vmap(call, (1, None))(x, 0.1), torch.stack([call(each, 0.1) for each in x.unbind(1)]))
    nested = vmap(vmap(call, (0, None)))(x, s[:, 0])
    equal(nested, torch.stack([torch.stack([call(row, t) for row in each]) for each, t in zip(x, s[:, 0], strict=True)]))


@EACH
def test_integers_have_no_derivative(name):
    """Parameters that learn, tangents and transforms pass by, and a loss of the value still has its gradient."""
    call = CALLS[name]
    x, s = torch.randn(6, requires_grad=True), torch.tensor(0.2, requires_grad=True)
    assert not call(x, s).requires_grad
    plain = call(x.detach(), s.detach())
    equal(call(x, s), plain)
    value, tangent = jvp(lambda x: (call(x, 0.2).float() * x).sum(), (x.detach(),), (torch.ones(6),))
    equal(tangent, call(x, 0.2).float().sum().detach())
    equal(grad(lambda x: (call(x, 0.2).float() * x).sum())(x.detach()), call(x, 0.2).float())
    assert value.isfinite()


@EACH
@pytest.mark.long
def test_compiled_integers_are_the_same(name):
    """One graph, of tensors and of a number as scale, with a batch."""
    call, x = CALLS[name], numbers(torch.float32, 512)
    compiled = torch.compile(call, fullgraph=True)
    for s in (torch.tensor(0.2), 0.3):
        equal(compiled(x, s), call(x, s))
    equal(torch.compile(vmap(call), fullgraph=True)(x, x[:, 0].abs() + 0.1), vmap(call)(x, x[:, 0].abs() + 0.1))


@EACH
@pytest.mark.filterwarnings("error")
def test_exported_integers_are_the_same(name):
    """Without a warning, though the scale learns: nothing is lost."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(0.2))

        def forward(self, x):
            return CALLS[name](x, self.scale)

    x = numbers(torch.float32, 512)
    layer = Layer()
    equal(torch.export.export(layer, (x,)).module()(x), layer(x))


@EACH
def test_nested_and_large_tensors(name):
    """A jagged tensor has the integers of its buffer; a large one, which is computed in pieces, those of its rows."""
    call, values = CALLS[name], torch.randn(6, 4)
    nested = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 6]))
    equal(call(nested, 0.1).values(), call(values, 0.1))
    x = torch.randn(8, 2**16)
    equal(call(x, 0.1), torch.stack([call(row, 0.1) for row in x]))
    assert call(torch.empty(0, 3), 0.1).shape == (0, 3)
    assert call(torch.arange(4), 0.5).tolist() == call(torch.arange(4.0), 0.5).tolist()


@EACH
@pytest.mark.parametrize(("x", "error"), [(torch.ones(2) > 0, TypeError), (torch.ones(2) * 1j, TypeError), (1.0, TypeError)])
def test_what_is_no_real_tensor_is_refused(name, x, error):
    """By the name of the function."""
    with pytest.raises(error, match=rf"^{name}: `x` must be a"):
        CALLS[name](x, 0.1)


@EACH
@pytest.mark.parametrize("scale", [0.0, -1.0, INF, NAN])
def test_a_scale_is_positive(name, scale):
    """As in the value's function, by the name of this one."""
    with pytest.raises(ValueError, match=rf"^{name}: `scale` must be positive"):
        CALLS[name](torch.ones(2), scale)


def test_the_errors_of_one_function():
    """Each names its function."""
    x = torch.ones(2, 4)
    for call, match in [
        (lambda: quantizers.codes(x, 0.1, 1.5), "codes: `zero_point` must be an integer"),
        (lambda: quantizers.codes(x, 0.1, 0, 5, 2), "codes: `quant_min` must be less"),
        (lambda: quantizers.codes(x, torch.ones(3)), "codes: `scale` must broadcast"),
        (lambda: quantizers.codes(x, 0.1, noise=x), "codes: `noise` and `generator`"),
        (lambda: quantizers.codebook_codes(x, torch.ones(0)), "codebook_codes: `codebook` must have one dimension"),
        (lambda: quantizers.float_codes(x, "float7"), "float_codes: `format` must be"),
        (lambda: quantizers.float_codes(x.half(), "bfloat16"), "float_codes: the numbers of `format`"),
    ]:
        with pytest.raises(ValueError, match=f"^{match}"):
            call()


def test_a_subclass_with_torch_function_is_asked():
    """As by every public function."""

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return function

    x = torch.ones(2).as_subclass(Logged)
    for name, call in CALLS.items():
        assert call(x, 0.1) is getattr(fullgrad.quantizers, name)


def test_pairs_of_options_cover_all_modes():
    """Every rounding that `fake_quantize` has is one of `codes`."""
    x = torch.randn(64)
    for rounding, reciprocal in itertools.product(quantizers._arguments.DETERMINISTIC, (True, False)):
        options = {"rounding": rounding, "reciprocal": reciprocal}
        equal(quantizers.codes(x, 0.1, **options) * torch.tensor(0.1), quantizers.fake_quantize(x, 0.1, **options))
