"""Compiled code: a chain of operators against the same by the detach trick and by Functions of the old style, what it keeps for
the backward, the time that compilation takes, and torch's cache of compiled graphs. Every function returns plain numbers.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

import fullgrad
from fullgrad import soft
from fullgrad._suite.cases._case import straight_through
from fullgrad._suite.cases.soft import _sign_of, _step

Chain = Callable[[Tensor], Tensor]


def quantize(x: Tensor) -> Tensor:
    x = fullgrad.step_quantize(fullgrad.clamp(x, -1.5, 1.5), 0.1)
    x = fullgrad.soft_round(3 * soft.sigmoidal(x, mode="c1"))
    return fullgrad.k_bit_quantize(fullgrad.sign_st(x, mode="c2"), 3)


class _Clamp(torch.autograd.Function):
    # A Function of the old style, with a mask for the backward.
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:  # pyright: ignore
        ctx.save_for_backward((x >= low) & (x <= high))
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore
        return g * ctx.saved_tensors[0], None, None


def composite(x: Tensor, clamp: Callable[..., Tensor] = torch.clamp) -> Tensor:
    """`quantize` by the detach trick, with torch's own clamp."""
    x = clamp(x, -1.5, 1.5)
    x = 3 * _step(straight_through(torch.round(x / 0.1) * 0.1, x), 0.1, "c1")
    r = torch.round(x)
    x = straight_through(r, torch.where(r == 0, 0.0, x * x / (2 * torch.where(r == 0, 1.0, r))))
    x = straight_through(torch.sign(x), _sign_of(x, 0.1, "c2"))
    return straight_through(torch.round(x * 7) / 7, x)


def old_style(x: Tensor) -> Tensor:
    """The same with a clamp that is a Function of the old style."""
    return composite(x, _Clamp.apply)


def saved(function: Callable[..., Tensor], *inputs: Any) -> dict[str, float]:
    """Bytes per element of the output that the compiled forward keeps for the backward: inputs, and numbers and masks that it has
    computed. The output and its views are not counted.
    """
    kept = {"inputs": 0.0, "numbers": 0.0, "masks": 0.0}

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        (outputs,) = next(n for n in graph.graph.nodes if n.op == "output").args
        for node in {_base(n) for n in outputs[1:] if isinstance(n, torch.fx.Node)} - {_base(outputs[0])}:
            value = node.meta["val"]
            if isinstance(value, Tensor):
                kind = "inputs" if node.op == "placeholder" else "masks" if value.dtype == torch.bool else "numbers"
                kept[kind] += value.numel() * value.element_size()
        return make_boxed_func(graph.forward)

    def backward(graph: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    options: dict[str, Any] = {"partition_fn": min_cut_rematerialization_partition, "decompositions": select_decomp_table()}
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, **options)
    y = torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return {kind: size / y.numel() for kind, size in kept.items()}


def _base(node: torch.fx.Node) -> torch.fx.Node:
    while getattr(node.target, "is_view", False):
        node = node.args[0]  # pyright: ignore[reportAssignmentType]
    return node


def compile_seconds(backend: str = "inductor", rounds: int = 2) -> dict[str, float]:
    """Seconds to the first gradient of a chain of 20 operators, of ours and of torch's own, in processes without caches."""
    return {name: min(_in_process(name, backend)["seconds"] for _ in range(rounds)) for name in LONG}


def cached_seconds() -> list[dict[str, float]]:
    """The same of ours in two processes that share a cache, with what torch counts: ``autograd_cache_hit`` in the second."""
    with tempfile.TemporaryDirectory() as folder:
        return [_in_process("ours", "inductor", folder) for _ in range(2)]


# Chains of similar complexity, five times over.
LONG: dict[str, tuple[Chain, ...]] = {
    "ours": (
        partial(fullgrad.clamp, min_value=-1.0, max_value=1.0),
        soft.sigmoidal,
        soft.relu,
        partial(fullgrad.scale_fwd, scale=2.0),
    ),
    "torch": (partial(torch.clamp, min=-1.0, max=1.0), torch.sigmoid, F.softplus, partial(torch.mul, other=2.0)),
}


def first_gradient(name: str, backend: str) -> dict[str, float]:
    """For a process of its own: compiles something small first, so that imports and headers are not counted."""
    torch.set_num_threads(1)
    x = torch.randn(64, requires_grad=True)
    torch.compile(lambda x: x.sin(), backend=backend)(x).sum().backward()
    torch._dynamo.utils.counters.clear()

    def chain(x: Tensor) -> Tensor:
        for _ in range(5):
            for step in LONG[name]:
                x = step(x)
        return x

    start = time.perf_counter()
    torch.compile(chain, backend=backend, fullgraph=True)(x).sum().backward()
    return {"seconds": time.perf_counter() - start, **torch._dynamo.utils.counters["aot_autograd"]}


def _in_process(name: str, backend: str, folder: str | None = None) -> dict[str, float]:
    code = f"""if True:
        import json
        from fullgrad._suite.bench._compiled import first_gradient
        print(json.dumps(first_gradient({name!r}, {backend!r})))"""
    with tempfile.TemporaryDirectory() as fresh:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder or fresh}
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])
