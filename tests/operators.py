"""Shared parts of the tests: right operators, each with its oracle in plain torch, all subsets, the list of what autograd saves,
flushed subnormal numbers.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import fullgrad
from fullgrad import Function, nn, quantizers, safe, sampling, soft, spikes

PUBLIC = {name for module in (fullgrad, nn, nn.soft, quantizers, safe, sampling, soft, spikes) for name in module.__all__}


def transforms_leave_inference_mode() -> bool:
    """Whether torch.func differentiates where inference mode is on around it. torch 2.11 gives zeros, or raises.

    https://github.com/pytorch/pytorch/issues/177318
    """
    with torch.inference_mode():
        return bool(torch.func.jacrev(torch.sin)(torch.zeros(())) == 1)


class Cube(Function):
    """x ** 3 with its true derivative: one tensor in, one out, the input saved."""

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * 3 * x**2

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]


class ThroughRound(Function):
    """Straight-through round: nothing is saved, every derivative beyond the first is 0. Subclasses have another forward."""

    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, t):
        return t

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]


@contextlib.contextmanager
def saved_tensors() -> Iterator[list[Tensor]]:
    """The tensors that autograd saves in the block, in order."""
    saved: list[Tensor] = []
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        yield saved


def storage_bytes(tensors: list[Tensor], but: tuple[Tensor, ...] = ()) -> int:
    """The bytes of the storages of tensors, each counted once, without those of others."""
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(n for pointer, n in held.items() if pointer not in {t.untyped_storage().data_ptr() for t in but})


def subset_probabilities(theta: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """All subsets of k elements as rows of 0 and 1, and the probability of each."""
    n = len(theta)
    subsets = torch.tensor([[i in chosen for i in range(n)] for chosen in itertools.combinations(range(n), k)]).to(theta.dtype)
    return subsets, torch.softmax(subsets @ theta, 0)


class TorchCube(torch.autograd.Function):
    """`Cube` on torch's own base class."""

    forward, setup_context = staticmethod(Cube.forward), staticmethod(Cube.setup_context)
    backward, jvp = staticmethod(Cube.vjp), staticmethod(Cube.jvp)

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """A context in which subnormal numbers are 0; skips the test where the processor cannot do that."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def raises(error: type[Exception], match: str) -> Iterator[None]:
    """`pytest.raises`, with a message that begins with the public name of the function."""
    with pytest.raises(error, match=match) as raised:
        yield
    name = str(raised.value).partition(":")[0]
    assert name.rpartition(".")[2] in PUBLIC, str(raised.value)


# --- Operators for the tests of `fullgrad.Function` ------------------------------------------------------------------


def cube(x: Tensor) -> Tensor:
    return x**3


def through_round(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


class CubicRound(Function):
    """round(x) with the derivative x ** 2: value and derivative disagree, so a dropped rule shows in every order."""

    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x**2

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * x**2

    @staticmethod
    def vmap(info, in_dims, x):
        return CubicRound.apply(x), in_dims[0]


def cubic_round(x: Tensor) -> Tensor:
    soft = x**3 / 3
    return soft + (x.round() - soft).detach()


class Exp(Function):
    """exp with its output saved, and a rule that calls the operator itself."""

    @staticmethod
    def forward(x):
        return torch.exp(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * Exp.apply(x)

    @staticmethod
    def vmap(info, in_dims, x):
        return Exp.apply(x), in_dims[0]


class Nested(Function):
    """x ** 4 with the derivative 4 * Cube(x): an operator inside both rules."""

    @staticmethod
    def forward(x):
        return x**4

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 4 * Cube.apply(x)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * 4 * Cube.apply(x)

    @staticmethod
    def vmap(info, in_dims, x):
        return Nested.apply(x), in_dims[0]


class Pair(NamedTuple):
    """The output of `SinCos`."""

    sin: Tensor
    cos: Tensor


class SinCos(Function):
    """sin and cos as a namedtuple: several outputs."""

    @staticmethod
    def forward(x):
        return Pair(torch.sin(x), torch.cos(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g_sin, g_cos):
        (x,) = ctx.saved_tensors
        return g_sin * torch.cos(x) - g_cos * torch.sin(x)

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * torch.cos(x), -t * torch.sin(x)

    @staticmethod
    def vmap(info, in_dims, x):
        return SinCos.apply(x), (in_dims[0], in_dims[0])


def sin_cos(x: Tensor) -> Pair:
    return Pair(torch.sin(x), torch.cos(x))


def _aligned(in_dims, tensors):
    """The batch in dim 0, and samples that broadcast with each other as they would alone."""
    samples = [0 if t is None else t.ndim - (d is not None) for t, d in zip(tensors, in_dims, strict=True)]
    for t, d, n in zip(tensors, in_dims, samples, strict=True):
        if d is None:
            yield t
        else:
            t = t.movedim(d, 0)
            yield t.reshape(t.shape[0], *(1,) * (max(samples) - n), *t.shape[1:])


class MatMul(Function):
    """The product of two matrices, whose rule skips a gradient that is not needed."""

    @staticmethod
    def forward(a, b):
        return a @ b

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b = inputs
        ctx.shapes = a.shape, b.shape
        a_needs, b_needs = ctx.needs_input_grad
        ctx.save_for_backward(a if b_needs else None, b if a_needs else None)
        ctx.save_for_forward(a, b)

    @staticmethod
    def vjp(ctx, g):
        a, b = ctx.saved_tensors
        a_needs, b_needs = ctx.needs_input_grad
        return (
            (g @ b.mT).sum_to_size(ctx.shapes[0]) if a_needs else None,
            (a.mT @ g).sum_to_size(ctx.shapes[1]) if b_needs else None,
        )

    @staticmethod
    def jvp(ctx, t_a, t_b):
        a, b = ctx.saved_tensors
        parts = ([] if t_a is None else [t_a @ b]) + ([] if t_b is None else [a @ t_b])
        return sum(parts[1:], parts[0])

    @staticmethod
    def vmap(info, in_dims, a, b):
        return MatMul.apply(*_aligned(in_dims, (a, b))), 0


class Norm(Function):
    """The norm over a dimension, whose vmap rule has to move the dimension."""

    @staticmethod
    def forward(x, dim=-1):
        return x.square().sum(dim).sqrt()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x)

    @staticmethod
    def vjp(ctx, g):
        x, norm = ctx.saved_tensors
        return (g / norm).unsqueeze(ctx.dim) * x, None

    @staticmethod
    def jvp(ctx, t, _):
        (x,) = ctx.saved_tensors
        return (t * x).sum(ctx.dim) / Norm.apply(x, ctx.dim)

    @staticmethod
    def vmap(info, in_dims, x, dim):
        dim = dim % (x.ndim - 1)
        return Norm.apply(x.movedim(in_dims[0], 0), dim + 1), 0


def norm(x: Tensor, dim: int = -1) -> Tensor:
    return x.square().sum(dim).sqrt()


class MaxOver(Function):
    """Maximum over a dimension as ``torch.return_types.max``: the indices are not differentiable."""

    @staticmethod
    def forward(x, dim=-1):
        return torch.max(x, dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.dim = inputs
        ctx.shape = x.shape
        ctx.mark_non_differentiable(output.indices)
        ctx.save_for_backward(output.indices)
        ctx.save_for_forward(output.indices)

    @staticmethod
    def vjp(ctx, g, _):
        (indices,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(ctx.dim, indices.unsqueeze(ctx.dim), g.unsqueeze(ctx.dim)), None

    @staticmethod
    def jvp(ctx, t, _):
        (indices,) = ctx.saved_tensors
        return t.gather(ctx.dim, indices.unsqueeze(ctx.dim)).squeeze(ctx.dim), None

    @staticmethod
    def vmap(info, in_dims, x, dim):
        dim = dim % (x.ndim - 1)
        return MaxOver.apply(x.movedim(in_dims[0], 0), dim + 1), (0, 0)


class Affine(Function):
    """x * w + b * scale: an optional tensor, and arguments that are plain numbers."""

    @staticmethod
    def forward(x, w, b=None, scale=1.0, power=1):
        return (x * w) ** power + (0 if b is None else b * scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, b, ctx.scale, ctx.power = inputs
        ctx.b_shape = None if b is None else b.shape
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def vjp(ctx, g):
        x, w = ctx.saved_tensors
        inner = g * ctx.power * (x * w) ** (ctx.power - 1)
        grad_b = None if ctx.b_shape is None else (g * ctx.scale).sum_to_size(ctx.b_shape)
        return (inner * w).sum_to_size(x.shape), (inner * x).sum_to_size(w.shape), grad_b, None, None

    @staticmethod
    def jvp(ctx, t_x, t_w, t_b, *_):
        x, w = ctx.saved_tensors
        inner = (0 if t_x is None else t_x * w) + (0 if t_w is None else x * t_w)
        t = inner * ctx.power * (x * w) ** (ctx.power - 1)
        return t if t_b is None else t + t_b * ctx.scale

    @staticmethod
    def vmap(info, in_dims, x, w, b, scale, power):
        return Affine.apply(*_aligned(in_dims[:3], (x, w, b)), scale, power), 0


def affine(x, w, b=None, scale=1.0, power=1):
    return (x * w) ** power + (0 if b is None else b * scale)


class Total(Function):
    """The sum of any number of tensors: a variadic forward."""

    @staticmethod
    def forward(*xs):
        return torch.stack(xs).sum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return (g,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx, *ts):
        return sum(t for t in ts if t is not None)

    @staticmethod
    def vmap(info, in_dims, *xs):
        moved = [x if d is None else x.movedim(d, 0) for x, d in zip(xs, in_dims, strict=True)]
        return Total.apply(*torch.broadcast_tensors(*moved)), 0


class Reparametrized(Function):
    """x * noise with the noise drawn inside: the value of a ``vmap`` depends on its randomness."""

    @staticmethod
    def forward(x):
        noise = torch.rand_like(x)
        return x * noise, noise

    @staticmethod
    def setup_context(ctx, inputs, output):
        noise = output[1]
        ctx.mark_non_differentiable(noise)
        ctx.save_for_backward(noise)
        ctx.save_for_forward(noise)

    @staticmethod
    def vjp(ctx, g, _):
        (noise,) = ctx.saved_tensors
        return g * noise

    @staticmethod
    def jvp(ctx, t):
        (noise,) = ctx.saved_tensors
        return t * noise, None

    @staticmethod
    def vmap(info, in_dims, x):
        if info.randomness == "error":
            raise RuntimeError("Reparametrized draws random numbers; pass randomness='same' or 'different' to vmap.")
        x = x.movedim(in_dims[0], 0)
        if info.randomness == "different":
            return Reparametrized.apply(x), (0, 0)
        shared = torch.rand_like(x[0])
        return (x * shared, shared), (0, None)


class Case(NamedTuple):
    """A function of one tensor built on an operator, and the same in plain torch."""

    function: Callable[[Tensor], Tensor]
    oracle: Callable[[Tensor], Tensor]


def _weights(x: Tensor) -> Tensor:
    return torch.linspace(0.5, 1.5, x.shape[-1] ** 2, dtype=x.dtype).reshape(x.shape[-1], x.shape[-1])


# From a vector to a vector, composed so that outer and inner derivatives do not vanish.
CASES: dict[str, Case] = {
    "cube": Case(lambda x: Cube.apply(x.sin()), lambda x: cube(x.sin())),
    "cube_twice": Case(lambda x: Cube.apply(Cube.apply(x)), lambda x: cube(cube(x))),
    "through_round": Case(lambda x: ThroughRound.apply(3 * x.sin()) * x**3, lambda x: through_round(3 * x.sin()) * x**3),
    "cubic_round": Case(lambda x: CubicRound.apply(x.exp()).sin(), lambda x: cubic_round(x.exp()).sin()),
    "exp": Case(lambda x: Exp.apply(x * x), lambda x: torch.exp(x * x)),
    "nested": Case(lambda x: Nested.apply(x), lambda x: x**4),
    "sin_cos": Case(lambda x: torch.mul(*SinCos.apply(x * x)), lambda x: torch.mul(*sin_cos(x * x))),
    "one_of_two": Case(lambda x: SinCos.apply(x).cos, lambda x: torch.cos(x)),
    "matmul": Case(
        lambda x: MatMul.apply(_weights(x), MatMul.apply(x[:, None], x[None])).sum(-1),
        lambda x: (_weights(x) @ (x[:, None] @ x[None])).sum(-1),
    ),
    "norm": Case(lambda x: Norm.apply(x[:, None] * _weights(x), 0), lambda x: norm(x[:, None] * _weights(x), 0)),
    "max": Case(
        lambda x: MaxOver.apply(x[:, None] ** 3 * _weights(x), 0).values, lambda x: (x[:, None] ** 3 * _weights(x)).amax(0)
    ),
    "affine": Case(lambda x: Affine.apply(x, x.exp(), x.sin(), 2.0, power=3), lambda x: affine(x, x.exp(), x.sin(), 2.0, 3)),
    "affine_without_b": Case(lambda x: Affine.apply(x, x, None, power=2), lambda x: affine(x, x, None, power=2)),
    "total": Case(lambda x: Total.apply(x, x * x, x.exp()) ** 2, lambda x: (x + x * x + x.exp()) ** 2),
}


def sample(*batch: int, seed: int = 0) -> Tensor:
    """A vector of three numbers in float64, or a batch of them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*batch, 3, generator=generator, dtype=torch.float64) + 0.3
