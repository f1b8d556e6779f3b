"""Per-sample gradients in two processes: each computes with its samples, and the sums are added by hand."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from fullgrad import per_sample
from tests.distributed.ranks import in_processes

WORLD, STEPS, SIZE = 2, 3, 6


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def private(net):
    """The clipped sums of a network."""
    return per_sample.clipped(lambda p, x: functional_call(net, p, (x,)).square().sum(), 1.0)


def batch(step):
    return torch.randn(SIZE, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def reduced(sums):
    for s in sums.values():
        dist.all_reduce(s)


def alone():
    """The parameters after some steps, and all norms, in one process."""
    net, found = network(), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(STEPS):
        params = {name: p.detach() for name, p in net.named_parameters()}
        sums, norms = private(net)(params, batch(step))
        found.append(norms)
        for name, p in net.named_parameters():
            p.grad = sums[name] / SIZE
        optimizer.step()
    return list(net.parameters()), found


def replicated(own):
    """DDP: the module inside it has the parameters; its hooks, which reduce gradients, do not run."""
    net, found = DistributedDataParallel(network()), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(STEPS):
        params = {name: p.detach() for name, p in net.module.named_parameters()}
        sums, norms = private(net.module)(params, batch(step)[own])
        found.append(norms)
        reduced(sums)
        for name, p in net.module.named_parameters():
            p.grad = sums[name] / SIZE
        optimizer.step()
    return list(net.parameters()), found


def sharded(own):
    """FSDP2: whole parameters, a module that is not sharded, and gradients in shards again."""
    mesh = init_device_mesh("cpu", (WORLD,))
    net, plain, found = fully_shard(network(), mesh=mesh), network(), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with pytest.raises(NotImplementedError, match=r"^clipped: a parameter is a DTensor"):
        private(plain)(dict(net.named_parameters()), batch(0))
    for step in range(STEPS):
        params = {name: p.detach().full_tensor() for name, p in net.named_parameters()}
        sums, norms = private(plain)(params, batch(step)[own])
        found.append(norms)
        reduced(sums)
        for name, p in net.named_parameters():
            p.grad = distribute_tensor(sums[name] / SIZE, mesh, p.placements)
        optimizer.step()
    return [p.full_tensor() for p in net.parameters()], found


def compare(rank, world):
    wanted, norms = alone()
    own = slice(rank * SIZE // world, (rank + 1) * SIZE // world)
    for way in (replicated, sharded):
        found, own_norms = way(own)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(own_norms, [n[own] for n in norms])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_clipped_sums_of_processes_are_those_of_one():
    """In DDP and in FSDP2, the same parameters after some steps, and the same norms."""
    in_processes(compare, WORLD)
