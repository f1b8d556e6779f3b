"""`fenchel_young_loss`."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast
from fullgrad._dispatch import has_shape, of_one_instance
from fullgrad._engine.blackbox import Code, point
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.node import one_node
from fullgrad._engine.rule import Maybe, Rule, declared
from fullgrad._engine.watching import seen
from fullgrad.blackbox._mean_of_draws import drawn, mean_of_draws, products


@of_one_instance
@one_node
def fenchel_young_loss(
    solver: Callable[[Tensor], Any],
    x: Tensor,
    target: Tensor,
    *,
    samples: int = 1,
    sigma: float = 1.0,
    maximize: bool = True,
    distribution: str = "normal",
    noise: Tensor | None = None,
    generator: Generator | None = None,
    vmap_method: str = "sequential",
) -> Tensor:
    r"""The perturbed Fenchel-Young loss: how far the perturbed solutions are from a target.

    .. math::
        L = \frac1S \sum_{i=1}^S \langle y_i, x + \sigma Z_i \rangle - \langle t, x \rangle, \quad
        y_i = \operatorname{argmax}_y \langle y, x + \sigma Z_i \rangle, \qquad
        D_x = \frac1S \sum_{i=1}^S y_i - t, \quad D_t = -x

    The constant :math:`\Omega(t)`, the convex conjugate at the target of the expected maximum, is left out: it does not depend on
    x. So the loss may be negative, and its minimum over x is :math:`-\Omega(t)`. The gradient needs no score of the noise, and is
    the true one of the value where the solver is exact. The second derivative is that of :func:`perturbed`, with the same draws.
    Saved: ``x``, ``target``, the noise and the solutions.

    Args:
        solver: A function of one tensor, any code, which returns the y of the shape of ``x`` that maximizes
            :math:`\langle y, x \rangle`.
        x: One instance, any shape; floating. A batch is a dimension of `torch.func.vmap`.
        target: The solution t that is wanted; the shape of ``x``, real.
        samples: The number of draws S.
        sigma: The scale of the noise, positive.
        maximize: False for a solver that minimizes costs: the loss is
            :math:`\langle t, x \rangle - \frac1S \sum_i \langle y_i, x + \sigma Z_i \rangle`.
        distribution: As in :func:`perturbed`.
        noise: As in :func:`perturbed`.
        generator: As in :func:`perturbed`.
        vmap_method: As in :func:`perturbed`.

    Returns:
        A scalar of the dtype of ``x``.

    Raises:
        TypeError: As in :func:`perturbed`, or ``target`` is not a real tensor.
        ValueError: As in :func:`perturbed`, or ``target`` or a solution has not the shape of ``x``.
        RuntimeError: As in :func:`perturbed`.

    Example:
        >>> import torch, fullgrad
        >>> def argmax(x):
        ...     return torch.nn.functional.one_hot(x.argmax(), 3)
        >>> x, noise = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([[0.0, 1.0, 0.0], [2.0, -1.0, 0.0]])
        >>> def loss(x):
        ...     return fullgrad.blackbox.fenchel_young_loss(argmax, x, torch.tensor([1, 0, 0]), samples=2, noise=noise)
        >>> torch.func.grad_and_value(loss)(x)
        (tensor([-0.5000,  0.5000,  0.0000]), tensor(2.))

    Source: Berthet, Blondel, Teboul, Cuturi, Vert, Bach, https://arxiv.org/abs/2002.08676; Blondel, Martins, Niculae, Learning
    with Fenchel-Young losses, https://arxiv.org/abs/1901.02324.
    """
    name = "fenchel_young_loss"
    code = Code(name, "solver", solver, vmap_method, None)
    wide = point(name, x)
    checks.tensor(name, "target", target)
    if target.is_complex():
        raise TypeError(f"{name}: `target` must be a real tensor, got dtype {target.dtype}.")
    if not has_shape(target.shape, x.shape):
        raise ValueError(f"{name}: `target` must have the shape of `x`, {tuple(x.shape)}, got {tuple(target.shape)}.")
    z = drawn(name, wide, samples, sigma, distribution, noise, generator)
    points = wide.detach() + sigma * z
    y, _ = code.first(points, draws=True)
    code.check_shape(y[0], x)
    t, sign, sigma = seen([target])[0].to(wide.dtype), 1 if maximize else -1, float(sigma)
    value = sign * (products(y, points).sum() / len(z) - products(t.detach(), wide.detach()).sum())
    if is_differentiated([wide, t]):
        value = declared(_rule(sign, sigma, distribution), [value], [wide, t, y, z])[0]
    return cast(value, x.dtype)


def _rule(sign: int, sigma: float, distribution: str) -> Rule:
    def apart(x: Tensor, t: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return sign * (mean_of_draws(x, y, z, sigma, distribution) - t)

    def pull(inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        (g,) = cotangents
        return [g * apart(*inputs) if needs[0] else None, -sign * g * inputs[0] if needs[1] else None, None, None]

    def push(inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        along, of_target = tangents[:2]
        parts = [] if along is None else [(along * apart(*inputs)).sum()]
        parts += [] if of_target is None else [-sign * (of_target * inputs[0]).sum()]
        return [parts[0] if len(parts) == 1 else parts[0] + parts[1]]

    return Rule(pull, push)
