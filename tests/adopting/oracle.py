"""The derivatives of a class in eager autograd: loops over samples, and double backward row by row."""

import torch
from torch import Tensor


def scalar(y):
    """A scalar that depends nonlinearly on every floating output."""
    outputs = [o for o in (y if isinstance(y, tuple) else (y,)) if isinstance(o, Tensor) and o.is_floating_point()]
    flat = torch.cat([o.flatten() for o in outputs])
    return (torch.arange(1, flat.numel() + 1).to(flat).cos() * flat.sin()).sum()


def bound(apply, inputs):
    """A scalar function of one vector, which holds all floating inputs side by side; and the vector."""
    where = [i for i, v in enumerate(inputs) if isinstance(v, Tensor) and v.is_floating_point()]
    shapes = [inputs[i].shape for i in where]

    def function(vector):
        arguments = list(inputs)
        for i, shape, part in zip(where, shapes, vector.split([s.numel() for s in shapes]), strict=True):
            arguments[i] = part.reshape(shape)
        return scalar(apply(*arguments))

    return function, torch.cat([inputs[i].flatten() for i in where])


def gradient(function, x):
    """The gradient by eager autograd."""
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


def hessian(function, x):
    """The Hessian by eager double backward: its rows are the gradients of the gradient's elements."""
    x = x.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(function(x), x, create_graph=True)
    if not g.requires_grad:
        return torch.zeros(len(x), len(x), dtype=x.dtype)
    rows = [torch.autograd.grad(e, x, retain_graph=True, allow_unused=True)[0] for e in g]
    return torch.stack([torch.zeros_like(x) if r is None else r for r in rows])


def batch(x):
    """Samples that differ in everything, in sign too."""
    return torch.stack([x, -0.5 * x.flip(0), 0.25 * x.roll(1)])
