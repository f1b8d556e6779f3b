"""Graphs that leave Python: make_fx, and torch.export with what it cannot keep."""

import gc
import threading

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from tests.operators import CASES, Affine, CubicRound, SinCos, affine, sample


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


TRANSFORMS = {
    "grad": lambda f: grad(lambda x: f(x).sin().sum()),
    "vjp": lambda f: lambda x: vjp(f, x)[1](x),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,)),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": lambda f: hessian(lambda x: f(x).sin().sum()),
    "vmap_grad": lambda f: lambda x: vmap(grad(lambda x: f(x).sum()))(x.expand(2, 3)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_make_fx_of_a_transform(case, name):
    """The traced graph holds the declared derivative, and is right for other inputs."""
    function, expected = (TRANSFORMS[name](f) for f in case)
    graph = make_fx(function)(sample())
    for x in (sample(seed=1), sample(seed=2)):
        assert_close(graph(x), expected(x))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", ["cubic_round", "sin_cos", "nested", "total"])
def test_make_fx_with_fake_tensors(name, mode):
    """Tracing with fake tensors and with symbolic sizes is right."""
    case = CASES[name]
    graph = make_fx(grad(lambda x: case.function(x).sin().sum()), tracing_mode=mode)(sample())
    x = sample(seed=1)
    assert_close(graph(x), grad(lambda x: case.oracle(x).sin().sum())(x))
    if mode == "symbolic":
        x = torch.cat([x, x])
        assert_close(graph(x), grad(lambda x: case.oracle(x).sin().sum())(x))


def test_make_fx_of_eager_autograd():
    """A backward pass inside the traced function is traced with the author's vjp."""

    def function(f):
        def inner(x):
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(f(leaf).sin().sum(), leaf)[0]

        return inner

    case = CASES["cubic_round"]
    graph = make_fx(function(case.function))(sample())
    x = sample(seed=1)
    assert_close(graph(x), function(case.oracle)(x))


def test_compiled_graph_of_a_transform():
    """A traced graph compiles."""
    case = CASES["cubic_round"]
    graph = make_fx(jacrev(case.function))(sample())
    assert_close(torch.compile(graph, backend="aot_eager", fullgraph=True)(sample(seed=1)), jacrev(case.oracle)(sample(seed=1)))


class Module(torch.nn.Module):
    """A layer and an operator, or an operator alone."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, x):
        return self.function(x if self.layer is None else self.layer(x))


@pytest.mark.parametrize("strict", [True, False])
def test_export_keeps_the_value(case, strict):
    """The exported program computes the value of the operator, without a warning where no gradient is required."""
    program = torch.export.export(Module(case.function), (sample(),), strict=strict)
    for x in (sample(), sample(seed=1)):
        assert_close(program.module()(x), case.function(x))


@pytest.mark.parametrize("strict", [True, False])
def test_export_keeps_the_value_of_every_element(strict):
    """Every element has the eager value, bit for bit."""
    x = torch.cat([torch.randn(100) * 3, torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, -0.2])])
    y = torch.export.export(Module(CubicRound.apply), (x,), strict=strict).module()(x)
    assert torch.equal(y.view(torch.int32), x.round().view(torch.int32))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", ["input", "parameter"])
def test_export_warns_when_a_derivative_is_lost(kind, strict):
    """An input or a parameter that requires a gradient: a UserWarning names the operator; the value is right."""
    module = Module(CubicRound.apply, torch.nn.Linear(3, 2).double() if kind == "parameter" else None)
    x = sample(2)
    if kind == "input":
        x.requires_grad_()
    with pytest.warns(UserWarning, match=r"^CubicRound: torch.export keeps the value and drops the declared derivative"):
        program = torch.export.export(module, (x,), strict=strict)
    assert_close(program.module()(x).detach(), module(x).detach())


@pytest.mark.parametrize("strict", [True, False])
def test_export_under_no_grad_is_silent(strict):
    """There is no warning under no_grad; the tests make errors of warnings."""
    module = Module(CubicRound.apply, torch.nn.Linear(3, 2).double())
    with torch.no_grad():
        program = torch.export.export(module, (sample(2),), strict=strict)
    assert_close(program.module()(sample(2)).detach(), module(sample(2)).detach())


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_dynamic_shapes(strict):
    """One program for all batch sizes."""
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Module(CubicRound.apply), (sample(4),), dynamic_shapes={"x": {0: batch}}, strict=strict)
    assert torch.equal(program.module()(sample(7)), sample(7).round())


# run_decompositions copies the program with a deprecated call of torch's own.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize("strict", [True, False])
def test_export_of_several_outputs_and_plain_arguments(strict):
    """Namedtuples, numbers and None can be exported."""

    class Both(torch.nn.Module):
        def forward(self, x):
            pair = SinCos.apply(x)
            return pair.sin * pair.cos + Affine.apply(x, x, None, power=2)

    program = torch.export.export(Both(), (sample(),), strict=strict)
    assert_close(program.module()(sample()), sample().sin() * sample().cos() + affine(sample(), sample(), power=2))
    assert_close(program.run_decompositions().module()(sample()), program.module()(sample()))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["cubic_round", "sin_cos", "norm", "affine", "max"])
def test_export_of_vmap(name, strict):
    """vmap inside the exported module: the value is right."""
    case = CASES[name]
    program = torch.export.export(Module(vmap(case.function)), (sample(2),), strict=strict)
    assert_close(program.module()(sample(2, seed=1)), vmap(case.oracle)(sample(2, seed=1)))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["grad", "jvp", "vmap_grad"])
def test_export_of_a_derivative(name, strict):
    """A derivative inside the exported module is right, or an error: a program holds values only."""
    case = CASES["cubic_round"]
    function = TRANSFORMS[name](case.function)

    def call():
        return torch.export.export(Module(function), (sample(),), strict=strict).module()(sample(seed=1))

    result = in_a_thread(call)
    if not isinstance(result, Exception):
        assert_close(result, TRANSFORMS[name](case.oracle)(sample(seed=1)))
    else:
        assert "CubicRound: torch.export would replace the declared derivative" in str(result)


def in_a_thread(call):
    """The result or the error of a call. A trace that fails may leave its transforms on the stack of its thread."""
    results = []

    def run():
        try:
            results.append(call())
        except Exception as error:
            results.append(error.with_traceback(None))
        gc.collect()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]
