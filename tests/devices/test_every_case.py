"""Every case on the second index while the first is current, and on tensors without data."""

import dataclasses

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.func import grad, jvp, vmap

from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import scalar
from tests import devices
from tests.devices.test_second_device import pytestmark as with_the_plugin

pytestmark = [with_the_plugin, pytest.mark.short]

INDEX = f"{devices.NAME}:1"
ALL = [pytest.param(c, marks=[pytest.mark.exhaustive] * c.exhaustive, id=c.name) for c in CASES]


def gradients(function, tensors):
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = function(*leaves)
    real = [v for v in tensors_in(y) if v.is_floating_point()]
    return y, torch.autograd.grad(real, leaves, [*map(torch.ones_like, real)], allow_unused=True)


def tensors_in(found):
    return [v for v in torch.utils._pytree.tree_leaves(found) if isinstance(v, torch.Tensor)]


def results(case):
    """Value and gradient, also in half precision, per-sample gradients, and the tangent."""
    yield gradients(case.op, case.tensors)
    yield gradients(case.op, [t.to(torch.bfloat16) for t in case.tensors])
    yield vmap(grad(scalar(case.op), case.argnums), randomness="different")(*[torch.stack([t, t]) for t in case.tensors])
    if case.has_tangent:
        yield jvp(case.op, tuple(case.tensors), tuple(map(torch.ones_like, case.tensors)))


@pytest.mark.parametrize("case", ALL)
def test_the_second_index(case):
    """All results are where the inputs are, and the current index stays."""
    for found in results(case.to(INDEX)):
        assert {str(v.device) for v in tensors_in(found)} == {INDEX}
    assert devices.register().current_device() == 0


@pytest.mark.parametrize("case", ALL)
def test_tensors_without_data(case):
    """The same on fake tensors: rules ask no numbers, and no tensor is made elsewhere."""

    def fake(value):
        is_tensor = isinstance(value, torch.Tensor)
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=INDEX) if is_tensor else value

    with FakeTensorMode(allow_non_fake_inputs=False):
        for found in results(dataclasses.replace(case, inputs=tuple(map(fake, case.inputs)))):
            assert {str(v.device) for v in tensors_in(found)} == {INDEX}
