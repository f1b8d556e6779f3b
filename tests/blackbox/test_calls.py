"""How solvers and functions are called: draws, randomness, batches, half precision, errors; and finite differences."""

import functools
import math

import numpy
import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from fullgrad import blackbox, sampling
from fullgrad.blackbox import _finite_difference

F64 = torch.float64
X = torch.tensor([0.3, -0.5, 1.0], dtype=F64)


def close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def argmax(x):
    return (x == x.amax(-1, keepdim=True)).to(x.dtype)


DRAWING = {
    "perturbed": lambda f, x, **options: blackbox.perturbed(f, x, samples=3, **options),
    "gumbel": lambda f, x, **options: blackbox.perturbed(f, x, samples=3, distribution="gumbel", **options),
    "smoothed": lambda f, x, **options: blackbox.smoothed(f, x, samples=3, **options),
    "fenchel_young_loss": lambda f, x, **options: blackbox.fenchel_young_loss(
        f, x, torch.ones(3, dtype=x.dtype), samples=3, **options
    ),
    "imle": lambda f, x, **options: blackbox.imle(f, x, **options),
}
drawing = pytest.mark.parametrize("name", DRAWING)
SHAPES = {name: (3,) if name == "imle" else (3, 3) for name in DRAWING}


# --- Noise -------------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@drawing
def test_one_draw_in_value_and_derivative(name):
    """The gradient of drawn noise is that of the same noise given, and the solver sees the same draws."""
    f = DRAWING[name]
    drawn = []

    def solver(x):
        drawn.append(x.clone())
        return x * x

    def loss(x, **options):
        return (f(solver, x, **options) * torch.arange(1.0, 4.0, dtype=F64)).sum()

    torch.manual_seed(0)
    g, value = torch.func.grad_and_value(loss)(X)
    count = len(SHAPES[name]) * 3 - 3 if name != "imle" else 1
    z = torch.stack(drawn[:count]) - X if name != "imle" else drawn[0] - X
    drawn.clear()
    close(torch.func.grad_and_value(lambda x: loss(x, noise=z))(X), (g, value))


@pytest.mark.short
@drawing
def test_randomness_of_vmap(name):
    """`vmap` refuses to draw, draws once for all samples, or for each, as `randomness` says."""
    f = lambda x: DRAWING[name](torch.square, x)  # noqa: E731
    same = torch.stack([X, X, X])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(f)(same)
    shared = vmap(f, randomness="same")(same)
    assert torch.equal(shared[0], shared[1])
    assert torch.equal(shared[0], shared[2])
    own = vmap(f, randomness="different")(same)
    assert not torch.equal(own[0], own[1])
    gradients = vmap(grad(lambda x: f(x).sin().sum()), randomness="different")(same)
    assert not torch.equal(gradients[0], gradients[1]) or name == "fenchel_young_loss"


@drawing
@pytest.mark.parametrize("method", ["sequential", "broadcast", "map"])
def test_batches_with_given_noise(name, method):
    """Value, per-sample gradient and gradient of a batch are those of a loop, for each way to call, and nested."""
    xs, zs = noise(4, 3, seed=1), noise(4, *SHAPES[name], seed=2)

    def loss(x, z):
        return (DRAWING[name](argmax, x, noise=z, vmap_method=method) * torch.arange(1.0, 4.0, dtype=F64)).sum()

    pairs = list(zip(xs, zs, strict=True))
    close(vmap(loss)(xs, zs), torch.stack([loss(x, z) for x, z in pairs]))
    expected = torch.stack([grad(loss)(x, z) for x, z in pairs])
    close(vmap(grad(loss))(xs, zs), expected)
    close(vmap(grad(loss), (1, 0))(xs.T, zs), expected)
    close(grad(lambda xs: vmap(loss)(xs, zs).sum())(xs), expected)
    nested = vmap(vmap(grad(loss)))(xs.reshape(2, 2, 3), zs.reshape(2, 2, *SHAPES[name]))
    close(nested.reshape(4, 3), expected)


def test_randomness_of_a_simulator():
    """A function that draws itself is refused under `vmap`, or draws as `randomness` says."""
    x, z = torch.stack([X, X]), noise(1, 3)
    f = lambda x: blackbox.smoothed(lambda x: x + torch.rand(3, dtype=F64), x, noise=z)  # noqa: E731
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(f)(x)
    same, different = vmap(f, randomness="same")(x), vmap(f, randomness="different")(x)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])


# --- Calls -------------------------------------------------------------------------------------------------------------------


def test_a_derivative_calls_no_solver():
    """Estimators call the solver in the value alone, once for a draw, or once for all."""
    calls = []

    def solver(x):
        calls.append(x.shape)
        return argmax(x)

    for method, expected in (("sequential", [(3,)] * 4), ("broadcast", [(4, 3)])):
        x = X.clone().requires_grad_()
        y = blackbox.perturbed(solver, x, samples=4, vmap_method=method)
        assert calls == expected
        y.sum().backward()
        jvp(lambda x: blackbox.perturbed(argmax, x, samples=4), (X,), (X,))
        assert calls == expected
        calls.clear()


def test_broadcast_of_a_batch():
    """A batch is in front of the draws, in one call."""
    shapes = []
    f = lambda x: blackbox.perturbed(  # noqa: E731
        lambda x: [shapes.append(x.shape), argmax(x)][1], x, samples=4, vmap_method="broadcast"
    )
    vmap(vmap(f, randomness="different"), randomness="different")(noise(2, 5, 3))
    assert shapes == [(2, 5, 4, 3)]


def test_results_of_any_kind():
    """Numbers, arrays, integers and bool are taken; the result has the dtype of x."""
    z = noise(2, 3)
    for result in (3, 3.0, True, numpy.float32(3), numpy.array([1, 2]), torch.tensor([True, False]), torch.ones(2, 2)):
        y = blackbox.perturbed(lambda _, r=result: r, X.float(), samples=2, noise=z)
        assert y.dtype == torch.float32
        close(y, torch.as_tensor(result).float())


def test_one_buffer_for_all_draws():
    """A solver may write into the same memory in each call."""
    buffer = numpy.zeros(3)

    def solver(x):
        buffer[:] = x.numpy() ** 2
        return buffer

    z = noise(4, 3)
    close(blackbox.perturbed(solver, X, samples=4, noise=z), ((X + z) ** 2).mean(0))


def test_a_simulator_in_numpy():
    """The range of a throw with a bounce, which depends on its angle with jumps, has a gradient and is improved by it."""

    def distance(x):
        angle, x, v = float(x), 0.0, 0.0
        vx, v, y = math.cos(angle), math.sin(angle), 0.0
        while y >= 0:
            x, y, v = x + 0.01 * vx, y + 0.01 * v, v - 0.01
        return numpy.array(-x)

    angle, generator = torch.tensor(0.3, dtype=F64), torch.Generator().manual_seed(0)
    for _ in range(30):
        f = lambda x: blackbox.smoothed(distance, x, samples=4, sigma=0.1, generator=generator)  # noqa: E731
        angle = angle - 0.1 * grad(f)(angle)
    assert abs(angle - math.pi / 4) < 0.1


def test_modules():
    """The gradient by the parameters of a network whose outputs go to a black box, as `functional_call` takes it."""
    layer = torch.nn.Linear(3, 3).double()
    parameters, x, z = dict(layer.named_parameters()), noise(2, 3), noise(4, 3)

    def loss(parameters, x):
        return blackbox.fenchel_young_loss(argmax, functional_call(layer, parameters, x), x, samples=4, noise=z)

    found = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(2):
        loss(parameters, x[i]).backward()
        close(found["weight"][i], layer.weight.grad)
        layer.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*DRAWING, "interpolated", "negative_identity", "finite_difference"])
def test_half_precision(name, dtype):
    """Half precision is computed in float32, which the solver gets, and rounded once."""
    x, dtypes = X.to(dtype), []
    options = {"noise": noise(*SHAPES[name]).float()} if name in SHAPES else {}

    def f(x):
        run = DRAWING.get(name) or getattr(blackbox, name)
        return run(lambda x: [dtypes.append(x.dtype), x * x][1], x, **options)

    def loss(x):
        return f(x).sum()

    assert f(x).dtype == dtype
    assert grad(loss)(x).dtype == dtype
    close(f(x), f(x.float()).to(dtype))
    close(grad(loss)(x), grad(loss)(x.float()).to(dtype))
    assert set(dtypes) == {torch.float32}


def test_score_function_in_half_precision():
    """The value has the dtype of the costs."""
    assert blackbox.score_function(torch.ones(3, dtype=torch.bfloat16), torch.zeros(3)).dtype == torch.bfloat16


def mean_of_two(x):
    return x.sum() + (x > 0).any()


@pytest.mark.long
@pytest.mark.parametrize("method", ["sequential", "map"])
def test_compiled(method):
    """Compiled code has one node for value and derivative; a result that is not like x is declared by `like`."""
    z = noise(4, 3)

    def loss(x):
        y = blackbox.perturbed(argmax, x, samples=4, noise=z, vmap_method=method)
        return y.sin().sum() + blackbox.smoothed(mean_of_two, x, samples=4, noise=z, vmap_method=method, like=torch.sum)

    def gradient(f):
        x = X.clone().requires_grad_()
        f(x).backward()
        return x.grad

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    close(compiled(X), loss(X))
    close(gradient(compiled), gradient(loss))
    close(torch.compile(grad(loss), backend="aot_eager", fullgraph=True)(X), grad(loss)(X))


# --- Noise of factor 0, and infinite costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["imle", "imle_topk"])
def test_noise_of_factor_0_is_not_drawn(operator):
    """A factor of 0 is the solution without noise: nothing is drawn, noise that is given is not read, and errors stay."""

    def ours(x, **options):
        options = {"lam": 0.5, "noise_scale": 0.0, **options}
        return blackbox.imle(argmax, x, **options) if operator == "imle" else sampling.imle_topk(x, 1, **options)

    before = torch.get_rng_state()
    ours(X)
    vmap(jacrev(ours), randomness="error")(torch.stack([X, 2 * X]))
    torch.compile(ours, backend="eager", fullgraph=True)(X)
    assert torch.equal(torch.get_rng_state(), before)
    nothing, lost = torch.zeros(3, dtype=F64), torch.full((3,), torch.inf, dtype=F64)
    for transform in (lambda f: f, jacrev):
        expected = transform(functools.partial(ours, noise=nothing, noise_scale=1.0))(X)
        assert torch.equal(transform(ours)(X), expected)
        assert torch.equal(transform(functools.partial(ours, noise=lost))(X), expected)
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    assert torch.equal(ours(X, generator=generator), ours(X))
    assert torch.equal(generator.get_state(), before)
    with pytest.raises(ValueError, match="`noise` must have the shape"):
        ours(X, noise=noise(2))
    with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator"):
        ours(X, generator=3)


@pytest.mark.parametrize("projection", ["none", "mean", "norm", "both"])
@pytest.mark.parametrize("sign", [1, -1])
def test_infinite_costs_are_not_projected(projection, sign):
    """The solver gets an infinite cost as it is, and the other costs projected without it, as is their gradient; costs near the
    largest number do not overflow.
    """
    points = []

    def cheapest(x):
        points.append(x.clone())
        return torch.nn.functional.one_hot((sign * x).argmin(-1), x.shape[-1]).to(x.dtype)

    def ours(x):
        return blackbox.negative_identity(cheapest, x, projection=projection, maximize=sign < 0)

    finite, forbidden = torch.tensor([1.0, 4.0, 2.0], dtype=F64), torch.tensor([sign * math.inf], dtype=F64)
    costs = torch.cat([finite, forbidden])
    y, dense, tangents = ours(costs), jacrev(ours)(costs), jacfwd(ours)(costs)
    assert torch.equal(points[0][3:], forbidden)
    assert y[3] == 0
    assert torch.equal(y[:3], ours(finite))
    close(points[0][:3], points[-1])
    close(dense, tangents)
    close(dense[:3, :3], jacrev(ours)(finite))
    if projection != "none":
        assert not dense[3].any()
        assert not dense[:, 3].any()
    largest = torch.tensor([3e38, -3e38, 2e38, 3e38])
    points.clear()
    ours(largest / (2 if projection == "mean" else 1))
    assert points[0].isfinite().all()


# --- Differences -------------------------------------------------------------------------------------------------------------


def test_finite_differences():
    """First derivatives in both modes, for numpy, are right to about 1e-10 in float64, and the second to 1e-5."""

    def f(x):
        return numpy.array([numpy.sin(x[0]) * x[1], numpy.exp(x[2])])

    def exact(x):
        return torch.stack([torch.sin(x[0]) * x[1], torch.exp(x[2])])

    def ours(x, step=None):
        return blackbox.finite_difference(lambda x: f(x.numpy()), x, step)

    close(ours(X), exact(X))
    close(jacfwd(ours)(X), jacfwd(exact)(X), 1e-9)
    close(jacrev(ours)(X), jacfwd(exact)(X), 1e-9)
    close(jvp(ours, (X,), (1000 * X,))[1], jvp(exact, (X,), (1000 * X,))[1], 1e-6)
    for step, tolerance in ((None, 1e-3), (1e-4, 1e-6)):
        close(hessian(lambda x, s=step: ours(x, s).sum())(X), hessian(lambda x: exact(x).sum())(X), tolerance)


def test_calls_of_finite_differences():
    """A tangent takes two calls besides the value, and a gradient two for each element, all of them in one with "broadcast"."""
    calls = []

    def f(x):
        calls.append(x.shape)
        return (x**3).sum(-1)

    jvp(lambda x: blackbox.finite_difference(f, x), (X,), (X,))
    assert len(calls) == 3
    calls.clear()
    grad(lambda x: blackbox.finite_difference(f, x))(X)
    assert len(calls) == 7
    calls.clear()
    grad(lambda x: blackbox.finite_difference(f, x, vmap_method="broadcast"))(X)
    assert calls == [(3,), (6, 3)]


def test_differences_of_a_function_that_draws():
    """All points of a difference get the same random numbers, so that these cancel."""
    f = lambda x: blackbox.finite_difference(lambda x: (x * x + torch.rand(3, dtype=F64)).sum(), x)  # noqa: E731
    close(grad(f)(X), 2 * X, 1e-8)


@pytest.mark.parametrize("method", ["broadcast", "map", "sequential"])
def test_a_gradient_in_pieces(monkeypatch, method):
    """A gradient that is computed in pieces, in a Jacobian, a batch, a second derivative or compiled code, is that of one piece,
    bit for bit, and all pieces get the same random numbers.
    """

    ours = lambda x: blackbox.finite_difference(lambda x: torch.sin(x) * x.roll(1, -1), x, 1e-3, vmap_method=method)  # noqa: E731
    transforms = (
        jacrev,
        lambda f: vmap(jacrev(f)),
        lambda f: hessian(lambda x: (f(x) ** 2).sum()),
    )
    points = [X, torch.stack([X, 2 * X]), X]
    whole = [transform(ours)(x) for transform, x in zip(transforms, points, strict=True)]
    for budget in (1, 300):
        monkeypatch.setattr(_finite_difference, "_PIECE", budget)
        for transform, x, expected in zip(transforms, points, whole, strict=True):
            assert torch.equal(transform(ours)(x), expected)
    if method == "map":
        loss = grad(lambda x: (ours(x) ** 2).sum())
        close(torch.compile(loss, backend="aot_eager", fullgraph=True)(X), loss(X))
    if method != "broadcast":
        f = lambda x: x.sum() * torch.rand((), dtype=F64)  # noqa: E731
        slopes = vmap(grad(lambda x: blackbox.finite_difference(f, x, vmap_method=method)), randomness="same")(X.expand(2, 3))
        close(slopes, slopes[0, 0].expand(2, 3), 1e-9)


def test_scale_of_the_step():
    """The step grows with the element, and a tangent moves no element by more than its step."""
    points = []
    x = torch.tensor([1e6, 0.0], dtype=F64)
    jvp(lambda x: blackbox.finite_difference(lambda x: [points.append(x), x][1], x), (x,), (torch.tensor([1.0, 2.0], dtype=F64),))
    step = torch.finfo(F64).eps ** (1 / 3)
    close(points[1] - x, step * torch.tensor([0.5, 1.0], dtype=F64), 1e-9)
    points.clear()
    grad(lambda x: blackbox.finite_difference(lambda x: [points.append(x), x.sum()][1], x))(x)
    close(points[1] - x, step * torch.tensor([1e6, 0.0], dtype=F64), 1e-9)


def test_a_tangent_of_zero():
    """A tangent of 0 gives 0, and an empty tensor an empty gradient."""
    zero = torch.zeros_like(X)
    close(jvp(lambda x: blackbox.finite_difference(torch.sin, x), (X,), (zero,))[1], zero)
    empty = torch.zeros(0, dtype=F64)
    assert grad(lambda x: blackbox.finite_difference(torch.sum, x))(empty).shape == (0,)


# --- Errors ------------------------------------------------------------------------------------------------------------------

Z = torch.zeros(1, 3, dtype=F64)
WRONG = [
    (lambda: blackbox.perturbed(3, X), TypeError, "perturbed: `solver` must be a function, got a value of type int"),
    (lambda: blackbox.perturbed(argmax, 3), TypeError, "perturbed: `x` must be a tensor"),
    (lambda: blackbox.perturbed(argmax, X.long()), TypeError, "perturbed: `x` must be a floating tensor, got dtype torch.int64"),
    (lambda: blackbox.perturbed(argmax, X, sigma=0.0), ValueError, "perturbed: `sigma` must be positive and finite, got 0.0"),
    (lambda: blackbox.perturbed(argmax, X, samples=0), ValueError, "perturbed: `samples` must be a positive integer, got 0"),
    (lambda: blackbox.perturbed(argmax, X, samples=1.5), TypeError, "perturbed: `samples` must be a positive integer"),
    (
        lambda: blackbox.perturbed(argmax, X, samples=2, noise=Z),
        ValueError,
        r"`noise` must have the shape \(2, 3\), got \(1, 3\)",
    ),
    (lambda: blackbox.perturbed(argmax, X, noise=Z, generator=torch.Generator()), ValueError, "exclude each other"),
    (
        lambda: blackbox.perturbed(argmax, X, distribution="cauchy"),
        ValueError,
        "`distribution` must be one of 'normal', 'gumbel'",
    ),
    (lambda: blackbox.perturbed(argmax, X, vmap_method="loop"), ValueError, "`vmap_method` must be one of"),
    (lambda: blackbox.perturbed(argmax, X, like=3), TypeError, "perturbed: `like` must be a function"),
    (
        lambda: blackbox.perturbed(lambda x: "no", X),
        TypeError,
        "must return one tensor, number or array, got a value of type str",
    ),
    (lambda: blackbox.perturbed(lambda x: (x, x), X), TypeError, "must return one tensor, number or array"),
    (lambda: blackbox.perturbed(lambda x: x + 1j, X), TypeError, "must return real numbers, got dtype torch.complex128"),
    (lambda: blackbox.perturbed(lambda x: x.sum(), X, vmap_method="broadcast"), ValueError, "1 dimensions more in front"),
    (lambda: blackbox.perturbed(lambda x: x.add_(1), X), RuntimeError, "changes an argument in place"),
    (lambda: blackbox.smoothed(3, X), TypeError, "smoothed: `f` must be a function"),
    (lambda: blackbox.smoothed(argmax, X, sigma=-1.0), ValueError, "smoothed: `sigma` must be positive"),
    (lambda: blackbox.smoothed(argmax, X, antithetic=1), TypeError, "smoothed: `antithetic` must be True or False"),
    (
        lambda: blackbox.fenchel_young_loss(argmax, X, X[:2]),
        ValueError,
        r"`target` must have the shape of `x`, \(3,\), got \(2,\)",
    ),
    (lambda: blackbox.fenchel_young_loss(argmax, X, 3), TypeError, "fenchel_young_loss: `target` must be a tensor"),
    (lambda: blackbox.fenchel_young_loss(argmax, X, X + 1j), TypeError, "`target` must be a real tensor, got dtype"),
    (lambda: blackbox.fenchel_young_loss(torch.sum, X, X), ValueError, "fenchel_young_loss: `solver` must return the shape"),
    (lambda: blackbox.interpolated(argmax, X, 0.0), ValueError, "interpolated: `lam` must be positive and finite, got 0.0"),
    (lambda: blackbox.interpolated(argmax, X, "1"), TypeError, "interpolated: `lam` must be a number"),
    (lambda: blackbox.interpolated(torch.sum, X), ValueError, r"must return the shape of its argument, \(3,\), got \(\)"),
    (lambda: blackbox.imle(argmax, X, lam=-1.0), ValueError, "imle: `lam` must be positive"),
    (lambda: blackbox.imle(argmax, X, noise_scale=-1.0), ValueError, "imle: `noise_scale` must be finite and not negative"),
    (lambda: blackbox.imle(argmax, X, noise=X[:2]), ValueError, "imle: `noise` must have the shape"),
    (
        lambda: blackbox.negative_identity(argmax, X, projection="max"),
        ValueError,
        "negative_identity: `projection` must be one of",
    ),
    (lambda: blackbox.negative_identity(torch.sum, X), ValueError, "negative_identity: `solver` must return the shape"),
    (lambda: blackbox.finite_difference(argmax, X, 0.0), ValueError, "finite_difference: `step` must be positive"),
    (lambda: blackbox.finite_difference(argmax, X.int()), TypeError, "finite_difference: `x` must be a floating tensor"),
    (lambda: blackbox.score_function(3, X), TypeError, "score_function: `cost` must be a tensor"),
    (lambda: blackbox.score_function(X, X.long()), TypeError, "score_function: `log_prob` must be a floating tensor"),
    (lambda: blackbox.score_function(X, X[:2]), ValueError, r"`log_prob` must have the shape of `cost`, \(3,\)"),
    (lambda: blackbox.score_function(X.sum(), X), ValueError, "`cost` must have the samples in its first dimension"),
    (lambda: blackbox.score_function(X, X, "mean"), ValueError, "score_function: `baseline` must be one of 'leave_one_out'"),
]


@pytest.mark.short
@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_errors(call, error, message):
    """Each error names the function, the rule and the value that was found."""
    with pytest.raises(error, match=message):
        call()


def test_no_derivative_is_lost():
    """A solver that uses another tensor that needs a derivative is refused; under no_grad, or detached, it is not."""
    other = X.clone().requires_grad_()
    for f in (lambda x: x * other, torch.nn.Linear(3, 3).double()):
        for name in ("perturbed", "interpolated", "smoothed", "finite_difference"):
            with pytest.raises(RuntimeError, match=f"{name}: .*captures a tensor that requires a gradient"):
                getattr(blackbox, name)(f, X)
    with pytest.raises(RuntimeError, match="captures a tensor that requires a gradient"):
        grad(lambda a: blackbox.perturbed(lambda x: x * a, X).sum())(X)

    def quiet(x):
        with torch.no_grad():
            return x * other

    close(grad(lambda x: blackbox.finite_difference(quiet, x).sum())(X), X, 1e-8)
    close(blackbox.perturbed(lambda x: other.detach(), X), X)


@pytest.mark.short
@pytest.mark.parametrize("name", ["interpolated", "negative_identity", "finite_difference"])
def test_code_that_writes_by_another_library(name):
    """numpy writes to memory without a word to torch: the caller's tensor and the derivative do not change."""

    def doubled(x):
        a = x.numpy()
        a *= 2
        return a**2

    x = X.clone().requires_grad_()
    y = getattr(blackbox, name)(doubled, x)
    y.sum().backward()
    assert torch.equal(x.detach(), X)
    close(y.detach(), 4 * X * X)
    if name == "finite_difference":
        close(x.grad, 8 * X, 1e-8)


def test_code_with_parameters_where_nothing_is_recorded():
    """Under no_grad no derivative by a parameter can be lost."""
    layer = torch.nn.Linear(3, 1, dtype=F64)
    with torch.no_grad():
        y = blackbox.smoothed(lambda x: layer(x).sum(), X, noise=torch.zeros(1, 3, dtype=F64))
        close(y, layer(X).sum())


def test_the_unit_of_a_projection():
    """The projection to the sphere does not depend on the unit of costs, and its derivative has the inverse one."""

    def solver(x):
        return torch.nn.functional.one_hot(x.argmin(), 3)

    f = lambda x: blackbox.negative_identity(solver, x, projection="norm")  # noqa: E731
    for unit in (1e-30, 1e30):
        x = (X * unit).float()
        close(f(x), f(X.float()))
        torch.testing.assert_close(jacrev(f)(x) * unit, jacrev(f)(X.float()))


def test_points_that_are_rounded():
    """The difference is divided by how far apart the points are."""
    x = torch.ones(2)
    f = lambda x: blackbox.finite_difference(lambda x: 2 * x[0], x, 1e-7)  # noqa: E731
    close(jvp(f, (x,), (x,))[1], torch.tensor(2.0))


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1.0, 1e30, 1e37])
def test_tangents_of_differences_have_any_unit(scale):
    """The derivative along a tangent does not depend on its size."""
    f = lambda x: blackbox.finite_difference(lambda v: (v * torch.tensor([1.0, 4.0])).sum(), x)  # noqa: E731
    found = jvp(f, (torch.ones(2),), (torch.full((2,), scale),))[1]
    torch.testing.assert_close(found / scale, torch.tensor(5.0), rtol=1e-3, atol=0)


@pytest.mark.parametrize("method", ["map", "sequential", "broadcast"])
@pytest.mark.parametrize("operator", ["smoothed", "perturbed"])
def test_code_may_close_over_a_tensor_of_the_batch(operator, method):
    """Each draw of a sample gets the sample's own tensor, also where there are as many draws as samples."""
    torch.manual_seed(0)
    noise, x, c = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3)
    op = getattr(blackbox, operator)
    more = {"antithetic": False} if operator == "smoothed" else {}

    def of(x, c):
        return op(lambda v: torch.sign(v - c), x, samples=4, noise=noise, vmap_method=method, **more).sum()

    torch.testing.assert_close(vmap(of)(x, c), torch.stack([of(*pair) for pair in zip(x, c, strict=True)]))
