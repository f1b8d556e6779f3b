"""Sizes and numbers that data decides, in compiled and exported code: every operator compiles where plain torch does."""

import functools
import inspect
import sys

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

import fullgrad
from fullgrad import blackbox, implicit, losses, quantizers, safe, sampling, soft, spikes
from fullgrad._dispatch import unknown
from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import close, scalar

EVERYDAY = [c for c in CASES if not c.exhaustive and c.tensors[0].ndim]
MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (blackbox, implicit, losses, quantizers, safe, sampling, soft, spikes)
}
MODULES[""] = fullgrad

# Of what a case is made that torch, too, does not compile for such a size. Where torch learns it, the case is tested.
PLAIN = {
    "cummax": lambda x: torch.cummax(x, -1).values,
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "prod": lambda x: x.prod(-1),
    "matmul": lambda x: x @ torch.ones_like(x[:2]).mT,
    "loop": lambda x: sum(x[..., i] for i in range(x.shape[-1])),
}
LIMITED = {
    "soft.all": ("prod", "prod"),
    "soft.any": ("prod", "prod"),
    "averages by scans": ("cummax", "cummax"),
    "averages by prefix sums": ("cummax", "cummax"),
    "soft.sort lapsum": ("cummax", "cummax"),
    "sampling.gumbel_rao": ("logsumexp", "logsumexp"),
    "sampling.gumbel_topk": ("logsumexp", "logsumexp"),
    "sampling.k_subset_st": ("logsumexp", "loop"),
    "soft.subset_marginals": ("logsumexp", "loop"),
    "losses.spearman": ("cummax", "cummax"),
    "soft.take": ("", "matmul"),
    "argmin_st sorting_network smooth": ("", "loop"),
    "soft.topk sorting_network c2": ("", "loop"),
}
# Columns of these cases cannot be left out: blocks have a size, matrices are square.
WHOLE_ROWS = ("quantizers.mx_quantize", "sampling.gumbel_sinkhorn")
# Numbers that choose a formula or a format, which are constants of a graph, and those that torch's own functions do not take.
CONSTANTS = {"dim", "k", "samples", "tie", "at_zero", "terms", "neighbor_radius", "max_spikes"}
CONSTANTS |= {"levels", "bits", "quant_min", "quant_max", "block_size", "max_exponent", "eps of fsq"}
CONSTANTS |= {"nan", "posinf", "neginf", "norm_type", "ord", "q", "rtol", "atol", "gamma", "zeta", "alpha of dspike"}
# Those of functions that are one node, which are constants of it.
CONSTANTS |= {"sigma", "lam", "noise_scale", "step of finite_difference"}


def groups(cases, size=8):
    return [pytest.param(cases[i : i + size], id=f"from {cases[i].name}") for i in range(0, len(cases), size)]


def some_rows(case, dim):
    """The inputs of a case; in those of the first one's size a mask leaves out the second row, or column."""
    size = case.tensors[0].shape[dim]
    mask = torch.arange(size) != 1

    def masked(mask, *tensors):
        inputs = list(case.inputs)
        for i, t in zip(case.diff_argnums, tensors, strict=True):
            inputs[i] = t
        has_size = [isinstance(v, Tensor) and v.ndim > 0 and v.shape[dim] == size for v in inputs]
        return [(v[mask] if dim == 0 else v[..., mask]) if has else v for v, has in zip(inputs, has_size, strict=True)]

    return mask, masked


def of_some_rows(case, function, dim):
    """The function of such inputs."""
    _, masked = some_rows(case, dim)

    def outputs(mask, *tensors):
        return one_tensor(function(*masked(mask, *tensors)))

    return outputs


def one_tensor(y):
    """The floating tensors of an output as one, as in `Subject.bind`."""
    return y if isinstance(y, Tensor) else torch.cat([v.flatten() for v in y if v is not None and v.is_floating_point()])


def number_of(function):
    """A scalar that depends on all that a function returns."""
    return lambda *arguments: scalar(lambda: function(*arguments))()


@functools.cache
def torch_compiles(name, dim):
    """Whether torch compiles a plain function, and its gradient, of a tensor of such a size."""
    if not name:
        return True
    x, mask = torch.ones(3, 4, requires_grad=True), torch.arange(3 if dim == 0 else 4) != 1
    torch.compiler.reset()
    try:
        y = torch.compile(lambda x: PLAIN[name](x[mask] if dim == 0 else x[..., mask]), backend="aot_eager", fullgraph=True)(x)
        torch.autograd.grad(y.sum(), x)
    except Exception:
        return False
    return True


def compiles(case, dim):
    if case.tensors[0].shape[dim] < 2 or (dim and case.name in WHOLE_ROWS):
        return False
    return torch_compiles(LIMITED.get(case.name, ("", ""))[dim], dim)


def total(functions, counts):
    """The sum of functions, each of the next tensors."""

    def sum_of_all(*tensors):
        result, start = torch.zeros((), dtype=torch.float64), 0
        for f, n in zip(functions, counts, strict=True):
            result = result + f(*tensors[start : start + n])
            start += n
        return result

    return sum_of_all


def check_compiled(functions, arguments, leaves, backend):
    """Value and gradient of the functions together, in one graph, are those of eager code."""
    counts = [len(a) + len(t) for a, t in zip(arguments, leaves, strict=True)]
    given = [v for a, t in zip(arguments, leaves, strict=True) for v in (*a, *t)]
    wanted = [v for t in leaves for v in t]
    f = total(functions, counts)
    found = []
    for g in (torch.compile(f, backend=backend, fullgraph=True), f):
        torch.manual_seed(0)
        y = g(*given)
        found.append((y.detach(), *torch.autograd.grad(y, wanted, allow_unused=True, materialize_grads=True)))
    close(*found)


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("cases", groups(EVERYDAY, 4))
def test_sizes_that_data_decides(cases, dim, backend):
    """Operators of some rows, or columns, which a mask chooses, have the value and the gradient of eager code."""
    cases = [c for c in cases if compiles(c, dim)]
    masks = [some_rows(c, dim)[0] for c in cases]
    functions = [number_of(of_some_rows(c, c.operator, dim)) for c in cases]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check_compiled(functions, [(m,) for m in masks], [c.leaves() for c in cases], backend)


def call_of(case):
    """The public function that a case calls, and its arguments, each by its name; None where it calls none of `covers`."""
    functions = {}
    for name in case.covers:
        module, _, short = name.rpartition(".")
        function = getattr(MODULES[module], short)
        if inspect.isfunction(function):
            functions[short] = function
    found = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_name in functions and not found:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if names == tuple(inspect.signature(functions[code.co_name]).parameters):
                found.append((functions[code.co_name], {n: frame.f_locals[n] for n in names}))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        case.operator(*case.inputs)
    finally:
        sys.setprofile(before)
    return found[0] if found else None


def with_numbers(function, arguments):
    """Names of the tensors among the arguments, of which the first stays one, and of the numbers: all that may be a number."""
    tensors = [n for n, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point()]
    for name in tensors[1:]:
        number = {**arguments, name: arguments[name].flatten()[0].item()}
        try:
            call(function, number)
        except (TypeError, ValueError, RuntimeError):
            continue
        arguments = number
    constants = {c.partition(" of ")[0] for c in CONSTANTS if c.partition(" of ")[2] in ("", function.__name__)}
    numbers = [n for n, v in arguments.items() if type(v) in (int, float) and n not in constants]
    return arguments, [n for n in tensors if isinstance(arguments[n], Tensor)], numbers


def call(function, arguments):
    bound = inspect.BoundArguments(inspect.signature(function), arguments)
    return function(*bound.args, **bound.kwargs)


@pytest.mark.exhaustive(but=1)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize("cases", groups(EVERYDAY))
def test_numbers_that_data_decides(cases, backend):
    """Operators whose numbers come from `item()` have the value and the gradient of eager code."""
    functions, numbers, leaves = [], [], []
    for case in cases:
        found = call_of(case)
        if found is None:
            continue
        function, arguments = found
        arguments, of_tensors, of_numbers = with_numbers(function, arguments)

        def outputs(values, *tensors, case=(function, arguments, of_tensors, of_numbers)):
            function, arguments, of_tensors, of_numbers = case
            given = {n: values[i].item() for i, n in enumerate(of_numbers)}
            given = {n: int(v) if type(arguments[n]) is int else v for n, v in given.items()}
            return one_tensor(call(function, {**arguments, **given, **dict(zip(of_tensors, tensors, strict=True))}))

        if of_numbers:
            functions.append(number_of(outputs))
            numbers.append((torch.tensor([float(arguments[n]) for n in of_numbers], dtype=torch.float64),))
            leaves.append([arguments[n].detach().clone().requires_grad_() for n in of_tensors])
    if not functions:
        pytest.skip("no numbers")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check_compiled(functions, numbers, leaves, backend)


class Module(torch.nn.Module):
    """A function as a module, which torch.export takes."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


@pytest.mark.exhaustive(but=3)
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("cases", groups(EVERYDAY, 4))
def test_export_of_some_rows(cases, dim):
    """An exported operator of some rows, which a mask chooses, has the value of eager code."""
    with torch.no_grad():
        for case in cases:
            if compiles(case, dim):
                arguments = (some_rows(case, dim)[0], *case.tensors)
                f = of_some_rows(case, case.operator, dim)
                exported = export(Module(f), arguments).module()
                torch.manual_seed(0)
                expected = f(*arguments)
                torch.manual_seed(0)
                close(exported(*arguments), expected)


# Loops over a size, and matrices that are square.
FIXED = {"soft.topk sorting_network c2", "soft.subset_marginals", "sampling.k_subset_st", "sampling.gumbel_sinkhorn"}
FIXED |= {"argmin_st sorting_network smooth"}


@pytest.mark.exhaustive(but=3)
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("cases", groups(EVERYDAY, 4))
def test_export_fixes_no_size(cases, dim):
    """An exported operator serves every number of rows, or columns."""
    with torch.no_grad():
        for case in cases:
            size = case.tensors[0].shape[dim]
            if size < 2 or (dim and case.name in FIXED):
                continue
            shapes = tuple({dim % t.ndim: Dim.DYNAMIC} if t.ndim and t.shape[dim] == size else None for t in case.tensors)
            exported = export(Module(case.op), case.tensors, dynamic_shapes=(shapes,))
            assert all(bounds.lower < bounds.upper for bounds in exported.range_constraints.values()), case.name


def test_questions_outside_a_graph_are_plain_comparisons():
    """Outside a graph each question is the plain comparison; a number that fails a rule raises."""
    for question in (unknown.surely, unknown.perhaps, unknown.holds):
        assert question(3 > 2) is True
        assert question(3 < 2) is False
    assert unknown.same_shape((2, 3), (2, 3))
    assert not unknown.has_shape((2, 3), (2, 1))
    x = torch.ones(3)
    with pytest.raises(ValueError, match="must be positive and finite"):
        fullgrad.step_quantize(x, float("nan"))


@pytest.mark.parametrize(
    ("function", "value"),
    [
        pytest.param(lambda x, n: fullgrad.step_quantize(x, n), -1.0, id="step"),
        pytest.param(lambda x, n: soft.relu(x, n), float("inf"), id="softness"),
        pytest.param(lambda x, n: quantizers.fake_quantize(x, n, 0, -8, 7), 0.0, id="scale"),
    ],
)
def test_a_rule_is_checked_when_the_code_runs(function, value):
    """A number that breaks a rule raises also in compiled code that could not know it before."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lambda x, n: function(x, n.sum().item()), backend="aot_eager", fullgraph=True)
        compiled(torch.ones(3), torch.tensor([0.5]))
        with pytest.raises(RuntimeError):
            compiled(torch.ones(3), torch.tensor([value]))


ROWS = {
    "sort": lambda x: soft.sort(x)[0],
    "sort_st": lambda x: fullgrad.sort_st(x)[0],
    "rank": soft.rank,
    "max by neuralsort": lambda x: soft.max(x, -1, method="neuralsort")[0],
    "quantile": lambda x: soft.quantile(x, 0.3, -1),
    "topk": lambda x: soft.topk(x, 2)[0],
    "entmax": soft.entmax,
    "proj_simplex": soft.proj_simplex,
    "proj_capped_simplex": lambda x: soft.proj_capped_simplex(x, 2.0),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("function", ROWS.values(), ids=ROWS)
def test_one_row_of_a_size_that_data_decides(function):
    """The only dimension is of unknown size."""
    x, mask = torch.tensor([0.3, -1.0, 2.0, 0.5, 1.1]), torch.tensor([True, False, True, True, True])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x, mask: function(x[mask]), backend="aot_eager", fullgraph=True)
        close(compiled(x, mask), function(x[mask]))
        close(compiled(x, ~mask | (x > 1)), function(x[~mask | (x > 1)]))


def test_rows_that_a_mask_leaves_empty_raise_when_the_code_runs():
    """Rows that a mask leaves empty raise where an operator needs an element."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        f = torch.compile(lambda x, mask: fullgrad.clamp_by_linear(x[mask]), backend="aot_eager", fullgraph=True)
        x = torch.randn(4)
        close(f(x, x > -9), fullgrad.clamp_by_linear(x))
        with pytest.raises(RuntimeError):
            f(x, x > 9)
