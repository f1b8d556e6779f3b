"""Every check of the kit: on one case of each operator class, in the exhaustive slices on every case.
Value and first derivatives are checked of every variant every time.

A graph costs seconds whatever it holds. So one case of each base of operators is traced, and the checks that trace take many
cases at once; the slices trace every case, and the everyday ones also one at a time.
"""

import contextlib
import sys
from unittest import mock

import pytest
import torch
import torch.autograd.forward_ad as fwAD

from fullgrad import Function
from fullgrad._core.fast import ENABLED
from fullgrad._dispatch import DISPATCH
from fullgrad._suite.cases import CASES
from fullgrad.quantizers._codebook_codes import CodebookCodes
from fullgrad.quantizers._codes import IntegerOperator
from fullgrad.sampling._binary_st import RandomSign
from fullgrad.soft.simplex._losses import FenchelYoung
from fullgrad.spikes._surrogate import Surrogate
from fullgrad.testing import CHECKS, GROUPS, TorchLimit
from fullgrad.testing._check_operator import run_check
from fullgrad.testing._registry import WITH_TANGENTS
from fullgrad.testing._report import FAILED, PASSED
from fullgrad.testing._subject import float64_devices, scalar
from fullgrad.testing._together import TOGETHER, check_together
from tests.conftest import exhaustive_slice
from tests.traced import NAMES, OF_BASES, OF_KINDS, TRACED, machinery

EVERYDAY = [c for c in CASES if not c.exhaustive]
SHORT = [c for c in EVERYDAY if not c.long]
REST = [c for c in CASES if c.exhaustive or c.long]
# What is cheap enough to ask of every variant every time.
CHEAP = (
    "value_is_exact",
    "value_of_special_numbers",
    "value_in_every_dtype",
    "value_in_every_layout",
    "func_vjp",
    "func_jvp",
)


def applies(case, name):
    """Whether a case has the oracle that a check needs."""
    numeric = name == "gradcheck" or (name == "gradgradcheck" and case.linear)
    exact = name in GROUPS["value"] and name not in ("value_with_a_graph", "value_on_meta_and_fake_tensors")
    several = name == "unneeded_gradients_cost_nothing"
    if (name == "adjoint" and not case.linear) or (name in WITH_TANGENTS and not case.has_tangent):
        return False
    if name in GROUPS["randomness"]:
        return bool(case.draws) and (name != "rare_events_in_half_precision" or "rare" in case.options)
    if name == "compile_changing_numbers":
        return bool(case.with_other_numbers())
    if name == "modes_inside_transforms" and case.surrogate is None:
        return False
    if name == "gradient_by_differences" and (case.surrogate is not None or case.smooth_forwards == {}):
        return False
    return not (
        (numeric and case.smooth_forwards is None) or (exact and case.value is None) or (several and len(case.diff_argnums) < 2)
    )


def is_exhaustive(case, name):
    """Whether a check of one case runs in the slices alone. Variants are traced in groups only, default cases in the slices also
    one at a time. A case whose operator classes other cases have runs the cheap checks (`test_variants`), and all of them in the
    slices.
    """
    is_shared = name in OF_MACHINERY and not traced_in_short(case, name)
    return case.exhaustive or case.long or name in TOGETHER or is_shared


def pytest_generate_tests(metafunc):
    """Parametrize the checks of single cases by their groups, as a test of its own takes as long as many a check; those of the
    slices one at a time and only where a slice runs, as there are tens of thousands.
    """
    if metafunc.function is test_check:
        found, sliced = [], exhaustive_slice(metafunc.config) is not None
        for c in [c for c in CASES if sliced or not c.exhaustive]:
            for group, names in GROUPS.items():
                names = [n for n in names if applies(c, n) and not (c.exhaustive and n in TOGETHER)]
                own = [n for n in names if not is_exhaustive(c, n)]
                found += [pytest.param(c, own, id=f"{c.name}-{group}")] if own else []
                for name in [n for n in names if n not in own] if sliced else ():
                    found.append(pytest.param(c, [name], id=f"{c.name}-{name}", marks=pytest.mark.exhaustive))
        metafunc.parametrize(("case", "names"), found)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("device", float64_devices())
def test_check(case, names, device):
    """The operator passes the checks of a group, on every device that has float64."""
    for name in names:
        torch.default_generator.manual_seed(0)
        try:
            CHECKS[name](case.to(device))
        except TorchLimit:
            continue
        except RuntimeError as error:
            # docs/limits.md: of a rule that uses a transform itself, in the fallback torch fails inside, as for its own Function.
            if not (DISPATCH == "fallback" and name == "vmap_of_vjp" and "batched == nullptr" in str(error)):
                raise


@pytest.mark.short(of=3)
@pytest.mark.parametrize("device", float64_devices())
@pytest.mark.parametrize("cases", [pytest.param(REST[i : i + 20], id=f"from {REST[i].name}") for i in range(0, len(REST), 20)])
def test_variants(cases, device):
    """Cases that do not run every check have right values and first derivatives."""
    for case in cases:
        for name in CHEAP:
            if applies(case, name):
                result = run_check(name, case.to(device))
                assert result.status != FAILED, f"{case.name}: {name}: {result.message}"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CHECKS if name != "gradient_by_differences"])  # of operators without an oracle
def test_a_check_applies_where_it_runs_alone(name):
    """Some operator of a few passes each check by itself: a check that says "not applicable" of all could not fail."""
    cases = [case for case in CASES[:: len(CASES) // 40] if not case.long] + [case for case in CASES if case.draws][:3]
    found = (run_check(name, case.to("cpu")).status for case in cases if applies(case, name))
    assert PASSED in found


# The checks of single cases that trace, start threads, or nest three transforms, which all bases share.
OF_MACHINERY = (
    *("compile_the_operator_itself", "compile_changing_numbers", "compiled_draws_once", "func_linearize", "threads"),
    *("three_mixed", "three_of_forward", "along_a_curve", "vmap_of_hessian"),
)

# What torch cannot trace: by check, beginnings of names. Such a case is apart, for all of its group would be checked one by one.
LIMITED = {
    "compile_dynamic_shapes": ("quantizers.float_quantize",),
    "compile_forward_over_forward": ("soft.normmax",),
}


# The checks whose graphs take longest, and those of threads, which all bases share.
HEAVY = (
    "threads",
    "compile_changing_numbers",
    "compile_hessian",
    "compile_forward_over_forward",
    "compile_dynamic_shapes",
    "compiled_draws_once",
    "make_fx_of_transforms",
)


# The checks whose graphs hold much of what a value with its gradients has, which is traced of every algorithm.
CONTAINED = ("compile_vmap", "compile_grad", "compile_vmap_of_grad", "compile_jvp", "export_value")


def traced_in_short(case, name):
    """Whether the short suite traces a check of a case."""
    return case.name in (OF_KINDS if name in HEAVY else OF_BASES if name in CONTAINED else NAMES)


def groups(cases, name, size=10):
    """The cases in groups that can be checked together: with values to the last bit or without. Torch takes sizes of matrices of
    two cases for one where they are equal.
    """
    same = {}
    for case in cases:
        is_limited = case.of == "matrices" or case.name.startswith(LIMITED.get(name, ()))
        apart = case.name if is_limited else None
        same.setdefault((case.value is None, apart, case.has_tangent), []).append(case)
    return [found[i : i + size] for found in same.values() for i in range(0, len(found), size)]


@pytest.mark.short(of=2)
@pytest.mark.parametrize("device", float64_devices())
@pytest.mark.parametrize(
    ("cases", "name"),
    [
        pytest.param(cases, name, id=f"{cases[0].name} to {cases[-1].name}-{name}", marks=long)
        for name in TOGETHER
        for chosen, long in (
            ([c for c in EVERYDAY if traced_in_short(c, name)], []),
            ([c for c in EVERYDAY if not traced_in_short(c, name)], [pytest.mark.exhaustive]),
            ([c for c in CASES if c.exhaustive], [pytest.mark.exhaustive]),
        )
        for cases in groups(chosen, name)
        if applies(cases[0], name)
    ],
)
def test_check_together(cases, name, device):
    """The operators pass the check in one graph."""
    check_together(name, [case.to(device) for case in cases])


def _operator_classes(family=Function):
    for cls in family.__subclasses__():
        # Some are made at run time, of functions of users. Those of adoption run classes of others: `tests/adopting`; those of
        # forward and per_sample are parts of a transform: `tests/forward`, `tests/per_sample`. Integers have no derivative.
        own = "fullgrad.adoption.", "fullgrad.forward.", "fullgrad.per_sample."
        ours = cls.__module__.startswith("fullgrad.") and not cls.__module__.startswith(own)
        ours &= not issubclass(cls, (CodebookCodes, IntegerOperator))
        if ours and vars(sys.modules[cls.__module__]).get(cls.__name__) is cls:
            if "apply" in vars(cls):
                yield cls
            yield from _operator_classes(cls)


IN_AUTOCAST = {"sort_st neuralsort smooth"}


def _on_cpus():
    return {cls for cls in _operator_classes() if "._fast.gpu." not in cls.__module__}


def _called(case):
    """The operator classes that a case calls, in value and derivatives."""
    called = set()
    with contextlib.ExitStack() as patches:
        for cls in _operator_classes():

            def forward(*args, cls=cls, own=cls.forward):
                called.add(cls)
                return own(*args)

            patches.enter_context(mock.patch.object(cls, "forward", staticmethod(forward)))
        leaves = case.leaves()
        gradients = torch.autograd.grad(scalar(case.op)(*leaves), leaves, create_graph=True)
        again = sum(g.sin().sum() for g in gradients)
        if again.requires_grad:
            torch.autograd.grad(again, leaves, allow_unused=True)
    return called


def test_every_operator_class_is_checked():
    """Operator classes are checked in the short suite, except those that only give formulas to the rules of a base, and those of
    kernels for GPUs, which `tests/gpu` checks.
    """
    called = set().union(*map(_called, SHORT))
    with torch.autocast("cpu", torch.bfloat16):  # products of matrices are an operator there
        called |= set().union(*[_called(case) for case in SHORT if case.name in IN_AUTOCAST])
    of_formulas = {cls for cls in _operator_classes() if issubclass(cls, (Surrogate, FenchelYoung, RandomSign))}
    assert called & of_formulas
    assert not {cls for cls in _on_cpus() if ENABLED or "._fast." not in cls.__module__} - called - of_formulas


@pytest.mark.long
def test_every_operator_class_has_a_case():
    """Every class has a case that is not a variant; every base and opaque function has one that the short suite traces."""
    called = {c.name: _called(c) for c in EVERYDAY}
    with torch.autocast("cpu", torch.bfloat16):  # products of matrices are an operator there
        in_autocast = [_called(case) for case in EVERYDAY if case.name in IN_AUTOCAST]
    assert not _on_cpus() - set().union(*called.values(), *in_autocast)
    everything, traced = [set().union(*[machinery(c, called[c.name]) for c in cases]) for cases in (EVERYDAY, TRACED)]
    assert not everything - traced


@pytest.mark.parametrize("case", [c for c in EVERYDAY if c.surrogate and c.has_tangent and not c.draws], ids=lambda c: c.name)
def test_a_tangent_has_a_gradient(case):
    """Reverse mode over dual numbers of inputs that require a gradient is that of the surrogate."""

    def gradients(op):
        leaves = case.leaves()
        given = iter(leaves)
        with fwAD.dual_level():
            inputs = [fwAD.make_dual(v, torch.ones_like(v)) for v in given]
            y = op(*inputs)
            tangents = [fwAD.unpack_dual(v).tangent for v in ((y,) if isinstance(y, torch.Tensor) else y)]
            total = sum([t.sin().sum() for t in tangents if t is not None], sum(v.sum() for v in leaves))
            return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)

    try:
        expected = gradients(case.bind(case.surrogate))
    except RuntimeError as error:
        pytest.skip(f"torch: {error}")
    torch.testing.assert_close(gradients(case.bind(case.operator)), expected, rtol=1e-6, atol=1e-8, equal_nan=True)
