"""`straight_through`: an operator from a hard and a soft function; the forward calls the hard one only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._core import checks
from fullgrad._core.recomputed import Recomputed, gradients, pullback, recorded, saved_inputs
from fullgrad._dispatch import (
    are_differentiated,
    can_reuse_buffers,
    forward_mode_is_on,
    has_shape,
    is_compiling,
    is_differentiating,
    is_tracing,
    level_of,
    transforms_active,
)
from fullgrad._engine.call import Result, refuse_hidden
from fullgrad._engine.changes import CHANGED, Surroundings, versions_of
from fullgrad._engine.differentiated import leaves_of, may_differ
from fullgrad._engine.guard import guard
from fullgrad._engine.held import content, places
from fullgrad._engine.node import refuse_inside
from fullgrad._engine.operator import P, made, name_of
from fullgrad._engine.replay import Replay
from fullgrad.functions._with_reference import WithReference


def straight_through(hard: Callable[P, Tensor], soft: Callable[..., Tensor]) -> Callable[P, Tensor]:
    r"""An operator with the value of one function and the derivative of another.

    .. math::
        y = h(x), \qquad D(x) = s'(x)

    at every order. The forward calls ``hard`` only; ``soft`` is called when a derivative is computed, once for each. Saved: the
    inputs that are tensors. Under ``vmap`` both functions see one sample.

    A tensor that ``soft`` captures, such as a parameter of a module, gets its derivative too, as in :func:`with_reference`, if it
    requires a gradient or belongs to a transform when the operator is called. What ``soft`` captures is looked up when the
    operator is made: where that is no tensor and no module, ``soft`` is not looked at before the backward, which raises if it
    finds one.

    Args:
        hard: Called with the inputs; returns a floating tensor.
        soft: Called with the same; returns a floating tensor of the same shape and dtype.

    Returns:
        The operator, a function of positional arguments. It can be pickled and copied where ``hard`` and ``soft`` can.

    Raises:
        TypeError: One of the two is not callable. When called: an argument is a module, or an object that holds tensors; ``hard``
            returns bools or integers. When the derivative is taken: the outputs have two dtypes.
        RuntimeError: When the derivative is taken: ``soft`` used a tensor that requires a gradient and could not be seen when the
            operator was made, or its output differs from that of ``hard``.

    Example:
        >>> import torch, fullgrad
        >>> step = fullgrad.straight_through(lambda x: (x > 0).to(x.dtype), torch.sigmoid)
        >>> torch.func.hessian(lambda x: step(x).sum())(torch.tensor([1.0]))
        tensor([[-0.0909]])

    Source: Bengio, Léonard, Courville, https://arxiv.org/abs/1308.3432.
    """
    refuse_inside("straight_through", ", or write `replace_grad(hard(x), soft(x))`")
    checks.callables("straight_through", hard=hard, soft=soft)
    objects = [value for f in (hard, soft) for value in (f, *[value for *_, value in places(f)])]
    if any(isinstance(value, (Tensor, nn.Module)) for value in objects):
        return CapturingStraightThrough(hard, soft)
    apply = _operator(name_of(hard), hard, soft).apply
    return made(apply, straight_through, hard, soft, like=hard)


_CONSTANTS = (Tensor, int, float, bool, str, type(None))


def _operator(name: str, hard: Any, soft: Any) -> Any:
    """The operator class of two functions; its ``vmap`` makes one more for each pattern of batched arguments."""
    batched: dict[Any, Any] = {}
    label = f"straight_through: {name}"

    def pulled(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inputs = saved_inputs(ctx)
        where = tuple([i for i, needed in enumerate(ctx.needs_input_grad) if needed])
        if can_reuse_buffers() and not torch.is_inference_mode_enabled():  # where autograd records nothing
            y, some = recorded(soft, inputs, where)
            _check_output(name, y, ctx.like[0], bool(leaves_of([y]) - {id(v) for v in some}))
            found = iter(gradients(y, some, g))
        else:
            _check_alone(name, soft, inputs, ctx.like[0])
            found = iter(pullback(soft, inputs, where)(g))
        return tuple([next(found) if i in where else None for i in range(len(inputs))])

    class StraightThroughOf(Recomputed):
        whole_dims, runs_code = None, True
        relaxed = staticmethod(soft)

        @staticmethod
        def forward(*inputs: Any) -> Tensor:
            refuse_hidden(f"{label} takes no argument like", [v for v in inputs if v.__class__ not in _CONSTANTS], but=())
            guard(hard, soft)
            tensors = [v for v in inputs if isinstance(v, Tensor)]
            versions = versions_of(tensors)
            try:
                y = hard(*inputs)
            except AssertionError as error:
                if not (is_compiling() and "FakeTensor" in str(error)):
                    raise
                raise RuntimeError(  # with another error Dynamo would trace this code
                    f"{label}: `hard` uses a tensor that is none of its arguments, which compiled code cannot follow. Pass it as "
                    "an argument."
                ) from error
            if versions_of(tensors) != versions:
                raise RuntimeError(CHANGED.format(f"{label}: `hard`"))
            _check_value(label, y)
            # A value that is the input itself is copied, so that it cannot be changed in place unnoticed.
            return y.clone() if any(y is x for x in inputs) else y

        @classmethod
        def setup_context(cls, ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            super().setup_context(ctx, inputs, output)
            ctx.replay, ctx.surroundings = Replay(name).noted(), Surroundings(label, soft)

        @staticmethod
        def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
            ctx.surroundings.check()
            with ctx.replay.again():
                return pulled(ctx, g)

        @classmethod
        def jvp(cls, ctx: Any, *tangents: Any) -> Tensor:
            ctx.surroundings.check()
            with ctx.replay.again():
                _check_alone(name, soft, saved_inputs(ctx), ctx.like[0])
                return super().jvp(ctx, *tangents)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
            key = in_dims, info.randomness
            if key not in batched:
                mapped = [torch.func.vmap(f, in_dims, randomness=info.randomness) for f in (hard, soft)]
                batched[key] = _operator(name, *mapped)
            return batched[key].apply(*inputs), 0

    StraightThroughOf.__name__ = StraightThroughOf.__qualname__ = name
    StraightThroughOf.apply.__qualname__ = label  # in errors about arguments
    return StraightThroughOf


def _check_value(label: str, y: Any) -> None:
    """Refuse a result of ``hard`` that can have no derivative."""
    if not isinstance(y, Tensor):
        raise TypeError(f"{label}: `hard` must return a tensor, got a value of type {type(y).__name__}.")
    if not (y.is_floating_point() or y.is_complex()):
        raise TypeError(
            f"{label}: `hard` must return a floating tensor, which can have a gradient, got {y.dtype}: add .to(x.dtype)."
        )


def _check_alone(name: str, soft: Any, inputs: list[Any], like: Any) -> None:
    """Check the output if leaves of a graph cannot be distinguished: with detached inputs it must have no graph."""
    with torch.enable_grad():
        alone = soft(*[v.detach() if isinstance(v, Tensor) else v for v in inputs])
    _check_output(name, alone, like, alone.requires_grad)


def _check_output(name: str, y: Tensor, like: tuple[Any, torch.dtype], foreign: bool) -> None:
    if foreign:
        raise RuntimeError(
            f"straight_through: `soft` of {name} must be a function of its arguments, got a gradient of a tensor that it closes "
            "over, which would be lost. Pass it as an argument, or write `st` or `replace_grad`."
        )
    if y.dtype != like[1] or not has_shape(y.shape, like[0]):
        raise RuntimeError(
            f"straight_through: `soft` of {name} must return what `hard` does, shape {tuple(like[0])} and {like[1]}, got shape "
            f"{tuple(y.shape)} and {y.dtype}."
        )


class CapturingStraightThrough(WithReference[P, Tensor]):
    """The operator of a ``soft`` that captures tensors or modules, whose derivatives it has where one needs a derivative."""

    kind = "straight_through"

    def __init__(self, hard: Callable[..., Any], soft: Callable[..., Any]) -> None:
        super().__init__(hard, soft, None, (), "map", None)
        self.made_of = hard, soft
        self.alone = _operator(name_of(hard), hard, soft).apply
        # The walk takes several times as long as a call.
        found = [place for place in places(soft) if _is_capture(place[2])]
        self.places = [place for place in found if isinstance(place[2], Tensor)]
        modules = [v for v in (soft, *[value for *_, value in found]) if isinstance(v, nn.Module)]
        self.modules = list({id(m): m for m in modules}.values())

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_tracing() and not kwargs and not self.captures():
            return self.alone(*args)
        y = super().run(args, kwargs)
        _check_value(self.label, y)
        return y

    def check_differentiated(self, result: Result) -> None:
        _check_value(self.label, result.tree(result.tensors))

    def captures(self) -> bool:
        """Whether a tensor that ``soft`` holds now needs a derivative or belongs to a transform."""
        if not is_differentiating():
            return False
        found = [t for t in map(content, self.places) if isinstance(t, Tensor)]
        pending = [*self.modules]
        while pending:  # `parameters()` of many frozen layers takes longer than the call
            module = pending.pop()
            found += [p for p in module._parameters.values() if p is not None]
            pending += [part for part in module._modules.values() if part is not None]
        if transforms_active() or forward_mode_is_on():
            return any(map(level_of, found)) or any(are_differentiated(found))
        return any([t.requires_grad for t in found])  # noqa: C419  # on the hot path


def _is_capture(value: Any) -> bool:
    """Whether an object that a function holds is a tensor that may have a derivative, or a module."""
    return may_differ(value) if isinstance(value, Tensor) else isinstance(value, nn.Module)
