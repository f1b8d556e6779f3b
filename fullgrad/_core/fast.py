"""The registry of faster versions: a family states a formula, and an entry of ``fullgrad._fast`` computes its numbers sooner.

A function that has an entry is marked `replaceable`, or `pointwise`, if the entry is for large tensors alone. An entry runs in
eager code that nothing records, batches or traces; one that is itself differentiable torch code, ``recorded=True``, runs in all
eager code. Where an entry returns NotImplemented, the formula is computed. With ``FULLGRAD_FAST=0`` in the environment no entry
runs.

Two entries of other kinds: `exported` gives the numbers of a formula by an operator of torch that other tools know, where
torch.export traces, outside of ``vmap``; `on_gpu` gives them by kernels for a device, in all eager code, and comes first.
"""

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from fullgrad._dispatch import is_compiling, is_exporting, is_unrecorded, transforms_active

ENABLED = os.environ.get("FULLGRAD_FAST", "1") != "0"

# The modules of entries, by the family that loads them.
_OF_FAMILIES = {
    "fullgrad.clamping": ("windows",),
    "fullgrad.gradients": ("windows",),
    "fullgrad.soft": ("windows", "soft", "small_rows", "gpu.projections"),
    "fullgrad.spikes": ("windows", "spikes"),
    "fullgrad.rounding": ("rounding",),
    "fullgrad.quantizers": ("windows", "grids", "codebooks", "exported"),
    "fullgrad.sampling": ("windows", "sampling"),
}


class Entry(NamedTuple):
    """A formula and its faster version; how many units of the last place they may differ, of each number or of the largest one,
    where sums cancel; and whether autograd may record the version.
    """

    formula: Callable[..., Any]
    version: Callable[..., Any]
    within: float
    of_largest: bool
    recorded: bool
    # Puts another version in its place.
    put: Callable[..., None]

    def restore(self) -> None:
        """Put the faster version back, or none where they are turned off."""
        self.put(self.version if ENABLED else None, self.recorded)


ENTRIES: dict[str, Entry] = {}


def if_recorded(change: Callable[..., Any], x: Any, *args: Any) -> Any:
    """``change(x, *args)``, or ``x`` itself where nothing differentiates what is computed of it: for bounds that keep derivatives
    finite and change no value.
    """
    return x if is_unrecorded((x,)) else change(x, *args)


def replaceable(formula: Callable[..., Any]) -> Any:
    """Mark a function of tensors that an entry may replace."""
    return gated(formula)


def fast(target: Any, *, recorded: bool = False, within: float = 0, of_largest: bool = False) -> Any:
    """Register the decorated function as the faster version of a replaceable function, of a pointwise one for large tensors, or
    of a class's method that its base calls by name. ``within`` says how many units of the last place its numbers may be from the
    formula's, or, with ``of_largest``, of the largest number.
    """
    owner, formula = getattr(target, "__self__", None), getattr(target, "__wrapped__", target)
    call = target if owner is None else gated(formula)

    def register(version: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{(formula if owner is None else owner).__module__}.{target.__qualname__}"
        ENTRIES[name] = Entry(formula, version, within, of_largest, recorded, call.put)
        if ENABLED:
            call.put(version, recorded)
            if owner is not None:
                setattr(owner, target.__name__, staticmethod(call))
        return version

    return register


def exported(target: Any) -> Any:
    """Register the decorated function as what a replaceable function is in exported graphs, where it applies."""

    def register(version: Callable[..., Any]) -> Callable[..., Any]:
        target.put_exported(version)
        return version

    return register


def on_gpu(target: Any) -> Any:
    """Register the decorated function as what a replaceable function is on a GPU, where it applies. It may be recorded."""

    def register(version: Callable[..., Any]) -> Callable[..., Any]:
        target.put_on_gpu(version if ENABLED else None)
        return version

    return register


def gated(formula: Callable[..., Any]) -> Any:
    """A function that gives the numbers of a formula, by the version put in its place where that may run: the one gate."""
    version, recorded, in_exports, on_device = None, False, None, None

    @functools.wraps(formula)
    def call(*args: Any) -> Any:
        if on_device is not None and not is_compiling():
            found = on_device(*args)
            if found is not NotImplemented:
                return found
        if version is not None and (not is_compiling() if recorded else is_unrecorded(args)):
            found = version(*args)
            if found is not NotImplemented:
                return found
        if in_exports is not None and is_exporting() and not transforms_active():
            found = in_exports(*args)
            if found is not NotImplemented:
                return found
        return formula(*args)

    def put(new: Callable[..., Any] | None, differentiable: bool = False) -> None:
        nonlocal version, recorded
        version, recorded = new, differentiable

    def put_exported(new: Callable[..., Any]) -> None:
        nonlocal in_exports
        in_exports = new

    def put_on_gpu(new: Callable[..., Any] | None) -> None:
        nonlocal on_device
        on_device = new

    call.put_on_gpu = put_on_gpu  # pyright: ignore[reportAttributeAccessIssue]
    call.put = put  # pyright: ignore[reportAttributeAccessIssue]
    call.put_exported = put_exported  # pyright: ignore[reportAttributeAccessIssue]
    return call


def load_entries(family: str) -> None:
    """Import the entries of a family, once it is there."""
    for module in _OF_FAMILIES.get(family, ()):
        importlib.import_module(f"fullgrad._fast.{module}")
