"""The public names, and the page that documents each. Nothing here needs Sphinx.

A page lists names by directives: ``family`` takes those of a package or module of fullgrad, and of two that could take a name
the one that names its module more closely does; Sphinx's ``auto…`` directives take one each.
"""

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fullgrad
import fullgrad.audit
import fullgrad.nn
import fullgrad.testing

DOCS = Path(__file__).parents[1]
_FAMILY = re.compile(r"^\.\. family:: (?P<modules>.+)\n(?:   :public: (?P<public>.+)\n)?", re.MULTILINE)
_SINGLE = re.compile(r"^\.\. (?:auto\w+|py:data):: (?P<path>\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Family:
    """A ``family`` directive: the modules of which it lists names, and under which package they are public."""

    page: str
    modules: tuple[str, ...]
    public: str | None

    def closeness(self, path: str) -> int:
        """How closely a module of this family names the one of an object; 0 where none does."""
        if self.public not in (None, path.rpartition(".")[0]):
            return 0
        module = inspect.unwrap(PUBLIC[path]).__module__
        return max(len(prefix) if f"{module}.".startswith(f"{prefix}.") else 0 for prefix in self.modules)


def _public() -> dict[str, Any]:
    """Every public object by the path under which users know it, in the order of the lists."""
    return {"fullgrad.nn": fullgrad.nn, "fullgrad.nn.soft": fullgrad.nn.soft} | {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in (
            fullgrad,
            *filter(inspect.ismodule, [getattr(fullgrad, name) for name in fullgrad.__all__]),
            fullgrad.nn,  # not in `__all__`
            fullgrad.nn.soft,
            fullgrad.audit,
            fullgrad.testing,
        )
        for name in package.__all__
    }


PUBLIC = _public()


def aliases(path: str) -> list[str]:
    """The other public names of the same function."""
    return [other for other in PUBLIC if other != path and PUBLIC[other] is PUBLIC[path]]


def is_alias(path: str) -> bool:
    """Whether it is another name of a function that is public under its own."""
    return inspect.isfunction(PUBLIC[path]) and PUBLIC[path].__name__ != path.rpartition(".")[2]


def is_operator(path: str) -> bool:
    """Whether it is the operator class of a public function."""
    found = PUBLIC[path]
    return (
        inspect.isclass(found) and issubclass(found, fullgrad.Function) and found not in (fullgrad.Elementwise, fullgrad.Function)
    )


def summary(path: str) -> str:
    """The first sentence of the docstring, without the stop."""
    text = (inspect.getdoc(PUBLIC[path]) or "").split("\n\n")[0]
    return " ".join(text.split()).split(". ")[0].rstrip(".")


# The headings of the columns of `which.md` that have operators, and the package that a section is about.
OPERATORS = re.compile(r"use$|write|recipe")
PACKAGES = {"Quantizers": "fullgrad.quantizers", "Spikes": "fullgrad.spikes"}
_NAME = re.compile(r"(?<![\w.\"'=])(?:fullgrad\.)?([A-Za-z]\w*(?:\.\w+)*)(?![\w.]|=[^=])")


def linked(code: str, package: str = "") -> list[tuple[str, str | None]]:
    """The words of a piece of code, and the public name that each has, if any: what is called, or no argument of a call."""
    found, end = [], 0
    for match in _NAME.finditer(code):
        prefixes = [f"{package}." if package else "fullgrad.", "fullgrad.", "fullgrad.sampling.", "fullgrad.quantizers."]
        prefixes += ["fullgrad.spikes.", "fullgrad.soft.", "fullgrad.blackbox.", "fullgrad.safe."]
        path = next((prefix + match[1] for prefix in prefixes if prefix + match[1] in PUBLIC), None)
        inside = code[: match.start()].count("(") > code[: match.start()].count(")")
        if path is not None and not inspect.ismodule(PUBLIC[path]) and not (inside and code[match.end() :][:1] != "("):
            found += [(code[end : match.start()], None)] * (end < match.start()) + [(match[0], path)]
            end = match.end()
    return [*found, *[(code[end:], None)] * (end < len(code))]


def families() -> list[Family]:
    """The ``family`` directives of all pages."""
    return [
        Family(page.relative_to(DOCS).with_suffix("").as_posix(), tuple(found["modules"].split()), found["public"])
        for page in sources()
        for found in _FAMILY.finditer(page.read_text())
    ]


def listed(family: Family, among: list[Family] | None = None) -> list[str]:
    """The names that a family lists, in the order of ``__all__``."""
    among = among or families()
    single = {path for paths in singles().values() for path in paths}
    return [
        path
        for path in PUBLIC
        if path not in single
        and hasattr(PUBLIC[path], "__module__")
        and family.closeness(path) > 0
        and family.closeness(path) == max(other.closeness(path) for other in among)
    ]


def singles() -> dict[str, list[str]]:
    """The names that pages document one by one."""
    return {
        page.relative_to(DOCS).with_suffix("").as_posix(): [found["path"] for found in _SINGLE.finditer(page.read_text())]
        for page in sources()
    }


def pages() -> dict[str, list[str]]:
    """The pages that document each public name. It should be one."""
    found: dict[str, list[str]] = {path: [] for path in PUBLIC}
    among = families()
    for family in among:
        for path in listed(family, among):
            found[path].append(family.page)
    for page, paths in singles().items():
        for path in paths:
            found.setdefault(path, []).append(page)
    return found


def sources() -> list[Path]:
    """The pages that people write."""
    return sorted(page for folder in (".", "cookbook", "families", "guides") for page in DOCS.glob(f"{folder}/*.md"))
