"""Contributions: one use of a parameter adds them to the gradients of the samples, which need not be computed.

A contribution stands for a tensor of shape (batch, *shape of the parameter). Its base class computes everything from the
gradients of a few samples at a time, ``dense(samples)``; a subclass has formulas that cost less.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullgrad._dispatch import can_read_numbers, has_data, is_tracing, transforms_active

# As many bytes of gradients are computed at a time.
_BYTES = 1 << 24

# A sum that is smaller than this part of the size of its terms has lost about three digits.
_LOST = 1 / 500


def opmath(tensor: Tensor) -> Tensor:
    """Half precision as float32, and complex numbers as pairs."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def numel(shape: Sequence[int]) -> int:
    return math.prod(shape)


def flat(gradients: Tensor) -> Tensor:
    """A row for each sample."""
    return gradients.reshape(gradients.shape[0], numel(gradients.shape[1:]))


def _at_a_time(bytes: int) -> int:
    """How many pieces of so many bytes are computed at a time."""
    return max(1, _BYTES // max(1, bytes))


def _can_look(tensor: Tensor) -> bool:
    """Whether the next step may depend on the numbers of a tensor."""
    return not (transforms_active() or is_tracing()) and can_read_numbers(tensor) and has_data(tensor)


def _is_exact(total: Tensor, size: Tensor) -> Tensor:
    """Whether sums have kept their digits, from the size of what was added; False if that overflows or is NaN."""
    return (total >= size * _LOST) & (size < math.inf)


class Contribution:
    """The gradients of a batch with respect to one parameter of the given shape."""

    batch: int
    shape: torch.Size
    sample: Tensor  # a tensor of the dtype and on the device of the gradients

    def dense(self, samples: slice) -> Tensor:
        """The gradients of some of the samples."""
        raise NotImplementedError

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """The gradients of a few samples at a time, at least once."""
        each = _at_a_time(numel(self.shape) * self.sample.element_size())
        for first in range(0, max(1, self.batch), each):
            part = slice(first, first + each)
            yield part, self.dense(part)

    def squared(self) -> Tensor:
        """The squared norms, (batch,)."""
        return torch.cat([flat(opmath(g)).square().sum(1) for _, g in self._parts()])

    def sum_of_squares(self) -> Tensor:
        """The sum over samples of the squares of each element."""
        total: Any = 0
        for _, g in self._parts():
            squares = opmath(g).square()
            total = total + (squares.sum(-1) if g.is_complex() else squares).sum(0)
        return total

    def weighted(self, weights: Tensor) -> Tensor:
        """The weighted sum over samples."""
        total: Any = 0
        for part, g in self._parts():
            wide = g if g.is_complex() else opmath(g)
            total = total + torch.tensordot(weights[part].to(wide.dtype), wide, 1)
        return total

    def gramian(self) -> Tensor:
        """The inner products of the gradients of each two samples, (batch, batch)."""
        g = flat(opmath(self.dense(slice(None))))
        return g @ g.mT


class Dense(Contribution):
    """The gradients themselves."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = self.sample = gradients
        self.batch, self.shape = gradients.shape[0], gradients.shape[1:]

    def dense(self, samples: slice) -> Tensor:
        return self.gradients[samples]


class Sum(Contribution):
    """The sum of several contributions to one parameter."""

    def __init__(self, parts: Sequence[Contribution]) -> None:
        self.parts, self.sample = parts, parts[0].sample
        self.batch, self.shape = parts[0].batch, parts[0].shape

    def dense(self, samples: slice) -> Tensor:
        return sum([part.dense(samples) for part in self.parts[1:]], self.parts[0].dense(samples))

    def weighted(self, weights: Tensor) -> Tensor:
        return sum([part.weighted(weights) for part in self.parts[1:]], self.parts[0].weighted(weights))


class Product(Contribution):
    r"""A matrix whose gradient is :math:`R^T C` of each sample, or an elementwise slope times that.

    Args:
        rows: R, (batch, T, m).
        columns: C, (batch, T, n).
        slope: The derivative of the matrix with respect to the parameter, element by element, (m, n); None for 1.
        key: What tells whether two slopes are the same.
    """

    def __init__(self, rows: Tensor, columns: Tensor, slope: Tensor | None = None, key: Any = None) -> None:
        self.rows, self.columns, self.slope, self.key, self.sample = rows, columns, slope, key, columns
        self.batch, self.shape = rows.shape[0], torch.Size([rows.shape[2], columns.shape[2]])

    def _times_slope(self, matrix: Tensor) -> Tensor:
        return matrix if self.slope is None else matrix * self.slope

    def dense(self, samples: slice) -> Tensor:
        return self._times_slope(opmath(self.rows[samples]).mT @ opmath(self.columns[samples]))

    def _of_grams_is_less(self) -> bool:
        length, (m, n) = self.rows.shape[1], self.shape
        return self.slope is None and length * (m + n) <= m * n and self._keeps_digits()

    def _keeps_digits(self) -> bool:
        """Whether the products of Gram matrices, which cancel where the terms of a gradient do, can be added without loss."""
        return self._is_checked() or (self.sample.dtype != torch.float64 and self.sample.device.type != "mps")

    def _is_checked(self) -> bool:
        """Whether one can look for lost digits, or knows that there are none, as single products cancel with nothing."""
        return self.rows.shape[1] == 1 or _can_look(self.sample)

    def _factors(self, samples: slice) -> tuple[Tensor, Tensor]:
        """The factors whose Gram matrices are multiplied: in float64 if one cannot look whether digits are lost."""
        r, c = opmath(self.rows[samples]), opmath(self.columns[samples])
        return (r, c) if self._is_checked() else (r.double(), c.double())

    def squared(self) -> Tensor:
        if self.rows.shape[1] == 1:
            r, c = opmath(self.rows[:, 0]).square(), opmath(self.columns[:, 0]).square()
            return r.sum(1) * c.sum(1) if self.slope is None else ((r @ opmath(self.slope).square()) * c).sum(1)
        if not self._of_grams_is_less():
            return super().squared()
        found, each = [], _at_a_time(self.rows.shape[1] ** 2 * self.sample.element_size())
        for first in range(0, max(1, self.batch), each):
            r, c = self._factors(slice(first, first + each))
            products = (r @ r.mT) * (c @ c.mT)
            squares = products.flatten(1).sum(1)
            if self._is_checked():
                # The rounding of a product is as large as the lengths of its vectors, whose products are on the diagonal.
                lost = ~_is_exact(squares, products.diagonal(dim1=1, dim2=2).sum(1))
                if lost.any():
                    where = lost.nonzero()[:, 0]
                    squares = squares.index_put((where,), Contribution.squared(Product(r[where], c[where])))
            found.append(squares.clamp(min=0).to(opmath(self.sample).dtype))
        return torch.cat(found)

    def sum_of_squares(self) -> Tensor:
        if self.rows.shape[1] != 1:
            return super().sum_of_squares()
        squares = opmath(self.rows[:, 0]).square().mT @ opmath(self.columns[:, 0]).square()
        return squares if self.slope is None else squares * opmath(self.slope).square()

    def weighted(self, weights: Tensor) -> Tensor:
        rows = opmath(self.rows)
        rows = rows * weights.to(rows.dtype)[:, None, None]
        return self._times_slope(rows.flatten(0, 1).mT @ opmath(self.columns).flatten(0, 1))

    def gramian(self) -> Tensor:
        rows, columns = opmath(self.rows), opmath(self.columns)
        length, (m, n) = rows.shape[1], self.shape
        is_less = self.slope is None and self.batch * length * length * (m + n) <= (length + self.batch) * m * n
        if is_less and self._keeps_digits():
            r, c = (v.flatten(0, 1) for v in self._factors(slice(None)))
            found = ((r @ r.mT) * (c @ c.mT)).reshape(self.batch, length, self.batch, length).sum((1, 3))
            squares = found.diagonal()
            if not self._is_checked():
                return (found + squares.clamp(max=0).neg().diag_embed()).to(rows.dtype)
            size = (r.square().sum(1) * c.square().sum(1)).reshape(self.batch, length).sum(1)
            if length == 1 or _is_exact(squares, size).all():
                return found
        total: Any = rows.new_zeros(self.batch, self.batch)
        each = _at_a_time(self.batch * n * self.sample.element_size())
        for first in range(0, m, each):  # some rows of the matrix at a time
            part = slice(first, first + each)
            g = rows[:, :, part].mT @ columns
            g = (g if self.slope is None else g * self.slope[part]).flatten(1)
            total = total + g @ g.mT
        return total


class Rows(Contribution):
    """The rows of a table that each sample reads.

    Args:
        index: Which rows, (batch, T).
        gradients: The gradient of each, (batch, T, n), 0 where the row gets none.
        shape: The shape of the table.
    """

    def __init__(self, index: Tensor, gradients: Tensor, shape: torch.Size) -> None:
        self.index, self.gradients, self.sample = index, gradients, gradients
        self.batch, self.shape = index.shape[0], shape

    def dense(self, samples: slice) -> Tensor:
        index, g = self.index[samples], opmath(self.gradients[samples])
        where = index[:, :, None].expand(g.shape)
        return g.new_zeros(g.shape[0], *self.shape).scatter_add(1, where, g)

    def _added(self) -> tuple[Tensor, Tensor]:
        """The rows that samples read, as one number for sample and row, and the gradient of each."""
        first = torch.arange(self.batch, device=self.index.device)[:, None] * self.shape[0]
        rows, where = (self.index + first).flatten().unique(return_inverse=True)
        g = opmath(self.gradients).flatten(0, 1)
        return rows, g.new_zeros(len(rows), g.shape[1]).index_add(0, where, g)

    def _once(self) -> Tensor:
        """The gradients, where those of a row that a sample reads several times are added at the first of them, 0 at the rest."""
        g = opmath(self.gradients)
        same = self.index[:, :, None] == self.index[:, None, :]
        is_again = same.tril(-1).any(2)
        return (same & ~is_again[:, :, None]).to(g.dtype) @ g

    def squared(self) -> Tensor:
        if not _can_look(self.index):  # the number of different rows may depend on the sample of an outer vmap
            return self._once().square().flatten(1).sum(1)
        rows, g = self._added()
        return g.new_zeros(self.batch).index_add(0, rows // self.shape[0], g.square().sum(1))

    def sum_of_squares(self) -> Tensor:
        if not _can_look(self.index):
            return super().sum_of_squares()
        rows, g = self._added()
        return g.new_zeros(self.shape).index_add(0, rows % self.shape[0], g.square())

    def weighted(self, weights: Tensor) -> Tensor:
        g = opmath(self.gradients)
        g = (g * weights.to(g.dtype)[:, None, None]).flatten(0, 1)
        return g.new_zeros(self.shape).index_add(0, self.index.flatten(), g)

    def gramian(self) -> Tensor:
        length = self.index.shape[1]
        if self.batch * length * length > (self.batch + length) * self.shape[0]:
            return super().gramian()
        index, g = self.index.flatten(), self._once().flatten(0, 1)
        products = (index[:, None] == index) * (g @ g.mT)
        return products.reshape(self.batch, length, self.batch, length).sum((1, 3))


class Convolved(Contribution):
    """The weight of a convolution.

    Args:
        inputs: (batch, N, channels, *sizes).
        gradients: Those of the outputs, (batch, N, channels, *sizes).
        shape: That of the weight.
        options: Stride, padding, dilation and groups.
        slope: As in `Product`.
    """

    def __init__(
        self, inputs: Tensor, gradients: Tensor, shape: torch.Size, options: Any, slope: Tensor | None, key: Any
    ) -> None:
        self.inputs, self.gradients, self.options = inputs, gradients, options
        self.slope, self.key, self.sample, self.batch, self.shape = slope, key, inputs, inputs.shape[0], shape

    def dense(self, samples: slice) -> Tensor:
        pairs = zip(self.inputs[samples], self.gradients[samples], strict=True)
        found = torch.stack([self._of_one(x, g) for x, g in pairs]) if self.batch else self.inputs.new_zeros(0, *self.shape)
        return found if self.slope is None else found * self.slope

    def _of_one(self, x: Tensor, g: Tensor) -> Tensor:
        stride, padding, dilation, groups = self.options
        no_padding, only_weight = [0] * len(stride), [False, True, False]
        backward = torch.ops.aten.convolution_backward
        weight = x.new_empty(self.shape)  # its shape alone is read
        return backward(g.to(x.dtype), x, weight, None, stride, padding, dilation, False, no_padding, groups, only_weight)[1]

    def squared(self) -> Tensor:
        length = self.inputs.shape[1] * numel(self.gradients.shape[3:])
        m, n = self.shape[0], numel(self.shape[1:])
        if self.slope is None and self.options[-1] == 1 and len(self.options[0]) == 2 and length * (m + n) * 2 <= m * n:
            return self._product().squared()
        return super().squared()

    def _product(self) -> Product:
        """As a product: each output is one of a matrix and what its window reads."""
        stride, padding, dilation, _ = self.options
        read = functional.unfold(self.inputs.flatten(0, 1), self.shape[2:], dilation, padding, stride)
        columns = read.unflatten(0, (self.batch, -1)).mT.flatten(1, 2)
        return Product(self.gradients.flatten(3).mT.flatten(1, 2), columns)

    def weighted(self, weights: Tensor) -> Tensor:
        x, g = opmath(self.inputs), opmath(self.gradients)
        g = g * weights.to(g.dtype).reshape(-1, *(1,) * (g.ndim - 1))
        found = self._of_one(x.flatten(0, 1), g.flatten(0, 1))
        return found if self.slope is None else found * self.slope


def to_parameter(found: Contribution, shape: torch.Size) -> Contribution:
    """The contribution to a parameter of another shape, which was broadcast to that of a weight."""
    if found.shape == shape:
        return found
    if isinstance(found, Product) and found.slope is not None:
        r, c = opmath(found.rows), opmath(found.columns)
        s, wanted = opmath(found.slope), (1,) * (2 - len(shape)) + tuple(shape)
        if wanted == (1, 1):
            return Dense(((r @ s) * c).flatten(1).sum(1).reshape(found.batch, *shape))
        if wanted == (found.shape[0], 1):
            return Dense((r * (c @ s.mT)).sum(1).reshape(found.batch, *shape))
        if wanted == (1, found.shape[1]):
            return Dense((c * (r @ s)).sum(1).reshape(found.batch, *shape))
    gradients = [g.sum_to_size(g.shape[0], *(1,) * (g.ndim - 1 - len(shape)), *shape) for _, g in found._parts()]
    return Dense(torch.cat(gradients).reshape(found.batch, *shape))


def combined(parts: Sequence[Contribution]) -> Contribution:
    """The sum of the contributions of all uses of a parameter; uses of one kind are one use that is longer."""
    products: dict[Any, list[Product]] = {}
    rows, others = [], []
    for part in parts:
        if isinstance(part, Product):
            products.setdefault(part.key, []).append(part)
        else:
            (rows if isinstance(part, Rows) else others).append(part)
    for same in products.values():
        first = same[0]
        if len(same) > 1:
            r, c = (torch.cat([getattr(p, name) for p in same], 1) for name in ("rows", "columns"))
            first = Product(r, c, first.slope, first.key)
        others.append(first)
    if len(rows) > 1:
        others.append(Rows(torch.cat([r.index for r in rows], 1), torch.cat([r.gradients for r in rows], 1), rows[0].shape))
    else:
        others += rows
    return others[0] if len(others) == 1 else Sum(others)
