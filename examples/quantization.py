"""
Few bits: integers, ternary weights, fp8 and fp4
================================================

One small network on images of digits, trained in full precision, then quantized in six ways and trained on: weights and
activations, integers with scales that learn. Then the curvature of the loss, *through the quantizers*, says which layer needs its
bits: no other package computes Hessian-vector products of a quantized network.

Install with ``pip install -c constraints.txt -e ".[demo]"`` and run ``python examples/quantization.py quantization.png``; it
takes less than a minute, and ends with an error if a promise of this page does not hold.
"""

import copy
import math
import sys
from collections.abc import Callable
from importlib.util import find_spec

import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

import fullgrad
from fullgrad import quantizers

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
console = Console(width=100)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels))
images, labels = (pixels.float() / 16)[order], labels[order]
train_x, train_y, test_x, test_y = images[:1200], labels[:1200], images[1200:], labels[1200:]


# %%
# The network
# -----------
#
# Four layers, with a place for a quantizer before each: its input is what a multiplier would be given.


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)])
        self.inputs = nn.ModuleList([nn.Identity() for _ in self.layers])

    def forward(self, x: Tensor) -> Tensor:
        for i, (quantize, layer) in enumerate(zip(self.inputs, self.layers, strict=True)):
            x = layer(quantize(x if i == 0 else x.relu()))
        return x


def train(network: nn.Module, steps: int, rate: float, tick: Callable[[], None]) -> None:
    optimizer = torch.optim.Adam(network.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = torch.randint(len(train_y), (256,))
        optimizer.zero_grad()
        cross_entropy(network(train_x[chosen]), train_y[chosen]).backward()
        optimizer.step()
        schedule.step()
        tick()


def accuracy(network: nn.Module) -> float:
    with torch.no_grad():
        return (network(test_x).argmax(-1) == test_y).float().mean().item()


# %%
# Six ways to quantize
# --------------------
#
# Each way is a function that returns a quantizer for a tensor. The scales of LSQ are parameters of the network, one per row of
# a weight and one per activation; a bound, which lets them come back, keeps them above 0. The scales of fp8 are those of the
# largest numbers, and stay; ternary weights and MX blocks compute their own.


def lsq(bits: int) -> Callable[[Tensor, bool], nn.Module]:
    def make(x: Tensor, is_weight: bool) -> nn.Module:
        low, high = quantizers.quant_range(bits, signed=is_weight)
        size = x.detach().abs().mean(1, keepdim=True) if is_weight else x.detach().abs().mean()
        scale = nn.Parameter(2 * size / math.sqrt(max(high, 1)))
        made = fullgrad.nn.LSQ(scale, quant_min=low, quant_max=high)
        parametrize.register_parametrization(made, "scale", fullgrad.nn.LowerBound(1e-3))
        return made

    return make


def ternary(x: Tensor, is_weight: bool) -> nn.Module:
    return fullgrad.nn.TWN(dim=1) if is_weight else lsq(4)(x, is_weight)


def fp8(x: Tensor, is_weight: bool) -> nn.Module:
    return fullgrad.nn.FloatQuantize("float8_e4m3fn", x.detach().abs().max() / 448, inside="exact")


def mx_fp4(x: Tensor, is_weight: bool) -> nn.Module:
    return fullgrad.nn.MXQuantize("float4_e2m1fn", block_size=16)


WAYS = {
    "fp8 (e4m3)": (8, fp8),
    "MX-fp4": (4, mx_fp4),
    "LSQ, 4 bits": (4, lsq(4)),
    "LSQ, 3 bits": (3, lsq(3)),
    "LSQ, 2 bits": (2, lsq(2)),
    "ternary weights": (math.log2(3), ternary),
}


def quantized(network: Network, ways: list[Callable[[Tensor, bool], nn.Module]]) -> Network:
    """A copy whose weights are parametrized and whose inputs pass through quantizers."""
    made, x = copy.deepcopy(network), train_x
    for i, (layer, way) in enumerate(zip(made.layers, ways, strict=True)):
        made.inputs[i] = way(x, False)
        x = layer(x).relu().detach()
        parametrize.register_parametrization(layer, "weight", way(layer.weight, True))
    return made


STEPS = 300
network, results = Network(), {}
with Progress(console=console, transient=not console.is_terminal) as progress:
    task = progress.add_task("full precision", total=STEPS * (len(WAYS) + 1))
    train(network, STEPS, 1e-2, lambda: progress.advance(task))
    full = accuracy(network)
    for name, (_, way) in WAYS.items():
        progress.update(task, description=name)
        results[name] = quantized(network, [way] * 4)
        before = accuracy(results[name])
        train(results[name], STEPS, 3e-3, lambda: progress.advance(task))
        results[name].before = before

table = Table("", "bits of a weight", "accuracy before training", "after")
table.add_row("full precision", "32", "", f"{full:.1%}")
for name, made in results.items():
    table.add_row(name, f"{WAYS[name][0]:.1f}", f"{made.before:.1%}", f"{accuracy(made):.1%}")
console.print(table)
assert accuracy(results["LSQ, 3 bits"]) > full - 0.05


# %%
# Which rows need their bits?
# ---------------------------
#
# The loss grows by about half the curvature times the square of the rounding error. The curvature of each row of a weight is the
# trace of its Hessian block, estimated by products with a hundred random signs: ``vmap`` of forward over reverse, through the
# quantizers of weights and inputs. Each row gets the bits for which growth plus a price per bit is least, at the price that makes
# all as large as three bits for every weight.
#
# One network proves nothing: on another CPU its training ends elsewhere. Of 24 networks, each from weights of its own, 22 had the
# lower loss with mixed bits on the training images, whose curvature it is, and 21 on the test images. So six are trained, and the
# mean over them of the logarithm of the ratio is asserted, which over the 24 was -0.63 with a deviation of 0.39.

BITS = (2, 3, 4, 5, 6)
SEEDS = 6


def curvatures(network: Network, samples: int = 100) -> list[Tensor]:
    """The mean diagonal of the Hessian for each row of each layer's weight, through quantizers to fp8."""
    made = quantized(network, [fp8] * 4)
    weights = {f"layers.{i}.parametrizations.weight.original": layer.weight.detach() for i, layer in enumerate(network.layers)}

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return cross_entropy(functional_call(made, weights, (train_x[:400],)), train_y[:400])

    found = []
    for name, w in weights.items():

        def product(signs: Tensor, name: str = name, w: Tensor = w) -> Tensor:
            return signs * jvp(lambda v: grad(loss)({**weights, name: v})[name], (w,), (signs,))[1]

        signs = torch.randint(0, 2, (samples, *w.shape)) * 2.0 - 1.0
        found.append(vmap(product, chunk_size=10)(signs).mean((0, 2)).clamp(min=0))
    return found


def in_bits(w: Tensor, bits: int) -> Tensor:
    """A weight quantized by rows, each with the best of forty scales."""
    low, high = quantizers.quant_range(bits)
    largest = w.abs().amax(1, keepdim=True) / high
    candidates = [quantizers.fake_quantize(w, largest * f, 0, low, high) for f in torch.linspace(0.3, 1.2, 40)]
    best = torch.stack([(q - w).square().sum(1) for q in candidates]).argmin(0)
    return torch.stack(candidates)[best, torch.arange(len(w))]


def allocated(costs: list[Tensor], growth: list[Tensor]) -> list[Tensor]:
    """The index of the bits of each row of each layer: in all as many bits as three for every weight."""
    cheap, dear = 1e-12, 1.0
    for _ in range(60):
        price = math.sqrt(cheap * dear)
        chosen = [(g + price * c).argmin(0) for g, c in zip(growth, costs, strict=True)]
        cheap, dear = (price, dear) if size_of(chosen, costs) > size_of(uniform(costs), costs) else (cheap, price)
    return [(g + dear * c).argmin(0) for g, c in zip(growth, costs, strict=True)]


def uniform(costs: list[Tensor]) -> list[Tensor]:
    return [torch.full(c.shape[1:], BITS.index(3)) for c in costs]


def size_of(chosen: list[Tensor], costs: list[Tensor]) -> int:
    return sum(int(c.gather(0, i.unsqueeze(0)).sum()) for i, c in zip(chosen, costs, strict=True))


def losses_of(network: Network, choices: list[Tensor], chosen: list[Tensor]) -> Tensor:
    """The losses on the training and the test images with quantized weights, without further training."""
    made = copy.deepcopy(network)
    for layer, of_layer, i in zip(made.layers, choices, chosen, strict=True):
        layer.weight = nn.Parameter(of_layer[i, torch.arange(len(i))])
    with torch.no_grad():
        return torch.stack([cross_entropy(made(x), y) for x, y in ((train_x, train_y), (test_x, test_y))])


def mixed_and_uniform(network: Network) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The losses of both, the curvature of each row, and the index of its bits."""
    weights = [layer.weight.detach() for layer in network.layers]
    choices = [torch.stack([in_bits(w, b) for b in BITS]) for w in weights]
    costs = [torch.tensor(BITS).unsqueeze(1).expand(-1, len(w)) * w.shape[1] for w in weights]
    curvature = curvatures(network)
    growth = [c / 2 * (q - w).square().sum(2) for c, q, w in zip(curvature, choices, weights, strict=True)]
    mixed = allocated(costs, growth)
    assert size_of(mixed, costs) <= size_of(uniform(costs), costs)
    losses = torch.stack([losses_of(network, choices, chosen) for chosen in (mixed, uniform(costs))])
    return losses, curvature, mixed


found = []
with Progress(console=console, transient=not console.is_terminal) as progress:
    for seed in progress.track(range(SEEDS), description="mixed bits"):
        torch.manual_seed(seed)
        one = Network()
        train(one, STEPS, 1e-2, lambda: None)
        found.append(mixed_and_uniform(one))
_, curvature, mixed = found[0]
print("mean curvature by layer:", ", ".join(f"{c.mean():.1e}" for c in curvature))
print("mean bits by layer:", ", ".join(f"{torch.tensor(BITS)[i].float().mean():.1f}" for i in mixed))
losses = torch.stack([losses for losses, *_ in found])  # by network, mixed or uniform, images
for images_of, (of_mixed, of_uniform) in zip(("training", "test"), losses.permute(2, 1, 0), strict=True):
    ratio = (of_mixed / of_uniform).log()
    print(
        f"mixed bits: loss {of_mixed.mean():.3f} ± {of_mixed.std():.3f} on the {images_of} images, "
        f"uniform {of_uniform.mean():.3f} ± {of_uniform.std():.3f}; "
        f"ratio {ratio.mean().exp():.2f}, below 1 for {int((ratio < 0).sum())} of {SEEDS} networks"
    )
assert (losses[:, 0, 0] / losses[:, 1, 0]).log().mean() < 0


# %%
# Export
# ------
#
# The value of a quantizer is plain torch code, so the trained network exports; without a gradient, which an exported graph would
# replace by that of the rounding.

final = results["LSQ, 4 bits"].eval()
with torch.no_grad():
    program = torch.export.export(final, (test_x[:8],))
    assert torch.equal(program.module()(test_x[:8]), final(test_x[:8]))
print("torch.export: equal outputs")
if find_spec("onnxscript") and find_spec("onnxruntime"):
    import onnxruntime

    with torch.no_grad():
        torch.onnx.export(final, (test_x[:8],), "quantized.onnx", dynamo=True)
    session = onnxruntime.InferenceSession("quantized.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: test_x[:8].numpy()})
    torch.testing.assert_close(torch.tensor(found), final(test_x[:8]).detach(), rtol=1e-4, atol=1e-4)
    print("ONNX: equal outputs")
else:
    print("ONNX: not installed, skipped")


# %%
# Pictures
# --------

figure, (left, *histograms) = plt.subplots(1, 4, figsize=(12, 3), constrained_layout=True)
bits = [WAYS[name][0] for name in results]
left.scatter(bits, [accuracy(m) for m in results.values()])
for (name, made), b in zip(results.items(), bits, strict=True):
    left.annotate(name, (b, accuracy(made)), textcoords="offset points", xytext=(4, 4), fontsize=7)
left.axhline(full, color="gray", linestyle=":", label="full precision")
left.set(xlabel="bits of a weight", ylabel="test accuracy", title="Accuracy against bits")
left.legend(fontsize=7)
for axes, name in zip(histograms, ("fp8 (e4m3)", "LSQ, 3 bits", "ternary weights"), strict=True):
    axes.hist(results[name].layers[1].weight.detach().flatten().numpy(), bins=120)
    axes.set(title=f"{name}: weights", yticks=[])
if len(sys.argv) > 1:
    plt.savefig(sys.argv[1])
