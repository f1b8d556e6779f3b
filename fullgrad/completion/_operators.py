"""The formulas of the operators that `completing` completes, in operations whose derivatives torch has right.

Each takes and returns what the operator of torch does.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, innermost, torch_formula

WRONG = "forward mode, differentiated again, is wrong"
NO_SECOND = "there is no derivative of its backward"
NO_FORWARD = "there is no forward mode"


class Completed(NamedTuple):
    """An operator of torch: its formula, what torch lacks, and whether torch cannot batch it."""

    formula: Callable[..., Any]
    lacks: str
    batched: bool = False


COMPLETED: dict[str, Completed] = {}


def completes(name: str, lacks: str, batched: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that enters the formula of an operator of ``torch.ops.aten``."""

    def enter(formula: Callable[..., Any]) -> Callable[..., Any]:
        COMPLETED[name] = Completed(formula, lacks, batched)
        return formula

    return enter


def _accumulated(x: Tensor) -> Tensor:
    """The tensor in the precision of sums: half precision in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _stored(x: Tensor, like: Tensor) -> Tensor:
    """Statistics in the dtype in which torch returns them."""
    return x.to(like.dtype) if like.device.type == "cpu" else x


# --- Normalizations ---------------------------------------------------------------------------------------------------------


def _normalized(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The tensor with mean 0 and variance 1, the mean, and the inverse of the standard deviation."""
    mean = x.mean(dims, keepdim=True)
    centered = x - mean
    inverse = torch.rsqrt(centered.square().mean(dims, keepdim=True) + eps)
    return centered * inverse, mean, inverse


@completes("native_layer_norm", WRONG)
def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    y, mean, inverse = _normalized(_accumulated(x), tuple(range(-len(shape), 0)), eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype), _stored(mean, x), _stored(inverse, x)


@completes("native_group_norm", WRONG)
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    y, mean, inverse = _normalized(_accumulated(x).reshape(n, groups, channels // groups * size), (-1,), eps)
    y, shape = y.reshape(x.shape), (1, channels, *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    return y.to(x.dtype), _stored(mean.squeeze(-1), x), _stored(inverse.squeeze(-1), x)


@completes("native_batch_norm", WRONG)
def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    dims, shape = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    own = _accumulated(x)
    if training:
        y, mean, inverse = _normalized(own, dims, eps)
        count = x.numel() // x.shape[1]
        variance = inverse.pow(-2) - eps
        for kept, new in ((running_mean, mean), (running_var, variance * (count / max(count - 1, 1)))):
            if kept is not None:
                _update(kept, new.reshape(-1), momentum)
        saved = _stored(mean.reshape(-1), x), _stored(inverse.reshape(-1), x)
    else:
        mean, variance = running_mean, running_var
        if mean is None or variance is None:
            raise RuntimeError("Batch norm in evaluation mode needs running statistics.")
        y = (own - mean.reshape(shape)) * torch.rsqrt(variance.reshape(shape) + eps)
        saved = x.new_empty(0), x.new_empty(0)
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    return y.to(x.dtype), *saved


def _update(kept: Tensor, new: Tensor, momentum: float) -> None:
    if innermost(new).shape != innermost(kept).shape:
        raise RuntimeError(
            "Batch norm got a batched tensor, and running statistics that are not batched, which it would update in place. "
            "Set track_running_stats=False, or call .eval()."
        )

    def update() -> None:
        with torch.no_grad():
            innermost(kept).lerp_(innermost(new).detach().to(kept.dtype), momentum)

    below_transforms(update)


# --- Attention --------------------------------------------------------------------------------------------------------------


@completes("_scaled_dot_product_flash_attention_for_cpu", NO_SECOND, batched=True)
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    query_, key_, value_ = map(_accumulated, (query, key, value))
    scores = query_ @ key_.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        rows, columns = query.shape[-2], key.shape[-2]
        scores = scores.masked_fill(torch.ones(rows, columns, dtype=torch.bool, device=query.device).triu(1), -torch.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    return (_safe_softmax(scores, -1) @ value_).to(query.dtype), torch.logsumexp(scores, -1)


@completes("_safe_softmax", WRONG)
def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    own = _accumulated(x)
    most = own.detach().amax(dim, keepdim=True)
    exponentials = torch.exp(own - torch.where(most == -torch.inf, 0, most))
    total = exponentials.sum(dim, keepdim=True)
    return (exponentials / torch.where(total == 0, 1, total)).to(x.dtype)


# --- Linear algebra ---------------------------------------------------------------------------------------------------------


def _lu(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factors, pivots, the diagonal of U, and the sign of the permutation."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    count = torch.arange(1, a.shape[-1] + 1, device=a.device)
    sign = torch.where(pivots != count, -1, 1).prod(-1).to(a.dtype)
    return factors, pivots, factors.diagonal(dim1=-2, dim2=-1), sign


@completes("_linalg_det", WRONG)
def _det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    factors, pivots, diagonal, sign = _lu(a)
    return sign * diagonal.prod(-1), factors.detach(), pivots


@completes("_linalg_slogdet", WRONG)
def _slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    factors, pivots, diagonal, sign = _lu(a)
    size = diagonal.abs()
    return sign * (diagonal / size).prod(-1), size.log().sum(-1), factors.detach(), pivots


@completes("_linalg_solve_ex", WRONG)
def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    factors, pivots, info = torch.linalg.lu_factor_ex(a, check_errors=check_errors)
    is_vector = left and (b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]))
    right, inverse = b.unsqueeze(-1) if is_vector else b, torch.linalg.inv_ex(a)[0]
    x = inverse @ right if left else right @ inverse  # torch's lu_solve is wrong in a batch of Hessians
    return x.squeeze(-1) if is_vector else x, factors.detach(), pivots, info


@completes("cholesky_inverse", WRONG)
def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    inverse = torch.linalg.solve_triangular(factor, unit, upper=upper)
    return inverse @ inverse.mH if upper else inverse.mH @ inverse


# --- Activations and losses -------------------------------------------------------------------------------------------------


@completes("glu", NO_FORWARD)
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


@completes("hardsigmoid", NO_SECOND)
def _hardsigmoid(x: Tensor) -> Tensor:
    return torch.where(x >= 3, 1, torch.where(x <= -3, 0, x / 6 + 0.5)).to(x.dtype)


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return (loss, loss.mean(), loss.sum())[reduction] if reduction else loss


@completes("huber_loss", NO_FORWARD)
def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    error = x - target
    size = error.abs()
    return _reduced(torch.where(size < delta, 0.5 * error * error, delta * (size - 0.5 * delta)), reduction)


@completes("soft_margin_loss", NO_SECOND)
def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _reduced(torch.log1p(torch.exp(-target * x)), reduction)


def _taken(x: Tensor, target: Tensor) -> Tensor:
    """The element of each row at the target."""
    return x.gather(-1, target.unsqueeze(-1))


@completes("multi_margin_loss", NO_SECOND, batched=True)
def _multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    x = torch.atleast_1d(x)
    target = target.reshape(x.shape[:-1])
    loss = (margin - _taken(x, target) + x).clamp(min=0).pow(p)
    if weight is not None:
        loss = loss * weight[target].unsqueeze(-1)
    others = torch.arange(x.shape[-1], device=x.device) != target.unsqueeze(-1)
    return _reduced(torch.where(others, loss, 0).sum(-1) / x.shape[-1], reduction)


@completes("multilabel_margin_loss_forward", NO_SECOND, batched=True)
def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    shape, x, target = target.shape, torch.atleast_1d(x), torch.atleast_1d(target)
    classes = torch.arange(x.shape[-1], device=x.device)
    counts = (target < 0).long().cumsum(-1) == 0  # the labels before the first negative one
    labels = torch.where(counts, target, 0)
    is_label = ((labels.unsqueeze(-1) == classes) & counts.unsqueeze(-1)).any(-2)
    margins = (1 - x.gather(-1, labels).unsqueeze(-1) + x.unsqueeze(-2)).clamp(min=0)
    loss = torch.where(counts.unsqueeze(-1) & ~is_label.unsqueeze(-2), margins, 0).sum((-1, -2)) / x.shape[-1]
    return _reduced(loss, reduction), is_label.to(x.dtype).reshape(shape)


@completes("logaddexp", "it is NaN where both are -inf")
def _logaddexp(a: Tensor, b: Tensor) -> Tensor:
    most = torch.maximum(a, b).detach()
    most = torch.where(most.isinf(), 0, most)
    total = torch.exp(a - most) + torch.exp(b - most)
    return torch.where(total == 0, -torch.inf, most + torch.where(total == 0, 1, total).log())


# --- Distances --------------------------------------------------------------------------------------------------------------


def _norm(d: Tensor, p: float) -> Tensor:
    """The norm of vectors, whose derivative at 0 is 0."""
    size = d.abs()
    if p == 0:
        return (d != 0).sum(-1).to(d.dtype)
    if p == 1:
        return size.sum(-1)
    if p == math.inf:
        return size.amax(-1)
    size = size * size if p == 2 else torch.where(size == 0, 0, torch.where(size == 0, 1, size).pow(p))
    total = size.sum(-1)
    return torch.where(total == 0, 0, torch.where(total == 0, 1, total).pow(1 / p))


@completes("_cdist_forward", NO_SECOND, batched=True)
def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@completes("_euclidean_dist", NO_SECOND, batched=True)
def _euclidean_dist(x1: Tensor, x2: Tensor) -> Tensor:
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), 2)


@completes("_pdist_forward", NO_SECOND, batched=True)
def _pdist(x: Tensor, p: float = 2) -> Tensor:
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return _norm(x[i] - x[j], p)


# --- Others -----------------------------------------------------------------------------------------------------------------


@completes("cholesky", NO_FORWARD, batched=True)
def _cholesky(a: Tensor, upper: bool = False) -> Tensor:
    return torch.linalg.cholesky(a, upper=upper)


@completes("mvlgamma", NO_FORWARD, batched=True)
def _mvlgamma(x: Tensor, p: int) -> Tensor:
    own = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    steps = torch.arange(p, dtype=own.dtype, device=x.device) / 2
    return torch.lgamma(own.unsqueeze(-1) - steps).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)


def _pixels(grid: Tensor, size: int, padding: int, align: bool) -> Tensor:
    """The coordinates of a grid in -1 to 1 as positions in one dimension."""
    x = (grid + 1) / 2 * (size - 1) if align else ((grid + 1) * size - 1) / 2
    if padding == 2:
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        distance = (x - low).abs()
        flips = torch.floor(distance.detach() / span)
        rest = distance - flips * span
        x = torch.where(flips % 2 == 0, rest + low, span - rest + low)
    return x if padding == 0 else x.clamp(0, size - 1)


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """The values of images ``(N, C, *sizes)`` at points ``(N, *points, dimensions)``, by lines between pixels or the nearest."""
    sizes, n = x.shape[2:], x.shape[0]
    positions = [_pixels(grid[..., i], size, padding, align) for i, size in enumerate(reversed(sizes))][::-1]
    corners = [torch.floor(p.detach()) for p in positions] if mode == 0 else [torch.round(p.detach()) for p in positions]
    total: Any = 0
    for corner in range(2 ** len(sizes)) if mode == 0 else (0,):
        weight, inside = torch.ones_like(positions[0]), torch.ones_like(positions[0], dtype=torch.bool)
        index = torch.zeros_like(positions[0], dtype=torch.long)
        for d, size in enumerate(sizes):
            is_next = corner >> d & 1
            place = corners[d] + is_next
            if mode == 0:
                part = positions[d] - corners[d]
                weight = weight * (part if is_next else 1 - part)
            inside = inside & (place >= 0) & (place < size)
            index = index * size + place.clamp(0, size - 1).long()
        values = x.flatten(2).gather(2, index.reshape(n, 1, -1).expand(n, x.shape[1], -1))
        values = values.reshape(*x.shape[:2], *grid.shape[1:-1])
        total = total + values * torch.where(inside, weight, 0).unsqueeze(1)
    return total


@completes("grid_sampler_2d", NO_SECOND, batched=True)
def _grid_sampler_2d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    if interpolation_mode == 2:
        return torch_formula(torch.ops.aten.grid_sampler_2d.default)(x, grid, interpolation_mode, padding_mode, align_corners)
    return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)


@completes("grid_sampler_3d", NO_SECOND, batched=True)
def _grid_sampler_3d(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)


# --- Reductions at indices: each place of the result looks at each element, n m numbers for n places and m elements --------


def _combined(own: Tensor, source: Tensor, chosen: Tensor, reduce: str, include_self: bool) -> Tensor:
    """The reduction of ``source[..., chosen[i]]`` with ``own[..., i]``; of nothing it is the latter."""
    counts, every = chosen.sum(-1), source.unsqueeze(-2)
    kept = torch.ones_like(chosen[..., :1]) if include_self else counts.unsqueeze(-1) == 0
    if reduce == "mean":
        total = torch.where(chosen, every, 0).sum(-1) + torch.where(kept.squeeze(-1), own, 0)
        return total / (counts + kept.squeeze(-1)).to(own.dtype)
    neutral, function = {"prod": (1, torch.prod), "amax": (-torch.inf, torch.amax), "amin": (torch.inf, torch.amin)}[reduce]
    parts = torch.cat([torch.where(chosen, every, neutral), torch.where(kept, own.unsqueeze(-1), neutral)], -1)
    return function(parts, -1)


@completes("scatter_reduce.two", "forward mode of products is wrong")
def _scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    if reduce != "prod":
        return NotImplemented
    if not x.ndim:
        return _scatter_reduce(
            *map(torch.atleast_1d, (x,)), 0, index.reshape(-1), src.reshape(-1), reduce, include_self=include_self
        ).reshape(())
    dim = dim % x.ndim
    x_, index_ = x.movedim(dim, -1), index.movedim(dim, -1)
    src_ = src.movedim(dim, -1)[tuple([slice(0, n) for n in index_.shape])]
    chosen = index_.unsqueeze(-2) == torch.arange(x_.shape[-1], device=x.device).unsqueeze(-1)
    part = x_[tuple([slice(0, n) for n in index_.shape[:-1]])]  # the index may leave the ends of other dimensions out
    y = _combined(part, src_, chosen, reduce, include_self)
    for d in range(x.ndim - 1):
        rest = x_.narrow(d, y.shape[d], x_.shape[d] - y.shape[d])
        y = torch.cat([y, rest[tuple([slice(0, n) if i > d else slice(None) for i, n in enumerate(y.shape)])]], d)
    return y.movedim(-1, dim)


@completes("index_reduce", NO_FORWARD, batched=True)
def _index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    if not x.ndim:
        y = _index_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self)
        return y.reshape(())
    x_, source_ = x.movedim(dim, -1), source.movedim(dim, -1)
    chosen = index.reshape(1, -1) == torch.arange(x_.shape[-1], device=x.device).unsqueeze(-1)
    chosen = chosen.expand(*x_.shape, chosen.shape[-1])
    return _combined(x_, source_, chosen, reduce, include_self).movedim(-1, dim)


@completes("_embedding_bag", NO_SECOND, batched=True)
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    if scale_grad_by_freq:
        return NotImplemented  # whose gradient is no derivative
    starts = offsets[:-1] if include_last_offset else offsets
    place = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    bag = torch.searchsorted(starts, place, right=True) - 1
    chosen = (bag == torch.arange(starts.shape[0], device=bag.device).unsqueeze(-1)) & (indices != padding_idx)
    rows, sizes = weight[indices], chosen.sum(-1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if mode == 2:
        most = torch.where(chosen.unsqueeze(-1), rows, -torch.inf).amax(1)
        y = torch.where((sizes == 0).unsqueeze(-1), 0, most)
    else:
        y = chosen.to(rows.dtype) @ rows
        y = y if mode == 0 else y / sizes.clamp(min=1).unsqueeze(-1)
    return y, bag, sizes, torch.zeros_like(sizes)
