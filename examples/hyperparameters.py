r"""
Hyperparameters, constraints and random draws by gradients
==========================================================

Three problems whose answer is found by a solver, and whose derivative is wanted:

* a penalty for each feature of a logistic regression, chosen by the loss on other data,
* a quadratic program in a network, whose Jacobian by its parameters is asked for,
* a draw from a Gamma distribution, differentiated by its shape parameter.

Each states an equation, :mod:`fullgrad.implicit` declares the derivative, and other code finds the numbers: scipy, a
factorization, scipy again. Run ``python examples/hyperparameters.py``; with a file name after it, the picture is written there.
It takes a few seconds, and ends with an error if a number is not as this page says.
"""

import sys

import matplotlib.pyplot as plt
import scipy.optimize
import scipy.special
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor
from torch.func import grad, hessian, jacrev, vmap
from torch.nn.functional import binary_cross_entropy_with_logits

import fullgrad
from fullgrad import implicit

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

# %%
# A penalty for each feature
# --------------------------
#
# The fit is a minimum in the weights: ``implicit.argmin`` of its objective, found by scipy. The loss on the validation data is
# then a function of the penalties, whose gradient takes Hessian-vector products of the objective alone (``linear_solve="cg"``).

features, target = map(torch.tensor, load_breast_cancer(return_X_y=True))
features, target = (features - features.mean(0)) / features.std(0), target.double()
order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
train, validate = order[:100], order[100:]


def objective(weights: Tensor, log_penalty: Tensor) -> Tensor:
    fit = binary_cross_entropy_with_logits(features[train] @ weights, target[train])
    return fit + (log_penalty.exp() * weights.square()).sum() / 2


@implicit.argmin(objective, linear_solve="cg")
def fit(init: Tensor, log_penalty: Tensor) -> Tensor:
    def of(derivative):
        return lambda weights: derivative(torch.from_numpy(weights), log_penalty).numpy()

    slopes = {"jac": of(grad(objective)), "hess": of(hessian(objective))}
    found = scipy.optimize.minimize(of(objective), init.numpy(), method="trust-exact", options={"gtol": 1e-12}, **slopes)
    return torch.from_numpy(found.x)


def validation(log_penalty: Tensor) -> Tensor:
    weights = fit(torch.zeros(features.shape[1]), log_penalty)
    return binary_cross_entropy_with_logits(features[validate] @ weights, target[validate])


log_penalty = torch.full((features.shape[1],), -9.0)
slope = grad(validation)(log_penalty)
step = 1e-4 * torch.eye(len(slope))[:3]
differences = torch.stack([(validation(log_penalty + s) - validation(log_penalty - s)) / 2e-4 for s in step])
print(f"gradient by three of {len(slope)} penalties, from finite differences: {(slope[:3] - differences).abs().max():.0e}")
torch.testing.assert_close(slope[:3], differences, rtol=1e-3, atol=1e-8)

losses = [validation(log_penalty).item()]
for _ in range(40):
    slope = grad(validation)(log_penalty)
    log_penalty = log_penalty - 0.5 * slope / slope.abs().max()
    losses.append(validation(log_penalty).item())
common = torch.linspace(-10, 0, 21)
of_one = [validation(torch.full_like(log_penalty, v)).item() for v in common.tolist()]
print(f"validation loss: {losses[0]:.3f} before, {min(losses):.3f} after 40 steps, {min(of_one):.3f} by the best single penalty")
assert min(losses) < min(of_one)

# %%
# A quadratic program
# -------------------
#
# :math:`\min \tfrac12 x^T Q x + c^T x` with :math:`G x = b`. Its conditions are an equation of the optimum and the multipliers, a
# structure of two tensors.

torch.manual_seed(0)
q = torch.randn(4, 4)
q = q @ q.mT + torch.eye(4)
g, b = torch.randn(2, 4), torch.randn(2)


def conditions(solution: dict[str, Tensor], c: Tensor, b: Tensor) -> dict[str, Tensor]:
    x, multipliers = solution["x"], solution["multipliers"]
    return {"x": q @ x + c + g.mT @ multipliers, "multipliers": g @ x - b}


@implicit.root(conditions)
def minimize(init: None, c: Tensor, b: Tensor) -> dict[str, Tensor]:
    matrix = torch.cat([torch.cat([q, g.mT], 1), torch.cat([g, torch.zeros(2, 2)], 1)])
    x, multipliers = torch.linalg.solve(matrix, torch.cat([-c, b])).split([4, 2])
    return {"x": x, "multipliers": multipliers}


def optimum(c: Tensor, b: Tensor) -> Tensor:
    return minimize(None, c, b)["x"]


c = torch.randn(4)
inverse = torch.linalg.inv(q)
weight = torch.linalg.inv(g @ inverse @ g.mT)
by_c, by_b = jacrev(optimum, (0, 1))(c, b)
torch.testing.assert_close(by_b, inverse @ g.mT @ weight)
torch.testing.assert_close(by_c, inverse @ g.mT @ weight @ g @ inverse - inverse)
print("quadratic program: the Jacobian by its parameters is that of the closed form")


# %%
# A draw from a Gamma distribution
# --------------------------------
#
# The distribution function :math:`P(a, z)` of the draw z is a uniform number u, which does not depend on a: the equation
# :math:`P(a, z) = u` has the derivative of a reparameterized draw. torch knows no derivative of P by a. It is declared, too, by a
# difference, and by z it is the density.


@fullgrad.custom_jvp
def distribution_function(a: Tensor, z: Tensor) -> Tensor:
    return torch.special.gammainc(a, z)


@distribution_function.defjvp
def rule(primals: tuple[Tensor, Tensor], tangents: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    (a, z), (ta, tz) = primals, tangents
    by_a = (torch.special.gammainc(a + 1e-5, z) - torch.special.gammainc(a - 1e-5, z)) / 2e-5
    density = ((a - 1) * z.log() - z - torch.lgamma(a)).exp()
    return distribution_function(a, z), by_a * ta + density * tz


@implicit.root(lambda z, a, u: distribution_function(a, z) - u, vmap_method="broadcast")
def quantile(init: None, a: Tensor, u: Tensor) -> Tensor:
    return torch.from_numpy(scipy.special.gammaincinv(a.numpy(), u.numpy()))


a = torch.tensor(2.5, requires_grad=True)
draw = torch.distributions.Gamma(a, torch.tensor(1.0)).rsample((1000,))
uniform = torch.special.gammainc(a, draw).detach()
ours = vmap(grad(quantile, 1), (None, None, 0))(None, a.detach(), uniform)
# torch's own gradient of each draw is an approximation.
theirs = torch.stack([torch.autograd.grad(d, a, retain_graph=True)[0] for d in draw])
print(
    f"derivative of 1,000 draws by the shape: mean {ours.mean():.4f}, from torch's own at most {(ours - theirs).abs().max():.0e}"
)
torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
assert abs(ours.mean() - 1) < 0.1  # the mean of the distribution is its shape

# %%
# The first problem as a picture: on the left, the loss on the validation data during the steps; on the right, the penalties that
# were found.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(losses, color="#0072B2", label="a penalty for each feature")
left.axhline(min(of_one), color="#D55E00", linestyle="--", label="the best single penalty")
left.set(xlabel="step", ylabel="loss on the validation data")
left.legend(frameon=False)
right.bar(range(len(log_penalty)), log_penalty, color="#0072B2")
right.set(xlabel="feature", ylabel="logarithm of its penalty")
for panel in (left, right):
    panel.spines[["top", "right"]].set_visible(False)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=120)
