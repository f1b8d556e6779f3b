"""Operators that are gone keep nothing alive, however they were made and used."""

import gc
import random
import weakref

import pytest
import torch
from torch.func import grad, hessian, vmap

import fullgrad
from fullgrad import spikes
from tests.functions.test_nested import WAYS


class Held:
    """An object that a user's function closes over, such as a model or a batch of images."""


def by_straight_through(held):
    return fullgrad.straight_through(lambda x: (held, x.sign())[1], lambda x: (held, x.tanh())[1])


def by_from_slope(held):
    return spikes.from_slope(lambda u: (held, u.cos())[1])


def by_a_class(held):
    class Sign(fullgrad.Elementwise):
        reads = {0: (0,)}

        @staticmethod
        def forward(x):
            return (held, x.sign())[1]

        @staticmethod
        def vjp_term(i, v, x):
            return (held, v * x.cos())[1]

    return Sign.apply


def by_adoption(held):
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (held, x.sign())[1]

        @staticmethod
        def backward(ctx, g):
            return (held, g * ctx.saved_tensors[0].cos())[1]

    return fullgrad.adopt(Sign)


def reference_to_what_is_held(maker, compiled):
    """A weak reference to the object held by an operator that is made, used and dropped."""
    held = Held()
    operator, reference = maker(held), weakref.ref(held)
    f, x = lambda x: operator(x).sum(), torch.randn(3)
    for use in (f, grad(f), vmap(grad(f)), hessian(f), vmap(operator)):
        use(x[:, None] if use is not f else x.clone().requires_grad_())
    if compiled:
        torch.compile(f, backend="aot_eager")(x)
        torch.compiler.reset()
    return reference


@pytest.mark.long(but=4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("maker", [by_straight_through, by_from_slope, by_a_class, by_adoption])
def test_nothing_is_kept(maker, compiled):
    """Neither the next operator of the same name nor any table keeps an operator alive."""
    references = [reference_to_what_is_held(maker, compiled) for _ in range(4)]
    gc.collect()
    assert [r() for r in references] == [None] * 4


def test_an_operator_keeps_no_globals_of_its_module():
    """An object that the module of its forward drops is gone, though the operator stays."""
    held = Held()
    reference = weakref.ref(held)
    globals()["dropped"] = held
    operator = by_a_class(None)
    del held, globals()["dropped"]
    gc.collect()
    assert operator is not None
    assert reference() is None


@pytest.mark.parametrize("way", [*WAYS, lambda ours, plain, draw: lambda v, c: fullgrad.map_grad(ours(v, c), torch.tanh)])
def test_a_call_leaves_no_garbage(way):
    """What a call and its derivatives made of tensors and our objects is freed at once, and not when Python collects garbage."""
    function = lambda v, c: torch.sin(v) * c  # noqa: E731
    v, c = (torch.linspace(0.1, 0.4, 3, dtype=torch.float64).requires_grad_() for _ in range(2))

    def use(operator):
        y = operator(v, c)
        (first,) = torch.autograd.grad(y.sum(), v, create_graph=True)
        torch.autograd.grad(first.sum(), v)
        grad(lambda v: operator(v, c.detach()).sum())(v.detach())

    def garbage(seed):
        operator = way(function, function, random.Random(seed))
        use(operator)  # what is made once
        gc.collect()
        gc.freeze()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            use(operator)
            gc.collect()
            return [a for a in gc.garbage if isinstance(a, torch.Tensor) or type(a).__module__.startswith("fullgrad")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    gc.disable()
    gc.freeze()  # what other tests have left is not looked at
    try:
        assert [garbage(seed) for seed in range(3)] == [[], [], []]
    finally:
        gc.enable()
