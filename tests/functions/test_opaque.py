"""Functions in code that torch can neither batch nor trace: below transforms, sample by sample or for the whole batch."""

import math

import numpy
import pytest
import torch
from torch.func import grad, vmap
from torch.testing import assert_close

import fullgrad
from tests.functions.transforms import NAMES, X, derivative

ERF = numpy.vectorize(math.erf, otypes=[float])


def by_numpy(x):
    """The error function, by another library."""
    return torch.from_numpy(ERF(x.numpy()))


def slope_by_torch(x):
    """The derivative of the error function."""
    return 2 / math.pi**0.5 * torch.exp(-x * x)


def slope_by_numpy(x):
    """The same by another library."""
    return torch.from_numpy(2 / math.pi**0.5 * numpy.exp(-(x.numpy() ** 2)))


def with_rule(method):
    """The error function with a rule for tangents."""
    f = fullgrad.custom_jvp(torch.erf if method == "map" else by_numpy, vmap_method=method)
    f.defjvp(lambda p, t: (f(*p), 2 / math.pi**0.5 * torch.exp(-(p[0] ** 2)) * t[0]))
    return f


def with_gradient(method):
    """The same with a rule for gradients, and a slope that is opaque, too, with its own rule."""
    f = fullgrad.custom_vjp(torch.erf if method == "map" else by_numpy, vmap_method=method)
    slope = fullgrad.custom_jvp(slope_by_torch if method == "map" else slope_by_numpy, vmap_method=method)
    slope.defjvp(lambda p, t: (slope(*p), -2 * p[0] * slope(*p) * t[0]))
    f.defvjp(lambda x: (f(x), x), lambda x, g: (slope(x) * g,))
    return f


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [with_rule, with_gradient])
@pytest.mark.parametrize("method", ["sequential", "broadcast", "map"])
def test_every_order(method, make, name):
    """Derivatives are those of torch's own function, whichever way a batch is called."""
    assert_close(derivative(name, make(method)), derivative(name, torch.erf))


SEEN = []


def noted(x):
    """The identity, which notes the shape that it sees."""
    assert type(x) is torch.Tensor
    SEEN.append(tuple(x.shape))
    return x.clone()


def test_how_often_it_is_called():
    """For each sample, or once, on plain tensors."""
    for method, shapes in (("sequential", [(3,)] * 4), ("broadcast", [(2, 2, 3)])):
        SEEN.clear()
        vmap(vmap(fullgrad.custom_jvp(noted, vmap_method=method)))(torch.stack([X, X]))
        assert shapes == SEEN


def test_randomness():
    """A function called sample by sample draws as `vmap` says."""
    f = fullgrad.custom_jvp(lambda x: x + torch.rand(()), vmap_method="sequential")
    same = vmap(f, randomness="same")(torch.zeros(4))
    assert len(same.unique()) == 1
    assert len(vmap(f, randomness="different")(torch.zeros(4)).unique()) == 4
    with pytest.raises(RuntimeError, match="draws random numbers"):
        vmap(f)(torch.zeros(4))


def summed(x):
    """The sum of a vector, by name."""
    return {"total": torch.from_numpy(numpy.asarray(x.numpy().sum(-1)))}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled(backend):
    """It is one node; another shape of the result is declared by `like`."""
    f = with_rule("broadcast")
    total = fullgrad.custom_jvp(summed, vmap_method="broadcast", like=lambda x: {"total": x[..., 0]})
    total.defjvp(lambda p, t: (total(*p), {"total": t[0].sum(-1)}))

    def run(x):
        return vmap(grad(lambda x: f(x).sum() * total(x)["total"]))(x)

    expected = vmap(grad(lambda x: torch.erf(x).sum() * x.sum()))(X)
    assert_close(run(X), expected)
    assert_close(torch.compile(run, backend=backend, fullgraph=True)(X), expected)


def test_errors():
    """Code that `vmap` cannot batch says what to do; a closed-over tensor would lose its derivative."""
    with pytest.raises(RuntimeError, match=r'`apply` cannot be batched by torch.func.vmap.*vmap_method="sequential"'):
        vmap(fullgrad.linear_map(by_numpy, by_numpy))(X)
    w = X.clone().requires_grad_()
    for f in (lambda x: x * w, lambda x: torch.from_numpy(w.detach().numpy()) * x * w):
        with pytest.raises(RuntimeError, match="custom_jvp: <lambda> uses a tensor that needs a derivative"):
            fullgrad.custom_jvp(f, vmap_method="sequential")(X)
    with pytest.raises(RuntimeError, match="uses a tensor that needs a derivative or belongs to a transform"):
        grad(lambda w: fullgrad.custom_jvp(lambda x: x * w, vmap_method="sequential")(X).sum())(X)
    with pytest.raises(AttributeError, match="custom_jvp: by_numpy has no rule"):
        grad(lambda x: fullgrad.custom_jvp(by_numpy, vmap_method="sequential")(x).sum())(X)
    with pytest.raises(RuntimeError, match="changes an argument in place"):
        fullgrad.custom_jvp(lambda x: x.mul_(2), vmap_method="sequential")(X.clone())
    with pytest.raises(ValueError, match="custom_vjp: `vmap_method`"):
        fullgrad.custom_vjp(by_numpy, vmap_method="loop")
    with pytest.raises(TypeError, match="`like` must be callable"):
        fullgrad.custom_jvp(by_numpy, like=3)
