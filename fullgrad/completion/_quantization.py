"""Fake quantization of torch.ao: torch's value, and its declared derivative, the straight-through one inside the range."""

from typing import Any

import torch
from torch import Tensor

from fullgrad._dispatch import active_transforms, has_tangent, innermost
from fullgrad.completion._registry import (
    NO_FORWARD,
    NO_SECOND,
    Slopes,
    Whole,
    completes,
    completes_backward,
    completes_by_slopes,
    valued,
)


def _refuse_derivative(operator: str, arguments: dict[str, Any]) -> None:
    """Raise where a derivative is asked for by an argument of which torch declares none."""
    for name, v in arguments.items():
        if isinstance(v, Tensor) and (v.requires_grad or has_tangent(v)):
            raise RuntimeError(
                f"{operator} is not differentiable with respect to its argument '{name}', in torch and inside completing; detach"
                " that, or use fullgrad.quantizers, which learn it."
            )


def _straight_through(x: Tensor, value: Tensor, mask: Tensor) -> Any:
    return Whole((valued(torch.where(mask, x, 0), value), mask))


@completes("fake_quantize_per_tensor_affine_cachemask", NO_FORWARD)
def _per_tensor(x: Tensor, *args: Any) -> Any:
    return _straight_through(x, *torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x.detach(), *args))


@completes("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", NO_FORWARD)
def _per_tensor_by_tensors(x: Tensor, scale: Tensor, zero_point: Tensor, *args: Any) -> Any:
    _refuse_derivative("fake_quantize_per_tensor_affine", {"scale": scale, "zero_point": zero_point})
    found = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x.detach(), scale, zero_point, *args)
    return _straight_through(x, *found)


@completes("fake_quantize_per_channel_affine_cachemask", NO_FORWARD)
def _per_channel(x: Tensor, scale: Tensor, zero_point: Tensor, *args: Any) -> Any:
    _refuse_derivative("fake_quantize_per_channel_affine", {"scale": scale, "zero_point": zero_point})
    found = torch.ops.aten.fake_quantize_per_channel_affine_cachemask(x.detach(), scale, zero_point, *args)
    return _straight_through(x, *found)


@completes("_fused_moving_avg_obs_fq_helper", NO_FORWARD, batched=True)
def _observed(
    x: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Any:
    bounds, of_observer = (quant_min, quant_max), {"running_min": running_min, "running_max": running_max}
    _refuse_derivative("fused_moving_avg_obs_fake_quant", {**of_observer, "scale": scale, "zero_point": zero_point})
    if "Vmap" not in active_transforms():
        observer = running_min, running_max, scale, zero_point, averaging_const, *bounds
        options = ch_axis, per_row_fake_quant, symmetric_quant
        found = torch.ops.aten._fused_moving_avg_obs_fq_helper(x.detach(), observer_on, fake_quant_on, *observer, *options)
        return _straight_through(x, *found)
    state = running_min, running_max, scale, zero_point
    if innermost(observer_on).any() or any(innermost(v).ndim != v.ndim for v in state):
        raise RuntimeError(
            "vmap: the observer of a fake quantization cannot take the statistics of a batch of samples;"
            " switch it off first, as by `model.apply(torch.ao.quantization.disable_observer)`."
        )
    # torch computes the scale again, from the statistics that it has.
    one = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    options = averaging_const, *bounds, ch_axis, per_row_fake_quant, symmetric_quant
    torch.ops.aten._fused_moving_avg_obs_fq_helper(one, observer_on, fake_quant_on, *state, *options)
    if not innermost(fake_quant_on).any():
        return Whole((x.clone(), torch.ones_like(x, dtype=torch.bool)))
    if per_row_fake_quant:
        return Whole(torch.ops.aten.fake_quantize_per_channel_affine_cachemask(x, scale, zero_point, ch_axis, *bounds))
    by_tensors = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    return Whole(by_tensors(x, scale, zero_point, fake_quant_on, *bounds))


# --- Learned scales ---------------------------------------------------------------------------------------------------------


def _learned(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, factor: float, shape: tuple[int, ...]) -> Slopes:
    r"""The slopes of :math:`s (\operatorname{clamp}(q, l, h) - z)`, with :math:`q = \operatorname{round}(x / s + z)`."""
    s, z = scale.reshape(shape), zero_point.reshape(shape).round().clamp(low, high)

    def codes() -> tuple[Tensor, Tensor]:
        code = (x * (1 / s) + z).round()
        return code, (code >= low) & (code <= high)

    def of_x() -> Tensor:
        return codes()[1].to(x.dtype)

    def of_scale() -> Tensor:
        code, is_inside = codes()
        return factor * torch.where(is_inside, code - z - x / s, code.clamp(low, high) - z)

    def of_zero_point() -> Tensor:
        return factor * torch.where(codes()[1], 0, -s)

    return {0: (of_x, None), 1: (of_scale, shape), 2: (of_zero_point, shape)}


@completes_by_slopes("_fake_quantize_learnable_per_tensor_affine", NO_SECOND)
def _learned_per_tensor(
    y: Tensor | None, x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, factor: float = 1.0
) -> Slopes:
    return _learned(x, scale, zero_point, low, high, factor, (1,) * max(x.ndim, 1))


@completes_by_slopes("_fake_quantize_learnable_per_channel_affine", NO_SECOND)
def _learned_per_channel(
    y: Tensor | None, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int, factor: float = 1.0
) -> Slopes:
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return _learned(x, scale, zero_point, low, high, factor, tuple(shape))


def _completes_learned(name: str, slopes: Any) -> None:
    @completes_backward(name)
    def backward(g: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, *args: Any) -> tuple[Tensor, ...]:
        of, found = slopes(None, x, scale, zero_point, *args), []
        for i, v in enumerate((x, scale, zero_point)):
            slope, shape = of[i]
            found.append((g * slope()).sum_to_size(v.shape if shape is None else shape).reshape(v.shape).to(v.dtype))
        return tuple(found)


_completes_learned("_fake_quantize_learnable_per_tensor_affine_backward", _learned_per_tensor)
_completes_learned("_fake_quantize_learnable_per_channel_affine_backward", _learned_per_channel)
