"""Parameters that are tensors and must be positive, and probabilities: wrong numbers raise where they can be read."""

import pytest
import torch
from torch.func import vmap

import fullgrad
from fullgrad import quantizers, sampling, soft, spikes
from tests.operators import raises

pytestmark = pytest.mark.short

X = torch.linspace(-1, 1, 5)
CALLS = {
    "lsq": lambda s: quantizers.lsq(X, s, -8, 7),
    "fake_quantize": lambda s: quantizers.fake_quantize(X, s, 0, -8, 7),
    "float_quantize": lambda s: quantizers.float_quantize(X, "float8_e4m3", s),
    "codebook_quantize": lambda s: quantizers.codebook_quantize(X, torch.tensor([-1.0, 0.0, 0.5]), s),
    "stretched_elastic": lambda s: quantizers.stretched_elastic(X, s, 4),
    "pact": lambda s: quantizers.pact(X, s),
    "soft.sort": lambda s: soft.sort(X, softness=s),
    "soft.rank": lambda s: soft.rank(X, softness=s),
    "soft.greater": lambda s: soft.greater(X, 0.0, softness=s),
    "soft.abs": lambda s: soft.abs(X, softness=s),
    "atan": lambda s: spikes.atan(X, s),
    "jumprelu": lambda s: spikes.jumprelu(X, 0.5, s),
    "clip_grad": lambda s: fullgrad.clip_grad(X, s),
    "gumbel_softmax": lambda s: sampling.gumbel_softmax(X, s),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_that_is_not_positive_raises(name):
    """A negative number or 0 is named; a positive one, and NaN, which the value shows, are not refused."""
    call = CALLS[name]
    for bad in (-0.3, 0.0):
        with raises(ValueError, match=f"must be positive, got {torch.tensor(bad).item()}"):
            call(torch.tensor(bad))
        with raises(ValueError, match=r"must be positive, .*; a step may have led there, write lower_bound\("):
            call(torch.nn.Parameter(torch.tensor(bad)))
    call(torch.tensor(0.3))
    call(torch.tensor(float("nan")))


@pytest.mark.parametrize("name", ["lsq", "soft.greater"])
def test_nothing_is_read_where_it_would_break_something(name):
    """Inside transforms and compiled code the numbers are not looked at, and the graph is one."""
    call = CALLS[name]
    vmap(call)(torch.tensor([0.3, -0.3]))
    torch.compile(call, backend="eager", fullgraph=True)(torch.tensor(-0.3))


BOUNDED = {
    "soft.entmax": (lambda v: soft.entmax(X, v), 1.5, [0.5, -1.0, float("inf")]),
    "soft.entmax_loss": (lambda v: soft.entmax_loss(X[None], torch.tensor([1]), v), 1.5, [0.5, float("inf")]),
    "soft.normmax": (lambda v: soft.normmax(X, v), 1.5, [1.0, 0.5, float("inf")]),
    "soft.normmax_loss": (lambda v: soft.normmax_loss(X[None], torch.tensor([1]), v), 1.5, [1.0, float("inf")]),
    "soft.proj_capped_simplex": (lambda v: soft.proj_capped_simplex(X, v), 2.0, [-0.5, 5.5]),
    "soft.quantile": (lambda v: soft.quantile(X, v), 0.3, [-0.1, 1.5]),
    "soft.argquantile": (lambda v: soft.argquantile(X, v), 0.3, [-0.1, 1.5]),
    "quantile_st": (lambda v: fullgrad.quantile_st(X, v), 0.3, [-0.1, 1.5]),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_tensor_out_of_range_raises_as_the_number_does(name):
    """A number out of its range is refused in a tensor, too, where it can be read; one in its range and NaN are not."""
    call, good, bad = BOUNDED[name]
    for value in bad:
        for given in (value, torch.tensor(value, dtype=torch.float64), torch.nn.Parameter(torch.tensor([value]))[0]):
            with raises(ValueError, match=rf"`(alpha|k|q)` must be (at least 1|above 1|from 0 to [15]).*, got {value:.1f}"):
                call(given)
    call(torch.tensor(good))
    call(torch.tensor(float("nan")))
    vmap(call)(torch.tensor([good, bad[0]]))
    torch.compile(call, backend="eager", fullgraph=True)(torch.tensor(bad[0]))


def test_probabilities():
    """A probability outside of [0, 1] raises, as in torch.bernoulli; the bounds and NaN do not."""
    for call in (sampling.bernoulli_st,):
        for bad in (1.5, -0.5):
            with raises(ValueError, match=rf"must be from 0 to 1, got {bad:g} among its elements"):
                call(torch.tensor([0.5, bad]))
            with pytest.raises(RuntimeError):
                torch.bernoulli(torch.tensor([0.5, bad]))
        call(torch.tensor([0.0, 1.0, float("nan")]))
        assert vmap(call, randomness="different")(torch.tensor([1.5, -0.5])).tolist() == [1, 0]
        torch.compile(call, backend="eager", fullgraph=True)(torch.tensor([1.5]))
