"""Distributions, edges and arguments of random operators."""

import itertools
import math
from inspect import signature

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

from fullgrad import sampling, soft
from fullgrad._suite.cases.sampling import _topk_weights
from fullgrad.sampling import _poisson_st
from tests.operators import subset_probabilities

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan
NAMES = [name for name in sampling.__all__ if not name.endswith("_like")]
RANDOM = [name for name in NAMES if name != "hard_concrete_l0"]
CATEGORICAL = ("categorical_st", "gumbel_softmax", "reinmax", "gapped_st", "gumbel_rao")
SUBSETS = ("gumbel_topk", "imle_topk", "k_subset_st")
X = torch.tensor([0.3, -0.4, 1.1, 0.2])


def call(name, x, **kwargs):
    """Call an operator, with small sizes where it needs them."""
    if name in SUBSETS:
        kwargs.setdefault("k", 2)
    if name == "gumbel_sinkhorn":
        x = x.expand(x.shape[-1], *x.shape)
    return getattr(sampling, name)(x, **kwargs)


def within_five_errors(mean, expected, n):
    """Check that the mean of n values of 0 or 1 agrees with probabilities."""
    error = (expected * (1 - expected) / n).sqrt().clamp(min=1 / n)
    assert ((mean - expected).abs() < 5 * error).all(), (mean, expected)


# --- Distributions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CATEGORICAL, "categorical_st at another temperature"])
def test_frequencies_of_classes(name):
    """Frequencies are those of a softmax."""
    n, tau = 20_000, 1.0
    kwargs = {"samples": 1} if name == "gumbel_rao" else {"hard": True} if name == "gumbel_softmax" else {}
    if " " in name:
        name, tau = name.split()[0], 2.0
        kwargs = {"sample_tau": tau}
    y = call(name, X.expand(n, 4), **kwargs)
    within_five_errors(y.mean(0), torch.softmax(X / tau, -1), n)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_frequencies_of_subsets(k):
    """Frequencies are those of all subsets, which for the weights 4, 2, 1 are not those of drawing one by one."""
    n, theta = 20_000, torch.tensor([4.0, 2.0, 1.0, 0.5]).log()
    subsets, expected = subset_probabilities(theta, k)
    y = sampling.k_subset_st(theta.expand(n, 4), k)
    assert (y.sum(-1) == k).all()
    found = torch.stack([(y == s).all(-1).float().mean() for s in subsets])
    within_five_errors(found, expected, n)
    torch.testing.assert_close(soft.subset_marginals(theta, k), expected @ subsets)


def test_a_subset_drawn_one_by_one_is_another():
    """Gumbel top-k has 0.610, and not 0.571, for the first two of the weights 4, 2, 1."""
    n, theta = 40_000, torch.tensor([4.0, 2.0, 1.0]).log()
    first = torch.tensor([1.0, 1.0, 0.0])
    for y, expected in (
        (sampling.gumbel_topk(theta.expand(n, 3), 2, hard=True), 4 / 7 * 2 / 3 + 2 / 7 * 4 / 5),
        (sampling.k_subset_st(theta.expand(n, 3), 2), 8 / 14),
    ):
        within_five_errors((y == first).all(-1).float().mean(), torch.tensor(expected), n)


def test_frequencies_of_orders():
    """All 24 permutations of four elements have the right frequencies."""
    n, s = 40_000, torch.tensor([0.5, 0.0, -0.7, 0.2])
    order = sampling.plackett_luce_st(s.expand(n, 4)).argmax(-1)
    for permutation in itertools.permutations(range(4)):
        w = s[list(permutation)].exp()
        expected = math.prod(float(w[i] / w[i:].sum()) for i in range(4))
        within_five_errors((order == torch.tensor(permutation)).all(-1).float().mean(), torch.tensor(expected), n)


@pytest.mark.parametrize("rate", [0.3, 7.0, 1000.0])
def test_counts_have_the_rate_as_mean_and_variance(rate):
    """Mean and variance are the rate; small counts have their probabilities."""
    n = 20_000
    y = sampling.poisson_st(torch.full((n,), rate, dtype=torch.float64))
    assert abs(y.mean() - rate) < 5 * math.sqrt(rate / n)
    assert abs(y.var() - rate) < 5 * math.sqrt((rate + 2 * rate**2) / n)
    counts = torch.arange(12, dtype=torch.float64)
    expected = torch.exp(counts * math.log(rate) - rate - torch.lgamma(counts + 1))
    within_five_errors(torch.stack([(y == c).double().mean() for c in counts]), expected, n)


def test_a_count_is_the_smallest_whose_distribution_function_is_above():
    """Counts are right at and between the values of the distribution function."""
    rate = torch.full((60,), 7.0, dtype=torch.float64)
    cdf = torch.special.gammaincc(torch.arange(30, dtype=torch.float64) + 1, rate[:30])
    assert sampling.poisson_st(rate[:29], noise=cdf[:29]).tolist() == list(range(1, 30))
    assert sampling.poisson_st(rate[:30], noise=torch.nextafter(cdf, torch.zeros(30).double())).tolist() == list(range(30))
    large = sampling.poisson_st(torch.tensor([1e6, 1e12, 1e30, INF], dtype=torch.float64), noise=torch.full((4,), 0.5).double())
    assert large[:2].tolist() == [1e6, 1e12]
    assert abs(large[2] / 1e30 - 1) < 1e-6
    assert large[3] == INF


def test_counts_of_large_rates():
    """Counts in both tails agree with the distribution function of mpmath with 40 digits."""
    u = [1e-300, 1e-30, 1e-12, 1e-4, 0.3, 0.7, 1 - 1e-4, 1 - 1e-8, 1 - 1e-12, 1 - 2**-53]
    counts = {
        2.0**20: [1010869, 1036859, 1041381, 1044770, 1048039, 1049113, 1052386, 1054328, 1055787, 1056994],
        1e7 + 0.5: [9883076, 9963770, 9977764, 9988242, 9998342, 10001659, 10011763, 10017752, 10022254, 10025972],
        1e9: [998828697, 999637497, 999777558, 999882397, 999983417, 1000016583, 1000117608, 1000177472, 1000222458, 1000259619],
    }
    noise = torch.tensor(u, dtype=torch.float64)
    for rate, expected in counts.items():
        assert sampling.poisson_st(torch.full_like(noise, rate), noise=noise).tolist() == expected


def test_counts_by_bisection_and_by_expansion_are_the_same():
    """Both agree next to the rate at which the expansion takes over."""
    generator = torch.Generator().manual_seed(0)
    rate = _poisson_st._LARGE * (1 - 0.01 * torch.rand(2000, generator=generator, dtype=torch.float64))
    noise = torch.rand(2000, generator=generator, dtype=torch.float64)
    assert torch.equal(sampling.poisson_st(rate, noise=noise), _poisson_st._quantile_of_large(rate, noise))


def test_open_gates():
    """Gates open as often as `hard_concrete_l0` says."""
    n = 20_000
    y = sampling.hard_concrete(X.expand(n, 4))
    within_five_errors((y != 0).float().mean(0), sampling.hard_concrete_l0(X), n)
    assert torch.equal(sampling.hard_concrete(X, training=False), (torch.sigmoid(X) * 1.2 - 0.1).clamp(0, 1))


def test_signs_have_the_clamped_number_as_mean():
    """`binary_st` and `ternary_st` have the clamped number as their mean."""
    n, x = 20_000, torch.tensor([-1.5, -0.6, 0.0, 0.3, 1.0])
    for f in (sampling.binary_st, sampling.ternary_st):
        y = f(x.expand(n, 5))
        assert ((y.mean(0) - x.clamp(-1, 1)).abs() < 5 / math.sqrt(n)).all()
        assert set(y.unique().tolist()) <= ({-1.0, 1.0} if f is sampling.binary_st else {-1.0, 0.0, 1.0})


# --- Expectations ---------------------------------------------------------------------------------------------------------


def test_reinmax_is_unbiased_for_quadratic_functions():
    """The mean over the classes is the true gradient, for five classes, and not for another temperature."""
    theta = torch.tensor([0.4, -1.0, 0.3, 1.2, -0.2], dtype=torch.float64)
    a = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = lambda y: y @ a @ y + (a[0] * y).sum()  # noqa: E731
    p, eye = torch.softmax(theta, -1), 60 * torch.eye(5, dtype=torch.float64)
    expected = grad(lambda t: sum(w * loss(e) for w, e in zip(torch.softmax(t, -1), eye / 60, strict=True)))(theta)
    mean = lambda f: sum(w * grad(lambda t: loss(f(t, e)))(theta) for w, e in zip(p, eye, strict=True))  # noqa: B023, E731
    torch.testing.assert_close(mean(lambda t, e: sampling.reinmax(t, noise=e)), expected)
    assert not torch.allclose(mean(lambda t, e: sampling.reinmax(t, 0.6, noise=e)), expected, rtol=0.1)
    assert not torch.allclose(mean(lambda t, e: sampling.categorical_st(t, noise=e)), expected, rtol=0.1)


def test_rao_with_many_samples_has_the_mean_of_the_soft_derivative_given_the_class():
    """The noise of `gumbel_rao` is that given the class that was drawn."""
    x = torch.tensor([0.3, -0.4, 1.1], dtype=torch.float64)
    noise = sampling.gumbel_like(x, (2000,), generator=torch.Generator().manual_seed(3))
    first = torch.tensor([9.0, 0.0, 0.0], dtype=torch.float64)
    w = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    f = lambda x: sampling.gumbel_rao(x, 0.7, 2000, noise=torch.cat((first[None], noise)))  # noqa: E731
    drawn = sampling.gumbel_like(x, (60_000,), generator=torch.Generator().manual_seed(4))
    chosen = drawn[(x + drawn).argmax(-1) == 0]
    soft_gradient = vmap(lambda n: grad(lambda x: sampling.gumbel_softmax(x, 0.7, noise=n) @ w)(x))(chosen)
    assert f(x).tolist() == [1.0, 0.0, 0.0]
    error = soft_gradient.std(0) * math.sqrt(1 / 2000 + 1 / len(chosen))
    assert ((grad(lambda x: f(x) @ w)(x) - soft_gradient.mean(0)).abs() < 5 * error).all()


# --- Edges ----------------------------------------------------------------------------------------------------------------


def test_probabilities_of_0_and_1_are_certain():
    """p = 0 never happens, even with u = 0, and p = 1 always."""
    p, u = torch.tensor([0.0, 1.0, NAN]), torch.tensor([0.0, 1 - 2**-24, 0.5])
    assert torch.equal(sampling.bernoulli_st(p, noise=u)[:2], torch.tensor([0.0, 1.0]))
    for f in (sampling.bernoulli_st, sampling.binary_st, sampling.ternary_st, sampling.poisson_st):
        assert f(p, noise=u)[2].isnan()
    assert grad(lambda p: sampling.bernoulli_st(p, noise=u).sum())(p).tolist() == [1.0, 1.0, 1.0]
    logits = torch.tensor([-INF, INF, NAN], requires_grad=True)
    for gradient in ("sigmoid", "relaxed"):
        tau = torch.tensor(0.5, requires_grad=True)
        y = sampling.bernoulli_logits_st(logits, tau, gradient, noise=u)
        assert y.tolist()[:2] == [0.0, 1.0]
        assert y[2].isnan()
        y = sampling.bernoulli_logits_st(logits[:2], tau, gradient, noise=u[:2])
        by_logits, by_tau = torch.autograd.grad(y.sum(), (logits, tau))
        assert by_logits[:2].tolist() == [0.0, 0.0]
        assert by_tau == 0
    assert sampling.poisson_st(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert sampling.poisson_st(torch.tensor([-1.0, 2.0]), noise=torch.tensor([0.5, 1.0])).isnan().all()


@pytest.mark.parametrize("name", [*CATEGORICAL, *SUBSETS, "plackett_luce_st"])
def test_masked_classes_are_never_drawn(name):
    """A logit of minus infinity has the value 0 and the gradient 0, and does not change the gradient of the temperature."""
    x = torch.tensor([0.3, -INF, 1.1, 0.2], dtype=torch.float64)
    learned = name not in ("reinmax", "imle_topk", "k_subset_st", "plackett_luce_st")
    kwargs = {"tau": torch.tensor(0.7, dtype=torch.float64, requires_grad=True)} if learned else {}
    leaf = x.expand(50, 4).clone().requires_grad_()
    y = call(name, leaf, **kwargs)
    if name == "plackett_luce_st":
        assert (y.argmax(-1)[:, :3] != 1).all()  # the last one
        return
    assert (y[:, 1] == 0).all()
    assert not y.isnan().any()
    gradients = torch.autograd.grad((y * torch.arange(1.0, 5.0)).sum(), (leaf, *kwargs.values()))
    assert (gradients[0][:, 1] == 0).all()
    assert all(not g.isnan().any() for g in gradients)
    if name != "imle_topk":  # which has no tangent
        primals = tuple([t.detach() for t in (leaf, *kwargs.values())])
        tangents = tuple([torch.ones_like(t) for t in primals])
        tangent = torch.func.jvp(lambda leaf, *tau: call(name, leaf, **dict(zip(kwargs, tau, strict=True))), primals, tangents)[1]
        assert (tangent[:, 1] == 0).all()
        assert not tangent.isnan().any()


@pytest.mark.parametrize("name", [*CATEGORICAL, *SUBSETS, "plackett_luce_st"])
def test_rows_without_an_answer_are_nan(name):
    """Rows with NaN, plus infinity, or only minus infinity are NaN, in a batch of vmap, too; the others are right."""
    rows = torch.tensor([[0.1, NAN, 0.2], [0.1, INF, 0.2], [-INF, -INF, -INF], [0.1, 0.2, 0.3]])
    for y in (call(name, rows), vmap(lambda row: call(name, row), randomness="different")(rows)):
        assert y[:3].isnan().all()
        assert not y[3].isnan().any()


@pytest.mark.parametrize("name", SUBSETS)
def test_rows_with_too_few_classes_are_nan(name):
    """Fewer finite logits than k have no subset, soft or hard; the others are right."""
    rows = torch.tensor([[0.1, -INF, 0.2, 0.3], [0.1, -INF, 0.2, -INF], [0.1, -INF, -INF, -INF]])
    for kwargs in ({"hard": False}, {"hard": True}) if name == "gumbel_topk" else ({},):
        y = call(name, rows, k=3, **kwargs)
        assert not y[0].isnan().any()
        assert y[1:].isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_sizes_0_and_1(name):
    """Empty tensors and rows, one class, and numbers without dimensions work."""
    if name == "gumbel_sinkhorn":
        assert sampling.gumbel_sinkhorn(torch.zeros(0, 2, 2)).shape == (0, 2, 2)
        return
    assert call(name, torch.zeros(0, 3)).numel() == 0
    if name == "plackett_luce_st":
        return
    kwargs = {"k": 1} if name in SUBSETS else {}
    y = call(name, torch.tensor(0.7), **kwargs)
    assert y.shape == ()
    if name in (*CATEGORICAL, *SUBSETS):
        assert y == 1
        assert call(name, torch.tensor([0.7]), **kwargs).tolist() == [1.0]
        x = torch.tensor([0.7], requires_grad=True)
        assert torch.autograd.grad(call(name, x, **kwargs), x)[0] == 0
        kwargs = {"k": 0} if name in SUBSETS else {}
        assert call(name, torch.zeros(2, 0), **kwargs).shape == (2, 0)


def test_all_or_none_of_the_classes():
    """k = n and k = 0 give ones and zeros, without a derivative."""
    for k in (0, 4):
        for f in (sampling.k_subset_st, sampling.imle_topk):
            assert (f(X, k) == (k > 0)).all()
            assert (grad(lambda x, f=f, k=k: (f(x, k) * X).sum())(X) == 0).all()
        assert (sampling.gumbel_topk(X, k, hard=True) == (k > 0)).all()


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_result_has_the_dtype_of_the_parameters(name, dtype):
    """Value and gradient have that dtype, with noise of any floating dtype."""
    x = X.abs().clamp(max=1).to(dtype).requires_grad_()
    y = call(name, x)
    assert y.dtype == dtype
    assert torch.autograd.grad(y.sum(), x)[0].dtype == dtype
    if name not in ("gumbel_rao", "gumbel_sinkhorn"):
        assert call(name, x, noise=torch.full((4,), 0.3, dtype=torch.float64)).dtype == dtype


# --- Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_refused(name):
    """Errors give the name, the rule and what was found."""
    for bad in (torch.arange(4), torch.ones(4, dtype=torch.bool), torch.ones(4, dtype=torch.complex64)):
        with pytest.raises(TypeError, match=f"{name}: `.*` must be a (floating|real) tensor, got dtype"):
            call(name, bad)
    if name == "hard_concrete_l0":
        return
    x = X.abs().clamp(max=1)  # probabilities
    noise = sampling.uniform_like(X.expand(4, 4) if name == "gumbel_sinkhorn" else X)
    with pytest.raises(ValueError, match="`noise` and `generator` exclude each other"):
        call(name, x, noise=noise, generator=torch.Generator())
    with pytest.raises(ValueError, match=r"`noise` must have the shape"):
        call(name, x, noise=torch.rand(7))
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator"):
        call(name, x, generator=3)
    for temperature in ("tau", "sample_tau"):
        if temperature in signature(getattr(sampling, name)).parameters:
            with pytest.raises(ValueError, match=f"`{temperature}` must be positive"):
                call(name, X, **{temperature: 0.0})


def test_other_arguments():
    """Arguments of single operators are right."""
    for wrong in ({"gap": -1.0}, {"gap": "logits"}):
        with pytest.raises(ValueError, match="`gap`"):
            sampling.gapped_st(X, **wrong)
    for wrong in ({"gamma": 0.0}, {"gamma": 0.1}, {"zeta": 0.9}, {"zeta": 1.0}):
        with pytest.raises(ValueError, match="must be"):
            sampling.hard_concrete(X, **wrong)
    with pytest.raises(ValueError, match="`gradient` must be one of"):
        sampling.categorical_st(X, gradient="sigmoid")
    with pytest.raises(ValueError, match="`k` must be from 0 to 4"):
        sampling.k_subset_st(X, 5)
    with pytest.raises(ValueError, match=r"`samples` must be .* 2147483648"):
        sampling.gumbel_rao(X, samples=2**31 + 1)
    with pytest.raises(ValueError, match="`tau` must broadcast"):
        sampling.gumbel_softmax(X, torch.ones(3))
    with pytest.raises(IndexError, match="`dim` must be from"):
        sampling.reinmax(X, dim=1)
    with pytest.raises(ValueError, match="square"):
        sampling.gumbel_sinkhorn(torch.ones(2, 3))


def test_imle_has_no_tangent():
    """Forward mode raises an error that names the operator and says what to use instead."""
    with pytest.raises(NotImplementedError, match=r"imle_topk: there is no tangent.*gumbel_topk"):
        jacfwd(lambda x: sampling.imle_topk(x, 2, noise=torch.zeros(4)))(X)
    assert (hessian_by_reverse(lambda x: (sampling.imle_topk(x, 2, noise=torch.zeros(4)) * X).sum())(X) == 0).all()


def hessian_by_reverse(f):
    return jacrev(jacrev(f))


def test_hessian_takes_noise_or_randomness():
    """`torch.func.hessian` raises without noise, and works with it, or as `jacfwd(jacrev)` with randomness."""
    f = lambda x, **kwargs: (sampling.categorical_st(x, **kwargs) * X).sum()  # noqa: E731
    with pytest.raises(RuntimeError, match="random"):
        hessian(f)(X)
    noise = sampling.gumbel_like(X)
    expected = hessian(lambda x: f(x, noise=noise))(X)
    torch.manual_seed(1)
    assert jacfwd(jacrev(f), randomness="same")(X).shape == expected.shape


@pytest.mark.parametrize("name", [*CATEGORICAL, "k_subset_st", "imle_topk", "gumbel_topk"])
def test_any_dimension(name):
    """Rows along another dimension are those of the transpose, with its noise."""
    x = torch.randn(4, 3, dtype=torch.float64)
    size = (11,) if name == "gumbel_rao" else ()
    draw = sampling.uniform_like if name == "k_subset_st" else sampling.gumbel_like
    noise = draw(x, size)
    for dim in (0, -2):
        torch.testing.assert_close(call(name, x, dim=dim, noise=noise), call(name, x.mT, noise=noise.mT).mT)
    batch = vmap(lambda x, noise: call(name, x, dim=0, noise=noise), (0, noise.ndim - 2))(x, noise)
    # Of a softmax over other strides a CPU may have another last bit.
    torch.testing.assert_close(batch, call(name, x, noise=noise))
    torch.testing.assert_close(call(name, x[0], dim=0, noise=noise[..., 0, :]), batch[0])
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    noise = draw(x, size)
    for dim in (-3, -2):
        rows = call(name, x.movedim(dim, -1), noise=noise.movedim(dim, -1))
        torch.testing.assert_close(call(name, x, dim=dim, noise=noise), rows.movedim(-1, dim))


@pytest.mark.parametrize("tau", [1.0, 0.3])
@pytest.mark.parametrize("k", [0, 1, 3, 4])
def test_relaxed_subsets_are_sums_of_softmaxes(k, tau):
    """A relaxed subset sums softmaxes of what the ones before left, for every k; value and gradient."""
    x, noise, weights = (torch.randn(3, 4, dtype=torch.float64) for _ in range(3))
    x.requires_grad_()
    found, expected = sampling.gumbel_topk(x, k, tau, noise=noise), _topk_weights(x, noise, tau, k)
    torch.testing.assert_close(found, expected)
    if k:
        gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", [n for n in NAMES if "tau" in signature(getattr(sampling, n)).parameters and n != "reinmax"])
def test_a_number_as_temperature_is_a_tensor_of_it(name, tau):
    """Value and gradient of the same draw are equal, also for temperatures with a shorter formula."""
    x = torch.randn(4, dtype=torch.float64).requires_grad_()

    def computed(tau):
        torch.manual_seed(0)
        outputs = call(name, x, tau=tau)
        y = outputs[0] if isinstance(outputs, tuple) else outputs
        weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape)
        return y.detach(), torch.autograd.grad((y * weights).sum(), x)[0]

    for number, tensor in zip(computed(tau), computed(torch.tensor(tau, dtype=torch.float64)), strict=True):
        torch.testing.assert_close(number, tensor)


def test_gumbel_softmax_has_torchs_signature():
    """`torch.nn.functional.gumbel_softmax(logits, tau, hard, eps, dim)` without the obsolete eps."""
    ours = list(signature(sampling.gumbel_softmax).parameters)
    theirs = list(signature(torch.nn.functional.gumbel_softmax).parameters)
    assert [n for n in theirs if n != "eps"] == ours[:4]


@pytest.mark.parametrize("operator", [sampling.bernoulli_logits_st, sampling.bernoulli_st, sampling.poisson_st])
def test_uniform_noise_has_no_derivative(operator):
    """Noise moves a threshold of the sample, which no estimator here follows."""
    x, noise = X.abs().clamp(0.1, 0.9).requires_grad_(), sampling.uniform_like(X).requires_grad_()
    (found,) = torch.autograd.grad(operator(x, noise=noise).sum(), noise, allow_unused=True)
    assert found is None or not found.any()
    _, tangent = torch.func.jvp(lambda noise: operator(x.detach(), noise=noise), (noise.detach(),), (torch.ones_like(X),))
    assert not tangent.any()


@pytest.mark.parametrize("name", ["gumbel_topk", "gumbel_softmax"])
def test_gradients_of_the_terms_of_a_sum_share_no_memory(name):
    """Gradients of logits and noise are equal, and autograd may add to one of them in place."""
    x, noise = X.clone().requires_grad_(), sampling.gumbel_like(X).requires_grad_()

    def gradients(x, noise, of):
        y = getattr(sampling, name)(x, 2, noise=noise)
        return torch.autograd.grad((y * torch.arange(4)).sum(), of)

    a, b = gradients(x, noise, (x, noise))
    assert torch.equal(a, b)
    assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()
    assert torch.equal(a, gradients(x, noise.detach(), (x,))[0])
    assert torch.equal(a, gradients(x.detach(), noise, (noise,))[0])


def test_saved_bytes_of_large_tensors():
    """Nothing is saved, or eight bytes per row beyond the logits."""
    kept = []
    x = torch.randn(256, 64, requires_grad=True)
    for name, most in (("categorical_st", 0), ("reinmax", 8 * 256), ("gapped_st", 8 * 256), ("gumbel_softmax", 4 * 256 * 64)):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = getattr(sampling, name)(x, **({"hard": True} if name == "gumbel_softmax" else {}))
        alive = {x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()}
        assert sum(t.untyped_storage().nbytes() for t in kept if t.untyped_storage().data_ptr() not in alive) <= most


@pytest.mark.parametrize("far", [2.0**20, -(2.0**20)])
@pytest.mark.parametrize("name", [*CATEGORICAL, *SUBSETS, "plackett_luce_st", "gumbel_sinkhorn"])
def test_what_all_logits_have_in_common_changes_nothing(name, far):
    """An offset of all logits leaves noise, sample and derivative the same, up to the digits lost in the sum."""
    logits = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def found(far):
        x = (logits + far).requires_grad_()
        y = call(name, x, generator=torch.Generator().manual_seed(3))
        return y.detach(), torch.autograd.grad(y, x, torch.sin(torch.arange(y.numel()).view(y.shape).double()))[0]

    torch.testing.assert_close(found(far), found(0.0), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("offset", [-(2.0**23), 2.0**20, 2.0**24])
def test_subsets_of_logits_far_from_0(offset):
    """An offset that all logits have in common changes no draw."""
    logits = torch.tensor([2.0, -2.0, 4.0, 0.0, -6.0]).expand(500, 5)
    noise = torch.rand(500, 5)
    assert torch.equal(sampling.k_subset_st(logits + offset, 2, noise=noise), sampling.k_subset_st(logits, 2, noise=noise))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["relaxed_bernoulli", "hard_concrete", "gumbel_softmax"])
def test_derivatives_at_tiny_temperatures(name, order):
    """At a temperature in a tensor near 0 all derivatives are finite, and 0 where the sample is sure."""
    noise = torch.tensor([0.3, 0.6, 0.9])

    def f(x, tau):
        return getattr(sampling, name)(x, tau=tau, noise=noise) @ torch.tensor([1.0, 2.0, 3.0])

    x = torch.tensor([0.3, -2.0, 5.0])
    for tau in (1e-3, 1e-8, 1e-12, 1e-20, 1e-30)[: 5 if order == 1 else 3]:
        derivative = grad(f, (0, 1)) if order == 1 else torch.func.hessian(f, (0, 1))
        found = torch.utils._pytree.tree_leaves(derivative(x, torch.tensor(tau)))
        assert all(not v.any() for v in found), (tau, found)


@pytest.mark.parametrize("tau", [0.5, 0.05, 1e-3, 1e-20, 1e-30])
@pytest.mark.parametrize("function", [sampling.relaxed_bernoulli, sampling.hard_concrete])
def test_second_derivatives_by_the_temperature_are_true(function, tau):
    """In every nesting, also where the slope of logits over the temperature overflows."""
    mpmath = pytest.importorskip("mpmath")
    u, t = torch.tensor(0.3), torch.tensor(tau)
    stretch = 1.2 if function is sampling.hard_concrete else 1.0
    for logit in (-1.0, -0.5, 0.0):
        x = mpmath.mpf(logit) - mpmath.log(mpmath.mpf(u.item()) / (1 - mpmath.mpf(u.item())))
        with mpmath.workdps(60):
            at = mpmath.mpf(t.item())
            expected = 0.0 if tau < 1e-2 else float(stretch * mpmath.diff(lambda s: 1 / (1 + mpmath.exp(-x / s)), at, 2))  # noqa: B023
        f = lambda t: function(torch.tensor(logit), t, noise=u)  # noqa: B023, E731
        if stretch > 1 and f(t) in (0, 1):
            expected = 0.0  # clamped
        for outer in (grad, jacfwd):
            for inner in (grad, jacfwd):
                assert outer(inner(f))(t).item() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def smallest_noise(dtype, numbers):
    """Numbers with noise of 0, next to it and next to 1, and the same noise in float64, with what 0 counts as."""
    finfo = torch.finfo(dtype)
    u = torch.tensor([0.0, finfo.smallest_normal * finfo.eps, finfo.smallest_normal, finfo.eps, 0.25, 1 - finfo.eps], dtype=dtype)
    wide = u.double().clamp(min=torch.finfo(torch.promote_types(dtype, torch.float32)).tiny)
    return torch.broadcast_tensors(numbers.to(dtype)[:, None], u, wide)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_noise_of_0_counts_as_less_than_other_noise(dtype):
    """The smallest numbers of each dtype are what they are, 0 is a smallest normal one, and values are those of float64."""
    logits, u, wide = smallest_noise(dtype, torch.tensor([-200.0, -80, -60, -16, -8, -0.5, 0, 3, 8, 15]))
    for tau in (2 / 3, 64.0):
        s = torch.sigmoid((logits.double() - torch.log(wide) + torch.log1p(-wide)) / tau)
        eps = 8 * max(torch.finfo(dtype).eps, torch.finfo(torch.float64).eps)
        torch.testing.assert_close(sampling.relaxed_bernoulli(logits, tau, noise=u).double(), s, rtol=4 * eps, atol=eps)
        gate = (s * 1.2 - 0.1).clamp(0, 1)
        torch.testing.assert_close(sampling.hard_concrete(logits, tau, noise=u).double(), gate, rtol=4 * eps, atol=eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_counts_of_the_smallest_noise(dtype):
    """A count is that of the same noise in float64, in which the smallest numbers of each dtype are different."""
    rates, u, wide = smallest_noise(dtype, torch.tensor([0.5, 9.0, 12.0, 40.0, 200.0]))
    assert torch.equal(sampling.poisson_st(rates, noise=u).double(), sampling.poisson_st(rates.double(), noise=wide))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_relaxed_sample_is_on_the_side_of_the_hard_one(dtype):
    """Also for noise of 0, as long as the probability is a normal number."""
    logits, u, _ = smallest_noise(dtype, torch.linspace(-85, 85, 501))
    hard = sampling.bernoulli_logits_st(logits, noise=u)
    soft = sampling.relaxed_bernoulli(logits, 1e-3, noise=u)
    near = (logits.double() - torch.logit(u.double())).abs() < 1  # a probability next to 1 is rounded
    assert torch.equal((soft > 0.5)[~near], (hard > 0.5)[~near])
