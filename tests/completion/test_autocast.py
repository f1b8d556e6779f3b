"""A function whose forward alone is under autocast, as in training: its derivatives are taken outside of it."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.nn import functional

import fullgrad

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _random(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) - 0.3


TALL, SQUARE = _random(6, 3), torch.eye(3) + 0.3 * _random(3, 3)
HEADS, PARAMETERS = _random(1, 2, 5, 4), [_random(12, 3), _random(12, 3), _random(12), _random(12)]
CAUSAL, LABELS = torch.ones(5, 5, dtype=torch.bool).tril(), torch.tensor([0, 2, 1])
KERNEL = _random(2, 3, 3)
LAYER = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).requires_grad_(False)
NETWORK = torch.nn.LSTM(3, 3)


def _positive(x):
    return x @ x.mT + torch.eye(3)


FUNCTIONS = {
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), HEADS),
    "causal attention": (lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), HEADS),
    "masked attention": (lambda x: functional.scaled_dot_product_attention(x, x, x, CAUSAL), HEADS),
    "attention with a bias": (lambda x: functional.scaled_dot_product_attention(x, x, x, x @ x.mT), HEADS),
    "grouped attention": (
        lambda x: functional.scaled_dot_product_attention(x, x[:, :1], x[:, :1], scale=0.3, enable_gqa=True),
        HEADS,
    ),
    "encoder in training": (lambda x: functional_call(LAYER.train(), {}, (x,)), _random(2, 3, 8)),
    "encoder in evaluation": (lambda x: functional_call(LAYER.eval(), {}, (x,)), _random(2, 3, 8)),
    "linear": (lambda x: functional.linear(x, SQUARE, SQUARE[0]), TALL),
    "bilinear": (lambda x: functional.bilinear(x, x, KERNEL), TALL),
    "convolution": (lambda x: functional.conv1d(x, KERNEL), _random(1, 3, 6)),
    "conv_tbc": (lambda x: torch.conv_tbc(x, SQUARE[None], SQUARE[0]), _random(4, 2, 3)),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), TALL),
    "cdist": (lambda x: torch.cdist(x, SQUARE), TALL),
    "layer norm": (lambda x: functional.layer_norm(x @ SQUARE, (3,), SQUARE[0]), TALL),
    "group norm": (lambda x: functional.group_norm(x, 3), TALL),
    "batch norm": (lambda x: functional.batch_norm(x @ SQUARE, None, None, training=True), TALL),
    "lstm cell": (lambda x: torch.lstm_cell(x @ SQUARE, (x, x), *PARAMETERS)[0], TALL),
    "gru cell": (lambda x: torch.gru_cell(x @ SQUARE, x, *[p[:9] for p in PARAMETERS]), TALL),
    "lstm": (lambda x: functional_call(NETWORK, dict(NETWORK.named_parameters()), (x @ SQUARE,))[0], TALL[:, None]),
    "cholesky": (lambda x: torch.linalg.cholesky(_positive(x)), SQUARE),
    "cholesky_inverse": (lambda x: torch.cholesky_inverse(torch.linalg.cholesky(_positive(x))), SQUARE),
    "cholesky_solve": (lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(_positive(x))), SQUARE),
    "householder_product": (lambda x: torch.linalg.householder_product(x, SQUARE[0]), TALL),
    "triangular_solve": (lambda x: torch.triangular_solve(TALL[:3], x.tril() + torch.eye(3), upper=False)[0], SQUARE),
    "solve": (lambda x: torch.linalg.solve(x, TALL.mT), SQUARE),
    "inv": (torch.linalg.inv, SQUARE),
    "det": (torch.linalg.det, SQUARE),
    "slogdet": (lambda x: torch.linalg.slogdet(x)[1], SQUARE),
    "eigvals": (lambda x: torch.linalg.eigvals(x).abs(), SQUARE),
    "prod": (lambda x: x.prod(-1), TALL),
    "huber_loss": (lambda x: functional.huber_loss(x, x.flip(0), delta=0.2), TALL),
    "multi_margin_loss": (lambda x: functional.multi_margin_loss(x, LABELS), SQUARE),
    "cross_entropy": (lambda x: functional.cross_entropy(x @ SQUARE, LABELS), SQUARE),
}
TRANSFORMS = {
    "grad": lambda f, x: grad(f)(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "vmap of grad": lambda f, x: vmap(grad(f))(torch.stack([x, 2 * x]))[0],
    "jvp": lambda f, x: jvp(f, (x,), (x.cos(),))[1],
    "jvp of grad": lambda f, x: jvp(grad(f), (x,), (x.cos(),))[1],
    "grad of jvp": lambda f, x: grad(lambda x: jvp(f, (x,), (x.cos(),))[1])(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_under_autocast(name, dtype, transform):
    """The derivatives are those without autocast, up to its precision, and have the dtype of the input."""
    f, x = FUNCTIONS[name]

    def loss(x, is_lowered=False):
        with torch.autocast("cpu", dtype, enabled=is_lowered):
            y = f(x).float()
        return (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum() + y.sin().sum()

    with fullgrad.completing():
        expected = TRANSFORMS[transform](loss, x)
        found = TRANSFORMS[transform](lambda x: loss(x, True), x)
    off = 0.25 if dtype == torch.bfloat16 else 0.05
    torch.testing.assert_close(found, expected, rtol=off, atol=off * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_long_attention_under_autocast(dtype):
    """It is computed by blocks, with torch's value and a gradient near torch's own."""
    x = torch.randn(1, 1, 1100, 4, generator=torch.Generator().manual_seed(0))

    def attend(x):
        with torch.autocast("cpu", dtype):
            return functional.scaled_dot_product_attention(x, x, x)

    def loss(x):
        y = attend(x)
        return y.float().sin().sum(), y

    own = x.clone().requires_grad_()
    expected, expected_y = torch.autograd.grad(loss(own)[0], own)[0], attend(x)
    with fullgrad.completing():
        found, y = grad(loss, has_aux=True)(x)
    torch.testing.assert_close(y, expected_y, rtol=0, atol=0)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)
