"""Symbolic zeros, which torch's formulas of tangents may be given: torch refuses to write to them, reads the memory that they
lack where a tracer records a product with a number, and makes views of them behind the tracer's back.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import becomes_writable, is_zero_tensor, symbolic_zeros

# What torch's formulas of derivatives do in place.
_NAMES = (
    *("copy_", "zero_", "fill_.Scalar", "fill_.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor", "masked_scatter_"),
    *("add_.Tensor", "add_.Scalar", "sub_.Tensor", "sub_.Scalar", "mul_.Tensor", "mul_.Scalar", "div_.Tensor", "div_.Scalar"),
    *("neg_", "abs_", "sgn_", "exp_", "sqrt_", "reciprocal_", "pow_.Scalar", "pow_.Tensor", "conj_physical_", "tril_", "triu_"),
    *("addcmul_", "addcdiv_", "lerp_.Scalar", "lerp_.Tensor", "addmm_", "addmv_", "addr_", "addbmm_", "baddbmm_"),
    *("index_add_", "index_copy_", "index_fill_.int_Scalar", "index_fill_.int_Tensor", "index_put_", "_index_put_impl_", "put_"),
    *("scatter_.src", "scatter_.value", "scatter_add_", "clamp_", "clamp_min_", "clamp_max_", "threshold_"),
)
# What writes its argument, or zero, and no more.
_WRITES = ("aten::zero_", "aten::fill_", "aten::copy_")
KEY = "ZeroTensor"


def in_place_operators() -> dict[str, Any]:
    """The operators, by name, that this torch has."""
    found = {}
    for name in _NAMES:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            found[name] = op
    return found


def kernel_of_zeros(op: Any, is_outside: Callable[[], bool]) -> Callable[..., Any]:
    """torch's operator, on zeros with memory where the tensor that it writes to is a symbolic zero without. Zeros stay zeros."""
    writes_alone = op._schema.name in _WRITES

    def kernel(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_zero_tensor(x):
            if writes_alone and all(_is_zero(v) for v in args[:1]) and not is_outside():
                return x
            if is_outside() or not becomes_writable(x):
                raise RuntimeError(f"{op.name()}: ZeroTensors are immutable, use the tensor that `.clone()` returns.")
        return op(x, *[v.clone() if isinstance(v, Tensor) and is_zero_tensor(v) else v for v in args], **kwargs)

    return kernel


def _is_zero(value: Any) -> bool:
    return is_zero_tensor(value) if isinstance(value, Tensor) else value == 0


def _times_number(keys: Any, x: Tensor, other: Any) -> Tensor:
    return symbolic_zeros(x.shape, dtype=torch.result_type(x, other), device=x.device)


def _plus_number(keys: Any, x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return torch.full(x.shape, other * alpha, dtype=torch.result_type(x, other), device=x.device)


# torch's own have no kernel here. Where no tracer records them, their results are the same.
WITH_NUMBERS = {torch.ops.aten.mul.Scalar: _times_number, torch.ops.aten.add.Scalar: _plus_number}

# torch's own kernels here make a plain tensor of a tracer's one. Below this key are the same kernels, which the tracer sees.
VIEWS = torch.ops.aten.view.default, torch.ops.aten._reshape_alias.default, torch.ops.aten.as_strided.default
