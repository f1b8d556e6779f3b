"""The context: which classes it adopts, where, and that it leaves nothing behind."""

import asyncio
import functools
import gc
import itertools
import sys
import threading
import types
import weakref
from typing import Any

import pytest
import torch
from torch.autograd import Function, forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vmap
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import fullgrad
from fullgrad._dispatch import DISPATCH
from fullgrad.adoption._tensors import separate
from tests.adopting import operators_of_packages, oracle
from tests.adopting.functions import SavesInput, SavesIntermediate, X

captured = SavesInput.apply  # as packages keep it
BASE: Any = torch.autograd.function._SingleLevelFunction
# What a scope exchanges: the code of `apply`, or on torch 2.15, whose `apply` is C code, of what that calls.
NAMES = ("_bind_default_args", "_call_custom_function_call")
APPLY = getattr(Function.__dict__["apply"], "__func__", None)
EXCHANGED = [APPLY] if APPLY else [getattr(torch.autograd.function, name) for name in NAMES]


def parts():
    return [function.__code__ for function in EXCHANGED] + [BASE.__dict__["setup_context"]]


BEFORE = parts()


def per_sample(x):
    return vmap(grad(lambda x: captured(x).sum()))(x)


def works():
    """Whether the class is adopted here."""
    try:
        per_sample(X[None])
    except RuntimeError:
        return False
    return True


@pytest.fixture(autouse=True)
def _as_before():
    """Check after each test that torch's state is unchanged."""
    assert all(a is b for a, b in zip(parts(), BEFORE, strict=True))
    yield
    gc.collect()
    assert all(a is b for a, b in zip(parts(), BEFORE, strict=True))
    assert not works()


def test_a_captured_apply():
    """An ``apply`` that a package keeps in a variable is adopted inside the context, and not outside."""
    assert not works()
    with fullgrad.adopting():
        assert_close(per_sample(X[None])[0], 1 / (1 + X * X))


def test_an_unchanged_model_has_every_derivative():
    """An unchanged model has per-sample gradients, Hessians, and forward mode without torch.func."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3, dtype=X.dtype)

        def forward(self, x):
            return captured(self.linear(x)).sum()

    model, samples = Model(), oracle.batch(X)
    parameters = dict(model.named_parameters())
    with fullgrad.adopting():
        found = vmap(grad(lambda p, x: functional_call(model, p, (x,))), in_dims=(None, 0))(parameters, samples)
        hessian(lambda x: functional_call(model, parameters, (x,)))(X)
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(model(forward_ad.make_dual(X, X))).tangent is not None
    for i, x in enumerate(samples):
        expected = torch.autograd.grad(model(x), list(parameters.values()))
        assert_close([g[i] for g in found.values()], list(expected))


def test_nesting_and_exceptions():
    """Contexts nest, and end also by an exception."""
    with fullgrad.adopting():
        with pytest.raises(KeyError), fullgrad.adopting():
            raise KeyError
        assert works()


def test_the_context_decorates_functions():
    """The context decorates functions."""
    assert fullgrad.adopting()(works)()


async def coroutine():
    return works()


def generator():
    yield works()


async def asynchronous_generator():
    yield works()


@pytest.mark.parametrize("context", [fullgrad.adopting, fullgrad.completing])
@pytest.mark.parametrize("suspends", [coroutine, generator, asynchronous_generator])
def test_what_runs_later_is_not_decorated(context, suspends):
    """A coroutine or a generator would run outside of the context, also one that a function returns."""

    class Object:
        __call__ = staticmethod(suspends)

    for function in (suspends, functools.partial(suspends), Object()):
        with pytest.raises(TypeError, match=rf"{context.__name__} decorates functions .*: open it inside"):
            context()(function)
    with pytest.raises(TypeError, match=rf"got {suspends.__name__}, a generator or a coroutine"):
        context()(lambda: suspends())()


def test_a_context_inside_of_a_coroutine():
    """It is that of the task, from step to step."""

    async def task():
        with fullgrad.adopting():
            await asyncio.sleep(0)
            return works()

    async def both():
        return await asyncio.gather(task(), coroutine(), task())

    assert asyncio.run(both()) == [True, False, True]


def left_to_the_collector(context):
    """A context in a generator that only garbage collection ends."""

    def opened():
        with context():
            yield

    own = [opened()]
    next(own[0])
    own.append(own)


@pytest.mark.parametrize("context", [fullgrad.adopting, fullgrad.completing])
def test_garbage_collection_in_any_line_of_a_context(context):
    """The collector may close one context while the same thread opens or closes another one, which stays right."""
    module = sys.modules[("fullgrad.adoption._scope", "fullgrad.completion._completing")[context is fullgrad.completing]]
    names = {"scope", "_intercept", "__enter__", "__exit__", "_change"}
    at, count, found = 0, 0, []

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename != module.__file__ or frame.f_code.co_name not in names:
            return None
        if event == "line":
            if count == at:
                gc.collect()
            count += 1
        return trace

    def run():
        nonlocal at, count
        for at in itertools.count():
            count = 0
            left_to_the_collector(context)
            sys.settrace(trace)
            with context():
                inside = works() if context is fullgrad.adopting else module._state.is_inside
            sys.settrace(None)
            gc.collect()
            outside = works() if context is fullgrad.adopting else module._state.is_inside
            found.append((inside, outside))
            if count <= at:
                break

    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive(), f"it waits forever, garbage is collected at line event {at}"
    finally:
        gc.enable()
    assert at > 5
    assert set(found) == {(True, False)}


NAMESPACE = operators_of_packages.rms_norm._qualname.partition("::")[0]


def test_a_context_may_be_limited_to_modules_or_classes():
    """A context may be limited to some modules or classes; the innermost one that names a class decides."""
    here = sys.modules[SavesInput.__module__]
    for packages, expected in [
        ((here,), True),
        (("tests",), True),
        (("tests.adopting.functions",), True),
        (("tests.adopting.functions.SavesInput",), True),
        ((SavesInput,), True),
        (("tests.adopting.functions.SavesOutput",), False),
        ((types,), False),
    ]:
        with fullgrad.adopting(*packages):
            assert works() is expected
        with fullgrad.adopting(exclude=packages):
            assert works() is not expected
    with fullgrad.adopting(exclude=SavesInput):
        assert not works()
        with fullgrad.adopting("tests"):
            assert works()


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("numpi", "'numpy'"),
        ("tests.adopting.functons", "'tests.adopting.functions'"),
        ("tests.adopting.functions.SaveInput", "'tests.adopting.functions.SavesInput'"),
        (f"{NAMESPACE}x", f"'{NAMESPACE}'"),
        ("nothing_like_it", ""),
    ],
)
def test_a_name_of_nothing_is_refused_when_the_context_is_opened(name, close):
    """A typo would adopt nothing, or leave nothing alone, without an error."""
    message = f"adopting: '{name}' is no module, class or namespace of operators.*{f'did you mean {close}' if close else '.'}"
    for context in (fullgrad.adopting(name), fullgrad.adopting(exclude=name), fullgrad.adopting("tests", name)):
        with pytest.raises(ValueError, match=message), context:
            pass
        with pytest.raises(ValueError, match=message):
            context(works)()
    assert not works()
    with pytest.raises(TypeError, match="a module, a class or a name must be given, got a value of type function"):
        fullgrad.adopting(works)


def test_what_is_not_imported_yet_may_be_named():
    """By the name of an installed package, of which nothing is imported; and a class by the module that it names."""

    class Elsewhere(torch.autograd.Function):
        __module__ = "named.elsewhere"

    before = {name for name in ("this", "xml.sax.saxutils") if name in sys.modules}
    for name in ("this", "xml.sax.saxutils", NAMESPACE, "named", "named.elsewhere", Elsewhere):
        with fullgrad.adopting(name), fullgrad.adopting(exclude=[name]):
            pass
    assert {name for name in ("this", "xml.sax.saxutils") if name in sys.modules} == before
    with fullgrad.adopting(f"{Elsewhere.__module__}.{Elsewhere.__qualname__}"):
        pass


def test_options_of_adopt_work_in_the_context():
    """The options of `adopt` work in the context."""
    with fullgrad.adopting(strict=True):
        with pytest.raises(RuntimeError, match="saves an intermediate"):
            hessian(lambda x: SavesIntermediate.apply(x).sum())(X)
        x = X.clone().requires_grad_()
        (g,) = torch.autograd.grad(SavesIntermediate.apply(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="saves an intermediate"):
            g.sum().backward()


def test_a_thread_is_not_in_the_context_of_another():
    """A thread is not in the context of another, and may open its own."""
    found = {}

    def other(name):
        found[name] = works()
        with fullgrad.adopting():
            found[f"{name} inside"] = works()

    with fullgrad.adopting():
        thread = threading.Thread(target=other, args=("other",))
        thread.start()
        thread.join()
        assert works()
    assert found == {"other": False, "other inside": True}


def test_contexts_open_and_close_in_many_threads_at_once():
    """Contexts may open and close in many threads at once."""
    wrong = []

    def run():
        for _ in range(50):
            with fullgrad.adopting():
                if not works():
                    wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_suspended_generators_close_their_contexts_in_any_order():
    """Generators that are left in the middle close their contexts, in any order."""

    def generator():
        with fullgrad.adopting():
            yield 1
            yield 2

    g = generator()
    next(g)
    with fullgrad.adopting():
        g.close()
        assert works()
    assert not works()
    g = generator()
    next(g)
    del g
    gc.collect()
    assert not works()


def test_a_generator_that_another_thread_closes():
    """The context ends in the thread where it was opened."""

    def generator():
        with fullgrad.adopting():
            yield 1

    g = generator()
    next(g)
    thread = threading.Thread(target=g.close)
    thread.start()
    thread.join()
    assert not works()


def test_asynchronous_tasks_have_their_own_contexts():
    """Asynchronous tasks have their own contexts."""
    found = []

    async def inside():
        with fullgrad.adopting():
            await asyncio.sleep(0.01)
            found.append(works())

    async def outside():
        await asyncio.sleep(0.005)
        found.append(works())

    async def both():
        await asyncio.gather(inside(), outside())

    asyncio.run(both())
    assert found == [False, True]


def test_eager_code_is_torchs():
    """Without a transform a class runs as without the context: its own graph node, its own double backward."""
    with fullgrad.adopting():
        x = X.clone().requires_grad_()
        y = captured(x)
        assert type(y.grad_fn).__name__ == "SavesInputBackward"
        assert_close(torch.autograd.grad(y.sum(), x)[0], 1 / (1 + X * X))


def test_torchs_own_functions_are_left_alone():
    """torch's own Functions, such as that of torch.utils.checkpoint, and fullgrad's are not adopted."""
    x = X.clone().requires_grad_()
    with fullgrad.adopting():
        y = checkpoint(captured, x, use_reentrant=True)
        assert type(y.grad_fn).__name__ == "CheckpointFunctionBackward"
        with pytest.raises(RuntimeError, match="setup_context"):
            grad(lambda x: checkpoint(torch.sin, x, use_reentrant=True).sum())(X)
        assert_close(vmap(grad(lambda x: fullgrad.round(x) ** 2))(X), 2 * X.round())


def test_forward_runs_once():
    """A counter counts once per call, and the backward sees the same draw."""
    calls = []

    class Draws(Function):
        @staticmethod
        def forward(ctx, x):
            calls.append(1)
            ctx.noise = torch.rand_like(x)
            return x + ctx.noise

        @staticmethod
        def backward(ctx, g):
            return g * ctx.noise

    draws = fullgrad.adopt(Draws)
    for transform in (
        lambda f: vmap(f, randomness="different"),
        lambda f: vmap(grad(lambda x: f(x).sum()), randomness="different"),
        lambda f: hessian(lambda x: f(x).sum()),
        lambda f: lambda x: jvp(f, (x,), (x,)),
    ):
        calls.clear()
        transform(draws)(torch.ones(3, 2))
        assert len(calls) == 1

    def noise_and_gradient(x):
        y, pull = torch.func.vjp(draws, x)
        return y - x, pull(torch.ones_like(x))[0]

    for randomness, same in (("same", True), ("different", False)):
        noise, g = vmap(noise_and_gradient, randomness=randomness)(torch.ones(3, 2))
        assert_close(noise, g)
        assert torch.equal(noise[0], noise[1]) is same
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(draws)(torch.ones(3, 2))


def test_the_same_tensor_twice():
    """Two inputs that are one object have a gradient each."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, 10 * g * x

    product = fullgrad.adopt(Product)
    assert_close(grad(lambda x: product(x, x).sum())(X), 11 * X)
    assert_close(hessian(lambda x: product(x, x).sum())(X), torch.diag(torch.full_like(X, 11)))


def test_classes_made_at_run_time_are_collected():
    """Nothing keeps a class alive that was adopted."""

    def make():
        class Made(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return Made.scale * x

            @staticmethod
            def backward(ctx, g):
                return g * ctx.saved_tensors[0]

        Made.scale = 2.0
        vmap(grad(fullgrad.adopt(Made)))(X)
        jvp(fullgrad.adopt(Made), (X,), (X,))
        with fullgrad.adopting():
            vmap(grad(Made.apply))(X)
        return weakref.ref(Made)

    classes = [make() for _ in range(20)]
    gc.collect()
    assert not any(ref() for ref in classes)


@pytest.mark.long
def test_many_calls_leave_nothing():
    """10,000 calls, under transforms and not, inside one context and many."""
    with fullgrad.adopting():
        per_sample(X[None])
        gc.collect()
        before = len(gc.get_objects())
        for i in range(10_000):
            if i % 10 == 0:
                per_sample(X[None])
            captured(X)
            with fullgrad.adopting(SavesInput):
                pass
        gc.collect()
        assert len(gc.get_objects()) - before < 200


def test_subclasses_of_each_other():
    """A class and its subclass each keep their own rules."""

    class Twice(SavesInput):
        @staticmethod
        def backward(ctx, g):
            return 2 * SavesInput.backward(ctx, g)

    class WithSetup(SavesInput):
        @staticmethod
        def forward(x):
            return x.round()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

    one = grad(lambda x: fullgrad.adopt(SavesInput)(x).sum())(X)
    assert_close(grad(lambda x: fullgrad.adopt(Twice)(x).sum())(X), 2 * one)
    assert_close(grad(lambda x: fullgrad.adopt(WithSetup)(x).sum())(X), one)
    assert fullgrad.adopt(Twice) is fullgrad.adopt(Twice)


def test_no_grad_and_inference():
    """Inside a transform, no_grad means what it means for torch's own operators."""
    adopted = fullgrad.adopt(SavesInput)
    assert_close(grad(lambda x: (torch.no_grad()(adopted)(x) * x).sum())(X), (X > 0).to(X.dtype))
    with torch.inference_mode():
        assert_close(vmap(adopted)(X), (X > 0).to(X.dtype))


def plain(x):
    return captured(x * x) * SavesIntermediate.apply(x.sin())


library = torch.library.Library("fullgrad_adopting", "FRAGMENT")
library.define("plain(Tensor x) -> Tensor")
library.impl("plain", plain, "CompositeImplicitAutograd")


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.skipif(DISPATCH == "fallback", reason="torch raises there for every custom Function")
def test_inside_a_composite_operator():
    """A class that an operator of torch.library calls equals the code itself in every nesting."""
    composite = torch.ops.fullgrad_adopting.plain
    total = lambda f: lambda x: f(x).sum()  # noqa: E731
    push = lambda f: lambda x: jvp(f, (x,), (x.cos(),))[1]  # noqa: E731
    for transform in (
        lambda f: grad(total(f)),
        push,
        lambda f: push(grad(total(f))),
        lambda f: grad(total(push(f))),
        lambda f: hessian(total(f)),
        lambda f: jacfwd(jacfwd(f)),
        lambda f: lambda x: vmap(hessian(total(f)))(oracle.batch(x)),
        lambda f: jacrev(jacfwd(jacrev(total(f)))),
    ):
        with fullgrad.adopting():
            assert_close(transform(composite)(X), transform(plain)(X))


def test_linearize_of_in_place_code():
    """In-place operations on temporaries, in either rule: each call of the linear map is right, not the first alone."""

    class InPlace(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.sin()
            y *= 2
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            slope = x * x
            slope += y
            return g * slope

    adopted = fullgrad.adopt(InPlace)
    y, linear = linearize(adopted, X)
    assert_close(y, 2 * X.sin())
    for t in (X.cos(), X, X.cos()):
        assert_close(linear(t), t * (X * X + 2 * X.sin()))


def test_a_result_is_copied_only_where_it_is_an_input():
    """A new tensor stays where it is; an input and a part of one get memory of their own."""
    x = torch.ones(4)
    new = x + 1
    assert separate("F", new, [None, x]).data_ptr() == new.data_ptr()
    for out in (x, x[1:], x.view(2, 2), x.detach()):
        assert separate("F", out, [None, x]).untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
