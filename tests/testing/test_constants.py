"""Constant tensors among the inputs, such as indices, masks and grids: the kit batches them, and gives them to each check."""

import pytest
import torch

import fullgrad
from fullgrad.testing import GROUPS, OperatorError, check_operator
from fullgrad.testing._report import FAILED, NOT_APPLICABLE, PASSED
from fullgrad.testing._subject import Subject

X = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([[0, 2, 2, 1, 0, 1, 2], [6, 5, 4, 3, 2, 1, 0], [0, 0, 0, 3, 3, 3, 3]])
# In the others the constants are shared, or the value does not matter.
BATCHING = [name for name in GROUPS["batching"] if name not in ("per_sample_norms", "vmap_of_vjp")]


class Gather(fullgrad.Function):
    """``x.gather(-1, i)``; a subclass has another rule of the index."""

    @staticmethod
    def forward(x, i):
        return x.gather(-1, i)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx, g):
        x, i = ctx.saved_tensors
        return torch.zeros_like(x).scatter_add(-1, i, g), None

    @staticmethod
    def jvp(ctx, t, _):
        return t.gather(-1, ctx.saved_tensors[1])

    @classmethod
    def vmap(cls, info, in_dims, x, i):
        n = info.batch_size
        x = x.expand(n, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        return cls.apply(x, cls.batched(n, i, in_dims[1], in_dims[0] is not None)), 0

    @classmethod
    def batched(cls, n, i, dim, x_is_batched):
        """The index of each sample in front."""
        return i.expand(n, *i.shape) if dim is None else i.movedim(dim, 0)


class FirstIndex(Gather):
    """All samples have the index of the first."""

    @classmethod
    def batched(cls, n, i, dim, x_is_batched):
        i = Gather.batched(n, i, dim, x_is_batched)
        return i[:1].expand_as(i)


class FirstIndexAlone(FirstIndex):
    """The same, where the index alone has samples."""

    @classmethod
    def batched(cls, n, i, dim, x_is_batched):
        return (Gather if x_is_batched else FirstIndex).batched(n, i, dim, x_is_batched)


class InnerIndex(Gather):
    """The samples of an inner batch have the index of the first, those of an outer one have their own."""

    @classmethod
    def batched(cls, n, i, dim, x_is_batched):
        return (FirstIndex if n == 2 else Gather).batched(n, i, dim, x_is_batched)


class Where(Gather):
    """``where(m, x, 0)`` of a mask."""

    @staticmethod
    def forward(x, m):
        return x.where(m, 0)

    @staticmethod
    def vjp(ctx, g):
        return g.where(ctx.saved_tensors[1], 0), None

    @staticmethod
    def jvp(ctx, t, _):
        return t.where(ctx.saved_tensors[1], 0)


class FirstMask(Where):
    """All samples have the mask of the first."""

    batched = FirstIndex.batched


class FirstGrid(Where):
    """x times a constant, which all samples have from the first."""

    batched = FirstIndex.batched

    @staticmethod
    def forward(x, c):
        return x * c

    @staticmethod
    def vjp(ctx, g):
        return g * ctx.saved_tensors[1], None

    @staticmethod
    def jvp(ctx, t, _):
        return t * ctx.saved_tensors[1]


def interpolate(x, grid, values):
    """A table of values at the points of a grid, by lines."""
    k = torch.searchsorted(grid, x.detach().contiguous()).clamp(1, grid.shape[-1] - 1)
    low, high, y, z = (t.expand(*x.shape[:-1], -1).gather(-1, i) for t in (grid, values) for i in (k - 1, k))
    return y + (x - low) / (high - low) * (z - y)


GRID = torch.arange(-2.0, 3.0)


@pytest.mark.parametrize(
    ("operator", "constant", "names"),
    [
        (FirstIndex, INDEX, BATCHING),
        (FirstIndexAlone, INDEX, ["vmap_equals_loop", "vmap_of_grad"]),
        (InnerIndex, INDEX, ["nested_vmap"]),
        (FirstMask, X > 0, BATCHING),
        (FirstIndex, INDEX[:, :1], ["vmap_equals_loop"]),  # of which another order is the same
        (FirstGrid, X.abs(), BATCHING),
    ],
)
def test_a_wrong_rule_of_a_constant_is_caught(operator, constant, names):
    """A `vmap` rule that mixes up the samples of an index, a mask, or a constant, though each call alone is right."""
    report = check_operator(operator.apply, X, constant, constant=1, checks=names, raise_exception=False)
    assert set(report.failures) == set(names)
    alone = ["reverse", "forward", "second order"]
    assert not check_operator(operator.apply, X, constant, constant=1, checks=alone).failures


RIGHT = {
    "gather": (lambda x, i: x.gather(-1, i), (X, INDEX)),
    "rule": (Gather.apply, (X, INDEX)),
    "columns": (lambda x, i: x[:, i], (X, INDEX[0])),
    "where": (lambda x, m: torch.where(m, x, 0), (X, X > 0)),
    "mask of a rule": (Where.apply, (X, X > 0)),
    "a number": (lambda x, n: x * n, (X, torch.tensor(2))),
    "structures": (lambda d: d["x"].gather(-1, d["i"]), ({"i": INDEX, "x": X},)),
    "grid": (interpolate, (X, GRID, X[0, :5])),
}


@pytest.mark.parametrize("name", list(RIGHT))
def test_right_operators_pass(name):
    """Each check of values and batches, with an index, a mask, a number, or a grid that is constant."""
    operator, inputs = RIGHT[name]
    constant = "grid" if name == "grid" else ()
    checks = ["value", "batching", "gradcheck", "machinery"]
    report = check_operator(
        operator, *inputs, surrogate=operator, value=operator, smooth_forwards={}, constant=constant, checks=checks
    )
    others = {check for check in report if report[check].status != PASSED}
    assert others <= {"gradient_by_differences", "unneeded_gradients_cost_nothing", "modes_around"}  # the last with torch 2.11
    assert "constant" not in report.not_checked


@pytest.mark.long
@pytest.mark.parametrize("name", list(RIGHT))
def test_right_operators_pass_everything(name):
    """All checks, compiled code of other sizes among them."""
    operator, inputs = RIGHT[name]
    constant = "grid" if name == "grid" else ()
    check_operator(operator, *inputs, surrogate=operator, value=operator, smooth_forwards={}, constant=constant)


def test_samples_of_constants():
    """They differ, in numbers that are there or smaller, and those that the operator refuses are left out."""

    def ordered(x, i):
        if bool((i.diff() < 0).any()):
            raise ValueError("an order is needed")
        return x[..., i]

    def samples(operator, constant):
        return [v.tolist() for (v,) in Subject(operator, (X, constant)).other_constants]

    assert samples(lambda x, i: x[:, i], torch.tensor([0, 3, 5])) == [[0, 3, 5], [5, 0, 3], [3, 5, 0], [5, 3, 0]]
    assert samples(lambda x, i: x[:, i], torch.tensor(5)) == [5, 4, 3, 2]
    assert samples(lambda x, i: x[:, i], torch.tensor([4, 4])) == [[4, 4], [3, 3], [2, 2], [1, 1]]
    assert samples(ordered, torch.tensor([0, 3, 5])) == [[0, 3, 5], [0, 2, 4], [0, 1, 3], [0, 0, 2]]
    column = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.complex64)
    assert samples(lambda x, c: x * c, column) == [(column * 2.0**-step).tolist() for step in range(4)]


def test_what_batches_leave_unchecked_is_told():
    """Where samples have the same constant, or torch cannot batch by it."""
    gather = lambda x, i: x.gather(-1, i)  # noqa: E731
    report = check_operator(gather, X, torch.zeros_like(INDEX), checks=["batching"])
    told = "a sample of its own of input 1, as the operator takes no other order of the numbers that were given"
    assert report.not_checked["constant"] == told
    assert f"not checked: {told}" in report.gaps
    report = check_operator(lambda x, m: x[m], X, X > 0, checks=["vmap_equals_loop"])
    assert report.not_checked["constant"].startswith("batches of integers, bools and constants, which torch cannot make: ")
    one_hot = lambda x, i: x * torch.nn.functional.one_hot(i)  # noqa: E731
    args = (X[:, :3], torch.tensor([0, 1, 2]))
    assert "one_hot" in check_operator(one_hot, *args, surrogate=one_hot, checks=["batching"]).not_checked["constant"]
    with pytest.raises(OperatorError, match="one_hot"):
        check_operator(one_hot, *args, surrogate=lambda x, i: x * (i[:, None] == torch.arange(3)), checks=["batching"])


def test_tensors_without_data():
    """Indices and masks have none either; a tensor that the operator captures makes the check not apply, other faults fail."""
    name = "value_on_meta_and_fake_tensors"

    def found(operator, *inputs):
        return check_operator(operator, *inputs, surrogate=operator, checks=[name], raise_exception=False)[name]

    table = torch.randn(7, dtype=torch.float64)
    for operator in (lambda x: x * table, lambda x: table.sin().where(x > 0, x)):
        captures = found(operator, X)
        assert captures.status == NOT_APPLICABLE
        assert (
            captures.message == "tensors that the operator captures have data where the inputs have none: pass them as arguments"
        )
    on_cpu = found(lambda x, i: torch.zeros(3, 7, dtype=x.dtype).scatter_add(-1, i, x), X, INDEX)
    reads = found(lambda x: x * table.to(x.device) if x.sum() > 0 else x, X)
    assert (on_cpu.status, reads.status) == (FAILED, FAILED)
    masked = found(lambda x, m: x[m], X, X > 0)
    assert (masked.status, masked.message.partition(": ")[0]) == (NOT_APPLICABLE, f"torch {torch.__version__} cannot do this")


def test_special_numbers_in_the_shapes_of_the_inputs():
    """One at a time, and all together: operators with shapes of their own pass, and wrong ones fail."""
    name, w = "value_of_special_numbers", torch.randn(7, 2)

    def status(operator, *inputs, value):
        return check_operator(operator, *inputs, value=value, checks=[name], raise_exception=False)[name]

    for f, inputs in (
        (lambda x, w: x @ w, (X, w)),
        (lambda x: x[:, :3] * x[:, 3:6], (X,)),
        (torch.abs, (X[0, 0],)),
        (torch.add, (X, X)),
    ):
        assert status(f, *inputs, value=f).status == PASSED
    without_nan = lambda x, w: x.nan_to_num(0.0, torch.inf, -torch.inf) @ w  # noqa: E731
    assert status(without_nan, X, w, value=torch.matmul).status == FAILED
    assert status(lambda x: x + 0.0, X, value=lambda x: x).message.startswith("a zero has the wrong sign")
    assert status(lambda x: torch.where(x > 3.0, 3.0, x), X[0, 0], value=lambda x: x).status == FAILED

    def refuses(x):
        if not bool(x.isfinite().all()) or bool((x.abs() > 9).any()) or bool((x.abs() % 0.5 == 0).any() | (x.abs() < 1e-9).any()):
            raise ValueError("special")
        return x.sin()

    for value in (refuses, torch.sin):
        found = status(refuses, X, value=value)
        assert (found.status, found.message) == (
            NOT_APPLICABLE,
            "the operator, or the plain function, refuses each special number",
        )
    positive = lambda x: torch.linalg.cholesky(x.diag_embed())  # noqa: E731  # whose error is a RuntimeError
    assert status(positive, X.abs() + 1, value=lambda x: x.sqrt().diag_embed()).status == FAILED
    assert status(torch.sin, X[:0], value=torch.sin).status == NOT_APPLICABLE


def test_a_floating_input_may_be_constant():
    """By position or name, in structures too; it has no derivative, and the dtype of the others."""
    inputs = (X, GRID, X[0, :5])
    checks = ["func_grad", "value_in_every_dtype", "gradients_in_every_dtype", "vmap_equals_loop"]
    for constant in (1, -2, "grid", [1], ["grid"]):
        check_operator(interpolate, *inputs, surrogate=interpolate, value=interpolate, constant=constant, checks=checks)
    assert check_operator(interpolate, *inputs, checks=["gradcheck"], smooth_forwards={}, constant="grid").failures == {}
    doubled = lambda pair: pair["x"] * pair["c"].detach()  # noqa: E731  # whose derivative by c is 0
    product = lambda x, d: x * d["c"].detach() * d["k"]  # noqa: E731
    assert check_operator(
        doubled, {"x": X, "c": X}, surrogate=lambda pair: pair["x"] * pair["c"], checks=["func_grad"], raise_exception=False
    ).failures
    check_operator(product, X, {"c": X, "k": 2}, surrogate=lambda x, d: x * d["c"] * d["k"], constant="d", checks=["func_grad"])
    layer = torch.nn.Linear(7, 2)
    frozen = lambda x, m: torch.func.functional_call(m, {k: v.detach() for k, v in m.named_parameters()}, (x,))  # noqa: E731
    check_operator(frozen, X, layer, surrogate=lambda x, m: m(x), constant=1, checks=["reverse"])
    for wrong in (3, -4, "table", [0, "table"]):
        with pytest.raises(ValueError, match=r"`constant` must have positions of the 3 inputs"):
            check_operator(interpolate, *inputs, constant=wrong)
    with pytest.raises(ValueError, match="or one of the names x, grid, values, got 'table'"):
        check_operator(interpolate, *inputs, constant="table")
    with pytest.raises(ValueError, match="needs a floating tensor among the inputs"):
        check_operator(torch.sin, X, constant=0)


@fullgrad.testing.operator(inputs=[X, GRID, X[0, :5]], surrogate=interpolate, constant="grid", checks=["reverse", "vmap_of_grad"])
def test_a_constant_of_a_test(x, grid, values):
    """The decorator of tests has the argument, too."""
    return interpolate(x, grid, values)
