"""`custom_vjp`."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import pytree
from fullgrad._engine.call import Call, Result
from fullgrad._engine.changes import CHANGED, versions_of
from fullgrad._engine.checks import check_like, check_pair, check_result, gradients_of
from fullgrad._engine.differentiated import is_differentiated, is_floating
from fullgrad._engine.linearity import wider
from fullgrad._engine.operator import P, R
from fullgrad._engine.replay import Replay
from fullgrad._engine.rule import Maybe, Rule, declared
from fullgrad._engine.transpose import by_reference, scattered, transposed
from fullgrad.functions._custom import Custom, CustomCall, Names, Numbers


@overload
def custom_vjp(
    f: Callable[P, R],
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    jvp: str | None = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> "CustomVJP[P, R]": ...
@overload
def custom_vjp(
    f: None = ...,
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    jvp: str | None = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> "Callable[[Callable[P, R]], CustomVJP[P, R]]": ...
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
        TypeError: As in :func:`custom_jvp`, or ``fwd`` or ``bwd`` takes other arguments. When called: ``fwd`` returns no pair;
            ``bwd`` returns another number of gradients, or one of another structure or dtype.
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


class CustomVJP(Custom[P, R]):
    """The function that `custom_vjp` returns."""

    kind, rules, attributes, main = "custom_vjp", "defvjp", ("fwd", "bwd", "jvp"), "bwd"
    not_linear = (
        "{} has no forward mode: its rule is not linear in the cotangents, or cannot be differentiated. Reverse mode works, as "
        'by jacrev; or declare the tangent: jvp="identity" if it is that of the identity, or custom_jvp.'
    )
    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    jvp: str | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Give the function its rules.

        ``fwd(*args)`` returns the pair of the result and the residuals, any structure; ``bwd(residuals, cotangent)`` a tuple with
        the gradient of each argument, or None for 0. Arguments of ``nondiff_argnums`` come before the residuals and have none.
        """
        checks.callables(f"{self.label}.defvjp", fwd=fwd, bwd=bwd)
        self.check_rule("fwd", fwd)
        self.check_rule("bwd", bwd, "residuals", "cotangent", is_told=_has_parameter(bwd, "needs"))
        self.fwd, self.bwd = fwd, bwd
        self.renew()

    def rule_of(self, call: CustomCall) -> "VJPRule":
        """The rule of a call."""
        return VJPRule(self, call)

    def differentiated(self, call: CustomCall) -> Any:
        own = self.rule_of(call)
        result, residuals = own.forward(call.tensors)
        check_result(self.label, result)
        rule = Rule(own.pull, own.push).within(self.surroundings(call))
        return result.tree(declared(rule, result.release(), [*call.release(), *residuals]))

    def parts(self) -> list[Any]:
        return [self.function, self.fwd, self.bwd]


class VJPRule:
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
        run = lambda *given: self.replay.first(lambda: [*self._fwd(given)])  # noqa: E731
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
            raise NotImplementedError(self.owner.not_linear.format(self.owner.label))
        return transposed(back_of(False), x, like)(*[t for t in given if t is not None])

    def wide(self) -> "VJPRule":
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
            found = self.owner.fwd(*args)  # pyright: ignore[reportOptionalCall]
            result, residuals = check_pair(f"{self.owner.label}: `fwd`", "(result, residuals)", found)
            return Result(result, self.owner.label), Call([residuals])

        return self.call.run(parts, x)

    def _bwd(
        self, residuals: Call, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], x: Sequence[Tensor], needs: Sequence[bool]
    ) -> Maybe:
        bwd = self.told(self.owner.bwd, needs)
        g, constant = self.result.tree(cotangents, None), self.call.constant

        def with_constants(*args: Any) -> Any:
            return residuals.run(lambda r: bwd(*[args[i] for i in constant], r, g), tensors)

        with self.replay.same_autocast():
            return self._gradients(self.call.run(with_constants, x) if constant else residuals.run(bwd, tensors, g))

    def told(self, rule: Any, needs: Sequence[bool]) -> Callable[..., Any]:
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
                found[i] = check_like(
                    f"{label}: a gradient", "its argument", self.replay.cast(g, dtype), shape, dtype, or_none=True
                )
        return found


def _has_parameter(function: Any, name: str) -> bool:
    """Whether a function has a parameter that was not given a value."""
    if isinstance(function, functools.partial):
        return name not in function.keywords and _has_parameter(function.func, name)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
