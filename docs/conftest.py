"""Keeps pytest away from the site's own code, which needs Sphinx, and from what a build makes. Pages run on one thread."""

import pytest
import torch

collect_ignore_glob = ["conf.py", "_ext/*", "_build/*", "examples/*"]


@pytest.fixture(autouse=True)
def _one_thread():
    """Several processes with several threads each would wait for each other."""
    torch.set_num_threads(1)
