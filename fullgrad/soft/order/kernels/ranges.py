r"""Ranges of neighbors for isotonic regression, in each mode: their values, and which of two ranges has more excess.

The excess of a range is defined in `isotonic`.
"""

import torch
from torch import Tensor

# Exponentials of rows within this spread are summed directly, in float64 and in float32.
_SPREAD = {torch.float64: 1200.0, torch.float32: 140.0}

_NEWTON_STEPS = 60


def take(x: Tensor, places: Tensor) -> Tensor:
    """``x[places]``, faster."""
    return x.index_select(0, places)


def expanded(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The members of ranges from ``a`` to before ``b``, and the index of the range that contains each."""
    length = b - a
    end = length.cumsum(0)
    total = int(end[-1]) if end.numel() else 0
    owner = torch.repeat_interleave(length, output_size=total)
    return torch.arange(total, device=a.device) + (a - end + length).index_select(0, owner), owner


class Ranges:
    """The ranges of rows ``u`` and ``w``, which start and end at places of flat rows of length n + 1."""

    singles: Tensor
    """The values of ranges of one element, of shape (rows, n)."""
    base: Tensor
    """The origin of all values, of shape (rows, 1)."""

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of the ranges from ``a`` to before ``b``."""
        raise NotImplementedError

    def left_exceeds(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        """Whether minus the excess from ``a`` to ``m`` at ``c_left`` is more than that from ``m`` to ``b`` at ``c_right``."""
        raise NotImplementedError


class Linear(Ranges):
    """Ranges in mode c0. Sums are differences of prefix sums, of numbers relative to the mean of their row."""

    def __init__(self, u: Tensor, w: Tensor) -> None:
        self.singles = u - w
        self.base = self.singles.mean(1, keepdim=True)
        self.singles -= self.base
        sums = u.new_zeros(u.shape[0], u.shape[1] + 1)
        torch.cumsum(self.singles, 1, out=sums[:, 1:])
        self.sums = sums.view(-1)

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        return (take(self.sums, b) - take(self.sums, a)) / (b - a)

    def left_exceeds(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        middle = take(self.sums, m)
        return (m - a) * c_left - (middle - take(self.sums, a)) > take(self.sums, b) - middle - (b - m) * c_right


class Exponential(Ranges):
    """Ranges in mode smooth. Sums run from the end of a sorted row, where their differences lose the least."""

    def __init__(self, u: Tensor, w: Tensor) -> None:
        self.u, u_base, u_logs = self.suffixes(u)
        self.w, w_base, w_logs = self.suffixes(w)
        self.logs, self.base = (u_logs, w_logs), u_base - w_base
        self.singles = (u - u_base) - (w - w_base)

    @staticmethod
    def suffixes(x: Tensor) -> tuple[Tensor, Tensor, bool]:
        """The suffix sums of exponentials relative to the middle of the row, the middle, and whether the sums are logarithms."""
        high, low = x[:, :1], x[:, -1:]
        base = low + (high - low) / 2
        x = (x - base).flip(1)
        if bool((high - low > _SPREAD[x.dtype]).any()):
            return _padded(torch.logcumsumexp(x, 1).flip(1), float("-inf")), base, True
        return _padded(torch.exp(x).cumsum(1).flip(1), 0.0), base, False

    @staticmethod
    def log_sum(suffix: Tensor, logs: bool, a: Tensor, b: Tensor) -> Tensor:
        """The logarithm of the sum of exponentials over each range from ``a`` to before ``b``."""
        if logs:
            total = take(suffix, a)
            return total + torch.log(-torch.expm1(take(suffix, b) - total))
        return torch.log(take(suffix, a) - take(suffix, b))

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        return self.log_sum(self.u, self.logs[0], a, b) - self.log_sum(self.w, self.logs[1], a, b)

    def left_exceeds(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        # By logarithms; an excess of the wrong sign counts as 0.
        u_logs, w_logs = self.logs
        u_left, u_right = self.log_sum(self.u, u_logs, a, m) - c_left, self.log_sum(self.u, u_logs, m, b) - c_right
        w_left, w_right = self.log_sum(self.w, w_logs, a, m), self.log_sum(self.w, w_logs, m, b)
        left = w_left + torch.log((-torch.expm1(u_left - w_left)).clamp(min=0))
        right = u_right + torch.log((-torch.expm1(w_right - u_right)).clamp(min=0))
        # The sum of an empty range is NaN.
        return ((left > right) | (b == m)) & (a != m)


def _padded(x: Tensor, end: float) -> Tensor:
    return torch.cat([x, x.new_full((x.shape[0], 1), end)], 1).view(-1)


class Power(Ranges):
    """Ranges in modes c1 and c2. Sums run over the elements of the ranges."""

    def __init__(self, u: Tensor, w: Tensor, alpha: int) -> None:
        self.alpha = alpha
        self.singles = u - self.root(w)
        self.base = u.new_zeros(u.shape[0], 1)
        self.u, self.w = _padded(u, 0.0), _padded(w, 0.0)

    def root(self, x: Tensor) -> Tensor:
        size = x.abs()
        return torch.sign(x) * (size.sqrt() if self.alpha == 2 else size ** (1 / 3))

    def value(self, a: Tensor, b: Tensor) -> Tensor:
        element, owner = expanded(a, b)
        u, w, size = take(self.u, element), take(self.w, element), (b - a).to(self.u.dtype)

        def total(x: Tensor) -> Tensor:
            return x.new_zeros(a.numel()).index_add_(0, owner, x)

        origin = take(self.u, a)
        target = total(w)
        offset = total(u - take(origin, owner)) / size
        x = u - take(origin, owner) - take(offset, owner)
        if self.alpha == 3:
            # Around the mean: size d^3 + 3 square d + rest = 0.
            square, rest = total(x * x), target - total(x * x * x)
            step = _cubic_root(3 * square / size, rest / size)
            x = x - take(step, owner)
            square = total(x * x)
            polish = torch.where(square > 0, (total(x * x * x) - target) / (3 * square), 0.0)
            # Near a triple root Newton's step is noise.
            polish = torch.where(polish.abs() <= 1e-6 * step.abs(), polish, 0.0)
            return origin + offset + step + polish
        low = take(self.u, b - 1) - self.root(take(self.w, a))
        high = origin - self.root(take(self.w, b - 1))
        d = offset - self.root(target / size)
        low, high = low - origin, high - origin
        # The precision of a sum of this many numbers; the last step to it is still taken.
        span, precision = origin - take(self.u, b - 1), 8 * torch.finfo(u.dtype).eps * size.sqrt()
        d = d.clamp(low, high)
        u = u - take(origin, owner)
        for _ in range(_NEWTON_STEPS):
            # With the signs of x held, the equation is quadratic: count s^2 - 2 slope s + excess = 0.
            x = u - take(d, owner)
            excess, slope, count = total(x * x.abs()) - target, total(x.abs()), total(torch.sign(x))
            low, high = torch.where(excess >= 0, d, low), torch.where(excess <= 0, d, high)
            next_ = d + excess / (slope + (slope * slope - count * excess).sqrt())
            next_ = torch.where((next_ >= low) & (next_ <= high), next_, (low + high) / 2)
            done = ((next_ - d).abs() <= precision * (next_.abs() + span)) | (excess == 0) | ~(low < high)
            d = torch.where(excess == 0, d, next_)
            if bool(done.all()):
                break
        return origin + d

    def left_exceeds(self, a: Tensor, m: Tensor, b: Tensor, c_left: Tensor, c_right: Tensor) -> Tensor:
        element, owner = expanded(torch.cat([a, m]), torch.cat([m, b]))
        x = take(self.u, element) - take(torch.cat([c_left, c_right]), owner)
        excess = (x * x.abs() if self.alpha == 2 else x * x * x) - take(self.w, element)
        sums = x.new_zeros(2 * a.numel()).index_add_(0, owner, excess)
        return -sums[: a.numel()] > sums[a.numel() :]


def _cubic_root(p: Tensor, q: Tensor) -> Tensor:
    """The real root of ``x**3 + p * x + q`` for ``p >= 0``."""
    scale = (p / 3).sqrt()
    ratio = q.abs() / (2 * scale**3)
    flat = ~(ratio < 1e12)  # also where p is 0
    root = torch.where(flat, q.abs() ** (1 / 3), 2 * scale * torch.sinh(torch.asinh(torch.where(flat, 0.0, ratio)) / 3))
    return -torch.sign(q) * root
