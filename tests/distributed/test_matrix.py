"""Every operator on every placement: value, gradient, second derivative and vmap(grad) equal those of one process."""

import contextlib

import pytest
from torch.distributed.tensor.experimental import implicit_replication
from torch.testing import assert_close

from fullgrad._suite.cases import CASES
from tests.distributed.derivatives import derive, distributed_inputs, plain_inputs
from tests.distributed.ranks import PLACEMENTS, needs_threads, on_ranks, whole

# Not on public operators but on kernels, which they call on shards.
KERNELS = ("averages by scans", "averages by prefix sums", "averages by blocks of rows")
# Their inputs are made by torch.stack(…, -1), of whose second derivative torch.distributed.tensor mistakes the dimension.
OF_STACKS = ("quantizers.vector_quantize, identity", "quantizers.vector_quantize, rotation")
# They close over plain tensors, which are the same on each rank.
WITH_PLAIN_TENSORS = (
    *(
        "blackbox.",
        "sampling.",
        "losses.",
        "topk_mask_st",
        "clip_grad by a tensor",
        "quantizers.vector_quantize",
        "implicit.root_jvp",
    ),
)
SUBJECTS = [c for c in CASES if c.diff_argnums and c.name not in KERNELS]
EVERYDAY = [c for c in SUBJECTS if not (c.exhaustive or c.long)]
OTHERS = [c for c in SUBJECTS if c.long and not c.exhaustive]


def derivatives_of(case):
    """The kinds of derivatives that are compared, besides batches."""
    return ["value", "gradient"] + ["second"] * (case.name not in OF_STACKS)


def check(case, placement, shape, wanted, cotangents=None):
    """Check that every rank has the result of plain tensors. Placements, also of the cotangents, are given by name."""

    def of_ranks(mesh):
        closes_over = case.name.startswith(WITH_PLAIN_TENSORS)
        with implicit_replication() if closes_over else contextlib.nullcontext():
            inputs = distributed_inputs(case, mesh, [PLACEMENTS[p] for p in placement])
            found = derive(case, inputs, wanted, cotangents and [PLACEMENTS[p] for p in cotangents])
            return {name: [whole(v).detach() for v in values] for name, values in found.items()}

    expected = derive(case, plain_inputs(case), wanted)
    for found in on_ranks(shape, of_ranks):
        if isinstance(found, Exception):
            raise found
        for name, values in expected.items():
            for a, b in zip(found[name], values, strict=True):
                assert_close(a, b.detach(), rtol=1e-9, atol=1e-11, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.sampled(of=3)
@needs_threads
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("case", EVERYDAY, ids=lambda c: c.name)
def test_operator(case, placement):
    """One case of each operator class is right, also with rows of odd lengths, whose shards are uneven."""
    check(case, (placement,), (2,), [*derivatives_of(case), "vmap(grad)"])


@pytest.mark.sampled(of=3)
@needs_threads
@pytest.mark.parametrize("cotangent", ["Partial", "Shard(1)"])
@pytest.mark.parametrize("placement", ["Shard(0)", "Partial"])
@pytest.mark.parametrize("case", EVERYDAY, ids=lambda c: c.name)
def test_cotangents_of_another_layout(case, placement, cotangent):
    """A gradient may come from an operation that lays it out by its own rules."""
    check(case, (placement,), (2,), derivatives_of(case), (cotangent,))


@needs_threads
@pytest.mark.exhaustive
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("case", OTHERS, ids=lambda c: c.name)
def test_variant(case, placement):
    """The variants are right."""
    check(case, (placement,), (2,), derivatives_of(case))
