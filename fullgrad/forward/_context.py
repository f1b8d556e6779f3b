"""`right_derivatives`: torch's operators, other packages' Functions and checkpoints have all derivatives."""

import contextlib
from collections.abc import Iterator

from fullgrad._dispatch import is_tracing
from fullgrad.adoption import adopting
from fullgrad.completion._completing import completed


@contextlib.contextmanager
def right_derivatives() -> Iterator[None]:
    """A context for calls of the package; under a tracer none may change what is being traced."""
    if is_tracing():
        yield
    else:
        with completed(), adopting(checkpoint=True):
            yield
