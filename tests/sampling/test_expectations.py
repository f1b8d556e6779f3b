"""Means and variances of estimators compared with exact ones: by enumeration of classes, or by Monte Carlo with noise."""

import pytest
import torch

from fullgrad import sampling
from tests import golden

PAIRS = [(problem, estimator) for problem in golden.ALL["expectations"] for estimator in problem["estimators"]]
ENUMERATED = [(p, e) for p, e in PAIRS if "per_class" in e]
INTEGRALS = [(p, e) for p, e in PAIRS if "integral" in e]


def ident(value):
    if "op" in value:
        return " ".join([value["op"].split(".")[1], *[f"{k}={v}" for k, v in value["kwargs"].items()]])
    return f"{value['loss']} {len(value['logits'])} classes {value['logits'][0]:g}"


def loss_of(problem):
    """The function f of one-hot samples along the last dimension."""
    kind, *power = problem["loss"]
    c = torch.tensor(problem["c"], dtype=torch.float64)

    def loss(z):
        if kind == "first":
            return (z[..., 0] - c[0]).abs() ** power[0]
        if kind == "norm":
            return ((z - c).abs() ** power[0]).sum(-1)
        return torch.sin(z @ c) + 0.3 * (z @ c.flip(0)) ** 2 + z[..., 0] * z[..., -1] + 0.5 * z[..., 0] ** 2

    return loss


def gradients(problem, estimator, theta, **noise):
    """The gradients, one for each row."""
    x = theta.clone().requires_grad_()
    y = getattr(sampling, estimator["op"].split(".")[1])(x, **estimator["kwargs"], **noise)
    return torch.autograd.grad(loss_of(problem)(y).sum(), x)[0]


@pytest.mark.short
@pytest.mark.parametrize(("problem", "estimator"), ENUMERATED, ids=ident)
def test_by_enumeration(problem, estimator):
    """The gradient of each class, and their mean and variance."""
    theta = torch.tensor(problem["logits"], dtype=torch.float64)
    n = len(theta)
    found = gradients(problem, estimator, theta.expand(n, n), noise=60 * torch.eye(n, dtype=torch.float64))
    p = torch.softmax(theta, -1)
    mean = p @ found
    for actual, name in ((found, "per_class"), (mean, "mean"), (p @ (found - mean) ** 2, "variance")):
        torch.testing.assert_close(actual, torch.tensor(estimator[name], dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_the_exact_gradient():
    """The exact gradient is that of the mean of f."""
    for problem in golden.ALL["expectations"]:
        theta = torch.tensor(problem["logits"], dtype=torch.float64, requires_grad=True)
        mean = torch.softmax(theta, -1) @ loss_of(problem)(torch.eye(len(theta), dtype=torch.float64))
        expected = torch.tensor(problem["exact_gradient"], dtype=torch.float64)
        torch.testing.assert_close(torch.autograd.grad(mean, theta)[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(of=3)
@pytest.mark.parametrize(
    "n", [pytest.param(20_000, id="few draws"), pytest.param(1_000_000, id="many draws", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(("problem", "estimator"), INTEGRALS, ids=ident)
def test_by_monte_carlo(problem, estimator, n):
    """The mean lies within five standard errors, the variance within a few percent."""
    theta = torch.tensor(problem["logits"], dtype=torch.float64)
    limit = estimator["kwargs"].get("samples") == "infinity"
    if limit:  # 200 samples are close, and take as many times the noise
        estimator = estimator | {"kwargs": estimator["kwargs"] | {"samples": 200}}
        n = n // 100
    parts = [gradients(problem, estimator, theta.expand(n // 10, len(theta))) for _ in range(10)]
    found = torch.cat(parts)
    mean, variance = (torch.tensor(estimator[name], dtype=torch.float64) for name in ("mean", "variance"))
    assert ((found.mean(0) - mean).abs() <= 5 * (variance / n).sqrt()).all(), (found.mean(0), mean)
    spread = ((found - mean) ** 2).var(0).sqrt() / n**0.5
    assert ((((found - mean) ** 2).mean(0) - variance).abs() <= 5 * spread + 1e-9 + limit * 0.05 * variance).all()
