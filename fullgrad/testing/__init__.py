"""The proof kit: checks that an operator's derivative is right by every road that torch offers."""

from fullgrad.testing import _derivatives, _machinery, _tracing, _value  # noqa: F401  # registers the checks
from fullgrad.testing._registry import CHECKS, GROUPS
from fullgrad.testing._subject import Subject, TorchLimit

__all__ = ["CHECKS", "GROUPS", "Subject", "TorchLimit"]
