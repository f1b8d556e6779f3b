"""`sparse_jacobian` and `sparse_hessian`: torch's whole matrices, in as many directions as there are colors."""

import pytest
import torch
from torch.func import grad, hessian, jacrev

import fullgrad
from fullgrad.forward import sparse_hessian, sparse_jacobian

# torch 2.11 warns of checks that are switched off.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
N = 9
X = torch.linspace(0.1, 1.7, N, dtype=torch.float64)
BAND = torch.ones(N, N, dtype=torch.bool).tril(1).triu(-1)
ROW = torch.eye(N, dtype=torch.bool)
ROW[4] = True


def stencil(x, c=1.0):
    left, right = torch.cat([x[:1] * 0, x[:-1]]), torch.cat([x[1:], x[:1] * 0])
    return left.sin() * c + x**2 * right


def full_row(x, c=1.0):
    return torch.cat([x[:4].sin(), (x * x).sum()[None] * c, x[5:].exp()])


CASES = {
    "a band": (stencil, BAND, 3),
    "a full row": (full_row, ROW, 2),
    "a full column": (lambda x, c=1.0: x[4] * x * c, ROW.T | torch.eye(N, dtype=torch.bool), 2),
    "a wide matrix": (lambda x, c=1.0: x[:3] * x[3:6] * c, torch.eye(3, dtype=torch.bool).repeat(1, 3), 2),
    "declared derivatives": (lambda x, c=1.0: fullgrad.round(x * 3) * x * c, torch.eye(N, dtype=torch.bool), 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.short
def test_it_is_the_whole_jacobian_by_few_directions(name):
    f, pattern, colors = CASES[name]
    for given in (pattern, pattern.to_sparse_coo(), None):
        calls = []
        for chunk_size in (None, 1):
            maker = sparse_jacobian(f, given, value=True, chunk_size=chunk_size)
            value, found = maker(X, 2.0)
            torch.testing.assert_close(value, f(X, 2.0))
            torch.testing.assert_close(found.to_dense(), jacrev(f)(X, 2.0))
            calls.append(maker.settings[0])
        counts = [int(c.max()) + 1 for c in (calls[0].rows, calls[0].columns)]
        assert min(counts) <= colors


def test_hessians_of_a_chain():
    f = lambda x: (stencil(x) ** 2).sum()  # noqa: E731
    pattern = torch.ones(N, N, dtype=torch.bool).tril(2).triu(-2)
    for given in (pattern, None):
        value, found = sparse_hessian(f, given, value=True)(X)
        torch.testing.assert_close((value, found.to_dense()), (f(X), hessian(f)(X)))


@pytest.mark.parametrize("place", [(3, 2), (4, 4), (0, 8)])
def test_an_entry_that_the_pattern_lacks_raises(place):
    f = lambda x: stencil(x) + torch.cat([x[8:], x[1:] * 0])  # noqa: E731
    pattern = BAND.clone()
    pattern[0, 8] = True
    torch.testing.assert_close(sparse_jacobian(f, pattern)(X).to_dense(), jacrev(f)(X))
    pattern[place] = False
    with pytest.raises(ValueError, match="the pattern lacks an entry"):
        sparse_jacobian(f, pattern)(X)
    with pytest.raises(ValueError, match="the pattern lacks an entry"):
        sparse_jacobian(lambda x: full_row(x) + x, torch.eye(N, dtype=torch.bool))(X)


def in_float32(x):
    return stencil(x.float()).double()


def in_bfloat16(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (stencil(x.float()) @ torch.eye(N)).double() * 3


LESS_PRECISE = [
    in_float32,
    lambda x: stencil(x.float()),
    lambda x: stencil(x.bfloat16()).sin().float(),
    in_bfloat16,
]


@pytest.mark.parametrize("f", LESS_PRECISE)
@pytest.mark.parametrize("pattern", [BAND, ROW.T | BAND, ROW | BAND])
def test_rounding_in_a_less_precise_dtype_is_not_a_missing_entry(f, pattern):
    found = sparse_jacobian(f, pattern)(X)
    torch.testing.assert_close(found.to_dense(), jacrev(f)(X).to(found.dtype), rtol=0.02, atol=0.02)
    lacking = pattern.clone()
    lacking[3, 4] = False
    with pytest.raises(ValueError, match="the pattern lacks an entry"):
        sparse_jacobian(f, lacking)(X)


def test_the_message_names_the_matrix():
    with pytest.raises(ValueError, match=r"^sparse_jacobian: the pattern lacks an entry of the Jacobian"):
        sparse_jacobian(stencil, torch.eye(N, dtype=torch.bool))(X)
    with pytest.raises(ValueError, match=r"^sparse_hessian: the pattern lacks an entry of the Hessian"):
        sparse_hessian(lambda x: stencil(x).sum(), torch.eye(N, dtype=torch.bool))(X)


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_value_and_entries_are_of_the_same_random_numbers(chunk_size):
    dropped = lambda x: torch.nn.functional.dropout(x, 0.5) ** 2  # noqa: E731
    value, jacobian = sparse_jacobian(dropped, BAND, value=True, chunk_size=chunk_size)(X)
    torch.testing.assert_close(jacobian.to_dense(), (2 * value / X).diag())
    for _ in range(3):
        value, found = sparse_hessian(lambda x: dropped(x).sum(), BAND, value=True, chunk_size=chunk_size)(X)
        diagonal = found.to_dense().diagonal()
        torch.testing.assert_close(value, (diagonal * X**2 / 2).sum())


def test_autograd_differentiates_the_value():
    x = X.clone().requires_grad_()
    value, found = sparse_jacobian(stencil, BAND, value=True)(x)
    (gradient,) = torch.autograd.grad(value.sum() + found.values().sum(), x)
    torch.testing.assert_close(gradient, grad(lambda x: stencil(x).sum() + jacrev(stencil)(x).sum())(X))
    value, found = sparse_hessian(lambda x: stencil(x).sum(), BAND, value=True)(x)
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], grad(lambda x: stencil(x).sum())(X))


def test_autograd_differentiates_the_values():
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(sparse_jacobian(stencil, BAND)(x).values().square().sum(), x)
    torch.testing.assert_close(found, grad(lambda x: jacrev(stencil)(x).square().sum())(X))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda maker: maker(3, BAND), TypeError),
        (lambda maker: maker(stencil, BAND.double()), TypeError),
        (lambda maker: maker(stencil, BAND[0]), ValueError),
        (lambda maker: maker(stencil, BAND, chunk_size=0), ValueError),
        (lambda maker: maker(stencil, BAND)(X[:5]), ValueError),
        (lambda maker: maker(stencil, BAND)(X.reshape(3, 3)), ValueError),
        (lambda maker: maker(stencil, BAND)(torch.arange(N)), TypeError),
        (lambda maker: maker(lambda x: x[:2], BAND)(X), ValueError),
        (lambda maker: maker(stencil, BAND[:0, :0])(X[:0]), ValueError),
        (lambda maker: maker(stencil)(X[:0]), ValueError),
        (lambda maker: maker(stencil, BAND)(x=X), TypeError),
        *[
            (lambda maker, f=f, given=given: maker(f, *given)(X), error)
            for given in ((BAND,), ())
            for f, error in (
                (lambda x: (x, x), TypeError),
                (lambda x: None, TypeError),
                (lambda x: x.long(), TypeError),
                (lambda x: x.long().sum(), TypeError),
                (lambda x: x * 1j, TypeError),
                (lambda x: x.reshape(3, 3), ValueError),
            )
        ],
    ],
)
@pytest.mark.parametrize("maker", [sparse_jacobian, sparse_hessian])
@pytest.mark.short
def test_arguments_that_do_not_fit_are_refused_by_name(maker, call, error):
    with pytest.raises(error, match=f"^{maker.__name__}: "):
        call(maker)
