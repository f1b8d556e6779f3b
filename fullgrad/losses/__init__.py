"""Losses for rankings: metrics made differentiable by soft ranks, and surrogates of NDCG. Losses of sparse weights are in
:mod:`fullgrad.soft`.
"""

from fullgrad._core.public import make_public
from fullgrad.losses._lambda_loss import lambda_loss
from fullgrad.losses._listnet import listnet
from fullgrad.losses._ndcg import ndcg
from fullgrad.losses._spearman import spearman

__all__ = ["lambda_loss", "listnet", "ndcg", "spearman"]

make_public(__name__)
