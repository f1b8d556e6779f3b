"""The kit as its users call it: `check_operator`, its report, and the command line."""

import gc
import json
import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fullgrad
from fullgrad._suite.cases import CASES
from fullgrad.cli import main
from fullgrad.testing import CHECKS, GROUPS, UPSTREAM_ISSUES, OperatorError, TorchLimit, check_operator
from fullgrad.testing._check_operator import make_subject, not_checked, run_check
from fullgrad.testing._report import NOT_APPLICABLE, PASSED
from fullgrad.testing._tracing import same
from tests.operators import Cube, TorchCube
from tests.testing.test_broken import DroppedTangent, InexactValue, VjpTwice


def cube(x):
    """x^3 in plain torch."""
    return x * x * x


class TorchRound(TorchCube):
    """round with derivative 1 on torch's own base class: where Dynamo drops the rules, the derivative is 0 and not 1."""

    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g.clone()

    @staticmethod
    def jvp(ctx, t):
        return t.clone()

    @staticmethod
    def vmap(info, in_dims, x):
        return TorchRound.apply(x), in_dims[0]


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))

# What torch 2.11 to 2.15 get wrong, or cannot compile, for a Function with a jvp of its own.
NESTED_FORWARD = {"forward_over_forward", "three_of_forward", "three_mixed"}
GRAD_MODES = {"modes_inside_transforms"}
COMPILED = {name for name in GROUPS["tracing"] if name.startswith("compile_")}


@pytest.mark.long
def test_torchs_own_function_fails_what_torch_gets_wrong():
    """The operator fails where torch fails and nowhere else; messages name the public issue where there is one."""
    report = check_operator(TorchCube.apply, X, surrogate=cube, value=cube, smooth_forwards={}, raise_exception=False)
    assert set(report.failures) <= NESTED_FORWARD | GRAD_MODES | COMPILED
    assert NESTED_FORWARD & set(report.failures)
    for name in set(report.failures) & set(UPSTREAM_ISSUES):
        assert UPSTREAM_ISSUES[name] in report.explain(name)


@pytest.mark.long
def test_torchs_own_straight_through_function_is_wrong_under_compile():
    """The rules are dropped in silence in at least one place; once torch mends them all, this test says so."""
    surrogate = lambda x: x + (x.round() - x).detach()  # noqa: E731
    report = check_operator(
        TorchRound.apply, X, surrogate=surrogate, checks=["compile_jvp", "compile_forward_over_forward"], raise_exception=False
    )
    assert report.failures, "torch keeps a Function's jvp under compile now: drop the issue from docs and README"


@pytest.mark.long
def test_ours_passes_everything():
    """The same operator on our base class fails nothing."""
    assert not check_operator(Cube.apply, X, surrogate=cube, value=cube, smooth_forwards={}).failures


@pytest.mark.parametrize(("slope", "status"), [(1.0, "passed"), (2.0, "failed")])
def test_what_a_decorator_made_has_a_smooth_function_too(slope, status):
    """In place of that which it was made of."""
    rounded = fullgrad.custom_jvp(torch.round)
    rounded.defjvps(lambda t, y, x: slope * t)
    found = check_operator(rounded, X, smooth_forwards={rounded: torch.clone}, checks=["gradcheck"], raise_exception=False)
    assert found["gradcheck"].status == status


def test_without_an_oracle_the_transforms_are_compared_with_each_other():
    """Plain torch code passes; an operator whose two modes disagree is found, by forward mode and by the adjoint test."""
    fast = ["reverse", "forward", "second order", "third order", "machinery", "batching"]
    assert not check_operator(lambda x: x.sin() * x.exp(), X, checks=fast).failures
    found = check_operator(DroppedTangent.apply, X, checks=fast, raise_exception=False).failures
    assert {"func_jvp", "adjoint", "dual_numbers", "forward_over_forward", "three_of_forward"} <= set(found)
    assert not {"func_grad", "reverse_over_reverse"} & set(found)


def test_a_cotangent_map_is_an_oracle():
    """An operator on the gradient: the map is its reverse derivative, at every order and per sample; its tangent is untouched."""

    class Halve(fullgrad.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vjp(ctx, g):
            return g / (1 + g * g)

        @staticmethod
        def jvp(ctx, t):
            return t

        @staticmethod
        def vmap(info, in_dims, x):
            return Halve.apply(x), in_dims[0]

    checks = [
        "second order",
        "third order",
        "gradcheck",
        "reverse",
        "func_jvp",
        "func_jacfwd",
        "batching",
        "reverse_over_reverse",
        "three_of_reverse",
        "compile_grad",
        "adjoint",
    ]
    report = check_operator(Halve.apply, X, cotangent_map=lambda g, x: g / (1 + g * g), checks=checks)
    assert report["adjoint"].status == "not applicable"
    wrong = check_operator(Halve.apply, X, cotangent_map=lambda g, x: g / 2, checks=["reverse"], raise_exception=False)
    assert "func_grad" in wrong.failures


@pytest.mark.long
def test_a_cotangent_map_that_saves_a_constant_is_caught():
    """A maximum that does not follow the gradient is right once, and wrong when it is differentiated."""

    class Frozen(fullgrad.ScaleGrad):
        @staticmethod
        def vjp(ctx, g):
            return g / g.detach().abs().amax(), None

    def normalize(g, x):
        m = g.abs().amax()
        return torch.where(m == 0, g, g / torch.where(m == 0, 1.0, m))

    report = check_operator(Frozen.apply, X, cotangent_map=normalize, raise_exception=False)
    assert {"gradgradcheck", "create_graph", "func_hessian", "three_of_reverse"} <= set(report.failures)
    assert report["func_grad"].status == "passed"
    assert not check_operator(fullgrad.scale_grad, X, cotangent_map=normalize, max_saved_bytes=0).failures


def test_modules_tuples_and_several_inputs():
    """A module, an operator with several outputs, and constant arguments."""
    linear = torch.nn.Linear(3, 2)
    assert not check_operator(linear, X, checks=["reverse", "forward", "batching"]).failures
    assert not check_operator(lambda x, k, y: (x * k, (x * y).sum(-1)), X, 2, X + 1, checks=["reverse", "forward"]).failures


def of_structures(module, tree, factor):
    """A function of a module, a structure and a number, which returns a structure."""
    return {"y": torch.tanh(module(tree["x"])) * factor, "rest": [tree["x"].sum()]}


def test_structures_and_modules_count_as_their_tensors():
    """Of arguments and results; a wrong derivative by a parameter is seen."""
    inputs = torch.nn.Linear(3, 2), {"x": torch.randn(4, 3)}, 2.0
    derivatives = ["reverse", "forward", "second order", "batching"]
    checkpointed = lambda *args: fullgrad.checkpoint(of_structures, *args)  # noqa: E731
    report = check_operator(checkpointed, *inputs, surrogate=of_structures, checks=derivatives)
    assert len(report) > 20
    constant = lambda module, *args: of_structures(lambda x: module(x) - x @ module.weight.detach().T * 0.1, *args)  # noqa: E731
    report = check_operator(constant, *inputs, surrogate=of_structures, checks=derivatives, raise_exception=False)
    assert report.failures


def _without_gradient_of_scale(kind):
    """x sin(s), whose derivative by s is declared to be 0, which a rule may say by None."""
    if kind == "plain code":
        return lambda x, s: x * s.detach().sin()
    if kind == "custom_vjp":
        made = fullgrad.custom_vjp(lambda x, s: x * s.sin())
        made.defvjp(lambda x, s: (made(x, s), s.detach()), lambda s, g: (g * s.sin(), None))
        return made

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            ctx.save_for_backward(s)
            return x * s.sin()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].detach().sin(), None

    return fullgrad.adopt(Scaled)


@pytest.mark.parametrize("kind", ["custom_vjp", "adopt", "plain code"])
def test_a_gradient_of_none_is_zero(kind):
    """Of an operator and of an oracle; where the derivative is not 0, it is a fault."""
    inputs = torch.randn(4, 3), torch.rand(3)
    checks = ["reverse", "forward", "second order", "third order", "batching", "machinery", "value"]
    operator, plain = _without_gradient_of_scale(kind), _without_gradient_of_scale("plain code")
    check_operator(operator, *inputs, surrogate=plain, value=plain, checks=checks)
    for true in (lambda x, s: x * s.sin(), lambda x, s: x.detach() * s.sin()):
        report = check_operator(operator, *inputs, surrogate=true, checks=["reverse"], raise_exception=False)
        failed = {name for name, r in report.items() if r.status == "failed"}
        assert failed >= {"backward", "each_input_alone", "func_grad", "func_vjp", "func_jacrev", "batched_cotangents"}


def test_a_kernel_is_compared_with_its_reference():
    """Its value and backward, at the given tolerances."""
    kernel = lambda x: torch.sin(x) * (1 + 1e-6)  # noqa: E731
    for error, passes in ((1e-6, True), (1e-2, False)):
        back = lambda inputs, _, g, error=error: (g * torch.cos(inputs[0]) * (1 + error),)  # noqa: E731
        f = fullgrad.with_reference(kernel, torch.sin, backward=back, vmap_method="map")
        report = check_operator(f, torch.randn(3), checks=["reverse"], tolerances=(1e-4, 1e-6), raise_exception=False)
        assert bool(report.failures) is not passes
    assert "surrogate" not in not_checked(make_subject(f, [torch.randn(3)], max_saved_bytes=None), ["reverse"])


def test_a_wrong_transpose_is_found():
    """By the dot-product test."""
    double = lambda x: 2 * x  # noqa: E731
    check_operator(fullgrad.linear_map(double, double), torch.randn(3), checks=["adjoint"])
    with pytest.raises(OperatorError, match="adjoint"):
        check_operator(fullgrad.linear_map(double, torch.clone), torch.randn(3), checks=["adjoint"])


def test_the_error_lists_each_failure_with_numbers():
    """The error lists the expected number, the result and the difference for each failed check, and holds the report."""
    with pytest.raises(OperatorError, match=r"1 of 2 checks failed") as caught:
        check_operator(InexactValue.apply, X, surrogate=cube, value=cube, checks=["value_is_exact", "adjoint"])
    message = str(caught.value)
    assert "failed value_is_exact: expected [" in message
    assert "Greatest absolute difference" in message
    assert set(caught.value.report) == {"value_is_exact", "adjoint"}
    assert caught.value.report["adjoint"].status == "passed"


def test_a_report_counts_what_it_has():
    """A report counts checks in all, and by group."""
    report = check_operator(VjpTwice.apply, X, surrogate=cube, checks=["forward", "func_grad"], raise_exception=False)
    first, *rest = str(report).splitlines()
    assert first.endswith(": 5 passed, 2 failed, 0 not applicable")
    assert [line.split() for line in rest[:2]] == [["reverse", "0/1"], ["forward", "5/6"]]
    assert [line.split(":")[0] for line in rest[2:]] == ["failed func_grad", "failed adjoint"]


class Negated(fullgrad.Round):
    """The derivative is -1 under every transform."""

    @staticmethod
    def vjp(ctx, g):
        return -g

    @staticmethod
    def jvp(ctx, t):
        return -t


DERIVATIVES = ["reverse", "forward", "second order", "third order", "batching", "gradient_by_differences"]


def test_a_derivative_that_nothing_was_compared_with_is_told():
    """A slope that is wrong under all transforms passes without a surrogate; the report says so, and with one it fails."""
    report = check_operator(Negated.apply, X, checks=DERIVATIVES)
    assert not report.failures
    assert [*report.not_checked] == ["surrogate", "smooth_forwards"]
    assert "not checked: whether the derivative is the declared one" in str(report)
    assert "(no `surrogate` was given)" in str(report)
    surrogate = lambda x: x + (x.round() - x).detach()  # noqa: E731
    report = check_operator(Negated.apply, X, surrogate=surrogate, checks=DERIVATIVES, raise_exception=False)
    assert "func_grad" in report.failures
    assert "surrogate" not in report.not_checked


class LacksAnArgument(fullgrad.Round):
    """Its rule takes more than it is given, which is found when it is called."""

    @staticmethod
    def vjp(ctx, g, more):
        return g


@pytest.mark.parametrize("operator", [lambda x, y: x * y, LacksAnArgument.apply], ids=["call", "backward"])
def test_one_fault_has_one_message(operator):
    """A signature that is wrong is the reason of every failure, those of compiled code too."""
    groups = ["reverse", "second order", "third order", "batching", "compile_grad", "compile_forward_and_backward"]
    surrogate = lambda x: x + (x.round() - x).detach()  # noqa: E731
    report = check_operator(operator, X, surrogate=surrogate, checks=groups, raise_exception=False)
    assert len(report.failures) > 15
    (line,) = report.explanations()
    assert "missing 1 required positional argument" in line


class WrongGradient(Cube):
    """The gradient has a dimension less than the input."""

    @staticmethod
    def vjp(ctx, g):
        return Cube.vjp(ctx, g).sum(-1)


class WrongTangent(Cube):
    """The tangent has a dimension less than the output."""

    @staticmethod
    def jvp(ctx, t):
        return Cube.jvp(ctx, t).sum(-1)


class WrongTerm(fullgrad.Elementwise):
    """A partial derivative, and with it gradients and tangents, have a dimension less."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def vjp_term(i, v, x):
        return (v * 3 * x**2).sum(-1)


def wrong_bwd(x, g):
    """A gradient with a dimension less."""
    return ((3 * x**2 * g).sum(-1),)


wrong_rule = fullgrad.custom_vjp(cube)
wrong_rule.defvjp(lambda x: (x**3, x), wrong_bwd)
wrong_kernel = fullgrad.with_reference(cube, cube, backward=lambda inputs, outputs, grads: wrong_bwd(inputs[0], grads[0]))


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    "operator",
    [WrongGradient.apply, WrongTangent.apply, WrongTerm.apply, wrong_rule, wrong_kernel],
    ids=["vjp", "jvp", "vjp_term", "custom_vjp", "with_reference"],
)
def test_a_wrong_shape_has_one_message(operator):
    """A gradient or a tangent of another shape is the reason of every failure: of batches, whose shapes are others, and of
    compiled code, whose errors hide it. The message stands before the names of most checks.
    """
    report = check_operator(operator, X, raise_exception=False)
    assert len(report.failures) > 15
    (line,) = report.explanations()
    first, others = line.splitlines()
    assert re.match(r"failed (backward|dual_numbers): .*\b(shape|size)\b", first)
    assert {"func_hessian", "grad_of_jvp", "make_fx_of_transforms"} <= {*others.replace(",", "").split()}


class SummedGradient(Cube):
    """The gradient has a dimension more than the input, and torch sums it."""

    @staticmethod
    def vjp(ctx, g):
        return Cube.vjp(ctx, g).expand(2, *g.shape)


class SummedByTorch(torch.autograd.Function):
    """The same as a Function of torch, which has no forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return (3 * ctx.saved_tensors[0] ** 2 * g).expand(2, *g.shape)


@pytest.mark.short
@pytest.mark.parametrize(
    ("operator", "surrogate"),
    [(SummedGradient.apply, cube), (SummedGradient.apply, None), (lambda x: SummedGradient.apply(x * 1), cube)],
    ids=["with a surrogate", "alone", "inside"],
)
def test_a_gradient_that_torch_sums_has_one_message(operator, surrogate):
    """A gradient that is larger than its input is told by both shapes, once, where its sum is wrong."""
    groups = ["reverse", "forward", "second order", "third order", "gradcheck", "batching", "machinery", "compile_grad", "value"]
    report = check_operator(
        operator, X, surrogate=surrogate, value=cube, smooth_forwards={}, checks=groups, raise_exception=False
    )
    assert len(report.failures) > 12
    (line,) = report.explanations()
    shape = tuple(X.shape)
    assert f"SummedGradient returns a gradient of shape {(2, *shape)} for input 0 of shape {shape}, which torch sums:" in line


def test_a_gradient_of_a_function_of_torch_that_torch_sums():
    """The same of torch's base class, by the checks that it passes otherwise."""
    checks = ["reverse", "reverse_over_reverse", "three_of_reverse", "vmap_of_vjp", "compile_forward_and_backward"]
    report = check_operator(SummedByTorch.apply, X, surrogate=cube, value=cube, checks=checks, raise_exception=False)
    (line,) = report.explanations()
    assert "SummedByTorch returns a gradient of shape" in line


class SummedRightly(fullgrad.Function):
    """A product with a vector, whose gradient torch sums; it has no batches."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx, t_x, t_y):
        raise NotImplementedError

    @staticmethod
    def vmap(info, in_dims, x, y):
        return SummedRightly.apply(x, y) * 2, 0


def test_a_gradient_that_torch_sums_may_be_right():
    """A gradient whose sum is right is no fault, and another fault is told as it is."""
    checks = ["backward", "func_grad", "grad_of_vmap"]
    report = check_operator(SummedRightly.apply, X, X[0], surrogate=torch.mul, checks=checks, raise_exception=False)
    assert [*report.failures] == ["grad_of_vmap"]
    assert "which torch sums" not in report.failures["grad_of_vmap"]


def test_a_wrong_shape_hides_no_other_fault():
    """What a class lacks, and a value that is wrong, are told besides."""

    class Lacks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3 * 1.001

        @staticmethod
        def backward(ctx, g):
            return wrong_bwd(*ctx.saved_tensors, g)[0]

    checks = ["backward", "create_graph", "func_grad", "vmap_equals_loop", "value_is_exact"]
    lines = check_operator(Lacks.apply, X, value=cube, checks=checks, raise_exception=False).explanations()
    assert [line.split(":")[0] for line in lines] == [
        "failed backward, func_grad",
        "failed create_graph, vmap_equals_loop",
        "failed value_is_exact",
    ]


def in_float32(x):
    """A kernel of float32 alone, as of numpy or C."""
    return fullgrad.round(x.float() * 3.3).double() if x.dtype == torch.float64 else float("nan") * x


@pytest.mark.parametrize("left_out", [None, {"gradients_in_every_dtype": "the kernel is of float32"}, {"machinery": "no time"}])
def test_checks_are_left_out_with_a_reason(left_out):
    """The report has the reason; all others are run, with the tolerances of the kernel."""
    surrogate = lambda x: x * 3.3 + (torch.round(x * 3.3) - x * 3.3).detach()  # noqa: E731
    how = {"surrogate": surrogate, "tolerances": (1e-5, 1e-5), "checks": ["reverse", "gradients_in_every_dtype"]}
    report = check_operator(in_float32, X, **how, left_out=left_out, raise_exception=False)
    assert [*report.failures] == ["gradients_in_every_dtype"] * (left_out is None)
    if left_out:
        assert f"left out: gradients_in_every_dtype: {next(iter(left_out.values()))}" in str(report)


@pytest.mark.parametrize("x", [torch.zeros(0, 3), torch.full((4, 3), torch.nan)], ids=["empty", "NaN"])
def test_inputs_without_a_number_are_told(x):
    """All operators pass there, right or wrong, and the report says so."""
    report = check_operator(Negated.apply, x, surrogate=cube, value=cube, smooth_forwards={}, checks=("func_grad",))
    assert [*report.not_checked] == ["inputs"]
    assert "not checked: anything about numbers" in str(report)


ORACLES = {"surrogate": cube, "value": cube, "smooth_forwards": {}, "max_saved_bytes": 0}


@pytest.mark.short
@pytest.mark.parametrize("name", ORACLES)
def test_what_each_argument_would_check_is_told(name):
    """The report lists nothing where all are given or no chosen check asks; smooth forwards are an oracle, too."""
    without = {name: None} if name != "surrogate" else {"surrogate": None, "smooth_forwards": None}
    assert [*not_checked(make_subject(Cube.apply, [X], **{**ORACLES, **without}), CHECKS)] == [*without]
    assert not_checked(make_subject(Cube.apply, [X], **ORACLES), CHECKS) == {}
    assert not_checked(make_subject(Cube.apply, [X], **{**ORACLES, "surrogate": None}), CHECKS) == {}
    assert not_checked(make_subject(Cube.apply, [X]), GROUPS["tracing"]) == {}


def test_a_random_operator_is_checked_for_its_draws_alone():
    """The report says that only the draws are checked."""
    report = check_operator(torch.nn.functional.dropout, X, draws=True, checks=["randomness_error_raises"])
    assert "not checked: anything but randomness" in str(report)


def test_what_is_adopted_is_compared_with_its_class():
    """The class in eager autograd is the oracle of an adopted one."""
    subject = make_subject(fullgrad.adopt(TorchRound), [X])
    assert "surrogate" not in not_checked(subject, CHECKS)
    assert "value" not in not_checked(subject, CHECKS)


def test_public_threads_are_of_checks_that_torch_fails():
    """Other checks have no public issue."""
    assert UPSTREAM_ISSUES["compile_jvp"] == "https://github.com/pytorch/pytorch/issues/192985"
    assert "adjoint" not in UPSTREAM_ISSUES


def test_the_floating_output_is_what_is_differentiated():
    """The derivative is that of the floating output, found by its numbers in its shape; of several side by side."""
    assert make_subject(lambda x: torch.sort(x, -1), [X]).op(X).shape == X.shape
    assert torch.equal(make_subject(lambda x: (x, x.argmax(), 2 * x), [X]).op(X), torch.cat((X.flatten(), 2 * X.flatten())))


def test_what_is_the_same_in_traced_code():
    """An operator with its own value is the same to the last bit, others to some roundings."""
    near = torch.nextafter(X, X + 1)
    with pytest.raises(AssertionError):
        same(make_subject(cube, [X], value=cube), near, X)
    same(make_subject(cube, [X]), near, X)
    with pytest.raises(AssertionError):
        same(make_subject(cube, [X]), X * 1.001, X)


def test_what_is_left_out_is_known_and_has_a_reason():
    """Else a misspelled name would run, and nobody would know why a check is missing."""
    with pytest.raises(ValueError, match="unknown checks: nothing"):
        check_operator(Cube.apply, X, left_out={"nothing": "why"})
    with pytest.raises(ValueError, match="`left_out` must have a reason for each check, got '' for 'func_grad'"):
        check_operator(Cube.apply, X, left_out={"func_grad": ""})


def test_bad_calls_are_refused():
    """Two oracles, unknown checks, and nothing to differentiate are refused."""
    with pytest.raises(ValueError, match=r"`surrogate` or a `cotangent_map`, got both"):
        check_operator(cube, X, surrogate=cube, cotangent_map=lambda g, x: g)
    with pytest.raises(ValueError, match=r"unknown checks: nonsense"):
        check_operator(cube, X, checks=["nonsense"])
    with pytest.raises(ValueError, match=r"needs a floating tensor"):
        check_operator(cube, torch.arange(3))


@pytest.mark.short
@pytest.mark.parametrize("name", CHECKS)
def test_every_check_says_what_it_proves(name):
    """Every check has a docstring of at least one sentence."""
    assert (CHECKS[name].__doc__ or "").strip().endswith(".")


def test_there_are_enough_checks():
    """There are forty or more."""
    assert len(CHECKS) >= 40


# --- python -m fullgrad -----------------------------------------------------------------------------------------------

own_wrong = VjpTwice.apply


def test_check_command(capsys, tmp_path):
    """The command prints a table and a summary, writes a file of results, and exits with status 0."""
    file = tmp_path / "results.json"
    assert main(["check", "ceil", "--checks", "forward", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "ceil" in printed
    assert "6/6" in printed
    assert "1 case, 6 of" in printed
    assert json.loads(file.read_text())["results"]["ceil"]["func_jvp"]["status"] == "passed"


def test_check_command_on_ones_own(capsys):
    """The command takes module:callable with a surrogate; it reports a failure, and exits with status 1."""
    own = lambda name, checks: ["check", f"{__name__}:{name}", "--surrogate", f"{__name__}:cube", "--checks", checks]  # noqa: E731
    assert main(own("TorchCube", "reverse")) == 0
    assert "not checked: whether" not in capsys.readouterr().out
    assert main(["check", f"{__name__}:Negated", "--checks", "reverse"]) == 0
    assert f"{__name__}:Negated: not checked: whether the derivative is the declared one" in capsys.readouterr().out
    assert main(own("own_wrong", "func_grad")) == 1
    assert "failed func_grad: expected" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.short
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "nothing"],
        ["check", "no.such:thing"],
        ["check", "round", "--checks", "nonsense"],
        ["check", "round", "--device", "nowhere"],
    ]
    + [["check", "tests.testing.test_kit:X"], ["plot", "nothing"], ["check", "tests.testing.test_kit:cube", "--shape", "a"]],
)
def test_bad_commands_are_told_in_one_line(arguments, capsys):
    """A bad command exits with status 2 and prints one line on standard error."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.long
def test_list_and_plot_commands(capsys, tmp_path):
    """The list has a line for every public function, the plot a picture for every operator."""
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*fullgrad.__all__, *[f"soft.{n}" for n in fullgrad.soft.__all__]) if name.islower())
    names = [name for name in fullgrad.__all__ if name.islower() and any(name in case.covers for case in CASES)]
    assert main(["plot", *names, "-o", str(tmp_path / "all.png")]) == 0
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_missing_extra_is_told(monkeypatch, capsys):
    """The commands say how to install matplotlib or rich."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["plot", "round"]) == 2
    assert 'pip install "fullgrad[plot]"' in capsys.readouterr().err


def test_what_torch_cannot_do_leaves_the_thread_as_it_was():
    """An error from below autograd that fails to print a tensor would switch autograd off when it is collected."""

    class Unprintable(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            guard = torch._C._DisableFuncTorch()  # noqa: F841 - torch._tensor_str._str has it where it fails
            raise RuntimeError("cannot be printed")

    def run(function):
        with Unprintable():
            function(X)

    with pytest.raises(TorchLimit):
        make_subject(torch.sin, [X]).possible(run)
    gc.collect()
    assert torch.ones(1, requires_grad=True).mul(2).requires_grad


def test_forward_mode_does_not_apply_to_what_has_no_tangent():
    """Checks with forward mode are not applicable, and say so; the others run."""
    case = next(c for c in CASES if not c.has_tangent)
    assert run_check("func_jvp", case).status == NOT_APPLICABLE
    assert run_check("backward", case).status == PASSED


def test_a_quantizer_without_a_surrogate_is_told_of_the_keyword():
    """Its rule holds rounded values constant, which differences do not know; with the surrogate nothing fails."""
    x, scale = torch.randn(4, 3), torch.tensor(0.3)
    name = "gradient_by_differences"
    report = check_operator(fullgrad.quantizers.lsq, x, scale, checks=[name], raise_exception=False)
    assert report[name].status == "failed"
    assert "pass `surrogate=`" in report.explain(name)


class InFloat32(fullgrad.Elementwise):
    """A product with a slope of the default dtype: 0.1 is rounded to float32."""

    reads = {0: (0,), 1: (0,)}

    @staticmethod
    def forward(x, y):
        return torch.where(x > 0, x, 0.1 * x) + y

    @staticmethod
    def vjp_term(i, v, x, y):
        return v * torch.where(x > 0, 1.0, 0.1) if i == 0 else v


def test_a_number_in_float32_has_one_message():
    """A derivative that is off by the rounding of a number in float32 is told by that, and not by how torch sums gradients."""

    def exact(x, y):
        return torch.where(x > 0, x, 0.1 * x) + y

    inputs = X, torch.randn(X.shape[-1], dtype=torch.float64)
    checks = ["reverse", "forward", "batching", "value"]
    report = check_operator(InFloat32.apply, *inputs, surrogate=exact, value=exact, checks=checks, raise_exception=False)
    (line,) = report.explanations()
    assert len(report.failures) > 10
    assert "float64 numbers differ by a rounding to float32" in line


@pytest.mark.parametrize("slope", [0.11, 0.1 * (1 + 1e-5)])
def test_a_wrong_slope_is_not_told_as_a_rounding(slope):
    report = check_operator(
        lambda x: torch.where(x > 0, x, slope * x),
        X,
        surrogate=lambda x: torch.where(x > 0, x, 0.1 * x),
        checks=["func_grad"],
        raise_exception=False,
    )
    assert "expected" in report["func_grad"].message


def test_an_operator_that_captures_a_parameter():
    """Checks that an operator cannot pass since its function holds a parameter say so, and leave the parameter in its place."""
    layer = torch.nn.Linear(3, 3, dtype=torch.float64)
    weight = layer.weight
    gate = fullgrad.straight_through(lambda x: (x > 0).to(x.dtype), lambda x: torch.sigmoid(layer(x)))

    def surrogate(x):
        soft = torch.sigmoid(layer(x))
        return soft + ((x > 0).to(x.dtype) - soft).detach()

    checks = ["reverse", "second order", "saved_bytes", "threads", "value"]
    report = check_operator(gate, torch.randn(2, 3), surrogate=surrogate, checks=checks)
    assert layer.weight is weight
    assert report["func_hessian"].status == report["saved_bytes"].status == PASSED
    found = report["value_on_meta_and_fake_tensors"]
    assert found.status == NOT_APPLICABLE
    assert found.message == "tensors that the operator captures have data where the inputs have none: pass them as arguments"
