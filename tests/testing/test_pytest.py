"""`fullgrad.testing.operator`: a test for each check, with marks, skips, the public thread and the smallest input."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import strategies

import fullgrad
import pytest_fullgrad
from fullgrad.testing import CHECKS, GROUPS, operator

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
# An installed wheel has it as an entry point.
PLUGIN = [] if importlib.metadata.entry_points(group="pytest11", name="fullgrad") else ["-p", "pytest_fullgrad"]


@pytest.mark.short
@operator(
    inputs=lambda: [torch.tensor([[0.3, -1.7], [2.2, 0.9]])],
    surrogate=lambda x: x + (x.round() - x).detach(),
    value=torch.round,
    smooth_forwards={fullgrad.Round: lambda x: x.clone()},
    checks=["forward", "gradcheck", "value"],
)
def test_round(x):
    """The plugin on an operator of the package."""
    return fullgrad.round(x)


def through(x):
    """The surrogate of a rounding."""
    return x + (x.round() - x).detach()


class TestInAClass:
    """Methods, static or not, with given or drawn inputs."""

    factor = 2
    doubled = {"surrogate": lambda x: 2 * through(x), "value": lambda x: 2 * x.round()}

    @operator(inputs=torch.tensor([0.3, -1.7]), checks=["func_jvp", "value_is_exact"], **doubled)
    def test_method(self, x):
        return self.factor * fullgrad.round(x)

    @operator(inputs=[torch.tensor([0.3, -1.7])], checks=["func_jvp"], surrogate=through)
    @staticmethod
    def test_static(x):
        return fullgrad.round(x)

    @operator(
        inputs=strategies.builds(lambda n: [torch.linspace(-1, 1, n)], strategies.integers(1, 5)), checks=["func_jvp"], **doubled
    )
    def test_drawn(self, x):
        return self.factor * fullgrad.round(x)


OPERATORS = """
import torch
import fullgrad
from hypothesis import strategies

SETTINGS = dict(
    inputs=[torch.tensor([[0.31, -1.72, 0.2], [2.24, 0.93, -0.7]])],
    surrogate=lambda x: x + (x.round() - x).detach(),
    checks=["reverse", "second order", "randomness"],
)


@fullgrad.testing.operator(**SETTINGS)
def test_right(x):
    return fullgrad.round(x)


class Tripled(fullgrad.Round):
    @staticmethod
    def vjp(ctx, g):
        return g * 3


@fullgrad.testing.operator(**SETTINGS)
def test_broken(x):
    return Tripled.apply(x)
"""

DRAWN = """

numbers = strategies.lists(strategies.floats(-50, 50, width=32), min_size=1, max_size=3)
drawn = strategies.tuples(numbers.map(lambda v: torch.tensor(v) + 0.25))


class Large(fullgrad.Round):
    @staticmethod
    def forward(x):
        return torch.where(x > 10, x, x.round())


exact = fullgrad.testing.operator(inputs=drawn, value=torch.round, checks=["value_is_exact"])
test_drawn = exact(fullgrad.round)
test_large = exact(Large.apply)
"""

OWN = """

class Own(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, t):
        return t


test_own = fullgrad.testing.operator(inputs=lambda: [torch.tensor([0.3, 1.7])], checks=["compile_jvp"])(Own.apply)
"""


def run(pytester, *args):
    """Run pytest in its own process; pytester in this one would import torch's modules twice."""
    return pytester.runpytest_subprocess(*PLUGIN, *args, "--strict-markers", "-p", "no:cacheprovider", timeout=120)


@pytest.mark.long
def test_a_line_for_each_check(pytester):
    """The right operator passes, the broken one fails with what it proves and the smallest input; the rest is skipped.

    hypothesis draws the inputs where they are a strategy, and finds the smallest.
    """
    pytester.makepyfile(test_operators=OPERATORS + DRAWN + OWN)
    result = run(pytester, "-v", "-rs")
    text = result.stdout.str()
    for check in (*GROUPS["reverse"], *GROUPS["second order"]):
        assert f"test_right[{check}] PASSED" in text
    assert "test_broken[func_grad] FAILED" in text
    assert "func_grad, of the group 'reverse': " in text
    smallest = text.partition("smallest input: (torch.tensor([[")[2].partition("]]")[0]
    assert smallest
    assert "," not in smallest  # one element
    assert "test_right[compiled_draws_once] SKIPPED" in text
    assert "draws nothing" in text or "draws no" in text  # the reason
    assert "test_drawn[value_is_exact] PASSED" in text
    assert "smallest input: (torch.tensor([10.25], dtype=torch.float32),)" in text
    assert "torch's own autograd.Function fails here: https://github.com/pytorch/pytorch/issues/" in text
    assert "Traceback" not in text
    assert "fullgrad/testing/_pytest.py" not in text


@pytest.mark.long
def test_marks_choose_groups(pytester):
    """``-m`` takes the mark of a group, with the workers of xdist too."""
    pytester.makepyfile(test_operators=OPERATORS)
    result = run(pytester, "-m", "fullgrad_second_order", "-k", "right", "-n", "2")
    result.assert_outcomes(passed=len(GROUPS["second order"]))


GAPS = """
import torch
import fullgrad

surrogate = lambda x: x + (x.round() - x).detach()
inputs = [torch.tensor([0.31, -1.72])]


@fullgrad.testing.operator(inputs=inputs, checks=["func_grad", "func_vjp"])
def test_alone(x):
    return -fullgrad.round(x)


@fullgrad.testing.operator(inputs=inputs, surrogate=surrogate, checks=["func_grad", "value_is_exact"])
def test_with_a_surrogate(x):
    return fullgrad.round(x)


class TestMethods:
    @fullgrad.testing.operator(inputs=inputs, checks=["func_grad"])
    def test_method(self, x):
        return fullgrad.round(x)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.long
@pytest.mark.sampled(of=2)
def test_what_was_not_checked_is_listed_at_the_end(pytester, workers):
    """A line for each operator and argument that is missing, from workers too."""
    pytester.makepyfile(test_gaps=GAPS)
    lines = [line for line in run(pytester, *workers).outlines if "not checked" in line]
    told = "not checked: whether the derivative is the declared one, as the transforms were compared with each other alone"
    assert sorted(lines) == [
        f"test_gaps.py::TestMethods::test_method: {told} (no `surrogate` was given)",
        f"test_gaps.py::test_alone: {told} (no `surrogate` was given)",
        "test_gaps.py::test_with_a_surrogate: not checked: the value, to the last bit (no `value` was given)",
    ]


def test_every_mark_is_registered(pytester):
    """The plugin, which does not import the package, knows the groups."""
    assert {*pytest_fullgrad.GROUPS} == {*GROUPS}
    shown = pytester.runpytest_inprocess(*PLUGIN, "--markers").stdout.str()
    assert all(f"@pytest.mark.{pytest_fullgrad.mark_of(group)}:" in shown for group in GROUPS)


def test_the_plugin_loads_without_torch():
    """pytest loads the plugin in every run, so it does not import torch."""
    code = "import sys, pytest_fullgrad; assert 'torch' not in sys.modules and 'fullgrad' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_the_wheel_has_the_plugin():
    """The entry point and the module that it names."""
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nfullgrad = "pytest_fullgrad"' in text
    assert 'only-include = ["fullgrad", "pytest_fullgrad.py"]' in text


def test_a_failure_is_told_with_the_smallest_input():
    """The failure gives the check, its group, and numbers as few and as round as still fail in the same way."""

    @operator(
        inputs=[torch.tensor([[0.31, -1.72, 0.5], [2.23, 0.94, -0.2]]).double(), torch.tensor([1.0, 2.0, 3.0]).double(), "a"],
        surrogate=lambda x, w, _: x * w,
        checks=["func_grad"],
    )
    def wrong_above_2(x, w, _):
        return torch.where(x.detach() > 2, 3 * x * w - (2 * x * w).detach(), x * w)

    with pytest.raises(pytest.fail.Exception) as failed:
        wrong_above_2(check="func_grad")
    first, *_, proves, smallest = failed.value.msg.splitlines()
    assert first.startswith("expected [")
    assert proves.startswith("func_grad, of the group 'reverse': ")
    assert smallest == (
        "smallest input: (torch.tensor([[2.2]], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64), 'a')"
    )


def test_checks_that_fail_alike_have_one_line():
    """After the first, which shows what it proves and the smallest input; each fails."""

    @operator(inputs=[torch.ones(2)], checks=["reverse"])
    def takes_two(x, y):
        return x * y

    told = []
    for check in GROUPS["reverse"]:
        with pytest.raises(pytest.fail.Exception) as failed:
            takes_two(check=check)
        told.append(failed.value.msg.splitlines())
    first, *others = told
    assert len(first) > 1
    assert others == [[f"as {GROUPS['reverse'][0]}: {first[0]}"]] * (len(GROUPS["reverse"]) - 1)


def test_tolerances_and_reasons_are_those_of_the_kit():
    """A kernel that is less exact passes, and a check that is left out is skipped with the reason, which is listed."""

    @operator(inputs=[torch.ones(2)], surrogate=torch.sin, tolerances=(1e-5, 1e-5), left_out={"func_jacrev": "no time"})
    def inexact(x):
        return torch.sin(x) * (1 + 1e-7)

    inexact(check="func_grad")
    with pytest.raises(pytest.skip.Exception, match="left out: no time"):
        inexact(check="func_jacrev")
    assert "left out: func_jacrev: no time" in inexact.not_checked


def test_unknown_checks_are_refused():
    """Unknown checks are refused at the definition."""
    with pytest.raises(ValueError, match="unknown checks: nothing"):
        operator(inputs=[torch.zeros(1)], checks=["nothing"])


def test_all_checks_are_made_by_default():
    """Every check is a parameter."""
    (mark,) = operator(inputs=[torch.zeros(1)])(torch.sin).pytestmark
    assert [p.id for p in mark.args[1]] == [*CHECKS]
