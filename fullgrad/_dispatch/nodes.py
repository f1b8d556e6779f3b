"""Functions that are one node of every graph: `opaque` for a result, `effect` for a side effect."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fullgrad._dispatch.state import has_data, is_tracing
from fullgrad._dispatch.torch_private import ordered_effect

_Inputs = ParamSpec("_Inputs")
_Output = TypeVar("_Output")


def opaque(
    name: str,
    *,
    fake: Callable[..., Any],
    batched: Callable[[tuple[int | None, ...], tuple[Any, ...]], tuple[Sequence[Any], Any]] | None = None,
    schema: str | None = None,
    reads_values: bool = False,
) -> Callable[[Callable[_Inputs, _Output]], Callable[_Inputs, _Output]]:
    """A decorator for a function of tensors that is one node of every graph: the operator ``fullgrad::name``.

    The operator is called where `is_traced` holds, elsewhere the function itself, which costs less. Neither has a derivative:
    both are for the ``forward`` of a `fullgrad.Function`.

    Args:
        name: The operator's name.
        fake: A function of the same arguments that returns empty outputs of the same shapes, dtypes and devices.
        batched: For ``vmap``, where the operator needs a rule: a function of ``in_dims`` and the arguments that returns arguments
            on which the operator does the work of the whole batch, and ``out_dims``.
        schema: The operator's signature; by default from the annotations, in which an ``int`` may be symbolic.
        reads_values: Whether Python code depends on the numbers in tensors. CUDA graphs, which replay kernels alone, leave such
            an operator out.
    """

    def decorate(function: Callable[_Inputs, _Output]) -> Callable[_Inputs, _Output]:
        tags = (torch.Tag.cudagraph_unsafe,) if reads_values else ()
        node: Any = torch.library.custom_op(f"fullgrad::{name}", function, mutates_args=(), schema=schema, tags=tags)
        node.register_fake(fake)
        if batched is not None:
            node.register_vmap(functools.partial(_vmap, node, batched))

        @functools.wraps(function)
        def call(*args: _Inputs.args, **kwargs: _Inputs.kwargs) -> _Output:
            return (node if is_traced(*args) else function)(*args, **kwargs)

        return call

    return decorate


def _vmap(node: Any, batched: Any, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    args, out_dims = batched(in_dims, args)
    return node(*args), out_dims


def is_traced(*args: Any) -> bool:
    """Whether a tracer is on, or an argument is a tensor without data, or a list with one."""
    if torch.compiler.is_dynamo_compiling() or is_tracing():
        return True
    for a in args:
        if isinstance(a, Tensor):
            if not has_data(a):
                return True
        elif isinstance(a, (list, tuple)) and is_traced(*a):
            return True
    return False


def effect(name: str) -> Any:
    """Decorator for a function with a side effect: an operator that compiled code calls when it runs, and never drops.

    If torch lacks ``register_effect``, tracing the operator raises, so that nothing is silently left unrecorded.
    """

    def decorate(function: Any) -> Any:
        # CUDA graphs replay kernels and no Python.
        operator: Any = torch.library.custom_op(name, function, mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
        known = ordered_effect is not None and hasattr(operator, "register_effect")
        if known:
            operator.register_effect(ordered_effect)

        def nothing(*args: Any) -> None:
            if not known:
                raise NotImplementedError(
                    f"{name} cannot be traced: torch {torch.__version__} has no CustomOpDef.register_effect."
                )

        operator.register_fake(nothing)
        return operator

    return decorate
