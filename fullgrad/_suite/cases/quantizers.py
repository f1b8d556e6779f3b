"""Cases of the family `quantizers`: each operator with parameters that learn; variants with numbers, channels and blocks."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad import quantizers
from fullgrad._suite.cases._case import Case, in_compute_dtype, numbers, straight_through
from fullgrad.gradients._scale import Scale
from fullgrad.quantizers import FloatFormat, _fake_quantize, _float_quantize, _mx_quantize, _nvfp4_quantize
from fullgrad.quantizers import _binarize as _binarize_file
from fullgrad.quantizers import _codebook_quantize as _codebook_file
from fullgrad.quantizers import _power_of_two as _power_file
from fullgrad.quantizers import _stretched_elastic as _elastic_file
from fullgrad.quantizers import _ternarize as _ternarize_file
from fullgrad.quantizers import _vector_quantize as _vector_file
from fullgrad.quantizers._formats import NAMED
from fullgrad.rounding import Round
from fullgrad.testing._subject import by_cotangent_map

X = numbers(4, 3)
SCALE = torch.tensor([[0.5], [0.31], [0.83], [0.62]], dtype=torch.float64)
ZERO_POINT = torch.tensor([1.0, 0.3, -0.7], dtype=torch.float64)


def constant(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def rounded_through(x: Tensor) -> Tensor:
    return straight_through(torch.round(x), x)


# --- fake_quantize -------------------------------------------------------------------------------------------------------

LOW, HIGH = -3, 4


def _code(x: Tensor, s: Any, z: Any, inside: str, reciprocal: bool, round_z: bool) -> tuple[Tensor, Any, Tensor]:
    """The code before it is clamped, the zero point, and where the gradient passes; with their straight-through derivatives."""
    v = x * (1 / s) if reciprocal else x / s
    if round_z and isinstance(z, Tensor):
        z = straight_through(torch.clamp(torch.round(z), LOW, HIGH), z)
    r = rounded_through(v) + z if round_z else rounded_through(v + z)
    inner = {"rounded": r, "exact": v + z, "all": torch.zeros_like(v)}[inside]
    return r, z, (inner >= LOW) & (inner <= HIGH) if inside != "all" else torch.ones_like(v, dtype=torch.bool)


def _fake(name: str, inputs: tuple[Any, ...], inside: Any = "rounded", *, dim: int | None = None, **options: Any) -> Case:
    reciprocal, round_z = options.pop("reciprocal", True), options.pop("round_z", True)

    def aligned(t: Any, x: Tensor) -> Any:
        return t.view(-1, 1) if dim is not None and isinstance(t, Tensor) and t.ndim and x.ndim == 2 else t

    def operator(x: Tensor, s: Any, z: Any) -> Tensor:
        return quantizers.fake_quantize(
            x, s, z, LOW, HIGH, dim=dim if x.ndim == 2 else None, inside=inside, reciprocal=reciprocal, round_zero_point=round_z
        )

    @in_compute_dtype
    def value(x: Tensor, s: Any, z: Any) -> Tensor:
        s, z = aligned(s, x), aligned(z, x)
        step = s if isinstance(s, Tensor) else torch.full((), s, dtype=x.dtype, device=x.device)
        v = x * (1 / step) if reciprocal else x / step
        if round_z and isinstance(z, Tensor):
            z = torch.clamp(torch.round(z), LOW, HIGH)
        r = torch.round(v) + z if round_z else torch.round(v + z)
        return (torch.clamp(r, LOW, HIGH) - z) * s

    def surrogate(x: Tensor, s: Any, z: Any) -> Tensor:
        r, z, inner = _code(x, aligned(s, x), aligned(z, x), inside, reciprocal, round_z)
        clamped = torch.clamp(r, LOW, HIGH).detach()
        through = straight_through(clamped, r) if inside == "all" else r
        return (torch.where(inner, through, clamped) - z) * aligned(s, x)

    def smooth(x: Tensor, s: Any, z: Any, *_: Any) -> Tensor:
        r, _, inner = _code(x, s, z, inside, reciprocal, round_z)
        zero = 0 * (s + z)
        return torch.where(inner, x + zero, (torch.clamp(r, LOW, HIGH).detach() - z) * s)

    def smooth_residual(q: Tensor, passed: Tensor, z: Any, compared: Any, low: int, high: int) -> Tensor:
        if compared is None:
            return torch.zeros_like(q)
        if round_z and isinstance(z, Tensor):
            q = q + torch.clamp(torch.round(z), low, high) - z
        return torch.where((compared >= low) & (compared <= high), 0, q)

    return Case(
        name=name,
        covers=("quantizers.fake_quantize",),
        operator=operator,
        inputs=inputs,
        surrogate=surrogate,
        value=value,
        smooth_forwards={
            _fake_quantize.FakeQuantize: smooth,
            _fake_quantize.FakeQuantizeResidual: smooth_residual,
        },
        **options,
    )


def _fakes() -> Iterator[Case]:
    yield _fake("quantizers.fake_quantize", (X, SCALE, ZERO_POINT))
    yield _fake("quantizers.fake_quantize everywhere", (X, 0.5, 1), "all")
    for inside in ("rounded", "exact", "all"):
        yield _fake(f"quantizers.fake_quantize by numbers, {inside}", (X, 0.5, 1), inside, exhaustive=True)
        yield _fake(f"quantizers.fake_quantize by tensors, {inside}", (X, SCALE, 0.3), inside, exhaustive=True, round_z=False)
        yield _fake(
            f"quantizers.fake_quantize by channel, {inside}",
            (X, SCALE[:, 0], 1),
            inside,
            dim=0,
            exhaustive=True,
            reciprocal=False,
        )


# --- Float formats -------------------------------------------------------------------------------------------------------


def _nearest(v: Tensor, format: FloatFormat) -> Tensor:
    """The nearest numbers of a format, for numbers between its ends, by the exponents of frexp."""
    v = torch.clamp(v, -format.max, format.max)
    exponent = (torch.frexp(v.abs()).exponent - 1).clamp(min=int(math.log2(format.min_normal)))
    step = torch.ldexp(torch.ones_like(v), exponent - format.mantissa_bits)
    return torch.copysign(torch.round(v / step) * step, v)


E2M1, E4M3 = NAMED["float4_e2m1fn"], NAMED["float8_e4m3fn"]


def _float(name: str, inputs: tuple[Any, ...], inside: Any, format: FloatFormat = E2M1, **options: Any) -> Case:
    bound = format.max + (0.5 * 2.0 ** (math.floor(math.log2(format.max)) - format.mantissa_bits) if inside == "rounded" else 0)

    def inner(v: Tensor) -> Tensor:
        return v.abs() < bound if inside != "all" else torch.ones_like(v, dtype=torch.bool)

    def quotient(x: Tensor, s: Any) -> Tensor:
        return x if s is None else x / s

    def times(q: Tensor, s: Any) -> Tensor:
        return q if s is None else q * s

    def surrogate(x: Tensor, s: Any) -> Tensor:
        v = quotient(x, s)
        q = _nearest(v.detach(), format)
        return times(torch.where(inner(v), straight_through(q, v), q), s)

    def smooth(x: Tensor, s: Any, *_: Any) -> Tensor:
        v = quotient(x, s)
        zero = 0 if s is None else 0 * s
        return torch.where(inner(v), x + zero, times(_nearest(v.detach(), format), s))

    def smooth_residual(x: Tensor, s: Any, *_: Any) -> Tensor:
        v = quotient(x, s)
        return torch.where(inner(v), 0 * v, _nearest(v.detach(), format))

    return Case(
        name=name,
        covers=("quantizers.float_quantize",),
        operator=lambda x, s: quantizers.float_quantize(x, format, s, inside=inside),
        inputs=inputs,
        surrogate=surrogate,
        value=in_compute_dtype(lambda x, s: times(_nearest(quotient(x, s), format), s)),
        smooth_forwards={
            _float_quantize.FloatQuantize: smooth,
            _float_quantize.FloatQuantizeResidual: smooth_residual,
        },
        **options,
    )


def _mx_plain(x: Tensor) -> Tensor:
    """The value for blocks of two, with e2m1 as element and the scale of the specification."""
    blocks = x.unflatten(-1, (x.shape[-1] // 2, 2))
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = (torch.frexp(largest).exponent - 1 - 2).clamp(-127, 127)
    exponent = torch.where(largest == 0, -127, exponent)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    y = _nearest(blocks / scale, E2M1) * scale
    y = torch.where(largest.isinf(), torch.where(blocks.isinf(), blocks, torch.copysign(torch.zeros_like(blocks), blocks)), y)
    return torch.empty_like(x).copy_(torch.where(largest.isnan(), largest, y).flatten(-2))


def _padded(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of rows of sixteen, applied to rows filled up with zeros."""

    def padded(x: Tensor) -> Tensor:
        return function(torch.nn.functional.pad(x, (0, -x.shape[-1] % 16)))[..., : x.shape[-1]].contiguous()

    return padded


def _nvfp4_plain(x: Tensor) -> Tensor:
    blocks = x.reshape(*x.shape[:-1], -1, 16)
    scale = _nearest(torch.clamp(blocks.abs().amax(-1, keepdim=True) / 6 / 0.5, 2.0**-6, 448.0), E4M3)
    return (_nearest(blocks * (2.0 / scale), E2M1) * (0.5 * scale)).reshape(x.shape)


def _rounded_gradient(g: Tensor, x: Tensor) -> Tensor:
    return straight_through(_nearest(g.detach(), E4M3), g)


def _floats() -> Iterator[Case]:
    yield _float("quantizers.float_quantize", (X, SCALE), "rounded")
    yield _float("quantizers.float_quantize everywhere", (X, None), "all")
    for inside in ("rounded", "exact", "all"):
        yield _float(f"quantizers.float_quantize by a number, {inside}", (X, 0.5), inside, exhaustive=True)
        yield _float(f"quantizers.float_quantize by tensors, {inside}", (X, SCALE), inside, exhaustive=True)
    yield Case(
        name="quantizers.float_quantize_bwd",
        covers=("quantizers.float_quantize_bwd",),
        operator=lambda x: quantizers.float_quantize_bwd(x, "float8_e4m3fn"),
        inputs=(X,),
        surrogate=by_cotangent_map(_rounded_gradient),
        value=lambda x: x,
        linear=False,
        smooth_forwards={_float_quantize.FloatQuantize: lambda x, *_: x.clone()},
    )
    yield Case(
        name="quantizers.mx_quantize",
        covers=("quantizers.mx_quantize",),
        operator=lambda x: quantizers.mx_quantize(x, "float4_e2m1fn", block_size=2),
        inputs=(numbers(4, 6),),
        surrogate=lambda x: straight_through(_mx_plain(x.detach()), x),
        value=in_compute_dtype(_mx_plain),
        smooth_forwards={_mx_quantize.MxQuantize: lambda x, *rest: x.clone()},
        elementwise=False,
        of="rows",
    )
    yield Case(
        name="quantizers.nvfp4_quantize",
        covers=("quantizers.nvfp4_quantize",),
        operator=_padded(lambda x: quantizers.nvfp4_quantize(x, 0.5)),
        inputs=(numbers(4, 6),),
        surrogate=lambda x: straight_through(_padded(_nvfp4_plain)(x.detach()), x),
        value=in_compute_dtype(_padded(_nvfp4_plain)),
        smooth_forwards={_nvfp4_quantize.Nvfp4Quantize: lambda x, *rest: x.clone()},
        elementwise=False,
        of="rows",
    )


# --- Few levels ----------------------------------------------------------------------------------------------------------

CODEBOOK = torch.tensor([0.3, -1.1, 1.7, -0.2, 0.9], dtype=torch.float64)
NEGATIVE = torch.tensor([0.4, 0.7, 1.1], dtype=torch.float64)


def _sign(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, torch.where(x >= 0, 1.0, -1.0))


def _binarize(name: str, inputs: tuple[Any, ...], window: float | None, **options: Any) -> Case:
    def inner(x: Tensor) -> Tensor:
        return torch.ones_like(x) if window is None else (x.abs() <= window).to(x.dtype)

    return Case(
        name=name,
        covers=("quantizers.binarize",),
        operator=lambda x, s: quantizers.binarize(x, s, window=window),
        inputs=inputs,
        surrogate=lambda x, s: _sign(x.detach()) * s + inner(x) * (x - x.detach()),
        value=in_compute_dtype(lambda x, s: _sign(x) * s),
        smooth_forwards={
            _binarize_file.Binarize: lambda x, s, *_: _sign(x) * s + inner(x) * x,
        },
        **options,
    )


def _ternary_parts(x: Tensor, t: Any, window: Any) -> tuple[Tensor, ...]:
    above, below = (x > t).to(x.dtype), (x < -t).to(x.dtype)
    inner = torch.ones_like(x) if window is None else (x.abs() <= window).to(x.dtype)
    return above, below, inner


def _ternarize(name: str, inputs: tuple[Any, ...], window: float | None, scale_gradient: bool, **options: Any) -> Case:
    def operator(x: Tensor, t: Any, p: Any, n: Any) -> Tensor:
        return quantizers.ternarize(x, t, p, n, window=window, scale_gradient=scale_gradient)

    def surrogate(x: Tensor, t: Any, p: Any, n: Any) -> Tensor:
        above, below, inner = _ternary_parts(x.detach(), t, window)
        n = p if n is None else n
        move = inner * (x - x.detach())
        if not scale_gradient:
            return p * above - n * below + move
        return p * above * (1 + move) - n * below * (1 - move) + (1 - above - below) * move

    def value(x: Tensor, t: Any, p: Any, n: Any) -> Tensor:
        above, below, _ = _ternary_parts(x, t, window)
        y = p * above - (p if n is None else n) * below
        return torch.where(x.isnan(), x, y + 0.0)

    def smooth(x: Tensor, t: Any, p: Any, n: Any, *_: Any) -> Tensor:
        above, below, inner = _ternary_parts(x, t, window)
        n = p if n is None else n
        if not scale_gradient:
            return p * above - n * below + inner * x
        return inner * x * (p * above + n * below + 1 - above - below)

    def smooth_code(x: Tensor, t: Any, w: Any, positive: float, negative: float, _: bool) -> Tensor:
        above, below, inner = _ternary_parts(x, t, window)
        if not scale_gradient:
            return above * positive - below * negative
        return inner * x * (positive * above + negative * below)

    return Case(
        name=name,
        covers=("quantizers.ternarize",),
        operator=operator,
        inputs=inputs,
        surrogate=surrogate,
        value=in_compute_dtype(value),
        smooth_forwards={
            _ternarize_file.Ternarize: smooth,
            _ternarize_file.TernaryCode: smooth_code,
        },
        **options,
    )


def _levels(v: Tensor, c: Tensor) -> Tensor:
    """The nearest numbers of a codebook, the lower of two, with their derivative."""
    if c.numel() == 0:
        raise ValueError("no level")
    size = c.sort().values
    k = ((size[1:] + size[:-1]) / 2 < v.unsqueeze(-1)).sum(-1)
    return torch.where(v.isnan(), v.detach(), size[k])


def _codebook(name: str, inputs: tuple[Any, ...], inside: str, **options: Any) -> Case:
    def parts(x: Tensor, s: Any, c: Tensor) -> tuple[Tensor, Tensor]:
        v = constant(x) if s is None else constant(x) / constant(s)
        inner = torch.ones_like(v) if inside == "all" else ((v >= c.min()) & (v <= c.max())).to(v.dtype)
        return _levels(v, c), inner

    def times(q: Tensor, s: Any) -> Tensor:
        return q if s is None else q * s

    def surrogate(x: Tensor, s: Any, c: Tensor) -> Tensor:
        level, inner = parts(x, s, c)
        v = x if s is None else x / s
        return times(level + inner * (v - v.detach()), s)

    def smooth(x: Tensor, s: Any, c: Tensor, _: str) -> Tensor:
        level, inner = parts(x, s, c)
        return times(level, s) + inner * x

    return Case(
        name=name,
        covers=("quantizers.codebook_quantize",),
        operator=lambda x, s, c: quantizers.codebook_quantize(x, c, s, inside=inside),
        inputs=inputs,
        surrogate=surrogate,
        value=in_compute_dtype(lambda x, s, c: times(_levels(x if s is None else x / s, c), s)),
        smooth_forwards={
            _codebook_file.CodebookQuantize: smooth,
            _codebook_file.CodebookResidual: lambda x, s, c, _: parts(x, s, c)[0],
        },
        elementwise=False,
        **options,
    )


ROWS = ((0.8, -0.3, 0.4), (-1.1, 0.6, -0.2), (1.7, -1.3, 0.6), (-0.4, 1.2, 0.1), (0.1, 0.2, -0.9))


def _vectors(x: Tensor) -> Tensor:
    """Vectors of three numbers, made of one number each by sums: torch cannot compile a product in `jacfwd` of `jacfwd`."""
    return torch.stack((x, 0.5 - x, -x), -1)


def _nearest_rows(vectors: Tensor) -> Tensor:
    rows = torch.tensor(ROWS, dtype=vectors.dtype, device=vectors.device)
    size = vectors.abs().amax(-1, keepdim=True).clamp(min=1)  # divisor of distances, so that they are finite
    k = ((rows * rows).sum(-1) / size - 2 * ((vectors / size) @ rows.mT)).argmin(-1)
    k = torch.where(vectors.isfinite().all(-1), k, 0)
    return torch.where(vectors.isnan().any(-1, keepdim=True), torch.nan, rows[k])


def _given_rows(vectors: Tensor) -> Tensor:
    rows = torch.tensor(ROWS, dtype=vectors.dtype, device=vectors.device)
    return torch.where(vectors.isnan().any(-1, keepdim=True), torch.nan, rows[3].expand(vectors.shape))


def _vector_of_given_index(x: Tensor) -> Any:
    rows = torch.tensor(ROWS, dtype=torch.float64, device=x.device)
    return quantizers.vector_quantize(_vectors(x), rows, indices=torch.full(x.shape, 3, device=x.device))


def _vector(gradient: str, *, given: bool = False, **options: Any) -> Case:
    through, rows_of = gradient == "identity", _given_rows if given else _nearest_rows

    def operator(x: Tensor) -> Any:
        rows = torch.tensor(ROWS, dtype=torch.float64, device=x.device)
        return quantizers.vector_quantize(_vectors(x), rows, gradient=gradient)

    return Case(
        name=f"quantizers.vector_quantize, {'given' if given else gradient}",
        covers=("quantizers.vector_quantize",),
        operator=_vector_of_given_index if given else operator,
        inputs=(X,),
        surrogate=(lambda x: straight_through(rows_of(_vectors(x.detach())), _vectors(x))) if through else None,
        value=lambda x: rows_of(_vectors(x).to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype),
        smooth_forwards={_vector_file.VectorQuantize: lambda x, c, *_: (x.clone(), torch.zeros(x.shape[:-1], dtype=torch.int64))}
        if through
        else None,
        max_saved_bytes=0 if through else None,
        elementwise=False,
        **options,
    )


def _power(x: Tensor) -> Tensor:
    """The power of two by the logarithm in float64, which is never a tie."""
    k = torch.round(torch.log2(x.double().abs())).clamp(max=1)
    y = torch.copysign(torch.exp2(k), x.double())
    return torch.where((x == 0) | x.isnan(), x.double(), y).to(x.dtype)


def _power_slope(x: Tensor) -> Tensor:
    k = torch.round(torch.log2(x.double().abs()))
    return torch.where(k > 1, 0, _power(x) / x).detach()


def _few_levels() -> Iterator[Case]:
    yield _binarize("quantizers.binarize", (X, SCALE), 1.0)
    yield _binarize("quantizers.binarize everywhere", (X, 1.5), None)
    yield _ternarize("quantizers.ternarize", (X, 0.5, SCALE, NEGATIVE), 1.7, True)
    yield _ternarize("quantizers.ternarize everywhere", (X, 0.5, 1.5, None), None, False)
    yield _ternarize("quantizers.ternarize with one scale", (X, 0.5, SCALE, None), None, True, exhaustive=True)
    yield _ternarize("quantizers.ternarize with plain gradients", (X, 0.5, SCALE, NEGATIVE), 1.7, False, exhaustive=True)
    yield Case(
        name="quantizers.codebook_quantize, nf4",
        covers=("quantizers.codebook_quantize",),
        operator=lambda x: quantizers.codebook_quantize(x, quantizers.levels("nf4").to(x.device)),
        inputs=(X,),
        surrogate=lambda x: straight_through(_levels(x.detach(), quantizers.levels("nf4").to(x)), x),
        value=in_compute_dtype(lambda x: _levels(x, quantizers.levels("nf4").to(x))),
        smooth_forwards={_codebook_file.CodebookQuantize: lambda x, *_: x.clone()},
        elementwise=False,
        exhaustive=True,
    )
    yield _codebook("quantizers.codebook_quantize", (X, SCALE, CODEBOOK), "exact")
    yield _codebook("quantizers.codebook_quantize without a scale", (X, None, CODEBOOK), "all", exhaustive=True)
    yield _vector("identity")
    yield _vector("rotation", long=True)
    yield _vector("identity", given=True, long=True)
    yield Case(
        name="quantizers.power_of_two",
        covers=("quantizers.power_of_two",),
        operator=lambda x: quantizers.power_of_two(x, max_exponent=1),
        inputs=(X,),
        surrogate=lambda x: straight_through(_power(x.detach()), x * _power_slope(x)),
        value=_power,
        smooth_forwards={
            _power_file.PowerOfTwo: lambda x, *_: 0.7 * x,
            _power_file.PowerOfTwoSlope: lambda x, *_: torch.full_like(x, 0.7),
        },
    )
    yield Case(
        name="quantizers.power_of_two, identity",
        covers=("quantizers.power_of_two",),
        operator=lambda x: quantizers.power_of_two(x, max_exponent=1, gradient="identity"),
        inputs=(X,),
        surrogate=lambda x: straight_through(_power(x.detach()), x),
        value=_power,
        smooth_forwards={_power_file.PowerOfTwo: lambda x, *_: x.clone()},
    )


# --- Presets -------------------------------------------------------------------------------------------------------------

THRESHOLD = torch.tensor([[0.4], [1.3], [0.7], [-0.6]], dtype=torch.float64)


def _backward_scaled(s: Tensor, factor: float) -> Tensor:
    return straight_through(s, factor * s)


def _lsq(x: Tensor, s: Tensor, b: Tensor) -> Tensor:
    factor = 1 / math.sqrt(x.numel() * HIGH)
    s, b = _backward_scaled(s, factor), _backward_scaled(b, factor)
    v = (x - b) / s
    inner = (v >= LOW) & (v <= HIGH)
    return torch.where(inner, rounded_through(v), torch.clamp(v, LOW, HIGH).detach()) * s + b


def _tqt(x: Tensor, t: Tensor) -> Tensor:
    s = torch.exp2(straight_through(torch.ceil(t), t)) / 8
    r = rounded_through(x / s)
    return torch.where((r >= -8) & (r <= 7), r, torch.clamp(r, -8, 7).detach()) * s


def _elastic(x: Tensor, s: Tensor) -> Tensor:
    s = _backward_scaled(s, 1 / math.sqrt(x.numel()))
    v = x / s
    q = (torch.round(torch.clamp(v, -0.99, 0.99) * 2 - 0.5) + 0.5) / 2
    return torch.where(v.abs() <= 0.99, straight_through(q.detach(), v), q.detach()) * s


def _elastic_smooth(x: Tensor, s: Tensor, levels: int) -> Tensor:
    v = x / s
    return torch.where(v.abs() <= 0.99, x + 0 * s, 0.75 * torch.sign(v.detach()) * s)


def _elastic_residual(x: Tensor, s: Tensor, levels: int) -> Tensor:
    v = x / s
    return torch.where(v.abs() <= 0.99, 0 * v, 0.75 * torch.sign(v.detach()))


def _k_bit(x: Tensor, bits: int) -> Tensor:
    levels = 2.0**bits - 1
    return straight_through(torch.round(x.detach() * levels) / levels, x)


def _dorefa_weight(w: Tensor) -> Tensor:
    t = torch.tanh(w)
    return 2 * _k_bit(t / (2 * t.abs().amax()) + 0.5, 3) - 1


def _dorefa_gradient(g: Tensor, x: Tensor) -> Tensor:
    m = g.abs().amax()
    z = torch.clamp(g / (2 * torch.where(m == 0, 1, m)) + 0.5 + (0.5 - 0.5) / 7, 0, 1)
    return 2 * m * (rounded_through(7 * z) / 7 - 0.5)


def _twn(w: Tensor) -> Tensor:
    size = w.detach().abs()
    t = 0.7 * size.mean(-1, keepdim=True)
    scale = (size * (size > t)).sum(-1, keepdim=True) / (size > t).sum(-1, keepdim=True)
    return straight_through(torch.where(size > t, torch.sign(w.detach()) * scale, 0), w)


def _xnor(w: Tensor) -> Tensor:
    sign = torch.where(w.detach() >= 0, 1.0, -1.0)
    return w.abs().mean(-1, keepdim=True) * (sign + (w.abs() <= 1) * (w - w.detach()))


def _fsq(x: Tensor) -> Tensor:
    """The value of `fsq` for one channel with four levels."""
    reach = 3 * 1.001 / 2
    return rounded_through(torch.tanh(x + math.atanh(0.5 / reach)) * reach - 0.5) / 2


def _bsq(x: Tensor) -> Tensor:
    u = x / (x * x).sum(-1, keepdim=True).sqrt()
    return straight_through(torch.where(u > 0, 1.0, -1.0).to(u) / math.sqrt(3), u)


def _preset(name: str, operator: Any, inputs: tuple[Any, ...], surrogate: Any, **options: Any) -> Case:
    """The case of a composition; the short checks are those of its parts."""
    return Case(
        name=f"quantizers.{name}",
        covers=(f"quantizers.{name.partition(' ')[0]}",),
        operator=operator,
        inputs=inputs,
        surrogate=surrogate,
        long=options.pop("long", True),
        elementwise=False,
        **{"max_saved_bytes": None, **options},
    )


def _presets() -> Iterator[Case]:
    offset = numbers(4, 3, scale=0.3, seed=9)
    yield _preset("lsq", lambda x, s, b: quantizers.lsq(x, s, LOW, HIGH, offset=b), (X, SCALE, offset), _lsq)
    yield _preset(
        "pact",
        lambda x, a: quantizers.pact(x, a, 3),
        (X, 2 * SCALE),
        lambda x, a: straight_through(
            torch.round(torch.clamp(x, torch.zeros_like(a), a).detach() / a.detach() * 7) * a.detach() / 7,
            torch.clamp(x, torch.zeros_like(a), a),
        ),
    )
    yield _preset("tqt", lambda x, t: quantizers.tqt(x, t, 4), (X, THRESHOLD), _tqt)
    yield _preset(
        "stretched_elastic",
        quantizers.stretched_elastic,
        (X, 2 * SCALE),
        _elastic,
        long=False,
        max_saved_bytes=0,
        smooth_forwards={
            _elastic_file.StretchedElastic: _elastic_smooth,
            _elastic_file.StretchedElasticResidual: _elastic_residual,
            Scale: lambda x, forward, backward: x * backward,
        },
    )
    yield _preset("dorefa_weight", lambda w: quantizers.dorefa_weight(w, 3), (X,), _dorefa_weight, of="rows")
    yield _preset(
        "dorefa_activation",
        lambda x: quantizers.dorefa_activation(x, 3),
        (X,),
        lambda x: _k_bit(torch.clamp(x, 0, 1), 3),
    )
    yield _preset(
        "dorefa_gradient",
        lambda x: quantizers.dorefa_gradient(x, 3, noise=x.new_full(x.shape, 0.5, dtype=torch.float32)),
        (X,),
        by_cotangent_map(_dorefa_gradient),
        linear=False,
        long=False,
        smooth_forwards={Round: lambda x: x.clone()},
    )
    yield _preset("twn", lambda w: quantizers.twn(w, -1), (X,), _twn, of="rows")
    yield _preset("xnor", lambda w: quantizers.xnor(w, -1), (X,), _xnor, of="rows")
    yield _preset("fsq", lambda x: quantizers.fsq(x.unsqueeze(-1), (4,)).squeeze(-1), (X,), _fsq)
    yield _preset("bsq", quantizers.bsq, (X,), _bsq, of="rows")


CASES = [*_fakes(), *_floats(), *_few_levels(), *_presets()]
