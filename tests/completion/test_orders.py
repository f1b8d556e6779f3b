"""Derivatives to third order inside `completing`, in every nesting, next to those of plain operations by reverse mode."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, linearize, vmap

import fullgrad
from tests.completion.test_completing import seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
T, S = seeded(4).flip(0), torch.tensor([1, -1, 1, -1])
BOUND = {"rtol": 1e-6, "atol": 1e-8}
WORDS = ["".join(w) for order in (1, 2, 3) for w in itertools.product("fr", repeat=order)]


def _tangent(f, v):
    return lambda x: jvp(f, (x,), (v,))[1]


def _gradient(f, v):
    return lambda x: (grad(f)(x) * v).sum()


def along(word, f, v):
    """The derivatives of a number along one direction, the first letter outermost: ``f`` forward, ``r`` reverse."""
    for letter in reversed(word):
        f = _tangent(f, v) if letter == "f" else _gradient(f, v)
    return f


def whole(word, f):
    for letter in reversed(word):
        f = jacfwd(f) if letter == "f" else jacrev(f)
    return f


def mean_square(x, y):
    return (x - y).square().mean()


def entropy(x, y):
    return ((1 - y) * x + torch.log1p(torch.exp(-x))).mean()


# An operator and plain operations that are the same function, and where.
LOSSES = {
    "mse_loss": (lambda x: F.mse_loss(x, T), lambda x: mean_square(x, T)),
    "mse_loss by its target": (lambda x: F.mse_loss(T, x), lambda x: mean_square(x, T)),
    "mse_loss of samples": (lambda x: F.mse_loss(x, T, reduction="none"), lambda x: (x - T).square()),
    "binary_cross_entropy_with_logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, T.sigmoid()),
        lambda x: entropy(x, T.sigmoid()),
    ),
    "binary_cross_entropy by its target": (
        lambda x: F.binary_cross_entropy(T.sigmoid(), x.sigmoid()),
        lambda x: entropy(T, x.sigmoid()),
    ),
    "poisson_nll_loss": (lambda x: F.poisson_nll_loss(x, T), lambda x: (x.exp() - T * x).mean()),
    "huber_loss": (
        lambda x: F.huber_loss(x, T, delta=0.7),
        lambda x: torch.where((x - T).abs() < 0.7, (x - T).square() / 2, 0.7 * ((x - T).abs() - 0.35)).mean(),
    ),
    "smooth_l1_loss": (
        lambda x: F.smooth_l1_loss(x, T, beta=0.7),
        lambda x: torch.where((x - T).abs() < 0.7, (x - T).square() / 1.4, (x - T).abs() - 0.35).mean(),
    ),
    "l1_loss": (lambda x: F.l1_loss(x, T), lambda x: (x - T).abs().mean()),
    "kl_div": (lambda x: F.kl_div(x, T.exp()), lambda x: (T.exp() * (T - x)).mean()),
    "kl_div by its target": (lambda x: F.kl_div(T, x, log_target=True), lambda x: (x.exp() * (x - T)).mean()),
    "gaussian_nll_loss": (
        lambda x: F.gaussian_nll_loss(x, T, 1 + T.square()),
        lambda x: ((1 + T.square()).log() + (x - T).square() / (1 + T.square())).mean() / 2,
    ),
    "hinge_embedding_loss": (
        lambda x: F.hinge_embedding_loss(x * T, S, margin=9),
        lambda x: torch.where(S == 1, x * T, 9 - x * T).mean(),
    ),
    "alpha_dropout": (lambda x: F.alpha_dropout(x, 0.0), lambda x: 1 * x),
}
C, IS_LARGE, ONES = (
    seeded(2, 3).sin(),
    torch.tensor([[True, False, True], [False, True, False]]),
    torch.ones(2, 3, dtype=torch.bool),
)


def norm(x, p=2, dim=1, keepdim=False):
    return x.abs().pow(p).sum(dim, keepdim=keepdim).pow(1 / p)


def centered(x, dim=1):
    return x - x.mean(dim, keepdim=True)


def rows(*numbers):
    return torch.stack([torch.stack(row) for row in numbers])


MATRICES = {
    "vector_norm": (lambda x: torch.linalg.vector_norm(x), lambda x: norm(x, 2, (0, 1))),
    **{
        f"vector_norm of order {p}": (lambda x, p=p: torch.linalg.vector_norm(x, p, 1), lambda x, p=p: norm(x, p))
        for p in (1.5, 3, -1)
    },
    "std": (lambda x: x.std(1), lambda x: (centered(x).square().sum(1) / 2).sqrt()),
    "std_mean": (lambda x: torch.std_mean(x, 1)[0], lambda x: (centered(x).square().sum(1) / 2).sqrt()),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, C), lambda x: (x * C).sum(1) / norm(x) / norm(C)),
    "pairwise_distance": (lambda x: F.pairwise_distance(x, C), lambda x: norm(x - C + 1e-6)),
    "dist": (lambda x: torch.dist(x, C, 3), lambda x: norm(x - C, 3, (0, 1))),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 0.5), lambda x: x * 0.5 / (norm(x, keepdim=True) + 1e-7)),
    "normalize": (F.normalize, lambda x: x / norm(x, keepdim=True)),
    "matrix_norm": (lambda x: torch.linalg.matrix_norm(x, "fro"), lambda x: norm(x, 2, (0, 1))),
    "masked.norm": (lambda x: torch.masked.norm(x, 2, 1, mask=ONES), norm),
    "masked.normalize": (lambda x: torch.masked.normalize(x, 2, 1, mask=ONES), lambda x: x / norm(x, keepdim=True)),
    "triplet_margin_loss": (
        lambda x: F.triplet_margin_loss(x, C, C.cos(), margin=5.0),
        lambda x: (norm(x - C + 1e-6) - norm(x - C.cos() + 1e-6) + 5).mean(),
    ),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), lambda x: x.exp().cumsum(1).log()),
    "triangular_solve": (
        lambda x: torch.triangular_solve(x @ x.mT, x[:, :2] + 2 * torch.eye(2))[0],
        lambda x: torch.linalg.inv((x[:, :2] + 2 * torch.eye(2)).triu()) @ (x @ x.mT),
    ),
    "triangular_solve, transposed, of ones": (
        lambda x: torch.triangular_solve(x @ x.mT, x[:, :2], False, True, True)[0],
        lambda x: torch.linalg.inv(x[:, :2].tril(-1) + torch.eye(2)).mT @ (x @ x.mT),
    ),
    "cosine_embedding_loss": (
        lambda x: F.cosine_embedding_loss(x, C, S[:2], 0.1),
        lambda x: (lambda c: (1 - c[0] + (c[1] - 0.1).clamp(min=0)) / 2)((x * C).sum(1) / norm(x) / norm(C)),
    ),
    "scalar product of complex numbers": (
        lambda x: torch.view_as_real(torch.dot(torch.complex(x[0], x[1]), torch.complex(C[1], C[0]))),
        lambda x: torch.stack([(x[0] * C[1] - x[1] * C[0]).sum(), (x[0] * C[0] + x[1] * C[1]).sum()]),
    ),
    "vdot": (
        lambda x: torch.view_as_real(torch.vdot(torch.complex(x[0], x[1]), torch.complex(C[1], C[0]))),
        lambda x: torch.stack([(x[0] * C[1] + x[1] * C[0]).sum(), (x[0] * C[0] - x[1] * C[1]).sum()]),
    ),
    "vector_norm of a number": (lambda x: torch.linalg.vector_norm(x.sum(), 3), lambda x: x.sum().abs()),
    "logcumsumexp of complex numbers": (
        lambda x: torch.view_as_real(torch.logcumsumexp(torch.complex(x[0], x[1]), 0)),
        lambda x: torch.view_as_real(torch.complex(x[0], x[1]).exp().cumsum(0).log()),
    ),
    "masked_select by a mask that is larger": (lambda x: torch.masked_select(x[0], IS_LARGE), lambda x: x[0][[0, 2, 1]]),
    "masked_select by a mask that is smaller": (
        lambda x: torch.masked_select(x, IS_LARGE[0]),
        lambda x: x[:, [0, 2]].reshape(-1),
    ),
    "PReLU": (lambda x: F.prelu(x, x[0, :1].square()), lambda x: torch.where(x > 0, x, x[0, :1].square() * x)),
    "masked_scatter by its source": (
        lambda x: C.masked_scatter(IS_LARGE, x.reshape(-1)[:4]),
        lambda x: rows([x[0, 0], C[0, 1], x[0, 1]], [C[1, 0], x[0, 2], C[1, 2]]),
    ),
}


def symmetric(x):
    return x @ x.mT + torch.diag(torch.tensor([1.0, 3, 6], dtype=x.dtype))


def hermitian(x):
    return symmetric(x) + 1j * (x - x.mT)


LD, PIVOTS = torch.linalg.ldl_factor(symmetric(seeded(3, 3)))
# Sums over eigenvalues are polynomials, since functions of matrices are.
SQUARES = {
    "eigenvalues": (
        lambda x: torch.linalg.eigvalsh(symmetric(x)).pow(3).sum(),
        lambda x: torch.linalg.matrix_power(symmetric(x), 3).trace(),
    ),
    "eigenvectors": (
        lambda x: (lambda e: (e[1] * e[0].square()) @ e[1].mT)(torch.linalg.eigh(symmetric(x), "U")),
        lambda x: symmetric(x) @ symmetric(x),
    ),
    "complex eigenvectors": (
        lambda x: (lambda e: ((e[1] * e[0].square()) @ e[1].mH).real)(torch.linalg.eigh(hermitian(x))),
        lambda x: (hermitian(x) @ hermitian(x)).real,
    ),
    "eigenvalues of any matrix": (
        lambda x: torch.linalg.eigvals(x + torch.diag(x[0])).pow(3).sum().real,
        lambda x: torch.linalg.matrix_power(x + torch.diag(x[0]), 3).trace(),
    ),
    "eigenvectors of any matrix": (
        lambda x: (lambda e: ((e[1] * e[0].square().unsqueeze(-2)) @ torch.linalg.inv(e[1])).real)(torch.linalg.eig(x)),
        lambda x: x @ x,
    ),
    "ldl_solve": (lambda x: torch.linalg.ldl_solve(LD, PIVOTS, x), lambda x: torch.linalg.inv(symmetric(seeded(3, 3))) @ x),
}


def written(write):
    """``2 x`` after something was written to it, whose tangents are symbolic zeros."""

    def f(x):
        y = 2 * x
        write(y, x)
        return y

    return f


ROWS, MASK = torch.tensor([1]), torch.tensor([[True, False, True], [False, True, False]])
IN_PLACE = {
    "a number": (lambda y, x: y[0].fill_(1.0), lambda x: torch.stack([x[0] * 0 + 1, 2 * x[1]])),
    "an item": (
        lambda y, x: y.__setitem__((1, 2), 0.5),
        lambda x: (2 * x).index_put((ROWS, ROWS + 1), torch.tensor(0.5).double()),
    ),
    "a row": (lambda y, x: y.__setitem__(0, x[1]), lambda x: torch.stack([x[1], 2 * x[1]])),
    "rows": (lambda y, x: y[1:].mul_(x[:-1]), lambda x: torch.stack([2 * x[0], 2 * x[0] * x[1]])),
    "a row of rows": (
        lambda y, x: y[1:][:, :2].copy_(x[:1, 1:]),
        lambda x: torch.stack([2 * x[0], torch.cat([x[0, 1:], 2 * x[1, 2:]])]),
    ),
    "a diagonal": (lambda y, x: y.fill_diagonal_(1.0), lambda x: (2 * x).diagonal_scatter(torch.ones(2).double())),
    "a filled tensor": (lambda y, x: y.fill_(x[0, 0]), lambda x: x[0, 0].expand(2, 3)),
    "several numbers": (
        lambda y, x: [v.fill_(1.0) for v in (y[:, 0], y[:, 1])],
        lambda x: torch.cat([x[:, :2] * 0 + 1, 2 * x[:, 2:]], 1),
    ),
    "scatter_": (lambda y, x: y.scatter_(0, ROWS.expand(1, 3), x[:1]), lambda x: torch.stack([2 * x[0], x[0]])),
    "scatter_ a number": (lambda y, x: y.scatter_(0, ROWS.expand(1, 3), 0.5), lambda x: torch.stack([2 * x[0], x[0] * 0 + 0.5])),
    "index_copy_": (lambda y, x: y.index_copy_(0, ROWS, x[:1]), lambda x: torch.stack([2 * x[0], x[0]])),
    "put_": (
        lambda y, x: y.put_(ROWS, x[1, :1]),
        lambda x: torch.cat([2 * x[0, :1], x[1, :1], 2 * x.flatten()[2:]]).reshape(2, 3),
    ),
    "masked_fill_": (lambda y, x: y.masked_fill_(MASK, x[0, 0]), lambda x: torch.where(MASK, x[0, 0], 2 * x)),
    "masked_fill_ by a number": (lambda y, x: y.masked_fill_(MASK, 0.5), lambda x: torch.where(MASK, 0.5, 2 * x)),
}
CASES = {
    **{name: (written(write), plain, seeded(2, 3)) for name, (write, plain) in IN_PLACE.items()},
    "a real part": (
        lambda x: torch.view_as_real(written(lambda y, x: y.real.mul_(x.real))(torch.complex(x, x.sin()))),
        lambda x: torch.stack([2 * x * x, 2 * x.sin()], -1),
        seeded(2, 2),
    ),
    **{name: (f, plain, seeded(4)) for name, (f, plain) in LOSSES.items()},
    **{name: (f, plain, seeded(2, 3)) for name, (f, plain) in MATRICES.items()},
    **{name: (f, plain, seeded(3, 3)) for name, (f, plain) in SQUARES.items()},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(of=2)
def test_every_nesting(name):
    """Along one direction, with all others, and of a batch: the function with constants in its other arguments."""
    f, plain, x = CASES[name]
    v = x.cos()
    for outer in (lambda y: (y * 0.7).sin().sum(), lambda y: y.sum()):
        own, other = [lambda x, g=g, outer=outer: outer(g(x)) for g in (f, plain)]
        expected = {order: whole("r" * order, other)(x) for order in (1, 2, 3)}
        batch = torch.stack([x, x.flip(0) * 0.9])
        of_batch = {order: torch.stack([whole("r" * order, other)(x) for x in batch]) for order in (1, 2)}
        with fullgrad.completing():
            for word in WORDS:
                one = expected[len(word)]
                torch.testing.assert_close(whole(word, own)(x), one, **BOUND, msg=lambda m, w=word: f"{w}: {m}")
                for _ in word:
                    one = (one * v).sum(tuple(range(one.ndim - v.ndim, one.ndim)))
                torch.testing.assert_close(along(word, own, v)(x), one, **BOUND, msg=lambda m, w=word: f"{w}, one direction: {m}")
                if len(word) < 3:
                    found = vmap(whole(word, own))(batch)
                    torch.testing.assert_close(found, of_batch[len(word)], **BOUND, msg=lambda m, w=word: f"{w}, batch: {m}")


def test_models_with_a_mean_square_loss():
    """Hessian-vector products by the parameters, and their linear maps."""
    torch.manual_seed(0)
    model, loss = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double(), nn.MSELoss()
    x, y = seeded(4, 2), seeded(4, 1)
    parameters = dict(model.named_parameters())
    directions = {name: p.detach().cos() for name, p in parameters.items()}

    def f(parameters):
        return loss(functional_call(model, parameters, (x,)), y)

    def plain(parameters):
        return (functional_call(model, parameters, (x,)) - y).square().mean()

    gradients = torch.autograd.grad(plain(parameters), list(parameters.values()), create_graph=True)
    total = sum((g * v).sum() for g, v in zip(gradients, directions.values(), strict=True))
    expected = torch.autograd.grad(total, list(parameters.values()))
    values = {name: p.detach() for name, p in parameters.items()}
    with fullgrad.completing():
        found = jvp(grad(f), (values,), (directions,))[1]
        linear = linearize(grad(f), values)[1](directions)
    torch.testing.assert_close([*found.values()], [*expected])
    torch.testing.assert_close([*linear.values()], [*expected])


def test_a_view_of_zeros_is_not_left_behind():
    """What is written to a tangent is seen through its views, or torch refuses it: it is never lost."""
    zeros = torch._efficientzerotensor(3)
    view = zeros[:2]
    with fullgrad.completing():
        with pytest.raises(RuntimeError, match="immutable"):
            zeros.add_(1)
        assert torch.equal(view, torch.zeros(2))
        del view
        assert torch.equal(zeros.add_(1), torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_view_of_zeros_writes_through(dtype):
    """Alone it and the tensor that it is a view of become numbers; where there is another view, zeros alone may be written."""
    view_of = {
        "rows": lambda x: x[1:],
        "columns": lambda x: x.T[1],
        "steps": lambda x: x[:, ::2],
        "view of a view": lambda x: x[1:][:, 1],
        "conjugate": lambda x: x.conj()[0],
        "real part": lambda x: x.real[0],
        "imaginary part": lambda x: x.imag[1] if x.is_complex() else x[1],
        "nothing": lambda x: x[2:],
    }
    with fullgrad.completing():
        for name, take in view_of.items():
            zeros, expected = torch._efficientzerotensor(2, 3, dtype=dtype), torch.zeros(2, 3, dtype=dtype)
            take(zeros).add_(2 + 1j if take(expected).is_complex() else 2)
            take(expected).add_(2 + 1j if take(expected).is_complex() else 2)
            assert torch.equal(zeros.clone(), expected), name
        zeros = torch._efficientzerotensor(2, 3, dtype=dtype)
        views = [zeros[0], zeros[1]]
        with pytest.raises(RuntimeError, match="immutable"):
            views[0].add_(1)
        views[0].zero_()
        views[1].fill_(0).copy_(views[0])
        assert torch.equal(zeros.clone(), torch.zeros(2, 3, dtype=dtype))


def test_equal_eigenvalues():
    """They have their gradient, and eigenvectors have none: NaN, as in torch."""
    with fullgrad.completing():
        torch.testing.assert_close(grad(lambda a: torch.linalg.eigvalsh(a).square().sum())(torch.eye(3)), 2 * torch.eye(3))
        assert grad(lambda a: torch.linalg.eigh(a)[1][0, 0])(torch.eye(3)).isnan().any()
        tangents = jvp(torch.linalg.eig, (torch.eye(3),), (torch.eye(3),))[1]
        assert torch.equal(tangents[0].real, torch.ones(3))
        assert jvp(torch.linalg.eig, (torch.eye(3),), (torch.ones(3, 3),))[1][1].isnan().any()


@pytest.mark.parametrize("function", [torch.linalg.eigh, torch.linalg.eig])
@pytest.mark.parametrize("word", ["ffff", "rrrr", "rffr"])
def test_fourth_derivatives_of_eigenvectors(word, function):
    """The formula counts the orders that the transforms ask for: next to differences of the third derivative."""
    a, b, weight = symmetric(seeded(3, 3)), seeded(3, 3) + seeded(3, 3).mT, seeded(3, 3).sin()

    def f(s):
        values, x = function(a + s * b)
        return (weight * x * x.sum(0) * values.sin()).sum().real

    s, step = torch.tensor(0.1, dtype=torch.float64), 1e-4
    with fullgrad.completing():
        third = along(word[1:], f, 1.0 + 0 * s)
        expected = (third(s + step) - third(s - step)) / (2 * step)
        torch.testing.assert_close(along(word, f, 1.0 + 0 * s)(s), expected, rtol=1e-6, atol=1e-6)


def test_factors_have_no_derivative():
    """It is refused by name, in every mode, and not 0; the right-hand side has its own."""
    b = seeded(3, 1)

    def f(factors):
        return torch.linalg.ldl_solve(factors, PIVOTS, b).sum()

    with fullgrad.completing():
        for run in (lambda: grad(f)(LD), lambda: jvp(f, (LD,), (LD,)), lambda: grad(lambda x: jvp(f, (x,), (LD,))[1])(LD)):
            with pytest.raises(NotImplementedError, match="ldl_solve has no derivative with respect to the factors `LD`; detach"):
                run()
        with pytest.raises(NotImplementedError, match="ldl_solve has no derivative with respect to the factors `LD`; detach"):
            f(LD.clone().requires_grad_()).backward()
        torch.testing.assert_close(
            grad(lambda b: (symmetric(seeded(3, 3)) @ torch.linalg.ldl_solve(LD, PIVOTS, b)).sum())(b), 0 * b + 1
        )


def test_zeros_have_no_slope():
    """Norms and deviations have the gradient 0 there, as in torch, and those of small and large numbers are exact."""
    zeros, unit = torch.zeros(3), torch.tensor([3.0, 4.0, 0.0])
    with fullgrad.completing():
        for f in (torch.linalg.vector_norm, torch.std, lambda x: torch.dist(x, zeros, 3), lambda x: torch.norm(x)):
            assert torch.equal(grad(f)(zeros), zeros)
        for scale in (1e-30, 1.0, 1e18):
            torch.testing.assert_close(grad(torch.linalg.vector_norm)(scale * unit), unit / 5)


@pytest.mark.parametrize("at", [2.0, 0.0])
def test_third_derivatives_of_complex_signs(at):
    """In each nesting they are those of the quotient, and 0 at 0."""

    def forward(f):
        return lambda a: jvp(f, (a,), (torch.ones_like(a),))[1]

    def right(a):  # the real part of z / |z|, of z = a + i a²
        return (1 + a * a).rsqrt()

    a = torch.tensor(at, dtype=torch.float64)
    expected = grad(grad(grad(right)))(a) if at else torch.zeros_like(a)
    for nesting in itertools.product((forward, grad), repeat=3):
        f = lambda a: torch.complex(a, a * a).sgn().real  # noqa: E731
        for transform in nesting:
            f = transform(f)
        with fullgrad.completing():
            torch.testing.assert_close(f(a), expected)


@pytest.mark.parametrize("f", [torch.sgn, torch.abs, lambda z: torch.linalg.vector_norm(z, 3)])
def test_third_tangents_of_one_complex_number(f):
    """Torch compares the strides of a view's tangent with its own, which dimensions of size 1 may have in several ways."""
    z, *directions = torch.complex(seeded(4), seeded(4).sin())

    def number(z):
        y = f(z[None])
        return (torch.view_as_real(y).cos() if y.is_complex() else y).sum()

    function = number
    for v in directions:
        function = _tangent(function, v)
    with fullgrad.completing():
        found = function(z)
    g = lambda a: number(z + sum(a[i] * v for i, v in enumerate(directions)))  # noqa: E731
    expected = jacrev(jacrev(jacrev(g)))(torch.zeros(3, dtype=torch.float64))[0, 1, 2]
    torch.testing.assert_close(found, expected)
