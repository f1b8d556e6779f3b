"""A family's file holds formulas: the value, the derivative, the docstring, and no question about the moment of the call."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.short
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fullgrad"
# What formulas are made of, how they are called, and what is no operator of a formula.
OTHERS = {
    "_core", "_dispatch", "_engine", "_fast", "_suite", "adoption", "audit", "cli", "completion", "diagnosis", "forward",
    "functions", "implicit", "kernels", "nn", "per_sample", "testing",
}  # fmt: skip
FAMILIES = [f for f in sorted(PACKAGE.rglob("*.py")) if not OTHERS & set(f.relative_to(PACKAGE).parts)]
# Questions of `_dispatch/state.py` that are about a tensor, and no questions about what torch does at the moment.
ABOUT_TENSORS = {"any_distributed", "clone_if_view", "has_data", "is_distributed", "unwrap_legacy_batched"}
STATE = {
    node.name
    for node in ast.parse((PACKAGE / "_dispatch" / "state.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
} - ABOUT_TENSORS
# Those of `_dispatch/torch_private.py`, of torch itself, and of helpers that ask in a family's place.
STATE |= {"is_compiling", "is_forward_mode", "dispatch_modes", "transforms_active", "transforms_are_hidden", "records_in_place"}
STATE |= {
    "is_dynamo_compiling",
    "is_exporting",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_autocast_enabled",
    "is_tracing",
}
STATE |= {"is_large", "is_unrecorded"}
QUESTION = re.compile(r"can_\w+")
IN_PLACE = re.compile(r"[a-z]\w*[a-z0-9]_")
DEVICES = {"is_cpu", "is_cuda", "is_mps", "is_xpu", "is_meta"}
BEGINNING = re.compile(r"(That|Those|Of|What|Likewise)\b")


def wrong(text: str) -> list[tuple[int, str]]:
    """The lines of a source that a family has no place for, and why."""
    tree = ast.parse(text)
    found = {(node.lineno, why) for node in ast.walk(tree) for why in _whys(node)}
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found |= _written(function)
    return sorted(found)


def _whys(node):
    """The faults of one node."""
    if isinstance(node, ast.Import):
        yield from ("import of the faster versions" for a in node.names if _is_fast(a.name))
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
        if any(map(_is_fast, modules)):
            yield "import of the faster versions"
        yield from (f"question {a.name}" for a in node.names if _is_question(a.name, node.module or ""))
    elif isinstance(node, ast.Call):
        if any(k.arg == "out" for k in node.keywords):
            yield "out="
        if isinstance(node.func, ast.Attribute) and IN_PLACE.fullmatch(node.func.attr):
            yield f"in place: {node.func.attr}"
    elif isinstance(node, ast.Attribute):
        if node.attr in STATE or (QUESTION.fullmatch(node.attr) and _names_a_module(node.value)):
            yield f"question {node.attr}"
        elif node.attr in DEVICES or (
            node.attr == "type" and isinstance(node.value, ast.Attribute) and node.value.attr == "device"
        ):
            yield f"device: {ast.unparse(node)}"


def _is_fast(module):
    return module == "fullgrad._fast" or module.startswith("fullgrad._fast.")


def _is_question(name, module):
    """Whether a name is a question about torch's state; `can_broadcast` and its like ask about shapes."""
    of_dispatch = module.startswith(("fullgrad._dispatch", "fullgrad._core.buffers"))
    return name in STATE or (of_dispatch and QUESTION.fullmatch(name) is not None)


def _names_a_module(value):
    return isinstance(value, ast.Name) and value.id in ("_dispatch", "state", "torch_private")


def _written(function):
    """Assignments into tensors: arguments annotated as such, and local names for results of torch's functions."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    tensors = {
        a.arg for a in arguments if a.annotation is not None and ast.unparse(a.annotation).split("|")[0].strip() == "Tensor"
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _is_tensor(node.value, tensors):
            tensors |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    found = set()
    for node in ast.walk(function):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            owner = target.value if isinstance(target, ast.Subscript) else target
            whole = isinstance(target, ast.Name) and isinstance(node, ast.Assign)
            if not whole and isinstance(owner, ast.Name) and owner.id in tensors:
                found.add((node.lineno, f"in place: {ast.unparse(node).partition(chr(10))[0]}"))
    return found


def _is_tensor(value, tensors):
    """Whether an expression is a tensor for certain: torch's function, a method of a tensor, or arithmetic with one."""
    if isinstance(value, ast.BinOp):
        return _is_tensor(value.left, tensors) or _is_tensor(value.right, tensors)
    if isinstance(value, ast.Name):
        return value.id in tensors
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    owner, name = value.func.value, value.func.attr
    if isinstance(owner, ast.Name) and owner.id == "torch":
        return name not in NOT_TENSORS
    return name not in METHODS_OF_NUMBERS and _is_tensor(owner, tensors)


# Functions and methods whose results are numbers, shapes or pairs.
NOT_TENSORS = {
    "Size",
    "finfo",
    "iinfo",
    "get_num_threads",
    "promote_types",
    "result_type",
    "broadcast_shapes",
    "numel",
    "is_tensor",
}
METHODS_OF_NUMBERS = {"dim", "element_size", "item", "numel", "size", "stride", "tolist", "is_floating_point", "get_device"}


@pytest.mark.parametrize("file", FAMILIES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_a_family_holds_formulas_alone(file):
    """No question about torch's state, no ``out=``, no step in place, no device, no import of a faster version."""
    found = [f"{file.relative_to(ROOT).as_posix()}:{line}: {why}" for line, why in wrong(file.read_text())]
    assert found == []


def test_every_fault_is_seen():
    """The line of each fault is found, and the same words with another meaning are not."""
    text = """
from fullgrad._dispatch import can_reuse_buffers, is_distributed
from fullgrad._core.buffers import can_keep
from fullgrad._core.checks import can_broadcast
from fullgrad._fast.windows import _strict
import fullgrad._fast
from fullgrad import _fast
def f(x: Tensor, k: int, count=0):
    count += k
    y = torch.exp(x, out=None)
    y.add_(1)
    torch.relu_(y)
    y *= 2
    x[0] = 1
    z = (x.sin() + 1).cos()
    z[:, 0] += 1
    n = x.numel()
    n += 1
    y = y * 2
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or state.can_look(x):
        return x.is_cpu, x.device.type, x.device, x.dtype.type, x.__add__(1), f_(x)
"""
    found = wrong(text)
    assert sorted({line for line, _ in found}) == [2, 3, 5, 6, 7, 10, 11, 12, 13, 14, 16, 20, 21]
    whys = {line: [why for at, why in found if at == line] for line, _ in found}
    assert (whys[2], whys[3]) == (["question can_reuse_buffers"], ["question can_keep"])
    assert whys[20] == ["question can_look", "question is_compiling", "question is_grad_enabled"]
    assert whys[21] == ["device: x.device.type", "device: x.is_cpu"]
    assert (whys[13], whys[14], whys[16]) == (["in place: y *= 2"], ["in place: x[0] = 1"], ["in place: z[:, 0] += 1"])


def test_the_list_of_questions_is_that_of_the_dispatch():
    """A question added to ``_dispatch/state.py`` is one unless it is listed as about tensors, and the list has nothing else."""
    state = (PACKAGE / "_dispatch" / "state.py").read_text()
    assert {"can_reuse_buffers", "is_differentiating", "in_legacy_vmap", "forward_mode_is_on"} <= STATE
    assert all(f"def {name}(" in state for name in ABOUT_TENSORS)


def docstrings(text):
    """The docstrings of a module, its classes and functions, with their lines."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [(getattr(node, "lineno", 1), said) for node in nodes if (said := ast.get_docstring(node))]


def test_docstrings_begin_with_their_subject():
    """No docstring of the package begins with That, Those, Of, What or Likewise."""
    found = [
        f"{file.relative_to(ROOT).as_posix()}:{line}: {said[:40]}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line, said in docstrings(file.read_text())
        if BEGINNING.match(said)
    ]
    assert found == []


def test_a_docstring_that_begins_without_a_subject_is_seen():
    """The expression matches whole words at the beginning."""
    text = '"""Offsets."""\nclass A:\n    """What it is."""\n    def f(self):\n        """Those of x."""\n'
    assert [line for line, said in docstrings(text) if BEGINNING.match(said)] == [2, 4]
