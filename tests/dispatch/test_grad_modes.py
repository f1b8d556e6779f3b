"""Grad modes inside and around transforms mean for an operator what they mean for torch's own operators."""

import contextlib
import itertools

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

from fullgrad._dispatch import DISPATCH
from fullgrad._dispatch.state import is_differentiating
from tests.dispatch.test_transforms import WORDS, spell
from tests.operators import CASES, sample, transforms_leave_inference_mode

pytestmark = pytest.mark.short


def test_grad_mode_forward_mode_and_transforms_forbid_the_shortcut():
    """Grad mode, forward mode and transforms, each alone, forbid the shortcut."""
    assert is_differentiating()
    with torch.no_grad():
        assert not is_differentiating()
        assert vmap(lambda x: x * is_differentiating())(torch.ones(1))
        with forward_ad.dual_level():
            assert is_differentiating()
            with forward_ad._set_fwd_grad_enabled(False):
                assert not is_differentiating()


# Where the mode applies in a function of x: around a part of it, or around the whole.
PLACES = {
    "part": lambda f, mode: lambda x: x.sin() * _under(mode, f, x) + f(x),
    "whole": lambda f, mode: lambda x: _under(mode, f, x) + x**3,
    "twice": lambda f, mode: lambda x: f(_under(mode, f, x) * x),
    "on_again": lambda f, mode: lambda x: _under(mode, _under, torch.enable_grad, f, x) * x,
}
NAMES = ("cubic_round", "nested", "sin_cos", "exp")


def _under(mode, function, *args):
    with mode():
        return function(*args)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("word", [word for word in WORDS if set(word) != {"vmap"}], ids="-".join)
def test_no_grad_inside(word, place):
    """no_grad inside any nesting of jacrev, jacfwd and vmap means what it means for torch's operators."""
    x = sample(*(2,) * word.count("vmap"))
    for name in NAMES[:3]:
        function, oracle = (spell(word, PLACES[place](f, torch.no_grad)) for f in CASES[name])
        assert_close(function(x), oracle(x))


@pytest.mark.parametrize("place", ["part", "whole"])
@pytest.mark.parametrize("word", [word for word in WORDS if len(word) < 3], ids="-".join)
def test_inference_mode_inside(word, place):
    """inference_mode inside transforms does what it does for torch's own operators, errors included."""
    x = sample(*(2,) * word.count("vmap"))
    for name in NAMES:
        function, oracle = (spell(word, PLACES[place](f, torch.inference_mode)) for f in CASES[name])
        result, expected = _result_or_error(function, x), _result_or_error(oracle, x)
        if isinstance(expected, RuntimeError):
            assert isinstance(result, RuntimeError)
        elif isinstance(result, RuntimeError):
            # torch's own Function, on which the fallback is built, refuses forward mode over another transform there.
            assert DISPATCH == "fallback"
            assert word in (("fwd", "fwd"), ("fwd", "rev"))
        else:
            assert_close(result, expected)


def _result_or_error(function, x):
    try:
        return function(x)
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("word", [word for word in WORDS if set(word) != {"vmap"} and len(word) < 3], ids="-".join)
@pytest.mark.parametrize("name", CASES)
def test_no_grad_inside_for_every_operator(name, word):
    """no_grad works with several outputs, several inputs and plain arguments."""
    x = sample(*(2,) * word.count("vmap"))
    function, oracle = (spell(word, PLACES["part"](f, torch.no_grad)) for f in CASES[name])
    assert_close(function(x), oracle(x))


@pytest.mark.parametrize("name", NAMES)
def test_no_grad_inside_grad_of_grad(name):
    """The two nestings that torch's own Function gets wrong are right."""
    x = sample()
    for transform in (
        lambda f: jacrev(grad(lambda x: PLACES["part"](f, torch.no_grad)(x).sum())),
        lambda f: jacrev(jacfwd(PLACES["part"](f, torch.no_grad))),
    ):
        function, oracle = (transform(f) for f in CASES[name])
        assert_close(function(x), oracle(x))


@pytest.mark.parametrize("word", [word for word in WORDS if len(word) < 3], ids="-".join)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_transform_may_be_called_without_grad_mode(word, mode):
    """A transform may be called in no_grad or inference_mode. Where torch loses its own derivatives there, ours raise."""
    x = sample(*(2,) * word.count("vmap"))
    lost = mode is torch.inference_mode and set(word) != {"vmap"} and not transforms_leave_inference_mode()
    for name in NAMES:
        f, oracle = CASES[name]
        expected = spell(word, oracle)(x)
        with mode():
            if lost:
                with pytest.raises(RuntimeError, match=r"opened in inference mode|aten::_make_dual"):  # the latter is torch's
                    spell(word, f)(x)
                continue
            result = spell(word, f)(x)
        assert_close(result, expected)
        assert not result.requires_grad


@pytest.mark.parametrize("name", CASES)
def test_tangents_in_inference_mode(name):
    """They are those outside, or an error where torch loses its own."""
    x = sample()
    expected = jvp(CASES[name][0], (x,), (x,))
    for is_inference in (False, True):
        with torch.inference_mode():
            given = x.clone() if is_inference else x
            if transforms_leave_inference_mode():
                assert_close(jvp(CASES[name][0], (given,), (x,)), expected)
            else:
                with pytest.raises(NotImplementedError, match="transform that is opened in inference mode"):
                    jvp(CASES[name][0], (given,), (x,))


@pytest.mark.parametrize("word", [word for word in WORDS if len(word) == 2 and "vmap" not in word], ids="-".join)
def test_mode_between_levels(word):
    """no_grad may stand in the outer function, around the inner transform."""
    inner, outer = word
    x = sample()
    for name in NAMES:
        results = []
        for f in CASES[name]:

            def middle(x, f=f):
                with torch.no_grad():
                    return spell((inner,), f)(x).sum(-1) * x

            results.append(spell((outer,), middle)(x))
        assert_close(*results)


@pytest.mark.parametrize("name", NAMES)
def test_set_grad_enabled(name):
    """set_grad_enabled is the other spelling of both modes."""
    x = sample()
    for enabled in (True, False):
        results = []
        for f in CASES[name]:

            def function(x, f=f, enabled=enabled):
                with torch.set_grad_enabled(enabled):
                    y = f(x)
                return y * x

            results.append((jacrev(function)(x), jacfwd(function)(x), vjp(function, x)[1](x), jvp(function, (x,), (x,))))
        assert_close(*results)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("modes", list(itertools.product([torch.no_grad, torch.enable_grad, contextlib.nullcontext], repeat=2)))
def test_leaf_outside(name, modes):
    """A leaf that requires a gradient is right, with a mode outside and another inside a transform."""
    outside, inside = modes
    results = []
    for f in CASES[name]:
        x = sample().requires_grad_()
        with outside():
            y = grad(lambda x, f=f: PLACES["part"](f, inside)(x).sum())(x)
        results.append((y.detach(), torch.autograd.grad(y.sum(), x)[0] if y.requires_grad else None))
        assert y.requires_grad == (outside is not torch.no_grad)
    assert_close(*results)


@pytest.mark.parametrize("name", NAMES)
def test_detach_inside(name):
    """A detached result has no derivative at its own level, and keeps it at none below."""
    x = sample()
    for transform in (jacrev, jacfwd, lambda f: jacrev(jacfwd(f)), lambda f: jacfwd(jacrev(f)), lambda f: jacfwd(jacfwd(f))):
        function, oracle = (transform(lambda x, f=f: f(x).detach() * x + f(x)) for f in CASES[name])
        assert_close(function(x), oracle(x))
