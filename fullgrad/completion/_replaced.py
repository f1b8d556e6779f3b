"""Operators under a transform by other calls of torch with the same values, which `vmap` and nested forward mode support."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullgrad._dispatch import active_transforms
from fullgrad.completion._registry import replaces

_IN_PLACE = ("asinh", "acosh", "atanh")  # of which torch has no derivative in place


def _replaces_in_place(name: str) -> None:
    op = getattr(torch.ops.aten, name)

    @replaces(f"{name}_")
    def out_of_place(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(op(x.clone(), *args, **kwargs))


for _name in _IN_PLACE:
    _replaces_in_place(_name)


@replaces("rrelu")
def _rrelu(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Tensor:
    return NotImplemented if training else functional.leaky_relu(x, (lower + upper) / 2)


@replaces("rrelu_")
def _rrelu_in_place(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    y = _rrelu(x.clone(), *args, **kwargs)
    return y if y is NotImplemented else x.copy_(y)


@replaces("tensor_split.tensor_indices_or_sections")
def _tensor_split(x: Tensor, where: Tensor, dim: int = 0) -> Any:
    if where.dtype != torch.int64 or where.ndim > 1 or where.device.type != "cpu":
        return NotImplemented  # torch has the words
    places: Any = where.item() if not where.ndim else [v.item() for v in where.unbind()]
    return torch.tensor_split(x, places, dim)


@replaces("_nested_tensor_from_mask_left_aligned")
def _is_left_aligned(x: Tensor, mask: Tensor) -> bool:
    """Encoders in evaluation put rows without padding into a nested tensor, which transforms do not take."""
    return False


@replaces("fused_moving_avg_obs_fake_quant")
def _observed(*args: Any) -> Tensor:
    return torch.ops.aten._fused_moving_avg_obs_fq_helper(*args)[0] if "Vmap" in active_transforms() else NotImplemented
