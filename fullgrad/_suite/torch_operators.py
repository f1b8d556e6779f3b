"""torch's own operators on torch's own samples: derivatives of first and second order in every nesting, next to differences.

`measured` says what is wrong or raises, for torch alone and inside `fullgrad.completing`.
"""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

import fullgrad
from fullgrad._dispatch import operator_database, pytree

WRONG = "wrong"
# What this comparison cannot judge: operators that draw, sparse or complex results, results without a derivative by their nature
# (statistics, residuals), results that depend on memory beyond the input, and Functions that torch writes in Python.
_DRAWS = "dropout|bernoulli|rrelu|fractional_max_pool|lowrank|normal|multinomial|uniform|cauchy|exponential|geometric|^rand"
_OTHERS = "sparse|complex|native_layer_norm|batch_norm_with_update|native_batch_norm|lstsq|max_unpool|as_strided|tensor_split"
LEFT_OUT = re.compile(f"{_DRAWS}|{_OTHERS}|linalg.eig|linear_cross_entropy|triangular_solve|pinv")
# What is refused on purpose: statistics that a batch shares cannot be updated by each of its samples.
BY_DESIGN = re.compile("running_mean|running statistics")


class Found(NamedTuple):
    """The samples that were judged, and by the way of differentiating `WRONG` or the error, alone and inside."""

    samples: int
    alone: dict[str, str]
    inside: dict[str, str]


def operators() -> list[Any]:
    """torch's descriptions of its operators that have a derivative."""
    return [op for op in operator_database() if op.supports_autograd and not LEFT_OUT.search(op.name)]


def name_of(op: Any) -> str:
    """The name of an operator with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def issues() -> dict[str, int]:
    """torch's public issues, by the name of an operator."""
    return {
        "cdist": 83510,
        "cholesky_inverse": 198017,
        "cholesky_solve": 196694,
        "cumprod": 196701,
        "linalg.det": 196696,
        "linalg.householder_product": 196698,
        "linalg.slogdet": 196697,
        "linalg.solve": 192540,
        "linalg.solve_ex": 192540,
        "logdet": 196697,
        "nn.functional.batch_norm": 196699,
        "nn.functional.grid_sample": 34704,
        "nn.functional.instance_norm": 196699,
        "nn.functional.layer_norm": 196700,
        "nn.functional.scaled_dot_product_attention": 116350,
        "scatter_reduce.prod": 196702,
    }


def measured(op: Any, count: int) -> Found:
    """The first ``count`` samples of an operator that can be judged."""
    found, seen = Found(0, {}, {}), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for f, xs in _samples(op):
            directions = tuple(torch.randn_like(x) for x in xs)
            expected = differences(f, xs, directions)
            if expected is None:
                continue
            seen += 1
            for context, results in ((contextlib.nullcontext(), found.alone), (fullgrad.completing(), found.inside)):
                with context:
                    _compare(f, xs, directions, *expected, results)
            if seen == count:
                break
    return found._replace(samples=seen)


def _samples(op: Any) -> Iterator[tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    """Scalar functions of the tensors of samples that have a derivative, and those tensors."""
    for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        if any(isinstance(v, Tensor) and v.numel() > 400 for v in leaves):
            continue
        where = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.requires_grad and v.numel()]
        where = [i for i in where if leaves[i].dtype == torch.float64]
        if not where:
            continue
        leaves = [v.detach() if isinstance(v, Tensor) else v for v in leaves]

        def f(*xs: Tensor, leaves: Any = leaves, spec: Any = spec, where: Any = where, sample: Any = sample) -> Any:
            own = [v.clone() if isinstance(v, Tensor) else v for v in leaves]
            for i, x in zip(where, xs, strict=True):
                own[i] = x
            first, args, kwargs = pytree.tree_unflatten(own, spec)
            y = op.gradcheck_wrapper(op.op, first, *args, **kwargs)
            if sample.output_process_fn_grad is not None:
                y = sample.output_process_fn_grad(y)
            parts = [v for v in pytree.tree_leaves(y) if isinstance(v, Tensor) and v.dtype == torch.float64]
            return sum([(v * 0.7).sin().sum() for v in parts])

        yield f, tuple(leaves[i] for i in where)


def differences(f: Callable[..., Tensor], xs: Sequence[Tensor], vs: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """The first and second derivative along a direction, or None where differences do not give them."""

    def at(t: float) -> Tensor:
        return f(*[x + t * v for x, v in zip(xs, vs, strict=True)])

    try:
        y = at(0.0)
        if not isinstance(y, Tensor) or not torch.equal(y, at(0.0)):
            return None
        first = (at(1e-5) - at(-1e-5)) / 2e-5
        second, coarse = [(at(h) - 2 * y + at(-h)) / h**2 for h in (1e-4, 2e-4)]
    except Exception:  # a sample that shows an error, or does not bear other numbers
        return None
    is_smooth = abs(second - coarse) <= 1e-3 * max(1.0, abs(second)) and abs(second) <= 1e4
    return (first, second) if first.isfinite() and second.isfinite() and is_smooth else None


def _compare(f: Any, xs: Any, vs: Any, first: Tensor, second: Tensor, results: dict[str, str]) -> None:
    for name, (way, order) in ways(f, xs, vs).items():
        try:
            if not torch.allclose(way(*xs), first if order == 1 else second, rtol=2e-3, atol=1e-3):
                results[name] = WRONG
        except Exception as error:
            if not BY_DESIGN.search(str(error)):
                results.setdefault(name, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100]}")


def ways(f: Any, xs: Any, vs: Any) -> dict[str, tuple[Callable[..., Tensor], int]]:
    """Eight ways to compute a derivative along directions, each with its order."""
    numbers = tuple(range(len(xs)))

    def along(*x: Tensor) -> Tensor:
        return sum([(g * v).sum() for g, v in zip(grad(f, numbers)(*x), vs, strict=True)])  # type: ignore[return-value]

    def pushed(g: Any) -> Any:
        return lambda *x: jvp(g, x, vs)[1]

    def pulled(g: Any) -> Any:
        return lambda *x: sum([(a * v).sum() for a, v in zip(grad(g, numbers)(*x), vs, strict=True)])

    def batched(g: Any) -> Any:
        return lambda *x: vmap(g, randomness="same")(*[torch.stack([v, v]) for v in x])[1]

    return {
        "reverse": (along, 1),
        "forward": (pushed(f), 1),
        "reverse over reverse": (pulled(along), 2),
        "forward over reverse": (pushed(along), 2),
        "reverse over forward": (pulled(pushed(f)), 2),
        "forward over forward": (pushed(pushed(f)), 2),
        "vmap of reverse": (batched(along), 1),
        "vmap of forward over forward": (batched(pushed(pushed(f))), 2),
    }
