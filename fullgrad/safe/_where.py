"""`where`: a choice between two functions, each of which sees arguments of its own alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.shards import elementwise_code
from fullgrad._dispatch import check_devices, surely


def where(condition: Any, f: Callable[..., Any], g: Callable[..., Any], *xs: Any) -> Tensor:
    r"""The elements of ``f(*xs)`` where a condition is true, else of ``g(*xs)``, with the derivative of the chosen one alone.

    .. math::
        y_i = \begin{cases} f(x_i) & c_i \\ g(x_i) & \text{otherwise} \end{cases}, \qquad
        D_i = \begin{cases} f'(x_i) & c_i \\ g'(x_i) & \text{otherwise} \end{cases}

    :func:`torch.where` of ``f(x)`` and ``g(x)`` has the same value, but its gradient is NaN where the function that is *not*
    chosen has an infinite or undefined derivative, as :math:`0 \cdot \infty` is NaN. Here each function sees, in place of the
    elements that are not its own, the first element that is: a point at which it is evaluated anyway, so that nothing new can go
    wrong in it. Derivatives of every order follow, and also those of tensors that a function closes over. If no element is a
    function's own (in a sample, under ``vmap``), it sees 0.5, or 1 in integers. Its derivative there has no effect on ``xs``,
    whatever it is; a tensor that the function closes over gets 0 times that derivative, so pass it among ``xs`` if the function
    is singular at 0.5.

    ``f`` and ``g`` treat every element alike: element i of the result depends on elements i of their arguments, which have the
    broadcast shape. A function that mixes elements, such as a sum or a matrix product, would mix in the replaced ones. Both are
    called once, whatever the condition is. At a singular point of its own a function has its own derivative: use
    :func:`fullgrad.safe.sqrt` and its neighbors there. Saved: ``condition``, and what the functions save of their arguments.

    Args:
        condition: A bool tensor.
        f: A function of tensors as many as ``xs``, which returns a tensor or a number.
        g: The other function.
        xs: At least one real tensor; all broadcast with ``condition``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``condition`` is not a bool tensor, an element of ``xs`` is not a real tensor, or ``f`` or ``g`` is not a
            function or returns neither a tensor nor a number.
        ValueError: ``xs`` is empty, or a function returns a shape that does not broadcast to that of its arguments.
        NotImplementedError: An argument is a nested tensor.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([0.0, 4.0])
        >>> torch.func.grad(lambda x: torch.where(x > 0, torch.log(x), x).sum())(x)
        tensor([   nan, 0.2500])
        >>> torch.func.grad(lambda x: fullgrad.safe.where(x > 0, torch.log, lambda x: x, x).sum())(x)
        tensor([1.0000, 0.2500])

    Source: the "double where" of JAX's FAQ, at a point that is in the function's domain.
    """
    checks.bool_tensor("where", "condition", condition)
    checks.function("where", "f", f)
    checks.function("where", "g", g)
    if not xs:
        raise ValueError("where: `xs` must have at least one tensor, got none: torch.where chooses between constants.")
    for k, x in enumerate(xs):
        checks.real_tensor("where", f"xs[{k}]", x)
    check_devices("where", ["condition", *[f"xs[{k}]" for k in range(len(xs))]], (condition, *xs))
    if any(t.is_nested for t in (condition, *xs)):
        raise NotImplementedError("where: nested tensors are not supported: call it on their buffers, x.values().")

    def chosen(condition: Tensor, *xs: Tensor) -> Tensor:
        condition, *xs = torch.broadcast_tensors(condition, *xs)  # pyright: ignore[reportAssignmentType]
        return torch.where(condition, _branch("f", f, condition, xs), _branch("g", g, ~condition, xs))

    return elementwise_code("where", chosen, condition, *xs)


def _branch(name: str, function: Callable[..., Any], own: Tensor, xs: Any) -> Any:
    """A function of its own elements, and of the first of these in place of the others."""
    y = function(*[torch.where(own, x, fill) for x, fill in zip(xs, _fills(own, xs), strict=True)])
    if isinstance(y, Tensor):
        checks.broadcasts_to("where", f"{name}(*xs)", y, "its arguments", own.shape)
    else:
        checks.real_number_or_tensor("where", f"{name}(*xs)", y)
    return y


def _fills(own: Tensor, xs: Any) -> list[Any]:
    """The first of a function's own elements, in every argument."""
    constants = [0.5 if x.is_floating_point() else 1 for x in xs]
    if surely(own.numel() == 0):
        return constants
    flat = own.reshape(-1)
    first, found = flat.to(torch.uint8).argmax(0, keepdim=True), flat.any()
    elements = [x.detach().reshape(-1).gather(0, first).reshape(()) for x in xs]
    return [torch.where(found, element, constant) for element, constant in zip(elements, constants, strict=True)]
