"""`hessian_diagonal`, `ggn_diagonal`, `jacobian_diagonal` and `divergence`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import hessian, jacrev, jvp

from fullgrad._core import checks
from fullgrad._core.recomputed import without_aux
from fullgrad._dispatch import pytree
from fullgrad.forward._along import Along
from fullgrad.forward._context import right_derivatives
from fullgrad.forward._curve import derivatives_by_jvp
from fullgrad.forward._directions import Point, Probes, positive_or_none, returned


def hessian_diagonal(
    f: Callable[..., Tensor],
    *,
    probes: int | None = None,
    distribution: str = "rademacher",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
    standard_error: bool = False,
) -> Callable[..., Any]:
    r"""A function that returns the diagonal of the Hessian of ``f`` with respect to its first argument.

    .. math::
        d_i = \frac{\partial^2 f}{\partial x_i^2}, \qquad \text{with probes} \quad
        d \approx \frac1n \sum_{k=1}^n z_k \odot H z_k, \qquad \mathbb E[z z^T] = 1

    The first argument is a tensor of any shape or a structure such as a dict of parameters; the others are constants. Exact
    without probes, at the cost of a product with the Hessian for each element. Random probes give an unbiased estimate, as in
    AdaHessian and Sophia. ``f`` is a function of one sample: a batch is a dimension of `torch.func.vmap`. The result can be
    differentiated, and declared derivatives are followed.

    Args:
        f: Returns a tensor, of any shape.
        probes: The number of random directions, drawn at each call; None for the exact diagonal.
        distribution: ``"rademacher"``, signs, which are exact if the Hessian is diagonal, or ``"normal"``.
        generator: The generator of the probes.
        chunk_size: How many directions are computed at once; None for all. A small number saves memory.
        standard_error: Whether the result is a pair, with the standard error of the mean over the probes.

    Returns:
        A function with the arguments of ``f``. Its result has the shape ``(*f(x).shape, *x.shape)``, for a structure such a
        tensor at each leaf.

    Raises:
        TypeError: ``f`` is not callable. When called: a leaf is not a floating tensor, or ``f`` does not return a tensor.
        ValueError: ``distribution`` is unknown, a number is not positive, or there are fewer than 2 probes for an error.

    Example:
        >>> import torch, fullgrad
        >>> diagonal = fullgrad.forward.hessian_diagonal(lambda x: (x ** 3).sum())
        >>> diagonal(torch.tensor([1.0, 2.0]))
        tensor([ 6., 12.])
        >>> loss = lambda w, x: (w["scale"] * x + w["shift"]).square().sum()
        >>> w = {"scale": torch.tensor(1.0), "shift": torch.zeros(2)}
        >>> fullgrad.forward.hessian_diagonal(loss)(w, torch.tensor([1.0, 3.0]))
        {'scale': tensor(20.), 'shift': tensor([2., 2.])}

    Source: Bekas, Kokiopoulou, Saad, An estimator for the diagonal of a matrix (2007); Yao et al.,
    https://arxiv.org/abs/2006.00719; Liu et al., https://arxiv.org/abs/2305.14342.
    """
    directions = Probes("hessian_diagonal", probes, distribution, generator, chunk_size, standard_error)

    return Along("hessian_diagonal", f, _hessian_diagonal, directions)


def _hessian_diagonal(f: Callable[..., Any], settings: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (directions,), (x, *constants) = settings, args
    point = Point("hessian_diagonal", "x", x)
    of_tensors = point.function(lambda *a, **k: returned("hessian_diagonal", f(*a, **k)), constants, kwargs)

    def entry(index: Tensor) -> Tensor:
        # The unit vector does not move, which zeros with memory say: under `vmap` torch refuses to write to symbolic ones.
        unit = point.tangents(point.unit(index))
        zeros = [torch.zeros_like(u) for u in unit]
        return derivatives_by_jvp(lambda *x: [of_tensors(*x)], point.tensors, [unit, zeros])[-1][0]

    def estimate(*v: Tensor) -> Any:
        """A direction times the Hessian's product with it, for each number of the result."""
        products = jvp(jacrev(of_tensors, argnums=tuple(range(len(v)))), tuple(point.tensors), point.tangents(v))[1]
        return point.tree([a * b for a, b in zip(v, products, strict=True)])

    if directions.count is None:
        return point.by_element(directions.map(point, entry, point.indices()).movedim(0, -1))
    return directions.mean(directions.map(point, estimate, *point.probes(directions)))


def ggn_diagonal(f: Callable[..., Tensor], loss: Callable[..., Tensor], *, chunk_size: int | None = None) -> Callable[..., Any]:
    r"""A function that returns the diagonal of the generalized Gauss-Newton matrix, exactly.

    .. math::
        d_i = \sum_{k, l} J_{ki} H_{kl} J_{li}, \qquad J = Df(w), \qquad H = \nabla^2 \ell \text{ at the output } f(w)

    the Hessian of the loss without the second derivatives of ``f``, as in a Laplace approximation; for a likelihood of the
    exponential family it is the Fisher information. One row of J is computed for each number of the output.

    Args:
        f: ``f(params, x)`` is the output for one sample, a tensor.
        loss: ``loss(output, *target)`` is its loss, a tensor of one number.
        chunk_size: How many rows of J are computed at once; None for all.

    Returns:
        A function of ``(params, x, *target)``, whose result has the structure of ``params``. A batch of samples is a dimension
        of `torch.func.vmap`, whose results are summed.

    Raises:
        TypeError: ``f`` or ``loss`` is not callable. When called: a leaf of ``params`` is not a floating tensor.
        ValueError: ``chunk_size`` is not positive. When called: the loss is not one number.

    Example:
        >>> import torch, fullgrad
        >>> model = lambda w, x: torch.stack([w["a"] * x, w["a"] * w["b"]])
        >>> loss = lambda y, target: (y - target).square().sum() / 2
        >>> diagonal = fullgrad.forward.ggn_diagonal(model, loss)
        >>> diagonal({"a": torch.tensor(2.0), "b": torch.tensor(3.0)}, torch.tensor(1.0), torch.zeros(2))
        {'a': tensor(10.), 'b': tensor(4.)}

    Source: Schraudolph, Fast curvature matrix-vector products (2002); Botev et al., https://arxiv.org/abs/1706.03662.
    """
    checks.function("ggn_diagonal", "loss", loss)
    positive_or_none("ggn_diagonal", "chunk_size", chunk_size)

    return _AlongOfSample("ggn_diagonal", f, _ggn_diagonal, loss, chunk_size)


class _AlongOfSample(Along):
    """`Along` of a function of parameters and a sample."""

    positional = 2


def _ggn_diagonal(f: Callable[..., Any], settings: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (loss, chunk_size), (params, x, *target) = settings, args
    point = Point("ggn_diagonal", "params", params)
    model = point.function(lambda *a, **k: returned("ggn_diagonal", f(*a, **k)), (x,), kwargs)

    def of_output(output: Tensor) -> Tensor:
        value = returned("ggn_diagonal", loss(output, *target))
        if value.numel() != 1:
            raise ValueError(f"ggn_diagonal: `loss` must return one number, got the shape {tuple(value.shape)}.")
        return value.reshape(())

    with right_derivatives():
        output = model(*point.tensors)
        rows = jacrev(model, argnums=tuple(range(len(point.tensors))), chunk_size=chunk_size)(*point.tensors)
        curvature = hessian(of_output)(output).reshape(output.numel(), output.numel())
    found = []
    for j, t in zip(rows, point.tensors, strict=True):
        j = j.reshape(output.numel(), t.numel())
        found.append((j * (curvature.to(j.dtype) @ j)).sum(0).reshape(t.shape))
    return point.tree(found)


def jacobian_diagonal(
    f: Callable[..., Any],
    *,
    probes: int | None = None,
    distribution: str = "rademacher",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
    standard_error: bool = False,
) -> Callable[..., Any]:
    r"""A function that returns the derivative of each element of ``f(x)`` with respect to the same element of x.

    .. math::
        d_i = \frac{\partial f_i}{\partial x_i}, \qquad \text{with probes} \quad d \approx \frac1n \sum_{k=1}^n z_k \odot J z_k

    Otherwise like :func:`hessian_diagonal`; the cost is one tangent for each element of x, or for each probe.

    Args:
        f: Returns what its first argument is: a tensor of the same shape, or the same structure.
        probes: The number of random directions, drawn at each call; None for the exact diagonal.
        distribution: ``"rademacher"`` or ``"normal"``.
        generator: The generator of the probes.
        chunk_size: How many directions are computed at once; None for all.
        standard_error: Whether the result is a pair, with the standard error of the mean over the probes.

    Returns:
        A function with the arguments of ``f``, whose result has the structure and shapes of the first one.

    Raises:
        TypeError: ``f`` is not callable. When called: a leaf is not a floating tensor.
        ValueError: As of :func:`hessian_diagonal`. When called: the result of ``f`` is not like its argument.

    Example:
        >>> import torch, fullgrad
        >>> f = lambda x: x * x.sum()
        >>> fullgrad.forward.jacobian_diagonal(f)(torch.tensor([1.0, 2.0]))
        tensor([4., 5.])

    Source: as of :func:`hessian_diagonal`.
    """
    directions = Probes("jacobian_diagonal", probes, distribution, generator, chunk_size, standard_error)

    return Along("jacobian_diagonal", f, _jacobian_diagonal, directions)


def _jacobian_diagonal(f: Callable[..., Any], settings: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (directions,), field = settings, _Field("jacobian_diagonal", f, args, kwargs)
    if directions.count is None:
        return field.point.by_element(directions.map(field.point, field.entry, field.point.indices()))
    estimate = lambda *z: field.point.tree(field.products(*z)[1])  # noqa: E731
    return directions.mean(directions.map(field.point, estimate, *field.point.probes(directions)))


def divergence(
    f: Callable[..., Any],
    *,
    value: bool = False,
    probes: int | None = None,
    distribution: str = "rademacher",
    generator: torch.Generator | None = None,
    chunk_size: int | None = None,
    standard_error: bool = False,
) -> Callable[..., Any]:
    r"""A function that returns the divergence of a field, the trace of its Jacobian.

    .. math::
        \operatorname{div} f = \sum_i \frac{\partial f_i}{\partial x_i}, \qquad \text{with probes} \quad
        \operatorname{div} f \approx \frac1n \sum_{k=1}^n z_k \cdot J z_k

    The change of a log-density along an ordinary differential equation, as in continuous flows and diffusion models, where probes
    are Hutchinson's estimate. Otherwise like :func:`jacobian_diagonal`.

    Args:
        f: Returns what its first argument is: a tensor of the same shape, or the same structure.
        value: Whether the result begins with ``f(x)``, which is computed anyway.
        probes: The number of random directions, drawn at each call; None for the exact divergence.
        distribution: ``"rademacher"`` or ``"normal"``.
        generator: The generator of the probes.
        chunk_size: How many directions are computed at once; None for all.
        standard_error: Whether the result ends with the standard error of the mean over the probes.

    Returns:
        A function with the arguments of ``f``, whose result is the divergence, a tensor of one number; or a tuple of the value,
        the divergence and its standard error, of those that are asked for.

    Raises:
        TypeError: ``f`` is not callable. When called: a leaf is not a floating tensor.
        ValueError: As of :func:`jacobian_diagonal`.

    Example:
        >>> import torch, fullgrad
        >>> field = lambda x, t: t * x ** 2
        >>> fullgrad.forward.divergence(field, value=True)(torch.tensor([1.0, 2.0]), torch.tensor(0.5))
        (tensor([0.5000, 2.0000]), tensor(3.))

    Source: Hutchinson (1989); Grathwohl et al., FFJORD, https://arxiv.org/abs/1810.01367; Song et al.,
    https://arxiv.org/abs/2011.13456.
    """
    checks.flag("divergence", "value", value)
    directions = Probes("divergence", probes, distribution, generator, chunk_size, standard_error)

    return Along("divergence", f, _divergence, directions, value)


def _divergence(f: Callable[..., Any], settings: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (directions, value), field = settings, _Field("divergence", f, args, kwargs)
    if directions.count is None:
        values, entries = directions.map(field.point, field.both, field.point.indices())
        found = (entries.sum(0),)
    else:
        values, products = directions.map(field.point, field.products, *field.point.probes(directions))
        mean = directions.mean(sum(p.reshape(p.shape[0], -1).sum(-1) for p in products))
        found = mean if directions.standard_error else (mean,)
    if value:
        found = field.point.tree([v[0] for v in values]), *found
    return found if len(found) > 1 else found[0]


class _Field:
    """A function whose value is like its argument, at a point."""

    def __init__(self, name: str, f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, *constants = args
        self.name, self.point = name, Point(name, "x", x)
        self.of_tensors = self.point.function(f, constants, kwargs)

    def along(self, *tangents: Tensor) -> tuple[Any, Any]:
        return without_aux(jvp(self._values, tuple(self.point.tensors), self.point.tangents(tangents)))

    def _values(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves, spec = pytree.tree_flatten(self.of_tensors(*tensors))
        is_like = spec == self.point.spec and all(
            isinstance(y, Tensor) and y.shape == t.shape for y, t in zip(leaves, tensors, strict=True)
        )
        if not is_like:
            shapes = [tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__ for y in leaves]
            raise ValueError(
                f"{self.name}: `f` must return what its first argument is, of the shapes {[tuple(t.shape) for t in tensors]}, "
                f"got {shapes}. It is a function of one sample; a batch is a dimension of torch.func.vmap."
            )
        return tuple(leaves)

    def both(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The value, and an entry of the diagonal."""
        unit = self.point.unit(index)
        values, tangents = self.along(*unit)
        return values, sum((t * u).sum() for t, u in zip(tangents, unit, strict=True))  # pyright: ignore[reportReturnType]

    def entry(self, index: Tensor) -> Tensor:
        return self.both(index)[1]

    def products(self, *directions: Tensor) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """The value, and a direction times the Jacobian's product with it, element by element."""
        values, tangents = self.along(*directions)
        return values, [t * z for t, z in zip(tangents, directions, strict=True)]
