"""A kernel with its mathematics: the value of the one, the derivatives of the other."""

import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.testing import assert_close

import fullgrad
from tests.functions.transforms import NAMES, X, derivative

CALLS = []


def reference(x):
    """x softplus(x)."""
    return x * nn.functional.softplus(x)


def kernel(x):
    """The same by numpy."""
    CALLS.append("kernel")
    return torch.from_numpy(numpy.asarray(x.numpy() * numpy.logaddexp(x.numpy(), 0)))


def backward(inputs, outputs, grads):
    """Its gradient by numpy."""
    CALLS.append("backward")
    x, y, g = inputs[0].numpy(), outputs.numpy(), grads.numpy()
    return (torch.from_numpy(numpy.asarray(g * (numpy.logaddexp(x, 0) + x / (1 + numpy.exp(-x))) + 0 * y)),)


def pushed(inputs, outputs, tangents):
    """Its tangent by numpy."""
    CALLS.append("jvp")
    x, y, t = inputs[0].numpy(), outputs.numpy(), tangents[0].numpy()
    return torch.from_numpy(numpy.asarray(t * (numpy.logaddexp(x, 0) + x / (1 + numpy.exp(-x))) + 0 * y))


def counted(x):
    """The reference, counted."""
    CALLS.append("reference")
    return reference(x)


OPERATORS = {
    "sequential": fullgrad.with_reference(kernel, counted),
    "broadcast": fullgrad.with_reference(kernel, counted, vmap_method="broadcast"),
    "map": fullgrad.with_reference(lambda x: reference(x.clone()), counted, vmap_method="map"),
    "backward": fullgrad.with_reference(kernel, counted, backward=backward),
    "jvp": fullgrad.with_reference(kernel, counted, jvp=pushed),
    "jvp, backward, broadcast": fullgrad.with_reference(kernel, counted, backward=backward, jvp=pushed, vmap_method="broadcast"),
    "backward, broadcast": fullgrad.with_reference(kernel, counted, backward=backward, vmap_method="broadcast"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_order(operator, name):
    """All derivatives are those of the reference."""
    assert_close(derivative(name, OPERATORS[operator]), derivative(name, reference))


def test_training_calls_the_kernels_alone():
    """A first derivative in reverse mode calls no reference, a tangent and a second one do."""
    f = OPERATORS["backward, broadcast"]
    for run, expected in {
        lambda: f(X): {"kernel"},
        lambda: f(X.clone().requires_grad_()).sum().backward(): {"kernel", "backward"},
        lambda: grad(lambda x: f(x).sum())(X): {"kernel", "backward"},
        lambda: vmap(grad(lambda x: f(x).sum()))(X): {"kernel", "backward"},
        lambda: jvp(f, (X,), (X,)): {"kernel", "reference"},
        lambda: jacrev(f)(X[0]): {"kernel", "backward"},
        lambda: hessian(lambda x: f(x).sum())(X[0]): {"kernel", "backward", "reference"},
    }.items():
        CALLS.clear()
        run()
        assert {*CALLS} == expected
    assert len([c for c in CALLS if c == "kernel"]) == 1


def test_a_kernel_of_the_tangent():
    """Value, gradient and tangent call kernels alone; what is differentiated again calls the reference."""
    f = OPERATORS["jvp, backward, broadcast"]
    for run, expected in {
        lambda: jvp(f, (X,), (X,)): {"kernel", "jvp"},
        lambda: vmap(lambda x: jvp(f, (x,), (x,)))(X): {"kernel", "jvp"},
        lambda: jvp(lambda x: f(x)[0], (X.clone().requires_grad_(),), (X,))[0].sum().backward(): {"kernel", "jvp", "backward"},
        lambda: grad(lambda x: jvp(f, (x,), (X,))[1].sum())(X): {"kernel", "jvp", "reference"},
    }.items():
        CALLS.clear()
        run()
        assert {*CALLS} == expected


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 2, -1) @ v


def of_attention(q, k, v):
    """A kernel, with the shares of all keys."""
    q, k, v = [x.detach().numpy() for x in (q, k, v)]
    shares = numpy.exp(q @ k.swapaxes(-1, -2) / 2)
    shares = shares / shares.sum(-1, keepdims=True)
    return torch.from_numpy(shares @ v), torch.from_numpy(shares)


def tangent_of_attention(inputs, outputs, tangents):
    """A kernel for the tangent alone; arguments that do not move have None."""
    q, k, v = inputs
    y, shares = outputs
    dq, dk, dv = [torch.zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True)]
    by_scores = shares * (dq @ k.mT + q @ dk.mT) / 2
    return by_scores @ v - by_scores.sum(-1, keepdim=True) * y + shares @ dv, None


def gradient_of_attention(inputs, outputs, grads):
    q, k, v = inputs
    of_scores = outputs[1] * (grads[0] @ v.mT - (grads[0] * outputs[0]).sum(-1, keepdim=True)) / 2
    return of_scores @ k, of_scores.mT @ q, outputs[1].mT @ grads[0]


@pytest.mark.parametrize("moving", [(0, 1, 2), (0,), (1, 2)], ids=str)
def test_attention_with_a_kernel_of_its_tangent(moving):
    """The losses of MeanFlow and of consistency models, whose parameters get the gradient of a tangent, and a batch of these."""
    kernel = fullgrad.with_reference(
        of_attention,
        lambda *x: (attention(*x), None),
        backward=gradient_of_attention,
        jvp=tangent_of_attention,
        nondiff_outnums=1,
    )
    given = torch.randn(3, 2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind()

    def loss(f, w, *given):
        def model(*some):
            x = [some[moving.index(i)] if i in moving else v for i, v in enumerate(given)]
            return f(*[(v * w).sin() for v in x])

        some = tuple([given[i] for i in moving])
        y, slope = jvp(model, some, tuple([v.cos() for v in some]))
        return (y + slope.detach()).square().sum() + slope.square().sum()

    w = torch.tensor(0.7, dtype=torch.float64)
    for way in (grad, hessian):
        expected = vmap(lambda *x, way=way: way(lambda w: loss(attention, w, *x))(w))(*given)
        assert_close(vmap(lambda *x, way=way: way(lambda w: loss(lambda *x: kernel(*x)[0], w, *x))(w))(*given), expected)
    weight = w.clone().requires_grad_()
    loss(lambda *x: kernel(*x)[0], weight, *given).backward()
    assert_close(weight.grad, grad(lambda w: loss(attention, w, *given))(w))


def test_tangents_of_another_shape_are_refused():
    """What the kernel of the tangent returns is like the result, and positional arguments alone move."""
    wrong = fullgrad.with_reference(kernel, reference, jvp=lambda inputs, outputs, tangents: tangents[0][0])
    with pytest.raises(ValueError, match="`jvp`: a tangent must have the shape of its result"):
        jvp(wrong, (X,), (X,))
    with pytest.raises(TypeError, match="`jvp`, which gives tangents of positional arguments only"):
        jvp(lambda x: fullgrad.with_reference(lambda *, x: kernel(x), lambda *, x: reference(x), jvp=pushed)(x=x), (X,), (X,))
    with pytest.raises(TypeError, match="`jvp` must be callable, got a value of type int"):
        fullgrad.with_reference(kernel, reference, jvp=3)


def two_results(x, y):
    """A result with a derivative, one without, and an integer."""
    return {"out": x * y, "lse": torch.logsumexp(x, -1), "argmax": x.argmax(-1)}


def test_results_without_a_derivative():
    """They are constants; the reference may leave them out, and `backward` gets None for them."""
    seen = []

    def back(inputs, outputs, grads):
        seen.append((outputs["lse"].shape, grads["lse"], grads["argmax"]))
        return grads["out"] * inputs[1], grads["out"] * inputs[0]

    f = fullgrad.with_reference(
        two_results, lambda x, y: {"out": x * y, "lse": None, "argmax": None}, backward=back, nondiff_outnums=1
    )
    x, y = X.clone().requires_grad_(), X.flip(0).requires_grad_()
    out = f(x, y)
    assert [out[k].requires_grad for k in ("out", "lse", "argmax")] == [True, False, False]
    assert_close(torch.autograd.grad(out["out"].sum(), (x, y)), (y.detach(), x.detach()))
    assert seen == [((2,), None, None)]
    assert_close(vmap(hessian(lambda x: (f(x, x)["out"] ** 2).sum()))(X), vmap(hessian(lambda x: (x**4).sum()))(X))


def test_structures_and_keywords():
    """Arguments are any structure, by position or keyword, and constants are given as they are."""
    f = fullgrad.with_reference(
        lambda t, n, *, w: (t["a"] * n + w[0]).clone(), lambda t, n, *, w: t["a"] * n + w[0], vmap_method="sequential"
    )
    found = grad(lambda a, w: f({"a": a, "s": "text"}, 3, w=[w]).sum(), (0, 1))(X, X)
    assert_close(found, (torch.full_like(X, 3), torch.ones_like(X)))


class Layer(nn.Module):
    """A layer whose kernel is called with its weight."""

    def __init__(self, method):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64))
        self.operator = fullgrad.with_reference(self.by_kernel, self.plain, vmap_method=method)

    def by_kernel(self, x):
        with torch.no_grad():
            return x.clone() * self.weight

    def plain(self, x):
        return x * self.weight

    def forward(self, x, plain=False):
        return (self.plain(x) if plain else self.operator(x)) ** 2


@pytest.mark.parametrize("method", ["map", "sequential", "broadcast"])
def test_a_parameter_that_kernel_and_reference_use(method):
    """It is an input: gradients of first and second order, and per-sample ones by functional_call."""
    layer = Layer(method)
    for plain in (False, True):
        w = layer.weight
        (g,) = torch.autograd.grad(layer(X, plain).sum(), w, create_graph=True)
        assert_close(g, (2 * X**2 * w).sum(0))
        assert_close(torch.autograd.grad(g.sum(), w)[0], (2 * X**2).sum(0))
    own = {"weight": 3 * layer.weight.detach()}

    def loss(p, x, plain):
        return functional_call(layer, p, (x, plain)).sum()

    for run in (vmap(grad(loss), (None, 0, None)), vmap(hessian(loss), (None, 0, None))):
        assert_close(run(own, X, False), run(own, X, True))


def test_closed_over_tensors_of_a_transform():
    """An operator made inside a transform is differentiated by what it closes over."""

    def f(w, how="sequential"):
        return fullgrad.with_reference(lambda x: (x * w).clone(), lambda x: x * w, vmap_method=how)(X[0])

    for how in ("map", "sequential", "broadcast"):
        assert_close(jacrev(lambda w: f(w, how) ** 2)(X[1]), jacrev(lambda w: (X[0] * w) ** 2)(X[1]))  # noqa: B023
        assert_close(vmap(grad(lambda w: f(w, how).sum()))(X), X[0].expand(2, 3))  # noqa: B023


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("aot_eager", ["backward, broadcast", "sequential", "map"]),
        pytest.param("inductor", ["backward, broadcast"], marks=pytest.mark.long),
    ],
)
def test_compiled(backend, names):
    """Each kernel is a node of one graph, with its gradient and the reference's."""
    some = [OPERATORS[name] for name in names]

    def run(x):
        return [(vmap(grad(lambda x, f=f: f(x).sum()))(x), f(x)) for f in some]

    def weighted(x):
        return sum([f(x).sum() * 3**i for i, f in enumerate(some)])

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    assert_close(compiled(X), run(X))
    assert_close(compiled(2 * X), run(2 * X))
    leaf = X.clone().requires_grad_()
    g = torch.autograd.grad(torch.compile(weighted, backend=backend, fullgraph=True)(leaf), leaf)
    assert_close(g, torch.autograd.grad(sum([3**i for i in range(len(some))]) * reference(leaf).sum(), leaf))


def test_a_kernel_of_other_code_must_not_draw():
    """A reference cannot draw what the kernel drew."""
    x = X[0].clone().requires_grad_()
    f = fullgrad.with_reference(lambda x: x * torch.rand(3).double(), lambda x: x * torch.rand(3).double())
    with pytest.raises(NotImplementedError, match="with_reference: <lambda> draws random numbers"):
        f(x).sum().backward()


def test_errors():
    """What cannot work is an error by name."""
    with pytest.raises(TypeError, match="`reference` must be callable, got a value of type NoneType"):
        fullgrad.with_reference(kernel, None)
    with pytest.raises(ValueError, match="`vmap_method`"):
        fullgrad.with_reference(kernel, reference, vmap_method="loop")
    with pytest.raises(TypeError, match="`nondiff_outnums` must be integers"):
        fullgrad.with_reference(kernel, reference, nondiff_outnums=("lse",))
    x = X.clone().requires_grad_()
    for other, error, message in (
        (lambda x: reference(x).sum(), ValueError, r"the result of `reference` must have the shape of the kernel's"),
        (lambda x: reference(x).float(), TypeError, "must have the dtype"),
        (lambda x: (reference(x), x), TypeError, "`reference` must be a tensor, got a value of type tuple"),
        (lambda x: reference(x) * HIDDEN(), RuntimeError, "requires a gradient and was not used in the call"),
    ):
        with pytest.raises(error, match=message):
            fullgrad.with_reference(kernel, other)(x).sum().backward()
    for back, error, message in (
        (lambda *_: None, TypeError, "kernel: `backward` must return a tuple with a gradient"),
        (lambda i, o, g: (g.sum(),), ValueError, "a gradient must have the shape of its argument"),
    ):
        with pytest.raises(error, match=message):
            fullgrad.with_reference(kernel, reference, backward=back)(x).sum().backward()
    with pytest.raises(RuntimeError, match="with_reference: <lambda> changes an argument in place"):
        fullgrad.with_reference(lambda x: x.mul_(2), reference)(x)
    f = fullgrad.with_reference(lambda x, w: x * w, lambda x, w: x * w, backward=lambda i, o, g: (g * i[1],))
    with pytest.raises(TypeError, match="`backward`, which gives gradients of positional arguments only"):
        f(X, w=x)


# Where no walk through what a function names finds it.
KEPT = torch.ones(3, dtype=torch.float64, requires_grad=True)
HIDDEN = weakref.ref(KEPT)
