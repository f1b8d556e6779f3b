"""Snapshots of the graphs that compile and make_fx see: what is saved between the passes, and which operations run.

A change that saves a float where a mask was, or splits a fused operation, shows here.
`EXPECTTEST_ACCEPT=1 pytest -n 0 tests/test_compiled_graphs.py` rewrites the snapshots.
"""

import expecttest
import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import fullgrad
from fullgrad._core.fast import ENABLED


def _operations(graph: torch.fx.GraphModule) -> str:
    return ", ".join(str(n.target).removesuffix(".default") for n in graph.graph.nodes if n.op == "call_function")


def _saved(graph: torch.fx.GraphModule) -> str:
    """Dtypes and shapes of what the forward graph keeps for the backward: its outputs after the first."""
    (outputs,) = next(n for n in graph.graph.nodes if n.op == "output").args
    inputs = {n for n in graph.graph.nodes if n.op == "placeholder"}
    kept = [n for n in outputs[1:] if isinstance(n, torch.fx.Node)]
    return ", ".join("an input" if n in inputs else f"{n.meta['val'].dtype} {tuple(n.meta['val'].shape)}" for n in kept) or "nothing"


def compiled(operator, *inputs) -> str:
    """The forward and the backward graph of a compiled operator."""
    lines: list[str] = []

    def forward(graph, example_inputs):
        lines.append(f"forward: {_operations(graph)}")
        lines.append(f"saved: {_saved(graph)}")
        return make_boxed_func(graph.forward)

    def backward(graph, example_inputs):
        lines.append(f"backward: {_operations(graph) or 'nothing'}")
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition)
    y = torch.compile(operator, backend=backend, fullgraph=True)(*inputs)
    y.backward(torch.ones_like(y))
    return "\n".join(lines) + "\n"


def per_sample(operator, *constants) -> str:
    """The traced graph of per-sample gradients."""
    gradient = vmap(grad(lambda x: operator(x, *constants).sum()))
    return f"vmap(grad): {_operations(make_fx(gradient)(torch.randn(4, 3)))}\n"


@pytest.mark.skipif(not ENABLED, reason="the graphs have entries")
class Graphs(expecttest.TestCase):
    """One snapshot per operator."""

    def check(self, operator, *constants) -> str:
        x = torch.randn(4, 3, requires_grad=True)
        return compiled(operator, x, *constants) + per_sample(operator, *constants)

    def test_round(self):
        self.assertExpectedInline(self.check(fullgrad.round), """\
forward: aten.round
saved: nothing
backward: nothing
vmap(grad): aten.round, aten.sum.dim_IntList, aten.ones_like, aten.view, aten.expand
""")

    def test_soft_round(self):
        self.assertExpectedInline(self.check(fullgrad.soft_round), """\
forward: aten.round
saved: an input
backward: aten.round, aten.eq.Scalar, aten.eq.Scalar, aten._to_copy, aten.div.Tensor, aten.where.self, aten.mul.Tensor
vmap(grad): aten.round, aten.sum.dim_IntList, aten.ones_like, aten.view, aten.expand, aten.round, aten.eq.Scalar, aten.eq.Scalar, aten._to_copy, aten.div.Tensor, aten.where.self, aten.mul.Tensor
""")

    def test_step_quantize(self):
        self.assertExpectedInline(self.check(fullgrad.step_quantize, 0.3), """\
forward: aten.div.Tensor, aten.round, aten.mul.Tensor
saved: nothing
backward: nothing
vmap(grad): aten.div.Tensor, aten.round, aten.mul.Tensor, aten.sum.dim_IntList, aten.ones_like, aten.view, aten.expand
""")

    def test_k_bit_quantize(self):
        self.assertExpectedInline(self.check(fullgrad.k_bit_quantize, 3), """\
forward: aten.mul.Tensor, aten.round, aten.div.Tensor
saved: nothing
backward: nothing
vmap(grad): aten.mul.Tensor, aten.round, aten.div.Tensor, aten.sum.dim_IntList, aten.ones_like, aten.view, aten.expand
""")

    def test_clamp(self):
        self.assertExpectedInline(self.check(fullgrad.clamp, -1.0, 1.0), """\
forward: aten.clamp
saved: an input
backward: aten.ge.Scalar, aten.le.Scalar, aten.bitwise_and.Tensor, aten.scalar_tensor, aten.where.self
vmap(grad): aten.clamp, aten.sum.dim_IntList, aten.ones_like, aten.view, aten.expand, aten.nan_to_num, aten.hardtanh_backward
""")

    def test_clamp_from_below(self):
        self.assertExpectedInline(self.check(fullgrad.clamp, 0.0, None), """\
forward: aten.clamp
saved: an input
backward: aten.ge.Scalar, aten.scalar_tensor, aten.where.self
vmap(grad): aten.clamp, aten.sum.dim_IntList, aten.ones_like, aten.view, aten.expand, aten.nan_to_num, aten.threshold_backward
""")
