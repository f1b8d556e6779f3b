"""Imports point one way: what a newcomer reads first imports nothing that comes later."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fullgrad"
MODULES = {
    ".".join(["fullgrad", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
FAMILIES = (
    "adoption",
    "rounding",
    "clamping",
    "gradients",
    "tracking",
    "functions",
    "straight",
    "losses",
    "implicit",
    "blackbox",
    "soft",
    "spikes",
    "quantizers",
    "sampling",
    "safe",
)
# From the ground up. A module belongs to the layer with the longest name that it begins with.
LAYERS = (
    ("fullgrad._dispatch",),
    ("fullgrad._core",),
    ("fullgrad._engine",),
    ("fullgrad.per_sample",),
    tuple(f"fullgrad.{family}" for family in FAMILIES),
    ("fullgrad._fast",),
    ("fullgrad",),
    ("fullgrad._suite",),
    ("fullgrad.diagnosis",),
    ("fullgrad.cli", "fullgrad.__main__"),
)
ORDER = "fullgrad.soft.order"
ORDER_LAYERS = (
    (f"{ORDER}._numbers",),
    (f"{ORDER}.kernels",),
    (f"{ORDER}.projections",),
    (f"{ORDER}._rows",),
    (f"{ORDER}.methods",),
    (f"{ORDER}._outputs", f"{ORDER}._statistic"),
    (f"{ORDER}._operators",),
    (ORDER,),
)


@functools.cache
def imported(name):
    """The other modules of the package that a module imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "fullgrad":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {other if other in MODULES else node.module for other in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
    return found - {name}


def layer_of(name, layers):
    """The number of a module's layer, by the longest beginning."""
    fits = [(len(start), i) for i, starts in enumerate(layers) for start in starts if f"{name}.".startswith(f"{start}.")]
    return max(fits)[1] if fits else None


def upward(layers, inside):
    """Imports of something that lies higher."""
    arrows = [(name, other) for name in MODULES if name.startswith(inside) for other in imported(name)]
    pairs = [(name, other, layer_of(name, layers), layer_of(other, layers)) for name, other in arrows]
    return [(name, other) for name, other, low, high in pairs if low is not None and high is not None and high > low]


def cycles():
    """Modules that reach themselves. A package's ``__init__`` imports what is in it, and is not what its modules import."""
    done, found = set(), []

    def visit(name, path):
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in imported(name):
                visit(other, [*path, name])
            done.add(name)

    for name in MODULES:
        visit(name, [])
    return found


def test_no_circle():
    """No module imports itself through others."""
    assert cycles() == []


def test_no_arrow_upward():
    """Dispatch, bases, families, their faster versions, the package, the suite, the diagnosis, the command line."""
    assert upward(LAYERS, "fullgrad") == []


def test_order_statistics_by_layer():
    """Order statistics have the layers public pairs, operators, rules, methods, rows, projections, kernels, numbers."""
    assert upward(ORDER_LAYERS, ORDER) == []


def test_the_kit_knows_no_family():
    """``fullgrad.testing`` proves any operator, so it imports none."""
    assert [
        o
        for n in MODULES
        if n.startswith("fullgrad.testing")
        for o in imported(n)
        if o.split(".")[1:2] and o.split(".")[1] in FAMILIES
    ] == []


def test_only_the_dispatch_knows_torchs_private_names():
    """Families import from the ``__init__`` of the dispatch."""
    inner = [
        (n, o)
        for n in MODULES
        for o in imported(n)
        if o.startswith("fullgrad._dispatch.") and not n.startswith("fullgrad._dispatch")
    ]
    assert inner == []


def test_an_arrow_upward_is_seen():
    """The test itself can fail: turned around, the layers are wrong in many places."""
    assert len(upward(LAYERS[::-1], "fullgrad")) > 50
    assert len(upward(ORDER_LAYERS[::-1], ORDER)) > 20
