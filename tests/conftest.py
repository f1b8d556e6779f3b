"""Settings of the suite: determinism, the devices, and the slice of exhaustive tests."""

import collections
import gc
import getpass
import math
import os
import tempfile
import zlib

import hypothesis
import pytest
import torch

import pytest_fullgrad
from fullgrad._dispatch import preserved_keys
from fullgrad.testing._subject import float64_devices

# As many parameters of a test has the short suite, but of one marked `short`, of which it has all, or one of so many.
PARAMETERS = 2
# The marks of tests that are not in the short suite, and of those that run when they are asked for.
EXHAUSTIVE = ("exhaustive", "peers", "adopting", "clients")
LATER = ("long", *EXHAUSTIVE)

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
    parser.addoption("--long", action="store_true", help="the long tests alone")
    parser.addoption("--everyday", action="store_true", help="the short and the long tests")
    parser.addoption("--all-packages", action="store_true", help="a test fails that is skipped for want of a package")
    parser.addoption("--exhaustive", default="", help="'all', or K/N for the K-th of N slices of the exhaustive tests")


def exhaustive_slice(config) -> tuple[int, int] | None:
    """The slice of the exhaustive tests that runs; None by default."""
    wanted = config.getoption("--exhaustive")
    if not wanted:
        return None
    part, count = wanted.split("/") if wanted != "all" else (0, 1)
    return int(part) % int(count), int(count)


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
    `long` or `exhaustive` says so.
    """
    others = [item for item in items if not any(map(item.get_closest_marker, LATER))]
    if not others:
        return items[: max(mark.kwargs.get("but", 0) for mark in map(items[0].get_closest_marker, LATER) if mark)]
    mark = others[0].get_closest_marker("short")
    count = PARAMETERS if mark is None else max(PARAMETERS, len(others) // mark.kwargs.get("of", 1))
    return shuffled(others)[:count]


def left_to_the_exhaustive(items) -> list:
    """The long tests of one function, of which one of so many stays one where it is marked `sampled`."""
    mark = items[0].get_closest_marker("sampled") if items else None
    return shuffled(items)[math.ceil(len(items) / mark.kwargs["of"]) :] if mark else []


def shuffled(items) -> list:
    """Tests in an order in which each value of several parameters has its turn, always the same one."""
    return sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode()))


def pytest_collection_modifyitems(config, items):
    part, functions = exhaustive_slice(config), collections.defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    short = {item for tests in functions.values() for item in short_ones(tests)}
    others = [[item for item in tests if item not in short] for tests in functions.values()]
    exhaustive = {item for tests in others for item in left_to_the_exhaustive(tests)}
    kept, dropped = [], []
    for item in items:
        if item in exhaustive or (item not in short and any(map(item.get_closest_marker, EXHAUSTIVE))):
            runs = part is not None and zlib.crc32(item.nodeid.encode()) % part[1] == part[0]
        else:
            runs = config.getoption("--everyday") or config.getoption("--long") != (item in short)
        (kept if runs else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.skipped and item.config.getoption("--all-packages"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "could not import" in reason or "not installed" in reason:
            report.outcome, report.longrepr = "failed", reason
    return report


def pytest_collection_finish(session):
    """Make garbage collection rare: tracing makes objects by the million, and by default a tenth of its time goes to the garbage
    collector, which looks at them and at all that is imported. No test unfreezes these: all later ones would pay for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure():
    gc.unfreeze()  # or the bindings of Triton report leaks


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
