"""Weights: a parameter, or a tensor that is computed from parameters element by element."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._core.elementwise import Elementwise
from fullgrad._core.generated import is_generated
from fullgrad._dispatch import output_metadata
from fullgrad.per_sample._record import Record

# torch's functions of a weight that treat each element alike.
_ELEMENTWISE = {"CloneBackward0", "DivBackward0", "MulBackward0", "NegBackward0", "TanhBackward0", "ToCopyBackward0"}

# As many nodes may be between a weight and its parameters: activations are looked at, too.
_MOST = 16


class Weight(NamedTuple):
    """A weight, as the graph shows it.

    Args:
        node: The node that made it, below transposes.
        is_turned: Whether it was transposed, as a matrix.
        nodes: All nodes from it to the parameters.
    """

    node: Any
    is_turned: bool
    nodes: frozenset[Any]


def weight_of(record: Record, tensor: Tensor) -> Weight | None:
    """How a weight was made, None if otherwise: then its gradient is computed."""
    node, is_turned, above = tensor.grad_fn, False, set()
    while node is not None and tensor.ndim == 2 and (turns := _turns(node)) is not None and len(above) < _MOST:
        above.add(node)
        node, is_turned = node.next_functions[0][0], is_turned is not turns
    below = _nodes(record, node)
    return Weight(node, is_turned, below | above) if below else None


def _turns(node: Any) -> bool | None:
    """Whether a node transposes a matrix, or leaves it as it is; None if it does something else."""
    name = node.name()
    if name == "CloneBackward0":
        return False
    if name == "TBackward0":
        return True
    if name == "TransposeBackward0":
        return _dim(node._saved_dim0) != _dim(node._saved_dim1)
    if name == "PermuteBackward0":
        return [_dim(d) for d in node._saved_dims] == [1, 0]
    return None


def _dim(dim: int) -> int:
    return dim % 2  # of a matrix, also where torch saved a negative one as an unsigned number


def _nodes(record: Record, node: Any) -> frozenset[Any]:
    """The nodes by which a node is an elementwise function of parameters, none if it reads anything else."""
    seen, left = set(), [node]
    while left:
        node = left.pop()
        if node is None or len(seen) == _MOST or not (node in record.entries or _is_elementwise(node)):
            return frozenset()
        if node not in seen:
            seen.add(node)
            left += [] if node in record.entries else [below for below, _ in node.next_functions if below is not None]
    return frozenset(seen)


def _is_elementwise(node: Any) -> bool:
    operator = _operator(node)
    if operator is None:
        return node.name() in _ELEMENTWISE
    return issubclass(operator, Elementwise) and operator.is_linear and is_generated(operator, "vjp")


def _operator(node: Any) -> Any:
    """The operator class of a node; None of torch's own, and in the fallback."""
    return getattr(getattr(type(node), "_forward_cls", None), "operator", None)


def slopes(record: Record, node: Any) -> dict[int, Tensor | None] | None:
    """The derivative of a weight with respect to each of its parameters, element by element, None for 1.

    It is None itself if a rule returns another shape than that of its output, or if the weight passes through complex numbers,
    of which a cast takes one part.
    """
    if node in record.entries:
        return {record.entries[node]: None}
    found: dict[int, Any] = {}
    shape = torch.Size(output_metadata(node)[0].shape)
    if not _add_slopes(record, node, None, found):
        return None
    return {k: s.expand(shape) for k, s in found.items()}


def _add_slopes(record: Record, node: Any, slope: Tensor | None, found: dict[int, Any]) -> bool:
    """Add the derivative along each way from a node to a parameter to what was found for it."""
    if node in record.entries:
        k = record.entries[node]
        found[k] = found[k] + slope if k in found else slope
        return True
    made = output_metadata(node)[0]
    if made.dtype.is_complex:
        return False
    ones = torch.ones(made.shape, dtype=made.dtype, device=made.device)
    if _operator(node) is None:
        terms = node(ones)
        terms = terms if isinstance(terms, tuple) else (terms,)
        below = [(n, t) for (n, _), t in zip(node.next_functions, terms, strict=True) if n is not None]
    else:
        terms = node.apply(ones)
        terms = terms if isinstance(terms, tuple) else (terms,)
        needed = [t for t, n in zip(terms, node.needs_input_grad, strict=True) if n]
        below = list(zip([n for n, _ in node.next_functions if n is not None], needed, strict=True))
    for next_node, term in below:
        if term is None:
            continue
        term = term.to(made.dtype)
        if term.shape != torch.Size(made.shape):
            return False
        if not _add_slopes(record, next_node, term if slope is None else slope * term, found):
            return False
    return True
