"""Eager autograd: any order, forward mode, hooks, checkpoints, grad modes, dtypes."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jacobian
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from tests.operators import (
    CASES,
    Affine,
    Cube,
    CubicRound,
    Exp,
    MatMul,
    MaxOver,
    Norm,
    SinCos,
    ThroughRound,
    cubic_round,
    sample,
    through_round,
)

pytestmark = pytest.mark.short


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def derivatives(function, x, order):
    """The value and the first derivatives of a weighted sum of the function, by repeated torch.autograd.grad."""
    x = x.clone().requires_grad_()
    y = function(x)
    results = [y.detach()]
    for _ in range(order):
        total = (y * torch.linspace(1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
        # A term of higher order keeps the graph alive where the derivative itself is constant.
        (y,) = torch.autograd.grad(total + 0 * (x**9).sum(), x, create_graph=True)
        results.append(y.detach())
    return results


def test_any_order(case):
    """Value and the first four derivatives through create_graph are right."""
    x = sample()
    assert_close(derivatives(case.function, x, 4), derivatives(case.oracle, x, 4))


SMOOTH = {
    "cube": (Cube.apply, 1),
    "exp": (Exp.apply, 1),
    "sin_cos": (lambda x: tuple(SinCos.apply(x)), 1),
    "matmul": (MatMul.apply, 2),
    "norm": (lambda x: Norm.apply(x, 0), 1),
    "max": (lambda x: MaxOver.apply(x, 1).values, 1),
    "affine": (lambda x, w, b: Affine.apply(x, w, b, 0.5, 3), 3),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_gradcheck(name):
    """Where the declared derivative is the true one, torch's own numerical checks pass, batched and in forward mode."""
    function, count = SMOOTH[name]
    inputs = [sample(3, seed=i).requires_grad_() for i in range(count)]
    assert torch.autograd.gradcheck(
        function,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )
    assert torch.autograd.gradgradcheck(
        function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True
    )


@pytest.mark.parametrize("operator", [ThroughRound, CubicRound])
def test_gradgradcheck_of_a_derivative_that_is_not_the_true_one(operator):
    """gradgradcheck differentiates the declared derivative, which is not the true one."""
    x = sample(2).requires_grad_()
    assert torch.autograd.gradgradcheck(operator.apply, x, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize(("operator", "trick"), [(ThroughRound, through_round), (CubicRound, cubic_round)])
def test_value_is_exact(operator, trick):
    """The value is that of round, bit for bit, with or without a derivative; that of the detach trick is not."""
    x = torch.cat([torch.randn(1000) * 3, torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, -0.2])])
    expected = x.round()
    for value in (operator.apply(x), operator.apply(x.clone().requires_grad_()), torch.func.jvp(operator.apply, (x,), (x,))[0]):
        assert torch.equal(value.detach().view(torch.int32), expected.view(torch.int32))
    assert not torch.equal(trick(x).view(torch.int32), expected.view(torch.int32))


def test_forward_ad(case):
    """Dual tensors have the tangent, and the tangent of a gradient (forward over reverse)."""
    x, t = sample(), sample(seed=1)
    results = []
    for function in case:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, t)
            results.append(forward_ad.unpack_dual(function(dual)).tangent)
            primal = x.clone().requires_grad_()
            dual = forward_ad.make_dual(primal, t)
            (gradient,) = torch.autograd.grad(function(dual).sum(), dual, create_graph=True)
            results.append(forward_ad.unpack_dual(gradient).tangent)
    assert_close(results[:2], results[2:])


def test_reverse_over_forward_ad(case):
    """A tangent is differentiated in reverse."""
    results = []
    for function in case:
        x = sample().requires_grad_()
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, sample(seed=1)))).tangent
            results.append(torch.autograd.grad(tangent.sum() + 0 * (x**2).sum(), x)[0])
    assert_close(*results)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_autograd_functional(case, strategy):
    """torch.autograd.functional is right, looped and vectorized, in both modes."""
    x = sample()
    assert_close(
        jacobian(case.function, x, vectorize=True, strategy=strategy), jacobian(case.oracle, x, vectorize=True, strategy=strategy)
    )
    loss, expected = (lambda x, f=f: f(x).sin().sum() for f in case)
    assert_close(
        hessian(loss, x, vectorize=True, outer_jacobian_strategy=strategy),
        hessian(expected, x, vectorize=True, outer_jacobian_strategy=strategy),
    )
    assert_close(hessian(loss, x), hessian(expected, x))


def test_batched_cotangents(case):
    """torch.autograd.grad with is_grads_batched batches the vjp rule."""
    results = []
    for function in case:
        x = sample().requires_grad_()
        results.append(torch.autograd.grad(function(x), x, torch.eye(3, dtype=x.dtype), is_grads_batched=True)[0])
    assert_close(*results)


def test_gradients_accumulate():
    """Two backwards through one graph add up in ``.grad``."""
    x = sample().requires_grad_()
    y = Cube.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert_close(x.grad, 6 * x.detach() ** 2)


def test_second_backward_without_the_graph_is_an_error():
    """A second backward is an error, as for torch's operators: the saved tensors are freed."""
    y = Cube.apply(sample().requires_grad_()).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_in_place_change_of_a_saved_tensor_is_an_error():
    """Autograd detects it, as for torch's operators."""
    x = sample().requires_grad_() * 1
    y = Cube.apply(x).sum()
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_anomaly_mode():
    """Anomaly mode names the operator, and changes nothing."""
    x = torch.zeros(3, requires_grad=True)
    with torch.autograd.detect_anomaly():
        Cube.apply(x).sum().backward()
        with (
            pytest.warns(UserWarning, match="Error detected in NormBackward"),
            pytest.raises(RuntimeError, match="'NormBackward' returned nan"),
        ):
            Norm.apply(x).backward()


def test_tensor_hooks():
    """Hooks on the output and on the node see the cotangent, and may change it."""
    x = sample().requires_grad_()
    y = Cube.apply(x)
    seen = []
    y.register_hook(lambda g: 2 * g)
    y.grad_fn.register_prehook(lambda gs: seen.append(gs[0]))
    y.sum().backward()
    assert_close(x.grad, 6 * x.detach() ** 2)
    assert torch.equal(seen[0], torch.full_like(x, 2))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(case, use_reentrant):
    """Gradients that are recomputed in the backward pass are the same."""
    results = []
    for function in case:
        x, w = sample().requires_grad_(), sample(seed=1).requires_grad_()

        def block(x, w, function=function):
            return function(torch.sin(x * w)).sin()

        y = checkpoint(block, x, w, use_reentrant=use_reentrant)
        results.append(torch.autograd.grad(y.sum(), (x, w)) if not use_reentrant else _backward(y.sum(), x, w))
    assert_close(*results)


def _backward(loss, *leaves):
    loss.backward()
    return tuple(leaf.grad for leaf in leaves)


def test_double_backward_through_a_checkpoint(case):
    """A gradient of a gradient recomputes twice."""
    results = []
    for function in case:
        x = sample().requires_grad_()
        y = checkpoint(function, x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        results.append(torch.autograd.grad((gradient + 0 * x).sum(), x)[0])
    assert_close(*results)


def test_saved_tensor_hooks(case):
    """Hooks pack and unpack all that is saved: a round trip through numpy changes nothing."""
    x = sample().requires_grad_()
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return t.detach().numpy().copy()

    def unpack(a):
        unpacked.append(a)
        return torch.from_numpy(a)

    with saved_tensors_hooks(pack, unpack):
        y = case.function(x).sum()
    (gradient,) = torch.autograd.grad(y, x)
    assert_close(gradient, torch.autograd.grad(case.oracle(x).sum(), x)[0])
    assert len(packed) == len(unpacked)


@pytest.mark.parametrize(
    ("function", "count"),
    [(ThroughRound.apply, 0), (Cube.apply, 1), (SinCos.apply, 1), (MatMul.apply, 2), (Norm.apply, 2), (MaxOver.apply, 1)],
)
def test_number_of_saved_tensors(function, count):
    """Only what the operator needs is saved."""
    saved = []
    x = sample(3).requires_grad_()
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        output = function(x, x) if function is MatMul.apply else function(x)
    assert len(saved) == count
    assert output is not None


def test_nothing_is_saved_when_nobody_asks():
    """Nothing is saved without an input that requires a gradient, or in no_grad."""
    saved = []
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        Cube.apply(sample())
        with torch.no_grad():
            Cube.apply(sample().requires_grad_())
    assert not saved


def test_save_on_cpu(case):
    """Saved tensors may be offloaded."""
    x = sample().requires_grad_()
    with save_on_cpu():
        y = case.function(x).sum()
    assert_close(torch.autograd.grad(y, x)[0], torch.autograd.grad(case.oracle(x).sum(), x)[0])


@pytest.mark.parametrize("name", ["cube", "through_round", "sin_cos", "exp", "max"])
def test_autocast(name):
    """Between a product in bfloat16 and a loss in float32, value and gradients are those of the same operations in torch."""
    case = CASES[name]
    results = []
    for function in case:
        x = (torch.linspace(0.2, 1, 12).reshape(4, 3)).requires_grad_()
        w = torch.linspace(0.1, 0.9, 9).reshape(3, 3).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = x @ w
            y = torch.stack([function(row) for row in hidden])
            loss = (y.float() ** 2).mean()
        results.append((hidden.dtype, y.dtype, loss.detach(), *torch.autograd.grad(loss, (x, w))))
    assert results[0][:2] == results[1][:2]
    assert_close(results[0][2:], results[1][2:], rtol=0.05, atol=0.05)


def test_autocast_inside_a_transform():
    """torch.func.grad of a function that uses autocast is right."""

    def loss(function, w, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (function(x @ w).float() ** 2).sum()

    x, w = torch.linspace(0.2, 1, 12).reshape(4, 3), torch.linspace(0.1, 0.9, 9).reshape(3, 3)
    gradient = torch.func.grad(lambda w: loss(CubicRound.apply, w, x))(w)
    assert gradient.dtype == torch.float32
    hidden = (x.bfloat16() @ w.bfloat16()).float()
    expected = x.T @ (2 * hidden.round() * hidden**2)
    assert_close(gradient, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_modes(case, mode):
    """Without gradients the value is the same and no graph is built."""
    x = sample().requires_grad_()
    with mode():
        y = case.function(x)
    assert not y.requires_grad
    assert y.grad_fn is None
    assert y.is_inference() == (mode is torch.inference_mode)
    assert torch.equal(y, case.function(x).detach())


def test_enable_grad_inside_no_grad():
    """The innermost mode counts."""
    x = sample().requires_grad_()
    with torch.no_grad(), torch.enable_grad():
        y = Cube.apply(x)
    assert_close(torch.autograd.grad(y.sum(), x)[0], 3 * x.detach() ** 2)


def test_forward_ad_in_no_grad():
    """Tangents flow through no_grad, as in torch's own operators: no_grad is about reverse mode."""
    x = sample()
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert_close(forward_ad.unpack_dual(Cube.apply(dual)).tangent, 3 * x**2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_dtypes(dtype):
    """Value, gradient and tangent have the dtype of the input."""
    x = sample().to(dtype).requires_grad_()
    y = Cube.apply(x)
    assert y.dtype == dtype
    assert torch.equal(y, x**3)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.dtype == dtype
    tangent = torch.func.jvp(Cube.apply, (x.detach(),), (torch.ones_like(x),))[1]
    assert tangent.dtype == dtype
    assert_close(tangent, gradient)


class Double(ThroughRound):
    """2 z: linear, so the same for real and complex numbers."""

    @staticmethod
    def forward(z):
        return 2 * z

    @staticmethod
    def vjp(ctx, g):
        return 2 * g

    @staticmethod
    def jvp(ctx, t):
        return 2 * t


def test_complex_dtype():
    """Complex numbers take the same path."""
    z = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    y = Double.apply(z)
    assert torch.equal(y, 2 * z)
    assert torch.equal(torch.autograd.grad(y.abs().sum(), z)[0], torch.autograd.grad((2 * z).abs().sum(), z)[0])
    assert torch.equal(torch.func.jvp(Double.apply, (z.detach(),), (1j * z.detach(),))[1], 2j * z.detach())


def test_parameter_and_buffer():
    """Parameters are tensors like any other."""
    p = torch.nn.Parameter(sample())
    Cube.apply(p).sum().backward()
    assert_close(p.grad, 3 * p.detach() ** 2)
    buffer = torch.nn.Buffer(sample())
    assert torch.equal(Cube.apply(buffer), buffer**3)


class Marked(torch.Tensor):
    """A subclass in Python, by __torch_function__."""


def test_tensor_subclass():
    """A subclass by __torch_function__ gets the right value and gradient."""
    x = sample().as_subclass(Marked).requires_grad_()
    y = Cube.apply(x)
    assert isinstance(y, Marked)
    y.sum().backward()
    assert_close(x.grad.as_subclass(torch.Tensor), 3 * x.detach().as_subclass(torch.Tensor) ** 2)


def test_wrapper_subclass():
    """A subclass by __torch_dispatch__ is differentiated through its parts."""
    x = TwoTensor(sample(), sample(seed=1)).requires_grad_()
    y = CubicRound.apply(x)
    assert torch.equal(y.a, x.a.round())
    assert torch.equal(y.b, x.b.round())
    y.sum().backward()
    assert_close(x.grad.a, x.a**2)
    assert_close(x.grad.b, x.b**2)


def test_training_step():
    """A network with an operator between its layers learns."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x = sample(16)
    target = x.sum(-1, keepdim=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = ((net[1](ThroughRound.apply(4 * net[0](x)) / 4) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
