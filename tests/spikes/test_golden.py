"""Values, slopes, second derivatives and derivatives by parameters of the published packages."""

import json
from pathlib import Path

import pytest
import torch

import fullgrad
from fullgrad import spikes

pytestmark = pytest.mark.short

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["cases"]


def ident(case):
    words = [f"{key}={value}" for key, value in case["kwargs"].items()]
    return " ".join([case["op"], *words, case["source"].split()[0]])


def operator(case):
    """The operator with the case's arguments, as a function of v and named parameters."""
    name, kwargs = case["op"], dict(case["kwargs"])
    if "noise" in case["inputs"]:
        kwargs["noise"] = torch.tensor(case["inputs"]["noise"], dtype=torch.float64)
    times = case.get("times", 1.0)

    def call(v, **changed):
        if "mask_grad" in case.get("recipe", ""):
            v = fullgrad.mask_grad(v, v.abs() > kwargs["threshold"])
        y = getattr(spikes, name)(v, **(kwargs | changed))
        if "mean" in case.get("recipe", ""):
            return y * v.abs().mean(tuple(range(v.ndim - 1)), keepdim=True).detach()
        if "slope_op" in case:
            y = fullgrad.replace_grad(y, getattr(spikes, case["slope_op"])(v, **case["slope_kwargs"]))
        return y * times

    return call


def inputs(case):
    v = torch.tensor(case["inputs"]["v"], dtype=torch.float64)
    return v.reshape(case["shape"]).requires_grad_() if "shape" in case else v.requires_grad_()


def compare(case, kind, actual, expected, leave=(), atol=1e-12):
    """Check equality up to the case's tolerance, except where a published number is a convention; where one is wrong, it is
    replaced by the right one.
    """
    expected = torch.tensor(expected, dtype=torch.float64)
    for index, right in case.get("right", {}).get(kind, {}).items():
        expected[int(index)] = right
    keep = [i for i in range(len(expected)) if i not in leave]
    torch.testing.assert_close(actual.detach().flatten()[keep], expected[keep], rtol=max(case["rtol"], 1e-9), atol=atol)


@pytest.mark.parametrize("case", GOLDEN, ids=ident)
def test_value(case):
    """Values are equal, ties included, to the last bit where the package computes exactly."""
    if "out" not in case:
        pytest.skip("the value is random")
    y = operator(case)(inputs(case))
    compare(case, "out", y, case["out"])


@pytest.mark.parametrize("case", GOLDEN, ids=ident)
def test_slope(case):
    """Gradients for the upstream gradient 1, 2, … are equal, except where the slope jumps: see `test_corners_of_windows`."""
    v = inputs(case)
    upstream = torch.arange(1.0, v.numel() + 1, dtype=torch.float64).reshape(v.shape)
    (g,) = torch.autograd.grad(operator(case)(v), v, upstream)
    compare(case, "grad", g, case["grad"]["v"], leave=case["kink"])


@pytest.mark.parametrize("case", [c for c in GOLDEN if "hvp" in c], ids=ident)
def test_second_derivative(case):
    """Gradients of the gradient are equal, except at corners of the slope."""
    v = inputs(case)
    upstream = torch.arange(1.0, v.numel() + 1, dtype=torch.float64)
    (g,) = torch.autograd.grad(operator(case)(v), v, upstream, create_graph=True)
    direction = torch.tensor(case["hvp_v"]["v"], dtype=torch.float64)
    h = torch.autograd.grad((g * direction).sum(), v)[0] if g.requires_grad else torch.zeros_like(v)
    compare(case, "hvp", h, case["hvp"]["v"], leave=[*case["kink"], *case["kink2"]])


BY_PARAMETER = [
    pytest.param(c, name, id=f"{ident(c)} by {name}") for c in GOLDEN if "param_grad" in c for name in c["param_grad"]
]


@pytest.mark.parametrize(("case", "name"), BY_PARAMETER)
def test_derivative_by_parameter(case, name):
    """Derivatives equal the package's own, per element. `S2NN`'s has a logarithm of 1e-5 more than the slope implies."""
    v = inputs(case).detach()
    p = torch.full_like(v, case["kwargs"][name]).requires_grad_()
    (g,) = torch.autograd.grad(operator(case)(v, **{name: p}).sum(), p)
    compare(case, f"param_grad {name}", g, case["param_grad"][name], leave=case["kink"], atol=case.get("primitive_atol", 1e-12))
