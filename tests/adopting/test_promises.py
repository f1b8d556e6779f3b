"""Promises beside derivatives: whose objects a class gets, which classes the context ignores, and the cost."""

import sys

import pytest
import torch
import torch.distributed.nn
import torch.nn.parallel._functions
import torch.utils.checkpoint
from torch.autograd import Function, forward_ad
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.testing import assert_close

import fullgrad
from fullgrad.adoption._scope import options_for
from tests.adopting import oracle
from tests.adopting.functions import LooksAtNumbers, NewStyle, SavesInput, WithJvp, X


def total(f):
    return lambda *x: f(*x).sum()


def test_an_argument_that_a_class_writes_to():
    """An argument that a class writes to is the caller's own, in both rules, not a copy."""

    class Records(Function):
        @staticmethod
        def forward(ctx, x, record):
            record["forward"] = tuple(x.shape)
            ctx.record = record
            return x.round()

        @staticmethod
        def backward(ctx, g):
            ctx.record["backward"] = tuple(g.shape)
            return g, None

    for transform in (grad, lambda f: vmap(grad(f))):
        record = {}
        transform(total(lambda x, record=record: fullgrad.adopt(Records)(x, record)))(oracle.batch(X))
        assert record == {"forward": record["forward"], "backward": record["forward"]}


def test_saved_for_forward_alone():
    """A ``jvp`` reads what is saved for it, the backward what is saved for that."""

    class Both(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x.sin())
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

        @staticmethod
        def jvp(ctx, t):
            return t * ctx.saved_tensors[0]

    both = fullgrad.adopt(Both)
    assert_close(grad(total(both))(X), X)
    assert_close(jvp(both, (X,), (X.cos(),))[1], X.cos() * X.sin())
    assert_close(vmap(lambda x: jvp(both, (x,), (x.cos(),))[1])(oracle.batch(X)), oracle.batch(X).cos() * oracle.batch(X).sin())


def test_autocast():
    """Rules with torch's decorators for autocast run as in eager code."""

    class Mixed(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x.mT

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (g + g.mT) @ x

    x = torch.randn(3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(Mixed.apply(leaf).sum(), leaf)
        assert_close(grad(total(fullgrad.adopt(Mixed)))(x), expected)
        assert_close(vmap(grad(total(fullgrad.adopt(Mixed))))(x[None])[0], expected)


def _subclasses(cls):
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def test_torchs_own_functions_are_never_adopted():
    """Functions of checkpoint, DDP, autocast and the compiler, and ours, are not adopted even on request."""
    ours = [cls for cls in _subclasses(Function) if cls.__module__.partition(".")[0] in ("torch", "fullgrad")]
    assert torch.utils.checkpoint.CheckpointFunction in ours
    assert torch.nn.parallel._functions.Broadcast in ours
    with fullgrad.adopting(), fullgrad.adopting("torch", "fullgrad", *ours):
        assert options_for(SavesInput, True) is not None
        assert not [cls for cls in ours if options_for(cls, True) is not None]


def test_plain_code_takes_few_steps_more():
    """Inside the context a plain eager call takes few more Python calls, and none outside."""

    def steps():
        calls = []
        sys.setprofile(lambda frame, event, _: calls.append(event) if event in ("call", "c_call") else None)
        try:
            SavesInput.apply(X)
        finally:
            sys.setprofile(None)
        return len(calls)

    steps()
    before = steps()
    with fullgrad.adopting():
        steps()
        inside = steps()
    assert steps() == before
    assert inside <= before + 4


def test_forward_mode_without_a_transform():
    """In a dual level adopted classes have forward mode, others are as before, and nothing is left behind."""

    def tangent(cls, *others):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(cls.apply(forward_ad.make_dual(X, X.cos()), *others)).tangent

    with fullgrad.adopting():
        assert_close(tangent(NewStyle, 3.0), X.cos() * oracle.gradient(lambda x: NewStyle.apply(x, 3.0).sum(), X))
        assert_close(tangent(SavesInput), X.cos() / (1 + X * X))
    with fullgrad.adopting(exclude=("tests",)):
        assert_close(tangent(WithJvp), X.cos() * X)
        for cls in (NewStyle, SavesInput):
            with pytest.raises(NotImplementedError, match="jvp"):
                tangent(cls)
        with pytest.raises(TypeError, match="argument"):
            NewStyle.apply()
    assert torch._C._functorch.peek_interpreter_stack() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("backward", [lambda g: g.clamp(-1, 1), lambda g: g / g.norm(), lambda g: torch.where(g > 50, 50, g)])
def test_a_backward_that_is_not_linear_is_noticed(dtype, backward):
    """A nonlinear backward is recognized in every precision, and where only a few of many elements show it."""

    class NotLinear(Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            return backward(g)

    x = torch.linspace(-3, 3, 10_000).to(dtype)
    with pytest.raises(NotImplementedError, match="is not linear"):
        jvp(fullgrad.adopt(NotLinear), (x,), (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_linear_backward_in_low_precision(dtype):
    """Rounding is not taken for a backward that is not linear."""

    class Centered(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.softmax(-1)

        @staticmethod
        def backward(ctx, g):
            p = ctx.saved_tensors[0].softmax(-1)
            return p * (g - (g * p).sum(-1, keepdim=True))

    x = torch.linspace(-3, 3, 40).reshape(4, 10).to(dtype)
    assert jvp(fullgrad.adopt(Centered), (x,), (x,))[1].isfinite().all()


def test_a_rule_for_vmap_is_not_needed():
    """A class is batched by its own code, or sample by sample, whether it declares a rule for ``vmap`` or not."""

    class Sorted(Function):
        @staticmethod
        def forward(x):
            return torch.from_numpy(x.detach().numpy().copy()).sort().values

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return torch.zeros_like(g).scatter(-1, ctx.saved_tensors[0].argsort(), g)

        @staticmethod
        def vmap(info, in_dims, x):
            return Sorted.apply(x.movedim(in_dims[0], 0)), 0

    samples = oracle.batch(X)
    with pytest.warns(UserWarning, match="Sorted runs sample by sample"):
        found = vmap(grad(lambda x: (fullgrad.adopt(Sorted)(x) * X).sum()))(samples)
    for one, s in zip(found, samples, strict=True):
        assert_close(one, oracle.gradient(lambda x: (Sorted.apply(x) * X).sum(), s))


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_no_loop_also_where_one_ran():
    """``allow_loop=False`` raises for a class that is known to look at numbers."""
    cls = type("Looks", (LooksAtNumbers,), {})
    vmap(fullgrad.adopt(cls))(oracle.batch(X))
    with pytest.raises(NotImplementedError, match="allow_loop=False"):
        vmap(fullgrad.adopt(cls, allow_loop=False))(oracle.batch(X))


@pytest.mark.filterwarnings("ignore:.*sample by sample:UserWarning")
def test_errors_of_a_class_are_its_own():
    """An error that a class raises keeps its message, whatever it says."""

    class Raises(Function):
        @staticmethod
        def forward(ctx, x):
            raise ValueError("not {these} %s shapes")

        @staticmethod
        def backward(ctx, g):
            return g

    for transform in (grad, vmap, lambda f: vmap(grad(f))):
        with pytest.raises(ValueError, match=r"not \{these\} %s shapes"):
            transform(total(fullgrad.adopt(Raises)))(X[None])


def test_a_backward_that_is_refused_runs_once():
    """A refused backward is not tried again below the transform, where a plain call inside it would not be refused."""
    calls = []

    class ChangesItsInput(Function):
        @staticmethod
        def forward(ctx, x):
            return x.mul_(2)

    class CallsIt(Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, g):
            calls.append(g)
            return fullgrad.adopt(ChangesItsInput)(g.clone())

    with pytest.raises(NotImplementedError, match=r"ChangesItsInput.forward changes an input in place"):
        grad(total(fullgrad.adopt(CallsIt)))(X)
    assert len(calls) == 1


def test_gradients_that_nobody_needs():
    """A class may return None for an input, and a gradient of a shape that broadcasts: they are what eager code makes of them."""

    class Broadcasts(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            return x.round() * scale

        @staticmethod
        def backward(ctx, g):
            x, scale = ctx.saved_tensors
            return g * scale * x, None

    adopted = fullgrad.adopt(Broadcasts)
    scale = torch.tensor(2.0, dtype=X.dtype)
    assert_close(grad(total(adopted), argnums=(0, 1))(X, scale), (2 * X, torch.zeros_like(scale)))
    assert_close(hessian(total(adopted))(X, scale), jacrev(lambda x: 2 * x)(X))
