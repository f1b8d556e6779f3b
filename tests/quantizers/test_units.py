"""The level that each quantizer chooses, in any unit, at offsets and next to boundaries, is that of its formula in float64."""

import math

import pytest
import torch

import fullgrad
from fullgrad import quantizers, rounding, spikes
from fullgrad.testing._subject import equal

pytestmark = pytest.mark.short

CODEBOOK = torch.tensor([-1.0, -0.3, 0.2, 0.8], dtype=torch.float64)
ROWS = torch.randn(20, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
CHANNELS = 16
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Rounding in float32: of a quotient, of a scale and its reciprocal, of a sum.
EPS = 8 * 2.0**-24


def to_float(v, mantissa_bits, smallest_exponent, largest):
    """The nearest number of a float format, of two the even one."""
    v = v.clamp(-largest, largest)
    e = (torch.frexp(v).exponent - 1).clamp(min=smallest_exponent)
    step = torch.ldexp(torch.ones_like(v), e - mantissa_bits)
    return torch.round(v / step) * step


def e4m3(v):
    return to_float(v, 3, -6, 448.0)


def e2m1(v):
    return to_float(v, 1, 0, 6.0)


def largest(x):
    return x.abs().amax(-1, keepdim=True)


def pick(condition, a, b):
    return torch.where(condition, torch.tensor(a, dtype=torch.float64), b)


def pulled(operator, g, *args, **kwargs):
    """The gradient that an operator makes of another."""
    x = torch.zeros_like(g).requires_grad_()
    return torch.autograd.grad(operator(x, *args, **kwargs), x, g)[0]


def nearest_level(v, levels):
    return levels[((levels[1:] + levels[:-1]) / 2 < v.unsqueeze(-1)).sum(-1)]


def nearest_row(x, rows):
    return rows[(x.unsqueeze(1) - rows).square().sum(-1).argmin(-1)]


def nvfp4(x, s, p):
    scale = p * e4m3(torch.clamp(largest(s) / 6 / p, 2.0**-6, 448.0))
    return e2m1(x / scale) * scale


def mx(x, s):
    scale = torch.ldexp(torch.ones_like(largest(s)), torch.frexp(largest(s)).exponent - 3)
    return e2m1(x / scale) * scale


def twn(x, s):
    beyond = s.abs() > 0.7 * s.abs().mean(-1, keepdim=True)
    scale = (s.abs() * beyond).sum(-1, keepdim=True) / beyond.sum(-1, keepdim=True)
    return torch.where(x.abs() > 0.7 * s.abs().mean(-1, keepdim=True), torch.sign(x) * scale, 0)


def dorefa_weight(x, s):
    return 2 * torch.round(7 * (torch.tanh(x) / (2 * largest(torch.tanh(s.flatten()))) + 0.5)) / 7 - 1


def dorefa_gradient(x, s):
    m = s.abs().max()
    return 2 * m * (torch.round(7 * torch.clamp(x / (2 * m) + 0.5, 0, 1)) / 7 - 0.5)


def fsq(x):
    reach = 1.5 * 1.001
    return torch.round(reach * torch.tanh(x + math.atanh(0.5 / reach)) - 0.5) / 2


def elastic(x, s):
    return (torch.round(torch.clamp(x / s, -0.99, 0.99) * 2 - 0.5) + 0.5) / 2 * s


def count(x, t):
    return torch.floor(x / t).clamp(0, 40)


class Entry:
    """A quantizer, and its formula in float64.

    ``call(x, r)`` and ``formula(x, s, r)``, where ``r`` gives a parameter in the unit, ``s`` is what statistics are of, and ``x``
    what is rounded; ``size(x, r)``, of what numbers the arithmetic is, which bounds its errors; ``step``, half of whose odd
    multiples are boundaries; ``offset``, what the input is near, and ``plus``, what is added last, in the unit.
    """

    def __init__(
        self,
        call,
        formula,
        *,
        step=0.1,
        size=lambda x, r: x.abs(),
        units=(1e-3, 1.0, 1e3, 1e6),
        offset=0.0,
        dtypes=DTYPES,
        plus=0.0,
    ):
        self.call, self.formula, self.step, self.size, self.units = call, formula, step, size, units
        self.offset, self.dtypes, self.plus = offset, dtypes, plus or offset


def at_offset(offset, call, formula, **options):
    return Entry(call, formula, offset=offset, size=lambda x, r: (x - r(offset)).abs(), **options)


def lsq(offset):
    return (
        lambda x, r: quantizers.lsq(x, r(0.1), -4, 7, offset=r(offset)),
        lambda x, s, r: torch.clamp(torch.round((x - r(offset)) / r(0.1)), -4, 7) * r(0.1) + r(offset),
    )


def codebook(offset):
    return (
        lambda x, r: quantizers.codebook_quantize(x, torch.tensor([r(offset + c) for c in CODEBOOK.tolist()], dtype=x.dtype)),
        lambda x, s, r: nearest_level(x, torch.tensor([r(offset + c) for c in CODEBOOK.tolist()], dtype=torch.float64)),
    )


def rows_of(r, offset):
    return torch.tensor([[r(offset + c) for c in row] for row in ROWS.tolist()], dtype=torch.float64)


def vectors(offset):
    return (
        lambda x, r: quantizers.vector_quantize(x, rows_of(r, offset).to(x.dtype))[0],
        lambda x, s, r: nearest_row(x, rows_of(r, offset)),
    )


def k_bit(x, k=3):
    return torch.round(x * (2**k - 1)) / (2**k - 1)


def multiple(x, step):
    return torch.round(x / step) * step


TABLE = {
    "binarize": Entry(lambda x, r: quantizers.binarize(x, r(0.7)), lambda x, s, r: pick(x >= 0, r(0.7), -r(0.7))),
    "bsq": Entry(lambda x, r: quantizers.bsq(x, scale=0.7), lambda x, s, r: pick(x > 0, 0.7, -0.7) / 4),
    "codebook_quantize": Entry(*codebook(0.0), step=0.5),
    "codebook_quantize with a scale": Entry(
        lambda x, r: quantizers.codebook_quantize(x, CODEBOOK.to(r.dtype).to(x.dtype), r(0.9)),
        lambda x, s, r: nearest_level(x / r(0.9), CODEBOOK.to(r.dtype).double()) * r(0.9),
    ),
    "codebook_quantize of what is far": Entry(*codebook(1e3), offset=1e3),
    "dorefa_activation": Entry(
        lambda x, r: quantizers.dorefa_activation(x, 3), lambda x, s, r: k_bit(x.clamp(0, 1)), step=1 / 7, units=(1e-3, 0.3, 1.0)
    ),
    "dorefa_gradient": Entry(
        lambda x, r: pulled(quantizers.dorefa_gradient, x, 3, noise=torch.full(x.shape, 0.5)),
        lambda x, s, r: dorefa_gradient(x, s),
        size=lambda x, r: x.abs() + x.abs().max(),
    ),
    "dorefa_weight": Entry(
        lambda x, r: quantizers.dorefa_weight(x, 3),
        lambda x, s, r: dorefa_weight(x, s),
        size=lambda x, r: (x.abs() + x.abs().max()) * torch.cosh(x) ** 2,
        units=(1e-3, 0.3, 1.0),
    ),
    "fake_quantize": Entry(
        lambda x, r: quantizers.fake_quantize(x, r(0.1), 2, -4, 7),
        lambda x, s, r: (torch.clamp(torch.round(x / r(0.1)) + 2, -4, 7) - 2) * r(0.1),
    ),
    "fake_quantize by division": Entry(
        lambda x, r: quantizers.fake_quantize(x, torch.tensor(r(0.1), dtype=x.dtype), -2, -128, 127, reciprocal=False),
        lambda x, s, r: (torch.clamp(torch.round(x / r(0.1)) - 2, -128, 127) + 2) * r(0.1),
    ),
    "float_quantize": Entry(
        lambda x, r: quantizers.float_quantize(x, "float8_e4m3fn", r(0.3)), lambda x, s, r: e4m3(x / r(0.3)) * r(0.3), step=0.0375
    ),
    "float_quantize_bwd": Entry(
        lambda x, r: pulled(quantizers.float_quantize_bwd, x, "float8_e4m3fn"), lambda x, s, r: e4m3(x), step=0.125
    ),
    "fsq": Entry(
        lambda x, r: quantizers.fsq(x, (4,) * CHANNELS),
        lambda x, s, r: fsq(x),
        size=lambda x, r: (1 + x.abs()) * torch.cosh(x.abs() + 0.4) ** 2,
        units=(1e-3, 0.3, 1.0),
    ),
    "lsq": Entry(*lsq(0.05), size=lambda x, r: x.abs() + r(0.05)),
    "lsq of what is far": at_offset(1e3, *lsq(1e3)),
    "mx_quantize": Entry(
        lambda x, r: quantizers.mx_quantize(x, "float4_e2m1fn", block_size=16), lambda x, s, r: mx(x, s), step=0.25
    ),
    "nvfp4_quantize": Entry(lambda x, r: quantizers.nvfp4_quantize(x, r(0.37)), lambda x, s, r: nvfp4(x, s, r(0.37))),
    "pact": Entry(
        lambda x, r: quantizers.pact(x, r(0.8), 3), lambda x, s, r: multiple(x.clamp(0, r(0.8)), r(0.8) / 7), step=0.8 / 7
    ),
    "pact with a tensor": Entry(
        lambda x, r: quantizers.pact(x, torch.tensor(r(0.8), dtype=x.dtype), 3),
        lambda x, s, r: multiple(x.clamp(0, r(0.8)), r(0.8) / 7),
        step=0.8 / 7,
    ),
    "power_of_two": Entry(
        lambda x, r: quantizers.power_of_two(x),
        lambda x, s, r: torch.where(x == 0, x, torch.sign(x) * torch.exp2(torch.round(torch.log2(x.abs())))),
    ),
    "stretched_elastic": Entry(
        lambda x, r: quantizers.stretched_elastic(x, r(0.7)),
        lambda x, s, r: elastic(x, r(0.7)),
        step=0.35,
        size=lambda x, r: x.abs() + r(0.7),
    ),
    "ternarize": Entry(
        lambda x, r: quantizers.ternarize(x, r(0.3), r(0.8), r(0.6)),
        lambda x, s, r: pick(x > r(0.3), r(0.8), 0.0) - pick(x < -r(0.3), r(0.6), 0.0),
        step=0.2,
    ),
    "tqt": Entry(
        lambda x, r: quantizers.tqt(x, math.log2(r(0.9)), 4),
        lambda x, s, r: multiple(x, 2.0 ** (math.ceil(math.log2(r(0.9))) - 3)).clamp(
            -(2.0 ** math.ceil(math.log2(r(0.9)))), 7 * 2.0 ** (math.ceil(math.log2(r(0.9))) - 3)
        ),
        step=0.125,
    ),
    "twn": Entry(lambda x, r: quantizers.twn(x, -1), lambda x, s, r: twn(x, s)),
    "vector_quantize": Entry(*vectors(0.0)),
    "vector_quantize of what is far": at_offset(1e3, *vectors(1e3), dtypes=DTYPES[2:]),
    "xnor": Entry(lambda x, r: quantizers.xnor(x, -1), lambda x, s, r: pick(x >= 0, 1.0, -1.0) * s.abs().mean(-1, keepdim=True)),
}

# Those of other families that round a quotient or a product.
OTHERS = {
    "step_quantize": Entry(lambda x, r: fullgrad.step_quantize(x, r(0.3)), lambda x, s, r: multiple(x, r(0.3)), step=0.3),
    "step_quantize with a tensor": Entry(
        lambda x, r: fullgrad.step_quantize(x, torch.tensor(r(0.07), dtype=x.dtype)),
        lambda x, s, r: multiple(x, r(0.07)),
        step=0.07,
    ),
    "step_quantize of what is far": Entry(
        lambda x, r: fullgrad.step_quantize(x, r(0.3)), lambda x, s, r: multiple(x, r(0.3)), step=0.3, offset=100.0
    ),
    "step_quantize_forward": Entry(
        lambda x, r: fullgrad.step_quantize_forward(x, r(0.3)), lambda x, s, r: multiple(x, r(0.3)), step=0.3
    ),
    "k_bit_quantize": Entry(lambda x, r: fullgrad.k_bit_quantize(x, 3), lambda x, s, r: k_bit(x), step=1 / 7),
    "k_bit_quantize_forward": Entry(lambda x, r: fullgrad.k_bit_quantize_forward(x, 3), lambda x, s, r: k_bit(x), step=1 / 7),
    "affine_k_bit_quantize": Entry(
        lambda x, r: fullgrad.affine_k_bit_quantize(x, 3, r(0.7), r(0.2)),
        lambda x, s, r: r(0.7) * k_bit(x) + r(0.2),
        step=1 / 7,
        plus=0.2,
    ),
    "spikes.multi_spike": Entry(
        lambda x, r: spikes.multi_spike(x, r(0.21), max_spikes=40), lambda x, s, r: count(x, r(0.21)), step=0.42
    ),
    "spikes.periodic_exponential": Entry(
        lambda x, r: spikes.periodic_exponential(x, torch.tensor(r(0.21), dtype=x.dtype), max_spikes=40),
        lambda x, s, r: count(x, r(0.21)),
        step=0.42,
    ),
    "spikes.spike_count": Entry(lambda x, r: spikes.spike_count(x), lambda x, s, r: torch.round(x.clamp(0, 4)), step=1.0),
}
# What has no number to round.
OF_NO_TENSOR = {"levels", "quant_range"}
OF_INTEGERS = {"codebook_codes", "codes", "float_codes"}  # `tests/quantizers/test_codes.py` compares them with the quantizers


def test_every_quantizer_is_in_the_table():
    """The table has every quantizer, by its name, which those of variants begin with."""
    functions = (
        {name for name in quantizers.__all__ if not isinstance(getattr(quantizers, name), type)} - OF_NO_TENSOR - OF_INTEGERS
    )
    assert {name.split(" ")[0] for name in TABLE} == functions
    steps = {name for name in rounding.__all__ if "quantize" in name}
    counts = {f"spikes.{name}" for name in ("multi_spike", "periodic_exponential", "spike_count")}
    assert {name.split(" ")[0] for name in OTHERS} == steps | counts


def numbers(entry, unit, dtype):
    """Normal numbers, ties, and the neighbors of ties."""
    ties = (torch.arange(-24, 24, dtype=torch.float64) + 0.5) * entry.step
    base = torch.cat([torch.randn(800, generator=torch.Generator().manual_seed(0), dtype=torch.float64), ties])
    x = ((base + entry.offset) * unit).to(dtype)
    x = torch.cat([x, *[torch.nextafter(x[800:], torch.full_like(x[800:], end)) for end in (-math.inf, math.inf)]])
    return x[: len(x) // CHANNELS * CHANNELS].reshape(-1, CHANNELS)


@pytest.mark.short(of=3)
@pytest.mark.parametrize(("name", "dtype"), [(n, t) for n, entry in (TABLE | OTHERS).items() for t in entry.dtypes])
def test_the_level_is_that_of_the_formula(name, dtype):
    """Levels differ only where an error of float32 crosses a boundary; also in half precision, whose value is rounded once."""
    entry = (TABLE | OTHERS)[name]
    limits = torch.finfo(dtype)
    eps = EPS if dtype != torch.float64 else EPS * 2.0**-29
    for unit in entry.units:
        if unit * (entry.offset + 10) * 10 > limits.max:
            continue

        def r(value, unit=unit):
            return torch.tensor(value * unit, dtype=torch.float64).to(dtype).item()

        r.dtype = dtype
        x = numbers(entry, unit, dtype)
        y, wide = entry.call(x, r), x.double()
        assert y.dtype == dtype
        y, found = y.double(), torch.zeros(x.shape, dtype=torch.bool)
        move = eps * entry.size(wide, r)
        for element in (0, -1, 1):
            for statistic in (0, -1, 1):
                value = entry.formula(wide + element * move, wide + statistic * move, r)
                error = eps * (value.abs() + abs(r(entry.plus))) + limits.eps / 2 * value.abs() + limits.tiny * limits.eps
                found |= (y - value).abs() <= error
        assert found.all(), f"unit {unit}: {x[~found][:5].tolist()} gave {y[~found][:5].tolist()}"


@pytest.mark.parametrize("name", [*TABLE, *OTHERS])
def test_half_precision_is_float32_rounded_once(name):
    """The value of numbers in half precision is that of the same numbers in float32, rounded."""
    entry = (TABLE | OTHERS)[name]
    for dtype in (torch.bfloat16, torch.float16):
        for unit in entry.units:
            if unit * (entry.offset + 10) * 10 > torch.finfo(dtype).max:
                continue

            def r(value, unit=unit, dtype=dtype):
                return torch.tensor(value * unit, dtype=torch.float64).to(dtype).item()

            r.dtype = dtype
            x = numbers(entry, unit, dtype)
            equal(entry.call(x, r), entry.call(x.float(), r).to(dtype))
