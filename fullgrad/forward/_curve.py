r"""Curves: values :math:`x(t) = x_0 + x_1 t + x_2 t^2 / 2 + \dots`, which torch's functions take by ``__torch_function__``.

All that is computed with the parts of a curve is ordinary torch code, so whatever is outside, a backward, a transform or another
curve, differentiates and batches it. Several directions are one `torch.vmap`, inside of which each part has the shape of the
value. The part of the highest order enters every function linearly, so that the directions share it: `Total`, whose rule under
that vmap is the sum, adds up what each of them contributes. The parts of n directions are one value, n first derivatives, and one
second derivative.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core.function import Function
from fullgrad._core.recomputed import without_aux
from fullgrad._dispatch import Moving, current, current_level, pytree, wrapper_tensor
from fullgrad._engine.random_states import restore_random_states, untraced_random_states
from fullgrad.forward._context import right_derivatives


class Unknown(NotImplementedError):
    """The error of a step that curves cannot do: the whole function is then computed by nested `torch.func.jvp`."""


class Scope:
    """The state that the curves of one call share: their order, and whether directions share the part of that order.

    ``depth`` is the level of transforms in which they are, and a count of scopes at that level; ``below`` the level of the call,
    and ``count`` the number of directions that share, None without.
    """

    def __init__(self, depth: tuple[int, int], order: int, below: int = 0, count: int | None = None) -> None:
        self.depth, self.order, self.below, self.count = depth, order, below, count
        self.call = current.curves

    def shares(self, k: int) -> bool:
        """Whether the part of order k is one for all directions."""
        return self.count is not None and k == self.order

    def total(self, part: Any) -> Any:
        """The sum over the directions."""
        return Total.apply(part, self.below, self.count)

    def within(self, order: int) -> "Scope":
        """A scope inside of this one, for what a rule computes."""
        scope = Scope((self.depth[0], self.depth[1] + 1), order)
        scope.call = self.call
        return scope


class Total(Function):
    """The sum over the samples of the `torch.vmap` above a level; what they have in common counts as often as there are."""

    @staticmethod
    def forward(x: Tensor, below: int, count: int) -> Tensor:
        return x * count

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.which = inputs[1:]

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        below, count = ctx.which
        return g if current_level() > below else g * count, None, None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, *_: Any) -> Any:
        return Total.apply(t, *ctx.which)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, below: int, count: int) -> tuple[Any, int | None]:
        x = x.movedim(in_dims[0], 0)
        if current_level() > below:
            return Total.apply(x, below, count), 0
        return x.squeeze(0) if len(x) == 1 else x.sum(0), None


class Curve(Moving):
    """A value and its derivatives along a curve, as a tensor: functions of torch compute with all of them, ``if`` sees the value.

    What reaches it in another way than by ``__torch_function__`` raises. ``known`` has the value and the derivatives, None for
    what is known to be 0, as the second one of a straight line; ``filled`` has zeros in its place.
    """

    known: list[Any]
    scope: Scope

    @staticmethod
    def __new__(cls, parts: Sequence[Any], scope: Scope) -> "Curve":
        value = parts[0]
        return wrapper_tensor(cls, value.shape, dtype=value.dtype, device=value.device)

    def __init__(self, parts: Sequence[Any], scope: Scope) -> None:
        self.known, self.scope, self.call = list(parts), scope, scope.call

    def part(self, k: int) -> Any:
        """The value or a derivative, as a tensor."""
        if self.known[k] is None:
            self.known[k] = torch.zeros_like(self.known[0])
        return self.known[k]

    @property
    def filled(self) -> list[Any]:
        """The value and the derivatives."""
        for k in range(len(self.known)):
            self.part(k)
        return self.known

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _apply[0](func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Unknown(f"{func}: a value that moves along a curve reached it where torch asks no argument.")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Curve({self.known})"


class _Parts(list[Any]):
    """The parts of a curve on their way in or out of a transform, where a curve itself is a leaf that raises when it is used."""

    scope: Scope


def _parts(scope: Scope, parts: Any) -> "_Parts":
    held = _Parts(parts)
    held.scope = scope
    return held


pytree.register_pytree_node(_Parts, lambda held: (list(held), held.scope), lambda parts, scope: _parts(scope, parts))


def _opened(tree: Any) -> Any:
    """A structure with the parts of each curve, which a transform sees."""
    return pytree.tree_map(lambda v: _opened(_parts(v.scope, v.filled)) if is_curve(v) else v, tree)


def _closed(tree: Any) -> Any:
    """The inverse of `_opened`."""
    is_held = lambda v: isinstance(v, _Parts)  # noqa: E731
    return pytree.tree_map(lambda v: Curve([_closed(p) for p in v], v.scope) if is_held(v) else v, tree, is_leaf=is_held)


_apply: list[Callable[..., Any]] = []


def computes(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that marks the function by which curves compute."""
    _apply[:] = [apply]
    return apply


def is_curve(value: Any) -> bool:
    """Whether a value is a curve."""
    return isinstance(value, Curve)


def is_floating(value: Any) -> bool:
    """Whether a value has derivatives."""
    return isinstance(value, Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a structure, curves among them."""
    return pytree.tree_leaves(tree, is_leaf=is_curve)


def part(value: Any, k: int, scope: Scope) -> Any:
    """Part k of a curve of the scope, of a constant zeros."""
    if is_curve(value) and value.scope is scope:
        return value.part(k)
    return value if k == 0 else torch.zeros_like(value) if isinstance(value, Tensor) else 0


def of_each(function: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
    """A linear function of each part, None for zeros."""
    return [None if p is None else function(p) for p in parts]


class Call:
    """A call of a function as a function of the curves of the innermost scope in it; curves of scopes outside are constants."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str = "") -> None:
        self.func, self.name, self.args, self.kwargs = func, name or getattr(func, "__name__", ""), args, kwargs
        self.leaves, self.spec = pytree.tree_flatten((tuple(args), kwargs), is_leaf=is_curve)
        self.scope: Scope = max((v.scope for v in self.leaves if is_curve(v)), key=lambda s: s.depth)
        self.where = [i for i, v in enumerate(self.leaves) if is_curve(v) and v.scope is self.scope]
        self.known = [self.leaves[i].known for i in self.where]

    @property
    def curves(self) -> list[list[Any]]:
        """The parts of each curve."""
        return [self.leaves[i].filled for i in self.where]

    def __call__(self, values: Sequence[Any], constants: Sequence[Any] | None = None) -> Any:
        """The function with other values in the places of the curves, and of the constants."""
        leaves = list(self.leaves if constants is None else constants)
        for i, v in zip(self.where, values, strict=True):
            leaves[i] = v
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)

    def of(self, k: int, constants: Sequence[Any] | None = None) -> Any:
        """The function of the parts of order k."""
        return self([self.leaves[i].part(k) for i in self.where], constants)

    def result(self, outputs: Sequence[Any]) -> Any:
        """The curves whose parts are these results, None for zeros; what has no derivative is of the value."""
        if isinstance(outputs[0], Tensor):
            return Curve(outputs, self.scope) if is_floating(outputs[0]) else outputs[0]
        leaves, spec = pytree.tree_flatten(outputs[0], is_leaf=is_curve)
        every = zip(leaves, *[[None] * len(leaves) if o is None else leaves_of(o) for o in outputs[1:]], strict=True)
        return pytree.tree_unflatten([Curve(p, self.scope) if is_floating(p[0]) else p[0] for p in every], spec)


def nested(call: Call) -> Any:
    """Any function: nested `torch.func.jvp` of this one call, which costs 2^k. Directions take shares of their common part."""
    scope, order, kept = call.scope, call.scope.order, []
    others = [i for i, v in enumerate(call.leaves) if is_curve(v) and i not in call.where]

    def pushed(primals: Any, series: Any, values: Any) -> Any:
        constants = list(call.leaves)
        for i, v in zip(others, values, strict=True):
            constants[i] = v

        def moving(*values: Any) -> list[Any]:
            leaves, spec = pytree.tree_flatten(call(values, constants))
            kept[:] = [spec, [i for i, v in enumerate(leaves) if is_floating(v)], leaves]
            return [leaves[i] for i in kept[1]] or [torch.zeros(())]  # which `jvp` wants

        return derivatives_by_jvp(moving, primals, series)

    primals, *series = [[_written_apart(parts[k]) for parts in call.curves] for k in range(order + 1)]
    if scope.count is not None:
        series[-1] = [p / scope.count for p in series[-1]]
    known = [call.leaves[i] for i in others]
    # Curves of scopes outside know no transform, and are arguments of a function of theirs.
    run = (lambda *given: nested(Call(pushed, given, {}))) if any(map(is_curve, leaves_of((primals, series, known)))) else pushed
    before = untraced_random_states()  # what is computed again draws the same numbers
    with right_derivatives():
        try:
            outputs = run(primals, series, known)
        except RuntimeError as error:
            if scope.count is None or not is_too_large(error):
                raise
            # torch writes what belongs to a direction into a value that they have in common: each gets its own.
            restore_random_states(before)
            primals = [x + torch.zeros_like(t) for x, t in zip(primals, series[0], strict=True)]
            outputs = run(primals, series, known)
            kept.append("values")
    if scope.count is not None:
        outputs[-1] = [scope.total(y) for y in outputs[-1]]
    spec, where, leaves, *others = kept
    if others or len(where) < len(leaves):  # values of each direction; or indices, which transforms have wrapped
        restore_random_states(before)
        leaves = leaves_of(call.of(0))
        outputs[0] = [leaves[i] for i in where]
    for i, parts in zip(where, zip(*outputs, strict=True), strict=False):
        leaves[i] = Curve(parts, scope)
    return pytree.tree_unflatten(leaves, spec)


def _written_apart(x: Any) -> Any:
    """A tensor whose elements have memory of their own, into whose like torch writes tangents."""
    return x.clone() if any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)) else x


def is_too_large(error: Exception) -> bool:
    """Whether torch refused to write what belongs to the samples of a vmap into what does not."""
    return "vmap: " in str(error) and "more elements than `self`" in str(error)


def derivatives_by_jvp(
    function: Callable[..., list[Any]], primals: Sequence[Any], series: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """The results of a function of tensors, and their derivatives along curves: those of order k are those of order k - 1 of the
    function's `torch.func.jvp` along (x(t), x'(t)).
    """
    if not series:
        return [function(*primals)]
    n = len(primals)

    def pushed(*both: Any) -> list[Any]:
        values, tangents = without_aux(torch.func.jvp(function, both[:n], both[n:]))
        return [*values, *tangents]

    pairs = itertools.pairwise(series)
    found = derivatives_by_jvp(pushed, [*primals, *series[0]], [[*a, *b] for a, b in pairs])
    n = len(found[0]) // 2
    return [*[f[:n] for f in found], found[-1][n:]]


def along_curves(f: Callable[..., Any], primals: Sequence[Any], series: Sequence[Sequence[Any]], shared: bool) -> list[list[Any]]:
    """The leaves of the result of a function of tensors, and of its derivatives along curves; ``series[k - 1]`` has the parts of
    order k, None for zeros. With ``shared`` the parts between the value and the highest have their directions in front, and share
    the highest.
    """
    order, below, count = len(series), current_level(), len(series[0][0]) if shared else None
    found: list[list[Any]] = []
    dims = [None, *[0 if shared else None] * (order - 1), None]
    before = untraced_random_states()

    def along(parts: list[list[Any]], _: Tensor) -> Any:
        parts = _closed(parts)
        with _counted():
            scope = Scope((current_level(), 0), order, below, count)
            curves = [Curve(of_each(torch.clone, of_order), scope) for of_order in zip(*parts, strict=True)]
            try:
                result = f(*curves)
            except (Unknown, RuntimeError) as error:
                is_refused = isinstance(error, Unknown) or "TorchScript interpreter" in str(error)  # which hides the reason
                if not is_refused and not is_too_large(error):
                    raise
                restore_random_states(before)
                for c in () if is_refused else curves:  # each derivative gets the samples of the value, in which they are written
                    c.filled[1:] = [p + torch.zeros_like(c.filled[0]) for p in c.filled[1:]]
                result = nested(Call(f, curves, {})) if is_refused else f(*curves)
        leaves = [result] if is_curve(result) else leaves_of(result)
        found[:] = [[_result(v, k, scope) for v in leaves] for k in range(order + 1)]
        return _opened(found[1:-1]) if shared else _

    with right_derivatives():
        mapped = torch.func.vmap(along, (dims, 0), randomness="same")
        outputs = mapped(_opened([list(primals), *map(list, series)]), torch.empty(count or 1))
    # What has no directions needs no vmap to leave it.
    return [found[0], *_closed(outputs), found[-1]] if shared else found


def _result(value: Any, k: int, scope: Scope) -> Any:
    """Part k of a result; zeros require a gradient where the value does."""
    if not is_curve(value) or value.scope is not scope:
        return part(value, k, scope)
    y = value.known[0]
    return torch.where(torch.zeros_like(y, dtype=torch.bool), y, 0) if value.known[k] is None else value.known[k]


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    """A context in which operators know that something may be differentiated."""
    current.curves += 1
    try:
        yield
    finally:
        current.curves -= 1
