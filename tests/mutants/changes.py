"""The changes: one node of a syntax tree at a time."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_SIDES = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_COMMUTATIVE = {"mul", "add", "minimum", "maximum", "min", "max", "logaddexp", "logical_or", "logical_and"}
_OPPOSITES = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


class Mutant(NamedTuple):
    """One change of one node, numbered in the order of ``ast.walk``."""

    line: int
    what: str
    node: int
    kind: str


def mutants(source: str) -> list[Mutant]:
    """The possible changes, in the order of lines. Names, annotations, documentation, assertions and errors stay."""
    tree = ast.parse(source)
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    return sorted(
        Mutant(node.lineno, f"{kind} in {ast.unparse(node)[:80]}", numbers[id(node)], kind)
        for node in _code(tree)
        for kind in _kinds(node)
    )


def mutated(source: str, mutant: Mutant) -> str:
    """The changed source."""
    tree = ast.parse(source)
    node = next(n for number, n in enumerate(ast.walk(tree)) if number == mutant.node)
    _replace(tree, node, mutant.kind)
    return ast.unparse(ast.fix_missing_locations(tree))


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute something when an operator is called."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, inside = stack.pop()
        if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of a zip, which asserts its lengths
            continue
        if inside and hasattr(node, "lineno"):
            yield node
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            body = node.body if isinstance(node.body, list) else [node.body]
            stack += [(child, True) for child in body]
        elif isinstance(node, ast.AnnAssign):
            stack += [(node.value, inside)] if node.value else []
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # a docstring
            stack += [(child, inside) for child in ast.iter_child_nodes(node)]


def _kinds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield "other operator"
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            yield "only the left"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        if type(node.ops[0]) in _SIDES:
            yield "other side"
        if type(node.ops[0]) in _OPPOSITES:
            yield "opposite"
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            yield "negated"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield "without its sign"
    elif isinstance(node, ast.BoolOp):
        yield "and, or"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield "other constant"
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield "other branch"
    elif isinstance(node, ast.Call) and _has_an_order(node):
        yield "swapped arguments"


def _has_an_order(call: ast.Call) -> bool:
    """Whether the first two arguments are known, and may not change places."""
    is_known = len(call.args) > 1 and not any(isinstance(a, ast.Starred) for a in call.args[:2])
    return is_known and ast.unparse(call.func).removeprefix("torch.") not in _COMMUTATIVE


def _replace(tree: ast.AST, node: ast.AST, kind: str) -> None:
    if kind == "other operator":
        node.op = _OPERATORS[type(node.op)]()
    elif kind == "other side":
        node.ops = [_SIDES[type(node.ops[0])]()]
    elif kind == "opposite":
        node.ops = [_OPPOSITES[type(node.ops[0])]()]
    elif kind == "negated":
        node.ops = [ast.IsNot() if isinstance(node.ops[0], ast.Is) else ast.Is()]
    elif kind == "and, or":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif kind == "other constant":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif kind == "other branch":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "swapped arguments":
        node.args[:2] = node.args[1::-1]
    else:
        _put(tree, node, node.left if kind == "only the left" else node.operand)


def _put(tree: ast.AST, node: ast.AST, other: ast.AST) -> None:
    """Put another node in the place of one."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, other)
            elif isinstance(value, list) and any(v is node for v in value):
                setattr(parent, name, [other if v is node else v for v in value])
