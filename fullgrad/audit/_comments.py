"""The comments ``# fullgrad: ignore`` and ``# fullgrad: ignore[KIND, …]``, which silence findings."""

import io
import re
import tokenize

_COMMENT = re.compile(r"#\s*fullgrad:\s*ignore\b\s*(?:\[([^\]]*)\])?")
Ignored = dict[int, frozenset[str] | None]


def ignored(text: str) -> Ignored:
    """The lines of a module that have such a comment, each with the kinds that it names; None for all kinds."""
    if _COMMENT.search(text) is None:
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(text, newline=None).readline)  # a string may contain such words
    found = [(token.start[0], _COMMENT.search(token.string)) for token in tokens if token.type == tokenize.COMMENT]
    return {line: _kinds(comment[1]) for line, comment in found if comment is not None}


def _kinds(names: str | None) -> frozenset[str] | None:
    return None if names is None else frozenset(_spelled(name) for name in names.split(","))


def _spelled(name: str) -> str:
    """``detach-trick`` and ``Detach trick`` are one name."""
    return name.strip().lower().replace("-", " ")


def is_ignored(comments: Ignored, kind: str, first: int, last: int | None) -> bool:
    """Whether a finding of this kind is silenced on the first or the last line of its code."""
    named = [comments[line] for line in {first, last or first} & comments.keys()]
    return any(kinds is None or _spelled(kind) in kinds for kinds in named)
