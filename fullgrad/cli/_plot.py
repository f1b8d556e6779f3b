"""``python -m fullgrad plot``: value, declared derivative and second derivative as curves."""

import argparse
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fullgrad._suite.cases import CASES
from fullgrad._suite.cases._case import Case
from fullgrad.cli._errors import UsageError, check_names, extra


def run(options: argparse.Namespace) -> int:
    """Draw the named operators and write the picture."""
    extra("matplotlib", "plot").use("Agg")
    pyplot = extra("matplotlib.pyplot", "plot")
    height = max(3.6, 0.25 * len(options.names))  # the legend has a line for each
    figure, axes = pyplot.subplots(1, 3, figsize=(12, height), layout="constrained", sharex=True)
    x = torch.linspace(options.range[0], options.range[1], 1201, dtype=torch.float64)
    for name in options.names:
        for axis, curve in zip(axes, curves(_case(name), x), strict=True):
            axis.plot(x, curve, label=name, linewidth=1.5)
    for axis, title in zip(axes, ("value", "declared derivative", "second derivative"), strict=True):
        axis.set_title(title)
        axis.set_xlabel("x")
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(options.output, dpi=120)
    pyplot.close(figure)
    print(f"wrote {options.output}")
    return 0


def curves(case: Case, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value and derivatives of a case with respect to its first input, at every x.

    Operators of a whole tensor see all of x; operators of a row see each x as the first element of a row, and show the first
    number that they return.
    """

    def total(v: Tensor) -> Tensor:
        if case.of == "rows":
            arguments = [a[0] if isinstance(a, Tensor) and a.ndim else a for a in case.inputs[1:]]
            y: Any = case.operator(torch.cat((v.reshape(1), case.inputs[0][0, 1:])), *arguments)
            return (y if isinstance(y, Tensor) else y[0]).flatten()[0]
        arguments = [a.flatten()[0] if isinstance(a, Tensor) else a for a in case.inputs[1:]]
        return case.operator(v, *arguments)

    if case.of == "matrices":
        raise UsageError(f"{case.name} is a function of matrices, which has no curve.")
    if case.of == "tensors":
        first = grad(lambda v: total(v).sum())(x)
        return total(x), first, grad(lambda v: grad(lambda u: total(u).sum())(v).sum())(x)
    return total(x) if case.of == "elements" else vmap(total)(x), vmap(grad(total))(x), vmap(grad(grad(total)))(x)


def _case(name: str) -> Case:
    """The first case of an operator."""
    check_names([name], [known for case in CASES for known in (*case.covers, case.name)], "operator")
    return next(case for case in CASES if name in (case.name, *case.covers))
