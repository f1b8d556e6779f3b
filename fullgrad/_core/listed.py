"""The names in a package's ``__all__``, read from its source: nothing is imported, which takes seconds."""

import ast
from importlib.resources import files


def listed(module: str) -> list[str]:
    """The names of ``fullgrad.<module>``."""
    for node in ast.parse(files("fullgrad").joinpath(f"{module}/__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [str(n.value) for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
    return []
