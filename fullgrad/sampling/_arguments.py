"""The arguments that random operators share: parameters, temperatures, dimensions of rows."""

from typing import Any

from torch import Tensor

from fullgrad._core import checks

# A number, or a tensor that broadcasts and gets its own gradient.
Temperature = Tensor | float


def check_temperature(name: str, argument: str, tau: Any, x: Tensor) -> None:
    """Require a positive number, or a real tensor that broadcasts to the parameters."""
    checks.positive_number_or_tensor(name, argument, tau)
    checks.broadcasts_to(name, argument, tau, "the parameters", x.shape)


def check_rows(name: str, argument: str, x: Any, dim: Any) -> int:
    """A dimension of a floating tensor, counted from the end, so that a batch in front changes nothing."""
    checks.floating_tensor(name, argument, x)
    checks.one_dim(name, dim, x.ndim)
    from_front: Any = dim
    return from_front if from_front < 0 else from_front - max(x.ndim, 1)


def check_count(name: str, k: Any, x: Tensor, dim: int) -> int:
    """The number of classes to choose, from 0 to all classes of a row."""
    checks.integer_between(name, "k", k, 0, x.shape[dim] if x.ndim else 1)
    return k
