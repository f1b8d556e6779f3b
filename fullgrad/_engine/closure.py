"""`Closure`: the tensors that a function uses and was not given, as inputs of an operator."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from fullgrad._dispatch import (
    are_differentiated,
    current_level,
    forward_mode_is_on,
    has_data,
    has_ended,
    in_legacy_vmap,
    innermost,
    is_compiling,
    is_tracing,
    level_of,
    outside_dynamo_later,
    transforms_active,
)
from fullgrad._engine.call import tensors_of
from fullgrad._engine.changes import Surroundings, changed, exchanged, in_graph, versions_of
from fullgrad._engine.copies import frozen, substituted
from fullgrad._engine.differentiated import is_differentiated, is_differentiated_by_others, leaves_of
from fullgrad._engine.held import (
    Place,
    calls_compiled_code,
    generators_in,
    has_compiled_code,
    held,
    held_in,
    is_globals,
    places,
    stand_ins_now,
)
from fullgrad._engine.modules import check_modes, modes_of, run_with_states, state_of
from fullgrad._engine.replay import Replay
from fullgrad._engine.watching import Watch, is_watched, seen, watching

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


class Captures:
    """The tensors that code uses and was not given: what a mode finds, which asks by `met`."""

    name: str
    functions: tuple[Any, ...]
    objects: Sequence[Any] = ()

    def message(self) -> str:
        """The message for a tensor that the functions capture and may not."""
        return captured(self.name, self.objects)

    def check(self, results: Sequence[Tensor]) -> None:
        """Refuse results of a call in which torch's Python functions did not see all tensors."""
        if any(level_of(y) > current_level() for y in results) or any(are_differentiated(results)):
            raise RuntimeError(self.message())

    def refuse(self) -> None:
        """Refuse what the functions hold, in code that a tracer records."""
        if is_differentiated(held(*self.functions, *self.objects)[1]):
            raise NotImplementedError(self.message())

    def met(self, tensor: Tensor, value: Tensor, mode: Watch) -> Tensor:
        """The tensor in whose place code uses one that a mode met in it, and that has a value in the modes outside."""
        matters = value is not tensor or mode.matters(tensor)
        return self.noted(tensor) if matters else self.constant(tensor)

    def noted(self, tensor: Tensor) -> Tensor:
        """The value that code gets of a tensor that needs a derivative or belongs to a transform."""
        return tensor  # whose derivative the result shows, or its level

    def constant(self, tensor: Tensor) -> Tensor:
        """The value that code gets of another tensor."""
        if is_compiling() and has_data(innermost(tensor)):
            raise NotImplementedError(
                f"{self.name} uses a tensor of shape {tuple(tensor.shape)} that is none of its arguments, which compiled code "
                "cannot follow. Pass it as an argument."
            )
        return tensor


class Refusing(Captures):
    """Functions that may use no other tensors that need a derivative: custom rules cannot know of them."""

    def __init__(self, name: str, *functions: Any, checks: bool = True) -> None:
        self.name, self.functions, self.checks = name, functions, checks

    def hold(self) -> list[Tensor]:
        """No tensors are held."""
        return []

    def first(
        self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor] = (), below: bool = False
    ) -> Any:
        """``function(*given)``. Below transforms, which its result would not show, a mode looks at each operation, or the walk at
        what code holds that the user has compiled: no mode looks into it, and in its graphs Dynamo would compile the mode.
        """
        if not below:
            return function(*given)
        if self._of_compiled_code is not None and not (is_watched() or is_compiling()):
            if _that_matter(self._of_compiled_code):
                raise RuntimeError(self.message())
            return function(*given)
        mode = Watch(self, [*given, *values])
        with mode, watching(mode):
            return function(*given)

    @functools.cached_property
    def _of_compiled_code(self) -> list[Tensor] | None:
        """The tensors that the functions hold, if the user has compiled one of these."""
        if not calls_compiled_code(*self.functions):
            return None
        modules, tensors = held(*self.functions)
        return [*tensors, *[t for m in modules for t in state_of(m).values()]]

    def check(self, results: Sequence[Tensor]) -> None:
        if self.checks:
            super().check(results)


class Closure(Captures):
    """The tensors that functions use and were not given, where they need a derivative or belong to a transform.

    A call goes through these steps:

    1. `hold`, before a call below all transforms: it returns the values of the tensors of transforms that the functions hold.
    2. `first`, the call: the tensors that it uses are noted, and have their values alone.
    3. `hold_unused`, if a derivative calls another function than the call: what that one holds is noted, too.
    4. `release`: it returns the noted tensors, which become inputs of the operator, and the `Captured` by which a derivative
       calls functions again.

    Parameters and buffers of modules that the functions hold are known by name too, as `torch.func.functional_call` replaces
    them for the first call only. Objects that the functions get as arguments count as held by them.
    """

    def __init__(self, name: str, *functions: Any, objects: Sequence[Any] = (), draws_again: bool = True) -> None:
        self.name, self.functions, self.objects = name, functions, objects
        found = places(*functions, *objects)
        modules, self.held = held_in(functions, found)
        parts = {id(part) for m in modules for part in m._modules.values()}
        modules = [m for m in modules if id(m) not in parts]  # of which the others are parts
        self.captured = Captured(self, found, modules, Replay(name, generators_in((*functions, *objects), found)), draws_again)
        self.tensors: list[Tensor] = []
        self.known: set[int] = set()  # their identities

    @property
    def replay(self) -> Replay:
        """The draws and the precision of the call."""
        return self.captured.replay

    def hold(self) -> list[Tensor]:
        """Note the tensors of transforms that the functions hold, before a call below all transforms, which gets their values."""
        found = [*self.held, *[t for _, state in self.captured.states for t in state.values()]]
        for t, value in zip(found, seen(found), strict=True):
            if level_of(t) or value is not t:
                self.noted(t)
        self.captured.settle(self.tensors)
        return list(seen(self.tensors))

    def hold_unused(self) -> None:
        """Note the tensors that the functions hold and no call has used, for a function that is called in a derivative alone."""
        own = self.captured
        own.used = len(self.tensors)
        # Of a module that the call had, a derivative uses what the call has used.
        of_call = {id(m) for m in held(self.functions[0], *self.objects)[0]} if own.states else set()
        for t in [t for m, state in own.states if id(m) in of_call for t in state.values() if isinstance(t, Tensor)]:
            self.constant(t)
        others = [t for m, state in own.states if id(m) not in of_call for t in state.values() if isinstance(t, Tensor)]
        others = list({id(t): t for t in (*others, *[t for t in self.held if id(t) not in own.of_modules])}.values())
        for t, needed in zip(others, are_differentiated(seen(others)) if others else [], strict=True):
            if needed:
                own.is_plain = own.is_plain and id(t) in self.known
                self.noted(t)
            else:
                self.constant(t)
                own.made[id(t)] = weakref.ref(t)  # also one that a transform has made

    def first(
        self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor] = (), below: bool = False
    ) -> Any:
        """``function(*given)`` without derivatives by other tensors, which are noted; with values for those of `hold`.

        A mode looks at each operation, unless the walk over what the functions hold finds them; or if the result shows that it
        missed one. Below transforms their tensors are numbers, and a result does not show that one was used.
        """
        own = self.captured
        if self._is_found(below):
            numbers = [*values, *[t.detach() for t in self.tensors[len(values) :]]]
            call = lambda: own.run(function, given, numbers)  # noqa: E731
            result = own.replay.first(call, lambda result: not _shows_others(result, given))
            if result is not NotImplemented:
                own.is_plain = True
                return result
        stand_ins = {} if values else self._stand_ins(function)
        function = substituted(function, stand_ins)
        mode = Watch(self, [*given, *values, *stand_ins.values()], own.others(values))
        result = own.replay.first(lambda: own.run_watched(mode, function, given, values))
        own.made = {key: ref for key, ref in mode.own.items() if ref() is not None}
        return result

    def release(self) -> tuple[list[Tensor], "Captured"]:
        """The noted tensors, which autograd alone keeps from now on, and what calls functions with others in their places."""
        self.captured.refs = []
        self.captured.settle(self.tensors)
        tensors, own, self.tensors, self.held, self.known = self.tensors, self.captured, [], [], set()
        if own.is_plain:
            own.surroundings = Surroundings(self.name, *map(frozen, self.functions), *self.objects, but=tensors)
        if tensors and is_compiling() and any(has_data(innermost(t)) for t in tensors):  # to the compiler it is a constant
            raise NotImplementedError(self.message())
        return list(seen(tensors)), own

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context for a call that must not change the tensors of modules in place."""
        states = self.captured.states
        tensors = [(f"{type(m).__name__}.{name}", t) for m, s in states for name, t in s.items() if isinstance(t, Tensor)]
        before = versions_of([t for _, t in tensors])
        yield
        after = versions_of([t for _, t in tensors])
        changed = [name for (name, _), a, b in zip(tensors, before, after, strict=False) if a != b]
        if changed:
            raise RuntimeError(
                f"{self.name} changes {', '.join(changed)} in place, which its derivative would do again. Call .eval(), or leave "
                "the module that does it out."
            )

    def noted(self, tensor: Tensor) -> Tensor:
        """Add a tensor that a function uses, and return its value."""
        if id(tensor) not in self.known:
            self.known.add(id(tensor))
            self.tensors.append(tensor)
        return tensor.detach()

    def constant(self, tensor: Tensor) -> Tensor:
        """A tensor that a function uses and that has no derivative, which must be the same in each call."""
        super().constant(tensor)
        if not (level_of(tensor) or tensor.is_inference() or in_graph()):
            ref, _ = self.captured.constants.get(id(tensor), (None, 0))
            is_known = ref is not None and ref() is tensor
            self.captured.constants[id(tensor)] = ref if is_known else weakref.ref(tensor), tensor._version  # pyright: ignore
        return tensor

    def _stand_ins(self, function: Any) -> dict[int, Tensor]:
        """The values of tensors that matter and that variables of a function have, by identity: they are noted here, since code
        that is no function of torch, such as another Function, may use them.
        """
        held = self.held if type(self) is Closure else []
        found = _that_matter([t for t in held if id(t) not in self.captured.of_modules])
        stand_ins = {id(t): t.detach() for t in found}
        return {id(t): self.noted(t) for t in found if substituted(function, {id(t): stand_ins[id(t)]}) is not function}

    def _is_found(self, below: bool) -> bool:
        """Whether the walk alone says which tensors matter: if none does, or around code that the user has compiled, into which
        no mode looks, and in whose graphs Dynamo would compile the mode. They are noted then, used or not.
        """
        if is_watched() or is_compiling():  # a graph would have a constant as it is now
            return False
        if below and not self.captured.has_compiled_code:
            return False
        # The states of modules have the positions of tensors that are noted.
        found = [*self.held, *[t for _, state in self.captured.states for t in state.values() if isinstance(t, Tensor)]]
        matter = _that_matter(found)
        if not (matter and self.captured.has_compiled_code):
            return not matter
        held = {id(t) for t in self.held}
        for t in matter:
            if id(t) in held and id(t) not in self.known:
                self.noted(t)
        self.captured.settle(self.tensors)
        return True


class Captured:
    """The captures of a call that is over: the noted tensors by weak references, the modules with the states and modes that they
    had, the versions of constants, the draws and the precision. A derivative of any order calls functions `again`, with other
    tensors in the places of those that were noted, and refuses what has changed.
    """

    def __init__(
        self, closure: Closure, found: Sequence[Place], modules: Sequence[nn.Module], replay: Replay, draws_again: bool
    ) -> None:
        self.name, self.functions, self.objects, self.places = closure.name, closure.functions, closure.objects, found
        # The tensors of modules; in place of one that is noted, its position.
        self.states: list[tuple[nn.Module, dict[str, Any]]] = [(m, dict(state_of(m))) for m in modules]
        self.of_modules = {id(t) for _, state in self.states for t in state.values()}
        self.modes = [pair for m in modules for pair in modes_of(m)]
        # Whether a derivative calls what the call has called, which draws the same numbers, or other code, which may draw none.
        self.replay, self.draws_again = replay, draws_again
        self.constants: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # other tensors that were used, with their versions
        self.made: dict[int, weakref.ref[Tensor]] = {}  # tensors that the call made and something keeps, such as a cache
        self.used: int | None = None  # how many of the noted tensors the call has used
        # Whether nothing needs to look at the operations of a call.
        self.is_plain = False
        self.surroundings: Surroundings | None = None
        self.is_traced = in_graph()  # in which constants are not noted
        self.refs: list[tuple[weakref.ref[Tensor], bool]] = []  # the noted tensors, and whether each needs a derivative
        # In a graph, inputs stand in the places of what functions hold, only as long as the call is traced.
        self.stand_ins = stand_ins_now()
        self.originals: list[weakref.ref[Tensor] | None] = []

    @functools.cached_property
    def has_compiled_code(self) -> bool:
        """Whether the user has compiled one of the functions, or one that they hold."""
        return has_compiled_code(self.functions, self.places)

    def settle(self, tensors: Sequence[Tensor]) -> None:
        """Keep the positions of the noted tensors, by which values stand in their places."""
        new = tensors[len(self.refs) :]  # of the others one cannot ask below transforms
        needed = are_differentiated(seen(new)) if new else []
        positions = {id(t): i for i, t in enumerate(tensors)}
        self.states = [(m, {name: positions.get(id(t), t) for name, t in state.items()}) for m, state in self.states]
        self.refs += [(weakref.ref(t), need) for t, need in zip(new, needed, strict=True)]
        if self.stand_ins is not None:
            found = [self.stand_ins.original(t) for t in tensors]
            self.originals = [t if t is None else weakref.ref(t) for t in found]

    def again(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        """``function(*given)`` with values in the places of the tensors that were noted."""
        if is_dynamo_compiling():  # compiled autograd, which traces a backward and no modes
            return _again_outside[0](self, function, given, values) if values else function(*given)
        if self.stand_ins is not None and self.stand_ins is not stand_ins_now() and is_tracing():
            with self.stand_ins.standing():
                return self.again(function, given, values)
        # Compiled code has no derivative of its derivative, and in forward mode none; there the code that was compiled is called.
        is_compiled = self.has_compiled_code and not _are_leaves([*given, *values])
        with self.replay.again() if self.draws_again else self.replay.none():
            return (_uncompiled[0] if is_compiled else Captured._again)(self, function, given, values)

    def _again(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        check_modes(self.modes)
        if self.is_plain:
            if self.surroundings is not None:
                self.surroundings.check()
            if self.used is None or _are_leaves([*given, *values]):
                result = self.run(function, given, values)
                if self.used is not None and leaves_of(tensors_of(result)) - {id(t) for t in (*given, *values)}:
                    raise RuntimeError(self._unknown("a tensor"))
                return result
        mode = Watch(self, [*given, *values], self.others(values), function)
        result = self.run_watched(mode, function, given, values)
        in_modules = {t for _, state in self.states for t in state.values() if isinstance(t, int)}
        # A tensor without a derivative may be one that code made which is no function of torch.
        used = enumerate(self.refs[: self.used])
        lost = [i for i, (_, need) in used if need and i not in in_modules and id(values[i]) not in mode.used]
        if lost:
            raise RuntimeError(
                f"{self.name} uses a tensor of shape {tuple(values[lost[0]].shape)} that is none of its arguments, and that its "
                "derivative does not find again. Pass the tensor, or the module that has it, as an argument."
            )
        return result

    def met(self, tensor: Tensor, value: Tensor, mode: Watch) -> Tensor:
        """The tensor itself, which a mode met in a derivative, if the call has used it as it is."""
        if value is not tensor:
            return tensor
        # Code that is no function of torch, such as a Function, makes tensors too, but no leaves that require a gradient.
        if tensor.requires_grad and tensor.is_leaf and not level_of(tensor):
            raise RuntimeError(self._unknown(f"a tensor of shape {tuple(tensor.shape)}"))
        if self.is_traced or in_graph() or (tensor.is_inference() and not level_of(tensor)):
            return tensor
        ref, version = (None, 0) if level_of(tensor) else self.constants.get(id(tensor), (None, 0))
        if ref is None or ref() is not tensor:
            if self._is_new(tensor, mode):
                raise exchanged(self.name, tensor)
        elif tensor._version != version:
            raise changed(self.name, tensor)
        return tensor

    def _is_new(self, tensor: Tensor, mode: Watch) -> bool:
        """Whether the function of a mode holds a tensor that its call neither used nor made."""
        ref = self.made.get(id(tensor))
        if ref is not None and ref() is tensor:
            return False
        if mode.held is None:
            modules, tensors = held(mode.function, *self.objects)
            mode.held = {id(t): t for t in (*tensors, *[t for m in modules for t in state_of(m).values()])}
        return mode.held.get(id(tensor)) is tensor

    def _unknown(self, found: str) -> str:
        """The message for a tensor that appears in a derivative."""
        return (
            f"{self.name} captures {found} in its derivative that requires a gradient and was not used in the call. Pass the "
            "tensor, or its module, as an argument."
        )

    def others(self, values: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The noted tensors that are alive, each with the value in its place."""
        pairs = [(ref(), value) for (ref, _), value in zip(self.refs, values, strict=bool(values))]
        pairs += [(ref() if ref is not None else None, value) for ref, value in zip(self.originals, values, strict=False)]
        return [(t, value) for t, value in pairs if t is not None]

    def run(self, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        """``function(*given)`` while modules have the tensors of the call, and values in the places of those that were noted."""
        others = {id(t): value for t, value in self.others(values) if id(t) not in self.of_modules} if values else {}
        function = substituted(function, others) if others else function
        named = [(m, {k: values[t] if isinstance(t, int) else t for k, t in state.items()}) for m, state in self.states]
        changed = [(m, {k: t for k, t in state.items() if now.get(k) is not t}) for m, state in named for now in [state_of(m)]]
        with self._compiled_globals(others):
            return run_with_states([(m, state) for m, state in changed if state], lambda: function(*given))

    def run_watched(self, mode: Watch, function: Callable[..., Any], given: Sequence[Tensor], values: Sequence[Tensor]) -> Any:
        """`run` under a mode."""

        def under() -> Any:
            with mode, watching(mode):
                return function(*given)

        if not values:
            return under()
        others = {i: value for i, (_, value) in mode.others.items() if i not in self.of_modules}
        mode.used |= {id(v) for i, v in others.items() if substituted(function, {i: v}) is not function}
        return self.run(under, (), values)

    @contextlib.contextmanager
    def _compiled_globals(self, others: Mapping[int, Tensor]) -> Iterator[None]:
        """A context in which globals have other tensors, by identity, if code is compiled: it has no copy with other globals."""
        if not others or not self.has_compiled_code:
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


def _as_python(captured: Captured, *args: Any) -> Any:
    with torch.compiler.set_stance("force_eager"):
        return captured._again(*args)


_uncompiled = outside_dynamo_later(_as_python)  # where torch allows another stance
_again_outside = outside_dynamo_later(lambda captured, *args: captured.again(*args))


def _that_matter(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that belong to a transform, of which nothing else can be asked below it, or need a derivative."""
    tensors = list({id(t): t for t in tensors if not has_ended(t)}.values())
    levels = [level_of(t) for t in tensors]
    plain = [t for t, level in zip(tensors, levels, strict=True) if not level]
    needed = iter(are_differentiated(plain) if plain else [])
    return [t for t, level in zip(tensors, levels, strict=True) if level or next(needed)]


def _shows_others(result: Any, given: Sequence[Tensor]) -> bool:
    """Whether the result of a call shows that it used tensors which were not given, and which have a derivative or a level."""
    tensors = tensors_of(result)
    if any(level_of(y) > max([current_level(), *map(level_of, given)]) for y in tensors):
        return True
    return is_differentiated_by_others(tensors, given)


def _are_leaves(tensors: Sequence[Tensor]) -> bool:
    """Whether a graph of some tensors, which is recorded now, begins at them."""
    hidden = transforms_active() or forward_mode_is_on() or is_tracing() or in_legacy_vmap()
    return not hidden and all(t.is_leaf for t in tensors)
