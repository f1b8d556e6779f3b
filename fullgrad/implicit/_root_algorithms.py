"""Small solvers, for those who have none: plain functions of torch code, batched by `torch.func.vmap`."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.autocast import matmul
from fullgrad._dispatch import (
    has_data,
    innermost,
    is_below_autograd,
    is_tracing,
    leaf_of,
    outside_inference_mode,
    transforms_active,
)
from fullgrad._engine.call import Result
from fullgrad.implicit._checks import check_solution, vector_of
from fullgrad.implicit._linear_algorithms import nonzero, norm
from fullgrad.implicit._vectors import flat, gradient, unflat


def newton(f: Callable[[Any], Any], init: Any, *, tol: float | None = None, maxiter: int = 50) -> Any:
    r"""Newton's method for the root of a function, with a step that is halved until the residual falls.

    .. math::
        z \leftarrow z - 2^{-k} f'(z)^{-1} f(z)

    For use in a solver of :func:`fullgrad.implicit.root`; it has no derivative of its own that is of use. In `torch.func.vmap`
    each sample stops by itself, and all run until the last one has stopped. The Jacobian is made, so it is for some hundred
    unknowns. Compiled code runs all ``maxiter`` iterations. On a device the host waits in each.

    Args:
        f: The function of a structure of tensors like ``init``, which returns one like it.
        init: Where it begins.
        tol: It stops where a step is smaller than ``tol`` times the norm of the solution; by default ``eps ** 0.75``. The step is
            still taken.
        maxiter: The most iterations.

    Returns:
        The solution, or what was reached.

    Raises:
        TypeError: ``f`` is not callable, or returns another structure, or a tensor is not of a floating dtype.
        ValueError: ``f`` returns another shape.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.implicit.newton(lambda z: z**2 - 2, torch.tensor(1.0))
        tensor(1.4142)

    Source: Deuflhard, Newton methods for nonlinear problems, 2004.
    """
    g, z, back = _of_vectors("newton", f, init)
    tol, own = _tolerance(z, tol), torch.promote_types(z.dtype, torch.float32)
    r = g(z)
    runs = torch.ones_like(norm(z), dtype=torch.bool)
    for _ in range(maxiter):
        if _none(runs):
            break
        jacobian = _jacobian(g, z).to(own)
        step = torch.linalg.solve_ex(jacobian, r.to(own).unsqueeze(-1))[0].squeeze(-1).to(z.dtype)
        size, scale, best, found = norm(r), torch.ones_like(norm(r)), z - step, g(z - step)
        for k in range(20):
            worse = runs & ~(norm(found) < size) & (size > 0)
            if _none(worse):
                break
            scale = torch.where(worse, scale / (2 if k < 10 else 8), scale)
            best = z - scale * step
            found = g(best)
        small, finite = norm(scale * step) <= tol * norm(best), norm(found).isfinite()
        moves = runs & (finite | ~norm(r).isfinite())  # NaN stays, and is not come by
        z, r = torch.where(moves, best, z), torch.where(moves, found, r)
        runs = runs & ~small & finite
    return back(z)


def anderson(
    f: Callable[[Any], Any], init: Any, *, tol: float | None = None, maxiter: int = 100, history: int = 5, damping: float = 1.0
) -> Any:
    r"""Anderson's acceleration of the iteration of a function.

    .. math::
        z \leftarrow \sum_i a_i f(z_i), \qquad \sum_i a_i = 1

    The next iterate is the combination of the last values of f whose combined residual is the least. Where the residual grows,
    the history is forgotten, and the next step is one of the plain iteration. All else is as in :func:`newton`, without a
    Jacobian.

    Args:
        f: The function of a structure of tensors like ``init``, which returns one like it.
        init: Where it begins.
        tol: It stops where :math:`f(z) - z` is smaller than ``tol`` times the norm of f; by default ``eps ** 0.75``.
        maxiter: The most calls of ``f``.
        history: How many former iterates are combined.
        damping: The part of the combined residual that is added.

    Returns:
        The fixed point, or what was reached.

    Raises:
        TypeError: ``f`` is not callable, or returns another structure, or a tensor is not of a floating dtype.
        ValueError: ``f`` returns another shape.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.implicit.anderson(torch.cos, torch.tensor(1.0))
        tensor(0.7391)

    Source: Walker, Ni, Anderson acceleration for fixed-point iterations, 2011.
    """
    g, z, back = _of_vectors("anderson", f, init)
    tol, own = _tolerance(z, tol), torch.promote_types(z.dtype, torch.float32)
    value = g(z)
    r, runs = value - z, torch.ones_like(norm(z), dtype=torch.bool)
    moves: list[Tensor] = []
    changes: list[Tensor] = []  # of the residual, of length 1, with the moves in the same units
    for _ in range(maxiter - 1):
        runs = runs & (norm(r) > tol * norm(value))  # not where it is NaN
        if _none(runs):
            break
        mixed = value - (1 - damping) * r
        if changes:
            # Weights of the last changes by which the residual falls most.
            rows = torch.stack(changes, -2)
            gram, right = matmul(rows, rows.mT).to(own), matmul(rows, r.unsqueeze(-1)).to(own)
            ridge = 10 * torch.finfo(z.dtype).eps * torch.eye(len(changes), dtype=own, device=z.device)
            weights = torch.linalg.solve_ex(gram + ridge, right)[0].to(z.dtype)
            mixed = mixed - matmul(torch.stack(moves, -2).mT, weights).squeeze(-1)
        z = torch.where(runs, mixed, z)
        before, former = value, r
        value = g(z)
        r = value - z
        change = r - former
        length = nonzero(norm(change))
        changes = [*changes, change / length][-history:]
        moves = [*moves, (value - before - (1 - damping) * change) / length][-history:]
        grew = norm(r) > norm(former)  # the history misleads: it is forgotten, and the next step is a plain one
        if not _none(grew):
            changes, moves = [[torch.where(grew, 0, t) for t in h] for h in (changes, moves)]
    return back(value)


def bisection(f: Callable[[Tensor], Tensor], low: Any, high: Any, *, maxiter: int | None = None) -> Tensor:
    r"""The root of a function of each element, between two bounds where it has two signs.

    .. math::
        f(z) = 0, \qquad a \le z \le b

    All else is as in :func:`newton`. Elements where the function has one sign at both bounds, or a bound is not finite, are NaN.

    Args:
        f: A function of each element of a tensor.
        low: The lower bounds, a tensor.
        high: The upper bounds, a tensor of the same shape, or a number.
        maxiter: The number of halvings; by default twice as many as the dtype has bits in its fraction.

    Returns:
        The root of each element.

    Raises:
        TypeError: ``f`` is not callable, or a bound is not of a floating dtype.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.implicit.bisection(torch.cos, torch.tensor(0.0), torch.tensor(3.0))
        tensor(1.5708)

    Source: Burden, Faires, Numerical analysis, 1985.
    """
    checks.callables("implicit.bisection", f=f)
    low, high = torch.broadcast_tensors(*[torch.as_tensor(v) for v in (low, high)])
    dtype = torch.promote_types(low.dtype, high.dtype)
    if not dtype.is_floating_point:
        raise TypeError(f"implicit.bisection: the bounds must be floating tensors, got {low.dtype} and {high.dtype}.")
    low, high = low.to(dtype), high.to(dtype)
    at_low, at_high = f(low), f(high)
    # A root that is as small, next to the bounds, as 1 is to the next number, has all its bits.
    for _ in range(round(-2 * math.log2(torch.finfo(dtype).eps)) if maxiter is None else maxiter):
        middle = low / 2 + high / 2
        value = f(middle)
        is_left = value.sign() == at_low.sign()
        low, high = torch.where(is_left, middle, low), torch.where(is_left, high, middle)
    root = low / 2 + high / 2
    root = torch.where(at_low == 0, low, root)
    is_between = (at_low.sign() * at_high.sign() <= 0) & low.isfinite() & high.isfinite()
    return torch.where(is_between, root, torch.nan)


def _of_vectors(name: str, f: Callable[[Any], Any], init: Any) -> tuple[Any, Tensor, Callable[[Tensor], Any]]:
    """A function of structures as one of vectors, the vector of its argument, and the way back."""
    checks.callables(f"implicit.{name}", f=f)
    structure = Result(init)
    like = structure.release()
    check_solution(f"implicit.{name}", like)

    def back(z: Tensor) -> Any:
        return structure.tree(unflat(z, like))

    def of_vector(z: Tensor) -> Tensor:
        label = f"implicit.{name}: the value of `f`"
        return vector_of(label, structure.flattened(f(back(z)), label), like)

    return of_vector, flat(like), back


def _jacobian(g: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    if transforms_active() or is_tracing() or torch.is_inference_mode_enabled() or is_below_autograd():
        with outside_inference_mode():
            return torch.func.jacrev(g)(z)
    # Transforms do not work inside saved-tensor hooks, and autograd does.
    with torch.enable_grad():
        leaf = leaf_of(z)
        pull = gradient([g(leaf)], [leaf])
    return torch.func.vmap(lambda w: pull([w])[0])(torch.eye(z.shape[0], dtype=z.dtype, device=z.device))


def _tolerance(z: Tensor, tol: float | None) -> float:
    return torch.finfo(z.dtype).eps ** 0.75 if tol is None else tol


def _none(runs: Tensor) -> bool:
    """Whether no sample runs. A tracer does not know, and a tensor without numbers."""
    return not is_tracing() and has_data(innermost(runs)) and not innermost(runs).any()
