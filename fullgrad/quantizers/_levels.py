"""`levels`: named codebooks."""

import itertools

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad.quantizers._arguments import integer

_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
# The exponents of the sets of additive powers of two, by the number of bits without the sign.
_ADDITIVE = {
    2: ((1, 2, 3),),
    3: ((1, 2, 4), (3,)),
    4: ((1, 3, 5), (2, 4, 6)),
    5: ((1, 3, 6), (2, 4, 7), (5,)),
    6: ((1, 4, 7), (2, 5, 8), (3, 6, 9)),
}
NAMES = ("nf4", "power_of_two", "apot")


def levels(name: str, bits: int = 4) -> Tensor:
    r"""A codebook for :func:`codebook_quantize`, from -1 to 1, in order.

    .. math::
        \text{"power\_of\_two"}: \; 0, \pm 2^{-i}, \; i < 2^{b - 1} - 1; \qquad
        \text{"apot"}: \; \pm \sum_j p_j / \max, \; p_j \in \{0\} \cup \{2^{-e} : e \in S_j\}

    ``"nf4"`` are the quantiles of QLoRA, for 4 bits; the sets :math:`S_j` of ``"apot"`` are those of its paper, for 3 to 7 bits.

    Args:
        name: ``"nf4"``, ``"power_of_two"`` or ``"apot"``.
        bits: The number of bits, an integer.

    Returns:
        A float32 tensor of one dimension.

    Raises:
        TypeError: ``bits`` is not an integer.
        ValueError: ``name`` is unknown, or ``bits`` is out of its range.

    Example:
        >>> from fullgrad import quantizers
        >>> quantizers.levels("power_of_two", 3)
        tensor([-1.0000, -0.5000, -0.2500,  0.0000,  0.2500,  0.5000,  1.0000])

    Source: Dettmers et al., https://arxiv.org/abs/2305.14314; Li et al., https://arxiv.org/abs/1909.13144.
    """
    checks.choice("levels", "name", name, NAMES)
    bits = integer("levels", "bits", bits)
    least, most = {"nf4": (4, 4), "power_of_two": (2, 8), "apot": (3, 7)}[name]
    if not least <= bits <= most:
        raise ValueError(f"levels: `bits` must be from {least} to {most} for {name!r}, got {bits}.")
    if name == "nf4":
        return torch.tensor(_NF4)
    if name == "power_of_two":
        positive = {2.0**-i for i in range(2 ** (bits - 1) - 1)}
    else:
        sets = [(0.0, *(2.0**-e for e in some)) for some in _ADDITIVE[bits - 1]]
        sums = {sum(parts) for parts in itertools.product(*sets)}
        positive = {n / max(sums) for n in sums}
    return torch.tensor(sorted({0.0, *positive, *(-n for n in positive)}))
