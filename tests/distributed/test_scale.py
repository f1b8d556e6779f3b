"""The bytes that a call sends and holds on each rank are those of the model in `scale`, from which the guide has its table."""

import pytest

from tests.distributed.ranks import in_processes
from tests.distributed.scale import FAMILIES, counted


def compare(rank, ranks):
    """Compare in each process; buffers of fixed size, such as a piece's temporaries, do not matter."""
    for family in FAMILIES:
        for elements in family.elements:
            found, model = counted(family, elements, ranks), family.cost(elements, ranks)
            at = f"{family.name}, {elements} elements, {ranks} ranks: {found}, by the model {model}"
            assert (found.sent, found.collectives) == (model.sent, model.collectives), at
            late = 4 * elements * (family.gathers + family.reduces)  # the buffer of a collective may be given back late
            assert 0.98 * model.held - 2**19 <= found.held <= 1.02 * model.held + 2**21 + late, at


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.sampled(of=2)
def test_the_model_is_what_is_counted(ranks):
    """The model holds at two sizes, so that each term is that of its size."""
    in_processes(compare, ranks)
