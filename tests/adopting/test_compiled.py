"""Compiled code: an adopted class is one node, and gives what eager code gives."""

import functools
import gc

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import Function
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import fullgrad
from fullgrad._dispatch import torch_private
from tests.adopting import oracle
from tests.adopting.functions import (
    Attributes,
    ChangesTheGradient,
    NewStyle,
    SavesInput,
    SavesIntermediate,
    SeveralOutputs,
    WithJvp,
    X,
)

captured = SavesInput.apply


class Model(torch.nn.Module):
    """A network of another package, with several classes in it."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, dtype=X.dtype)

    def forward(self, x):
        y = captured(self.linear(x)) + NewStyle.apply(x, 3.0) + Attributes.apply(x, 3)
        return (y + SeveralOutputs.apply(y)[3]).sin().sum()


def total(x):
    return (captured(x) * NewStyle.apply(x) + SavesIntermediate.apply(x)).sin().sum()


TRANSFORMS = {
    "grad": lambda f: grad(f),
    "vmap_grad": lambda f: lambda x: vmap(grad(f))(oracle.batch(x)),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x.cos(),)),
    "hessian": hessian,
    "vmap": lambda f: lambda x: vmap(f)(oracle.batch(x)),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_a_transform_inside(name):
    """A compiled transform of an adopted class is one graph, and equals eager code."""
    transform = TRANSFORMS[name]
    with fullgrad.adopting():
        expected = transform(total)(X)
        assert_close(torch.compile(transform(total), backend="aot_eager", fullgraph=True)(X), expected)
    adopted = fullgrad.adopt(SavesInput)
    assert_close(
        torch.compile(transform(lambda x: adopted(x).sin().sum()), backend="aot_eager", fullgraph=True)(X),
        transform(lambda x: adopted(x).sin().sum())(X),
    )


@pytest.mark.long
def test_per_sample_gradients_of_a_model():
    """``compile(vmap(grad(model)))`` without a graph break, one graph, by inductor; dynamic sizes too."""
    model, samples = Model(), oracle.batch(X)
    parameters = dict(model.named_parameters())

    def per_sample(parameters, samples):
        return vmap(grad(lambda p, x: functional_call(model, p, (x,))), in_dims=(None, 0))(parameters, samples)

    counter = CompileCounterWithBackend("inductor")
    with fullgrad.adopting():
        compiled = torch.compile(per_sample, backend=counter, fullgraph=True, dynamic=True)
        for x in (samples, torch.cat([samples, samples.flip(0)])):
            assert_close(compiled(parameters, x), per_sample(parameters, x))
    assert counter.frame_count == 1
    nodes = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert sum("SavesInput_adopted" in node for node in nodes) == 1, nodes


def test_code_that_is_compiled_before_inside_and_after():
    """Compiled code guards on what the context adopts: one compiled function is right inside, and as before outside."""
    reset = torch.compile(lambda x: vmap(grad(lambda x: captured(x).sum()))(x), backend="aot_eager")

    def outside():
        try:
            return reset(X[None])
        except Exception as error:
            return type(error)

    before = outside()
    expected = 1 / (1 + X * X)
    with fullgrad.adopting():
        assert_close(reset(X[None])[0], expected)
        with fullgrad.adopting(exclude=SavesInput):
            assert_close(reset(X[None])[0], expected)  # the outer scope has it
    with fullgrad.adopting("types"):
        inner = outside()
    after = outside()
    for found in (inner, after):
        assert found == before if isinstance(before, type) else torch.equal(found, before)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("decorates", [False, True])
def test_a_context_that_is_opened_in_compiled_code(decorates):
    """Opening the context in compiled code is right, with a graph break whose reason says where to open it."""

    def of_each(x):
        return vmap(grad(lambda x: captured(x).sum()))(x.sin()) * x

    def opens(x):
        y = x.cos()
        with fullgrad.adopting():
            return of_each(y) + y

    f = fullgrad.adopting()(of_each) if decorates else opens
    expected = f(oracle.batch(X))
    assert_close(torch.compile(f, backend="aot_eager")(oracle.batch(X)), expected)
    torch.compiler.reset()
    with pytest.raises(Unsupported, match="open it around the call of what is compiled"):
        torch.compile(f, backend="aot_eager", fullgraph=True)(oracle.batch(X))


class WritesWhatItSelects(SavesInput):
    """A backward that writes into a mask what it has selected."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        y = 2 * g
        y[x > 0] = -y[x > 0]
        return y


def test_a_class_compiles_as_before_after_it_was_batched():
    op, x = fullgrad.adopt(WritesWhatItSelects), torch.tensor([[0.3, -1.2], [0.7, 2.0]])
    slope = torch.where(x > 0, -2.0, 2.0)
    derivative = grad(lambda x: (3 * op(x)).sum())
    for _ in range(2):
        torch.compiler.reset()
        for backend in ("eager", "aot_eager"):
            assert torch.equal(torch.compile(derivative, backend=backend, fullgraph=True)(x), 3 * slope)
        assert torch.equal(make_fx(derivative)(x)(x), 3 * slope)
        assert torch.equal(vmap(derivative)(x), 3 * slope)
    assert torch.equal(torch.compile(vmap(derivative), backend="aot_eager", fullgraph=True)(x), 3 * slope)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does it itself
def test_without_a_transform():
    """Without a transform Dynamo handles what it can, and our node a class with a ``jvp``, which Dynamo refuses."""
    x = X.clone().requires_grad_()

    def compiled(cls):
        y = torch.compile(lambda x: cls.apply(x), backend="aot_eager", fullgraph=True)(x)
        return torch.autograd.grad(y.sum(), x)[0]

    with fullgrad.adopting():
        assert_close(compiled(SavesInput), 1 / (1 + X * X))
        assert_close(torch.compile(lambda x: WithJvp.apply(x), backend="aot_eager", fullgraph=True)(x).detach(), X.floor())


def test_a_backward_that_is_not_linear_is_noticed_when_compiled():
    """Forward mode raises, even if it is compiled first."""

    class Clipped(Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g.clamp(-1, 1)

    with fullgrad.adopting(), pytest.raises(Exception, match="is not linear"):
        torch.compile(lambda x: jvp(Clipped.apply, (x,), (x,))[1], backend="aot_eager", fullgraph=True)(X)


def test_traced_by_make_fx():
    """The graph of a derivative is right."""
    adopted = fullgrad.adopt(SavesInput)
    transform = hessian(lambda x: adopted(x).sum())
    assert_close(make_fx(transform)(X)(X + 1), transform(X + 1))


def test_functions_as_arguments():
    """Functions as arguments are part of the node, and guarded."""

    class WithFunction(Function):
        @staticmethod
        def forward(ctx, x, slope):
            ctx.save_for_backward(x)
            ctx.slope = slope
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.slope(ctx.saved_tensors[0]), None

    def per_sample(x, slope):
        return vmap(grad(lambda x: WithFunction.apply(x, slope).sum()))(x)

    compiled = torch.compile(per_sample, backend="aot_eager", fullgraph=True)
    with fullgrad.adopting():
        for slope in (torch.cos, torch.sin):
            assert_close(compiled(X[None], slope), slope(X)[None])


def test_numbers_as_arguments():
    """Numbers as arguments are guarded by their value: an equal one does not recompile, another one does."""
    graphs = CompileCounterWithBackend("aot_eager")

    def per_sample(x, scale):
        return vmap(grad(lambda x: NewStyle.apply(x, scale).sum()))(x)

    compiled = torch.compile(per_sample, backend=graphs, fullgraph=True)
    with fullgrad.adopting():
        for scale in ("2.5", "2.5", "3.5"):
            assert_close(compiled(X[None], float(scale)), per_sample(X[None], float(scale)))
            assert graphs.frame_count == (1 if scale == "2.5" else 2)


def test_shapes_that_depend_on_numbers_stay_inside():
    """A class may compute how many elements it changes, and keep the number to itself."""

    class SquaresOfPositive(Function):
        @staticmethod
        def forward(ctx, x):
            at = (x > 0).nonzero().squeeze(-1)
            ctx.save_for_backward(x)
            return torch.zeros_like(x).index_copy(0, at, x[at].square())

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            at = (x > 0).nonzero().squeeze(-1)
            return torch.zeros_like(x).index_copy(0, at, 2 * g[at] * x[at])

    adopted = fullgrad.adopt(SquaresOfPositive)
    found = torch.compile(grad(lambda x: adopted(x).sum()), backend="aot_eager", fullgraph=True)(X)
    assert_close(found, 2 * X.clamp(min=0))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does it itself
def test_other_methods_of_a_class():
    """Other methods of a class are plain code to Dynamo, as before."""

    class WithHelper(ChangesTheGradient):
        @staticmethod
        def slope(x):
            return x.cos()

        @staticmethod
        def backward(ctx, g):
            return g * WithHelper.slope(ctx.saved_tensors[0])

    def f(x):
        return WithHelper.apply(x) * WithHelper.slope(x)

    with fullgrad.adopting():
        for transform in (lambda f: f, lambda f: vmap(grad(f))):
            assert_close(torch.compile(transform(f), backend="aot_eager", fullgraph=True)(X), transform(f)(X))


# --- What a class reaches through its arguments -----------------------------------------------------------------------------

TABLE = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=X.dtype)


class State:
    """An object with a tensor, a number and another object."""

    def __init__(self, table, alpha=1.0, inner=None):
        self.table, self.alpha, self.inner = table, alpha, inner

    def __call__(self, x):
        return x * self.table * self.alpha * (1 if self.inner is None else self.inner.table)

    def slope(self, x):
        return self(x)


class WithSlope(Function):
    """Takes what its backward needs from an argument, and from a tensor of the module."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, TABLE)
        ctx.slope = slope
        return x.round() * TABLE

    @staticmethod
    def backward(ctx, g):
        x, table = ctx.saved_tensors
        return g * ctx.slope(x) * table * TABLE, None


def closure(table):
    return lambda x: x * table


ARGUMENTS = {
    "object": State(TABLE * 2, inner=State(TABLE * 3)),
    "method": State(TABLE * 2).slope,
    "closure": closure(TABLE * 5),
    "partial": functools.partial(torch.mul, TABLE * 7),
    "function": torch.cos,
}


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_tensors_that_a_class_reaches(name, backend):
    """Tensors in an object, a closure or the module are constants of the graph, in every transform."""
    for transform in (grad, lambda f: lambda x: jvp(f, (x,), (x,))[1], lambda f: lambda x: vmap(grad(f))(oracle.batch(x))):
        f = transform(lambda x: WithSlope.apply(x, ARGUMENTS[name]).sum())
        with fullgrad.adopting():
            assert_close(torch.compile(f, backend=backend, fullgraph=True)(X), f(X))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_tensors_that_a_class_reaches_and_that_change(backend):
    """Another tensor, another number and a change in place, deep inside too, are noticed."""
    state = State(TABLE.clone(), inner=State(torch.tensor(2.0, dtype=X.dtype)))
    bound = state.slope
    for argument in (state, bound):
        f = grad(lambda x, argument=argument: WithSlope.apply(x, argument).sum())
        with fullgrad.adopting():
            torch.compiler.reset()  # the limit of recompilations is 8
            compiled = torch.compile(f, backend=backend, fullgraph=True)
            for change in (
                lambda: None,
                lambda: setattr(state, "table", TABLE * 5),
                lambda: setattr(state, "alpha", state.alpha + 1),
                lambda: state.inner.table.mul_(3),
                lambda: setattr(state, "inner", State(torch.tensor(7.0, dtype=X.dtype))),
            ):
                change()
                assert_close(compiled(X), f(X))


def test_an_argument_that_compiled_code_makes_or_changes():
    """Such an argument is not in the graph: the call breaks the graph and is right, or raises and says what to do."""
    state = State(TABLE, inner=State(TABLE))

    def makes(x):
        return WithSlope.apply(x, State(TABLE)).sum()

    def makes_a_function(x):
        table = TABLE
        return WithSlope.apply(x, lambda x: x * table).sum()

    def changes(x):
        state.alpha = 3.0
        return WithSlope.apply(x, state).sum()

    def changes_inside(x):
        state.inner.table = TABLE
        return WithSlope.apply(x, state).sum()

    for f in (makes, makes_a_function, changes, changes_inside):
        with fullgrad.adopting():
            assert_close(torch.compile(grad(f), backend="aot_eager")(X), grad(f)(X))
            torch.compiler.reset()
            with pytest.raises(Unsupported, match="outside of what is compiled, or pass the tensors in it as arguments"):
                torch.compile(grad(f), backend="aot_eager", fullgraph=True)(X)


@pytest.mark.parametrize("transform", [grad, hessian, lambda f: lambda x: jvp(f, (x,), (x,))[1]])
def test_after_a_graph_break(transform):
    """Code after a graph break behaves as eager code."""

    def f(x):
        torch._dynamo.graph_break()
        return (captured(x) ** 2).sum()

    with fullgrad.adopting():
        assert_close(torch.compile(transform(f), backend="aot_eager")(X), transform(f)(X))


def test_sizes_that_depend_on_numbers_without_a_transform():
    """Sizes that depend on numbers may stay inside a class without a transform, too."""

    class CountsPositive(Function):
        @staticmethod
        def forward(ctx, x):
            at = (x > 0).nonzero().squeeze(-1)
            ctx.save_for_backward(x)
            return torch.zeros_like(x).index_copy(0, at, x[at])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            at = (x > 0).nonzero().squeeze(-1)
            return torch.zeros_like(x).index_copy(0, at, g[at])

    x = X.clone().requires_grad_()
    adopted = fullgrad.adopt(CountsPositive)
    y = torch.compile(lambda x: adopted(x), backend="aot_eager", fullgraph=True)(x)
    assert_close(y.detach(), X.clamp(min=0))
    assert_close(torch.autograd.grad(y.sum(), x)[0], (X > 0).to(X.dtype))


def test_a_failed_trace_leaves_autograd_on(monkeypatch):
    """torch's error keeps a guard alive that switches autograd off when it is collected; autograd stays on."""
    monkeypatch.setattr(torch_private._Lifting, "_lifted", lambda self, tensor: tensor)
    f = lambda x: jvp(lambda x: WithSlope.apply(x, ARGUMENTS["closure"]).sum(), (x,), (x,))[1]  # noqa: E731
    with fullgrad.adopting(), pytest.raises(Exception, match=r"fake tensor|FakeTensor"):
        torch.compile(f, backend="aot_eager", fullgraph=True)(X)
    gc.collect()
    assert (X.clone().requires_grad_() * 2).requires_grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_rules_that_the_user_has_compiled_are_right_under_transforms(backend):
    """Dynamo compiles functions wrong under modes whose code breaks the graph, so that they run as they are written."""
    torch._dynamo.reset()

    @functools.partial(torch.compile, backend=backend)
    def rule(g, x, w):
        return (g * torch.cos(x @ w)) @ w.mT, x.mT @ (g * torch.cos(x @ w))

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return torch.sin(x @ w)

        @staticmethod
        def backward(ctx, g):
            return rule(g, *ctx.saved_tensors)

    x, w = torch.linspace(-1, 1.5, 12, dtype=torch.float64).reshape(3, 2, 2), torch.tensor([[0.3, -0.7], [1.1, 0.4]]).double()
    adopted = fullgrad.adopt(Compiled)
    for transform in (
        lambda f: torch.func.vmap(torch.func.grad(f, (0, 1)), (0, None))(x, w),
        lambda f: torch.func.hessian(f, (0, 1))(x, w),
        lambda f: torch.func.jvp(f, (x, w), (x.cos(), w.sin()))[1],
    ):
        found, expected = [transform(lambda x, w, f=f: f(x, w).sin().sum()) for f in (adopted, lambda x, w: torch.sin(x @ w))]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
