"""`closure_convert`: what a function captures becomes arguments."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

import fullgrad

X, W = torch.tensor([0.3, -0.7, 1.1]), torch.tensor([1.5, 0.4, -0.2])


class Box:
    pass


def captured_by(place, w):
    """A function that has a tensor in a place."""
    box = Box()
    box.inner, box.items = Box(), [w]
    box.inner.w = w
    return {
        "variable": lambda x: torch.sin(w * x),
        "default": lambda x, w=w: torch.sin(w * x),
        "attribute": lambda x: torch.sin(box.inner.w * x),
        "list": lambda x: torch.sin(box.items[0] * x),
    }[place]


@pytest.mark.parametrize("place", ["variable", "default", "attribute", "list"])
def test_a_captured_tensor_is_an_argument(place):
    """One that requires a gradient, has a tangent, or belongs to a transform; another value may be in its place."""
    w = W.clone().requires_grad_()
    g, tensors = fullgrad.closure_convert(captured_by(place, w), X)
    assert [*map(id, tensors)] == [id(w)]
    torch.testing.assert_close(g(X, *tensors), torch.sin(W * X))
    torch.testing.assert_close(g(X, 2 * W), torch.sin(2 * W * X))
    torch.testing.assert_close(grad(lambda w: g(X, w).sum())(W), X * torch.cos(W * X))

    def inside(w):
        g, tensors = fullgrad.closure_convert(captured_by(place, w), X)
        assert len(tensors) == 1
        return g(X, *[2 * t for t in tensors])

    torch.testing.assert_close(jvp(inside, (W,), (X,))[1], 2 * X * X * torch.cos(2 * W * X))
    torch.testing.assert_close(vmap(inside)(torch.stack([W, X])), torch.sin(2 * torch.stack([W, X]) * X))


def test_a_constant_stays():
    """A tensor that matters to no derivative is no argument, and its change is an error."""
    w = W.clone()
    g, tensors = fullgrad.closure_convert(lambda x: w * x, X)
    assert tensors == []
    torch.testing.assert_close(g(X), W * X)
    w.mul_(2)
    with pytest.raises(RuntimeError, match=r"closure_convert: <lambda> uses a tensor of shape .* changed in place"):
        g(X)


def test_parameters_of_modules():
    """Each is an argument, also where `functional_call` has replaced it."""
    layer = nn.Linear(3, 2)
    g, tensors = fullgrad.closure_convert(lambda x: layer(x), X)
    assert {id(t) for t in tensors} == {id(p) for p in layer.parameters()}
    torch.testing.assert_close(g(X, *[2 * t for t in tensors]), 2 * layer(X))

    def loss(params):
        class Converted(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                g, tensors = fullgrad.closure_convert(self.layer, x)
                return g(x, *tensors)

        return functional_call(Converted(), {f"layer.{k}": v for k, v in params.items()}, (X,)).sum()

    found = grad(loss)({k: v.detach() for k, v in layer.named_parameters()})
    torch.testing.assert_close(found, {"weight": X.expand(2, 3), "bias": torch.ones(2)})


def test_it_draws_what_it_drew():
    """Random numbers are those of the first call."""
    torch.manual_seed(0)
    g, _ = fullgrad.closure_convert(lambda x: x * torch.rand(3), X)
    torch.manual_seed(0)
    expected = X * torch.rand(3)
    torch.testing.assert_close(g(X), expected)


def test_errors():
    """A function that is none, other arguments, and compiled code."""
    with pytest.raises(TypeError, match="closure_convert: `f` must be callable, got a value of type int"):
        fullgrad.closure_convert(3, X)  # pyright: ignore
    w = W.clone().requires_grad_()
    g, _ = fullgrad.closure_convert(lambda x: w * x, X)
    with pytest.raises(TypeError, match="takes 1 arguments and 1 captured tensors, got 1 in all"):
        g(X)
    with pytest.raises(RuntimeError, match="changes an argument in place"):
        fullgrad.closure_convert(lambda x: x.mul_(2), X.clone())
