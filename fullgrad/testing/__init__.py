"""The testing kit: checks that an operator's derivative is right under every transform of torch."""

from fullgrad.testing import _derivatives, _hooks_and_checkpoints, _randomness, _tracing, _value  # noqa: F401  # registers the checks
from fullgrad.testing._check_operator import check_operator
from fullgrad.testing._pytest import operator
from fullgrad.testing._registry import CHECKS, GROUPS, UPSTREAM_ISSUES
from fullgrad.testing._report import OperatorError, Report, Result
from fullgrad.testing._subject import NotApplicable, Subject, TorchLimit

__all__ = [
    "CHECKS",
    "GROUPS",
    "UPSTREAM_ISSUES",
    "NotApplicable",
    "OperatorError",
    "Report",
    "Result",
    "Subject",
    "TorchLimit",
    "check_operator",
    "operator",
]
