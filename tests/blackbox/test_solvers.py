"""Combinatorial solvers: interpolation, the negative identity and implicit maximum likelihood, with solvers of other packages."""

import heapq
import itertools

import numpy
import pytest
import scipy.optimize
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from fullgrad import blackbox, sampling

F64 = torch.float64


def close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# --- Solvers that minimize costs ---------------------------------------------------------------------------------------------


def cheapest(x):
    return (x == x.amin()).to(x.dtype)


def assignment(x):
    """An assignment of least cost, by scipy, as an array of integers."""
    rows, columns = scipy.optimize.linear_sum_assignment(x.numpy())
    found = numpy.zeros(x.shape, dtype=numpy.int64)
    found[rows, columns] = 1
    return found


def knapsack(x):
    """At least two and a half units of weight at the least cost, by scipy's mixed-integer programming."""
    weights = scipy.optimize.LinearConstraint(numpy.array([[1.0, 2.0, 1.5, 0.5]]), lb=2.5)
    return scipy.optimize.milp(x.numpy(), constraints=weights, integrality=1, bounds=scipy.optimize.Bounds(0, 1)).x.round()


def shortest_path(x):
    """The cells of a path through a grid from corner to corner, by Dijkstra; costs are positive."""
    costs, (n, m) = x.clamp(min=1e-3).tolist(), x.shape
    queue, before = [(costs[0][0], (0, 0), None)], {}
    while queue:
        length, cell, previous = heapq.heappop(queue)
        if cell in before:
            continue
        before[cell] = previous
        for i, j in ((cell[0] + 1, cell[1]), (cell[0] - 1, cell[1]), (cell[0], cell[1] + 1), (cell[0], cell[1] - 1)):
            if 0 <= i < n and 0 <= j < m:
                heapq.heappush(queue, (length + costs[i][j], (i, j), cell))
    found, cell = torch.zeros(n, m), (n - 1, m - 1)
    while cell is not None:
        found[cell] = 1
        cell = before[cell]
    return found


def pair(x):
    """The two smallest elements, by torch."""
    return torch.zeros_like(x).scatter(-1, x.topk(2, largest=False).indices, 1.0)


SOLVERS = {
    "argmin": (cheapest, noise(5)),
    "assignment": (assignment, noise(3, 3, seed=1)),
    "milp": (knapsack, noise(4, seed=2) + 1),
    "path": (shortest_path, noise(4, 4, seed=3).exp()),
    "topk": (pair, noise(5, seed=4)),
}
each_solver = pytest.mark.parametrize("name", SOLVERS)


def solved(solver, x):
    return torch.as_tensor(solver(x)).to(x.dtype)


# --- interpolated ------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@each_solver
def test_interpolated(name):
    """The gradient is the difference of the solution at x + lam g to that at x, over lam; a second derivative is 0."""
    solver, x = SOLVERS[name]
    g, lam = noise(*x.shape, seed=7), 2.0

    def f(x):
        return blackbox.interpolated(solver, x, lam)

    def loss(x):
        return (f(x) * g).sum()

    close(f(x), solved(solver, x))
    found = grad(loss)(x)
    close(found, -(solved(solver, x) - solved(solver, x + lam * g)) / lam)
    close(grad(lambda x: (grad(loss)(x) * g).sum())(x), torch.zeros_like(x))
    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    close(leaf.grad, found)


@each_solver
def test_interpolated_of_a_batch(name):
    """Per-sample gradients, and the gradient of a batch, are those of a loop."""
    solver, x = SOLVERS[name]
    xs, gs = torch.stack([x, x.flip(0), 2 * x]), noise(3, *x.shape, seed=8)

    def loss(x, g):
        return (blackbox.interpolated(solver, x, 3.0) * g).sum()

    expected = torch.stack([grad(loss)(x, g) for x, g in zip(xs, gs, strict=True)])
    assert expected.abs().sum() > 0
    close(vmap(grad(loss))(xs, gs), expected)
    close(grad(lambda xs: vmap(loss)(xs, gs).sum())(xs), expected)


@pytest.mark.short
@pytest.mark.parametrize("method", ["sequential", "broadcast", "map"])
@pytest.mark.parametrize("operator", ["interpolated", "imle", "finite_difference"])
def test_solvers_that_use_other_tensors_of_a_batch(method, operator):
    """A solver may close over tensors of the batch, such as a mask for each sample, also in the derivative."""
    xs, masks, gs = noise(4, 5), (noise(4, 5, seed=1) > 0).double(), noise(4, 5, seed=2)

    def loss(x, mask, g):
        def solver(x):
            costs = (x * x + 10 * mask) if operator == "finite_difference" else x + 10 * mask
            return costs if operator == "finite_difference" else (costs == costs.amin(-1, keepdim=True)).to(x.dtype)

        options = {"imle": {"noise": g, "lam": -1.0 + 3}, "interpolated": {"lam": 2.0}}.get(operator, {})
        return (getattr(blackbox, operator)(solver, x, vmap_method=method, **options) * g).sum()

    expected = torch.stack([grad(loss)(*args) for args in zip(xs, masks, gs, strict=True)])
    assert expected.abs().sum() > 0
    close(vmap(grad(loss))(xs, masks, gs), expected)
    close(grad(lambda xs: vmap(loss)(xs, masks, gs).sum())(xs), expected)


def test_batched_gradients():
    """Gradients that autograd batches by itself are those of a loop."""
    x = noise(5).requires_grad_()
    y = blackbox.interpolated(cheapest, x, 2.0)
    rows = torch.autograd.grad(y, x, torch.eye(5, dtype=F64), is_grads_batched=True, retain_graph=True)[0]
    close(rows, torch.stack([torch.autograd.grad(y, x, row, retain_graph=True)[0] for row in torch.eye(5, dtype=F64)]))


# --- negative_identity -------------------------------------------------------------------------------------------------------


@pytest.mark.short
@each_solver
def test_negative_identity(name):
    """The Jacobian is minus the identity, and plus for a solver that maximizes, in both modes."""
    solver, x = SOLVERS[name]
    for maximize in (False, True):
        f = lambda x, m=maximize: blackbox.negative_identity(solver, x, maximize=m)  # noqa: E731
        expected = (2 * maximize - 1) * torch.eye(x.numel(), dtype=F64).reshape(*x.shape, *x.shape)
        close(f(x), solved(solver, x))
        close(jacrev(f)(x), expected)
        close(jacfwd(f)(x), expected)


def project(x, projection):
    y = x - x.mean() if projection in ("mean", "both") else x
    return y / y.norm() if projection in ("norm", "both") else y


@pytest.mark.parametrize("projection", ["none", "mean", "norm", "both"])
def test_projections(projection):
    """The solver gets projected costs, and the derivatives are those of minus the projection, at two orders."""
    x, g = noise(5), noise(5, seed=1)
    seen = []

    def f(x):
        return blackbox.negative_identity(lambda x: [seen.append(x), cheapest(x)][1], x, projection=projection)

    close(f(x), cheapest(x))
    close(seen[0], project(x, projection))
    expected = jacrev(lambda x: -project(x, projection))(x)
    close(jacrev(f)(x), expected)
    close(jacfwd(f)(x), expected)
    second = jacrev(jacrev(lambda x: -project(x, projection) @ g))(x)
    close(jacfwd(jacrev(lambda x: f(x) @ g))(x), second)


def test_a_norm_of_zero():
    """Costs of 0 have a finite gradient under every projection."""
    for projection in ("mean", "norm", "both"):
        f = lambda x, p=projection: blackbox.negative_identity(torch.zeros_like, x, projection=p)  # noqa: E731
        assert jacrev(f)(torch.zeros(3)).isfinite().all()


# --- imle --------------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [1, 3])
def test_imle_is_imle_topk(dtype, k):
    """For the k largest elements, value and gradient are those of `sampling.imle_topk` with the same noise, to the last bit."""
    x, g = noise(64, 8).to(dtype), noise(64, 8, seed=1).to(dtype)
    x[0, 3] = -torch.inf
    given = sampling.gumbel_like(x, generator=torch.Generator().manual_seed(0))

    def largest(x):
        return torch.zeros_like(x).scatter(-1, x.topk(k).indices, 1.0)

    def run(f):
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        (y * g).sum().backward()
        return y.detach(), leaf.grad

    ours = run(lambda x: vmap(lambda x, z: blackbox.imle(largest, x, lam=0.7, noise_scale=0.9, noise=z))(x, given))
    theirs = run(lambda x: sampling.imle_topk(x, k, 0.7, 0.9, noise=given))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_imle_draws_the_noise_of_imle_topk():
    """With generators of one seed both draw the same noise."""
    x = noise(6)
    draws = [torch.Generator().manual_seed(3) for _ in range(2)]
    found = blackbox.imle(lambda x: (x == x.amax()).to(x.dtype), x, generator=draws[0])
    assert torch.equal(found, sampling.imle_topk(x, 1, generator=draws[1]))


# --- All of them ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["interpolated", "imle"])
def test_no_forward_mode(name):
    """Forward mode raises an error with the name and a way out."""
    x = noise(3)
    with pytest.raises(NotImplementedError, match=f"blackbox.{name}: there is no tangent.*blackbox.perturbed"):
        jvp(lambda x: getattr(blackbox, name)(cheapest, x), (x,), (x,))


@each_solver
def test_perturbed_solvers(name):
    """The mean solution and its Jacobian are those of the formula, for every solver."""
    solver, x = SOLVERS[name]
    z = noise(3, *x.shape, seed=9)
    y = torch.stack([solved(solver, x + 0.5 * v) for v in z])
    centered = y - (y.sum(0) - y) / 2
    f = lambda x: blackbox.perturbed(solver, x, samples=3, sigma=0.5, noise=z)  # noqa: E731
    close(f(x), y.mean(0))
    close(jacrev(f)(x).reshape(x.numel(), -1), centered.reshape(3, -1).T @ z.reshape(3, -1) / 1.5)


def test_a_path_is_learned():
    """Costs of cells are learned from a path by the Fenchel-Young loss, until the perturbed solutions are that path."""
    target = shortest_path(noise(4, 4, seed=3).exp()).double()
    costs = torch.ones(4, 4, dtype=F64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD([costs], lr=0.2)
    for _ in range(30):
        optimizer.zero_grad()
        loss = blackbox.fenchel_young_loss(
            shortest_path, costs, target, samples=4, sigma=0.1, maximize=False, generator=generator
        )
        loss.backward()
        optimizer.step()
    assert torch.equal(shortest_path(costs.detach()).double(), target)


def test_every_path_of_the_solver_is_a_shortest_one():
    """Dijkstra in this file finds a path no longer than all monotone ones."""
    x = noise(3, 3, seed=5).exp()
    best = (shortest_path(x) * x).sum()
    for steps in set(itertools.permutations("RRDD")):
        cell, total = [0, 0], x[0, 0]
        for s in steps:
            cell[s == "R"] += 1
            total = total + x[tuple(cell)]
        assert best <= total + 1e-12
