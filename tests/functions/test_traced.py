"""Operators made of functions, of torch code and of other code, where a tracer records their value alone or with a derivative."""

import io

import numpy
import pytest
import torch
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._subclasses import FakeTensorMode
from torch.func import jacfwd
from torch.testing import assert_close

import fullgrad
from fullgrad._dispatch import STAYS_IN_INFERENCE_MODE

X = torch.tensor([0.3, 0.5])


def by_numpy(x):
    """The sine, by another library."""
    return torch.as_tensor(numpy.sin(x.numpy()))


def twice(x):
    """Twice an array of another library."""
    return torch.as_tensor(2 * x.numpy())


def solver(init, x):
    """The solution of ``z - sin(x) = 0``, by another library."""
    return torch.as_tensor(numpy.sin(x.numpy()))


def of_custom_jvp(f, method):
    """The sine with a rule for tangents."""
    f = fullgrad.custom_jvp(f, vmap_method=method)
    f.defjvp(lambda p, t: (f(*p), torch.cos(p[0]) * t[0]))
    return f


solve = fullgrad.implicit.root(lambda z, x: z - torch.sin(x))(solver)
KERNELS = {
    "with_reference": fullgrad.with_reference(by_numpy, torch.sin),
    "backward": fullgrad.with_reference(by_numpy, torch.sin, backward=lambda i, _, g: (g * torch.cos(i[0]),)),
    "linear_map": fullgrad.linear_map(twice, twice, vmap_method="sequential"),
    "custom_jvp": of_custom_jvp(by_numpy, "sequential"),
    "root": lambda x: solve(torch.ones_like(x), x),
}
OPERATORS = KERNELS | {"torch code": of_custom_jvp(torch.sin, "map"), "torch map": fullgrad.linear_map(torch.neg, torch.neg)}
WITHOUT = [torch.no_grad, torch.inference_mode]


@pytest.mark.parametrize("mode", WITHOUT)
@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_code_without_gradients_calls_kernels(name, mode):
    """Values and tangents in compiled code are those of eager code where no gradient is recorded."""
    op = OPERATORS[name]
    loses_tangents = STAYS_IN_INFERENCE_MODE and mode is torch.inference_mode
    both = lambda x: (op(x), x if loses_tangents else jacfwd(op)(x))  # noqa: E731
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    with mode():
        assert_close(compiled(X), both(X))


@pytest.mark.parametrize("mode", [torch.enable_grad, *WITHOUT])
@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_without_numbers_reach_no_kernel(name, mode):
    """A result of a tensor without numbers has none, inside and outside of its mode."""
    fake = FakeTensorMode()
    with mode():
        x = fake.from_tensor(X)
        with fake:
            inside = OPERATORS[name](x)
        found = [inside, OPERATORS[name](x), OPERATORS[name](X.to("meta"))]
        assert [type(y) for y in found[:2]] == [type(x)] * 2
        assert found[2].is_meta
        assert all(y.shape == X.shape for y in found)


def by_cond(f, x):
    """The function in a branch."""
    return torch.cond(x.sum() > 0, f, lambda x: 0 * f(x), (x,))


def by_map(f, x):
    """The function of each row."""
    return map_over(f, torch.stack([x, x]))[0]


def by_scan(f, x):
    """The function in a loop."""
    return scan(lambda c, v: (c + f(v), f(v)), torch.zeros(2), torch.stack([x, x]))[1][0]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # which Dynamo reads
@pytest.mark.parametrize("of", [by_cond, by_map, by_scan])
@pytest.mark.parametrize("name", ["with_reference", "linear_map", "torch code"])
def test_higher_order_operators(name, of):
    """Operators in `torch.cond`, `map` and `scan` have their values and gradients, with and without a gradient."""
    op = OPERATORS[name]
    assert_close(of(op, X), op(X))
    found, expected = X.clone().requires_grad_(), X.clone().requires_grad_()
    of(op, found).sum().backward()
    op(expected).sum().backward()
    assert_close(found.grad, expected.grad)


def with_none(x):
    """A result with parts that are None."""
    return {"a": torch.sin(x), "b": (None, [x * 2, None])}


rules = fullgrad.custom_vjp(with_none)
rules.defvjp(lambda x: (with_none(x), x), lambda x, g: (torch.cos(x) * g["a"] + 2 * g["b"][1][0],))


@pytest.mark.parametrize("op", [rules, fullgrad.with_reference(with_none, with_none, vmap_method="map")])
def test_compiled_results_hold_none(op):
    """None stays None in a result of compiled code, and the other parts have their gradients."""
    found, x = X.clone().requires_grad_(), X.clone().requires_grad_()
    y = torch.compile(op, backend="aot_eager", fullgraph=True)(found)
    assert y["b"][0] is None
    assert y["b"][1][1] is None
    for result in (y, with_none(x)):
        (result["a"] + result["b"][1][0]).sum().backward()
    assert_close(found.grad, x.grad)


class Calls(torch.nn.Module):
    """A module that calls an operator."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return self.op(x)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("name", KERNELS)
def test_code_that_no_other_process_finds_is_not_exported(name, mode):
    """A kernel is refused with a way out, rather than saved as a node that is known in this process alone."""
    with mode(), pytest.raises(NotImplementedError, match=r"torch\.export cannot save.*custom_op"):
        torch.export.export(Calls(KERNELS[name]), (X,), strict=False)


@torch.library.custom_op("fullgrad_tests::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    """The sine as an operator of torch."""
    return by_numpy(x)


sine.register_fake(torch.empty_like)


@pytest.mark.parametrize("strict", [False, True])
def test_the_way_out_exports(strict):
    """A kernel that is an operator of torch is saved by its own name."""
    op = fullgrad.with_reference(sine, torch.sin, vmap_method="map")
    program, file = torch.export.export(Calls(lambda x: op(x)), (X,), strict=strict), io.BytesIO()
    assert not any("fullgrad." in str(node.target) for node in program.graph.nodes)
    torch.export.save(program, file)
    file.seek(0)
    assert_close(torch.export.load(file).module()(X), torch.sin(X))


ROW = {
    "kernel": fullgrad.with_reference(lambda x: x[:1].clone(), torch.sin),
    "backward": fullgrad.with_reference(torch.sin, torch.sin, backward=lambda i, o, g: (g[:1].clone(),)),
    "dimensions": fullgrad.with_reference(torch.sin, torch.sin, backward=lambda i, o, g: (g[0].clone(),)),
    "apply": fullgrad.linear_map(lambda x: 2 * x[:1], lambda g: g.repeat(2, 1), vmap_method="sequential"),
    "transpose": fullgrad.linear_map(lambda x: 2 * x, lambda g: g[:1].clone(), vmap_method="sequential"),
}


@pytest.mark.parametrize("name", ROW)
def test_compiled_kernels_return_their_shapes(name):
    """A result or a gradient of another size than compiled code expects is refused."""
    x = torch.ones(2, 2, requires_grad=True)
    compiled = torch.compile(ROW[name], backend="aot_eager", fullgraph=True, dynamic=False)
    with pytest.raises((RuntimeError, ValueError), match=r"(with_reference|linear_map): .*(compiled for|must have the shape)"):
        compiled(x).sum().backward()
