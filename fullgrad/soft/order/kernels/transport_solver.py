"""The potentials of the transport plan, by a damped Newton's method on the dual."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import opaque
from fullgrad.soft.order._numbers import POWERS, weighted
from fullgrad.soft.order.kernels.transport_dual import Problem, laplacian, without_zeros

# The growth factor of the cost; the largest error of a marginal at which the cost may grow; and the bound on rounds, each of
# which tries or shortens one step of Newton. Most costs take 5 to 50 rounds. The second path is for items that fail on the first.
_PATHS = ((4.0, 0.1, 300), (1.5, 0.02, 3000))


def _like(cost: Tensor, mu: Tensor, nu: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(cost.shape[:-2], mu.shape[:-1], nu.shape[:-1])
    return cost.new_empty((*batch, cost.shape[-2])), cost.new_empty((*batch, cost.shape[-1]))


@opaque("transport_potentials", fake=_like, reads_values=True)
def potentials(cost: Tensor, mu: Tensor, nu: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The potentials f and g. Where g is longer the problem is transposed, so that the systems to solve are small."""
    n, m = cost.shape[-2:]
    if m > n:
        g, f = potentials(cost.mT, nu, mu, mode)
        return f, g
    batch = torch.broadcast_shapes(cost.shape[:-2], mu.shape[:-1], nu.shape[:-1])
    count = math.prod(batch)
    f, g = cost.new_full((count, n), math.nan), cost.new_full((count, m), math.nan)
    if not g.numel():  # nothing to transport, or nowhere
        return f.reshape(*batch, n), g.reshape(*batch, m)
    cost = cost.expand(*batch, n, m).reshape(count, n, m)
    mu, nu = mu.expand(*batch, n).reshape(count, n), nu.expand(*batch, m).reshape(count, m)
    left = (cost.isfinite().flatten(1).all(-1) & mu.isfinite().all(-1) & nu.isfinite().all(-1)).nonzero()[:, 0]
    error = 0.0
    for path in _PATHS:
        if len(left):
            start = _start(cost[left], mu[left], nu[left], mode, left)
            left, error = damped_newton(start, f, g, path)
    if len(left):
        raise RuntimeError(
            f"The transport plan in mode {mode!r} did not converge for {len(left)} of {count} batch items: the marginals are "
            f"off by {error:.1e} of their total. A larger softness makes it easier."
        )
    first = g[:, :1]
    return (f + first).reshape(*batch, n), (g - first).reshape(*batch, m)


class State(NamedTuple):
    """The state of Newton's method. Every tensor has the batch of the problem in front; `put` writes into them."""

    problem: Problem
    items: Tensor
    """The indices of the items in the whole batch."""
    total: Tensor
    """The total of the marginals."""
    unit: Tensor
    """The smallest weight of a column in the ridge."""
    size: Tensor
    """The largest cost."""
    f: Tensor
    g: Tensor
    omega: Tensor
    """The slopes of the plan of f and g."""
    gap: Tensor
    """The gradient: nu less the sums of the columns of the plan."""
    error: Tensor
    """The sum of the sizes of ``gap``, relative to the total."""
    before: Tensor
    """The error one step ago, infinite at first."""
    step: Tensor
    """The last step of g."""
    retry: Tensor
    """Whether the step was too long, and is already shortened."""
    damping: Tensor
    """The ridge, relative to the error."""

    def select(self, mask: Tensor) -> "State":
        """The state of some of the batch."""
        at = mask.nonzero()[:, 0]
        return State(self.problem.select(at), *[v[at] for v in self[1:]])  # pyright: ignore[reportArgumentType]

    def put(self, at: Tensor, f: Tensor, g: Tensor, problem: Problem) -> None:
        """Write new potentials of some of the batch, whose problem is given."""
        self.f[at], self.g[at] = f, g
        self.omega[at], self.gap[at] = problem.slopes_and_gap(f, g)
        self.error[at] = self.gap[at].abs().sum(-1) / self.total[at]


# The largest error of marginals that rounding may leave.
_MOST_NOISE = 1e-3


def damped_newton(s: State, f_out: Tensor, g_out: Tensor, path: tuple[float, float, int]) -> tuple[Tensor, float]:
    r"""Write f and g of the items of a state; return those that did not converge and their largest error.

    With f eliminated exactly, row by row, the dual is a concave function of g alone, with the gradient nu less the sums of the
    columns and the Hessian minus the Laplacian. Newton's method ascends it, damped by a ridge that vanishes with the gradient;
    steps are shortened to where the slope along them is not much below 0. A cost that is large against the regularizer is
    reached by a path: it grows from a small multiple to its size, and the potentials with it.
    """
    eps, (growth, enough, rounds) = torch.finfo(s.f.dtype).eps, path
    for _ in range(rounds):
        s = s._replace(error=s.gap.abs().sum(-1) / s.total, before=s.error)
        # The error that rounding of the cost leaves.
        noise = eps * (400 + 8 * s.problem.kappa * s.size * s.omega.sum((-1, -2)) / s.total)
        noise = noise.clamp(max=_MOST_NOISE)  # with more, nothing is known of the plan
        _grow_cost(s, (s.gap.abs() <= enough * s.problem.nu).all(-1) | (s.error <= noise), growth)
        _fill_empty_columns(s)
        # Items at their last useful step are done.
        done = (s.problem.kappa == 1) & ((s.error <= 4 * eps) | ((s.error <= noise) & (s.error >= s.before / 4)))
        if done.any():
            f_out[s.items[done]], g_out[s.items[done]] = s.f[done], s.g[done]
            s = s.select(~done)
            if not len(s.items):
                return s.items, 0.0
        s = _advance(s, _newton_step(s))
    return s.items, float(s.error.max())


def _start(cost: Tensor, mu: Tensor, nu: Tensor, mode: str, items: Tensor) -> State:
    """The first state: two sweeps at a cost that is small enough for them to come close."""
    alpha = POWERS.get(mode, 1)
    # The slope of a single entry that carries its whole marginal.
    unit = nu if mode == "smooth" else alpha * nu ** ((alpha - 1) / alpha)
    span = cost - cost.amin(-1, keepdim=True)
    span = (span - span.amin(-2, keepdim=True)).amax((-1, -2))
    easy = 8.0 if mode == "smooth" else 2 * (mu.amax(-1) / nu.shape[-1]) ** (1 / alpha)
    problem = Problem(mode, cost, (easy / span).clamp(max=1.0), mu, nu)

    g = torch.zeros_like(nu)
    f, g = problem.sweep(*problem.sweep(problem.rows(g, None), g))
    omega, gap = problem.slopes_and_gap(f, g)
    size, ones = cost.abs().amax((-1, -2)), torch.ones_like(problem.kappa)
    error, step = torch.full_like(ones, math.inf), torch.zeros_like(g)
    return State(problem, items, mu.sum(-1), unit, size, f, g, omega, gap, error, ones, step, ones < 0, ones.clone())


def _grow_cost(s: State, close: Tensor, growth: float) -> None:
    """Move items whose potentials are close to the next cost on the path, with potentials scaled and swept once."""
    kappa = s.problem.kappa
    at = ((kappa < 1) & close).nonzero()[:, 0]
    if not len(at):
        return
    part = s.problem.select(at)
    larger = (part.kappa * growth).clamp(max=1.0)
    ratio = (larger / part.kappa)[:, None]
    part = part._replace(kappa=larger)
    g = s.g[at] * ratio
    f, g = part.sweep(part.rows(g, s.f[at] * ratio), g)
    kappa[at], s.damping[at], s.retry[at], s.before[at] = larger, 1.0, False, math.inf
    s.put(at, f, g, part)


def _fill_empty_columns(s: State) -> None:
    """Solve empty columns, which have no slope, on their own: they then just touch the support, and the dual rises."""
    empty = (s.omega.sum(-2) == 0) & ~s.retry[:, None]
    if not empty.any():
        return
    at = empty.any(-1).nonzero()[:, 0]
    part, f, g = s.problem.select(at), s.f[at], s.g[at]
    g = torch.where(empty[at], part.columns(f, g), g)
    s.put(at, part.rows(g, f), g, part)


def _newton_step(s: State) -> Tensor:
    """The step of g: the last step, shortened, or Newton's."""
    if s.retry.all():
        return s.step
    eps = torch.finfo(s.step.dtype).eps
    ridge = (s.damping * s.error).clamp(min=64 * eps)[:, None] * torch.maximum(s.omega.sum(-2), s.unit)
    system = laplacian(s.omega, without_zeros(s.omega.sum(-1)), ridge)
    newton = torch.linalg.solve_ex(system, s.gap.unsqueeze(-1))[0].squeeze(-1)
    return torch.where(s.retry[:, None], s.step, newton)


def _advance(s: State, step: Tensor) -> State:
    """The state after the good steps; a step is shortened where the slope along it is far below 0."""
    g = s.g + step
    f = s.f - weighted(s.omega, step) / without_zeros(s.omega.sum(-1))
    f = s.problem.rows(g, f)
    omega, gap = s.problem.slopes_and_gap(f, g)
    slope, slope_new = (step * s.gap).sum(-1), (step * gap).sum(-1)
    good = (slope_new >= -0.3 * slope) | (gap.abs().sum(-1) <= 0.7 * s.error * s.total)
    if not good.all():
        # One step of Newton along the step, from its end: past a kink the slope is close to linear, before it flat.
        mean = weighted(omega, step) / without_zeros(omega.sum(-1))
        curvature = (omega * (step[:, None, :] - mean[..., None]).square()).sum((-1, -2))
        step = step * torch.where(curvature > 0, 1 + slope_new / curvature, 0.5).clamp(0.02, 0.9)[:, None]
    calmer = torch.where(s.retry, s.damping, s.damping / 2)
    return s._replace(
        f=torch.where(good[:, None], f, s.f),
        g=torch.where(good[:, None], g, s.g),
        omega=torch.where(good[:, None, None], omega, s.omega),
        gap=torch.where(good[:, None], gap, s.gap),
        step=step,
        retry=~good,
        damping=torch.where(good, calmer, s.damping * 4).clamp(1e-10, 1e10),
    )
