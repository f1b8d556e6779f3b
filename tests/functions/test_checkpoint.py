"""A function computed again in its derivative: its own numbers at every order, with its inputs alone kept."""

import functools
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jvp, vmap
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing import assert_close

import fullgrad
from fullgrad._dispatch import innermost
from tests.functions.transforms import NAMES, X, derivative
from tests.operators import Cube


class Block(nn.Module):
    """A layer that is checkpointed where it is asked to be."""

    def __init__(self, how=None):
        super().__init__()
        self.linear, self.scale, self.how = nn.Linear(3, 3), nn.Parameter(torch.tensor(0.7)), how

    def compute(self, x):
        return torch.tanh(self.linear(x)) * fullgrad.quantizers.lsq(x, self.scale, -8, 7) + x

    def forward(self, x):
        ways = {
            None: self.compute,
            "method": lambda x: fullgrad.checkpoint(self.compute, x),
            "closure": lambda x: fullgrad.checkpoint(lambda x: self.compute(x), x),
            "partial": lambda x: fullgrad.checkpoint(functools.partial(Block.compute, self), x=x),
            "global": lambda x: fullgrad.checkpoint(lambda x: GLOBAL[0].compute(x), x),
            "hidden": lambda x: fullgrad.checkpoint(lambda x: HIDDEN[0]().compute(x), x),
        }
        GLOBAL[:], HIDDEN[:] = [self], [weakref.ref(self)]
        return ways[self.how](x)


GLOBAL, HIDDEN = [], []
WAYS = ["method", "closure", "partial", "global", "hidden"]


def model(how):
    torch.manual_seed(0)
    return nn.Sequential(Block(how), nn.Linear(3, 3), nn.Tanh()).double()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", WAYS)
def test_its_own_numbers(how, name):
    """A checkpoint changes no number, wherever the function finds its parameters."""
    assert_close(derivative(name, model(how)), derivative(name, model(None)))


@pytest.mark.parametrize("how", WAYS)
def test_parameters_get_their_gradients(how):
    """Of first and second order in eager autograd."""
    found = []
    for net in (model(how), model(None)):
        parameters = list(net.parameters())
        grads = torch.autograd.grad((net(X) ** 3).sum(), parameters, create_graph=True)
        found.append([*grads, *torch.autograd.grad(sum([(g**2).sum() for g in grads]), parameters)])
    assert_close(*found)


@pytest.mark.parametrize("how", WAYS[:-1])
def test_per_sample_gradients_of_parameters(how):
    """`functional_call` has ended when the backward runs; the function gets the parameters that it had."""
    found = []
    for net in (model(how), model(None)):
        own = {k: 2 * v.detach() for k, v in net.named_parameters()}
        found.append(vmap(grad(lambda p, x, net=net: (functional_call(net, p, (x,)) ** 2).sum()), (None, 0))(own, X))
    assert_close(*found)


def test_parameters_that_are_not_found_again_are_an_error():
    """Where the function hides its module, and `functional_call` has ended."""
    net = model("hidden")
    own = {k: 2 * v.detach() for k, v in net.named_parameters()}
    with pytest.raises(RuntimeError, match=r"checkpoint: <lambda> captures a tensor .*Pass the tensor"):
        grad(lambda p: functional_call(net, p, (X,)).sum())(own)


class Scaled(fullgrad.Elementwise):
    """A user's operator of two tensors."""

    reads: ClassVar = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x, s):
        return torch.sin(x * s)

    @staticmethod
    def vjp_term(i, v, x, s):
        return v * torch.cos(x * s) * (s if i == 0 else x)


class WithIndex(Cube):
    """A user's operator of two results, of which one is an index."""

    @staticmethod
    def forward(x):
        return x * x * x, x.argmax(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        Cube.setup_context(ctx, inputs, output)

    @staticmethod
    def vjp(ctx, g, _):
        return Cube.vjp(ctx, g)

    @staticmethod
    def jvp(ctx, t):
        return Cube.jvp(ctx, t), None

    @staticmethod
    def vmap(info, in_dims, x):
        return WithIndex.apply(x.movedim(in_dims[0], 0)), (0, 0)


OWN = {
    "Elementwise": lambda w: Scaled.apply(w, 0.5),
    "Function": Cube.apply,
    "two results": lambda w: WithIndex.apply(w)[0] * WithIndex.apply(w)[1],
    "of the package": fullgrad.Round.apply,
    "straight_through": fullgrad.straight_through(torch.round, torch.sin),
}


class OfOperator(nn.Module):
    """A layer whose parameter meets no function of torch before an operator of the user."""

    def __init__(self, op, how):
        super().__init__()
        self.w, self.op, self.how = nn.Parameter(X[1].clone()), op, how

    def compute(self, x):
        return self.op(self.w) * x

    def forward(self, x):
        if self.how == "torch's":
            return torch.utils.checkpoint.checkpoint(self.compute, x, use_reentrant=False).sum()
        ways = {
            "plain": self.compute,
            "checkpoint": lambda x: fullgrad.checkpoint(self.compute, x),
            "straight_through": lambda x: fullgrad.straight_through(self.compute, self.compute)(x),
            "with_reference": lambda x: fullgrad.with_reference(self.compute, self.compute, vmap_method="map")(x),
        }
        return ways[self.how](x).sum()


@pytest.mark.parametrize("how", ["checkpoint", "straight_through", "with_reference", "torch's"])
@pytest.mark.parametrize("op", list(OWN))
def test_a_parameter_that_an_operator_of_the_user_takes(op, how):
    """It is an input, as one that a function of torch takes, in every transform."""
    found = []
    for kind in (how, "plain"):
        block = OfOperator(OWN[op], kind)
        own = {"w": 2 * block.w.detach()}

        def loss(p, x, block=block):
            return functional_call(block, p, (x,))

        with fullgrad.adopting(checkpoint=True):
            (g,) = torch.autograd.grad(block(X), block.w, create_graph=True)
            results = [g, vmap(grad(loss), (None, 0))(own, X)["w"], jvp(lambda w: loss({"w": w}, X), (own["w"],), (X[0],))]
            results.append(hessian(lambda w: loss({"w": w}, X[0]))(own["w"]))
            results += torch.autograd.grad(g.sum() + 0 * block.w.sum(), block.w)
        found.append(results)
    assert_close(*found)


def test_a_tensor_that_an_operator_takes_and_that_changed():
    """The derivative refuses it, as one that a function of torch takes."""
    table = X[0].clone()
    y = fullgrad.checkpoint(lambda x: Cube.apply(table) * x, X.clone().requires_grad_())
    table.mul_(2)
    with pytest.raises(RuntimeError, match="in place"):
        y.sum().backward()


def test_tensors_that_it_closes_over():
    """Each is an input: of autograd, of a transform, with a tangent or a batch."""

    def f(x, w, check=fullgrad.checkpoint):
        return check(lambda x: torch.sin(w * x) * w.sum(), x)

    def plain(x, w):
        return f(x, w, lambda f, x: f(x))

    for run in (
        lambda f: grad(lambda w: f(X[0], w).sum())(X[1]),
        lambda f: hessian(lambda w: f(X[0], w).sum())(X[1]),
        lambda f: jvp(lambda w: f(X[0], w), (X[1],), (X[0],))[1],
        lambda f: vmap(lambda w: grad(lambda x: f(x, w).sum())(X[0]))(X),
        lambda f: grad(lambda x: vmap(lambda w: f(x, w))(X).sum())(X[0]),
        lambda f: grad(lambda x: vmap(f)(x, X).sum())(X.flip(0)),
        lambda f: vmap(grad(lambda w: vmap(lambda x: f(x, w))(X).sum()))(X),
    ):
        assert_close(run(f), run(plain))
    w = X[1].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda w: f(X[0], w), w)


def test_a_variable_of_a_loop():
    """A lambda that names it computes with the one of its own round in the derivative, too."""
    layers, factors = [nn.Linear(3, 3).double() for _ in range(3)], [2.0, 3.0, 4.0]

    def run(check):
        def f(x):
            for layer, factor in zip(layers, factors, strict=True):
                x = check(lambda x: torch.tanh(layer(x)) * factor, x)  # noqa: B023
            return x.sum()

        return torch.autograd.grad(f(X), layers[0].weight), vmap(grad(f))(X)

    assert_close(run(fullgrad.checkpoint), run(lambda f, x: f(x)))


def test_nested():
    """A checkpoint in a checkpoint, and in torch's."""

    def f(x):
        return fullgrad.checkpoint(lambda x: fullgrad.checkpoint(torch.sin, x) * x, x)

    assert_close(vmap(hessian(lambda x: f(x).sum()))(X), vmap(hessian(lambda x: (x.sin() * x).sum()))(X))
    x = X.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False).sum().backward()
    assert_close(x.grad, X.cos() * X + X.sin())


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_it_draws_the_same_again(randomness):
    """Dropout in the derivative is that of the value; the generator goes on as without a checkpoint."""

    def run(check):
        torch.manual_seed(1)
        found = [vmap(grad(lambda x: check(lambda x: nn.functional.dropout(x * x), x).sum()), randomness=randomness)(X)]
        x = X.clone().requires_grad_()
        (g,) = torch.autograd.grad(check(lambda x: torch.rand(3) * x**2, x).sum(), x, create_graph=True)
        return [*found, g, torch.autograd.grad(g.sum(), x)[0], torch.rand(2)]

    assert_close(run(fullgrad.checkpoint), run(lambda f, x: f(x)))


def test_structures():
    """Arguments and results are any structure; a number is what it was."""
    x = X.clone().requires_grad_()

    def f(tree, n, scale=1):
        return {"a": tree["x"][0] * n, "b": (tree["x"][1].long(), scale)}

    out = fullgrad.checkpoint(f, {"x": x}, 3, scale=2)
    integers, scale = out["b"]
    assert (integers.dtype, integers.requires_grad, scale) == (torch.int64, False, 2)
    out["a"].sum().backward()
    assert_close(x.grad, torch.tensor([[3.0], [0.0]], dtype=torch.float64).expand(2, 3))


def test_memory():
    """Of 8 blocks under vmap(grad) the inputs are kept, and nothing between them."""
    inside, ends = [], []

    def note(where, t):
        with torch._C.DisableTorchFunction():
            where.append(StorageWeakRef(innermost(t).untyped_storage()))
        return t

    def block(x):
        return note(ends, note(inside, torch.tanh(note(inside, x * 1.5))) + x)

    def loss(x, check=fullgrad.checkpoint):
        inside.clear()
        for _ in range(8):
            x = check(block, x)
        alive.append(sum([not r.expired() for r in inside]))
        return x.sum()

    for run in (lambda f, x: vmap(grad(f))(x), lambda f, x: torch.autograd.grad(f(x), x)):
        alive = []
        run(loss, X.clone().requires_grad_())
        run(lambda x: loss(x, lambda f, x: f(x)), X.clone().requires_grad_())
        assert alive[0] == 0
        assert alive[1] >= 8


def test_compiled():
    """It is torch's own there."""
    f = model("method")
    x = X.clone().requires_grad_()
    found = torch.autograd.grad(torch.compile(f, backend="aot_eager", fullgraph=True)(x).sum(), x)
    assert_close(found, torch.autograd.grad(model(None)(x).sum(), x))


class Own(torch.autograd.Function):
    """Another package's Function."""

    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g, g


def test_errors():
    """What would be lost or done twice is refused."""
    with pytest.raises(TypeError, match="`f` must be callable, got a value of type int"):
        fullgrad.checkpoint(3, X)
    norm = nn.BatchNorm1d(3).double()
    before = norm.running_mean.clone()
    with pytest.raises(RuntimeError, match=r"checkpoint: <lambda> changes BatchNorm1d.* in place"):
        fullgrad.checkpoint(lambda x: norm(x), X.clone().requires_grad_())
    norm.eval(), norm.running_mean.copy_(before)
    fullgrad.checkpoint(norm, X.clone().requires_grad_()).sum().backward()
    with pytest.raises(RuntimeError, match="changes an argument in place"):
        fullgrad.checkpoint(lambda x: x.detach().mul_(2), X.clone().requires_grad_())
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    hidden = weakref.ref(w)
    for unseen in (lambda x: Own.apply(x, hidden()), lambda x: grad(lambda v: v.sin().sum())(hidden()) * x):
        with pytest.raises(RuntimeError, match="checkpoint: <lambda> captures a tensor"):
            fullgrad.checkpoint(unseen, X)


@pytest.mark.parametrize("order", [1, 2])
def test_memory_of_the_derivative(order):
    """While derivatives are computed the numbers of one block are held, though torch.func records every backward."""
    alive, most = [], []

    def block(x):
        alive[:] = [r for r in alive if not r.expired()]
        most.append(len(alive))
        for _ in range(4):
            x = torch.sin(x) * 1.5
            with torch._C.DisableTorchFunction():
                alive.append(StorageWeakRef(innermost(x).untyped_storage()))
        return x

    def loss(x, check):
        for _ in range(8):
            x = check(block, x)
        return x.sum()

    def run(check):
        alive.clear(), most.clear()
        gradient = grad(lambda x: loss(x, check))
        _ = gradient(X) if order == 1 else torch.func.jvp(gradient, (X,), (X,))
        return max(most)

    assert run(lambda f, x: f(x)) >= 7 * 4
    assert run(fullgrad.checkpoint) < 2 * 4


class Remembering(torch.nn.Module):
    """It keeps what it computed last, and never reads it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x):
        self.last = torch.sin(self.weight * x)
        return self.last


@pytest.mark.parametrize(
    "transform", [grad, lambda f: vmap(grad(f), (None, 0)), hessian, jacfwd], ids=["grad", "batch", "hessian", "jacfwd"]
)
def test_a_tensor_that_a_module_keeps_of_a_transform_that_has_ended_is_not_captured(transform):
    """Parts that are computed again one after the other, as snntorch's neurons over time, of which each keeps one."""
    module, x = Remembering(), torch.linspace(0.1, 1, 4, dtype=torch.float64)

    def loss(call, p, x):
        weights = {"weight": p}
        for _ in range(3):
            x = call(lambda x: torch.func.functional_call(module, weights, (x,)), x)
        return x.sum()

    args = module.weight.detach(), x
    expected = transform(lambda *args: loss(lambda f, x: f(x), *args))(*args)
    torch.testing.assert_close(transform(lambda *args: loss(fullgrad.checkpoint, *args))(*args), expected)
