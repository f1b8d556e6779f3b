"""`jvp`: a value with its gradient, and a tangent that is a constant."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core import checks
from fullgrad._dispatch import drawing_as_before, is_tracing, outside_dynamo_later, pytree, transforms_active
from fullgrad._engine.random_states import random_states, restore_random_states
from fullgrad.adoption import adopting
from fullgrad.completion._completing import is_open
from fullgrad.forward._context import right_derivatives


def jvp(
    f: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...], track_tangent: bool = False
) -> tuple[Any, Any]:
    r"""The value of a function and its derivative along tangents, which is a constant to all that differentiates it.

    .. math::
        (y, \dot y) = \bigl(f(x),\ \operatorname{sg}[Df(x)\,\dot x]\bigr)

    Losses such as MeanFlow's take the gradient of the value alone. `torch.func.jvp` keeps what a backward of the tangent needs,
    too; this keeps what a backward of ``f(*primals)`` keeps, and nothing else: ``f`` runs once for the value, as it is written,
    and once more for the tangent, without a graph. Both runs draw the same random numbers, so they share a dropout mask.
    With ``track_tangent`` the tangent has its derivatives, and ``f`` runs once. In compiled code it runs once, and the compiler
    leaves out what nobody differentiates.

    The derivatives are those of :func:`fullgrad.completing`, so that attention has a tangent and a norm's can be differentiated;
    in compiled code open that context around the compiled function: without it the graph breaks at a call with
    ``track_tangent``. `torch.utils.checkpoint.checkpoint` in ``f`` works.

    Args:
        f: A function or a module. It runs twice, so it must have no other effects: running statistics would be updated twice.
        primals: The arguments, each a tensor or any structure of tensors.
        tangents: What ``primals`` is, with a tensor of the same shape and dtype for each tensor, or None for a constant.
        track_tangent: Whether the tangent has derivatives.

    Returns:
        The value of ``f`` and its tangent, which has the structure of the value; None where the value has no derivative.

    Raises:
        TypeError: ``f`` is not callable; ``primals`` or ``tangents`` is not a tuple; a tangent has another dtype.
        ValueError: The structures differ, a tangent has another shape, or all tangents are None.

    Example:
        >>> import torch, fullgrad
        >>> def loss(w, x):
        ...     value, tangent = fullgrad.forward.jvp(lambda x: torch.sin(w * x), (x,), (torch.ones_like(x),))
        ...     return value * tangent
        >>> w, x = torch.tensor(2.0), torch.tensor(0.5)
        >>> torch.func.grad(loss)(w, x)  # 0.5 cos(1) times the constant 2 cos(1)
        tensor(0.2919)

    Source: ``jax.jvp`` with ``jax.lax.stop_gradient``; Geng et al., Mean Flows, https://arxiv.org/abs/2505.13447.
    """
    checks.function("jvp", "f", f)
    checks.flag("jvp", "track_tangent", track_tangent)
    if track_tangent and is_dynamo_compiling() and not is_open():
        return _outside[0](f, primals, tangents, True)  # whose second derivatives need the context
    call = _Call(f, primals, tangents)
    if track_tangent or is_tracing():
        with right_derivatives():
            value, tangent = call.both()
        return value, tangent if track_tangent else pytree.tree_map(lambda t: None if t is None else t.detach(), tangent)
    before = random_states()
    with right_derivatives(), torch.no_grad():
        tangent = pytree.tree_map(lambda t: None if t is None else t.detach(), call.both()[1])
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled():
        torch.clear_autocast_cache()  # which has weights without a graph now
    draws = not all(map(torch.equal, before, random_states()))
    if draws:
        restore_random_states(before)
    # A transform around this call needs, for the value, what it needed for the tangent: torch's checkpoint has no transforms, and
    # its dropout draws in another order there. On a GPU torch draws other numbers in a transform, also when its checkpoint
    # draws again; on a CPU `completing` does not.
    known = right_derivatives() if transforms_active() else adopting(checkpoint=True) if draws else contextlib.nullcontext()
    with known, drawing_as_before(draws and not all(t.is_cpu for t in call.tangents)):
        return f(*primals), tangent


_outside = outside_dynamo_later(
    jvp, "jvp: the graph breaks at a call with `track_tangent`, unless fullgrad.completing() is open around the compiled function"
)


class _Call:
    """A call along tangents, as a function of the tensors that have one."""

    def __init__(self, f: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> None:
        for name, value in (("primals", primals), ("tangents", tangents)):
            if not isinstance(value, tuple):
                raise TypeError(f"jvp: `{name}` must be a tuple of arguments, got a value of type {type(value).__name__}.")
        self.f = f
        self.leaves, self.spec = pytree.tree_flatten(primals)
        given, spec = pytree.tree_flatten(tangents)
        if spec != self.spec:
            raise ValueError(f"jvp: `tangents` must have the structure of `primals`, {self.spec}, got {spec}.")
        self.where = [i for i, t in enumerate(given) if t is not None]
        if not self.where:
            raise ValueError("jvp: `tangents` must have a tensor, got None alone.")
        self.tangents = [_checked(self.leaves[i], given[i]) for i in self.where]

    def both(self) -> tuple[Any, Any]:
        """The value and the tangent, as a structure."""
        found: list[Any] = []

        def moving(*tensors: Tensor) -> tuple[list[Tensor], list[Any]]:
            leaves = [*self.leaves]
            for i, t in zip(self.where, tensors, strict=True):
                leaves[i] = t
            results, spec = pytree.tree_flatten(self.f(*pytree.tree_unflatten(leaves, self.spec)))
            moves = [isinstance(y, Tensor) and (y.is_floating_point() or y.is_complex()) for y in results]
            found[:] = spec, moves, results
            others = [y for y, m in zip(results, moves, strict=True) if isinstance(y, Tensor) and not m]
            return [y for y, m in zip(results, moves, strict=True) if m], others

        primals = tuple([self.leaves[i] for i in self.where])
        both: Any = torch.func.jvp(moving, primals, tuple(self.tangents), has_aux=True)
        values, tangents, others = both
        spec, moves, results = found
        rest, moved, along = iter(others), iter(values), iter(tangents)
        known = zip(results, moves, strict=True)
        value = [next(moved) if m else next(rest) if isinstance(y, Tensor) else y for y, m in known]
        return pytree.tree_unflatten(value, spec), pytree.tree_unflatten([next(along) if m else None for m in moves], spec)


def _checked(primal: Any, tangent: Any) -> Tensor:
    """A tangent, which is like its tensor."""
    checks.tensor("jvp", "primals", primal)
    checks.tensor("jvp", "tangents", tangent)
    if primal.dtype != tangent.dtype or not (primal.is_floating_point() or primal.is_complex()):
        raise TypeError(f"jvp: a tangent must have the floating dtype of its tensor, {primal.dtype}, got {tangent.dtype}.")
    if primal.shape != tangent.shape:
        raise ValueError(f"jvp: a tangent must have the shape of its tensor, {tuple(primal.shape)}, got {tuple(tangent.shape)}.")
    return tangent
