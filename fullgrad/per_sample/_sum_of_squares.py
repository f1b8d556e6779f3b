"""`sum_of_squares`: the sum over samples of the square of each element of the gradient."""

from collections.abc import Callable
from typing import Any

from fullgrad._dispatch import pytree
from fullgrad.per_sample._contributions import Contribution
from fullgrad.per_sample._run import Loss, real_dtype


def sum_of_squares(
    loss: Callable[..., Any],
    *,
    in_dims: Any = None,
    chunk_size: int | None = None,
    randomness: str = "error",
    has_aux: bool = False,
) -> Callable[..., Any]:
    r"""The sum over samples of the square of each element of the gradient: the diagonal of the empirical Fisher matrix.

    .. math::
        \sum_i g_i \odot g_i, \qquad g_i = \nabla_p\, \ell(p, x_i)

    It is not the square of the sum, which one backward of the batch would give. It is computed as by `norms`; a linear layer
    whose samples are vectors gives the product of squares, :math:`(z^2)^\top a^2`. Squares are added in float32 at least.

    Args:
        loss: A function of ``(params, *sample)``, the loss of one sample, one number.
        in_dims: The batch dimensions of all arguments, as of ``torch.func.vmap``, None for the parameters: ``(None, 0, ...)`` by
            default.
        chunk_size: How many samples are computed together; None to let it be chosen by what samples take, or all where they draw
            random numbers.
        randomness: As of ``torch.func.vmap``: "error", "different" or "same".
        has_aux: Whether the loss returns a pair, of which the second part, of all samples, is returned besides.

    Returns:
        A function of ``(params, *batch)`` that returns a tree like ``params``. Of complex numbers, the squares of their moduli.

    Raises:
        TypeError: A parameter is not a floating tensor, or the loss does not return a tensor.
        ValueError: The loss returns more than one number, or an option is out of its range.
        NotImplementedError: A parameter is a distributed tensor.

    Example:
        >>> import torch
        >>> from fullgrad import per_sample
        >>> loss = lambda w, x: (w * x).sum()
        >>> per_sample.sum_of_squares(loss)(torch.zeros(2), torch.tensor([[1.0, -2.0], [-3.0, 4.0]]))
        tensor([10., 20.])

    Source: Kirkpatrick et al., https://arxiv.org/abs/1612.00796; Dangel et al., https://arxiv.org/abs/1912.10985.
    """
    given = Loss("sum_of_squares", loss, in_dims, chunk_size, randomness, has_aux)

    def of_batch(params: Any, *batch: Any) -> Any:
        leaves, spec = given.parameters(params), pytree.tree_flatten(params)[1]
        sums: dict[int, Any] = {}

        def finish(samples: slice, k: int, found: Contribution) -> None:
            squares = found.sum_of_squares()
            sums[k] = sums[k] + squares if k in sums else squares

        aux = given.run(params, batch, finish)
        each = [
            sums[k].to(real_dtype(p)) if k in sums else p.detach().new_zeros(p.shape, dtype=real_dtype(p))
            for k, p in enumerate(leaves)
        ]
        result = pytree.tree_unflatten(each, spec)
        return (result, aux) if has_aux else result

    return of_batch
