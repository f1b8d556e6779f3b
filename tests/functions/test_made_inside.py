"""Operators of functions that compiled code makes itself: the graph breaks, and ``fullgraph=True`` says why."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import fullgrad
from fullgrad import forward, implicit, spikes
from tests.adopting.functions import SavesInput


def _custom_jvp(x: Tensor) -> Tensor:
    f = fullgrad.custom_jvp(lambda x: torch.sin(x))
    f.defjvp(lambda primals, tangents: (f(*primals), 2 * tangents[0]))
    return f(x)


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "straight_through": lambda x: fullgrad.straight_through(lambda x: torch.round(x), lambda x: 2 * x)(x),
    "st": lambda x: fullgrad.st(lambda x, mode: torch.round(x) if mode == "hard" else 2 * x)(x),
    "grad_replace": lambda x: fullgrad.grad_replace(lambda x, forward: torch.round(x) if forward else 2 * x)(x),
    "custom_jvp": _custom_jvp,
    "custom_gradient": lambda x: fullgrad.custom_gradient(lambda x: (torch.sin(x), lambda g: 2 * g))(x),
    "from_slope": lambda x: spikes.from_slope(lambda u: 2 + 0 * u)(x),
    "with_reference": lambda x: fullgrad.with_reference(lambda x: torch.sin(x), lambda x: torch.sin(x))(x),
    "linear_map": lambda x: fullgrad.linear_map(lambda x: 2 * x, lambda g: 2 * g)(x),
    "laplacian": lambda x: forward.laplacian(lambda x: x.square().sum())(x),
    "hessian_diagonal": lambda x: forward.hessian_diagonal(lambda x: x.square().sum())(x),
    "root": lambda x: implicit.root(lambda z, x: z - 2 * x)(lambda z, x: 2 * x)(torch.zeros(2), x),
    "taylor": lambda x: forward.taylor(lambda x: x.square().sum(), x, x, 2)[1],
    "jet": lambda x: forward.jet(lambda x: x.square().sum(), (x,), ([x],))[1][0],
    "adopt": lambda x: fullgrad.adopt(SavesInput)(x),
}
BY_CALL = "compiled code calls an operator of functions, as `forward.laplacian(f)`, that it has made itself: make it outside"


# On torch 2.11 Dynamo fails in code of functools before it reaches a call, and tells that.
OF_DYNAMO = {"with_reference", "linear_map", "laplacian", "hessian_diagonal", "root"} if torch.__version__ < "2.12" else set()


@pytest.mark.parametrize("name", [name for name in MADE if name not in OF_DYNAMO])
def test_error_with_fullgraph_says_why(name: str) -> None:
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        torch.compile(MADE[name], backend="eager", fullgraph=True)(torch.tensor([0.3, 1.7]))
    own = f"{name} makes an operator of functions: call it outside of compiled code", f"{name} runs outside of compiled code"
    assert any(text in str(raised.value) for text in (BY_CALL, *own))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # at which Dynamo looks
@pytest.mark.parametrize("name", MADE)
def test_without_fullgraph_the_graph_breaks(name: str) -> None:
    torch.compiler.reset()
    x = torch.tensor([0.3, 1.7], requires_grad=True)
    values = [f(x) for f in (MADE[name], torch.compile(MADE[name], backend="eager"))]
    torch.testing.assert_close(*values, rtol=0, atol=0)
    if values[0].requires_grad:
        torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in values], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # torch 2.11's, about classes
@pytest.mark.parametrize("base", ["Function", "Elementwise"])
def test_dynamo_compiles_no_code_that_makes_a_class(base: str) -> None:
    """It would compile some thousand frames of `inspect` and `re`, for minutes, and raise in most processes."""

    def cube(x: Tensor) -> Tensor:
        if base == "Function":
            return fullgrad.straight_through(lambda x: x**3, lambda x: x**3)(x)

        class Cube(fullgrad.Elementwise):
            reads: ClassVar = {0: (0,)}
            forward = staticmethod(lambda x: x**3)
            vjp_term = staticmethod(lambda i, v, x: 3 * x**2 * v)

        return Cube.apply(x)

    torch.compiler.reset()
    frames = torch._dynamo.utils.counters["frames"]
    before, x = frames["total"], torch.tensor([0.3, 1.7], requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.compile(cube, backend="eager")(x).sum(), x)
    torch.testing.assert_close(gradient, 3 * x.detach() ** 2)
    assert 0 < frames["total"] - before < 60


def test_replace_grad_makes_no_operator() -> None:
    torch.compiler.reset()
    x = torch.tensor([0.3, 1.7], requires_grad=True)
    y = torch.compile(lambda x: fullgrad.replace_grad(torch.round(x), 2 * x), backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full((2,), 2.0))
