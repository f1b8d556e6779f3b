"""Every Function that the packages export, and how it is called."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fullgrad._suite.cases._case import numbers

_IN_FLOAT32 = ("snntorch", "sinabs", "unit_scaling", "torchao", "ToSpikeTimes")

X = numbers(4, 3)
UNIT = torch.sigmoid(X)  # between 0 and 1
LABELS = torch.tensor([0, 2, 1, 1])


@dataclass(frozen=True)
class Published:
    """A class, or a function that makes a class and calls it, with its arguments.

    Args:
        path: The place of the class or function, as ``module:name``.
        arguments: Tensors are differentiated if they are floating; an argument that is called makes a new one at each call.
        method: For a function: ``path`` is a class, ``arguments`` those of its method of that name on ``Class(*made_with)``.
        made_with: See ``method``.
        cotangent_map: The class's map of the gradient, if it is not linear: double backward, which transposes it, is then no
            oracle.
    """

    path: str
    arguments: tuple[Any, ...] = (X,)
    method: str = ""
    made_with: tuple[Any, ...] = ()
    cotangent_map: Callable[..., Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the checks: some classes always compute in float32."""
        return torch.float32 if {self.package, self.name} & {*_IN_FLOAT32} else torch.float64

    @property
    def package(self) -> str:
        """The package's name."""
        return self.path.partition(".")[0].partition(":")[0]

    @property
    def name(self) -> str:
        """The name of the class, and of the method if there is one."""
        return self.path.partition(":")[2] + (f".{self.method}" if self.method else "")

    @property
    def needs_context(self) -> bool:
        """Whether `adopting` has to adopt it: a class that is made at each call, or one that is given a function."""
        return bool(self.method) or any(isinstance(a, FunctionType) for a in self.arguments)

    def load(self) -> Any:
        """The class, function or bound method; an ImportError if the package is not installed."""
        module, _, name = self.path.partition(":")
        found = getattr(importlib.import_module(module), name)
        return getattr(found(*self.made_with), self.method) if self.method else found


@dataclass(frozen=True)
class Made:
    """An argument made at each call: an object that a class writes to."""

    path: str

    def __call__(self) -> Any:
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)()


@dataclass(frozen=True)
class Fixed:
    """A floating tensor that is not differentiated."""

    tensor: Tensor

    def __call__(self) -> Tensor:
        return self.tensor


def _spikingjelly() -> Iterator[Published]:
    surrogate = "spikingjelly.activation_based.surrogate:"
    for name in ("piecewise_quadratic", "piecewise_exp", "sigmoid", "soft_sign", "super_spike", "atan", "nonzero_sign_log_abs"):
        yield Published(surrogate + name, (X, 2.0))
    for name in ("erf", "fake_numerical_gradient", "log_tailed_relu", "rect", "q_pseudo_spike"):
        yield Published(surrogate + name, (X, 2.0))
    yield Published(surrogate + "piecewise_leaky_relu", (X, 1.0, 0.01))
    yield Published(surrogate + "squarewave_fourier_series", (X, 2, 8.0))
    yield Published(surrogate + "s2nn", (X, 4.0, 1.0))
    yield Published(surrogate + "leaky_k_relu", (X, 0.1, 1.0))
    yield Published(surrogate + "deterministic_pass", (X,))
    quantize = "spikingjelly.activation_based.quantize:"
    for name in ("RoundATGF", "CeilATGF", "FloorATGF"):
        yield Published(quantize + name)
    yield Published(quantize + "ClampATGF", (X, -1.0, 1.5))
    yield Published(quantize + "StepQuantizeATGF", (X, 0.3))
    yield Published(quantize + "MultiLevelSpikeCountATGF", (X, 4, -1.0, 5.0))
    yield Published(quantize + "KBitQuantizeATGF", (UNIT, 3))
    yield Published("spikingjelly._ops.surrogate:_SurrogateSpike", (X, 2.0, 0))
    yield Published("spikingjelly.activation_based.layer.online_learning:ReplaceforGrad", (X, X.sin()))


def _snntorch() -> Iterator[Published]:
    surrogate = "snntorch.surrogate:"
    yield Published(surrogate + "StraightThroughEstimator")
    yield Published(surrogate + "Triangular", (X, 1.0))
    yield Published(surrogate + "FastSigmoid", (X, 25))
    yield Published(surrogate + "ATan", (X, 2.0))
    yield Published(surrogate + "Heaviside")
    yield Published(surrogate + "Sigmoid", (X, 5))
    yield Published(surrogate + "SpikeRateEscape", (X, 1.0, 25))
    yield Published(surrogate + "SparseFastSigmoid", (X, 25, 1.0))
    yield Published(surrogate + "CustomSurrogate", (X, _custom_surrogate))
    yield Published("snntorch.functional.quant:StateQuant", (X, Fixed(torch.linspace(-2, 2, 9))))


def _custom_surrogate(x: Tensor, g: Tensor, spikes: Tensor) -> Tensor:
    return g / (25 * x.abs() + 1) ** 2


def _entmax() -> Iterator[Published]:
    yield Published("entmax.activations:SparsemaxFunction", (X, -1, None))
    yield Published("entmax.activations:Entmax15Function", (X, -1, None))
    root_finding = "entmax.root_finding:"
    yield Published(root_finding + "EntmaxBisectFunction", (X, 1.5, -1, 8, True))
    yield Published(root_finding + "SparsemaxBisectFunction", (X, -1, 8, True))
    yield Published(root_finding + "NormmaxBisectFunction", (X, 2, -1, 8))
    yield Published(root_finding + "BudgetBisectFunction", (X, 2, -1, 8))
    losses = "entmax.losses:"
    yield Published(losses + "SparsemaxLossFunction", (X, LABELS, None))
    yield Published(losses + "SparsemaxBisectLossFunction", (X, LABELS, 8))
    yield Published(losses + "Entmax15LossFunction", (X, LABELS, None))
    yield Published(losses + "EntmaxBisectLossFunction", (X, LABELS, 1.5, 8))
    yield Published(losses + "NormmaxBisectLossFunction", (X, LABELS, 2, 8))


def _brevitas() -> Iterator[Published]:
    ops = "brevitas.ops.autograd_ste_ops:"
    yield Published(ops + "ScalarClampSteFn", (X, -1.0, 1.5))
    yield Published(ops + "ScalarClampMinSteFn", (X, -1.0))
    yield Published(ops + "TensorClampSteFn", (X, Fixed(torch.full((4, 3), -1.0)), Fixed(torch.full((4, 3), 1.5))))
    for name in ("RoundToZeroSteFn", "DPURoundSteFn", "CeilSteFn", "FloorSteFn", "BinarySignSteFn", "TernarySignSteFn"):
        yield Published(ops + name)
    yield Published(ops + "RoundSteFn")
    yield Published(ops + "AbsBinarySignGradFn")


def _torchao() -> Iterator[Published]:
    yield Published("torchao.quantization.quant_primitives:_Round")
    yield Published("torchao.sparsity.supermask:GetSubnet", (X, Fixed(torch.zeros(4, 3)), Fixed(torch.ones(4, 3)), 0.5))
    yield Published("torchao.sparsity.supermask:ApplyMask", (X, X.sin()))


def _bitorch() -> Iterator[Published]:
    quantizations = "bitorch.quantizations."
    yield Published(quantizations + "approx_sign:ApproxSignFunction")
    yield Published(quantizations + "dorefa:WeightDoReFaFunction", (X, 15))
    yield Published(quantizations + "dorefa:InputDoReFaFunction", (X, 3))
    yield Published(quantizations + "sign:SignFunction")
    yield Published(quantizations + "ste_heaviside:SteHeavisideFunction")
    yield Published(quantizations + "swish_sign:SwishSignFunction", (X, 5.0))
    yield Published(quantizations + "progressive_sign:ProgressiveSignFunctionTrain", (X, 0.5))
    yield Published("bitorch.layers.pact:PactActFn", (X, torch.tensor([1.5], dtype=torch.float64), 3))
    yield Published("bitorch.layers.qactivation:GradientCancellation", (X, 1.0))


def _norse() -> Iterator[Published]:
    threshold = "norse.torch.functional.threshold:"
    yield Published("norse.torch.functional.superspike:SuperSpike", (X, 10.0))
    yield Published(threshold + "HeaviErfc", (X, 2.0))
    yield Published(threshold + "HeaviTanh", (X, 2.0))
    yield Published(threshold + "HeaviCirc", (X, 2.0))
    yield Published(threshold + "Triangle", (X, 2.0))
    yield Published("norse.torch.functional.spikes_to_times_decoder:ToSpikeTimes", (torch.ones(4, 3, 1), torch.tensor(2)))


def _sinabs() -> Iterator[Published]:
    yield Published("sinabs.activation.quantize:Quantize")
    spikes = "sinabs.activation.spike_generation:"
    yield Published(spikes + "MultiSpike", (X, 1.0, _sinabs_surrogate))
    yield Published(spikes + "MaxSpikeInner", (X, 2, 1.0, _sinabs_surrogate))
    yield Published(spikes + "SingleSpike", (X, 1.0, _sinabs_surrogate))


def _sinabs_surrogate(v_mem: Tensor, spike_threshold: Any) -> Tensor:
    return torch.exp(-((v_mem - spike_threshold) ** 2))


def _unit_scaling() -> Iterator[Published]:
    yield Published("unit_scaling.scale:_ScaledGrad", (X, 0.5, 2.0))
    yield Published("unit_scaling.utils:ScaleTracker", (X, Made("unit_scaling.utils:ScalePair")))
    yield Published("unit_scaling.transforms._track_scales:ScaleTrackingAutogradFunction", (X, Made("builtins:dict")))
    made_with = (4, 3, "nearest")
    yield Published("unit_scaling.formats:FPFormat", (X,), "quantise_fwd", made_with)
    yield Published("unit_scaling.formats:FPFormat", (X,), "quantise_bwd", made_with, lambda g, x: _round_mantissa(g))


def _round_mantissa(g: Tensor) -> Tensor:
    """``g`` rounded to the nearest number of a format with 4 bits of exponent and 3 of mantissa."""
    return Published("unit_scaling.formats:FPFormat", (), "quantise", (4, 3, "nearest")).load()(g)


def _shok() -> Iterator[Published]:
    yield Published("shok.utils.functions.pass_round:PassRound")
    yield Published("shok.utils.functions.scale_grad:ScaleGrad", cotangent_map=lambda g, x: _over_largest(g))
    yield Published("shok.utils.functions.soft_round:SoftRound")


def _over_largest(g: Tensor) -> Tensor:
    """``g`` divided by its largest absolute value, unless all elements are 0."""
    largest = g.abs().max()
    return g / torch.where(largest > 0, largest, 1)


_FAMILIES: tuple[Callable[[], Iterator[Published]], ...] = (
    _spikingjelly,
    _snntorch,
    _entmax,
    _brevitas,
    _torchao,
    _bitorch,
    _norse,
    _sinabs,
    _unit_scaling,
    _shok,
)
PUBLISHED = tuple(published for family in _FAMILIES for published in family())

_RANDOM = "its value, or its derivative, is drawn: no check compares two calls of it"
_SUBCLASS = "takes or returns a tensor subclass in Python, which transforms do not see through"
_DEVICE = "needs a GPU, several processes, or kernels that are not on this machine"
_STATE = "takes a named tuple of a neuron's parameters; its public functions are called in tests/adopting"
LEFT_OUT = {
    "poisson_pass": _RANDOM,
    "StochasticSpikeOperator": _RANDOM,
    "CircDist": _RANDOM,
    "LeakySpikeOperator": "its backward returns one gradient for two inputs, which eager autograd refuses",
    "_RoundToFloat8": "its value is float8, in which torch has no arithmetic to check it with",
    "StochasticRounding": _RANDOM,
    "Logistic": _RANDOM,
    "_GenericLossFunction": "abstract: the base of the losses",
    "InplaceTensorClampSteFn": "changes its input in place, which is refused",
    "_ColwiseBackwardAllReduce": _DEVICE,
    "_GradientToken": "part of spikingjelly's own checkpointing",
    "GeneralisedRoundSteFn": "abstract",
    "STE": "abstract",
    "VectorQuantizerFunction": _DEVICE,
    "QuantiseForward": "made inside of FPFormat.quantise_fwd, which is here",
    "QuantiseBackward": "made inside of FPFormat.quantise_bwd, which is here",
}
LEFT_OUT_MODULES = {
    "norse.torch.functional.adjoint": _STATE,
    "torchao.float8": _SUBCLASS,
    "torchao.quantization.quantize_": _SUBCLASS,
    "torchao.quantization.qat": _SUBCLASS,
    "torchao.sparsity.training": _SUBCLASS,
    "torchao.prototype": _SUBCLASS,
    "spikingjelly.activation_based.distributed": _DEVICE,
    "spikingjelly.activation_based.triton_kernel": _DEVICE,
    "spikingjelly.activation_based.cuda_kernel": _DEVICE,
}


@functools.cache
def found_in(package: str) -> dict[str, type]:
    """The Functions defined in the modules of a package that are imported when its published Functions are loaded."""
    for published in PUBLISHED:
        if published.package == package:
            published.load()
    found: dict[str, type] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for key, value in vars(module).copy().items():
                if inspect.isclass(value) and issubclass(value, torch.autograd.Function) and value.__module__ == name:
                    found[f"{name}:{key}"] = value
    return found
