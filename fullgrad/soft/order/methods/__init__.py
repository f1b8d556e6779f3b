"""The methods that make an order soft, each with one file and one line here."""

from typing import Literal, get_args

from fullgrad.soft.order.methods._method import Method
from fullgrad.soft.order.methods.fast_soft_sort import FastSoftSort
from fullgrad.soft.order.methods.lapsum import LapSum
from fullgrad.soft.order.methods.neuralsort import NeuralSort
from fullgrad.soft.order.methods.optimal_transport import OptimalTransport
from fullgrad.soft.order.methods.pairwise_sigmoid import PairwiseSigmoid
from fullgrad.soft.order.methods.softsort import SoftSort
from fullgrad.soft.order.methods.sorting_network import SortingNetwork

METHODS: dict[str, Method] = {
    "softsort": SoftSort(),
    "neuralsort": NeuralSort(),
    "ot": OptimalTransport(),
    "sorting_network": SortingNetwork(),
    "fast_soft_sort": FastSoftSort(),
    "sigmoid": PairwiseSigmoid(),
    "lapsum": LapSum(),
}

# Methods with weights; methods with values; and all methods, which have ranks.
PermutationMethod = Literal["softsort", "neuralsort", "ot", "sorting_network"]
SortMethod = Literal[PermutationMethod, "fast_soft_sort"]
RankMethod = Literal[SortMethod, "sigmoid"]
# The methods of these functions alone, in the mode laplace.
SortOrLapSum = Literal[SortMethod, "lapsum"]
RankOrLapSum = Literal[RankMethod, "lapsum"]
LAPLACE_METHODS = {"sort": ("lapsum",), "rank": ("sigmoid", "lapsum")}
PERMUTATION_METHODS: tuple[str, ...] = get_args(PermutationMethod)
SORT_METHODS: tuple[str, ...] = get_args(SortMethod)
RANK_METHODS: tuple[str, ...] = get_args(RankMethod)
# Methods whose values are sums with the weights.
WEIGHTED_SUM_METHODS = tuple([name for name, method in METHODS.items() if method.values_are_weighted_sums])
