"""The kit proves an adopted class, with the class itself in eager autograd as the oracle."""

import pytest
import torch

import fullgrad
from fullgrad.testing import CHECKS, GROUPS, OperatorError, check_operator
from tests.adopting.functions import NewStyle, SavesInput, SavesIntermediate, SavesOutput, TwoInputs, X, Y

QUICK = [group for group in GROUPS if group != "tracing"] + ["compile_the_operator_itself"]
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
    """An adopted class passes every check that applies, here the eager ones and one that compiles."""
    cls, inputs = CASES[name]
    report = check_operator(
        fullgrad.adopt(cls), *[v.reshape(2, 2) if isinstance(v, torch.Tensor) else v for v in inputs], checks=QUICK
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


class WrongInTransforms(SavesInput):
    """A class whose backward is twice as large in transforms."""

    @staticmethod
    def backward(ctx, g):
        return SavesInput.backward(ctx, 2 * g if torch._C._functorch.peek_interpreter_stack() else g)


def test_the_oracle_of_an_adopted_class_is_eager_autograd():
    """A backward that is wrong in transforms alone is found, as the oracle does not share the adopted rules."""
    with pytest.raises(OperatorError, match="func_grad"):
        check_operator(fullgrad.adopt(WrongInTransforms), X, checks=["func_grad"])
