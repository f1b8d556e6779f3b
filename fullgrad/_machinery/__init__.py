"""How an operator reaches torch. Nothing outside this folder knows torch's machinery.

`names` holds the private names, `rules` wraps what an author wrote, `own` and `public` are the two lanes.
"""

from fullgrad._machinery import own, public
from fullgrad._machinery.names import LANE
from fullgrad._machinery.rules import Rules, VmapInfo

__all__ = ["LANE", "Rules", "VmapInfo", "connect"]

connect = own.connect if LANE == "own" else public.connect
