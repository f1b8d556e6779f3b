"""Settings of the suite: determinism, the devices, and the slice of exhaustive tests."""

import collections
import datetime
import gc
import getpass
import os
import tempfile
import zlib

import hypothesis
import pytest
import torch

import pytest_fullgrad
from fullgrad._dispatch import preserved_keys
from fullgrad.testing._subject import float64_devices

SLICES = 112
# As many parameters of a test has the short suite, but of one marked `short`, of which it has all, or one of so many.
PARAMETERS = 3
# The long tests take turns: each runs on one of so many days, or on one of as many as its mark `in_turn` says.
TURNS = 8

# torch's cache of compiled code does not know for which instruction set the code is.
if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}_{capability}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)

# Hypothesis: few examples and always the same by default; many and new ones with --exhaustive.
hypothesis.settings.register_profile("fast", max_examples=60, deadline=None, derandomize=True)
hypothesis.settings.register_profile("exhaustive", max_examples=600, deadline=None, print_blob=True)


def devices() -> list[str]:
    """The available devices; always the CPU."""
    return float64_devices() + ["mps"] * torch.backends.mps.is_available()


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long tests of today, and in CI a slice of the exhaustive ones")
    parser.addoption("--everyday", action="store_true", help="the short and the long tests")
    parser.addoption("--exhaustive", default="", help="'all', or K/N for the K-th of N slices of the exhaustive tests")


def exhaustive_slice(config) -> tuple[int, int] | None:
    """The slice of the exhaustive tests that runs: none by default, with ``--long`` in CI one that changes with the day."""
    wanted = config.getoption("--exhaustive")
    if wanted == "all":
        return 0, 1
    if wanted:
        part, count = wanted.split("/")
        return int(part) % int(count), int(count)
    if os.environ.get("CI") and config.getoption("--long"):
        return datetime.date.today().toordinal() % SLICES, SLICES
    return None


def pytest_configure(config):
    # An installed wheel has it as an entry point, a clone whose installation is older has not.
    if pytest_fullgrad not in config.pluginmanager.get_plugins():
        config.pluginmanager.register(pytest_fullgrad, "fullgrad")
    hypothesis.settings.load_profile("fast" if not config.getoption("--exhaustive") else "exhaustive")


def pytest_report_header(config):
    from fullgrad._dispatch import DISPATCH, MISSING

    part = exhaustive_slice(config)
    chosen = "none" if part is None else f"slice {part[0]} of {part[1]}"
    missing = f", missing {', '.join(MISSING)}" if MISSING else ""
    return (
        f"torch {torch.__version__}, dispatch {DISPATCH!r}{missing}, devices {', '.join(devices())}, exhaustive tests: {chosen}"
    )


def short_ones(items) -> list:
    """The short suite's tests of one function: some parameters, by the hash of their names, so that where there are
    several every value of each has its turn; all, or one of so many, where the function is marked `short`; the first ones where
    `long` says so.
    """
    others = [item for item in items if not item.get_closest_marker("long")]
    if not others:
        return items[: items[0].get_closest_marker("long").kwargs.get("but", 0)]
    mark = others[0].get_closest_marker("short")
    count = PARAMETERS if mark is None else max(PARAMETERS, len(others) // mark.kwargs.get("of", 1))
    return sorted(others, key=lambda item: zlib.crc32(item.nodeid.encode()))[:count]


def has_turn(item) -> bool:
    """Whether a test runs with ``--long`` today."""
    mark = item.get_closest_marker("in_turn")
    days = TURNS if mark is None else mark.args[0]
    return (zlib.crc32(item.nodeid.encode()) - datetime.date.today().toordinal()) % days == 0


def pytest_collection_modifyitems(config, items):
    part, functions = exhaustive_slice(config), collections.defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("exhaustive", "peers", "adopting")):
            functions[item.nodeid.partition("[")[0]].append(item)
    everyday = {item for tests in functions.values() for item in tests}
    short = {item for tests in functions.values() for item in short_ones(tests)}
    kept, dropped = [], []
    for item in items:
        if item in everyday:
            runs = config.getoption("--everyday") or config.getoption("--long") != (item in short)
            if runs and config.getoption("--long") and not config.getoption("--everyday"):
                runs = has_turn(item)
        else:
            runs = part is not None and zlib.crc32(item.nodeid.encode()) % part[1] == part[0]
        (kept if runs else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_collection_finish(session):
    """Make garbage collection rare: tracing makes objects by the million, and by default a tenth of its time goes to the garbage
    collector, which looks at them and at all that is imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True)
def _fresh():
    """Give every test the same random numbers and dispatch keys, with nothing compiled, on one thread per process."""
    # torch.manual_seed formats a stack for each device that is not there, as long as every other test.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(0)
    torch.set_num_threads(1)
    torch.compiler.reset()
    with preserved_keys():
        yield
    torch.compiler.reset()


@pytest.fixture(params=devices())
def device(request) -> str:
    """Each available device."""
    return request.param
