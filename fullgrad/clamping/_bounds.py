"""`lower_bound` and `upper_bound`: one bound, with a choice of the gradient beyond it."""

from typing import Any, Literal

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.batching import elementwise
from fullgrad._core.function import Function
from fullgrad._core.recomputed import save_inputs, saved_inputs
from fullgrad.clamping._clamp import Clamp

Beyond = Literal["toward", "inside", "identity"]
GRADIENTS = ("toward", "inside", "identity")


def lower_bound(x: Tensor, bound: Tensor | float, gradient: Beyond = "toward") -> Tensor:
    r"""The larger of ``x`` and a bound, with a gradient below the bound wherever a descent step would lead back above it.

    .. math::
        y = \max(x, b), \qquad \mathrm{vjp}_x(g) = g\,[\,x \ge b \text{ or } g < 0\,], \qquad
        \mathrm{jvp}(t) = t_x\,[\,x \ge b\,] + t_b\,[\,x < b\,], \qquad \mathrm{vjp}_b(g) = g\,[\,x < b\,]

    for ``gradient="toward"``. Below the bound a negative gradient passes, by which gradient descent raises ``x``, and a positive
    one is 0, so that ``x`` neither stays behind the bound for ever, as with a clamp, nor moves farther away, as with a
    straight-through gradient. That map depends on the sign of the gradient and is not linear, so it is the transpose of no
    tangent map: ``jvp`` is the true derivative, and double backward differentiates the map as it is, so that the mask is a
    constant. The sign is that of the gradient where it arrives: a loss that is maximized has the other one. Under ``vmap`` the
    sign is that of each sample's gradient. A NaN gradient passes.

    With ``"inside"`` the derivative is that of :func:`fullgrad.clamp`, :math:`D_x = [\,x \ge b\,]`, and with ``"identity"`` it is
    straight-through, :math:`D_x = 1`; both are linear, and forward mode has the same. A bound that is a tensor learns from the
    elements below it in each of the three, as in :func:`fullgrad.clamp`; give ``bound.detach()`` for a constant. On the bound
    ``x`` counts as inside. A NaN in ``x`` or in ``bound`` gives NaN and, but for ``"identity"``, no gradient. Higher derivatives
    are 0. Saved: ``x``, and ``bound`` if it is a tensor; nothing beyond inputs.

    Args:
        x: Any shape; floating, or integer (a floating bound gives the default dtype).
        bound: A number, rounded to the dtype of ``x``, or a tensor that broadcasts with ``x``, in the unit of ``x``.
        gradient: The gradient of ``x`` below the bound: ``"toward"``, ``"inside"`` or ``"identity"``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``bound`` is neither a number nor a real tensor.
        ValueError: ``gradient`` is another string.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-2.0, -1.0, 3.0])
        >>> target = torch.tensor([5.0, -5.0, 5.0])  # above the bound, below it, above it
        >>> torch.func.grad(lambda x: ((fullgrad.lower_bound(x, 0.0) - target) ** 2).sum())(x)
        tensor([-10.,   0.,  -4.])

    Source: ``compressai.ops.LowerBound``; ``tensorflow_compression.lower_bound``, whose ``"identity_if_towards"``,
    ``"disconnected"`` and ``"identity"`` are ``"toward"``, ``"inside"`` and ``"identity"``.
    """
    _check("lower_bound", x, bound, gradient)
    return Clamp.apply(x, bound, None) if gradient == "inside" else LowerBound.apply(x, bound, gradient)


def upper_bound(x: Tensor, bound: Tensor | float, gradient: Beyond = "toward") -> Tensor:
    r"""The smaller of ``x`` and a bound, with a gradient above the bound wherever a descent step would lead back below it.

    .. math::
        y = \min(x, b), \qquad \mathrm{vjp}_x(g) = g\,[\,x \le b \text{ or } g > 0\,], \qquad
        \mathrm{jvp}(t) = t_x\,[\,x \le b\,] + t_b\,[\,x > b\,], \qquad \mathrm{vjp}_b(g) = g\,[\,x > b\,]

    for ``gradient="toward"``; ``"inside"`` and ``"identity"``, NaN, tensors as bounds and double backward are as in
    :func:`lower_bound`, whose mirror image this is. Saved: ``x``, and ``bound`` if it is a tensor; nothing beyond inputs.

    Args:
        x: Any shape; floating, or integer (a floating bound gives the default dtype).
        bound: A number, rounded to the dtype of ``x``, or a tensor that broadcasts with ``x``, in the unit of ``x``.
        gradient: The gradient of ``x`` above the bound: ``"toward"``, ``"inside"`` or ``"identity"``.

    Returns:
        A tensor of the broadcast shape.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``bound`` is neither a number nor a real tensor.
        ValueError: ``gradient`` is another string.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([2.0, 1.0, -3.0])
        >>> torch.func.grad(lambda x: fullgrad.upper_bound(x, 1.5).sum())(x)  # each step lowers x
        tensor([1., 1., 1.])
        >>> torch.func.grad(lambda x: -fullgrad.upper_bound(x, 1.5).sum())(x)  # the first may not rise
        tensor([ 0., -1., -1.])

    Source: ``tensorflow_compression.upper_bound``.
    """
    _check("upper_bound", x, bound, gradient)
    return Clamp.apply(x, None, bound) if gradient == "inside" else UpperBound.apply(x, bound, gradient)


class OneBound(Function):
    """One bound. A map of the cotangent that depends on its sign is the transpose of no tangent map: the rules differ."""

    recompute_in_backward = True
    is_linear = False
    whole_dims = 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save_inputs(ctx, inputs)
        ctx.shape, ctx.dtype = output.shape, output.dtype

    @classmethod
    def vjp(cls, ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, bound, gradient = saved_inputs(ctx)
        needs_x, needs_bound, _ = ctx.needs_input_grad
        if gradient == "toward":
            passes = cls.inside(x, bound) | (cls.beyond(x, bound) & cls.leads_back(g))
            of_x = torch.where(passes, g, 0) if needs_x else None
        else:
            of_x = g if needs_x else None
        return of_x, torch.where(cls.beyond(x, bound), g, 0) if needs_bound else None, None

    @classmethod
    def jvp(cls, ctx: Any, t: Tensor | None, of_bound: Tensor | None, _: None) -> Tensor:
        x, bound, gradient = saved_inputs(ctx)
        of_x = None if t is None else torch.where(cls.inside(x, bound), t, 0) if gradient == "toward" else t
        of_bound = None if of_bound is None else torch.where(cls.beyond(x, bound), of_bound, 0)
        total: Any = of_bound if of_x is None else of_x if of_bound is None else of_x + of_bound
        return total.expand(ctx.shape).to(ctx.dtype)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int | None]:
        # Samples that share an input have gradients of their own, which are mapped before their sum.
        x, *rest = args
        if in_dims[0] is None:
            in_dims, x = (0, *in_dims[1:]), x.expand(info.batch_size, *x.shape)
        return elementwise(cls, in_dims, (x, *rest))

    inside: Any
    beyond: Any
    leads_back: Any


class LowerBound(OneBound):
    """The operator of :func:`lower_bound`."""

    @staticmethod
    def forward(x: Tensor, bound: Tensor | float, gradient: Beyond = "toward") -> Tensor:
        return torch.clamp(x, min=bound)  # pyright: ignore[reportCallIssue, reportArgumentType]

    @staticmethod
    def inside(x: Tensor, bound: Any) -> Tensor:
        """The mask of the elements whose value is their own."""
        return x >= bound

    @staticmethod
    def beyond(x: Tensor, bound: Any) -> Tensor:
        """The mask of the elements whose value is the bound."""
        return x < bound

    @staticmethod
    def leads_back(g: Tensor) -> Tensor:
        """The mask of the gradients by which a descent step leads back; NaN has no sign and is kept."""
        return ~(g >= 0)


class UpperBound(OneBound):
    """The operator of :func:`upper_bound`."""

    @staticmethod
    def forward(x: Tensor, bound: Tensor | float, gradient: Beyond = "toward") -> Tensor:
        return torch.clamp(x, max=bound)  # pyright: ignore[reportCallIssue, reportArgumentType]

    @staticmethod
    def inside(x: Tensor, bound: Any) -> Tensor:
        """The mask of the elements whose value is their own."""
        return x <= bound

    @staticmethod
    def beyond(x: Tensor, bound: Any) -> Tensor:
        """The mask of the elements whose value is the bound."""
        return x > bound

    @staticmethod
    def leads_back(g: Tensor) -> Tensor:
        """The mask of the gradients by which a descent step leads back; NaN has no sign and is kept."""
        return ~(g <= 0)


def _check(name: str, x: Any, bound: Any, gradient: Any) -> None:
    checks.real_tensor(name, "x", x)
    checks.real_number_or_tensor(name, "bound", bound)
    checks.choice(name, "gradient", gradient, GRADIENTS)
