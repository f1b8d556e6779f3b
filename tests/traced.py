"""The cases that the short suite traces: one of each base of operators, class with rules of its own, and opaque function.

A graph costs seconds. Operators of one base share what makes their graphs; the others are traced with ``--long``.
"""

import sys

from fullgrad import Function
from fullgrad._suite.cases import CASES

NAMES = (
    "round",
    "soft_round",
    "clamp",
    "step_quantize with a tensor step",
    "clamp_by_linear",
    "replace_grad",
    "scale_grad",
    "ScaleTracker",
    "argmin_st softsort c0",
    "averages by blocks of rows",
    "averages by prefix sums",
    "averages by scans",
    "rank_st fast_soft_sort smooth",
    "soft.entmax_loss",
    "soft.normmax",
    "soft.proj_transport_polytope c1",
    "topk_mask_st",
    "quantizers.codebook_quantize",
    "quantizers.dorefa_gradient",
    "quantizers.fake_quantize",
    "quantizers.vector_quantize, identity",
    "sampling.binary_st",
    "sampling.categorical_st",
    "sampling.imle_topk",
    "soft.greater smooth",
    "spikes.leaky_k_relu",
    "spikes.sigmoid learned",
)
TRACED = [c for c in CASES if c.name in NAMES]


def machinery(case, classes) -> set[str]:
    """What makes the graphs of a case: the bases of the classes that it calls, those without a base, and its opaque functions."""
    found = set()
    for cls in classes:
        bases = cls.__mro__[1 : cls.__mro__.index(Function)]
        found |= {base.__name__ for base in bases} or {cls.__name__}

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name == "call" and frame.f_code.co_filename.endswith("nodes.py"):
            found.add(frame.f_locals["function"].__name__)

    sys.setprofile(note)
    try:
        case.op(*case.tensors)
    finally:
        sys.setprofile(None)
    return found
