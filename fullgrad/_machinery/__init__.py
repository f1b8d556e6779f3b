"""How an operator reaches torch. Nothing outside this folder knows torch's machinery.

`names` holds the private names, `rules` wraps what an author wrote, `own` and `public` are the two lanes.
"""

from fullgrad._machinery import own, public
from fullgrad._machinery.names import (
    LANE,
    MISSING,
    effect,
    forward_mode_is_on,
    has_data,
    in_front,
    nobody_asks,
    nobody_differentiates,
    nobody_traces,
    nobody_watches,
    owned,
    recomputed,
    reuse,
    tracing,
    tree_map_pairs,
    tree_map_with_path,
)
from fullgrad._machinery.rules import Rules, alias, passes_on, pure, saves_nothing

__all__ = [
    "LANE",
    "MISSING",
    "Rules",
    "alias",
    "connect",
    "effect",
    "forward_mode_is_on",
    "has_data",
    "in_front",
    "nobody_asks",
    "nobody_differentiates",
    "nobody_traces",
    "nobody_watches",
    "owned",
    "passes_on",
    "pure",
    "recomputed",
    "reuse",
    "saves_nothing",
    "tracing",
    "tree_map_pairs",
    "tree_map_with_path",
]

connect = own.connect if LANE == "own" else public.connect
