"""Infinite elements, as masks make them, under a softness, a count or an exponent that learns."""

import math

import pytest
import torch
from torch.func import jacfwd, jacrev

import fullgrad
from fullgrad import sampling, soft

pytestmark = pytest.mark.short

INF = math.inf
MODES = ("smooth", "c0", "c1", "c2")
STEPS = (*MODES, "laplace")
SOFTNESS = torch.tensor(0.4, dtype=torch.float64)
X = torch.tensor([1.0, 0.6, 0.5, 0.9, -0.2], dtype=torch.float64)
NOISE = torch.tensor([0.3, 0.6, 0.2, 0.7, 0.4, 0.5, 0.1], dtype=torch.float64)
PLACES = [0, 1, 3, 4, 6]

# Choices among elements: functions of a row, a number, and the noise of each element.
CHOICES = {
    **{f"proj_simplex {m}": lambda x, s, _, m=m: soft.proj_simplex(x, -1, s, m) for m in MODES},
    **{f"argmax {m}": lambda x, s, _, m=m: soft.argmax(x, -1, softness=s, mode=m, standardize=False) for m in MODES},
    "argmax, log": lambda x, s, _: _log_argmax(x, s),
    **{f"argmax_st {m}": lambda x, s, _, m=m: fullgrad.argmax_st(x, -1, softness=s, mode=m, standardize=False) for m in MODES},
    **{f"argquantile {m}": lambda x, s, _, m=m: _place(x, s, m) for m in MODES},
    **{f"proj_capped_simplex {m}": lambda x, s, _, m=m: soft.proj_capped_simplex(x, 2, -1, s, m) for m in STEPS},
    **{f"proj_capped_simplex, k, {m}": lambda x, s, _, m=m: soft.proj_capped_simplex(x, 4 * s, -1, 0.3, m) for m in STEPS},
    **{f"topk_mask_st {m}": lambda x, s, _, m=m: fullgrad.topk_mask_st(x, 2, -1, s, m) for m in STEPS},
    "entmax": lambda x, s, _: soft.entmax(x, 1 + s),
    "entmax below 1.01": lambda x, s, _: soft.entmax(x, 1 + s / 100),
    "entmax above 2": lambda x, s, _: soft.entmax(x, 2 + s),
    "normmax": lambda x, s, _: soft.normmax(x, 2 + s),
    "subset_marginals": lambda x, s, _: soft.subset_marginals(x, 2) + 0 * s,
    "gumbel_softmax": lambda x, s, u: sampling.gumbel_softmax(x, s, noise=u),
    "gumbel_softmax hard": lambda x, s, u: sampling.gumbel_softmax(x, s, hard=True, noise=u),
    "gumbel_topk": lambda x, s, u: sampling.gumbel_topk(x, 2, s, noise=u),
    "categorical_st": lambda x, s, u: sampling.categorical_st(x, s, noise=u),
}


def _log_argmax(x, s):
    """Logarithms of weights, of which that of a masked element is minus infinity."""
    y = soft.argmax(x, -1, softness=s, standardize=False, return_log_probs=True)
    return torch.where(x.detach() == -INF, 0, y)


def _place(x, s, mode):
    """The weights of the fourth largest element, wherever it is among the masked ones."""
    q = 1 - 3 / (x.shape[-1] - 1)
    return soft.argquantile(x, q, -1, softness=s, mode=mode, method="softsort", interpolation="nearest", standardize=False)


@pytest.mark.parametrize("name", CHOICES)
def test_masked_elements_take_no_part(name):
    """Minus infinity has no weight and no derivative, and the others have those of a row without it: with respect to the row and
    to the number that learns, in forward and reverse mode, of the second order too.
    """
    f = CHOICES[name]
    masked = torch.full((7,), -INF, dtype=torch.float64)
    masked[PLACES] = X
    few, all_of_them = NOISE[PLACES], NOISE
    expected = torch.zeros(7, dtype=torch.float64)
    expected[PLACES] = f(X, SOFTNESS, few)
    torch.testing.assert_close(f(masked, SOFTNESS, all_of_them), expected, rtol=1e-9, atol=1e-12)
    by_number, by_row = [jacrev(f, i)(X, SOFTNESS, few) for i in (1, 0)]
    second = jacfwd(jacrev(f, 1), 1)(X, SOFTNESS, few)
    for transform in (jacrev, jacfwd):
        found = transform(f, 1)(masked, SOFTNESS, all_of_them)
        torch.testing.assert_close(found[PLACES], by_number, rtol=1e-8, atol=1e-10)
        assert not found[[2, 5]].any()
        found = transform(f, 0)(masked, SOFTNESS, all_of_them)
        torch.testing.assert_close(found[PLACES][:, PLACES], by_row, rtol=1e-8, atol=1e-10)
        assert not found[[2, 5]].any()
        assert not found[:, [2, 5]].any()
        found = transform(jacrev(f, 1), 1)(masked, SOFTNESS, all_of_them)
        torch.testing.assert_close(found[PLACES], second, rtol=1e-7, atol=1e-8)


# Elementwise functions of numbers and a softness.
def _all_of(module, names, modes, *args, **options):
    """Functions of x and a softness, by name and mode."""
    for n in names:
        for m in modes:
            words = " ".join((n, *options, m))
            yield words, lambda x, s, n=n, m=m: getattr(module, n)(x, *args, softness=s, mode=m, **options)


ELEMENTWISE = {
    **dict(_all_of(soft, ("sigmoidal", "heaviside"), STEPS)),
    **dict(_all_of(soft, ("abs", "sign", "relu", "softrelu"), MODES)),
    **dict(_all_of(fullgrad, ("abs_st", "sign_st", "relu_st"), MODES)),
    **dict(_all_of(soft, ("relu", "softrelu"), MODES, gated=True)),
    **dict(_all_of(soft, ("clamp",), MODES, -1.0, 1.0)),
    **dict(_all_of(soft, ("clamp",), MODES, -1.0, 1.0, gated=True)),
    **dict(_all_of(soft, ("greater", "less_equal"), STEPS, 0.4)),
    **dict(_all_of(soft, ("eq", "not_equal", "isclose"), MODES, 0.4)),
    **dict(_all_of(fullgrad, ("eq_st", "isclose_st"), MODES, 0.4)),
    "relaxed_bernoulli": lambda x, s: sampling.relaxed_bernoulli(x, s, noise=torch.full_like(x, 0.3)),
    "bernoulli_logits_st": lambda x, s: sampling.bernoulli_logits_st(x, s, noise=torch.full_like(x, 0.3)),
    "hard_concrete": lambda x, s: sampling.hard_concrete(x, s, noise=torch.full_like(x, 0.3)),
    "hard_concrete_l0": sampling.hard_concrete_l0,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_softness_has_no_part_at_infinity(name):
    """All derivatives with respect to the softness are those of numbers far away, in forward and reverse mode."""
    f, x = ELEMENTWISE[name], torch.tensor([-INF, 0.3, INF], dtype=torch.float64)
    far = x.clamp(-1e3, 1e3)
    for transform in (jacrev, jacfwd):
        torch.testing.assert_close(transform(f, 1)(x, SOFTNESS), transform(f, 1)(far, SOFTNESS), rtol=1e-9, atol=1e-12)
        # By the softness twice, and by x in both orders.
        for first, then in ((1, 1), (0, 1), (1, 0)):
            second = transform(jacrev(f, first), then)
            torch.testing.assert_close(second(x, SOFTNESS), second(far, SOFTNESS), rtol=1e-9, atol=1e-9)


ORDERED = {
    **{n: getattr(soft, n) for n in ("argmax", "argmin", "argmedian", "argsort", "rank")},
    **{n: getattr(fullgrad, n) for n in ("argmax_st", "argsort_st", "rank_st")},
    "max_st": lambda x, **options: fullgrad.max_st(x, -1, **options)[0],
    "sort_st": lambda x, **options: fullgrad.sort_st(x, -1, **options)[0],
    "topk_st": lambda x, **options: fullgrad.topk_st(x, 2, -1, **options)[0],
}


@pytest.mark.short(of=3)
@pytest.mark.parametrize("method", ["softsort", "neuralsort"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ORDERED)
def test_standardized_rows_with_infinities_have_derivatives_by_the_softness(name, mode, method):
    """They are finite, and the same in both modes and in eager code; of soft values, they are slopes."""
    f = lambda x, s: ORDERED[name](x, softness=s, mode=mode, method=method)  # noqa: E731
    x = torch.tensor([1.0, 0.6, -INF, 0.5, 0.9, -INF], dtype=torch.float64)
    forward, backward = jacfwd(f, 1)(x, SOFTNESS), jacrev(f, 1)(x, SOFTNESS)
    assert forward.isfinite().all()
    torch.testing.assert_close(forward, backward, rtol=1e-9, atol=1e-12)
    leaf = SOFTNESS.clone().requires_grad_()
    y = f(x, leaf)
    finite = y.isfinite()
    torch.testing.assert_close(torch.autograd.grad(y[finite].sum(), leaf)[0], forward[finite].sum())
    if "_st" not in name:
        slope = (f(x, SOFTNESS + 1e-6) - f(x, SOFTNESS - 1e-6)) / 2e-6
        torch.testing.assert_close(forward, slope, rtol=1e-5, atol=1e-6)
