"""Products, by multiplications alone, so that their derivatives divide by no factor: torch's are wrong where factors are 0.

Factors are numbers from 1/2 to 1 times powers of two, which are constants, so that nothing over- or underflows in between.
"""

import math
from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, can_read_numbers, has_data, innermost, is_tracing
from fullgrad.completion._registry import Whole, accumulated, completes, valued

_WRONG_AT_0 = "higher derivatives are wrong where factors are 0"
_STEPS = 5  # the product of 2**5 numbers from 1/2 to 1, and its square, are no subnormal numbers


def _is_left_out(x: Tensor, dtype: torch.dtype | None) -> bool:
    of = x.dtype if dtype is None else dtype
    return not (of.is_floating_point or of.is_complex)


def exponents(x: Tensor) -> Tensor:
    """The powers of two next to the size of numbers, 0 of what is infinite or no number."""
    size = x.detach().abs()
    return torch.where(size.isfinite(), torch.frexp(size)[1], 0)


def times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """``x`` times a power of two, in two steps, since the power alone may be no number of the dtype."""
    real = x.dtype.to_real() if x.is_complex() else x.dtype
    most = math.frexp(torch.finfo(real).max)[1] - 2
    exponent = exponent.clamp(-2 * most, 2 * most)
    half = exponent.div(2, rounding_mode="floor")
    rest = exponent - half
    return x * torch.exp2(half.to(real)) * torch.exp2(rest.to(real))


def _normalized(x: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers from 1/2 to 1, and the exponents."""
    exponent = exponents(x)
    return times_power(x, -exponent), exponent


def _product(x: Tensor) -> Tensor:
    """The product of the last dimension, in halves."""
    if not x.shape[-1]:
        return torch.ones(x.shape[:-1], dtype=x.dtype, device=x.device)
    dtype, x, step = x.dtype, accumulated(x), 0
    exponent = exponents(x)
    zeros = x.detach() == 0  # whose exponents may be any: such that the product is no power
    others = torch.where(zeros, 0, exponent).sum(-1, keepdim=True)
    exponent = torch.where(zeros, -others.div(zeros.sum(-1, keepdim=True).clamp(min=1), rounding_mode="floor"), exponent)
    total = exponent.sum(-1)
    if x.shape[-1] <= 2**_STEPS:  # few factors have equal parts of the power, as what comes back passes one of them
        place = torch.arange(x.shape[-1] + 1, device=x.device) * total.unsqueeze(-1)
        part = place.div(x.shape[-1], rounding_mode="floor").diff(dim=-1)
        exponent, total = exponent - part, torch.zeros_like(total)
    x = times_power(x, -exponent)
    while (n := x.shape[-1]) > 1:
        half, step = n // 2, step + 1
        pairs = x[..., :half] * x[..., half : 2 * half]
        x = torch.cat([pairs, x[..., 2 * half :]], -1) if n % 2 else pairs
        if step % _STEPS == 0 and x.shape[-1] > 1:
            x, exponent = _normalized(x)
            total = total + exponent.sum(-1)
    return times_power(x.squeeze(-1), total).to(dtype)


@completes("prod", _WRONG_AT_0)
def _prod(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    if _is_left_out(x, dtype):
        return NotImplemented
    return _product(x.to(dtype or x.dtype).reshape(-1))


@completes("prod.dim_int", _WRONG_AT_0)
def _prod_of_dim(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if _is_left_out(x, dtype) or not x.ndim:
        return NotImplemented
    y = _product(x.to(dtype or x.dtype).movedim(dim, -1))
    return y.unsqueeze(dim) if keepdim else y


def _exponents_with_zeros(x: Tensor) -> Tensor:
    """The exponents, those of zeros such that the products that follow are near no power that over- or underflows."""
    exponent, zeros = exponents(x), x.detach() == 0
    if not x.shape[-1]:
        return exponent
    backwards = torch.where(zeros, 0, exponent).cumsum(-1).flip(-1)
    middle = (backwards.cummax(-1).values + backwards.cummin(-1).values).flip(-1).div(2, rounding_mode="floor")
    last = torch.where(zeros, torch.arange(1, x.shape[-1] + 1, device=x.device), 0).cummax(-1).values  # the zero before, from 1
    taken = torch.cat([torch.zeros_like(middle[..., :1]), middle], -1).gather(-1, last)
    before = torch.cat([torch.zeros_like(taken[..., :1]), taken[..., :-1]], -1)
    return torch.where(zeros, before - taken, exponent)


def _running_product(x: Tensor) -> Tensor:
    """The products along the last dimension."""
    y, far, step, exponent = x, 1, 0, _exponents_with_zeros(x)
    y = times_power(y, -exponent)
    while far < y.shape[-1]:
        y = torch.cat([y[..., :far], y[..., far:] * y[..., :-far]], -1)
        exponent = torch.cat([exponent[..., :far], exponent[..., far:] + exponent[..., :-far]], -1)
        far, step = 2 * far, step + 1
        if step % _STEPS == 0:
            y, more = _normalized(y)
            exponent = exponent + more
    return times_power(y, exponent)


def _times_infinity(x: Tensor, where: Tensor, sign: Any) -> Tensor:
    """``x`` times an infinite number of a sign, or what is no number by the sign 0, at some places: in steps, forward and back
    the same, by which a slope or a tangent of 0 stays 0.
    """
    one = torch.ones((), dtype=x.dtype.to_real() if x.is_complex() else x.dtype, device=x.device)
    most, sign = torch.where(where, one * torch.finfo(one.dtype).max, one), torch.where(where, one * sign, one)
    return x * most * most * sign * most * most


def _sums_of_0(x: Tensor, where: Tensor) -> Tensor:
    """0, with the slopes of the running sum of some numbers."""
    return valued(torch.where(where, x, 0), torch.zeros_like(x)).cumsum(-1)


def _running_product_with_infinities(x: Tensor) -> Tensor:
    """The product of the finite numbers, times the others as constants, whose own slopes are products of finite numbers. There is
    no slope by one of two that are not finite, nor where it is a product of 0 and one that is not.
    """
    is_finite, is_0 = x.detach().isfinite(), x.detach() == 0
    count, zeros = (~is_finite).cumsum(-1), is_0.cumsum(-1)
    finite, own = _running_product(torch.where(is_finite, x, 1)), _sums_of_0(x, ~is_finite)
    is_none = (~(is_finite | (x == torch.inf) | (x == -torch.inf))).cumsum(-1) > 0
    sign = torch.where(is_none, 0, 1 - 2 * ((x == -torch.inf).cumsum(-1) % 2))
    y = _times_infinity(finite, count > 0, sign) + finite * torch.where(count > 1, 0, own)
    lost = torch.where((count > 0) & (finite == 0), _sums_of_0(x, is_finite & ~is_0), 0)
    lost = lost + torch.where((count > 0) & (zeros > 1), _sums_of_0(x, is_0), 0) + torch.where(count > 1, own, 0)
    return y + _times_infinity(lost, count > 0, 0)


def _is_all_finite(x: Tensor) -> bool:
    """Whether all numbers are known to be finite."""
    plain = innermost(x)
    is_known = not is_tracing() and has_data(plain) and can_read_numbers(plain)
    return is_known and below_transforms(lambda: bool(plain.isfinite().all()))


@completes("cumprod", _WRONG_AT_0, issue=196701)
def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if _is_left_out(x, dtype) or not x.ndim:
        return NotImplemented
    own = x.to(dtype or x.dtype)
    y = accumulated(own).movedim(dim, -1)
    y = _running_product(y) if _is_all_finite(y) else _running_product_with_infinities(y)
    return y.to(own.dtype).movedim(-1, dim)


@completes("vander", "the gradient of a batch raises, and any in eager code", is_missing=lambda args: True)
def _vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Any:  # torch's name
    """Columns of powers by torch's products, which it writes into ones, as a batch may not."""
    count = x.shape[0] if N is None else N
    powers = x.unsqueeze(-1).expand(-1, max(count - 1, 0)).cumprod(-1)
    powers = torch.cat([torch.ones_like(x).unsqueeze(-1), powers], -1)[:, :count]
    return Whole(powers if increasing else powers.flip(-1))
