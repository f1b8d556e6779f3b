"""The outputs of the operators: values, indices, weights, and torch's return types."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, cast, overload

import torch
from torch import Tensor

from fullgrad.soft._mode_names import Mode
from fullgrad.soft._relaxation import Softness
from fullgrad.soft.order.methods import SortMethod

# The outputs of an operator. Integer indices come with hard values, weights with soft ones.
Outputs = Literal["values", "weights", "values_and_weights", "values_and_indices", "ranks"]


def restore_keepdim(y: Tensor, x: Tensor, dim: int | None, d: int, leading: int = 0) -> Tensor:
    """The result of a reduction with the reduced dimension ``d`` (or all of them) restored, after some leading ones."""
    if x.ndim == 0:
        return y
    if dim is None:
        return y.reshape(*y.shape[:leading], *(1,) * x.ndim, *y.shape[leading:])
    return y.unsqueeze(x.ndim + d + leading)


def hard_outputs(both: Any, outputs: Outputs, n: int) -> Any:
    """The outputs of an operator other than values with indices, from the values and indices that torch returns."""
    if outputs == "values":
        return both.values
    weights = one_hot(both.indices, n, both.values.dtype)
    return weights if outputs == "weights" else (both.values, weights)


def one_hot(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """The one-hot vector of each index, in a new last dimension."""
    return torch.zeros(*index.shape, n, dtype=dtype, device=index.device).scatter(-1, index.unsqueeze(-1), 1)


Pair = TypeVar("Pair", covariant=True)


class Reduction(Protocol[Pair]):
    """The overloads of ``max``, ``min``, ``median`` and their straight-through versions: with ``dim`` they return a pair."""

    @overload
    def __call__(
        self,
        x: Tensor,
        dim: None = ...,
        keepdim: bool = ...,
        softness: Softness = ...,
        mode: Mode = ...,
        method: SortMethod = ...,
        standardize: bool = ...,
        gated_grad: bool = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        dim: int,
        keepdim: bool = ...,
        softness: Softness = ...,
        mode: Mode = ...,
        method: SortMethod = ...,
        standardize: bool = ...,
        gated_grad: bool = ...,
    ) -> Pair: ...


def reduction(
    function: Callable[[Tensor, int | None, bool, Softness, Mode, SortMethod, bool, bool], Tensor | Pair],
) -> Reduction[Pair]:
    """The function itself, seen by type checkers with the overloads of `Reduction`."""
    return cast("Any", function)
