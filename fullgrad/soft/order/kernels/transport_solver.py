"""The dual of the transport problem: the plan of given potentials, the system of their differential, and the solver."""

import math

import torch
from torch import Tensor

from fullgrad.soft.order._numbers import POWERS, power, weighted

# --- The plan of given potentials, and the system -----------------------------------------------------------------------


def slack(f: Tensor, g: Tensor, cost: Tensor) -> Tensor:
    return sums(f, g) - cost


def link(t: Tensor, mode: str) -> Tensor:
    """The plan."""
    return t.exp() if mode == "smooth" else power(t.relu(), POWERS[mode])


def slope(t: Tensor, mode: str) -> Tensor:
    """The derivative of the link."""
    if mode == "smooth":
        return t.exp()
    if mode == "c0":
        # A NaN stays one.
        return torch.where(t.isnan(), t, (t > 0).to(t.dtype))
    alpha = POWERS[mode]
    return alpha * power(t.relu(), alpha - 1)


def sums(a: Tensor, b: Tensor) -> Tensor:
    """All sums of an entry of a and one of b."""
    return a[..., :, None] + b[..., None, :]


def solve(system: Tensor, right: Tensor) -> Tensor:
    """A system for each batch item, or one for many: then it is factorized once. NaN raises no error."""
    size = system.shape[-1]
    if system.shape[:-2].numel() == 1 and right.ndim > 1:
        columns = right.reshape(-1, size).mT
        return torch.linalg.solve_ex(system.reshape(size, size), columns)[0].mT.reshape(right.shape)
    return torch.linalg.solve_ex(system, right.unsqueeze(-1))[0].squeeze(-1)


def without_zeros(sums: Tensor) -> Tensor:
    return torch.where(sums == 0, 1, sums)


def laplacian(omega: Tensor, rows: Tensor, extra: Tensor) -> Tensor:
    r""":math:`\operatorname{diag}(\Omega^T 1 + e) - \Omega^T \operatorname{diag}(\Omega 1)^{-1} \Omega` with e ``extra``.

    It is a graph's Laplacian, whose diagonal is summed from the rest: the difference would be lost in round-off where each row
    goes almost to one column.
    """
    weights = omega.mT @ (omega / rows[..., None])
    size = omega.shape[-1]
    weights = weights * (1 - torch.eye(size, dtype=omega.dtype, device=omega.device))
    return torch.diag_embed(weights.sum(-1) + extra) - weights


# --- The solver: opaque to every transform --------------------------------------------------------------------------------

# How fast the cost grows to its size; the largest error of a marginal at which it may; and the bound on rounds, each of which is
# one step of Newton, tried or shortened. Most costs take 5 to 50. The second path is for items that fail on the first.
_PATHS = ((4.0, 0.1, 300), (1.5, 0.02, 3000))


def potentials(cost: Tensor, mu: Tensor, nu: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """f and g. Where g is the longer one the problem is turned, so that the systems to solve are small."""
    n, m = cost.shape[-2:]
    if m > n:
        g, f = potentials(cost.mT, nu, mu, mode)
        return f, g
    batch = torch.broadcast_shapes(cost.shape[:-2], mu.shape[:-1], nu.shape[:-1])
    count = math.prod(batch)
    f, g = cost.new_full((count, n), math.nan), cost.new_full((count, m), math.nan)
    if f.numel() and g.numel():
        cost = cost.expand(*batch, n, m).reshape(count, n, m)
        mu, nu = mu.expand(*batch, n).reshape(count, n), nu.expand(*batch, m).reshape(count, m)
        left = (cost.isfinite().flatten(1).all(-1) & mu.isfinite().all(-1) & nu.isfinite().all(-1)).nonzero()[:, 0]
        error = 0.0
        for path in _PATHS:
            if len(left):
                left, error = _ascend(cost, mu, nu, mode, left, f, g, path)
        if len(left):
            raise RuntimeError(
                f"The transport plan in mode {mode!r} did not converge for {len(left)} of {count} batch items: the marginals are "
                f"off by {error:.1e} of their total. A larger softness makes it easier."
            )
    first = g[:, :1]
    return (f + first).reshape(*batch, n), (g - first).reshape(*batch, m)


def _ascend(
    cost: Tensor, mu: Tensor, nu: Tensor, mode: str, items: Tensor, f_out: Tensor, g_out: Tensor, path: tuple[float, float, int]
) -> tuple[Tensor, float]:
    r"""Write f and g of some batch items; return those that did not converge and their largest error.

    With f eliminated exactly, row by row, the dual is a concave function of g alone, of gradient nu less the sums of the columns
    and Hessian minus the Laplacian. Newton's method ascends it, damped by a ridge that vanishes with the gradient, along each
    step back to where the slope is not much below 0. A cost that is large against the regularizer is reached by a path: it
    grows from a small multiple to its size, and the potentials with it.
    """
    eps, (growth, enough, rounds) = torch.finfo(cost.dtype).eps, path
    cost, mu, nu = cost[items], mu[items], nu[items]
    total, alpha = mu.sum(-1), POWERS.get(mode, 1)
    # The least weight of a column in the ridge: that of one entry that carries its whole marginal.
    unit = nu if mode == "smooth" else alpha * nu ** ((alpha - 1) / alpha)
    size = cost.abs().amax((-1, -2))
    span = cost - cost.amin(-1, keepdim=True)
    span = (span - span.amin(-2, keepdim=True)).amax((-1, -2))
    easy = 8.0 if mode == "smooth" else 2 * (mu.amax(-1) / nu.shape[-1]) ** (1 / alpha)
    kappa = (easy / span).clamp(max=1.0)

    g = torch.zeros_like(nu)
    f = _rows(_scores(g, kappa, cost), mu, None, mode)
    f, g = _sweep(*_sweep(f, g, kappa, cost, mu, nu, mode), kappa, cost, mu, nu, mode)
    omega, gap = _gap(f, g, kappa, cost, nu, mode)
    step, short, damping = torch.zeros_like(g), torch.ones_like(kappa), torch.ones_like(kappa)
    again, before = kappa < 0, torch.full_like(kappa, math.inf)
    error = before

    for _ in range(rounds):
        error = gap.abs().sum(-1) / total
        # What rounding of the cost leaves.
        noise = eps * (400 + 8 * kappa * size * omega.sum((-1, -2)) / total)
        ready = (kappa < 1) & ((gap.abs() <= enough * nu).all(-1) | (error <= noise))
        if ready.any():
            at = ready.nonzero()[:, 0]
            larger = (kappa[at] * growth).clamp(max=1.0)
            ratio = (larger / kappa[at])[:, None]
            c, row, col = cost[at], mu[at], nu[at]
            guess = g[at] * ratio
            start = _rows(_scores(guess, larger, c), row, f[at] * ratio, mode)
            start, guess = _sweep(start, guess, larger, c, row, col, mode)
            f[at], g[at], kappa[at], damping[at], again[at], before[at] = start, guess, larger, 1.0, False, math.inf
            omega[at], gap[at] = _gap(start, guess, larger, c, col, mode)
            error[at] = gap[at].abs().sum(-1) / total[at]

        # A column that is empty has no slope. Solved for on its own, it only just touches the support: the dual rises.
        empty = (omega.sum(-2) == 0) & ~again[:, None]
        if empty.any():
            at = empty.any(-1).nonzero()[:, 0]
            c, row, col, part = cost[at], mu[at], nu[at], kappa[at]
            start, guess = f[at], g[at]
            guess = torch.where(empty[at], _rows(_scores(start, part, c.mT), col, guess, mode), guess)
            start = _rows(_scores(guess, part, c), row, start, mode)
            f[at], g[at] = start, guess
            omega[at], gap[at] = _gap(start, guess, part, c, col, mode)
            error[at] = gap[at].abs().sum(-1) / total[at]

        # The last step that helps is made.
        done = (kappa == 1) & ((error <= 4 * eps) | ((error <= noise) & (error >= before / 4)))
        if done.any():
            f_out[items[done]], g_out[items[done]] = f[done], g[done]
            stay = ~done
            if not stay.any():
                return items[stay], 0.0
            items, cost, mu, nu, total, unit, size, kappa, f, g, omega, gap, step, short, damping, again, error = (
                v[stay]
                for v in (items, cost, mu, nu, total, unit, size, kappa, f, g, omega, gap, step, short, damping, again, error)
            )
        before = error

        step = step * short[:, None]
        if not again.all():
            ridge = (damping * error).clamp(min=64 * eps)[:, None] * torch.maximum(omega.sum(-2), unit)
            system = laplacian(omega, without_zeros(omega.sum(-1)), ridge)
            newton = torch.linalg.solve_ex(system, gap.unsqueeze(-1))[0].squeeze(-1)
            step = torch.where(again[:, None], step, newton)
        g_new = g + step
        f_new = f - weighted(omega, step) / without_zeros(omega.sum(-1))
        f_new = _rows(_scores(g_new, kappa, cost), mu, f_new, mode)
        omega_new, gap_new = _gap(f_new, g_new, kappa, cost, nu, mode)
        slope, slope_new = (step * gap).sum(-1), (step * gap_new).sum(-1)
        good = (slope_new >= -0.3 * slope) | (gap_new.abs().sum(-1) <= 0.7 * error * total)
        if not good.all():
            # One step of Newton along the step, from where it led: past a kink the slope is close to linear, before it flat.
            mean = weighted(omega_new, step) / without_zeros(omega_new.sum(-1))
            curvature = (omega_new * (step[:, None, :] - mean[..., None]).square()).sum((-1, -2))
            short = torch.where(curvature > 0, 1 + slope_new / curvature, 0.5).clamp(0.02, 0.9)
        calmer = torch.where(again, damping, damping / 2)
        damping = torch.where(good, calmer, damping * 4).clamp(1e-10, 1e10)
        f, g = torch.where(good[:, None], f_new, f), torch.where(good[:, None], g_new, g)
        omega, gap = torch.where(good[:, None, None], omega_new, omega), torch.where(good[:, None], gap_new, gap)
        again = ~good
    return items, float(error.max())


def _scores(g: Tensor, kappa: Tensor, cost: Tensor) -> Tensor:
    """g - kappa C."""
    return torch.addcmul(g[:, None, :], cost, kappa[:, None, None], value=-1)


def _gap(f: Tensor, g: Tensor, kappa: Tensor, cost: Tensor, nu: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """The slopes of the entries of the plan, and what its columns lack."""
    t = _scores(g, kappa, cost).add_(f[..., None])
    if mode == "smooth":
        t.exp_()
        return t, nu - t.sum(-2)
    t.clamp_(min=0)
    if mode == "c0":
        return (t > 0).to(t.dtype), nu - t.sum(-2)
    alpha = POWERS[mode]
    less = power(t, alpha - 1)
    return alpha * less, nu - (less * t).sum(-2)


def _sweep(f: Tensor, g: Tensor, kappa: Tensor, cost: Tensor, mu: Tensor, nu: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Solve for the columns, then for the rows, each exactly: Sinkhorn's step."""
    g = _rows(_scores(f, kappa, cost.mT), nu, g, mode)
    return _rows(_scores(g, kappa, cost), mu, f, mode), g


def _rows(scores: Tensor, mass: Tensor, guess: Tensor | None, mode: str) -> Tensor:
    r"""The offset f of each row for which :math:`\sum_j \varphi(f + b_j)` is its mass.

    In the c-modes by Newton's method on :math:`(\sum_j [f + b_j]_+^\alpha)^{1/\alpha}`, convex, homogeneous and close to linear.
    """
    if mode == "smooth":
        return mass.log() - scores.logsumexp(-1)
    alpha = POWERS[mode]
    top = scores.amax(-1)
    norm = mass if alpha == 1 else mass ** (1 / alpha)
    # All in the largest entry, or the same in all.
    high = norm - top
    low = high - norm * (1 - scores.shape[-1] ** (-1 / alpha))
    f = high if guess is None else torch.minimum(torch.maximum(guess, low), high)
    tolerance = 2 * torch.finfo(scores.dtype).eps * (top.abs() + norm)
    for _ in range(60):
        t = (scores + f[..., None]).clamp_(min=0)
        if alpha == 1:
            excess, slope = t.sum(-1) - norm, (t > 0).sum(-1).to(t.dtype)
        else:
            less = power(t, alpha - 1)
            mass_now, slope = less.mul(t).sum(-1), less.sum(-1)
            value = mass_now ** (1 / alpha)
            excess, slope = value - norm, slope * value / mass_now
        new = torch.minimum(torch.maximum(f - excess / slope, low), high)
        settled = ((new - f).abs() <= tolerance).all()
        f = new
        if settled:
            break
    return f


def _like(cost: Tensor, mu: Tensor, nu: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(cost.shape[:-2], mu.shape[:-1], nu.shape[:-1])
    return cost.new_empty((*batch, cost.shape[-2])), cost.new_empty((*batch, cost.shape[-1]))


torch.library.custom_op(
    "fullgrad::transport_potentials",
    potentials,
    mutates_args=(),
    schema="(Tensor cost, Tensor mu, Tensor nu, str mode) -> (Tensor, Tensor)",
).register_fake(_like)
