"""Numbers of pyepo 2.2, in float32, on the same draws: the two cheapest of five elements, or the two best.

The golden data holds inputs, draws, values and gradients of `perturbedOpt`, `perturbedFenchelYoung`, `blackboxOpt`,
`negativeIdentity` and `implicitMLE`. For a solver that maximizes, pyepo's `blackboxOpt` and `implicitMLE` move the costs to the
other side of the solution than ours.
"""

import json
from pathlib import Path

import pytest
import torch
from torch.func import vmap

from fullgrad import blackbox

GOLDEN = json.loads((Path(__file__).parent / "pyepo_golden.json").read_text())
SAMPLES, SIGMA, LAM = GOLDEN["samples"], GOLDEN["sigma"], GOLDEN["lam"]
X, G, TARGET, NOISE, ONE = (torch.tensor(GOLDEN[name]) for name in ("x", "cotangent", "target", "noise", "noise of imle"))
SCALES = torch.tensor([1.0, 2.0, 0.5])  # the cotangent of the losses of three instances


def best(x):
    return torch.zeros_like(x).scatter(-1, x.topk(2).indices, 1.0)


def cheapest(x):
    return best(-x)


SOLVERS = {"minimize": cheapest, "maximize": best}


def perturbed(solver, x):
    return vmap(lambda x, z: blackbox.perturbed(solver, x, samples=SAMPLES, sigma=SIGMA, noise=z))(x, NOISE)


def without_baseline(solver, x):
    """The mean of calls with one draw each."""
    one = lambda x, z: blackbox.perturbed(solver, x, sigma=SIGMA, noise=z.unsqueeze(0))  # noqa: E731
    return vmap(vmap(one, (None, 0)))(x, NOISE).mean(1)


def loss(solver, x):
    def of_one(x, t, z):
        options = {"samples": SAMPLES, "sigma": SIGMA, "maximize": solver is best, "noise": z}
        return blackbox.fenchel_young_loss(solver, x, t, **options)

    return vmap(of_one)(x, TARGET, NOISE)


def imle(solver, x):
    return vmap(lambda x, z: blackbox.imle(lambda c: solver(-c), -x, lam=LAM, noise_scale=SIGMA, noise=-z))(x, ONE)


CALLS = {
    "perturbed": perturbed,
    "perturbed without baseline": without_baseline,
    "interpolated": lambda solver, x: vmap(lambda x: blackbox.interpolated(solver, x, LAM))(x),
    "negative_identity": lambda solver, x: vmap(lambda x: blackbox.negative_identity(solver, x, maximize=solver is best))(x),
    "fenchel_young_loss": loss,
    "imle": imle,
}
OTHER_SIDE = ("interpolated, maximize", "imle, maximize")


@pytest.mark.short
@pytest.mark.parametrize("key", [key for key in GOLDEN["results"] if key not in OTHER_SIDE])
def test_values_and_gradients_of_pyepo(key):
    """Value and gradient are pyepo's, but for 1e-7, which it adds to its divisors."""
    name, _, kind = key.partition(", ")
    x = X.clone().requires_grad_()
    y = CALLS[name](SOLVERS[kind], x)
    (g,) = torch.autograd.grad(y, x, SCALES if name == "fenchel_young_loss" else G)
    expected = GOLDEN["results"][key]
    torch.testing.assert_close(y.detach(), torch.tensor(expected["value"]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(g, torch.tensor(expected["gradient"]), rtol=1e-5, atol=1e-5)
