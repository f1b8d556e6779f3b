r"""Fast soft sorting and ranking: projections onto the permutahedron, in O(n log n) time and O(n) memory.

Source: Blondel et al., https://arxiv.org/abs/2002.08871.
"""

import torch
from torch import Tensor

from fullgrad._dispatch import at_least
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.methods._method import Method
from fullgrad.soft.order.projections.permutahedron import project_onto_sorted, project_sorted


class FastSoftSort(Method):
    """Values project even places onto the permutahedron of z; ranks project z onto the permutahedron of even places."""

    values_are_weighted_sums = False

    def values(self, rows: Rows) -> Tensor:
        if rows.mean is None and rows.mode in ("c1", "c2"):
            # Only in these modes does shifting the levels change the projection by more than the shift.
            rows = rows._replace(z=rows.moved_back(rows.z), origin=None)
        anchors, falling = rows.anchors().flip(-1).expand(rows.z.shape), torch.sort(rows.z, descending=True, stable=True).values
        return rows.restore(project_sorted(anchors / rows.softness, falling, rows.mode).flip(-1))

    def ranks(self, rows: Rows) -> Tensor:
        scale = at_least(rows.n - 1, 1)
        levels = rows.numbers(rows.x).flip(-1) / scale
        return scale * project_onto_sorted(rows.u, levels.expand(rows.u.shape), rows.mode)
