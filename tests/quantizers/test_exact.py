"""Values to the last bit: against torch's kernels, tables of integers and fractions, and compiled code."""

import itertools
import math
from fractions import Fraction

import numpy
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fullgrad
from fullgrad import quantizers
from fullgrad._core.bits import exponent, has_fraction
from fullgrad._fast.grids import first_and_last
from fullgrad.quantizers import FloatFormat
from fullgrad.quantizers._formats import NAMED
from fullgrad.testing._subject import equal

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan


def around(x):
    """Numbers with their neighbors on both sides."""
    return torch.cat([x, torch.nextafter(x, torch.full_like(x, INF)), torch.nextafter(x, torch.full_like(x, -INF))])


def gradient(y, x):
    weights = torch.arange(1.0, y.numel() + 1).to(y.dtype).reshape(y.shape)
    return torch.autograd.grad(y, x, weights, retain_graph=True)[0]


# --- fake_quantize -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3e-3, 0.7])
@pytest.mark.parametrize(("zero_point", "low", "high"), [(0, -128, 127), (1, 0, 15), (3, 0, 15), (-8, -8, 7)])
def test_fake_quantize_is_that_of_torch(dtype, scale, zero_point, low, high):
    """Value, sign of zero and gradient equal torch's, on random numbers, ties, their neighbors, zeros and infinities."""
    torch.manual_seed(0)
    ties = (torch.randint(-140, 140, (4000,)) + 0.5) * scale
    x = around(torch.cat([torch.randn(10_000) * 100 * scale, ties, torch.tensor([0.0, -0.0])]))
    x = torch.cat([x, torch.tensor([INF, -INF])]).to(dtype).requires_grad_()
    ours = quantizers.fake_quantize(x, scale, zero_point, low, high)
    theirs = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, low, high)
    equal(ours.detach(), theirs.detach())
    equal(gradient(ours, x), gradient(theirs, x))
    learned = quantizers.fake_quantize(x, torch.tensor(scale), torch.tensor(zero_point), low, high)
    equal(learned.detach(), theirs.detach())
    equal(gradient(learned, x), gradient(theirs, x))


def test_zero_points_of_any_kind():
    """A whole number, a tensor of one and of floats are the same zero point, in the formula and in its mask."""
    x = (torch.arange(-40, 41, dtype=torch.float64) / 16).requires_grad_()
    for z in (-1, 0, 1, 2):
        expected = 0.25 * (torch.clamp(torch.round(x.detach() / 0.25) + z, -4, 3) - z)
        inside = ((torch.round(x.detach() / 0.25) + z).clamp(-4, 3) == torch.round(x.detach() / 0.25) + z).double()
        for kind in (z, torch.tensor(z), torch.tensor(float(z))):
            y = quantizers.fake_quantize(x, 0.25, kind, -4, 3)
            equal(y.detach(), expected)
            equal(torch.autograd.grad(y.sum(), x)[0], inside)
            noisy = quantizers.fake_quantize(x, 0.25, kind, -4, 3, rounding="stochastic", noise=torch.full_like(x, 0.999))
            equal(noisy.detach(), 0.25 * (torch.clamp(torch.trunc(x.detach() / 0.25) + z, -4, 3) - z))


def test_fake_quantize_by_channel_is_that_of_torch():
    """Values equal torch's with whole zero points, on numbers that do not overflow there."""
    x = torch.randn(5, 3000) * 2
    scale, zero_point = torch.rand(5) + 0.01, torch.tensor([0, 1, -3, 7, -8], dtype=torch.int32)
    ours = quantizers.fake_quantize(x, scale, zero_point, -8, 7, dim=0)
    equal(ours, torch.fake_quantize_per_channel_affine(x, scale, zero_point, 0, -8, 7))


@pytest.mark.parametrize("inside", ["rounded", "exact"])
@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("round_zero_point", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_bounds_by_bisection_are_those_of_the_arithmetic(inside, reciprocal, round_zero_point, dtype):
    """A number as scale passes the gradient where a tensor, which looks at every code, does; at the ends and next to them."""
    overflowing = [(1e-40, 0)] if not reciprocal else []  # 1.5 divided by it; a scale has a reciprocal, or is an error
    fractions = [] if round_zero_point else [(0.1, 3.3), (0.5, -2.5), (7.3, 0.75)]
    for scale, zero_point in [(0.1, 3), (0.013, -128), (7.3, 127), (2.0**-10, 0), *fractions, *overflowing]:
        ends = torch.tensor([-128.5, -128, 127, 127.5, -127.5, 126.5], dtype=torch.float64) - zero_point
        x = (ends * scale).to(dtype)
        for _ in range(4):
            x = torch.cat([torch.nextafter(x, torch.full_like(x, 1e4)), torch.nextafter(x, torch.full_like(x, -1e4)), x])
        x.requires_grad_()
        options = {"inside": inside, "reciprocal": reciprocal, "round_zero_point": round_zero_point}
        number = quantizers.fake_quantize(x, scale, zero_point, **options)
        tensor = quantizers.fake_quantize(x, torch.tensor(scale, dtype=torch.float64), zero_point, **options)
        equal(number.detach(), tensor.detach())
        equal(gradient(number, x), gradient(tensor, x))


# --- Float formats -------------------------------------------------------------------------------------------------------


def half_patterns(dtype):
    """Every number of 16 bits."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def table(e, m, bias, kind):
    """The positive numbers of a format in order, from its codes alone."""
    found = []
    for code in range(2 ** (e + m)):
        exponent, mantissa = code >> m, code & (2**m - 1)
        top = exponent == 2**e - 1
        if (kind == "ieee" and top) or (kind == "fn" and top and mantissa == 2**m - 1):
            continue
        lead = 0 if exponent == 0 else 2**m
        found.append((lead + mantissa) * 2.0 ** (max(exponent, 1) - bias - m))
    return numpy.array(found)


def looked_up(x, positive, kind, saturate):
    """The nearest number of a table, of two the one with an even code; ``x`` is a numpy array of float64."""
    size = numpy.abs(x)
    step = positive[-1] - positive[-2]
    grid = numpy.append(positive, positive[-1] + step)  # what would come next, for what rounds beyond the end
    middle = (grid[1:] + grid[:-1]) / 2
    code = numpy.searchsorted(middle, size)
    tie = numpy.isin(size, middle)
    code = numpy.where(tie & (code % 2 == 1), code + 1, code)
    y = grid[code]
    beyond = code == len(positive)
    if saturate or kind == "finite":
        y = numpy.where(beyond, positive[-1], y)
    else:
        y = numpy.where(beyond, INF if kind == "ieee" else NAN, y)
    y = numpy.copysign(y, x)
    y = numpy.where(numpy.isnan(x), NAN, y)
    return y + 0.0 if kind == "fnuz" else y


@pytest.mark.short(of=3)
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_pattern_is_rounded_as_a_table_says(dtype, name, saturate):
    """65,536 numbers of each dtype, for each format, NaN and the sign of zero included."""
    x, f = half_patterns(dtype), NAMED[name]
    if (name == "bfloat16" and dtype is torch.float16) or (name == "float16" and dtype is torch.bfloat16):
        with pytest.raises(ValueError, match="must be numbers of the dtype"):
            quantizers.float_quantize(x, name)
        return
    positive = table(f.exponent_bits, f.mantissa_bits, f.bias, f.kind)
    wide = x.double().numpy()
    expected = torch.from_numpy(looked_up(wide, positive, f.kind, saturate)).to(dtype)
    equal(quantizers.float_quantize(x, name, saturate=saturate), expected)
    for other in (torch.float32, torch.float64):
        equal(quantizers.float_quantize(x.to(other), name, saturate=saturate), expected.to(other))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_float8_is_that_of_a_cast(name):
    """Values equal torch's cast there and back, of numbers in the range."""
    x = half_patterns(torch.bfloat16)
    x = x[x.abs() <= NAMED[name].max]
    equal(quantizers.float_quantize(x, getattr(torch, name)), x.to(getattr(torch, name)).to(x.dtype))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float6_e3m2fn", "float4_e2m1fn"])
def test_other_roundings_are_those_of_integers(name):
    """Roundings equal those of fractions, in units of the step, as `round` documents them."""
    f = NAMED[name]
    x = around(torch.cat([torch.randn(300) * f.max / 3, f.numbers(), (f.numbers()[1:] + f.numbers()[:-1]) / 2]))
    for mode in ("half_away", "half_zero", "half_up", "half_down", "floor", "ceil", "trunc", "away", "dpu"):
        y = quantizers.float_quantize(x, f, rounding=mode).double()
        size = x.double().abs()
        exponent = (torch.frexp(size).exponent - 1).clamp(min=round(math.log2(f.min_normal))).double()
        step = torch.exp2(exponent - f.mantissa_bits)
        expected = (fullgrad.round(x.double() / step, mode) * step).clamp(-f.max, f.max)
        equal(y, expected)


def test_numbers_of_a_format_are_its_codebook():
    """Numbers of a format are fixed points; away from ties the format rounds as a codebook of them does."""
    for name in ("float8_e4m3fn", "float6_e2m3fn", "float4_e2m1fn", "float8_e3m4"):
        numbers = NAMED[name].numbers()
        assert torch.equal(quantizers.float_quantize(numbers, name), numbers)
        assert len(numbers) == len(set(numbers.tolist()))
        x = torch.randn(2000) * NAMED[name].max / 2
        equal(quantizers.float_quantize(x, name) + 0.0, quantizers.codebook_quantize(x, numbers) + 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponents_without_a_view_of_the_bits(monkeypatch, dtype):
    """Exponents are the same in torch's legacy vmap and torch.jit.trace, which lack the view of the bits."""
    limits = torch.finfo(dtype)
    mantissas = torch.arange(256, 513, dtype=dtype) / 256
    x = torch.cat([around(2.0**k * mantissas) for k in (-5, 0, 3)])
    x = torch.cat([x, torch.tensor([0.0, limits.tiny, limits.tiny / 4, limits.max, INF, NAN], dtype=dtype)])
    for digits in (None, 0, 1, 2, 3, 7):
        some = x if digits is None else x[(x > 0) & x.isfinite()]
        by_bits = exponent(some, digits)
        with monkeypatch.context() as patch:
            patch.setattr("fullgrad._core.bits.can_view_bits", lambda: False)
            assert torch.equal(exponent(some, digits).to(by_bits.dtype), by_bits)
    normal = torch.cat([x, -x])[torch.cat([x, x]).abs() >= limits.tiny]
    normal = normal[normal.isfinite()]
    by_bits = has_fraction(normal)
    assert by_bits.tolist() == [math.frexp(v)[0] not in (0.5, -0.5) for v in normal.tolist()]
    monkeypatch.setattr("fullgrad._core.bits.can_view_bits", lambda: False)
    assert has_fraction(normal).equal(by_bits)


ROUNDINGS = {
    "half_even": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "away": lambda v: torch.copysign(v.abs().ceil(), v),
    "half_away": lambda v: torch.copysign((v.abs() + 0.5).floor(), v),
    "half_zero": lambda v: torch.copysign((v.abs() - 0.5).ceil(), v),
    "half_up": lambda v: (v + 0.5).floor(),
    "half_down": lambda v: (v - 0.5).ceil(),
}
FORMATS = {**NAMED, "of large numbers": FloatFormat(8, 3), "without subnormals": FloatFormat(3, 2, subnormals=False)}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("view", [True, False])
def test_the_range_of_a_format_ends_where_rounding_leaves_it(monkeypatch, view, name, rounding):
    """At the end of the range the value stays and the gradient is 0, with and without a view of the bits."""
    monkeypatch.setattr("fullgrad._core.bits.can_view_bits", lambda: view)
    f = FORMATS[name]
    step = 2.0 ** (math.floor(math.log2(f.max)) - f.mantissa_bits)
    x = around(torch.tensor([f.max + d * step for d in (-1, -0.5, 0, 0.5, 1, 2)] + [0.3 * step, 1.7]))
    x = torch.cat([x, -x]).requires_grad_()
    y = quantizers.float_quantize(x, f, rounding=rounding, saturate=True)
    rounded = ROUNDINGS[rounding](x.detach().double() / step) * step
    assert gradient(y, x).tolist() == ((rounded.abs() <= f.max) * torch.arange(1.0, x.numel() + 1)).tolist()
    largest = x.detach().abs() >= f.max - step
    equal(y.detach()[largest].double(), rounded.clamp(-f.max, f.max)[largest])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_first_and_the_last_number_without_bounds(dtype):
    """The first and last numbers are the smallest and largest finite ones."""
    largest = torch.finfo(dtype).max
    assert first_and_last(dtype, lambda v: v, -INF, INF) == (-largest, largest)
    assert first_and_last(dtype, lambda v: v, -1.0, 2.0) == (-1, 2)


def rounded_fraction(q, rounding):
    """A fraction as an integer."""
    size, half = math.floor(abs(q)), abs(q) % 1 - Fraction(1, 2)
    away = {
        "half_even": half > 0 or (half == 0 and size % 2 == 1),
        "floor": q < 0 and abs(q) != size,
        "ceil": q > 0 and abs(q) != size,
        "trunc": False,
        "away": abs(q) != size,
        "half_away": half >= 0,
        "half_zero": half > 0,
        "half_up": half > 0 or (half == 0 and q > 0),
        "half_down": half > 0 or (half == 0 and q < 0),
    }[rounding]
    return math.copysign(size + away, q)


def stepwise(v, f, rounding, saturate):
    """A number of a format by its definition: in units of the step, and by IEEE 754 beyond the range."""
    if math.isnan(v):
        return v
    if math.isfinite(v):
        smallest = Fraction(2) ** (1 - f.bias)
        size = abs(Fraction(v))
        step = Fraction(2) ** (log2_floor(size) - f.mantissa_bits) if size >= smallest else smallest
        if size < smallest and f.subnormals:
            step = smallest / 2**f.mantissa_bits
        y = rounded_fraction(Fraction(v) / step, rounding) * float(step)
        if abs(y) <= f.max:
            return math.copysign(y, v) if y == 0 and f.kind != "fnuz" else y + 0.0
    to_zero = math.isfinite(v) and rounding in ("trunc", "floor" if v > 0 else "ceil")
    if saturate or f.kind == "finite" or to_zero:
        return math.copysign(f.max, v)
    return math.copysign(INF, v) if f.kind == "ieee" else NAN


@pytest.mark.long(but=12)
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("rounding", [*ROUNDINGS])
@pytest.mark.parametrize("kind", ["ieee", "fn", "fnuz", "finite"])
@pytest.mark.parametrize("subnormals", [True, False])
def test_every_rounding_to_every_kind_of_format(subnormals, kind, rounding, saturate):
    """Numbers from below the smallest to beyond the largest, on ties and next to them, infinities and NaN are right."""
    for bits in ((3, 2), (4, 0), (2, 3)):
        f = FloatFormat(*bits, kind=kind, subnormals=subnormals)
        positive = [n for n in f.numbers().tolist() if n > 0]
        ends = [0.0, *positive, *[f.max * k for k in (1.1, 1.3, 1.9, 2.5, 1e3)]]
        x = around(torch.tensor(ends + [(a + b) / 2 for a, b in itertools.pairwise(ends)], dtype=torch.float64))
        x = torch.cat([x, -x, torch.tensor([INF, -INF, NAN, -0.0, f.min_normal / 4], dtype=torch.float64)])
        expected = torch.tensor([stepwise(v, f, rounding, saturate) for v in x.tolist()], dtype=torch.float64)
        equal(quantizers.float_quantize(x, f, rounding=rounding, saturate=saturate), expected)


# --- Blocks --------------------------------------------------------------------------------------------------------------


def log2_floor(q):
    """The largest k with ``2**k <= q`` of a positive fraction."""
    k = q.numerator.bit_length() - q.denominator.bit_length()
    return k if Fraction(2) ** k <= q else k - 1


def nearest(q, f):
    """The nearest number of a format to a fraction, the even one of two, at most the largest."""
    size = abs(q)
    e = max(log2_floor(size) if size else -999, 1 - f.bias)
    step = Fraction(2) ** (e - f.mantissa_bits)
    y = min(round(size / step) * step, Fraction(f.max))  # Python rounds halves to even
    return -y if q < 0 else y


def mx_reference(row, element, scale_rounding):
    """The MX rounding of a block of finite numbers by fractions."""
    largest = max(abs(Fraction(v)) for v in row)
    most = {"float8_e4m3fn": 8, "float8_e5m2": 15, "float6_e2m3fn": 2, "float6_e3m2fn": 4, "float4_e2m1fn": 2, "int8": 0}[element]
    if largest == 0:
        return row
    if scale_rounding == "rceil":
        quotient = Fraction(
            float(numpy.float32(float(largest)) / numpy.float32(127 / 64 if element == "int8" else NAMED[element].max))
        )
        e = log2_floor(quotient) if quotient else -200
        e += quotient > Fraction(2) ** e
    else:
        digits = 6 if element == "int8" else NAMED[element].mantissa_bits
        e = log2_floor(largest)
        if scale_rounding == "even":
            e = log2_floor(largest + Fraction(2) ** (e - digits - 1))
        e += (scale_rounding == "ceil" and largest > Fraction(2) ** e) - most
    scale = Fraction(2) ** min(max(e, -127), 127)
    if element == "int8":
        return [float(scale * min(max(round(Fraction(v) / scale * 64), -128), 127) / 64) for v in row]
    return [float(scale * nearest(Fraction(v) / scale, NAMED[element])) for v in row]


@pytest.mark.parametrize("scale_rounding", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int8"])
def test_mx_is_exact(element, scale_rounding):
    """Values equal those by fractions, from the smallest to large numbers, also at the limits of the rounding."""
    torch.manual_seed(0)
    x = torch.randn(60, 8) * torch.exp2(torch.randint(-140, 100, (60, 1)))
    x[:20, 0] = torch.nextafter(
        torch.exp2(torch.randint(-130, 100, (20,))) * NAMED.get(element, FloatFormat(4, 3)).max, x[:20, 1]
    )
    x[20:30, 0] = torch.exp2(torch.randint(-130, 100, (10,)))
    x[30] = 0
    y = quantizers.mx_quantize(x, element, block_size=8, scale_rounding=scale_rounding)
    expected = torch.tensor([mx_reference(row, element, scale_rounding) for row in x.tolist()])
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


def test_mx_special_values():
    """NaN makes its block NaN; an infinity leaves itself and zeros; zeros keep their signs; other blocks are unaffected."""
    x = torch.tensor([[1.0, NAN, 2.0, 3.0], [INF, 1e30, -1.0, -INF], [0.0, -0.0, 0.0, -0.0], [1.0, 0.5, -0.25, 0.0]])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for element in ("float8_e4m3fn", "float4_e2m1fn", "int8"):
            y = quantizers.mx_quantize(x.to(dtype), element, block_size=4)
            assert y[0].isnan().all()
            equal(y[1:], torch.tensor([[INF, 0.0, -0.0, -INF], [0.0, -0.0, 0.0, -0.0], [1.0, 0.5, -0.25, 0.0]], dtype=dtype))


def test_mx_is_a_format_with_the_scale_of_its_block():
    """The result is that of a format with the scale of the block, along any dimension."""
    x = torch.randn(64, 6) * 5
    y = quantizers.mx_quantize(x, "float6_e3m2fn", dim=0)
    largest = x.unflatten(0, (2, 32)).abs().amax(1)
    scale = torch.exp2(torch.floor(torch.log2(largest)) - 4)
    equal(y, quantizers.float_quantize(x, "float6_e3m2fn", scale))


def test_nvfp4_is_exact():
    """Values equal those in float32 steps, with a table of numbers of four bits and one of the scale."""
    torch.manual_seed(0)
    x = torch.randn(40, 16) * torch.exp2(torch.randint(-8, 9, (40, 1)))
    e2m1, e4m3 = table(2, 1, 1, "finite"), table(4, 3, 7, "fn")
    for p in (None, 0.37):
        rows = x.numpy()
        largest = numpy.abs(rows).max(-1, keepdims=True) / numpy.float32(6)
        largest = largest if p is None else largest / numpy.float32(p)
        scale = looked_up(numpy.clip(largest, 2.0**-6, 448), e4m3, "fn", True).astype(numpy.float32)
        one = numpy.float32(1)
        inverse = one / scale if p is None else (one / numpy.float32(p)) / scale
        q = looked_up((rows * inverse).astype(numpy.float64), e2m1, "finite", True).astype(numpy.float32)
        expected = q * (scale if p is None else numpy.float32(p) * scale)
        equal(quantizers.nvfp4_quantize(x, p), torch.from_numpy(expected))
        if p is not None:
            equal(quantizers.nvfp4_quantize(x, torch.tensor(p)), torch.from_numpy(expected))


# --- Compiled ------------------------------------------------------------------------------------------------------------

OPERATORS = {
    "fake_quantize": lambda x: quantizers.fake_quantize(x, 0.1, 3, 0, 15),
    "fake_quantize by channel": lambda x: quantizers.fake_quantize(x, torch.linspace(0.05, 0.2, 4), dim=0),
    "float8_e4m3fn": lambda x: quantizers.float_quantize(x, "float8_e4m3fn", 0.01),
    "mx": lambda x: quantizers.mx_quantize(x, "float4_e2m1fn", block_size=8),
    "nvfp4": lambda x: quantizers.nvfp4_quantize(x),
    "power_of_two": quantizers.power_of_two,
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_code_has_the_same_bits(name):
    """Value and gradient of inductor's kernels are the same, at ties, infinities and NaN."""
    operator = OPERATORS[name]
    x = torch.randn(4, 64)
    x[0, :16] = torch.tensor([-0.5, 0.05, 0.15, 0.25, -0.0, 0.0, 1e-30, -1e-42, 4.48, 4.64, 4.65, 0.35, INF, -INF, NAN, 1e30])
    x.requires_grad_()
    expected = operator(x)
    actual = torch.compile(operator, fullgraph=True)(x)
    equal(actual.detach(), expected.detach())
    g = torch.randn(4, 64)
    for y in (actual, expected):
        y.grad_of = torch.autograd.grad(y, x, g)[0]
    equal(actual.grad_of, expected.grad_of)


# --- Units ----------------------------------------------------------------------------------------------------------------

IN_UNITS = {
    "binarize": ({"scale": 0.7, "window": 0.9}, {}),
    "bsq": ({}, {}),
    "codebook_quantize": ({"scale": 0.9}, {"codebook": torch.tensor([-1.0, -0.3, 0.2, 0.8])}),
    "fake_quantize": ({"scale": 0.1}, {"zero_point": 2, "quant_min": -4, "quant_max": 7}),
    "float_quantize": ({"scale": 0.3}, {"format": "float8_e4m3fn"}),
    "lsq": ({"scale": 0.1, "offset": 0.05}, {"quant_min": -4, "quant_max": 7}),
    "pact": ({"alpha": 0.8}, {"bits": 3}),
    "stretched_elastic": ({"scale": 0.7}, {}),
    "ternarize": ({"threshold": 0.3, "scale": 0.8, "negative_scale": 0.6, "window": 1.1}, {}),
    "twn": ({}, {}),
    "vector_quantize": ({"codebook": torch.randn(5, 4, generator=torch.Generator().manual_seed(0))}, {}),
}


@pytest.mark.parametrize("unit", [2.0**-60, 2.0**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", IN_UNITS)
def test_the_unit_may_be_any(name, dtype, unit):
    """In scales of the same unit the codes are the same, to the last bit, and so are all derivatives."""
    in_units, others = IN_UNITS[name]
    others = {k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in others.items()}
    numbers = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).to(dtype)

    def found(unit):
        x, *parameters = [(torch.as_tensor(v, dtype=dtype) * unit).requires_grad_() for v in (numbers, *in_units.values())]
        scale = {"scale": 0.7 * unit} if name == "bsq" else {}  # which is a number
        y = getattr(quantizers, name)(x, **dict(zip(in_units, parameters, strict=True)), **scale, **others)
        y = y[0] if isinstance(y, tuple) else y
        slopes = torch.autograd.grad(y, (x, *parameters), torch.sin(1 + numbers), allow_unused=True, materialize_grads=True)
        return (y.detach() / unit, *slopes)

    for scaled, expected in zip(found(unit), found(1.0), strict=True):
        equal(scaled, expected)


def _codebooks(generator, n, channels):
    """Codebooks with common and separate parts, and vectors near some of their rows."""
    rows, x = [torch.randn(k, channels, generator=generator) for k in (n, 300)]
    ends = torch.tensor([1.0, -1.0]).repeat(150)[:, None]
    outlier = torch.where(torch.arange(n)[:, None] == 0, 400.0, rows)
    yield "plain", x, rows
    yield "equal", x, rows[:2].repeat(n // 2, 1)
    for far in (1e2, 1e6):
        yield f"offset {far:g}", x + far, rows + far
    for size in (1e4, 1e6):
        yield f"clusters {size:g}", x + size * ends, rows + size * ends[:n]
    yield "outlier", x, outlier
    yield "outlier", x, outlier.flip(0)
    for unit in (1e-36, 1e-25, 1e18, 1e36):
        yield f"unit {unit:g}", x * unit, rows * unit


@pytest.mark.short(of=3)
@pytest.mark.parametrize("way", ["eager", "traced", "with rounded products"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "channels"), [(16, 4), (200, 8)])
def test_the_nearest_row_is_that_of_all_distances(n, channels, dtype, way, monkeypatch):
    """The nearest row is that by float64, for any offset, outlier, cluster, unit and order of rows."""
    if way == "with rounded products":  # as some devices do, if torch is told so
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
        half = lambda a, b: (a.bfloat16() @ b.bfloat16()).to(a) if a.dtype == torch.float32 else a @ b  # noqa: E731
        monkeypatch.setattr("fullgrad.quantizers.kernels.nearest_row.matmul", half)
    for name, x, rows in _codebooks(torch.Generator().manual_seed(0), n, channels):
        x, rows = x.to(dtype), rows.to(dtype)
        operator = lambda x, rows: quantizers.vector_quantize(x, rows)[1]  # noqa: E731
        found = (make_fx(operator)(x, rows) if way == "traced" else operator)(x, rows)
        distances = (x.double().unsqueeze(1) - rows.double()).square().sum(-1).sqrt()
        chosen, least = distances.gather(1, found.unsqueeze(1)).squeeze(1), distances.amin(1)
        assert (chosen <= least * (1 + 2 * torch.finfo(torch.float32).eps)).all(), name
        equals = (rows[found].unsqueeze(1) == rows).all(-1)
        assert torch.equal(found, equals.byte().argmax(1)), name


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_row_that_is_not_finite_is_infinitely_far_or_nan(bad, traced):
    """A row with an infinity is never the nearest, wherever it stands, unless all are so; a row with NaN is, as for argmin."""
    x = torch.tensor([[0.0, 0.9], [2.0, 2.1], [5.0, 5.0], [-3.0, 0.5]])
    rows = torch.tensor([[5.0, 5.0], [0.0, 1.0], [2.0, 2.0], [0.0, 1.0]])
    operator = lambda x, rows: quantizers.vector_quantize(x, rows)[1]  # noqa: E731
    for which in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(1, 5)):
        for column in (0, 1):
            broken = rows.index_put((torch.tensor(which), torch.tensor(column)), torch.tensor(bad))
            distances = torch.where(broken.isinf().any(-1), torch.inf, (x.unsqueeze(1) - broken).square().sum(-1))
            found = (make_fx(operator)(x, broken) if traced else operator)(x, broken)
            assert torch.equal(found, distances.argmin(-1)), (which, column)


def test_the_nearest_row_in_batches_of_codebooks():
    """Each codebook of a batch has its own vectors that rounded distances do not tell apart."""
    generator = torch.Generator().manual_seed(0)
    x, rows = zip(*[(x, rows) for _, x, rows in _codebooks(generator, 16, 4)], strict=True)
    expected = [quantizers.vector_quantize(*pair)[1] for pair in zip(x, rows, strict=True)]
    found = torch.func.vmap(quantizers.vector_quantize)(torch.stack(x), torch.stack(rows))[1]
    assert torch.equal(found, torch.stack(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_codes_of_every_rounding(rounding, dtype):
    """Codes are right on ties and between them, for numbers and tensors, with a gradient and without."""
    x = torch.arange(-24, 25, dtype=dtype) / 8
    for zero_point in (0, -2):
        codes = (ROUNDINGS[rounding](x.double() / 0.5)).clamp(-4 - zero_point, 3 - zero_point)
        for scale in (0.5, torch.tensor(0.5, dtype=dtype)):
            for leaf in (x, x.clone().requires_grad_()):
                y = quantizers.fake_quantize(leaf, scale, zero_point, -4, 3, rounding=rounding)
                assert torch.equal(y.detach().double(), codes * 0.5)


@pytest.mark.parametrize("levels", range(2, 9))
def test_ties_of_stretched_elastic_are_rounded_to_even(levels):
    """The fraction n v - h is rounded, for n = levels / 2 and h = 1/2 for an even number of levels."""
    n, h = Fraction(levels, 2), Fraction(1 - levels % 2, 2)
    x = torch.arange(-16, 17, dtype=torch.float64) / 16
    inside = x[x.abs() < 0.99]
    expected = torch.tensor([float((round(Fraction(v) * n - h) + h) / n) for v in inside.tolist()], dtype=torch.float64)
    torch.testing.assert_close(quantizers.stretched_elastic(inside, 1.0, levels), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("unit", [1.0, 1e20, 1e30])
def test_rotations_in_any_unit(unit):
    """The gradient through a rotation and a scaling is the same for vectors and rows in any unit."""
    x, c = torch.tensor([[1.0, 1.0], [-0.5, 2.0]]), torch.tensor([[1.0, 2.0], [-1.0, 1.0]])
    f = lambda x, unit: quantizers.vector_quantize(x * unit, c * unit, gradient="rotation")[0] / unit  # noqa: E731
    pull = lambda unit: torch.func.vjp(lambda x: f(x, unit), x)[1](torch.ones(2, 2))[0]  # noqa: E731
    torch.testing.assert_close(pull(unit), pull(1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_next_to_the_largest_number(dtype):
    """The sum of two levels overflows, and what lies between them does not."""
    largest = torch.finfo(dtype).max
    levels = torch.tensor([-0.9, -0.3, 0.3, 0.85], dtype=dtype) * largest
    x = torch.tensor([0.9, -0.7, 0.5, 0.6, -0.1], dtype=dtype) * largest
    expected = torch.tensor([0.85, -0.9, 0.3, 0.85, -0.3], dtype=dtype) * largest
    torch.testing.assert_close(quantizers.codebook_quantize(x, levels), expected)


@pytest.mark.long
@pytest.mark.parametrize("quantizer", [quantizers.binarize, lambda x: quantizers.ternarize(x, 0.5), quantizers.bsq])
def test_compiled_codes_keep_nan(quantizer):
    """inductor's kernels, too, for which NaN times 0 is 0."""
    x = torch.tensor([torch.nan, 0.3, -0.6] * 8)
    torch.testing.assert_close(torch.compile(quantizer)(x), quantizer(x), equal_nan=True, rtol=0, atol=0)
