"""`norms`: the norm of each sample's gradient."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import pytree
from fullgrad.per_sample._run import Loss, Squares, result_dtype, root, total


def norms(
    loss: Callable[..., Any],
    *,
    squared: bool = False,
    by_parameter: bool = False,
    in_dims: Any = None,
    chunk_size: int | None = None,
    randomness: str = "error",
    has_aux: bool = False,
) -> Callable[..., Any]:
    checks.flag("norms", "squared", squared)
    checks.flag("norms", "by_parameter", by_parameter)
    given = Loss("norms", loss, in_dims, chunk_size, randomness, has_aux)

    def of_batch(params: Any, *batch: Any) -> Any:
        leaves, spec = given.parameters(params), pytree.tree_flatten(params)[1]
        squares = Squares(leaves)
        aux = given.run(params, batch, lambda _, k, found: squares.add(k, found.squared()), squares.after)

        def finished(squares: Tensor, dtype: Any) -> Tensor:
            return (squares if squared else root(squares)).to(dtype)

        if by_parameter:
            each = [finished(s, leaf.dtype.to_real()) for s, leaf in zip(squares.of_each(), leaves, strict=True)]
            found = pytree.tree_unflatten(each, spec)
        else:
            found = finished(total(squares.of_each()), result_dtype(leaves))
        return (found, aux) if has_aux else found

    return of_batch
