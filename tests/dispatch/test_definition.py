"""Definitions and calls of operators: what works, and errors with the name of the operator and what to do."""

import collections
import inspect
import types

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad import Elementwise, Function
from tests.operators import Affine, Cube, affine, cube, sample

pytestmark = pytest.mark.short

RULES = ("forward", "setup_context", "vjp", "jvp", "vmap")


def rules_of(operator, *, without=()):
    return {rule: operator.__dict__[rule] for rule in RULES if rule not in without}


@pytest.mark.parametrize("rule", RULES[1:])
def test_class_that_lacks_a_rule_is_refused(rule):
    """The error names the class and the missing rule."""
    with pytest.raises(TypeError, match=rf"^Incomplete lacks {rule}:"):
        type("Incomplete", (Function,), rules_of(Cube, without={rule}))


def test_all_missing_rules_are_named():
    """One error names all missing rules."""
    with pytest.raises(TypeError, match=r"^Incomplete lacks setup_context, vjp, jvp, vmap:"):
        type("Incomplete", (Function,), rules_of(Cube, without=set(RULES[1:])))


def test_backward_is_pointed_to_vjp():
    """For users of autograd.Function the error names the new rule."""
    with pytest.raises(TypeError, match=r"Incomplete lacks vjp.*name for backward is vjp"):
        type("Incomplete", (Function,), rules_of(Cube, without={"vjp"}) | {"backward": Cube.vjp})


class Scaled(Function):
    """A family: every rule but forward, written once as classmethods. A subclass gives its factor, and forward."""

    factor = 0.0

    @classmethod
    def setup_context(cls, ctx, inputs, output):
        pass

    @classmethod
    def vjp(cls, ctx, g):
        return g * cls.factor

    @classmethod
    def jvp(cls, ctx, t):
        return t * cls.factor

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(x), in_dims[0]


class Double(Scaled):
    factor = 2.0

    @classmethod
    def forward(cls, x):
        return x * cls.factor


class Triple(Double):
    factor = 3.0


@pytest.mark.parametrize(("operator", "factor"), [(Double, 2.0), (Triple, 3.0)])
def test_family_with_classmethods(operator, factor):
    """A base without forward is allowed; each member uses its own constants in every rule."""
    x = sample()
    assert torch.equal(operator.apply(x), x * factor)
    assert torch.equal(grad(lambda x: operator.apply(x).sum())(x), torch.full_like(x, factor))
    assert torch.equal(jvp(operator.apply, (x,), (x,))[1], x * factor)
    assert torch.equal(vmap(operator.apply)(x), x * factor)
    leaf = x.clone().requires_grad_()
    operator.apply(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(x, factor))


def test_family_itself_has_no_apply():
    """A class without forward is not called."""
    with pytest.raises(TypeError, match=r"family without a forward"):
        Scaled.apply(sample())


def test_member_of_an_incomplete_family_is_refused():
    """A rule that neither the family nor its member has is missing all the same."""

    class Family(Function):
        setup_context, vjp = Cube.setup_context, Cube.vjp

    with pytest.raises(TypeError, match=r"^Member lacks jvp, vmap:"):
        type("Member", (Family,), {"forward": staticmethod(cube)})


def test_subclass_of_an_operator_is_an_operator_of_its_own():
    """A subclass with a new forward does not change the operator that it derives from."""

    class Other(Cube):
        @staticmethod
        def forward(x):
            return x.round()

        @staticmethod
        def vmap(info, in_dims, x):
            return Other.apply(x), in_dims[0]

    x = sample()
    assert torch.equal(Other.apply(x), x.round())
    assert torch.equal(Cube.apply(x), x**3)
    assert_close(grad(lambda x: Other.apply(x).sum())(x), 3 * x**2)


def test_mark_dirty_is_refused_at_definition():
    """An in-place operator is not a function of its inputs."""
    with pytest.raises(TypeError, match=r"^InPlace.setup_context calls ctx.mark_dirty"):

        class InPlace(Cube):
            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.mark_dirty(*inputs)


def _hidden_mark_dirty(ctx, *tensors):
    ctx.mark_dirty(*tensors)


class HiddenInPlace(Cube):
    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _hidden_mark_dirty(ctx, *inputs)


@pytest.mark.parametrize("call", [lambda f, x: f(x.requires_grad_() * 1), lambda f, x: grad(lambda x: f(x).sum())(x)])
def test_mark_dirty_is_refused_at_call(call):
    """The first differentiated call refuses mark_dirty where the definition does not show it."""
    with pytest.raises(NotImplementedError, match=r"^HiddenInPlace.setup_context calls ctx.mark_dirty"):
        call(HiddenInPlace.apply, sample())


def test_operator_is_not_instantiated():
    """The error says how to call it."""
    with pytest.raises(TypeError, match=r"call Cube.apply"):
        Cube()


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda: torch.ones(1), "at least one input"),
        (lambda x, *, scale=1.0: x * scale, "positional parameters only, found scale"),
        (lambda x, **options: x, "positional parameters only, found .*options"),
    ],
    ids=["no-input", "keyword-only", "keywords"],
)
def test_signature_that_autograd_would_not_see_is_refused(forward, message):
    """Inputs are positional parameters; the error names the operator."""
    with pytest.raises(TypeError, match=rf"^Odd.forward must take {message}"):
        type("Odd", (Function,), rules_of(Cube) | {"forward": staticmethod(forward)})


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x, w, b: f(x, w, b, 2.0, 3),
        lambda f, x, w, b: f(x, w, b, power=3, scale=2.0),
        lambda f, x, w, b: f(w=w, x=x, b=b, scale=2.0, power=3),
        lambda f, x, w, b: f(x, w),
        lambda f, x, w, b: f(x, w=w, power=2),
        lambda f, x, w, b: f(x, w, scale=2.0, b=b),
    ],
)
def test_positional_and_keyword_arguments(call):
    """Arguments bind as in any Python function, in eager autograd and under transforms."""
    x, w, b = sample(3, seed=1)
    assert torch.equal(call(Affine.apply, x, w, b), call(affine, x, w, b))
    for argument in range(3):

        def along(function, v, argument=argument):
            return call(function, *(v if i == argument else a for i, a in enumerate((x, w, b)))).sum()

        v = (x, w, b)[argument]
        expected = grad(lambda v, along=along: along(affine, v) + 0 * v.sum())(v)
        assert_close(grad(lambda v, along=along: along(Affine.apply, v) + 0 * v.sum())(v), expected)
        leaf = v.clone().requires_grad_()
        (along(Affine.apply, leaf) + 0 * leaf.sum()).backward()
        assert_close(leaf.grad, expected)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1.0, 2.0), {"x": 3.0}), ((1.0, 2.0), {"unknown": 3.0}), ((1.0,) * 6, {})]
)
def test_wrong_arguments_are_a_type_error(args, kwargs):
    """Wrong arguments are a TypeError, as in any Python function."""
    with pytest.raises(TypeError, match=r"argument"):
        Affine.apply(*args, **kwargs)


def test_apply_has_the_signature_of_forward():
    """Editors and documentation see the signature of forward."""
    assert list(inspect.signature(Affine.apply).parameters) == ["x", "w", "b", "scale", "power"]
    assert inspect.signature(Affine.apply).parameters["scale"].default == 1.0
    assert Affine.apply.__qualname__ == "Affine.apply"
    assert Affine.apply.__module__ == Affine.__module__


class Anything(Function):
    """Takes any second argument, returns the first."""

    @staticmethod
    def forward(x, other):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vjp(ctx, g):
        return g, None

    @staticmethod
    def jvp(ctx, t, _):
        return t

    @staticmethod
    def vmap(info, in_dims, x, other):
        return Anything.apply(x, other), in_dims[0]


CONTAINERS = {
    "list": lambda t: [t],
    "tuple": lambda t: (1, t),
    "dict": lambda t: {"a": t},
    "set": lambda t: {t},
    "nested": lambda t: [1, ({"a": [t]},)],
    "ordered_dict": lambda t: collections.OrderedDict(a=t),
    "namedtuple": lambda t: torch.return_types.max((t, t)),
    "frozenset": lambda t: frozenset({t}),
    "deque": lambda t: collections.deque([t]),
    "mapping_proxy": lambda t: types.MappingProxyType({"a": t}),
}
CALLS = {
    "eager": lambda f, x: f(x),
    "requires_grad": lambda f, x: f(x.requires_grad_()),
    "grad": lambda f, x: grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: vmap(f)(x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_tensor_in_a_container_is_refused(container, call):
    """Autograd does not look into containers: the gradient would be silently lost."""
    with pytest.raises(TypeError, match=r"Anything.apply takes tensors as arguments of their own, got a .* that holds a tensor"):
        CALLS[call](lambda x: Anything.apply(x, CONTAINERS[container](torch.ones(3))), sample())


@pytest.mark.parametrize(
    "value",
    [[1, 2], (1.0, "a"), {"a": None}, frozenset({1}), torch.Size([2]), torch.float32, "text", None, 2 + 1j, slice(2)],
    ids=str,
)
def test_container_without_a_tensor_is_welcome(value):
    """Plain data reach the rules as they are, in eager and under transforms."""
    x = sample()
    assert torch.equal(Anything.apply(x, value), x)
    assert torch.equal(grad(lambda x: Anything.apply(x, value).sum())(x), torch.ones_like(x))
    assert torch.equal(vmap(lambda x: Anything.apply(x, value))(x), x)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda y: [y, y], "must return a tensor or a tuple, got a list"),
        (lambda y: {"y": y}, "must return a tensor or a tuple, got a dict"),
        (lambda y: None, "must return a tensor or a tuple, got a NoneType"),
        (lambda y: (y, [y]), "must return its tensors side by side, got a list of tensors"),
        (lambda y: (y, (y, y)), "must return its tensors side by side, got a tuple of tensors"),
        (lambda y: (y, {"y": y}), "must return its tensors side by side, got a dict of tensors"),
    ],
)
def test_output_that_autograd_would_lose_is_refused(wrap, message, call):
    """An output is a tensor, or a tuple with its tensors side by side."""

    class Wrapped(Anything):
        @staticmethod
        def forward(x, other):
            return wrap(x * 1)

        @staticmethod
        def vmap(info, in_dims, x, other):
            return Wrapped.apply(x, other), in_dims[0]

    with pytest.raises(TypeError, match=rf"^Wrapped.forward {message}"):
        CALLS[call](lambda x: Wrapped.apply(x, None), sample())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x, "must return the pair"),
        (lambda x: (x, 0, 0), "must return the pair"),
        (lambda x: (x, "0"), "out_dims must be an int or None"),
        (lambda x: (x, (0, 0)), "out_dims must be an int or None"),
        (lambda x: ((x, x), (0,)), "2 outputs and 1 out_dims"),
    ],
)
def test_vmap_rule_that_returns_nonsense_is_refused(result, message):
    """The error names the operator and what its rule returned."""

    class Odd(Cube):
        @staticmethod
        def vmap(info, in_dims, x):
            return result(x)

    with pytest.raises(TypeError, match=rf"^Odd.vmap .*{message}"):
        vmap(Odd.apply)(sample())


class TwoGradients(Cube):
    @staticmethod
    def vjp(ctx, g):
        return g, g


class NoTangent(Affine):
    @staticmethod
    def jvp(ctx, *tangents):
        return ()


def test_vjp_with_too_many_gradients_is_refused():
    """Too many gradients are refused in eager autograd and under transforms."""
    x = sample()
    with pytest.raises(TypeError, match=r"^TwoGradients\.vjp must return one gradient for each of the 1 inputs"):
        TwoGradients.apply(x.clone().requires_grad_()).sum().backward()
    with pytest.raises(TypeError, match=r"^TwoGradients\.vjp must return one gradient for each of the 1 inputs"):
        grad(lambda x: TwoGradients.apply(x).sum())(x)


def test_jvp_with_too_few_tangents_is_refused():
    """torch refuses too few tangents with an error, and does not take them for 0."""
    x = sample()
    with pytest.raises((RuntimeError, TypeError)):
        jvp(lambda x: NoTangent.apply(x, x), (x,), (x,))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_without_staticmethod_is_refused(rule):
    """The error names the class and the method when the class is defined, also in a family without forward."""
    with pytest.raises(
        TypeError, match=rf"^Forgotten\.{rule} lacks @staticmethod: no instance is made, got the parameters \(self"
    ):
        type("Forgotten", (Function,), rules_of(Cube) | {rule: lambda self, *args: None})
    with pytest.raises(TypeError, match=r"^Family\.vjp lacks @staticmethod"):
        type("Family", (Function,), {"vjp": lambda self, ctx, g: g})
    with pytest.raises(TypeError, match=r"^Family\.vjp lacks @classmethod"):
        type("Family", (Function,), {"vjp": lambda cls, ctx, g: g})


def test_a_plain_function_without_self_is_a_rule():
    """Such as the rule of another class."""
    plain = type("Plain", (Function,), {rule: getattr(Cube, rule) for rule in RULES})
    assert plain.apply(torch.tensor(2.0)) == 8


@pytest.mark.parametrize("rule", ["forward", "vjp_term", "vjp_terms"])
def test_an_elementwise_rule_without_staticmethod_is_refused(rule):
    """Before the arguments are counted, of which there would be one too many."""
    members = {"reads": {0: (0,)}, "forward": staticmethod(lambda x: x), "vjp_term": staticmethod(lambda i, v, x: v)}
    with pytest.raises(TypeError, match=rf"^Forgotten\.{rule} lacks @staticmethod"):
        type("Forgotten", (Elementwise,), members | {rule: lambda self, x: x})


@pytest.mark.parametrize("keepdim", [False, True])
def test_an_elementwise_operator_that_reduces_is_refused(keepdim):
    """Under vmap, where the samples would be mixed, and at the first derivative of several inputs."""

    class Total(Elementwise):
        reads = {0: (0,)}

        @staticmethod
        def forward(x):
            return x.sum(-1, keepdim=keepdim)

        @staticmethod
        def vjp_term(i, v, x):
            return v * x

    class Inner(Elementwise):
        reads = {0: (1,), 1: (0,)}

        @staticmethod
        def forward(x, w):
            return (x * w).sum(-1, keepdim=keepdim)

        @staticmethod
        def vjp_term(i, v, x, w):
            return v * (x if i else w)

    told = r"forward must return a tensor of the shape to which its inputs broadcast, .*: an operator that reduces derives from "
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match=rf"^Total\.{told}"):
        vmap(Total.apply)(x)
    with pytest.raises(ValueError, match=rf"^Inner\.{told}"):
        vmap(Inner.apply, (0, None))(x, x)
    with pytest.raises(ValueError, match=rf"^Inner\.{told}"):
        grad(lambda x: Inner.apply(x, x).sum())(x)


def test_an_operator_that_is_instantiated_names_apply_and_the_module():
    """Modules are in fullgrad.nn; an operator of a user's has none."""
    with pytest.raises(TypeError, match=r"^Clamp is not instantiated; call Clamp\.apply, or fullgrad\.nn\.Clamp for a module\.$"):
        fullgrad.Clamp(0.0, 1.0)
    with pytest.raises(TypeError, match=r"^Clamp is not instantiated; call Clamp\.apply\.$"):
        type("Clamp", (Function,), rules_of(Cube))(0.0, 1.0)
