"""SoftSort in linear memory: equal to the matrix formula, at every order, under every transform, in every range.

`SoftSort` takes the matrix for short rows and the kernels for long ones. Here the kernels alone compute rows of every length.
"""

import subprocess
import sys
import warnings

import pytest
import torch
from torch.autograd import forward_ad as fwAD
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fullgrad.soft.order._numbers import tie_bounds
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.kernels import exponential, window
from fullgrad.soft.order.methods.softsort import SoftSort
from fullgrad.testing._subject import close

POWER = {"c0": 1, "c1": 2, "c2": 3}
MODES = ("smooth", *POWER)


def averages(a, h, mode):
    ties = tie_bounds(a)
    return exponential.averages(a, h, ties) if mode == "smooth" else window.averages(a, h, ties, POWER[mode])


def soft_values(u, x, mode):
    a, order = torch.sort(u, dim=-1, stable=True)
    return averages(a, x.gather(-1, order), mode)


def soft_ranks(u, mode):
    a, order = torch.sort(u, dim=-1, stable=True)
    ranks = torch.arange(1, u.shape[-1] + 1, dtype=u.dtype).expand(a.shape)
    return averages(a, ranks, mode).gather(-1, torch.argsort(order, dim=-1))


def draw(*shape, ties=False, scale=2.0, seed=0, dtype=torch.float64):
    u = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (u.round() if ties else u).to(dtype)


def project(v, mode):
    """The simplex projection: a threshold by bisection, then by recorded Newton steps, each of which gives one more order."""
    if mode == "smooth":
        return torch.softmax(v, -1)
    power, w = POWER[mode], v.detach()
    low = w.amax(-1, keepdim=True) - 1
    high = low + 1
    for _ in range(60):
        middle = (low + high) / 2
        above = ((w - middle).clamp(min=0) ** power).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    inside, threshold = (w - low > 1e-14).to(v.dtype), low
    for _ in range(4):
        t = (v - threshold) * inside
        slope = power * (t ** (power - 1) * inside).sum(-1, keepdim=True)
        threshold = threshold + ((t**power).sum(-1, keepdim=True) - 1) / slope
    return ((v - threshold) * inside) ** power


def dense_values(u, x, mode):
    a = torch.sort(u, dim=-1, stable=True).values
    return (project(-(a.unsqueeze(-1) - u.unsqueeze(-2)).abs(), mode) @ x.unsqueeze(-1)).squeeze(-1)


def dense_ranks(u, mode):
    a = torch.sort(u, dim=-1, stable=True).values
    weights = project(-(u.unsqueeze(-1) - a.unsqueeze(-2)).abs(), mode)
    return weights @ torch.arange(1, u.shape[-1] + 1, dtype=u.dtype)


def weighed(f):
    """A scalar whose derivatives of all orders are different from 0."""
    return lambda *args: (f(*args) * torch.linspace(0.1, 1, args[0].shape[-1], dtype=args[0].dtype)).sin().sum()


@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 13, 14, 40, 101])
@pytest.mark.parametrize("mode", MODES)
def test_value_and_gradient_are_those_of_the_matrix(mode, n, ties, scale):
    u, x = draw(3, n, ties=ties, scale=max(scale, 1.0) if ties else scale), draw(3, n, seed=1)
    for ours, theirs, args in (
        (lambda u, x: soft_values(u, x, mode), lambda u, x: dense_values(u, x, mode), (u, x)),
        (lambda u: soft_ranks(u, mode), lambda u: dense_ranks(u, mode), (u,)),
    ):
        close(ours(*args), theirs(*args), rtol=1e-11, atol=1e-11)
        for i in range(len(args)):
            close(grad(weighed(ours), i)(*args), grad(weighed(theirs), i)(*args), rtol=1e-10, atol=1e-10)


@pytest.mark.long(but=6)
@pytest.mark.parametrize(
    "transform", [hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacfwd(f))], ids=["mixed", "back", "fwd"]
)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_second_derivative_is_that_of_the_matrix(mode, ties, transform):
    u, x = draw(2, 7, ties=ties, scale=1.0), draw(2, 7, seed=1)
    both = torch.stack((u, x))
    ours, theirs = (weighed(lambda v, f=f: f(v[0], v[1], mode)) for f in (soft_values, dense_values))
    close(transform(ours)(both), transform(theirs)(both), rtol=1e-10, atol=1e-10)
    ours, theirs = (weighed(lambda v, f=f: f(v, mode)) for f in (soft_ranks, dense_ranks))
    close(transform(ours)(u), transform(theirs)(u), rtol=1e-9, atol=1e-9)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moved", [0, 1])
def test_tangent_of_one_input_is_that_of_both_with_a_zero(moved, mode):
    """Rules are told which input has none."""
    inputs = [torch.sort(draw(2, 9, ties=True)).values, draw(2, 9, seed=1)]
    direction = draw(2, 9, seed=2)
    tangents = [direction * (i == moved) for i in range(2)]

    def f(u, x):
        return weighed(lambda u, x: soft_values(u, x, mode))(u, x)

    alone = [direction if i == moved else None for i in range(2)]
    with fwAD.dual_level():
        duals = [v if t is None else fwAD.make_dual(v, t) for v, t in zip(inputs, alone, strict=True)]
        found = fwAD.unpack_dual(f(*duals)).tangent
    close(found, jvp(f, tuple(inputs), tuple(tangents))[1])


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
def test_third_derivative_is_that_of_the_matrix(mode):
    u = draw(5, scale=0.5)
    ours, theirs = (weighed(lambda v, f=f: f(v, v, mode)) for f in (soft_values, dense_values))
    close(jacfwd(hessian(ours))(u), jacfwd(hessian(theirs))(u), rtol=1e-8, atol=1e-8)
    close(grad(lambda v: hessian(ours)(v).sum())(u), grad(lambda v: hessian(theirs)(v).sum())(u), rtol=1e-8, atol=1e-8)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
def test_numbers_confirm_the_derivatives(mode):
    u, x = draw(2, 6, scale=0.7).requires_grad_(), draw(2, 6, seed=1).requires_grad_()
    f = lambda u, x: soft_values(u, x, mode)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert gradcheck(f, (u, x), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
        assert gradgradcheck(f, (u, x), check_batched_grad=True, check_fwd_over_rev=True)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_a_loop(mode):
    u, x = draw(4, 3, 9), draw(4, 3, 9, seed=1)
    f = grad(weighed(lambda u, x: soft_values(u, x, mode)), (0, 1))
    loop = [torch.stack(parts) for parts in zip(*[f(u[i], x[i]) for i in range(4)], strict=True)]
    close(list(vmap(f)(u, x)), loop)
    close(list(vmap(vmap(f))(u, x)), loop)
    close(list(vmap(f, in_dims=(None, 0))(u[0], x)), [torch.stack(p) for p in zip(*[f(u[0], y) for y in x], strict=True)])
    close(
        list(vmap(f, in_dims=(2, None))(u, x[..., 0])),
        [torch.stack(p) for p in zip(*[f(v, x[..., 0]) for v in u.unbind(2)], strict=True)],
    )


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_many_cotangents_at_once(mode):
    u = draw(2, 5).requires_grad_()
    y = soft_values(u, u, mode)
    g = draw(3, 2, 5, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (batched,) = torch.autograd.grad(y, u, g, is_grads_batched=True, retain_graph=True)
    close(batched, torch.stack([torch.autograd.grad(y, u, one, retain_graph=True)[0] for one in g]))


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_compiled_and_traced(mode):
    u, other = draw(2, 6), draw(2, 6, seed=1)
    f = weighed(lambda u: soft_values(u, u, mode) + soft_ranks(u, mode))
    close(torch.compile(f, fullgraph=True, backend="aot_eager")(u), f(u))
    v = u.clone().requires_grad_()
    torch.compile(f, fullgraph=True, backend="aot_eager")(v).backward()
    close(v.grad, grad(f)(u))
    close(torch.compile(grad(f), fullgraph=True, backend="aot_eager")(u), grad(f)(u))
    traced = make_fx(grad(f))(u)
    close(traced(other), grad(f)(other))
    close(vmap(traced)(torch.stack((u, other))), torch.stack((grad(f)(u), grad(f)(other))))


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_empty_single_equal(mode):
    for shape in ((0, 5), (3, 1), (2, 0, 4)):
        u = torch.zeros(shape, requires_grad=True)
        y = soft_values(u, u * 2, mode)
        y.sum().backward()
        assert y.shape == shape
        assert torch.equal(u.grad, torch.full(shape, 2.0))
    u = torch.full((2, 50), 3.0, dtype=torch.float64)
    close(soft_values(u, draw(50).expand(2, 50), mode), draw(50).mean().expand(2, 50))
    close(soft_ranks(u, mode), torch.full_like(u, 25.5))
    meta = torch.zeros(2, 5, device="meta", requires_grad=True)
    assert torch.autograd.grad(soft_values(meta, meta, mode).sum(), meta)[0].shape == (2, 5)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_not_a_number_is_not_a_number(mode):
    u = draw(2, 8)
    u[0, 3] = torch.nan
    y = soft_values(u, u.nan_to_num(), mode)
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


@pytest.mark.parametrize("softness", [1e-6, 1e-3, 0.1, 10.0])
@pytest.mark.parametrize("mode", MODES)
def test_float32_has_the_digits_of_float64(mode, softness):
    """The gradient is that of float64 matrices, relative to its largest element, at any softness."""
    n = 1024
    # Multiples of a power of 2, so that ties occur; the division by the softness is part of neither.
    u = ((torch.randn(n, generator=torch.Generator().manual_seed(3)) * 2**12).round() / 2**12 / softness).requires_grad_()
    g = torch.randn(n, generator=torch.Generator().manual_seed(4))
    x = (u.detach() * softness).requires_grad_()
    y = SoftSort().values(Rows(x, u, 1.0, mode))
    ours = torch.autograd.grad(y, (u, x), g)
    wide_u, wide_x = u.detach().double().requires_grad_(), x.detach().double().requires_grad_()
    expected = dense_values(wide_u, wide_x, mode)
    theirs = torch.autograd.grad(expected, (wide_u, wide_x), g.double())
    assert y.dtype == torch.float32
    assert (y - expected).abs().max() <= 2e-7 * expected.abs().max()
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() <= 2e-7 * b.abs().max() + 1e-12


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_saves_rows_and_no_matrix(mode):
    n, saved = 4096, []
    u = draw(n, dtype=torch.float32).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = SoftSort().values(Rows(u, u, 1.0, mode))
    assert max(t.numel() for t in saved) <= 4 * n
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    assert sum(kept.values()) <= 400 * n
    y.sum().backward()


PEAK = """
import resource, torch
torch.set_num_threads(1)
from fullgrad.soft.order._rows import Rows
from fullgrad.soft.order.methods.softsort import SoftSort
def run(n):
    for mode in ("smooth", "c0", "c1", "c2"):
        u = torch.linspace(-5, 5, n).requires_grad_()
        rows = Rows(u, u, 1.0, mode)
        SoftSort().values(rows).sum().backward()
        SoftSort().ranks(rows).sum().backward()
run(600)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(16384)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.long
def test_memory_is_linear():
    """Memory beyond that for a short row is a few megabytes, where one matrix would take 1024."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 64


@pytest.mark.short
@pytest.mark.parametrize("n", [9, 1024], ids=["short", "long"])
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_every_length_have_the_derivatives_of_the_kernels(mode, n):
    """A short row, computed as a matrix, and a long one give the kernels' value, gradient and Hessian-vector product."""
    u, x = draw(2, n, ties=True), draw(2, n, seed=1)
    direction = u.cos(), x.sin()
    rows = lambda u, x: Rows(x, u / 2, 0.5, mode)  # noqa: E731
    for ours, kernels in (
        (lambda u, x: SoftSort().values(rows(u, x)), lambda u, x: soft_values(u, x, mode)),
        (lambda u, x: SoftSort().ranks(rows(u, x)), lambda u, x: soft_ranks(u, mode)),
    ):
        found, expected = ((f(u, x), *jvp(grad(weighed(f)), (u, x), direction)) for f in (ours, kernels))
        close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.short
@pytest.mark.parametrize("n", [0, 1, 2, 33, 64, 101])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)])
def test_scans_of_any_shape_are_loops(shape, n):
    """Scans equal loops."""
    decay, values = (torch.rand(*shape, n, dtype=torch.float64) for _ in range(2))
    sums = [values[..., :1]][: min(n, 1)]
    for i in range(1, n):
        sums.append(values[..., i : i + 1] + decay[..., i : i + 1] * sums[-1])
    expected = torch.cat(sums, -1) if n else values
    close(exponential._scan(decay, values), expected)
