"""
One network on several processes
================================

A quantized network with sparse attention learns to read digits: in one process, and on several by data parallelism, fully
sharded, tensor parallel, compiled and checkpointed. After ten steps the parameters are the same, and so are the clipped
per-sample gradients of differentially private training. The operators are those of one process; nothing is written for many.

Run ``torchrun --nproc-per-node 2 examples/distributed.py``; ``python examples/distributed.py`` starts two processes by itself,
whose table stands at the end of this page. It needs ``pip install -e ".[demo]"``, takes about half a minute on two cores, and
ends with an error if a number is not as this page says.
"""

import copy
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, linear
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import fullgrad

STEPS, BATCH = 10, 60
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

# %%
# The network
# -----------
#
# Eight rows of a digit attend to each other with weights of `entmax`, many of which are 0. Weights are quantized with a step that
# learns (`lsq`), activations to four bits.


class QuantizedLinear(nn.Linear):
    """A layer whose weights are quantized to three bits."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.step = nn.Parameter(self.weight.detach().abs().mean().reshape(1))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, fullgrad.quantizers.lsq(self.weight, self.step, -4, 3), self.bias)


class Network(nn.Module):
    """Attention over rows, two layers, ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 16) for _ in range(3))
        self.up, self.down, self.classes = QuantizedLinear(16, 32), QuantizedLinear(32, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.unflatten(-1, (8, 8))
        scores = self.query(rows) @ self.key(rows).transpose(-2, -1) / 4
        seen = (fullgrad.soft.entmax(scores, 1.5) @ self.value(rows)).mean(-2)
        hidden = fullgrad.k_bit_quantize(fullgrad.clamp(self.up(seen), 0.0, 1.0), 4)
        return self.classes(self.down(hidden))


digits = load_digits()
images, labels = torch.tensor(digits.data / 16), torch.tensor(digits.target)
torch.manual_seed(0)
start = Network().double()


def train(network: nn.Module, part: slice, loss_scale: float = 1.0) -> nn.Module:
    """Run gradient descent on a part of each batch. The loss is a sum over the part, divided by the size of the whole batch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        x, y = images[batch][part], labels[batch][part]
        optimizer.zero_grad()
        (cross_entropy(network(x), y, reduction="sum") * (loss_scale / BATCH)).backward()
        optimizer.step()
    return network


def whole(t: Tensor) -> Tensor:
    """The whole of a tensor, on every process."""
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach()


def parameters(network: nn.Module) -> dict[str, Tensor]:
    """The parameters by name, as one process has them."""
    return {name.removeprefix("module."): whole(p) for name, p in network.named_parameters()}


def difference(found: dict[str, Tensor]) -> float:
    """The largest difference of any parameter from training in one process."""
    return max(float((found[name] - p).abs().max()) for name, p in expected.items())


everything = slice(None)
mine = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
expected = parameters(train(copy.deepcopy(start), everything))


def report(setting: str, found: float) -> None:
    """Print a row of the table, on the first process."""
    if rank == 0:
        print(f"{setting:<30}{found:.1e}", flush=True)
    assert found < 1e-10, setting


# %%
# Data parallel, and fully sharded
# --------------------------------
#
# Each process has its part of the batch. Both average gradients over processes, and each part's loss is divided by the size of
# the whole batch: so it is multiplied by the number of processes.


def data_parallel(mesh: DeviceMesh) -> None:
    """By torch's wrapper."""
    parallel = train(DistributedDataParallel(copy.deepcopy(start)), mine, ranks)
    report("data parallel", difference(parameters(parallel)))


def fully_sharded(mesh: DeviceMesh) -> None:
    """By FSDP, whose checkpoint one process loads."""
    sharded = copy.deepcopy(start)
    for layer in (sharded.up, sharded.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    report("fully sharded", difference(parameters(train(sharded, mine, ranks))))

    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared)
        dcp.save(sharded.state_dict(), checkpoint_id=shared[0])
        alone = Network().double()
        state = alone.state_dict()
        dcp.load(state, checkpoint_id=shared[0])
        dist.barrier()
    alone.load_state_dict(state)
    report("saved sharded, loaded whole", difference(parameters(alone)))


# %%
# Compiled, and computed again in the backward
# --------------------------------------------


class Checkpointed(Network):
    """A module that keeps only its input for the backward."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def checkpointed(mesh: DeviceMesh) -> None:
    """What the forward computed is computed again in the backward."""
    again = Checkpointed().double()
    again.load_state_dict(start.state_dict())
    again = train(DistributedDataParallel(again), mine, ranks)
    report("data parallel, checkpointed", difference(parameters(again)))


def compiled(mesh: DeviceMesh) -> None:
    """By ``torch.compile``."""
    network = DistributedDataParallel(copy.deepcopy(start))
    train(torch.compile(network, backend="aot_eager"), mine, ranks)
    report("data parallel, compiled", difference(parameters(network)))


# %%
# Tensor parallel
# ---------------
#
# The weights of a pair of layers are split, by rows and then by columns, and every operator meets distributed tensors: `lsq` runs
# on the shard of a weight, and the gradient of its step, which every process has, is a sum over processes.


def split(name: str, module: nn.Module, mesh: DeviceMesh, dims: dict[str, int]) -> None:
    """Distribute the parameters of one module."""
    for key, p in list(module.named_parameters(recurse=False)):
        how = Shard(dims[f"{name}.{key}"]) if f"{name}.{key}" in dims else Replicate()
        module.register_parameter(key, nn.Parameter(distribute_tensor(p.detach(), mesh, [how])))


def from_whole(module: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> tuple[Tensor, ...]:
    """Mark an input as the whole batch, which every process has."""
    return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)


def to_whole(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    """Give every process the whole result."""
    return output.redistribute(placements=[Replicate()]).to_local()


def tensor_parallel(mesh: DeviceMesh) -> None:
    """By torch's distributed tensors."""
    dims = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    network = distribute_module(copy.deepcopy(start), mesh, partial(split, dims=dims), from_whole, to_whole)
    report("tensor parallel", difference(parameters(train(network, everything))))


# %%
# Per-sample gradients, clipped, on parts of a batch
# --------------------------------------------------
#
# As in differentially private training: each sample's gradient is clipped to a norm, and the sum goes over all processes. The
# noise would be added once, to the sum.


def clipped_sum(x: Tensor, y: Tensor) -> Tensor:
    """The sum of the samples' gradients, each clipped to norm 1."""
    weights = {name: p.detach() for name, p in start.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(start, weights, (x,)), y)

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    rows = torch.cat([g.flatten(1) for g in gradients.values()], 1)
    return (rows / rows.norm(dim=1, keepdim=True).clamp(min=1)).sum(0)


def clipped(mesh: DeviceMesh) -> None:
    """Over the parts of a batch, and over all of it."""
    of_all = clipped_sum(images[:BATCH], labels[:BATCH])
    of_parts = clipped_sum(images[:BATCH][mine], labels[:BATCH][mine])
    dist.all_reduce(of_parts)
    report("sum of clipped gradients", float((of_parts - of_all).abs().max()))


# %%
# On two processes
# ----------------
#
# The numbers are of float64, in which sums in another order differ by roundings. In float32 a number within one rounding of a
# tie may be rounded to another step, in one process as well.


def run() -> None:
    """Every way, in one of several processes."""
    warnings.filterwarnings("ignore", category=UserWarning)
    logging.getLogger("torch").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    if rank == 0:
        print(f"{ranks} processes, {STEPS} steps; largest difference of a parameter to one process:", flush=True)
    mesh = init_device_mesh("cpu", (ranks,))
    for way in (data_parallel, fully_sharded, checkpointed, compiled, tensor_parallel, clipped):
        way(mesh)
    dist.destroy_process_group()


def launch() -> None:
    """Start this file in two processes, and print what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", sys.argv[0]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    assert done.returncode == 0


run() if "RANK" in os.environ else launch()
