"""Products, by multiplications alone, so that their derivatives divide by no factor: torch's are wrong where factors are 0."""

import torch
from torch import Tensor

from fullgrad.completion._registry import completes

_WRONG_AT_0 = "higher derivatives are wrong where factors are 0"


def _is_left_out(x: Tensor, dtype: torch.dtype | None) -> bool:
    of = x.dtype if dtype is None else dtype
    return not (of.is_floating_point or of.is_complex)


def _product(x: Tensor) -> Tensor:
    """The product of the last dimension, in halves."""
    if not x.shape[-1]:
        return torch.ones(x.shape[:-1], dtype=x.dtype, device=x.device)
    while (n := x.shape[-1]) > 1:
        half = n // 2
        pairs = x[..., :half] * x[..., half : 2 * half]
        x = torch.cat([pairs, x[..., 2 * half :]], -1) if n % 2 else pairs
    return x.squeeze(-1)


@completes("prod", _WRONG_AT_0)
def _prod(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    if _is_left_out(x, dtype):
        return NotImplemented
    return _product(x.to(dtype or x.dtype).reshape(-1))


@completes("prod.dim_int", _WRONG_AT_0)
def _prod_of_dim(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if _is_left_out(x, dtype) or not x.ndim:
        return NotImplemented
    y = _product(x.to(dtype or x.dtype).movedim(dim, -1))
    return y.unsqueeze(dim) if keepdim else y


@completes("cumprod", _WRONG_AT_0, issue=196701)
def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if _is_left_out(x, dtype) or not x.ndim:
        return NotImplemented
    y, step = x.to(dtype or x.dtype).movedim(dim, -1), 1
    while step < y.shape[-1]:
        y = torch.cat([y[..., :step], y[..., step:] * y[..., :-step]], -1)
        step *= 2
    return y.movedim(-1, dim)
