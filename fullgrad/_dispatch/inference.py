"""Transforms in inference mode, which torch 2.11 does not leave for them.

Its operators have no derivative there: it gives zeros, silently, or raises (https://github.com/pytorch/pytorch/issues/177318).
Later versions leave inference mode. This module does so for the package's own transforms, and refuses operators in the user's.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.state import derivatives_are_lost
from fullgrad._dispatch.torch_private import STAYS_IN_INFERENCE_MODE


def refuse_lost_derivatives(name: str) -> None:
    """Refuse the call of an operator where its derivative would be lost."""
    if derivatives_are_lost():
        raise NotImplementedError(
            f"{name}: torch {torch.__version__} loses the derivatives of a torch.func transform that is opened in inference mode "
            "(https://github.com/pytorch/pytorch/issues/177318). Open it in torch.no_grad() instead, or update torch."
        )


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``torch.func.vjp(function, *primals)``, outside of inference mode in every torch."""
    with outside_inference_mode():
        result: Any = torch.func.vjp(function, *primals)
    if not STAYS_IN_INFERENCE_MODE:
        return result

    def pull(*cotangents: Any) -> Any:
        with outside_inference_mode():
            return result[1](*cotangents)

    return result[0], pull


def outside_inference_mode() -> contextlib.AbstractContextManager[None]:
    """A context around a transform, which is outside of inference mode in every torch."""
    # Dynamo of torch 2.11, which traces rules for compiled autograd, cannot ask for inference mode.
    is_on = STAYS_IN_INFERENCE_MODE and not torch.compiler.is_dynamo_compiling() and torch.is_inference_mode_enabled()
    return _outside() if is_on else contextlib.nullcontext()


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    grad, forward = torch.is_grad_enabled(), torch_private.is_forward_mode()
    with torch.inference_mode(False), torch.set_grad_enabled(grad):  # which leaves each mode of autograd as it is
        torch_private.set_forward_mode(forward)
        yield
