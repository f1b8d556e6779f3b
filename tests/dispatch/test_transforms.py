"""Every transform of torch.func, in any nesting, gives of an operator what it gives of the same function in plain torch."""

import itertools

import pytest
import torch
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.testing import assert_close

from fullgrad._dispatch import DISPATCH
from tests.operators import CASES, Cube, CubicRound, MatMul, Nested, SinCos, sample

pytestmark = pytest.mark.short

LETTERS = {"rev": jacrev, "fwd": jacfwd, "vmap": vmap}
WORDS = [word for length in (1, 2, 3) for word in itertools.product(LETTERS, repeat=length)]


def spell(word, function):
    """The transforms of a word around a function, the first one outermost."""
    for letter in reversed(word):
        function = LETTERS[letter](function)
    return function


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.mark.short(of=3)
@pytest.mark.parametrize("word", WORDS, ids="-".join)
def test_nesting(case, word):
    """jacrev, jacfwd and vmap in every order, up to three deep."""
    x = sample(*(2,) * word.count("vmap"))
    assert_close(spell(word, case.function)(x), spell(word, case.oracle)(x))


@pytest.mark.parametrize(
    "word", [("fwd",) * 4, ("rev",) * 4, ("rev", "fwd") * 2, ("vmap", "fwd", "fwd", "rev", "vmap")], ids="-".join
)
@pytest.mark.parametrize("name", ["cube_twice", "cubic_round", "sin_cos", "norm"])
def test_fourth_order(name, word):
    """Nestings four deep and beyond are right."""
    case = CASES[name]
    x = sample(*(2,) * word.count("vmap"))
    assert_close(spell(word, case.function)(x), spell(word, case.oracle)(x))


TRANSFORMS = {
    "grad": lambda f, x: grad(lambda x: f(x).sin().sum())(x),
    "grad_and_value": lambda f, x: grad_and_value(lambda x: f(x).sin().sum())(x),
    "grad_with_aux": lambda f, x: grad(lambda x: (f(x).sum(), f(x)), has_aux=True)(x),
    "grad_of_grad": lambda f, x: grad(lambda x: (grad(lambda x: f(x).sin().sum())(x) ** 2).sum())(x),
    "vjp": lambda f, x: vjp(f, x)[1](x),
    "vjp_of_vjp": lambda f, x: vjp(lambda x: vjp(f, x)[1](x)[0], x)[1](x),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "jvp_of_jvp": lambda f, x: jvp(lambda x: jvp(f, (x,), (x,))[1], (x,), (x,)),
    "jvp_of_jvp_of_jvp": lambda f, x: jvp(lambda x: jvp(lambda x: jvp(f, (x,), (x,))[1], (x,), (x,)), (x,), (x,)),
    "jvp_of_vjp": lambda f, x: jvp(lambda x: vjp(f, x)[1](x)[0], (x,), (x,)),
    "vjp_of_jvp": lambda f, x: vjp(lambda x: jvp(f, (x,), (x,))[1], x)[1](x),
    "hessian": lambda f, x: hessian(lambda x: f(x).sin().sum())(x),
    "hessian_of_each": lambda f, x: hessian(f)(x),
    "grad_of_hessian_trace": lambda f, x: grad(lambda x: hessian(lambda x: f(x).sum())(x).trace())(x),
    "per_sample_gradients": lambda f, x: vmap(grad(lambda x, s: f(s * x).sum()), in_dims=(None, 0))(x, torch.stack([x, 2 * x])),
    "per_sample_hessians": lambda f, x: vmap(hessian(lambda x: f(x).sum()))(torch.stack([x, 2 * x])),
    "vmap_over_tangents": lambda f, x: vmap(lambda t: jvp(f, (x,), (t,))[1])(torch.eye(3, dtype=x.dtype)),
    "vmap_over_cotangents": lambda f, x: vmap(vjp(f, x)[1])(torch.eye(3, dtype=x.dtype)),
    "vmap_over_primals_and_tangents": lambda f, x: vmap(lambda x, t: jvp(f, (x,), (t,)), in_dims=(0, None))(
        torch.stack([x, -x]), x
    ),
    "chunked_jacobians": lambda f, x: (jacrev(f, chunk_size=2)(x), jacfwd(f, randomness="same")(x)),
    "gradient_through_vmap": lambda f, x: grad(lambda x: vmap(f)(torch.stack([x, x * x])).sum())(x),
    "jacobian_through_vmap_of_grad": lambda f, x: jacfwd(vmap(grad(lambda x: f(x).sum())))(torch.stack([x, x * x])),
    "directional_taylor": lambda f, x: jacfwd(jacfwd(jacfwd(lambda t: f(x + t * x).sum())))(torch.zeros((), dtype=x.dtype)),
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(case, name):
    """The named transforms, alone and composed."""
    x = sample()
    assert_close(TRANSFORMS[name](case.function, x), TRANSFORMS[name](case.oracle, x))


# Without tracing errors of torch's own: linearize traces its function with make_fx.
def test_linearize(case):
    """The linear map at a point, applied to several tangents; its constants are not changed by a call."""
    x = sample()
    value, tangent_map = linearize(case.function, x)
    assert_close(value, case.oracle(x))
    for tangent in (sample(seed=1), sample(seed=2), sample(seed=1)):
        assert_close(tangent_map(tangent), jvp(case.oracle, (x,), (tangent,))[1])


def test_transform_under_eager_autograd(case):
    """Autograd outside differentiates what a transform inside returns."""
    results = []
    for function in case:
        x = sample().requires_grad_()
        y = grad(lambda x, function=function: function(x).sin().sum())(x) + jvp(function, (x,), (x,))[1]
        results.append(torch.autograd.grad(y.sum() + 0 * (x**2).sum(), x)[0])
    assert_close(*results)


def test_eager_autograd_inside_a_transform(case):
    """torch.autograd.grad inside vmap."""

    def gradient(function, x):
        return torch.autograd.grad(function(x).sum(), x)[0]

    x = sample().requires_grad_()
    assert_close(
        vmap(lambda s: gradient(case.function, x * 1) * s)(sample()[:2]),
        vmap(lambda s: gradient(case.oracle, x * 1) * s)(sample()[:2]),
    )


def test_captured_tensor(case):
    """A tensor from an outer level that the function captures is differentiated at its own level."""

    w, x = sample(), sample(seed=1)

    def outer(function):
        return lambda w: grad(lambda x: (function(x * w) * function(w)).sum())(x).sum()

    assert_close(grad(outer(case.function))(w), grad(outer(case.oracle))(w))
    assert_close(jacfwd(outer(case.function))(w), jacfwd(outer(case.oracle))(w))


@pytest.mark.parametrize("name", ["cube", "nested", "sin_cos", "matmul", "exp", "norm"])
def test_vjp_function_after_its_level_has_ended(name):
    """The function that torch.func.vjp returns may be called later: alone, batched, differentiated, and twice."""
    case = CASES[name]
    x, g = sample(), sample(seed=1)
    pulls = [vjp(function, x)[1] for function in case]
    for use in (
        lambda pull: pull(g)[0],
        lambda pull: vmap(pull)(torch.eye(3, dtype=x.dtype))[0],
        lambda pull: jvp(lambda g: pull(g)[0], (g,), (g,))[1],
        lambda pull: grad(lambda g: pull(g)[0].sum())(g),
        lambda pull: jacrev(lambda g: pull(g)[0])(g),
        lambda pull: pull(g)[0],
    ):
        assert_close(*(use(pull) for pull in pulls))


def test_operator_on_a_tensor_of_a_level_that_has_ended():
    """A tensor that leaked out of a transform is an ordinary one again."""
    leaked = []

    def function(x):
        leaked.append(x)
        return (x**2).sum()

    x = sample()
    grad(function)(x)
    vjp(function, x)
    for tensor in leaked:
        assert_close(Cube.apply(tensor), x**3)
        assert_close(grad(lambda w, tensor=tensor: Cube.apply(w * tensor).sum())(x), 3 * x**2 * x**3)
    w = x.clone().requires_grad_()
    Cube.apply(w * leaked[0]).sum().backward()
    assert_close(w.grad, 3 * x**2 * x**3)


def test_nested_operator_in_a_vjp_called_later():
    """The operator inside the vjp rule runs when the level of its saved tensors has ended."""
    x = sample()
    pull = vjp(Nested.apply, x)[1]
    assert_close(pull(torch.ones_like(x))[0], 4 * x**3)
    twice = vjp(lambda x: vjp(Nested.apply, x)[1](torch.ones_like(x))[0], x)[1]
    assert_close(twice(torch.ones_like(x))[0], 12 * x**2)


class Network(torch.nn.Module):
    """Two layers with an operator between them."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.second(self.function(self.first(x))).squeeze(-1)


def _networks():
    networks = []
    for function in CASES["cubic_round"]:
        torch.manual_seed(0)
        networks.append(Network(function).double())
    return networks


def test_per_sample_gradients_of_a_module():
    """vmap(grad(functional_call))."""
    x = sample(5)
    results = []
    for network in _networks():
        parameters = {k: v.detach() for k, v in network.named_parameters()}
        loss = grad(lambda p, x, network=network: functional_call(network, p, (x,)).sum())
        results.append(vmap(loss, in_dims=(None, 0))(parameters, x))
    assert_close(*results)


def test_ensemble_of_modules():
    """vmap over stacked parameters, and the gradient through it."""
    x = sample(5)
    results = []
    for function in CASES["cubic_round"]:
        torch.manual_seed(0)
        networks = [Network(function).double() for _ in range(3)]
        parameters, buffers = stack_module_state(networks)

        def call(p, b, x, network=networks[0]):
            return functional_call(network, (p, b), (x,))

        y = vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)
        results.append((y.detach(), *torch.autograd.grad(y.sin().sum(), list(parameters.values()))))
    assert_close(*results)


def test_hessian_vector_products():
    """Forward over reverse, reverse over forward and reverse over reverse agree."""
    x, v = sample(), sample(seed=1)
    loss = lambda x: (CubicRound.apply(x.exp()) * x).sum()  # noqa: E731
    forward_over_reverse = jvp(grad(loss), (x,), (v,))[1]
    reverse_over_forward = grad(lambda x: jvp(loss, (x,), (v,))[1])(x)
    reverse_over_reverse = grad(lambda x: (grad(loss)(x) * v).sum())(x)
    assert_close(forward_over_reverse, reverse_over_forward)
    assert_close(forward_over_reverse, reverse_over_reverse)


@pytest.mark.parametrize("operator", [Cube, CubicRound])
def test_adjoint(operator):
    """<g, jvp(t)> = <vjp(g), t>."""
    x, t, g = sample(4), sample(4, seed=1), sample(4, seed=2)
    left = (g * jvp(operator.apply, (x,), (t,))[1]).sum()
    right = (vjp(operator.apply, x)[1](g)[0] * t).sum()
    assert_close(left, right)


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1, 0)])
@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian])
def test_argnums(transform, argnums):
    """Any choice and order of arguments."""
    a, b = sample(2), sample(3, seed=1)[:, :2]
    assert_close(transform(MatMul.apply, argnums)(b, a), transform(torch.matmul, argnums)(b, a))


def test_several_outputs_through_transforms():
    """A tuple that a transform returns has the derivative of each of its outputs."""
    x = sample()
    results = [jacrev(function)(x) for function in (SinCos.apply, lambda x: (x.sin(), x.cos()))]
    assert_close(tuple(results[0]), tuple(results[1]))
    results = [jacfwd(function)(x) for function in (SinCos.apply, lambda x: (x.sin(), x.cos()))]
    assert_close(tuple(results[0]), tuple(results[1]))


FUNCTIONALIZED = {
    "value": lambda f: f,
    "grad": lambda f: grad(lambda x: f(x).sin().sum()),
    "hessian": lambda f: hessian(f),
    "vmap": lambda f: vmap(f),
}


@pytest.mark.parametrize("name", FUNCTIONALIZED)
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_functionalize(case, name, remove):
    """Right in the functorch dispatch; the fallback has torch's own refusal of every custom Function."""
    x = sample(3) if name == "vmap" else sample()
    inside = torch.func.functionalize(FUNCTIONALIZED[name](case.function), remove=remove)
    if DISPATCH == "fallback":
        with pytest.raises(RuntimeError, match=r"(?i)functionalize"):
            inside(x)
        return
    assert_close(inside(x), FUNCTIONALIZED[name](case.oracle)(x))


@pytest.mark.parametrize("name", ["grad", "vmap"])
def test_transform_of_functionalize(case, name):
    """functionalize below a transform."""
    x = sample(3) if name == "vmap" else sample()
    function = FUNCTIONALIZED[name](torch.func.functionalize(case.function))
    if DISPATCH == "fallback":
        with pytest.raises(RuntimeError, match=r"(?i)functionalize"):
            function(x)
        return
    assert_close(function(x), FUNCTIONALIZED[name](case.oracle)(x))
