"""The proof kit: checks that an operator's derivative is right by every road that torch offers."""

from fullgrad.testing import _derivatives, _machinery, _tracing, _value  # noqa: F401  # registers the checks
from fullgrad.testing._check_operator import check_operator
from fullgrad.testing._registry import CHECKS, GROUPS, THREADS
from fullgrad.testing._report import OperatorError, Report, Result
from fullgrad.testing._subject import NotApplicable, Subject, TorchLimit

__all__ = [
    "CHECKS",
    "GROUPS",
    "THREADS",
    "NotApplicable",
    "OperatorError",
    "Report",
    "Result",
    "Subject",
    "TorchLimit",
    "check_operator",
]
