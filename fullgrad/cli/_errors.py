"""Errors that users can fix, and how they are reported."""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class UsageError(Exception):
    """An error that is reported in one line, with exit status 2."""


def extra(module: str, name: str) -> ModuleType:
    """An optional dependency; if it is missing, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise UsageError(
            f'{package} is not installed; pip install "fullgrad[{name}]" brings it, in a clone pip install -e ".[{name}]".'
        ) from None


def check_names(given: Iterable[str], known: Iterable[str], what: str, where: str = "`python -m fullgrad list` has them") -> None:
    """Refuse the first name that is not known, and suggest those that are close to it."""
    known = dict.fromkeys(known)
    for name in given:
        if name not in known:
            raise UsageError(f"{name} is no {what}{did_you_mean(name, known) or f'; {where}.'}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the names that are close to it, or nothing."""
    known = dict.fromkeys(known)
    by_lower: dict[str, str] = {}
    for k in sorted(known, key=lambda k: k != k.lower()):  # functions before their classes
        by_lower.setdefault(k.lower(), k)
    close = [by_lower[k] for k in difflib.get_close_matches(name.lower(), by_lower, cutoff=0.7)]
    # A name without its module, such as `sort` for `soft.sort`.
    close += [k for k in known if k.rpartition(".")[2] == name]
    found = list(dict.fromkeys(close))[:4]
    return f": did you mean {' or '.join(found)}?" if found else ""
