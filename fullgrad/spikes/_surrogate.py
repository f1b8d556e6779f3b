"""`Surrogate`: the rules of every step, sign and count with a declared slope, written once."""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from fullgrad._buffers import mul_into
from fullgrad._dispatch import can_reuse_buffers
from fullgrad._elementwise import Elementwise
from fullgrad._half_precision import HALF, chunked, to_opmath
from fullgrad.spikes._formulas import clamp_to_finite
from fullgrad.spikes._values import all_numbers, expanded, step, threshold_for


def _forward_of(names: tuple[str, ...]) -> Any:
    """The ``forward`` of a `Step` with inputs of these names."""

    def forward(v: Tensor, *inputs: Any) -> Tensor:
        return expanded(step(v, inputs[-3], inputs[-1]), *inputs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # pyright: ignore[reportFunctionMemberAccess]
    return forward


class Surrogate(Elementwise):
    """An operator whose partial derivatives are computed in float32 at least, and rounded once.

    A subclass gives ``forward`` and ``vjp_term_opmath(i, v, *inputs)``, the ``vjp_term`` of inputs that are not in half
    precision; it may also give ``vjp_terms_opmath``, all terms at once.
    """

    in_pieces = True

    @classmethod
    def vjp_term(cls, i: int, v: Tensor, *inputs: Any) -> Tensor | None:
        if v.dtype not in HALF and all_numbers(inputs[1:]):
            return cls.vjp_term_opmath(i, v, *inputs)
        inputs = cls.round_threshold(*inputs)
        if i == 0 and v.dtype in HALF:
            parts = chunked(lambda *a: (cls.vjp_term_opmath(0, *a),), [(v.shape, v.dtype)], v, *inputs)
            if parts is not None:
                return parts[0]
        term = cls.vjp_term_opmath(i, *to_opmath(v, *inputs))
        # Autograd sums the gradient of a parameter to its shape before it rounds.
        return term.to(v.dtype) if i == 0 and term is not None else term

    @classmethod
    def vjp_terms(cls, needed: Sequence[bool], v: Tensor, *inputs: Any) -> Sequence[Tensor | None]:
        inputs = cls.round_threshold(*inputs)
        first, *others = cls.vjp_terms_opmath(needed, *to_opmath(v, *inputs))
        return [first if first is None else first.to(v.dtype), *others]

    @classmethod
    def round_threshold(cls, *inputs: Any) -> tuple[Any, ...]:
        """The inputs, with the threshold rounded as ``forward`` compares it."""
        return inputs

    @classmethod
    def vjp_term_opmath(cls, i: int, v: Tensor, *inputs: Any) -> Tensor | None:
        """The declared partial derivative with respect to input ``i``, times ``v``."""
        raise NotImplementedError

    @classmethod
    def vjp_terms_opmath(cls, needed: Sequence[bool], v: Tensor, *inputs: Any) -> Sequence[Tensor | None]:
        """``vjp_term_opmath`` of every input for which ``needed`` is true, None for the others."""
        return [cls.vjp_term_opmath(i, v, *inputs) if n else None for i, n in enumerate(needed)]


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
    # Whether the slope jumps at the threshold, so that the formulas take ``tie`` after the parameters.
    jumps_at_threshold = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "parameters" in cls.__dict__:
            names = ("v", *cls.parameters, "threshold", "grad_scale", "tie")
            cls.forward = staticmethod(_forward_of(names))
            cls.reads = {i: () if name in cls.constants else range(len(names)) for i, name in enumerate(names[:-1])}
        super().__init_subclass__(**kwargs)

    @classmethod
    def round_threshold(cls, *inputs: Any) -> tuple[Any, ...]:
        v, *parameters, threshold, grad_scale, tie = inputs
        return v, *parameters, threshold_for(v, threshold), grad_scale, tie

    @classmethod
    def vjp_term_opmath(cls, i: int, v: Tensor, x: Tensor, *inputs: Any) -> Tensor | None:
        return cls.vjp_terms_opmath([k == i for k in range(len(inputs) + 1)], v, x, *inputs)[i]

    @classmethod
    def vjp_terms_opmath(cls, needed: Sequence[bool], v: Tensor, x: Tensor, *inputs: Any) -> Sequence[Tensor | None]:
        *parameters, threshold, grad_scale, tie = inputs
        needs_x, *of_parameters, needs_threshold, needs_scale, _ = needed
        if cls.jumps_at_threshold:
            parameters.append(tie)
        u = x if threshold.__class__ is float and threshold == 0.0 else x - threshold
        if needs_scale or True in of_parameters or not can_reuse_buffers():
            u = cls.bounded(u, *parameters)
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
        return clamp_to_finite(u, 1.0 if cls.inverse_width is None else parameters[cls.inverse_width])

    @classmethod
    def slope_times(cls, v: Tensor, u: Tensor, *parameters: Any) -> Tensor:
        """``v * slope(u, *parameters)``."""
        return mul_into(v, cls.slope(u, *parameters))

    @classmethod
    def slope(cls, u: Tensor, *parameters: Any) -> Tensor:
        """The derivative *d* of the surrogate."""
        raise NotImplementedError

    @classmethod
    def rise(cls, u: Tensor, *parameters: Any) -> Tensor:
        """The integral *R* of the slope from 0."""
        raise NotImplementedError

    @classmethod
    def rise_by(cls, i: int, u: Tensor, *parameters: Any) -> Tensor:
        """The partial derivative of *R* with respect to parameter ``i``."""
        raise NotImplementedError


class ScaledStep(Step):
    r"""A `Step` with one parameter, the inverse width :math:`\alpha`: :math:`d = \alpha f(\alpha u)`, :math:`R = F(\alpha u)`.

    A subclass gives ``density``, *f*, and ``distribution``, *F*; and it may give ``slope_times_by_number``: the slope where
    ``alpha`` is a number and nothing is recorded, in fewer passes.
    """

    parameters = ("alpha",)
    inverse_width = 0

    @classmethod
    def slope_times(cls, v: Tensor, u: Tensor, *parameters: Any) -> Tensor:
        (alpha,) = parameters
        known = cls.slope_times_by_number(v, u, alpha) if alpha.__class__ is float and can_reuse_buffers() else None
        return mul_into(v, cls.density(u * alpha)) * alpha if known is None else known

    @classmethod
    def shape_terms(cls, needed: Sequence[bool], v: Tensor, u: Tensor, *parameters: Any) -> Sequence[Tensor | None]:
        (alpha,) = parameters
        needs_u, needs_alpha = needed
        if not needs_alpha:
            return cls.slope_times(v, u, alpha), None
        of_both = mul_into(v, cls.density(u * alpha))
        return of_both * alpha if needs_u else None, mul_into(u, of_both)

    @staticmethod
    def slope_times_by_number(v: Tensor, u: Tensor, alpha: float) -> Tensor | None:
        """``slope_times`` for a number, in kernels that autograd need not differentiate; None to use ``density``."""
        return None

    @classmethod
    def rise(cls, u: Tensor, *parameters: Any) -> Tensor:
        return cls.distribution(u * parameters[0])

    @staticmethod
    def density(z: Tensor) -> Tensor:
        """The slope for ``alpha = 1``."""
        raise NotImplementedError

    @staticmethod
    def distribution(z: Tensor) -> Tensor:
        """The integral of ``density`` from 0."""
        raise NotImplementedError
