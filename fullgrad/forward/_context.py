"""`right_derivatives`: torch's operators, other packages' Functions and checkpoints have all derivatives."""

import contextlib
from collections.abc import Iterator

from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import counted_jvps, is_tracing
from fullgrad.adoption import adopting
from fullgrad.completion._completing import completed


@contextlib.contextmanager
def right_derivatives() -> Iterator[None]:
    """A context for calls of the package. Where Dynamo reads code, none may change what is being traced."""
    if is_dynamo_compiling():
        yield
    elif is_tracing():
        with completed(), counted_jvps():
            yield
    else:
        with completed(), adopting(checkpoint=True), counted_jvps():
            yield
