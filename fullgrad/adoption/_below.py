"""What cannot run inside a transform, since it looks at numbers, runs below all of them, sample by sample."""

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import transforms_active
from fullgrad._function import Function
from fullgrad.adoption._randomness import Draws
from fullgrad.adoption._tensors import NO_ARGUMENT, Like, is_differentiable, separate

Maybe = Sequence[Tensor | None]
_warned: Any = weakref.WeakSet()


def run_or_descend(call: Any, function: Callable[..., Any], args: Maybe) -> list[Tensor | None]:
    """``function(*args)`` of a call's tensors and Nones, where it is called, or below all transforms if it cannot run inside."""
    body = WithoutNone(function, args)
    if call.once:
        return body.restore(Below.apply(Once(body, call.name), *body.tensors))
    try:
        return body.restore(body(*body.tensors))
    except Exception as error:
        if not transforms_active():
            raise
        check_loop(call, error)
        result = body.restore(Below.apply(body, *body.tensors))
        warn_of_loop(call, error)
        return result


def check_loop(call: Any, error: Exception) -> None:
    """Raise what running sample by sample does not mend, or if the user does not want that."""
    check_escape(call, error)
    text = str(error)
    if isinstance(error, NotImplementedError) and text.startswith(f"{call.name}"):
        raise error
    if "randomness" in text:
        raise error
    if not call.options.allow_loop:
        raise NotImplementedError(
            f"{call.name} cannot be batched, and allow_loop=False refuses to run it sample by sample: {first_line(error)}"
        ) from error


def check_escape(call: Any, error: Exception) -> None:
    """Say in other words what torch says of a tensor whose transform is not active."""
    if any(sign in str(error) for sign in ("may have escaped", "functorch/Interpreter")):
        raise NotImplementedError(NO_ARGUMENT.format(call.name)) from error


def warn_of_loop(call: Any, error: Exception) -> None:
    """Once for each class, why it is slow."""
    if call.cls not in _warned:
        _warned.add(call.cls)
        warnings.warn(f"{call.name} runs sample by sample under vmap, as it cannot be batched: {first_line(error)}", stacklevel=2)


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


class Below(Function):
    """A function of tensors that runs below all transforms, sample by sample where it cannot be batched."""

    @staticmethod
    def forward(body: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return separate(body(*tensors), tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.body, *tensors = inputs
        ctx.like = [Like.of(o) for o in output]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        pull, where = _pullback(ctx.body, ctx.saved_tensors)
        grads = dict(zip(where, Below.apply(pull, *ctx.saved_tensors, *cotangents), strict=True))
        return None, *[grads.get(i) for i in range(len(ctx.saved_tensors))]

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        tensors, like = ctx.saved_tensors, ctx.like
        pull, where = _pullback(ctx.body, tensors)

        def push(*all: Tensor) -> tuple[Tensor, ...]:  # the transpose of the transpose
            transpose = lambda *g: pull(*all[: len(tensors)], *g)  # noqa: E731
            return torch.func.vjp(transpose, *[a.zeros() for a in like])[1](all[len(tensors) :])

        given = [tangents[i] for i in where]
        some = [torch.zeros_like(tensors[i]) if t is None else t for i, t in zip(where, given, strict=True)]
        return tuple(Below.apply(push, *tensors, *some))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], body: Any, *tensors: Tensor) -> tuple[Any, Any]:
        dims = in_dims[1:]

        def batched(*tensors: Tensor) -> tuple[Tensor, ...]:
            try:
                return torch.vmap(body, dims, 0, info.randomness)(*tensors)
            except Exception as error:
                if "randomness" in str(error):
                    raise
            draws = Draws("a class", info.randomness, tensors)
            samples = [
                draws.sample(body, *[t if d is None else t.select(d, b) for t, d in zip(tensors, dims, strict=True)])
                for b in range(info.batch_size)
            ]
            return tuple(torch.stack(parts) for parts in zip(*samples, strict=True))

        outs = Below.apply(Once(batched, body.name) if isinstance(body, Once) else batched, *tensors)
        return outs, (0,) * len(outs)


class Once(NamedTuple):
    """The body of a backward that may not be differentiated."""

    body: Any
    name: str

    def __call__(self, *tensors: Tensor) -> Any:
        with torch.no_grad():
            return self.body(*tensors)


class WithoutNone:
    """A function of tensors and Nones that returns tensors and Nones, as one of tensors alone."""

    def __init__(self, function: Callable[..., Any], args: Maybe) -> None:
        self.function, self.given = function, [a is not None for a in args]
        self.tensors = [a for a in args if a is not None]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        remaining = iter(tensors)
        result = self.function(*[next(remaining) if g else None for g in self.given])
        self.returned = [r is not None for r in result]
        return tuple(r for r in result if r is not None)

    def restore(self, result: Any) -> list[Tensor | None]:
        """The result with its Nones."""
        remaining = iter(result)
        return [next(remaining) if r else None for r in self.returned]


def _pullback(body: Any, tensors: tuple[Tensor, ...]) -> tuple[Any, list[int]]:
    """The function of ``(*tensors, *cotangents)`` that pulls back to the differentiable tensors, and which these are."""
    if isinstance(body, Once):
        raise RuntimeError(f"{body.name}.backward is once_differentiable: it has no second derivative.")
    n, where = len(tensors), [i for i, t in enumerate(tensors) if is_differentiable(t)]

    def pull(*all: Tensor) -> tuple[Tensor, ...]:
        def of_some(*some: Tensor) -> Any:
            given = dict(zip(where, some, strict=True))
            return tuple(body(*[given.get(i, t) for i, t in enumerate(all[:n])]))

        return torch.func.vjp(of_some, *[all[i] for i in where])[1](all[n:])

    return pull, where
