"""Windows and gates, by kernels of torch that are the backward of another function: one pass.

The backward of hardtanh passes a gradient strictly between its bounds, and the backward of a threshold strictly above one. The
neighbor of a bound makes it inclusive.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad._core.neighbors import DTYPES, SMALLEST, neighbor, rounded
from fullgrad._core.windows import compared, sigmoid_gate, where_between, where_inside, where_positive
from fullgrad._dispatch import forward_mode_is_on, is_unrecorded

_HARDTANH = torch.ops.aten.hardtanh_backward
_THRESHOLD = torch.ops.aten.threshold_backward
_SOFTPLUS = torch.ops.aten.softplus_backward.default
# Elements from which fresh memory costs more than a question.
_LARGE = 2**16
_NUMBERS = frozenset({float, int, type(None)})


@fast(where_positive, recorded=True)
def _positive(g: Tensor, m: Tensor) -> Tensor:
    return _THRESHOLD.default(g, m, 0)


# Each rounds the exponent, of up to 88 in float32, in its own way: so many units of it are units of the exponential.
@fast(sigmoid_gate, recorded=True, within=192)
def _gate(v: Tensor, x: Tensor, s: Any) -> Any:
    # The kernel passes v as it is from 60 softnesses on.
    return _SOFTPLUS(v, x, 1 / s, 60.0) if s.__class__ is float else NotImplemented


@fast(compared)
def _compared(compare: Any, x: Tensor, y: Any) -> Any:
    # Written in the floating dtype: torch converts bools slowly.
    if isinstance(y, Tensor) and y.ndim and y.shape != x.shape:
        return NotImplemented
    return compare(x, y, out=torch.empty_like(x, dtype=torch.result_type(x, y)))


@fast(where_between, recorded=True)
def _window(g: Tensor, x: Tensor, low: Any, high: Any, closed: bool = True) -> Any:
    # Where subnormal numbers are flushed to 0, the neighbors of 0 are 0: the question is written out on the hot path.
    if not (low.__class__ in _NUMBERS and high.__class__ in _NUMBERS and x.dtype in DTYPES) or SMALLEST * 1.0 == 0.0:
        return NotImplemented
    kernel, bounds, mirrored, nan = _strict(low, high, x.dtype, closed)
    if kernel is None:
        return NotImplemented
    if forward_mode_is_on():  # which would compute a tangent of x that the kernel multiplies by 0
        x = x.detach()
    # The kernels compare in an order that depends on the position of a NaN; as an infinity it is outside for certain.
    known = torch.nan_to_num(-x if mirrored else x, nan, math.inf, -math.inf)
    if x.numel() >= _LARGE and g.shape == x.shape and g.dtype == x.dtype and is_unrecorded((g, x)):
        return kernel.grad_input(g, known, *bounds, grad_input=known)  # in the memory of the copy
    return kernel.default(g, known, *bounds)


fast(where_inside, recorded=True)(functools.partial(_window, closed=False))


@functools.lru_cache(maxsize=1024)
def _strict(
    low: float | None, high: float | None, dtype: torch.dtype, closed: bool
) -> tuple[Any, tuple[float, ...], bool, float]:
    """The kernel with its strict bounds, whether it takes -x, and the infinity that is outside.

    An upper bound alone is a lower bound of -x. None for the kernel where there is nothing to bound, or a bound is NaN.
    """
    # Infinity has no neighbor beyond it: as an inclusive bound it is none.
    low = None if low is None or (closed and low == -math.inf) else float(low)
    high = None if high is None or (closed and high == math.inf) else float(high)
    below: Any
    above: Any
    below, above = [
        None if b is None else neighbor(b, dtype, up) if closed else rounded(b, dtype) for b, up in ((low, False), (high, True))
    ]
    if low is not None and high is not None and low == low and high == high:
        return _HARDTANH, (below, above), False, math.inf
    if low is not None and high is None and low == low:
        return _THRESHOLD, (below,), False, -math.inf
    if high is not None and low is None and high == high:
        return _THRESHOLD, (-above,), True, -math.inf
    return None, (), False, 0.0
