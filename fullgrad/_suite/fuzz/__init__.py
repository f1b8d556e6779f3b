"""Fuzzing: randomly drawn programs, each a call of an operator with a law that must hold.

`Program` is one of them; `check` raises if its law is broken. ``_search``, which needs Hypothesis, draws and shrinks them.
"""

from fullgrad._suite.fuzz._laws import LAWS, Rejected, check
from fullgrad._suite.fuzz._program import Program, Step

__all__ = ["LAWS", "Program", "Rejected", "Step", "check"]
