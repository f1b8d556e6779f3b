"""Convolutions whose own derivatives are right, in place of those that torch lacks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullgrad.completion._registry import NO_BATCH, NO_PADDED_THIRD, accumulated, completes


@completes("conv_tbc", NO_BATCH, batched=True)
def _conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """The convolution of time, batch and channels, in that order."""
    own, weight, bias = map(accumulated, (x, weight, bias))
    y = functional.conv1d(own.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return y.permute(2, 0, 1).to(x.dtype)


def _pads(args: Sequence[Any]) -> bool:
    """Whether the second derivatives are those of a transposed convolution whose output is padded, as torch names arguments."""
    transposed, output_padding = args[9:11]
    return transposed and any(output_padding)


@completes("_convolution_double_backward", NO_PADDED_THIRD, is_missing=_pads)
def _double_backward(
    of_x: Tensor | None,
    of_weight: Tensor | None,
    of_bias: Tensor | None,
    g: Tensor,
    weight: Tensor,
    x: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """The derivatives of <g, conv(of_x, weight) + conv(x, of_weight) + of_bias> by g, x and weight.

    torch has them by convolutions that are not transposed, whose derivatives it refuses.
    """
    if not transposed or not any(output_padding):
        return NotImplemented
    options = stride, padding, dilation, transposed, output_padding, groups

    def backward(x: Tensor, weight: Tensor, i: int) -> Tensor:
        mask = [i == 0, i == 1, False]
        return torch.ops.aten.convolution_backward(g, x, weight, None, *options, mask)[i]

    terms: list[Tensor] = []
    if of_x is not None:
        terms.append(torch.convolution(of_x, weight, None, *options))
    if of_weight is not None:
        terms.append(torch.convolution(x, of_weight, None, *options))
    if of_bias is not None:
        terms.append(of_bias.reshape(-1, *[1] * (g.ndim - 2)).expand_as(g))
    by_g = sum(terms[1:], terms[0]) if terms and output_mask[0] else None
    by_weight = backward(of_x, weight, 1) if of_x is not None and output_mask[2] else None
    by_x = backward(x, of_weight, 0) if of_weight is not None and output_mask[1] else None
    return by_g, by_x, by_weight
