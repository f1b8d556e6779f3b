"""These tests run with their plugin alone, by which kernels run on the CPU; otherwise CPU tensors never meet a kernel."""

from fullgrad._fast import gpu

if gpu.INTERPRETED:
    import pytest

    from tests.gpu import interpreter

    interpreter.make_fast()

    @pytest.fixture(autouse=True)
    def _nothing_failed():
        """A kernel that fails in one test runs in the next."""
        yield
        gpu._failed.clear()
else:
    collect_ignore_glob = ["*.py"]
