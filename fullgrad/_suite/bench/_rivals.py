"""Targets next to other packages at everyday sizes: ``python -m fullgrad bench targets``, where they are installed."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad import losses, soft
from fullgrad._suite.bench._comparison import PEER, Comparison, run
from fullgrad._suite.bench._measure import Ratio, Statement, measure
from fullgrad._suite.bench._operators import BACKWARD
from fullgrad._suite.bench._peers import load
from fullgrad._suite.bench._softtorch import NAMES, is_of_rows, softtorch

ROWS, LONG_ROW = (64, 1000), 50_000
# The largest geometric mean of the ratios to softtorch's times, and the largest share of sizes at which ours is slower.
_NEXT_TO_SOFTTORCH = {"elementwise operators": (0.6, 2 / 48), "order statistics": (0.5, 0.0)}

Operator = Callable[[Tensor], Tensor]


def rivals() -> Iterator[Comparison]:
    """Comparisons of soft ranks with torchsort, and of a selection with softtorch."""
    x, y = torch.randn(ROWS), torch.randn(ROWS)
    ranks, topk = load("torchsort:soft_rank"), load("softtorch:topk")
    if ranks is not None:
        method: Any = {"method": "fast_soft_sort"}
        yield _compare("rank_st fast_soft_sort", x, lambda x: fullgrad.rank_st(x, -1, **method), {"torchsort": ranks}, 1.2)
        yield _compare("soft.rank fast_soft_sort", x, lambda x: soft.rank(x, -1, **method), {"torchsort": ranks}, None)
        pair = {"two of torchsort's ranks": lambda x: (ranks(x) * ranks(y)).sum(-1)}
        ours = functools.partial(losses.spearman, target=y, reduction="none", **method)
        yield _compare("losses.spearman fast_soft_sort", x, ours, pair, 1.2)
    if topk is not None:
        first = [lambda x, f=f: f(x, k=10, dim=-1, method="softsort")[0] for f in (soft.topk, topk)]
        yield _compare("soft.topk softsort, k = 10", x, first[0], {"softtorch": first[1]}, 1.0)


def _compare(name: str, x: Tensor, ours: Operator, rivals: Mapping[str, Operator], most: float | None) -> Comparison:
    """A comparison of gradients."""

    def case(f: Operator) -> Statement:
        return Statement("grad(f(x), x, g)", {"f": f, "x": leaf, "g": torch.randn_like(f(x)), "grad": torch.autograd.grad})

    leaf = x.clone().requires_grad_()
    return Comparison(
        operator=f"{name}, {' x '.join(map(str, x.shape))}",
        what=BACKWARD,
        n=x.numel(),
        dtype="float32",
        ours=case(ours),
        rivals={rival: case(f) for rival, f in rivals.items()},
        targets={} if most is None else dict.fromkeys(rivals, most),
    )


def facts(seconds: float = 0.05) -> Iterator[tuple[str, float, str, float, float]]:
    """Times that are to be below a number, and the means and counts of ratios to softtorch's times: what, ours, the rival, its
    number, and the largest allowed ratio.
    """
    generator = torch.Generator().manual_seed(0)
    relevance = torch.randint(5, (LONG_ROW,), generator=generator)
    for name, f, shape, most in (
        ("topk_st, k = 10, 64 x 1,000", lambda x: fullgrad.topk_st(x, 10)[0], ROWS, 10.0),
        ("losses.ndcg, a row of 50,000", lambda x: losses.ndcg(x, relevance), relevance.shape, 1000.0),
    ):
        x = torch.randn(shape, generator=generator, requires_grad=True)
        statement = Statement("grad(f(x).sum(), x)", {"f": f, "x": x, "grad": torch.autograd.grad})
        yield f"{name}, {BACKWARD}: milliseconds", measure([statement], seconds)[statement].minimum * 1e3, "at most", most, 1.0
    if load("softtorch:sort") is None:
        return
    for kind, (mean, share) in _NEXT_TO_SOFTTORCH.items():
        names = [name for name in NAMES if is_of_rows(name) == (kind == "order statistics")]
        found = [result for name in names for result in run(list(softtorch(name, (BACKWARD,))), seconds)]
        ratios = [result.ratio(PEER) for result in found if PEER in result.rivals]
        average = math.exp(sum(math.log(r.of_medians) for r in ratios) / len(ratios))
        yield f"{kind}, {len(ratios)} sizes, {BACKWARD}: geometric mean of ratios", average, "softtorch", 1.0, mean
        yield f"{kind}, {BACKWARD}: sizes where it is slower", sum(map(is_slower, ratios)), "all sizes", len(ratios), share


def is_slower(ratio: Ratio) -> bool:
    """Whether ours takes longer, beyond the uncertainty."""
    return min(ratio.of_minima, ratio.of_medians) * (1 - ratio.doubt) > 1
