"""Random operators: the value is a sample, the derivative is that of an estimator.

The noise is an input of the operator, drawn once before it: pass ``noise``, or let the function draw it.
"""

from fullgrad._core.noise import exponential_like, gumbel_like, uniform_like
from fullgrad._core.public import make_public
from fullgrad.sampling._bernoulli_logits_st import bernoulli_logits_st
from fullgrad.sampling._bernoulli_st import bernoulli_st
from fullgrad.sampling._binary_st import binary_st
from fullgrad.sampling._categorical_st import categorical_st
from fullgrad.sampling._gapped_st import gapped_st
from fullgrad.sampling._gumbel_rao import gumbel_rao
from fullgrad.sampling._gumbel_sinkhorn import gumbel_sinkhorn
from fullgrad.sampling._gumbel_softmax import gumbel_softmax
from fullgrad.sampling._gumbel_topk import gumbel_topk
from fullgrad.sampling._hard_concrete import hard_concrete
from fullgrad.sampling._hard_concrete_l0 import hard_concrete_l0
from fullgrad.sampling._imle_topk import imle_topk
from fullgrad.sampling._k_subset_st import k_subset_st
from fullgrad.sampling._plackett_luce_st import plackett_luce_st
from fullgrad.sampling._poisson_st import poisson_st
from fullgrad.sampling._reinmax import reinmax
from fullgrad.sampling._relaxed_bernoulli import relaxed_bernoulli
from fullgrad.sampling._ternary_st import ternary_st

__all__ = [
    "bernoulli_logits_st",
    "bernoulli_st",
    "binary_st",
    "categorical_st",
    "exponential_like",
    "gapped_st",
    "gumbel_like",
    "gumbel_rao",
    "gumbel_sinkhorn",
    "gumbel_softmax",
    "gumbel_topk",
    "hard_concrete",
    "hard_concrete_l0",
    "imle_topk",
    "k_subset_st",
    "plackett_luce_st",
    "poisson_st",
    "reinmax",
    "relaxed_bernoulli",
    "ternary_st",
    "uniform_like",
]

make_public(__name__)
