"""`custom_jvp`, `custom_vjp` and `custom_gradient`: custom derivative rules."""

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import (
    is_differentiating,
    is_jagged,
    pytree,
)
from fullgrad._engine.call import Call, Result
from fullgrad._engine.closure import Refusing, captured
from fullgrad._engine.held import generators_in, places
from fullgrad._engine.linearity import wider
from fullgrad._engine.operator import Made, P, R
from fullgrad._engine.replay import Replay
from fullgrad._engine.rule import (
    Maybe,
    Rule,
    by_reference,
    check_like,
    declared,
    gradients_of,
    is_differentiated,
    is_floating,
    may_differ,
    scattered,
    transposed,
)
from fullgrad._engine.surroundings import CHANGED, Surroundings, versions_of
from fullgrad._engine.values import METHODS, values_by, values_of
from fullgrad.functions._recursive_rules import constants_of_transposes, transposing
from fullgrad.functions._trials import Trials, widened

Numbers = int | Sequence[int]
Names = str | Sequence[str]
_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Custom(Made[P, R]):
    """A function with rules."""

    rules: str
    attributes: tuple[str, ...]  # in which it has them

    def __init__(
        self, f: Callable[..., Any], nondiff_argnums: Numbers, nondiff_argnames: Names, method: str = "map", like: Any = None
    ) -> None:
        super().__init__(self.kind, f)
        checks.choice(self.kind, "vmap_method", method, METHODS)
        if like is not None and not callable(like):
            raise TypeError(f"{self.kind}: `like` must be callable or None, got a value of type {type(like).__name__}.")
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

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.method == "map":
            self.check_rules()
        if self.signature is not None and (kwargs or len(args) != len(self.signature.parameters)):
            bound = self.signature.bind(*args, **kwargs)
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
        if not self.has_rules():
            raise AttributeError(f"{self.label} has no rule; give it one by {self.rules}.")

    def values(self, call: "CustomCall", function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """``function(*tensors)`` without a derivative."""
        return values_of(self.label, function, tensors, lambda: captured(self.label, call.objects()))

    def value(self, call: "CustomCall", run: Callable[[Callable[[], Result]], Result]) -> Result:
        """The function's result, without a derivative."""

        def value(*tensors: Tensor) -> Result:
            return run(lambda: Result(call.run(self.function, tensors), self.label))

        def like(*tensors: Tensor) -> Result:
            return Result(call.run(self.like, tensors) if self.like else tensors[0])

        return values_by(Refusing(self.label, self.function), self.method, value, like, call.tensors)

    def surroundings(self, call: "CustomCall") -> Surroundings:
        """The tensors, modules and variables around the function and its rules now, and those in the objects of a call."""
        return Surroundings(self.label, *self.parts(), *call.objects())

    def replay(self, call: "CustomCall") -> Replay:
        """A state for calling the function or its rules again."""
        functions = (*self.parts(), *call.objects())
        return Replay(self.label, generators_in(functions, places(*functions)))

    def has_rules(self) -> bool:
        """Whether the rules have been given."""
        raise NotImplementedError

    def differentiated(self, call: "CustomCall") -> Any:
        """The result of a call that is differentiated."""
        raise NotImplementedError

    def not_linear(self) -> str:
        """The message for a rule that is not linear."""
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
        leaves = [leaf for part in self.parts for leaf in part.leaves or ()]
        return tuple([(type(c), c if isinstance(c, _BY_VALUE) else getattr(c, "__qualname__", "")) for c in leaves])


# --- Rules of tangents ----------------------------------------------------------------------------------------------------


class CustomJVP(Custom[P, R]):
    """The function that `custom_jvp` returns."""

    kind, rules, attributes = "custom_jvp", "defjvp or defjvps", ("rule",)
    rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Give the function its rule, ``rule(primals, tangents)``, which returns the pair of the result and its tangent.

        Arguments of ``nondiff_argnums`` come before ``primals``.
        """
        if not callable(rule):
            raise TypeError(f"{self.label}.defjvp: `rule` must be callable, got a value of type {type(rule).__name__}.")
        self.rule = rule
        self.renew()
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Give the function a rule for each argument, ``rule(tangent, result, *primals)``, or None where there is no derivative.

        The tangent of the result is the sum.
        """
        if self.constant:
            raise TypeError(f"{self.label}.defjvps cannot be used with `nondiff_argnums`; use defjvp.")
        self.rule = functools.partial(_sum_of_rules, self, rules)
        self.renew()

    def has_rules(self) -> bool:
        return self.rule is not None

    def differentiated(self, call: CustomCall) -> Any:
        outer = constants_of_transposes(self, call.tensors)
        if outer and self.method == "map":
            return call.run(self.function, call.release())
        if call.constants() in outer:
            raise NotImplementedError(
                f"{self.label} is called on a tangent by its own rule, so the rule's transpose is that of the function, which is "
                "not torch's code. Forward mode works, as by jacfwd; or declare the transpose: use linear_map for a linear "
                "function, or custom_vjp."
            )
        own = _JVPRule(self, call)
        own.result = self.value(call, own.replay.first)
        rule, values = Rule(own.pull, own.push).within(self.surroundings(call)), own.result.release()
        return own.result.tree(declared(rule, values, call.release()))

    def parts(self) -> list[Any]:
        return [self.function, self.rule]

    def not_linear(self) -> str:
        return (
            f"{self.label} has no reverse mode: its rule is not linear in the tangents, or cannot be differentiated. Forward "
            "mode works, as by jacfwd; or declare the gradient by custom_vjp."
        )


def _sum_of_rules(
    owner: CustomJVP, rules: Sequence[Callable[..., Any] | None], primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, Any]:
    """The rule of `defjvps`."""
    result = owner(*primals)
    if len(rules) != len(primals):
        raise TypeError(f"{owner.label}.defjvps got {len(rules)} rules for {len(primals)} arguments.")
    parts = [r(t, result, *primals) for r, t in zip(rules, tangents, strict=True) if r is not None]
    if not parts:
        return result, pytree.tree_map(lambda _: None, result)
    return result, functools.reduce(lambda a, b: pytree.tree_map(torch.add, a, b), parts)


class _JVPRule:
    """The rule of tangents of one call. Its transpose, by autograd, is the rule of gradients."""

    def __init__(self, owner: CustomJVP, call: CustomCall) -> None:
        self.owner, self.call, self.replay = owner, call, owner.replay(call)
        self.result: Any = None

    def push(self, inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> list[Tensor]:
        given = [torch.zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True)]
        beside = self.call.without_constant(self.call.beside(given))
        with self.replay.again():
            pair = self.call.run_rule(self.owner.rule, inputs, beside)  # pyright: ignore[reportArgumentType]
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"{self.owner.label}: the rule must return the pair (result, tangent), got a value of type {type(pair).__name__}"
                + (f" of {len(pair)}." if isinstance(pair, tuple) else ".")
            )
        self.replay.check(pair[0])
        return self._checked(pair[1], like)

    def pull(self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        where, n = tuple([i for i, needed in enumerate(needs) if needed]), len(inputs)
        if any(map(is_jagged, [*inputs, *cotangents])):
            raise NotImplementedError(
                f"{self.owner.label} has no reverse mode for jagged nested tensors, which torch cannot transpose. Call it on "
                "x.values() and put the result back by torch.nested.nested_tensor_from_jagged, or declare the gradient by "
                "custom_vjp."
            )
        outputs = [(g.shape, g.dtype, g.device) for g in cotangents]
        like = [(inputs[i].shape, inputs[i].dtype, inputs[i].device) for i in where]
        with transposing(self.owner, self.call.constants()) as note:

            def push_of(is_wide: bool) -> Callable[..., list[Tensor]]:
                results = widened(outputs) if is_wide else outputs

                def push(*all: Tensor) -> list[Tensor]:
                    note(all[n:])
                    return self.push(all[:n], scattered(n, where, all[n:]), results)

                return push

            if self.owner.trials.refute(where, self.call.constants(), push_of, inputs, like):
                raise NotImplementedError(self.owner.not_linear())
            return scattered(n, where, transposed(push_of(False), inputs, like)(*[g for g in cotangents if may_differ(g)]))

    def _checked(self, tangent: Any, like: Sequence[Any]) -> list[Tensor]:
        """The tangents of the differentiable results; zeros for None and numbers of 0."""
        label, found = f"{self.owner.label}: the tangent", []
        for t, (shape, dtype, device) in zip(self.result.flattened(tangent, label), like, strict=True):
            if not is_floating(dtype):
                continue
            if t is None or isinstance(t, (int, float)):
                t = torch.full(shape, 0.0 if t is None else t, dtype=dtype, device=device)
            found.append(check_like(label, "result", self.replay.cast(t, dtype), shape, dtype))
        return found


# --- Rules of gradients ---------------------------------------------------------------------------------------------------


class CustomVJP(Custom[P, R]):
    """The function that `custom_vjp` returns."""

    kind, rules, attributes = "custom_vjp", "defvjp", ("fwd", "bwd", "jvp")
    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    jvp: str | None = None
    rule_class: type["_VJPRule"]

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Give the function its rules.

        ``fwd(*args)`` returns the pair of the result and the residuals, any structure; ``bwd(residuals, cotangent)`` a tuple with
        the gradient of each argument, or None for 0. Arguments of ``nondiff_argnums`` come before the residuals and have none.
        """
        for name, rule in (("fwd", fwd), ("bwd", bwd)):
            if not callable(rule):
                raise TypeError(f"{self.label}.defvjp: `{name}` must be callable, got a value of type {type(rule).__name__}.")
        self.fwd, self.bwd = fwd, bwd
        self.renew()

    def has_rules(self) -> bool:
        return self.bwd is not None

    def differentiated(self, call: CustomCall) -> Any:
        own = self.rule_class(self, call)
        result, residuals = own.forward(call.tensors)
        rule = Rule(own.pull, own.push).within(self.surroundings(call))
        return result.tree(declared(rule, result.release(), [*call.release(), *residuals]))

    def parts(self) -> list[Any]:
        return [self.function, self.fwd, self.bwd]

    def not_linear(self) -> str:
        return (
            f"{self.label} has no forward mode: its rule is not linear in the cotangents, or cannot be differentiated. Reverse "
            'mode works, as by jacrev; or declare the tangent: jvp="identity" if it is that of the identity, or custom_jvp.'
        )


class _VJPRule:
    """The rule of gradients of one call. Its transpose, by autograd, is the rule of tangents.

    The first derivative is the rule with the residuals of the one forward. Where that may be differentiated again, it is itself
    an operator: a function of the inputs, whose derivative computes the residuals again from them.
    """

    def __init__(self, owner: CustomVJP, call: CustomCall) -> None:
        self.owner, self.call, self.replay = owner, call, owner.replay(call)
        self.replay_back = Replay(owner.label, self.replay.own)
        self.result: Any = None
        self.residuals: Any = None
        self.kinds = [(is_floating(t.dtype), t.shape, t.dtype) for t in call.tensors]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Result, Sequence[Tensor]]:
        """The result, and the tensors in the residuals."""
        run = lambda *given: self.replay.first(lambda: self._fwd(given))  # noqa: E731
        self.result, self.residuals = self.owner.values(self.call, run, tensors)
        return self.result, self.residuals.release()

    def pull(self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        n = len(self.kinds)
        x, residuals = inputs[:n], inputs[n:]
        if not is_differentiated([*x, *cotangents]):
            given = [*residuals, *cotangents]
            versions = versions_of(given)
            grads = self._bwd(self.residuals, residuals, cotangents, x, needs)
            if versions_of(given) != versions:
                raise RuntimeError(CHANGED.format(f"{self.owner.label}: `bwd`"))
            return [*grads, *[None] * len(residuals)]
        k = len(residuals)

        def value(*given: Tensor) -> Maybe:
            of_rule = self.residuals, given[:k], given[k + n :], given[k : k + n], needs
            return self.replay_back.first(lambda: self._bwd(*of_rule))

        grads = self.owner.values(self.call, value, [*residuals, *x, *cotangents])
        where, values = tuple([i for i, g in enumerate(grads) if g is not None]), [g for g in grads if g is not None]
        reference = by_reference(lambda *all: [g for g in self._again(all[:n], all[n:], needs) if g is not None])
        return scattered(n + k, where, declared(reference, values, [*x, *cotangents]))

    def push(self, inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        x, given = inputs[: len(self.kinds)], tangents[: len(self.kinds)]
        where, n = tuple([i for i, t in enumerate(given) if t is not None]), len(x)
        if self.owner.jvp == "identity":
            return self._identity(given, like)

        def back_of(is_wide: bool) -> Callable[..., list[Tensor]]:
            own = self.wide() if is_wide else self

            def back(*all: Tensor) -> list[Tensor]:
                cotangents = iter(all[n:])
                g = [next(cotangents) if is_floating(d) else torch.zeros(s, dtype=d, device=v) for s, d, v in like]
                grads = own._again(all[:n], g, [i in where for i in range(n)])
                return [torch.zeros_like(all[i]) if grads[i] is None else grads[i] for i in where]  # pyright: ignore

            return back

        if self.owner.trials.refute(where, self.call.constants(), back_of, x, [v for v in like if is_floating(v[1])]):
            raise NotImplementedError(self.owner.not_linear())
        return transposed(back_of(False), x, like)(*[t for t in given if t is not None])

    def wide(self) -> "_VJPRule":
        """The rule for inputs in float64."""
        own = copy.copy(self)
        own.kinds = [(floating, shape, wider(dtype)) for floating, shape, dtype in self.kinds]
        return own

    def _identity(self, tangents: Maybe, like: Sequence[Any]) -> list[Tensor]:
        own = [t for t in tangents if t is not None]
        if len(like) != 1 or len(own) != 1 or own[0].shape != like[0][0]:
            raise TypeError(f'{self.owner.label}: jvp="identity" takes one tensor with a tangent, and a result of its shape.')
        return [own[0].clone()]

    def _again(self, x: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        """The gradients as a function of the inputs."""
        with self.replay.again():
            result, residuals = self._fwd(x)
        self.replay.check([*result.tensors, *residuals.tensors])
        with self.replay_back.again():
            return self._bwd(residuals, residuals.tensors, cotangents, x, needs)

    def _fwd(self, x: Sequence[Tensor]) -> tuple[Result, Call]:
        """The result and the residuals. They are taken apart while modules have the tensors that are given."""

        def parts(*args: Any) -> tuple[Result, Call]:
            pair = self.owner.fwd(*args)  # pyright: ignore[reportOptionalCall]
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TypeError(
                    f"{self.owner.label}: `fwd` must return the pair (result, residuals), got a value of type "
                    + type(pair).__name__
                    + (f" of {len(pair)}." if isinstance(pair, tuple) else ".")
                )
            return Result(pair[0], self.owner.label), Call([pair[1]])

        return self.call.run(parts, x)

    def _bwd(
        self, residuals: Call, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], x: Sequence[Tensor], needs: Sequence[bool]
    ) -> Maybe:
        bwd = self._told(self.owner.bwd, needs)
        g, constant = self.result.tree(cotangents, None), self.call.constant

        def with_constants(*args: Any) -> Any:
            return residuals.run(lambda r: bwd(*[args[i] for i in constant], r, g), tensors)

        with self.replay.same_autocast():
            return self._gradients(self.call.run(with_constants, x) if constant else residuals.run(bwd, tensors, g))

    def _told(self, rule: Any, needs: Sequence[bool]) -> Callable[..., Any]:
        """The rule, which is told which gradients are needed if it has a parameter ``needs``."""
        if not _has_parameter(rule, "needs"):
            return rule
        told = self.call.without_constant(self.call.beside(needs[: len(self.kinds)]))
        return functools.partial(rule, needs=pytree.tree_map(lambda v: v is True, told, is_leaf=lambda v: v is None))

    def _gradients(self, grads: Any) -> list[Tensor | None]:
        """A gradient or None for each tensor of the arguments."""
        label, call = self.owner.label, self.call
        wanted = [i for i in range(len(call.parts)) if i not in call.constant]
        found = gradients_of(f"{label}: `bwd`", label, call, wanted, grads)
        for i, (g, (floating, shape, dtype)) in enumerate(zip(found, self.kinds, strict=True)):
            if g is not None and not floating:
                found[i] = None
            elif g is not None:
                found[i] = check_like(f"{label}: a gradient", "argument", self.replay.cast(g, dtype), shape, dtype)
        return found


class _PullRule(_VJPRule):
    """The rule of a function that returns its own pullback, which is called in each derivative."""

    def _fwd(self, x: Sequence[Tensor]) -> tuple[Result, Call]:
        return self.call.run(lambda *args: Result(self._pair(args)[0], self.owner.label), x), Call([])

    def _bwd(
        self, residuals: Call, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], x: Sequence[Tensor], needs: Sequence[bool]
    ) -> Maybe:
        g = self.result.tree(cotangents, None)

        def gradients(*args: Any) -> Any:
            with self.replay.again():
                pull = self._pair(args)[1]
            with self.replay.same_autocast():
                found = self._told(pull, needs)(g)
            return found if len(args) != 1 or isinstance(found, (tuple, list)) else (found,)

        return self._gradients(self.call.run(gradients, x))

    def _pair(self, args: Sequence[Any]) -> tuple[Any, Callable[[Any], Any]]:
        pair = self.owner.bwd(*args)  # pyright: ignore[reportOptionalCall]
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"{self.owner.label}: the function must return the pair (result, pullback), got {pair!r:.80}.")
        return pair


CustomVJP.rule_class = _VJPRule


class CustomGradient(CustomVJP[P, R]):
    """The function that `custom_gradient` returns."""

    kind, attributes, rule_class = "custom_gradient", (), _PullRule

    def __init__(self, f: Callable[..., Any], *options: Any) -> None:
        super().__init__(f, *options)
        self.bwd, self.function = f, functools.partial(_first_of, f)

    @property
    def given(self) -> Callable[..., Any]:
        return self.bwd  # pyright: ignore[reportReturnType]


def _first_of(f: Callable[..., Any], *args: Any) -> Any:
    return f(*args)[0]


# --- Checks ---------------------------------------------------------------------------------------------------------------


def _has_parameter(function: Any, name: str) -> bool:
    """Whether a function has a parameter that was not given a value."""
    if isinstance(function, functools.partial):
        return name not in function.keywords and _has_parameter(function.func, name)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


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


# --- The decorators -------------------------------------------------------------------------------------------------------


@overload
def custom_jvp(
    f: Callable[P, R],
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> CustomJVP[P, R]: ...
@overload
def custom_jvp(
    f: None = ...,
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> Callable[[Callable[P, R]], CustomJVP[P, R]]: ...
def custom_jvp(
    f: Any = None,
    nondiff_argnums: Numbers = (),
    nondiff_argnames: Names = (),
    *,
    vmap_method: str = "map",
    like: Callable[..., Any] | None = None,
) -> Any:
    r"""A function with a custom rule for tangents, as ``jax.custom_jvp``.

    .. math::
        y = f(x), \qquad D\, t = r(x, t)

    for the rule :math:`r`, given by ``defjvp``: ``rule(primals, tangents)`` returns the pair of the result and its tangent. It is
    plain torch code and may call the function; higher derivatives are those of its code, and the gradient is its transpose, by
    autograd. ``defjvps`` gives a rule for each argument, ``rule(tangent, result, *primals)``, or None for 0. The rule must be
    linear in the tangents, which is tried once for each kind of arguments where a gradient is computed; on a device the host
    waits for that.

    Arguments and results are any structure (tuples, lists, dicts); everything that is not a tensor is constant, and the tangent
    of a number is 0. A module counts as its parameters and buffers, and its tangent is a dict by name. Random numbers that the
    function draws are drawn again in each call by a rule. Saved: the inputs.

    Args:
        f: A function of positional parameters, which may have defaults and be named in a call. It leaves its arguments unchanged.
        nondiff_argnums: The positions of arguments without a derivative, of any type. They come first in a rule.
        nondiff_argnames: The same by name.
        vmap_method: ``"map"``: ``f`` is torch code, which `torch.func.vmap` batches and compiled code traces. Else it may be any
            code, which gets plain tensors, is one node of compiled code, and may lack a rule where nothing differentiates it:
            ``"sequential"``, called sample by sample; ``"broadcast"``, once, with a dimension more in front of each tensor.
        like: Where compiled code calls other code and the result is not one tensor like the first one: a function of the same
            arguments that returns empty tensors like the result.

    Returns:
        The function. It can be a method, and pickles by its name.

    Raises:
        TypeError: ``f`` is not callable or takes keyword-only parameters, or ``nondiff_argnums`` are not integers. When called:
            the rule returns something else than a pair or a tangent of another structure or dtype, or an argument of
            ``nondiff_argnums`` needs a derivative.
        ValueError: ``nondiff_argnums`` or ``nondiff_argnames`` name no parameter, or ``vmap_method`` is another string. When
            called: a tangent has a wrong shape.
        AttributeError: When called: there is no rule.
        RuntimeError: When called: ``f`` changes an argument in place, or uses a tensor that needs a derivative and is none of its
            arguments.
        NotImplementedError: When a gradient is computed: the rule is not linear in the tangents.

    Example:
        >>> import torch, fullgrad
        >>> @fullgrad.custom_jvp
        ... def log1pexp(x):
        ...     return torch.log(1 + torch.exp(x))
        >>> @log1pexp.defjvp
        ... def rule(primals, tangents):
        ...     (x,), (t,) = primals, tangents
        ...     return log1pexp(x), (1 - 1 / (1 + torch.exp(x))) * t
        >>> torch.func.grad(log1pexp)(torch.tensor(100.0))
        tensor(1.)
        >>> torch.func.vmap(torch.func.hessian(log1pexp))(torch.tensor([0.0, 1.0]))
        tensor([0.2500, 0.1966])

    Source: ``jax.custom_jvp``.
    """
    if f is None:
        options = {"nondiff_argnums": nondiff_argnums, "nondiff_argnames": nondiff_argnames}
        return functools.partial(custom_jvp, **options, vmap_method=vmap_method, like=like)
    return CustomJVP(f, nondiff_argnums, nondiff_argnames, vmap_method, like)


@overload
def custom_vjp(
    f: Callable[P, R],
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    jvp: str | None = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> CustomVJP[P, R]: ...
@overload
def custom_vjp(
    f: None = ...,
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    jvp: str | None = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> Callable[[Callable[P, R]], CustomVJP[P, R]]: ...
def custom_vjp(
    f: Any = None,
    nondiff_argnums: Numbers = (),
    nondiff_argnames: Names = (),
    jvp: str | None = None,
    *,
    vmap_method: str = "map",
    like: Callable[..., Any] | None = None,
) -> Any:
    r"""A function with a custom rule for gradients, as ``jax.custom_vjp``.

    .. math::
        y = f(x), \qquad D^T g = b(r(x), g)

    ``defvjp(fwd, bwd)`` gives the rule: ``fwd(*args)`` returns the pair of the result and the residuals :math:`r`, any structure;
    ``bwd(residuals, g)`` returns a tuple with the gradient of each argument, or None for 0. If it has a parameter ``needs``, it
    gets there whether each of them is needed, in a tuple of the same structure. A first derivative uses the residuals of the one
    forward. If it is differentiated again, the residuals are computed again from the inputs, so that no term is lost. The
    value's derivative is the declared one at every order.

    Forward mode is the transpose of ``bwd``, by autograd, which must be linear in g; that is tried once for each kind of
    arguments, and on a device the host waits for that. Where it is not, as for a clipped gradient, forward mode raises, unless
    ``jvp="identity"`` declares that of the identity. Arguments, results, modules and random numbers are as in :func:`custom_jvp`;
    the gradient of a module is a dict by name. Saved: the inputs and the residuals.

    Args:
        f: A function of positional parameters, which may have defaults and be named in a call. It leaves its arguments unchanged.
        nondiff_argnums: The positions of arguments without a derivative, of any type. They come first in ``bwd``.
        nondiff_argnames: The same by name.
        jvp: ``"identity"`` where the tangent of the result is that of the one argument that has a tangent; by default the
            transpose of ``bwd``.
        vmap_method: As in :func:`custom_jvp`, for ``f``. ``fwd`` and ``bwd`` are torch code; what they need of other code is a
            function with a ``vmap_method`` of its own.
        like: As in :func:`custom_jvp`.

    Returns:
        The function. It can be a method, and pickles by its name.

    Raises:
        TypeError: As in :func:`custom_jvp`. When called: ``fwd`` returns no pair; ``bwd`` returns another number of gradients, or
            one of another structure or dtype.
        ValueError: As in :func:`custom_jvp`, or ``jvp`` is another string. When called: a gradient has a wrong shape.
        AttributeError: When called: there is no rule.
        RuntimeError: When called: ``f`` or ``fwd`` changes an argument in place, or uses a tensor that needs a derivative and is
            none of its arguments.
        NotImplementedError: In forward mode: the rule is not linear in the cotangents.

    Example:
        >>> import torch, fullgrad
        >>> @fullgrad.custom_vjp
        ... def cube(x):
        ...     return x**3
        >>> cube.defvjp(lambda x: (cube(x), torch.exp(x)), lambda residual, g: (g * residual,))
        >>> x = torch.tensor([0.0, 1.0])
        >>> torch.func.vmap(torch.func.grad(cube))(x)
        tensor([1.0000, 2.7183])
        >>> torch.func.vmap(torch.func.hessian(cube))(x)
        tensor([1.0000, 2.7183])

    Source: ``jax.custom_vjp``.
    """
    if f is None:
        options = {"nondiff_argnums": nondiff_argnums, "nondiff_argnames": nondiff_argnames, "jvp": jvp}
        return functools.partial(custom_vjp, **options, vmap_method=vmap_method, like=like)
    if jvp not in (None, "identity"):
        raise ValueError(f'custom_vjp: `jvp` must be "identity" or None, got {jvp!r}.')
    made = CustomVJP(f, nondiff_argnums, nondiff_argnames, vmap_method, like)
    made.jvp = jvp
    return made


def custom_gradient(f: Callable[P, tuple[R, Any]]) -> CustomGradient[P, R]:
    r"""A function that returns its own pullback, as ``jax.custom_gradient``.

    .. math::
        y = f(x)_0, \qquad D^T g = f(x)_1(g)

    ``f(*args)`` returns the pair of the result and a function of its cotangent, which returns the gradient of each argument in a
    tuple; of one argument it may return it alone. If it has a parameter ``needs``, it gets there whether each is needed. Each
    derivative calls ``f`` again. All else is as in :func:`custom_vjp`. Saved: the inputs.

    Args:
        f: A function of positional parameters.

    Returns:
        The function, whose value is the first of the pair. It can be a method, and pickles by its name.

    Raises:
        TypeError: ``f`` is not callable or takes keyword-only parameters. When called: as in :func:`custom_vjp`, or ``f`` returns
            no such pair.
        ValueError: When called: a gradient has a wrong shape.
        RuntimeError: When called: as in :func:`custom_vjp`.
        NotImplementedError: In forward mode: the pullback is not linear.

    Example:
        >>> import torch, fullgrad
        >>> @fullgrad.custom_gradient
        ... def square(x):
        ...     return x**2, lambda g: (g * torch.sin(x),)
        >>> torch.func.grad(square)(torch.tensor(1.0))
        tensor(0.8415)

    Source: ``jax.custom_gradient``.
    """
    return CustomGradient(f, (), ())
