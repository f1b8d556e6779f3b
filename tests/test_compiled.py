"""torch.compile of operators: kernels, what is kept for the backward, and the cache of compiled graphs.

That nothing breaks the graph and that values and gradients are right is proved for every operator in `test_transforms`.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch._inductor.config as inductor
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch.func import grad, vmap

import fullgrad
from fullgrad import quantizers, soft, spikes
from fullgrad._core.fast import ENTRIES
from fullgrad._dispatch import compile_cache
from fullgrad._suite.bench._compiled import composite, first_gradient, old_style, quantize, saved
from fullgrad._suite.cases import CASES
from tests.operators import flushed_denormals, saved_tensors, storage_bytes

ELEMENTWISE = [c for c in CASES if c.elementwise and c.of == "elements"]


def numbers_of(case):
    """One element of each of the other inputs: as a number, or as a tensor where the operator takes no number."""
    tensors = [v.flatten()[0].float() if isinstance(v, torch.Tensor) else v for v in case.inputs[1:]]
    numbers = [v.item() if isinstance(v, torch.Tensor) else v for v in tensors]
    try:
        case.operator(torch.zeros(1), *numbers)
    except TypeError:
        return tensors
    return numbers


def chain(cases):
    """The operators of the cases one after another, each with numbers for its other inputs; the input is added on the way."""
    steps = [(case.operator, numbers_of(case)) for case in cases]

    def chain(x):
        for operator, rest in steps:
            x = operator(x, *rest) + 0.5 * x
        return x

    return chain


def chains(exhaustive):
    """All elementwise cases, six to a chain, every chain with some of each family."""
    cases = [c for c in ELEMENTWISE if c.exhaustive == exhaustive]
    count = -(-len(cases) // 6)
    return [pytest.param(part, id=", ".join(c.name for c in part)) for part in (cases[i::count] for i in range(count))]


def chained(chain, size=64):
    """Value and gradient of a chain of operators."""
    x = torch.linspace(-2.01, 2, size, requires_grad=True)
    y = chain(x)
    return y.detach(), *torch.autograd.grad(y, x, torch.linspace(-1, 1, size))


def inputs_of(case):
    """The case's inputs in float32, as leaves."""
    return [v.float().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in case.inputs]


def eagerly_kept(case) -> float:
    """Bytes per element of the output that eager autograd keeps, without the output."""
    with saved_tensors() as kept:
        y = case.operator(*inputs_of(case))
    return storage_bytes(kept, but=(y,)) / y.numel()


# --- What is kept -----------------------------------------------------------------------------------------------------


def check_kept(case):
    kept = saved(case.operator, *inputs_of(case))
    assert kept["masks"] == 0, kept
    # Two inputs may be kept as one number that is made of them: fewer bytes.
    assert kept["numbers"] == 0 or sum(kept.values()) < eagerly_kept(case), kept


@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if not c.exhaustive], ids=lambda c: c.name)
@pytest.mark.sampled(of=3)
def test_compiled_code_keeps_inputs_and_no_masks(case):
    """The compiled forward of an elementwise operator keeps inputs for the backward, or fewer bytes than those."""
    check_kept(case)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if c.exhaustive], ids=lambda c: c.name)
def test_compiled_code_keeps_inputs_and_no_masks_in_every_mode(case):
    """The compiled forward keeps inputs and no masks in all modes and variants."""
    check_kept(case)


def check_chain_kept(cases):
    kept = saved(chain(cases), torch.randn(4096, requires_grad=True))
    assert kept["inputs"] < 4.1, "the input and numbers"
    assert kept["masks"] == 0
    assert kept["numbers"] < 0.1, "numbers made of numbers"


@pytest.mark.long(but=1)
@pytest.mark.parametrize("cases", chains(False))
@pytest.mark.sampled(of=3)
def test_a_chain_keeps_its_input(cases):
    """A chain of operators keeps only the input."""
    check_chain_kept(cases)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cases", chains(True))
def test_a_chain_keeps_its_input_in_every_mode(cases):
    """A chain keeps only the input in all modes and variants."""
    check_chain_kept(cases)


def test_masks_are_seen():
    """The same count finds the mask that torch's own clamp keeps, and the number that a product with a constant does."""
    x = torch.randn(64, requires_grad=True)
    assert saved(lambda x: torch.clamp(x, -1, 1), x) == {"inputs": 0, "numbers": 0, "masks": 1}
    assert saved(lambda x: x * x.detach().cumsum(0), x)["numbers"] == 4


def test_an_operator_of_a_user_keeps_what_it_saves():
    """The mask of a user's operator is computed in the backward, as its rules say."""

    class Window(fullgrad.Function):
        """1 where x > 0, with the derivative 1 where abs(x) < 1."""

        recompute_in_backward = True

        @staticmethod
        def forward(x):
            return (x > 0).to(x.dtype)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def vjp(ctx, g):
            (x,) = ctx.saved_tensors
            return torch.where(x.abs() < 1, g, 0)

        jvp = vjp

        @staticmethod
        def vmap(info, in_dims, x):
            return Window.apply(x), in_dims[0]

    kept = saved(Window.apply, torch.randn(64, requires_grad=True))
    assert kept == {"inputs": 4.0, "numbers": 0.0, "masks": 0.0}


def test_the_chains_have_every_elementwise_operator():
    """Each public class runs in a chain, or in a case that is not elementwise."""
    chained = classes_used(lambda: [chain([case])(torch.randn(8, requires_grad=True)) for case in ELEMENTWISE])
    others = classes_used(lambda: [case.op(*case.leaves()) for case in CASES if case.name not in {c.name for c in ELEMENTWISE}])
    assert public_operators() - chained - others == set()
    assert {fullgrad.Round, fullgrad.SoftRound, fullgrad.Clamp, fullgrad.Scale} <= chained
    assert {fullgrad.ClampByLinear, fullgrad.ClipGradNorm, fullgrad.MaskGrad} & chained == set()


def public_operators():
    return {cls for cls, _ in compile_cache._nodes.values() if getattr(fullgrad, cls.__name__, None) is cls}


def classes_used(function):
    """The operators that are called while the function runs."""
    used: set[type] = set()
    with contextlib.ExitStack() as patches:
        for cls in public_operators():
            spy = lambda *a, cls=cls, apply=cls.apply: used.add(cls) or apply(*a)  # noqa: E731
            patches.enter_context(mock.patch.object(cls, "apply", staticmethod(spy)))
        function()
    return used


# --- Kernels ----------------------------------------------------------------------------------------------------------


def check_kernels(chain):
    metrics.reset()
    with inductor.patch(fx_graph_cache=False):
        actual = chained(torch.compile(chain, fullgraph=True))
    assert metrics.generated_kernel_count == 2, "one forward and one backward"
    for a, e in zip(actual, chained(chain), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_a_chain_is_one_kernel_each_way():
    """Six elementwise operators are one kernel forward and one backward."""
    check_kernels(quantize)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cases", chains(False))
def test_every_chain_is_one_kernel_each_way(cases):
    """Every chain is one kernel each way; together they have all elementwise operators."""
    check_kernels(chain(cases))


@pytest.mark.long
@pytest.mark.parametrize(
    ("quantizer", "kernels"),
    [
        # A learned scale is in both: its gradient is the sum of two sums.
        pytest.param(lambda x, s: quantizers.fake_quantize(x, 0.1, 0, -8, 7), (2, 2), id="by a number"),
        pytest.param(lambda x, s: quantizers.fake_quantize(x, s, 0, -8, 7), (2, 3), id="learned"),
        pytest.param(lambda x, s: quantizers.float_quantize(x, "float8_e4m3fn"), (2, 2), id="float8"),
    ],
)
def test_quantizers_around_a_matrix_product_are_one_kernel_on_each_side(quantizer, kernels):
    """One kernel runs before and one after the matrix product, forward and backward."""
    s = torch.tensor(0.1, requires_grad=True)
    x, w = torch.randn(16, 32, requires_grad=True), torch.randn(8, 32, requires_grad=True)

    def layer(x, w, s):
        return quantizer(torch.nn.functional.linear(quantizer(x, s), w), s)

    found = []
    for f in (torch.compile(layer, fullgraph=True), layer):
        with inductor.patch(fx_graph_cache=False):
            metrics.reset()
            y = f(x, w, s)
            forward = metrics.generated_kernel_count
            gradients = torch.autograd.grad(y.square().sum(), (x, w, s), materialize_grads=True)
        found.append(((forward, metrics.generated_kernel_count - forward), [y, *gradients]))
    assert found[0][0] == kernels
    assert torch.equal(found[0][1][0], found[1][1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_compiled_clamp_is_right_whatever_is_done_with_subnormal_numbers():
    """The gradient on a bound of 0 stays 1 when the thread flushes subnormal numbers after the compilation."""
    compiled = torch.compile(lambda x: fullgrad.clamp(x, 0.0, 1.0), fullgraph=True)
    x = torch.tensor([0.0, -0.0, 0.5, 1.0] * 16, requires_grad=True)
    ones = torch.ones(64)
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], ones)
    with flushed_denormals():
        assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], ones)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("mode", ["smooth", "c1"])
def test_compiled_soft_round_of_numbers_that_are_not_finite(mode):
    """Compiled formulas handle NaN in a way of their own; NaN and infinities come out as in eager code."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.5, 0.25, 1.5], requires_grad=True)
    for f in (fullgrad.soft_round, lambda x: soft.round(x, 2.0, mode), lambda x: fullgrad.clamp(x, -1.0, 1.0)):
        expected = torch.autograd.grad(f(x), x, torch.ones(7))
        torch.compiler.reset()
        actual = torch.autograd.grad(torch.compile(f, backend="aot_eager", fullgraph=True)(x), x, torch.ones(7))
        torch.testing.assert_close(actual, expected, equal_nan=True)


# --- The cache of compiled graphs -------------------------------------------------------------------------------------


FACTOR = {"value": 2.0}


def factor():
    return FACTOR["value"]


class CallsHelper(torch.autograd.Function):
    """The identity; its backward multiplies by what another function returns."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * factor()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder for what torch caches, and a function that compiles a chain and returns torch's counts."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_cache, "_fingerprint", lambda: "one")
    known = inductor.unsafe_marked_cacheable_functions

    def compile(function=lambda x: fullgrad.round(fullgrad.clamp(x, -1.0, 1.0))):
        torch.compiler.reset()
        counters.clear()
        with torch._functorch.config.patch(enable_autograd_cache=True), inductor.patch(fx_graph_cache=True):
            chained(torch.compile(function, fullgraph=True))
        return {key.removeprefix("autograd_cache_") for key, n in counters["aot_autograd"].items() if n and "cache" in key}

    yield compile
    inductor.unsafe_marked_cacheable_functions = known


@pytest.mark.long
def test_compiled_graphs_are_cached(cache):
    """A graph of our operators goes into torch's cache, and is found there."""
    assert cache() == {"miss", "saved"}
    assert cache() == {"hit"}


@pytest.mark.long
def test_other_code_finds_no_graph_of_this_one(cache, monkeypatch):
    """A package with other source, or with a rule replaced, does not get the cached graph of this one."""
    assert cache() == {"miss", "saved"}
    with mock.patch.object(fullgrad.Clamp, "vjp", staticmethod(lambda ctx, g: (3 * g, None, None))):
        assert cache() == {"miss", "saved"}
    assert cache() == {"hit"}
    monkeypatch.setattr(compile_cache, "_fingerprint", lambda: "other")
    assert cache() == {"miss", "saved"}
    monkeypatch.setattr(compile_cache, "_fingerprint", lambda: None)
    inductor.unsafe_marked_cacheable_functions = {}
    assert cache() == {"bypass"}


@pytest.mark.long
def test_operators_of_users_are_not_cached(cache):
    """Graphs are not cached, since the code that a user's operator depends on is unknown."""

    class Twice(fullgrad.Round):
        pass

    assert cache(lambda x: Twice.apply(fullgrad.clamp(x, -1.0, 1.0))) == {"bypass"}


@pytest.mark.long
@pytest.mark.parametrize(
    "operator",
    [fullgrad.straight_through(torch.sign, torch.tanh), fullgrad.spikes.from_slope(torch.cos)],
    ids=["straight_through", "from_slope"],
)
def test_operators_made_of_functions_of_users_are_not_cached(cache, operator):
    """The function may be another in the next process, or in this one, and the name of the class is the same."""
    assert cache(operator) == {"bypass"}


SOFT = """
import torch, torch._inductor.config, fullgrad
x = torch.linspace(-1, 1, 5, requires_grad=True)
with torch._functorch.config.patch(enable_autograd_cache=True), torch._inductor.config.patch(fx_graph_cache=True):
    for operator in (fullgrad.straight_through(torch.sign, {0}), fullgrad.straight_through(torch.round, {1})):
        y = torch.compile(operator)(x)
        print(*y.tolist(), *torch.autograd.grad(y.sum(), x)[0].tolist())
"""


@pytest.mark.long
def test_an_edited_function_is_compiled_anew(tmp_path):
    """Two processes that share a folder of cached graphs: each operator has its own value and derivative, after an edit, too."""
    x, environment = torch.linspace(-1, 1, 5), {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for first, second in (("torch.tanh", "torch.sin"), ("torch.sin", "torch.tanh")):
        slopes = {"torch.tanh": 1 - torch.tanh(x) ** 2, "torch.sin": torch.cos(x)}
        run = subprocess.run(
            [sys.executable, "-c", SOFT.format(first, second)], env=environment, capture_output=True, text=True, check=True
        )
        found = torch.tensor([[float(n) for n in line.split()] for line in run.stdout.splitlines()])
        torch.testing.assert_close(found[0], torch.cat((torch.sign(x), slopes[first])))
        torch.testing.assert_close(found[1], torch.cat((torch.round(x), slopes[second])))


@pytest.mark.long
def test_adopted_classes_are_not_cached(cache, monkeypatch):
    """Adopted classes are not cached, alone or in a transform: what a backward calls may change in the next process."""
    alone, per_sample = fullgrad.adopt(CallsHelper), lambda x: vmap(grad(CallsHelper.apply))(x) * x
    assert cache(lambda x: alone(x)) == {"bypass"}
    with fullgrad.adopting():
        for factor in (2.0, 3.0):
            monkeypatch.setitem(FACTOR, "value", factor)
            assert cache(per_sample) == {"bypass"}
            assert torch.compile(per_sample, fullgraph=True)(torch.ones(2)).tolist() == [factor] * 2


def test_the_fingerprint_is_of_the_source_as_it_was_imported(monkeypatch):
    """The fingerprint is the same at every call, and None where a file has changed since the import."""
    monkeypatch.setattr(compile_cache, "_IMPORTED", time.time() + 10)
    fresh = compile_cache._fingerprint.__wrapped__
    assert fresh() == fresh()
    assert len(fresh()) == 64
    before, read, read_bytes = fresh(), set(), Path.read_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda file: read.add(file) or read_bytes(file) + b"#")
        assert fresh() != before
    changed = max(max(file.stat().st_mtime, file.stat().st_ctime) for file in read)
    for seconds, known in ((3, True), (1, False), (-1e9, False)):  # the clocks of some file systems tick every two seconds
        monkeypatch.setattr(compile_cache, "_IMPORTED", changed + seconds)
        assert (fresh() is not None) == known


def test_the_fingerprint_is_of_what_makes_graphs(monkeypatch):
    """An edit of any file of a family, the bases or the dispatch changes it; one of the suite, the kit, the audit, the modules or
    the faster versions, which do not run in compiled code, leaves it.
    """
    monkeypatch.setattr(compile_cache, "_IMPORTED", time.time() + 10)
    fresh, folder, read_bytes = compile_cache._fingerprint.__wrapped__, Path(fullgrad.__file__).parent, Path.read_bytes
    before, changing = fresh(), {"__init__.py", "__main__.py", "_core", "_dispatch", "_engine"}
    changing |= {f.parent.name for f in folder.glob("[a-z]*/__init__.py")} - {"audit", "cli", "diagnosis", "nn", "testing"}
    for part in sorted({file.relative_to(folder).parts[0] for file in folder.rglob("*.py")}):
        edited = next(iter(sorted((folder / part).rglob("*.py"))), folder / part)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda file, edited=edited: read_bytes(file) + b"#" * (file == edited))
            assert (fresh() != before) == (part in changing), part
    assert {"soft", "spikes", "rounding"} <= changing


def test_no_faster_version_runs_in_compiled_code():
    """A graph of torch's cache does not depend on the entries, so that the fingerprint need not, either."""
    reached = set()
    for name, entry in ENTRIES.items():
        noted = lambda *args, name=name, entry=entry: reached.add(name) or entry.version(*args)  # noqa: E731
        entry.put(noted, True)

    def total(x):
        return (fullgrad.clamp(x, -1.0, 1.0) + soft.clamp(x, -1.0, 1.0) + spikes.rect(x)).sum()

    try:
        for gradient in (torch.func.grad(total), torch.func.vmap(torch.func.grad(total))):
            torch.compile(gradient, fullgraph=True, backend="aot_eager")(torch.randn(3, 4))
        x = torch.randn(3, 4, requires_grad=True)
        torch.compile(total, fullgraph=True, backend="aot_eager")(x).backward()
        assert not reached
        total(x).backward()
        assert len(reached) >= 3
    finally:
        for entry in ENTRIES.values():
            entry.restore()


@pytest.mark.exhaustive
def test_the_next_process_finds_the_graph():
    """Two processes that share a folder: the second finds what the first has compiled."""
    from fullgrad._suite.bench._compiled import cached_seconds

    first, second = cached_seconds()
    assert first.get("autograd_cache_saved") == 1
    assert second.get("autograd_cache_hit") == 1


# --- The measurements themselves --------------------------------------------------------------------------------------


def test_the_rivals_of_the_benchmark_compute_the_same():
    """The chain by the detach trick and by Functions of the old style has the value and the gradient of ours."""
    for rival in (composite, old_style):
        for a, e in zip(chained(rival), chained(quantize), strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_the_time_of_a_compilation_is_taken():
    """A process measures the compilation of both chains of twenty operators."""
    for name in ("ours", "torch"):
        assert first_gradient(name, "aot_eager")["seconds"] > 0
