"""Closed forms of small rows: they equal the relaxations that they stand for, which the other code computes."""

import contextlib
import itertools
import math

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad._core.fast import ENABLED, ENTRIES
from fullgrad._fast.small_rows import closed_form as forms
from fullgrad._fast.small_rows import rows as small_rows
from fullgrad._fast.small_rows import scores

pytestmark = pytest.mark.skipif(not ENABLED, reason="no entry runs")

MODES = ("smooth", "c0", "c1", "c2")
# Calls, and how many elements each result has of a row.
CALLS = {
    "sort": {"descending": True},
    "argsort": {},
    "rank": {},
    "topk": {"k": 2},
    "max": {"keepdim": True},
    "min": {},
    "argmax": {},
    "argmin": {"keepdim": True},
    "median": {},
    "argmedian": {},
    "quantile": {"q": [0.2, 0.75]},
    "argquantile": {"q": 0.4, "keepdim": True},
}
FORMS = [entry for name, entry in ENTRIES.items() if name.startswith("fullgrad.soft.order._statistic.")]


@pytest.fixture
def general():
    """A context without closed forms."""

    @contextlib.contextmanager
    def without():
        for entry in FORMS:
            entry.put(entry.formula)
        try:
            yield
        finally:
            for entry in FORMS:
                entry.restore()

    return without


@pytest.fixture
def counted(monkeypatch):
    """A counter of the closed forms that are used."""
    made = []
    for kind in (forms.Weights, forms.Ranks):
        start = kind.__init__
        monkeypatch.setattr(kind, "__init__", lambda self, *args, _start=start: (made.append(1), _start(self, *args))[1])
    return made


def tensors(y):
    return [v for v in (y if isinstance(y, tuple) else (y,)) if isinstance(v, torch.Tensor) and v.is_floating_point()]


def total(y):
    """A scalar that depends on every element, differently on each."""
    return sum((v * torch.ones_like(v).flatten().cumsum(0).sin().reshape(v.shape)).sum() for v in tensors(y))


def derivatives(f, x):
    """The value, the gradient and the tangent."""
    leaf = x.clone().requires_grad_()
    y = f(leaf)
    tangent = jvp(lambda x: tensors(f(x)), (x,), (torch.ones_like(x).cumsum(0).cos(),))[1]
    return [*tensors(y), torch.autograd.grad(total(y), leaf)[0], *tangent]


@pytest.mark.long(but=4)
@pytest.mark.parametrize("soft", [True, False], ids=["soft", "st"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.sampled(of=2)
def test_value_gradient_and_tangent_are_those_of_the_relaxation(name, soft, general, counted, monkeypatch):
    """Closed forms are right in every mode, along any dimension, with small and large softnesses and products from the left."""
    f = getattr(fullgrad.soft, name) if soft else getattr(fullgrad, f"{name}_st")
    method = "softsort" if name in ("max", "min", "argmax", "argmin") else "neuralsort"
    shapes = (((7,), 0), ((3, 5), -1), ((5, 3), 0), ((4, 3, 2), 0), ((2, 1), 1))
    for mode, (shape, dim), softness, many in itertools.product(MODES, shapes, (0.1, 0.004), (0, 10**9)):
        monkeypatch.setattr(scores, "MANY", many)
        kwargs = {"dim": dim, "mode": mode, "softness": softness, "method": method, **CALLS[name]}
        if name == "topk":
            kwargs["k"] = min(2, shape[dim])
        x = torch.randn(shape, dtype=torch.float64)
        before = len(counted)
        found = derivatives(lambda x, kwargs=kwargs: f(x, **kwargs), x)
        assert len(counted) >= before + 2 + soft
        with general():
            expected = derivatives(lambda x, kwargs=kwargs: f(x, **kwargs), x)
        assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("softness", [0.1, 2.0])
@pytest.mark.parametrize("name", CALLS)
def test_sums_over_long_rows_are_those_over_all_pairs(name, softness, general, monkeypatch):
    """Expanded in polynomials, they give the numbers of the relaxation; also for elements at the ends, equal ones, and NaN."""
    for limit in ("MANY", "_EXPANDED", "_FOR_EACH_TERM"):
        monkeypatch.setattr(scores, limit, 0)
    made, start = [], scores.Expansion.__init__
    monkeypatch.setattr(scores.Expansion, "__init__", lambda self, *args: (made.append(1), start(self, *args))[1])
    x = torch.randn(5, 40, dtype=torch.float64)
    x[1, 3:5], x[2, 10:] = torch.tensor([torch.inf, -torch.inf]), 0.5
    x[3, 7] = torch.nan
    kwargs = {"dim": -1, "softness": softness, "method": "neuralsort", **CALLS[name]}

    def f(x):
        return getattr(fullgrad.soft, name)(x, **kwargs)

    # What infinity is multiplied by may be a sum that is 0 up to rounding.
    for rows in (x[[0, 2, 3]], x):
        found = derivatives(f, rows)
        assert made
        with general():
            expected = derivatives(f, rows)
        if rows is x:
            found, expected = ([v.where(v.isfinite(), math.nan) for v in y] for y in (found, expected))
        assert_close(found, expected, rtol=1e-8, atol=1e-8, equal_nan=True)


@pytest.mark.short
@pytest.mark.parametrize("soft", [True, False], ids=["soft", "st"])
@pytest.mark.parametrize("mode", MODES)
def test_the_largest_by_softsort(mode, soft, general, counted):
    """Values and weights, along any dimension; equal elements are in the stable order, whose derivatives differ."""
    f = fullgrad.soft.topk if soft else fullgrad.topk_st
    x = torch.randn(4, 7, dtype=torch.float64)
    x[0, 3], x[1, [0, 2, 5]], x[2, :] = x[0, 1], 9.0, 0.5
    for rows, dim in ((x, -1), (x.mT.contiguous(), 0)):
        kwargs = {"k": 3, "dim": dim, "mode": mode, "softness": 0.2, "method": "softsort"}
        before = len(counted)
        found = derivatives(lambda x, kwargs=kwargs: f(x, **kwargs), rows)
        assert len(counted) >= before + 2 + soft
        with general():
            assert_close(found, derivatives(lambda x, kwargs=kwargs: f(x, **kwargs), rows), rtol=1e-9, atol=1e-9)


@pytest.mark.short
@pytest.mark.parametrize("name", ["sort", "max", "quantile", "argsort"])
def test_constant_weights(name, general):
    """Weights with ``gated_grad=False`` have no derivative."""
    kwargs = {"gated_grad": False} if name != "argsort" else {}
    f = getattr(fullgrad.soft, name)
    q = (0.3,) if name == "quantile" else ()
    x = torch.randn(3, 6, dtype=torch.float64)
    found = derivatives(lambda x: f(x, *q, dim=-1, **kwargs), x)
    with general():
        assert_close(found, derivatives(lambda x: f(x, *q, dim=-1, **kwargs), x))


@pytest.mark.short
@pytest.mark.parametrize(
    "row",
    [
        [1.0, float("inf"), 0.5],
        [1.0, float("nan"), 0.5],
        [-float("inf"), float("inf"), 0.0],
        [1e200, -1e200, 1.0],
        [2.0, 2.0, 2.0],
    ],
    ids=["infinite", "nan", "both", "overflow", "constant"],
)
@pytest.mark.parametrize("name", ["sort", "rank", "max", "argmax", "median"])
def test_rows_that_are_not_plain(name, row, general):
    """Infinities have no part in the statistics, NaN stays, overflowing squares do not matter; also next to a plain row."""
    x = torch.tensor([row, [0.1, 0.3, 0.2]], dtype=torch.float64)
    rounding = 1e-12 * x.abs().nan_to_num(0, 0, 0).max().item()
    for f in (getattr(fullgrad.soft, name), getattr(fullgrad, f"{name}_st")):
        found = derivatives(lambda x, f=f: f(x, dim=-1), x)
        with general():
            expected = derivatives(lambda x, f=f: f(x, dim=-1), x)
        values = len(tensors(f(x, dim=-1)))
        # A sum is as exact as its largest term.
        assert_close(found[:values], expected[:values], rtol=1e-7, atol=max(1e-7, rounding), equal_nan=True)
        # What infinity is multiplied by may be a sum that is 0 up to rounding: its sign, and whether it is 0, depend on the CPU.
        found, expected = ([v.where(v.isfinite(), math.nan) for v in y[values:]] for y in (found, expected))
        assert_close(found, expected, equal_nan=True)


@pytest.mark.short
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["sort", "rank", "max", "argsort", "median"])
def test_half_precision(name, dtype, general):
    """Half precision is computed in float32 and rounded once, as in the relaxation."""
    f = getattr(fullgrad.soft, name)
    x = torch.randn(4, 9).to(dtype)
    found = derivatives(lambda x: f(x, dim=-1), x)
    with general():
        assert_close(found, derivatives(lambda x: f(x, dim=-1), x))


@pytest.mark.short
@pytest.mark.parametrize("name", ["sort_st", "max_st", "rank_st", "soft.quantile", "soft.argmax"])
def test_transforms_hand_the_derivative_down_to_plain_rows(name, general, counted):
    """``vmap`` of ``grad`` takes a closed form for the whole batch; second derivatives are those of the relaxation."""
    f = getattr(fullgrad.soft, name[5:]) if name.startswith("soft.") else getattr(fullgrad, name)
    q = (0.3,) if "quantile" in name else ()
    x = torch.randn(4, 6, dtype=torch.float64)

    def scalar(row):
        return total(f(row, *q, dim=-1)) + tensors(f(row, *q, dim=-1))[0].square().sum()

    def found():
        return vmap(grad(scalar))(x), vmap(torch.func.hessian(scalar))(x), vmap(torch.func.jacrev(grad(scalar)))(x)

    first, *second = found()
    assert len(counted) >= 2
    with general():
        assert_close((first, *second), found())
    assert_close(*second)


def test_large_rows_and_other_methods_take_the_general_path(counted):
    """Large rows, many pairs, other methods, and rows that are not standardized take the general path."""
    x = torch.randn(1100, requires_grad=True)
    fullgrad.sort_st(x).values.sum().backward()
    fullgrad.soft.max(x[:9], standardize=False).backward()
    fullgrad.soft.sort(x[:9], method="fast_soft_sort").values.sum().backward()
    # The matrix of their pairs would take the time of many blocks, and 16 MiB.
    fullgrad.soft.median(x[:1050].repeat(4, 1), -1, mode="c1")
    assert not counted


@pytest.mark.short(of=3)
@pytest.mark.parametrize("soft", [True, False], ids=["soft", "st"])
@pytest.mark.parametrize("name", CALLS)
def test_rows_that_are_not_looked_at(name, soft, general, counted, monkeypatch):
    """A GPU gets the same numbers, with infinities and large numbers, without looking at the rows."""
    monkeypatch.setattr(small_rows, "looks_at_numbers", lambda x: False)
    f = getattr(fullgrad.soft, name) if soft else getattr(fullgrad, f"{name}_st")
    rows = torch.randn(5, 6, dtype=torch.float64)
    rows[1], rows[2, 3], rows[3, 2] = 2.0, 1e200, float("nan")
    for mode in MODES:
        method = "softsort" if name in ("max", "argmin") else "neuralsort"
        kwargs = {"dim": -1, "mode": mode, "method": method, **CALLS[name]}
        before = len(counted)
        found = derivatives(lambda x, kwargs=kwargs: f(x, **kwargs), rows)
        assert len(counted) >= before + 2 + soft
        with general():
            expected = derivatives(lambda x, kwargs=kwargs: f(x, **kwargs), rows)
        assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", CALLS)
def test_an_accelerator_is_not_waited_for(name, counted):
    """A tensor whose numbers cannot be read has a value, a gradient and a tangent by closed forms."""
    x = torch.randn(4, 6, device="meta")
    # The hard quantile itself is torch's, which has none of a tensor without numbers in forward mode.
    operators = [getattr(fullgrad.soft, name), *([] if "quantile" in name else [getattr(fullgrad, f"{name}_st")])]
    for f in operators:
        before = len(counted)
        for v in derivatives(lambda x, f=f: f(x, dim=-1, **{k: v for k, v in CALLS[name].items() if k != "dim"}), x):
            assert v.is_meta
        assert len(counted) >= before + 2
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(x.sum() > 0)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["sort", "rank_st", "argsort", "max", "median_st"])
def test_graphs_have_the_numbers_of_eager_code(name):
    """Graphs of torch.compile hold the relaxation and agree with closed forms, second derivatives included."""
    f = getattr(fullgrad, name) if name.endswith("_st") else getattr(fullgrad.soft, name)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)

    def second(x):
        return grad(lambda x: grad(lambda x: total(f(x, dim=-1)))(x).square().sum())(x)

    y = torch.compile(lambda x: total(f(x, dim=-1)), backend="aot_eager", fullgraph=True)(x)
    found = [y, *torch.autograd.grad(y, x), torch.compile(second, backend="aot_eager")(x.detach())]
    y = total(f(x, dim=-1))
    assert_close(found, [y, *torch.autograd.grad(y, x), second(x.detach())])


def test_returned_weights_are_saved_and_nothing_else():
    """The derivative in smooth mode saves the weights; an in-place change of them is detected."""
    x = torch.randn(4, 6, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = fullgrad.soft.argsort(x, dim=-1)
        fullgrad.argsort_st(x, dim=-1)
        fullgrad.soft.argsort(x, dim=-1, mode="c1")
    assert set(saved) == {x.data_ptr(), y.data_ptr()}
    y = fullgrad.soft.argsort(x, dim=-1)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
