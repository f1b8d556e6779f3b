"""The judge of torch's operators: it passes what is right, and catches what is broken on purpose."""

import functools
from pathlib import Path

import pytest
import torch

import fullgrad
from fullgrad._dispatch import operator_database
from fullgrad._suite import torch_operators
from fullgrad._suite.torch_operators import WRONG, Problem, fitted, judged, tries
from fullgrad._suite.torch_samples import MAY_DIFFER, MAY_RAISE, NOT_JUDGED, Operator, Sample, operators
from fullgrad.completion import _completing

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
X, W = torch.tensor([[0.3, -0.7], [1.1, 0.4]], dtype=torch.float64), torch.tensor([1.2, 0.8], dtype=torch.float64)


def found_in(f, *inputs):
    """What is found of a function, alone."""
    sample = Sample("ours", lambda *xs: [f(*xs)], inputs, tuple(range(len(inputs))))
    return judged(Operator("ours", lambda _: iter([sample])), 1)


class Sine(torch.autograd.Function):
    """A right one, but for forward over forward, which torch does not give to a Function."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0].cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return Sine.apply(x), in_dims[0]


class OfOneSample(Sine):
    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return Sine.apply(x[:1].expand_as(x)), 0


class Spreading(Sine):
    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return Sine.apply(x) + 0 * x.sum(0), 0


class Overflowing(Sine):
    """Inside alone, as a formula may be: a value under a transform that torch alone has, too, is torch's own."""

    @staticmethod
    def vmap(info, in_dims, x):
        return Sine.apply(x * x / x if _completing._state.is_inside else x), in_dims[0]


def reasons():
    """Why something may differ, or may raise."""
    return [d.reason for d in MAY_DIFFER] + [reason for *_, reason in MAY_RAISE]


def test_what_is_right_passes():
    """A function of two inputs, alone and inside."""
    result = found_in(lambda x, w: (x * w).exp() / w, X, W)
    assert result == (1, {}, {})


BROKEN = {
    "a first derivative": (
        lambda x: x.sin().detach() + x - x.detach(),
        (X,),
        {"reverse of a sum", "forward of a nonlinear loss", "eager first derivative of a sum"},
        (),
    ),
    "a first derivative, where the other input is constant": (
        lambda x, w: x * w + (0 if w.requires_grad else x - x.detach()),
        (X, W),
        {"reverse of a sum, others constant"},
        {"reverse of a sum"},
    ),
    "one nesting": (
        lambda x: Sine.apply(x),
        (X,),
        {"forward over forward of a sum"},
        {"forward over reverse of a sum", "reverse over forward of a sum", "reverse over reverse of a sum"},
    ),
    "a third derivative": (
        lambda x: x.sin() + (x - x.detach()) ** 3,
        (X,),
        {"reverse over reverse over reverse of a nonlinear loss", "eager third derivative of a sum"},
        {"eager second derivative of a sum", "forward over forward of a sum"},
    ),
    "unequal samples": (
        lambda x: OfOneSample.apply(x),
        (X,),
        {"vmap of reverse of a nonlinear loss, inputs batched"},
        {"reverse of a nonlinear loss", "value, float64, under vmap"},
    ),
    "NaN of another sample": (
        lambda x: Spreading.apply(x),
        (X,),
        {"vmap of reverse, beside a sample with NaN"},
        {"vmap of reverse of a nonlinear loss, inputs batched"},
    ),
    "a scale": (
        lambda x: Overflowing.apply(x),
        (X,),
        {"value at 1e30, float32, under vmap"},
        {"value, float32, under vmap"},
    ),
    "a loss that is a sum": (
        lambda x: _Summed.apply(x),
        (X,),
        {"reverse of a sum"},
        {"reverse of a nonlinear loss"},
    ),
}


class _Summed(Sine):
    """Wrong for a cotangent of equal numbers, as that of a sum is."""

    @staticmethod
    def backward(ctx, g):
        return torch.where((g == g.max()).all(), 0, g) * ctx.saved_tensors[0].cos()


@pytest.mark.short
@pytest.mark.parametrize("kind", BROKEN)
def test_each_kind_of_error_is_caught(kind):
    """By what was made for it, alone as well as inside, and by none of those that cannot see it."""
    f, inputs, kinds, others = BROKEN[kind]
    result = found_in(f, *inputs)
    for told in (result.inside,) if "scale" in kind else (result.alone, result.inside):
        assert kinds <= {k for k, v in told.items() if v.startswith(WRONG)}
        assert not {*others} & {*told}


# What is broken, by a part of it, and in which of the judge's tries it must be seen.
BREAKS = {
    "values by 0.1%": (lambda y: y * 1.001, "value, float64"),
    "gradients by 1%": (lambda y: y + 0.01 * (y - y.detach()), "gradient"),
    "first derivatives by 1%": (lambda y: y + 0.01 * (y - y.detach()), "reverse of a nonlinear loss"),
    "tangents by 1%": (lambda y: y + 0.01 * (y - y.detach()), "forward of a nonlinear loss"),
    "second derivatives": (lambda y: y + 0.1 * (y - y.detach()) ** 2, "forward over reverse of a nonlinear loss"),
    "second tangents": (lambda y: y + 0.1 * (y - y.detach()) ** 2, "forward over forward of a nonlinear loss"),
    "third derivatives": (lambda y: y + 0.5 * (y - y.detach()) ** 3, "reverse over reverse over reverse of a nonlinear loss"),
}
# Those of which something may differ from torch's own, and those whose gradient is judged by another function.
NAMES = [
    "cumprod",
    "_scaled_dot_product_flash_attention_for_cpu",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "conv_tbc",
    "index_reduce.amax, in place",
    "svd_lowrank",
    "nn.functional.ctc_loss",
    "nn.LSTM",
    "nn.TransformerDecoderLayer",
    "linalg.slogdet",
    "logcumsumexp",
    "_segment_reduce.lengths",
    "cholesky_inverse",
    "ormqr",
    "nn.functional.grid_sample",
    "nn.functional.scaled_dot_product_attention",
    "ldexp",
    "linalg.det",
    "linalg.eigvals",
    "polar",
]


# Differences of the third order have few digits there, as the page says.
UNSEEN = {("svd_lowrank", "third derivatives")}
SECOND = {"_segment_reduce.lengths"}  # of whose first sample all derivatives are 0


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", NAMES)
def test_small_errors_are_caught_where_something_may_differ(name):
    """Values that are off by 0.1%, first derivatives by 1%, and higher ones, in every try that is left."""
    if name not in by_name():
        pytest.skip("torch has no such operator")
    count, broken = 1 + (name in SECOND), [lambda y: y]
    sample = list(by_name()[name].samples(count))[count - 1]
    sample = sample._replace(
        outputs=lambda *xs, f=sample.outputs: [broken[0](y) if _completing._state.is_inside else y for y in f(*xs)]
    )
    problem, op = Problem.of(sample), Operator(name, lambda _: iter([sample]))
    every = [
        *torch_operators._derivatives(problem, problem.differentiated, "a nonlinear loss", ""),
        *torch_operators._values(problem),
        *[t for t in torch_operators._hurt(problem) if t.kind in ("gradient", "gradient at 1e-6")],
    ]
    for what, (broken[0], kind) in BREAKS.items():
        chosen = [t for t in every if t.kind == kind or (kind in ("value, float64", "gradient") and t.kind.startswith(kind))]
        assert chosen, what
        with fullgrad.completing():
            for tried in chosen:
                is_judged = not torch_operators._may_differ(op, sample, tried.kind)
                assert is_judged is ((name, what) not in UNSEEN), tried.kind
                if is_judged:
                    assert torch_operators._said(op, tried).startswith(WRONG), (what, tried.kind)


def test_each_difference_has_such_a_test():
    """Every entry of the list is met by an operator above."""
    assert all(any(d.operators.search(name) for name in NAMES) for d in MAY_DIFFER)


def test_the_truth_is_that_of_analysis():
    """Of mixed derivatives to the third order; at a kink none is known, whose differences look smooth."""
    u, v, w = (torch.tensor([a], dtype=torch.float64) for a in (1.0, 0.5, -0.8))
    x = torch.tensor([0.4], dtype=torch.float64)
    truths = fitted(lambda x: (2 * x).sin().sum(), [x], [[u], [v], [w]])
    expected = [torch.sin(2 * x), 2 * torch.cos(2 * x), -4 * torch.sin(2 * x) * v, -8 * torch.cos(2 * x) * v * w]
    assert all(t.is_known and not t.check(e) for t, e in zip(truths, expected, strict=True))
    for f in (lambda x: x.abs().sum(), lambda x: (x == 0).double().sum()):
        assert not any(t.is_known for t in fitted(f, [0 * x], [[u], [v], [w]])[1:])


@pytest.mark.long
def test_what_is_not_judged_is_named():
    """By names that torch or the samples of ours have, in a sentence each."""
    pytest.importorskip("expecttest")
    names = {op.name for op in operators()}
    assert not names & {*NOT_JUDGED}
    assert all(len(reason.split()) > 3 for reason in (*NOT_JUDGED.values(), *reasons()))
    described = {op.name for op in operator_database() if op.supports_autograd}
    assert all(name.partition(", in place")[0].split(".")[0] in {d.split(".")[0] for d in described} for name in NOT_JUDGED)


def test_the_page_names_what_is_not_judged():
    """Each operator in a row with its reason, and each reason for a difference or an error."""
    page = (Path(__file__).parents[2] / "docs" / "completing.md").read_text()
    rows = [f"| `{name}` | {reason} |" for name, reason in NOT_JUDGED.items()]
    assert f"|---|---|\n{chr(10).join(rows)}\n\n" in page
    assert all(f"- {reason}." in page.replace("\n  ", " ") for reason in reasons())


@functools.cache
def by_name():
    pytest.importorskip("expecttest")
    return {op.name: op for op in operators()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(16))
def test_every_operator_is_judged(part):
    """A sample of each has a derivative whose truth is known, unless it is named with a reason."""
    without = [
        op.name
        for op in list(by_name().values())[part::16]
        if not any(any("derivative" in t.kind or "reverse" in t.kind for t in tries(s)) for s in op.samples(2))
    ]
    assert not without


@pytest.mark.long
@pytest.mark.parametrize("name", ["nn.functional.glu", "nn.functional.soft_margin_loss", "nn.functional.hardsigmoid"])
def test_completed_operators_are_right(name):
    """Inside, where torch alone is not."""
    if name not in by_name():
        pytest.skip("torch has no such operator")
    result = judged(by_name()[name], 1)
    assert result.samples
    assert result.alone
    assert not result.inside


def test_a_sample_without_a_derivative_is_none():
    """Whole results, and errors."""
    for f in (lambda x: x.round().detach(), lambda x: x @ torch.ones(7)):
        assert Problem.of(Sample("ours", lambda *xs, f=f: [f(*xs)], (X,), (0,))) is None
