"""One rounding implemented three ways, under the transforms of torch: the table and the picture of the contract.

``python docs/compare.py`` reproduces both, with ``--table`` only the table. A test compares it with the one in
``docs/contract.md``.
"""

import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import fullgrad

HERE = pathlib.Path(__file__).parent
TURN = 2 * math.pi


def surrogate(x: Tensor) -> Tensor:
    """The smooth staircase whose derivative is declared."""
    return x - torch.sin(TURN * x) / TURN


def slope(x: Tensor) -> Tensor:
    """The derivative of the surrogate."""
    return 1 - torch.cos(TURN * x)


def detach_trick(x: Tensor) -> Tensor:
    """Adds a difference that is detached, the usual way."""
    soft = surrogate(x)
    return soft + (torch.round(x) - soft).detach()


class Plain(torch.autograd.Function):
    """A complete `torch.autograd.Function`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.round(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return g * slope(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return t * slope(*ctx.saved_tensors)


class Round(fullgrad.Elementwise):
    """The rounding as a `fullgrad.Elementwise`."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        return v * slope(x)


WAYS: dict[str, Callable[..., Tensor]] = {
    "detach trick": detach_trick,
    "`torch.autograd.Function`": Plain.apply,
    "fullgrad": Round.apply,
}


def total(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A scalar that depends nonlinearly on all outputs."""
    return lambda x: (f(x) + x * f(x)).sum()


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the function into one graph."""
    torch.compiler.reset()
    return torch.compile(f, backend="aot_eager", fullgraph=True)


TASKS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Any]]] = {
    "`backward`": lambda f: lambda x: torch.autograd.grad(f(leaf := x.clone().requires_grad_()), leaf)[0],
    "`vmap(grad)`, per sample": lambda f: lambda x: vmap(grad(f))(x[:, None]),
    "`jvp`": lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),))[1],
    "`hessian`": hessian,
    "`jacrev(jacrev)`": lambda f: jacrev(jacrev(f)),
    "`jacfwd(jacfwd)`": lambda f: jacfwd(jacfwd(f)),
    "compiled `vmap(grad)`": lambda f: compiled(lambda x: vmap(grad(f))(x[:, None])),
    "compiled `hessian`": lambda f: compiled(hessian(f)),
}


def expected(x: Tensor) -> Tensor:
    """The value without a derivative, plus the surrogate without a value: exact in float64 at the points of the table."""
    soft = surrogate(x)
    return torch.round(x.detach()) + (soft - soft.detach())


def outcome(way: Callable[..., Tensor], task: Callable[..., Any]) -> str:
    """The result of a task: right, wrong by how much, or an error."""
    x = torch.linspace(-1.2, 1.3, 6, dtype=torch.float64)
    try:
        found = task(total(way))(x)
    except Exception as error:
        return f"raises {type(error).__name__}"
    finally:
        torch.compiler.reset()
    difference = float((found - task(total(expected))(x)).abs().max())
    return "right" if difference < 1e-12 else f"**wrong** by {difference:.2g}"


def value(way: Callable[..., Tensor]) -> str:
    """The share of a million float32 values that are not integers."""
    y = way(torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)) * 10)
    count = int((y != y.round()).sum())
    return f"**wrong** for {count / 1e4:.0f}%" if count else "right"


def at_infinity(way: Callable[..., Tensor]) -> str:
    """The value at infinity."""
    return "right" if way(torch.tensor(math.inf)) == math.inf else f"**wrong**: {float(way(torch.tensor(math.inf)))}"


def kept(way: Callable[..., Tensor]) -> str:
    """The bytes kept for the backward, besides the input."""
    x, held = torch.ones(1000, requires_grad=True), set()

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() and t.numel() == x.numel():
            held.add(t.untyped_storage().data_ptr())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        way(x)
    return f"{4 * len(held)} bytes" if held else "nothing"


def rows() -> list[list[str]]:
    """The rows of the table."""
    measures = {"value, float32": value, "value at infinity": at_infinity}
    table = [[name, *map(measure, WAYS.values())] for name, measure in measures.items()]
    table += [[name, *(outcome(way, task) for way in WAYS.values())] for name, task in TASKS.items()]
    return [*table, ["kept for the backward, per element", *map(kept, WAYS.values())]]


def markdown() -> str:
    """The table as it stands in ``docs/contract.md``."""
    lines = [["", *WAYS], ["---"] * (1 + len(WAYS)), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(path: pathlib.Path) -> None:
    """Draw the second derivative of the rounding by four transforms, for torch's Function and for ours."""
    sys.path[:0] = [str(HERE / "_ext")]
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from pictures import STYLE

    x = torch.linspace(-1.25, 1.25, 101, dtype=torch.float64)
    ways = {
        "jacrev(jacrev)": lambda f: jacrev(jacrev(f)),
        "jacfwd(jacrev)": lambda f: jacfwd(jacrev(f)),
        "jacfwd(jacfwd)": lambda f: jacfwd(jacfwd(f)),
        "compiled hessian": lambda f: compiled(hessian(f)),
    }
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (title, way) in zip(panels, [("torch.autograd.Function", Plain.apply), ("fullgrad", Round.apply)], strict=True):
            for (label, transform), (color, width) in zip(ways.items(), STROKES, strict=True):
                second = transform(lambda x, way=way: way(x).sum())(x).diagonal()
                axes.plot(x, second, color=color, linewidth=width, label=label)
            axes.set(title=title, xlabel="x")
            panels[0].set_ylabel("second derivative")
        figure.legend(*panels[1].get_legend_handles_labels(), fontsize="small", loc="outside right center")
        figure.savefig(path, metadata={"Date": None})


# Colors that the color-blind can tell apart, on white and on black, and widths that keep overlapping lines visible.
STROKES = (("#9AA0A6", 7), ("#3A8FD0", 4.5), ("#DD6B20", 2.5), ("#F0C94A", 1))

if __name__ == "__main__":
    if "--table" not in sys.argv:
        draw(HERE / "pictures" / "transforms.svg")
    print(markdown())
