"""Functions made of functions are objects: pickled, copied, saved and sent."""

import copy
import functools
import inspect
import io
import multiprocessing
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

import fullgrad
from fullgrad import soft
from fullgrad.testing._subject import equal

X = torch.tensor([-1.2, 0.05, 0.7], dtype=torch.float64)


def step(x):
    """1 where x is positive."""
    return (x > 0).to(x.dtype)


def signed(x, mode="smooth", scale=1.0):
    """A function of a mode."""
    return scale * soft.sign(x, mode=mode)


def spike(x, forward):
    """A function of ``forward``."""
    return step(x) if forward else torch.sigmoid(x)


@fullgrad.st
def decorated(x, mode="smooth"):
    """A module-level function, known by its name."""
    return soft.sign(x, mode=mode)


class Layer(nn.Module):
    """A module whose parameter a straight-through function computes with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.signs = fullgrad.st(self.scaled)

    def scaled(self, x, mode="smooth"):
        return soft.sign(x * self.weight, mode=mode)

    @fullgrad.st
    def forward(self, x, mode="smooth"):
        return self.signs(x) * soft.abs(x, mode=mode)


def cube(x):
    """x^3."""
    return x**3


def gradients_of_cube(inputs, outputs, grads):
    """A backward of x^3, with the slope exp(x)."""
    return (grads * torch.exp(inputs[0]),)


def negated(x):
    """-x."""
    return -x


def cube_and_pullback(x):
    """x^3 with a slope of its own."""
    return x**3, functools.partial(torch.mul, torch.cos(x))


def tangent_of_cube(primals, tangents):
    """A rule of tangents."""
    return cube(*primals), torch.exp(primals[0]) * tangents[0]


def term_of_cube(t, y, x):
    """A rule of one tangent."""
    return torch.exp(x) * t


def forward_of_cube(x):
    """A rule's forward."""
    return cube(x), x


def backward_of_cube(x, g):
    """A rule's backward."""
    return (torch.exp(x) * g,)


def with_rule(make, define, *rules):
    """A function with rules."""
    f = make(cube)
    getattr(f, define)(*rules)
    return f


def iterated(x):
    """A root of z^3 = x."""
    return x.sign() * x.abs() ** (1 / 3)


class Twice(torch.autograd.Function):
    """A Function of torch."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


MADE = {
    "custom_jvp": lambda: with_rule(fullgrad.custom_jvp, "defjvp", tangent_of_cube),
    "custom_jvp by argument": lambda: with_rule(fullgrad.custom_jvp, "defjvps", term_of_cube),
    "custom_vjp": lambda: with_rule(fullgrad.custom_vjp, "defvjp", forward_of_cube, backward_of_cube),
    "custom_gradient": lambda: fullgrad.custom_gradient(cube_and_pullback),
    "with_reference": lambda: fullgrad.with_reference(cube, torch.exp),
    "with_reference and its rule": lambda: fullgrad.with_reference(cube, torch.exp, backward=gradients_of_cube),
    "linear_map": lambda: fullgrad.linear_map(negated, negated),
    "straight_through": lambda: fullgrad.straight_through(step, torch.sigmoid),
    "straight_through of a partial": lambda: fullgrad.straight_through(functools.partial(torch.round, decimals=1), torch.sin),
    "straight_through of a module": lambda: fullgrad.straight_through(step, nn.Softsign()),
    "straight_through of one": lambda: fullgrad.straight_through(step, fullgrad.straight_through(torch.sign, torch.tanh)),
    "st": lambda: fullgrad.st(signed),
    "st of a partial": lambda: fullgrad.st(functools.partial(signed, scale=2.0, mode="c1")),
    "grad_replace": lambda: fullgrad.grad_replace(spike),
    "decorated": lambda: decorated,
}
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": lambda f, n=n: pickle.loads(pickle.dumps(f, n)) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)},
}


@pytest.mark.short
@pytest.mark.parametrize("name", MADE)
def test_a_copy_has_the_value_and_the_derivative(name):
    """Copies, deep copies and pickles by every protocol have the value and the derivative."""
    f = MADE[name]()
    for copied in COPIES.values():
        g = copied(f)
        equal(g(X), f(X))
        equal(vmap(grad(g))(X), vmap(grad(f))(X))
        assert inspect.signature(g) == inspect.signature(f)
        assert (g.__name__, g.__doc__) == (f.__name__, f.__doc__) if hasattr(f, "__name__") else True


def test_what_has_a_name_is_pickled_by_it():
    """A function with a module-level name is pickled by it, decorated or made as an operator, and stays one object."""
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated
    assert pickle.loads(pickle.dumps(Layer.forward)) is Layer.forward


class Ruled(nn.Module):
    """A module that holds functions with rules, which no module has by name."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.tangents = fullgrad.custom_jvp(lambda x: x**3)
        self.tangents.defjvp(lambda p, t: (self.tangents(*p), torch.exp(p[0]) * t[0]))
        self.terms = fullgrad.custom_jvp(lambda x: x**3)
        self.terms.defjvps(lambda t, y, x: torch.exp(x) * t)
        self.gradients = fullgrad.custom_vjp(lambda x: x**3)
        self.gradients.defvjp(lambda x: (self.gradients(x), x), lambda x, g: (torch.exp(x) * g,))
        self.pullback = fullgrad.custom_gradient(lambda x: (x**3, lambda g: torch.exp(x) * g))
        self.method = fullgrad.custom_jvp(self.cube)
        self.method.defjvp(self.rule)
        self.straight = fullgrad.straight_through(lambda x: x**3, torch.exp)
        self.kernel = fullgrad.with_reference(lambda x: x**3, torch.exp)
        self.linear = fullgrad.linear_map(lambda x: -x, lambda g: -g)
        self.adopted = fullgrad.adopt(Twice)
        self.spike = fullgrad.spikes.from_slope(lambda v: torch.exp(-v.abs()))
        self.scaled = lambda x: fullgrad.map_grad(x, lambda g: 3 * g)
        self.root = fullgrad.implicit.root(lambda z, x: z**3 - x)(lambda z, x: iterated(x))
        self.solved = lambda x: self.root(torch.zeros_like(x), x)

    def cube(self, x):
        return x**3 * self.weight.detach()

    def rule(self, primals, tangents):
        return self.cube(*primals), torch.exp(primals[0]) * tangents[0]

    def forward(self, x):
        names = (
            "tangents",
            "terms",
            "gradients",
            "pullback",
            "method",
            "straight",
            "kernel",
            "linear",
            "adopted",
            "scaled",
            "spike",
        )
        return self.weight * sum(getattr(self, name)(x) for name in (*names, "solved"))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, torch.optim.swa_utils.AveragedModel])
def test_modules_that_hold_functions_without_names_are_copied(copied):
    """Copies of a module compute what it does, with its derivatives: an average of a model is a copy of it."""
    module = Ruled()
    other = copied(module)
    equal(other(X), module(X))
    equal(vmap(grad(other))(X), vmap(grad(module))(X))
    assert repr(module.tangents) == "<custom_jvp of <lambda>>"


def test_a_deep_copy_has_its_own_rules():
    """New rules of the original do not reach its copy, whose methods are those of the copied module."""
    module = Ruled()
    other = copy.deepcopy(module)
    module.tangents.defjvp(lambda p, t: (p[0], t[0]))
    equal(grad(other.tangents)(X[2]), X[2].exp())
    assert other.method.rule.__self__ is other


SCRIPT = """
import cloudpickle, subprocess, sys, torch, fullgrad

@fullgrad.custom_jvp
def tangents(x):
    return torch.sin(x)

@tangents.defjvp
def rule(p, t):
    return tangents(*p), 3 * t[0]

gradients = fullgrad.custom_vjp(lambda x: x**3)
gradients.defvjp(lambda x: (gradients(x), x), lambda x, g: (g * x,))

@fullgrad.custom_gradient
def pullback(x):
    return x**2, lambda g: (5 * g,)

@fullgrad.st
def straight(x, mode="smooth"):
    return fullgrad.soft.sign(x, mode=mode)

@fullgrad.implicit.root(lambda z, x: z**3 - x)
def solver(z, x):
    return x.sign() * x.abs() ** (1 / 3)

class Step(fullgrad.Function):
    @staticmethod
    def forward(x):
        return (x > 0).to(x.dtype)
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
    @staticmethod
    def vjp(ctx, g):
        return g * torch.sigmoid(ctx.saved_tensors[0])
    @staticmethod
    def jvp(ctx, t):
        return t * torch.sigmoid(ctx.saved_tensors[0])
    @staticmethod
    def vmap(info, in_dims, x):
        return Step.apply(x), in_dims[0]

class Spike(fullgrad.Elementwise):
    reads = {0: (0,)}
    @staticmethod
    def forward(x):
        return (x > 0).to(x.dtype)
    @staticmethod
    def vjp_term(i, v, x):
        return v * torch.sigmoid(x)

class Narrow(Spike):
    @staticmethod
    def vjp_term(i, v, x):
        return 2 * v * torch.sigmoid(x)

kernel = fullgrad.with_reference(lambda x: x.exp(), torch.exp)
double = fullgrad.linear_map(lambda x: 2 * x, lambda g: 2 * g)
slope = fullgrad.spikes.from_slope(lambda v: torch.sigmoid(v))
functions = [tangents, gradients, pullback, straight, lambda x: solver(torch.zeros_like(x), x), lambda x: Step.apply(x),
             lambda x: Spike.apply(x),
             lambda x: Step.apply(x) + Narrow.apply(x), kernel, double, slope]

def numbers(functions):
    x = torch.tensor([0.5, -1.2])
    transforms = [torch.func.vmap, lambda f: torch.func.vmap(torch.func.grad(f)), torch.func.jacfwd]
    return [transform(f)(x).tolist() for f in functions for transform in transforms]

code = "import sys, pickle; f, numbers = pickle.load(sys.stdin.buffer); print(numbers(f))"
data = cloudpickle.dumps((functions, numbers))
found = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True)
assert found.stdout.decode().strip() == str(numbers(functions)), found.stdout.decode() + found.stderr.decode()
import pickle, copy
assert pickle.loads(pickle.dumps(tangents)) is tangents and copy.deepcopy(tangents) is tangents  # by name, as functions
assert pickle.loads(pickle.dumps(Spike)) is Spike
"""


@pytest.mark.long
def test_cloudpickle_sends_what_a_script_defines(tmp_path):
    """Rules, solvers and operator classes of a script work in a process that has not the script; pickle has them by name."""
    pytest.importorskip("cloudpickle")
    (tmp_path / "script.py").write_text(SCRIPT)
    found = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_modules_that_hold_them_are_saved_and_copied():
    """``torch.save`` of a module; a deep copy computes with the parameters of the copy, not with those of the original."""
    module = nn.Sequential(Layer())
    module[0].step = fullgrad.straight_through(step, torch.sigmoid)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(module)):
        equal(other(X), module(X))
        equal(other[0].step(X), step(X))
        with torch.no_grad():
            other[0].weight.neg_()
        equal(other(X), -module(X))


@pytest.mark.parametrize("maker", [fullgrad.st, fullgrad.custom_jvp])
def test_a_function_without_a_name_is_refused_by_pickle_alone(maker):
    """A lambda cannot be pickled; it can be copied."""
    f = maker(lambda x, mode="smooth": signed(x, mode))
    if maker is fullgrad.custom_jvp:
        f.defjvps(term_of_cube, None)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(f)
    equal(copy.deepcopy(f)(X), f(X))


def test_attributes_of_a_class_are_methods():
    """A function set in or on a class is a method; compiled code needs functions in the body of a class."""

    class Later(nn.Module):
        decorated = fullgrad.st(lambda self, x, mode="smooth": signed(x, mode))

    Later.forward = fullgrad.st(lambda self, x, mode="smooth": signed(x, mode, 2.0))
    assert inspect.isfunction(Later.decorated)
    equal(Later()(X), 2 * Later().decorated(X))


def test_the_representation_names_the_maker_and_the_functions():
    """The representation names the maker and the functions."""
    assert repr(fullgrad.st(signed)) == "<st of signed>"
    assert repr(fullgrad.straight_through(step, torch.sigmoid)).startswith("<straight_through of step, ")


def _gradient(f, x):
    return vmap(grad(f))(x).tolist()


@pytest.mark.long
def test_a_spawned_process_gets_them():
    """Workers that import the module anew can use the functions."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for name in ("straight_through", "st", "decorated"):
            f = MADE[name]()
            assert pool.apply(_gradient, (f, X)) == _gradient(f, X)
