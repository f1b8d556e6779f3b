"""The dual of the transport problem: the plan of given potentials, the system of their differential, and each side alone."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fullgrad._core.autocast import matmul
from fullgrad._dispatch import surely
from fullgrad.soft.order._numbers import POWERS, power


def slack(f: Tensor, g: Tensor, cost: Tensor) -> Tensor:
    return sums(f, g) - cost


def link(t: Tensor, mode: str) -> Tensor:
    """The plan, from the slack."""
    return t.exp() if mode == "smooth" else power(t.relu(), POWERS[mode])


def slope(t: Tensor, mode: str) -> Tensor:
    """The derivative of the link."""
    if mode == "smooth":
        return t.exp()
    if mode == "c0":
        # NaN stays NaN.
        return torch.where(t.isnan(), t, (t > 0).to(t.dtype))
    alpha = POWERS[mode]
    return alpha * power(t.relu(), alpha - 1)


def sums(a: Tensor, b: Tensor) -> Tensor:
    """The sums of every entry of a and every entry of b."""
    return a[..., :, None] + b[..., None, :]


def solve(system: Tensor, right: Tensor) -> Tensor:
    """The solution of one system per batch item, or of one system for all, factorized once. NaN raises no error."""
    size = system.shape[-1]
    # `Size.numel` would fix symbolic sizes.
    if surely(math.prod(system.shape[:-2]) == 1) and right.ndim > 1:
        columns = right.reshape(-1, size).mT
        return torch.linalg.solve_ex(system.reshape(size, size), columns)[0].mT.reshape(right.shape)
    return torch.linalg.solve_ex(system, right.unsqueeze(-1))[0].squeeze(-1)


def without_zeros(sums: Tensor) -> Tensor:
    return torch.where(sums == 0, 1, sums)


def laplacian(omega: Tensor, rows: Tensor, extra: Tensor) -> Tensor:
    r""":math:`\operatorname{diag}(\Omega^T 1 + e) - \Omega^T \operatorname{diag}(\Omega 1)^{-1} \Omega` with e ``extra``.

    The Laplacian of a graph, whose diagonal is summed from the rest: the difference would be lost in round-off where each row
    goes almost entirely to one column.
    """
    weights = matmul(omega.mT, omega / rows[..., None])
    size = omega.shape[-1]
    weights = weights * (1 - torch.eye(size, dtype=omega.dtype, device=omega.device))
    return torch.diag_embed(weights.sum(-1) + extra) - weights


class Problem(NamedTuple):
    """A batch of costs, each times a number kappa in (0, 1], and the marginals of their plans."""

    mode: str
    cost: Tensor
    kappa: Tensor
    mu: Tensor
    nu: Tensor

    def select(self, at: Tensor) -> "Problem":
        """The problems at some batch items."""
        return Problem(self.mode, *[v[at] for v in self[1:]])  # pyright: ignore[reportArgumentType]

    def rows(self, g: Tensor, guess: Tensor | None) -> Tensor:
        """The f for which the rows have the sums mu."""
        return _rows(_scores(g, self.kappa, self.cost), self.mu, guess, self.mode)

    def columns(self, f: Tensor, guess: Tensor) -> Tensor:
        """The g for which the columns have the sums nu."""
        return _rows(_scores(f, self.kappa, self.cost.mT), self.nu, guess, self.mode)

    def sweep(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The potentials after solving for the columns, then for the rows, each exactly: Sinkhorn's step."""
        g = self.columns(f, g)
        return self.rows(g, f), g

    def slopes_and_gap(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The slopes of the entries of the plan, and nu less the sums of its columns."""
        t = _scores(g, self.kappa, self.cost).add_(f[..., None])
        plan = link(t, self.mode)
        return plan if self.mode == "smooth" else slope(t, self.mode), self.nu - plan.sum(-2)


def _scores(g: Tensor, kappa: Tensor, cost: Tensor) -> Tensor:
    """The scores g - kappa C."""
    return torch.addcmul(g[:, None, :], cost, kappa[:, None, None], value=-1)


def _rows(scores: Tensor, mass: Tensor, guess: Tensor | None, mode: str) -> Tensor:
    r"""The offset f of each row for which :math:`\sum_j \varphi(f + b_j)` is its mass.

    In the c-modes by Newton's method on :math:`(\sum_j [f + b_j]_+^\alpha)^{1/\alpha}`, convex, homogeneous and close to linear.
    """
    if mode == "smooth":
        return mass.log() - scores.logsumexp(-1)
    alpha = POWERS[mode]
    top = scores.amax(-1)
    norm = mass if alpha == 1 else mass ** (1 / alpha)
    # All mass in the largest entry, or the same mass in every entry.
    high = norm - top
    low = high - norm * (1 - scores.shape[-1] ** (-1 / alpha))
    f = high if guess is None else torch.minimum(torch.maximum(guess, low), high)
    tolerance = 2 * torch.finfo(scores.dtype).eps * (top.abs() + norm)
    # Buffers for all steps: a fresh matrix in each step costs page faults.
    t, product = torch.empty_like(scores), torch.empty_like(scores)
    for _ in range(60):
        torch.add(scores, f[..., None], out=t).clamp_(min=0)
        if alpha == 1:
            excess, slope = t.sum(-1) - norm, (t > 0).sum(-1).to(t.dtype)
        else:
            less = power(t, alpha - 1)
            mass_now, slope = torch.mul(less, t, out=product).sum(-1), less.sum(-1)
            value = mass_now ** (1 / alpha)
            excess, slope = value - norm, slope * value / mass_now
        new = torch.minimum(torch.maximum(f - excess / slope, low), high)
        settled = ((new - f).abs() <= tolerance).all()
        f = new
        if settled:
            break
    return f
