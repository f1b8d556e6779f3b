"""`Surrogate`: the rules of every step, sign and count with a declared slope, written once."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from fullgrad._core.elementwise import Elementwise
from fullgrad._core.fast import if_recorded
from fullgrad._core.opmath import to_opmath
from fullgrad._dispatch import unseen_by_dynamo
from fullgrad.spikes._formulas import clamp_to_finite, nearness, times
from fullgrad.spikes._values import expanded, step, threshold_for


def _forward_of(names: tuple[str, ...]) -> Any:
    """The ``forward`` of a `Step` with inputs of these names."""

    def forward(v: Tensor, *inputs: Any) -> Tensor:
        return expanded(step(v, inputs[-3], inputs[-1]), *inputs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # pyright: ignore[reportFunctionMemberAccess]
    return forward


class Surrogate(Elementwise):
    """An operator whose partial derivatives are computed in float32 at least, and rounded once."""

    in_pieces = opmath = True
    # The position of the threshold among the inputs.
    threshold_at: ClassVar[int | None] = None

    @classmethod
    def to_opmath(cls, v: Tensor, *inputs: Any) -> list[Any]:
        """A threshold is first rounded, as ``forward`` compares it."""
        i = cls.threshold_at
        return to_opmath(v, *(inputs if i is None else (*inputs[:i], threshold_for(inputs[0], inputs[i]), *inputs[i + 1 :])))


class Step(Surrogate):
    r"""A step at a threshold, with a declared slope.

    .. math::
        u = v - t, \qquad y = [\,u > 0\,] + tie\,[\,u = 0\,], \qquad D_v = -D_t = s\,d(u), \qquad
        D_p = s\,\partial R / \partial p, \qquad D_s = R(u)

    for a threshold *t*, a factor *s* of the slope and shape parameters *p*; :math:`R(u) = \int_0^u d`. A subclass names its
    ``parameters`` and gives, as plain torch code of ``u`` and them, ``slope``, the integral ``rise`` and its partial derivatives
    ``rise_by``. Its inputs are ``(v, *parameters, threshold, grad_scale, tie)``. Saved are the tensors among them.
    """

    parameters: ClassVar[tuple[str, ...]]
    # Parameters without a derivative.
    constants: ClassVar[tuple[str, ...]] = ()
    # The position of a parameter whose product with ``u`` the formulas make.
    inverse_width: ClassVar[int | None] = None
    # The product beyond which slopes equal those at infinity.
    reach: ClassVar[float] = math.inf
    # Whether the slope jumps at the threshold, so that the formulas take ``tie`` after the parameters.
    jumps_at_threshold = False
    # As functions of ``(u, *parameters)``: the derivative *d* of the surrogate, and its integral *R* from 0; and as a function of
    # ``(i, u, *parameters)`` the partial derivative of *R* with respect to parameter ``i``.
    slope: ClassVar[Callable[..., Tensor]]
    rise: ClassVar[Callable[..., Tensor]]
    rise_by: ClassVar[Callable[..., Tensor]]

    @unseen_by_dynamo
    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "parameters" in cls.__dict__:
            names = ("v", *cls.parameters, "threshold", "grad_scale", "tie")
            if "forward" not in cls.__dict__:
                cls.forward = staticmethod(_forward_of(names))
            cls.threshold_at = len(names) - 3
            cls.reads = {i: () if name in cls.constants else range(len(names)) for i, name in enumerate(names[:-1])}
        super().__init_subclass__(**kwargs)

    @classmethod
    def vjp_terms(cls, needed: Sequence[bool], v: Tensor, x: Tensor, *inputs: Any) -> Sequence[Tensor | None]:
        *parameters, threshold, grad_scale, tie = inputs
        needs_x, *of_parameters, needs_threshold, needs_scale, _ = needed
        if cls.jumps_at_threshold:
            parameters.append(tie)
        u = x if threshold.__class__ is float and threshold == 0.0 else x - threshold
        learns = needs_scale or True in of_parameters
        u = cls.bounded(u, *parameters) if learns else if_recorded(cls.bounded, u, *parameters)
        to_scale = v * cls.rise(u, *parameters) if needs_scale else None
        of_shape = [needs_x or needs_threshold, *of_parameters]
        by_u, *by_parameters = [None] * len(of_shape)
        if True in of_shape:
            scaled = v if grad_scale.__class__ is float and grad_scale == 1.0 else v * grad_scale
            by_u, *by_parameters = cls.shape_terms(of_shape, scaled, u, *parameters)
        to_threshold = -by_u if needs_threshold and by_u is not None else None
        return [by_u if needs_x else None, *by_parameters, to_threshold, to_scale, None]

    @classmethod
    def shape_terms(cls, needed: Sequence[bool], v: Tensor, u: Tensor, *parameters: Any) -> Sequence[Tensor | None]:
        """``v`` times the partial derivatives of ``rise`` with respect to ``u`` and the parameters, where ``needed`` is true."""
        needs_u, *of_parameters = needed
        wanted = [n and name not in cls.constants for n, name in zip(of_parameters, cls.parameters, strict=True)]
        by_u = cls.slope_times(v, u, *parameters) if needs_u else None
        return [by_u, *[v * cls.rise_by(i, u, *parameters) if n else None for i, n in enumerate(wanted)]]

    @classmethod
    def bounded(cls, u: Tensor, *parameters: Any) -> Tensor:
        """``u`` clamped so that the formulas and their derivatives are finite."""
        return clamp_to_finite(u, 1.0 if cls.inverse_width is None else parameters[cls.inverse_width], cls.reach)

    @classmethod
    def slope_times(cls, v: Tensor, u: Tensor, *parameters: Any) -> Tensor:
        """``v * slope(u, *parameters)``."""
        return v * cls.slope(u, *parameters)


class ScaledStep(Step):
    r"""A `Step` with one parameter, the inverse width :math:`\alpha`: :math:`d = \alpha f(\alpha u)`, :math:`R = F(\alpha u)`.

    A subclass gives ``density``, *f*, and ``distribution``, *F*.
    """

    in_pieces = "half"
    parameters = ("alpha",)
    inverse_width = 0
    density: ClassVar[Callable[[Tensor], Tensor]]
    distribution: ClassVar[Callable[[Tensor], Tensor]]

    @classmethod
    def slope_times(cls, v: Tensor, u: Tensor, *parameters: Any) -> Tensor:
        (alpha,) = parameters
        return v * cls.density(u * alpha) * alpha

    @classmethod
    def shape_terms(cls, needed: Sequence[bool], v: Tensor, u: Tensor, *parameters: Any) -> Sequence[Tensor | None]:
        (alpha,) = parameters
        needs_u, needs_alpha = needed
        if not needs_alpha:
            return cls.slope_times(v, u, alpha), None
        of_both, of_u, of_alpha = cls.shared(v, u, alpha)
        return of_both * of_u if needs_u else None, of_alpha * of_both

    @classmethod
    def shared(cls, v: Tensor, u: Tensor, alpha: Any) -> tuple[Tensor, Any, Tensor]:
        """A factor of both terms, and the other factor of each."""
        return v * cls.density(u * alpha), alpha, u

    @classmethod
    def rise(cls, u: Tensor, *parameters: Any) -> Tensor:
        return cls.distribution(u * parameters[0])


class HeavyTailedStep(ScaledStep):
    r"""A `ScaledStep` with a slope that falls as a power of the distance from the threshold:

    .. math::
        d = \frac{\alpha}{2} q^k, \qquad q = b / h(u, b), \qquad b = c / \alpha

    where *h* is *b* at the threshold and about :math:`|u|` far out. A subclass gives *k*, ``decay``, *c*, ``width``, and *h*,
    ``distance``. As *q* and its derivatives have no power, nothing overflows or is 0 before the derivative itself.
    """

    decay: ClassVar[int]
    width: ClassVar[float] = 1.0
    distance: ClassVar[Callable[[Tensor, Tensor], Tensor]]

    @classmethod
    def slope_times(cls, v: Tensor, u: Tensor, *parameters: Any) -> Tensor:
        (alpha,) = parameters
        q = nearness(cls.distance, u, alpha, cls.width)
        return times(v, q, cls.decay - 1) * (q * (alpha * 0.5))

    @classmethod
    def shared(cls, v: Tensor, u: Tensor, alpha: Any) -> tuple[Tensor, Any, Tensor]:
        q = nearness(cls.distance, u, alpha, cls.width)
        half = q * 0.5
        return times(v, q, cls.decay - 1), half * alpha, half * u
