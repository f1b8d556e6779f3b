r"""
Choices that learn: attention, codes, pixels
============================================

Three networks choose, and learn what to choose, on the 1,797 handwritten digits that scikit-learn ships:

* *where to look*: sparse attention over the pixels, whose exponent learns: between a softmax, which looks everywhere, and a
  projection, which looks at few pixels;
* *which code*: a bottleneck of two random variables with eight classes each. It is small enough for the exact gradient, by
  enumeration of all 64 codes; so the bias and variance of each estimator are known next to
  the accuracy;
* *which pixels*: a random subset of k of the 64 pixels, the same for all digits, and a classifier that sees no others.

Run ``python examples/choosing.py``; with a file name after it, the picture is written there. It takes less than a minute, and
ends with an error if a result is not as this page says.
"""

import sys
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fullgrad import sampling, soft, topk_mask_st

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels))
images, labels = (pixels[order] / 8 - 1).float(), labels[order]
train_images, test_images = images[:1347], images[1347:]
train_labels, test_labels = labels[:1347], labels[1347:]

Parameters = dict[str, Tensor]
Loss = Callable[[Parameters, Tensor, Tensor], Tensor]
progress = Progress(transient=True)


def train(name: str, parameters: Parameters, loss: Loss, steps: int = 300, rate: float = 0.02) -> Parameters:
    """Train with Adam on batches of 128."""
    leaves = {key: value.clone().requires_grad_() for key, value in parameters.items()}
    optimizer = torch.optim.Adam(leaves.values(), rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    task = progress.add_task(name, total=steps)
    for _ in range(steps):
        batch = torch.randint(len(train_labels), (128,))
        optimizer.zero_grad()
        loss(leaves, train_images[batch], train_labels[batch]).backward()
        optimizer.step()
        scheduler.step()
        progress.advance(task)
    progress.remove_task(task)
    return {key: value.detach() for key, value in leaves.items()}


def accuracy(logits: Tensor) -> float:
    """The accuracy on the test images."""
    return (logits.argmax(-1) == test_labels).float().mean().item()


progress.start()

# %%
# Where to look
# -------------
#
# Eight heads. Each scores the pixels of an image, takes weights of the scores, and sums what the pixels say. The exponent of each
# head is a parameter like the others: ``1 + softplus(...)``, so that it stays above 1.

HEADS, WIDTH = 8, 6


def attention(p: Parameters, x: Tensor) -> Tensor:
    """The weights of the heads, (…, heads, 64)."""
    scores = (x @ p["score"]).unflatten(-1, (HEADS, 64))
    if "alpha" not in p:
        return torch.softmax(scores, -1)
    return soft.entmax(scores, 1 + torch.nn.functional.softplus(p["alpha"]).unsqueeze(-1))


def attend(p: Parameters, x: Tensor) -> Tensor:
    """The logits of the digits."""
    values = x.unsqueeze(-1) * p["slope"] + p["place"]  # (…, 64, width), of each pixel and its place
    seen = attention(p, x) @ values
    return torch.relu(seen.flatten(-2)) @ p["out"]


def attention_loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(attend(p, x), y)


shapes = {"score": (64, HEADS * 64), "slope": (64, WIDTH), "place": (64, WIDTH), "out": (HEADS * WIDTH, 10)}
start = {name: torch.randn(shape) * 0.15 for name, shape in shapes.items()}
attending = {
    "softmax": train("softmax", start, attention_loss),
    "entmax": train("entmax", start | {"alpha": torch.zeros(HEADS)}, attention_loss),
}
support = {name: (attention(p, test_images) > 0).sum(-1).float().mean(0) for name, p in attending.items()}
alphas = 1 + torch.nn.functional.softplus(attending["entmax"]["alpha"])
for name, p in attending.items():
    print(
        f"attention by {name:8} accuracy {accuracy(attend(p, test_images)):.3f}, pixels seen by a head {support[name].mean():.1f}"
    )
    assert accuracy(attend(p, test_images)) > 0.85
print(f"exponents from {alphas.min():.2f} to {alphas.max():.2f}")
assert support["entmax"].mean() < 32

# %%
# Which code
# ----------
#
# An encoder gives logits of two variables with eight classes, a sample of both is the code, a table gives the digit. The loss
# of a sample is random, its mean is a sum over the 64 codes.

VARIABLES, CLASSES = 2, 8
ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "categorical_st": sampling.categorical_st,
    "gumbel_softmax, hard": lambda x: sampling.gumbel_softmax(x, hard=True),
    "reinmax": sampling.reinmax,
    "gapped_st, probs": lambda x: sampling.gapped_st(x, gap="probs"),
    "gumbel_rao, 10": sampling.gumbel_rao,
}


def encode(p: Parameters, x: Tensor) -> Tensor:
    """The logits of the variables."""
    return (torch.relu(x @ p["inner"]) @ p["code"]).unflatten(-1, (VARIABLES, CLASSES))


def decode(p: Parameters, code: Tensor) -> Tensor:
    """The logits of the digits, from a one-hot code: a product for each pair of classes."""
    first, second = code.unbind(-2)
    pairs = (first.unsqueeze(-1) * second.unsqueeze(-2)).flatten(-2)
    return pairs @ p["table"]


codes = torch.eye(CLASSES)
codes = torch.stack((codes.repeat_interleave(CLASSES, 0), codes.repeat(CLASSES, 1)), 1)  # all 64


def exact_loss(p: Parameters, theta: Tensor, y: Tensor) -> Tensor:
    """The mean loss of the logits of one image."""
    first, second = torch.softmax(theta, -1)
    probabilities = (first.unsqueeze(-1) * second).flatten()
    return (probabilities * cross_entropy(decode(p, codes), y.expand(len(codes)), reduction="none")).sum()


def most_likely(p: Parameters, x: Tensor) -> Tensor:
    """The digits by the most likely code."""
    return decode(p, torch.nn.functional.one_hot(encode(p, x).argmax(-1), CLASSES).float())


start = {"inner": torch.randn(64, 32) / 8, "code": torch.randn(32, VARIABLES * CLASSES) / 4, "table": torch.zeros(64, 10)}
measured: dict[str, tuple[float, float, float]] = {}
draws = 400


def mean_loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    return vmap(lambda t, y: exact_loss(p, t, y))(encode(p, x), y).mean()


reference = train("exact gradient", start, mean_loss, 500, 0.01)
# Bias and variance at the same point for all: where the network has half learned.
half = train("a point to measure", start, mean_loss, 60)
theta, digits = encode(half, test_images[:32]), test_labels[:32]
exact = vmap(grad(lambda t, y: exact_loss(half, t, y)))(theta, digits)
for name, estimator in ESTIMATORS.items():
    learned = train(name, start, lambda p, x, y, f=estimator: cross_entropy(decode(p, f(encode(p, x))), y), 500, 0.01)

    def sampled_loss(t: Tensor, y: Tensor, estimator: Callable[[Tensor], Tensor] = estimator) -> Tensor:
        return cross_entropy(decode(half, estimator(t)), y)

    gradients = vmap(vmap(grad(sampled_loss), randomness="different"), (0, 0), randomness="different")(
        theta.expand(draws, *theta.shape), digits.expand(draws, 32)
    )
    bias = (gradients.mean(0) - exact).norm() / exact.norm()
    deviation = gradients.var(0).sum().sqrt() / exact.norm()
    measured[name] = accuracy(most_likely(learned, test_images)), bias.item(), deviation.item()
print(f"\n{'exact gradient':22} accuracy {accuracy(most_likely(reference, test_images)):.3f}")
for name, (rate, bias, deviation) in measured.items():
    print(f"{name:22} accuracy {rate:.3f}, bias {bias:.2f}, deviation {deviation:.2f} of the exact gradient")
assert measured["reinmax"][1] < measured["categorical_st"][1]

# %%
# Per-sample gradients
# --------------------
#
# Each sample of a batch draws its own code. With the noise of the batch given, row by row, a loop has the same gradients.

p, x, y = {name: value.double() for name, value in half.items()}, train_images[:8].double(), train_labels[:8]


def one_loss(p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
    return cross_entropy(decode(p, sampling.reinmax(encode(p, x), noise=noise)), y)


torch.manual_seed(1)
together = vmap(grad(one_loss), in_dims=(None, 0, 0), randomness="different")(p, x, y)
torch.manual_seed(1)
noise = sampling.gumbel_like(encode(p, x))
for i in range(8):
    alone = grad(one_loss)(p, x[i], y[i], noise[i])
    for name in p:
        torch.testing.assert_close(together[name][i], alone[name])
print("\nper-sample gradients in one call equal a loop over 8 samples")

# %%
# Which pixels
# ------------
#
# One logit for each pixel. In training a subset of k is drawn for each image, with the derivative of the exact marginals; later
# the k best are kept.

K = 8


def classify(p: Parameters, x: Tensor) -> Tensor:
    return torch.relu(x @ p["inner"] + p["bias"]) @ p["outer"]


def subset_loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    mask = sampling.k_subset_st(p["choice"].expand_as(x), K)
    return cross_entropy(classify(p, x * mask), y)


weights = {"inner": torch.randn(64, 48) / 8, "bias": torch.zeros(48), "outer": torch.randn(48, 10) / 7}
chosen = train("pixels", weights | {"choice": torch.zeros(64)}, subset_loss, 400, 0.03)
masks = {
    "learned": topk_mask_st(chosen["choice"], K),
    "with the largest variance": topk_mask_st(train_images.var(0), K),
    "at random": topk_mask_st(torch.rand(64), K),
}
scores = {}
for name, mask in masks.items():
    final = train(f"{K} pixels {name}", weights, lambda p, x, y, mask=mask: cross_entropy(classify(p, x * mask), y))
    scores[name] = accuracy(classify(final, test_images * mask))
progress.stop()
print()
for name, score in scores.items():
    print(f"{K} pixels {name:26} accuracy {score:.3f}")
assert scores["learned"] > scores["at random"]

# %%
# A picture
# ---------
#
# The pixels that each head looks at, on average; bias and deviation of the estimators; the pixels that were chosen.

figure = plt.figure(figsize=(10, 5.2))
grid = figure.add_gridspec(2, HEADS, left=0.02, right=0.98, top=0.9, bottom=0.12, hspace=0.45, wspace=0.15)
looks = attention(attending["entmax"], test_images).mean(0)
for head in range(HEADS):
    axes = figure.add_subplot(grid[0, head])
    axes.imshow(looks[head].view(8, 8), cmap="viridis")
    axes.set_title(f"exponent {alphas[head]:.2f}\n{support['entmax'][head]:.0f} pixels", fontsize=9)
    axes.set_axis_off()
axes = figure.add_subplot(grid[1, 1:5])
for i, (rate, bias, deviation) in enumerate(measured.values()):
    axes.barh(i - 0.2, bias, 0.38, color="#DD6B20", label="bias" if i == 0 else None)
    axes.barh(i + 0.2, deviation, 0.38, color="#3A8FD0", label="standard deviation" if i == 0 else None)
    axes.text(deviation, i + 0.2, f" accuracy {rate:.3f}", va="center", fontsize=8)
axes.set_yticks(range(len(measured)), list(measured), fontsize=8)
axes.set_xlabel("of the norm of the exact gradient", fontsize=8)
axes.margins(x=0.25)
axes.legend(fontsize=8, frameon=False)
axes = figure.add_subplot(grid[1, 6:])
axes.imshow(train_images.mean(0).view(8, 8), cmap="gray")
rows, columns = masks["learned"].view(8, 8).nonzero(as_tuple=True)
axes.plot(columns, rows, "s", ms=9, mfc="none", mec="#DD6B20", mew=2)
axes.set_title(f"{K} pixels: accuracy {scores['learned']:.3f}", fontsize=9)
axes.set_axis_off()
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=120)
