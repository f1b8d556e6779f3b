"""Functions in place whose other argument is the tensor that is written: torch writes its tangent before it has read it."""

import pytest
import torch
from torch.func import jacfwd, jvp, vmap

from fullgrad import completing
from fullgrad.forward import jvp as constant_jvp

X = torch.tensor([0.3, 0.7, 1.2], dtype=torch.float64)
FUNCTIONS = {
    "mul": (lambda y: y.mul_(y), lambda y: y * y),
    "mul by a view": (lambda y: y.mul_(y.view(3)), lambda y: y * y),
    "imul": (lambda y: y.__imul__(y), lambda y: y * y),
    "numbers": (lambda y: y.mul_(2).mul_(y).mul_(0.5), lambda y: 2 * y * y),
    "pow": (lambda y: y.pow_(y), lambda y: y**y),
    "addcmul": (lambda y: y.addcmul_(y, y, value=2), lambda y: y + 2 * y * y),
    "addcdiv": (lambda y: y.addcdiv_(y + 1, y), lambda y: y + (y + 1) / y),
    "lerp": (lambda y: y.lerp_(y * y, y), lambda y: y + y * (y * y - y)),
    "atan2": (lambda y: y.atan2_(y), lambda y: torch.atan2(y, y)),
    "hypot": (lambda y: y.hypot_(y), lambda y: torch.hypot(y, y)),
    "xlogy": (lambda y: y.xlogy_(y), lambda y: torch.xlogy(y, y)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.short(of=3)
def test_derivatives_are_those_of_the_function_that_is_not_in_place(name):
    """In forward mode, batched and nested."""
    (written, plain), batch = FUNCTIONS[name], torch.stack([X, X.sin()])
    f = lambda x: written(x * 1)  # noqa: E731
    with completing():
        torch.testing.assert_close(jacfwd(f)(X), jacfwd(plain)(X))
        torch.testing.assert_close(vmap(jacfwd(f))(batch), vmap(jacfwd(plain))(batch))
        if name != "mul by a view":  # whose symbolic zeros torch refuses to write to, in a second derivative
            torch.testing.assert_close(jacfwd(jacfwd(f))(X), jacfwd(jacfwd(plain))(X))
    torch.testing.assert_close(constant_jvp(f, (X,), (X,)), jvp(plain, (X,), (X,)))
