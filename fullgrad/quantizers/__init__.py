"""Quantizers: values on a grid of any kind, with the gradient passing where you say, and parameters that learn."""

from fullgrad.quantizers._fake_quantize import fake_quantize
from fullgrad.quantizers._float_quantize import float_quantize
from fullgrad.quantizers._formats import FloatFormat
from fullgrad.quantizers._quant_range import quant_range

__all__ = [
    "FloatFormat",
    "fake_quantize",
    "float_quantize",
    "quant_range",
]
