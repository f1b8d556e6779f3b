"""Every private name of torch that fullgrad uses, each with the reason why no public name will do.

Two dispatches lead from an operator to torch:

* ``"functorch"`` dispatches on functorch's interpreter stack itself. It is fast (no class, no pytree and no signature is built
  per call) and respects ``torch.no_grad()`` at every level. It needs the names of `_FUNCTORCH`.
* ``"fallback"`` goes through the public ``torch.autograd.Function.apply``. It is taken when a name
  of the functorch dispatch is missing in the installed torch, or when the environment variable
  ``FULLGRAD_DISPATCH=fallback`` asks for it.

`DISPATCH` says which one is in use and `MISSING` which names were not found. ``tests/dispatch/test_fallback.py`` reports both.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch._subclasses
import torch.fx.traceback
import torch.utils._python_dispatch
import torch.utils._pytree
import torch.utils.checkpoint

__all__ = ["DISPATCH", "MISSING"]

MISSING: list[str] = []


def _find(path: str) -> Any:
    """The object at a dotted path below ``torch``, or None, in which case the path is added to `MISSING`."""
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            MISSING.append(f"torch.{path}")
            return None
    return found


# --- Names that both dispatches need ---------------------------------------------------------------------------------------

# Is any torch.func transform active? It decides between the plain call and the transforms' dispatch.
transforms_active = _find("_C._are_functorch_transforms_active")

# Autograd calls a Function's jvp with forward mode switched off. Under nested forward mode the rule itself has to be
# differentiated, so it is switched on again (https://github.com/pytorch/pytorch/issues/197867).
set_forward_mode = _find("_C._set_fwd_grad_enabled")
is_forward_mode = _find("_C._is_fwd_grad_enabled")

# Saved tensors still carry the tangent of the level that is being differentiated; its primal is wanted. The public
# `forward_ad.unpack_dual` reads a level kept in Python that compiled code does not set.
unpack_dual = _find("_VF._unpack_dual")

if MISSING:
    raise ImportError(
        f"fullgrad cannot be right on torch {torch.__version__}: {', '.join(MISSING)} is gone, and without it "
        "forward mode over a custom derivative is silently zero. Please open an issue on fullgrad and name your torch version."
    )

# --- Names of the functorch dispatch --------------------------------------------------------------------------------------------

_FUNCTORCH: dict[str, str] = {
    # The interpreter stack: which transform is on top, and how to step below it. torch's own dispatcher for Functions
    # (`custom_function_call`) does the same through pytrees and one new class per call.
    "peek": "_C._functorch.peek_interpreter_stack",
    "pop": "_C._functorch.pop_dynamic_layer_stack",
    "push": "_C._functorch.push_dynamic_layer_stack",
    "TransformType": "_C._functorch.TransformType",
    "GradInterpreter": "_C._functorch.CGradInterpreterPtr",
    "JvpInterpreter": "_C._functorch.CJvpInterpreterPtr",
    "VmapInterpreter": "_C._functorch.CVmapInterpreterPtr",
    "FunctionalizeInterpreter": "_C._functorch.CFunctionalizeInterpreterPtr",
    "RandomnessType": "_C._functorch.RandomnessType",
    # Between a tensor of one level and the tensor that it wraps.
    "unwrap_for_grad": "_C._functorch._unwrap_for_grad",
    "wrap_for_grad": "_C._functorch._wrap_for_grad",
    "unwrap_batched": "_C._functorch._unwrap_batched",
    "add_batch_dim": "_C._functorch._add_batch_dim",
    "unwrap_functional": "_C._functorch._unwrap_functional_tensor",
    "wrap_functional": "_C._functorch._wrap_functional_tensor",
    "is_functional": "_is_functional_tensor",
    "sync": "_sync",
    # A function returned by torch.func.vjp sees tensors whose level has ended. torch's operators unwrap them, Functions do not.
    "unwrap_if_dead": "_C._functorch.unwrap_if_dead",
    # A Function that differentiates at one level only, which is what a transform needs, and the switch that permits its use.
    "SingleLevelFunction": "autograd.function._SingleLevelFunction",
    "get_single_level": "_C._functorch.get_single_level_autograd_function_allowed",
    "set_single_level": "_C._functorch.set_single_level_autograd_function_allowed",
    # The grad mode without the context manager, which costs more than a small operation.
    "set_grad": "_C._set_grad_enabled",
    # The public Function.apply binds an `inspect.signature` at every call of a Function that has a setup_context: 7 of 10 us.
    "FunctionBase": "_C._FunctionBase",
}

_names: dict[str, Any] = {short: _find(path) for short, path in _FUNCTORCH.items()}

peek = _names["peek"]
pop = _names["pop"]
push = _names["push"]
TransformType = _names["TransformType"]
GradInterpreter = _names["GradInterpreter"]
JvpInterpreter = _names["JvpInterpreter"]
VmapInterpreter = _names["VmapInterpreter"]
FunctionalizeInterpreter = _names["FunctionalizeInterpreter"]
RandomnessType = _names["RandomnessType"]
unwrap_for_grad = _names["unwrap_for_grad"]
wrap_for_grad = _names["wrap_for_grad"]
unwrap_batched = _names["unwrap_batched"]
add_batch_dim = _names["add_batch_dim"]
unwrap_functional = _names["unwrap_functional"]
wrap_functional = _names["wrap_functional"]
is_functional = _names["is_functional"]
sync = _names["sync"]
unwrap_if_dead = _names["unwrap_if_dead"]
SingleLevelFunction = _names["SingleLevelFunction"]
get_single_level = _names["get_single_level"]
set_single_level = _names["set_single_level"]
set_grad = _names["set_grad"]
FunctionBase = _names["FunctionBase"]

DISPATCH: str = "fallback" if MISSING or os.environ.get("FULLGRAD_DISPATCH") == "fallback" else "functorch"


# Since torch 2.15 the C code of apply unwraps the tensors of ended levels itself.
APPLY_UNWRAPS: bool = FunctionBase is not None and torch.autograd.Function.__dict__.get("apply") is FunctionBase.__dict__["apply"]


def bind_apply(function: type) -> Any:
    """``function.apply`` as C code offers it, without the Python layers above it."""
    return FunctionBase.__dict__["apply"].__get__(None, function)


# --- Names with a safe default ----------------------------------------------------------------------------------------


class _LevelUnknown:
    """Stands in for `forward_ad` where it keeps no level: one may be open, always; speed is lost, nothing else."""

    _current_level = 0


# Whether eager code is inside `forward_ad.dual_level()`: the module's `_current_level` is not negative. There is no public way
# to ask.
forward_ad: Any = torch.autograd.forward_ad if hasattr(torch.autograd.forward_ad, "_current_level") else _LevelUnknown


def forward_mode_is_on() -> bool:
    """Whether eager code is inside a level of forward mode, `torch.func.jvp` included. Compiled code does not know."""
    return forward_ad._current_level >= 0


# The kit's tensors without data; torch documents them under this name only. Without it `fullgrad.testing` alone fails.
FakeTensorMode: Any = getattr(torch._subclasses, "FakeTensorMode", None)

# How the kit counts the operations of a backward; this is the path under which torch documents it. Without it, likewise.
TorchDispatchMode: Any = getattr(torch.utils._python_dispatch, "TorchDispatchMode", None)

# Which transforms are active, outermost first. torch.export of a transform depends on it. Without the name it is refused.
_interpreters: Any = getattr(getattr(torch._C, "_functorch", None), "get_interpreter_stack", None)


def only_vmap_active() -> bool:
    """Whether every active transform is a ``vmap``."""
    return _interpreters is not None and all(i.key().name == "Vmap" for i in _interpreters() or ())


# Structures of tensors as torch.func takes them. torch has no public name for its pytrees.
_tree_map_with_path: Any = torch.utils._pytree.tree_map_with_path
_keystr: Any = torch.utils._pytree.keystr


def tree_map_with_path(function: Any, tree: Any) -> Any:
    """``function(path, leaf)`` of every leaf, the path as it would be written in Python, in the same structure."""
    return _tree_map_with_path(lambda path, leaf: function(_keystr(path), leaf), tree)


def tree_map_pairs(function: Any, first: Any, second: Any, name: str) -> Any:
    """``function`` of the leaves of two structures that are alike."""
    leaves, structure = torch.utils._pytree.tree_flatten(first)
    others, other = torch.utils._pytree.tree_flatten(second)
    if structure != other:
        raise ValueError(f"{name}: the two outputs must have one structure, got {structure} and {other}.")
    return torch.utils._pytree.tree_unflatten([function(a, b) for a, b in zip(leaves, others, strict=True)], structure)


def is_differentiating() -> bool:
    """Whether a transform, forward mode or grad mode is on. True in compiled code, which does not know."""
    return _is_compiling() or _is_grad_enabled() or transforms_active() or forward_ad._current_level >= 0


def can_skip_autograd(x: torch.Tensor) -> bool:
    """Whether eager code computes with a plain tensor that wants no derivative: a ``forward`` of it may be called as it is.

    torch.export has tensors of its own, or compiles.
    """
    return (
        x.__class__ is _Tensor
        and not x.requires_grad
        and not transforms_active()
        and forward_ad._current_level < 0
        and not _is_compiling()
    )


# The functions that every small operation calls, found once.
_Tensor, _is_compiling, _is_grad_enabled = torch.Tensor, torch.compiler.is_dynamo_compiling, torch.is_grad_enabled


# How many dispatch modes are on: a tracer is one of them. In-place operations that a tracer records are run again and again on
# what torch.func.linearize takes for constants, a silently wrong second call. Without the name, a tracer may be on: memory is
# lost, nothing else.
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def is_tracing() -> bool:
    """Whether a dispatch mode is on, which may be a tracer that wants operations and not numbers."""
    return _dispatch_modes() > 0


# Forward mode wants the tangent of a view in the view's own layout, of another output in any. Without the name all are views.
_is_view: Any = getattr(torch.Tensor, "_is_view", lambda tensor: True)


def clone_if_view(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it is a view: for the output of a ``forward`` that ends in one of a temporary."""
    return tensor.clone() if _is_view(tensor) else tensor


def has_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor has numbers: it is neither on the meta device nor a tracer's."""
    return not (tensor.is_meta or (_FakeTensor is not None and isinstance(tensor, _FakeTensor)))


_FakeTensor: Any = getattr(torch._subclasses, "FakeTensor", None)

# torch.autograd.grad(is_grads_batched=True) still uses torch's legacy vmap, which the interpreter stack does not show.
_is_legacy: Any = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda tensor: False)


def unwrap_legacy_batched(tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, int]:
    """A tensor of torch's legacy vmap as a plain one with the batch in dim 0: one more of its ``count`` batch dims."""
    while _is_legacy(tensor):
        tensor, count = torch._remove_batch_dim(tensor, _legacy_level(), 1, 0), count + 1
    return tensor, count


# An operator that a graph must keep and run in order although nothing uses its output, forward and backward.
_ordered: Any = getattr(getattr(torch.library, "EffectType", None), "ORDERED", None)


def effect(name: str) -> Any:
    """A decorator: the function as an operator of that name which compiled code calls when it runs, and never drops.

    Without torch's name the operator raises when it is traced, so that nothing stays unrecorded in silence.
    """

    def decorate(function: Any) -> Any:
        # CUDA graphs replay kernels and no Python.
        operator: Any = torch.library.custom_op(name, function, mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
        known = _ordered is not None and hasattr(operator, "register_effect")
        if known:
            operator.register_effect(_ordered)

        def nothing(*args: Any) -> None:
            if not known:
                raise NotImplementedError(
                    f"{name} cannot be traced: torch {torch.__version__} has no CustomOpDef.register_effect."
                )

        operator.register_fake(nothing)
        return operator

    return decorate


def can_reuse_buffers() -> bool:
    """Whether eager code may overwrite its temporaries: its steps are neither differentiated nor batched nor traced."""
    return not (is_differentiating() or is_tracing() or in_legacy_vmap())


def in_legacy_vmap() -> bool:
    """Whether torch's legacy vmap is active, which no interpreter stack shows."""
    return _legacy_vmap and _legacy_level() > 0


def _legacy_level() -> int:
    """How many of torch's legacy vmap are active. They are looked at by entering one more."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


_legacy_vmap: bool = hasattr(torch._C, "_vmapmode_increment_nesting")


def out_buffer(temporary: torch.Tensor) -> torch.Tensor | None:
    """For the ``out`` of an elementwise operation in a ``forward``: a fresh temporary, or None while torch traces."""
    return None if _dispatch_modes() else temporary


def recomputed(function: Any, *args: Any, **kwargs: Any) -> Any:
    """``function(…)`` for use in a derivative rule: compiled code shall compute it in the backward and not save its result.

    AOTAutograd's partitioner moves what depends on saved inputs alone into the forward, and would keep a mask or a float per
    element where an input that is alive anyway will do. The mark is the one that ``torch.utils.checkpoint`` puts on its nodes.
    It is for the CPU, whose memory is slow beside its arithmetic and whose compiled code stores bools one by one.
    """
    first = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if not _dispatch_modes() or first is None or first.device.type != "cpu":
        return function(*args, **kwargs)
    meta = getattr(torch.fx.traceback, "current_meta", {})
    before = {key: meta[key] for key in ("recompute", "ac_graph_id") if key in meta}
    meta.update(recompute=torch.utils.checkpoint.CheckpointPolicy.MUST_RECOMPUTE, ac_graph_id=before.get("ac_graph_id", 0))
    try:
        return function(*args, **kwargs)
    finally:
        for key in ("recompute", "ac_graph_id"):
            meta.pop(key)
        meta.update(before)


def mark_cacheable(functions: Mapping[str, str]) -> None:
    """Tell torch's cache of compiled graphs, by name, which functions may be in a graph and, by key, what they are.

    AOTAutograd does not cache a graph with a function that it does not know. Where inductor is not in use nobody needs to know.
    It is given a new dict, since torch does not notice a change of the old one.
    """
    config: Any = sys.modules.get("torch._inductor.config")
    known = getattr(config, "unsafe_marked_cacheable_functions", None)
    if known is not None and not functions.items() <= known.items():
        config.unsafe_marked_cacheable_functions = {**known, **functions}
