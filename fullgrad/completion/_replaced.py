"""Operators under a transform by other calls of torch with the same values, which `vmap` and nested forward mode support."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullgrad._dispatch import (
    active_transforms,
    are_differentiated,
    below_transforms,
    first_sample,
    has_data,
    innermost,
    is_wrapped,
    transforms_active,
    vmaps_share_draws,
)
from fullgrad.completion._batches import LOST_NUMBER
from fullgrad.completion._registry import replaces


def _replaces_in_half_precision(name: str) -> None:
    op = getattr(torch.ops.aten, name)

    @replaces(name)
    def in_float(x: Tensor) -> Any:
        return op(x.float()).to(x.dtype) if x.dtype in (torch.float16, torch.bfloat16) else NotImplemented


for _name in ("special_i1", "special_i1e"):  # whose backwards torch lacks there
    _replaces_in_half_precision(_name)


# torch writes their tangent before it has read all of it, if the tensor that is written is another argument, too.
_READ_TWICE = ("mul_.Tensor", "pow_.Tensor", "float_power_.Tensor", "addcmul_", "addcdiv_", "lerp_.Tensor", "atan2_", "hypot_")
_READ_TWICE += ("xlogy_.Tensor",)


def _replaces_with_copies(name: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    @replaces(name)
    def with_copies(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        shared = [v for v in args if isinstance(v, Tensor) and _share_memory(x, v)]
        return op(x, *[v.clone() if any(v is s for s in shared) else v for v in args], **kwargs) if shared else NotImplemented


def _share_memory(x: Tensor, y: Tensor) -> bool:
    if x is y:
        return True
    a, b = innermost(x), innermost(y)
    if not (has_data(a) and has_data(b)) or not a.numel():
        return False  # the memory of no numbers is nowhere
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


for _name in _READ_TWICE:
    _replaces_with_copies(_name)


# torch's loop over a batch writes to views of a tensor, all of them at once, which tangents without memory cannot follow.
_WRITTEN_BY_LOOPS = ("scatter_.src", "scatter_.value", "index_copy_", "put_", "masked_fill_.Tensor")


def _replaces_by_a_copy(name: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet[:-1]), overload or "default")

    @replaces(name)
    def by_a_copy(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(op(x, *args, **kwargs)) if "Vmap" in active_transforms() else NotImplemented


for _name in _WRITTEN_BY_LOOPS:
    _replaces_by_a_copy(_name)


@replaces("fill_.Tensor")
def _fill_in_place(x: Tensor, value: Tensor) -> Any:
    """Newer versions of torch compare the memory of both, which tensors of transforms lack."""
    return x.copy_(value.expand(x.shape)) if transforms_active() and not value.ndim else NotImplemented


@replaces("rrelu")
def _rrelu(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Tensor:
    return NotImplemented if training else functional.leaky_relu(x, (lower + upper) / 2)


@replaces("rrelu_")
def _rrelu_in_place(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x.copy_(torch.ops.aten.rrelu(x.clone(), *args, **kwargs))


@replaces("tensor_split.tensor_indices_or_sections")
def _tensor_split(x: Tensor, where: Tensor, dim: int = 0) -> Any:
    if where.dtype != torch.int64 or where.ndim > 1 or where.device.type != "cpu":
        return NotImplemented  # torch has the words
    places: Any = where.item() if not where.ndim else [v.item() for v in where.unbind()]
    return torch.tensor_split(x, places, dim)


@replaces("narrow.Tensor")
def _narrow(x: Tensor, dim: int, start: Tensor, length: int) -> Any:
    if start.ndim or start.is_floating_point() or start.is_complex() or start.dtype == torch.bool:
        return NotImplemented  # torch has the words
    return x.narrow(dim, int(start), length)


@replaces("one_hot")
def _one_hot(x: Tensor, num_classes: int = -1) -> Any:  # torch's name
    """torch's own rule for a batch, which it has for the innermost transform alone: elsewhere it reads labels in Python."""
    if innermost(x).ndim == x.ndim or x.dtype != torch.int64 or num_classes <= 0:
        return NotImplemented  # torch has the words
    zeros = torch.zeros(*x.shape, num_classes, dtype=x.dtype, device=x.device)
    return zeros.scatter(-1, x.unsqueeze(-1), 1)


@replaces("item")
def _item(x: Tensor) -> Any:
    """torch refuses the number of a batch; one that all samples share would lose its derivative without an error."""
    is_batched = innermost(x).ndim > x.ndim
    if is_batched and (x.is_floating_point() or x.is_complex()) and any(are_differentiated([x])):
        raise RuntimeError(LOST_NUMBER)
    return NotImplemented


@replaces("_nested_tensor_from_mask_left_aligned")
def _is_left_aligned(x: Tensor, mask: Tensor) -> bool:
    """Encoders in evaluation put rows without padding into a nested tensor, which transforms do not take."""
    return False


def _replaces_an_index(name: str) -> None:
    op = getattr(torch.ops.aten, name).default

    @replaces(name)
    def with_a_row(x: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Any:
        """torch's rule for a batch takes an index that is a number for one of the whole dimension."""
        return NotImplemented if index.ndim else op(x, dim, index.reshape(1), *args, **kwargs)


for _name in ("index_select", "index_add", "index_add_", "index_copy"):
    _replaces_an_index(_name)


@replaces("roll")
def _roll(x: Tensor, shifts: Any, dims: Any = ()) -> Any:
    """torch rolls numbers, which are their samples, across the batch."""
    if x.ndim or dims or len(shifts) != 1:
        return NotImplemented  # torch has the words
    return x.clone()


@replaces("flip")
def _flip(x: Tensor, dims: Any) -> Any:
    """torch counts the dimension that a number is taken to have from that of the samples."""
    return NotImplemented if x.ndim else x.reshape(1).flip(dims).reshape(())


@replaces("squeeze.dim")
def _squeeze(x: Tensor, dim: int) -> Any:
    return x.squeeze(0) if not x.ndim and dim == -1 else NotImplemented


@replaces("squeeze_copy.dim")
def _squeeze_copy(x: Tensor, dim: int) -> Any:
    return torch.squeeze_copy(x, 0) if not x.ndim and dim == -1 else NotImplemented


@replaces("index_put")
def _index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """Numbers that are the same wherever a mask is True are written to as many places as it selects in each sample."""
    *whole, mask = indices or [None]
    if mask is None or mask.dtype != torch.bool or any(v is not None for v in whole) or "Vmap" not in active_transforms():
        return NotImplemented
    start, stop = len(whole), len(whole) + mask.ndim
    rest = x.ndim - stop  # the dimensions after those of the mask, before which the selected ones are one of the values
    if not is_wrapped(mask) or mask.shape != x.shape[start:stop] or values.dtype != x.dtype:
        return NotImplemented  # torch has the words
    if values.ndim > rest:
        where = values.ndim - rest - 1
        if values.shape[where] != 1:
            return NotImplemented  # as many values as the mask selects
        values = values.reshape(*values.shape[:where], *[1] * mask.ndim, *values.shape[where + 1 :])
    y = torch.where(mask.reshape(*mask.shape, *[1] * rest), x + values if accumulate else values, x)
    return y if y.shape == x.shape else NotImplemented


@replaces("index_put_")
def _index_put_in_place(x: Tensor, *args: Any) -> Any:
    y = _index_put(x, *args)
    return x.copy_(y) if isinstance(y, Tensor) else NotImplemented


def _replaces_with_a_whole_window(overload: str) -> None:
    op = getattr(torch.ops.aten.stft, overload)
    names = [v.name for v in op._schema.arguments]

    @replaces("stft" if overload == "default" else f"stft.{overload}")
    def with_a_whole_window(*args: Any, **kwargs: Any) -> Any:
        """torch copies a shorter window into zeros that all samples share."""
        given = dict(zip(names, args, strict=False)) | kwargs
        n, window = given["n_fft"], given.get("window")
        if window is None or "Vmap" not in active_transforms() or given.get("align_to_window"):
            return NotImplemented
        if window.ndim != 1 or not 0 < window.shape[0] < n or given.get("win_length") not in (None, window.shape[0]):
            return NotImplemented  # torch has the words
        missing = n - window.shape[0]
        window = functional.pad(window, (missing // 2, missing - missing // 2))
        return op(**given | {"window": window, "win_length": n})


for _name in torch.ops.aten.stft.overloads():
    _replaces_with_a_whole_window(_name)


# torch's derivative of these has the memory order of the indices, in which vmap puts no batch.
_OF_INDICES = ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "adaptive_max_pool2d_backward")
_OF_INDICES += ("adaptive_max_pool3d_backward",)


def _replaces_with_contiguous_indices(name: str) -> None:
    op = getattr(torch.ops.aten, name).default

    @replaces(name)
    def with_contiguous_indices(*args: Any) -> Any:
        *others, indices = args
        return NotImplemented if indices.is_contiguous() else op(*others, indices.contiguous())


for _name in _OF_INDICES:
    _replaces_with_contiguous_indices(_name)


@replaces("column_stack")
def _column_stack(tensors: Any) -> Tensor:
    return torch.hstack([v.reshape(-1, 1) if v.ndim < 2 else v for v in tensors])


@replaces("_batch_norm_with_update")
def _batch_norm_with_update(x: Tensor, *args: Any) -> Any:
    *options, momentum, eps = args
    found = torch.ops.aten._native_batch_norm_legit(x, *options, True, momentum, eps)
    return *found, torch.empty(0, dtype=torch.uint8, device=x.device)


@replaces("masked_select")
def _masked_select(x: Tensor, mask: Tensor) -> Any:
    """torch's gradient of a tensor that the mask is to broadcast does not take a batch."""
    if x.shape == mask.shape or mask.dtype != torch.bool:
        return NotImplemented
    return torch.masked_select(*torch.broadcast_tensors(x, mask))


@replaces("cosine_embedding_loss")
def _cosine_embedding_loss(x: Tensor, other: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 1) -> Any:
    """torch's steps, none of them in place: what it writes to is saved for a derivative of the tangent."""
    if not x.is_floating_point() or x.dtype != other.dtype or x.ndim not in (1, 2) or target.ndim != x.ndim - 1:
        return NotImplemented  # torch has the words
    x, other = torch.broadcast_tensors(x, other)
    total = (x * other).sum(-1)
    sizes = [(v * v).sum(-1) + 1e-12 for v in (x, other)]
    cosine = total / (sizes[0] * sizes[1]).sqrt()
    zero = torch.zeros_like(cosine)
    y = torch.where(target == 1, 1 - cosine, zero) + torch.where(target == -1, (cosine - margin).clamp_min(0), zero)
    return (lambda y: y, torch.mean, torch.sum)[reduction](y)


@replaces("dot")
def _dot(x: Tensor, y: Tensor) -> Any:
    """The product by a tangent that is 0 is a symbolic zero in torch, which has no view of its real part in forward mode."""
    return (x * y).sum() if x.is_complex() and y.is_complex() and x.shape == y.shape and x.ndim == 1 else NotImplemented


@replaces("vdot")
def _vdot(x: Tensor, y: Tensor) -> Any:
    return _dot(x.conj_physical(), y)


@replaces("hinge_embedding_loss")
def _hinge_embedding_loss(x: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 1) -> Any:
    """torch's tensor of zeros is that of all samples, whose tangent cannot be that of a sample."""
    if not x.is_floating_point() or x.dtype != target.dtype:
        return NotImplemented
    y = torch.where(target != 1, (margin - x).clamp_min(0), 0) + torch.where(target != -1, x, 0)
    return (lambda y: y, torch.mean, torch.sum)[reduction](y)


@replaces("_make_dual")
def _dual(x: Tensor, tangent: Tensor, level: int) -> Any:
    """torch has no view in forward mode of a tensor that is conjugated or negated in its memory, unless its tangent is, too."""
    if not x.is_conj() and not x.is_neg():
        return NotImplemented
    return torch.ops.aten._make_dual(x.resolve_conj().resolve_neg(), tangent, level)


def _replaces_factors(name: str) -> None:
    op = getattr(torch.ops.aten, name).default

    @replaces(name)
    def with_factors(x: Tensor, first: Tensor, second: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        """In a batch torch multiplies by both: 0 times what is no number is none, and integers have products with fractions."""
        if not (x.is_floating_point() or x.is_complex()):
            has_fractions = isinstance(beta, float) or isinstance(alpha, float)
            return op(x, first, second, beta=int(beta), alpha=int(alpha)) if has_fractions else NotImplemented
        if "Vmap" not in active_transforms() or (beta != 0 and (alpha != 0 or name == "baddbmm")):
            return NotImplemented
        every = torch.tensor(True, device=x.device)
        if beta == 0:
            x, beta = x.masked_fill(every, 0), 1  # the input stays one of the result's, whose slope is 0
        if alpha == 0 and name != "baddbmm":  # which multiplies in eager code, too
            first, second, alpha = first.masked_fill(every, 0), second.masked_fill(every, 0), 1
        return op(x, first, second, beta=beta, alpha=alpha)


for _name in ("addmm", "addmv", "addbmm", "baddbmm"):
    _replaces_factors(_name)


@replaces("addr")
def _addr(x: Tensor, first: Tensor, second: Tensor, **factors: Any) -> Any:
    """torch's rule adds a product, in which the dtype of a number does not count; else the number is broadcast before."""
    if x.ndim or first.ndim != 1 or second.ndim != 1 or x.dtype == first.dtype == second.dtype:
        return NotImplemented
    dtype = functools.reduce(torch.promote_types, (x.dtype, first.dtype, second.dtype))
    return torch.addr(x.to(dtype), first.to(dtype), second.to(dtype), **factors)


@replaces("linalg_lu_solve")
def _lu_solve(factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Any:
    """torch conjugates a solution from the right in its memory, but not its tangent."""
    if left or not b.is_complex() or b.ndim < 2:
        return NotImplemented
    return torch.linalg.lu_solve(factors, pivots, b.mH, adjoint=not adjoint).mH


@replaces("chain_matmul")
def _chain_matmul(matrices: Any) -> Any:
    return torch.linalg.multi_dot(matrices) if len(matrices) > 1 and "Vmap" in active_transforms() else NotImplemented


@replaces("lu_unpack")
def _lu_unpack(x: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:  # torch's names
    """torch takes the empty tensors of what is not asked for to have the dimension of a batch, which they have at one level."""
    if (unpack_data and unpack_pivots) or active_transforms().count("Vmap") < 2:
        return NotImplemented
    p, low, high = torch.lu_unpack(x, pivots)
    p, empty = p if unpack_pivots else x.new_empty(0), x.new_empty(0)
    return (p, low, high) if unpack_data else (p, empty, empty)


@replaces("linalg_lstsq")
def _lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """torch's rule for a batch takes vectors to be matrices."""
    if b.shape != a.shape[:-1] or "Vmap" not in active_transforms():
        return NotImplemented
    x, *others = torch.linalg.lstsq(a, b.unsqueeze(-1), rcond, driver=driver)
    return x.squeeze(-1), *others


@replaces("fused_moving_avg_obs_fake_quant")
def _observed(*args: Any) -> Tensor:
    return torch.ops.aten._fused_moving_avg_obs_fq_helper(*args)[0] if "Vmap" in active_transforms() else NotImplemented


@replaces("dropout")
def _dropout(x: Tensor, p: float, train: bool) -> Any:
    kept = _kept(x, p, train)
    return NotImplemented if kept is None else x * (kept / (1 - p))


@replaces("dropout_")
def _dropout_in_place(x: Tensor, p: float, train: bool) -> Any:
    kept = _kept(x, p, train)
    return NotImplemented if kept is None else x.mul_(kept / (1 - p))


@replaces("alpha_dropout")
def _alpha_dropout(x: Tensor, p: float, train: bool) -> Any:
    kept = _kept(x, p, train)
    if kept is None:
        return NotImplemented
    dropped, scale = 1.7580993408473766, ((1.7580993408473766**2 * p + 1) * (1 - p)) ** -0.5
    return x * (kept * scale) + ((kept - 1) * (dropped * scale) + dropped * scale * p)


@replaces("alpha_dropout_")
def _alpha_dropout_in_place(x: Tensor, p: float, train: bool) -> Any:
    y = _alpha_dropout(x, p, train)
    return NotImplemented if y is NotImplemented else x.copy_(y)


def _kept(x: Tensor, p: float, train: bool) -> Tensor | None:
    """Ones for what dropout keeps, drawn in the order of the memory, as torch does without a transform; None for torch's own."""
    own = first_sample(x) if train and 0 < p < 1 else x
    if own is x or own.is_contiguous() or own.device.type != "cpu" or not vmaps_share_draws():
        return None
    return below_transforms(lambda: torch.empty_like(own).bernoulli_(1 - p))


@replaces("add_.Tensor")
def _counted(x: Tensor, other: Any, *, alpha: Any = 1) -> Any:
    """Integers that a transform captures, such as the number of batches that a norm has seen, have no derivative to lose."""
    if x.is_floating_point() or x.is_complex() or is_wrapped(x):
        return NotImplemented
    if isinstance(other, Tensor) and (other.is_floating_point() or other.is_complex() or is_wrapped(other)):
        return NotImplemented
    return below_transforms(lambda: x.add_(other, alpha=alpha))
