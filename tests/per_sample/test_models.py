"""Every function of per-sample gradients equals what `vmap(grad)` gives."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fullgrad import per_sample
from fullgrad._dispatch import DISPATCH
from tests.per_sample.models import MODELS, gradients, in_rows

ROOT = Path(__file__).parents[2]


def close(found, expected, rtol=1e-12):
    """At most so far apart, in units of the largest."""
    for f, e in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert f.shape == e.shape
        assert f.dtype == e.dtype
        unit = float(e.abs().max()) if e.numel() else 0.0
        torch.testing.assert_close(f, e, rtol=0, atol=rtol * (1 if e.dtype in (torch.float64, torch.complex128) else 1e7) * unit)


# torch's, about its own kernels in a batch.
pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real:UserWarning"),
]


@pytest.mark.long
def test_the_fallback_has_the_same_numbers():
    """Every model, in the other dispatch."""
    code = "import sys; from tests.per_sample.test_models import compare_all; compare_all()"
    environment = {**os.environ, "FULLGRAD_DISPATCH": "fallback"}
    run = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(run, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert f"{len(MODELS)} models, fallback" in done.stdout


def compare_all():
    """Compare all models, in this process."""
    for name in MODELS:
        test_it_is_what_vmap_of_grad_gives(name)
    print(f"{len(MODELS)} models, {DISPATCH}")


@pytest.mark.short(of=6)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_vmap_of_grad_gives(name):
    """Norms, clipped sums, sums of squares and inner products, of each model."""
    made = MODELS[name]()
    with made.context():
        _compare(made)


def _compare(made):
    expected = gradients(made)
    rows = in_rows(expected)
    norms, dtypes = rows.norm(dim=1), {g.dtype.to_real() for g in expected}
    exact = 1e-12 if dtypes == {torch.float64} else 1e-6
    found = per_sample.norms(made.loss)(made.params, *made.batch)
    close(found, norms, exact)
    by_parameter = per_sample.norms(made.loss, squared=True, by_parameter=True, chunk_size=2)(made.params, *made.batch)
    close(tree_leaves(by_parameter), [in_rows([g]).square().sum(1).to(g.dtype.to_real()) for g in expected], exact)
    close(per_sample.gramian(made.loss)(made.params, *made.batch), rows @ rows.T, exact)
    squares = per_sample.sum_of_squares(made.loss)(made.params, *made.batch)
    close(tree_leaves(squares), [(g.abs() ** 2).sum(0) for g in expected], exact)
    bound = float(norms.median()) if len(norms) else 1.0
    factors = torch.where(norms > bound, bound / norms, 1.0)
    sums = [torch.tensordot(factors.to(g.dtype), g, 1) for g in expected]
    for given, chunk_size in ((bound, None), (torch.tensor(bound), 2), (lambda n: torch.where(n > bound, bound / n, 1.0), 2)):
        clipped, before = per_sample.clipped(made.loss, given, chunk_size=chunk_size)(made.params, *made.batch)
        close(before, norms, exact)
        close(tree_leaves(clipped), sums, max(exact, 1e-7 if isinstance(given, torch.Tensor) else 0))
    plain, _ = per_sample.clipped(made.loss, math.inf)(made.params, *made.batch)
    close(tree_leaves(plain), [g.sum(0) for g in expected], exact)
