"""Operators made of functions in the functions of others, which close over what is differentiated, next to plain code."""

import random

import pytest
import torch
from torch.func import vjp

import fullgrad
from fullgrad import implicit
from tests.functions.transforms import NAMES, derivative


def tangent(f, primals, t):
    """The derivative of a function along a direction of its first argument, as rules may compute it."""
    (x, *rest) = primals
    return vjp(lambda g: vjp(lambda x: f(x, *rest), x)[1](g)[0], torch.zeros_like(f(*primals)))[1](t)[0]


LEAVES = [
    lambda v, c: torch.sin(v) * c,
    lambda v, c: v + torch.tanh(c),
    lambda v, c: torch.sigmoid(v * c) + v,
    lambda v, c: torch.cos(v) + c * c,
]


def checkpoint_that_closes_over(ours, plain, draw):
    return lambda v, c: fullgrad.checkpoint(lambda u: ours(u, c), v)


def checkpoint(ours, plain, draw):
    return lambda v, c: fullgrad.checkpoint(ours, v, c)


def reference(ours, plain, draw):
    method = draw.choice(["map", "sequential", "broadcast"])
    return lambda v, c: fullgrad.with_reference(lambda u: plain(u, c), lambda u: ours(u, c), vmap_method=method)(v)


def root(ours, plain, draw):
    method, linear_solve = draw.choice(["map", "sequential"]), draw.choice([None, "gmres"])

    def of(v, c):
        equation = lambda z, u: z - ours(u, c)  # noqa: E731
        options = {"vmap_method": method, "linear_solve": linear_solve, "tol": None}
        return implicit.root(equation, **options)(lambda init, u: plain(u, c))(None, v)

    return of


def rule_for_tangents(ours, plain, draw):
    f = fullgrad.custom_jvp(lambda v, c: plain(v, c))

    @f.defjvp
    def rule(primals, tangents):
        (v, c), (tv, tc) = primals, tangents
        return f(v, c), tangent(ours, (v, c), tv) + tangent(lambda c, v: ours(v, c), (c, v), tc)

    return f


def rule_for_gradients(ours, plain, draw):
    f = fullgrad.custom_vjp(lambda v, c: plain(v, c))
    f.defvjp(lambda v, c: (f(v, c), (v, c)), lambda residuals, g: vjp(ours, *residuals)[1](g))
    return f


def linear_map(ours, plain, draw):
    method = draw.choice(["map", "sequential", "broadcast"])
    reverse = fullgrad.linear_map(lambda x: x.flip(-1), lambda g: g.flip(-1), vmap_method=method)
    return lambda v, c: reverse(reverse(ours(v, c)))


WAYS = [
    lambda ours, plain, draw: ours,
    checkpoint_that_closes_over,
    checkpoint,
    reference,
    root,
    rule_for_tangents,
    rule_for_gradients,
    linear_map,
]


def program(draw, depth):
    """A pair of functions of ``(v, c)``, of which the first one is made of operators, and the second one is plain code."""
    if not depth:
        leaf = draw.choice(LEAVES)
        return leaf, leaf
    (f, plain_f), (g, plain_g) = program(draw, depth - 1), program(draw, depth - 1)
    ours = lambda v, c: g(torch.sin(f(v, c)), v * c)  # noqa: E731
    plain = lambda v, c: plain_g(torch.sin(plain_f(v, c)), v * c)  # noqa: E731
    return draw.choice(WAYS)(ours, plain, draw), plain


@pytest.mark.long(but=1)
@pytest.mark.parametrize("part", range(4))
def test_programs(part):
    """A random transform of a random program is that of plain code."""
    draw = random.Random(part)
    for i in range(25):
        (ours, plain), name = program(draw, draw.choice([1, 2, 2])), draw.choice(NAMES)
        found, expected = [derivative(name, lambda x, f=f: f(x, x.cos())) for f in (ours, plain)]
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8, msg=lambda m, i=i, n=name: f"program {i}, {n}: {m}")


def test_random_numbers_are_left_alone():
    """The look at a rule's linearity draws numbers, and restores those of the user."""
    f = fullgrad.custom_vjp(torch.sin)
    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * x.cos(),))
    before = torch.get_rng_state()
    torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_operator_made_of_another_has_its_own_name():
    """The attributes of the inner one stay there."""
    inner = fullgrad.with_reference(torch.sin, torch.sin)
    outer = fullgrad.custom_jvp(inner)
    assert (outer.function, outer.label, inner.label) == (inner, "custom_jvp: sin", "with_reference: sin")
