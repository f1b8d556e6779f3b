"""The text of an error in a report: its first sentences and the place in the user's code; and all of it."""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

_FULLGRAD = Path(__file__).parents[1]
# Code of these folders is no place in the user's code.
_INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
_OTHERS = tuple(str(path) for path in (_FULLGRAD, Path(torch.__file__).parent, *_INSTALLED))
# The places that torch's compilers name in their messages.
_PLACE = re.compile(r'File "([^"<]+)", line (\d+), in (\S+)')
_SHAPE = re.compile(r"\b(shape|size)s?\b")
# The characters of a message that a line shows.
_LENGTH = 300


def summary(error: BaseException) -> str:
    """One line: the kind of the error, how it begins, and the place in the user's code, if there is one."""
    message = str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
    # A paragraph ends where a trace begins.
    first = " ".join(message.strip().partition("\n\n")[0].split()) or type(error).__name__
    if len(first) > _LENGTH:
        first = first[:_LENGTH].rpartition(" ")[0] + " …"
    place = next(_places(error), None)
    return f"{first} [{place}]" if place else first


def details(error: BaseException) -> str:
    """The whole error: the numbers of a comparison, or the message and where it was raised."""
    if type(error) is AssertionError and error.__cause__ is None:
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def is_of_shapes(error: BaseException) -> bool:
    """Whether an error, or one that it comes from, names a shape; errors of compilers, which hide theirs, count as such."""
    cause: BaseException | None = error
    while cause is not None:
        if _SHAPE.search(str(cause)) or type(cause).__module__.startswith("torch._dynamo"):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _places(error: BaseException) -> Iterator[str]:
    """The places in the user's code, the innermost first."""
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        told = _PLACE.findall(str(cause))
        for file, line, name in [*((f.filename, f.lineno, f.name) for f in reversed(frames)), *reversed(told)]:
            if not file.startswith(("<", *_OTHERS)):
                yield f"{file}:{line} in {name}"
        cause = cause.__cause__
