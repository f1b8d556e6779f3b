"""`Subject`: an operator under test, the plain torch code that it must agree with, and ways to compare the two."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.func import vmap

from fullgrad._dispatch import is_forward_mode, pytree, release_guards, set_forward_mode
from fullgrad._engine.held import put, tensor_places, tensors_held

# Those of the subject that is checked.
tolerances: contextvars.ContextVar[tuple[float, float] | None] = contextvars.ContextVar(
    "fullgrad.testing.tolerances", default=None
)
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


class NotApplicable(Exception):
    """A check that does not apply to this operator; the reason is the message."""


class TorchLimit(NotApplicable):
    """A check that torch cannot do even for its own operators, so that it says nothing about the operator."""


@dataclass(frozen=True)
class Subject:
    """An operator, one list of inputs, and its oracles.

    Args:
        operator: The callable under test; returns one tensor, or a tuple whose floating tensors are treated as one.
        inputs: Its positional arguments. Floating tensors are differentiated, the rest is constant.
        surrogate: Plain torch code with the operator's declared derivative at every order, and its value up to rounding. Without
            one the transforms are compared with each other: eager reverse mode is then the reference.
        value: Plain torch code with the operator's value, to the last bit. None to leave that unchecked.
        smooth_forwards: For ``gradcheck``: operator classes, each with a smooth function whose true derivative is the declared
            one, to run in place of its ``forward`` while the class keeps its own rules. None where no such function exists.
        max_saved_bytes: Bytes per element of the output that may be saved beyond inputs and output; None for any number.
        linear: Whether the derivative is linear in the cotangent, so that ``jvp`` and ``vjp`` are adjoint.
        options: Options of single checks, by name, such as ``backend`` for compilation.
        has_tangent: Whether there is a forward-mode derivative.
        draws: For an operator that draws random numbers: called with the inputs and ``generator``, it draws the noise of one
            call, which the operator takes as ``noise``. True for an operator that takes none.
        random_operator: The operator that draws; None where it is ``operator``.
        random_inputs: Its inputs; None where they are ``inputs``.
        tolerances: ``rtol`` and ``atol`` of comparisons; None for those of rounding in float64.
        constant: Positions of floating tensors among the inputs that are not differentiated.
    """

    operator: Callable[..., Any]
    inputs: tuple[Any, ...]
    surrogate: Callable[..., Tensor] | None = None
    value: Callable[..., Tensor] | None = None
    smooth_forwards: Mapping[Any, Callable[..., Any]] | None = None
    max_saved_bytes: int | None = 0
    linear: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    has_tangent: bool = True
    draws: Callable[..., Tensor] | bool = False
    random_operator: Callable[..., Tensor] | None = None
    random_inputs: tuple[Any, ...] | None = None
    tolerances: tuple[float, float] | None = None
    constant: tuple[int, ...] = ()

    # --- Inputs -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def diff_argnums(self) -> tuple[int, ...]:
        """The positions of the differentiable inputs."""
        floating = [i for i, v in enumerate(self.inputs) if isinstance(v, Tensor) and v.is_floating_point()]
        return tuple(i for i in floating if i not in self.constant)

    @functools.cached_property
    def constant_argnums(self) -> tuple[int, ...]:
        """The positions of the other tensors, such as indices and masks."""
        return tuple(i for i, v in enumerate(self.inputs) if isinstance(v, Tensor) and i not in self.diff_argnums)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The differentiable inputs, outside any graph."""
        return tuple(self.inputs[i].detach() for i in self.diff_argnums)

    @property
    def argnums(self) -> tuple[int, ...]:
        """Every differentiable input, for torch.func."""
        return tuple(range(len(self.diff_argnums)))

    def leaves(self) -> tuple[Tensor, ...]:
        """The differentiable inputs as new leaves of a graph."""
        return tuple(t.clone().requires_grad_() for t in self.tensors)

    def tangents(self, seed: int = 1) -> tuple[Tensor, ...]:
        """Random directions, one per differentiable input."""
        return tuple(like(t, seed + i) for i, t in enumerate(self.tensors))

    def batch(self, dim: int = 0, size: int = 3, which: Sequence[bool] | None = None) -> tuple[Tensor, ...]:
        """The differentiable inputs, stacked with rotated, halved copies along ``dim`` where ``which`` is true."""
        which = which or [True] * len(self.diff_argnums)
        return tuple(stack(t, size, dim) if w else t for t, w in zip(self.tensors, which, strict=True))

    def batch_with_constants(self, size: int = 3) -> tuple[Tensor, ...]:
        """The batch of the differentiable inputs in front, and then one of the constant tensors: see `other_constants`."""
        samples = zip(*[self.other_constants[i % len(self.other_constants)] for i in range(size)], strict=True)
        return (*self.batch(0, size), *[torch.stack(sample) for sample in samples])

    @functools.cached_property
    def other_constants(self) -> list[tuple[Tensor, ...]]:
        """Constant tensors of some samples, those of the inputs first. The operator takes each, alone and with the others."""
        given = [self.inputs[i] for i in self.constant_argnums]
        samples = []
        for step in range(4):
            sample = list(given)
            for place, v in enumerate(given if step else ()):
                for other in _other_constants(v, step):
                    if self._takes([*given[:place], other, *given[place + 1 :]]):
                        sample[place] = other
                        break
            samples.append(tuple(sample if self._takes(sample) else given))
        return samples

    @functools.cached_property
    def batches_constants(self) -> bool:
        """Whether there are constant tensors, and torch can batch plain code by them."""
        return bool(self.constant_argnums) and self.limit_of_constants is None

    @functools.cached_property
    def limit_of_constants(self) -> str | None:
        """Why torch cannot batch by the constant tensors, as where a shape follows from their numbers; None if it can."""
        n, batch = len(self.diff_argnums), self.batch_with_constants(2)
        dims = (*(None,) * n, *(0,) * (len(batch) - n))
        batch = (*self.tensors, *batch[n:])
        try:
            vmap(self.op, dims)(*batch)
        except Exception as error:
            if str(error).startswith("vmap: "):
                return _first_line(error)
            for function in (self.surrogate, self.value):
                try:
                    vmap(self.bind(function or plain), dims)(*batch)
                except Exception as limit:
                    return _first_line(limit)
        return None

    def _takes(self, constants: Sequence[Tensor]) -> bool:
        """Whether the operator takes other constant tensors, and has a result as with those of the inputs."""
        try:
            y, expected = self.op(*self.tensors, *constants), self.op(*self.tensors)
        except Exception:  # they are out of its range
            return False
        return (y.shape, y.dtype) == (expected.shape, expected.dtype)

    def repeated(self, size: int) -> tuple[Tensor, ...]:
        """The inputs with ``size`` times the rows, those that have as many as the first; constant tensors behind the others."""
        tensors = (*self.tensors, *[self.inputs[i] for i in self.constant_argnums])
        rows = tensors[0].shape[:1]
        return tuple(t.repeat(size, *(1,) * (t.ndim - 1)) if t.ndim and t.shape[:1] == rows else t for t in tensors)

    def with_other_numbers(self) -> list[tuple[Any, ...]]:
        """The inputs with other numbers of Python, where the operator takes others; none where it does not."""
        inputs = list(self.inputs)
        for i, v in enumerate(self.inputs):
            for other in _OTHERS.get(type(v), lambda _: [])(v):
                arguments = [*inputs[:i], other, *inputs[i + 1 :]]
                try:
                    self.operator(*arguments)
                except Exception:  # the number is out of its range
                    continue
                inputs = arguments
                break
        return [] if all(a is b for a, b in zip(inputs, self.inputs, strict=True)) else [tuple(inputs)]

    def captured(self) -> list[Tensor]:
        """The tensors that the operator's code holds and that require a gradient, such as parameters of a module."""
        return [t for t in tensors_held(self.operator) if t.requires_grad]

    @contextlib.contextmanager
    def without_captured(self, why: str) -> Iterator[None]:
        """A context that says so where its code fails because of captured parameters, and puts them back."""
        places = [place for place in tensor_places((self.operator,)) if place[2].requires_grad]
        with _put_back(places):
            try:
                yield
            except Exception as error:
                if not places:
                    raise
                raise NotApplicable(f"tensors that the operator captures {why}: pass them as arguments") from error

    @contextlib.contextmanager
    def captured_as(self, convert: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """A context in which the tensors that the operator captures are converted."""
        places = tensor_places((self.operator,))
        with _put_back(places):
            for holder, key, t in places:
                put(holder, key, convert(t))
            yield

    def converted(self, convert: Callable[[Tensor], Tensor]) -> "Subject":
        """The same subject with its tensors converted."""
        return replace(self, inputs=tuple(convert(v) if isinstance(v, Tensor) else v for v in self.inputs))

    def to(self, device: str) -> "Subject":
        """The same subject with its tensors on a device."""
        return self.converted(lambda t: t.to(device))

    def to_dtype(self, dtype: torch.dtype) -> "Subject":
        """The same subject with its floating tensors in a dtype."""
        return self.converted(lambda t: t.to(dtype) if t.is_floating_point() else t)

    # --- Functions of the differentiable inputs alone -----------------------------------------------------------------

    def bind(self, function: Callable[..., Any], inputs: Sequence[Any] | None = None) -> Callable[..., Any]:
        """``function`` with the constant inputs in place, or with others; or with constant tensors behind the arguments."""
        argnums, inputs = self.diff_argnums, self.inputs if inputs is None else inputs
        all_argnums = (*argnums, *self.constant_argnums)

        def bound(*tensors: Tensor) -> Any:
            arguments = list(inputs)
            for i, t in zip(argnums if len(tensors) == len(argnums) else all_argnums, tensors, strict=True):
                arguments[i] = t
            y = function(*arguments)
            if isinstance(y, Tensor):
                return y
            leaves = y if isinstance(y, tuple) else pytree.tree_leaves(y)
            floating = [v for v in leaves if isinstance(v, Tensor) and v.is_floating_point()]
            return floating[0] if len(floating) == 1 else torch.cat([v.flatten() for v in floating])

        return bound

    @property
    def op(self) -> Callable[..., Any]:
        """The operator as a function of its differentiable inputs."""
        return self.bind(self.operator)

    @property
    def reference(self) -> Callable[..., Any]:
        """The surrogate, or else the operator, as a function of the differentiable inputs, for eager autograd."""
        return self.bind(self.surrogate or self.operator)

    # --- Comparisons --------------------------------------------------------------------------------------------------

    def compare(self, transform: Transform, *arguments: Any, reference_transform: Transform | None = None) -> None:
        """Check that the transform of the operator has the result of the transform of the surrogate.

        Without a surrogate the reference is ``reference_transform`` of the operator, which computes the same numbers.
        """
        arguments = arguments or self.tensors
        if self.surrogate is not None:
            expected = transform(self.reference)(*arguments)
        elif reference_transform is not None:
            expected = reference_transform(self.op)(*arguments)
        else:
            raise NotApplicable("no surrogate was given")
        close(transform(self.op)(*arguments), expected)

    def gradients(self, function: Callable[..., Any]) -> tuple[Tensor, ...]:
        """The gradient of a scalar of the function's output, by eager reverse mode."""
        leaves = self.leaves()
        return gradients_of(scalar(function)(*leaves), leaves)

    def compare_compiled(self, transform: Transform, *arguments: Any) -> None:
        """Check that the transform of the operator, compiled in one graph, has the eager result of the reference."""
        arguments = arguments or self.tensors
        close(self.compiled(transform)(*arguments), transform(self.reference)(*arguments))

    def compiled(self, transform: Transform) -> Callable[..., Any]:
        """The transform of the operator in one graph; `TorchLimit` where torch cannot compile the surrogate's either."""
        return lambda *arguments: self.compiled_calls(transform, [arguments])[0]

    def compiled_calls(self, transform: Transform, calls: Sequence[tuple[Any, ...]], dynamic: bool | None = None) -> list[Any]:
        """The results of several calls of one compiled function: the transform of the operator, in one graph for all calls."""

        def run(function: Callable[..., Any]) -> list[Any]:
            torch.compiler.reset()  # a function that was compiled before must not be reused for this one
            backend = self.options.get("backend", "aot_eager")
            compiled = torch.compile(transform(function), backend=backend, fullgraph=True, dynamic=dynamic)
            first, *others = calls
            results = [compiled(*first)]
            with torch.compiler.set_stance("fail_on_recompile"):
                return results + [compiled(*arguments) for arguments in others]

        return self.possible(run)

    def possible(
        self,
        run: Callable[[Callable[..., Any]], Any],
        operator: Callable[..., Any] | None = None,
        reference: Callable[..., Any] | None = None,
    ) -> Any:
        """``run`` of the operator; `TorchLimit` where it raises, and raises for plain torch code too. Both are functions of the
        differentiable inputs, or as given.
        """
        try:
            return run(operator or self.op)
        except Exception as error:
            try:
                run(reference or self.bind(self.surrogate or plain))
            except Exception as limit:
                release_guards(limit)
                raise TorchLimit(f"torch {torch.__version__} cannot do this: {_first_line(limit)}") from limit
            raise AssertionError(f"torch can, the operator cannot: {type(error).__name__}: {error}") from error

    @contextlib.contextmanager
    def smooth(self) -> Iterator[None]:
        """A context in which the operator has smooth forwards under its own rules."""
        with contextlib.ExitStack() as patches:
            for operator, forward in (self.smooth_forwards or {}).items():
                # What a decorator made has a function where a class has its forward.
                where = ("forward", staticmethod(forward)) if isinstance(operator, type) else ("function", forward)
                patches.enter_context(mock.patch.object(operator, *where))
            yield


@contextlib.contextmanager
def _put_back(places: Sequence[Any]) -> Iterator[None]:
    """A context after which tensors are in their places again."""
    try:
        yield
    finally:
        for holder, key, t in places:
            put(holder, key, t)


# Other numbers than one: close to it, between 0 and 1 where it is, and away from it.
_OTHERS: dict[type, Callable[[Any], list[Any]]] = {
    float: lambda v: [v * 0.75, v * 1.25, v + 0.25],
    int: lambda v: [v + 1, v - 1],
}


def _other_constants(constant: Tensor, step: int) -> list[Tensor]:
    """Other numbers for a constant tensor, which an operator may take: smaller ones in the same order where they are no integers;
    for indices and masks those that are there, in another order, or smaller ones.
    """
    if constant.is_floating_point() or constant.is_complex():
        return [constant * 2.0**-step, constant.roll(step, -1) if constant.ndim else constant]
    if constant.is_meta:
        return []
    flat = constant.flatten()
    others = [constant.roll(step, -1), constant.flip(-1)] if constant.ndim else []
    others.append(flat.roll(step).reshape(constant.shape))
    is_mask = constant.dtype == torch.bool
    others.append(~constant if is_mask else torch.where(constant > step, constant - step, constant.clamp(max=0)))
    return [other for other in others if not torch.equal(other, constant)]


def scalar(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function followed by a nonlinear sum, to which each element of the output contributes differently."""

    def total(*tensors: Tensor) -> Tensor:
        y = function(*tensors)
        weights = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)
        return (weights.cos() * y.sin()).sum()

    return total


def gradients_of(y: Tensor, inputs: Sequence[Tensor], g: Tensor | None = None, **options: Any) -> tuple[Tensor, ...]:
    """``torch.autograd.grad(y, inputs, g)``, where a gradient of None, also of a value without a graph, is 0."""
    found = torch.autograd.grad(y, inputs, g, allow_unused=True, **options) if y.requires_grad else [None] * len(inputs)
    leading = g.shape[:1] if g is not None and options.get("is_grads_batched") else ()
    return tuple([x.new_zeros((*leading, *x.shape)) if v is None else v for v, x in zip(found, inputs, strict=True)])


def slopes_of(leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients that a backward has put into ``.grad``, in which None is 0."""
    return tuple([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves])


def like(tensor: Tensor, seed: int) -> Tensor:
    """Random numbers in the shape, dtype and device of a tensor; the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)


def stack(tensor: Tensor, size: int, dim: int = 0) -> Tensor:
    """``size`` samples that differ in every statistic: the tensor with its elements rotated and halved again and again."""
    samples = [tensor.flatten().roll(i).reshape(tensor.shape) * 2.0**-i for i in range(size)]
    return torch.stack(samples, dim)


_IN_FLOAT64, _IN_FLOAT32 = (1e-9, 1e-11), (5e-7, 1e-9)
# What is in front of it is the same for all checks that fail by one fault.
OF_THIS_CHECK = " Here: "
_ROUNDED = (
    "float64 numbers differ by a rounding to float32, as by `torch.where(c, 1.0, 0.1)` in a rule: write "
    "`torch.where(c, v, 0.1 * v)`."
)


def _are_close(actual: Any, expected: Any, bounds: tuple[float, float]) -> bool:
    try:
        torch.testing.assert_close(actual, expected, rtol=bounds[0], atol=bounds[1], equal_nan=True)
    except AssertionError:
        return False
    return True


def close(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Check that values agree up to rounding, and in structure, shape and dtype; NaN equals NaN. The error shows both."""
    if rtol is None and tolerances.get() is not None:
        rtol, atol = tolerances.get()  # pyright: ignore[reportGeneralTypeIssues]
    elif rtol is None and {t.dtype for t in pytree.tree_leaves(expected) if isinstance(t, Tensor)} == {torch.float64}:
        # With torch's tolerances, 1e-7, a constant that was rounded to float32 on the way goes unnoticed.
        rtol, atol = _IN_FLOAT64
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        is_rounded = rtol == _IN_FLOAT64[0] and tolerances.get() is None and _are_close(actual, expected, _IN_FLOAT32)
        hint = f"{_ROUNDED}{OF_THIS_CHECK}" if is_rounded else ""
        summary = (
            "; ".join(line for line in lines if line.startswith(("Greatest absolute", "Absolute", "The values"))) or lines[0]
        )
        raise AssertionError(f"{hint}{_difference(actual, expected, rtol, atol)}. {summary}") from None


def equal(actual: Tensor, expected: Tensor) -> None:
    """Check that tensors are equal in dtype, shape, values, NaN and the sign of zero."""
    close(actual, expected, rtol=0, atol=0)
    if actual.is_floating_point() and not torch.equal(actual.signbit() & ~actual.isnan(), expected.signbit() & ~expected.isnan()):
        differ = actual.signbit() != expected.signbit()
        raise AssertionError(f"a zero has the wrong sign: {_elements(actual, expected, differ, '')}")


def plain(*inputs: Any) -> Tensor:
    """Plain torch code in place of a surrogate, to find out what torch can do at all."""
    return functools.reduce(torch.add, [v.sin() for v in inputs if isinstance(v, Tensor) and v.is_floating_point()])


def _difference(actual: Any, expected: Any, rtol: float | None, atol: float | None, where: str = "") -> str:
    """The elements that differ, of the first tensor that does, in a structure of tensors."""
    if isinstance(actual, (tuple, list)) and isinstance(expected, (tuple, list)) and len(actual) == len(expected):
        for i, pair in enumerate(zip(actual, expected, strict=True)):
            try:
                torch.testing.assert_close(*pair, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError:
                return _difference(*pair, rtol, atol, f"{where}[{i}]")
    item = f" in item {where}" if where else ""
    if not (isinstance(actual, Tensor) and isinstance(expected, Tensor) and actual.shape == expected.shape):
        return f"expected {_short(expected)}, got {_short(actual)}{item}"
    if actual.dtype != expected.dtype:
        return f"expected {_short(expected)}, got {_short(actual)}{item}"
    bounds = {} if rtol is None or atol is None else {"rtol": rtol, "atol": atol}
    return _elements(actual, expected, ~torch.isclose(actual, expected, **bounds, equal_nan=True), item)


def _elements(actual: Tensor, expected: Tensor, differ: Tensor, item: str) -> str:
    """The first elements that differ, with digits that differ, and their positions."""
    positions = differ.nonzero().tolist()
    pairs = list(zip(expected.detach()[differ].tolist(), actual.detach()[differ].tolist(), strict=True))[:4]
    # A complex number has a format of its own; 17 digits tell any two numbers of float64 apart.
    digits = next((d for d in (6, 9, 12) if all(f"{a:.{d}g}" != f"{b:.{d}g}" for a, b in pairs)), 17)
    told, found = (", ".join(f"{pair[i]:.{digits}g}" for pair in pairs) for i in (0, 1))
    more = ", …" if len(positions) > 4 else ""
    at = f" at {', '.join(str(position) for position in positions[:4])}{more}" if expected.ndim else ""
    return f"expected [{told}{more}] of shape {tuple(expected.shape)} and {expected.dtype}, got [{found}{more}]{at}{item}"


def _short(value: Any) -> str:
    """The first numbers of a tensor, or of the first tensor in a structure."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = [f"{n:.6g}" for n in value.detach().flatten()[:4].tolist()]
    return f"[{', '.join(numbers)}{', …' if value.numel() > 4 else ''}] of shape {tuple(value.shape)} and {value.dtype}"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def float64_devices() -> list[str]:
    """The devices of this machine that have float64: the CPU, and CUDA where present."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def by_cotangent_map(
    cotangent_map: Callable[..., Tensor],
    value: Callable[..., Tensor] | None = None,
    tangent_map: Callable[..., Tensor] | None = None,
) -> Callable[..., Tensor]:
    """The surrogate of a cotangent operator: the map as the backward of torch's own Function, in eager code.

    ``tangent_map(t, *inputs)`` is its tangent, where that is not the one of the first input.
    """

    class Map(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return inputs[0].clone() if value is None else value(*inputs).clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            tensors = [v if isinstance(v, Tensor) else None for v in inputs]
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.constants = [None if isinstance(v, Tensor) else v for v in inputs]

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            inputs = [c if t is None else t for t, c in zip(ctx.saved_tensors, ctx.constants, strict=True)]
            return (cotangent_map(g, *inputs), *[None] * (len(inputs) - 1))

        @staticmethod
        def jvp(ctx: Any, t: Any, *_: Any) -> Any:
            # With forward mode off, as torch has it, nested forward mode is lost (https://github.com/pytorch/pytorch/issues/197867).
            before = is_forward_mode()
            set_forward_mode(True)
            try:
                if tangent_map is None:
                    return t.clone()
                inputs = [c if s is None else s for s, c in zip(ctx.saved_tensors, ctx.constants, strict=True)]
                return tangent_map(t, *inputs)
            finally:
                set_forward_mode(before)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            dims = tuple(None if d is None else 0 for d in in_dims)
            front = [v if d is None else v.movedim(d, 0) for v, d in zip(inputs, in_dims, strict=True)]
            batched = by_cotangent_map(
                vmap(cotangent_map, (0, *dims)), value and vmap(value, dims), tangent_map and vmap(tangent_map, (0, *dims))
            )
            return batched(*front), 0

    def surrogate(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            # Below the first transform torch switches grad mode on again for a Function, but not for views made without it.
            inputs = tuple(v.view_as(v) if isinstance(v, Tensor) else v for v in inputs)
        return Map.apply(*inputs)

    return surrogate
