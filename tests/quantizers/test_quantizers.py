"""Properties specific to quantizers: blocks, noise, special values, what is saved, errors, the module."""

import math

import numpy
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import fullgrad
from fullgrad import quantizers
from fullgrad.quantizers import FloatFormat
from fullgrad.testing._subject import equal
from tests.operators import raises, saved_tensors

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan

# --- Blocks --------------------------------------------------------------------------------------------------------------

SHAPES = [(), (1,), (12,), (4, 1), (4, 12), (4, 4), (2, 1), (2, 6), (1, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("other", [(), (4, 1), (2, 4), (1, 2)])
def test_a_parameter_has_one_number_per_block(shape, other):
    """Value and gradients are those of a parameter that is repeated over its blocks."""
    x = (torch.randn(4, 12, dtype=torch.float64) * 2).requires_grad_()
    scale = (torch.rand(shape, dtype=torch.float64) + 0.2).requires_grad_()
    zero_point = torch.randn(other, dtype=torch.float64).requires_grad_()

    def repeated(p):
        p = p.reshape((1,) * (2 - p.ndim) + p.shape)
        return p.repeat_interleave(4 // p.shape[0], 0).repeat_interleave(12 // p.shape[1], 1)

    ours = quantizers.fake_quantize(x, scale, zero_point, -3, 4)
    theirs = quantizers.fake_quantize(x, repeated(scale), repeated(zero_point), -3, 4)
    equal(ours.detach(), theirs.detach())
    g = torch.randn(4, 12, dtype=torch.float64)
    leaves = (x, scale, zero_point)
    torch.testing.assert_close(torch.autograd.grad(ours, leaves, g), torch.autograd.grad(theirs, leaves, g))


def test_blocks_are_those_of_a_sample_under_vmap():
    """Under vmap shapes of blocks are those of a sample."""
    x, scale = torch.randn(5, 4, 12), torch.rand(5, 2, 3) + 0.1
    loop = torch.stack([quantizers.fake_quantize(a, s) for a, s in zip(x, scale, strict=True)])
    equal(vmap(quantizers.fake_quantize)(x, scale), loop)
    loop = torch.stack([quantizers.fake_quantize(x[0], s) for s in scale])
    equal(vmap(quantizers.fake_quantize, in_dims=(None, 0))(x[0], scale), loop)


@pytest.mark.parametrize("shape", [(3,), (3, 12), (4, 5), (2, 2, 2), (0, 12)])
def test_other_shapes_are_refused(shape):
    """The error names the parameter and both shapes."""
    for call in (quantizers.fake_quantize, quantizers.binarize, lambda x, s: quantizers.float_quantize(x, "float16", s)):
        with pytest.raises(ValueError, match=r"`scale` must broadcast to the shape \(4, 12\) of x, or have as many"):
            call(torch.randn(4, 12), torch.ones(shape))


def test_float_formats_take_blocks_too():
    """Float formats, codebooks, and stretched grids take blocks."""
    x, scale = torch.randn(4, 12), torch.rand(2, 4) + 0.1
    full = scale.repeat_interleave(2, 0).repeat_interleave(3, 1)
    for f in (
        lambda s: quantizers.float_quantize(x, "float4_e2m1fn", s),
        lambda s: quantizers.codebook_quantize(x, quantizers.levels("nf4"), s),
        lambda s: quantizers.stretched_elastic(x, s),
        lambda s: quantizers.ternarize(x, 0.5, s),
        lambda s: quantizers.lsq(x, s, -2, 1),
    ):
        equal(f(scale), f(full))


# --- Noise ---------------------------------------------------------------------------------------------------------------

DRAWS = 2**20


@pytest.mark.parametrize(
    ("x", "step", "operator"),
    [
        *[(x, 1.0, lambda x: fullgrad.stochastic_round(x, generator=_generator())) for x in (0.3, -0.3, 1e-3, -7.999)],
        *[
            (x, step, lambda x: quantizers.float_quantize(x, "float8_e4m3fn", rounding="stochastic", generator=_generator()))
            for x, step in ((17.3, 2.0), (-0.3, 0.03125), (1e-3, 2.0**-9))
        ],
        (0.33, 0.1, lambda x: quantizers.fake_quantize(x, 0.1, rounding="stochastic", generator=_generator())),
    ],
)
def test_stochastic_rounding_has_no_bias(x, step, operator):
    """The mean of a million draws is within four standard errors; all results are next to the number."""
    y = operator(torch.full((DRAWS,), x)).double()
    exact = float(torch.tensor(x))
    fraction = abs(exact / step) % 1
    assert abs(y.mean() - exact) <= 4 * math.sqrt(max(fraction * (1 - fraction), 1e-9) / DRAWS) * step
    assert (y - exact).abs().max() < step


def _generator():
    return torch.Generator().manual_seed(1)


def test_noise_of_bfloat16_would_be_a_bias():
    """The test above can fail."""
    noise = torch.rand(DRAWS, dtype=torch.bfloat16, generator=_generator())
    y = fullgrad.stochastic_round(torch.full((DRAWS,), 0.001), noise=noise).double()
    assert abs(y.mean() - 0.001) > 4 * math.sqrt(0.001 / DRAWS)


def test_value_gradient_and_tangent_share_a_draw():
    """One draw serves all, also by the operator itself; equal seeds give equal numbers, and vmap obeys ``randomness``."""
    x = torch.randn(64) * 3
    f = lambda x, noise=None: quantizers.fake_quantize(x, 0.5, 0, -3, 4, rounding="stochastic", noise=noise)  # noqa: E731
    torch.manual_seed(3)
    noise = torch.rand_like(x)
    torch.manual_seed(3)
    equal(f(x), f(x, noise))
    g = grad(lambda x: f(x, noise).sum())(x)
    equal(g, torch.func.jvp(lambda x: f(x, noise), (x,), (torch.ones_like(x),))[1])
    assert 0 < g.sum() < 64
    same = vmap(lambda _: f(x), randomness="same")(torch.zeros(3))
    different = vmap(lambda _: f(x), randomness="different")(torch.zeros(3))
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(f)(x.expand(3, 64))
    total = lambda x: f(x, noise).square().sum()  # noqa: E731
    torch.testing.assert_close(hessian(total)(x), jacfwd(jacrev(total))(x))


@pytest.mark.parametrize(
    "operator", [quantizers.fake_quantize, lambda x, s, **k: quantizers.float_quantize(x, "float16", s, **k)]
)
def test_noise_without_use_is_refused(operator):
    """Useless noise, a generator with noise, and noise of another shape are refused."""
    x = torch.randn(3)
    with pytest.raises(ValueError, match="`noise` and `generator` are for"):
        operator(x, 1.0, noise=torch.rand(3))
    with pytest.raises(ValueError, match="exclude each other"):
        operator(x, 1.0, rounding="stochastic", noise=torch.rand(3), generator=_generator())
    with pytest.raises(ValueError, match="`noise` must have the shape"):
        operator(x, 1.0, rounding="stochastic", noise=torch.rand(4))


# --- Special values ------------------------------------------------------------------------------------------------------

OPERATORS = {
    "fake_quantize": lambda x: quantizers.fake_quantize(x, 0.5, 0, -8, 7),
    "lsq": lambda x: quantizers.lsq(x, torch.tensor(0.5), -8, 7),
    "float_quantize": lambda x: quantizers.float_quantize(x, "float4_e2m1fn"),
    "binarize": quantizers.binarize,
    "ternarize": lambda x: quantizers.ternarize(x, 0.5),
    "codebook_quantize": lambda x: quantizers.codebook_quantize(x, quantizers.levels("nf4")),
    "power_of_two": lambda x: quantizers.power_of_two(x, max_exponent=3),
    "stretched_elastic": lambda x: quantizers.stretched_elastic(x, 1.0),
    "pact": lambda x: quantizers.pact(x, 2.0),
    "dorefa_activation": lambda x: quantizers.dorefa_activation(x, 3),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_gives_nan_and_infinities_the_ends(name, dtype):
    """NaN gives NaN, and infinities the ends, in every dtype; empty tensors are empty."""
    operator = OPERATORS[name]
    y = operator(torch.tensor([NAN, INF, -INF], dtype=dtype))
    assert y[0].isnan()
    assert y[1:].isfinite().all()
    assert y.dtype == dtype
    assert operator(torch.empty(0, 3, dtype=dtype)).shape == (0, 3)


@pytest.mark.parametrize("scale", [0.5, torch.tensor(0.5)])
@pytest.mark.parametrize("inside", ["rounded", "exact"])
def test_nothing_passes_outside(scale, inside):
    """Outside even infinite or NaN gradients become 0."""
    x = torch.tensor([NAN, INF, -INF, 100.0, 0.2], requires_grad=True)
    g = torch.tensor([INF, NAN, INF, NAN, 3.0])
    for f in (
        lambda: quantizers.fake_quantize(x, scale, 0, -3, 4, inside=inside),
        lambda: quantizers.float_quantize(x, "float4_e2m1fn", scale, inside=inside),
    ):
        equal(torch.autograd.grad(f(), x, g)[0], torch.tensor([0.0, 0.0, 0.0, 0.0, 3.0]))


def test_second_derivatives_are_finite_far_out():
    """The derivative of the scale at infinities is finite, and so is its derivative."""
    x = torch.tensor([INF, -INF, 1e38, 0.3])
    f = lambda s: quantizers.fake_quantize(x, s, 0, -3, 4).sum()  # noqa: E731
    assert torch.allclose(grad(f)(torch.tensor(0.5)), torch.tensor(4 - 3 + 4 + 1 - 0.6))
    assert grad(grad(f))(torch.tensor(0.5)) == 0


# --- What is saved -------------------------------------------------------------------------------------------------------


def test_what_is_saved():
    """The input and tensor parameters are saved; nothing where the derivative is 1."""
    x, s = torch.randn(8, 32, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    cases = {
        (x,): lambda: quantizers.fake_quantize(x, 0.5),
        (x, s): lambda: quantizers.float_quantize(x, "float8_e5m2", s),
        (): lambda: [
            quantizers.fake_quantize(x, 0.5, inside="all"),
            quantizers.float_quantize(x, "float8_e5m2", 0.5, inside="all"),
            quantizers.mx_quantize(x),
            quantizers.nvfp4_quantize(x),
            quantizers.binarize(x, 2.0, window=None),
            quantizers.ternarize(x, 0.5),
            quantizers.codebook_quantize(x, quantizers.levels("nf4")),
            quantizers.power_of_two(x, gradient="identity"),
            quantizers.twn(x),
            fullgrad.stochastic_round(x),
            fullgrad.round(x, "half_away"),
        ],
    }
    for expected, call in cases.items():
        with saved_tensors() as kept:
            call()
        assert [t.data_ptr() for t in kept] == [t.data_ptr() for t in expected]


def test_a_zero_point_learns_nothing_where_the_gradient_passes_everywhere():
    """With ``inside="all"`` the gradient is that of the identity, whatever the zero point; with a scale next to it, too."""
    x, zero_point = torch.linspace(-3, 3, 7), torch.tensor(1.0, requires_grad=True)
    for scale in (0.5, torch.tensor(0.5, requires_grad=True)):
        y = quantizers.fake_quantize(x, scale, zero_point, -2, 2, inside="all")
        assert torch.autograd.grad(y.sum(), zero_point, allow_unused=True, materialize_grads=True)[0] == 0


# --- Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: quantizers.fake_quantize(x, 0.0), ValueError, "`scale` must be positive and finite"),
        (lambda x: quantizers.fake_quantize(x, 1e-45), ValueError, "so must its reciprocal"),
        (lambda x: quantizers.fake_quantize(x, NAN), ValueError, "`scale` must be positive"),
        (lambda x: quantizers.fake_quantize(x, 1.0, 0, 3, 3), ValueError, "`quant_min` must be less than `quant_max`"),
        (lambda x: quantizers.fake_quantize(x, 1.0, 3, 3, 3), ValueError, "`quant_min` must be less than `quant_max`"),
        (lambda x: quantizers.fake_quantize(x, 1.0, 0, -(2**25), 3), ValueError, "within 16777216"),
        (lambda x: quantizers.fake_quantize(x, 1.0, 0, 0, 2**25), ValueError, "within 16777216"),
        (lambda x: quantizers.fake_quantize(x, 1.0, 0, 0.5, 3), TypeError, "`quant_min` must be an integer"),
        (
            lambda x: quantizers.fake_quantize(x, 1.0, "a"),
            TypeError,
            "^fake_quantize: `zero_point` .* of type str",
        ),
        (lambda x: quantizers.fake_quantize(x, 1.0, math.inf, round_zero_point=False), ValueError, "`zero_point` must be finite"),
        (lambda x: quantizers.fake_quantize(x, 1.0, 0.5), ValueError, "`zero_point` must be an integer from"),
        (lambda x: quantizers.fake_quantize(x, 1.0, 200), ValueError, "`zero_point` must be an integer from"),
        (lambda x: quantizers.fake_quantize(x, torch.ones(3), dim=5), IndexError, "`dim` must be from"),
        (lambda x: quantizers.fake_quantize(x, torch.ones(2), dim=0), ValueError, "one number for each of the 3"),
        (lambda x: quantizers.fake_quantize(x, 1.0, inside="outside"), ValueError, "`inside` must be one of 'rounded'"),
        (lambda x: quantizers.fake_quantize(x, 1.0, rounding="up"), ValueError, "`rounding` must be one of 'half_even'"),
        (lambda x: fullgrad.round(x, "up"), ValueError, "`mode` must be one of"),
        (lambda x: quantizers.float_quantize(x, "float7"), ValueError, "FloatFormat or one of float8_e4m3fn"),
        (lambda x: quantizers.float_quantize(x, torch.float64), ValueError, "FloatFormat or one of"),
        (lambda x: quantizers.float_quantize(x, 8), TypeError, "must be a FloatFormat"),
        (lambda x: quantizers.float_quantize(x, FloatFormat(8, 24)), ValueError, "must be numbers of the dtype"),
        (lambda x: FloatFormat(0, 3), ValueError, "`exponent_bits` must be from 1"),
        (lambda x: FloatFormat(4, 3.5), TypeError, "FloatFormat: `mantissa_bits` must be an integer"),
        (lambda x: FloatFormat(4, 3, kind="e4m3"), ValueError, "`kind` must be one of"),
        (lambda x: quantizers.mx_quantize(x, "float16"), ValueError, "`element` must be one of"),
        (lambda x: quantizers.mx_quantize(x, block_size=2), ValueError, "`block_size` must be positive and divide"),
        (lambda x: quantizers.nvfp4_quantize(x), ValueError, "`block_size` must be positive and divide"),
        (lambda x: quantizers.binarize(x, window=-1.0), ValueError, "`window` must not be negative"),
        (lambda x: quantizers.binarize(x, at_zero=0.5), ValueError, "`at_zero` must be one of"),
        (lambda x: quantizers.ternarize(x, -1.0), ValueError, "`threshold` must not be negative"),
        (lambda x: quantizers.codebook_quantize(x, torch.ones(2, 2)), ValueError, "`codebook` must have one dimension"),
        (lambda x: quantizers.codebook_quantize(x, torch.ones(2), inside="rounded"), ValueError, "`inside` must be one of"),
        (lambda x: quantizers.vector_quantize(x, torch.ones(2, 4)), ValueError, "the last dimension of `x`"),
        (lambda x: quantizers.power_of_two(x, 3, 2), ValueError, "must not be above"),
        (lambda x: quantizers.levels("nf4", 3), ValueError, "`bits` must be from 4 to 4"),
        (lambda x: quantizers.quant_range(0), ValueError, "`bits` must be from 1"),
        (lambda x: quantizers.fsq(x, (3, 3)), ValueError, "a number for each of the channels"),
        (lambda x: quantizers.stretched_elastic(x, 1.0, 1), ValueError, "`levels` must be at least 2"),
        (lambda x: quantizers.tqt(x, 0.0, 25), ValueError, "`bits` must be .*, got 25"),
        (lambda x: quantizers.twn(x[:0]), ValueError, "at least one element"),
        (lambda x: quantizers.levels("apot", 8), ValueError, "`bits` must be from 3 to 7"),
        (lambda x: quantizers.levels("power_of_two", 1), ValueError, "`bits` must be from 2 to 8"),
    ],
)
def test_errors_name_the_argument_the_rule_and_what_was_found(call, error, match):
    """Errors are raised before anything is recorded."""
    with raises(error, match=match):
        call(torch.randn(3, 3))


@pytest.mark.short
@pytest.mark.parametrize("value", [0.5, "1", None])
def test_errors_about_integers_keep_their_words_in_compiled_code(value):
    """Dynamo has errors of its own about what is not an integer."""
    compiled = torch.compile(lambda x: quantizers.fake_quantize(x, 1.0, 0, value, 3), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="`quant_min` must be an integer"):
        compiled(torch.ones(3))


def test_large_tensors_in_pieces_are_the_same():
    """Value and gradients of a million numbers, which are computed piece by piece, are those of small parts."""
    torch.manual_seed(0)
    x, scale = torch.randn(4, 2**17 + 3), torch.tensor([[0.1], [0.2], [0.3], [0.4]])
    for f in (
        lambda x, s: quantizers.fake_quantize(x, s, 1, -8, 7),
        lambda x, s: quantizers.float_quantize(x, "float6_e2m3fn", s, inside="exact"),
    ):
        for s in (scale, 0.3):
            s_of = (lambda i: s[i : i + 1]) if isinstance(s, torch.Tensor) else (lambda i: s)  # noqa: B023
            leaf = x.clone().requires_grad_()
            y = f(leaf, s)
            (g,) = torch.autograd.grad(y, leaf, x)
            for i in range(4):
                parts = [c.clone().requires_grad_() for c in x[i : i + 1].split(1000, -1)]
                small = [f(c, s_of(i)) for c in parts]
                equal(torch.cat(small, -1).detach(), y[i : i + 1].detach())
                equal(
                    torch.cat([torch.autograd.grad(v, c, c.detach())[0] for v, c in zip(small, parts, strict=True)], -1),
                    g[i : i + 1],
                )


def test_ranges_of_codes():
    """Ranges of b bits may be signed or not, full or symmetric."""
    for bits in (2, 4, 8):
        n = 2**bits
        assert quantizers.quant_range(bits) == (-n // 2, n // 2 - 1)
        assert quantizers.quant_range(bits, narrow_range=True) == (1 - n // 2, n // 2 - 1)
        assert quantizers.quant_range(bits, signed=False) == (0, n - 1)
        assert quantizers.quant_range(bits, signed=False, narrow_range=True) == (0, n - 2)


def test_pact_of_a_number_is_that_of_a_tensor():
    """Value and gradient of the input: a grid from 0 to alpha."""
    x = torch.linspace(-1, 3, 41, requires_grad=True)
    found = [quantizers.pact(x, alpha, 3) for alpha in (1.75, torch.tensor(1.75))]
    assert found[0].detach().unique().tolist() == [0.25 * i for i in range(8)]
    equal(*[y.detach() for y in found])
    equal(*[torch.autograd.grad(y.sum(), x)[0] for y in found])


def test_rows_of_bsq_that_have_no_direction():
    """Rows of zeros have signs of -1 and the derivative of a division by 1; others are scaled by the radius."""
    x = torch.tensor([[0.0, 0.0], [3.0, -4.0]], dtype=torch.float64, requires_grad=True)
    y = quantizers.bsq(x, 2.0)
    torch.testing.assert_close(y.detach(), torch.tensor([[-1.0, -1.0], [1.0, -1.0]], dtype=torch.float64) * math.sqrt(2))
    (g,) = torch.autograd.grad(y[:, 0].sum(), x)
    # Of u = 2 x / |x| the derivative of the first by both is 2 (1 - u u^T / 4) / 5.
    torch.testing.assert_close(g, torch.tensor([[2.0, 0.0], [2 * 0.64 / 5, 2 * 0.48 / 5]], dtype=torch.float64))
    sizes = torch.tensor([[3.0, -4.0]]) * torch.tensor([[1e30], [1e-30]])
    assert quantizers.bsq(sizes).isfinite().all()
    for wrong in (torch.tensor(1.0), torch.zeros(3, 0)):
        with pytest.raises(ValueError, match="bsq: `x` must have a last dimension"):
            quantizers.bsq(wrong)


def test_stochastic_rounding_passes_the_gradient_where_it_stays_in_the_range():
    """Values of float8_e4m3fn, whose last step is 32, stay in the range beyond 448 with the probability of rounding down."""
    x = torch.tensor([440.0, 448.0, 456.0, 464.0, 479.0, 480.0, 600.0, -456.0], requires_grad=True)
    for u in (0.1, 0.3, 0.6):
        noise = torch.full_like(x, u)
        y = quantizers.float_quantize(x, "float8_e4m3fn", rounding="stochastic", noise=noise)
        expected = (x.detach().abs() - 448) / 32 <= u
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0].bool(), expected)


def test_rounded_gradients_saturate():
    """Gradients beyond the largest number of a format without infinity saturate."""
    x = torch.zeros(4, requires_grad=True)
    g = torch.tensor([1e6, -1e6, 1.04, math.inf])
    (found,) = torch.autograd.grad(quantizers.float_quantize_bwd(x, "float8_e4m3fn"), x, g)
    assert found.tolist() == [448.0, -448.0, 1.0, 448.0]


def test_blocks_beyond_the_largest_scale_of_nvfp4():
    """Blocks saturate at 6 times 448, the largest numbers of both formats."""
    x = torch.full((16,), 1e5)
    x[1] = -300.0
    assert quantizers.nvfp4_quantize(x)[:3].tolist() == [6 * 448.0, -0.5 * 448.0, 6 * 448.0]


@pytest.mark.parametrize("levels", [2, 3, 4, 5])
def test_levels_that_are_balanced_around_0(levels):
    """The stretched elastic quantizer has as many levels as asked for, and 0 among them if that is odd."""
    found = quantizers.stretched_elastic(torch.linspace(-2, 2, 101), 1.0, levels).unique()
    torch.testing.assert_close(found, (2 * torch.arange(levels) - (levels - 1)) / levels)


def test_scaled_gradients_at_the_thresholds():
    """Numbers at a threshold become 0, and their gradient is not scaled."""
    x = torch.tensor([-0.6, -0.5, 0.0, 0.5, 0.6], requires_grad=True)
    for negative, expected in ((None, [3.0, 1, 1, 1, 3]), (2.0, [2.0, 1, 1, 1, 3])):
        y = quantizers.ternarize(x, 0.5, 3.0, negative, scale_gradient=True)
        assert y.detach().tolist() == [-expected[0], 0.0, 0.0, 0.0, 3.0]
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == expected


def test_one_learned_scale_of_two():
    """One learned scale has its derivative where the other is a number, or absent."""
    x = torch.tensor([-0.9, -0.6, 0.1, 0.7, 0.8, 0.9])
    for negative, expected in ((None, 1.0), (0.5, 3.0)):
        assert grad(lambda s: quantizers.ternarize(x, 0.5, s, negative).sum())(torch.tensor(2.0)) == expected  # noqa: B023
    assert grad(lambda n: quantizers.ternarize(x, 0.5, 2.0, n).sum())(torch.tensor(0.5)) == -2


@pytest.mark.parametrize(("name", "bits"), [("twn", ()), ("xnor", ()), ("dorefa_weight", (2,))])
def test_weights_of_nothing(name, bits):
    """Empty weights have no mean, and no largest element."""
    with pytest.raises(ValueError, match=rf"^{name}: `w` must have at least one element"):
        getattr(quantizers, name)(torch.zeros(0), *bits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_any_size_are_quantized_alike(dtype):
    """Gradients up to the largest numbers are right, where twice the largest absolute value overflows."""
    limits = torch.finfo(dtype)
    shape = torch.tensor([1.0, -0.5, 0.25, -1.0], dtype=dtype)
    x = torch.zeros(4, dtype=dtype, requires_grad=True)
    y = quantizers.dorefa_gradient(x, 3, noise=torch.full((4,), 0.5))
    (expected,) = torch.autograd.grad(y, x, shape, retain_graph=True)
    for size in (math.ldexp(0.5, math.frexp(limits.max)[1]), 1.0, limits.tiny * 64):
        (found,) = torch.autograd.grad(y, x, shape * size, retain_graph=True)
        torch.testing.assert_close(found / size, expected, rtol=limits.eps, atol=0)


def test_codebooks_of_a_batch():
    """Batches of codebooks work along any dimension of both arguments."""
    x, codebooks = torch.randn(3, 5, 2), torch.randn(3, 4, 2)
    expected = [quantizers.vector_quantize(v, c)[0] for v, c in zip(x, codebooks, strict=True)]
    found = vmap(lambda v, c: quantizers.vector_quantize(v, c)[0], (2, 2))(x.movedim(0, 2), codebooks.movedim(0, 2))
    torch.testing.assert_close(found, torch.stack(expected))
    nested = vmap(vmap(lambda v, c: quantizers.vector_quantize(v, c)[0]), (0, None))(torch.stack((x, -x)), codebooks)
    others = [quantizers.vector_quantize(-v, c)[0] for v, c in zip(x, codebooks, strict=True)]
    torch.testing.assert_close(nested, torch.stack((torch.stack(expected), torch.stack(others))))


def test_formats_have_the_bias_of_ieee_by_default():
    """torch's half precisions are formats, to the last number."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for bits, dtype in (((5, 10), torch.float16), ((8, 7), torch.bfloat16)):
        x = every.view(dtype).float()
        x = x[x.isfinite()]
        torch.testing.assert_close(quantizers.float_quantize(x, FloatFormat(*bits)), x, rtol=0, atol=0)
        assert FloatFormat(*bits).max == torch.finfo(dtype).max


def test_formats_from_the_smallest_to_the_largest():
    """Formats of a sign, exponent bits and mantissa bits are right from the smallest to the largest."""
    for bits in ((2, 0), (2, 52), (11, 0), (11, 52)):
        assert FloatFormat(*bits).bits == 1 + sum(bits)
    for bits in ((0, 3), (12, 3), (4, -1), (4, 53)):
        with pytest.raises(ValueError, match=r"FloatFormat: `(exponent|mantissa)_bits` must be from"):
            FloatFormat(*bits)
    assert len(FloatFormat(8, 11).numbers()) == 2**20 - 2**12 + 1 - 2  # without infinities, NaN and one zero
    with pytest.raises(ValueError, match="of 21 bits has too many numbers"):
        FloatFormat(8, 12).numbers()


def test_integers_are_quantized_as_floats():
    """Integers are computed in the default dtype."""
    x = torch.tensor([-3, 0, 2, 9])
    for f in (
        lambda x: quantizers.fake_quantize(x, 0.7, 0, -4, 3),
        lambda x: quantizers.float_quantize(x, "float8_e4m3fn"),
        quantizers.binarize,
        lambda x: quantizers.codebook_quantize(x, torch.tensor([-1.0, 1.5])),
    ):
        assert f(x).dtype == torch.float32
        assert f(x).equal(f(x.float()))


def test_integer_arguments_of_numpy():
    """Integer arguments may be anything that is an index."""
    x = torch.linspace(-2, 2, 9)
    assert quantizers.tqt(x, 0.0, numpy.int64(4)).equal(quantizers.tqt(x, 0.0, 4))
    assert quantizers.mx_quantize(torch.ones(8), block_size=numpy.int32(4)).equal(torch.ones(8))
    assert quantizers.fake_quantize(x, 0.5, 3.0, 0, 7).equal(quantizers.fake_quantize(x, 0.5, 3, 0, 7))


@pytest.mark.parametrize("name", ["fake_quantize", "float_quantize", "binarize", "codebook_quantize"])
def test_scales_of_blocks_are_those_of_every_element(name):
    """Scales of blocks over several dimensions equal those of every element, with their gradients."""
    given = {
        "fake_quantize": {"zero_point": 0, "quant_min": -4, "quant_max": 3},
        "float_quantize": {"format": "float4_e2m1fn"},
        "codebook_quantize": {"codebook": torch.tensor([-1.0, 0.2, 1.0])},
    }.get(name, {})
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scale = torch.tensor([[0.5, 1.0, 0.25], [2.0, 0.3, 0.7]], requires_grad=True)

    def value_and_gradients(scale_of_x):
        y = getattr(quantizers, name)(x, scale=scale_of_x, **given)
        return y, *torch.autograd.grad((y * torch.arange(24.0).reshape(4, 6)).sum(), (x, scale))

    expected = value_and_gradients(scale.repeat_interleave(2, 0).repeat_interleave(2, 1))
    torch.testing.assert_close(value_and_gradients(scale), expected)


def test_blocks_need_a_dimension():
    with pytest.raises(ValueError, match="mx_quantize: `x` must have at least one dimension, got none"):
        quantizers.mx_quantize(torch.tensor(1.0), block_size=1)


def test_codebooks_of_vectors_have_two_dimensions():
    for codebook in (torch.ones(3), torch.ones(0, 3), torch.ones(3, 0)):
        with pytest.raises(ValueError, match="vector_quantize: `codebook` must have two dimensions and no empty one"):
            quantizers.vector_quantize(torch.ones(2, 3), codebook)


def test_an_offset_that_is_a_number():
    """An offset may be a number beside a scale that learns."""
    x = torch.linspace(-2, 2, 9)
    offset = torch.tensor(0.3)
    assert quantizers.lsq(x, 0.5, -4, 3, offset=0.3).equal(quantizers.lsq(x, 0.5, -4, 3, offset=offset))


def test_quotients_that_overflow_are_out_of_range():
    """A very small scale gives overflowing quotients, which are out of the range."""
    x = torch.tensor([-3e38, -1e-30, 0.0, 1e-30, 3e38], requires_grad=True)
    for rounded in (True, False):
        y = quantizers.fake_quantize(x, 1e-38, 0.0, -4, 3, round_zero_point=rounded)
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0, 0, 1, 0, 0]


def test_powers_beyond_the_exponents_have_no_gradient():
    """Powers beyond the smallest and the largest have the gradient 0; others have y / x."""
    x = torch.tensor([-0.1, 0.1, 0.3, 1.1, 7.0, -9.0], requires_grad=True)
    for least, most, kept in ((-2, 2, [2, 3]), (-2, None, [2, 3, 4, 5]), (None, 2, [0, 1, 2, 3]), (None, None, range(6))):
        y = quantizers.power_of_two(x, least, most)
        (found,) = torch.autograd.grad(y.sum(), x)
        mask = torch.tensor([i in kept for i in range(6)])
        torch.testing.assert_close(found, torch.where(mask, (y / x).detach(), 0))


def test_formats_have_a_positive_number_of_float64():
    """Formats with the fewest bits for a number work, by kind; those without a number, or with too large ones, are refused."""
    assert FloatFormat(11, 52).max == torch.finfo(torch.float64).max
    assert [FloatFormat(2, 1).max, FloatFormat(1, 1, kind="fn").max, FloatFormat(2, 0, kind="fn").max] == [3.0, 2.0, 2.0]
    for wrong in ((1, 3, None, "ieee"), (1, 0, None, "fn"), (11, 52, 1022), (11, 52, 1024)):
        with pytest.raises(ValueError, match="FloatFormat: the numbers must be numbers of float64, and some must be positive"):
            FloatFormat(*wrong)


def test_slopes_of_powers_of_two():
    """The slope is y / x where values round, which is 1 at a power, else 0; with equal bounds there is one power."""
    x = torch.tensor([-INF, -3.0, -0.0, 0.0, 1.0, 3.0, INF], requires_grad=True)
    y = quantizers.power_of_two(x)
    assert y.tolist() == [-INF, -4.0, 0.0, 0.0, 1.0, 4.0, INF]
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.tensor([0.0, 4 / 3, 0, 0, 1, 4 / 3, 0]))
    assert quantizers.power_of_two(x, 1, 1).tolist() == [-2.0, -2.0, 0.0, 0.0, 2.0, 2.0, 2.0]


def test_a_weight_at_the_threshold_becomes_0():
    """A weight at the threshold becomes 0, and does not count for the mean that is the scale."""
    w = torch.tensor([-0.7, 1.0, 1.3], dtype=torch.float64)  # whose threshold is 0.7
    torch.testing.assert_close(quantizers.twn(w), torch.tensor([0, 1.15, 1.15], dtype=torch.float64))


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_levels_of_powers_of_two(bits):
    """There are 2^bits - 1 levels: both signs of the powers from 1 down, and 0."""
    levels = quantizers.levels("power_of_two", bits)
    assert len(levels) == 2**bits - 1
    assert levels.unique().equal(levels)
    assert levels[2 ** (bits - 1) :].equal(2.0 ** torch.arange(2.0 - 2 ** (bits - 1), 1))
    assert levels.equal(-levels.flip(0))


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 7])
def test_levels_of_sums_of_powers_of_two(bits):
    """Levels are as many; with 3 bits the powers, with 4 sums of {0, 1/2, 1/4, 1/16} and {0, 1/8} over the largest, 5/8."""
    levels = quantizers.levels("apot", bits)
    assert len(levels.unique()) == 2**bits - 1
    assert levels.equal(-levels.flip(0))
    assert levels[-1] == 1
    if bits == 3:
        assert levels.equal(quantizers.levels("power_of_two", 3))
    if bits == 4:
        torch.testing.assert_close(levels[8:], torch.tensor([1.0, 2, 3, 4, 6, 8, 10]) / 10)


@pytest.mark.parametrize(("size", "most", "levels"), [(1, 1, 2), (1, 3, 8), (6, 1, 2), (6, 0, 3), (6, 7, 16)])
def test_the_gradient_of_a_step_is_scaled_by_its_part(size, most, levels):
    """The factors are those of LSQ, 1 / sqrt(numbers * largest code), and of the stretched form, with its levels on one side."""

    def slope(operator, *arguments, **options):
        scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        x = torch.linspace(-0.21, 2.5, size, dtype=torch.float64)
        return torch.autograd.grad(operator(x, scale, *arguments, **options).sum(), scale)[0]

    for operator, arguments, part in (
        (quantizers.lsq, (-8, most), max(most, 1)),
        (quantizers.stretched_elastic, (levels,), max(levels / 2 - 1, 1)),
    ):
        unscaled = slope(operator, *arguments, grad_scale=1.0)
        assert unscaled != 0
        torch.testing.assert_close(slope(operator, *arguments), unscaled / math.sqrt(size * part))


def test_pact_has_as_many_bits_as_the_widest_dtype():
    """The widest dtype has 53 bits, whose codes are whole numbers of float64."""
    x = torch.tensor([0.3, 2.0], dtype=torch.float64)
    torch.testing.assert_close(quantizers.pact(x, 1.0, 53), torch.tensor([0.3, 1.0], dtype=x.dtype))
    with pytest.raises(ValueError, match="pact: `bits`"):
        quantizers.pact(x, 1.0, 54)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_gradient_passes_at_the_ends_of_a_clamp(symmetric):
    """The bound of fsq is closed, like that of torch.clamp."""
    x = torch.tensor([[-1.0, 1.0], [-1.5, 1.5], [0.3, -0.3]])
    slopes = torch.func.grad(lambda x: quantizers.fsq(x, (5, 4), bound="clamp", symmetric=symmetric, eps=0.0).sum())(x)
    scale = [1.0, 1.0 if symmetric else 0.75]
    torch.testing.assert_close(slopes, torch.tensor([scale, [0.0, 0.0], scale]))


@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ternary_weights_of_large_numbers(dtype, dim):
    """Weights whose sum overflows are ternarized as the same weights in a smaller unit."""
    w = torch.tensor([[1.0, -0.9, 0.1], [0.4, -1.0, 0.8]], dtype=dtype)
    scale = 2.0 ** (127 if dtype == torch.float32 else 1023)
    assert (w * scale).abs().sum().isinf()
    assert torch.equal(quantizers.twn(w * scale, dim), quantizers.twn(w, dim) * scale)


def test_a_number_of_bits_is_no_scale():
    """An integer above 1 raises, a float does not; ``bits`` are the codes, and not both are given."""
    x = torch.tensor([-9.0, 0.3, 2.6])
    for function, count in ((quantizers.lsq, "bits"), (quantizers.stretched_elastic, "levels")):
        with pytest.raises(ValueError, match=f"`scale` must not be an integer above 1, which reads as `{count}`, got 4: write"):
            function(x, 4)
        assert torch.equal(function(x, 4.0), function(x, torch.tensor(4.0)))
        assert torch.equal(function(x, 1), function(x, 1.0))
    assert torch.equal(quantizers.lsq(x, 0.5, bits=3), quantizers.lsq(x, 0.5, -4, 3))
    with pytest.raises(ValueError, match="lsq: either `bits` or codes must be given, got bits=3, quant_min=-8 and quant_max=7"):
        quantizers.lsq(x, 0.5, -8, 7, bits=3)


@pytest.mark.parametrize("gradient", ["identity", "rotation"])
def test_rows_of_a_codebook_may_be_given(gradient):
    """Drawn rows have the gradients of nearest ones, per sample and by all in_dims; the indices are a new tensor."""
    x, codes = torch.randn(4, 6, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    index = torch.randint(5, (4, 6))
    call = lambda x, c, i: quantizers.vector_quantize(x, c, gradient=gradient, indices=i)  # noqa: E731
    values, found = call(x, codes, index)
    assert torch.equal(found, index)
    assert found.data_ptr() != index.data_ptr()
    assert torch.equal(values, codes[index])
    nearest = quantizers.vector_quantize(x, codes)[1]
    f = lambda x: call(x, codes, nearest)[0].pow(2).sum()  # noqa: E731
    g = lambda x: quantizers.vector_quantize(x, codes, gradient=gradient)[0].pow(2).sum()  # noqa: E731
    torch.testing.assert_close(torch.func.grad(f)(x), torch.func.grad(g)(x))
    many = torch.stack([codes, -codes, 2 * codes, codes])
    cases = {(0, None, 0): (x, codes, index), (0, 0, None): (x, many, index[0]), (None, None, 0): (x[0], codes, index)}
    for dims, args in cases.items():
        parts = [[v if d is None else v[k] for v, d in zip(args, dims, strict=True)] for k in range(4)]
        torch.testing.assert_close(vmap(call, dims)(*args)[0], torch.stack([call(*part)[0] for part in parts]))
        slopes = torch.func.grad(lambda x, c, i: call(x, c, i)[0].pow(2).sum())
        torch.testing.assert_close(vmap(slopes, dims)(*args), torch.stack([slopes(*part) for part in parts]))
