"""Ten steps in four processes on gloo, for each way of torch to split a model: the parameters are those of one process."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import pipe_split, pipeline
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, linear

import fullgrad
from tests.distributed.ranks import before_2_12, in_processes

STEPS, BATCH = 10, 8


class QuantizedLinear(nn.Linear):
    """A layer with a learned step for each output."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.step = nn.Parameter(self.weight.detach().abs().mean(1, keepdim=True))

    def forward(self, x):
        return linear(x, fullgrad.quantizers.lsq(self.weight, self.step, -4, 3), self.bias)


class Block(nn.Module):
    """Two quantized layers with quantized activations between them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = QuantizedLinear(16, 32), QuantizedLinear(32, 16)

    def forward(self, x):
        return self.down(fullgrad.k_bit_quantize(fullgrad.clamp(self.up(x), 0.0, 1.0), 4))


class Network(nn.Module):
    """A block on each position of a sequence, sparse attention from a learned query, ten classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.block = nn.Linear(8, 16), nn.LayerNorm(16), Block()
        self.query, self.classes = nn.Linear(16, 1), nn.Linear(16, 10)

    def forward(self, x):
        h = self.embed(x)
        h = h + self.block(self.norm(h))
        weights = fullgrad.soft.entmax(self.query(h), 1.5, -2)
        return self.classes((weights * h).sum(-2))


def start():
    torch.manual_seed(0)
    return Network().double()


def batches():
    """The batches, the same in every process."""
    g = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.rand(BATCH, 8, 8, generator=g, dtype=torch.float64), torch.randint(0, 10, (BATCH,), generator=g)


def train(network, part=slice(None), scale=1.0, dtype=torch.float64):
    """Run gradient descent on a part of each batch; the loss is a sum over the part, divided by the whole batch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for x, y in batches():
        optimizer.zero_grad()
        loss = cross_entropy(network(x[part].to(dtype)), y[part], reduction="sum") * (scale / BATCH)
        loss.backward()
        optimizer.step()
    return network


# --- Ways to split, each from a mesh of four processes --------------------------------------------------------------------

LAYERS = {"block.up": ColwiseParallel(use_local_output=False), "block.down": RowwiseParallel()}


def tensor_parallel(world):
    return train(parallelize_module(start(), init_device_mesh("cpu", (world,)), LAYERS))


def tensor_parallel_with_plain_activations(world):
    """torch's default tensor parallelism, with plain activations."""
    plan = {"block.up": ColwiseParallel(), "block.down": RowwiseParallel()}
    return train(parallelize_module(start(), init_device_mesh("cpu", (world,)), plan))


def tensor_parallel_compiled(world):
    network = parallelize_module(start(), init_device_mesh("cpu", (world,)), LAYERS)
    train(torch.compile(network, backend="aot_eager"))
    return network


def sequence_parallel(world):
    """Activations are split along the sequence outside the layers; the attention gathers what it normalizes."""
    split = {"use_local_output": False}
    plan = {
        "embed": ColwiseParallel(output_layouts=Shard(1), **split),
        "norm": SequenceParallel(**split),
        "block": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "block.up": ColwiseParallel(**split),
        "block.down": RowwiseParallel(output_layouts=Shard(1), **split),
        "query": SequenceParallel(**split),
        "classes": ColwiseParallel(output_layouts=Replicate()),
    }
    return train(parallelize_module(start(), init_device_mesh("cpu", (world,)), plan))


def sharded_and_tensor_parallel(world):
    """A mesh of two dimensions has parts of the batch along one, parts of the layers along the other."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
    network = parallelize_module(start(), mesh["tensor"], LAYERS)
    fully_shard(network.block, mesh=mesh["data"])
    fully_shard(network, mesh=mesh["data"])
    return train(network, part_of_batch(mesh["data"].get_local_rank(), 2), 2)


def fully_sharded_and_compiled(world):
    mesh, network = init_device_mesh("cpu", (world,)), start()
    network.block.compile(backend="aot_eager")
    fully_shard(network.block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return train(network, part_of_batch(mesh.get_local_rank(), world), world)


def part_of_batch(i, parts):
    return slice(i * BATCH // parts, (i + 1) * BATCH // parts)


WAYS = [
    tensor_parallel,
    tensor_parallel_with_plain_activations,
    tensor_parallel_compiled,
    *[sequence_parallel][before_2_12:],  # torch 2.11 has no linear layer of a split sequence
    sharded_and_tensor_parallel,
    fully_sharded_and_compiled,
]


def mixed_precision(world):
    """Fully sharded training, computed in bfloat16 and reduced in float32."""
    mesh, network = init_device_mesh("cpu", (world,)), start().float()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(network, mesh=mesh, mp_policy=policy)
    return train(network, part_of_batch(mesh.get_local_rank(), world), world, torch.float32)


def mixed_precision_in_one_process(world):
    """Training of each part of the batch by a copy in bfloat16, with gradients averaged in float32."""
    network = start().float()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for x, y in batches():
        sums = [torch.zeros_like(p) for p in network.parameters()]
        for rank in range(world):
            part, half = part_of_batch(rank, world), copy.deepcopy(network).bfloat16()
            loss = cross_entropy(half(x[part].bfloat16()), y[part], reduction="sum") * (world / BATCH)
            for total, gradient in zip(sums, torch.autograd.grad(loss, [*half.parameters()]), strict=True):
                total += gradient.float()
        for p, total in zip(network.parameters(), sums, strict=True):
            p.grad = total / world
        optimizer.step()
    return network


def parameters(network):
    """The whole parameters, by name."""
    whole = lambda p: p.full_tensor() if isinstance(p, DTensor) else p  # noqa: E731
    return {name.removeprefix("_orig_mod."): whole(p).detach() for name, p in network.named_parameters()}


def compare(rank, world):
    """Compare in each process."""
    expected = parameters(train(start()))
    for way in WAYS:
        for name, p in parameters(way(world)).items():
            torch.testing.assert_close(p, expected[name], rtol=0, atol=1e-13, msg=lambda m, at=(way.__name__, name): f"{at}: {m}")
    expected = parameters(mixed_precision_in_one_process(world))
    for name, p in parameters(mixed_precision(world)).items():
        torch.testing.assert_close(p, expected[name], rtol=0, atol=1e-6, msg=lambda m, at=name: f"mixed precision, {at}: {m}")


@pytest.mark.long
def test_the_parameters_of_four_processes_are_those_of_one():
    """Parameters agree to a rounding of float64, or with mixed precision of float32."""
    in_processes(compare, 4)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch about itself
def test_a_traced_pipeline_drops_declared_derivatives():
    """A traced pipeline drops derivatives with a warning, as the guide says; modules that are stages keep them."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            x = fullgrad.round(self.first(x))
            pipe_split()
            return fullgrad.round(self.second(x))

    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="drops the declared derivative"):
        traced = pipeline(Model(), (x,))
    y = traced.get_stage_module(1)(traced.get_stage_module(0)(x))
    y.sum().backward()
    assert all(not p.grad.any() for p in second.parameters() if p.grad is not None)
    second.zero_grad()
    fullgrad.round(second(fullgrad.round(first(x)))).sum().backward()
    assert second.bias.grad.equal(torch.full((2,), 4.0))
