"""`imle_topk`."""

from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.batching import in_front
from fullgrad._core.function import Function
from fullgrad._core.noise import gumbel_like, scaled_noise
from fullgrad._core.opmath import to_opmath
from fullgrad._core.shards import with_whole_rows
from fullgrad.sampling._arguments import check_count, check_rows
from fullgrad.sampling._rows import largest


def imle_topk(
    logits: Tensor,
    k: int,
    lam: float = 1.0,
    noise_scale: float = 1.0,
    dim: int = -1,
    *,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""A random subset of k classes, with the gradient of a difference of two subsets.

    .. math::
        y = z(\theta), \qquad z(\theta) = \text{ones at the k largest of } \theta + c\, G, \qquad
        \mathrm{vjp}(g) = \frac{z(\theta) - z(\theta - \lambda g)}{\lambda}

    The gradient is not linear in the cotangent, so there is no tangent and forward mode raises. It is piecewise constant, so
    higher derivatives are 0. A logit of minus infinity is a class that is never drawn and has the gradient 0. Saved: inputs and
    the noise.

    Args:
        logits: The logits θ, any shape; floating.
        k: The size of the subset.
        lam: How far the logits move along the gradient, positive. The smaller, the closer to the derivative of z.
        noise_scale: The factor c of the noise, not negative; 0 for the k largest logits, which draws none.
        dim: The dimension of the classes.
        noise: Noise G of the shape of ``logits``, a constant; None to draw Gumbel noise. The paper's is a sum of Gamma variables.
        generator: Draws it; None for torch's default generator.

    Returns:
        A tensor of the shape and dtype of ``logits``. A row is NaN where it has a NaN or infinity, or fewer than k finite logits;
        it is 0 for k = 0.

    Raises:
        TypeError: ``logits`` or ``noise`` is not a floating tensor, or another argument has a wrong type.
        ValueError: ``k`` is not from 0 to the number of classes, ``lam`` is not positive, ``noise_scale`` is negative, or
            ``noise`` has another shape or is given with a generator.
        IndexError: ``logits`` has no such dimension.
        NotImplementedError: A forward-mode derivative is taken.

    Example:
        >>> import torch, fullgrad
        >>> x, noise = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2.5, 0.1, 0.2])
        >>> fullgrad.sampling.imle_topk(x, 1, noise=noise)
        tensor([1., 0., 0.])
        >>> torch.func.grad(lambda x: fullgrad.sampling.imle_topk(x, 1, noise=noise) @ torch.tensor([1.0, 0.0, -1.0]))(x)
        tensor([ 1.,  0., -1.])

    Source: Niepert, Minervini, Franceschi, https://arxiv.org/abs/2106.01798.
    """
    name = "imle_topk"
    dim = check_rows(name, "logits", logits, dim)
    k = check_count(name, k, logits, dim)
    checks.positive_number(name, "lam", lam)
    logits = with_whole_rows(logits, dim)
    noise = scaled_noise(name, logits, noise_scale, noise, generator, gumbel_like)
    if not logits.ndim:
        noise = None if noise is None else noise.reshape(1)
        return imle_topk(logits.reshape(1), k, lam, noise_scale, noise=noise).reshape(())
    return ImleTopK.apply(logits, noise, k, float(lam), float(noise_scale), dim)


class ImleTopK(Function):
    """The operator of :func:`imle_topk`."""

    is_linear = False
    whole_dims = "dim"

    @staticmethod
    def forward(logits: Tensor, noise: Tensor | None, k: int, lam: float, noise_scale: float, dim: int) -> Tensor:
        return _subset(logits, noise, k, noise_scale, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        logits, noise, *ctx.constants = inputs
        ctx.save_for_backward(logits, noise)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        logits, noise = ctx.saved_tensors
        k, lam, noise_scale, dim = ctx.constants
        wide, v = to_opmath(logits, g)
        moved = _subset(torch.where(wide == -torch.inf, wide, wide - lam * v), noise, k, noise_scale, dim)
        return (_subset(wide, noise, k, noise_scale, dim) - moved) / lam, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        raise NotImplementedError(
            "imle_topk: there is no tangent, as the gradient is no linear map of the cotangent; use reverse mode, "
            "or gumbel_topk and k_subset_st, which have both."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        return ImleTopK.apply(*in_front(info, in_dims, args)), 0


def _subset(logits: Tensor, noise: Tensor | None, k: int, noise_scale: float, dim: int) -> Tensor:
    """The subset z."""
    (wide,) = to_opmath(logits)
    return largest(wide if noise is None else wide + noise_scale * noise, dim, logits.dtype, k)[0]
