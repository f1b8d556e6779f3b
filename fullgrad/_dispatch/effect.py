"""Operators that a compiled graph runs for their side effect and not for their result."""

from typing import Any

import torch

from fullgrad._dispatch.torch_private import ordered_effect


def effect(name: str) -> Any:
    """A decorator: the function as an operator of that name which compiled code calls when it runs, and never drops.

    Without torch's name the operator raises when it is traced, so that nothing silently stays unrecorded.
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
