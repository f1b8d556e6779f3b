r"""A numerical test whether a function is linear and differentiable, so that autograd can transpose it.

The transpose of a linear function :math:`L` is its derivative's, taken at a point that is not special: not at 0, which code may
leave out. Transposed twice at a random :math:`v`, the function must give :math:`L(h)` for random :math:`h` of several magnitudes,
with zeros among them, for :math:`-v`, and for 0. A function that clips at more than the largest magnitude, or rounds to a dtype
as autograd's gradient of that conversion does, passes.

Both are equal up to rounding: that of the result, or in float64, where terms may cancel, of the terms. The latter is measured, as
the change of the result where the elements of :math:`h` change in their last digit: code that is not linear changes as little.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, innermost, vjp
from fullgrad._engine.differentiated import is_floating
from fullgrad._engine.random_states import same_draws

_Function = Callable[..., Sequence[Tensor]]

_SCALES = (1e-3, 1.0, 1e4)  # clipping or normalizing shows at one of them
_OF_HALF = (1e-3, 1.0, 1e2)  # float16 ends at 65504
GENERIC = 0.7  # a number that no code treats specially
_TRIES = 8  # of numbers next to others


def is_linear(function: _Function, arguments: Sequence[Tensor], precisions: Sequence[torch.dtype] | None = None) -> bool:
    """Whether a function is linear in all its arguments together, which are tensors like the given ones, up to rounding: that of
    its results, or of other dtypes for each.
    """
    outputs = lambda *v: tuple(function(*v))  # noqa: E731

    def drawn() -> list[list[Tensor]]:
        scales = _OF_HALF if any(a.dtype == torch.float16 for a in arguments) else _SCALES
        hs = [[scale * torch.randn_like(a) for a in arguments] for scale in (1.0, *scales)]
        hs.append([-h for h in hs[0]])  # the sign shows here, however few elements there are
        return hs + [[torch.where(torch.rand_like(h.abs()) < share, h, 0) for h in hs[2]] for share in (0.5, 0.0)]

    # A function may close over tensors of transforms, below which the numbers are drawn, as in vmap they may not be.
    v, *hs = below_transforms(drawn)
    with same_draws():
        values, push = vjp(outputs, *v)
    with same_draws():  # each call of the function begins with the same state
        cotangents = below_transforms(lambda: [torch.randn(y.shape, dtype=y.dtype, device=y.device) for y in values])
        again = vjp(push, tuple(cotangents))[1]
    both = outputs, lambda *h: again(h)[0]
    are_precise = all(a.dtype in (torch.float64, torch.complex128) for a in arguments)
    for h in hs:
        expected, found = [_called(f, h) for f in both]
        dtypes = precisions or [y.dtype for y in expected]
        if any(map(_differs, found, expected, dtypes)):
            noise = [_noise(f, h, y) for f, y in zip(both, (expected, found), strict=True)] if are_precise else []
            if not noise or any(map(_differs, found, expected, dtypes, map(torch.add, *noise))):
                return False
    return True


def _called(function: _Function, h: Sequence[Tensor]) -> Sequence[Tensor]:
    with same_draws():  # the function may draw: the same numbers each time
        return function(*h)


def _noise(function: _Function, h: Sequence[Tensor], value: Sequence[Tensor]) -> list[Tensor]:
    """How much each result changes at most where the elements of h change in their last digit, by a few tries."""

    def near() -> list[Tensor]:
        return [x * (1 + torch.finfo(x.dtype).eps * torch.sign(torch.rand_like(x.abs()) - 0.5)) for x in h]

    most = [torch.zeros_like(_largest(y)) for y in value]
    for _ in range(_TRIES):
        changed = _called(function, below_transforms(near))
        most = [torch.maximum(m, _largest(y - y0)) for m, y, y0 in zip(most, changed, value, strict=True)]
    return most


def random_like(shape: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers of a shape, whose symbolic sizes have a hint; zeros of a dtype without derivatives."""
    sizes = [getattr(getattr(n, "node", None), "hint", n) for n in shape]
    return (torch.randn if is_floating(dtype) else torch.zeros)(sizes, dtype=dtype, device=device)


def kinds_of(constants: Iterable[Any]) -> tuple[Any, ...]:
    """The key of a verdict: the type of each constant, and numbers by value; no other object is kept alive."""
    return tuple([(type(c), c if isinstance(c, _BY_VALUE) else getattr(c, "__qualname__", "")) for c in constants])


_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}


def wider(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which rounding hardly matters."""
    return _WIDER.get(dtype, dtype)


def _differs(found: Tensor, expected: Tensor, precision: torch.dtype, noise: Tensor | float = 0.0) -> bool:
    """Whether tensors differ by more than rounding in a dtype. Nonfinite elements are skipped: eager double backward has them."""
    eps, both = torch.finfo(precision).eps, found.isfinite() & expected.isfinite()
    error, size = [_largest(torch.where(both, v, 0)) for v in (found - expected, expected)]
    # Rules lose some digits; half of those of float64 are enough to tell.
    return bool(innermost(error > min(max(1e3 * eps, 1e-8), 0.1) * size + 1e2 * noise).any())


def _largest(x: Tensor) -> Tensor:
    """The largest absolute value among the finite elements."""
    size = x.abs()
    return torch.where(size.isfinite(), size, 0).amax() if size.numel() else size.sum()
