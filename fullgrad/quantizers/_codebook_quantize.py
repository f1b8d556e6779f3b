"""`codebook_quantize`: round to any numbers, which may learn."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.batching import aligned
from fullgrad._core.fast import replaceable
from fullgrad._core.function import Function
from fullgrad._core.opmath import divided
from fullgrad._core.shards import reshaped
from fullgrad._core.windows import where_between
from fullgrad._dispatch import holds
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Parameter
from fullgrad.quantizers._arithmetic import to_compute

INSIDE = ("exact", "all")


def codebook_quantize(x: Tensor, codebook: Tensor, scale: Parameter | None = None, *, inside: str = "all") -> Tensor:
    r"""Round to the nearest number of a codebook, times a scale; both learn.

    .. math::
        v = x / s, \quad k = \operatorname{argmin}_j |v - c_j|, \quad y = c_k s, \qquad
        D_x = m, \quad D_s = c_k - m v, \quad D_{c_j} = s\,[\,j = k\,]

    for the mask *m* of ``inside``. The gradient of a level is the sum over its cell. Cells end halfway between two levels,
    computed in the dtype of the arithmetic; a tie goes to the lower one. With :math:`q' = m / s` wherever a derivative is
    differentiated again, the second derivatives are 0, but for :math:`\partial^2 y / \partial s\, \partial c_k = 1`. NaN gives
    NaN, infinities the ends. Half precision is computed in float32 and rounded once. Saved: ``x``, ``codebook`` and a tensor
    ``scale``; nothing where the derivative is 1.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        codebook: At least one number, in one dimension and in any order, such as :func:`levels` or
            :meth:`FloatFormat.numbers`.
        scale: Positive: a number; or a tensor that broadcasts to ``x``, or has one number per block, as in :func:`fake_quantize`;
            None for 1.
        inside: Where the gradient passes: ``"all"``, everywhere; ``"exact"``, where ``x / scale`` is between the smallest and the
            largest level.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x``, ``codebook`` or ``scale`` is not real.
        ValueError: ``codebook`` is empty or has other dimensions, ``scale`` is a number that is not positive and finite or has
            another shape, or ``inside`` is unknown.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> x, codebook = torch.tensor([-2.0, 0.1, 0.4, 0.5]), torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
        >>> y = quantizers.codebook_quantize(x, codebook)
        >>> y.detach()
        tensor([-1.,  0.,  0.,  0.])
        >>> torch.autograd.grad(y.sum(), codebook)
        (tensor([1., 3., 0.]),)

    Source: Dettmers et al., https://arxiv.org/abs/2305.14314; Yamamoto, https://arxiv.org/abs/2103.07156.
    """
    x = _arguments.floating_input("codebook_quantize", "x", x)
    check_codebook("codebook_quantize", codebook)
    if scale is not None:
        _arguments.check_scale("codebook_quantize", "scale", scale, x.dtype)
    checks.choice("codebook_quantize", "inside", inside, INSIDE)
    split, (scale,) = _arguments.in_blocks("codebook_quantize", x, None, {"scale": scale})
    if split is None:
        return CodebookQuantize.apply(x, scale, codebook, inside)
    return reshaped(CodebookQuantize.apply(reshaped(x, split), scale, codebook, inside), x.shape)


def check_codebook(name: str, codebook: Any) -> None:
    """At least one number, in one dimension."""
    checks.real_tensor(name, "codebook", codebook)
    if codebook.ndim != 1 or not holds(codebook.shape[0] != 0):
        raise ValueError(
            f"{name}: `codebook` must have one dimension and at least one number, got shape {tuple(codebook.shape)}."
        )


class _CodebookOperator(Function):
    """An operator of ``(x, scale, codebook, …)``. In batches a codebook has the leading dimensions of ``x`` in front."""

    @classmethod
    def dim_labels(cls, x: Tensor, scale: Parameter | None, codebook: Tensor, *rest: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The dimension of the levels is never split."""
        ndims = x.ndim, scale.ndim if isinstance(scale, Tensor) else 0
        n = max(ndims)
        elements, scales = (tuple(range(n - m, n)) for m in ndims)
        return [elements, scales, (*range(codebook.ndim - 1), None), *((),) * len(rest)], tuple(range(n))

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        x, scale, codebook, *rest = args
        if in_dims[2] is not None or codebook.ndim > 1:
            codebook = (
                codebook.expand(info.batch_size, *codebook.shape) if in_dims[2] is None else codebook.movedim(in_dims[2], 0)
            )
            if in_dims[0] is None:
                x, in_dims = x.expand(info.batch_size, *x.shape), (0, *in_dims[1:])
        x, scale = aligned(in_dims[:2], (x, scale))
        return cls.apply(x, scale, codebook, *rest), 0


class CodebookQuantize(_CodebookOperator):
    """The operator of :func:`codebook_quantize`."""

    @staticmethod
    def forward(x: Tensor, scale: Parameter | None, codebook: Tensor, inside: str) -> Tensor:
        return value(x, scale, codebook)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, codebook, ctx.inside = inputs
        tensors = (x, scale if isinstance(scale, Tensor) else None, codebook)
        ctx.number = None if isinstance(scale, Tensor) else scale
        ctx.dtype = output.dtype
        read = ctx.inside != "all" or any(ctx.needs_input_grad[1:3])
        ctx.save_for_backward(*(tensors if read else (None, None, None)))
        ctx.save_for_forward(*tensors)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, codebook = ctx.saved_tensors
        if x is None:
            return g, None, None, None
        return *gradients(ctx.needs_input_grad, g, x, ctx.number if scale is None else scale, codebook, ctx.inside), None

    @staticmethod
    def jvp(ctx: Any, to_x: Tensor | None, to_scale: Tensor | None, to_codebook: Tensor | None, *_: Any) -> Tensor:
        x, scale, codebook = ctx.saved_tensors
        x, s, c = to_compute(x, ctx.number if scale is None else scale, codebook)
        parts: list[Tensor] = []
        if to_x is not None:
            parts.append(_pass_in_range(to_x.to(x.dtype), x, s, c, ctx.inside))
        if to_codebook is not None:
            by_codebook = take(to_codebook.to(x.dtype), _index_of(x, s, c))
            parts.append(by_codebook if s is None else by_codebook * s)
        if to_scale is not None:
            parts.append(to_scale.to(x.dtype) * CodebookResidual.apply(x, s, c, ctx.inside))
        return functools.reduce(torch.add, parts).to(ctx.dtype)


class CodebookResidual(_CodebookOperator):
    """:math:`D_s = c_k - m v`, which has a derivative with respect to the codebook only."""

    @staticmethod
    def forward(x: Tensor, scale: Parameter, codebook: Tensor, inside: str) -> Tensor:
        v = quotient(x, scale)
        return _level(v, codebook) - _pass_between(v, v, codebook, inside)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, codebook, _ = inputs
        tensors = (x, scale if isinstance(scale, Tensor) else None, codebook)
        ctx.number = None if isinstance(scale, Tensor) else scale
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, codebook = ctx.saved_tensors
        if not ctx.needs_input_grad[2]:
            return None, None, None, None
        index = _index_of(x, ctx.number if scale is None else scale, codebook)
        return None, None, sum_by_level(g, index, codebook), None

    @staticmethod
    def jvp(ctx: Any, to_x: Any, to_scale: Any, to_codebook: Tensor | None, *_: Any) -> Tensor:
        x, scale, codebook = ctx.saved_tensors
        if to_codebook is None:
            to_codebook = torch.zeros_like(codebook)
        return take(to_codebook, _index_of(x, ctx.number if scale is None else scale, codebook))


class CodebookIndex(_CodebookOperator):
    """The index of the nearest level: integers, without a derivative."""

    @staticmethod
    def forward(x: Tensor, scale: Parameter | None, codebook: Tensor) -> Tensor:
        return _nearest(quotient(x, scale), codebook)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vjp(ctx: Any, g: Any) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None


@replaceable
def value(x: Tensor, scale: Any, codebook: Tensor) -> Tensor:
    """The nearest levels, times the scale."""
    wide, s, c = to_compute(x, scale, codebook)
    level = _level(quotient(wide, s), c)
    return (level if s is None else level * s).to(x.dtype)


@replaceable
def gradients(
    needed: Sequence[bool], g: Tensor, x: Tensor, scale: Any, codebook: Tensor, inside: str
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of ``x``, the scale and the codebook that are needed."""
    x, wide, s, c = to_compute(x, g, scale, codebook)
    by_x, by_scale, by_codebook = needed[:3]
    return (
        _pass_in_range(wide, x, s, c, inside).to(g.dtype) if by_x else None,
        wide * CodebookResidual.apply(x, s, c, inside) if by_scale else None,
        sum_by_level(wide if s is None else wide * s, _index_of(x, s, c), c) if by_codebook else None,
    )


def _index_of(x: Tensor, scale: Any, codebook: Tensor) -> Tensor:
    """The index of the nearest level, for rules, in which it is a constant."""
    return CodebookIndex.apply(*[t.detach() if isinstance(t, Tensor) else t for t in (x, scale, codebook)])


def quotient(x: Tensor, scale: Any) -> Tensor:
    return x if scale is None else divided(x, scale)


def level_at(v: Tensor, size: Tensor, below: Tensor) -> Tensor:
    """The level that has ``below`` sorted levels before it; NaN for NaN."""
    return torch.where(v.isnan(), v, take(size, below))


def _level(v: Tensor, codebook: Tensor) -> Tensor:
    """The nearest level in a codebook."""
    size = codebook.sort(stable=True).values
    return level_at(v, size, count_below(v, size))


def _nearest(v: Tensor, codebook: Tensor) -> Tensor:
    """The index of the nearest level in a codebook."""
    size, order = codebook.sort(stable=True)
    return take(order, count_below(v, size))


@replaceable
def count_below(v: Tensor, size: Tensor) -> Tensor:
    """The number of midpoints between sorted levels that are below a number; all for NaN."""
    middles = midpoints(size)
    flat = v.reshape(*size.shape[:-1], -1).contiguous()
    return torch.searchsorted(middles.contiguous(), flat).reshape(v.shape)


def midpoints(size: Tensor) -> Tensor:
    middles = (size[..., 1:] + size[..., :-1]) / 2
    return torch.where(middles.isinf(), size[..., 1:] / 2 + size[..., :-1] / 2, middles)  # the sum may overflow


@replaceable
def take(codebook: Tensor, index: Tensor) -> Tensor:
    """The numbers of a codebook at some indices."""
    return codebook.gather(-1, index.reshape(*codebook.shape[:-1], -1)).reshape(index.shape)


def sum_by_level(g: Tensor, index: Tensor, codebook: Tensor) -> Tensor:
    """The transpose of `take`."""
    zeros = torch.zeros(codebook.shape, dtype=g.dtype, device=g.device)
    flat = (*codebook.shape[:-1], -1)
    return zeros.scatter_add(-1, index.reshape(flat), g.reshape(flat))


def _pass_in_range(g: Tensor, x: Tensor, scale: Any, codebook: Tensor, inside: str) -> Tensor:
    """``g`` where the gradient passes, else 0."""
    if inside == "all":
        return g
    x, scale, codebook = [t.detach() if isinstance(t, Tensor) else t for t in (x, scale, codebook)]
    return _pass_between(g, quotient(x, scale), codebook, inside)


def _pass_between(g: Tensor, v: Tensor, codebook: Tensor, inside: str) -> Tensor:
    if inside == "all":
        return g
    leading = codebook.shape[:-1]
    shape = (*leading, *(1,) * (v.ndim - len(leading)))
    return where_between(g, v, codebook.amin(-1).reshape(shape), codebook.amax(-1).reshape(shape))
