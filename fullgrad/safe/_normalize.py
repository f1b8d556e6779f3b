"""`normalize`: vectors divided by their norms, with value and derivative 0 at vectors of zeros."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast, to_opmath
from fullgrad._core.shards import along_rows
from fullgrad._dispatch import surely
from fullgrad.safe._norm import Dim, Norm, _dims_of, _in_unit


def normalize(x: Tensor, ord: float = 2, dim: Dim = -1) -> Tensor:
    r"""Vectors along some dimensions divided by their norms, with value and derivative 0 at vectors of zeros.

    .. math::
        y = \frac{x}{\lVert x \rVert_p}, \qquad D = \frac{1}{\lVert x \rVert_p} \bigl(I - y\, n^\top\bigr), \qquad
        n = \frac{\partial \lVert x \rVert_p}{\partial x}

    and 0 where x is 0, at every order. There is no smallest divisor: a vector of tiny or huge numbers has the norm 1, too, where
    :func:`torch.nn.functional.normalize` divides by 1e-12, which in float16 is 0, or by a norm that overflowed, and has the
    derivative 1e12 at 0. Elsewhere the value is torch's, bit for bit with ``ord=2``. A vector with an infinity or NaN has NaN, as
    torch's. Derivatives of every order are the true ones where ``x`` is not 0. Half precision is computed in float32. Saved:
    numbers of each element.

    Args:
        x: Any shape, floating.
        ord: The order p of the norm, positive; it may be infinite.
        dim: The dimensions of a vector, an integer or several; None for all.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a floating tensor, ``ord`` is not a number, or ``dim`` is not an integer or several.
        IndexError: ``x`` has no such dimension.
        ValueError: ``ord`` is not positive, or ``dim`` is empty or names a dimension twice.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> fullgrad.safe.normalize(x)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
        >>> torch.func.grad(lambda x: fullgrad.safe.normalize(x)[:, 0].sum())(x)
        tensor([[ 0.1280, -0.0960],
                [ 0.0000,  0.0000]])

    Source: :func:`torch.nn.functional.normalize`.
    """
    checks.real_tensor("normalize", "x", x)
    checks.floating_tensor("normalize", "x", x)
    checks.positive_number("normalize", "ord", ord, finite=False)
    checks.dim("normalize", dim, x.ndim)
    dims = _dims_of(dim, x.ndim)

    def unit(x: Tensor) -> Tensor:
        (wide,) = to_opmath(x)
        if not x.ndim:
            return cast(unit_vectors(wide.unsqueeze(0), ord, dims).squeeze(0), x.dtype)
        return cast(unit_vectors(wide, ord, dims), x.dtype)

    return along_rows("normalize", unit, x, dims)


def unit_vectors(x: Tensor, ord: float, dims: tuple[int, ...]) -> Tensor:
    """Vectors divided by their norms, 0 for vectors of zeros."""
    is_zero = (x == 0).all(dims, keepdim=True)
    # A constant factor that is a power of two changes neither the value nor the derivative. For zeros it is the largest one.
    if not surely(x.numel() == 0):
        x = torch.where(is_zero, 0, _in_unit(x, ord, dims))
    return torch.where(is_zero, 0, x / torch.where(is_zero, 1, Norm.apply(x, ord, dims)))
