"""`quantize_`: quantizers for the weights and the inputs of a model's layers, in place."""

import copyreg
import fnmatch
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fullgrad._core import checks
from fullgrad._core.public import explained
from fullgrad.clamping import lower_bound
from fullgrad.nn._batches import arguments_of
from fullgrad.quantizers import fake_quantize, quant_range

METHODS = ("max", "mean", "mse", "percentile")
# The part of the numbers that is within the range of ``"percentile"``.
_INSIDE = 0.999
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
# Numbers of one batch that a scale is computed from, besides its ends and its mean.
_SAMPLE = 2**14

Key = str | type[nn.Module]
Bits = int | Callable[..., nn.Module] | None


@explained
def quantize_(
    model: nn.Module,
    weights: Bits | Mapping[Key, Bits] = 8,
    activations: Bits | Mapping[Key, Bits] = 8,
    data: Iterable[Any] = (),
    *,
    method: str = "max",
    learn: bool = False,
    skip: Sequence[Key] = (),
    layers: tuple[type[nn.Module], ...] = _LAYERS,
    group_size: int | None = None,
    dynamic: bool = False,
    state: Mapping[str, Any] | None = None,
) -> nn.Module:
    r"""Quantize the weights and the inputs of every ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d`` of a model, in place.

    .. math::
        W_q = \operatorname{fake\_quantize}(W, s_W), \quad x_q = \operatorname{fake\_quantize}(x, s_x), \qquad
        s = \frac{\max |x|}{h} \;\text{or}\; \frac{2 \operatorname{mean} |x|}{\sqrt h} \;\text{or}\;
        \operatorname{argmin}_s \operatorname{mean} (x_q - x)^2

    for the largest code *h*. Values and derivatives are those of :func:`fullgrad.quantizers.fake_quantize`. A layer gets a module
    ``weight_quantizer`` with a scale per output channel and ``input_quantizer`` with one scale, unsigned where no number of the
    data is negative. Its class becomes one that quantizes in its own ``forward``: ``layer.weight`` is the quantized weight, and
    ``layer.original_weight`` the parameter, whose name in ``state_dict`` stays. So ``torch.func``, ``torch.compile``,
    ``torch.export``, ``copy.deepcopy``, ``pickle``, averages of weights and per-sample gradients of Opacus work as before. The
    model is called once with each batch, in evaluation mode and without gradients. :func:`unquantize_` undoes it. Other weights
    stay as they are: those of an ``LSTM``, and of the inputs of a ``MultiheadAttention``.

    Args:
        model: A module.
        weights: A number of bits, from 2 to 16; or a function of the weight that returns a module, such as
            :class:`fullgrad.nn.LSQ`, and that may also take ``name`` and ``module``, those of the layer; None to leave weights as
            they are. A dict has one of these for each name, pattern or class, as in ``skip``: the first that fits a layer counts,
            and a layer that none fits is left as it is.
        activations: As ``weights``; a function gets numbers of the layer's inputs, in one dimension. None to leave inputs as they
            are.
        data: A list or another iterable of batches, for the scales of activations: a tensor or what else the model takes; a tuple
            or list that begins with the arguments that forward needs, as of inputs and labels; or a dict of keyword arguments.
        method: How a scale is computed: ``"max"``, ``"mean"`` (LSQ's start), ``"mse"`` (the best of 80 scales) or
            ``"percentile"`` (99.9% of the numbers are within the range).
        learn: Whether scales learn, with the gradient of LSQ but for its constant factor, which Adam ignores; else they are
            frozen parameters. A scale below 1/1024 of the smallest at the start, or a negative one, counts as that, by
            :func:`fullgrad.lower_bound`; ``effective_scale`` of a quantizer has what it uses.
        skip: Layers that are left as they are: names as in ``model.named_modules()``, of layers or of modules that have them;
            patterns such as ``"*.head"``; or classes. One that the model does not call, such as ``out_proj`` of a
            ``MultiheadAttention``, has no inputs to find a scale for.
        layers: The classes whose layers are quantized. ``ConvTranspose1d`` to ``ConvTranspose3d``, ``Embedding`` and
            ``EmbeddingBag`` may be among them; the inputs of the last two are indices, and stay.
        group_size: So many numbers of an output channel have a scale of their own; None for one scale per channel.
        dynamic: Whether the scale of an input is computed in each call, as the largest number of each token (the last dimension,
            or the channels and places of a convolution) over *h*, and counts as constant. It needs no data.
        state: The ``state_dict`` of a model that was quantized likewise: it is loaded, and no data is needed.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is not a module, or cannot take a batch; a number of bits is not an integer, ``data`` no iterable of
            batches, a class cannot be quantized, or a function does not return a module.
        ValueError: A number of bits is out of its range, ``method`` is unknown, the model has no such layer or is quantized
            already, a weight is no floating parameter with elements, or not of whole groups, no batch reaches a layer, ``skip``
            or a key fits none, ``state`` lacks a scale, or numbers are not finite. The model is then as before.

    Example:
        >>> import torch, fullgrad
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> _ = fullgrad.nn.quantize_(model, weights={"2": 8, "*": 4}, data=[torch.randn(32, 8)], learn=True)
        >>> model[0].weight.unique().numel() <= 16 * 16
        True
        >>> model[2].input_quantizer
        InputQuantizer(0 to 255, scale of shape ())
        >>> [name for name, _ in model[2].named_parameters()]
        ['weight', 'bias', 'weight_quantizer.scale', 'input_quantizer.scale']

    Source: Esser et al., https://arxiv.org/abs/1902.08153, for ``"mean"`` and ``learn``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize_: `model` must be a module, got a value of type {type(model).__name__}.")
    _check_bits("weights", weights)
    _check_bits("activations", activations)
    checks.choice("quantize_", "method", method, METHODS)
    if group_size is not None:
        checks.integer_between("quantize_", "group_size", group_size, 1, 2**31)
    if isinstance(skip, str):
        raise TypeError(f"quantize_: `skip` must be names of layers, got {skip!r}; write [{skip!r}].")
    for kind in layers:
        if not isinstance(kind, type) or not issubclass(kind, (*_LAYERS, *_TRANSPOSED, *_EMBEDDINGS)):
            raise TypeError(f"quantize_: `layers` must be classes of linear layers, convolutions or embeddings, got {kind!r}.")
    found = {name: m for name, m in model.named_modules() if isinstance(m, layers)}
    for key in skip:
        _check_key("skip", key, found)
    chosen = {name: layer for name, layer in found.items() if not any(_fits(key, name, layer) for key in skip)}
    if not chosen:
        raise ValueError(
            f"quantize_: `model` has no {', '.join(kind.__name__ for kind in layers)}{' but those of `skip`' * bool(skip)}."
        )
    for_weights = _by_layer("weights", weights, found, chosen)
    for_inputs = _by_layer("activations", activations, found, chosen)
    for_inputs = {n: None if isinstance(chosen[n], _EMBEDDINGS) else bits for n, bits in for_inputs.items()}
    for name, layer in chosen.items():
        _check_layer(name or "model", layer, for_weights[name] is not None)
    wanted = {n: chosen[n] for n, bits in for_inputs.items() if bits is not None and not (dynamic and not callable(bits))}
    inputs = {} if state is not None or not wanted else _inputs_of(model, wanted, data)
    made: list[tuple[nn.Module, nn.Module | None, nn.Module | None]] = []
    with torch.no_grad():
        for name, layer in chosen.items():
            of, weight = repr(name or "model"), for_weights[name]
            quantizer = None
            if weight is not None:
                of_weight = _of_weight(of, layer, group_size)
                quantizer = _quantizer(f"the weight of {of}", of_weight, weight, method, learn, WeightQuantizer, name, layer)
                if isinstance(quantizer, WeightQuantizer):
                    quantizer.group_size = group_size
            what, bits = f"the input of {of}", for_inputs[name]
            if dynamic and isinstance(bits, int):
                made.append((layer, quantizer, DynamicQuantizer(bits, _input_dims(layer))))
            elif state is not None and bits is not None:
                made.append((layer, quantizer, _of_state(what, bits, learn, f"{name}." * bool(name), state)))
            else:
                made.append(
                    (layer, quantizer, _quantizer(what, inputs.get(name), bits, method, learn, InputQuantizer, name, layer))
                )
    try:
        for layer, for_weight, for_input in made:
            if for_weight is None and for_input is None:
                continue
            for quantizer in (for_weight, for_input):
                if quantizer is not None:
                    quantizer.train(layer.training)
            if for_weight is not None:
                _check_quantized(for_weight, layer)
            layer.__class__ = _quantized(type(layer))
            layer.register_module("weight_quantizer", for_weight)
            layer.register_module("input_quantizer", for_input)
            layer.register_forward_pre_hook(_no_fused_kernel)
        if state is not None:
            model.load_state_dict(state)
    except Exception:  # a module of the user does not fit the weight, or the state not the model
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
    for module in model.modules():
        if isinstance(module, QuantizedLayer):
            layer: Any = module
            layer.__class__ = layer._base
            for key, hook in [*layer._forward_pre_hooks.items()]:
                if hook is _no_fused_kernel:
                    del layer._forward_pre_hooks[key]
            del layer._modules["weight_quantizer"], layer._modules["input_quantizer"]
    return model


class QuantizedLayer(nn.Module):
    """The first base of a layer's class after `quantize_`, which quantizes its weight and its input in its own forward."""

    # The class of the layer before.
    _base: type[nn.Module]
    weight_quantizer: nn.Module | None
    input_quantizer: nn.Module | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the layer, of its quantized input."""
        if self.input_quantizer is not None:
            name, x = _input_of(args, kwargs)
            if name:
                kwargs = {**kwargs, name: self.input_quantizer(x)}
            else:
                args = (self.input_quantizer(x), *args[1:])
        return super().forward(*args, **kwargs)

    @property
    def weight(self) -> Tensor:
        """The weight in use."""
        weight = self.original_weight
        if self.weight_quantizer is None:
            return weight
        try:
            return self.weight_quantizer(weight)
        except AttributeError as error:  # for which `nn.Module` would return the parameter, which is not quantized
            raise RuntimeError(f"{type(self).__name__}: its `weight_quantizer` raised AttributeError: {error}") from error

    @weight.setter
    def weight(self, value: Tensor) -> None:
        self.__dict__["_plain_weight"] = value  # of a tool that has taken the parameter out

    @property
    def original_weight(self) -> Tensor:
        """The weight before quantization, which learns."""
        found = self._parameters.get("weight")
        return self.__dict__["_plain_weight"] if found is None else found

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The class is made where it is loaded; it has no name that pickle would find."""
        _, (_, *arguments), *rest = super().__reduce_ex__(max(2, int(protocol)))  # type: ignore[misc]
        return (_blank, (self._base, *arguments), *rest)


@functools.cache
def _quantized(base: type[nn.Module]) -> type[nn.Module]:
    """The class of a quantized layer."""
    return type(f"Quantized{base.__name__}", (QuantizedLayer, base), {"_base": base, "__module__": __name__})


def _blank(base: type[nn.Module], *arguments: Any) -> nn.Module:
    """A quantized layer without its state, for pickle and copy."""
    return copyreg.__newobj__(_quantized(base), *arguments)  # type: ignore[attr-defined]


def _no_fused_kernel(layer: nn.Module, args: Any) -> None:
    """A hook, without which torch's TransformerEncoderLayer calls one kernel with the weights, and no layer."""


class WeightQuantizer(nn.Module):
    """`fake_quantize` with a scale of its own, a parameter that learns or is frozen."""

    scale: Tensor
    group_size: int | None

    def __init__(self, scale: Tensor, quant_min: int, quant_max: int, learn: bool) -> None:
        super().__init__()
        # A fixed scale is a parameter, too, that is frozen: tools that refuse layers with buffers, such as Opacus, take it.
        self.scale = nn.Parameter(scale, requires_grad=learn)
        # A step of an optimizer may be larger than a scale of 8 bits, and would make it negative.
        self.learn, self.least, self.group_size = learn, float(scale.min()) / 1024 if learn else 0.0, None
        self.quant_min, self.quant_max = quant_min, quant_max
        self.inside: Any = "exact" if learn else "rounded"

    def forward(self, x: Tensor) -> Tensor:
        if self.group_size is not None:
            return self._quantized(x.reshape(x.shape[0], -1, self.group_size)).reshape(x.shape)
        return self._quantized(x)

    def _quantized(self, x: Tensor) -> Tensor:
        return fake_quantize(x, self.effective_scale, 0, self.quant_min, self.quant_max, inside=self.inside)

    @property
    def effective_scale(self) -> Tensor:
        """The scale, or the least one where it is below that."""
        return lower_bound(self.scale, self.least) if self.learn else self.scale.detach()

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
        return f"{self.quant_min} to {self.quant_max}, scale of shape {tuple(self.scale.shape)}"


class InputQuantizer(WeightQuantizer):
    """The quantizer of a layer's input, which has one scale."""


class DynamicQuantizer(nn.Module):
    """`fake_quantize` with a scale from the numbers themselves, which counts as constant."""

    def __init__(self, bits: int, dims: int) -> None:
        super().__init__()
        self.bits, self.dims = bits, dims

    def forward(self, x: Tensor) -> Tensor:
        low, high = quant_range(self.bits)
        dims = tuple(range(-min(self.dims, x.ndim), 0))
        scale = _positive(x.detach().to(torch.promote_types(x.dtype, torch.float32)).abs().amax(dims, keepdim=True) / high)
        return fake_quantize(x, scale, 0, low, high)

    def extra_repr(self) -> str:
        """The bits, and the dimensions that share a scale."""
        return f"bits={self.bits}, dims={self.dims}"


def _input_dims(layer: nn.Module) -> int:
    """The last dimensions of an input that belong to one token, or to the channels and places of one sample."""
    return 1 if isinstance(layer, nn.Linear) else len(layer.kernel_size) + 1  # type: ignore[arg-type]


def _fits(key: Key, name: str, layer: nn.Module) -> bool:
    """Whether a key is the name of a layer or of a module that has it, a pattern of its name, or its class."""
    if isinstance(key, type):
        return isinstance(layer, key)
    return name == key or name.startswith(f"{key}.") or fnmatch.fnmatchcase(name, key)


def _check_key(argument: str, key: Any, layers: Mapping[str, nn.Module]) -> None:
    """Refuse a key that fits none."""
    if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, nn.Module)):
        raise TypeError(f"quantize_: `{argument}` must have names, patterns or classes of layers, got {key!r}.")
    if not any(_fits(key, name, layer) for name, layer in layers.items()):
        known = ", ".join(layers) or "none"
        raise ValueError(f"quantize_: `{argument}` must name layers of `model`, got {key!r}; it has {known}.")


def _by_layer(argument: str, bits: Any, found: Mapping[str, nn.Module], chosen: Mapping[str, nn.Module]) -> dict[str, Any]:
    """The bits of each layer that is quantized: those of the first key that fits."""
    if not isinstance(bits, Mapping):
        return dict.fromkeys(chosen, bits)
    for key in bits:
        _check_key(argument, key, found)
    return {name: next((b for key, b in bits.items() if _fits(key, name, m)), None) for name, m in chosen.items()}


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
    if isinstance(layer, QuantizedLayer):
        raise ValueError(f"quantize_: `model` must not be quantized yet, got {name!r}; call unquantize_ first.")
    if not has_weights:
        return
    weight = layer._parameters.get("weight")
    if parametrize.is_parametrized(layer, "weight") or weight is None:
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
    if isinstance(value, Mapping):
        for bits in value.values():
            _check_bits(argument, bits)
    elif value is not None and not callable(value):
        checks.integer_between("quantize_", argument, value, 2, 16)


class _Seen(NamedTuple):
    """A tensor, or a sample of the numbers of many, with what is known of all: the ends and the mean size, by channel."""

    sample: Tensor
    low: Tensor
    high: Tensor
    mean: Tensor
    dims: tuple[int, ...]


def _of_weight(of: str, layer: nn.Module, group_size: int | None) -> _Seen:
    """The weight, with its ends and mean by output channel, or by group of it."""
    weight: Any = layer._parameters["weight"]
    channel = 1 if isinstance(layer, _TRANSPOSED) else 0
    if group_size is not None:
        if channel or weight[0].numel() % group_size:
            raise ValueError(
                f"quantize_: the weight of {of} must have output channels of whole groups of `group_size` {group_size}, got the "
                f"shape {tuple(weight.shape)}; name the layer in `skip`."
            )
        weight = weight.detach().reshape(weight.shape[0], -1, group_size)
    dims = (2,) if group_size is not None else tuple(d for d in range(weight.ndim) if d != channel)
    wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    low, high = wide.amin(dims, keepdim=True), wide.amax(dims, keepdim=True)
    return _Seen(weight, low, high, wide.abs().mean(dims, keepdim=True), dims)


def _of_state(what: str, bits: Any, learn: bool, prefix: str, state: Mapping[str, Any]) -> nn.Module:
    """The quantizer of an input, whose numbers come with a state."""
    if callable(bits):
        raise TypeError(f"quantize_: {what} has a function, which needs `data` and not `state`; call load_state_dict after it.")
    key = f"{prefix}input_quantizer.scale"
    if key not in state:
        raise ValueError(f"quantize_: `state` must be that of a model that was quantized likewise, it lacks {key!r}.")
    return InputQuantizer(state[key].detach().clone(), *quant_range(bits), learn)


def _check_quantized(quantizer: nn.Module, layer: nn.Module) -> None:
    """Refuse a module that changes the shape or dtype of a weight."""
    weight: Any = layer._parameters["weight"]
    with torch.no_grad():
        found = quantizer(weight)
    if not isinstance(found, Tensor) or found.shape != weight.shape or found.dtype != weight.dtype:
        told = f"shape {tuple(found.shape)} and {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"quantize_: a quantizer must return a weight of shape {tuple(weight.shape)} and {weight.dtype}, got {told}."
        )


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
    args, kwargs = arguments_of(model, batch)
    try:
        _ = model(*args, **kwargs)
    except (TypeError, AttributeError) as error:
        raise TypeError(
            f"quantize_: `model` raised {type(error).__name__} for a batch of `data` of type {type(batch).__name__}: {error}. "
            "A tuple or list gives the arguments that forward needs, and a dict keyword arguments."
        ) from error


def _joined(parts: Sequence[tuple[Tensor, ...]]) -> _Seen:
    samples, lows, highs, totals, counts = zip(*parts, strict=True)
    sample, low, high = torch.cat(samples), torch.stack(lows).amin(), torch.stack(highs).amax()
    mean = torch.stack(totals).sum() / torch.stack(counts).sum().item()
    wide = torch.promote_types(sample.dtype, torch.float32)
    return _Seen(sample, low.to(wide), high.to(wide), mean.to(wide), (0,))


def _quantizer(
    what: str, seen: _Seen | None, bits: Any, method: str, learn: bool, kind: type[WeightQuantizer], name: str, layer: nn.Module
) -> Any:
    if bits is None or seen is None:
        return None
    if not (seen.low.isfinite().all() and seen.high.isfinite().all()):
        raise ValueError(f"quantize_: numbers must be finite, got infinity or NaN in {what}.")
    if callable(bits):
        found = bits(layer._parameters["weight"] if kind is WeightQuantizer else seen.sample, **_asked(bits, name, layer))
        if not isinstance(found, nn.Module):
            raise TypeError(f"quantize_: a function of a tensor must return a module, got {type(found).__name__} for {what}.")
        return found
    low, high = quant_range(bits, signed=kind is WeightQuantizer or bool(seen.low.min() < 0))
    return kind(_scale(seen, low, high, method), low, high, learn)


def _asked(function: Callable[..., Any], name: str, layer: nn.Module) -> dict[str, Any]:
    """The name and the layer, if the function takes them."""
    try:
        known = inspect.signature(function).parameters
    except ValueError:  # a function of C
        return {}
    return {key: value for key, value in (("name", name), ("module", layer)) if key in known}


def _scale(seen: _Seen, low: int, high: int, method: str) -> Tensor:
    """A positive scale for each channel, in float32 at least: one in half precision could be 0."""
    if method == "mean":
        return _positive(2 * seen.mean / math.sqrt(high))
    largest = _positive(torch.maximum(-seen.low, seen.high) / high)
    if method == "max":
        return largest
    if method == "percentile":
        sizes = seen.sample.detach().abs().to(largest.dtype).movedim(seen.dims, [*range(-len(seen.dims), 0)])
        flat = sizes.flatten(-len(seen.dims))
        return _positive(flat.kthvalue(math.ceil(_INSIDE * flat.shape[-1]), -1).values.reshape(largest.shape) / high)
    x = seen.sample.detach().to(largest.dtype)
    best, least = largest, torch.full_like(largest, math.inf)
    for fraction in torch.linspace(0.2, 1.2, 80).tolist() if high > 1 else torch.linspace(0.05, 1.2, 80).tolist():
        error = (fake_quantize(x, largest * fraction, 0, low, high) - x).square().mean(seen.dims, keepdim=bool(largest.ndim))
        best, least = torch.where(error < least, largest * fraction, best), torch.minimum(error, least)
    return best


def _positive(scale: Tensor) -> Tensor:
    """A scale whose reciprocal is finite: 1 for a row of zeros."""
    return torch.where(scale > 2 * torch.finfo(torch.float32).tiny, scale, 1.0)
