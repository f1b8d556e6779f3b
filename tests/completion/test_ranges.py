"""Numbers between two ends that are differentiated, of which torch's functions in Python make constants."""

import itertools
import math

import pytest
import torch
from torch import linspace as kept_from_before
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import fullgrad

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it")
D = torch.float64
ENDS = torch.tensor([0.3, -0.7], dtype=D)
BOTH = {"both": lambda w: (w[0], w[1]), "start": lambda w: (w[0], -0.7), "end": lambda w: (0.3, w[1])}
NAMES = ("linspace", "logspace")


def torchs(name, of, steps=5, dtype=D):
    """torch's function, looked up at each call."""
    return lambda w: getattr(torch, name)(*BOTH[of](w), steps, dtype=dtype)


def formula(name, of, steps=5):
    t = torch.arange(steps, dtype=D) / max(steps - 1, 1)

    def f(w):
        start, end = BOTH[of](w)
        y = start * (1 - t) + end * t
        return 10**y if name == "logspace" else y

    return f


NESTINGS = {
    "reverse": jacrev,
    "forward": jacfwd,
    **{f"{a.__name__} of {b.__name__}": lambda f, a=a, b=b: a(b(f)) for a, b in itertools.product((jacrev, jacfwd), repeat=2)},
    "third": lambda f: jacfwd(jacrev(jacfwd(f))),
    "of a batch": lambda f: lambda w: jacfwd(lambda w: vmap(f)(torch.stack([w, w.sin()])))(w),
    "batched": lambda f: lambda w: vmap(jacfwd(f))(torch.stack([w, w.sin()])),
    "by a start of each sample": lambda f: lambda w: jacrev(lambda a: vmap(lambda b: f(torch.stack([a, b])))(w))(w[0]),
}


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("of", BOTH)
@pytest.mark.parametrize("name", NAMES)
def test_every_derivative(name, of, nesting):
    """It is that of the formula, by each end, for one step and none, too."""
    for steps in (0, 1, 2, 5):
        with fullgrad.completing():
            found = NESTINGS[nesting](torchs(name, of, steps))(ENDS)
        torch.testing.assert_close(found, NESTINGS[nesting](formula(name, of, steps))(ENDS))


@pytest.mark.parametrize("of", BOTH)
@pytest.mark.parametrize("name", NAMES)
def test_eager_code(name, of):
    """The value is torch's to the last bit, and has a gradient of every order."""
    for dtype in (None, torch.float16, torch.float32, D, torch.complex64, torch.int64):
        leaf = ENDS.clone().requires_grad_()
        f = torchs(name, of, dtype=dtype)
        expected = f(ENDS)
        with fullgrad.completing():
            y = f(leaf)
        assert torch.equal(y, expected)
        assert y.requires_grad is (dtype is not torch.int64)
    leaf, other = [ENDS.clone().requires_grad_() for _ in range(2)]
    with fullgrad.completing():
        found = torch.autograd.grad(torchs(name, of)(leaf).sin().sum(), leaf, create_graph=True)[0]
        again = torch.autograd.grad(found.sum(), leaf)[0]
    expected = torch.autograd.grad(formula(name, of)(other).sin().sum(), other, create_graph=True)[0]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, torch.autograd.grad(expected.sum(), other)[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_has_the_dtypes_and_ends_of_its_samples(name):
    """torch's has the dtype of the ends, and whole numbers that are off by one."""
    w = torch.tensor([[1.3, 2], [0.3, 3.7], [-10, 1 / 3]])
    for dtype, of, given in itertools.product((None, torch.float32, D, torch.int64, torch.complex64), BOTH, (w, w.double())):
        f = torchs(name, of, 7, dtype)
        expected = torch.stack([f(v) for v in given])
        with fullgrad.completing():
            torch.testing.assert_close(vmap(f)(given), expected)


def test_ends_that_are_not_finite():
    """The derivative of a linear function is finite."""
    for end in (math.inf, math.nan):
        w = torch.tensor([0.0, end], dtype=D)
        with fullgrad.completing():
            for of in (jacfwd, jacrev):
                torch.testing.assert_close(of(torchs("linspace", "both"))(w), of(formula("linspace", "both"))(ENDS))


def test_half_precision():
    w = ENDS.half()
    with fullgrad.completing():
        found = grad(lambda w: torch.linspace(w[0], w[1], 1001, dtype=torch.float16).float().sum())(w)
    torch.testing.assert_close(found, torch.full_like(w, 500.5))


def test_arguments():
    """torch's words for what it refuses; what is to be a leaf is one, and what has a place is written there."""
    w = ENDS.clone().requires_grad_()
    with fullgrad.completing():
        assert torch.linspace(w[0], w[1], 3, requires_grad=True).is_leaf
        out = torch.empty(3, dtype=D)
        assert torch.linspace(w[0].detach(), w[1].detach(), 3, out=out) is out
        assert torch.linspace(start=w[0], end=1, steps=3, dtype=D).requires_grad
        for wrong in (lambda w: torch.linspace(w, w, 3), lambda w: torch.linspace(w[0], w[1], -1)):
            for f in (wrong, grad(lambda w, f=wrong: f(w).sum())):
                with pytest.raises(RuntimeError, match=r"0-dimensional|non-negative"):
                    f(w)
            with pytest.raises(RuntimeError):
                vmap(wrong)(w[None])


def test_a_function_kept_from_before():
    """torch's own, which would lose the derivative, raises by name; its values are torch's."""
    f = lambda w: kept_from_before(w[0], w[1], 3, dtype=D).sum()  # noqa: E731
    with fullgrad.completing():
        for of in (grad, jacfwd, hessian, lambda f: vmap(grad(f))):
            with pytest.raises(NotImplementedError, match="linspace"):
                of(f)(ENDS if of in (grad, jacfwd, hessian) else ENDS[None])
        torch.testing.assert_close(vmap(f)(ENDS[None]), f(ENDS)[None])
        torch.testing.assert_close(jvp(lambda w: f(ENDS) * w, (ENDS,), (ENDS,))[1], f(ENDS) * ENDS)


@pytest.mark.parametrize("before", [True, False])
def test_compiled(before):
    """The derivative is there, and torch's function stays one that Dynamo knows."""
    torch.compiler.reset()
    plain = torch.compile(lambda w: torch.linspace(w[0], w[1], 3) + 1, backend="aot_eager", fullgraph=True)
    if before:
        plain(ENDS)
    f, g = [lambda w, of=of: of("logspace", "both")(w).sin().sum() for of in (torchs, formula)]
    with fullgrad.completing():
        torch.testing.assert_close(torch.compile(grad(f), backend="aot_eager")(ENDS), grad(g)(ENDS))
        torch.testing.assert_close(torch.compile(hessian(f), backend="aot_eager")(ENDS), hessian(g)(ENDS))
        leaf = ENDS.clone().requires_grad_()
        torch.compile(f, backend="aot_eager", fullgraph=True)(leaf).backward()
        torch.testing.assert_close(leaf.grad, grad(g)(ENDS))
    torch.testing.assert_close(plain(ENDS), torch.linspace(*ENDS, 3) + 1)


def test_forward():
    """Laplacians go through it."""
    with fullgrad.completing():
        found = fullgrad.forward.laplacian(lambda w: torchs("logspace", "both")(w).sin().sum())(ENDS)
    torch.testing.assert_close(found, hessian(lambda w: formula("logspace", "both")(w).sin().sum())(ENDS).trace())
