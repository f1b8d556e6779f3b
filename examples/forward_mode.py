r"""
Learning without a backward pass
================================

Forward mode gives the derivative of a loss :math:`f` along one direction :math:`v` while the loss is computed: nothing is kept,
and nothing runs backwards. With a random :math:`v`, that one number makes an unbiased estimate of the whole gradient, the
*forward gradient* (Baydin et al., https://arxiv.org/abs/2202.08587):

.. math::
    g = (\nabla f \cdot v)\, v, \qquad v \sim \mathcal{N}(0, I), \qquad \mathbb{E}\, g = \nabla f

Here it trains a network with quantized weights and activations on the handwritten digits that scikit-learn ships. Rounding needs
a declared derivative for that, and one that forward mode knows: torch's own has the tangent 0, and a custom function without a
``jvp`` has none.

Run ``python examples/forward_mode.py``; with a file name after it, the picture is written there. It takes about ten seconds, and
ends with an error if a number is not as this page says.
"""

import math
import os
import sys
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import fullgrad

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels))
images, labels = pixels.float()[order] / 16, labels[order]
train_images, test_images = images[:1347], images[1347:]
train_labels, test_labels = labels[:1347], labels[1347:]

# %%
# The network
# -----------
#
# 64 pixels, 16 hidden units, ten digits. Weights are clamped to [-1, 1] and rounded to multiples of 1/8; hidden units are clamped
# to [0, 1], which is the nonlinearity, and rounded to multiples of 1/16. A quantizer is a parameter, so that torch's can take its
# place.

HIDDEN = 16
Parameters = dict[str, Tensor]
Quantizer = Callable[[Tensor, float, float], Tensor]  # of a tensor, the lowest value and the step; the highest value is 1


def declared(x: Tensor, lowest: float, step: float) -> Tensor:
    return fullgrad.step_quantize(fullgrad.clamp(x, lowest, 1.0), step)


def of_torch(x: Tensor, lowest: float, step: float) -> Tensor:
    return torch.round(torch.clamp(x, lowest, 1.0) / step) * step


def initial() -> Parameters:
    generator = torch.Generator().manual_seed(1)
    inner = 2 * torch.rand(64, HIDDEN, generator=generator) - 1
    outer = 2 * torch.rand(HIDDEN, 10, generator=generator) - 1
    return {"inner": inner, "thresholds": torch.zeros(HIDDEN), "outer": outer, "bias": torch.zeros(10)}


def logits(p: Parameters, x: Tensor, quantize: Quantizer = declared) -> Tensor:
    hidden = quantize(3 / 8 * x @ quantize(p["inner"], -1.0, 1 / 8) + p["thresholds"], 0.0, 1 / 16)
    return hidden @ quantize(p["outer"], -1.0, 1 / 8) + p["bias"]


def loss(p: Parameters, x: Tensor, y: Tensor, quantize: Quantizer = declared) -> Tensor:
    return cross_entropy(logits(p, x, quantize), y)


# %%
# The forward gradient
# --------------------
#
# ``jvp`` gives the derivative along a direction. ``vmap`` over directions takes many at once, and computes the value only once.
# The mean over K directions is a better estimate than one.


def slopes(p: Parameters, directions: Parameters, *batch: Tensor, quantize: Quantizer = declared) -> Tensor:
    """The derivative along every direction; directions are the first dimension of each tensor."""
    return vmap(lambda v: jvp(lambda q: loss(q, *batch, quantize), (p,), (v,))[1])(directions)


def forward_gradient(p: Parameters, count: int, *batch: Tensor) -> Parameters:
    directions = {name: torch.randn(count, *t.shape) for name, t in p.items()}
    found = slopes(p, directions, *batch)
    return {name: torch.einsum("k,k...->...", found, v) / count for name, v in directions.items()}


# %%
# Along the axes, one after the other, the slopes are the gradient itself. So forward and reverse mode must agree to the rounding
# error of float64, for each of the 1,210 parameters.

batch = train_images[:128], train_labels[:128]
start = initial()
size = sum(t.numel() for t in start.values())
wide = {name: t.double() for name, t in start.items()}
axes = torch.eye(size, dtype=torch.float64).split([t.numel() for t in start.values()], dim=1)
axes = {name: part.unflatten(1, t.shape) for part, (name, t) in zip(axes, start.items(), strict=True)}
by_axis = slopes(wide, axes, batch[0].double(), batch[1])
reverse = torch.cat([g.flatten() for g in grad(loss)(wide, batch[0].double(), batch[1]).values()])
difference = (by_axis - reverse).abs().max().item()
print(f"{size} slopes equal the gradient (largest difference {difference:.1e}, largest element {reverse.abs().max():.2g})")
assert difference < 1e-12
assert reverse.abs().max() > 1e-3

# %%
# With torch's own rounding, every slope is exactly 0 as long as the direction leaves the last bias alone, which no rounding
# follows. Nothing warns of it.

directions = {name: torch.randn(100, *t.shape) for name, t in start.items()} | {"bias": torch.zeros(100, 10)}
plain = slopes(start, directions, *batch, quantize=of_torch)
ours = slopes(start, directions, *batch)
print(f"slopes along 100 directions: torch {plain.abs().max():g} at most, fullgrad {ours.abs().mean():.2g} on average")
assert torch.equal(plain, torch.zeros(100))
assert (ours != 0).all()
assert torch.equal(logits(start, batch[0]), logits(start, batch[0], of_torch))  # and yet the values are the same

# %%
# The price is noise: the more parameters, the less a random direction has in common with the gradient. The cosine of the angle
# between the estimate and the gradient is about :math:`\sqrt{K / (K + P + 1)}` for P parameters.

COUNTS = {1: "#D55E00", 8: "#E69F00", 64: "#009E73"}  # directions per step, and a color of the Okabe-Ito palette
many = {name: torch.randn(4096, *t.shape) for name, t in start.items()}
rows = torch.cat([v.flatten(1) for v in many.values()], dim=1)
contributions = slopes(start, many, *batch)[:, None] * rows
for count in COUNTS:
    estimates = contributions.unflatten(0, (-1, count)).mean(1)
    cosine = torch.cosine_similarity(estimates, reverse.float(), dim=1).mean().item()
    expected = math.sqrt(count / (count + size + 1))
    print(f"{count:2} directions: cosine {cosine:.3f} with the gradient, expected {expected:.3f}")
    assert abs(cosine / expected - 1) < (0.25 if count == 1 else 0.1)  # |cosine| of one Gaussian is sqrt(2 / pi) of its scale

# %%
# Training
# --------
#
# The same first weights, the same batches and the same optimizer for all. Only where the gradient comes from differs.

STEPS, BATCH, EVERY = 800, 64, 25
Gradient = Callable[[Parameters, Tensor, Tensor], Parameters]


def train(gradient: Gradient) -> list[float]:
    """Train, and return the test error at regular intervals."""
    p, choice = initial(), torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(p.values(), 0.03)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    errors: list[float] = []
    for step in range(STEPS):
        chosen = torch.randint(len(train_labels), (BATCH,), generator=choice)
        for name, g in gradient(p, train_images[chosen], train_labels[chosen]).items():
            p[name].grad = g
        optimizer.step()
        scheduler.step()
        if (step + 1) % EVERY == 0:
            errors.append((logits(p, test_images).argmax(1) != test_labels).double().mean().item())
    return errors


runs = {count: train(lambda p, x, y, count=count: forward_gradient(p, count, x, y)) for count in COUNTS}
backward = train(grad(loss))
for count, errors in runs.items():
    print(f"{count:2} directions per step: test accuracy {1 - errors[-1]:.3f}")
print(f"reverse mode: test accuracy {1 - backward[-1]:.3f}")
assert 1 - backward[-1] > 0.93
assert 1 - runs[64][-1] > 0.88
assert runs[1][-1] > runs[8][-1] > runs[64][-1] >= backward[-1] - 0.01
assert 1 - runs[1][-1] > 0.3  # from one number per step: of four seeds, 0.41 to 0.60

# %%
# Memory
# ------
#
# Reverse mode keeps what every layer needs for its derivative until the loss is known, so its memory grows with depth. Forward
# mode forgets a layer as soon as the next one is done: its memory is that of one layer, times one more than the number of
# directions that go along. The profiler has every allocation; the peak is counted in activations, of which each layer has one.

WIDTH, SAMPLES = 64, 512
DEPTHS = (2, 4, 8, 16, 32)
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's log of its own work
signal = torch.randn(SAMPLES, WIDTH)


def deep(weights: list[Tensor]) -> Tensor:
    x = signal
    for w in weights:
        x = declared(x @ declared(w, -1.0, 1 / 8), -1.0, 1 / 8)
    return x.square().mean()


def peak(call: Callable[[], object]) -> float:
    """The peak of allocated memory, in activations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    in_use = highest = 0
    for event in sorted(profiler.events(), key=lambda event: event.time_range.end):
        in_use += event.self_cpu_memory_usage
        highest = max(highest, in_use)
    return highest / (signal.numel() * signal.element_size())


peaks: dict[str, list[float]] = {"reverse mode": [], "forward mode, 1 direction": [], "forward mode, 8 directions": []}
for depth in DEPTHS:
    layers = [torch.randn(WIDTH, WIDTH) / 8 for _ in range(depth)]
    leaves = [w.clone().requires_grad_() for w in layers]
    tangents = [torch.randn(8, WIDTH, WIDTH) for _ in range(depth)]
    one = [torch.randn(WIDTH, WIDTH) for _ in range(depth)]
    calls = (
        lambda leaves=leaves: torch.autograd.grad(deep(leaves), leaves),
        lambda layers=layers, one=one: jvp(deep, (layers,), (one,)),
        lambda layers=layers, tangents=tangents: vmap(lambda t: jvp(deep, (layers,), (t,)))(tangents),
    )
    for found, call in zip(peaks.values(), calls, strict=True):
        found.append(peak(call))
for name, found in peaks.items():
    print(f"{name}: " + ", ".join(f"{number:.1f} at depth {depth}" for depth, number in zip(DEPTHS, found, strict=True)))
reverse_peaks, single, eight = peaks.values()
assert reverse_peaks[-1] - reverse_peaks[0] > DEPTHS[-1] - DEPTHS[0]  # at least one activation for every layer more
assert single[-1] == single[1]
assert eight[-1] == eight[1]
assert abs(eight[-1] / single[-1] / (9 / 2) - 1) < 0.02
assert single[-1] < reverse_peaks[-1] / 4

# %%
# On the left, the test error: more directions, less noise. On the right, the peak of memory: reverse mode grows, forward mode
# does not.
#
# For a network of this size reverse mode is the better way to a gradient. Forward mode is useful where its noise is acceptable
# and the memory of reverse mode is not, for few directions, and inside other transforms: see the :doc:`spectrum of a Hessian
# <spectrum>`.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
steps = range(EVERY, STEPS + 1, EVERY)
for count, color in COUNTS.items():
    name = f"forward, {count} direction{'s' * (count > 1)}"
    left.plot(steps, [100 * e for e in runs[count]], color=color, label=name)
left.plot(steps, [100 * e for e in backward], color="black", linestyle="--", label="reverse")
left.set(xlabel="step", ylabel="test error in percent", yscale="log", ylim=(3, 200), title="Learning a quantized network")
left.set_yticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"], minor=False)
left.minorticks_off()
left.legend(frameon=False, ncols=2)
for (name, found), style in zip(peaks.items(), ("k--", "o-", "s-"), strict=True):
    color = {} if style == "k--" else {"color": "#D55E00" if style == "o-" else "#E69F00"}
    right.plot(DEPTHS, found, style, label=name, **color)
right.set(xlabel="layers", ylabel="peak of memory, in activations", title="Memory for one gradient, or one set of slopes")
right.legend(frameon=False)
for panel in (left, right):
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)

# %%
# As a script, with the name of a file: write the picture.

if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=120)
