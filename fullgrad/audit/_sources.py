"""The Python files of a file, a folder, or an installed package, which is not imported, and their syntax trees."""

import ast
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fullgrad.audit._comments import Ignored, ignored


class Tree(NamedTuple):
    """The syntax tree of a module, and its comments that silence findings."""

    module: ast.Module
    comments: Ignored


def trees(target: str) -> Iterator[tuple[Tree, str]]:
    """The syntax tree of each file, with the name of the file in the report. Files that are not Python are left out.

    Raises:
        FileNotFoundError: There is no such file, folder or package.
        SyntaxError: The target is a file, and not Python.
    """
    for path, label in sources(target):
        found = tree(path, is_named=label == target)
        if found is not None:
            yield found, label


def tree(path: Path, is_named: bool) -> Tree | None:
    """The syntax tree of a file; None for one that is not Python, unless the user named it."""
    try:
        return parsed(path.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:
        if is_named:
            raise
        return None


def parsed(text: str) -> Tree:
    """The syntax tree of code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in strings
        return Tree(ast.parse(text), ignored(text))


def sources(target: str) -> Iterator[tuple[Path, str]]:
    """Each file, with its name in the report."""
    path = Path(target)
    if path.suffix == ".py" and path.is_file():
        yield path, target
    elif path.is_dir():
        yield from _files(path, target)
    else:
        for name in _modules(target):
            root = _package(name)
            if root.is_file():
                yield root, f"{name.replace('.', '/')}.py"
            else:
                yield from _files(root, name.replace(".", "/"))


def _files(folder: Path, label: str) -> Iterator[tuple[Path, str]]:
    for file in sorted(folder.rglob("*.py")):
        inner = file.relative_to(folder)
        if not any(_is_left_out(folder.joinpath(*inner.parts[: i + 1])) for i in range(len(inner.parts))):
            yield file, (Path(label) / inner).as_posix()


def _is_left_out(path: Path) -> bool:
    """Whether a file or folder is hidden, or a folder of what was installed or is a copy that a build has made."""
    if path.name in ("build", "dist"):  # unless they are packages
        return path.is_dir() and not (path / "__init__.py").exists()
    return path.name.startswith(".") or path.name in ("node_modules", "venv") or path.name.endswith(".egg-info")


def _modules(target: str) -> list[str]:
    """The module of a name, or those of an installed distribution, whose name on the index may be another."""
    try:
        if importlib.util.find_spec(target.partition(".")[0]) is not None:
            return [target]
    except (ImportError, ValueError):
        pass
    try:
        files = importlib.metadata.files(target) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        files = []
    paths = [file for file in files if file.suffix == ".py" and ".." not in file.parts]
    found = dict.fromkeys(
        file.parts[0].removesuffix(".py") for file in paths if len(file.parts) == 1 or file.name == "__init__.py"
    )
    if not found:
        raise FileNotFoundError(_not_found(target))
    return [*found]


def _not_found(target: str) -> str:
    if Path(target).exists():
        return f"{target}: neither a file of Python nor a folder."
    return f"{target}: no such file or folder, and no package of this name is installed."


def _package(name: str) -> Path:
    # Finding a package inside another would import the outer one.
    first, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise FileNotFoundError(_not_found(name))
    if not spec.submodule_search_locations:
        return Path(spec.origin or "")
    root = Path(next(iter(spec.submodule_search_locations))).joinpath(*inner)
    return root if root.is_dir() else root.with_suffix(".py")
