"""The order statistics next to composites with matrices, and their forwards next to torch: ``python -m benchmarks.order``.

float32, one thread. A composite is the relaxation as one writes it in plain torch, with the detach trick in the twins. Times do
not gate: the exit status is 0.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import fullgrad
from benchmarks._measure import Case, measure, peak_bytes, ratio

BACKWARD = "torch.autograd.grad(f(x), x, g)"
FORWARD = "f(x)"
PLAIN = "f(x.detach())"


def standard(x: Tensor) -> Tensor:
    r = x - x.mean(-1, keepdim=True)
    return torch.sigmoid(r / (r.square().mean(-1, keepdim=True) + 1e-6).sqrt())


def softsort(x: Tensor, softness: float = 0.1) -> Tensor:
    """softtorch's way: the matrix of distances, a softmax, a product."""
    z = standard(x)
    weights = torch.softmax(-(torch.sort(z).values.unsqueeze(-1) - z.unsqueeze(-2)).abs() / softness, -1)
    return (weights @ x.unsqueeze(-1)).squeeze(-1)


def neuralsort_rank(x: Tensor, softness: float = 0.1) -> Tensor:
    z, n = -standard(x), x.shape[-1]
    d = z.unsqueeze(-1) - z.unsqueeze(-2)
    a = (d * torch.tanh(d / (2 * softness))).sum(-1)
    weights = torch.softmax((torch.arange(1 - n, n, 2, dtype=x.dtype)[:, None] * z - a) / softness, -1)
    return torch.arange(1, n + 1, dtype=x.dtype) @ weights / weights.sum(0)


def sigmoid_rank(x: Tensor, softness: float = 0.1) -> Tensor:
    z = standard(x)
    return 0.5 + torch.sigmoid((z.unsqueeze(-2) - z.unsqueeze(-1)) / softness).sum(-1)


def straight(hard: Callable[[Tensor], Tensor], relaxation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def twin(x: Tensor) -> Tensor:
        y = relaxation(x)
        return y + (hard(x) - y).detach()

    return twin


def hard_sort(x: Tensor) -> Tensor:
    return torch.sort(x).values


def hard_rank(x: Tensor) -> Tensor:
    return (torch.argsort(torch.argsort(x, descending=True)) + 1).to(x.dtype)


def sort_st(x: Tensor, **options: Any) -> Tensor:
    return fullgrad.sort_st(x, method="softsort", **options).values


def case(statement: str, f: Callable[..., Any], n: int, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator).requires_grad_()
    return Case(statement, {"f": f, "x": x, "g": torch.randn(n, generator=generator), "torch": torch})


def times(largest: int) -> Iterator[tuple[str, Case, Case, float | None]]:
    """What, ours, the rival's, and the most that their ratio shall be."""
    composites = {
        "sort_st softsort": (sort_st, straight(hard_sort, softsort)),
        "rank_st neuralsort": (fullgrad.rank_st, straight(hard_rank, neuralsort_rank)),
        "rank_st sigmoid": (lambda x: fullgrad.rank_st(x, method="sigmoid"), straight(hard_rank, sigmoid_rank)),
    }
    for name, (ours, theirs) in composites.items():
        for n in (256, 1024, 4096):
            target = 1 / 50 if name.startswith("sort") and n == 4096 else None
            yield (
                f"{name}, n = {n}, forward+backward, over the composite",
                case(BACKWARD, ours, n),
                case(BACKWARD, theirs, n),
                target,
            )
    for softness in (1e-6, 0.1, 10.0):
        ours = case(BACKWARD, lambda x, softness=softness: sort_st(x, softness=softness), largest)
        what = f"sort_st softsort, softness {softness:g}, n = {largest:,}, forward+backward, over torch.sort"
        yield what, ours, case(FORWARD, torch.sort, largest), 8.0
    for mode in ("c0", "c1", "c2"):
        ours = case(BACKWARD, lambda x, mode=mode: sort_st(x, mode=mode), largest)
        what = f"sort_st softsort {mode}, n = {largest:,}, forward+backward, over torch.sort"
        yield what, ours, case(FORWARD, torch.sort, largest), None
    forwards: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "max_st": (fullgrad.max_st, torch.max),
        "max_st dim": (lambda x: fullgrad.max_st(x, 0), lambda x: torch.max(x, 0)),
        "min_st": (fullgrad.min_st, torch.min),
        "argmax_st": (lambda x: fullgrad.argmax_st(x, 0), lambda x: torch.nn.functional.one_hot(torch.argmax(x, 0), len(x))),
        "median_st": (fullgrad.median_st, torch.median),
        "quantile_st": (lambda x: fullgrad.quantile_st(x, 0.3), lambda x: torch.quantile(x, 0.3)),
        "sort_st": (fullgrad.sort_st, torch.sort),
        "topk_st": (lambda x: fullgrad.topk_st(x, 10), lambda x: torch.topk(x, 10)),
        "rank_st": (fullgrad.rank_st, hard_rank),
    }
    for name, (ours, theirs) in forwards.items():
        for how, statement in (("forward", FORWARD), ("forward without grad", PLAIN)):
            pair = [case(statement, f, 65_536) for f in (ours, theirs)]
            yield f"{name}, n = 65,536, {how}, over torch", *pair, 1.2


def memory() -> Iterator[tuple[str, Case, Case, float]]:
    for name, ours, theirs, target in (
        ("sort_st softsort", sort_st, straight(hard_sort, softsort), 1 / 500),
        ("rank_st neuralsort", fullgrad.rank_st, straight(hard_rank, neuralsort_rank), 1 / 100),
        ("rank_st sigmoid", lambda x: fullgrad.rank_st(x, method="sigmoid"), straight(hard_rank, sigmoid_rank), 1 / 100),
    ):
        n = 16_384
        yield f"{name}, n = {n:,}, forward+backward, peak memory", case(BACKWARD, ours, n), case(BACKWARD, theirs, n), target


def main() -> int:
    """Measure, and print tables in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="only rows that have all of these words")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)

    def chosen(what: str) -> bool:
        return all(word in what for word in options.words)

    def show(*row: str) -> None:
        print("| " + " | ".join(row) + " |", flush=True)

    show("what", "ours", "theirs", "ratio", "target", "holds")
    show(*["---"] * 6)
    for what, ours, theirs, target in times(options.largest):
        if chosen(what):
            found = measure([ours, theirs], options.rounds, 0.05)
            r = ratio(found[ours], found[theirs])
            holds = "" if target is None else {True: "yes", False: "no", None: "unclear"}[r.at_most(target)]
            numbers = [f"{found[c].minimum * 1e3:.3g} ms" for c in (ours, theirs)]
            show(what, *numbers, f"{r.of_minima:.3g} / {r.of_medians:.3g}", f"{target or '':.3}", holds)
    for what, ours, theirs, target in memory():
        if chosen(what):
            held = [peak_bytes(c) for c in (ours, theirs)]
            holds = "yes" if held[0] <= target * held[1] else "no"
            show(what, *[f"{b / 2**20:.1f} MiB" for b in held], f"1/{held[1] / held[0]:.0f}", f"1/{1 / target:.0f}", holds)
    for softness in (1e-6, 1e-3, 0.1, 10.0):
        what = f"sort_st softsort, softness {softness:g}, n = {options.largest:,}, gradient finite"
        if chosen(what):
            f = case(BACKWARD, lambda x, softness=softness: sort_st(x, softness=softness), options.largest)
            (gradient,) = eval(f.statement, dict(f.names))
            show(what, "", "", "", "", "yes" if gradient.isfinite().all() else "no")
    return 0


if __name__ == "__main__":
    sys.exit(main())
