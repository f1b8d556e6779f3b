"""A picture per operator, drawn from its cases: value, declared derivative and second derivative."""

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from matplotlib import pyplot
from torch import Tensor
from torch.func import grad, vjp, vmap

import fullgrad
from fullgrad._suite.cases import CASES
from fullgrad._suite.cases._case import Case
from fullgrad.cli._plot import curves

# Lines and words of middle tones, legible on white and on black.
COLORS = {"smooth": "#3A8FD0", "c0": "#DD6B20", "c1": "#12A37F", "c2": "#C774A8"}
GRAY = "#7D8288"
STYLE = {
    "font.size": 9,
    "lines.linewidth": 1.5,
    "svg.hashsalt": "fullgrad",
    "svg.fonttype": "none",
    "savefig.transparent": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 9,
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color", "axes.titlecolor"), GRAY
    ),
}
MODES = ("smooth", "c0", "c1", "c2")


@dataclasses.dataclass(frozen=True)
class Picture:
    """The curves of one operator.

    Args:
        cases: What to draw, by the word for the legend.
        options: The arguments besides the first one, for the caption.
        kind: ``"elements"``, a curve of each element; ``"one"``, of one element while the others stay; or ``"cotangent"``, of
            the gradient that the operator makes of a gradient.
    """

    cases: dict[str, Case]
    options: dict[str, Any]
    kind: str

    @property
    def titles(self) -> tuple[str, str, str]:
        """What the three panels show."""
        if self.kind == "cotangent":
            return "value", "gradient out, by gradient in", "its derivative"
        return "value", "derivative", "second derivative"

    @property
    def caption(self) -> str:
        """One line about what is drawn."""
        shown = {name: f"{value:g}" if isinstance(value, float) else repr(value) for name, value in self.options.items()}
        words = [f"``{name}={value}``" for name, value in shown.items()]
        said = [", ".join(words)] if words else []
        if self.kind == "one":
            said.append("one element varies, the first number of the output is shown")
        if self.kind == "cotangent":
            said.append("one element of a gradient varies, the others are 1 and -0.5")
        text = "; ".join(said)
        return text and text[0].upper() + text[1:] + "."


def pictures(path: str) -> dict[str, Picture]:
    """The pictures of a public function, by the option that they add: none of one that has no case, or only records."""
    function = functools.reduce(getattr, path.split(".")[1:], fullgrad)
    name = path.removeprefix("fullgrad.")
    cases = {case.name: case for case in CASES if name in case.covers}
    # A sample has no curve, and the curve of a solver is that of the example's; these families' pages have pictures of their own.
    if name.startswith(("sampling.", "blackbox.")) or name in ("implicit.root_vjp", "implicit.root_jvp"):
        return {}
    if not cases or not inspect.isfunction(function) or name == "track_scales":
        return {}
    parameters = inspect.signature(function).parameters
    found = {}
    if {"mode", "softness"} <= {*parameters}:
        method = [parameters["method"].default] if "method" in parameters else []
        for label in ("", "gated"):
            if label and label not in parameters:
                continue
            modes = {mode: cases.get(" ".join([name, *method, mode, *[label] * bool(label)])) for mode in MODES}
            softness = parameters["softness"].default
            drawn = {mode: _softened(case, softness) for mode, case in modes.items() if case is not None}
            if drawn:
                options = {**({label: True} if label else {}), **({"method": method[0]} if method else {}), "softness": softness}
                found[label] = _picture(drawn, function, options)
    if name.startswith("spikes."):
        return {"": _by_parameter(next(iter(cases.values())), function)}
    return found or {"": _picture({"": next(iter(cases.values()))}, function, {})}


def draw(path: str, label: str = "") -> None:
    """Draw a picture as the current figure of pyplot."""
    picture = pictures(path)[label]
    first = next(iter(picture.cases.values())).inputs[0]
    truth = bool((first >= 0).all() and (first <= 1).all())  # of degrees of truth
    # An even number of points, none of which is 0 or a half, where many operators have an edge.
    x = torch.linspace(*(0, 1) if truth else (-2.5, 2.5), 1000, dtype=torch.float64)
    make: dict[str, Callable[..., Any]] = {"elements": curves, "one": _one_varies, "cotangent": _gradient_varies}
    _, panels = pyplot.subplots(1, 3, figsize=(7.6, 2.1), layout="constrained")  # which leaves room for every label
    colors = itertools.cycle([color for color in COLORS.values() for _ in panels])
    for mode, case in picture.cases.items():
        for axes, curve in zip(panels, make[picture.kind](case, x), strict=True):
            axes.plot(x, curve.detach(), color=COLORS.get(mode or "smooth", next(colors)), label=mode)
    for axes, title in zip(panels, picture.titles, strict=True):
        axes.set_title(title)
        if axes.dataLim.height < 1e-6:  # a constant
            axes.set_ylim(axes.dataLim.y0 - 1, axes.dataLim.y0 + 1)
    if len(picture.cases) > 1:
        panels[0].legend(fontsize="small", handlelength=1.2)


def _by_parameter(case: Case, function: Any) -> Picture:
    """A surrogate for three values of the first parameter of its shape, or as it is if that has none."""
    names = [*inspect.signature(function).parameters]
    fixed = ("threshold", "grad_scale", "tie", "low", "high")
    for i, (name, value) in enumerate(zip(names, case.inputs, strict=False)):
        if case.operator is function and isinstance(value, float) and name not in fixed:
            values = [value * factor for factor in (0.5, 1.0, 2.0)] if value else [0.0, 0.25, 0.5]
            if name == "alpha" and "q_pseudo" in case.name:
                values = [1.5, 2.0, 4.0]
            changed = [(*case.inputs[:i], v, *case.inputs[i + 1 :]) for v in values]
            cases = {f"{name}={v:g}": dataclasses.replace(case, inputs=inputs) for v, inputs in zip(values, changed, strict=True)}
            picture = _picture(cases, function, {})
            return dataclasses.replace(picture, options={k: v for k, v in picture.options.items() if k != name})
    return _picture({"": case}, function, {})


def _picture(cases: dict[str, Case], function: Any, options: dict[str, Any]) -> Picture:
    case = next(iter(cases.values()))
    kind = "elements"
    if not case.linear:
        kind = "cotangent"
    elif case.of in ("rows", "matrices") or _first(case.operator(*case.inputs)).shape != case.inputs[0].shape:
        kind = "one"
    called = case.operator.func if isinstance(case.operator, functools.partial) else case.operator
    if called is function:
        names, rest = [*inspect.signature(function).parameters][1:], case.inputs[1:]
        given = {name: value for name, value in zip(names, rest, strict=False) if not isinstance(value, Tensor)}
        if kind == "elements":
            given |= {n: round(v.flatten()[0].item(), 2) for n, v in zip(names, rest, strict=False) if isinstance(v, Tensor)}
        extra = {k: v for k, v in getattr(case.operator, "keywords", {}).items() if k != "mode"}
        options = {name: value for name, value in {**given, **extra}.items() if name not in options} | options
    return Picture(cases, options, kind)


def _softened(case: Case, softness: float) -> Case:
    """The case with its softness, which is the last number among its inputs, replaced."""
    last = max(i for i, value in enumerate(case.inputs) if not isinstance(value, Tensor) or value.ndim == 0)
    return dataclasses.replace(case, inputs=(*case.inputs[:last], softness, *case.inputs[last + 1 :]))


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _one_varies(case: Case, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first number of the output as a function of the first element of the first input."""
    if case.of == "rows":
        return curves(case, x)
    first = case.inputs[0]

    def one(v: Tensor) -> Tensor:
        varied = torch.cat((v.reshape(1), first.flatten()[1:])).reshape(first.shape)
        return _first(case.operator(varied, *case.inputs[1:])).flatten()[0]

    return vmap(one)(x), vmap(grad(one))(x), vmap(grad(grad(one)))(x)


def _gradient_varies(case: Case, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The value, and of the map of the gradient the first element as a function of the first element."""
    others = torch.tensor([1.0, -0.5], dtype=torch.float64)
    primal = torch.zeros(3, dtype=torch.float64)
    pull = vjp(lambda v: case.operator(v, *case.inputs[1:]), primal)[1]

    def mapped(g: Tensor) -> Tensor:
        return pull(torch.cat((g.reshape(1), others)))[0][0]

    return case.operator(x, *case.inputs[1:]), vmap(mapped)(x), vmap(grad(mapped))(x)
