"""torch.compile(fullgraph=True), with and without transforms inside, gives what eager gives."""

import copy
import threading

import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vjp, vmap
from torch.testing import assert_close

from fullgrad._dispatch import FakeTensorMode, recomputed
from fullgrad._dispatch.torch_private import node_notes
from tests.dispatch.test_transforms import spell
from tests.operators import (
    CASES,
    Affine,
    Cube,
    CubicRound,
    MatMul,
    MaxOver,
    Norm,
    Pair,
    Reparametrized,
    SinCos,
    affine,
    sample,
)

BACKENDS = ("eager", "aot_eager")

# Every nesting up to two deep, and some of three. Left out, for torch refuses them for its own operators too: vmap(fwd(rev)) and
# vmap(fwd(fwd)) of anything, and a Python number times a tensor under nested forward mode, in a rule as anywhere else
# ("InferenceMode::is_enabled()"). A trace that fails so leaves torch in a state in which the next one may fail.
WORDS = [
    *(("rev",), ("fwd",), ("vmap",)),
    *((a, b) for a in ("rev", "fwd", "vmap") for b in ("rev", "fwd", "vmap") if (a, b) != ("vmap", "vmap")),
    *(("vmap", "rev", "rev"), ("fwd", "fwd", "fwd"), ("rev", "rev", "rev"), ("rev", "fwd", "vmap"), ("fwd", "rev", "fwd")),
]


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, backend=backend, fullgraph=True, **options)


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("name", "word"),
    [("cubic_round", word) for word in WORDS]
    + [("sin_cos", word) for word in (("rev",), ("fwd", "fwd"), ("vmap", "rev"), ("vmap", "fwd"), ("rev", "fwd", "vmap"))]
    + [("nested", word) for word in (("fwd",), ("rev", "rev"), ("fwd", "rev"), ("rev", "vmap"), ("vmap", "rev", "rev"))],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_transforms_inside(name, word):
    """A compiled nesting of transforms is right; operators whose value and derivative disagree show a dropped rule."""
    case = CASES[name]
    x = sample(*(2,) * word.count("vmap"))
    backend = BACKENDS[len(word) % 2]
    assert_close(compiled(spell(word, case.function), backend)(x), spell(word, case.oracle)(x))


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "aot_eager") for name in CASES), ("cubic_round", "eager"), ("sin_cos", "eager"), ("max", "eager")],
)
def test_value_and_gradient(name, backend):
    """A function of an operator is one graph, with the right value and gradient."""
    case = CASES[name]
    counter = CompileCounterWithBackend(backend)
    x, y = sample().requires_grad_(), sample().requires_grad_()
    value, expected = compiled(case.function, counter)(x), case.oracle(y)
    assert_close(value, expected)
    value.sin().sum().backward()
    expected.sin().sum().backward()
    assert_close(x.grad, y.grad)
    assert counter.frame_count == 1


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["cubic_round", "matmul", "norm"])
def test_gradient_and_forward_mode_in_one_graph(name):
    """grad, jvp and a plain call of the same operator side by side."""
    case = CASES[name]

    def function(f, x):
        return grad(lambda x: f(x).sum())(x), jvp(f, (x,), (x,)), vjp(f, x)[1](x), f(x)

    x = sample()
    assert_close(compiled(lambda x: function(case.function, x))(x), function(case.oracle, x))


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (Cube, lambda: (sample(),)),
        (CubicRound, lambda: (sample(),)),
        (SinCos, lambda: (sample(),)),
        (MatMul, lambda: (sample(3), sample(3, seed=1))),
        (Norm, lambda: (sample(3), 0)),
        (MaxOver, lambda: (sample(3), 1)),
        (Affine, lambda: (sample(), sample(seed=1), None, 0.5, 2)),
    ],
)
def test_operator_itself(operator, args):
    """torch.compile(MyOp.apply), alone and in a wrapper, has the right value, output type and gradient."""
    expected = operator.apply(*args())
    for function, backend in ((operator.apply, "aot_eager"), (lambda *a: operator.apply(*a), "eager")):
        x, *rest = args()
        x.requires_grad_()
        output = compiled(function, backend)(x, *rest)
        assert type(output) is type(expected)
        assert_close(tuple(output) if isinstance(output, tuple) else output.detach(), expected, check_dtype=True)
        first = output[0] if isinstance(output, tuple) else output
        leaf = args()[0].requires_grad_()
        eager = operator.apply(leaf, *rest)
        (eager[0] if isinstance(eager, tuple) else eager).sum().backward()
        first.sum().backward()
        assert_close(x.grad, leaf.grad)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("transform", [grad, hessian])
def test_transform_of_the_operator_itself(transform):
    """torch.compile(vmap(transform(MyOp.apply))) is right."""
    x = sample(2)[0]
    if transform is hessian:
        assert_close(compiled(hessian(lambda x: Cube.apply(x).sum()))(x), torch.diag(6 * x))
    else:
        assert_close(compiled(vmap(grad(CubicRound.apply)))(x), x**2)


def test_value_is_exact():
    """The value equals that of eager code bit for bit, also where the soft value would be far from it."""
    x = torch.cat([torch.randn(100) * 3, torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, -0.2, 1e30])])
    y = compiled(CubicRound.apply)(x.clone().requires_grad_()).detach()
    assert torch.equal(y.view(torch.int32), x.round().view(torch.int32))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_mode_inside(mode):
    """A mode inside the compiled function."""

    def function(f, x):
        with mode():
            y = f(x)
        return f(x) * y

    results = []
    for f, wrap in ((CASES["cubic_round"].function, compiled), (CASES["cubic_round"].oracle, lambda f: f)):
        x = sample().requires_grad_()
        if mode is torch.inference_mode:
            y = wrap(lambda x, f=f: function(f, x))(x.detach())
            results.append((y,))
        else:
            y = wrap(lambda x, f=f: function(f, x))(x)
            results.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    assert_close(*results)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("word", [("rev",), ("rev", "rev"), ("rev", "fwd")], ids="-".join)
def test_no_grad_inside_a_transform(word):
    """no_grad inside nested transforms inside a compiled function, as far as torch itself honors it there."""

    def part(f):
        def function(x):
            with torch.no_grad():
                y = f(x)
            return y * x.sin() + f(x)

        return spell(word, function)

    x = sample()
    case = CASES["cubic_round"]
    # What a compiled function of torch's own operators gives is the measure.
    expected = compiled(part(case.oracle))(x)
    assert_close(compiled(part(case.function))(x), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_mode_outside(mode):
    """A compiled function called in no_grad or inference_mode, and with gradients after that."""
    function = compiled(CASES["cubic_round"].function)
    x = sample().requires_grad_()
    with mode():
        y = function(x)
    assert not y.requires_grad
    assert_close(y, CASES["cubic_round"].oracle(x).detach())
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    assert_close(gradient, torch.autograd.grad(CASES["cubic_round"].oracle(x).sum(), x)[0])


@pytest.mark.parametrize(("name", "backend"), [("cubic_round", "eager"), ("norm", "aot_eager"), ("sin_cos", "aot_eager")])
def test_dynamic_shapes(name, backend):
    """One graph, with the gradient, serves all sizes."""
    case = CASES[name] if name != "norm" else (lambda x: Norm.apply(x[:, None] * x, 0), lambda x: (x[:, None] * x).norm(dim=0))
    function, oracle = case
    counter = CompileCounterWithBackend(backend)
    wrapped = compiled(function, counter, dynamic=True)
    for size in (3, 4, 7):
        x, y = (torch.linspace(0.5, 2, size, dtype=torch.float64, requires_grad=True) for _ in range(2))
        wrapped(x).sum().backward()
        oracle(y).sum().backward()
        assert_close(x.grad, y.grad)
    assert counter.frame_count == 1


@pytest.mark.long(but=1)
# torch makes the size of a Jacobian of a Jacobian a constant, for its own operators too: dynamic=True compiles it again.
@pytest.mark.parametrize("word", [("rev",), ("fwd",), ("vmap", "rev"), ("vmap", "fwd"), ("rev", "rev")], ids="-".join)
def test_dynamic_shapes_with_transforms_inside(word):
    """A dynamic batch or vector, and a transform inside: one graph for all sizes."""
    case = CASES["nested"]
    counter = CompileCounterWithBackend("aot_eager")
    wrapped = compiled(spell(word, case.function), counter, dynamic=True if word == ("rev", "rev") else None)
    for size in (3, 5):
        x = torch.linspace(0.5, 2, size, dtype=torch.float64)
        if "vmap" in word:
            x = x[:, None] * torch.ones(3, dtype=x.dtype)
        if word != ("rev", "rev"):
            torch._dynamo.mark_dynamic(x, 0)
        assert_close(wrapped(x), spell(word, case.oracle)(x))
    assert counter.frame_count == (2 if word == ("rev", "rev") else 1)


def test_size_as_an_argument():
    """A dynamic size reaches the operator as a plain argument."""

    def function(x):
        return Affine.apply(x, x, None, float(x.shape[0]), x.shape[0] - 1)

    wrapped = compiled(function, dynamic=True)
    for size in (3, 4, 5):
        x = torch.linspace(0.5, 2, size, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(wrapped(x).sum(), x)
        assert_close(gradient, torch.autograd.grad(affine(x, x, None, float(size), size - 1).sum(), x)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_change_between_calls(backend):
    """Float and int arguments of the compiled function; the second value of each makes them dynamic."""
    wrapped = compiled(lambda x, scale, power: Affine.apply(x, x, x, scale, power=power), backend)
    for scale, power in ((0.5, 2), (0.75, 2), (1.25, 3), (2.5, 4)):
        x = sample().requires_grad_()
        y = wrapped(x, scale, power)
        assert_close(y, affine(x, x, x, scale, power))
        assert_close(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(affine(x, x, x, scale, power).sum(), x)[0])


def test_keywords_and_defaults():
    """Keywords and defaults work as in eager code."""
    x, w = sample(), sample(seed=1)
    wrapped = compiled(lambda x, w: Affine.apply(w=w, x=x, power=2) + Affine.apply(x, w) + Affine.apply(x, w, b=x, scale=0.5))
    assert_close(wrapped(x, w), affine(w=w, x=x, power=2) + affine(x, w) + affine(x, w, b=x, scale=0.5))


def test_namedtuple_inside():
    """The fields of a namedtuple can be read by name."""

    def function(x):
        pair = SinCos.apply(x)
        return pair.sin * pair.cos + pair[0], isinstance(pair, Pair)

    y, named = compiled(function)(sample())
    assert named
    assert_close(y, sample().sin() * sample().cos() + sample().sin())


def test_tensor_in_a_container_is_refused():
    """Such a tensor is refused as in eager code, with the same words or Dynamo's."""
    with pytest.raises(Exception, match=r"takes tensors as arguments of their own|allow_in_graph|Unsupported|unsupported"):
        compiled(lambda x: Affine.apply(x, [x]))(sample())


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_rule_of_the_author(randomness):
    """The vmap rule is used, and gets the randomness."""
    function = vmap(lambda x: tuple(Reparametrized.apply(x)), randomness=randomness)
    value, noise = compiled(function)(sample(4))
    assert_close(value, sample(4) * noise)
    assert bool((noise == noise[0]).all()) == (randomness == "same")


def test_second_order_through_a_compiled_function():
    """Double backward through AOTAutograd is torch's own error; with the backend "eager" it is right."""
    x = sample().requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(Cube.apply, "eager")(x).sum(), x, create_graph=True)
    assert_close(torch.autograd.grad(gradient.sum(), x)[0], 6 * x.detach())
    (gradient,) = torch.autograd.grad(compiled(Cube.apply, "aot_eager")(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(gradient.sum(), x)


class Block(torch.nn.Module):
    """A layer, an operator, and a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.function(self.first(x)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_module(backend):
    """A compiled module that holds ``MyOp.apply`` has the same gradients for every parameter, step after step."""
    module = Block(CubicRound.apply).double()
    other = copy.deepcopy(module)
    wrapped = compiled(module, backend)
    x = sample(5) * 3
    for step in range(3):
        wrapped(x).sin().sum().backward()
        other(x).sin().sum().backward()
        for (name, p), (_, q) in zip(module.named_parameters(), other.named_parameters(), strict=True):
            assert_close(p.grad, q.grad, msg=lambda m, name=name, step=step: f"{name}, step {step}: {m}")


@pytest.mark.parametrize("use_reentrant", [False])
def test_checkpoint_inside(use_reentrant):
    """Activation checkpointing in a compiled function."""
    results = []
    for f, wrap in ((CASES["cubic_round"].function, compiled), (CASES["cubic_round"].oracle, lambda f: f)):

        def function(x, f=f):
            return torch.utils.checkpoint.checkpoint(lambda x: f(x.sin()).cos(), x, use_reentrant=use_reentrant)

        x = sample().requires_grad_()
        results.append(torch.autograd.grad(wrap(function)(x).sum(), x))
    assert_close(*results)


def test_autograd_grad_inside():
    """torch.autograd.grad in a compiled function, where torch traces it, or torch's own refusal."""

    def function(f):
        def inner(x):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(f(x).sum(), x)[0]

        return inner

    x = sample()
    try:
        expected = compiled(function(CASES["cubic_round"].oracle))(x)
    except torch._dynamo.exc.Unsupported:
        return
    assert_close(compiled(function(CASES["cubic_round"].function))(x), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dual_tensor_made_inside(backend):
    """forward_ad in a compiled function: the declared tangent, or torch's own refusal, and never a wrong tangent."""

    def function(f):
        def inner(x, t):
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent

        return inner

    x, t = sample(), sample(seed=1)
    case = CASES["cubic_round"]
    assert_close(compiled(function(case.function), backend)(x, t), function(case.oracle)(x, t))


def test_dual_tensor_from_outside():
    """A dual tensor fed into compiled code: right, or an error, and never a wrong tangent."""
    case = CASES["cubic_round"]
    x, t = sample(), sample(seed=1)
    wrapped = compiled(case.function, "eager")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        expected = forward_ad.unpack_dual(case.oracle(dual)).tangent
        try:
            output = wrapped(dual)
        except Exception as error:
            assert isinstance(error, (RuntimeError, NotImplementedError))  # noqa: PT017
        else:
            assert_close(forward_ad.unpack_dual(output).tangent, expected)


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_transform_of_a_compiled_function(transform):
    """A transform around compiled code: right, or an error, and never wrong."""
    case = CASES["cubic_round"]
    x = sample()
    wrapped = torch.compile(case.function, backend="eager")
    apply = {
        "grad": lambda f: grad(lambda x: f(x).sum())(x),
        "vmap": lambda f: vmap(f)(sample(2)),
        "jvp": lambda f: jvp(f, (x,), (x,)),
    }[transform]
    try:
        result = apply(wrapped)
    except Exception as error:
        assert isinstance(error, (RuntimeError, NotImplementedError))  # noqa: PT017
    else:
        assert_close(result, apply(case.oracle))


# torch looks at .grad of what crosses a break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
def test_graph_break():
    """Without fullgraph, a break between two operators changes nothing."""

    def function(x):
        y = CubicRound.apply(x.exp())
        torch._dynamo.graph_break()
        return CubicRound.apply(y * x)

    counter = CompileCounter()
    x = sample().requires_grad_()
    y = torch.compile(function, backend=counter)(x)
    assert counter.frame_count == 2
    z = torch._dynamo.disable(function)(x)
    assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(z.sum(), x))


def test_compiled_autograd():
    """The backward pass itself may be compiled."""
    case = CASES["cubic_round"]
    x, y = sample().requires_grad_(), sample().requires_grad_()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        compiled(case.function)(x).sum().backward()
        Cube.apply(x).sum().backward()
    (case.oracle(y).sum() + (y**3).sum()).backward()
    assert_close(x.grad, y.grad)


@pytest.mark.long
def test_inductor():
    """The default backend: value, gradient and a transform in one function."""

    def function(f, x):
        return f(x) * grad(lambda x: f(x).sum())(x)

    results = []
    for f, wrap in (
        (CASES["cubic_round"].function, lambda f: compiled(f, "inductor")),
        (CASES["cubic_round"].oracle, lambda f: f),
    ):
        x = sample().requires_grad_()
        y = wrap(lambda x, f=f: function(f, x))(x)
        results.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    assert_close(*results)


def test_nodes_are_marked_for_traced_tensors_on_the_cpu():
    """Nodes are marked for a traced tensor on the CPU; not in eager code, on other devices, or for numbers alone."""
    marked = []

    def function(x):
        marked.append("recompute" in node_notes())

    recomputed(function, torch.ones(1))
    with FakeTensorMode(allow_non_fake_inputs=True):
        for x in (torch.ones(1), torch.ones(1, device="meta"), 1.0):
            recomputed(function, x)
    assert marked == [False, True, False, False]
    assert "recompute" not in node_notes()


def test_marks_of_threads_that_trace_at_once_are_taken_back():
    """Notes on a graph's nodes are one dict for all threads: what one thread marks, another does not restore."""
    notes, entered, left = node_notes(), threading.Barrier(2), threading.Event()

    def slow(x):
        entered.wait(10)
        assert left.wait(10)
        return x

    def fast(x):
        entered.wait(10)
        return x

    def trace(function):
        with FakeTensorMode(allow_non_fake_inputs=True):
            recomputed(function, torch.ones(1))

    before = dict(notes)
    threads = [threading.Thread(target=trace, args=(function,)) for function in (slow, fast)]
    for thread in threads:
        thread.start()
    threads[1].join()
    left.set()
    threads[0].join()
    assert dict(notes) == before
