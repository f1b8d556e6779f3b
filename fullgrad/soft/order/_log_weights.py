"""The logarithms of the weights of `argmax`, `argmin` and `argsort`."""

from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.shards import along_rows
from fullgrad._dispatch import surely
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order._outputs import restore_keepdim
from fullgrad.soft.order._rows import make_rows
from fullgrad.soft.order._statistic import canonicalize_args
from fullgrad.soft.order.methods import METHODS

# The methods whose weights are a softmax.
_SOFTMAX_METHODS = ("softsort", "neuralsort")


def log_weights(
    name: str,
    x: Tensor,
    dim: int | None,
    softness: Softness,
    mode: str,
    method: str,
    standardize: bool,
    *,
    keepdim: bool = False,
    descending: bool = False,
    largest: bool | None = None,
) -> Tensor:
    """The logarithms for the largest element or the smallest, or for all in order: plain code on the scores of the softmax."""
    for argument, value, choices in (("mode", mode, ("smooth",)), ("method", method, _SOFTMAX_METHODS)):
        if value not in choices:
            known = " or ".join(map(repr, choices))
            raise ValueError(
                f"{name}: `{argument}` must be {known} with `return_log_probs`, as other weights may be 0, got {value!r}."
            )
    rows, d = canonicalize_args(
        name, x, dim, softness, (mode, method, standardize, True, "weights", False), nonempty=largest is not None
    )
    checks.flag(name, "keepdim", keepdim)
    checks.flag(name, "descending", descending)

    def logarithms(x: Tensor, *given: Any) -> Tensor:
        if surely(x.shape[d] == 0):
            return x.unsqueeze(-1).repeat(*(1,) * x.ndim, 0)
        of = make_rows(-x if largest is False else x, given[0] if given else softness, d, mode, standardize)._replace(log=True)
        if largest is not None:
            return METHODS[method].largest_weights(of).to(x.dtype)
        y = METHODS[method].weights(of)
        return (y.flip(-2) if descending else y).movedim(-2, d - 1).to(x.dtype)

    vectors = (softness,) if isinstance(softness, Tensor) else ()
    y = along_rows(name, logarithms, rows, d, *vectors, keeps_dim=largest is None, more=1)
    if largest is not None:
        return restore_keepdim(y, x, dim, d) if keepdim else y
    return y if x.ndim else y.squeeze(0)
