"""`Closure`: the tensors that a function uses and was not given, as inputs of an operator."""

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fullgrad._dispatch import are_differentiated, current_level, level_of, transforms_active
from fullgrad.functions._declared import is_differentiated, versions_of
from fullgrad.functions._trees import run_with_states, state_of


class Closure:
    """The tensors that functions use and were not given, where they need a derivative or belong to a transform.

    In a call inside `noted` they are noted, in the list ``tensors``, and have their values alone. `again` puts other tensors in
    their places. Tensors of modules that the functions hold are known by name too, as `torch.func.functional_call` replaces
    them for the first call only.
    """

    def __init__(self, name: str, *functions: Any) -> None:
        self.name = name
        self.message = (
            f"{name} uses a tensor that needs a derivative or belongs to a transform, and is none of its arguments. Pass the "
            "tensor, or the module that has it, as an argument."
        )
        self.states = [(module, state_of(module)) for module in modules_of(functions)]
        self.tensors: list[Tensor] = []
        self._refs: list[tuple[weakref.ref[Tensor], bool]] = []

    def noted(self, given: Sequence[Tensor]) -> "_Noting":
        """A context for a call on given tensors."""
        return _Noting(self, given)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context for a call that must not change the tensors of modules in place."""
        tensors = [(f"{type(m).__name__}.{name}", t) for m, state in self.states for name, t in state.items()]
        before = versions_of([t for _, t in tensors])
        yield
        changed = [name for (name, _), a, b in zip(tensors, before, versions_of([t for _, t in tensors]), strict=False) if a != b]
        if changed:
            raise RuntimeError(
                f"{self.name} changes {', '.join(changed)} in place, which its derivative would do again. Call .eval(), or leave "
                "the module that does it out."
            )

    def note(self, tensor: Tensor) -> None:
        """Add a tensor that a function uses."""
        if not any(tensor is t for t in self.tensors):
            self.tensors.append(tensor)

    def check(self, results: Sequence[Tensor]) -> None:
        """Refuse results of a call in which torch's Python functions did not see all tensors."""
        if any(level_of(y) > current_level() for y in results) or is_differentiated(results):
            raise RuntimeError(self.message)

    def release(self) -> list[Tensor]:
        """The tensors, which the closure forgets, so that autograd alone keeps them. The states keep what is not among them."""
        tensors, self.tensors = self.tensors, []
        position = {id(t): i for i, t in enumerate(tensors)}
        self.states = [(m, {name: position.get(id(t), t) for name, t in state.items()}) for m, state in self.states]
        needed = are_differentiated(tensors) if tensors else []
        self._refs = [(weakref.ref(t), need) for t, need in zip(tensors, needed, strict=True)]
        return tensors

    def again(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        """``function(*given)`` with values in the places of the tensors that were noted."""
        others = [(ref(), value) for (ref, _), value in zip(self._refs, values, strict=True)]
        states = [(m, _changed(m, {k: values[t] if isinstance(t, int) else t for k, t in s.items()})) for m, s in self.states]
        run = _Replacing(self, [*given, *values], [(t, value) for t, value in others if t is not None])

        def under() -> Any:
            with run:
                return function(*given)

        result = run_with_states([(m, s) for m, s in states if s], under)
        in_states = {t for _, s in self.states for t in s.values() if isinstance(t, int)}
        # A tensor without a derivative may be one that code made which is no function of torch.
        needed = [i for i, (_, need) in enumerate(self._refs) if need and i not in in_states]
        missing = [i for i in needed if id(values[i]) not in run.used]
        if missing:
            raise RuntimeError(
                f"{self.name} uses a tensor of shape {tuple(values[missing[0]].shape)} that is none of its arguments, and that "
                "its derivative does not find again. Pass the tensor, or the module that has it, as an argument."
            )
        return result


def made(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Tensors that an operator made, of which torch's Python functions do not tell the modes."""
    for mode in _active.modes:
        mode._add(tensors)
    return tensors


class _Active(threading.local):
    """The modes of this thread."""

    def __init__(self) -> None:
        self.modes: list[_Mode] = []


_active = _Active()


def _changed(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state that a module does not have already."""
    now = state_of(module)
    return {name: t for name, t in state.items() if now.get(name) is not t}


class Refusing(Closure):
    """A closure that refuses tensors: for rules of one's own, which cannot know of them."""

    def note(self, tensor: Tensor) -> None:
        raise RuntimeError(self.message)


class _Mode(TorchFunctionMode):
    """Looks at each tensor that a function uses, and that is neither given nor made in the call."""

    def __init__(self, closure: Closure, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.closure, self.level = closure, current_level()
        self.own: dict[int, Any] = {}
        self._add(given)

    def __enter__(self) -> Any:
        _active.modes.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _active.modes.remove(self)
        super().__exit__(*error)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*self._replaced(args), **self._replaced(kwargs or {}))
        self._add(result)
        return result

    def foreign(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor that is neither given nor made in the call."""
        raise NotImplementedError

    def _add(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self.own[id(value)] = weakref.ref(value)
        elif isinstance(value, (tuple, list)):  # structures of functions, named tuples too
            for v in value:
                self._add(v)

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            ref = self.own.get(id(value))
            return value if ref is not None and ref() is value else self.foreign(value)
        if value.__class__ in (tuple, list):
            return value.__class__([self._replaced(v) for v in value])
        if value.__class__ is dict:
            return {k: self._replaced(v) for k, v in value.items()}
        return value

    def matters(self, tensor: Tensor) -> bool:
        """Whether a tensor needs a derivative, or belongs to a transform that was active at the start."""
        level = level_of(tensor)
        if level > self.level:  # of a transform inside the function, if one is active
            if not transforms_active():
                raise RuntimeError(self.closure.message)
            return False
        return level > 0 or is_differentiated([tensor])


class _Noting(_Mode):
    """Notes tensors, and computes with their values."""

    def foreign(self, tensor: Tensor) -> Tensor:
        if not self.matters(tensor):
            return tensor
        self.closure.note(tensor)
        return tensor.detach()


class _Replacing(_Mode):
    """Puts tensors in the places of others."""

    def __init__(self, closure: Closure, given: Sequence[Tensor], others: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__(closure, given)
        self.others = {id(t): (t, value) for t, value in others}
        self.used: set[int] = set()

    def foreign(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self.others:
            value = self.others[id(tensor)][1]
            self.used.add(id(value))
            return value
        # Code that is no function of torch, such as a Function, makes tensors too, but no leaves that require a gradient.
        if tensor.requires_grad and tensor.is_leaf and not level_of(tensor):
            raise RuntimeError(
                f"{self.closure.name} uses a tensor of shape {tuple(tensor.shape)} in its derivative that needs one itself, is "
                "none of its arguments, and was not used in the forward. Pass the tensor, or its module, as an argument."
            )
        return tensor


def modules_of(value: Any) -> list[nn.Module]:
    """The modules that functions hold: those whose methods they are, or that they close over or name."""
    found: dict[int, nn.Module] = {}
    _walk(value, found, set(), 6)
    return list(found.values())


def _walk(value: Any, found: dict[int, nn.Module], seen: set[int], depth: int) -> None:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        found[id(value)] = value
        return
    for part in _parts(value):
        _walk(part, found, seen, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a name that has no value yet
                continue
        yield from (value.__defaults__ or (), value.__kwdefaults__ or {})
        named = [value.__globals__.get(name) for name in _names(value.__code__)]
        yield from [v for v in named if isinstance(v, (nn.Module, types.FunctionType, functools.partial))]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
