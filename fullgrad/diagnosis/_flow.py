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
from fullgrad._dispatch import operator_of_class, pytree, transforms_active
from fullgrad.diagnosis._mend import RELUS, Place, place_of_call
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
_SPARSE = ("Jumprelu",)  # operators that act on each element, and are to be 0 at most of them
_UNITS = 0.5  # a larger share of the units gets no gradient from any sample: a finding
_SAMPLES = 4  # of at least as many samples
_NEAR = 200  # as many graph nodes before a call are looked at for the parameters that it follows
_WEAK = 0.01  # a smaller share of the size of the gradient counts as none at a unit whose value is the same for all samples


class Call(NamedTuple):
    """A layer's first call: its input, and the graph nodes of its own."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Units(NamedTuple):
    """The units, which are the elements of one sample: masks of those with such a gradient for any sample, and their values."""

    came: Tensor  # in front
    went: Tensor  # behind
    strong: Tensor  # behind, of a size like that in front
    low: Tensor | None  # the smallest value, if it is known
    high: Tensor | None

    def passing(self, by_size: bool) -> Tensor:
        """The units that pass the gradient. By size: not those whose value never changes and whose gradient is next to nothing,
        as of a spike with long tails that never fires.
        """
        if not by_size or self.low is None or self.high is None:
            return self.went
        return self.went & (self.strong | (self.low != self.high))

    def without(self, by_size: bool) -> Tensor:
        """The mask of those that get a gradient and pass none."""
        return self.came & ~self.passing(by_size)


class Node(NamedTuple):
    """The change of a gradient at one node of the graph."""

    name: str  # of torch's function, or of the class
    function: Any  # the class of a Function, or None
    layer: str
    place: Place | None
    elements: int  # that came with a gradient that is not 0
    passed: int  # of them at the other side, at the inputs that are like the output
    made_nan: bool
    others: int = 0  # elements of the gradients of other inputs, such as parameters
    is_like: bool = True  # whether there are inputs like the output
    inputs: int = 1  # that have a gradient
    is_own: bool = False  # an operator of this package, or a rule that is declared with it
    own: str = ""  # the name of its class
    is_named: bool = False  # an operator of this package, and no rule that is declared with it
    units: Units | None = None
    depth: float = 0.0  # how far below 0 the negative inputs of a ReLU are, in the mean
    follows: frozenset[int] = frozenset()  # the parameters next before it, which the steps of a loop share and layers do not


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
        self.depths: dict[Any, float] = {}
        self.values: dict[Any, tuple[Tensor, Tensor]] = {}  # the smallest and the largest value of each unit, by node

    def keep_values(self, values: Any) -> None:
        """Keep the values of nodes with a declared gradient; Functions are no calls that a mode sees, their results are."""
        for v in pytree.tree_leaves(values):
            if not (isinstance(v, Tensor) and v.is_floating_point() and v.layout is torch.strided and v.ndim > 1):
                continue
            node = v.grad_fn
            if hasattr(type(node), "_forward_cls") and node not in self.values and len(v) >= _SAMPLES:
                self.values[node] = torch.aminmax(v.detach(), dim=0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        was_enabled = torch.is_grad_enabled()
        if transforms_active():  # of the model itself, in which no number can be read
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        depth = _depth(args[0]) if name in RELUS and args else 0.0  # which may be written to
        y = func(*args, **(kwargs or {}))
        if was_enabled != torch.is_grad_enabled():
            place = place_of_call("no_grad") if was_enabled else None
            self.no_grad = None if place is None else (place, self.layers[-1])
        if not self.is_on or (name == "__get__" and ".data." not in (resolve_name(func) or "")):
            return y
        self.keep_values((args, kwargs, y))
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
            self.depths.update(dict.fromkeys(nodes, depth))
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


def _depth(x: Any) -> float:
    below = x.detach()[x.detach() < 0] if isinstance(x, Tensor) and x.is_floating_point() else None
    return float(-below.mean()) if below is not None and below.numel() and below.isfinite().all() else 0.0


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
        if transforms_active():
            return
        layers.append(name)
        watch.is_on = False
        # A layer may begin in place, and then its input has a node of the layer's own.
        begin = {v.grad_fn for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Tensor) and v.grad_fn is not None}
        given.append((copied(args), copied(kwargs), begin))
        watch.is_on = True

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if transforms_active():
            return
        layers.pop()
        watch.is_on = False
        *first, begin = given.pop()
        own = _nodes_of(output, begin, owner)
        watch.keep_values(output)
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
            node.register_hook(_recorder(node, owner.get(node, "(all)"), watch, records))
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
    """The records, in which the calls of one function at one place are one: a spike is called in each step.

    A call that passes none stays one by itself if no gradient reaches the calls before it: they are layers, not steps.
    """
    found: list[Node] = []
    for nodes in _steps(records):
        first, alive = nodes[0], [n.units for n in nodes if n.units is not None]
        if len(nodes) == 1 or any(not n.elements for n in nodes):
            found += nodes
            continue
        units = _of_all_steps(alive) if len(alive) == len(nodes) and len({u.came.shape for u in alive}) == 1 else None
        sums = {field: sum(getattr(n, field) for n in nodes) for field in ("elements", "passed", "others")}
        found.append(first._replace(units=units, **sums))
    return found


def _steps(records: list[Node]) -> list[list[Node]]:
    """The calls of one function at one place that follow the same parameters; those that a loop calls behind layers of a list
    follow others.
    """
    found: list[list[Node]] = []
    at: dict[Any, list[tuple[set[int], list[Node]]]] = {}
    for node in records:
        if not _ends(node) or node.made_nan or (node.place is None and node.function is None):
            found.append([node])
            continue
        shape = None if node.units is None else node.units.came.shape
        groups = at.setdefault((node.layer, node.place, node.name, shape), [])
        for follows, nodes in groups:
            if follows & node.follows or not (follows or node.follows):
                follows |= node.follows
                nodes.append(node)
                break
        else:
            found.append([node])
            groups.append(({*node.follows}, found[-1]))
    return found


def _of_all_steps(steps: list[Units]) -> Units:
    came, went, strong = [torch.stack(masks).any(0) for masks in zip(*[u[:3] for u in steps], strict=True)]
    low, high = [u.low for u in steps if u.low is not None], [u.high for u in steps if u.high is not None]
    if len(low) < len(steps) or len(high) < len(steps):
        return Units(came, went, strong, None, None)
    return Units(came, went, strong, torch.stack(low).amin(0), torch.stack(high).amax(0))


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


def _recorder(node: Any, layer: str, watch: _Watch, records: list[Node]) -> Any:
    place, values, depth = watch.places.get(node), watch.values.get(node), watch.depths.get(node, 0.0)
    name, cls = _name(node), _class(node)
    own = getattr(type(node), "_forward_cls", None)
    is_own = cls is None and own is not None and _is_ours(own) and not _maps_gradients(own)
    # Functions of `safe` are asked for their 0 where torch has NaN.
    is_own = is_own and not (place is not None and place.operator.startswith("fullgrad.safe."))
    operators = _operators_of(own) if is_own and own is not None else []
    is_named = any(_is_ours(of) and not of.__module__.startswith("fullgrad._engine.") for of in operators)
    follows = _follows(node) if is_own or cls is not None or _may_end(name) else frozenset()

    def hook(after: tuple[Any, ...], before: tuple[Any, ...]) -> None:
        came = [g for g in before if isinstance(g, Tensor)]
        went = {i: g for i, g in enumerate(after) if isinstance(g, Tensor)}
        if not came or not went:
            return
        like = _like_the_output(node, came, went)
        through = like or ([0] if is_named and 0 in went else [*went])  # of a sort, say, the first
        signals = [went[i] for i in through]
        made_nan = all(_finite(g) for g in came) and not all(_finite(g) for g in went.values())
        passed, units = sum(map(_passed, signals)), None
        if len(came) == 1 and like and all(g.layout is torch.strided for g in (*came, *signals)):
            masks = torch.stack([g.ne(0) for g in signals])
            passed = int(masks.any(0).sum())
            if came[0].ndim > 1 and len(came[0]) >= _SAMPLES:
                strong = torch.stack([g.abs() >= _WEAK * came[0].abs() for g in signals]) & masks
                fits = values is not None and values[0].shape == came[0].shape[1:]
                units = Units(
                    came[0].ne(0).any(0),
                    masks.any(0).any(0),
                    strong.any(0).any(0),
                    *(values if fits and values else (None, None)),
                )
        others = sum(_passed(g) for i, g in went.items() if i not in through)
        inputs = sum(edge is not None for edge, _ in node.next_functions)
        of_own = own.__name__ if is_own and own is not None else ""
        elements = sum(map(_passed, came))
        counts = elements, passed, made_nan, others, bool(like), inputs
        records.append(Node(name, cls, layer, place, *counts, is_own, of_own, is_named, units, depth, follows))

    return hook


def _follows(node: Any) -> frozenset[int]:
    """The leaves next before a node, such as the bias of the layer before; not its own parameters."""
    stage, seen = [n for n, _ in node.next_functions if n is not None and type(n).__name__ != "AccumulateGrad"], set()
    while stage and len(seen) < _NEAR:
        if leaves := frozenset(id(n.variable) for n in stage if type(n).__name__ == "AccumulateGrad"):
            return leaves
        seen.update(stage)
        stage = list(dict.fromkeys(n for s in stage for n, _ in s.next_functions if n is not None and n not in seen))
    return frozenset()


def _like_the_output(node: Any, came: list[Tensor], went: dict[int, Tensor]) -> list[int]:
    """The inputs through which the gradient goes on: those of the output's shape, but for parameters that follow one.

    A parameter such as a threshold or a scale gets a gradient of its own, which says nothing about what goes on.
    """
    leaves = [i for i, (edge, _) in enumerate(node.next_functions) if type(edge).__name__ == "AccumulateGrad"]
    found = [i for i, g in went.items() if g.shape == came[0].shape]
    return [i for i in found if i == found[0] or i not in leaves]


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
    A Function, or a rule of the user's, may give the gradient to its parameters alone.
    """
    if not _ends(node) or not node.elements:
        return False
    return is_weak(node) if node.passed else node.is_named or not node.others


def _ends(node: Node) -> bool:
    """Whether the function may pass no gradient; its own backward, which is a node of a second derivative, is not looked at."""
    return not node.name.endswith("_backward") and bool(node.function or node.is_own or _may_end(node.name))


def _may_end(name: str) -> bool:
    return bool(_HARD.search(name) or _SATURATE.search(name))


def is_weak(node: Node) -> bool:
    """Whether what goes on behind a declared gradient is next to nothing, and no value changes from sample to sample."""
    if not (node.function or node.is_own) or not node.passed or node.units is None:
        return False
    return bool(node.units.came.any()) and not node.units.passing(True).any()


def is_unreached(node: Node) -> bool:
    """Whether the node would end the gradient, and none came."""
    return bool(node.function or (_HARD.search(node.name) and not node.is_own)) and not node.elements


def units_without(node: Node) -> tuple[int, int, bool]:
    """How many units of a node get a gradient and pass none, how many get one, and whether some count by the size of theirs."""
    if node.units is None:
        return 0, 0, False
    without = int(node.units.without(_acts_on_each(node)).sum())
    return without, int(node.units.came.sum()), without > int(node.units.without(False).sum())


def dead_units(node: Node) -> Tensor | None:
    """The mask of the units that get a gradient and pass none, of a function that acts on each element; else None.

    The size counts for a Function too whose values are whole numbers, as those of another package's spike are.
    """
    units = node.units
    if units is None or not _ends(node) or (node.is_own and not _acts_on_each(node)):
        return None
    bounds = () if node.function is None or units.low is None or units.high is None else (units.low, units.high)
    is_hard = bool(bounds) and all(bool(v.eq(v.round()).all()) for v in bounds)
    return units.without(is_hard or _acts_on_each(node))


def _acts_on_each(node: Node) -> bool:
    """Whether it is an operator of this package that acts on each element; a projection passes few of a row by design."""
    return node.is_own and bool(operators_named(node.own, Elementwise))


def is_saturated(node: Node) -> bool:
    """Whether little of the gradient went on, at a function that saturates."""
    if is_dead(node) or not node.passed or not _ends(node):
        return False
    if not (node.function or node.is_own or _SATURATE.search(node.name)):
        return False
    if not node.is_like and (node.is_own or node.inputs > 1):
        return False
    without, units, _ = units_without(node)
    if without > _UNITS * units > 0:
        return True
    is_sparse = node.is_own and (node.own in _SPARSE or not _acts_on_each(node))
    return not is_sparse and node.passed < _MASKS * node.elements
