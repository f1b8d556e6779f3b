"""`diagnose`: the findings of a model and a batch."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._dispatch import operator_of_class, place_of_operator, pytree
from fullgrad.audit import Finding as OfSource
from fullgrad.audit._find import audit_tree
from fullgrad.audit._sources import tree
from fullgrad.completion import operators
from fullgrad.diagnosis import _flow, _mend
from fullgrad.diagnosis._flow import Flow, Loss, Node, flow, kept, scales, squares
from fullgrad.diagnosis._transforms import ADOPTING, BOTH, CHECKPOINTS, COMPLETING, Tested, tested

_SMALL, _LARGE = 1e-6, 1e6
_LACKING = re.compile(r"Trying to use forward AD with (\w+)")  # torch's words
_PAGE_OF = {ADOPTING: "adopt", COMPLETING: "completing", BOTH: "adopt, completing", CHECKPOINTS: "adopt, completing"}


@dataclass
class Found:
    """A finding: where, what with numbers, which derivatives fail, the line that mends it, and what it stands in place of."""

    layer: str
    kind: str
    what: str
    line: str
    instead_of: str = ""
    page: str = ""
    place: str = ""
    fails: dict[str, str] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)


@dataclass
class Layer:
    """A row of the table of layers; of its units, which are the elements of one sample, those that pass no gradient."""

    name: str
    kind: str
    value: float | None = None
    gradient: float | None = None
    units: int | None = None  # that get a gradient, at a spike, a ReLU, a quantizer or the like
    units_without: list[Any] = field(default_factory=list)  # their indices


@dataclass
class Diagnosis:
    """All that was found of a model."""

    findings: list[Found]
    notes: list[str]
    layers: list[Layer]
    loss: float


def diagnose(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Loss = squares,
    step: Callable[..., None] = lambda *words: None,
) -> Diagnosis:
    """Run a model forward and backward, and its layers under each transform. The model is changed: pass a copy.

    The model runs twice, forward and backward. Then one layer of each kind, the model itself among them, runs 19 times: ten for
    the value and its differences, nine in pairs of forward and backward or tangent, of which six are of second order and take a
    few such pairs each; and eight times more for each context that is tried, if a derivative fails that does in no inner layer.
    A layer that is called in a loop runs with the inputs of its first call alone, but the layers around it run the whole loop.

    ``step`` is called with words about what runs next.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        step("the model, forward and backward")
        recorded = flow(model, args, kwargs, loss)
        torch.manual_seed(0)
        with kept(model):
            sizes = scales(model, args, kwargs, loss, recorded.lacking)
        calls = recorded.calls if recorded.has_gradient else {}
        raising = [cut.layer for cut in recorded.cuts if cut.raises]  # All derivatives of such a layer raise.
        calls = {name: call for name, call in calls.items() if not any(_is_inside(layer, name) for layer in raising)}
        results: dict[str, Tested] = {}
        for i, (name, call) in enumerate(calls.items(), 1):  # inner layers before those around them
            known = set() if recorded.functions[name] else _known(recorded, results, name)
            told = functools.partial(step, f"layer {i} of {len(calls)}, {name}")
            results[name] = tested(call, _has_functions(recorded, name), known, told)
    source = _source(model)
    found = [*_of_flow(model, recorded), *_of_scales(sizes), *_of_transforms(recorded, results, source), *_of_source(source)]
    notes = [f"{name}: its derivatives were not compared: {r.why_not}" for name, r in results.items() if r.why_not]
    notes += _by_design(recorded, results)
    ends = {name for cut in recorded.cuts for name in cut.parameters}
    if unused := [n for n in recorded.without if n not in ends]:
        notes.append(f"these parameters get no gradient, or zeros: {', '.join(unused[:8])}{' …' if len(unused) > 8 else ''}")
    if hidden := list(dict.fromkeys(f"{_called(n)} in {n.layer}" for n in recorded.nodes if _flow.is_unreached(n))):
        names = ", ".join(hidden[:8]) + (" …" if len(hidden) > 8 else "")
        notes.append(f"no gradient reaches {names}: diagnose again once the rest is mended")
    dead = [(node, mask) for node in recorded.nodes if (mask := _flow.dead_units(node)) is not None]
    if few := [_few(node, mask) for node, mask in dead if mask.any() and not _is_told(node)]:
        names = ", ".join(few[:8]) + (" …" if len(few) > 8 else "")
        notes.append(f"units without a gradient from any sample: {names}; more samples may reach them")
    return Diagnosis(found, notes, _layers(model, sizes, dead), recorded.loss)


def _is_told(node: Node) -> bool:
    return node.made_nan or _flow.is_dead(node) or _flow.is_saturated(node)


def _few(node: Node, mask: Tensor) -> str:
    units = int(node.units.came.sum()) if node.units is not None else 0
    layer = "" if node.layer == "(all)" else f" in {node.layer}"
    return f"{int(mask.sum()):,} of {units:,} of {_called(node)}{layer}"


# --- The gradient on its way ----------------------------------------------------------------------------------------------


def _of_flow(model: nn.Module, recorded: Flow) -> Iterator[Found]:
    told: set[Any] = set()
    for node in recorded.nodes:
        module = model if node.layer == "(all)" else model.get_submodule(node.layer)
        name, layer = _called(node), "" if node.layer == "(all)" else node.layer
        key = node.layer, node.place, name, node.made_nan
        if key in told:
            continue
        if node.made_nan:
            what = f"the gradient is finite before {name} and NaN or infinite after it"
            mend, kind = _mend.of_nan(node.place, node.name), "nan gradient"
        elif _flow.is_dead(node):
            what = f"{name} passes 0 of the {node.elements:,} elements of the gradient that reach it"
            if _flow.is_weak(node):
                what = (
                    f"{name} passes less than a hundredth of the gradient that reaches it, and no value differs between samples"
                )
            kind = "dead gradient"
            if _flow.is_weak(node) and node.function:
                mend = _mend.Mend("", "", "")
            elif node.function and node.inputs > 1:  # an estimator of its own, which another derivative would destroy
                what += f", for none of its {node.inputs} inputs: is its window too narrow for these values?"
                mend = _mend.Mend("", "", "")
            elif node.is_own:
                mend, what = _of_own(node, what)
            else:
                mend = _mend.of_dead(node.place, node.name, layer, module, node.depth)
        elif _flow.is_saturated(node):
            what = _of_units(node, name)
            kind = "saturated"
            if node.is_own:
                mend, what = _of_own(node, what)
            else:
                mend = _mend.of_dead(node.place, node.name, layer, module, node.depth)
        else:
            continue
        told.add(key)
        # Of a layer of torch's the place is only where its parent is called.
        place = str(node.place) if node.place is not None and (mend.instead_of or not layer or node.is_own) else ""
        yield Found(node.layer, kind, what, mend.line, mend.instead_of, mend.page, place)
    for cut in recorded.cuts:
        names, function = sorted(cut.parameters), cut.place.function
        is_context = function in _mend.CONTEXTS
        is_asked = is_context or function in _flow.STOPS
        what = f"{'torch.' * is_context}{function} {'ends the gradient' if is_asked else 'has no derivative'}"
        what += ": the backward raises" if cut.raises else ""
        what += f", and {_count(len(names), 'parameter')} before it get no gradient: "
        what += ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
        what += "; compute it outside of the context" if is_context else ""
        mend = _mend.of_cut(cut.place, cut.raises)
        yield Found(cut.layer, "no gradient", what, mend.line, mend.instead_of, mend.page, str(cut.place))
    if not recorded.has_gradient and not recorded.cuts:
        yield Found(
            "(all)", "no gradient", "the loss has no gradient: all of it is computed under torch.no_grad, or from constants", ""
        )
    for layer, place in recorded.nonfinite.items():
        module = model if layer == "(all)" else model.get_submodule(layer)
        wrong = [n for n, p in module.named_parameters() if not p.isfinite().all()]
        place = None if wrong else place
        what = f"its output is NaN or infinite{f', by {place.function}' if place else ''}"
        what += f", and so are parameters: {', '.join(wrong[:4])}" if wrong else ", and its input finite"
        # The operators of this package for such functions change the derivative, not the value.
        yield Found(layer, "nan value", what, "", place=str(place or ""))


def _is_inside(layer: str, other: str) -> bool:
    return other in ("(all)", layer) or layer.startswith(f"{other}.")


def _of_units(node: Node, name: str) -> str:
    """The words of a finding whose cause are units, first, or elements."""
    elements = f"passes {node.passed:,} of the {node.elements:,} elements of the gradient that reach it"
    without, units, has_weak = _flow.units_without(node)
    if not without:
        return f"{name} {elements}"
    what = f"{name} passes no gradient from any sample at {without:,} of {units:,} units"
    if has_weak:  # a long tail is no zero, so that the elements say nothing
        return f"{what}, or less than a hundredth of it, with the same value for all samples"
    return f"{what}; it {elements}"


def _called(node: Node) -> str:
    if node.is_own:  # a rule of the user's has a class of this package as its node, and no name
        return node.place.operator if node.place is not None and node.place.operator else f"the declared gradient of {node.name}"
    return node.name.removesuffix("Backward") if node.function is None else node.function.__name__


def _of_own(node: Node, what: str) -> tuple[_mend.Mend, str]:
    """No line, since the operator has a declared gradient already; the words say what lets it pass more."""
    more, page = _mend.of_own(node.place.operator if node.place is not None else "")
    return _mend.Mend("", "", page), f"{what}: {more}" if more else what


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


def _of_scales(sizes: dict[str, Any]) -> Iterator[Found]:
    gradients = {name: s["backward"] for name, s in sizes.items() if isinstance(s["backward"], float) and s["backward"] > 0}
    if len(gradients) < 2:
        return
    last = gradients.get("(all)", [*gradients.values()][-1])
    if last == float("inf"):
        return
    low = {name: g for name, g in gradients.items() if g < _SMALL * last}
    high = {name: g for name, g in gradients.items() if g > _LARGE * last}
    for kind, rows, extreme in (("vanishing gradient", low, min), ("exploding gradient", high, max)):
        if rows:
            # The layer next to the loss: with its gradient as large as others, those before it may be right.
            layer = [*rows][-1]
            what = f"the gradient of its output has the root mean square {rows[layer]:.2g}, that of the model's {last:.2g}"
            if len(rows) > 1:
                end = f"{'down' if extreme is min else 'up'} to {extreme(rows.values()):.2g}"
                what += f"; in {_count(len(rows), 'layer')} it is as far off, {end}"
            line = "y = fullgrad.scale_grad(y)  # where y is what the layer returned"
            yield Found(layer, kind, what, line, page="families/gradients", layers=[*rows])


# --- Transforms -----------------------------------------------------------------------------------------------------------


def _has_functions(recorded: Flow, name: str) -> bool:
    return any(recorded.functions[n] for n in recorded.functions if name == "(all)" or n == name or n.startswith(f"{name}."))


def _known(recorded: Flow, results: dict[str, Tested], name: str) -> set[str]:
    """The ways of differentiating that fail in a layer inside of this one."""
    kind_of = {name: first for first, names in recorded.kinds.items() for name in names}
    inner = [n for n in kind_of if n != name and (name == "(all)" or n.startswith(f"{name}."))]
    return {way for n in inner if kind_of[n] in results for way in results[kind_of[n]].fails}


def _by_design(recorded: Flow, results: dict[str, Tested]) -> list[str]:
    """A note for each set of operators for which forward mode differs, about the innermost layers in which it does."""
    layers: dict[tuple[str, ...], list[str]] = {}
    for name, result in results.items():
        if result.by_design and not any(_is_inside(inner, name) for names in layers.values() for inner in names):
            layers.setdefault(result.by_design, []).extend(recorded.kinds.get(name, [name]))
    return [
        f"forward mode of {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} differs from reverse mode by "
        f"design, and so in the layers around: {', '.join(operators)} {'has' if len(operators) == 1 else 'have'} a gradient "
        "that is the transpose of no tangent"
        for operators, names in layers.items()
    ]


def _of_transforms(recorded: Flow, results: dict[str, Tested], source: "list[_InClass]") -> Iterator[Found]:
    for name, result in results.items():
        known, classes = _known(recorded, results, name), recorded.functions[name]
        fails = result.fails if classes else {way: told for way, told in result.fails.items() if way not in known}
        if not fails:
            continue
        more, line = _best(fails, result)
        layers = recorded.kinds.get(name, [name])
        if classes:
            yield from [_of_function(name, cls, fails, more, line, layers) for cls in classes]
            continue
        nodes, told = {_plain(n) for n in recorded.operators[name]}, " ".join(fails.values())
        of_torch = [op for op in operators() if re.search(rf"(?<![a-z_]){re.escape(op.removeprefix('aten::'))}(?![a-z])", told)]
        of_torch = of_torch or [op for op in operators() if _plain(op) in nodes]
        what = f"{_count(len(fails), 'derivative')} of 8 fail"
        what += f", by torch's {', '.join(of_torch)}: {operators()[of_torch[0]]}" if of_torch else ""
        if not of_torch and (lacking := list(dict.fromkeys(_LACKING.findall(told)))):
            what += f", by torch's {', '.join(lacking)}, which has no forward mode"
        if result.by_no_grad:
            what += "; it uses torch.no_grad, which forward mode ignores"
            yield Found(
                name, "transform", what, "y = y.detach()  # in place of torch.no_grad", page="limits", fails=fails, layers=layers
            )
        elif line:
            kind = "torch operator" if of_torch else "transform"
            yield Found(name, kind, what + more, line, page=_PAGE_OF[line], fails=fails, layers=layers)
        else:
            yield Found(name, "transform", what + more, "", fails=fails, layers=layers)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.removeprefix("aten::").partition(".")[0])


def _of_function(name: str, cls: Any, fails: dict[str, str], more: str, line: str, layers: list[str]) -> Found:
    op = operator_of_class(cls)
    if op is not None:
        return _of_operator(name, op, fails, more, line, layers)
    file = inspect.getsourcefile(cls)
    module = None if file is None else tree(Path(file), False)
    audited = [] if module is None or file is None else [f for f in audit_tree(module, file) if f.name == cls.__name__]
    what = f"{cls.__name__}, a torch.autograd.Function, runs here: {_count(len(fails), 'derivative')} of 8 fail"
    place = operator = ""
    if audited:
        place = f"{_mend.short(audited[0].file)}:{audited[0].line}"
        write = full(audited[0].replacement)
        what += f"; by its source it breaks {', '.join(audited[0].breaks)}"
        operator = write if "adopt(" not in write else ""
    what += more
    instead_of = ""
    if operator and line:
        what += f". The operator for it is {operator}, with arguments that give its slope: compare gradients"
    elif operator:
        line, instead_of = f"y = {operator}", f"y = {cls.__name__}.apply(x)"
    page = _PAGE_OF.get(line, "audit")
    return Found(name, "Function", what, line, instead_of, page, place, fails, layers)


def _best(fails: dict[str, str], result: Tested) -> tuple[str, str]:
    """The words about what still fails in the context that mends the most of these derivatives, and its line if it mends any.

    Inside of a context all ways are tried, those too that fail in an inner layer and so are not of this finding.
    """

    def left_of(context: str) -> tuple[int, int]:
        left = result.inside[context].keys()
        return len(left & fails.keys()), len(left - fails.keys())

    if not result.inside:
        return "", ""
    best = min(result.inside, key=left_of)
    left, others = left_of(best)
    if left == len(fails):
        return f"; {left} also inside of the contexts", ""
    told = " and ".join([f"{left} of them"] * bool(left) + [_count(others, "other")] * bool(others))
    return f"; inside of the context {told} still fail{'s' * (left + others == 1)}" if told else "", best


def _of_operator(name: str, op: Any, fails: dict[str, str], more: str, line: str, layers: list[str]) -> Found:
    file, number = place_of_operator(op)
    what = f"{op._schema.name}, an operator of torch.library, runs here: {_count(len(fails), 'derivative')} of 8 fail"
    place = f"{_mend.short(file)}:{number}" if file else ""
    return Found(name, "operator", what + more, line, "", _PAGE_OF.get(line, "adopt"), place, fails, layers)


# --- The source -----------------------------------------------------------------------------------------------------------


@dataclass
class _InClass:
    layer: str
    found: OfSource


def _source(model: nn.Module) -> list[_InClass]:
    """The findings of the audit in the classes of the layers that are neither torch's nor this package's."""
    found: list[_InClass] = []
    seen: set[type] = set()
    for name, module in model.named_modules():
        for cls in type(module).__mro__:
            if cls in seen or cls.__module__.partition(".")[0] in ("torch", "fullgrad", "builtins"):
                continue
            seen.add(cls)
            try:
                file, (lines, first) = inspect.getsourcefile(cls), inspect.getsourcelines(cls)
            except (OSError, TypeError):
                continue
            rows = [] if file is None else _audited(file)
            found += [_InClass(name or "(all)", f) for f in rows if first <= f.line < first + len(lines)]
    return found


@functools.cache
def _audited(file: str) -> list[OfSource]:
    module = tree(Path(file), False)
    return [] if module is None else audit_tree(module, file)


def _of_source(source: list[_InClass]) -> Iterator[Found]:
    for layer, found in [(row.layer, row.found) for row in source if row.found.kind != "Function"]:
        what = f"{found.name} breaks {', '.join(found.breaks)}"
        line = full(found.replacement)
        new, old = _mend.of_source(found.file, found.line, found.name, line) or (line, found.name)
        yield Found(layer, found.kind, what, new, old, "audit", f"{_mend.short(found.file)}:{found.line}")


def full(replacement: str) -> str:
    """The replacement of an audit with the operator's full name."""
    first = replacement.partition(" or ")[0]
    return f"fullgrad.{first}" if re.match(r"[a-z_.]+\(", first) else first


# --- Layers ---------------------------------------------------------------------------------------------------------------


def _layers(model: nn.Module, sizes: dict[str, Any], dead: list[tuple[Node, Tensor]]) -> list[Layer]:
    kinds = {name or "(all)": type(module).__name__ for name, module in model.named_modules()}
    rows = []
    for name, scale in sizes.items():
        kind = kinds.get(name.partition("[")[0], "")
        value, gradient = [s if isinstance(s := scale[f], float) else None for f in ("forward", "backward")]
        rows.append(Layer(name, kind, value, gradient))
    for row in rows:
        masks = [(node, mask) for node, mask in dead if node.layer == row.name.partition("[")[0]]
        if masks and row.name.partition("[")[2] in ("", "0]"):
            node, mask = max(masks, key=lambda pair: int(pair[1].sum()))
            indices = mask.nonzero().tolist()
            row.units = None if node.units is None else int(node.units.came.sum())
            row.units_without = [i[0] if len(i) == 1 else i for i in indices]
    return rows


def with_gradients(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """The arguments; where nothing would have a gradient, floating tensors that do."""
    leaves = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
    if any(v.requires_grad for v in (*leaves, *model.parameters())):
        return args, kwargs
    return pytree.tree_map(
        lambda v: v.detach().clone().requires_grad_() if isinstance(v, Tensor) and v.is_floating_point() else v, (args, kwargs)
    )
