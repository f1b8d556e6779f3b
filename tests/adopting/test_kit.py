"""The kit proves an adopted class, with the class itself in eager autograd as the oracle."""

import pytest
import torch

import fullgrad
from fullgrad.adoption._call import Call
from fullgrad.testing import CHECKS, GROUPS, OperatorError, check_operator
from tests.adopting.functions import NewStyle, SavesInput, SavesIntermediate, SavesOutput, TwoInputs, X, Y

EAGER = [group for group in GROUPS if group != "tracing"]
CASES = {
    "SavesInput": (SavesInput, (X,)),
    "SavesIntermediate": (SavesIntermediate, (X,)),
    "NewStyle": (NewStyle, (X, 3.0)),
    "SavesOutput": (SavesOutput, (X,)),
    "TwoInputs": (TwoInputs, (X, Y)),
}


def matrix(value):
    return value.reshape(2, 2) if isinstance(value, torch.Tensor) else value


@pytest.mark.long(but=2)
@pytest.mark.parametrize("name", CASES)
def test_in_one_line(name):
    """An adopted class passes every check that applies, eager ones here."""
    cls, inputs = CASES[name]
    report = check_operator(
        fullgrad.adopt(cls), *[v.reshape(2, 2) if isinstance(v, torch.Tensor) else v for v in inputs], checks=EAGER
    )
    assert sum(result.status == "passed" for result in report.values()) >= 40


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_in_one_line_compiled(name):
    """An adopted class passes all checks, compiled ones included."""
    cls, inputs = CASES[name]
    report = check_operator(fullgrad.adopt(cls), *map(matrix, inputs))
    assert sum(result.status == "passed" for result in report.values()) >= 50
    assert set(report) == set(CHECKS)


def test_what_is_wrong_is_found(monkeypatch):
    """The oracle does not share the adopted rules: a backward that is off in transforms alone fails."""
    backward = Call.backward
    monkeypatch.setattr(Call, "backward", lambda *args: [g if g is None else 2 * g for g in backward(*args)])
    with pytest.raises(OperatorError, match="func_grad"):
        check_operator(fullgrad.adopt(SavesInput), X, checks=["func_grad"])
