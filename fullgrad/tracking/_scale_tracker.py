"""`ScaleTracker`: passes a tensor through and records the scales of its value, gradient and tangent."""

from typing import Any

from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.function import Function, alias, saves_nothing
from fullgrad._core.records import for_graph, function_for_graph, function_of, record
from fullgrad._core.shards import on_every_rank
from fullgrad._dispatch import unwrap_legacy_batched
from fullgrad.tracking._scale_pair import ScalePair
from fullgrad.tracking._statistics import Statistic, check_statistic, statistic

Target = ScalePair | int  # the pair, or in compiled code its key


class ScaleTracker:
    r"""Pass a tensor through and record its scale in a `ScalePair`, forward, backward and forward-mode.

    .. math::
        y = x, \qquad D(x) = 1, \qquad s = \operatorname{std}(x),\ \operatorname{std}(g),\ \operatorname{std}(t)

    with the unbiased standard deviation, or another statistic. Each pass is recorded, and the last record stays:

    * Under ``vmap`` a field holds one number per sample, under nested ``vmap`` one per sample and level, the outermost first. A
      ``vmap`` in chunks leaves the last chunk. ``jacrev`` and ``is_grads_batched`` pull back a batch of cotangents, one number
      for each.
    * Under ``jvp`` the tangent's scale is recorded too; under nested ``jvp`` that of the innermost.
    * A second backward overwrites the first. Second derivatives by reverse over reverse send cotangents of the second pass
      through the tracker and leave their scale; ``hessian``, forward over reverse, leaves the gradient's.
    * A checkpoint records the forward twice, with the same number. If a tensor is used several times, its gradient is the sum
      over the uses. The same pair given to two trackers holds the forward of the later and the backward of the earlier.
    * A tensor of one element, or an empty one, has the scale NaN, without a warning.
    * Inside ``torch.compile(fullgraph=True)`` all of this holds. The pair is created outside; a pair created inside raises.
    """

    @staticmethod
    def apply(t: Tensor, pair: ScalePair, stat: Statistic = "std") -> Tensor:
        """Track a tensor.

        Args:
            t: Any shape; floating. Half precision is measured in float32.
            pair: Where to record.
            stat: ``"std"``, ``"rms"``, ``"mean_abs"``, ``"max_abs"``, or a function of one sample that returns a number as a
                tensor.

        Returns:
            ``t`` as a view.

        Raises:
            TypeError: ``t`` is not a floating tensor, or ``pair`` is not a `ScalePair`.
            ValueError: ``stat`` is unknown, or is a function that returns something else.
            RuntimeError: The pair was created inside compiled code.

        Example:
            >>> import torch, fullgrad
            >>> from torch.func import grad, vmap
            >>> pair = fullgrad.ScalePair()
            >>> loss = lambda x: (fullgrad.ScaleTracker.apply(x, pair, "max_abs") ** 2).sum()
            >>> _ = vmap(grad(loss))(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
            >>> pair.forward, pair.backward
            (tensor([2., 5.]), tensor([ 4., 10.]))

        Source: ``unit_scaling.utils.ScaleTracker``.
        """
        checks.floating_tensor("ScaleTracker", "t", t)
        if not isinstance(pair, ScalePair):
            raise TypeError(f"ScaleTracker: `pair` must be a ScalePair, got a value of type {type(pair).__name__}.")
        check_statistic("ScaleTracker", stat)
        return track(t, pair, stat, copy=False)

    track = apply


def track(t: Tensor, target: Target, stat: Statistic, copy: bool) -> Tensor:
    """The call after its checks. The value is a copy if the caller may change it in place."""
    return Tracker.apply(t, *_for_graph(target, stat), 0, copy)


def _for_graph(target: Target, stat: Statistic) -> tuple[Target, Any]:
    """A pair and a statistic as arguments of an operator."""
    pair = for_graph(target)
    if pair is None:
        raise RuntimeError("ScaleTracker: `pair` must be made outside of compiled code, which cannot record in one of its own.")
    return pair, function_for_graph(stat)


class Tracker(Function):
    """The operator that records a value; the first ``batch`` dimensions count samples."""

    @staticmethod
    def forward(x: Tensor, target: Target, stat: Statistic, batch: int, copy: bool) -> Tensor:
        _record(x, target, "forward", stat, batch)
        return x.clone() if copy else alias(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.target, ctx.stat, ctx.batch, _ = inputs

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
        target, stat = _for_graph(ctx.target, ctx.stat)
        return Observer.apply(g, target, "backward", stat, ctx.batch), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Tensor:
        # A copy: an in-place operation on the output would change the tangent of the input.
        return Observer.apply(t, ctx.target, "tangent", ctx.stat, ctx.batch).clone()

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, target: Target, stat: Statistic, batch: int, copy: bool) -> tuple[Tensor, int]:
        return Tracker.apply(x.movedim(in_dims[0], 0), target, stat, batch + 1, copy), 0


class Observer(Function):
    """The operator that records a gradient or a tangent; its own derivatives are not recorded."""

    @staticmethod
    def forward(x: Tensor, target: Target, field: str, stat: Statistic, batch: int) -> Tensor:
        _record(x, target, field, stat, batch)
        return x

    setup_context = staticmethod(saves_nothing)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
        return g, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: None) -> Tensor:
        return t.view_as(t)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, target: Target, field: str, stat: Statistic, batch: int) -> tuple[Tensor, int]:
        return Observer.apply(x.movedim(in_dims[0], 0), target, field, stat, batch + 1), 0


def _record(x: Tensor, target: Target, field: str, stat: Statistic, batch: int) -> None:
    """Record the statistic of a plain tensor below all transforms."""
    x, batch = unwrap_legacy_batched(x, batch)
    record(on_every_rank(statistic(x, function_of(stat), batch)), target, field)
