"""Which derivatives of a layer, alone and inside of the contexts of this package, raise or are silently wrong."""

import contextlib
import copy
import functools
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode, resolve_name

import fullgrad
from fullgrad._dispatch import pytree
from fullgrad._suite.torch_operators import forward, reverse
from fullgrad.diagnosis._flow import Call, attributes_kept, is_linear, reachable, snake_case

ADOPTING, COMPLETING = "with fullgrad.adopting():", "with fullgrad.completing():"
BOTH = "with fullgrad.adopting(), fullgrad.completing():"
CHECKPOINTS = "with fullgrad.adopting(checkpoint=True), fullgrad.completing():"
_CONTEXTS: dict[str, Callable[[], Any]] = {
    ADOPTING: fullgrad.adopting,
    COMPLETING: fullgrad.completing,
    BOTH: lambda: _both(False),
    CHECKPOINTS: lambda: _both(True),
}
BY_DIFFERENCES, BY_REVERSE = "central differences in float64", "reverse mode without torch.func"
BY_BOTH = "central differences in float64 and reverse mode without torch.func"
# What is refused on purpose: statistics that a batch shares cannot be updated by each of its samples.
_BY_DESIGN = re.compile("running_mean|running statistics")


class Tested(NamedTuple):
    """The failures of a layer alone and inside of each line, by the way of differentiating, and why it was not run."""

    fails: dict[str, str]
    inside: dict[str, dict[str, str]]
    why_not: str = ""
    by_design: tuple[str, ...] = ()  # operators for which forward mode differs from reverse mode, if it does
    by_no_grad: bool = False  # forward mode alone fails, of a layer that uses torch.no_grad, which forward mode ignores


class _Expected(NamedTuple):
    """The first and second derivative along directions, with how they were found, and what stands in the layer."""

    of_order: dict[int, tuple[Tensor, str]]
    has_no_grad: bool = False
    maps: tuple[str, ...] = ()  # the operators whose tangent is by declaration not the transpose of their gradient


@contextlib.contextmanager
def _both(checkpoint: bool) -> Any:
    with fullgrad.adopting(checkpoint=checkpoint), fullgrad.completing():
        yield


def tested(call: Call, has_functions: bool, known: Collection[str], step: Callable[..., None]) -> Tested:
    """The layer's derivatives by eight ways, in float64 where it takes it, with dropout off.

    The known ones fail in a layer inside of this one, and are not tried; ``step`` is called with each of the others first.
    """
    step("differences")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        why = ""
        for dtype in (torch.float64, None):
            try:
                f, xs = _scalar(call, dtype)
                if not xs:
                    return Tested({}, {}, "it has no floating input or parameter")
                value = f(*xs)
                if not value.isfinite():
                    return Tested({}, {}, "its value is NaN or infinite")
                if not torch.equal(value, f(*xs)):
                    return Tested({}, {}, "it draws random numbers")
                directions = tuple(torch.randn_like(x) * _scale(x) for x in xs)
                expected = _expected(f, xs, directions)
                break
            except Exception as error:
                why = _told(error)
        else:
            return Tested({}, {}, why)
        differ: list[str] = []
        fails = _fails(f, xs, directions, expected, step, known, differ)
        inside: dict[str, dict[str, str]] = {}
        for line in _CONTEXTS if fails else ():
            if has_functions or line in (COMPLETING, CHECKPOINTS):
                with _CONTEXTS[line]():
                    inside[line] = _fails(f, xs, directions, expected, functools.partial(step, line[:-1]))
                if not inside[line]:
                    break
    by_no_grad = bool(fails) and expected.has_no_grad and all("jvp" in title for title in fails)
    return Tested(fails, inside, "", expected.maps if differ else (), by_no_grad)


def _scalar(call: Call, dtype: torch.dtype | None) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """A scalar function of the parameters and the floating inputs of a layer, and their values."""
    layer = copy.deepcopy(call.module)
    _without_dropout(layer)
    if dtype is not None:
        layer = layer.to(dtype)

    def cast(v: Any) -> Any:
        v = v.detach() if isinstance(v, Tensor) else v
        return v.to(dtype) if dtype is not None and isinstance(v, Tensor) and v.is_floating_point() else v

    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    leaves = [cast(v) for v in leaves]
    where = [
        i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.is_floating_point() and v.numel() and v.isfinite().all()
    ]
    parameters = {n: p.detach() for n, p in layer.named_parameters() if p.is_floating_point() and p.numel()}
    buffers = dict(layer.named_buffers())

    def f(*xs: Tensor) -> Tensor:
        own = [v.clone() if isinstance(v, Tensor) else v for v in leaves]
        for i, x in zip(where, xs, strict=False):
            # A copy, whose tangent is batched as it is: a layer that begins in place writes into both.
            own[i] = torch.where(torch.ones_like(x, dtype=torch.bool), x, x)
        state = dict(zip(parameters, xs[len(where) :], strict=True)) | {n: b.clone() for n, b in buffers.items()}
        args, kwargs = pytree.tree_unflatten(own, spec)
        with attributes_kept(layer), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            y = torch.func.functional_call(layer, state, args, kwargs)
        parts = [v for v in pytree.tree_leaves(y) if isinstance(v, Tensor) and v.is_floating_point()]
        return sum([(0.7 * v).sin().sum() / max(1, v.numel()) ** 0.5 for v in parts])  # type: ignore[return-value]

    return f, (*[leaves[i] for i in where], *parameters.values())


def _without_dropout(layer: nn.Module) -> None:
    """Layers without dropout: the random numbers of each way would be others."""
    for module in layer.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
            module.dropout = 0.0


def _scale(x: Tensor) -> float:
    rms = float(x.square().mean().sqrt())
    return rms if 1e-3 < rms < 1e3 else 1.0


def _expected(f: Any, xs: Any, vs: Any) -> _Expected:
    """The derivatives along directions, without those that cannot be found."""
    leaves = [x.detach().requires_grad_() for x in xs]
    found: dict[int, tuple[Tensor, str]] = {}

    def along(y: Tensor, create_graph: bool) -> Tensor:
        if not y.requires_grad:
            return y.detach() * 0
        gradients = torch.autograd.grad(y, leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True)
        return sum([(g * v).sum() for g, v in zip(gradients, vs, strict=True)])  # type: ignore[return-value]

    with _Constants() as constants:
        y = f(*leaves)
    try:
        first = along(y, True)
    except RuntimeError:  # a checkpoint that works with `backward` alone
        return _Expected({})
    found[1] = first.detach(), BY_REVERSE
    classes = [cls for node in reachable([y.grad_fn]) if (cls := getattr(type(node), "_forward_cls", None)) is not None]
    # Where the derivative is a declared one, differences of the value are another.
    is_declared = constants.are_made or bool(classes)
    by_differences = _differences(f, xs, vs) if xs[0].dtype == torch.float64 and not is_declared else None
    with contextlib.suppress(RuntimeError, NotImplementedError):
        found[2] = along(first, False).detach(), BY_REVERSE
    if by_differences is not None and _close(found[1][0], by_differences[0], False):
        # Differences tell whether reverse mode is right, which has more digits where it is.
        rows = {order: (found.get(order, (torch.tensor(torch.nan), ""))[0], by_differences[order - 1]) for order in (1, 2)}
        found = {order: (a, BY_BOTH) if _close(a, b, False) else (b, BY_DIFFERENCES) for order, (a, b) in rows.items()}
    found = {order: e for order, e in found.items() if e[0].isfinite()}
    maps = dict.fromkeys(snake_case(cls.__name__) for cls in classes if not is_linear(cls))
    return _Expected(found, constants.under_no_grad, (*maps,))


def _differences(f: Callable[..., Tensor], xs: Sequence[Tensor], vs: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
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


def _ways(f: Callable[..., Tensor], vs: Sequence[Tensor]) -> dict[str, tuple[Callable[..., Tensor], int]]:
    """Eight ways to compute a derivative along directions, each with its order."""

    def batched(g: Any) -> Any:
        return lambda *x: vmap(g, randomness="same")(*[torch.stack([v, v]) for v in x])[1]

    pushed, pulled = forward(f, vs), reverse(f, vs)
    return {
        "torch.func.grad": (pulled, 1),
        "jvp": (pushed, 1),
        "grad over grad": (reverse(pulled, vs), 2),
        "jvp over grad, the product with the Hessian": (forward(pulled, vs), 2),
        "grad over jvp": (reverse(pushed, vs), 2),
        "jvp over jvp": (forward(pushed, vs), 2),
        "vmap(grad)": (batched(pulled), 1),
        "vmap(jvp over jvp)": (batched(forward(pushed, vs)), 2),
    }


class _Constants(TorchFunctionMode):
    """Whether values with a gradient are used as constants, as spectral norms do."""

    are_made = under_no_grad = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = resolve_name(func) or ""
        if not torch.is_grad_enabled() or name.rpartition(".")[2] in ("detach", "detach_") or ".data." in name:
            leaves = pytree.tree_leaves((args, kwargs))
            is_made = any(isinstance(v, Tensor) and v.requires_grad for v in leaves)
            self.are_made |= is_made
            self.under_no_grad |= is_made and not torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))


def _close(a: Tensor, b: Tensor, is_exact: bool) -> bool:
    rtol, atol = (1e-4, 1e-5) if is_exact else (2e-3, 1e-3)
    return torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)


def _fails(
    f: Any,
    xs: Any,
    vs: Any,
    expected: _Expected,
    step: Callable[..., None],
    known: Collection[str] = (),
    differ: list[str] | None = None,
) -> dict[str, str]:
    """The errors of the ways that raise, and how others are wrong; ``differ`` takes the ways that differ by design."""
    found: dict[str, str] = {}
    for title, (way, order) in _ways(f, vs).items():
        if title in known:
            continue
        step(title)
        try:
            got = way(*xs)
        except Exception as error:
            # Random numbers that are the same for each sample were asked for here, not by the user.
            if not _BY_DESIGN.search(str(error)) and "same randomness" not in str(error):
                found[title] = f"raises {_told(error)}"
            continue
        right, how = expected.of_order.get(order, (got, ""))
        if not _close(got, right, right.dtype == torch.float64 and how != BY_DIFFERENCES):
            if expected.maps and "jvp" in title:
                if differ is not None:
                    differ.append(title)
                continue
            found[title] = f"is silently wrong: {float(got):.6g}, {how}: {float(right):.6g}"
    return found


def _told(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0].partition('. ')[0][:200]}" if text else type(error).__name__
