"""`CotangentMap`: the base of operators that act on the gradient only."""

from typing import Any, ClassVar

from torch import Tensor

from fullgrad._core.batching import elementwise
from fullgrad._core.function import Function


class CotangentMap(Function):
    r"""An operator whose value is the input itself; :math:`\mathrm{vjp}(g) = c(g)` for a map :math:`c` that a subclass gives.

    A map that is not linear in :math:`g` is the transpose of no tangent map, so ``jvp`` is the identity. Differentiating again
    differentiates :math:`c` as it is.
    """

    recompute_in_backward = True
    is_linear: ClassVar[bool] = False
    takes_zeros = True  # where a parameter alone has a tangent

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.parameters = inputs[1:]  # for subclasses whose parameters are numbers

    @staticmethod
    def jvp(ctx: Any, t: Tensor | None, *parameters: Any) -> Tensor | None:
        return t

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int | None]:
        return elementwise(cls, *per_sample(info, in_dims, args))


def per_sample(info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """``in_dims`` and ``args`` with the first argument batched: an input that the samples share gets a cotangent from each
    sample, and each cotangent is mapped before the sum.
    """
    if in_dims[0] is not None:
        return in_dims, args
    x, *parameters = args
    return (0, *in_dims[1:]), (x.expand(info.batch_size, *x.shape), *parameters)
