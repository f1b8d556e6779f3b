"""`clipped`: the sum of gradients that are clipped to a norm."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import pytree
from fullgrad.per_sample._contributions import Contribution
from fullgrad.per_sample._run import Loss, Squares, result_dtype, root, total


def clipped(
    loss: Callable[..., Any],
    bound: float | Tensor | Callable[[Tensor], Tensor],
    *,
    in_dims: Any = None,
    chunk_size: int | None = None,
    randomness: str = "error",
    has_aux: bool = False,
) -> Callable[..., Any]:
    given = Loss("clipped", loss, in_dims, chunk_size, randomness, has_aux)
    if not callable(bound):
        checks.real_number_or_tensor("clipped", "bound", bound)
    if isinstance(bound, (int, float)) and not bound >= 0:
        raise ValueError(f"clipped: `bound` must not be negative, got {bound}.")
    if isinstance(bound, Tensor) and bound.ndim:
        raise ValueError(
            f"clipped: `bound` must be one number, got a tensor of shape {tuple(bound.shape)}; for a factor of each sample pass "
            "a function of the norms."
        )

    def of_batch(params: Any, *batch: Any) -> Any:
        leaves, spec = given.parameters(params), pytree.tree_flatten(params)[1]
        dtype = result_dtype(leaves)
        squares, sums = Squares(leaves), {}
        kept: list[tuple[slice, int, Contribution]] = []

        def finish(samples: slice, k: int, found: Contribution) -> None:
            squares.add(k, found.squared())
            kept.append((samples, k, found))

        def add(factors: Tensor, first: int) -> None:
            while kept:
                samples, k, found = kept.pop()
                weighted = found.weighted(factors[samples.start - first : samples.stop - first])
                sums[k] = sums[k] + weighted if k in sums else weighted

        def after(samples: slice) -> None:
            norms = root(total(squares.after(samples)))
            if not callable(bound):
                add(torch.where(norms > bound, bound / norms, 1.0), samples.start)

        aux = given.run(params, batch, finish, after)
        norms = root(total(squares.of_each())).to(dtype)
        if callable(bound):
            add(_checked(bound(norms), norms), 0)
        each = [sums[k].to(p.dtype) if k in sums else p.detach().new_zeros(p.shape) for k, p in enumerate(leaves)]
        result = pytree.tree_unflatten(each, spec), norms
        return (result, aux) if has_aux else result

    return of_batch


def _checked(factors: Any, norms: Tensor) -> Tensor:
    if not isinstance(factors, Tensor) or factors.shape != norms.shape:
        found = tuple(factors.shape) if isinstance(factors, Tensor) else f"a {type(factors).__name__}"
        raise ValueError(
            f"clipped: the function `bound` must return one factor for each of {len(norms)} norms, a tensor of shape "
            f"{tuple(norms.shape)}, got {found}."
        )
    return factors
