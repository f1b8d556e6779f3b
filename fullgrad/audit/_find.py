"""`audit`: Functions, operators, detach tricks, gradient hooks and straight-through code in place, found in the source."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fullgrad.audit import _functions, _operators, _terms
from fullgrad.audit._comments import is_ignored
from fullgrad.audit._names import arguments, assignments, contents
from fullgrad.audit._sources import Tree, parsed, trees
from fullgrad.audit._values import values

# Signs that an in-place change is a straight-through estimator: words in the computation, and words of the function's name.
_HARD = ("round", "sign", "clamp", "clip", "quant", "floor", "ceil", "binar", "where", "heaviside")
_FORWARD = re.compile(r"forward|__call__|(^|_)(fake_?)?(quant|binar)|(^|_)(ste|step)(_|$)")
_NEW = re.compile(r"(^|\.)((new_)?(empty|zeros|ones|full)(_like)?|clone)$")
_NOT_FORWARD = re.compile(r"init|reset|load|setup|state_dict|dequant")


@dataclass(frozen=True)
class Finding:
    """A place in the source.

    Args:
        kind: ``"Function"``, ``"operator"`` of torch.library, ``"detach trick"``, ``"hook"`` or ``"in place"``.
        name: The class, the operator, or the expression.
        file: The file, as the report names it.
        line: Its line.
        breaks: The features that do not work, or are wrong.
        replacement: The code to write instead.
    """

    kind: str
    name: str
    file: str
    line: int
    breaks: tuple[str, ...]
    replacement: str


def audit(targets: Iterable[str]) -> list[Finding]:
    """The findings in files, folders and installed packages, in the order of files and lines. Nothing is imported or run.

    Args:
        targets: Names of installed modules and packages, also as a package index spells them, and paths of folders and files.

    Returns:
        A list of :class:`Finding`.

    Raises:
        FileNotFoundError: There is no such file, folder or package.
        SyntaxError: A named file is not Python; in folders such files are skipped.

    Example:
        >>> from fullgrad.audit import audit
        >>> found = audit(["torch.utils.checkpoint"])
        >>> "CheckpointFunction" in [finding.name for finding in found if "vmap" in finding.breaks]
        True
    """
    return [finding for target in targets for tree, label in trees(target) for finding in audit_tree(tree, label)]


def audit_source(text: str, file: str) -> list[Finding]:
    """The findings in the text of a module, in the order of lines.

    Args:
        text: Python code.
        file: The name of its file in the findings.

    Returns:
        A list of :class:`Finding`.

    Raises:
        SyntaxError: The text is not Python.

    Example:
        >>> from fullgrad.audit import audit_source
        >>> (finding,) = audit_source("y = x + (q - x).detach()", "model.py")
        >>> finding.kind, finding.line, finding.replacement
        ('detach trick', 1, 'replace_grad(q, x)')
        >>> finding.breaks
        ('float16', 'inf', '-0.0')
    """
    return audit_tree(parsed(text), file)


def audit_tree(tree: Tree, file: str) -> list[Finding]:
    """The findings in the syntax tree of a module."""
    module = tree.module
    found = [
        Finding("Function", cls.name, file, cls.lineno, _functions.breaks(cls), _functions.replacement(cls))
        for cls in _functions.classes(module)
    ]
    found += [
        Finding("operator", o.name, file, o.line, o.breaks, _operators.replacement(o)) for o in _operators.operators(module)
    ]
    shown = [finding for finding in found if not is_ignored(tree.comments, finding.kind, finding.line, None)]
    return sorted([*shown, *_expressions(tree, file)], key=lambda finding: finding.line)


class _Place(NamedTuple):
    """Where an expression stands: the function, or the module; whether it is in an optimizer, under ``no_grad``, and in code of
    values alone, through which no derivative goes.
    """

    scope: ast.AST
    in_optimizer: bool = False
    no_grad: bool = False
    is_value: bool = False


def _expressions(tree: Tree, file: str) -> Iterator[Finding]:
    of_values = values(tree.module)
    stack: list[tuple[ast.AST, _Place]] = [(tree.module, _Place(tree.module))]
    while stack:
        node, place = stack.pop()
        place = place._replace(is_value=place.is_value or node in of_values)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            no_grad = any("no_grad" in ast.unparse(d) for d in node.decorator_list)
            place = place._replace(scope=node, no_grad=no_grad)
        elif isinstance(node, ast.ClassDef):
            place = place._replace(in_optimizer=any("Optim" in word for word in (node.name, *map(ast.unparse, node.bases))))
        elif isinstance(node, ast.With):
            no_grad = place.no_grad or any("no_grad" in ast.unparse(item.context_expr) for item in node.items)
            place = place._replace(no_grad=no_grad)
        found = [*_of_node(node, file, place)]
        yield from [f for f in found if not is_ignored(tree.comments, f.kind, f.line, getattr(node, "end_lineno", None))]
        if not any(finding.kind == "detach trick" for finding in found):  # a part of a sum is not a trick of its own
            stack += [(child, place) for child in ast.iter_child_nodes(node)]


def _of_node(node: ast.AST, file: str, place: _Place) -> Iterator[Finding]:
    """The finding that a node is, without its parts."""
    trick = _terms.trick(node)
    if trick is not None:
        breaks = ("float16", "inf", "-0.0")
        write = _terms.replacement(trick, place.scope)
        yield Finding("detach trick", _shortened(node), file, getattr(node, "lineno", 0), breaks, write)
    elif isinstance(node, ast.Call):
        yield from _call(node, file, place)
    elif isinstance(node, ast.Assign) and _is_hard(node.value):
        changed = node.targets[0]
        if isinstance(changed, ast.Attribute) and changed.attr == "data" and _is_forward(place, changed.value):
            yield _in_place(node, file, ("vmap", "func.grad", "jvp", "compile"), changed.value, node.value)


def _call(node: ast.Call, file: str, place: _Place) -> Iterator[Finding]:
    if not isinstance(node.func, ast.Attribute) or len(node.args) != 1:
        return
    owner, method, argument = node.func.value, node.func.attr, node.args[0]
    if method == "register_hook":
        if isinstance(owner, ast.Attribute) and owner.attr == "grad_fn":
            return  # of a node of the graph, where it is told of gradients that pass
        yield Finding("hook", _shortened(node), file, node.lineno, ("jvp", "no_grad"), _of_hook(argument))
    elif method == "copy_" and _is_hard(argument) and _is_forward(place, owner):
        of_data = isinstance(owner, ast.Attribute) and owner.attr == "data"
        changed = owner.value if isinstance(owner, ast.Attribute) and of_data else owner
        if place.is_value and _is_new(changed, place.scope):
            return
        if of_data:
            yield _in_place(node, file, ("vmap", "in-place input"), changed, argument)
        elif place.no_grad:
            lost = () if place.is_value else ("jvp (silently 0)",)
            yield _in_place(node, file, (*lost, "in-place input"), changed, argument)


def _in_place(node: ast.AST, file: str, breaks: tuple[str, ...], changed: ast.AST, value: ast.AST) -> Finding:
    write = f"replace_grad({_shortened(value)}, {_shortened(changed)}), as a new tensor"
    return Finding("in place", _shortened(node), file, getattr(node, "lineno", 0), breaks, write)


def _of_hook(argument: ast.AST) -> str:
    """The replacement of a hook, by its body if it is a lambda."""
    if not isinstance(argument, ast.Lambda):
        return "a gradient operator: clip_grad, scale_bwd, mask_grad, …, or Function"
    gradient = argument.args.args[0].arg if argument.args.args else ""
    return _functions.of_gradient_map(argument.body, gradient) or "a Function with this vjp"


def _is_forward(place: _Place, changed: ast.expr) -> bool:
    """Whether a change in place is part of a forward: not of an optimizer, nor of a gradient or a module made on the spot."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", getattr(place.scope, "name", "")).lower()
    if place.in_optimizer or not _FORWARD.search(name) or _NOT_FORWARD.search(name) or "closure" in arguments(place.scope):
        return False
    root = changed
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        if isinstance(root, ast.Attribute) and root.attr == "grad":
            return False
        root = root.value
    made = contents(place.scope, root.id) if isinstance(root, ast.Name) else None
    return not (made and all(_is_construction(value) for value in made))


def _is_new(changed: ast.expr, scope: ast.AST) -> bool:
    """Whether a tensor has memory of its own, as of ``torch.empty_like(x)``."""
    if not isinstance(changed, ast.Name) or changed.id in arguments(scope):
        return False
    made = [value for target, value in assignments(scope) if isinstance(target, ast.Name) and target.id == changed.id]
    return bool(made) and all(value is not None and _NEW.search(ast.unparse(getattr(value, "func", value))) for value in made)


def _is_construction(value: ast.expr) -> bool:
    """``nn.Linear(…)``."""
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2][:1].isupper()


def _is_hard(value: ast.AST) -> bool:
    text = ast.unparse(value).lower().replace("dequant", "")
    return any(word in text for word in _HARD)


def _shortened(node: ast.AST, length: int = 60) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= length else text[: length - 1] + "…"
