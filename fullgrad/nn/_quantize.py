"""`quantize_`: quantizers for the weights and the inputs of a model's layers, in place."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fullgrad._core import checks
from fullgrad._core.public import explained
from fullgrad.clamping import lower_bound
from fullgrad.quantizers import fake_quantize, quant_range

METHODS = ("max", "mean", "mse")
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# The attribute of a layer whose weight has a quantizer as its parametrization.
_MARK = "_weight_is_quantized"
# Numbers of one batch that a scale is computed from, besides its ends and its mean.
_SAMPLE = 2**14

Bits = int | Callable[[Tensor], nn.Module] | None


@explained
def quantize_(
    model: nn.Module,
    weights: Bits = 8,
    activations: Bits = 8,
    data: Iterable[Any] = (),
    *,
    method: str = "max",
    learn: bool = False,
    skip: Sequence[str] = (),
) -> nn.Module:
    r"""Quantize the weights and the inputs of every ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d`` of a model, in place.

    .. math::
        W_q = \operatorname{fake\_quantize}(W, s_W), \quad x_q = \operatorname{fake\_quantize}(x, s_x), \qquad
        s = \frac{\max |x|}{h} \;\text{or}\; \frac{2 \operatorname{mean} |x|}{\sqrt h} \;\text{or}\;
        \operatorname{argmin}_s \operatorname{mean} (x_q - x)^2

    for the largest code *h*. Values and derivatives are those of :func:`fullgrad.quantizers.fake_quantize`. A weight gets a
    parametrization of ``torch.nn.utils.parametrize`` with a scale per output channel; a layer gets a module ``input_quantizer``
    with one scale, called by a forward pre-hook, unsigned where no number of the data is negative. The model is called once with
    each batch, in evaluation mode and without gradients. ``torch.func``, ``torch.compile``, ``torch.export``, ``copy.deepcopy``
    and ``state_dict`` work as before; a state is loaded into a model quantized likewise; torch does not pickle a model with
    parametrizations. :func:`unquantize_` undoes it. Other weights stay as they are: those of an ``LSTM``, ``Embedding`` or
    ``ConvTranspose2d``, and of the inputs of a ``MultiheadAttention``.

    Args:
        model: A module.
        weights: A number of bits, from 2 to 16; or a function of the weight that returns a module, such as
            :class:`fullgrad.nn.LSQ`; None to leave weights as they are.
        activations: As ``weights``; a function gets numbers of the layer's inputs, in one dimension. None to leave inputs as they
            are.
        data: A list or another iterable of batches, for the scales of activations: a tensor or what else the model takes; a tuple
            or list whose first item is that, as of inputs and labels; or a dict of keyword arguments.
        method: How a scale is computed: ``"max"``, ``"mean"`` (LSQ's start) or ``"mse"`` (the best of 80 scales).
        learn: Whether scales are parameters, with the gradient of LSQ but for its constant factor, which Adam ignores; else
            buffers. A scale below 1/1024 of the smallest at the start, or a negative one, counts as that, by
            :func:`fullgrad.lower_bound`; ``effective_scale`` of a quantizer has what it uses.
        skip: Names of layers, as in ``model.named_modules()``, that are left as they are: one that the model does not call, such
            as ``out_proj`` of a ``MultiheadAttention``, has no inputs to find a scale for.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is not a module, or cannot take a batch; a number of bits is not an integer, ``data`` no iterable of
            batches, or a function does not return a module.
        ValueError: A number of bits is out of its range, ``method`` is unknown, the model has no such layer or is quantized
            already, a weight is no floating parameter with elements, no batch reaches a layer, ``skip`` names none, or numbers
            are not finite. The model is then as before.

    Example:
        >>> import torch, fullgrad
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> _ = fullgrad.nn.quantize_(model, weights=4, activations=8, data=[torch.randn(32, 8)], learn=True)
        >>> model[0].weight.unique().numel() <= 16 * 16
        True
        >>> model[2].input_quantizer
        InputQuantizer(0 to 255, scale of shape ())
        >>> [name for name, _ in model[2].named_parameters()]
        ['bias', 'parametrizations.weight.original', 'parametrizations.weight.0.scale', 'input_quantizer.scale']

    Source: Esser et al., https://arxiv.org/abs/1902.08153, for ``"mean"`` and ``learn``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize_: `model` must be a module, got a value of type {type(model).__name__}.")
    _check_bits("weights", weights)
    _check_bits("activations", activations)
    checks.choice("quantize_", "method", method, METHODS)
    if isinstance(skip, str):
        raise TypeError(f"quantize_: `skip` must be names of layers, got {skip!r}; write [{skip!r}].")
    layers = {name: m for name, m in model.named_modules() if isinstance(m, _LAYERS)}
    unknown = [name for name in skip if name not in layers]
    if unknown:
        known = ", ".join(layers) or "none"
        raise ValueError(f"quantize_: `skip` must name layers of `model`, got {unknown[0]!r}; it has {known}.")
    layers = {name: layer for name, layer in layers.items() if name not in skip}
    if not layers:
        raise ValueError(f"quantize_: `model` has no Linear, Conv1d, Conv2d or Conv3d{' but those of `skip`' * bool(skip)}.")
    for name, layer in layers.items():
        _check_layer(name or "model", layer, weights is not None)
    inputs = {} if activations is None else _inputs_of(model, layers, data)
    made: list[tuple[nn.Module, nn.Module | None, nn.Module | None]] = []
    with torch.no_grad():
        for name, layer in layers.items():
            weight: Any = layer.weight
            seen, of = None if weights is None else _of_weight(weight), repr(name or "model")
            for_weight = _quantizer(f"the weight of {of}", seen, weights, method, learn, WeightQuantizer)
            for_input = _quantizer(f"the input of {of}", inputs.get(name), activations, method, learn, InputQuantizer)
            made.append((layer, for_weight, for_input))
    try:
        for layer, for_weight, for_input in made:
            if for_weight is not None:
                parametrize.register_parametrization(layer, "weight", for_weight)
                layer.get_submodule("parametrizations").train(layer.training)
                setattr(layer, _MARK, True)
            if for_input is not None:
                layer.input_quantizer = for_input.train(layer.training)
                layer.register_forward_pre_hook(_quantize_input, with_kwargs=True)
    except Exception:  # a module of the user does not fit the weight
        unquantize_(model)
        raise
    return model


def unquantize_(model: nn.Module) -> nn.Module:
    """Undo :func:`quantize_`, in place: weights are those before rounding, and inputs are used as they are.

    Args:
        model: A module, of which some layers may be quantized; also a copy of the one that was.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is not a module.

    Example:
        >>> import torch, fullgrad
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4))
        >>> weight = model[0].weight
        >>> _ = fullgrad.nn.unquantize_(fullgrad.nn.quantize_(model, weights=2, activations=None))
        >>> model[0].weight is weight
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"unquantize_: `model` must be a module, got a value of type {type(model).__name__}.")
    for layer in [*model.modules()]:
        if not isinstance(layer, _LAYERS):
            continue
        if hasattr(layer, _MARK):
            if parametrize.is_parametrized(layer, "weight"):  # torch's own function may have removed it
                _restore_weight(layer)
            delattr(layer, _MARK)
        for key, hook in [*layer._forward_pre_hooks.items()]:
            if hook is _quantize_input:
                del layer._forward_pre_hooks[key]
                del layer.input_quantizer
    return model


class WeightQuantizer(nn.Module):
    """`fake_quantize` with a scale of its own, a parameter or a buffer."""

    scale: Tensor

    def __init__(self, scale: Tensor, quant_min: int, quant_max: int, learn: bool) -> None:
        super().__init__()
        self.least = 0.0
        if learn:
            # A step of an optimizer may be larger than a scale of 8 bits, and would make it negative.
            self.scale, self.least = nn.Parameter(scale), float(scale.min()) / 1024
        else:
            self.register_buffer("scale", scale)
        self.quant_min, self.quant_max = quant_min, quant_max
        self.inside: Any = "exact" if learn else "rounded"

    def forward(self, x: Tensor) -> Tensor:
        return fake_quantize(x, self.effective_scale, 0, self.quant_min, self.quant_max, inside=self.inside)

    @property
    def effective_scale(self) -> Tensor:
        """The scale, or the least one where it is below that."""
        return lower_bound(self.scale, self.least) if self.least else self.scale

    def get_extra_state(self) -> Tensor:
        """The range of codes, and the least scale: a state that is loaded brings its own."""
        return torch.tensor([self.quant_min, self.quant_max, self.least], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the range of codes and the least scale of a state."""
        low, high, least = state.tolist()
        # A scale that learns keeps a bound if the state is of one that does not.
        self.quant_min, self.quant_max, self.least = int(low), int(high), least or self.least

    def extra_repr(self) -> str:
        """The codes, and the shape of the scale."""
        return f"{self.quant_min} to {self.quant_max}, scale of shape {tuple(self.scale.shape)}"


class InputQuantizer(WeightQuantizer):
    """The quantizer of a layer's input, which has one scale."""


def _restore_weight(layer: Any) -> None:
    """Remove the parametrization of a weight. torch removes a property of the class, which copies of a model share."""
    weight, others, cls = layer.parametrizations["weight"].original, dict(layer._parameters), type(layer)
    if len(layer.parametrizations) > 1:
        del layer.parametrizations["weight"]
        rest = {name: v for name, v in vars(cls).items() if name not in ("weight", "__dict__", "__weakref__")}
        layer.__class__ = type(cls.__name__, cls.__bases__, rest)
    else:
        del layer.parametrizations
        layer.__class__ = cls.__bases__[0]
    layer._parameters.clear()
    layer.register_parameter("weight", weight)
    layer._parameters.update(others)


def _quantize_input(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The forward pre-hook of a layer."""
    if not args:
        name, x = _input_of(args, kwargs)
        return args, {**kwargs, name: layer.input_quantizer(x)}
    return (layer.input_quantizer(_input_of(args, kwargs)[1]), *args[1:]), kwargs


def _input_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, Tensor]:
    """The first argument of a layer, by position or with its name."""
    name, x = ("", args[0]) if args else next(iter(kwargs.items()))
    if x.is_nested and x.layout is torch.strided:
        raise TypeError(
            "quantize_: the input of a layer must not be a nested tensor, which a TransformerEncoder makes of a padding mask; "
            "build it with enable_nested_tensor=False."
        )
    return name, x


def _check_layer(name: str, layer: nn.Module, has_weights: bool) -> None:
    """Refuse what is quantized already, and a weight that cannot be."""
    is_parametrized = parametrize.is_parametrized(layer, "weight")
    if hasattr(layer, "input_quantizer") or (hasattr(layer, _MARK) and is_parametrized):
        raise ValueError(f"quantize_: `model` must not be quantized yet, got {name!r}; call unquantize_ first.")
    if not has_weights:
        return
    weight = layer._parameters.get("weight")
    if is_parametrized or weight is None:
        raise ValueError(
            f"quantize_: the weight of {name!r} must have no parametrization, such as weight_norm or pruning; remove it "
            "first, or write weights=None."
        )
    if isinstance(weight, nn.parameter.UninitializedParameter):
        raise ValueError(f"quantize_: the weight of {name!r} must be initialized; call the model once before.")
    if not weight.is_floating_point() or weight.is_meta or not weight.numel():
        raise ValueError(
            f"quantize_: the weight of {name!r} must be a floating tensor with elements, got {weight.dtype} of shape "
            f"{tuple(weight.shape)} on {weight.device}; name the layer in `skip`."
        )


def _check_bits(argument: str, value: Any) -> None:
    if value is not None and not callable(value):
        checks.integer_between("quantize_", argument, value, 2, 16)


class _Seen(NamedTuple):
    """A tensor, or a sample of the numbers of many, with what is known of all: the ends and the mean size, by channel."""

    sample: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    dims: tuple[int, ...]


def _of_weight(weight: Tensor) -> _Seen:
    dims, wide = tuple(range(1, weight.ndim)), weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    low, high = wide.amin(dims, keepdim=True), wide.amax(dims, keepdim=True)
    return _Seen(weight, low, high, wide.abs().mean(dims, keepdim=True), dims)


def _inputs_of(model: nn.Module, layers: Mapping[str, nn.Module], data: Iterable[Any]) -> dict[str, _Seen]:
    """The inputs of each layer, in one pass."""
    found: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in layers}
    generator = torch.Generator().manual_seed(0)

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            x = _input_of(args, kwargs)[1].detach().flatten()
            if x.numel():
                drawn = x if x.numel() <= _SAMPLE else x[torch.randint(x.numel(), (_SAMPLE,), generator=generator).to(x.device)]
                found[name].append((drawn, x.amin(), x.amax(), x.abs().double().sum(), torch.tensor(x.numel())))

        return hook

    if isinstance(data, (Tensor, Mapping, str)) or not isinstance(data, Iterable):
        raise TypeError(f"quantize_: `data` must be a list of batches, got a value of type {type(data).__name__}; write [data].")
    handles = [layer.register_forward_pre_hook(keep(name), with_kwargs=True) for name, layer in layers.items()]
    modes = {m: m.training for m in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            for batch in data:
                _call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
        for m, mode in modes.items():
            m.training = mode
    missing = [name for name, parts in found.items() if not parts]
    if missing:
        raise ValueError(
            f"quantize_: `data` must have batches that reach every layer for the scales of activations, got none for "
            f"{', '.join(map(repr, missing))}; name layers that the model does not call in `skip`, or write activations=None."
        )
    return {name: _joined(parts) for name, parts in found.items()}


def _call(model: nn.Module, batch: Any) -> None:
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    try:
        _ = model(**first) if isinstance(first, Mapping) else model(first)
    except (TypeError, AttributeError) as error:
        raise TypeError(
            f"quantize_: `model` raised {type(error).__name__} for a batch of `data` of type {type(batch).__name__}: {error}. "
            "A tuple or list gives its first item, and a dict keyword arguments."
        ) from error


def _joined(parts: Sequence[tuple[Tensor, ...]]) -> _Seen:
    samples, lows, highs, totals, counts = zip(*parts, strict=True)
    sample, low, high = torch.cat(samples), torch.stack(lows).amin(), torch.stack(highs).amax()
    mean = torch.stack(totals).sum() / torch.stack(counts).sum().item()
    wide = torch.promote_types(sample.dtype, torch.float32)
    return _Seen(sample, low.to(wide), high.to(wide), mean.to(wide), (0,))


def _quantizer(what: str, seen: _Seen | None, bits: Any, method: str, learn: bool, kind: type[WeightQuantizer]) -> Any:
    if bits is None or seen is None:
        return None
    if not (seen.low.isfinite().all() and seen.high.isfinite().all()):
        raise ValueError(f"quantize_: numbers must be finite, got infinity or NaN in {what}.")
    if callable(bits):
        found = bits(seen.sample)
        if not isinstance(found, nn.Module):
            raise TypeError(f"quantize_: a function of a tensor must return a module, got {type(found).__name__} for {what}.")
        return found
    low, high = quant_range(bits, signed=kind is WeightQuantizer or bool(seen.low.min() < 0))
    return kind(_scale(seen, low, high, method), low, high, learn)


def _scale(seen: _Seen, low: int, high: int, method: str) -> Tensor:
    """A positive scale for each channel, in float32 at least: one in half precision could be 0."""
    if method == "mean":
        return _positive(2 * seen.mean / math.sqrt(high))
    largest = _positive(torch.maximum(-seen.low, seen.high) / high)
    if method == "max":
        return largest
    x = seen.sample.detach().to(largest.dtype)
    best, least = largest, torch.full_like(largest, math.inf)
    for fraction in torch.linspace(0.2, 1.2, 80).tolist() if high > 1 else torch.linspace(0.05, 1.2, 80).tolist():
        error = (fake_quantize(x, largest * fraction, 0, low, high) - x).square().mean(seen.dims, keepdim=bool(largest.ndim))
        best, least = torch.where(error < least, largest * fraction, best), torch.minimum(error, least)
    return best


def _positive(scale: Tensor) -> Tensor:
    """A scale whose reciprocal is finite: 1 for a row of zeros."""
    return torch.where(scale > 2 * torch.finfo(torch.float32).tiny, scale, 1.0)
