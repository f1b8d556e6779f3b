"""Numbers that compiled code does not know."""

from typing import Any

import torch
from torch import Tensor


def known(value: Any, v: Tensor) -> Any:
    """A number that Python may compare, or else a tensor, whose formula compares element by element."""
    if isinstance(value, (torch.SymFloat, torch.SymInt)):
        symbol: Any = value
        return torch.full((), symbol, dtype=v.dtype, device=v.device)
    return value
