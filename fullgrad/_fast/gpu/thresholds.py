"""Projections onto the simplex and its slices: the threshold of each row by Newton's method in a bracket, in registers.

One kernel is the value and, with the threshold found again, the derivative, so that only x is saved. All derivatives are
symmetric: with weights w, ``w (t - <w, t> / sum w)``; normmax's is ``(I - p 1') B (I - 1 p')`` with a diagonal B.
"""

import torch
import triton
import triton.language as tl

from fullgrad._fast.gpu import rows as lib

# --- With an exponent ---------------------------------------------------------------------------------------------------


@triton.jit
def entmax(x, theta, a):
    """The weights p of entmax, which sum to 1, minus the slope of the sum, which is p^(1 - a), and p."""
    z = x - theta
    base = tl.maximum(a * z, -1.0)
    p = tl.where(base > -1, tl.exp(tl.where(a == 0, z, lib.log1p(base) / tl.where(a == 0, 1.0, a))), 0.0)
    return p, p / tl.maximum(base + 1, 1.2e-38), p


@triton.jit
def normmax(x, theta, a):
    """q^(1 + a) for q of normmax, which sum to 1, minus the slope of the sum, and q."""
    t = tl.maximum(x - theta, 0.0)
    q = tl.where(t > 0, tl.exp2(tl.log2(tl.where(t > 0, t, 1.0)) / a), 0.0)
    return q * t, q * (1 / a + 1), q


@triton.jit
def exponent_threshold(x, a, n, FAMILY: tl.constexpr):
    """The threshold at which the norm of a sum is 1, of rows whose largest element is 0; the bracket is halved where it shrinks
    too slowly."""
    zero = tl.zeros_like(lib.row_max(x)) + a * 0
    log_n = tl.log(zero + n)
    if FAMILY == entmax:
        e, low = a + zero, zero
        high = tl.where(e == 0, log_n, -lib.expm1(-e * log_n) / tl.where(e == 0, 1.0, e))
    else:
        e, low = a / (1 + a) + zero, zero - 1
        high = -tl.exp(-e * log_n)
    eps = 2.0**-51 if x.dtype == tl.float64 else 2.0**-22
    theta, moves, steps = low, tl.full((), True, tl.int1), 0
    while moves & (steps < 100):
        p, w, _ = FAMILY(x, theta, a)
        total, width = lib.row_sum(p), high - low
        low, high = tl.where(total > 1, theta, low), tl.where(total > 1, high, tl.minimum(theta, high))
        log_total = tl.log(total)
        step = total * tl.where(e == 0, log_total, -lib.expm1(-e * log_total) / tl.where(e == 0, 1.0, e)) / lib.row_sum(w)
        following = theta + step
        inside = (following >= low) & (following <= high)
        slow = (high - low > width / 2) & (steps > 8) & (steps % 2 == 1)
        following = tl.where(inside & (slow == 0), following, (low + high) / 2)
        off = tl.abs(total - 1) > 2 * eps  # below this, steps are of what the sum has rounded
        unfinished = (tl.abs(step) > eps * tl.maximum(tl.abs(theta), eps)) & off & (high > low)
        theta, moves, steps = tl.where(unfinished, following, theta), lib.any_of(unfinished), steps + 1
    return theta


@triton.jit
def sharpened(p, z, a):
    """Weights of entmax whose sum is 1: for a > 1 they rise steeply at their edge, where the last digits of the threshold are
    large ones of a weight. What is missing goes to them by their slopes."""
    base, near = a * z + 1, 2.0**-49 if p.dtype == tl.float64 else 2.0**-20
    slope = tl.where(base > -near, tl.exp2(tl.log2(tl.maximum(base, near)) * (1 / tl.where(a > 1, a, 1.0) - 1)), 0.0)
    share = slope / lib.row_sum(slope)
    for _ in tl.static_range(2):
        p = tl.where(a > 1, tl.maximum(p + share * (1 - lib.row_sum(p)), 0.0), p)
    return p


@triton.jit
def power(p, e):
    """p^e on the support, 0 outside of it."""
    return tl.where(p > 0, tl.exp2(e * tl.log2(tl.where(p > 0, p, 1.0))), 0.0)


@triton.jit
def by_exponent_of_entmax(p, w, a):
    """The derivative of p with respect to a: c - w sum c / sum w, c = p (log p)^2 f(a log p), f(y) = (1 - exp(-y) - y) / y^2."""
    log_p = tl.log(tl.where(p > 0, p, 1.0))
    s = -a * log_p
    series = tl.zeros_like(s) + 1
    for j in tl.static_range(19, 2, -1):
        series = series * s / j + 1
    f = tl.where(s < 1, -series / 2, (1 - tl.exp(s) + s) / tl.where(s < 1, 1.0, s * s))
    c = p * log_p * log_p * f
    return c - w * (lib.row_sum(c) / lib.row_sum(w))


@triton.jit
def by_exponent_of_normmax(q, a):
    """The derivative of p = q / sum q with respect to a."""
    log_q = tl.log(tl.where(q > 0, q, 1.0))
    total = lib.row_sum(q)
    theta = -lib.row_sum(power(q, 1 + a) * log_q) / ((1 + a) * total)
    d = -(q * log_q + power(q, 1 - a) * theta) / a
    return (d - q / total * lib.row_sum(d)) / total


# --- The capped simplex -------------------------------------------------------------------------------------------------


@triton.jit
def between(x, ok, count, n, INT: tl.constexpr):
    """The middle between the k-th largest element and the next for a whole k, else the one that is chosen in part: by bisection
    of the bits, exactly; half of the gap between them, or 0; and whether a whole k chooses all elements above minus infinity."""
    BITS: tl.constexpr = 32 if INT == tl.int32 else 64
    key = lib.ordered(x.to(INT, bitcast=True), INT)
    is_whole = count == tl.floor(count)
    whole = tl.minimum(tl.floor(count), n).to(tl.int32)
    m = tl.where(is_whole, tl.maximum(whole, 1), tl.minimum(whole + 1, n))
    found = tl.where(lib.row_sum(tl.where(ok & (key >= 0), 1, 0)) >= m, 0, -1 << (BITS - 1)).to(INT)
    for b in range(BITS - 1):
        trial = found | (tl.full((), 1, INT) << (BITS - 2 - b))
        found = tl.where(lib.row_sum(tl.where(ok & (key >= trial), 1, 0)) >= m, trial, found)
    first = lib.ordered(found, INT).to(x.dtype, bitcast=True)
    second = lib.row_max(tl.where(ok & (key < found), x, -float("inf")))
    second = tl.where(lib.row_sum(tl.where(ok & (key >= found), 1, 0)) > m, first, second)
    last = (second == -float("inf")) | (m >= n)
    second = tl.where(last | (is_whole == 0), first, second)
    return first / 2 + second / 2, first / 2 - second / 2, last & is_whole


@triton.jit
def tails(z, ok, half, MODE: tl.constexpr):
    """The sums of the steps of the negative elements less what those of the positive ones lack to 1, of both, and of the slopes,
    for curves with tails times e to the power of half a gap: no number is near 1, where it would lose digits."""
    if MODE == "smooth":
        t = 1 / (tl.exp(tl.abs(z) - half) + tl.exp(-half))
        w = t * (1 - t * tl.exp(-half))
    elif MODE == "laplace":
        t = tl.exp(half - tl.abs(z)) / 2
        w = t
    else:
        t, w = lib.curve(-tl.abs(z), MODE)
    t, w = tl.where(ok, t, 0.0), tl.where(ok, w, 0.0)
    return lib.row_sum(tl.where(z > 0, -t, tl.where(z < 0, t, 0.0))), lib.row_sum(t), lib.row_sum(w)


@triton.jit
def capped_threshold(x, ok, count, half, every, n, MODE: tl.constexpr):
    """The threshold at which steps sum to the count, of rows less their pivot: on a ratio for curves with tails."""
    STRAIGHT: tl.constexpr = MODE == "smooth" or MODE == "laplace"
    double: tl.constexpr = x.dtype == tl.float64
    reach = 800.0 if STRAIGHT else 10.0
    beyond = (800.0 if double else 112.0) if STRAIGHT else 10.0
    eps = 2.0**-52 if double else 2.0**-23
    known = (count <= 0) | every
    theta = tl.where(known, tl.where(count <= 0, beyond, -beyond), 0.0).to(x.dtype)
    half = tl.where(half < 0.01 / eps, half, 0.0)
    low, high, moves, steps = theta - reach, theta + reach, tl.full((), True, tl.int1), 0
    while moves & (steps < 100):
        z = x - theta
        difference, total, slope = tails(z, ok, half, MODE)
        signs = lib.row_sum(tl.where(ok & (z > 0), 1, 0) - tl.where(ok & (z < 0), 1, 0))
        more = ((signs + n).to(tl.float64) / 2 - count).to(x.dtype)
        if STRAIGHT:
            more = tl.where(more == 0, 0.0, more * tl.exp(half))
        off = difference + more
        low, high = tl.where(off > 0, theta, low), tl.where(off < 0, theta, high)
        step = off / slope
        if STRAIGHT:
            below, above = (total + difference) / 2, (total - difference) / 2
            a, b = below + tl.maximum(more, 0.0), above - tl.minimum(more, 0.0)
            step = tl.log(a / b) * total / (slope * (below / a + above / b))
        following = theta + step
        inside = (following > low) & (following < high) & ((steps < 9) | (steps % 2 == 0))
        unit = 2 * eps * tl.maximum(tl.maximum(tl.abs(theta), half), 1.0)
        wrong = (tl.abs(off) > tl.maximum(4 * eps * total, unit * slope)) & (high - low > unit) & (known == 0)
        theta = tl.where(wrong, tl.where(inside, following, (low + high) / 2), theta)
        moves, steps = lib.any_of(wrong), steps + 1
    return theta


# --- The kernel ---------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["rows"])
def project_kernel(
    x, v, numbers, out, of_rows, step, number: "fp64", scale: "fp64", rows, n,
    WHAT: tl.constexpr, FAMILY: tl.constexpr, MODE: tl.constexpr, OWN: tl.constexpr, INT: tl.constexpr, ACC: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The value; its derivative times v ("along"), or that and, of each row, the derivative with respect to its number times v
    ("both"); the excess of a power, the centered row of the capped simplex ("excess"), or its pivot ("pivot").

    Each row has a number, an exponent less 1 or a count: the sum of one for all and, if it is ``OWN``, one in memory. ``scale``
    is 1 over the softness.
    """
    r, k, ok = lib.places(rows, n, R, N)
    inf, at = float("inf"), r * n + k
    x = tl.load(x + at, mask=ok, other=-inf).to(ACC)
    a = lib.as_number(number, ACC) + (tl.load(numbers + r * step).to(ACC) if OWN else tl.zeros_like(r).to(ACC))
    s = lib.as_number(scale, ACC)
    g = tl.load(v + at, mask=ok, other=0.0).to(ACC) if WHAT == "along" or WHAT == "both" else tl.zeros_like(x)
    top = lib.row_max(x)
    answer = tl.where(lib.has_nan(x) | (tl.abs(top) == inf), float("nan"), 0.0).to(ACC)
    if FAMILY == "simplex":
        x = (x - top) * s
        t = x - lib.simplex_threshold(x, top, MODE)
        p, w = lib.link(t, MODE)
        if WHAT == "excess":
            p = lib.positive(t)
    elif FAMILY == "entmax":
        x = x - top
        theta = exponent_threshold(x, a, n, entmax)
        p = sharpened(entmax(x, theta, a)[0], x - theta, a)
        w = power(p, 1 - a)
        of_number = by_exponent_of_entmax(p, w, a) if WHAT == "both" else w
    elif FAMILY == "normmax":
        x = x - top
        theta = exponent_threshold(x, a, n, normmax)
        q = normmax(x, theta, a)[2]
        total = lib.row_sum(q)
        p, w = q / total, power(q, 1 - a) / (a * total)
        of_number = by_exponent_of_normmax(q, a) if WHAT == "both" else w
    else:
        count = lib.as_number(number, tl.float64) + (tl.load(numbers + r * step).to(tl.float64) if OWN else r.to(tl.float64) * 0)
        if FAMILY == "topk":  # plus infinity is chosen, the finite elements share the rest
            certain = x == inf
            x = tl.where(certain, -inf, x)
            finite = lib.row_sum(tl.where(ok & (x != -inf), 1.0, 0.0).to(ACC))
            count = tl.minimum(lib.positive(count - lib.row_sum(tl.where(certain, 1.0, 0.0).to(ACC))), finite)
            answer = tl.where(lib.has_nan(x), float("nan"), 0.0).to(ACC)
            x = tl.where(finite == 0, tl.where(ok, 0.0, -inf), x)
        else:
            possible = lib.row_sum(tl.where(ok & (x > -inf), 1.0, 0.0).to(ACC)) >= count
            answer = tl.where(lib.has_nan(x) | (top == inf) | (possible == 0), float("nan"), 0.0).to(ACC)
        pivot, half, every = between(x, ok, count, n, INT)
        z = (x - tl.where(tl.abs(pivot) == inf, 0.0, pivot)) * s
        z = z - capped_threshold(z, ok, count, half * s, every, n, MODE)
        p, w = lib.curve(z, MODE)
        if WHAT == "excess":
            p = z
        factor = 1.0
        if MODE == "smooth" or MODE == "laplace":  # slopes over a factor of the row, as they underflow in a gap
            d = tl.abs(z)
            nearest = lib.row_max(tl.where(ok, -d, -inf))
            w, factor = tl.exp(-nearest - d), tl.exp(nearest)
            w = w / 2 if MODE == "laplace" else w / ((1 + tl.exp(-d)) * (1 + tl.exp(-d)))
        w = tl.where(ok & (tl.abs(z) < inf), w, 0.0)
        w = tl.where(lib.row_sum(w) < (2.3e-308 if ACC == tl.float64 else 1.2e-38), 0.0, w)  # no slopes, no derivatives
        total = lib.row_sum(w)
        total = tl.where(total == 0, 1.0, total)
        of_number = w / total
    exists = lib.row_max(ok.to(tl.int32)) > 0
    if WHAT == "value" or WHAT == "excess":
        tl.store(out + at, p + answer, mask=ok)
    elif WHAT == "pivot":
        tl.store(of_rows + r, pivot + answer, mask=exists)
    else:
        if FAMILY == "normmax":
            e = w * (g - lib.row_sum(p * g))
            y = e - p * lib.row_sum(e)
        else:
            y = w * (g - lib.row_sum(w * g) / (total if FAMILY == "capped" or FAMILY == "topk" else lib.row_sum(w)))
            if FAMILY == "capped" or FAMILY == "topk":
                y = y * factor
        tl.store(out + at, y * s + answer, mask=ok)
        if WHAT == "both":
            tl.store(of_rows + r, lib.row_sum(of_number * g) + answer, mask=exists)


@triton.jit(do_not_specialize=["count", "rows"])
def mask_kernel(indices, out, count, rows, n, R: tl.constexpr, N: tl.constexpr):
    """Ones at ``count`` places of each row, and zeros elsewhere."""
    r, k, ok = lib.places(rows, n, R, N)
    tl.store(out + r * n + k, 0.0, mask=ok)
    tl.debug_barrier()  # zeros come before ones
    chosen = ok & (k < count)
    tl.store(out + r * n + tl.load(indices + r * count + k, mask=chosen, other=0), 1.0, mask=chosen)


def run(x, what, a, family="", mode="c0", softness=1.0, v=None, more=0.0):
    """A projection of rows along the last dimension, or what `project_kernel` says, with the number ``a`` of all rows or a tensor
    (…, 1) that broadcasts with them, to which ``more`` is added; or a "mask" with ones at the places ``a``."""
    n = x.shape[-1]
    if what == "mask":
        out = x.new_empty(x.shape)
        lib.launch(mask_kernel, x.numel() // n, n, a.contiguous(), out, a.shape[-1])
        return out
    own = isinstance(a, torch.Tensor)
    shape = torch.broadcast_shapes(x.shape, (*a.shape[:-1], 1)) if own else x.shape
    x = x.expand(shape).contiguous()
    v = x if v is None else v.expand(shape).contiguous()
    numbers, step = (x if not own else a, 0) if not own or a.numel() == 1 else (a.expand(*shape[:-1], 1).contiguous(), 1)
    out, of_rows = torch.empty_like(x), x.new_empty((*shape[:-1], 1))
    integer = tl.int64 if x.dtype == torch.float64 else tl.int32
    options = {"WHAT": what, "FAMILY": family, "MODE": mode, "OWN": own, "INT": integer, "ACC": lib.accumulator(x)}
    number = more if own else a + more
    lib.launch(project_kernel, x.numel() // n, n, x, v, numbers, out, of_rows, step, number, 1 / max(softness, 1e-30), **options)
    return of_rows if what == "pivot" else (out, of_rows) if what == "both" else out
