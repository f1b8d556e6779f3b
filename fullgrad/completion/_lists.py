"""torch's functions of lists of tensors, which `vmap` does not batch: under a transform the function of each tensor."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad.completion._registry import replaces

_PREFIX = "_foreach_"


def _like(x: Tensor, y: Any) -> Tensor:
    return y if isinstance(y, Tensor) else torch.full_like(x, y)


_OWN: dict[str, Callable[..., Any]] = {
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "maximum": lambda x, y: torch.maximum(x, _like(x, y)),
    "minimum": lambda x, y: torch.minimum(x, _like(x, y)),
    "maximum_": lambda x, y: x.copy_(torch.maximum(x.clone(), _like(x, y))),
    "minimum_": lambda x, y: x.copy_(torch.minimum(x.clone(), _like(x, y))),
    "addcmul": lambda x, y, z, value=1: torch.addcmul(x, y, z, value=value),
    "addcdiv": lambda x, y, z, value=1: torch.addcdiv(x, y, z, value=value),
    "addcmul_": lambda x, y, z, value=1: x.addcmul_(y, z, value=value),
    "addcdiv_": lambda x, y, z, value=1: x.addcdiv_(y, z, value=value),
}


def _replaces_lists(name: str, overload: str) -> None:
    short = name.removeprefix(_PREFIX)
    of_one = torch.pow if overload == "ScalarAndTensor" else _OWN.get(short) or getattr(Tensor, short, None)
    if of_one is None or overload.endswith("out"):
        return

    @replaces(name if overload == "default" else f"{name}.{overload}")
    def of_lists(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 4 and isinstance(args[3], Tensor):  # a number for each
            args = *args[:3], args[3].tolist()
        counts = {len(v) for v in args if isinstance(v, (list, tuple))}
        if len(counts) != 1:
            return NotImplemented  # torch has the words
        rows = [[v[i] if isinstance(v, (list, tuple)) else v for v in args] for i in range(counts.pop())]
        found = [of_one(*row, **kwargs) for row in rows]
        return None if name.endswith("_") else found


for _name in dir(torch):
    if _name.startswith(_PREFIX) and hasattr(torch.ops.aten, _name):
        for _overload in getattr(torch.ops.aten, _name).overloads():
            _replaces_lists(_name, _overload)
