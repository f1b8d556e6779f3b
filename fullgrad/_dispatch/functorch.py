"""The functorch dispatch: an operator dispatched on functorch's interpreter stack, without pytrees and without a class per call.

A transform on top of the stack handles the call at its level and passes it on to the next; below the last one lies
ordinary autograd. It mirrors what torch's C++ code does for its own operators, grad modes included.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fullgrad._dispatch import torch_private
from fullgrad._dispatch.rules import (
    Apply,
    Rules,
    VmapInfo,
    in_place_message,
    rebuild,
    saves_nothing,
    through,
    through_transforms,
)

if torch_private.DISPATCH == "functorch":
    _GRAD, _JVP = torch_private.TransformType.Grad, torch_private.TransformType.Jvp
    _VMAP, _FUNCTIONALIZE = torch_private.TransformType.Vmap, torch_private.TransformType.Functionalize
    _RANDOMNESS = {kind: kind.name.lower() for kind in torch_private.RandomnessType.__members__.values()}


# The hot path of small tensors, written out for the parameters of each operator: it has the operator's own signature, binds
# keywords as any Python function does, and spends no time on lists, loops and packing (0.4 of 4 us at 16 elements). Its own names
# begin with two underscores, so that parameters may have any name.
_SOURCE = """
def forward_and_setup(__ctx, {parameters}):
    __output = __operator.forward({arguments})
    if not isinstance(__output, __Tensor):
        __check_output(__output)
    __operator.setup_context(__ctx, ({arguments},), __output)
    return __output

def forward_alone(__ctx, {parameters}):
    __output = __operator.forward({arguments})
    return __output if isinstance(__output, __Tensor) else __check_output(__output)

def apply({parameters}):
{shortcut}
    if __compiling():
        return __in_graph({arguments})
    if __active():
        return __in_transforms(({arguments},))
    __needs_grad = False
{per_argument}
    if not (__needs_grad and __grad_enabled()) and __forward_ad._current_level < 0 and not __exporting():
        # Nobody asks for a derivative. As in autograd, forward does not record, not even through a tensor that it closes over.
        if __grad_enabled():
            __set_grad(False)
            try:
                __output = __operator.forward({arguments})
            finally:
                __set_grad(True)
        else:
            __output = __operator.forward({arguments})
        if not isinstance(__output, __Tensor):
            return __check_output(__output)
        # A view of a tensor that requires a gradient says that it requires one too, though it has none.
        return __output.detach() if __output.requires_grad else __output
    if __exporting():
        return __in_transforms(({arguments},))
    __output = __base({arguments})
    return __output if isinstance(__output, __Tensor) else __restore(__output)
"""

# For a pure forward of plain tensors that require no gradient: a third of the time of a small operation is saved here.
_SHORTCUT = """
    if not __compiling() and {all_plain} and __forward_ad._current_level < 0 and not __active() and __operator.forward is __pure:
        return {value}
"""

# The first argument is most often a tensor, the others seldom are.
_FIRST_IS_PLAIN = "({argument}.__class__ is __Tensor and not {argument}.requires_grad or {argument}.__class__ in __SCALAR_TYPES)"
_OTHER_IS_PLAIN = "({argument}.__class__ in __SCALAR_TYPES or {argument}.__class__ is __Tensor and not {argument}.requires_grad)"

_INSPECTION = """
__kind = {argument}.__class__
if __kind is __Tensor or __kind is __Parameter:
    if {argument}.requires_grad:
        {unwrapping}__needs_grad = True
elif __kind not in __SCALAR_TYPES:
    __needs_grad = __check_uncommon_argument({argument}) or __needs_grad
"""

_UNWRAPPING = """if __unwrap_if_dead({argument}) is not {argument}:
            return __in_transforms(({arguments},))
        """


def connect(rules: Rules) -> Apply:
    """The operator's ``apply``."""
    check_argument, unwrap_if_dead, SCALAR_TYPES = rules.check_argument, torch_private.unwrap_if_dead, rules.SCALAR_TYPES

    def in_transforms(args: tuple[Any, ...]) -> Any:
        # No shortcut past autograd here: compiled code opens dual levels that Python does not see.
        plain: list[Any] = []
        for a in args:
            if isinstance(a, Tensor):
                a = unwrap_if_dead(a)
            elif a.__class__ not in SCALAR_TYPES:
                check_argument(a)
            plain.append(a)
        if torch.compiler.is_exporting():
            return rules.export(plain)
        if torch_private.transforms_active():
            return transform(plain)
        output = base(*plain)
        return output if isinstance(output, Tensor) else rules.restore(output)

    def check_uncommon_argument(value: Any) -> bool:
        """Whether an argument of an uncommon type needs a gradient."""
        if not isinstance(value, Tensor):
            check_argument(value)
            return False
        return value.requires_grad

    namespace: dict[str, Any] = {
        "__Tensor": Tensor,
        "__Parameter": Parameter,
        "__active": torch_private.transforms_active,
        "__check_output": rules.check_output,
        "__compiling": torch.compiler.is_dynamo_compiling,
        "__exporting": torch.compiler.is_exporting,
        "__forward_ad": torch_private.forward_ad,
        "__grad_enabled": torch.is_grad_enabled,
        "__SCALAR_TYPES": SCALAR_TYPES,
        "__in_graph": rules.as_graph_node(in_transforms),
        "__in_transforms": in_transforms,
        "__check_uncommon_argument": check_uncommon_argument,
        "__operator": rules.operator,
        "__pure": rules.operator.forward,
        "__restore": rules.restore,
        "__set_grad": torch_private.set_grad,
        "__through": through,
        "__unwrap_if_dead": unwrap_if_dead,
    }
    source = _SOURCE.replace("{shortcut}", _shortcut(rules))
    rules.write_out(source, namespace, _INSPECTION.replace("{unwrapping}", "" if torch_private.APPLY_UNWRAPS else _UNWRAPPING))
    # The old style of a Function, one forward(ctx, …), saves a second trip from C++ to Python.
    forward = namespace["forward_alone" if rules.operator.setup_context is saves_nothing else "forward_and_setup"]
    base = namespace["__base"] = _function(rules, rules.name, torch.autograd.Function, forward)
    transform = through_transforms(_transforms(rules, in_transforms))
    return namespace["apply"]


def _shortcut(rules: Rules) -> str:
    """The first lines of ``apply``, for a forward that is marked as pure."""
    forward = rules.operator.forward
    if not hasattr(forward, "is_pure") or any(variadic for _, variadic in rules.parameters):
        return ""
    first, *others = [name for name, _ in rules.parameters]
    tests = [_FIRST_IS_PLAIN.format(argument=first), *[_OTHER_IS_PLAIN.format(argument=name) for name in others]]
    # What `alias` does, without the calls that lead there.
    alias = f"{first}.clone() if __through.inside_transform else {first}.detach()"
    value = alias if hasattr(forward, "is_identity") else "__pure({arguments})"
    return _SHORTCUT.strip("\n").replace("{all_plain}", " and ".join(tests)).replace("{value}", value)


def _function(rules: Rules, name: str, kind: type, forward_and_setup: Any) -> Any:
    """The C-level ``apply`` of a Function made of the given forward and the author's derivative rules."""

    def refuse_in_place(ctx: Any, *tensors: Tensor) -> None:
        raise NotImplementedError(in_place_message(rules.name))

    body = {
        "forward": staticmethod(forward_and_setup),
        "backward": staticmethod(rules.backward),
        "jvp": staticmethod(rules.jvp),
    }
    function: Any = type(name, (kind,), body)
    # The engine calls the rules themselves, without the dispatching methods of torch's BackwardCFunction.
    context = function._backward_cls
    context.apply, context.apply_jvp, context.mark_dirty = rules.backward, rules.jvp, refuse_in_place
    return torch_private.bind_apply(function)


def _transforms(rules: Rules, lower: Apply) -> Apply:
    """The call under at least one transform. ``lower`` is the call again, for the transforms further down."""
    peek, pop, push = torch_private.peek, torch_private.pop, torch_private.push
    get_single_level, set_single_level = torch_private.get_single_level, torch_private.set_single_level
    levels: dict[tuple[bool, bool], Apply] = {}

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

    def below(args: list[Any]) -> Any:
        """The call without the transform on top."""
        layer = pop()
        try:
            return lower(tuple(args))
        finally:
            push(layer)

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
            return below(plain)
        layer = pop()
        try:
            info = VmapInfo(interpreter.batchSize(), _RANDOMNESS[interpreter.randomness()])
            output, out_dims = rules.vmap(info, tuple(dims), *plain)
        finally:
            push(layer)
        add = torch_private.add_batch_dim
        if isinstance(output, Tensor):
            return output if out_dims is None else add(output, _positive(out_dims, output), level)
        wrapped = [
            o if d is None or not isinstance(o, Tensor) else add(o, _positive(d, o), level)
            for o, d in zip(output, out_dims, strict=True)
        ]
        return rebuild(type(output), wrapped)

    def skip(level: int, args: list[Any]) -> Any:
        """A level that does not record, because the user switched its mode off."""
        plain = [torch_private.unwrap_for_grad(a, level) if isinstance(a, Tensor) else a for a in args]
        return _map(lambda o: torch_private.wrap_for_grad(o, level), below(plain))

    def functionalize(interpreter: Any, args: list[Any]) -> Any:
        """An operator neither mutates nor aliases its inputs, so there is nothing to do but to pass it on."""
        level, views = interpreter.level(), interpreter.functionalizeAddBackViews()
        plain: list[Any] = []
        for a in args:
            if isinstance(a, Tensor) and torch_private.is_functional(a):
                torch_private.sync(a)
                a = torch_private.unwrap_functional(a, views)
            plain.append(a)
        return _map(lambda o: torch_private.wrap_functional(o, level), below(plain))

    return transform


def _single_level(rules: Rules, lower: Apply, grad_mode: bool, forward_mode: bool) -> Apply:
    """A Function that differentiates at the level on top of the stack and passes the call on to the one below.

    Autograd switches both modes off inside a forward; the caller's modes are therefore part of the class.
    """
    set_grad, set_forward_mode = torch_private.set_grad, torch_private.set_forward_mode
    peek, pop, push = torch_private.peek, torch_private.pop, torch_private.push
    wrap, unwrap, operator = torch_private.wrap_for_grad, torch_private.unwrap_for_grad, rules.operator

    def forward_and_setup(ctx: Any, *args: Any) -> Any:
        interpreter = peek()
        level = interpreter.level()
        # As in torch's C++ interpreters: below a level, a mode is on where it was on both outside and inside that level.
        grad, forward = grad_mode, forward_mode
        if interpreter.key() == _GRAD:
            grad = grad and torch_private.GradInterpreter(interpreter).prevGradMode()
        else:
            forward = forward and torch_private.JvpInterpreter(interpreter).prevFwdGradMode()
        plain = [unwrap(a, level) if isinstance(a, Tensor) else a for a in args]
        set_grad(grad)
        set_forward_mode(forward)
        layer = pop()
        try:
            output = lower(tuple(plain))
        finally:
            push(layer)
            set_grad(False)
            set_forward_mode(False)
        if isinstance(output, Tensor):
            output = wrap(output, level)
        else:
            output = _map(lambda o: wrap(o, level), output)
            rules.check_output(output)
        operator.setup_context(ctx, args, output)
        return output

    return _function(rules, f"{rules.name}Level", torch_private.SingleLevelFunction, forward_and_setup)


def _map(function: Any, output: Any) -> Any:
    if isinstance(output, Tensor):
        return function(output)
    return rebuild(type(output), [function(o) if isinstance(o, Tensor) else o for o in output])


def _positive(dim: int, tensor: Tensor) -> int:
    return dim + tensor.ndim if dim < 0 else dim
