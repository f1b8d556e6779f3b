"""`fake_quantize`: round to a grid of integers, times a scale that learns."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.fast import replaceable
from fullgrad._core.opmath import cast
from fullgrad._core.pieces import pointwise
from fullgrad._core.shards import reshaped
from fullgrad._core.windows import between, where_between
from fullgrad._dispatch import holds, number_or_tensor
from fullgrad.quantizers import _arguments
from fullgrad.quantizers._arguments import Inside, Parameter
from fullgrad.quantizers._integers import Grid, code, code_in_range, pass_in_range, quotient


def fake_quantize(
    x: Tensor,
    scale: Parameter,
    zero_point: Parameter = 0,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    dim: int | None = None,
    inside: Inside = "rounded",
    rounding: str = "half_even",
    reciprocal: bool = True,
    round_zero_point: bool = True,
    noise: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    r"""Quantize to integers from ``quant_min`` to ``quant_max``, and back: one function per tensor, channel, group and block.

    .. math::
        v = x / s, \quad q = \operatorname{clamp}(\operatorname{round}(v) + z,\, l,\, h), \quad y = (q - z)\, s, \qquad
        D_x = m, \quad D_s = q - z - m v, \quad D_z = -(1 - m)\, s

    for the mask *m* of ``inside``: 1 in the range, else 0. The value is that of torch's kernels, bit for bit, with NaN for NaN;
    gradients learn the scale and the zero point. With :math:`q' = m / s` wherever a derivative is differentiated again, the
    second derivatives are 0, but for :math:`\partial^2 y / \partial s\, \partial z = -1` outside the range.

    Half precision is computed in float32 and rounded once. Gradients of ``x`` are 0 outside the range even where the
    incoming one is infinite. Saved: ``x`` and the parameters that are tensors; the noise, if there is some; nothing for
    ``inside="all"`` with a number as scale.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        scale: Positive: a number; or a tensor that broadcasts to ``x``, or has as many dimensions, with sizes that divide those
            of ``x``: then it has one number per block. For ``x`` of shape (3, 32), (3, 1) is per row and (3, 4) in groups of 8.
            Elements of a tensor are checked where they can be read without waiting: on the CPU, in eager code outside of
            transforms.
        zero_point: The code of 0, a number or a tensor as for ``scale``; a number is an integer in the range, unless
            ``round_zero_point`` is False.
        quant_min: The smallest code, an integer.
        quant_max: The largest, an integer.
        dim: With it, parameters that are tensors have one number for each index of this dimension, as torch's ``axis``.
        inside: Where the gradient passes: ``"rounded"``, where the rounded code is in the range (torch); ``"exact"``, where
            ``x / scale`` is (LSQ); ``"all"``, everywhere.
        rounding: A mode of :func:`fullgrad.round`, or ``"stochastic"``.
        reciprocal: Whether ``x`` is multiplied by ``1 / scale``, as in torch and torchao, or divided by ``scale``, as in LSQ and
            brevitas. The two differ at ties.
        round_zero_point: Whether the zero point is rounded and clamped first. If not, :math:`q` is
            :math:`\operatorname{round}(v + z)`, clamped.
        noise: For ``rounding="stochastic"``, a floating tensor of the shape of ``x``, in [0, 1); None to draw it.
        generator: Draws the noise if none is given.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x``, ``scale`` or ``zero_point`` is not real, or a bound or ``dim`` not an integer.
        ValueError: A number or a name is out of its range, a parameter has another shape, or unused noise is given.
        IndexError: ``x`` has no dimension ``dim``.

    Example:
        >>> import torch, fullgrad
        >>> from fullgrad import quantizers
        >>> x, scale = torch.tensor([-1.0, 0.3, 0.8, 9.0]), torch.tensor(0.5, requires_grad=True)
        >>> y = quantizers.fake_quantize(x, scale, 0, *quantizers.quant_range(4))
        >>> y.detach()
        tensor([-1.0000,  0.5000,  1.0000,  3.5000])
        >>> torch.autograd.grad(y, scale, torch.tensor([0.0, 0.0, 1.0, 1.0]))
        (tensor(7.4000),)

    Source: :func:`torch.fake_quantize_per_tensor_affine`, :func:`torch.fake_quantize_per_channel_affine`; for :math:`D_s`,
    Esser et al., https://arxiv.org/abs/1902.08153.
    """
    x = _arguments.floating_input("fake_quantize", "x", x)
    _arguments.check_scale("fake_quantize", "scale", scale, x.dtype, reciprocal)
    quant_min, quant_max = _arguments.check_range("fake_quantize", quant_min, quant_max, x.dtype)
    if not (zero_point.__class__ is int and quant_min <= zero_point <= quant_max):
        zero_point = checked_zero_point("fake_quantize", zero_point, quant_min, quant_max, round_zero_point)
    checks.choice("fake_quantize", "inside", inside, _arguments.INSIDE)
    noise = _arguments.rounding_noise("fake_quantize", x, rounding, noise, generator)
    options = (inside, rounding, bool(reciprocal), bool(round_zero_point), noise)
    return quantized("fake_quantize", x, Grid(scale, zero_point, quant_min, quant_max, *options), dim)


def quantized(name: str, x: Tensor, grid: Grid, dim: int | None = None, apply: Any = None) -> Tensor:
    """`fake_quantize` of arguments that are checked, but for the shapes of the scale and the zero point; or another operator of
    the same arguments.
    """
    apply = apply or FakeQuantize.apply
    parameters = {"scale": grid.scale, "zero_point": grid.zero_point}
    split, (scale, zero_point) = _arguments.in_blocks(name, x, dim, parameters)
    if split is not None:
        noise = None if grid.noise is None else reshaped(grid.noise, split)
        return reshaped(apply(reshaped(x, split), scale, zero_point, *grid[2:-1], noise), x.shape)
    if scale.__class__ is not float and not isinstance(scale, Tensor):
        scale = number_or_tensor(scale, _arguments.compute_dtype(x.dtype), x.device)
    return apply(x, scale, zero_point, *grid[2:])


def checked_zero_point(name: str, value: Any, quant_min: int, quant_max: int, is_rounded: bool) -> Any:
    """A zero point of a range: a tensor, or a number, which is an integer in the range where it is rounded."""
    checks.real_number_or_tensor(name, "zero_point", value)
    if isinstance(value, Tensor):
        return value
    if not is_rounded:
        if not math.isfinite(value):
            raise ValueError(f"{name}: `zero_point` must be finite, got {value}.")
        return float(value)
    if not (holds(value >= quant_min) and holds(value <= quant_max) and holds(value == int(value))):
        raise ValueError(
            f"{name}: `zero_point` must be an integer from {quant_min} to {quant_max} where it is rounded, got {value}."
        )
    return int(value)


class FakeQuantize(Elementwise):
    """The operator of :func:`fake_quantize`."""

    in_pieces = True

    @staticmethod
    def reads(x: Tensor, scale: Parameter, zero_point: Parameter, low: int, high: int, inside: str, *_: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _READS_NO_RANGE if inside == "all" else _READS

    @staticmethod
    @replaceable
    @pointwise
    def forward(
        x: Tensor,
        scale: Parameter,
        zero_point: Parameter,
        quant_min: int,
        quant_max: int,
        inside: str,
        rounding: str,
        reciprocal: bool,
        round_zero_point: bool,
        noise: Tensor | None,
    ) -> Tensor:
        grid = Grid(scale, zero_point, quant_min, quant_max, inside, rounding, reciprocal, round_zero_point, noise)
        v, z, s = quotient(x, grid)
        return cast(code_in_range(code(v, z, grid), z, grid) * s, x.dtype)

    @classmethod
    def vjp_terms(cls, needed: Sequence[bool], g: Tensor, x: Tensor, *inputs: Any) -> list[Tensor | None]:
        grid = Grid(*inputs)
        to_x, to_scale, to_zero_point, *_ = needed
        everywhere = grid.inside == "all"
        if not to_scale and (everywhere or not to_zero_point):
            return [(g if everywhere else pass_in_range(g, x, *inputs)) if to_x else None, *_NO_GRADIENTS]
        low, high = float(grid.quant_min), float(grid.quant_max)
        v, z, s = quotient(x, grid)
        r = code(v, z, grid)
        compared = None if everywhere else (v + z if grid.inside == "exact" else r).detach()
        by_x = by_scale = by_zero_point = None
        if to_x:
            by_x = g if compared is None else where_between(cast(g, v.dtype), compared, low, high)
        if to_scale:
            passed = v if compared is None else where_between(v, compared, low, high)
            q = code_in_range(r, z, grid)
            slope = FakeQuantizeResidual.apply(q, passed, grid.zero_point, compared, grid.quant_min, grid.quant_max)
            by_scale = cast(g, v.dtype) * slope
        if to_zero_point and compared is not None:
            by_zero_point = torch.where(between(compared, low, high), 0, -cast(g, v.dtype) * s)
        return [by_x, by_scale, by_zero_point, *_NO_GRADIENTS[2:]]


_NO_GRADIENTS = (None,) * 9
_READS = {0: (0, 1, 2, 9), 1: (0, 1, 2, 9), 2: (0, 1, 2, 9), 9: ()}
_READS_NO_RANGE = {**_READS, 0: (), 2: ()}


class FakeQuantizeResidual(Elementwise):
    """:math:`D_s = q - z - m v`, which has a derivative with respect to the zero point only, :math:`-(1 - m)`."""

    reads = {0: (), 1: (), 2: (3,), 3: ()}

    @staticmethod
    def forward(q: Tensor, passed: Tensor, zero_point: Parameter, compared: Tensor | None, low: int, high: int) -> Tensor:
        return q - passed

    @staticmethod
    def vjp_term(i: int, v: Tensor, q: Any, passed: Any, zero_point: Any, compared: Any, low: Any, high: Any) -> Tensor | None:
        return None if i != 2 or compared is None else torch.where(between(compared, low, high), 0, -v)
