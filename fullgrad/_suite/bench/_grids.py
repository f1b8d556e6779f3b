"""Targets of quantizers, next to torch, torchao and brevitas: ``python -m fullgrad bench targets``."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad import quantizers
from fullgrad._suite.bench._comparison import Comparison, forward_and_backward
from fullgrad._suite.bench._peers import load

Operator = Callable[..., Any]
LOW, HIGH = -8, 7


def grids(device: str = "cpu") -> Iterator[Comparison]:
    """Comparisons on four bits, forward and backward, with a given, a per-channel and a learned scale; a float format."""
    one, zero = torch.ones((), device=device), torch.zeros((), device=device)
    for n, most in ((16, 1.0), (100, None), (16_384, None), (4_000_000, 0.15)):
        x = torch.randn(n, device=device)
        ours = functools.partial(quantizers.fake_quantize, scale=0.3, quant_min=LOW, quant_max=HIGH)
        rivals: dict[str, Operator] = {"torch": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.3, 0, LOW, HIGH)}
        rivals.update(_of_others(0.3 * one, zero, n))
        yield forward_and_backward("quantizers.fake_quantize", (x,), ours, rivals, most)

        ours = functools.partial(quantizers.fake_quantize, quant_min=LOW, quant_max=HIGH)
        points = zero.view(1)
        rivals = {"torch": lambda x, s, z=points: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, LOW, HIGH, 1.0)}
        rivals.update({name: f for name, f in _of_others(None, zero, n).items() if name == "brevitas"})
        yield forward_and_backward("quantizers.fake_quantize, learned scale", (x, 0.3 * one.view(1)), ours, rivals, None)

        cast = {"torch, casts": lambda x: x.to(torch.float8_e4m3fn).to(x.dtype)}
        ours = functools.partial(quantizers.float_quantize, format="float8_e4m3fn")
        yield forward_and_backward("quantizers.float_quantize, e4m3fn", (x,), ours, cast, 0.5)
    for rows, n in ((4, 25), (64, 256), (1000, 4000)):
        x, scale = torch.randn(rows, n, device=device), torch.rand(rows, device=device) + 0.1
        ours = functools.partial(quantizers.fake_quantize, scale=scale, quant_min=LOW, quant_max=HIGH, dim=0)
        points = torch.zeros(rows, dtype=torch.int32, device=device)
        rivals = {"torch": lambda x, s=scale, z=points: torch.fake_quantize_per_channel_affine(x, s, z, 0, LOW, HIGH)}
        yield forward_and_backward("quantizers.fake_quantize, by channel", (x,), ours, rivals, None)


def _of_others(scale: Tensor | None, zero: Tensor, n: int) -> dict[str, Operator]:
    """The operators of torchao and brevitas, if installed; if ``scale`` is None, they take it as an argument."""
    found: dict[str, Operator] = {}
    torchao = load("torchao.quantization.quant_primitives:_fake_quantize_affine")
    if torchao is not None:
        found["torchao"] = lambda x, s=scale: torchao(x, (n,), s, zero, torch.int32, LOW, HIGH)
    quant = load("brevitas.core.quant:IntQuant")
    if quant is not None:
        module = quant(narrow_range=False, signed=True, input_view_impl=torch.nn.Identity())
        bits = torch.full_like(zero, 4.0)
        found["brevitas"] = lambda x, s=scale: module(s, zero, bits, x)
    return found
