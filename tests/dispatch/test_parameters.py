"""``apply`` has the parameters of ``forward``, which may have any name, and is a plain function to Python's own tools."""

from __future__ import annotations

import inspect
import traceback
from typing import get_type_hints

import pytest
import torch
from torch.func import hessian

from fullgrad import Clamp, Function

pytestmark = pytest.mark.short


class Awkward(Function):
    """x * y with parameters named after what the machinery uses itself."""

    @staticmethod
    def forward(active, base, ctx=2.0, kind=None, output=1, Tensor=3, value=1, args=0, operator=1):
        return active * base

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x, *[None] * 7

    @staticmethod
    def jvp(ctx, s, t, *_):
        x, y = ctx.saved_tensors
        return s * y + x * t

    @staticmethod
    def vmap(info, in_dims, *args):
        x, y = (a.movedim(d, 0) for a, d in zip(args[:2], in_dims[:2], strict=True))
        return Awkward.apply(x, y, *args[2:]), 0


class Twice(Function):
    """1.5 x times a number, with annotations that are strings and a positional-only parameter."""

    @staticmethod
    def forward(x: torch.Tensor, /, times: int = 2) -> torch.Tensor:
        return x * times * 1.5

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.times = inputs[1]

    @staticmethod
    def vjp(ctx, g):
        return Twice.apply(g, ctx.times), None

    @staticmethod
    def jvp(ctx, t, _):
        return Twice.apply(t, ctx.times)

    @staticmethod
    def vmap(info, in_dims, x, times):
        return Twice.apply(x, times), in_dims[0]


def test_parameters_may_have_any_name():
    """Any name works: eager, under transforms and compiled; by keyword; with the defaults of forward."""
    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.equal(torch.autograd.grad(Awkward.apply(x, base=x, kind="k").sum(), x)[0], 2 * x)
    torch.testing.assert_close(hessian(lambda x: Awkward.apply(x, x).sum())(x.detach()), 2 * torch.eye(3, dtype=x.dtype))
    compiled = torch.compile(lambda x: Awkward.apply(x, x, operator=2), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), x * x)
    assert str(inspect.signature(Awkward.apply)) == str(inspect.signature(Awkward.forward))


def test_apply_looks_like_forward():
    """``apply`` has the signature, defaults and annotations of ``forward``, evaluated where ``forward`` is defined."""
    for operator in (Clamp, Awkward, Twice):
        assert inspect.signature(operator.apply) == inspect.signature(operator.forward)
        assert get_type_hints(operator.apply) == get_type_hints(operator.forward)
    assert get_type_hints(Twice.apply) == {"x": torch.Tensor, "times": int, "return": torch.Tensor}


def test_the_source_of_apply_can_be_seen():
    """``inspect`` shows the source, and a traceback the author's line."""
    source = inspect.getsource(Twice.apply)
    assert source.strip().startswith("def apply(x, /, times)")
    with pytest.raises(TypeError) as caught:
        Twice.apply(torch.ones(3, requires_grad=True), "a")
    lines = [line for line in traceback.format_tb(caught.value.__traceback__) if "apply" in line or "forward" in line]
    assert all(len(line.splitlines()) > 1 for line in lines), "each frame shows its code"
    assert "return x * times * 1.5" in lines[-1]


X = torch.ones(3)
WRONG = {
    "missing": (lambda f: f(times=2), "missing 1 required positional argument: 'x'"),
    "too many": (lambda f: f(X, 1, 2), "takes from 1 to 2 positional arguments but 3 were given"),
    "unknown": (lambda f: f(X, scale=1), "got an unexpected keyword argument 'scale'"),
    "twice": (lambda f: f(X, 2, times=2), "got multiple values for argument 'times'"),
    "positional": (lambda f: f(x=X), "got some positional-only arguments passed as keyword arguments: 'x'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_told_in_the_words_of_python(name):
    """Errors about wrong calls are those of any Python function."""
    call, words = WRONG[name]
    with pytest.raises(TypeError) as expected:
        call(Twice.forward)
    with pytest.raises(TypeError) as found:
        call(Twice.apply)
    assert words in str(found.value)
    assert str(found.value).replace(".apply()", ".forward()") == str(expected.value)
