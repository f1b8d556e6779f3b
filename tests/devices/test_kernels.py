"""Launches, waits and uploads of every operator are those of docs/kernels.md."""

import functools
import json

import pytest
import torch

import fullgrad
from fullgrad.completion._completing import restore
from tests.devices.kernels import COUNTED, FOUND, PAGE, counts, page
from tests.devices.test_second_device import pytestmark as with_the_plugin

pytestmark = [with_the_plugin, pytest.mark.short]

EXPECTED = json.loads(FOUND.read_text())


@pytest.fixture(autouse=True)
def _kernels_of_torch():
    """A test before, which opened `completing`, may have left its kernels, whose launches are counted one by one."""
    restore()


@pytest.mark.skipif(torch.__version__.split("+")[0] != EXPECTED["torch"], reason=f"counted with torch {EXPECTED['torch']}")
@pytest.mark.parametrize("case", COUNTED, ids=lambda c: c.name)
def test_counts(case):
    """Forward and backward launch as many kernels as the page says; `python -m tests.devices.kernels` writes it again."""
    assert counts(case) == EXPECTED["counts"][case.name]


def test_the_page_is_the_table():
    """The page has every case, and its mean."""
    assert page(EXPECTED["counts"]) == PAGE.read_text()
    assert set(EXPECTED["counts"]) == {case.name for case in COUNTED}


def test_the_page_names_what_is_above_the_composite():
    """Each operator with more launches than its composite is named above the table."""
    text = PAGE.read_text().partition("| operator |")[0]
    for name, row in EXPECTED["counts"].items():
        function = name.split()[0].strip(",").removesuffix(".masked").rpartition(".")[2]
        is_above = "composite" in row and sum(row["ours"][:2]) > sum(row["composite"][:2])
        is_order_statistic = "softsort" in name or "neuralsort" in name
        assert not is_above or is_order_statistic or f"`{function}`" in text, name


@pytest.mark.parametrize("case", [c for c in COUNTED if EXPECTED["counts"][c.name]["ours"][2]], ids=lambda c: c.name)
def test_docstrings_say_where_the_host_waits(case):
    """The functions of a case that waits say so."""
    for name in case.covers:
        function = functools.reduce(getattr, name.split("."), fullgrad)
        assert "On a device the host waits" in " ".join(function.__doc__.split())
