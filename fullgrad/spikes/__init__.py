"""Spikes, signs and counts: hard values with the slope of a surrogate, whose shape may learn."""

from fullgrad._core.public import make_public
from fullgrad.spikes._abs_binary_sign_grad import abs_binary_sign_grad
from fullgrad.spikes._approx_sign import approx_sign
from fullgrad.spikes._atan import atan
from fullgrad.spikes._bernoulli import bernoulli
from fullgrad.spikes._circ import circ
from fullgrad.spikes._dspike import dspike
from fullgrad.spikes._erf import erf
from fullgrad.spikes._fake_numerical_gradient import fake_numerical_gradient
from fullgrad.spikes._fast_sigmoid import fast_sigmoid
from fullgrad.spikes._for_sinabs import for_sinabs
from fullgrad.spikes._from_slope import from_slope
from fullgrad.spikes._jumprelu import jumprelu
from fullgrad.spikes._leaky_k_relu import leaky_k_relu
from fullgrad.spikes._log_tailed_relu import log_tailed_relu
from fullgrad.spikes._multi_gaussian import multi_gaussian
from fullgrad.spikes._multi_spike import multi_spike
from fullgrad.spikes._nonzero_sign_log_abs import nonzero_sign_log_abs
from fullgrad.spikes._periodic_exponential import periodic_exponential
from fullgrad.spikes._piecewise_exp import piecewise_exp
from fullgrad.spikes._piecewise_leaky_relu import piecewise_leaky_relu
from fullgrad.spikes._piecewise_quadratic import piecewise_quadratic
from fullgrad.spikes._q_pseudo_spike import q_pseudo_spike
from fullgrad.spikes._rect import rect
from fullgrad.spikes._s2nn import s2nn
from fullgrad.spikes._sigmoid import sigmoid
from fullgrad.spikes._soft_sign import soft_sign
from fullgrad.spikes._sparse_fast_sigmoid import sparse_fast_sigmoid
from fullgrad.spikes._spike_count import spike_count
from fullgrad.spikes._spike_rate_escape import spike_rate_escape
from fullgrad.spikes._squarewave_fourier_series import squarewave_fourier_series
from fullgrad.spikes._sso import sso
from fullgrad.spikes._ste_heaviside import ste_heaviside
from fullgrad.spikes._ste_sign import ste_sign
from fullgrad.spikes._swish_sign import swish_sign
from fullgrad.spikes._ternary_sign import ternary_sign

__all__ = [
    "abs_binary_sign_grad",
    "approx_sign",
    "atan",
    "bernoulli",
    "circ",
    "dspike",
    "erf",
    "fake_numerical_gradient",
    "fast_sigmoid",
    "for_sinabs",
    "from_slope",
    "jumprelu",
    "leaky_k_relu",
    "log_tailed_relu",
    "multi_gaussian",
    "multi_spike",
    "nonzero_sign_log_abs",
    "periodic_exponential",
    "piecewise_exp",
    "piecewise_leaky_relu",
    "piecewise_quadratic",
    "q_pseudo_spike",
    "rect",
    "s2nn",
    "sigmoid",
    "soft_sign",
    "sparse_fast_sigmoid",
    "spike_count",
    "spike_rate_escape",
    "squarewave_fourier_series",
    "sso",
    "ste_heaviside",
    "ste_sign",
    "swish_sign",
    "ternary_sign",
]

make_public(__name__)
