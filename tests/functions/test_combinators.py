"""`st`, `grad_replace`, `replace_grad`, `straight_through`: any structure of outputs, any callable, no gradient lost."""

import collections
import functools
import inspect
import math
import types
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jvp, vmap

import fullgrad
from fullgrad import soft
from fullgrad.testing._subject import close, equal
from tests.operators import raises

pytestmark = pytest.mark.short

X = torch.tensor([-1.2, 0.05, 0.7], dtype=torch.float64)


def two(x, mode="smooth", scale=1.0):
    """A function of a mode."""
    return scale * soft.sign(x, mode=mode) * soft.abs(x, mode=mode)


def test_value_is_hard_and_derivative_soft():
    """The value is hard and the derivative soft, at first and second order, in both modes of differentiation."""
    f = fullgrad.st(two)
    equal(f(X), two(X, "hard"))
    close(vmap(grad(f))(X), vmap(grad(two))(X))
    close(hessian(lambda x: f(x).sum())(X), hessian(lambda x: two(x).sum())(X))
    close(jvp(f, (X,), (X,))[1], jvp(two, (X,), (X,))[1])


def test_mode_positional_keyword_default_and_hard():
    """The mode may be positional, a keyword or the default; with "hard" the derivative is hard's own."""
    f = fullgrad.st(two)
    for call in (
        lambda x: f(x, "c1"),
        lambda x: f(x, mode="c1"),
        lambda x: f(x, "c1", 1.0),
        lambda x: f(x, scale=1.0, mode="c1"),
    ):
        equal(call(X), two(X, "hard"))
        close(vmap(grad(call))(X), vmap(grad(lambda x: two(x, "c1")))(X))
    close(vmap(grad(lambda x: f(x, "hard")))(X), vmap(grad(lambda x: two(x, "hard")))(X))
    default = fullgrad.st(lambda x, mode="c2": two(x, mode))
    close(vmap(grad(default))(X), vmap(grad(lambda x: two(x, "c2")))(X))
    through = fullgrad.st(lambda x, **options: two(x, **options))
    close(vmap(grad(through))(X), vmap(grad(two))(X))


def test_signature_name_and_docstring_are_kept():
    """Editors and help see the function."""
    f = fullgrad.st(two)
    assert inspect.signature(f) == inspect.signature(two)
    assert (f.__name__, f.__doc__) == (two.__name__, two.__doc__)


class Layer(nn.Module):
    """A module with a straight-through method and parameters that it computes with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64))

    @fullgrad.st
    def forward(self, x, mode="smooth"):
        return soft.sign(x * self.weight, mode=mode)


def test_methods_and_partials():
    """Decorated methods, bound methods, partial objects with the mode among their keywords."""
    layer = Layer()
    equal(layer(X).detach(), torch.sign(X * layer.weight.detach()))
    bound = fullgrad.st(functools.partial(two, scale=2.0, mode="c1"))
    equal(bound(X), two(X, "hard", 2.0))
    close(vmap(grad(bound))(X), vmap(grad(lambda x: two(x, "c1", 2.0)))(X))
    method = fullgrad.st(Layer.forward.__wrapped__.__get__(layer))
    equal(method(X).detach(), torch.sign(X * layer.weight.detach()))


def test_what_the_function_closes_over_gets_its_gradient():
    """Parameters of modules and captured tensors get gradients: by backward, functional_call, vmap and forward mode."""
    layer = Layer()
    layer(X).sum().backward()
    expected = grad(lambda w: soft.sign(X * w).sum())(layer.weight.detach())
    close(layer.weight.grad, expected)
    close(grad(lambda p: functional_call(layer, p, (X,)).sum())({"weight": layer.weight.detach()})["weight"], expected)
    batch = torch.stack([X, 2 * X])
    per_sample = vmap(grad(lambda p, x: functional_call(layer, p, (x,)).sum()), (None, 0))(
        {"weight": layer.weight.detach()}, batch
    )
    close(per_sample["weight"], torch.stack([grad(lambda w, x=x: soft.sign(x * w).sum())(layer.weight.detach()) for x in batch]))

    def of(w):
        return fullgrad.grad_replace(lambda x, forward: torch.round(x * w) if forward else x * w)(X)

    w = torch.tensor(1.3, dtype=torch.float64)
    close(grad(lambda w: of(w).sum())(w), X.sum())
    close(jvp(of, (w,), (torch.ones_like(w),))[1], X)
    of_weights = grad(lambda p: functional_call(layer, p, (X,)).sum())
    compiled = torch.compile(of_weights, backend="aot_eager", fullgraph=True)
    close(compiled({"weight": layer.weight.detach()})["weight"], expected)


Pair = collections.namedtuple("Pair", ["values", "indices"])


def test_any_structure_of_outputs():
    """Tuples, named tuples, dicts, None, integers and numbers are those of the hard call; floats have derivatives."""

    @fullgrad.st
    def f(x, mode="smooth"):
        s = soft.sign(x, mode=mode)
        return {"pair": Pair(s, (s > 0).long()), "list": [s * 2, None], "number": 3, "mode": mode}

    y = f(X)
    assert isinstance(y["pair"], Pair)
    equal(y["pair"].values, torch.sign(X))
    assert y["pair"].indices.tolist() == [0, 1, 1]
    assert y["list"][1] is None
    assert (y["number"], y["mode"]) == (3, "hard")
    close(grad(lambda x: f(x)["list"][0].sum())(X), grad(lambda x: 2 * soft.sign(x).sum())(X))


def test_without_grad_mode_the_function_is_called_once():
    """The function is called once, hard, under no_grad, and twice where a derivative may follow."""
    modes = []

    @fullgrad.st
    def f(x, mode="smooth"):
        modes.append(mode)
        return soft.abs(x, mode=mode)

    with torch.no_grad():
        f(X)
    assert modes == ["hard"]
    f(X)
    with torch.no_grad():
        jvp(f, (X,), (X,))
    assert modes == ["hard", "hard", "smooth", "hard", "smooth"]


def test_replace_grad_is_exact_where_the_detach_trick_is_not():
    """Any value, infinities and NaN included, with the derivative of the surrogate; the value gets none."""
    value = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1.0], dtype=torch.bfloat16, requires_grad=True)
    surrogate = torch.tensor([1.0, 2.0, 3.0, 4.0, 1e4], dtype=torch.bfloat16, requires_grad=True)
    y = fullgrad.replace_grad(value, surrogate)
    equal(y.detach(), value.detach())
    g = torch.arange(5.0).bfloat16()
    to_value, to_surrogate = torch.autograd.grad(y, (value, surrogate), g, allow_unused=True)
    assert to_value is None
    equal(to_surrogate, g)


def test_vmap_of_one_of_the_two():
    """The samples may share the value or the surrogate."""
    batch = torch.stack([X, 2 * X])
    equal(vmap(fullgrad.replace_grad, (0, None))(batch, X), batch)
    equal(vmap(fullgrad.replace_grad, (None, 0))(X, batch), torch.stack([X, X]))
    per_sample = vmap(grad(lambda v, s: (fullgrad.replace_grad(v, s) ** 2).sum(), 1), (0, None))(batch, X)
    close(per_sample, 2 * batch)


# --- straight_through -------------------------------------------------------------------------------------------------


def test_the_forward_calls_the_hard_function_alone():
    """The soft function is called only for a derivative."""
    calls = []

    def smooth(x):
        calls.append(x.shape)
        return torch.sigmoid(x)

    step = fullgrad.straight_through(lambda x: (x > 0).to(x.dtype), smooth)
    x = X.clone().requires_grad_()
    y = step(x)
    assert not calls
    y.sum().backward()
    assert len(calls) == 1
    close(x.grad, torch.sigmoid(X) * (1 - torch.sigmoid(X)))


def test_a_value_that_is_the_input_is_a_copy():
    """An in-place change of the value does not reach the input, in any mode."""
    f = fullgrad.straight_through(lambda x: x, lambda x: x * 2)
    for mode in (torch.enable_grad, torch.no_grad):
        for requires_grad in (False, True):
            x = torch.ones(3, requires_grad=requires_grad)
            with mode():
                f(x).add_(1)
            assert x.tolist() == [1, 1, 1]
    x = torch.ones(3)
    assert vmap(lambda x: f(x).add_(1))(x).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def test_functions_of_a_whole_sample():
    """Reductions and several inputs, constants among them; each sample by itself under vmap, the parameter shared or not."""
    hard = lambda x, y, k: (x.round() * y).cumsum(-1) * k  # noqa: E731
    smooth = lambda x, y, k: (x * y).cumsum(-1) * k  # noqa: E731
    f = fullgrad.straight_through(hard, smooth)
    batch = torch.stack([X, X**2])
    for dims in ((0, None, None), (0, 0, None), (None, 0, None)):
        arguments = [batch if d == 0 else X for d in dims[:2]]
        equal(vmap(f, dims)(*arguments, 3), vmap(hard, dims)(*arguments, 3))
        for argument in (0, 1):
            close(
                vmap(grad(lambda x, y, k: f(x, y, k).sum(), argument), dims)(*arguments, 3),
                vmap(grad(lambda x, y, k: smooth(x, y, k).sum(), argument), dims)(*arguments, 3),
            )


def test_captured_tensors_get_their_gradients():
    """Of a variable, a container and a module; of a transform; a constant that a transform made stays one."""
    weight, layer = torch.tensor(2.0, dtype=torch.float64, requires_grad=True), nn.Linear(3, 3, dtype=torch.float64)
    kept, x = {"weight": weight}, X.clone().requires_grad_()
    for smooth, captured in (
        (lambda x: x * weight, [weight]),
        (lambda x: x * kept["weight"], [weight]),
        (layer, [*layer.parameters()]),
    ):
        y = fullgrad.straight_through(torch.round, smooth)(x)
        equal(y.detach(), X.round())
        close(torch.autograd.grad(y.sum(), [x, *captured]), torch.autograd.grad(smooth(x).sum(), [x, *captured]))
    of = lambda w: fullgrad.straight_through(torch.round, lambda x: x * w)(X).sum()  # noqa: E731
    close(grad(of)(weight.detach()), X.sum())
    close(jvp(of, (weight.detach(),), (weight.detach(),)), (X.round().sum(), 2 * X.sum()))

    def with_constant(x):
        k = x.detach() * 0 + 3
        return fullgrad.straight_through(torch.round, lambda y: k * y)(x).sum()

    close(grad(with_constant)(X), 3 + 0 * X)


class _Gain(nn.Module):
    """A module whose operator is made while its parameter is frozen, or before there is one."""

    def __init__(self, is_later):
        super().__init__()
        if is_later:
            self.op = fullgrad.straight_through(lambda x: (x * self.gain).round(), lambda x: x * self.gain)
        self.gain = nn.Parameter(torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64), requires_grad=False)
        if not is_later:
            self.op = fullgrad.straight_through(lambda x: (x * self.gain).round(), lambda x: x * self.gain)

    def forward(self, x):
        return self.op(x)


@pytest.mark.parametrize("is_called_before", [False, True])
def test_captured_tensors_that_are_unfrozen_later_get_their_gradients(is_called_before):
    """Wherever the tensor is: the operator follows what requires a gradient, or has a tangent, when it is called."""

    def of(soft):
        return fullgrad.straight_through(lambda x: soft(x).round(), soft)

    for place in ("variable", "list", "attribute", "part of a module", "made later"):
        module = _Gain(place == "made later")
        gain, box = module.gain, types.SimpleNamespace(gain=module.gain)
        kept, parts = [gain], nn.Sequential(nn.Sequential(nn.Identity(), nn.ParameterList([gain])))
        op = {
            "variable": of(lambda x, gain=gain: x * gain),
            "list": of(lambda x, kept=kept: x * kept[0]),
            "attribute": of(lambda x, box=box: x * box.gain),
            "part of a module": of(lambda x, parts=parts: x * parts[0][1][0]),
        }.get(place, module)
        if is_called_before:
            op(X)
        gain.requires_grad_()
        for x in (X, X.clone().requires_grad_()):
            (found,) = torch.autograd.grad(op(x).sum(), gain)
            equal(found, X)
        with torch.no_grad():
            assert not op(X).requires_grad
        gain.requires_grad_(False)
        assert not op(X).requires_grad


def test_frozen_parameters_that_a_transform_replaces_get_their_derivatives():
    """By `functional_call`, where nothing requires a gradient when the operator is made."""
    for is_later in (False, True):
        module = _Gain(is_later)
        gain, loss = module.gain.detach(), lambda g, m=module: functional_call(m, {"gain": g}, (X,)).sum()
        close(grad(loss)(gain), X)
        close(jvp(loss, (gain,), (gain,))[1], (X * gain).sum())
        close(vmap(grad(loss))(torch.stack([gain, gain])), torch.stack([X, X]))
        module.gain = nn.Parameter(gain.clone())  # another one, which requires a gradient
        equal(torch.autograd.grad(module(X).sum(), module.gain)[0], X)


def test_gradients_of_hidden_tensors_are_not_lost():
    """A tensor that cannot be seen when the operator is made is refused in the backward."""
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    hidden = weakref.ref(weight)
    f = fullgrad.straight_through(torch.round, lambda x: x * hidden())
    with pytest.raises(RuntimeError, match="gradient of a tensor that it closes over"):
        f(X.clone().requires_grad_()).sum().backward()
    x = X.clone().requires_grad_()
    y = f(x).sum()
    with pytest.raises(RuntimeError, match="gradient of a tensor that it closes over"):
        torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fullgrad.st(lambda x: x), TypeError, r"st: `fn` must take a parameter `mode`, got the signature \(x\)"),
        (lambda: fullgrad.grad_replace(3), TypeError, "grad_replace: `fn` must be callable, got a value of type int"),
        (lambda: fullgrad.grad_replace(lambda x: x), TypeError, "must take a parameter `forward`"),
        (lambda: fullgrad.replace_grad(X, X.float()), TypeError, "one dtype, got dtypes torch.float64 and torch.float32"),
        (lambda: fullgrad.replace_grad(X, X[:2]), ValueError, r"one shape, got shapes \(3,\) and \(2,\)"),
        (lambda: fullgrad.replace_grad(1.0, X), TypeError, "`value` must be a tensor, got a value of type float"),
        (lambda: fullgrad.straight_through(torch.round, 3), TypeError, "`soft` must be callable, got a value of type int"),
        (
            lambda: fullgrad.st(lambda x, mode="smooth": (x,) if mode == "hard" else [x])(X),
            ValueError,
            "st: the two outputs must have one structure",
        ),
        (
            lambda: grad(lambda x: fullgrad.straight_through(torch.round, lambda x: x[:2])(x).sum())(X),
            RuntimeError,
            r"must return what `hard` does, shape \(3,\) and torch.float64, got shape \(2,\)",
        ),
    ],
)
def test_errors_name_the_rule_and_what_was_found(call, error, message):
    """Bad arguments raise."""
    with raises(error, match=message):
        call()
