"""`fullgrad.nn`: every class is its function, and behaves as a module does."""

import copy
import inspect
import io
import operator
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import fullgrad
from fullgrad import quantizers, sampling, soft, spikes
from fullgrad.nn import FunctionModule

MODULES = [n for n in fullgrad.nn.__all__ if hasattr(getattr(fullgrad.nn, n), "_function")]
CLASSES = MODULES + [f"soft.{n}" for n in fullgrad.nn.soft.__all__]
X = torch.tensor([[0.3, -1.2, 2.5, 0.9], [1.4, 0.1, -0.6, 0.7]])
# Arguments without a default, those of some classes, and inputs that are no X.
REQUIRED = {
    "k": 2, "bits": 3, "scale": torch.tensor(0.5), "w": 2.0, "b": -1.0, "q": 0.25, "min_value": -1.0, "max_value": 1.5,
    "max_norm": 1.0, "alpha": torch.tensor(1.5), "mask": X > 0, "v": torch.full((2, 4), 0.2), "levels": [5, 5, 5, 5],
    "codebook": torch.linspace(-1, 1, 8), "threshold": 0.3, "log2_threshold": torch.tensor(1.0), "format": "float8_e4m3fn",
    "dim": 0, "length": 2, "bound": 0.2, "bandwidth": 0.5, "f": torch.tanh, "bins": 3, "low": -1.0, "high": 2.0,
}  # fmt: skip
ARGUMENTS = {
    "Clamp": {"min_value": -1.0},
    "MXQuantize": {"block_size": 4},
    "soft.TakeAlongDim": {"dim": -1},
    "VectorQuantize": {"codebook": torch.randn(8, 4, generator=torch.Generator().manual_seed(0))},
}
WEIGHTS = torch.softmax(X, -1)
INPUTS = {
    "soft.EntmaxLoss": (X, torch.tensor([1, 0])), "soft.NormmaxLoss": (X, torch.tensor([1, 0])), "soft.Take": (X[0], WEIGHTS),
    "soft.TakeAlongDim": (X, torch.stack([WEIGHTS, WEIGHTS])), "soft.IndexSelect": (X.T, WEIGHTS[0]),
    "soft.Narrow": (X.T, WEIGHTS[0]), "GumbelSinkhorn": (X @ X.T,), "NVFP4Quantize": (torch.cat([X, X, X, X], -1),),
    "soft.ProjTransportPolytope": (X.T, torch.full((4,), 0.25), torch.full((2,), 0.5)), "BernoulliSpike": (WEIGHTS,),
    "soft.All": (WEIGHTS,), "soft.Any": (WEIGHTS,), "soft.LogicalAnd": (WEIGHTS, WEIGHTS),
    "soft.LogicalOr": (WEIGHTS, WEIGHTS), "soft.LogicalXor": (WEIGHTS, WEIGHTS),
}  # fmt: skip


def made(name):
    """A module, the arguments that it got, and inputs for it."""
    cls = operator.attrgetter(name)(fullgrad.nn)
    required = {k for k, p in inspect.signature(cls._function).parameters.items() if p.default is p.empty}
    arguments = {k: REQUIRED[k] for k in cls._arguments if k in required} | ARGUMENTS.get(name, {})
    return cls(**arguments), arguments, INPUTS.get(name, (X, X.flip(-1))[: len(required - {*cls._arguments})])


@pytest.mark.short
@pytest.mark.parametrize("name", CLASSES)
def test_a_module_is_its_function(name):
    """A module equals its function, and has its name, signature, representation and documentation; it is pickled and copied."""
    module, arguments, inputs = made(name)
    cls = type(module)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        y = module(*inputs)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            torch.manual_seed(0)
            torch.testing.assert_close(other(*inputs), y, rtol=0, atol=0, equal_nan=True)
        torch.manual_seed(0)
        torch.testing.assert_close(cls._function(*inputs, **arguments), y, rtol=0, atol=0, equal_nan=True)
    constructor = inspect.signature(cls).parameters
    function = inspect.signature(cls._function).parameters
    assert [*constructor] == [*cls._arguments, "learnable"]
    assert all(constructor[k] == function[k] and hasattr(module, k) for k in cls._arguments)
    assert f"{cls.__module__}.{cls.__qualname__}" == f"fullgrad.nn.{name}"
    described = [
        line.split(":")[0].strip()
        for line in cls.__doc__.split("Args:")[1].splitlines()
        if line.startswith("    ") and line[4] != " "
    ]
    assert described == [*constructor]
    assert all(f"{k}=" in repr(module) for k in arguments)


def test_arguments_are_attributes():
    """Numbers stay numbers, and may be changed; tensors are buffers; parameters are parameters."""
    scale = nn.Parameter(torch.tensor(0.5))
    module = fullgrad.nn.Clamp(-1.0, scale)
    assert [*dict(module.named_parameters())] == ["max_value"]
    assert module.max_value is scale
    module.min_value = 0.0
    assert torch.equal(module(X), fullgrad.clamp(X, 0.0, scale))
    mask = fullgrad.nn.MaskGrad(X > 0)
    assert [*mask.state_dict()] == ["mask"]
    assert repr(fullgrad.nn.Clamp(-1.0)) == "Clamp(min_value=-1.0)"
    assert repr(module) == "Clamp(min_value=0.0, max_value=Parameter of shape ())"


def test_learnable_arguments_are_parameters():
    """Numbers and tensors, which are copied, may be learnable; their gradients are those of the function's arguments."""
    start = torch.full((2, 1), 0.25)
    module = fullgrad.nn.LSQ(start, -8, 7)
    module(X).square().sum().backward()
    expected = grad(lambda s: quantizers.lsq(X, s, -8, 7).square().sum())(start)
    torch.testing.assert_close(module.scale.grad, expected)
    with torch.no_grad():
        module.scale.zero_()
    assert start.ne(0).all()
    both = fullgrad.nn.ATanSpike(2.0, threshold=0.5, learnable=("alpha", "threshold"))
    assert {k: v.shape for k, v in both.named_parameters()} == {"alpha": (), "threshold": ()}
    assert torch.equal(both(X), spikes.atan(X, 2.0, 0.5))
    assert both.half().alpha.dtype == torch.float16


LEARNED = {
    "LSQ": (0.4,), "PACT": (2.0,), "TQT": (1.0,), "StretchedElastic": (0.5,), "JumpReLU": (0.3, 1.0),
    "AffineKBitQuantize": (2, 2.0, -1.0), "LearnedRound": (torch.full((2, 4), 0.2),),
}  # fmt: skip


@pytest.mark.short
@pytest.mark.parametrize("name", LEARNED)
def test_what_a_definition_learns_learns_by_default(name):
    """A step of an optimizer moves it; ``learnable=()`` keeps it, and an argument that is None is no parameter."""
    cls = getattr(fullgrad.nn, name)
    module = cls(*LEARNED[name])
    learned = {key: p.detach().clone() for key, p in module.named_parameters()}
    assert set(learned) == set(inspect.signature(cls).parameters["learnable"].default) - {"offset"}
    module(X).square().sum().backward()
    torch.optim.Adam(module.parameters(), 0.01).step()
    assert all(not torch.equal(module.get_parameter(key), start) for key, start in learned.items())
    assert [*cls(*LEARNED[name], learnable=()).parameters()] == []
    assert [*dict(fullgrad.nn.LSQ(0.5, offset=0.1).named_parameters())] == ["scale", "offset"]


def test_state_dicts_are_loaded():
    """A module loads the parameters and buffers of another."""
    one, other = (fullgrad.nn.StepQuantize(s, learnable="step") for s in (0.25, 0.5))
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(X), one(X))
    file = io.BytesIO()
    torch.save(nn.Sequential(one), file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(X), one(X))


def test_in_a_network_under_transforms():
    """Modules work in ``nn.Sequential``, as parametrization of a weight, under ``functional_call`` and ``vmap``."""
    network = in_a_network()
    network(X).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    parameters = dict(network.named_parameters())
    per_sample = vmap(grad(lambda p, x: functional_call(network, p, (x,)).sum()), (None, 0))(parameters, X)
    for name, p in parameters.items():
        torch.testing.assert_close(per_sample[name].sum(0), p.grad)


@pytest.mark.long
def test_in_a_compiled_network():
    """A network with modules is one graph."""
    network = in_a_network()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), network(X))


def in_a_network():
    """A layer with a quantized weight and an activation that learns."""
    network = nn.Sequential(nn.Linear(4, 3), fullgrad.nn.soft.ReLU(0.2, learnable="softness"), fullgrad.nn.ClipGrad(1.0))
    quantize = fullgrad.nn.StepQuantize(0.1, learnable="step")
    nn.utils.parametrize.register_parametrization(network[0], "weight", quantize)
    torch.testing.assert_close(network[0].weight, fullgrad.step_quantize(network[0].parametrizations.weight.original, 0.1))
    return network


def test_noise_is_given_to_the_call():
    """Noise changes with the input, so the module does not keep it; ``training`` is the module's own."""
    module = fullgrad.nn.GumbelSoftmax(0.5, hard=True)
    noise = sampling.gumbel_like(X)
    assert torch.equal(module(X, noise=noise), sampling.gumbel_softmax(X, 0.5, True, noise=noise))
    gate = fullgrad.nn.HardConcrete(0.5).eval()
    assert torch.equal(gate(X), sampling.hard_concrete(X, 0.5, training=False))


@pytest.mark.short
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fullgrad.nn.LSQ(), TypeError, "LSQ: missing a required argument: 'scale'"),
        (lambda: fullgrad.nn.LSQ(4), ValueError, "^LSQ: `scale` must not be .* got 4: write bits=4 behind the scale, or 4.0"),
        (lambda: fullgrad.nn.StretchedElastic(4), ValueError, "^StretchedElastic: .* write levels=4 behind the scale, or 4.0"),
        (lambda: FunctionModule(quantizers.lsq, scale=4, learnable="scale"), ValueError, "write bits=4 behind the scale"),
        (lambda: fullgrad.nn.Clamp(low=1.0), TypeError, "Clamp: there is no argument `low`: it is called `min_value`"),
        (
            lambda: fullgrad.nn.soft.Abs(learnable="width"),
            ValueError,
            "`learnable` must be among softness, got 'width'",
        ),
        (
            lambda: fullgrad.nn.ATanSpike(2.0, learnable=True),
            TypeError,
            "ATanSpike: `learnable` must be a name, or a list of names, among alpha, .*, got True",
        ),
        (lambda: fullgrad.nn.soft.Abs(learnable="mode"), TypeError, r"arguments that may be tensors \(softness\), got 'mode'"),
        (
            lambda: fullgrad.nn.Clamp(learnable="min_value"),
            TypeError,
            "`min_value` must be a number .* learnable, got None",
        ),
        (lambda: fullgrad.nn.Nothing(), AttributeError, "Nothing"),
        (lambda: fullgrad.nothing, AttributeError, "module 'fullgrad' has no attribute 'nothing'"),
    ],
)
def test_errors_name_the_rule_and_what_was_found(make, error, message):
    """Bad arguments raise."""
    with pytest.raises(error, match=message):
        make()


def test_subclasses_have_their_own_constructor():
    """A class may be derived from, and its signature is then that of the subclass."""

    class Ternary(fullgrad.nn.Clamp):
        def __init__(self, width: float):
            super().__init__(-width, width)

    assert [*inspect.signature(Ternary).parameters] == ["width"]
    assert isinstance(Ternary(1.0), FunctionModule)
    assert torch.equal(Ternary(1.0)(X), soft.clamp(X, -1.0, 1.0, mode="hard"))
