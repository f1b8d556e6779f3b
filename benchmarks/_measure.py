"""Ratios of running times, measured so that they can be believed.

The cases take turns in one process: a change of the machine's speed hits all of them alike. Two ratios are formed, of the minima
(the machine undisturbed) and of the medians (the machine as it is); a verdict needs both. ``torch.utils.benchmark.Timer`` runs
the statements: on one thread, garbage collection off, with a warm-up before each block.
"""

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

# CPU time of this thread, which does all the work (autograd runs CPU graphs in the calling thread): what other programs take
# from it does not count. For work on another device this would be wrong.
CLOCK = time.thread_time

# torch.utils.benchmark warns beyond the same spread.
SPREAD_LIMIT = 0.1

# A single impossibly short time makes a minimum worthless (a third of the true time was seen once in over 100,000 blocks,
# cause unknown). No time is dropped: ratios that differ by more than this factor give no verdict, and the table marks them.
AGREEMENT_LIMIT = 1.5


@dataclass(frozen=True, eq=False)
class Case:
    """A statement as a user would write it, and what its names stand for. Compared by identity: a case is timed once."""

    statement: str
    names: Mapping[str, Any]


@dataclass(frozen=True)
class Times:
    """Seconds per call; ``spread``, the interquartile range, and ``doubt``, how far off the median may be, in parts of it."""

    minimum: float
    median: float
    spread: float
    doubt: float


@dataclass(frozen=True)
class Ratio:
    """One case over another. ``spread`` is the larger of the two; ``doubt`` is how far off the ratio of the medians may be."""

    of_minima: float
    of_medians: float
    spread: float
    doubt: float

    @property
    def noisy(self) -> bool:
        """Whether the times vary beyond the limit."""
        return self.spread > SPREAD_LIMIT

    @property
    def contradictory(self) -> bool:
        """Whether minima and medians tell different stories."""
        return max(self.of_minima, self.of_medians) > AGREEMENT_LIMIT * min(self.of_minima, self.of_medians)

    def at_most(self, target: float) -> bool | None:
        """Whether the ratio is within the target; None where these times cannot tell."""
        if self.contradictory:
            return None
        if max(self.of_minima, self.of_medians) * (1 + self.doubt) <= target:
            return True
        if min(self.of_minima, self.of_medians) * (1 - self.doubt) > target:
            return False
        return None


def measure(cases: Sequence[Case], rounds: int, block: float) -> dict[Case, Times]:
    """Time every case once per round, for about ``block`` seconds or one call, in an order shuffled anew each round."""
    timers = [(case, Timer(case.statement, globals=dict(case.names), timer=CLOCK)) for case in cases]
    calls = {case: _calls_per_block(timer, block) for case, timer in timers}
    samples: dict[Case, list[float]] = {case: [] for case in cases}
    order = random.Random(0)  # alike in every run
    for _ in range(rounds):
        order.shuffle(timers)
        for case, timer in timers:
            samples[case] += timer.timeit(calls[case]).times
    return {case: _summary(times) for case, times in samples.items()}


def ratio(ours: Times, rival: Times) -> Ratio:
    """Our time over the rival's."""
    spread, doubt = max(ours.spread, rival.spread), math.hypot(ours.doubt, rival.doubt)
    return Ratio(ours.minimum / rival.minimum, ours.median / rival.median, spread, doubt)


def saved_bytes(case: Case, inputs: Sequence[Tensor]) -> int:
    """Bytes that autograd keeps for the backward of a statement whose value is one tensor, beyond its inputs and that tensor.

    What a Function keeps as an attribute of ``ctx``, past autograd, is not seen.
    """
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = eval(case.statement, dict(case.names))
    for tensor in (*inputs, output):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def peak_bytes(case: Case) -> int:
    """The most memory that one call holds on the CPU beyond what was there, by the allocator's own record."""
    code = compile(case.statement, "<statement>", "exec")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        exec(code, dict(case.names))
    # Every allocation; the profiler's own table adds up those inside an operation.
    events: Any = record.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def _calls_per_block(timer: Timer, block: float) -> int:
    once = min(timer.timeit(3).median for _ in range(3))
    return max(1, math.ceil(block / once)) if once < block else 1


def _summary(times: list[float]) -> Times:
    low, median, high = statistics.quantiles(times, n=4)
    spread = (high - low) / median
    # The notch of a box plot, the 95% interval of a median (McGill, Tukey, Larsen 1978).
    return Times(min(times), median, spread, 1.57 * spread / math.sqrt(len(times)))
