"""Functions in code that torch can neither batch nor trace: below transforms, sample by sample or for the whole batch."""

import functools
import gc
import math
import weakref

import numpy
import pytest
import torch
from torch.func import grad, vmap
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

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


@pytest.mark.long(but=1)
@pytest.mark.parametrize("method", ["sequential", "broadcast"])
def test_batches_of_changing_sizes_in_one_graph(method):
    """A graph for dynamic shapes calls the code for each sample of the batch that it is given."""
    kernel = fullgrad.with_reference(lambda x: torch.from_numpy(x.numpy() ** 2), torch.square, vmap_method=method)
    for f in (vmap(kernel), vmap(grad(lambda x: kernel(x).sin().sum())), lambda x: vmap(vmap(kernel), -1)(x)):
        compiled = torch.compile(f, backend="aot_eager", dynamic=True)
        for size in (3, 5, 2):
            x = torch.arange(4.0 * size, dtype=torch.float64).reshape(size, 2, 2)
            assert_close(compiled(x), f(x))


def test_errors():
    """Code that `vmap` cannot batch says what to do; a closed-over tensor would lose its derivative."""
    with pytest.raises(RuntimeError, match=r'`apply` cannot be batched by torch.func.vmap.*vmap_method="sequential"'):
        vmap(fullgrad.linear_map(by_numpy, by_numpy))(X)
    w = X.clone().requires_grad_()
    for f in (lambda x: x * w, lambda x: torch.from_numpy(w.detach().numpy()) * x * w):
        with pytest.raises(RuntimeError, match="custom_jvp: <lambda> captures a tensor"):
            fullgrad.custom_jvp(f, vmap_method="sequential")(X)
    with pytest.raises(RuntimeError, match="captures a tensor that requires a gradient or belongs to a transform"):
        grad(lambda w: fullgrad.custom_jvp(lambda x: x * w, vmap_method="sequential")(X).sum())(X)
    with pytest.raises(AttributeError, match="custom_jvp: by_numpy has no rule"):
        grad(lambda x: fullgrad.custom_jvp(by_numpy, vmap_method="sequential")(x).sum())(X)
    with pytest.raises(RuntimeError, match="changes an argument in place"):
        fullgrad.custom_jvp(lambda x: x.mul_(2), vmap_method="sequential")(X.clone())
    with pytest.raises(ValueError, match="custom_vjp: `vmap_method`"):
        fullgrad.custom_vjp(by_numpy, vmap_method="loop")
    with pytest.raises(TypeError, match="`like` must be callable"):
        fullgrad.custom_jvp(by_numpy, like=3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["sequential", "broadcast", "map"])
def test_inside_a_checkpoint(method, name):
    """A checkpoint, which looks at what its function uses, does not look into an opaque one."""
    inner = with_gradient(method)
    ours = lambda x: fullgrad.checkpoint(lambda v: inner(v * x).sin(), x.cos())  # noqa: E731
    assert_close(derivative(name, ours), derivative(name, lambda x: torch.erf(x.cos() * x).sin()))


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorized_jacobians_of_autograd(strategy):
    """`torch.autograd.functional` uses torch's legacy vmap, in whose backward code is called for the batch of gradients."""
    total = fullgrad.linear_map(
        lambda x: torch.from_numpy(numpy.cumsum(x.numpy(), -1)),
        lambda g: torch.from_numpy(numpy.cumsum(g.numpy()[..., ::-1], -1)[..., ::-1].copy()),
        vmap_method="broadcast",
    )
    reference = lambda x: torch.erf(x).cumsum(-1)  # noqa: E731
    of = {
        "linear map": lambda x: total(torch.erf(x)),
        "rule": lambda x: with_gradient("broadcast")(x).cumsum(-1),
        "tangent": lambda x: with_rule("sequential")(x).cumsum(-1),
        "checkpoint": lambda x: fullgrad.checkpoint(reference, x),
        "reference": fullgrad.with_reference(lambda x: by_numpy(x).cumsum(-1), reference),
    }
    expected = torch.func.jacrev(reference)(X[0])
    for name, f in of.items():
        found = torch.autograd.functional.jacobian(f, X[0], vectorize=True, strategy=strategy)
        assert_close(found, expected, msg=lambda m, n=name: f"{n}: {m}")


def test_inside_a_selective_checkpoint():
    """Where a selective checkpoint kept the values, nothing is called again, and the result has its structure."""
    policy = lambda ctx, operator, *args, **kwargs: torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE  # noqa: E731
    context = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, policy)
    kernel = fullgrad.with_reference(lambda x: {"y": by_numpy(x)}, lambda x: {"y": torch.erf(x)})
    x = X[0].clone().requires_grad_()
    y = torch.utils.checkpoint.checkpoint(lambda x: kernel(x)["y"].sin(), x, use_reentrant=False, context_fn=context)
    (g,) = torch.autograd.grad(y.sum(), x)
    assert_close(g, grad(lambda x: torch.erf(x).sin().sum())(X[0]))


def test_a_module_in_two_places():
    """A module that a function holds, and that another one of its modules holds too, is left as it was."""

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = self.two = torch.nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, x):
            return self.two(fullgrad.checkpoint(lambda x: torch.tanh(self.one(self.two(x))), x)).sum()

    net = Twice()
    weight, parameters = net.one.weight, {n: p.detach() for n, p in net.named_parameters()}

    def expected(p, x):
        linear = lambda x: torch.nn.functional.linear(x, p["one.weight"], p["one.bias"])  # noqa: E731
        return linear(torch.tanh(linear(linear(x)))).sum()

    net(X[0]).backward()
    assert_close({n: p.grad for n, p in net.named_parameters()}, grad(expected)(parameters, X[0]))
    assert net.one.weight is weight
    linear = net.one

    @fullgrad.custom_vjp
    def both(net, linear, x):
        return linear(net.one(x))

    both.defvjp(lambda net, linear, x: (both(net, linear, x), x), lambda x, g: (None, None, g))
    both(net, linear, X[0])
    assert net.one.weight is linear.weight is weight


class Transparent(TorchDispatchMode):
    """A mode that is no tracer."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def in_a_selective_checkpoint(op, x):
    contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.MUST_SAVE)
    return checkpoint(lambda x: op(x).sin(), x, use_reentrant=False, context_fn=contexts)


def in_a_mode(op, x):
    with Transparent():
        return op(x)


PLACES = {
    "eager": lambda op, x: op(x),
    "meta": lambda op, x: op(x.detach().to("meta").requires_grad_()),
    "mode": in_a_mode,
    "selective checkpoint": in_a_selective_checkpoint,
    "vmap": lambda op, x: vmap(op)(x),
    "vmap in a mode": lambda op, x: in_a_mode(vmap(op), x),
}


@pytest.mark.parametrize("place", PLACES)
def test_functions_are_freed(place):
    """Where no graph calls them again, functions live as long as the operator."""
    kernels = []
    for _ in range(3):
        kernel = lambda x: x * 2  # noqa: E731
        kernels.append(weakref.ref(kernel))
        op = fullgrad.with_reference(kernel, lambda x: 2 * x)
        PLACES[place](op, torch.ones(3, requires_grad=True)).sum().backward()
        del op, kernel
    gc.collect()
    assert not any(ref() for ref in kernels)
