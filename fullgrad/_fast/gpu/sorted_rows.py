"""Softsort in smooth mode without pairs: a row is sorted in registers, and as exp(-|a - b|) of sorted numbers is a product over
neighbors, scans from both ends give all weighted sums, in O(n log^2 n) work.

Sums of ``q (y - h)`` are kept relative to the h of the place that a scan has reached: no large numbers cancel.
"""

import triton
import triton.language as tl

from fullgrad._fast.gpu.rows import (
    as_number,
    compared,
    launch,
    moved,
    ordered,
    places,
    row_max,
    row_sum,
    statistics,
    summed,
    unit_of,
)


@triton.jit
def combine(d, q, m, h, next_d, next_q, next_m, next_h):
    """Two stretches of a row as one: decays, decayed sums of q, and of q (y - h) for the last h."""
    return d * next_d, next_q + next_d * q, next_m + next_d * (m + q * (h - next_h)), next_h


@triton.jit
def max_of(a, b):
    return tl.maximum(a, b)


@triton.jit
def before_ties(q, m, h, z, at, s):
    """Sums up to the element ``at``, which lies before all that equal the own one, as seen from there; 0 if there is none."""
    exists, at = (at >= 0) & (at < h.shape[1]), tl.minimum(tl.maximum(at, 0), h.shape[1] - 1)
    d = tl.where(exists, tl.exp(-tl.abs(z - tl.gather(z, at, 1)) * s), 0.0)
    q = tl.gather(q, at, 1)
    return d * q, d * (tl.gather(m, at, 1) + q * (tl.gather(h, at, 1) - h))


@triton.jit(do_not_specialize=["first", "count", "rows"])
def sorted_kernel(
    x, v, out, scale: "fp64", mix: "fp64", first, count, rows, n,
    WHAT: tl.constexpr, RANK: tl.constexpr, SIGN: tl.constexpr, DESCENDING: tl.constexpr, GATED: tl.constexpr,
    HARD: tl.constexpr, MIXED: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """`pairs_kernel` for softsort, smooth and standardized, in float32: the value or its derivative ("vjp")."""
    r, k, ok = places(rows, n, R, N)
    s, inf = as_number(scale, tl.float32), float("inf")
    own = tl.load(x + r * n + k, mask=ok, other=0.0).to(tl.float32) * SIGN
    own = tl.where(own == 0, 0.0, own)  # one zero: equal numbers keep their order
    key = (ordered(own.to(tl.int32, bitcast=True), tl.int32).to(tl.int64) << 32) | k
    key = tl.sort(tl.where(ok, key, 0x7FFFFFFFFFFFFFFF), 1)
    index = (key & 0x7FFFFFFF).to(tl.int32)
    own = tl.where(ok, ordered((key >> 32).to(tl.int32), tl.int32).to(tl.float32, bitcast=True), 0.0)
    finite, low, high, stats = statistics(own, ok, True)
    h, center = summed(own, finite, low, high, stats, HARD, True)
    z, standard, slope_of_z = compared(own, stats, True)
    place = k + tl.zeros_like(index)
    spot = index if RANK else (n - 1 - place if DESCENDING else place) - first
    here, at = ok & (spot >= 0) & (spot < count), r if MIXED else r * count + spot
    part = tl.where(spot == 0, 1 - as_number(mix, tl.float32), as_number(mix, tl.float32)) if MIXED else 1.0
    # An infinite value is that of all places; its row has no gradient.
    above, below = row_max(tl.where(ok & (own == inf), 1, 0)) > 0, row_max(tl.where(ok & (own == -inf), 1, 0)) > 0
    infinite = above | below
    if RANK:
        h = (place + 1).to(tl.float32)
    elif not HARD:
        h = tl.where(infinite, float("nan"), h)

    decay = tl.where(ok & (place > 0), tl.exp((tl.gather(z, tl.maximum(place - 1, 0), 1) - z) * s), 0.0)
    back = tl.where(place + 1 < n, tl.gather(decay, tl.minimum(place + 1, N - 1), 1), 0.0)
    one, zero = tl.where(ok, 1.0, 0.0), tl.zeros_like(z)
    _, left, from_left, _ = tl.associative_scan((decay, one, zero, h), 1, combine)
    _, right, from_right, _ = tl.associative_scan((back, one, zero, h), 1, combine, reverse=True)
    mass = tl.where(ok, left + right - 1, 1.0)
    off = (from_left + from_right) / mass  # of the value from the own element
    if WHAT == "value":
        y = h + off
        if not RANK:
            y = y + center
            if not HARD:
                y = tl.where(above & below, float("nan"), tl.where(above, inf, tl.where(below, -inf, y)))
        y = tl.where(stats[0] == stats[0], y, float("nan"))
        if MIXED:
            tl.store(out + r, row_sum(tl.where(here, y * part, 0.0)), mask=row_max(ok.to(tl.int32)) > 0)
        else:
            tl.store(out + at, y if RANK else y * SIGN, mask=here)
    else:
        unit = tl.zeros_like(low) + 1 if RANK else unit_of(low, high)
        q = tl.load(v + at, mask=here, other=0.0).to(tl.float32) / unit * part / mass
        _, q_left, m_left, _ = tl.associative_scan((decay, q, q * off, h), 1, combine)
        _, q_right, m_right, _ = tl.associative_scan((back, q, q * off, h), 1, combine, reverse=True)
        g_x = zero
        if GATED:
            # The slope of a distance is 0 between equal elements.
            previous = tl.gather(z, tl.maximum(place - 1, 0), 1)
            starts = tl.where((place == 0) | (z != previous), place, 0)
            following = tl.gather(z, tl.minimum(place + 1, N - 1), 1)
            ends = tl.where((place + 1 >= n) | (z != following), -place, -N)
            lower = tl.associative_scan(starts, 1, max_of) - 1
            upper = 1 - tl.associative_scan(ends, 1, max_of, reverse=True)
            upper = tl.where(upper < n, upper, N)
            mass_l, sum_l = before_ties(left, from_left, h, z, lower, s)
            mass_r, sum_r = before_ties(right, from_right, h, z, upper, s)
            g_z = -q * ((sum_l - sum_r) - off * (mass_l - mass_r))
            g_z += before_ties(q_left, m_left, h, z, lower, s)[1] - before_ties(q_right, m_right, h, z, upper, s)[1]
            g_x = moved(g_z * s, finite, standard, slope_of_z, stats, True, True)
        if not RANK:
            g_h = q_left + q_right - q
            g_x += tl.where(finite, g_h, 0.0) if HARD else g_h
        tl.store(out + r * n + index, g_x * unit * (SIGN if RANK else 1), mask=ok)


def run(
    x, shape, what, *v, softness, first=0, count=None, rank=False, descending=False, sign=1, hard=False, gated=True, mix=None
):
    """`pairs.run` for what this file computes."""
    (rows, n), count, out = x.shape, x.shape[1] if count is None else count, x.new_empty(shape)
    options = {"WHAT": what, "RANK": rank, "SIGN": sign, "DESCENDING": descending, "GATED": gated, "HARD": hard}
    numbers = 1 / max(softness, 1e-30), mix or 0.0, first, count
    warps = 8 if n > 128 else 1  # one number for each thread of a longer row: registers suffice
    v = v[0].contiguous() if v else x
    launch(sorted_kernel, rows, n, x, v, out, *numbers, warps=warps, **options, MIXED=mix is not None)
    return out
