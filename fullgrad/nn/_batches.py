"""`arguments_of`: what a model gets of a batch."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

# Where torch's modules around a model have it: torch.compile, and AveragedModel, DistributedDataParallel and the like.
_AROUND = ("_orig_mod", "module")


def arguments_of(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and keywords of a model: a dict has keywords; a tuple or list has as many arguments as the model's forward
    needs, at least one, which may be such a dict, and other things behind them, such as labels.
    """
    if isinstance(batch, Mapping):
        return (), {**batch}
    if not isinstance(batch, (tuple, list)) or not batch:
        return (batch,), {}
    if isinstance(batch[0], Mapping):
        return (), {**batch[0]}
    parameters = _signature(model)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return tuple(batch), {}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = max(1, sum(p.default is p.empty for p in positional))
    return tuple(batch[:needed]), {}


def _signature(model: nn.Module) -> list[inspect.Parameter]:
    """The parameters of forward; of a module around a model, which takes any arguments, those of the model."""
    parameters = [*inspect.signature(model.forward).parameters.values()]
    inner = next((m for name in _AROUND if isinstance(m := getattr(model, name, None), nn.Module)), None)
    takes_any = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    return _signature(inner) if inner is not None and takes_any else parameters
