"""A check that cannot fail is a defect: operators broken on purpose, each with the checks that must catch it."""

import contextlib
import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fullgrad import Elementwise, Function
from fullgrad._dispatch import are_differentiated
from fullgrad._suite.cases._case import numbers
from fullgrad.testing import CHECKS, GROUPS, Subject, TorchLimit
from fullgrad.testing._subject import scalar
from fullgrad.testing._together import TOGETHER, check_together, in_one_graph, summed, together
from tests.operators import Cube, ThroughRound, TorchCube


class InexactValue(Cube):
    @staticmethod
    def forward(x):
        return x * x * x * (1 + 1e-3)


class CopiedLayout(Cube):
    @staticmethod
    def forward(x):
        return (x * x * x).contiguous()


class VjpTwice(Cube):
    @staticmethod
    def vjp(ctx, g):
        return 2 * Cube.vjp(ctx, g)


class OverwritesCotangent(Cube):
    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return g.mul_(3 * x**2)


class DroppedTangent(Cube):
    @staticmethod
    def jvp(ctx, t):
        return torch.zeros_like(t)


class SharedTangent(ThroughRound):
    """round whose tangent is a view of the input's tangent."""

    @staticmethod
    def jvp(ctx, t):
        return t.view_as(t)


class SavedIntermediate(Cube):
    """The derivative is computed in the forward; differentiated again it is a constant."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        with torch.no_grad():
            slope = (3 * inputs[0] * inputs[0]).detach()
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)

    @staticmethod
    def vjp(ctx, g):
        return ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx, t):
        return ctx.saved_tensors[0] * t


class MixesTheBatch(Cube):
    @staticmethod
    def vmap(info, in_dims, x):
        y = MixesTheBatch.apply(x)
        return y + y.mean(in_dims[0], keepdim=True), in_dims[0]


class MixesThroughAThreshold(Cube):
    """Larger samples of a batch are clipped by a bound that smaller ones lower; of one sample no element reaches it."""

    @staticmethod
    def forward(x):
        return torch.where(x.abs() > 3 * x.abs().mean(), x, x * x * x)

    @staticmethod
    def vmap(info, in_dims, x):
        return MixesThroughAThreshold.apply(x), in_dims[0]


class IgnoresInDims(Cube):
    @staticmethod
    def vmap(info, in_dims, x):
        return IgnoresInDims.apply(x), 0


class NotSaved(Cube):
    """Keeps the input on ctx, where neither hooks nor the check of in-place changes see it."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.x = inputs[0]
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        return 3 * ctx.x * ctx.x * g


class TransformsInTheBackward(Cube):
    """Uses a transform in the rule, which torch refuses inside hooks."""

    @staticmethod
    def vjp(ctx, g):
        return torch.func.vjp(lambda x: x * x * x, *ctx.saved_tensors)[1](g)[0]


class RestoredFromTheFirstCall(Cube):
    """Keeps the saved tensor of the first backward, whatever hooks put in its place."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(torch.ones_like(inputs[0]) * inputs[0])
        ctx.save_for_forward(*inputs)


class DependsOnData(Cube):
    """Branches on a value, which no tracer can follow."""

    @staticmethod
    def forward(x):
        return x * x * x if x.sum().item() > -1e9 else x


class BakedIn(Cube):
    """Reads numbers out of the tensor: a traced graph keeps those of the first call."""

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.tensor((3 * x * x).tolist(), dtype=g.dtype) * g


class FixesSizes(Cube):
    """Fixes sizes, so that its graph serves one size."""

    @staticmethod
    def forward(x):
        return x * x * x * (int(x.shape[0]) / x.shape[0])


class Multiplied(Elementwise):
    """x^3 n, with a number of Python."""

    reads = {0: (0, 1)}

    @staticmethod
    def forward(x, n):
        return x * x * x * n

    @staticmethod
    def vjp_term(i, v, x, n):
        return 3 * x * x * n * v


class KeepsTheNumber(Multiplied):
    """Its graph has the number that it was traced with."""

    @staticmethod
    def forward(x, n):
        return x * x * x * (n.node.hint if isinstance(n, torch.SymInt) else n)


class RoundedConstant(Cube):
    """The slope has a constant of the default dtype."""

    @staticmethod
    def vjp(ctx, g):
        third = torch.ones(1, dtype=torch.int64) / torch.full((1,), 3)
        return Cube.vjp(ctx, g) * third * 3


class OneThread(Cube):
    @staticmethod
    def forward(x):
        return x * x * x if threading.current_thread() is threading.main_thread() else x


class LowersUnderAutocast(Cube):
    @staticmethod
    def forward(x):
        return (x * x * x).to(torch.bfloat16).to(x.dtype) if torch.is_autocast_enabled("cpu") else x * x * x


class LoweredByAutocast(Cube):
    """A matrix product inside, which autocast lowers for float32 alone."""

    @staticmethod
    def forward(x):
        return torch.matmul(x.reshape(-1, 1, 1), (x * x).reshape(-1, 1, 1)).reshape(x.shape).to(x.dtype)


class DoubleTangent(Cube):
    @staticmethod
    def jvp(ctx, t):
        return Cube.jvp(ctx, t).to(torch.float64)


class HalfRules(Cube):
    """Rules computed in half precision."""

    @staticmethod
    def vjp(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g.to(torch.bfloat16).to(g.dtype) * (1 + 2e-2)


class TransformsWrappers(TorchCube):
    """torch's own Function, whose rule uses a transform: of tensors that were saved in one that has ended it fails."""

    @staticmethod
    def backward(ctx, g):
        return torch.func.vjp(lambda x: x * x * x, *ctx.saved_tensors)[1](g)


class MixesElements(Elementwise):
    """A partial derivative that is said to be one of each element, and reads the cotangent of the others."""

    reads = {0: (0,)}

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def vjp_term(i, v, x):
        return 3 * x * x * (v + v.sum(-1, keepdim=True)) / 2


class BothAlways(Function):
    """x * y, which always computes both gradients."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx, t_x, t_y):
        x, y = ctx.saved_tensors
        return t_x * y + x * t_y

    @staticmethod
    def vmap(info, in_dims, x, y):
        return BothAlways.apply(x.movedim(in_dims[0], 0), y.movedim(in_dims[1], 0)), 0


def other_value_with_a_graph(x: Tensor) -> Tensor:
    """An operator whose value is another one where it is differentiated, as of a rule that computes the value again."""
    return Cube.apply(x) * 1.001 if any(are_differentiated([x])) else Cube.apply(x)


def enables_grad(x: Tensor) -> Tensor:
    """An operator that overrules its caller's no_grad."""
    with torch.enable_grad():
        return Cube.apply(x.detach().requires_grad_() if torch.is_inference_mode_enabled() else x)


def records_without_need(x: Tensor) -> Tensor:
    """An operator that saves what no derivative needs."""
    if not x.requires_grad:
        with torch.enable_grad():
            return Cube.apply(x.clone().requires_grad_()).detach()
    return Cube.apply(x)


def recomputed_once(x: Tensor) -> Tensor:
    """A value that changes from call to call: what a checkpoint recomputes is not what it was."""
    recomputed_once.calls += 1
    return Cube.apply(x) * (1 + recomputed_once.calls)


recomputed_once.calls = 0

FIRST = {"backward", "each_input_alone", "func_grad", "func_vjp", "func_jacrev", "batched_cotangents"}
SECOND = {"create_graph", "func_hessian", "reverse_over_reverse", "reverse_over_forward", "jvp_of_grad", "grad_of_jvp"}
BATCHED = {"vmap_equals_loop", "vmap_out_dims_and_chunks", "nested_vmap", "vmap_of_grad", "vmap_of_jvp", "vmap_of_hessian"}

CAUGHT_BY = {
    InexactValue: {"value_is_exact", "value_of_special_numbers", "value_in_every_dtype", "value_in_every_layout"},
    CopiedLayout: {"value_in_every_layout"},
    VjpTwice: FIRST
    | SECOND - {"grad_of_jvp", "reverse_over_forward"}
    | {"adjoint", "gradcheck", "three_of_reverse", "three_mixed", "grad_of_vmap", "vmap_of_backward", "make_fx_of_transforms"}
    | {"compile_forward_and_backward", "compile_grad", "compile_dynamic_shapes", "compile_hessian", "saved_tensor_hooks"}
    | {"checkpointed", "autocast", "gradients_in_every_dtype", "modes_inside_transforms"},
    OverwritesCotangent: {"each_input_alone"},
    DroppedTangent: {"dual_numbers", "func_jvp", "func_jacfwd", "func_linearize", "adjoint", "gradcheck", "forward_over_forward"}
    | {"three_of_forward", "three_mixed", "along_a_curve", "vmap_of_jvp", "compile_jvp", "compile_forward_over_forward"},
    SavedIntermediate: SECOND | {"gradgradcheck", "three_of_reverse", "compile_hessian", "saved_bytes"},
    MixesTheBatch: BATCHED | {"compile_vmap", "compile_vmap_of_grad", "grad_of_vmap", "vmap_of_backward"},
    MixesThroughAThreshold: {"vmap_equals_loop"},
    IgnoresInDims: {"vmap_equals_loop", "nested_vmap"},
    NotSaved: {"in_place_change_is_detected"},
    RestoredFromTheFirstCall: {"saved_bytes"},
    TransformsInTheBackward: {"double_backward_inside_hooks"},
    DependsOnData: {"value_on_meta_and_fake_tensors", "compile_the_operator_itself", "compile_vmap", "export_value"},
    BakedIn: {"make_fx_of_transforms", "compile_grad"},
    FixesSizes: {"compile_dynamic_shapes"},
    KeepsTheNumber: {"compile_changing_numbers"},
    RoundedConstant: FIRST,
    OneThread: {"threads"},
    LowersUnderAutocast: {"autocast"},
    LoweredByAutocast: {"autocast"},
    DoubleTangent: {"gradients_in_every_dtype"},
    HalfRules: {"gradients_in_every_dtype"},
    other_value_with_a_graph: {"value_with_a_graph", "value_is_exact"},
    enables_grad: {"modes_around", "modes_inside_transforms"},
    recomputed_once: {"checkpointed"},
    records_without_need: {"saved_bytes"},
    SharedTangent: {"tangents_are_not_shared"},
    TransformsWrappers: {"vmap_of_vjp"},
    MixesElements: {"per_sample_norms", "adjoint"},
    BothAlways: {"unneeded_gradients_cost_nothing"},
}


def subject(operator) -> Subject:
    """The operator under test, with x^3 as every oracle."""
    call = operator.apply if isinstance(operator, type) else operator
    cube = lambda x: x * x * x  # noqa: E731
    if operator in (Multiplied, KeepsTheNumber):
        multiplied = lambda x, n: x * x * x * n  # noqa: E731
        return Subject(operator=call, inputs=(numbers(4, 3), 3), surrogate=multiplied, value=multiplied, smooth_forwards={})
    if operator in (BothAlways, torch.mul):
        return Subject(operator=call, inputs=(numbers(4, 3), numbers(4, 3, seed=1)), surrogate=torch.mul, smooth_forwards={})
    return Subject(operator=call, inputs=(numbers(4, 3, scale=1.0),), surrogate=cube, value=cube, smooth_forwards={})


# Those of operators that draw have tests of their own: `test_randomness`.
NAMES = [name for name in CHECKS if name not in GROUPS["randomness"]]


@pytest.mark.short(of=3)
@pytest.mark.parametrize("name", NAMES)
def test_right_operator_passes(name):
    """Every check passes a right operator."""
    if name == "gradient_by_differences":
        return CHECKS[name](replace(subject(Cube), smooth_forwards=None, surrogate=None))
    right = {"unneeded_gradients_cost_nothing": torch.mul, "compile_changing_numbers": Multiplied}
    try:
        CHECKS[name](subject(right.get(name, Cube)))
    except TorchLimit as limit:
        pytest.skip(str(limit))


@pytest.mark.short(of=3)
@pytest.mark.parametrize(
    ("operator", "name"),
    [(o, n) for o, names in CAUGHT_BY.items() for n in sorted(names)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_broken_operator_is_caught(operator, name):
    """The check raises on the broken operator."""
    with pytest.raises(Exception):  # noqa: B017  # an AssertionError, or torch's own word for what it cannot run
        CHECKS[name](subject(operator))


@pytest.mark.parametrize(
    ("operator", "name"),
    [(o, n) for o, names in CAUGHT_BY.items() for n in TOGETHER if n in names],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_broken_operator_is_caught_among_others(operator, name):
    """The check raises on the broken operator in one graph with right ones before and after it."""
    with pytest.raises(Exception):  # noqa: B017
        CHECKS[name](in_one_graph(name, list(map(subject, (Cube, operator, Cube)))))


def test_broken_operator_is_named():
    """Failures of several operators that run together name the broken one."""
    with pytest.raises(AssertionError, match="VjpTwice"):
        check_together("compile_grad", list(map(subject, (Cube, VjpTwice))))


def test_together_are_all_of_them():
    """Outputs, inputs and batches of operators that run together stand side by side, with the sum as value."""
    subjects = list(map(subject, (Cube, torch.mul)))
    tensors = [t for s in subjects for t in s.tensors]
    flat, total = together(subjects), summed(subjects)
    outputs = torch.cat([s.op(*s.tensors).flatten() for s in subjects])
    for function in (flat.op, flat.reference):
        assert_close(function(*flat.tensors), outputs)
    for function in (total.op, total.reference):
        assert_close(function(*tensors), sum(scalar(s.op)(*s.tensors) for s in subjects))
    assert [t.shape for t in total.repeated(2)] == [(8, 3)] * 3
    mixed = replace(subjects[0], inputs=(numbers(4), numbers(4, 3, 2), numbers(3), numbers()))
    assert [t.shape for t in mixed.repeated(2)] == [(8,), (8, 3, 2), (3,), ()]
    (batch,) = flat.batch(-1, 2)
    assert batch.shape == (36, 2)
    for i, column in enumerate(batch.unbind(-1)):
        assert torch.equal(column, torch.cat([t[i].flatten() for s in subjects for t in s.batch(0, 2)]))


@pytest.mark.short
@pytest.mark.parametrize(
    ("alone", "among_others", "raised"),
    [
        (None, None, None),
        (None, AssertionError, AssertionError),
        (None, TorchLimit, TorchLimit),
        (TorchLimit, TorchLimit, None),
        (TorchLimit, AssertionError, AssertionError),
    ],
)
def test_what_fails_only_together_fails(monkeypatch, alone, among_others, raised):
    """An operator that fails only together with others fails, except where torch cannot do it for one of them either."""

    def check(s):
        error = among_others if s.inputs[0].ndim == 1 else alone
        if error is not None:
            raise error("no")

    monkeypatch.setitem(CHECKS, "compile_grad", check)
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        check_together("compile_grad", list(map(subject, (Cube, Cube))))


@pytest.mark.long
@pytest.mark.parametrize("name", TOGETHER)
def test_right_operators_pass_together(name):
    """Right operators pass in one graph."""
    check_together(name, [subject(Cube), subject(torch.mul)])


def test_every_check_catches_something():
    """A check that no broken operator fails is not a check."""
    assert set().union(*CAUGHT_BY.values(), {"gradient_by_differences"}) == set(NAMES)
