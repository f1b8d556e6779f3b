"""Promises of the guide on distributed training beyond the matrix: communication, errors, and former silent errors."""

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication, local_map
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing import assert_close

import fullgrad
from fullgrad import quantizers, sampling, soft
from fullgrad._core.shards import extremes
from tests.distributed.ranks import PLACEMENTS, laid_out, needs_threads, on_ranks, whole
from tests.operators import ThroughRound

pytestmark = needs_threads
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def of_ranks(function, *placements, x=X, shape=(2,)):
    """The whole results, on each rank, of a function of a distributed tensor. An error of a rank is raised."""

    def run(mesh):
        results = function(laid_out(x, mesh, placements).requires_grad_(x.is_floating_point()))
        return [whole(r).detach() if isinstance(r, torch.Tensor) else r for r in results]

    results = on_ranks(shape, run)
    for r in results:
        if isinstance(r, Exception):
            raise r
    return results


def value_and_gradients(f, x):
    """The value, the gradient of the sum of its squares and the gradient of the sum of those squares."""
    y = f(x)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return y, g, torch.autograd.grad(g.square().sum(), x)[0]


def equals_one_process(f, *placements, x=X, shape=(2,)):
    expected = value_and_gradients(f, x.clone().requires_grad_())
    for found in of_ranks(lambda x: value_and_gradients(f, x), *placements, x=x, shape=shape):
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b.detach(), rtol=1e-9, atol=1e-11, equal_nan=True)


# --- Communication --------------------------------------------------------------------------------------------------------


def collectives(f, *placements, x=X):
    """The number of collectives in a call, its gradient and its second derivative, with cotangents laid out like outputs."""

    def count(x):
        found = []
        with CommDebugMode() as comm:
            y = f(x)
        found.append(comm.get_total_counts())
        g = torch.ones_like(y).requires_grad_()
        with CommDebugMode() as comm:
            (gx,) = torch.autograd.grad(y, x, g, create_graph=True)
        found.append(comm.get_total_counts())
        if gx.requires_grad:
            with CommDebugMode() as comm:
                torch.autograd.grad(gx, [x, g], torch.ones_like(gx), allow_unused=True)
            found.append(comm.get_total_counts())
        return found

    first, second = of_ranks(count, *placements, x=x)
    assert first == second
    return first


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
@pytest.mark.parametrize("f", [fullgrad.round, lambda x: fullgrad.clamp(x, -1.0, 1.0), soft.abs, fullgrad.heaviside_st])
def test_elementwise_operators_send_nothing(f, placement):
    """Value, gradient and second derivative need no communication."""
    assert sum(collectives(f, placement)) == 0


@pytest.mark.parametrize("f", [fullgrad.round, soft.abs])
def test_elementwise_operators_sum_parts_once(f):
    """An elementwise function of a sum in parts needs one all-reduce."""
    assert collectives(f, Partial())[:2] == [1, 0]


@pytest.mark.parametrize("f", [fullgrad.scale_grad, lambda x: fullgrad.clip_grad(x, 0.1)])
def test_an_identity_leaves_a_sum_in_parts(f):
    """The value of an identity is that of its input, part by part."""
    assert collectives(f, Partial())[0] == 0


def test_rows_are_gathered_once():
    """A split row is gathered; one that is not split is not."""

    def sort(x):
        return fullgrad.sort_st(x, 1, method="softsort").values

    assert collectives(sort, Shard(1))[:2] == [1, 0]
    assert sum(collectives(sort, Shard(0))) == 0


# Collectives of the value and of its gradient, of a tensor whose rows are split. Among threads the broadcast of a draw is not
# counted.
COUNTS = {
    "bsq": (quantizers.bsq, [2, 1]),
    "clip_grad_norm": (lambda x: fullgrad.clip_grad_norm(x, 0.1), [0, 1]),
    "gumbel_softmax": (lambda x: sampling.gumbel_softmax(x, hard=True), [1, 0]),
    "reinmax": (sampling.reinmax, [1, 0]),
    "twn": (quantizers.twn, [4, 0]),  # the largest weight, its mean, and the sums of what is left
    "xnor": (quantizers.xnor, [1, 1]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_nothing_is_sent_twice(name):
    """Rows are gathered once, and a sum or an extreme of the ranks is made once."""
    f, expected = COUNTS[name]
    assert collectives(f, Shard(1))[:2] == expected


@pytest.mark.parametrize(
    "x", [[1e-30, 2e-38], [3e38, 3e38], [0.0, 0.0], [0.0, 1e-40], [torch.inf, 1.0], [torch.nan, 1.0]], ids=str
)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.5, torch.inf])
def test_a_norm_of_ranks_has_one_unit(x, p):
    """The norm neither overflows nor underflows, whichever rank has the largest number."""
    g = torch.tensor([x, x[::-1]])

    def clipped(x):
        (gx,) = torch.autograd.grad(fullgrad.clip_grad_norm(x, 0.5, norm_type=p), x, x.detach())
        return [gx]

    for placement in (Shard(0), Shard(1)):
        for found in of_ranks(clipped, placement, x=g):
            assert_close(found[0], clipped(g.clone().requires_grad_())[0], rtol=1e-6, atol=0, equal_nan=True)


def test_a_maximum_is_gathered_once():
    """Each shard sends two numbers, the smallest and the largest."""
    assert collectives(fullgrad.scale_grad, Shard(0))[:2] == [0, 1]


def test_ranks_with_the_same_numbers_exchange_no_errors():
    """A solver that may raise sends nothing where nothing is split: all ranks raise alike."""
    ones = torch.ones(6, dtype=torch.float64)

    def plan(x):
        with implicit_replication():
            return soft.proj_transport_polytope(x, ones / 6, ones[:4] / 4)

    x = X.t().contiguous()
    assert sum(collectives(plan, Replicate(), x=x)) == 0


# --- What was silently wrong ----------------------------------------------------------------------------------------------


def test_ranks_of_long_split_rows():
    """Blocks of rows were written into a slice, which is a copy for a split dimension: every rank was 0.5."""
    x = torch.randn(2, 600, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for found in of_ranks(lambda x: [soft.rank(x, method="sigmoid")], Shard(1), x=x):
        assert_close(found[0], soft.rank(x, method="sigmoid"), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["where", "logical_or", "logical_xor"])
def test_soft_logic_of_sums_in_parts(name):
    """The gradient of torch.lerp is wrong where its weight is a sum in parts."""

    def f(x):
        y = 0.5 * x
        return soft.where(x, y, 3 * y) if name == "where" else getattr(soft, name)(x, y)

    equals_one_process(f, Partial(), x=X.sigmoid())


@pytest.mark.parametrize("dim", [0, 1])
def test_windows_with_a_soft_start(dim):
    """The weights are a vector beside the rows, whole on each rank."""
    equals_one_process(lambda x: soft.narrow(x, torch.softmax(x.sum(1 - dim), 0), 2, dim), Shard(0))


@pytest.mark.parametrize("placements", [(Shard(0), Shard(1)), (Shard(1), Replicate()), (Replicate(), Partial())], ids=str)
@pytest.mark.parametrize("mode", ["c0", "c1"])
def test_projections_on_a_mesh_of_two_dimensions(mode, placements):
    """Ranks left a solver's loop at different steps, and waited for each other."""
    equals_one_process(lambda x: soft.proj_simplex(x, 1, mode=mode), *placements, shape=(2, 2))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("placements", [(Shard(0), Shard(1)), (Shard(1), Shard(0)), (Shard(1), Replicate())], ids=str)
def test_extremes_of_rows_on_a_mesh_of_two_dimensions(placements):
    """One dimension of the mesh may split the rows, and the other their elements."""

    def between(x):
        low, high = extremes(x, (1,))
        return x * low + high * high

    equals_one_process(between, *placements, shape=(2, 2))


def test_batched_cotangents_of_what_is_split_twice():
    """Both dimensions of the mesh may split one of the tensor, the second first: torch marks such shards as strided."""
    cotangents = torch.eye(X.numel(), dtype=X.dtype).reshape(-1, *X.shape)

    def pulled(x, cotangents):
        return torch.func.vmap(torch.func.vjp(lambda x: fullgrad.sort_st(x, 1).values, x)[1])(cotangents)[0]

    def run(mesh):
        first, second = mesh.get_coordinate()
        held = (_StridedShard(0, split_factor=2), Shard(0))
        x = DTensor.from_local(X[[first + 2 * second]], mesh, held, run_check=False, shape=X.shape, stride=X.stride())
        return whole(pulled(x, laid_out(cotangents, mesh, (Replicate(), Replicate())))).detach()

    for found in on_ranks((2, 2), run):
        assert_close(found, pulled(X, cotangents))


@pytest.mark.parametrize("placements", [(Shard(0), Shard(1)), (Replicate(), Partial())], ids=str)
def test_the_gradient_of_a_plain_number_on_a_mesh_of_two_dimensions(placements):
    """The gradient is that of the whole, on every rank."""

    def by_bound(x):
        bound = torch.tensor(0.7, dtype=x.dtype, requires_grad=True)
        with implicit_replication():
            (g,) = torch.autograd.grad(soft.clamp(x, -bound, bound).square().sum(), bound, create_graph=True)
            return [g.detach(), *torch.autograd.grad(g, bound)]

    for found in of_ranks(by_bound, *placements, shape=(2, 2)):
        assert_close(found, by_bound(X))


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_a_gradient_of_a_batch(placement):
    """The batch may be inside, unlike in per-sample gradients."""
    for f in (fullgrad.round, soft.abs, lambda row: fullgrad.sort_st(row).values, lambda row: fullgrad.scale_grad(row) ** 2):
        gradient = torch.func.grad(lambda x: torch.func.vmap(f)(x).square().sum())  # noqa: B023
        expected = gradient(X)
        for found in of_ranks(lambda x: [gradient(x.detach())], placement):  # noqa: B023
            assert_close(found[0], expected)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1)], ids=str)
def test_levels_are_whole(placement):
    """Levels are found for distributed elements, with a scale for all, for each row and for each element."""
    for scale in (0.7, torch.tensor(0.7), torch.full((4, 1), 0.7), torch.full((6,), 0.7)):

        def quantize(x, scale=scale):
            with implicit_replication():
                return x * quantizers.codebook_quantize(x, torch.tensor([-1.0, 0.1, 1.0]).to(x), scale)

        equals_one_process(quantize, placement)


@pytest.mark.parametrize("gradient", ["identity", "rotation"])
def test_vectors_are_whole(gradient):
    """Vectors may be distributed, or sums in parts."""
    codebook = torch.stack((X[0] + 0.1, X[1] - 0.3, -X[2]))

    def quantize(x):
        with implicit_replication():
            values, indices = quantizers.vector_quantize(x, codebook, gradient=gradient)
            return x.square() * values + indices.unsqueeze(-1)

    for placement in (Shard(0), Shard(1)):
        equals_one_process(quantize, placement)


def test_several_quantiles_of_rows():
    """Each rank computes the quantiles of its rows without communication."""
    q, softness = torch.tensor([0.25, 0.5, 0.9], dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64)

    def quantiles(x):
        with implicit_replication():
            return soft.quantile(x, q, dim=1, softness=softness)

    for placement in (Shard(0), Shard(1)):  # a row in parts is made whole
        equals_one_process(quantiles, placement)
    assert collectives(quantiles, Shard(0))[:2] == [0, 0]


def test_plain_tensors_of_a_rule_are_the_same_everywhere():
    """The caller's `implicit_replication` may be on or off for an operator without a layout; it is the same after the call."""

    class Weighted(fullgrad.Function):
        @staticmethod
        def forward(x):
            return x * torch.arange(6.0).to(x.dtype)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vjp(ctx, g):
            return g * torch.arange(6.0).to(g.dtype)

        jvp = vjp

        @classmethod
        def vmap(cls, info, in_dims, x):
            return cls.apply(x.movedim(in_dims[0], 0)), 0

    def outside(x):
        y = Weighted.apply(x)
        return y, torch.autograd.grad(y.sum(), x)[0]

    def inside(x):
        with implicit_replication():
            y = Weighted.apply(x) + torch.arange(6.0).to(x.dtype)
            return y, torch.autograd.grad(y.sum(), x)[0]

    for f in (outside, inside):
        expected = f(X.clone().requires_grad_())
        for found in of_ranks(f, Shard(0)):
            assert_close(found, [e.detach() for e in expected])


STATISTICS = {name: name for name in ("std", "rms", "mean_abs", "max_abs")} | {"function": lambda x: x.square().sum()}


@pytest.mark.parametrize("stat", STATISTICS.values(), ids=[*STATISTICS])
def test_scales_are_those_of_the_whole(stat):
    """Each rank recorded its own number; a sum in parts, that of its part."""

    def track(x):
        pair = fullgrad.ScalePair()
        (fullgrad.ScaleTracker.track(x, pair, stat) ** 2).sum().backward()
        return [pair.forward, pair.backward]

    expected = track(X.clone().requires_grad_())
    for placement in PLACEMENTS.values():
        for found in of_ranks(track, placement):
            assert found == pytest.approx(expected, rel=1e-12)


def test_second_derivatives_through_shards():
    """torch's own conversions lose terms where a gradient and the value have different layouts; an operator's do not."""
    x = torch.arange(1.0, 5.0, dtype=torch.float64)

    class Cube(fullgrad.Elementwise):
        reads = {0: (0,)}

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def vjp_term(i, v, x):
            return v * 3 * x**2

    def second(f):
        def of(x):
            (g,) = torch.autograd.grad(f(x).sum().square(), x, create_graph=True)
            return torch.autograd.grad(g.sum(), x)

        return of

    expected = second(Cube.apply)(x.clone().requires_grad_())[0]
    assert_close(of_ranks(second(Cube.apply), Shard(0), x=x)[0][0], expected)
    theirs = local_map(lambda x: x**3, out_placements=[Shard(0)], in_placements=([Shard(0)],))
    lost = of_ranks(lambda x: second(theirs)(x), Shard(0), x=x)[0][0]
    assert not torch.allclose(lost, expected)  # else the guide need not warn any more


@pytest.mark.parametrize("operator", [fullgrad.scale_grad, fullgrad.clamp_by_linear])
@pytest.mark.parametrize("element", [(0, 0), (3, 5)])
def test_a_nan_of_one_shard_reaches_all(operator, element):
    """A maximum by collectives compares with NaN, and may lose it."""
    x = X.clone()
    x[element] = torch.nan
    equals_one_process(operator, Shard(0), x=x)


def test_tied_extremes_share_the_derivative_over_shards():
    """Extremes share the derivative as in one process, also where shards have different numbers of them."""
    x = torch.tensor([[1.0, 3.0, 3.0], [3.0, 0.0, -3.0]], dtype=torch.float64)
    equals_one_process(fullgrad.clamp_by_linear, Shard(0), x=x)
    equals_one_process(lambda x: fullgrad.scale_grad(x * x), Shard(0), x=x)
    x[1, 2] = -2.0  # three of them, two in a shard
    equals_one_process(lambda x: x * quantizers.dorefa_weight(x, 2, max_gradient=True), Shard(0), x=x)
    x[0, 0] = torch.nan
    equals_one_process(lambda x: quantizers.dorefa_weight(x, 2), Shard(0), x=x)


def test_a_shard_of_zeros_has_a_second_derivative():
    """The norm of a rank's part may be 0, where a norm of norms would have no derivative."""
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    equals_one_process(lambda x: fullgrad.clip_grad_norm(x, 0.1), Shard(0), x=x)


def test_fewer_elements_than_ranks():
    """Some shards may be empty."""
    x = torch.tensor([[0.5, -1.5, 2.5]], dtype=torch.float64).mT.contiguous()
    sort = lambda x: fullgrad.sort_st(x, 0).values  # noqa: E731
    for f in (fullgrad.round, soft.abs, sort, fullgrad.scale_grad, fullgrad.clamp_by_linear):
        equals_one_process(f, Shard(0), x=x, shape=(4,))


class Rows(ThroughRound):
    """Asks torch for a size that it cannot tell of a tensor without elements."""

    whole_dims = 1

    @staticmethod
    def forward(x):
        return x.reshape(x.shape[0], -1).clone()


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_fewer_rows_than_ranks(rows):
    """Ranks agree with one process also where some have no rows, or fewer than the others."""
    equals_one_process(Rows.apply, Shard(0), x=X.repeat(2, 1)[:rows].clone(), shape=(4,))


# --- Errors ---------------------------------------------------------------------------------------------------------------


class Undeclared(fullgrad.Function):
    """Does not declare how it may be split."""

    @staticmethod
    def forward(x):
        return torch.searchsorted(x, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return None

    @staticmethod
    def jvp(ctx, t):
        return None

    @staticmethod
    def vmap(info, in_dims, x):
        raise NotImplementedError


def errors(function, *placements, x=X, shape=(2,)):
    return on_ranks(shape, lambda mesh: function(laid_out(x, mesh, placements)))


def test_an_operator_without_declaration_says_what_to_declare():
    """The error appears where torch has no sharding rule."""
    for error in errors(Undeclared.apply, Shard(0)):
        assert isinstance(error, NotImplementedError)
        assert all(text in str(error) for text in ("Undeclared", "whole_dims", "Shard(dim=0)"))


def test_noise_is_spread_as_what_it_is_for():
    """Noise is a distributed tensor of the same layout, with the dtype of noise."""

    def noises(x):
        found = [sampling.uniform_like(x), sampling.uniform_like(x.bfloat16(), (3,))]
        assert [(type(u), u.dtype, u.shape) for u in found] == [
            (type(x), torch.float64, (4, 6)),
            (type(x), torch.float32, (3, 4, 6)),
        ]
        assert found[0].placements == x.placements
        return found

    for found in zip(*of_ranks(noises, Shard(0)), strict=True):
        assert all(((u >= 0) & (u < 1)).all() for u in found)


def test_plain_tensors_are_not_mixed_in():
    """A plain tensor raises, as nobody said that each rank has the same; a number is allowed."""
    for error in errors(lambda x: fullgrad.clamp(x, -torch.ones(6, dtype=torch.float64), 1.0), Shard(1)):
        assert isinstance(error, TypeError)
        assert all(text in str(error) for text in ("Clamp: plain tensors cannot be mixed", "`min_value`"))

    for error in errors(lambda x: fullgrad.losses.listnet(x, torch.ones(4, 6, dtype=torch.float64)), Shard(1)):  # plain code
        assert isinstance(error, TypeError)
        assert all(text in str(error) for text in ("listnet: plain tensors cannot be mixed", "`argument 2`"))

    def allowed(x):
        with implicit_replication():
            return [fullgrad.clamp(x, -torch.ones(6, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))]

    assert torch.equal(of_ranks(allowed, Shard(1))[0][0], X.clamp(-1, 1))


def test_a_batch_of_cotangents_that_torch_func_does_not_know():
    """The rule for a batch is not called."""

    def gradients(x):
        y = fullgrad.sort_st(x.requires_grad_(), 1).values
        return torch.autograd.grad(y, x, torch.stack([y, y]).detach(), is_grads_batched=True)

    for error in errors(gradients, Shard(0)):
        assert isinstance(error, NotImplementedError)
        assert all(text in str(error) for text in ("`is_grads_batched=True`", "torch.func.vmap of torch.func.vjp"))


def test_every_rank_raises():
    """Errors about arguments depend on what all ranks know, so no rank waits for another."""
    functions = (
        lambda x: fullgrad.sort_st(x, 7),
        lambda x: soft.max(x[:, :0], 1),
        lambda x: fullgrad.clamp(x, x[:2], 1.0),
        lambda x: fullgrad.step_quantize(x, -1.0),
    )
    for f in functions:
        for placement in PLACEMENTS.values():
            found = errors(f, placement)
            assert all(isinstance(e, Exception) for e in found), found
            assert len({type(e) for e in found}) == 1


@pytest.mark.long
def test_every_rank_raises_what_the_numbers_of_one_make_it_raise():
    """A transport plan that does not converge in the rows of one rank raises on all."""
    shares = torch.full((3,), 1 / 3, dtype=torch.float64)
    cost = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cost[1] *= 1e200  # the second rank has it

    def project(x):
        with implicit_replication():
            return soft.proj_transport_polytope(x, shares, shares, 0.1, "c1")

    first, second = errors(project, Shard(0), x=cost)
    assert "did not converge for 1 of 1" in str(second)
    assert str(first) == "Potentials: the call raised on another rank, whose numbers the error there names."
    for found in of_ranks(lambda x: [project(x)], Shard(0), x=cost[:1].repeat(2, 1, 1)):
        assert torch.isfinite(found[0]).all()


class RaisesInBackward(fullgrad.Elementwise):
    """The identity; its derivative raises where an element is negative."""

    raises_by_numbers = True
    reads = {0: (0,)}

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def vjp_term(i, v, x):
        if (x < 0).any():
            raise ValueError("a negative element")
        return v * 1.0


def test_every_rank_raises_what_the_numbers_of_one_make_its_backward_raise():
    """All ranks raise: alone, in a graph differentiated again, and where other collectives follow."""
    good = torch.ones(2, 3, dtype=torch.float64)
    bad = torch.tensor([[1.0] * 3, [-1.0] * 3], dtype=torch.float64)  # the second rank has it

    def derivative(create_graph):
        def f(x):
            x = x.requires_grad_()
            (g,) = torch.autograd.grad((RaisesInBackward.apply(x) ** 3).sum(), x, create_graph=create_graph)
            if create_graph:
                (g,) = torch.autograd.grad((g**2).sum(), x)
            return [g.full_tensor()]

        return f

    for create_graph, expected in ((False, 3.0), (True, 36.0)):
        first, second = errors(derivative(create_graph), Shard(0), x=bad)
        assert str(second) == "a negative element"
        assert "RaisesInBackward: the call raised on another rank" in str(first)
        for found in of_ranks(derivative(create_graph), Shard(0), x=good):
            assert torch.equal(found[0], torch.full((2, 3), expected, dtype=torch.float64))


def test_ranks_agree_on_order_statistics_by_transport_alone():
    """Transport takes one all-reduce in the forward, and one in the backward, where a straight-through version plans."""
    by = lambda statistic, method: lambda x: statistic(x, 1, method=method).values  # noqa: E731
    for statistic in (soft.sort, fullgrad.sort_st):
        assert collectives(by(statistic, "ot"), Shard(0))[:2] == [1, 1]
        assert collectives(by(statistic, "softsort"), Shard(0))[:2] == [0, 0]


# --- An identity of a sum in parts ------------------------------------------------------------------------------------------


def of_two(f, x, other, x_placement, other_placement):
    """The value and second derivative of a function of two tensors, on two ranks and in one process."""

    def run(mesh):
        both = [laid_out(t, mesh, [p]) for t, p in ((x, x_placement), (other, other_placement))]
        both = [t.requires_grad_(t.is_floating_point()) for t in both]
        return [whole(r).detach() for r in results(*both)]

    def results(x, other):
        leaves = [t for t in (x, other) if t.requires_grad]
        y = f(x, other)
        g = [v for v in torch.autograd.grad((y**3).sum(), leaves, create_graph=True, allow_unused=True) if v is not None]
        second = torch.autograd.grad(sum((v**2).sum() for v in g), leaves, allow_unused=True)
        return [y, *g, *[v for v in second if v is not None]]

    expected = results(*[t.clone().requires_grad_(t.is_floating_point()) for t in (x, other)])
    for found in on_ranks((2,), run):
        if isinstance(found, Exception):
            raise found
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b.detach())


@pytest.mark.parametrize("other", [Shard(0), Shard(1), Replicate(), Partial()], ids=str)
@pytest.mark.parametrize("x", [Partial(), Shard(0), Replicate()], ids=str)
def test_identity_of_a_sum_in_parts_next_to_another_tensor(x, other):
    """The identity stayed in parts where the other tensor was split; each rank counted its second derivative."""
    surrogate = X.flip(0).contiguous()
    of_two(fullgrad.replace_grad, X, surrogate, x, other)
    of_two(lambda x, bound: fullgrad.clip_grad(x, bound.abs().detach()), X, surrogate, x, other)
    if not other.is_partial():
        of_two(fullgrad.mask_grad, X, X > 0, x, other)


IDENTITIES = {
    "clip_grad": lambda x: fullgrad.clip_grad(x, 0.5),
    "nan_to_num_grad": fullgrad.nan_to_num_grad,
    "float_quantize_bwd": lambda x: quantizers.float_quantize_bwd(x, "float8_e4m3fn"),
    "scale_grad": fullgrad.scale_grad,
    "clip_grad_norm": lambda x: fullgrad.clip_grad_norm(x, 0.5),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("placements", [(Partial(), Replicate()), (Shard(0), Partial()), (Partial(), Partial())], ids=str)
def test_an_identity_of_a_sum_in_parts_counts_derivatives_once(placements):
    """Each rank counted the second derivative, through the cotangent, and the third, which has it twice."""
    for f in IDENTITIES.values():
        equals_one_process(f, *placements, shape=(2, 2))
        equals_one_process(lambda x: f(f(x) ** 3), *placements, shape=(2, 2))  # noqa: B023


# --- Shards that are uneven, empty or elsewhere -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["smooth", "c0", "c1", "c2"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_projections_onto_the_permutahedron(placement, mode):
    """Plain tensors of positions met distributed ones."""
    w = X.flip(1)[0]

    def project(x):
        with implicit_replication():
            return soft.proj_permutahedron(x, w, 0.3, mode)

    equals_one_process(project, PLACEMENTS[placement])


STATISTICS_OF_ALL = {
    "soft.median": soft.median,
    "median_st": fullgrad.median_st,
    "soft.max": soft.max,
    "soft.rank": lambda x: soft.rank(x, None),
    "argmax_st": fullgrad.argmax_st,
    "soft.quantile": lambda x: soft.quantile(x, 0.3),
}


@pytest.mark.parametrize("name", STATISTICS_OF_ALL)
@pytest.mark.parametrize("placement", [Shard(0), Shard(1)], ids=str)
def test_statistics_of_all_elements_in_uneven_shards(placement, name):
    """torch joins no dimension whose shards are uneven."""

    def statistic(x):
        y = STATISTICS_OF_ALL[name](x * x)
        return y if isinstance(y, torch.Tensor) else y.values

    equals_one_process(statistic, placement, x=X[:3, :5].clone())


SCALES = torch.tensor([[0.3, 0.5, 0.7]] * 4, dtype=torch.float64)
BLOCKWISE = {
    "fake_quantize": quantizers.fake_quantize,
    "float_quantize": lambda x, s: quantizers.float_quantize(x, "float8_e4m3fn", s),
    "ternarize": quantizers.ternarize,
    "binarize": quantizers.binarize,
    "stretched_elastic": lambda x, s: quantizers.stretched_elastic(x, s, 4),
    "codebook_quantize": lambda x, s: quantizers.codebook_quantize(x, torch.tensor([-1.0, 0.1, 1.0], dtype=x.dtype), s),
}


@pytest.mark.parametrize("name", BLOCKWISE)
def test_blocks_of_uneven_shards(name):
    """Ranks may share scales, numbers, or both: here three scales of a split row."""

    def quantize(x, s):
        with implicit_replication():
            return x * BLOCKWISE[name](x, s)

    for x_placement, s_placement in (
        (Shard(1), Replicate()),
        (Shard(1), Shard(1)),
        (Replicate(), Shard(1)),
        (Shard(0), Shard(1)),
    ):
        of_two(quantize, X, SCALES, x_placement, s_placement)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1,)], ids=str)
def test_a_dimension_of_one_element_that_is_split(shape):
    """One rank has the element; torch has no rule for such extremes, and the error asked for a declaration."""
    x = X.flatten()[: torch.Size(shape).numel()].reshape(shape)

    def run(mesh, f):
        spread = distribute_tensor(x, mesh, [Shard(shape.index(1))], src_data_rank=None)
        return [whole(r).detach() for r in value_and_gradients(f, spread.requires_grad_())]

    for f in (fullgrad.clamp_by_linear, fullgrad.scale_grad, lambda x: fullgrad.clip_grad_norm(x, 0.1), fullgrad.round, soft.abs):
        expected = [r.detach() for r in value_and_gradients(f, x.clone().requires_grad_())]
        for found in on_ranks((3,), lambda mesh: run(mesh, f)):  # noqa: B023
            if isinstance(found, Exception):
                raise found
            assert_close(found, expected)


OPERATORS = {
    "round": fullgrad.round,
    "sort_st": lambda x: fullgrad.sort_st(x, 1).values,
    "sort_st, ot": lambda x: fullgrad.sort_st(x, 1, method="ot").values,
    "clamp_by_linear": fullgrad.clamp_by_linear,
    "scale_grad": fullgrad.scale_grad,
    "soft.where": lambda x: soft.where(x.sigmoid(), x, x),
    "lsq": lambda x: quantizers.lsq(x, torch.tensor(0.1, dtype=x.dtype), -4, 3),
    "median": soft.median,
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_ranks_outside_of_the_mesh(placement):
    """Ranks outside run the same program, with tensors of the same shape and layout without data, like torch's operations."""

    def run(mesh):
        sub = DeviceMesh("cpu", [1, 2])
        inside = sub.get_coordinate() is not None
        found = {}
        for name, f in OPERATORS.items():
            if inside:
                x = laid_out(X, sub, [PLACEMENTS[placement]])
            else:
                empty = torch.zeros(0, dtype=X.dtype)
                x = DTensor.from_local(empty, sub, [PLACEMENTS[placement]], run_check=False, shape=X.shape, stride=X.stride())
            x = x.requires_grad_()
            y = f(x)
            (g,) = torch.autograd.grad(y.square().sum(), x)
            found[name] = y.placements, g.shape, y.shape if y.ndim else None, inside or not g.to_local().numel()
        return found

    first, *others = on_ranks((4,), run)
    if isinstance(first, Exception):
        raise first
    assert all(empty for *_, empty in first.values())
    for found in others:
        assert found == first


# --- Noise ------------------------------------------------------------------------------------------------------------------


def drawn(f, placements, seeds, shape=(2, 2)):
    """The noise that ranks of a mesh draw with their own generators: the whole, and the part on this rank."""

    def run(mesh):
        generator = torch.Generator().manual_seed(seeds[mesh.get_rank()])
        x = laid_out(X[:3, :5].clone(), mesh, placements)
        y = [f(x, generator) for _ in range(2)]
        return [whole(v).detach() for v in y], mesh.get_coordinate(), y[0].to_local().detach(), generator.get_state()

    found = on_ranks(shape, run)
    for r in found:
        if isinstance(r, Exception):
            raise r
    return found


DRAWS = {
    "uniform_like": lambda x, g: sampling.uniform_like(x, generator=g),
    "several": lambda x, g: sampling.gumbel_like(x, (3,), generator=g),
    "bernoulli_st": lambda x, g: sampling.bernoulli_st(x.sigmoid(), generator=g),
    "gumbel_softmax": lambda x, g: sampling.gumbel_softmax(x, generator=g),
    "stochastic_round": lambda x, g: fullgrad.stochastic_round(x, generator=g),
    "grad": lambda x, g: torch.func.grad(lambda x: (sampling.relaxed_bernoulli(x, generator=g) ** 2).sum())(x),
    "vmap": lambda x, g: torch.func.vmap(lambda x: x * sampling.uniform_like(x, generator=g), randomness="different")(x),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("placements", [(Shard(0), Replicate()), (Shard(1), Shard(0)), (Partial(), Replicate())], ids=str)
def test_noise_is_that_of_one_process(placements, name):
    """All shards had the same numbers where ranks share a seed, and replicas different ones where they do not."""
    f, x = DRAWS[name], X[:3, :5].clone()
    generator = torch.Generator().manual_seed(5)
    expected = [f(x, generator) for _ in range(2)]
    for seeds in ([5] * 4, [5, 6, 7, 8]):
        for n, (y, *_, state) in enumerate(drawn(f, placements, seeds)):
            assert_close(y, expected)
            assert torch.equal(state, generator.get_state()) == (seeds[n] == 5)


def test_replicas_have_the_same_noise():
    """Local tensors are the same, whatever the seeds of the ranks."""
    found = drawn(DRAWS["uniform_like"], (Shard(0), Replicate()), [1, 2, 3, 4])
    by_place = {tuple(place): local for _, place, local, _ in found}
    assert torch.equal(by_place[0, 0], by_place[0, 1])
    assert torch.equal(by_place[1, 0], by_place[1, 1])
    assert not torch.equal(by_place[0, 0][:1], by_place[1, 0][:1])


@pytest.mark.parametrize("name", ["spearman", "ndcg", "listnet", "lambda_loss"])
def test_losses_of_rankings_are_those_of_one_process(name):
    """Rows are whole where ranks are taken, also of shards, with a mask and weights of rows."""
    y, mask = torch.arange(24).reshape(4, 6) % 5, torch.arange(6) < torch.tensor([[6], [3], [5], [0]])

    def loss(x):
        return getattr(fullgrad.losses, name)(x, y, mask=mask, weight=torch.tensor([1.0, 2.0, 0.5, 1.0]).double())

    def replicated(x):
        with implicit_replication():
            return value_and_gradients(loss, x)

    expected = value_and_gradients(loss, X.clone().requires_grad_())
    for placement in (Shard(0), Shard(1)):
        for found in of_ranks(replicated, placement):
            for a, b in zip(found, expected, strict=True):
                assert_close(a, b.detach(), rtol=1e-9, atol=1e-11)
