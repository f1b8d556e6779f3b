"""Tensors that hold no numbers, or hold them elsewhere: meta, fake and distributed tensors."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

from tests.operators import CASES, Cube, CubicRound, MatMul, SinCos, ThroughRound, sample

pytestmark = pytest.mark.short


@pytest.fixture(params=[name for name in CASES if name not in ("matmul", "norm", "max")])
def case(request):
    return CASES[request.param]


TRANSFORMS = {
    "value": lambda f, x: f(x),
    "grad": lambda f, x: grad(lambda x: f(x).sum())(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: jacfwd(jacrev(f))(x),
    "jvp": lambda f, x: jvp(f, (x,), (x,))[1],
    "vmap": lambda f, x: vmap(f)(x.expand(2, 3)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_meta(case, name):
    """Shape, dtype and device come out of every transform."""
    x = sample()
    result, expected = TRANSFORMS[name](case.function, x.to("meta")), TRANSFORMS[name](case.oracle, x)
    assert result.is_meta
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_fake(case, name):
    """Fake tensors have the shape, dtype and device of every transform."""
    expected = TRANSFORMS[name](case.oracle, sample())
    with FakeTensorMode() as mode:
        result = TRANSFORMS[name](case.function, mode.from_tensor(sample()))
    assert isinstance(result, FakeTensor)
    assert (result.shape, result.dtype, result.device) == (expected.shape, expected.dtype, expected.device)


@pytest.mark.parametrize("place", ["meta", "fake"])
def test_backward_without_data(case, place):
    """Eager autograd runs on tensors without data."""
    mode = FakeTensorMode()
    x = sample().to("meta") if place == "meta" else mode.from_tensor(sample())
    with mode if place == "fake" else contextlib.nullcontext():
        x = x.detach().requires_grad_()
        y = case.function(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        assert gradient.shape == x.shape
        assert y.shape == x.shape


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """A group of one process."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
@pytest.mark.parametrize("operator", [Cube, CubicRound, ThroughRound])
def test_dtensor(mesh, operator, placement):
    """Value and gradient are those of the whole tensor, and stay distributed."""
    x = sample(4)
    leaf = distribute_tensor(x, mesh, [placement]).requires_grad_()
    y = operator.apply(leaf)
    assert isinstance(y, DTensor)
    assert y.placements == (placement,)
    assert torch.equal(y.full_tensor(), operator.apply(x))
    (y**2).sum().backward()
    expected = x.clone().requires_grad_()
    (operator.apply(expected) ** 2).sum().backward()
    assert_close(leaf.grad.full_tensor(), expected.grad)


def test_dtensor_of_several_outputs_and_inputs(mesh):
    """A namedtuple of distributed tensors, and a product of two, are right."""
    x = sample(3)
    leaf = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    pair = SinCos.apply(leaf)
    y = MatMul.apply(pair.sin, pair.cos)
    y.sum().backward()
    expected = x.clone().requires_grad_()
    (expected.sin() @ expected.cos()).sum().backward()
    assert_close(leaf.grad.full_tensor(), expected.grad)


def test_second_derivative_of_a_dtensor(mesh):
    """A second derivative by create_graph is right."""
    x = sample(4)
    leaf = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    (gradient,) = torch.autograd.grad(Cube.apply(leaf).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), leaf)
    assert_close(second.full_tensor(), 6 * x)
