"""Programs that are drawn: calls of operators that nobody thought of, each with a law that it must keep.

`Program` is one; `check` raises where its law is broken. ``_search``, which needs Hypothesis, draws and shrinks them.
"""

from fullgrad._suite.fuzz._laws import LAWS, Rejected, check
from fullgrad._suite.fuzz._program import Program, Step

__all__ = ["LAWS", "Program", "Rejected", "Step", "check"]
