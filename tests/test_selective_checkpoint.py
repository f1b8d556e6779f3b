"""Selective checkpointing: a policy says which operations are saved, and which are run again in the backward."""

import functools

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import close, scalar

EVERYDAY = [c for c in CASES if not c.exhaustive]
# `torch.isclose` changes its own temporaries, which torch's policies refuse.
OF_TORCH = ("isclose_st",)


def changes_its_input(operation):
    return operation._schema.is_mutable


POLICIES = {
    "all saved": lambda operation: True,
    "none saved": lambda operation: False,
    "in-place saved": changes_its_input,
    "in-place run again": lambda operation: not changes_its_input(operation),
}


def gradients(f, leaves):
    torch.manual_seed(0)
    y = scalar(f)(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, allow_unused=True, materialize_grads=True)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("policy", POLICIES)
def test_values_and_gradients_of_every_policy(policy):
    """Results are those without a checkpoint, whatever is saved; random operators draw the same noise again."""

    def decide(ctx, operation, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if POLICIES[policy](operation) else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, decide)
    for case in EVERYDAY:
        functions = [case.op] if not case.name.startswith(OF_TORCH) else []
        if case.draws and case.random_inputs is None:
            functions.append(case.bind(case.random_operator or case.operator))
        for f in functions:
            leaves = case.leaves()
            try:
                found = gradients(lambda *t, f=f: checkpoint(f, *t, use_reentrant=False, context_fn=contexts), leaves)
                close(found, gradients(f, leaves))
            except Exception as error:
                raise AssertionError(f"{case.name}: {error}") from error
