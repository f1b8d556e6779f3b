"""`cdist`: the distances of all pairs of rows, with derivative 0 where rows are equal."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import Function
from fullgrad._core.opmath import cast, to_opmath
from fullgrad._dispatch import holds
from fullgrad.safe._norm import _slope_times

# The number of differences that are computed at once, and at most how many parts a graph has.
_MOST, _PARTS = 2**22, 16


def cdist(x: Tensor, y: Tensor, ord: float = 2) -> Tensor:
    r"""The distances of all pairs of rows, with derivative 0 where two rows are equal.

    .. math::
        d_{ij} = \lVert x_i - y_j \rVert_p, \qquad D_{x_i} = -D_{y_j} =
        \begin{cases} \operatorname{sgn}(x_i - y_j)\, (|x_i - y_j| / d_{ij})^{p - 1} & d_{ij} \ne 0 \\ 0 & d_{ij} = 0 \end{cases}

    element by element. The value is that of :func:`torch.cdist` without its product of matrices, which loses half of the digits
    of a small distance. Derivatives are those of :func:`norm` of the differences, of every order; torch has no second one, and
    none in forward mode. Value and first derivatives need memory for the distances and some :math:`2^{22}` numbers, second ones
    for all differences. Half precision is computed in float32. Saved: ``x`` and ``y``.

    Args:
        x: Of shape (…, n, k), floating.
        y: Of shape (…, m, k), whose dimensions in front broadcast with those of ``x``.
        ord: The order p, not negative; it may be infinite.

    Returns:
        A tensor of shape (…, n, m).

    Raises:
        TypeError: ``x`` or ``y`` is not a floating tensor, or ``ord`` is not a number.
        ValueError: ``x`` or ``y`` has less than two dimensions, their last sizes differ, the others do not broadcast, or ``ord``
            is negative.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
        >>> fullgrad.safe.cdist(x, x)
        tensor([[0., 5.],
                [5., 0.]])
        >>> torch.func.grad(lambda x: fullgrad.safe.cdist(x, x.detach()).sum())(x)
        tensor([[-0.6000, -0.8000],
                [ 0.6000,  0.8000]])

    Source: :func:`torch.cdist`; its second derivative, as in https://github.com/pytorch/pytorch/issues/83510.
    """
    for name, value in (("x", x), ("y", y)):
        checks.real_tensor("cdist", name, value)
        checks.floating_tensor("cdist", name, value)
        if value.ndim < 2:
            raise ValueError(
                f"cdist: `{name}` must have rows, of shape (…, n, k), got shape {tuple(value.shape)}; write x[None]."
            )
    checks.real_number("cdist", "ord", ord)
    if not holds(ord >= 0):
        raise ValueError(f"cdist: `ord` must not be negative, got {ord}.")
    if not holds(x.shape[-1] == y.shape[-1]):
        raise ValueError(f"cdist: rows of `x` and `y` must have one size, got shapes {tuple(x.shape)} and {tuple(y.shape)}.")
    dtype = torch.promote_types(x.dtype, y.dtype)
    try:
        leading = checks.broadcast_shape(x.shape[:-2], y.shape[:-2])
    except RuntimeError as error:
        raise ValueError(
            f"cdist: dimensions before the rows must broadcast, got shapes {tuple(x.shape)} and {tuple(y.shape)}."
        ) from error
    x, y = [cast(v, dtype).expand(*leading, *v.shape[-2:]) for v in (x, y)]
    return Cdist.apply(x, y, ord)


class Cdist(Function):
    """The operator of :func:`cdist`, whose arguments have the same dimensions in front."""

    takes_zeros = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, ord: float) -> Tensor:
        wide, other = to_opmath(x, y)
        return cast(torch.cdist(wide, other, ord, "donot_use_mm_for_euclid_dist"), x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, y, ctx.ord = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y, _ = ctx.needs_input_grad
        (wide,), to_x, to_y = to_opmath(g), [], []
        for differences, part in _parts(x, y, wide):
            pulled = _slope_times(part.unsqueeze(-1), differences, ctx.ord, (differences.ndim - 1,))
            if needs_x:
                to_x.append(pulled.sum(-2))
            if needs_y:
                to_y.append(-pulled.sum(-3))
        of_x = cast(torch.cat(to_x, -2), x.dtype) if needs_x else None
        return of_x, cast(functools.reduce(torch.add, to_y), y.dtype) if needs_y else None, None

    @staticmethod
    def jvp(ctx: Any, t_x: Tensor, t_y: Tensor, _: None) -> Tensor:
        x, y = ctx.saved_tensors
        t_x, t_y = to_opmath(t_x, t_y)
        pushed = []
        for differences, part in _parts(x, y, t_x):
            t = part.unsqueeze(-2) - t_y.unsqueeze(-3)
            pushed.append(_slope_times(t, differences, ctx.ord, (differences.ndim - 1,)).sum(-1))
        return cast(torch.cat(pushed, -2), x.dtype)

    @classmethod
    def dim_labels(cls, x: Tensor, y: Tensor, ord: float) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The rows are never split."""
        leading = tuple(range(x.ndim - 2))
        return [(*leading, None, None), (*leading, None, None), ()], (*leading, None, None)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor, ord: float) -> Any:
        x, y = [
            v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0) for v, d in zip((x, y), in_dims, strict=False)
        ]
        return cls.apply(x, y, ord), 0


def _parts(x: Tensor, y: Tensor, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The differences of some rows of ``x`` from all of ``y``, with these rows of another tensor."""
    x, y = to_opmath(x, y)
    size, n = y.numel(), x.shape[-2]
    # Sizes that a graph does not know are not split.
    most = max(_MOST // size, -(-n // _PARTS)) if isinstance(size * n, int) and size * n > _MOST else n
    for part, other in zip(x.split(most, -2), rows.split(most, -2), strict=True):
        yield part.unsqueeze(-2) - y.unsqueeze(-3), other
