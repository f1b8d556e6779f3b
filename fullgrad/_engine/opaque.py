"""`opaque_values`: the values of code that torch can neither batch nor trace, such as numpy, a kernel, a solver; below all
transforms, and as one node of compiled code.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core.function import Function
from fullgrad._dispatch import (
    add_legacy_dim,
    clone_if_view,
    in_legacy_vmap,
    is_alias_of,
    is_below_autograd,
    is_traced,
    outside_dynamo_later,
    outside_legacy_vmap,
    outside_saved_tensor_hooks,
    transforms_active,
    unwrap_legacy_batched,
    usual_keys,
    without_modes,
)
from fullgrad._engine.call import Result
from fullgrad._engine.closure import Closure, Refusing
from fullgrad._engine.opaque_node import as_node
from fullgrad._engine.random_states import DrawsOfSamples
from fullgrad._engine.rule import leaves_of
from fullgrad._engine.surroundings import CHANGED, versions_of
from fullgrad._engine.watching import shown, unwatched

Tensors = Sequence[Tensor]
Function_ = Callable[..., Result]


def opaque_values(
    closure: Closure | Refusing,
    method: str,
    function: Function_,
    like: Function_,
    tensors: Tensors,
    held: Tensors = (),
    draws: bool = False,
) -> Result:
    """``function(*tensors)``, a `Result` whose tensors have no derivative. It is called on plain tensors, below all transforms: a
    batch sample by sample (``"sequential"``), or once with a dimension more in front of each tensor (``"broadcast"``).

    Compiled code calls it as one node; ``like(*tensors)`` then tells the structure, shapes and dtypes of the result. ``held`` are
    tensors that the closure holds. With ``draws`` the tensors have a first dimension that held ones have not.
    """
    if is_dynamo_compiling():  # compiled autograd, which traces a backward
        return _outside[0](closure, method, function, like, tensors, held, draws)
    code = _Code(closure, method, function, like, len(tensors), draws)
    if in_legacy_vmap():
        values = _of_batched_gradients(code, (*tensors, *held))
    else:
        values = Opaque.apply(code, *[t.detach() for t in (*tensors, *held)])
    if code.structure is None:  # a selective checkpoint had the values, and called nothing
        with without_modes(), torch.no_grad():
            code.like([t.detach() for t in tensors])
    return code.result(shown(values))


_outside = outside_dynamo_later(opaque_values)


class _Code:
    """Code that is called on plain tensors."""

    def __init__(
        self, closure: Closure | Refusing, method: str, function: Function_, like: Function_, count: int, draws: bool
    ) -> None:
        self.closure, self.method, self.function, self.shapes = closure, method, function, like
        self.count, self.draws = count, draws
        self.is_below = transforms_active()  # the transforms of the call
        self.structure: Result | None = None  # of what it, or `like`, has returned; an operator returns tensors alone

    def run(self, tensors: Tensors, leading: int = 0) -> list[Tensor]:
        """The results, for tensors that have some leading dimensions more."""
        given = [t.detach() for t in tensors]
        versions = versions_of(given)
        values, held = given[: self.count], given[self.count :]
        if leading and self.draws:  # a batch of tensors that are the same in each draw
            held = [in_front(t, None, values[0].shape[leading], leading) for t in held]
        # Below a transform that was opened in inference mode, autograd is hidden from code.
        keys = usual_keys() if is_below_autograd() and not torch.is_inference_mode_enabled() else contextlib.nullcontext()
        with keys, torch.enable_grad(), outside_saved_tensor_hooks(), unwatched():
            result = self.structure = self.closure.first(self.function, values, held, self.is_below)
            results = result.release()
        if versions_of(given) != versions:
            raise RuntimeError(CHANGED.format(self.closure.name))
        # Code may have made its arguments, which are of this call alone, require a gradient.
        if not transforms_active():  # in which leaves are not seen
            mine = {id(t) for t in given}
            results = [y.detach() if y.requires_grad and leaves_of([y]) <= mine else y for y in results]
        self.closure.check(results)
        # Results do not share memory with arguments or each other, as is true for any operator.
        own: list[Tensor] = []
        for y in results:
            is_foreign = y.layout is torch.strided and not y.untyped_storage().resizable()  # memory of numpy, which may be reused
            own.append(clone_if_view(y.clone() if is_foreign or any(is_alias_of(y, t) for t in (*given, *own)) else y))
        return own

    def innermost(self) -> "_Code":
        """The code of one sample."""
        return self

    def like(self, tensors: Tensors) -> list[Tensor]:
        """Empty tensors of the shapes, dtypes and devices of the results."""
        self.structure = self.shapes(*tensors[: self.count])
        return [torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in self.structure.release()]

    def result(self, values: list[Tensor]) -> Result:
        """Values in the structure of what it has returned."""
        assert self.structure is not None
        self.structure.tensors = values
        return self.structure


class _Batch:
    """Code for each sample of a batch, or for all of them at once, the batch of the results in front."""

    def __init__(self, inner: "_Code | _Batch", dims: Sequence[int | None], randomness: str) -> None:
        self.inner, self.method, self.dims, self.randomness = inner, inner.method, dims, randomness

    def innermost(self) -> _Code:
        return self.inner.innermost()

    def size(self, tensors: Tensors, leading: int = 0) -> int:
        """The size of the batch, which in a graph may change from call to call."""
        return next(t.shape[d + leading if d >= 0 else d] for t, d in zip(tensors, self.dims, strict=True) if d is not None)

    def run(self, tensors: Tensors, leading: int = 0) -> list[Tensor]:
        size = self.size(tensors, leading)
        if self.method == "broadcast":
            pairs = zip(tensors, self.dims, strict=True)
            # The batch comes behind those of outer batches.
            return self.inner.run([in_front(t, d, size, leading) for t, d in pairs], leading + 1)
        if not size:
            return self.like(tensors)
        draws, samples = DrawsOfSamples(self.randomness), []
        for i in range(size):
            draws.begin()
            sample = [t if d is None else t.select(d, i) for t, d in zip(tensors, self.dims, strict=True)]
            samples.append([y.clone() for y in self.inner.run(sample)])  # as code may return one buffer for each sample
            if draws.are_refused(more_follow=i < size - 1):
                raise RuntimeError("vmap: a function called sample by sample draws random numbers; say how, by `randomness=`.")
        return [torch.stack(of_one) for of_one in zip(*samples, strict=True)]

    def like(self, tensors: Tensors) -> list[Tensor]:
        dims = [None if d is None else d % t.ndim for t, d in zip(tensors, self.dims, strict=True)]
        sample = [t if d is None else t.new_empty([*t.shape[:d], *t.shape[d + 1 :]]) for t, d in zip(tensors, dims, strict=True)]
        return [y.new_empty([self.size(tensors), *y.shape]) for y in self.inner.like(sample)]


def in_front(tensor: Tensor, dim: int | None, size: int, leading: int) -> Tensor:
    """A tensor with its batch behind some leading dimensions, which ``dim`` does not count."""
    if dim is None:
        return tensor.unsqueeze(leading).expand(*tensor.shape[:leading], size, *tensor.shape[leading:])
    return tensor.movedim(dim % (tensor.ndim - leading) + leading, leading)


def _of_batched_gradients(code: _Code, tensors: Tensors) -> list[Tensor]:
    """The results for a backward that torch's legacy vmap batches, as by `is_grads_batched`."""
    pairs = [unwrap_legacy_batched(t, 0) for t in tensors]
    with outside_legacy_vmap():
        plain = [t.detach() for t, _ in pairs]
        if not any(count for _, count in pairs):
            return list(Opaque.apply(code, *plain))
        batch = _Batch(code, [0 if count else None for _, count in pairs], "different")
        results = Opaque.apply(batch, *plain)
    return [add_legacy_dim(y) for y in results]


class Opaque(Function):
    """The operator of `opaque_values`. It has no derivative: its inputs are detached."""

    constant_types: ClassVar[tuple[type, ...]] = (_Code, _Batch)
    runs_code = True

    @staticmethod
    def forward(code: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(as_node(code, tensors) if is_traced(*tensors) else code.run(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:
        return (None,) * len(tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], code: Any, *tensors: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return Opaque.apply(_Batch(code, in_dims[1:], info.randomness), *tensors), 0
