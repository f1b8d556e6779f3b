"""Operators of torch.library that a source defines."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

_MAKERS = ("custom_op", "triton_op")


class Operator(NamedTuple):
    """An operator: its name, its line, and the features that do not work."""

    name: str
    line: int
    breaks: tuple[str, ...]


def operators(tree: ast.Module) -> Iterator[Operator]:
    """The operators that a module defines by `torch.library.custom_op`, `triton_op`, or ``define`` of a library.

    An operator is known to have a derivative if the module registers one for it, and a rule for batches alike.
    """
    has = {
        "register_autograd": _registered(tree, "register_autograd"),
        "register_vmap": _registered(tree, "register_vmap"),
    }
    composite = set(_composite(tree))
    for node in ast.walk(tree):
        for call, function in _definitions(node):
            name = _name(call)
            if name is None:
                continue
            known = {name, name.rpartition("::")[2], function}
            if known & composite:  # operators of torch, which torch differentiates
                continue
            # A library may have its derivatives in other files.
            has_none = function and not known & has["register_autograd"]
            broken = ["gradient" if has_none else "func.grad", "jvp (silently 0)"]
            if not known & has["register_vmap"]:
                broken.append("one sample at a time")
            yield Operator(name, node.lineno, tuple(broken))  # type: ignore[attr-defined]


def replacement(operator: Operator) -> str:
    """The code to write."""
    return "adopt(op), or adopting()" if "func.grad" in operator.breaks else "adopt(op, reference=…), or register_autograd"


def _definitions(node: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """The calls that define an operator, with the name of the variable that has it."""
    if isinstance(node, ast.FunctionDef):
        for made in node.decorator_list:
            if isinstance(made, ast.Call) and _last(made.func) in _MAKERS:
                yield made, node.name
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _last(node.value.func) in _MAKERS:
        yield node.value, ast.unparse(node.targets[0])
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _last(node.value.func) == "define":
        yield node.value, ""


def _last(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _name(call: ast.Call) -> str | None:
    """The name of an operator in its definition, which is ``namespace::name``, or a schema."""
    text = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    found = re.match(r"\s*((?:\w+::)?\w+(?:\.\w+)?)\s*(\(.*->|$)", text, re.DOTALL) if isinstance(text, str) else None
    is_schema = found is not None and bool(found[2])
    return found[1] if found is not None and is_schema is (_last(call.func) == "define") else None


def _composite(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) == "impl" and "CompositeImplicitAutograd" in ast.unparse(node):
            yield from [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]


def _registered(tree: ast.Module, method: str) -> set[str]:
    """The operators for which a module calls a method, by the names under which it does."""
    found: set[str] = set()
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else node if isinstance(node, ast.Attribute) else None
        if function is None or _last(function) != method:
            continue
        owner = ast.unparse(function.value).rpartition(".")[2] if isinstance(function, ast.Attribute) else "library"
        first = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if owner != "library":
            found.add(owner)
        elif isinstance(first, ast.Constant) and isinstance(first.value, str):
            found |= {first.value, first.value.rpartition("::")[2]}
        elif first is not None:
            found.add(ast.unparse(first).removesuffix(".default").rpartition(".")[2])
    return found
