"""Tests that have no device here are not collected: with `-p tests.devices.plugin` all are, and some with a GPU."""

from tests import devices

collect_ignore = [] if devices.is_registered() else ["test_every_case.py", "test_kernels.py", "test_second_device.py"]
collect_ignore += [] if devices.accelerator() else ["test_agreement.py", "test_no_waiting.py"]
