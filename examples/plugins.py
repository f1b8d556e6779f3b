"""
Inside snntorch, Opacus and curvlinops
======================================

A declared derivative is useful where other packages differentiate. Three of them take a fullgrad operator as it is:

* `snntorch <https://github.com/jeshraghian/snntorch>`_ takes it as the surrogate of a spike, and its neurons work under
  ``vmap(grad)``.
* `Opacus <https://github.com/pytorch/opacus>`_ finds the per-sample gradients of a quantized layer by itself, and trains it
  privately.
* `curvlinops <https://github.com/f-dangel/curvlinops>`_ makes linear operators of its Hessian and its Gauss-Newton matrix.

Install them with ``pip install -e ".[demo,plugins]"``. The part of a package that is missing is skipped, and says so. Run
``python examples/plugins.py``; it takes about ten seconds, and ends with an error if a number is not as this page says.
"""

import copy
import functools
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import fullgrad

torch.set_num_threads(1)  # tensors this small are not worth the coordination of a second thread
torch.manual_seed(0)
pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(labels))
images, labels = pixels.float()[order] / 16, labels[order]
train_images, test_images = images[:1347], images[1347:]
train_labels, test_labels = labels[:1347], labels[1347:]


def run(part: Callable[[], None], package: str) -> None:
    if find_spec(package) is None:
        print(f"{package}: not installed, skipped")
        return
    with warnings.catch_warnings():
        # Of Opacus: that its noise is not cryptographic, and that torch calls its hooks on a first layer.
        warnings.filterwarnings("ignore", "Secure RNG|Full backward hook")
        part()


def accuracy(network: Callable[[Tensor], Tensor]) -> float:
    with torch.no_grad():
        return (network(test_images).argmax(1) == test_labels).double().mean().item()


# %%
# snntorch
# --------
#
# A spike is ``greater_st(x, 0)``: 1 where x is positive, with the derivative of a sigmoid. In an ordinary backward pass that is
# snntorch's own ``surrogate.sigmoid``, number by number. Per-sample gradients fail with snntorch's, and work with this one. The
# network runs for eight time steps, with the pixels as a constant current.

TIME_STEPS = 8
SLOPE = 5.0
spike = functools.partial(fullgrad.greater_st, y=0.0, softness=1 / SLOPE)


def spiking() -> None:
    from snntorch import Leaky, surrogate

    class Spiking(nn.Module):
        def __init__(self, spike_grad: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(64, 32), nn.Linear(32, 10)
            self.neurons = Leaky(beta=0.8, spike_grad=spike_grad)

        def forward(self, x: Tensor) -> Tensor:
            current = self.inner(x)
            membrane, counts = torch.zeros_like(current), torch.zeros_like(current)
            for _ in range(TIME_STEPS):
                spikes, membrane = self.neurons(current, membrane)
                counts = counts + spikes
            return self.outer(counts / TIME_STEPS)

    ours, theirs = Spiking(spike), Spiking(surrogate.sigmoid(slope=SLOPE))
    optimizer = torch.optim.Adam(ours.parameters(), 0.01)
    for _ in range(300):
        chosen = torch.randint(len(train_labels), (64,))
        optimizer.zero_grad()
        cross_entropy(ours(train_images[chosen]), train_labels[chosen]).backward()
        optimizer.step()
    theirs.load_state_dict(ours.state_dict(), strict=False)
    found = accuracy(ours)
    print(f"snntorch: test accuracy {found:.3f} with {TIME_STEPS} time steps")
    assert found > 0.9

    x, y = train_images[:16], train_labels[:16]
    names = [name for name, _ in ours.named_parameters()]
    ordinary = [
        dict(zip(names, torch.autograd.grad(cross_entropy(network(x), y), list(network.parameters())), strict=True))
        for network in (ours, theirs)
    ]
    assert_close(*ordinary)

    def per_sample(network: nn.Module) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(functional_call(network, parameters, (image,)), label)

        parameters = {name: p.detach() for name, p in network.named_parameters()}
        return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)

    assert_close({name: g.mean(0) for name, g in per_sample(ours).items()}, ordinary[0])
    print("snntorch: the gradient of its own surrogate in an ordinary pass; per-sample gradients with it as surrogate")
    try:
        per_sample(theirs)
    except RuntimeError as error:
        print(f"snntorch: with its own surrogate, per-sample gradients raise {type(error).__name__}")
    else:
        raise AssertionError("surrogate.sigmoid has per-sample gradients now, and this page is out of date")


run(spiking, "snntorch")

# %%
# A quantized network for the other two
# -------------------------------------
#
# Its layer rounds its weights to multiples of 1/8 and its input to multiples of 1/16, and neither package knows it.


class QuantizedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        weight = fullgrad.step_quantize(fullgrad.clamp(self.weight, -1.0, 1.0), 1 / 8)
        return nn.functional.linear(fullgrad.step_quantize(x, 1 / 16), weight, self.bias)


def quantized() -> nn.Sequential:
    return nn.Sequential(QuantizedLinear(64, 16), nn.Tanh(), QuantizedLinear(16, 10))


# %%
# Opacus
# ------
#
# For a layer that it does not know, Opacus takes ``vmap(grad)`` of the layer. So a layer needs a derivative that survives it, and
# no rule of its own. The per-sample gradients must be those of ``vmap(grad)`` of the whole network. Epsilon is Opacus's, for the
# noise and the number of steps.


def private() -> None:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    network = quantized()
    plain = copy.deepcopy(network)  # without the hooks of Opacus
    optimizer = torch.optim.SGD(network.parameters(), 1.0, momentum=0.9)
    loader = DataLoader(TensorDataset(train_images, train_labels), batch_size=128)
    engine = PrivacyEngine()
    network, optimizer, loader = engine.make_private(
        module=network, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )

    def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(plain, parameters, (image,)), label)

    for epoch in range(20):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            cross_entropy(network(x), y).backward()
            if epoch == step == 0:
                parameters = {name: p.detach() for name, p in plain.named_parameters()}
                expected = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
                found = {name.removeprefix("_module."): p.grad_sample for name, p in network.named_parameters()}
                assert_close(found, expected)
                assert all(g.abs().max() > 0 for g in found.values())
                print(f"opacus: per-sample gradients of {len(found)} parameters and {len(y)} samples equal vmap(grad)")
            optimizer.step()
    found, epsilon = accuracy(network), engine.get_epsilon(delta=1e-4)
    print(f"opacus: test accuracy {found:.3f} after 20 epochs, epsilon {epsilon:.1f} at delta 1e-4")
    assert found > 0.75


run(private, "opacus")

# %%
# curvlinops
# ----------
#
# Its operators differentiate forward over reverse, under ``vmap``. The product with a vector must be that of torch.func, and the
# operator times the unit matrix the Hessian itself. In float64, all agree to rounding error.


def curvature() -> None:
    from curvlinops import GGNLinearOperator, HessianLinearOperator

    network = quantized().double()
    x, y = train_images[:200].double(), train_labels[:200]
    parameters = dict(network.named_parameters())
    data = [(x[:100], y[:100]), (x[100:], y[100:])]  # batches add up
    hessian, ggn = (
        operator(network, nn.CrossEntropyLoss(), list(parameters.values()), data)
        for operator in (HessianLinearOperator, GGNLinearOperator)
    )
    sizes, shapes = [p.numel() for p in parameters.values()], [p.shape for p in parameters.values()]
    vector = torch.cat([p.detach().flatten() for p in parameters.values()])

    def logits(vector: Tensor) -> Tensor:
        parts = zip(parameters, vector.split(sizes), shapes, strict=True)
        return functional_call(network, {name: part.view(shape) for name, part, shape in parts}, (x,))

    def loss(vector: Tensor) -> Tensor:
        return cross_entropy(logits(vector), y)

    direction = torch.randn_like(vector)
    expected = jvp(grad(loss), (vector,), (direction,))[1]
    assert_close(hessian @ direction, expected, rtol=1e-9, atol=1e-12)
    exact = jacrev(grad(loss))(vector)
    assert_close(hessian @ torch.eye(len(vector), dtype=torch.float64), exact, rtol=1e-9, atol=1e-12)

    jacobian = jacrev(logits)(vector)
    share = logits(vector).softmax(1).detach()
    of_loss = (torch.diag_embed(share) - share[:, :, None] * share[:, None, :]) / len(y)
    by_hand = torch.einsum("npi,npq,nqj->ij", jacobian, of_loss, jacobian)
    assert_close(ggn @ direction, by_hand @ direction, rtol=1e-9, atol=1e-12)
    print(f"curvlinops: Hessian of {len(vector)} parameters equals reverse over reverse, largest entry {exact.abs().max():.2g}")
    print(f"curvlinops: Gauss-Newton product equals that of the Jacobian, norm {(by_hand @ direction).norm():.2g}")
    assert exact.abs().max() > 1e-3
    assert (exact - by_hand).abs().max() > 1e-3  # the Hessian is not the Gauss-Newton matrix


run(curvature, "curvlinops")
