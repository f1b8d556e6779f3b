"""`StraightThrough`: the base of operators whose declared derivative with respect to the first input is 1."""

from typing import Any

from torch import Tensor

from fullgrad._core.elementwise import Elementwise


class StraightThrough(Elementwise):
    r"""The straight-through estimator: :math:`D(x) = 1`, so :math:`\mathrm{jvp}(t) = t` and :math:`\mathrm{vjp}(g) = g`.

    Nothing is saved, and every derivative beyond the first is 0. A subclass gives ``forward``; inputs besides the
    first are constants.

    Source: Hinton's lectures (2012); Bengio, Léonard, Courville, https://arxiv.org/abs/1308.3432.
    """

    reads = {0: ()}

    @staticmethod
    def vjp_term(i: int, v: Tensor, *inputs: Any) -> Tensor | None:
        return v if i == 0 else None
