"""Shared by all kernels: the launch, the rows of a program, sums and largest elements, links and curves."""

import torch
import triton
import triton.language as tl

# Numbers of a warp, four for each thread: rows this short share a warp, which needs no barrier.
_TILE = 128
_INTERPRETED = triton.knobs.runtime.interpret


def launch(kernel, rows: int, n: int, *args, shares: int = 1, **constants) -> None:
    """Run a kernel on R rows of N >= n columns for each program, or each ``shares`` of them: by a rule, without autotuning."""
    columns = triton.next_power_of_2(n)
    count, warps = max(1, _TILE // columns), min(8, max(1, columns // _TILE))
    if _INTERPRETED:  # where a program costs most
        count = min(16 if columns < 64 else 32, triton.next_power_of_2(rows))
    constants = {"R": count, "N": columns, "num_warps": warps, "enable_fp_fusion": True} | constants
    kernel[triton.cdiv(rows, constants["R"]), shares](*args, rows, n, **constants)


def accumulator(x: torch.Tensor):
    """The dtype of the arithmetic: float32 at least."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


@triton.jit
def places(rows, n, R: tl.constexpr, N: tl.constexpr):
    """The rows (R, 1) of this program, its columns (1, N), and which numbers exist. Rows past the end repeat the last one."""
    r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    k = tl.arange(0, N)[None, :]
    return tl.minimum(r, rows - 1), k, (r < rows) & (k < n)


@triton.jit
def as_number(value, ACC: tl.constexpr):
    """A number that was passed in double precision."""
    return (tl.full((), 0, tl.float64) + value).to(ACC)


@triton.jit
def row_sum(x):
    return tl.sum(x, 1, keep_dims=True)


@triton.jit
def row_max(x):
    return tl.max(x, 1, keep_dims=True)


@triton.jit
def any_of(mask):
    return tl.max(tl.max(mask.to(tl.int32), 1), 0) > 0


@triton.jit
def has_nan(x):
    """Whether each row has a NaN: the largest element does not tell."""
    return row_max(tl.where(x != x, 1, 0)) > 0


@triton.jit
def positive(t):
    """t, or 0 where it is negative; NaN stays NaN."""
    return tl.where(t < 0, 0.0, t)


@triton.jit
def ordered(x, INT: tl.constexpr):
    """Integers in the order of floating numbers, and back: the map is its own inverse."""
    return tl.where(x < 0, x ^ (0x7FFFFFFF if INT == tl.int32 else 0x7FFFFFFFFFFFFFFF), x)


@triton.jit
def log1p(y):
    """log(1 + y), by the series of the inverse hyperbolic tangent where the sum would round."""
    s = y / (2 + y)
    q = s * s
    p = 1 / 19 * q + 1 / 17
    for c in tl.static_range(15, 0, -2):
        p = p * q + 1 / c
    return tl.where(tl.abs(y) < 0.4, 2 * s * p, tl.log(1 + y))


@triton.jit
def expm1(y):
    p = y / 14 + 1
    for c in tl.static_range(13, 1, -1):
        p = p * y / c + 1
    return tl.where(tl.abs(y) < 0.5, y * p, tl.exp(y) - 1)


@triton.jit
def link(t, MODE: tl.constexpr):
    """The weight of a score less its threshold, and the slope of the weight."""
    if MODE == "smooth":
        p = tl.exp(t)
        return p, p
    t = positive(t)
    if MODE == "c0":
        return t, tl.where(t > 0, 1.0, t)
    if MODE == "c1":
        return t * t, 2 * t
    return t * t * t, 3 * t * t


@triton.jit
def norm_step(total, slope, MODE: tl.constexpr):
    """Newton's step for the norm of the excesses, (sum t^m)^(1/m) = 1; ``slope`` is the sum of m t^(m - 1)."""
    if MODE == "c0":
        return (total - 1) / slope
    if MODE == "c1":
        return (total - tl.sqrt(total)) / slope * 2
    return (total - tl.exp2(tl.log2(total) * (2 / 3))) / slope * 3


@triton.jit
def simplex_threshold(x, low, MODE: tl.constexpr):
    """The threshold of rows whose largest element is 0, from below, where Newton's method for the norm never overshoots."""
    theta, moves, steps = tl.zeros_like(low) - 1, tl.full((), True, tl.int1), 0
    while moves & (steps < 100):
        p, w = link(x - theta, MODE)
        following = theta + norm_step(row_sum(p), row_sum(w), MODE)
        moves, steps = any_of(following > theta), steps + 1
        theta = tl.where(following > theta, following, theta)
    return theta


@triton.jit
def curve(d, MODE: tl.constexpr):
    """The sigmoid S and its slope, for softness 1."""
    if MODE == "smooth" or MODE == "laplace":
        e = tl.exp(-tl.abs(d))
        if MODE == "laplace":
            return tl.where(d < 0, e / 2, 1 - e / 2), e / 2
        r = 1 / (1 + e)
        return tl.where(d >= 0, r, e * r), e * r * r
    t = tl.minimum(positive(d / 10 + 0.5), 1.0)
    v = t * (1 - t)
    if MODE == "c0":  # on a join, the mean of both sides
        a = tl.abs(d)
        return t, tl.where(a < 5, 1.0, tl.where(a == 5, 0.5, 0.0)).to(d.dtype) / 10
    if MODE == "c1":
        return t * t * (3 - 2 * t), v * 0.6
    return t * t * t * (10 - t * (15 - 6 * t)), v * v * 3


# --- Standardized rows --------------------------------------------------------------------------------------------------


@triton.jit
def statistics(x, ok, STANDARDIZE: tl.constexpr):
    """The finite elements, the ends of each row and what `compared` needs, as `fullgrad.soft.order._rows` states them."""
    inf = float("inf")
    finite = ok & (tl.abs(x) != inf)  # NaN is seen
    low, high = -row_max(tl.where(finite, -x, -inf)), row_max(tl.where(finite, x, -inf))
    nearest = tl.maximum(low, 0.0) + tl.minimum(high, 0.0)
    origin = tl.where(tl.maximum(high, -low) / 2 <= tl.abs(nearest), nearest, 0.0)
    origin = tl.where(has_nan(x), float("nan"), origin)  # makes its row NaN
    zero = tl.zeros_like(low)
    if not STANDARDIZE:
        return finite, low, high, (origin, zero + 1, zero, zero + 1, zero + 1)
    r = tl.where(finite, x - origin, 0.0)
    unit = tl.maximum(row_max(tl.abs(r)), 1.0)
    r = r / unit
    count = tl.maximum(row_sum(tl.where(finite, 1.0, 0.0).to(x.dtype)), 1.0)
    mean = row_sum(r) / count
    r = tl.where(finite, r - mean, 0.0)
    return finite, low, high, (origin, unit, mean, 1 / tl.sqrt(row_sum(r * r) / count + 1e-6 / unit / unit), count)


@triton.jit
def compared(x, stats, STANDARDIZE: tl.constexpr):
    """The numbers that are compared, the sigmoid of h less 1/2; h; and their slope."""
    origin, unit, mean, rstd, _ = stats
    if not STANDARDIZE:
        return x - origin, x, x
    h = ((x - origin) / unit - mean) * rstd
    e = tl.exp(-tl.abs(h))
    f = 1 / (1 + e)
    return tl.where(h < 0, -0.5, 0.5).to(x.dtype) * (1 - e) * f, h, e * f * f


@triton.jit
def standardized(v, finite, h, stats):
    """The product with the derivative of h, which is symmetric."""
    _, unit, _, rstd, count = stats
    v, h = tl.where(finite, v, 0.0), tl.where(finite, h, 0.0)
    v = v - row_sum(v) / count - h * (row_sum(h * v) / count)
    return tl.where(finite, v * rstd / unit, 0.0)


@triton.jit
def moved(v, finite, h, slope, stats, STANDARDIZE: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The tangent of the compared numbers from that of x, or the gradient of x from theirs."""
    if not STANDARDIZE:
        return v
    slope = tl.where(finite, slope, 0.0)
    return standardized(v * slope, finite, h, stats) if TRANSPOSED else standardized(v, finite, h, stats) * slope


@triton.jit
def summed(x, finite, low, high, stats, HARD: tl.constexpr, STANDARDIZE: tl.constexpr):
    """The values that are summed, less a constant of the row, and the constant. For the derivative of a hard value (``HARD``)
    infinities among them are replaced by the last finite element."""
    origin, unit, mean, _, _ = stats
    center = mean * unit if STANDARDIZE else mean
    values = x - origin - center
    if HARD:
        values = tl.where(finite, values, tl.where(x > 0, high, low) - origin - center)
    return values, origin + center


@triton.jit
def unit_of(low, high):
    """A power of two for rows whose products with a cotangent would overflow, else 1: derivatives are linear."""
    root = 2.0**512 if low.dtype == tl.float64 else 2.0**64
    return tl.where(tl.maximum(high, -low) > root, root, 1.0).to(low.dtype)
