"""`entmax`: softmaxes with exact zeros."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import to_opmath
from fullgrad._core.recomputed import saved_inputs
from fullgrad._dispatch import holds, number_or_tensor, row_totals, rows_are_split
from fullgrad.soft._relaxation import floating
from fullgrad.soft.order._numbers import RowFunction
from fullgrad.soft.order.projections.simplex import less_largest, project
from fullgrad.soft.simplex._powers import log_of_weights, power_of_weights
from fullgrad.soft.simplex.kernels.threshold import entmax_weights, entmax_weights_by_number

# Exponents for which a row is projected by products alone, with the mode and the factor that do it.
MODES = {1.0: ("smooth", 1.0), 4 / 3: ("c2", 1 / 3), 1.5: ("c1", 0.5), 2.0: ("c0", 1.0)}
# Below this size a Taylor series, as the formula would cancel.
_SMALL = 0.01


def entmax(x: Tensor, alpha: Tensor | float = 1.5, dim: int = -1) -> Tensor:
    r"""Weights between a softmax (:math:`\alpha = 1`) and a sparse projection (:math:`\alpha = 2`), with a learnable exponent.

    .. math::
        p = [1 + a (x - \theta)]_+^{1 / a}, \quad a = \alpha - 1, \quad \sum p = 1, \qquad
        D_x\, t = w \circ \Bigl(t - \frac{\langle w, t \rangle}{\sum w}\Bigr), \qquad
        D_\alpha = c - w \frac{\sum c}{\sum w}

    with :math:`w = p^{2 - \alpha}` on the support, :math:`c = p (\log p)^2 \varphi(a \log p)` and
    :math:`\varphi(y) = (1 - e^{-y} - y) / y^2`. The weights maximize :math:`\langle x, p \rangle - \Omega_\alpha(p)` on the
    simplex, with the Tsallis entropy :math:`\Omega_\alpha = \sum (p^\alpha - p) / (\alpha (\alpha - 1))`, and are smooth in
    :math:`\alpha` at 1. The derivative is the true one of every order; on the boundary of the support, that of the support.
    Saved: the value, or roots of it (:math:`\alpha` = 3/2, 4/3). Above :math:`\alpha = 4` small changes of x are large ones of p.

    On a device the host waits for the rounds that find the threshold.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        alpha: The exponent, at least 1: a number, or a tensor that broadcasts with ``x``, of size 1 at ``dim``, and gets its own
            gradient.
        dim: The dimension along which the weights sum to 1.

    Returns:
        A tensor of the shape of ``x``. A row is NaN where it has a NaN or plus infinity, or all are minus infinity; minus
        infinity among others has the weight 0.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``alpha`` is not a real number or tensor.
        ValueError: ``alpha`` is below 1 or infinite, a number that is NaN, or a tensor that does not broadcast.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([1.0, 0.6, -1.0])
        >>> fullgrad.soft.entmax(x)
        tensor([0.6400, 0.3600, 0.0000])
        >>> torch.func.grad(lambda alpha: fullgrad.soft.entmax(x, alpha)[0])(torch.tensor(1.5))
        tensor(0.0988)

    Source: Peters, Niculae, Martins, https://arxiv.org/abs/1905.05702; Correia, Niculae, Martins, https://arxiv.org/abs/1909.00015;
    ``entmax.entmax_bisect``, ``entmax15``.
    """
    x = floating_rows("entmax", x, dim)
    exponent_in_range("entmax", alpha, 1.0, "at least 1")
    return entmax_of(x, alpha, dim)


@replaceable
def entmax_of(x: Tensor, alpha: Tensor | float, dim: int) -> Tensor:
    """`entmax` without the checks."""
    if x.ndim == 0:
        return torch.softmax(x, -1)
    return weights_of(*rows_and_exponent("entmax", x, alpha, dim)).movedim(-1, dim).to(x.dtype)


def weights_of(rows: Tensor, alpha: Tensor | float) -> Tensor:
    """The weights of rows, with one exponent for each or one for all."""
    if isinstance(alpha, Tensor) or alpha not in MODES:
        return Entmax.apply(rows, alpha)
    mode, factor = MODES[alpha]
    # Less their largest element where the product rounds: this changes no weight.
    return project(rows if factor == 1 else less_largest(rows, -1) * factor, mode)


def rows_and_exponent(name: str, x: Tensor, alpha: Tensor | float, dim: int) -> tuple[Tensor, Tensor | float]:
    """The rows, in float32 at least, and their exponents: a number, or one for each row."""
    wide, alpha = to_opmath(x, alpha)
    alpha = number_or_tensor(alpha, wide.dtype, wide.device)
    return wide.movedim(dim, -1), per_row(name, alpha, x, dim) if isinstance(alpha, Tensor) else alpha


def floating_rows(name: str, x: Any, dim: Any) -> Tensor:
    """The tensor as a floating one, checked, as is its dimension."""
    checks.real_tensor(name, "x", x)
    checks.one_dim(name, dim, x.ndim)
    return floating(x)


def exponent_in_range(name: str, alpha: Any, least: float, words: str) -> None:
    """Check that the exponent is a number in its range, or a tensor."""
    checks.real_number_or_tensor(name, "alpha", alpha)
    if isinstance(alpha, Tensor):
        checks.elements_between(name, "alpha", alpha, least, torch.finfo(torch.float64).max, f"{words} and finite")
    elif not (holds(alpha >= least) and holds(alpha < torch.inf)):
        raise ValueError(f"{name}: `alpha` must be {words} and finite, got {alpha}.")


def per_row(name: str, value: Tensor, x: Tensor, dim: int, argument: str = "alpha") -> Tensor:
    """A tensor that broadcasts with ``x`` as one number per row, with the rows last."""
    checks.broadcasts_to(name, argument, value, "`x`", x.shape)
    if value.ndim == 0:
        return value.reshape(1).to(x.device)  # a row of one number is no number to kernels
    value = value.reshape(*(1,) * (x.ndim - value.ndim), *value.shape).movedim(dim, -1)
    if not holds(value.shape[-1] == 1):
        raise ValueError(f"{name}: `{argument}` must have the size 1 along `dim`, got {value.shape[-1]}.")
    return value


class ExponentWeights(RowFunction):
    r"""Weights p of rows with an exponent. The rules, the symmetric map :math:`D_x` and :math:`D_\alpha`, read p alone."""

    saves = (1, 2)
    splits_rows = True
    # The derivative with respect to the rows times t, of (p, alpha, t); and with respect to the exponent, of (p, alpha).
    by_x: ClassVar[Callable[[Tensor, Any, Tensor], Tensor]]
    by_exponent: ClassVar[Callable[[Tensor, Any], Tensor]]

    @classmethod
    def vjp(cls, ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        alpha, p = saved_inputs(ctx)
        # Where ranks have parts of rows, each has its part of this sum.
        by_alpha = (g * cls.by_exponent(p, alpha)).sum(-1, keepdim=True) if ctx.needs_input_grad[1] else None
        return cls.by_x(p, alpha, g) if ctx.needs_input_grad[0] else None, by_alpha

    @classmethod
    def jvp(cls, ctx: Any, t: Tensor | None, t_alpha: Tensor | None) -> Tensor:
        alpha, p = saved_inputs(ctx)
        total: Any = None if t is None else cls.by_x(p, alpha, t)
        if t_alpha is not None:
            part = cls.by_exponent(p, alpha) * t_alpha
            total = part if total is None else total + part
        return total


class Entmax(ExponentWeights):
    """The operator of :func:`entmax`, on rows."""

    @staticmethod
    def forward(x: Tensor, alpha: Tensor | float) -> Tensor:
        a = alpha - 1
        if isinstance(a, Tensor):
            return entmax_weights(x, a.to(x.dtype))
        by_number = 1e-3 < a < 1 and not rows_are_split()
        return entmax_weights_by_number(x, a) if by_number else entmax_weights(x, x.new_full((1,), a))

    @staticmethod
    def by_x(p: Tensor, alpha: Any, t: Tensor) -> Tensor:
        w = power_of_weights(p, 2 - alpha)
        moved, total = row_totals((w * t).sum(-1, keepdim=True), w.sum(-1, keepdim=True))
        return w * (t - moved / total)

    @staticmethod
    def by_exponent(p: Tensor, alpha: Any) -> Tensor:
        r"""The derivative c at a constant threshold, less the multiple of w that makes the sum 0."""
        log_p, w = log_of_weights(p), power_of_weights(p, 2 - alpha)
        c = p * log_p * log_p * _phi((alpha - 1) * log_p)
        of_w, of_c = row_totals(w.sum(-1, keepdim=True), c.sum(-1, keepdim=True))
        return c - w / of_w * of_c


def _phi(y: Tensor) -> Tensor:
    r"""The function :math:`\varphi(y) = (1 - e^{-y} - y) / y^2`."""
    small = y.abs() < _SMALL
    z = torch.where(small, 1, y)
    series = torch.where(small, y, 0)
    polynomial = -0.5 + series * (1 / 6 + series * (-1 / 24 + series * (1 / 120 + series * (-1 / 720 + series / 5040))))
    return torch.where(small, polynomial, (-torch.expm1(-z) - z) / (z * z))
