"""The functions that replace published ones take their keywords, in their order and with their defaults.

``tests/data/published_signatures.json`` has the published signatures, and the script beside it reads them.
"""

import ast
import inspect
import json

import numpy
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


FLAGGED = {
    (f"{'soft.' if where is soft else ''}{name}", where, name, flag)
    for where in (soft, fullgrad)
    for name in where.__all__
    if inspect.isfunction(getattr(where, name)) and (where is soft or name.endswith("_st"))
    for flag, p in inspect.signature(getattr(where, name)).parameters.items()
    if isinstance(p.default, bool)
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize(("label", "where", "name", "flag"), sorted(FLAGGED, key=lambda f: (f[0], f[3])))
def test_flags_are_bools(label, where, name, flag):
    """A value that is not a bool is refused by name, as torch does: it is an argument for another place."""
    f, weights = getattr(where, name), torch.softmax(X, -1)
    args = {
        "clamp": (X, -1.0, 1.0), "index_select": (X, weights, 0), "topk": (X, 2), "quantile": (X, 0.5), "argquantile": (X, 0.5),
        "logical_and": (weights, weights), "logical_or": (weights, weights), "logical_xor": (weights, weights),
    }.get(name.removesuffix("_st"), (X,))  # fmt: skip
    for bad in (None, 1, 0, "yes", {"tol": 1e-3}, numpy.bool_(True)):
        with pytest.raises(
            TypeError, match=rf"^{name.replace('ranking', 'rank')}: `{flag}` must be True or False, got a value of type"
        ):
            f(*args, **{flag: bad})
    default = inspect.signature(f).parameters[flag].default
    torch.compile(lambda x: f(x, *args[1:], **{flag: default}), backend="eager", fullgraph=True)(args[0])


@pytest.mark.short
@pytest.mark.parametrize("name", WITH_SOLVER)
def test_published_positional_calls_are_right_or_refused(name):
    """All published arguments up to the settings of the solver may be given by position; with these, a call is refused."""
    published = PUBLISHED["softtorch"]["functions"][name]
    given = {"x": X, "k": 2, "q": 0.5, "method": "softsort"}
    values = [given.get(k, ast.literal_eval(v or "None")) for k, v in published.items()]
    solver = [*published].index("ot_kwargs")
    f = ours("softtorch", name)
    found = f(*values[:solver])
    expected = f(**dict(zip([*published][:solver], values, strict=False)))
    for a, b in [(found, expected)] if isinstance(found, torch.Tensor) else zip(found, expected, strict=True):
        assert torch.equal(a, b)
    for more in range(solver + 1, len(values) + 1):
        with pytest.raises(TypeError):
            f(*values[:more])


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
