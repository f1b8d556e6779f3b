"""Properties of `proj_ball`: the nearest point of a ball, derivatives on both sides of its boundary, numbers of any size."""

import math

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, vmap

from fullgrad import clamp, soft
from fullgrad.testing._subject import close, like

pytestmark = pytest.mark.short

INF = math.inf
ORDERS = pytest.mark.parametrize("ord", [1, 2, INF])


def rows(*shape, seed=0):
    return like(torch.empty(shape, dtype=torch.float64), seed)


@ORDERS
def test_no_point_of_the_ball_is_nearer(ord):
    """The way to the point makes an obtuse angle with the way to every other point of the ball, which holds for it alone."""
    x, points = 3 * rows(20, 1, 6), rows(1, 300, 6, seed=1)
    points = 0.8 * points / torch.linalg.vector_norm(points, ord, -1, keepdim=True)
    y = soft.proj_ball(x, 0.8, ord)
    assert (torch.linalg.vector_norm(y, ord, -1) <= 0.8 + 1e-12).all()
    assert (((x - y) * (points - y)).sum(-1) <= 1e-12).all()


A, MU = rows(2, 6, seed=3), torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
# As docs/which.md has them.
OTHERS = {
    "simplex": lambda x: 1.7 * soft.proj_simplex(x, softness=1.7, mode="c0"),
    "box section": lambda x: soft.proj_capped_simplex(x, 2.3, mode="c0"),
    "hyperplane": lambda x: x - ((x @ A[0] - 0.4) / (A[0] @ A[0])).unsqueeze(-1) * A[0],
    "half-space": lambda x: x - (torch.relu(x @ A[0] - 0.4) / (A[0] @ A[0])).unsqueeze(-1) * A[0],
    "affine set": lambda x: x - torch.linalg.solve(A @ A.T, A @ x.mT - A.sum(1, keepdim=True)).mT @ A,
    "transport": lambda x: soft.proj_transport_polytope(-x.unflatten(-1, (3, 2)), MU, MU[1:] * 2, 1.0, "c0").flatten(-2) / 3,
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_projections_of_which(name):
    """No other point of the set is nearer: the projection of other points among them."""
    project = OTHERS[name]
    x, others = rows(20, 6), 2 * rows(300, 6, seed=1)
    y, points = project(x), project(others)
    close(project(y), y)
    assert (((x - y).unsqueeze(1) * (points - y.unsqueeze(1))).sum(-1) <= 1e-10).all()


@ORDERS
def test_the_inside_is_not_changed(ord):
    """Nor is the boundary: value bit for bit, derivative 1; the radius has the derivative 0 there."""
    x = torch.tensor([[0.25, -0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    for radius in (2.0, torch.linalg.vector_norm(x[0], ord).item()):
        r = torch.tensor(radius, dtype=torch.float64)
        assert torch.equal(soft.proj_ball(x, radius, ord), x)
        close(vmap(jacrev(lambda v: soft.proj_ball(v, radius, ord)))(x), torch.eye(3, dtype=torch.float64).expand(2, 3, 3))  # noqa: B023
        assert (jacfwd(lambda r: soft.proj_ball(x, r, ord))(r) == 0).all()


@ORDERS
def test_the_derivatives_of_the_docstring(ord):
    """Outside of the ball, of the vector and of the radius; second ones are those of the formula."""
    x, r = torch.tensor([1.5, -2.0, 0.1, 0.9], dtype=torch.float64), torch.tensor(1.2, dtype=torch.float64)
    eye = torch.eye(4, dtype=torch.float64)
    y, s = soft.proj_ball(x, r, ord), torch.sgn(x)
    if ord == 2:
        u = x / x.norm()
        by_x, by_r = r / x.norm() * (eye - torch.outer(u, u)), u
    elif ord == 1:
        z = s * (y != 0)
        assert (y != 0).sum() == 2
        by_x, by_r = torch.diag(z * z) - torch.outer(z, z) / (z @ z), z / (z @ z)
    else:
        by_x, by_r = torch.diag((x.abs() <= r).double()), s * (x.abs() > r)
    f = lambda x, r: soft.proj_ball(x, r, ord)  # noqa: E731
    for jacobian in (jacrev, jacfwd):
        close(jacobian(f)(x, r), by_x)
        close(jacobian(f, 1)(x, r), by_r)
    expected = hessian(lambda x: (x * (r / x.norm()))[0])(x) if ord == 2 else torch.zeros(4, 4, dtype=torch.float64)
    close(hessian(lambda x: f(x, r)[0])(x), expected)


@ORDERS
def test_radii_of_rows(ord):
    """A radius for each row, along any dimension, is a loop over rows; radii broadcast."""
    x, r = 2 * rows(3, 5, seed=2), torch.tensor([[0.3], [1.0], [9.0]], dtype=torch.float64)
    found = soft.proj_ball(x, r, ord)
    close(found, torch.stack([soft.proj_ball(v, s.item(), ord) for v, s in zip(x, r, strict=True)]))
    close(soft.proj_ball(x.T, r.T, ord, dim=0), found.T)
    close(vmap(lambda x, r: soft.proj_ball(x, r, ord))(x, r), found)
    assert soft.proj_ball(x[:0], r[:0], ord).shape == (0, 5)
    assert soft.proj_ball(x[:, :0], r, ord).shape == (3, 0)
    close(soft.proj_ball(torch.tensor(-3.0), 2.0, ord), torch.tensor(-2.0))


@ORDERS
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30])
def test_numbers_of_any_size(ord, size):
    """The unit of vector and radius does not matter, where squares and sums under- or overflow; gradients inside are finite."""
    x = 2 * rows(4, 5).float()
    expected = size * soft.proj_ball(x.double(), 0.5, ord)
    found = soft.proj_ball((size * x.double()).float(), size * 0.5, ord)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-44)
    assert jacrev(lambda x: soft.proj_ball(x, 0.5, ord))((1e-40 * x[0].double()).float()).equal(torch.eye(5))


@ORDERS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision(ord, dtype):
    """Sums of thousands do not overflow, and the value is that of float64, rounded once or twice."""
    x = (100 * rows(4096, seed=1)).to(dtype)
    found = soft.proj_ball(x, 30.0, ord)
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), soft.proj_ball(x.double(), 30.0, ord), rtol=2 * eps, atol=2 * eps)


def test_the_ball_of_the_largest_is_clamp():
    """Bit for bit, with infinities and NaN; those of the other balls make NaN of their row."""
    x = torch.tensor([INF, -INF, math.nan, 0.3, -0.0])
    found = soft.proj_ball(x, 0.7, INF)
    assert torch.equal(found.nan_to_num(5), clamp(x, -0.7, 0.7).nan_to_num(5))
    for ord in (1, 2):
        for v in (INF, -INF, math.nan):
            assert soft.proj_ball(torch.tensor([[v, 0.3], [0.1, 0.2]]), 0.7, ord).isnan().any(-1).tolist() == [True, False]


def test_errors():
    """The name, the rule, and the value found."""
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"^proj_ball: `ord` must be 1, 2 or infinity, got 3"):
        soft.proj_ball(x, 1.0, 3)
    with pytest.raises(ValueError, match=r"^proj_ball: `radius` must be positive and finite, got 0"):
        soft.proj_ball(x, 0)
    with pytest.raises(ValueError, match=r"^proj_ball: `radius` must be positive, got -1.0 among its elements"):
        soft.proj_ball(x, -x[:, :1])
    with pytest.raises(ValueError, match=r"^proj_ball: `radius` must have the size 1 along `dim`, got 3"):
        soft.proj_ball(x, x)
    with pytest.raises(TypeError, match=r"^proj_ball: `x` must be a real tensor, got dtype torch.complex64"):
        soft.proj_ball(x * 1j)
