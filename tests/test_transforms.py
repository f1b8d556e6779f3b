"""Every check of the kit on every case."""

import pytest

from fullgrad.testing import CHECKS, NotApplicable
from tests.cases import CASES


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_check(case, name):
    """The operator passes the check."""
    try:
        CHECKS[name](case)
    except NotApplicable as limit:
        pytest.skip(str(limit))
