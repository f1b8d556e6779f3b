r"""
Hyperparameters by gradients
============================

Three problems whose answer a solver finds, and whose derivative is wanted:

* the penalties of a logistic regression, which are chosen by the loss on other data,
* the optimum of a quadratic program, by all numbers that define it,
* a draw from a Gamma distribution, by the concentration of the distribution.

Each has an equation, and :mod:`fullgrad.implicit` declares the derivative that follows from it. The solver is other code: scipy,
a factorization, scipy again.

Run ``python examples/hyperparameters.py``; with a file name after it, the picture is written there. It takes less than a minute,
and ends with an error if a number is not as this page says.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

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

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.set_default_dtype(torch.float64)
SEEDS = 5

# %%
# Penalties
# ---------
#
# The 30 features of the breast cancer data set of scikit-learn, and 30 columns of noise, are the inputs of a logistic regression.
# One penalty belongs to the features, and one to the noise. The fit is a minimizer in the weights, found by scipy, so that the
# loss on the validation part is a function of the two penalties. Its gradient takes one linear equation with the Hessian of the
# objective, which conjugate gradients solve by Hessian-vector products.


class Part(NamedTuple):
    inputs: Tensor
    target: Tensor


def load(seed: int) -> list[Part]:
    """The parts to train, to validate and to test, of 100, 200 and 269 samples."""
    inputs, target = map(torch.tensor, load_breast_cancer(return_X_y=True))
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.cat([(inputs - inputs.mean(0)) / inputs.std(0), torch.randn(inputs.shape, generator=generator)], 1)
    order = torch.randperm(len(target), generator=generator)
    return [Part(inputs[chosen], target[chosen].double()) for chosen in order.split([100, 200, 269])]


def loss(weights: Tensor, part: Part) -> Tensor:
    return binary_cross_entropy_with_logits(part.inputs @ weights, part.target)


def objective(weights: Tensor, log_penalties: Tensor, part: Part) -> Tensor:
    penalties = log_penalties.exp().repeat_interleave(30)
    return loss(weights, part) + (penalties * weights.square()).sum() / 2


@implicit.argmin(objective, linear_solve="cg")
def fit(init: Tensor, log_penalties: Tensor, part: Part) -> Tensor:
    def of(derivative):
        return lambda weights: derivative(torch.from_numpy(weights), log_penalties, part).numpy()

    slopes = {"jac": of(grad(objective)), "hess": of(hessian(objective))}
    found = scipy.optimize.minimize(of(objective), init.numpy(), method="trust-ncg", options={"gtol": 1e-12}, **slopes)
    return torch.from_numpy(found.x)


def after_fit(log_penalties: Tensor, train: Part, other: Part) -> Tensor:
    """The loss on other data."""
    return loss(fit(torch.zeros(60), log_penalties, train), other)


# %%
# The gradient equals finite differences. So does the Hessian, which solves linear equations in the derivative of a solution.

train, validation, _ = load(0)
start, step = torch.tensor([-6.0, -6.0]), 1e-2
axes = step * torch.eye(2)


def differences(f: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.stack([(f(start + axis) - f(start - axis)) / (2 * step) for axis in axes])


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


def of_validation(log_penalties: Tensor) -> Tensor:
    return after_fit(log_penalties, train, validation)


of_gradient = error(grad(of_validation)(start), differences(of_validation))
of_hessian = error(hessian(of_validation)(start), differences(grad(of_validation)))
print(f"derivatives by the penalties, from finite differences: gradient {of_gradient:.0e}, Hessian {of_hessian:.0e}")
assert of_gradient < 1e-3
assert of_hessian < 1e-3

# %%
# Gradient descent chooses the penalties for each of five splits of the data. The best single penalty of a grid is chosen by the
# same validation part, and the test part compares the two.


def descend(train: Part, validation: Part) -> Tensor:
    """The path of the logarithms of the penalties."""
    path = [start]
    for _ in range(15):
        slope = grad(after_fit)(path[-1], train, validation)
        path.append(path[-1] - 30 * slope / (1 + 30 * slope.norm()))  # a step is shorter than 1
    return torch.stack(path)


def best_single(train: Part, validation: Part) -> Tensor:
    candidates = [torch.full((2,), value) for value in torch.linspace(-8, 0, 9).tolist()]
    found = [after_fit(candidate, train, validation).item() for candidate in candidates]
    return candidates[found.index(min(found))]


splits = [load(seed) for seed in range(SEEDS)]
paths = torch.stack([descend(train, validation) for train, validation, _ in splits])
singles = torch.stack([best_single(train, validation) for train, validation, _ in splits])


def report(what: str, values: Tensor) -> None:
    print(f"{what}: mean {values.mean():.3f}, from {values.min():.3f} to {values.max():.3f} of {len(values)}")


def test_loss(chosen: Tensor) -> Tensor:
    return torch.stack([after_fit(c, train, test) for c, (train, _, test) in zip(chosen, splits, strict=True)])


of_start, of_single, of_both = test_loss(paths[:, 0]), test_loss(singles), test_loss(paths[:, -1])
report("test loss, before", of_start)
report("test loss, best single penalty", of_single)
report("test loss, two penalties by gradients", of_both)
report("logarithm of the penalty of noise, less that of features", paths[:, -1, 1] - paths[:, -1, 0])
assert of_both.mean() < of_single.mean()
assert (paths[:, -1, 1] - paths[:, -1, 0]).mean() > 1

# %%
# A quadratic program
# -------------------
#
# :math:`\min_x \tfrac12 x^T Q x + q^T x` with :math:`G x = b`. Its conditions of optimality are an equation of the optimum and
# the multipliers, a structure of two tensors:
#
# .. math::
#     Q x + q + G^T \lambda = 0, \qquad G x - b = 0
#
# The solver gets a batch of programs at once, by ``vmap_method="broadcast"``.


class Program(NamedTuple):
    Q: Tensor
    q: Tensor
    G: Tensor
    b: Tensor


def conditions(solution: dict[str, Tensor], program: Program) -> dict[str, Tensor]:
    x, multipliers = solution["x"], solution["multipliers"]
    return {
        "x": program.Q @ x + program.q + program.G.mT @ multipliers,
        "multipliers": program.G @ x - program.b,
    }


def kkt_matrix(program: Program) -> Tensor:
    zero = program.G.new_zeros(*program.b.shape, program.b.shape[-1])
    return torch.cat([torch.cat([program.Q, program.G.mT], -1), torch.cat([program.G, zero], -1)], -2)


@implicit.root(conditions, vmap_method="broadcast")
def minimize(init: None, program: Program) -> dict[str, Tensor]:
    found = torch.linalg.solve(kkt_matrix(program), torch.cat([-program.q, program.b], -1))
    x, multipliers = found.split([program.q.shape[-1], program.b.shape[-1]], -1)
    return {"x": x, "multipliers": multipliers}


def optimum(program: Program) -> Tensor:
    return minimize(None, program)["x"]


# %%
# The Jacobian by all numbers of a program has a closed form, with blocks of the inverse of the matrix of the equation:
# :math:`dx = -P\,(dQ\,x + dq + dG^T \lambda)` :math:`{} + K\,(db - dG\,x)`.

torch.manual_seed(0)
root = torch.randn(SEEDS, 4, 4)
programs = Program(root @ root.mT + torch.eye(4), torch.randn(SEEDS, 4), torch.randn(SEEDS, 2, 4), torch.randn(SEEDS, 2))
solution, jacobians = vmap(minimize, (None, 0))(None, programs), vmap(jacrev(optimum))(programs)
x, multipliers = solution["x"], solution["multipliers"]
inverse = torch.linalg.inv(kkt_matrix(programs))
p, k = inverse[:, :4, :4], inverse[:, :4, 4:]
torch.testing.assert_close(jacobians.q, -p)
torch.testing.assert_close(jacobians.b, k)
torch.testing.assert_close(jacobians.Q, -torch.einsum("sij,sk->sijk", p, x))
by_matrix = -torch.einsum("sij,sm->simj", p, multipliers) - torch.einsum("sim,sj->simj", k, x)
torch.testing.assert_close(jacobians.G, by_matrix)
print(f"quadratic programs: the Jacobians of {SEEDS} optima by 30 numbers equal the closed form")

# %%
# A draw from a Gamma distribution
# --------------------------------
#
# The distribution function :math:`P(a, z)` of the draw z, at the concentration a, is a uniform number u. The equation
# :math:`P(a, z) = u` gives the draw a derivative by a (Figurnov et al., https://arxiv.org/abs/1805.08498). ``gammainc`` has no
# derivative by a in torch 2.13, so it is declared: by a it is the derivative of a power series, and by z it is the density.
#
# .. math::
#     P(a, z) = \sum_{k=0}^\infty \frac{z^{a + k} e^{-z}}{\Gamma(a + k + 1)}, \qquad
#     \frac{\partial P}{\partial a} = \sum_{k=0}^\infty \frac{z^{a + k} e^{-z}}{\Gamma(a + k + 1)} (\log z - \psi(a + k + 1))


@fullgrad.custom_jvp
def distribution_function(a: Tensor, z: Tensor) -> Tensor:
    return torch.special.gammainc(a, z)


@distribution_function.defjvp
def rule(primals: tuple[Tensor, Tensor], tangents: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    (a, z), (of_a, of_z) = primals, tangents
    power = a.unsqueeze(-1) + torch.arange(100.0)  # enough terms for z up to 40
    log_z = z.log().unsqueeze(-1)
    terms = (power * log_z - z.unsqueeze(-1) - torch.lgamma(power + 1)).exp()
    by_a = (terms * (log_z - torch.digamma(power + 1))).sum(-1)
    density = ((a - 1) * z.log() - z - torch.lgamma(a)).exp()
    return distribution_function(a, z), by_a * of_a + density * of_z


@implicit.root(lambda z, a, u: distribution_function(a, z) - u, vmap_method="broadcast")
def quantile(init: None, a: Tensor, u: Tensor) -> Tensor:
    return torch.from_numpy(scipy.special.gammaincinv(a.numpy(), u.numpy()))


def implicit_gradient(a: Tensor, u: Tensor) -> Tensor:
    return vmap(grad(quantile, 1), (None, None, 0))(None, a, u)


# %%
# ``torch.distributions.Gamma.rsample`` approximates the same derivative, to about four digits. The distribution has the mean a,
# so the derivatives of many draws have the mean 1.


def draws(a: Tensor) -> tuple[Tensor, Tensor]:
    """1,000 draws with torch's own derivatives."""
    leaf = a.expand(1000).clone().requires_grad_()
    z = torch.distributions.Gamma(leaf, torch.ones(())).rsample()
    return z.detach(), torch.autograd.grad(z.sum(), leaf)[0]


for a in torch.tensor([0.7, 2.5, 8.0]):
    differs, means = [], []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        z, theirs = draws(a)
        ours = implicit_gradient(a, torch.special.gammainc(a, z))
        differs.append(((ours - theirs) / theirs).abs().max())
        means.append(ours.mean())
    differs, means = torch.stack(differs), torch.stack(means)
    report(f"Gamma({a.item()}), mean derivative of 1,000 draws", means)
    report("    in 1e-4, largest relative difference from rsample", 1e4 * differs)
    assert (means.mean() - 1).abs() < 0.05
    assert differs.mean() < 5e-3

# %%
# Each draw has a second derivative, too.

u = torch.linspace(0.05, 0.95, 19)
second = vmap(hessian(quantile, 1), (None, None, 0))(None, torch.tensor(2.5), u)
by_differences = (implicit_gradient(torch.tensor(2.5 + 1e-4), u) - implicit_gradient(torch.tensor(2.5 - 1e-4), u)) / 2e-4
print(f"second derivative of draws, from finite differences: {error(second, by_differences):.0e}")
assert error(second, by_differences) < 1e-5

# %%
# On the left of the picture, the loss of one validation part over the two penalties, the path of gradient descent, and the best
# single penalty, on the diagonal. On the right, the test losses of the splits.

train, validation, _ = splits[0]
axis = torch.linspace(-8, 0, 11)
height = torch.tensor([[after_fit(torch.stack([u, v]), train, validation).item() for u in axis] for v in axis])
figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.4), layout="constrained", width_ratios=(1.3, 1))
filled = left.contourf(axis, axis, height.log(), levels=20, cmap="viridis")
figure.colorbar(filled, ax=left, label="logarithm of the loss on the validation part")
left.plot(*paths[0].T, color="white", marker="o", markersize=3, label="gradient descent")
left.plot(axis, axis, color="white", linewidth=0.8, linestyle=":")
left.plot(*singles[0], color="#E69F00", marker="D", linestyle="", label="best single penalty")
left.set(xlabel="logarithm of the penalty of features", ylabel="logarithm of the penalty of noise", title="A split of the data")
left.legend(labelcolor="white", frameon=False, loc="lower left")
ways = {"before": of_start, "one penalty": of_single, "two penalties": of_both}
right.plot(range(3), torch.stack(list(ways.values())), color="#0072B2", alpha=0.5, marker="o", markersize=4)
right.set_xticks(range(3), list(ways))
right.set(ylabel="test loss", title=f"{SEEDS} splits", ylim=(0, None), xlim=(-0.3, 2.3))
right.spines[["top", "right"]].set_visible(False)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=120)
