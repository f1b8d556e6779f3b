"""Forward mode and reverse mode agree at infinities and extremes, whichever tensors are constants."""

import math

import pytest
import torch
import torch.autograd.forward_ad as fa
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jvp, vjp

from fullgrad._suite.cases import CASES
from fullgrad._suite.cases._case import Case
from fullgrad.rounding import StepQuantize
from fullgrad.testing._subject import like

EXTREMES = [math.inf, -math.inf, 1e38, -1e38, 1e20, 1e-20, -1e-20, 0.0, -0.0, 2.0, -0.5]
# Sums over rows mix their elements: rounding errors of huge ones would be all of the result.
OF_ROWS = [math.inf, -math.inf, 0.0, 1.0]
# Plain compositions of torch's operators, of which `torch.matmul` is itself NaN: it multiplies infinity by zeros for the tangent
# of a constant factor. The mask's relaxation has no answer for an infinite score, s2nn's logistic side for an infinite alpha.
WITHOUT = ("spikes.s2nn learned", "soft.take_along_dim", "soft.take", "soft.index_select", "soft.narrow", "topk_mask_st")
# Inputs that stay finite, by case and position.
FINITE = {
    # Truth values are from 0 to 1; docs/limits.md has what infinity gives.
    "soft.logical_or": (0, 1),
    "soft.where": (0,),
    # The right-hand side or the matrix of a linear system would be infinite: conjugate gradients begin with inf / inf.
    "implicit.argmin": (0, 1),
    # So would that of the equation at an infinite point.
    "implicit.root_vjp": (0, 1, 2),
    "implicit.root_jvp": (0, 1, 2),
    # The slopes of the weights of an infinite average are inf - inf. The sums, which do not know that weights are constant, take
    # them times 0; docs/limits.md has what the statistics give.
    "averages by scans": (1,),
}
SUBJECTS = [c for c in CASES if len(c.diff_argnums) > 1 and c.linear and c.has_tangent and c.name not in WITHOUT]


def is_of_elements(case):
    return case.elementwise and case.of == "elements"


@st.composite
def inputs(draw, case):
    """The inputs of a case in float32, of one element where elements do not meet, with one or two numbers made extreme."""
    found = [v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in case.inputs]
    places = list(case.diff_argnums)
    if case.draws:
        places.pop()  # noise, which has a range
    at_once = 1 if case.name.startswith(("spikes.", "soft.")) or "_st" in case.name else 2
    chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=at_once, unique=True))
    for i in case.diff_argnums:
        if is_of_elements(case):
            found[i] = found[i][(slice(0, 1),) * found[i].ndim]
        found[i] = found[i].clone()
        if i in chosen:
            place = tuple(draw(st.integers(0, n - 1)) for n in found[i].shape)
            numbers = EXTREMES if is_of_elements(case) else OF_ROWS
            found[i][place] = draw(
                st.sampled_from([v for v in numbers if math.isfinite(v) or i not in FINITE.get(case.name, ())])
            )
    return found


def bound(case, values, where):
    """The operator as a function of the inputs at ``where`` alone; the other tensors are constants."""

    def function(*some):
        arguments = [values[i] for i in case.diff_argnums]
        for i, v in zip(where, some, strict=True):
            arguments[case.diff_argnums.index(i)] = v
        torch.manual_seed(0)
        return case.op(*arguments)

    return function, [values[i] for i in where]


def pulled_by_autograd(f, some, g):
    leaves = [v.clone().requires_grad_() for v in some]
    y = f(*leaves)
    return torch.autograd.grad(y, leaves, g, materialize_grads=True) if y.requires_grad else [torch.zeros_like(v) for v in some]


def pushed_by_duals(f, some, tangents):
    with fa.dual_level():
        y = f(*[fa.make_dual(v, t) for v, t in zip(some, tangents, strict=True)])
        t = fa.unpack_dual(y).tangent
        return torch.zeros_like(y) if t is None else t


REVERSE = {"autograd": pulled_by_autograd, "vjp": lambda f, some, g: vjp(f, *some)[1](g)}
FORWARD = {"jvp": lambda f, some, t: jvp(f, tuple(some), tuple(t))[1], "forward_ad": pushed_by_duals}


def check(f, some, seed):
    """``<g, jvp(t)> == <vjp(g), t>`` in every pair of modes, and one is NaN where the other is; no direction is 0 anywhere."""
    y = f(*some)
    if y.isnan().any():  # out of the operator's domain
        return
    g = like(y, seed).abs() + 0.5
    tangents = [like(v, seed + 1 + i).abs() + 0.5 for i, v in enumerate(some)]
    products = {}
    for name, pull in REVERSE.items():
        parts = [a.double() * t for a, t in zip(pull(f, some, g), tangents, strict=True)]
        products[name] = torch.cat([p.flatten() for p in parts])
    first = products["autograd"]
    if (first == math.inf).any() and (first == -math.inf).any():  # their sum is not defined
        return
    found = {name: p.sum() for name, p in products.items()}
    for name, push in FORWARD.items():
        parts = push(f, some, tangents).double() * g
        if (parts == math.inf).any() and (parts == -math.inf).any() and not parts.isnan().any():
            return
        found[name] = parts.sum()
    expected = found["autograd"]
    for name, value in found.items():
        overflows = value.abs() > 1e36 and expected.abs() > 1e36 and value * expected > 0
        error = (value - expected).abs()
        same = overflows or value == expected or (value.isnan() and expected.isnan()) or error <= 1e-3 * first.abs().sum() + 1e-37
        assert same, f"{name}: {value.item()}, autograd: {expected.item()}"


@pytest.mark.sampled(of=4)
@pytest.mark.long(but=5)
@pytest.mark.parametrize("case", SUBJECTS, ids=lambda c: c.name)
@settings(max_examples=25)
@given(data=st.data())
def test_forward_mode_is_the_adjoint_whichever_inputs_are_constants(case, data):
    """A constant at an infinity or next to one adds nothing to a tangent, as its slope times 0 would."""
    values = data.draw(inputs(case))
    where = data.draw(st.lists(st.sampled_from(case.diff_argnums), min_size=1, unique=True).map(sorted))
    f, some = bound(case, values, where)
    try:
        f(*some)
    except ValueError:  # a number out of the operator's range
        return
    check(f, some, data.draw(st.integers(0, 9)))


def test_zeros_for_the_tangent_of_a_constant_are_seen():
    """A rule that gets zeros is NaN where the slope of the constant is infinite."""

    class TakesZeros(StepQuantize):
        takes_zeros = True

    x, step = torch.tensor(math.inf), torch.tensor(0.5)
    f, some = bound(Case(name="", covers=(), operator=TakesZeros.apply, inputs=(x, step)), [x, step], [0])
    with pytest.raises(AssertionError, match="jvp: nan, autograd: "):
        check(f, some, 0)
