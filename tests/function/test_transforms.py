"""Every transform of torch.func, in any nesting, gives of an operator what it gives of the same function in plain torch."""

import itertools

import pytest
from torch.func import jacfwd, jacrev, vmap
from torch.testing import assert_close

from tests.function.operators import CASES, sample

LETTERS = {"rev": jacrev, "fwd": jacfwd, "vmap": vmap}
WORDS = [word for length in (1, 2, 3) for word in itertools.product(LETTERS, repeat=length)]


def spell(word, function):
    """The transforms of a word around a function, the first one outermost."""
    for letter in reversed(word):
        function = LETTERS[letter](function)
    return function


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.mark.parametrize("word", WORDS, ids="-".join)
def test_nesting(case, word):
    """jacrev, jacfwd and vmap in every order, up to three deep."""
    x = sample(*(2,) * word.count("vmap"))
    assert_close(spell(word, case.function)(x), spell(word, case.oracle)(x))
