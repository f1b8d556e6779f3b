"""Problems of a ``torch.autograd.Function``, and its replacement, by the shape of its forward and its backward."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

from fullgrad.audit._names import assignments, changed_in_place, pairs

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
_SMOOTH = re.compile(r"\bexp\(|\bpow\(|\*\*|tanh|sigmoid|sech|gauss|\berf")  # a slope other than 0 and 1
_ROUNDINGS = {"round": "round", "ceil": "ceil", "floor": "floor", "trunc": "trunc", "fix": "trunc"}


class FunctionClass(NamedTuple):
    """A Function: its name and line, and its methods and assignments, those that it inherits in its module among them."""

    name: str
    lineno: int
    methods: dict[str, ast.FunctionDef]
    attributes: dict[str, str]


def classes(tree: ast.Module) -> Iterator[FunctionClass]:
    """The Functions of a module, recognized by their bases, direct or in the module, that have a forward or a backward.

    A class without a forward, from which others of the module inherit, is part of these.
    """
    known = {"InplaceFunction"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.autograd"):
            known |= {alias.asname or alias.name for alias in node.names if alias.name in ("Function", "InplaceFunction")}
    found: dict[str, FunctionClass] = {}
    rows: list[tuple[ast.ClassDef, FunctionClass]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(_is_function(ast.unparse(base), known) for base in node.bases):
            known.add(node.name)
            cls = _with_inherited(node, [found[name] for base in node.bases if (name := ast.unparse(base)) in found])
            found[node.name] = cls
            rows.append((node, cls))
    bases = {ast.unparse(base) for node, _ in rows for base in node.bases}
    for node, cls in rows:
        own = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        if "forward" in own or ("backward" in own and ("forward" in cls.methods or node.name not in bases)):
            yield cls


def _with_inherited(node: ast.ClassDef, bases: list[FunctionClass]) -> FunctionClass:
    methods: dict[str, ast.FunctionDef] = {}
    attributes: dict[str, str] = {}
    for base in reversed(bases):
        methods |= base.methods
        attributes |= base.attributes
    methods |= {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    for target, value in assignments(ast.Module([n for n in node.body if isinstance(n, ast.Assign)], [])):
        attributes[ast.unparse(target)] = "" if value is None else ast.unparse(value)
    return FunctionClass(node.name, node.lineno, methods, attributes)


def _is_function(base: str, known: set[str]) -> bool:
    return base in known or base.endswith(("autograd.Function", "autograd.function.Function", "function.InplaceFunction"))


def breaks(cls: FunctionClass) -> tuple[str, ...]:
    """The features of torch that the class lacks, or that go wrong with it."""
    forward, backward = cls.methods.get("forward"), cls.methods.get("backward")
    broken = []
    if forward is not None and "setup_context" not in cls.methods:
        broken.append("func.grad")  # torch.func needs setup_context
    if "vmap" not in cls.methods and cls.attributes.get("generate_vmap_rule") != "True":
        broken.append("vmap")
    if "jvp" not in cls.methods:
        broken.append("jvp")
    broken.append("compiled transforms")
    if backward is not None and any("once_differentiable" in ast.unparse(d) for d in backward.decorator_list):
        broken.append("second order")
    elif _saves_an_intermediate(cls):
        broken.append("second order (a saved intermediate)")
    if any("custom_fwd" in ast.unparse(d) for f in (forward, backward) if f for d in f.decorator_list):
        broken.append("autocast in transforms")
    if _keeps_a_tensor(cls):
        broken.append("in-place changes unnoticed")
    if any(_reads_numbers(f) for f in (forward, backward) if f):
        broken.append("one sample at a time")
    return tuple(broken)


def _keeps_a_tensor(cls: FunctionClass) -> bool:
    """Whether an input that has a gradient is kept in ctx by itself: the first one, as others are often numbers."""
    setup = cls.methods.get("setup_context")
    function = cls.methods.get("forward") if setup is None else setup
    names = _arguments(function) if function else []
    if function is None or len(names) < 2:
        return False
    context, *given = names
    first = {given[0]} if setup is None else {f"{given[0]}[0]"}
    whole = set() if setup is None else {given[0]}
    for target, value in _unpacked(function, whole):
        text = "" if value is None else ast.unparse(value)
        if isinstance(target, ast.Name) and text in first:  # x, w = inputs
            first.add(target.id)
        kept = [ast.unparse(n) for n in value.elts] if isinstance(value, (ast.Tuple, ast.List)) else [text]
        if ast.unparse(target).startswith(f"{context}.") and any(word in first | whole for word in kept):
            return True
    return False


# Calls whose result has no derivative that could be lost.
_CONSTANT = re.compile(
    r"^(gt|ge|lt|le|eq|ne|greater|less|\w*_equal|equal|sign|sgn|round|floor|ceil|trunc|heaviside|arg\w+|nonzero|is\w+"
    r"|logical_\w+|bool|long|int|byte|\w+_like|bernoulli|size|numel|dim|tensor|zeros|ones|empty|full|detach)_?$"
)


def _saves_an_intermediate(cls: FunctionClass) -> bool:
    """Whether a tensor is saved that depends on an input and is neither input nor output: a constant to a second derivative."""
    setup, forward = cls.methods.get("setup_context"), cls.methods.get("forward")
    function = forward if setup is None else setup
    names = _arguments(function) if function else []
    if function is None or forward is None or len(names) < 2:
        return False
    context, *given = names
    known = {*given, *(_names(_returned_values(forward)) if setup is None else ())}
    made: dict[str, list[ast.expr]] = {}
    for target, value in _each_assignment(function):
        if isinstance(target, ast.Name) and value is not None:
            made.setdefault(target.id, []).append(value)
    if setup is not None:  # what is unpacked from inputs and output is one of them
        whole = lambda v: isinstance(v, ast.Subscript) and isinstance(v.value, ast.Name) and v.value.id in given  # noqa: E731
        known |= {n for n, vs in made.items() if all(whole(v) or (isinstance(v, ast.Name) and v.id in given) for v in vs)}
    saved = [
        value
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{context}.save_for_backward"
        for value in node.args
    ]
    # Arguments after the first one are often numbers.
    own = {*given[:1]} if setup is None else {*given}
    dependent = _dependent(function, own)
    return any(_is_intermediate(value, known, own, dependent, made) for value in saved)


def _returned_values(function: ast.FunctionDef) -> list[ast.expr]:
    values = [n.value for n in _own_nodes(function) if isinstance(n, ast.Return) and n.value is not None]
    return [v for value in values for v in (value.elts if isinstance(value, ast.Tuple) else [value])]


def _names(values: list[ast.expr]) -> set[str]:
    return {v.id for v in values if isinstance(v, ast.Name)}


def _is_intermediate(
    value: ast.expr, known: set[str], given: set[str], dependent: set[str], made: dict[str, list[ast.expr]], depth: int = 4
) -> bool:
    """Whether an expression is computed from an input and may have a derivative."""
    if isinstance(value, ast.Name):
        is_made = value.id in made and depth and (value.id not in known or value.id in given)
        values = made[value.id] if is_made else []
        return any(_is_intermediate(v, known - {value.id}, given, dependent, made, depth - 1) for v in values)
    if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id in known:
        return False  # inputs[0]
    return not isinstance(value, ast.Starred) and _depends(value, dependent) and not _is_flat(value, dependent)


def _is_flat(value: ast.expr, given: set[str]) -> bool:
    """Whether the derivative of an expression is 0, as of masks and indices."""
    if isinstance(value, ast.Compare) or not _depends(value, given):
        return True
    if isinstance(value, (ast.BinOp, ast.BoolOp, ast.UnaryOp)):
        return all(_is_flat(v, given) for v in ast.iter_child_nodes(value) if isinstance(v, ast.expr))
    return isinstance(value, ast.Call) and _CONSTANT.match(next(iter(_calls(value)), "")) is not None


def _unpacked(function: ast.FunctionDef, whole: set[str]) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The assignments of a function; the first target of ``x, w = inputs`` has the value ``inputs[0]``."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        is_whole = isinstance(node.value, ast.Name) and node.value.id in whole
        for target in node.targets:
            if is_whole and isinstance(target, (ast.Tuple, ast.List)) and target.elts:
                yield target.elts[0], ast.Subscript(node.value, ast.Constant(0), ast.Load())
            else:
                yield from pairs(target, node.value)


# What is known without the numbers of a tensor.
_FORM = ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad", "needs_input_grad", "size", "dim", "numel")
_REDUCTIONS = ("any", "all", "sum", "mean", "max", "min", "equal", "allclose")


def _reads_numbers(function: ast.FunctionDef) -> bool:
    """Whether a rule reads the numbers of a tensor that depends on its arguments, or branches on them."""
    given = _dependent(function, {*_arguments(function)})
    for node in ast.walk(function):
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            asked, names = node.test, _REDUCTIONS
        else:
            asked, names = node, ("item", "numpy", "tolist")
        for n in ast.walk(asked) if names is _REDUCTIONS else (asked,):
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in names and _depends(n, given):
                return True
    return False


def _dependent(function: ast.FunctionDef, given: set[str]) -> set[str]:
    """Some names, and those that are computed from their numbers."""
    for _ in range(8):
        more = {t.id for t, v in _each_assignment(function) if isinstance(t, ast.Name) and v is not None and _depends(v, given)}
        if more <= given:
            break
        given = given | more
    return given


def _each_assignment(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The assignments of a function; a tuple that is unpacked is the value of each of its names."""
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from [(inner, value or node.value) for inner, value in pairs(target, node.value)]


def _depends(value: ast.AST, given: set[str]) -> bool:
    """Whether an expression depends on the numbers of one of these names."""
    if isinstance(value, ast.Attribute) and value.attr in _FORM:
        return False
    if isinstance(value, ast.Name):
        return value.id in given
    return any(_depends(child, given) for child in ast.iter_child_nodes(value))


def replacement(cls: FunctionClass) -> str:
    """The operator of fullgrad with the same value and derivative, by the shape of both; otherwise ``adopt``."""
    adopt = f"adopt({cls.name})"
    return _PUBLISHED.get(cls.name) or _by_shape(cls, adopt)


def _by_shape(cls: FunctionClass, adopt: str) -> str:
    forward, backward = cls.methods.get("forward"), cls.methods.get("backward")
    if forward is None or backward is None:
        return adopt
    inputs, gradients = _arguments(forward)["setup_context" not in cls.methods :], _arguments(backward)[1:]
    value, slope = _returned(forward), _first(_returned(backward))
    if not inputs or not gradients or value is None or slope is None:
        return adopt
    x, gradient = inputs[0], gradients[0]
    if _is_same(value, x) and x not in map(changed_in_place, ast.walk(forward)):
        return of_gradient_map(slope, gradient) or adopt
    passes = _is_same(slope, gradient) and gradient not in map(changed_in_place, ast.walk(backward))
    masks = _MASK.search(_body(backward)) is not None and _SMOOTH.search(_body(backward)) is None
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
    named = _learned(cls, value, x, inputs, slope, gradient)
    if named or _is_zero(slope, gradient):  # what learns is another input
        return named or adopt
    tie = _tie_of_step(value, x)
    if tie is None:
        return adopt
    threshold = _threshold_of_step(value, x)
    known = {n.id for n in ast.walk(threshold) if isinstance(n, ast.Name)} if threshold is not None else set()
    used = {n.id for f in (forward, backward) for line in f.body for n in ast.walk(line) if isinstance(n, ast.Name)}
    width = ", …" if any(name in used - known - {x} for name in inputs) else ""  # of which only its place is known
    if threshold is None or not known <= {*inputs}:
        return _spike(cls.name, x, passes, _body(backward), width, ", threshold=…", tie)
    is_zero = isinstance(threshold, ast.Constant) and threshold.value == 0
    more = "" if is_zero else f", threshold={ast.unparse(threshold)}"
    return _spike(cls.name, x, passes, _body(backward), width, more, tie)


def _is_zero(slope: ast.expr, gradient: str) -> bool:
    """Whether an expression is 0 whatever the gradient is."""
    if isinstance(slope, ast.Call):
        name = next(iter(_calls(slope)), "")
        return name in ("zeros_like", "zeros", "new_zeros") or (name == "mul" and "0" in ast.unparse(slope).split("mul")[-1])
    if isinstance(slope, ast.BinOp) and isinstance(slope.op, ast.Mult):
        return any(isinstance(side, ast.Constant) and side.value == 0 for side in (slope.left, slope.right))
    return isinstance(slope, ast.Constant) and slope.value == 0


def _learned(cls: FunctionClass, value: ast.expr, x: str, inputs: list[str], slope: ast.expr, gradient: str) -> str:
    """The operator of a class with a parameter that learns: LSQ's scale or the threshold of a JumpReLU; "" for another class."""
    backward = cls.methods["backward"]
    returned = [n.value for n in _own_nodes(backward) if isinstance(n, ast.Return) and isinstance(n.value, ast.Tuple)]
    if len(inputs) < 2 or not any(len(v.elts) > 1 and not _is_none(v.elts[1]) for v in returned):
        return ""
    learned, forward = inputs[1], cls.methods["forward"]
    text = _inlined(value, forward)
    called = {*_calls(text)}
    products = [n for n in ast.walk(text) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    by_learned = [n for n in products if learned in (ast.unparse(n.left), ast.unparse(n.right))]
    divided = [
        n for n in ast.walk(text) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div) and _mentions(n.right, learned)
    ]
    if "round" in called and {"clamp", "clip", "min", "minimum"} & called and by_learned and divided:
        return f"quantizers.lsq({x}, {learned}, low, high)"
    above = [n for n in ast.walk(text) if isinstance(n, ast.Compare) and ast.unparse(n).replace(" ", "") == f"{x}>{learned}"]
    if above and any(
        _mentions(n.left, x) ^ _mentions(n.right, x) or _is_same(n.left, x) or _is_same(n.right, x) for n in products
    ):
        is_masked = "if" not in ast.unparse(slope) and not _is_zero(slope, gradient)
        return f"spikes.jumprelu({x}, {learned}, bandwidth)" if is_masked else ""
    return ""


def _inlined(value: ast.expr, function: ast.FunctionDef) -> ast.expr:
    """The expression with names that are assigned once replaced by their values, in any depth."""
    assigned: dict[str, list[ast.expr | None]] = {}
    for target, given in assignments(function):
        if isinstance(target, ast.Name):
            assigned.setdefault(target.id, []).append(given)
    once = {name: v[0] for name, v in assigned.items() if len(v) == 1 and v[0] is not None and not _mentions(v[0], name)}

    class Inline(ast.NodeTransformer):
        depth = 0

        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id not in once or self.depth > 6:
                return node
            self.depth += 1
            found = self.visit(ast.parse(ast.unparse(once[node.id]), mode="eval").body)
            self.depth -= 1
            return found

    return Inline().visit(ast.parse(ast.unparse(value), mode="eval").body)


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


def _threshold_of_step(value: ast.expr, x: str) -> ast.expr | None:
    """The number that the input is compared with; None if it is not compared itself, but for a number that is subtracted."""
    value = _without_kept(value)
    sides: list[ast.expr] = []
    if isinstance(value, ast.Compare):
        sides = [value.left, *value.comparators]
    elif isinstance(value, ast.Call):
        is_method = isinstance(value.func, ast.Attribute) and ast.unparse(value.func.value) not in ("torch", "F")
        owner = [value.func.value] if is_method and isinstance(value.func, ast.Attribute) else []
        sides = [*owner, *value.args]
        if "heaviside" in next(iter(_calls(value)), ""):
            sides = [*sides[:1], ast.Constant(0)]
    if len(sides) != 2:
        return None
    left, right = sides
    if _is_same(left, x):
        return right
    is_shifted = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Sub) and _is_same(left.left, x)
    is_zero = isinstance(right, ast.Constant) and right.value == 0
    return left.right if is_shifted and is_zero and isinstance(left, ast.BinOp) else None


def _spike(name: str, x: str, passes: bool, body: str, width: str, threshold: str, tie: str) -> str:
    """The spike with the slope of a backward: by the name of the class, which is often that of the surrogate, or by the slope.

    ``width``, ``threshold`` and ``tie`` are its arguments behind the input.
    """
    if passes:
        return f"spikes.ste_heaviside({x}, None{threshold}{tie})"
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    from fullgrad import spikes  # late: its import takes seconds

    for known in spikes.__all__:
        if known.islower() and known in (snake, name.lower()):
            has_threshold = "threshold" in inspect.signature(getattr(spikes, known)).parameters
            of = x if has_threshold or not threshold else f"{x} - {threshold.partition('=')[2]}"
            return f"spikes.{known}({of}{width}{threshold * has_threshold}{tie})"
    for pattern, spike in _SLOPES:
        if re.search(pattern, body.lower()):
            return f"{spike}({x}{width}{threshold}{tie}) or spikes.from_slope(slope)"
    window = re.search(r"abs\(.*[<>]|[<>].*abs\(", body)
    return f"spikes.ste_heaviside({x}{width}{threshold}{tie}) or spikes.rect" if window else "spikes.from_slope(slope)"


def of_gradient_map(slope: ast.expr, gradient: str) -> str | None:
    """The operator that is the identity with this map of the gradient."""
    text, called = ast.unparse(slope), [*_calls(slope)]
    sign, factors = _product(slope)
    if sign < 0 and sum(_is_same(factor, gradient) for factor in factors) == 1:
        return "reverse_grad(x)" if len(factors) == 1 else "reverse_grad(x, scale)"
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


def _product(node: ast.expr) -> tuple[int, list[ast.expr]]:
    """The sign of a product, and its factors without the divisors."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, factors = _product(node.operand)
        return -sign, factors
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "neg":
        sign, factors = _product(node.func.value if ast.unparse(node.func.value) != "torch" else node.args[0])
        return -sign, factors
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        (left, factors), (right, others) = _product(node.left), _product(node.right)
        return left * right, [*factors, *(others if isinstance(node.op, ast.Mult) else [ast.Constant(1)])]
    return 1, [node]


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
    """The expression that is returned, with names that are assigned once replaced by their values; None if there are several.

    A None, which is returned or assigned where nobody asks for a gradient, does not count.
    """
    returns = [n.value for n in _own_nodes(function) if isinstance(n, ast.Return) and n.value is not None]
    returns = [value for value in returns if not _is_none(_first(value))]
    if len({ast.dump(_first(value) or value) for value in returns}) != 1:
        return None
    value: ast.expr | None = returns[-1]
    assigned: dict[str, list[ast.expr | None]] = {}
    for target, given in assignments(function):
        if isinstance(target, ast.Name) and not _is_none(given):
            assigned.setdefault(target.id, []).append(given)
    changed = {*map(changed_in_place, ast.walk(function))}
    for _ in range(4):
        first = _first(value)
        if not isinstance(first, ast.Name) or first.id not in assigned:
            break
        found = assigned[first.id]
        if first.id in _arguments(function) and not all(v is not None and _is_same(v, first.id) for v in found):
            return None  # an argument that has another value now
        if len(found) != 1 or found[0] is None or first.id in changed or _mentions(found[0], first.id):
            break
        value = found[0]
    return value


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions in it."""
    stack: list[ast.AST] = [*function.body]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            stack += ast.iter_child_nodes(node)


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


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
