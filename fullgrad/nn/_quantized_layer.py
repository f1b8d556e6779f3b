"""`QuantizedLayer`: a layer whose forward quantizes its weights, its inputs and its output; and the quantizers."""

import copyreg
import functools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from fullgrad._dispatch import RNN_REFRESH, RNN_WEIGHTS, rnn_names, unscriptable
from fullgrad.clamping import clamp, lower_bound
from fullgrad.gradients import scale_bwd
from fullgrad.quantizers import fake_quantize, quant_range
from fullgrad.quantizers._arithmetic import lsq_factor
from fullgrad.rounding import step_quantize

# The largest code of a bias.
_INT32 = 2**31 - 1


@unscriptable
class QuantizedLayer(nn.Module):
    """The first base of a layer's class after `quantize_`, which quantizes in its own forward.

    The class has a property for each quantized weight: ``weight`` is what ``weight_quantizer`` makes of the parameter, which is
    ``original_weight``.
    """

    # The class of the layer before, and the names of its parameters that are quantized.
    _base: type[nn.Module]
    _names: tuple[str, ...]
    input_quantizer: nn.Module | None
    output_quantizer: nn.Module | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the layer, of its quantized inputs; one node for `torch.fx`, as of a layer of torch."""
        for x in (*args, *kwargs.values()):
            if isinstance(x, Proxy):
                return x.tracer.create_proxy("call_module", x.tracer.path_of_module(self), args, kwargs)  # type: ignore[attr-defined]
        if self.input_quantizer is not None:
            args, kwargs = map_inputs(self, self.input_quantizer, args, kwargs)
        with _Call(self):
            y = super().forward(*args, **kwargs)
        return y if self.output_quantizer is None else self.output_quantizer(y)

    def register_parameter(self, name: str, param: Any) -> None:
        """Refuse a quantized weight as a parameter, which pruning makes of it."""
        if isinstance(param, Tensor) and not isinstance(param, nn.Parameter):
            raise TypeError(
                f"Quantized{self._base.__name__}: `{name}` must be a parameter, and a quantized weight is computed; call "
                "fullgrad.nn.unquantize_ before pruning."
            )
        super().register_parameter(name, param)

    def reset_parameters(self) -> None:
        """Refuse new weights, which would be written to a tensor that is computed, and have other scales."""
        if any(f"{name}_quantizer" in self._modules for name in self._names):
            raise TypeError(
                f"Quantized{self._base.__name__}: reset_parameters must come before quantize_, which finds scales for weights; "
                "call fullgrad.nn.unquantize_ first."
            )
        super().reset_parameters()  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The class is made where it is loaded; it has no name that pickle would find."""
        _, (_, *arguments), *rest = super().__reduce_ex__(max(2, int(protocol)))  # type: ignore[misc]
        return (_blank, (self._base, self._names, *arguments), *rest)


class _Calls(threading.local):
    """The forwards that run in a thread: what each layer has quantized in it, by the layer's identity and the weight's name."""

    def __init__(self) -> None:
        self.quantized: dict[int, dict[str, Tensor]] = {}


_calls = _Calls()


class _Call:
    """A forward, in which each weight is quantized once, though forwards of torch ask for one several times, as for its dtype. In
    compiled code nothing is kept: what is computed twice is one operation of the graph.
    """

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.outer = id(layer), None

    def __enter__(self) -> None:
        if not is_dynamo_compiling():
            self.outer = _calls.quantized.get(self.layer)
            _calls.quantized[self.layer] = {}

    def __exit__(self, *_: object) -> None:
        if not is_dynamo_compiling():
            del _calls.quantized[self.layer]
            if self.outer is not None:
                _calls.quantized[self.layer] = self.outer


def _once_a_call(name: str, compute: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """The getter of a weight, which computes it once in a forward of the layer."""

    def get(self: Any) -> Tensor:
        known = None if is_dynamo_compiling() else _calls.quantized.get(id(self))
        if known is None:
            return compute(self)
        if name not in known:
            known[name] = compute(self)
        return known[name]

    return get


def _plain(layer: nn.Module, name: str) -> Any:
    """A parameter as the layer has it, or a tensor that a tool has put in its place."""
    found = layer._parameters.get(name)
    return layer.__dict__.get(f"_plain_{name}") if found is None else found


def _quantized_weight(name: str) -> property:
    def get(self: Any) -> Any:
        weight, quantizer = _plain(self, name), self._modules.get(f"{name}_quantizer")
        if weight is None and quantizer is not None:
            raise RuntimeError(
                f"Quantized{self._base.__name__}: `{name}` must stay a parameter, which a parametrization such as weight_norm "
                "takes out; call fullgrad.nn.unquantize_ before it."
            )
        try:
            found = weight if quantizer is None else quantizer(weight)
        except AttributeError as error:  # for which `nn.Module` would return the parameter, which is not quantized
            raise RuntimeError(f"{type(self).__name__}: its `{name}_quantizer` raised AttributeError: {error}") from error
        if isinstance(found, Proxy):
            raise _traced(self, name)
        return found

    return property(_once_a_call(name, get), _setter(name), doc="The weight in use.")


def _traced(layer: nn.Module, name: str) -> Exception:
    """The error of a weight in a graph of `torch.fx`, which would have it as a constant, by the name of the parameter."""
    return NotImplementedError(
        f"{type(layer).__name__}: torch.fx can trace a call of the layer, and no other use of its `{name}`, which is computed; "
        "write torch.compile or torch.export."
    )


def _rounded_bias() -> property:
    def get(self: Any) -> Tensor:
        bias = _plain(self, "bias")
        step = (self.input_quantizer.effective_scale * self.weight_quantizer.effective_scale).detach().flatten()
        found = self.bias_quantizer(bias, step)
        if isinstance(found, Proxy):
            raise _traced(self, "bias")
        return found

    return property(get, _setter("bias"), doc="The bias in use: multiples of the product of the two scales.")


def _setter(name: str) -> Callable[[Any, Any], None]:
    def put(self: Any, value: Any) -> None:
        self.__dict__[f"_plain_{name}"] = value  # of a tool that has taken the parameter out

    return put


@functools.cache
def quantized_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The class of a layer some parameters of which are quantized."""
    members: dict[str, Any] = {"_base": base, "_names": names, "__module__": __name__}
    for name in names:
        members[name] = _rounded_bias() if name == "bias" else _quantized_weight(name)
        members[f"original_{name}"] = property(functools.partial(_plain, name=name), doc="The parameter, which learns.")
    if issubclass(base, nn.RNNBase):
        members[RNN_WEIGHTS] = property(lambda self: [getattr(self, name, None) for name in rnn_names(self)], _ignored)
        members[RNN_REFRESH] = _ignored
    return type(f"Quantized{base.__name__}", (QuantizedLayer, base), members)


def _ignored(self: Any, value: Any = None) -> None:
    """The weights of an RNN are up to date whenever they are asked for."""


def _blank(base: type[nn.Module], names: tuple[str, ...], *arguments: Any) -> nn.Module:
    """A quantized layer without its state, for pickle and copy."""
    return copyreg.__newobj__(quantized_class(base, names), *arguments)  # type: ignore[attr-defined]


def map_inputs(
    layer: nn.Module, function: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a layer with a function of its input: of the first, or of the query, the key and the value. A tensor that
    is several of them stays one. The layer itself refuses a call without one.
    """
    args, kwargs = [*args], {**kwargs}  # type: ignore[assignment]
    names = ("query", "key", "value") if isinstance(layer, nn.MultiheadAttention) else (next(iter(kwargs), ""),)
    mapped: list[tuple[Any, Any]] = []
    for place, name in enumerate(names):
        held, key = (args, place) if place < len(args) else (kwargs, name)
        x = held[key] if held is args else held.get(key)  # type: ignore[index, attr-defined]
        if x is None:
            continue
        found = next((y for before, y in mapped if before is x), None)
        if found is None:
            found = x._replace(data=function(x.data)) if isinstance(x, PackedSequence) else function(_dense(x))
            mapped.append((x, found))
        held[key] = found  # type: ignore[index]
    return tuple(args), kwargs  # type: ignore[return-value]


def _dense(x: Tensor) -> Tensor:
    if isinstance(x, Tensor) and x.is_nested and x.layout is torch.strided:
        raise TypeError(
            "quantize_: the input of a layer must not be a nested tensor, which a TransformerEncoder makes of a padding mask; "
            "build it with enable_nested_tensor=False."
        )
    return x


class WeightQuantizer(nn.Module):
    """`fake_quantize` with a scale of its own, and maybe a zero point: parameters that learn or are frozen. Gradients of
    those that learn are sums: they are divided by the root of N h, for N numbers that share a scale and the largest code h, as in
    LSQ.
    """

    scale: Tensor
    zero_point: Tensor | None
    group_size: int | None

    def __init__(self, scale: Tensor, quant_min: int, quant_max: int, learn: bool, zero_point: Tensor | None = None) -> None:
        super().__init__()
        # A fixed scale is a parameter, too, that is frozen: tools that refuse layers with buffers, such as Opacus, take it.
        self.scale = nn.Parameter(scale, requires_grad=learn)
        self.zero_point = None if zero_point is None else nn.Parameter(zero_point, requires_grad=learn)
        # A step of an optimizer may be larger than a scale of 8 bits, and would make it negative.
        self.learn, self.least, self.group_size = learn, float(scale.min()) / 1024 if learn else 0.0, None
        self.quant_min, self.quant_max = quant_min, quant_max
        self.inside: Any = "exact" if learn else "rounded"

    def forward(self, x: Tensor) -> Tensor:
        if self.group_size is not None:
            return self._quantized(x.reshape(x.shape[0], -1, self.group_size)).reshape(x.shape)
        return self._quantized(x)

    def _quantized(self, x: Tensor) -> Tensor:
        scale, zero_point = self.effective_scale, 0 if self.zero_point is None else self.zero_point.detach()
        if self.learn:
            factor = lsq_factor(self.numbers(x), self.quant_max)
            scale = scale_bwd(scale, factor)
            zero_point = 0 if self.zero_point is None else scale_bwd(self.zero_point, factor)
        return fake_quantize(x, scale, zero_point, self.quant_min, self.quant_max, inside=self.inside)

    def numbers(self, x: Tensor) -> int:
        """How many numbers of a tensor share a scale."""
        return x.numel() // max(self.scale.numel(), 1)

    @property
    def effective_scale(self) -> Tensor:
        """The scale, or the least one where it is below that."""
        scale = self.scale if self.learn else self.scale.detach()
        return lower_bound(scale, self.least) if self.least else scale

    def get_extra_state(self) -> Tensor:
        """The range of codes, and the least scale: a state that is loaded brings its own."""
        return torch.tensor([self.quant_min, self.quant_max, self.least], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the range of codes and the least scale of a state."""
        low, high, least = state.tolist()
        # A scale that learns keeps its bound if the state is of one that does not.
        self.quant_min, self.quant_max, self.least = int(low), int(high), least or self.least

    def extra_repr(self) -> str:
        """The codes, and the shape of the scale."""
        with_zero = "" if self.zero_point is None else ", with a zero point"
        return f"{self.quant_min} to {self.quant_max}, scale of shape {tuple(self.scale.shape)}{with_zero}"


class InputQuantizer(WeightQuantizer):
    """The quantizer of a layer's input, which has one scale; N is the size of a token or sample, as batches differ in theirs."""

    dims = 1  # of a token, or of the channels and places of a sample

    def numbers(self, x: Tensor) -> int:
        return math.prod(x.shape[-self.dims :])


class OutputQuantizer(InputQuantizer):
    """The quantizer of a layer's output, likewise."""


class BiasQuantizer(nn.Module):
    """Rounding to multiples of a step, in 32 bits. It learns nothing, but a state says whether there is one."""

    def forward(self, bias: Tensor, step: Tensor) -> Tensor:
        return clamp(step_quantize(bias, step), -_INT32 * step, _INT32 * step).to(bias.dtype)

    def get_extra_state(self) -> Tensor:
        """The range of codes."""
        return torch.tensor([-_INT32, _INT32, 0], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """All have the same range."""


class DynamicQuantizer(nn.Module):
    """`fake_quantize` with a scale, and maybe a zero point, from the numbers themselves, which count as constant."""

    def __init__(self, bits: int, dims: int, asymmetric: bool) -> None:
        super().__init__()
        self.bits, self.dims, self.asymmetric = bits, dims, asymmetric

    def forward(self, x: Tensor) -> Tensor:
        low, high = quant_range(self.bits, signed=not self.asymmetric)
        dims = tuple(range(-min(self.dims, x.ndim), 0))
        wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        if not self.asymmetric:
            return fake_quantize(x, positive(wide.abs().amax(dims, keepdim=True) / high), 0, low, high)
        scale, zero_point = affine(wide.amin(dims, keepdim=True), wide.amax(dims, keepdim=True), low, high)
        return fake_quantize(x, scale, zero_point, low, high)

    def get_extra_state(self) -> Tensor:
        """The range of codes, as of a `WeightQuantizer`: a state that is loaded brings its own."""
        return torch.tensor([*quant_range(self.bits, signed=not self.asymmetric), 0], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the bits of a state, and whether there is a zero point."""
        low, high, _ = map(int, state.tolist())
        self.bits, self.asymmetric = (high - low).bit_length(), low == 0

    def extra_repr(self) -> str:
        """The bits, and the dimensions that share a scale."""
        return f"bits={self.bits}, dims={self.dims}" + ", with a zero point" * self.asymmetric


def affine(smallest: Tensor, largest: Tensor, low: int, high: int, exact: bool = False) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of codes for the numbers from the smallest to the largest, with 0 among them. Rounding the
    zero point moves the range by up to half a step; if it is exact, the scale is the least one with which both ends are within.
    """
    smallest, largest = smallest.clamp(max=0), largest.clamp(min=0)
    if not exact:
        scale = positive((largest - smallest) / (high - low))
        return scale, torch.clamp(torch.round(low - smallest / scale), low, high)
    # As many codes are below 0 as fit best, rounded down or up.
    below = torch.nan_to_num(smallest / (smallest - largest)) * (high - low)
    down, up = below.floor(), below.ceil()
    by_down, by_up = (torch.maximum(within(-smallest, n), within(largest, high - low - n)) for n in (down, up))
    return positive(torch.minimum(by_down, by_up)), low + torch.where(by_down <= by_up, down, up)


def within(largest: Tensor, codes: Any) -> Tensor:
    """The scale by which the largest number is that many codes, and not more by an error of rounding."""
    scale = torch.where(largest == 0, 0.0, largest / codes)
    for _ in range(4):
        above = (largest * scale.reciprocal() > codes) | (largest / scale > codes)
        scale = torch.where(above, torch.nextafter(scale, torch.full_like(scale, torch.inf)), scale)
    return scale


def positive(scale: Tensor) -> Tensor:
    """A scale whose reciprocal is finite: 1 for a row of zeros."""
    return torch.where(scale > 2 * torch.finfo(torch.float32).tiny, scale, 1.0)
