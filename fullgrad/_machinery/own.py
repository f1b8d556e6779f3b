"""The own lane: an operator dispatched on functorch's interpreter stack, without pytrees and without a class per call.

A transform on top of the stack handles the call at its level and passes it on to the next; below the last one lies
ordinary autograd. It mirrors what torch's C++ code does for its own operators, grad modes included.
"""

from typing import Any

import torch
from torch import Tensor

from fullgrad._machinery import names
from fullgrad._machinery.rules import Apply, Rules, VmapInfo, rebuild

if names.LANE == "own":
    _GRAD, _JVP = names.TransformType.Grad, names.TransformType.Jvp
    _VMAP, _FUNCTIONALIZE = names.TransformType.Vmap, names.TransformType.Functionalize
    _RANDOMNESS = {kind: kind.name.lower() for kind in names.RandomnessType.__members__.values()}


def connect(rules: Rules) -> tuple[Apply, Apply]:
    """The callable for eager code, which skips autograd where nobody asks for a gradient, and the one for graphs."""
    active, unwrap_if_dead, grad_enabled = names.transforms_active, names.unwrap_if_dead, torch.is_grad_enabled
    dual_level_open, restore = names.dual_level_open, rules.restore
    check, warn, forward = rules.check_argument, rules.warn_if_exporting, rules.forward
    base = _base_level(rules)

    def graph(*args: Any) -> Any:
        """No shortcut: compiled code opens dual levels that Python does not see."""
        needs_grad = False
        plain: list[Any] = []
        for a in args:
            if isinstance(a, Tensor):
                a = unwrap_if_dead(a)
                needs_grad = needs_grad or a.requires_grad
            else:
                check(a)
            plain.append(a)
        if active():
            return transform(plain)
        if needs_grad:
            warn()
        output = base(*plain)
        return output if isinstance(output, Tensor) else restore(output)

    def eager(*args: Any) -> Any:
        if active():
            return graph(*args)
        needs_grad = False
        plain: list[Any] = []
        for a in args:
            if isinstance(a, Tensor):
                a = unwrap_if_dead(a)
                needs_grad = needs_grad or a.requires_grad
            elif a.__class__ is not float:
                check(a)
            plain.append(a)
        if needs_grad and grad_enabled():
            warn()
        elif not dual_level_open():
            return forward(*plain)
        output = base(*plain)
        return output if isinstance(output, Tensor) else restore(output)

    transform = _transforms(rules, graph)
    return eager, graph


def _base_level(rules: Rules) -> Apply:
    """Ordinary autograd. The old style, one ``forward(ctx, …)``, saves a second trip from C++ to Python."""
    forward, setup_context = rules.forward, rules.setup_context

    def forward_and_setup(ctx: Any, *args: Any) -> Any:
        output = forward(*args)
        setup_context(ctx, args, output)
        return output

    body = {
        "forward": staticmethod(forward_and_setup),
        "backward": staticmethod(rules.backward),
        "jvp": staticmethod(rules.jvp),
    }
    function = type(rules.name, (torch.autograd.Function,), body)
    names.bind_rules(function, rules.backward, rules.jvp)
    return names.bind_apply(function)


def _transforms(rules: Rules, lower: Apply) -> Apply:
    """The call under at least one transform. ``lower`` is the call again, for the transforms further down."""
    peek, pop, push = names.peek, names.pop, names.push
    get_single_level, set_single_level = names.get_single_level, names.set_single_level
    levels: dict[tuple[bool, bool], Apply] = {}

    def transform(args: list[Any]) -> Any:
        interpreter = peek()
        key = interpreter.key()
        if key == _VMAP:
            return batch(names.VmapInterpreter(interpreter), args)
        if key == _FUNCTIONALIZE:
            return functionalize(names.FunctionalizeInterpreter(interpreter), args)
        modes = torch.is_grad_enabled(), names.is_forward_mode()
        if key == _GRAD:
            lift, records = names.GradInterpreter(interpreter).lift, modes[0]
        else:
            lift, records = names.JvpInterpreter(interpreter).lift, modes[1]
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

    def batch(interpreter: Any, args: list[Any]) -> Any:
        level = interpreter.level()
        plain, dims, batched = [], [], False
        for a in args:
            dim = None
            if isinstance(a, Tensor):
                a, dim = names.unwrap_batched(a, level)
                batched = batched or dim is not None
            plain.append(a)
            dims.append(dim)
        layer = pop()
        try:
            if not batched:
                return lower(*plain)
            info = VmapInfo(interpreter.batchSize(), _RANDOMNESS[interpreter.randomness()])
            output, out_dims = rules.vmap(info, tuple(dims), *plain)
        finally:
            push(layer)
        add = names.add_batch_dim
        if isinstance(output, Tensor):
            return output if out_dims is None else add(output, _positive(out_dims, output), level)
        wrapped = [
            o if d is None or not isinstance(o, Tensor) else add(o, _positive(d, o), level)
            for o, d in zip(output, out_dims, strict=True)
        ]
        return rebuild(type(output), wrapped)

    def skip(level: int, args: list[Any]) -> Any:
        """A level that does not record, because the user switched its mode off."""
        plain = [names.unwrap_for_grad(a, level) if isinstance(a, Tensor) else a for a in args]
        layer = pop()
        try:
            output = lower(*plain)
        finally:
            push(layer)
        return _map(lambda o: names.wrap_for_grad(o, level), output)

    def functionalize(interpreter: Any, args: list[Any]) -> Any:
        """An operator neither mutates nor aliases its inputs, so there is nothing to do but to pass it on."""
        level, views = interpreter.level(), interpreter.functionalizeAddBackViews()
        plain: list[Any] = []
        for a in args:
            if isinstance(a, Tensor) and torch._is_functional_tensor(a):
                names.sync(a)
                a = names.unwrap_functional(a, views)
            plain.append(a)
        layer = pop()
        try:
            output = lower(*plain)
        finally:
            push(layer)
        return _map(lambda o: names.wrap_functional(o, level), output)

    return transform


def _single_level(rules: Rules, lower: Apply, grad_mode: bool, forward_mode: bool) -> Apply:
    """A Function that differentiates at the level on top of the stack and passes the call on to the one below.

    Autograd switches both modes off inside a forward; the caller's modes are therefore part of the class.
    """
    set_grad, set_forward_mode = torch._C._set_grad_enabled, names.set_forward_mode
    peek, pop, push = names.peek, names.pop, names.push
    wrap, unwrap, setup_context = names.wrap_for_grad, names.unwrap_for_grad, rules.setup_context

    def forward_and_setup(ctx: Any, *args: Any) -> Any:
        interpreter = peek()
        level = interpreter.level()
        # As in torch's C++ interpreters: below a level, a mode is on where it was on both outside and inside that level.
        grad, forward = grad_mode, forward_mode
        if interpreter.key() == _GRAD:
            grad = grad and names.GradInterpreter(interpreter).prevGradMode()
        else:
            forward = forward and names.JvpInterpreter(interpreter).prevFwdGradMode()
        plain = [unwrap(a, level) if isinstance(a, Tensor) else a for a in args]
        set_grad(grad)
        set_forward_mode(forward)
        layer = pop()
        try:
            output = lower(*plain)
        finally:
            push(layer)
            set_grad(False)
            set_forward_mode(False)
        if isinstance(output, Tensor):
            output = wrap(output, level)
        else:
            output = _map(lambda o: wrap(o, level), output)
            rules.remember(output)
        setup_context(ctx, args, output)
        return output

    body = {
        "forward": staticmethod(forward_and_setup),
        "backward": staticmethod(rules.backward),
        "jvp": staticmethod(rules.jvp),
    }
    function = type(f"{rules.name}Level", (names.SingleLevelFunction,), body)
    names.bind_rules(function, rules.backward, rules.jvp)
    return names.bind_apply(function)


def _map(function: Any, output: Any) -> Any:
    if isinstance(output, Tensor):
        return function(output)
    return rebuild(type(output), [function(o) if isinstance(o, Tensor) else o for o in output])


def _positive(dim: int, tensor: Tensor) -> int:
    return dim + tensor.ndim if dim < 0 else dim
