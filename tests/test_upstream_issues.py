"""The public issues that a declared derivative runs into, by number: `fullgrad.Function` does what each asks for.

Next to each stands what torch's own autograd.Function makes of the same rules: the right result, or the one that the issue
reports, or an error. Those tests record which it is, and stay green when torch mends it.
"""

import gc
import threading
import warnings

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

from fullgrad import Function

# What torch makes of them changes with torch alone.
pytestmark = pytest.mark.long


def native(operator, without=()):
    """torch's own autograd.Function with the rules of an operator."""
    rules = {name: operator.__dict__[name] for name in ("forward", "setup_context", "jvp", "vmap") if name not in without}
    return type(operator.__name__, (torch.autograd.Function,), rules | {"backward": operator.__dict__["vjp"]})


def outcome(call, **known):
    """The known result that a call has, or the name of its error.

    It runs in a thread of its own: a trace that fails leaves its transforms on torch's stack, which each thread has for itself.
    """
    result = []

    def run():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = call()
        except Exception as error:
            result.append(f"raises {type(error).__name__}")
        else:
            result.extend(name for name, expected in known.items() if torch.allclose(value, expected))
        gc.collect()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0] if result else "another result"


@pytest.fixture
def note(request):
    """Write torch's result into the report."""
    return lambda name, found: request.node.user_properties.append((name, found))


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, backend=backend, fullgraph=True, **options)


class ZeroSin(Function):
    """sin with a derivative that is declared to be zero: a rule that is dropped shows at once."""

    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return torch.zeros_like(g)

    @staticmethod
    def jvp(ctx, t):
        return torch.zeros_like(t)

    @staticmethod
    def vmap(info, in_dims, x):
        return ZeroSin.apply(x), in_dims[0]


X = torch.tensor([0.3, -1.2, 2.5, 0.7])
T = torch.tensor([1.0, 2.0, -0.5, 3.0])


def tangent(operator):
    return lambda x, t: jvp(operator.apply, (x,), (t,))[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_jvp_keeps_rules_pytorch_192985(backend):
    """The declared jvp survives torch.func.jvp inside torch.compile.

    https://github.com/pytorch/pytorch/issues/192985
    """
    assert torch.equal(tangent(ZeroSin)(X, T), torch.zeros(4))
    assert torch.equal(compiled(tangent(ZeroSin), backend)(X, T), torch.zeros(4))
    assert torch.equal(compiled(lambda x, t: jvp(ZeroSin.apply, (x,), (t,))[0], backend)(X, T), X.sin())
    assert torch.equal(compiled(jacfwd(ZeroSin.apply), backend)(X), torch.zeros(4, 4))
    assert torch.equal(compiled(vmap(tangent(ZeroSin)), backend)(X, T), torch.zeros(4))


def test_compiled_jvp_in_torch_pytorch_192985(note):
    """torch 2.11 to 2.15 compiles the tangent of sin instead: cos(x) t.

    https://github.com/pytorch/pytorch/issues/192985
    """
    operator = native(ZeroSin)
    found = outcome(lambda: compiled(tangent(operator), "eager")(X, T), right=torch.zeros(4), dropped=X.cos() * T)
    note("torch", found)
    assert found in ("right", "dropped") or found.startswith("raises")


def gradient(operator):
    return grad(lambda x: operator.apply(x).sum())


class Batched(Function):
    """2 x, whose vmap rule gives 3 x and whose gradient is 5."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return 5 * g

    @staticmethod
    def jvp(ctx, t):
        return 5 * t

    @staticmethod
    def vmap(info, in_dims, x):
        return Batched.apply(1.5 * x), in_dims[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_grad_and_vmap_keep_rules_pytorch_193279(backend):
    """The declared backward survives torch.func.grad and vmap(grad) inside torch.compile, and so does the vmap rule.

    https://github.com/pytorch/pytorch/issues/193279
    """
    assert torch.equal(compiled(gradient(ZeroSin), backend)(X), torch.zeros(4))
    assert torch.equal(compiled(vmap(gradient(ZeroSin)), backend)(X), torch.zeros(4))
    assert torch.equal(compiled(jacrev(ZeroSin.apply), backend)(X), torch.zeros(4, 4))
    for function, expected in ((vmap(Batched.apply), 3 * X), (vmap(gradient(Batched)), torch.full((4,), 5.0))):
        assert_close(function(X), expected)
        assert_close(compiled(function, backend)(X), expected)


def test_compiled_grad_and_vmap_in_torch_pytorch_193279(note):
    """torch 2.13 compiles cos(x), the gradient of what forward does; later versions are right.

    https://github.com/pytorch/pytorch/issues/193279
    """
    operator = native(ZeroSin, without=("jvp",))
    operator.vmap = staticmethod(lambda info, in_dims, x: (operator.apply(x), in_dims[0]))
    for name, function in (("grad", gradient(operator)), ("vmap(grad)", vmap(gradient(operator)))):
        found = outcome(lambda f=function: compiled(f, "eager")(X), right=torch.zeros(4), dropped=X.cos())
        note(f"torch, {name}", found)
        assert found in ("right", "dropped") or found.startswith("raises")
    operator = native(Batched, without=("jvp",))
    operator.vmap = staticmethod(lambda info, in_dims, x: (operator.apply(1.5 * x), in_dims[0]))
    found = outcome(lambda: compiled(vmap(operator.apply), "eager")(X), right=3 * X, dropped=2 * X)
    note("torch, vmap rule", found)
    assert found in ("right", "dropped") or found.startswith("raises")


def test_vmap_compiles_pytorch_129845():
    """vmap of an operator compiles, also when an input requires a gradient.

    https://github.com/pytorch/pytorch/issues/129845
    """
    x = X.clone().requires_grad_()
    y = compiled(vmap(Batched.apply))(x)
    assert_close(y, 3 * X)
    assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full((4,), 7.5))


class Square(Function):
    """x * x with its true derivative."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 2 * x * t

    @staticmethod
    def vmap(info, in_dims, x):
        return Square.apply(x), in_dims[0]


THREE = torch.tensor(3.0, dtype=torch.float64)


def three_derivatives(operator, transforms):
    """The derivatives of x ** 4 as a square of a square, at 3: 108, 108, 72 are right."""
    function, results = (lambda x: operator.apply(operator.apply(x))), []
    for transform in transforms:
        function = transform(function)
        results.append(function(THREE))
    return torch.stack(results)


RIGHT = torch.tensor([108.0, 108.0, 72.0], dtype=torch.float64)


@pytest.mark.parametrize("transforms", [(a, b, c) for a in (jacfwd, jacrev) for b in (jacfwd, jacrev) for c in (jacfwd, jacrev)])
def test_nested_forward_mode_pytorch_197867(transforms):
    """Forward mode over forward mode differentiates the declared jvp: second and third derivatives are right in any nesting.

    https://github.com/pytorch/pytorch/issues/197867
    """
    assert_close(three_derivatives(Square, transforms), RIGHT)


def test_nested_jvp_pytorch_197867():
    """jvp of jvp of jvp, eager and compiled, differentiates the declared jvp.

    https://github.com/pytorch/pytorch/issues/197867
    """

    def directional(function):
        return lambda x: jvp(function, (x,), (torch.ones_like(x),))[1]

    assert_close(three_derivatives(Square, (directional,) * 3), RIGHT)
    function = directional(directional(lambda x: Square.apply(Square.apply(x))))
    assert_close(compiled(function, "eager")(THREE), RIGHT[1])


def test_nested_forward_mode_in_torch_pytorch_197867(note):
    """torch 2.11 to 2.15 gives 108, 0, 0.

    https://github.com/pytorch/pytorch/issues/197867
    """
    operator = native(Square)
    operator.vmap = staticmethod(lambda info, in_dims, x: (operator.apply(x), in_dims[0]))
    found = outcome(
        lambda: three_derivatives(operator, (jacfwd,) * 3), right=RIGHT, zero=torch.tensor([108.0, 0.0, 0.0], dtype=torch.float64)
    )
    note("torch", found)
    assert found in ("right", "zero") or found.startswith("raises")


class Rotate(Function):
    """Rotates pairs of neighboring features by an angle: linear in x, made of views, with plain numbers among its arguments."""

    @staticmethod
    def forward(x, angles, coefficient=1.0, heads=1):
        return _rotate(x, angles, coefficient, heads)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, angles, ctx.coefficient, ctx.heads = inputs
        ctx.save_for_backward(angles)
        ctx.save_for_forward(angles)

    @staticmethod
    def vjp(ctx, g):
        (angles,) = ctx.saved_tensors
        return Rotate.apply(g, angles, -ctx.coefficient, ctx.heads), None, None, None

    @staticmethod
    def jvp(ctx, t, *_):
        (angles,) = ctx.saved_tensors
        return Rotate.apply(t, angles, ctx.coefficient, ctx.heads)

    @staticmethod
    def vmap(info, in_dims, x, angles, coefficient, heads):
        assert in_dims[1] is None
        return Rotate.apply(x.movedim(in_dims[0], 0), angles, coefficient, heads), 0


def _rotate(x, angles, coefficient, heads):
    pairs = x.view(*x.shape[:-1], heads, -1, 2)
    cos, sin = (coefficient * angles).cos(), (coefficient * angles).sin()
    a, b = pairs.unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-3)


class Attention(torch.nn.Module):
    """Projects, rotates queries and keys in their heads, and multiplies them."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        torch.manual_seed(0)
        self.project = torch.nn.Linear(8, 16).double()
        self.register_buffer("angles", torch.linspace(0.1, 1, 2, dtype=torch.float64))

    def forward(self, x, coefficient):
        q, k = self.project(x).chunk(2, dim=-1)
        q, k = (self.function(t.contiguous(), self.angles, coefficient, 2) for t in (q, k))
        return (q.view(-1, 4) @ k.view(-1, 4).mT).softmax(-1)


# torch looks at .grad of what compiled autograd passes on.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.parametrize("how", ["eager", "aot_eager", "dynamic", "compiled_autograd"])
def test_compiled_backward_with_jvp_pytorch_180284(how):
    """A declared jvp does not disturb a compiled backward, with views and several plain arguments.

    https://github.com/pytorch/pytorch/issues/180284
    """
    module, plain = Attention(Rotate.apply), Attention(_rotate)
    backend = how if how in ("eager", "aot_eager") else "aot_eager"
    wrapped = compiled(module, backend, dynamic=True if how == "dynamic" else None)
    for length, coefficient in ((3, 1.0), (3, -0.5), (5, 0.25)):
        x = torch.linspace(-1, 1, length * 8, dtype=torch.float64).reshape(length, 8)
        y, expected = wrapped(x, coefficient), plain(x, coefficient)
        assert_close(y, expected)
        if how == "compiled_autograd":
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                y.cos().sum().backward()
        else:
            y.cos().sum().backward()
        expected.cos().sum().backward()
        for p, q in zip(module.parameters(), plain.parameters(), strict=True):
            assert_close(p.grad, q.grad)


def test_compiled_backward_with_jvp_in_torch_pytorch_180284(note):
    """torch 2.11 to 2.15 refuses the class that has a jvp ("Unsupported custom jvp"), or fails later.

    https://github.com/pytorch/pytorch/issues/180284
    """
    operator = native(Rotate)
    operator.backward = staticmethod(
        lambda ctx, g: (_rotate(g, ctx.saved_tensors[0], -ctx.coefficient, ctx.heads), None, None, None)
    )
    angles = torch.tensor([0.3, 0.8])

    def call():
        x = torch.linspace(-1, 1, 8).requires_grad_()
        y = compiled(lambda x: operator.apply(x, angles, 0.5, 2), "eager")(x)
        return torch.autograd.grad(y.cos().sum(), x)[0]

    x = torch.linspace(-1, 1, 8).requires_grad_()
    (expected,) = torch.autograd.grad(_rotate(x, angles, 0.5, 2).cos().sum(), x)
    found = outcome(call, right=expected)
    note("torch", found)
    assert found == "right" or found.startswith("raises")


def stopped(function):
    """x * stop(f(x)) + f(x), with stop by torch.no_grad."""

    def inner(x):
        with torch.no_grad():
            y = function(x)
        return x * y + function(x)

    return inner


NO_GRAD = {
    "jacrev(grad(f))": lambda f: jacrev(grad(f)),
    "jacrev(jacfwd(f))": lambda f: jacrev(jacfwd(f)),
    "grad(grad(f))": lambda f: grad(grad(f)),
    "jacfwd(grad(f))": lambda f: jacfwd(grad(f)),
    "jacfwd(jacfwd(f))": lambda f: jacfwd(jacfwd(f)),
    "jacrev(f)": jacrev,
    "jacfwd(f)": jacfwd,
}


@pytest.mark.parametrize("name", NO_GRAD)
def test_no_grad_in_nested_transforms_pytorch_128600(name):
    """torch.no_grad inside nested transforms means for an operator what it means for x * x, at every level.

    Reverse mode stops at it and forward mode does not, as torch documents: https://github.com/pytorch/pytorch/issues/128600
    """
    transform = NO_GRAD[name]
    assert_close(transform(stopped(Square.apply))(THREE), transform(stopped(lambda x: x * x))(THREE))


def test_no_grad_in_nested_transforms_in_torch_pytorch_128600(note):
    """torch 2.11 to 2.15 ignores no_grad at the outer levels of a custom Function.

    https://github.com/pytorch/pytorch/issues/128600
    """
    operator = native(Square)
    operator.vmap = staticmethod(lambda info, in_dims, x: (operator.apply(x), in_dims[0]))
    for name in ("jacrev(grad(f))", "jacrev(jacfwd(f))"):
        transform = NO_GRAD[name]
        right = transform(stopped(lambda x: x * x))(THREE)
        found = outcome(lambda t=transform: t(stopped(operator.apply))(THREE), right=right)
        note(f"torch, {name}", found)
        assert found in ("right", "another result") or found.startswith("raises")
