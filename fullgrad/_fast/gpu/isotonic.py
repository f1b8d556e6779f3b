"""Isotonic regression of short rows, without a search for blocks: the values of all stretches of neighbors at once, of which the
solution at a place is the smallest, by where a stretch begins, of the largest, by where it ends.

In float64, as the formula: `fullgrad.soft.order.kernels.isotonic`.
"""

import torch
import triton
import triton.language as tl

from fullgrad._fast.gpu import rows as lib


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["rows"])
def isotonic_kernel(u, w, t, first, rows, n, MODE: tl.constexpr, R: tl.constexpr, N: tl.constexpr):
    """Rows less the solution, and where each block begins. A program has one row, and N x N stretches from j to k."""
    at, j, k = tl.program_id(0).to(tl.int64) * n, tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    u_j, u_k = (
        tl.load(u + at + j, mask=j < n, other=0.0).to(tl.float64),
        tl.load(u + at + k, mask=k < n, other=0.0).to(tl.float64),
    )
    w_j, w_k = (
        tl.load(w + at + j, mask=j < n, other=0.0).to(tl.float64),
        tl.load(w + at + k, mask=k < n, other=0.0).to(tl.float64),
    )
    inf, ok = float("inf"), (j <= k) & (k < n)
    # Relative to the first element of a stretch, the largest: nothing cancels or overflows.
    d_u, d_w = tl.where(ok, u_k - u_j, 0.0), tl.where(ok, w_k - w_j, 0.0)
    if MODE == "smooth":
        of_u, of_w = tl.cumsum(tl.where(ok, tl.exp(d_u), 0.0), 1), tl.cumsum(tl.where(ok, tl.exp(d_w), 0.0), 1)
        value = tl.log(tl.where(ok, of_u / of_w, 1.0))
    else:
        value = tl.cumsum(d_u - d_w, 1) / tl.where(ok, k - j + 1, 1)
    largest = tl.associative_scan(tl.where(ok, u_j - w_j + value, -inf), 1, larger, reverse=True)
    solution = tl.min(tl.where(ok, largest, inf), 0, keep_dims=True)
    begins = lib.row_max(tl.where((j == k) & (largest <= solution), 1, 0))
    start = tl.max(tl.where(ok & (begins > 0), j, 0), 0, keep_dims=True)
    ends = (k == n - 1) | (tl.max(tl.where(j == k + 1, begins, 0), 0, keep_dims=True) > 0)
    level = tl.where(ends & (start == k), w_k, u_k - solution)
    finite = lib.row_max(tl.where((tl.abs(u_k) < inf) & (tl.abs(w_k) < inf), 0, 1)) == 0
    tl.store(t + at + k, tl.where(finite, level, float("nan")), mask=k < n)
    tl.store(first + at + k, tl.where(finite, start, 0).to(tl.int64), mask=k < n)


def run(u, w, mode):
    """`fullgrad.soft.order.kernels.isotonic.isotonic` for ``c0`` and ``smooth``."""
    n = u.shape[-1]
    t, first = u.new_empty(u.shape), u.new_empty(u.shape, dtype=torch.int64)
    constants = {"MODE": mode, "R": 1, "num_warps": max(1, triton.next_power_of_2(n) ** 2 // 256)}
    lib.launch(isotonic_kernel, u.numel() // n, n, u.contiguous(), w.contiguous(), t, first, **constants)
    return t, first
