"""The functions through which no derivative goes: those that compute the value of an operator whose derivative is declared.

Rules are not among them: a residual of ``fwd``, and what ``bwd``, ``vjp`` or ``jvp`` return, is differentiated at the next order.
"""

import ast
from collections.abc import Iterator

# Operators of functions, and the names of the arguments whose derivatives nobody takes; the first one is among them.
_OF_FUNCTIONS = {
    "custom_jvp": ("f",),
    "custom_vjp": ("f",),
    "straight_through": ("hard",),
    "with_reference": ("kernel", "backward", "jvp"),
    "perturbed": ("solver",),
    "fenchel_young_loss": ("solver",),
    "interpolated": ("solver",),
    "negative_identity": ("solver",),
    "imle": ("solver",),
    "smoothed": ("f",),
    "finite_difference": ("f",),
}
_OF_SOLVERS = ("root", "fixed_point", "argmin")  # root(f)(solver)
_OF_TORCH = ("custom_op", "triton_op")  # below autograd
_RULES = {"backward", "setup_context", "vjp", "jvp", "vjp_term", "vjp_terms", "reads"}


def values(tree: ast.Module) -> set[ast.AST]:
    """The statements of the functions of a module that compute such values, and the expressions of such lambdas."""
    own = _imports_this_package(tree)
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    given: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found += _forward(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(_decorates(decorator, own) for decorator in node.decorator_list):
                found.append(node)
        elif isinstance(node, ast.Call) and own:
            given += _given(node)
    found += _named(tree, [function.id for function in given if isinstance(function, ast.Name)])
    lambdas = [function.body for function in given if isinstance(function, ast.Lambda)]
    return {*lambdas, *(statement for function in found for statement in function.body)}


def _imports_this_package(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fullgrad":
            return True
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "fullgrad" for alias in node.names):
            return True
    return False


def _forward(cls: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The forward of a class that declares a derivative: a static method next to rules, or in a subclass of such a class."""
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    names = {method.name for method in methods} | {
        target.id for node in cls.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    }
    if names & _RULES or any(_last(base) in ("Function", "Elementwise") for base in cls.bases):
        for method in methods:
            if method.name == "forward" and any(ast.unparse(d) == "staticmethod" for d in method.decorator_list):
                yield method


def _decorates(decorator: ast.expr, own: bool) -> bool:
    """``@custom_vjp``, ``@custom_vjp(nondiff_argnums=0)``, ``@implicit.root(f)``, ``@torch.library.custom_op("a::b")``."""
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    return _last(made) in _OF_TORCH or (own and _last(made) in (*_OF_FUNCTIONS, *_OF_SOLVERS))


def _given(call: ast.Call) -> list[ast.expr]:
    """The functions that a call gets and does not differentiate."""
    if isinstance(call.func, ast.Call) and _last(call.func.func) in _OF_SOLVERS:
        return call.args[:1]
    names = _OF_FUNCTIONS.get(_last(call.func))
    return [] if names is None else [*call.args[:1], *(k.value for k in call.keywords if k.arg in names)]


def _named(tree: ast.Module, names: list[str]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of these names that are used nowhere else in the module, where their derivatives may be taken."""
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    alone = {name for name in names if used.count(name) == names.count(name)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in alone:
            yield node


def _last(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]
