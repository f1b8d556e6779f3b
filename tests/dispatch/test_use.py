"""Threads, pickles and copies."""

import copy
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import grad, jacrev, jvp, vmap
from torch.testing import assert_close

from tests.dispatch.test_outputs import Either
from tests.operators import CASES, Cube, CubicRound, Pair, SinCos, sample

pytestmark = pytest.mark.short

THREADS = 8


def in_threads(work):
    """The results of work(0), …, work(7), each in a thread of its own, all started together."""
    barrier = threading.Barrier(THREADS, timeout=60)

    def run(index):
        barrier.wait()
        return [work(index) for _ in range(20)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [results[-1] for results in pool.map(run, range(THREADS), timeout=120)]


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", CASES)
def test_calls_and_backwards_in_threads(name):
    """Each thread may call the operator and run its own backward pass."""
    case = CASES[name]

    def gradient(function, index):
        x = sample(seed=index).requires_grad_()
        y = function(x)
        return y.detach(), torch.autograd.grad(y.sin().sum(), x)[0]

    assert_close(in_threads(lambda index: gradient(case.function, index)), [gradient(case.oracle, i) for i in range(THREADS)])


# Reverse mode and vmap: the threads share torch's levels of forward mode, so jvp in several fails for its own operators too.
TRANSFORMS = {
    "grad": lambda f, x: grad(lambda x: f(x).sin().sum())(x),
    "jacrev_twice": lambda f, x: jacrev(jacrev(f))(x),
    "vmap": lambda f, x: vmap(f)(x.expand(2, 3)),
    "vmap_grad": lambda f, x: vmap(grad(lambda x: f(x).sum()))(x.expand(2, 3)),
}


@pytest.mark.parametrize("name", ["cubic_round", "nested", "sin_cos", "max"])
def test_transforms_in_threads(name):
    """Threads may run different transforms at the same time."""
    case, names = CASES[name], list(TRANSFORMS)

    def work(function):
        return lambda index: TRANSFORMS[names[index % len(names)]](function, sample(seed=index))

    assert_close(in_threads(work(case.function)), [work(case.oracle)(index) for index in range(THREADS)])


def test_forward_mode_next_to_other_threads():
    """One thread may run forward mode while others run reverse mode."""
    case = CASES["cubic_round"]

    def work(function):
        def one(index):
            x = sample(seed=index)
            return jvp(function, (x,), (x,)) if index == 0 else (function(x), grad(lambda x: function(x).sum())(x))

        return one

    assert_close(in_threads(work(case.function)), [work(case.oracle)(index) for index in range(THREADS)])


def test_types_of_outputs_in_threads():
    """A thread that gets a namedtuple does not change the type that another gets."""

    def work(index):
        x = sample(seed=index).requires_grad_(index % 4 < 2)
        output = Either.apply(x, index % 2 == 0)
        inside = vmap(lambda x: Either.apply(x, index % 2 == 1)[0])(x)
        return type(output), output[1].detach(), inside.detach()

    results = in_threads(work)
    for index, (kind, output, inside) in enumerate(results):
        assert kind is (Pair if index % 2 == 0 else tuple)
        assert torch.equal(output, 3 * sample(seed=index))
        assert torch.equal(inside, 2 * sample(seed=index))


def test_backward_in_another_thread():
    """The forward may run in one thread, the backward in another."""
    leaves = [sample(seed=i).requires_grad_() for i in range(THREADS)]
    losses = [(SinCos.apply(x).sin * CubicRound.apply(x * 3)).sum() for x in leaves]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda loss: loss.backward(), losses))
    for x in leaves:
        y = x.detach()
        assert_close(x.grad, y.cos() * (3 * y).round() + y.sin() * 3 * (3 * y) ** 2)


def test_one_graph_shared_by_threads():
    """Gradients from several threads through one graph add up."""
    x = sample().requires_grad_()
    y = Cube.apply(x).sum()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: y.backward(retain_graph=True), range(THREADS)))
    assert_close(x.grad, THREADS * 3 * x.detach() ** 2)


class Holder(torch.nn.Module):
    """Holds ``MyOp.apply`` as an attribute."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2).double()
        self.operator = CubicRound.apply

    def forward(self, x):
        return self.operator(self.layer(x))


def _pickled(module):
    return pickle.loads(pickle.dumps(module))


def _saved(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("through", [copy.deepcopy, copy.copy, _pickled, _saved])
def test_copies_of_a_module(through):
    """A copy computes the same value and gradient."""
    module = Holder()
    other = through(module)
    assert other.operator is CubicRound.apply
    x, y = sample().requires_grad_(), sample().requires_grad_()
    module(x).sum().backward()
    other(y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert torch.equal(module(x), other(y))


@pytest.mark.parametrize("thing", [Cube, Cube.apply, SinCos.apply(sample())], ids=["class", "apply", "output"])
def test_pickle(thing):
    """The class, its apply and a namedtuple that it returned can be pickled."""
    other = pickle.loads(pickle.dumps(thing))
    if isinstance(thing, tuple):
        assert type(other) is Pair
        assert_close(tuple(other), tuple(thing))
    else:
        assert other is thing


def test_deepcopy_of_a_module_with_a_hook_and_an_operator_in_sequence():
    """A module with a list of functions can be deep-copied."""
    operators = [Cube.apply, CubicRound.apply, SinCos.apply]
    assert copy.deepcopy(operators) == operators
