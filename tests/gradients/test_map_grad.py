"""Properties specific to `map_grad`: what the function sees, what it closes over, and what it must return."""

import pytest
import torch
from torch.func import grad, jvp, vmap

import fullgrad
from tests.operators import raises, saved_tensors

pytestmark = pytest.mark.short

X = torch.tensor([[3.0, 4.0], [0.3, 0.4], [-5.0, 12.0]], dtype=torch.float64)


def unit(g):
    return g / g.norm()


def loss(x):
    return (fullgrad.map_grad(x, unit) ** 2).sum() / 2


def hooked(x, f):
    """The gradient of the loss by a hook of torch."""
    leaf = x.clone().requires_grad_()
    y = leaf.clone()
    y.register_hook(f)
    return torch.autograd.grad((y**2).sum() / 2, leaf)[0]


def test_it_is_a_hook():
    """The value is the input itself, the gradient is what a hook returns, and nothing is saved."""
    x = X.clone().requires_grad_()
    with saved_tensors() as saved:
        y = fullgrad.map_grad(x, unit)
    assert not saved
    assert y.data_ptr() == x.data_ptr()
    torch.testing.assert_close(torch.autograd.grad((y**2).sum() / 2, x)[0], hooked(X, unit))


def test_each_sample_has_its_own_gradient():
    """The function sees the gradient of one sample under vmap, inside and outside of grad, and where samples share the input."""
    expected = torch.stack([hooked(x, unit) for x in X])
    torch.testing.assert_close(vmap(grad(loss))(X), expected)
    torch.testing.assert_close(grad(lambda x: vmap(loss)(x).sum())(X), expected)
    torch.testing.assert_close(vmap(grad(loss), in_dims=1)(X.T), expected)
    weights = torch.tensor([[1.0, 0.0], [0.0, -3.0]], dtype=torch.float64)
    shared = vmap(lambda w: grad(lambda x: (fullgrad.map_grad(x, unit) * w).sum())(X[0]))(weights)
    torch.testing.assert_close(shared, torch.stack([unit(w) for w in weights]))
    summed = grad(lambda x: vmap(lambda x, w: (fullgrad.map_grad(x, unit) * w).sum(), (None, 0))(x, weights).sum())(X[0])
    torch.testing.assert_close(summed, unit(weights.sum(0)))  # the operator itself is not batched


def test_second_derivatives_are_those_of_the_function():
    """Double backward differentiates the map as it is, and the tensors that it closes over; the tangent is the identity."""
    w = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    x = X[0].clone().requires_grad_()
    (g,) = torch.autograd.grad((fullgrad.map_grad(x, lambda g: w * g.tanh()) ** 2).sum() / 2, x, create_graph=True)
    of_x, of_w = torch.autograd.grad(g.sum(), [x, w])
    # The cotangent of x passes the map as well: tanh'(x) w is mapped in turn.
    torch.testing.assert_close(of_x, w * torch.tanh(w / torch.cosh(x) ** 2))
    torch.testing.assert_close(of_w, torch.tanh(x).sum())
    assert torch.equal(jvp(lambda x: fullgrad.map_grad(x, unit), (X,), (X,))[1], X)


@pytest.mark.long
def test_compiled():
    """One graph, with numbers that the function closes over guarded; tensors that it closes over are refused."""
    factor = 2.0

    def scaled(x):
        return (fullgrad.map_grad(x, lambda g: factor * unit(g)) ** 2).sum() / 2

    compiled = torch.compile(grad(scaled), backend="aot_eager", fullgraph=True)
    for factor in (2.0, 3.0):  # noqa: B007
        torch.testing.assert_close(compiled(X), grad(scaled)(X))
    per_sample = torch.compile(vmap(grad(loss)), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(per_sample(X), vmap(grad(loss))(X))


OUTSIDE = torch.tensor(2.0, dtype=torch.float64)


@pytest.mark.long
def test_compiled_code_refuses_other_tensors():
    """It would bake in the numbers of a tensor that the function closes over."""
    compiled = torch.compile(lambda x: fullgrad.map_grad(x, lambda g: g * OUTSIDE).sum(), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception) as raised:
        compiled(X.clone().requires_grad_())
    error, found = raised.value, []
    while error is not None:
        found.append(str(error))
        error = error.__cause__ or error.__context__
    assert any("map_grad: `f` uses a tensor that is not its argument" in text for text in found)


BAD = [
    (lambda g: g.sum(), ValueError, r"the result of `f` must have the shape of the gradient, \(3, 2\), got \(\)"),
    (lambda g: None, TypeError, "the result of `f` must be a tensor, got a value of type NoneType"),
    (lambda g: g.float(), TypeError, "the result of `f` must have the dtype of the gradient, torch.float64, got torch.float32"),
    (lambda g: g.mul_(2), RuntimeError, "changes an argument in place"),
    (3, TypeError, "`f` must be a function, got a value of type int"),
]


@pytest.mark.parametrize(("f", "error", "match"), BAD)
def test_errors(f, error, match):
    """What the function must not return or do is named."""
    x = X.clone().requires_grad_()
    with raises(error, match=match):
        torch.autograd.grad((fullgrad.map_grad(x, f) ** 2).sum(), x)
