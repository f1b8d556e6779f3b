"""`python -m fullgrad fuzz`: each law catches what breaks it, failures shrink, and what was found stays mended."""

import ast
import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from fullgrad._dispatch import DISPATCH
from fullgrad._suite.cases._case import Case
from fullgrad._suite.fuzz import LAWS, Program, Rejected, Step, _program, check
from fullgrad._suite.fuzz._draw import names
from fullgrad._suite.fuzz._search import search
from fullgrad.cli import main
from tests.operators import Cube
from tests.testing import test_broken as broken

# What a search found, in its smallest form.
MENDED = [
    Program("straight_through", "loop", steps=(Step("vmap"),)),  # an internal assertion of torch
    Program("round", "nesting", steps=(Step("jvp"), Step("vmap"))),  # said nothing: its tangent was drawn in the batch
    Program("spikes.log_tailed_relu", "ways", sizes=(), specials=((0, math.inf),), mode="vjp"),  # 0, and a subnormal
    Program("quantile_st softsort smooth", "layouts", sizes=(0, 1)),  # torch.quantile refuses no rows
    *[
        Program(f"{name} softsort smooth", "ways", sizes=(1, 0), mode="vjp")
        for name in ("soft.sort", "soft.argsort", "soft.rank", "sort_st")
    ],
]


class ByStride(Cube):
    """A value that depends on the memory layout."""

    @staticmethod
    def forward(x):
        return x * x * x * (1 if x.is_contiguous() else 2)


class OneWay(Cube):
    """A gradient that differs while a graph of it is recorded."""

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g * (2 if torch.is_grad_enabled() else 1)


class Coarse(Cube):
    """A gradient of few digits in every dtype but float64."""

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        slope = 3 * x * x
        return (slope if x.dtype == torch.float64 else slope.round()) * g


class LeavesGradModeOff(Cube):
    """A rule that leaves grad mode off."""

    @staticmethod
    def forward(x):
        torch.set_grad_enabled(False)
        return x * x * x


BROKEN = {
    "value": broken.InexactValue,
    "nesting": broken.DroppedTangent,
    "loop": broken.MixesTheBatch,
    "layouts": ByStride,
    "ways": OneWay,
    "adjoint": broken.DroppedTangent,
    "orders": broken.VjpTwice,
    "precision": Coarse,
    "compiled": broken.DroppedTangent,
}


def case(operator):
    """A case of an operator whose value and derivative are those of x^3."""
    x = torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]], dtype=torch.float64)
    cube = lambda x: x * x * x  # noqa: E731
    return Case(name="broken", covers=("broken",), operator=operator.apply, inputs=(x,), surrogate=cube, value=cube)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("law", [law for law in LAWS if law != "compiled"])
@pytest.mark.sampled(of=2)
def test_law_holds_of_a_right_operator_and_finds_a_wrong_one(law, monkeypatch):
    """A few programs find a wrong operator, and pass a right one."""
    monkeypatch.setitem(_program.BY_NAME, "broken", case(Cube))
    assert search(["broken"], [law], count=60).failures == []
    monkeypatch.setitem(_program.BY_NAME, "broken", case(BROKEN[law]))
    assert [program.law for program, _ in search(["broken"], [law], count=120).failures] == [law]


@pytest.mark.long
def test_compiled_programs(monkeypatch):
    """The laws of compiled programs, which take a second each, hold and can fail."""
    monkeypatch.setitem(_program.BY_NAME, "broken", case(broken.BakedIn))
    assert search(["broken"], ["compiled"], count=12).failures


@pytest.mark.long
def test_a_failure_shrinks_to_a_program_that_runs(monkeypatch, tmp_path):
    """A failure shrinks to the simplest failing inputs, as text that runs."""
    monkeypatch.setitem(_program.BY_NAME, "broken", case(ByStride))
    ((program, error),) = search(["broken"], ["layouts"], count=200).failures
    assert (program.sizes, program.specials, program.seed) == (None, (), 0)
    assert "expected" in error
    text = replace(program, case="round").text()
    ast.parse(text)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_mode_that_is_left_is_found(monkeypatch):
    """Grad mode, forward mode, transforms and autocast must be restored."""
    monkeypatch.setitem(_program.BY_NAME, "broken", case(LeavesGradModeOff))
    monkeypatch.setitem(LAWS, "value", lambda program: LeavesGradModeOff.forward(*program.tensors()))
    try:
        with pytest.raises(AssertionError, match="grad mode"):
            check(Program("broken", "value"))
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.parametrize("program", MENDED, ids=lambda p: f"{p.case}-{p.law}")
def test_what_was_found_stays_mended(program):
    """The smallest programs of fixed defects pass."""
    try:
        check(program)
    except Rejected as refusal:
        pytest.fail(f"refused: {refusal}")
    except RuntimeError as error:
        # docs/limits.md: of a rule that uses a transform itself.
        if DISPATCH == "fallback" and "batched == nullptr" in str(error):
            pytest.skip("in the fallback torch fails inside, as for its own Function")
        raise


@pytest.mark.long
def test_programs():
    """Random programs pass, always the same here; others with `python -m fullgrad fuzz --seed N`. A failure is a program."""
    found = search(names(), [law for law in LAWS if law != "compiled"], first_seed=20261128, count=1500)
    assert not found.failures, "\n\n".join(f"{program.text()}\n# {error}" for program, error in found.failures)


def test_command(capsys, tmp_path):
    """The command counts, exits with a status, and writes a file."""
    pytest.importorskip("rich")
    file = tmp_path / "found.json"
    assert main(["fuzz", "round", "--laws", "value", "loop", "--cases", "20", "--seed", "1", "--json", str(file)]) == 0
    assert "20 programs, 0 failures" in capsys.readouterr().out
    assert sum(json.loads(file.read_text())["laws"].values()) == 20
    assert main(["fuzz", "nothing"]) == 2
