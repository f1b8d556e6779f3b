"""``pytest -p tests.devices.plugin``: tests that take a device take "second" in place of the CPU."""

import pytest

from tests import devices


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():
    """Register before any test asks for the devices, except when the suite imports this file for its examples."""
    from fullgrad.testing import _subject

    devices.register()
    _subject.float64_devices = lambda: [devices.NAME]
