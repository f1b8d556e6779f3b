"""`jvp`: torch's value and tangent, and the gradient of the value alone."""

import contextlib

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import fullgrad
from fullgrad.forward import jvp
from tests.forward.memory import held


def layer(dropout=0.0):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True).double()


def point(transposed=False):
    torch.manual_seed(1)
    shape = (2, 3, 8, 5) if transposed else (2, 3, 5, 8)
    x, v = torch.randn(shape, dtype=torch.float64)
    return (x.mT, v.mT) if transposed else (x, v)


def loss(value, tangent):
    return (value - tangent.sin()).square().sum()


def gradients(net, f, x, v, track):
    """The gradients of torch's own jvp, whose tangent is detached or not, by the parameters."""
    torch.manual_seed(2)
    with fullgrad.completing():
        value, tangent = torch.func.jvp(f, (x,), (v,))
    return torch.autograd.grad(loss(value, tangent if track else tangent.detach()), list(net.parameters()))


def ours(net, f, x, v, track):
    torch.manual_seed(2)
    return torch.autograd.grad(loss(*jvp(f, (x,), (v,), track)), list(net.parameters()))


CHECKPOINTS = {
    "plain": lambda net: net,
    "fullgrad": lambda net: lambda x: fullgrad.checkpoint(net, x),
    "torch": lambda net: lambda x: torch_checkpoint(net, x, use_reentrant=False),
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_value_and_tangent_share_one_dropout_mask(kind, track, transposed):
    net, (x, v) = layer(dropout=0.4), point(transposed)
    with fullgrad.adopting(checkpoint=True):
        found = ours(net, CHECKPOINTS[kind](net), x, v, track)
    torch.testing.assert_close(found, gradients(net, net, x, v, track))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_torchs_jvp_of_a_checkpoint_has_the_mask_of_the_plain_call(kind, transposed):
    net, (x, v) = layer(dropout=0.4), point(transposed)
    with fullgrad.completing(), fullgrad.adopting(checkpoint=True):
        found = gradients(net, CHECKPOINTS[kind](net), x, v, True)
    torch.testing.assert_close(found, gradients(net, net, x, v, True))


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_value_and_tangent_share_one_dropout_mask_under_transforms(kind, p):
    net, (x, v) = layer(dropout=p), point()
    params = {k: w.detach() for k, w in net.named_parameters()}
    call = lambda params, x: functional_call(net, params, (x,))  # noqa: E731

    def ours(params):
        torch.manual_seed(2)
        return loss(*jvp(lambda x: CHECKPOINTS[kind](lambda x: call(params, x))(x), (x,), (v,)))

    def by_torch(params):
        torch.manual_seed(2)
        value, tangent = torch.func.jvp(lambda x: call(params, x), (x,), (v,))
        return loss(value, tangent.detach())

    found = grad(ours)(params)
    with fullgrad.completing():
        wanted = grad(by_torch)(params)
    torch.testing.assert_close(found, wanted)


DROPOUTS = {
    "dropout": nn.functional.dropout,
    "inplace": lambda x, p: nn.functional.dropout(x.clone(), p, inplace=True),
    "alpha": lambda x, p: nn.functional.alpha_dropout(x, p, training=True),
    "alpha inplace": lambda x, p: nn.functional.alpha_dropout(x.clone(), p, training=True, inplace=True),
}


@pytest.mark.parametrize("transform", [lambda f, w: f(w), lambda f, w: grad(f, has_aux=True)(w)[1]])
@pytest.mark.parametrize("kind", DROPOUTS)
def test_a_dropout_of_a_transposed_tensor_has_one_mask(kind, transform):
    def both(w):
        torch.manual_seed(0)
        value, tangent = jvp(lambda x: DROPOUTS[kind]((w * x).mT, 0.5), (torch.ones(6, 7),), (torch.ones(6, 7),))
        return value.sum(), (value, tangent)

    found = transform(both, torch.tensor(2.0))
    value, tangent = found[1] if isinstance(found[1], tuple) else found
    assert torch.equal(value == value.max(), tangent != 0)


def test_training_by_attention_with_a_mask_and_autocast():
    net, (x, v) = layer().float(), point()
    x, v = x.float(), v.float()
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    f = lambda x: net(x, mask, is_causal=True)  # noqa: E731
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ours(net, f, x, v, False)
        wanted = gradients(net, f, x, v, False)
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
    assert all(g.abs().sum() > 0 for g in found)


@pytest.mark.parametrize("transform", [grad, lambda f: vmap(grad(f)), lambda f: vmap(lambda w: torch.func.jvp(f, (w,), (w,))[1])])
def test_the_tangent_is_a_constant_under_transforms(transform):
    w = torch.tensor([0.3, 0.7], dtype=torch.float64)
    x = torch.tensor(0.4, dtype=torch.float64)

    def product(w):
        value, tangent = jvp(lambda x: torch.sin(w * x), (x,), (torch.ones_like(x),))
        return (value * tangent).sum()

    def by_hand(w):
        return (torch.sin(w * x) * (w * torch.cos(w * x)).detach()).sum()

    w = w[0] if transform is grad else w
    torch.testing.assert_close(transform(product)(w), transform(by_hand)(w))


def test_arguments_and_results_are_trees():
    def f(a, b):
        return {"y": a["x"] * b[0], "n": a["x"].argmax(), "k": 3}

    x, c, v = torch.tensor([1.0, 2.0]), torch.tensor(3.0), torch.tensor([1.0, 0.5])
    value, tangent = jvp(f, ({"x": x}, [c]), ({"x": v}, [None]))
    torch.testing.assert_close(value, {"y": x * c, "n": torch.tensor(1), "k": 3})
    torch.testing.assert_close(tangent, {"y": v * c, "n": None, "k": None})


@pytest.mark.parametrize("track", [False, True])
def test_results_may_be_none(track):
    attention = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 4)
    (value, weights), (_, slope) = jvp(lambda x: attention(x, x, x, need_weights=False), (x,), (x,), track)
    torch.testing.assert_close(value, attention(x, x, x)[0])
    assert weights is None
    assert slope is None
    assert jvp(lambda x: (None, x.argmax(), x * 2), (x,), (x,), track)[0][:2] == (None, x.argmax())


def test_parameters_move_by_functional_call():
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    p = {k: p.detach() for k, p in net.named_parameters()}
    f = lambda p: functional_call(net, p, (x,))  # noqa: E731
    torch.testing.assert_close(jvp(f, (p,), (p,)), torch.func.jvp(f, (p,), (p,)))


def test_the_bytes_held_are_those_of_a_plain_forward():
    net, x, v = layer().float(), torch.randn(64, 32, 8), torch.randn(64, 32, 8)

    plain, _ = held(lambda: net(x))
    mine, _ = held(lambda: jvp(net, (x,), (v,)))
    tracked, _ = held(lambda: jvp(net, (x,), (v,), track_tangent=True))
    assert mine <= 1.1 * plain
    assert mine <= 0.6 * tracked


@pytest.mark.long
@pytest.mark.parametrize("attends", [False, True])
def test_four_steps_of_training_in_compiled_code(attends):
    """Attention and norms have their forward mode from `completing`, around what is compiled."""

    def trained(step):
        net = layer() if attends else nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double()
        torch.manual_seed(0)
        optimizer, x = torch.optim.SGD(net.parameters(), 0.1), torch.randn(2, 5, 8, dtype=torch.float64)
        for _ in range(4):
            optimizer.zero_grad()
            step(net, x).backward()
            optimizer.step()
        return list(net.parameters())

    def step(net, x):
        return loss(*jvp(net, (x,), (x.cos(),))) / 100

    def by_torch(net, x):
        value, tangent = torch.func.jvp(net, (x,), (x.cos(),))
        return loss(value, tangent.detach()) / 100

    with fullgrad.completing():
        torch.manual_seed(0)
        wanted = trained(by_torch)
        for found in (step, torch.compile(step, backend="aot_eager", fullgraph=not attends)):
            torch.manual_seed(0)
            torch.testing.assert_close(trained(found), wanted)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
def test_a_tangent_with_derivatives_in_compiled_code(is_open):
    """It is traced inside of `completing`; outside the graph breaks, since torch's own second derivatives of a norm are wrong."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    step = lambda x: loss(*jvp(net, (x,), (x.cos(),), track_tangent=True))  # noqa: E731
    wanted = torch.autograd.grad(step(x), list(net.parameters()))
    with fullgrad.completing() if is_open else contextlib.nullcontext():
        compiled = torch.compile(step, backend="aot_eager", fullgraph=is_open)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), list(net.parameters())), wanted)


@pytest.mark.long
def test_a_tangent_with_derivatives_says_what_a_whole_graph_needs():
    step = lambda x: jvp(torch.sin, (x,), (x,), track_tangent=True)  # noqa: E731
    with pytest.raises(RuntimeError, match=r"fullgrad\.completing\(\) is open around"):
        torch.compile(step, backend="aot_eager", fullgraph=True)(torch.ones(2))


@pytest.fixture
def alone():
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return loss(*jvp(self.net, (x,), (x.cos(),))) / 1000


def sharded(net):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net, mesh=init_device_mesh("cpu", (1,)))


DISTRIBUTED = {
    "around the model": lambda net: Loss(nn.parallel.DistributedDataParallel(net)),
    "around the loss": lambda net: nn.parallel.DistributedDataParallel(Loss(net)),
    "in shards": lambda net: Loss(sharded(net)),
}


if torch.__version__.startswith("2.11."):  # whose FSDP2 raises in forward mode: docs/families/forward.md
    del DISTRIBUTED["in shards"]


@pytest.mark.parametrize("kind", DISTRIBUTED)
@pytest.mark.long(but=1)
@pytest.mark.filterwarnings("ignore")
def test_four_steps_of_distributed_training(kind, alone):
    def trained(wrapped):
        net = layer(dropout=0.3)
        step, optimizer = wrapped(net), torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            step(point()[0]).backward()
            optimizer.step()
        return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]

    torch.testing.assert_close(trained(DISTRIBUTED[kind]), trained(Loss))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: jvp(3, (x,), (x,)), TypeError),
        (lambda x: jvp(torch.sin, x, x), TypeError),
        (lambda x: jvp(torch.sin, (x,), (x[0],)), ValueError),
        (lambda x: jvp(torch.sin, (x,), (x.double(),)), TypeError),
        (lambda x: jvp(torch.sin, (x,), ([x],)), ValueError),
        (lambda x: jvp(torch.sin, (x,), (None,)), ValueError),
        (lambda x: jvp(torch.sin, (x,), (x,), "yes"), TypeError),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(call, error):
    with pytest.raises(error, match=r"^jvp: "):
        call(torch.ones(2))
