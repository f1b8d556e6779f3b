"""Kernels compile for cards that this machine lacks."""

import json

import pytest

from tests.gpu.compiled import FOUND, TARGETS, compiled

pytestmark = pytest.mark.short
EXPECTED = json.loads(FOUND.read_text())
# A compiler of another version may need some more.
REGISTERS = 24
LARGEST_STACK = 64


@pytest.mark.parametrize("target", TARGETS)
def test_resources(target, tmp_path):
    """Each kernel compiles for an A100 and an H100, without atomics, and takes what the table says: the same with the same
    Triton, and hardly more with another; next to nothing is spilled. `tests.gpu.compiled` says how it is written.
    """
    found = compiled(target, TRITON_CACHE_DIR=str(tmp_path))
    kernels, expected = found["kernels"], EXPECTED["kernels"][str(target)]
    assert set(kernels) == set(expected)
    for name, (warps, registers, stack, shared) in kernels.items():
        usual = expected[name]
        assert stack <= LARGEST_STACK, name
        assert shared <= 16 * 1024, name
        assert (warps, shared) == (usual[0], usual[3]), name
        assert registers <= usual[1] + REGISTERS, name
    if found["triton"] == EXPECTED["triton"]:
        assert kernels == expected
