"""Layers inside `completing` that torch lacks derivatives or batches of: cells, fake quantization, losses of sequences."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import fullgrad

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]


def given(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_gradients_of_samples_by_the_parameters_of_cells(kind):
    """The state is 0, which the samples share, or each has its own."""
    torch.manual_seed(0)
    cell = kind(2, 3).double()
    parameters = dict(cell.named_parameters())
    batch, states = given(4, 2), given(4, 3, seed=1)

    def loss(parameters, x, *state):
        y = functional_call(cell, parameters, (x, *([state * 2] if kind is nn.LSTMCell and state else state)))
        return (y[0] if isinstance(y, tuple) else y).sin().sum()

    with fullgrad.completing():
        for args in ((batch,), (batch, states)):
            found = vmap(grad(loss, (0, 1)), (None, *[0] * len(args)))(parameters, *args)
            for i, sample in enumerate(zip(*args, strict=True)):
                leaf = sample[0].clone().requires_grad_()
                expected = torch.autograd.grad(loss(parameters, leaf, *sample[1:]), [*parameters.values(), leaf])
                torch.testing.assert_close([*[g[i] for g in found[0].values()], found[1][i]], list(expected))


# --- Fake quantization ------------------------------------------------------------------------------------------------------

SCALES, ZEROS = torch.tensor([0.3, 0.5]), torch.tensor([1, -2], dtype=torch.int32)
OFF, ON = torch.tensor([0]), torch.tensor([1])


def observed(x, is_per_row):
    state = torch.tensor([-1.0, -1]), torch.tensor([1.0, 1]), SCALES.clone(), ZEROS.clone()
    state = state if is_per_row else [v[:1] for v in state]
    return torch.fused_moving_avg_obs_fake_quant(x, OFF, ON, *state, 0.01, -4, 3, 0, is_per_row)


QUANTIZED = {
    "per tensor": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.3, 1, -4, 3), False),
    "per tensor, by tensors": (lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[0], ZEROS[0], -4, 3), False),
    "per channel": (lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 0, -4, 3), True),
    "observed": (lambda x: observed(x, False), False),
    "observed rows": (lambda x: observed(x, True), True),
    "learned per tensor": (
        lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, SCALES[:1], ZEROS[:1].float(), -4, 3, 1.0),
        False,
    ),
    "learned per channel": (
        lambda x: torch._fake_quantize_learnable_per_channel_affine(x, SCALES, ZEROS.float(), 0, -4, 3, 1.0),
        True,
    ),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_fake_quantization_is_straight_through(name):
    """Inside the range it has the slope 1 in all nestings, with torch's value, of a batch too."""
    f, is_per_channel = QUANTIZED[name]
    x = given(2, 5).float() * 2
    s, z = (SCALES[:, None], ZEROS[:, None]) if is_per_channel else (SCALES[0], ZEROS[0])
    if "observed" in name:  # torch computes the scale from the statistics, -1 and 1
        s, z = torch.tensor(2 / 7), torch.tensor(0)

    def reference(x):
        code = (x.detach() / s + z).round()
        return f(x.detach()) + torch.where((code >= -4) & (code <= 3), x - x.detach(), 0)

    def losses(f):
        return lambda x: (f(x.sin() * 2) ** 2 * x).sum()

    own, plain = losses(f), losses(reference)
    with fullgrad.completing():
        assert torch.equal(jvp(f, (x,), (x,))[0], f(x))
        batch = torch.stack([x, x.cos() * 2])
        torch.testing.assert_close(vmap(f)(batch), torch.stack([f(v) for v in batch]))
        torch.testing.assert_close(vmap(grad(own))(batch), torch.stack([grad(plain)(v) for v in batch]))
        for nested in (lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacfwd(f)), hessian, lambda f: jacrev(jacrev(f))):
            torch.testing.assert_close(nested(own)(x), nested(plain)(x))


@pytest.mark.parametrize("is_per_channel", [False, True])
def test_learned_scales_have_torchs_gradients(is_per_channel):
    """Under transforms, forward, and of the second order, which is that of differences of the first."""
    x, count = given(2, 5).float() * 2, 2 if is_per_channel else 1
    parameters = (x, SCALES[:count], torch.tensor([1.2, -0.7])[:count])
    axis = (0,) if is_per_channel else ()
    op = torch._fake_quantize_learnable_per_channel_affine if is_per_channel else torch._fake_quantize_learnable_per_tensor_affine

    def loss(x, s, z):
        return (op(x, s, z, *axis, -4, 3, 0.7) * x.detach().cos()).sum()

    leaves = [v.clone().requires_grad_() for v in parameters]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    tangents = tuple(v.sin() for v in parameters)
    with fullgrad.completing():
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(loss(*leaves), leaves), expected, strict=True))
        torch.testing.assert_close(grad(loss, (0, 1, 2))(*parameters), expected)
        slope = jvp(loss, parameters, tangents)[1]
        torch.testing.assert_close(slope, sum((g * t).sum() for g, t in zip(expected, tangents, strict=True)))
        second = grad(lambda s: grad(loss, 1)(x, s, parameters[2]).sum())(parameters[1])
        step = 1e-3
        ends = [grad(loss, 1)(x, parameters[1] + d, parameters[2]).sum() for d in (step, -step)]
        torch.testing.assert_close(
            jvp(lambda s: grad(loss, 1)(x, s, parameters[2]), (parameters[1],), (parameters[1],))[1].sum(),
            (second * parameters[1]).sum(),
        )
        assert (second.sum() - (ends[0] - ends[1]) / (2 * step)).abs() < 0.05 * second.sum().abs() + 0.05
        slopes = torch.autograd.grad(loss(*leaves), leaves[1], create_graph=True)[0]
        torch.testing.assert_close(torch.autograd.grad(slopes.sum(), leaves[1])[0], second)


RANGES = [torch.tensor([-1.0, -1]), torch.tensor([1.0, 1])]
BY_PARAMETERS = {
    "scale": (lambda x, s: torch.fake_quantize_per_tensor_affine(x, s, ZEROS[0], -4, 3), SCALES[0]),
    "zero_point": (lambda x, z: torch.fake_quantize_per_tensor_affine(x, SCALES[0], z, -4, 3), torch.tensor(1.0)),
    "scale of channels": (lambda x, s: torch.fake_quantize_per_channel_affine(x, s, ZEROS, 0, -4, 3), SCALES),
    "zero_point of channels": (
        lambda x, z: torch.fake_quantize_per_channel_affine(x, SCALES, z, 0, -4, 3),
        torch.tensor([1.0, 2.0]),
    ),
    "running_min": (
        lambda x, m: torch.fused_moving_avg_obs_fake_quant(x, OFF, ON, m, RANGES[1], SCALES, ZEROS, 0.01, -4, 3, 0, True),
        RANGES[0],
    ),
}


@pytest.mark.parametrize("transform", ["grad", "jvp", "jvp of grad", "vmap of grad"])
@pytest.mark.parametrize("name", BY_PARAMETERS)
def test_parameters_of_fake_quantization_are_refused(name, transform):
    """By name: torch declares no derivative by them. In a derivative by what is quantized they may vary at a level below."""
    f, s = BY_PARAMETERS[name]
    x = torch.tensor([[0.1, 0.2], [0.3, -0.4]])
    loss = lambda s, x=x: f(x, s).sin().sum()  # noqa: E731
    transforms = {
        "grad": lambda: grad(loss)(s),
        "jvp": lambda: jvp(loss, (s,), (s,)),
        "jvp of grad": lambda: jvp(lambda s: grad(loss, 1)(s, x), (s,), (s,)),
        "vmap of grad": lambda: vmap(grad(loss))(torch.stack([s, 2 * s])),
    }
    words = f"not differentiable .* '{name.partition(' ')[0]}'|switch it off first"  # of a batch of observers
    with fullgrad.completing(), pytest.raises(RuntimeError, match=words):
        transforms[transform]()


def test_observers_of_a_batch_are_refused():
    """Their statistics are those of one tensor; where one is switched on, a forward mode updates it once."""
    state = [torch.tensor([v]) for v in (-1.0, 1.0, 0.1)]
    zero = torch.tensor([0], dtype=torch.int32)
    f = lambda x: torch.fused_moving_avg_obs_fake_quant(x, ON, ON, *state, zero, 0.5, -4, 3, 0)  # noqa: E731
    with fullgrad.completing():
        jvp(f, (torch.tensor([-3.0, 3.0]),), (torch.ones(2),))
        assert state[0].item() == -2
        with pytest.raises(RuntimeError, match="switch it off first"):
            vmap(f)(torch.ones(2, 3))


# --- Calls that vmap and nested forward mode lack ---------------------------------------------------------------------------


def along(f, x):
    """The second derivative along a constant direction, under no_grad."""
    ones = torch.ones_like(x)
    with torch.no_grad():
        return jvp(lambda x: jvp(f, (x,), (ones,))[1], (x,), (ones,))[1]


@pytest.mark.parametrize("name", ["silu", "mish", "rrelu"])
def test_activations_along_constant_directions(name):
    """Without grad mode, and of a batch, they have the derivatives of reverse mode, twice."""
    x = given(2, 4).sigmoid()

    def loss(x):
        return f(x * 1.0).square()

    f = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)
    (expected,) = torch.autograd.grad(slope.sum(), leaf)
    with fullgrad.completing():
        torch.testing.assert_close(vmap(lambda x: along(loss, x))(x), expected)
        torch.testing.assert_close(along(lambda x: f(x).square(), x), expected)


NUMBERS = {
    "item": lambda x, w: x * w.item(),
    "float": lambda x, w: x * float(w),
    "alpha of elu": lambda x, w: nn.functional.elu(x, w),
    "slope": lambda x, w: nn.functional.leaky_relu(x, w),
    "scale of attention": lambda x, w: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], scale=w),
    "alpha of add": lambda x, w: torch.add(x, x, alpha=w),
    "delta": lambda x, w: nn.functional.huber_loss(x, 0 * x, delta=w),
    "padding": lambda x, w: nn.functional.pad(x, (1, 1), value=w),
    "full": lambda x, w: torch.full_like(x, w),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_with_a_derivative_in_a_batch(name):
    """They are refused in either order of the transforms, as by torch, also where all samples share them; constants are not."""
    x, w = given(3, 4), torch.full((2,), 0.5)
    f = lambda w: NUMBERS[name](x, w).sum()  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(vmap(f)(w), torch.stack([f(v) for v in w]))
        with pytest.raises(RuntimeError, match="became a number"):
            vmap(lambda w: jvp(f, (w,), (w,))[1])(w)
        with pytest.raises(RuntimeError, match="became a number"):
            jvp(vmap(f), (w,), (w,))
        found = vmap(lambda x, w: jvp(lambda x: NUMBERS[name](x, w).sum(), (x,), (x,))[1])(torch.stack([x, x]), w)
        expected = jvp(lambda x: NUMBERS[name](x, w[0]).sum(), (x,), (x,))[1]
        torch.testing.assert_close(found, expected.expand(2))
        torch.testing.assert_close(jvp(lambda v: vmap(lambda x: x * v.item())(x), (w[0],), (w[0],))[0], x / 2)
        condition = lambda w: w * 2 if w else w  # noqa: E731
        for of in (grad, jacrev):
            torch.testing.assert_close(vmap(of(condition))(w), torch.full_like(w, 2))
        torch.testing.assert_close(vmap(lambda w: jvp(condition, (w,), (w,))[1])(w), 2 * w)


OF_ONE = {
    "item": lambda w: w * w.item(),
    "float": lambda w: w * float(w * 2),
    "list": lambda w: torch.tensor([w, 1.0]).sum() * w,
    "as_tensor": lambda w: torch.as_tensor([w, w]).sum() * w,
    "window": lambda w: torch.signal.windows.general_hamming(5, alpha=w).sum() * w,
}


@pytest.mark.parametrize("name", OF_ONE)
def test_numbers_with_a_gradient_in_a_batch(name):
    """They are refused in either order of the transforms, as by torch; those of a batch that is not differentiated are not."""
    f, w = OF_ONE[name], torch.full((2,), 0.5)
    with fullgrad.completing():
        torch.testing.assert_close(vmap(f)(w), torch.stack([f(v) for v in w]))
        for of in (vmap(grad(f)), grad(lambda w: vmap(f)(w).sum()), vmap(lambda w: jvp(f, (w,), (w,))[1]), vmap(jacrev(f))):
            with pytest.raises(RuntimeError, match="became a number"):
                of(w)


def test_numbers_and_splits_of_a_batch():
    """A number or places that all samples share, as plain code has them; others raise."""
    x, place = given(3, 4), torch.tensor([1, 3])
    with fullgrad.completing():
        assert torch.equal(vmap(lambda x: x * (x * 0 + 2).sum().item())(x), x * 8)
        with pytest.raises(RuntimeError, match="several numbers"):
            vmap(lambda x: x * x.sum().item())(x)
        assert torch.equal(vmap(lambda x: torch.tensor_split(x, place)[1])(x), x[:, 1:3])
        assert torch.equal(vmap(lambda x, p: torch.tensor_split(x, p)[1])(x, torch.stack([place] * 3)), x[:, 1:3])
        assert torch.equal(vmap(lambda x: torch.tensor_split(x, torch.tensor(2))[1])(x), x[:, 2:])
        assert torch.equal(vmap(lambda x: x.narrow(0, place[0], 2))(x), x[:, 1:3])
        assert torch.equal(vmap(lambda x, p: x.narrow(-1, p, 2), (1, 0))(x.T, place[:1].expand(3)), x[:, 1:3])
        slope = grad(lambda x: torch.tensor_split(x, place, 1)[1].square().sum())(x)
        assert torch.equal(slope, torch.cat([x[:, :1] * 0, 2 * x[:, 1:3], x[:, 3:] * 0], 1))
        with pytest.raises(RuntimeError, match="several numbers"):
            vmap(lambda x, p: torch.tensor_split(x, p)[1])(x, torch.tensor([[1, 2], [1, 3], [1, 2]]))
        with pytest.raises(RuntimeError, match="several numbers"):
            vmap(lambda x, p: x.narrow(0, p, 2))(x, torch.tensor([1, 2, 1]))


def test_frozen_encoders_with_padding():
    """In evaluation, with a mask of padding, they have the derivatives of those whose parameters need a gradient."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).double().eval()
    mask = torch.tensor([[False, False, True], [False, False, False]])
    x, t = given(2, 3, 4), given(2, 3, 4, seed=1)
    f = lambda x: encoder(x, src_key_padding_mask=mask)[:, :2].sin().sum()  # noqa: E731
    expected = (grad(f)(x) * t).sum()
    encoder.requires_grad_(False)
    plain = f(x)
    with fullgrad.completing():
        value, tangent = jvp(f, (x,), (t,))
        torch.testing.assert_close((value, tangent), (plain, expected))
        torch.testing.assert_close(vmap(f)(torch.stack([x, t])), torch.stack([f(x), f(t)]))


@pytest.mark.parametrize("name", ["asinh", "acosh", "atanh"])
def test_functions_in_place_that_torch_cannot_differentiate(name):
    """Under a transform they have the derivatives of those that make a new tensor."""
    x = given(2, 3).sigmoid() * 0.8 + (1.0 if name == "acosh" else 0.0)
    f, in_place = [lambda x, n=n: getattr(x * x, n)().sum() for n in (name, f"{name}_")]
    with fullgrad.completing():
        torch.testing.assert_close(grad(in_place)(x), grad(f)(x))
        torch.testing.assert_close(jvp(in_place, (x,), (x.cos(),)), jvp(f, (x,), (x.cos(),)))
        torch.testing.assert_close(vmap(hessian(in_place))(x), vmap(hessian(f))(x))


# --- Eager derivatives of a higher order, and heads that share keys -----------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
def test_eager_third_derivatives_of_convolutions_are_torchs_own(transposed):
    """By the input alone, where a completed operator has a formula for padded outputs only."""
    w = given(1, 1, 2, seed=1)
    conv = nn.functional.conv_transpose1d if transposed else nn.functional.conv1d

    def third():
        x = given(1, 1, 5).requires_grad_()
        y = conv(x, w)
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        return y

    expected = third()
    with fullgrad.completing():
        assert torch.equal(third(), expected)


def test_heads_that_share_keys_and_values():
    """A batch and second derivatives of grouped queries are those of keys that are repeated."""
    q, k, v = given(2, 1, 4, 3, 2), given(1, 2, 3, 2, seed=1), given(1, 2, 3, 2, seed=2)

    def grouped(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).sin().sum()

    def repeated(q, k, v):
        k, v = (t.repeat_interleave(2, -3) for t in (k, v))
        return ((q @ k.mT / 2**0.5).softmax(-1) @ v).sin().sum()

    def found(f):
        leaves = [t.clone().requires_grad_() for t in (q[0], k, v)]
        first = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)
        return (
            vmap(f, (0, None, None))(q, k, v),
            vmap(grad(f, (0, 1, 2)), (0, None, None))(q, k, v),
            hessian(f, 1)(q[0], k, v),
            second,
        )

    with fullgrad.completing():
        torch.testing.assert_close(found(grouped), found(repeated))
