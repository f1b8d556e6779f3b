"""The Python files of a file, a folder, or an installed package, which is not imported."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path


def sources(target: str) -> Iterator[tuple[Path, str]]:
    """Each file, with its name in the report."""
    path = Path(target)
    if path.suffix == ".py" and path.is_file():
        yield path, target
        return
    root = path if path.is_dir() else _package(target)
    if root.is_file():
        yield root, f"{target.replace('.', '/')}.py"
        return
    for file in sorted(root.rglob("*.py")):
        inner = file.relative_to(root)
        if not any(part.startswith(".") or part == "node_modules" for part in inner.parts):
            yield file, (Path(target.replace(".", "/") if root is not path else target) / inner).as_posix()


def _package(name: str) -> Path:
    # Finding a package inside another would import the outer one.
    first, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise FileNotFoundError(f"{name}: no such file or folder, and no package of this name is installed.")
    if not spec.submodule_search_locations:
        return Path(spec.origin or "")
    root = Path(next(iter(spec.submodule_search_locations))).joinpath(*inner)
    return root if root.is_dir() else root.with_suffix(".py")
