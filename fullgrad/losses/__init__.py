"""Losses that are ranking metrics, made differentiable by soft ranks. Losses of sparse weights are in :mod:`fullgrad.soft`."""

from fullgrad._core.public import make_public
from fullgrad.losses._ndcg import ndcg
from fullgrad.losses._spearman import spearman

__all__ = ["ndcg", "spearman"]

make_public(__name__)
