"""Samples and derivatives of softmaxes, in fewer passes."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad.sampling._bernoulli_st import indicator
from fullgrad.sampling._rows import softmax_pull


@fast(indicator)
def _indicator(probs: Tensor, noise: Tensor, dtype: torch.dtype) -> Any:
    if noise.dtype != probs.dtype or noise.shape != probs.shape:
        return NotImplemented
    less = torch.lt(noise, probs, out=torch.empty_like(probs))  # torch converts bools slowly
    return torch.clamp(probs, less, less, out=less).to(dtype)  # between equal bounds only NaN stays


@fast(softmax_pull, within=64, of_largest=True)
def _softmax_pull(v: Tensor, p: Tensor, dim: int) -> Any:
    fits = v.dtype == p.dtype and v.shape == p.shape
    return torch.ops.aten._softmax_backward_data.default(v, p, dim, p.dtype) if fits else NotImplemented
