"""`StraightThrough`: the rules of every operator whose declared derivative with respect to its first input is 1."""

from typing import Any

from torch import Tensor

from fullgrad._batching import elementwise
from fullgrad._function import Function, saves_nothing


class StraightThrough(Function):
    r"""The straight-through estimator: :math:`D(x) = 1`, so :math:`\mathrm{jvp}(t) = t` and :math:`\mathrm{vjp}(g) = g`.

    Nothing is saved, and every derivative beyond the first is 0. A member of the family gives ``forward``; one with
    constants besides ``x`` also says that they have no gradient. Source: Hinton's lectures (2012); Bengio, Léonard, Courville, https://arxiv.org/abs/1308.3432.
    """

    setup_context = staticmethod(saves_nothing)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Any:
        return g

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *constants: None) -> Tensor:
        return t

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int | None]:
        return elementwise(cls, in_dims, args)
