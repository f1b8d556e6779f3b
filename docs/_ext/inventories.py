"""Local inventories of the names in torch and Python that the pages refer to, so that a build needs no network.

A list has a name per line, and where the rule does not give it the page: ``torch.Tensor tensors.html``. A reference to a name
that is not on a list is a broken link, and fails the build; so does a name that does not exist.
"""

import inspect
import pkgutil
import zlib
from pathlib import Path
from types import ModuleType


def write(source: Path, target: Path, project: str, rule: str = "") -> None:
    """The inventory of a list, in version 2 of Sphinx's format. ``rule`` is the page of a name, with ``{name}`` in it."""
    entries = []
    for line in source.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, page = line.partition(" ")
        page = page or rule.format(name=name)
        entries.append(f"{name} py:{_kind(name)} 1 {page if '#' in page else f'{page}#$'} -")
    header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    header += "# The remainder of this file is compressed using zlib.\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(header.encode() + zlib.compress(("\n".join(entries) + "\n").encode()))


def _kind(name: str) -> str:
    found = pkgutil.resolve_name(name)
    if isinstance(found, ModuleType):
        return "module"
    if inspect.isclass(found):
        return "exception" if issubclass(found, BaseException) else "class"
    if inspect.isclass(pkgutil.resolve_name(name.rpartition(".")[0])):
        return "method"
    return "function" if callable(found) else "data"
