"""Properties specific to `rounding`: edge cases that users of other packages rely on, and fixed defects."""

import math

import numpy
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import fullgrad
from tests.operators import saved_tensors

pytestmark = pytest.mark.short

INF, NAN = math.inf, math.nan


def gradient(operator, x, *args):
    """The gradient of the sum."""
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(operator(leaf, *args).sum(), leaf)[0]


def test_round_halves_to_even(device):
    """-2.5 -> -2, 0.5 -> 0, 1.5 -> 2, 2.5 -> 2; the sign of zero is kept; infinities and NaN pass."""
    x = torch.tensor([-2.5, 0.5, 1.5, 2.5, -0.0, INF, -INF, NAN], device=device)
    expected = torch.tensor([-2.0, 0.0, 2.0, 2.0, -0.0, INF, -INF, NAN], device=device)
    torch.testing.assert_close(fullgrad.round(x), expected, rtol=0, atol=0, equal_nan=True)
    assert fullgrad.round(x)[4].signbit()
    assert torch.equal(gradient(fullgrad.round, x), torch.ones_like(x))


def test_straight_through_passes_the_gradient_itself():
    """The gradient is handed on as the same storage, infinite and NaN as it may be: no copy, no arithmetic."""
    g = torch.tensor([INF, NAN, -0.0])
    x = torch.zeros(3, requires_grad=True)
    received = torch.autograd.grad(fullgrad.round(x), x, g)[0]
    assert received.data_ptr() == g.data_ptr()


def test_straight_through_tangent_is_not_shared():
    """In forward mode the tangent is a copy: an in-place operation on the output leaves that of the input alone."""

    def twice(x):
        y = fullgrad.round(x)
        y.mul_(5)
        return x * 1, y

    _, (to_x, to_y) = torch.func.jvp(twice, (torch.randn(3),), (torch.ones(3),))
    assert (to_x.tolist(), to_y.tolist()) == ([1, 1, 1], [5, 5, 5])


def test_pass_round_is_round():
    """Both names are one class, so a graph shows one name."""
    assert fullgrad.PassRound is fullgrad.Round


@pytest.mark.parametrize("mode", ["up", 3, None, ["floor"]])
def test_modes_have_names(mode):
    """Unknown modes are refused, also unhashable ones."""
    with pytest.raises(ValueError, match=r"round: `mode` must be one of 'half_even', .* got"):
        fullgrad.round(torch.ones(2), mode)


def test_soft_round_slopes():
    """The slopes are the published ones; 0 where x rounds to 0 but at zeros, where it is 1, and NaN for what is not finite."""
    x = torch.tensor([-1.5, -0.75, -0.5, -0.25, 0.25, 0.5, 0.0, -0.0, 1.4, 1.5, 2.5])
    slopes = torch.tensor([0.75, 0.75, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.4, 0.75, 1.25])
    torch.testing.assert_close(gradient(fullgrad.soft_round, x), slopes)
    assert gradient(fullgrad.soft_round, torch.tensor([INF, -INF, NAN])).isnan().all()


def test_soft_round_second_derivative():
    """1 / round(x) where round(x) is not 0, else 0; the third is 0. At zero, too, and nothing is NaN."""
    x = torch.tensor([-1.6, -0.3, 0.0, 0.5, 1.4, 2.5], dtype=torch.float64)
    second = torch.diag(torch.tensor([-0.5, 0.0, 0.0, 0.0, 1.0, 0.5], dtype=torch.float64))
    total = lambda x: fullgrad.soft_round(x).sum()  # noqa: E731
    for order_two in (hessian(total), jacrev(jacrev(total)), jacfwd(jacfwd(total)), jacrev(jacfwd(total))):
        torch.testing.assert_close(order_two(x), second)
    for order_three in (jacfwd(jacfwd(jacfwd(total))), jacrev(jacrev(jacrev(total))), jacfwd(jacrev(jacfwd(total)))):
        assert not order_three(x).any()


def test_step_quantize_edges():
    """Half to even of x / step; infinities as in the formula. A quotient beyond float16 is computed in float32."""
    assert fullgrad.step_quantize(torch.tensor([0.75, 1.25]), 0.5).tolist() == [1.0, 1.0]
    assert fullgrad.step_quantize(torch.tensor(100.0, dtype=torch.float16), 1e-3) == 100
    assert fullgrad.step_quantize(torch.tensor(INF), 0.5) == INF
    assert fullgrad.step_quantize(torch.arange(3), 0.5).dtype == torch.float32
    assert fullgrad.step_quantize(torch.tensor([0.4, 1.6])).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("step", [0.0, -0.5, 0, NAN, INF])
def test_step_must_be_positive_and_finite(step):
    """The step is checked before anything is recorded, under vmap and compile too."""
    x = torch.randn(3, requires_grad=True)
    for call in (fullgrad.step_quantize, vmap(fullgrad.step_quantize, in_dims=(0, None)), fullgrad.step_quantize_forward):
        with pytest.raises(ValueError, match=r"`step` must be positive and finite, got"):
            call(x, step)
    with pytest.raises(Exception, match=r"`step` must be positive and finite, got"):
        torch.compile(fullgrad.step_quantize, backend="eager", fullgraph=True)(x, step)


def test_step_gradient_is_that_of_learned_step_sizes():
    """The gradient is round(x / s) - x / s, summed over the elements that share a step; per sample under vmap."""
    x, step = torch.tensor([[0.2, 1.3], [0.7, -0.6]]), torch.tensor([0.5, 0.4])
    expected = (x / step).round() - x / step
    torch.testing.assert_close(grad(lambda s: fullgrad.step_quantize(x, s).sum())(step), expected.sum(0))
    torch.testing.assert_close(vmap(grad(lambda s, x: fullgrad.step_quantize(x, s).sum()), in_dims=(None, 0))(step, x), expected)


def test_k_bit_quantize_does_not_clamp():
    """The grid goes on outside [0, 1]; k = 1 has the levels 0 and 1."""
    torch.testing.assert_close(fullgrad.k_bit_quantize(torch.tensor([-0.5, 2.0]), 2), torch.tensor([-2 / 3, 2.0]))
    assert fullgrad.k_bit_quantize(torch.tensor(0.5), 1) == 0
    x = torch.rand(5)
    torch.testing.assert_close(fullgrad.k_bit_quantize(x, 64), x)
    assert fullgrad.k_bit_quantize(torch.arange(3), 2).dtype == torch.float32
    assert fullgrad.k_bit_quantize(torch.tensor(1.0, dtype=torch.float16), 16) == 1


@pytest.mark.parametrize("k", [True, numpy.int64(3), torch.tensor(3)])
def test_k_may_be_anything_that_is_an_integer(k):
    """Python, numpy and tensor integers are the same k."""
    x = torch.rand(5)
    assert torch.equal(fullgrad.k_bit_quantize(x, k), fullgrad.k_bit_quantize(x, int(k)))


@pytest.mark.parametrize(
    ("k", "error"),
    [
        (0, ValueError),
        (-3, ValueError),
        (1024, ValueError),
        (1.5, TypeError),
        (2.0, TypeError),
        ("2", TypeError),
        (None, TypeError),
    ],
)
def test_k_must_be_a_positive_integer(k, error):
    """The error names k, the rule and what was found; under vmap and compile too."""
    x = torch.rand(3, requires_grad=True)
    match = "`k` must be" if error is TypeError else f"`k` must be .*, got {k}"
    for call in (
        lambda: fullgrad.k_bit_quantize(x, k),
        lambda: fullgrad.k_bit_quantize_forward(x, k),
        lambda: fullgrad.affine_k_bit_quantize(x, k, 1.0, 0.0),
        lambda: vmap(fullgrad.k_bit_quantize, in_dims=(0, None))(x, k),
    ):
        with pytest.raises(error, match=match):
            call()
    with pytest.raises(Exception, match=r"`k` must be"):
        torch.compile(lambda x: fullgrad.k_bit_quantize(x, k), backend="eager", fullgraph=True)(x)


def test_affine_takes_numbers_and_tensors():
    """w and b may be numbers; each tensor that requires a gradient receives it in its own shape and dtype."""
    x = torch.rand(4, 3, dtype=torch.float16)
    w, b = torch.tensor([2.0], requires_grad=True), torch.zeros(4, 1, requires_grad=True)
    y = fullgrad.affine_k_bit_quantize(x, 2, w, b)
    assert y.dtype == torch.float32
    to_w, to_b = torch.autograd.grad(y.sum(), (w, b))
    torch.testing.assert_close(to_w, fullgrad.k_bit_quantize(x.float(), 2).sum().reshape(1))
    assert torch.equal(to_b, torch.full((4, 1), 3.0))
    expected = (2.0 * fullgrad.k_bit_quantize(x.float(), 2) + 1.0).half()
    assert torch.equal(fullgrad.affine_k_bit_quantize(x, 2, 2.0, 1.0), expected)


def test_affine_saves_only_what_is_asked_for():
    """x is saved for the gradient of w, w for that of x."""
    with saved_tensors() as kept:
        x, w = torch.rand(3), torch.rand(3)
        fullgrad.affine_k_bit_quantize(x, 2, w.clone().requires_grad_(), 0.0)
        assert [t.data_ptr() for t in kept] == [x.data_ptr()]
        kept.clear()
        fullgrad.affine_k_bit_quantize(x.clone().requires_grad_(), 2, w, 0.0)
        assert [t.data_ptr() for t in kept] == [w.data_ptr()]


@pytest.mark.parametrize(
    "operator", [fullgrad.round, fullgrad.soft_round, fullgrad.step_quantize, lambda x: fullgrad.k_bit_quantize(x, 2)]
)
def test_the_input_is_not_changed(operator):
    """In-place steps touch only temporaries, also for integers, whose rounding torch does without a copy, and without a graph."""
    for x in (torch.randn(5), torch.arange(5), torch.randn(5, requires_grad=True)):
        before = x.detach().clone()
        operator(x)
        assert torch.equal(x.detach(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_large_tensor_has_the_derivatives_of_its_rows(dtype):
    """Every bit is equal, zeros of both signs, NaN and infinities included."""
    x = (torch.randn(8, 2**15 * torch.get_num_threads() + 1) * 3).to(dtype)
    x[0, :6] = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 0.3], dtype=dtype)
    v = torch.randn_like(x)

    def derivative(x, v):
        return torch.autograd.grad(fullgrad.soft_round(leaf := x.clone().requires_grad_()), leaf, v)[0]

    rows = torch.stack([derivative(*row) for row in zip(x, v, strict=True)])
    for other in (x, x.mT.contiguous().mT):
        large = derivative(other, v)
        assert torch.equal(large.isnan(), rows.isnan())
        assert torch.equal(large.nan_to_num(), rows.nan_to_num())
        assert torch.equal(large.signbit()[~rows.isnan()], rows.signbit()[~rows.isnan()])
