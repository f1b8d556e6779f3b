"""The gradient on its way back through a model: where it ends, becomes 0 or NaN, and its scales by layer."""

import contextlib
import re
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

import fullgrad
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import Function
from fullgrad._dispatch import operator_of_class, pytree
from fullgrad.diagnosis._mend import Place, place_of_call
from fullgrad.gradients._cotangent_map import CotangentMap

Loss = Callable[..., Any]
# Functions whose derivative is 0, and functions that pass no gradient where they saturate.
_HARD = re.compile(r"round|floor|ceil|trunc|sign|sgn|heaviside")
_SATURATE = re.compile(r"relu|clamp|hard|threshold|sigmoid|tanh|elu|softplus|hardshrink|softshrink|logsigmoid|gelu|silu", re.I)
# Functions that read a shape alone, and those that a user calls to end a gradient.
_MAKES = re.compile(r"^(new_)?(zeros|ones|full|empty|rand|randn|randint)(_like)?$")
STOPS = ("detach", "data")
_LACKS = re.compile(r"derivative for (?:aten::|')(\w+).* is not implemented")  # torch's words
_MASKS = 0.1  # a smaller share of the gradient's elements passes: a finding
_UNITS = 0.5  # a larger share of the units gets no gradient from any sample: a finding
_SAMPLES = 4  # of at least as many samples


class Call(NamedTuple):
    """A layer's first call: its input, and the graph nodes of its own."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Node(NamedTuple):
    """The change of a gradient at one node of the graph."""

    name: str  # of torch's function, or of the class
    function: Any  # the class of a Function, or None
    layer: str
    place: Place | None
    elements: int  # that came with a gradient that is not 0
    passed: int  # of them at the other side
    units: tuple[int, int] | None  # without a gradient from any sample, of all
    made_nan: bool
    inputs: int = 1  # that have a gradient
    is_own: bool = False  # an operator of this package, or a rule that is declared with it
    own: str = ""  # the name of its class
    alive: tuple[Tensor, Tensor] | None = None  # the units that a gradient reaches from any sample, before and after


class Cut(NamedTuple):
    """A call whose input has a gradient and whose output has none, or the begin of torch.no_grad around such calls."""

    place: Place
    layer: str
    parameters: set[str]
    raises: bool = False  # torch has no derivative, and says so


class Flow(NamedTuple):
    """One forward and one backward."""

    nodes: list[Node]
    cuts: list[Cut]
    calls: dict[str, Call]  # one for each kind of layer
    kinds: dict[str, list[str]]  # the layers of the kind of each of these
    functions: dict[str, list[Any]]  # the classes of Functions that run in a layer itself, by its name
    operators: dict[str, set[str]]  # the names of graph nodes of a layer itself
    without: list[str]  # parameters that get no gradient, or zeros
    nonfinite: dict[str, Place | None]  # layers whose output is not finite though their input is, and the call that made it so
    loss: float
    has_gradient: bool
    lacking: set[str]  # functions whose derivative raises, which were cut


@contextlib.contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """A context after which the attributes of a model are as they were."""
    rows = [(m, {**m.__dict__}, {**m._parameters}, {**m._buffers}) for m in model.modules()]
    try:
        yield
    finally:
        for module, attributes, own, others in rows:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            module._parameters.clear()
            module._parameters.update(own)
            module._buffers.clear()
            module._buffers.update(others)


@contextlib.contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """A context after which the attributes, the numbers in buffers, and the gradients of a model are as they were."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    grads = [(p, p.grad) for p in model.parameters()]
    try:
        with attributes_kept(model):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, before in grads:
            parameter.grad = before


def squares(output: Any) -> Tensor:
    """The sum of the squared distances of floating outputs to random numbers, always the same.

    The squares of the outputs themselves have no gradient where the last layer is a norm.
    """
    found = [y for y in pytree.tree_leaves(output) if isinstance(y, Tensor) and y.is_floating_point()]
    generator = torch.Generator().manual_seed(0)
    targets = [torch.randn(y.shape, generator=generator).to(y) for y in found]
    return sum([(y - t).square().sum() for y, t in zip(found, targets, strict=True)], torch.zeros(()))  # type: ignore[return-value]


def copied(value: Any) -> Any:
    """The value with its tensors copied, as constants."""
    return pytree.tree_map(lambda v: v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v, value)


class _Watch(TorchFunctionMode):
    """Where the user's code calls torch's functions, and which of the calls end the graph."""

    def __init__(self, layers: list[str], lacking: set[str]) -> None:
        super().__init__()
        self.layers, self.is_on, self.lacking = layers, True, lacking
        self.raising: list[tuple[Place, str, list[Tensor]]] = []
        self.places: dict[Any, Place | None] = {}
        self.cuts: list[tuple[Place, str, list[Tensor]]] = []
        self.no_grad: tuple[Place, str] | None = None  # where the context begins
        self.nonfinite: dict[str, Place | None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        was_enabled = torch.is_grad_enabled()
        y = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if was_enabled != torch.is_grad_enabled():
            place = place_of_call("no_grad") if was_enabled else None
            self.no_grad = None if place is None else (place, self.layers[-1])
        if not self.is_on or (name == "__get__" and ".data." not in (resolve_name(func) or "")):
            return y
        outputs = [v for v in (y if isinstance(y, (tuple, list)) else (y,)) if isinstance(v, Tensor)]
        if torch.is_grad_enabled() and self.layers[-1] not in self.nonfinite and not _finite(outputs) and _finite((args, kwargs)):
            self.nonfinite[self.layers[-1]] = place_of_call(name)
        fresh = [v for v in outputs if v.grad_fn is not None and v.grad_fn not in self.places]
        ends = outputs and not any(v.requires_grad for v in outputs)
        if not fresh and not ends:
            return y
        name = "data" if name == "__get__" else name
        place = place_of_call(name, func)
        if fresh:
            # Python's operators may be several calls of torch, and so several nodes.
            inputs: dict[Any, Place | None] = {
                v.grad_fn: None for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor)
            }
            nodes = reachable([v.grad_fn for v in fresh], ChainMap(self.places, inputs))
            if _lacks(nodes, self.lacking):
                given = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor) and v.requires_grad]
                self.raising += [] if place is None else [(place, self.layers[-1], given)]
                return _ended(y)
            self.places.update(dict.fromkeys(nodes, place))
        elif place is not None and not _MAKES.match(name):
            given = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor) and v.requires_grad]
            if given:
                if torch.is_inference_mode_enabled():
                    place = place._replace(function="inference_mode")
                self.cuts.append((*(self.no_grad or (place, self.layers[-1])), given))
        return y


class _Ending(TorchFunctionMode):
    """The results of functions whose derivative raises are constants."""

    def __init__(self, lacking: set[str]) -> None:
        super().__init__()
        self.lacking = lacking

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        given = {v.grad_fn: None for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor)}
        fresh = [v.grad_fn for v in pytree.tree_leaves(y) if isinstance(v, Tensor)]
        return _ended(y) if _lacks(reachable(fresh, given), self.lacking) else y


def _lacks(nodes: list[Any], lacking: set[str]) -> bool:
    return bool(lacking) and any(type(n).__name__ == "NotImplemented" or _name(n) in lacking for n in nodes)


def _ended(y: Any) -> Any:
    return pytree.tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, y)


def lacks(error: Exception) -> str:
    """The function of which torch says that it has no derivative, or an empty string."""
    found = _LACKS.search(str(error))
    return found.group(1) if found else ""


def flow(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss) -> Flow:
    """Run the model forward and backward, and record what each node of the graph does to the gradient.

    Where the backward raises for a function without a derivative, the model runs again with that function's results as constants.
    """
    lacking: set[str] = set()
    while True:
        try:
            with torch.random.fork_rng(), kept(model):
                return _flow(model, copied(args), copied(kwargs), loss, lacking)
        except (RuntimeError, NotImplementedError) as error:
            name = lacks(error)
            if not name or name in lacking:  # or one of the loss, which is called as it is
                raise
            lacking.add(name)


def _flow(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss, lacking: set[str]) -> Flow:
    layers: list[str] = ["(all)"]
    owner: dict[Any, str] = {}
    calls: dict[str, Call] = {}
    kinds: dict[Any, list[str]] = {}
    functions: dict[str, list[Any]] = {}
    operators: dict[str, set[str]] = {}
    nonfinite: dict[str, Place | None] = {}
    given: list[Any] = []
    seen: set[Any] = set()
    watch, handles = _Watch(layers, lacking), []

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        layers.append(name)
        watch.is_on = False
        # A layer may begin in place, and then its input has a node of the layer's own.
        begin = {v.grad_fn for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor) and v.grad_fn is not None}
        given.append((copied(args), copied(kwargs), begin))
        watch.is_on = True

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        layers.pop()
        watch.is_on = False
        *first, begin = given.pop()
        own = _nodes_of(output, begin, owner)
        owner.update(dict.fromkeys(own, name))
        classes = [cls for cls in dict.fromkeys(map(_class, own)) if cls is not None]
        functions.setdefault(name, []).extend(c for c in classes if c not in functions[name])
        operators.setdefault(name, set()).update(map(_name, own))
        if (
            not _finite(output)
            and _finite((args, kwargs))
            and not any(name == "(all)" or n.startswith(f"{name}.") for n in nonfinite)
        ):
            nonfinite[name] = watch.nonfinite.get(name)
        key = name == "(all)", type(module), frozenset(map(_name, own)), frozenset(classes)
        if name not in seen and (own or key[0]):
            calls.setdefault(kinds.setdefault(key, [name])[0], Call(name, module, *first))
            kinds[key] += [name] * (name not in kinds[key])
        seen.add(name)
        watch.is_on = True

    for name, module in model.named_modules():
        name = name or "(all)"
        handles += [
            module.register_forward_pre_hook(lambda m, a, k, n=name: before(n, m, a, k), with_kwargs=True),
            module.register_forward_hook(lambda m, a, k, y, n=name: after(n, m, a, k, y), with_kwargs=True),
        ]
    try:
        with watch, torch.enable_grad():
            output = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    with torch.enable_grad():
        total = loss(output)
    records: list[Node] = []
    is_finite = _finite(total)
    for node in reachable([total.grad_fn]):
        # Where the value is not finite, the derivative of the loss is not either.
        if type(node).__name__ != "AccumulateGrad" and (is_finite or node in owner):
            node.register_hook(_recorder(node, owner.get(node, "(all)"), watch.places.get(node), records))
    if total.requires_grad:
        total.backward()
    names = {id(p): name for name, p in model.named_parameters()}
    without = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not _passed(p.grad))]
    none = {n for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    cuts: dict[tuple[Place, str], Cut] = {}
    for raises, (place, layer, tensors) in [(True, c) for c in watch.raising] + [(False, c) for c in watch.cuts]:
        found = {
            names.get(id(v)) for n in reachable([_node(t) for t in tensors]) if (v := getattr(n, "variable", None)) is not None
        }
        found = found if raises else found & none
        if found or raises:
            place = place._replace(call=0)
            cuts.setdefault((place, layer), Cut(place, layer, set(), raises)).parameters.update(map(str, found - {None}))
    kinds_of = {names[0]: names for names in kinds.values()}
    value, has_gradient = float(total.detach()), total.requires_grad
    ends = _in_order([*cuts.values()])
    return Flow(_merged(records), ends, calls, kinds_of, functions, operators, without, nonfinite, value, has_gradient, lacking)


def _in_order(cuts: list[Cut]) -> list[Cut]:
    """The cuts, without what the user ends where another function ends the same gradients, as the reset of a spike does."""
    others = [cut for cut in cuts if cut.place.function not in STOPS]
    known = {name for cut in others for name in cut.parameters}
    return [*others, *[cut for cut in cuts if cut.place.function in STOPS and not cut.parameters <= known]]


def _merged(records: list[Node]) -> list[Node]:
    """The records, in which the calls of one operator of this package at one place are one: a spike is called in each step.

    A call that passes none stays one by itself if no gradient reaches the calls before it: they are layers, not steps.
    """
    calls: dict[Any, list[Node]] = {}
    for i, node in enumerate(records):
        is_step = node.is_own and not node.made_nan and node.place is not None
        calls.setdefault((node.layer, node.place, node.name) if is_step else i, []).append(node)
    found = []
    for nodes in calls.values():
        first, alive = nodes[0], [n.alive for n in nodes if n.alive is not None]
        if len(nodes) == 1 or any(not n.elements for n in nodes):
            found += nodes
            continue
        units = None
        if len(alive) == len(nodes) and len({a.shape for a, _ in alive}) == 1:
            came, went = [torch.stack(of).any(0) for of in zip(*alive, strict=True)]
            units = int((came & ~went).sum()), int(came.sum())
        sums = sum(n.elements for n in nodes), sum(n.passed for n in nodes)
        found.append(first._replace(elements=sums[0], passed=sums[1], units=units))
    return found


def scales(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss, lacking: set[str]) -> dict[str, Any]:
    """The root mean squares of values and gradients, by layer."""
    ending = _Ending(lacking) if lacking else contextlib.nullcontext()
    with ending, torch.enable_grad(), fullgrad.track_scales(model, "rms") as found:
        total = loss(model(*copied(args), **copied(kwargs)))
        if total.requires_grad:
            total.backward()
    return found.to_dict()


def _finite(value: Any) -> bool:
    leaves = [v.detach() for v in pytree.tree_leaves(value) if isinstance(v, Tensor) and v.is_floating_point()]
    return all(bool(_dense(v).isfinite().all()) for v in leaves)


def _passed(gradient: Tensor) -> int:
    return int(_dense(gradient).count_nonzero())


def _dense(x: Tensor) -> Tensor:
    """The numbers of a sparse tensor, such as the gradient of an embedding."""
    return x.coalesce().values() if x.layout is torch.sparse_coo else x


def _node(tensor: Tensor) -> Any:
    return tensor.grad_fn if tensor.grad_fn is not None else tensor.view_as(tensor).grad_fn if tensor.requires_grad else None


def reachable(roots: list[Any], known: Any = ()) -> list[Any]:
    """The nodes of a graph from its roots, up to those that are known."""
    found: dict[Any, None] = {}
    stack = [n for n in roots if n is not None]
    while stack:
        node = stack.pop()
        if node in found or node in known:
            continue
        found[node] = None
        stack += [n for n, _ in node.next_functions if n is not None]
    return [*found]


def _nodes_of(output: Any, begin: set[Any], owner: dict[Any, str]) -> list[Any]:
    """The nodes between those of the inputs and the outputs of a layer, without those of its own layers."""
    ends = [v.grad_fn for v in pytree.tree_leaves(output) if isinstance(v, Tensor)]
    # Nodes of inner layers are passed through, those before the layer are not entered.
    found = reachable(ends, begin)
    return [n for n in found if n not in owner and type(n).__name__ != "AccumulateGrad"]


def _class(node: Any) -> Any:
    """The class of a Function that is neither torch's nor this package's, or that torch has made for an operator."""
    cls = getattr(type(node), "_forward_cls", None)
    if cls is not None and operator_of_class(cls) is not None:
        return cls
    return cls if cls is not None and cls.__module__.partition(".")[0] not in ("torch", "fullgrad") else None


def _name(node: Any) -> str:
    """``round`` for ``RoundBackward0``."""
    name = re.sub(r"Backward\d*$", "", type(node).__name__)
    return name if _class(node) is not None else snake_case(name)


def snake_case(name: str) -> str:
    """``lower_bound`` for ``LowerBound``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _recorder(node: Any, layer: str, place: Place | None, records: list[Node]) -> Any:
    name, cls = _name(node), _class(node)
    own = getattr(type(node), "_forward_cls", None)
    is_own = cls is None and own is not None and _is_ours(own) and not _maps_gradients(own)
    # Functions of `safe` are asked for their 0 where torch has NaN.
    is_own = is_own and not (place is not None and place.operator.startswith("fullgrad.safe."))

    def hook(after: tuple[Any, ...], before: tuple[Any, ...]) -> None:
        came, went = [[g for g in gs if isinstance(g, Tensor)] for gs in (before, after)]
        if not came or not went:
            return
        elements, passed = sum(map(_passed, came)), sum(map(_passed, went))
        made_nan = all(_finite(g) for g in came) and not all(_finite(g) for g in went)
        units = alive = None
        is_dense = all(g.layout is torch.strided for g in (*came, *went))
        if (
            is_dense
            and len(came) == len(went) == 1
            and came[0].shape == went[0].shape
            and came[0].ndim > 1
            and len(came[0]) >= _SAMPLES
        ):
            alive = came[0].ne(0).any(0), went[0].ne(0).any(0)
            units = int((alive[0] & ~alive[1]).sum()), int(alive[0].sum())
        inputs = sum(edge is not None for edge, _ in node.next_functions)
        of_own = own.__name__ if is_own and own is not None else ""
        records.append(Node(name, cls, layer, place, elements, passed, units, made_nan, inputs, is_own, of_own, alive))

    return hook


def is_linear(cls: type) -> bool:
    """Whether a class of the graph is no operator that maps the gradient in a way that is the transpose of no tangent map."""
    return all(getattr(operator, "is_linear", True) for operator in _operators_of(cls))


def _maps_gradients(cls: type) -> bool:
    """Whether a class of the graph is an operator that changes the gradient by design: what it does not pass is no finding."""
    return not is_linear(cls) or any(issubclass(operator, CotangentMap) for operator in _operators_of(cls))


def _operators_of(cls: type) -> list[type]:
    operator = getattr(cls, "operator", None)  # none in the fallback
    return [operator] if isinstance(operator, type) else operators_named(cls.__name__) if _is_ours(cls) else []


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("fullgrad.")


def operators_named(name: str, base: type = Function) -> list[type]:
    """The operators of this package with a class of that name; the class of a node has the name alone."""
    return [cls for cls in _subclasses(base) if cls.__name__ == name]


def _subclasses(base: type) -> Iterator[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def is_dead(node: Node) -> bool:
    """Whether a gradient came and none went on, at a function that can pass none, and not at a weight that is 0.

    Each operator of this package is such a function: its derivative may be 0 where a spike, a bound or a projection saturates.
    """
    is_judged = node.function or node.is_own or _HARD.search(node.name) or _SATURATE.search(node.name)
    return bool(is_judged) and node.elements > 0 and not node.passed


def is_unreached(node: Node) -> bool:
    """Whether the node would end the gradient, and none came."""
    return bool(node.function or (_HARD.search(node.name) and not node.is_own)) and not node.elements


def is_saturated(node: Node) -> bool:
    """Whether little of the gradient went on, at a function that saturates. A Function may give it to one of its inputs alone."""
    if is_dead(node) or not node.elements or not (node.function or node.is_own or _SATURATE.search(node.name)):
        return False
    if (node.function or node.is_own) and node.inputs > 1:
        return False
    if node.units is not None and node.units[0] > _UNITS * node.units[1] > 0:
        return True
    # A projection passes few elements of a row by design, another operator acts on each.
    acts_on_each = not node.is_own or bool(operators_named(node.own, Elementwise))
    return acts_on_each and node.passed < _MASKS * node.elements
