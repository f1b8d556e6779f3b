"""`soft_round`: the value of round, the derivative x / round(x)."""

import math

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.elementwise import Elementwise
from fullgrad._core.function import out_buffer, pure
from fullgrad._dispatch import can_reuse_buffers, is_compiling


def soft_round(x: Tensor) -> Tensor:
    r"""Round to the nearest integer with a derivative that pulls toward integers.

    .. math::
        y = \operatorname{round}(x), \qquad
        D(x) = \begin{cases}
            x / \operatorname{round}(x) & \operatorname{round}(x) \ne 0 \\ 1 & x = 0 \\ 0 & \text{otherwise}
        \end{cases}

    The value is that of :func:`torch.round`, bit for bit. The second derivative is that of ``D``: :math:`1 /
    \operatorname{round}(x)` where :math:`\operatorname{round}(x) \ne 0`, else 0, and the third is 0. The original in shok
    computes ``D`` in its forward and keeps it as a constant, so there the second derivative is 0. NaN and infinite ``x`` have a
    NaN derivative. Saved: ``x`` alone.

    Args:
        x: Any shape; floating, or integer (returned unchanged, without a gradient).

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a tensor, or is bool or complex.

    Example:
        >>> import torch, fullgrad
        >>> x = torch.tensor([-0.25, 0.0, 1.4, 1.5])
        >>> fullgrad.soft_round(x)
        tensor([-0., 0., 1., 2.])
        >>> torch.func.grad(lambda x: fullgrad.soft_round(x).sum())(x)
        tensor([0.0000, 1.0000, 1.4000, 0.7500])

    Source: ``shok.utils.functions.SoftRound``.
    """
    checks.real_tensor("soft_round", "x", x)
    return SoftRound.apply(x)


class SoftRound(Elementwise):
    """The operator of :func:`soft_round`."""

    reads = {0: (0,)}

    @staticmethod
    @pure
    def forward(x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        if not can_reuse_buffers():
            return v * _Slope.apply(x)
        size = _PIECE * torch.get_num_threads()
        if x.numel() >= 2 * size and x.device.type == "cpu" and all(map(_is_plain, (v, x))):
            y = torch.empty_like(x)
            for g, a, out in zip(*[t.view(-1).split(size) for t in (v, x, y)], strict=True):
                torch.mul(g, _slope(a, out), out=out)
            return y
        slope = _Slope.apply(x)
        return torch.mul(v, slope, out=slope)


# Elements of a large tensor that a thread takes at a time: five operations on them read the cache, not memory.
_PIECE = 2**17


def _is_plain(x: Tensor) -> bool:
    """Whether a tensor is contiguous and of torch's own class."""
    return x.is_contiguous() and x.__class__ in (Tensor, torch.nn.Parameter)


class _Slope(Elementwise):
    """``D`` as an operator of its own: through ``nan_to_num`` torch's derivative would be 0 * infinity where round(x) = 0."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        if is_compiling():  # compiled code fuses comparisons, but nan_to_num goes element by element
            slope = torch.round(x)
            return torch.where(slope == 0, (x == 0).to(x.dtype), x / slope)
        return _slope(x)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        return v * _reciprocal(x)


def _slope(x: Tensor, out: Tensor | None = None) -> Tensor:
    """``D``, in ``out`` or a new tensor."""
    slope = torch.round(x, out=out)
    # 0 / 0 is NaN and becomes 1; x / 0 is infinite and becomes 0. Adding 0 x restores NaN for NaN and infinite x.
    slope = torch.div(x, slope, out=out_buffer(slope))
    slope = torch.nan_to_num(slope, nan=1.0, posinf=0.0, neginf=0.0, out=out_buffer(slope))
    if out is not None and math.isfinite(x.sum()):
        return slope
    return torch.add(slope, x, alpha=0, out=out_buffer(slope))


def _reciprocal(x: Tensor) -> Tensor:
    """1 / round(x), and 0 where round(x) = 0; finite in every step, so that its own derivative is 0 and not NaN."""
    rounded = torch.round(x)
    nonzero = rounded != 0
    return nonzero / (rounded + ~nonzero)
