"""`Code`: a solver or a simulator, which is called for its values alone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import to_opmath
from fullgrad._dispatch import has_shape, is_differentiating, level_of
from fullgrad._engine.call import Result
from fullgrad._engine.changes import Surroundings
from fullgrad._engine.closure import CAPTURED_BY_CODE, Closure
from fullgrad._engine.copies import frozen
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.node import value_alone
from fullgrad._engine.opaque import opaque_values
from fullgrad._engine.values import METHODS, values_of
from fullgrad._engine.watching import seen


class Code:
    """Code of the user in a call and in its derivative.

    It may use tensors of a batch besides its argument. These are noted in the call, and the derivative gets them as inputs.
    """

    def __init__(self, name: str, argument: str, function: Callable[..., Any], method: str, like: Any) -> None:
        checks.function(name, argument, function)
        checks.choice(name, "vmap_method", method, METHODS)
        if like is not None:
            checks.function(name, "like", like)
        self.label, self.function, self.method, self.like = f"{name}: `{argument}`", function, method, like
        # Where nothing is, no derivative by a tensor that the code uses can be lost.
        self.is_recorded = is_differentiating()
        if not value_alone():
            self.later, self.closure = frozen(function), _Closure(self.label, function)
            self.surroundings = Surroundings(self.label, self.later)

    def first(self, points: Tensor, draws: bool = False) -> tuple[Tensor, list[Tensor]]:
        """The values at a point, or at the draws in the first dimension, and the tensors that the code uses besides."""
        if value_alone():
            one = lambda point: self._tensor(self.function(point), point)  # noqa: E731
            return torch.stack([one(p) for p in points]) if draws else one(points), []
        value = self._values(self.function, points, draws, self.closure.hold() if self.method != "map" else [])
        held, _ = self.closure.release()
        if is_differentiated(held):
            raise RuntimeError(self.closure.message())
        return value, held

    def again(self, points: Tensor, held: Sequence[Tensor]) -> Tensor:
        """The value in a derivative, which gets the tensors that the code uses besides."""
        self.surroundings.check()
        return self._values(self.later, points, False, held)

    def check_shape(self, value: Tensor, x: Tensor) -> None:
        """Refuse a solution that is not like its argument."""
        if not has_shape(value.shape, x.shape):
            raise ValueError(
                f"{self.label} must return the shape of its argument, {tuple(x.shape)}, got {tuple(value.shape)}; "
                "a batch is a dimension of torch.func.vmap."
            )

    def _values(self, function: Callable[..., Any], points: Tensor, draws: bool, held: Sequence[Tensor]) -> Tensor:
        def one(point: Tensor) -> Tensor:
            return self._tensor(function(point), point)

        if self.method == "map":
            # Inside of vmap, whose tensors the closure would take for others.
            def mapped(points: Tensor, *held: Tensor) -> Tensor:
                of_point = lambda point: self.closure.first(one, [point], held)  # noqa: E731
                return torch.func.vmap(of_point, randomness="different")(points) if draws else of_point(points)

            return values_of(self.label, mapped, [points, *held], self.closure.message)
        ndim = points.ndim - draws

        def value(points: Tensor) -> Result:
            if self.method == "sequential":
                # Code may return one buffer for each draw.
                return Result(torch.stack([one(p).clone() for p in points]) if draws else one(points))
            result, leading = one(points), points.ndim - ndim
            if result.shape[:leading] != points.shape[:leading]:
                raise ValueError(
                    f'{self.label} gets {leading} dimensions more in front with vmap_method="broadcast", of the sizes '
                    f"{tuple(points.shape[:leading])}, which its result must have; got the shape {tuple(result.shape)}."
                )
            return Result(result)

        like = lambda points: Result(self._like(points, draws))  # noqa: E731
        return opaque_values(self.closure, self.method, value, like, [points], held, draws).whole()

    def _like(self, points: Tensor, draws: bool) -> Tensor:
        if self.like is None:
            return torch.empty_like(points)
        shape = self.like(points[0] if draws else points).shape
        return points.new_empty([*points.shape[:draws], *shape])

    def _tensor(self, result: Any, point: Tensor) -> Tensor:
        if not isinstance(result, Tensor):
            try:
                result = torch.as_tensor(result)
            except (TypeError, ValueError, RuntimeError) as error:
                raise TypeError(
                    f"{self.label} must return one tensor, number or array, got a value of type {type(result).__name__}."
                ) from error
        if result.is_complex():
            raise TypeError(f"{self.label} must return real numbers, got dtype {result.dtype}.")
        result = result if self.is_recorded else result.detach()
        return result.to(device=point.device, dtype=point.dtype)


class _Closure(Closure):
    """The tensors of transforms that code uses; those that need a derivative are refused, as the rules do not know of them."""

    def message(self) -> str:
        return CAPTURED_BY_CODE.format(self.name)

    def noted(self, tensor: Tensor) -> Tensor:
        return super().noted(tensor) if level_of(tensor) else tensor  # whose derivative the result shows


def point(name: str, x: Any) -> Tensor:
    """The argument as formulas have it: float32 in place of half precision."""
    checks.floating_tensor(name, "x", x)
    return to_opmath(seen([x])[0])[0]
