"""The things that names of a function stand for: the values that are assigned to them."""

import ast
from collections.abc import Iterator

# In-place methods whose last argument is the new content; their other arguments are positions.
CONTENT_LAST = ("scatter_", "masked_fill_", "index_fill_")


def assignments(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The targets in a scope with their values, tuples taken apart; None for a value that is not an expression of the source."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from pairs(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            yield from pairs(node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from pairs(node.optional_vars, None)


def pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Each target of an assignment with its value."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value
        return
    same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
    plain = same and not any(isinstance(n, ast.Starred) for n in [*target.elts, *value.elts])  # pyright: ignore
    for i, inner in enumerate(target.elts):
        yield from pairs(inner, value.elts[i] if plain else None)  # pyright: ignore


def changed_in_place(node: ast.AST) -> str | None:
    """The name of a tensor that a statement changes: ``x += …``, ``x[…] = …``, ``x.mul_(…)``."""
    target = None
    if isinstance(node, ast.AugAssign):
        target = node.target
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        target = node.targets[0]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_in_place = node.func.attr.endswith("_") and not node.func.attr.endswith("__")
        target = node.func.value if is_in_place else None
    target = target.value if isinstance(target, ast.Subscript) else target
    return target.id if isinstance(target, ast.Name) else None


def contents(scope: ast.AST | None, name: str) -> list[ast.expr] | None:
    """All that is assigned to a name in a scope, and written to it in place; None if that is not known, as for an argument."""
    if scope is None or name in arguments(scope):
        return None
    values = [v for t, v in assignments(scope) if isinstance(t, ast.Name) and t.id == name]
    if not values or None in values:
        return None
    found = [v for v in values if v is not None]
    for node in ast.walk(scope):
        if changed_in_place(node) != name:
            continue
        if isinstance(node, (ast.AugAssign, ast.Assign)):
            found.append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [*node.args, *(k.value for k in node.keywords)]
            found += given[-1:] if node.func.attr in CONTENT_LAST else given
    return found


def arguments(scope: ast.AST) -> list[str]:
    """The names of the arguments of a function; none of a module."""
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return []
    own = scope.args
    every = [*own.posonlyargs, *own.args, *own.kwonlyargs, *([own.vararg] if own.vararg else [])]
    return [a.arg for a in [*every, *([own.kwarg] if own.kwarg else [])]]
