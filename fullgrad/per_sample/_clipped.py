"""`clipped`: the sum of gradients that are clipped to a norm."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.autocast import without_autocast
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
    r"""The sum of the samples' gradients, each clipped to a norm, and the norms.

    .. math::
        \sum_i g_i \min(1, c / \lVert g_i \rVert), \qquad g_i = \nabla_p\, \ell(p, x_i)

    It is a sum, not a mean. The factor at norm 0 is 1; a norm that is NaN makes the sums NaN. ``clipped(loss, math.inf)`` is the
    plain sum with the norms. It takes one forward and one backward: the factors of the gradients are kept until the norms are
    known, and weighted then, so that operators that act on the gradient, such as `clip_grad`, see the gradient of the loss
    itself. A use that has no factors (see `norms`) keeps its per-sample gradient. With a ``bound`` that is a function, all
    chunks are kept.

    Args:
        loss: A function of ``(params, *sample)``, the loss of one sample, one number.
        bound: The largest norm :math:`c`, a number or a tensor; or a function of the norms (batch,), in float32 at least, that
            returns the factors.
        in_dims: The batch dimensions of all arguments, as of ``torch.func.vmap``, None for the parameters: ``(None, 0, ...)`` by
            default.
        chunk_size: How many samples are computed together; None to let it be chosen by what samples take, or all where they draw
            random numbers.
        randomness: As of ``torch.func.vmap``: "error", "different" or "same".
        has_aux: Whether the loss returns a pair, of which the second part, of all samples, is returned besides.

    Returns:
        A function of ``(params, *batch)`` that returns the sums, a tree like ``params``, and the norms before clipping, (batch,).

    Raises:
        TypeError: A parameter is not a floating tensor, or the loss does not return a tensor.
        ValueError: The loss returns more than one number, or an option is out of its range.
        NotImplementedError: A parameter is a distributed tensor.

    Example:
        >>> import torch
        >>> from fullgrad import per_sample
        >>> loss = lambda w, x: (w * x).sum()
        >>> w, X = torch.zeros(2), torch.tensor([[0.5, 0.0], [3.0, 4.0]])
        >>> per_sample.clipped(loss, 1.0)(w, X)
        (tensor([1.1000, 0.8000]), tensor([0.5000, 5.0000]))
        >>> per_sample.clipped(loss, lambda norms: 1 / norms)(w, X)[0]  # normalized
        tensor([1.6000, 0.8000])

    Source: Abadi et al., https://arxiv.org/abs/1607.00133; in one backward: Bu et al., https://arxiv.org/abs/2210.00038.
    """
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
    if isinstance(bound, Tensor):
        checks.no_negative_elements("clipped", "bound", bound)

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
                is_inside = norms <= bound  # False of NaN, which gets the factor NaN
                factors = bound / norms.masked_fill(is_inside, 1)
                add(torch.where(is_inside, 1.0, factors), samples.start)

        aux = given.run(params, batch, finish, after)
        norms = root(total(squares.of_each()))
        if callable(bound):
            factors = _checked(bound(norms), norms)
            with without_autocast(norms.device.type):
                add(factors, 0)
        each = [sums[k].to(p.dtype) if k in sums else p.detach().new_zeros(p.shape) for k, p in enumerate(leaves)]
        result = pytree.tree_unflatten(each, spec), norms.to(dtype)
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
