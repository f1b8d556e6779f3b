"""Weights of a given norm, whose second derivative by torch takes the norm for a constant."""

from typing import Any

from torch import Tensor

from fullgrad._core.recomputed import pulled_back
from fullgrad.completion._registry import accumulated, completes, completes_backward


@completes("_weight_norm_interface", "second derivatives are wrong, and there is no forward mode", batched=True)
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """torch's kernel takes the numbers of a sample in the order of the memory, which need not be theirs."""
    own = accumulated(v)
    dims = [d for d in range(v.ndim) if d != dim % v.ndim]
    norm = own.square().sum(dims, keepdim=True).sqrt()
    return (own * (accumulated(g) / norm)).to(v.dtype), norm


@completes_backward("_weight_norm_differentiable_backward", 3)
def _backward(w: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> Any:
    return pulled_back(lambda v, g: _weight_norm(v, g, dim)[0], (v, g), (0, 1), w)
