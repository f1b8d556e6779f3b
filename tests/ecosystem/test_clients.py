"""Our operators inside packages that differentiate, approximate, optimize and train: the numbers that these compute.

The packages are the dependency group ``clients``; what is not installed is skipped.
"""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad import nn as fnn

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


def package(name):
    """The module, or a skip. Warnings of packages on import are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def network(per_channel=False):
    """A quantizer with a learned step, a soft activation, a spike with a learned width: two outputs of three inputs."""
    torch.manual_seed(0)
    step, alpha = (torch.full((4,), 0.1), torch.full((2,), 2.0)) if per_channel else (0.1, 2.0)
    quantizer = fnn.FakeQuantize(step, quant_min=-8, quant_max=7, dim=-1 if per_channel else None, learnable=("scale",))
    spike = fnn.ATanSpike(alpha=alpha, learnable=("alpha",))
    return nn.Sequential(nn.Linear(3, 4), quantizer, fnn.soft.Abs(0.5), nn.Linear(4, 2), spike)


def data(samples=5):
    g = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, generator=g), torch.randn(samples, 2, generator=g)


def mean_square(output, target):
    return (output - target).square().mean()


def flat_loss(model, X, Y):
    """The loss as a function of all parameters in one vector, and that vector."""
    parameters = dict(model.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    def loss(vector):
        parts = vector.split(sizes)
        given = {name: part.view_as(p) for (name, p), part in zip(parameters.items(), parts, strict=True)}
        return mean_square(functional_call(model, given, (X,)), Y)

    return loss, torch.cat([p.detach().flatten() for p in parameters.values()])


def gradient(loss, model):
    """The gradient by plain autograd, as one vector."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, tuple(model.parameters()), retain_graph=True)])


def gradient_of(model, x, y):
    return gradient(mean_square(model(x), y), model)


def jacobian_of(model, X):
    """The Jacobian of all outputs of all samples by all parameters, as a matrix."""
    named = {name: p.detach() for name, p in model.named_parameters()}
    parts = jacrev(lambda p: functional_call(model, p, (X,)))(named)
    return torch.cat([j.reshape(model(X).numel(), -1) for j in parts.values()], 1)


def loader(X, Y):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=2)


def test_opacus():
    """Opacus finds the per-sample gradients of learned steps and slopes, equal to those of a loop."""
    opacus = package("opacus")
    model, (X, Y) = network(), data()
    private = opacus.GradSampleModule(copy.deepcopy(model), loss_reduction="mean")
    mean_square(private(X), Y).backward()
    found = torch.cat([p.grad_sample.reshape(len(X), -1) for p in private.parameters()], 1)
    assert_close(found, torch.stack([gradient_of(model, x[None], y[None]) for x, y in zip(X, Y, strict=True)]))


@pytest.mark.parametrize(
    ("learn", "how"), [(False, {}), (True, {}), (True, {"asymmetric": True, "outputs": 4, "biases": True})], ids=str
)
def test_opacus_of_a_quantized_model(learn, how):
    """Quantizers belong to the layer, so scales that learn have per-sample gradients, and fixed ones do not matter."""
    opacus = package("opacus")
    torch.manual_seed(0)
    X, Y = torch.randn(5, 6), torch.randn(5, 3)
    made = lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3))  # noqa: E731
    model = fullgrad.nn.quantize_(made(), 4, 4, [X], learn=learn, **how)
    plain = fullgrad.nn.quantize_(made(), 4, 4, learn=learn, state=model.state_dict(), **how)
    mean_square(opacus.GradSampleModule(model, loss_reduction="mean")(X), Y).backward()
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(learned) == 3 + (4 if learn else 0) + (6 if how else 0)
    for i in range(len(X)):
        plain.zero_grad()
        mean_square(plain(X[i : i + 1]), Y[i : i + 1]).backward()
        for name, p in learned.items():
            assert_close(p.grad_sample[i], dict(plain.named_parameters())[name].grad)


@pytest.mark.parametrize("operator", ["HessianLinearOperator", "GGNLinearOperator"])
def test_curvlinops(operator):
    """Curvature, differentiated twice through declared gradients, is that of torch.func."""
    curvlinops = package("curvlinops")
    model, (X, Y) = network(), data()
    found = getattr(curvlinops, operator)(model, nn.MSELoss(), list(model.parameters()), [(X, Y)])
    loss, vector = flat_loss(model, X, Y)
    if operator == "HessianLinearOperator":
        expected = hessian(loss)(vector)
    else:
        jacobian = jacobian_of(model, X)
        expected = jacobian.T @ jacobian * (2 / Y.numel())
    assert_close(found @ torch.eye(len(vector)), expected)
    assert expected.abs().max() > 1e-3


def test_laplace():
    """The precision of a Laplace approximation is the Gauss-Newton matrix plus that of the prior."""
    laplace = package("laplace")
    from laplace.curvature import CurvlinopsGGN

    model, (X, Y) = network(per_channel=True), data()  # it has no Jacobians of parameters without dimensions
    fitted = laplace.Laplace(
        model, "regression", subset_of_weights="all", hessian_structure="full", backend=CurvlinopsGGN, prior_precision=3.0
    )
    fitted.fit(loader(X, Y))
    jacobian = jacobian_of(model, X)
    assert_close(fitted.posterior_precision, jacobian.T @ jacobian + 3 * torch.eye(jacobian.shape[1]))
    mean, variance = fitted(X)
    assert_close(mean, model(X).detach())
    assert (variance.diagonal(dim1=-2, dim2=-1) > 0).all()


def test_torchjd():
    """One backward for several losses stores the Jacobian of a loop."""
    package("torchjd")
    from torchjd.autojac import backward

    model, (X, Y) = network(), data()
    losses = (model(X) - Y).square().mean(0)
    expected = torch.stack([gradient(loss, model) for loss in losses])
    backward(list(losses))
    assert_close(torch.cat([p.jac.reshape(2, -1) for p in model.parameters()], 1), expected)


def test_torchopt():
    """A gradient through two inner steps of gradient descent is that of the steps written out."""
    torchopt = package("torchopt")
    model, (X, Y) = network(), data()
    scale = torch.tensor(0.7, requires_grad=True)
    inner = torchopt.MetaSGD(model, lr=0.1)
    start = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(2):
        inner.step(mean_square(model(scale * X), Y))
    (found,) = torch.autograd.grad(mean_square(model(X), Y), scale)

    plain = network()
    for _ in range(2):
        loss = mean_square(functional_call(plain, start, (scale * X,)), Y)
        gradients = torch.autograd.grad(loss, tuple(start.values()), create_graph=True)
        start = {name: p - 0.1 * g for (name, p), g in zip(start.items(), gradients, strict=True)}
    (expected,) = torch.autograd.grad(mean_square(functional_call(plain, start, (X,)), Y), scale)
    assert expected.abs() > 1e-6
    assert_close(found, expected)


def test_tensordict():
    """An ensemble by vmap over a TensorDict of parameters is a loop over its members, value and gradient."""
    tensordict = package("tensordict")
    models, (X, Y) = [network() for _ in range(3)], data()
    for i, model in enumerate(models):
        for p in model.parameters():
            p.data.mul_(1 + i / 10)
    parameters = tensordict.TensorDict.from_modules(*models, as_module=False)
    empty = copy.deepcopy(models[0]).to("meta")

    def loss(parameters):
        with parameters.to_module(empty):
            return mean_square(empty(X), Y)

    assert_close(vmap(loss)(parameters), torch.stack([mean_square(model(X), Y) for model in models]))
    found = vmap(grad(loss))(parameters.detach())
    for i, model in enumerate(models):
        flat = torch.cat([found[tuple(name.split("."))][i].flatten() for name, _ in model.named_parameters()])
        assert_close(flat, gradient_of(model, X, Y))


def test_backpack():
    """Individual gradients of the layers that BackPACK knows, through operators in between."""
    backpack = package("backpack")
    from backpack.extensions import BatchGrad

    model = nn.Sequential(nn.Linear(3, 4), fnn.Round(), fnn.soft.ReLU(0.5), nn.Linear(4, 2))
    X, Y = data()
    expected = [gradient_of(model, x[None], y[None]) for x, y in zip(X, Y, strict=True)]
    backpack.extend(model)
    loss = backpack.extend(nn.MSELoss())
    with backpack.backpack(BatchGrad()):
        loss(model(X), Y).backward()
    found = torch.cat([p.grad_batch.reshape(len(X), -1) for p in model.parameters()], 1)
    assert_close(found * len(X), torch.stack(expected))


def test_lightning(tmp_path):
    """A module trained by a Trainer ends at the parameters of a plain loop, and comes back from its checkpoint."""
    lightning = package("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, _):
            return mean_square(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = loader(*data(6))
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_progress_bar=False
    )
    trainer.fit(module, batches)

    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in batches:
            optimizer.zero_grad()
            mean_square(plain(x), y).backward()
            optimizer.step()
    again = Module.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    for expected, *found in zip(plain.parameters(), module.parameters(), again.parameters(), strict=True):
        for p in found:
            assert_close(p, expected)
    assert any((p - q).abs().max() > 1e-4 for p, q in zip(plain.parameters(), network().parameters(), strict=True))


def test_captum():
    """Attributions are the declared gradients: at a point, along a path, and per neuron."""
    attr = package("captum.attr")
    model, (X, _) = network(), data()
    declared = vmap(grad(lambda x: model(x)[1]))(X)
    assert_close(attr.Saliency(model).attribute(X, target=1, abs=False), declared)
    assert_close(attr.InputXGradient(model).attribute(X, target=1), X * declared)

    path = attr.IntegratedGradients(model).attribute(X, target=1, n_steps=8, method="riemann_middle")
    along = torch.stack([vmap(grad(lambda x: model(x)[1]))((i + 0.5) / 8 * X) for i in range(8)])
    assert_close(path, X * along.mean(0))

    layer = attr.LayerActivation(model, model[1]).attribute(X)
    assert_close(layer, model[1](model[0](X)))


def test_botorch():
    """A rounded design in an acquisition: value, gradient and optimum of an objective that rounds by our operator."""
    package("botorch")
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.models.transforms.input import InputTransform
    from botorch.optim import optimize_acqf
    from botorch.utils.rounding import RoundSTE

    class Rounded(InputTransform, nn.Module):
        def __init__(self, rounding):
            super().__init__()
            self.rounding = rounding
            self.transform_on_train = self.transform_on_eval = self.transform_on_fantasize = True

        def transform(self, X):
            return self.rounding(4 * X) / 4

    X = torch.rand(8, 2, generator=torch.Generator().manual_seed(0))
    Y = -(X - 0.4).square().sum(1, keepdim=True)

    def acquisition(rounding):
        return LogExpectedImprovement(SingleTaskGP(X, Y, input_transform=Rounded(rounding)), best_f=Y.max())

    ours, theirs = acquisition(fullgrad.round), acquisition(RoundSTE.apply)
    points = torch.rand(5, 1, 2, generator=torch.Generator().manual_seed(1), requires_grad=True)
    values = [f(points) for f in (ours, theirs)]
    gradients = [torch.autograd.grad(v.sum(), points)[0] for v in values]
    assert_close(*values)
    assert_close(*gradients)
    assert gradients[0].abs().max() > 1e-4

    torch.manual_seed(0)
    best, value = optimize_acqf(ours, torch.tensor([[0.0, 0.0], [1.0, 1.0]]), q=1, num_restarts=4, raw_samples=64)
    grid = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0))[:, None] / 4
    assert_close(value.exp(), ours(grid).max().exp(), rtol=0.05, atol=1e-6)
    assert ((best >= 0) & (best <= 1)).all()


def test_evotorch():
    """A batched search in torch.func: fitnesses of populations by vmap, and a relaxed ranking of them by gradients."""
    package("evotorch")
    from evotorch.algorithms.functional import cem, cem_ask, cem_tell
    from evotorch.decorators import rowwise
    from evotorch.tools.ranking import rank as published

    @rowwise
    def cost(x):
        return (fullgrad.round(x) - fullgrad.soft.sort(x)[0]).square().sum()

    population = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    assert_close(cost(population), torch.stack([torch.stack([cost(x) for x in row]) for row in population]))

    state = cem(center_init=torch.zeros(3), parenthood_ratio=0.5, objective_sense="min", stdev_init=1.0)
    torch.manual_seed(0)
    before = cost(torch.zeros(1, 3) + 0.5).item()
    for _ in range(20):
        found = cem_ask(state, popsize=20)
        state = cem_tell(state, found, cost(found))
    assert cost(state.center[None]).item() < before

    fitnesses = cost(population)[0]
    hard = published(fitnesses, "linear", higher_is_better=True)
    assert_close(hard * (len(fitnesses) - 1), fullgrad.rank_st(fitnesses, descending=False) - 1)


def test_unit_scaling():
    """The scales that unit scaling measures through our modifiers are those through its own."""
    functional = package("unit_scaling.functional")
    x = data()[0].requires_grad_()
    for ours, theirs in ((fullgrad.scale_fwd, functional.scale_fwd), (fullgrad.scale_bwd, functional.scale_bwd)):
        values = [f(x, 3.0) for f in (ours, theirs)]
        gradients = [torch.autograd.grad(v.square().sum(), x)[0] for v in values]
        assert_close(*values)
        assert_close(*gradients)


def test_unit_scaling_analysis():
    """unit scaling's tracker sees our operators as nodes of the graph, and the gradients that each receives and passes on."""
    package("unit_scaling")
    from unit_scaling.transforms import track_scales

    class Model(nn.Module):
        def forward(self, x):
            return fullgrad.scale_bwd(fullgrad.round(x), 3.0).sum()

    x = data()[0].requires_grad_()
    tracked = track_scales(Model())
    tracked(x).backward()
    measured = {str(node.target): node.meta["metrics"] for node in tracked.scales_graph().nodes if "metrics" in node.meta}
    (rounded,) = [m for name, m in measured.items() if "Round" in name]
    (scaled,) = [m for name, m in measured.items() if "Scale" in name]
    assert rounded.fwd.std == pytest.approx(x.round().std().item())
    assert (scaled.bwd.mean_abs, rounded.bwd.mean_abs) == (1, 3)
