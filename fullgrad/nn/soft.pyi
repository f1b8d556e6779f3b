"""Written by docs/stubs.py."""

import collections.abc
import typing
from typing import Literal, Union

import torch

from fullgrad.nn._function_module import FunctionModule as FunctionModule

class Abs(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class All(FunctionModule):
    dim: int
    epsilon: float
    use_geometric_mean: bool
    def __init__(self, dim: int = ..., epsilon: float = ..., use_geometric_mean: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Any(FunctionModule):
    dim: int
    use_geometric_mean: bool
    def __init__(self, dim: int = ..., use_geometric_mean: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Argmax(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    return_log_probs: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, return_log_probs: bool = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Argmedian(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Argmin(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    return_log_probs: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, return_log_probs: bool = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Argquantile(FunctionModule):
    q: float | collections.abc.Sequence[float] | torch.Tensor
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint']
    standardize: bool
    def __init__(self, q: float | collections.abc.Sequence[float] | torch.Tensor, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint'] = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Argsort(FunctionModule):
    dim: int | None
    descending: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network']
    standardize: bool
    return_log_probs: bool
    def __init__(self, dim: int | None = ..., descending: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network'] = ..., standardize: bool = ..., *, return_log_probs: bool = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Clamp(FunctionModule):
    min_value: torch.Tensor | float
    max_value: torch.Tensor | float
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    gated: bool
    def __init__(self, min_value: torch.Tensor | float, max_value: torch.Tensor | float, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., gated: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Entmax(FunctionModule):
    alpha: torch.Tensor | float
    dim: int
    def __init__(self, alpha: torch.Tensor | float = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class EntmaxLoss(FunctionModule):
    alpha: torch.Tensor | float
    dim: int
    ignore_index: int
    reduction: Literal['none', 'mean', 'sum']
    def __init__(self, alpha: torch.Tensor | float = ..., dim: int = ..., *, ignore_index: int = ..., reduction: Literal['none', 'mean', 'sum'] = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, target: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Eq(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class Greater(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class GreaterEqual(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class Heaviside(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Histogram(FunctionModule):
    bins: int
    low: float
    high: float
    dim: int | None
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    weight: torch.Tensor | None
    def __init__(self, bins: int, low: float, high: float, dim: int | None = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., weight: torch.Tensor | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class IndexSelect(FunctionModule):
    dim: int
    keepdim: bool
    def __init__(self, dim: int, keepdim: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, soft_index: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Isclose(FunctionModule):
    softness: torch.Tensor | float
    rtol: float
    atol: float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., rtol: float = ..., atol: float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class Less(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class LessEqual(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class LogicalAnd(FunctionModule):
    use_geometric_mean: bool
    def __init__(self, use_geometric_mean: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class LogicalOr(FunctionModule):
    use_geometric_mean: bool
    def __init__(self, use_geometric_mean: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class LogicalXor(FunctionModule):
    use_geometric_mean: bool
    def __init__(self, use_geometric_mean: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Max(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class Median(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class Min(FunctionModule):
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    def __init__(self, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class Narrow(FunctionModule):
    length: int
    dim: int
    def __init__(self, length: int, dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, soft_start: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Normmax(FunctionModule):
    alpha: torch.Tensor | float
    dim: int
    def __init__(self, alpha: torch.Tensor | float = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class NormmaxLoss(FunctionModule):
    alpha: torch.Tensor | float
    dim: int
    ignore_index: int
    reduction: Literal['none', 'mean', 'sum']
    def __init__(self, alpha: torch.Tensor | float = ..., dim: int = ..., *, ignore_index: int = ..., reduction: Literal['none', 'mean', 'sum'] = ..., learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, target: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class NotEqual(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    epsilon: float
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., epsilon: float = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, y: torch.Tensor | float, **others: typing.Any) -> torch.Tensor: ...

class ProjBall(FunctionModule):
    radius: torch.Tensor | float
    ord: Union[Literal[1, 2], float]
    dim: int
    def __init__(self, radius: torch.Tensor | float = ..., ord: Union[Literal[1, 2], float] = ..., dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ProjCappedSimplex(FunctionModule):
    k: torch.Tensor | float
    dim: int
    softness: torch.Tensor | float
    mode: Literal['smooth', 'c0', 'c1', 'c2', 'laplace']
    def __init__(self, k: torch.Tensor | float, dim: int = ..., softness: torch.Tensor | float = ..., mode: Literal['smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ProjPermutahedron(FunctionModule):
    softness: torch.Tensor | float
    mode: str
    def __init__(self, softness: torch.Tensor | float = ..., mode: str = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, z: torch.Tensor, w: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ProjSimplex(FunctionModule):
    dim: int
    softness: torch.Tensor | float
    mode: str
    def __init__(self, dim: int = ..., softness: torch.Tensor | float = ..., mode: str = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ProjTransportPolytope(FunctionModule):
    softness: torch.Tensor | float
    mode: str
    def __init__(self, softness: torch.Tensor | float = ..., mode: str = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, cost: torch.Tensor, mu: torch.Tensor, nu: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Quantile(FunctionModule):
    q: float | collections.abc.Sequence[float] | torch.Tensor
    dim: int | None
    keepdim: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint']
    standardize: bool
    return_argquantile: bool
    gated_grad: bool
    def __init__(self, q: float | collections.abc.Sequence[float] | torch.Tensor, dim: int | None = ..., keepdim: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., interpolation: Literal['linear', 'lower', 'higher', 'nearest', 'midpoint'] = ..., standardize: bool = ..., return_argquantile: bool = ..., gated_grad: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> typing.Any: ...

class Rank(FunctionModule):
    dim: int | None
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'sigmoid', 'lapsum']
    descending: bool
    standardize: bool
    def __init__(self, dim: int | None = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'sigmoid', 'lapsum'] = ..., descending: bool = ..., standardize: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class ReLU(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    gated: bool
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., gated: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Round(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    neighbor_radius: int
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., neighbor_radius: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Sigmoidal(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['smooth', 'c0', 'c1', 'c2', 'laplace']
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Sign(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Softrelu(FunctionModule):
    softness: torch.Tensor | float
    mode: Literal['smooth', 'c0', 'c1', 'c2']
    gated: bool
    def __init__(self, softness: torch.Tensor | float = ..., mode: Literal['smooth', 'c0', 'c1', 'c2'] = ..., gated: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Sort(FunctionModule):
    dim: int | None
    descending: bool
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'lapsum']
    standardize: bool
    gated_grad: bool
    return_indices: bool
    def __init__(self, dim: int | None = ..., descending: bool = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2', 'laplace'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort', 'lapsum'] = ..., standardize: bool = ..., gated_grad: bool = ..., return_indices: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.return_types.sort: ...

class Sparsemax(FunctionModule):
    dim: int
    def __init__(self, dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class SubsetMarginals(FunctionModule):
    k: int
    dim: int
    def __init__(self, k: int, dim: int = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, logits: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Take(FunctionModule):
    dim: int | None
    def __init__(self, dim: int | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, soft_index: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class TakeAlongDim(FunctionModule):
    dim: int | None
    def __init__(self, dim: int | None = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, soft_index: torch.Tensor, **others: typing.Any) -> torch.Tensor: ...

class Topk(FunctionModule):
    k: int
    dim: int | None
    softness: torch.Tensor | float
    mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2']
    method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort']
    standardize: bool
    gated_grad: bool
    return_indices: bool
    def __init__(self, k: int, dim: int | None = ..., softness: torch.Tensor | float = ..., mode: Literal['hard', 'smooth', 'c0', 'c1', 'c2'] = ..., method: Literal['softsort', 'neuralsort', 'ot', 'sorting_network', 'fast_soft_sort'] = ..., standardize: bool = ..., gated_grad: bool = ..., return_indices: bool = ..., *, learnable: str | collections.abc.Sequence[str] = ...) -> None: ...
    def __call__(self, x: torch.Tensor, **others: typing.Any) -> torch.return_types.topk: ...
