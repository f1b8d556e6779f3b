"""The cases that the short suite traces: one of each base of operators, class with rules of its own, and opaque function.

A graph costs seconds. Operators of one base share what makes their graphs; the others are traced with ``--long``.
"""

import sys

import torch

from fullgrad import Function
from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import scalar

OF_BASES = (
    "round",
    "soft_round",
    "clamp",
    "custom_vjp",
    "step_quantize with a tensor step",
    "replace_grad",
    "scale_grad",
    "ScaleTracker",
    "argmin_st softsort c0",
    "quantizers.codebook_quantize",
    "quantizers.dorefa_gradient",
    "quantizers.fake_quantize",
    "sampling.binary_st",
    "sampling.categorical_st",
    "soft.greater smooth",
    "spikes.leaky_k_relu",
    "spikes.sigmoid learned",
    "with_reference",
)
# The largest graphs, of second order or of sizes that are not known, are those of a base of each kind.
OF_KINDS = (
    "round",
    "clamp",
    "custom_vjp",
    "scale_grad",
    "argmin_st softsort c0",
    "quantizers.fake_quantize",
    "sampling.binary_st",
    "with_reference",
)
OF_ALGORITHMS = (
    "averages by blocks of rows",
    "averages by prefix sums",
    "averages by scans",
    "clamp_by_linear",
    "lower_bound",
    "quantizers.vector_quantize, identity",
    "rank_st fast_soft_sort smooth",
    "sampling.imle_topk",
    "sampling.k_subset_st",
    "safe.cdist",
    "safe.norm",
    "sampling.poisson_st",
    "soft.entmax_loss",
    "soft.histogram smooth",
    "soft.normmax",
    "soft.proj_transport_polytope c1",
    "soft.sort lapsum",
    "spikes.atan",
    "topk_mask_st",
)
NAMES = OF_BASES + OF_ALGORITHMS
TRACED = [c for c in CASES if c.name in NAMES]


def machinery(case, classes) -> set[str]:
    """What makes the graphs of a case: the bases of the classes that it calls, those without a base, and its opaque functions."""
    found = set()
    for cls in classes:
        bases = cls.__mro__[1 : cls.__mro__.index(Function)]
        found |= {base.__name__ for base in bases} or {cls.__name__}

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name == "call" and frame.f_code.co_filename.endswith("nodes.py"):
            found.add(frame.f_locals["function"].__qualname__)

    leaves = case.leaves()
    sys.setprofile(note)
    try:
        torch.autograd.grad(scalar(case.op)(*leaves), leaves, allow_unused=True)
    finally:
        sys.setprofile(None)
    return found
