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
    r"""The inner products of the gradients of each two samples, over all parameters.

    .. math::
        G_{ij} = \langle g_i, g_j \rangle, \qquad g_i = \nabla_p\, \ell(p, x_i)

    Its diagonal has the squares of `norms`; it is computed as they are, all samples together. Of complex numbers, the real part.

    Args:
        loss: A function of ``(params, *sample)``, the loss of one sample, one number.
        in_dims: The batch dimensions of all arguments, as of ``torch.func.vmap``, None for the parameters: ``(None, 0, ...)`` by
            default.
        randomness: As of ``torch.func.vmap``: "error", "different" or "same".
        has_aux: Whether the loss returns a pair, of which the second part, of all samples, is returned besides.

    Returns:
        A function of ``(params, *batch)`` that returns a tensor of shape (batch, batch).

    Raises:
        TypeError: A parameter is not a floating tensor, or the loss does not return a tensor.
        ValueError: The loss returns more than one number, or an option is out of its range.
        NotImplementedError: A parameter is a distributed tensor.

    Example:
        >>> import torch
        >>> from fullgrad import per_sample
        >>> loss = lambda w, x: (w * x).sum()
        >>> per_sample.gramian(loss)(torch.zeros(2), torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
        tensor([[ 1.,  3.],
                [ 3., 25.]])

    Source: Quinton, Rey, https://arxiv.org/abs/2406.16232.
    """
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
