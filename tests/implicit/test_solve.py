"""`implicit.solve` of functions that are not a matrix alone."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from fullgrad import implicit

MATRIX = torch.tensor([[3.0, 1.0], [0.5, 2.0]], dtype=torch.float64)
B, ADDED = torch.tensor([1.0, 3.0], dtype=torch.float64), torch.tensor([0.5, -2.0], dtype=torch.float64)


def solved(scale, linear_solve=None):
    """The solution of ``scale A w + scale c = b``, and by a closed form."""
    return implicit.solve(lambda w: scale * (MATRIX @ w + ADDED), B, linear_solve=linear_solve)


def expected(scale):
    return torch.linalg.solve(MATRIX, B / scale - ADDED)


@pytest.mark.parametrize("linear_solve", ["dense", "gmres", "normal_cg"])
def test_a_vector_that_a_function_adds_goes_to_the_right_hand_side(linear_solve):
    """In the value and in derivatives, one by one and in a batch."""
    scale = torch.tensor(2.0, dtype=torch.float64)
    of = lambda s: solved(s, linear_solve)  # noqa: E731
    for transform in (lambda f: f, jacfwd, jacrev, hessian, lambda f: lambda s: vmap(grad(lambda s: f(s).prod()))(s.expand(3))):
        torch.testing.assert_close(transform(of)(scale), transform(expected)(scale), rtol=1e-6, atol=1e-8)


def test_a_vector_that_a_compiled_function_adds_goes_to_the_right_hand_side():
    """Compiled code makes the matrix itself."""
    scale = torch.tensor(2.0, dtype=torch.float64)
    torch.testing.assert_close(torch.compile(solved, backend="aot_eager", fullgraph=True)(scale), expected(scale))


def test_a_function_that_is_not_linear_gets_a_warning():
    """Its solution is of the equation's slope at 0."""
    with pytest.warns(RuntimeWarning, match="`matvec` is not linear in w"):
        implicit.solve(lambda w: w + w**3, B)
