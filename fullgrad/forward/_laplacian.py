"""`laplacian`: the sum of second derivatives, collapsed."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from fullgrad._core import checks
from fullgrad.forward import _rules as _rules
from fullgrad.forward._along import Along
from fullgrad.forward._curve import along_curves
from fullgrad.forward._directions import Point, in_chunks, positive_or_none, returned


def laplacian(f: Callable[..., Any], *, parts: bool = False, chunk_size: int | None = None) -> Callable[..., Any]:
    r"""A function that returns the Laplacian of ``f`` with respect to its first argument.

    .. math::
        \Delta f = \sum_i \frac{\partial^2 f}{\partial x_i^2}

    in one pass of forward mode, with the value, a first derivative for each element of x, and *one* second derivative, to which
    all directions contribute: less time and memory than the trace of a Hessian. Declared derivatives are followed. The result
    can be differentiated by whatever it depends on, such as the parameters of a network, and ``laplacian(laplacian(f))`` is the
    biharmonic operator. ``f`` is a function of one sample: a batch is a dimension of `torch.func.vmap`.

    ``f`` is ordinary code. Where it opens a transform itself, or does what a curve cannot, all of it is computed by nested
    `torch.func.jvp`, which gives the same numbers in more time; ``f`` then runs again from its beginning. In compiled code, use
    the function that this returns, made outside, which has the derivatives by tensors that ``f`` holds, too.

    Args:
        f: Returns a tensor, of any shape.
        parts: Whether the result is the triple of the value, the gradient and the Laplacian, as a local energy needs.
        chunk_size: How many elements of x are taken at once; None for all. A small number saves memory.

    Returns:
        A function with the arguments of ``f``; the first one is a tensor of any shape, or a structure of tensors. The Laplacian
        has the shape of the value, the gradient ``(*f(x).shape, *x.shape)``.

    Raises:
        TypeError: ``f`` is not callable. When called: x is not floating, or ``f`` does not return a tensor.
        ValueError: ``chunk_size`` is not positive.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.forward.laplacian(lambda x: (x ** 3).sum())(torch.tensor([1.0, 2.0]))
        tensor(18.)
        >>> u = lambda x: x[0] ** 2 * x[1]
        >>> fullgrad.forward.laplacian(u, parts=True)(torch.tensor([1.0, 3.0]))
        (tensor(3.), tensor([6., 1.]), tensor(6.))

    Source: Dangel et al., Collapsing Taylor mode automatic differentiation, https://arxiv.org/abs/2505.13644; Li et al., A
    computational framework for neural network-based variational Monte Carlo with forward Laplacian (2024).
    """
    checks.flag("laplacian", "parts", parts)
    positive_or_none("laplacian", "chunk_size", chunk_size)
    return Along("laplacian", f, _laplacian, parts, chunk_size)


def _laplacian(f: Callable[..., Any], settings: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (parts, chunk_size), (x, *constants) = settings, args
    point = Point("laplacian", "x", x)
    function = point.function(lambda *a, **k: returned("laplacian", f(*a, **k)), constants, kwargs)
    n, zeros = sum(point.counts), [None] * len(point.tensors)

    def chunk(first: int, end: int) -> tuple[Any, Any, Any]:
        (value,), (slope,), (second,) = along_curves(function, point.tensors, [point.units(first, end), zeros], shared=True)
        return value, slope, second

    values, slopes, seconds = zip(*in_chunks("laplacian", chunk, n, chunk_size), strict=True)
    total = functools.reduce(operator.add, seconds)
    return (values[0], point.by_element(torch.cat(slopes).movedim(0, -1)), total) if parts else total
