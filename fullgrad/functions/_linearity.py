"""`Trials`: whether the rule of a function is linear, tried once for each kind of arguments."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import (
    below_transforms,
    first_sample,
    has_data,
    in_legacy_vmap,
    innermost,
    is_tracing,
    outside_legacy_vmap,
    outside_saved_tensor_hooks,
    transforms_active,
    unwrap_legacy_batched,
    without_modes,
)
from fullgrad._engine.differentiated import is_floating, may_differ
from fullgrad._engine.linearity import is_linear, random_like, wider
from fullgrad._engine.random_states import same_draws

_MOST = 16  # verdicts by the values of constants; for one that changes at each call, its type tells after that


class Trials:
    """The verdicts about the rules of a function."""

    def __init__(self) -> None:
        self.verdicts: dict[Any, bool] = {}

    def refute(self, key: Any, constants: tuple[Any, ...], function: Any, inputs: Sequence[Tensor], like: Sequence[Any]) -> bool:
        """Whether a rule is not linear, tried on the inputs of one sample; False if nothing can tell.

        ``function(is_wide)(*inputs, *v)`` is the rule as a function of v, tensors that ``like`` describes; or of wider ones.
        ``constants`` are pairs of the type and the value of each.
        """
        if is_dynamo_compiling():  # compiled autograd, which traces a backward
            return False
        found = self.verdicts.get((key, constants))
        if found is None:
            if len(self.verdicts) >= _MOST:
                constants = tuple([kind for kind, _ in constants])
                found = self.verdicts.get((key, constants))
            key = key, constants
        if found is None:
            if self in _now.running:  # a trial calls the rule again
                return False
            _now.running.append(self)
            try:
                found = _try_linear(function, inputs, like)
            finally:
                _now.running.pop()
            if found is None:
                return False
            if len(self.verdicts) >= 2 * _MOST:
                del self.verdicts[next(iter(self.verdicts))]
            self.verdicts[key] = found
        return not found


class _Now(threading.local):
    """The trials that run in this thread."""

    def __init__(self) -> None:
        self.running: list[Trials] = []


_now = _Now()


def _try_linear(function: Callable[[bool], Any], inputs: Sequence[Tensor], like: Sequence[Any]) -> bool | None:
    """Whether ``function(False)(*inputs, *v)`` is linear in v, as far as one can try.

    Where it does not seem so, that may be rounding: it is tried again at another point, by ``function(True)`` in float64 if the
    rule takes that. Traced code tries random inputs, which need not fit the function: None where it raises.
    """
    if in_legacy_vmap():
        pairs = [unwrap_legacy_batched(x, 0) for x in inputs]
        with outside_legacy_vmap():
            return _try_linear(function, [x[0] if count else x for x, count in pairs], like)
    traced = is_tracing() or not all(has_data(innermost(x)) for x in inputs)

    def points() -> tuple[list[Tensor], list[Tensor]]:
        x = [random_like(x.shape, x.dtype, x.device) if traced else first_sample(x) for x in inputs]
        # A rule may look linear where an input is 0. Other numbers need not fit it.
        return x, [torch.where(t == 0, torch.randn_like(t), t) if may_differ(t) else t for t in x]

    def attempt() -> bool | None:
        x, others = below_transforms(points)
        if not linear_at(x):
            return False
        try:
            return linear_at(others)
        except Exception:
            return None if traced else True

    def linear_at(x: Sequence[Tensor]) -> bool:
        return linear_in(x, like) or linear_again(x)

    def linear_again(x: Sequence[Tensor]) -> bool:
        near = below_transforms(lambda: [t * (1 + 0.1 * torch.rand_like(t.abs())) if may_differ(t) else t for t in x])
        try:
            wide = below_transforms(lambda: [t.to(wider(t.dtype)) for t in near])
            return linear_in(wide, widened(like), True)
        except Exception:
            return linear_in(near, like)

    def linear_in(x: Sequence[Tensor], kinds: Sequence[Any], is_wide: bool = False) -> bool:
        v, of = below_transforms(lambda: [random_like(*own) for own in kinds]), function(is_wide)
        precisions: list[torch.dtype] = []

        def results(*v: Tensor) -> list[Tensor]:
            found = [y for y in of(*x, *v) if may_differ(y)]
            # The verdict is about the dtype of the call.
            precisions[:] = [narrowest if is_wide else y.dtype for y in found]
            return found

        narrowest = max([dtype for _, dtype, _ in like if is_floating(dtype)], key=lambda d: torch.finfo(d).eps)
        return is_linear(results, v, precisions)

    if not traced:
        try:
            # The user's random numbers stay as they are. Transforms do not work inside saved-tensor hooks.
            with torch.no_grad(), same_draws(), outside_saved_tensor_hooks():
                return below_transforms(attempt)
        except RuntimeError:
            if not transforms_active():
                raise
            with torch.no_grad(), same_draws(), outside_saved_tensor_hooks():
                return attempt()  # it may close over tensors of transforms
    try:
        with without_modes(), torch.no_grad(), same_draws():
            return below_transforms(attempt)
    except Exception:
        return None


def widened(like: Sequence[Any]) -> list[Any]:
    """The shapes, dtypes and devices of tensors in float64."""
    return [(shape, wider(dtype), device) for shape, dtype, device in like]
