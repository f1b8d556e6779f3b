"""Numbers that are arguments of compiled code, as a softness that is annealed: torch traces them as symbols, and sizes too."""

import inspect

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import fullgrad
from fullgrad import quantizers, sampling, soft, spikes
from tests.ecosystem.calls import first

REQUIRED = inspect.Parameter.empty
# What has no default, or None, by the name of the parameter; and other words than the default.
GIVEN = {
    "k": 3,
    "bits": 3,
    "levels": 4,
    "block_size": 2,
    "max_spikes": 2,
    "format": "float8_e4m3fn",
    "q": 0.3,
    "min_value": -0.7,
    "max_value": 0.7,
    "low": -0.7,
    "high": 0.7,
    "min": -0.7,
    "max": 0.7,
    "alpha": 1.3,
    "total": 2.0,
    "samples": 3,
    "scale": 0.5,
}
# Of these a tensor with numbers of its own, or of another shape, is an argument; or numbers are no arguments at all.
OTHER_ARGUMENTS = {"codebook_quantize", "fsq", "index_select", "narrow", "proj_transport_polytope"}
SQUARE = {"gumbel_sinkhorn", "proj_permutahedron"}


def numbers(parameters):
    """Those of a call by their names, and the words that it needs."""
    found = {}
    for p in parameters:
        if p.annotation is Tensor and p.default is REQUIRED:
            continue
        if p.name in GIVEN:
            found[p.name] = GIVEN[p.name]
        elif p.default is REQUIRED:
            found[p.name] = 0.7
        elif type(p.default) in (int, float) and p.name != "dim":
            found[p.name] = p.default
    return {k: v for k, v in found.items() if type(v) is not str}, {k: v for k, v in found.items() if type(v) is str}


def functions():
    """Every public function of tensors and numbers."""
    for module in (fullgrad, soft, spikes, quantizers, sampling):
        for name in module.__all__:
            function = getattr(module, name)
            if not inspect.isfunction(function) or name in OTHER_ARGUMENTS:
                continue
            parameters = inspect.signature(function).parameters.values()
            tensors = [p for p in parameters if p.annotation is Tensor and p.default is REQUIRED]
            if tensors and numbers(parameters)[0]:
                yield pytest.param(function, len(tensors), id=f"{module.__name__}.{name}".removeprefix("fullgrad."))


def value_and_gradient(function, x, numbers):
    torch.manual_seed(0)
    x = x.clone().requires_grad_()
    y = function(x, *numbers)
    if not y.requires_grad:
        return [y]
    return [y.detach(), *torch.autograd.grad(y, x, y.detach().cos())]


@pytest.mark.long
@pytest.mark.parametrize(("function", "tensors"), list(functions()))
def test_of_every_function(function, tensors):
    """One compiled function is right for one batch and set of numbers after the other: in float32, where numbers are rounded."""
    named, words = numbers(inspect.signature(function).parameters.values())

    def of_numbers(x, *given):
        others = [(x * 0.5 + 0.1 * i).sigmoid() for i in range(1, tensors)]
        return first(function(x, *others, **dict(zip(named, given, strict=True)), **words))

    compiled = torch.compile(of_numbers, backend="aot_eager", fullgraph=True, dynamic=True)
    draws = function.__module__.startswith("fullgrad.sampling") or function.__name__ == "dorefa_gradient"
    for rows, factor in ((4, 1.0), (6, 1.25)):
        x = torch.randn(rows, rows if function.__name__ in SQUARE else 6, generator=torch.Generator().manual_seed(rows))
        given = [v * factor if type(v) is float and 0 < v < 1 else v for v in named.values()]
        expected, found = value_and_gradient(of_numbers, x, given), value_and_gradient(compiled, x, given)
        if draws:  # other numbers in compiled code
            assert [t.shape for t in found] == [t.shape for t in expected]
        else:
            assert_close(found, expected, rtol=2e-4, atol=2e-5)
