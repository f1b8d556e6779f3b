"""`check_operator`: every check on any callable."""

import contextlib
import difflib
import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from fullgrad._dispatch import pytree
from fullgrad._engine.call import Call
from fullgrad.testing._errors import details, is_of_shapes, summary
from fullgrad.testing._registry import CHECKS, GROUPS, WITH_TANGENTS
from fullgrad.testing._report import FAILED, LEFT_OUT, NOT_APPLICABLE, PASSED, OperatorError, Report, Result
from fullgrad.testing._subject import NotApplicable, Subject, by_cotangent_map, tolerances
from fullgrad.testing._summed import summed_gradient

_RANDOM = ("randomness",)


def check_operator(
    operator: Callable[..., Any],
    *inputs: Any,
    surrogate: Callable[..., Any] | None = None,
    cotangent_map: Callable[..., Any] | None = None,
    value: Callable[..., Any] | None = None,
    smooth_forwards: Mapping[Any, Callable[..., Any]] | None = None,
    max_saved_bytes: int | None = None,
    draws: Callable[..., Tensor] | bool = False,
    constant: int | str | Sequence[int | str] = (),
    checks: Iterable[str] | None = None,
    backend: str = "aot_eager",
    tolerances: tuple[float, float] | None = None,
    left_out: Mapping[str, str] | None = None,
    raise_exception: bool = True,
) -> Report:
    """Check that the derivative of an operator is right, and the same, under every transform of torch.

    The operator may be any callable: a function, ``MyFunction.apply`` of torch's base class or ours, a module. Its derivative is
    compared with that of an oracle, plain torch code, under the same transform. Without an oracle, the transforms are compared
    with each other, and eager reverse mode is the reference; an error common to all of them is then not found, and the report
    says ``not checked``. For ``fullgrad.adopt(SomeFunction)`` the reference and the value are those of the class itself, and for
    ``fullgrad.with_reference`` the surrogate is its reference, which checks kernel and backward.

    Args:
        operator: Called with ``inputs``; returns a tensor, or a tuple or other structure of tensors.
        inputs: Floating tensors are differentiated, in float64; everything else is constant. Choose points where the operator
            is differentiable, and tensors of at least one dimension. Structures of tensors count as their tensors, and modules,
            which become float64, as their parameters and buffers. Numbers of Python among them are changed between calls of
            compiled code; those in a closure are not. Samples of a batch have the integers and bools of a tensor in another
            order, so that indices stay in range: give it some that differ.
        surrogate: Plain torch code, called like the operator, whose true derivative at every order is the declared one, such as
            ``lambda x: x + (x.round() - x).detach()`` for a straight-through rounding. Its value must be the operator's
            up to rounding.
        cotangent_map: For an operator that acts on the gradient: called with the cotangent and the inputs, it returns the
            gradient of the first input. The value is then that of ``value``, or the input itself, and the ``jvp`` the identity.
        value: Plain torch code whose value the operator has to the last bit.
        smooth_forwards: For ``gradcheck`` of an operator whose value does not have its derivative: each class involved, with a
            smooth function to run in place of its ``forward``, or each function that ``custom_jvp`` and the like made, with one
            to run in place of that which it was made of. ``{}`` where the derivative is the true one.
        max_saved_bytes: Bytes per element of output that may be saved beyond inputs and output; None leaves that unchecked.
        draws: For an operator that draws random numbers: called with the inputs and ``generator``, it draws the noise of one
            call, which the operator takes as ``noise``; True for an operator that takes none. The checks are then those of
            randomness; for all others pass an operator to which noise is given.
        constant: Positions of inputs, or their names in the operator's signature, whose floating tensors are constant, too, such
            as the grid of a table. Samples of a batch have them multiplied by powers of 1/2, which keeps their order.
        checks: Names of checks or of groups; all by default.
        backend: The backend of ``torch.compile``.
        tolerances: ``(rtol, atol)`` of comparisons, for kernels that are less exact than float64 is.
        left_out: Checks or groups that are not run, each with the reason, which the report has: such as
            ``{"gradients_in_every_dtype": "the kernel computes in float32 alone"}``.
        raise_exception: Whether to raise when a check fails, rather than to return the report only.

    Returns:
        A mapping from the name of each check to its result, with a readable table as its text.

    Raises:
        OperatorError: A check failed, and ``raise_exception`` is true. It lists each with what was expected, what was found and
            how far they are apart; its ``report`` has everything.
        ValueError: ``checks`` or ``left_out`` has an unknown name, ``constant`` names no input, a reason is empty, both oracles
            are given, or no input is a floating tensor that is not constant.

    Example:
        >>> import torch, fullgrad
        >>> from fullgrad.testing import check_operator
        >>> x = torch.randn(4, 3)
        >>> surrogate = lambda x: x + (x.round() - x).detach()
        >>> report = check_operator(fullgrad.round, x, surrogate=surrogate, value=torch.round, checks=["reverse", "forward"])
        >>> print(report)
        round: 12 passed, 0 failed, 0 not applicable
          reverse  6/6
          forward  6/6
        >>> report = check_operator(torch.round, x, surrogate=surrogate, checks=["func_grad"], raise_exception=False)
        >>> report["func_grad"].status
        'failed'
    """
    name = getattr(operator, "__qualname__", type(operator).__name__).removesuffix(".apply")
    subject = make_subject(
        operator,
        inputs,
        surrogate=surrogate,
        cotangent_map=cotangent_map,
        value=value,
        smooth_forwards=smooth_forwards,
        max_saved_bytes=max_saved_bytes,
        draws=draws,
        constant=constant,
        backend=backend,
        tolerances=tolerances,
    )
    chosen = choose(_RANDOM if draws and checks is None else checks)
    reasons = reasons_of(left_out)
    results = {c: Result(NOT_APPLICABLE, LEFT_OUT + reasons[c]) if c in reasons else run_check(c, subject) for c in chosen}
    report = Report(name, results, not_checked(subject, [check for check in chosen if check not in reasons]))
    if raise_exception and report.failures:
        raise OperatorError(report)
    return report


def make_subject(
    operator: Callable[..., Any],
    inputs: Iterable[Any],
    *,
    surrogate: Callable[..., Any] | None = None,
    cotangent_map: Callable[..., Any] | None = None,
    value: Callable[..., Any] | None = None,
    constant: int | str | Sequence[int | str] = (),
    backend: str = "aot_eager",
    **others: Any,
) -> Subject:
    """The subject made of the arguments of `check_operator`."""
    if surrogate is not None and cotangent_map is not None:
        raise ValueError("check_operator takes a `surrogate` or a `cotangent_map`, got both.")
    inputs = tuple(inputs)
    places = _places(operator, len(inputs), constant)
    adopted = getattr(operator, "adopted_class", None)
    if adopted is not None and value is None:
        value = adopted.apply
    compared = getattr(operator, "compared", None)
    if compared is not None and surrogate is None and cotangent_map is None:
        operator, surrogate = compared()
    inputs, functions, counts = _without_structures(inputs, [operator, surrogate, value])
    subject = Subject(
        operator=functions[0],
        inputs=tuple(v.detach().double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in inputs),
        surrogate=functions[1] if cotangent_map is None else by_cotangent_map(cotangent_map, value),
        value=functions[2],
        linear=cotangent_map is None,
        options={"backend": backend},
        constant=tuple(i for place in places for i in range(sum(counts[:place]), sum(counts[: place + 1]))),
        **others,
    )
    if not subject.diff_argnums:
        raise ValueError("check_operator needs a floating tensor among the inputs to differentiate with respect to, got none.")
    if isinstance(operator, torch.nn.Module):
        operator.double()
    return subject


def _places(operator: Any, count: int, constant: int | str | Sequence[int | str]) -> list[int]:
    """The positions of inputs that are given by positions or names."""
    given = [constant] if isinstance(constant, (int, str)) else list(constant)
    names: list[str] = []
    if any(isinstance(v, str) for v in given):
        with contextlib.suppress(TypeError, ValueError):  # a built-in function may have no signature
            of_call = operator.forward if isinstance(operator, torch.nn.Module) else operator
            names = [p.name for p in inspect.signature(of_call).parameters.values() if p.kind is not p.VAR_POSITIONAL][:count]
    for v in given:
        if v not in names if isinstance(v, str) else not -count <= v < count:
            among = f", or one of the names {', '.join(names)}" if names else ""
            raise ValueError(f"check_operator: `constant` must have positions of the {count} inputs{among}, got {v!r}.")
    return [names.index(v) if isinstance(v, str) else v % count for v in given]


def _without_structures(inputs: tuple[Any, ...], functions: list[Any]) -> tuple[Sequence[Any], list[Any], list[int]]:
    """Inputs and functions as they are, or, where a structure or module has tensors, tensors and functions of them alone; and how
    many there are for each input.
    """
    parts = [v for v in inputs if not isinstance(v, Tensor)]
    leaves = [leaf for part in parts for leaf in pytree.tree_leaves(part)]
    for module in [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]:
        module.double()
    if not any(isinstance(leaf, (Tensor, torch.nn.Module)) for leaf in leaves):
        return inputs, functions, [1] * len(inputs)
    call = Call(inputs)

    def flat(function: Any) -> Any:
        def of_tensors(*tensors: Tensor) -> Any:
            result = call.run(function, tensors)
            return result if isinstance(result, Tensor) else tuple(pytree.tree_leaves(result))

        return function and of_tensors

    return call.release(), [flat(function) for function in functions], [part.count for part in call.parts]


# The groups whose checks compare derivatives.
_DERIVATIVE_GROUPS = ("reverse", "forward", "second order", "third order", "gradcheck", "batching")


def not_checked(subject: Subject, checks: Iterable[str]) -> dict[str, str]:
    """The properties that the chosen checks leave unchecked, by the missing argument of `check_operator`."""
    chosen = {*checks}

    def any_of(*groups: str) -> bool:
        return any(chosen & {*GROUPS[group]} for group in groups)

    missing: dict[str, str] = {}
    if not any(bool(t.isfinite().any()) for t in subject.tensors if not t.is_meta):
        missing["inputs"] = "anything about numbers, as no input has a finite one"
    has_oracle = subject.surrogate is not None or hasattr(subject.operator, "adopted_class")
    has_numbers = subject.smooth_forwards is not None and "gradcheck" in chosen
    if any_of(*_DERIVATIVE_GROUPS) and not has_oracle and not has_numbers:
        missing["surrogate"] = "whether the derivative is the declared one, as the transforms were compared with each other alone"
    if any_of("value") and subject.value is None:
        missing["value"] = "the value, to the last bit"
    if any_of("batching"):
        missing |= _not_batched(subject)
    if any_of("gradcheck") and subject.smooth_forwards is None and subject.linear:
        missing["smooth_forwards"] = "the rules by numerical differences"
    if "saved_bytes" in chosen and subject.max_saved_bytes is None:
        missing["max_saved_bytes"] = "how much is saved for the backward"
    if subject.draws and not any_of(*(group for group in GROUPS if group not in _RANDOM)):
        missing["draws"] = "anything but randomness, for which the operator is given its noise and `draws` is left out"
    return missing


def _not_batched(subject: Subject) -> dict[str, str]:
    """The constant tensors that batches leave unchecked, with the reason."""
    if not subject.constant_argnums:
        return {}
    if subject.limit_of_constants is not None:
        return {"constant": f"batches of integers, bools and constants, which torch cannot make: {subject.limit_of_constants}"}
    first, *others = subject.other_constants
    places = [str(i) for i, *vs in zip(subject.constant_argnums, first, *others, strict=True) if all(v is vs[0] for v in vs)]
    if not places:
        return {}
    told = (
        f"a sample of its own of input {', '.join(places)}, as the operator takes no other order of the numbers that were given"
    )
    return {"constant": told}


def run_check(name: str, subject: Subject) -> Result:
    """The result of one check."""
    start = time.perf_counter()
    if name in WITH_TANGENTS and not subject.has_tangent:
        return Result(NOT_APPLICABLE, "there is no forward-mode derivative")
    token = tolerances.set(subject.tolerances)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CHECKS[name](subject)
    except NotApplicable as reason:
        return Result(NOT_APPLICABLE, str(reason), time.perf_counter() - start)
    except Exception as error:
        cause = _cause(name, error, subject)
        return Result(FAILED, summary(cause), time.perf_counter() - start, details(cause))
    finally:
        tolerances.reset(token)
    return Result(PASSED, seconds=time.perf_counter() - start)


# The checks in which no gradient takes part, if there is a surrogate.
_WITHOUT_GRADIENTS = {
    *(name for group in ("forward", "value") for name in GROUPS[group] if name != "adjoint"),
    *("forward_over_forward", "three_of_forward", "vmap_equals_loop", "vmap_out_dims_and_chunks", "nested_vmap"),
    *("compile_jvp", "compile_forward_over_forward", "compile_the_operator_itself", "export_value"),
}


def _cause(name: str, error: Exception, subject: Subject) -> Exception:
    """The error of a plain call, of its backward or its tangent, where it is the reason of another: one fault has one message."""
    without = GROUPS["value"] if subject.surrogate is None else _WITHOUT_GRADIENTS
    is_comparison = type(error) is AssertionError and error.__cause__ is None
    if (is_comparison or isinstance(error, GradcheckError)) and name not in without:
        with contextlib.suppress(Exception):
            summed = summed_gradient(subject)
            if summed is not None:
                return AssertionError(summed)
    if is_comparison:
        return error
    for plain in (_call, _backward, _tangent):
        try:
            plain(subject)
        except Exception as cause:
            if plain is _call or str(cause) in details(error) or (is_of_shapes(cause) and is_of_shapes(error)):
                return cause
    return error


def _call(subject: Subject) -> Tensor:
    return subject.op(*subject.leaves())


def _backward(subject: Subject) -> None:
    y = _call(subject)
    if y.requires_grad:
        y.sum().backward()


def _tangent(subject: Subject) -> None:
    if subject.has_tangent:
        torch.func.jvp(subject.op, subject.tensors, subject.tangents())


def reasons_of(left_out: Mapping[str, str] | None) -> dict[str, str]:
    """The reason of each check that is left out."""
    for name, reason in (left_out or {}).items():
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"check_operator: `left_out` must have a reason for each check, got {reason!r} for {name!r}.")
    return {check: reason for name, reason in (left_out or {}).items() for check in choose([name])}


def choose(checks: Iterable[str] | None) -> list[str]:
    """The checks of the given names, groups among them, in the order of the list."""
    if checks is None:
        return list(CHECKS)
    checks = (checks,) if isinstance(checks, str) else checks
    wanted = {name for c in checks for name in GROUPS.get(c, [c])}
    unknown = wanted - set(CHECKS)
    if unknown:
        close = [name for u in sorted(unknown) for name in difflib.get_close_matches(u, [*GROUPS, *CHECKS])]
        meant = f"did you mean {' or '.join(close)}? The" if close else "the"
        raise ValueError(f"unknown checks: {', '.join(sorted(unknown))}; {meant} groups are {', '.join(GROUPS)}.")
    return [name for name in CHECKS if name in wanted]
