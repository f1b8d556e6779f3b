"""Rules of one's own: JAX's numbers under every transform, and what is lost elsewhere."""

import collections
import dataclasses
import functools
import gc
import itertools
import json
import weakref
from pathlib import Path

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import fullgrad
from tests.functions.jax_cases import cases

GOLDEN = json.loads((Path(__file__).parent / "jax_golden.json").read_text())
CASES = cases()
X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)


def transforms(f, args):
    """The derivatives of a function, or of y + y^2 with two calls of it, by name."""
    n = len(args)
    every = tuple(range(n))
    batch = [torch.stack([a, 0.5 * a + 0.1]) for a in args]
    tangents = tuple([torch.cos(torch.arange(a.numel(), dtype=a.dtype) + i) for i, a in enumerate(args)])

    def loss(*v):
        return (f(*v) + f(*v) ** 2).sum()

    def of_batch(*v):
        return (vmap(f)(*v) + vmap(f)(*v) ** 2).sum()

    return {
        "value": lambda: f(*args),
        "grad": lambda: grad(loss, every)(*args),
        "vmap": lambda: vmap(f)(*batch),
        "vmap(grad)": lambda: vmap(grad(loss, every))(*batch),
        "grad(vmap)": lambda: grad(of_batch, every)(*batch),
        "hessian": lambda: hessian(loss)(*args),
        "jacfwd(jacfwd)": lambda: jacfwd(jacfwd(loss))(*args),
        "jacrev": lambda: jacrev(f, every)(*args),
        "jacrev(jacfwd)": lambda: jacrev(jacfwd(loss))(*args),
        "jacrev(jacrev)": lambda: jacrev(jacrev(loss))(*args),
        "jacrev(grad) mixed": lambda: jacrev(grad(loss), n - 1)(*args),
        "jvp": lambda: jvp(f, tuple(args), tangents)[1],
        "third": lambda: jacrev(jacrev(jacrev(loss)))(*args),
        "vmap in_dims None": lambda: vmap(grad(loss, every), (0, *[None] * (n - 1)))(batch[0], *args[1:]),
        "vmap(jacrev(jacrev))": lambda: vmap(jacrev(jacrev(loss)))(*batch),
        "vmap(jvp)": lambda: vmap(lambda *v: jvp(f, v, tangents)[1])(*batch),
    }


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"{g['case']}, {g['transform']}")
def test_jax_has_the_same_numbers(golden):
    """Residuals and rules are functions of the inputs at every order, as in JAX."""
    f, args = CASES[golden["case"]]
    found = transforms(f, [torch.tensor(a, dtype=torch.float64) for a in args])[golden["transform"]]()
    several = isinstance(found, tuple)
    for y, wanted in zip(found, golden["want"], strict=True) if several else [(found, golden["want"])]:
        assert_close(y, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-11)


# --- Helpers --------------------------------------------------------------------------------------------------------------


def cube():
    """x^3 with the slope exp(x) by a residual."""
    f = fullgrad.custom_vjp(lambda x: x**3)
    f.defvjp(lambda x: (f(x), torch.exp(x)), lambda residual, g: (g * residual,))
    return f


def clipped(**options):
    """The identity whose gradient is clipped, which is not linear."""
    f = fullgrad.custom_vjp(lambda x: x.clone(), **options)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (g.clamp(-0.5, 0.5),))
    return f


# --- Every order ----------------------------------------------------------------------------------------------------------


def test_a_residual_is_no_constant():
    """Double backward differentiates a residual by the inputs; a Function that saves it loses this in silence."""
    x = X.clone().requires_grad_()
    (g,) = torch.autograd.grad(cube()(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    assert_close(h, x.exp())
    assert_close(torch.autograd.grad(h.sum(), x)[0], x.exp())


def test_a_first_derivative_uses_the_one_forward():
    """The backward calls `bwd` alone; a second derivative calls `fwd` again."""
    calls = []
    f = fullgrad.custom_vjp(lambda x: x**3)

    def fwd(x):
        calls.append("fwd")
        return x**3, torch.exp(x)

    f.defvjp(fwd, lambda residual, g: (g * residual,))
    x = X.clone().requires_grad_()
    f(x).sum().backward()
    assert calls == ["fwd"]
    grad(lambda x: f(x).sum())(X)
    assert calls == ["fwd"] * 2
    grad(lambda x: grad(lambda x: f(x).sum())(x).sum())(X)
    assert len(calls) == 4


def test_where_nothing_is_differentiated_the_function_is_called_alone():
    """Neither a rule nor a graph costs anything."""
    f = fullgrad.custom_vjp(lambda x: x**3)
    f.defvjp(lambda x: pytest.fail("called"), lambda _, g: (g,))
    assert_close(f(X), X**3)
    with torch.no_grad():
        assert_close(f(X.clone().requires_grad_()), X**3)


def test_a_backward_frees_the_residuals():
    """As in autograd, saved tensors go with the backward, although the result is alive."""
    f, kept = fullgrad.custom_vjp(lambda x: x**3), []

    def fwd(x):
        residual = torch.exp(x)
        kept.append(weakref.ref(residual))
        return x**3, residual

    f.defvjp(fwd, lambda residual, g: (g * residual,))
    y = f(X.clone().requires_grad_())
    y.sum().backward()
    gc.collect()
    assert kept[0]() is None


# --- Modules and structures -----------------------------------------------------------------------------------------------


@fullgrad.custom_vjp
def doubled_weight(module, x):
    """A layer whose weight has twice its gradient."""
    return module(x)


doubled_weight.defvjp(
    lambda module, x: (doubled_weight(module, x), (module, x)),
    lambda r, g: ({"weight": 2 * torch.outer(g, r[1]), "bias": g}, g @ r[0].weight),
)


class Holder(torch.nn.Module):
    """A module that calls the function with a layer of its own."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x):
        return doubled_weight(self.layer, x)


def test_a_module_counts_as_its_parameters():
    """Its parameters get their gradients, and per-sample gradients by functional_call."""
    holder = Holder()
    x = X.clone().requires_grad_()
    holder(x).sum().backward()
    assert_close(holder.layer.weight.grad, 2 * X.expand(2, 3))
    assert_close(x.grad, holder.layer.weight.detach().sum(0))
    parameters = {k: v.detach() for k, v in holder.named_parameters()}
    batch = torch.stack([X, 2 * X])
    found = vmap(grad(lambda p, x: functional_call(holder, p, (x,)).sum()), (None, 0))(parameters, batch)
    assert_close(found["layer.weight"], 2 * batch[:, None].expand(2, 2, 3))

    def penalty(p):
        return grad(lambda x: functional_call(holder, p, (x,)).square().sum())(X).square().sum()

    def plain(p):
        return grad(lambda x: torch.nn.functional.linear(x, p["layer.weight"], p["layer.bias"]).square().sum())(X).square().sum()

    assert penalty(parameters) == plain(parameters)
    assert all(v.isfinite().all() for v in grad(penalty)(parameters).values())


def test_methods_and_static_arguments():
    """A rule may be declared for a method, and for arguments by name."""

    class Scaled:
        factor = 3.0

        @fullgrad.custom_jvp
        def times(self, x):
            return self.factor * x

        @times.defjvp
        def times_rule(primals, tangents):
            return primals[0].times(primals[1]), 2 * tangents[1]

    assert_close(grad(lambda x: Scaled().times(x).sum())(X), torch.full_like(X, 2))

    @fullgrad.custom_vjp(nondiff_argnames=("power", "f"))
    def raised(x, power, f=torch.sin):
        return f(x) ** power

    raised.defvjp(lambda x, power, f: (raised(x, power, f), x), lambda power, f, x, g: (g * power * f(x),))
    assert_close(grad(lambda x: raised(x, power=3).sum())(X), 3 * torch.sin(X))


# --- Forward mode and reverse mode of each other --------------------------------------------------------------------------


def test_a_rule_that_is_not_linear_has_one_direction():
    """Its transpose would be silently wrong, so it raises; a declared identity is taken."""
    f = clipped()
    assert_close(grad(lambda x: (3 * f(x)).sum())(X), torch.full_like(X, 0.5))
    with pytest.raises(NotImplementedError, match=r"no forward mode.*not linear|no forward mode.*no linear"):
        jvp(f, (X,), (X,))
    assert_close(jvp(clipped(jvp="identity"), (X,), (X,))[1], X)

    g = fullgrad.custom_jvp(lambda x: x.clone())
    g.defjvp(lambda p, t: (g(*p), t[0].abs()))
    assert_close(jvp(g, (X,), (X,))[1], X.abs())
    with pytest.raises(NotImplementedError, match="no reverse mode"):
        grad(lambda x: g(x).sum())(X)


def test_a_constant_that_changes_is_not_tried_each_time():
    """A rule is tried for some values of a number, and then for its type: a temperature may change at each step."""
    calls = []
    f = fullgrad.custom_jvp(lambda x, scale: x * scale)

    def rule(primals, tangents):
        calls.append(primals[1])
        return f(*primals), tangents[0] * primals[1]

    f.defjvp(rule)
    for step in range(100):
        assert_close(grad(lambda x, step=step: f(x, float(step)).sum())(X), torch.full_like(X, step))
    assert len(calls) < 100 + 20 * 12
    assert len(f.trials.verdicts) < 40


def test_forward_mode_of_a_gradient_rule():
    """The tangent is the transpose of the rule, also inside vmap, and in plain forward mode."""
    f = cube()
    tangent = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    assert_close(jvp(f, (X,), (tangent,))[1], X.exp() * tangent)
    assert_close(vmap(lambda x, t: jvp(f, (x,), (t,))[1])(X, tangent), X.exp() * tangent)
    with torch.autograd.forward_ad.dual_level():
        y = f(torch.autograd.forward_ad.make_dual(X, tangent))
        assert_close(torch.autograd.forward_ad.unpack_dual(y).tangent, X.exp() * tangent)


# --- Compiled -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_as_one_graph(backend):
    """Values and gradients equal those of eager code, structures and constants included."""
    f, (tree, (x, y)) = cube(), CASES["jvp trees"]
    a, b = (torch.tensor(v, dtype=torch.float64) for v in (x, y))

    def loss(x, a, b):
        return f(x).sum() + tree(a, b).sum()

    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    for function in (loss, compiled):
        leaves = [v.clone().requires_grad_() for v in (X, a, b)]
        found = torch.autograd.grad(function(*leaves), leaves)
        assert_close(found, grad(loss, (0, 1, 2))(X, a, b))
    per_sample = torch.compile(lambda x: vmap(grad(f))(x), backend=backend, fullgraph=True)
    assert_close(per_sample(X), X.exp())


# --- Bad input ------------------------------------------------------------------------------------------------------------


def rules(fwd=None, bwd=None):
    """A function of two arguments with one rule replaced."""
    f = fullgrad.custom_vjp(lambda x, y: x * y)
    f.defvjp(fwd or (lambda x, y: (x * y, (x, y))), bwd or (lambda r, g: (g * r[1], g * r[0])))
    return f


W = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
WRONG = {
    "no pair": (rules(fwd=lambda x, y: x * y), TypeError, "`fwd` must return the pair"),
    "count": (rules(bwd=lambda r, g: (g,)), TypeError, "for each of the 2 arguments, got a value of type tuple of 1"),
    "a tensor": (rules(bwd=lambda r, g: g), TypeError, "`bwd` must return a tuple"),
    "shape": (rules(bwd=lambda r, g: (g.sum(), None)), ValueError, r"shape of its argument, \(3,\), got \(\)"),
    "dtype": (rules(bwd=lambda r, g: (g.float(), None)), TypeError, "dtype of its argument, torch.float64, got torch.float32"),
    "a number": (rules(bwd=lambda r, g: (1.0, None)), TypeError, "must be a tensor, or None"),
    "in place": (rules(fwd=lambda x, y: (x.mul_(y), (x, y))), RuntimeError, "changes an argument in place"),
    "closure": (rules(fwd=lambda x, y: (x * y * W, (x, y))), RuntimeError, "captures a tensor that requires a gradient"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_an_error_that_names_the_function(name):
    """Nothing is lost in silence."""
    f, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        grad(lambda x: f(x * 1, X).sum())(X)
    with pytest.raises(error, match=message):
        f(X.clone().requires_grad_() * 1, X).sum().backward()


def test_a_rule_of_other_arguments_is_refused_when_it_is_given():
    """By the function's name, with what it must take; so is a call of the function itself with other arguments."""
    g = fullgrad.custom_vjp(lambda x, n: x * n, nondiff_argnums=-1)
    h = fullgrad.custom_jvp(lambda n, x: x * n, nondiff_argnames="n")
    for give, message in (
        (
            lambda: rules(bwd=lambda g: g),
            r"custom_vjp: <lambda>: `bwd` must take \(residuals, cotangent\); got the signature \(g",
        ),
        (lambda: rules(fwd=lambda x: x), r"`fwd` must take \(x, y\); got the signature \(x\)"),
        (lambda: g.defvjp(g, lambda r, g: (g,)), r"`bwd` must take \(n, residuals, cotangent\), n by `nondiff_argnums`"),
        (lambda: h.defjvp(lambda p, t: (p, t)), r"custom_jvp: .* `rule` must take \(n, primals, tangents\)"),
    ):
        with pytest.raises(TypeError, match=message):
            give()
    # Those that fit, in any way.
    for bwd in (lambda *all: None, lambda r, g, needs: None, functools.partial(lambda k, r, g, *, needs=None: None, 3), pow):
        rules(bwd=bwd)
    for fwd in (lambda *all: None, lambda x, y=2, z=3: None):
        rules(fwd=fwd)
    f, st = rules(), fullgrad.straight_through(torch.round, torch.sin)
    for x in (X, X.clone().requires_grad_()):
        for call, message in (
            (lambda x=x: f(x), r"custom_vjp: <lambda>: missing a required argument: 'y'; its signature is \(x, y\)"),
            (lambda x=x: f(x, y=x, z=x), "custom_vjp: <lambda>: got an unexpected keyword argument 'z'"),
            (lambda x=x: st(x, y=1), r"straight_through: round\(\) .*argument 'y'"),
        ):
            with pytest.raises(TypeError, match=message):
                call()


def test_wrong_tangents():
    """The rule of tangents returns a pair whose second part is like the result."""
    for rule, error, message in (
        (lambda p, t: t[0], TypeError, "must return the pair"),
        (lambda p, t: (p[0], t[0].sum()), ValueError, "shape of its result"),
        (lambda p, t: (p[0], (t[0],)), TypeError, "must be a tensor"),
        (lambda p, t: (p[0], t[0].float()), TypeError, "dtype of its result"),
    ):
        f = fullgrad.custom_jvp(lambda x: x * 1)
        f.defjvp(rule)
        with pytest.raises(error, match=message):
            jvp(f, (X,), (X,))


def test_bad_decorations():
    """What cannot work is refused where it is written, or by name at the call."""
    with pytest.raises(AttributeError, match="has no rule; give it one by defjvp or defjvps"):
        fullgrad.custom_jvp(torch.sin)(X)
    with pytest.raises(AttributeError, match="has no rule; give it one by defvjp"):
        fullgrad.custom_vjp(torch.sin)(X)
    with pytest.raises(TypeError, match="`f` must be callable"):
        fullgrad.custom_jvp(3)
    with pytest.raises(TypeError, match="positional parameters only"):
        fullgrad.custom_vjp(lambda x, *, k: x)
    with pytest.raises(ValueError, match="positions of the 1 parameters"):
        fullgrad.custom_vjp(lambda x: x, nondiff_argnums=1)
    with pytest.raises(ValueError, match="`nondiff_argnames` has 'k'"):
        fullgrad.custom_vjp(lambda x: x, nondiff_argnames="k")
    with pytest.raises(ValueError, match='must be "identity"'):
        fullgrad.custom_vjp(lambda x: x, jvp="zero")
    with pytest.raises(TypeError, match="`rule` must be callable"):
        fullgrad.custom_jvp(lambda x: x).defjvp(None)
    f = fullgrad.custom_vjp(lambda x, k: x * k, nondiff_argnums=1)
    f.defvjp(lambda x, k: (x * k, None), lambda k, r, g: (g * k,))
    assert_close(grad(lambda x: f(x, X).sum())(X), X)
    with pytest.raises(TypeError, match="argument 1 needs a derivative, and is one of `nondiff_argnums`"):
        grad(lambda k: f(X, k).sum())(X)


def test_a_pull_of_vjp_is_called_later():
    """The function that torch.func.vjp returns sees tensors of a transform that has ended."""
    pull = vjp(cube(), X)[1]
    assert_close(pull(torch.ones_like(X))[0], X.exp())
    assert_close(vmap(pull)(torch.eye(3, dtype=torch.float64))[0], torch.diag(X.exp()))


@pytest.mark.parametrize("in_forward_mode", [True, False])
def test_linearity_of_rules_that_close_over_a_batch(in_forward_mode):
    """It is tried under the transform, so that vmap refuses what a loop does, and no verdict outlives it."""

    def f(x, t, bound, clips):
        @fullgrad.custom_vjp
        def by_vjp(x):
            return x * 1

        @fullgrad.custom_jvp
        def by_jvp(x):
            return x * 1

        change = (lambda g: g.clamp(-bound, bound)) if clips else (lambda g: g * bound)
        by_vjp.defvjp(lambda x: (x * 1, None), lambda _, g: (change(g),))
        by_jvp.defjvp(lambda x, t: (x[0] * 1, change(t[0])))
        return torch.func.jvp(by_vjp, (x,), (t,))[1] if in_forward_mode else torch.func.grad(lambda x: by_jvp(x).sum())(x)

    x, bound = torch.ones(3, 2), torch.tensor([0.1, 0.2, 0.3])
    with pytest.raises(NotImplementedError, match="is not linear"):
        torch.func.vmap(lambda *a: f(*a, True))(x, x, bound)
    found = torch.func.vmap(lambda *a: f(*a, False))(x, x, bound)
    torch.testing.assert_close(found, bound[:, None].expand(3, 2))


def test_an_error_in_a_trial_is_no_verdict():
    """An error that passes, such as a lack of memory, decides nothing about the rule."""
    calls = []

    @fullgrad.custom_vjp
    def f(x):
        return x.sin()

    def backward(x, g):
        calls.append(g)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("once")
        return ((g * x.cos()).clamp(-0.1, 0.1),)

    f.defvjp(lambda x: (x.sin(), x), backward)
    for _ in range(2):
        with pytest.raises((NotImplementedError, torch.OutOfMemoryError)):
            torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),))


def noisy(t, calls):
    """The tensor, with a noise in float32 which differs from call to call, as sums by atomics have it."""
    calls.append(t)
    return t if t.dtype == torch.float64 else t * (1 + 3e-4 * (len(calls) % 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_verdict(dtype):
    """A rule whose numbers in float32 are not precise enough for the trial is tried in float64, and is linear."""
    calls, x = [], X.to(dtype)
    f, g = fullgrad.custom_jvp(lambda x: x * 1), fullgrad.custom_vjp(lambda x: x * 1)
    f.defjvp(lambda p, t: (f(*p), noisy(p[0] * t[0], calls)))
    g.defvjp(lambda x: (g(x), x), lambda x, c: (noisy(x * c, calls),))
    for _ in range(3):
        f.renew()
        g.renew()
        assert_close(grad(lambda x: f(x).sum())(x), x, rtol=1e-3, atol=0)
        assert_close(jvp(g, (x,), (x,))[1], x * x, rtol=1e-3, atol=0)


@pytest.mark.parametrize("bound", [1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_clip_is_seen_far_out(bound, dtype):
    """A rule that clips at 1000 is not linear."""
    x = X.to(dtype)
    f, g = fullgrad.custom_jvp(lambda x: x * 1), fullgrad.custom_vjp(lambda x: x * 1)
    f.defjvp(lambda p, t: (f(*p), t[0].clamp(-bound, bound)))
    g.defvjp(lambda x: (g(x), None), lambda _, c: (c.clamp(-bound, bound),))
    with pytest.raises(NotImplementedError, match="no reverse mode"):
        grad(lambda x: f(x).sum())(x)
    with pytest.raises(NotImplementedError, match="no forward mode"):
        jvp(g, (x,), (x,))


def test_jagged_tensors_have_a_gradient_by_their_values():
    """Reverse mode of a rule of tangents names what it cannot do, and what can be done."""
    f = fullgrad.custom_jvp(lambda x: torch.sin(x))
    f.defjvp(lambda p, t: (f(*p), 2 * t[0]))
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged, requires_grad=True)
    with pytest.raises(NotImplementedError, match="custom_jvp: <lambda> has no reverse mode for jagged nested tensors"):
        f(x).values().sum().backward()
    y = torch.nested.nested_tensor_from_jagged(f(x.values()), x.offsets())
    y.values().sum().backward()
    assert x.grad.values().unique().tolist() == [2]


def product_that_tells():
    """A product of matrices by `custom_vjp`, and what its rule was told."""
    told = []
    op = fullgrad.custom_vjp(torch.matmul)

    def bwd(residuals, g, needs):
        told.append(needs)
        x, w = residuals
        return g @ w.mT if needs[0] else None, x.mT @ g if needs[1] else None

    op.defvjp(lambda x, w: (x @ w, (x, w)), bwd)
    return op, told


def test_a_rule_is_told_which_gradients_are_needed():
    """A parameter ``needs`` has whether each gradient is wanted; no product is computed in vain."""
    op, told = product_that_tells()
    x, w = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    for argnums in (0, 1, (0, 1)):
        found = grad(lambda x, w: op(x, w).sin().sum(), argnums)(x, w)
        torch.testing.assert_close(found, grad(lambda x, w: (x @ w).sin().sum(), argnums)(x, w))
    assert told == [(True, False), (False, True), (True, True)]
    w.requires_grad_()
    op(x, w).sum().backward()
    assert told[-1] == (False, True)


@pytest.mark.parametrize("transform", ["hessian", "per sample", "jvp"])
def test_needs_in_every_derivative(transform):
    """Second derivatives and forward mode are those of a rule that computes all."""
    x, w = torch.randn(2, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)

    def of(m):
        f = lambda x: (m(x, w).sin() + m(x, x)).sum()  # noqa: E731
        if transform == "hessian":
            return hessian(f)(x)
        return vmap(grad(f))(torch.stack([x, 2 * x])) if transform == "per sample" else jvp(f, (x,), (w,))[1]

    torch.testing.assert_close(of(product_that_tells()[0]), of(torch.matmul))


def test_needs_have_the_structure_of_the_arguments():
    """A dict of tensors has a dict of needs, a module those of its parameters by name, and a constant needs none."""
    told = []
    op = fullgrad.custom_vjp(lambda d, m, n: m(d["a"]) * d["b"] * n)
    op.defvjp(lambda d, m, n: (op(d, m, n), None), lambda r, g, needs: told.append(needs) or (None, None, None))
    module, a = torch.nn.Linear(2, 2).double(), torch.ones(2, dtype=torch.float64, requires_grad=True)
    module.bias.requires_grad_(False)
    op({"a": a, "b": torch.ones(2, dtype=torch.float64)}, module, 2.0).sum().backward()
    assert told == [({"a": True, "b": False}, {"weight": True, "bias": False}, False)]


def test_a_pullback_is_told_which_gradients_are_needed():
    """As a rule of `custom_vjp` is."""
    told = []
    op = fullgrad.custom_gradient(lambda x, y: (x * y, lambda g, needs: told.append(needs) or (g * y, g * x)))
    grad(op)(torch.tensor(2.0), torch.tensor(3.0))
    assert told == [(True, False)]


def test_a_tensor_in_an_object_that_torch_does_not_know_is_said_to_be_there():
    """The error names the type, and how torch learns what it holds."""

    @dataclasses.dataclass
    class Weights:
        scale: torch.Tensor

    f = fullgrad.custom_vjp(lambda w, x: w.scale * x)
    f.defvjp(lambda w, x: (w.scale * x, (w, x)), lambda kept, g: (None, g * kept[0].scale))
    x = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"A tensor in an argument of type Weights counts as captured.*register_dataclass"):
        f(Weights(torch.tensor(3.0, requires_grad=True)), x)
    assert torch.autograd.grad(f(Weights(torch.tensor(3.0)), x), x)[0] == 3


DICTS = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda items: collections.defaultdict(float, items),
    "in a deque": lambda items: collections.deque([dict(items)]),
}


@pytest.mark.short
@pytest.mark.parametrize(
    ("kind", "of_rule"), [pair for pair in itertools.product(DICTS, DICTS) if "in a deque" not in pair or pair[0] == pair[1]]
)
def test_dicts_go_by_key_whatever_their_order(kind, of_rule):
    """Gradients and tangents of a dict may have another order, and be another kind of dict."""
    inner = lambda d: d[0] if isinstance(d, collections.deque) else d  # noqa: E731
    f = fullgrad.custom_vjp(lambda d: 2 * inner(d)["b"] + 3 * inner(d)["a"])
    f.defvjp(lambda d: (f(d), ()), lambda _, g: (DICTS[of_rule]([("a", 3 * g), ("b", 2 * g)]),))
    tensors = {"b": torch.tensor(1.0, requires_grad=True), "a": torch.tensor(5.0, requires_grad=True)}
    f(DICTS[kind](tensors.items())).backward()
    assert (tensors["b"].grad, tensors["a"].grad) == (2, 3)
    same = fullgrad.custom_jvp(lambda d: DICTS[kind]([("b", inner(d)["b"] * 2), ("a", inner(d)["a"] * 3)]))
    if kind == of_rule:
        same.defjvp(lambda p, t: (same(*p), DICTS[kind]([("a", inner(t[0])["a"] * 3), ("b", inner(t[0])["b"] * 2)])))
        given = {name: v.detach() for name, v in tensors.items()}
        found = jvp(
            lambda b, a: tuple(inner(same(DICTS[kind]([("b", b), ("a", a)])))[k] for k in "ba"),
            tuple(given.values()),
            (
                torch.tensor(1.0),
                torch.tensor(10.0),
            ),
        )[1]
        assert found == (2, 30)


class Counting(torch.nn.Module):
    """A module that assigns its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.count = self.count + 1
        return x * x


def test_a_buffer_that_a_module_assigns_is_not_lost_in_silence():
    """As one that it changes in place; in evaluation it assigns none."""
    module, x = Counting(), torch.tensor(3.0, requires_grad=True)
    f = fullgrad.custom_vjp(lambda m, x: m(x))
    f.defvjp(lambda m, x: (m(x), x), lambda x, g: (None, 2 * x * g))
    for call in (lambda: f(module, x), lambda: fullgrad.checkpoint(lambda m, x: m(x), module, x)):
        with pytest.raises(RuntimeError, match=r"A \w+ assigns count .* or call .eval\(\) if it is"):
            call()
    around = torch.nn.Sequential(Counting().eval())  # the part that assigns is told, and .eval() alone where it may help
    around[0].forward = lambda x: (setattr(around[0], "count", around[0].count + 1), x * x)[1]
    with pytest.raises(RuntimeError, match=r"A Counting assigns count .* an argument and return the new one, .*puts it back\.$"):
        fullgrad.checkpoint(lambda m, x: m(x), around, x)
    module.eval()
    assert torch.autograd.grad(f(module, x), x)[0] == 6
