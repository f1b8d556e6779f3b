"""Recording: the numbers that a loop over samples finds, in every transform; and what tracking does not change."""

import gc
import json
import math
import weakref

import matplotlib
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import fullgrad
from fullgrad import ModuleScales, ScalePair, ScaleTracker, track_scales
from fullgrad._dispatch import FakeTensorMode
from fullgrad.testing._subject import close, like
from tests.operators import raises

X = like(torch.empty(3, 4, dtype=torch.float64), 0)
DIRECTION = like(X, 1)


def loss(x, pair, stat="std"):
    """A scalar whose gradient at the tracked tensor is 3 sin(x)^2 cos(x)."""
    return (ScaleTracker.track(x, pair, stat).sin() ** 3).sum()


def slope(x):
    return 3 * x.sin() ** 2 * x.cos()


# --- eager ------------------------------------------------------------------------------------------------------------


def test_value_and_gradient_are_recorded(device):
    """The unbiased standard deviation of both; the fields are floats."""
    x = X.clone().to(device).requires_grad_()
    pair = ScalePair()
    loss(x, pair).backward()
    assert type(pair.forward) is float
    assert pair.forward == pytest.approx(X.std().item())
    assert pair.backward == pytest.approx(slope(X).std().item())
    assert pair.tangent is None


def test_no_call_waits_for_the_device():
    """The number stays a tensor until it is read; then it is a float."""
    pair = ScalePair()
    ScaleTracker.apply(X, pair)
    assert isinstance(pair._fields["forward"], torch.Tensor)
    assert isinstance(pair.forward, float)
    assert isinstance(pair._fields["forward"], float)


@pytest.mark.short
@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        ("std", lambda x: x.std()),
        ("rms", lambda x: x.square().mean().sqrt()),
        ("mean_abs", lambda x: x.abs().mean()),
        ("max_abs", lambda x: x.abs().max()),
        (lambda x: x.median(), lambda x: x.median()),
    ],
    ids=["std", "rms", "mean_abs", "max_abs", "median"],
)
def test_statistics(stat, expected):
    """Each statistic is right for value, gradient and tangent, per sample too and compiled."""
    x = X.clone().requires_grad_()
    pair = ScalePair()
    loss(x, pair, stat).backward()
    assert (pair.forward, pair.backward) == pytest.approx((expected(X).item(), expected(slope(X)).item()))
    jvp(lambda x: loss(x, pair, stat), (X,), (DIRECTION,))
    assert pair.tangent == pytest.approx(expected(DIRECTION).item())
    samples, compiled = ScalePair(), ScalePair()
    vmap(lambda x: loss(x, samples, stat))(X)
    close(samples.forward, torch.stack([expected(x) for x in X]))
    torch.compile(lambda x: loss(x, compiled, stat), backend="aot_eager", fullgraph=True)(X)
    assert compiled.forward == pytest.approx(expected(X).item())


@pytest.mark.short
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [[], [2.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_no_scale_is_nan_without_a_warning(values):
    """No elements, one element, NaN and infinity have defined scales."""
    pair = ScalePair()
    ScaleTracker.apply(torch.tensor(values), pair)
    assert math.isnan(pair.forward)
    if values:
        ScaleTracker.apply(torch.tensor(values[0]), pair)
        assert math.isnan(pair.forward)
    for stat, expected in (("rms", 2.0), ("mean_abs", 2.0), ("max_abs", 2.0)):
        ScaleTracker.apply(torch.tensor(values[:1]), pair, stat)
        assert values != [2.0] or pair.forward == expected


def test_half_precision_is_measured_in_float32():
    """Where float16 overflows, the scale is right."""
    pair = ScalePair()
    ScaleTracker.apply(torch.tensor([6e4, -6e4], dtype=torch.float16), pair)
    assert pair.forward == pytest.approx(84838, rel=1e-3)


def test_without_a_gradient_backward_stays_none():
    """The field is None if no gradient has flowed."""
    pair = ScalePair()
    with torch.no_grad():
        ScaleTracker.apply(X.clone().requires_grad_(), pair)
    assert pair.forward is not None
    assert pair.backward is None
    assert str(pair) == f"(-> {pair.forward:.3}, <- n/a)"


def test_two_trackers_share_a_pair():
    """The later call in each pass stays: the outer forward, the inner backward. Two pairs are independent."""
    pair, inner, outer = ScalePair(), ScalePair(), ScalePair()
    x = X.clone().requires_grad_()
    (ScaleTracker.track(2 * ScaleTracker.track(x, pair), pair) ** 2).sum().backward()
    (ScaleTracker.track(2 * ScaleTracker.track(x, inner), outer) ** 2).sum().backward()
    assert pair == ScalePair(outer.forward, inner.backward)
    assert outer.forward == pytest.approx(2 * inner.forward)


def test_several_backwards_and_fan_out():
    """The last gradient stays; several uses of a tensor count as their sum; nothing is added up in the pair."""
    pair = ScalePair()
    x = X.clone().requires_grad_()
    y = ScaleTracker.track(x, pair)
    total = (y**2).sum() + (3 * y).sum()
    total.backward(retain_graph=True)
    assert pair.backward == pytest.approx((2 * X + 3).std().item())
    (5 * total).backward()
    assert pair.backward == pytest.approx(5 * (2 * X).std().item())


def test_checkpoint():
    """The recomputed forward records the same number."""
    for reentrant in (False, True):
        pair = ScalePair()
        x = X.clone().requires_grad_()
        checkpoint(lambda x, pair=pair: loss(x, pair), x, use_reentrant=reentrant).backward()
        assert (pair.forward, pair.backward) == pytest.approx((X.std().item(), slope(X).std().item()))


def test_tracking_is_invisible():
    """The value is the tensor itself; a gradient is handed on as the same numbers."""
    pair = ScalePair()
    x = X.clone().requires_grad_()
    assert ScaleTracker.apply(X, pair).data_ptr() == X.data_ptr()
    loss(x, pair).backward()
    assert torch.equal(x.grad, torch.autograd.grad((x.sin() ** 3).sum(), x)[0])


# --- transforms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_dim", [0, 1, -1])
def test_vmap_of_grad_records_each_sample(in_dim):
    """One number per sample, forward and backward, as a loop finds them."""
    pair, one = ScalePair(), ScalePair()
    vmap(grad(lambda x: loss(x, pair)), in_dims=in_dim)(X)
    loop = []
    for x in X.unbind(in_dim):
        grad(lambda x: loss(x, one))(x)
        loop.append((one.forward, one.backward))
    close(pair.forward, torch.tensor([f for f, _ in loop], dtype=torch.float64))
    close(pair.backward, torch.tensor([b for _, b in loop], dtype=torch.float64))


def test_nested_vmap_records_each_sample_of_each_level():
    """Recorded numbers have the outermost level first, whatever dimension is mapped."""
    batch = like(torch.empty(4, 2, 3, dtype=torch.float64), 5)
    pair = ScalePair()
    vmap(vmap(grad(lambda x: loss(x, pair)), in_dims=1), in_dims=1)(batch)
    close(pair.forward, batch.std(0))
    close(pair.backward, slope(batch).std(0))


def test_what_is_shared_by_the_samples_has_one_number():
    """A tensor that vmap does not map has one value, and a gradient for each sample."""
    weight = X[0]
    pair = ScalePair()
    vmap(grad(lambda w, x: (ScaleTracker.track(w, pair) * x).sum()), in_dims=(None, 0))(weight, X)
    assert pair.forward == pytest.approx(weight.std().item())
    close(pair.backward, X.std(1))


def test_gradient_through_vmap_from_outside():
    """Graphs recorded through vmap, and batched cotangents of both kinds, are recorded."""
    pair = ScalePair()
    x = X.clone().requires_grad_()
    vmap(lambda x: loss(x, pair))(x).sum().backward()
    close(pair.backward, slope(X).std(1))
    cotangents = like(torch.empty(5, 3, 4, dtype=torch.float64), 8)
    torch.autograd.grad(ScaleTracker.track(x, pair), x, cotangents, is_grads_batched=True)
    close(pair.backward, cotangents.flatten(1).std(1))
    jacrev(lambda x: ScaleTracker.track(x, pair))(X[0])
    close(pair.backward, torch.full((4,), 0.5, dtype=torch.float64))


def test_jvp_records_the_tangent():
    """jvp records the value and the tangent: per sample under vmap; the innermost when nested."""
    pair = ScalePair()
    jvp(lambda x: loss(x, pair), (X,), (DIRECTION,))
    assert (pair.forward, pair.tangent) == pytest.approx((X.std().item(), DIRECTION.std().item()))
    assert str(pair) == f"(-> {X.std():.3}, <- n/a, ~ {DIRECTION.std():.3})"
    vmap(lambda x, t: jvp(lambda x: loss(x, pair), (x,), (t,)))(X, DIRECTION)
    close(pair.tangent, DIRECTION.std(1))
    jvp(lambda x: jvp(lambda x: loss(x, pair), (x,), (DIRECTION,))[1], (X,), (7 * X,))
    assert pair.tangent == pytest.approx(DIRECTION.std().item())


def test_hessian_leaves_the_first_gradient():
    """Forward over reverse records the gradient; the Hessian itself is right."""
    pair = ScalePair()
    x = X[0]
    close(hessian(lambda x: loss(x, pair))(x), hessian(lambda x: (x.sin() ** 3).sum())(x))
    assert pair.forward == pytest.approx(x.std().item())
    assert torch.as_tensor(pair.backward).flatten()[0].item() == pytest.approx(slope(x).std().item())


# --- tracers ----------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_records(backend):
    """Forward, backward and forward mode are one graph each and record per sample, at every call, not only the first."""
    pair, samples, forward = ScalePair(), ScalePair(), ScalePair()
    compile = lambda f: torch.compile(f, backend=backend, fullgraph=True)  # noqa: E731
    plain = compile(lambda x: loss(x, pair))
    per_sample = compile(vmap(grad(lambda x: loss(x, samples))))
    tangents = compile(lambda x, t: jvp(lambda x: loss(x, forward), (x,), (t,)))
    for factor in (1.0, 3.0):
        x = factor * X
        leaf = x.clone().requires_grad_()
        plain(leaf).backward()
        assert (pair.forward, pair.backward) == pytest.approx((x.std().item(), slope(x).std().item()))
        per_sample(x)
        close(samples.forward, x.std(1))
        close(samples.backward, slope(x).std(1))
        tangents(x, factor * DIRECTION)
        assert (forward.forward, forward.tangent) == pytest.approx((x.std().item(), factor * DIRECTION.std().item()))


def test_compiled_code_takes_any_pair():
    """Pairs come and go without a compilation for each."""
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    pairs = [ScalePair() for _ in range(12)]
    for i, pair in enumerate(pairs):
        compiled(X * i, pair)
    assert [pair.forward for pair in pairs] == pytest.approx([i * X.std().item() for i in range(12)])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_pair_made_in_compiled_code_is_refused():
    """A record of such a pair would have no place to go."""

    def inside(x):
        pair = ScalePair()
        return ScaleTracker.track(x, pair), pair

    with pytest.raises(Exception, match="must be made outside of compiled code"):
        torch.compile(inside, backend="eager", fullgraph=True)(X)


def test_traced_graphs_record_when_they_run():
    """make_fx and export: the graph holds the record, and no number of the trace."""
    pair = ScalePair()
    for tracing in ("real", "fake", "symbolic"):
        graph = make_fx(grad(lambda x: loss(x, pair)), tracing_mode=tracing)(X)
        pair.forward = pair.backward = None
        graph(2 * X)
        assert (pair.forward, pair.backward) == pytest.approx((2 * X.std().item(), slope(2 * X).std().item()))

    class Module(nn.Module):
        def forward(self, x):
            return ScaleTracker.track(x, pair)

    for strict in (False, True):
        program = torch.export.export(Module(), (X,), strict=strict)
        pair.forward = None
        program.module()(3 * X)
        assert pair.forward == pytest.approx(3 * X.std().item())


def test_tensors_without_data_leave_no_number():
    """Neither a fake tensor nor a meta tensor gets into a pair; reading says why."""
    pair = ScalePair()
    ScaleTracker.apply(X.to("meta"), pair)
    with pytest.raises(RuntimeError, match="recorded from a tensor without data"):
        _ = pair.forward
    mode = FakeTensorMode()
    fake = mode.from_tensor(X)
    pair = ScalePair()
    for context in (mode, torch.no_grad()):
        with context:
            ScaleTracker.apply(fake, pair)
        with pytest.raises(RuntimeError, match="recorded from a tensor without data"):
            _ = pair.forward


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_pairs_compare_print_and_export():
    """Pairs compare by their fields, print three digits and the first three samples, and export plain numbers."""
    assert ScalePair(1.0, 2.0) == ScalePair(1.0, 2.0) != ScalePair(1.0)
    assert ScalePair(1.0) != 1.0
    assert str(ScalePair(1.2345)) == "(-> 1.23, <- n/a)"
    assert repr(ScalePair(1.5, tangent=2.0)) == "ScalePair(forward=1.5, tangent=2.0)"
    samples = ScalePair(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert str(samples) == "(-> [1.0, 2.0, 3.0, …], <- n/a)"
    assert json.loads(json.dumps(samples.to_dict())) == {"forward": [1, 2, 3, 4], "backward": None, "tangent": None}


@pytest.mark.long
def test_pair_keeps_nothing_alive_and_nothing_keeps_it():
    """The tensor, the graph and the pair do not outlive their last user."""
    pair = ScalePair()
    x = X.clone().requires_grad_()
    y = ScaleTracker.track(x, pair)
    y.sum().backward()
    dead = [weakref.ref(x), weakref.ref(y)]
    del x, y
    gc.collect()
    assert [r() for r in dead] == [None, None]
    dead_pair = weakref.ref(pair)
    del pair
    gc.collect()
    assert dead_pair() is None


@pytest.mark.short
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ScaleTracker.apply(1.0, ScalePair()), TypeError, "`t` must be a tensor, got a value of type float"),
        (lambda: ScaleTracker.apply(torch.arange(3), ScalePair()), TypeError, "must be a floating tensor, got dtype torch.int64"),
        (lambda: ScaleTracker.apply(X, [0, 0]), TypeError, "`pair` must be a ScalePair, got a value of type list"),
        (lambda: ScaleTracker.apply(X, ScalePair(), "mean"), ValueError, "`stat` must be one of 'std', .*, got 'mean'"),
        (lambda: ScaleTracker.apply(X, ScalePair(), lambda x: x), ValueError, r"without dimensions, got shape \(3, 4\)"),
        (lambda: ScaleTracker.apply(X, ScalePair(), lambda x: 1.0), ValueError, "got a value of type float"),
        (lambda: track_scales(3).__enter__(), TypeError, "`module` must be a module, got a value of type int"),
        (lambda: track_scales(nn.ReLU(), "mean").__enter__(), ValueError, "track_scales: `stat` must be one of"),
    ],
)
def test_errors_name_the_argument_the_rule_and_what_was_found(call, error, message):
    """Bad arguments raise before anything is recorded."""
    with raises(error, match=message):
        call()


def test_agrees_with_unit_scaling():
    """The published tracker records the same numbers and prints them the same way."""
    published = pytest.importorskip("unit_scaling.utils")
    for values in (X, X.float(), X[:, :1], 100 * X):
        ours, theirs = ScalePair(), published.ScalePair()
        for tracker, pair in ((ScaleTracker, ours), (published.ScaleTracker, theirs)):
            x = values.clone().requires_grad_()
            (tracker.track(x, pair).sin() ** 3).sum().backward()
        assert (ours.forward, ours.backward) == pytest.approx((theirs.forward, theirs.backward), rel=1e-6)
        assert str(ours) == str(theirs)


# --- modules ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A quantized block with an in-place module, a submodule that is called twice, and a dict of tensors and numbers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.linear(fullgrad.round(4 * x) / 4))
        return {"y": self.act(self.linear(y)), "count": torch.tensor(3), "no": None}


class Split(nn.Module):
    """Returns a tuple in a tuple, one part of which is unused."""

    def forward(self, x):
        return x.sin(), (x.cos(), x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.split = Split()

    def forward(self, x):
        sine, (cosine, _) = self.split(self.block(x)["y"])
        return (sine * cosine).sum(-1)


def _net():
    torch.manual_seed(0)
    return Net().double()


def test_every_output_is_tracked():
    """Structures of any kind are recorded in order of execution, with their tensors' numbers; gradients are unchanged."""
    net = _net()
    expected = torch.autograd.grad(net(X).sum(), [*net.parameters()])
    with track_scales(net) as scales:
        actual = torch.autograd.grad(net(X).sum(), [*net.parameters()])
    close(actual, expected)
    names = ["block.linear", "block.act", "block['y']", "split[0]", "split[1][0]", "split[1][1]", "(all)"]
    assert list(scales) == names
    linear = net.block.linear(net.block.linear(fullgrad.round(4 * X) / 4).relu())
    assert scales["block.linear"].forward == pytest.approx(linear.std().item())
    assert scales["block['y']"].forward == pytest.approx(linear.relu().std().item())
    assert scales["split[1][1]"].backward is None
    assert scales["(all)"].backward == pytest.approx(0.0)


def test_module_is_left_as_it_was_found():
    """A module is unchanged after an exception, and with a forward of its instance, too."""
    net = _net()
    net.block.forward = own = lambda x: {"y": 1 + x}
    before = {name: dict(module.__dict__) for name, module in net.named_modules()}
    with pytest.raises(TypeError), track_scales(net):
        net("not a tensor")
    assert {name: dict(module.__dict__) for name, module in net.named_modules()} == before
    assert net.block.forward is own


def test_modules_under_vmap_record_each_sample():
    """Per-sample gradients through functional_call: one number per sample, as a loop over the samples finds them."""
    net = _net()
    parameters = dict(net.named_parameters())

    def value(p, x):
        return functional_call(net, p, (x.unsqueeze(0),)).sum()

    with track_scales(net) as scales:
        vmap(grad(value), in_dims=(None, 0))(parameters, X)
    loop = []
    for x in X:
        with track_scales(net) as one:
            grad(value)(parameters, x)
        loop.append([one["block.linear"].forward, one["block.linear"].backward, one["split[0]"].forward])
    pair = scales["block.linear"]
    close(torch.stack([pair.forward, pair.backward, scales["split[0]"].forward], 1), torch.tensor(loop, dtype=torch.float64))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_modules(backend):
    """Modules compiled before the context and inside it are tracked; torch's compiled code is not reused without tracking."""
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)).double() for _ in range(2)]
    compiled = [torch.compile(m, backend=backend, fullgraph=True) for m in layers]
    compiled[0](X)
    for module, call in zip(layers, compiled, strict=True):
        with track_scales(module) as expected:
            module(X).square().sum().backward()
        for tracked in (module, call):
            with track_scales(tracked) as scales:
                call(X).square().sum().backward()
            assert list(scales) == ["0", "1", "2", "(all)"]
            for name, pair in scales.items():
                assert (pair.forward, pair.backward) == pytest.approx((expected[name].forward, expected[name].backward))
        scales_before = scales.to_dict()
        call(7 * X)
        assert scales.to_dict() == scales_before


def test_compiled_record_at_the_address_of_a_freed_one(monkeypatch):
    """Code that was compiled for a freed record does not serve a new one at its address."""
    module = nn.Linear(4, 2).double()
    call = torch.compile(module, backend="aot_eager", fullgraph=True)
    with track_scales(call) as scales:
        call(X)
    assert "(all)" in scales
    address = id(scales)
    del scales
    gc.collect()
    others = []
    while not (others and id(others[-1]) == address) and len(others) < 100_000:
        others.append(ModuleScales())
    monkeypatch.setattr("fullgrad.tracking._track_scales.ModuleScales", others.pop)
    with track_scales(module) as scales:
        call(X)
    assert list(scales) == ["(all)"]


@pytest.mark.long
def test_ten_thousand_steps_do_not_grow():
    """A loop inside the context keeps the last step only: as many tensors and objects at its end as near its start."""
    layer = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    x = torch.ones(1, 2)
    counts = []
    with track_scales(layer) as scales:
        for step in range(10_000):
            layer(x).sum().backward()
            if step in (100, 9_999):
                gc.collect()
                counts.append(len(gc.get_objects()))
    assert len(scales) == 3
    assert counts[1] <= counts[0] + 50, counts


def test_scales_print_export_and_plot(tmp_path):
    """Scales print a table, export plain numbers and plot a picture, with and without samples."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    with track_scales(net, stat="rms") as scales:
        net(X).sum().backward()
    lines = str(scales).splitlines()
    assert lines[0].split() == ["module", "forward", "backward"]
    assert len({len(line) for line in lines}) == 1
    assert set(json.loads(json.dumps(scales.to_dict()))) == {"0", "1", "(all)"}
    with track_scales(net) as samples:
        vmap(lambda x, t: jvp(net, (x,), (t,)))(X, DIRECTION)
    assert "tangent" in str(samples)
    for record, fields in ((scales, ["forward", "backward"]), (samples, ["forward", "tangent"])):
        axes = record.plot()
        assert [line.get_label() for line in axes.lines] == fields
        assert axes.get_yscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "(all)"]
        axes.figure.savefig(tmp_path / "scales.png")
    axes = matplotlib.figure.Figure().subplots()
    assert scales.plot(axes, names=["1", "0"]) is axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "0"]
    assert repr(scales) == str(scales)
    with pytest.raises(KeyError, match=r"'2' was not recorded; there are '0', '1', '\(all\)'"):
        scales.plot(names=["2"])


def test_plot_without_matplotlib_says_what_to_install(monkeypatch):
    """The error names the extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with track_scales(nn.ReLU()) as scales:
        pass
    with pytest.raises(ImportError, match=r"fullgrad\[plot\]"):
        scales.plot()
