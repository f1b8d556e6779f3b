"""`fsq`: finite scalar quantization."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import numbers_like, to_opmath
from fullgrad._dispatch import holds, uses_last_dims
from fullgrad.clamping._clamp import Clamp
from fullgrad.quantizers import _arguments
from fullgrad.rounding._floor import Floor
from fullgrad.rounding._round import Round

BOUNDS = ("tanh", "clamp")


@uses_last_dims(1)
def fsq(x: Tensor, levels: Sequence[int], *, bound: str = "tanh", symmetric: bool = False, eps: float = 1e-3) -> Tensor:
    r"""Finite scalar quantization: each channel on a few levels between -1 and 1, instead of a codebook.

    .. math::
        y = \operatorname{round}\bigl(h \tanh(x + \operatorname{atanh}(o / h)) - o\bigr) / \lfloor L / 2 \rfloor, \qquad
        h = \tfrac12 (L - 1)(1 + \epsilon), \quad o = \tfrac12 [\,L \text{ even}\,]

    for the number of levels *L* of each channel, with the derivative of the bounded numbers: the rounding is straight-through.
    With ``symmetric``, :math:`y = \frac{2}{L - 1} \lfloor \frac{L - 1}{2} (\tanh x + 1) + \frac12 \rfloor - 1`. With
    ``bound="clamp"``, a clamp to [-1, 1] stands for tanh, and there is no atanh. Half precision is computed in float32. Saved:
    what tanh or the clamp saves.

    Args:
        x: Of shape (…, channels); floating, or integer (which gives the default dtype).
        levels: The number of levels of each channel, integers from 2.
        bound: ``"tanh"`` or ``"clamp"``.
        symmetric: Whether the levels are symmetric around zero even if their number is even.
        eps: The share by which the bound exceeds the outermost levels, not negative.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not a real tensor, or a number of levels is not an integer.
        ValueError: The numbers of channels and levels differ, a number is out of its range, or ``bound`` is unknown.

    Example:
        >>> import torch
        >>> from fullgrad import quantizers
        >>> quantizers.fsq(torch.tensor([[0.2, -2.0, 0.9], [1.5, 0.1, -0.6]]), (5, 4, 3))
        tensor([[ 0., -1.,  1.],
                [ 1.,  0., -1.]])

    Source: Mentzer et al., https://arxiv.org/abs/2309.15505; ``vector_quantize_pytorch.FSQ``.
    """
    x = _arguments.floating_input("fsq", "x", x)
    if not isinstance(levels, Sequence) or isinstance(levels, str):
        raise TypeError(f"fsq: `levels` must be a sequence of integers, got {levels!r}.")
    counts = [_arguments.check_levels("fsq", n) for n in levels]
    if x.ndim == 0 or not counts or not holds(x.shape[-1] == len(counts)):
        raise ValueError(
            f"fsq: `levels` must have a number for each of the channels of x, got {len(counts)} and shape {tuple(x.shape)}."
        )
    checks.choice("fsq", "bound", bound, BOUNDS)
    checks.non_negative_number("fsq", "eps", eps)
    (wide,) = to_opmath(x)

    def row(values: list[float]) -> Tensor:
        return numbers_like(values, wide)

    if symmetric:
        bounded = torch.tanh(wide) if bound == "tanh" else Clamp.apply(wide, -1.0, 1.0)
        steps = row([n - 1.0 for n in counts])
        return ((2 / steps) * Floor.apply(steps * (bounded + 1) / 2 + 0.5) - 1).to(x.dtype)
    reach = [(n - 1) * (1 + eps) / 2 for n in counts]
    offset = [0.5 if n % 2 == 0 else 0.0 for n in counts]
    if bound == "tanh":
        bounded = torch.tanh(wide + row([math.atanh(o / h) if o < h else math.inf for o, h in zip(offset, reach, strict=True)]))
    else:
        bounded = Clamp.apply(wide, -1.0, 1.0)
    return (Round.apply(bounded * row(reach) - row(offset)) / row([float(n // 2) for n in counts])).to(x.dtype)
