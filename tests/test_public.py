"""The public names and the promises that hold for all of them."""

import importlib
import inspect
import operator
import re

import pytest
import torch

import fullgrad
from fullgrad._core.listed import listed
from fullgrad._suite.cases import CASES

ALIASES = {"soft.equal", "soft.ge", "soft.gt", "soft.le", "soft.lt", "soft.ne", "equal_st", "ranking_st"}
# They make operators of other packages' classes and of torch's operators, and functions of functions.
TOOLS = {"adopt", "adopting", "closure_convert", "completing"}
FUNCTIONS = [n for n in fullgrad.__all__ if inspect.isfunction(getattr(fullgrad, n)) and n not in ALIASES | TOOLS]
RELAXATIONS = [f"soft.{name}" for name in fullgrad.soft.__all__ if f"soft.{name}" not in ALIASES]
SPIKES = [f"spikes.{name}" for name in fullgrad.spikes.__all__ if inspect.isfunction(getattr(fullgrad.spikes, name))]
SPIKES.remove("spikes.from_slope")  # which makes operators
HELPERS = ("codebook_codes", "codes", "float_codes", "levels", "quant_range")  # without a derivative
QUANTIZERS = [
    f"quantizers.{name}"
    for name in fullgrad.quantizers.__all__
    if inspect.isfunction(getattr(fullgrad.quantizers, name)) and name not in HELPERS
]
SAMPLING = [f"sampling.{name}" for name in fullgrad.sampling.__all__ if not name.endswith("_like")]  # those draw noise alone
SOLVERS = [f"implicit.{name}" for name in ("anderson", "bisection", "cg", "gmres", "newton")]  # without a derivative
PER_SAMPLE = [f"per_sample.{name}" for name in fullgrad.per_sample.__all__]  # they make functions, and have no derivative
IMPLICIT = [f"implicit.{name}" for name in fullgrad.implicit.__all__ if f"implicit.{name}" not in SOLVERS]
OTHERS = [f"{module}.{name}" for module in ("blackbox", "losses", "safe") for name in getattr(fullgrad, module).__all__]
KEYWORDS = ("generator", "ignore_index", "reduction")  # of random operators, and of losses as in torch
BASES = ("Elementwise", "Function")
CLASSES = [n for n in fullgrad.__all__ if inspect.isclass(getattr(fullgrad, n)) and n not in BASES and n not in TOOLS]
OPERATORS = [name for name in CLASSES if issubclass(getattr(fullgrad, name), fullgrad.Function)]


def test_every_public_operator_has_a_case():
    """A public name without a case is a failure, and so is a case for a name that is not public."""
    covered = {name for case in CASES for name in case.covers}
    assert covered == {*FUNCTIONS, *CLASSES, *RELAXATIONS, *SPIKES, *QUANTIZERS, *SAMPLING, *IMPLICIT, *OTHERS}


def test_names_of_cases_are_unique():
    """Names are unique, as reports identify cases by them."""
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    "name", [*FUNCTIONS, *RELAXATIONS, *SPIKES, *QUANTIZERS, *SAMPLING, *IMPLICIT, *OTHERS, *SOLVERS, *PER_SAMPLE]
)
def test_public_function_is_documented(name):
    """Every function has a signature without ``*args``, types for every argument, and the sections of a definition."""
    function = operator.attrgetter(name)(fullgrad)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind not in variadic or name in (
            "checkpoint",
            "implicit.solve",
            "safe.where",
        )  # arguments of another function
        assert parameter.kind is not parameter.POSITIONAL_ONLY
        assert parameter.kind is parameter.KEYWORD_ONLY or parameter.name not in KEYWORDS
        assert parameter.annotation is not parameter.empty
    for section in (".. math::", "Args:", "Returns:", "Raises:", "Example:", ">>>", "Source:"):
        assert section in (function.__doc__ or ""), f"{name} lacks {section}"


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_class_has_the_signature_of_its_forward(name):
    """Editors and keywords see the arguments of ``forward`` on ``apply``."""
    operator = getattr(fullgrad, name)
    assert [*inspect.signature(operator.apply).parameters] == [*inspect.signature(operator.forward).parameters]


ESTIMATORS = ("replace_grad", "st", "grad_replace", "straight_through")
RULES = ("custom_jvp", "custom_vjp", "custom_gradient", "linear_map", "checkpoint", *IMPLICIT)
REFERENCES = ("with_reference", "with_reference and a backward")
VECTORS = tuple(f"quantizers.vector_quantize, {kind}" for kind in ("identity", "rotation", "given"))
# pass_round is called through its class, the next through a lambda that computes with its input; the rest takes floats only.
UNCHECKED = (
    "pass_round",
    "clamp_backward",
    "clip_grad by a tensor",
    "mask_grad",
    "ScaleTracker",
    "track_scales",
    "safe.where",
    *ESTIMATORS,
    *RULES,
    *REFERENCES,
    *VECTORS,
)


def params(cases):
    """Variants of a case run with the exhaustive tests, and what repeats an operator class with the long ones, as everywhere."""

    def marks(case):
        return [pytest.mark.exhaustive] if case.exhaustive else [pytest.mark.long] if case.long else []

    return [pytest.param(case, id=case.name, marks=marks(case)) for case in cases]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lsq", "write fullgrad.quantizers.lsq"),
        ("sort", "write fullgrad.soft.sort or fullgrad.sort_st"),
        ("quantize_", "write fullgrad.nn.quantize_"),
        ("straight_trough", "did you mean straight_through?"),
    ],
)
def test_a_name_that_lives_in_a_module_is_told(name, told):
    """The error has the module, the straight-through version, or the name that is close."""
    with pytest.raises(AttributeError, match=rf"^module 'fullgrad' has no attribute '{name}': {re.escape(told)}$"):
        getattr(fullgrad, name)


def test_names_that_are_read_are_those_of_the_modules():
    """Without an import, so that an error about a name imports nothing."""
    for family in (*fullgrad._TOP_LEVEL, *fullgrad._MODULES):
        assert listed(family) == importlib.import_module(f"fullgrad.{family}").__all__


PUBLIC = [case for case in CASES if case.covers]
# Random operators and black boxes take floating numbers alone: `tests/sampling`, `tests/blackbox`.
PUBLIC = [case for case in PUBLIC if not case.name.startswith(("sampling.", "blackbox."))]
CHECKED = [case for case in PUBLIC if case.name not in UNCHECKED]


@pytest.mark.parametrize("case", params(CHECKED))
@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_unordered_dtypes_are_refused(case, dtype):
    """bool and complex tensors raise a TypeError that names the dtype, under vmap and compile too."""
    bad = case.inputs[0].to(dtype)
    for call in (case.operator, torch.func.vmap(case.operator, in_dims=(0, *(None,) * (len(case.inputs) - 1)))):
        with pytest.raises(TypeError, match=f"must be a real tensor, got dtype {dtype}"):
            call(bad, *case.inputs[1:])
    with pytest.raises(Exception, match=r"must be a real tensor"):
        torch.compile(case.operator, backend="eager", fullgraph=True)(bad, *case.inputs[1:])


# A norm takes floating numbers alone, as in torch; of the others, negative integers are outside of the domain: `tests/safe`.
OF_FLOATS = tuple(f"safe.{name}" for name in ("acos", "asin", "cdist", "log", "log1p", "norm", "pow", "sqrt"))
WHOLE = [
    case
    for case in PUBLIC
    if (case.name not in UNCHECKED or case.name in ("pass_round", "mask_grad")) and not case.name.startswith(OF_FLOATS)
]


@pytest.mark.parametrize("case", params(WHOLE))
def test_integer_tensors_have_a_value_and_no_gradient(case, device):
    """Integers give what the plain function gives, and do not require a gradient."""
    x = case.inputs[0]
    whole = torch.arange(-4, x.numel() - 4, device=device).reshape(x.shape)
    rest = [v.to(device) if isinstance(v, torch.Tensor) else v for v in case.inputs[1:]]
    y = case.operator(whole, *rest)
    assert not any(v.requires_grad for v in ((y,) if isinstance(y, torch.Tensor) else y) if v is not None)
    y = y if isinstance(y, torch.Tensor) else y[0]
    if case.value is not None:
        torch.testing.assert_close(y, case.value(whole.to(y.dtype), *rest), rtol=0, atol=0)


def test_dir_shows_public_names():
    """What completion offers are the public names and packages, and no name that the package imports for itself."""
    assert {name for name in dir(fullgrad) if not name.startswith("__")} == {*fullgrad.__all__, "audit", "nn", "testing"}
    assert {"__doc__", "__version__"} <= {*dir(fullgrad)}


def test_dir_of_a_module_shows_public_names():
    """`make_public` and what else a module imports for itself is not among them."""
    for name in (*fullgrad._MODULES, *fullgrad._TOP_LEVEL, "nn", "nn.soft"):
        module = importlib.import_module(f"fullgrad.{name}")
        shown = {n for n in dir(module) if not n.startswith("__")}
        assert shown == {*module.__all__, *({"soft"} if name == "nn" else ())}, name
