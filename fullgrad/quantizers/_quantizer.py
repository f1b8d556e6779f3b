"""`Quantizer`: a quantizer as a module."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fullgrad._core import checks
from fullgrad._dispatch import unscriptable


@unscriptable
class Quantizer(nn.Module):
    r"""A quantizer with its parameters: an activation layer, or a parametrization of the weights of another layer.

    ``Quantizer(quantizers.lsq, scale=scale)(x)`` is ``quantizers.lsq(x, scale=scale)``. An ``nn.Parameter`` among the arguments
    becomes a parameter of the module, another tensor a buffer; the rest is kept as it is.

    Args:
        function: An operator of this family, or any function of a tensor with named arguments.
        **parameters: Arguments of the function by name.

    Raises:
        TypeError: ``function`` is not callable, or has no argument of a name.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from fullgrad import quantizers
        >>> layer = nn.Linear(8, 4)
        >>> scale = nn.Parameter(torch.full((4, 1), 0.1))
        >>> quantizer = quantizers.Quantizer(quantizers.lsq, scale=scale, quant_min=-8, quant_max=7)
        >>> _ = nn.utils.parametrize.register_parametrization(layer, "weight", quantizer)
        >>> layer(torch.randn(2, 8)).sum().backward()
        >>> quantizer.scale.grad.shape
        torch.Size([4, 1])
        >>> quantizer
        Quantizer(lsq, scale=Parameter of shape (4, 1), quant_min=-8, quant_max=7)
    """

    def __init__(self, function: Callable[..., Any], **parameters: Any) -> None:
        super().__init__()
        checks.function("Quantizer", "function", function)
        known = [*inspect.signature(function).parameters][1:]
        self.function, self.settings, self.names = function, {}, tuple(parameters)
        for name, value in parameters.items():
            if name not in known:
                raise TypeError(f"Quantizer: the arguments of {_name(function)} are {', '.join(known)}, got {name!r}.")
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                self.settings[name] = value

    def forward(self, x: Tensor) -> Any:
        """The function of ``x`` with the arguments that were given."""
        tensors = {name: getattr(self, name) for name in self.names if name not in self.settings}
        return self.function(x, **self.settings, **tensors)

    def extra_repr(self) -> str:
        """The function and its arguments, in the order in which they were given."""
        return ", ".join([_name(self.function), *(f"{name}={self._shown(name)}" for name in self.names)])

    def _shown(self, name: str) -> str:
        if name in self.settings:
            return repr(self.settings[name])
        tensor = getattr(self, name)
        return f"{'Parameter' if isinstance(tensor, nn.Parameter) else 'tensor'} of shape {tuple(tensor.shape)}"


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))
