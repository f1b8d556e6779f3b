"""Ratios of running times, measured so that they can be believed.

Statements take turns in one process: a change of the machine's speed hits all of them alike. Two ratios are formed, of the minima
(the machine undisturbed) and of the medians (the machine as it is); a verdict needs both. ``timeit`` runs the statements, garbage
collection off, with a warm-up before each block of several calls.
"""

import math
import random
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def clock(device: str) -> Callable[[], float]:
    """The clock of a device.

    On the CPU it is the time of the calling thread, which does all the work (autograd runs CPU graphs in it), so that other
    programs do not count. Elsewhere it is the wall clock, after the device has finished.
    """
    if device == "cpu":
        return time.thread_time
    # It imports the compiler of extensions, which warns on a machine with CUDA's tools and no GPU.
    from torch.utils.benchmark.utils.timer import timer as synchronized

    return synchronized


# Seconds that a statement runs before the next has its turn.
BLOCK = 1e-3

# A ratio whose error is beyond this part of it is marked. Times that spread say nothing yet: their median may be certain.
DOUBT_LIMIT = 0.1

# A single impossibly short time makes a minimum worthless (a third of the true time was seen once in over 100,000 blocks,
# cause unknown). No time is dropped: ratios that differ by more than this factor give no verdict, and the table marks them.
AGREEMENT_LIMIT = 1.5


@dataclass(frozen=True, eq=False)
class Statement:
    """Code as a user would write it, and the values of its names. Compared by identity, so that it is timed once."""

    code: str
    names: Mapping[str, Any]


@dataclass(frozen=True)
class Times:
    """Seconds per call; ``spread``, the interquartile range, and ``doubt``, the possible error of the median, relative to it."""

    minimum: float
    median: float
    spread: float
    doubt: float


@dataclass(frozen=True)
class Ratio:
    """One statement over another. ``spread`` is the larger one; ``doubt`` is the possible error of the ratio of medians."""

    of_minima: float
    of_medians: float
    spread: float
    doubt: float

    @property
    def contradictory(self) -> bool:
        """Whether minima and medians contradict each other."""
        return max(self.of_minima, self.of_medians) > AGREEMENT_LIMIT * min(self.of_minima, self.of_medians)

    def at_most(self, target: float) -> bool | None:
        """Whether the ratio is within the target; None if these times do not decide."""
        if self.contradictory:
            return None
        if max(self.of_minima, self.of_medians) * (1 + self.doubt) <= target:
            return True
        if min(self.of_minima, self.of_medians) * (1 - self.doubt) > target:
            return False
        return None


def measure(
    statements: Sequence[Statement], seconds: float, device: str = "cpu", errors: dict[Statement, Exception] | None = None
) -> dict[Statement, Times]:
    """Time every statement once per round, in a new random order, for about ``seconds`` each.

    A round calls a statement for a millisecond, or once; there are at least five rounds. Statements that raise are left out;
    ``errors`` gets what they raise.
    """
    timers = [(s, timeit.Timer(s.code, globals=dict(s.names), timer=clock(device))) for s in statements]
    calls, lasting = {}, 0.0
    for statement, timer in timers:
        try:
            once = min(timer.timeit(1) for _ in range(3))
        except Exception as error:
            if errors is not None:
                errors[statement] = error
            continue
        calls[statement] = max(1, math.ceil(BLOCK / once)) if once < BLOCK else 1
        lasting = max(lasting, once * calls[statement])
    timers = [(s, timer) for s, timer in timers if s in calls]
    samples: dict[Statement, list[float]] = {s: [] for s in calls}
    order = random.Random(0)  # the same in every run
    for _ in range(max(5, round(seconds / lasting)) if calls else 0):
        order.shuffle(timers)
        for s, timer in timers:
            if calls[s] > 1:
                timer.timeit(max(2, calls[s] // 100))
            samples[s].append(timer.timeit(calls[s]) / calls[s])
    return {s: _summary(times) for s, times in samples.items()}


def ratio(ours: Times, rival: Times) -> Ratio:
    """Our time over the rival's."""
    spread, doubt = max(ours.spread, rival.spread), math.hypot(ours.doubt, rival.doubt)
    return Ratio(ours.minimum / rival.minimum, ours.median / rival.median, spread, doubt)


def saved_bytes(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> int:
    """Bytes that autograd keeps for the backward of a function whose value is one tensor, beyond its inputs and that tensor.

    Tensors that a Function keeps as attributes of ``ctx``, past autograd, are not seen.
    """
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = function(*inputs)
    for tensor in (*inputs, output):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def peak_bytes(statement: Statement, device: str = "cpu") -> int:
    """The most memory that one call holds beyond what was there, by the allocator's own record."""
    if device == "cpu":
        held = peak = 0
        for change in allocations(statement):
            held += change
            peak = max(peak, held)
        return peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    exec(statement.code, dict(statement.names))
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def allocations(statement: Statement) -> list[int]:
    """Bytes taken on the CPU, or given back where negative, in their order, during one call."""
    code = compile(statement.code, "<statement>", "exec")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as record:  # else 2.12 warns
        exec(code, dict(statement.names))
    # Every allocation; the profiler's own table adds up those inside an operation.
    events: Any = record.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    return [change for _, change in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")]


def _summary(times: list[float]) -> Times:
    low, median, high = statistics.quantiles(times, n=4)
    spread = (high - low) / median
    # The notch of a box plot, the 95% interval of a median (McGill, Tukey, Larsen 1978).
    return Times(min(times), median, spread, 1.57 * spread / math.sqrt(len(times)))
