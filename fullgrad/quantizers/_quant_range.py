"""`quant_range`: the codes of a number of bits."""

from fullgrad.quantizers._arguments import integer


def quant_range(bits: int, signed: bool = True, narrow_range: bool = False) -> tuple[int, int]:
    r"""The smallest and the largest code of integers with a number of bits.

    .. math::
        (-2^{b - 1},\; 2^{b - 1} - 1) \text{ if signed, else } (0,\; 2^b - 1)

    A narrow range is symmetric if it is signed, and lacks the largest code if it is not.

    Args:
        bits: An integer from 1 to 53; from 2 for a narrow range.
        signed: Whether there are negative codes.
        narrow_range: Whether one code is left out.

    Returns:
        ``(quant_min, quant_max)``.

    Raises:
        TypeError: ``bits`` is not an integer.
        ValueError: ``bits`` is out of its range.

    Example:
        >>> from fullgrad import quantizers
        >>> quantizers.quant_range(4), quantizers.quant_range(4, signed=False), quantizers.quant_range(4, narrow_range=True)
        ((-8, 7), (0, 15), (-7, 7))

    Source: the quantizers of brevitas, which take the three as arguments.
    """
    bits = integer("quant_range", "bits", bits)
    least = 2 if narrow_range else 1
    if not least <= bits <= 53:
        raise ValueError(f"quant_range: `bits` must be from {least} to 53, got {bits}.")
    if signed:
        return -(2 ** (bits - 1)) + bool(narrow_range), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - bool(narrow_range)
