"""Sparse softmaxes, soft subsets and their losses."""

import pytest

from tests import golden

CASES = [c for c in golden.ALL["cases"] if not c["op"].startswith("sampling.")]


@pytest.mark.parametrize("case", CASES, ids=golden.ident)
def test_golden(case):
    """The value, the gradient by all inputs, and its derivative along a direction."""
    golden.check(case)
