"""A backward that asks autograd for gradients has the right derivatives, though the tensors that it kept are one graph."""

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import fullgrad

pytestmark = [pytest.mark.short, pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")]

W = torch.tensor([0.7, 1.3], dtype=torch.float64)
C = torch.tensor([1.0, -2.0], dtype=torch.float64)


def product(v, w):
    return v.sin() * w * w


def asks(ctx, g):
    v, w = ctx.saved_tensors
    if torch.is_grad_enabled():
        return torch.autograd.grad(product(v, w), (v, w), g, create_graph=True)
    return g * v.cos() * w * w, g * v.sin() * 2 * w


def asks_always(ctx, g):
    v, w = ctx.saved_tensors
    with torch.enable_grad():
        return torch.autograd.grad((product(v, w) * g).sum(), (v, w))


def asks_for_copies(ctx, g):
    with torch.enable_grad():
        v, w = [t.clone() for t in ctx.saved_tensors]
        needed = [t for t in (v, w) if t.requires_grad]
        found = iter(torch.autograd.grad(product(v, w), needed, g, create_graph=True))
    return tuple(next(found) if t.requires_grad else None for t in (v, w))


def asks_and_handles(ctx, g):
    try:
        return asks_always(ctx, g)
    except Exception:
        return None, None


def asks_by_functional(ctx, g):
    return torch.autograd.functional.vjp(product, ctx.saved_tensors, g, create_graph=True)[1]


TRANSFORMS = {
    "grad": grad,
    "vjp": lambda f: lambda w: vjp(f, w)[1](torch.ones((), dtype=w.dtype)),
    "jacrev": jacrev,
    "vmap of grad": lambda f: lambda w: vmap(grad(f))(torch.stack([w, w + 1])),
    "jvp": lambda f: lambda w: jvp(f, (w,), (C,)),
    "hessian": hessian,
    "reverse over reverse": lambda f: jacrev(grad(f)),
    "reverse over forward": lambda f: jacrev(jacfwd(f)),
    "vmap of hessian": lambda f: lambda w: vmap(hessian(f))(torch.stack([w, w + 1])),
    "third": lambda f: jacrev(jacrev(jacrev(f))),
}


def made(backward):
    def forward(ctx, v, w):
        ctx.save_for_backward(v, w)
        return product(v, w)

    return type("Product", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


@pytest.fixture(params=[asks, asks_always, asks_and_handles, asks_for_copies, asks_by_functional])
def cls(request):
    """A class whose backward asks autograd, and that no call has shown yet."""
    return made(request.param)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("last", [torch.sum, lambda y: y.exp().sum()], ids=["sum", "exp"])
def test_each_path_counts_once(cls, transform, last):
    """The argument ``v`` depends on ``w``: eager autograd with a graph counts that twice, or not at all."""
    of = lambda call: lambda w: (last(call(w * w, w)) * C).sum()  # noqa: E731
    with fullgrad.adopting():
        assert_close(transform(of(cls.apply))(W), transform(of(product))(W))


def test_the_graph_of_a_caller(cls):
    """A pullback at top level has the derivative that autograd takes of it, also by a tensor that no transform differentiates."""
    weight = (W + 0.1).requires_grad_()

    def both(call):
        (pulled,) = vjp(lambda x: call(x * weight, weight).exp().sum(), W)[1](torch.ones((), dtype=W.dtype))
        return pulled.detach(), *torch.autograd.grad(pulled.sum(), weight)

    with fullgrad.adopting():
        assert_close(both(cls.apply), both(product))


def test_operators():
    """An operator of torch.library whose registered backward asks autograd."""

    @torch.library.custom_op("fullgrad_tests::product_that_asks", mutates_args=())
    def op(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return product(v, w)

    op.register_autograd(asks, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    of = lambda call: lambda w: (call(w * w, w).exp() * C).sum()  # noqa: E731
    with fullgrad.adopting():
        assert_close(grad(of(op))(W), grad(of(product))(W))
        assert_close(hessian(of(op))(W), hessian(of(product))(W))


def test_compiled():
    """The same in a compiled transform."""
    of = lambda call: lambda w: (call(w * w, w).exp() * C).sum()  # noqa: E731
    with fullgrad.adopting():
        compiled = torch.compile(grad(of(made(asks).apply)), backend="aot_eager", fullgraph=True)
        assert_close(compiled(W), grad(of(product))(W))


def test_a_neuron_whose_decay_is_learned():
    """spikingjelly's ParametricLIFNode in single-step mode: its voltage depends on the decay, and both are kept."""
    neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
    from spikingjelly.activation_based import functional, surrogate

    node, xs = neuron.ParametricLIFNode(surrogate_function=surrogate.ATan()), torch.tensor([[0.3], [1.7], [1.0]])

    def run(w):
        functional.reset_net(node)
        total = sum(functional_call(node, {"w": w}, (x,)).sum() for x in xs)
        functional.reset_net(node)
        return total

    w = node.w.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(run(w), w)
    w = w.detach()
    with fullgrad.adopting():
        assert_close(grad(run)(w), expected)
        assert_close(vjp(run, w)[1](torch.ones(())), (expected,))
        assert_close(jacrev(run)(w), expected)
        assert_close(vmap(grad(run))(w[None]), expected[None])
