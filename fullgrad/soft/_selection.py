"""Soft selection: weights instead of indices. Contractions, with torch's own derivatives, which are right everywhere."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.autocast import matmul
from fullgrad._core.opmath import cast
from fullgrad._core.shards import along_rows, reshaped
from fullgrad._dispatch import has_shape, holds, surely
from fullgrad.soft._relaxation import checked_floating

# For fewer elements a sum costs more than a matrix product.
_MIN_LENGTH_OF_SUMS = 16


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    r"""The mean of ``x`` and ``y``, weighted by a soft truth value.

    .. math::
        z = c\, x + (1 - c)\, y, \qquad D_x = c, \quad D_y = 1 - c, \quad D_c = x - y

    Saved: the three inputs.

    Args:
        condition: Soft truth values in [0, 1], any shape, floating.
        x: A floating tensor that broadcasts with ``condition``.
        y: A floating tensor that broadcasts with ``condition``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: An argument is not a real tensor; a bool ``condition``, such as ``x > 0``, is ``soft.greater(x, 0)`` here.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.where(torch.tensor([0.0, 0.25, 1.0]), torch.tensor(4.0), torch.tensor(8.0))
        tensor([8., 7., 4.])

    Source: ``softtorch.where``.
    """
    if isinstance(condition, Tensor) and condition.dtype is torch.bool:
        raise TypeError(
            "where: `condition` must be a real tensor, got dtype torch.bool: write soft.greater(x, 0) for x > 0, "
            "or torch.where for a hard condition."
        )
    condition = checked_floating("where", "condition", condition)
    x, y = checked_floating("where", "x", x), checked_floating("where", "y", y)
    dtype = torch.promote_types(torch.promote_types(condition.dtype, x.dtype), y.dtype)
    return torch.lerp(*torch.broadcast_tensors(cast(y, dtype), cast(x, dtype), cast(condition, dtype)))


def take_along_dim(x: Tensor, soft_index: Tensor, dim: int | None = None) -> Tensor:
    r"""Weighted sums of ``x`` along a dimension, with weights for each batch position.

    .. math::
        z_{\dots k \dots} = \sum_n P_{\dots k \dots n}\, x_{\dots n \dots}, \qquad D_x = P, \quad D_P = x

    Saved: both inputs.

    Args:
        x: Shape (..., n, ...) with n at ``dim``.
        soft_index: Shape (..., k, ..., n): one dimension more than ``x``, k at ``dim``, the weights of each position in the last.
            The other dimensions broadcast with those of ``x``.
        dim: The dimension of ``x`` that is indexed; None flattens ``x``, for a ``soft_index`` of shape (k, numel).

    Returns:
        A tensor of shape (..., k, ...).

    Raises:
        TypeError: An argument is not a real tensor, or ``dim`` is not an integer.
        IndexError: ``x`` has no such dimension.
        ValueError: ``soft_index`` does not have one dimension more than ``x``, or not n weights.

    Example:
        >>> import torch, fullgrad
        >>> weights = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        >>> fullgrad.soft.take_along_dim(torch.tensor([2.0, 4.0]), weights, 0)
        tensor([4., 3.])

    Source: ``softtorch.take_along_dim``.
    """
    x, soft_index, dim = _canonicalize_args("take_along_dim", x, soft_index, dim)
    if soft_index.ndim != x.ndim + 1:
        raise ValueError(f"take_along_dim: `soft_index` must have {x.ndim + 1} dimensions, got shape {tuple(soft_index.shape)}.")
    _check_weights("take_along_dim", soft_index, x.shape[dim])
    weights, rows = soft_index.movedim(dim, -2), x.movedim(dim, -1)
    if weights.ndim == 2 or surely(rows.shape[-1] < _MIN_LENGTH_OF_SUMS):
        return matmul(weights, rows.unsqueeze(-1)).squeeze(-1).movedim(-1, dim)
    # torch has no kernel for a batch of matrix-vector products: this takes a third of matmul's time.
    return torch.sum(weights * rows.unsqueeze(-2), -1).movedim(-1, dim)


def take(x: Tensor, soft_index: Tensor, dim: int | None = None) -> Tensor:
    r"""Weighted sums of ``x`` along a dimension, with the same weights at every batch position.

    .. math::
        z_{\dots k \dots} = \sum_n P_{k n}\, x_{\dots n \dots}, \qquad D_x = P, \quad D_P = x

    Saved: both inputs.

    Args:
        x: Shape (..., n, ...) with n at ``dim``.
        soft_index: Shape (k, n): the weights of each position.
        dim: The dimension of ``x`` that is indexed; None flattens ``x``.

    Returns:
        A tensor of shape (..., k, ...).

    Raises:
        TypeError: An argument is not a real tensor, or ``dim`` is not an integer.
        IndexError: ``x`` has no such dimension.
        ValueError: ``soft_index`` does not have the shape (k, n).

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.take(torch.tensor([[2.0, 4.0], [6.0, 0.0]]), torch.tensor([[0.5, 0.5]]), 1)
        tensor([[3.],
                [3.]])

    Source: ``softtorch.take``.
    """
    x, soft_index, dim = _canonicalize_args("take", x, soft_index, dim)
    if soft_index.ndim != 2:
        raise ValueError(f"take: `soft_index` must have the shape (k, n), got shape {tuple(soft_index.shape)}.")
    _check_weights("take", soft_index, x.shape[dim])
    return matmul(x.movedim(dim, -1), soft_index.mT).movedim(-1, dim)


def index_select(x: Tensor, soft_index: Tensor, dim: int, keepdim: bool = True) -> Tensor:
    r"""One weighted sum of ``x`` along a dimension.

    .. math::
        z_{\dots} = \sum_n p_n\, x_{\dots n \dots}, \qquad D_x = p, \quad D_p = x

    Saved: both inputs.

    Args:
        x: Shape (..., n, ...) with n at ``dim``.
        soft_index: Shape (n,): the weights.
        dim: The dimension of ``x`` that is indexed.
        keepdim: Whether the dimension stays, with size 1.

    Returns:
        A tensor of shape (..., 1, ...), or without that dimension.

    Raises:
        TypeError: An argument is not a real tensor, or ``dim`` is not an integer.
        IndexError: ``x`` has no such dimension.
        ValueError: ``soft_index`` does not have the shape (n,).

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.index_select(torch.tensor([[2.0, 4.0], [6.0, 0.0]]), torch.tensor([0.5, 0.5]), 1, keepdim=False)
        tensor([3., 3.])

    Source: ``softtorch.index_select``.
    """
    checks.flag("index_select", "keepdim", keepdim)
    x, soft_index, dim = _canonicalize_args("index_select", x, soft_index, dim)
    _check_vector("index_select", "soft_index", soft_index, x.shape[dim])
    z = matmul(x.movedim(dim, -1), soft_index)
    return z.unsqueeze(dim) if keepdim else z


def narrow(x: Tensor, soft_start: Tensor, length: int, dim: int = 0) -> Tensor:
    r"""A window of ``x`` along a dimension, cyclic, from a soft start.

    .. math::
        z_{\dots t \dots} = \sum_i p_i\, x_{\dots (i + t) \bmod n \dots}, \quad t = 0, \dots, \mathrm{length} - 1, \qquad D_x
        = p, \quad D_p = x

    Saved: ``x``, and the weights once for each position.

    Args:
        x: Shape (..., n, ...) with n at ``dim``.
        soft_start: Shape (n,): the weights of each start.
        length: The size of the window, from 1 to n.
        dim: The dimension of ``x`` that is narrowed.

    Returns:
        A tensor of shape (..., length, ...).

    Raises:
        TypeError: An argument is not a real tensor, or ``dim`` or ``length`` is not an integer.
        IndexError: ``x`` has no such dimension.
        ValueError: ``soft_start`` does not have the shape (n,), or ``length`` is out of range.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.narrow(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 0.5, 0.5]), 2)
        tensor([3.0000, 2.5000])

    Source: ``softtorch.narrow``.
    """
    x, soft_start, dim = _canonicalize_args("narrow", x, soft_start, dim, "soft_start")
    n = x.shape[dim]
    _check_vector("narrow", "soft_start", soft_start, n)
    length = checks.positive_integer("narrow", "length", length, n)

    def windows(x: Tensor, soft_start: Tensor) -> Tensor:
        place = torch.arange(n, device=x.device)
        circulant = soft_start[(place - place[:length, None]) % n]  # (t, j) is the weight of x at j for the position t
        return matmul(x.movedim(dim, -1), circulant.mT).movedim(-1, dim)

    return along_rows("narrow", windows, x, dim, soft_start)


def _canonicalize_args(
    name: str, x: Tensor, soft_index: Tensor, dim: int | None, argument: str = "soft_index"
) -> tuple[Tensor, Tensor, int]:
    """The tensors in one floating dtype, and the dimension counted from the front; ``x`` is flattened for ``dim=None``."""
    x, soft_index = checked_floating(name, "x", x), checked_floating(name, argument, soft_index)
    if dim is not None:
        checks.one_dim(name, dim, x.ndim)
    if dim is None or x.ndim == 0:
        x, dim = reshaped(x, (x.numel(),)), 0
    dtype = torch.promote_types(x.dtype, soft_index.dtype)
    return cast(x, dtype), cast(soft_index, dtype), dim % x.ndim


def _check_weights(name: str, soft_index: Tensor, n: int) -> None:
    if not holds(soft_index.shape[-1] == n):
        raise ValueError(
            f"{name}: `soft_index` must have {n} weights in its last dimension, got shape {tuple(soft_index.shape)}."
        )


def _check_vector(name: str, argument: str, value: Tensor, n: int) -> None:
    if not has_shape(value.shape, (n,)):
        raise ValueError(f"{name}: `{argument}` must have the shape ({n},), got shape {tuple(value.shape)}.")
