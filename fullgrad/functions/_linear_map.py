"""`linear_map`: an operator from a linear function and its transpose."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._engine.call import Result
from fullgrad._engine.changes import Surroundings
from fullgrad._engine.checks import check_like, check_result
from fullgrad._engine.closure import Refusing
from fullgrad._engine.copies import frozen
from fullgrad._engine.differentiated import is_differentiated, may_differ
from fullgrad._engine.operator import Made
from fullgrad._engine.rule import Rule, declared
from fullgrad._engine.values import METHODS, values_by
from fullgrad._engine.watching import seen


def linear_map(
    apply: Callable[[Tensor], Tensor],
    transpose: Callable[[Tensor], Tensor],
    *,
    vmap_method: str = "map",
    like: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[Tensor], Tensor]:
    r"""An operator from a linear function and its transpose, which need not be torch code.

    .. math::
        y = A x, \qquad \mathrm{jvp}(t) = A t, \qquad \mathrm{vjp}(g) = A^H g

    so that derivatives of every order call the two functions alone: a Fourier or Radon transform, a sparse or matrix-free matrix,
    an operator of scipy. For complex tensors ``transpose`` is the conjugate transpose. The functions use no tensor that needs a
    derivative. Nothing is saved.

    Args:
        apply: A function of one tensor, floating or complex, which returns a tensor.
        transpose: A function of a tensor like the result of ``apply``, which returns one like its argument.
        vmap_method: ``"map"``: the functions are torch code, which `torch.func.vmap` batches and compiled code traces. Else they
            may be any code, which gets plain tensors and is one node of a graph: ``"sequential"``, called sample by sample;
            ``"broadcast"``, called once for a batch, with a dimension more in front.
        like: Where compiled code calls other code and the result has not the shape and dtype of the argument: a function of the
            argument that returns an empty tensor like the result of ``apply``.

    Returns:
        The operator, a function of one tensor. It pickles if ``apply`` and ``transpose`` do.

    Raises:
        TypeError: A function is not callable. When called: the argument is not a floating or complex tensor, or a function
            returns no tensor, ``apply`` integers where it is differentiated, or ``transpose`` one of another dtype than the
            argument.
        ValueError: ``vmap_method`` is another string. When a derivative is taken: ``transpose`` returns another shape than that
            of the argument.
        RuntimeError: When called: a function changes its argument, or uses another tensor that needs a derivative.

    Example:
        >>> import numpy, torch, fullgrad
        >>> total = fullgrad.linear_map(
        ...     lambda x: torch.from_numpy(numpy.cumsum(x.numpy())),
        ...     lambda g: torch.from_numpy(numpy.cumsum(g.numpy()[::-1])[::-1].copy()),
        ...     vmap_method="sequential",
        ... )
        >>> x = torch.tensor([1.0, 2.0, 3.0])
        >>> total(x)
        tensor([1., 3., 6.])
        >>> torch.func.hessian(lambda x: (total(x) ** 2).sum() / 2)(x)
        tensor([[3., 2., 1.],
                [2., 2., 1.],
                [1., 1., 1.]])

    Source: ``jax.custom_derivatives.linear_call``.
    """
    checks.callables("linear_map", apply=apply, transpose=transpose)
    checks.choice("linear_map", "vmap_method", vmap_method, METHODS)
    checks.like("linear_map", like)
    return LinearMap(apply, transpose, vmap_method, like)


class LinearMap(Made[[Tensor], Tensor]):
    """The operator that `linear_map` returns."""

    kind = "linear_map"

    def __init__(self, apply: Callable[..., Tensor], transpose: Callable[..., Tensor], method: str, like: Any) -> None:
        super().__init__(self.kind, apply)
        self.functions, self.method, self.like, self.made_of = (apply, transpose), method, like, (apply, transpose, method, like)

    def parts(self) -> list[Any]:
        return list(self.functions)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if len(args) != 1 or kwargs:
            raise TypeError(f"linear_map: one argument is taken, by position, got {len(args)} and {sorted(kwargs)}.")
        (x,) = args
        if not isinstance(x, Tensor):
            raise TypeError(f"linear_map: the argument must be a tensor, got a value of type {type(x).__name__}.")
        (x,) = seen([x])
        if not may_differ(x):
            raise TypeError(f"linear_map: the argument must be a floating or complex tensor, got dtype {x.dtype}.")
        return self._along(self.functions, 0, x, lambda x: _kind(self.like(x) if self.like else x))

    def _along(self, functions: Sequence[Any], direction: int, x: Tensor, like: Callable[[Tensor], Any]) -> Tensor:
        """One of the two functions, with the other one as the derivative; ``like`` tells what its result is like."""
        y = self._value(functions[direction], direction, x, like)
        if not is_differentiated([x]):
            return y
        check_result(f"linear_map: `{_NAMES[direction]}`", Result(y))
        kind, later = _kind(x), [frozen(f) for f in functions]

        def pull(_: Any, cotangents: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
            return [self._along(later, 1 - direction, cotangents[0], lambda _: kind)]

        def push(_: Any, tangents: Sequence[Any], __: Any) -> list[Tensor]:
            return [self._along(later, direction, tangents[0], like)]

        return declared(Rule(pull, push, saves=False).within(Surroundings(self.label, *later)), [y], [x])[0]

    def _value(self, function: Any, direction: int, x: Tensor, like: Callable[[Tensor], Any]) -> Tensor:
        name = f"linear_map: `{_NAMES[direction]}`"

        def value(x: Tensor) -> Result:
            y = function(x)
            if not isinstance(y, Tensor):
                raise TypeError(f"{name} must return a tensor, got a value of type {type(y).__name__}.")
            return Result(y)

        def empty(x: Tensor) -> Result:
            shape, dtype, device = like(x)
            return Result(torch.empty(shape, dtype=dtype, device=device))

        y = values_by(Refusing(name, function), self.method, value, empty, [x]).whole()
        return check_like(f"{name}: its result", "the argument of `apply`", y, *like(x)[:2]) if direction else y


_NAMES = "apply", "transpose"


def _kind(tensor: Tensor) -> tuple[Any, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
