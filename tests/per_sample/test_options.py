"""Options of the functions of per-sample gradients, what surrounds them, and their errors."""

import contextlib
import gc
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, hessian, jvp, vmap
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import fullgrad
from fullgrad import per_sample, quantizers
from fullgrad.per_sample import _contributions
from tests.per_sample.models import F64, MODELS, Model, gradients, in_rows, indices, numbers

FUNCTIONS = {
    "norms": per_sample.norms,
    "clipped": lambda loss, **k: per_sample.clipped(loss, 1.0, **k),
    "sum_of_squares": per_sample.sum_of_squares,
    "gramian": per_sample.gramian,
}
W, X = numbers(4, 3), numbers(5, 3)


def f(w, x):
    return F.linear(torch.tanh(F.linear(x, w)), w.T).square().sum()


def norm(w, x):
    return grad(f)(w, x).norm()


def plain(w, X):
    return vmap(norm, (None, 0))(w, X)


# --- Around the call --------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize(
    "transform",
    [
        lambda n: lambda w, X: grad(lambda w: n(w, X).sum())(w),
        lambda n: lambda w, X: grad(lambda X: n(w, X).sum())(X),
        lambda n: lambda w, X: hessian(lambda w: n(w, X).sum())(w),
        lambda n: lambda w, X: jvp(n, (w, X), (w.cos(), X.sin()))[1],
        lambda n: lambda w, X: vmap(n, (0, None))(torch.stack([w, 2 * w]), X),
        lambda n: lambda w, X: vmap(n, (None, 0))(w, torch.stack([X, 2 * X])),
        lambda n: lambda w, X: vmap(grad(lambda w: n(w, X).sum()))(torch.stack([w, 2 * w])),
        lambda n: lambda w, X: torch.func.functionalize(n)(w, X),
    ],
)
def test_transforms_of_the_norms(transform):
    """Norms are differentiated, batched and functionalized as those of vmap(grad), also of quantized weights and embeddings."""
    assert_close(transform(per_sample.norms(f))(W, X), transform(plain)(W, X), rtol=1e-10, atol=1e-12)


def test_derivatives_in_eager_code():
    """Norms of parameters that require a gradient have one, as has a clipped sum, and nothing gets a `.grad`."""
    w, x = W.clone().requires_grad_(), X.clone().requires_grad_()
    norms = per_sample.norms(f)(w, x)
    expected = torch.autograd.grad(plain(w, x).sum(), (w, x))
    assert_close(torch.autograd.grad(norms.sum(), (w, x)), expected)
    of_sum = lambda w, c: per_sample.clipped(f, c)(w, X)[0].sin().sum()  # noqa: E731
    bound = torch.tensor(0.5, dtype=F64, requires_grad=True)
    factors = lambda w, c: (c / plain(w, X)).clamp(max=1)  # noqa: E731
    expected = torch.tensordot(factors(w, bound), vmap(grad(f), (None, 0))(w, X), 1).sin().sum()
    assert_close(torch.autograd.grad(of_sum(w, bound), (w, bound)), torch.autograd.grad(expected, (w, bound)))
    assert w.grad is x.grad is None


def test_a_tensor_that_the_loss_captures_has_a_derivative():
    """It is not lost, though neither parameters nor the batch require a gradient."""
    c = torch.tensor(2.0, dtype=F64, requires_grad=True)
    norms = per_sample.norms(lambda w, x: f(w, c * x))(W, X)
    expected = vmap(lambda x: grad(lambda w: f(w, c * x))(W).norm())(X)
    assert_close(torch.autograd.grad(norms.sum(), c), torch.autograd.grad(expected.sum(), c))


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, fullgrad.completing, fullgrad.adopting, torch.enable_grad]
)
def test_contexts(context):
    """In each context the numbers are the same, and without grad mode no graph is kept."""
    w = W.clone().requires_grad_()
    with context():
        found = per_sample.norms(f)(w, X), per_sample.clipped(f, 0.5)(w, X), per_sample.gramian(f)(w, X)
    assert_close(found[0], plain(W, X))
    assert all(v.requires_grad is (context not in (torch.no_grad, torch.inference_mode)) for v in tree_leaves(found))
    assert not per_sample.norms(f)(W, X).requires_grad


def test_nothing_is_remembered():
    """One function serves losses whose structure changes, other shapes, and after an error."""
    uses = [1]

    def loss(p, x):
        if not uses:
            raise RuntimeError("the loss fails")
        return sum((F.linear(x, p["w"]).sum() * k).sin() for k in uses) + ((p["b"] * x).sum() if len(uses) > 2 else 0)

    norms = per_sample.norms(loss)
    for now, n, size in (([1], 3, 5), ([1, 2], 4, 2), ([], 3, 5), ([1, 2, 3], 2, 9), ([1], 3, 5)):
        uses[:] = now
        made = Model(loss, {"w": numbers(3, n), "b": numbers(n)}, (numbers(size, n),))
        if not now:
            with pytest.raises(RuntimeError, match="the loss fails"):
                norms(made.params, *made.batch)
            continue
        assert_close(norms(made.params, *made.batch), in_rows(gradients(made)).norm(dim=1))


def test_it_keeps_nothing_alive_and_leaves_its_arguments_alone():
    """What the loss writes into a parameter does not reach the caller's."""

    def loss(w, x):
        w.mul_(2)
        return (x @ w).sum().sin()

    w = W.T.clone()
    before, norms = w.clone(), per_sample.norms(loss)(w, X)
    assert torch.equal(w, before)
    assert_close(norms, plain_norms(lambda w, x: (x @ (2 * w)).sum().sin(), w, X))


def plain_norms(loss, params, *batch, **options):
    return in_rows(gradients(Model(loss, params, batch), **options)).norm(dim=1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["norms", "clipped"])
def test_compiled_code(name):
    """In one graph, by the gradients."""
    run = FUNCTIONS[name](f)
    assert_close(torch.compile(run, backend="eager", fullgraph=True)(W, X), run(W, X))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_call_leaves_anything_behind(name):
    """Parameters that require a gradient, a backward through the result, chunks, and losses that fail: all is freed."""
    w, x = W.clone().requires_grad_(), numbers(12, 2, 3)
    run, fails = FUNCTIONS[name](f), FUNCTIONS[name](lambda w, x: f(w, x).reshape(2))

    def alive(call):
        call()  # once before, for what torch and this package remember
        gc.collect()
        gc.freeze()  # what other tests have left is not looked at
        before = len(gc.get_objects())
        for _ in range(3):
            call()
        gc.collect()
        return len(gc.get_objects()) - before

    def backward():
        torch.autograd.grad(sum(v.sum() for v in tree_leaves(run(w, x))), w)

    def failing():
        with contextlib.suppress(RuntimeError):
            fails(w, x)

    assert [alive(call) < 3 for call in (lambda: run(w, x), backward, failing)] == [True] * 3


# --- Options ----------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_dims_chunks_and_aux(name):
    """Batches in any dimension and in trees, whatever the size of chunks; what the loss returns besides is passed on."""

    def loss(p, batch, scale):
        y = F.linear(batch["x"], p[0]) * scale
        return y.square().sum() + p[1] * batch["i"], {"y": y, "i": batch["i"]}

    params, batch = [numbers(4, 3), numbers(1)[0]], {"x": numbers(3, 20), "i": indices(9, 20)}
    first = None
    for options in ({}, {"chunk_size": 3}, {"chunk_size": 1}, {"chunk_size": 50}):
        if name == "gramian" and options:
            continue
        run = FUNCTIONS[name](loss, in_dims=(None, {"x": -1, "i": 0}, None), has_aux=True, **options)
        found, aux = run(params, batch, torch.tensor(2.0, dtype=F64))
        assert_close(aux["y"], 2 * batch["x"].T @ params[0].T)
        assert torch.equal(aux["i"], batch["i"])
        first = found if first is None else first
        assert_close(found, first)
    moved = {"x": batch["x"].T.contiguous(), "i": batch["i"]}
    again = FUNCTIONS[name](lambda p, b: loss(p, b, 2.0)[0])(params, moved)
    assert_close(again, first)


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_random_losses(chunk_size):
    """The same seed draws what vmap(grad) draws, in both passes of nothing: clipped sums are those of the same draws."""

    def loss(w, x):
        return F.dropout(torch.tanh(F.linear(x, w)), 0.5).square().sum()

    for randomness in ("different", "same"):
        torch.manual_seed(0)
        norms = per_sample.norms(loss, randomness=randomness, chunk_size=chunk_size)(W, numbers(20, 3))
        torch.manual_seed(0)
        expected = gradients(Model(loss, W, (numbers(20, 3),)), randomness=randomness, chunk_size=chunk_size)
        assert_close(norms, in_rows(expected).norm(dim=1))
        torch.manual_seed(0)
        sums, before = per_sample.clipped(loss, 0.1, randomness=randomness, chunk_size=chunk_size)(W, numbers(20, 3))
        factors = torch.where(norms > 0.1, 0.1 / norms, 1.0)
        assert_close((sums, before), (torch.tensordot(factors, expected[0], 1), norms))
    with pytest.raises(RuntimeError, match="randomness"):
        per_sample.norms(loss)(W, X)


@pytest.mark.short
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Norms above 256, whose squares float16 lacks, are finite, and of the dtype of the parameters."""
    params = {"w": torch.full((64, 64), 0.5, dtype=dtype), "b": torch.zeros(64, dtype=dtype), "e": torch.ones(5, 64, dtype=dtype)}
    batch = torch.full((3, 64), 30.0, dtype=dtype), indices(5, 3, 4)
    loss = lambda p, x, i: (F.linear(x, p["w"], p["b"]) * 0.1).sum() + (20 * F.embedding(i, p["e"])).sum()  # noqa: E731
    norms = per_sample.norms(loss)(params, *batch)
    expected = plain_norms(loss, {k: v.double() for k, v in params.items()}, batch[0].double(), batch[1])
    assert norms.dtype == dtype
    assert_close(norms.double(), expected, rtol=2e-2, atol=0)
    sums, _ = per_sample.clipped(loss, math.inf)(params, *batch)
    assert {v.dtype for v in tree_leaves(sums)} == {dtype}


@pytest.mark.parametrize("kind", ["linear", "quantized", "convolution", "embedding", "elementwise"])
def test_small_factors_in_half_precision(kind):
    """Factors that float16 would round to a few digits, or to 0, though the sums are far from there."""
    losses = {
        "linear": lambda w, x: F.linear(x, w[:, 0]),
        "quantized": lambda w, x: F.linear(x, fullgrad.step_quantize(w[:, 0], 0.25)),
        "convolution": lambda w, x: F.conv1d(x.mT, w),
        "embedding": lambda w, x: F.embedding(torch.tensor([0, 2, 2]), w[0]) * x,
        "elementwise": lambda w, x: x * w[0, 0],
    }
    loss = lambda w, x: 500 * losses[kind](w, x).sin().sum()  # noqa: E731
    w, x, bound = numbers(4, 3, 3).half(), numbers(5, 4, 3).half()[:, :3], 1e-4
    (g,) = gradients(Model(loss, w, (x,)))
    expected = torch.tensordot(bound / in_rows([g.double()]).norm(dim=1), g.double(), 1)
    for limit in (bound, lambda norms: bound / norms):
        sums, norms = per_sample.clipped(loss, limit)(w, x)
        assert norms.min() > 100
        assert (sums.double() - expected).abs().max() < 0.01 * expected.abs().max()


def test_autocast():
    """Inside of the loss products are in half precision, and the norms are those of vmap(grad) up to its rounding."""

    def loss(w, x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(torch.tanh(F.linear(x, w)), w.T).float().square().sum()

    w, x = W.float(), X.float()
    assert_close(per_sample.norms(loss)(w, x), plain_norms(loss, w, x).float(), rtol=2e-2, atol=0)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_around_the_call(name, compiled):
    """It is for the loss: sums of products beside it, which are above the largest half number, are in float32."""
    loss = lambda w, x: 10 * F.linear(torch.tanh(F.linear(x, w)), w.T).float().square().sum()  # noqa: E731
    w, x = numbers(16, 16).float(), numbers(6, 5, 16).float()
    run = FUNCTIONS[name](loss)
    with torch.autocast("cpu", torch.float16):
        found = (torch.compile(run, backend="eager") if compiled else run)(w, x)
        (rows,) = gradients(Model(loss, w, (x,)))
    rows = rows.double()
    norms = rows.flatten(1).norm(dim=1)
    wanted = {
        "norms": norms,
        "clipped": (torch.tensordot(torch.where(norms > 1, 1 / norms, 1.0), rows, 1), norms),
        "sum_of_squares": rows.square().sum(0),
        "gramian": rows.flatten(1) @ rows.flatten(1).T,
    }[name]
    assert norms.max() ** 2 > torch.finfo(torch.float16).max
    for f, e in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        assert f.dtype == torch.float32
        assert_close(f.double(), e, rtol=0, atol=0.01 * float(e.abs().max()))


@pytest.mark.short
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_samples(name):
    """Norms of shape (0,), sums of zeros, an empty Gramian, also in chunks."""
    params = {"w": numbers(4, 3), "b": numbers(2)}
    loss = lambda p, x: F.linear(x, p["w"]).sum() + p["b"].sum()  # noqa: E731
    zeros = {k: torch.zeros_like(v) for k, v in params.items()}
    expected = {
        "norms": numbers(0),
        "clipped": (zeros, numbers(0)),
        "sum_of_squares": zeros,
        "gramian": numbers(0, 0),
    }[name]
    for options in ({}, {} if name == "gramian" else {"chunk_size": 2}):
        assert_close(FUNCTIONS[name](loss, **options)(params, numbers(0, 3)), expected)
    # What the loss returns besides has the shapes and dtypes of samples, none of them, in losses that torch's vmap takes no
    # empty batch of, too; nothing is drawn, and what the loss writes into parameters does not reach the caller's.
    state, before = torch.get_rng_state(), params["w"].clone()

    def with_aux(p, x):
        y = F.dropout(F.linear(x.reshape(-1, 3), p["w"].mul_(2)), 0.5)
        return y.sum() + p["b"].sum(), {"y": y, "i": (x > 0).sum()}

    run = FUNCTIONS[name](with_aux, has_aux=True, randomness="different", in_dims=(None, -1))
    found, aux = run(params, numbers(2, 3, 0))
    assert_close(found, expected)
    assert_close(aux, {"y": numbers(0, 2, 4), "i": indices(9, 0)})
    assert torch.equal(params["w"], before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("loss", "w", "x"),
    [
        (lambda w, x: F.linear(x, w).sum(), numbers(0, 4), numbers(3, 4)),
        (lambda w, x: F.linear(x, w, w.sum(1)).sum(), numbers(0, 4), numbers(3, 5, 4)),
        (lambda w, x: (x @ w).sum(), numbers(0, 4), numbers(3, 5, 0)),
        (lambda w, x: F.linear(x, w).sum(), numbers(5, 4), numbers(3, 0, 4)),
        (lambda w, x: F.embedding(x, w).sum(), numbers(5, 4), indices(5, 3, 0)),
        (lambda w, x: F.embedding(x, w).sum(), numbers(5, 0), indices(5, 3, 2)),
        (lambda w, x: F.linear(x, torch.tanh(w)).sum(), numbers(0, 4), numbers(3, 5, 4)),
    ],
)
def test_sizes_of_0(name, loss, w, x):
    """A parameter or a sequence without elements has the gradient 0, or an empty one."""
    norms, zeros = numbers(3) * 0, torch.zeros_like(w)
    expected = {"norms": norms, "clipped": (zeros, norms), "sum_of_squares": zeros, "gramian": numbers(3, 3) * 0}[name]
    assert_close(FUNCTIONS[name](loss)(w, x), expected)


def test_bounds():
    """The factor at norm 0 is 1; a function gets norms of all samples once, whatever the chunks are."""
    loss = lambda w, x: (w * x).sum()  # noqa: E731
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.3, 0.4]])
    sums, norms = per_sample.clipped(loss, 1.0)(torch.ones(2), x)
    assert_close((sums, norms), (torch.tensor([0.9, 1.2]), torch.tensor([0.0, 5.0, 0.5])))
    assert_close(per_sample.clipped(loss, 0.0)(torch.ones(2), x)[0], torch.zeros(2))
    seen = []

    def factors(norms):
        seen.append(norms)
        return norms + 1

    sums, _ = per_sample.clipped(loss, factors, chunk_size=2)(torch.ones(2), x)
    assert_close(sums, 6 * x[1] + 1.5 * x[2])
    assert_close(seen, [norms])


# --- What is gained ---------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("name", ["mlp", "written_out_recurrence", "tied_linear", "learned_steps", "transposed_in_all_ways"])
def test_no_gradient_of_a_matrix_is_computed(name, monkeypatch):
    """Norms and clipped sums of linear layers, recurrent and quantized ones, come from the factors."""
    from fullgrad._dispatch import DISPATCH

    if DISPATCH != "functorch" and name == "learned_steps":
        pytest.skip("the fallback does not tell the operator of a node")
    made, shapes = MODELS[name](), []
    of = _contributions.Dense.__init__
    monkeypatch.setattr(_contributions.Dense, "__init__", lambda self, g: (shapes.append(g.shape[1:]), of(self, g))[1])
    monkeypatch.setattr(_contributions.Product, "dense", lambda self, samples: pytest.fail("a gradient is computed"))
    monkeypatch.setattr(_contributions.Product, "_of_grams_is_less", lambda self: self.slope is None)
    per_sample.norms(made.loss)(made.params, *made.batch)
    per_sample.clipped(made.loss, 1.0)(made.params, *made.batch)
    assert all(len(shape) < 2 for shape in shapes)


@pytest.mark.parametrize("size", [1, 5])
def test_chunks_are_chosen_by_what_samples_take(size, monkeypatch):
    """Samples that take much more than the parameters are not computed all together; the numbers are the same."""
    calls = []

    def loss(w, x):
        calls.append(1)
        return F.conv2d(x, w).square().sum()

    w, x = numbers(2, 1, 2, 2), numbers(64, 1, 1, size, size) if size > 1 else numbers(64, 1, 1, 2, 2)
    norms = per_sample.norms(loss)(w, x)
    assert len(calls) > 2
    assert_close(norms, plain_norms(loss, w, x))
    calls.clear()
    big = numbers(50, 50)
    per_sample.norms(lambda w, x: (calls.append(1), F.linear(x, w).square().sum())[1])(big, numbers(64, 50))
    assert len(calls) == 2


# --- Errors -----------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_name_the_function_and_what_is_wrong(name):
    """Each mistake, by its words."""
    make = FUNCTIONS[name]
    for options, words in (
        ({"in_dims": 0}, "`in_dims` must be a tuple that begins with None"),
        ({"in_dims": (0, 0)}, "`in_dims` must be a tuple that begins with None"),
        ({"chunk_size": 0}, "`chunk_size` must be None or a positive integer, got 0"),
        ({"randomness": "maybe"}, "`randomness` must be one of"),
        ({"has_aux": 1}, "`has_aux` must be True or False"),
    ):
        if name == "gramian" and "chunk_size" in options:
            continue
        with pytest.raises((TypeError, ValueError), match=f"^{name}: {words}"):
            make(f, **options)
    with pytest.raises(TypeError, match=f"^{name}: `loss` must be a function"):
        make(W)
    for loss, params, batch, words in (
        (f, {"w": W, "i": torch.arange(3)}, X, "each parameter must be a floating tensor, got dtype torch.int64"),
        (f, {"w": W, "n": 3}, X, "each parameter must be a floating tensor, got a int"),
        (f, {}, X, "there are no parameters"),
        (
            lambda w, x: F.linear(x, w),
            W,
            X,
            r"the loss must return one floating number, as it is that of one sample, got shape \(4,\)",
        ),
        (lambda w, x: 1.0, W, X, "the loss must return a tensor, got a float"),
        (f, W, torch.tensor(1.0), "no argument after the parameters has a batch"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: {words}"):
            make(loss)(params, batch)
    with pytest.raises(ValueError, match=f"^{name}: `in_dims` must have one entry for each of 2 arguments"):
        make(f, in_dims=(None, 0, 0))(W, X)
    with pytest.raises(ValueError, match=f"^{name}: `in_dims` has 3 for a tensor of shape .*, whose dimensions are -"):
        make(f, in_dims=(None, 3))(W, X)
    with pytest.raises(ValueError, match="Got in_dim=0 for an input but the input is of type"):  # as of vmap, in long batches too
        make(lambda w, batch: f(w, batch[0]))(W, (numbers(20, *X.shape[1:]), None))
    with pytest.raises(TypeError, match=f"^{name}: with `has_aux` the loss must return a pair, got a Tensor"):
        make(f, has_aux=True)(W, X)


@pytest.mark.filterwarnings("ignore:This overload of addmm is deprecated")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_that_torch_refuses(name):
    """Shapes that `mm`, `mv` and `addmm` do not take, though `matmul` does; and an old signature, which they take."""
    w, x, b = numbers(3, 3), numbers(5, 4, 3), numbers(3)
    for loss in (
        lambda w, x: torch.mm(x[None], w).sum(),
        lambda w, x: torch.mm(x[0], w).sum(),
        lambda w, x: torch.mv(w, x.mT).sum(),
        lambda w, x: torch.addmm(b, x[None], w).sum(),
        lambda w, x: torch.addmm(numbers(2, 4, 3), x, w).sum(),
        lambda w, x: torch.mm(x, w, out=torch.empty(4, 3)).sum(),
    ):
        with pytest.raises(RuntimeError):
            gradients(Model(loss, w, (x,)))
        with pytest.raises(RuntimeError):
            FUNCTIONS[name](loss)(w, x)
    old, new = (
        lambda w, x: torch.addmm(2.0, b, 3.0, x, w).square().sum(),
        lambda w, x: torch.addmm(b, x, w, beta=2.0, alpha=3.0).square().sum(),
    )
    assert_close(FUNCTIONS[name](old)(w, x), FUNCTIONS[name](new)(w, x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exports_and_traces_are_refused(name):
    """Both keep no derivative."""
    run = FUNCTIONS[name](f)
    with pytest.raises(NotImplementedError, match=f"^{name}: torch.export and torch.jit.trace keep no derivative"):
        torch.jit.trace(run, (W, X))
    module = torch.nn.Module()
    module.forward = run
    with pytest.raises(NotImplementedError, match=f"^{name}: torch.export and torch.jit.trace keep no derivative"):
        torch.export.export(module, (W, X), strict=False)


@pytest.mark.short
@pytest.mark.parametrize("name", FUNCTIONS)
def test_swapped_arguments_are_told(name):
    """Parameters after the batch, in a call and in a loss; a module in their place; and another number of targets."""
    model, y = torch.nn.Linear(3, 2), torch.zeros(len(X), 2)
    x, params = torch.ones(len(X), 3), dict(model.named_parameters())

    def loss(p, x, y):
        return (torch.func.functional_call(model, p, (x,)) - y).square().sum()

    one = "the arguments after the parameters must have one number of samples, got"
    for function, arguments, words in (
        (loss, (x, params, y), f"{one} .*: argument 1 looks like the parameters, which come first"),
        (loss, (x, y, params), f"{one} .*: argument 2 looks like the parameters, which come first"),
        (loss, (params, x, y[:-1]), rf"{one} {len(X)}, {len(X) - 1}\."),
        (loss, (model, x, y), r"each parameter must be a floating tensor, got a Linear; pass dict\(model.named_parameters"),
        (
            lambda x, y, p: loss(p, x, y),
            (params, x, y),
            r"the loss is called as loss\(params, \*sample\), and takes the parameters",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: {words}"):
            FUNCTIONS[name](function)(*arguments)


def test_an_error_of_a_loss_stays_as_it_is():
    """Whatever a loss raises, with its own traceback."""
    with pytest.raises(KeyError, match="of the loss"):
        per_sample.norms(lambda w, x: {}["of the loss"])(W, X)


def test_a_loss_that_reads_its_sample_is_told_what_to_do():
    """The words name the mask that models of transformers take as it is."""
    loss = lambda w, x: (w * x).sum() if x.all() else (w @ x).sum()  # noqa: E731
    with pytest.raises(
        RuntimeError, match=r"^norms: the loss reads a number of its sample.* an attention mask of four dimensions"
    ):
        per_sample.norms(loss)(W, X)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("1", "`bound` must be a number or a tensor"),
        (-1.0, "`bound` must not be negative, got -1.0"),
        (math.nan, "`bound` must not be negative, got nan"),
        (torch.tensor(-1.0), "`bound` must not be negative, got -1.0"),
        (torch.ones(3), "`bound` must be one number, got a tensor of shape"),
    ],
)
def test_wrong_bounds(bound, words):
    """Bounds that are none."""
    with pytest.raises((TypeError, ValueError), match=f"^clipped: {words}"):
        per_sample.clipped(f, bound)


def test_wrong_factors():
    """A function of the norms must return one factor for each."""
    with pytest.raises(
        ValueError, match=r"^clipped: the function `bound` must return one factor for each of 5 norms, .* got \(\)"
    ):
        per_sample.clipped(f, torch.sum)(W, X)


# --- Random programs --------------------------------------------------------------------------------------------------------


def _hooked(w, v, x):
    """A hook that differentiates through the weight, in the backward."""
    x = x + 0 * w.sum()
    y, z = x @ w, torch.tanh(F.linear(x, w))
    y.register_hook(lambda g: g * torch.autograd.grad(z, x, torch.ones_like(z), retain_graph=True)[0].sum())
    return y


STEPS = {
    "linear": lambda w, v, x: F.linear(x, w),
    "right": lambda w, v, x: x @ w,
    "left": lambda w, v, x: w @ x,
    "turned": lambda w, v, x: x @ w.T,
    "quantized": lambda w, v, x: F.linear(x, fullgrad.step_quantize(w, 0.5)),
    "learned": lambda w, v, x: F.linear(x, quantizers.lsq(w, v[0].abs() + 0.3, bits=3)),
    "scaled": lambda w, v, x: F.linear(x, w * v),
    "sliced": lambda w, v, x: x[..., :2] @ w[:2] + x[..., 1:] @ w[1:],
    "in place": lambda w, v, x: F.linear(x, w.clone().mul_(2).t_()),
    "written": lambda w, v, x: F.linear(x, v).add_(x) if v.ndim == 2 else (x * v).mul_(2),
    "bias": lambda w, v, x: F.linear(x, w, v),
    "added": lambda w, v, x: torch.addmm(v, x.reshape(-1, 3), w).reshape(x.shape),
    "read": lambda w, v, x: x + F.embedding(torch.tensor([0, 2, 0]), w, padding_idx=2)[: x.shape[0]].sum(0),
    "products": lambda w, v, x: x @ (w @ w),
    "elementwise": lambda w, v, x: (x * w.diagonal()).sin(),
    "inside": lambda w, v, x: grad(lambda x: F.linear(x, w).sin().sum())(x),
    "rows": lambda w, v, x: vmap(lambda r: F.linear(r, w))(x.reshape(-1, 3)).reshape(x.shape),
    "checkpoint": lambda w, v, x: fullgrad.checkpoint(lambda w, x: torch.tanh(x @ w), w, x),
    "constant": lambda w, v, x: x + F.linear(v, w).detach() + w.sum().sin(),
    "tanh": lambda w, v, x: torch.tanh(x),
    "hooked": _hooked,
    "by keyword": lambda w, v, x: x.reshape(-1, 3).mm(mat2=w).reshape(x.shape),
}
programs = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from("ab"), st.sampled_from("cd")), min_size=1, max_size=5
)


PROGRAMS = programs, st.sampled_from([(), (1,), (3,)]), st.sampled_from([None, 1, 2])


@pytest.mark.parametrize("examples", [5, pytest.param(150, marks=pytest.mark.long)])
def test_random_programs(examples):
    """Views, writes in place, transforms and repeated use, in any order."""
    settings(max_examples=examples)(given(*PROGRAMS)(_check_program))()


def _check_program(program, length, chunk_size):

    def loss(p, x):
        for step, w, v in program:
            if step in ("left", "read") and x.ndim == 2 and x.shape[0] != 3:
                continue
            x = STEPS[step](p[w], p[v], torch.tanh(x))
        return x.square().sum()

    params = {"a": numbers(3, 3), "b": numbers(3, 3, seed=1), "c": numbers(3, seed=2), "d": numbers(3, seed=3)}
    made = Model(loss, params, (numbers(3, *length, 3),))
    rows = in_rows(gradients(made))
    norms = rows.norm(dim=1)
    assert_close(per_sample.norms(loss, chunk_size=chunk_size)(params, *made.batch), norms, rtol=1e-10, atol=1e-12)
    assert_close(per_sample.gramian(loss)(params, *made.batch), rows @ rows.T, rtol=1e-9, atol=1e-10)
    expected = [g.square().sum(0) for g in gradients(made)]
    assert_close(tree_leaves(per_sample.sum_of_squares(loss)(params, *made.batch)), expected, rtol=1e-9, atol=1e-10)
    sums, _ = per_sample.clipped(loss, 0.5, chunk_size=chunk_size)(params, *made.batch)
    factors = torch.where(norms > 0.5, 0.5 / norms, 1.0)
    assert_close(tree_leaves(sums), [torch.tensordot(factors, g, 1) for g in gradients(made)], rtol=1e-9, atol=1e-10)


@pytest.mark.long
def test_distributed_parameters_are_refused(tmp_path):
    """A DTensor has a gradient on several ranks: the error says what to pass."""
    from torch.distributed.tensor import distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        w = distribute_tensor(W, torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
        for name, make in FUNCTIONS.items():
            with pytest.raises(NotImplementedError, match=f"^{name}: a parameter is a DTensor"):
                make(f)(w, X)
    finally:
        torch.distributed.destroy_process_group()
