"""Without a device these tests are not collected, with one they are."""

import runpy
from pathlib import Path

import pytest

from tests import devices

FOLDER = Path(__file__).parent
# Files that need no device in this process.
ANYWHERE = {"test_collection.py", "test_compiled_kernels.py"}
ALL = {file.name for file in FOLDER.glob("test_*.py")} - ANYWHERE


@pytest.mark.short
@pytest.mark.parametrize(
    ("registered", "found", "left_out"),
    [
        (False, None, ALL),
        (False, "cuda", ALL - {"test_agreement.py", "test_no_waiting.py"}),
        (True, devices.NAME, set()),
    ],
    ids=["none", "GPU", "second device"],
)
def test_what_has_no_device_is_not_collected(registered, found, left_out, monkeypatch):
    """Each file that skips all of its tests is left out; a new one is on the list."""
    monkeypatch.setattr(devices, "is_registered", lambda: registered)
    monkeypatch.setattr(devices, "accelerator", lambda: found)
    assert {*runpy.run_path(str(FOLDER / "conftest.py"))["collect_ignore"]} == left_out
