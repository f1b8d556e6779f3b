r"""The projection onto the transport polytope: soft assignments with given marginals.

The plan of a cost :math:`C` and marginals :math:`\mu, \nu` of one total is

.. math::
    \Gamma = \operatorname{argmin}_{\Gamma 1 = \mu,\ \Gamma^T 1 = \nu} \langle C, \Gamma \rangle + R(\Gamma)
    = \varphi(T), \qquad T_{ij} = f_i + g_j - C_{ij}

with the link :math:`\varphi(t) = e^t` in smooth mode (entropy) and :math:`[t]_+^\alpha`, :math:`\alpha = 1, 2, 3`, in ``c0``,
``c1``, ``c2`` (the p-norm with :math:`p = 1 + 1 / \alpha`). The potentials :math:`f, g` are an operator with a declared
derivative, the plan is plain torch code of them.
"""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import wide_dtype
from fullgrad._core.recomputed import saved_inputs
from fullgrad._core.shards import reshaped
from fullgrad._dispatch import has_shape, surely, uses_last_dims
from fullgrad.soft._curves import Softness
from fullgrad.soft._mode_names import SOFT_MODES
from fullgrad.soft._relaxation import check, floating
from fullgrad.soft.order._numbers import RowFunction, row_origin, weighted
from fullgrad.soft.order.kernels.transport_dual import laplacian, link, slack, slope, solve, sums, without_zeros
from fullgrad.soft.order.kernels.transport_solver import potentials

# Marginals are raised to this: for a zero a potential would be infinite.
_SMALLEST = 1e-12


@uses_last_dims(2)
def proj_transport_polytope(cost: Tensor, mu: Tensor, nu: Tensor, softness: Softness = 0.1, mode: str = "smooth") -> Tensor:
    r"""The projection onto the transport polytope: soft assignments of n rows to m columns at a cost, with given shares.

    .. math::
        n \Gamma, \quad \Gamma = \arg\min_{\Gamma 1 = \mu,\ \Gamma^T 1 = \nu} \langle C, \Gamma \rangle + s R(\Gamma), \qquad
        D_C\, t = -\frac{n}{s}\, \Omega \circ (t - a \oplus b)

    with :math:`T = f \oplus g - C / s` for potentials f and g. In smooth mode R is the entropy
    :math:`\sum \Gamma (\log \Gamma - 1)`, and :math:`\Gamma = \Omega = e^T`; in ``c0``, ``c1``, ``c2`` it is
    :math:`\sum \Gamma^p / p` with p = 2, 3/2, 4/3, :math:`\Gamma = [T]_+^\alpha` and
    :math:`\Omega = \alpha [T]_+^{\alpha - 1}` with :math:`\alpha` = 1, 2, 3. a and b keep the sums of rows and columns, by a
    direct solve; shares have a derivative, too. Shares are raised to 1e-12, and those of the columns scaled to the total of the
    rows'. The solver works in float64, to about 1e-10. Saved: the cost over ``softness``, T, f and g.

    On a device the host waits for the solver, each round of which looks at numbers.

    Args:
        cost: Shape (…, n, m), floating, or integer (which gives the default dtype).
        mu: The shares of the rows, shape (…, n), not negative.
        nu: The shares of the columns, shape (…, m), not negative.
        softness: How uniform the assignments are, positive: a number, or a tensor that broadcasts with ``cost``, of size 1 in the
            last two dimensions.
        mode: ``"smooth"``, ``"c0"``, ``"c1"`` or ``"c2"``.

    Returns:
        n times the plan, shape (…, n, m): rows that sum to 1 for equal shares. NaN or infinity make their matrix NaN.

    Raises:
        TypeError: An argument is not a real tensor, or ``softness`` is not a real number or tensor.
        ValueError: The shapes do not fit, ``softness`` is a number that is not positive, or ``mode`` is unknown.
        RuntimeError: The solver did not converge.

    Example:
        >>> import torch, fullgrad
        >>> cost, even = torch.tensor([[0.0, 1.0], [0.2, 1.0]]), torch.tensor([0.5, 0.5])
        >>> fullgrad.soft.proj_transport_polytope(cost, even, even)
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])

    Source: Cuturi, https://arxiv.org/abs/1306.0895; Blondel, Seguy, Rolet, https://arxiv.org/abs/1710.06276;
    ``softjax.proj_transport_polytope``.
    """
    name = "proj_transport_polytope"
    for argument, value in (("cost", cost), ("mu", mu), ("nu", nu)):
        checks.real_tensor(name, argument, value)
    cost, softness = check(name, cost, softness, mode, SOFT_MODES)
    if cost.ndim < 2 or mu.ndim < 1 or nu.ndim < 1 or not has_shape(cost.shape[-2:], (mu.shape[-1], nu.shape[-1])):
        raise ValueError(
            f"{name}: `cost` must have the shape (…, n, m) for shares of shapes (…, n) and (…, m), "
            f"got shapes {tuple(cost.shape)}, {tuple(mu.shape)} and {tuple(nu.shape)}."
        )
    wide = cost.to(wide_dtype(cost))
    # One row per matrix: the origin of the whole matrix.
    rows = reshaped(wide.detach(), (*wide.shape[:-2], wide.shape[-2] * wide.shape[-1]))
    scaled = (wide - row_origin(rows).unsqueeze(-1)) / softness
    return (plan(scaled, floating(mu), floating(nu), mode) * cost.shape[-2]).to(cost.dtype)


def plan(cost: Tensor, mu: Tensor, nu: Tensor, mode: str) -> Tensor:
    r"""The transport plan of a cost that is already divided by the softness.

    .. math::
        \Gamma = \operatorname{argmin} \langle C, \Gamma \rangle + R(\Gamma), \qquad
        d\Gamma = \Omega \circ (df \oplus dg - dC), \quad \Omega = \varphi'(T)

    with the potentials of :class:`Potentials`. Marginals are raised to 1e-12, and those of the columns scaled to the total of the
    rows'. Computed in float64 where the device has it. Saved: the cost, both potentials, and T.

    Args:
        cost: Shape (..., n, m), floating.
        mu: The sums of the rows, shape (..., n), not negative; batch dimensions broadcast with those of the cost.
        nu: The sums of the columns, shape (..., m), as for the rows.
        mode: ``"smooth"``, ``"c0"``, ``"c1"`` or ``"c2"``.

    Returns:
        The plan, shape (..., n, m), in the dtype of the cost. A batch item with NaN or infinity is NaN.

    Raises:
        RuntimeError: The solver did not converge.
    """
    dtype, wide = cost.dtype, wide_dtype(cost)
    cost, mu, nu = cost.to(wide), mu.to(wide).clamp(min=_SMALLEST), nu.to(wide).clamp(min=_SMALLEST)
    nu = nu * (mu.sum(-1, keepdim=True) / nu.sum(-1, keepdim=True))
    f, g = Potentials.apply(cost, mu, nu, mode)
    return link(slack(f, g, cost), mode).to(dtype)


class Potentials(RowFunction):
    r"""The potentials :math:`f` (..., n) and :math:`g` (..., m) of the plan; the first entry of the shorter one is 0.

    Their differential solves

    .. math::
        \begin{pmatrix} \operatorname{diag}(\Omega 1) & \Omega \\ \Omega^T & \operatorname{diag}(\Omega^T 1) \end{pmatrix}
        \begin{pmatrix} df \\ dg \end{pmatrix}
        = \begin{pmatrix} (\Omega \circ dC) 1 + d\mu \\ (\Omega \circ dC)^T 1 + d\nu \end{pmatrix}

    and as the matrix is symmetric, so does :math:`(a, b)` for the cotangents, with :math:`\bar C = \Omega \circ (a \oplus b)`,
    :math:`\bar\mu = a`, :math:`\bar\nu = b`. :math:`\Omega` is computed from the inputs and outputs, so that derivatives of every
    order follow. Where the support of the plan is not connected, the potentials of its parts may shift against each other
    without changing the plan. Saved: the cost and the outputs.
    """

    whole_dims = (2, 1, 1, 0)
    raises_by_numbers = True
    saves = (0, 3, 4, 5)

    forward = staticmethod(potentials)

    @staticmethod
    def vjp(ctx: Any, p: Tensor, q: Tensor) -> tuple[Tensor | None, ...]:
        cost, mode, f, g = saved_inputs(ctx)
        omega = slope(slack(f, g, cost), mode)
        a, b = Balance.apply(omega, p, q)
        return omega * sums(a, b) if ctx.needs_input_grad[0] else None, a, b, None

    @staticmethod
    def jvp(ctx: Any, d_cost: Any, d_mu: Any, d_nu: Any, _: None) -> tuple[Tensor, Tensor]:
        cost, mode, f, g = saved_inputs(ctx)
        omega = slope(slack(f, g, cost), mode)
        d_mu, d_nu = [0 if d is None else d for d in (d_mu, d_nu)]
        flow = torch.zeros_like(omega) if d_cost is None else omega * d_cost
        return Balance.apply(omega, flow.sum(-1) + d_mu, flow.sum(-2) + d_nu)


class Balance(RowFunction):
    r"""The solution a (..., n) and b (..., m) of the linear system of the potentials,

    .. math::
        \operatorname{diag}(\Omega 1)\, a + \Omega b = p, \qquad \Omega^T a + \operatorname{diag}(\Omega^T 1)\, b = q

    The differential solves the same system for :math:`dp - (d\Omega \circ (a \oplus b)) 1` and
    :math:`dq - (d\Omega \circ (a \oplus b))^T 1`. With the solution (u, v) for the cotangents of a and b: :math:`\bar p = u`,
    :math:`\bar q = v`, :math:`\bar\Omega = -(a \oplus b) \circ (u \oplus v)`. Saved: the matrix and the outputs. The rules are
    not those of ``torch.linalg.solve``, which is wrong in forward mode over forward mode.

    The longer one of a and b is eliminated. The matrix is singular: a connected part of the support of the plan may raise its a
    and lower its b. The first entry of the shorter one is held near 0, a part without it by a ridge, of the size of round-off. p
    and q of a part balance, so that neither moves the plan.
    """

    whole_dims = (2, 1, 1)
    saves = (0, 3, 4)

    @staticmethod
    def forward(omega: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        if surely(omega.shape[-1] > omega.shape[-2]):
            b, a = Balance.forward(omega.mT, q, p)
            return a, b
        rows, size = without_zeros(omega.sum(-1)), omega.shape[-1]
        held = (torch.arange(size, device=omega.device) == 0).to(omega.dtype)
        ridge = torch.finfo(omega.dtype).eps * (64 + size) * without_zeros(omega.sum(-2))
        b = solve(laplacian(omega, rows, held + ridge), q - weighted(omega.mT, p / rows))
        return (p - weighted(omega, b)) / rows, b

    @staticmethod
    def vjp(ctx: Any, a_bar: Tensor, b_bar: Tensor) -> tuple[Tensor | None, ...]:
        omega, a, b = ctx.saved_tensors
        u, v = Balance.apply(omega, a_bar, b_bar)
        return -sums(a, b) * sums(u, v) if ctx.needs_input_grad[0] else None, u, v

    @staticmethod
    def jvp(ctx: Any, d_omega: Any, d_p: Any, d_q: Any) -> tuple[Tensor, Tensor]:
        omega, a, b = ctx.saved_tensors
        d_p, d_q = [0 if d is None else d for d in (d_p, d_q)]
        flow = torch.zeros_like(omega) if d_omega is None else d_omega * sums(a, b)
        return Balance.apply(omega, d_p - flow.sum(-1), d_q - flow.sum(-2))
