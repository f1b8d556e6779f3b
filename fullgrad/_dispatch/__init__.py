"""How an operator reaches torch. Nothing outside this folder knows torch's machinery.

`torch_private` holds the private names, `rules` wraps what an author wrote, `functorch` and `fallback` are the two dispatches,
`opaque` makes a kernel one node of a graph.
"""

from fullgrad._dispatch import fallback, functorch
from fullgrad._dispatch.opaque import is_traced, opaque
from fullgrad._dispatch.rules import Rules, alias, is_identity, pure, saves_nothing
from fullgrad._dispatch.torch_private import (
    DISPATCH,
    MISSING,
    can_reuse_buffers,
    can_skip_autograd,
    clone_if_view,
    effect,
    forward_mode_is_on,
    has_data,
    in_legacy_vmap,
    is_differentiating,
    is_tracing,
    out_buffer,
    recomputed,
    tree_map_pairs,
    tree_map_with_path,
    unwrap_legacy_batched,
)

__all__ = [
    "DISPATCH",
    "MISSING",
    "Rules",
    "alias",
    "can_reuse_buffers",
    "can_skip_autograd",
    "clone_if_view",
    "connect",
    "effect",
    "forward_mode_is_on",
    "has_data",
    "in_legacy_vmap",
    "is_differentiating",
    "is_identity",
    "is_traced",
    "is_tracing",
    "opaque",
    "out_buffer",
    "pure",
    "recomputed",
    "saves_nothing",
    "tree_map_pairs",
    "tree_map_with_path",
    "unwrap_legacy_batched",
]

connect = functorch.connect if DISPATCH == "functorch" else fallback.connect
