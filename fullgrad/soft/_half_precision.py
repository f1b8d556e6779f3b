"""Half precision on the CPU: computed in float32, piece by piece, so that no tensor of float32 has to be written to memory.

The cost of an elementwise operation on a large tensor is memory traffic, and a copy in float32 has twice the bytes. A piece stays
in the cache.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import can_reuse_buffers

HALF = frozenset({torch.float16, torch.bfloat16})

# Elements of a piece: temporaries of it stay in the cache, and the cost of a call is small beside theirs.
PIECE = 2**17


def to_opmath(*args: Any) -> list[Any]:
    """Half precision in float32, where slopes do not overflow and are rounded once."""
    return [a.float() if a.__class__ is not float and isinstance(a, Tensor) and a.dtype in HALF else a for a in args]


def chunked_in_float32(
    formula: Callable[..., Sequence[Tensor | None]], dtypes: Sequence[torch.dtype | None], *args: Any
) -> list[Any] | None:
    """The outputs of an elementwise formula of arguments in float32 in the given dtypes, or None where pieces are no gain: a
    tensor is small, of another shape or layout, on another device, or the steps are recorded.
    """
    first = args[0]
    if first.dtype not in HALF or first.numel() < 2 * PIECE or first.device.type != "cpu" or not can_reuse_buffers():
        return None
    tensors = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    if any(args[i].shape != first.shape or not args[i].is_contiguous() for i in tensors):
        return None
    pieces = {i: args[i].reshape(-1).split(PIECE) for i in tensors}
    outputs: list[Any] = [None] * len(dtypes)
    targets: list[Any] = [None] * len(dtypes)
    wide = list(args)
    for k in range(len(pieces[0])):
        for i in tensors:
            wide[i] = pieces[i][k].float()
        for j, part in enumerate(formula(*wide)):
            if part is not None:
                if outputs[j] is None:
                    outputs[j] = torch.empty(first.shape, dtype=dtypes[j], device=first.device)
                    targets[j] = outputs[j].view(-1).split(PIECE)
                targets[j][k].copy_(part)
    return outputs
