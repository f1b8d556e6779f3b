"""`Comparison`: a statement of ours next to those of its rivals, and `Result`, their measurements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fullgrad._suite.bench._measure import Ratio, Statement, Times, measure, peak_bytes, ratio

# The rivals of an operator, in the order of the table.
PLAIN, COMPOSITE, PEER, FLOOR = "plain torch", "composite", "peer", "floor"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Statements that do the same, timed in turns.

    Args:
        operator: The operator that the statement calls.
        what: The work of the statement: forward, forward+backward, ….
        n: The number of elements.
        dtype: The dtype of the numbers.
        ours: The statement.
        rivals: Other statements, by the names of their authors.
        targets: The largest allowed ratio of our time to a rival's.
        saved: Bytes per element that autograd keeps beyond inputs and value, by ours and by the rivals, if measured.
        memory: Whether the peak memory is measured, too.
        turns: The group whose statements take turns. A large call empties the caches of a small one.
    """

    operator: str
    what: str
    n: int
    dtype: str
    ours: Statement
    rivals: Mapping[str, Statement]
    targets: Mapping[str, float] = field(default_factory=dict)
    saved: Mapping[str, float] = field(default_factory=dict)
    memory: bool = False
    turns: str = ""

    @property
    def name(self) -> str:
        """The name in progress and verdicts."""
        return f"{self.operator}, {self.what}, n = {self.n:,}, {self.dtype}"


def forward_and_backward(
    name: str,
    leaves: tuple[Tensor, ...],
    ours: Callable[..., Any],
    rivals: Mapping[str, Callable[..., Any]],
    most: float | None,
    turns: str = "",
) -> Comparison:
    """A comparison of gradients. ``most`` is the target for the first rival; each size takes turns by itself."""
    given = tuple(t.clone().requires_grad_() for t in leaves)
    names = {"t": given, "g": torch.randn_like(leaves[0]), "grad": torch.autograd.grad}

    def case(f: Callable[..., Any]) -> Statement:
        return Statement("grad(f(*t), t, g)", names | {"f": f})

    shape, n = " x ".join(map(str, leaves[0].shape)), leaves[0].numel()
    return Comparison(
        operator=f"{name}, {shape}" if leaves[0].ndim > 1 else name,
        what="forward+backward",
        n=n,
        dtype="float32",
        ours=case(ours),
        rivals={rival: case(f) for rival, f in rivals.items()},
        targets={} if most is None else {next(iter(rivals)): most},
        turns=turns or f"{name}, {n}",
    )


@dataclass(frozen=True)
class Result:
    """The measurements: seconds, ratios of ours to each rival's, and peaks in bytes per element."""

    comparison: Comparison
    ours: Times
    rivals: Mapping[str, Times]
    peaks: Mapping[str, float]

    def ratio(self, rival: str) -> Ratio:
        """Our time over the rival's."""
        return ratio(self.ours, self.rivals[rival])

    def verdicts(self) -> dict[str, bool | None]:
        """Whether each target holds; None if these times do not decide."""
        return {rival: self.ratio(rival).at_most(target) for rival, target in self.comparison.targets.items()}


def run(
    comparisons: Sequence[Comparison], seconds: float, device: str = "cpu", report: Callable[[str], None] = lambda name: None
) -> list[Result]:
    """Measure comparisons, groups in turns, for about ``seconds`` a statement, or five rounds if they take longer."""
    groups: dict[str, list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault(c.turns or c.name, []).append(c)
    results: dict[int, Result] = {}
    for group in groups.values():
        report(group[0].name)
        cases = list(dict.fromkeys(case for c in group for case in (c.ours, *c.rivals.values())))
        errors: dict[Statement, Exception] = {}
        times = measure(cases, seconds, device, errors)
        for c in group:
            if c.ours not in times:
                raise RuntimeError(f"{c.name} raises: {c.ours.code}") from errors[c.ours]
            peaks = {}
            if c.memory:
                peaks = {
                    who: peak_bytes(case, device) / c.n for who, case in {"ours": c.ours, **c.rivals}.items() if case in times
                }
            rivals = {name: times[case] for name, case in c.rivals.items() if case in times}
            results[id(c)] = Result(c, times[c.ours], rivals, peaks)
            report("")
    return [results[id(c)] for c in comparisons]
