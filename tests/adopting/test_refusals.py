"""Functions broken on purpose, each in one way, with what is promised for them."""

import contextlib
import warnings

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad._engine.linearity import _differs
from tests.adopting import oracle
from tests.adopting.functions import LooksAtNumbers, SavesInput, SavesIntermediate, X


def total(f):
    return lambda x: f(x).sum()


def function(forward, backward=lambda ctx, g: g, name="Broken"):
    """A new class with these two rules."""
    return type(name, (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def changes_input(ctx, x):
    return x.mul_(2)


def changes_and_says_so(ctx, x):
    ctx.mark_dirty(x)
    return x.mul_(2)


@pytest.mark.parametrize("forward", [changes_input, changes_and_says_so])
@pytest.mark.parametrize("transform", [grad, lambda f: vmap(grad(f)), hessian])
def test_a_forward_that_changes_its_input_raises(forward, transform):
    """The error names the class, whether its forward calls mark_dirty or not."""
    adopted = fullgrad.adopt(function(forward))
    with pytest.raises(NotImplementedError, match=r"Broken.forward changes an input in place"):
        transform(lambda x: adopted(x).sum())(torch.ones(3, 2))


def clipped(ctx, g):
    return g.clamp(-1, 1)


def normalized(ctx, g):
    return g / g.norm()


@pytest.mark.parametrize("backward", [clipped, normalized])
def test_an_identity_with_another_gradient_has_forward_mode(backward):
    """With the identity as value reverse mode is the map, per sample under vmap, and forward mode the identity."""
    adopted = fullgrad.adopt(function(lambda ctx, x: x.clone(), backward))
    x, t = 3 * torch.randn(4, 3), torch.randn(4, 3)
    expected = torch.stack([backward(None, 2 * s) for s in x])
    assert_close(vmap(grad(lambda x: (adopted(x) ** 2).sum()))(x), expected)
    assert_close(jvp(adopted, (x,), (t,)), (x, t))
    assert_close(vmap(lambda x, t: jvp(adopted, (x,), (t,))[1])(x, t), t)


@pytest.mark.parametrize("backward", [clipped, normalized, lambda ctx, g: g.abs(), lambda ctx, g: g.sign()])
def test_a_backward_that_is_not_linear(backward):
    """With another value reverse mode is the class's own, and forward mode raises and says why."""
    adopted = fullgrad.adopt(function(lambda ctx, x: x.round(), backward))
    assert_close(grad(lambda x: (3 * adopted(x)).sum())(X), backward(None, torch.full_like(X, 3.0)))
    with pytest.raises(NotImplementedError, match="Broken has no forward mode: its backward is not linear"):
        jvp(adopted, (X,), (X,))


def test_a_backward_that_is_linear_for_some_arguments():
    """The verdict on linearity is that of the class with its constant arguments, not that of the first call."""

    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.round()

    adopted = fullgrad.adopt(function(forward, lambda ctx, g: (g if ctx.limit is None else g.clamp(-ctx.limit, ctx.limit), None)))
    assert_close(jvp(lambda x: adopted(x, None), (X,), (X,))[1], X)
    with pytest.raises(NotImplementedError, match="is not linear"):
        jvp(lambda x: adopted(x, 1.0), (X,), (X,))


def test_a_class_keeps_few_verdicts():
    """Constants that change at every call do not add up."""
    from fullgrad.adoption._linearity import _verdicts

    cls = function(lambda ctx, x, step: x.clone(), lambda ctx, g: (g, None))
    for step in range(200):
        jvp(lambda x, step=step: fullgrad.adopt(cls)(x, step), (X,), (X,))
    assert len(_verdicts[cls]) <= 64


def test_once_differentiable():
    """The first derivative is right under vmap too, with numpy in it; the second and forward mode raise."""

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy().round())

    @once_differentiable
    def backward(ctx, g):
        return torch.from_numpy(g.numpy() * ctx.saved_tensors[0].numpy())

    adopted = fullgrad.adopt(function(forward, backward))
    assert_close(grad(total(adopted))(X), X)
    with pytest.warns(UserWarning, match="Broken runs sample by sample"):
        assert_close(vmap(grad(total(adopted)))(oracle.batch(X)), oracle.batch(X))
    for second in (jacrev(grad(total(adopted))), hessian(total(adopted)), lambda x: jvp(adopted, (x,), (x,))):
        with pytest.raises((RuntimeError, NotImplementedError), match="once_differentiable"):
            second(X)


def test_code_that_looks_at_numbers():
    """One warning for each class, which says why; allow_loop=False raises instead."""
    cls = type("Looks", (LooksAtNumbers,), {})
    samples = oracle.batch(X)
    with pytest.raises(NotImplementedError, match=r"Looks cannot be batched, and allow_loop=False.*item"):
        vmap(fullgrad.adopt(cls, allow_loop=False))(samples)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            vmap(grad(total(fullgrad.adopt(cls))))(samples)
    assert [str(w.message)[:42] for w in caught] == ["Looks runs sample by sample under vmap, as"]


@pytest.mark.parametrize("backward", [lambda ctx, g: (g, g), lambda ctx, g: g.sum(), lambda ctx, g: g * torch.ones(7)])
def test_a_wrong_backward_is_no_code_that_cannot_be_batched(backward):
    """It raises under vmap without a warning that it runs sample by sample, which it does not."""
    f = fullgrad.adopt(function(lambda ctx, x: x * 2, backward))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match=r"Broken.backward returned|size of tensor"):
            vmap(grad(total(f)))(oracle.batch(X))


def test_outputs_that_differ_between_samples():
    """A number or a shape that the caller sees has no value for a whole batch."""
    for forward in (lambda ctx, x: (x.clone(), x.sum().item()), lambda ctx, x: x[: int(x.abs().sum())]):
        adopted = fullgrad.adopt(function(forward))
        with pytest.raises(NotImplementedError, match="something else for each sample"):
            vmap(adopted)(oracle.batch(X))


class Holder:
    """An object."""

    def __init__(self, tensor):
        self.tensor = tensor


def test_a_tensor_hidden_in_ctx():
    """An object or a closure in ctx that holds an input raises: its second derivative would silently be lost."""

    def in_object(ctx, x):
        ctx.held = Holder(x)
        return x.round()

    def in_closure(ctx, x):
        ctx.square = lambda: x * x
        return x.round()

    for forward in (in_object, in_closure):
        adopted = fullgrad.adopt(function(forward))
        for transform in (grad, lambda f: vmap(grad(f))):
            with pytest.raises(NotImplementedError, match=r"Broken.forward keeps a tensor inside a \w+ in ctx"):
                transform(total(adopted))(X[None].expand(2, 4))


def test_a_tensor_hidden_in_an_argument():
    """A constant may be; a tensor of a transform raises."""
    adopted = fullgrad.adopt(function(lambda ctx, x, held: x * held.tensor, lambda ctx, g: (g, None)))
    assert_close(grad(lambda x: adopted(x, Holder(X)).sum())(X), torch.ones_like(X))
    with pytest.raises(NotImplementedError, match="Broken got a Holder that holds a batched or differentiated tensor"):
        vmap(lambda x, s: adopted(x, Holder(s)))(X, X)


def closes_over(s):
    """A class that multiplies by a tensor that is not an argument."""
    return fullgrad.adopt(function(lambda ctx, x: x * s, lambda ctx, g: g * s))


def returns(s):
    """An adopted class whose value is a tensor that it closes over."""
    return fullgrad.adopt(function(lambda ctx, x: s))


def product(x, s):
    """x times s, which is no argument of the adopted class."""
    return closes_over(s)(x)


def value(s):
    return returns(s)(X)


def test_a_tensor_that_is_no_argument():
    """Such a tensor is a constant, as in eager autograd, and may be batched where the arguments are."""
    y, zeros = X.flip(0), torch.zeros_like(X)
    assert_close(grad(lambda s: product(X, s).sum())(y), zeros)
    assert_close(grad(lambda s: value(s * 2).sum())(X), zeros)
    assert_close(vmap(product)(X, y), X * y)
    assert_close(grad(lambda x: vmap(product)(x, y).sum())(X), y)


arguments_batched, other_batched = (0, None), (None, 0)
BATCHED_ALONE = {
    "as a factor": lambda: vmap(product, other_batched)(X, X),
    "as the value": lambda: vmap(value)(X),
    "as the value, in a gradient": lambda: vmap(grad(total(value)))(X[None]),
    "in a gradient of a batched argument": lambda: vmap(grad(product))(X, X),
    "outside of a batch of arguments": lambda: vmap(vmap(product, arguments_batched), other_batched)(X, X),
    "inside of a batch of arguments": lambda: vmap(vmap(product, other_batched), arguments_batched)(X, X),
    "between a gradient and a batch": lambda: grad(lambda x: vmap(vmap(product, arguments_batched), other_batched)(x, X).sum())(
        X
    ),
    "outside of a gradient of a batch": lambda: vmap(lambda s: grad(lambda x: vmap(product, arguments_batched)(x, s).sum())(X))(
        X
    ),
}


@pytest.mark.short
@pytest.mark.parametrize("call", BATCHED_ALONE.values(), ids=BATCHED_ALONE)
def test_a_tensor_that_is_no_argument_and_is_batched_alone_raises(call):
    """The level of the batch is unknown; a batch of the same size is not mistaken for it."""
    with pytest.raises(NotImplementedError, match="uses a batched tensor that is none of its arguments"):
        call()


def test_too_few_and_too_many_gradients():
    """Wrong numbers of gradients are errors, as in eager autograd."""
    adopted = fullgrad.adopt(function(lambda ctx, x, y: x + y, lambda ctx, g: g))
    with pytest.raises(RuntimeError, match=r"Broken.backward returned 1 gradients for 2 inputs"):
        grad(lambda x: adopted(x, X).sum())(X)


def test_tensors_in_a_container_that_is_returned():
    """Autograd does not see tensors in a returned container."""
    adopted = fullgrad.adopt(function(lambda ctx, x: [x + 1]))
    with pytest.raises(NotImplementedError, match="returns tensors in a container"):
        vmap(lambda x: adopted(x)[0])(X)


def test_strict_refuses_derivatives_of_a_saved_intermediate():
    """A second derivative that would take a saved intermediate for a constant raises, and nothing else does."""
    lax, strict = fullgrad.adopt(SavesIntermediate), fullgrad.adopt(SavesIntermediate, strict=True)
    assert_close(grad(total(strict))(X), grad(total(lax))(X))
    assert_close(vmap(grad(total(strict)))(oracle.batch(X)), vmap(grad(total(lax)))(oracle.batch(X)))
    assert_close(jvp(strict, (X,), (X,)), jvp(lax, (X,), (X,)))
    push = lambda f: grad(lambda x: jvp(f, (x,), (x,))[1])  # noqa: E731
    for second in (lambda f: jacrev(grad(f)), hessian, lambda f: vmap(hessian(f)), push):
        with pytest.raises(RuntimeError, match=r"SavesIntermediate.backward was differentiated, but its forward saves"):
            second(total(strict))(X[None])
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(strict(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="saves an intermediate"):
        g.sum().backward()


def test_strict_leaves_what_is_right_alone():
    """A mask is not a lost derivative, nor is a constant."""

    def forward(ctx, x):
        ctx.save_for_backward(x, x > 0, torch.ones(4, dtype=x.dtype))
        return x.round()

    def backward(ctx, g):
        x, mask, ones = ctx.saved_tensors
        return g * x * x * mask * ones

    for cls in (SavesInput, function(forward, backward)):
        assert_close(hessian(total(fullgrad.adopt(cls, strict=True)))(X), hessian(total(fullgrad.adopt(cls)))(X))


def test_adopt_refuses_other_things():
    """The error says what `adopt` got."""
    with pytest.raises(TypeError, match=r"adopt: `cls` must be a subclass of .*Function or an operator of torch.library, got"):
        fullgrad.adopt(torch.round)


def test_roundings_are_no_difference():
    """Values differ relative to the largest number; elements that are not finite in either are left out."""
    inf, nan = float("inf"), float("nan")
    for size in (1e-4, 1.0, 1e4):
        expected = size * torch.tensor([1.0, 0.5, 0.0])
        for error, differs in ((0.0, False), (1e-5, False), (1e-2, True)):
            assert _differs(expected + size * torch.tensor([0.0, 0.0, error]), expected, torch.float32) is differs
    for found, expected in (([inf, 1.0], [2.0, 1.0]), ([2.0, 1.0], [nan, 1.0]), ([nan, 1.0], [inf, 1.0]), ([nan], [1.0])):
        assert not _differs(torch.tensor(found), torch.tensor(expected), torch.float32)
    assert _differs(torch.tensor([inf, 2.0]), torch.tensor([inf, 1.0]), torch.float32)


def test_an_error_that_passes_is_no_verdict():
    """A class whose backward failed once, for want of memory say, has forward mode afterwards."""
    calls = []

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            calls.append(g)
            if len(calls) == 1:
                raise torch.OutOfMemoryError("once")
            return g * ctx.saved_tensors[0].cos()

    f, x = fullgrad.adopt(Sine), torch.ones(3)
    with contextlib.suppress(NotImplementedError):
        torch.func.jvp(f, (x,), (x,))
    torch.testing.assert_close(torch.func.jvp(f, (x,), (x,))[1], x.cos())
