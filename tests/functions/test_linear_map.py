"""A linear function and its transpose: derivatives of every order, in any code."""

import numpy
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import fullgrad

X = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]], dtype=torch.float64)
A = numpy.array([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]])
M = torch.from_numpy(A)


def by_numpy(x):
    """A x, in code that torch cannot see."""
    return torch.from_numpy(x.numpy() @ A.T)


def transposed_by_numpy(g):
    """A^T g."""
    return torch.from_numpy(g.numpy() @ A)


def by_torch(x):
    """A x."""
    return x @ M.T


MAPS = {
    "sequential": fullgrad.linear_map(by_numpy, transposed_by_numpy, vmap_method="sequential"),
    "broadcast": fullgrad.linear_map(by_numpy, transposed_by_numpy, vmap_method="broadcast"),
    "map": fullgrad.linear_map(by_torch, lambda g: g @ M),
}


@pytest.mark.parametrize("method", MAPS)
def test_every_order(method):
    """All derivatives are those of the matrix product."""
    f, x = MAPS[method], X[0]

    def loss(f):
        return lambda x: (f(x) ** 3).sum()

    def nested(f):
        return vmap(lambda x: vmap(grad(loss(f)))(torch.stack([x, 2 * x])))

    for run in (
        lambda f: f(x),
        lambda f: jacrev(f)(x),
        lambda f: jacfwd(f)(x),
        lambda f: hessian(loss(f))(x),
        lambda f: jacrev(jacrev(loss(f)))(x),
        lambda f: jacfwd(jacfwd(jacfwd(loss(f))))(x),
        lambda f: vmap(grad(loss(f)))(X),
        lambda f: vmap(hessian(loss(f)), -1)(X.T),
        lambda f: grad(lambda x: vmap(loss(f))(x).sum())(X),
        lambda f: nested(f)(X),
        lambda f: jvp(f, (x,), (x + 1,))[1],
    ):
        assert_close(run(f), run(by_torch))
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(f)(leaf), leaf, create_graph=True)
    assert_close(torch.autograd.grad(g.sum(), leaf)[0], hessian(loss(by_torch))(x).sum(0))
    assert torch.autograd.gradgradcheck(f, leaf)


def test_a_complex_map_has_its_adjoint():
    """The transpose of a Fourier transform is its conjugate transpose, as for torch's own."""
    f = fullgrad.linear_map(torch.fft.fft, lambda g: torch.fft.ifft(g) * g.shape[-1])
    z = torch.complex(X[0], X[1])
    for run in (lambda f: grad(lambda z: f(z).abs().square().sum())(z), lambda f: jvp(f, (z,), (z * 1j,))[1]):
        assert_close(run(f), run(torch.fft.fft))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled(backend):
    """A map of torch code is traced, and any other is one node of the graph, with all derivatives."""
    total = fullgrad.linear_map(*[lambda x: x - x.mean(-1, keepdim=True)] * 2)
    other = fullgrad.linear_map(by_numpy, transposed_by_numpy, vmap_method="broadcast", like=lambda x: x[..., :2])

    def run(x):
        return [vmap(grad(lambda x, f=f: grad(lambda x: (f(x) ** 3).sum())(x).square().sum()))(x) for f in (total, other)]

    assert_close(torch.compile(run, backend=backend, fullgraph=True)(X), run(X))


def test_a_wrong_like_is_an_error():
    """The node knows for what it was compiled."""
    f = fullgrad.linear_map(by_numpy, transposed_by_numpy, vmap_method="broadcast", like=lambda x: x.sum())
    with pytest.raises(RuntimeError, match=r"`apply` was compiled for .*State them by `like`"):
        torch.compile(f, backend="aot_eager", fullgraph=True)(X[0])


def test_nothing_is_saved():
    """The derivative does not use the argument."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda t: t):
        MAPS["map"](X.clone().requires_grad_()).sum()
    assert saved == []


def test_an_empty_batch():
    """No sample is no call."""
    assert vmap(MAPS["sequential"])(X[:0]).shape == (0, 3)


def test_errors():
    """What cannot work is an error by name."""
    with pytest.raises(TypeError, match="`transpose` must be callable"):
        fullgrad.linear_map(by_torch, None)
    with pytest.raises(ValueError, match="`vmap_method`"):
        fullgrad.linear_map(by_torch, by_torch, vmap_method="loop")
    with pytest.raises(TypeError, match=r"floating or complex tensor, got dtype torch.int64"):
        MAPS["map"](torch.arange(3))
    with pytest.raises(
        ValueError, match=r"`transpose`: its result must have the shape of the argument of `apply`, \(3,\), got \(2,\)"
    ):
        grad(lambda x: fullgrad.linear_map(by_torch, lambda g: g)(x).sum())(X[0])
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="`apply` captures a tensor that requires a gradient"):
        fullgrad.linear_map(lambda x: x * weight, lambda g: g)(X[0])
    with pytest.raises(RuntimeError, match="`apply` captures a tensor that requires a gradient"):
        grad(lambda w: fullgrad.linear_map(lambda x: x * w, lambda g: g)(X[0]).sum())(X[0])
