"""How an operator reaches torch. Nothing outside this folder knows torch's machinery.

`names` holds the private names, `rules` wraps what an author wrote, `own` and `public` are the two lanes.
"""

from fullgrad._machinery import own, public
from fullgrad._machinery.names import LANE, MISSING, recomputed, reuse
from fullgrad._machinery.rules import Rules, alias, saves_nothing

__all__ = ["LANE", "MISSING", "Rules", "alias", "connect", "recomputed", "reuse", "saves_nothing"]

connect = own.connect if LANE == "own" else public.connect
