"""The names that arguments may have, read from the source: a wrong one is refused before torch is imported, in seconds."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import fullgrad
from fullgrad._core.listed import listed
from fullgrad.cli._errors import check_names


def operators() -> list[str]:
    """Every public name, as `python -m fullgrad list` prints operators: `round`, `soft.sort`."""
    found = [name for family in fullgrad._TOP_LEVEL for name in listed(family)]
    return found + [f"{module}.{name}" for module in fullgrad._MODULES for name in listed(module)]


def check_operators(given: list[str], what: str, also: tuple[str, ...] = ()) -> None:
    """Refuse names that cannot be of an operator, nor of a case: these begin with an operator's, or are written out."""
    known = [*operators(), *also]
    unknown = [name for name in given if re.split("[ ,]", name)[0] not in known]
    if unknown:
        written = {
            node.value for text in _texts("_suite/cases") for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
        }
        check_names([name for name in unknown if name not in written], known, what)


def checks() -> dict[str, list[str]]:
    """The checks of each group."""
    found: dict[str, list[str]] = {}
    for text in _texts("testing"):
        for group, name in re.findall(r'^@check\("([^"]+)".*\)\ndef (\w+)', text, re.MULTILINE):
            found.setdefault(group, []).append(name)
    return found


def laws() -> list[str]:
    """The laws of `fuzz`."""
    return [name for text in _texts("_suite/fuzz") for name in re.findall(r"^@law\ndef (\w+)", text, re.MULTILINE)]


def words(file: str) -> list[str]:
    """The words in the strings of a file that are no sentences."""
    tree = ast.parse(files("fullgrad").joinpath(file).read_text(encoding="utf-8"))
    strings = [str(n.value) for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [word for text in strings if " " not in text for word in re.findall(r"\w+", text)]


def of_torch() -> list[str]:
    """The words in the strings of the files in which torch has the samples of its operators, and of ours."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    folder = Path(spec.submodule_search_locations[0]) / "testing" / "_internal"  # type: ignore[index]
    found = [folder / "common_methods_invocations.py", *sorted((folder / "opinfo").rglob("*.py"))]
    text = "".join(file.read_text(encoding="utf-8") for file in found)
    names = dict.fromkeys(re.findall(r"""["']([\w.]+)["']""", text))
    return [*dict.fromkeys(word for name in names for word in name.split(".")), *words("_suite/torch_samples.py")]


def _texts(folder: str) -> Iterator[str]:
    """The files of a folder."""
    for file in sorted(files("fullgrad").joinpath(folder).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            yield file.read_text(encoding="utf-8")
