"""Numbers as arguments: in compiled code, where torch traces them as symbols, such as an annealed softness; and numpy's."""

import inspect

import numpy as np
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
    "bins": 3,
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
OTHER_ARGUMENTS = {"codebook_codes", "codebook_quantize", "fsq", "index_select", "narrow", "proj_transport_polytope"}
SQUARE = {"gumbel_sinkhorn", "proj_permutahedron"}


def numbers(parameters):
    """The numbers of a call by name, and the keywords that it needs."""
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


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize(("function", "tensors"), list(functions()))
def test_of_every_function(function, tensors):
    """One compiled function is right for batch after batch and number after number, in float32, which rounds numbers."""
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


@pytest.mark.parametrize("name", ["dim", "quant_max"])
def test_integers_of_a_grid(name):
    """A dimension or a bound that changes between calls of compiled code is that of the call."""
    torch.compiler.reset()
    x, scale = torch.linspace(-2, 2, 16).reshape(4, 4), torch.tensor([0.5, 0.31, 0.83, 0.62])
    named = {"quant_min": -4, "quant_max": 3, "dim": 0}
    f = lambda value: quantizers.fake_quantize(x, scale, **{**named, name: value})  # noqa: E731
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for value in (0, 1) if name == "dim" else (3, 2, 5):
        assert torch.equal(compiled(value), f(value))


# Compared with the labels, whatever it is; and with a few numbers.
ANY_VALUE = {"ignore_index"}
ONE_OF = {"tie", "at_zero"}
# Integers are given for floats, too.
KINDS = {
    float: (np.float16, np.float32, np.float64, np.longdouble, np.int64, np.array),
    int: (np.int64, np.uint8, np.int32, np.array),
}


def call_of(function, tensors, words):
    """The function of one tensor, from which the others are made, and of numbers by name."""

    def run(x, **named):
        others = [(x * 0.5 + 0.1 * i).sigmoid() for i in range(1, tensors)]
        return first(function(x, *others, **named, **words))

    return run


def outcome(call, x, named):
    """The value and gradient, or the kind of error and its message up to the value."""
    try:
        torch.manual_seed(0)
        x = x.clone().requires_grad_()
        y = call(x, **named)
        return [y.detach(), *(torch.autograd.grad(y, x, y.detach().cos()) if y.requires_grad else [])]
    except (TypeError, ValueError, IndexError) as error:
        return type(error), str(error).partition(", got")[0]


@pytest.mark.parametrize(("function", "tensors"), list(functions()))
def test_numbers_of_numpy(function, tensors):
    """A numpy scalar may replace each number: values, gradients and errors are those of Python's number."""
    named, words = numbers(inspect.signature(function).parameters.values())
    call = call_of(function, tensors, words)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    for name, value in named.items():
        for kind in KINDS[type(value)]:
            number = kind(value) if value >= 0 or kind is not np.uint8 else np.int8(value)
            found, expected = (outcome(call, x, {**named, name: v}) for v in (number, number.item()))
            if kind is np.longdouble:  # whose item is itself
                expected = outcome(call, x, {**named, name: float(number)})
            if isinstance(expected, tuple):
                assert found == expected, (name, kind)
            else:
                assert_close(found, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m, n=name, k=kind: f"{n} {k}: {m}")


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # Dynamo's, after a graph break
@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize(("function", "tensors"), list(functions()))
def test_numbers_of_numpy_compiled(function, tensors):
    """numpy scalars may be arguments of compiled code, and change. Dynamo makes tensors of them: reading one breaks the graph."""
    if function.__module__.startswith("fullgrad.sampling") or function.__name__ == "dorefa_gradient":
        pytest.skip("compiled code draws other numbers")
    named, words = numbers(inspect.signature(function).parameters.values())
    call = call_of(function, tensors, words)
    compiled = torch.compile(call, backend="aot_eager")
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    for factor in (1.0, 1.25):
        plain = {name: v * factor if type(v) is float and 0 < v < 1 else v for name, v in named.items()}
        given = {name: np.float32(v) if type(v) is float else np.int64(v) for name, v in plain.items()}
        expected = outcome(call, x, {name: v.item() for name, v in given.items()})
        assert not isinstance(expected, tuple), expected
        assert_close(outcome(compiled, x, given), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("function", "tensors"), list(functions()))
def test_what_is_no_number_is_refused(function, tensors):
    """Several numbers, a complex one, and numpy's True where Python's is refused, are refused."""
    named, words = numbers(inspect.signature(function).parameters.values())
    call = call_of(function, tensors, words)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    for name, value in named.items():
        if name in ANY_VALUE:
            continue
        refused = [object(), "text"]
        if name not in ONE_OF:
            refused += [np.array([value, value]), 1j, np.complex64(1)]
        try:
            call(x, **{**named, name: True})
        except (TypeError, ValueError):
            refused += [np.True_] * (name not in ONE_OF)
        except RuntimeError:  # torch's own, of arithmetic with bool
            pass
        for wrong in refused:
            with pytest.raises((TypeError, ValueError), match=rf"^{function.__name__}: `{name}` "):
                call(x, **{**named, name: wrong})


def test_sequences_of_numbers_of_numpy():
    """numpy integers and floats may be dimensions, sizes of noise, and levels."""
    x = torch.randn(2, 3, 4, requires_grad=True)
    for dim in ((np.int64(0), -1), [np.int32(0), np.int8(-1)]):
        if isinstance(dim, tuple):
            assert torch.equal(fullgrad.scale_grad(x, dim=dim), fullgrad.scale_grad(x, dim=(0, -1)))
    assert sampling.uniform_like(x, (np.int64(3), 2)).shape == (3, 2, 2, 3, 4)
    levels = [np.int64(5), np.uint8(3), 4, np.int16(7)]
    assert torch.equal(quantizers.fsq(x, levels), quantizers.fsq(x, [5, 3, 4, 7]))
    assert quantizers.quant_range(np.int64(4)) == quantizers.quant_range(4)


def test_a_number_of_numpy_may_learn():
    """A numpy number may become a parameter of a module."""
    module = fullgrad.nn.soft.ReLU(np.float32(0.5), learnable="softness")
    assert module.softness.item() == 0.5
