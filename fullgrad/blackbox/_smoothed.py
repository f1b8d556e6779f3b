"""`smoothed`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core.opmath import cast
from fullgrad._dispatch import of_one_instance
from fullgrad._engine.blackbox import Code, point
from fullgrad._engine.node import one_node
from fullgrad.blackbox._mean_of_draws import drawn, mean_of_draws


@of_one_instance
@one_node
def smoothed(
    f: Callable[[Tensor], Any],
    x: Tensor,
    *,
    samples: int = 1,
    sigma: float = 1.0,
    antithetic: bool = True,
    noise: Tensor | None = None,
    generator: Generator | None = None,
    vmap_method: str = "sequential",
    like: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    r"""The mean of a function under normal noise, with the estimator of evolution strategies as derivative.

    .. math::
        y = \frac1{2S} \sum_{i=1}^S f(x + \sigma Z_i) + f(x - \sigma Z_i), \qquad
        D(x)\,t = \frac1{2\sigma S} \sum_{i=1}^S \bigl(f(x + \sigma Z_i) - f(x - \sigma Z_i)\bigr) \langle Z_i, t \rangle

    Without ``antithetic`` there are the draws :math:`x + \sigma Z_i` alone, and it is :func:`perturbed` with normal noise. The
    value and all derivatives are unbiased estimators of those of :math:`E f(x + \sigma Z)`. The second derivative is

    .. math::
        D^2(x) = \frac1{2\sigma^2 S} \sum_{i=1}^S \bigl(f(x + \sigma Z_i) + f(x - \sigma Z_i) - 2 b_i\bigr) (Z_i Z_i^\top - I)

    where :math:`b_i` is the mean of the other pairs, or 0 if there is one; the first derivative of pairs needs no baseline. Value
    and derivatives share the draws; a derivative does not call f. An infinite element of x has the gradient 0. Saved: ``x``, the
    noise and the results.

    Args:
        f: A function of one tensor, any code, such as a simulator, which gets tensors without a derivative and returns one
            tensor, array or number, of any shape. It gets float32 in place of half precision.
        x: Any shape; floating.
        samples: The number of draws S.
        sigma: The scale of the noise, positive.
        antithetic: Whether each draw is taken with both signs, by two calls.
        noise: Normal noise Z of the shape ``(samples, *x.shape)``, a constant; None to draw it.
        generator: Draws it; None for torch's default generator.
        vmap_method: As in :func:`perturbed`.
        like: As in :func:`perturbed`.

    Returns:
        A tensor of the shape of the result of f, and the dtype of ``x``.

    Raises:
        TypeError: ``f`` is not callable or returns no numbers, ``x`` or ``noise`` is not a floating tensor, or another argument
            has a wrong type.
        ValueError: ``samples`` or ``sigma`` is not positive, ``noise`` has another shape or is given with a generator, a name is
            not one of the choices, or a result lacks the dimensions in front.
        RuntimeError: ``f`` changes its argument in place, or uses another tensor that needs a derivative.

    Example:
        >>> import math, torch, fullgrad
        >>> def f(x):
        ...     return math.floor(x.item())
        >>> x, noise = torch.tensor(0.75), torch.tensor([0.5, 1.5])
        >>> torch.func.grad_and_value(lambda x: fullgrad.blackbox.smoothed(f, x, samples=2, noise=noise))(x)
        (tensor(1.2500), tensor(0.5000))

    Source: Salimans, Ho, Chen, Sidor, Sutskever, Evolution strategies, https://arxiv.org/abs/1703.03864; Nesterov, Spokoiny,
    Random gradient-free minimization of convex functions, https://doi.org/10.1007/s10208-015-9296-2.
    """
    name = "smoothed"
    code = Code(name, "f", f, vmap_method, like)
    wide = point(name, x)
    if not isinstance(antithetic, bool):
        raise TypeError(f"{name}: `antithetic` must be True or False, got a value of type {type(antithetic).__name__}.")
    z = drawn(name, wide, samples, sigma, "normal", noise, generator)
    signed = torch.cat([z, -z]) if antithetic else z
    y, _ = code.first(wide.detach() + sigma * signed, draws=True)
    return cast(mean_of_draws(wide, y, z, float(sigma), "normal", antithetic), x.dtype)
