"""Calls inside `completing` that are made in other words: the same numbers, and no error."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
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
