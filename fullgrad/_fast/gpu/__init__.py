"""Row algorithms in one kernel on a GPU, by Triton: faster versions of projections and order statistics.

A program holds whole rows in registers: one read, one write, no wait of the host, no atomics, so the same bits each time. This
file says when kernels run:

* on CUDA tensors in eager code, of a floating dtype, whose rows are no longer than a kernel holds;
* with ``FULLGRAD_TRITON=0`` in the environment, never: the formulas run, as on a CPU;
* with ``FULLGRAD_TRITON=interpret``, on CPU tensors, by Triton's interpreter: slow, and for tests.

Triton is imported at the first such tensor. If it is missing, or a kernel does not compile, the formula runs, with one warning.
`projections` and `statistics` reach the kernels, for values and first derivatives below every transform; derivatives of a higher
order, and those with respect to a softness, are those of the formulas.
"""

import functools
import importlib
import os
import warnings
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import in_legacy_vmap, is_unrecorded, rows_are_split

SWITCH = os.environ.get("FULLGRAD_TRITON", "1")
INTERPRETED = SWITCH == "interpret"
if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

# The longest rows that registers hold; and those whose pairs are compared, beyond which torch's sort costs less, or that are
# sorted in registers: a thread of 1,024 has four numbers and some 140 registers, one of 2,048 has 243 of the 255 that there are;
# and those of which registers hold a number for each pair.
LONGEST, LONGEST_OF_PAIRS, LONGEST_OF_SQUARES = 4096, 1024, 64

_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_failed: list[str] = []


def is_served(x: Any, n: int, longest: int = LONGEST) -> bool:
    """Whether there are kernels for a tensor with rows of n elements."""
    return (
        (x.__class__ is Tensor or x.__class__ is torch.nn.Parameter)
        and (x.is_cuda or (INTERPRETED and x.is_cpu))
        and SWITCH != "0"
        and not _failed
        and 0 < n <= longest
        and x.dtype in _DTYPES
        and not torch.jit.is_tracing()  # a trace would not see the launch
        and not in_legacy_vmap()
        and not rows_are_split()  # a kernel sees the part of one rank
        and _has_triton()
    )


@functools.cache
def _has_triton() -> bool:
    try:
        importlib.import_module("triton")
    except ImportError:
        message = "fullgrad: Triton is not installed, so rows on a GPU take many kernels instead of one"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False
    return INTERPRETED or torch.cuda.get_device_capability() >= (7, 0)


def run(module: str, x: Tensor, *args: Any, **options: Any) -> Any:
    """The result of the ``run`` of a module of kernels; NotImplemented if something records, batches or traces, or it fails."""
    if _failed or not x.numel() or not is_unrecorded(()):
        return NotImplemented
    try:
        kernels = importlib.import_module(f"fullgrad._fast.gpu.{module}")
        with torch.cuda.device_of(x):  # Triton launches on the current device
            return kernels.run(x, *args, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of any pass of a compiler, driver or assembler
        _failed.append(module)
        message = f"fullgrad: the Triton kernels of {module!r} fail here, formulas run instead: {type(error).__name__}: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return NotImplemented
