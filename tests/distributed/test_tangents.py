"""Tangents in models under `DistributedDataParallel`, whose own code takes no tensors of transforms."""

import pytest
import torch
from torch import nn
from torch.func import jvp
from torch.nn.parallel import DistributedDataParallel

import fullgrad
from tests.distributed.ranks import in_processes


class Net(nn.Module):
    """Two layers with a spike of another package between them, and a layer that is not used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.unused = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.second(Spike.apply(self.first(x)))


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g / (1 + ctx.saved_tensors[0].abs()) ** 2


class Loss(nn.Module):
    """A loss of the value and of the tangent."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        y, slope = jvp(self.net, (x,), (x.cos(),))
        return y.square().mean() + slope.square().mean()


def batch(step, rank):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def trained(loss, rank, world=1):
    """The first weights after each of four steps: of one rank, or the mean of all in one process."""
    optimizer, found = torch.optim.SGD(loss.parameters(), 0.1), []
    for step in range(4):
        optimizer.zero_grad()
        for r in range(world) if rank is None else [rank]:
            (loss(batch(step, r)) / world).backward()
        optimizer.step()
        found.append(next(loss.parameters()).detach().clone())
    return found


def compare(rank, world):
    with fullgrad.adopting():
        expected = trained(Loss(Net()), None, world)
        for options in ({"find_unused_parameters": True}, {"static_graph": True}, {}):
            net = Net()
            if not options:
                net.unused.requires_grad_(False)
            found = trained(DistributedDataParallel(Loss(net), **options), rank)
            for step, (a, b) in enumerate(zip(found, expected, strict=True)):
                torch.testing.assert_close(a, b, msg=lambda m, at=(options, step): f"{at}: {m}")


@pytest.mark.long
def test_a_loss_module_of_tangents():
    """A module that takes the tangent inside trains as one process does, with unused parameters, a static graph, new buckets."""
    in_processes(compare, 2)
