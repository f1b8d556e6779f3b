"""Four steps of training through `forward.jvp` in two processes, each way of torch to share a model, against double backward."""

import contextlib

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fullgrad
from fullgrad.forward import jvp
from tests.distributed.ranks import in_processes

WORLD, STEPS = 2, 4
MASK = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)


class Block(nn.Module):
    """Attention with a mask and dropout, which a checkpoint may compute again."""

    def __init__(self, checkpointed):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.checkpointed = checkpointed

    def forward(self, x):
        block = lambda x: self.layer(x, MASK.to(x.dtype))  # noqa: E731
        return fullgrad.checkpoint(block, x) if self.checkpointed else block(x)


def network(checkpointed=False, half=False, plain=False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) if plain else Block(checkpointed), nn.Linear(8, 8))
    return net.float() if half else net.double()


def loss_of(value, tangent):
    return (value.float() - tangent.float().sin()).square().mean()


class Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return loss_of(*jvp(self.net, (x,), (x.cos(),)))


class ByTorch(Loss):
    """The same by torch's own jvp, with the graph of its tangent."""

    def forward(self, x):
        with fullgrad.completing():
            value, tangent = torch.func.jvp(self.net, (x,), (x.cos(),))
        return loss_of(value, tangent.detach())


KINDS = {
    "around the model": lambda net: Loss(DistributedDataParallel(net)),
    "around the loss": lambda net: DistributedDataParallel(Loss(net)),
    "in shards": lambda net: Loss(fully_shard(net, mesh=init_device_mesh("cpu", (WORLD,)))),
    "by layers in shards": lambda net: Loss(by_layers(net)),
    "compiled, around the loss": lambda net: DistributedDataParallel(torch.compile(Loss(net), backend="aot_eager")),
}


def by_layers(net):
    mesh = init_device_mesh("cpu", (WORLD,))
    for part in net:
        fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def batch(rank, step):
    """The batch of a process, whose random numbers begin anew."""
    torch.manual_seed(100 * rank + step)
    return torch.randn(3, 5, 8, dtype=torch.float64)


def trained(wrapped, ranks, **options):
    """The parameters after some steps along the mean gradient of the batches of some ranks."""
    net, half = network(**options), options.get("half")
    loss, optimizer = wrapped(net), torch.optim.SGD(net.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in ranks:
            x = batch(rank, step)
            with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
                value = loss(x.float() if half else x)
            (value / len(ranks)).backward()
        optimizer.step()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]


def compare(rank, world, kinds):
    options = [{}, {"checkpointed": True}, {"half": True}] if kinds == EAGER else [{"plain": True}]
    for given in options:
        wanted = trained(ByTorch, range(world), **{**given, "checkpointed": False})
        start = list(network(**given).parameters())
        for kind in kinds:
            found = trained(KINDS[kind], [rank], **given)
            for a, b, before in zip(found, wanted, start, strict=True):
                change = float((b - before).abs().max())
                assert change > 1e-4
                atol = 0.1 * change if "half" in given else 1e-7
                torch.testing.assert_close(a, b, rtol=0, atol=atol, msg=lambda m, at=(kind, given): f"{at}: {m}")


if torch.__version__.startswith("2.11."):  # whose FSDP2 raises in forward mode: docs/families/forward.md
    del KINDS["in shards"], KINDS["by layers in shards"]
EAGER = [kind for kind in KINDS if "compiled" not in kind]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kinds", [EAGER, [kind for kind in KINDS if kind not in EAGER]], ids=["eager", "compiled"])
@pytest.mark.sampled(of=2)
def test_four_steps_in_processes_are_those_of_double_backward(kinds):
    """With a mask, dropout, a checkpoint, autocast, in DDP around the model or the loss, and in FSDP2."""
    in_processes(compare, WORLD, kinds)
