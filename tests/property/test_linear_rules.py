"""Rules that are linear are not refused, whatever their rounding errors; others are, however few numbers show it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jvp, vjp

import fullgrad
from fullgrad import soft

METHODS = ["softsort", "neuralsort", "sigmoid", "lapsum", "sorting_network", "fast_soft_sort", "ot"]
SCALES = [1e-5, 1.0, 1e4]


def transposed(value, rule, carrier, x):
    """The derivative that a carrier computes from the rule of the other direction, ``rule(x, v)``."""
    if carrier == "custom_jvp":
        op = fullgrad.custom_jvp(lambda x: value(x))
        op.defjvp(lambda p, t: (op(*p), rule(*p, *t)))
        return vjp(op, x)[1](torch.ones_like(x))[0]
    if carrier == "custom_vjp":
        op = fullgrad.custom_vjp(lambda x: value(x))
        op.defvjp(lambda x: (op(x), x), lambda x, g: (rule(x, g),))
    elif carrier == "custom_gradient":
        op = fullgrad.custom_gradient(lambda x: (value(x), lambda g: rule(x, g)))
    else:

        class Adopted(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return value(x)

            @staticmethod
            def backward(ctx, g):
                return rule(*ctx.saved_tensors, g)

        op = fullgrad.adopt(Adopted)
    return jvp(op, (x,), (torch.ones_like(x),))[1]


@st.composite
def ranks(draw):
    """A function with soft ranks, and an input of it: with equal elements, of any scale, far from 0."""
    n, method = draw(st.sampled_from([2, 3, 8, 17])), draw(st.sampled_from(METHODS))
    options = {
        "method": method,
        "mode": draw(st.sampled_from(["smooth", "c1", "c2"])) if method != "lapsum" else "laplace",
        "softness": draw(st.sampled_from([1e-3, 0.1, 1.0])),
        "standardize": draw(st.booleans()),
    }
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    x = torch.randn(n, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    x = draw(st.sampled_from([x, x.round(), x + 100])) * draw(st.sampled_from(SCALES))
    return (lambda x: soft.rank(x, **options)), x.to(dtype)


@pytest.mark.parametrize("carrier", ["custom_jvp", "custom_vjp", "custom_gradient", "adopt"])
@settings(max_examples=15)
@given(of=ranks())
def test_linear_rules_are_not_refused(carrier, of):
    """Rounding is no verdict: the derivative of soft ranks is linear in every dtype, also where its terms cancel."""
    f, x = of
    push, pull = lambda x, t: jvp(f, (x,), (t,))[1], lambda x, g: vjp(f, x)[1](g)[0]
    transposed(f, push if carrier == "custom_jvp" else pull, carrier, x)


def places(x):
    """Soft places of a standardized row: in a row of two there is nothing but rounding errors in most of the derivative."""
    weights = soft.argsort(x, softness=1.0, mode="c1", method="neuralsort")
    return weights @ torch.arange(len(x), dtype=x.dtype)


@pytest.mark.parametrize("carrier", ["custom_jvp", "custom_vjp", "custom_gradient", "adopt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_terms_that_cancel_are_no_verdict(carrier, dtype):
    """A linear rule whose terms cancel is not refused, and its transpose is as small, whatever the input."""
    push, pull = lambda x, t: jvp(places, (x,), (t,))[1], lambda x, g: vjp(places, x)[1](g)[0]
    for seed in range(20):
        x = torch.randn(2, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        found = transposed(places, push if carrier == "custom_jvp" else pull, carrier, x)
        assert found.abs().max() < 1e-3


NOT_LINEAR = {
    "leaky": lambda g: torch.where(g > 0, g, g / 2),
    "abs": torch.abs,
    "sorted": lambda g: torch.sort(g).values,
    "clipped": lambda g: g + g.clamp(-0.3, 0.3),
    "normalized": lambda g: g / g.norm().clamp(min=1e-20),
    "shifted": lambda g: g + 1e-3,
    "cubic": lambda g: g**3 / (g * g).sum().clamp(min=1e-30),
}


@pytest.mark.parametrize("carrier", ["custom_jvp", "custom_vjp", "custom_gradient", "adopt"])
@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_shows_in_two_elements(carrier, name):
    """A rule that is not linear is refused, however few elements it is of and whichever numbers are drawn, in each dtype."""
    for seed in range(12):
        torch.manual_seed(seed)
        for dtype in (torch.float32, torch.float64):
            with pytest.raises(NotImplementedError, match="is not linear"):
                transposed(torch.sin, lambda x, g: torch.cos(x) * NOT_LINEAR[name](g), carrier, torch.ones(2, dtype=dtype))
