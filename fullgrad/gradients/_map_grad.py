"""`map_grad`: the gradient mapped by a function."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import alias, is_identity
from fullgrad._dispatch import of_one_instance
from fullgrad._engine.changes import CHANGED, Surroundings, versions_of
from fullgrad._engine.checks import check_like
from fullgrad._engine.guard import refuse_in_graphs
from fullgrad._engine.node import one_node, value_alone
from fullgrad.gradients._cotangent_map import CotangentMap, per_sample


@of_one_instance
def map_grad(x: Tensor, f: Callable[..., Tensor]) -> Tensor:
    r"""The input itself, whose gradient is mapped by a function.

    .. math::
        y = x, \qquad \mathrm{vjp}(g) = f(g), \qquad \mathrm{jvp}(t) = t

    It is :meth:`torch.Tensor.register_hook` as an operator, which transforms and compiled code keep. ``f`` is called with the
    gradient when a derivative is taken, once for each; under ``vmap`` it sees the gradient of one sample. Since nothing tells
    whether ``f`` is linear, ``jvp`` is the identity, also where it is; for a linear map whose transpose is known,
    :func:`fullgrad.linear_map` has the right tangent. Double backward differentiates ``f`` as it is, with the tensors that it
    closes over. Nothing is saved; ``f`` keeps what it closes over alive.

    Args:
        x: Any shape; floating, or integer (without a gradient).
        f: A function of a tensor like ``x``, in torch code that changes no argument in place, which returns one of the same shape
            and dtype. Compiled code takes an ``f`` that it can make a constant: a function that closes over numbers,
            not over tensors or modules.

    Returns:
        ``x`` as a view.

    Raises:
        TypeError: ``x`` is not a real tensor, or ``f`` is not callable. When a derivative is taken: ``f`` returns no tensor, or
            one of another dtype.
        ValueError: ``x`` is a jagged tensor. When a derivative is taken: ``f`` returns another shape.
        RuntimeError: When a derivative is taken: ``f`` changes the gradient in place.
        NotImplementedError: In compiled code: ``f`` uses a tensor that is not its argument.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
        >>> unit = lambda g: g / g.norm()
        >>> torch.func.vmap(torch.func.grad(lambda x: (fullgrad.map_grad(x, unit) ** 2).sum()))(x)
        tensor([[0.6000, 0.8000],
                [0.6000, 0.8000]])

    Source: :meth:`torch.Tensor.register_hook`; ``jax.custom_vjp`` of an identity.
    """
    checks.real_tensor("map_grad", "x", x)
    checks.function("map_grad", "f", f)
    return _mapped(x, f)


@one_node
def _mapped(x: Tensor, f: Callable[..., Tensor]) -> Tensor:
    if value_alone():
        return MapGrad.apply(x, None)
    refuse_in_graphs("map_grad", "f", f)
    return MapGrad.apply(x, Map(f))


class Map:
    """A function of a gradient, checked where it is called."""

    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        self.f, self.surroundings = f, Surroundings("map_grad: `f`", f)

    def __call__(self, g: Tensor) -> Tensor:
        self.surroundings.check()
        before = versions_of([g])
        mapped = self.f(g)
        if versions_of([g]) != before:
            raise RuntimeError(CHANGED.format("map_grad: `f`"))
        return check_like("map_grad: the result of `f`", "the gradient", mapped, g.shape, g.dtype)


class MapGrad(CotangentMap):
    """The operator of :func:`map_grad`."""

    constant_types: ClassVar[tuple[type, ...]] = (Map,)
    runs_code = True

    @staticmethod
    @is_identity
    def forward(x: Tensor, f: Map | None) -> Tensor:
        return alias(x)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (f,) = ctx.parameters
        return f(g), None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        in_dims, (x, f) = per_sample(info, in_dims, args)
        mapped = torch.func.vmap(f, randomness=info.randomness)
        return cls.apply(x.movedim(in_dims[0], 0), Map(mapped)), 0
