"""Rows of thousands by ``neuralsort``: a warning names the method and the way out."""

import inspect
import warnings

import pytest
import torch
from torch.func import grad, vmap

import fullgrad
from fullgrad import soft
from fullgrad.soft.order import _statistic

pytestmark = pytest.mark.short

X = torch.randn(17, generator=torch.Generator().manual_seed(0))


class _Rank(torch.nn.Module):
    def forward(self, x):
        return soft.rank(x)


FUNCTIONS = {
    "rank": soft.rank,
    "sort": lambda x, **options: soft.sort(x, **options).values,
    "median": soft.median,
    "argmedian": soft.argmedian,
    "quantile": lambda x, **options: soft.quantile(x, 0.3, **options),
    "argquantile": lambda x, **options: soft.argquantile(x, 0.3, **options),
    "topk": lambda x, **options: soft.topk(x, 2, **options).values,
    "max": lambda x, **options: soft.max(x, method="neuralsort", **options),
    "argmin": lambda x, **options: soft.argmin(x, method="neuralsort", **options),
}


@pytest.fixture(autouse=True)
def _rows_of_seventeen_are_long(monkeypatch):
    monkeypatch.setattr(_statistic, "_LONG", 16)


def warned(call):
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_long_rows_warn_at_the_line_of_the_user(name):
    """The message has the function, the method, the length and the way out; the file is the user's."""
    (found,) = warned(lambda: FUNCTIONS[name](X, mode="c1"))
    assert found.category is UserWarning
    assert str(found.message).startswith(f"{name}: the method 'neuralsort' compares all pairs of the 17 elements of a row")
    assert "`method='softsort'`" in str(found.message)
    assert ("`return_indices=False`" in str(found.message)) == (name == "sort")
    assert found.filename == __file__


def test_what_takes_no_time_does_not_warn():
    """Shorter rows, softsort, hard modes, straight-through values without a derivative; argsort has all weights in any method.
    A single place compares no pairs in smooth mode.
    """
    assert not warned(lambda: [f(X[:16]) for f in FUNCTIONS.values()])
    assert not warned(lambda: soft.rank(X.expand(16, 17).T, dim=1))
    assert not warned(lambda: [soft.rank(X, method="softsort"), soft.max(X), soft.sort(X, mode="hard"), soft.argsort(X)])
    assert not warned(lambda: [fullgrad.rank_st(X), fullgrad.sort_st(X), fullgrad.median_st(X, mode="c1")])
    assert [name for name, f in FUNCTIONS.items() if warned(lambda f=f: f(X))] == ["rank", "sort"], "single places, smooth"
    assert len(warned(lambda: fullgrad.rank_st(X.clone().requires_grad_()))) == 1
    assert len(warned(lambda: grad(lambda x: fullgrad.rank_st(x)[0])(X))) == 1


def test_it_is_the_length_of_a_sample():
    """Under vmap the row is that of a sample."""
    assert not warned(lambda: vmap(soft.rank)(X.expand(20, 17)[:, :16]))
    assert len(warned(lambda: vmap(soft.rank)(X.expand(3, 17)))) == 1


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_code_is_one_graph(dynamic):
    """Compiled code does not warn, also with sizes that vary."""
    torch.compiler.reset()
    compiled = torch.compile(soft.rank, backend="eager", fullgraph=True, dynamic=dynamic)
    assert not [w for w in warned(lambda: compiled(X)) if "neuralsort" in str(w.message)]
    torch.testing.assert_close(compiled(X[:8]), soft.rank(X[:8]))
    exported = torch.export.export(_Rank(), (X,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=64)},))
    torch.testing.assert_close(exported.module()(X[:8]), soft.rank(X[:8]))


def test_the_limit_is_4096():
    """The limit itself, which these tests lower."""
    assert "_LONG = 4096" in inspect.getsource(_statistic)
