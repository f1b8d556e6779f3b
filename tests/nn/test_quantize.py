"""`quantize_`: values of the formula, and a model that behaves as before."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

import fullgrad
from fullgrad import quantizers
from fullgrad.nn import quantize_, unquantize_

pytestmark = pytest.mark.short
X16 = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 4))


def batches(count=3):
    torch.manual_seed(1)
    return [torch.randn(8, 2, 6, 6) for _ in range(count)]


@pytest.mark.parametrize(("weights", "activations"), [(4, 8), (8, None), (None, 5)])
def test_the_output_is_that_of_quantized_weights_and_inputs(weights, activations):
    """Each layer computes with rounded tensors, on scales from the largest numbers of all batches."""
    model, data = network(), batches()
    made = quantize_(copy.deepcopy(model), weights, activations, data)
    seen = {i: [] for i in (0, 3, 5)}
    with torch.no_grad():
        for x in data:
            for i, layer in enumerate(model):
                if i in seen:
                    seen[i].append(x)
                x = layer(x)
        x = expected = data[0] * 1.1
        for i, layer in enumerate(model):
            if i in seen:
                if activations is not None:
                    whole = torch.cat(seen[i])
                    low, high = quantizers.quant_range(activations, signed=bool(whole.min() < 0))
                    expected = quantizers.fake_quantize(expected, whole.abs().max() / high, 0, low, high)
                layer = copy.deepcopy(layer)
                if weights is not None:
                    low, high = quantizers.quant_range(weights)
                    scale = layer.weight.flatten(1).abs().amax(1) / high
                    layer.weight = nn.Parameter(quantizers.fake_quantize(layer.weight, scale, 0, low, high, dim=0))
            expected = layer(expected)
        assert torch.equal(made(x), expected)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_methods_of_a_scale(bits):
    """The largest, LSQ's start, and the best: no scale of a fine grid has a smaller error than the last by more than a little."""
    w, high = torch.randn(6, 500), 2 ** (bits - 1) - 1
    found = {}
    for method in ("max", "mean", "mse"):
        layer = nn.Linear(500, 6)
        layer.weight = nn.Parameter(w.clone())
        quantize_(layer, bits, None, method=method)
        found[method] = layer.weight_quantizer.scale
    torch.testing.assert_close(found["max"], w.abs().amax(1, keepdim=True) / high)
    torch.testing.assert_close(found["mean"], 2 * w.abs().mean(1, keepdim=True) / high**0.5)

    def error(s):
        return (quantizers.fake_quantize(w, s, 0, -high - 1, high) - w).square().mean(1)

    grid = torch.stack([error(found["max"] * f) for f in torch.linspace(0.02, 1.5, 1500)]).amin(0)
    assert (error(found["mse"]) <= 1.05 * grid).all()
    assert (error(found["mse"]) <= error(found["max"])).all()


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_the_best_scale_is_not_worse_than_the_largest_number(bits):
    """Of weights, and of inputs by their sample or histogram, which has nearly the error of all numbers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 24000, generator=generator)
    inputs = [x, x.relu(), (x * 5).clamp(0, 6), nn.functional.gelu(x), x * 2 - 1.9]
    error = {}
    for method in ("max", "mse", "histogram"):
        layer = nn.Linear(60, 400)
        layer.weight = nn.Parameter(x.view(400, 60).clone())
        quantize_(layer, bits, None, method=method)
        error[method] = [(layer.weight.detach() - x.view(400, 60)).double().square().mean(1)]
        for v in inputs:
            for asymmetric in (False, True):
                q = quantize_(nn.Linear(24000, 1), None, bits, [v], method=method, asymmetric=asymmetric).input_quantizer
                error[method].append((q(v).double() - v).square().mean())
    for method in ("mse", "histogram"):
        for found, largest in zip(error[method], error["max"], strict=True):
            assert (found <= largest * (1 + (1e-6 if found.ndim else 0.01))).all()


def test_a_row_of_zeros_has_a_scale():
    """Its scale is 1, not 0, whose reciprocal is infinite; so does an input of zeros."""
    for method in ("max", "mean", "mse"):
        layer = nn.Linear(4, 2)
        nn.init.zeros_(layer.weight)
        quantize_(layer, 4, 4, [torch.zeros(3, 4)], method=method)
        assert torch.equal(layer(torch.zeros(1, 4)), layer.bias.unsqueeze(0))


@pytest.mark.parametrize(("options", "shared"), [({}, 16), ({"group_size": 4}, 4)])
def test_scales_learn_with_the_gradient_of_lsq(options, shared):
    """With its factor, of the numbers that share a scale and the largest code."""
    layer = nn.Linear(16, 4, bias=False)
    quantize_(layer, 3, None, method="mean", learn=True, **options)
    weight, scale = layer.original_weight, layer.weight_quantizer.scale
    assert isinstance(scale, nn.Parameter)
    g = torch.randn(4, 16)
    found = torch.autograd.grad((layer.weight * g).sum(), (weight, scale))
    lsq = quantizers.lsq(weight.reshape(4, -1, shared), scale.reshape(4, -1, 1), -4, 3, grad_scale=(shared * 3) ** -0.5)
    expected = torch.autograd.grad((lsq.reshape(4, 16) * g).sum(), (weight, scale))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("layer", "x", "numbers"), [(nn.Linear(16, 4), X16, 16), (nn.Conv2d(3, 4, 3), IMAGES, 3 * 5 * 5)])
def test_the_factor_of_an_input_does_not_depend_on_the_batch(layer, x, numbers):
    """The gradient of a batch is the sum of those of samples."""
    quantize_(layer, None, 4, [x], method="mse", learn=True)
    q = layer.input_quantizer
    factors = [torch.autograd.grad(q(v).sum(), q.scale)[0] / unscaled(q, v) for v in (x, x[:1], x[0])]
    torch.testing.assert_close(torch.stack(factors), torch.full((3,), (numbers * q.quant_max) ** -0.5))
    batch = torch.autograd.grad(q(x).sum(), q.scale)[0]
    torch.testing.assert_close(batch, torch.stack([torch.autograd.grad(q(v).sum(), q.scale)[0] for v in x]).sum())


def unscaled(q, x):
    """The gradient of a scale without the factor of LSQ."""
    scale = q.scale.detach().requires_grad_()
    return torch.autograd.grad(quantizers.fake_quantize(x, scale, 0, q.quant_min, q.quant_max, inside="exact").sum(), scale)[0]


def test_sgd_trains_scales():
    """Without the factor, the sum of the gradients of all numbers that share a scale is too large for one learning rate."""
    losses = {}
    for learn in (False, True):
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
        x = torch.randn(512, 16, generator=generator)
        y = x[:, :1] * x[:, 1:2] + x[:, 2:3]
        quantize_(net, 4, 8, [x], method="mse", learn=learn)
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        for _ in range(150):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
        losses[learn] = (net(x) - y).square().mean().item()
    assert losses[True] < 0.5
    assert losses[True] < 1.5 * losses[False]


@pytest.mark.parametrize("value", [-0.01, 1e-9])
def test_a_state_of_scales_below_their_bound_loads_as_fixed_ones(value):
    """The scale that was used is the one that is used."""
    learned = quantize_(nn.Sequential(nn.Linear(4, 4)), 8, None, learn=True)
    with torch.no_grad():
        learned[0].weight_quantizer.scale[0] = value
    fixed = quantize_(nn.Sequential(nn.Linear(4, 4)), 8, None, state=learned.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(learned(x), fixed(x))


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("method", ["max", "percentile"])
@pytest.mark.parametrize("how", [{}, {"group_size": 3}, {"asymmetric": True}])
def test_the_largest_numbers_are_within_the_range_of_scales_that_learn(bits, method, how):
    """Gradients of weights and inputs pass at the ends: no quotient is above the largest code, by rounding or by a zero point."""
    generator = torch.Generator().manual_seed(0)
    for low in (-1.0, -0.02, 0.0):
        layer = nn.Linear(6, 200, bias=False)
        inputs = [torch.rand(1, 6, generator=generator) * (1 - low) + low for _ in range(8)]
        for x in inputs:
            other = quantize_(copy.deepcopy(layer), bits, bits, [x], method=method, learn=True, **how)
            (found,) = torch.autograd.grad(other.input_quantizer(x.requires_grad_()).sum(), x)
            assert torch.equal(found, torch.ones_like(x))
        (found,) = torch.autograd.grad(other.weight.sum(), other.original_weight)
        assert torch.equal(found, torch.ones_like(found))


def test_functions_make_the_modules():
    """Those of each weight, and of numbers of each input with its ends."""
    seen = []

    def activation(x):
        seen.append(x)
        return fullgrad.nn.Clamp(-1.0, 1.0)

    data, model = batches(), network()
    quantize_(model, lambda w: fullgrad.nn.TWN(dim=[*range(1, w.ndim)]), activation, data)
    assert len(model[3].weight[0].unique()) <= 3
    assert [v.ndim for v in seen] == [1, 1, 1]
    assert seen[0].max() == torch.stack(data).max()
    assert isinstance(model[5].input_quantizer, fullgrad.nn.Clamp)


def test_bits_by_layer_and_what_is_skipped():
    """Keys are names, names of modules around, patterns or classes; the first that fits counts, and None leaves a layer."""

    def bits(model):
        return [getattr(m.weight_quantizer, "quant_max", None) if hasattr(m, "weight_quantizer") else "plain" for m in model]

    def made(*args, **how):
        model = quantize_(nn.Sequential(network()), *args, activations=None, **how)[0]
        return bits([model[i] for i in (0, 3, 5)])

    assert made({"0.5": 3, nn.Linear: 5, "*": 8}) == [127, 15, 3]
    assert made({"0.?": 4}) == [7, 7, 7]
    assert made({"0": 4}) == [7, 7, 7]
    assert made({nn.Conv2d: 4}) == [7, "plain", "plain"]
    assert made({"0.0": None, "*": 4}) == ["plain", 7, 7]
    assert made(4, skip=["0.3"]) == [7, "plain", 7]
    assert made(4, skip=[nn.Conv2d]) == ["plain", 7, 7]
    assert made(4, skip=["*.[35]"]) == [7, "plain", "plain"]


def test_layers_and_what_is_skipped_may_be_any_iterables():
    """Lists, sets and iterators are as tuples."""
    for kind in (list, set, iter):
        model = quantize_(network(), 4, None, layers=kind((nn.Linear, nn.Conv2d)), skip=kind(("3", "5")))
        assert [name for name, m in model.named_modules() if hasattr(m, "weight_quantizer")] == ["0"]


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused(kind):
    """By the name of the layer, where its weight is quantized: fake_quantize has no gradient that is sparse."""
    model = nn.Sequential(kind(10, 4, sparse=True))
    with pytest.raises(ValueError, match=r"^quantize_: '0' must not have sparse gradients.* build it with sparse=False, or name"):
        quantize_(model, 4, None, layers=(kind,))
    assert type(model[0]) is kind


@pytest.mark.parametrize(
    "how", [{}, {"learn": True}, {"asymmetric": True, "method": "histogram"}, {"method": "mse"}, {"outputs": 8, "biases": True}]
)
def test_a_model_is_quantized_in_inference_mode(how):
    """It has the same parameters as without, and can be trained afterwards."""
    model, expected = network(), quantize_(network(), data=batches(), **how)
    with torch.inference_mode():
        quantize_(model, data=batches(), **how)
    assert not any(t.is_inference() for t in model.state_dict(keep_vars=True).values())
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    model(batches()[0]).sum().backward()


def test_functions_get_the_name_and_the_layer():
    """Where they take them, of the weight and of the input."""
    seen = {}

    def weight(w, name, module):
        seen["weight", name] = module
        return nn.Identity()

    def activation(x, *, module, name):
        seen["input", name] = module
        return nn.Identity()

    model = network()
    quantize_(model, weight, {"3": activation}, batches())
    assert seen == {**{("weight", str(i)): model[i] for i in (0, 3, 5)}, ("input", "3"): model[3]}


@pytest.mark.parametrize("learn", [False, True])
def test_a_state_is_loaded_without_data(learn):
    """The scales and the ranges are those of the state, also where the inputs were never negative."""
    model = quantize_(network(), 4, {"3": 8, "*": 6}, batches(), learn=learn)
    other = quantize_(network(), 4, {"3": 8, "*": 6}, learn=learn, state=model.state_dict())
    x = batches()[0] * 2
    assert torch.equal(other(x), model(x))
    assert {n: p.requires_grad for n, p in other.named_parameters()} == {n: p.requires_grad for n, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"weights": 2},
            r"`weights` must be the bits of `state`, got 2 for '0.weight_quantizer', which has 4 .* weights=4, or {'0':",
        ),
        ({"weights": {"5": 3, "*": 4}}, "got 3 for '5.weight_quantizer', which has 4 there, codes from -8 to 7"),
        ({"activations": 4}, "`activations` must be .* got 4 for '0.input_quantizer', which has 6 there, codes from -32 to 31"),
        ({"outputs": 7}, "`outputs` must be .* got 7 for '0.output_quantizer', which has 8 there"),
        ({}, "`weights` must be .* got 8 for '0.weight_quantizer', which has 4 there"),
    ],
)
def test_a_state_of_other_bits_is_refused(options, match):
    """The error names the bits that are asked, those of the state and the argument; the model keeps its class and numbers."""
    state = quantize_(network(), 4, 6, batches(), outputs=8).state_dict()
    model = network()
    before, numbers = repr(model), [p.clone().mul_(2) for p in model.parameters()]
    for p in model.parameters():
        p.data.mul_(2)
    with pytest.raises(ValueError, match=match):
        quantize_(model, **({"weights": 4, "activations": 6, "outputs": 8} | options if options else {}), state=state)
    assert repr(model) == before
    assert all(map(torch.equal, model.parameters(), numbers))


@pytest.mark.parametrize(
    ("one", "other", "argument"),
    [
        ({"outputs": 4}, {}, "outputs"),
        ({}, {"activations": None}, "activations"),
        ({}, {"weights": None}, "weights"),
        ({"dynamic": True}, {}, "activations"),
        ({"dynamic": True}, {"activations": None}, "activations"),
        ({"asymmetric": True}, {}, "activations"),
        ({"biases": True}, {}, "biases"),
        ({"weights": {"3": 4}}, {}, "weights"),
        ({"skip": ["3"]}, {}, "skip"),
        ({"layers": [nn.Linear]}, {}, "layers"),
    ],
)
def test_a_state_of_other_quantizers_is_refused(one, other, argument):
    """By torch, and by name with `state`, in both directions; then the model is as before."""
    made = lambda options, **how: quantize_(network(), **{"weights": 4, "activations": 8, **options}, **how)  # noqa: E731
    for a, b in ((one, other), (other, one)):
        state = made(a, data=batches()).state_dict()
        with pytest.raises(RuntimeError, match=r"(Unexpected|Missing) key\(s\) in state_dict: .*_quantizer\."):
            made(b, data=batches()).load_state_dict(state)
        model = network()
        for p in model.parameters():
            p.data.mul_(2)
        before, numbers = repr(model), copy.deepcopy(model.state_dict())
        with pytest.raises(
            ValueError, match=f"`state` must be that of a model .*(`{argument}`|lacks .*_quantizer.(scale|zero_point)')"
        ):
            quantize_(model, **{"weights": 4, "activations": 8, **b}, state=state)
        assert repr(model) == before
        assert all(map(torch.equal, model.state_dict().values(), numbers.values()))


class Around(nn.Module):
    """A module around a model, as DistributedDataParallel is."""

    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def compiled_inside(model):
    """A compiled layer in a model."""
    model[5] = torch.compile(model[5], backend="eager")
    return model


AROUND = {
    "average": torch.optim.swa_utils.AveragedModel,
    "parallel": Around,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled and parallel": lambda model: Around(torch.compile(model, backend="eager")),
    "compiled layer": compiled_inside,
}


@pytest.mark.parametrize("around", AROUND)
def test_a_state_may_be_of_a_module_around_the_model(around):
    """The prefix of its names is left out, if the model has no such names; the model on the meta device has room for it."""
    model = quantize_(network(), 4, 8, batches())
    state = AROUND[around](model).state_dict()
    with torch.device("meta"):
        empty = network()
    with pytest.raises(ValueError, match=r"is on the device meta; write model.to_empty\(device='cpu'\)"):
        quantize_(empty, 4, 8, state=state)
    for other in (network(), empty.to_empty(device="cpu")):
        with torch.no_grad():
            other[0].weight.fill_(float("nan"))  # as memory that is not initialized may be
        found = quantize_(other, 4, 8, state=state)
        x = batches()[0]
        assert torch.equal(found.eval()(x), quantize_(network(), 4, 8, state=model.state_dict()).eval()(x))
    wrapped = Around(network())
    assert quantize_(wrapped, 4, 8, state=Around(model).state_dict()) is wrapped
    with pytest.raises((ValueError, RuntimeError), match=r"module\.0|Missing key"):
        quantize_(Around(Around(network())), 4, 8, state=Around(model).state_dict())


@pytest.mark.parametrize("around", AROUND)
def test_a_batch_may_have_labels_for_a_module_around_the_model(around):
    """What forward needs is that of the model inside."""
    made = AROUND[around](network())
    quantize_(made, 4, 8, [(x, torch.arange(5)) for x in batches()])


@pytest.mark.parametrize(("bits", "asymmetric"), [(4, False), (8, True), (4, True)])
def test_a_state_of_dynamic_quantizers_brings_its_codes(bits, asymmetric):
    """`load_state_dict` takes them, as those of scales; `quantize_` refuses others than were asked for."""
    made = lambda bits, asymmetric, **how: quantize_(network(), 4, bits, dynamic=True, asymmetric=asymmetric, **how)  # noqa: E731
    model, other = made(bits, asymmetric), made(8, False)
    x = batches()[0]
    assert not torch.equal(model(x), other(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))
    assert repr(model) == repr(other)
    with pytest.raises(ValueError, match=f"must be .* of `state`, .* there.*; write {'activations=4' if bits == 4 else 'asymm'}"):
        made(8, False, state=model.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: AveragedModel(m).module])
def test_copies_pickles_and_averages(copied):
    """Each is a quantized model of its own, with the same outputs, that trains, is averaged and is unquantized."""
    model, x = quantize_(network(), 4, 4, batches(), learn=True), batches()[0]
    other = copied(model)
    assert torch.equal(other(x), model(x))
    other(x).sum().backward()
    assert all(p.grad is not None for p in other.parameters())
    assert not any(p.grad is not None for p in model.parameters())
    average = AveragedModel(model)
    average.update_parameters(other)
    assert torch.equal(average(x), model(x))
    assert [type(m) for m in unquantize_(other)] == [type(m) for m in network()]


def test_the_state_of_a_plain_model_has_the_same_names():
    """So that a checkpoint of it is loaded into a quantized one, but for the scales."""
    plain, model = network(), quantize_(network(), 4, 4, batches())
    assert {*plain.state_dict()} < {*model.state_dict()}
    assert model.load_state_dict(plain.state_dict(), strict=False).unexpected_keys == []
    assert model[0].original_weight is dict(model.named_parameters())["0.weight"]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_no_kernel_of_torch_leaves_the_quantizers_out():
    """In evaluation, torch's encoder layer calls one kernel of the weights if nothing keeps it from that."""
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval(), torch.randn(2, 5, 8)
    quantize_(layer, None, 2, [x], skip=["*.out_proj"])
    with torch.no_grad():
        fast = layer(x)
    torch.testing.assert_close(fast, layer(x).detach())
    unquantize_(layer)
    assert not torch.allclose(fast, layer(x), atol=1e-2)


def test_an_error_in_a_quantizer_is_not_lost():
    """`nn.Module` would return the plain weight for an AttributeError of the property."""

    class Wrong(nn.Module):
        def forward(self, x):
            return x if not torch.is_grad_enabled() else x.nothing

    model = quantize_(nn.Linear(2, 2), lambda w: Wrong(), None)
    with pytest.raises(RuntimeError, match="its `weight_quantizer` raised AttributeError"):
        model(torch.ones(1, 2))


def test_groups_have_scales_of_their_own():
    """Of so many numbers of an output channel, in the order of memory."""
    layer = nn.Conv2d(4, 3, 3, bias=False)
    w = layer.weight.detach().clone()
    quantize_(layer, 4, None, group_size=9)
    groups = w.reshape(3, 4, 9)
    scale = groups.abs().amax(-1, keepdim=True) / 7
    expected = quantizers.fake_quantize(groups, scale, 0, -8, 7).reshape(w.shape)
    assert torch.equal(layer.weight, expected)
    assert quantize_(nn.Linear(8, 2), 4, None, group_size=4, method="mse").weight_quantizer.scale.shape == (2, 2, 1)


def test_dynamic_scales_need_no_data():
    """The largest of each token, or of each sample of a convolution, over the largest code; they count as constant."""
    linear, conv = nn.Linear(6, 2), nn.Conv2d(2, 3, 3)
    x, image = torch.randn(4, 5, 6), torch.randn(4, 2, 5, 5)
    for layer, v, dims in ((linear, x, (-1,)), (conv, image, (-3, -2, -1))):
        expected = layer(quantizers.fake_quantize(v, v.abs().amax(dims, keepdim=True) / 127, 0, -128, 127))
        quantize_(layer, None, 8, dynamic=True)
        assert torch.equal(layer(v), expected)
        g = torch.autograd.grad(layer(v.requires_grad_()).sum(), v)[0]
        unquantize_(layer)
        torch.testing.assert_close(g, torch.autograd.grad(layer(v).sum(), v)[0])
    assert torch.equal(quantize_(nn.Linear(6, 2), None, 8, dynamic=True)(torch.zeros(3, 6)).isnan().any(), torch.tensor(False))


def test_percentiles_leave_outliers_out():
    """One number in two thousand does not stretch the scale."""
    x = torch.linspace(-1, 1, 4001)
    x[7] = 1000.0
    layer = quantize_(nn.Linear(4001, 1), None, 8, [x.unsqueeze(0)], method="percentile")
    assert 0.99 / 127 < layer.input_quantizer.scale < 1.0 / 127


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (lambda: nn.Embedding(7, 6), torch.tensor([[1, 2], [3, 0]])),
        (lambda: nn.EmbeddingBag(7, 6), torch.tensor([[1, 2], [3, 0]])),
        (lambda: nn.ConvTranspose2d(4, 3, 3), torch.randn(2, 4, 5, 5)),
    ],
    ids=["Embedding", "EmbeddingBag", "ConvTranspose2d"],
)
def test_other_layers_by_their_class(layer, x):
    """A row of an embedding and an output channel of a transposed convolution have a scale; indices stay as they are."""
    plain = layer()
    dim = 1 if isinstance(plain, nn.ConvTranspose2d) else 0
    made = quantize_(copy.deepcopy(plain), 4, 8, [x], layers=(type(plain),))
    w = plain.weight.detach()
    scale = w.abs().amax([d for d in range(w.ndim) if d != dim]) / 7
    assert torch.equal(made.weight, quantizers.fake_quantize(w, scale, 0, -8, 7, dim=dim))
    assert (made.input_quantizer is None) == (not x.is_floating_point())
    plain.weight = nn.Parameter(made.weight.detach().clone())
    q = made.input_quantizer or nn.Identity()
    assert torch.equal(made(x), plain(q(x)))


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("method", ["max", "mse"])
def test_each_output_channel_has_a_scale(kind, groups, method):
    """A channel that is larger by a power of two has the same codes, and its neighbors stay as they are, in any group."""
    dims = int(kind.__name__[-2])
    x = torch.randn(2, 6, *[4] * dims)
    for channel in (0, 5, 11):
        plain = kind(6, 12, 2, groups=groups)
        larger, factor = copy.deepcopy(plain), torch.ones(12)
        factor[channel] = 128.0
        with torch.no_grad():
            larger.bias *= factor
            if kind is nn.Conv2d:
                larger.weight *= factor.view(-1, 1, 1, 1)
            else:
                by_group = factor.view(groups, 1, -1, *[1] * dims)
                larger.weight.unflatten(0, (groups, -1)).mul_(by_group)
        made, expected = (
            quantize_(m, 4, 8, [x], layers=(kind,), method=method, learn=True, biases=True) for m in (larger, plain)
        )
        assert made.weight_quantizer.scale.numel() == 12
        torch.testing.assert_close(made(x), expected(x) * factor.view(-1, *[1] * dims), rtol=1e-5, atol=1e-6)
        made(x).sum().backward()
        assert made.weight_quantizer.scale.grad.count_nonzero() == 12


def test_unquantize_restores_the_model():
    """The same parameters, names, classes and outputs, also of a copy; parametrizations of the user stay."""
    model, data = network(), batches()
    weights, before = [*model.parameters()], model(data[0])
    kinds = [type(m) for m in model.modules()]
    quantize_(model, 4, 4, data, learn=True)
    duplicate = copy.deepcopy(model)
    assert torch.equal(duplicate(data[0]), model(data[0]))
    for m in (unquantize_(model), unquantize_(duplicate)):
        assert torch.equal(m(data[0]), before)
        assert [type(m) for m in m.modules()] == kinds
        assert [*m.state_dict()] == [*network().state_dict()]
    assert [p is q for p, q in zip(weights, model.parameters(), strict=True)] == [True] * 6
    own = parametrize.register_parametrization(nn.Linear(2, 2), "weight", nn.Tanh())
    assert parametrize.is_parametrized(unquantize_(own))


def test_a_state_is_loaded_into_a_model_quantized_likewise():
    """Scales are part of it, learned or not."""
    for learn in (False, True):
        model, other = (quantize_(network(), 4, 4, batches(n), learn=learn) for n in (3, 1))
        x = batches()[0]
        assert not torch.equal(model(x), other(x))
        other.load_state_dict(model.state_dict())
        assert torch.equal(model(x), other(x))


def test_gradients_of_samples_are_those_of_a_loop():
    """By `vmap(grad)` of a `functional_call`, for all parameters, scales included."""
    model = quantize_(network(), 3, 4, batches(), learn=True)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    assert len(parameters) == 12
    x = batches()[0]

    def loss(parameters, x):
        return functional_call(model, parameters, (x.unsqueeze(0),)).square().sum()

    found = vmap(grad(loss), (None, 0))(parameters, x)
    for i, sample in enumerate(x):
        torch.testing.assert_close({k: v[i] for k, v in found.items()}, grad(loss)(parameters, sample))
    assert all(v.count_nonzero() for v in found.values())


@pytest.mark.long
def test_compiled_and_exported_models_are_the_same():
    """One graph, with the gradients of eager code; the exported one has an operator of torch for each quantizer."""
    model, x = quantize_(network(), 4, 8, batches(), learn=True), batches()[0]
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    found, expected = (torch.autograd.grad(m(x).square().sum(), [*model.parameters()]) for m in (compiled, model))
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
    assert sum("fake_quantize" in str(node.target) for node in program.graph.nodes) == 6
    assert torch.equal(program.module()(x), model(x))


def test_modes_and_hooks_are_as_before():
    """The pass over the data changes no statistics and leaves no hook; pairs and lists begin with the input."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    model[2].eval()
    quantize_(model, 8, 8, [(torch.randn(3, 4), torch.zeros(3)), [torch.randn(3, 4)]])
    assert model[1].num_batches_tracked == 0
    assert [m.training for m in model] == [True, True, False]
    assert len(model[0]._forward_pre_hooks) == 1


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda m: quantize_(3), TypeError, "`model` must be a module"),
        (lambda m: unquantize_(3), TypeError, "`model` must be a module"),
        (lambda m: quantize_(m, 1), ValueError, "`weights` must be from 2 to 16, got 1"),
        (lambda m: quantize_(m, 4, 2.5), TypeError, "`activations` must be an integer"),
        (lambda m: quantize_(m, 4, None, method="best"), ValueError, "`method` must be one of"),
        (lambda m: quantize_(nn.ReLU()), ValueError, "`model` has no Linear"),
        (lambda m: quantize_(m), ValueError, "`data` must have batches that reach every layer .* '0', '3', '5'"),
        (lambda m: quantize_(m, 4, 4, [batches()[0] / 0]), ValueError, "numbers must be finite"),
        (lambda m: quantize_(m, 4, 4, batches()[0]), TypeError, r"must be a list of batches, got .* Tensor; write \[data\]"),
        (lambda m: quantize_(m, 4, 4, [{"y": batches()[0]}]), TypeError, "raised TypeError for a batch of `data` of type dict"),
        (lambda m: quantize_(m, 4, None, skip=["1"]), ValueError, "`skip` must name layers of `model`, got '1'; it has 0, 3, 5"),
        (
            lambda m: quantize_(m, lambda w: w, None),
            TypeError,
            "a module or None, got Parameter for the weight of '0'",
        ),
        (lambda m: quantize_(m, lambda w: nn.Flatten(0), None), ValueError, r"must return a weight of shape \(3, 2, 3, 3\)"),
        (lambda m: quantize_(m, 4, None, skip=[nn.ReLU]), ValueError, "`skip` must name layers of `model`, got <class .*ReLU"),
        (lambda m: quantize_(m, 4, None, skip=[3]), TypeError, "`skip` must have names, patterns or classes of layers, got 3"),
        (lambda m: quantize_(m, 4, None, skip=nn.Linear), TypeError, r"`skip` must be a list of .* got Linear; write \[Linear\]"),
        (lambda m: quantize_(m, 4, None, skip="3"), TypeError, r"`skip` must be a list of names.* got '3'; write \['3'\]"),
        (lambda m: quantize_(m, 4, None, layers=nn.Linear), TypeError, r"`layers` must be a list of .*; write \[Linear\]"),
        (lambda m: quantize_(m, 4, None, layers=None), TypeError, r"`layers` must be a list of .*, got None\.$"),
        (lambda m: quantize_(m, 4, None, layers=[]), ValueError, r"`layers` must have at least one class, got none"),
        (
            lambda m: quantize_(m, {"*": 4, "3": 8}, None),
            ValueError,
            r"`weights` has '3' after '\*', which fits its layers first; write",
        ),
        (
            lambda m: quantize_(m, {"1": 4, "*": 8}, None),
            ValueError,
            "got '1'; it has .*, and .* `layers` does not have there: ReLU",
        ),
        (lambda m: quantize_(m, {"nowhere": 4}, None), ValueError, "`weights` must name layers .*got 'nowhere'; it has 0, 3, 5"),
        (lambda m: quantize_(m, {"0": 1}, None), ValueError, "`weights` must be from 2 to 16, got 1"),
        (lambda m: quantize_(m, 4, None, group_size=7), ValueError, "whole groups of `group_size` 7, got the shape"),
        (lambda m: quantize_(m, 4, None, layers=(nn.ReLU,)), TypeError, "`layers` must be classes of linear layers, .*ReLU"),
        (lambda m: quantize_(m, 4, 8, state={}), ValueError, "`state` must be that of a model .*and has no quantizers"),
        (lambda m: quantize_(m, 4, nn.Identity, state={}), TypeError, "has a function, which needs `data` and not `state`"),
        (lambda m: quantize_(quantize_(copy.deepcopy(m), 4, None), 4, None), ValueError, "must not be quantized yet, got '0'"),
    ],
)
def test_an_error_leaves_the_model_as_it_was(call, error, match):
    """By the name of the function and the argument, before anything has changed."""
    model = network()
    before = repr(model)
    with pytest.raises(error, match=match):
        call(model)
    assert repr(model) == before
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("keywords", "width", "change", "match"),
    [
        (
            {"group_size": 4},
            4,
            {},
            r"'0.weight_quantizer.scale' has the shape \(4, 1\) there and \(4, 2, 1\) here; write `group_size`",
        ),
        ({}, 3, {}, r"'0.weight' has the shape \(4, 8\) there and \(3, 8\) here\.$"),
        ({}, 4, {"0.bias": None}, "it lacks '0.bias'"),
        ({}, 4, {"1.bias": torch.ones(4)}, "it has '1.bias', which this model does not"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_it_is_loaded(keywords, width, change, match):
    """No number of the model changes."""
    made = lambda width: nn.Sequential(nn.Linear(8, width))  # noqa: E731
    state = {**quantize_(made(4), 4, None).state_dict(), **change}
    model = made(width)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=match):
        quantize_(model, 4, None, state={key: value for key, value in state.items() if value is not None}, **keywords)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_scales_from_channels_of_two_sizes():
    """Means are exact, and a sample has all channels."""
    x = torch.randn(64, 256, 64, generator=torch.Generator().manual_seed(0))
    x[..., 0] *= 0.01
    for method, tolerance in (("mean", 1e-5), ("max", 1e-5), ("mse", 0.2)):
        layer = fullgrad.nn.quantize_(torch.nn.Linear(64, 8), None, 8, [x], method=method)
        expected = {"mean": 2 * x.abs().mean() / 127**0.5, "max": x.abs().max() / 127, "mse": x.abs().max() / 127 * 0.9}[method]
        torch.testing.assert_close(layer.input_quantizer.scale, expected, rtol=tolerance, atol=0)


def test_a_state_brings_its_range():
    """A state is loaded with the range of its codes, whatever the data of the model said."""
    made = lambda bits, x: fullgrad.nn.quantize_(torch.nn.Sequential(torch.nn.Linear(8, 4)), bits, 8, [x])  # noqa: E731
    a, b, x = made(4, torch.randn(64, 8)), made(8, torch.zeros(1, 8)), torch.randn(5, 8)
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(x), b(x))


def test_inputs_by_keyword_and_in_half_precision():
    """A layer may be called by keyword; a scale in half precision is kept in float32."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.layer(input=x)

    model = fullgrad.nn.quantize_(Model(), 8, 8, [torch.randn(4, 8)])
    assert model(torch.randn(2, 8)).shape == (2, 4)
    half = fullgrad.nn.quantize_(torch.nn.Linear(8, 4).half(), 8, 8, [torch.rand(4, 8).half() * 4e-6])
    assert half(torch.rand(2, 8).half()).dtype == torch.float16


def test_layers_that_are_not_called_are_skipped():
    """An attention reads the weight of its last layer itself; batches may be keyword arguments."""
    model, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match=r"got none for .self_attn.out_proj.; name layers that .* `skip`"):
        quantize_(model, 8, 8, [x])
    quantize_(model, 8, 8, [{"src": x}], skip=["self_attn.out_proj"])
    assert [n for n, m in model.named_modules() if hasattr(m, "input_quantizer")] == ["linear1", "linear2"]


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (nn.utils.weight_norm, "must have no parametrization"),
        (lambda m: nn.LazyLinear(3), "must be initialized; call the model once"),
        (lambda m: m.to(torch.complex64), "must be a floating tensor with elements, got torch.complex64"),
        (lambda m: nn.Linear(0, 4), r"got torch.float32 of shape \(4, 0\)"),
        (lambda m: m.to("meta"), "on the device meta"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_no_floating_parameters_are_refused(layer, match):
    """By the name of the layer."""
    with pytest.raises(ValueError, match=f"^quantize_: the weight of 'model' .*{match}"):
        quantize_(layer(nn.Linear(3, 4)), 4, None)


def test_other_parametrizations_are_refused():
    """A weight with a parametrization of another kind is named."""
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    with pytest.raises(ValueError, match="must have no parametrization"):
        fullgrad.nn.quantize_(layer, 8, None)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_scales_that_learn_stay_positive(backend):
    """Adam's steps are larger than a scale of 8 bits; a scale at its bound comes back."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    data = torch.randn(64, 16)
    fullgrad.nn.quantize_(net, data=[data], learn=True)
    run, optimizer = torch.compile(net, backend=backend) if backend else net, torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(6):
        optimizer.zero_grad()
        run(data).square().mean().backward()
        optimizer.step()
    quantizers = [m for m in net.modules() if hasattr(m, "effective_scale")]
    assert len(quantizers) == 4
    assert all(q.effective_scale.min() > 0 for q in quantizers)
    assert any(q.scale.min() < 0 for q in quantizers)
    state, other = net.state_dict(), copy.deepcopy(net)
    other.load_state_dict(state)
    assert torch.equal(other(data), net(data))
    with torch.no_grad():
        quantizers[0].scale.fill_(-0.01)
    (run(data).sum() * -1e3).backward()
    assert quantizers[0].scale.grad is not None


def test_a_copy_with_a_parametrized_bias_is_left_alone():
    """torch would take the weight of a class that the copies share."""
    net, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4)
    nn.utils.parametrize.register_parametrization(net[0], "bias", nn.Softplus())
    before = net(x)
    fullgrad.nn.quantize_(net, 4, None)
    copied = copy.deepcopy(net)
    expected = copied(x)
    assert torch.equal(fullgrad.nn.unquantize_(net)(x), before)
    assert torch.equal(copied(x), expected)
    assert torch.equal(fullgrad.nn.unquantize_(copied)(x), before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_of_a_padding_mask_is_refused():
    """torch's encoder makes one in evaluation; the error says how to build it without."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    encoder, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 5, 8)
    mask = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    skip = [name for name, _ in encoder.named_modules() if name.endswith("out_proj")]
    with pytest.raises(TypeError, match="enable_nested_tensor=False"):
        fullgrad.nn.quantize_(encoder, 4, 8, [{"src": x, "src_key_padding_mask": mask}], skip=skip)


class Both(nn.Module):
    """A model of two inputs and an optional one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, x, y, mask=None):
        assert mask is None
        return self.first(x) + self.second(y)


@pytest.mark.parametrize(
    "form", [lambda x, y: (x, y), lambda x, y: [x, y, torch.arange(5)], lambda x, y: ({"x": x, "y": y}, torch.arange(5))]
)
def test_a_batch_begins_with_what_forward_needs(form):
    """A tuple has as many arguments as forward needs, in order, or a dict of them; labels may follow."""
    x, y = torch.randn(5, 4), torch.randn(5, 2)
    found = Both()
    expected = copy.deepcopy(found)
    fullgrad.nn.quantize_(found, data=[form(x, y)])
    fullgrad.nn.quantize_(expected, data=[{"x": x, "y": y}])
    torch.testing.assert_close(found(x, y), expected(x, y), rtol=0, atol=0)


HOWS = ({"learn": True, "asymmetric": True}, {"dynamic": True}, {"group_size": 2}, {"biases": True}, {"outputs": 4})


@pytest.mark.parametrize("how", HOWS, ids="_".join)
def test_a_graph_of_fx_has_layers_that_train(how):
    """It calls each layer, as it does layers of torch: it holds their parameters, and not what was computed of them."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 4)
    quantize_(model, 4, 4, [x], **how)
    graph = torch.fx.symbolic_trace(model)
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1", "2"]
    assert {*dict(graph.named_parameters())} == {*dict(model.named_parameters())}
    with torch.no_grad():
        for p in graph.parameters():
            p.mul_(1.3)
    assert torch.equal(graph(x), model(x))
    assert torch.equal(torch.fx.symbolic_trace(copy.deepcopy(model))(x), model(x))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_weight_that_fx_would_keep_as_a_constant_is_refused(name):
    """A use of it outside of its layer; a trace would be right until the weight changes."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x) @ torch.atleast_2d(getattr(self.layer, name)).mT

    model = quantize_(Tied(), 4, 4, [torch.randn(5, 4)], biases=True)
    with pytest.raises(NotImplementedError, match=f"^QuantizedLinear: torch.fx .* of its `{name}`.* write torch.compile"):
        torch.fx.symbolic_trace(model)


def test_a_script_of_a_quantized_model_is_refused_by_name():
    """torch would complain about an annotation."""
    model = quantize_(nn.Sequential(nn.Linear(4, 4)), 4, None)
    with pytest.raises(NotImplementedError, match=r"^QuantizedLinear: torch\.jit\.script.* use torch\.compile"):
        torch.jit.script(model)


def test_a_function_may_leave_a_layer_as_it_is():
    """By returning None, as None among numbers of bits."""
    by_name = lambda w, name: fullgrad.nn.LSQ(0.1, bits=4) if name == "0" else None  # noqa: E731
    model = quantize_(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), by_name, None)
    assert [type(layer).__name__ for layer in model] == ["QuantizedLinear", "Linear"]
    model = quantize_(nn.Sequential(nn.Linear(4, 4)), 4, lambda x: None, [torch.randn(3, 4)])
    assert model[0].input_quantizer is None


@pytest.mark.parametrize("learn", [False, True])
def test_gradients_pass_where_the_docstring_says(learn):
    """With scales that learn, for numbers within the ends; else for numbers that are rounded to be within."""
    model = quantize_(nn.Linear(3, 1, bias=False), 4, None, learn=learn)
    with torch.no_grad():
        model.weight_quantizer.scale.fill_(1.0)
        model.original_weight.copy_(torch.tensor([[7.0, 7.3, 7.7]]))
    model(torch.ones(1, 3)).backward()
    assert model.original_weight.grad.tolist() == [[1.0, 0.0 if learn else 1.0, 0.0]]
    assert (model.weight_quantizer.scale.grad is not None) is learn


def test_codes_of_groups():
    """The scale has the shape of groups, so that codes are those of the weight in groups."""
    model = quantize_(nn.Linear(8, 3), 4, None, group_size=4, method="mse")
    quantizer, groups = model.weight_quantizer, model.original_weight.reshape(3, -1, 4)
    integers = quantizers.codes(groups, quantizer.effective_scale, 0, quantizer.quant_min, quantizer.quant_max)
    assert torch.equal((integers * quantizer.effective_scale).reshape(3, 8), model.weight)


@pytest.mark.parametrize("kind", [nn.Linear, nn.Embedding, nn.LSTM])
def test_new_weights_are_refused(kind):
    """They would be written to a copy; with an input alone that is quantized they are taken."""
    model = quantize_(kind(4, 4), 4, None, layers=[kind])
    with pytest.raises(TypeError, match=f"^Quantized{kind.__name__}: reset_parameters must come before quantize_"):
        model.reset_parameters()
    model = quantize_(nn.Linear(4, 4), None, 4, [torch.randn(3, 4)])
    before = model.weight.clone()
    model.reset_parameters()
    assert not torch.equal(model.weight, before)
