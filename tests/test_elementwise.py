"""`Elementwise`: rules made from partial derivatives."""

import inspect

import pytest
import torch
from torch.func import grad, jvp, vjp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad import Elementwise
from fullgrad._suite.cases._case import numbers, straight_through
from fullgrad.testing import check_operator


class Spike(Elementwise):
    reads = {0: (0, 1, 2), 1: (0, 1, 2), 2: (0, 1, 2)}

    @staticmethod
    def forward(x, threshold=0.0, width=1.0):
        return (x > threshold).to(torch.result_type(x, width))

    @staticmethod
    def vjp_term(i, v, x, threshold, width):
        u = (x - threshold) / width
        slope = torch.sigmoid(u) * torch.sigmoid(-u) / width
        return v * slope * (1 if i == 0 else -1 if i == 1 else -u)


def soft_spike(x, threshold, width):
    return torch.sigmoid((x - threshold) / width)


def spike(x, threshold, width):
    return straight_through((x > threshold).to(x.dtype), soft_spike(x, threshold, width))


X, THRESHOLD, WIDTH = numbers(4, 3), numbers(3, seed=1) / 2, numbers(4, 1, seed=2).abs() + 0.5


@pytest.mark.long
def test_two_learnable_parameters_take_twelve_lines_and_pass_every_check():
    """A user's operator with two parameters of other shapes has mixed second derivatives, and saves only the inputs."""
    code = [line for line in inspect.getsource(Spike).splitlines() if line.strip()]
    assert len(code) <= 12
    report = check_operator(
        Spike.apply, X, THRESHOLD, WIDTH, surrogate=spike, smooth_forwards={Spike: soft_spike}, max_saved_bytes=0
    )
    assert not report.failures


def saved(call, *inputs):
    """The inputs, by position, whose memory autograd keeps for the backward."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        call(*inputs)
    return {i for i, v in enumerate(inputs) if isinstance(v, torch.Tensor) and v.data_ptr() in kept}


class Shared(Spike):
    """Computes the slope once for all terms."""

    calls = 0

    @classmethod
    def vjp_terms(cls, needed, v, x, threshold, width):
        cls.calls += 1
        first = Spike.vjp_term(0, v, x, threshold, width)
        u = (x - threshold) / width
        return [part if n else None for n, part in zip(needed, (first, -first, -first * u), strict=True)]


@pytest.mark.long
def test_terms_that_share_work_pass_every_check():
    """Joint terms pass every check, like those of `Spike` one by one."""
    smooth = {Shared: soft_spike}
    report = check_operator(Shared.apply, X, THRESHOLD, WIDTH, surrogate=spike, smooth_forwards=smooth, max_saved_bytes=0)
    assert not report.failures


def test_terms_that_share_work_are_asked_once():
    """Joint terms are computed once, also where one input needs a gradient."""
    inputs = [torch.randn(5), torch.tensor(0.1), torch.rand(5) + 0.5]
    for needing in (inputs, inputs[:1], inputs[1:2]):
        for v in inputs:
            v.requires_grad_(any(v is n for n in needing))
        Shared.calls = 0
        found = torch.autograd.grad(Shared.apply(*inputs).sum(), needing)
        assert Shared.calls == 1
        assert_close(found, torch.autograd.grad(soft_spike(*inputs).sum(), needing))


def test_terms_that_are_too_few_are_refused():
    """The error has the number that was found."""
    short = type("Short", (Spike,), {"vjp_terms": staticmethod(lambda needed, v, *inputs: [v])})
    y = short.apply(torch.randn(3, requires_grad=True), torch.tensor(0.1), 1.0)
    with pytest.raises(TypeError, match=r"Short.vjp_terms must return one entry for each of 3 inputs, got 1"):
        y.sum().backward()


def test_only_what_is_read_is_saved():
    """Only inputs that the needed partial derivatives read are saved."""
    x, s = torch.randn(3), torch.rand(3) + 1
    for needs, kept in (((True, False), set()), ((False, True), {0, 1}), ((True, True), {0, 1})):
        inputs = [v.clone().requires_grad_(n) for v, n in zip((x, s), needs, strict=True)]
        assert saved(fullgrad.StepQuantize.apply, *inputs) == kept
    assert saved(fullgrad.SoftRound.apply, x.clone().requires_grad_()) == {0}
    assert saved(fullgrad.AffineKBitQuantize.apply, x.requires_grad_(), 2, s, 1.0) == {2}


def test_a_term_may_be_none():
    """A term of None is 0, in both modes."""
    factor = torch.tensor(2.0, requires_grad=True)
    y = fullgrad.Scale.apply(torch.ones(3, requires_grad=True), 1.0, factor)
    assert torch.autograd.grad(y.sum(), factor, allow_unused=True) == (None,)
    assert_close(
        jvp(lambda b: fullgrad.Scale.apply(torch.ones(3), 1.0, b), (factor.detach(),), (torch.ones(()),))[1], torch.zeros(3)
    )


def test_a_tangent_has_the_shape_and_dtype_of_the_value():
    """A tangent is right also where one input has a smaller shape or dtype."""
    x, w, b = torch.randn(4, 3), torch.randn(3, dtype=torch.float64), torch.randn(4, 1)

    def f(b):
        return fullgrad.AffineKBitQuantize.apply(x, 2, w, b)

    value, tangent = jvp(f, (b,), (torch.ones_like(b),))
    assert (tangent.shape, tangent.dtype) == (value.shape, value.dtype) == ((4, 3), torch.float64)


def test_a_constant_has_no_derivative():
    """An input that ``reads`` does not name is refused if it has a derivative, which would be lost silently."""
    x, k = torch.rand(3), torch.tensor(2.0)
    message = "KBitQuantize: `k` is a constant, which `reads` does not name"
    with pytest.raises(TypeError, match=message):
        fullgrad.KBitQuantize.apply(x, k.clone().requires_grad_()).sum().backward()
    message = "AffineKBitQuantize: `k` is a constant"
    with pytest.raises(TypeError, match=message):
        fullgrad.AffineKBitQuantize.apply(x, k.clone().requires_grad_(), 1.0, 0.0)
    message = "KBitQuantize: `k` is a constant"
    with pytest.raises(TypeError, match=message):
        jvp(lambda k: fullgrad.KBitQuantize.apply(x, k), (k,), (k,))


def test_a_subclass_has_its_own_terms_and_keeps_what_its_author_wrote():
    """Generated rules of a parent are made anew; rules that an author wrote are inherited."""

    class Doubled(fullgrad.SoftRound):
        @staticmethod
        def vjp_term(i, v, x):
            return 2 * v

    class Wider(Doubled):
        reads = {0: (), 1: ()}

        @staticmethod
        def forward(x, y):
            return x + y

    class Written(Doubled):
        @staticmethod
        def vjp(ctx, g):
            return 3 * g

    class Heir(Written):
        @staticmethod
        def forward(x):
            return x.floor()

    x = torch.tensor(1.4)
    gradients = [grad(operator.apply)(x) for operator in (fullgrad.SoftRound, Doubled, Written, Heir)]
    assert gradients == [x, 2, 3, 3]
    assert jvp(Written.apply, (x,), (x,))[1] == 2 * x
    assert Heir.apply(x) == 1
    with pytest.raises(TypeError, match="positional argument"):
        grad(Wider.apply)(x, x)  # a term of one input, called with two


def test_an_input_that_reads_leaves_out_is_none():
    """A wrong ``reads`` is an error, and not a wrong number."""

    class Wrong(Elementwise):
        reads = {0: (0,), 1: (0,)}

        @staticmethod
        def forward(x, w):
            return x * w

        @staticmethod
        def vjp_term(i, v, x, w):
            return v * (w if i == 0 else x)

    x, w = torch.ones(3, requires_grad=True), torch.ones(3)
    with pytest.raises(TypeError, match="NoneType"):
        torch.autograd.grad(Wrong.apply(x, w).sum(), x)


def define(reads, forward=lambda x, w: x * w):
    body = {"forward": staticmethod(forward), "vjp_term": staticmethod(lambda i, v, *inputs: v)}
    return type("Defined", (Elementwise,), body if reads is None else body | {"reads": reads})


@pytest.mark.short
@pytest.mark.parametrize(
    ("reads", "message"),
    [
        (None, "Defined lacks `reads`"),
        ({}, "Defined lacks `reads`"),
        ({2: ()}, "Defined.reads must count the 2 inputs of forward from 0, got {2: ()}"),
        ({0: (0, 5)}, "Defined.reads must count the 2 inputs of forward from 0, got {0: (0, 5)}"),
        ({0: ("x",)}, "Defined.reads must count the 2 inputs of forward from 0"),
    ],
)
def test_a_definition_that_does_not_fit_is_refused(reads, message):
    """The definition of the class raises, and names it."""
    with pytest.raises(TypeError) as error:
        define(reads)
    assert message in str(error.value)


def test_inputs_have_names():
    """Variadic inputs are refused, since ``reads`` counts inputs."""
    with pytest.raises(TypeError, match=r"Defined.forward must name its inputs, .* got \['\*xs'\]"):
        define({0: ()}, lambda *xs: xs[0])


def test_a_value_without_the_shape_of_all_inputs_is_refused():
    """Such a value is refused: its gradient would be summed where that of a sample under ``vmap`` is not."""
    with pytest.raises(ValueError, match=r"Spike.forward must return .* got shape \(3,\) from an input of shape \(4, 1\)"):
        Spike.apply(torch.randn(3), 0.0, torch.ones(4, 1, requires_grad=True))


def test_vmap_of_one_argument_of_several():
    """A batched parameter next to a sample that all share."""
    x, widths = torch.randn(3), torch.rand(5) + 0.5
    batched = vmap(grad(lambda x, w: Spike.apply(x, 0.0, w).sum()), in_dims=(None, 0))(x, widths)
    assert_close(batched, torch.stack([grad(lambda x, w: soft_spike(x, 0.0, w).sum())(x, w) for w in widths]))


class Scaled(Elementwise):
    """Scales by a constant, and reads nothing; another term would give another number."""

    reads = {0: ()}

    @staticmethod
    def forward(x, digits=0):
        return torch.round(x, decimals=digits)

    @staticmethod
    def vjp_term(i, v, x, digits):
        return v * (2 + i)


def test_the_term_that_is_asked_is_that_of_the_input():
    """The term is that of the first input, beside numbers and where nothing is read."""
    x = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    for f, expected in (
        (lambda x: Scaled.apply(x, 1), torch.full_like(x, 2.0)),
        (lambda x: Spike.apply(x, 0.3, 2.0), grad(lambda x: soft_spike(x, 0.3, 2.0).sum())(x)),
    ):
        assert_close(grad(lambda x: f(x).sum())(x), expected)  # noqa: B023
        assert_close(jvp(f, (x,), (torch.ones_like(x),))[1], expected)


class Step(Elementwise):
    """A step without a derivative."""

    reads = {0: ()}

    @staticmethod
    def forward(x, height=1.0):
        return height * (x > 0)

    @staticmethod
    def vjp_term(i, v, x, height=None):
        return None


class Constant(Elementwise):
    """An operator of one input that it reads."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def vjp_term(i, v, x):
        return None if i == 0 else v


class Flat(Step):
    """An operator of two inputs that reads the first."""

    reads = {0: (0,)}


@pytest.mark.parametrize("operator", [Step, Constant, Flat])
def test_term_that_is_none_is_zero(operator):
    """A term of None is zero in forward mode, too."""
    x = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        assert not transform(lambda x: operator.apply(x).sum())(x).any()


def test_class_without_terms_is_refused():
    """A class without terms, or with reads that are numbers, such as ``{0: (0)}``, is refused."""
    forward = staticmethod(lambda x: x)
    with pytest.raises(TypeError, match=r"^Lacking lacks `vjp_term`"):
        type("Lacking", (Elementwise,), {"reads": {0: (0,)}, "forward": forward})
    with pytest.raises(TypeError, match=r"^Lacking\.reads must map positions to tuples of positions"):
        type("Lacking", (Elementwise,), {"reads": {0: 0}, "forward": forward, "vjp_term": staticmethod(lambda i, v, x: v)})


class Unread(fullgrad.Elementwise):
    """A sign; its derivative uses an input that `reads` does not name."""

    reads = {0: ()}

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def vjp_term(i, v, x):
        return v * torch.cos(x)


class Total(fullgrad.Elementwise):
    """A sum, which is no elementwise function."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x):
        return x.sum()

    @staticmethod
    def vjp_term(i, v, x):
        return v * x


@pytest.mark.parametrize("call", [lambda f, x: vjp(f, x)[1](x), lambda f, x: jvp(f, (x,), (x,))], ids=["vjp", "jvp"])
def test_an_input_that_is_not_read_is_named(call):
    """The error names the class, and `reads`, where a partial derivative fails because its input is None."""
    with pytest.raises(TypeError, match=r"^Unread: a partial derivative failed: .*`reads` is \{0: \(\)\}"):
        call(Unread.apply, torch.randn(3))


def test_a_sum_is_refused():
    """The first call says which base class a reduction has."""
    with pytest.raises(ValueError, match=r"^Total.forward must return .* got shape \(\) .*derives from fullgrad.Function"):
        Total.apply(torch.randn(3, requires_grad=True))
