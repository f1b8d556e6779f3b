"""Large tensors, whose derivatives are computed piece by piece, against the same computed whole."""

import pytest
import torch
from torch.testing import assert_close

import fullgrad
from fullgrad import _half_precision
from fullgrad._suite.bench._operators import bound, enlarged, tensors
from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import equal

ELEMENTWISE = [c for c in CASES if not c.exhaustive and c.of == "elements"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda c: c.name)
def test_pieces_give_what_the_whole_gives(case, dtype, monkeypatch):
    """The value to the last bit, gradients but for some roundings: torch's exponential has others for the last few of a piece.

    The gradient of a parameter is a sum.
    """
    inputs = enlarged(case, 91, 91, dtype, "cpu")

    def run():
        torch.manual_seed(0)
        leaves = [v.clone().requires_grad_() for v in tensors(inputs)]
        y = bound(case.operator, inputs)(*leaves)
        g = torch.linspace(-1, 1, y.numel()).to(y.dtype).reshape(y.shape)
        return y.detach(), torch.autograd.grad(y, leaves, g, allow_unused=True)

    value, gradients = run()
    for piece in (8, 4):  # one row and a part of one
        monkeypatch.setattr(_half_precision, "PIECE", piece)
        again, slopes = run()
        equal(again, value)
        for a, b in zip(slopes, gradients, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                eps = torch.finfo(dtype).eps
                rtol, atol = (16 * eps, 0) if a.shape == value.shape else (8 * eps, 1e-5)
                assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


class Normalized(fullgrad.Elementwise):
    """A term that asks for the number of elements, as LSQ's does."""

    reads = {0: (), 1: (0,)}

    @staticmethod
    def forward(x, scale):
        return x * scale

    @staticmethod
    def vjp_term(i, v, x, scale):
        return v if i == 0 else v * x / x.numel() ** 0.5


def test_an_operator_that_does_not_say_so_is_computed_whole(monkeypatch):
    """A sum, or a number of elements, in a term of a user's would be another one in pieces."""
    x, scale = torch.randn(8, 8, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    expected = torch.autograd.grad(Normalized.apply(x, scale).sum(), (x, scale))
    monkeypatch.setattr(_half_precision, "PIECE", 8)
    assert_close(torch.autograd.grad(Normalized.apply(x, scale).sum(), (x, scale)), expected, rtol=0, atol=0)


def test_pieces_are_used(monkeypatch):
    """By an operator that says so, where it has several gradients."""
    asked = []
    monkeypatch.setattr(_half_precision, "PIECE", 8)
    monkeypatch.setattr(_half_precision, "chunked", lambda *args, **how: asked.append(args))
    x, alpha = torch.randn(8, 8, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    torch.autograd.grad(fullgrad.spikes.atan(x, 2.0).sum(), x)
    torch.autograd.grad(Normalized.apply(x, alpha).sum(), (x, alpha))
    assert asked == []
    torch.autograd.grad(fullgrad.spikes.atan(x, alpha).sum(), (x, alpha))
    assert len(asked) == 1
