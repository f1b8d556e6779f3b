"""`finite_difference`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.batching import numel_with_batches
from fullgrad._core.opmath import cast
from fullgrad._dispatch import of_one_instance, surely
from fullgrad._engine.blackbox import Code, point
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.node import one_node
from fullgrad._engine.random_states import restore_random_states, untraced_random_states
from fullgrad._engine.rule import Maybe, Rule, declared


@of_one_instance
@one_node
def finite_difference(
    f: Callable[[Tensor], Any],
    x: Tensor,
    step: float | None = None,
    *,
    vmap_method: str = "sequential",
    like: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    r"""A function of any code, with central differences as derivative.

    .. math::
        y = f(x), \qquad \mathrm{jvp}(t) = \frac{f(x + s t) - f(x - s t)}{2 s}, \qquad
        \mathrm{vjp}(g)_j = \Bigl\langle g, \frac{f(x + h_j e_j) - f(x - h_j e_j)}{2 h_j} \Bigr\rangle

    where s is the largest number that moves no element by more than its step. A tangent takes two calls of f, and a gradient two
    for each element of x, however many outputs there are: forward mode is the cheaper one, by `torch.func.jvp` or `jacfwd`. The
    points of a gradient are made and evaluated in pieces of at most 64 MiB, so that its memory grows with n and not with its
    square, unless the gradient is differentiated itself. A tangent's
    elements should be of one size: where they are not, the step of the smallest moves large ones by less than they can be
    rounded to; take a gradient, or the tangent of each element alone. The
    error is of the order :math:`h^2`, and that of rounding of the order :math:`\epsilon / h`. Higher derivatives are differences
    of differences, each with its own error; for the second, a step of :math:`\epsilon^{1/4}` times the scale of x is better.
    Saved: ``x``.

    Args:
        f: A function of one tensor, any code, which gets tensors without a derivative and returns one tensor, array or number, of
            any shape. It gets float32 in place of half precision. One that draws random numbers gets the same ones at all points
            of a difference, from torch's generators.
        x: Any shape; floating.
        step: The step h, positive; None for :math:`h_j = \epsilon^{1/3} \max(1, |x_j|)` with the precision
            :math:`\epsilon` of the dtype that f gets.
        vmap_method: How f is called for a batch, as in :func:`perturbed`; a piece of the points of a gradient is one.
        like: As in :func:`perturbed`.

    Returns:
        A tensor of the shape of the result of f, and the dtype of ``x``.

    Raises:
        TypeError: ``f`` is not callable or returns no numbers, ``x`` is not a floating tensor, or ``step`` is not a number.
        ValueError: ``step`` is not positive, ``vmap_method`` is another string, or a result lacks the dimensions in front.
        RuntimeError: ``f`` changes its argument in place, or uses another tensor that needs a derivative.

    Example:
        >>> import numpy, torch, fullgrad
        >>> def f(x):
        ...     return numpy.array([x[0] * x[1], numpy.sin(x[1])])
        >>> x = torch.tensor([2.0, 3.0], dtype=torch.float64)
        >>> torch.func.jacfwd(lambda x: fullgrad.blackbox.finite_difference(lambda x: f(x.numpy()), x))(x)
        tensor([[ 3.0000,  2.0000],
                [ 0.0000, -0.9900]], dtype=torch.float64)

    Source: central differences; the step is that of ``scipy.optimize.approx_fprime``'s three-point rule.
    """
    name = "finite_difference"
    code = Code(name, "f", f, vmap_method, like)
    wide = point(name, x)
    if step is not None:
        checks.positive_number(name, "step", step)
    return cast(_at(code, wide, step, None), x.dtype)


def _at(code: Code, x: Tensor, step: float | None, held: Sequence[Tensor] | None) -> Tensor:
    """The function at a point, with the derivative of differences, which call this function."""
    if held is None:
        y, held = code.first(x.detach().clone())  # code of another library may write to it
    else:
        y = code.again(x.detach().clone(), [t.detach() for t in held])
    if not is_differentiated([x]):
        return y

    def values(points: Tensor, held: Sequence[Tensor]) -> Tensor:
        return torch.func.vmap(lambda x: _at(code, x, step, held), randomness="same")(points)

    def pull(inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        x, *held = inputs
        (g,), n = cotangents, x.numel()
        steps, pieces, along = _steps(x, step), _pieces(n, x, g), []
        before = untraced_random_states() if len(pieces) > 1 else []
        for start, stop in pieces:
            restore_random_states(before)  # all pieces get the same draws
            places = torch.arange(start, stop, device=x.device)
            moves = torch.where(torch.arange(n, device=x.device) == places.unsqueeze(-1), steps.reshape(-1), 0)
            moves = moves.reshape(stop - start, *x.shape)
            y = values(torch.cat([x + moves, x - moves]), held)
            change = y[: stop - start] - y[stop - start :]
            along.append((change * g).reshape(stop - start, math.prod(change.shape[1:])).sum(-1))
        widths = ((x + steps) - (x - steps)).detach()
        return [torch.cat(along).reshape(x.shape) / widths, *[None] * len(held)]

    def push(inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        x, *held = inputs
        t = tangents[0]
        assert t is not None
        # The tangent in a unit in which its largest element is 1, and then in one in which it is a step.
        unit = _largest(t)
        t = t / unit
        s = _largest(t / _steps(x, step))
        points = torch.stack([x + t / s, x - t / s])
        y = values(points, held)
        # How far the points are apart along t, in steps, as they are rounded.
        moved, along = ((v / _steps(x, step)).detach() for v in (points[0] - points[1], t / s))
        square = (along * along).sum()
        return [(y[0] - y[1]) * s / torch.where(square > 0, (moved * along).sum() / square, 1) * unit]

    return declared(Rule(pull, push), [y], [x, *held])[0]


# The most bytes of the points, and of the values at them, of a piece of a gradient.
_PIECE = 2**26


def _pieces(n: int, x: Tensor, y: Tensor) -> list[tuple[int, int]]:
    """The elements that are moved together: all, or as many as have their points and values in a memory that is bounded."""
    # A point and its value, on both sides, with as many temporaries.
    column = 4 * (numel_with_batches(x) + numel_with_batches(y)) * x.dtype.itemsize
    if not surely(n * column > _PIECE):  # nor is a size that depends on data
        return [(0, n)]
    size = max(_PIECE // column, 1)
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def _largest(t: Tensor) -> Tensor:
    """The largest absolute value, or 1 of zeros, without a derivative."""
    found = torch.cat([t.detach().abs().reshape(-1), t.new_zeros(1)]).amax()
    return torch.where(found == 0, 1, found)


def _steps(x: Tensor, step: float | None) -> Tensor:
    """The step of each element."""
    x = x.detach()
    if step is not None:
        return torch.full_like(x, step)
    return torch.finfo(x.dtype).eps ** (1 / 3) * x.abs().clamp(min=1)
