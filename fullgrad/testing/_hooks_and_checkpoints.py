"""Checks of clause 5 against the rest of torch's machinery: checkpoints, hooks, modes, threads, memory."""

import concurrent.futures
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors, save_on_cpu, saved_tensors_hooks
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

from fullgrad._dispatch import TorchDispatchMode
from fullgrad.testing._registry import check
from fullgrad.testing._subject import NotApplicable, Subject, TorchLimit, close, equal, gradients_of, like, scalar, slopes_of


@check("machinery")
def checkpointed(s: Subject) -> None:
    """``torch.utils.checkpoint``, both ways."""
    expected = s.gradients(s.reference)
    for reentrant in (False, True):
        leaves = s.leaves()
        scalar(lambda *x, reentrant=reentrant: checkpoint(s.op, *x, use_reentrant=reentrant))(*leaves).backward()
        close(slopes_of(leaves), expected)


@check("machinery")
def saved_tensor_hooks(s: Subject) -> None:
    """``saved_tensors_hooks`` and ``save_on_cpu`` see every saved tensor and may replace it."""
    expected = s.gradients(s.reference)
    with saved_tensors_hooks(lambda t: (t.clone(), t.dtype), lambda packed: packed[0].to(packed[1])):
        close(s.gradients(s.op), expected)
    with save_on_cpu():
        close(s.gradients(s.op), expected)


@check("machinery")
def double_backward_inside_hooks(s: Subject) -> None:
    """A backward that is differentiated again, in ``save_on_cpu``, ``allow_mutation_on_saved_tensors`` and a checkpoint."""

    def twice(f) -> tuple[Tensor, ...]:
        leaves = s.leaves()
        first = gradients_of(scalar(f)(*leaves), leaves, create_graph=True)
        parts = [(g.sin() * like(g, i)).sum() for i, g in enumerate(first)] + [0 * leaf.sum() for leaf in leaves]
        return *first, *torch.autograd.grad(torch.stack(parts).sum(), leaves)

    expected = twice(s.reference)
    for hooks in (save_on_cpu, allow_mutation_on_saved_tensors):
        with hooks():
            close(twice(s.op), expected)
    close(twice(lambda *x: checkpoint(s.op, *x, use_reentrant=False)), expected)


@check("machinery")
def saved_bytes(s: Subject) -> None:
    """No more is saved than declared, beyond inputs and output, by storage; and nothing for an input that needs no gradient."""
    leaves = s.leaves()
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        y = s.op(*leaves)
    alive = {t.untyped_storage().data_ptr() for t in (*leaves, *(v for v in s.inputs if isinstance(v, Tensor)), y)}
    extra = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    total = sum(size for pointer, size in extra.items() if pointer not in alive)
    if s.max_saved_bytes is not None and total > s.max_saved_bytes * y.numel():
        raise AssertionError(f"{total} bytes are saved beyond inputs and output, declared are {s.max_saved_bytes * y.numel()}")
    kept.clear()
    with saved_tensors_hooks(pack, lambda t: t):
        s.op(*s.tensors)
    kept = [] if s.captured() else kept  # a parameter of the operator needs what is saved
    assert not kept, f"{len(kept)} tensors are saved though no input requires a gradient"


class _Work(TorchDispatchMode):
    """Counts the bytes that operations write to new memory; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not func.is_view and not any(a is result for a in args):
            self.bytes += result.nbytes
        return result


@check("machinery")
def unneeded_gradients_cost_nothing(s: Subject) -> None:
    """With one input of several requiring a gradient, the backward does less than with all, unless it does nothing."""
    if len(s.diff_argnums) < 2:
        raise NotApplicable("the operator has one differentiable input")

    def work(needed: tuple[int, ...]) -> int:
        leaves = [t.clone().requires_grad_(i in needed) for i, t in enumerate(s.tensors)]
        y = s.op(*leaves)
        ones = torch.ones_like(y)
        with _Work() as mode:
            gradients_of(y, [leaves[i] for i in needed], ones)
        return mode.bytes

    together, alone = work(s.argnums), [work((i,)) for i in s.argnums]
    if together and min(alone) >= together:
        raise AssertionError(
            f"the backward writes {alone} bytes for each gradient alone and {together} for all: vjp ignores ctx.needs_input_grad"
        )


@check("machinery")
def in_place_change_is_detected(s: Subject) -> None:
    """A saved input changed in place before the backward raises, or the gradient does not depend on it: never silently wrong."""
    expected = s.gradients(s.reference)
    for i in s.argnums:
        leaves = s.leaves()
        inputs = [leaf.clone() for leaf in leaves]
        total = scalar(s.op)(*inputs)
        with torch.no_grad():
            inputs[i].mul_(-3.0)
        try:
            actual = gradients_of(total, leaves)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error) and "has been modified inplace" not in str(error):
                raise
        else:
            close(actual, expected)


@check("machinery")
def autocast(s: Subject) -> None:
    """Under autocast an operator keeps its dtype and value, and the gradient is the declared one."""
    # Autocast lowers float32; in float64 it affects only explicit conversions.
    single = s.to_dtype(torch.float32)
    expected, gradients = s.op(*s.tensors), s.gradients(s.reference)
    value, slopes = single.op(*single.tensors), single.gradients(single.op)
    leaves = single.leaves()
    with torch.autocast(s.tensors[0].device.type, dtype=torch.bfloat16):
        equal(s.op(*s.tensors), expected)
        close(s.gradients(s.op), gradients)
        equal(single.op(*single.tensors), value)
        y = single.op(*leaves)
    # The backward outside, as torch recommends: inside it would lower the products of torch's own backward.
    close(gradients_of(scalar(lambda: y)(), leaves), slopes)


@check("machinery")
def modes_inside_transforms(s: Subject) -> None:
    """``no_grad`` inside nested transforms stops the same derivatives as for torch's own operators, at every level."""

    def without(f):
        def run(*x: Tensor) -> Tensor:
            with torch.no_grad():
                y = f(*x)
            return (y * f(*x)).sum() + sum(t.sum() for t in x)

        return run

    s.compare(lambda f: grad(without(f), s.argnums))
    s.compare(lambda f: jacrev(grad(without(f), s.argnums), s.argnums))
    s.compare(lambda f: jacrev(jacfwd(without(f), s.argnums), s.argnums))
    tangents = s.tangents()
    s.compare(lambda f: lambda *x: jvp(without(f), x, tangents))
    s.compare(lambda f: vmap(grad(without(f), s.argnums)), *s.batch())


@check("machinery")
def modes_around(s: Subject) -> None:
    """Inside ``no_grad`` and ``inference_mode`` the value is the same, without a graph; transforms inside work as usual."""
    gradients = s.gradients(s.reference)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            leaves = [t.clone().requires_grad_() for t in s.tensors] if mode is torch.no_grad else list(s.tensors)
            y = s.op(*leaves)
            assert not y.requires_grad
            equal(y, s.op(*s.tensors))
            plain = grad(lambda x: x.exp().sum())(torch.zeros(2))
            if not torch.equal(plain, torch.ones(2)):
                raise TorchLimit(f"torch {torch.__version__} loses gradients of its own operators in {mode.__name__}")
            close(grad(scalar(s.op), s.argnums)(*s.tensors), gradients)


@check("machinery")
def threads(s: Subject) -> None:
    """Eight threads at once, each with its own transform, get the result of one, in reverse mode; torch has one forward mode."""
    transforms = [lambda f: grad(scalar(f), s.argnums), lambda f: jacrev(grad(scalar(f), s.argnums)), lambda f: lambda *x: f(*x)]
    expected = [t(s.op)(*s.tensors) for t in transforms]
    with (
        s.without_captured("are exchanged for all threads while an operator made of functions is differentiated"),
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        results = list(pool.map(lambda i: transforms[i % 3](s.op)(*s.tensors), range(48)))
        for i, result in enumerate(results):
            close(result, expected[i % 3])


@check("machinery")
def gradients_in_every_dtype(s: Subject) -> None:
    """In float16, bfloat16 and float32 gradient and tangent have their tensor's dtype and agree with float64."""
    for dtype, tolerance in ((torch.float16, 4e-3), (torch.bfloat16, 3e-2), (torch.float32, 2e-5)):
        of_dtype = s.to_dtype(dtype)
        rounded, leaves = of_dtype.tensors, of_dtype.leaves()
        y = of_dtype.op(*leaves)
        actual = gradients_of(y, leaves, torch.ones_like(y))
        in_float64 = of_dtype.to_dtype(torch.float64)
        exact = in_float64.leaves()
        z = in_float64.reference(*exact)
        expected = gradients_of(z, exact, torch.ones_like(z))
        for a, e in zip(actual, expected, strict=True):
            assert a.dtype == dtype, f"gradient of dtype {a.dtype} for an input of {dtype}"
            scale = max(1.0, float(e.abs().max())) if e.numel() else 1.0
            torch.testing.assert_close(
                a.double() / scale, e / scale, rtol=0, atol=tolerance * max(1, y.numel() // max(1, a.numel()))
            )
        tangent = jvp(of_dtype.op, rounded, tuple(torch.ones_like(t) for t in rounded))[1]
        assert tangent.dtype == y.dtype, f"tangent of dtype {tangent.dtype} for a value of {y.dtype}"
