"""The functions that replace published ones take their keywords, in their order and with their defaults.

``tests/data/published_signatures.json`` has the published signatures, and the script beside it reads them.
"""

import inspect
import json

import pytest
import torch

import fullgrad
from fullgrad import soft
from tests.data import published_signatures

PUBLISHED = json.loads(published_signatures.FILE.read_text())
RENAMED = {"clamp": {"a": "min_value", "b": "max_value"}, "clamp_st": {"a": "min_value", "b": "max_value"}}
X = torch.tensor([0.3, -1.2, 2.5, 0.9], dtype=torch.float64)


def ours(package, name):
    """Our function with the name of the published one."""
    return getattr(soft if package == "softtorch" and hasattr(soft, name) else fullgrad, name)


FUNCTIONS = [(package, name) for package, entry in PUBLISHED.items() for name in entry["functions"]]
WITH_SOLVER = [name for name, known in PUBLISHED["softtorch"]["functions"].items() if "ot_kwargs" in known]


@pytest.mark.short
@pytest.mark.parametrize(("package", "name"), FUNCTIONS)
def test_published_keywords_are_taken(package, name):
    """Our functions take every published keyword, in the published order with the published default; ours may have more."""
    renamed = RENAMED.get(name, {})
    published = {renamed.get(k, k): v for k, v in PUBLISHED[package]["functions"][name].items() if k != "ot_kwargs"}
    parameters = inspect.signature(ours(package, name)).parameters
    assert [k for k in parameters if k in published] == [*published]
    for k, default in published.items():
        assert parameters[k].kind is not inspect.Parameter.KEYWORD_ONLY
        if default is not None:
            assert repr(parameters[k].default) == default


@pytest.mark.short
@pytest.mark.parametrize("name", PUBLISHED["shok"]["operators"])
def test_published_operators_have_our_name(name):
    """Operator classes are called through ``apply``, by position."""
    assert [*inspect.signature(getattr(fullgrad, name).apply).parameters][:1]


@pytest.mark.short
@pytest.mark.parametrize("name", WITH_SOLVER)
def test_settings_of_the_solver_are_refused(name):
    """The error says what to do; None is accepted."""
    args = {"topk": (X, 2), "topk_st": (X, 2)}.get(name, (X, 0.5) if "quantile" in name else (X,))
    f = ours("softtorch", name)
    with pytest.raises(TypeError, match=f"^{name}: `ot_kwargs` must be None: .* leave it out"):
        f(*args, ot_kwargs={"tol": 1e-3})
    f(*args, ot_kwargs=None)


def test_bounds_of_clamp_are_named():
    """The published names of the bounds give an error that names ours."""
    for f in (soft.clamp, fullgrad.clamp_st):
        with pytest.raises(TypeError, match="'min_value' and 'max_value'"):
            f(X, a=-1.0, b=1.0)
        with pytest.raises(TypeError, match="`b` must be None: the bounds are called `min_value` and `max_value`"):
            f(X, -1.0, 1.0, b=2.0)


def test_straight_through_versions_without_indices():
    """Without indices the result is the values and None; the gradient is that of the version with indices."""
    for f, args in ((fullgrad.sort_st, ()), (fullgrad.topk_st, (2,))):
        for x in (X, X.clone().requires_grad_()):
            both, alone = f(x, *args), f(x, *args, return_indices=False)
            assert type(alone) is type(both)
            assert alone.indices is None
            assert torch.equal(alone.values, both.values)
        weights = torch.arange(1.0, both.values.numel() + 1, dtype=X.dtype)
        gradients = [torch.autograd.grad(y.values @ weights, x)[0] for y in (both, alone)]
        assert torch.equal(*gradients)


@pytest.mark.short
@pytest.mark.parametrize("q", [0.4, [0.0, 0.4, 1.0]])
@pytest.mark.parametrize("method", ["softsort", "neuralsort"])
def test_quantile_st_returns_its_weights(q, method):
    """The result is that of `quantile_st` and `argquantile_st`, with their derivatives."""

    def pair(x):
        return fullgrad.quantile_st(x, q, method=method, return_argquantile=True)

    def parts(x):
        return fullgrad.quantile_st(x, q, method=method), fullgrad.argquantile_st(x, q, method=method)

    for got, expected in zip(pair(X), parts(X), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        for got, expected in zip(transform(pair)(X), transform(parts)(X), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.short
@pytest.mark.parametrize("package", PUBLISHED)
def test_the_file_is_current(package):
    """The file agrees with the installed packages."""
    installed = published_signatures.installed()
    if package not in installed:
        pytest.skip(f"{package} is not installed")
    assert installed[package] == PUBLISHED[package]
