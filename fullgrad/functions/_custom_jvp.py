"""`custom_jvp`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import is_jagged, pytree
from fullgrad._engine.checks import check_like, check_pair, check_result
from fullgrad._engine.differentiated import is_floating, may_differ
from fullgrad._engine.operator import P, R
from fullgrad._engine.rule import Maybe, Rule, declared
from fullgrad._engine.transpose import scattered, transposed
from fullgrad.functions._custom import Custom, CustomCall, Names, Numbers
from fullgrad.functions._linearity import widened
from fullgrad.functions._recursive_rules import constants_of_transposes, transposing


@overload
def custom_jvp(
    f: Callable[P, R],
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> "CustomJVP[P, R]": ...
@overload
def custom_jvp(
    f: None = ...,
    nondiff_argnums: Numbers = ...,
    nondiff_argnames: Names = ...,
    *,
    vmap_method: str = ...,
    like: Callable[..., Any] | None = ...,
) -> "Callable[[Callable[P, R]], CustomJVP[P, R]]": ...
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
    of a number is 0. A call that is differentiated returns at least one floating or complex tensor, and no array of floats, whose
    derivative would be lost. A module counts as its parameters and buffers, and its tangent is a dict by name. Random numbers
    that the function draws are drawn again in each call by a rule. Saved: the inputs.

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
            the rule returns something else than a pair or a tangent of another structure or dtype, an argument of
            ``nondiff_argnums`` needs a derivative, or ``f`` returns an array or no floating tensor where one is taken.
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


class CustomJVP(Custom[P, R]):
    """The function that `custom_jvp` returns."""

    kind, rules, attributes, main = "custom_jvp", "defjvp or defjvps", ("rule",), "rule"
    not_linear = (
        "{} has no reverse mode: its rule is not linear in the tangents, or cannot be differentiated. Forward mode works, as by "
        "jacfwd; or declare the gradient by custom_vjp."
    )
    rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Give the function its rule, ``rule(primals, tangents)``, which returns the pair of the result and its tangent.

        Arguments of ``nondiff_argnums`` come before ``primals``.
        """
        checks.callables(f"{self.label}.defjvp", rule=rule)
        self.check_rule("rule", rule, "primals", "tangents")
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
        check_result(self.label, own.result)
        rule, values = Rule(own.pull, own.push).within(self.surroundings(call)), own.result.release()
        return own.result.tree(declared(rule, values, call.release()))

    def parts(self) -> list[Any]:
        return [self.function, self.rule]


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
            found = self.call.run_rule(self.owner.rule, inputs, beside)  # pyright: ignore[reportArgumentType]
        result, tangent = check_pair(f"{self.owner.label}: the rule", "(result, tangent)", found)
        self.replay.check(result)
        return self._checked(tangent, like)

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
                raise NotImplementedError(self.owner.not_linear.format(self.owner.label))
            return scattered(n, where, transposed(push_of(False), inputs, like)(*[g for g in cotangents if may_differ(g)]))

    def _checked(self, tangent: Any, like: Sequence[Any]) -> list[Tensor]:
        """The tangents of the differentiable results; zeros for None and numbers of 0."""
        label, found = f"{self.owner.label}: the tangent", []
        for t, (shape, dtype, device) in zip(self.result.flattened(tangent, label), like, strict=True):
            if not is_floating(dtype):
                continue
            if t is None or isinstance(t, (int, float)):
                t = torch.full(shape, 0.0 if t is None else t, dtype=dtype, device=device)
            found.append(check_like(label, "its result", self.replay.cast(t, dtype), shape, dtype, or_none=True))
        return found
