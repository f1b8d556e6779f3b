"""The fallback: an operator through the public ``torch.autograd.Function.apply``.

It is used when a private name of the functorch dispatch is missing. It is slower, and right in the same cases except for
``torch.func.functionalize``, which torch refuses for every custom Function.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function

from fullgrad._dispatch.derivatives import checked_once, with_live_tensors, with_primals, with_zeros
from fullgrad._dispatch.inference import refuse_lost_derivatives
from fullgrad._dispatch.jagged import is_jagged
from fullgrad._dispatch.overrides import is_override
from fullgrad._dispatch.rules import Rules, VmapInfo
from fullgrad._dispatch.signature import make_apply
from fullgrad._dispatch.state import any_distributed, through_transforms, with_memory
from fullgrad._dispatch.torch_private import (
    STAYS_IN_INFERENCE_MODE,
    is_exporting,
    jit_tracing_state,
    transforms_active,
    unwrap_if_dead,
)


def connect(rules: Rules) -> Callable[..., Any]:
    """The operator's ``apply``."""
    return make_apply(rules.operator, *dispatch(rules))


def dispatch(rules: Rules) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The function that ``apply`` calls with the tuple of its arguments, and the one for a graph, which is the same."""
    # torch's own dispatch compares the structures of outputs, where a namedtuple is not a tuple: it gets plain tuples.

    def forward(*args: Any) -> Any:
        return _plain(rules.forward(*args))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if rules.omits_zeros:
            ctx.set_materialize_grads(False)
        rules.setup_context(ctx, inputs, rules.restore(output))

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        output, dims = rules.vmap(VmapInfo(info.batch_size, info.randomness), in_dims, *args)
        return _plain(output), dims

    rule = with_zeros(rules.backward) if rules.omits_zeros else rules.backward
    live, primal = with_live_tensors(rule), with_primals(rules.jvp)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        # Dynamo traces the rule itself, and no transform there ends before it. The name may be the one that is missing.
        return (rule if is_dynamo_compiling() or unwrap_if_dead is None else live)(ctx, *cotangents)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        return (rules.jvp if transforms_active() or is_dynamo_compiling() else primal)(ctx, *tangents)

    body = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp, "vmap": vmap}
    function: Any = type(rules.name, (torch.autograd.Function,), {name: staticmethod(rule) for name, rule in body.items()})
    install = lambda backward: setattr(function, "backward", staticmethod(backward))  # noqa: E731
    install(checked_once(rules.operator, backward, install))

    def call(args: tuple[Any, ...]) -> Any:
        for a in args:
            if is_override(a):
                return handle_torch_function(rules.operator.apply, args, *args)
        if rules.runs_code:
            args = tuple(map(with_memory, args))
        for a in args:
            if not isinstance(a, Tensor):
                rules.check_argument(a)
            elif rules.takes_buffers and is_jagged(a):
                return rules.call_on_buffers(args)
        if is_exporting() or jit_tracing_state() is not None:
            return rules.export(args)
        if rules.meets_distributed and any_distributed(args):
            return rules.run_distributed(args)
        if not transforms_active():
            output = rules.restore(function.apply(*args))
            # A view of a tensor that requires a gradient reports that it requires one too, though it has none without grad mode.
            spurious = isinstance(output, Tensor) and output.requires_grad and not torch.is_grad_enabled()
            return output.detach() if spurious else output
        if STAYS_IN_INFERENCE_MODE:
            refuse_lost_derivatives(rules.name)
        if not torch.is_grad_enabled():
            # torch switches grad mode on again for the levels below the first. Views made without it need no
            # gradient at any level and keep their tangents, which is what no_grad means for torch's own operators.
            # (In inference mode torch cannot make a view at a level; a copy does.)
            same = Tensor.clone if torch.is_inference_mode_enabled() else lambda a: a.view_as(a)
            args = tuple(same(a) if isinstance(a, Tensor) else a for a in args)
        return rules.restore(transform(args))

    transform = through_transforms(lambda args: function.apply(*args))
    return call, call


def _plain(output: Any) -> Any:
    return tuple(output) if isinstance(output, tuple) else output
