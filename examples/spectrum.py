r"""
The Hessian spectrum of a quantized network
===========================================

The eigenvalues of the Hessian say how sharply a loss bends, and in how many directions. The Hessian of a network with rounded
weights and binary units is 0; with declared derivatives it is that of the loss which the training follows. It can be taken
in four ways, reverse or forward mode over reverse or forward mode, and all must agree.

Here the network is small enough for the exact Hessian of all its parameters. It learns the handwritten digits that scikit-learn
ships, averaged to 4 x 4 pixels. The same derivative is then written in the two other ways that torch offers:

* the detach trick, ``soft + (hard - soft).detach()``,
* an ``autograd.Function`` with a ``backward`` and a ``jvp``, as torch's documentation has it.

Two of the three agree everywhere. The third has a wrong Hessian by forward over forward, with no error and no warning.

Run ``python examples/spectrum.py``; with a file name after it, the picture is written there. It takes about ten seconds, and ends
with an error if a number is not as this page says.
"""

import sys
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap
from torch.nn.functional import avg_pool2d, cross_entropy

import fullgrad

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels))
images, labels = avg_pool2d(pixels.view(-1, 8, 8)[order] / 8 - 1, 2).flatten(1), labels[order]  # in float64
train_images, test_images = images[:1347], images[1347:]
train_labels, test_labels = labels[:1347], labels[1347:]

# %%
# Three units with one derivative
# -------------------------------
#
# The value of a unit is the sign of its input; its derivative is that of tanh.

Unit = Callable[[Tensor], Tensor]


def declared(x: Tensor) -> Tensor:
    return fullgrad.sign_st(x, softness=0.5)  # of which the relaxation is tanh


def detached(x: Tensor) -> Tensor:
    soft = torch.tanh(x)
    return soft + (torch.sign(x) - soft).detach()


class Sign(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (1 - torch.tanh(x) ** 2)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * (1 - torch.tanh(x) ** 2)


UNITS: dict[str, Unit] = {"fullgrad": declared, "detach trick": detached, "autograd.Function": Sign.apply}

# %%
# The network
# -----------
#
# 16 pixels, 8 binary units, ten digits. The weights are rounded to multiples of 1/4. All parameters are one vector, so that the
# Hessian is one matrix.

SHAPES = ((16, 8), (8,), (8, 10), (10,))
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
SIZE = sum(SIZES)


def logits(vector: Tensor, x: Tensor, unit: Unit = declared) -> Tensor:
    inner, thresholds, outer, bias = (part.view(shape) for part, shape in zip(vector.split(SIZES), SHAPES, strict=True))
    hidden = unit(x @ fullgrad.step_quantize(inner, 1 / 4) + thresholds)
    return hidden @ fullgrad.step_quantize(outer, 1 / 4) + bias


def loss(vector: Tensor, x: Tensor, y: Tensor, unit: Unit = declared) -> Tensor:
    return cross_entropy(logits(vector, x, unit), y)


vector = torch.randn(SIZE, dtype=torch.float64) / 2
optimizer = torch.optim.Adam([vector], 0.03)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
for _ in range(600):
    chosen = torch.randint(len(train_labels), (128,))
    vector.grad = grad(loss)(vector, train_images[chosen], train_labels[chosen])
    optimizer.step()
    scheduler.step()
accuracy = (logits(vector, test_images).argmax(1) == test_labels).double().mean().item()
print(f"{SIZE} parameters, test accuracy {accuracy:.3f}")
assert accuracy > 0.75

# %%
# Four ways to a Hessian
# ----------------------
#
# Forward over reverse is the usual one: the gradient, and its derivative along every axis, all at once by ``vmap``. Forward over
# forward computes every entry by itself, and is here for the comparison; 64 images are enough for that.

AXES = torch.eye(SIZE, dtype=torch.float64)
Loss = Callable[[Tensor], Tensor]


def forward_over_reverse(f: Loss, at: Tensor) -> Tensor:
    return vmap(lambda v: jvp(grad(f), (at,), (v,))[1])(AXES)


def reverse_over_reverse(f: Loss, at: Tensor) -> Tensor:
    return jacrev(grad(f))(at)


def reverse_over_forward(f: Loss, at: Tensor) -> Tensor:
    return vmap(lambda v: grad(lambda w: jvp(f, (w,), (v,))[1])(at))(AXES)


def forward_over_forward(f: Loss, at: Tensor) -> Tensor:
    def entry(u: Tensor, v: Tensor) -> Tensor:
        return jvp(lambda w: jvp(f, (w,), (u,))[1], (at,), (v,))[1]

    return vmap(lambda u: vmap(lambda v: entry(u, v))(AXES), chunk_size=16)(AXES)


WAYS = (reverse_over_reverse, forward_over_reverse, reverse_over_forward, forward_over_forward)
few = train_images[:64], train_labels[:64]
exact = reverse_over_reverse(lambda w: loss(w, *few), vector)
hessians: dict[str, list[Tensor]] = {}
print(f"difference from fullgrad's reverse over reverse, relative to its largest entry, {exact.abs().max():.2g}")
for name, unit in UNITS.items():
    hessians[name] = [way(lambda w, unit=unit: loss(w, *few, unit), vector) for way in WAYS]
    for way, found in zip(WAYS, hessians[name], strict=True):
        error = ((found - exact).abs().max() / exact.abs().max()).item()
        print(f"    {name:18} {way.__name__.replace('_', ' '):22} {error:.1e}")
        if name == "autograd.Function" and way is forward_over_forward:
            assert error > 0.1, "torch has fixed pytorch#197867, and this page is out of date"
        else:
            assert error < 1e-12

# %%
# The second derivative of the unit is missing. By itself, an ``autograd.Function`` has the second derivative 0 there
# (https://github.com/pytorch/pytorch/issues/197867). In a network the rest of the Hessian hides it.

points = torch.tensor([-1.0, -0.5, 0.5, 1.0], dtype=torch.float64)
ones = torch.ones_like(points)
soft = torch.tanh(points)
for name, unit in UNITS.items():
    found = jvp(lambda x, unit=unit: jvp(unit, (x,), (ones,))[1], (points,), (ones,))[1]
    print(f"{name}: second derivative by forward over forward " + ", ".join(f"{number:.3f}" for number in found.tolist()))
    expected = torch.zeros_like(points) if name == "autograd.Function" else -2 * soft * (1 - soft**2)
    torch.testing.assert_close(found, expected)

# %%
# The detach trick has the right Hessian. Its weak side is the value, which is not exact where soft and hard value are far apart.
# In this network they never are; a clamp of large numbers in bfloat16 shows it.

assert torch.equal(logits(vector, images, detached), logits(vector, images))
large = 1e4 * torch.randn(10_000, generator=torch.Generator().manual_seed(0)).bfloat16()
hard = torch.clamp(large, -1, 1)
wrong = (large + (hard - large).detach() != hard).double().mean().item()
print(f"clamp in bfloat16: {wrong:.0%} of values wrong by the detach trick")
assert wrong > 0.5
assert torch.equal(fullgrad.clamp(large, -1.0, 1.0), hard)

# %%
# The spectrum
# ------------
#
# The Hessian of the loss on all training images, by forward over reverse. It is symmetric, as a Hessian should be. A few
# eigenvalues are large, most are close to 0, and some are negative: the loss bends downwards there.

hessian = forward_over_reverse(lambda w: loss(w, train_images, train_labels), vector)
asymmetry = ((hessian - hessian.T).abs().max() / hessian.abs().max()).item()
eigenvalues = torch.linalg.eigvalsh(hessian).flip(0)
share = (eigenvalues[: SIZE // 10].sum() / eigenvalues.abs().sum()).item()
print(f"largest eigenvalue {eigenvalues[0]:.2g}, smallest {eigenvalues[-1]:.2g}, asymmetry {asymmetry:.1e}")
print(f"the largest tenth of them has {share:.0%} of the sum of all absolute values")
assert asymmetry < 1e-12
assert share > 0.5
assert eigenvalues[-1] < -1e-6

# %%
# On the left is that spectrum. On the right is the spectrum on 64 images by forward over forward: the right one, and that of an
# ``autograd.Function``.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
left.plot(range(1, SIZE + 1), eigenvalues, "o", color="#0072B2", markersize=3)
left.set(title=f"All {len(train_labels):,} training images")
for name, style, color in (("fullgrad", "o", "#0072B2"), ("autograd.Function", "x", "#D55E00")):
    spectrum = torch.linalg.eigvalsh((hessians[name][-1] + hessians[name][-1].T) / 2).flip(0)
    right.plot(range(1, SIZE + 1), spectrum, style, color=color, markersize=3, label=name)
right.set(title="64 images, by forward over forward")
right.legend(frameon=False)
for panel in (left, right):
    panel.set_yscale("symlog", linthresh=1e-4)
    panel.axhline(0, color="gray", linewidth=0.8)
    panel.set(xlabel="rank of the eigenvalue", ylabel="eigenvalue")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)

# %%
# As a script, with the name of a file: write the picture.

if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=120)
