"""What batches of a class's code mean: writes that `torch.vmap` refuses, and random numbers that it does not see."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import fullgrad

X = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
BATCH = torch.stack([X, X + 1, X - 2, 0.5 * X])


def function(forward, backward):
    """A new class, and how often its code was called."""
    calls = {"forward": 0, "backward": 0}

    def counted(name, rule):
        def run(*args):
            calls[name] += 1
            return rule(*args)

        return staticmethod(run)

    parts = {"forward": counted("forward", forward), "backward": counted("backward", backward)}
    return type("Writing", (torch.autograd.Function,), parts), calls


def saves(ctx, x):
    ctx.save_for_backward(x)
    return x.sin()


def slope(ctx, g):
    return g * ctx.saved_tensors[0]


def to_zero(ctx, g):
    (x,) = ctx.saved_tensors
    g = g.clone()
    g[x > 0] = 0
    return g * x


def to_a_tensor(ctx, g):
    (x,) = ctx.saved_tensors
    g[(x > 0) | (x < -1)] = 2 * g.sum()
    return g


def in_a_part(ctx, g):
    (x,) = ctx.saved_tensors
    both = torch.zeros(2, *x.shape, 2, dtype=x.dtype)
    both[0, x > 0] = 3
    both[1, ..., x.detach() <= 0, :] = 2.5
    both[:, x > 2, 1] = 4
    return g * both.sum((0, 2)) * x


def rows(ctx, g):
    (x,) = ctx.saved_tensors
    both = torch.stack([x, x**2], 1)
    both[x > 0] = torch.tensor([[1.0, 2.0]], dtype=x.dtype)
    return g * both.sum(1)


def selected(ctx, g):
    (x,) = ctx.saved_tensors
    result, far = torch.zeros_like(g), x.abs() > 2
    result[x > 0] = g[x > 0] * x[x > 0].log()  # which is infinite at other places
    result[~(x > 0)] = -g[~(x > 0)]
    result[far] = 2 * g[far] - g[far] / x[far] ** 2
    return result


def jacobian(ctx, g):
    (x,) = ctx.saved_tensors
    j = torch.zeros(3, 3, dtype=x.dtype)
    for i in range(3):
        j[..., i] = x**i
    return j @ g


def jacobian_of_rows(ctx, g):
    (x,) = ctx.saved_tensors
    j = x.new_empty(3, 3)
    row = j[0]
    row.copy_(x)  # a view of what was made
    j[1:] = x * x.sum()
    j[2] *= x
    return (j.T @ g).clone()


def makes(ctx, x):
    ctx.save_for_backward(x)
    y = torch.empty(3, dtype=x.dtype)
    y[0] = x[0] ** 2
    y[1:] = x[1:]
    y[x < 0] = -1
    return y


def signs(ctx, x):
    ctx.save_for_backward(x)
    y = torch.zeros_like(x)
    y[x > 0], y[x <= 0] = 1, -1
    return y


@pytest.mark.parametrize(
    "rules",
    [
        (saves, to_zero),
        (saves, to_a_tensor),
        (saves, in_a_part),
        (saves, rows),
        (saves, selected),
        (saves, jacobian),
        (saves, jacobian_of_rows),
        (makes, slope),
        (signs, slope),
    ],
    ids=lambda rules: "-".join(r.__name__ for r in rules),
)
def test_writes_that_vmap_refuses_are_batched(rules):
    """Masked writes, and writes into new tensors, run for the whole batch, with the numbers of a loop in every nesting."""
    cls, calls = function(*rules)
    f = lambda x: (cls.apply(x) * x).sum()  # noqa: E731

    def eager(x, twice=False):
        return getattr(torch.autograd.functional, "hessian" if twice else "jacobian")(f, x)

    expected, second = torch.stack([eager(x) for x in BATCH]), torch.stack([eager(x, True) for x in BATCH])
    with fullgrad.adopting(), warnings.catch_warnings():
        warnings.simplefilter("error")  # no loop
        first = vmap(grad(f))(BATCH)
        calls.update(forward=0, backward=0)
        again = vmap(grad(f))(BATCH)
        assert max(calls.values()) <= 2
        nested = vmap(vmap(grad(f)))(torch.stack([BATCH, BATCH]))[1]
        values = vmap(cls.apply)(BATCH)
    for found in (first, again, nested):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(values, torch.stack([cls.apply(x) for x in BATCH]))
    with fullgrad.adopting():
        for order in (hessian, lambda f: jacrev(jacrev(f)), lambda f: jacrev(jacfwd(f))):
            torch.testing.assert_close(vmap(order(f))(BATCH), second)


def to_others(g, x, result):
    result[x > 0] = g[x > 0].flip(0)


def changed_between(g, x, result):
    y = x.clone()
    chosen = g[y > 0]
    y.neg_()
    result[y < 0] = chosen
    result[y > 0] = 3


def another_mask(g, x, result):
    chosen, seen = g[x > 0], (x > 0).clone()
    seen[0], seen[1] = x[1] > 0, x[0] > 0
    result[seen] = chosen


def in_place(g, x, result):
    chosen = g[x > 0]
    chosen.mul_(2)
    torch.neg_(chosen)
    result[x > 0] = chosen


@pytest.mark.parametrize("write", [to_others, changed_between, another_mask, in_place])
def test_masked_writes_of_other_values_are_a_loop(write):
    """A write of what a mask has selected that is no function of each number runs sample by sample, and is right."""

    def backward(ctx, g):
        (x,), result = ctx.saved_tensors, torch.zeros_like(g)
        write(g, x, result)
        return result

    cls, _ = function(saves, backward)
    f = lambda x: (cls.apply(x) * x).sum()  # noqa: E731
    expected = torch.stack([torch.autograd.functional.jacobian(f, x) for x in BATCH])
    with fullgrad.adopting(), pytest.warns(UserWarning, match="sample by sample"):
        found = vmap(grad(f))(BATCH)
    torch.testing.assert_close(found, expected)


def test_a_loop_runs_the_code_once_for_each_sample():
    """After the first call, code that cannot be batched is not tried again."""

    def looks(ctx, g):
        (x,) = ctx.saved_tensors
        return g * float(x.sum())

    cls, calls = function(saves, looks)
    with fullgrad.adopting(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            calls.update(forward=0, backward=0)
            vmap(grad(lambda x: cls.apply(x).sum()))(BATCH)
    assert calls == {"forward": 1, "backward": len(BATCH)}


DRAWS = {
    "numpy": lambda shape: torch.from_numpy(np.random.rand(*shape)),
    "a number of numpy": lambda shape: float(np.random.rand()),
    "a normal number": lambda shape: float(np.random.randn()),  # every second one is in store
    "Python": lambda shape: random.random(),
}


@pytest.mark.parametrize("where", ["forward", "backward", "loop"])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_randomness_holds_for_numbers_of_numpy_and_python(draw, where):
    """``randomness`` says for the generators of numpy and Python, too, whether samples share numbers."""

    def noisy(ctx, x):
        _ = x.sum().item() if where == "loop" else None
        return x + draw(x.shape)

    cls, _ = function(*((lambda ctx, x: x.clone(), lambda ctx, g: g * draw(g.shape)) if where == "backward" else (noisy, slope)))
    call = (lambda x: grad(lambda x: cls.apply(x).sum())(x)) if where == "backward" else cls.apply
    zeros = torch.zeros(5, 2, dtype=torch.float64)
    with fullgrad.adopting(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            assert len(vmap(call, randomness="same")(zeros).unique(dim=0)) == 1
            assert len(vmap(call, randomness="different")(zeros).unique(dim=0)) == 5
            with pytest.raises(RuntimeError, match=r"Writing draws random numbers.*randomness other than"):
                vmap(call)(zeros)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_randomness_holds_where_functions_of_any_code_run_sample_by_sample(draw):
    """As for adopted classes, for functions with rules that `vmap_method` runs sample by sample."""
    noisy = fullgrad.custom_vjp(lambda x: x + draw(x.shape), vmap_method="sequential")
    noisy.defvjp(lambda x: (noisy(x), None), lambda _, g: (g,))
    zeros = torch.zeros(5, 2, dtype=torch.float64)
    assert len(vmap(noisy, randomness="same")(zeros).unique(dim=0)) == 1
    assert len(vmap(noisy, randomness="different")(zeros).unique(dim=0)) == 5
    with pytest.raises(RuntimeError, match="draws random numbers"):
        vmap(noisy)(zeros)
