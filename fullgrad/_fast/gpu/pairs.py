"""Order statistics of rows by loops: over places with a row in registers for softsort and neuralsort, over pairs for ranks.

A loop over the places of a row makes, for each, the scores of all elements, their weights by sums over the row, and what they
add: nothing else is kept, so memory is that of inputs and outputs. A loop over pairs reads the other element from memory as one
number for all lanes, and standardizes it again, which is cheaper than a barrier.

Where there are fewer rows than multiprocessors, `SHARES` programs share a row, and each loop is a phase, a launch of its own: the
next one adds what each program has found, in their order, so the same bits come out each time.
"""

import torch
import triton
import triton.language as tl

from fullgrad._fast.gpu import rows as lib
from fullgrad._fast.gpu.sorted_rows import sorted_kernel

# Programs of a row, the sums that they share, and the shortest rows that several warps share.
SHARES, SLOTS, LONG = 8, 8, 129


def multiprocessors(x):
    """How many programs find a place of their own."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 0


@triton.jit
def other(x, i, stats, SIGN: tl.constexpr, STANDARDIZE: tl.constexpr, ACC: tl.constexpr):
    """Another element of the row, and the number that is compared."""
    o = tl.load(x + i).to(ACC) * SIGN
    return o, lib.compared(o, stats, STANDARDIZE)[0]


@triton.jit
def absolute_slope(d, MODE: tl.constexpr):
    """2S - 1, by which the soft absolute value is d (2S - 1), and its slope."""
    v, slope = lib.curve(d, MODE)
    return 2 * v - 1, 2 * v - 1 + 2 * tl.where(slope > 0, d, 0.0) * slope


@triton.jit
def weights(score, MODE: tl.constexpr):
    """The weights of scores whose largest is 0, and their slopes."""
    if MODE == "smooth":
        p = tl.exp(score)
        p = p / lib.row_sum(p)
        return p, p
    return lib.link(score - lib.simplex_threshold(score, lib.row_max(score), MODE), MODE)


@triton.jit
def added(v, parts, ok, size, SLOT: tl.constexpr, PHASE: tl.constexpr, END: tl.constexpr, SHARES: tl.constexpr):
    """A sum over the programs of a row: each stores its part at the end of a phase, and reads those of all behind it."""
    if PHASE == END:
        tl.store(parts + (SLOT * SHARES + tl.program_id(1)) * size, v, mask=ok)
    elif PHASE > END:
        v = tl.zeros_like(v)
        for i in range(SHARES):
            v += tl.load(parts + (SLOT * SHARES + i) * size, mask=ok, other=0.0)
    return v


@triton.jit(do_not_specialize=["first", "count", "rows"])
def pairs_kernel(
    x, v, v_weights, out, out_weights, scratch, scale: "fp64", mix: "fp64", first, count, rows, n,
    WHAT: tl.constexpr, METHOD: tl.constexpr, MODE: tl.constexpr, RANK: tl.constexpr, SIGN: tl.constexpr,
    DESCENDING: tl.constexpr, WEIGHTS: tl.constexpr, STANDARDIZE: tl.constexpr, GATED: tl.constexpr, HARD: tl.constexpr,
    MIXED: tl.constexpr, PHASE: tl.constexpr, SHARES: tl.constexpr, ACC: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Places ``first`` to ``first + count`` of a sorted row, with their weights (``WEIGHTS``, 2: nothing else), or the ranks of
    all elements; or the derivative times v, a cotangent ("vjp") or a tangent ("jvp"). With ``MIXED`` two places are one output,
    with the parts 1 - mix and mix. In phase 0 a program has a row for itself; in others it runs one of the loops.
    """
    r, k, ok = lib.places(rows, n, R, N)
    LAST: tl.constexpr = 3 if RANK and METHOD == "neuralsort" and WHAT != "value" else 2  # the phase of the last pass
    share, shares = tl.program_id(1) if PHASE > 0 else 0, tl.num_programs(1) if PHASE > 0 else 1
    parts, size = scratch + r * n + k, rows * n
    s, row, row_of_v, exists = lib.as_number(scale, ACC), x + r * n, v + r * n, lib.row_max(ok.to(tl.int32)) > 0
    own = tl.load(row + k, mask=ok, other=0.0).to(ACC) * SIGN
    finite, low, high, stats = lib.statistics(own, ok, STANDARDIZE)
    h, center = lib.summed(own, finite, low, high, stats, HARD, STANDARDIZE)
    z, standard, slope_of_z = lib.compared(own, stats, STANDARDIZE)
    zero = tl.zeros_like(own)
    unit = lib.unit_of(low, high) if WHAT == "vjp" and not RANK and WEIGHTS != 2 else tl.zeros_like(low) + 1

    dz, t, a, lost, da, rank = zero, zero, zero, zero, zero, zero
    if WHAT == "jvp":
        t = tl.load(row_of_v + k, mask=ok, other=0.0).to(ACC) * SIGN
        dz = lib.moved(t, finite, standard, slope_of_z, stats, STANDARDIZE, False) * s if GATED else zero
        t = tl.where(finite, t, 0.0) if HARD else t
    if RANK and METHOD != "sigmoid":
        for i in range(share if PHASE < 2 else 0, n if PHASE < 2 else 0, shares):
            o = tl.load(row + i).to(ACC) * SIGN
            rank += tl.where(o < own, 1.0, tl.where((o == own) & (i <= k), 1.0, 0.0))
        rank = added(rank, parts, ok, size, 0, PHASE, 1, SHARES)
    if METHOD == "neuralsort":  # the soft distances, which grow with the row: with what the sum has rounded off
        for i in range(share if PHASE < 2 else 0, n if PHASE < 2 else 0, shares):
            d = (z - other(row, i, stats, SIGN, STANDARDIZE, ACC)[1]) * s
            sign, slope = absolute_slope(d, MODE)
            term = d * sign - lost
            total = a + term
            a, lost = total, (total - a) - term
            if WHAT == "jvp":
                da += slope * (dz - lib.row_sum(tl.where(k == i, dz, 0.0)))
        a = added(a, parts, ok, size, 1, PHASE, 1, SHARES)

    mixed, mixed_weights = tl.zeros_like(low), zero
    g_u, g_a, g_h, mass, moment, y, g = zero, zero, zero, zero, zero, zero, zero
    if RANK and WHAT == "vjp":
        g = tl.load(row_of_v + k, mask=ok, other=0.0).to(ACC)
    if METHOD == "sigmoid":
        for i in range(share if PHASE < 5 else 0, n if PHASE < 5 else 0, shares):
            step, slope = lib.curve((z - other(row, i, stats, SIGN, STANDARDIZE, ACC)[1]) * s, MODE)
            y += step
            if WHAT == "vjp":
                g_u += slope * (g - tl.load(row_of_v + i).to(ACC))
            elif WHAT == "jvp":
                moment += slope * (dz - lib.row_sum(tl.where(k == i, dz, 0.0)))
        y = moment if WHAT == "jvp" else added(y, parts, ok, size, 2, PHASE, 2, SHARES) + 0.5
    else:
        if RANK:
            h, center = rank, tl.zeros_like(center)
        # The passes over the places: ranks by neuralsort need the value for the derivative.
        lacks = z != z
        for last in tl.static_range(LAST - 1):
            end = (n if METHOD == "softsort" else count) if PHASE == 0 or PHASE == 2 + last else 0
            for j in range(share if PHASE == 0 or PHASE == 2 + last else 0, end, shares):
                if METHOD == "softsort":
                    o, zo = other(row, j, stats, SIGN, STANDARDIZE, ACC)
                    score, c, c_a = -tl.abs(zo - z) * s, tl.where(zo > z, 1.0, tl.where(zo < z, -1.0, 0.0)).to(ACC), 0.0
                    before = (own < o) | ((own == o) & (k < j))
                    spot = tl.zeros_like(r).to(tl.int32) + j
                    if not RANK:
                        spot = tl.where(stats[0] == stats[0], lib.row_sum(tl.where(ok & before, 1, 0)), spot)
                    spot = (n - 1 - spot if DESCENDING else spot) - first
                    here = exists & (spot >= 0) & (spot < count)
                else:
                    place = n - 1 - first - j if DESCENDING else first + j
                    if METHOD == "neuralsort":
                        c, c_a = (2 * place + 1 - n).to(ACC) + zero, 1.0
                        score = c * (z * s) - a
                        score -= lib.row_max(tl.where(ok, score, -float("inf")))
                    else:
                        c, c_a = zero + 1, 0.0
                        score = (z - lib.row_max(tl.where(ok, z, -float("inf")))) * s
                    spot, here = tl.zeros_like(r).to(tl.int32) + j, exists
                p, w = weights(tl.where(ok, score, -float("inf")), MODE)
                at = r if MIXED else r * count + spot
                part = (
                    tl.where(here, tl.where(spot == 0, 1 - lib.as_number(mix, ACC), lib.as_number(mix, ACC)), 0.0)
                    if MIXED
                    else 1.0
                )
                if RANK and METHOD == "neuralsort":
                    if last == 0:
                        mass, moment = mass + p, moment + p * (j + 1 - rank)
                    elif WHAT == "vjp":
                        e = (j + 1 - y) * g
                    else:
                        d = c * dz - da
                        moment += w * (d - lib.row_sum(w * d) / lib.row_sum(w)) * (j + 1 - y)
                elif WHAT == "value":
                    found = (lib.row_sum(p * h) + center) * SIGN if not RANK else lib.row_sum(p * h)
                    if MIXED:
                        mixed += tl.where(here, part * found, 0.0)
                        mixed_weights += part * p
                    else:
                        tl.store(out + at, found, mask=here)
                        if WEIGHTS:
                            tl.store(out_weights + at * n + k, p, mask=ok & here)
                elif WHAT == "jvp":
                    d = c * dz - da
                    if METHOD == "softsort":
                        d -= c * lib.row_sum(tl.where(k == j, dz, 0.0))
                    d = w * (d - lib.row_sum(w * d) / lib.row_sum(w))
                    found = lib.row_sum((d * h if GATED else zero) + (zero if RANK else p * t)) * (1 if RANK else SIGN)
                    if MIXED:
                        mixed += tl.where(here, part * found, 0.0)
                        mixed_weights += part * d
                    else:
                        tl.store(out + at, found, mask=here)
                        if WEIGHTS:
                            tl.store(out_weights + at * n + k, d, mask=ok & here)
                else:
                    e = zero
                    if WEIGHTS != 2:
                        of_y = tl.load(v + at, mask=here, other=0.0).to(ACC) / unit * part
                        e = of_y * h if RANK else of_y * h * SIGN
                        g_h += p * of_y
                    if WEIGHTS:
                        e += tl.load(v_weights + at * n + k, mask=ok & here, other=0.0).to(ACC) / unit * part
                if WHAT == "vjp" and (METHOD == "softsort" or not RANK or last == 1):
                    e = w * (e - lib.row_sum(w * e) / lib.row_sum(w))
                    g_u += c * e
                    g_a -= c_a * e
                    if METHOD == "softsort":
                        g_u -= tl.where(k == j, lib.row_sum(c * e), 0.0)
            if RANK and METHOD == "neuralsort" and last == 0:
                mass = added(mass, parts, ok, size, 2, PHASE, 2, SHARES)
                moment = added(moment, parts, ok, size, 3, PHASE, 2, SHARES)
                lacks = mass < (1e-292 if ACC == tl.float64 else 1e-31)  # an element without a weight has its hard rank
                mass = tl.where(lacks, 1.0, mass)
                y = rank + tl.where(lacks, 0.0, moment / mass)
                g, moment = tl.where(lacks, 0.0, g / mass), zero
        if RANK and METHOD == "neuralsort" and WHAT == "jvp":
            y = tl.where(lacks, 0.0, moment / mass)
    if WHAT == "vjp":
        g_u, g_a = added(g_u, parts, ok, size, 4, PHASE, LAST, SHARES), added(g_a, parts, ok, size, 5, PHASE, LAST, SHARES)
        g_h = added(g_h, parts, ok, size, 7, PHASE, LAST, SHARES)
        if METHOD == "neuralsort":
            far = zero
            for i in range(share, n if PHASE == 0 or PHASE == 4 else 0, shares):
                d = (z - other(row, i, stats, SIGN, STANDARDIZE, ACC)[1]) * s
                far += absolute_slope(d, MODE)[1] * (g_a + lib.row_sum(tl.where(k == i, g_a, 0.0)))
            g_u += added(far, parts, ok, size, 6, PHASE, 4, SHARES)
        g_x = lib.moved(g_u * s, finite, standard, slope_of_z, stats, STANDARDIZE, True) * SIGN if GATED else zero
        if not RANK:
            g_x += tl.where(finite, g_h, 0.0) if HARD else g_h
        if PHASE == 0 or PHASE == 5:
            tl.store(out + r * n + k, g_x * unit, mask=ok)
    elif MIXED and PHASE != 1:
        tl.store(out + r, mixed, mask=exists)
        if WEIGHTS:
            tl.store(out_weights + r * n + k, mixed_weights, mask=ok)
    elif RANK and METHOD != "softsort" and (PHASE == 0 or PHASE == 5):
        tl.store(out + r * n + k, y + (stats[0] - stats[0]), mask=ok)  # a NaN makes its row NaN


def run(
    x, shape, what, *v, method, softness, mode, standardize=True, gated=True, first=0, count=None, rank=False, descending=False,
    sign=1, hard=False, weights=0, mix=None,
):  # fmt: skip
    """The values of places of rows (rows, n), in a shape (…), with ``weights`` also those (…, n), or the ranks; or, by ``what``,
    the derivative times ``v``: cotangents of the outputs, or a tangent of x. With ``weights=2`` the values are not used.
    """
    (rows, n), count = x.shape, x.shape[1] if count is None else count
    outs = [x.new_empty(shape), *[x.new_empty((*shape, n))] * bool(weights and what != "vjp")]
    options = {"WHAT": what, "RANK": rank, "SIGN": sign, "DESCENDING": descending, "GATED": gated, "HARD": hard}
    options["MIXED"] = mix is not None
    v, given, numbers = [t.contiguous() for t in v], [*outs, x], (1 / max(softness, 1e-30), mix or 0.0, first, count)
    sorts = (method, mode, standardize, weights) == ("softsort", "smooth", True, 0)
    if sorts and what != "jvp" and x.dtype != torch.float64 and n > 2:
        lib.launch(sorted_kernel, rows, n, x, [*v, x][0], outs[0], *numbers, **options)
        return outs[0]
    options |= {"METHOD": method, "MODE": mode, "WEIGHTS": weights, "STANDARDIZE": standardize, "ACC": lib.accumulator(x)}
    phases, scratch = [0], x
    if LONG <= n and rows < multiprocessors(x) and what != "jvp" and method != "largest":
        neural, ranked, vjp = method == "neuralsort", rank and method != "softsort", what == "vjp"
        needed = neural or (rank and not ranked), True, neural and rank and vjp, neural and vjp, vjp or ranked
        phases = [phase for phase, found in enumerate(needed, 1) if found]
        scratch = x.new_empty((SLOTS, SHARES, rows, n), dtype=torch.promote_types(x.dtype, torch.float32))
    for phase in phases:
        alone = phase in (0, 5) or (mix is not None and (what, phase) == ("value", 2))
        arguments = *[*v, x, x][:2], *given[:2], scratch, *numbers
        lib.launch(pairs_kernel, rows, n, x, *arguments, shares=1 if alone else SHARES, PHASE=phase, SHARES=SHARES, **options)
    return outs[0] if len(outs) == 1 else outs
