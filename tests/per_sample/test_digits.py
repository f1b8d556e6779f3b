"""Gradients whose terms cancel: what the products of Gram matrices lose, and numbers that overflow."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap
from torch.testing import assert_close

from fullgrad import per_sample
from fullgrad.per_sample import _contributions
from tests.per_sample.models import indices, numbers

W, A = numbers(40, 50).float(), numbers(6, 2, 50).float()
B = A + 1e-4 * numbers(6, 2, 50, seed=1).float()
INDEX = indices(4, 6, 2).repeat_interleave(2, dim=1)


def two_calls(w, a, b):
    return (F.linear(a, w) - F.linear(b, w)).sum()


def positions(w, a, b):
    return (torch.cat([a, b]) @ w.T * torch.tensor([1.0, 1, -1, -1])[:, None]).sum()


def windows(w, a, b):
    x = torch.cat([a, b]).T.reshape(50, 4, 1)
    return (F.conv2d(x, w) * torch.tensor([1.0, 1, -1, -1])[:, None]).sum()


def rows(w, index, b):
    signs = torch.tensor([1.0, -1, 1, -1])[:, None] + 1e-4 * b[0, :4, None]
    return (F.embedding(index, w) * signs).sum()


LOSSES = {
    "two calls": (two_calls, W, (A, B)),
    "positions": (positions, W, (A, B)),
    "windows of a convolution": (windows, W[:, :, None, None], (A, B)),
    "rows of a table": (rows, W, (INDEX, B)),
}


def gradients(loss, w, batch):
    """The gradients by vmap(grad), each as a row, in float64."""
    return vmap(grad(loss), (None, 0, 0))(w, *batch).flatten(1).double()


def traced(run, *args):
    from torch.fx.experimental.proxy_tensor import make_fx

    # The graph must not hold what was looked at.
    other = [v.flip(0) if v.is_floating_point() else torch.zeros_like(v) for v in args]
    return make_fx(run)(*other)(*args)


CALLS = {
    "eager": lambda run, *args: run(*args),
    "outer vmap": lambda run, w, *batch: vmap(run, (0, None, None))(w[None], *batch)[0],
    "outer grad": lambda run, w, *batch: torch.func.vjp(lambda w: run(w, *batch), w)[0],
    "traced": traced,
}


@pytest.mark.short(of=4)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LOSSES)
def test_terms_that_cancel(name, call):
    """Squares, norms and inner products keep their digits, under each transform, where uses of a parameter cancel."""
    loss, w, batch = LOSSES[name]
    g = gradients(loss, w, batch)
    norms, units = g.norm(dim=1), torch.outer(g.norm(dim=1), g.norm(dim=1))
    close = lambda found, expected: assert_close(found.double(), expected, rtol=2e-3, atol=0)  # noqa: E731
    close(CALLS[call](per_sample.norms(loss), w, *batch), norms)
    close(CALLS[call](lambda *args: per_sample.clipped(loss, 1e-3)(*args)[1], w, *batch), norms)
    found = CALLS[call](per_sample.gramian(loss), w, *batch)
    close(found.diagonal(), norms.square())
    assert_close(found.double() / units, g @ g.T / units, rtol=0, atol=2e-3)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LOSSES)
def test_terms_that_cancel_in_float64(name, call):
    """So they do in float64."""
    loss, w, batch = LOSSES[name]
    w, batch = w.double(), [v.double() if v.is_floating_point() else v for v in batch]
    g = gradients(loss, w, batch)
    assert_close(CALLS[call](per_sample.norms(loss), w, *batch), g.norm(dim=1), rtol=1e-11, atol=0)
    assert_close(CALLS[call](per_sample.gramian(loss), w, *batch), g @ g.T, rtol=1e-9, atol=1e-12 * float(g.norm() ** 2))


@pytest.mark.parametrize("call", CALLS)
def test_terms_that_cancel_to_zero(call):
    """A gradient of 0 has squares that are not negative, and a norm that is not NaN."""
    loss = lambda w, a, b: (F.linear(a, w) - F.linear(a + b, w) + F.linear(b, w)).sum()  # noqa: E731
    for w, a, b in ((W, A, B), (W.double(), A.double(), B.double())):
        scale = 1e-5 if w.dtype == torch.float32 else 1e-14
        assert float(CALLS[call](per_sample.norms(loss), w, a, b).max()) < scale * float(a.norm()) * 40
        assert float(CALLS[call](per_sample.norms(loss, squared=True), w, a, b).min()) >= 0
        assert float(CALLS[call](per_sample.gramian(loss), w, a, b).diagonal().min()) >= 0


def test_derivatives_where_terms_cancel():
    """Norms of samples that were computed anew have the derivatives of vmap(grad), beside samples that were not."""
    loss = lambda w, a, b: (F.linear(a, w).square() - F.linear(b, w).square()).sum()  # noqa: E731
    w, a = W.double().requires_grad_(), A.double()
    b = torch.cat([a[:3] + 1e-4 * B[:3].double(), B[3:].flip(0).double()]).requires_grad_()
    plain = vmap(grad(loss), (None, 0, 0))(w, a, b).flatten(1).norm(dim=1)
    found = per_sample.norms(loss)(w, a, b)
    assert_close(found, plain)
    assert_close(torch.autograd.grad(found.log().sum(), (w, b)), torch.autograd.grad(plain.log().sum(), (w, b)))


def test_few_samples_are_computed_anew(monkeypatch):
    """Those whose terms cancel are, and no others."""
    anew, of = [], _contributions.Product.dense
    monkeypatch.setattr(_contributions.Product, "dense", lambda p, s: (anew.append(p.batch), of(p, s))[1])
    per_sample.norms(two_calls)(W, A, torch.cat([B[:2], -A[2:]]))
    assert anew == [2]
    anew.clear()
    per_sample.gramian(two_calls)(W, A, -A)
    assert not anew


def test_a_norm_that_is_nan_is_not_passed_unclipped():
    """Its factor, and so the sum, is NaN; gradients of norm 0 have the factor 1 and a derivative."""
    loss = lambda w, x: (w * x).sum()  # noqa: E731
    x = torch.tensor([[0.0, 0.0], [3.0, math.nan], [0.3, 0.4]])
    sums, norms = per_sample.clipped(loss, 1.0)(torch.ones(2), x)
    assert sums.isnan().all()
    assert norms.isnan().tolist() == [False, True, False]
    w = torch.ones(2, requires_grad=True)
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    of = lambda w, x: (w * x).square().sum()  # noqa: E731
    sums, _ = per_sample.clipped(of, 1.0)(w, x)
    g = 2 * w * x[1].square()
    assert_close(torch.autograd.grad(sums.sum(), w), torch.autograd.grad((g / g.norm()).sum(), w))


def test_products_that_overflow():
    """Norms whose Gram matrices overflow, or give NaN, are those of the gradients."""
    a = 1e16 * A
    loss = lambda w, a, b: (F.linear(a, w) * 1000 - F.linear(a, w) * 999).sum()  # noqa: E731
    found = per_sample.norms(loss)(W, a, B)
    assert_close(found.double(), gradients(loss, W.double(), (a.double(), B.double())).norm(dim=1), rtol=1e-2, atol=0)
