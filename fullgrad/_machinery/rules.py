"""The five rules of an operator, checked and made ready for torch's engine. Both lanes stand on it."""

import threading
import types
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._machinery import names

Apply = Any  # a callable of the operator's arguments
_CONTAINERS = (list, tuple, dict, set)


class VmapInfo(NamedTuple):
    """What a ``vmap`` rule is told about the transform: torch's own names for the fields."""

    batch_size: int
    randomness: str


class _PrimalContext:
    """A view of ``ctx`` whose saved tensors carry no tangent of the level that is being differentiated."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Any) -> None:
        object.__setattr__(self, "_ctx", ctx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        unpack = names.unpack_dual
        return tuple(t if t is None else unpack(t, level=0)[0] for t in self._ctx.saved_tensors)


class Rules:
    """What the lanes call. ``forward`` is looked up at each call, so that a test can put a surrogate in its place."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.name: str = operator.__name__
        self.backward = _as_function(operator.vjp)
        self.jvp = _with_forward_mode(_as_function(operator.jvp))
        self._output = threading.local()

    def forward(self, *args: Any) -> Any:
        """The author's ``forward``; outputs that autograd would lose in silence are refused."""
        output = self.operator.forward(*args)
        if not isinstance(output, Tensor):
            self.remember(output)
        return output

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The author's ``setup_context``; in-place operators are refused."""
        self.operator.setup_context(ctx, inputs, output)
        if ctx.dirty_tensors:
            raise NotImplementedError(in_place_message(self.name))

    def vmap(self, info: VmapInfo, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """The author's ``vmap``: the output, and for each tensor of it the batch dimension or None."""
        result = self.operator.vmap(info, in_dims, *args)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"{self.name}.vmap must return the pair (output, out_dims), got {_kind(result)}.")
        output, dims = result
        if isinstance(output, Tensor):
            if isinstance(dims, tuple) and len(dims) == 1:
                dims = dims[0]
            if not (dims is None or isinstance(dims, int)):
                raise TypeError(f"{self.name}.vmap returned one tensor, so out_dims must be an int or None, got {dims!r}.")
            return output, dims
        self.remember(output)
        if not isinstance(dims, (tuple, list)):
            dims = (dims if dims is None else int(dims),) * len(output)
        if len(dims) != len(output):
            raise TypeError(f"{self.name}.vmap returned {len(output)} outputs and {len(dims)} out_dims.")
        return output, tuple(dims)

    def remember(self, output: Any) -> None:
        """Note the type of a tuple output: autograd returns a plain tuple, whatever the type was."""
        if not isinstance(output, tuple):
            raise TypeError(f"{self.name}.forward must return a tensor or a tuple, got {_kind(output)}.")
        for item in output:
            if isinstance(item, _CONTAINERS) and _holds_tensor(item):
                raise TypeError(
                    f"{self.name}.forward must return its tensors side by side, got a {type(item).__name__} of tensors "
                    "inside the output, whose gradient would be lost."
                )
        self._output.type = type(output)

    def restore(self, output: Any) -> Any:
        """The output of the engine in the type that ``forward`` returned in this thread."""
        if isinstance(output, Tensor):
            return output
        return rebuild(self._output.type, output)

    def check_argument(self, value: Any) -> None:
        """Refuse tensors inside a container: autograd does not see them, and their gradient would be lost in silence."""
        if isinstance(value, _CONTAINERS) and _holds_tensor(value):
            raise TypeError(
                f"{self.name}.apply takes tensors as arguments of their own, got a {type(value).__name__} that holds a tensor, "
                "whose gradient would be lost."
            )

    def warn_if_exporting(self) -> None:
        """An exported graph holds the value and nothing of the declared derivative; torch offers no way to keep it."""
        if torch.compiler.is_exporting():
            warnings.warn(
                f"{self.name}: torch.export keeps the value and drops the declared derivative; differentiating the exported "
                "program gives the derivative of the plain torch operations. Export under torch.no_grad() to silence this.",
                stacklevel=2,
            )


def in_place_message(name: str) -> str:
    """Why ``ctx.mark_dirty`` is refused."""
    return (
        f"{name}.setup_context calls ctx.mark_dirty, but a fullgrad operator is a function of its inputs and leaves them "
        "unchanged, as torch.func requires. Return a new tensor from forward instead."
    )


def rebuild(kind: type, items: Any) -> Any:
    """A tuple, namedtuple or ``torch.return_types`` of the given kind from its items."""
    if kind is tuple:
        return items if type(items) is tuple else tuple(items)
    make: Any = getattr(kind, "_make", kind)
    return make(items)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.values()
    return any(isinstance(v, Tensor) or (isinstance(v, _CONTAINERS) and _holds_tensor(v)) for v in value)


def _as_function(rule: Any) -> Any:
    """A rule may be a classmethod, so that a family writes it once; autograd binds plain functions to ``ctx``."""
    if isinstance(rule, types.FunctionType):
        return rule

    def function(ctx: Any, *args: Any) -> Any:
        return rule(ctx, *args)

    return function


def _with_forward_mode(jvp: Any) -> Any:
    """The ``jvp`` rule, itself differentiable in forward mode when a transform is active."""
    active, is_on, switch = names.transforms_active, names.is_forward_mode, names.set_forward_mode

    def differentiable_jvp(ctx: Any, *tangents: Any) -> Any:
        if not active():
            return jvp(ctx, *tangents)
        previous = is_on()
        switch(True)
        try:
            return jvp(_PrimalContext(ctx), *tangents)
        finally:
            switch(previous)

    return differentiable_jvp
