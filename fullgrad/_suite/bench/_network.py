"""The cost of per-sample gradients of a network of ten quantized layers, and of the same with native activations."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import linear

import fullgrad

LAYERS, WIDTH, BATCH = 10, 64, 64

# The weights and the biases of each layer.
Parameters = list[tuple[Tensor, Tensor]]
# A function of the parameters, the inputs and the targets of a batch, with one gradient per sample.
PerSample = Callable[[Parameters, Tensor, Tensor], Parameters]


def networks(device: str = "cpu") -> tuple[PerSample, PerSample, tuple[Parameters, Tensor, Tensor]]:
    """Per-sample gradients of the quantized network, of the native one, and the arguments that both take.

    A layer quantizes its weights, and clamps and quantizes its activations. In the native one the weights are clamped, and the
    activations clamped and rectified: three elementwise operations of torch instead of three of ours.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(device)

    parameters = [(normal(WIDTH, WIDTH, scale=1.5 * WIDTH**-0.5), normal(WIDTH, scale=0.1)) for _ in range(LAYERS)]
    return _per_sample(_quantized), _per_sample(_native), (parameters, normal(BATCH, WIDTH), normal(BATCH, WIDTH))


def _quantized(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    y = linear(x, fullgrad.step_quantize(weight, 0.0625), bias)
    return fullgrad.step_quantize(fullgrad.clamp(y, -1.0, 1.0), 0.125)


def _native(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    y = linear(x, torch.clamp(weight, -1.0, 1.0), bias)
    return torch.relu(torch.clamp(y, -1.0, 1.0))


def _per_sample(layer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Any:
    def loss(parameters: Parameters, x: Tensor, target: Tensor) -> Tensor:
        for weight, bias in parameters:
            x = layer(weight, bias, x)
        return (x - target).square().sum()

    return vmap(grad(loss), in_dims=(None, 0, 0))
