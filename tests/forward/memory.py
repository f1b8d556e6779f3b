"""How many bytes a graph holds."""

import torch

from fullgrad._dispatch import innermost
from fullgrad._dispatch.torch_private import is_zero_tensor


def held(run):
    """The bytes that the graph of a result holds, and the result."""
    kept = {}

    def note(tensor):
        inner = innermost(tensor)
        if not is_zero_tensor(inner):  # which has no memory
            kept[inner.untyped_storage().data_ptr()] = inner.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        result = run()
    return sum(kept.values()), result
