"""Functions that kernels compute, rows that need care, and the comparison with the formulas in float64."""

import contextlib
import importlib
import math

import torch

import fullgrad
from fullgrad import soft
from fullgrad._fast import gpu

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# In units of the largest number of a row, or as many times the formula's own error in that dtype.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-7, torch.float16: 2e-3, torch.bfloat16: 2e-2}
TIMES = 4
# What makes the host wait for a device.
WAITS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"}


@contextlib.contextmanager
def formulas():
    """Where no kernel runs."""
    before, gpu.SWITCH = gpu.SWITCH, "0"
    try:
        yield
    finally:
        gpu.SWITCH = before


@contextlib.contextmanager
def launches(run=True):
    """A list with the kernel of each launch in the block; without ``run`` they are counted alone."""
    rows = importlib.import_module("fullgrad._fast.gpu.rows")  # which imports Triton
    found, before = [], rows.launch

    def launch(kernel, *args, **constants):
        found.append(kernel)
        if run:
            before(kernel, *args, **constants)

    rows.launch = launch
    try:
        yield found
    finally:
        rows.launch = before


def _k(x, dim, k=3):
    return min(k, x.shape[dim])


def projections():
    """Names and functions of x and dim."""
    yield "sparsemax", soft.sparsemax
    for alpha in (1.5, 4 / 3, 1.0001, 1.2, 1.75, 2.5, 4.0):
        yield f"entmax {alpha:.6g}", lambda x, dim, a=alpha: soft.entmax(x, a, dim)
    yield "entmax with a tensor", lambda x, dim: soft.entmax(x, torch.full((), 1.3, dtype=x.dtype), dim)
    for alpha in (1.5, 2.0, 5.0):
        yield f"normmax {alpha}", lambda x, dim, a=alpha: soft.normmax(x, a, dim)
    yield "proj_simplex c2", lambda x, dim: soft.proj_simplex(x, dim, 0.7, "c2")
    for mode in ("smooth", "c0", "c1", "c2", "laplace"):
        yield f"proj_capped_simplex {mode}", lambda x, dim, m=mode: soft.proj_capped_simplex(x, _k(x, dim) * 0.7, dim, mode=m)
        yield f"topk_mask_st {mode}", lambda x, dim, m=mode: fullgrad.topk_mask_st(x, _k(x, dim, 2), dim, 0.3, mode=m)
    yield "proj_capped_simplex whole", lambda x, dim: soft.proj_capped_simplex(x, _k(x, dim, 2), dim)
    for mode in ("smooth", "c1"):
        yield (
            f"proj_capped_simplex near n, {mode}",
            lambda x, dim, m=mode: soft.proj_capped_simplex(x, x.shape[dim] - 0.5, dim, mode=m),
        )


def order_statistics():
    """Names and functions of x and dim."""
    for method in ("softsort", "neuralsort"):
        for mode in ("smooth", "c0", "c1", "c2"):
            options = {"method": method, "mode": mode}
            sort = {**options, "return_indices": False}
            yield f"sort {method} {mode}", lambda x, dim, o=sort: soft.sort(x, dim, **o).values
            yield f"max {method} {mode}", lambda x, dim, o=options: soft.max(x, dim, **o).values
            yield f"rank {method} {mode}", lambda x, dim, o=options: soft.rank(x, dim, **o)
        options, sort = {"method": method}, {"method": method, "return_indices": False}
        yield f"sort {method} descending", lambda x, dim, o=sort: soft.sort(x, dim, True, **o).values
        yield f"sort {method} as it is", lambda x, dim, o=sort: soft.sort(x, dim, standardize=False, **o).values
        yield f"sort {method} with constant weights", lambda x, dim, o=sort: soft.sort(x, dim, gated_grad=False, **o).values
        yield f"sort {method} and weights", lambda x, dim, o=options: _both(soft.sort(x, dim, **o), dim)
        yield f"sort_st {method}", lambda x, dim, o=sort: fullgrad.sort_st(x, dim, **o).values
        yield f"argsort {method}", lambda x, dim, o=options: soft.argsort(x, dim, True, **o)
        yield f"topk {method}", lambda x, dim, o=sort: soft.topk(x, _k(x, dim), dim, **o).values
        yield f"median {method}", lambda x, dim, o=options: soft.median(x, dim, **o).values
        yield f"quantile {method}", lambda x, dim, o=options: soft.quantile(x, 0.3, dim, **o)
        yield f"argquantile {method}", lambda x, dim, o=options: soft.argquantile(x, 0.7, dim, **o)
        yield f"min {method}", lambda x, dim, o=options: soft.min(x, dim, **o).values
        yield f"argmax {method}", lambda x, dim, o=options: soft.argmax(x, dim, **o)
        yield f"max_st {method}", lambda x, dim, o=options: fullgrad.max_st(x, dim, **o).values
        yield f"rank_st {method}", lambda x, dim, o=options: fullgrad.rank_st(x, dim, descending=True, **o)
    for mode in ("smooth", "c0", "c1", "c2", "laplace"):
        yield f"rank sigmoid {mode}", lambda x, dim, m=mode: soft.rank(x, dim, method="sigmoid", mode=m)
    for mode in ("smooth", "c0"):  # rows up to `gpu.LONGEST_OF_SQUARES`
        yield f"rank fast_soft_sort {mode}", lambda x, dim, m=mode: soft.rank(x, dim, method="fast_soft_sort", mode=m)
    yield "rank sigmoid descending", lambda x, dim: soft.rank(x, dim, method="sigmoid", descending=True)


def _both(found, dim):
    """Values and weights in one tensor: the places of values before the weights of each."""
    values, weights = found
    return torch.cat((values.movedim(dim, -1).unsqueeze(-1), weights.movedim(dim - 1, -2)), -1).flatten(-2)


PROJECTIONS, STATISTICS = dict(projections()), dict(order_statistics())
FUNCTIONS = PROJECTIONS | STATISTICS


def careful_rows(n, seed=0):
    """Rows (…, n) of numbers that bfloat16 holds, each with what needs care; rows of fewer than three lack infinities, as two
    finite numbers, standardized, have derivatives that are rounding alone.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((4, n), generator=generator, dtype=torch.float64)
    rows = [*x[:2], (x[2] * 2).round() / 2, x[3, :1].expand(n), x[0] + 100, x[1] * 1e30]
    if n > 3:
        some = x[:3].clone()
        some[0, n // 2] = torch.inf
        some[1, : n // 2], some[2, 0], some[2, -1] = -torch.inf, -torch.inf, torch.inf
        rows += [*some]
    nan = x[0].clone()
    nan[0] = torch.nan
    return torch.stack([*rows, nan]).bfloat16().double()


def results(f, x, dim, whats=("value", "vjp", "jvp")):
    """The value and first derivatives of a function, by name."""
    found, leaf = {}, x.detach().requires_grad_()
    y = f(leaf, dim)
    if "value" in whats:
        found["value"] = y.detach()
    if "vjp" in whats:
        g = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape).to(y)
        (found["vjp"],) = torch.autograd.grad(y, leaf, g)
    if "jvp" in whats:
        t = torch.linspace(1, -2, x.numel(), dtype=torch.float64).reshape(x.shape).to(x)
        found["jvp"] = torch.func.jvp(lambda x: f(x, dim), (x,), (t,))[1]
    return found


def error(found, expected, rows):
    """The largest difference, in units of the largest number of each row; infinite where NaN or infinities differ."""
    found, expected = found.double().reshape(rows, -1), expected.double().reshape(rows, -1)
    if not found.numel():
        return 0.0
    if not torch.equal(found.isnan(), expected.isnan()):
        return math.inf
    same = (found == expected) | found.isnan()
    unit = torch.where(expected.isfinite(), expected, 0).abs().amax(-1, keepdim=True).clamp(min=1e-2)
    return torch.where(same, 0, (found - expected) / unit).abs().max().item()


def compare(name, f, x, dim, dtype, whats=("value", "vjp", "jvp")):
    """Compare what kernels find in a dtype with the formulas in float64 on the same numbers. Tangents of infinite values are left
    out: 0 times infinity is in them, in the formulas as well.
    """
    x = x.to(dtype)
    with formulas():
        exact, own = results(f, x.double(), dim, ("value", *whats)), results(f, x, dim, whats)
    with launches() as kernels:
        found = results(f, x, dim, whats)
    assert kernels, f"{name}: no kernel ran"
    rows = max(1, x.numel() // x.shape[dim])
    for what, y in found.items():
        assert y.shape == own[what].shape, (name, what)
        assert y.dtype == own[what].dtype, (name, what)
        three = (y, own[what], exact[what])
        if what == "jvp":
            three = [torch.where(exact["value"].isfinite(), v, torch.nan) for v in three]
        three = [v.movedim(dim, -1) if v.ndim == x.ndim else v for v in three]
        off, usual = (error(v, three[2], rows) for v in three[:2])
        message = f"{name}, {what}, {dtype}: off by {off:.1e}, the formula by {usual:.1e}"
        assert off <= max(TOLERANCE[dtype], TIMES * usual), message
