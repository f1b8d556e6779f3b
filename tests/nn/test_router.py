"""`nn.TopKRouter`: weights as those of Mixtral and Switch, and the loss that balances experts."""

import copy
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap

import fullgrad
from fullgrad.nn import TopKRouter

X = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
JAGGED = torch.nested.nested_tensor_from_jagged(X, torch.tensor([0, 5, 12]))


def router(*args, seed=0, **options):
    torch.manual_seed(seed)
    return TopKRouter(8, *args, **options)


def mixtral(logits, k):
    """A softmax over the k largest logits, token by token."""
    rows = []
    for z in logits.detach():
        chosen = z.argsort(descending=True)[:k]
        rows.append(torch.zeros_like(z).index_put((chosen,), z[chosen].exp() / z[chosen].exp().sum()))
    return torch.stack(rows)


def balance(logits, indices):
    """n times the sum over experts of their share of the choices and their mean probability."""
    n = logits.shape[-1]
    p = (logits.exp() / logits.exp().sum(-1, keepdim=True)).mean(0)
    return n * sum((indices == i).float().mean() * p[i] for i in range(n))


@pytest.mark.short
@pytest.mark.parametrize("softness", [None, 0.3])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_weights_are_those_of_mixtral(k, softness):
    """Exactly k are not 0, they add up to 1, and the indices are theirs in descending order."""
    module = router(5, k, normalize=k > 1 or softness is not None, softness=softness)
    weights, indices, _ = module(X)
    logits = X @ module.gate.weight.T
    if module.normalize:
        torch.testing.assert_close(weights, mixtral(logits, k))
    assert ((weights != 0).sum(-1) == k).all()
    assert torch.equal(indices, logits.topk(k).indices)
    assert torch.equal((weights != 0).nonzero()[:, 1].view(12, k), indices.sort().values)


@pytest.mark.short
@pytest.mark.parametrize("softness", [None, 0.3])
def test_the_weights_of_switch_are_probabilities(softness):
    module = router(5, 1, softness=softness)
    weights, indices, _ = module(X)
    p = torch.softmax(X @ module.gate.weight.T, -1)
    assert module.normalize is False
    torch.testing.assert_close(weights.gather(-1, indices), p.amax(-1, keepdim=True))
    torch.testing.assert_close(weights, p * (p == p.amax(-1, keepdim=True)))


@pytest.mark.short
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_loss_is_that_of_switch_and_the_z_loss(k):
    """It is 1 where every expert is chosen as often, and its gradient is that of the formula with constant shares."""
    module = router(4, k, balance_weight=0.5, z_weight=0.25)
    _, indices, loss = module(X.view(3, 4, 8))
    logits = X @ module.gate.weight.T
    expected = 0.5 * balance(logits, indices.flatten(0, 1)) + 0.25 * logits.exp().sum(-1).log().square().mean()
    torch.testing.assert_close(loss, expected)
    found, true = (torch.autograd.grad(v, module.gate.weight)[0] for v in (loss, expected))
    torch.testing.assert_close(found, true)
    even = router(4, k, balance_weight=1.0)
    even.gate = torch.nn.Identity()
    assert abs(even(torch.eye(4) * 1e-3 + torch.eye(4).roll(1, 0) * 9e-4 + torch.eye(4).roll(2, 0) * 8e-4)[2] - 1) < 1e-5


@pytest.mark.short
def test_without_a_softness_the_derivative_is_the_true_one():
    """Of the weights that are chosen; experts that are not get none from the weights."""
    module = router(5, 2).double()
    module.gate = torch.nn.Identity()
    z = (X[:3, :5] * 2).double().requires_grad_()
    f = lambda z: module(z)[0]  # noqa: E731
    assert gradcheck(f, (z,), check_forward_ad=True)
    assert gradgradcheck(f, (z,))
    weights = module(z)[0]
    (g,) = torch.autograd.grad((weights * torch.randn(3, 5, dtype=z.dtype)).sum(), z)
    assert ((g != 0) == (weights != 0)).all()


@pytest.mark.short
@pytest.mark.parametrize("normalize", [True, False])
def test_with_a_softness_the_choice_has_that_of_its_relaxation(normalize):
    """Written with the relaxed mask: the derivative at the hard value, by the product rule."""
    module = router(5, 2, softness=0.4, normalize=normalize)
    module.gate = torch.nn.Identity()
    z = (X[:3, :5] * 2).double().requires_grad_()
    g = torch.randn(3, 5, dtype=z.dtype, generator=torch.Generator().manual_seed(1))
    (found,) = torch.autograd.grad((module(z)[0] * g).sum(), z)
    relaxed = fullgrad.soft.proj_capped_simplex(z, 2, -1, 0.4)
    mask = relaxed + (mixtral(z.detach(), 2) > 0).double() - relaxed.detach()
    weights = z.exp() * mask if normalize else torch.softmax(z, -1) * mask
    weights = weights / weights.sum(-1, keepdim=True) if normalize else weights
    (expected,) = torch.autograd.grad((weights * g).sum(), z)
    torch.testing.assert_close(found, expected)
    assert (found != 0).all()


@pytest.mark.short
@pytest.mark.parametrize("softness", [None, 0.3])
def test_per_sample_gradients_are_those_of_the_loop(softness):
    module = router(4, 2, softness=softness)
    parameters = dict(module.named_parameters())

    def loss(parameters, x):
        weights, _, extra = functional_call(module, parameters, (x,))
        return weights.square().sum() + extra

    x = X.view(3, 4, 8)
    found = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(3):
        expected = torch.autograd.grad(loss(parameters, x[i]), module.gate.weight)[0]
        torch.testing.assert_close(found["gate.weight"][i], expected)


@pytest.mark.long
@pytest.mark.parametrize("softness", [None, 0.3])
def test_it_is_compiled_whole(softness):
    module = router(4, 2, softness=softness, z_weight=0.1)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")

    def run(f):
        weights, indices, loss = f(X)
        return weights, indices, torch.autograd.grad(weights.square().sum() + loss, module.gate.weight)[0]

    for a, b in zip(run(compiled), run(module), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.short
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    """Of a module in half precision, and under autocast."""
    module = router(4, 2, softness=0.3)
    half = copy.deepcopy(module).to(dtype)
    weights, _, loss = half(X.to(dtype))
    logits = half.gate(X.to(dtype))
    half.gate = torch.nn.Identity()
    wide, _, wide_loss = half(logits.float())
    assert weights.dtype == dtype
    assert torch.equal(weights, wide.to(dtype))
    assert loss.dtype == torch.float32
    assert torch.equal(loss, wide_loss)
    with torch.autocast("cpu", dtype):
        weights, _, loss = module(X)
    assert weights.dtype == dtype
    (weights.sum() + loss).backward()
    assert module.gate.weight.grad.dtype == torch.float32


@pytest.mark.short
def test_it_is_pickled_copied_and_shown():
    module = router(4, softness=0.2, z_weight=0.001)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        for a, b in zip(other(X), module(X), strict=True):
            assert torch.equal(a, b)
    assert [*module.state_dict()] == ["gate.weight"]
    assert repr(router(4)).startswith("TopKRouter(\n  8, num_experts=4, k=2\n")
    assert module.extra_repr() == "8, num_experts=4, k=2, z_weight=0.001, softness=0.2"
    assert router(4, 1).extra_repr() == "8, num_experts=4, k=1"
    weights, indices, loss = module(X[0])
    assert (weights.shape, indices.shape, loss.shape) == ((4,), (2,), ())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TopKRouter(8, 4, 5), ValueError, "`k` must be at most 4, got 5"),
        (lambda: TopKRouter(0, 4), ValueError, "`dim` must be a positive integer, got 0"),
        (lambda: TopKRouter(8, 4, 1, normalize=True), ValueError, "`normalize` makes .* normalize=False, or give a softness"),
        (lambda: TopKRouter(8, 4, balance_weight=-1.0), ValueError, "`balance_weight` must be finite and not negative, got -1"),
        (lambda: TopKRouter(8, 4, softness=0.0), ValueError, "`softness` must be positive"),
        (lambda: TopKRouter(8, 4, softness=0.1, mode="hard"), ValueError, "`mode` must be one of"),
        (lambda: router(4)([1.0]), TypeError, "`x` must be a tensor"),
        (lambda: router(4)(JAGGED), TypeError, r"`x` must not be a nested tensor; call the module on its \.values\(\)"),
        (lambda: router(4)(torch.ones(8, dtype=torch.int64)), TypeError, "`x` must be a floating tensor"),
    ],
)
def test_errors_name_the_argument(make, error, message):
    with pytest.raises(error, match=f"TopKRouter: {message}"):
        make()


def test_logits_of_another_size_are_an_error():
    module = router(4)
    module.gate = torch.nn.Identity()
    with pytest.raises(ValueError, match=r"must have 4 numbers in the last dimension, got shape \(12, 8\)"):
        module(X)


def test_no_tokens_have_the_loss_zero():
    """A rank without tokens adds nothing to the loss."""
    assert fullgrad.nn.TopKRouter(6, 4, 2, z_weight=0.1)(torch.empty(0, 6))[2].item() == 0
