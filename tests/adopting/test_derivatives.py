"""Every transform of an adopted class gives what eager autograd gives of the class."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

import fullgrad
from tests.adopting import oracle
from tests.adopting.functions import CASES

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning", "ignore:There is a performance drop:UserWarning"),
    pytest.mark.short,
]


@pytest.fixture(params=CASES)
def case(request):
    """The adopted function, the class's own, and a vector to differentiate at."""
    cls, inputs = CASES[request.param]
    adopted, x = oracle.bound(fullgrad.adopt(cls), inputs)
    return adopted, oracle.bound(cls.apply, inputs)[0], x


def test_first_derivatives(case):
    """grad, jacrev, jacfwd, jvp and forward mode without torch.func are the class's own backward."""
    adopted, eager, x = case
    expected = oracle.gradient(eager, x)
    assert_close(grad(adopted)(x), expected)
    assert_close(jacrev(adopted)(x), expected)
    assert_close(jacfwd(adopted)(x), expected)
    assert_close(oracle.gradient(adopted, x), expected)
    t = x.cos()
    assert_close(jvp(adopted, (x,), (t,)), (eager(x), expected @ t))
    with forward_ad.dual_level():
        assert_close(forward_ad.unpack_dual(adopted(forward_ad.make_dual(x, t))).tangent, expected @ t)


@pytest.mark.parametrize("nesting", [(jacrev, jacrev), (jacfwd, jacrev), (jacrev, jacfwd), (jacfwd, jacfwd)])
def test_second_derivatives(case, nesting):
    """Second derivatives in every order of reverse and forward mode are eager double backward."""
    adopted, eager, x = case
    outer, inner = nesting
    assert_close(outer(inner(adopted))(x), oracle.hessian(eager, x))


def test_third_derivative(case):
    """The third derivative is triple backward."""
    adopted, eager, x = case
    vector = torch.linspace(-1, 1, len(x), dtype=x.dtype)

    def twice(x):
        (g,) = torch.autograd.grad(eager(x), x, create_graph=True)
        return (g * vector).sum() if g.requires_grad else (g * vector).sum() + 0 * x.sum()

    expected = oracle.hessian(twice, x)
    assert_close(hessian(lambda x: (grad(adopted)(x) * vector).sum())(x), expected)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("transform", [lambda f: f, grad, hessian, lambda f: jacrev(jacfwd(f))], ids=["f", "g", "h", "rf"])
def test_batches_are_loops(case, transform):
    """vmap of a value, of a gradient and of a Hessian, in front and in the back, nested and chunked."""
    adopted, eager, x = case
    samples = oracle.batch(x)
    order = {0: lambda f: f, 1: lambda f: lambda x: oracle.gradient(f, x)}
    name = 0 if transform(len) is len else 1 if transform is grad else 2
    single = order.get(name, lambda f: lambda x: oracle.hessian(f, x))(eager)
    expected = torch.stack([single(s) for s in samples])
    assert_close(vmap(transform(adopted))(samples), expected)
    assert_close(vmap(transform(adopted), in_dims=1, chunk_size=2)(samples.T.contiguous()), expected)
    nested = vmap(vmap(transform(adopted)), in_dims=1)(torch.stack([samples, samples * 0.5], 1))
    assert_close(nested[0], expected)


def test_derivatives_of_batches(case):
    """The gradient and the Hessian of a sum over a batch, with transforms outside vmap, are those of eager code."""
    adopted, eager, x = case
    samples = oracle.batch(x)
    expected = torch.stack([oracle.gradient(eager, s) for s in samples])
    total = lambda s: vmap(adopted)(s).sum()  # noqa: E731
    assert_close(grad(total)(samples), expected)
    assert_close(jvp(total, (samples,), (samples.cos(),))[1], (expected * samples.cos()).sum())
    blocks = jacrev(grad(total))(samples)
    assert_close(torch.stack([blocks[i, :, i] for i in range(3)]), torch.stack([oracle.hessian(eager, s) for s in samples]))


def test_shared_inputs(case):
    """An input that all samples share gets the sum of their gradients."""
    adopted, eager, x = case
    scales = torch.tensor([1.0, -0.5, 2.0], dtype=x.dtype)
    total = lambda f: lambda x: sum(f(x) * s for s in scales)  # noqa: E731
    assert_close(grad(lambda x: (vmap(lambda s: adopted(x) * s)(scales)).sum())(x), oracle.gradient(total(eager), x))
