"""Names of modules: one name has one meaning, and an old name says what to write."""

import importlib
import inspect
import pkgutil

import pytest

import fullgrad
from fullgrad import nn

PACKAGES = {
    found.name: importlib.import_module(found.name)
    for found in pkgutil.walk_packages(fullgrad.__path__, "fullgrad.")
    if not any(part.startswith("_") for part in found.name.split("."))
}
MODULES = {name: package for name, package in PACKAGES.items() if f"{name}.".startswith("fullgrad.nn.")}
# Those of a family with a submodule are compared with that family, the others with all else that is public.
OTHERS = {
    name: [other for other in PACKAGES if other not in MODULES] if name == "fullgrad.nn" else [name.replace(".nn.", ".")]
    for name in MODULES
}


def test_every_module_of_modules_is_found():
    assert [*MODULES.values()] == [nn, nn.soft]
    assert {"fullgrad.rounding", "fullgrad.soft", "fullgrad.spikes", "fullgrad.testing"} <= {*OTHERS["fullgrad.nn"]}


@pytest.mark.parametrize("name", MODULES)
def test_a_name_means_one_thing(name):
    """A module shares its name with the operator of its own function, which is in the function's file, and with nothing else."""
    found = []
    for shared in MODULES[name].__all__:
        module = getattr(MODULES[name], shared)
        for other in OTHERS[name]:
            if shared in getattr(PACKAGES[other], "__all__", ()):
                meaning = getattr(PACKAGES[other], shared)
                is_its_operator = inspect.isclass(meaning) and issubclass(meaning, fullgrad.Function)
                if not is_its_operator or meaning.__module__ != inspect.unwrap(module._function).__module__:
                    found.append(f"{name}.{shared} and {other}.{shared}")
    assert found == []


@pytest.mark.parametrize(
    ("old", "new"), [*((f"Soft{name}", name) for name in ("ReLU", "Round", "Sort")), *((n, n) for n in ("Entmax", "Softrelu"))]
)
def test_an_old_name_says_the_new_one(old, new):
    """The classes of relaxations were in `fullgrad.nn` itself."""
    with pytest.raises(AttributeError, match=rf"'fullgrad\.nn' has no attribute '{old}': write fullgrad\.nn\.soft\.{new}$"):
        getattr(nn, old)
    assert inspect.isclass(getattr(nn.soft, new))
    assert not hasattr(nn, "Nothing")


def test_the_name_of_a_surrogate_says_that_of_its_module():
    """Packages of spiking networks call it so."""
    with pytest.raises(AttributeError, match=r"no attribute 'ATan': write fullgrad\.nn\.ATanSpike$"):
        _ = nn.ATan
