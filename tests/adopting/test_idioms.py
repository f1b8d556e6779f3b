"""Functions in the idioms of 20 public packages: in every transform right, or refused with what works instead."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, vjp, vmap
from torch.testing import assert_close

import fullgrad
from tests.adopting import oracle
from tests.adopting.idioms import IDIOMS, Constant, D

pytestmark = [pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")]
FORWARD = {
    "jvp": (jacfwd, 1),
    "hessian": (hessian, 2),
    "reverse over forward": (lambda f: jacrev(jacfwd(f)), 2),
    "forward twice": (lambda f: jacfwd(jacfwd(f)), 2),
    "hessians": (lambda f: vmap(hessian(f)), 2),
}
REVERSE = {
    "value": (lambda f: f, 0),
    "backward": (lambda f: lambda x: oracle.gradient(f, x), 1),
    "double backward": (lambda f: lambda x: oracle.hessian(f, x), 2),
    "grad": (grad, 1),
    "vjp": (lambda f: lambda x: vjp(f, x)[1](torch.ones((), dtype=D))[0], 1),
    "values": (vmap, 0),
    "gradients": (lambda f: vmap(grad(f)), 1),
    "reverse twice": (lambda f: jacrev(jacrev(f)), 2),
}
OF_BATCHES = ("values", "gradients", "hessians", "compiled gradients")
COMPILED = {
    "compiled": (lambda f: torch.compile(grad(f), backend="aot_eager"), 1),
    "compiled gradients": (lambda f: torch.compile(vmap(grad(f)), backend="aot_eager"), 1),
}
# Values that are the input, with a gradient that is not linear: forward mode is that of the identity, as the page says.
IDENTITIES = ("icefall: balancer", "icefall: limits", "clipped gradient")
# Backwards in code that has no derivative.
ONCE = ("numpy: sorted", "numpy: solve", "checkpoint: run again")
POSITIVE = ("LSQ", "PACT", "numpy: solve")  # for other numbers the class raises in eager code, too


def scalar_of(name):
    """A scalar function of one vector, which holds all floating inputs side by side; and the vector."""
    cls, inputs = IDIOMS[name]
    f, x = oracle.bound(
        lambda *args: cls.apply(*[torch.tensor(v, dtype=D) if isinstance(v, Constant) else v for v in args]), inputs
    )
    return lambda x: f(x) + 0.1 * (x * x).sum(), x  # with the term a gradient of None is not special


def check(name, ways):
    f, x = scalar_of(name)
    batch = torch.stack([x, 1.2 * x, 1.1 * x]) if name in POSITIVE else oracle.batch(x)
    orders = [lambda x: f(x).detach(), lambda x: oracle.gradient(f, x), lambda x: oracle.hessian(f, x)]
    for way, (transform, order) in ways.items():
        is_batch = way in OF_BATCHES
        with fullgrad.adopting():
            if name in ONCE and (order == 2 or way in FORWARD):
                if way == "double backward":  # plain eager code, which is not adopted
                    continue
                with pytest.raises(NotImplementedError, match=r"jacrev work once.*(reference=|torch\.func\.vjp)"):
                    transform(f)(batch if is_batch else x)
                continue
            found = transform(f)(batch if is_batch else x)
        expected = torch.stack([orders[order](s) for s in batch]) if is_batch else orders[order](x)
        assert_close(found.detach(), expected, msg=lambda text, way=way: f"{name}, {way}: {text}")


@pytest.mark.short(of=5)
@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_is_right_in_every_transform(name):
    """Values, gradients, tangents and Hessians, alone and in batches, are those of eager autograd."""
    check(name, REVERSE if name in IDENTITIES else REVERSE | FORWARD)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", IDIOMS)
@pytest.mark.sampled(of=4)
def test_a_compiled_gradient_of_an_idiom_is_right(name):
    """Compiled gradients, of one sample and of many, are those of eager autograd, or torch says why there are none."""
    torch._dynamo.reset()
    if name == "checkpoint: run again":  # a graph has no place for a backward that asks autograd itself
        with pytest.raises(RuntimeError, match="requires_grad_"):
            check(name, COMPILED)
        return
    check(name, COMPILED)
