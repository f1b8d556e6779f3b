"""What torch promises of custom Functions, property by property: each is a small class in a table, and holds inside `adopting`.

The oracle is the class in eager autograd, without the context: loops over samples and double backward.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

import fullgrad
from tests.adopting import oracle

pytestmark = [pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")]
X = torch.tensor([0.3, -1.2, 2.6], dtype=torch.float64)
Y = torch.tensor([1.5, 0.4, -0.8], dtype=torch.float64)
W = torch.tensor([[0.2, 1.0, -0.5], [0.7, -0.3, 0.4]], dtype=torch.float64)


def function(forward, backward=None, setup=None, base=Function, **more) -> Any:
    """A new class of these rules."""
    parts = {"forward": forward, "backward": backward, "setup_context": setup, **more}
    parts = {name: rule if isinstance(rule, bool) else staticmethod(rule) for name, rule in parts.items() if rule is not None}
    return type("Small", (base,), parts)


def saves(value, *kept):
    """A forward that computes a value and saves its inputs, or some tensors made of them."""

    def forward(ctx, *xs):
        ctx.save_for_backward(*[k(*xs) for k in kept] or [x for x in xs if isinstance(x, Tensor)])
        return value(*xs)

    return forward


def keeps(ctx, inputs, output):
    ctx.save_for_backward(*[x for x in inputs if isinstance(x, Tensor)])
    ctx.save_for_forward(*[x for x in inputs if isinstance(x, Tensor)])


def of_sine(ctx, g):
    return g * ctx.saved_tensors[0].cos()


def of_product(ctx, g):
    x, y = ctx.saved_tensors
    return g * y, g * x


def asked_product(ctx, g):
    x, y = ctx.saved_tensors
    return g * y if ctx.needs_input_grad[0] else None, g * x if ctx.needs_input_grad[1] else None


def sine(x):
    return x.sin()


def product(x, y):
    return x * y


def nothing_saved(ctx, x):
    ctx.save_for_backward(None, x, None)
    return x.sin()


def of_the_second(ctx, g):
    first, x, last = ctx.saved_tensors
    assert first is None
    assert last is None
    return g * x.cos()


def exp_and_rest(ctx, x):
    y = x.exp()
    ctx.save_for_backward(y)
    ctx.mark_non_differentiable(rank := x.argsort(), sign := x.sign())
    return y, rank, sign


def two(ctx, x):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x)
    return x.sin(), x.exp()


def of_two(ctx, g, h):
    (x,) = ctx.saved_tensors
    parts = [None if g is None else g * x.cos(), None if h is None else h * x.exp()]
    return sum(p for p in parts if p is not None) if parts != [None, None] else None


class Base(Function):
    """Rules that a subclass inherits, and a helper that they call."""

    scale = 3.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Base.helped(x) * Base.scale

    @staticmethod
    def helped(x):
        return x.sin()

    @classmethod
    def backward(cls, ctx, g):
        return g * ctx.saved_tensors[0].cos() * cls.scale


Inner = function(saves(sine), of_sine)


def matrix(ctx, x, w, bias=None):
    ctx.save_for_backward(x, w)
    ctx.has_bias = bias is not None
    return x @ w.mT if bias is None else x @ w.mT + bias


def of_matrix(ctx, g):
    x, w = ctx.saved_tensors
    rows = lambda t: t.reshape(-1, t.shape[-1])  # noqa: E731
    return g @ w, rows(g).mT @ rows(x), rows(g).sum(0) if ctx.has_bias else None


def of_index(ctx, g):
    x, i = ctx.saved_tensors
    return torch.zeros_like(x).index_add(0, i, g), None


def power(ctx, x, n):
    ctx.n = n
    ctx.save_for_backward(x)
    return x**n


def of_power(ctx, g):
    return g * ctx.n * ctx.saved_tensors[0] ** (ctx.n - 1), None


def calls_itself(ctx, x, depth):
    ctx.save_for_backward(x)
    ctx.depth = depth
    return x.sin() if depth == 0 else Deep.apply(x, depth - 1) + x


def of_calls(ctx, g):
    (x,) = ctx.saved_tensors
    return g * (Inner.apply(x + 1.5707963267948966) + ctx.depth), None


Deep = function(calls_itself, of_calls)

# name: (class, inputs), whose derivatives are those of eager autograd in every transform.
RIGHT = {
    "saves an input": (Inner, (X,)),
    "saves an output": (function(exp_and_rest, lambda ctx, g, _, __: g * ctx.saved_tensors[0]), (X,)),
    "saves None": (function(nothing_saved, of_the_second), (X,)),
    "saves nothing": (function(lambda ctx, x: x * 3, lambda ctx, g: g * 3), (X,)),
    "saves in setup_context": (function(sine, of_sine, keeps), (X,)),
    "saves a view": (function(saves(sine, lambda x: x.view(1, -1)), lambda ctx, g: g * ctx.saved_tensors[0][0].cos()), (X,)),
    "two inputs": (function(saves(product), of_product), (X, Y)),
    "two inputs, asked for": (function(product, asked_product, keeps), (X, Y)),
    "one input twice": (function(lambda ctx, x: two(ctx, x)[0] + x, lambda ctx, g: of_two(ctx, g, None) + g), (X,)),
    "two outputs": (function(two, of_two), (X,)),
    "an output without a gradient": (function(two, of_two), (X,)),
    "a constant gradient": (function(lambda ctx, x, y: x + y.round(), lambda ctx, g: (g, None)), (X, Y)),
    "no gradient at all": (function(saves(sine), lambda ctx, g: None), (X,)),
    "more gradients than inputs": (function(saves(sine), lambda ctx, g: (of_sine(ctx, g), None, None)), (X,)),
    "a gradient to be summed": (function(lambda ctx, x, y: x * 2 + y, lambda ctx, g: (g * 2, g)), (W, X)),
    "a gradient that is expanded": (function(lambda ctx, x: x.sum(), lambda ctx, g: g.expand(3)), (X,)),
    "a gradient of another dtype": (function(saves(sine), lambda ctx, g: of_sine(ctx, g).to(torch.complex128).real), (X,)),
    "a gradient of another layout": (function(lambda ctx, x: x.mT, lambda ctx, g: g.mT.contiguous().mT.mT), (W,)),
    "the input itself": (function(lambda ctx, x: x, lambda ctx, g: g * 2), (X,)),
    "the input as a view": (function(lambda ctx, x: x.view_as(x), lambda ctx, g: g * 2), (X,)),
    "a part of the input": (
        function(lambda ctx, x: x[1:], lambda ctx, g: torch.cat([g.new_zeros(1), g])),
        (X,),
    ),
    "both inputs themselves": (function(lambda ctx, x, y: (y, x), lambda ctx, g, h: (2 * h, 3 * g)), (X, Y)),
    "the same output twice": (function(lambda ctx, x: (y := x * 2, y * 1), lambda ctx, g, h: 2 * (g + h)), (X,)),
    "a number, a text and None": (
        function(lambda ctx, x, n, s, none: x * n, lambda ctx, g: (g * 3, None, None, None)),
        (X, 3, "mode", None),
    ),
    "containers": (
        function(lambda ctx, x, d: x * d["a"][0] * d["b"], lambda ctx, g: (g * 6, None)),
        (X, {"a": [2.0], "b": 3}),
    ),
    "an optional tensor": (function(matrix, of_matrix), (X, W, torch.ones(2, dtype=X.dtype))),
    "an optional tensor that is not given": (function(matrix, of_matrix), (X, W, None)),
    "an integer tensor": (function(saves(lambda x, i: x[i]), of_index), (X, torch.tensor([2, 0, 2]))),
    "numbers on ctx": (function(power, of_power), (X, 3)),
    "tensors on ctx": (
        function(lambda ctx, x: (setattr(ctx, "x", x), x.sin())[1], lambda ctx, g: g * ctx.x.cos()),
        (X,),
    ),
    "inherited rules": (type("Child", (Base,), {"scale": 3.0}), (X,)),
    "calls another Function": (function(saves(lambda x: Inner.apply(x) * 2), lambda ctx, g: 2 * of_sine(ctx, g)), (X,)),
    "calls itself": (Deep, (X, 2)),
    "another Function in its backward": (function(saves(sine), lambda ctx, g: g * Inner.apply(ctx.saved_tensors[0])), (X,)),
    "no_grad in its forward": (function(torch.no_grad()(saves(sine)), of_sine), (X,)),
    "reads saved tensors twice": (
        function(saves(product), lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0])),
        (X, Y),
    ),
    "no dimensions": (function(saves(sine), of_sine), (X[0],)),
    "a batch of matrices": (function(saves(lambda x: x @ x.mT), lambda ctx, g: (g + g.mT) @ ctx.saved_tensors[0]), (W,)),
    "declares vmap": (function(sine, of_sine, keeps, vmap=lambda info, dims, x: (x.movedim(dims[0], 0).sin(), 0)), (X,)),
    "generates vmap": (function(sine, of_sine, keeps, generate_vmap_rule=True), (X,)),
    "declares jvp": (function(sine, of_sine, keeps, jvp=lambda ctx, t: t * ctx.saved_tensors[0].cos()), (X,)),
    "clears its context": (function(saves(sine), lambda ctx, g: [of_sine(ctx, g), ctx.__dict__.pop("note", None)][0]), (X,)),
    "writes to its context": (function(saves(sine), lambda ctx, g: (setattr(ctx, "seen", 1), of_sine(ctx, g))[1]), (X,)),
}  # fmt: skip
WAYS = {
    "grad": (grad, 1),
    "vjp": (lambda f: lambda x: vjp(f, x)[1](torch.ones((), dtype=X.dtype))[0], 1),
    "jacrev": (jacrev, 1),
    "jacfwd": (jacfwd, 1),
    "hessian": (hessian, 2),
    "reverse twice": (lambda f: jacrev(jacrev(f)), 2),
    "forward twice": (lambda f: jacfwd(jacfwd(f)), 2),
    "reverse over forward": (lambda f: jacrev(jacfwd(f)), 2),
    "value": (lambda f: f, 0),
}
ORDERS = [lambda f: f, lambda f: lambda x: oracle.gradient(f, x), lambda f: lambda x: oracle.hessian(f, x)]


@pytest.mark.short(of=8)
@pytest.mark.parametrize("name", RIGHT)
def test_derivatives_are_those_of_eager_autograd(name):
    """In every transform, alone and in a batch, a class has the derivatives that eager autograd gives it."""
    cls, inputs = RIGHT[name]
    f, x = oracle.bound(cls.apply, inputs)
    samples = oracle.batch(x)
    if name == "no gradient at all":  # where eager autograd has no gradient
        f, x, samples = (lambda x, f=f: f(x) + (x * x).sum()), x, samples
    expected = {order: (one(f)(x), torch.stack([one(f)(s) for s in samples])) for order, one in enumerate(ORDERS)}
    with fullgrad.adopting():
        for transform, order in WAYS.values():
            assert_close(transform(f)(x), expected[order][0])
        for transform, order in (WAYS["value"], WAYS["grad"], WAYS["hessian"]):
            assert_close(vmap(transform(f))(samples), expected[order][1])
            assert_close(vmap(transform(f), 1)(samples.T.contiguous()), expected[order][1])


@pytest.mark.short
@pytest.mark.parametrize("name", RIGHT)
def test_results_have_the_structure_of_eager_ones(name):
    """What a class returns has the kinds, dtypes, shapes and `requires_grad` of eager autograd, in a transform, too."""
    cls, inputs = RIGHT[name]

    def described(v):
        return (v.dtype, tuple(v.shape)) if isinstance(v, Tensor) else v

    def returned(way):
        seen: list[Any] = []

        def f(*tensors):
            rest = iter(tensors)
            y = cls.apply(*[next(rest) if isinstance(v, Tensor) and v.is_floating_point() else v for v in inputs])
            items = y if isinstance(y, tuple) else (y,)
            seen[:] = [type(y), *map(described, items), *[t.requires_grad for t in items if isinstance(t, Tensor)]]
            return sum(t.sum() for t in items if isinstance(t, Tensor) and t.is_floating_point())

        tensors = [v.clone() for v in inputs if isinstance(v, Tensor) and v.is_floating_point()]
        way(f, tensors)
        return seen

    eager = returned(lambda f, tensors: f(*[t.requires_grad_() for t in tensors]))
    with fullgrad.adopting():
        assert returned(lambda f, tensors: grad(f, tuple(range(len(tensors))))(*tensors)) == eager
        assert returned(lambda f, tensors: f(*[t.requires_grad_() for t in tensors])) == eager  # which is not adopted


def test_a_backward_without_grad_mode():
    """A backward under `no_grad` has the first derivative; its second is 0, as in eager autograd, and forward mode raises."""
    cls = function(saves(sine), torch.no_grad()(of_sine))
    f = lambda x: (cls.apply(x) * x).sum()  # noqa: E731
    with fullgrad.adopting():
        assert_close(vmap(grad(f))(W), W.cos() * W + W.sin())
        assert_close(jacrev(jacrev(f))(X), oracle.hessian(f, X))
        with pytest.raises(NotImplementedError, match="Small has no forward mode"):
            jacfwd(f)(X)


# --- What each rule is told ---------------------------------------------------------------------------------------------------


def test_gradients_that_are_missing_are_zeros_unless_declined():
    """A backward gets zeros for outputs that nobody uses or that have no derivative, or None if it has declined them."""
    told: list[Any] = []

    def of(declines):
        def forward(ctx, x):
            ctx.set_materialize_grads(not declines)
            ctx.mark_non_differentiable(mask := (x > 0).to(x.dtype))
            return x * 1, x * 2, mask

        return function(forward, lambda ctx, g, h, m: (told.append([g, h, m]), g)[1])

    with fullgrad.adopting():
        for transform in (grad, lambda f: vmap(grad(f)), lambda f: lambda x: vjp(f, x)[1](torch.ones((), dtype=x.dtype))):
            for declines, cls in ((False, of(False)), (True, of(True))):
                told.clear()
                transform(lambda x, cls=cls: cls.apply(x)[0].sum())(X if transform is grad else W)
                g, h, m = told[-1]
                assert isinstance(g, Tensor)
                assert (h is None and m is None) if declines else (not h.any() and not m.any() and h.shape == g.shape)


def test_outputs_without_a_derivative():
    """An output marked as not differentiable, or of integers, requires no gradient, and is constant to every transform."""
    cls = function(exp_and_rest, lambda ctx, g, _, __: g * ctx.saved_tensors[0])
    with fullgrad.adopting():
        assert not grad(lambda x: cls.apply(x)[2].sum() + 0 * x.sum())(X).any()
        _, tangents = jvp(lambda x: cls.apply(x)[::2], (X,), (X,))
        assert_close(tangents, (X.exp() * X, torch.zeros_like(X)))
        with forward_ad.dual_level():
            y, rank, sign = cls.apply(forward_ad.make_dual(X, X))
            assert forward_ad.unpack_dual(y).tangent is not None
            assert forward_ad.unpack_dual(rank).tangent is None
            assert forward_ad.unpack_dual(sign).tangent is None


@pytest.mark.parametrize("style", ["old", "new"])
def test_needs_input_grad(style):
    """The flags have an entry for each argument, in the order of ``apply``, and are bools."""
    told: list[Any] = []

    def forward(ctx, x, n, y):
        told.append(ctx.needs_input_grad)
        return x * n + y

    def setup(ctx, inputs, output):
        told.append(ctx.needs_input_grad)

    def backward(ctx, g):
        told.append(ctx.needs_input_grad)
        return 3 * g, None, g

    cls = function(forward, backward) if style == "old" else function(lambda x, n, y: x * n + y, backward, setup)
    with fullgrad.adopting():
        for needed in ((0,), (1,), (0, 1)):
            told.clear()
            grad(lambda x, y: cls.apply(x, 3, y).sum(), needed)(X, Y)
            assert told == [(0 in needed, False, 1 in needed)] * 2
            assert all(type(flag) is bool for flags in told for flag in flags)


def test_a_context_belongs_to_one_call():
    """Calls of one class in one function have contexts of their own, alive as long as their derivative."""
    cls = function(lambda ctx, x, n: (setattr(ctx, "n", n), x * n)[1], lambda ctx, g: (g * ctx.n, None))
    with fullgrad.adopting():
        pull = vjp(lambda x: cls.apply(cls.apply(x, 2), 5) + cls.apply(x, 7), X)[1]
        assert_close([pull(X)[0], pull(2 * X)[0]], [17 * X, 34 * X])


def test_tensors_that_no_one_differentiates():
    """Without an input that is differentiated no derivative is asked for, and the value is right."""
    cls = function(saves(sine), lambda ctx, g: pytest.fail("asked"))
    with fullgrad.adopting():
        assert_close(grad(lambda x: (cls.apply(Y) * x).sum())(X), Y.sin())
        assert_close(grad(lambda x: (cls.apply(x.detach()) * x).sum())(X), X.sin())
        assert_close(vmap(cls.apply)(W), W.sin())
        with torch.no_grad():
            assert_close(cls.apply(X), X.sin())


def test_the_gradient_of_a_gradient():
    """Double backward reaches the input and the incoming gradient, in torch.func and by ``create_graph`` inside the context."""
    with fullgrad.adopting():
        of_g = jacrev(lambda g: vjp(Inner.apply, X)[1](g)[0])(Y)
        assert_close(of_g, X.cos().diag())
        x, g = X.clone().requires_grad_(), Y.clone().requires_grad_()
        (first,) = torch.autograd.grad(Inner.apply(x), x, g, create_graph=True)
        assert_close(torch.autograd.grad(first.sum(), (x, g)), (-X.sin() * Y, X.cos()))


# --- Errors --------------------------------------------------------------------------------------------------------------------

RAISES = {
    "too few gradients": (function(saves(product), lambda ctx, g: g), RuntimeError, "returned 1 gradients for 2 inputs"),
    "too many gradients": (function(saves(product), lambda ctx, g: (g, g, g)), RuntimeError, "returned 3 gradients for 2 inputs"),
    "a gradient of another shape": (function(saves(product), lambda ctx, g: (g[:2], g)), RuntimeError, r"of shape \(2,\)"),
    "a gradient that would broadcast": (function(saves(product), lambda ctx, g: (g.sum(), g)), RuntimeError, r"of shape \(\)"),
    "a gradient that is a number": (function(saves(product), lambda ctx, g: (1.0, g)), TypeError, "returned a float"),
    "an error in the forward": (function(lambda ctx, x, y: x[7]), IndexError, "out of bounds"),
    "an error in the backward": (function(saves(product), lambda ctx, g: 1 / 0), ZeroDivisionError, "division"),
    "no backward": (function(saves(product)), NotImplementedError, "backward"),
    "no forward": (type("Small", (Function,), {}), NotImplementedError, "forward"),
    "a saved tensor that is a number": (function(saves(product, lambda x, y: 3.0), of_product), TypeError, "saves .*float"),
    "an argument too few": (function(lambda ctx, x, y, z: x, of_product), TypeError, "z"),
    "changes an input in place": (function(lambda ctx, x, y: x.mul_(y), of_product), NotImplementedError, "changes an input"),
    "marks an input dirty": (
        function(lambda ctx, x, y: (ctx.mark_dirty(x), x.mul_(y))[1], of_product),
        NotImplementedError,
        "Small.forward changes an input in place.*a new tensor",
    ),
    "returns tensors in a list": (function(lambda ctx, x, y: [x * 1, y * 1], of_product), NotImplementedError, "a tuple works"),
}  # fmt: skip


@pytest.mark.short
@pytest.mark.parametrize("name", RAISES)
def test_what_raises(name):
    """What eager autograd refuses, or transforms cannot follow, raises with the name of the class or the user's own error."""
    cls, error, message = RAISES[name]
    for transform in (grad, lambda f: vmap(grad(f), (0, None))):
        with fullgrad.adopting(), pytest.raises(error, match=message):
            transform(lambda x, y: cls.apply(x.clone(), y).sum())(X if transform is grad else X[None], Y)


@pytest.mark.parametrize(
    ("tangent", "message"),
    [(lambda t: (t, t), "2 tangents for 1 output"), (lambda t: None, None), (lambda t: t[:1], r"shape \(1,\) for an output")],
)
def test_tangents_of_another_kind(tangent, message):
    """A ``jvp`` that returns too many tangents, or one of another shape, raises; none is zero, as in torch."""
    cls = function(sine, of_sine, keeps, jvp=lambda ctx, t: tangent(t))
    with fullgrad.adopting():
        if message:
            with pytest.raises(RuntimeError, match=f"Small.*{message}"):
                jvp(cls.apply, (X,), (X,))
        else:
            assert_close(jvp(cls.apply, (X,), (X,))[1], 0 * X)


def test_a_saved_tensor_that_was_changed():
    """A saved input that is changed after the call is an error of torch's, not a wrong gradient."""

    def f(x):
        x = x * 1
        y = Inner.apply(x)
        x.mul_(2)
        return y.sum()

    with fullgrad.adopting(), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(f)(X)


def test_outputs_may_be_changed_in_place():
    """The caller may change an output in place: the class's derivative comes before that of the change."""
    f = lambda x: Inner.apply(x).mul_(x).sum()  # noqa: E731
    with fullgrad.adopting():
        assert_close(grad(f)(X), X.cos() * X + X.sin())
        assert_close(jacfwd(f)(X), X.cos() * X + X.sin())
        assert_close(vmap(grad(f))(W), W.cos() * W + W.sin())


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float16, torch.float32])
def test_other_dtypes(dtype):
    """Gradients of complex numbers and of half precision are those of eager autograd."""
    cls = function(saves(sine), lambda ctx, g: g * ctx.saved_tensors[0].cos().conj())
    x = (X + (0.5j * Y if dtype.is_complex else 0)).to(dtype)
    total = lambda x: (cls.apply(x).abs() ** 2).sum()  # noqa: E731
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(total(leaf), leaf)[0]
    with fullgrad.adopting():
        assert_close(grad(total)(x), expected)
        assert_close(vmap(grad(total))(x[None])[0], expected)


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 0), (-1, -1)])
def test_every_dimension_of_a_batch(dims):
    """A batch may be in any dimension of some arguments, and a class need not know."""
    cls = RIGHT["two inputs"][0]
    x, y = (X if d is None else torch.stack([X, 2 * X], d) for d in dims)
    with fullgrad.adopting():
        found = vmap(grad(lambda x, y: cls.apply(x, y).sin().sum(), (0, 1)), dims)(x, y)
    at = lambda t, d, i: t if d is None else t.select(d, i)  # noqa: E731
    for i in range(2):
        a, b = at(x, dims[0], i), at(y, dims[1], i)
        assert_close([g[i] for g in found], [(a * b).cos() * b, (a * b).cos() * a])
