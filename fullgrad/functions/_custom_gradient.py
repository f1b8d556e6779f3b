"""`custom_gradient`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fullgrad._engine.call import Call, Result
from fullgrad._engine.operator import P, R
from fullgrad._engine.rule import Maybe
from fullgrad.functions._custom import CustomCall
from fullgrad.functions._custom_vjp import CustomVJP, VJPRule


def custom_gradient(f: Callable[P, tuple[R, Any]]) -> "CustomGradient[P, R]":
    r"""A function that returns its own pullback, as ``jax.custom_gradient``.

    .. math::
        y = f(x)_0, \qquad D^T g = f(x)_1(g)

    ``f(*args)`` returns the pair of the result and a function of its cotangent, which returns the gradient of each argument in a
    tuple; of one argument it may return it alone. If it has a parameter ``needs``, it gets there whether each is needed. Each
    derivative calls ``f`` again. All else is as in :func:`custom_vjp`. Saved: the inputs.

    Args:
        f: A function of positional parameters.

    Returns:
        The function, whose value is the first of the pair. It can be a method, and pickles by its name.

    Raises:
        TypeError: ``f`` is not callable or takes keyword-only parameters. When called: as in :func:`custom_vjp`, or ``f`` returns
            no such pair.
        ValueError: When called: a gradient has a wrong shape.
        RuntimeError: When called: as in :func:`custom_vjp`.
        NotImplementedError: In forward mode: the pullback is not linear.

    Example:
        >>> import torch, fullgrad
        >>> @fullgrad.custom_gradient
        ... def square(x):
        ...     return x**2, lambda g: (g * torch.sin(x),)
        >>> torch.func.grad(square)(torch.tensor(1.0))
        tensor(0.8415)

    Source: ``jax.custom_gradient``.
    """
    return CustomGradient(f, (), ())


class CustomGradient(CustomVJP[P, R]):
    """The function that `custom_gradient` returns."""

    kind, attributes = "custom_gradient", ()

    def __init__(self, f: Callable[..., Any], *options: Any) -> None:
        super().__init__(f, *options)
        self.bwd, self.function = f, functools.partial(_first_of, f)

    def rule_of(self, call: CustomCall) -> VJPRule:
        return _PullRule(self, call)

    @property
    def given(self) -> Callable[..., Any]:
        return self.bwd  # pyright: ignore[reportReturnType]


class _PullRule(VJPRule):
    """The rule of a function that returns its own pullback, which is called in each derivative."""

    def _fwd(self, x: Sequence[Tensor]) -> tuple[Result, Call]:
        return self.call.run(lambda *args: Result(self._pair(args)[0], self.owner.label), x), Call([])

    def _bwd(
        self, residuals: Call, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], x: Sequence[Tensor], needs: Sequence[bool]
    ) -> Maybe:
        g = self.result.tree(cotangents, None)

        def gradients(*args: Any) -> Any:
            with self.replay.again():
                pull = self._pair(args)[1]
            with self.replay.same_autocast():
                found = self.told(pull, needs)(g)
            return found if len(args) != 1 or isinstance(found, (tuple, list)) else (found,)

        return self._gradients(self.call.run(gradients, x))

    def _pair(self, args: Sequence[Any]) -> tuple[Any, Callable[[Any], Any]]:
        pair = self.owner.bwd(*args)  # pyright: ignore[reportOptionalCall]
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"{self.owner.label}: the function must return the pair (result, pullback), got {pair!r:.80}.")
        return pair


def _first_of(f: Callable[..., Any], *args: Any) -> Any:
    return f(*args)[0]
