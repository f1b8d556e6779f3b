"""Quantizers: values on grids of any kind, gradients that pass where you choose, and parameters that learn."""

from fullgrad._core.public import make_public
from fullgrad.quantizers._binarize import binarize
from fullgrad.quantizers._bsq import bsq
from fullgrad.quantizers._codebook_codes import codebook_codes
from fullgrad.quantizers._codebook_quantize import codebook_quantize
from fullgrad.quantizers._codes import codes
from fullgrad.quantizers._dorefa_activation import dorefa_activation
from fullgrad.quantizers._dorefa_gradient import dorefa_gradient
from fullgrad.quantizers._dorefa_weight import dorefa_weight
from fullgrad.quantizers._fake_quantize import fake_quantize
from fullgrad.quantizers._float_codes import float_codes
from fullgrad.quantizers._float_quantize import float_quantize
from fullgrad.quantizers._float_quantize_bwd import float_quantize_bwd
from fullgrad.quantizers._formats import FloatFormat
from fullgrad.quantizers._fsq import fsq
from fullgrad.quantizers._levels import levels
from fullgrad.quantizers._lsq import lsq
from fullgrad.quantizers._mx_quantize import mx_quantize
from fullgrad.quantizers._nvfp4_quantize import nvfp4_quantize
from fullgrad.quantizers._pact import pact
from fullgrad.quantizers._power_of_two import power_of_two
from fullgrad.quantizers._quant_range import quant_range
from fullgrad.quantizers._stretched_elastic import stretched_elastic
from fullgrad.quantizers._ternarize import ternarize
from fullgrad.quantizers._tqt import tqt
from fullgrad.quantizers._twn import twn
from fullgrad.quantizers._vector_quantize import vector_quantize
from fullgrad.quantizers._xnor import xnor

__all__ = [
    "FloatFormat",
    "binarize",
    "bsq",
    "codebook_codes",
    "codebook_quantize",
    "codes",
    "dorefa_activation",
    "dorefa_gradient",
    "dorefa_weight",
    "fake_quantize",
    "float_codes",
    "float_quantize",
    "float_quantize_bwd",
    "fsq",
    "levels",
    "lsq",
    "mx_quantize",
    "nvfp4_quantize",
    "pact",
    "power_of_two",
    "quant_range",
    "stretched_elastic",
    "ternarize",
    "tqt",
    "twn",
    "vector_quantize",
    "xnor",
]

make_public(__name__)
