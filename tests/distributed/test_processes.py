"""Distributed operators in real processes, on gloo."""

import itertools

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import fullgrad
from fullgrad._suite.cases import CASES
from tests.distributed.derivatives import derive, distributed_inputs, plain_inputs
from tests.distributed.ranks import PLACEMENTS, in_processes, laid_out, whole

NAMES = {
    1: ("round", "clamp", "scale_grad", "clip_grad_norm", "clamp_by_linear", "sort_st softsort c1", "soft.proj_simplex c0"),
    2: ("clamp", "scale_grad", "sort_st softsort c1"),
}


class RaisesByNumbers(fullgrad.Elementwise):
    """The identity of nonnegative numbers; raises for others."""

    reads = {0: ()}
    raises_by_numbers = True

    @staticmethod
    def forward(x):
        if (x < 0).any():
            raise ValueError("a negative element")
        return x.clone()

    @staticmethod
    def vjp_term(i, v, x):
        return v


def compare(rank, world, shape):
    """On every pair of placements value and derivatives are those of one process, and every rank raises what one raises."""
    mesh = init_device_mesh("cpu", shape)
    for case in [c for c in CASES if c.name in NAMES[len(shape)]]:
        expected = derive(case, plain_inputs(case))
        for placements in itertools.product(PLACEMENTS.values(), repeat=len(shape)):
            found = derive(case, distributed_inputs(case, mesh, placements))
            for name, values in expected.items():
                for a, b in zip(found[name], values, strict=True):
                    torch.testing.assert_close(
                        whole(a), b, rtol=1e-9, atol=1e-11, msg=lambda m, at=(case.name, placements, name): f"{at}: {m}"
                    )
    x = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    for rows in (x, x.flip(0)):
        low, high = fullgrad._core.shards.extremes(laid_out(rows, mesh, [PLACEMENTS["Shard(0)"]] * len(shape)), (0, 1))
        assert whole(low).isnan().all()
        assert whole(high).isnan().all()
    with pytest.raises(IndexError):
        fullgrad.sort_st(laid_out(x, mesh, [PLACEMENTS["Shard(1)"]] * len(shape)), 5)
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])  # some ranks have the negative element
    for d in range(len(shape)):
        placements = [PLACEMENTS["Shard(0)" if d == m else "Replicate"] for m in range(len(shape))]
        assert whole(RaisesByNumbers.apply(laid_out(x.abs(), mesh, placements))).equal(x.abs())
        for rows in (x, x.flip(0)):
            with pytest.raises((ValueError, RuntimeError), match=r"a negative element|the call raised on another rank"):
                RaisesByNumbers.apply(laid_out(rows, mesh, placements))


@pytest.mark.long
@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
@pytest.mark.sampled(of=2)
def test_processes(shape):
    """The placements are right on a mesh of one dimension and of two."""
    in_processes(compare, torch.Size(shape).numel(), shape)
