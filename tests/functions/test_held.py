"""The objects that functions hold, wherever they are: the places are rows, the operators made of functions are columns."""

import dataclasses
import functools
import types

import hypothesis
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import fullgrad
from fullgrad import implicit
from fullgrad._engine.held import held, places
from tests.functions.test_surroundings import CALLED_AGAIN, OPERATORS, X

TENSOR = torch.tensor(2.0, dtype=torch.float64)
SCALE = torch.ones(3, requires_grad=True)


@dataclasses.dataclass
class Box:
    """A plain object with an attribute."""

    t: torch.Tensor


class Slots:
    """An object without a dict."""

    __slots__ = ("t",)


class Neuron:
    """An object whose methods read attributes."""

    shared = TENSOR

    def __init__(self):
        self.t, self.box, self.unread = TENSOR, Box(TENSOR), torch.tensor(7.0)

    def direct(self, x):
        return self.t * x

    def through_a_method(self, x):
        return self.direct(x)

    @property
    def factor(self):
        return self.t

    def through_a_property(self, x):
        return self.factor * x

    def of_an_attribute(self, x):
        return self.box.t * x

    def of_the_class(self, x):
        return self.shared * x

    def __call__(self, x):
        return self.t * x


class Module(nn.Module):
    """A module with a tensor as a parameter, as a buffer, or as an attribute that torch does not know."""

    def __init__(self, kind):
        super().__init__()
        if kind == "parameter":
            self.t = nn.Parameter(TENSOR.clone(), requires_grad=False)
        elif kind == "buffer":
            self.register_buffer("t", TENSOR.clone())
        else:
            self.t = TENSOR.clone()

    def forward(self, x):
        return self.t * x


def of_global(x):
    return TENSOR * x


# A place, a function that reads a tensor there, and how another tensor comes there, or None where nothing can be put.
def _closure():
    t = TENSOR.clone()

    def put(other):
        nonlocal t
        t = other

    return (lambda x: t * x), t, put


def _of(owner, read, name="t"):
    return read, getattr(owner, name), lambda other: setattr(owner, name, other)


def _neuron(name):
    n = Neuron()
    n.t, n.box = TENSOR.clone(), Box(TENSOR.clone())
    owner = n.box if name == "of_an_attribute" else n
    return _of(owner, n if name == "__call__" else getattr(n, name))


def _slots():
    s = Slots()
    s.t = TENSOR.clone()
    return _of(s, lambda x: s.t * x)


def _item(container, key):
    return (lambda x: container[key] * x), container[key], functools.partial(container.__setitem__, key)


def _module(kind, how):
    m = Module(kind)
    read = {"itself": m, "a method": m.forward, "a closure": lambda x: m(x)}[how]
    return _of(m, read) if kind != "parameter" else (read, m.t, lambda other: setattr(m, "t", nn.Parameter(other, False)))


def _partial():
    t = TENSOR.clone()
    return functools.partial(torch.mul, t), t, None


def _default():
    t = TENSOR.clone()
    return (lambda x, t=t: t * x), t, None


def _attribute_of_a_function():
    def f(x):
        return f.t * x

    f.t = TENSOR.clone()
    return _of(f, f)


def _box():
    box = Box(TENSOR.clone())
    return _of(box, lambda x: box.t * x)


def _namespace():
    space = types.SimpleNamespace(inner=types.SimpleNamespace(t=TENSOR.clone()))
    return _of(space.inner, lambda x: space.inner.t * x)


def _cached():
    t = TENSOR.clone()

    @functools.wraps(torch.mul)
    def f(x):
        return t * x

    return f, t, None


PLACES = {
    "closure": _closure,
    "default": _default,
    "partial": _partial,
    "list": lambda: _item([TENSOR.clone()], 0),
    "dict": lambda: _item({"a": TENSOR.clone()}, "a"),
    "dataclass": _box,
    "namespace": _namespace,
    "slots": _slots,
    "attribute": lambda: _neuron("direct"),
    "attribute through a method": lambda: _neuron("through_a_method"),
    "attribute through a property": lambda: _neuron("through_a_property"),
    "attribute of an attribute": lambda: _neuron("of_an_attribute"),
    "callable object": lambda: _neuron("__call__"),
    "attribute of a function": _attribute_of_a_function,
    "wrapped": _cached,
    **{
        f"{kind} of a module, {how}": functools.partial(_module, kind, how)
        for kind in ("parameter", "buffer", "attribute")
        for how in ("itself", "a method", "a closure")
    },
}


def operator(name, f):
    """An operator of a function of one argument; `custom_jvp` and `custom_vjp` take no module, whose call has keywords."""
    plain = f if isinstance(f, nn.Module) and name not in ("custom_jvp", "custom_vjp") else lambda x: f(x)
    return MADE_OF_FUNCTIONS[name](plain, plain)


MADE_OF_FUNCTIONS = {
    **OPERATORS,
    "linear_map": lambda f, slope: fullgrad.linear_map(f, f),
    "map_grad": lambda f, slope: lambda x: fullgrad.map_grad(x, f),
    "from_slope": lambda f, slope: fullgrad.spikes.from_slope(f),
    "backward of with_reference": lambda f, slope: fullgrad.with_reference(
        torch.square, torch.square, backward=lambda inputs, outputs, g: (f(g),)
    ),
    "finite_difference": lambda f, slope: lambda x: fullgrad.blackbox.finite_difference(f, x),
    "fixed_point": lambda f, slope: lambda x: implicit.fixed_point(lambda z, x: f(x))(lambda init, x: f(x))(None, x),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_walk_finds_tensors_in_every_place(place):
    """A tensor is held by itself, or as one of a module, whose parameters and buffers are known by name."""
    read, tensor, _ = PLACES[place]()
    modules, tensors = held(read)
    assert any(t is tensor for t in [*tensors, *[t for m in modules for t in (*m.parameters(), *m.buffers())]])


def test_attributes_that_no_code_reads_are_not_held():
    """A cache or a history may change."""
    n = Neuron()
    assert not any(t is n.unread for t in held(n.direct)[1])


def test_modules_whose_forward_is_no_python_function():
    """A function of torch has no module."""

    class Sine(nn.Module):
        forward = staticmethod(torch.sin)

    module = Sine()
    assert held(lambda x: module(x))[0] == [module]


def test_names_of_attributes_are_not_globals():
    """``box.TENSOR`` is no global ``TENSOR``."""
    box = types.SimpleNamespace(TENSOR=torch.tensor(1.0))
    assert [t.item() for t in held(lambda x: box.TENSOR * x)[1]] == [1.0]
    assert held(of_global)[1] == [TENSOR]


def test_counters_of_a_function_are_no_settings():
    """A variable that the function assigns itself is not a place that it reads."""
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return x

    assert places(f) == []


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", MADE_OF_FUNCTIONS)
@pytest.mark.parametrize("place", PLACES)
def test_tensors_that_are_changed_in_place_before_the_derivative(place, name):
    """A derivative is that of the call, or is refused."""
    read, tensor, _ = PLACES[place]()
    op, x = operator(name, read), X.clone().requires_grad_()
    y = op(x)
    tensor.mul_(3)
    with pytest.raises(RuntimeError, match=r"changed in place after the call.*Pass a clone"):
        y.sum().backward()


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", MADE_OF_FUNCTIONS)
@pytest.mark.parametrize("place", [place for place in PLACES if PLACES[place]()[2] is not None])
def test_tensors_that_are_exchanged_before_the_derivative(place, name):
    """A derivative is that of the call, or is refused."""
    read, tensor, put = PLACES[place]()
    op = operator(name, read)

    def gradient(change):
        x = X.clone().requires_grad_()
        y = op(x)
        change()
        return torch.autograd.grad(y.sum(), x)[0]

    expected = gradient(lambda: None)
    try:
        found = gradient(lambda: put(3 * tensor))
    except RuntimeError as error:
        assert "a variable or an attribute has another value now" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", MADE_OF_FUNCTIONS)
def test_globals_with_the_name_of_an_attribute_may_change(name, monkeypatch):
    """A rule that reads ``box.scale`` does not hold a global ``scale``."""
    monkeypatch.setitem(globals(), "scale", torch.tensor(2.0, requires_grad=True))
    box = types.SimpleNamespace(scale=3.0)
    op, x = operator(name, lambda x: box.scale * x), X.clone().requires_grad_()
    y = op(x)
    with torch.no_grad():
        globals()["scale"].mul_(2)
    y.sum().backward()
    assert x.grad is not None


def test_a_hard_function_must_not_change_its_argument():
    """The caller's tensor stays, in `straight_through` as in every other operator."""
    op = fullgrad.straight_through(lambda x: x.clamp_(0, 1).round(), lambda x: x**2)
    x = torch.tensor(3.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="straight_through: <lambda>: `hard` changes an argument in place"):
        op(x * 1)


def test_results_that_are_no_tensor_are_refused_by_name():
    """The name is the user's."""
    op = fullgrad.straight_through(lambda x: {"y": x}, lambda x: x)
    with pytest.raises(TypeError, match="straight_through: <lambda>: `hard` must return a tensor, got a value of type dict"):
        op(X.clone().requires_grad_())


@pytest.mark.parametrize("soft", [torch.sigmoid, lambda x: torch.sigmoid(x * SCALE)], ids=["arguments", "captures"])
@pytest.mark.parametrize("hard", [lambda x: x > 0, lambda x: x.long()], ids=["bools", "integers"])
def test_hard_results_without_a_gradient_are_refused(hard, soft):
    """A gradient of bools or integers is 0 without a word."""
    with pytest.raises(TypeError, match=r"`hard` must return a floating tensor, .* got torch.(bool|int64): add .to\(x.dtype\)"):
        fullgrad.straight_through(hard, soft)(X.clone().requires_grad_())


class Product(torch.autograd.Function):
    """A Function of another package, which no mode of torch functions sees."""

    @staticmethod
    def forward(x, t):
        return x * t

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        return g * t, (g * x).sum()


INNER = {
    "torch": torch.mul,
    "a Function": Product.apply,
    "adopt": fullgrad.adopt(Product),
    "scale": fullgrad.scale,
    **{
        name: lambda x, t, of=of: of(lambda x: t * x, lambda x: t + 0 * x)(x)
        for name, of in OPERATORS.items()
        if name in CALLED_AGAIN
    },
}
OUTER = {
    "checkpoint": lambda f: lambda x: fullgrad.checkpoint(f, x),
    "with_reference": lambda f: fullgrad.with_reference(f, f, vmap_method="map"),
    "reference alone": lambda f: fullgrad.with_reference(lambda x: 3 * x.detach(), f),
    "root": OPERATORS["root"],
}
CAPTURED = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("where", ["a variable", "a global"])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", OUTER)
def test_a_tensor_that_an_operator_inside_uses_gets_its_gradient(outer, inner, where):
    """No operator loses a captured tensor that only another operator sees."""
    t, inside = CAPTURED.detach().clone().requires_grad_(), INNER[inner]
    f = (lambda x: inside(x, CAPTURED)) if where == "a global" else lambda x: inside(x, t)
    captured = CAPTURED if where == "a global" else t
    op = OUTER[outer](f) if outer != "root" else OUTER[outer](f, None)
    (found,) = torch.autograd.grad(op(X).sum(), captured)
    torch.testing.assert_close(found, X.sum())


@pytest.mark.parametrize("where", ["selective checkpoint", "linearize", "flop counter", "mutation allowed"])
@pytest.mark.parametrize("name", CALLED_AGAIN)
def test_constants_in_calls_that_a_mode_watches(name, where):
    """A tensor without a derivative that a function closes over is no other one because the call was in a mode."""
    c, x = torch.ones(2, dtype=torch.float64), X.clone().requires_grad_()
    op = OPERATORS[name](lambda x: c * x, None)
    if where == "linearize":
        torch.testing.assert_close(torch.func.linearize(op, X)[1](X), X)
        return
    if where == "selective checkpoint":
        contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)
        y = checkpoint(op, x, use_reentrant=False, context_fn=contexts)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], c)
        return
    with FlopCounterMode(display=False) if where == "flop counter" else torch.autograd.graph.allow_mutation_on_saved_tensors():
        torch.testing.assert_close(torch.autograd.grad(op(x).sum(), x)[0], c)


@pytest.mark.parametrize("name", [name for name in MADE_OF_FUNCTIONS if name != "custom_gradient"])
def test_a_counter_of_operations_hides_no_change(name):
    """A constant that changes in place before the derivative is refused, as outside of the mode; one that stays is no error."""
    c, x = torch.full((2,), 3.0, dtype=torch.float64), X.clone().requires_grad_()
    op = MADE_OF_FUNCTIONS[name](lambda x: c * x, lambda x: c)
    with FlopCounterMode(display=False):
        torch.autograd.grad(op(x).sum(), x)
        y = op(x)
        c.mul_(2)
        with pytest.raises(RuntimeError, match="changed in place"):
            torch.autograd.grad(y.sum(), x)


class Encoder(nn.Module):
    """A module that keeps a queue, and a part that another loss trains."""

    def __init__(self):
        super().__init__()
        self.query, self.other = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
        self.register_buffer("queue", torch.zeros(2, dtype=torch.float64))

    def encode(self, x):
        return self.query(x)


REALISTIC = {name: of for name, of in MADE_OF_FUNCTIONS.items() if name not in ("custom_gradient", "map_grad")}


@pytest.mark.parametrize("how", ["a method", "a closure"])
@pytest.mark.parametrize("name", REALISTIC)
def test_what_a_function_does_not_read_may_change(name, how):
    """Buffers and parts of its module that the function does not name, as a queue or another loss's network."""
    m = Encoder().requires_grad_(name in CALLED_AGAIN)
    f = m.encode if how == "a method" else lambda x: m.query(x)
    op, x = REALISTIC[name](f, f), X.clone().requires_grad_()
    y = op(x)
    with torch.no_grad():
        m.queue.add_(1)
        m.other.weight.mul_(2)
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("name", ["checkpoint", "with_reference"])
def test_parts_that_are_not_used_get_no_gradient(name):
    """None, and not zeros by which an optimizer with momentum or decay would move them."""
    m = nn.ModuleDict({"a": nn.Linear(2, 2).double(), "b": nn.Linear(2, 2).double()})
    OPERATORS[name](lambda x: m["a"](x), None)(X).sum().backward()
    assert m["a"].weight.grad is not None
    assert m["b"].weight.grad is None


@pytest.mark.parametrize("method", ["sequential", "broadcast"])
@pytest.mark.parametrize("name", ["custom_vjp", "custom_jvp", "linear_map"])
def test_kernels_in_compiled_code_refuse_tensors_that_need_a_derivative(name, method):
    """As in eager code."""
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    op = {
        "custom_vjp": lambda: fullgrad.custom_vjp(lambda x: w * x, vmap_method=method),
        "custom_jvp": lambda: fullgrad.custom_jvp(lambda x: w * x, vmap_method=method),
        "linear_map": lambda: fullgrad.linear_map(lambda x: w * x, lambda x: w * x, vmap_method=method),
    }[name]()
    if name != "linear_map":
        op.defvjp(lambda x: (op(x), None), lambda r, g: (g,)) if name == "custom_vjp" else op.defjvp(lambda p, t: (op(*p), t[0]))
    for call in (op, torch.compile(lambda x: op(x), backend="aot_eager")):
        with pytest.raises(Exception, match="captures a tensor that requires a gradient"):
            call(X.clone().requires_grad_())


def test_data_costs_little():
    """A captured vocabulary, or a list of numbers, is not walked through at each call."""
    vocabulary = {str(i): i for i in range(100_000)}
    assert [key for _, key, _ in places(lambda x: x * vocabulary["3"])] == [None]


def test_code_of_installed_packages_is_not_walked_through():
    """What a package keeps in its globals, as pytest its session, is no concern of a function that calls it."""

    def f(x):
        assert isinstance(x, torch.Tensor)  # which pytest rewrites, so that it names its own module
        return x if hypothesis.given else pytest.mark.short

    assert all(holder is f.__globals__ for holder, *_ in places(f))


class Node:
    """A node of a tree without an end."""

    made = 0

    @property
    def __dict__(self):
        Node.made += 60
        return {"parts": [Node() for _ in range(60)]}


def test_the_nearest_objects_are_looked_at_and_not_a_whole_program():
    """A walk ends: it finds the tensors of the function itself, and looks at a part of what its objects reach."""
    node, t = Node(), torch.ones(2)
    for f in (lambda x: (node.parts, x * t), lambda x: (x * t, node.parts)):
        assert any(v is t for v in held(f)[1])
    assert Node.made < 1_000_000


# --- Objects that are arguments ------------------------------------------------------------------------------------------


def _of_object(x, box):
    return torch.sin(x * box.t)


def _custom_jvp(x, box):
    f = fullgrad.custom_jvp(_of_object, nondiff_argnums=1)
    f.defjvp(lambda box, p, t: (_of_object(p[0], box), torch.cos(p[0] * box.t) * box.t * t[0]))
    return f(x, box)


def _custom_vjp(x, box):
    f = fullgrad.custom_vjp(_of_object, nondiff_argnums=1)
    f.defvjp(lambda x, box: (_of_object(x, box), x), lambda box, x, g: (g * torch.cos(x * box.t) * box.t,))
    return f(x, box)


def _root(x, box):
    solver = implicit.root(lambda z, x, box: z - _of_object(x, box))
    return solver(lambda init, x, box: _of_object(x, box).detach())(None, x, box)


OF_OBJECTS = {
    "checkpoint": lambda x, box: fullgrad.checkpoint(_of_object, x, box),
    "with_reference": lambda x, box: fullgrad.with_reference(_of_object, _of_object)(x, box),
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "root": _root,
    "solve": lambda x, box: implicit.solve(lambda w, x, box: w / box.t, x, x, box),
}


@pytest.mark.parametrize("change", ["none", "in place", "exchanged"])
@pytest.mark.parametrize("name", OF_OBJECTS)
@pytest.mark.parametrize("inside", [False, True])
def test_tensors_in_objects_that_are_arguments(name, change, inside):
    """They may not change before the derivative, as those that a function captures; a state that a loop hands on does."""

    def result(x):
        box = types.SimpleNamespace(t=torch.full((2,), 2.0, dtype=x.dtype))
        y = OF_OBJECTS[name](x, box)
        if change == "in place":
            box.t.mul_(3)
        elif change == "exchanged":
            box.t = box.t * 3
        return y.sum()

    def derivative():
        x = X.clone().requires_grad_()
        return torch.func.grad(result)(X) if inside else torch.autograd.grad(result(x), x)[0]

    if change == "none":
        expected = torch.full_like(X, 2.0) if name == "solve" else 2 * torch.cos(2 * X)
        torch.testing.assert_close(derivative(), expected)
    else:
        with pytest.raises(RuntimeError, match=r"in place|inplace|not used in the call|belongs to a transform"):
            derivative()
