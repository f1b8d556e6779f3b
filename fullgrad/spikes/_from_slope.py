"""`from_slope`."""

import warnings
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from fullgrad._core import checks
from fullgrad._engine.changes import Surroundings, surroundings_of
from fullgrad.spikes._arguments import Parameter, checked_step
from fullgrad.spikes._surrogate import Step
from fullgrad.spikes._values import expanded, step


def from_slope(slope: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    r"""A spike with a slope of your own, any function of torch.

    .. math::
        u = v - t, \qquad y = [\,u \ge 0\,], \qquad D_v = -D_t = d(u)

    Higher derivatives are those of ``slope``. Its integral is not known, so tensors that ``slope`` closes over get gradients of
    second order only, and a warning if they require one: :func:`fullgrad.straight_through` of a step and the integral, or an
    operator of your own, has all of them. Make the spike once, outside of compiled code. Saved: ``v``, and
    the threshold if it is a tensor.

    Args:
        slope: An elementwise function of the distance *u* from the threshold, which is in float32 for half precision.

    Returns:
        A function ``spike(v, threshold=0.0, tie=1.0)``.

    Raises:
        TypeError: ``slope`` is not callable.
        RuntimeError: When a derivative is taken: a tensor that ``slope`` closes over was changed in place after the call.
        NotImplementedError: In compiled code: ``slope`` uses a tensor that is not its argument.

    Example:
        >>> import torch, fullgrad
        >>> spike = fullgrad.spikes.from_slope(lambda u: 1 / (1 + u**4))
        >>> v = torch.tensor([-1.0, 0.0, 0.5])
        >>> spike(v)
        tensor([0., 1., 1.])
        >>> torch.func.vmap(torch.func.grad(spike))(v)
        tensor([0.5000, 1.0000, 0.9412])

    Source: ``snntorch.surrogate.custom_surrogate``; ``surrogate_grad_fn`` of sinabs.
    """
    # Here, as it stands on other families, which take a while to import.
    from fullgrad._engine.guard import follow_in_graphs
    from fullgrad._engine.held import tensors_held
    from fullgrad._engine.node import refuse_inside

    refuse_inside("from_slope")
    checks.function("from_slope", "slope", slope)
    if any(t.requires_grad for t in tensors_held(slope)):
        warnings.warn(
            "from_slope: `slope` closes over a tensor that requires a gradient, and first derivatives by it are 0; write "
            "straight_through of a step and the integral of `slope`, or an operator of your own.",
            stacklevel=2,
        )

    class FromSlope(Step):
        parameters = constants = ("around",)
        constant_types: ClassVar[tuple[type, ...]] = (Surroundings,)
        runs_code = True

        @staticmethod
        def forward(v: Tensor, around: Surroundings | None, threshold: Parameter, grad_scale: float, tie: float) -> Tensor:
            follow_in_graphs("from_slope", "slope", slope)
            return expanded(step(v, threshold, tie), threshold, grad_scale, tie)

        @staticmethod
        def slope(u: Tensor, around: Surroundings | None) -> Tensor:
            if around is not None:
                around.check()
            return slope(u)

    def spike(v: Tensor, threshold: Parameter = 0.0, tie: float = 1.0) -> Tensor:
        """The step, with the slope that was given."""
        v = checked_step("from_slope", v, threshold, 1.0, tie)
        return FromSlope.apply(v, surroundings_of("from_slope: `slope`", slope), threshold, 1.0, tie)

    return spike
