"""Whether an expression has a gradient: what is detached, rounded, compared or drawn has none."""

import ast

from fullgrad.audit._names import contents

# Functions of torch, and methods of tensors, whose result has no gradient, or the gradient 0.
_NAMES = (
    "round ceil floor trunc fix sign sgn heaviside one_hot argmax argmin argsort searchsorted bucketize gt ge lt le eq ne "
    "greater less isnan isinf isfinite logical_and logical_or logical_not zeros ones full empty eye arange linspace zeros_like "
    "ones_like empty_like new_zeros new_ones new_empty rand randn randint rand_like randn_like randint_like bernoulli "
    "multinomial bool int long any all detach item tolist size numel dim nonzero"
)
_NONE = frozenset(_NAMES.split())
_TORCH = {"torch", "F", "functional", "torch.nn.functional", "nn.functional", "torch.special", "special"}
_COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne"}
_CONTENT_LAST = {"scatter", "scatter_", "masked_fill", "masked_fill_", "index_fill", "index_fill_"}  # the others are positions
_WITH_INDICES = {"max", "min", "sort", "topk", "median", "mode", "kthvalue", "cummax", "cummin"}
_FORM = {"to", "type", "type_as", "view", "view_as", "reshape", "reshape_as", "expand", "expand_as"}  # arguments say the form
_CONSTANT = {"shape", "dtype", "device", "ndim", "data", "pi", "inf", "indices"}


def has_none(node: ast.AST, scope: ast.AST | None, depth: int = 8) -> bool:
    """Whether an expression surely has no gradient. Names have the values that their function, the scope, assigns to them."""

    def none(*parts: ast.AST) -> bool:
        return depth > 0 and all(has_none(part, scope, depth - 1) for part in parts)

    if isinstance(node, (ast.Constant, ast.Compare, ast.BoolOp)):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.Not, ast.Invert)) or none(node.operand)
    if isinstance(node, ast.BinOp):
        return none(node.left, node.right)
    if isinstance(node, ast.IfExp):
        return none(node.body, node.orelse)
    if isinstance(node, (ast.Tuple, ast.List)):
        return none(*node.elts)
    if isinstance(node, ast.Attribute):
        return node.attr in _CONSTANT or ast.unparse(node.value) == "torch"  # of torch: a dtype
    if isinstance(node, ast.Subscript):
        return _is_index(node) or none(node.value)
    if isinstance(node, ast.Name):
        values = contents(scope, node.id)
        return values is not None and none(*values)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner, name = node.func.value, node.func.attr
    given = [*node.args, *(k.value for k in node.keywords)]
    is_function = ast.unparse(owner) in _TORCH
    if name in _NONE and (is_function or _is_method(name, given)):
        return True
    if name in _CONTENT_LAST:
        content = [k.value for k in node.keywords if k.arg in ("src", "value")] or node.args[-1:]
        return none(node.args[0] if is_function and node.args else owner, *content)
    if name in _FORM:
        return none(owner)
    if name == "where":
        return none(*(given[1:] if is_function else [owner, *given[1:]]))
    return none(*([] if is_function else [owner]), *given)


def _is_method(name: str, given: list[ast.expr]) -> bool:
    """Whether a call is that of a tensor's method, and not of a module's function of that name, which may have a gradient."""
    if name in _COMPARISONS:
        return len(given) == 1
    return all(isinstance(n, (ast.Constant, ast.UnaryOp, ast.Tuple)) for n in given)


def _is_index(node: ast.Subscript) -> bool:
    """``x.max(-1)[1]``."""
    value = node.value
    name = value.func.attr if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else ""
    return name in _WITH_INDICES and isinstance(node.slice, ast.Constant) and node.slice.value == 1
