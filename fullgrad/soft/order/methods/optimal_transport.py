r"""Sorting by optimal transport: z moves to even places in [0, 1], at the cost of the squared distance.

Where only some places are computed, the rest of the row moves to one place between, below or above them, as a group.

Source: Cuturi, Teboul, Vert, https://arxiv.org/abs/1905.11885.
"""

import itertools

import torch
from torch import Tensor

from fullgrad._core.opmath import numbers_like, wide
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.methods._method import Method
from fullgrad.soft.order.projections.transport_polytope import plan


class OptimalTransport(Method):
    """The weights are n times a transport plan; each place is an anchor in [0, 1]."""

    def weights(self, rows: Rows, places: Tensor | None = None) -> Tensor:
        if places is None:
            return _transported(rows, rows.anchors(), numbers_like([1.0], rows.x).expand(rows.n))
        return _in_groups(rows, places)[0]

    def neighbor_weights(self, rows: Rows, low: Tensor, high: Tensor) -> list[Tensor]:
        return _in_groups(rows, low, high)

    def topk_weights(self, rows: Rows, k: int) -> Tensor:
        anchors = torch.arange(k, -1, -1, dtype=rows.x.dtype, device=rows.x.device) / k
        one = numbers_like([1.0], rows.x)
        return _transported(rows, anchors, torch.cat([one.expand(k), one * (rows.n - k)]))[..., :k, :]

    def largest_weights(self, rows: Rows) -> Tensor:
        return _transported(rows, numbers_like([0.0, 1.0], rows.x), numbers_like([rows.n - 1.0, 1.0], rows.x))[..., 1, :]


def _transported(rows: Rows, anchors: Tensor, counts: Tensor) -> Tensor:
    """The weights (…, m, n) of m anchors, to which ``counts`` (…, m) elements go: the plan, times n."""
    z = wide(rows.z)
    if rows.mean is None:
        # The squares of z and a, and a shift of all z, change the potentials and not the plan: without them numbers far from 0
        # and from each other lose no digits. Standardized numbers, near the anchors, keep them: the solver starts closer.
        cost = (z - z.detach().amax(-1, keepdim=True)).unsqueeze(-1) * (-2 * anchors)
    else:
        cost = (z.unsqueeze(-1) - anchors).square()
    cost = cost / (rows.softness.unsqueeze(-1) if isinstance(rows.softness, Tensor) and rows.softness.ndim else rows.softness)
    shares = counts / rows.n
    batch = torch.broadcast_shapes(cost.shape[:-2], shares.shape[:-1])
    even = numbers_like([1 / rows.n], rows.x).expand(*batch, rows.n)
    transport = plan(cost.expand(*batch, *cost.shape[-2:]), even, shares.expand(*batch, -1), rows.mode)
    return (transport.mT * rows.n).to(rows.x.dtype)


def _in_groups(rows: Rows, *places: Tensor) -> list[Tensor]:
    """The weights (…, k, n) for each of several ascending ``places`` (k), with the elements below and above as two groups."""
    # One plan for each of the k: one more batch dimension.
    softness = rows.softness.unsqueeze(-2) if isinstance(rows.softness, Tensor) and rows.softness.ndim else rows.softness
    rows = rows._replace(x=rows.x.unsqueeze(-2), z=rows.z.unsqueeze(-2), softness=softness)
    steps = [after - before for before, after in itertools.pairwise(places)]  # 0 after the last place
    counts = [places[0], torch.ones_like(places[0]), *steps, rows.n - 1 - places[-1]]
    anchors = torch.arange(len(counts), dtype=rows.x.dtype, device=rows.x.device) / (len(counts) - 1)
    weights = _transported(rows, anchors, torch.stack(counts, -1).to(rows.x.dtype))
    return [weights[..., i, :] for i in range(1, len(places) + 1)]
