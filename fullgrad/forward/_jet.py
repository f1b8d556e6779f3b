"""`jet` and `taylor`: derivatives of any order along a curve."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core import checks
from fullgrad._dispatch import outside_dynamo_later, pytree
from fullgrad.forward import _rules as _rules  # by which curves compute
from fullgrad.forward._curve import along_curves, is_curve


def jet(f: Callable[..., Any], primals: Sequence[Any], series: Sequence[Any]) -> tuple[Any, Any]:
    r"""The value of a function and its derivatives along a curve, of every order up to K, in one pass: Taylor mode.

    .. math::
        x(t) = x_0 + x_1 t + x_2 \frac{t^2}{2} + \dots + x_K \frac{t^K}{K!}, \qquad
        y_k = \frac{d^k}{dt^k} f(x(t)) \Big|_{t = 0}

    The series hold derivatives, not Taylor coefficients. Nested `torch.func.jvp` costs :math:`2^K` of ``f``, this some
    :math:`K^2`: linear functions act on each part, products by Leibniz' rule, elementwise functions by Faa di Bruno's, and every
    other function of torch by nested `jvp` of that one call. An operator of this package has the derivatives that it declares:
    its jet of order k is that of order k - 1 of its tangent. The result can be differentiated. ``f`` is ordinary code, as for
    :func:`laplacian`.

    Args:
        f: A function.
        primals: Its arguments, a tuple; each is a floating tensor or a structure of them.
        series: For each argument its derivatives :math:`x_1, \dots, x_K`, a list of K tensors; in the place of each tensor of a
            structure such a list.

    Returns:
        The pair of the value, and its structure with a list of K tensors in the place of each tensor.

    Raises:
        TypeError: ``f`` is not callable, ``primals`` or ``series`` is not a tuple or list, or a tensor is not floating.
        ValueError: The lists differ in length; a derivative has another shape than its tensor.

    Example:
        >>> import torch, fullgrad
        >>> x, one, zero = torch.tensor(1.0), torch.tensor(1.0), torch.tensor(0.0)
        >>> fullgrad.forward.jet(lambda x: x ** 3, (x,), ([one, zero, zero],))
        (tensor(1.), [tensor(3.), tensor(6.), tensor(6.)])

    Source: ``jax.experimental.jet``; Griewank, Walther, Evaluating Derivatives (2008), chapter 13; Bettencourt, Johnson,
    Duvenaud, Taylor-mode automatic differentiation (2019).
    """
    checks.function("jet", "f", f)
    if is_dynamo_compiling():
        return _outside[0](f, primals, series)
    for name, value in (("primals", primals), ("series", series)):
        if not isinstance(value, (tuple, list)):
            raise TypeError(f"jet: `{name}` must be a tuple or list, got a value of type {type(value).__name__}.")
    if len(primals) != len(series):
        raise ValueError(f"jet: `series` must have a list for each of {len(primals)} arguments, got {len(series)}.")
    leaves, spec = pytree.tree_flatten(tuple(primals))
    given = spec.flatten_up_to(tuple(series))
    order = _checked("jet", leaves, given)
    value, *derivatives, structure = _along(f, leaves, spec, [[s[k] for s in given] for k in range(order)])
    return (
        pytree.tree_unflatten(value, structure),
        pytree.tree_unflatten([[d[i] for d in derivatives] for i in range(len(value))], structure),
    )


_REASON = "{} runs outside of compiled code: `fullgraph=True` has no derivatives along curves"
_outside = outside_dynamo_later(jet, _REASON.format("jet"))


def taylor(f: Callable[..., Any], x: Any, direction: Any, order: int) -> list[Any]:
    r"""The derivatives of ``f`` along a direction, of the orders 0 to ``order``.

    .. math::
        y_k = \frac{d^k}{dt^k} f(x + t v) \Big|_{t = 0}, \qquad k = 0, \dots, K

    :func:`jet` along a straight line. Several directions are a dimension of `torch.func.vmap`.

    Args:
        f: A function of one argument.
        x: A floating tensor, or a structure of them.
        direction: The direction v, of the structure and shapes of x.
        order: The highest order K, 0 or more.

    Returns:
        A list of the value and K derivatives, each of which has the structure of the value.

    Raises:
        TypeError: ``f`` is not callable; a tensor is not floating; ``order`` is not an integer.
        ValueError: ``direction`` is not like x; ``order`` is negative.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.forward.taylor(torch.exp, torch.tensor(0.0), torch.tensor(2.0), 3)
        [tensor(1.), tensor(2.), tensor(4.), tensor(8.)]

    Source: as of :func:`jet`.
    """
    checks.function("taylor", "f", f)
    if is_dynamo_compiling():
        return _taylor_outside[0](f, x, direction, order)
    if isinstance(order, bool) or checks.as_integer(order) is None:
        raise TypeError(f"taylor: `order` must be an integer, got a value of type {type(order).__name__}.")
    if order < 0:
        raise ValueError(f"taylor: `order` must be 0 or more, got {order}.")
    leaves, spec = pytree.tree_flatten((x,))
    given, other = pytree.tree_flatten((direction,))
    if other != spec:
        raise ValueError(f"taylor: `direction` must have the structure of `x`, {spec}, got {other}.")
    _checked("taylor", leaves, [[v] for v in given])
    series = [given, *[[None] * len(given)] * (order - 1)] if order else []
    *found, structure = _along(f, leaves, spec, series)
    return [pytree.tree_unflatten(y, structure) for y in found]


_taylor_outside = outside_dynamo_later(taylor, _REASON.format("taylor"))


def _along(f: Callable[..., Any], leaves: list[Tensor], spec: Any, series: list[list[Tensor]]) -> list[Any]:
    """The leaves of the value and of each derivative, and the structure."""
    found: list[Any] = []

    def flat(*tensors: Any) -> list[Any]:
        results, structure = pytree.tree_flatten(f(*pytree.tree_unflatten(list(tensors), spec)), is_leaf=is_curve)
        found[:] = [structure]
        return results

    parts = along_curves(flat, leaves, series, shared=False) if series else [flat(*leaves)]
    return [*parts, *found]


def _checked(name: str, leaves: list[Any], series: list[Any]) -> int:
    """The order of derivatives that fit their tensors."""
    orders = set()
    for x, derivatives in zip(leaves, series, strict=True):
        checks.floating_tensor(name, "primals" if name == "jet" else "x", x)
        if not isinstance(derivatives, (list, tuple)):
            found = type(derivatives).__name__
            raise TypeError(f"{name}: `series` must have a list for each tensor, got a value of type {found}.")
        orders.add(len(derivatives))
        for v in derivatives:
            checks.floating_tensor(name, "series" if name == "jet" else "direction", v)
            if v.shape != x.shape:
                shapes = f"{tuple(x.shape)}, got {tuple(v.shape)}"
                raise ValueError(f"{name}: a derivative must have the shape of its tensor, {shapes}.")
    if len(orders) != 1:
        raise ValueError(f"{name}: the lists of `series` must have one length, got {sorted(orders)}.")
    return orders.pop()
