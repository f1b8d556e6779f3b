"""The detach trick as a sum of terms, ``a + b - b.detach()``, in any order and with any brackets."""

import ast
from typing import NamedTuple

_STRAIGHT = {"round": "round", "ceil": "ceil", "floor": "floor", "trunc": "trunc", "fix": "trunc"}


class Term(NamedTuple):
    """A summand: its sign, whether it is detached, and its expression."""

    sign: int
    detached: bool
    node: ast.expr


def terms(node: ast.expr, sign: int = 1, detached: bool = False) -> list[Term]:
    """The summands of an expression, those in a detached bracket among them."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        right = sign if isinstance(node.op, ast.Add) else -sign
        return terms(node.left, sign, detached) + terms(node.right, right, detached)
    inner = _detached(node)
    return terms(inner, sign, True) if inner is not None else [Term(sign, detached, node)]


def _detached(node: ast.expr) -> ast.expr | None:
    """The operand of ``.detach()``, ``.data`` or a function such as ``stop_gradient``; None for other expressions."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "detach" and not node.args:
        return node.func.value
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return node.args[0] if name in ("stop_gradient", "stopgrad", "sg") and len(node.args) == 1 else None


def trick(node: ast.BinOp) -> tuple[list[Term], ast.expr] | None:
    """The value and the tensor that gives the gradient, where a sum is the trick: ``b`` and ``-b.detach()`` among its terms."""
    if not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    summands = terms(node)
    for soft in summands:
        for gone in summands:
            opposite = gone.detached and not soft.detached and gone.sign == -soft.sign == -1
            if opposite and ast.dump(gone.node) == ast.dump(soft.node) and not isinstance(soft.node, ast.Constant):
                rest = [term for term in summands if term is not soft and term is not gone]
                return (rest, soft.node) if rest else None
    return _scaled_trick(summands)


def _scaled_trick(summands: list[Term]) -> tuple[list[Term], ast.expr] | None:
    """``x + c * (x - x.detach())``: the gradient is that of ``x * (1 + c)``."""
    for scaled in summands:
        for factor, zero in _factors(scaled.node):
            inner = terms(zero)
            is_zero = len(inner) == 2 and inner[0].detached != inner[1].detached and inner[0].sign == -inner[1].sign
            if not is_zero or ast.dump(inner[0].node) != ast.dump(inner[1].node):
                continue
            x = inner[0].node
            rest = [term for term in summands if term is not scaled]
            sign = scaled.sign * next(term.sign for term in inner if not term.detached)
            if len(rest) == 1 and rest[0].sign == 1 and ast.dump(rest[0].node) == ast.dump(x):
                share = ast.BinOp(ast.Constant(1), ast.Add() if sign == 1 else ast.Sub(), factor)
                return rest, ast.BinOp(x, ast.Mult(), share)
    return None


def _factors(node: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The two factors of a product, each as the first of a pair."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return []
    return [(node.left, node.right), (node.right, node.left)]


def replacement(value: list[Term], soft: ast.expr) -> str:
    """The code to write instead."""
    if len(value) == 1 and value[0].sign == 1:
        straight = _straight(value[0].node, soft)
        if straight is not None:
            return straight
        for factor, x in _factors(soft):
            if ast.dump(x) == ast.dump(value[0].node):
                return f"scale_bwd({ast.unparse(x)}, {ast.unparse(factor)})"
    return f"replace_grad({_text(value)}, {ast.unparse(soft)})"


def _straight(node: ast.expr, soft: ast.expr) -> str | None:
    """The operator whose value is a rounding of the tensor that gives the gradient; None if there is none."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _STRAIGHT:
        return None
    of = node.args[0] if len(node.args) == 1 else node.func.value if not node.args else None
    alike = of is not None and not node.keywords and ast.dump(of) == ast.dump(soft)
    return f"{_STRAIGHT[node.func.attr]}({ast.unparse(soft)})" if alike else None


def _text(value: list[Term]) -> str:
    text = " ".join(f"{'-' if t.sign < 0 else '+'} {ast.unparse(t.node)}" for t in value)
    return text.removeprefix("+ ")
