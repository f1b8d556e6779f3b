"""`sum_of_squares`: the sum over samples of the square of each element of the gradient."""

from collections.abc import Callable
from typing import Any

from fullgrad._dispatch import pytree
from fullgrad.per_sample._contributions import Contribution
from fullgrad.per_sample._run import Loss


def sum_of_squares(
    loss: Callable[..., Any],
    *,
    in_dims: Any = None,
    chunk_size: int | None = None,
    randomness: str = "error",
    has_aux: bool = False,
) -> Callable[..., Any]:
    given = Loss("sum_of_squares", loss, in_dims, chunk_size, randomness, has_aux)

    def of_batch(params: Any, *batch: Any) -> Any:
        leaves, spec = given.parameters(params), pytree.tree_flatten(params)[1]
        sums: dict[int, Any] = {}

        def finish(samples: slice, k: int, found: Contribution) -> None:
            squares = found.sum_of_squares()
            sums[k] = sums[k] + squares if k in sums else squares

        aux = given.run(params, batch, finish)
        each = [
            sums[k].to(p.dtype.to_real()) if k in sums else p.detach().new_zeros(p.shape, dtype=p.dtype.to_real())
            for k, p in enumerate(leaves)
        ]
        result = pytree.tree_unflatten(each, spec)
        return (result, aux) if has_aux else result

    return of_batch
