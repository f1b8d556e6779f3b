"""The calls of public functions that the tests of other kinds of tensors make."""

from torch import Tensor

from fullgrad._suite.cases import CASES

CALLS = [case for case in CASES if not (case.exhaustive or case.long or case.draws) and isinstance(case.inputs[0], Tensor)]


def first(output):
    """The first tensor of what a function returns."""
    return output if isinstance(output, Tensor) else output[0]
