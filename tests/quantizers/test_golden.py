"""Values and gradients of the published packages, and of references in float64, fractions or decimals."""

import json
import math
from pathlib import Path

import pytest
import torch

import fullgrad
from fullgrad import quantizers
from fullgrad.quantizers import FloatFormat

pytestmark = pytest.mark.short

CASES = json.loads((Path(__file__).parent / "golden.json").read_text())["cases"]

# The lines of the specification that cases stand for.
RECIPES = {
    "scale * binarize(x, window=None)": lambda x, scale: scale * quantizers.binarize(x, window=None),
    "binarize(x, scale_bwd(scale, 1 / sqrt(x.numel())), window=scale, at_zero=0.0)": lambda x, scale: quantizers.binarize(
        x, fullgrad.scale_bwd(scale, 1 / math.sqrt(x.numel())), window=scale, at_zero=0.0
    ),
    "ternarize(x, 0.3 * scale, scale)": lambda x, scale: quantizers.ternarize(x, 0.3 * scale, scale),
    "ternarize(x, 0.05 * scale, scale)": lambda x, scale: quantizers.ternarize(x, 0.05 * scale, scale),
    "float_quantize(x, format, saturate=False, inside='all')": lambda x, **kwargs: quantizers.float_quantize(
        x, inside="all", **kwargs
    ),
    "xnor(x, dim=0, scale_gradient=False)": lambda x, dim: quantizers.xnor(x, dim, scale_gradient=False),
}
NOT_LEARNED = ("noise", "cotangent", "zero_point", "threshold")


def ident(case):
    words = [f"{key}={value}" for key, value in case["kwargs"].items()]
    return " ".join([case["op"], *words, case["source"].split()[0]])


def tensor(entry):
    return torch.tensor(entry["value"], dtype=getattr(torch, entry["dtype"]))


def call(case, inputs):
    """The operator of the case, or the line that it stands for."""
    kwargs = dict(case["kwargs"])
    rest = {name: t for name, t in inputs.items() if name not in ("x", "cotangent")}
    if isinstance(kwargs.get("format"), list):
        e, m = kwargs["format"]
        kwargs["format"] = FloatFormat(e, m, bias=2 ** (e - 1), kind="finite")
    if "recipe" in case:
        y = RECIPES[case["recipe"]](inputs["x"], **rest, **kwargs)
    else:
        operator = getattr(quantizers, case["op"], None) or getattr(fullgrad, case["op"])
        y = operator(inputs["x"], **rest, **kwargs)
    return y[0] if isinstance(y, tuple) else y


def leaves(case):
    """The inputs, those with a published gradient as leaves."""
    inputs = {name: tensor(entry) for name, entry in case["inputs"].items()}
    for name in case.get("grad", {}):
        inputs[name].requires_grad_()
    return inputs


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_value(case):
    """Values are equal bit for bit where the package computes so, zeros and NaN included."""
    y, expected = call(case, leaves(case)).detach(), tensor(case["out"])
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=case["out_tol"], atol=case["out_tol"], equal_nan=True)
    if case["signed_zero"]:
        assert torch.equal(y.signbit()[~y.isnan()], expected.signbit()[~y.isnan()])


@pytest.mark.parametrize("case", [c for c in CASES if "grad" in c], ids=ident)
def test_gradients(case):
    """Gradients of the input, and of every parameter that learns, are equal."""
    inputs = leaves(case)
    y = call(case, inputs)
    w = inputs["cotangent"] if "cotangent" in inputs else torch.arange(1.0, y.numel() + 1, dtype=y.dtype).reshape(y.shape)
    found = torch.autograd.grad(y, [inputs[name] for name in case["grad"]], w, materialize_grads=True)
    for g, entry in zip(found, case["grad"].values(), strict=True):
        expected = tensor(entry)
        largest = float(expected.abs().nan_to_num(0, 0, 0).max()) if expected.numel() else 0.0
        torch.testing.assert_close(
            g, expected, rtol=case["grad_tol"], atol=case["grad_tol"] * max(largest, 1e-30), equal_nan=True
        )


def test_every_operator_has_a_golden_case():
    """Every operator but the helpers has a golden case."""
    others = {"FloatFormat", "codebook_codes", "codes", "float_codes", "levels", "quant_range"}
    assert {*quantizers.__all__} - others == {c["op"] for c in CASES} - {"round", "stochastic_round", "learned_round"}
