"""Order statistics by kernels, as `fullgrad._fast.small_rows` asks for them: a value and a first derivative."""

import functools
from typing import Any

import torch
from torch import Tensor

from fullgrad._fast.gpu import LONGEST, LONGEST_OF_PAIRS, is_served, run
from fullgrad.soft.order._operators.extremum import Extremum
from fullgrad.soft.order._operators.quantile import Quantile, bracketing_indices
from fullgrad.soft.order._operators.rank import Rank
from fullgrad.soft.order._operators.sort import Sort


class KernelForm:
    """An order statistic of rows by kernels, whose places are in the dimension ``at`` of the output, or None for one place
    without a dimension.
    """

    rows = None  # the kernels see to units

    def __init__(self, x: Tensor, dim: int, at: int | None, outputs: str, **options: Any) -> None:
        self.dim, self.at, self.kinds, self.options, self.dtype = dim, at, outputs, options, x.dtype
        x = x.detach().movedim(dim, -1)
        self.x, self.shape = x.reshape(-1, x.shape[-1]), x.shape
        places = 1 if options.get("mix") else options.get("count", x.shape[-1])
        self.places = x.shape[:-1] if at is None else (*x.shape[:-1], places)

    def outputs(self) -> Any:
        """The outputs of the operator, or NotImplemented."""
        return self._returned(self._run(self.places, "value"))

    def tangent(self, t: Tensor) -> Any:
        """The tangent of the outputs, from the tangent of x."""
        return self._returned(self._run(self.places, "jvp", t.to(self.dtype).movedim(self.dim, -1)))

    def gradient(self, *cotangents: Tensor) -> Any:
        """The gradient of x."""
        values, weights = cotangents[0], cotangents[-1]
        if self.at not in (None, -1):
            values = values.movedim(self.at, -1) if self.kinds != "weights" else values
            weights = weights.movedim(self.at - 1, -2) if "weights" in self.kinds else weights
        both = {"weights": (self.x, weights), "values_and_weights": (values, weights)}.get(self.kinds, (values,))
        found = self._run(self.shape, "vjp", *[v.to(self.dtype) for v in both])
        return found if found is NotImplemented else found.movedim(-1, self.dim)

    def _run(self, shape: Any, what: str, *v: Tensor) -> Any:
        return run("pairs", self.x.contiguous(), shape, what, *v, **self.options)

    def _returned(self, found: Any) -> Any:
        """Values and weights of places as the operator returns them."""
        if found is NotImplemented:
            return found
        values, weights = (found, None) if isinstance(found, Tensor) else found
        if self.at not in (None, -1):
            values = values.movedim(-1, self.at)
            weights = None if weights is None else weights.movedim(-2, self.at - 1)
        return weights if self.kinds == "weights" else values if weights is None else (values, weights)


def has_kernel(operator: Any, inputs: Any) -> bool:
    """Whether a kernel computes an operator for its inputs, of which all but the first are constants."""
    # An element meets itself among the sigmoids: the difference of two infinities, unless they are standardized.
    x, dim, (_, method, standardize, *_) = inputs[0], inputs[operator.dim_at], inputs[-1]
    longest = LONGEST if operator is Extremum and method == "softsort" else LONGEST_OF_PAIRS
    return (
        inputs[operator.dim_at - 1].__class__ is float
        and is_served(x, x.shape[dim], longest)
        and (method in ("softsort", "neuralsort") or (method == "sigmoid" and standardize and x.shape[dim] > 1))
        and (operator is not Quantile or (not isinstance(inputs[1], Tensor) and len(inputs[1]) == 1))
    )


def kernel_form(operator: Any, inputs: Any) -> KernelForm:
    """The form of an operator that has a kernel for its inputs."""
    x, softness, dim = inputs[0], inputs[operator.dim_at - 1], inputs[operator.dim_at]
    mode, method, standardize, gated, outputs, hard = inputs[-1]
    n = x.shape[dim]
    known = {"method": method, "mode": mode, "standardize": standardize, "gated": gated, "softness": softness}
    if operator is Rank:
        return KernelForm(x, dim, dim, outputs, **known, rank=True, sign=-1 if inputs[3] else 1)
    known.update(weights=2 if outputs == "weights" else int("weights" in outputs), hard=hard)
    if operator is Sort:
        *_, descending, k, _ = inputs
        return KernelForm(x, dim, dim, outputs, **known, descending=descending or k > 0, count=k or n)
    if operator is Extremum:
        largest = inputs[3]
        if method == "softsort":
            return KernelForm(x, dim, None, outputs, **{**known, "method": "largest"}, sign=1 if largest else -1, count=1)
        return KernelForm(x, dim, None, outputs, **known, first=n - 1 if largest else 0, count=1)
    q, interpolation = inputs[1], inputs[4]
    low, _, a = _place(q, n, interpolation)
    return KernelForm(x, dim, -1, outputs, **known, first=int(low), count=1 + (a > 0), mix=a or None)


@functools.lru_cache(1024)
def _place(q: tuple[float, ...], n: int, interpolation: str) -> tuple[float, float, float]:
    low, high, a = [v.item() for v in bracketing_indices(torch.tensor(q, dtype=torch.float64, device="cpu"), n, interpolation)]
    return low, high, a
