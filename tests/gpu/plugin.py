"""``pytest -p tests.gpu.plugin tests/gpu``: kernels for GPUs run on CPU tensors, by Triton's interpreter."""

import os

os.environ["FULLGRAD_TRITON"] = "interpret"  # read when fullgrad is imported, in the processes of xdist, too
