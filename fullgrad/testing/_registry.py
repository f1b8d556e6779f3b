"""The list of checks. A check is a function of a `Subject` that raises if the operator is wrong; its docstring says what it
proves.
"""

from collections.abc import Callable

from fullgrad.testing._subject import Subject

Check = Callable[[Subject], None]

CHECKS: dict[str, Check] = {}
GROUPS: dict[str, list[str]] = {}
# Public threads about the checks that torch's own autograd.Function fails, or cannot run.
UPSTREAM_ISSUES: dict[str, str] = {}
# Checks that use forward mode, which do not apply to an operator without a tangent.
WITH_TANGENTS = {
    *("dual_numbers", "tangents_are_not_shared", "func_jvp", "func_jacfwd", "func_linearize", "adjoint"),
    *("func_hessian", "reverse_over_forward", "forward_over_forward", "jvp_of_grad", "grad_of_jvp"),
    *("three_of_forward", "three_mixed", "along_a_curve", "gradcheck", "gradgradcheck", "vmap_of_jvp", "vmap_of_hessian"),
    *("compile_jvp", "compile_hessian", "compile_forward_over_forward", "make_fx_of_transforms"),
    *("modes_inside_transforms", "gradients_in_every_dtype"),
}


def check(group: str, issue: int | None = None) -> Callable[[Check], Check]:
    """Register a check under its own name, in a group; ``issue`` is the number of torch's issue about it."""

    def register(function: Check) -> Check:
        CHECKS[function.__name__] = function
        GROUPS.setdefault(group, []).append(function.__name__)
        if issue:
            UPSTREAM_ISSUES[function.__name__] = f"https://github.com/pytorch/pytorch/issues/{issue}"
        return function

    return register
