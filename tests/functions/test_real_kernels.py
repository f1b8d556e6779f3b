"""Real kernels with their mathematics, under transforms that torch has no rules for, against plain code."""

import math

import numpy
import pytest
import scipy.fft
import scipy.sparse
import scipy.special
import torch
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.nn import functional
from torch.testing import assert_close

import fullgrad
from fullgrad._suite.cases._case import numbers

# --- Attention ------------------------------------------------------------------------------------------------------------


def flash(q, k, v):
    """torch's fused attention for the CPU: the result, and the logarithms of the sums for its backward."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)


def attention(q, k, v):
    """Its mathematics."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v, None


def flash_backward(inputs, outputs, grads):
    """Its fused backward."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(grads[0], *inputs, *outputs, 0.0, False)


fused = fullgrad.with_reference(flash, attention, backward=flash_backward, nondiff_outnums=1)
Q, K, V = (numbers(2, 2, 4, 8, seed=i) for i in range(3))


def test_attention():
    """The tangent of a fused kernel (flow models), Hessians and per-sample gradients, those of the mathematics."""

    def of(f):
        return lambda q: f(q[None], K[:1], V[:1])[0][0]

    def loss(f):
        return lambda q: (of(f)(q) ** 2).sum()

    for run in (
        lambda f: jvp(of(f), (Q[0],), (Q[1],))[1],
        lambda f: vmap(grad(loss(f)))(Q),
        lambda f: grad(lambda q: jvp(of(f), (q,), (Q[1],))[1].square().sum())(Q[0]),
        lambda f: vmap(hessian(loss(f)))(Q[:, :, :1, :4].repeat(1, 1, 1, 2)),
    ):
        assert_close(run(fused), run(attention))
    assert torch.autograd.gradgradcheck(lambda q: fused(q, K, V)[0].sum(1), Q.clone().requires_grad_(), fast_mode=True)


# --- Sampling of an image, in torch without a second derivative ------------------------------------------------------------


def sampled(image, grid):
    """torch's kernel."""
    return functional.grid_sample(image, grid, align_corners=True, padding_mode="border")


def sampled_backward(inputs, outputs, g):
    """Its backward, by autograd."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(sampled(*leaves), leaves, g)


def bilinear(image, grid):
    """The same of plain operations."""
    (h, w), (n, c) = image.shape[2:], image.shape[:2]
    x = ((grid[..., 0] + 1) * (w - 1) / 2).clamp(0, w - 1)
    y = ((grid[..., 1] + 1) * (h - 1) / 2).clamp(0, h - 1)
    x0, y0 = x.detach().floor().clamp(max=w - 2), y.detach().floor().clamp(max=h - 2)
    a, b, flat = x - x0, y - y0, image.flatten(2)

    def at(i, j):
        where = ((y0 + i) * w + x0 + j).long().flatten(1)[:, None].expand(n, c, -1)
        return flat.gather(2, where).reshape(n, c, *x.shape[1:])

    a, b = a[:, None], b[:, None]
    return at(0, 0) * (1 - a) * (1 - b) + at(0, 1) * a * (1 - b) + at(1, 0) * (1 - a) * b + at(1, 1) * a * b


def test_grid_sample():
    """Double backward, which torch lacks on some devices, tangents, Hessians and per-sample gradients."""
    f = fullgrad.with_reference(sampled, bilinear, backward=sampled_backward)
    image, grid = numbers(1, 2, 5, 4), 0.9 * torch.tanh(numbers(1, 3, 3, 2, seed=1))
    assert_close(f(image, grid), bilinear(image, grid))

    def loss(f):
        return lambda image, grid: (f(image, grid) ** 2).sum()

    batch = torch.stack([grid, -grid])
    for run in (
        lambda f: grad(loss(f), (0, 1))(image, grid),
        lambda f: vmap(grad(loss(f), (0, 1)), (None, 0))(image, batch),
        lambda f: jvp(f, (image, grid), (image, grid))[1],
        lambda f: hessian(loss(f), 1)(image, grid),
        lambda f: jacfwd(grad(loss(f), 1), 0)(image, grid),
    ):
        assert_close(run(f), run(bilinear))


# --- A hash grid ----------------------------------------------------------------------------------------------------------

PRIMES = (1, 2654435761)


def looked_up(table, x):
    """Features of points in the unit square, interpolated from a table in which cells are found by a hash, by numpy."""
    t, p = table.numpy(), x.numpy() * 16
    low = numpy.floor(p).astype(numpy.int64)
    a, found = p - low, 0
    for i in (0, 1):
        for j in (0, 1):
            where = ((low[:, 0] + i) * PRIMES[0] ^ (low[:, 1] + j) * PRIMES[1]) % len(t)
            weight = numpy.abs(1 - i - a[:, 0]) * numpy.abs(1 - j - a[:, 1])
            found = found + weight[:, None] * t[where]
    return torch.from_numpy(found)


def looked_up_by_torch(table, x):
    """The same of torch's operators."""
    p = x * 16
    low = p.detach().floor().long()
    a, found = p - low, 0
    for i in (0, 1):
        for j in (0, 1):
            where = ((low[:, 0] + i) * PRIMES[0] ^ (low[:, 1] + j) * PRIMES[1]) % len(table)
            weight = (a[:, 0] if i else 1 - a[:, 0]) * (a[:, 1] if j else 1 - a[:, 1])
            found = found + weight[:, None] * table[where]
    return found


def test_hash_grid():
    """Normals of a field are gradients by the points, and their derivative by the table is a second one."""
    f = fullgrad.with_reference(looked_up, looked_up_by_torch)
    table, x = numbers(64, 2), torch.rand(5, 2, dtype=torch.float64)

    def normals(f):
        return lambda table, x: grad(lambda x: f(table, x).sin().sum())(x)

    for run in (
        lambda f: normals(f)(table, x),
        lambda f: grad(lambda t: normals(f)(t, x).square().sum())(table),
        lambda f: vmap(lambda x: f(table, x[None])[0])(x),
        lambda f: vmap(hessian(lambda x: f(table, x[None]).prod()))(x),
    ):
        assert_close(run(f), run(looked_up_by_torch))


# --- Linear maps ----------------------------------------------------------------------------------------------------------


def cosine(x):
    """A cosine transform by scipy, which torch lacks."""
    return torch.from_numpy(scipy.fft.dct(x.numpy(), norm="ortho"))


def inverse_cosine(x):
    """Its inverse, and transpose."""
    return torch.from_numpy(scipy.fft.idct(x.numpy(), norm="ortho"))


SIDE, ANGLES = 6, 5


def projections():
    """The matrix of a Radon transform: sums of an image along lines of some angles."""
    y, x = numpy.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    entries = []
    for i, angle in enumerate(numpy.linspace(0, numpy.pi, ANGLES, endpoint=False)):
        bins = numpy.round(x * numpy.cos(angle) + y * numpy.sin(angle) + SIDE / 2).astype(int).clip(0, SIDE - 1)
        entries += [(i * SIDE + b, pixel) for pixel, b in enumerate(bins.ravel())]
    rows, columns = zip(*entries, strict=True)
    return scipy.sparse.csr_matrix((numpy.ones(len(rows)), (rows, columns)), (ANGLES * SIDE, SIDE * SIDE))


RADON = projections()


def by_matrix(matrix):
    """A product with a sparse matrix, for vectors with leading dimensions."""

    def product(x):
        flat = x.numpy().reshape(-1, x.shape[-1])
        return torch.from_numpy((matrix @ flat.T).T.reshape(*x.shape[:-1], -1))

    return product


LINEAR = {
    "cosine transform": (
        fullgrad.linear_map(cosine, inverse_cosine, vmap_method="broadcast"),
        torch.from_numpy(scipy.fft.dct(numpy.eye(36), axis=0, norm="ortho")),
    ),
    "Radon transform": (
        fullgrad.linear_map(by_matrix(RADON), by_matrix(RADON.T), vmap_method="broadcast"),
        torch.from_numpy(RADON.toarray()),
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_maps(name):
    """Least squares with a transform of scipy: gradient, Hessian and per-sample gradients, by products alone."""
    f, matrix = LINEAR[name]
    x, y = numbers(3, 36), numbers(matrix.shape[0], seed=1)

    def loss(f):
        return lambda x: (f(x).tanh() - y).square().sum()

    for run in (
        lambda f: vmap(grad(loss(f)))(x),
        lambda f: hessian(loss(f))(x[0]),
        lambda f: jvp(grad(loss(f)), (x[0],), (x[1],))[1],
    ):
        assert_close(run(f), run(lambda x: x @ matrix.T))


def test_a_special_function():
    """The scaled complementary error function of scipy, with the rule from the tables."""
    erfcx = fullgrad.custom_jvp(lambda x: torch.as_tensor(scipy.special.erfcx(x.numpy())), vmap_method="broadcast")
    erfcx.defjvp(lambda p, t: (erfcx(*p), (2 * p[0] * erfcx(*p) - 2 / math.sqrt(math.pi)) * t[0]))
    x = numbers(5)
    for run in (
        lambda f: f(x),
        lambda f: vmap(grad(f))(x),
        lambda f: vmap(hessian(f))(x),
        lambda f: hessian(lambda x: f(x).square().sum())(x),
    ):
        assert_close(run(erfcx), run(torch.special.erfcx), rtol=1e-6, atol=1e-9)
