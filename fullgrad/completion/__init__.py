"""torch's own operators with all their derivatives: inside `completing`, whole models are right under every transform."""

from fullgrad._core.public import list_public
from fullgrad.completion import (  # noqa: F401  each enters its operators
    _attention,
    _batches,
    _control_flow,
    _convolutions,
    _ctc,
    _distances,
    _embedding_bag,
    _flex_attention,
    _functions,
    _grid_sample,
    _linalg,
    _lists,
    _losses,
    _norms,
    _pointwise,
    _products,
    _quantization,
    _ranges,
    _recurrent,
    _reductions,
    _replaced,
    _special,
    _transformer,
    _weight_norm,
)
from fullgrad.completion._completing import completing
from fullgrad.completion._completing import operators as operators

__all__ = ["completing"]

list_public(__name__)
