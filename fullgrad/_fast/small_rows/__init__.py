"""Order statistics of small rows, by closed forms: a few kernels instead of a recorded relaxation.

Rows (`rows`) have scores (`scores`), of which values and derivatives are made (`closed_form`), for each operator (`operators`).
Transforms pass a derivative on (`first_derivative`) until rows are plain.
"""

from typing import Any

from torch import Tensor

from fullgrad._core.fast import fast
from fullgrad._dispatch import in_legacy_vmap, is_tracing, is_unrecorded
from fullgrad._fast.small_rows.first_derivative import FirstDerivative
from fullgrad._fast.small_rows.operators import form_of, has_form
from fullgrad._fast.small_rows.rows import MaskedRows
from fullgrad.soft.order._statistic import pulled, pulled_in_units, pushed, pushed_in_units, relaxed_value

# Units of the largest number of a result: sums cancel.
_WITHIN = 2**16


@fast(relaxed_value, within=_WITHIN, of_largest=True)
def _value(operator: Any, *inputs: Any) -> Any:
    form = form_of(operator, inputs)
    return NotImplemented if form is None else form.outputs()


@fast(pulled, recorded=True, within=_WITHIN, of_largest=True)
def _gradient(operator: Any, inputs: Any, where: Any, cotangents: Any, value: Any) -> Any:
    derivative = _derivative(True, operator, inputs, where, cotangents, value)
    if derivative is None:
        return NotImplemented
    find, overflows = derivative
    if overflows:
        return pulled_in_units(operator, lambda _, g: (find(*g),), inputs, where, cotangents)
    g = find(*cotangents)
    return g if g is NotImplemented else (g,)


@fast(pushed, recorded=True, within=_WITHIN, of_largest=True)
def _tangent(operator: Any, inputs: Any, where: Any, tangents: Any, value: Any, like: Any) -> Any:
    derivative = _derivative(False, operator, inputs, where, tangents, value)
    if derivative is None:
        return NotImplemented

    def push(_: Any, given: Any) -> tuple[Tensor, ...]:
        y = derivative[0](*given)
        return (y,) if isinstance(y, Tensor) else y if y is NotImplemented else tuple(y)

    return pushed_in_units(operator, push, inputs, where, tangents) if derivative[1] else push(where, tangents)


def _derivative(transposed: bool, operator: Any, inputs: Any, where: Any, vectors: Any, value: Any) -> Any:
    """The derivative as a function of vectors, and whether its products may overflow; None if there is no closed form."""
    if where != (0,):
        return None
    if is_unrecorded((inputs[0], *vectors)):
        form = form_of(operator, inputs, value)
        if form is None:
            return None
        return form.gradient if transposed else form.tangent, isinstance(form.rows, MaskedRows)
    if not has_form(operator, inputs) or in_legacy_vmap() or is_tracing():
        return None
    x, *constants = inputs
    return lambda *given: FirstDerivative.apply(operator, transposed, tuple(constants), x, *given), True
