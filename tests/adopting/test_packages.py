"""Other packages' networks, unchanged, compared with a loop over the samples and with eager double backward."""

import copy
import functools
import importlib
import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad._suite.published import LEFT_OUT, PUBLISHED, found_in, results_of
from fullgrad._suite.published._functions import LEFT_OUT_MODULES
from tests.adopting import oracle

pytestmark = [pytest.mark.adopting, pytest.mark.filterwarnings("ignore")]


def package(name):
    """The module, or a skip. Warnings of packages on import are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


# --- Networks: a module, and one input ------------------------------------------------------------------------------------


def snntorch():
    """A network of snntorch with its default surrogate, over four time steps."""
    snn = package("snntorch")

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer, self.neurons = nn.Linear(6, 5), nn.Linear(5, 3), snn.Leaky(beta=0.8)
            self.nothing = torch.zeros(0)

        def forward(self, x):
            current = self.inner(x)
            membrane, total = torch.zeros_like(current), 0
            for _ in range(4):
                spikes, membrane = self.neurons(current, membrane)
                total = total + spikes + membrane
            self.neurons.mem = self.neurons.reset = self.nothing  # what a module keeps would escape from a transform
            return self.outer(total)

    return Network(), torch.randn(6)


def spikingjelly():
    """A multi-step network, reset before each run."""
    package("spikingjelly")
    neuron = importlib.import_module("spikingjelly.activation_based.neuron")
    layer = importlib.import_module("spikingjelly.activation_based.layer")
    functional = importlib.import_module("spikingjelly.activation_based.functional")

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            neurons = [neuron.LIFNode(step_mode="m"), neuron.IFNode(step_mode="m")]
            inner, outer = layer.Linear(6, 5, step_mode="m"), layer.Linear(5, 3, step_mode="m")
            self.net = nn.Sequential(inner, neurons[0], outer, neurons[1])

        def forward(self, x):
            functional.reset_net(self.net)
            y = self.net(2 * x[:, None]).mean((0, 1)) + self.net[0](x[:, None]).sum((0, 1))[:3]
            functional.reset_net(self.net)  # what a module keeps would escape from a transform
            return y

    return Network(), torch.randn(4, 6)


def sinabs():
    """Leaky neurons over time."""
    layers = package("sinabs.layers")

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x):
            current = self.inner(x)[None]
            return self.outer(layers.LIF(tau_mem=10.0)(3 * current) + current).mean((0, 1))

    return Network(), torch.randn(4, 6)


def brevitas():
    """Quantized weights and activations."""
    qnn = package("brevitas.nn")
    network = nn.Sequential(
        qnn.QuantLinear(6, 5, bias=True, weight_bit_width=4), nn.Tanh(), qnn.QuantLinear(5, 3, bias=True, weight_bit_width=4)
    )
    return network.eval(), torch.randn(6)


def torchao():
    """Quantization-aware training, with scales that are computed from the weights."""
    linear = package("torchao.quantization.qat.linear")
    configs = importlib.import_module("torchao.quantization.qat.fake_quantize_config")
    weight = configs.IntxFakeQuantizeConfig(torch.int4, group_size=2)
    layers = [linear.FakeQuantizedLinear(n, m, bias=False, weight_config=weight) for n, m in ((6, 4), (4, 3))]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]), torch.randn(6)


def entmax():
    """Attention whose weights are sparse."""
    activations = package("entmax.activations")

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.queries, self.keys, self.values = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 3)

        def forward(self, x):
            weights = activations.sparsemax(self.queries(x) @ self.keys(x).mT, dim=-1)
            return (weights @ self.values(x)).mean(0)

    return Attention(), torch.randn(5, 6)


NETWORKS = {f.__name__: f for f in (snntorch, spikingjelly, sinabs, brevitas, torchao, entmax)}


@pytest.fixture(params=NETWORKS)
def problem(request):
    """A loss of the parameters and one sample, the parameters, and four samples."""
    torch.manual_seed(0)
    network, x = NETWORKS[request.param]()
    samples = torch.randn(4, *x.shape, generator=torch.Generator().manual_seed(1))
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def loss(parameters, x):
        return functional_call(network, parameters, (x,)).sin().sum()

    return request.param, loss, parameters, samples


def eager(loss, parameters, x, create_graph=False):
    """The gradient of plain autograd, and the leaves."""
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    grads = torch.autograd.grad(loss(leaves, x), list(leaves.values()), create_graph=create_graph, allow_unused=True)
    return leaves, {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(leaves.items(), grads, strict=True)}


close = functools.partial(assert_close, rtol=1e-5, atol=1e-6)


def test_per_sample_gradients(problem):
    """``vmap(grad)`` is a loop; without the context torch raises."""
    _, loss, parameters, samples = problem
    expected = [eager(loss, parameters, x)[1] for x in samples]
    with fullgrad.adopting():
        found = vmap(grad(loss), in_dims=(None, 0), randomness="same")(parameters, samples)
    for i, one in enumerate(expected):
        close({n: g[i] for n, g in found.items()}, one)
    with pytest.raises(RuntimeError):
        vmap(grad(loss), in_dims=(None, 0))(parameters, samples)


def test_hessian_vector_products(problem):
    """Forward over reverse, reverse over forward and reverse over reverse are eager double backward; H need not be symmetric."""
    name, loss, parameters, samples = problem
    x, direction = samples[0], {n: torch.randn_like(p) for n, p in parameters.items()}
    of = lambda p: loss(p, x)  # noqa: E731

    def inner(a, b):
        return sum((a[n] * b[n]).sum() for n in a)

    leaves, g = eager(loss, parameters, x, create_graph=True)
    transposed = torch.autograd.grad(inner(g, direction), list(leaves.values()), allow_unused=True)
    transposed = {n: torch.zeros_like(p) if t is None else t for (n, p), t in zip(parameters.items(), transposed, strict=True)}
    with fullgrad.adopting():
        close(grad(lambda p: inner(grad(of)(p), direction))(parameters), transposed)
        close(vjp(grad(of), parameters)[1](direction)[0], transposed)
        if name == "torchao":
            return  # its scales are computed under no_grad, which does not stop tangents
        close(grad(lambda p: jvp(of, (p,), (direction,))[1])(parameters), transposed)
        pushed = jvp(grad(of), (parameters,), (direction,))[1]
        other = {n: torch.randn_like(p) for n, p in parameters.items()}
        left = inner(other, pushed)
        close(left, inner(vjp(grad(of), parameters)[1](other)[0], direction), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["snntorch", "spikingjelly", "brevitas", "entmax"])
def test_compiled(name):
    """``compile(vmap(grad(model)))`` without a graph break."""
    torch.manual_seed(0)
    network, x = NETWORKS[name]()
    samples = torch.stack([x, -x, 0.5 * x])
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def per_sample(parameters, samples):
        return vmap(grad(lambda p, x: functional_call(network, p, (x,)).sin().sum()), in_dims=(None, 0))(parameters, samples)

    with fullgrad.adopting():
        expected = per_sample(parameters, samples)
        close(torch.compile(per_sample, backend="aot_eager", fullgraph=True)(parameters, samples), expected)


# --- Other packages' methods on other packages' networks -------------------------------------------------------------------


def test_private_training():
    """Opacus' GradSampleModule takes ``vmap(grad)`` of a layer that it does not know; DP-SGD's clipped sum is that of a loop."""
    package("opacus")
    from opacus.grad_sample import GradSampleModule

    activations = package("entmax.activations")

    class Sparse(nn.Linear):
        def forward(self, x):
            return activations.sparsemax(super().forward(x), dim=-1).sin()

    torch.manual_seed(0)
    network = nn.Sequential(Sparse(6, 5), Sparse(5, 3))
    plain, samples = copy.deepcopy(network), torch.randn(3, 6)
    parameters = {n: p.detach() for n, p in plain.named_parameters()}

    def loss(parameters, x):
        return functional_call(plain, parameters, (x,)).sum()

    private = GradSampleModule(network, force_functorch=True, loss_reduction="sum")
    with fullgrad.adopting():
        private(samples).sum().backward()
    grads = {n.removeprefix("_module."): p.grad_sample for n, p in private.named_parameters()}
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    clipped = {n: ((g * (1 / norms).clamp(max=1).reshape(-1, *[1] * (g.ndim - 1))).sum(0)) for n, g in grads.items()}
    total = {n: torch.zeros_like(p) for n, p in plain.named_parameters()}
    for one in samples:
        _, g = eager(loss, parameters, one)
        norm = torch.stack([v.norm() for v in g.values()]).norm()
        total = {n: total[n] + v * min(1.0, float(1 / norm)) for n, v in g.items()}
    close(clipped, total)


def test_hessian_spectrum():
    """curvlinops' Hessian of an snntorch network is that of eager double backward."""
    package("curvlinops")
    from curvlinops import HessianLinearOperator

    torch.manual_seed(0)
    network, x = snntorch()
    data = [(torch.stack([x, -x]), torch.randn(2, 3))]
    parameters = [p for p in network.parameters() if p.requires_grad]
    with fullgrad.adopting():
        operator = HessianLinearOperator(network, nn.MSELoss(), parameters, data, check_deterministic=False)
        matrix = operator @ torch.eye(operator.shape[1])
    loss = nn.MSELoss()(network(data[0][0]), data[0][1])
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    rows = []
    for e in flat:
        row = torch.autograd.grad(e, parameters, retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat([(torch.zeros_like(p) if r is None else r).flatten() for r, p in zip(row, parameters, strict=True)])
        )
    close(matrix, torch.stack(rows))


def test_jacobian_descent():
    """torchjd's Jacobian of the losses of a spiking network, one backward for all, and the step that it takes: those of a loop.

    The Jacobian that ``vmap(grad)`` gives in the context is the same.
    """
    package("torchjd")
    from torchjd.aggregation import AlignedMTL
    from torchjd.autojac import backward, jac_to_grad

    torch.manual_seed(0)
    network, x = snntorch()
    samples = torch.stack([x, -x, 0.5 * x])
    named = dict(network.named_parameters())
    parameters = list(named.values())

    def losses():
        return network(samples).square().mean(1)

    loop = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses().split(1)]
    expected = torch.cat([torch.stack(parts).flatten(1) for parts in zip(*loop, strict=True)], 1)
    with fullgrad.adopting():
        backward(losses(), inputs=parameters)
        one = lambda parameters, x: functional_call(network, parameters, (x,)).square().mean()  # noqa: E731
        per_sample = vmap(grad(one), in_dims=(None, 0))({n: p.detach() for n, p in named.items()}, samples)
    close(torch.cat([p.jac.flatten(1) for p in parameters], 1), expected)
    close(torch.cat([g.flatten(1) for g in per_sample.values()], 1), expected)
    jac_to_grad(parameters, AlignedMTL())
    close(torch.cat([p.grad.flatten() for p in parameters]), AlignedMTL()(expected))


# --- Functions that ask for more than their inputs -------------------------------------------------------------------------


def null_space():
    """kornia's, whose backward leaves zeros of the gradient out."""
    basis = package("kornia.geometry.epipolar.essential")._NullSpaceBasis
    return (lambda x: basis.apply(x.reshape(1, 5, 9))[0]), torch.randn(45, dtype=torch.float64)


def one_hot():
    """pyro's, which sets the soft value on the hard one, and reads it in the log-probability."""
    distributions = package("pyro.distributions")

    def log_probability(x):
        made = importlib.import_module("pyro.distributions.relaxed_straight_through")
        hard = made.QuantizeCategorical.apply(x.softmax(-1))
        return distributions.RelaxedOneHotCategoricalStraightThrough(torch.tensor(0.7).to(x), logits=x).log_prob(hard)

    return log_probability, torch.randn(4, dtype=torch.float64)


def covariance(name, *more):
    """gpytorch's kernels, which refuse gradients of the points, and get a method of the module as an argument."""

    def make():
        kernels = package("gpytorch.kernels")
        kernel, points = getattr(kernels, name)(*more).double(), torch.linspace(0, 1, 4, dtype=torch.float64)[:, None]

        class Matrix(nn.Module):
            def __init__(self):
                super().__init__()
                self.kernel = kernel

            def forward(self, points):
                return self.kernel.forward(points, points)

        def matrix(x):
            return functional_call(Matrix(), {"kernel.raw_lengthscale": x.reshape(1, 1)}, (points,))

        return matrix, torch.randn(1, dtype=torch.float64)

    return make


SPECIAL = {
    "null_space": null_space,
    "one_hot": one_hot,
    "rbf": covariance("RBFKernel"),
    "matern": covariance("MaternKernel", 1.5),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_functions_that_ask_for_more(name):
    """Values, gradients, tangents, Hessians in every order, and batches of these are those of eager double backward."""
    torch.manual_seed(0)
    function, x = SPECIAL[name]()
    scalar = lambda x: oracle.scalar(function(x))  # noqa: E731
    samples = torch.stack([x, 1.5 * x, x - 0.25])
    slope, matrix = oracle.gradient(scalar, x), oracle.hessian(scalar, x)
    with fullgrad.adopting():
        assert_close(jvp(scalar, (x,), (x,)), (scalar(x), slope @ x))
        for outer, inner in itertools.product((jacrev, jacfwd), repeat=2):
            assert_close(outer(inner(scalar))(x), matrix)
        assert_close(vmap(grad(scalar))(samples), torch.stack([oracle.gradient(scalar, s) for s in samples]))
        assert_close(vmap(hessian(scalar))(samples), torch.stack([oracle.hessian(scalar, s) for s in samples]))


# --- Functions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted({p.package for p in PUBLISHED}))
def test_every_function_is_in_the_table(name):
    """Each Function that the package defines is checked, or left out for a reason."""
    package(name)
    known = {p.path for p in PUBLISHED}
    missing = [
        path
        for path in found_in(name)
        if path not in known
        and path.partition(":")[2] not in LEFT_OUT
        and not any(path.startswith(module) for module in LEFT_OUT_MODULES)
    ]
    assert not missing


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda p: f"{p.package}-{p.name}")
def test_a_function(published):
    """Derivatives and batches hold after adoption, if they hold for the class in eager autograd."""
    package(published.package)
    counts = results_of(published, ["backward", "func_grad", "func_jvp", "func_hessian", "vmap_of_grad", "vmap_of_hessian"])
    assert not {n: m for n, m in counts["fails"].items() if "nan" not in m and "something else for each sample" not in m}
