"""Rules that call the function whose rule they are: on primals, on tangents, or by the rule of another function."""

import functools

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import fullgrad
from tests.functions.transforms import NAMES, X, derivative


def _negative():
    f = fullgrad.custom_jvp(lambda x: -x)
    f.defjvp(lambda p, t: (f(*p), f(*t)))
    return f


def _product():
    f = fullgrad.custom_jvp(lambda x, y: x * y)
    f.defjvp(lambda p, t: (f(*p), f(t[0], p[1]) + f(p[0], t[1])))
    return f


def _bilinear():
    f = _product()
    return lambda x: f(x, torch.sin(x))


def _of_argument():
    f = fullgrad.custom_jvp(lambda x: 3 * x)
    f.defjvps(lambda t, y, x: f(t))
    return f


def _mutual():
    f, g = fullgrad.custom_jvp(lambda x: 2 * x), fullgrad.custom_jvp(lambda x: 2 * x)
    f.defjvp(lambda p, t: (f(*p), g(*t)))
    g.defjvp(lambda p, t: (g(*p), f(*t)))
    return lambda x: f(x) * g(x)


def _through_a_rule_of_gradients():
    f, g = fullgrad.custom_jvp(lambda x: 5 * x), fullgrad.custom_vjp(lambda x: 5 * x)
    f.defjvp(lambda p, t: (f(*p), g(*t)))
    g.defvjp(lambda x: (g(x), None), lambda _, c: (f(c),))
    return lambda x: f(x) * g(x)


def _on_cotangents():
    f = fullgrad.custom_vjp(lambda x: -x)
    f.defvjp(lambda x: (f(x), None), lambda _, c: (f(c),))
    return f


def _circle():
    sine, cosine = fullgrad.custom_jvp(torch.sin), fullgrad.custom_jvp(torch.cos)
    negative, times = _negative(), _product()
    sine.defjvp(lambda p, t: (sine(*p), times(cosine(*p), t[0])))
    cosine.defjvp(lambda p, t: (cosine(*p), negative(times(sine(*p), t[0]))))
    return sine


def _power():
    f = fullgrad.custom_jvp(lambda n, x: x**n, nondiff_argnums=0)
    f.defjvp(lambda n, p, t: (f(n, *p), n * f(n - 1, *p) * t[0] if n else 0 * t[0]))
    return functools.partial(f, 4)


def _counting(step):
    f = fullgrad.custom_jvp(lambda n, x: 1.0 * x, nondiff_argnums=0)
    f.defjvp(lambda n, p, t: (f(n, *p), f(n + step, *t) if n else t[0]))
    return functools.partial(f, 3)


def _structures():
    f = fullgrad.custom_jvp(lambda d: {"a": d["b"], "b": 2 * d["a"]})
    f.defjvp(lambda p, t: (f(*p), f(*t)))
    return lambda x: f({"a": x, "b": x.sin()})["a"] * f({"a": x, "b": x})["b"]


def _in_a_vmap():
    f = fullgrad.custom_jvp(lambda x: x.cumsum(0))
    f.defjvp(lambda p, t: (f(*p), vmap(f)(torch.stack([t[0], 2 * t[0]]))[0]))
    return f


RULES = {
    "on its tangent": (_negative, lambda x: -x),
    "of one argument, on its tangent": (_of_argument, lambda x: 3 * x),
    "bilinear": (_bilinear, lambda x: x * torch.sin(x)),
    "two that call each other": (_mutual, lambda x: 4 * x**2),
    "through a rule of gradients": (_through_a_rule_of_gradients, lambda x: 25 * x**2),
    "on its cotangent": (_on_cotangents, lambda x: -x),
    "sine and cosine": (_circle, torch.sin),
    "power, on primals": (_power, lambda x: x**4),
    "counting down": (lambda: _counting(-1), lambda x: 1.0 * x),
    "counting up, without end": (lambda: _counting(1), lambda x: 1.0 * x),
    "dicts": (_structures, lambda x: 2 * x * torch.sin(x)),
    "inside vmap": (_in_a_vmap, lambda x: x.cumsum(0)),
}


@pytest.mark.short
@pytest.mark.parametrize("name", RULES)
def test_a_rule_may_call_its_own_function(name):
    """Every derivative is that of the function, and comes to an end, by transforms and by autograd."""
    make, plain = RULES[name]
    f = make()
    for transform in NAMES:
        assert_close(derivative(transform, f), derivative(transform, plain), msg=lambda m, t=transform: f"{t}: {m}")
    x, y = [X[0].clone().requires_grad_() for _ in range(2)]
    (f(x) ** 3).sum().backward()
    (plain(y) ** 3).sum().backward()
    assert_close(x.grad, y.grad)


def test_what_is_not_linear_in_the_tangent_is_refused():
    """A rule that calls its own function on the tangent is the function, so that a square has no transpose."""
    f = fullgrad.custom_jvp(lambda x: x**2)
    f.defjvp(lambda p, t: (f(*p), f(*t)))
    with pytest.raises(NotImplementedError, match="is not linear in the tangents"):
        grad(f)(torch.tensor(2.0))
    assert jvp(f, (torch.tensor(2.0),), (torch.tensor(3.0),))[1] == 9


def test_the_rule_stands_where_only_primals_are_differentiated():
    """A call of the function on primals alone has the declared derivative in second derivatives, not that of its code."""
    f = fullgrad.custom_jvp(lambda x: torch.round(x))
    f.defjvp(lambda p, t: (f(*p), f(*p) * t[0]))
    x = torch.tensor(2.6)
    for outer in (jacrev, jacfwd):
        for inner in (jacrev, jacfwd):
            assert outer(inner(f))(x) == 3  # of round(x) * t, with respect to x
    x.requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    assert torch.autograd.grad(g, x)[0] == 3


def test_code_that_is_not_torchs_is_named():
    """The transpose of such a rule would be that of other code: an error says so, and forward mode works."""
    f = fullgrad.custom_jvp(lambda x: torch.from_numpy(-x.numpy()), vmap_method="sequential")
    f.defjvp(lambda p, t: (f(*p), f(*t)))
    with pytest.raises(NotImplementedError, match=r"called on a tangent by its own rule.*linear_map"):
        grad(lambda x: f(x).sum())(X[0])
    assert_close(jacfwd(f)(X[0]), -torch.eye(3, dtype=X.dtype))


@pytest.mark.long
def test_compiled_code_has_them():
    """Compiled code differentiates such rules outside and inside."""
    f, sine = _negative(), _circle()
    x = X[0].clone().requires_grad_()
    compiled = torch.compile(lambda x: f(x) * sine(x), backend="aot_eager", fullgraph=True)
    expected = -torch.sin(X[0]) - X[0] * torch.cos(X[0])
    assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], expected)
    inside = torch.compile(grad(lambda x: (f(x) * sine(x)).sum()), backend="aot_eager", fullgraph=True)
    assert_close(inside(X[0]), expected)
