"""A case's value and derivatives, on plain tensors and on distributed ones."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from tests.distributed.ranks import laid_out, like


def plain_inputs(case):
    """The inputs of a case, as leaves where they are differentiated."""
    return [v.detach().clone().requires_grad_() if i in case.diff_argnums else v for i, v in enumerate(case.inputs)]


def distributed_inputs(case, mesh, placements):
    """The inputs as distributed tensors; those without dimensions stay plain, like the parameters of a step size."""
    inputs = [laid_out(v.detach(), mesh, placements) if isinstance(v, Tensor) and v.ndim else v for v in case.inputs]
    leaves = [_leaf(v) if i in case.diff_argnums else v for i, v in enumerate(inputs)]
    assert [v.placements for v in leaves if isinstance(v, DTensor)] == [v.placements for v in inputs if isinstance(v, DTensor)]
    return leaves


def _leaf(t):
    """A leaf made from a distributed tensor without a copy: a clone of a sum in parts would be that sum on every rank."""
    return (t if isinstance(t, DTensor) else t.detach().clone()).requires_grad_()


def numbers(shape, seed, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def floating(y):
    """The floating tensors of an output."""
    return [v for v in (y if isinstance(y, tuple) else (y,)) if isinstance(v, Tensor) and v.is_floating_point()]


def derive(case, inputs, wanted=("value", "gradient", "second"), cotangents=None):
    """The value; the gradient for a cotangent; its gradient for inputs and cotangent; and vmap(grad) of two samples.

    Cotangents are laid out as what they belong to, or by placements.
    """
    found = {"value": floating(case.operator(*inputs))}
    xs = [inputs[i] for i in case.diff_argnums]
    ys = [y for y in found["value"] if y.requires_grad]
    if "gradient" in wanted and ys:
        gs = [like(numbers(y.shape, 1 + i, y.dtype), y, cotangents).requires_grad_() for i, y in enumerate(ys)]
        gradients = torch.autograd.grad(ys, xs, gs, create_graph="second" in wanted, allow_unused=True)
        found["gradient"] = _with_zeros(gradients, xs)
        again = [(i, g) for i, g in enumerate(gradients) if g is not None and g.requires_grad]
        if "second" in wanted and again:
            vs = [like(numbers(g.shape, 50 + i, g.dtype), g, cotangents) for i, g in again]
            second = torch.autograd.grad([g for _, g in again], [*xs, *gs], vs, allow_unused=True)
            found["second"] = _with_zeros(second, [*xs, *gs])
    if "vmap(grad)" in wanted and ys:
        found["vmap(grad)"] = list(_per_sample(case, inputs))
    return found


def _per_sample(case, inputs):
    positions = case.diff_argnums

    def loss(*xs):
        given = list(inputs)
        for i, x in zip(positions, xs, strict=True):
            given[i] = x
        return sum(y.square().sum() for y in floating(case.operator(*given)))

    xs = [inputs[i].detach() for i in positions]
    if any(isinstance(x, DTensor) for x in xs):  # of numbers, too, of which there is one for each sample now
        mesh = next(x.device_mesh for x in xs if isinstance(x, DTensor))
        xs = [x if isinstance(x, DTensor) else laid_out(x, mesh, [Replicate()] * mesh.ndim) for x in xs]
    batch = [torch.stack([x, 0.75 * x]) for x in xs]
    return torch.func.vmap(torch.func.grad(loss, tuple(range(len(positions)))))(*batch)


def _with_zeros(gradients, xs):
    """A missing gradient as zeros."""
    return [torch.zeros(x.shape, dtype=x.dtype) if g is None else g for g, x in zip(gradients, xs, strict=True)]
