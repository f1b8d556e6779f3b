"""The closed form of each operator, for the methods that have one."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._fast.gpu.statistics import has_kernel, kernel_form
from fullgrad._fast.small_rows.closed_form import Ranks, Weights
from fullgrad._fast.small_rows.rows import SmallRows, small_rows
from fullgrad._fast.small_rows.scores import IdentityScores, NeuralScores, SoftScores, has_few_pairs
from fullgrad.soft.order._operators.extremum import Extremum
from fullgrad.soft.order._operators.quantile import Quantile, bracketing_indices
from fullgrad.soft.order._operators.rank import Rank
from fullgrad.soft.order._operators.sort import Sort


def sort(rows: SmallRows, dim: int, descending: bool, k: int, value: Tensor | None = None) -> Any:
    """`Sort` by neuralsort."""
    n = rows.n
    c = rows.arange(*((n - 1, -2) if descending or k else (1 - n, 2)), k or n)
    return Weights(rows, NeuralScores(rows, c), dim, dim, None, value)


def topk(rows: SmallRows, dim: int, descending: bool, k: int) -> Any:
    """`Sort` by softsort, of the first elements."""
    return Weights(rows, SoftScores(rows, k), dim, dim)


def extremum(rows: SmallRows, dim: int, largest: bool, value: Tensor | None = None) -> Any:
    """`Extremum` by softsort or neuralsort."""
    if rows.options[1] == "softsort":
        scores = IdentityScores(rows, largest)
    else:
        scores = NeuralScores(rows, rows.constants(rows.n - 1 if largest else 1 - rows.n), single=True)
    return Weights(rows, scores, dim, None, None, value)


def quantile(rows: SmallRows, q: tuple[float, ...], dim: int, interpolation: str) -> Any:
    """`Quantile` by neuralsort, for quantiles that are numbers."""
    coefficients, mix = _places(q, rows.n, interpolation, rows.x.dtype)
    mix = None if mix is None else rows.constants(mix)
    return Weights(rows, NeuralScores(rows, rows.constants(coefficients)), dim, -1, mix)


def rank(rows: SmallRows, dim: int, descending: bool) -> Any:
    """`Rank` by neuralsort."""
    return Ranks(rows, NeuralScores(rows, rows.arange(1 - rows.n, 2, rows.n)), dim, descending)


@functools.lru_cache(1024)
def _places(q: tuple[float, ...], n: int, interpolation: str, dtype: torch.dtype) -> tuple[list[float], Any]:
    """The coefficients 2i - n - 1 of the places of quantiles, and how to mix their weights, where one place is not enough."""
    low, high, a = [v.tolist() for v in bracketing_indices(torch.tensor(q, dtype=dtype, device="cpu"), n, interpolation)]
    if not any(a):
        return [2.0 * p + 1 - n for p in low], None
    k = len(q)
    mix = [[(1 - a[i]) * (j == i) for j in range(k)] + [a[i] * (j == i) for j in range(k)] for i in range(k)]
    return [2.0 * p + 1 - n for p in (*low, *high)], mix


# By operator and method: of how many places weights are computed, from the length of a row and the arguments, 0 where there is no
# closed form; and the form.
_FORMS: dict[Any, tuple[Callable[..., int], Callable[..., Any]]] = {
    (Sort, "neuralsort"): (lambda n, dim, descending, k: k or n, sort),
    (Sort, "softsort"): (lambda n, dim, descending, k: k, topk),
    (Extremum, "neuralsort"): (lambda n, *_: 1, extremum),
    (Extremum, "softsort"): (lambda n, *_: 1, extremum),
    (Quantile, "neuralsort"): (lambda n, q, *_: 2 * len(q), quantile),
    (Rank, "neuralsort"): (lambda n, *_: n, rank),
}


def has_form(operator: Any, inputs: Any) -> bool:
    """Whether some rows of an operator, with its inputs, have a form. All inputs but the first are constants."""
    return has_kernel(operator, inputs) or _closed_form(operator, inputs) is not None


def _closed_form(operator: Any, inputs: Any) -> tuple[Callable[..., Any], int, tuple[Any, ...]] | None:
    """The closed form, the number of places whose weights are computed, and the inputs but the tensor, the softness and the
    options; None if there is none.
    """
    if (operator, inputs[-1][1]) not in _FORMS or Tensor in map(type, inputs[1:]):
        return None
    places, form = _FORMS[operator, inputs[-1][1]]
    arguments = *inputs[1 : operator.dim_at - 1], *inputs[operator.dim_at : -1]
    count = places(inputs[0].shape[inputs[operator.dim_at]], *arguments)
    return (form, count, arguments) if count > 0 else None


def form_of(operator: Any, inputs: Any, value: Any = ()) -> Any:
    """The form of an operator for its inputs, by a kernel or closed, whose value may be known; None if there is none."""
    if has_kernel(operator, inputs):
        return kernel_form(operator, inputs)
    found = _closed_form(operator, inputs)
    if found is None:
        return None
    form, places, arguments = found
    rows = small_rows(inputs[0], inputs[operator.dim_at - 1], inputs[operator.dim_at], inputs[-1], places)
    if rows is None or (inputs[-1][1] == "neuralsort" and not has_few_pairs(rows)):
        return None
    return form(rows, *arguments, *value)
