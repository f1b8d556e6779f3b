"""Softsort in smooth mode without pairs: a row is sorted in registers, and as exp(-|a - b|) of sorted numbers is a product over
neighbors, scans from both ends give all weighted sums, in O(n log^2 n) work.

Sums of ``q (y - h)`` are kept relative to the h of the place that a scan has reached: no large numbers cancel. Nothing is
gathered: `tl.gather` keeps a row in one warp, and on rows of 512 it spills hundreds of bytes.
"""

import triton
import triton.language as tl

from fullgrad._fast.gpu import rows as lib


@triton.jit
def combine(z, h, q, m, q_apart, m_apart, next_z, next_h, next_q, next_m, next_q_apart, next_m_apart):
    """Two stretches of a row as one: the z and h of its last element; as seen from that, the decayed sums of q and of q (y - h);
    and those of the elements that differ from it, as the slope of a distance is 0 between equal ones."""
    same, step = z == next_z, h - next_h
    d = tl.exp(-tl.abs(z - next_z))
    q, m = d * q, d * (m + q * step)
    q_apart, m_apart = tl.where(same, q_apart, next_q_apart + q), tl.where(same, m_apart + q_apart * step, next_m_apart + m)
    return next_z, next_h, next_q + q, next_m + m, q_apart, m_apart


@triton.jit
def sums_of(z, h, q, m):
    """Sums over an element and all before it, over it and all behind it; over the smaller less the larger ones."""
    zero = tl.zeros_like(z)
    _, _, q_left, m_left, q_smaller, m_smaller = tl.associative_scan((z, h, q, m, zero, zero), 1, combine)
    _, _, q_right, m_right, q_larger, m_larger = tl.associative_scan((z, h, q, m, zero, zero), 1, combine, reverse=True)
    return q_left + q_right, m_left + m_right, q_smaller - q_larger, m_smaller - m_larger


@triton.jit(do_not_specialize=["first", "count", "rows"])
def sorted_kernel(
    x, v, out, scale: "fp64", mix: "fp64", first, count, rows, n,
    WHAT: tl.constexpr, RANK: tl.constexpr, SIGN: tl.constexpr, DESCENDING: tl.constexpr, GATED: tl.constexpr,
    HARD: tl.constexpr, MIXED: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """`pairs_kernel` for softsort, smooth and standardized, in float32: the value or its derivative ("vjp")."""
    r, k, ok = lib.places(rows, n, R, N)
    s, inf = lib.as_number(scale, tl.float32), float("inf")
    own = tl.load(x + r * n + k, mask=ok, other=0.0).to(tl.float32) * SIGN
    own = tl.where(own == 0, 0.0, own)  # one zero: equal numbers keep their order
    key = (lib.ordered(own.to(tl.int32, bitcast=True), tl.int32).to(tl.int64) << 32) | k
    key = tl.sort(tl.where(ok, key, 0x7FFFFFFFFFFFFFFF), 1)
    index = (key & 0x7FFFFFFF).to(tl.int32)
    own = tl.where(ok, lib.ordered((key >> 32).to(tl.int32), tl.int32).to(tl.float32, bitcast=True), 0.0)
    finite, low, high, stats = lib.statistics(own, ok, True)
    h, center = lib.summed(own, finite, low, high, stats, HARD, True)
    z, standard, slope_of_z = lib.compared(own, stats, True)
    place = k + tl.zeros_like(index)
    spot = index if RANK else (n - 1 - place if DESCENDING else place) - first
    here, at = ok & (spot >= 0) & (spot < count), r if MIXED else r * count + spot
    part = tl.where(spot == 0, 1 - lib.as_number(mix, tl.float32), lib.as_number(mix, tl.float32)) if MIXED else 1.0
    # An infinite value is that of all places; its row has no gradient.
    above, below = lib.row_max(tl.where(ok & (own == inf), 1, 0)) > 0, lib.row_max(tl.where(ok & (own == -inf), 1, 0)) > 0
    infinite = above | below
    if RANK:
        h = (place + 1).to(tl.float32)
    elif not HARD:
        h = tl.where(infinite, float("nan"), h)

    one, at_scale = tl.where(ok, 1.0, 0.0), tl.where(ok, z, 1.0) * s  # what does not exist lies behind all numbers
    mass, off, mass_apart, off_apart = sums_of(at_scale, h, one, tl.zeros_like(z))
    mass = tl.where(ok, mass - 1, 1.0)
    off = off / mass  # of the value from the own element
    if WHAT == "value":
        y = h + off
        if not RANK:
            y = y + center
            if not HARD:
                y = tl.where(above & below, float("nan"), tl.where(above, inf, tl.where(below, -inf, y)))
        y = tl.where(stats[0] == stats[0], y, float("nan"))
        if MIXED:
            tl.store(out + r, lib.row_sum(tl.where(here, y * part, 0.0)), mask=lib.row_max(ok.to(tl.int32)) > 0)
        else:
            tl.store(out + at, y if RANK else y * SIGN, mask=here)
    else:
        unit = tl.zeros_like(low) + 1 if RANK else lib.unit_of(low, high)
        q = tl.load(v + at, mask=here, other=0.0).to(tl.float32) / unit * part / mass
        q_sum, _, _, m_apart = sums_of(at_scale, h, q, q * off)
        g_x = tl.zeros_like(z)
        if GATED:
            g_z = m_apart - q * (off_apart - off * mass_apart)
            g_x = lib.moved(g_z * s, finite, standard, slope_of_z, stats, True, True)
        if not RANK:
            g_h = q_sum - q
            g_x += tl.where(finite, g_h, 0.0) if HARD else g_h
        tl.store(out + r * n + index, g_x * unit * (SIGN if RANK else 1), mask=ok)
