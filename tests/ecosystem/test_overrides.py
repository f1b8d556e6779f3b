"""``__torch_function__``: overrides of torch's functions also override the public functions, each as one function."""

import inspect
import operator
import pickle
import re
import timeit
import types

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import fullgrad
from fullgrad._dispatch import make_overridable
from fullgrad._suite.cases import CASES

PACKAGES = (fullgrad, fullgrad.soft, fullgrad.spikes, fullgrad.quantizers, fullgrad.sampling)
FUNCTIONS = [getattr(package, name) for package in PACKAGES for name in package.__all__]
PUBLIC = {found: f"{found.__module__}.{found.__name__}" for found in filter(inspect.isfunction, FUNCTIONS)}
# They take no tensor: they make operators or tables, or look at modules.
WITHOUT_TENSORS = {
    "adopt",
    "adopting",
    "checkpoint",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "grad_replace",
    "linear_map",
    "st",
    "with_reference",
    "straight_through",
    "track_scales",
    "spikes.from_slope",
    "quantizers.levels",
    "quantizers.quant_range",
}
OVERRIDABLE = [function for function in PUBLIC if "__overridden" in function.__globals__]
CALLS = [case for case in CASES if not (case.exhaustive or case.long)]


class Logged(Tensor):
    """A tensor that records the calls with it."""

    calls = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in PUBLIC:
            cls.calls.append((function, args, kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs)


class Boxed:
    """An object that holds a tensor and is not one."""

    calls = []

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append((function, args, kwargs or {}))
        args = [a.tensor if isinstance(a, cls) else a for a in args]
        return function(*args, **{name: a.tensor if isinstance(a, cls) else a for name, a in (kwargs or {}).items()})


class Log(TorchFunctionMode):
    """A mode that records the calls inside."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls.append(function)
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def no_calls():
    """Empty the records before every test."""
    Logged.calls.clear()
    Boxed.calls.clear()


def outcome(call, *inputs):
    """The results of a call with the generator in one state: a list of plain tensors and others."""
    torch.manual_seed(0)
    found = call(*inputs)
    found = found if isinstance(found, (tuple, list)) else [found]
    return [v.as_subclass(Tensor).detach() if isinstance(v, Tensor) else v for v in found]


def agree(found, expected):
    """Whether two outcomes are the same, to the last bit."""
    same = (
        torch.equal(a.nan_to_num(), b.nan_to_num()) if isinstance(a, Tensor) else a == b
        for a, b in zip(found, expected, strict=True)
    )
    return all(same)


@pytest.mark.short
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_subclass_sees_one_call_of_the_public_function(case):
    """The results are those of plain tensors, made subclasses by torch's own rule."""
    inputs = [v.as_subclass(Logged) if isinstance(v, Tensor) else v for v in case.inputs]
    found, expected = outcome(case.operator, *inputs), outcome(case.operator, *case.inputs)
    assert agree(found, expected)
    covered = [function for function in PUBLIC if PUBLIC[function].removeprefix("fullgrad.") in case.covers]
    calls = [call for call, _, _ in Logged.calls]
    assert len(calls) == (1 if {*covered} & {*OVERRIDABLE} else 0)


@pytest.mark.parametrize("function", OVERRIDABLE, ids=PUBLIC.get)
@pytest.mark.short
def test_every_tensor_argument_counts(function):
    """An object in place of any tensor argument gets the call, with the user's arguments and no defaults."""
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        if "Tensor" not in re.sub(r"\[.*?\]+", "", str(p.annotation)):
            continue

        class Found(Boxed):
            @classmethod
            def __torch_function__(cls, *call):
                return call

        given = {q.name: 7 for q in parameters if q.default is q.empty} | {p.name: Found(None)}
        public, types, args, kwargs = function(**given)
        assert public is function
        assert types == (Found,)
        assert inspect.signature(function).bind(*args, **(kwargs or {})).arguments == given


def test_no_function_of_tensors_is_left_out():
    """A function that cannot be overridden takes no tensor."""
    assert {operator.attrgetter(name)(fullgrad) for name in WITHOUT_TENSORS} == {*PUBLIC} - {*OVERRIDABLE}


@pytest.mark.parametrize("function", OVERRIDABLE, ids=PUBLIC.get)
def test_the_public_function_looks_like_the_one_of_its_file(function):
    """Signature, documentation, annotations and source agree; the name finds the function, for pickles and graphs."""
    inner = function.__wrapped__
    assert inspect.signature(function) == inspect.signature(inner)
    assert inspect.signature(function, follow_wrapped=False) == inspect.signature(inner)
    assert (function.__name__, function.__doc__) == (inner.__name__, inner.__doc__)
    assert function.__annotations__ == inner.__annotations__
    assert inspect.getsource(function) == inspect.getsource(inner)
    assert pickle.loads(pickle.dumps(function)) is function
    assert f"{function.__module__}.{function.__name__}" == PUBLIC[function]


def test_arguments_are_those_of_the_call():
    """Arguments come by position up to the first gap, then by name; omitted ones stay omitted."""
    x, low = Boxed(torch.tensor([-2.0, 0.3, 2.0])), Boxed(torch.tensor(-1.0))
    calls = {
        (x,): lambda: fullgrad.round(x),
        (x, "floor"): lambda: fullgrad.round(x, "floor"),
        (x, low, 1.0): lambda: fullgrad.clamp(x, low, max_value=1.0),
        (x, ("max_value", 1.0)): lambda: fullgrad.clamp(x, max_value=1.0),
        (x, 0.1, ("dim", 0)): lambda: fullgrad.quantizers.fake_quantize(x, 0.1, dim=0),
    }
    for expected, call in calls.items():
        Boxed.calls.clear()
        try:
            call()
        except (TypeError, ValueError):
            assert expected[-1] == ("dim", 0)  # a scale without dimensions has none
        ((_, args, kwargs),) = Boxed.calls
        assert (*args, *kwargs.items()) == expected


def test_what_returns_not_implemented_is_an_error_that_names_the_function():
    """The error is that of torch's functions."""

    class Refuses(Boxed):
        @classmethod
        def __torch_function__(cls, *call):
            return NotImplemented

    with pytest.raises(TypeError, match=r"no implementation found for 'fullgrad\.soft\.sort' on types"):
        fullgrad.soft.sort(Refuses(None))


def test_overrides_of_subclasses_come_before_those_of_their_bases():
    """Torch's order of precedence: subclasses before their bases."""

    class Outer(Logged):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return "outer"

    assert fullgrad.clamp(torch.ones(2).as_subclass(Logged), torch.zeros(2).as_subclass(Outer)) == "outer"


def test_a_mode_sees_the_public_functions_alone():
    """A mode does not see the operations inside, as with torch's composite functions; derivatives are as without it."""
    x = torch.tensor([0.3, 1.7], requires_grad=True)
    with Log() as mode:
        y = fullgrad.soft.sort(fullgrad.round(x), softness=0.5).values
    assert mode.calls[:2] == [fullgrad.round, fullgrad.soft.sort]
    assert len([call for call in mode.calls if call in PUBLIC]) == 2
    plain = fullgrad.soft.sort(fullgrad.round(x), softness=0.5).values
    weight = torch.tensor([1.0, 3.0])
    assert torch.equal(torch.autograd.grad(y @ weight, x)[0], torch.autograd.grad(plain @ weight, x)[0])


def test_a_mode_does_not_see_the_apply_of_a_class():
    """A mode sees the operations inside, whatever the arguments are, as with `torch.autograd.Function`."""
    with Log() as mode:
        fullgrad.RoundByMode.apply(torch.ones(2), "half_away")
        fullgrad.Clamp.apply(torch.ones(2), torch.tensor(0.0).as_subclass(Plain))
    assert fullgrad.RoundByMode.apply not in mode.calls
    assert fullgrad.Clamp.apply not in mode.calls


def test_a_default_device_overrides_nothing():
    """`torch.set_default_device` is a mode for functions that create tensors, which see it as before."""
    seen = []

    class Seen(fullgrad.Elementwise):
        reads = {0: ()}

        @staticmethod
        def forward(x):
            seen.append(torch.empty(0).device.type)
            return x.clone()

        @staticmethod
        def vjp_term(i, v, x):
            return v

    step = fullgrad.straight_through(lambda x: Seen.apply(x), torch.sigmoid)
    with torch.device("meta"):
        step(torch.ones(2, device="cpu"))
        assert fullgrad.round(torch.full((2,), 0.7, device="cpu")).tolist() == [1.0, 1.0]
        with Log() as mode:
            fullgrad.round(torch.ones(2, device="cpu"))
        assert fullgrad.round in mode.calls
    assert seen == ["meta"]


class Plain(Tensor):
    """A subclass that overrides nothing."""


class OptsOut(Tensor):
    """A subclass without overrides, whose results are plain."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def test_plain_subclasses_and_parameters_have_no_override():
    """Plain subclasses call the function of the file, with the same results."""
    x = torch.tensor([1.0, 0.3])
    for v in (x.as_subclass(Plain), x.as_subclass(OptsOut), torch.nn.Parameter(x)):
        for function in (fullgrad.round, fullgrad.soft.sort, fullgrad.sort_st, fullgrad.spikes.atan):
            found, expected = function(v), function.__wrapped__(v)
            assert type(found) is type(expected)
            assert agree(outcome(function, v), outcome(function, x))


def nothing(a: torch.Tensor, b: torch.Tensor | float | None = None, c: torch.Tensor | float | None = None):
    return a


def test_a_plain_call_costs_little():
    """A public function costs a few Python calls more, 0.04 to 0.06 us; a wrapper of any arguments costs ten times as much."""
    module = types.ModuleType("module")
    module.nothing, module.__all__ = nothing, ["nothing"]
    make_overridable(module, "module", lambda name, parameters: None)
    x, seconds = torch.ones(2), {}
    assert module.nothing is not nothing
    for called in (module.nothing, nothing):
        timer = timeit.Timer(lambda called=called: called(x, -1.0))
        seconds[called] = min(timer.repeat(repeat=50, number=1000))
    assert seconds[module.nothing] < 6 * seconds[nothing], seconds


def test_overrides_that_are_switched_off_see_nothing():
    """torch's own switch turns overrides off."""
    x = torch.tensor([0.3, 1.7]).as_subclass(Logged)
    with torch._C.DisableTorchFunctionSubclass():
        fullgrad.round(x)
    assert not Logged.calls


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacfwd, torch.func.hessian])
def test_transforms_of_an_overridden_call(transform):
    """The override sees the call inside the transform, and the derivative is the declared one."""
    seen = []

    class Seen(Boxed):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*[a.tensor if isinstance(a, cls) else a for a in args], **(kwargs or {}))

    x = torch.tensor([1.8, 0.7])
    found = transform(lambda x: fullgrad.soft_round(Seen(x)).sum())(x)
    assert torch.equal(found, transform(lambda x: fullgrad.soft_round(x).sum())(x))
    assert seen == [fullgrad.soft_round]


@pytest.mark.parametrize("kind", [Tensor, Plain, Logged])
def test_compiled_code_is_one_graph(kind):
    """Dynamo sees the wrapper; an override in compiled code sees the public functions too."""
    if kind is not Tensor and torch.__version__.startswith("2.11."):
        pytest.skip("Dynamo of torch 2.11 cannot trace torch.overrides.handle_torch_function")

    def f(x):
        return fullgrad.clamp(fullgrad.round(x), max_value=1.0)

    x = torch.tensor([0.3, 1.7])
    y = torch.compile(f, backend="eager", fullgraph=True)(x.as_subclass(kind))
    assert type(y) is kind
    assert torch.equal(y.as_subclass(Tensor), f(x))
    if kind is Logged:
        assert [function for function, _, _ in Logged.calls] == [fullgrad.round, fullgrad.clamp]
