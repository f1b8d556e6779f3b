"""Settings of the suite: determinism, the devices, and the slice of exhaustive tests."""

import collections
import datetime
import os
import zlib

import hypothesis
import pytest
import torch

from fullgrad._dispatch import preserved_keys
from fullgrad.testing._subject import float64_devices

SLICES = 112

# Hypothesis: few examples and always the same by default; many and new ones with --exhaustive.
hypothesis.settings.register_profile("fast", max_examples=60, deadline=None, derandomize=True)
hypothesis.settings.register_profile("exhaustive", max_examples=600, deadline=None, print_blob=True)


def devices() -> list[str]:
    """The devices at hand: the CPU always."""
    return float64_devices() + ["mps"] * torch.backends.mps.is_available()


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long tests, and in CI today's slice of the exhaustive ones, alone")
    parser.addoption("--exhaustive", default="", help="'all', or K/N for the K-th of N slices of the exhaustive tests")


def exhaustive_slice(config) -> tuple[int, int] | None:
    """Which slice of the exhaustive tests runs: none by default, with ``--long`` one that changes with the day in CI."""
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
    hypothesis.settings.load_profile("fast" if not config.getoption("--exhaustive") else "exhaustive")


def pytest_report_header(config):
    from fullgrad._dispatch import DISPATCH, MISSING

    part = exhaustive_slice(config)
    chosen = "none" if part is None else f"slice {part[0]} of {part[1]}"
    missing = f", missing {', '.join(MISSING)}" if MISSING else ""
    return (
        f"torch {torch.__version__}, dispatch {DISPATCH!r}{missing}, devices {', '.join(devices())}, exhaustive tests: {chosen}"
    )


def pytest_collection_modifyitems(config, items):
    part, seen = exhaustive_slice(config), collections.Counter()
    kept, dropped = [], []
    for item in items:
        long = item.get_closest_marker("long")
        if any(item.get_closest_marker(name) for name in ("exhaustive", "peers", "adopting")):
            runs = part is not None and zlib.crc32(item.nodeid.encode()) % part[1] == part[0]
        else:
            # Of a test with many parameters the short suite has the first ones.
            function = item.nodeid.partition("[")[0]
            first = long is not None and seen[function] < long.kwargs.get("but", 0)
            seen[function] += 1
            runs = config.getoption("--long") == (long is not None and not first)
        (kept if runs else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(autouse=True)
def _fresh():
    """Every test starts from the same random numbers and dispatch keys, with nothing compiled, on one thread per process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.compiler.reset()
    with preserved_keys():
        yield
    torch.compiler.reset()


@pytest.fixture(params=devices())
def device(request) -> str:
    """Each device at hand."""
    return request.param
