"""Matrix products in the precision of their factors."""

import torch
from torch import Tensor


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul`` without autocast: the product is part of an operator's value or rule, not a layer."""
    device = a.device.type
    if not is_autocast(device):
        return torch.matmul(a, b)
    with torch.autocast(device, enabled=False):
        return torch.matmul(a, b)


def is_autocast(device: str) -> bool:
    """Whether autocast is on for a type of device."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
