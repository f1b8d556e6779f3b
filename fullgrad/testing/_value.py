"""Checks of clause 1: the value."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp

from fullgrad._core.recomputed import without_aux
from fullgrad._dispatch import FakeTensorMode
from fullgrad.testing._randomness import seeded
from fullgrad.testing._registry import check
from fullgrad.testing._subject import NotApplicable, Subject, close, equal, gradients_of

_LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "transposed": lambda t: t.mT.contiguous().mT if t.ndim >= 2 else t,
    "strided": lambda t: torch.stack((t, -t), -1)[..., 0],
    "expanded": lambda t: t[:1].expand(t.shape) if t.ndim and t.shape[0] else t,
    "empty": lambda t: t[:0] if t.ndim else t,
    "one element": lambda t: t.flatten()[:1],
    "0-dim": lambda t: t.flatten()[0] if t.numel() else t.sum(),
}


_DATA = "have data where the inputs have none"


def _plain(s: Subject):
    if s.value is None:
        raise NotApplicable("no plain torch function with the same value was given")
    return s.bind(s.value)


@check("value")
def value_is_exact(s: Subject) -> None:
    """The value is that of the plain torch function in every bit, with and without a graph."""
    plain = _plain(s)
    equal(s.op(*s.tensors), plain(*s.tensors))
    equal(s.op(*s.leaves()).detach(), plain(*s.tensors))


@check("value")
def value_with_a_graph(s: Subject) -> None:
    """The value is the same where it is differentiated, by reverse and by forward mode, as without a derivative."""
    plain = seeded(s.op, *s.tensors)
    close(seeded(s.op, *s.leaves()).detach(), plain)
    close(seeded(lambda *x: without_aux(vjp(s.op, *x))[0], *s.tensors), plain)
    if s.has_tangent:
        close(seeded(lambda *x: jvp(s.op, x, s.tangents())[0], *s.tensors), plain)


@check("value")
def value_of_special_numbers(s: Subject) -> None:
    """NaN, infinities, zeros of both signs, halves and extremes give the plain function's value in every bit, one at a time among
    the numbers of the first input, and all together.
    """
    plain = _plain(s)
    first, *rest = s.tensors
    limits = torch.finfo(first.dtype)
    numbers = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, limits.max, limits.min, limits.tiny, math.inf, -math.inf, math.nan]
    special, n = first.new_tensor(numbers), first.numel()
    if n == 0:
        raise NotApplicable("the first input has no numbers")
    places = torch.arange(n, device=first.device)
    among = [first.flatten().where(places != i % n, number).reshape(first.shape) for i, number in enumerate(special)]
    together = [special[(places + i) % len(numbers)].reshape(first.shape) for i in range(0, len(numbers), n)]
    compared = 0
    for given in (*among, *together):
        try:
            expected = plain(given, *rest)
        except Exception:
            continue  # the plain function has no value here, such as the eigenvalues of a matrix with NaN
        try:
            actual = s.op(given, *rest)
        except ValueError:  # the operator refuses the number, such as a probability of -0.5
            continue
        equal(actual, expected)
        compared += 1
    if not compared:
        raise NotApplicable("the operator, or the plain function, refuses each special number")


@check("value")
def value_in_every_dtype(s: Subject) -> None:
    """float16, bfloat16, float32 and float64 give the plain function's value and dtype in every bit, with and without a graph."""
    _plain(s)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        of_dtype = s.to_dtype(dtype)
        expected = _plain(of_dtype)(*of_dtype.tensors)
        equal(of_dtype.op(*of_dtype.tensors), expected)
        equal(of_dtype.op(*of_dtype.leaves()).detach(), expected)


@check("value")
def value_in_every_layout(s: Subject) -> None:
    """Transposed, strided, expanded, empty, one-element and 0-dim inputs give the plain function's value, shape and strides."""
    plain = _plain(s)
    for make in _LAYOUTS.values():
        tensors: list[Tensor] = [make(t) for t in s.tensors]
        try:
            expected = plain(*tensors)
        except Exception:
            continue  # the plain function has no value here, such as the maximum of an empty tensor
        for arguments in (tensors, [t.detach().requires_grad_() for t in tensors]):
            actual = s.op(*arguments).detach()
            equal(actual, expected)
            if actual.numel() and actual.stride() != expected.stride():
                raise AssertionError(f"strides {actual.stride()}, expected {expected.stride()}")


@check("value")
def value_on_meta_and_fake_tensors(s: Subject) -> None:
    """Shape and dtype are right without data: on the meta device, and for fake tensors, with a backward through each."""
    expected = s.op(*s.tensors)

    def inspect(convert: Callable[[Tensor], Tensor], mode: contextlib.AbstractContextManager[Any], function: Any = None) -> None:
        without_data = s.converted(convert)
        tensors = [t.requires_grad_() for t in without_data.tensors]
        with mode:
            y = without_data.bind(function or s.operator)(*tensors)
            gradients = gradients_of(y.sum(), tensors)
        assert (y.shape, y.dtype) == (expected.shape, expected.dtype), (y.shape, y.dtype, expected.shape, expected.dtype)
        assert [g.shape for g in gradients] == [t.shape for t in tensors]

    fake = FakeTensorMode()
    for convert, mode in ((lambda t: t.to("meta"), contextlib.nullcontext()), (fake.from_tensor, fake)):
        with s.without_captured(_DATA):
            try:
                inspect(convert, mode)
            except Exception as error:
                is_captured = False
                with contextlib.suppress(Exception), s.captured_as(lambda t, convert=convert: convert(t.detach())):
                    inspect(convert, mode)
                    is_captured = True
                if is_captured:
                    raise NotApplicable(f"tensors that the operator captures {_DATA}: pass them as arguments") from error
                if isinstance(error, NotImplementedError) and s.surrogate is not None:
                    s.possible(functools.partial(inspect, convert, mode), s.operator, s.surrogate)
                raise
