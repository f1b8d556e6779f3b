"""Every check of the kit on every case."""

import pytest

from fullgrad._suite.cases import CASES
from fullgrad.testing import CHECKS, GROUPS, TorchLimit
from fullgrad.testing._subject import float64_devices


def applies(case, name):
    """Whether a case has the oracle that a check needs."""
    numeric = name == "gradcheck" or (name == "gradgradcheck" and case.linear)
    exact = name in GROUPS["value"] and name != "value_on_meta_and_fake_tensors"
    several = name == "unneeded_gradients_cost_nothing"
    if name == "adjoint" and not case.linear:
        return False
    return not (
        (numeric and case.smooth_forwards is None) or (exact and case.value is None) or (several and len(case.diff_argnums) < 2)
    )


@pytest.mark.parametrize("device", float64_devices())
@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(c, n, id=f"{c.name}-{n}", marks=[pytest.mark.exhaustive] * c.exhaustive)
        for c in CASES
        for n in CHECKS
        if applies(c, n)
    ],
)
def test_check(case, name, device):
    """The operator passes the check, on every device that has float64."""
    try:
        CHECKS[name](case.to(device))
    except TorchLimit as limit:
        pytest.skip(str(limit))
