"""Numbers between two ends, which torch takes for constants."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import Moving, are_differentiated, makes_constants, overrides_nothing
from fullgrad.completion._registry import ATTRIBUTES, WRONG_GRADIENT, completes, replaces

_OVERLOADS = ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


def _between(start: Any, end: Any, steps: int, dtype: torch.dtype | None, device: Any) -> tuple[Tensor, torch.dtype]:
    """``start + i (end - start) / (steps - 1)``, counted from the nearer end as in torch, and the dtype of the result."""
    own = torch.get_default_dtype() if dtype is None else dtype
    if dtype is None and any(v.is_complex() if isinstance(v, Tensor) else isinstance(v, complex) for v in (start, end)):
        own = own.to_complex()
    wide = torch.promote_types(own, torch.float32) if own.is_floating_point or own.is_complex else torch.float64
    ends = [v if isinstance(v, Tensor) else torch.full((), v, dtype=own, device=device) for v in (start, end)]
    start, end = [v.reshape(1).to(device, own).to(wide) for v in ends]
    i, step = torch.arange(steps, device=start.device), (end - start) / max(steps - 1, 1)
    return torch.where(i < max(steps // 2, 1), start + step * i, end - step * (steps - 1 - i)), own


def _linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    y, own = _between(start, end, steps, dtype, device)
    return y.to(own)


def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, device: Any = None, **o: Any) -> Tensor:
    y, own = _between(start, end, steps, dtype, device)
    return torch.pow(base, y).to(own)


def _differentiable(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function by its operator: the function in Python takes its result out of every graph."""
    op = getattr(torch.ops.aten, name)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        ends = [v for v in (*args[:2], kwargs.get("start"), kwargs.get("end")) if isinstance(v, Tensor)]
        is_leaf = kwargs.get("requires_grad") or kwargs.get("out") is not None
        if not ends or is_leaf or not all(isinstance(v, Moving) or overrides_nothing(type(v)) for v in ends):
            return original(*args, **kwargs)
        kwargs.pop("requires_grad", None)
        return op(*args, **{"device": torch.empty(0).device} | kwargs)  # the usual device, which the operator does not know

    return function


def _refused(name: str) -> Callable[..., Any]:
    def function(start: Any, end: Any, *args: Any, **kwargs: Any) -> Any:
        """A reference to torch's function from before the context is not replaced."""
        ends = [v for v in (start, end) if isinstance(v, Tensor)]
        if makes_constants() and any(are_differentiated(ends)):
            raise NotImplementedError(
                f"{name}: torch loses the derivative by an end; call it as `torch.{name}` inside of completing, or detach that."
            )
        return NotImplemented

    return function


for _name, _formula in (("linspace", _linspace), ("logspace", _logspace)):
    for _overload in _OVERLOADS:
        completes(f"{_name}.{_overload}", WRONG_GRADIENT, batched=True)(_formula)
        replaces(f"{_name}.{_overload}")(_refused(_name))
    ATTRIBUTES.append((torch, _name, _differentiable(_name, getattr(torch, _name))))
