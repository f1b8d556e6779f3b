"""What torch.compile makes of operators: kernels, what is kept for the backward, and the cache of compiled graphs.

That nothing breaks the graph and that values and gradients are right is proved for every operator in `test_transforms`.
"""

import contextlib
import time
from unittest import mock

import pytest
import torch
import torch._inductor.config as inductor
from torch._dynamo.utils import counters
from torch._inductor import metrics

import fullgrad
from fullgrad import soft
from fullgrad._dispatch import compile_cache
from fullgrad._suite.bench._compiled import CHAINS, composite, first_gradient, old_style, quantize, saved
from fullgrad._suite.cases import clamping, gradients, rounding
from fullgrad._suite.cases import soft as relaxations

FAMILIES = [*rounding.CASES, *clamping.CASES, *gradients.CASES, *relaxations.RELAXATIONS]

# What the tests below hand to the operators is computed in the graph, and kept as in any graph.
NOT_ALONE = {"mask_grad", "clip_grad by a tensor", "clamp_backward"}
# It reduces; what it keeps is two numbers per tensor.
REDUCING = {"clamp_by_linear"}
ELEMENTWISE = [c for c in FAMILIES if c.name not in NOT_ALONE | REDUCING]


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
    kept: dict[int, int] = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = case.operator(*inputs_of(case))
    kept.pop(y.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / y.numel()


# --- What is kept -----------------------------------------------------------------------------------------------------


def check_kept(case):
    kept = saved(case.operator, *inputs_of(case))
    assert kept["masks"] == 0, kept
    # Two inputs may be kept as one number that is made of them: fewer bytes.
    assert kept["numbers"] == 0 or sum(kept.values()) < eagerly_kept(case), kept


@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if not c.exhaustive], ids=lambda c: c.name)
def test_compiled_code_keeps_inputs_and_no_masks(case):
    """The compiled forward of an elementwise operator keeps inputs for the backward, or fewer bytes than those."""
    check_kept(case)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if c.exhaustive], ids=lambda c: c.name)
def test_compiled_code_keeps_inputs_and_no_masks_in_every_mode(case):
    """Likewise for all modes and variants."""
    check_kept(case)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_keeps_its_input(name):
    """Of a chain of operators the input is kept and nothing else."""
    assert saved(CHAINS[name], torch.randn(64, requires_grad=True)) == {"inputs": 4, "numbers": 0, "masks": 0}


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
    """No public operator is left out of the chains, but for those that take a constant of the size of their input."""
    used: set[str] = set()
    originals = {cls: cls.apply for cls in _operator_classes()}
    with contextlib.ExitStack() as patches:
        for cls, apply in originals.items():
            spy = lambda *a, cls=cls, apply=apply: used.add(cls.__qualname__ + cls.__module__) or apply(*a)  # noqa: E731
            patches.enter_context(mock.patch.object(cls, "apply", staticmethod(spy)))
        for chain in CHAINS.values():
            chain(torch.randn(8, requires_grad=True))
    missing = {cls.__name__ for cls in originals if cls.__qualname__ + cls.__module__ not in used}
    assert missing == {"ClampByLinear", "ClipGradNorm", "MaskGrad", "ReplaceGrad", "ScaleGrad"}


def _operator_classes():
    families = ("rounding", "clamping", "gradients", "estimators", "soft._")
    classes = {operator for operator, _ in compile_cache._nodes.values()}
    return [c for c in classes if c.__module__.startswith(tuple(f"fullgrad.{f}" for f in families)) and c.__name__[0] != "_"]


# --- Kernels ----------------------------------------------------------------------------------------------------------


def check_kernels(name):
    metrics.reset()
    with inductor.patch(fx_graph_cache=False):
        actual = chained(torch.compile(CHAINS[name], fullgraph=True))
    assert metrics.generated_kernel_count == 2, "one forward and one backward"
    for a, e in zip(actual, chained(CHAINS[name]), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


def test_a_chain_is_one_kernel_each_way():
    """Six elementwise operators are one kernel forward and one backward."""
    check_kernels("quantize")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in CHAINS if n != "quantize"])
def test_every_chain_is_one_kernel_each_way(name):
    """So is every other chain; between them they have all elementwise operators."""
    check_kernels(name)


def test_compiled_clamp_is_right_whatever_is_done_with_subnormal_numbers():
    """The gradient on a bound of 0 stays 1 when the thread flushes subnormal numbers after the compilation."""
    compiled = torch.compile(lambda x: fullgrad.clamp(x, 0.0, 1.0), fullgraph=True)
    x = torch.tensor([0.0, -0.0, 0.5, 1.0] * 16, requires_grad=True)
    ones = torch.ones(64)
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], ones)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], ones)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("mode", ["smooth", "c1"])
def test_compiled_soft_round_of_numbers_that_are_none(mode):
    """Compiled formulas look for NaN in a way of their own; NaN and infinities come out as in eager code."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.5, 0.25, 1.5], requires_grad=True)
    for f in (fullgrad.soft_round, lambda x: soft.round(x, mode=mode), lambda x: fullgrad.clamp(x, -1.0, 1.0)):
        expected = torch.autograd.grad(f(x), x, torch.ones(7))
        torch.compiler.reset()
        actual = torch.autograd.grad(torch.compile(f, backend="aot_eager", fullgraph=True)(x), x, torch.ones(7))
        torch.testing.assert_close(actual, expected, equal_nan=True)


# --- The cache of compiled graphs -------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder of its own for what torch caches; the function compiles a chain and returns what torch counts."""
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


def test_compiled_graphs_are_cached(cache):
    """A graph of our operators goes into torch's cache, and is found there."""
    assert cache() == {"miss", "saved"}
    assert cache() == {"hit"}


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


def test_operators_of_users_are_not_cached(cache):
    """Nobody knows where the code of a user's operator ends."""

    class Twice(fullgrad.Round):
        pass

    assert cache(lambda x: Twice.apply(fullgrad.clamp(x, -1.0, 1.0))) == {"bypass"}


def test_the_fingerprint_is_of_the_source_as_it_was_imported(monkeypatch):
    """It is a hash, the same at every call, and None where a file has changed since the import."""
    monkeypatch.setattr(compile_cache, "_IMPORTED", time.time() + 10)
    fresh = compile_cache._fingerprint.__wrapped__
    assert fresh() == fresh()
    assert len(fresh()) == 64
    monkeypatch.setattr(compile_cache, "_IMPORTED", 0.0)
    assert fresh() is None


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


def test_the_time_of_a_compilation_is_taken():
    """Of both chains of twenty operators, in a process."""
    for name in ("ours", "torch"):
        assert first_gradient(name, "aot_eager")["seconds"] > 0
