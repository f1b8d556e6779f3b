"""Noise, drawn here alone: once per call and before the operator, which takes it as an ordinary input.

The value, the gradient and the tangent of a call therefore share one draw, and no rule can draw again. Only :func:`torch.rand`,
and :func:`torch.rand_like` without a generator, obey every ``randomness`` of :func:`torch.func.vmap`. With a generator
`rand_like` draws for each sample under ``"same"`` and once under ``"different"``, without an error; so do the functional forms of
the in-place samplers. `torch.bernoulli` and its like raise under ``"same"``.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import HALF
from fullgrad._dispatch import any_distributed, distributed_module, has_shape, is_distributed, is_tracing, mark_for_dynamo

_PLAIN = (Tensor, torch.nn.Parameter)


def uniform_like(x: Tensor, sample_shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
    """Uniform noise in [0, 1) of the shape ``(*sample_shape, *x.shape)`` on the device of ``x``.

    Its dtype is that of ``x``, but float32 for half precision: bfloat16 noise is 0 once in 512 draws, so that an event of
    probability 0.001 would be three times as frequent. The numbers do not depend on the strides of ``x``.

    Args:
        x: The tensor whose shape and device the noise has; any dtype. The noise of a distributed tensor is distributed alike:
            shards differ, and replicas are equal, whatever the seeds of the ranks. On the CPU the numbers are those of one
            process with the first rank's seed.
        sample_shape: Dimensions in front of those of ``x``.
        generator: The generator that draws; None for torch's own.

    Returns:
        A contiguous tensor without a derivative.

    Raises:
        TypeError: ``x`` is not a tensor.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.zeros(2, dtype=torch.bfloat16)
        >>> u = fullgrad.sampling.uniform_like(x, (3,), generator=torch.Generator().manual_seed(0))
        >>> u.shape, u.dtype
        (torch.Size([3, 2]), torch.float32)
    """
    checks.tensor("uniform_like", "x", x)
    dtype = torch.float32 if x.dtype in HALF else x.dtype if x.is_floating_point() else torch.get_default_dtype()
    # Not rand_like: in forward mode the noise would have a tangent of zeros.
    shape, options = (*sample_shape, *x.shape), {"dtype": dtype, "device": x.device}

    def draw(generator: Generator | None) -> Tensor:
        # With the argument `generator`, even None, torch does not trace sizes that change.
        return torch.rand(shape, **options) if generator is None else torch.rand(shape, generator=generator, **options)

    if any_distributed((x,)) and not (generator is None and distributed_module().has_own_noise(x)):
        return distributed_module().noise(x, len(sample_shape), draw, generator)
    if generator is None and x.__class__ not in _PLAIN:  # such as a DTensor, whose noise is a DTensor
        if is_distributed(x) and x.device.type != "cuda":  # in compiled code each rank would draw its own
            return _uniform_uncompiled(x, sample_shape)
        like = x.expand(*sample_shape, *x.shape) if sample_shape else x
        return torch.rand_like(like, dtype=dtype, memory_format=torch.contiguous_format)
    return draw(generator)


def _uniform_uncompiled(x: Tensor, sample_shape: Sequence[int]) -> Tensor:
    """`uniform_like` after a graph break."""
    return uniform_like(x, sample_shape)


def _disable(function: Callable[..., Tensor]) -> None:
    """Exclude a function from Dynamo, once Dynamo is imported: `torch.compiler.disable` would import it."""
    globals()[function.__name__] = torch.compiler.disable(function)


mark_for_dynamo(_disable, _uniform_uncompiled)


def exponential_like(x: Tensor, sample_shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
    """Exponential noise of mean 1, always finite: ``-log(u)`` of :func:`uniform_like`, with the smallest normal number for 0.

    Args:
        x: Whose shape and device the noise has; any dtype.
        sample_shape: Dimensions in front of those of ``x``.
        generator: What draws it; None for torch's own.

    Returns:
        A contiguous tensor without a derivative.

    Raises:
        TypeError: ``x`` is not a tensor.
    """
    checks.tensor("exponential_like", "x", x)
    u = uniform_like(x, sample_shape, generator=generator)
    return _minus_log(u.clamp(min=torch.finfo(u.dtype).tiny))  # clamp_ has no batching rule


def gumbel_like(x: Tensor, sample_shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
    """Gumbel noise, always finite: ``-log`` of :func:`exponential_like`.

    Args:
        x: Whose shape and device the noise has; any dtype.
        sample_shape: Dimensions in front of those of ``x``.
        generator: What draws it; None for torch's own.

    Returns:
        A contiguous tensor without a derivative.

    Raises:
        TypeError: ``x`` is not a tensor.
    """
    checks.tensor("gumbel_like", "x", x)
    return _minus_log(exponential_like(x, sample_shape, generator=generator))


def normal_like(x: Tensor, sample_shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
    """Normal noise of mean 0 and variance 1, always finite: the transform of Box and Muller of :func:`uniform_like`.

    Args:
        x: Whose shape and device the noise has; any dtype.
        sample_shape: Dimensions in front of those of ``x``.
        generator: What draws it; None for torch's own.

    Returns:
        A contiguous tensor without a derivative.

    Raises:
        TypeError: ``x`` is not a tensor.
    """
    checks.tensor("normal_like", "x", x)
    u, angle = uniform_like(x, (2, *sample_shape), generator=generator).unbind(0)
    return torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * math.pi * angle)


def _minus_log(temporary: Tensor) -> Tensor:
    """``-log`` of a temporary, in its own memory unless a mode may record the temporary."""
    return -torch.log(temporary) if is_tracing() else temporary.log_().neg_()


def scaled_noise(
    name: str, x: Tensor, scale: float, noise: Tensor | None, generator: Generator | None, draw: Callable[..., Tensor]
) -> Tensor | None:
    """A factor, which is not negative, and the given noise or new noise, a constant; None for the factor 0, which draws nothing.

    Raises:
        TypeError: ``scale`` is not a number, or as in `noise_for`.
        ValueError: ``scale`` is negative, or as in `noise_for`.
    """
    checks.non_negative_number(name, "noise_scale", scale)
    if scale == 0:
        noise_for(name, x, noise, generator, lambda x, *_, **__: x)  # the arguments are checked all the same
        return None
    return noise_for(name, x, noise, generator, draw).detach()


def noise_for(
    name: str,
    x: Tensor,
    noise: Tensor | None,
    generator: Generator | None,
    draw: Callable[..., Tensor] = uniform_like,
    sample_shape: Sequence[int] = (),
) -> Tensor:
    """The given noise, or new noise.

    Raises:
        TypeError: ``noise`` is not a floating tensor, or ``generator`` is not a generator.
        ValueError: ``noise`` has another shape, or there is a generator as well.
    """
    if noise is None:
        if generator is not None and not isinstance(generator, Generator):
            raise TypeError(f"{name}: `generator` must be a torch.Generator, got a value of type {type(generator).__name__}.")
        return draw(x, sample_shape, generator=generator)
    if generator is not None:
        raise ValueError(f"{name}: `noise` and `generator` exclude each other: a generator draws the noise, got both.")
    checks.floating_tensor(name, "noise", noise)
    shape = (*sample_shape, *x.shape)
    if not has_shape(noise.shape, shape):
        raise ValueError(f"{name}: `noise` must have the shape {tuple(shape)}, got {tuple(noise.shape)}.")
    return noise
