"""vmap: in_dims and out_dims of any sign, per-argument None, chunks, randomness, and the author's rule used everywhere."""

import itertools

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

from tests.operators import Affine, Cube, MatMul, MaxOver, Norm, Reparametrized, SinCos, Total, affine, sample

pytestmark = pytest.mark.short

PAIRS = [dims for dims in itertools.product((None, 0, 1, 2, -1, -2, -3), repeat=2) if dims != (None, None)]


def operands(*dims):
    """Two matrices, with a batch of 4 in the given dimensions."""
    tensors = []
    for seed, dim in enumerate(dims):
        t = sample(4, 3, seed=seed)
        tensors.append(t[0] if dim is None else t.movedim(0, dim).contiguous())
    return tensors


@pytest.mark.parametrize("dims", PAIRS, ids=str)
def test_in_dims(dims):
    """in_dims may have any sign, and are None for an argument that is not batched."""
    a, b = operands(*dims)
    assert_close(vmap(MatMul.apply, dims)(a, b), vmap(torch.matmul, dims)(a, b))


@pytest.mark.parametrize("dims", [(0, None), (None, -1), (-1, 1), (2, -3)], ids=str)
@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_in_dims_of_derivatives(transform, dims):
    """Per-sample Jacobians, and second derivatives, of both arguments are right."""
    a, b = operands(*dims)
    assert_close(vmap(transform(MatMul.apply, (0, 1)), dims)(a, b), vmap(transform(torch.matmul, (0, 1)), dims)(a, b))
    twice = transform(jacrev(lambda f, a, b: f(f(a, b), b), 2), 1)
    assert_close(
        vmap(lambda a, b: twice(MatMul.apply, a, b), dims)(a, b), vmap(lambda a, b: twice(torch.matmul, a, b), dims)(a, b)
    )


@pytest.mark.parametrize("dims", PAIRS[::5], ids=str)
@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_in_dims_below_a_derivative(transform, dims):
    """The Jacobian of a vmap: an argument that all samples share collects the gradients of all."""
    a, b = operands(*dims)
    assert_close(transform(vmap(MatMul.apply, dims), (0, 1))(a, b), transform(vmap(torch.matmul, dims), (0, 1))(a, b))


@pytest.mark.parametrize("out_dim", [0, 1, 2, -1, -2, -3])
def test_out_dims(out_dim):
    """out_dims may have any sign."""
    a, b = operands(0, 0)
    assert_close(vmap(MatMul.apply, out_dims=out_dim)(a, b), vmap(torch.matmul, out_dims=out_dim)(a, b))


@pytest.mark.parametrize("out_dims", [(0, 1), (-1, 0), (1, -2)])
def test_out_dims_of_several_outputs(out_dims):
    """Each output may have its own out_dim."""
    x = sample(4, 2)
    sin, cos = vmap(lambda x: tuple(SinCos.apply(x)), out_dims=out_dims)(x)
    assert torch.equal(sin, x.sin().movedim(0, out_dims[0]))
    assert torch.equal(cos, x.cos().movedim(0, out_dims[1]))


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("in_dim", [0, 1, 2, -1, -2, -3])
def test_operator_with_a_dimension(in_dim, dim):
    """``dim`` is that of one sample, wherever the batch is."""
    x = sample(4, 2)
    assert_close(vmap(lambda x: Norm.apply(x, dim), in_dim)(x), vmap(lambda x: x.square().sum(dim).sqrt(), in_dim)(x))
    assert_close(vmap(Norm.apply, (in_dim, None))(x, dim), vmap(lambda x: x.square().sum(dim).sqrt(), in_dim)(x))
    values, indices = vmap(lambda x: tuple(MaxOver.apply(x, dim)), in_dim)(x)
    expected = vmap(lambda x: tuple(torch.max(x, dim)), in_dim)(x)
    assert torch.equal(values, expected[0])
    assert torch.equal(indices, expected[1])


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5, 100])
def test_chunk_size(chunk_size):
    """Chunks change nothing."""
    x = sample(5)
    assert_close(vmap(grad(lambda x: Cube.apply(x).sum()), chunk_size=chunk_size)(x), 3 * x**2)
    assert_close(jacrev(Cube.apply, chunk_size=chunk_size)(x[0]), torch.diag(3 * x[0] ** 2))


@pytest.mark.parametrize("dims", [(0, 0), (0, 1), (1, 0), (-1, -1)])
def test_nested(dims):
    """Two levels of vmap may have the batch anywhere."""
    x = sample(4, 4)
    inner, outer = dims
    assert_close(vmap(vmap(Norm.apply, inner), outer)(x), vmap(vmap(lambda x: x.square().sum(-1).sqrt(), inner), outer)(x))


@pytest.mark.parametrize("dims", [(0, None), (None, 0)])
def test_nested_over_different_arguments(dims):
    """The outer level batches one argument, the inner the other."""
    a, b = sample(4, 3), sample(5, 3, seed=1)
    function, oracle = (vmap(vmap(f, dims), dims[::-1]) for f in (MatMul.apply, torch.matmul))
    args = (a, b)
    assert_close(function(*args), oracle(*args))


def test_optional_and_plain_arguments():
    """None, numbers, and tensors with and without a batch may be arguments of one call."""
    x, w, b = sample(3), sample(seed=1), sample(3, seed=2)
    dims = (0, None, 0, None, None)
    assert_close(vmap(Affine.apply, dims)(x, w, b, 0.5, 2), vmap(affine, dims)(x, w, b, 0.5, 2))
    assert_close(vmap(Affine.apply, (0, None, None))(x, w, None), vmap(affine, (0, None, None))(x, w, None))
    assert_close(vmap(lambda x: Affine.apply(x, w=w, power=3))(x), vmap(lambda x: affine(x, w=w, power=3))(x))


def test_variadic():
    """Each of any number of tensors has its own in_dim."""
    x, y, z = sample(4), sample(), sample(4, seed=2).mT.contiguous()
    assert_close(vmap(Total.apply, (0, None, -1))(x, y, z), x + y + z.mT)


class Told(Cube):
    """Records the arguments of its vmap rule."""

    calls = ()

    @staticmethod
    def forward(x, y, power=3):
        return x**power * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(True)

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError

    @staticmethod
    def vmap(info, in_dims, *args):
        Told.calls += ((info.batch_size, info.randomness, in_dims, tuple(getattr(a, "shape", a) for a in args)),)
        x, y = (a.movedim(d, 0) if d is not None else a for a, d in zip(args[:2], in_dims[:2], strict=True))
        return Told.apply(x, y, *args[2:]), 0


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_the_rule_gets_batch_size_randomness_and_dims(randomness):
    """The rule gets the batch size, the randomness, one in_dim for each argument of forward, and the arguments."""
    Told.calls = ()
    vmap(Told.apply, (0, None), randomness=randomness)(sample(5), sample())
    vmap(lambda x, y: Told.apply(y, x, 2), (-1, 0), randomness=randomness)(sample(2).mT, sample(2))
    assert Told.calls == (
        (5, randomness, (0, None, None), ((5, 3), (3,), 3)),
        (2, randomness, (0, 1, None), ((2, 3), (3, 2), 2)),
    )


def test_rule_is_not_asked_without_a_batch():
    """A call without a batched argument skips the rule."""
    Told.calls = ()
    y = sample()
    assert_close(vmap(lambda x: x * Told.apply(y, y))(sample(5)), sample(5) * y**4)
    assert Told.calls == ()


def test_each_level_asks_the_rule_once():
    """Nested vmaps call the rule from the inside out, each with its own batch size."""
    Told.calls = ()
    vmap(vmap(Told.apply, (0, None)), (0, None))(sample(5, 2), sample())
    assert [call[0] for call in Told.calls] == [2, 5]


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_randomness(randomness):
    """The rule draws one noise for all samples or one for each, and its gradient is that of the drawn noise."""
    x = sample(4)
    value, noise = vmap(Reparametrized.apply, randomness=randomness)(x)
    assert_close(value, x * noise)
    assert (noise == noise[0]).all() == (randomness == "same")
    gradient, noise = vmap(
        grad(lambda x: (lambda v, n: (v.sum(), n))(*Reparametrized.apply(x)), has_aux=True), randomness=randomness
    )(x)
    assert_close(gradient, noise)
    tangent = vmap(lambda x: jvp(lambda x: Reparametrized.apply(x)[0], (x,), (x,)), randomness=randomness)(x)
    assert_close(tangent[1], tangent[0])


def test_randomness_error():
    """With torch's default, "error", the rule may refuse."""
    with pytest.raises(RuntimeError, match="pass randomness='same' or 'different'"):
        vmap(Reparametrized.apply)(sample(4))


class Centered(Cube):
    """x itself, with a vmap rule that subtracts the mean of the batch and so shows when it is used."""

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return g * 5

    @staticmethod
    def jvp(ctx, t):
        return t * 5

    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return Centered.apply(x - x.mean(0)), 0


def test_declared_rule_is_used():
    """The author's vmap rule, in eager, under a transform and compiled: never a trace of forward."""
    x = sample(4)
    expected = x - x.mean(0)
    assert_close(vmap(Centered.apply)(x), expected)
    assert_close(jvp(vmap(Centered.apply), (x,), (x,))[1], 5 * expected)
    assert_close(vjp(vmap(Centered.apply), x)[1](x)[0], 5 * expected)
    assert_close(torch.compile(vmap(Centered.apply), backend="eager", fullgraph=True)(x), expected)


@pytest.mark.parametrize("dims", [0, (0,)])
def test_forms_of_out_dims_of_one_tensor(dims):
    """out_dims of one tensor may be an int, or a tuple of one."""

    class Form(Cube):
        @staticmethod
        def vmap(info, in_dims, x):
            return Cube.apply(x.movedim(in_dims[0], 0)), dims

    assert_close(vmap(Form.apply, 1)(sample(4).mT), sample(4) ** 3)


@pytest.mark.parametrize("dims", [-1, (-1, -1), [-1, -1], (1, -1)])
def test_forms_of_out_dims_of_several_tensors(dims):
    """out_dims of several tensors may be one int, or a sequence, of any sign."""

    class Form(SinCos):
        @staticmethod
        def vmap(info, in_dims, x):
            return SinCos.apply(x.movedim(in_dims[0], -1)), dims

    sin, cos = vmap(Form.apply)(sample(4))
    assert_close((sin, cos), (sample(4).sin(), sample(4).cos()))


def test_output_that_is_not_batched():
    """out_dims None: the output is the same for all samples."""

    class Shared(Reparametrized):
        @staticmethod
        def vmap(info, in_dims, x):
            return (x.movedim(in_dims[0], 0) * 2, torch.ones(3, dtype=x.dtype)), (0, None)

    value, shared = vmap(Shared.apply)(sample(4))
    assert_close(value, 2 * sample(4))
    assert_close(shared, torch.ones(4, 3, dtype=value.dtype))


def test_batch_of_size_zero_and_one():
    """Empty batches are torch's own error or empty; one sample is a batch too."""
    assert_close(vmap(grad(lambda x: Cube.apply(x).sum()))(sample(1)), 3 * sample(1) ** 2)
    results = []
    for function in (Cube.apply, lambda x: x**3):
        try:
            results.append(vmap(function)(torch.empty(0, 3)).shape)
        except (ValueError, RuntimeError) as error:
            results.append(type(error))
    assert results[0] == results[1]
