"""Helpers for ``setup_context``: save inputs that may be tensors or plain numbers."""

from typing import Any

from torch import Tensor


def save_inputs(ctx: Any, inputs: tuple[Any, ...]) -> None:
    """Save inputs for both rules: tensors through the engine, the rest as they are."""
    tensors, ctx.constants = [], []
    for v in inputs:
        tensor = isinstance(v, Tensor)
        tensors.append(v if tensor else None)
        ctx.constants.append(None if tensor else v)
    ctx.save_for_forward(*tensors)
    ctx.save_for_backward(*tensors)


def saved_inputs(ctx: Any) -> list[Any]:
    """The inputs in their order; None for a tensor that was not kept."""
    return [c if t is None else t for t, c in zip(ctx.saved_tensors, ctx.constants)]  # noqa: B905  # on the hot path
