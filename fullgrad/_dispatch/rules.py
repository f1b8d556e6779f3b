"""The five rules of an operator, checked and made ready for torch's engine. Both dispatches stand on it."""

import functools
import hashlib
import inspect
import os
import pathlib
import sys
import textwrap
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._dispatch import torch_private

Apply = Any  # a callable of the operator's arguments
_CONTAINERS = (Sequence, Mapping, Set)


class VmapInfo(NamedTuple):
    """What a ``vmap`` rule is told about the transform: torch's own names for the fields."""

    batch_size: int
    randomness: str


class _PrimalContext:
    """A view of ``ctx`` whose saved tensors carry no tangent of the level that is being differentiated."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Any) -> None:
        object.__setattr__(self, "_ctx", ctx)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        unpack = torch_private.unpack_dual
        return tuple(t if t is None else unpack(t, level=0)[0] for t in self._ctx.saved_tensors)


def saves_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """The ``setup_context`` of an operator whose rules need neither inputs nor output. It is not even called."""


def pure(forward: Any) -> Any:
    """Marks a ``forward`` that computes one tensor from its arguments alone: it closes over no tensor, makes no view but by
    `alias`, and does not look at the grad mode. Where no derivative is wanted, the grad mode need not be switched
    off for it, which costs a tenth of a small operation.
    """
    forward.is_pure = True
    return forward


def is_identity(forward: Any) -> Any:
    """Marks a `pure` ``forward`` whose value is the `alias` of its first argument: then it need not even be called."""
    forward.is_identity = True
    return pure(forward)


class _Transforms(threading.local):
    """Whether the call in this thread came through a transform, which has stepped aside when ``forward`` runs."""

    inside_transform = False


through = _Transforms()
_forward_ad = torch_private.forward_ad


def through_transforms(call: Apply) -> Apply:
    """``call``, for which `alias` knows that it came through a transform."""

    def marked(args: Any) -> Any:
        before, through.inside_transform = through.inside_transform, True
        try:
            return call(args)
        finally:
            through.inside_transform = before

    return marked


def alias(x: Tensor) -> Tensor:
    """For a ``forward`` whose value is its input: ``x`` as a view, on which autograd refuses in-place operations.

    Transforms and forward mode have no such guard: there the change would reach ``x`` and not its derivative, in silence. They
    get a copy. Where ``x`` has no derivative there is nothing to guard, and to detach it is the cheapest view.
    """
    if through.inside_transform or _forward_ad._current_level >= 0:
        return x.clone()
    return x.view_as(x) if x.requires_grad else x.detach()


class Rules:
    """What both dispatches call. ``forward`` is looked up at each call, so that a test can put a surrogate in its place."""

    # Arguments of these types hold no tensor.
    SCALAR_TYPES = frozenset({float, int, bool, str, type(None)})

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.name: str = operator.__name__
        self.backward = _recomputing(operator)
        self.jvp = _with_forward_mode(_as_function(operator.jvp))
        self._output = threading.local()

        signature = inspect.signature(operator.forward).parameters.values()
        # Each parameter of forward, and whether it is variadic; and the defaults of the last ones.
        self.parameters = tuple((p.name, p.kind is p.VAR_POSITIONAL) for p in signature)
        self.defaults = tuple(p.default for p in signature if p.default is not p.empty)

    def write_out(self, source: str, namespace: dict[str, Any], per_argument: str = "") -> None:
        """Define in the namespace what the source defines, written out for the parameters of this operator.

        ``apply`` gets the signature and the defaults of ``forward``, so that keywords bind as in any Python function.
        """
        arguments = ", ".join(f"*{name}" if variadic else name for name, variadic in self.parameters)
        blocks: list[str] = []
        for name, variadic in self.parameters:
            block = per_argument.format(argument="__value" if variadic else name, arguments=arguments)
            blocks.append(f"for __value in {name}:\n{textwrap.indent(block, '    ')}" if variadic else block)
        inner = textwrap.indent("".join(blocks), "    ")
        exec(source.format(parameters=arguments, arguments=arguments, per_argument=inner), namespace)
        namespace["apply"].__defaults__ = self.defaults

    def as_graph_node(self, call: Any) -> Any:
        """``call`` as one node of a graph, which Dynamo does not look into.

        Dynamo traces a custom Function's forward as plain code and drops its rules in places
        (https://github.com/pytorch/pytorch/issues/192985, https://github.com/pytorch/pytorch/issues/193279), and refuses it in
        others (https://github.com/pytorch/pytorch/issues/180284). AOTAutograd, which traces what the node does, sees the real
        rules.
        """

        def node(*args: Any) -> Any:
            _mark_cacheable()
            return call(args)

        node.__name__ = node.__qualname__ = f"{self.name}_in_graph"
        node.__module__ = self.operator.__module__
        if node.__module__.startswith(f"{_PACKAGE}."):
            # torch looks a function up by its name before it caches a graph with it.
            setattr(sys.modules[node.__module__], node.__name__, node)
            _nodes[f"{node.__module__}.{node.__name__}"] = self.operator, _rules_of(self.operator)
        return torch.compiler.allow_in_graph(node)

    def forward(self, *args: Any) -> Any:
        """The author's ``forward``, its output checked."""
        output = self.operator.forward(*args)
        return output if isinstance(output, Tensor) else self.check_output(output)

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """The author's ``setup_context``; in-place operators are refused."""
        self.operator.setup_context(ctx, inputs, output)
        if ctx.dirty_tensors:
            raise NotImplementedError(in_place_message(self.name))

    def vmap(self, info: VmapInfo, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """The author's ``vmap``: the output, and for each tensor of it the batch dimension or None."""
        result = self.operator.vmap(info, in_dims, *args)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"{self.name}.vmap must return the pair (output, out_dims), got {_kind(result)}.")
        output, dims = result
        if isinstance(output, Tensor):
            if isinstance(dims, tuple) and len(dims) == 1:
                dims = dims[0]
            if not (dims is None or isinstance(dims, int)):
                raise TypeError(f"{self.name}.vmap returned one tensor, so out_dims must be an int or None, got {dims!r}.")
            return output, dims
        self.check_output(output)
        if not isinstance(dims, (tuple, list)):
            dims = (dims,) * len(output)
        if len(dims) != len(output):
            raise TypeError(f"{self.name}.vmap returned {len(output)} outputs and {len(dims)} out_dims.")
        return output, tuple(dims)

    def check_output(self, output: Any) -> Any:
        """Refuse outputs that autograd would lose in silence; note the type of a tuple, of which autograd makes a plain one."""
        if not isinstance(output, tuple):
            raise TypeError(f"{self.name}.forward must return a tensor or a tuple, got {_kind(output)}.")
        for item in output:
            if not isinstance(item, Tensor) and isinstance(item, _CONTAINERS) and _holds_tensor(item):
                raise TypeError(
                    f"{self.name}.forward must return its tensors side by side, got a {type(item).__name__} of tensors "
                    "inside the output, whose gradient would be lost."
                )
        self._output.type = type(output)
        return output

    def restore(self, output: Any) -> Any:
        """The output of the engine in the type that ``forward`` returned in this thread."""
        if isinstance(output, Tensor):
            return output
        return rebuild(self._output.type, output)

    def check_argument(self, value: Any) -> None:
        """Refuse tensors inside a container: autograd does not see them, and their gradient would be lost in silence."""
        if value.__class__ is tuple and self.SCALAR_TYPES.issuperset(map(type, value)):
            return
        if isinstance(value, _CONTAINERS) and _holds_tensor(value):
            raise TypeError(
                f"{self.name}.apply takes tensors as arguments of their own, got a {type(value).__name__} that holds a tensor, "
                "whose gradient would be lost."
            )

    def export(self, args: Any) -> Any:
        """The call while torch.export traces. Its graph holds the value and nothing of the declared derivative; torch has no way
        to keep it. ``vmap`` of the value is exported as that of plain code, and a derivative is not exported at all.
        """
        if not torch_private.only_vmap_active():
            raise NotImplementedError(
                f"{self.name}: torch.export would replace the declared derivative by that of the plain operations inside a "
                "transform that differentiates. Compile the transform with torch.compile, or trace it with make_fx."
            )
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            warnings.warn(
                f"{self.name}: torch.export keeps the value and drops the declared derivative; differentiating the exported "
                "program gives the derivative of the plain torch operations. Export under torch.no_grad() to silence this.",
                stacklevel=4,
            )
        return self.forward(*args)


_PACKAGE = __name__.partition(".")[0]
_IMPORTED = time.time()
# The package's own operators, by the name of their node, and the rules that they were defined with.
_nodes: dict[str, tuple[Any, list[Any]]] = {}


def _rules_of(operator: Any) -> list[Any]:
    return [getattr(operator, rule) for rule in ("forward", "setup_context", "vjp", "jvp", "vmap")]


def _mark_cacheable() -> None:
    """Let torch cache compiled graphs of the package's own operators, under a key that no other code shares.

    A graph knows an operator by name: a graph from the cache, of an operator that has changed since, would be silently wrong. The
    operators of others are not cached, as nobody knows where their code ends.
    """
    key = _fingerprint()
    if key is None:
        return
    if any(_rules_of(operator) != rules for operator, rules in _nodes.values()):
        key = f"{os.getpid()} {_IMPORTED}"  # a rule was replaced, by a test for instance: good for this process
    torch_private.mark_cacheable(dict.fromkeys(_nodes, key))


@functools.cache
def _fingerprint() -> str | None:
    """A hash of the package's source, or None where that may not be what was imported."""
    digest, folder = hashlib.sha256(torch_private.DISPATCH.encode()), pathlib.Path(__file__).parents[1]
    files = sorted(folder.rglob("*.py"))
    for file in files:
        changed = file.stat()
        if max(changed.st_mtime, changed.st_ctime) > _IMPORTED - 2:  # seconds, for coarse clocks of file systems
            return None
        digest.update(f"\0{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest() if files else None


def in_place_message(name: str) -> str:
    """Why ``ctx.mark_dirty`` is refused."""
    return (
        f"{name}.setup_context calls ctx.mark_dirty, but a fullgrad operator is a function of its inputs and leaves them "
        "unchanged, as torch.func requires. Return a new tensor from forward instead."
    )


def rebuild(kind: type, items: Any) -> Any:
    """A tuple, namedtuple or ``torch.return_types`` of the given kind from its items."""
    if kind is tuple:
        return items if type(items) is tuple else tuple(items)
    make: Any = getattr(kind, "_make", kind)
    return make(items)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (str, bytes, range)):
        return False
    if isinstance(value, Mapping):
        value = value.values()
    return any(isinstance(v, Tensor) or (isinstance(v, _CONTAINERS) and _holds_tensor(v)) for v in value)


def _as_function(rule: Any) -> Any:
    """A rule may be a classmethod, so that a family writes it once; autograd binds plain functions to ``ctx``."""
    if isinstance(rule, types.FunctionType):
        return rule

    def function(ctx: Any, *args: Any) -> Any:
        return rule(ctx, *args)

    return function


def _recomputing(operator: Any) -> Any:
    """The ``vjp`` rule, of which compiled code, if it is elementwise, saves what the operator saves and no intermediate.

    Not every operation may be computed again: a sort, for one, of which torch then cannot partition the graph.
    """
    vjp = _as_function(operator.vjp)
    if operator.setup_context is saves_nothing or not operator.recompute_in_backward:
        return vjp
    is_tracing, recomputed = torch_private.is_tracing, torch_private.recomputed

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return recomputed(vjp, ctx, *cotangents) if is_tracing() else vjp(ctx, *cotangents)

    return backward


def _with_forward_mode(jvp: Any) -> Any:
    """The ``jvp`` rule, itself differentiable in forward mode when a transform is active."""
    active, is_on, switch = torch_private.transforms_active, torch_private.is_forward_mode, torch_private.set_forward_mode

    def differentiable_jvp(ctx: Any, *tangents: Any) -> Any:
        if not active():
            return clone_if_aliased(jvp(ctx, *tangents), tangents)
        previous = is_on()
        switch(True)
        try:
            return clone_if_aliased(jvp(_PrimalContext(ctx), *tangents), tangents)
        finally:
            switch(previous)

    return differentiable_jvp


def clone_if_aliased(result: Any, tangents: tuple[Any, ...]) -> Any:
    """A tangent handed on as it is becomes a copy: an in-place operation on the output would change the input's tangent."""
    if isinstance(result, tuple):
        return tuple(clone_if_aliased(r, tangents) for r in result)
    return result.clone() if isinstance(result, Tensor) and any(result is t for t in tangents) else result
