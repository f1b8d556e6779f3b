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
    # torch 2.11 cannot compile the question which devices have autocast: those that run compiled code do.
    has_autocast = device != "meta" if torch.compiler.is_compiling() else torch.amp.is_autocast_available(device)
    return has_autocast and torch.is_autocast_enabled(device)
