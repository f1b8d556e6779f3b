"""`norms`: the norm of each sample's gradient."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import pytree
from fullgrad.per_sample._run import Loss, Squares, real_dtype, result_dtype, root, total


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
    r"""The norm of each sample's gradient, without the gradients.

    .. math::
        n_i = \lVert \nabla_p\, \ell(p, x_i) \rVert

    For a loss that one could give to ``vmap(grad(loss), in_dims=(None, 0, ...))``, with the same numbers: any function, with
    transforms, checkpoints and operators inside. Products with a matrix, embeddings and convolutions whose weight is a parameter,
    its transpose or what `Elementwise` operators make of parameters, such as a quantized one, give their part by its factors. All
    else gives it by the per-sample gradient of one parameter at a time. A parameter in several uses gets the norm of their sum.

    The function is differentiable where ``vmap(grad(loss))`` is; pass detached parameters, or call it under ``torch.no_grad()``,
    to keep no graph. Squares are added in float32 at least. Compiled code computes the gradients.

    Args:
        loss: A function of ``(params, *sample)``, the loss of one sample, one number.
        squared: Whether to return the squares.
        by_parameter: Whether to return a tree of norms like ``params``, one for each tensor, instead of those over all of them.
        in_dims: The batch dimensions of all arguments, as of ``torch.func.vmap``, None for the parameters: ``(None, 0, ...)`` by
            default.
        chunk_size: How many samples are computed together; None to let it be chosen by what samples take, or all where they draw
            random numbers.
        randomness: As of ``torch.func.vmap``: "error", "different" or "same".
        has_aux: Whether the loss returns a pair, of which the second part, of all samples, is returned besides.

    Returns:
        A function of ``(params, *batch)``, where ``params`` is a tree of tensors and each argument of the batch a tree of tensors
        with the samples in front. It returns a tensor of shape (batch,), or a tree of them.

    Raises:
        TypeError: A parameter is not a floating tensor, or the loss does not return a tensor.
        ValueError: The loss returns more than one number, or an option is out of its range.
        NotImplementedError: A parameter is a distributed tensor.

    Example:
        >>> import torch
        >>> from fullgrad import per_sample
        >>> loss = lambda w, x: (w @ x).square().sum() / 2
        >>> w, X = torch.eye(2), torch.tensor([[1.0, 0.0], [3.0, 4.0]])
        >>> per_sample.norms(loss)(w, X)
        tensor([ 1., 25.])

    Source: Goodfellow, https://arxiv.org/abs/1510.01799; ghost norms: Li et al., https://arxiv.org/abs/2110.05679.
    """
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
            each = [finished(s, real_dtype(leaf)) for s, leaf in zip(squares.of_each(), leaves, strict=True)]
            found = pytree.tree_unflatten(each, spec)
        else:
            found = finished(total(squares.of_each()), result_dtype(leaves))
        return (found, aux) if has_aux else found

    return of_batch
