"""Every faster version next to its formula."""

import contextlib
import itertools
import os
import subprocess
import sys

import pytest
import torch

import fullgrad
from fullgrad import nn
from fullgrad._core.fast import ENABLED, ENTRIES
from fullgrad._suite.bench._operators import bound, enlarged, tensors
from fullgrad._suite.cases import CASES

assert nn, "the families, whose entries these are, are imported"
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Elements, and those of a row: on both sides of every number at which an entry hands over to its formula or another way.
SIZES = ((8, 8), (96, 48), (1216, 304))
STEPS = ("soft.sigmoidal", "soft.sign", "soft.greater")
FAST = [c for c in CASES if not c.exhaustive]


def compared(name, entry, reached):
    """What computes both, and gives the numbers of the entry."""

    def run(*args):
        expected = entry.formula(*args)
        found = entry.version(*args)
        if found is NotImplemented:
            return expected
        reached.add(name)
        for a, b in zip(*[r if isinstance(r, tuple) else (r,) for r in (found, expected)], strict=True):
            if a is b is None:  # gradients that are not needed
                continue
            if a.shape != b.shape:  # a gradient that is summed already
                b = b.sum_to_size(a.shape).to(a.dtype)
            assert a.dtype == b.dtype, name
            rtol, atol = tolerances(entry, b)
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{name}: {m}")
        return found

    return run


def tolerances(entry, expected):
    """How far the numbers of an entry may be from those expected, relatively and absolutely."""
    if not expected.is_floating_point():
        return 0, 0
    eps = torch.finfo(expected.dtype).eps
    if not entry.of_largest:
        return entry.within * eps, entry.within * torch.finfo(expected.dtype).tiny
    # Computed in float32 at least, and rounded once.
    wide = torch.finfo(torch.promote_types(expected.dtype, torch.float32)).eps
    return 0, (entry.within * wide + 2 * eps) * expected.abs().nan_to_num(0, 0, 0).max().item()


@contextlib.contextmanager
def both():
    """Where every entry is compared with its formula; the names of those that were reached."""
    reached = set()
    for name, entry in ENTRIES.items():
        entry.put(compared(name, entry, reached), entry.recorded)
    try:
        yield reached
    finally:
        for entry in ENTRIES.values():
            entry.restore()


def with_ties(v):
    """A tensor some of whose elements are equal, near to each other and far apart: nothing else is new, so any range is kept."""
    return v[..., torch.arange(v.shape[-1]).square() % v.shape[-1]] if isinstance(v, torch.Tensor) and v.ndim else v


def run(case, elements, row, dtype, ties=False):
    """Value and gradient of a case."""
    inputs = enlarged(case, elements, row, dtype, "cpu")
    inputs = [with_ties(v) for v in inputs] if ties else inputs
    torch.manual_seed(0)
    leaves = [v.clone().requires_grad_() for v in tensors(inputs)]
    with torch.no_grad():
        bound(case.operator, inputs)(*leaves)
    y = bound(case.operator, inputs)(*leaves)
    torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel()).to(y.dtype).reshape(y.shape), allow_unused=True)


@pytest.mark.skipif(not ENABLED, reason="no entry runs")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", FAST, ids=lambda c: c.name)
@pytest.mark.sampled(of=2)
def test_every_entry_computes_its_formula(case, dtype, monkeypatch):
    """In every operator that uses it, to the last bit or within the units that it states. Those of large tensors run on small
    ones, too.
    """
    with both():
        for (elements, row), ties in itertools.product(SIZES, (False, True)):
            run(case, elements, row, dtype, ties)
        monkeypatch.setattr("fullgrad._core.pieces.PIECE", 16)
        run(case, *SIZES[1], dtype)


ORDERS = {
    **{name: {"dim": -1} for name in ("argmax", "argmin", "max", "min", "argmedian", "median", "rank")},
    **{name: {} for name in ("argsort", "sort")},
    "quantile": {"q": 0.3, "dim": -1},
    "topk": {"k": 3},
    "sort descending": {"descending": True},
    "rank ascending": {"dim": -1, "descending": False},
}


@pytest.mark.skipif(not ENABLED, reason="no entry runs")
@pytest.mark.parametrize("mode", ["smooth", "c0", "c1", "c2"])
@pytest.mark.parametrize("key", ORDERS)
def test_order_statistics_of_ties_are_those_of_their_formulas(key, mode):
    """Their ranks and derivatives, also where the softness is so small that elements in the middle have no weight."""
    x = torch.randn(60, 16, generator=torch.Generator().manual_seed(0)).clamp(min=0).mul(2).round() / 2
    name = key.split()[0]
    with both():
        for dtype, method, softness in itertools.product(DTYPES, ("softsort", "neuralsort"), (0.4, 0.1)):
            for f in (getattr(fullgrad.soft, name), getattr(fullgrad, f"{name}_st")):
                leaf = x.to(dtype).requires_grad_()
                y = f(leaf, softness=softness, mode=mode, method=method, **ORDERS[key])
                y = y if isinstance(y, torch.Tensor) else y[0]
                if y.requires_grad:
                    torch.autograd.grad(y, leaf, torch.arange(y.numel()).sin().to(y.dtype).reshape(y.shape))


@torch.no_grad()
def tangents_of_order_statistics():
    """Tangents of values and of weights, for which entries ask no gradient."""
    x = torch.randn(2, 8, dtype=torch.float64)
    for f in (fullgrad.soft.sort, fullgrad.soft.max):
        torch.func.jvp(lambda x, f=f: tuple(f(x, dim=-1)), (x,), (x.cos(),))


@pytest.mark.skipif(not ENABLED, reason="no entry runs")
@pytest.mark.long
def test_every_entry_is_reached(monkeypatch):
    """By some case: an entry that nothing uses is compared with nothing. Those of large tensors run on small ones, too."""
    with both() as reached:
        for case in CASES:
            run(case, *SIZES[1], torch.float32)
        tangents_of_order_statistics()
        monkeypatch.setattr("fullgrad._core.pieces.PIECE", 16)
        monkeypatch.setattr("fullgrad._fast.codebooks._MANY", 1)
        for case in [c for c in CASES if "codebook" in c.name or c.name.startswith(STEPS)]:
            run(case, *SIZES[1], torch.float32)
    assert reached == set(ENTRIES)


@pytest.mark.skipif(not ENABLED, reason="no entry runs")
def test_an_entry_that_is_wrong_is_seen():
    """The comparison itself."""
    entry = ENTRIES["fullgrad.spikes._atan.HeavyTailedStep.slope_times"]
    entry.put(compared("atan", entry._replace(version=lambda v, u, alpha: entry.version(v, u, alpha) * 1.001), set()))
    try:
        x = torch.randn(5, requires_grad=True)
        with pytest.raises(AssertionError, match="atan"):
            fullgrad.spikes.atan(x).sum().backward()
    finally:
        entry.restore()


def test_no_entry_runs_where_they_are_turned_off():
    """With ``FULLGRAD_FAST=0``: replaceable functions are their formulas."""
    code = (
        "import fullgrad.nn; from fullgrad._core import fast; assert not fast.ENABLED and fast.ENTRIES; print(len(fast.ENTRIES))"
    )
    code += "\nfrom fullgrad.spikes._atan import Atan; assert 'slope_times' not in vars(Atan)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "FULLGRAD_FAST": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(ENTRIES)
