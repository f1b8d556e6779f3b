"""Calls inside `completing` that are made in other words: the same numbers, and no error."""

import itertools
import math

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn
from torch.distributions import kl_divergence
from torch.func import grad, hessian, jacrev, jvp, vmap

import fullgrad
from fullgrad._dispatch import innermost
from tests.completion.test_completing import seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
X = seeded(4, 3)
IDIOMS = {
    "hessian": lambda f: hessian(f)(X),
    "grad of jvp": lambda f: grad(lambda x: jvp(f, (x,), (X.cos(),))[1])(X),
    "jvp of jvp": lambda f: jvp(lambda x: jvp(f, (x,), (X.cos(),))[1], (X,), (X,))[1],
}


@pytest.mark.parametrize("name", IDIOMS)
def test_norms_in_training_with_running_statistics(name):
    """They have the derivatives of norms without, and count and average as in a plain call."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(3, track_running_stats=tracks).double() for tracks in (False, True, True)]
    functions = [lambda x, m=m: (m(x) * 0.7).sin().sum() for m in norms]
    functions[2](X)
    with fullgrad.completing():
        torch.testing.assert_close(IDIOMS[name](functions[1]), IDIOMS[name](functions[0]))
    assert norms[1].num_batches_tracked == norms[2].num_batches_tracked
    torch.testing.assert_close(norms[1].running_var, norms[2].running_var)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.int64])
@pytest.mark.parametrize("shape", [(), (5,)])
def test_numbers_that_are_added_in_place(dtype, shape):
    """To the last bit, or with the same kind of error, whatever the number."""
    x = (3 * seeded(*shape)).to(dtype)

    def result(run):
        try:
            return run()
        except Exception as error:
            return type(error)

    def add(number, alpha, x):
        return x.clone().add_(number, alpha=alpha)

    for number in (0.1, 2, True, 1 + 2j, -0.0, math.nan):
        for alpha in (1, 0.3):
            kept = []
            f = lambda x, n=number, a=alpha: add(n, a, x)  # noqa: E731
            expected = result(lambda f=f: f(x))
            with fullgrad.completing():
                found = result(lambda f=f: vmap(f)(x.expand(2, *shape).clone())[0])
                keep = lambda z, f=f, kept=kept: kept.append(f(x + 0 * z.to(dtype))) or z  # noqa: E731
                of_grad = result(lambda keep=keep: grad(keep)(torch.tensor(1.0)))
            if isinstance(expected, type):
                assert found is expected
                assert of_grad is expected
            else:
                torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
                torch.testing.assert_close(innermost(kept[0]), expected, rtol=0, atol=0, equal_nan=True)


def test_one_seed_draws_one_mask():
    """Under a transform as in the plain call, for tensors in another order of the memory, too."""
    x = seeded(4, 6, 3).transpose(0, 1)

    def drawn(run):
        torch.manual_seed(1)
        return run()

    with fullgrad.completing():
        for drop in (F.dropout, F.alpha_dropout, lambda x: nn.Dropout(0.3)(x)):
            expected = drawn(lambda drop=drop: drop(x))
            assert torch.equal(drawn(lambda drop=drop: jvp(drop, (x,), (x,))[0]), expected)
            slope = drawn(lambda drop=drop: grad(lambda x: (drop(x) * x.detach()).sum())(x))
            leaf = x.detach().requires_grad_()
            plain = drawn(lambda drop=drop, leaf=leaf: torch.autograd.grad((drop(leaf) * x).sum(), leaf)[0])
            assert torch.equal(slope, plain)
            batch = torch.stack([x.mT, 2 * x.mT]).mT  # of samples in the order of x, some of them with gaps
            for dim in range(4):
                own = batch.movedim(0, dim).clone(memory_format=torch.preserve_format)
                sample = own.select(dim, 0)
                found = drawn(lambda drop=drop, own=own, d=dim: vmap(drop, in_dims=d, randomness="same")(own))
                assert torch.equal(found[0], drawn(lambda drop=drop, sample=sample: drop(sample)))
                if drop is not F.alpha_dropout:
                    assert torch.equal(found[1], 2 * found[0])


@pytest.mark.parametrize("batched", [(0, None), (None, 0), (0, 0), (-1, -1)])
def test_weights_of_samples(batched):
    """Norms that are those of one sample alone, or of all, by first and last dimensions."""
    v, g = seeded(2, 3, 4), seeded(2, 3, 1).abs() + 0.5
    given = [x if d is not None else x[0] for x, d in zip((v, g), batched, strict=True)]
    for of in (torch._weight_norm, lambda v, g, dim: torch.ops.aten._weight_norm_interface(v, g, dim)[0]):
        f = lambda v, g, of=of: of(v, g, 0).sin().sum()  # noqa: E731
        samples = [[x[k] if d is not None else x for x, d in zip(given, batched, strict=True)] for k in range(2)]
        moved = [x.movedim(0, -1) if d == -1 else x for x, d in zip(given, batched, strict=True)]
        with fullgrad.completing():
            for i in (0, 1):
                found = vmap(grad(f, i), batched)(*moved)
                torch.testing.assert_close(found, torch.stack([grad(f, i)(*s) for s in samples]))


def test_singular_values_of_complex_samples():
    """torch asks whether a loss depends on the phases of vectors, of each sample."""
    x = torch.complex(seeded(2, 3, 3), seeded(2, 3, 3).flip(0))

    def f(x):
        u, s, vh = torch.linalg.svd(x)
        return ((u * s.sin()) @ vh).real.square().sum()

    with fullgrad.completing():
        torch.testing.assert_close(vmap(grad(f))(x), torch.stack([grad(f)(v) for v in x]))
        assert vmap(lambda x: x.sin() if torch.equal(x, x) else x)(X).equal(X.sin())
        with pytest.raises(RuntimeError, match="several numbers"):
            vmap(lambda x: torch.allclose(x, X[0]))(X)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 0)])
@pytest.mark.parametrize("dim", [0, -1])
def test_labels_of_samples(shape, dim):
    """Ones at them, within every nesting; a label that is none is refused, as are unknown classes."""
    labels = torch.arange(math.prod(shape)).reshape(shape) % 4
    x = seeded(*shape, 4)
    f = lambda x, i: (F.one_hot(i, 4) * x).square().sum()  # noqa: E731
    moved = labels.movedim(0, dim)
    with fullgrad.completing():
        for g in (f, grad(f), jacrev(f), hessian(f), lambda x, i: jvp(lambda x: grad(f)(x, i), (x,), (x,))[1]):
            expected = torch.stack([g(a, b) for a, b in zip(x, labels, strict=True)])
            torch.testing.assert_close(vmap(g, (0, dim))(x, moved), expected)
        if labels.numel():
            for wrong in (labels + 4, labels - 9):
                with pytest.raises(RuntimeError, match="out of bounds"):
                    vmap(grad(f), (0, dim))(x, wrong.movedim(0, dim))
            with pytest.raises(RuntimeError):
                vmap(grad(lambda x, i: (F.one_hot(i) * x).sum()), (0, dim))(x, moved)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 2)])
def test_entropies_of_labels_of_samples(shape, smoothing, reduction):
    """Logits, weights and labels that all samples share, or not."""
    options = {"label_smoothing": smoothing, "reduction": reduction, "ignore_index": 1}
    f = lambda x, w, i: F.cross_entropy(x, i, w, **options)  # noqa: E731
    of_labels = (2, *shape[:-1]) if len(shape) < 3 else (2, shape[0], shape[2])
    labels = torch.tensor([0, 2, 1, 3, 1, 2, 0, 0, 3, 1, 2, 1])[: math.prod(of_labels)].reshape(of_labels)
    given = seeded(2, *shape).float(), seeded(2, 4).float().exp(), labels
    slopes = grad(lambda *xs: f(*xs).sin().sum(), (0, 1))
    tangent = lambda x, w, i: jvp(lambda x, w: f(x, w, i), (x, w), (w.sum() * x, w.cos()))[1]  # noqa: E731
    ways = f, lambda *xs: slopes(*xs)[0], lambda *xs: slopes(*xs)[1], tangent, grad(lambda *xs: tangent(*xs).sum())
    for in_dims in [d for d in itertools.product((0, None), repeat=3) if 0 in d]:
        own = [v if d == 0 else v[0] for v, d in zip(given, in_dims, strict=True)]
        with fullgrad.completing():
            for g in ways:
                expected = [g(*[v[k] if d == 0 else v for v, d in zip(own, in_dims, strict=True)]) for k in range(2)]
                torch.testing.assert_close(vmap(g, in_dims)(*own), torch.stack(expected), equal_nan=True)


def test_columns_of_samples():
    """A batch of columns side by side is that of its samples."""
    with fullgrad.completing():
        found = vmap(lambda x: torch.column_stack([x, x.outer(x)]))(X)
    torch.testing.assert_close(found, torch.stack([torch.column_stack([x, x.outer(x)]) for x in X]))


def test_backwards_that_are_asked_for_one_argument():
    """Second derivatives of plain code where the other argument is a constant."""
    grid = seeded(1, 2, 2, 2).tanh().requires_grad_()
    image = seeded(1, 1, 3, 3)
    with fullgrad.completing():
        (slope,) = torch.autograd.grad(F.grid_sample(image, grid, align_corners=True).square().sum(), grid, create_graph=True)
        (found,) = torch.autograd.grad(slope.sin().sum(), grid)
        expected = jvp(
            grad(lambda g: F.grid_sample(image, g, align_corners=True).square().sum()), (grid.detach(),), (slope.detach().cos(),)
        )[1]
    torch.testing.assert_close(found, expected)


def test_exponents_that_are_no_integers():
    """A power of two by a number has torch's gradient."""
    x, e = seeded(3).requires_grad_(), seeded(3).requires_grad_()
    expected = torch.autograd.grad(torch.ldexp(x, e).sum(), (x, e))
    with fullgrad.completing():
        torch.testing.assert_close(torch.autograd.grad(torch.ldexp(x, e).sum(), (x, e)), expected)
        torch.testing.assert_close(grad(lambda x: torch.ldexp(x, e.detach()).sum())(x.detach()), expected[0])


@pytest.mark.parametrize("p", [0, 0.0, 1, 2, 3, math.inf])
def test_distances_have_a_gradient_by_both(p):
    """The number of elements that differ has the gradient 0, and torch none by the second argument."""
    x, y = seeded(3), seeded(3).flip(0)
    leaves = [v.clone().requires_grad_() for v in (x, y)]
    expected = grad(lambda d: torch.linalg.vector_norm(d, p))(x - y)
    with fullgrad.completing():
        eager = torch.autograd.grad(torch.dist(*leaves, p), leaves)
        found = grad(lambda x, y: torch.dist(x, y, p), (0, 1))(x, y)
        assert torch.dist(x, y, p) == torch.linalg.vector_norm(x - y, p)
    for gradients in (eager, found):
        torch.testing.assert_close(gradients, (expected, -expected))


def test_distances_of_what_is_no_number():
    """They are no numbers in a batch, too, where they count elements that differ."""
    x = torch.tensor([[math.nan, 1.0], [2.0, 1.0]])
    with fullgrad.completing():
        found = vmap(lambda x: torch.cdist(x, x, p=0))(x[None])[0]
    torch.testing.assert_close(found, torch.cdist(x, x, p=0), equal_nan=True)


@pytest.mark.parametrize("initial", [None, 1.0, 3.0])
def test_an_initial_number_has_no_part_of_a_slope(initial):
    """Segments whose largest number is as large as the initial one, as in torch."""
    x, lengths = torch.tensor([3.0, 3.0, 1.0, -math.inf, -math.inf], requires_grad=True), torch.tensor([2, 0, 1, 2])
    f = lambda x: torch.segment_reduce(x, "max", lengths=lengths, initial=initial).sum()  # noqa: E731
    expected = torch.autograd.grad(f(x), x)[0]
    with fullgrad.completing():
        torch.testing.assert_close(grad(f)(x.detach()), expected)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_equal_numbers_of_a_segment_share_its_slope(reduce, sign):
    """Whatever the sign of what comes back, of which torch divides positive numbers alone."""
    x, lengths = torch.tensor([2.0, 2.0, 2.0, 7.0, 7.0, 5.0]), torch.tensor([3, 2, 1])
    f = lambda x: sign * torch.segment_reduce(x, reduce, lengths=lengths).sum()  # noqa: E731
    with fullgrad.completing():
        found = grad(f)(x)
    torch.testing.assert_close(found, sign * torch.tensor([1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2, 1.0]))


def test_products_of_large_numbers_and_zeros():
    """Their gradients are torch's: nothing that is 0 is multiplied by what overflows."""
    x = torch.tensor([1e30, 0.0, 1e30, 0.0, 1e30])
    with fullgrad.completing():
        assert grad(lambda x: x.cumprod(0).sum())(x).tolist() == [1.0, math.inf, 0.0, 0.0, 0.0]


def test_what_is_no_number_stays_in_its_row():
    """A row with NaN is not made smaller, and the gradient of the others is their own."""
    x = seeded(3, 2)
    x[1, 0] = math.nan
    f = lambda x: torch.renorm(x, 2, 0, 0.5).sin().sum()  # noqa: E731
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(f(leaf), leaf)[0]
    with fullgrad.completing():
        torch.testing.assert_close(grad(f)(x), expected, equal_nan=True)


def test_the_jacobian_of_a_mask_that_broadcasts():
    """Rows of the batch of cotangents are not confused with those of the mask."""
    mask = torch.tensor([[True, False, True], [True, True, False]])
    with fullgrad.completing():
        found = jacrev(lambda x: torch.masked_select(x, mask))(X[0])
    assert torch.equal(found, torch.eye(3, dtype=X.dtype)[[0, 2, 0, 1]])


@pytest.mark.parametrize("name", ["asinh", "acosh", "atanh"])
def test_functions_in_place_in_eager_code(name):
    """They have torch's numbers, and the derivatives of those that make a new tensor."""
    x = X.sigmoid() * 0.8 + (1.0 if name == "acosh" else 0.0)
    f, in_place = [lambda x, n=n: getattr(x * 1, n)() for n in (name, f"{name}_")]
    expected = in_place(x)
    with fullgrad.completing():
        assert torch.equal(in_place(x), expected)
        found = []
        for g in (f, in_place):
            leaf = x.clone().requires_grad_()
            (y,) = torch.autograd.grad(g(leaf).sin().sum(), leaf, create_graph=True)
            found.append((y, *torch.autograd.grad(y.sin().sum(), leaf)))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
        assert torch.equal(in_place(leaf).detach(), expected)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            getattr(leaf, f"{name}_")()


@pytest.mark.parametrize("bit", ["conj", "neg", "conj of a view"])
def test_tensors_that_are_conjugated_in_their_memory(bit):
    """They have tangents that are not, which torch alone refuses where a view is taken."""
    x, t = torch.complex(X, X.cos())[:3], torch.complex(X.sin(), X)[:3]
    lazy = {"conj": x.conj(), "neg": torch._neg_view(x), "conj of a view": x.T.conj()}[bit]
    clear = lazy.resolve_conj().resolve_neg()
    assert lazy.is_conj() or lazy.is_neg()
    f = lambda x: torch.view_as_real((x @ x.mH).mT).sin().sum() + x.real.sum()  # noqa: E731
    for g in (f, lambda x: torch.view_as_real(grad(f)(x).resolve_conj().resolve_neg()).sin().sum()):
        expected = jvp(g, (clear,), (t,))
        with fullgrad.completing():
            torch.testing.assert_close(jvp(g, (lazy,), (t,)), expected)
            torch.testing.assert_close(jvp(g, (clear,), (t.conj(),)), jvp(g, (clear,), (t.conj().resolve_conj(),)))


@pytest.mark.parametrize("adjoint", [False, True])
def test_complex_systems_that_are_solved_from_the_right(adjoint):
    """Forward over reverse, which torch refuses since the solution is conjugated in its memory and its tangent is not."""
    a = torch.complex(seeded(3, 3), seeded(3, 3).flip(0)) + 3 * torch.eye(3)
    b, t = torch.complex(seeded(2, 3), seeded(2, 3).flip(1)), torch.complex(seeded(2, 3).sin(), seeded(2, 3))
    factors = torch.linalg.lu_factor(a)
    f = lambda b: torch.view_as_real(torch.linalg.lu_solve(*factors, b, left=False, adjoint=adjoint).resolve_conj()).sin().sum()  # noqa: E731
    matrix = torch.linalg.inv(a.mH if adjoint else a)
    plain = lambda b: torch.view_as_real((b @ matrix).resolve_conj()).sin().sum()  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(f(b), plain(b))
        slopes = [lambda b, f=f: (grad(f)(b).conj() * t).real.sum() for f in (f, plain)]
        torch.testing.assert_close(jvp(slopes[0], (b,), (t,)), jvp(slopes[1], (b,), (t,)))
        torch.testing.assert_close(grad(lambda b: jvp(f, (b,), (t,))[1])(b), grad(lambda b: jvp(plain, (b,), (t,))[1])(b))


@pytest.mark.parametrize("name", ["Dirichlet", "Beta"])
def test_samples_of_distributions_on_the_simplex(name):
    """One seed draws one sample; the tangent is transposed to torch's gradient, of a batch, too; torch refuses more."""
    make = getattr(torch.distributions, name)
    c, t, g = seeded(2, 3).abs() + 0.5, seeded(2, 3), seeded(2, 3).cos()

    def f(c):
        torch.manual_seed(0)
        return make(c).rsample() if name == "Dirichlet" else make(c, 2 * c).rsample()

    leaf = c.clone().requires_grad_()
    value = f(leaf)
    (gradient,) = torch.autograd.grad((value * g).sum(), leaf)
    with fullgrad.completing():
        assert torch.equal(f(c), value)
        found, tangent = jvp(f, (c,), (t,))
        assert torch.equal(found, value)
        torch.testing.assert_close((tangent * g).sum(), (gradient * t).sum())
        torch.testing.assert_close(grad(lambda c: (f(c) * g).sum())(c), gradient)
        torch.testing.assert_close(torch.autograd.grad((f(leaf) * g).sum(), leaf)[0], gradient, rtol=0, atol=0)
        rows = vmap(lambda c, t: jvp(f, (c,), (t,)), randomness="different")(c[:1], t[:1])
        torch.testing.assert_close(rows, tuple([v[None] for v in jvp(f, (c[0],), (t[0],))]))
        slope = lambda c: grad(lambda c: f(c).sin().sum())(c).sum()  # noqa: E731
        for nested in (lambda: grad(slope)(c), lambda: jvp(lambda c: jvp(f, (c,), (t,))[1], (c,), (t,))):
            with pytest.raises((NotImplementedError, RuntimeError), match="_dirichlet_grad"):
                nested()
    assert "apply" not in vars(torch.distributions.dirichlet._Dirichlet)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch has no such loss")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_cross_entropy_by_chunks(reduction):
    """Eager numbers and gradients are torch's own, second derivatives those of the loss, as are all under transforms."""
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    target, ws = torch.tensor([0, 4, 2, 1]), (seeded(4, 3), seeded(5, 3).cos(), seeded(5).sin())
    f = lambda x, w, b: F.linear_cross_entropy(x, w, target, linear_bias=b, reduction=reduction, options=options).sin().sum()  # noqa: E731
    plain = lambda x, w, b: F.cross_entropy(F.linear(x, w, b), target, reduction=reduction).sin().sum()  # noqa: E731

    def gradients(f, graph=False):
        leaves = [v.clone().requires_grad_() for v in ws]
        value = f(*leaves)
        found = torch.autograd.grad(value, leaves, create_graph=graph)
        second = torch.autograd.grad(sum([g.sin().sum() for g in found]), leaves) if graph else ()
        return [v.detach() for v in (value, *found, *second)]

    own = gradients(f)
    with fullgrad.completing():
        torch.testing.assert_close(gradients(f), own, rtol=0, atol=0)
        torch.testing.assert_close(gradients(f, graph=True), gradients(plain, graph=True))
        torch.testing.assert_close(jvp(lambda *ws: jvp(f, ws, ws)[1], ws, ws), jvp(lambda *ws: jvp(plain, ws, ws)[1], ws, ws))
        for of in (grad, hessian):
            torch.testing.assert_close(of(f)(*ws), of(plain)(*ws))
        torch.testing.assert_close(vmap(f)(*[v[None] for v in ws]), plain(*ws)[None])
    torch.testing.assert_close(gradients(f), own, rtol=0, atol=0)


@pytest.mark.parametrize("norm", ["layer", "batch", "evaluation", "instance", "group"])
def test_second_derivatives_of_norms_in_eager_code(norm):
    """They are torch's own, bit for bit."""
    x, w, b = seeded(3, 4, 5), seeded(4).cos(), seeded(4).sin()
    statistics = seeded(4).sin(), seeded(4).cos().abs() + 0.5
    f = {
        "layer": lambda x, w, b: F.layer_norm(x.mT, (4,), w, b),
        "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        "evaluation": lambda x, w, b: F.batch_norm(x, *statistics, w, b, False),
        "instance": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    }[norm]

    def derivatives(count):
        leaves, found = [v.clone().requires_grad_() for v in (x, w, b)], []
        y = f(*leaves).sin().sum()
        for _ in range(count):
            gs = torch.autograd.grad(y, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
            y = sum([(g.sin() * v.detach().cos()).sum() for g, v in zip(gs, leaves, strict=True)])
            found += [g.detach() for g in gs]
        return found

    own = derivatives(2)
    with fullgrad.completing():
        torch.testing.assert_close(derivatives(2), own, rtol=0, atol=0)


def test_running_logarithms_of_a_number_have_every_eager_derivative():
    """A tensor without dimensions is its own running logarithm."""
    x = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    with fullgrad.completing():
        y = torch.logcumsumexp(x, 0).sin()
        for expected in (x.cos(), -x.sin(), -x.cos()):
            (y,) = torch.autograd.grad(y, x, create_graph=True)
            torch.testing.assert_close(y, expected)


def test_masked_logarithms_have_every_eager_derivative():
    """Nothing comes back where both numbers are left out, from where torch's second derivative is NaN; the first is torch's."""
    x, masks = seeded(2, 4), [torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])]
    weights = torch.arange(1.0, 5, dtype=torch.float64)

    def masked(x):
        return torch.masked.logaddexp(x[0], x[1], input_mask=masks[0], other_mask=masks[1])

    def plain(x):
        y = torch.logaddexp(x[0, :1], x[1, :1])
        return torch.cat([y, x[0, 1:2], x[1, 2:3], y * 0])

    def derivatives(f):
        leaf, found = x.clone().requires_grad_(), []
        y = (f(leaf).nan_to_num(0, 0, 0) * weights).sin().sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(y, leaf, create_graph=True)
            y = (g * weights).sin().sum()
            found.append(g.detach())
        return found

    first, expected = derivatives(masked)[0], derivatives(plain)
    with fullgrad.completing():
        found = derivatives(masked)
    torch.testing.assert_close(found[0], first, rtol=0, atol=0)
    torch.testing.assert_close(found, expected)


def test_eager_derivatives_of_running_logarithms():
    """The gradient is torch's own, bit for bit, and the third derivative a number, where torch has NaN."""
    weights = torch.arange(1.0, 7, dtype=torch.float64)

    def derivatives(f, count):
        leaf, found = seeded(6).requires_grad_(), []
        y = (f(leaf) * weights).sin().sum()
        for _ in range(count):
            (g,) = torch.autograd.grad(y, leaf, create_graph=True)
            y = g.sin().sum()
            found.append(g.detach())
        return found

    f = lambda x: torch.logcumsumexp(x, 0)  # noqa: E731
    own = derivatives(f, 1)
    assert derivatives(f, 3)[2].isnan().any(), "torch has it: the completion is not needed"
    with fullgrad.completing():
        torch.testing.assert_close(derivatives(f, 1), own, rtol=0, atol=0)
        torch.testing.assert_close(derivatives(f, 4), derivatives(lambda x: x.exp().cumsum(0).log(), 4))


def test_deviations_of_complex_numbers():
    """Reverse over forward over reverse, where torch's formula writes to what it has saved, and of a single number."""
    x, t = torch.complex(X, X.cos()), torch.complex(X.sin(), X)
    plain = lambda x: ((x - x.mean()).abs().square().sum() / (x.numel() - 1)).sqrt()  # noqa: E731
    inner = lambda f: lambda x: (grad(f)(x).conj() * t).real.sum()  # noqa: E731
    third = lambda f: inner(lambda x: jvp(inner(f), (x,), (t,))[1])  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(torch.std(x), plain(x))
        torch.testing.assert_close(third(torch.std)(x), third(plain)(x))
        for number in (X[0, 0], x[0, 0]):
            assert grad(lambda x: torch.std(x, correction=0))(number) == 0
            assert torch.std(number, correction=0) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bessel_functions_in_half_precision(dtype):
    """torch has no derivative there; the value is torch's own, bit for bit."""
    x = torch.linspace(-9, 9, 101).to(dtype)
    for f in (torch.special.i1, torch.special.i1e):
        expected = f(x)
        with fullgrad.completing():
            value, tangent = jvp(f, (x,), (torch.ones_like(x),))
        assert torch.equal(value, expected)
        assert tangent.dtype == dtype
        torch.testing.assert_close(tangent.float(), jvp(f, (x.float(),), (torch.ones(101),))[1], rtol=2**-7, atol=0)


def test_rrelu_in_place_in_training():
    """It has the tangent and the draws of the one that makes a new tensor."""

    def drawn(f):
        torch.manual_seed(0)
        return jvp(lambda x: f(x * 1), (X,), (X.cos(),))

    with fullgrad.completing():
        expected = drawn(lambda x: F.rrelu(x, training=True))
        torch.testing.assert_close(drawn(lambda x: F.rrelu_(x, training=True)), expected, rtol=0, atol=0)


def test_hinges_of_samples():
    """A batch of one of two inputs, forward over reverse with respect to the other."""
    x, t = seeded(2, 5), torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64)
    f = lambda x, t: F.hinge_embedding_loss(x, t).sin()  # noqa: E731
    g = lambda x, t: jvp(lambda x: (grad(f)(x, t) * x.cos()).sum(), (x,), (X.flatten()[:5],))[1]  # noqa: E731
    with fullgrad.completing():
        torch.testing.assert_close(vmap(g, in_dims=(0, None))(x, t), torch.stack([g(v, t) for v in x]))
        torch.testing.assert_close(vmap(g, in_dims=(None, 0))(x[0], torch.stack([t, -t])), torch.stack([g(x[0], t), g(x[0], -t)]))


def test_distances_of_samples_with_nan():
    """They are where torch has them, for each norm."""
    x, y = seeded(2, 3, 4), seeded(2, 5, 4).cos()
    x[1, 2, 3], y[0, 0, 0] = math.nan, math.inf
    for p in (0.0, 1.0, 2.0, 3.0, math.inf):
        f = lambda x, y, p=p: torch.cdist(x, y, p)  # noqa: E731
        expected = torch.stack([f(a, b) for a, b in zip(x, y, strict=True)])
        with fullgrad.completing():
            torch.testing.assert_close(vmap(f)(x, y), expected, equal_nan=True)


SYSTEMS = {  # matrices and right-hand sides, which broadcast
    "solve": torch.linalg.solve,
    "solve from the right": lambda a, b: torch.linalg.solve(a, b.mT, left=False),
    "solve of factors": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
    "solve of vectors": lambda a, b: torch.linalg.solve(a, b[..., 0] if a.shape[:-1] == b.shape[:-1] else b.reshape(-1)[:2]),
    "least squares of vectors": lambda a, b: torch.linalg.lstsq(
        a.expand(torch.broadcast_shapes(a.shape, (*b.shape[:-2], 1, 1))), (b + a[..., :1])[..., 0]
    )[0],
}


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None), (-1, 1)])
@pytest.mark.parametrize("batches", [((2,), ()), ((), (2,)), ((2, 2), (2,)), ((2,), (1, 2)), ((2,), (2,))])
@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_of_samples_of_other_ranks(name, batches, in_dims):
    """The samples of a batch have their own solutions and gradients, though their matrices have more dimensions or fewer."""
    f = SYSTEMS[name]
    shapes = [[*([] if d is None else [2]), *batch, 2, n] for d, batch, n in zip(in_dims, batches, (2, 3), strict=True)]
    torch.manual_seed(0)
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    given[0] += 3 * torch.eye(2)
    derivative = grad(lambda a, b: f(a, b).square().sum(), (0, 1))
    samples = [[v if d is None else v[i] for v, d in zip(given, in_dims, strict=True)] for i in range(2)]
    moved = [v if d is None else v.movedim(0, d) for v, d in zip(given, in_dims, strict=True)]
    with fullgrad.completing():
        for g in (lambda a, b: (f(a, b),), derivative):
            expected = [torch.stack(v) for v in zip(*[g(*s) for s in samples], strict=True)]
            torch.testing.assert_close(list(vmap(g, in_dims)(*moved)), expected)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_factors_of_symmetric_matrices_along_any_direction(dtype, upper):
    """Every nesting has the derivatives of the symmetric part; the triangle that is not read may hold anything."""
    torch.manual_seed(0)
    a, *vs = torch.randn(4, 3, 3, dtype=dtype)
    a = a @ a.mH + torch.eye(3)
    one = a.triu() if upper else a.tril()
    given = torch.stack([a, one, one.masked_fill(one == 0, math.nan)])
    factor = lambda a: torch.view_as_real(torch.linalg.cholesky(a, upper=upper) + 0j).sin().sum()  # noqa: E731
    steps = {
        "f": lambda f, v: lambda a: jvp(f, (a,), (v,))[1],
        "r": lambda f, v: lambda a: (grad(f)(a) * v.conj()).real.sum(),
    }

    def nested(f, kinds):
        for kind, v in zip(kinds, vs, strict=False):
            f = steps[kind](f, v)
        return f

    with fullgrad.completing():
        for order in (1, 2, 3):
            expected = nested(lambda a: factor((a + a.mH) / 2), "r" * order)(a).expand(3)
            for kinds in itertools.product("fr", repeat=order):
                torch.testing.assert_close(vmap(nested(factor, kinds))(given), expected)
        loss = lambda a: D.MultivariateNormal(a[0], (a + a.mT) / 2).log_prob(a[1])  # noqa: E731
        plain = lambda a: D.MultivariateNormal(a[0], a).log_prob(a[1])  # noqa: E731
        if not dtype.is_complex:
            torch.testing.assert_close(hessian(plain)(a), hessian(loss)(a))


def test_eager_second_derivatives_of_distances_that_broadcast():
    """Also by the rows that all batches share."""
    a, b = [torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, 4), (5, 4))]
    for p in (1.5, 2.0, 3.0):
        f = lambda a, b: torch.cdist(a, b, p=p)  # noqa: B023, E731
        plain = lambda a, b: ((a.unsqueeze(-2) - b.unsqueeze(-3)).abs() ** p).sum(-1) ** (1 / p)  # noqa: B023, E731
        found = []
        for g in (f, plain):
            leaves = [v.clone().requires_grad_() for v in (a, b)]
            with fullgrad.completing():
                slopes = torch.autograd.grad(g(*leaves).sin().sum(), leaves, create_graph=True)
                found.append(torch.autograd.grad(sum((s * v).sum() for s, v in zip(slopes, (a, b), strict=True)), leaves))
        torch.testing.assert_close(found[0], found[1])


def test_alignments_of_one_sample_with_lengths_without_dimensions():
    """They have the derivatives of a batch of one."""
    x, t = torch.randn(2, 6, 4, dtype=torch.float64)
    labels, lengths = torch.tensor([1, 2, 2]), (torch.tensor(6), torch.tensor(3))
    alone = lambda x: F.ctc_loss(x.log_softmax(-1), labels, *lengths)  # noqa: E731
    of_batch = lambda x: F.ctc_loss(x.log_softmax(-1)[:, None], labels[None], *[v[None] for v in lengths])  # noqa: E731
    with fullgrad.completing():
        for way in (lambda f: jvp(f, (x,), (t,)), lambda f: jvp(grad(f), (x,), (t,)), lambda f: hessian(f)(x)):
            torch.testing.assert_close(way(alone), way(of_batch))


ALIGNED = {  # logarithms of shares, labels, and lengths, of two samples
    "labels in rows": torch.tensor([[[1, 2], [3, 3]], [[2, 2], [1, 3]]]),
    "labels in a row": torch.tensor([[1, 2, 3], [3, 1, 2]]),
}
LENGTHS = {"labels in rows": torch.tensor([[2, 1], [1, 1]]), "labels in a row": torch.tensor([[2, 1], [1, 2]])}


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("name", ALIGNED)
def test_ctc_losses_of_lengths_of_samples(name, reduction):
    """They are those of each sample, also where the longest of its labels is shorter; lengths that are too long are refused."""
    steps = torch.tensor([[6, 4], [3, 5]])
    given = seeded(2, 6, 8).unflatten(-1, (2, 4)).log_softmax(-1), ALIGNED[name], steps, LENGTHS[name]
    f = lambda x, *lengths: F.ctc_loss(x, *lengths, reduction=reduction).sin().sum()  # noqa: E731
    tangent = lambda x, *lengths: jvp(lambda x: f(x, *lengths), (x,), (x.cos(),))[1]  # noqa: E731
    ways = f, grad(f), tangent, grad(tangent), lambda x, *lengths: jvp(lambda x: grad(f)(x, *lengths), (x,), (x.cos(),))[1]
    for in_dims in [d for d in itertools.product((0, None), repeat=4) if 0 in d]:
        own = [v if d == 0 else v[0] for v, d in zip(given, in_dims, strict=True)]
        with fullgrad.completing():
            for g in ways:
                expected = [g(*[v[k] if d == 0 else v for v, d in zip(own, in_dims, strict=True)]) for k in range(2)]
                torch.testing.assert_close(vmap(g, in_dims)(*own), torch.stack(expected))
    for wrong in (steps + 2, steps - 9):
        with fullgrad.completing(), pytest.raises(RuntimeError, match="input_lengths"):
            vmap(grad(f))(*given[:2], wrong, given[3])
    with fullgrad.completing(), pytest.raises(RuntimeError, match=r"size|sum"):
        vmap(grad(f))(*given[:3], given[3] + 1)


def test_ctc_losses_of_lengths_in_python():
    """They have the derivatives of the same lengths in tensors, also of each sample, and torch's errors."""
    x, targets = seeded(2, 6, 2, 4), torch.tensor([[1, 2, 2], [3, 1, 0]])
    of = lambda *lengths: lambda x: F.ctc_loss(x.log_softmax(-1), targets, *lengths)  # noqa: E731
    f, expected = of((6, 5), (3, 2)), of(torch.tensor([6, 5]), torch.tensor([3, 2]))
    with fullgrad.completing():
        for way in (grad, lambda f: lambda x: jvp(f, (x,), (x,))[1], lambda f: lambda x: jvp(grad(f), (x,), (x,))[1]):
            assert torch.equal(way(f)(x[0]), way(expected)(x[0]))
        torch.testing.assert_close(vmap(grad(f))(x), torch.stack([grad(expected)(v) for v in x]))
        with pytest.raises(RuntimeError, match="at most 6"):
            grad(of((7, 5), (3, 2)))(x[0])


def put(x, where, value):
    y = 2 * x
    y[where] = value
    return y


MASKED = {
    "a number": lambda x, v: put(x, x > 0.3, 0.5),
    "a tensor": lambda x, v: put(x, x > 0.3, v[0]),
    "one row": lambda x, v: put(x, x[..., 0] > 0, v),
    "one row of rows": lambda x, v: put(x, x[:, 0, 0] > 0, v[None, None]),
    "inner rows": lambda x, v: put(x, (slice(None), x[0, :, 0] > 0), v),
    "last numbers": lambda x, v: put(x, (Ellipsis, x[0, 0] > 0), v[:1]),
    "a part": lambda x, v: put(x, (slice(1, 2), x[0, :, 0] > 0), v),
    "nothing": lambda x, v: put(x, x > 1e9, v[0]),
    "a sum": lambda x, v: (2 * x).index_put((x > 0.3,), v[0], accumulate=True),
}


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("name", MASKED)
def test_masks_of_samples(name, dim):
    """What is written by a mask is that of each sample, with its derivatives, where it is the same for all selected places."""
    f, xs, vs = MASKED[name], seeded(4, 2, 3, 2), seeded(4, 2)

    def found(x, v):
        g = lambda x, v: f(x, v).sin().sum()  # noqa: E731
        tangents = jvp(lambda x, v: jvp(g, (x, v), (x.cos(), v))[1], (x, v), (x, v))
        return f(x, v), *grad(g, (0, 1))(x, v), *tangents, *jvp(grad(g, (0, 1)), (x, v), (x, v.cos()))[1]

    with fullgrad.completing():
        expected = [torch.stack(v) for v in zip(*map(found, xs, vs), strict=True)]
        batches = xs.movedim(0, dim), vs.movedim(0, dim)
        torch.testing.assert_close([*vmap(found, in_dims=dim)(*batches)], expected)


@pytest.mark.parametrize("mask", [lambda x: x[:, :1] > 0, lambda x: x > 0.3])
def test_masks_of_samples_that_are_refused(mask):
    """A mask of another shape, and as many numbers as are selected."""
    with fullgrad.completing(), pytest.raises(RuntimeError, match=r"mask|shape"):
        vmap(lambda x: put(x, mask(x), x.flatten()))(seeded(4, 2, 3))


OF_DISTRIBUTIONS = {
    "categorical": lambda a, b: kl_divergence(D.Categorical(logits=a), D.Categorical(logits=b)),
    "bernoulli": lambda a, b: kl_divergence(D.Bernoulli(logits=a), D.Bernoulli(b.sigmoid())),
    "student": lambda a, b: D.StudentT(a.exp() + 2.5, b, b.exp()).variance,
    "student without": lambda a, b: D.StudentT(a.exp() / 2 + a.new_tensor([5.0, 0.5, 0.0]), b, b.exp()).variance[..., :1],
    "fisher": lambda a, b: D.FisherSnedecor(a.exp() + 5, b.exp() + 5).variance,
    "geometric": lambda a, b: D.Geometric(a.sigmoid()).log_prob(torch.tensor([0.0, 1.0, 2.0])),
    "multinomial": lambda a, b: D.Multinomial(3, logits=a).log_prob(torch.tensor([1.0, 2.0, 0.0])),
}


@pytest.mark.parametrize("name", OF_DISTRIBUTIONS)
def test_distributions_of_samples(name, monkeypatch):
    monkeypatch.setattr(D.Distribution, "_validate_args", False)
    f = lambda a, b: OF_DISTRIBUTIONS[name](a, b).sum()  # noqa: E731
    found = lambda a, b: (f(a, b), *grad(f, (0, 1))(a, b), *jvp(grad(f, (0, 1)), (a, b), (b, a))[1])  # noqa: E731
    a, b = seeded(4, 3), seeded(4, 3) * 0.7
    expected = [torch.stack(v) for v in zip(*map(found, a, b), strict=True)]
    with fullgrad.completing():
        torch.testing.assert_close([*vmap(found)(a, b)], expected)


def test_variances_of_samples_that_are_infinite_or_none():
    df = torch.tensor([[0.5, 1.0, 1.5, 2.0], [3.0, 2.5, math.inf, 4.0]])
    with fullgrad.completing():
        found = vmap(lambda df: D.StudentT(df, 0.0, 2.0, validate_args=False).variance)(df)
    torch.testing.assert_close(found, D.StudentT(df, 0.0, 2.0, validate_args=False).variance, rtol=0, atol=0, equal_nan=True)


OF_CONJUGATES = {
    "imaginary part": lambda z: z.conj().imag.sin() * z.mH.imag.mT,
    "imaginary part of a row": lambda z: z.conj()[0].imag * z.imag[1],
    "transform": lambda z: torch.fft.hfft(z.real.to(z.dtype)).sin(),
    "what is written": lambda z: torch.view_as_real(written_to_imaginary_part(z)).sin(),
}


def written_to_imaginary_part(z):
    y = 2 * z
    y.conj().imag[0].mul_(y.real[1])
    return y


@pytest.mark.parametrize("name", OF_CONJUGATES)
def test_imaginary_parts_of_conjugates_of_samples(name):
    """torch has no batch of the view that they are; what is written to one is written to the tensor."""
    f = lambda z: OF_CONJUGATES[name](z).sum()  # noqa: E731
    batch = torch.complex(seeded(2, 3, 3), seeded(2, 3, 3).cos())

    def found(z):
        return f(z), grad(f)(z), jvp(f, (z,), (z.exp(),))[1], jvp(grad(f), (z,), (z.exp(),))[1]

    with fullgrad.completing():
        expected = [torch.stack(v) for v in zip(*map(found, batch), strict=True)]
        for dim in (0, 2):
            torch.testing.assert_close([*vmap(found, in_dims=dim)(batch.movedim(0, dim))], expected)
        nested = vmap(vmap(found))(batch[None])
        torch.testing.assert_close([v[0] for v in nested], expected)


@pytest.mark.parametrize("options", [{}, {"center": False}, {"onesided": False, "normalized": True}])
def test_windows_of_samples_that_are_shorter(options):
    """Spectra have the value and the derivatives of each sample, by signal and window."""
    x, w = seeded(2, 9), seeded(2, 3) + 2

    def f(x, w):
        return torch.stft(x, 6, 2, 3, window=w, return_complex=True, **options).abs().sum()

    def found(x, w):
        return f(x, w), *grad(f, (0, 1))(x, w), jvp(f, (x, w), (x, w))[1], *jvp(grad(f, (0, 1)), (x, w), (x.cos(), w))[1]

    expected = [torch.stack(v) for v in zip(*map(found, x, w), strict=True)]
    with fullgrad.completing():
        torch.testing.assert_close([*vmap(found)(x, w)], expected)
        of_windows = vmap(found, in_dims=(None, 0))(x[0], w)
        torch.testing.assert_close([v[0] for v in of_windows], [v[0] for v in expected])


LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
POOLS = {
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (2, 2, 4, 4)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (1, 2, 2, 4, 4)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), (2, 2, 4, 3)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), (1, 2, 3, 4, 4)),
}


@pytest.mark.parametrize("name", POOLS)
def test_directions_of_images_with_channels_last(name):
    """Second derivatives along a batch of directions do not depend on the order of the memory."""
    f, shape = POOLS[name]
    x, directions = seeded(*shape), seeded(3, *shape)
    slope = grad(lambda x: f(x).sin().sum())

    def along(x):
        reverse = vmap(lambda v: grad(lambda x: (slope(x) * v).sum())(x))(directions)
        return reverse, vmap(lambda v: jvp(slope, (x,), (v,))[1])(directions)

    with fullgrad.completing():
        torch.testing.assert_close(along(x.to(memory_format=LAST[x.ndim])), along(x))


SUMS = {
    "addmm": ((2, 2), (2, 3), (3, 2)),
    "addmv": ((2,), (2, 3), (3,)),
    "addr": ((2, 2), (2,), (2,)),
    "addbmm": ((2, 2), (4, 2, 3), (4, 3, 2)),
    "baddbmm": ((4, 2, 2), (4, 2, 3), (4, 3, 2)),
}


def batches_of(f, *inputs):
    """Each choice of inputs that are batched, with the results of the samples."""
    for of_samples in itertools.product((True, False), repeat=len(inputs)):
        if any(of_samples):
            own = [x if batched else x[0] for x, batched in zip(inputs, of_samples, strict=True)]
            samples = [[x[i] if b else x for x, b in zip(own, of_samples, strict=True)] for i in range(len(inputs[0]))]
            yield [0 if b else None for b in of_samples], own, [f(*s) for s in samples]


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_ignore_an_input(name):
    """With ``beta=0`` what is no number has no part in the result, nor in a gradient, in which it is an input still."""
    x, *factors = [torch.stack([seeded(*shape), seeded(*shape).cos()]) for shape in SUMS[name]]
    f = lambda *xs: getattr(torch, name)(*xs, beta=0, alpha=2)  # noqa: E731
    of = grad(lambda *xs: f(*xs).sin().sum(), (0, 1, 2))
    for number in (math.nan, math.inf, 1.0):
        for dims, inputs, right in batches_of(f, number * x, *factors):
            with fullgrad.completing():
                torch.testing.assert_close(vmap(f, tuple(dims))(*inputs), torch.stack(right))
        for dims, inputs, right in batches_of(of, number * x, *factors):
            with fullgrad.completing():
                torch.testing.assert_close(vmap(of, tuple(dims))(*inputs), tuple(map(torch.stack, zip(*right, strict=True))))


@pytest.mark.parametrize("name", [name for name in SUMS if name != "addr"])
def test_sums_of_integers_with_fractions_as_factors(name):
    """torch leaves the fractions out."""
    inputs = [torch.stack([(5 * seeded(*shape)).long(), (5 * seeded(*shape).cos()).long()]) for shape in SUMS[name]]
    for beta, alpha in ((0.2, 0.6), (1.7, -2.6), (2, 3), (3.0, 0)):
        f = lambda *xs, b=beta, a=alpha: getattr(torch, name)(*xs, beta=b, alpha=a)  # noqa: E731
        for dims, own, right in batches_of(f, *inputs):
            with fullgrad.completing():
                found = vmap(f, tuple(dims))(*own)
            torch.testing.assert_close(found, torch.stack(right))
