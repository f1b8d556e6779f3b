"""`implicit.solve` of functions that are not a matrix alone."""

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import fullgrad
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


@pytest.mark.parametrize("model", ["pinn", "norm"])
@pytest.mark.parametrize("is_used", [False, True])
def test_a_matrix_by_linearize_of_a_batch(model, is_used):
    """A graph that gives a constant another shape, as batched products do, changes nothing that a derivative would do again."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)] if model == "pinn" else [nn.LayerNorm(2), nn.Linear(2, 1)]
    net, points = nn.Sequential(*layers).double(), torch.rand(5, 2, dtype=torch.float64)
    p = {k: v.detach() for k, v in net.named_parameters()}

    def value(x, p):
        return torch.func.functional_call(net, p, (x,))[0]

    residual = fullgrad.forward.laplacian(value) if model == "pinn" else value
    f = lambda p: torch.func.vmap(residual, (0, None))(points, p)  # noqa: E731
    push = torch.func.linearize(f, p)[1]
    if is_used:
        push(p)

    def solved(push):
        product = lambda d: {k: v + d[k] for k, v in torch.func.vjp(f, p)[1](push(d))[0].items()}  # noqa: E731
        return implicit.solve(product, p, linear_solve="cg")

    found, wanted = solved(push), solved(lambda d: torch.func.jvp(f, (p,), (d,))[1])
    for k, v in wanted.items():
        torch.testing.assert_close(found[k], v)
