"""`sparse_jacobian` and `sparse_hessian`: many columns or rows in one direction, by a coloring of the pattern."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jacfwd, jvp, vjp

from fullgrad._core import checks
from fullgrad._core.recomputed import with_aux
from fullgrad._dispatch import TorchDispatchMode, is_tracing, pytree, transforms_active
from fullgrad._engine.random_states import same_draws
from fullgrad.forward._along import Along
from fullgrad.forward._context import right_derivatives
from fullgrad.forward._curve import is_floating
from fullgrad.forward._directions import mapped, positive_or_none, returned

_PROBES = 3  # points at which the pattern is looked for


def sparse_jacobian(
    f: Callable[..., Tensor], pattern: Tensor | None = None, *, value: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    r"""A function that returns the Jacobian of ``f``, whose nonzero entries are known, as a sparse tensor.

    .. math::
        J_{ij} = \frac{\partial f_i}{\partial x_j} \quad \text{where } P_{ij}, \qquad J v \text{ for } v = \sum_{j \in C} e_j

    Columns that have no row in common get one color, and one tangent computes all columns C of a color; or rows one gradient, if
    fewer colors do. A band of any length needs as many as it is wide. The pattern is colored once. One direction more, a random
    one, tells in each call whether the pattern lacks an entry, which would be lost or added to another one: whether a row is off
    by more than rounding in the least precise dtype of ``f``, 1e-4 of its size in float32, 0.03 in float16, 0.09 in bfloat16.

    Args:
        f: A function of a vector of n elements (and constants), which returns a vector of m elements.
        pattern: A tensor (m, n) of bools, dense or sparse: where the Jacobian may differ from 0. Without it, the first call
            computes whole Jacobians at the point and near it, and keeps the places where one of them differs from 0.
        value: Whether the result is the pair of the value and the Jacobian.
        chunk_size: How many colors are computed at once; None for all.

    Returns:
        A function with the arguments of ``f``. The Jacobian is a sparse COO tensor (m, n), coalesced, with the entries of the
        pattern, also those that are 0; a backward and `torch.func.grad` differentiate its values. Torch has no batches and no
        tangents of sparse tensors, so there is no `vmap`, `jvp` or `jacfwd` around it.

    Raises:
        TypeError: ``f`` is not callable, or ``pattern`` is not a tensor of bools. When called: x or the result is not floating.
        ValueError: ``pattern`` does not have two dimensions, or ``chunk_size`` is not positive. When called: x is empty, the
            shapes differ from those of the pattern, or the pattern lacks an entry.

    Example:
        >>> import torch, fullgrad
        >>> pattern = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)
        >>> jacobian = fullgrad.forward.sparse_jacobian(lambda x: x ** 2 * torch.cat([x[:1], x[:-1]]), pattern)
        >>> jacobian(torch.tensor([1.0, 2.0, 3.0, 4.0])).to_dense()
        tensor([[ 3.,  0.,  0.,  0.],
                [ 4.,  4.,  0.,  0.],
                [ 0.,  9., 12.,  0.],
                [ 0.,  0., 16., 24.]])

    Source: Curtis, Powell, Reid, On the estimation of sparse Jacobian matrices (1974); Gebremedhin, Manne, Pothen, What color is
    your Jacobian? (2005).
    """
    checks.flag("sparse_jacobian", "value", value)
    positive_or_none("sparse_jacobian", "chunk_size", chunk_size)
    return Along("sparse_jacobian", f, _sparse_jacobian, Pattern("sparse_jacobian", pattern), value, chunk_size)


def sparse_hessian(
    f: Callable[..., Tensor], pattern: Tensor | None = None, *, value: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    r"""A function that returns the Hessian of ``f``, whose nonzero entries are known, as a sparse tensor.

    .. math::
        H_{ij} = \frac{\partial^2 f}{\partial x_i \partial x_j} \quad \text{where } P_{ij}

    :func:`sparse_jacobian` of the gradient: one product with the Hessian for each color of the columns, and one to look for
    entries that the pattern lacks.

    Args:
        f: A function of a vector of n elements (and constants), which returns one number.
        pattern: A tensor (n, n) of bools, dense or sparse: where the Hessian may differ from 0. Without it, the first call looks
            for it as :func:`sparse_jacobian` does.
        value: Whether the result is the pair of the value and the Hessian.
        chunk_size: How many colors are computed at once; None for all.

    Returns:
        A function with the arguments of ``f``, which returns a sparse COO tensor (n, n), coalesced.

    Raises:
        TypeError: As of :func:`sparse_jacobian`.
        ValueError: As of :func:`sparse_jacobian`. When called: ``f`` does not return one number.

    Example:
        >>> import torch, fullgrad
        >>> hessian = fullgrad.forward.sparse_hessian(lambda x: (x[1:] * x[:-1] ** 2).sum())
        >>> hessian(torch.tensor([1.0, 2.0, 3.0])).to_dense()
        tensor([[4., 2., 0.],
                [2., 6., 4.],
                [0., 4., 0.]])

    Source: as of :func:`sparse_jacobian`.
    """
    checks.flag("sparse_hessian", "value", value)
    positive_or_none("sparse_hessian", "chunk_size", chunk_size)
    return Along("sparse_hessian", f, _sparse_hessian, Pattern("sparse_hessian", pattern), value, chunk_size)


def _sparse_jacobian(f: Callable[..., Any], settings: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (pattern, value, chunk_size), (x, *constants) = settings, args

    def vector(x: Tensor) -> tuple[Tensor, Tensor]:
        y = returned("sparse_jacobian", f(x, *constants, **kwargs))
        checks.floating_tensor("sparse_jacobian", "f(x)", y)
        if y.ndim != 1:
            raise ValueError(f"sparse_jacobian: `f` must return one dimension, got the shape {tuple(y.shape)}.")
        return y, y

    found, jacobian = pattern.compute(vector, x, chunk_size, by_rows=True)
    return (found, jacobian) if value else jacobian


def _sparse_hessian(f: Callable[..., Any], settings: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (pattern, value, chunk_size), (x, *constants) = settings, args

    def scalar(x: Tensor) -> tuple[Tensor, Tensor]:
        y = returned("sparse_hessian", f(x, *constants, **kwargs))
        checks.floating_tensor("sparse_hessian", "f(x)", y)
        if y.numel() != 1:
            raise ValueError(f"sparse_hessian: `f` must return one number, got the shape {tuple(y.shape)}.")
        return y.reshape(()), y

    found, hessian = pattern.compute(grad(scalar, has_aux=True), x, chunk_size, by_rows=False)
    return (found, hessian) if value else hessian


class Pattern:
    """The places of a Jacobian's entries, and the colors of its columns and rows."""

    def __init__(self, name: str, pattern: Tensor | None) -> None:
        self.name, self.indices, self.kept = name, None, None
        if pattern is not None:
            checks.bool_tensor(name, "pattern", pattern)
            if pattern.ndim != 2:
                raise ValueError(f"{name}: `pattern` must have two dimensions, got the shape {tuple(pattern.shape)}.")
            self.color(pattern)

    def color(self, pattern: Tensor) -> None:
        """Note the entries of a pattern, and color them."""
        places = pattern.to_sparse_coo().coalesce()
        self.indices, self.shape = places.indices()[:, places.values()], tuple(pattern.shape)
        rows, columns = self.indices.tolist()
        self.columns, self.rows = (
            torch.tensor(_colors(own, across, n), device=pattern.device)
            for own, across, n in ((columns, rows, self.shape[1]), (rows, columns, self.shape[0]))
        )

    def compute(self, f: Callable[..., Any], x: Any, chunk_size: int | None, by_rows: bool) -> tuple[Tensor, Tensor]:
        """The second result of a function, its value, and the Jacobian of the first one."""
        checks.floating_tensor(self.name, "x", x)
        if x.ndim != 1:
            raise ValueError(f"{self.name}: `x` must have one dimension, got the shape {tuple(x.shape)}.")
        if not x.numel():
            raise ValueError(f"{self.name}: `x` must have elements, got the shape {tuple(x.shape)}.")
        with right_derivatives():
            if self.indices is None:
                self.color(_found(f, x))
            if x.shape[0] != self.shape[1]:  # pyright: ignore[reportOptionalMemberAccess]
                raise ValueError(f"{self.name}: `pattern` has {self.shape[1]} columns, and `x` {x.shape[0]} elements.")
            plan = self._plan(x, by_rows)
            value, products = self._directions(f, x, plan.seeds, chunk_size, plan.by_rows)
        entries = products.reshape(-1)[plan.places]
        # The numbers of code that is transformed or traced cannot be read.
        if not is_tracing() and not transforms_active():
            self._check(f, x, entries, products[-1], plan)
        indices = plan.indices.clone()  # which the caller may write to
        return value, torch.sparse_coo_tensor(indices, entries, self.shape, check_invariants=False, is_coalesced=True)

    def _plan(self, x: Tensor, by_rows: bool) -> "_Plan":
        """The directions for a tensor, kept for the next call, but for those that belong to a transform or a trace."""
        key, plan = (x.dtype, x.device), self.kept
        if plan is None or plan.key != key:
            plan = _Plan(self, key, by_rows)
            is_own = is_tracing() or transforms_active() or torch.is_inference_mode_enabled()
            self.kept = None if is_own else plan
        return plan

    def _directions(self, f: Any, x: Tensor, seeds: Tensor, chunk_size: int | None, by_rows: bool) -> tuple[Tensor, Tensor]:
        """The value, and the Jacobian's product with each seed."""

        def vector(x: Tensor) -> tuple[Tensor, Tensor]:
            y, value = f(x)
            if tuple(y.shape) != self.shape[:1]:
                raise ValueError(
                    f"{self.name}: `f` must return {self.shape[0]} elements, as the pattern says, got {tuple(y.shape)}."
                )
            return y, value

        def along(v: Tensor) -> tuple[Tensor, Tensor]:
            _, product, value = with_aux(jvp(vector, (x,), (v,), has_aux=True))
            return value, product

        if by_rows:
            y, back, value = with_aux(vjp(vector, x, has_aux=True))
            return value, mapped(self.name, lambda g: back(g.to(y.dtype))[0], [seeds], chunk_size)
        values, products = mapped(self.name, along, [seeds], chunk_size)
        return values[0], products

    def _check(self, f: Any, x: Tensor, entries: Tensor, product: Tensor, plan: "_Plan") -> None:
        """Refuse a pattern that lacks an entry."""
        dtype = torch.promote_types(product.dtype, torch.float32)
        terms, product = (entries.detach() * plan.weights).to(dtype), product.detach().to(dtype)
        zeros = torch.zeros_like(product)
        distance = (zeros.index_add(0, plan.into, terms) - product).abs()
        size = zeros.index_add(0, plan.into, terms.abs()) + product.abs()
        is_off = lambda dtypes: bool((distance > _tolerance(dtypes) * size).any())  # noqa: E731
        # Only then it matters in what precision the function computes.
        if is_off([x.dtype, entries.dtype]) and is_off(_dtypes(f, x)):
            matrix = self.name.removeprefix("sparse_").title()
            raise ValueError(
                f"{self.name}: the pattern lacks an entry of the {matrix} at this point. Add it to `pattern`, or pass one that "
                "has every place where an entry may differ from 0."
            )


class _Plan:
    """The directions of a pattern for one dtype and device: a row of ``seeds`` for each color, and a random one."""

    def __init__(self, pattern: Pattern, key: tuple[torch.dtype, torch.device], by_rows: bool) -> None:
        self.key, (dtype, device) = key, key
        self.by_rows = by_rows and _count(pattern.rows) < _count(pattern.columns)
        colors = (pattern.rows if self.by_rows else pattern.columns).to(device)
        self.indices: Tensor = pattern.indices.to(device)  # pyright: ignore[reportOptionalMemberAccess]
        out, self.into = self.indices if self.by_rows else self.indices.flip(0)  # of a direction and of its product
        probe = torch.linspace(1, 2, colors.numel(), dtype=dtype, device=device).mul(7919).sin()
        units = (colors == torch.arange(_count(colors), device=device).unsqueeze(1)).to(dtype)
        self.seeds = torch.cat([units, probe.unsqueeze(0)])
        # Where the entries are in the flattened products, and what each is multiplied with in that of the random direction.
        self.places = colors[out] * pattern.shape[1 if self.by_rows else 0] + self.into
        self.weights = probe[out]


class _Dtypes(TorchDispatchMode):
    """Notes the floating dtypes of what torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found |= {v.dtype for v in pytree.tree_leaves(result) if is_floating(v)}
        return result


def _dtypes(f: Callable[..., Any], x: Tensor) -> set[torch.dtype]:
    """The floating dtypes through which the result of a function goes."""
    noted = _Dtypes()
    with same_draws(), torch.no_grad(), noted:
        f(x.detach())
    return noted.found | {x.dtype}


def _tolerance(dtypes: Iterable[torch.dtype]) -> float:
    """The relative error of sums that is rounding, in the least precise dtype; of 16 bits 1e3 roundings would hide everything."""
    eps = max(torch.finfo(d).eps for d in dtypes)
    return min(1e3 * eps, eps**0.5)


def _found(f: Callable[..., Any], x: Tensor) -> Tensor:
    """The places where a Jacobian at a point, or near it, differs from 0."""
    first = lambda x: f(x)[0]  # noqa: E731
    noise = [torch.linspace(1, 2, x.numel(), dtype=x.dtype, device=x.device).mul(97 * k).sin() / 8 for k in range(_PROBES)]
    every = [jacfwd(first)((x + k * (1 + x.abs())).detach()).detach() for k in [torch.zeros_like(x), *noise[1:]]]
    return torch.stack([j != 0 for j in every]).any(0)


def _count(colors: Tensor) -> int:
    return int(colors.max()) + 1 if colors.numel() else 0


def _colors(own: Sequence[int], across: Sequence[int], count: int) -> list[int]:
    """A color for each line of a matrix, such that two lines of one color have no entry in the same place: the first color that
    is free, line by line.
    """
    places: list[list[int]] = [[] for _ in range(count)]
    for line, place in zip(own, across, strict=True):
        places[line].append(place)
    taken: dict[int, set[int]] = {}
    colors = []
    for at in places:
        used = set().union(*[taken.setdefault(place, set()) for place in at])
        color = next(c for c in range(len(used) + 1) if c not in used)
        colors.append(color)
        for place in at:
            taken[place].add(color)
    return colors
