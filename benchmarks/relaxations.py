"""The soft operators and their twins next to softtorch's formulas written as composites: ``python -m benchmarks.relaxations``.

A composite is plain torch code in the way that softtorch writes it: polynomials by Horner's rule, joins by ``where``, and the
detach trick in the twins. 1M float32 elements, forward plus backward, one thread. Times do not gate: the exit status is 0.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fullgrad
from benchmarks._measure import Case, measure, ratio, saved_bytes
from fullgrad import soft

N = 1_000_000
SOFTNESS = 0.1
RUN = "torch.autograd.grad(f(*inputs), inputs, g)"


def horner(coefficients: list[float], x: Tensor) -> Tensor:
    y = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = y * x + c
    return y


def pieces(u: Tensor, inside: Tensor, above: Tensor) -> Tensor:
    return torch.where(u < -1, torch.zeros_like(u), torch.where(u < 1, inside, above))


STEPS = {"c0": [0.5, 0.5], "c1": [-0.25, 0, 0.75, 0.5], "c2": [0.1875, 0, -0.625, 0, 0.9375, 0.5]}
RAMPS = {
    "c0": [0.25, 0.5, 0.25],
    "c1": [-0.0625, 0, 0.375, 0.5, 0.1875],
    "c2": [0.03125, 0, -0.15625, 0, 0.46875, 0.5, 0.15625],
}


def sigmoidal(x: Tensor, mode: str) -> Tensor:
    x = x / SOFTNESS
    if mode == "smooth":
        return torch.sigmoid(x)
    u = x / 5
    return pieces(u, horner(STEPS[mode], u), torch.ones_like(u))


def softrelu(x: Tensor, mode: str, gated: bool = False) -> Tensor:
    if gated:
        return x * sigmoidal(x, mode)
    x = x / SOFTNESS
    if mode == "smooth":
        return torch.nn.functional.softplus(x) * SOFTNESS
    u = x / 5
    return pieces(u, 5 * horner(RAMPS[mode], u), x) * SOFTNESS


def sign(x: Tensor, mode: str) -> Tensor:
    return 2 * sigmoidal(x, mode) - 1


def absolute(x: Tensor, mode: str) -> Tensor:
    return x * sign(x, mode)


def clamp(x: Tensor, mode: str) -> Tensor:
    return -1 + softrelu(x + 1, mode) - softrelu(x - 1, mode)


def rounded(x: Tensor, mode: str) -> Tensor:
    n = torch.floor(x).detach()[..., None] + torch.arange(-5, 6, dtype=x.dtype)
    return torch.sum(n * (sigmoidal(x[..., None] - (n - 0.5), mode) - sigmoidal(x[..., None] - (n + 0.5), mode)), dim=-1)


def equality(x: Tensor, y: Tensor, mode: str) -> Tensor:
    return 2 * (1 - sigmoidal(absolute(x - y, mode) - 1e-10, mode))


def closeness(x: Tensor, y: Tensor, mode: str) -> Tensor:
    return 2 * (1 - sigmoidal(absolute(x - y, mode) - 1e-8 - 1e-5 * absolute(y, mode) - 1e-10, mode))


def detached(hard: Callable[..., Tensor], relaxation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The detach trick."""

    def twin(*args: Any) -> Tensor:
        y = relaxation(*args)
        return (hard(*args[:-1]) - y).detach() + y

    return twin


# Each relaxation: ours, the composite, how many tensors it takes, and for its twin the hard operator.
OPERATORS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], int, Callable[..., Tensor] | None]] = {
    "sigmoidal": (soft.sigmoidal, sigmoidal, 1, None),
    "heaviside": (soft.heaviside, sigmoidal, 1, lambda x: torch.heaviside(x, torch.tensor(0.5))),
    "sign": (soft.sign, sign, 1, torch.sign),
    "abs": (soft.abs, absolute, 1, torch.abs),
    "relu": (soft.relu, softrelu, 1, torch.relu),
    "relu gated": (lambda x, mode: soft.relu(x, mode=mode, gated=True), lambda x, mode: softrelu(x, mode, True), 1, None),
    "clamp": (lambda x, mode: soft.clamp(x, -1.0, 1.0, mode=mode), clamp, 1, lambda x: torch.clamp(x, -1, 1)),
    "round": (soft.round, rounded, 1, torch.round),
    "greater": (soft.greater, lambda x, y, mode: sigmoidal(x - y - 1e-10, mode), 2, lambda x, y: (x > y).to(x.dtype)),
    "less": (soft.less, lambda x, y, mode: 1 - sigmoidal(x - y + 1e-10, mode), 2, lambda x, y: (x < y).to(x.dtype)),
    "eq": (soft.eq, equality, 2, lambda x, y: (x == y).to(x.dtype)),
    "isclose": (soft.isclose, closeness, 2, lambda x, y: torch.isclose(x, y).to(x.dtype)),
}
TWINS = {name: getattr(fullgrad, f"{name}_st") for name in OPERATORS if hasattr(fullgrad, f"{name}_st")}
TWINS["clamp"] = lambda x, mode: fullgrad.clamp_st(x, -1.0, 1.0, mode=mode)


def comparisons(names: list[str], modes: list[str]) -> Iterator[tuple[str, str, Case, Case, list[Tensor]]]:
    """Name, mode, ours and the composite, on the same numbers."""
    generator = torch.Generator().manual_seed(0)
    numbers = [(2 * torch.randn(N, generator=generator)).requires_grad_() for _ in range(2)]
    g = torch.randn(N, generator=generator)
    for name, (ours, composite, count, hard) in OPERATORS.items():
        if names and name not in names:
            continue
        inputs = numbers[:count]
        for mode in modes:
            pairs = [(f"soft.{name}", ours, composite)]
            if hard is not None:
                pairs.append((f"{name}_st", TWINS[name], detached(hard, composite)))
            for label, mine, theirs in pairs:
                # By position, as modes are not keywords of the composites.
                f = {"f": lambda *a, mine=mine, mode=mode: mine(*a, mode=mode), "inputs": inputs, "g": g, "torch": torch}
                h = {**f, "f": lambda *a, theirs=theirs, mode=mode: theirs(*a, mode)}
                yield label, mode, Case(RUN, f), Case(RUN, h), inputs


def main() -> int:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="operators, all by default")
    parser.add_argument("--modes", nargs="+", default=["smooth", "c0", "c1", "c2"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("operator", "mode", "ours ms", "composite ms", "ratio", "ours B", "composite B")
    lines = []
    for label, mode, ours, theirs, inputs in comparisons(options.names, options.modes):
        times = measure([ours, theirs], options.rounds, 0.0)
        r = ratio(times[ours], times[theirs])
        kept = [saved_bytes(Case("f(*inputs)", c.names), inputs) / N for c in (ours, theirs)]
        numbers = [f"{times[c].minimum * 1e3:.2f}" for c in (ours, theirs)]
        row = [label, mode, *numbers, f"{r.of_minima:.2f} / {r.of_medians:.2f}", *[f"{k:.0f}" for k in kept]]
        table.add_row(*row)
        lines.append("| " + " | ".join(row) + " |")
    Console(stderr=True).print(table)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
