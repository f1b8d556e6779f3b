r"""
A clamp range, learned through the training that uses it
========================================================

A quantizer has a range: what lies beyond is clamped, what lies within is rounded to a few levels. A narrow range has fine levels
and cuts off much; a wide one is coarse. Which range lets a network *learn* best? Its loss after training is a function of the
range,

.. math::
    F(r) = L_\mathrm{outer}(w_T(r), r), \qquad w_{t+1} = w_t - \eta\, \nabla_w L_\mathrm{inner}(w_t, r)

and the gradient of F goes through every inner step: it needs the mixed second derivative of the inner loss, by the weights and by
the bounds of the clamp. ``fullgrad.clamp`` gives bounds that are tensors a gradient, of every order.

The network learns the handwritten digits that scikit-learn ships in 20 steps, each time from new random weights and other images.
Three quantizers, one for the weights of each layer and one for the hidden units, have 16 levels and a range of their own. The six
bounds are learned, and compared with fixed ranges, on images that took no part.

Run ``python examples/clamp_range.py``; with a file name after it, the picture is written there. It takes about twenty seconds,
and ends with an error if a number is not as this page says.
"""

import sys
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, jacfwd, vmap
from torch.nn.functional import cross_entropy

import fullgrad

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
images = pixels.float() / 16
order = torch.randperm(len(labels))
TO_LEARN, TO_JUDGE = order[:1200], order[1200:]

# %%
# The network and its quantizers
# ------------------------------
#
# The bounds are a tensor of shape (3, 2): inner weights, hidden units, outer weights, each with a lower and an upper bound.
# Within the bounds the derivative is 1. Beyond them it belongs to the bound. Rounding to 4 bits has the straight-through
# derivative, so that a bound also has the gradient of the levels that it moves.

BITS = 4
HIDDEN = 16
Weights = dict[str, Tensor]


def quantize(x: Tensor, bounds: Tensor) -> Tensor:
    low, high = bounds.unbind()
    share = (fullgrad.clamp(x, low, high) - low) / (high - low)
    return low + (high - low) * fullgrad.k_bit_quantize(share, BITS)


def logits(w: Weights, bounds: Tensor, x: Tensor) -> Tensor:
    hidden = quantize(x @ quantize(w["inner"], bounds[0]), bounds[1])
    return hidden @ quantize(w["outer"], bounds[2])


def loss(w: Weights, bounds: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits(w, bounds, x), y)


# %%
# Inner and outer loop
# --------------------
#
# A task has first weights, a hundred images to train on and a hundred to judge by. The inner loop is plain gradient descent with
# ``grad``; the outer gradient is ``grad`` of all of it.

INNER_STEPS = 20
INNER_RATE = 0.5


class Task(NamedTuple):
    first: Weights
    x: Tensor
    y: Tensor
    outer_x: Tensor
    outer_y: Tensor


def draw_tasks(count: int, among: Tensor, generator: torch.Generator) -> Task:
    """Draw many tasks: the first dimension of each tensor."""
    chosen = torch.stack([among[torch.randperm(len(among), generator=generator)[:200]] for _ in range(count)])
    inner = torch.randn(count, 64, HIDDEN, generator=generator) / 64**0.5
    outer = torch.randn(count, HIDDEN, 10, generator=generator) / HIDDEN**0.5
    train, judge = chosen.split(100, dim=1)
    return Task({"inner": 1.5 * inner, "outer": outer}, images[train], labels[train], images[judge], labels[judge])


def trained(bounds: Tensor, task: Task, first_order: bool = False) -> Weights:
    w = task.first
    for _ in range(INNER_STEPS):
        gradient = grad(loss)(w, bounds, task.x, task.y)
        if first_order:
            gradient = {name: g.detach() for name, g in gradient.items()}
        w = {name: w[name] - INNER_RATE * gradient[name] for name in w}
    return w


def outer_loss(bounds: Tensor, task: Task, first_order: bool = False) -> Tensor:
    return loss(trained(bounds, task, first_order), bounds, task.outer_x, task.outer_y)


def fixed(size: float) -> Tensor:
    """The same range for all three, from -size to size."""
    return torch.tensor([-size, size]).expand(3, 2).clone()


# %%
# Is the outer gradient right? It is the same by reverse over reverse, by forward over reverse, and by autograd with
# ``create_graph``, to the rounding error of float64 in 20 steps. What goes through the inner gradients is a large part of it.

one = draw_tasks(1, TO_LEARN, torch.Generator().manual_seed(1))
one = Task(*({name: w[0].double() for name, w in part.items()} if isinstance(part, dict) else part[0] for part in one))
one = one._replace(x=one.x.double(), outer_x=one.outer_x.double())
bounds = fixed(1.0).double()
by_reverse, by_forward = grad(outer_loss)(bounds, one), jacfwd(outer_loss)(bounds, one)

leaf = bounds.clone().requires_grad_()
w = {name: t.clone().requires_grad_() for name, t in one.first.items()}
for _ in range(INNER_STEPS):
    gradients = torch.autograd.grad(loss(w, leaf, one.x, one.y), list(w.values()), create_graph=True)
    w = {name: t - INNER_RATE * g for (name, t), g in zip(w.items(), gradients, strict=True)}
(by_autograd,) = torch.autograd.grad(loss(w, leaf, one.outer_x, one.outer_y), leaf)

scale = by_reverse.abs().max()
differences = [((other - by_reverse).abs().max() / scale).item() for other in (by_forward, by_autograd)]
missing = ((grad(outer_loss)(bounds, one, True) - by_reverse).norm() / by_reverse.norm()).item()
print(f"outer gradient, largest relative difference: forward {differences[0]:.1e}, create_graph {differences[1]:.1e}")
print(f"without the second order it would be off by {missing:.0%} of its length")
assert max(differences) < 1e-9
assert missing > 0.1

# %%
# Learning the range
# ------------------
#
# Eight tasks per outer step, all at once by ``vmap``. The same is done without the second order, for the comparison: the inner
# gradients are then constants.

OUTER_STEPS = 60
TASKS = 8


def learn(first_order: bool) -> tuple[Tensor, Tensor, list[float]]:
    """The learned bounds, the bounds after every step, and the outer losses."""
    learned = fixed(1.0)
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam([learned], 0.08)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, OUTER_STEPS)
    gradients = vmap(torch.func.grad_and_value(outer_loss), in_dims=(None, 0, None))
    path, losses = [learned.clone()], []
    for _ in range(OUTER_STEPS):
        gradient, value = gradients(learned, draw_tasks(TASKS, TO_LEARN, generator), first_order)
        learned.grad = gradient.mean(0)
        optimizer.step()
        scheduler.step()
        path.append(learned.clone())
        losses.append(value.mean().item())
    return learned, torch.stack(path), losses


learned, path, losses = learn(first_order=False)
learned_first_order, _, _ = learn(first_order=True)

# %%
# Then 100 new tasks, with images that took no part. The learned range is ahead of every fixed one. It is hardly ahead of the
# range that was found without the second order: a gradient that is off led to about the same place here.

judged = draw_tasks(100, TO_JUDGE, torch.Generator().manual_seed(3))


class Found(NamedTuple):
    losses: Tensor  # of each task
    accuracy: float

    def __str__(self) -> str:
        error = self.losses.std() / len(self.losses) ** 0.5
        return f"outer loss {self.losses.mean():.3f} ± {error:.3f}, accuracy {self.accuracy:.3f}"


def judge(bounds: Tensor) -> Found:
    def one_task(task: Task) -> tuple[Tensor, Tensor]:
        found = logits(trained(bounds, task), bounds, task.outer_x)
        return cross_entropy(found, task.outer_y), (found.argmax(1) == task.outer_y).double().mean()

    losses, accuracies = vmap(one_task)(judged)
    return Found(losses, accuracies.mean().item())


SIZES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
results = {f"fixed to ±{size:g}": judge(fixed(size)) for size in SIZES}
best = min(results, key=lambda name: results[name].losses.mean())
results |= {"learned, first order": judge(learned_first_order), "learned": judge(learned)}
for name, found in results.items():
    print(f"{name:22} {found}")
print("learned bounds:", ", ".join(f"[{low:.2f}, {high:.2f}]" for low, high in learned.tolist()))
for name in (best, "learned, first order"):
    ahead = results[name].losses - results["learned"].losses
    error = ahead.std() / len(ahead) ** 0.5
    print(f"learned is ahead of {name}: {ahead.mean():.4f} ± {error:.4f}, task by task")
    assert ahead.mean() > 3 * error if name == best else ahead.mean().abs() < 0.02
assert results["learned"].accuracy > results[best].accuracy

# %%
# On the left, the outer loss while the range is learned, and the best fixed range. On the right, the bounds: the hidden units
# want a wider range than the weights, which no common range can give them.

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
left.plot(range(OUTER_STEPS), losses, color="#0072B2", linewidth=1, label=f"while learning, mean of {TASKS} tasks")
left.axhline(results["learned"].losses.mean(), color="#0072B2", linestyle="--", label="learned, new tasks")
left.axhline(results[best].losses.mean(), color="black", linestyle=":", label=f"{best}, the best one, new tasks")
left.set(xlabel="outer step", ylabel="outer loss", title="The loss after 20 inner steps")
left.set_ylim(top=1.15 * max(losses))
left.legend(frameon=False)
for place, (name, color) in enumerate((("inner weights", "#D55E00"), ("hidden units", "#009E73"), ("outer weights", "#CC79A7"))):
    right.plot(path[:, place], color=color)
    right.fill_between(range(OUTER_STEPS + 1), *path[:, place].T, color=color, alpha=0.15, linewidth=0, label=name)
right.set(xlabel="outer step", ylabel="bounds", ylim=(-2.7, 3.9), title="The ranges")
right.legend(frameon=False, loc="upper left")
for panel in (left, right):
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
assert path[-1, 1].diff() > path[-1, 0].diff()
assert path[-1, 1].diff() > path[-1, 2].diff()

# %%
# As a script, with the name of a file: write the picture.

if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=120)
