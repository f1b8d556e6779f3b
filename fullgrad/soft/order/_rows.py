"""What the methods make of rows: the weights of each element in each place, the values in the places, and the ranks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad.soft._relaxation import Softness, to_opmath
from fullgrad.soft.order._numbers import weighted, wide
from fullgrad.soft.order._standardize import restored, standardized
from fullgrad.soft.order.methods import neuralsort as _neuralsort
from fullgrad.soft.order.methods import pairwise_sigmoid as _pairwise
from fullgrad.soft.order.methods import softsort as _softsort
from fullgrad.soft.order.methods import sorting_network as _network
from fullgrad.soft.order.projections import permutahedron as _permutahedron
from fullgrad.soft.order.projections import simplex as _simplex
from fullgrad.soft.order.projections import transport_polytope as _transport

# Methods whose values are sums with weights; those that have weights; and all.
WEIGHTED_SUM_METHODS = ("softsort", "neuralsort", "ot")
PERMUTATION_METHODS = (*WEIGHTED_SUM_METHODS, "sorting_network")
METHODS = (*PERMUTATION_METHODS, "fast_soft_sort")
RANK_METHODS = (*METHODS, "sigmoid")


class Rows(NamedTuple):
    """Rows along the last dimension, in float32 at least, and how they are relaxed.

    ``z`` is the row as indices see it, standardized or not, and ``u`` the same over the softness: all methods depend on it alone.
    """

    x: Tensor
    z: Tensor
    u: Tensor
    softness: Softness
    mode: str
    method: str
    restore: Callable[[Tensor], Tensor]
    standard: bool

    @property
    def n(self) -> int:
        """The length of a row."""
        return self.x.shape[-1]

    def tensor(self, values: Sequence[float]) -> Tensor:
        """Constants in the dtype and on the device of the rows."""
        return torch.tensor(values, dtype=self.x.dtype, device=self.x.device)


def rows_of(x: Tensor, softness: Softness, dim: int, mode: str, method: str, standardize: bool) -> Rows:
    """The rows of a tensor along a dimension."""
    x, softness = to_opmath(x, softness)
    x = x.movedim(dim, -1)
    z, restore = x, _same
    if standardize:
        z, mean, deviation = standardized(x)
        restore = lambda y: restored(y, mean, deviation)  # noqa: E731
    return Rows(x, z, z / softness, softness, mode, method, restore, standardize)


def _same(y: Tensor) -> Tensor:
    return y


# --- Weights ----------------------------------------------------------------------------------------------------------


def weights_in(r: Rows, places: Tensor) -> Tensor:
    """The weights (…, k, n) of the elements in k places, counted from the least. Not for transport, which has no places."""
    if r.method == "softsort":
        ordered = torch.sort(r.u, stable=True).values
        return distance_weights(ordered.gather(-1, places.expand(*ordered.shape[:-1], places.shape[-1])), r)
    if r.method == "neuralsort":
        return _neuralsort.weights(r.u, r.mode, places)
    weights = _network.weights(r.u, _pad(r), r.mode)
    return weights.gather(-2, places.unsqueeze(-1).expand(*weights.shape[:-2], places.shape[-1], r.n))


def all_weights(r: Rows) -> Tensor:
    """The weights (…, n, n) in all places."""
    if r.method == "softsort":
        return distance_weights(torch.sort(r.u, stable=True).values, r)
    if r.method == "ot":
        return transported(r, _evenly(r), r.tensor([1.0]).expand(r.n))
    if r.method == "sorting_network":
        return _network.weights(r.u, _pad(r), r.mode)
    return weights_in(r, torch.arange(r.n, device=r.x.device))


def largest_weights(r: Rows) -> Tensor:
    """The weights (…, n) in the last place, of which softsort needs no sort."""
    if r.method == "softsort":
        return _simplex.project(r.u, r.mode)
    if r.method == "ot":
        return transported(r, r.tensor([0.0, 1.0]), r.tensor([r.n - 1.0, 1.0]))[..., 1, :]
    return weights_in(r, torch.tensor([r.n - 1], device=r.x.device)).squeeze(-2)


def distance_weights(anchors: Tensor, r: Rows) -> Tensor:
    """Softsort's weights (…, k, n): by the distance from each of k anchors."""
    return _simplex.project(-(anchors.unsqueeze(-1) - r.u.unsqueeze(-2)).abs(), r.mode)


def transported(r: Rows, anchors: Tensor, counts: Tensor) -> Tensor:
    """The weights (…, m, n) of m anchors in [0, 1], to which ``counts`` (…, m) elements go: the transport plan, times n."""
    cost = (wide(r.z).unsqueeze(-1) - anchors).square()
    cost = cost / (r.softness.unsqueeze(-1) if isinstance(r.softness, Tensor) and r.softness.ndim else r.softness)
    shares = counts / r.n
    batch = torch.broadcast_shapes(cost.shape[:-2], shares.shape[:-1])
    plan = _transport.plan(
        cost.expand(*batch, *cost.shape[-2:]), r.tensor([1 / r.n]).expand(*batch, r.n), shares.expand(*batch, -1), r.mode
    )
    return (plan.mT * r.n).to(r.x.dtype)


def _evenly(r: Rows) -> Tensor:
    """As many anchors as elements."""
    return torch.arange(r.n, dtype=r.x.dtype, device=r.x.device) / max(r.n - 1, 1)


def _pad(r: Rows) -> Tensor:
    """What fills a network up: at the end of the row."""
    end = torch.ones_like(r.z[..., :1]) if r.standard else r.z.amax(-1, keepdim=True) + 1
    return end / r.softness


# --- Values -----------------------------------------------------------------------------------------------------------


def sorted_values(r: Rows) -> Tensor:
    """The values in all places, ascending."""
    if r.method == "softsort":
        return _softsort.values(r.u, r.x, r.mode)
    if r.method == "neuralsort":
        return _neuralsort.values(r.u, r.x, r.mode)
    if r.method == "fast_soft_sort":
        anchors, falling = _evenly(r).flip(-1).expand(r.z.shape), torch.sort(r.z, descending=True).values
        return r.restore(_permutahedron.project_sorted(anchors / r.softness, falling, r.mode).flip(-1))
    if r.method == "sorting_network":
        return r.restore(_network.values(r.u, _pad(r), r.mode) * r.softness)
    return weighted(all_weights(r), r.x)


def largest_value(r: Rows) -> Tensor:
    """The value (…) in the last place."""
    return (largest_weights(r) * r.x).sum(-1) if r.method in WEIGHTED_SUM_METHODS else sorted_values(r)[..., -1]


# --- Ranks ------------------------------------------------------------------------------------------------------------


def ranks(r: Rows) -> Tensor:
    """The ranks (…, n) from 1 to n, ascending."""
    if r.method == "softsort":
        return _softsort.ranks(r.u, r.mode)
    if r.method == "neuralsort":
        return _neuralsort.ranks(r.u, r.mode)
    if r.method == "sigmoid":
        return _pairwise.ranks(r.u, r.mode)
    numbers = torch.arange(1, r.n + 1, dtype=r.x.dtype, device=r.x.device)
    if r.method == "fast_soft_sort":
        scale = max(r.n - 1, 1)
        return scale * _permutahedron.project(r.u, (numbers / scale).expand(r.u.shape), r.mode)
    weights = all_weights(r)
    return weighted(weights.mT, numbers) / weights.sum(-2).clamp(min=1e-10)


# --- Variants ---------------------------------------------------------------------------------------------------------


def unweighted(r: Rows) -> Rows:
    """The rows with weights that are constants to every derivative. The other methods have no weights."""
    softness = r.softness.detach() if isinstance(r.softness, Tensor) else r.softness
    return r._replace(z=r.z.detach(), u=r.u.detach(), softness=softness)


def bounded(r: Rows) -> Rows:
    """The rows with their last finite element in the place of an infinity, of which a weight of 0 would make NaN."""
    infinite = torch.isinf(r.x)
    top = torch.where(infinite, -torch.inf, r.x.detach()).amax(-1, keepdim=True)
    bottom = torch.where(infinite, torch.inf, r.x.detach()).amin(-1, keepdim=True)
    return r._replace(x=torch.where(infinite, torch.where(r.x.detach() > 0, top, bottom), r.x))
