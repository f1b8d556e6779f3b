"""The rules of an operator with checks of arguments and results, as both dispatches call them."""

import functools
import inspect
import threading
import warnings
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch.derivatives import as_backward, as_differentiable_jvp, as_forward, kind_of, names
from fullgrad._dispatch.jagged import call_on_buffers
from fullgrad._dispatch.state import only_vmap_active
from fullgrad._dispatch.torch_private import TorchDispatchMode, dirty_tensors, is_exporting

_CONTAINERS = (Sequence, Mapping, Set)


class VmapInfo(NamedTuple):
    """The argument ``info`` of a ``vmap`` rule; the fields have torch's names."""

    batch_size: int
    randomness: str


class Rules:
    """The rules of one operator. ``forward`` is looked up at each call, so that a test can replace it."""

    # Arguments of these types hold no tensor.
    SCALAR_TYPES = frozenset({float, int, bool, str, type(None)})
    # The call with a distributed tensor among its arguments, set where `distributed` may be imported.
    run_distributed: Any

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.name: str = operator.__name__
        # An operator with `whole_dims` runs on the buffer of a jagged tensor.
        self.takes_buffers: bool = getattr(operator, "whole_dims", None) is not None
        # Whether code of users runs, which may read memory.
        self.runs_code: bool = operator.runs_code or operator.__module__.partition(".")[0] != __name__.partition(".")[0]
        self.run_code = as_forward(operator)
        self.backward = as_backward(operator, self.runs_code)
        self.jvp = as_differentiable_jvp(operator, self.runs_code)
        # Only the conversions between distributed tensors and their shards handle both themselves.
        self.meets_distributed: bool = not operator.distributes_itself
        # The tangent of a constant is None, not zeros, which an infinite slope would make NaN. An operator that calls
        # `ctx.set_materialize_grads` decides itself.
        self.omits_zeros: bool = not (operator.takes_zeros or names(operator.setup_context, "set_materialize_grads"))
        self._output = threading.local()
        # An operator may name types of its own that hold no tensor.
        self.SCALAR_TYPES = Rules.SCALAR_TYPES.union(getattr(operator, "constant_types", ()))

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters of ``forward``."""
        return tuple(inspect.signature(self.operator.forward).parameters)

    def parameter_of(self, i: int) -> str:
        """The name of the parameter that takes argument ``i``; a variadic last one takes all that are left."""
        return self.parameters[min(i, len(self.parameters) - 1)]

    def call_on_buffers(self, args: Any) -> Any:
        """The call with a jagged tensor among its arguments."""
        whole = self.operator.whole_dims
        last = 0 if isinstance(whole, str) else max(whole) if isinstance(whole, tuple) else whole
        return call_on_buffers(self.name, self.operator.apply, self.parameters, args, {}, last)

    def forward(self, *args: Any) -> Any:
        """The author's ``forward``, its output checked."""
        output = self.run_code(*args) if self.runs_code else self.operator.forward(*args)
        return output if isinstance(output, Tensor) else self.check_output(output)

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The author's ``setup_context``; in-place operators are refused."""
        self.operator.setup_context(ctx, inputs, output)
        if dirty_tensors(ctx):
            raise NotImplementedError(in_place_message(self.name))

    def vmap(self, info: VmapInfo, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """The author's ``vmap``: the output, and for each tensor of it the batch dimension or None."""
        result = self.operator.vmap(info, in_dims, *args)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"{self.name}.vmap must return the pair (output, out_dims), got {kind_of(result)}.")
        output, dims = result
        if isinstance(output, Tensor):
            if isinstance(dims, tuple) and len(dims) == 1:
                dims = dims[0]
            if not (dims is None or isinstance(dims, int)):
                raise TypeError(f"{self.name}.vmap returned one tensor, so out_dims must be an int or None, got {dims!r}.")
            return output, dims
        self.check_output(output)
        if not isinstance(dims, (tuple, list)):
            dims = (dims,) * len(output)
        if len(dims) != len(output):
            raise TypeError(f"{self.name}.vmap returned {len(output)} outputs and {len(dims)} out_dims.")
        return output, tuple(dims)

    def check_output(self, output: Any) -> Any:
        """Refuse outputs that autograd would silently lose; note the type of a tuple, since autograd returns a plain one."""
        if not isinstance(output, tuple):
            raise TypeError(f"{self.name}.forward must return a tensor or a tuple, got {kind_of(output)}.")
        for item in output:
            if not isinstance(item, Tensor) and isinstance(item, _CONTAINERS) and _holds_tensor(item):
                raise TypeError(
                    f"{self.name}.forward must return its tensors side by side, got a {type(item).__name__} of tensors "
                    "inside the output, whose gradient would be lost."
                )
        self._output.type = type(output)
        return output

    def restore(self, output: Any) -> Any:
        """The output of the engine in the type that ``forward`` returned in this thread."""
        if isinstance(output, Tensor):
            return output
        return rebuild(self._output.type, output)

    def check_argument(self, value: Any) -> None:
        """Refuse tensors inside a container: autograd does not see them, and their gradient would be silently lost."""
        if value.__class__ is tuple and self.SCALAR_TYPES.issuperset(map(type, value)):
            return
        if isinstance(value, _CONTAINERS) and _holds_tensor(value):
            raise TypeError(
                f"{self.name}.apply takes tensors as arguments of their own, got a {type(value).__name__} that holds a tensor, "
                "whose gradient would be lost."
            )

    def export(self, args: Any) -> Any:
        """The call while torch.export or torch.jit.trace traces. The graph holds the value but not the declared derivative, which
        torch has no way to keep. ``vmap`` of the value is that of plain code; transforms that differentiate are refused.
        """
        tracer = "torch.export" if is_exporting() else "torch.jit.trace"
        if not only_vmap_active():
            raise NotImplementedError(
                f"{self.name}: {tracer} would replace the declared derivative by that of the plain operations inside a "
                "transform that differentiates. Compile the transform with torch.compile, or trace it with make_fx."
            )
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            warnings.warn(
                f"{self.name}: {tracer} keeps the value and drops the declared derivative; differentiating the exported "
                "program gives the derivative of the plain torch operations. Export under torch.no_grad() to silence this.",
                stacklevel=4,
            )
        if is_exporting():
            return self.forward(*args)
        # torch checks a trace by another one without grad mode, which must have the same operations; a traced forward reuses no
        # buffers and no constants.
        with torch.no_grad(), _Traced():
            return self.forward(*args)


class _Traced(TorchDispatchMode):
    """A mode that changes nothing but shows that something traces, which torch.jit.trace does not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_place_message(name: str) -> str:
    """Why ``ctx.mark_dirty`` is refused."""
    return (
        f"{name}.setup_context calls ctx.mark_dirty, but a fullgrad operator is a function of its inputs and leaves them "
        "unchanged, as torch.func requires. Return a new tensor from forward instead."
    )


def rebuild(kind: type, items: Any) -> Any:
    """A tuple, namedtuple or ``torch.return_types`` of the given kind from its items."""
    make: Any = getattr(kind, "_make", kind)
    return make(items)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (str, bytes, range)):
        return False
    if isinstance(value, Mapping):
        value = value.values()
    return any(isinstance(v, Tensor) or (isinstance(v, _CONTAINERS) and _holds_tensor(v)) for v in value)
