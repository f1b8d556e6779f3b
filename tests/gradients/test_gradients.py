"""Properties specific to `gradients`: edge cases, per-sample maps, aliases, and agreement with the sources."""

import importlib.util
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vjp, vmap

import fullgrad
from fullgrad.testing._subject import close, like
from tests.operators import raises, saved_tensors

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan
X = torch.tensor([0.75, 1.4], dtype=torch.float64)


def pulled(operator, g, *args, **kwargs):
    """The operator's gradient for the cotangent ``g``."""
    x = torch.zeros_like(g).requires_grad_()
    return torch.autograd.grad(operator(x, *args, **kwargs), x, g)[0]


# --- scale_grad -------------------------------------------------------------------------------------------------------

EDGES = [
    ([3.0, -6.0], [0.5, -1.0]),
    ([0.0, -0.0], [0.0, -0.0]),
    ([NAN, 1.0], [NAN, 1.0]),
    ([INF, 1.0], [NAN, 0.0]),
    ([-INF, 1.0], [NAN, 0.0]),
    ([1e-45], [1.0]),
    ([], []),
]


@pytest.mark.parametrize(("g", "expected"), EDGES)
def test_scale_grad_at_the_edges(g, expected, device):
    """Zero and NaN leave the gradient unchanged, infinity gives NaN and 0, the smallest number 1, no elements none."""
    actual = pulled(fullgrad.scale_grad, torch.tensor(g, device=device))
    torch.testing.assert_close(actual, torch.tensor(expected, device=device), rtol=0, atol=0, equal_nan=True)


def test_scale_grad_of_a_number_is_its_sign():
    """The maximum of one number is its magnitude: a tensor without dimensions, and every sample of a vector under vmap."""
    assert pulled(fullgrad.scale_grad, torch.tensor(-3.0)) == -1
    assert pulled(fullgrad.scale_grad, torch.tensor(-3.0), dim=-1) == -1
    signs = vmap(grad(lambda x, g: fullgrad.scale_grad(x) * g))(torch.zeros(3), torch.tensor([2.0, 0.0, -7.0]))
    assert signs.tolist() == [1, 0, -1]


@pytest.mark.parametrize("dim", [0, -1, (0, 2), (1,), (2, 0, 1), None])
def test_scale_grad_over_dimensions(dim):
    """``dim`` names what shares a maximum, alone and per sample."""
    g = like(torch.empty(4, 3, 2, dtype=torch.float64), 0)
    dims = tuple(range(3)) if dim is None else dim
    close(pulled(fullgrad.scale_grad, g, dim=dim), g / g.abs().amax(dims, keepdim=True))
    batch = torch.stack([g, 2 * g.flip(0), g.flip(1)], dim=2)
    actual = vmap(lambda g: vjp(lambda x: fullgrad.scale_grad(x, dim), g)[1](g)[0], in_dims=2, out_dims=2)(batch)
    close(actual, torch.stack([pulled(fullgrad.scale_grad, b, dim) for b in batch.unbind(2)], 2))


def test_batch_normalised_by_dim_equals_vmap():
    """A maximum per sample, with and without vmap."""
    g = like(torch.empty(5, 3, 2, dtype=torch.float64), 1)
    close(pulled(fullgrad.scale_grad, g, dim=(1, 2)), torch.stack([pulled(fullgrad.scale_grad, sample) for sample in g]))


def test_double_backward_differentiates_the_normalisation():
    """The derivative of x / max(x), which is not symmetric; reverse mode normalizes the cotangent of the second pass again."""
    loss = lambda x: (fullgrad.scale_grad(x) ** 2).sum()  # noqa: E731
    expected = torch.tensor([[1 / 1.4, -0.75 / 1.4**2], [0, 0]], dtype=torch.float64)
    close(hessian(loss)(X), expected)
    close(torch.autograd.functional.hessian(loss, X), 1.4 * expected)


# --- factors ----------------------------------------------------------------------------------------------------------


def test_tensor_factors_broadcast_and_gradients_sum():
    """``forward`` may enlarge the value and gets its own gradient; ``backward`` gets none of first order."""
    x = like(torch.empty(3, dtype=torch.float64), 0).requires_grad_()
    forward = like(torch.empty(4, 1, dtype=torch.float64), 1).requires_grad_()
    backward = like(torch.empty(4, 3, dtype=torch.float64), 2).requires_grad_()
    g = like(torch.empty(4, 3, dtype=torch.float64), 3)
    y = fullgrad.scale(x, forward, backward)
    close(y, x * forward)
    first = torch.autograd.grad(y, (x, forward, backward), g, allow_unused=True, create_graph=True)
    close(first[0], (g * backward).sum(0))
    close(first[1], (g * x).sum(1, keepdim=True))
    assert first[2] is None
    close(torch.autograd.grad(first[0].sum(), backward)[0], g)


@pytest.mark.parametrize("backward", [0.5, 1, 1.0, 2, 2.0, 3.0])
@pytest.mark.parametrize("forward", [1, 1.0, 2, 2.0])
def test_numbers_as_factors(forward, backward):
    """Factors may be numbers; a factor of 1 multiplies nothing."""
    x = torch.tensor([0.5, -3.0], requires_grad=True)
    y = fullgrad.scale(x, forward, backward)
    assert y.tolist() == [0.5 * forward, -3.0 * forward]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [backward, backward]
    assert grad(lambda x: fullgrad.scale_bwd(x, backward))(torch.tensor(3.0)) == backward


def test_tangents_of_both_inputs_add():
    """``jvp(t, t_f) = b t + x t_f``, each alone as well, in the dtype of the value."""
    x, f = torch.tensor([2.0, 3.0], dtype=torch.float16), torch.tensor([5.0, 7.0])
    t, t_f = torch.ones(2, dtype=torch.float16), torch.tensor([10.0, 100.0])
    for tangents, expected in (((t, t_f), [20.5, 300.5]), ((t, 0 * t_f), [0.5, 0.5]), ((0 * t, t_f), [20.0, 300.0])):
        y, tangent = jvp(lambda x, f: fullgrad.scale(x, f, 0.5), (x, f), tangents)
        assert y.dtype == tangent.dtype == torch.float32
        assert tangent.tolist() == expected
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(fullgrad.scale(x, forward_ad.make_dual(f, t_f), 0.5)).tangent.tolist() == [20.0, 300.0]


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (1, 1)])
def test_factors_per_sample(in_dims):
    """Factors for each sample and for all samples equal the loop."""
    X, S = (like(torch.empty((3,) if d is None else (3, 3), dtype=torch.float64), i) for i, d in enumerate(in_dims))
    for operator in (fullgrad.scale_fwd, fullgrad.scale_bwd, fullgrad.reverse_grad):

        def gradient(x, s, operator=operator):
            return grad(lambda x: operator(x, s).sin().sum())(x)

        loop = [gradient(*[v if d is None else v.select(d, i) for v, d in zip((X, S), in_dims, strict=True)]) for i in range(3)]
        close(vmap(gradient, in_dims)(X, S), torch.stack(loop))


# --- limits, masks, numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_norm_within_the_bound_is_unchanged_to_the_last_bit(dtype):
    """The factor is exactly 1 within the bound; beyond it the norm becomes the bound."""
    g = like(torch.empty(50, dtype=dtype), 4)
    assert torch.equal(pulled(fullgrad.clip_grad_norm, g, 1e3), g)
    clipped = pulled(fullgrad.clip_grad_norm, g, 0.5)
    assert clipped.dtype == dtype
    torch.testing.assert_close(clipped.double().norm(), torch.tensor(0.5, dtype=torch.float64), rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 6e4), (torch.float32, 1e38), (torch.float32, 1e-38), (torch.float64, 1e300)]
)
@pytest.mark.parametrize("p", [1.0, 2.0, 7.0, INF])
def test_norm_neither_overflows_nor_underflows(dtype, size, p):
    """Powers beyond the range of the dtype do not turn the gradient into 0."""
    g = torch.tensor([size, -size / 2], dtype=dtype)
    bound = min(size, 1.0) * 0.25
    shape = torch.tensor([1.0, -0.5], dtype=torch.float64)
    actual = pulled(fullgrad.clip_grad_norm, g, bound, norm_type=p).double()
    torch.testing.assert_close(actual / bound, shape / torch.linalg.vector_norm(shape, p), rtol=2e-3, atol=0)


def clipped_by_fractions(g, bound, p):
    """The gradient that `clip_grad_norm` states: the norm in units of the largest element, which is at most 1."""
    g, bound = [Fraction(v) for v in g], Fraction(bound)
    unit = max(map(abs, g))
    shape = [float(v / unit) for v in g]
    norm = max(map(abs, shape)) if p == INF else sum(abs(v) ** p for v in shape) ** (1 / p)
    factor = min(Fraction(1), bound / unit / Fraction(norm))
    return [float(v * factor) for v in g]


@pytest.mark.short(of=3)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_clipped_norms_of_the_smallest_to_the_largest_numbers(dtype, p):
    """Gradients of the largest, ordinary and subnormal numbers are clipped by bounds of all sizes, numbers and tensors."""
    limits = torch.finfo(dtype)
    sizes = [limits.max, 1.0, limits.tiny, limits.tiny * limits.eps * 8]
    for size in sizes:
        g = (torch.tensor([1.0, -0.5, 0.25, 0.0] * 25, dtype=torch.float64) * size).to(dtype)
        for bound in (*sizes, limits.max / 3, limits.tiny * limits.eps, 1e-3, 3e38):
            bound = torch.tensor(bound, dtype=torch.float64).to(torch.promote_types(dtype, torch.float32)).item()
            if bound == 0:
                continue
            expected = torch.tensor(clipped_by_fractions(g.tolist(), bound, p), dtype=torch.float64)
            for m in (bound, torch.tensor(bound, dtype=torch.float64)):
                actual = pulled(fullgrad.clip_grad_norm, g, m, norm_type=p)
                smallest = limits.tiny * limits.eps
                torch.testing.assert_close(actual.double(), expected, rtol=4 * limits.eps, atol=2 * smallest)


@pytest.mark.long(but=4)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_clipping_leaves_what_is_within_its_bound(dtype, p):
    """Gradients within the bound keep every bit, also where the norm is the bound, or the bound beyond the dtype."""
    limits = torch.finfo(dtype)
    generator = torch.Generator().manual_seed(0)
    for size in torch.rand(60, generator=generator, dtype=torch.float64).to(dtype).tolist():
        for g in (torch.tensor([size], dtype=dtype), torch.tensor([size, 0.0, -size / 2], dtype=dtype)):
            bounds = [2 * size, 100.0, limits.max, 1e39, 1e300] + ([size] if g.numel() == 1 else [])
            for bound in bounds:
                assert torch.equal(pulled(fullgrad.clip_grad, g, bound), g)
                assert torch.equal(pulled(fullgrad.clip_grad_norm, g, bound, norm_type=p), g)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_elements_are_clipped_at_their_bound(dtype):
    """Elements from the smallest to the largest are clipped; a bound beyond the dtype is rounded to it, as any number."""
    limits = torch.finfo(dtype)
    smallest = limits.tiny * limits.eps
    for bound in (smallest, limits.tiny, 0.1, 1.0, limits.max):
        expected = torch.tensor(bound, dtype=dtype)
        g = torch.tensor([INF, bound, -bound, -limits.max, bound / 2, NAN], dtype=dtype)
        found = pulled(fullgrad.clip_grad, g, bound)
        assert torch.equal(found[:4], torch.stack((expected, expected, -expected, -expected)))
        assert found[4] == g[4]
        assert found[5].isnan()
    assert pulled(fullgrad.clip_grad, torch.tensor([INF, -limits.max], dtype=dtype), max(1.7e308, limits.max))[1] == -limits.max


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_largest_of_a_scaled_gradient_is_1(dtype):
    """The largest is 1 for the smallest and the largest numbers."""
    limits = torch.finfo(dtype)
    for size in (limits.max, 1.0, 0.3, limits.tiny, limits.tiny * limits.eps * 2):
        g = torch.tensor([size, -size, size / 2, 0.0], dtype=dtype)
        assert pulled(fullgrad.scale_grad, g).tolist() == [1.0, -1.0, 0.5, 0.0]


def test_norm_of_special_gradients():
    """Zero stays zero, with a second derivative; NaN spreads; infinity becomes NaN and its neighbors 0."""
    assert pulled(fullgrad.clip_grad_norm, torch.zeros(3), 1.0).tolist() == [0, 0, 0]
    assert pulled(fullgrad.clip_grad_norm, torch.tensor([NAN, 1.0]), 1.0).isnan().all()
    infinite = pulled(fullgrad.clip_grad_norm, torch.tensor([INF, 1.0]), 1.0)
    assert infinite[0].isnan()
    assert infinite[1] == 0
    assert pulled(fullgrad.clip_grad_norm, torch.zeros(0, 3), 1.0, dim=0).shape == (0, 3)
    second = hessian(lambda x: (fullgrad.clip_grad_norm(x, 1.0) ** 2).sum())(torch.zeros(2))
    assert torch.equal(second, 2 * torch.eye(2))


def test_limits_per_sample():
    """``max_norm`` and ``max_value`` as tensors: one for each sample, also of an input that the samples share."""
    g = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    bounds = torch.tensor([1.0, 20.0])
    clip = lambda x, m, g: vjp(lambda x: fullgrad.clip_grad_norm(x, m), x)[1](g)[0]  # noqa: E731
    torch.testing.assert_close(vmap(clip)(torch.zeros(2, 2), bounds, g), torch.tensor([[0.6, 0.8], [6.0, 8.0]]))
    torch.testing.assert_close(vmap(clip, (None, 0, 0))(torch.zeros(2), bounds, g), torch.tensor([[0.6, 0.8], [6.0, 8.0]]))
    shared = grad(lambda x: (vmap(lambda m, g: fullgrad.clip_grad(x, m) * g)(bounds, g)).sum())(torch.zeros(2))
    assert shared.tolist() == [1 + 6, 1 + 8]


def test_limits_of_norms_have_the_shape_of_the_norms():
    """Limits have the reduced dimensions with size 1, or fewer dimensions in front."""
    x = torch.zeros(3, 4)
    for dim, right, wrong in ((-1, (3, 1), (1, 4)), (0, (4,), (3, 1)), (None, (1, 1), (4,))):
        assert pulled(fullgrad.clip_grad_norm, x + 1, torch.ones(right), dim=dim).shape == x.shape
        with pytest.raises(ValueError, match="clip_grad_norm: `max_norm` must broadcast"):
            fullgrad.clip_grad_norm(x, torch.ones(wrong), dim=dim)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_norms_of_numbers_per_sample(p):
    """Each number has its own norm, without dimensions to reduce."""
    slopes = torch.tensor([3.0, -0.5, 0.0, -4.0])
    found = vmap(grad(lambda x, s: s * fullgrad.clip_grad_norm(x, 1.0, norm_type=p)))(torch.ones(4), slopes)
    assert found.tolist() == [1.0, -0.5, 0.0, -1.0]


def test_mask_stops_even_infinite_gradients():
    """A masked gradient is 0, even if it is infinite."""
    mask = torch.tensor([True, False, False])
    g = torch.tensor([[1.0, INF, NAN], [2.0, -INF, 3.0]])
    assert pulled(fullgrad.mask_grad, g, mask).tolist() == [[1, 0, 0], [2, 0, 0]]


def test_nan_to_num_of_every_kind():
    """Each kind has its replacement, the dtype's limits by default."""
    g = torch.tensor([NAN, INF, -INF, 2.0], dtype=torch.float16)
    assert pulled(fullgrad.nan_to_num_grad, g).tolist() == [0, 65504, -65504, 2]
    assert pulled(fullgrad.nan_to_num_grad, g, nan=1.0, posinf=3.0, neginf=-4.0).tolist() == [1, 3, -4, 2]


# --- aliases ----------------------------------------------------------------------------------------------------------

MASK = torch.tensor([True, False])
ALIASES = {
    "scale_grad": fullgrad.scale_grad,
    "scale_bwd": lambda x: fullgrad.scale_bwd(x, 2.0),
    "reverse_grad": fullgrad.reverse_grad,
    "clip_grad": lambda x: fullgrad.clip_grad(x, 1.0),
    "clip_grad_norm": lambda x: fullgrad.clip_grad_norm(x, 1.0),
    "mask_grad": lambda x: fullgrad.mask_grad(x, MASK),
    "nan_to_num_grad": fullgrad.nan_to_num_grad,
}
aliases = pytest.mark.parametrize("operator", ALIASES.values(), ids=ALIASES)


@aliases
def test_value_is_the_input_itself(operator):
    """The value is no copy, with and without a gradient; without grad mode it does not require a gradient."""
    x = X.clone().requires_grad_()
    for tensor in (X, x):
        assert operator(tensor).data_ptr() == tensor.data_ptr()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not operator(x).requires_grad


@aliases
def test_in_place_on_the_value_is_never_silently_wrong(operator):
    """Eager autograd refuses; transforms and forward mode work on a copy, so that the input keeps its value and tangent."""
    with pytest.raises(RuntimeError, match="modified inplace"):
        operator(X.clone().requires_grad_() * 1).mul_(2)

    def f(x):
        y = operator(x)
        y.mul_(3)
        return (y * x).sum()

    plain = X.clone()
    value, tangent = jvp(f, (plain,), (torch.ones_like(X),))
    close(value, (3 * X * X).sum())
    # y = 3x with the tangent 3 D t, times x: 3 D t x + 3 x t.
    d = jvp(operator, (X,), (torch.ones_like(X),))[1]
    close(tangent, (3 * d * X + 3 * X).sum())
    grad(f)(plain)
    vmap(lambda x: operator(x).mul_(2))(plain.expand(2, 2))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(plain, torch.ones_like(plain))
        operator(dual).mul_(2)
        close(forward_ad.unpack_dual(dual).tangent, torch.ones_like(plain))
    close(plain, X)


@aliases
def test_nothing_is_kept_alive_by_the_graph_but_parameters(operator):
    """The graph holds no tensor of the size of the input: the value may be freed."""
    with saved_tensors() as saved:
        operator(X.clone().requires_grad_())
    assert all(t.dtype == torch.bool for t in saved)


# --- errors -----------------------------------------------------------------------------------------------------------

x = torch.zeros(2, 3)
ERRORS = [
    (lambda: fullgrad.scale_grad(3.0), TypeError, "scale_grad: `x` must be a tensor, got a value of type float"),
    (lambda: fullgrad.scale_grad(x, 2), IndexError, "scale_grad: `dim` must be from -2 to 1 for 2 dimensions, got 2"),
    (lambda: fullgrad.scale_grad(x, (0, -2)), ValueError, r"must name at least one dimension and none twice, got \(0, -2\)"),
    (lambda: fullgrad.scale_grad(x, ()), ValueError, r"must name at least one dimension and none twice, got \(\)"),
    (lambda: fullgrad.scale_grad(x, 1.0), TypeError, "`dim` must be an integer, a tuple of integers or None, got 1.0"),
    (lambda: fullgrad.scale_bwd(x, "2"), TypeError, "scale_bwd: `scale` must be a number or a tensor, got a value of type str"),
    (lambda: fullgrad.scale_bwd(x, torch.ones(4, 2, 3)), ValueError, r"shape \(2, 3\) of the output, got shape \(4, 2, 3\)"),
    (
        lambda: fullgrad.reverse_grad(x, torch.ones(2)),
        ValueError,
        r"`scale` must broadcast to the shape \(2, 3\) of x, got shape",
    ),
    (lambda: fullgrad.clip_grad(x, 0.0), ValueError, "clip_grad: `max_value` must be positive and finite, got 0.0"),
    (lambda: fullgrad.clip_grad(x, NAN), ValueError, "clip_grad: `max_value` must be positive and finite, got nan"),
    (lambda: fullgrad.clip_grad(x, None), TypeError, "`max_value` must be a number or a tensor, got a value of type NoneType"),
    (lambda: fullgrad.clip_grad_norm(x, 1.0, norm_type=-1), ValueError, "`norm_type` must be positive, got -1"),
    (lambda: fullgrad.clip_grad_norm(x, torch.ones(3), dim=1), ValueError, r"of x with `dim` reduced, got shape \(3,\)"),
    (lambda: fullgrad.mask_grad(x, x), TypeError, "mask_grad: `mask` must be a bool tensor, got dtype torch.float32"),
    (lambda: fullgrad.mask_grad(x, [True]), TypeError, "mask_grad: `mask` must be a tensor, got a value of type list"),
    (lambda: fullgrad.nan_to_num_grad(x, posinf="x"), TypeError, "`posinf` must be a number, got a value of type str"),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_errors_name_the_argument_the_rule_and_what_was_found(call, error, message):
    """Bad arguments raise before anything is recorded."""
    with raises(error, match=message):
        call()


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("g", [*(g for g, _ in EDGES if g), [[1.0, -4.0], [2.0, 3.0]]])
def test_scale_grad_agrees_with_shok(g):
    """Value, gradient and Hessian of the published operator, whose file alone is loaded: its package needs many others."""
    package = importlib.util.find_spec("shok")
    if package is None:
        pytest.skip("shok is not installed: pip install --no-deps shok==0.3.0")
    spec = importlib.util.spec_from_file_location("scale_grad", Path(package.origin).parent / "utils/functions/scale_grad.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    g = torch.tensor(g)
    torch.testing.assert_close(
        pulled(fullgrad.ScaleGrad.apply, g), pulled(module.ScaleGrad.apply, g), rtol=0, atol=0, equal_nan=True
    )
    if g.isfinite().all() and g.any():
        ours, theirs = (
            torch.autograd.functional.hessian(lambda x, f=f: (f(x) ** 2 * g).sum(), torch.ones_like(g))
            for f in (fullgrad.ScaleGrad.apply, module.ScaleGrad.apply)
        )
        close(ours, theirs)


@pytest.mark.parametrize("factor", [0.3, -2.0, 0.0, INF])
def test_factors_agree_with_unit_scaling(factor):
    """Value and gradient of ``scale_fwd`` and ``scale_bwd``, to the last bit."""
    published = pytest.importorskip("unit_scaling.scale")
    x = like(torch.empty(20), 0).requires_grad_()
    g = like(torch.empty(20), 1)
    for name in ("scale_fwd", "scale_bwd"):
        ours, theirs = getattr(fullgrad, name)(x, factor), getattr(published, name)(x, factor)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        actual, expected = (torch.autograd.grad(y, x, g)[0] for y in (ours, theirs))
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
