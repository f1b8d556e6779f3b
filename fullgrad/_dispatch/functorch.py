"""The functorch dispatch: an operator dispatched on functorch's interpreter stack, without pytrees and without a class per call.

The transform on top of the stack handles the call at its level and passes it on to the next; below the last one is ordinary
autograd. This mirrors what torch's C++ code does for its own operators, grad modes included.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import handle_torch_function

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.derivatives import checked_once, with_live_tensors, with_zeros
from fullgrad._dispatch.forward_marks import saves_nothing
from fullgrad._dispatch.inference import refuse_lost_derivatives
from fullgrad._dispatch.jagged import is_jagged
from fullgrad._dispatch.overrides import Moving, is_override
from fullgrad._dispatch.rules import Rules, VmapInfo, in_place_message, rebuild
from fullgrad._dispatch.signature import make_apply
from fullgrad._dispatch.state import any_distributed, through_transforms

if torch_private.DISPATCH == "functorch":
    _GRAD, _JVP = torch_private.TransformType.Grad, torch_private.TransformType.Jvp
    _VMAP, _FUNCTIONALIZE = torch_private.TransformType.Vmap, torch_private.TransformType.Functionalize
    _RANDOMNESS = {kind: kind.name.lower() for kind in torch_private.RandomnessType.__members__.values()}


def connect(rules: Rules) -> Callable[..., Any]:
    """The operator's ``apply``."""
    return make_apply(rules.operator, *dispatch(rules), shortcut=True)


def dispatch(rules: Rules) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The function that ``apply`` calls with the tuple of its arguments, and the one that it calls in a graph."""
    operator, check_argument, check_output, restore = rules.operator, rules.check_argument, rules.check_output, rules.restore
    SCALAR_TYPES, set_grad, forward_ad = rules.SCALAR_TYPES, torch_private.set_grad, torch_private.forward_ad
    transforms_active, unwrap_if_dead = torch_private.transforms_active, torch_private.unwrap_if_dead
    jit_tracing_state = torch_private.jit_tracing_state
    apply_unwraps, is_exporting, is_grad_enabled = torch_private.APPLY_UNWRAPS, torch.compiler.is_exporting, torch.is_grad_enabled

    def call(args: tuple[Any, ...]) -> Any:
        if transforms_active():
            return in_transforms(args)
        needs_grad = False
        for a in args:
            kind = a.__class__
            if kind is Tensor or kind is Parameter:
                if runs_code and is_zero_tensor(a):
                    return in_transforms(args)
                if a.requires_grad:
                    if not apply_unwraps and unwrap_if_dead(a) is not a:
                        return in_transforms(args)
                    needs_grad = True
            elif kind not in SCALAR_TYPES:
                needed = check_uncommon_argument(a)
                if needed is None:
                    return in_transforms(args)
                needs_grad = needed or needs_grad
        grad_mode = is_grad_enabled()
        if is_exporting() or jit_tracing_state() is not None:
            return in_transforms(args)
        if forward_ad._current_level >= 0:
            output = function(*args)
            return output if isinstance(output, Tensor) else restore(output)
        if needs_grad and grad_mode:
            output = reverse_only(*args)
            return output if isinstance(output, Tensor) else restore(output)
        # No derivative is needed. As in autograd, forward does not record, not even through a tensor that it closes over.
        if grad_mode:
            set_grad(False)
            try:
                output = operator.forward(*args)
            finally:
                set_grad(True)
        else:
            output = operator.forward(*args)
        if not isinstance(output, Tensor):
            return check_output(output)
        # A view of a tensor that requires a gradient reports that it requires one too, though it has none.
        return output.detach() if output.requires_grad else output

    def in_transforms(args: tuple[Any, ...]) -> Any:
        # No shortcut past autograd here: compiled code opens dual levels that are not visible in Python.
        plain: list[Any] = []
        for a in args:
            if isinstance(a, Tensor) and not isinstance(a, Moving):
                if takes_buffers and a.__class__ is not Tensor and is_jagged(a) and not transforms_active():
                    return rules.call_on_buffers(args)
                a = unwrap_if_dead(a)
                if runs_code and is_zero_tensor(a):
                    a = a.clone()
            elif a.__class__ not in SCALAR_TYPES:
                if is_override(a):
                    return handle_torch_function(operator.apply, args, *args)
                check_argument(a)
            plain.append(a)
        if is_exporting() or jit_tracing_state() is not None:
            return rules.export(plain)
        if meets_distributed and any_distributed(plain):
            return rules.run_distributed(plain)
        if transforms_active():
            return transform(plain)
        output = function(*plain)
        return output if isinstance(output, Tensor) else restore(output)

    def check_uncommon_argument(value: Any) -> bool | None:
        """Whether an argument of an uncommon type needs a gradient; None if the call needs another path."""
        if is_override(value):
            return None
        if not isinstance(value, Tensor):
            check_argument(value)
            return False
        is_special = (takes_buffers and is_jagged(value)) or (meets_distributed and any_distributed((value,)))
        return None if is_special else value.requires_grad

    # The old style of a Function, one forward(ctx, …), saves a second trip from C++ to Python.
    def forward_and_setup(ctx: Any, *args: Any) -> Any:
        output = rules.run_code(*args) if runs_code else operator.forward(*args)
        if not isinstance(output, Tensor):
            check_output(output)
        if saves:
            operator.setup_context(ctx, args, output)
        return output

    def forward_with_tangents(ctx: Any, *args: Any) -> Any:
        ctx.set_materialize_grads(False)
        return forward_and_setup(ctx, *args)

    saves = operator.setup_context is not saves_nothing
    runs_code, is_zero_tensor = rules.runs_code, torch_private.is_zero_tensor
    takes_buffers, meets_distributed = rules.takes_buffers, rules.meets_distributed
    omits_zeros = rules.omits_zeros
    function = _function(
        rules,
        rules.name,
        torch.autograd.Function,
        forward_with_tangents if omits_zeros else forward_and_setup,
        backward=with_zeros(rules.backward) if omits_zeros else None,
    )
    reverse_only = _function(rules, rules.name, torch.autograd.Function, forward_and_setup, has_forward_mode=False)
    transform = through_transforms(_transforms(rules, in_transforms))
    return call, in_transforms


def _function(
    rules: Rules, name: str, kind: type, forward_and_setup: Any, has_forward_mode: bool = True, backward: Any = None
) -> Any:
    """The C-level ``apply`` of a Function made of the given forward and the author's derivative rules.

    Without forward mode the tensors saved for it are dropped, which costs less than keeping them.
    """
    backward = backward or rules.backward

    def refuse_in_place(ctx: Any, *tensors: Tensor) -> None:
        raise NotImplementedError(in_place_message(rules.name))

    body = {
        "operator": rules.operator,
        "forward": staticmethod(forward_and_setup),
        "backward": staticmethod(backward),
        "jvp": staticmethod(rules.jvp),
    }
    replaced: dict[str, Any] = {"mark_dirty": refuse_in_place}
    if not has_forward_mode:
        replaced["save_for_forward"] = _drop
    checked = functools.partial(checked_once, rules.operator, backward)
    return torch_private.bind_apply(type(name, (kind,), body), checked, rules.jvp, replaced)


def _transforms(rules: Rules, lower: Callable[..., Any]) -> Callable[..., Any]:
    """The call under at least one transform. ``lower`` is the call again, for the transforms further down."""
    peek = torch_private.peek
    get_single_level, set_single_level = torch_private.get_single_level, torch_private.set_single_level
    levels: dict[tuple[bool, bool], Callable[..., Any]] = {}

    def transform(args: list[Any]) -> Any:
        interpreter = peek()
        key = interpreter.key()
        if key == _VMAP:
            return batch(torch_private.VmapInterpreter(interpreter), args)
        if key == _FUNCTIONALIZE:
            return functionalize(torch_private.FunctionalizeInterpreter(interpreter), args)
        modes = torch.is_grad_enabled(), torch_private.is_forward_mode()
        if key == _GRAD:
            lift, records = torch_private.GradInterpreter(interpreter).lift, modes[0]
        else:
            lift, records = torch_private.JvpInterpreter(interpreter).lift, modes[1]
        args = [lift(a) if isinstance(a, Tensor) else a for a in args]
        if not records:
            return skip(interpreter.level(), args)
        if torch_private.STAYS_IN_INFERENCE_MODE:
            refuse_lost_derivatives(rules.name)
        level = levels.get(modes)
        if level is None:
            level = levels[modes] = _single_level(rules, lower, *modes)
        allowed = get_single_level()
        set_single_level(True)
        try:
            output = level(*args)
        finally:
            set_single_level(allowed)
        return output if isinstance(output, Tensor) else rules.restore(output)

    def batch(interpreter: Any, args: list[Any]) -> Any:
        level = interpreter.level()
        plain, dims, batched = [], [], False
        for a in args:
            dim = None
            if isinstance(a, Tensor):
                a, dim = torch_private.unwrap_batched(a, level)
                batched = batched or dim is not None
            plain.append(a)
            dims.append(dim)
        if not batched:
            return _without_top(lower, tuple(plain))
        info = VmapInfo(interpreter.batchSize(), _RANDOMNESS[interpreter.randomness()])
        output, out_dims = _without_top(rules.vmap, info, tuple(dims), *plain)
        add = torch_private.add_batch_dim
        if isinstance(output, Tensor):
            return output if out_dims is None else add(output, _positive(out_dims, output), level)
        wrapped = [
            o if d is None or not isinstance(o, Tensor) else add(o, _positive(d, o), level)
            for o, d in zip(output, out_dims, strict=True)
        ]
        return rebuild(type(output), wrapped)

    def skip(level: int, args: list[Any]) -> Any:
        """The call at a level that does not record, because the user switched its mode off."""
        plain = [torch_private.unwrap_for_grad(a, level) if isinstance(a, Tensor) else a for a in args]
        return _map(lambda o: torch_private.wrap_for_grad(o, level), _without_top(lower, tuple(plain)))

    def functionalize(interpreter: Any, args: list[Any]) -> Any:
        """The call passed on unchanged: an operator neither mutates nor aliases its inputs."""
        level, views = interpreter.level(), interpreter.functionalizeAddBackViews()
        plain: list[Any] = []
        for a in args:
            if isinstance(a, Tensor) and torch_private.is_functional(a):
                torch_private.sync(a)
                a = torch_private.unwrap_functional(a, views)
            plain.append(a)
        return _map(lambda o: torch_private.wrap_functional(o, level), _without_top(lower, tuple(plain)))

    return transform


def _single_level(rules: Rules, lower: Callable[..., Any], grad_mode: bool, forward_mode: bool) -> Callable[..., Any]:
    """A Function that differentiates at the level on top of the stack and passes the call on to the one below.

    Autograd switches both modes off inside a forward; the caller's modes are therefore part of the class.
    """
    set_grad, set_forward_mode = torch_private.set_grad, torch_private.set_forward_mode
    peek, operator, omits_zeros = torch_private.peek, rules.operator, rules.omits_zeros
    wrap, unwrap = torch_private.wrap_for_grad, torch_private.unwrap_for_grad

    def forward_and_setup(ctx: Any, *args: Any) -> Any:
        interpreter = peek()
        level = interpreter.level()
        if omits_zeros:
            ctx.set_materialize_grads(False)
        # As in torch's C++ interpreters: below a level, a mode is on where it was on both outside and inside that level.
        grad, forward = grad_mode, forward_mode
        if interpreter.key() == _GRAD:
            grad = grad and torch_private.GradInterpreter(interpreter).prevGradMode()
        else:
            forward = forward and torch_private.JvpInterpreter(interpreter).prevFwdGradMode()
        plain = [unwrap(a, level) if isinstance(a, Tensor) else a for a in args]
        set_grad(grad)
        set_forward_mode(forward)
        try:
            output = _without_top(lower, tuple(plain))
        finally:
            set_grad(False)
            set_forward_mode(False)
        if isinstance(output, Tensor):
            output = wrap(output, level)
        else:
            output = _map(lambda o: wrap(o, level), output)
            rules.check_output(output)
        operator.setup_context(ctx, args, output)
        return output

    backward = with_live_tensors(with_zeros(rules.backward) if omits_zeros else rules.backward)
    return _function(rules, f"{rules.name}Level", torch_private.SingleLevelFunction, forward_and_setup, backward=backward)


def _without_top(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` without the transform on top.

    While that transform runs a composite operator of torch.library whose code calls us, C code hides the transforms below.
    """
    layer = torch_private.pop()
    try:
        if torch_private.transforms_are_hidden():
            with torch_private.restored_keys():
                return function(*args)
        return function(*args)
    finally:
        torch_private.push(layer)


def _drop(ctx: Any, *tensors: Any) -> None:
    """A stand-in for ``ctx.save_for_forward`` where no tangent can need the tensors."""


def _map(function: Any, output: Any) -> Any:
    if isinstance(output, Tensor):
        return function(output)
    return rebuild(type(output), [function(o) if isinstance(o, Tensor) else o for o in output])


def _positive(dim: int, tensor: Tensor) -> int:
    return dim + tensor.ndim if dim < 0 else dim
