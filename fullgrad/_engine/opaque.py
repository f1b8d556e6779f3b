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
    has_data,
    in_legacy_vmap,
    is_alias_of,
    is_below_autograd,
    is_recorded,
    is_traced,
    outside_dynamo_later,
    outside_legacy_vmap,
    outside_saved_tensor_hooks,
    transforms_active,
    unwrap_legacy_batched,
    usual_keys,
    without_modes,
)
from fullgrad._engine.batch import Batch, in_front
from fullgrad._engine.call import Result
from fullgrad._engine.changes import CHANGED, versions_of
from fullgrad._engine.closure import Closure, Refusing
from fullgrad._engine.differentiated import leaves_of
from fullgrad._engine.opaque_node import as_node, code_of
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
    symbols: Sequence[Any] = (),
) -> Result:
    """``function(*tensors)``, a `Result` whose tensors have no derivative. It is called on plain tensors, below all transforms: a
    batch sample by sample (``"sequential"``), or once with a dimension more in front of each tensor (``"broadcast"``).

    Compiled code calls it as one node; ``like(*tensors)`` then tells the structure, shapes and dtypes of the result. ``held`` are
    tensors that the closure holds. With ``draws`` the tensors have a first dimension that held ones have not. ``symbols`` are
    numbers that the function uses, and which are inputs of the node if they change from call to call.
    """
    if is_dynamo_compiling():  # compiled autograd, which traces a backward
        return _outside[0](closure, method, function, like, tensors, held, draws, symbols)
    code = _Code(closure, method, function, like, len(tensors), draws, symbols)
    if in_legacy_vmap():
        values = _of_batched_gradients(code, (*tensors, *held))
    else:
        given = (*tensors, *held)
        # A graph of tensors with data, as of `linearize`, may be differentiated, and would have zeros behind a `detach`.
        values = Opaque.apply(code, *(given if is_recorded() and all(map(has_data, given)) else [t.detach() for t in given]))
    if code.structure is None:  # a selective checkpoint had the values, and called nothing
        with without_modes(), torch.no_grad():
            code.like([t.detach() for t in tensors])
    return code.result(shown(values))


_outside = outside_dynamo_later(opaque_values)


class _Code:
    """Code that is called on plain tensors."""

    def __init__(
        self,
        closure: Closure | Refusing,
        method: str,
        function: Function_,
        like: Function_,
        count: int,
        draws: bool,
        symbols: Sequence[Any],
    ) -> None:
        self.closure, self.method, self.function, self.shapes = closure, method, function, like
        self.count, self.draws, self.symbols = count, draws, symbols
        self.is_below = transforms_active()  # the transforms of the call
        self.structure: Result | None = None  # of what it, or `like`, has returned; an operator returns tensors alone

    @property
    def sample(self) -> "_Code":
        """The code of one sample. As an attribute it would be a cycle, which keeps tensors until garbage is collected."""
        return self

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

    def like(self, tensors: Tensors) -> list[Tensor]:
        """Empty tensors of the shapes, dtypes and devices of the results."""
        self.structure = self.shapes(*tensors[: self.count])
        return [torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in self.structure.release()]

    def result(self, values: list[Tensor]) -> Result:
        """Values in the structure of what it has returned."""
        assert self.structure is not None
        self.structure.tensors = values
        return self.structure


def _of_batched_gradients(code: _Code, tensors: Tensors) -> list[Tensor]:
    """The results for a backward that torch's legacy vmap batches, as by `is_grads_batched`."""
    pairs = [unwrap_legacy_batched(t, 0) for t in tensors]
    with outside_legacy_vmap():
        plain = [t.detach() for t, _ in pairs]
        if not any(count for _, count in pairs):
            return list(Opaque.apply(code, *plain))
        batch = Batch(code, [0 if count else None for _, count in pairs], "different")
        results = Opaque.apply(batch, *plain)
    return [add_legacy_dim(y) for y in results]


class Opaque(Function):
    """The operator of `opaque_values`. It has no derivative: its inputs are detached."""

    constant_types: ClassVar[tuple[type, ...]] = (_Code, Batch)
    runs_code = True

    @staticmethod
    def forward(code: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(as_node(code, tensors) if is_traced(*tensors) else code.run(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)
        ctx.count = len(output)

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:
        return (None,) * ctx.count

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], code: Any, *tensors: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return Opaque.apply(Batch(code, in_dims[1:], info.randomness), *tensors), 0


def _of_samples(
    info: Any, in_dims: Any, key: str, tensors: list[Tensor], integers: list[int], floats: list[Tensor]
) -> tuple[list[Tensor], int]:
    """A node for each sample of a batch, as of the function that `torch.func.linearize` returns."""
    with code_of(key, integers, floats) as code:
        return list(Opaque.apply(Batch(code, in_dims[1], info.randomness), *[t.detach() for t in tensors])), 0


torch.library.register_vmap("fullgrad::function", _of_samples)
