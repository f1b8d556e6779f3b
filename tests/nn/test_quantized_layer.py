"""Layers after `quantize_`: every kind of layer with every kind of quantizer computes the formula, and behaves as before."""

import copy
import math
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.swa_utils import AveragedModel

import fullgrad
from fullgrad import quantizers
from fullgrad.nn import _quantize, quantize_, unquantize_

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


class Attention(nn.Module):
    """Query, key and value are one tensor, or parts of it."""

    def __init__(self, **options):
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        y = x[..., : self.layer.kdim] if self.layer.kdim != 8 else x
        return self.layer(x, y, y)[0]


class First(nn.Module):
    """The first output of a layer, of the first step of a sequence for a cell."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x[:, 0] if isinstance(self.layer, nn.RNNCellBase) else x)
        return y[0] if isinstance(y, tuple) else y


# Models whose layer is `.layer`, of inputs of shape (5, 6, 8).
MODELS = {
    "LSTM": lambda: First(nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True)),
    "LSTM with a projection": lambda: First(nn.LSTM(8, 4, batch_first=True, proj_size=2)),
    "GRU": lambda: First(nn.GRU(8, 4, batch_first=True)),
    "RNN": lambda: First(nn.RNN(8, 4, batch_first=True, bias=False)),
    "LSTMCell": lambda: First(nn.LSTMCell(8, 4)),
    "GRUCell": lambda: First(nn.GRUCell(8, 4)),
    "MultiheadAttention": lambda: Attention(),
    "MultiheadAttention of two": lambda: Attention(kdim=6, vdim=6),
    "Linear": lambda: First(nn.Linear(8, 4)),
    "Conv1d": lambda: First(nn.Conv1d(6, 4, 3)),
    "ConvTranspose1d": lambda: First(nn.ConvTranspose1d(6, 4, 3, groups=2)),
}
OPTIONS = {
    "plain": {},
    "zero point": {"asymmetric": True},
    "dynamic": {"dynamic": True},
    "dynamic, zero point": {"dynamic": True, "asymmetric": True},
    "histogram, outputs": {"method": "histogram", "outputs": 6},
    "biases": {"biases": True},
}
# One of each path through the classes has every option.
CASES = [
    (name, o) for o in OPTIONS for name in MODELS if name in ("LSTM", "MultiheadAttention", "ConvTranspose1d") or o == "plain"
]
CASES += [("Linear", "biases"), ("Conv1d", "dynamic, zero point")]
# torch has no batching rule for these with states that are not batched.
NO_BATCHES = ("LSTM with a projection", "GRU", "RNN", "LSTMCell", "GRUCell")


def numbers():
    return torch.randn(5, 6, 8, generator=torch.Generator().manual_seed(1)) + 0.7


def made(name, option, learn=False, **how):
    torch.manual_seed(0)
    model = MODELS[name]()
    data = () if "state" in how else [numbers()]
    return quantize_(model, 4, 8, data, layers=(type(model.layer),), learn=learn, **OPTIONS[option], **how)


def weights_of(layer):
    return [name for name in layer._parameters if "weight" in name and layer._parameters[name] is not None]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_the_output_is_that_of_quantized_numbers(name, option):
    """A plain layer with the rounded weights has the output, of the rounded input."""
    model, x = made(name, option), numbers()
    layer = model.layer
    torch.manual_seed(0)
    plain = MODELS[name]()
    with torch.no_grad():
        for weight in weights_of(plain.layer):
            w = getattr(plain.layer, weight)
            whole = w
            if name.startswith("ConvTranspose"):
                w = w.unflatten(0, (plain.layer.groups, -1))
            dims = [d for d in range(w.ndim) if d not in ((0, 2) if name.startswith("ConvTranspose") else (0,))]
            if OPTIONS[option].get("method") != "histogram":
                w.copy_(quantizers.fake_quantize(w, w.abs().amax(dims, keepdim=True) / 7, 0, -8, 7))
                assert torch.equal(getattr(layer, weight), whole)
            else:
                whole.copy_(getattr(layer, weight))
        if option == "biases" and name in ("Linear", "Conv1d", "ConvTranspose1d"):
            step = (layer.input_quantizer.scale * layer.weight_quantizer.scale).flatten()
            plain.layer.bias.copy_(torch.round(plain.layer.bias / step) * step)
            assert not torch.equal(layer.bias, layer.original_bias)
            torch.testing.assert_close(layer.bias, plain.layer.bias, rtol=1e-6, atol=0)
        quantizer = layer.input_quantizer
        if isinstance(plain, Attention):  # a tensor that is query and key stays one
            y = x[..., : plain.layer.kdim] if plain.layer.kdim != 8 else x
            q = quantizer(x)
            k = q if y is x else quantizer(y)
            expected = plain.layer(q, k, k)[0]
        else:
            x = x[:, 0] if isinstance(plain.layer, nn.RNNCellBase) else x
            y = plain.layer(quantizer(x))
            expected = y[0] if isinstance(y, tuple) else y
        if layer.output_quantizer is not None:
            expected = layer.output_quantizer(expected)
            assert len(expected.unique()) <= 64
        torch.testing.assert_close(model(numbers()), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_copies_pickles_averages_and_states(name, option):
    """Each is a quantized model of its own, with the same output, that trains; a state needs no data."""
    learn = option != "biases"
    model, x = made(name, option, learn), numbers()
    y = model(x)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), AveragedModel(model).module]
    others.append(made(name, option, learn, state=model.state_dict()))
    for other in others:
        assert torch.equal(other(x), y)
        other(x).sum().backward()
        assert all(p.grad is not None for p in other.parameters() if p.requires_grad)
    assert not any(p.grad is not None for p in model.parameters())
    torch.testing.assert_close(model.double().float()(x), y)
    assert torch.equal(unquantize_(model)(x), (plain := unquantize_(others[0]))(x))
    torch.manual_seed(0)
    assert torch.equal(plain(x), MODELS[name]()(x))
    assert [*copy.deepcopy(model).state_dict()] == [*MODELS[name]().state_dict()]


@pytest.mark.parametrize(("name", "option"), [case for case in CASES if case[0] not in NO_BATCHES])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_samples_are_those_of_a_loop(name, option):
    """By `vmap(grad)` of a `functional_call`, for all parameters, the scales and zero points included."""
    model, x = made(name, option, learn=True), numbers()
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(parameters, x):
        return functional_call(model, parameters, (x.unsqueeze(0),)).square().sum()

    found = vmap(grad(loss), (None, 0))(parameters, x)
    for i, sample in enumerate(x):
        torch.testing.assert_close({k: v[i] for k, v in found.items()}, grad(loss)(parameters, sample))
    assert all(v.count_nonzero() for k, v in found.items() if "weight" in k or "scale" in k)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("Linear", "biases"),
        ("ConvTranspose1d", "histogram, outputs"),
        ("MultiheadAttention", "dynamic, zero point"),
        ("GRUCell", "zero point"),
    ],
)
def test_compiled_layers_are_the_same(name, option):
    """One graph, with the gradients of eager code. torch's compiler takes no whole RNN."""
    model, x = made(name, option, learn=True), numbers()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
    found, expected = (
        torch.autograd.grad(m(x).square().sum(), [*model.parameters()], allow_unused=True) for m in (compiled, model)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.long
def test_an_rnn_is_exported_and_compiled():
    """torch's compiler runs it outside of its graphs, with weights that are new in each call; also after `completing`."""
    with fullgrad.completing():
        pass
    model, x = made("LSTM", "zero point", learn=True), numbers()
    compiled, optimizer = torch.compile(model, backend="aot_eager"), torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        compiled(x).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(compiled(x), model(x))
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("low", [-1.5, 0.5])
def test_a_zero_point_uses_all_codes(low):
    """Numbers from -1.5 to 8 have a scale of 9.5 / 255, and 0 stays 0; numbers that are never negative have the zero point 0."""
    x = torch.linspace(low, 8.0, 4001).unsqueeze(0)
    layer = quantize_(nn.Linear(4001, 1), None, 8, [x], asymmetric=True)
    q = layer.input_quantizer
    torch.testing.assert_close(q.scale.detach(), torch.tensor((8.0 - min(low, 0.0)) / 255))
    assert q.zero_point == round(max(0.0, -low) / float(q.scale))
    assert q(torch.zeros(1)) == 0
    assert (q(x) - x).abs().max() <= 0.51 * q.scale
    dynamic = quantize_(nn.Linear(4001, 1), None, 8, dynamic=True, asymmetric=True).input_quantizer
    torch.testing.assert_close(dynamic(x), q(x))
    assert not dynamic(torch.zeros(2, 4)).any()


@pytest.mark.parametrize("method", ["mse", "percentile", "histogram"])
def test_a_zero_point_leaves_outliers_out(method):
    """Ends move together for the least error, and each by itself for a percentile."""
    x = torch.cat([torch.rand(20000) * 3 - 1, torch.tensor([60.0])])
    error = {}
    for how in ("max", method):
        q = quantize_(nn.Linear(20001, 1), None, 4, [x.unsqueeze(0)], asymmetric=True, method=how).input_quantizer
        error[how] = (q(x[:-1]) - x[:-1]).square().mean()
    assert error[method] < error["max"] / 2


def test_a_learned_zero_point_has_the_gradient_of_its_definition():
    """It is -s for numbers outside the range, for the incoming gradient, times the factor of LSQ."""
    layer = quantize_(nn.Linear(3, 1, bias=False), None, 4, [torch.tensor([[-1.0, 0.0, 2.0]])], asymmetric=True, learn=True)
    q = layer.input_quantizer
    (found,) = torch.autograd.grad(q(torch.tensor([-5.0, 0.3, 9.0])).sum(), q.zero_point)
    torch.testing.assert_close(found, -2 * q.scale.detach() / math.sqrt(3 * 15))


@pytest.mark.parametrize("scales", [[1.0], [1e-3, 1.0, 700.0], [0.0, 1e-6, 2.0], [900.0, 1e-9]])
def test_a_histogram_counts_all_numbers_as_its_range_grows(scales):
    """The scale has nearly the least error of the whole data, whatever the order of the batches."""
    data = [torch.randn(3, 5000, generator=torch.Generator().manual_seed(i)) * s for i, s in enumerate(scales)]
    x = torch.cat(data).flatten()
    for bits in (4, 8):
        scale = quantize_(nn.Linear(5000, 1), None, bits, data, method="histogram").input_quantizer.scale.detach()
        low, high = quantizers.quant_range(bits)
        grid = [x.abs().max() / high * f for f in torch.linspace(0.05, 1.2, 200)]
        error = lambda s: (quantizers.fake_quantize(x, s, 0, low, high) - x).square().mean()  # noqa: B023, E731
        assert error(scale) <= 1.05 * min(map(error, grid))


@pytest.mark.parametrize("method", ["max", "mean", "histogram", "mse", "percentile"])
def test_batches_are_not_kept(method):
    """The inputs of earlier batches are freed, but for a sample of at most 16,384 numbers where the method needs one."""
    generator, alive, most = torch.Generator().manual_seed(0), [], []

    class Layers(nn.Sequential):
        def forward(self, x):
            x = x * 1.0
            alive.append(weakref.ref(x.untyped_storage()))
            most.append(sum(storage() is not None for storage in alive))
            return super().forward(x[:300])

    layers = Layers(nn.Linear(8, 20), nn.ReLU(inplace=True))
    data = (torch.randn(400, 8, generator=generator) for _ in range(5))
    quantize_(layers, 4, 8, data, method=method, outputs=8)
    assert max(most) == 1


@pytest.mark.parametrize(("method", "kept"), [("max", 0), ("mean", 0), ("histogram", 0), ("mse", 1), ("percentile", 1)])
def test_memory_does_not_grow_with_the_data_without_a_sample(method, kept):
    """More batches leave as many numbers; a method that needs a sample has one of each batch."""

    def bytes_of(count):
        seen = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_quantize, "scale_of", lambda s, *_: seen.append(s) or torch.ones(()))
            quantize_(nn.Linear(50, 1), None, 8, [torch.ones(1000, 50) * 0.7] * count, method=method)
        return sum(v.untyped_storage().nbytes() for v in seen[0] if isinstance(v, torch.Tensor))

    assert bytes_of(5) - bytes_of(1) == kept * 4 * 2**14 * 4


def test_an_output_that_is_changed_in_place_is_looked_at_before():
    """The sample is a copy: a ReLU in place comes after the layer."""
    torch.manual_seed(0)
    x, plain = torch.randn(50, 4), nn.Linear(4, 3)
    plain.bias.data -= 2.0
    made = [
        quantize_(nn.Sequential(copy.deepcopy(plain), nn.ReLU(inplace=i)), 8, None, [x], outputs=4, method="mse") for i in (0, 1)
    ]
    assert torch.equal(made[0][0].output_quantizer.scale, made[1][0].output_quantizer.scale)


def test_a_function_gets_numbers_with_a_histogram():
    """All of a small batch."""
    kept = []
    data = (torch.randn(64, 8) for _ in range(5))
    quantize_(nn.Linear(8, 1), None, lambda x: kept.append(x.numel()) or nn.Identity(), data, method="histogram")
    assert kept == [5 * 64 * 8]


def test_packed_sequences_are_quantized():
    """The numbers of the steps, as in a padded batch."""
    layer, x = nn.GRU(8, 4, batch_first=True), numbers()
    packed = pack_padded_sequence(x, torch.tensor([6, 4, 3, 2, 1]), batch_first=True)
    for dynamic in (False, True):
        made = quantize_(copy.deepcopy(layer), None, 4, [packed], layers=(nn.GRU,), dynamic=dynamic)
        expected = layer(packed._replace(data=made.input_quantizer(packed.data)))
        torch.testing.assert_close(made(packed)[0].data, expected[0].data)


def test_an_attention_keeps_self_attention():
    """A tensor that is query, key and value is one tensor for torch, in the fast path of evaluation, too."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    model = quantize_(nn.MultiheadAttention(8, 2, batch_first=True), 4, 8, [(x, x, x)], layers=(nn.MultiheadAttention,))
    expected = model(x, key=x, value=x)[0]
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x, x, x)[0], expected.detach())
    separate = model(x, x.clone(), x.clone())[0]
    torch.testing.assert_close(separate, expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_transformer_whose_output_projection_has_no_input():
    """All weights are quantized, and all inputs that the model hands to a layer."""
    x = torch.randn(2, 5, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    kinds = (nn.Linear, nn.MultiheadAttention)
    with pytest.raises(ValueError, match=r"write activations=\{'self_attn.out_proj': None, '\*': 8\}"):
        quantize_(layer, 4, 8, [x], layers=kinds)
    quantize_(layer, 4, {"self_attn.out_proj": None, "*": 8}, [x], layers=kinds)
    assert sum("weight_quantizer.scale" in name for name, _ in layer.named_parameters()) == 4
    assert sum("input_quantizer.scale" in name for name, _ in layer.named_parameters()) == 3


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"biases": True, "dynamic": True}, ValueError, "`biases` must have one scale of the input .* which 'model' lacks"),
        ({"biases": True, "group_size": 4}, ValueError, "`biases` must have one scale"),
        ({"biases": True, "activations": None}, ValueError, "`biases` must have a layer with .* `activations`"),
        ({"biases": True, "weights": None}, ValueError, "`biases` must have a layer with .* `weights`"),
        ({"biases": True, "weights": lambda w: nn.Identity()}, ValueError, "`biases` must have one scale"),
        ({"asymmetric": True, "method": "mean"}, ValueError, "`method` must not be 'mean' with `asymmetric`"),
        ({"outputs": 1}, ValueError, "`outputs` must be from 2 to 16"),
        (
            {"asymmetric": True, "state": {"input_quantizer.scale": torch.ones(())}},
            ValueError,
            "lacks 'input_quantizer.zero_point'",
        ),
        ({"activations": None, "outputs": 8, "state": {}}, ValueError, "has no quantizers"),
        ({"activations": None, "outputs": 8, "data": []}, ValueError, "must have batches that reach every layer"),
    ],
)
def test_an_error_leaves_the_layer_as_it_was(how, error, match):
    """By the name of the argument."""
    model = nn.Linear(8, 4)
    before = repr(model)
    with pytest.raises(error, match=match):
        quantize_(model, **{"data": [torch.randn(3, 8)], **how})
    assert repr(model) == before


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d, nn.LSTM, nn.MultiheadAttention])
def test_a_call_without_an_input_raises_what_the_layer_raises(kind):
    """A call of a quantized layer that lacks an argument, has one too many or None has the error of the layer before."""
    make = {nn.Conv1d: lambda: nn.Conv1d(8, 4, 1), nn.LSTM: lambda: nn.LSTM(8, 4)}.get(kind, lambda: kind(8, 4))
    x = torch.randn(8, 8)
    layer, batch = make(), (x, x, x) if kind is nn.MultiheadAttention else x
    made = quantize_(make(), 8, 8, [batch], layers=(kind,))
    for args, kwargs in (((), {}), ((), {"other": x}), ((None,), {}), ((x,), {"other": x}), ((None, x, x), {})):
        with pytest.raises(Exception) as expected:
            layer(*args, **kwargs)
        with pytest.raises(expected.type) as found:
            made(*args, **kwargs)
        assert str(found.value).split(" - got")[0] == str(expected.value).split(" - got")[0]  # torch shows types of all
    if kind is nn.MultiheadAttention:
        with pytest.raises(TypeError, match=r"^quantize_: `model` raised TypeError .* missing 2 required positional arguments"):
            quantize_(make(), 8, 8, [x], layers=(kind,))


@pytest.mark.parametrize(
    ("tool", "match"),
    [
        (nn.utils.parametrizations.weight_norm, "`weight` must stay a parameter, .* call fullgrad.nn.unquantize_ before it"),
        (nn.utils.parametrizations.spectral_norm, "`weight` must stay a parameter"),
        (lambda layer: prune.l1_unstructured(layer, "weight", 0.5), "`weight_orig` must be a parameter, .* before pruning"),
        (lambda layer: prune.random_unstructured(layer, "bias", 0.5), "`bias_orig` must be a parameter"),
    ],
)
def test_tools_that_take_weights_out_are_refused(tool, match):
    """A weight or bias that is computed is no parameter that weight_norm or pruning could replace; unquantize_ is the way out."""
    layer = quantize_(nn.Linear(8, 4), data=[torch.randn(5, 8)], biases=True)
    with pytest.raises((RuntimeError, TypeError), match=f"^QuantizedLinear: {match}"):
        tool(copy.deepcopy(layer))
    tool(fullgrad.nn.unquantize_(layer))


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_weights_of_an_rnn_that_are_computed_are_refused():
    """By an old or a new weight_norm."""
    for norm in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        layer = norm(nn.LSTM(4, 3), "weight_hh_l0")
        with pytest.raises(ValueError, match="the weight of 'model' must have no parametrization"):
            quantize_(layer, 4, None, layers=(nn.LSTM,))


def test_biases_without_a_weight_or_an_input_stay():
    """A bias has a step where both have one."""
    x = torch.randn(5, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.Linear(4, 2, bias=False))
    quantize_(model, 8, {"0": None, "*": 8}, [x], biases=True)
    assert model[0].bias is model[0]._parameters["bias"]
    assert not torch.equal(model[2].bias, model[2].original_bias)
    integers = model[2].bias / (model[2].input_quantizer.scale * model[2].weight_quantizer.scale.flatten())
    torch.testing.assert_close(integers, integers.round(), rtol=0, atol=1e-2)
    assert fullgrad.nn.unquantize_(model)[2].bias is model[2]._parameters["bias"]


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU, nn.LSTMCell, nn.MultiheadAttention, nn.Linear, nn.Conv1d])
def test_each_weight_is_quantized_once_a_call(kind):
    """Forwards of torch ask for a weight several times; in the next call it is quantized again, and outside of calls, too."""
    layer = kind(4, 4, 1) if kind is nn.Conv1d else kind(4, 4)
    fullgrad.nn.quantize_(layer, activations=None, layers=(kind,))
    quantizers = [m for name, m in layer.named_modules() if name.endswith("_quantizer")]
    calls = []
    for quantizer in quantizers:
        quantizer.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(4, 4)
    arguments = (x, x, x) if kind is nn.MultiheadAttention else (x,)
    first, second = layer(*arguments), layer(*arguments)
    torch.testing.assert_close(first, second)
    assert quantizers
    assert len(calls) == 2 * len(quantizers)
    name = layer._names[0]
    with torch.no_grad():
        layer._parameters[name].mul_(2.0)
    assert getattr(layer, name) is not getattr(layer, name)
    assert len(calls) == 2 * len(quantizers) + 2


def test_a_forward_that_raises_keeps_no_weight():
    """After an error the weight is that of its parameter."""
    layer = fullgrad.nn.quantize_(nn.LSTM(4, 4), activations=None, layers=(nn.LSTM,))
    with pytest.raises(RuntimeError):
        layer(torch.randn(3, 5))
    before = layer.weight_hh_l0.detach().clone()
    with torch.no_grad():
        layer.original_weight_hh_l0.neg_()
    torch.testing.assert_close(layer.weight_hh_l0, -before)
