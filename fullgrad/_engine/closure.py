"""`Closure`: the tensors that a function uses and was not given, as inputs of an operator."""

import contextlib
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from fullgrad._dispatch import (
    are_differentiated,
    current_level,
    forward_mode_is_on,
    has_data,
    in_legacy_vmap,
    innermost,
    is_compiling,
    is_computed_since,
    is_tracing,
    level_of,
    outside_dynamo_later,
    sequence_number,
    transforms_active,
)
from fullgrad._engine.guard import guard
from fullgrad._engine.held import generators_in, has_compiled_code, held, held_in, is_globals, places, substituted
from fullgrad._engine.modules import check_modes, modes_of, run_with_states, state_of
from fullgrad._engine.replay import Replay
from fullgrad._engine.rule import is_differentiated, leaves_of
from fullgrad._engine.surroundings import Surroundings, changed, exchanged, in_graph, versions_of
from fullgrad._engine.watching import is_watched, seen, watching

# Errors about captured tensors: of rules, and of code without derivatives. The others stand where they are raised, below.
CAPTURED = (
    "{} captures a tensor that requires a gradient or belongs to a transform. Pass the tensor, or the module that has it, as an "
    "argument."
)
CAPTURED_BY_CODE = (
    "{} captures a tensor that requires a gradient, so that its derivative would be lost. Detach the tensor, use it under "
    "torch.no_grad, or make it a part of `x`."
)


def captured(name: str, objects: Sequence[Any] = ()) -> str:
    """The message for a tensor that code captures, or that one of the objects has which code gets as arguments."""
    kinds = ", ".join(sorted({type(v).__name__ for v in objects if type(v).__module__ not in ("builtins", "types")}))
    more = (
        f" A tensor in an argument of type {kinds} counts as captured, unless torch.utils._pytree.register_dataclass or "
        "register_pytree_node says what it holds."
    )
    return CAPTURED.format(name) + (more if kinds else "")


class Closure:
    """The tensors that functions use and were not given, where they need a derivative or belong to a transform.

    Its life has this order:

    1. `hold`, before a call below all transforms: it returns the values of the tensors of transforms that the functions hold.
    2. `first`, the call: the tensors that it uses are noted, and have their values alone.
    3. `hold_unused`, if a derivative calls another function than the call: what that one holds is noted, too.
    4. `release`: it returns the noted tensors, which become inputs of the operator, and keeps weak references and versions.
    5. `again`, in a derivative, at any order: a call with other tensors in their places. It refuses what has changed.

    Parameters and buffers of modules that the functions hold are known by name too, as `torch.func.functional_call` replaces
    them for the first call only. Objects that the functions get as arguments count as held by them.
    """

    def __init__(self, name: str, *functions: Any, objects: Sequence[Any] = (), draws_again: bool = True) -> None:
        self.name, self.functions, self.objects = name, functions, objects
        self.look()
        # Whether a derivative calls what the call has called, which draws the same numbers, or other code, which may draw none.
        self.replay, self.draws_again = Replay(name, generators_in((*functions, *objects), self.places)), draws_again
        self.constants: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # other tensors that were used, with their versions
        self.made: dict[int, weakref.ref[Tensor]] = {}  # tensors that the call made and something keeps, such as a cache
        self.held_now: dict[int, Tensor] | None = None  # what the functions hold when the derivative is taken
        self.tensors: list[Tensor] = []
        self.known: set[int] = set()  # their identities
        self.used: int | None = None  # how many of them a call has used
        # Whether nothing needs to look at the operations of a call.
        self.is_plain, self.surroundings = False, None
        # Whether a call is below transforms, where their tensors are numbers, and a result does not show that one was used.
        self.is_below = False
        self.is_traced = in_graph()  # in which constants are not noted
        self._refs: list[tuple[weakref.ref[Tensor], bool]] = []

    def message(self) -> str:
        """The message for a tensor that the functions capture and may not."""
        return captured(self.name, self.objects)

    def look(self) -> None:
        """Note what the functions hold now."""
        self.places = places(*self.functions, *self.objects)
        modules, self.held = held_in(self.functions, self.places)
        parts = {id(part) for m in modules for part in m._modules.values()}
        modules = [m for m in modules if id(m) not in parts]  # of which the others are parts
        # The tensors of modules; in place of one that is noted, its position.
        self.states: list[tuple[nn.Module, dict[str, Any]]] = [(m, dict(state_of(m))) for m in modules]
        self.of_modules = {id(t) for _, state in self.states for t in state.values()}
        self.modes = [pair for m in modules for pair in modes_of(m)]

    def hold(self) -> list[Tensor]:
        """Note the tensors of transforms that the functions hold, before a call below all transforms, which gets their values."""
        found = [*self.held, *[t for _, state in self.states for t in state.values()]]
        for t, value in zip(found, seen(found), strict=True):
            if level_of(t) or value is not t:
                self.noted(t)
        self._settle()
        return list(seen(self.tensors))

    def hold_unused(self) -> None:
        """Note the tensors that the functions hold and no call has used, for a function that is called in a derivative alone."""
        self.used = len(self.tensors)
        # Of a module that the call had, a derivative uses what the call has used.
        of_call = {id(m) for m in held(self.functions[0], *self.objects)[0]} if self.states else set()
        for t in [t for m, state in self.states if id(m) in of_call for t in state.values() if isinstance(t, Tensor)]:
            self.constant(t, True)
        others = [t for m, state in self.states if id(m) not in of_call for t in state.values() if isinstance(t, Tensor)]
        others = list({id(t): t for t in (*others, *[t for t in self.held if id(t) not in self.of_modules])}.values())
        for t, needed in zip(others, are_differentiated(seen(others)) if others else [], strict=True):
            if needed:
                self.is_plain = self.is_plain and id(t) in self.known
                self.noted(t)
            else:
                self.constant(t, True)
                self.made[id(t)] = weakref.ref(t)  # also one that a transform has made

    def first(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor] = ()) -> Any:
        """``function(*given)`` without derivatives by other tensors, which are noted; with values for those of `hold`.

        A mode looks at each operation, unless the walk over what the functions hold finds them; or if the result shows that it
        missed one.
        """
        if self._is_found():
            own = [*values, *[t.detach() for t in self.tensors[len(values) :]]]
            call = lambda: self._with_values(function, given, own)  # noqa: E731
            result = self.replay.first(call, lambda result: not _shows_others(result, given))
            if result is not NotImplemented:
                self.is_plain = True
                return result
        stand_ins = {} if values else self._stand_ins(function)
        function = substituted(function, stand_ins)
        mode = _Mode(self, [*given, *values, *stand_ins.values()], self._others(values), noting=True)
        result = self.replay.first(lambda: self._run(mode, function, given, values))
        self.made = {key: ref for key, ref in mode.own.items() if ref() is not None}
        return result

    def release(self) -> list[Tensor]:
        """The noted tensors, which the closure forgets, so that autograd alone keeps them. It keeps others of modules."""
        self._refs = []
        self._settle()
        tensors, self.tensors, self.held, self.known = self.tensors, [], [], set()
        if self.is_plain:
            self.surroundings = Surroundings(self.name, *map(frozen, self.functions), *self.objects, but=tensors)
        if tensors and is_compiling() and any(has_data(innermost(t)) for t in tensors):  # to the compiler it is a constant
            raise NotImplementedError(self.message())
        return list(seen(tensors))

    def again(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        """``function(*given)`` with values in the places of the tensors that were noted."""
        if is_dynamo_compiling():  # compiled autograd, which traces a backward and no modes
            return _again_outside[0](self, function, given, values) if values else function(*given)
        # Compiled code has no derivative of its derivative, and in forward mode none; there the code that was compiled is called.
        is_compiled = has_compiled_code(self.functions, self.places) and not _are_leaves([*given, *values])
        with self.replay.again() if self.draws_again else self.replay.none():
            return (_uncompiled[0] if is_compiled else Closure._again)(self, function, given, values)

    def _again(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        check_modes(self.modes)
        if self.is_plain:
            if self.surroundings is not None:
                self.surroundings.check()
            if self.used is None or _are_leaves([*given, *values]):
                result = self._with_values(function, given, values)
                if self.used is not None and leaves_of(_tensors_of(result)) - {id(t) for t in (*given, *values)}:
                    raise RuntimeError(self.unknown("a tensor"))
                return result
        self.held_now = None
        mode = _Mode(self, [*given, *values], self._others(values), noting=False)
        mode.function = function
        result = self._run(mode, function, given, values)
        self.held_now = None
        in_modules = {t for _, state in self.states for t in state.values() if isinstance(t, int)}
        # A tensor without a derivative may be one that code made which is no function of torch.
        used = enumerate(self._refs[: self.used])
        lost = [i for i, (_, need) in used if need and i not in in_modules and id(values[i]) not in mode.used]
        if lost:
            raise RuntimeError(
                f"{self.name} uses a tensor of shape {tuple(values[lost[0]].shape)} that is none of its arguments, and that its "
                "derivative does not find again. Pass the tensor, or the module that has it, as an argument."
            )
        return result

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context for a call that must not change the tensors of modules in place."""
        tensors = [(f"{type(m).__name__}.{name}", t) for m, s in self.states for name, t in s.items() if isinstance(t, Tensor)]
        before = versions_of([t for _, t in tensors])
        yield
        after = versions_of([t for _, t in tensors])
        changed = [name for (name, _), a, b in zip(tensors, before, after, strict=False) if a != b]
        if changed:
            raise RuntimeError(
                f"{self.name} changes {', '.join(changed)} in place, which its derivative would do again. Call .eval(), or leave "
                "the module that does it out."
            )

    def _stand_ins(self, function: Any) -> dict[int, Tensor]:
        """The values of tensors that matter and that variables of a function have, by identity: they are noted here, since code
        that is no function of torch, such as another Function, may use them.
        """
        found = [t for t in self.held if type(self) is Closure and id(t) not in self.of_modules]
        found = [t for t in found if level_of(t) or any(are_differentiated([t]))]
        stand_ins = {id(t): t.detach() for t in found}
        return {id(t): self.noted(t) for t in found if substituted(function, {id(t): stand_ins[id(t)]}) is not function}

    def _is_found(self) -> bool:
        """Whether the walk alone says which tensors matter: if none does, or around code that the user has compiled, into which
        no mode looks, and in whose graphs Dynamo would compile the mode. They are noted then, used or not.
        """
        if is_watched() or is_compiling():  # a graph would have a constant as it is now
            return False
        has_compiled = has_compiled_code(self.functions, self.places)
        if self.is_below and not has_compiled:
            return False
        tensors = list({id(t): t for t in (*self.held, *[t for _, state in self.states for t in state.values()])}.values())
        tensors = [t for t in tensors if isinstance(t, Tensor)]  # others are positions, of tensors that are noted
        levels = [level_of(t) for t in tensors]  # of which nothing else can be asked below transforms
        plain = [t for t, level in zip(tensors, levels, strict=True) if not level]
        needed = iter(are_differentiated(plain) if plain else [])
        matter = [t for t, level in zip(tensors, levels, strict=True) if level or next(needed)]
        if not (matter and has_compiled):
            return not matter
        held = {id(t) for t in self.held}
        for t in matter:
            if id(t) in held and id(t) not in self.known:
                self.noted(t)
        self._settle()
        return True

    def _with_values(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        """``function(*given)`` while modules have the tensors of the call, and values in the places of those that were noted."""
        others = {id(t): value for t, value in self._others(values) if id(t) not in self.of_modules} if values else {}
        function = substituted(function, others) if others else function
        named = [(m, {k: values[t] if isinstance(t, int) else t for k, t in state.items()}) for m, state in self.states]
        changed = [(m, {k: t for k, t in state.items() if now.get(k) is not t}) for m, state in named for now in [state_of(m)]]
        with self._compiled_globals(others):
            return run_with_states([(m, state) for m, state in changed if state], lambda: function(*given))

    @contextlib.contextmanager
    def _compiled_globals(self, others: Mapping[int, Tensor]) -> Iterator[None]:
        """A context in which globals have other tensors, by identity, if code is compiled: it has no copy with other globals."""
        if not others or not has_compiled_code(self.functions, self.places):
            yield
            return
        found = [(space, name, t) for space, name, t in self.places if id(t) in others and is_globals(space)]
        try:
            for space, name, t in found:
                space[name] = others[id(t)]
            yield
        finally:
            for space, name, t in found:
                space[name] = t

    def noted(self, tensor: Tensor) -> Tensor:
        """Add a tensor that a function uses, and return its value."""
        if id(tensor) not in self.known:
            self.known.add(id(tensor))
            self.tensors.append(tensor)
        return tensor.detach()

    def constant(self, tensor: Tensor, noting: bool, function: Any = None) -> Tensor:
        """A tensor that a function uses and that has no derivative, which must be the same in each call."""
        if noting and is_compiling() and has_data(innermost(tensor)):
            raise NotImplementedError(
                f"{self.name} uses a tensor of shape {tuple(tensor.shape)} that is none of its arguments, which compiled code "
                "cannot follow. Pass it as an argument."
            )
        if level_of(tensor) or tensor.is_inference() or in_graph():
            if not noting and level_of(tensor) and not self.is_traced and not in_graph() and self._is_new(tensor, function):
                raise exchanged(self.name, tensor)
            return tensor
        ref, version = self.constants.get(id(tensor), (None, 0))
        is_known = ref is not None and ref() is tensor
        if noting:
            self.constants[id(tensor)] = ref if is_known else weakref.ref(tensor), tensor._version  # pyright: ignore
        elif is_known and tensor._version != version:
            raise changed(self.name, tensor)
        elif not is_known and not self.is_traced and self._is_new(tensor, function):
            raise exchanged(self.name, tensor)
        return tensor

    def _is_new(self, tensor: Tensor, function: Any) -> bool:
        """Whether a function holds a tensor that its call neither used nor made."""
        ref = self.made.get(id(tensor))
        if ref is not None and ref() is tensor:
            return False
        if self.held_now is None:
            modules, tensors = held(function, *self.objects)
            self.held_now = {id(t): t for t in (*tensors, *[t for m in modules for t in state_of(m).values()])}
        return self.held_now.get(id(tensor)) is tensor

    def unknown(self, found: str) -> str:
        """The message for a tensor that appears in a derivative."""
        return (
            f"{self.name} captures {found} in its derivative that requires a gradient and was not used in the call. Pass the "
            "tensor, or its module, as an argument."
        )

    def check(self, results: Sequence[Tensor]) -> None:
        """Refuse results of a call in which torch's Python functions did not see all tensors."""
        if any(level_of(y) > current_level() for y in results) or any(are_differentiated(results)):
            raise RuntimeError(self.message())

    def refuse(self) -> None:
        """Refuse what the functions hold, in code that a tracer records."""
        if is_differentiated(self.held):
            raise NotImplementedError(self.message())

    def _settle(self) -> None:
        positions = {id(t): i for i, t in enumerate(self.tensors)}
        self.states = [(m, {name: positions.get(id(t), t) for name, t in state.items()}) for m, state in self.states]
        new = self.tensors[len(self._refs) :]  # of the others one cannot ask below transforms
        needed = are_differentiated(seen(new)) if new else []
        self._refs += [(weakref.ref(t), need) for t, need in zip(new, needed, strict=True)]

    def _others(self, values: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        pairs = [(ref(), value) for (ref, _), value in zip(self._refs, values, strict=bool(values))]
        return [(t, value) for t, value in pairs if t is not None]

    def _run(self, mode: "_Mode", function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        def under() -> Any:
            with mode, watching(mode):
                return function(*given)

        if not values:
            return under()
        others = {i: value for i, (_, value) in mode.others.items() if i not in self.of_modules}
        mode.used |= {id(v) for i, v in others.items() if substituted(function, {i: v}) is not function}
        return self._with_values(under, (), values)


def _as_python(closure: Closure, *args: Any) -> Any:
    with torch.compiler.set_stance("force_eager"):
        return closure._again(*args)


_uncompiled = outside_dynamo_later(_as_python)  # where torch allows another stance
_again_outside = outside_dynamo_later(lambda closure, *args: closure.again(*args))


def _shows_others(result: Any, given: Sequence[Tensor]) -> bool:
    """Whether the result of a call shows that it used tensors which were not given, and which have a derivative or a level."""
    tensors = _tensors_of(result)
    if any(level_of(y) > max([current_level(), *map(level_of, given)]) for y in tensors):
        return True
    if not is_differentiated(tensors):
        return False
    # Code may have made its arguments, which are of this call alone, require a gradient.
    return transforms_active() or forward_mode_is_on() or is_tracing() or not leaves_of(tensors) <= {id(t) for t in given}


def _are_leaves(tensors: Sequence[Tensor]) -> bool:
    """Whether a graph of some tensors, which is recorded now, begins at them."""
    hidden = transforms_active() or forward_mode_is_on() or is_tracing() or in_legacy_vmap()
    return not hidden and all(t.is_leaf for t in tensors)


def _tensors_of(result: Any) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else getattr(result, "tensors", result)


class Refusing(Closure):
    """A closure whose functions may use no other tensors that need a derivative: custom rules cannot know of them."""

    def __init__(self, name: str, *functions: Any, checks: bool = True) -> None:
        super().__init__(name, *functions)
        self.checks, self.has_looked = checks, False

    def look(self) -> None:
        """Note nothing before it is asked for: most calls never ask."""
        self.places, self.held, self.states, self.of_modules, self.modes = [], [], [], set(), []

    def hold(self) -> list[Tensor]:
        return []

    def refuse(self) -> None:
        super().look()
        super().refuse()

    def noted(self, tensor: Tensor) -> Tensor:
        self.known.add(id(tensor))
        return tensor  # whose derivative the result shows; below transforms, which it would not show, the mode refuses it

    def first(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor] = ()) -> Any:
        return super().first(function, given, values) if self.is_below else function(*given)  # at whose result `check` looks

    def _is_found(self) -> bool:
        if not self.has_looked:  # a call below transforms comes here for each sample
            super().look()
            self.has_looked = True
        if not (has_compiled_code(self.functions, self.places) and super()._is_found()):
            return False
        if self.known:
            raise RuntimeError(self.message())
        return True

    def check(self, results: Sequence[Tensor]) -> None:
        if self.checks:
            super().check(results)


_CONSTANTS = frozenset({int, float, bool, str, type(None)})


class _Mode(TorchFunctionMode):
    """Replaces tensors in a call, and notes those that it uses and that were neither given nor made in it."""

    def __init__(self, closure: Closure, given: Sequence[Tensor], others: Sequence[tuple[Tensor, Tensor]], noting: bool) -> None:
        super().__init__()
        self.closure, self.level, self.noting, self.looks = closure, current_level(), noting, True
        self.start = sequence_number()
        self.function: Any = None  # the call in a derivative
        self.others = {id(t): (t, value) for t, value in others}
        self.used = {id(value) for t, value in others if t is value}
        self.own: dict[int, Any] = {}
        self.add(given)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.looks or _is_query(function):  # also of tensors below transforms
            return function(*args, **(kwargs or {}))
        own = self.own
        # Most arguments are the call's own tensors, or constants. A solver comes here in each operation.
        given = [v if v.__class__ in _CONSTANTS or ((ref := own.get(id(v))) and ref() is v) else self.replaced(v) for v in args]
        result = function(*given, **self.replaced(kwargs)) if kwargs else function(*given)
        self.add(result)
        return result

    def add(self, value: Any) -> None:
        """Add tensors that were given or made in the call."""
        if isinstance(value, Tensor):
            self.own[id(value)] = weakref.ref(value)
        elif isinstance(value, (tuple, list)):
            for v in value:
                self.add(v)

    def replaced(self, value: Any) -> Any:
        """A value with other tensors in the places of those that are replaced."""
        if isinstance(value, Tensor):
            ref = self.own.get(id(value))
            return value if ref is not None and ref() is value else self._foreign(value)
        if value.__class__ in (tuple, list):
            return value.__class__([self.replaced(v) for v in value])
        if value.__class__ is dict:
            return {k: self.replaced(v) for k, v in value.items()}
        return value

    def _foreign(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self.others:
            value = self.others[id(tensor)][1]
            self.used.add(id(value))
            return value
        # As the modes outside have it, which may replace it by one of the present level.
        value = seen([tensor], outside=self)[0]
        if self.noting:
            matters = value is not tensor or self._matters(tensor)
            return self.closure.noted(tensor) if matters else self.closure.constant(tensor, True)
        if value is not tensor:
            return tensor
        # Code that is no function of torch, such as a Function, makes tensors too, but no leaves that require a gradient.
        if tensor.requires_grad and tensor.is_leaf and not level_of(tensor):
            raise RuntimeError(self.closure.unknown(f"a tensor of shape {tuple(tensor.shape)}"))
        return self.closure.constant(tensor, False, self.function)

    def _matters(self, tensor: Tensor) -> bool:
        """Whether a tensor needs a derivative, or belongs to a transform that was active at the start."""
        if is_computed_since(self.start, tensor):  # by code that is no function of torch, such as a transform or a Function
            return False
        level = level_of(tensor)
        if level > self.level:  # of a transform inside the function, if one is active
            if not transforms_active():
                raise RuntimeError(self.closure.message())
            return False
        return level > 0 or any(are_differentiated([tensor]))  # also under no_grad, as kernels are called


def _is_query(function: Any) -> bool:
    """Whether a function of torch tells about a tensor, such as its dtype, and returns none."""
    if function.__name__ == "__get__":
        return function.__self__.__name__ not in ("T", "mT", "H", "mH", "real", "imag", "grad", "data")
    return function.__name__ in ("is_inference", "_is_zerotensor")


def frozen(function: Any) -> Any:
    """A function with the variables that it closes over as they are now: a lambda in a loop sees the loop's last one later."""
    if isinstance(function, types.MethodType):
        return types.MethodType(frozen(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType) or not function.__closure__:
        return function
    cells = []
    for cell in function.__closure__:
        try:
            cells.append(types.CellType(cell.cell_contents))
        except ValueError:  # a name that has no value yet
            cells.append(cell)
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    copy.__kwdefaults__ = function.__kwdefaults__
    vars(copy).update(vars(function))  # by which a compiled function is known
    return copy


def follow_in_graphs(name: str, argument: str, function: Any) -> None:
    """In compiled code: guard the numbers that a function reads, and refuse the tensors that it holds."""
    if is_compiling():
        guard(function)
        refuse_in_graphs(name, argument, function)


def refuse_in_graphs(name: str, argument: str, function: Any) -> None:
    """Refuse a function that holds tensors, if code is traced, in whose graph they would be constants."""
    if not in_graph():
        return
    modules, tensors = held(function)
    if any(has_data(innermost(t)) for t in [*tensors, *[t for m in modules for t in (*m.parameters(), *m.buffers())]]):
        raise NotImplementedError(
            f"{name}: `{argument}` uses a tensor that is not its argument, which compiled code cannot follow. Use numbers, make "
            f"the tensor inside `{argument}`, or call {name} outside of what is compiled."
        )
