"""Problems of a ``torch.autograd.Function``, and its replacement, by the shape of its forward and its backward."""

import ast
import re
from collections.abc import Iterator

from fullgrad import spikes

# Patterns in the backward of a step, and the spike of that slope. The first match counts.
_SLOPES = (
    (r"sigmoid_backward|sigmoid\(", "spikes.sigmoid"),
    (r"atan", "spikes.atan"),
    (r"erf|exp\(-?\(.*\*\* ?2|gauss", "spikes.erf"),
    (r"exp\(-.*abs", "spikes.piecewise_exp"),
    (r"abs\(.*\*\* ?2|abs\(\).*\*\* ?2|fast", "spikes.fast_sigmoid"),
    (r"relu\(1|max\(.*1 - |clamp\(1 - ", "spikes.piecewise_quadratic"),
)
# Published classes whose names say what they compute, where the shape does not; docs/which.md lists the differences.
_PUBLISHED = {
    "AbsBinarySignGradFn": "spikes.abs_binary_sign_grad(x)",
    "BinarySignSteFn": "spikes.ste_sign(x, None)",
    "BudgetBisectFunction": "soft.proj_capped_simplex(x, k, mode='c0')",
    "Entmax15Function": "soft.entmax(x)",
    "EntmaxBisectFunction": "soft.entmax(x, alpha)",
    "Entmax15LossFunction": "soft.entmax_loss(x, target)",
    "EntmaxBisectLossFunction": "soft.entmax_loss(x, target, alpha)",
    "InputDoReFaFunction": "quantizers.dorefa_activation(x, bits)",
    "MultiLevelSpikeCountATGF": "spikes.spike_count(x, max_spikes, window)",
    "NormmaxBisectFunction": "soft.normmax(x, alpha)",
    "NormmaxBisectLossFunction": "soft.normmax_loss(x, target, alpha)",
    "RoundToZeroSteFn": "trunc(x)",
    "SparsemaxBisectFunction": "soft.sparsemax(x)",
    "SparsemaxFunction": "soft.sparsemax(x)",
    "SparsemaxBisectLossFunction": "soft.entmax_loss(x, target, 2.0)",
    "SparsemaxLossFunction": "soft.entmax_loss(x, target, 2.0)",
    "StochasticRoundSteFn": "stochastic_round(x)",
    "StretchedElasticQuant": "quantizers.stretched_elastic(x, scale, levels)",
    "TensorClampSteFn": "replace_grad(x.clamp(low, high), x)",
    "WeightDoReFaFunction": "quantizers.dorefa_weight(w, bits)",
    "_ToAffineFakeQuantized": "quantizers.fake_quantize(x, scale, zero_point)",
    "poisson_pass": "spikes.bernoulli(p)",
    "super_spike": "spikes.fast_sigmoid(v, 1.0, grad_scale=alpha)",
}
_MASK = re.compile(r"[<>]|\bmask|\bwhere|masked_fill|\ble\(|\bge\(|\blt\(|\bgt\(|logical|hardtanh")
_ROUNDINGS = {"round": "round", "ceil": "ceil", "floor": "floor", "trunc": "trunc", "fix": "trunc"}


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """The Functions of a module, recognized by their bases, direct or in the module, that have a forward or a backward."""
    known = {"InplaceFunction"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.autograd"):
            known |= {alias.asname or alias.name for alias in node.names if alias.name in ("Function", "InplaceFunction")}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_is_function(ast.unparse(base), known) for base in node.bases):
            known.add(node.name)
            if method(node, "forward") or method(node, "backward"):
                yield node


def _is_function(base: str, known: set[str]) -> bool:
    return base in known or base.endswith(("autograd.Function", "autograd.function.Function", "function.InplaceFunction"))


def method(cls: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """A method of the class itself."""
    return next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def breaks(cls: ast.ClassDef) -> tuple[str, ...]:
    """The features of torch that the class lacks, or that go wrong with it."""
    forward, backward = method(cls, "forward"), method(cls, "backward")
    broken = []
    if forward is not None and method(cls, "setup_context") is None:
        broken.append("func.grad")  # torch.func needs setup_context
    if method(cls, "vmap") is None and not _says(cls, "generate_vmap_rule"):
        broken.append("vmap")
    if method(cls, "jvp") is None:
        broken.append("jvp")
    broken.append("compiled transforms")
    if backward is not None and any("once_differentiable" in ast.unparse(d) for d in backward.decorator_list):
        broken.append("second order")
    if any("custom_fwd" in ast.unparse(d) for f in (forward, backward) if f for d in f.decorator_list):
        broken.append("autocast in transforms")
    if _keeps_a_tensor(cls):
        broken.append("in-place changes unnoticed")
    if any(_reads_numbers(f) for f in (forward, backward) if f):
        broken.append("one sample at a time")
    return tuple(broken)


def _says(cls: ast.ClassDef, name: str) -> bool:
    return any(
        isinstance(n, ast.Assign) and any(ast.unparse(t) == name for t in n.targets) and ast.unparse(n.value) == "True"
        for n in cls.body
    )


def _keeps_a_tensor(cls: ast.ClassDef) -> bool:
    """Whether an input that has a gradient is kept in ctx by itself: the first one, as others are often numbers."""
    forward = method(cls, "forward")
    arguments = [a.arg for a in forward.args.args] if forward else []
    if len(arguments) < 2:
        return False
    kept = [n for n in ast.walk(forward) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Name)] if forward else []
    return any(ast.unparse(n.targets[0]).startswith(f"{arguments[0]}.") and ast.unparse(n.value) == arguments[1] for n in kept)


def _reads_numbers(function: ast.FunctionDef) -> bool:
    calls = (n.func.attr for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(name in ("item", "numpy", "tolist") for name in calls)


def replacement(cls: ast.ClassDef) -> str:
    """The operator of fullgrad with the same value and derivative, by the shape of both; otherwise ``adopt``."""
    adopt = f"adopt({cls.name})"
    return _PUBLISHED.get(cls.name) or _by_shape(cls, adopt)


def _by_shape(cls: ast.ClassDef, adopt: str) -> str:
    forward, backward = method(cls, "forward"), method(cls, "backward")
    if forward is None or backward is None:
        return adopt
    inputs, gradients = _arguments(forward)[method(cls, "setup_context") is None :], _arguments(backward)[1:]
    value, slope = _returned(forward), _first(_returned(backward))
    if not inputs or not gradients or value is None or slope is None:
        return adopt
    x, gradient = inputs[0], gradients[0]
    if _is_same(value, x) and x not in map(_changed_in_place, ast.walk(forward)):
        return of_gradient_map(slope, gradient) or adopt
    passes = _is_same(slope, gradient) and gradient not in map(_changed_in_place, ast.walk(backward))
    masks = _MASK.search(_body(backward)) is not None
    outermost = next(iter(_calls(value)), "") if _of_the_input(value, x) else ""
    if outermost in _ROUNDINGS:
        if not isinstance(value, ast.Call) or value.keywords or len(value.args) > 1:  # with a number of decimals
            return adopt
        return f"{_ROUNDINGS[outermost]}({x})" if passes else adopt
    if outermost in ("clamp", "clip", "hardtanh"):
        return f"replace_grad({x}.clamp(low, high), {x})" if passes else f"clamp({x}, low, high)" if masks else adopt
    if outermost == "sign":  # the sign of 0 is 0
        return f"spikes.ternary_sign({x}, 0.0, None)" if passes else f"spikes.ternary_sign({x}, 0.0)" if masks else adopt
    if passes and {*_calls(value)} == {"round"}:
        return "step_quantize, k_bit_quantize or replace_grad"
    tie = _tie_of_step(value, x)
    return adopt if tie is None else _spike(cls.name, x, passes, _body(backward), tie)


def _arguments(function: ast.FunctionDef) -> list[str]:
    """The names of the arguments, without the class of a classmethod."""
    names = [a.arg for a in function.args.args]
    return names[any(ast.unparse(d) == "classmethod" for d in function.decorator_list) :]


def _tie_of_step(value: ast.expr, x: str) -> str | None:
    """The value of a step at its threshold, as an argument if it is not 1; None if the expression is not a step of the input."""
    value = _without_kept(value)
    if isinstance(value, ast.Compare) and len(value.ops) == 1 and _mentions(value.left, x):
        return {ast.Gt: ", tie=0.0", ast.GtE: ""}.get(type(value.ops[0]))
    if isinstance(value, ast.Call):
        name = next(iter(_calls(value)), "")
        ties = {"gt": ", tie=0.0", "greater": ", tie=0.0", "ge": "", "greater_equal": "", "heaviside": "", "_heaviside": ""}
        return ties.get(name) if _mentions(value, x) else None
    return None


def _spike(name: str, x: str, passes: bool, body: str, tie: str) -> str:
    """The spike with the slope of a backward: by the name of the class, which is often that of the surrogate, or by the slope."""
    if passes:
        return f"spikes.ste_heaviside({x}, None{tie})"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    for known in spikes.__all__:
        if known.islower() and known in (snake, name.lower()):
            return f"spikes.{known}({x}{tie})"
    for pattern, spike in _SLOPES:
        if re.search(pattern, body.lower()):
            return f"{spike}({x}{tie}) or spikes.from_slope(slope)"
    window = re.search(r"abs\(.*[<>]|[<>].*abs\(", body)
    return f"spikes.ste_heaviside({x}{tie}) or spikes.rect" if window else "spikes.from_slope(slope)"


def of_gradient_map(slope: ast.expr, gradient: str) -> str | None:
    """The operator that is the identity with this map of the gradient."""
    text = ast.unparse(slope)
    if isinstance(slope, ast.UnaryOp) and isinstance(slope.op, ast.USub):
        return "reverse_grad(x)"
    called = [*_calls(slope)]
    is_product = isinstance(slope, ast.BinOp) and isinstance(slope.op, (ast.Mult, ast.Div))
    reverses = re.search(rf"{gradient} \* -|-\w[\w.]* \* {gradient}|{gradient}\.neg\(", text)
    if called[:1] == ["neg"] or (is_product and reverses):
        return "reverse_grad(x, scale)"
    if _is_clip_of(slope, gradient):
        return "clip_grad(x, bound)"
    if "nan_to_num" in called or "nan_to_num_" in called:
        return "nan_to_num_grad(x)"
    if "norm" in called:  # without a bound the gradient is normalized
        return "clip_grad_norm(x, bound)" if {"min", "minimum", "clamp", "clip", "clamp_"} & {*called} else None
    if "max" in called or "amax" in called:
        return "scale_grad(x)" if "abs" in called else None
    if {"clamp", "clip", "clamp_"} & {*called}:
        return None
    if isinstance(slope, ast.BinOp) and isinstance(slope.op, (ast.Mult, ast.Div)):
        if "mask" in text or re.search(r"[<>]", text):
            return "mask_grad(x, mask)"
        if gradient in (ast.unparse(slope.left), ast.unparse(slope.right)):
            return "scale_bwd(x, scale)"
    return None


def _is_clip_of(slope: ast.expr, gradient: str) -> bool:
    """Whether an expression is a clamp of the gradient between a bound and its negative."""
    if not (isinstance(slope, ast.Call) and [*_calls(slope)][:1] in (["clamp"], ["clip"], ["clamp_"])):
        return False
    owner = ast.unparse(slope.func).rpartition(".")[0]
    args = [ast.unparse(a) for a in [*slope.args, *(k.value for k in slope.keywords)]]
    if owner != gradient:
        owner, *args = args or [""]
    return owner == gradient and len(args) == 2 and args[0].replace(" ", "") in (f"-{args[1]}", f"-({args[1]})")


def _body(function: ast.FunctionDef) -> str:
    """The code without the docstring and the signature."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return "\n".join(ast.unparse(line) for line in function.body[is_docstring:])


def _returned(function: ast.FunctionDef) -> ast.expr | None:
    """The expression of the last return, with names that are assigned once replaced by their values."""
    returns = [n for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    if not returns:
        return None
    assigned: dict[str, list[ast.expr]] = {}
    for n in ast.walk(function):
        if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name):
            assigned.setdefault(n.targets[0].id, []).append(n.value)
        changed = _changed_in_place(n)
        if changed is not None:  # so that the name is not replaced
            assigned.setdefault(changed, []).extend([value for value in [returns[-1].value] if value is not None] * 2)
    value = returns[-1].value
    for _ in range(4):
        first = _first(value)
        found = assigned.get(first.id, []) if isinstance(first, ast.Name) else []
        if len(found) != 1 or not isinstance(first, ast.Name) or _mentions(found[0], first.id):
            break
        value = found[0]
    return value


def _changed_in_place(node: ast.AST) -> str | None:
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


def _first(value: ast.expr | None) -> ast.expr | None:
    return value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value


def _mentions(value: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value))


# Methods that leave the value as it is.
_KEEP = ("clone", "view_as", "contiguous", "alias", "detach", "to", "float", "type", "type_as", "expand_as", "view", "reshape")


def _without_kept(value: ast.expr) -> ast.expr:
    """The expression that is copied, viewed or converted."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _KEEP:
        value = value.func.value
    return value


def _is_same(value: ast.expr, name: str) -> bool:
    """Whether an expression is the tensor of a name, or a copy or view of it."""
    value = _without_kept(value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and ast.unparse(value.right) in ("1", "1.0"):
        value = value.left
    return isinstance(value, ast.Name) and value.id == name


def _calls(value: ast.AST) -> Iterator[str]:
    """The names of the functions and methods that are called, from the outermost."""
    for n in ast.walk(value):
        if isinstance(n, ast.Call):
            name = n.func.attr if isinstance(n.func, ast.Attribute) else getattr(n.func, "id", "")
            if name and name not in _KEEP:
                yield name


def _of_the_input(value: ast.expr, x: str) -> bool:
    """Whether the outermost call is of the input, ``torch.clamp(x, …)`` or ``x.clamp(…)``."""
    value = _without_kept(value)
    if not isinstance(value, ast.Call):
        return False
    owner = value.func.value if isinstance(value.func, ast.Attribute) else None
    return (owner is not None and _is_same(owner, x)) or (bool(value.args) and _is_same(value.args[0], x))
