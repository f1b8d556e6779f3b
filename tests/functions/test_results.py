"""Results of functions that have no derivative: refused where one is asked for, and taken as constants beside tensors."""

import numpy
import pytest
import torch
from torch.func import grad, jvp

import fullgrad

X = torch.tensor([0.3, 1.7])


def with_tangent(f):
    """A function with a rule for tangents."""
    made = fullgrad.custom_jvp(f, vmap_method="sequential")
    made.defjvp(lambda primals, tangents: (made(*primals), tangents[0]))
    return made


def with_gradient(f):
    """A function with a rule for gradients."""
    made = fullgrad.custom_vjp(f, vmap_method="sequential")
    made.defvjp(lambda x: (made(x), None), lambda _, g: (torch.ones(2),))
    return made


MAKERS = {
    "custom_jvp": with_tangent,
    "custom_vjp": with_gradient,
    "custom_gradient": lambda f: fullgrad.custom_gradient(lambda x: (f(x), lambda g: torch.ones(2))),
    "with_reference": lambda f: fullgrad.with_reference(f, torch.tanh),
    "checkpoint": lambda f: lambda x: fullgrad.checkpoint(f, x),
    "straight_through": lambda f: fullgrad.straight_through(f, torch.tanh),
    "linear_map": lambda f: fullgrad.linear_map(f, lambda g: g),
}
LOST = {
    "array": lambda x: numpy.asarray(x.tolist()),
    "number": lambda x: float(x.sum()),
    "list": lambda x: x.tolist(),
    "bool": lambda x: bool(x.sum() > 0),
    "integers": lambda x: (x > 0).long(),
    "nothing": lambda x: None,
    "array_beside": lambda x: (x * 1, numpy.asarray(x.tolist())),
}


def backward(f, x):
    """The gradient by `backward`."""
    x = x.clone().requires_grad_()
    f(x).backward()
    return x.grad


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("maker", MAKERS)
def test_result_whose_derivative_would_be_lost_is_refused_where_it_is_differentiated(maker, lost):
    if maker == "checkpoint" and lost in ("bool", "integers", "nothing"):
        pytest.skip("plain code has no derivative there either")
    f = MAKERS[maker](LOST[lost])

    def loss(x):
        f(x)
        return x.square().sum()

    for transform in (grad(loss), lambda x: backward(loss, x), lambda x: jvp(loss, (x,), (x,))):
        with pytest.raises(TypeError, match=f"{maker}: .* must return"):
            transform(X)


@pytest.mark.parametrize("maker", ["custom_vjp", "custom_gradient", "checkpoint"])
def test_integers_and_numbers_beside_a_floating_tensor_are_constants(maker):
    f = MAKERS[maker](lambda x: (x * 1, (x > 0).long(), 3, 2.5, numpy.float32(2.5), numpy.arange(2)))
    for transform in (grad, lambda loss: lambda x: backward(loss, x)):
        torch.testing.assert_close(transform(lambda x: f(x)[0].sum())(X), torch.ones(2))
    _y, mask, count, scale, other, order = f(X)
    assert (mask.tolist(), count, scale, other, order.tolist()) == ([1, 1], 3, 2.5, 2.5, [0, 1])


def test_integers_of_plain_code_and_results_that_are_declared_constant_stay():
    assert grad(lambda x: x[fullgrad.checkpoint(torch.argmax, x)])(X).tolist() == [0, 1]
    f = fullgrad.with_reference(torch.argmax, torch.argmax, nondiff_outnums=0)
    assert grad(lambda x: x[f(x)])(X).tolist() == [0, 1]


def test_result_that_nobody_differentiates_may_be_anything():
    for maker in ("custom_jvp", "custom_vjp", "with_reference", "checkpoint"):
        assert MAKERS[maker](LOST["list"])(X) == X.tolist()
