"""The line that mends a finding: the user's own line with an operator in it where the source has the call, else a general one."""

import ast
import functools
import inspect
import linecache
import sys
import textwrap
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import fullgrad

_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) for module in (torch, fullgrad))
# The operators for torch's functions: the name of the operator, and the page.
ROUNDINGS = {name: f"fullgrad.{name}" for name in ("round", "floor", "ceil", "trunc")} | {"fix": "fullgrad.trunc"}
_SOFT = {"sign": "fullgrad.sign_st", "sgn": "fullgrad.sign_st", "heaviside": "fullgrad.heaviside_st"}
COMPARISONS = {
    "gt": "fullgrad.greater_st",
    "greater": "fullgrad.greater_st",
    "ge": "fullgrad.greater_equal_st",
    "greater_equal": "fullgrad.greater_equal_st",
    "lt": "fullgrad.less_st",
    "less": "fullgrad.less_st",
    "le": "fullgrad.less_equal_st",
    "less_equal": "fullgrad.less_equal_st",
    "eq": "fullgrad.eq_st",
    "ne": "fullgrad.not_equal_st",
    "not_equal": "fullgrad.not_equal_st",
    "isclose": "fullgrad.isclose_st",
}
_INDICES = {name: f"fullgrad.{name}_st" for name in ("argmax", "argmin", "argsort")}
_SINGULAR = {name: f"fullgrad.safe.{name}" for name in ("sqrt", "log", "div", "pow", "acos", "asin", "atan2", "norm")}
_SINGULAR |= {
    "true_divide": "fullgrad.safe.div",
    "divide": "fullgrad.safe.div",
    "arccos": "fullgrad.safe.acos",
}
_SINGULAR |= {"arcsin": "fullgrad.safe.asin", "arctan2": "fullgrad.safe.atan2", "vector_norm": "fullgrad.safe.norm"}
RELUS = ("relu", "relu_")
# What ends the gradient of all that runs in it.
CONTEXTS = ("no_grad", "inference_mode")
_PAGES = ("losses", "quantizers", "sampling", "safe")
# How many arguments an operator takes over; the others have other meanings.
_TAKES = dict.fromkeys(ROUNDINGS, 1) | dict.fromkeys(_SOFT, 1) | dict.fromkeys(COMPARISONS, 2)
_TAKES |= {"sqrt": 1, "log": 1, "div": 2, "pow": 2, "acos": 1, "asin": 1, "atan2": 2, "norm": 1, "vector_norm": 1}
_OPERATORS: dict[str, type[ast.AST]] = {
    "gt": ast.Gt, "ge": ast.GtE, "lt": ast.Lt, "le": ast.LtE, "eq": ast.Eq, "ne": ast.NotEq, "div": ast.Div, "pow": ast.Pow,
}  # fmt: skip
_MIRRORED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}  # of == and !=: themselves


class Place(NamedTuple):
    """Where the user's code calls a function of torch."""

    file: str
    line: int
    function: str
    operator: str = ""  # the full name of the function if it is one of this package
    call: int = 0  # which of the calls of the line

    def __str__(self) -> str:
        # Of a model of torch's layers alone the caller is Python itself.
        return "" if self.file.startswith("<frozen") else f"{short(self.file)}:{self.line}"


class Mend(NamedTuple):
    """A line that can be pasted, in place of another or by itself, and the page that explains the operator."""

    line: str
    instead_of: str
    page: str


def place_of_call(function: str, called: Any = None) -> Place | None:
    """The innermost frame outside of torch and of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, "<fullgrad")):
        frame = frame.f_back
    name = function.strip("_")
    name = name if name not in ("truediv", "rtruediv", "rdiv") else "div"
    module = getattr(called, "__module__", None) or ""
    operator = f"{module}.{function}" if module.partition(".")[0] == "fullgrad" else ""
    return None if frame is None else Place(frame.f_code.co_filename, frame.f_lineno, name, operator, frame.f_lasti)


def short(file: str) -> str:
    """The file, relative to the working directory if it is in it."""
    path = Path(file)
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else file


def of_dead(place: Place | None, function: str, layer: str, module: Any, depth: float = 0.0) -> Mend:
    """The line for a value that passes no gradient; ``depth`` says how far below 0 the inputs of a ReLU are."""
    softness = max(1.0, round(depth))  # a soft ReLU of a smaller one passes next to nothing there
    name = place.function if place is not None else function
    if name in ROUNDINGS:
        found, page = _written(place, ROUNDINGS[name]), "families/rounding"
    elif name in _SOFT:
        found, page = _written(place, _SOFT[name]), "families/straight-through"
    elif name in RELUS:
        found, page = _written(place, "fullgrad.relu_st", f", {softness:.1f}"), "families/straight-through"
    else:
        found, page = _written(place, "fullgrad.replace_grad"), "families/straight-through"
    if found is None and layer and type(module).__module__.startswith("torch.nn"):
        return Mend(_module(layer, module, softness), "", "families/straight-through")
    if found is None:
        operator = {**ROUNDINGS, **_SOFT}.get(name)
        line = f"y = {operator}(x)" if operator else f"y = fullgrad.replace_grad({function}(x), x)"
        return Mend(line, f"y = {function}(x)", page)
    return Mend(*found, page)


def of_own(operator: str) -> tuple[str, str]:
    """The change that lets an operator of this package pass more of the gradient, and the page of its family."""
    family = operator.split(".")[1] if operator.count(".") > 1 else ""
    function = functools.reduce(getattr, operator.split(".")[1:], fullgrad) if operator else None
    names = inspect.signature(function).parameters if callable(function) else {}
    if operator == "fullgrad.spikes.jumprelu":
        return "a lower threshold passes more; with input_gradient='ste' a larger bandwidth, too", "families/spikes"
    if family == "spikes":
        narrow = " (a smaller alpha)" if "alpha" in names and "alpha: The inverse width" in (function.__doc__ or "") else ""
        return f"a wider surrogate{narrow} or another threshold passes more", "families/spikes"
    if "softness" in names:
        return "a larger softness passes more", "which"
    if {"min_value", "max_value"} & {*names}:
        return "other bounds pass more", "families/clamping"
    return "", f"families/{family}" if family in _PAGES else "which"


def of_cut(place: Place, raises: bool = False) -> Mend:
    """The line for a function without a derivative; none for a context, out of which the user's code has to go."""
    if place.function in (*CONTEXTS, "detach", "data"):
        return Mend("", "", "")
    if place.function == "heaviside":
        found = _written(place, "fullgrad.heaviside_st")
        line, instead_of = found or ("y = fullgrad.heaviside_st(x)", "y = torch.heaviside(x, values)")
        return Mend(f"{line}  # or a spike of fullgrad.spikes", instead_of, "families/spikes")
    if raises:  # at any later use of its graph, so that its input is detached
        line = f"y = fullgrad.replace_grad({place.function}(x.detach()), x)"
        return Mend(line, f"y = {place.function}(x)", "families/straight-through")
    operator = COMPARISONS.get(place.function) or _INDICES.get(place.function) or _SOFT.get(place.function)
    found = _written(place, operator) if operator else None
    if found is None:
        return Mend("y = fullgrad.replace_grad(y, x)  # x: floating and of the shape of y", "", "families/straight-through")
    line, instead_of = found
    if place.function in _INDICES and "one_hot" not in instead_of:
        line += "  # one-hot rows, in place of one_hot: an index has no derivative"
    return Mend(line, instead_of, "families/straight-through")


def of_nan(place: Place | None, function: str) -> Mend:
    """The line for a derivative that is NaN or infinite."""
    name = place.function if place is not None else function
    if name in _SINGULAR:
        found = _written(place, _SINGULAR[name])
        given = "(a, b)" if _TAKES[_SINGULAR[name].rpartition(".")[2]] == 2 else "(x)"
        return Mend(*(found or (f"y = {_SINGULAR[name]}{given}", f"y = {name}{given}")), "families/safe")
    return Mend("x = fullgrad.nan_to_num_grad(x)  # the input of this function", "", "families/gradients")


def _module(layer: str, module: Any, softness: float) -> str:
    if type(module) is torch.nn.ReLU:
        return f"model.set_submodule({layer!r}, fullgrad.nn.ReLUST(softness={softness:.1f}))"
    through = f"fullgrad.straight_through(model.get_submodule({layer!r}), torch.nn.Identity())"
    return f"model.set_submodule({layer!r}, fullgrad.nn.FunctionModule({through}))"


@functools.cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def _written(place: Place | None, operator: str, more: str = "") -> tuple[str, str] | None:
    """The statement of a place with the operator, and as it is; None if the source does not have the call there."""
    tree = None if place is None else _tree(place.file)
    if place is None or tree is None:
        return None
    spans = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and n.lineno <= place.line <= (n.end_lineno or n.lineno)]
    for node in spans:
        args, rest = _arguments(node, place.function)
        if not args:
            continue
        lines = linecache.getlines(place.file)
        source = "".join(lines)
        texts = [ast.get_source_segment(source, a) or ast.unparse(a) for a in args]
        if operator == "fullgrad.safe.div" and isinstance(args[0], ast.Constant):
            texts[0] = f"torch.as_tensor({texts[0]})"
        if place.function == "heaviside":
            args, texts = args[:1], texts[:1]  # The value at 0 is one half.
        takes = _TAKES.get(place.function)
        fits = takes is None or (len(args) == takes and not rest)
        if not fits and place.function in _SINGULAR:
            continue
        if operator == "fullgrad.replace_grad" or not fits:
            new = _replaced(node, args[0])
        else:
            new = f"{operator}({', '.join([*texts, *rest])}{more})"
        if place.function in _INDICES:  # the operator has the one-hot rows already
            node = next((n for n in spans if _arguments(n, "one_hot")[0][:1] == [node]), node)
        return _in_place(node, new, lines)
    return None


def of_source(file: str, line: int, start: str, new: str) -> tuple[str, str] | None:
    """The lines with an expression of the audit, which starts so, exchanged, and as they are; None where it is not there."""
    tree, start = _tree(file), start.rstrip("…")
    found = [n for n in ast.walk(tree or ast.Module([], [])) if isinstance(n, ast.BinOp) and n.lineno == line]
    node = next((n for n in found if ast.unparse(n).startswith(start)), None)
    return None if node is None else _in_place(node, new, linecache.getlines(file))


def _in_place(node: ast.expr, new: str, lines: list[str]) -> tuple[str, str]:
    """The lines of an expression with a new one in its place, and as they are."""
    start, end = node.lineno - 1, node.end_lineno or node.lineno
    head = lines[start].encode()[: node.col_offset].decode()
    tail = lines[end - 1].encode()[node.end_col_offset :].decode()
    return textwrap.dedent(head + new + tail).strip(), textwrap.dedent("".join(lines[start:end])).strip()


def _arguments(node: ast.expr, function: str) -> tuple[list[ast.expr], list[str]]:
    """The arguments of a call of the function by any spelling, and its keywords."""
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if name == function:
            of_torch = isinstance(node.func, ast.Name) or ast.unparse(node.func.value).split(".")[0] in (
                "torch",
                "F",
                "nn",
                "functional",
            )
            owner = [] if of_torch else [node.func.value]  # type: ignore[union-attr]
            return [*owner, *node.args], [ast.unparse(k) for k in node.keywords]
    sides: list[ast.expr] = []
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sides, sign = [node.left, node.comparators[0]], type(node.ops[0])
    elif isinstance(node, ast.BinOp):
        sides, sign = [node.left, node.right], type(node.op)
    else:
        return [], []
    # Python asks the tensor at the right of a number for the mirrored comparison.
    if sign is _OPERATORS.get(_MIRRORED.get(function, "")):
        return sides[::-1], []
    if sign is not _OPERATORS.get(function):
        return [], []
    return (sides[::-1] if isinstance(node, ast.Compare) and isinstance(sides[0], ast.Constant) else sides), []


def _replaced(node: ast.expr, first: ast.expr) -> str:
    """``replace_grad`` of the call and its first argument, which is computed once."""
    text, argument = ast.unparse(node), ast.unparse(first)
    if isinstance(first, (ast.Name, ast.Attribute)):
        return f"fullgrad.replace_grad({text}, {argument})"
    bare, named = f"({argument})", f"(x_ := {argument})"
    return f"fullgrad.replace_grad({text.replace(bare if bare in text else argument, named, 1)}, x_)"
