"""`vector_quantize`: round to the nearest row of a matrix."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import Function
from fullgrad._core.opmath import cast, to_opmath
from fullgrad._dispatch import has_shape, holds, uses_last_dims
from fullgrad.quantizers import _arguments
from fullgrad.quantizers.kernels.nearest_row import largest, nearest, rows_at

GRADIENTS = ("identity", "rotation")


@uses_last_dims(1)
def vector_quantize(
    x: Tensor, codebook: Tensor, *, gradient: str = "identity", indices: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""The nearest row of a codebook for each vector, or a given one, with the gradient as it is, or rotated.

    .. math::
        i = \operatorname{argmin}_j \lVert x - c_j \rVert, \qquad y = c_i, \qquad D_x = 1 \quad\text{or}\quad
        D_x = r\,(I - 2 w w^\top + 2 q e^\top)

    for the directions *e* of *x*, *q* of :math:`c_i` and *w* of :math:`e + q`, and :math:`r = \lVert c_i \rVert / \lVert x
    \rVert`, with norms of at least 1e-6: the rotation and scaling that maps *x* to :math:`c_i`. That derivative is a function of
    *x*, so it has derivatives of its own, with :math:`c_i` constant; in the published code it has none. The codebook gets no
    gradient: it learns by a loss of its own, of ``codebook[indices]``. The row is the nearest to working precision, however far
    rows are from 0 or from each other: distances are computed by a product of matrices, and again in float64 where its rounding
    might decide. On a device the host waits to learn whether it does. Half precision is computed in float32. Saved: nothing;
    for the rotation ``x``, ``codebook`` and ``indices``.

    Args:
        x: Of shape (…, d); floating, or integer (which gives the default dtype).
        codebook: Of shape (n, d), with at least one row.
        gradient: ``"identity"`` or ``"rotation"``.
        indices: The row of each vector, integers of shape (…), such as codes that were drawn, or chosen by another distance; None
            for the nearest.

    Returns:
        ``(values, indices)``: a tensor of the shape and dtype of ``x``, and integers of shape (…). A tie goes to the first row,
        as does a vector with an infinity. A row with an infinity is nearest if all have one; a row with NaN is nearest always,
        as in torch's ``argmin``. Vectors with NaN are NaN.

    Raises:
        TypeError: ``x`` or ``codebook`` is not real, or ``indices`` does not consist of integers.
        ValueError: The shapes do not fit, ``gradient`` is unknown, or the codebook has no row of an index, where indices can be
            read without waiting.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x, codebook = torch.tensor([[0.9, 0.2], [-0.1, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> quantizers.vector_quantize(x, codebook)
        (tensor([[1., 0.],
                [0., 1.]]), tensor([0, 1]))

    Source: van den Oord et al., https://arxiv.org/abs/1711.00937; Fifty et al., https://arxiv.org/abs/2410.06424.
    """
    x = _arguments.floating_input("vector_quantize", "x", x)
    checks.real_tensor("vector_quantize", "codebook", codebook)
    if codebook.ndim != 2 or not all(holds(n != 0) for n in codebook.shape):
        raise ValueError(
            f"vector_quantize: `codebook` must have two dimensions and no empty one, got shape {tuple(codebook.shape)}."
        )
    if x.ndim == 0 or not holds(x.shape[-1] == codebook.shape[-1]):
        raise ValueError(
            f"vector_quantize: the last dimension of `x` must be that of the codebook, {codebook.shape[-1]}, "
            f"got shape {tuple(x.shape)}."
        )
    checks.choice("vector_quantize", "gradient", gradient, GRADIENTS)
    if indices is not None:
        indices = _checked(indices, x, codebook)
    return VectorQuantize.apply(x, codebook.detach(), gradient, indices)


def _checked(indices: Tensor, x: Tensor, codebook: Tensor) -> Tensor:
    """Indices of rows that exist, as torch's kernels take them."""
    checks.tensor("vector_quantize", "indices", indices)
    if indices.dtype == torch.bool or indices.is_floating_point() or indices.is_complex():
        raise TypeError(f"vector_quantize: `indices` must be integers, got dtype {indices.dtype}.")
    if not has_shape(indices.shape, x.shape[:-1]):
        raise ValueError(
            f"vector_quantize: `indices` must have the shape {tuple(x.shape[:-1])}, one for each vector, got shape "
            f"{tuple(indices.shape)}."
        )
    last = codebook.shape[0] - 1
    checks.elements_between("vector_quantize", "indices", indices, 0, last, f"from 0 to {last}")
    return cast(indices, torch.int64)


class VectorQuantize(Function):
    """The operator of :func:`vector_quantize`. In batches a codebook has the leading dimensions of ``x`` in front."""

    takes_zeros = True  # where the codebook alone has a tangent

    @staticmethod
    def forward(x: Tensor, codebook: Tensor, gradient: str, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        wide, c = to_opmath(x, codebook)
        c = c.to(wide.dtype)
        leading = c.shape[:-2]
        rows = wide.reshape(*leading, -1, x.shape[-1])
        # An output is no alias of an input.
        index = nearest(rows, c).reshape(x.shape[:-1]) if indices is None else indices.clone()
        values = torch.where(wide.isnan().any(-1, keepdim=True), torch.nan, rows_at(c, index))
        return values.to(x.dtype), index

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, codebook, gradient, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.rotates = gradient == "rotation"
        if ctx.rotates:
            ctx.save_for_backward(x, codebook, output[1])
            ctx.save_for_forward(x, codebook, output[1])

    @staticmethod
    def vjp(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        if not ctx.rotates:
            return g, None, None, None
        (wide,) = to_opmath(g)
        r, e, q, w = _directions(*ctx.saved_tensors)
        return (r * (wide - 2 * w * _dot(w, wide) + 2 * e * _dot(q, wide))).to(g.dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: Any) -> tuple[Tensor, None]:
        if not ctx.rotates:
            return t, None
        (wide,) = to_opmath(t)
        r, e, q, w = _directions(*ctx.saved_tensors)
        return (r * (wide - 2 * w * _dot(w, wide) + 2 * q * _dot(e, wide))).to(t.dtype), None

    @classmethod
    def dim_labels(  # pyright: ignore[reportIncompatibleVariableOverride]
        cls, x: Tensor, codebook: Tensor, gradient: str, indices: Tensor | None
    ) -> Any:
        """The vectors and the codebook are never split."""
        rows = tuple(range(x.ndim - 1))
        return [(*rows, None), (*range(codebook.ndim - 2), None, None), (), () if indices is None else rows], rows

    @classmethod
    def vmap(
        cls, info: Any, in_dims: tuple[int | None, ...], x: Tensor, codebook: Tensor, gradient: str, indices: Tensor | None
    ) -> Any:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        if in_dims[1] is not None:
            codebook = codebook.movedim(in_dims[1], 0)
        elif codebook.ndim > 2:
            codebook = codebook.expand(info.batch_size, *codebook.shape)
        if indices is not None:
            indices = indices.expand(x.shape[:-1]) if in_dims[3] is None else indices.movedim(in_dims[3], 0)
        return cls.apply(x, codebook, gradient, indices), (0, 0)


def _directions(x: Tensor, codebook: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The ratio of the norms, and the directions of the vector, its row, and their sum."""
    x, codebook = to_opmath(x, codebook)
    row = rows_at(codebook.to(x.dtype), index)
    e, q = _unit(x), _unit(row)
    return _norm(row) / _norm(x), e, q, _unit(e + q)


def _unit(x: Tensor) -> Tensor:
    return x / _norm(x)


def _norm(x: Tensor) -> Tensor:
    unit = largest(x.detach()).clamp(min=1)  # squares of large numbers overflow
    return (torch.linalg.vector_norm(x / unit, dim=-1, keepdim=True) * unit).clamp(min=1e-6)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
