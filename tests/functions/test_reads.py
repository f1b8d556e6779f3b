"""What functions read, on which compiled code is guarded: a number in any place that Python has for one."""

import dataclasses
import functools
import types

import numpy
import pytest
from torch import nn

from fullgrad._engine.guard import Reads

NUMBER, NUMBERS = 1.5, {"k": 1.5}


class Holder:
    """An object with a number, which its method reads."""

    def __init__(self, k=1.5):
        self.k, self.inner, self.numbers = k, types.SimpleNamespace(k=k), {"k": k}

    @property
    def doubled(self):
        return 2 * self.k

    def times(self, x):
        return self.k * x

    def times_inner(self, x):
        return self.inner.k * x

    def times_number(self, x):
        return self.numbers["k"] * x

    def __call__(self, x):
        return self.k * x


class Slots:
    """An object without a dict."""

    __slots__ = ("k",)

    def __init__(self):
        self.k = 1.5


class Base:
    """A class with a number."""

    k = 1.5


class Derived(Base):
    """A class that inherits it."""


@dataclasses.dataclass
class Data:
    """A dataclass."""

    k: float = 1.5


class Module(nn.Module):
    """A module."""

    def __init__(self):
        super().__init__()
        self.k = 1.5

    def forward(self, x):
        return self.k * x


def set_global(k):
    global NUMBER
    NUMBER = k


def variable():
    k = 1.5

    def change(value):
        nonlocal k
        k = value

    return lambda x: k * x, change


def default():
    def f(x, k=1.5):
        return k * x

    return f, lambda k: setattr(f, "__defaults__", (k,))


def keyword_default():
    def f(x, *, k=1.5):
        return k * x

    return f, lambda k: setattr(f, "__kwdefaults__", {"k": k})


def own_attribute():
    def f(x):
        return f.k * x

    f.k = 1.5
    return f, lambda k: setattr(f, "k", k)


def attribute_of_a_helper():
    f = own_attribute()[0]
    return lambda x: f(x) + 1, lambda k: setattr(f, "k", k)


def of(holder, f, change=setattr):
    """A function of a holder and a tensor, as one of the tensor."""
    return lambda: (lambda x: f(holder, x), lambda k: change(holder, "k", k))


def method(name, change):
    def make():
        holder = Holder()
        return getattr(holder, name), lambda k: change(holder, k)

    return make


def partial():
    numbers = {"k": 1.5}
    return functools.partial(lambda numbers, x: numbers["k"] * x, numbers), lambda k: numbers.update(k=k)


def set_item(holder, key, value):
    holder[key] = value


def replace_data(holder, _, value):
    holder[0] = Data(value)


MODULE = types.ModuleType("settings")
MODULE.k = 1.5
PLACES = {
    "variable": variable,
    "default": default,
    "keyword default": keyword_default,
    "global": lambda: (lambda x: NUMBER * x, set_global),
    "global dict": lambda: (lambda x: NUMBERS["k"] * x, lambda k: NUMBERS.update(k=k)),
    "attribute of self": method("times", lambda holder, k: setattr(holder, "k", k)),
    "attribute of an attribute of self": method("times_inner", lambda holder, k: setattr(holder.inner, "k", k)),
    "dict of self": method("times_number", lambda holder, k: holder.numbers.update(k=k)),
    "object": of(Holder(), lambda holder, x: holder.k * x),
    "property": of(Holder(), lambda holder, x: holder.doubled * x),
    "object that is called": lambda: (holder := Holder(), lambda k: setattr(holder, "k", k)),
    "slots": of(Slots(), lambda holder, x: holder.k * x),
    "dataclass": of(Data(), lambda holder, x: holder.k * x),
    "another dataclass in a list": of([Data()], lambda holder, x: holder[0].k * x, replace_data),
    "namespace, by its name": of(types.SimpleNamespace(k=1.5), lambda holder, x: getattr(holder, "k") * x),  # noqa: B009
    "dict": of({"k": 1.5}, lambda holder, x: holder["k"] * x, set_item),
    "new entry of a dict": of({}, lambda holder, x: holder.get("k", 1.5) * x, set_item),
    "list": of([1.5], lambda holder, x: holder[0] * x, lambda holder, _, k: set_item(holder, 0, k)),
    "tuple in a list": of([(1.5,)], lambda holder, x: holder[0][0] * x, lambda holder, _, k: set_item(holder, 0, (k,))),
    "class": of(Base, lambda holder, x: holder.k * x),
    "inherited class attribute": lambda: ((lambda d: lambda x: d.k * x)(Derived()), lambda k: setattr(Base, "k", k)),
    "partial": partial,
    "function": own_attribute,
    "function that is called": attribute_of_a_helper,
    "module of Python": of(MODULE, lambda holder, x: holder.k * x),
    "module of torch": of(Module(), lambda holder, x: holder.k * x),
    "module of torch that is called": lambda: (module := Module(), lambda k: setattr(module, "k", k)),
    "number of numpy": of(
        types.SimpleNamespace(k=1.5), lambda h, x: float(h.k) * x, lambda h, _, k: setattr(h, "k", numpy.float32(k))
    ),
    "array": of(numpy.array([1.5]), lambda h, x: float(h[0]) * x, lambda h, _, k: set_item(h, 0, k)),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_a_function_reads_is_found(place):
    """A change of the number is seen, in whatever place it is, and without one nothing is."""
    f, change = PLACES[place]()
    reads = Reads(f)
    before = reads.now
    assert reads.now == before
    change(7.0)
    try:
        assert reads.now != before
    finally:
        change(1.5)
