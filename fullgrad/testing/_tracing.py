"""Checks of clause 5 under tracers: compile, make_fx, export."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fullgrad.testing._registry import check
from fullgrad.testing._subject import NotApplicable, Subject, close, equal, gradients_of, plain, scalar


@check("tracing", issue=180284)
def compile_forward_and_backward(s: Subject) -> None:
    """``torch.compile(fullgraph=True)`` of the operator: value and gradient."""

    def gradients(f):
        leaves = s.leaves()
        y = f(*leaves)
        return y.detach(), gradients_of(scalar(lambda *_: y)(*leaves), leaves)

    close(gradients(s.compiled(lambda f: f)), gradients(s.reference))


@check("tracing")
def compile_the_operator_itself(s: Subject) -> None:
    """The operator itself is compiled, not a function around it."""
    torch.compiler.reset()
    compiled = torch.compile(s.operator, backend=s.options.get("backend", "aot_eager"), fullgraph=True)
    for actual, expected in zip(*map(_tensors, (compiled(*s.inputs), s.operator(*s.inputs))), strict=True):
        same(s, actual, expected)


def same(s: Subject, actual: Tensor, expected: Tensor) -> None:
    """Check equality in every bit if the operator has an exact value, else up to some roundings: traced code may compute a
    relaxation in other steps.
    """
    if s.value is not None or not expected.is_floating_point():
        equal(actual, expected)
    elif expected.numel():
        roundings = 64 * torch.finfo(expected.dtype).eps
        close(actual, expected, rtol=roundings, atol=roundings * float(expected.abs().nan_to_num(0, 0, 0).max()))


def _tensors(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [v for v in output if isinstance(v, Tensor)]


@check("tracing")
def compile_dynamic_shapes(s: Subject) -> None:
    """One compiled function gives the gradient at changing sizes without being compiled again."""
    # Two rows of four, doubled, are square, and a graph for squares serves no other shape.
    batches = [s.repeated(size) for size in (3, 5, 2)]

    def transform(f: Callable[..., Any]) -> Callable[..., Any]:
        return grad(scalar(f), s.argnums)

    close(s.compiled_calls(transform, batches, dynamic=True), [transform(s.reference)(*batch) for batch in batches])


@check("tracing")
def compile_changing_numbers(s: Subject) -> None:
    """One compiled function has the eager value and gradient for other numbers, which torch traces as symbols: Python's among the
    inputs, where the operator takes another one.
    """
    calls = [s.inputs, *s.with_other_numbers()]
    if len(calls) == 1:
        raise NotApplicable("no number among the inputs may have another value")
    places = [i for i in range(len(s.inputs)) if calls[0][i] is not calls[1][i]]
    s.bind(plain)  # which Dynamo traces below: it cannot enter the lock of a property that is computed for the first time

    def with_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
        def total(numbers: tuple[Any, ...], *tensors: Tensor) -> Tensor:
            arguments = list(s.inputs)
            for i, v in zip(places, numbers, strict=True):
                arguments[i] = v
            return scalar(s.bind(function, arguments))(*tensors)

        return lambda numbers, *tensors: grad_and_value(total, tuple(i + 1 for i in s.argnums))(numbers, *tensors)

    given = [tuple(inputs[i] for i in places) for inputs in calls]

    def run(function: Callable[..., Any]) -> list[Any]:
        torch.compiler.reset()
        compiled = torch.compile(
            with_numbers(function), backend=s.options.get("backend", "aot_eager"), fullgraph=True, dynamic=True
        )
        return [compiled(numbers, *s.tensors) for numbers in given]

    close(s.possible(run, s.operator, s.surrogate or plain), [with_numbers(s.operator)(numbers, *s.tensors) for numbers in given])


@check("tracing", issue=193279)
def compile_grad(s: Subject) -> None:
    """``grad`` inside compiled code."""
    s.compare_compiled(lambda f: grad(scalar(f), s.argnums))


@check("tracing", issue=192985)
def compile_jvp(s: Subject) -> None:
    """``jvp`` inside compiled code."""
    tangents = s.tangents()
    s.compare_compiled(lambda f: lambda *x: jvp(f, x, tangents))


@check("tracing", issue=193279)
def compile_vmap_of_grad(s: Subject) -> None:
    """Per-sample gradients inside compiled code."""
    s.compare_compiled(lambda f: vmap(grad(scalar(f), s.argnums)), *s.batch())


@check("tracing")
def compile_vmap(s: Subject) -> None:
    """``vmap`` inside compiled code, and the gradient through it from outside."""
    batch = s.batch(-1)
    s.compare_compiled(lambda f: vmap(f, in_dims=-1), *batch)


@check("tracing", issue=192985)
def compile_hessian(s: Subject) -> None:
    """``hessian`` inside compiled code."""
    s.compare_compiled(lambda f: hessian(scalar(f), s.argnums))


@check("tracing", issue=192985)
def compile_forward_over_forward(s: Subject) -> None:
    """``jacfwd(jacfwd(f))`` inside compiled code."""
    s.compare_compiled(lambda f: jacfwd(jacfwd(scalar(f), s.argnums), s.argnums))


@check("tracing")
def make_fx_of_transforms(s: Subject) -> None:
    """``make_fx`` of gradients: the traced graph gives the declared derivative, at other inputs too."""
    batch = s.batch(size=2)
    tangents = s.tangents()
    transforms = (
        lambda f: grad(scalar(f), s.argnums),
        lambda f: vmap(grad(scalar(f), s.argnums)),
        lambda f: lambda *x: jvp(f, x, tangents),
        lambda f: jacrev(grad(scalar(f), s.argnums), s.argnums),
    )
    for i, transform in enumerate(transforms):
        first, second = (batch, tuple(b.flip(0) for b in batch)) if i == 1 else (s.tensors, tuple(b[1] for b in batch))
        graph = s.possible(lambda f, transform=transform, first=first: make_fx(transform(f))(*first))
        for arguments in (first, second):
            close(graph(*arguments), transform(s.reference)(*arguments))


@check("tracing")
def export_value(s: Subject) -> None:
    """``torch.export``, strict and not, keeps the value."""

    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return s.op(*tensors)

    for strict in (False, True):
        torch.compiler.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own deprecated calls
            program = torch.export.export(Module(), s.tensors, strict=strict)
        same(s, program.module()(*s.tensors), s.op(*s.tensors))
