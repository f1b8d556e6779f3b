"""The bytes that a call sends and holds on each rank: counted in processes, and by a model of four terms."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Shard
from torch.utils._python_dispatch import TorchDispatchMode

import fullgrad
from fullgrad import quantizers, soft
from fullgrad._suite.bench._measure import Statement, peak_bytes
from tests.distributed.ranks import laid_out


class Cost(NamedTuple):
    """The cost of a forward and a backward on one rank, in bytes, and their number of collectives."""

    sent: float
    held: float
    collectives: int


class Family(NamedTuple):
    """Operators that distribute alike: an example, the placement of its input, and their cost.

    ``gathers`` and ``reduces`` are how often all elements are gathered from the ranks, or summed over them; ``numbers`` are those
    that each rank sends besides. ``whole`` is how many tensors of all elements a rank holds at most, ``shards`` how many of its
    share, beyond the input. ``elements`` are the sizes at which a test counts.
    """

    name: str
    call: Callable[[Tensor], Tensor]
    placement: Any
    whole: float
    shards: float
    gathers: int = 0
    reduces: int = 0
    numbers: int = 0
    number_collectives: int = 0
    elements: tuple[int, int] = (2**16, 2**18)

    @property
    def computes(self) -> str:
        """The share of the elements that each rank computes with."""
        return "all" if self.whole else "1/R"

    def cost(self, elements: int, ranks: int, itemsize: int = 4) -> Cost:
        """The cost by the usual algorithms: rings, where a gathered shard passes every rank, and a sum goes around twice."""
        size = elements * itemsize
        ring = size * (ranks - 1) / ranks
        sent = (self.gathers + 2 * self.reduces) * ring + self.numbers * (ranks - 1) * itemsize
        held = self.whole * size + self.shards * size / ranks
        return Cost(sent, held, self.gathers + self.reduces + self.number_collectives)


def _sort(x: Tensor) -> Tensor:
    return fullgrad.sort_st(x, 1, method="fast_soft_sort").values


def _argmax(x: Tensor) -> Tensor:
    return fullgrad.argmax_st(x, 1)


# How many tensors of their input they hold at most.
ARGMAX, SORT = 6, 40.75


# Sizes at which elementwise formulas are computed in pieces, by which they hold less.
LARGE = (2**20, 2**22)


# What is held is that of one process, and of split rows and sums one tensor more, which is gathered or summed.
FAMILIES = [
    Family("elementwise: `soft.abs`", soft.abs, Shard(0), 0, 2, elements=LARGE),
    Family("the same of a sum in parts", soft.abs, Partial(), 3, 0, reduces=1, elements=LARGE),
    Family("`quantizers.fake_quantize`", lambda x: quantizers.fake_quantize(x, 0.1), Shard(0), 0, 2),
    Family("whole tensor: `scale_grad`", fullgrad.scale_grad, Shard(0), 0, 1, numbers=2, number_collectives=1),
    Family("rows not split: `argmax_st`", _argmax, Shard(0), 0, ARGMAX),
    Family("rows split: `argmax_st`", _argmax, Shard(1), ARGMAX + 1, 0, gathers=1),
    Family("rows not split: `sort_st`", _sort, Shard(0), 0, SORT),
    Family("rows split: `sort_st`", _sort, Shard(1), SORT + 1, 0, gathers=1),
]


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends, by the same algorithms."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.bytes, self.collectives = ranks, 0.0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = str(func)
        times = {"all_gather_into_tensor": self.ranks - 1, "all_reduce": 2 * (self.ranks - 1) / self.ranks}
        for collective, share in times.items():
            if name.startswith(f"_c10d_functional.{collective}"):
                self.bytes += share * args[0].nbytes
                self.collectives += 1
                return output
        if "c10d" in name and not any(word in name for word in ("wait", "wrap")):
            raise AssertionError(f"a collective that is not counted: {name}")
        return output


def counted(family: Family, elements: int, ranks: int) -> Cost:
    """The cost on this rank, for a square of float32 numbers."""
    side = int(elements**0.5)
    mesh = init_device_mesh("cpu", (ranks,))
    x = torch.randn(side, side, generator=torch.Generator().manual_seed(0))
    d = laid_out(x, mesh, [family.placement]).requires_grad_()
    del x
    g = torch.ones_like(family.call(d))
    step = lambda: torch.autograd.grad(family.call(d), d, g)  # noqa: E731
    step()
    with Sent(ranks) as sent:
        step()
    held = peak_bytes(Statement("step()", {"step": step}))
    return Cost(sent.bytes, held, sent.collectives)
