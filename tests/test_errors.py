"""Errors of wrong arguments name the function and the argument, as the user wrote them."""

import inspect
import math
import operator
import re

import pytest
import torch

import fullgrad
from fullgrad._dispatch.overrides import _may_be_tensor
from tests.test_public import FUNCTIONS, QUANTIZERS, RELAXATIONS, SAMPLING, SPIKES

NOISE = [f"sampling.{name}" for name in fullgrad.sampling.__all__ if name.endswith("_like")]
NAMES = [*FUNCTIONS, *RELAXATIONS, *SPIKES, *QUANTIZERS, *SAMPLING, *NOISE]

pytestmark = pytest.mark.short
X = torch.rand(16, 16)
# What a function is called with, where a number does not do.
NEEDED = {
    "codebook": torch.tensor([-1.0, 0.0, 1.0]),
    "bits": 4,
    "dim": -1,
    "format": "float8_e4m3fn",
    "bins": 3,
    "low": -1.0,
    "high": 2.0,
    "k": 1,
    "length": 2,
    "levels": [5] * 16,
    "max_value": 1.0,
    "mask": X > 0.5,
    "mu": torch.full((16,), 1 / 16),
    "nu": torch.full((16,), 1 / 16),
    "quant_max": 7,
    "quant_min": -8,
    "soft_start": torch.full((16,), 1 / 16),
    "target": torch.zeros(16, dtype=torch.long),
    "w": X,
}
OF_FUNCTION = {
    **{f"soft.{name}": {"y": X} for name in ("logical_and", "logical_or", "logical_xor")},
    "clamp": {"min_value": 0.0},
    "learned_round": {"v": X},
    "map_grad": {"f": torch.tanh},
    "quantizers.mx_quantize": {"block_size": 16},
    "quantizers.vector_quantize": {"codebook": X},
    "replace_grad": {"surrogate": X},
    "soft.index_select": {"soft_index": torch.full((16,), 1 / 16)},
    "soft.take": {"soft_index": X, "dim": -1},
    "soft.take_along_dim": {"soft_index": torch.rand(16, 2, 16), "dim": -1},
    "soft.where": {"x": X, "y": X},
}
# Their first argument is another operator, a function or a gradient.
OTHERS = {
    "clamp_backward",
    "checkpoint",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "linear_map",
    "grad_replace",
    "st",
    "straight_through",
    "track_scales",
    "with_reference",
}


def signature(name):
    """The first argument, and the others."""
    first, *others = inspect.signature(operator.attrgetter(name)(fullgrad)).parameters.values()
    return first, others


def needed(name):
    """Arguments that the function takes, without those that may be left out."""
    first, others = signature(name)
    known = {p.name: NEEDED.get(p.name, 1.0) for p in others if p.default is p.empty}
    return {first.name: X, **known, **OF_FUNCTION.get(name, {})}


def call(name, changes):
    """Call the function with valid arguments, except for some."""
    return operator.attrgetter(name)(fullgrad)(**{**needed(name), **changes})


@pytest.mark.parametrize("name", [n for n in NAMES if signature(n)[0].annotation is torch.Tensor])
def test_first_argument(name):
    """A first argument that is not a tensor is refused."""
    first, _ = signature(name)
    with pytest.raises(TypeError, match=rf"^{name.split('.')[-1]}: `{first.name}` must be a .*tensor, got a value of type str"):
        call(name, {first.name: "text"})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and "dim" in [p.name for p in signature(n)[1]]])
def test_dimensions(name):
    """The function refuses a dimension that is invalid, several, or none, unless it takes them."""
    errors = []
    for dim in (None, (0, 1), [0], (), (0, 0), 1.0, True, 7, torch.tensor(0)):
        try:
            call(name, {"dim": dim})
        except (TypeError, IndexError, ValueError) as error:
            errors.append(str(error))
    assert errors
    assert all(e.startswith(f"{name.split('.')[-1]}: `") for e in errors), errors


# Only true or not; or taken by torch.
UNCHECKED = {"generator", "memory_format"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and n not in NOISE])
def test_other_arguments(name):
    """Each argument that is not a flag is given an invalid object."""
    call(name, {})
    for parameter in signature(name)[1]:
        if parameter.annotation is bool or parameter.name in UNCHECKED:
            continue
        with pytest.raises((TypeError, ValueError), match=rf"^{name.split('.')[-1]}: `{parameter.name}"):
            call(name, {parameter.name: object()})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and n not in NOISE])
def test_whole_numbers(name):
    """An int works wherever a float does."""

    def value(argument, number):
        torch.manual_seed(0)
        y = call(name, {argument: number})
        return y if isinstance(y, torch.Tensor) else y[0]

    for parameter in signature(name)[1]:
        if isinstance(needed(name).get(parameter.name, parameter.default), float):
            number = FAR_OFF.get(parameter.name, 1)
            torch.testing.assert_close(
                value(parameter.name, number), value(parameter.name, float(number)), rtol=1e-4, atol=1e-4, equal_nan=True
            )


# Whole numbers that are within the limits of an argument, where 1 is not.
FAR_OFF = {"alpha": 3, "gamma": -1, "low": 0, "zeta": 2}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERS and n not in NOISE])
def test_dtypes(name):
    """Tensors without real numbers, or that are not masks, are refused."""
    first, others = signature(name)
    for parameter in (first, *others):
        if parameter is first or _may_be_tensor(parameter.annotation):
            shape = getattr(needed(name).get(parameter.name), "shape", X.shape)
            for dtype in (torch.complex64, torch.float32 if parameter.name == "mask" else torch.bool):
                with pytest.raises((TypeError, ValueError), match=rf"^{name.split('.')[-1]}: `{parameter.name}`"):
                    call(name, {parameter.name: torch.ones(shape, dtype=dtype)})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {*OTHERS, *NOISE}])
def test_shapes(name):
    """A tensor that does not broadcast raises torch's own error, or one that names the function and an argument."""
    first, others = signature(name)
    arguments = "|".join(p.name for p in (first, *others))
    for parameter in others:
        if _may_be_tensor(parameter.annotation):
            wrong = torch.full((7, 5), 0.5)
            with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
                call(name, {parameter.name: wrong > 0 if parameter.name == "mask" else wrong})
            if caught.type is not RuntimeError:
                assert re.match(rf"{name.split('.')[-1]}: [^`]*`({arguments})`", str(caught.value))


FAMILIES = ("forward", "implicit", "losses", "per_sample", "quantizers", "safe", "sampling", "soft", "spikes", "blackbox")
WITH_TENSORS = {
    name: [
        p.name for p in inspect.signature(operator.attrgetter(name)(fullgrad)).parameters.values() if _may_be_tensor(p.annotation)
    ]
    for name in [
        *(n for n in fullgrad.__all__ if inspect.isfunction(getattr(fullgrad, n))),
        *(f"{family}.{n}" for family in FAMILIES for n in getattr(fullgrad, family).__all__),
    ]
    if inspect.isfunction(operator.attrgetter(name)(fullgrad))
}
SEVERAL = [name for name, tensors in WITH_TENSORS.items() if len(tensors) > 1]


@pytest.mark.parametrize("name", SEVERAL)
def test_tensors_of_two_devices(name):
    """Each tensor on a device of its own raises before anything is computed; the error names both arguments and devices, and a
    way out. A number on the CPU may stand next to tensors of another device.
    """
    function, (first, *others) = operator.attrgetter(name)(fullgrad), WITH_TENSORS[name]
    parameters = inspect.signature(function).parameters.values()
    given = {p.name: None for p in parameters if p.default is p.empty}
    given |= dict.fromkeys((first, *others), torch.ones(2, 2, device="meta"))
    rule = f"must be on the device of `{first}`, which is meta, got one on cpu; move it with .to."
    for other in others:
        with pytest.raises(RuntimeError, match=rf"^{re.escape(f'{function.__name__}: `{other}` {rule}')}$"):
            function(**{**given, other: torch.ones(2, 2)})
        told = ""
        try:
            function(**{**given, other: torch.tensor(1.0)})
        except Exception as error:  # of the other arguments, which are not valid
            told = str(error)
        assert rule not in told


def test_devices_of_modules_subclasses_and_compiled_code_are_compared():
    """What a module holds, parameters, plain subclasses of tensors, and calls in compiled code."""
    told = "must be on the device of `x`"
    with pytest.raises(RuntimeError, match=told):
        fullgrad.nn.FakeQuantize(torch.ones(16), learnable=["scale"])(X.to("meta"))
    with pytest.raises(RuntimeError, match=told):
        fullgrad.clamp(torch.nn.Parameter(X), X.to("meta"))

    class Plain(torch.Tensor):
        pass

    with pytest.raises(RuntimeError, match=told):
        fullgrad.clamp(X.as_subclass(Plain), X.to("meta"))
    with pytest.raises(Exception, match=told):
        torch.compile(fullgrad.clamp, backend="eager", fullgraph=True)(X, X.to("meta"))
    with pytest.raises(RuntimeError, match=told):
        torch.func.vmap(fullgrad.clamp)(X, X.to("meta"))


@pytest.mark.parametrize(
    ("call", "name", "argument", "first"),
    [
        (lambda x, m: fullgrad.safe.where(m > 0, torch.log, torch.exp, x), "where", "xs[0]", "condition"),
        (lambda x, m: fullgrad.safe.where(x > 0, torch.add, torch.sub, x, m), "where", "xs[1]", "condition"),
        (lambda x, m: fullgrad.safe.where((x > 0).any(), torch.add, torch.sub, x, m), "where", "xs[1]", "xs[0]"),
        (lambda x, m: fullgrad.nn.VectorQuantizer(3, 2, device="meta")(x), "VectorQuantizer", "x", "codebook"),
        (lambda x, m: fullgrad.nn.VectorQuantizer(3, 2, decay=0.9)(m), "VectorQuantizer", "x", "codebook"),
        (lambda x, m: fullgrad.nn.VectorQuantizer(3, 2, distance="cosine")(m), "VectorQuantizer", "x", "codebook"),
        (
            lambda x, m: fullgrad.nn.VectorQuantizer(3, 2)(x, indices=m[:, 0].long()),
            "VectorQuantizer",
            "indices",
            "codebook",
        ),
    ],
)
@pytest.mark.parametrize("backend", [None, "eager"])
def test_devices_of_functions_of_any_number_of_tensors_and_of_modules(call, name, argument, first, backend):
    """Calls that no wrapper looks at compare devices themselves, also in compiled code, before anything is computed."""
    call = call if backend is None else torch.compile(call, backend=backend)
    with pytest.raises(Exception, match=re.escape(f"{name}: `{argument}` must be on the device of `{first}`, which is ")):
        call(torch.ones(3, 2), torch.ones(3, 2, device="meta"))


# Of every kind, some arguments take some: no numbers, numbers at the ends of ranges, tensors of other shapes and dtypes.
ANYTHING = {
    "None": None,
    "object": object(),
    "text": "text",
    "True": True,
    "list": [1.5],
    "no dimensions": (),
    "dimensions": (0, 1),
    **{str(v): v for v in (0, -1, 10**9, 0.0, -1.5, math.nan, math.inf, -math.inf, 1j)},
    "another shape": torch.full((7, 5), 0.5),
    "another size": torch.full((7,), 0.5),
    "empty": torch.zeros(0),
    "0-dim": torch.tensor(1.0),
    "more dimensions": torch.ones(3, 16, 16),
    "negative": torch.full((16, 16), -1.0),
    "nan": torch.full((16, 16), math.nan),
    "integers": torch.arange(16),
    "far indices": torch.full((16,), 40),
    "complex": torch.ones(16, dtype=torch.complex64),
    "truth values": torch.ones(16, 16, dtype=torch.bool),
}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {*OTHERS, *NOISE}])
def test_every_error_names_the_function_and_an_argument_of_it(name):
    """Errors never name another function that is called inside, nor an argument of it. Errors of
    shapes and dtypes that torch finds are torch's own.
    """
    first, others = signature(name)
    found = {}
    for parameter in (first, *others):
        if parameter.annotation is bool or parameter.name in UNCHECKED:
            continue
        for kind, value in ANYTHING.items():
            try:
                call(name, {parameter.name: value})
            except RuntimeError:
                pass
            except Exception as error:
                found[parameter.name, kind] = f"{type(error).__name__}: {error}"
    right = re.compile(rf"\w+: {name.split('.')[-1]}: .*`({'|'.join(p.name for p in (first, *others))})\b")
    assert found
    assert {what: told for what, told in found.items() if not right.match(told)} == {}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in NOISE])
def test_a_script_is_refused(name):
    """`torch.jit.script` of the function, or of one that calls it, raises an error that names it and says what to do."""
    function = operator.attrgetter(name)(fullgrad)

    def calls(x: torch.Tensor) -> torch.Tensor:
        return function(x)

    for scripted in (function, calls):
        with pytest.raises(NotImplementedError, match=rf"^{function.__name__}: torch\.jit\.script.* use torch\.compile"):
            torch.jit.script(scripted)


@pytest.mark.parametrize(
    "module",
    [
        fullgrad.nn.Round(),
        torch.nn.Sequential(fullgrad.nn.soft.ReLU()),
        fullgrad.nn.FakeQuantize(0.1),
        fullgrad.nn.FunctionModule(fullgrad.spikes.atan),
    ],
    ids=["Round", "ReLU", "FakeQuantize", "FunctionModule"],
)
def test_a_script_of_a_module_is_refused(module, request):
    """The error names the class of the module."""
    with pytest.raises(NotImplementedError, match=rf"^{request.node.callspec.id}: torch\.jit\.script.* use torch\.compile"):
        torch.jit.script(module)


MOST = [
    ("k_bit_quantize", "k", 1023),
    ("affine_k_bit_quantize", "k", 1023),
    ("quantizers.dorefa_activation", "bits", 53),
    ("quantizers.dorefa_weight", "bits", 53),
    ("quantizers.dorefa_gradient", "bits", 24),
    ("quantizers.pact", "bits", 53),
    ("quantizers.tqt", "bits", 24),
    ("soft.round", "neighbor_radius", 1000),
    ("soft.narrow", "length", 16),
    ("soft.topk", "k", 16),
    ("spikes.squarewave_fourier_series", "terms", 1000),
    ("spikes.spike_count", "max_spikes", 2**53),
    ("spikes.multi_spike", "max_spikes", 2**53),
    ("spikes.periodic_exponential", "max_spikes", 2**53),
]


@pytest.mark.parametrize(("name", "argument", "most"), MOST)
def test_counts_from_1_to_the_most(name, argument, most):
    """Both ends are accepted; numbers beyond them, and numbers that are not integers, are refused."""
    for count in (1, most):
        call(name, {argument: count})
    for wrong in (0, most + 1, -1):
        with pytest.raises(ValueError, match=rf"^{name.split('.')[-1]}: `{argument}` must be .*got {wrong}\b"):
            call(name, {argument: wrong})
    rule = rf"^{name.split('.')[-1]}: `{argument}` must be a positive integer, got a value of type"
    for wrong in (1.0, torch.tensor(1.0)):
        with pytest.raises(TypeError, match=rule):
            call(name, {argument: wrong})
    call(name, {argument: torch.tensor(1)})


# --- A way out, for users of torch and numpy --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_an_array_of_numpy_names_torch_from_numpy(name):
    """Every function whose first argument is a tensor."""
    first, _ = signature(name)
    if name in OTHERS or not _may_be_tensor(first.annotation):
        pytest.skip("its first argument is no tensor")
    array = pytest.importorskip("numpy").ones((16, 16))
    with pytest.raises(TypeError, match=r"got a value of type numpy\.ndarray: torch\.from_numpy makes a tensor of it\."):
        call(name, {first.name: array})


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: fullgrad.clamp(X, min=0), r"^clamp: `min` must be None: the lower bound is called `min_value`\.$"),
        (lambda: fullgrad.clamp(X, 0, max=1), r"^clamp: `max` must be None: the upper bound is called `max_value`\.$"),
        (lambda: fullgrad.soft.clamp(X, 0, 1, min=0), r"^clamp: `min` must be None"),
        (lambda: fullgrad.round(X, decimals=2), r"^round: `decimals` must be None: .* round\(100 \* x\) / 100 to two decimals"),
        (lambda: fullgrad.round_st(X, decimals=2), r"^round_st: `decimals` must be None"),
        (
            lambda: fullgrad.st(torch.round),
            r"`fn` must take a parameter `mode`, .*write straight_through\(torch\.round, lambda x: x\)",
        ),
        (lambda: fullgrad.grad_replace(torch.sign), r"parameter `forward`, .*straight_through\(torch\.sign, lambda x: x\)"),
        (lambda: fullgrad.st(lambda x: x), r"got the signature \(x\); write straight_through\(fn, lambda x: x\)"),
        (lambda: fullgrad.soft.where(X > 0, X, X), r"got dtype torch\.bool: write soft\.greater\(x, 0\) for x > 0"),
        (lambda: fullgrad.round([1.0]), r"got a value of type list: torch\.as_tensor makes a tensor of it"),
    ],
)
def test_the_way_out_is_named(call, told):
    """torch's own words for an argument, a function without a mode, a bool condition, a list."""
    with pytest.raises(TypeError, match=told):
        call()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: fullgrad.soft.sort(X, temperature=0.1), "sort: there is no argument `temperature`: it is called `softness`."),
        (lambda: fullgrad.sort_st(X, regularization_strength=0.1), "`regularization_strength`: it is called `softness`."),
        (lambda: fullgrad.soft.sort(X, steepness=10), "`steepness`: `softness` is its reciprocal."),
        (lambda: fullgrad.soft.sort(X, regularization="l2"), "`regularization`: `mode` names the shape: 'smooth' is entropic"),
        (lambda: fullgrad.soft.sort(X, hard=True), "`hard`: sort_st has the hard value, with the gradient of soft.sort."),
        (lambda: fullgrad.soft.sort(X, axis=0), "`axis`: it is called `dim`."),
        (lambda: fullgrad.soft.sort(X, softnes=1), "sort: there is no argument `softnes`: did you mean `softness`?"),
        (lambda: fullgrad.soft.sort(X, thing=1), "`thing`: its arguments are `x`, `dim`,"),
        (lambda: fullgrad.sampling.gumbel_softmax(X, temperature=1), "`temperature`: it is called `tau`."),
        (lambda: fullgrad.quantizers.lsq(X, 0.1, num_bits=4), "lsq: there is no argument `num_bits`: it is called `bits`."),
        (lambda: fullgrad.k_bit_quantize(X, 4, num_bits=4), "`num_bits`: it is called `k`."),
        (lambda: fullgrad.quantizers.fake_quantize(X, 0.1, bits=4), "`bits`: quantizers.quant_range(bits) returns `quant_min`"),
        (lambda: fullgrad.spikes.atan(X, spike_grad=None), "`spike_grad`: the functions of fullgrad.spikes are surrogates"),
        (lambda: fullgrad.spikes.atan(X, v_th=1.0), "`v_th`: it is called `threshold`."),
        (lambda: fullgrad.losses.ndcg(X, X, ats=[10]), "ndcg: there is no argument `ats`: it is called `k`."),
        (lambda: fullgrad.losses.ndcg(X, X, y_true=X), "`y_true`: it is called `relevance`."),
        (lambda: fullgrad.losses.listnet(X, X, padded_value_indicator=-1), "`mask` is True for the elements of a row"),
        (lambda: fullgrad.losses.lambda_loss(X, X, weighing_scheme="x"), "`weighing_scheme`: it is called `scheme`."),
        (lambda: fullgrad.nn.LSQ(num_bits=4), "LSQ: there is no argument `num_bits`: it is called `bits`."),
        (lambda: fullgrad.nn.soft.Sort(tau=1), "Sort: there is no argument `tau`: it is called `softness`."),
        (
            lambda: fullgrad.nn.quantize_(torch.nn.Linear(2, 2), bits=4),
            "`bits`: `weights` and `activations` are numbers of bits.",
        ),
        (
            lambda: fullgrad.implicit.root(torch.sin, X),
            "root: too many positional arguments: it is a decorator of a solver, write",
        ),
    ],
)
def test_words_of_other_packages_are_told_the_keyword(call, told):
    """Also in modules; a keyword that no package has is told the one that is close, or all."""
    with pytest.raises(TypeError, match=re.escape(told)):
        call()


@pytest.mark.parametrize("name", NAMES)
def test_a_keyword_that_is_not_there_is_refused(name):
    """Of every function; the signature shows none but its own."""
    function = operator.attrgetter(name)(fullgrad)
    if inspect.Parameter.VAR_KEYWORD not in {p.kind for p in inspect.signature(function).parameters.values()}:
        with pytest.raises(TypeError, match=rf"{function.__name__}\b.* argument .no_argument"):
            call(name, {"no_argument": 1})


@pytest.mark.parametrize("name", ["sort", "rank"])
def test_methods_of_the_mode_laplace_are_listed(name):
    """A wrong method is told all that there are, lapsum too, which has a mode of its own."""
    function = getattr(fullgrad.soft, name)
    for mode in ("smooth", "laplace"):
        with pytest.raises(ValueError, match=r"`method` must be one of .*'lapsum', got 'nothing'"):
            function(X, method="nothing", mode=mode)
    function(X, method="lapsum", mode="laplace")
