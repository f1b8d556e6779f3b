"""`Custom`: a function with rules that a user gives, and a call of it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import is_differentiating
from fullgrad._engine.call import Call, Result
from fullgrad._engine.changes import Surroundings
from fullgrad._engine.closure import Refusing, captured
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.held import generators_in, places
from fullgrad._engine.linearity import kinds_of
from fullgrad._engine.node import refuse_inside
from fullgrad._engine.operator import Made, P, R
from fullgrad._engine.replay import Replay
from fullgrad._engine.values import METHODS, values_by, values_of
from fullgrad.functions._linearity import Trials

Numbers = int | Sequence[int]
Names = str | Sequence[str]


class Custom(Made[P, R]):
    """A function with rules."""

    rules: str
    attributes: tuple[str, ...]  # in which it has them
    main: str  # the one without which there is no rule
    not_linear: str  # the message for a rule that is not linear

    def __init__(
        self, f: Callable[..., Any], nondiff_argnums: Numbers, nondiff_argnames: Names, method: str = "map", like: Any = None
    ) -> None:
        refuse_inside(self.kind)
        super().__init__(self.kind, f)
        checks.choice(self.kind, "vmap_method", method, METHODS)
        checks.like(self.kind, like)
        self.method, self.like = method, like
        self.signature = _signature(self.label, f)
        self.constant = _positions(self, nondiff_argnums, nondiff_argnames)
        self.renew()

    def state(self) -> tuple[Any, ...]:
        rules = {name: getattr(self, name) for name in self.attributes}
        return (self.given, tuple(self.constant), (), self.method, self.like), rules

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        made_of, rules = state
        super().__setstate__(made_of)
        self.__dict__.update(rules)

    @property
    def given(self) -> Callable[..., Any]:
        """The function that the decorator got."""
        return self.function

    def renew(self) -> None:
        """Forget what was found of rules that are replaced."""
        self.trials = Trials()

    def called_below(self) -> list[Any]:
        return [] if self.method == "map" else [self.function]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.method == "map":
            self.check_rules()
        if self.signature is not None and (kwargs or len(args) != len(self.signature.parameters)):
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.label}: {error}; its signature is {self.signature}.") from None
            bound.apply_defaults()
            args = bound.args
        if self.method == "map" and not is_differentiating():
            return self.function(*args)
        call = CustomCall(self, args)
        if not is_differentiated(call.tensors):
            if self.method == "map":
                return self.values(call, lambda *tensors: call.run(self.function, tensors), call.tensors)
            return self.value(call, lambda function: function()).whole()
        self.check_rules()
        for i in call.constant:
            if is_differentiated(call.split(call.tensors)[i]):
                raise TypeError(
                    f"{self.label}: argument {i} needs a derivative, and is one of `nondiff_argnums`. Leave it out of them, "
                    "or pass x.detach()."
                )
        return self.differentiated(call)

    def check_rules(self) -> None:
        """Refuse a function without rules."""
        if getattr(self, self.main) is None:
            raise AttributeError(f"{self.label} has no rule; give it one by {self.rules}.")

    def check_rule(self, name: str, rule: Callable[..., Any], *arguments: str, is_told: bool = False) -> None:
        """Refuse a rule that cannot be called with the constant arguments and these, or with those of the function if there are
        none; ``is_told`` says whether it gets ``needs``, too.
        """
        parameters = {} if self.signature is None else self.signature.parameters
        if not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            return  # whose arguments have no names
        names = list(parameters)
        constant = [names[i] for i in sorted({i % len(names) for i in self.constant})]
        given = [*constant, *arguments] if arguments else names
        try:
            signature = inspect.signature(rule)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*given, **({"needs": None} if is_told else {}))
        except TypeError:
            first = f", {' and '.join(constant)} by `nondiff_argnums`" if constant and arguments else ""
            raise TypeError(
                f"{self.label}: `{name}` must take ({', '.join(given)}){first}; got the signature {signature}."
            ) from None

    def values(self, call: "CustomCall", function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """``function(*tensors)`` without a derivative."""
        return values_of(self.label, function, tensors, lambda: captured(self.label, call.objects()))

    def value(self, call: "CustomCall", run: Callable[[Callable[[], Result]], Result]) -> Result:
        """The function's result, without a derivative."""

        def value(*tensors: Tensor) -> Result:
            return run(lambda: Result(call.run(self.function, tensors), self.label))

        def like(*tensors: Tensor) -> Result:
            return Result(call.run(self.like, tensors) if self.like else tensors[0])

        return values_by(Refusing(self.label, self.function), self.method, value, like, call.tensors, call.symbols())

    def surroundings(self, call: "CustomCall") -> Surroundings:
        """The tensors, modules and variables around the function and its rules now, and those in the objects of a call."""
        return Surroundings(self.label, *self.parts(), *call.objects())

    def replay(self, call: "CustomCall") -> Replay:
        """A state for calling the function or its rules again."""
        functions = (*self.parts(), *call.objects())
        return Replay(self.label, generators_in(functions, places(*functions)))

    def differentiated(self, call: "CustomCall") -> Any:
        """The result of a call that is differentiated."""
        raise NotImplementedError


class CustomCall(Call):
    """A call of a function with rules. Its constant arguments come first in a rule, the others in one tuple."""

    def __init__(self, owner: Custom, args: Sequence[Any]) -> None:
        super().__init__(args)
        self.owner = owner
        self.constant = sorted({i % len(args) for i in owner.constant}) if owner.constant else []

    def run_rule(self, rule: Callable[..., Any], tensors: Sequence[Tensor], *more: Any) -> Any:
        """``rule(*constant, primals, *more)``."""

        def of_arguments(*args: Any) -> Any:
            primals, rest = args[: len(self.parts)], args[len(self.parts) :]
            return rule(*[primals[i] for i in self.constant], self.without_constant(primals), *rest)

        return self.run(of_arguments, tensors, *more)

    def without_constant(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The values of the arguments that are not constant."""
        return tuple([v for i, v in enumerate(values) if i not in self.constant])

    def constants(self) -> tuple[Any, ...]:
        """The constants on which a verdict about linearity may depend: numbers by value, and other objects by kind."""
        return kinds_of([leaf for part in self.parts for leaf in part.leaves or ()])


def _signature(label: str, f: Any) -> inspect.Signature | None:
    """The signature of a function, whose rules are called by position; None where Python knows none."""
    try:
        signature = inspect.signature(f)
    except ValueError:
        return None
    for p in signature.parameters.values():
        if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD):
            raise TypeError(f"{label} must take positional parameters only, as its rules do, found {p}.")
    return signature


def _positions(owner: Custom, numbers: Numbers, names: Names) -> list[int]:
    """The positions of the constant arguments."""
    found = [numbers] if isinstance(numbers, int) else list(numbers)
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in found):
        raise TypeError(f"{owner.kind}: `nondiff_argnums` must be integers, got {numbers!r}.")
    parameters = [] if owner.signature is None else list(owner.signature.parameters)
    for name in [names] if isinstance(names, str) else names:
        if name not in parameters:
            raise ValueError(
                f"{owner.kind}: `nondiff_argnames` has {name!r}, and the parameters of {owner.name} are {parameters}."
            )
        found.append(parameters.index(name))
    n = len(parameters)
    is_variadic = owner.signature is None or any(p.kind is p.VAR_POSITIONAL for p in owner.signature.parameters.values())
    if not is_variadic and any(not -n <= i < n for i in found):
        raise ValueError(f"{owner.kind}: `nondiff_argnums` must be positions of the {n} parameters of {owner.name}, got {found}.")
    return found
