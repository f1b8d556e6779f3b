"""
A spiking network of snntorch, adopted
======================================

`snntorch <https://github.com/jeshraghian/snntorch>`_ builds spiking networks of its own Functions. They have a backward and
nothing else, so a network of them has no per-sample gradients. With one more line it has; the network stays unchanged.

Install it with ``pip install -e ".[demo,plugins]"``; without it a neuron of the same kind, of plain torch, stands for snntorch's.
Run ``python examples/adopting.py adopting.png``; it takes about ten seconds, and ends with an error if a number is not as this
page says.
"""

import math
import sys
from importlib.util import find_spec

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import fullgrad

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
images = pixels.float() / 16


# %%
# The network
# -----------
#
# Eight time steps of leaky neurons, with snntorch's default surrogate gradient. It is trained as its authors meant it.

if find_spec("snntorch"):
    from snntorch import Leaky

    package = "snntorch"
else:
    package = "snntorch is not installed, a neuron of its kind"

    class Spike(torch.autograd.Function):
        """1 where the membrane is above the threshold; the gradient of an arctangent."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x > 0).to(x.dtype)

        @staticmethod
        def backward(ctx, g):
            return g / (1 + (math.pi * ctx.saved_tensors[0]) ** 2)

    class Leaky(nn.Module):
        """A membrane that decays by ``beta`` in each step, and loses 1 after a spike."""

        def __init__(self, beta: float) -> None:
            super().__init__()
            self.beta = beta

        def forward(self, current: Tensor, membrane: Tensor) -> tuple[Tensor, Tensor]:
            membrane = self.beta * membrane + current - (membrane > 1).to(membrane.dtype)
            return Spike.apply(membrane - 1), membrane


class Spiking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 32), nn.Linear(32, 10)
        self.neurons = Leaky(beta=0.8)

    def forward(self, x: Tensor) -> Tensor:
        current = self.inner(x)
        membrane, counts = torch.zeros_like(current), torch.zeros_like(current)
        for _ in range(8):
            spikes, membrane = self.neurons(current, membrane)
            counts = counts + spikes
        return self.outer(counts / 8)


network = Spiking()
optimizer = torch.optim.Adam(network.parameters(), 0.01)
for _ in range(200):
    chosen = torch.randint(1347, (64,))
    optimizer.zero_grad()
    cross_entropy(network(images[chosen]), labels[chosen]).backward()
    optimizer.step()
accuracy = (network(images[1347:]).argmax(1) == labels[1347:]).double().mean().item()
print(f"{package}: test accuracy {accuracy:.3f}")
assert accuracy > 0.85

# %%
# Per-sample gradients
# --------------------
#
# ``vmap(grad(loss))`` raises for this network. Inside ``fullgrad.adopting()`` it is a loop over the samples, in one pass.


def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
    return cross_entropy(functional_call(network, parameters, (image,)), label)


parameters = {name: p.detach() for name, p in network.named_parameters()}
per_sample = vmap(grad(loss), in_dims=(None, 0, 0))
try:
    per_sample(parameters, images[:2], labels[:2])
except RuntimeError as error:
    print(f"{package}: without the context, {type(error).__name__}: {str(error)[:60]} ...")
else:
    raise AssertionError(f"{package}: the network has per-sample gradients now, and this page is out of date")

with fullgrad.adopting():
    gradients = per_sample(parameters, images, labels)

for i in range(8):
    expected = torch.autograd.grad(cross_entropy(network(images[i]), labels[i]), list(network.parameters()))
    assert_close([g[i] for g in gradients.values()], list(expected))
print(f"{package}: gradients of {len(images)} samples in one call equal a loop")

# %%
# Which digits the network learns from
# ------------------------------------
#
# The norm of a sample's gradient tells how much it would change the network: most samples are learned, a few are not.

norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
hardest = norms.argsort(descending=True)[:8]
figure = plt.figure(figsize=(8, 4), layout="constrained")
histogram, *tiles = figure.subplot_mosaic("hhhhhhhh;hhhhhhhh;01234567").values()
histogram.hist(norms.log10().clamp(min=-6).numpy(), bins=60, color="#3b6ea5")
histogram.set(xlabel="log10 of the norm of a sample's gradient", ylabel="samples")
for tile, i in zip(tiles, hardest.tolist(), strict=True):
    tile.imshow(images[i].reshape(8, 8), cmap="gray_r")
    tile.set_title(f"{labels[i]}, {norms[i]:.1f}", fontsize=9)
    tile.axis("off")
figure.suptitle("Per-sample gradients of a spiking network; below, the largest")
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=120)
