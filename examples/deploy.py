"""
Deployment: 8-bit digits as an ONNX file of integers
====================================================

A network for images of digits is trained, quantized to 8 bits by :func:`fullgrad.nn.quantize_` and trained on, so that its
weights and scales adapt to the rounding. Then it is exported to ONNX: every quantizer is a ``QuantizeLinear`` and a
``DequantizeLinear``, which inference engines know, and the weights are stored as the integers of
:func:`fullgrad.quantizers.codes`. The file is a quarter of the one in floating point, and onnxruntime gives the same digits.

Install with ``pip install -c constraints.txt -e ".[demo]"`` and ``pip install onnx onnxruntime onnxscript``, and run
``python examples/deploy.py``; it takes a few seconds. Without the three packages it trains, says so, and ends there.
"""

import copy
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fullgrad
from fullgrad import quantizers

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels))
images, labels = (pixels.float() / 16)[order], labels[order]
train_x, train_y, test_x, test_y = images[:1300], labels[:1300], images[1300:], labels[1300:]


# %%
# Training, in full precision and then with 8 bits
# ------------------------------------------------
#
# ``quantize_`` looks at one pass of the images for the first scales. With ``learn=True`` they are parameters, with the gradient
# of LSQ; the straight-through gradient passes the weights. A scale of 8 bits is small, and Adam's steps are not: ``quantize_``
# gives it a bound, which keeps it positive and lets it come back.


def train(network: nn.Module, steps: int, rate: float) -> None:
    optimizer = torch.optim.Adam(network.parameters(), rate)
    for _ in range(steps):
        chosen = torch.randint(len(train_y), (128,))
        optimizer.zero_grad()
        cross_entropy(network(train_x[chosen]), train_y[chosen]).backward()
        optimizer.step()


def accuracy(logits: Tensor) -> float:
    return (logits.argmax(-1) == test_y).float().mean().item()


network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
train(network, 300, 2e-3)
quantized = copy.deepcopy(network)
fullgrad.nn.quantize_(quantized, weights=8, activations=8, data=train_x.split(100), learn=True)
train(quantized, 200, 2e-4)
with torch.no_grad():
    full, reached = accuracy(network(test_x)), accuracy(quantized(test_x))
print(f"accuracy: {full:.1%} in full precision, {reached:.1%} with 8 bits")
assert reached > full - 0.02


# %%
# Integers in torch
# -----------------
#
# The integers of a weight, times its scale, are the weight that the network was trained with, bit for bit.

with torch.no_grad():
    quantizer, weight = quantized[0].weight_quantizer, quantized[0].original_weight
    integers = quantizers.codes(weight, quantizer.effective_scale)
    assert integers.dtype == torch.int8
    assert torch.equal(integers * quantizer.effective_scale, quantized[0].weight)
print(f"the first weight is {integers.numel()} integers from {integers.min()} to {integers.max()}")


# %%
# ONNX
# ----
#
# The exporter leaves the weights in floating point, with a ``QuantizeLinear`` after each. That node has a constant result, which
# onnxruntime computes when it loads the file; it can write the model as it then is, with integers. Its basic optimizations keep
# the standard's operators; the extended ones fuse layers, and write operators of their own.


def with_integer_weights(floating: Path, integer: Path) -> None:
    """Write the model with the codes of each constant in place of the constant and its ``QuantizeLinear``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(integer)
    onnxruntime.InferenceSession(floating, options)


def export(model: nn.Module, path: Path) -> None:
    with torch.no_grad():
        torch.onnx.export(model.eval(), (test_x,), path, dynamo=True, external_data=False, verbose=False)


def main() -> None:
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if not find_spec(name)]
    if missing:
        print(f"no ONNX file is written: {', '.join(missing)} not installed")
        return
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        floating, rounded, integer = [Path(folder, f"{name}.onnx") for name in ("floating", "rounded", "integer")]
        export(network, floating)
        export(quantized, rounded)
        with_integer_weights(rounded, integer)
        assert {node.domain for node in onnx.load(integer).graph.node} == {""}  # operators of the standard alone
        sizes = floating.stat().st_size, integer.stat().st_size
        session = onnxruntime.InferenceSession(integer)
        (found,) = session.run(None, {session.get_inputs()[0].name: test_x.numpy()})
    with torch.no_grad():
        expected = quantized(test_x)
    same = (torch.tensor(found).argmax(-1) == expected.argmax(-1)).float().mean().item()
    print(f"ONNX: {sizes[0]:,} bytes in floating point, {sizes[1]:,} with integers, a ratio of {sizes[1] / sizes[0]:.2f}")
    print(f"onnxruntime: accuracy {accuracy(torch.tensor(found)):.1%}, the digit of torch for {same:.1%} of the images")
    assert sizes[1] < 0.3 * sizes[0]
    assert same > 0.99


if __name__ == "__main__":
    main()
