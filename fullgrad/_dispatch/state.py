"""The state of torch at this moment, and what it allows a ``forward`` to do."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.torch_private import dispatch_modes, forward_ad, transforms_active

# Functions on the hot path, looked up once.
_is_compiling, _is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled


class Moving(Tensor):
    """A tensor that overrides operators, too: a value that moves along a curve. ``call`` says in which of the calls that compute
    along curves, inside of each other: `current.curves` in it.
    """

    call: int


class _Current(threading.local):
    """Whether the call in this thread came through a transform, which has stepped aside when ``forward`` runs; and how many
    calls compute along curves.
    """

    inside_transform = False
    curves = 0


current = _Current()


# A function for each mode that looks at the code of an operator, in any thread: the last one is given each call of an operator's
# ``apply``, since to a mode of torch that is no function. The list costs a call nothing while it is empty.
watchers: list[Callable[[Callable[[Any], Any], tuple[Any, ...]], Any]] = []


def through_transforms(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``call`` under at least one transform, which the ``forward`` below can see."""

    def marked(args: Any) -> Any:
        before, current.inside_transform = current.inside_transform, True
        try:
            return call(args)
        finally:
            current.inside_transform = before

    return marked


def forward_mode_is_on() -> bool:
    """Whether eager code is inside a level of forward mode, `torch.func.jvp` included. Compiled code cannot tell."""
    return forward_ad._current_level >= 0


def is_differentiating() -> bool:
    """Whether a transform, a curve, forward mode or grad mode is on. True in compiled code, which cannot tell.

    Inside a ``forward`` autograd has switched both modes off.
    """
    if _is_compiling() or _is_grad_enabled() or transforms_active() or current.curves:
        return True
    return forward_ad._current_level >= 0 and torch_private.is_forward_mode()


def can_skip_autograd(x: Tensor) -> bool:
    """Whether eager code computes with a plain tensor that needs no derivative, so that a ``forward`` may be called directly.

    Under torch.export the tensors are not plain, or the code is compiled.
    """
    return (
        x.__class__ is Tensor
        and not x.requires_grad
        and not transforms_active()
        and forward_ad._current_level < 0
        and not _is_compiling()
    )


def is_tracing() -> bool:
    """Whether Dynamo or a dispatch mode is active, which may be a tracer that records operations and not numbers.

    Compiled autograd lets Dynamo trace the rules themselves, and Dynamo would run or refuse calls about torch's state. So each of
    them comes after the call about Dynamo, which is a constant there.
    """
    return _is_compiling() or dispatch_modes() > 0


def active_transforms() -> list[str]:
    """The active transforms, outermost first: "Grad", "Jvp", "Vmap" or "Functionalize"."""
    interpreters = torch_private.interpreters
    return [i.key().name for i in interpreters() or ()] if interpreters is not None else []


def derivatives_are_lost() -> bool:
    """Whether a transform that differentiates was opened in inference mode, and torch did not leave it: see `inference`.

    Inference mode that begins inside a transform switches both of autograd's modes off, so that no derivative is expected.
    """
    if not torch_private.STAYS_IN_INFERENCE_MODE or _is_compiling():
        return False
    if not (torch.is_inference_mode_enabled() and transforms_active()):
        return False
    modes = {"Grad": _is_grad_enabled(), "Jvp": torch_private.is_forward_mode()}
    return any(modes.get(kind, False) for kind in active_transforms())


def vmaps_that_draw_differently() -> int:
    """How many of the active vmaps draw other random numbers for each sample."""
    return [randomness for randomness, _ in _vmaps()].count("Different")


def vmaps_share_draws() -> bool:
    """Whether all active vmaps share random numbers between samples, as the one does that `drawing_as_before` opens."""
    return all(randomness in (None, "Same") for randomness, _ in _vmaps())


def _vmaps() -> list[tuple[str | None, int]]:
    """The randomness and the size of each active transform that is a vmap, outermost first; None and 0 of another."""
    if torch_private.interpreters is None or torch_private.MISSING:
        return []
    found: list[tuple[str | None, int]] = []
    for i in torch_private.interpreters() or ():
        own = torch_private.VmapInterpreter(i) if i.key().name == "Vmap" else None
        found.append((None, 0) if own is None else (own.randomness().name, own.batchSize()))
    return found


@contextlib.contextmanager
def drawing_as_before(inside_transforms: bool) -> Iterator[None]:
    """A context in which code draws again what it drew in a call that was inside of transforms, or was not.

    Vmaps that refuse random numbers, as those over cotangents, share them: the call was not inside of them, or drew none. And
    where transforms have ended there is one in which nothing is batched, as torch's dropout draws in another order outside.
    """
    vmaps = _vmaps()
    refusing = [i for i, (randomness, _) in enumerate(vmaps) if randomness == "Error"]
    if any(randomness in ("Same", "Different") for randomness, _ in vmaps):
        # Where samples differ, torch's attention with dropout ends the process in a vmap that shares draws inside of theirs.
        refusing = []
    layers = [torch_private.pop() for _ in range(len(vmaps) - refusing[0])] if refusing else []
    is_bare = inside_transforms and not transforms_active() and not layers and torch_private.leave_level is not None
    for (randomness, size), layer in zip(vmaps[len(vmaps) - len(layers) :], reversed(layers), strict=True):
        if randomness == "Error":  # another vmap of the same level, to which its tensors belong
            torch_private.enter_level(size, "same")
        else:
            torch_private.push(layer)
    if is_bare:
        torch_private.enter_level(1, "same")
    try:
        yield
    finally:
        for _ in range(len(layers) + is_bare):
            torch_private.pop()
        for layer in reversed(layers):
            torch_private.push(layer)


def are_differentiated(tensors: Sequence[Tensor]) -> list[bool]:
    """Whether each tensor requires a gradient, has a tangent, at any of the active levels, or moves along a curve."""
    if not current.curves:
        return _are_differentiated(tensors)
    rest = iter(_are_differentiated([t for t in tensors if not isinstance(t, Moving)]))
    return [isinstance(t, Moving) or next(rest) for t in tensors]


def _are_differentiated(tensors: Sequence[Tensor]) -> list[bool]:
    if torch_private.MISSING or torch_private.transforms_are_hidden() or derivatives_are_lost():
        return [True] * len(tensors)  # unknown: each may be
    if not transforms_active():
        tangents = _is_compiling() or torch_private.is_compiling() or forward_ad._current_level >= 0
        return [t.requires_grad or (tangents and has_tangent(t)) for t in tensors]
    interpreter = torch_private.peek()
    level, kind = interpreter.level(), interpreter.key().name
    here = [t.requires_grad or (kind == "Jvp" and has_tangent(t)) for t in tensors]
    below = _below_level(tensors, level, kind)
    layer = torch_private.pop()
    try:
        return [a or b for a, b in zip(here, _are_differentiated(below), strict=True)]
    finally:
        torch_private.push(layer)


def _below_level(tensors: Sequence[Tensor], level: int, kind: str) -> list[Tensor]:
    if kind == "Vmap":
        return [torch_private.unwrap_batched(t, level)[0] for t in tensors]
    if kind == "Functionalize":
        return [torch_private.unwrap_functional(t, False) if torch_private.is_functional(t) else t for t in tensors]
    return [torch_private.unwrap_for_grad(t, level) for t in tensors]


def has_tangent(tensor: Tensor) -> bool:
    # A tracer below autograd records no derivative, and torch fails where it is asked for a tangent.
    if torch_private.is_below_autograd() and is_tracing():
        return False
    try:
        return torch_private.unpack_dual(tensor, level=0)[1] is not None
    except RuntimeError:
        # Torch's legacy vmap has no rule for a tensor without a tangent; inference tensors, and code below autograd, have none.
        if torch_private.is_legacy_batched(tensor) or tensor.is_inference() or torch_private.is_below_autograd():
            return False
        raise


@torch.no_grad()
def legacy_detach(tensor: Tensor) -> Tensor:
    """A tensor without a derivative in torch's legacy vmap, which cannot detach what is batched."""
    if not torch_private.is_legacy_batched(tensor):
        return tensor.detach()
    if forward_mode_is_on() and has_tangent(tensor):
        return torch_private.unpack_dual(tensor, level=0)[0]
    return tensor.view(tensor.shape)


def tangent_levels(tensors: Sequence[Tensor]) -> set[int]:
    """The levels of transforms at which one of some tensors has a tangent; 0 is below all of them."""
    if not transforms_active() or torch_private.MISSING:
        return {0} if any(map(has_tangent, tensors)) else set()
    interpreter = torch_private.peek()
    level, kind = interpreter.level(), interpreter.key().name
    own = {level} if kind == "Jvp" and any(map(has_tangent, tensors)) else set()
    below = _below_level(tensors, level, kind)
    layer = torch_private.pop()
    try:
        return own | tangent_levels(below)
    finally:
        torch_private.push(layer)


def only_vmap_active() -> bool:
    """Whether every active transform is a ``vmap``."""
    return torch_private.interpreters is not None and all(name == "Vmap" for name in active_transforms())


def in_legacy_vmap() -> bool:
    """Whether torch's legacy vmap is active, which no interpreter stack shows."""
    return not _is_compiling() and torch_private.in_legacy_vmap()


def unwrap_legacy_batched(tensor: Tensor, count: int) -> tuple[Tensor, int]:
    """A tensor of torch's legacy vmap as a plain one with the batch in dim 0, and ``count`` raised by the dims added."""
    while torch_private.is_legacy_batched(tensor):
        tensor, count = torch_private.remove_legacy_dim(tensor), count + 1
    return tensor, count


def can_view_bits() -> bool:
    """Whether numbers may be viewed as the integers of their bits: torch's legacy vmap and torch.jit.trace lack such a view, and
    ``vmap`` of torch 2.11.
    """
    if not torch_private.batches_views_of_bits and (_is_compiling() or transforms_active()):
        return False
    return not in_legacy_vmap() and torch_private.jit_tracing_state() is None


def can_reuse_buffers() -> bool:
    """Whether eager code may overwrite its temporaries: its steps are neither differentiated nor batched nor traced.

    It is `is_differentiating`, `is_tracing` and `in_legacy_vmap`, all false, written out: this is the hot path.
    """
    return not (
        _is_compiling()
        or _is_grad_enabled()
        or transforms_active()
        or dispatch_modes()
        or (forward_ad._current_level >= 0 and torch_private.is_forward_mode())
        or torch_private.in_legacy_vmap()
    )


def is_unrecorded(args: Iterable[Any]) -> bool:
    """Whether eager code computes with some arguments that nothing differentiates, batches or traces."""
    return not (
        _is_compiling()
        or transforms_active()
        or dispatch_modes()
        or (forward_ad._current_level >= 0 and torch_private.is_forward_mode())
        or torch_private.in_legacy_vmap()
        or (_is_grad_enabled() and any([isinstance(a, Tensor) and a.requires_grad for a in args]))  # noqa: C419
    )


def clone_if_view(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is a view: for a ``forward`` whose output may be a view of a temporary."""
    return tensor.clone() if torch_private.is_view(tensor) else tensor


def is_distributed(value: Any) -> bool:
    """Whether a value is a `DTensor`; nothing is one before torch.distributed.tensor is imported."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def any_distributed(values: Iterable[Any]) -> bool:
    """Whether a value is a `DTensor` or wraps one. False in code that Dynamo traces, which needs no special path."""
    if _is_compiling() or "torch.distributed.tensor" not in sys.modules:
        return False
    return any(is_distributed(torch_private.innermost(v)) for v in values if isinstance(v, Tensor))


def with_memory(value: Any) -> Any:
    """A value that code may read: forward mode of torch has zeros without memory, at whose address 0 a kernel dies."""
    return value.clone() if isinstance(value, Tensor) and torch_private.is_zero_tensor(value) else value


def can_look(tensor: Tensor) -> bool:
    """Whether Python code may depend on the numbers of a tensor at little cost: a plain tensor on the CPU, in eager code."""
    return (
        (tensor.__class__ is Tensor or tensor.__class__ is torch.nn.Parameter)
        and tensor.is_cpu
        and not (_is_compiling() or dispatch_modes() or transforms_active() or torch_private.in_legacy_vmap())
        and torch_private.jit_tracing_state() is None
    )


def has_data(tensor: Tensor) -> bool:
    """Whether a tensor has numbers: it is neither on the meta device nor a tracer's."""
    return not (tensor.is_meta or isinstance(tensor, (torch_private.FakeTensor, torch_private.FunctionalTensor)))


def can_read_numbers(tensor: Tensor) -> bool:
    """Whether the steps of eager code may depend on the numbers of a tensor: neither torch.jit.trace nor a CUDA graph is
    recording, which would repeat the same steps for other numbers.
    """
    return torch_private.jit_tracing_state() is None and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
