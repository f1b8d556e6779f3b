"""Elementwise formulas of half precision as one compiled kernel each, which ``FULLGRAD_COMPILED_KERNELS=1`` switches on.

Eager torch reads and writes a tensor at each step. A kernel of a value or a gradient reads and writes once, computes in float32
between, and rounds once. ``torch.compile`` makes it on first use, which takes seconds; it is kept for the formula with its
constants and for the dtypes. A softness, a bound or another operand that is a number is an argument of the kernel.
"""

import functools
import os
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# The switch. With it, large tensors of half precision take the kernels wherever their steps are not recorded.
ENABLED = os.environ.get("FULLGRAD_COMPILED_KERNELS") == "1"
# Elements from which on a kernel is made.
MIN_SIZE = 2**18
# What comes after so many kernels is computed eagerly: a constant that changes at each call does not compile at each call.
MAX_KERNELS = 128

# The shape and dtype of an output; None where there is none.
Output = tuple[torch.Size, torch.dtype] | None
Formula = Callable[..., Sequence[Tensor | None]]
Kernel = Callable[..., list[Any]]


class _Layout(NamedTuple):
    """What a kernel is made for, beside the formula. A tensor among ``constants`` is None."""

    constants: tuple[Any, ...]
    positions: tuple[int, ...]
    """Those of the tensors, and of the numbers that are arguments."""
    dtypes: tuple[torch.dtype, ...]
    broadcast: tuple[Any, ...]
    """Which dimensions of each tensor have size 1."""
    outputs: tuple[tuple[torch.dtype, tuple[int, ...]] | None, ...]
    """The dtype of each, and the dimensions over which it is summed."""


# A kernel is None where it could not be compiled.
_kernels: dict[Any, Kernel | None] = {}
_compiling = threading.Lock()


def wants_kernel(x: Tensor) -> bool:
    """Whether a tensor of half precision is for a compiled kernel, if its steps are not recorded."""
    return ENABLED and x.numel() >= MIN_SIZE


def run_compiled(formula: Formula, outputs: Sequence[Output], shape: torch.Size, args: Sequence[Any]) -> list[Any] | None:
    """The outputs of an elementwise formula of arguments in float32, of which the tensors broadcast to ``shape``. An output of
    fewer elements is summed to its shape, and is in float32.

    None where there is no kernel: torch cannot compile it, of which a warning tells, or another thread is compiling.
    """
    count = _number_of_operands(args)
    tensors = {i: a if isinstance(a, Tensor) else torch.tensor(a, dtype=torch.float64) for i, a in enumerate(args[:count])}
    tensors |= {i: a for i, a in enumerate(args) if i >= count and isinstance(a, Tensor)}
    flat = all(t.numel() == 1 or (t.shape == shape and t.is_contiguous()) for t in tensors.values())
    inputs = [_aligned(t, shape, flat) for t in tensors.values()]
    layout = _Layout(
        tuple([None if i in tensors else a for i, a in enumerate(args)]),
        tuple(tensors),
        tuple([t.dtype for t in inputs]),
        tuple([tuple([n == 1 for n in t.shape]) for t in inputs]),
        tuple([None if o is None else (o[1], _summed(o[0], shape, flat)) for o in outputs]),
    )
    key = _identity(formula), layout
    values = _call(key, formula, layout, inputs)
    if values is None:
        return None
    return [None if v is None or o is None else v.reshape(o[0]) for v, o in zip(values, outputs, strict=False)]


def _call(key: Any, formula: Formula, layout: _Layout, inputs: Sequence[Tensor]) -> list[Any] | None:
    if key in _kernels:
        kernel = _kernels[key]
        return None if kernel is None else _tried(key, kernel, inputs)
    if len(_kernels) >= MAX_KERNELS or not _compiling.acquire(blocking=False):
        return None
    try:
        _kernels[key] = kernel = _compiled(formula, layout)
        return _tried(key, kernel, inputs)
    finally:
        _compiling.release()


def _tried(key: Any, kernel: Kernel, inputs: Sequence[Tensor]) -> list[Any] | None:
    try:
        return kernel(*inputs)
    except Exception as error:  # no compiler, or what a compiler cannot do
        _kernels[key] = None
        first, *_ = str(error).strip().splitlines() or [""]
        warnings.warn(f"fullgrad computes eagerly what torch cannot compile: {type(error).__name__}: {first}", stacklevel=2)
        return None


def _compiled(formula: Formula, layout: _Layout) -> Kernel:
    def kernel(*tensors: Tensor) -> list[Tensor | None]:
        args = list(layout.constants)
        for i, t in zip(layout.positions, tensors, strict=True):
            args[i] = t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
        values: list[Tensor | None] = []
        for value, output in zip(formula(*args), layout.outputs, strict=False):
            if value is None or output is None:
                values.append(None)
            else:
                dtype, dims = output
                values.append(value.sum(dims) if dims else value.to(dtype))
        return values

    # torch counts recompilations by code object, and gives up after a few.
    code = kernel.__code__.replace(co_name=f"kernel_{len(_kernels)}")
    own = types.FunctionType(code, kernel.__globals__, "kernel", None, kernel.__closure__)
    return torch.compile(own, fullgraph=True)


def _number_of_operands(args: Sequence[Any]) -> int:
    """How many arguments at the start are tensors or numbers, without integers at their end, which count something."""
    count = 0
    for i, a in enumerate(args):
        if isinstance(a, (Tensor, float)):
            count = i + 1
        elif not isinstance(a, int) or isinstance(a, bool):
            break
    return count


def _aligned(t: Tensor, shape: torch.Size, flat: bool) -> Tensor:
    """With as many dimensions as the shape; where all are contiguous or one number, with one or none."""
    if flat:
        return t.reshape(()) if t.numel() == 1 else t.view(-1)
    return t.reshape((1,) * (len(shape) - t.ndim) + t.shape) if 0 < t.ndim < len(shape) else t


def _summed(output: torch.Size, shape: torch.Size, flat: bool) -> tuple[int, ...]:
    """The dimensions over which an output is summed."""
    if flat or output == shape:
        return () if output == shape else (0,)
    missing = len(shape) - len(output)
    return tuple([d for d, n in enumerate(shape) if n != 1 and (d < missing or output[d - missing] == 1)])


def _identity(v: Any) -> Any:
    """What a function computes, as a key: its code and what it closes over."""
    if isinstance(v, functools.partial):
        return _identity(v.func), _identity(v.args)
    if isinstance(v, types.MethodType):
        return v.__func__, v.__self__
    if isinstance(v, types.FunctionType):
        return v.__code__, tuple([_identity(cell.cell_contents) for cell in v.__closure__ or ()])
    return tuple(map(_identity, v)) if isinstance(v, (list, tuple)) else v
