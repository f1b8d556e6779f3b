"""Rounding and quantizing: piecewise constant values with useful derivatives."""

from fullgrad.rounding._affine_k_bit_quantize import AffineKBitQuantize, affine_k_bit_quantize
from fullgrad.rounding._ceil import Ceil, ceil
from fullgrad.rounding._floor import Floor, floor
from fullgrad.rounding._k_bit_quantize import KBitQuantize, k_bit_quantize, k_bit_quantize_forward
from fullgrad.rounding._pass_round import PassRound, pass_round
from fullgrad.rounding._round import Round, round
from fullgrad.rounding._soft_round import SoftRound, soft_round
from fullgrad.rounding._step_quantize import StepQuantize, step_quantize, step_quantize_forward

__all__ = [
    "AffineKBitQuantize",
    "Ceil",
    "Floor",
    "KBitQuantize",
    "PassRound",
    "Round",
    "SoftRound",
    "StepQuantize",
    "affine_k_bit_quantize",
    "ceil",
    "floor",
    "k_bit_quantize",
    "k_bit_quantize_forward",
    "pass_round",
    "round",
    "soft_round",
    "step_quantize",
    "step_quantize_forward",
]
