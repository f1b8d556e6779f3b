"""The laws that a `Program` may have to keep, with a surrogate or without."""

import functools
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from fullgrad._core.recomputed import without_aux
from fullgrad._dispatch import active_transforms, is_forward_mode
from fullgrad._suite.fuzz._program import Program, Step, is_elementwise
from fullgrad.testing._subject import close, equal, like, scalar

Function = Callable[..., Any]


class Rejected(Exception):
    """An error for programs that prove nothing: the law does not apply to the inputs, or they are clearly refused."""


# The errors of an operator that refuses an input: its name, the rule, and the value.
_REFUSALS = (TypeError, ValueError, IndexError, NotImplementedError)
_NAMED = re.compile(r"\w+: ")

LAWS: dict[str, Callable[[Program], None]] = {}


def law(function: Callable[[Program], None]) -> Callable[[Program], None]:
    """Put a law into `LAWS`."""
    LAWS[function.__name__] = function
    return function


def _call(f: Function, *args: Any) -> Any:
    """A call of the operator, whose clear refusal rejects the program."""
    try:
        return f(*args)
    except _REFUSALS as error:
        if not _NAMED.match(str(error)):
            raise
        raise Rejected(str(error)) from error


def _reference(f: Function, *args: Any) -> Any:
    """A call of torch's own code, whose error rejects the program, as there is nothing to compare with."""
    try:
        return f(*args)
    except Exception as error:
        raise Rejected(f"torch: {error}") from error


def _reverse(f: Function, tensors: Sequence[Tensor], g: Tensor | None = None, **how: Any) -> Any:
    """Value and gradients by the autograd engine."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = f(*leaves)
    g = like(y, 7) if g is None else g
    found = torch.autograd.grad(y, leaves, g, allow_unused=True, **how) if y.requires_grad else [None] * len(leaves)
    return y.detach(), [torch.zeros_like(t) if d is None else d.detach() for t, d in zip(leaves, found, strict=True)]


# --- Laws with a reference ------------------------------------------------------------------------------------------------


@law
def value(program: Program) -> None:
    """The value of the plain function, to the last bit, in every mode."""
    case, x = program.subject, program.tensors()
    if case.value is None:
        raise Rejected("no plain function")
    found = _call(MODES[program.mode], case.op, x)
    equal(found.detach(), _reference(case.bind(case.value), *x))


MODES: dict[str, Callable[[Function, Sequence[Tensor]], Tensor]] = {
    "plain": lambda f, x: f(*x),
    "requires grad": lambda f, x: f(*[t.detach().requires_grad_() for t in x]),
    "no grad": lambda f, x: torch.no_grad()(f)(*[t.detach().requires_grad_() for t in x]),
    "inference": lambda f, x: torch.inference_mode()(f)(*x).clone(),
    "jvp": lambda f, x: jvp(f, tuple(x), tuple(like(t, 3) for t in x))[0],
    "vjp": lambda f, x: vjp(f, *x)[0],
    "vmap": lambda f, x: vmap(f)(*[t.unsqueeze(0) for t in x]).squeeze(0),
}


@law
def nesting(program: Program) -> None:
    """Up to three nested transforms of the operator equal those of the surrogate."""
    case, x = program.subject, program.tensors()
    if case.surrogate is None:
        raise Rejected("no surrogate")
    # Some surrogates hold for the case's own order of elements, or number of columns.
    y = _call(case.op, *x)
    if not torch.allclose(y, _reference(case.reference, *x), rtol=1e-6, atol=1e-8, equal_nan=True):
        raise Rejected("the surrogate is that of other inputs")
    expected = _reference(nested(case.reference, program.steps, x), *x)
    close(_call(nested(case.op, program.steps, x), *x), expected)


def nested(f: Function, steps: Sequence[Step], x: Sequence[Tensor]) -> Function:
    """A function with transforms around it, from the inside out. Each gives a function of the same inputs."""
    for number, step in enumerate(steps):
        f = _TRANSFORMS[step.name](f, step, x, 10 * number)
    return f


def _vmapped(f: Function, step: Step, x: Sequence[Tensor], seed: int) -> Function:
    """A batch of inputs near the given ones: of all inputs, or of one while the others are not batched."""
    dims = step.in_dims(x)
    near = [1 + 0.01 * like(t.new_empty(2, *t.shape), seed + i) for i, t in enumerate(x)]

    def batched(*tensors: Tensor) -> Tensor:
        given = [t if d is None else n.movedim(0, d) * t.unsqueeze(d) for n, t, d in zip(near, tensors, dims, strict=True)]
        return vmap(f, in_dims=dims)(*given)

    return batched


_TRANSFORMS: dict[str, Callable[[Function, Step, Sequence[Tensor], int], Function]] = {
    "grad": lambda f, s, x, seed: lambda *a: grad(scalar(f), s.argument % len(x))(*a),
    "vjp": lambda f, s, x, seed: lambda *a: _pulled(f, s, a, seed),
    "jvp": lambda f, s, x, seed: _pushed(f, tuple([like(t, seed + i) for i, t in enumerate(x)])),
    "jacrev": lambda f, s, x, seed: lambda *a: jacrev(f, s.argument % len(x))(*a),
    "jacfwd": lambda f, s, x, seed: lambda *a: jacfwd(f, s.argument % len(x))(*a),
    "vmap": _vmapped,
}
FORWARD = ("jvp", "jacfwd")


def _pushed(f: Function, tangents: tuple[Tensor, ...]) -> Function:
    return lambda *a: jvp(f, a, tangents)[1]


def _pulled(f: Function, step: Step, args: Sequence[Tensor], seed: int) -> Tensor:
    return _by_vjp(f, args, _weights)[1][step.argument % len(args)]


def _by_vjp(f: Function, x: Sequence[Tensor], cotangent: Callable[[Tensor], Tensor] = lambda y: like(y, 7)) -> Any:
    """Value and gradients by `torch.func.vjp`."""
    y, pull = without_aux(vjp(f, *x))
    return y, list(pull(cotangent(y)))


def _weights(y: Tensor) -> Tensor:
    """A cotangent that differs everywhere, also inside a transform."""
    return torch.arange(1, y.numel() + 1, dtype=torch.float64).reshape(y.shape).cos().to(y.device, y.dtype)


@law
def compiled(program: Program) -> None:
    """Gradients in one graph equal those of eager code, by turns with symbols for sizes and numbers."""
    case, x = program.subject, program.tensors()
    f = nested(case.op, program.steps, x)
    in_graph = functools.partial(torch.compile, backend="aot_eager", fullgraph=True, dynamic=program.seed % 2 == 1)
    expected = _call(f, *x)
    torch.compiler.reset()
    try:
        found = in_graph(f)(*x)
    except Exception as error:
        if case.surrogate is None:
            raise Rejected("there is no surrogate to compile") from error
        torch.compiler.reset()
        _reference(in_graph(nested(case.reference, program.steps, x)), *x)
        raise
    close(found, expected)


# --- Laws without one -----------------------------------------------------------------------------------------------------


@law
def loop(program: Program) -> None:
    """A batch gives the values and gradients of its samples one by one, at any position of the batch dimension."""
    case, step = program.subject, program.steps[0]
    samples = [replace(program, seed=program.seed + i).tensors() for i in (0, 1, 2)]
    first, dims = samples[0], step.in_dims(samples[0])
    if not case.linear and None in dims:
        raise Rejected("the derivative of an input that is not batched depends on the whole cotangent")

    def both(*a: Tensor) -> Any:
        return _by_vjp(case.op, a, _weights)

    rows = [[first[i] if d is None else s[i] for i, d in enumerate(dims)] for s in samples]
    expected = [_call(both, *row) for row in rows]
    batch = [first[i] if d is None else torch.stack([s[i] for s in samples], d) for i, d in enumerate(dims)]
    y, gradients = vmap(both, in_dims=dims)(*batch)
    _near(program, (y, *gradients), [torch.stack(one) for one in zip(*[(v, *g) for v, g in expected], strict=True)])


@law
def layouts(program: Program) -> None:
    """Another memory layout of the same numbers gives the same results."""
    case, x = program.subject, program.tensors()
    plain = [t.clone(memory_format=torch.contiguous_format) for t in x]
    expected = _call(_reverse, case.op, plain)
    found = _reverse(case.op, x)
    _near(program, _flat(found), _flat(expected))
    if case.has_tangent and program.layout != "expanded":  # torch makes no dual number of such a tensor
        tangents = tuple(like(t, 5) for t in plain)
        _near(program, [jvp(case.op, x, tangents)[1]], [jvp(case.op, tuple(plain), tangents)[1]])


@law
def ways(program: Program) -> None:
    """The gradient is the same by the engine, with a graph, by transforms, in batches, with hooks, checkpoints and threads."""
    case, x = program.subject, program.tensors()
    expected, found = _flat(_call(_reverse, case.op, x)), _flat(WAYS[program.mode](case.op, x))
    if program.mode == "batched" and not is_elementwise(case):
        # In torch's older vmap a derivative has no closed form, and intermediate values of the largest numbers overflow to NaN.
        found = [torch.where(a.isnan() | b.isnan(), b, a) for a, b in zip(found, expected, strict=True)]
    _near(program, found, expected)


def _in_thread(f: Function, x: Sequence[Tensor]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(_reverse(f, x)))
    thread.start()
    thread.join()
    if not found:
        raise AssertionError("it raises in another thread")
    return found[0]


def _through_hooks(f: Function, x: Sequence[Tensor]) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return _reverse(f, x)


def _batched_cotangents(f: Function, x: Sequence[Tensor]) -> Any:
    leaves = [t.detach().requires_grad_() for t in x]
    y = f(*leaves)
    if not y.requires_grad:
        return _reverse(f, x)
    g = like(y, 7)
    found = torch.autograd.grad(y, leaves, torch.stack((g, g)), is_grads_batched=True, allow_unused=True)
    return y.detach(), [torch.zeros_like(t) if d is None else d[1] for t, d in zip(leaves, found, strict=True)]


def _batch_of_one(f: Function, x: Sequence[Tensor]) -> Any:
    """Value and gradients by `torch.func.vmap` of a batch of one."""
    g = like(f(*x), 7)

    def sample(*a: Tensor) -> Any:
        return _by_vjp(f, a, lambda _: g)

    y, gradients = vmap(sample)(*[t.unsqueeze(0) for t in x])
    return y.squeeze(0), [t.squeeze(0) for t in gradients]


WAYS: dict[str, Callable[[Function, Sequence[Tensor]], Any]] = {
    "vjp": _by_vjp,
    "graph": lambda f, x: _reverse(f, x, create_graph=True),
    "batched": _batched_cotangents,
    "hooks": _through_hooks,
    "checkpoint": lambda f, x: _reverse(lambda *a: checkpoint(f, *a, use_reentrant=False), x),
    "thread": _in_thread,
    "vmap": _batch_of_one,
    "one at a time": lambda f, x: (f(*x), [_of_one(f, x, i) for i in range(len(x))]),
}


def _of_one(f: Function, x: Sequence[Tensor], i: int) -> Tensor:
    """The gradient of one input, the only one that requires it."""
    leaf = x[i].detach().requires_grad_()
    y = f(*x[:i], leaf, *x[i + 1 :])
    found = torch.autograd.grad(y, leaf, like(y, 7), allow_unused=True)[0] if y.requires_grad else None
    return torch.zeros_like(leaf) if found is None else found


@law
def adjoint(program: Program) -> None:
    """``jvp`` and ``vjp`` are transposes of each other."""
    case, x = program.subject, program.tensors()
    if not (case.linear and case.has_tangent):
        raise Rejected("its derivative is not linear")
    tangents = tuple([like(t, 3 + i) for i, t in enumerate(x)])
    y, tangent = _call(jvp, case.op, x, tangents)
    g = like(y, 7)
    gradients = vjp(case.op, *x)[1](g)
    pairs = [(g, tangent), *zip(gradients, tangents, strict=True)]
    products = [(a.double() * b.double()) for a, b in pairs]
    if not all(p.isfinite().all() for p in products):
        raise Rejected("infinite")
    left, right = products[0].sum(), sum(p.sum() for p in products[1:])
    size = float(sum(p.abs().sum() for p in products)) + float(g.double().norm() * sum(t.double().norm() for t in tangents))
    allowed = 64 * torch.finfo(x[0].dtype).eps * (1 + max(p.numel() for p in products) ** 0.5)
    if abs(float(left - right)) > allowed * size:
        raise AssertionError(f"<g, J t> = {float(left)!r}, and <J^T g, t> = {float(right)!r}")


@law
def orders(program: Program) -> None:
    """Second derivatives along directions: reverse over reverse equals reverse over forward; forward over either, too."""
    case, x = program.subject, program.tensors()
    if not (case.linear and case.has_tangent):
        raise Rejected("its derivative is not linear")
    f, every = scalar(case.op), tuple(range(len(x)))
    one, other = (tuple([like(a, seed + i) for i, a in enumerate(x)]) for seed in (3, 13))

    def slope(*a: Tensor) -> Any:
        return grad(f, every)(*a)

    def along(*a: Tensor) -> Tensor:
        return jvp(f, a, one)[1]

    twice = _call(lambda *a: vjp(slope, *a)[1](one), *x)
    close(grad(along, every)(*x), twice)
    pushed = jvp(slope, x, other)[1]
    close(jvp(along, x, other)[1], sum((a * b).sum() for a, b in zip(pushed, one, strict=True)))


@law
def precision(program: Program) -> None:
    """Gradients in a shorter dtype are those of float64 at the same numbers, up to roundings."""
    case, x = program.subject, program.tensors()
    y, gradients = _call(_reverse, case.op, x)
    g = like(y, 7)
    wide, exact = _reference(_reverse, case.op, [t.double() for t in x], g.double())
    if not torch.equal(y.double(), wide):
        ok = torch.isclose(y.double(), wide, rtol=16 * torch.finfo(y.dtype).eps, atol=1e-3, equal_nan=True)
        if not ok.all():
            raise Rejected("the value is on another step")
    eps = torch.finfo(x[0].dtype).eps
    for found, expected in zip(gradients, exact, strict=True):
        size = float(expected.abs().nan_to_num(0, 0, 0).sum()) + 1
        close(found.double(), expected, rtol=64 * eps, atol=64 * eps * size)


def _flat(found: Any) -> list[Tensor]:
    y, gradients = found
    return [y, *gradients]


def _near(program: Program, found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Equal up to some roundings of the dtype; where elements are summed, relative to the largest, or to the cotangent."""
    for a, b in zip(found, expected, strict=True):
        eps = torch.finfo(getattr(torch, program.dtype)).eps
        size = 0.0 if is_elementwise(program.subject) and len(program.subject.tensors) == 1 else 1.0
        if b.numel():
            size = max(size, float(b.abs().nan_to_num(0, 0, 0).max()))
        close(a, b, rtol=64 * eps, atol=max(64 * eps * min(size, 1e300), torch.finfo(a.dtype).tiny))  # subnormals are 0


def check(program: Program) -> None:
    """Raise an error if the program breaks its law or changes torch's state; `Rejected` if it proves nothing."""
    before = _state()
    try:
        LAWS[program.law](program)
    finally:
        if _state() != before:
            raise AssertionError(f"grad mode, forward mode, inference mode, transforms, autocast were {before}, are {_state()}")


def _state() -> tuple[Any, ...]:
    """The state of torch that an operator must not change."""
    autocast = torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()
    return torch.is_grad_enabled(), is_forward_mode(), *autocast, tuple(active_transforms())
