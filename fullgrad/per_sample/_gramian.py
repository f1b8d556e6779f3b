"""`gramian`: the inner products of the gradients of each two samples."""

from collections.abc import Callable
from typing import Any

from fullgrad.per_sample._contributions import Contribution
from fullgrad.per_sample._run import Loss, result_dtype


def gramian(
    loss: Callable[..., Any],
    *,
    in_dims: Any = None,
    randomness: str = "error",
    has_aux: bool = False,
) -> Callable[..., Any]:
    given = Loss("gramian", loss, in_dims, None, randomness, has_aux)

    def of_batch(params: Any, *batch: Any) -> Any:
        leaves = given.parameters(params)
        products: list[Any] = []

        def finish(samples: slice, k: int, found: Contribution) -> None:
            product = found.gramian()
            products[:] = [products[0] + product.to(products[0].device) if products else product]

        aux, dtype = given.run(params, batch, finish, may_chunk=False), result_dtype(leaves)
        size = given.size(batch)[0]
        result = products[0].to(dtype) if products else leaves[0].detach().new_zeros(size, size, dtype=dtype)
        return (result, aux) if has_aux else result

    return of_batch
