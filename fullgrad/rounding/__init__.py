"""Rounding and quantizing: piecewise constant values with useful derivatives."""

from fullgrad._core.public import make_public
from fullgrad.rounding._affine_k_bit_quantize import AffineKBitQuantize, affine_k_bit_quantize
from fullgrad.rounding._ceil import Ceil, ceil
from fullgrad.rounding._floor import Floor, floor
from fullgrad.rounding._k_bit_quantize import KBitQuantize, k_bit_quantize, k_bit_quantize_forward
from fullgrad.rounding._learned_round import LearnedRound, learned_round
from fullgrad.rounding._pass_round import PassRound, pass_round
from fullgrad.rounding._round import Round, RoundByMode, round
from fullgrad.rounding._soft_round import SoftRound, soft_round
from fullgrad.rounding._step_quantize import StepQuantize, step_quantize, step_quantize_forward
from fullgrad.rounding._stochastic_round import StochasticRound, stochastic_round
from fullgrad.rounding._trunc import Trunc, trunc

__all__ = [
    "AffineKBitQuantize",
    "Ceil",
    "Floor",
    "KBitQuantize",
    "LearnedRound",
    "PassRound",
    "Round",
    "RoundByMode",
    "SoftRound",
    "StepQuantize",
    "StochasticRound",
    "Trunc",
    "affine_k_bit_quantize",
    "ceil",
    "floor",
    "k_bit_quantize",
    "k_bit_quantize_forward",
    "learned_round",
    "pass_round",
    "round",
    "soft_round",
    "step_quantize",
    "step_quantize_forward",
    "stochastic_round",
    "trunc",
]

make_public(__name__, "fullgrad")
