"""`quantize_`: quantizers for the weights and the inputs of a model's layers, in place."""

import fnmatch
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from fullgrad._core import checks
from fullgrad._core.public import explained
from fullgrad._dispatch import give_rnn_weights, rnn_names, take_rnn_weights
from fullgrad.nn._batches import arguments_of
from fullgrad.nn._observed import METHODS, Observer, Seen, affine_of, scale_of
from fullgrad.nn._quantized_layer import (
    BiasQuantizer,
    DynamicQuantizer,
    InputQuantizer,
    OutputQuantizer,
    QuantizedLayer,
    WeightQuantizer,
    map_inputs,
    quantized_class,
)
from fullgrad.quantizers import quant_range

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_KNOWN = (*_LAYERS, *_TRANSPOSED, *_EMBEDDINGS, *_RECURRENT, nn.MultiheadAttention)
# Layers that return several tensors.
_OF_SEVERAL = (nn.RNNBase, nn.LSTMCell, nn.MultiheadAttention)

Key = str | type[nn.Module]
Bits = int | Callable[..., nn.Module | None] | None
# The quantizers of a layer by the names of its weights, "input" and "output"; "bias" is there if it is rounded.
Quantizers = dict[str, nn.Module | None]


@explained
def quantize_(
    model: nn.Module,
    weights: Bits | Mapping[Key, Bits] = 8,
    activations: Bits | Mapping[Key, Bits] = 8,
    data: Iterable[Any] = (),
    *,
    method: str = "max",
    learn: bool = False,
    skip: Iterable[Key] = (),
    layers: Iterable[type[nn.Module]] = _LAYERS,
    group_size: int | None = None,
    dynamic: bool = False,
    asymmetric: bool = False,
    outputs: Bits | Mapping[Key, Bits] = None,
    biases: bool = False,
    state: Mapping[str, Any] | None = None,
) -> nn.Module:
    r"""Quantize the weights and the inputs of every ``Linear``, ``Conv1d``, ``Conv2d`` and ``Conv3d`` of a model, in place.

    .. math::
        W_q = \operatorname{fake\_quantize}(W, s_W), \quad x_q = \operatorname{fake\_quantize}(x, s_x), \qquad
        s = \frac{\max |x|}{h} \;\text{or}\; \frac{2 \operatorname{mean} |x|}{\sqrt h} \;\text{or}\;
        \operatorname{argmin}_s \operatorname{mean} (x_q - x)^2

    for the largest code *h*. Values and derivatives are those of :func:`fullgrad.quantizers.fake_quantize`, with
    ``inside="exact"`` where scales learn, else ``"rounded"``. A layer gets a module
    ``weight_quantizer`` with a scale per output channel and ``input_quantizer`` with one scale, unsigned where no number of the
    data is negative. They are modules of classes ``WeightQuantizer`` and ``InputQuantizer``, with the attributes ``scale``,
    ``effective_scale`` (what is used), ``zero_point`` (or None), ``quant_min`` and ``quant_max``. Its class becomes one that
    quantizes in its own ``forward``: ``layer.weight`` is the quantized weight, computed at each use, so that writing to it in
    place is lost; ``layer.original_weight`` is the parameter, whose name in ``state_dict`` stays. So ``torch.func``,
    ``torch.compile``, ``torch.export``, ``copy.deepcopy``, ``pickle``, averages of weights and per-sample gradients of Opacus
    work as before. The model is called once with each batch, in evaluation mode and without gradients.
    :func:`unquantize_` undoes it.

    Args:
        model: A module.
        weights: A number of bits, from 2 to 16; or a function of the weight that returns a module, such as
            :class:`fullgrad.nn.LSQ`, or None, and that may also take ``name`` and ``module``, those of the layer; None to leave
            weights as they are. A dict has one of these for each name, pattern or class, as in ``skip``: the first that fits a
            layer counts, and a layer that none fits is left as it is.
        activations: As ``weights``; a function gets numbers of the layer's inputs, in one dimension. None to leave inputs as they
            are.
        data: A list or another iterable of batches, for the scales of activations: a tensor or what else the model takes; a tuple
            or list that begins with the arguments that forward needs, as of inputs and labels; or a dict of keyword arguments.
        method: How a scale is computed: ``"max"``, ``"mean"`` (LSQ's start), ``"mse"`` (the best of 81 scales,
            one of them that of ``"max"``), ``"percentile"`` (99.9% of the numbers are within the range) or ``"histogram"``: as
            ``"mse"``, but of all numbers of the inputs, counted in 16,384 bins and even within each, and not of a sample of
            each batch, so that memory does not grow with the data.
            With 2 or 3 bits, ``"max"`` leaves most weights at 0: start from ``"mse"``.
        learn: Whether scales and zero points learn, with the gradient of LSQ: its factor :math:`1 / \sqrt{N h}` has *N* numbers
            that share a scale: those of a group or an output channel of a weight, of one token of the input of a linear layer,
            an RNN or an attention, of one sample of a convolution. Else they are frozen, and ``requires_grad_`` does not change
            that. They are trained with the
            weights, or by a group of their own: ``"_quantizer." in name`` for their names in ``named_parameters``, a tenth of the
            learning rate, no weight decay. A scale below 1/1024 of the smallest at the start, or a negative one, counts as
            that, by :func:`fullgrad.lower_bound`; ``effective_scale`` of a quantizer has what it uses. Scales of ``"max"`` and
            ``"percentile"`` are then large enough that gradients pass at both ends, with a zero point, too.
        skip: Layers that are left as they are: names as in ``model.named_modules()``, of layers or of modules that have them;
            patterns such as ``"*.head"``; or classes. One that the model does not call, such as ``out_proj`` of a
            ``MultiheadAttention``, has no inputs to find a scale for; ``activations={"*.out_proj": None, "*": 8}`` quantizes its
            weight.
        layers: The classes whose layers are quantized. There may be ``ConvTranspose1d`` to ``ConvTranspose3d``; ``Embedding`` and
            ``EmbeddingBag``, whose inputs are indices, and stay; ``RNN``, ``LSTM``, ``GRU`` and their cells, all whose weights
            are quantized, and the input but not the states; and ``MultiheadAttention``, the weights of whose inputs are
            quantized, and query, key and value with one scale. Such a layer has ``weight_hh_l0_quantizer``,
            ``original_weight_hh_l0`` and so on for each weight.
        group_size: So many numbers of an output channel have a scale of their own, which is of the shape (channels, groups, 1),
            for ``weight.reshape(channels, -1, group_size)``; None for one scale per channel.
        dynamic: Whether the scale of an input is computed in each call, as the largest number of each token (the last dimension,
            or the channels and places of a convolution) over *h*, and counts as constant. It needs no data.
        asymmetric: Whether inputs and outputs have a zero point, with codes from 0 to :math:`2^b - 1` for the numbers from the
            smallest to the largest, and for 0, which is always within the range. It learns if scales do. It is for numbers that
            are seldom negative, as after GELU or SiLU.
        outputs: As ``activations``, for the output of each layer that returns one tensor.
        biases: Whether the biases of linear layers and convolutions are rounded to multiples of :math:`s_x s_W`, as kernels of
            integers have them in 32 bits; the scales get no gradient from that. The bias of a layer whose weight or input is
            not quantized stays, unless it is so for all layers, which is an error.
        state: The ``state_dict`` of a model that was quantized likewise, perhaps inside of ``AveragedModel``,
            ``DistributedDataParallel`` or ``torch.compile``: it is loaded, and no data is needed. Layers, quantizers and bits
            must be those of the state, whose codes say them. ``load_state_dict`` takes the bits of a state.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is not a module, or cannot take a batch; a number of bits is not an integer, ``data`` no iterable of
            batches, ``layers`` or ``skip`` no list, a class cannot be quantized, or a function does not return a module.
        ValueError: A number of bits is out of its range, ``method`` is unknown or has no zero point, the model has no such layer
            or is quantized already, a weight is no floating parameter with elements, or not of whole groups, an embedding has
            sparse gradients, no batch reaches a layer, ``skip`` or a key fits none, a bias has no scale, ``state`` has other
            quantizers, bits, names or shapes, or numbers are not finite. The model is then as before.

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
    _check_arguments(model, (("weights", weights), ("activations", activations), ("outputs", outputs)))
    skip = _listed("skip", skip, "names, patterns or classes of layers")
    layers = _listed("layers", layers, "classes of linear layers, convolutions, embeddings, RNNs or MultiheadAttention", _KNOWN)
    how = _How.checked(method, learn, asymmetric, group_size, state)
    if state is not None:
        state = _named_as(model, state)
        how = how._replace(state=state)
    chosen, found = _chosen(model, layers, skip)
    for_weights = _by_layer(model, "weights", weights, found, chosen)
    for_inputs = _by_layer(model, "activations", activations, found, chosen, but=_EMBEDDINGS)
    for_outputs = _by_layer(model, "outputs", outputs, found, chosen, but=_OF_SEVERAL)
    for name, layer in chosen.items():
        _check_layer(name or "model", layer, for_weights[name] is not None)
    if state is not None:
        _check_layers_of(state, model, layers, skip, chosen, (for_weights, for_inputs, for_outputs))
    observed = {n: bits for n, bits in for_inputs.items() if bits is not None and not (dynamic and not callable(bits))}
    inputs, results = _numbers(model, chosen, observed, for_outputs, data, how)
    made: list[tuple[nn.Module, Quantizers]] = []
    # Parameters that are made in inference mode could never learn, nor be used in training.
    with torch.inference_mode(False), torch.no_grad():
        for name, layer in chosen.items():
            of = repr(name or "model")
            quantizers = _weight_quantizers(of, layer, for_weights[name], name, how)
            bits = for_inputs[name]
            if dynamic and isinstance(bits, int):
                quantizers["input"] = DynamicQuantizer(bits, _input_dims(layer), asymmetric)
            else:
                quantizers["input"] = _of_numbers(f"the input of {of}", InputQuantizer, inputs, bits, name, layer, how)
            bits = for_outputs[name]
            quantizers["output"] = _of_numbers(f"the output of {of}", OutputQuantizer, results, bits, name, layer, how)
            for quantizer in (quantizers["input"], quantizers["output"]):
                if isinstance(quantizer, InputQuantizer):
                    quantizer.dims = _input_dims(layer)
            if state is not None:
                _check_bits_of(state, f"{name}." * bool(name), quantizers)
            if biases and _is_rounded(of, layer, quantizers):
                quantizers["bias"] = BiasQuantizer()
            if any(quantizer is not None for quantizer in quantizers.values()):
                made.append((layer, quantizers))
    if biases and not any("bias" in quantizers for _, quantizers in made) and any(map(_has_bias, chosen.values())):
        raise ValueError(
            "quantize_: `biases` must have a layer with a bias whose weight and input are both quantized, got none: ask for "
            "bits by `weights` and `activations`, or write biases=False."
        )
    try:
        for layer, quantizers in made:
            _give(layer, quantizers)
        if state is not None:
            _check_fits(state, model)
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
        >>> _ = fullgrad.nn.unquantize_(fullgrad.nn.quantize_(model, weights=2, activations=None, method="mse"))
        >>> model[0].weight is weight
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"unquantize_: `model` must be a module, got a value of type {type(model).__name__}.")
    for module in model.modules():
        if isinstance(module, QuantizedLayer):
            layer: Any = module
            own = {f"{name}_quantizer" for name in ("input", "output", *layer._names)}
            layer.__class__ = layer._base
            for key, hook in [*layer._forward_pre_hooks.items()]:
                if hook is _no_fused_kernel:
                    del layer._forward_pre_hooks[key]
            for key in own:
                layer._modules.pop(key, None)
                layer.__dict__.pop(key, None)
            if isinstance(layer, nn.RNNBase):
                give_rnn_weights(layer)
    return model


class _How(NamedTuple):
    """How scales are found."""

    method: str
    learn: bool
    asymmetric: bool
    group_size: int | None
    state: Mapping[str, Any] | None

    @classmethod
    def checked(
        cls, method: str, learn: bool, asymmetric: bool, group_size: int | None, state: Mapping[str, Any] | None
    ) -> "_How":
        """Valid arguments of `quantize_`."""
        checks.choice("quantize_", "method", method, METHODS)
        if asymmetric and method == "mean":
            raise ValueError(
                "quantize_: `method` must not be 'mean' with `asymmetric`, which has no zero point; write 'max' or 'mse'."
            )
        if group_size is not None:
            checks.integer_between("quantize_", "group_size", group_size, 1, 2**31)
        return cls(method, learn, asymmetric, group_size, state)


def _check_arguments(model: Any, bits: Sequence[tuple[str, Any]]) -> None:
    """A module, and numbers of bits or functions."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize_: `model` must be a module, got a value of type {type(model).__name__}.")
    for argument, value in bits:
        _check_bits(argument, value)


def _listed(argument: str, value: Any, what: str, kinds: tuple[type[nn.Module], ...] | None = None) -> tuple[Any, ...]:
    """The items of a list or another iterable; with ``kinds`` they are classes of these, at least one."""
    if isinstance(value, (str, type)) or not isinstance(value, Iterable):
        shown = value.__name__ if isinstance(value, type) else repr(value)
        way_out = f"; write [{shown}]" if isinstance(value, (str, type)) else ""
        raise TypeError(f"quantize_: `{argument}` must be a list of {what}, got {shown}{way_out}.")
    listed = tuple(value)
    if kinds is not None and not listed:
        raise ValueError(f"quantize_: `{argument}` must have at least one class, got none.")
    for item in listed:
        if kinds is not None and not (isinstance(item, type) and issubclass(item, kinds)):
            raise TypeError(f"quantize_: `{argument}` must be {what}, got {item!r}.")
    return listed


def _chosen(
    model: nn.Module, layers: tuple[type[nn.Module], ...], skip: Sequence[Key]
) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """The layers that are quantized, and all of their classes, by name."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, layers)}
    for key in skip:
        _check_key("skip", key, found, model)
    chosen = {name: layer for name, layer in found.items() if not any(_fits(key, name, layer) for key in skip)}
    if not chosen:
        raise ValueError(
            f"quantize_: `model` has no {', '.join(kind.__name__ for kind in layers)}{' but those of `skip`' * bool(skip)}."
        )
    return chosen, found


def _give(layer: nn.Module, quantizers: Quantizers) -> None:
    """Give a layer its quantizers, and the class whose forward calls them."""
    weights = {name: quantizer for name, quantizer in quantizers.items() if name not in ("input", "output")}
    for quantizer in quantizers.values():
        if quantizer is not None:
            quantizer.train(layer.training)
    for weight, quantizer in weights.items():
        if quantizer is not None and weight != "bias":
            _check_quantized(quantizer, layer._parameters[weight])
    layer.__class__ = quantized_class(type(layer), tuple(weights))
    if isinstance(layer, nn.RNNBase):
        take_rnn_weights(layer)
    for name, quantizer in quantizers.items():
        if quantizer is not None:
            layer.register_module(f"{name}_quantizer", quantizer)
        else:  # a plain attribute: a module that is registered as None would take a state that has it, without an error
            setattr(layer, f"{name}_quantizer", None)
    layer.register_forward_pre_hook(_no_fused_kernel)


def _no_fused_kernel(layer: nn.Module, args: Any) -> None:
    """A hook, without which torch's TransformerEncoderLayer calls one kernel with the weights, and no layer."""


def _weights_of(layer: nn.Module) -> list[str]:
    """The names of the weights of a layer."""
    if isinstance(layer, nn.RNNBase):
        return [name for name in rnn_names(layer) if name.startswith("weight")]
    if isinstance(layer, nn.RNNCellBase):
        return ["weight_ih", "weight_hh"]
    if isinstance(layer, nn.MultiheadAttention):
        packed = ("in_proj_weight",), ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        return [*packed[layer.in_proj_weight is None]]
    return ["weight"]


def _input_dims(layer: nn.Module) -> int:
    """The last dimensions of an input that belong to one token, or to the channels and places of one sample."""
    return len(layer.kernel_size) + 1 if hasattr(layer, "kernel_size") else 1  # type: ignore[arg-type]


def _fits(key: Key, name: str, layer: nn.Module) -> bool:
    """Whether a key is the name of a layer or of a module that has it, a pattern of its name, or its class."""
    if isinstance(key, type):
        return isinstance(layer, key)
    return name == key or name.startswith(f"{key}.") or fnmatch.fnmatchcase(name, key)


def _check_key(argument: str, key: Any, layers: Mapping[str, nn.Module], model: nn.Module) -> None:
    """Refuse a key that fits none."""
    if not isinstance(key, str) and not (isinstance(key, type) and issubclass(key, nn.Module)):
        raise TypeError(f"quantize_: `{argument}` must have names, patterns or classes of layers, got {key!r}.")
    if not any(_fits(key, name, layer) for name, layer in layers.items()):
        known = ", ".join(layers) or "none"
        others = sorted({type(m).__name__ for name, m in model.named_modules() if _fits(key, name, m) and not [*m.children()]})
        way_out = f", and classes that `layers` does not have there: {', '.join(others)}" if others else ""
        raise ValueError(f"quantize_: `{argument}` must name layers of `model`, got {key!r}; it has {known}{way_out}.")


def _by_layer(
    model: nn.Module,
    argument: str,
    bits: Any,
    found: Mapping[str, nn.Module],
    chosen: Mapping[str, nn.Module],
    but: tuple[type[nn.Module], ...] = (),
) -> dict[str, Any]:
    """The bits of each layer that is quantized: those of the first key that fits, and None for some classes."""
    if not isinstance(bits, Mapping):
        by_layer = dict.fromkeys(chosen, bits)
    else:
        for key in bits:
            _check_key(argument, key, found, model)
        first = {name: next((key for key in bits if _fits(key, name, m)), None) for name, m in found.items()}
        for key in bits:
            if key not in first.values():
                before = next(first[name] for name, m in found.items() if _fits(key, name, m))
                raise ValueError(
                    f"quantize_: `{argument}` has {key!r} after {before!r}, which fits its layers first; write {key!r} before it."
                )
        by_layer = {name: bits.get(first[name]) for name in chosen}
    return {name: None if isinstance(chosen[name], but) else b for name, b in by_layer.items()}


def _check_layer(name: str, layer: nn.Module, has_weights: bool) -> None:
    """Refuse what is quantized already, and a weight that cannot be."""
    if isinstance(layer, QuantizedLayer):
        raise ValueError(f"quantize_: `model` must not be quantized yet, got {name!r}; call unquantize_ first.")
    if has_weights and isinstance(layer, _EMBEDDINGS) and layer.sparse:
        raise ValueError(
            f"quantize_: {name!r} must not have sparse gradients, which quantizers do not take; build it with sparse=False, or "
            "name the layer in `skip`."
        )
    for key in _weights_of(layer) if has_weights else ():
        weight = layer._parameters.get(key)
        if parametrize.is_parametrized(layer, key) or weight is None:
            raise ValueError(
                f"quantize_: the weight of {name!r} must have no parametrization, such as weight_norm or pruning; remove it "
                "first, or write weights=None."
            )
        if isinstance(weight, nn.parameter.UninitializedParameter):
            raise ValueError(f"quantize_: the weight of {name!r} must be initialized; call the model once before.")
        if weight.is_meta:
            raise ValueError(
                f"quantize_: the weight of {name!r} must have numbers, and is on the device meta; write "
                "model.to_empty(device='cpu') before, and load its numbers, or have them in `state`."
            )
        if not weight.is_floating_point() or not weight.numel():
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


def _weight_quantizers(of: str, layer: nn.Module, bits: Any, layer_name: str, how: _How) -> Quantizers:
    """The quantizers of all weights of a layer."""
    return {name: _of_weight(f"the {name} of {of}", layer, name, bits, layer_name, how) for name in _weights_of(layer)}


def _of_weight(what: str, layer: nn.Module, name: str, bits: Any, layer_name: str, how: _How) -> nn.Module | None:
    """The quantizer of a weight, from its ends and mean by output channel, or by group of it."""
    if bits is None:
        return None
    weight: Any = layer._parameters[name]
    transposed = isinstance(layer, _TRANSPOSED)
    if how.group_size is not None:
        if transposed or weight[0].numel() % how.group_size:
            raise ValueError(
                f"quantize_: {what} must have output channels of whole groups of `group_size` {how.group_size}, got the "
                f"shape {tuple(weight.shape)}; name the layer in `skip`."
            )
        weight = weight.detach().reshape(weight.shape[0], -1, how.group_size)
    elif transposed:  # of shape (inputs, outputs of a group, ...), with the inputs of a group next to each other
        weight = weight.detach().unflatten(0, (layer.groups, -1))
    channels = (0, 1) if how.group_size is not None else (0, 2) if transposed else (0,)
    dims = tuple(d for d in range(weight.ndim) if d not in channels)
    if how.state is not None and not callable(bits):  # which brings its scale and the weight, that may have no numbers yet
        weight = torch.ones_like(weight)
    wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    seen = Seen(weight, wide.amin(dims, True), wide.amax(dims, True), wide.abs().mean(dims, True), dims)
    _check_finite(what, seen)
    if callable(bits):
        return _called(what, bits, layer._parameters[name], layer_name, layer)
    low, high = quant_range(bits)
    scale = scale_of(seen, low, high, how.method, how.learn)
    quantizer = WeightQuantizer(scale.squeeze(1) if transposed else scale, low, high, how.learn)
    quantizer.group_size = how.group_size
    return quantizer


def _of_numbers(
    what: str, kind: type[WeightQuantizer], numbers: Mapping[str, Seen], bits: Any, name: str, layer: nn.Module, how: _How
) -> nn.Module | None:
    """The quantizer of an input or an output, whose numbers come with data or with a state."""
    if bits is None:
        return None
    if how.state is not None:
        return _of_state(what, kind, bits, f"{name}." * bool(name), how)
    seen = numbers[name]
    _check_finite(what, seen)
    if callable(bits):
        return _called(what, bits, seen.sample, name, layer)
    if how.asymmetric:
        low, high = quant_range(bits, signed=False)
        scale, zero_point = affine_of(seen, low, high, how.method, how.learn)
        return kind(scale, low, high, how.learn, zero_point)
    low, high = quant_range(bits, signed=bool(seen.low < 0))
    return kind(scale_of(seen, low, high, how.method, how.learn), low, high, how.learn)


def _of_state(what: str, kind: type[WeightQuantizer], bits: Any, prefix: str, how: _How) -> nn.Module:
    """The quantizer of a state."""
    if callable(bits):
        raise TypeError(f"quantize_: {what} has a function, which needs `data` and not `state`; call load_state_dict after it.")
    prefix += "input_quantizer." if kind is InputQuantizer else "output_quantizer."
    keys = [f"{prefix}scale", *([f"{prefix}zero_point"] if how.asymmetric else [])]
    assert how.state is not None
    for key in keys:
        if key not in how.state:
            told = f"it lacks {key!r}" + "; write `asymmetric` as for that model" * key.endswith("zero_point")
            raise ValueError(f"quantize_: `state` must be that of a model that was quantized likewise, {told}.")
    scale, *zero_point = [how.state[key].detach().clone() for key in keys]
    return kind(scale, *quant_range(bits), how.learn, *zero_point)


def _check_bits_of(state: Mapping[str, Any], prefix: str, quantizers: Mapping[str, nn.Module | None]) -> None:
    """Refuse a state of quantizers that have other numbers of bits than those that are asked for."""
    for name, quantizer in quantizers.items():
        codes = state.get(f"{prefix}{name}_quantizer._extra_state")
        if not isinstance(quantizer, (WeightQuantizer, DynamicQuantizer)) or codes is None:
            continue
        if isinstance(quantizer, DynamicQuantizer) and f"{prefix}{name}_quantizer.scale" in state:
            continue  # of another kind, which `_check_fits` names
        (low, high, _), (least, most, _) = (map(int, c.tolist()) for c in (codes, quantizer.get_extra_state()))
        asked, found = (most - least).bit_length(), (high - low).bit_length()
        if asked != found:
            argument = _argument_of(name)
            raise ValueError(
                f"quantize_: `{argument}` must be the bits of `state`, got {asked} for '{prefix}{name}_quantizer', which has "
                f"{found} there, codes from {low} to {high}; write {argument}={found}, or {{{prefix[:-1]!r}: {found}, '*': "
                f"{asked}}} for this layer alone."
            )
        if isinstance(quantizer, DynamicQuantizer) and quantizer.asymmetric != (low == 0):
            raise ValueError(
                f"quantize_: `asymmetric` must be that of `state`, got {quantizer.asymmetric} for '{prefix}{name}_quantizer', "
                f"which has codes from {low} to {high} there; write asymmetric={low == 0}."
            )


def _argument_of(name: str) -> str:
    """The argument that asks for a quantizer of a name."""
    return {"input": "activations", "output": "outputs", "bias": "biases"}.get(name, "weights")


def _named_as(model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state with the names of a model: without the prefix of a module around it, such as ``module.`` of an average or of
    DistributedDataParallel, or ``_orig_mod.`` of a compiled one, at any level.
    """
    plain = [*model.state_dict()]
    prefix = ""
    if plain and not any(key in state for key in plain):
        prefix = next((key.removesuffix(plain[0]) for key in state if key.endswith(f".{plain[0]}")), "")
    if not all(key.startswith(prefix) or key == "n_averaged" for key in state):  # which an average counts
        return state

    def own(key: str) -> str:
        key = key.removeprefix(prefix)
        return key if any("_orig_mod." in name for name in plain) else key.replace("_orig_mod.", "")

    if all(own(key) == key for key in state):
        return state
    found = OrderedDict((own(key), value) for key, value in state.items() if not prefix or key.startswith(prefix))
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        named = {own(f"{key}.").removesuffix("."): value for key, value in metadata.items() if f"{key}.".startswith(prefix)}
        found._metadata = named  # type: ignore[attr-defined]
    return found


def _check_layers_of(
    state: Mapping[str, Any],
    model: nn.Module,
    layers: tuple[type[nn.Module], ...],
    skip: Sequence[Key],
    chosen: Mapping[str, nn.Module],
    bits: Sequence[Mapping[str, Any]],
) -> None:
    """Refuse a state in which other layers are quantized, by the argument that chooses them."""
    modules = dict(model.named_modules())
    found = {key[: m.start()]: key for key in state if (m := _OF_QUANTIZER.search(key))}
    begin = "quantize_: `state` must be that of a model that was quantized likewise"
    for name, key in found.items():
        if name not in modules or any(of.get(name) is not None for of in bits):
            continue
        kind = type(modules[name]).__name__
        if name in chosen:
            way_out = "write `weights`, `activations` and `outputs` as for that model"
        elif isinstance(modules[name], layers):
            way_out = f"write `skip` as for that model, got {[*skip]!r}"
        else:
            listed = ", ".join([*(cls.__name__ for cls in layers), kind])
            way_out = f"write `layers` as for that model, which has a {kind}: [{listed}]"
        raise ValueError(f"{begin}, it has {key!r}, of a layer that has no quantizers here; {way_out}.")
    for name, layer in chosen.items():
        asked = [of[name] for of in bits if of[name] is not None]
        # Modules of functions may have nothing in a state.
        if name not in found and asked and not any(map(callable, asked)):
            if not found:
                raise ValueError(f"{begin}, and has no quantizers; load it before, and call quantize_ with `data`.")
            kind, others = type(layer).__name__, {type(modules[other]).__name__ for other in found if other in modules}
            way_out = "name it in `skip`" if kind in others else f"leave {kind} out of `layers`"
            raise ValueError(
                f"{begin}, it lacks the quantizers of {name or 'model'!r}, a {kind}; {way_out}, or write `weights` and "
                "`activations` as for that model."
            )


# Names of what quantizers have in a state.
_OF_QUANTIZER = re.compile(r"(?:^|\.)(input|output|bias|\w*weight\w*)_quantizer\.")


def _check_fits(state: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse a state of another model, or of one that was quantized in another way, before any of it is loaded."""
    own = model.state_dict()
    begin = "quantize_: `state` must be that of a model that was quantized likewise"
    for key in [*own, *state]:
        quantizer = _OF_QUANTIZER.search(key)
        if (key in own) != (key in state):
            told = f"it lacks {key!r}" if key in own else f"it has {key!r}, which this model does not"
            way_out = f"; write `{_argument_of(quantizer[1])}`, `dynamic` and `asymmetric` as for that model" if quantizer else ""
            raise ValueError(f"{begin}, {told}{way_out}.")
        if key.endswith("_extra_state") or is_lazy(own[key]) or own[key].shape == state[key].shape:
            continue
        told = f"{key!r} has the shape {tuple(state[key].shape)} there and {tuple(own[key].shape)} here"
        raise ValueError(f"{begin}, {told}{'; write `group_size` as for that model' if quantizer else ''}.")


def _check_finite(what: str, seen: Seen) -> None:
    if not (seen.low.isfinite().all() and seen.high.isfinite().all()):
        raise ValueError(f"quantize_: numbers must be finite, got infinity or NaN in {what}.")


def _called(what: str, function: Callable[..., Any], x: Any, name: str, layer: nn.Module) -> nn.Module | None:
    """The module that a function of the user returns, or None, which gets the name and the layer if it takes them."""
    try:
        known = inspect.signature(function).parameters
    except ValueError:  # a function of C
        known = {}
    found = function(x, **{key: value for key, value in (("name", name), ("module", layer)) if key in known})
    if not isinstance(found, nn.Module | None):
        raise TypeError(f"quantize_: a function of a tensor must return a module or None, got {type(found).__name__} for {what}.")
    return found


def _has_bias(layer: nn.Module) -> bool:
    """Whether a layer is of a kind whose bias can be rounded, and has one."""
    return isinstance(layer, (*_LAYERS, *_TRANSPOSED)) and layer._parameters.get("bias") is not None


def _is_rounded(of: str, layer: nn.Module, quantizers: Mapping[str, nn.Module | None]) -> bool:
    """Whether a layer has a bias that is rounded: of those whose weight and input are quantized."""
    if not _has_bias(layer):
        return False
    weight, x = quantizers["weight"], quantizers["input"]
    if weight is None or x is None:
        return False
    if not isinstance(weight, WeightQuantizer) or not isinstance(x, WeightQuantizer) or weight.group_size is not None:
        raise ValueError(
            f"quantize_: `biases` must have one scale of the input and one of each output channel, which {of} lacks: leave out "
            "`dynamic`, `group_size` and functions, or name the layer in `skip`."
        )
    return True


def _check_quantized(quantizer: nn.Module, weight: Any) -> None:
    """Refuse a module that changes the shape or dtype of a weight."""
    with torch.no_grad():
        found = quantizer(weight)
    if not isinstance(found, Tensor) or found.shape != weight.shape or found.dtype != weight.dtype:
        told = f"shape {tuple(found.shape)} and {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"quantize_: a quantizer must return a weight of shape {tuple(weight.shape)} and {weight.dtype}, got {told}."
        )


def _numbers(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    for_inputs: Mapping[str, Any],
    for_outputs: Mapping[str, Any],
    data: Iterable[Any],
    how: _How,
) -> tuple[dict[str, Seen], dict[str, Seen]]:
    """The numbers of inputs and of outputs of layers, in one pass."""

    def observers(wanted: Mapping[str, Any]) -> dict[str, Observer]:
        counts, sample = how.method == "histogram", how.method in ("mse", "percentile")
        # A function gets a sample.
        made = {name: (counts and not callable(b), sample or callable(b)) for name, b in wanted.items() if b is not None}
        return {name: Observer(*needed) for name, needed in made.items()}

    def look_at_inputs(observer: Observer) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            _ = map_inputs(layer, lambda x: (observer.add(x), x)[1], args, kwargs)

        return hook

    inputs, results = observers(for_inputs), observers(for_outputs)
    if how.state is not None or not (inputs or results):
        return {}, {}
    if isinstance(data, (Tensor, Mapping, str)) or not isinstance(data, Iterable):
        raise TypeError(f"quantize_: `data` must be a list of batches, got a value of type {type(data).__name__}; write [data].")
    handles = [layers[n].register_forward_pre_hook(look_at_inputs(o), with_kwargs=True) for n, o in inputs.items()]
    handles += [layers[n].register_forward_hook(lambda _, __, y, o=o: o.add(y)) for n, o in results.items()]
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
    with torch.inference_mode(False):
        seen = [{name: observer.seen() for name, observer in group.items()} for group in (inputs, results)]
    missing = sorted({name for group in seen for name, found in group.items() if found is None}, key=[*layers].index)
    if missing:
        raise ValueError(
            f"quantize_: `data` must have batches that reach every layer for the scales of activations, got none for "
            f"{', '.join(map(repr, missing))}; name layers that the model does not call in `skip`, or write "
            f"activations={{{missing[0]!r}: None, '*': 8}} or activations=None."
        )
    return seen[0], seen[1]  # type: ignore[return-value]


def _call(model: nn.Module, batch: Any) -> None:
    args, kwargs = arguments_of(model, batch)
    try:
        _ = model(*args, **kwargs)
    except (TypeError, AttributeError) as error:
        raise TypeError(
            f"quantize_: `model` raised {type(error).__name__} for a batch of `data` of type {type(batch).__name__}: {error}. "
            "A tuple or list gives the arguments that forward needs, and a dict keyword arguments."
        ) from error
