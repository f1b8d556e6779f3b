"""How many kernels a call takes, and what waits: docs/kernels.md says so."""

import pathlib
import re

import pytest
import torch

import fullgrad
from fullgrad import soft
from fullgrad.soft.simplex._entmax import entmax_of
from tests.gpu.comparison import WAITS, launches

pytestmark = pytest.mark.short
PAGE = pathlib.Path(__file__).parents[2] / "docs/kernels.md"
# As in docs/kernels.md: 128 rows of 32 numbers.
FUNCTIONS = {
    "soft.sparsemax": soft.sparsemax,
    "soft.entmax": soft.entmax,
    "soft.entmax, any alpha": lambda x: soft.entmax(x, 1.3),
    "soft.entmax, alpha that learns": lambda x: entmax_of(x, ALPHA, -1),
    "soft.normmax": soft.normmax,
    "soft.proj_simplex c0, c1, c2": lambda x: soft.proj_simplex(x, mode="c1"),
    "soft.proj_capped_simplex": lambda x: soft.proj_capped_simplex(x, 4),
    "topk_mask_st": lambda x: fullgrad.topk_mask_st(x, 4),
    "soft.max, min, by softsort": lambda x: soft.min(x, -1).values,
    "soft.argmax, argmin, by softsort": lambda x: soft.argmax(x, -1),
    "soft.sort, either method": lambda x: soft.sort(x, method="softsort", return_indices=False).values,
    "soft.argsort": soft.argsort,
    "soft.topk": lambda x: soft.topk(x, 4, return_indices=False).values,
    "soft.median": lambda x: soft.median(x, -1).values,
    "soft.quantile": lambda x: soft.quantile(x, 0.25, -1),
    "soft.rank, by neuralsort, softsort and sigmoids": lambda x: soft.rank(x, -1, method="sigmoid"),
}
ALPHA = torch.full((), 1.4, requires_grad=True)
VIEWS = [
    "_local_scalar_dense",
    "_reshape_alias",
    "alias",
    "as_strided",
    "contiguous",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "is_nonzero",
    "item",
    "movedim",
    "narrow",
    "new_empty",
    "permute",
    "reshape",
    "resize_",
    "resolve_conj",
    "resolve_neg",
    "result_type",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "to",
    "transpose",
    "unsqueeze",
    "view",
    "view_as",
    "detach",
]


def count(call):
    """The launches of a call: kernels of rows, which are not run, and operations of torch that are no views; and its waits."""
    with launches(run=False) as kernels, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = call()
    leaves = [
        e.name
        for e in profile.events()
        if e.name.startswith("aten::") and not any(c.name.startswith("aten::") for c in e.cpu_children)
    ]
    return (
        len(kernels) + sum(name.removeprefix("aten::") not in VIEWS for name in leaves),
        sum(name in WAITS for name in leaves),
        result,
    )


def counts(f):
    """Launches forward and backward, of a call after the first, and the waits of both."""
    x = torch.randn(128, 32, requires_grad=True)
    for _ in range(2):
        forward, waits, y = count(lambda: f(x))
        leaves, g = [x, ALPHA] if f is FUNCTIONS["soft.entmax, alpha that learns"] else [x], torch.ones_like(y)
        backward, more, _ = count(lambda y=y, g=g, leaves=leaves: torch.autograd.grad(y, leaves, g))
    return forward, backward, waits + more


def table():
    """The rows of the page about kernels of rows."""
    section = PAGE.read_text().partition("## Rows in one kernel")[2]
    return re.findall(r"^\| ([^|]+) \| (\d+) \+ (\d+) \|", section.partition("## ")[0], re.MULTILINE)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_page_says_how_many(name):
    """One kernel each way, but for what the page gives a reason for, and no wait of the host."""
    forward, backward, waits = counts(FUNCTIONS[name])
    assert waits == 0
    assert (name, str(forward), str(backward)) in table()


def test_the_page_has_no_other_row():
    """Each row of the page is counted."""
    assert {name for name, *_ in table()} == set(FUNCTIONS)
