"""Soft logic on truth values in [0, 1]: products and means, with torch's own derivatives, which are right everywhere."""

from collections.abc import Callable

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast, to_opmath
from fullgrad._core.shards import along_rows
from fullgrad.clamping import clamp
from fullgrad.soft._relaxation import checked_floating


def logical_not(x: Tensor) -> Tensor:
    r"""Soft negation.

    .. math::
        y = 1 - x, \qquad D_x = -1

    Nothing is saved.

    Args:
        x: Soft truth values in [0, 1], any shape; floating, or integer (which gives the default dtype).

    Returns:
        A tensor of the shape of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.logical_not(torch.tensor([0.0, 0.3]))
        tensor([1.0000, 0.7000])

    Source: ``softtorch.logical_not``.
    """
    return 1 - checked_floating("logical_not", "x", x)


def logical_and(x: Tensor, y: Tensor, use_geometric_mean: bool = False) -> Tensor:
    r"""Soft conjunction: the product, or its square root.

    .. math::
        z = x y, \qquad D_x = y, \quad D_y = x \qquad\text{or}\qquad z = \sqrt{x y}

    For the geometric mean, truth values below 1e-10 are replaced by 1e-10, with the derivative 0. Saved: ``x`` and ``y``; for the
    mean two more numbers per element.

    Args:
        x: Soft truth values in [0, 1], any shape; floating, or integer (which gives the default dtype).
        y: Soft truth values that broadcast with ``x``.
        use_geometric_mean: Whether the root is taken.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` or ``y`` is not a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.logical_and(torch.tensor([0.5, 1.0]), torch.tensor([0.5, 0.2]))
        tensor([0.2500, 0.2000])

    Source: ``softtorch.logical_and``.
    """
    checks.flag("logical_and", "use_geometric_mean", use_geometric_mean)
    x, y = checked_floating("logical_and", "x", x), checked_floating("logical_and", "y", y)
    if not use_geometric_mean:
        return x * y
    return _in_opmath(_and, x, y, True)


def logical_or(x: Tensor, y: Tensor, use_geometric_mean: bool = False) -> Tensor:
    r"""Soft disjunction: :func:`logical_and` of the negations, negated.

    .. math::
        z = x + y - x y, \qquad D_x = 1 - y, \quad D_y = 1 - x \qquad\text{or}\qquad z = 1 - \sqrt{(1 - x)(1 - y)}

    Saved: ``x`` and ``y``; for the mean four numbers per element.

    Args:
        x: Soft truth values in [0, 1], any shape; floating, or integer (which gives the default dtype).
        y: Soft truth values that broadcast with ``x``.
        use_geometric_mean: Whether the root is taken.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` or ``y`` is not a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.logical_or(torch.tensor([0.5, 1.0]), torch.tensor([0.5, 0.2]))
        tensor([0.7500, 1.0000])

    Source: ``softtorch.logical_or``.
    """
    checks.flag("logical_or", "use_geometric_mean", use_geometric_mean)
    x, y = checked_floating("logical_or", "x", x), checked_floating("logical_or", "y", y)
    return _in_opmath(_or, x, y, use_geometric_mean)


def logical_xor(x: Tensor, y: Tensor, use_geometric_mean: bool = False) -> Tensor:
    r"""Soft exclusive disjunction: x and not y, or y and not x.

    .. math::
        z = a + b - a b, \quad a = x (1 - y), \quad b = (1 - x)\, y, \qquad D_x = (1 - y)(1 - b) - y\,(1 - a)

    or the same of :func:`logical_and` and :func:`logical_or` with geometric means. The value is not x + y - 2xy. Saved: a few
    numbers per element.

    Args:
        x: Soft truth values in [0, 1], any shape; floating, or integer (which gives the default dtype).
        y: Soft truth values that broadcast with ``x``.
        use_geometric_mean: Whether the roots are taken.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` or ``y`` is not a real tensor.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.logical_xor(torch.tensor([0.5, 1.0]), torch.tensor([0.5, 0.2]))
        tensor([0.4375, 0.8000])

    Source: ``softtorch.logical_xor``.
    """
    checks.flag("logical_xor", "use_geometric_mean", use_geometric_mean)
    x, y = checked_floating("logical_xor", "x", x), checked_floating("logical_xor", "y", y)
    return _in_opmath(_xor, x, y, use_geometric_mean)


def all(x: Tensor, dim: int = -1, epsilon: float = 1e-10, use_geometric_mean: bool = False) -> Tensor:
    r"""Soft conjunction along a dimension: the product, or the geometric mean.

    .. math::
        y = \prod_i x_i, \qquad D_{x_i} = \prod_{j \ne i} x_j \qquad\text{or}\qquad
        y = \Big(\prod_i \max(x_i, \epsilon)\Big)^{1/n}, \qquad D_{x_i} = \frac{y}{n\, x_i}

    Saved: ``x`` and the value; for the mean a few numbers per element. On a device the host waits for torch's gradient of a
    product, which counts zeros.

    Args:
        x: Soft truth values in [0, 1], any shape; floating, or integer (which gives the default dtype).
        dim: The dimension that is reduced.
        epsilon: The smallest factor of the mean: it replaces smaller ones.
        use_geometric_mean: Whether the mean is taken.

    Returns:
        A tensor of the shape of ``x`` without ``dim``.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``dim`` is not an integer.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.all(torch.tensor([[0.5, 0.5, 1.0], [1.0, 1.0, 1.0]]))
        tensor([0.2500, 1.0000])

    Source: ``softtorch.all``.
    """
    x = checked_floating("all", "x", x)
    checks.one_dim("all", dim, x.ndim)
    checks.flag("all", "use_geometric_mean", use_geometric_mean)
    checks.non_negative_number("all", "epsilon", epsilon)
    return cast(_all(to_opmath(x)[0], dim, epsilon, True), x.dtype) if use_geometric_mean else _all(x, dim)


def _all(x: Tensor, dim: int, epsilon: float = 1e-10, mean: bool = False) -> Tensor:
    if mean:
        return torch.exp(torch.log(_at_least(x, epsilon)).mean(dim))
    # torch's derivative of a product mixes plain tensors with distributed ones.
    return along_rows("all", lambda x: torch.prod(x, dim), x, dim, keeps_dim=False) if x.ndim else torch.prod(x, dim)


def any(x: Tensor, dim: int = -1, use_geometric_mean: bool = False) -> Tensor:
    r"""Soft disjunction along a dimension: :func:`all` of the negations, negated.

    .. math::
        y = 1 - \prod_i (1 - x_i), \qquad D_{x_i} = \prod_{j \ne i} (1 - x_j)

    or the same with the geometric mean. Saved: 1 - ``x`` and its product; for the mean a few numbers per element. On a device the
    host waits as in :func:`all`.

    Args:
        x: Soft truth values in [0, 1], any shape; floating, or integer (which gives the default dtype).
        dim: The dimension that is reduced.
        use_geometric_mean: Whether the mean is taken.

    Returns:
        A tensor of the shape of ``x`` without ``dim``.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``dim`` is not an integer.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.any(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]))
        tensor([0.7500, 0.0000])

    Source: ``softtorch.any``.
    """
    x = checked_floating("any", "x", x)
    checks.one_dim("any", dim, x.ndim)
    checks.flag("any", "use_geometric_mean", use_geometric_mean)
    return cast(1 - _all(1 - to_opmath(x)[0], dim, mean=use_geometric_mean), x.dtype)


def _and(x: Tensor, y: Tensor, mean: bool) -> Tensor:
    # The product of roots, as the root of a product loses small numbers.
    return torch.sqrt(_at_least(x, 1e-10)) * torch.sqrt(_at_least(y, 1e-10)) if mean else x * y


def _or(x: Tensor, y: Tensor, mean: bool) -> Tensor:
    return 1 - _and(1 - x, 1 - y, True) if mean else torch.lerp(x, x.new_ones(()), y)  # x + y (1 - x) in one pass


def _xor(x: Tensor, y: Tensor, mean: bool) -> Tensor:
    return _or(_and(x, 1 - y, mean), _and(1 - x, y, mean), mean)


def _in_opmath(formula: Callable[[Tensor, Tensor, bool], Tensor], x: Tensor, y: Tensor, mean: bool) -> Tensor:
    """A formula of several steps, each of which would be rounded in half precision, in the dtype of the result."""
    dtype = x.dtype if x.dtype == y.dtype else torch.result_type(x, y)
    x, y = to_opmath(cast(x, dtype), cast(y, dtype))
    return cast(formula(x, y, mean), dtype)


def _at_least(x: Tensor, epsilon: float) -> Tensor:
    """``max(x, epsilon)``, which has a logarithm; the smallest number replaces an epsilon of 0."""
    numbers = torch.finfo(x.dtype)
    return clamp(x, max(epsilon, numbers.tiny * numbers.eps), None)
