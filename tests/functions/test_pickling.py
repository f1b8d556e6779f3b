"""Functions made by `st`, `grad_replace` and `straight_through` are objects: pickled, copied, saved and sent."""

import copy
import functools
import inspect
import io
import multiprocessing
import pickle

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


MADE = {
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


def test_a_function_without_a_name_is_refused_by_pickle_alone():
    """A lambda cannot be pickled; it can be copied."""
    f = fullgrad.st(lambda x, mode="smooth": signed(x, mode))
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
