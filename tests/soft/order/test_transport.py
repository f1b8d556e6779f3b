"""The projection onto the transport polytope: marginals, optimality, golden values, derivatives of every order, hard cases."""

import math

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jvp, vmap

from fullgrad import soft
from fullgrad.soft.order.kernels import transport_dual
from fullgrad.soft.order.projections.transport_polytope import Balance, Potentials, plan
from fullgrad.testing import check_operator

MODES = ("smooth", "c0", "c1", "c2")
ALPHA = {"c0": 1, "c1": 2, "c2": 3}
# A scale of the cost at which part of the plan of 5 x 4 is empty in the c-modes, and the support is connected.
SCALE = {"smooth": 3.0, "c0": 0.5, "c1": 1.0, "c2": 1.0}
float64 = torch.float64


def uniform(n):
    return torch.full((n,), 1 / n, dtype=float64)


def example(mode, *batch, n=5, m=4, seed=1):
    """A cost and marginals of which no two agree."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(*shape, generator=rng, dtype=float64)  # noqa: E731
    cost, mu, nu = SCALE[mode] * draw(*batch, n, m), draw(n) + 0.5, draw(*batch, m) + 0.5
    return cost, mu / mu.sum(), nu


def squared(n, m, softness, *batch, seed=0):
    """The cost of moving points in (0, 1) to m even places."""
    z = torch.rand(*batch, n, generator=torch.Generator().manual_seed(seed), dtype=float64)
    return (z[..., None] - torch.linspace(0, 1, m, dtype=float64)) ** 2 / softness


def check_marginals(gamma, mu, nu, tolerance=1e-10):
    nu = nu * (mu.sum(-1, keepdim=True) / nu.sum(-1, keepdim=True))
    torch.testing.assert_close(gamma.sum(-1), mu.expand(gamma.shape[:-1]), rtol=0, atol=tolerance)
    torch.testing.assert_close(gamma.sum(-2), nu.expand(*gamma.shape[:-2], gamma.shape[-1]), rtol=0, atol=tolerance)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_the_offset_of_a_row_gives_its_mass(mode):
    """The offset gives the mass to rounding, from a guess on either side and without one."""
    scores, mass = example(mode, 3, n=6)[0] * 4, torch.rand(3, 6, dtype=float64) + 0.1
    for guess in (None, torch.full_like(mass, -9.0), torch.full_like(mass, 9.0)):
        t = scores + transport_dual._rows(scores, mass, guess, mode)[..., None]
        found = t.exp() if mode == "smooth" else t.relu() ** ALPHA[mode]
        torch.testing.assert_close(found.sum(-1), mass, rtol=1e-14, atol=0)


def test_a_laplacian_of_almost_separate_columns_keeps_its_digits():
    """The diagonal is exact where each row but for 1e-20 goes to one column, and a difference would be 0."""
    omega = torch.eye(4, dtype=float64) + 1e-20
    found = transport_dual.laplacian(omega, omega.sum(-1), torch.full((4,), 1e-21, dtype=float64))
    expected = (6e-20 + 1e-21 + 2e-20) * torch.eye(4, dtype=float64) - 2e-20
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0), (0, 3, 2), (2, 3, 0)])
def test_a_plan_of_nothing_is_empty(shape, mode):
    """The plan and its gradient are empty."""
    cost, mu, nu = torch.zeros(shape, requires_grad=True), torch.ones(shape[-2]), torch.ones(shape[-1])
    gamma = soft.proj_transport_polytope(cost, mu, nu, mode=mode)
    assert gamma.shape == shape
    assert torch.autograd.grad(gamma.sum(), cost)[0].shape == shape


def newton(cost, mu, nu, mode):
    """The plan in plain torch code: two dense steps of Newton from the solution have its derivatives to the third order."""
    n = cost.shape[-2]
    nu = nu * (mu.sum(-1, keepdim=True) / nu.sum(-1, keepdim=True))
    f, g = (v.detach() for v in Potentials.apply(cost.detach(), mu.detach(), nu.detach(), mode))
    x, first = torch.cat([f, g[..., 1:]], -1), torch.zeros_like(g[..., :1])

    def link(x):
        t = x[..., :n, None] + torch.cat([first, x[..., n:]], -1)[..., None, :] - cost
        if mode == "smooth":
            return t.exp(), t.exp()
        alpha = ALPHA[mode]
        return t.relu() ** alpha, alpha * t.relu() ** (alpha - 1) if alpha > 1 else (t > 0).to(t.dtype)

    for _ in range(2):
        gamma, omega = link(x)
        lacking = torch.cat([mu - gamma.sum(-1), (nu - gamma.sum(-2))[..., 1:]], -1)
        rest = omega[..., 1:]
        top = torch.cat([torch.diag_embed(omega.sum(-1)), rest], -1)
        matrix = torch.cat([top, torch.cat([rest.mT, torch.diag_embed(rest.sum(-2))], -1)], -2)
        # Not torch.linalg.solve, whose forward mode over forward mode is wrong.
        x = x + (torch.linalg.inv(matrix) @ lacking[..., None])[..., 0]
    return link(x)[0]


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=4)
@pytest.mark.parametrize("softness", [10.0, 0.1, 1e-2, 1e-4])
@pytest.mark.parametrize("mode", MODES)
def test_marginals(mode, softness):
    """Rows and columns have the given sums, for smooth and all but hard plans, even, few and uneven places."""
    for n, m in ((6, 6), (40, 40), (30, 2), (3, 9), (12, 5)):
        cost, mu = squared(n, m, softness, 3), uniform(n)
        for nu in (uniform(m), torch.linspace(1, 3, m, dtype=float64)):
            check_marginals(plan(cost, mu, nu, mode), mu, nu)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_any_cost(mode):
    """Costs without structure, with skewed marginals, are right."""
    rng = torch.Generator().manual_seed(2)
    for softness in (1.0, 1e-2, 1e-4):
        cost = torch.randn(4, 20, 20, generator=rng, dtype=float64) / softness
        mu = torch.rand(4, 20, generator=rng, dtype=float64) ** 4 + 1e-6
        check_marginals(plan(cost, mu / mu.sum(-1, keepdim=True), uniform(20), mode), mu / mu.sum(-1, keepdim=True), uniform(20))


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_optimality(mode):
    """The gradient of the objective is f + g on the support, and not less off it."""
    cost, mu, nu = example(mode, 2)
    nu = nu / nu.sum(-1, keepdim=True)
    f, g = Potentials.apply(cost, mu, nu, mode)
    gamma = plan(cost, mu, nu, mode)
    slope = cost + (gamma.log() if mode == "smooth" else gamma ** (1 / ALPHA[mode]))
    reduced = slope - f[..., :, None] - g[..., None, :]
    torch.testing.assert_close(reduced[gamma > 0], torch.zeros_like(reduced[gamma > 0]), rtol=0, atol=1e-9)
    assert (reduced >= -1e-9).all()
    assert mode == "smooth" or (gamma == 0).any()


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_hard_limit_sorts(mode):
    """At a tiny softness the plan for squared distances is the matching in order."""
    z = torch.tensor([0.3, 0.9, 0.1, 0.6], dtype=float64)
    gamma = plan((z[:, None] - torch.linspace(0, 1, 4, dtype=float64)) ** 2 / 1e-5, uniform(4), uniform(4), mode)
    expected = torch.nn.functional.one_hot(z.argsort().argsort(), 4).to(float64) / 4
    torch.testing.assert_close(gamma, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("front", [(1,), (1, 1), (1, 1, 1)])
def test_rows_behind_dimensions_of_size_1(front):
    """One system solves the rows, whatever dimensions stand in front."""
    x = torch.randn(4, dtype=float64)
    f = lambda x: soft.sort(x, softness=0.5, mode="c1", method="ot").values  # noqa: E731
    g = lambda x: f(x).square().sum()  # noqa: E731
    torch.testing.assert_close(f(x.reshape(*front, 4)).reshape(4), f(x))
    torch.testing.assert_close(grad(g)(x.reshape(*front, 4)).reshape(4), grad(g)(x))
    torch.testing.assert_close(hessian(g)(x.reshape(*front, 4)).reshape(4, 4), hessian(g)(x))


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_the_plan_of_the_transposed_cost_is_the_transposed_plan(mode):
    """The plan of the transposed cost is the transposed plan."""
    cost, mu, nu = example(mode, 2)
    nu = nu / nu.sum(-1, keepdim=True)
    torch.testing.assert_close(plan(cost.mT, nu, mu, mode), plan(cost, mu, nu, mode).mT, rtol=1e-9, atol=1e-11)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_potentials_are_canceled(mode):
    """A cost increased by a_i + b_j has the same plan."""
    cost, mu, nu = example(mode)
    more = torch.linspace(-3, 4, 5, dtype=float64)[:, None] + torch.linspace(0, 2, 4, dtype=float64)
    torch.testing.assert_close(plan(cost + more, mu, nu, mode), plan(cost, mu, nu, mode), rtol=1e-9, atol=1e-11)


def test_marginals_are_raised_and_scaled():
    """A marginal of 0 counts as 1e-12; the columns' total is made the rows'."""
    cost, mu = squared(5, 4, 0.1), uniform(5)
    nu = torch.tensor([3.0, 1.0, 1.0, 0.0], dtype=float64)
    for mode in MODES:
        gamma = plan(cost, mu, nu, mode)
        check_marginals(gamma, mu, nu)
        assert 0 < gamma[:, 3].sum() < 1e-11


# --- golden values ----------------------------------------------------------------------------------------------------

COST = torch.tensor([[0.1, 0.7, 0.4], [0.9, 0.2, 0.5], [0.3, 0.8, 0.05], [0.6, 0.45, 0.15]], dtype=float64)
POLYTOPE = {
    ("c2", 0.1): [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.2, 0.8]],
    ("smooth", 1.0): [
        [0.6314215225821, 0.2144609448889, 0.154117532529],
        [0.3652586545445, 0.4552103998214, 0.1795309456341],
        [0.5560430969049, 0.2087212829838, 0.2352356201113],
        [0.4472767259684, 0.3216073723059, 0.2311159017256],
    ],
}


@pytest.mark.parametrize("case", POLYTOPE)
def test_golden_polytope(case):
    mode, softness = case
    out = 4 * plan(COST / softness, uniform(4), torch.tensor([0.5, 0.3, 0.2], dtype=float64), mode)
    torch.testing.assert_close(out, torch.tensor(POLYTOPE[case], dtype=float64), rtol=0, atol=1e-9)


ROW = torch.tensor([0.3, -0.8, 1.2, 0.5, -0.1], dtype=float64)
ARGMAX = {
    ("c0", 1.0): ([0.0, 0.0, 1.0, 0.0, 0.0], [0.0] * 5),
    ("c2", 1.0): (
        [0.04082635828667, 0.0, 0.791041982904, 0.1681316588093, 0.0],
        [-0.827827921966514, 0.073820400887768, -0.0767353539537455, 0.8042695795692043, 0.02647329546328736],
    ),
    ("smooth", 0.1): (
        [0.02375962306076, 2.051110736528e-05, 0.878272334141, 0.09670859881764, 0.001238932873218],
        [-0.3926637185643213, -0.003138887278906495, -0.11004144834374831, 0.49653695770378625, 0.009307096483189834],
    ),
}


@pytest.mark.parametrize("case", ARGMAX)
def test_golden_argmax(case):
    """Values and gradients equal those of an independent implementation: the mass that goes to the upper of two places."""
    mode, softness = case

    def argmax(x):
        h = (x - x.mean()) / ((x - x.mean()).square().mean() + 1e-6).sqrt()
        cost = (torch.sigmoid(h)[:, None] - torch.tensor([0.0, 1.0], dtype=float64)) ** 2 / softness
        return 5 * plan(cost, uniform(5), torch.tensor([0.8, 0.2], dtype=float64), mode)[:, 1]

    value, gradient = (torch.tensor(v, dtype=float64) for v in ARGMAX[case])
    torch.testing.assert_close(argmax(ROW), value, rtol=0, atol=1e-9)
    found = grad(lambda x: (torch.arange(1, 6) * argmax(x)).sum())(ROW)
    torch.testing.assert_close(found, gradient, rtol=1e-8, atol=1e-8)


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_every_check(mode):
    """The projection passes the kit against plain torch code, in the cost and both marginals."""

    def op(cost, mu, nu):
        return plan(cost, mu, nu, mode)

    check_operator(op, *example(mode, 2), surrogate=lambda *inputs: newton(*inputs, mode), smooth_forwards={})


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_gradcheck(mode):
    cost, mu, nu = (v.requires_grad_() for v in example(mode, n=4, m=5))
    f = lambda *inputs: plan(*inputs, mode)  # noqa: E731
    torch.autograd.gradcheck(f, (cost, mu, nu), check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(f, (cost, mu, nu), check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
def test_potentials_gradcheck(mode):
    """The potentials have the derivative of their gauge, on either side."""
    for n, m in ((5, 4), (3, 4)):
        cost, mu, _ = example(mode, n=n, m=m)
        f = lambda cost: Potentials.apply(cost, mu, uniform(m), mode)  # noqa: E731, B023
        torch.autograd.gradcheck(f, cost.requires_grad_(), check_forward_ad=True)
        assert (f(cost)[n > m][..., 0] == 0).all()


@pytest.mark.long(but=1)
def test_balance_gradcheck():
    """The linear system, whose first entry on the shorter side is fixed, passes gradcheck."""
    for n, m in ((4, 3), (3, 4)):
        omega, p, q = (v.requires_grad_() for v in example("smooth", 2, n=n, m=m))
        torch.autograd.gradcheck(Balance.apply, (omega, p, q), check_forward_ad=True, check_batched_grad=True)
        torch.autograd.gradgradcheck(Balance.apply, (omega, p, q), check_fwd_over_rev=True)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_third_order(mode):
    """Every nesting of three derivatives gives the difference quotient of the second."""
    cost, mu, nu = example(mode)
    rng = torch.Generator().manual_seed(5)
    v, w = (torch.randn(5, 4, generator=rng, dtype=float64) for _ in range(2))
    value = lambda c: (w * plan(c, mu, nu, mode)).sum()  # noqa: E731
    forward = lambda f: lambda c: jvp(f, (c,), (v,))[1]  # noqa: E731
    reverse = lambda f: lambda c: (grad(f)(c) * v).sum()  # noqa: E731
    second, h = forward(forward(value)), 1e-5
    expected = (second(cost + h * v) - second(cost - h * v)) / (2 * h)
    for modes in ((forward,) * 3, (reverse,) * 3, (forward, reverse, forward), (reverse, forward, forward)):
        f = value
        for mode_of in modes:
            f = mode_of(f)
        torch.testing.assert_close(f(cost), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_hessian_is_double_backward(mode):
    cost, mu, nu = example(mode)
    f = lambda c: (plan(c, mu, nu, mode) ** 2).sum()  # noqa: E731
    twice = torch.autograd.functional.hessian(f, cost)
    torch.testing.assert_close(hessian(f)(cost), twice, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(jacfwd(jacfwd(f))(cost), twice, rtol=1e-9, atol=1e-11)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_batch_is_loop(mode):
    """Leading dimensions and vmap equal the loop, with and without per-sample marginals."""
    cost, mu, nu = example(mode, 8, n=6, m=5)
    weights = torch.linspace(-1, 2, 30, dtype=float64).reshape(6, 5)
    f = lambda c, mu, nu: (weights * plan(c, mu, nu, mode)).sum()  # noqa: E731
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)  # noqa: E731
    close(plan(cost, mu, nu, mode), torch.stack([plan(c, mu, v, mode) for c, v in zip(cost, nu, strict=True)]))
    expected = torch.stack([grad(f)(c, mu, v) for c, v in zip(cost, nu, strict=True)])
    close(vmap(grad(f), (0, None, 0))(cost, mu, nu), expected)
    close(vmap(grad(f), (2, None, 1))(cost.movedim(0, 2), mu, nu.mT), expected)
    close(grad(lambda c: f(c, mu, nu))(cost), expected)
    one = grad(f, 2)
    close(vmap(one, (None, None, 0))(cost[0], mu, nu), torch.stack([one(cost[0], mu, v) for v in nu]))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", MODES)
def test_compiled(mode):
    cost, mu, nu = example(mode, 2)
    f = lambda c: plan(c, mu, nu, mode).square().sum()  # noqa: E731
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    a, b = cost.clone().requires_grad_(), cost.clone().requires_grad_()
    f(a).backward()
    compiled(b).backward()
    torch.testing.assert_close(b.grad, a.grad)
    torch.testing.assert_close(torch.compile(grad(f), fullgraph=True, backend="aot_eager")(cost), a.grad)


# --- hard cases -------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_support_in_parts(mode):
    """Where the plan falls into parts, each has its own derivative; nothing is NaN, at any order."""
    cost, mu, _ = example(mode, n=3, m=3)
    apart = torch.full((6, 6), 1e4, dtype=float64)
    apart[:3, :3] = apart[3:, 3:] = 0
    w = torch.linspace(0, 1, 9, dtype=float64).reshape(3, 3) ** 2

    def both(c):
        gamma = plan(torch.block_diag(c, 2 * c) + apart, torch.cat([mu, mu]), torch.cat([uniform(3)] * 2), mode)
        return (w * gamma[:3, :3]).sum() + (w * gamma[3:, 3:]).sum()

    def each(c):
        return sum((w * plan(k * c, mu, uniform(3), mode)).sum() for k in (1, 2))

    torch.testing.assert_close(both(cost), each(cost), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(grad(both)(cost), grad(each)(cost), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(hessian(both)(cost), hessian(each)(cost), rtol=1e-6, atol=1e-8)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_hard_plan_is_flat(mode):
    """At a tiny softness all derivatives are 0 and finite."""
    cost = squared(5, 5, 1e-5)
    f = lambda c: (plan(c, uniform(5), uniform(5), mode) ** 2).sum()  # noqa: E731
    for d in (grad(f)(cost), hessian(f)(cost)):
        torch.testing.assert_close(d, torch.zeros_like(d), rtol=0, atol=1e-8)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_small_sizes(mode):
    cost = torch.rand(3, 1, 1, dtype=float64)
    torch.testing.assert_close(plan(cost, uniform(1), uniform(1), mode), torch.ones_like(cost))
    assert (grad(lambda c: plan(c, uniform(1), uniform(1), mode).sum())(cost).abs() < 1e-12).all()
    nu = torch.tensor([0.2, 0.3, 0.5], dtype=float64)
    torch.testing.assert_close(plan(torch.rand(1, 3, dtype=float64), uniform(1), nu, mode)[0], nu)
    torch.testing.assert_close(plan(torch.rand(3, 1, dtype=float64), nu, uniform(1), mode)[:, 0], nu)
    empty = torch.rand(0, 4, 3, dtype=float64, requires_grad=True)
    plan(empty, uniform(4), uniform(3), mode).sum().backward()
    assert empty.grad is not None
    assert plan(empty, uniform(4), uniform(3), mode).shape == (0, 4, 3)
    assert plan(empty.detach().to("meta"), uniform(4).to("meta"), uniform(3).to("meta"), mode).shape == (0, 4, 3)


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES)
def test_single_precision(mode):
    """float32 gives float32, as exact as the cost."""
    cost, mu, nu = example(mode, 2)
    c = cost.float().requires_grad_()
    gamma = plan(c, mu.float(), nu.float(), mode)
    assert gamma.dtype == torch.float32
    torch.testing.assert_close(gamma, plan(c.double(), mu, nu, mode).float(), rtol=1e-5, atol=1e-6)
    gamma.square().sum().backward()
    assert c.grad is not None
    assert c.grad.dtype == torch.float32


@pytest.mark.short
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("mode", MODES)
def test_bad_item_is_alone(mode, bad):
    """NaN or infinity makes its own item NaN, value and gradient, and leaves the others as they are."""
    cost, mu, nu = example(mode, 3)
    poisoned = cost.clone()
    poisoned[1, 2, 3] = bad
    f = lambda c: plan(c, mu, nu, mode)  # noqa: E731
    g = grad(lambda c: f(c).square().sum())
    value, gradient = f(poisoned), g(poisoned)
    assert value[1].isnan().all()
    assert gradient[1].isnan().any()
    for found, expected in ((value, f(cost)), (gradient, g(cost))):
        torch.testing.assert_close(found[::2], expected[::2])


def test_no_convergence_is_said(monkeypatch):
    monkeypatch.setattr("fullgrad.soft.order.kernels.transport_solver._PATHS", ((4.0, 0.1, 1),))
    with pytest.raises(RuntimeError, match="mode 'c1' did not converge for 2 of 2"):
        plan(squared(20, 20, 1e-3, 2), uniform(20), uniform(20), "c1")


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", ["smooth", "c0", "c1"])
def test_a_plan_without_digits_is_an_error(mode):
    """At a cost of 1e16 softnesses rounding leaves nothing of the marginals."""
    cost = 1e16 * torch.tensor([[0.3, 1.0, 0.7], [0.2, 0.9, 0.1], [0.5, 0.1, 0.4]], dtype=torch.float64)
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="did not converge"):
        soft.proj_transport_polytope(cost, third, third, 1.0, mode=mode)
