"""Properties specific to `safe`: torch's numbers away from singular points, declared ones at them, true ones next to them."""

import functools
import math

import mpmath
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from fullgrad import safe

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan
ORDERS = (-INF, -2.5, -1, 0, 0.5, 1, 1.5, 2, 3, 3.5, 4, INF)
HESSIANS = (
    hessian,
    *(functools.partial(lambda f, g, function: f(g(function)), f, g) for f in (jacfwd, jacrev) for g in (jacfwd, jacrev)),
)


def normal(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensor(*values):
    """Numbers in float64."""
    return torch.tensor(values, dtype=torch.float64)


def same(found, expected):
    """Whether tensors have the same bits, up to those of NaN."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())


def partial_norms(function):
    """A norm along rows, of every order."""
    return {f"norm {p}": functools.partial(function, ord=p, dim=-1) for p in ORDERS}


POSITIVE, INSIDE = normal(64, 5).abs() + 1e-3, normal(64, 5).tanh()
SAME = {
    "sqrt": (safe.sqrt, torch.sqrt, POSITIVE),
    "log": (safe.log, torch.log, POSITIVE),
    "log1p": (safe.log1p, torch.log1p, POSITIVE - 0.9),
    "acos": (safe.acos, torch.acos, INSIDE),
    "asin": (safe.asin, torch.asin, INSIDE),
    "div": (safe.div, torch.div, normal(64, 5), normal(5, seed=1)),
    "div by a number": (lambda x: safe.div(x, 0.3), lambda x: torch.div(x, 0.3), normal(64, 5)),
    "atan2": (safe.atan2, torch.atan2, normal(64, 5), normal(64, 1, seed=1)),
    "pow": (safe.pow, torch.pow, POSITIVE, normal(5, seed=1)),
    **{f"pow {e}": (lambda x, e=e: safe.pow(x, e), lambda x, e=e: torch.pow(x, e), POSITIVE) for e in (-1.5, 0, 0.5, 1, 2, 3.3)},
    **{f"pow of negatives {e}": (lambda x, e=e: safe.pow(x, e), lambda x, e=e: x.pow(e), normal(64, 5)) for e in (-2, 1, 2, 3)},
    **{
        name: (ours, partial_norms(torch.linalg.vector_norm)[name], normal(64, 5))
        for name, ours in partial_norms(safe.norm).items()
    },
    "xlogy": (safe.xlogy, torch.xlogy, normal(64, 5), POSITIVE),
    "xlogy with a number": (lambda x: safe.xlogy(x, 0.3), lambda x: torch.xlogy(x, 0.3), normal(64, 5)),
    "norm of all": (safe.norm, torch.linalg.vector_norm, normal(64, 5)),
    "norm of two": (
        lambda x: safe.norm(x, 2, (0, 2), True),
        lambda x: torch.linalg.vector_norm(x, 2, (0, 2), True),
        normal(4, 3, 5),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", SAME)
def test_value_and_gradient_are_torchs_to_the_last_bit(name, dtype):
    """Away from singular points, for any cotangent; torch's arcs lose digits next to 1, where ours keep them (`test_orders`)."""
    ours, theirs, *inputs = SAME[name]
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    y, expected = ours(*leaves), theirs(*leaves)
    same(y, expected)
    g = normal(*y.shape, seed=2).to(dtype)
    true = torch.autograd.grad(expected, leaves, g, materialize_grads=True)
    for found, other in zip(torch.autograd.grad(y, leaves, g), true, strict=True):
        if name in ("acos", "asin"):
            torch.testing.assert_close(found, other, rtol=32 * torch.finfo(dtype).eps, atol=0)
        else:
            same(found, other)


@pytest.mark.parametrize("name", SAME)
def test_half_precision_rounds_the_derivative_once(name):
    """The value is torch's in half precision, and the gradient that of float32, rounded."""
    ours, theirs, *inputs = SAME[name]
    for dtype in (torch.float16, torch.bfloat16):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        same(ours(*leaves), theirs(*leaves))
        wide = [x.detach().float().requires_grad_() for x in leaves]
        y = ours(*leaves)
        found = torch.autograd.grad(y.sum(), leaves)
        expected = torch.autograd.grad(ours(*wide).sum(), wide)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)


EXTREME = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 1e-310, -1e-310, 1e300, INF, -INF, NAN]


@pytest.mark.parametrize("name", ["sqrt", "log", "log1p", "acos", "asin", "div", "atan2", "pow", "xlogy"])
def test_values_of_extreme_arguments_are_torchs(name):
    """Zeros of either sign, subnormal and huge numbers, infinity and NaN."""
    x, y = torch.meshgrid(tensor(*EXTREME), tensor(*EXTREME), indexing="ij")
    args = (x, y) if name in ("div", "atan2", "pow", "xlogy") else (x,)
    same(getattr(safe, name)(*args), getattr(torch, name)(*args))
    for p in ORDERS:
        same(safe.norm(torch.stack([x, y], -1), p, -1), torch.linalg.vector_norm(torch.stack([x, y], -1), p, -1))


# Each with its arguments at a singular point, and the declared derivatives.
SINGULAR = {
    "sqrt": (safe.sqrt, (0.0,), (0,)),
    "sqrt of -0": (safe.sqrt, (-0.0,), (0,)),
    "log": (safe.log, (0.0,), (0,)),
    "log1p": (safe.log1p, (-1.0,), (0,)),
    "div": (safe.div, (1.0, 0.0), (0, 0)),
    "div of zeros": (safe.div, (0.0, -0.0), (0, 0)),
    "acos": (safe.acos, (1.0,), (0,)),
    "acos of -1": (safe.acos, (-1.0,), (0,)),
    "asin": (safe.asin, (1.0,), (0,)),
    "asin of -1": (safe.asin, (-1.0,), (0,)),
    "atan2": (safe.atan2, (0.0, 0.0), (0, 0)),
    "atan2 of -0": (safe.atan2, (0.0, -0.0), (0, 0)),
    "xlogy": (safe.xlogy, (2.0, 0.0), (0, 0)),
    "xlogy of zeros": (safe.xlogy, (0.0, 0.0), (0, 0)),
    "xlogy at 0": (safe.xlogy, (0.0, 1.0), (0, 0)),
    "pow 0.5": (safe.pow, (0.0, 0.5), (0, 0)),
    "pow 0": (safe.pow, (0.0, 0.0), (0, 0)),
    "pow 1": (safe.pow, (0.0, 1.0), (1, 0)),
    "pow 1.5": (safe.pow, (0.0, 1.5), (0, 0)),
    "pow -1": (safe.pow, (0.0, -1.0), (0, 0)),
    "pow -0.5": (safe.pow, (-0.0, -0.5), (0, 0)),
    "pow of a negative": (safe.pow, (-2.0, 3.0), (12, 0)),
    "pow of a negative 0": (safe.pow, (-2.0, 0.0), (0, 0)),
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", SINGULAR)
def test_derivatives_at_singular_points(name):
    """The first is the declared one in both modes; the second and third are finite, and the same in every nesting."""
    function, point, declared = SINGULAR[name]
    point, n = tensor(*point), len(point)
    f = lambda x: function(*x)  # noqa: E731
    assert grad(f)(point).tolist() == jacfwd(f)(point).tolist() == [*declared]
    assert torch.stack([jvp(f, (point,), (t,))[1] for t in torch.eye(n, dtype=torch.float64)]).tolist() == [*declared]
    second = grad(lambda x: grad(f)(x).sum())(point)
    assert second.isfinite().all()
    for transform in HESSIANS:
        h = transform(f)(point)
        torch.testing.assert_close(h.sum(0), second, rtol=1e-12, atol=0)
        assert torch.equal(h, h.mT)
    assert jacfwd(jacrev(jacfwd(f)))(point).isfinite().all()
    if not name.startswith("pow") and name != "xlogy at 0":  # whose mixed derivative is 1 / y
        assert not second.any()
    many = vmap(hessian(f))(torch.stack([point, point]))
    assert torch.equal(many[1], hessian(f)(point))


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
def test_powers_of_zero_with_a_number(exponent):
    """The derivatives of every order at 0 are those of the power, where finite, else 0."""
    f, x = lambda x: safe.pow(x, exponent), tensor(0.0, 0.0)[0]
    for order in range(1, 5):
        f = grad(f)
        falling = math.prod(exponent - k for k in range(order))
        assert f(x) == (falling if exponent == order else 0)


@pytest.mark.parametrize("p", ORDERS)
def test_derivatives_of_norms_with_zeros(p):
    """At a vector of zeros all are 0; at a single zero they are finite, and the same in every nesting."""
    x = tensor([0, 0, 0], [3, 0, -4])
    f = lambda x: safe.norm(x, p, -1).sum()  # noqa: E731
    g = grad(f)(x)
    assert g.isfinite().all()
    assert not g[0].any()
    expected = hessian(f)(x)
    assert not expected[0].any()
    for transform in HESSIANS:
        h = transform(f)(x)
        assert h.isfinite().all()
        torch.testing.assert_close(h, expected, rtol=1e-12, atol=1e-14)
    assert jacrev(jacfwd(jacrev(f)))(x).isfinite().all()
    each = vmap(hessian(lambda x: safe.norm(x, p)))(x)
    torch.testing.assert_close(each[1], expected[1, :, 1], rtol=1e-12, atol=1e-14)


NEAR = (1e-300, 1e-160, 1e-30, 0.3, 1.0, 7.0, 1e30, 1e160)


@pytest.mark.parametrize("x", NEAR)
def test_derivatives_of_a_root_and_a_logarithm_are_true(x):
    """The first three, at small and large numbers, against 400 digits."""
    sqrt, log = safe.sqrt, safe.log
    for order in (1, 2, 3):
        sqrt, log = grad(sqrt), grad(log)
        with mpmath.workdps(400):
            m = mpmath.mpf(x)
            roots = {1: 1 / (2 * m**0.5), 2: -1 / (4 * m**1.5), 3: 3 / (8 * m**2.5)}
            logs = {1: 1 / m, 2: -1 / m**2, 3: 2 / m**3}
            expected = [float(roots[order]), float(logs[order])]
        for f, true in zip((sqrt, log), expected, strict=True):
            # Not where a product of the formula, which has the size of a higher derivative, overflows or underflows.
            if 1e-150 < abs(true) < 1e150:
                assert f(tensor(x)[0]).item() == pytest.approx(true, rel=1e-14)


@pytest.mark.parametrize("y", [1e-300, 1e-200, 0.3, 1e200])
@pytest.mark.parametrize("x", [-1e-300, 1e-170, 0.7, -1e300])
def test_derivatives_of_an_angle_are_true(y, x):
    """Also where squares overflow or underflow, against 700 digits."""
    dy, dx = grad(safe.atan2, (0, 1))(tensor(y)[0], tensor(x)[0])
    with mpmath.workdps(700):
        size = mpmath.mpf(x) ** 2 + mpmath.mpf(y) ** 2
        true = [float(mpmath.mpf(x) / size), float(-mpmath.mpf(y) / size)]
    assert [dy.item(), dx.item()] == pytest.approx(true, rel=4e-16, abs=1e-307)
    assert grad(safe.atan2, (0, 1))(tensor(2.0)[0], tensor(INF)[0]) == (0, 0)
    assert grad(safe.atan2, (0, 1))(tensor(-INF)[0], tensor(INF)[0]) == (0, 0)


@pytest.mark.parametrize("p", [p for p in ORDERS if abs(p) != INF and p != 0])
@pytest.mark.parametrize("unit", [1e-310, 1e-250, 1e-100, 1.0, 1e100, 1e290])
def test_gradients_of_a_norm_do_not_depend_on_the_unit(unit, p):
    """Against the formula with 700 digits, where powers overflow or underflow, too."""
    x = tensor(3.0, -4.0, 1.5) * unit
    found = grad(lambda x: safe.norm(x, p))(x)
    with mpmath.workdps(700):
        numbers = [mpmath.mpf(v) for v in x.tolist()]
        y = mpmath.fsum(abs(v) ** p for v in numbers) ** (mpmath.mpf(1) / p)
        true = [float(mpmath.sign(v) * (abs(v) / y) ** (p - 1)) for v in numbers]
    assert found.tolist() == pytest.approx(true, rel=1e-13)
    assert vmap(grad(lambda x: safe.norm(x, p)))(x.expand(2, 3))[1].tolist() == pytest.approx(true, rel=1e-13)


@pytest.mark.parametrize("unit", [1e-200, 1e-100, 1.0, 1e100, 1e200])
def test_the_hessian_of_a_norm_is_true_in_any_unit(unit):
    """It is (1 - u u^T) / y with the unit vector u."""
    x = tensor(3.0, -4.0)
    u = x / 5
    expected = (torch.eye(2) - u[:, None] * u) / (5 * unit)
    for transform in HESSIANS:
        torch.testing.assert_close(transform(safe.norm)(x * unit), expected, rtol=1e-14, atol=0)


def test_outside_of_the_domain_value_and_derivative_are_nan():
    """For every function with a domain, at the first and the second order."""
    for function, x in (
        (safe.sqrt, -1.0),
        (safe.log, -1.0),
        (safe.log1p, -2.0),
        (safe.acos, 1.5),
        (safe.asin, -1.5),
        (lambda x: safe.pow(x, 0.5), -1.0),
    ):
        x = tensor(x)[0]
        assert [function(x).isnan(), grad(function)(x).isnan(), grad(grad(function))(x).isnan()] == [True] * 3
    assert all(g.isnan() for g in grad(safe.xlogy, (0, 1))(tensor(2.0)[0], tensor(-0.5)[0]))
    assert all(g.isnan() for g in grad(safe.pow, (0, 1))(tensor(-2.0)[0], tensor(0.5)[0]))


def test_an_infinite_gradient_does_not_pass_a_singular_point():
    """The derivative 0 is no factor: 0 times infinity would be NaN."""
    leaves = tensor(0.0).requires_grad_(), tensor(0.0).requires_grad_()
    for y in (safe.sqrt(leaves[0]), safe.log(leaves[0]), safe.div(*leaves), safe.atan2(*leaves), safe.pow(leaves[0], 0.5)):
        g = torch.autograd.grad(y, leaves, torch.full_like(y, INF), allow_unused=True)
        assert all(v is None or v.item() == 0 for v in g)


def test_the_root_of_a_sum_of_squares():
    """pytorch/pytorch#6394: the norm written out, at zero, in all four nestings."""
    f = lambda x: safe.sqrt((x * x).sum())  # noqa: E731
    for transform in (grad, jacfwd, *HESSIANS):
        assert not transform(f)(torch.zeros(3, dtype=torch.float64)).any()


def test_mixed_arguments():
    """Integers, 0-dimensional tensors and other dtypes have torch's value and a gradient of their own dtype."""
    x, n = normal(3).float().abs().requires_grad_(), torch.tensor([1, 2, 3])
    e = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    for name in ("pow", "div", "atan2", "xlogy"):
        ours, theirs = getattr(safe, name), getattr(torch, name)
        for args in ((x, n), (n, x), (x, e), (n, e)):
            y, expected = ours(*args), theirs(*args)
            assert y.dtype == expected.dtype
            same(y, expected)
            leaves = [a for a in args if a.requires_grad]
            for a, b in zip(torch.autograd.grad(y.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True):
                assert a.dtype == b.dtype
                torch.testing.assert_close(a, b)
    same(safe.sqrt(n), torch.sqrt(n))
    same(safe.pow(n, 2).double(), torch.pow(n, 2).double())


def test_shapes_of_norms_are_torchs():
    """0-dimensional and empty tensors, and every ``dim``."""
    for shape in ((), (0,), (3, 0), (0, 3), (2, 3)):
        for dim in (None, 0, -1, *([(0, 1), (1,)] if len(shape) == 2 else [])):
            for keepdim in (False, True):
                for p in (0, 1, 2, 3.5):
                    x = normal(*shape).requires_grad_()
                    expected = torch.linalg.vector_norm(x, p, dim, keepdim)
                    y = safe.norm(x, p, dim, keepdim)
                    same(y, expected)
                    assert torch.autograd.grad(y.sum(), x)[0].shape == shape
                    assert jvp(lambda x: safe.norm(x, p, dim, keepdim), (x.detach(),), (x.detach(),))[1].shape == y.shape  # noqa: B023


# --- where ---


def test_torchs_famous_case():
    """The gradient of torch.where is NaN where the logarithm is infinite; ours is that of the chosen function."""
    x = tensor(-1.0, 0.0, 2.0)
    assert grad(lambda x: torch.where(x > 0, x.sqrt(), x).sum())(x).isnan().any()
    f = lambda x: safe.where(x > 0, torch.log, lambda x: x * x, x)  # noqa: E731
    assert f(x).tolist() == torch.where(x > 0, x.log(), x * x).tolist()
    assert grad(lambda x: f(x).sum())(x).tolist() == [-2, 0, 0.5]
    assert jvp(f, (x,), (torch.ones_like(x),))[1].tolist() == [-2, 0, 0.5]
    for transform in HESSIANS:
        assert torch.equal(transform(lambda x: f(x).sum())(x), tensor(2.0, 2.0, -0.25).diag())


UNSAFE = {
    "sqrt": (lambda x: x > 0, torch.sqrt),
    "x / x": (lambda x: x != 0, lambda x: x / x),
    "1 / x": (lambda x: x != 0, lambda x: 1 / x),
    "sin(x) / x": (lambda x: x != 0, lambda x: torch.sin(x) / x),
    "pow": (lambda x: x > 0, lambda x: x**0.3),
    "acos": (lambda x: x.abs() < 1, torch.acos),
    "exp": (lambda x: x < 1, lambda x: torch.exp(1000 * x)),
    "log(-x)": (lambda x: x < 0, lambda x: torch.log(-x)),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_every_order_is_that_of_the_chosen_function(name):
    """Of the family of pytorch/pytorch#52248: each element is as if it were alone, under vmap as well."""
    condition, f = UNSAFE[name]
    x = tensor(0.0, 0.5, -0.5, 1.0, 0.25, 3.0)
    op = lambda x: safe.where(condition(x), f, lambda x: x**3, x)  # noqa: E731

    def alone(x):
        return f(x) if condition(x) else x**3

    def plain(transform):
        return torch.stack([transform(alone)(v) for v in x])

    for transform in (lambda f: f, grad, lambda f: grad(grad(f)), lambda f: jacfwd(jacfwd(f)), lambda f: jacfwd(grad(f))):
        expected = plain(transform)
        assert expected.isfinite().all()
        # Of single elements: in half of the samples a function has no element of its own.
        torch.testing.assert_close(vmap(transform(op))(x), expected, rtol=1e-12, atol=0)
    for transform in HESSIANS:
        found = transform(lambda x: op(x).sum())(x)
        torch.testing.assert_close(found, plain(lambda f: grad(grad(f))).diag(), rtol=1e-12, atol=1e-14)


def test_tensors_that_a_function_closes_over():
    """Their gradient is that of the chosen elements, which a constant in place of the others would turn to NaN."""
    x, w = tensor(-1.0, 0.5, 2.0, 3.0), tensor(1.5)[0]
    f = lambda w: safe.where(x > 1, lambda x: torch.log(x - 1) * w, lambda x: x * w, x).sum()  # noqa: E731
    true = -0.5 + math.log(2)
    assert grad(f)(w).item() == pytest.approx(true, rel=1e-14)
    assert jvp(f, (w,), (torch.ones_like(w),))[1].item() == pytest.approx(true, rel=1e-14)
    nowhere = lambda w: safe.where(x > 9, lambda x: torch.log(x) ** w, lambda x: x * w, x).sum()  # noqa: E731
    among = lambda w: safe.where(x > 9, lambda x, w: torch.log(x - 1) * w, lambda x, w: x * w, x, w).sum()  # noqa: E731
    assert nowhere(w).item() == among(w).item() == 4.5 * 1.5
    assert grad(among)(w).item() == 4.5


def test_where_broadcasts_and_takes_numbers():
    """Shapes, dtypes and constants are those of torch.where."""
    x, c = normal(3, 1), normal(4) > 0
    same(safe.where(c, torch.exp, lambda x: 0.0, x), torch.where(c, x.exp(), 0.0))
    same(safe.where(c, torch.exp, torch.sin, x.half()), torch.where(c, x.half().exp(), x.half().sin()))
    n = torch.tensor([0, 2, 3])
    assert safe.where(n > 0, lambda n: 6 // n, lambda n: n, n).tolist() == [0, 3, 2]
    assert safe.where(torch.tensor([], dtype=torch.bool), torch.exp, torch.log, tensor()).shape == (0,)
    assert safe.where(torch.tensor(True), torch.exp, torch.log, tensor(0.0)[0]) == 1
    y = normal(2, 3, 4)
    found = grad(lambda x, y: safe.where(c, torch.mul, torch.add, x, y).sum(), (0, 1))(x, y)
    expected = grad(lambda x, y: torch.where(c, x * y, x + y).sum(), (0, 1))(x, y)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_errors_of_where_name_the_argument():
    """Each has the rule and the value found."""
    x, c = normal(3), normal(3) > 0
    with pytest.raises(TypeError, match="where: `condition` must be a bool tensor"):
        safe.where(x, torch.exp, torch.log, x)
    with pytest.raises(TypeError, match="where: `g` must be a function"):
        safe.where(c, torch.exp, x, x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="where: `xs` must have at least one tensor"):
        safe.where(c, torch.exp, torch.log)
    with pytest.raises(TypeError, match=r"where: `xs\[1\]` must be a real tensor, got dtype torch.bool"):
        safe.where(c, torch.add, torch.mul, x, c)
    with pytest.raises(ValueError, match=r"where: `f\(\*xs\)` must broadcast to the shape \(3,\)"):
        safe.where(c, lambda x: x[:2], torch.exp, x)
    with pytest.raises(TypeError, match=r"where: `f\(\*xs\)` must be a number or a tensor"):
        safe.where(c, lambda x: (x, x), torch.exp, x)
    nested = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 3]))
    with pytest.raises(NotImplementedError, match="nested"):
        safe.where(c, torch.exp, torch.log, nested)


@pytest.mark.long
def test_compiled_code_chooses_as_well():
    """In one graph, with its backward, also where a function has no element of its own."""
    f = lambda x: safe.where(x > 0, torch.log, lambda x: x * x, x)  # noqa: E731
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    for values in ((-1.0, 0.0, 2.0), (-1.0, 0.0, -2.0), (1.0, 2.0, 3.0)):
        x = tensor(*values).requires_grad_()
        (found,), (expected,) = torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(f(x).sum(), x)
        assert torch.equal(found, expected)


def test_a_learnable_exponent_at_zero_and_one():
    """Mixed derivatives at the exponents 0 and 1 are the true ones."""
    x, zero, one = (torch.tensor(v, dtype=torch.float64) for v in (2.0, 0.0, 1.0))
    log = math.log(2)
    expected = torch.tensor([[0.0, 0.5], [0.5, log * log]], dtype=torch.float64)
    found = torch.func.hessian(lambda v: safe.pow(v[0], v[1]))(torch.stack([x, zero]))
    torch.testing.assert_close(found, expected)
    third = torch.func.jacrev(torch.func.hessian(safe.pow), 1)(x, one)
    torch.testing.assert_close(third, torch.tensor(0.5, dtype=torch.float64))


def test_a_zero_stays_one_where_a_slope_overflows():
    """An element with the cotangent or the tangent 0 adds nothing, whatever its slope is."""
    small = torch.tensor([1e-20, 1.0])
    assert grad(lambda y: safe.div(torch.ones(2), y)[1])(small).tolist() == [0.0, -1.0]
    assert torch.func.jvp(lambda x: safe.div(x, small), (torch.ones(2),), (torch.ones(2),))[1].isfinite().all()
    x, one = torch.tensor(1e38), torch.tensor(1.0)
    assert torch.func.jvp(lambda x: safe.pow(x, one), (x,), (one,))[1] == 1


@pytest.mark.parametrize("ord", [0.5, 1, 1.5, 2, 3, math.inf])
def test_a_norm_of_nan_has_the_gradient_nan(ord):
    """Nothing is hidden: the gradient of the element is NaN."""
    assert grad(lambda x: safe.norm(x, ord))(torch.tensor([math.nan, 1.0]))[0].isnan()


def test_a_power_of_zero_of_a_number_whose_reciprocal_overflows():
    """The derivative is 0 there, of every order, as at other numbers."""
    x = torch.tensor([1e-40, -1e-40, 2.0, 3.0], requires_grad=True)
    e = torch.tensor([0.0, 0.0, 1.0, 2.0])
    (g,) = torch.autograd.grad(safe.pow(x, e).sum(), x, create_graph=True)
    torch.testing.assert_close(g.detach(), torch.tensor([0.0, 0.0, 1.0, 6.0]))
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], torch.tensor([0.0, 0.0, 0.0, 2.0]))


@pytest.mark.parametrize(
    ("numbers", "order", "expected"),
    [
        ([1e-40, 1e-39, 3e-40], 50, [0.0, 1.0, 0.0]),
        ([1e-45, 0.0, 1e-45], 10, [2**-0.9, 0.0, 2**-0.9]),
        ([3e38, 3e38, 3e38], 100.5, [3 ** (1 / 100.5 - 1)] * 3),
        ([1.0, 2.0, -1.5], 1000, [0.0, 1.0, 0.0]),
        ([2.0, 1.0], -200, [0.0, 1.0]),
    ],
)
def test_norms_of_high_order_in_any_unit(numbers, order, expected):
    """Neither subnormal numbers nor those near the largest lose the derivative."""
    x = torch.tensor(numbers, requires_grad=True)
    (g,) = torch.autograd.grad(safe.norm(x, ord=order), x)
    torch.testing.assert_close(g, torch.tensor(expected), rtol=1e-4, atol=1e-6)
