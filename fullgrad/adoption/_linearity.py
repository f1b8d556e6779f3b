r"""Forward mode of a class that declares no ``jvp``: the transpose of its backward, if that is linear in the cotangent.

A backward :math:`B(g) = D(x)^T g` is transposed by differentiating it with respect to :math:`g`. Whether it is linear, and the
transpose its own, is found by numbers, :math:`B(g + h) = B(g) + B(h)` for random :math:`h` of several magnitudes and
:math:`\langle g, D t \rangle = \langle B(g), t \rangle`, once for each class and its constant arguments.
"""

import contextlib
import weakref
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import has_data, is_tracing, pytree, transforms_active, without_modes
from fullgrad.adoption._below import Maybe, first_line
from fullgrad.adoption._randomness import same_draws
from fullgrad.adoption._tensors import Like, is_differentiable, separate

TRANSPOSE = "transpose"
IDENTITY = "identity"
_NOT_LINEAR = "its backward is no linear, differentiable function of the gradient"
_SCALES = (1e-3, 1.0, 1e2)  # of random cotangents: what clips or normalizes shows at one of them
_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MOST = 64  # verdicts of one class, so that arguments that change at each call do not add up

_verdicts: Any = weakref.WeakKeyDictionary()


def verdict(call: Any) -> str | None:
    """`TRANSPOSE`, `IDENTITY` for a class that only acts on the gradient, or what is wrong; None if it is not known."""
    if call.once:
        return "its backward is once_differentiable"
    return _verdicts.get(call.cls, {}).get(_key(call))


def find_verdict(call: Any, tensors: tuple[Tensor, ...], outs: tuple[Tensor, ...] | None = None) -> None:
    """Try the backward of a call in forward mode: with the tensors at hand, or in traced code with random ones.

    Without the outputs of its forward that is run, too. Random numbers go on as if nothing had been drawn.
    """
    if call.once or call.has_jvp or not call.forward_mode or transforms_active() or verdict(call) is not None:
        return
    if not is_tracing() and all(map(has_data, tensors)):
        _note(call, _try(call, tensors, outs))
    else:
        with without_modes(), contextlib.suppress(Exception):
            _note(call, _try(call, tuple(_drawn(t) for t in tensors)))


def transposed(call: Any, flat: Maybe, tangents: Maybe, like: list[Like]) -> list[Tensor | None]:
    """The tangents of the outputs."""
    where = [i for i, t in enumerate(tangents) if t is not None]
    free = [i for i in range(call.layout.count) if i not in call.layout.constant]

    def pull(*some: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(free, some, strict=True))
        grads = call.backward(flat, materialized(call, [given.get(i) for i in range(call.layout.count)], like))
        return tuple(torch.zeros_like(tangents[i]) if grads[i] is None else grads[i] for i in where)  # pyright: ignore

    push = torch.func.vjp(pull, *[like[i].zeros() for i in free])[1]
    pushed = dict(zip(free, push(tuple(tangents[i] for i in where)), strict=True))
    return [pushed.get(i) for i in range(call.layout.count)]


def materialized(call: Any, cotangents: Maybe, like: list[Like]) -> Maybe:
    """Zeros for missing cotangents, unless the class has declined them."""
    if not call.layout.state.get("materialize_grads", True):
        return cotangents
    return [a.zeros() if g is None else g for g, a in zip(cotangents, like, strict=True)]


def _key(call: Any) -> Any:
    """Constants of the call by value, and other objects by their kind, so that none is kept alive."""
    leaves = pytree.tree_leaves(call.constants())
    return tuple((type(c), c if isinstance(c, _BY_VALUE) else getattr(c, "__qualname__", "")) for c in leaves)


def _note(call: Any, found: str) -> None:
    verdicts = _verdicts.setdefault(call.cls, {})
    if len(verdicts) >= _MOST:
        del verdicts[next(iter(verdicts))]
    verdicts[_key(call)] = found


def _drawn(tensor: Tensor) -> Tensor:
    shape = [getattr(getattr(n, "node", None), "hint", n) for n in tensor.shape]  # symbolic sizes have a hint
    draw = torch.randn if is_differentiable(tensor) else torch.zeros
    return draw(shape, dtype=tensor.dtype, device=tensor.device)


def _try(call: Any, tensors: tuple[Tensor, ...], outs: tuple[Tensor, ...] | None = None) -> str:
    with same_draws(tensors), torch.no_grad():
        if outs is None:
            call = call.anew()
            call.levelwise = False  # no transform is active
            outs = separate(call.forward(*tensors), tensors)
        return _compare(call, tensors, outs)


def _compare(call: Any, tensors: tuple[Tensor, ...], outs: tuple[Tensor, ...]) -> str:
    flat = [t.detach() for t in (*tensors, *outs)]
    outs = outs[: call.layout.count]
    like = [Like.of(o) for o in outs]

    def draw(t: Tensor, scale: float) -> Tensor | None:
        return (torch.randn(t.shape, device=t.device) * scale).to(t.dtype) if is_differentiable(t) else None

    def cotangents(scale: float) -> Maybe:
        return materialized(call, [None if i in call.layout.constant else draw(o, scale) for i, o in enumerate(outs)], like)

    state = torch.get_rng_state()  # a backward may draw: the same numbers each time

    def backward(given: Maybe) -> Maybe:
        torch.set_rng_state(state)
        return call.backward(flat, given)

    eps = max(torch.finfo(o.dtype).eps for o in outs if is_differentiable(o))
    for scale in _SCALES:
        g, h = cotangents(1.0), cotangents(scale)
        both = [None if a is None or b is None else a + b for a, b in zip(g, h, strict=True)]
        if not _is_sum(backward(both), backward(g), backward(h), 1e3 * eps):
            return IDENTITY if _acts_on_the_gradient_alone(call, tensors, outs) else _NOT_LINEAR
    tangents, g = [draw(t, 1.0) for t in tensors], cotangents(1.0)
    torch.set_rng_state(state)
    try:
        pushed = transposed(call, flat, tangents, like)
    except Exception as error:
        return f"its backward cannot be differentiated with respect to the gradient ({first_line(error)})"
    left, right = _products(g, pushed), _products(tangents, backward(g))
    finite = left.isfinite().all() and right.isfinite().all()  # else eager double backward is not finite either
    if finite and (left.sum() - right.sum()).abs() > 1e3 * eps * (left.abs().sum() + right.abs().sum()):
        return _NOT_LINEAR
    return TRANSPOSE


def _is_sum(total: Maybe, a: Maybe, b: Maybe, tolerance: float) -> bool:
    """Whether each gradient is the sum of two, up to rounding; NaN is equal to NaN."""
    for t, u, v in zip(total, a, b, strict=True):
        if (t is None) != (u is None) or (t is None) != (v is None):
            return False
        if t is not None and u is not None and v is not None:
            atol = tolerance * float(torch.cat([_real(w).flatten().nan_to_num(0, 0, 0).abs() for w in (t, u, v)]).amax())
            if not torch.allclose(_real(t), _real(u) + _real(v), rtol=tolerance, atol=atol, equal_nan=True):
                return False
    return True


def _products(a: Maybe, b: Maybe) -> Tensor:
    parts = [(_real(u) * _real(v)).flatten() for u, v in zip(a, b, strict=True) if u is not None and v is not None]
    return torch.cat([p.cpu() for p in parts] + [torch.zeros(1, dtype=torch.float64)])


def _real(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _acts_on_the_gradient_alone(call: Any, tensors: tuple[Tensor, ...], outs: tuple[Tensor, ...]) -> bool:
    """Whether the value is the input: then forward mode has nothing to do with the gradient that the backward changes."""
    where = [i for i, t in enumerate(tensors) if is_differentiable(t)]
    if len(outs) != 1 or len(where) != 1:
        return False
    x, front = tensors[where[0]], 0
    while hasattr(call, "inner"):
        dim = call.in_dims[where[0]]
        if dim is None:
            return False
        x, front, call = x.movedim(dim + front, front), front + 1, call.inner
    return torch.equal(x, outs[0])
