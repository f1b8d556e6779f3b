"""Kinds of classes that packages have and that once failed, rewritten as small as possible."""

import warnings
from typing import Any

import pytest
import torch
from torch.autograd import Function, forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import fullgrad
from tests.adopting import oracle
from tests.adopting.functions import X, Y
from tests.adopting.idioms import Recursion


def total(f):
    return lambda *args: f(*args).sum()


def push(f):
    """The tangent of a function of one vector, in a direction that depends on it."""
    return lambda x: jvp(f, (x,), (x.cos(),))[1]


def function(forward, backward=lambda ctx, g: g, name="Kind") -> Any:
    """A new class with these two rules."""
    return type(name, (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


# --- A backward that is special where the gradient is 0 --------------------------------------------------------------------


def saves(ctx, x):
    ctx.save_for_backward(x)
    return x.round()


def leaves_zeros_out(ctx, g):
    return torch.where(g == 0, 0, g * ctx.saved_tensors[0].sin())


def skips_zeros(ctx, g):
    return g * ctx.saved_tensors[0].sin() if g.any() else torch.zeros_like(g)


def signs(ctx, g):
    return g.abs() * g.sign() * ctx.saved_tensors[0].sin()


def divides_by_the_largest(ctx, g):
    size = g.abs().amax()
    return g / size * size * ctx.saved_tensors[0].sin()


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
@pytest.mark.parametrize("backward", [leaves_zeros_out, skips_zeros, signs, divides_by_the_largest])
def test_a_linear_backward_that_is_special_at_zero(backward):
    """Forward mode is the transpose of the backward at other gradients, alone, in batches and in every Hessian."""
    f = fullgrad.adopt(function(saves, backward))
    scalar = lambda x: (f(x) * Y + 1).sin().sum()  # noqa: E731
    assert_close(push(f)(X), X.cos() * X.sin())
    assert_close(vmap(push(f))(oracle.batch(X)), oracle.batch(X).cos() * oracle.batch(X).sin())
    assert_close(jacfwd(f)(X), torch.diag(X.sin()))
    assert_close(jacfwd(jacfwd(scalar))(X), jacrev(jacrev(scalar))(X))
    assert_close(hessian(scalar)(X), jacrev(jacrev(scalar))(X))
    assert_close(grad(total(push(f)))(X), X.cos() ** 2 - X.sin() ** 2)
    with forward_ad.dual_level():
        assert_close(forward_ad.unpack_dual(f(forward_ad.make_dual(X, Y))).tangent, Y * X.sin())


@pytest.mark.parametrize("backward", [lambda ctx, g: torch.where(g == 0, 1, g), lambda ctx, g: g if g.any() else g + 1])
def test_a_backward_that_is_not_zero_at_zero(backward):
    """A backward that is not 0 at 0 is recognized as not linear."""
    f = fullgrad.adopt(function(saves, backward))
    with pytest.raises(NotImplementedError, match="is not linear"):
        push(f)(X)


# --- Attributes of tensors -------------------------------------------------------------------------------------------------


def hard(ctx, x):
    y = x.round()
    y.soft, y.middle, y.kind, y.both = x, x.sin(), "hard", {"pair": (x, 2.0)}
    return y


def test_what_a_forward_sets_on_an_output():
    """The caller finds the attribute: an input as given, with its derivative, another tensor as a constant."""
    cls = function(hard)
    f = fullgrad.adopt(cls)

    def uses(apply):
        def total(x):
            y = apply(x)
            assert y.kind == "hard"
            assert y.both["pair"][1] == 2.0
            return (y * y.soft + y.middle * y + y.both["pair"][0] ** 2).sum()

        return total

    samples = oracle.batch(X)
    assert_close(grad(uses(f))(X), oracle.gradient(uses(cls.apply), X))
    assert_close(jvp(uses(f), (X,), (Y,))[1], oracle.gradient(uses(cls.apply), X) @ Y)
    for second in (hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacfwd(f))):
        assert_close(second(uses(f))(X), oracle.hessian(uses(cls.apply), X))
    assert_close(vmap(uses(f))(samples), torch.stack([uses(cls.apply)(x) for x in samples]))
    assert_close(vmap(grad(uses(f)))(samples), torch.stack([oracle.gradient(uses(cls.apply), x) for x in samples]))


def test_what_a_forward_sets_on_one_of_several_outputs_and_on_an_input():
    """Each tensor has its own attributes; an output may refer to another."""

    def forward(ctx, x):
        x.seen, y, z = "seen", x.round(), x.floor()
        z.other = y
        return y, z

    f = fullgrad.adopt(function(forward, lambda ctx, g, h: g + h))

    def uses(x):
        y, z = f(x)
        assert z.other is y
        assert x.seen == "seen"
        assert not hasattr(y, "other")
        return (z.other * z).sum()

    assert_close(grad(uses)(X), X.round() + X.floor())
    assert_close(vmap(grad(uses))(oracle.batch(X)), oracle.batch(X).round() + oracle.batch(X).floor())


def test_what_a_caller_sets_on_an_input():
    """The class finds the attribute."""

    def forward(ctx, x):
        return x * getattr(x, "scale", 1.0)

    f = fullgrad.adopt(function(forward))

    def marked(x):
        x = x.clone()
        x.scale = 3.0
        return f(x)

    assert_close(vmap(marked)(oracle.batch(X)), 3 * oracle.batch(X))
    assert_close(push(marked)(X), X.cos())
    assert_close(jvp(marked, (X,), (Y,))[0], 3 * X)


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_a_number_on_an_output_that_differs_between_samples():
    """Such a number has no value for a whole batch."""

    def forward(ctx, x):
        y = x.round()
        y.largest = x.max().item()
        return y

    f = fullgrad.adopt(function(forward))
    assert vmap(lambda _: f(X).largest * torch.ones((), dtype=X.dtype))(torch.ones(2))[0] == X.max()
    with pytest.raises(NotImplementedError, match="something else for each sample"):
        vmap(f)(oracle.batch(X))


def test_attributes_are_named_where_compiled_code_would_lose_them():
    """Compiled code that would lose attributes raises, and names them."""
    cls = function(hard)
    compiled = torch.compile(grad(lambda x: cls.apply(x).sum()), backend="aot_eager", fullgraph=True)
    with fullgrad.adopting(), pytest.raises(Exception, match=r"Kind.forward sets 'soft', 'middle', 'kind', 'both' on a tensor"):
        compiled(X)


# --- Who is differentiated -------------------------------------------------------------------------------------------------


def told(transform):
    """Records what the forward and the backward of a class of two tensors, a number and a list of a tensor are told."""
    found = []

    def forward(ctx, x, y, scale, held):
        found.append((ctx.needs_input_grad, (x.requires_grad, y.requires_grad, held[0].requires_grad)))
        ctx.save_for_backward(x, y)
        return (x * y).round()

    def backward(ctx, g):
        found.append(ctx.needs_input_grad)
        x, y = ctx.saved_tensors
        return g * y, g * x, None, None

    f = fullgrad.adopt(function(forward, backward))
    transform(lambda x, y: f(x, y, 2.0, [y]))
    return found


NEITHER, FIRST, BOTH = ((False,) * 4, (False,) * 3), ((True, False, False, False), (True, False, False)), None
FIRST_ALONE = (True, False, False, False)
TOLD = {
    "vmap": (lambda f: vmap(f)(X, Y), [NEITHER]),
    "grad": (lambda f: grad(total(f))(X, Y), [FIRST, FIRST_ALONE]),
    "grad_of_a_constant": (lambda f: grad(lambda z: (z * f(X, Y)).sum())(X), [NEITHER]),
    "vmap_grad": (lambda f: vmap(grad(f))(X, Y), [FIRST, FIRST_ALONE]),
    "grad_vmap": (lambda f: grad(total(vmap(f)))(X, Y), [FIRST, FIRST_ALONE]),
    "vjp": (lambda f: vjp(lambda x: f(x, Y), X)[1](X), [FIRST, FIRST_ALONE]),
    "grad_in_no_grad": (lambda f: grad(lambda x: (torch.no_grad()(f)(x, Y) + x).sum())(X), [FIRST]),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_class_sees_which_inputs_are_differentiated(name):
    """A class sees which inputs this call differentiates, as torch tells it; numbers and containers are not among them."""
    transform, expected = TOLD[name]
    assert told(transform) == expected


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jvp(lambda x: f(x, Y), (X,), (Y,)),
        lambda f: vmap(lambda x, y: jvp(lambda x: f(x, y), (x,), (x,))[1])(X, Y),
        lambda f: jvp(lambda x: vmap(f)(x, Y), (X,), (Y,)),
        lambda f: hessian(lambda x: f(x, Y).sum())(X),
        lambda f: jacfwd(jacfwd(lambda x: f(x, Y)))(X),
        lambda f: jacrev(jacrev(lambda x: f(x, Y)))(X),
        lambda f: jacrev(jacfwd(lambda x: f(x, Y)))(X),
        lambda f: torch.compile(grad(lambda x, y: f(x, y).sum()), backend="aot_eager", fullgraph=True)(X, Y),
        lambda f: torch.compile(lambda x, y: jvp(lambda x: f(x, y), (x,), (x,)), backend="aot_eager", fullgraph=True)(X, Y),
        lambda f: torch.func.linearize(lambda x: f(x, Y), X)[1](X),
    ],
)
def test_what_is_not_differentiated_is_never_asked_for(transform):
    """No gradient of other inputs is asked for in forward mode, in any nesting, or compiled."""
    found = told(transform)
    assert found
    assert all(one in (FIRST, FIRST_ALONE) for one in found[found[0] == NEITHER :])  # linearize begins with the value


def test_levels_that_differentiate_other_inputs():
    """The forward sees both inputs as differentiated, the backward of each level what that level asks for."""
    found = told(lambda f: grad(lambda y: grad(lambda x: (f(x, y) ** 2).sum())(X).sum())(Y))
    assert found[0] == ((True, True, False, False), (True, True, True))
    assert found[1] == FIRST_ALONE
    assert (True, True, False, False) not in found[1:]


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_a_class_that_refuses_some_inputs():
    """The class is right where these inputs are constants, and refuses where they are not."""

    def forward(ctx, x, scale):
        if ctx.needs_input_grad[0] or x.requires_grad:
            raise ValueError("no gradient of x")
        y = torch.exp(-x / scale)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(x / scale**2 * y)
        return y

    cls = function(forward, lambda ctx, g: (None, g * ctx.saved_tensors[0]))
    f = fullgrad.adopt(cls)
    of_scale, eager = (lambda s: f(X, s).sum()), lambda s: cls.apply(X, s).sum()
    samples = oracle.batch(Y)
    assert_close(vmap(grad(of_scale))(samples), torch.stack([oracle.gradient(eager, s) for s in samples]))
    assert_close(push(of_scale)(Y), oracle.gradient(eager, Y) @ Y.cos())
    for second in (hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacfwd(f))):
        assert_close(second(of_scale)(Y), oracle.hessian(eager, Y))
    for transform in (grad, push, hessian, lambda f: vmap(grad(f), in_dims=0)):
        with pytest.raises(ValueError, match="no gradient of x"):
            transform(lambda x: f(x, Y).sum())(torch.stack([X, X, X, X]))


def test_a_value_that_depends_on_who_is_differentiated():
    """Such a value is the one that eager autograd gives."""

    def forward(ctx, x, bias):
        ctx.has_bias = bias.requires_grad
        return x * 2 + bias if bias.requires_grad else x * 2

    f = fullgrad.adopt(function(forward, lambda ctx, g: (2 * g, g if ctx.has_bias else None)))
    for transform in (vmap, lambda f: lambda x: vjp(f, x)[0], lambda f: lambda x: jvp(f, (x,), (x,))[0]):
        assert_close(transform(lambda x: f(x, Y))(oracle.batch(X)), 2 * oracle.batch(X))
        assert_close(
            transform(lambda b: f(X, b))(oracle.batch(Y)),
            2 * X + (0 if transform is vmap else oracle.batch(Y)) + 0 * oracle.batch(Y),
        )


# --- Random numbers of every device ----------------------------------------------------------------------------------------


class Accelerator:
    """Stands for torch's module of a device of another kind: a generator on each of two devices."""

    def __init__(self):
        self.generators = [torch.Generator().manual_seed(i) for i in range(2)]

    def device_count(self):
        return len(self.generators)

    def get_rng_state(self, device):
        return self.generators[device].get_state()

    def set_rng_state(self, state, device):
        self.generators[device].set_state(state)


@pytest.fixture
def accelerator(monkeypatch):
    module = Accelerator()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("privateuseone"))
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    return module


@pytest.mark.parametrize("index", [None, 0, 1])
def test_random_numbers_of_a_loop(accelerator, index):
    """The three kinds of randomness mean the same for every device's generator, whatever the device of the arguments is."""

    def forward(ctx, x):
        x.sum().item()
        return x + torch.rand((), generator=None if index is None else accelerator.generators[index])

    f = fullgrad.adopt(function(forward))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(set(vmap(f, randomness="same")(torch.ones(3)).tolist())) == 1
        assert len(set(vmap(f, randomness="different")(torch.ones(3)).tolist())) == 3
        with pytest.raises(RuntimeError, match="draws random numbers, which needs a randomness other than 'error'"):
            vmap(f)(torch.ones(3))


@pytest.mark.parametrize("index", [None, 0, 1])
def test_the_trial_of_a_backward_draws_nothing(accelerator, index):
    """Forward mode leaves every generator as the call alone does; a backward that draws sees the same numbers each time."""
    generator = torch.default_generator if index is None else accelerator.generators[index]

    def backward(ctx, g):
        return g * torch.rand(g.shape, generator=generator, dtype=g.dtype)

    f = fullgrad.adopt(function(lambda ctx, x: x.round(), backward))
    generator.manual_seed(3)
    pushed = push(f)(X)
    generator.manual_seed(3)
    assert_close(pushed, X.cos() * torch.rand(X.shape, generator=generator, dtype=X.dtype))


# --- What a backward does with its context ----------------------------------------------------------------------------------


def test_saved_variables():
    """``ctx.saved_variables`` is the old name of ``ctx.saved_tensors``."""

    def backward(ctx, g):
        (x,) = ctx.saved_variables
        return g * x.sin()

    f = fullgrad.adopt(function(saves, backward))
    assert_close(grad(total(f))(X), X.sin())
    assert_close(hessian(total(f))(X), torch.diag(X.cos()))


def computes_again(ctx, g):
    with torch.enable_grad():
        x = ctx.saved_tensors[0].detach().requires_grad_()
        y = x.sin()
    return torch.autograd.grad(y, x, g)[0]


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_a_backward_that_computes_again():
    """Autograd in a backward gives a right first derivative; further ones, which eager autograd takes for 0, raise."""
    f = fullgrad.adopt(function(saves, computes_again))
    assert_close(grad(total(f))(X), X.cos())
    assert_close(vmap(grad(total(f)))(oracle.batch(X)), oracle.batch(X).cos())
    assert_close(jacrev(f)(X), torch.diag(X.cos()))
    with pytest.raises(
        NotImplementedError, match=r"Kind.backward cannot be differentiated once more .*; grad, vjp and jacrev work"
    ):
        jacrev(jacrev(f))(X)
    with pytest.raises(
        NotImplementedError, match=r"Kind has no forward mode.*Reverse mode works: jacrev\(f\) for jacfwd\(f\)\.$"
    ):
        push(f)(X)


def keeps_scratch(ctx, x):
    ctx.scratch = torch.zeros_like(x)
    return x.round()


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_a_backward_that_changes_its_own_scratch():
    """The first derivative is right; a derivative through the change raises, and says why."""
    f = fullgrad.adopt(function(keeps_scratch, lambda ctx, g: ctx.scratch.add_(2).mul_(g)))
    assert_close(grad(total(f))(X), torch.full_like(X, 2))
    assert_close(vmap(grad(total(f)))(oracle.batch(X)), torch.full((3, 4), 2, dtype=X.dtype))
    with pytest.raises(NotImplementedError, match=r"Kind.backward changes a tensor in place that is not its own.*a copy"):
        jacrev(jacrev(f))(X)


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_a_context_of_another_shape_for_each_sample():
    """Such a context works where nobody differentiates, and raises elsewhere."""

    def forward(ctx, x):
        ctx.save_for_backward(x, x[x > 0])
        return x.round()

    f = fullgrad.adopt(function(forward, lambda ctx, g: g * ctx.saved_tensors[0]))
    assert_close(vmap(f)(oracle.batch(X)), oracle.batch(X).round())
    assert_close(grad(lambda y: (y * vmap(f)(oracle.batch(X))).sum())(oracle.batch(Y)), oracle.batch(X).round())
    with pytest.raises(NotImplementedError, match="something else for each sample of a batch; a loop over the samples works"):
        vmap(grad(total(f)))(oracle.batch(X))


def test_a_tensor_that_is_in_the_context_twice():
    """A constant may be in ctx and in an object there; an input is not mistaken for such a constant."""

    class Holder:
        tensor = Y

        def __init__(self, tensor):
            self.tensor = tensor

    def forward(ctx, x):
        ctx.save_for_backward(Y)
        ctx.holder = Holder(Y)
        return x * Y

    f = fullgrad.adopt(function(forward, lambda ctx, g: g * ctx.saved_tensors[0] * ctx.holder.tensor))
    assert_close(grad(total(f))(X), Y * Y)


def test_forward_mode_says_what_works_instead():
    """The error says to use the other order of derivatives."""
    f = fullgrad.adopt(function(saves, lambda ctx, g: g.clamp(-1, 1) * ctx.saved_tensors[0]))
    with pytest.raises(NotImplementedError, match=r"jacrev\(f\) for jacfwd\(f\), and jacrev\(jacrev\(f\)\) for hessian\(f\)"):
        hessian(total(f))(X)
    assert_close(jacrev(jacrev(total(f)))(X), torch.eye(4, dtype=X.dtype))


# --- Objects among the arguments --------------------------------------------------------------------------------------------


class Kernel(torch.nn.Module):
    """A module that passes a method of its own, with what its parameter gives as an argument."""

    def __init__(self, apply):
        super().__init__()
        self.raw, self.apply_to = torch.nn.Parameter(Y.clone()), apply

    def distance(self, x):
        return (x - x.mean()).square()

    def forward(self, x):
        return self.apply_to(x, self.raw.exp(), self.distance)


def test_a_module_whose_method_is_an_argument():
    """The parameters of the module are differentiated, and the class does not use them."""

    def forward(ctx, x, scale, distance):
        ctx.save_for_backward(scale, distance(x))
        return (scale * distance(x)).round()

    cls = function(forward, lambda ctx, g: (None, g * ctx.saved_tensors[1] * ctx.saved_tensors[0], None))
    f = fullgrad.adopt(cls)
    kernel, eager = Kernel(f), Kernel(cls.apply)
    of = lambda kernel: lambda raw, x=X: functional_call(kernel, {"raw": raw}, (x,)).sin().sum()  # noqa: E731
    assert_close(grad(of(kernel))(Y), oracle.gradient(of(eager), Y))
    assert_close(hessian(of(kernel))(Y), oracle.hessian(of(eager), Y))
    assert_close(jacfwd(of(kernel))(Y), oracle.gradient(of(eager), Y))
    assert_close(vmap(grad(of(kernel)))(oracle.batch(Y)), torch.stack([oracle.gradient(of(eager), y) for y in oracle.batch(Y)]))


@pytest.mark.parametrize(
    "use", [lambda t: t * 2, lambda t: t.data, lambda t: t[0].item(), torch.sin, lambda t: torch.stack([t, t])]
)
@pytest.mark.parametrize("transform", [grad, lambda f: vmap(grad(f)), hessian])
def test_a_class_that_uses_a_tensor_inside_an_argument(transform, use):
    """Using such a tensor raises, in every way; reading its shape does not."""

    class Holder:
        def __init__(self, tensor):
            self.tensor = tensor

    def forward(ctx, x, holder):
        assert holder.tensor.shape == x.shape
        assert holder.tensor.dim() == x.dim()
        if use is not None:
            use(holder.tensor)
        return x.round()

    f = fullgrad.adopt(function(forward, lambda ctx, g: (g, None)))
    with pytest.raises(
        NotImplementedError, match="Kind got a Holder that holds a batched or differentiated tensor; pass the tensor"
    ):
        transform(lambda x: f(x, Holder(x * 2)).sum())(oracle.batch(X))


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_a_backward_that_asks_autograd_for_the_gradients_of_parameters():
    """Parameters require gradients in the backward, as in eager code."""
    model = torch.nn.Linear(4, 4, dtype=X.dtype)

    def forward(ctx, x, *parameters):
        ctx.save_for_backward(x, *parameters)
        return model(x)

    def backward(ctx, g):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = torch.nn.functional.linear(x, *parameters)
        return torch.autograd.grad(y, (x, *parameters), g)

    f = fullgrad.adopt(function(forward, backward))
    of = lambda x: f(x, *model.parameters()).sum()  # noqa: E731
    expected = model.weight.detach().sum(0)
    assert_close(grad(of)(X), expected)
    assert_close(vmap(grad(of))(oracle.batch(X)), expected.expand(3, 4))


def recomputing(keep, call=lambda run, *xs: run(*xs), asks=True):
    """A class as in invertible networks: it gets a module and its parameters, and runs the module again in its backward."""

    def forward(ctx, run, count, *tensors):
        ctx.run, ctx.count = run, count
        keep(ctx, tensors)
        with torch.no_grad():
            return call(run, *[t.detach() for t in tensors[:count]])

    def backward(ctx, g):
        tensors = ctx.saved_tensors or ctx.kept
        xs, parameters = [t.detach().requires_grad_() for t in tensors[: ctx.count]], tensors[ctx.count :]
        with torch.enable_grad():
            y = call(ctx.run, *xs)
        if not asks:
            y.backward(g)
            return None, None, *[t.grad for t in (*xs, *parameters)]
        return None, None, *torch.autograd.grad(y, (*xs, *parameters), g)

    return function(forward, backward)


class Recomputing(torch.nn.Module):
    """A module whose parameters are arguments, next to one of its methods, itself or a closure."""

    def __init__(self, apply, passed):
        super().__init__()
        self.inner, self.apply_to, self.passed = torch.nn.Linear(4, 4, dtype=X.dtype), apply, passed

    def forward(self, x):
        return self.apply_to(self.passed(self.inner), 1, x, *self.inner.parameters())


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
@pytest.mark.parametrize(
    "passed", [lambda m: m, lambda m: m.forward, lambda m: lambda x: m(x)], ids=["module", "method", "closure"]
)
@pytest.mark.parametrize(
    "keep", [lambda ctx, ts: ctx.save_for_backward(*ts), lambda ctx, ts: setattr(ctx, "kept", ts)], ids=["saved", "kept"]
)
@pytest.mark.parametrize("asks", [True, False], ids=["grad", "backward"])
def test_a_module_whose_parameters_are_arguments_too(passed, keep, asks):
    """Under `functional_call` its code uses the arguments, also in the backward, where the module has its own again."""
    model = Recomputing(fullgrad.adopt(recomputing(keep, asks=asks)), passed)
    given = {name: 2 * p.detach() for name, p in model.named_parameters()}
    batch = oracle.batch(X)

    def loss(parameters, x, model=model):
        return functional_call(model, parameters, (x,)).square().sum()

    def plain(parameters, x):
        return loss({name.partition(".")[2]: p for name, p in parameters.items()}, x, model.inner)

    assert_close(grad(loss, (0, 1))(given, X), grad(plain, (0, 1))(given, X))
    of_all = lambda f: vmap(grad(f, (0, 1)), (None, 0))(given, batch)  # noqa: E731
    assert_close(of_all(loss), of_all(plain))
    of_x = lambda m: grad(lambda x: m(x).square().sum())(X)  # noqa: E731
    assert_close(of_x(model), of_x(model.inner))


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
@pytest.mark.parametrize(
    ("transform", "x"),
    [(push, X), (hessian, X), (lambda f: jacrev(jacrev(f)), X), (lambda f: vmap(hessian(f)), oracle.batch(X))],
    ids=["jvp", "hessian", "reverse", "batched"],
)
def test_a_backward_that_calls_autograd_is_told_what_to_do(transform, x):
    """A class whose backward asks autograd about another class is refused by its name, with what works instead; that works."""
    inner = fullgrad.adopt(function(saves, lambda ctx, g: g * ctx.saved_tensors[0].cos(), "Inner"))

    def again(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(inner(x), x, g)[0]

    with pytest.raises(NotImplementedError, match=r"Outer\.backward .*it calls autograd itself.*torch\.func\.vjp, or asking"):
        transform(total(fullgrad.adopt(function(saves, again, "Outer"))))(x)
    outer = fullgrad.adopt(function(saves, lambda ctx, g: torch.func.vjp(inner, ctx.saved_tensors[0])[1](g)[0], "Outer"))
    assert_close(transform(total(outer))(x), transform(total(inner))(x))


def alternating(flip):
    """A class whose backward is a class of the same kind, made when it is needed, as filters are."""

    def filtered(ctx, x):
        return x.flip(-1).cumsum(-1).flip(-1) if flip else x.cumsum(-1)

    return function(filtered, lambda ctx, g: alternating(not flip).apply(g))


@pytest.mark.parametrize(
    "transform", [jacfwd, hessian, lambda f: jacfwd(jacfwd(f)), lambda f: lambda v: vmap(hessian(f))(v[None])[0]]
)
@pytest.mark.parametrize(
    "call", [lambda v: alternating(True).apply(v), lambda v: Recursion.apply(v[:-1], v[-1])], ids=["new classes", "itself"]
)
def test_a_backward_that_calls_its_own_kind(call, transform):
    """The trial of a backward that calls its own class, or makes another one like it, has an end."""
    f = lambda v: (call(v).sin() * v[0]).sum()  # noqa: E731
    with fullgrad.adopting():
        found = transform(f)(X)
    assert_close(found, oracle.gradient(f, X) if transform is jacfwd else oracle.hessian(f, X))


# --- Constants of a backward ------------------------------------------------------------------------------------------------


def slope_without_a_graph(ctx, g):
    (x,) = ctx.saved_tensors
    with torch.no_grad():
        slope = 1 / (1 + x * x)
    return g * slope


def slope_of_data(ctx, g):
    x = ctx.saved_tensors[0].data
    return g / (1 + x * x)


def slope_changed_through_data(ctx, g):
    slope = ctx.saved_tensors[0].clone()
    slope.data.mul_(2)
    return g * slope


NESTINGS = {
    "hessian": hessian,
    "jacrev of jacrev": lambda f: jacrev(jacrev(f)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f)),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f)),
    "vmap of hessian": lambda f: lambda x: vmap(hessian(f))(x[None])[0],
}


@pytest.mark.short
@pytest.mark.parametrize("nesting", NESTINGS.values(), ids=NESTINGS)
@pytest.mark.parametrize("backward", [slope_without_a_graph, slope_of_data, slope_changed_through_data])
def test_constants_of_a_backward_are_constants_in_every_nesting(backward, nesting):
    """Constants are those of eager double backward, which forward mode would not know."""
    cls, weight, x = function(saves, backward), torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.7, 1.4, -0.3])
    of = lambda apply: lambda x: (weight * apply(x) + x**3).sum()  # noqa: E731
    assert_close(nesting(of(fullgrad.adopt(cls)))(x), oracle.hessian(of(cls.apply), x))
