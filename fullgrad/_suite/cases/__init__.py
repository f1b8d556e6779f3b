"""The cases: every public operator with inputs and oracles, in the one list from which the tests of all operators are made."""

from fullgrad._suite.cases import (
    blackbox,
    clamping,
    functions,
    gradients,
    implicit,
    losses,
    order,
    quantizers,
    rounding,
    safe,
    sampling,
    simplex,
    soft,
    spikes,
    tracking,
)
from fullgrad._suite.cases._case import Case

CASES: list[Case] = [
    *rounding.CASES,
    *clamping.CASES,
    *gradients.CASES,
    *tracking.CASES,
    *soft.CASES,
    *order.CASES,
    *spikes.CASES,
    *quantizers.CASES,
    *sampling.CASES,
    *simplex.CASES,
    *functions.CASES,
    *implicit.CASES,
    *blackbox.CASES,
    *losses.CASES,
    *safe.CASES,
]

__all__ = ["CASES", "Case"]
