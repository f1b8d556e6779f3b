"""The detach trick as a sum of terms, ``a + b - b.detach()``, in any order and with any brackets and signs."""

import ast
from typing import NamedTuple

from fullgrad.audit._gradient import has_none

_STRAIGHT = {"round": "round", "ceil": "ceil", "floor": "floor", "trunc": "trunc", "fix": "trunc"}


class Term(NamedTuple):
    """A summand: its sign, whether it is detached, and its expression."""

    sign: int
    detached: bool
    node: ast.expr


class Trick(NamedTuple):
    """The summands of the value, the one that gives the gradient, and whether it gives all of it."""

    value: list[Term]
    soft: Term
    is_whole: bool = False


def terms(node: ast.expr, sign: int = 1, detached: bool = False) -> list[Term]:
    """The summands of an expression, those in a detached bracket among them."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        right = sign if isinstance(node.op, ast.Add) else -sign
        return terms(node.left, sign, detached) + terms(node.right, right, detached)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return terms(node.operand, -sign if isinstance(node.op, ast.USub) else sign, detached)
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


def trick(node: ast.AST) -> Trick | None:
    """The trick that a sum is: ``b`` and ``-b.detach()`` are among its terms, or both with the other sign."""
    summands = _sum(node)
    for sign in (1, -1):
        for soft in summands:
            for gone in summands:
                opposite = gone.detached and not soft.detached and gone.sign == -soft.sign == -sign
                if opposite and ast.dump(gone.node) == ast.dump(soft.node) and not isinstance(soft.node, ast.Constant):
                    rest = [term for term in summands if term is not soft and term is not gone]
                    return Trick(rest, soft) if rest else None
    return _scaled_trick(summands)


def _sum(node: ast.AST) -> list[Term]:
    """The summands of a sum, ``x += …`` included; none of other code."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)) and isinstance(node.target, ast.Name):
        right = terms(node.value, 1 if isinstance(node.op, ast.Add) else -1)
        return [Term(1, False, ast.Name(node.target.id, ast.Load())), *right]
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return terms(node)
    return []


def _scaled_trick(summands: list[Term]) -> Trick | None:
    """``x + c * (x - x.detach())``: the gradient is that of ``x * (1 + c)``, or of ``x * c`` if the first ``x`` is detached."""
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
                one = ast.BinOp(ast.Constant(1), ast.Add() if sign == 1 else ast.Sub(), factor)
                share = one if not rest[0].detached else factor if sign == 1 else ast.UnaryOp(ast.USub(), factor)
                return Trick(rest, Term(1, False, ast.BinOp(x, ast.Mult(), share)), is_whole=True)
    return None


def _factors(node: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The two factors of a product, each as the first of a pair."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return []
    return [(node.left, node.right), (node.right, node.left)]


def replacement(found: Trick, scope: ast.AST | None) -> str:
    """The code to write instead, with the same value and the same gradients. Names stand for what the scope assigns to them.

    A term of the value that may have a gradient of its own, which `replace_grad` ends, stands in the surrogate, too.
    """
    value, soft, is_whole = found
    if len(value) == 1 and value[0].sign == soft.sign == 1:
        straight = _straight(value[0].node, soft.node)
        if straight is not None:
            return straight
        for factor, x in _factors(soft.node):
            is_scale = is_whole or (value[0].detached and has_none(factor, scope))
            if is_scale and ast.dump(x) == ast.dump(value[0].node):
                return f"scale_bwd({ast.unparse(x)}, {ast.unparse(factor)})"
    own = [] if is_whole else [t for t in value if not t.detached and not has_none(t.node, scope)]
    return f"replace_grad({_text(value)}, {_text([*own, soft])})"


def _straight(node: ast.expr, soft: ast.expr) -> str | None:
    """The operator whose value is a rounding of the tensor that gives the gradient; None if there is none."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _STRAIGHT:
        return None
    of = node.args[0] if len(node.args) == 1 else node.func.value if not node.args else None
    if node.args and ast.unparse(node.func.value) not in ("torch", "torch.special"):  # a namesake
        return None
    alike = of is not None and not node.keywords and ast.dump(of) == ast.dump(soft)
    return f"{_STRAIGHT[node.func.attr]}({ast.unparse(soft)})" if alike else None


def _text(summands: list[Term]) -> str:
    loose = (ast.IfExp, ast.Compare, ast.BoolOp, ast.Lambda, ast.NamedExpr)
    parts = [(t.sign, f"({ast.unparse(t.node)})" if isinstance(t.node, loose) else ast.unparse(t.node)) for t in summands]
    if len(parts) == 1 and parts[0][0] > 0:
        return ast.unparse(summands[0].node)
    text = " ".join(f"{'-' if sign < 0 else '+'} {part}" for sign, part in parts)
    text = text.removeprefix("+ ")
    return f"-{text[2:]}" if text.startswith("- ") else text
