"""The checks of operators that draw: a right one passes, and each kind of check catches one that is broken on purpose."""

import random
import types

import pytest
import torch
from torch import Tensor

from fullgrad import Elementwise, Function
from fullgrad._core.noise import uniform_like
from fullgrad._dispatch import alias, is_identity
from fullgrad._suite.cases._case import numbers
from fullgrad.testing import CHECKS, GROUPS, NotApplicable, OperatorError, Subject, _randomness, check_operator
from fullgrad.testing._randomness import generators

pytestmark = pytest.mark.short

# Stands in for the generator of another device.
OTHER = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _another_device(monkeypatch):
    """Give the kit a generator on another device beside that of the CPU; torch itself would look for the device."""
    monkeypatch.setattr(_randomness, "generators", lambda: [torch.default_generator, OTHER])


class RandomStep(Elementwise):
    """1 where u < sigmoid(x), with the derivative of the sigmoid."""

    reads = {0: (0,), 1: ()}

    @staticmethod
    def forward(x, u):
        return (u < torch.sigmoid(x)).to(x.dtype)

    @staticmethod
    def vjp_term(i, v, x, u):
        s = torch.sigmoid(x)
        return v * s * (1 - s) if i == 0 else None


def right(x: Tensor, *, noise=None, generator=None) -> Tensor:
    """Draws noise outside the operator, or takes what is given."""
    return RandomStep.apply(x, uniform_like(x, generator=generator) if noise is None else noise)


def generator_and_like(x, *, noise=None, generator=None):
    """Calls `rand_like` with a generator, which ignores vmap's randomness."""
    generator = generator or torch.default_generator
    return RandomStep.apply(x, torch.rand_like(x, generator=generator) if noise is None else noise)


def samples_by_torch(x, *, noise=None, generator=None):
    """Calls `torch.bernoulli`, which cannot draw once for all samples."""
    s = torch.sigmoid(x)
    if noise is not None:
        return s + (right(x, noise=noise) - s).detach()
    return s + (torch.bernoulli(s, generator=generator) - s).detach()


def strided(x, *, noise=None, generator=None):
    """Draws noise with the strides of the input."""
    if generator is not None:
        return right(x, generator=generator)
    return RandomStep.apply(x, torch.rand_like(x) if noise is None else noise)


def half(x, *, noise=None, generator=None):
    """Draws noise in the dtype of the input, which is too coarse."""
    return RandomStep.apply(x, torch.rand(x.shape, dtype=x.dtype, generator=generator) if noise is None else noise)


def draws_anyway(x, *, noise=None, generator=None):
    """Draws numbers although noise is given."""
    torch.rand(1)
    return right(x, noise=noise, generator=generator)


def ignores_noise(x, *, noise=None, generator=None):
    """Ignores the given noise."""
    return right(x, generator=generator)


def one_for_all(x, *, noise=None, generator=None):
    """Draws one number for all elements in Python: no transform sees it, a graph keeps it, a checkpoint draws another."""
    if noise is None:
        noise = torch.full_like(x, random.random())
    return RandomStep.apply(x, noise)


def draws_twice(x, *, noise=None, generator=None):
    """Uses one draw for the value and another for the surrogate."""
    value = right(x.detach(), noise=noise, generator=generator)
    again = torch.sigmoid(x + (uniform_like(x, generator=generator) if noise is None else noise))
    return again + (value - again).detach()


class DrawsInTheBackward(RandomStep):
    @staticmethod
    def vjp_term(i, v, x, u):
        return v * torch.sigmoid(x) * (torch.sigmoid(x) < torch.rand_like(x)) if i == 0 else None


def draws_in_the_backward(x, *, noise=None, generator=None):
    """Draws again for the derivative."""
    return DrawsInTheBackward.apply(x, uniform_like(x, generator=generator) if noise is None else noise)


class DrawsAside(Function):
    """`RandomStep`, with rules that draw numbers from a source without using them, as `aside` says."""

    @staticmethod
    def forward(x, u, aside, source):
        return (u < torch.sigmoid(x)).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, _, ctx.aside, ctx.source = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def vjp(ctx, g):
        if "vjp" in ctx.aside:
            torch.rand(1, generator=ctx.source)
        return g * SigmoidSlope.apply(*ctx.saved_tensors, ctx.aside, ctx.source), None, None, None

    @staticmethod
    def jvp(ctx, t, *_):
        if "jvp" in ctx.aside:
            torch.rand(1, generator=ctx.source)
        return t * SigmoidSlope.apply(*ctx.saved_tensors, ctx.aside, ctx.source)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        raise NotImplementedError("two checks are asked, which batch nothing")


class SigmoidSlope(Function):
    """The derivative of the sigmoid, whose own derivative may draw."""

    @staticmethod
    def forward(x, aside, source):
        return torch.sigmoid(x) * torch.sigmoid(-x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.aside, ctx.source = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def _slope(ctx, v):
        (x,) = ctx.saved_tensors
        if "second" in ctx.aside:
            torch.rand(1, generator=ctx.source)
        return v * torch.sigmoid(x) * torch.sigmoid(-x) * (1 - 2 * torch.sigmoid(x))

    @staticmethod
    def vjp(ctx, g):
        return SigmoidSlope._slope(ctx, g), None, None

    @staticmethod
    def jvp(ctx, t, *_):
        return SigmoidSlope._slope(ctx, t)

    vmap = DrawsAside.vmap


def drawing_aside(name, *aside, source=None):
    """An operator some of whose derivatives draw, from torch's generator, another one, or that which the call was given."""

    def operator(x, *, noise=None, generator=None):
        u = uniform_like(x, generator=generator) if noise is None else noise
        return DrawsAside.apply(x, u, aside, generator if source == "given" else source)

    operator.__name__ = name
    return operator


def draws_anyway_elsewhere(x, *, noise=None, generator=None):
    """Draws numbers on another device although noise is given."""
    torch.rand(1, generator=OTHER)
    return right(x, noise=noise, generator=generator)


class ReadsItsOutput(Function):
    """A sample with the derivative mean(p, y)(1 - mean(p, y)), where y is the saved output: autograd differentiates it."""

    @staticmethod
    @is_identity
    def forward(sample, x):
        return alias(sample)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1], output)
        ctx.save_for_forward(inputs[1], output)

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        mean = (torch.sigmoid(x) + y) / 2
        return None, g * mean * (1 - mean)

    @staticmethod
    def jvp(ctx, _, t):
        x, y = ctx.saved_tensors
        mean = (torch.sigmoid(x) + y) / 2
        return t * mean * (1 - mean)

    @staticmethod
    def vmap(info, in_dims, sample, x):
        return ReadsItsOutput.apply(sample.movedim(in_dims[0], 0), x.movedim(in_dims[1], 0)), 0


class KeepsItsSample(ReadsItsOutput):
    """Keeps the sample of `ReadsItsOutput` as an input."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        sample, x = inputs
        ctx.save_for_backward(x, sample.detach().clone())
        ctx.save_for_forward(x, sample.detach().clone())

    @staticmethod
    def vmap(info, in_dims, sample, x):
        return KeepsItsSample.apply(sample.movedim(in_dims[0], 0), x.movedim(in_dims[1], 0)), 0


CAUGHT_BY = {
    generator_and_like: {"randomness_error_raises", "randomness_same_is_one_draw", "randomness_of_nested_vmaps"},
    samples_by_torch: {"randomness_same_is_one_draw", "randomness_of_nested_vmaps"},
    strided: {"strides_do_not_change_the_draw"},
    half: {"rare_events_in_half_precision"},
    draws_anyway: {"given_noise_draws_nothing", "randomness_different_is_a_draw_each"},
    ignores_noise: {"given_noise_draws_nothing", "randomness_error_raises", "compiled_draws_once"},
    one_for_all: {"randomness_error_raises", "randomness_different_is_a_draw_each", "randomness_of_nested_vmaps"}
    | {"checkpoint_draws_again_the_same", "one_draw_in_value_and_derivatives", "compiled_draws_once"},
    draws_twice: {"one_draw_in_value_and_derivatives"},
    draws_in_the_backward: {"one_draw_in_value_and_derivatives"},
    draws_anyway_elsewhere: {"given_noise_draws_nothing", "randomness_different_is_a_draw_each"},
    **{
        drawing_aside(f"draws_aside_in_{rule}_{where}", rule, source=source): checks
        for rule in ("vjp", "jvp", "second")
        for where, source, checks in (
            ("from_torch", None, {"one_draw_in_value_and_derivatives", "given_noise_draws_nothing"}),
            ("elsewhere", OTHER, {"one_draw_in_value_and_derivatives", "given_noise_draws_nothing"}),
            ("from_what_is_given", "given", {"given_noise_draws_nothing"}),
        )
    },
}
X = numbers(2, 3, seed=4)
RARE = (torch.full((1,), -6.9068, dtype=torch.float64),), torch.sigmoid


def subject(operator) -> Subject:
    return Subject(operator=operator, inputs=(X,), draws=uniform_like, options={"rare": RARE})


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", GROUPS["randomness"])
def test_right_operator_passes(name):
    """Noise that is drawn outside passes every check."""
    CHECKS[name](subject(right))


def test_right_rules_pass():
    """The rules from which the broken ones below are made, and which draw nothing aside, pass."""
    for name in ("one_draw_in_value_and_derivatives", "given_noise_draws_nothing"):
        CHECKS[name](subject(drawing_aside("right")))


def test_generators_of_every_device(monkeypatch):
    """The CPU has a generator, and so has each device of the accelerator's module."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert generators() == [torch.default_generator]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch, "get_device_module", lambda: types.SimpleNamespace(default_generators=(OTHER,)))
    assert generators() == [torch.default_generator, OTHER]


@pytest.mark.short(of=3)
@pytest.mark.parametrize(
    ("operator", "name"),
    [(o, n) for o, names in CAUGHT_BY.items() for n in sorted(names)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_broken_operator_is_caught(operator, name):
    """The check or torch itself raises."""
    random.seed(0)  # `one_for_all` may else draw the same step again
    with pytest.raises(Exception) as caught:
        CHECKS[name](subject(operator))
    assert not isinstance(caught.value, NotApplicable)


def test_every_check_catches_something():
    """Every check of the group catches an operator."""
    assert set().union(*CAUGHT_BY.values()) == set(GROUPS["randomness"])


def test_a_sample_in_the_saved_output_is_caught_by_differences_alone():
    """Derivatives agree under every transform, at the second and third order too; an operator that keeps its sample is right."""
    value = right(X, noise=torch.full_like(X, 0.4))
    broken = lambda x: ReadsItsOutput.apply((torch.sigmoid(x.detach()) > 0.4).to(x.dtype), x)  # noqa: E731
    kept = lambda x: KeepsItsSample.apply((torch.sigmoid(x.detach()) > 0.4).to(x.dtype), x)  # noqa: E731
    assert torch.equal(broken(X), value)
    checks = ["reverse", "forward", "second order", "third order", "batching", "gradient_by_differences"]
    found = check_operator(broken, X, checks=checks, raise_exception=False).failures
    assert set(found) == {"gradient_by_differences"}
    assert not check_operator(kept, X, checks=checks).failures


def test_operators_that_take_no_noise():
    """torch's own dropout passes the checks that apply; `torch.bernoulli` does not, and is never silently wrong."""
    dropout = check_operator(torch.nn.functional.dropout, X, draws=True, raise_exception=False)
    assert {"randomness_same_is_one_draw", "one_draw_in_value_and_derivatives"} & set(dropout)
    with pytest.raises(OperatorError, match="randomness_same_is_one_draw"):
        check_operator(lambda x: samples_by_torch(x), X, draws=True)


def test_the_kit_draws_nothing_from_its_callers_generators():
    """Seeded runs are forked, on every device."""
    torch.manual_seed(5)
    before = torch.get_rng_state(), OTHER.get_state()
    for name in GROUPS["randomness"]:
        CHECKS[name](subject(right))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(OTHER.get_state(), before[1])
