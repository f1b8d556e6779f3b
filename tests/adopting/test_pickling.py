"""What `adopt` returns is copied, pickled, saved and sent to other processes."""

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.func import hessian

import fullgrad
from tests.adopting.functions import SavesInput, WithJvp, X
from tests.adopting.operators_of_packages import rms_norm

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle in C": lambda f: pickle.loads(pickle.dumps(f)),
    "pickle in Python": lambda f: pickle.loads(pickle._dumps(f)),  # pyright: ignore
    "cloudpickle": lambda f: pickle.loads(cloudpickle.dumps(f)),
}


class Renamed(SavesInput):
    """A class whose name the adopted function takes."""


globals()["Renamed"] = fullgrad.adopt(Renamed)


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def second(f):
    return hessian(lambda x: f(x).sum())(X)


def local():
    class Local(SavesInput):
        """A class that no module has by its name."""

    return Local


@pytest.mark.short
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize(
    "adopted",
    [
        fullgrad.adopt(SavesInput),
        fullgrad.adopt(WithJvp, strict=True),
        fullgrad.adopt(SavesInput, allow_loop=False),
        Renamed,
        fullgrad.adopt(rms_norm),
        fullgrad.adopt(torch.ops.fullgradtests.rms_norm),
        fullgrad.adopt(torch.ops.fullgradtests.rms_norm.default, allow_loop=False),
    ],
    ids=repr,
)
def test_a_copy_is_the_function_itself(adopted, how):
    """Copies and pickles of an adopted class or operator, with its options, are itself."""
    assert COPIES[how](adopted) is adopted


@pytest.mark.parametrize("how", [saved, copy.deepcopy])
def test_a_module_that_holds_adopted_classes(how):
    """It is saved and copied, with the derivatives."""
    module: Any = nn.Module()
    module.spike, module.kernel = fullgrad.adopt(SavesInput), fullgrad.adopt(SavesInput, reference=torch.tanh)
    other = how(module)
    for f, g in ((module.spike, other.spike), (module.kernel, other.kernel)):
        assert torch.equal(second(f), second(g))


@pytest.mark.parametrize("reference", [None, torch.tanh])
def test_a_class_of_a_function_is_refused_with_the_way_out(reference):
    """Pickle has classes by name; copies and cloudpickle need none."""
    f = fullgrad.adopt(local(), reference=reference)
    for save in (pickle.dumps, pickle._dumps, saved):  # pyright: ignore
        with pytest.raises(pickle.PicklingError, match=r"adopt: local.<locals>.Local .* top level of a module"):
            save(f)
    for how in ("copy", "deepcopy", "cloudpickle"):
        assert torch.equal(COPIES[how](f)(X), f(X))


_DEFINES = """
import torch
@torch.library.custom_op("fullgradpickled::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2
half.register_autograd(lambda ctx, g: g / 2)
"""


def test_an_operator_is_imported_where_it_is_unknown(tmp_path):
    """A process that has not imported the module of an operator imports it, or says which operator is missing."""
    (tmp_path / "defines_half.py").write_text(_DEFINES)
    write = "import sys, pickle, fullgrad, defines_half; pickle.dump(fullgrad.adopt(defines_half.half), sys.stdout.buffer)"
    read = "import sys, pickle, torch; f = pickle.load(sys.stdin.buffer); print(torch.func.grad(f)(torch.tensor(3.0)))"

    def run(code, data=None):
        found = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, cwd=tmp_path)
        return found.stdout, found.stderr.decode()

    data, error = run(write)
    assert data, error
    assert run(read, data)[0].decode().strip() == "tensor(0.5000)"
    (tmp_path / "defines_half.py").unlink()
    assert "the pickled operator fullgradpickled::half is not defined here" in run(read, data)[1]


def test_an_adopted_class_keeps_no_class_alive():
    """A class without other users is collected with its function."""
    import gc
    import weakref

    class Short(Function):
        """A class that is defined in a function."""

        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    f = fullgrad.adopt(Short)
    f(X)
    alive = weakref.ref(Short)
    del f, Short
    gc.collect()
    assert alive() is None
