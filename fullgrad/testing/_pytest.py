"""`operator`: an operator as a pytest test, with one test for each check."""

import functools
import inspect
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad.testing._check_operator import choose, make_subject, not_checked, reasons_of, run_check
from fullgrad.testing._registry import CHECKS, GROUPS, UPSTREAM_ISSUES
from fullgrad.testing._report import FAILED, LEFT_OUT, PASSED, gap

# Seconds of the search for a smaller input that fails as well.
_SEARCH = 5.0
# The kind of an error, at the beginning of its message, unless it is an AssertionError.
_KIND = re.compile(r"(\w+): ")


def operator(
    *,
    inputs: Any,
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
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make pytest tests of an operator, one for each check of the kit.

    The tests are named after the checks and marked with their groups, as in ``-m fullgrad_second_order``. A check that does not
    apply to the operator, or that torch cannot do, is skipped with the reason. A check that fails shows what it proves, the
    public thread where torch's own ``autograd.Function`` is known to fail it, and the smallest input that was found to fail it;
    checks that fail by the same error after it have one line.
    Properties that were not checked for lack of an argument, such as a ``surrogate``, are listed at the end of the run.

    Args:
        inputs: The inputs; a function that returns them, which is called when a test runs; or a strategy of hypothesis that draws
            them, which then looks for the smallest.
        surrogate: As for :func:`check_operator`.
        cotangent_map: As for :func:`check_operator`.
        value: As for :func:`check_operator`.
        smooth_forwards: As for :func:`check_operator`.
        max_saved_bytes: As for :func:`check_operator`.
        draws: As for :func:`check_operator`.
        constant: As for :func:`check_operator`.
        checks: Names of checks or of groups; all by default.
        backend: The backend of ``torch.compile``.
        tolerances: As for :func:`check_operator`.
        left_out: As for :func:`check_operator`; the reasons are listed at the end of the run, too.

    Returns:
        A decorator of the operator, or of a method of a class of tests, whose result is the test.

    Raises:
        ValueError: ``checks`` or ``left_out`` has an unknown name, or a reason is empty.

    Example:
        >>> import torch, fullgrad
        >>> surrogate = lambda x: x + (x.round() - x).detach()
        >>> @fullgrad.testing.operator(inputs=lambda: [torch.randn(4, 3)], surrogate=surrogate, value=torch.round)
        ... def test_round(x):
        ...     return fullgrad.round(x)
        >>> test_round(check="func_hessian")
    """
    import pytest

    names = choose(("randomness",) if draws and checks is None else checks)
    reasons = reasons_of(left_out)
    group_of = {check: group for group, members in GROUPS.items() for check in members}
    settings = {
        "surrogate": surrogate,
        "cotangent_map": cotangent_map,
        "value": value,
        "smooth_forwards": smooth_forwards,
        "max_saved_bytes": max_saved_bytes,
        "draws": draws,
        "constant": constant,
        "backend": backend,
        "tolerances": tolerances,
    }

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        # The body of a class has `__qualname__` among its variables; pytest calls its functions with an instance.
        told: dict[str, str] = {}  # the check that showed an error, by its message
        in_class = "__qualname__" in sys._getframe(1).f_locals

        def run(instance: Any, check: str, given: Any, search: bool) -> None:
            __tracebackhide__ = True
            if check in reasons:
                pytest.skip(LEFT_OUT + reasons[check])
            call = functools.partial(function, instance) if in_class and not isinstance(function, staticmethod) else function
            result = run_check(check, make_subject(call, given, **settings))
            if result.status == FAILED and told.setdefault(result.message, check) != check:
                pytest.fail(f"as {told[result.message]}: {result.message}", pytrace=False)
            if result.status == FAILED:
                smallest = _smallest(check, call, given, settings, result.message) if search else tuple(given)
                pytest.fail(_failure_text(check, group_of[check], result.message, smallest), pytrace=False)
            if result.status != PASSED:
                pytest.skip(result.message)

        def with_inputs(check: str) -> None:
            __tracebackhide__ = True
            with_inputs_of(None, check)

        def with_inputs_of(self: Any, check: str) -> None:
            __tracebackhide__ = True
            given = inputs() if callable(inputs) else inputs
            run(self, check, (given,) if isinstance(given, Tensor) else given, search=True)

        def with_drawn(check: str, drawn: Any) -> None:
            __tracebackhide__ = True
            with_drawn_of(None, check, drawn)

        def with_drawn_of(self: Any, check: str, drawn: Any) -> None:
            __tracebackhide__ = True
            run(self, check, drawn, search=False)

        # pytest treats argument names as fixtures, in a class all but the first.
        draws_inputs = _is_strategy(inputs)
        functions = (with_drawn, with_drawn_of) if draws_inputs else (with_inputs, with_inputs_of)
        test: Any = functions[in_class]
        if draws_inputs:
            import hypothesis

            slow = hypothesis.HealthCheck.too_slow
            test = hypothesis.settings(deadline=None, max_examples=20, suppress_health_check=[slow])(
                hypothesis.given(drawn=inputs)(test)
            )
        # Not functools.wraps: pytest would treat the operator's arguments as fixtures.
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(function, attribute):
                setattr(test, attribute, getattr(function, attribute))
        unchecked = not_checked(
            make_subject(function, (torch.zeros(1),), **{**settings, "constant": ()}),
            [name for name in names if name not in reasons],
        )
        # The lines that the plugin prints at the end of a run.
        test.not_checked = [gap(what, argument) for argument, what in unchecked.items()]
        test.not_checked += [f"{LEFT_OUT}{name}: {reason}" for name, reason in (left_out or {}).items()]
        marks = [pytest.param(check, id=check, marks=getattr(pytest.mark, _mark_of(group_of[check]))) for check in names]
        return pytest.mark.parametrize("check", marks)(test)

    return decorate


def _mark_of(group: str) -> str:
    """The mark of a group, as the plugin registers it: with the package's name, since a run has marks of others, too."""
    return f"fullgrad_{group.replace(' ', '_')}"


def _is_strategy(inputs: Any) -> bool:
    return any(cls.__module__.startswith("hypothesis.") for cls in type(inputs).__mro__)


def _failure_text(check: str, group: str, message: str, smallest: tuple[Any, ...]) -> str:
    proves = " ".join((inspect.getdoc(CHECKS[check]) or "").split("\n\n")[0].split())
    lines = [message, f"{check}, of the group {group!r}: {proves}"]
    if check in UPSTREAM_ISSUES:
        lines.append(f"torch's own autograd.Function fails here: {UPSTREAM_ISSUES[check]}")
    shown = [f"torch.tensor({v.tolist()}, dtype={v.dtype})" if isinstance(v, Tensor) else repr(v) for v in smallest]
    return "\n".join([*lines, f"smallest input: ({', '.join(shown)}{',' * (len(shown) == 1)})"])


def _smallest(check: str, function: Any, given: Any, settings: Mapping[str, Any], message: str) -> tuple[Any, ...]:
    """The inputs reduced to fewer and rounder numbers with which the check still fails in the same way."""
    inputs, end = tuple(given), time.perf_counter() + _SEARCH
    kind = _KIND.match(message)
    searching = True
    while searching:
        searching = False
        for smaller in _smaller(inputs):
            if time.perf_counter() > end:
                return inputs
            result = run_check(check, make_subject(function, smaller, **settings))
            other = _KIND.match(result.message)
            if result.status == FAILED and (other and other[1]) == (kind and kind[1]):
                inputs, searching = smaller, True
                break
    return inputs


def _smaller(inputs: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Smaller inputs: half of the elements along a dimension, in all inputs of that size; then rounded numbers."""
    tensors = [v for v in inputs if isinstance(v, Tensor)]
    for d in range(-max(v.ndim for v in tensors), 0):
        for n in sorted({v.shape[d] for v in tensors if v.ndim >= -d and v.shape[d] > 1}):
            for start in (0, n - n // 2):
                yield tuple(v.narrow(d, start, n // 2) if _has(v, d, n) else v for v in inputs)
    for decimals in (0, 1):
        rounder = tuple(torch.round(v, decimals=decimals) if _is_floating(v) else v for v in inputs)
        if any(_is_floating(v) and not torch.equal(v, r) for v, r in zip(inputs, rounder, strict=True)):
            yield rounder


def _has(value: Any, d: int, n: int) -> bool:
    return isinstance(value, Tensor) and value.ndim >= -d and value.shape[d] == n


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
