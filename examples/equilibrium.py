r"""
A deep equilibrium network on the digits
========================================

A deep equilibrium network has one layer, applied until nothing changes:

.. math::
    z = \tanh(W z + U x + b)

Its output is a fixed point, found by any solver, and its gradient is that of the implicit function theorem:
:func:`fullgrad.implicit.fixed_point` declares it. So training keeps no iterate, and the trained network has everything that a
derivative of any order gives: gradients per sample by ``vmap(grad)``, and the Jacobian of the layer at each fixed point, whose
eigenvalues say how fast the plain iteration converges.

The digits are those that scikit-learn ships. Run ``python examples/equilibrium.py``; with a file name after it, the picture is
written there. It takes less than a minute, and ends with an error if a number is not as this page says.
"""

import sys

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn.functional import cross_entropy

from fullgrad import implicit

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
WIDTH, CLASSES, SEEDS = 24, 10, 3
Parameters = dict[str, Tensor]

# %%
# The network
# -----------
#
# The equation is a function of the solution and the arguments of the solver. A solution has the shape of one sample or of a
# batch, as the input has. Anderson's acceleration finds it; it is torch code, which ``vmap`` batches.


def layer(z: Tensor, parameters: Parameters, x: Tensor) -> Tensor:
    return torch.tanh(z @ parameters["w"].mT + x @ parameters["u"].mT + parameters["b"])


@implicit.fixed_point(layer, vmap_method="map", linear_solve="gmres")
def equilibrium(init: Tensor, parameters: Parameters, x: Tensor) -> Tensor:
    return implicit.anderson(lambda z: layer(z, parameters, x), init, tol=1e-5)


def classify(parameters: Parameters, x: Tensor) -> Tensor:
    z = equilibrium(x.new_zeros(*x.shape[:-1], WIDTH), parameters, x)
    return z @ parameters["head"].mT


def loss(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(classify(parameters, x), y)


# %%
# Training
# --------
#
# A first derivative solves one linear equation by GMRES for the whole batch. Three networks begin with other numbers.


def train(seed: int) -> tuple[Parameters, float]:
    torch.manual_seed(seed)
    parameters = {
        "w": 0.5 * torch.randn(WIDTH, WIDTH) / WIDTH**0.5,
        "u": torch.randn(WIDTH, 64) / 8,
        "b": torch.zeros(WIDTH),
        "head": torch.randn(CLASSES, WIDTH) / WIDTH**0.5,
    }
    parameters = {name: p.requires_grad_() for name, p in parameters.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=0.02)
    for _ in range(6):
        for batch in torch.randperm(len(train_images)).split(64):
            optimizer.zero_grad()
            loss(parameters, train_images[batch], train_labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (classify(parameters, test_images).argmax(-1) == test_labels).double().mean().item()
    return {name: p.detach() for name, p in parameters.items()}, accuracy


pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
images, labels = pixels[order].float() / 8 - 1, labels[order]
train_images, test_images, train_labels, test_labels = images[:1347], images[1347:], labels[:1347], labels[1347:]

trained = [train(seed) for seed in range(SEEDS)]
accuracies = torch.tensor([accuracy for _, accuracy in trained])
print(f"test accuracy {accuracies.mean():.3f}, from {accuracies.min():.3f} to {accuracies.max():.3f} of {SEEDS} networks")
assert accuracies.mean() > 0.9
parameters = trained[0][0]

# %%
# Gradients
# ---------
#
# ``vmap(grad)`` gives the gradient of each sample. In float64 it is that of 300 iterations recorded by autograd, and so is a
# second derivative, which needs the derivative of the fixed point in the derivative of the fixed point.

precise = {name: p.double() for name, p in parameters.items()}
x, y = test_images[:8].double(), test_labels[:8]


def unrolled(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
    z = x.new_zeros(WIDTH)
    for _ in range(300):
        z = layer(z, parameters, x)
    return cross_entropy(z @ parameters["head"].mT, y)


per_sample = vmap(grad(loss), (None, 0, 0))(precise, x, y)
recorded = vmap(grad(unrolled), (None, 0, 0))(precise, x, y)
error = max((per_sample[name] - recorded[name]).abs().max().item() for name in precise)
print(f"gradients of 8 samples equal those of 300 recorded iterations, to {error:.0e}")
assert error < 1e-4  # Anderson stops at 1e-5


def product(f, direction: Tensor) -> Tensor:
    """The Hessian of one sample's loss by the bias, times a direction."""
    return grad(lambda b: grad(lambda b: f(precise | {"b": b}, x[0], y[0]))(b) @ direction)(precise["b"])


direction = torch.ones(WIDTH, dtype=torch.float64)
exact, found = product(unrolled, direction), product(loss, direction)
print(f"Hessian-vector product, difference {(exact - found).abs().max():.0e} of {exact.abs().max():.2g}")
assert (exact - found).abs().max() < 1e-3 * exact.abs().max()

# %%
# The spectrum of the layer
# -------------------------
#
# Where all eigenvalues of the layer's Jacobian are inside the unit circle, its iteration converges, by the factor of the largest
# one in each step. Nothing in the training asks for that.

z = equilibrium(x.new_zeros(len(test_images), WIDTH), precise, test_images.double())
jacobians = vmap(jacrev(layer), (0, None, 0))(z, precise, test_images.double())
eigenvalues = torch.linalg.eigvals(jacobians)
radius = eigenvalues.abs().amax(-1)
print(f"spectral radius of the layer: {radius.mean():.2f}, at most {radius.max():.2f} of {len(radius)} digits")
assert (z - layer(z, precise, test_images.double())).abs().max() < 1e-3

figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
axes[0].scatter(eigenvalues.real.flatten(), eigenvalues.imag.flatten(), s=2, alpha=0.15, linewidths=0)
angle = torch.linspace(0, 2 * torch.pi, 200)
axes[0].plot(angle.cos(), angle.sin(), color="black", linewidth=0.8)
axes[0].set(title="eigenvalues of the layer's Jacobian", xlabel="real part", ylabel="imaginary part", aspect="equal")
for digit in range(CLASSES):
    axes[1].scatter(torch.full_like(radius[test_labels == digit], digit), radius[test_labels == digit], s=4, alpha=0.4)
axes[1].set(title="spectral radius, by digit", xlabel="digit", ylabel="largest absolute value")
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=150)
