"""Cases of the family `rounding`."""

import torch

import fullgrad
from fullgrad._suite.cases._case import Case, in_compute_dtype, numbers, straight_through
from fullgrad.rounding import _soft_round

X = numbers(4, 3)
UNIT = numbers(4, 3, scale=0.7, seed=1)
STEP = numbers(3, seed=2).abs() + 0.3
SCALE, OFFSET = numbers(3, seed=3), numbers(4, 1, seed=4)
LEARNED = numbers(4, 3, scale=1.0, seed=5)


@in_compute_dtype
def _plain_k_bit(x, k):
    levels = float(2**k - 1)
    return torch.round(x * levels) / levels


def _slope(x):
    """x / round(x); where round(x) is 0, 1 at 0 and 0 elsewhere; differentiable as it is."""
    r = torch.round(x)
    zero = r == 0
    return torch.where(zero, (x == 0).to(x.dtype), x / torch.where(zero, 1.0, r))


def _soft_round_surrogate(x):
    """x^2 / (2 r) has the derivative x / r for constant r; the value is set back to r."""
    r = torch.round(x)
    zero = r == 0
    smooth = torch.where(zero, torch.zeros_like(x), x * x / (2 * torch.where(zero, 1.0, r)))
    return straight_through(r, smooth)


def _learned_h(v, hard=False, zeta=1.1, gamma=-0.1, temperature=1.0):
    return torch.clamp(torch.sigmoid(v / temperature) * (zeta - gamma) + gamma, 0, 1)


def _half_away(x):
    """The nearest integers, halves away from 0: adding a half is exact in float64 for numbers of a narrower dtype."""
    if x.dtype == torch.float64:
        nearest = torch.round(x)
        tie = (x - torch.trunc(x)).abs() == 0.5
        return torch.where(tie, torch.trunc(x) + torch.copysign(torch.ones_like(x), x), nearest)
    return torch.copysign(torch.floor(x.double().abs() + 0.5), x.double()).to(x.dtype)


def _with_noise(x):
    """Stochastic rounding with the same noise for every element, whatever the shape."""
    return fullgrad.stochastic_round(x, noise=x.new_full(x.shape, 0.4, dtype=torch.float32))


def _away_with_noise(x):
    t = torch.trunc(x)
    if not x.is_floating_point():
        return t
    return torch.where((x - t).abs() > x.new_full((), 0.4, dtype=torch.float32), t + torch.copysign(torch.ones_like(x), x), t)


def _learned(hard):
    def value(x, v):
        wide = x.float() if x.dtype.itemsize == 2 else x
        h = _learned_h(v.to(wide.dtype))
        return (torch.floor(wide) + ((h > 0.5) if hard else h)).to(x.dtype)

    return Case(
        name=f"learned_round{', hard' * hard}",
        covers=("learned_round", "LearnedRound"),
        operator=lambda x, v: fullgrad.learned_round(x, v, hard=hard),
        inputs=(X, LEARNED),
        surrogate=lambda x, v: straight_through(value(x.detach(), v.detach()), x + _learned_h(v)),
        value=value,
        smooth_forwards={fullgrad.LearnedRound: lambda x, v, *options: x + _learned_h(v, *options)},
        exhaustive=hard,
    )


CASES = [
    Case(
        name="round",
        covers=("round", "Round"),
        operator=fullgrad.round,
        inputs=(X,),
        surrogate=lambda x: straight_through(torch.round(x), x),
        value=torch.round,
        smooth_forwards={fullgrad.Round: lambda x: x.clone()},
    ),
    Case(
        name="pass_round",
        long=True,
        covers=("pass_round", "PassRound"),
        operator=fullgrad.PassRound.apply,
        inputs=(X,),
        surrogate=lambda x: straight_through(torch.round(x), x),
        value=torch.round,
        smooth_forwards={fullgrad.PassRound: lambda x: x.clone()},
    ),
    Case(
        name="ceil",
        covers=("ceil", "Ceil"),
        operator=fullgrad.ceil,
        inputs=(X,),
        surrogate=lambda x: straight_through(torch.ceil(x), x),
        value=torch.ceil,
        smooth_forwards={fullgrad.Ceil: lambda x: x.clone()},
    ),
    Case(
        name="floor",
        covers=("floor", "Floor"),
        operator=fullgrad.floor,
        inputs=(X,),
        surrogate=lambda x: straight_through(torch.floor(x), x),
        value=torch.floor,
        smooth_forwards={fullgrad.Floor: lambda x: x.clone()},
    ),
    Case(
        name="trunc",
        covers=("trunc", "Trunc"),
        operator=fullgrad.trunc,
        inputs=(X,),
        surrogate=lambda x: straight_through(torch.trunc(x), x),
        value=torch.trunc,
        smooth_forwards={fullgrad.Trunc: lambda x: x.clone()},
    ),
    Case(
        name="round with a mode",
        covers=("round", "RoundByMode"),
        operator=lambda x: fullgrad.round(x, "half_away"),
        inputs=(X,),
        surrogate=lambda x: straight_through(_half_away(x), x),
        value=_half_away,
        smooth_forwards={fullgrad.RoundByMode: lambda x, mode: x.clone()},
    ),
    Case(
        name="stochastic_round",
        covers=("stochastic_round", "StochasticRound"),
        operator=_with_noise,
        inputs=(X,),
        surrogate=lambda x: straight_through(_away_with_noise(x), x),
        value=_away_with_noise,
        smooth_forwards={fullgrad.StochasticRound: lambda x, noise: x.expand(noise.shape).clone()},
        elementwise=False,
    ),
    _learned(hard=False),
    _learned(hard=True),
    Case(
        name="soft_round",
        covers=("soft_round", "SoftRound"),
        operator=fullgrad.soft_round,
        inputs=(X,),
        surrogate=_soft_round_surrogate,
        value=torch.round,
        smooth_forwards={
            fullgrad.SoftRound: lambda x: torch.where(x.round() == 0, 0.0, x * x / (2 * x.round())),
            _soft_round.Slope: _slope,
        },
    ),
    Case(
        name="step_quantize",
        covers=("step_quantize", "StepQuantize"),
        operator=fullgrad.step_quantize,
        inputs=(X, 0.3),
        surrogate=lambda x, step: straight_through(torch.round(x / step) * step, x),
        value=in_compute_dtype(lambda x, step: torch.round(x / step) * step),
        smooth_forwards={fullgrad.StepQuantize: lambda x, step: x.clone()},
    ),
    Case(
        name="step_quantize with a tensor step",
        long=True,
        covers=("step_quantize", "StepQuantize"),
        operator=fullgrad.step_quantize,
        inputs=(X, STEP),
        surrogate=lambda x, step: straight_through(torch.round(x / step), x / step) * step,
        value=in_compute_dtype(lambda x, step: torch.round(x / step) * step),
        smooth_forwards={fullgrad.StepQuantize: lambda x, step: x + 0 * step, fullgrad.Round: lambda x: x.clone()},
    ),
    Case(
        name="step_quantize_forward",
        long=True,
        covers=("step_quantize_forward",),
        operator=fullgrad.step_quantize_forward,
        inputs=(X, 0.3),
        surrogate=lambda x, step: torch.round(x / step) * step,
        value=in_compute_dtype(lambda x, step: torch.round(x / step) * step),
    ),
    Case(
        name="k_bit_quantize",
        covers=("k_bit_quantize", "KBitQuantize"),
        operator=fullgrad.k_bit_quantize,
        inputs=(UNIT, 3),
        surrogate=lambda x, k: straight_through(_plain_k_bit(x, k), x),
        value=_plain_k_bit,
        smooth_forwards={fullgrad.KBitQuantize: lambda x, k: x.clone()},
    ),
    Case(
        name="k_bit_quantize_forward",
        long=True,
        covers=("k_bit_quantize_forward",),
        operator=fullgrad.k_bit_quantize_forward,
        inputs=(UNIT, 3),
        surrogate=_plain_k_bit,
        value=_plain_k_bit,
    ),
    Case(
        name="affine_k_bit_quantize",
        covers=("affine_k_bit_quantize", "AffineKBitQuantize"),
        operator=fullgrad.affine_k_bit_quantize,
        inputs=(UNIT, 2, SCALE, OFFSET),
        surrogate=lambda x, k, w, b: w * straight_through(_plain_k_bit(x, k), x) + b,
        value=in_compute_dtype(lambda x, k, w, b: w * _plain_k_bit(x, k) + b),
        smooth_forwards={
            fullgrad.AffineKBitQuantize: lambda x, k, w, b: w * x + b,
            fullgrad.KBitQuantize: lambda x, k: x.clone(),
        },
    ),
]
