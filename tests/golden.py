"""Golden cases of other packages and of formulas with many digits: a value, gradients, and Hessian-vector products."""

import json
import operator
from pathlib import Path

import torch

import fullgrad

ALL = json.loads((Path(__file__).parent / "sampling" / "golden.json").read_text())


def ident(case):
    """The operator, its options, and the first numbers of its inputs."""
    words = [f"{key}={value}" for key, value in case["kwargs"].items()]
    numbers = [f"{value:g}" if isinstance(value, float) else str(value) for value in case["inputs"].values()][:2]
    return " ".join([case["op"].split(".")[-1], *words, *(n[:24] for n in numbers)])


def close(case, actual, expected, factor=1.0):
    """Check closeness within the case's tolerance, with NaN equal to NaN."""
    expected = torch.tensor(expected, dtype=torch.float64).reshape(actual.shape)
    tolerance = case["tolerance"] * factor
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def weighted_sum(y):
    """The scalar whose gradients are compared."""
    return (y.flatten() * torch.arange(1.0, y.numel() + 1, dtype=y.dtype)).sum()


def arguments(case):
    """The function of the named inputs that have a gradient, and these inputs."""
    function = operator.attrgetter(case["op"])(fullgrad)
    inputs = {k: torch.tensor(v, dtype=torch.float64) for k, v in case["inputs"].items()}
    kwargs = dict(case["kwargs"])
    for name in ("noise", "target"):
        if name in case:
            value = torch.tensor(case[name], dtype=torch.float64)
            kwargs[name] = value.long() if name == "target" and value.ndim < inputs["x"].ndim else value
    names = list(case.get("grad", {}))
    constants = {k: float(v) if v.ndim == 0 else v for k, v in inputs.items() if k not in names}

    def of_named(*tensors):
        y = function(**constants, **dict(zip(names, tensors, strict=True)), **kwargs)
        return y if isinstance(y, torch.Tensor) else y[0]

    return of_named, [inputs[name] for name in names]


def check(case):
    """Check the value, the gradient by all inputs, and its derivative along a direction."""
    function, inputs = arguments(case)
    leaves = [x.requires_grad_() for x in inputs]
    y = function(*leaves)
    close(case, y.detach(), case["out"])
    if not leaves or "kink" in case:
        return
    gradients = torch.autograd.grad(weighted_sum(y), leaves, create_graph=True)
    for name, gradient in zip(case["grad"], gradients, strict=True):
        close(case, gradient.detach(), case["grad"][name])
    if "hvp" not in case:
        return
    v = [torch.tensor(case["hvp_v"][name], dtype=torch.float64) for name in case["grad"]]
    along = torch.stack([(g * d).sum() for g, d in zip(gradients, v, strict=True)]).sum()
    seconds = torch.autograd.grad(along, leaves, materialize_grads=True) if along.requires_grad else [0 * x for x in leaves]
    for name, second in zip(case["grad"], seconds, strict=True):
        close(case, second.detach(), case["hvp"][name], 100)
