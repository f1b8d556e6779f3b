"""Outputs, optional inputs, and what the context gives to the rules."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

from fullgrad import Function
from tests.operators import Affine, Cube, MatMul, MaxOver, Pair, SinCos, Total, affine, sample, sin_cos

pytestmark = pytest.mark.short

# One call in each of the ways that lead to a forward.
WAYS = {
    "eager": lambda f, x: f(x),
    "requires_grad": lambda f, x: f(x.clone().requires_grad_()),
    "no_grad": torch.no_grad()(lambda f, x: f(x.clone().requires_grad_())),
    "inference_mode": torch.inference_mode()(lambda f, x: f(x)),
    "vmap": lambda f, x: vmap(f)(x),
    "compile": lambda f, x: torch.compile(f, backend="eager", fullgraph=True)(x),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operator", [SinCos, MaxOver])
def test_type_of_a_tuple(operator, way):
    """A namedtuple stays the namedtuple that forward returned, torch.return_types too."""
    x = sample(2)
    output = WAYS[way](operator.apply, x)
    expected = operator.forward(x)
    assert type(output) is type(expected)
    for name in ("sin", "cos") if operator is SinCos else ("values", "indices"):
        assert torch.equal(getattr(output, name), getattr(expected, name))


@pytest.mark.parametrize("transform", [grad, jacrev, jacfwd])
@pytest.mark.parametrize("operator", [SinCos, MaxOver])
def test_type_of_a_tuple_inside_a_transform(operator, transform):
    """The function that is being differentiated sees the same type."""
    seen = []

    def function(x):
        seen.append(operator.apply(x))
        return seen[-1][0].sum()

    transform(function)(sample(2))
    assert {type(output) for output in seen} == {type(operator.forward(sample(2)))}


@pytest.mark.parametrize("transform", [grad, jacrev, jacfwd, vmap])
@pytest.mark.parametrize("operator", [SinCos, MaxOver])
def test_setup_context_sees_the_type_of_the_tuple(operator, transform):
    """``output.values`` may be used in setup_context, in eager and under transforms."""
    seen = []

    class Watched(operator):
        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append(type(output))
            operator.setup_context(ctx, inputs, output)

        @staticmethod
        def vmap(info, in_dims, *args):
            return Watched.apply(args[0].movedim(in_dims[0], 0), *args[1:]), (0, 0)

    Watched.apply(sample(2).requires_grad_())
    transform(lambda x: Watched.apply(x)[0].sum())(sample(2, 2).requires_grad_(transform is vmap))
    assert set(seen) == {type(operator.forward(sample(2)))}


class Either(Function):
    """Returns a Pair or a plain tuple, as its argument says."""

    @staticmethod
    def forward(x, named):
        return Pair(x * 2, x * 3) if named else (x * 2, x * 3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g, h):
        return g * 2 + h * 3, None

    @staticmethod
    def jvp(ctx, t, _):
        return t * 2, t * 3

    @staticmethod
    def vmap(info, in_dims, x, named):
        return Either.apply(x, named), in_dims[0]


@pytest.mark.parametrize("way", WAYS)
def test_type_of_the_output_is_that_of_this_call(way):
    """The type of the output is not remembered from another call."""
    for named in (True, False, True):
        assert type(WAYS[way](lambda x, named=named: Either.apply(x, named), sample())) is (Pair if named else tuple)


class One(NamedTuple):
    only: Tensor


class OneTuple(Function):
    """Returns a tuple of one."""

    @staticmethod
    def forward(x):
        return One(x**2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx, t):
        return (2 * ctx.saved_tensors[0] * t,)

    @staticmethod
    def vmap(info, in_dims, x):
        return OneTuple.apply(x), (in_dims[0],)


@pytest.mark.parametrize("way", WAYS)
def test_tuple_of_one(way):
    """A tuple of one is not unpacked."""
    x = sample()
    output = WAYS[way](OneTuple.apply, x)
    assert type(output) is One
    assert torch.equal(output.only, x**2)


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_derivative_of_a_tuple_of_one(transform):
    """A tuple of one has derivatives in reverse and forward mode, and second ones."""
    x = sample()
    assert_close(transform(lambda x: OneTuple.apply(x).only)(x), torch.diag(2 * x))
    assert_close(transform(transform(lambda x: OneTuple.apply(x).only.sum()))(x), 2 * torch.eye(3, dtype=x.dtype))


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_outputs_that_are_not_used(used):
    """Unused outputs have cotangents of zeros: gradients are right whichever outputs are used."""

    def total(function, x):
        return sum((output * 2).sum() for output, use in zip(function(x), used, strict=True) if use)

    x = sample()
    expected = grad(lambda x: total(sin_cos, x))(x)
    assert_close(grad(lambda x: total(SinCos.apply, x))(x), expected)
    leaf = x.clone().requires_grad_()
    total(SinCos.apply, leaf).backward()
    assert_close(leaf.grad, expected)


class Unmaterialized(SinCos):
    """`SinCos`, whose vjp records which cotangents there are."""

    seen = ()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g_sin, g_cos):
        Unmaterialized.seen = (g_sin is not None, g_cos is not None)
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        if g_sin is not None:
            total = total + g_sin * torch.cos(x)
        return total if g_cos is None else total - g_cos * torch.sin(x)

    @staticmethod
    def vmap(info, in_dims, x):
        return Unmaterialized.apply(x), (in_dims[0], in_dims[0])


@pytest.mark.parametrize("index", [0, 1])
def test_set_materialize_grads(index):
    """With False the cotangent of an unused output is None; the gradient is right in every mode."""
    x = sample()
    expected = grad(lambda x: sin_cos(x)[index].sum())(x)
    leaf = x.clone().requires_grad_()
    Unmaterialized.apply(leaf)[index].sum().backward()
    assert Unmaterialized.seen == (index == 0, index == 1)
    assert_close(leaf.grad, expected)
    assert_close(grad(lambda x: Unmaterialized.apply(x)[index].sum())(x), expected)
    assert_close(vmap(grad(lambda x: Unmaterialized.apply(x)[index]))(x), expected)
    assert_close(jvp(lambda x: Unmaterialized.apply(x)[index], (x,), (torch.ones_like(x),))[1], expected)
    compiled = torch.compile(lambda x: Unmaterialized.apply(x)[index].sum(), backend="aot_eager", fullgraph=True)
    leaf = x.clone().requires_grad_()
    compiled(leaf).backward()
    assert_close(leaf.grad, expected)


def test_integer_output_is_not_differentiable():
    """Indices come without a gradient, next to values that have one."""
    output = MaxOver.apply(sample(2).requires_grad_())
    assert output.values.requires_grad
    assert not output.indices.requires_grad
    assert output.indices.dtype == torch.int64


class ValueAndMask(Function):
    """relu, and a floating mask of where it is active, marked as not differentiable."""

    @staticmethod
    def forward(x):
        mask = (x > 0.7).to(x.dtype)
        return x**2 * mask, mask

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs, output[1])

    @staticmethod
    def vjp(ctx, g, _):
        x, mask = ctx.saved_tensors
        return 2 * x * mask * g

    @staticmethod
    def jvp(ctx, t):
        x, mask = ctx.saved_tensors
        return 2 * x * mask * t, None

    @staticmethod
    def vmap(info, in_dims, x):
        return ValueAndMask.apply(x), (in_dims[0], in_dims[0])


def value_and_mask(x):
    mask = (x > 0.7).to(x.dtype)
    return x**2 * mask, mask


def value_of(f):
    return lambda x: f(x)[0]


def mask_of(f):
    return lambda x: f(x)[1]


def product_of(f):
    return lambda x: f(x)[0] * f(x)[1]


DERIVATIVES = {
    "gradient of the value": lambda f: grad(lambda x: f(x)[0].sum()),
    "gradient with the mask aside": lambda f: grad(lambda x: (f(x)[0].sum(), f(x)[1]), has_aux=True),
    "gradient of the product per sample": lambda f: vmap(grad(product_of(f))),
    "second derivative of the value": lambda f: jacrev(jacrev(value_of(f))),
    "second derivative of the product, forward": lambda f: jacfwd(jacfwd(product_of(f))),
    "second derivative of the product, mixed": lambda f: jacrev(jacfwd(product_of(f))),
    "derivative of the mask, reverse": lambda f: jacrev(mask_of(f)),
    "derivative of the mask, forward": lambda f: jacfwd(mask_of(f)),
    "tangents of both": lambda f: lambda x: jvp(f, (x,), (x,)),
    "cotangents of both": lambda f: lambda x: vjp(f, x)[1]((x, x)),
}


@pytest.mark.parametrize("transform", DERIVATIVES.values(), ids=DERIVATIVES)
def test_non_differentiable_output(transform):
    """A floating output marked as not differentiable has a zero derivative everywhere, and the other one is right."""
    x = sample(seed=3)
    assert_close(transform(ValueAndMask.apply)(x), transform(value_and_mask)(x))
    value, mask = ValueAndMask.apply(x.clone().requires_grad_())
    assert value.requires_grad
    assert not mask.requires_grad


@pytest.mark.parametrize("b", [False, True])
@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_optional_tensor_and_scalars(transform, b):
    """None, float and int arguments reach the rules; only tensors have gradients."""
    x, w, bias = sample(3, seed=2)
    args = (x, w, bias) if b else (x, w)
    options = {"scale": 0.5, "power": 2}
    argnums = tuple(range(len(args)))
    assert_close(
        transform(lambda *a: Affine.apply(*a, **options), argnums)(*args),
        transform(lambda *a: affine(*a, **options), argnums)(*args),
    )
    leaves = [a.clone().requires_grad_() for a in args]
    Affine.apply(*leaves, **options).sum().backward()
    expected = grad(lambda *a: affine(*a, **options).sum(), argnums)(*args)
    assert_close(tuple(leaf.grad for leaf in leaves), expected)


class Watcher(MatMul):
    """Records which gradients torch reports as needed."""

    seen = ()

    @staticmethod
    def setup_context(ctx, inputs, output):
        Watcher.seen += (("setup_context", ctx.needs_input_grad),)
        MatMul.setup_context(ctx, inputs, output)

    @staticmethod
    def vjp(ctx, g):
        Watcher.seen += (("vjp", ctx.needs_input_grad),)
        return MatMul.vjp(ctx, g)

    @staticmethod
    def vmap(info, in_dims, a, b):
        return Watcher.apply(a, b), 0


@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)])
def test_needs_input_grad(needs):
    """setup_context and vjp see which inputs are differentiated, in eager autograd and under a transform."""
    a, b = sample(3), sample(3, seed=1)
    expected = (("setup_context", needs), ("vjp", needs))
    Watcher.seen = ()
    leaves = [v.clone().requires_grad_(n) for v, n in zip((a, b), needs, strict=True)]
    Watcher.apply(*leaves).sum().backward()
    assert Watcher.seen == expected
    Watcher.seen = ()
    argnums = tuple(i for i, n in enumerate(needs) if n)
    gradients = grad(lambda a, b: Watcher.apply(a, b).sum(), argnums)(a, b)
    assert tuple(call for call in Watcher.seen if any(call[1])) == expected
    assert_close(gradients, grad(lambda a, b: (a @ b).sum(), argnums)(a, b))
    assert_close(gradients, tuple(leaf.grad for leaf in leaves if leaf.requires_grad))


@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_one_of_two_tensors(transform, argnums):
    """Tangents of the inputs that are not differentiated arrive as None or zeros: either way the result is right."""
    a, b = sample(3), sample(3, seed=1)
    assert_close(transform(MatMul.apply, argnums)(a, b), transform(torch.matmul, argnums)(a, b))
    nested = transform(transform(lambda a, b: MatMul.apply(MatMul.apply(a, b), a), argnums), argnums)
    assert_close(nested(a, b), transform(transform(lambda a, b: a @ b @ a, argnums), argnums)(a, b))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_variadic_forward(count):
    """A forward may take any number of tensors."""
    xs = [v.clone().requires_grad_() for v in sample(count)]
    assert torch.equal(Total.apply(*xs), sum(xs))
    Total.apply(*xs).sum().backward()
    assert all(torch.equal(x.grad, torch.ones_like(x)) for x in xs)
    plain = [x.detach() for x in xs]
    assert torch.equal(jvp(Total.apply, tuple(plain), tuple(plain))[1], sum(plain))
    assert torch.equal(vmap(Total.apply)(*plain), sum(plain))


class SavesEach(Function):
    """x ** 2 * y where vjp and jvp read tensors of their own."""

    @staticmethod
    def forward(x, y):
        return x**2 * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.save_for_backward(x, None, y)
        ctx.save_for_forward(y, x)

    @staticmethod
    def vjp(ctx, g):
        x, nothing, y = ctx.saved_tensors
        assert nothing is None
        return 2 * x * y * g, x**2 * g

    @staticmethod
    def jvp(ctx, t_x, t_y):
        y, x = ctx.saved_tensors
        return 2 * x * y * (0 if t_x is None else t_x) + x**2 * (0 if t_y is None else t_y)

    @staticmethod
    def vmap(info, in_dims, x, y):
        return SavesEach.apply(x.movedim(in_dims[0], 0), y.movedim(in_dims[1], 0)), 0


@pytest.mark.parametrize("outer", [jacrev, jacfwd])
@pytest.mark.parametrize("inner", [jacrev, jacfwd])
def test_save_for_forward_apart_from_save_for_backward(inner, outer):
    """Each rule finds what was saved for it, None included."""
    x, y = sample(2)
    assert_close(outer(inner(SavesEach.apply, (0, 1)), (0, 1))(x, y), outer(inner(lambda x, y: x**2 * y, (0, 1)), (0, 1))(x, y))


class WithPlainValues(Function):
    """2 x with the derivative 5, next to a number and None."""

    @staticmethod
    def forward(x):
        return x * 2, 3, None

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g, *_):
        return 5 * g

    @staticmethod
    def jvp(ctx, t):
        return 5 * t, None, None

    @staticmethod
    def vmap(info, in_dims, x):
        return WithPlainValues.apply(x), (in_dims[0], None, None)


@pytest.mark.parametrize("way", WAYS)
def test_plain_values_among_the_outputs(way):
    """Numbers and None are passed on unchanged."""
    x = sample()
    call = (lambda x: WithPlainValues.apply(x)[0]) if way == "vmap" else WithPlainValues.apply
    output = WAYS[way](call, x)
    if way != "vmap":
        output, *rest = output
        assert rest == [3, None]
    assert torch.equal(output, 2 * x)


def test_derivative_next_to_plain_values():
    """Derivatives are right in both modes; https://github.com/pytorch/pytorch/issues/100574 reported an error in torch."""
    x = sample()
    first = lambda x: WithPlainValues.apply(x)[0]  # noqa: E731
    assert torch.equal(jacrev(first)(x), 5 * torch.eye(3, dtype=x.dtype))
    assert torch.equal(jacfwd(first)(x), 5 * torch.eye(3, dtype=x.dtype))
    with forward_ad.dual_level():
        assert torch.equal(forward_ad.unpack_dual(first(forward_ad.make_dual(x, x))).tangent, 5 * x)


class Gather(Function):
    """Elements of x by an index, an integer tensor."""

    @staticmethod
    def forward(x, index):
        return x.gather(-1, index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, index = inputs
        ctx.shape = x.shape
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def vjp(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter_add(-1, index, g), None

    @staticmethod
    def jvp(ctx, t, _):
        (index,) = ctx.saved_tensors
        return t.gather(-1, index)

    @staticmethod
    def vmap(info, in_dims, x, index):
        both = [
            v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)
            for v, d in zip((x, index), in_dims, strict=True)
        ]
        return Gather.apply(*both), 0


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (-1, 0)])
@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_integer_tensor_as_an_input(transform, dims):
    """Integer tensors have no gradient, and are batched like any other."""
    x = sample(3)[0] if dims[0] is None else sample(3)
    index = torch.tensor([[2, 0, 2], [1, 1, 0], [0, 2, 1]])
    index = index[0] if dims[1] is None else index
    function, oracle = (vmap(transform(f), dims) for f in (Gather.apply, lambda x, i: x.gather(-1, i)))
    assert_close(function(x, index), oracle(x, index))
    leaf = sample().requires_grad_()
    Gather.apply(leaf, torch.tensor([2, 0, 2])).sum().backward()
    assert leaf.grad.tolist() == [1, 0, 2]


class Twice(Function):
    """Returns the same tensor as both outputs."""

    @staticmethod
    def forward(x):
        y = x**2
        return y, y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g, h):
        return 2 * ctx.saved_tensors[0] * (g + h)

    @staticmethod
    def jvp(ctx, t):
        t = 2 * ctx.saved_tensors[0] * t
        return t, t.clone()

    @staticmethod
    def vmap(info, in_dims, x):
        return Twice.apply(x), (in_dims[0], in_dims[0])


def test_one_tensor_as_two_outputs():
    """The result is right, or an error, as for torch's own Function, and never half of the gradient."""
    x = sample()
    for transform in (jacrev, jacfwd):
        try:
            result = transform(lambda x: sum(Twice.apply(x)))(x)
        except RuntimeError:
            continue
        assert_close(result, torch.diag(4 * x))
    leaf = x.clone().requires_grad_()
    sum(Twice.apply(leaf)).sum().backward()
    assert_close(leaf.grad, 4 * x)


class Passing(Function):
    """Returns its input itself, with the derivative 2."""

    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return 2 * g

    @staticmethod
    def jvp(ctx, t):
        return 2 * t

    @staticmethod
    def vmap(info, in_dims, x):
        return Passing.apply(x), in_dims[0]


def test_forward_that_returns_its_input():
    """The declared derivative holds for an output that is an input."""
    x = sample()
    leaf = x.clone().requires_grad_()
    output = Passing.apply(leaf)
    assert output is not leaf
    assert torch.equal(output, x)
    output.sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(x, 2))
    assert torch.equal(grad(lambda x: (Passing.apply(x) ** 2).sum())(x), 4 * x)
    assert torch.equal(grad(lambda x: grad(lambda x: (Passing.apply(x) ** 3).sum())(x).sum())(x), 24 * x)
    assert torch.equal(vmap(grad(lambda x: Passing.apply(x) ** 2))(x), 4 * x)


def test_forward_that_returns_its_input_in_forward_mode():
    """Torch requires the tangent of a view to be a view of the tangent: right, or torch's own error."""
    x = sample()
    try:
        tangent = jvp(Passing.apply, (x,), (x,))[1]
    except RuntimeError as error:
        assert "view" in str(error)  # noqa: PT017
    else:
        assert torch.equal(tangent, 2 * x)


class Halves(Function):
    """Returns the first number of a vector, and the rest."""

    @staticmethod
    def forward(x):
        return x[..., :1] * 1, x[..., 1:] * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g, h):
        return torch.cat([g, h], -1)

    @staticmethod
    def jvp(ctx, t):
        return t[..., :1] * 1, t[..., 1:] * 1

    @staticmethod
    def vmap(info, in_dims, x):
        return Halves.apply(x.movedim(in_dims[0], 0)), 0


def test_outputs_of_other_shapes():
    """Each output has a shape of its own, and one out_dims holds for all of them."""
    x = sample(2)
    assert_close(vmap(jacfwd(Halves.apply))(x), vmap(jacrev(Halves.apply))(x))
    assert_close(vmap(jacrev(lambda x: torch.cat(Halves.apply(x))))(x), torch.eye(3, dtype=x.dtype).expand(2, 3, 3))


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_input_used_twice(transform):
    """Gradients add up where the same tensor is both inputs."""
    a = sample(3)
    assert_close(transform(lambda a: MatMul.apply(a, a))(a), transform(lambda a: a @ a)(a))


def test_empty_and_zero_dimensional_tensors():
    """Nothing in the machinery depends on the size."""
    for x in (torch.empty(0, 3), torch.tensor(2.0)):
        leaf = x.clone().requires_grad_()
        Cube.apply(leaf).sum().backward()
        assert torch.equal(leaf.grad, 3 * x**2)
        assert torch.equal(jvp(Cube.apply, (x,), (torch.ones_like(x),))[1], 3 * x**2)
