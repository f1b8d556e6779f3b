"""Operators of torch.library, adopted: each derivative is that of plain torch code, and none is lost in silence."""

import functools
import warnings

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import fullgrad
from fullgrad._dispatch import torch_private
from fullgrad.completion import _completing
from tests.adopting import operators_of_packages as operators
from tests.adopting.operators_of_packages import CASES, LIBRARY, draw

# torch calls a kernel that has no rule for batches sample by sample, and says so.
pytestmark = [pytest.mark.filterwarnings("ignore:.*performance drop"), pytest.mark.filterwarnings("ignore:.*sample by sample")]
OPS = torch.ops.fullgradtests
X = draw(3)


def floating(tree):
    return [y for y in torch.utils._pytree.tree_leaves(tree) if isinstance(y, torch.Tensor) and y.is_floating_point()]


def total(f):
    """A function whose result is one number, of all floating results with weights."""

    def of(*args):
        parts = floating(f(*args))
        return sum((y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in parts)

    return of


def tangents(xs):
    return tuple(draw(*x.shape, seed=7) for x in xs)


def batch(xs):
    return [torch.stack([x, x * 0.5, x + 1]) for x in xs]


def dual(f, *xs):
    with fwd.dual_level():
        made = [fwd.make_dual(x, t) for x, t in zip(xs, tangents(xs), strict=True)]
        return [fwd.unpack_dual(y).tangent for y in floating(f(*made))]


def backward(f, *xs):
    leaves = [x.clone().requires_grad_() for x in xs]
    total(f)(*leaves).backward()
    return [x.grad for x in leaves]


def double_backward(f, *xs):
    leaves = [x.clone().requires_grad_() for x in xs]
    grads = torch.autograd.grad(total(f)(*leaves), leaves, create_graph=True)
    again = sum((g * t).sum() for g, t in zip(grads, tangents(xs), strict=True))
    if not again.requires_grad:  # a linear operator
        return [torch.zeros_like(x) for x in xs]
    return torch.autograd.grad(again, leaves, materialize_grads=True)


def every(xs):
    return tuple(range(len(xs)))


# Each is a function of the operator and its inputs.
TRANSFORMS = {
    "value": lambda f, *xs: f(*xs),
    "backward": backward,
    "double backward": double_backward,
    "grad": lambda f, *xs: grad(total(f), every(xs))(*xs),
    "vjp": lambda f, *xs: vjp(total(f), *xs)[1](torch.ones((), dtype=torch.float64)),
    "jvp": lambda f, *xs: jvp(f, xs, tangents(xs)),
    "dual numbers": dual,
    "jacrev": lambda f, *xs: jacrev(f, every(xs))(*xs),
    "jacfwd": lambda f, *xs: jacfwd(f, every(xs))(*xs),
    "vmap": lambda f, *xs: vmap(f)(*batch(xs)),
    "vmap of the first": lambda f, *xs: vmap(f, (0, *[None] * (len(xs) - 1)))(batch(xs)[0], *xs[1:]),
    "vmap of grad": lambda f, *xs: vmap(grad(total(f), every(xs)))(*batch(xs)),
    "vmap of jvp": lambda f, *xs: vmap(functools.partial(lambda ts, *a: jvp(f, a, ts)[1], tangents(xs)))(*batch(xs)),
    "hessian": lambda f, *xs: hessian(total(f), every(xs))(*xs),
    "reverse over reverse": lambda f, *xs: jacrev(jacrev(total(f), every(xs)), every(xs))(*xs),
    "forward over forward": lambda f, *xs: jacfwd(jacfwd(total(f), every(xs)), every(xs))(*xs),
    "reverse over forward": lambda f, *xs: jacrev(jacfwd(total(f), every(xs)), every(xs))(*xs),
    "vmap of hessian": lambda f, *xs: vmap(hessian(total(f)))(*batch(xs)),
    "third order": lambda f, *xs: jvp(lambda *a: jvp(grad(total(f)), a, tangents(xs))[1], xs, tangents(xs))[1],
}
COMPILED = {
    "grad": lambda f, xs: grad(total(f), every(xs)),
    "jvp": lambda f, xs: functools.partial(lambda ts, *a: jvp(f, a, ts), tangents(xs)),
    "hessian": lambda f, xs: hessian(total(f)),
}


def close(found, expected):
    found, expected = [torch.utils._pytree.tree_leaves(v) for v in (found, expected)]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_has_the_derivatives_of_its_function(case, transform):
    """Inside `adopting`, every transform of an operator is that of plain torch code for the same function."""
    run = TRANSFORMS[transform]
    with fullgrad.adopting():
        found = run(case.op, *case.inputs)
    close(found, run(case.reference, *case.inputs))


@pytest.mark.long(but=2)
@pytest.mark.parametrize("transform", COMPILED)
@pytest.mark.parametrize("case", CASES[4:], ids=lambda case: case.name)
@pytest.mark.sampled(of=6)
def test_a_compiled_transform_of_an_operator(case, transform):
    """Compiled without a graph break, a transform of an operator is the same."""
    torch._dynamo.reset()
    make = COMPILED[transform]
    with fullgrad.adopting():
        found = torch.compile(make(case.op, case.inputs), backend="aot_eager", fullgraph=True)(*case.inputs)
    close(found, make(case.reference, case.inputs)(*case.inputs))


@pytest.mark.parametrize(
    "op",
    [operators.l2_normalize, OPS.l2_normalize, OPS.l2_normalize.default],
    ids=["definition", "packet", "overload"],
)
def test_adopt_takes_a_definition_a_packet_and_an_overload(op):
    """`adopt(op)` is the operator with all derivatives, in plain code torch's own."""
    adopted, plain = fullgrad.adopt(op), lambda x: x / x.norm(dim=-1, keepdim=True)
    x = draw(2, 3)
    assert torch.equal(adopted(x), op(x))
    close(hessian(total(adopted))(x), hessian(total(plain))(x))


def test_adopt_of_a_packet_takes_each_overload():
    """A packet calls the overload that the arguments mean."""
    f = lambda x: fullgrad.adopt(OPS.pairwise)(x, x + 1, 0.5)  # noqa: E731
    plain = lambda x: 0.5 * (x[:, None] - (x + 1)[None]).pow(2).sum(-1)  # noqa: E731
    x = draw(2, 3)
    close(jacfwd(f)(x), jacfwd(plain)(x))


def test_plain_code_is_torchs_own():
    """Where no transform is active, an operator runs as in torch inside the context, with torch's node."""
    x = draw(3, 4).requires_grad_()
    outside = operators.swiglu(x, x)
    with fullgrad.adopting():
        inside = operators.swiglu(x, x)
    assert type(inside.grad_fn).__name__ == type(outside.grad_fn).__name__
    assert torch.equal(inside, outside)


def test_the_context_ends():
    """After the context torch calls its operators by its own code."""
    code = torch._ops.OpOverload.__call__.__code__
    with fullgrad.adopting():
        assert torch._ops.OpOverload.__call__.__code__ is not code
    assert torch._ops.OpOverload.__call__.__code__ is code


@pytest.mark.parametrize("names", [("fullgradtests",), ("fullgradtests.rms_norm",), ("tests.adopting",)])
def test_packages_by_name(names):
    """An operator belongs to its namespace, and to the module of the function that was made an operator."""
    push = lambda: jvp(lambda x: operators.rms_norm(x, x), (X,), (X,))[1]  # noqa: E731
    with fullgrad.adopting(*names):
        assert push().abs().sum() > 0
    with fullgrad.adopting(exclude=names):
        assert push().abs().sum() == 0  # torch's own


# --- Lost tangents ------------------------------------------------------------------------------------------------------------

CONTEXTS = [fullgrad.adopting, fullgrad.completing]
FORWARD = {
    "jvp": lambda f: jvp(f, (X,), (X,)),
    "jacfwd": lambda f: jacfwd(f)(X),
    "dual numbers": lambda f: dual(f, X),
    "vmap of jvp": lambda f: vmap(lambda x: jvp(f, (x,), (X,))[1])(batch([X])[0]),
    "jvp of grad": lambda f: jvp(grad(lambda x: (f(x).detach() * x).sum()), (X,), (X,)),
}


@pytest.mark.parametrize("way", FORWARD)
def test_an_operator_without_a_derivative_loses_no_tangent(way):
    """A tangent that enters an operator without a derivative is refused, by the operator's name and with a way out."""
    with fullgrad.adopting(), pytest.raises(NotImplementedError, match=r"fullgradtests::opaque_double .*reference=.*detach"):
        FORWARD[way](lambda x: OPS.opaque_double(x))


@pytest.mark.parametrize("way", [way for way in FORWARD if way != "jvp of grad"])
def test_completing_loses_no_tangent(way):
    """Inside `completing` alone, a tangent that an operator would lose is refused, too, and the way out is named."""
    with fullgrad.completing(), pytest.raises(NotImplementedError, match=r"fullgradtests::opaque_square .*adopting"):
        FORWARD[way](lambda x: OPS.opaque_square(x))
    with fullgrad.completing(), pytest.raises(NotImplementedError, match="fullgradtests::opaque_double is an operator without"):
        FORWARD[way](lambda x: OPS.opaque_double(x))


@pytest.mark.parametrize("context", CONTEXTS)
def test_nothing_is_refused_where_no_tangent_is_lost(context):
    """Integer results, constant inputs, detached inputs and composite operators are never refused."""
    with context():
        assert jvp(lambda x: OPS.count(x) + x.sum(), (X,), (X,))[1] == X.sum()
        assert torch.equal(jvp(lambda x: OPS.opaque_double(torch.ones_like(X)) * x, (X,), (X,))[1], 2 * X)
        assert torch.equal(jvp(lambda x: OPS.opaque_double(x.detach()) * x, (X,), (X,))[1], 2 * X * X)
        close(jvp(OPS.composite, (X,), (X,))[1], (X.cos() * X + X.sin()) * X)
        close(vmap(OPS.opaque_double)(X), 2 * X)


def test_a_gradient_is_not_lost_either():
    """A gradient that reaches an operator without a derivative is refused by its name."""
    with fullgrad.adopting(), pytest.raises(NotImplementedError, match="fullgradtests::opaque_double is an operator without"):
        grad(lambda x: OPS.opaque_double(x).sum())(X)


def test_an_opaque_backward_has_one_derivative():
    """Where a backward calls an operator without a derivative, the first order is right, and the next names that operator."""
    f = lambda x: OPS.opaque_square(x).sum()  # noqa: E731
    with fullgrad.adopting():
        close(grad(f)(X), 2 * X)
        close(jvp(OPS.opaque_square, (X,), (X,))[1], 2 * X * X)
        for second in (hessian(f), jacrev(jacrev(f))):
            with pytest.raises(NotImplementedError, match="fullgradtests::opaque_double is an operator without a derivative"):
                second(X)


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_operator_that_changes_an_argument(context):
    """torch.library allows no derivative of an operator that changes an argument: a tangent there is refused by name."""

    def f(x):
        out = torch.zeros_like(X)
        operators.add_into(x, out)
        return out

    with context(), pytest.raises(NotImplementedError, match="fullgradtests::add_into changes an argument in place"):
        jvp(f, (X,), (X,))
    with context():
        assert torch.equal(f(X), X)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (OPS.opaque_double, r"opaque_double is an operator without a derivative.*reference="),
        (OPS.own_kernel, r"own_kernel has a kernel for autograd of its own.*reference="),
        (operators.add_into, "add_into changes an argument in place"),
        (3, "an operator of torch.library, got 3"),
    ],
)
def test_adopt_refuses_what_it_cannot_read(op, message):
    """`adopt` says at once that an operator's derivative cannot be read, and offers a reference."""
    with pytest.raises(TypeError, match=message):
        fullgrad.adopt(op)


def test_an_operator_with_a_kernel_of_its_own_takes_a_reference():
    """With a reference, an operator whose derivative cannot be read has that of the reference at every order."""
    op = fullgrad.adopt(OPS.own_kernel, reference=lambda x: 3 * x)
    close(jvp(lambda x: op(x).sin(), (X,), (X,))[1], (3 * X).cos() * 3 * X)


# --- What is registered ---------------------------------------------------------------------------------------------------------


def test_strict_sees_an_intermediate_of_setup_context():
    """`strict` raises where a `setup_context` of an operator saves what it computes from an input."""

    @torch.library.custom_op("fullgradtests::kept", mutates_args=())
    def kept(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    kept.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0].cos()),
    )
    f = lambda op: lambda x: op(x).sum()  # noqa: E731
    assert not hessian(f(fullgrad.adopt(kept)))(X).any()  # as eager double backward has it
    with pytest.raises(NotImplementedError, match=r"fullgradtests::kept\.backward was differentiated"):
        hessian(f(fullgrad.adopt(kept, strict=True)))(X)


def test_a_vmap_rule_is_used():
    """An operator with a vmap rule of its own is called once for a batch, by that rule."""
    calls = []

    @torch.library.custom_op("fullgradtests::batched", mutates_args=())
    def batched(x: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(x.shape))
        return x.sin()

    batched.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    batched.register_vmap(lambda info, in_dims, x: (batched(x), in_dims[0]))
    with fullgrad.adopting():
        close(vmap(grad(lambda x: batched(x).sum()))(batch([X])[0]), batch([X])[0].cos())
    assert calls == [(3, 3)]


def test_an_operator_runs_once():
    """The kernel runs once in each transform that differentiates, and its backward once."""
    calls = []

    @torch.library.custom_op("fullgradtests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append("forward")
        return x.sin()

    def pull(ctx, g):
        calls.append("backward")
        return g * ctx.saved_tensors[0].cos()

    counted.register_autograd(pull, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    with fullgrad.adopting():
        grad(lambda x: counted(x).sum())(X)
        assert calls == ["forward", "backward"]
        hessian(lambda x: counted(x).sum())(X)  # tries whether the backward is linear
        calls.clear()
        hessian(lambda x: counted(x).sum())(X)
    assert calls.count("forward") == 1
    assert calls.count("backward") <= 2


def test_autograd_of_a_library_is_found():
    """What `register_autograd` was given for an operator of a library is read from the kernel; nothing is lost on this torch."""
    found = torch_private.registered_autograd(OPS.spherical.default)
    assert found.backward is not None
    assert found.setup_context is not None
    assert not found.has_kernel
    assert torch_private.registered_autograd(OPS.own_kernel.default).has_kernel
    assert torch_private.registered_autograd(OPS.composite.default).is_composite
    assert not any("torch.library" in lost for lost in torch_private.LOST.values())


def test_a_later_registration_counts():
    """An operator that gets its derivative after it was called has it from then on."""
    LIBRARY.define("late(Tensor x) -> Tensor")
    LIBRARY.impl("late", lambda x: x.sin(), "CPU")
    with fullgrad.adopting():
        with pytest.raises(NotImplementedError, match="late"):
            jvp(lambda x: OPS.late(x), (X,), (X,))
        torch.library.register_autograd(
            "fullgradtests::late",
            lambda ctx, g: g * ctx.saved_tensors[0].cos(),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            lib=LIBRARY,
        )
        close(jvp(lambda x: OPS.late(x), (X,), (X,))[1], X.cos() * X)


def test_diagnose_names_the_operator_and_its_place():
    """`diagnose` names an operator that loses derivatives, the line where it is defined, and the context that mends it."""
    from fullgrad.diagnosis._diagnose import diagnose

    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.weight = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return operators.rms_norm(self.linear(x), self.weight)

    (found,) = [f for f in diagnose(Norm().double(), (draw(3, 4),), {}).findings if f.kind == "operator"]
    assert found.what.startswith("fullgradtests::rms_norm, an operator of torch.library, runs here")
    assert "operators_of_packages.py:" in found.place
    assert found.line == "with fullgrad.adopting():"
    assert found.fails["jvp"].startswith("is silently wrong")


def test_code_compiled_outside_is_not_used_inside():
    """A transform that was compiled outside of the context, where it loses a tangent, is compiled again inside."""
    torch._dynamo.reset()
    push = torch.compile(lambda x: jvp(operators.softcap_of_three, (x,), (X,))[1], backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        push(X)
    with fullgrad.adopting():
        close(push(X), (1 - torch.tanh(X / 3) ** 2) * X)


def test_an_operator_of_triton_op_is_adopted_by_its_function():
    """torch puts a function of its own around the user's, which is not torch's operator for that."""

    @torch.library.triton_op("fullgradtests::of_triton", mutates_args={})
    def of_triton(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * x

    save = lambda ctx, inputs, output: ctx.save_for_backward(*inputs)  # noqa: E731
    of_triton.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0].exp() * (1 + ctx.saved_tensors[0]), setup_context=save)
    expected = jvp(lambda x: x.exp() * x, (X,), (X,))[1]
    for names in ((), ("tests.adopting",), ("fullgradtests",)):
        for op in (of_triton, OPS.of_triton, OPS.of_triton.default):
            with fullgrad.adopting(*names):
                torch.testing.assert_close(jvp(op, (X,), (X,))[1], expected)
    assert torch_private.place_of_operator(OPS.of_triton.default)[0] == __file__


def test_adopt_of_a_packet_with_a_variant_that_writes():
    """The variants that return a new tensor are adopted; the one with ``out`` is refused where it is called."""
    LIBRARY.define("with_out(Tensor x) -> Tensor")
    LIBRARY.define("with_out.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    LIBRARY.impl("with_out", lambda x: x * x, "CPU")
    LIBRARY.impl("with_out.out", lambda x, *, out: out.copy_(x * x), "CPU")
    torch.library.register_autograd(
        "fullgradtests::with_out", lambda ctx, g: 2 * g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]), lib=LIBRARY,
    )  # fmt: skip
    op = fullgrad.adopt(OPS.with_out)
    torch.testing.assert_close(jvp(op, (X,), (X,))[1], 2 * X * X)
    with pytest.raises(RuntimeError, match="changes an argument in place"):
        jvp(lambda x: op(x, out=torch.empty_like(x)), (X,), (X,))


@pytest.mark.parametrize("context", [fullgrad.adopting, fullgrad.completing])
def test_a_context_that_is_left_twice_is_an_error(context):
    """It disables no other context."""
    made = context()
    with made, made:
        pass
    with pytest.raises(RuntimeError, match="is not open"):
        made.__exit__(None, None, None)
    with context():
        assert context is fullgrad.adopting or _completing._state.is_inside


@operators.operator
def doubled_rows(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled_rows.register_vmap(lambda info, in_dims, x: (doubled_rows(x), in_dims[0]))


@operators.operator
def doubled_by_rows(x: torch.Tensor) -> torch.Tensor:
    return vmap(doubled_rows)(x)


doubled_by_rows.register_autograd(lambda ctx, g: 2 * g)


@pytest.mark.parametrize("context", [fullgrad.adopting, fullgrad.completing])
def test_an_operator_that_batches_another_one(context):
    """Below autograd, where an operator with a derivative runs, no tensor has a tangent that another one could lose."""
    x = X.clone().requires_grad_()
    with context():
        y = doubled_by_rows(x)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2))
    assert torch.equal(y, 2 * x)
