r"""Forward mode of a class that declares no ``jvp``: the transpose of its backward, if that is linear in the cotangent.

A backward :math:`B(g) = D(x)^T g` is transposed by differentiating it with respect to :math:`g`, at a :math:`g` that is not
special: not at 0, which a backward may leave out. A numerical test tells whether it is linear (`fullgrad._engine.linearity`). It
runs once for each class, its constant arguments and the inputs that are differentiated.
"""

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import (
    has_data,
    in_legacy_vmap,
    is_tracing,
    outside_legacy_vmap,
    pytree,
    transforms_active,
    unwrap_legacy_batched,
    vjp,
    without_modes,
)
from fullgrad._engine.linearity import GENERIC, is_linear, kinds_of, random_like, wider
from fullgrad._engine.random_states import same_draws
from fullgrad.adoption._call import Call
from fullgrad.adoption._slots import Slot
from fullgrad.adoption._tensors import Maybe, Refused, not_differentiable

TRANSPOSE, IDENTITY = "transpose", "identity"
_NOT_LINEAR = "its backward is not linear in the gradient, or cannot be differentiated"
_UNKNOWN = "its backward could not be tried with random numbers; call it once in eager forward mode before"
_MOST = 64  # verdicts of one class, so that arguments that change at each call do not add up

_trying: contextvars.ContextVar[bool] = contextvars.ContextVar("fullgrad.adoption.trying", default=False)
_verdicts: Any = weakref.WeakKeyDictionary()


def tangents_by(call: Call, flat: Maybe, tangents: Maybe, zeros: Sequence[Any]) -> Maybe:
    """The tangents of the outputs, by the class's ``jvp``, the transpose of its backward, or the identity."""
    if call.has_jvp:
        return call.jvp(flat, tangents)
    if not call.free:  # results that have no derivative
        return [None] * call.count
    if call.refusal:
        raise Refused(call.refusal)
    found = call.verdict or _verdicts.get(call.cls, {}).get(_key(call))
    if found == TRANSPOSE:
        generic = [torch.full(zeros[i].args[0], GENERIC, **zeros[i].keywords) for i in call.free]
        push = vjp(_pull(call, flat, tangents, zeros), *generic)[1]
        pushed = dict(zip(call.free, push(tuple(t for t in tangents if t is not None)), strict=True))
        return [pushed.get(i) for i in range(call.count)]
    if found == IDENTITY:
        return [next(t for t in tangents if t is not None).clone()]
    twice = ", and jacrev(jacrev(f)) for hessian(f)" if found in (None, _NOT_LINEAR) else ""
    reason = f"{found or _UNKNOWN}, and it declares no jvp"
    raise Refused(f"{call.name} has no forward mode: {reason}. Reverse mode works: jacrev(f) for jacfwd(f){twice}.")


def find_verdict(call: Call, tensors: Any, outs: Any = None) -> None:
    """Test the backward of a call for linearity: in traced code with random inputs and before its forward, otherwise with the
    actual tensors and after its forward.
    """
    if call.has_jvp or call.refusal or not call.in_forward_mode or not any(call.needed) or transforms_active():
        return
    if _trying.get():  # the trial of a backward that calls this class: it is of reverse mode alone, and would have no end
        return
    verdicts, key = _verdicts.setdefault(call.cls, {}), _key(call)
    traced = is_tracing() or not all(map(has_data, tensors))
    if key in verdicts or traced is not (outs is None):
        return
    if len(verdicts) >= _MOST:
        del verdicts[next(iter(verdicts))]
    # No legacy vmap, as that of `torch.autograd.functional.jacobian`, in which numbers cannot be drawn.
    plain = outside_legacy_vmap() if in_legacy_vmap() else contextlib.nullcontext()
    with without_modes() if traced else contextlib.nullcontext(), plain, same_draws(), torch.no_grad():
        token = _trying.set(True)
        try:
            tensors, outs = [_samples(ts) for ts in (tensors, outs)]
            tensors = [random_like(t.shape, t.dtype, t.device) for t in tensors] if traced else tensors
            verdicts[key] = _try(call, tensors, call.forward(*tensors) if outs is None else outs)
        except Exception as error:
            if not traced:  # a failure with random inputs tells nothing; this one may be of this call alone
                call.sample.verdict = not_differentiable(call.name, error)
        finally:
            _trying.reset(token)


def materialized(call: Call, cotangents: Iterable[Tensor | None], zeros: Sequence[Any]) -> Maybe:
    """Zeros for missing cotangents, unless the class has declined them."""
    return [z() if g is None and z and call.materialize else g for g, z in zip(cotangents, zeros, strict=False)]


def _pull(call: Call, flat: Maybe, tangents: Maybe, zeros: Sequence[Any]) -> Callable[..., tuple[Tensor, ...]]:
    """The gradients of the inputs that have a tangent as a function of the gradients of the outputs."""

    needs = [t is not None for t in tangents]

    def pull(*some: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(call.free, some, strict=True))
        grads = call.backward(flat, materialized(call, [given.get(i) for i in range(call.count)], zeros), needs)
        return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(grads, tangents, strict=True) if t is not None)

    return pull


def _key(call: Call) -> Any:
    """The key of a verdict: needed inputs, constants by value, and other objects by kind, so that none is kept alive."""
    constants = [c for c in pytree.tree_leaves(call.args) if not isinstance(c, (Slot, Tensor))]
    return tuple(call.needed), *kinds_of(constants)


def _samples(tensors: Any) -> Any:
    """The tensors, of the first sample of torch's legacy vmap."""
    if tensors is None:
        return None
    pairs = [(t, 0) if t is None else unwrap_legacy_batched(t, 0) for t in tensors]
    return [t if t is None or not count else t[(0,) * count] for t, count in pairs]


def _try(call: Call, tensors: Any, outs: Any) -> str:
    flat = [t.detach() for t in (*tensors, *outs)]
    tangents = [torch.randn_like(t) if needed else None for t, needed in zip(tensors, call.needed, strict=True)]

    def linear_with(kept: Sequence[Tensor]) -> bool:
        """Whether the backward is linear, with what its forward has kept in this dtype or in a wider one."""
        results = kept[len(tensors) :]
        pull = _pull(call, kept, tangents, [lambda o=o: torch.zeros_like(o) for o in results[: call.count]])
        return is_linear(pull, [results[i] for i in call.free])

    if linear_with(flat):
        return TRANSPOSE
    with contextlib.suppress(Exception):  # code for one dtype alone
        if linear_with([t.to(wider(t.dtype)) for t in flat]):  # it was rounding
            return TRANSPOSE
    alone = call.count == 1 and sum(t is not None for t in tangents) == 1
    x: Any = next(x for x, t in zip(call.in_front(*tensors), tangents, strict=True) if t is not None)
    return IDENTITY if alone and torch.equal(x, outs[0]) else _NOT_LINEAR
