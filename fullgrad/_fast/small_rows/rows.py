"""Rows that are small enough for closed forms, standardized, with the derivative of standardizing."""

import functools
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.opmath import cast
from fullgrad.soft._curves import SMALLEST
from fullgrad.soft.order._rows import EPSILON, Rows, standardized, with_finite_values

# Matrices of weights have up to this many elements, as measured by `python -m fullgrad bench softtorch`.
LARGEST = 2**20
# Rows whose mean is more than this many deviations from 0 have their origin subtracted.
FAR = 8.0

_sigmoid_backward = torch.ops.aten.sigmoid_backward.default
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


class SmallRows:
    """Rows along the last dimension, whose elements and their squares are finite or NaN.

    ``x`` holds the numbers that are compared, ``z`` the same standardized, ``values`` the numbers that are summed, less a
    constant ``origin`` of the row, if there is one; ``scale`` is 1 / s.
    """

    origin: Tensor | None = None

    def __init__(self, x: Tensor, z: Tensor, mean: Any, rstd: Any, softness: float, options: Any, dtype: torch.dtype) -> None:
        self.x = self.values = x
        self.z, self.mean, self.rstd, self.options, self.dtype = z, mean, rstd, options, dtype
        self.scale = 1 / max(softness, SMALLEST)

    @property
    def n(self) -> int:
        """The length of a row."""
        return self.x.shape[-1]

    def pull(self, u: Tensor | None, values: Tensor | None) -> Tensor:
        """The gradient of x, from the gradients of u, a fresh tensor, and of the values."""
        values = None if values is None else self.direct(values)
        if u is None:
            return torch.zeros_like(self.x) if values is None else values
        g = self._standardized(_sigmoid_backward(u.mul_(self.scale), self.z))
        return g if values is None else g.add_(values)

    def push(self, t: Tensor) -> Tensor:
        """The tangent of u, from the tangent of x."""
        return _sigmoid_backward(self._standardized(t), self.z) * self.scale

    def direct(self, v: Tensor) -> Tensor:
        """The derivative of the values times v."""
        return v

    def _standardized(self, v: Tensor) -> Tensor:
        """The derivative of h times v: the matrix is symmetric."""
        return _layer_norm_backward(v, self.x, self.x.shape[-1:], self.mean, self.rstd, None, None, [True, False, False])[0]

    def arange(self, first: int, step: int, count: int) -> Tensor:
        """Evenly spaced numbers from the first one on; not to be written to."""
        end, x = first + step * count, self.x
        if x.is_cpu:
            return _arange(first, end, step, x.dtype)
        return torch.arange(first, end, step, dtype=x.dtype, device=x.device)

    def constants(self, numbers: Any) -> Tensor:
        """Numbers, or rows of numbers, as a tensor, made on its device: a copy to an accelerator would have to be waited for."""
        if self.x.device.type == "cpu":
            return torch.tensor(numbers, dtype=self.x.dtype, device="cpu")
        if isinstance(numbers, (list, tuple)):
            return torch.stack([self.constants(v) for v in numbers])
        return torch.full((), numbers, dtype=self.x.dtype, device=self.x.device)


class MaskedRows(SmallRows):
    """Any rows: infinities take no part in the statistics, squares of large numbers do not overflow, and rows far from 0 have
    their origin subtracted.

    No value is read, so an accelerator is not waited for.
    """

    def __init__(self, x: Tensor, softness: float, options: Any, dtype: torch.dtype) -> None:
        rows = standardized(x)
        super().__init__(x, rows.z, rows.mean, None, softness, options, dtype)
        self.statistics, self.origin, self.values = rows, rows.origin, x - rows.origin
        # The replacements of infinities, for hard values, are constants.
        self.replaced = options[5] and options[4] not in ("weights", "ranks")
        if self.replaced:
            self.values = with_finite_values(Rows(self.values, x, softness, options[0], rows.origin)).x

    def direct(self, v: Tensor) -> Tensor:
        return torch.where(self.statistics.infinite, 0, v) if self.replaced else v

    def _standardized(self, v: Tensor) -> Tensor:
        r"""The product :math:`(v - \operatorname{mean}(v) - h \operatorname{mean}(h v)) / \sigma` over the finite elements."""
        _, _, deviation, h, infinite, count, _, unit = self.statistics
        v = torch.where(infinite, 0, v)
        v = v - v.sum(-1, keepdim=True) / count - h * ((h * v).sum(-1, keepdim=True) / count)
        return torch.where(infinite, 0, v / deviation / unit)


def small_rows(x: Tensor, softness: Any, dim: int, options: Any, places: int) -> SmallRows | None:
    """The rows if closed forms apply, else None. ``places`` is how many places have their weights computed."""
    count = x.numel() * places
    if not options[2] or softness.__class__ is not float or not 0 < count <= LARGEST:
        return None
    dtype = x.dtype
    x = x.detach()
    if dim != -1:
        x = x.movedim(dim, -1)
    if dtype.itemsize == 2:
        x = x.float()
    if looks_at_numbers(x):
        h, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], None, None, EPSILON)
        # 1 / sigma is 0 or NaN for infinities and for squares that overflow. A NaN makes its row NaN, here too.
        plain = torch.min(rstd).item() > 0 or (x.isnan().any(-1, keepdim=True) | (rstd > 0)).all()
        # Rounding the mean costs a deviation this many times its own rounding.
        if plain and not (mean * rstd).abs_().max().item() > FAR:
            return SmallRows(x, _sigmoid_(h), mean, rstd, softness, options, dtype)
    return MaskedRows(x, softness, options, dtype)


def _sigmoid_(h: Tensor) -> Tensor:
    """`row_sigmoid` in place, on the CPU."""
    return h.neg_().exp_().add_(1).reciprocal_()


def looks_at_numbers(x: Tensor) -> bool:
    """Whether reading a number is cheap: an accelerator would have to be waited for."""
    return x.device.type == "cpu"


@functools.lru_cache(maxsize=64)
def _arange(first: int, end: int, step: int, dtype: torch.dtype) -> Tensor:
    return torch.arange(first, end, step, dtype=dtype, device="cpu")


def rows_of(v: Tensor, rows: SmallRows, dim: int) -> Tensor:
    """A tensor like the input as rows."""
    return cast(v if dim == -1 else v.movedim(dim, -1), rows.x.dtype)


def to_input(y: Tensor, rows: SmallRows, dim: int) -> Tensor:
    """Rows in the layout and dtype of the input."""
    return cast(y if dim == -1 else y.movedim(-1, dim), rows.dtype)
