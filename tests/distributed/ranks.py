"""Several ranks in one process, a thread each: torch's threaded process group, which its own tests of distributed tensors use.

It is private to torch. Where it is gone, or lacks a part as in torch 2.11, the tests that need it are skipped, and those in real
processes remain. (The other way in one process, torch's local-tensor mode, has no kernels that read memory, such as our opaque
ones, and ends the process.)
"""

import datetime
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

try:
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    isolate: Any = torch._C._distributed_c10d._set_thread_isolation_mode
    _ = threaded.ThreadLocalWorld.comms  # which torch 2.11 asks for and has not
except (ImportError, AttributeError):
    threaded = isolate = None

needs_threads = pytest.mark.skipif(threaded is None, reason="this torch has no threaded process group")
before_2_12 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12)
PLACEMENTS = {"Shard(0)": Shard(0), "Shard(1)": Shard(1), "Replicate": Replicate(), "Partial": Partial()}


def on_ranks(shape: tuple[int, ...], function: Callable[[Any], Any], timeout: float = 60.0) -> list[Any]:
    """The result of a function of a mesh of that shape on each rank, or the exception that it raises."""
    world, store = torch.Size(shape).numel(), dist.HashStore()
    results: list[Any] = [None] * world

    def rank(r: int) -> None:
        try:
            dist.init_process_group("threaded", rank=r, world_size=world, store=store)
            results[r] = function(init_device_mesh("cpu", shape))
        except Exception as error:  # the others may wait for this rank, which the timeout tells
            results[r] = error
        finally:
            dist.destroy_process_group()

    threaded._install_threaded_pg()
    isolate(True)
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)  # which warns that a mesh of a test could be flattened
    try:
        threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
        if any(thread.is_alive() for thread in threads):
            error = TimeoutError(f"a rank waits for another, which returned {[r for r in results if r is not None]}")
            threaded.ProcessLocalGroup.exception_handle(error)
            raise error
    finally:
        threaded.ProcessLocalGroup.reset()
        isolate(False)
        threaded._uninstall_threaded_pg()
    return results


def in_processes(function: Callable[..., Any], world: int, *args: Any) -> None:
    """Run ``function(rank, world, *args)`` in several processes on gloo; an error in one ends all."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with mock.patch.dict(os.environ, TORCH_CPP_LOG_LEVEL="ERROR"):
        mp.spawn(_process, (world, port, function, args), nprocs=world)


def _process(rank: int, world: int, port: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.ERROR)
    timeout = datetime.timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
    try:
        function(rank, world, *args)
        dist.barrier()  # a rank that leaves while another still sends has been seen to abort
    finally:
        dist.destroy_process_group()


def possible(t: torch.Tensor, placements: Any) -> tuple[Any, ...]:
    """The placements that a tensor can have: a dimension of size 1 is not split, and only floats are summed."""

    def allowed(p: Any) -> bool:
        if p.is_shard():
            return p.dim < t.ndim and t.shape[p.dim] > 1
        return not p.is_partial() or t.is_floating_point()

    return tuple([p if allowed(p) else Replicate() for p in placements])


def laid_out(t: torch.Tensor, mesh: Any, placements: Any) -> Any:
    """A distributed tensor of that value, made without communication; the parts of a sum differ from rank to rank."""
    placements, sizes, place = possible(t, placements), tuple(mesh.shape), mesh.get_coordinate()
    local = t
    for size, p, i in zip(sizes, placements, place, strict=True):
        if p.is_partial():
            noise = torch.arange(t.numel(), dtype=t.dtype).reshape(t.shape) * 0.37 + 0.1
            local = local - noise * (size - 1) if i == 0 else noise
    for size, p, i in zip(sizes, placements, place, strict=True):
        if p.is_shard():
            pieces = local.chunk(size, p.dim)
            local = pieces[i] if i < len(pieces) else local.narrow(p.dim, 0, 0)
    stride = torch.empty(t.shape, device="meta").stride()
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=t.shape, stride=stride)


def like(t: torch.Tensor, y: Any, placements: Any = None) -> Any:
    """A tensor laid out like another, or by placements if that one is distributed."""
    if not isinstance(y, DTensor):
        return t
    return laid_out(t, y.device_mesh, placements or [Replicate() if p.is_partial() else p for p in y.placements])


def whole(t: Any) -> Any:
    """The value of a distributed tensor, which is the same on all ranks."""
    return t.full_tensor() if isinstance(t, DTensor) else t
