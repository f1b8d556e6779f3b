"""`nn.VectorQuantizer`: the losses of VQ-VAE, moving averages, rows that replace dead ones, and what must not move."""

import copy
import io
import pickle

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

import fullgrad
from fullgrad.nn import VectorQuantizer

X = torch.randn(6, 10, 4, generator=torch.Generator().manual_seed(0))
JAGGED = torch.nested.nested_tensor_from_jagged(X[0], torch.tensor([0, 5, 10]))


def quantizer(num_codes=8, seed=0, **options):
    """A module whose rows are as far apart as the vectors."""
    torch.manual_seed(seed)
    module = VectorQuantizer(num_codes, 4, **options)
    with torch.no_grad():
        module.codebook.normal_()
        if module.decay is not None:
            module.sums.copy_(module.codebook)
    return module


def state(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.short
@pytest.mark.parametrize("gradient", ["identity", "rotation"])
def test_the_losses_are_those_of_vq_vae(gradient):
    """The codebook learns by the mean of its vectors alone, the input by its commitment and the gradient of the values."""
    module = quantizer(beta=0.3, gradient=gradient)
    x = X.clone().requires_grad_()
    values, indices, loss = module(x)
    distances = (X[..., None, :] - module.codebook.detach()).square().sum(-1)
    assert torch.equal(indices, distances.argmin(-1))
    rows = module.codebook[indices]
    assert torch.equal(values, rows)
    torch.testing.assert_close(loss, 1.3 * (X - rows).square().mean())
    to_x, to_codebook = torch.autograd.grad(loss, (x, module.codebook), retain_graph=True)
    torch.testing.assert_close(to_x, 0.3 * 2 * (X - rows) / X.numel())
    expected = torch.zeros(8, 4)
    for i, difference in zip(indices.flatten(), (rows - X).flatten(0, 1), strict=True):
        expected[i] += 2 * difference.detach() / X.numel()
    torch.testing.assert_close(to_codebook, expected)
    g = torch.randn_like(X)
    function = fullgrad.quantizers.vector_quantize(x, module.codebook, gradient=gradient)[0]
    assert torch.equal(torch.autograd.grad(values, x, g)[0], torch.autograd.grad(function, x, g)[0])


@pytest.mark.short
@pytest.mark.parametrize("gradient", ["identity", "rotation"])
def test_averages_move_as_those_of_the_paper(gradient):
    """Row by row in float64, over several calls; the codebook has no gradient, and the loss is the commitment alone."""
    module = quantizer(decay=0.8, gradient=gradient)
    counts, sums, codes = (v.double().clone() for v in (module.counts, module.sums, module.codebook))
    for step in range(4):
        x = (X + step / 3).requires_grad_()
        values, indices, loss = module(x)
        torch.testing.assert_close(values, codes.float()[indices], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loss, 0.25 * (x - values.detach()).square().mean())
        (values.sum() + loss).backward()
        for j in range(8):
            chosen = x.detach().double()[indices == j]
            counts[j] = 0.8 * counts[j] + 0.2 * len(chosen)
            sums[j] = 0.8 * sums[j] + 0.2 * chosen.sum(0)
        smoothed = (counts + 1e-5) / (counts.sum() + 8e-5) * counts.sum()
        codes = sums / smoothed[:, None]
        for found, expected in ((module.counts, counts), (module.sums, sums), (module.codebook, codes)):
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert [*module.parameters()] == []


def test_a_step_is_that_of_vector_quantize_pytorch():
    """Numbers of ``VectorQuantize(dim=2, codebook_size=3, decay=0.8, commitment_weight=0.25, threshold_ema_dead_code=0)``.

    vector-quantize-pytorch 1.32.0, torch 2.13.0, no seed: the codebook was set, and the vectors are these.
    """
    module = VectorQuantizer(3, 2, decay=0.8)
    codebook = torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1.0, 0.5]])
    module.codebook.copy_(codebook)
    module.sums.copy_(codebook)
    x = torch.tensor([[0.25, -0.5], [0.75, 1.5], [1.25, 0.5], [-0.5, 0.5], [-2.0, 1.0]])
    _, indices, loss = module(x)
    assert indices.tolist() == GOLDEN["indices"]
    torch.testing.assert_close(loss, torch.tensor(GOLDEN["loss"]))
    torch.testing.assert_close(module.codebook, torch.tensor(GOLDEN["codebook"]))


GOLDEN = {
    "indices": [0, 1, 1, 2, 2],
    "loss": 0.0609375,
    "codebook": [[0.0499999, -0.0999999], [1.0000005, 1.0000005], [-1.0833337, 0.5833336]],
}


@pytest.mark.short
def test_dead_rows_become_different_vectors_of_the_call():
    """As many as there are vectors; their counts begin at the threshold, and other rows stay."""
    module = quantizer(64, decay=0.9, dead_below=0.95)
    x = X[:2, :5].reshape(10, 4)
    before = module(x, update=False)[1].unique()
    module(x)
    is_new = (module.codebook[:, None] == x).all(-1)
    assert (is_new.sum(0) == 1).all()
    new = is_new.any(1)
    assert new.sum() == 10
    assert not new[before].any()
    assert (module.counts[new] == 0.95).all()
    torch.testing.assert_close(module.sums[new], module.codebook[new] * 0.95)
    alive = quantizer(64, decay=0.9)
    alive(x)
    assert torch.equal(module.codebook[~new], alive.codebook[~new])


@pytest.mark.short
def test_vectors_that_are_not_finite_take_no_part():
    """Neither in averages nor in place of dead rows; their values say so."""
    x = X.reshape(60, 4).clone()
    x[:30, 1] = torch.nan
    x[30:40, 2] = torch.inf
    module, finite = quantizer(100, decay=0.9, dead_below=0.95), quantizer(100, decay=0.9)
    values, _, _ = module(x)
    finite(x[40:])
    assert values[:30].isnan().all()
    assert all(v.isfinite().all() for v in module.state_dict().values())
    is_new = (module.codebook[:, None] == x).all(-1)
    assert (is_new.sum(0) == torch.tensor([0] * 40 + [1] * 20)).all()
    torch.testing.assert_close(module.codebook[~is_new.any(1)], finite.codebook[~is_new.any(1)])


@pytest.mark.short
def test_only_calls_in_training_move_averages():
    """Under no_grad and inference mode too, and no random numbers are drawn otherwise."""
    module = quantizer(decay=0.9, dead_below=0.5)
    before, seed = state(module), torch.get_rng_state()
    module(X, update=False)
    module.eval()(X)
    module.train()(X[:0])
    assert same(state(module), before)
    assert torch.equal(torch.get_rng_state(), seed)
    others = [copy.deepcopy(module) for _ in range(2)]
    module(X)
    moved = state(module)
    assert not torch.equal(moved["codebook"], before["codebook"])
    for other, context in zip(others, (torch.no_grad, torch.inference_mode), strict=True):
        torch.set_rng_state(seed)
        with context():
            other(X)
        assert same(state(other), moved)


@pytest.mark.short
@pytest.mark.parametrize("decay", [None, 0.9])
def test_per_sample_gradients_are_those_of_the_loop(decay):
    module = quantizer(decay=decay, gradient="rotation").eval()
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())

    def loss(tensors, x):
        values, _, extra = functional_call(module, tensors, (x,))
        return values.pow(3).sum() + extra

    found = vmap(grad(loss, argnums=1), (None, 0))(tensors, X)
    for i in range(6):
        torch.testing.assert_close(found[i], grad(loss, argnums=1)(tensors, X[i]))
    if decay is None:
        of_rows = vmap(grad(loss), (None, 0))(tensors, X)["codebook"]
        for i in range(6):
            expected = torch.autograd.grad(loss(tensors, X[i]), module.codebook)[0]
            torch.testing.assert_close(of_rows[i], expected)


TRANSFORMS = [vmap, lambda f: grad(lambda x: f(x).sum()), lambda f: vmap(grad(lambda x: f(x).sum()))]


@pytest.mark.short
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_averages_cannot_move_under_a_transform(transform):
    """It raises before anything moves, and the message says what to do."""
    module = quantizer(decay=0.9)
    before = state(module)
    with pytest.raises(
        RuntimeError, match=r"cannot be moved under a transform .* call \.eval\(\) on the module, or .*update=False"
    ):
        transform(lambda x: module(x)[0])(X)
    assert same(state(module), before)
    transform(lambda x: module(x, update=False)[0])(X)
    module.eval()
    transform(lambda x: module(x)[0])(X)


@pytest.mark.parametrize("options", [{}, {"decay": 0.9}, {"decay": 0.9, "gradient": "rotation", "dead_below": 0.5}])
def test_it_is_compiled_whole_and_moves_averages_once(options):
    module = quantizer(**options)
    other = copy.deepcopy(module)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    for f in (module, compiled):
        for step in range(2):
            torch.manual_seed(step)
            x = (X + step).requires_grad_()
            values, indices, loss = f(x)
            (values.square().sum() + loss).backward()
            results = [values.detach(), indices, loss.detach(), x.grad]
            if f is module:
                expected = results if step == 0 else [*expected, *results]  # noqa: F821
            else:
                for a, b in zip(results, expected[4 * step :], strict=False):
                    torch.testing.assert_close(a, b)
    for key, value in module.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value)


def test_a_compiled_call_in_a_transform_raises_too():
    module = quantizer(decay=0.9)
    f = torch.compile(vmap(lambda x: module(x)[0]), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="cannot be moved under a transform"):
        f(X)
    module.eval()
    torch.testing.assert_close(f(X), module(X)[0])


@pytest.mark.short
def test_checkpoints_are_as_the_documentation_says():
    """torch's moves averages twice; update=False does not move them; that of fullgrad raises."""
    module = quantizer(decay=0.9)
    x = X.clone().requires_grad_()
    values, _, loss = checkpoint(lambda x: module(x, update=False), x, use_reentrant=False)
    before = state(module)
    (g,) = torch.autograd.grad(values.sum() + loss, x)
    assert same(state(module), before)
    values, _, loss = module(x, update=False)
    assert torch.equal(torch.autograd.grad(values.sum() + loss, x)[0], g)
    with pytest.raises(RuntimeError, match="in place"):
        fullgrad.checkpoint(module, x)


@pytest.mark.short
def test_second_derivatives_exist():
    """Those of the rotation and of the loss, by numbers."""
    module = quantizer(gradient="rotation").double()
    x, n, step = X[0, :2].double(), 8, 1e-6

    def gradient(x):
        leaf = x if x.requires_grad else x.detach().requires_grad_()
        values, _, loss = module(leaf)
        return torch.autograd.grad(values.pow(3).sum() + loss, leaf, create_graph=True)[0]

    def pulled(x, g):
        leaf = x.detach().requires_grad_()
        values, _, loss = module(leaf)
        return torch.autograd.grad((values * g).sum() + loss, leaf)[0]

    found = torch.autograd.functional.jacobian(gradient, x).view(n, n)
    # The rule varies with x at constant values, and the values vary by the rule.
    values = module(x)[0].detach()
    by_rule = [
        (pulled(x + step * e, 3 * values**2) - pulled(x - step * e, 3 * values**2)).flatten() / (2 * step)
        for e in torch.eye(n, dtype=x.dtype).view(n, 2, 4)
    ]
    rows = torch.autograd.functional.jacobian(lambda x: module(x)[0], x).view(n, n)
    expected = torch.stack(by_rule, 1) + rows.T @ torch.diag(6 * values.flatten()) @ rows
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.short
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype):
    """Vectors in half precision meet rows in float32, under autocast too; averages in half precision do not move but raise."""
    module = quantizer(decay=0.9)
    other = copy.deepcopy(module)
    values, indices, loss = module(X.to(dtype))
    wide, wide_indices, wide_loss = other(X.to(dtype).float())
    assert values.dtype == dtype
    assert torch.equal(values, wide.to(dtype))
    assert torch.equal(indices, wide_indices)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, wide_loss)
    assert same(state(module), state(other))
    with torch.autocast("cpu", dtype):
        assert module(X)[2].dtype == torch.float32
    with pytest.raises(RuntimeError, match=r"must be float32 or float64, got .*call \.float\(\)"):
        module.to(dtype)(X.to(dtype))
    assert module.eval()(X.to(dtype))[0].dtype == dtype
    assert quantizer().to(dtype)(X.to(dtype))[0].dtype == dtype


@pytest.mark.short
@pytest.mark.parametrize("decay", [None, 0.9])
def test_initialize_is_k_means(decay):
    """Clusters that are apart become the rows; the averages begin there; one seed gives one codebook."""
    centers = torch.eye(4) * 100
    x = (centers[:, None] + torch.randn(4, 25, 4, generator=torch.Generator().manual_seed(1))).requires_grad_()
    module = VectorQuantizer(4, 4, decay=decay)
    best = None
    for seed in range(5):
        module.initialize(x, generator=torch.Generator().manual_seed(seed))
        loss = float(module.eval()(x)[2].detach())
        best = loss if best is None else min(best, loss)
        again = VectorQuantizer(4, 4, decay=decay)
        again.initialize(x, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(module.codebook, again.codebook)
        means = torch.stack([x[module(x)[1] == j].mean(0) for j in range(4)]).detach()
        torch.testing.assert_close(module.codebook.detach(), means)
    assert best < 10
    if decay is not None:
        assert torch.equal(module.sums, module.codebook)
        assert (module.counts == 1).all()
    with pytest.raises(ValueError, match="must have at least 4 vectors, got 3"):
        module.initialize(X[0, :3])


@pytest.mark.short
def test_it_is_pickled_copied_saved_and_shown():
    module = quantizer(decay=0.9, dead_below=0.1)
    module(X)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    loaded = VectorQuantizer(8, 4, decay=0.9)
    loaded.load_state_dict(torch.load(file))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert same(state(other), state(module))
        for a, b in zip(other.eval()(X), module.eval()(X), strict=True):
            assert torch.equal(a, b)
    assert sorted(module.state_dict()) == ["codebook", "counts", "sums"]
    assert [name for name, _ in quantizer().named_parameters()] == ["codebook"]
    assert repr(module) == "VectorQuantizer(8, 4, decay=0.9, dead_below=0.1)"
    values, indices, _ = module(X)
    assert torch.equal(module.decode(indices), values)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: VectorQuantizer(0, 4), ValueError, "`num_codes` must be a positive integer, got 0"),
        (lambda: VectorQuantizer(8, 4, -1.0), ValueError, "`beta` must be finite and not negative, got -1.0"),
        (lambda: VectorQuantizer(8, 4, decay=1.0), ValueError, "`decay` must be less than 1, got 1.0"),
        (lambda: VectorQuantizer(8, 4, dead_below=1.0), ValueError, "`dead_below` needs .* write decay=0.99, or dead_below=0"),
        (lambda: VectorQuantizer(8, 4, gradient="none"), ValueError, "`gradient` must be one of 'identity', 'rotation'"),
        (lambda: VectorQuantizer(8, 4)([1.0]), TypeError, "`x` must be a tensor"),
        (
            lambda: VectorQuantizer(8, 4)(JAGGED),
            TypeError,
            r"`x` must not be a nested tensor; call the module on its \.values\(\)",
        ),
        (lambda: VectorQuantizer(8, 4)(X > 0), TypeError, "`x` must be a real tensor, got dtype torch.bool"),
        (lambda: VectorQuantizer(8, 4).initialize(X[..., :2]), ValueError, "`x` must have 4 in its last dimension"),
    ],
)
def test_errors_name_the_argument(make, error, message):
    with pytest.raises(error, match=f"VectorQuantizer: {message}"):
        make()


def test_no_vectors_have_the_loss_zero():
    """A rank without vectors adds nothing to the loss."""
    assert fullgrad.nn.VectorQuantizer(4, 2)(torch.empty(0, 2))[2].item() == 0


def test_averages_of_nothing_are_refused():
    """Without a decay and a small count, a row that no vector chooses would be 0 / 0."""
    with pytest.raises(ValueError, match="`eps` must be positive with decay=0"):
        fullgrad.nn.VectorQuantizer(4, 2, decay=0.0, eps=0.0)


def test_integers_have_the_loss_and_the_averages_of_their_numbers():
    """Their rows are not taken for the vectors."""
    for decay in (None, 0.5):
        torch.manual_seed(0)
        of_integers = VectorQuantizer(4, 2, decay=decay)
        of_numbers, x = copy.deepcopy(of_integers), torch.tensor([[1, 2], [3, 4]])
        for _ in range(3):
            found, expected = of_integers(x), of_numbers(x.float())
            torch.testing.assert_close(found[2], expected[2])
        torch.testing.assert_close(of_integers.codebook, of_numbers.codebook)


def test_the_cosine_distance_chooses_by_the_angle():
    """Value and loss are those of the row with the largest cosine, of vectors of any length, in training and as k-means."""
    module = quantizer(distance="cosine", beta=0.5)
    x = (X * torch.linspace(0.01, 100, 10)[:, None]).requires_grad_()
    values, indices, loss = module(x)
    rows = module.codebook.detach()
    expected = torch.nn.functional.cosine_similarity(x.detach().unsqueeze(-2), rows, dim=-1).argmax(-1)
    assert torch.equal(indices, expected)
    assert not torch.equal(indices, quantizer()(x)[1])
    assert torch.equal(values, rows[expected])
    torch.testing.assert_close(loss, 1.5 * (x - rows[expected]).square().mean())
    assert torch.equal(torch.autograd.grad(values.sum(), x)[0], torch.ones_like(x))
    assert torch.equal(vmap(lambda x: module.eval()(x)[1])(x), expected)
    module.initialize(x)
    assert module(x)[1].unique().numel() > 4
    assert "distance='cosine'" in repr(module)


@pytest.mark.parametrize("decay", [None, 0.9])
def test_indices_may_be_given(decay):
    """Values, loss and averages are those of the given rows; the gradient of the vectors is declared as for the nearest ones."""
    module, index = quantizer(decay=decay), torch.randint(8, (6, 10), generator=torch.Generator().manual_seed(1))
    x, before = X.clone().requires_grad_(), state(module)
    values, indices, loss = module(x, indices=index.to(torch.uint8))
    assert torch.equal(indices, index)
    assert torch.equal(values, before["codebook"][index])
    torch.testing.assert_close(loss, (0.25 + (decay is None)) * (X - before["codebook"][index]).square().mean())
    assert torch.equal(torch.autograd.grad(values.sum(), x)[0], torch.ones_like(x))
    if decay:
        counts = torch.bincount(index.flatten(), minlength=8)
        torch.testing.assert_close(module.counts, decay * before["counts"] + (1 - decay) * counts)
    else:
        (loss / 2).backward()
        unused = [i for i in range(8) if i not in index]
        assert not module.codebook.grad[unused].any()


def test_given_indices_are_checked():
    """Their type, shape and range, with the name of the argument."""
    module = quantizer()
    for bad, error, message in (
        (torch.zeros(6, 10), TypeError, "`indices` must be integers, got dtype torch.float32"),
        (torch.zeros(6).long(), ValueError, r"must have the shape \(6, 10\), one for each vector, got shape \(6,\)"),
        (torch.full((6, 10), 8), ValueError, "`indices` must be from 0 to 7, got 8 among its elements"),
        (torch.full((6, 10), -1), ValueError, "`indices` must be from 0 to 7, got -1 among its elements"),
    ):
        with pytest.raises(error, match=message):
            module(X, indices=bad)
    with pytest.raises(ValueError, match="`distance` must be one of"):
        quantizer(distance="angle")
