"""Operators inside a composite operator of torch.library: while its code runs, torch hides the transforms further down."""

import contextlib

import pytest
import torch
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from fullgrad._dispatch import DISPATCH
from tests.operators import Cube, CubicRound, MatMul, SinCos

pytestmark = pytest.mark.short


def mixed(x):
    """Several operators next to operations of torch's own; one of them twice, one with two outputs."""
    return CubicRound.apply(Cube.apply(x) * x.sin()) + SinCos.apply(x)[1] * MatMul.apply(x[None], x[:, None])[0]


library = torch.library.Library("fullgrad_composite", "FRAGMENT")
library.define("mixed(Tensor x) -> Tensor")
library.impl("mixed", mixed, "CompositeImplicitAutograd")
composite = torch.ops.fullgrad_composite.mixed

X = torch.tensor([0.3, -1.2, 2.6], dtype=torch.float64)
T = torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)


def total(f):
    return lambda x: f(x).sum()


TRANSFORMS = {
    "grad": lambda f: grad(total(f))(X),
    "jvp": lambda f: jvp(f, (X,), (T,)),
    "vmap": lambda f: vmap(f)(X.expand(2, 3)),
    "vmap_grad": lambda f: vmap(grad(total(f)))(X.expand(2, 3)),
    "grad_vmap": lambda f: grad(lambda x: vmap(f)(x.expand(2, 3)).sum())(X),
    "hessian": lambda f: hessian(total(f))(X),
    "jvp_grad": lambda f: jvp(grad(total(f)), (X,), (T,)),
    "jacrev_jacrev": lambda f: jacrev(jacrev(f))(X),
    "jacfwd_jacfwd": lambda f: jacfwd(jacfwd(f))(X),
    "third": lambda f: jacrev(jacfwd(jacrev(total(f))))(X),
    "no_grad": lambda f: hessian(lambda x: (torch.no_grad()(f)(x) * x).sum())(X),
    "autocast": lambda f: torch.autocast("cpu")(lambda: hessian(total(f))(X.float()))(),
    "inference": lambda f: torch.inference_mode()(lambda: jacfwd(jacfwd(f))(X))(),
    "traced": lambda f: make_fx(hessian(total(f)))(X)(X),
    "functionalized": lambda f: functionalize(hessian(total(f)))(X),
}


@pytest.mark.short(of=3)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.skipif(DISPATCH == "fallback", reason="torch raises for its own autograd.Function there")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_composite_operator_is_its_code(name):
    """Each transform of the operator equals that of its code, to the last bit."""
    transform = TRANSFORMS[name]
    assert_close(transform(composite), transform(mixed), rtol=0, atol=0)


@pytest.mark.skipif(DISPATCH == "functorch", reason="the fallback alone raises")
def test_the_fallback_raises():
    """The fallback raises torch's error; nothing is silently wrong."""
    with pytest.raises(NotImplementedError, match="custom_function_call"):
        grad(total(composite))(X)
    assert_close(composite(X), mixed(X))


def test_dispatch_keys_are_restored():
    """Dispatch keys are restored after a call, and after a call that fails below a level."""
    state = lambda: (torch._C._dispatch_tls_local_exclude_set(), torch._C._dispatch_tls_local_include_set())  # noqa: E731
    before = [keys.raw_repr() for keys in state()]
    for call in (lambda: composite(X), lambda: hessian(total(composite))(torch.ones(3, 1, dtype=torch.float64))):
        with contextlib.suppress(RuntimeError, NotImplementedError):
            call()
        assert [keys.raw_repr() for keys in state()] == before
