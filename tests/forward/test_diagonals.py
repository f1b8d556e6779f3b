"""Diagonals and divergences: those of the whole Hessian or Jacobian, and unbiased estimates."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, vmap

import fullgrad
from fullgrad.forward import divergence, ggn_diagonal, hessian_diagonal, jacobian_diagonal, laplacian

X = torch.linspace(-1, 1.3, 6, dtype=torch.float64).reshape(3, 2)


def field(x, c=2.0):
    return x.sin().cumsum(0) * x.roll(1) * c + x**3


def hessian_by_torch(f, x, *constants):
    y = f(x, *constants)
    full = hessian(f)(x, *constants).reshape(*y.shape, x.numel(), x.numel())
    return full.diagonal(dim1=-2, dim2=-1).reshape(*y.shape, *x.shape)


def jacobian_by_torch(f, x):
    return jacrev(f)(x).reshape(x.numel(), x.numel()).diagonal().reshape(x.shape)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layers(x)


def model():
    torch.manual_seed(0)
    net = Net().double()
    return {k: p.detach() for k, p in net.named_parameters()}, lambda p, x: functional_call(net, p, (x,))


@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_exact_diagonals_are_those_of_the_whole_matrix(chunk_size):
    torch.testing.assert_close(hessian_diagonal(field, chunk_size=chunk_size)(X, 3.0), hessian_by_torch(field, X, 3.0))
    torch.testing.assert_close(jacobian_diagonal(field, chunk_size=chunk_size)(X), jacobian_by_torch(field, X))
    torch.testing.assert_close(divergence(field, chunk_size=chunk_size)(X), jacobian_by_torch(field, X).sum())


def test_the_hessian_diagonal_of_parameters_has_their_structure():
    p, f = model()
    x, target = torch.randn(3, dtype=torch.float64), torch.tensor(1)
    loss = lambda p, x, target: nn.functional.cross_entropy(f(p, x), target)  # noqa: E731
    found = hessian_diagonal(loss)(p, x, target)
    with fullgrad.completing():
        full = hessian(loss)(p, x, target)
    for name, t in p.items():
        wanted = full[name][name].reshape(t.numel(), t.numel()).diagonal().reshape(t.shape)
        torch.testing.assert_close(found[name], wanted)
    assert found["unused"].tolist() == [0.0, 0.0]


def test_the_ggn_diagonal_of_a_batch_is_that_of_the_whole_matrix():
    p, f = model()
    x, target = torch.randn(5, 3, dtype=torch.float64), torch.arange(5) % 3
    loss = nn.functional.cross_entropy
    found = vmap(ggn_diagonal(f, loss, chunk_size=2), (None, 0, 0))(p, x, target)
    for i in range(5):
        rows = jacrev(f)(p, x[i])
        curvature = hessian(loss)(f(p, x[i]), target[i])
        for name, t in p.items():
            j = rows[name].reshape(3, -1)
            torch.testing.assert_close(found[name][i], (j.T @ curvature @ j).diagonal().reshape(t.shape))


def test_a_function_may_write_to_a_part_of_what_it_reads():
    def written(x):
        y = x * 1
        y[1:3].mul_(x[:2])
        return y * y

    x = X.flatten()
    torch.testing.assert_close(hessian_diagonal(written)(x), hessian_by_torch(written, x))
    torch.testing.assert_close(laplacian(written)(x), hessian_by_torch(written, x).sum(-1))


def test_the_ggn_diagonal_wants_parameters_and_a_sample():
    with pytest.raises(TypeError, match=r"^ggn_diagonal: pass the first two arguments by position"):
        ggn_diagonal(lambda p, x: p * x, lambda y: y.sum())(X)


@pytest.mark.parametrize("distribution", ["rademacher", "normal"])
def test_probes_are_unbiased_and_their_standard_errors_true(distribution):
    def settings(seed):
        generator = torch.Generator().manual_seed(seed)
        return {"probes": 2000, "distribution": distribution, "generator": generator, "standard_error": True, "chunk_size": 700}

    for maker, wanted in (
        (hessian_diagonal, hessian_by_torch(field, X)),
        (jacobian_diagonal, jacobian_by_torch(field, X)),
        (divergence, jacobian_by_torch(field, X).sum()),
    ):
        mean, error = maker(field, **settings(0))(X)
        torch.testing.assert_close(maker(field, **settings(0))(X), (mean, error))
        distance = (mean - wanted).abs() / error.clamp_min(1e-12)
        assert distance[error > 1e-9].max() < 4.5
        assert (mean - wanted)[error <= 1e-9].abs().sum() < 1e-9
        assert distance.max() > 0.01 or error.max() == 0


def test_rademacher_probes_are_exact_for_a_diagonal_matrix():
    found = hessian_diagonal(lambda x: (x**3).sum(), probes=1)(X)
    torch.testing.assert_close(found, 6 * X)


def test_declared_derivatives_are_followed():
    f = lambda x: fullgrad.round(x * 3) ** 2 * x  # noqa: E731
    by_hand = lambda x: 6 * fullgrad.round(x * 3) * x + fullgrad.round(x * 3) ** 2  # noqa: E731
    torch.testing.assert_close(jacobian_diagonal(f)(X), by_hand(X))
    found = hessian_diagonal(lambda x: f(x).sum())(X)
    torch.testing.assert_close(found, 18 * X + 12 * fullgrad.round(X * 3))


def test_the_divergence_with_its_value_for_a_likelihood():
    torch.testing.assert_close(divergence(field, value=True)(X), (field(X), divergence(field)(X)))
    value, estimate, error = divergence(field, value=True, probes=5, standard_error=True)(X)
    torch.testing.assert_close(value, field(X))
    assert estimate.shape == error.shape == ()


def test_a_batch_is_a_dimension_of_vmap_and_results_are_differentiated():
    batch = torch.stack([X, 2 * X])
    torch.testing.assert_close(vmap(divergence(field))(batch), torch.stack([divergence(field)(x) for x in batch]))
    trace = lambda x: jacobian_by_torch(field, x).sum()  # noqa: E731
    torch.testing.assert_close(grad(divergence(field))(X), grad(trace)(X))
    drawn = vmap(divergence(field, probes=3), randomness="different")(torch.stack([X, X]))
    assert drawn[0] != drawn[1]


def written(x):
    y = x.clone()
    y.mul_(x.exp()).add_(1)
    return nn.functional.dropout(y, 0.5, inplace=True)


def not_written(x):
    return nn.functional.dropout(x * x.exp() + 1, 0.5)


BATCHED = {
    "hessian_diagonal": hessian_diagonal,
    "jacobian_diagonal": jacobian_diagonal,
    "divergence": lambda f: divergence(f, value=True),
    "probes": lambda f: hessian_diagonal(f, probes=2),
    "chunks": lambda f: jacobian_diagonal(f, chunk_size=1),
    "probes of a field": lambda f: divergence(f, probes=2),
    "laplacian": lambda f: laplacian(f, parts=True),
}


@pytest.mark.parametrize("maker", BATCHED.values(), ids=BATCHED)
def test_code_in_place_has_batches_as_other_code_does(maker):
    def batched(f):
        torch.manual_seed(0)
        return vmap(maker(f), randomness="same")(torch.stack([X, X.cos()]))

    torch.testing.assert_close(batched(written), batched(not_written))


@pytest.mark.long
def test_compiled_code_computes_the_same():
    compiled = torch.compile(divergence(field), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), divergence(field)(X))


def rectified(x):
    return fullgrad.relu_st(3 * x)


COMPILED = {
    "laplacian": (laplacian(lambda x: rectified(x).sum()), (0,)),
    "ggn_diagonal": (ggn_diagonal(lambda w, x: rectified(w @ x), lambda y: 0.5 * y.square().sum()), (None, 0)),
    "hessian_diagonal": (hessian_diagonal(lambda x: rectified(x).sum()), (0,)),
    "jacobian_diagonal": (jacobian_diagonal(rectified), (0,)),
    "divergence": (divergence(rectified), (0,)),
}


@pytest.mark.long(but=2)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_batches_of_declared_derivatives_are_those_of_eager_code(name):
    """Their tangents are symbolic zeros, which a batch gives another shape."""
    f, in_dims = COMPILED[name]
    args = [X, X.cos()][-len(in_dims) :]
    batched = lambda *a: vmap(f, in_dims)(*a)  # noqa: E731
    torch.testing.assert_close(torch.compile(batched, backend="aot_eager", fullgraph=True)(*args), batched(*args))


@pytest.mark.long
def test_compiled_batches_of_a_diagonal_at_a_view_are_those_of_eager_code():
    f = hessian_diagonal(lambda x: rectified(x).sum())
    batched = lambda x: vmap(lambda x: f(x[0]))(x)  # noqa: E731
    x = X.unsqueeze(1)
    torch.testing.assert_close(torch.compile(batched, backend="aot_eager", fullgraph=True)(x), batched(x))


MAKERS = {"hessian_diagonal": hessian_diagonal, "jacobian_diagonal": jacobian_diagonal, "divergence": divergence}


@pytest.mark.parametrize("name", MAKERS)
def test_settings_and_arguments_that_do_not_fit_are_refused_by_name(name):
    maker = MAKERS[name]
    for keywords in (
        {"probes": 0},
        {"probes": True},
        {"chunk_size": 0},
        {"distribution": "uniform"},
        {"probes": 1, "standard_error": True},
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            maker(field, **keywords)
    with pytest.raises(ValueError, match=f"^{name}: `generator`"):
        maker(field, generator=torch.Generator())
    with pytest.raises(TypeError, match=f"^{name}: "):
        maker(3)
    with pytest.raises(TypeError, match=f"^{name}: "):
        maker(field)(torch.ones(2, dtype=torch.int64))
    with pytest.raises(TypeError, match=f"^{name}: pass the first argument by position"):
        maker(field)(x=X)


@pytest.mark.parametrize("maker", [jacobian_diagonal, divergence])
def test_a_field_that_is_not_like_its_argument_is_refused(maker):
    with pytest.raises(ValueError, match="must return what its first argument is"):
        maker(lambda x: x.sum())(X)
