"""Values, gradients and Hessian-vector products of formulas and published packages."""

import pytest

import fullgrad
from tests import golden

pytestmark = pytest.mark.short

CASES = [c for c in golden.ALL["cases"] if c["op"].startswith("sampling.")]


@pytest.mark.parametrize("case", CASES, ids=golden.ident)
def test_golden(case):
    """The value, the gradient by all inputs, and its derivative along a direction are equal."""
    golden.check(case)


def test_golden_cases_cover_the_family():
    """Every random operator has golden cases."""
    names = {c["op"].split(".")[1] for c in CASES}
    assert names == {n for n in fullgrad.sampling.__all__ if not n.endswith("_like")}
