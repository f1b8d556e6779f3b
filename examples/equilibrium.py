r"""
A deep equilibrium network on the digits
========================================

A deep equilibrium network has one layer, applied until nothing changes (Bai et al., https://arxiv.org/abs/1909.01377):

.. math::
    z = \tanh(W z + U x + b)

Its output is a fixed point, found by any solver, and its gradient is that of the implicit function theorem:
:func:`fullgrad.implicit.fixed_point` declares it. Training keeps no iterate, and the trained network has derivatives of every
kind: gradients per sample by ``vmap(grad)``, Hessian-vector products, and the Jacobian of the layer at each fixed point by
``vmap(jacfwd)``. The eigenvalues of the latter say how fast the plain iteration converges.

The digits are those that scikit-learn ships. Run ``python examples/equilibrium.py``; with a file name after it, the picture is
written there. It takes less than a minute, and ends with an error if a number is not as this page says.
"""

import sys
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, jacfwd, jvp, vmap
from torch.nn.functional import cross_entropy

from fullgrad import implicit

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
WIDTH, CLASSES, NETWORKS = 24, 10, 5
STEPS, BATCH = 250, 48
Parameters = dict[str, Tensor]
Sample = tuple[Tensor, Tensor]  # an image and its label, or a batch of both

pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
images, labels = pixels[order].float() / 8 - 1, labels[order]
train_images, test_images, train_labels, test_labels = images[:1347], images[1347:], labels[:1347], labels[1347:]

# %%
# The network
# -----------
#
# The equation is a function of the solution and the arguments of the solver. Anderson's acceleration solves it; it is torch code,
# which ``vmap_method="map"`` lets ``vmap`` batch.
#
# All is written for one image, and ``vmap`` makes it a function of a batch. Each image then stops by its own residual, and has 24
# linear equations of its own in the derivative, which are solved by the LU factors of its Jacobian. A batch without ``vmap`` is
# one solution, with 1,152 equations for GMRES.


def layer(z: Tensor, p: Parameters, x: Tensor) -> Tensor:
    return torch.tanh(p["w"] @ z + p["u"] @ x + p["b"])


@implicit.fixed_point(layer, vmap_method="map")
def equilibrium(init: Tensor, p: Parameters, x: Tensor) -> Tensor:
    return implicit.anderson(lambda z: layer(z, p, x), init)


def classify(p: Parameters, x: Tensor) -> Tensor:
    return p["head"] @ equilibrium(x.new_zeros(WIDTH), p, x)


def loss(p: Parameters, sample: Sample) -> Tensor:
    x, y = sample
    return cross_entropy(classify(p, x), y)


def of_all(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one network and one image as a function of several networks and a batch of images."""
    return vmap(vmap(f, (None, 0)), (0, None))


# %%
# Training
# --------
#
# Five networks with other first weights train at once, on the same batches. Adam treats each number by itself, so that none of
# them sees another.


def initial(seed: int) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": 0.5 * torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5,
        "u": torch.randn(WIDTH, 64, generator=generator) / 8,
        "b": torch.zeros(WIDTH),
        "head": torch.randn(CLASSES, WIDTH, generator=generator) / WIDTH**0.5,
    }


starts = [initial(seed) for seed in range(NETWORKS)]
networks = {name: torch.stack([start[name] for start in starts]).requires_grad_() for name in starts[0]}
optimizer = torch.optim.Adam(networks.values(), lr=0.02)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
generator = torch.Generator().manual_seed(0)
for _ in range(STEPS):
    batch = torch.randint(len(train_labels), (BATCH,), generator=generator)
    optimizer.zero_grad()
    of_all(loss)(networks, (train_images[batch], train_labels[batch])).mean(1).sum().backward()
    optimizer.step()
    scheduler.step()

networks = {name: p.detach() for name, p in networks.items()}
accuracy = (of_all(classify)(networks, test_images).argmax(-1) == test_labels).double().mean(-1)
print(f"test accuracy: mean {accuracy.mean():.3f}, from {accuracy.min():.3f} to {accuracy.max():.3f} of {NETWORKS} networks")
assert accuracy.mean() > 0.93

# %%
# Gradients
# ---------
#
# ``vmap(grad)`` gives the gradient of each sample. The same numbers come from a loop over the samples, and from 200 iterations
# that autograd records. A second derivative needs the derivative of the fixed point in the derivative of the fixed point.

networks, test_images = {name: p.double() for name, p in networks.items()}, test_images.double()
network = {name: p[0] for name, p in networks.items()}
samples = test_images[:8], test_labels[:8]


def recorded_loss(p: Parameters, sample: Sample) -> Tensor:
    x, y = sample
    z = x.new_zeros(WIDTH)
    for _ in range(200):
        z = layer(z, p, x)
    return cross_entropy(p["head"] @ z, y)


def by_loop(f: Callable[[Parameters, Sample], Tensor]) -> list[Tensor]:
    """The gradients of the samples, each by itself and without ``torch.func``."""
    p = {name: value.clone().requires_grad_() for name, value in network.items()}
    found = [torch.autograd.grad(f(p, sample), list(p.values())) for sample in zip(*samples, strict=True)]
    return [torch.stack(gradients) for gradients in zip(*found, strict=True)]


def difference(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference, as a share of the largest number."""
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True)) / max(y.abs().max().item() for y in b)


def hessian_product(f: Callable[[Parameters, Sample], Tensor]) -> list[Tensor]:
    """The Hessian of the first sample's loss by W, times a direction."""
    gradient = grad(lambda w: f(network | {"w": w}, (samples[0][0], samples[1][0])))
    return [jvp(gradient, (network["w"],), (torch.ones_like(network["w"]),))[1]]


per_sample = list(vmap(grad(loss), (None, 0))(network, samples).values())
of_loop, of_recorded = difference(per_sample, by_loop(loss)), difference(per_sample, by_loop(recorded_loss))
print(f"gradients of 8 samples equal those of a loop to {of_loop:.0e}, and those of 200 recorded iterations to {of_recorded:.0e}")
assert max(of_loop, of_recorded) < 1e-8  # Anderson's acceleration stops at a residual of 2e-12

of_product = difference(hessian_product(loss), hessian_product(recorded_loss))
print(f"Hessian-vector product equals that of 200 recorded iterations to {of_product:.0e}")
assert of_product < 1e-7

# %%
# The spectrum of the layer
# -------------------------
#
# Near a fixed point, the error of the plain iteration is multiplied by the layer's Jacobian in each step. It falls if all
# eigenvalues are inside the unit circle, and in the end by the factor of the largest one, the spectral radius. Nothing in the
# training asks for that, and yet it is so.


def solution_and_jacobian(p: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
    z = equilibrium(x.new_zeros(WIDTH), p, x)
    return z, jacfwd(layer)(z, p, x)


z, jacobians = of_all(solution_and_jacobian)(networks, test_images)
radius = torch.linalg.eigvals(jacobians).abs().amax(-1)
means, most = radius.mean(1), radius.amax(1)
print(f"spectral radius: mean {means.mean():.2f}, from {means.min():.2f} to {means.max():.2f} of {NETWORKS} networks")
print(f"its largest value at {len(test_images)} digits: mean {most.mean():.2f}, from {most.min():.2f} to {most.max():.2f}")
assert most.mean() < 1


def errors(p: Parameters, x: Tensor, z: Tensor) -> Tensor:
    """The distances of 200 iterates to the fixed point."""
    iterates = [torch.zeros_like(z)]
    for _ in range(200):
        iterates.append(layer(iterates[-1], p, x))
    return (torch.stack(iterates) - z).norm(dim=-1)


found = vmap(vmap(errors, (None, 0, 0)), (0, None, 0))(networks, test_images, z)
begin, end = (torch.argmax((found < limit).int(), -1, keepdim=True) for limit in (1e-3, 1e-9))  # the first that is closer
factor = ((found.gather(-1, end) / found.gather(-1, begin)) ** (1 / (end - begin))).squeeze(-1)
off = (factor - radius).abs().mean(1)
print(f"factor of the error in a step, less the spectral radius: mean {off.mean():.3f}, at most {off.max():.3f} of a network")
assert off.mean() < 0.05

# %%
# On the left of the picture, the eigenvalues at the digits of the test set, of one network before and after its training. On the
# right, the spectral radius and the factor by which the error falls, a point for each network and digit.

first = {name: p.double()[None] for name, p in starts[0].items()}
before = of_all(solution_and_jacobian)(first, test_images)[1]
figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.6), layout="constrained")
for matrices, color, label in ((before, "#D55E00", "before training"), (jacobians[0], "#0072B2", "trained")):
    values = torch.linalg.eigvals(matrices).flatten()
    left.scatter(values.real, values.imag, s=3, alpha=0.2, linewidths=0, color=color, rasterized=True)
    left.scatter([], [], s=20, color=color, label=label)
angle = torch.linspace(0, 2 * torch.pi, 200)
left.plot(angle.cos(), angle.sin(), color="black", linewidth=0.8)
left.set(title="Eigenvalues of the layer's Jacobian", xlabel="real part", ylabel="imaginary part", aspect="equal")
left.set(xticks=(-1, -0.5, 0, 0.5, 1), yticks=(-1, -0.5, 0, 0.5, 1), ylim=(-1.05, 1.3))
left.legend(frameon=False, loc="upper left", ncols=2)
right.axline((0, 0), slope=1, color="gray", linewidth=1)
right.scatter(radius.flatten(), factor.flatten(), s=5, alpha=0.3, linewidths=0, color="#0072B2", rasterized=True)
right.set(title="Speed of the plain iteration", xlabel="spectral radius", ylabel="factor of the error in a step")
right.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
for panel in (left, right):
    panel.spines[["top", "right"]].set_visible(False)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=150)
