"""Tensors as one vector, and back; gradients by a graph."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradient(y: Sequence[Tensor], x: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The function of cotangents of y that returns the gradients of x, by the graph of y, which it keeps."""
    if not all(v.requires_grad for v in y):
        return lambda g, **_: [torch.zeros_like(v) for v in x]
    return lambda g, create_graph=False: torch.autograd.grad(
        y, x, g, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )


def flat(tensors: Sequence[Tensor], leading: int = 0) -> Tensor:
    """Tensors of one dtype as one real vector, behind some leading dimensions."""
    parts = [torch.view_as_real(t.resolve_conj()) if t.dtype.is_complex else t for t in tensors]
    parts = [t.reshape([*t.shape[:leading], math.prod(t.shape[leading:])]) for t in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def unflat(vector: Tensor, like: Sequence[Tensor], leading: int = 0) -> list[Tensor]:
    """The tensors of a vector."""
    is_complex = like[0].dtype.is_complex
    shapes = [(*t.shape[leading:], 2) if is_complex else t.shape[leading:] for t in like]
    parts = [vector] if len(shapes) == 1 else vector.split([math.prod(s) for s in shapes], -1)
    parts = [p.reshape([*p.shape[:leading], *s]) for p, s in zip(parts, shapes, strict=True)]
    return [torch.view_as_complex(p) for p in parts] if is_complex else parts
