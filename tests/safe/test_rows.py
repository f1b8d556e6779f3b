"""Properties of `normalize` and `cdist`: torch's numbers where torch has them, and derivatives at rows that are 0 or equal."""

import math

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from fullgrad import safe
from fullgrad.safe import _cdist
from tests.safe.test_safe import HESSIANS, normal, same

ORDERS = (1, 1.5, 2, 3, math.inf)


@pytest.mark.parametrize("ord", ORDERS)
def test_vectors_of_ordinary_numbers_are_torchs(ord):
    """Bit for bit, in both precisions, along any dimensions."""
    for x in (normal(64, 5), normal(64, 5).float()):
        same(safe.normalize(x, ord), torch.nn.functional.normalize(x, ord, -1))
        same(safe.normalize(x, ord, 0), torch.nn.functional.normalize(x, ord, 0))
        same(safe.normalize(x, ord, None), x / torch.linalg.vector_norm(x, ord))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_vectors_of_every_size_have_the_norm_1(dtype):
    """From subnormal to the largest numbers, whose squares under- and overflow; the gradient is orthogonal to the vector."""
    limits = torch.finfo(dtype)
    for size in (limits.smallest_normal / 8, limits.tiny, 1.0, limits.max / 4):
        x = (torch.tensor([3.0, -4.0, 2.0, 1.0], dtype=torch.float64) / 4 * size).to(dtype)
        assert safe.normalize(x).double().norm().item() == pytest.approx(1, abs=8 * limits.eps)
        if size >= 1:
            g = grad(lambda x: safe.normalize(x)[0])(x).double() * size
            assert abs(g @ safe.normalize(x).double()) < 16 * limits.eps


@pytest.mark.parametrize("ord", ORDERS)
def test_a_vector_of_zeros_stays_and_has_no_derivative(ord):
    """Value 0, and derivatives 0 of every order in every nesting, next to a row of other numbers."""
    x = torch.tensor([[0.0, -0.0, 0.0], [3.0, 1.0, -4.0]], dtype=torch.float64)
    f = lambda x: safe.normalize(x, ord).pow(3).sum()  # noqa: E731
    assert not safe.normalize(x, ord)[0].any()
    assert not grad(f)(x)[0].any()
    expected = hessian(f)(x)
    for transform in HESSIANS:
        h = transform(f)(x)
        assert not h[0].any()
        torch.testing.assert_close(h, expected, rtol=1e-11, atol=1e-13)
    third = jacrev(jacfwd(jacrev(f)))(x)
    assert third.isfinite().all()
    assert not third[0].any()
    assert not safe.normalize(torch.zeros(3, dtype=torch.float16)).any()


def test_distances_are_torchs_without_its_product_of_matrices():
    """Bit for bit, with dimensions in front that broadcast; half precision is that of float32, rounded."""
    x, y = normal(2, 1, 40, 4), normal(3, 30, 4, seed=1)
    for ord in (0, *ORDERS):
        same(safe.cdist(x, y, ord), torch.cdist(x, y, ord, "donot_use_mm_for_euclid_dist"))
    half = safe.cdist(x.half(), y.half())
    same(half, torch.cdist(x.half().float(), y.half().float(), 2, "donot_use_mm_for_euclid_dist").half())
    assert safe.cdist(x[0, 0, :0], y[0]).shape == (0, 30)
    assert grad(lambda x: safe.cdist(x, y[0, :0]).sum())(x[0, 0]).shape == (40, 4)


@pytest.mark.parametrize("ord", ORDERS)
def test_equal_rows_have_no_derivative(ord):
    """Of distances among the rows of one matrix every derivative is finite, and the same in every nesting."""
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [3.0, -1.5]], dtype=torch.float64)
    f = lambda x: safe.cdist(x, x, ord).pow(1.5).sum()  # noqa: E731
    apart = lambda x: safe.norm(x[:, None] - x, ord, -1).pow(1.5).sum()  # noqa: E731
    of_two = grad(lambda x: 2 * safe.norm(x[:2] - x[2], ord, -1).sum())
    torch.testing.assert_close(grad(lambda x: safe.cdist(x, x, ord).sum())(x), of_two(x))
    for transform in HESSIANS:
        h = transform(lambda x: safe.cdist(x, x, ord).sum())(x)
        assert h.isfinite().all()
        torch.testing.assert_close(h, hessian(lambda x: safe.norm(x[:, None] - x, ord, -1).sum())(x))
    y = normal(4, 2, seed=2)
    torch.testing.assert_close(vmap(grad(f))(torch.stack([y, y]))[1], grad(apart)(y))


def test_differences_of_many_rows_are_computed_in_parts(monkeypatch):
    """The derivatives are those of all at once."""
    x, y = normal(30, 4), normal(7, 4, seed=1)
    f = lambda x, y: safe.cdist(x, y).pow(2.5).sum()  # noqa: E731
    transforms = (grad(f, (0, 1)), jacfwd(f, (0, 1)), hessian(f))
    whole = [transform(x, y) for transform in transforms]
    monkeypatch.setattr(_cdist, "_MOST", 64)
    parts = [part.shape for _, part in _cdist._parts(x, y, x)]
    assert parts == [(2, 4)] * 15
    torch.testing.assert_close([transform(x, y) for transform in transforms], whole)


def test_what_is_no_matrix_is_refused():
    """Each error names the argument and what was found."""
    x = torch.zeros(3, 2)
    for bad, error, said in (
        ((x[0], x), ValueError, r"cdist: `x` must have rows, of shape \(…, n, k\), got shape \(2,\)"),
        ((x, x[:, :1]), ValueError, r"rows of `x` and `y` must have one size, got shapes \(3, 2\) and \(3, 1\)"),
        ((x.expand(2, 3, 2), x.expand(4, 3, 2)), ValueError, r"must broadcast, got shapes \(2, 3, 2\) and \(4, 3, 2\)"),
        ((x, x.long()), TypeError, "`y` must be a floating tensor"),
        ((x, x, -1), ValueError, "`ord` must not be negative, got -1"),
    ):
        with pytest.raises(error, match=said):
            safe.cdist(*bad)
    with pytest.raises(ValueError, match="`ord` must be positive, got 0"):
        safe.normalize(x, 0)
