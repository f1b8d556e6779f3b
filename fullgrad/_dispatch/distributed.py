"""Operators on distributed tensors, torch's `DTensor`; imported on the first one.

An operator that declares ``whole_dims`` runs on the shards of this rank, with all that it has for plain tensors: `run` lays the
inputs out, calls ``apply`` on their local tensors, and makes distributed tensors of the results. Which dimensions stay split
depends on shapes and placements alone, which every rank knows: all ranks communicate and raise alike.

An operator that declares nothing runs operation by operation, by torch's own rules.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Generator, Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication

from fullgrad._dispatch import fallback, functorch, torch_private
from fullgrad._dispatch.rules import Rules, rebuild
from fullgrad._dispatch.split_rows import Row, bound, counted_once, on_parts
from fullgrad._dispatch.state import active_transforms, is_tracing

_dispatch: Any = functorch if torch_private.DISPATCH == "functorch" else fallback
Placements = tuple[Any, ...]
# The label of a dimension that inputs and outputs share and that may be split; None for one that must be whole.
Label = int | None
# The label of a row of which ranks have parts.
ROW = -1


def run(rules: Rules, args: Sequence[Any]) -> Any:
    """The call of an operator with an argument that is a distributed tensor, or wraps one."""
    spread = _spread(rules, args)
    if not _is_declared(rules.operator) or _is_batched():
        return _operation_by_operation(rules, args, spread)
    plan, apply = _plan(rules, args, spread), rules.operator.apply
    may_raise = rules.operator.raises_by_numbers
    # Where nothing is split, all ranks have the same numbers and raise alike.
    if (
        any(label is not None for label in plan.split)
        and (may_raise(*args) if callable(may_raise) else may_raise)
        and not _is_outside(plan.mesh)
    ):
        apply = _call_on_all(rules.operator, plan.mesh)
    if plan.row is not None:
        operator = rules.operator
        apply = _code_on_parts(operator.relaxed, plan.row) if callable(operator.splits_rows) else bound(operator, plan.row).apply
    return _on_shards(plan, apply, args)


def _code_on_parts(function: Callable[..., Any], row: Row) -> Callable[..., Any]:
    """Plain code on parts of rows. Numbers of whole rows among its results are on every rank; one has their derivative."""

    def run(*args: Any) -> Any:
        with on_parts(row):
            y = function(*args)
            if isinstance(y, Tensor):
                return _of_row(y, args[0].ndim)
            return tuple([_of_row(v, args[0].ndim) for v in y])

    def _of_row(y: Tensor, ndim: int) -> Tensor:
        return counted_once(y) if y.ndim < ndim else y

    return run


@functools.lru_cache(maxsize=64)
def _row(same: "_Same", over: tuple[int, ...], length: int) -> Row:
    """The row of which the ranks along the mesh dimensions ``over`` have parts."""
    mesh = same.it
    place, ranks = 0, 1
    for m in over:
        place, ranks = place * mesh.size(m) + mesh.get_local_rank(m), ranks * mesh.size(m)
    sharing = _Sharing(mesh, over)
    return Row(lambda x: Total.apply(x, sharing), place, ranks, length)


@functools.lru_cache
def _call_on_all(operator: Any, mesh: Any) -> Callable[..., Any]:
    """The call of an operator on each rank's shards; if it or its derivative raises on one rank, it raises on every rank."""
    rules = Rules(operator)
    backward = rules.backward
    rules.backward = lambda ctx, *cotangents: _on_all(rules.name, mesh, backward, ctx, *cotangents)
    call, _ = _dispatch.dispatch(rules)
    return lambda *shards: _on_all(rules.name, mesh, call, shards)


def _on_all(name: str, mesh: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function on each rank, or an error on every rank if it raises on any."""
    error, output = None, None
    try:
        output = function(*args)
    except Exception as raised:
        error = raised
    failed = torch.tensor(float(error is not None), device=mesh.device_type)
    parts = (Partial(),) * mesh.ndim
    summed = ToWhole.apply(failed, Layout(mesh, failed.shape, parts, parts, parts))  # torch's have no rules under transforms
    count: Any = ToShards.apply(summed, Layout.everywhere(mesh, failed.shape))
    if error is not None:
        raise error
    if count.item():
        raise RuntimeError(f"{name}: the call raised on another rank, whose numbers the error there names.")
    return output


class _PlainCode:
    """Plain differentiable code in the role of an operator and its rules."""

    def __init__(self, name: str, function: Callable[..., Any], layout: Any) -> None:
        self.name, self.forward, self.operator = name, function, self
        self.whole_dims, self.dim_labels = (layout, None) if isinstance(layout, int) else (None, lambda *_: layout)

    def parameter_of(self, i: int) -> str:
        """The name of an argument in an error: the code does not know its own."""
        return "x" if i == 0 else f"argument {i + 1}"


def run_code(name: str, function: Callable[..., Any], args: Sequence[Any], layout: Any) -> Any:
    """Plain differentiable code with a distributed argument; ``layout`` is a ``whole_dims``, or a result of ``dim_labels``, where
    `ROW` is a row of which the code may get a part.
    """
    code: Any = _PlainCode(name, function, layout)
    spread = _spread(code, args)
    if _is_batched():
        with _replicating():
            return function(*args)
    plan = _plan(code, args, spread)
    return _on_shards(plan, function if plan.row is None else _code_on_parts(function, plan.row), args)


def _spread(rules: Rules, args: Sequence[Any]) -> dict[int, Any]:
    """The distributed tensors of a call by argument position; refused on several meshes or mixed with plain tensors."""
    found: dict[int, Any] = {i: torch_private.innermost(a) for i, a in enumerate(args) if isinstance(a, Tensor)}
    spread = {i: t for i, t in found.items() if isinstance(t, DTensor)}
    mesh = next(iter(spread.values())).device_mesh
    for i, t in found.items():
        if i not in spread:
            _check_plain(rules, args, i)
        elif t.device_mesh != mesh:
            raise ValueError(f"{rules.name}: distributed tensors must be on one mesh, got {mesh} and {t.device_mesh}.")
    return spread


def _is_batched() -> bool:
    """Whether the rule of the innermost transform calls the operator again, one level further down."""
    return active_transforms()[-1:] in (["Vmap"], ["Functionalize"])


def _on_shards(plan: "_Plan", function: Callable[..., Any], args: Sequence[Any]) -> Any:
    output = function(*[plan.shard_of(i, a) if isinstance(a, Tensor) else a for i, a in enumerate(args)])
    if isinstance(output, Tensor):
        return plan.whole_of(output)
    return rebuild(type(output), [plan.whole_of(y) if isinstance(y, Tensor) else y for y in output])


def _is_declared(operator: Any) -> bool:
    return operator.whole_dims is not None or operator.dim_labels is not None


def _check_plain(rules: Rules, args: Sequence[Any], i: int) -> None:
    """Refuse a plain tensor of several numbers, unless implicit replication is on; one number, also expanded, is allowed."""
    is_number = all(n == 1 or step == 0 for n, step in zip(args[i].shape, args[i].stride(), strict=True))
    if not is_number and not torch_private.replicates_plain_tensors():
        raise TypeError(
            f"{rules.name}: plain tensors cannot be mixed with distributed ones, got `{rules.parameter_of(i)}` as a plain "
            f"tensor of shape {tuple(args[i].shape)}. Distribute it, by torch.distributed.tensor.distribute_tensor, or call the "
            "operator under torch.distributed.tensor.experimental.implicit_replication() if every rank has the same."
        )


# --- Which dimension is split where ---------------------------------------------------------------------------------------


def _with_whole_row(labels: tuple[Label, ...]) -> tuple[Label, ...]:
    return tuple([None if label == ROW else label for label in labels])


class _Labels(NamedTuple):
    """The labels of the dimensions of each argument, and of the first dimensions of each output; the others are whole."""

    inputs: tuple[tuple[Label, ...], ...]
    output: tuple[Label, ...]


def _labels(rules: Rules, args: Sequence[Any]) -> _Labels:
    """The labels that an operator declares for these arguments."""
    operator = rules.operator
    if operator.dim_labels is not None:
        inputs, output = operator.dim_labels(*args)
        if is_tracing():
            inputs, output = [_with_whole_row(labels) for labels in inputs], _with_whole_row(output)
        return _Labels(tuple(inputs), output)
    whole, ndims = operator.whole_dims, [a.ndim if isinstance(a, Tensor) else 0 for a in args]
    if isinstance(whole, str):
        named, n = args[rules.parameters.index(whole)], ndims[0]
        dims = set(range(n)) if named is None else {d % n for d in ((named,) if isinstance(named, int) else named)}
        first: tuple[Label, ...] = tuple([None if d in dims else d for d in range(n)])
        rest = tuple([d for d in first if d is not None])
        if _may_split_row(operator, args) and len(dims) == 1:
            first, kept = tuple([ROW if d is None else d for d in first]), (*rest, ROW)
        else:
            kept = first if operator.keeps_dim else rest
        return _Labels(tuple([first if m == n else (None,) * m for m in ndims]), kept)
    # Before the last ones, which are whole, dimensions are counted from the end, as they broadcast.
    core = [min(n, whole if isinstance(whole, int) else whole[i]) for i, n in enumerate(ndims)]
    batch = max([n - c for n, c in zip(ndims, core, strict=True)])
    last: tuple[Label, ...] = (ROW,) if _may_split_row(operator, args) else ()
    labels = tuple([(*range(batch - n + c, batch), *(last or (None,) * c)) for n, c in zip(ndims, core, strict=True)])
    return _Labels(tuple([row[:n] for row, n in zip(labels, ndims, strict=True)]), (*range(batch), *last))


def _may_split_row(operator: Any, args: Sequence[Any]) -> bool:
    """Whether an operator runs on parts of rows, for these arguments."""
    splits = getattr(operator, "splits_rows", False)
    return bool(splits(*args) if callable(splits) else splits) and not is_tracing()


class _Input(NamedTuple):
    """A tensor among the arguments: its shape, its placements if it is distributed, and whether it wraps a batch."""

    shape: Any
    placements: Placements | None
    is_batched: bool


def _plan(rules: Rules, args: Sequence[Any], spread: dict[int, Any]) -> "_Plan":
    """The plan of a call; calls whose arguments lie alike share one."""
    operator = rules.operator
    inputs: list[_Input | None] = [None] * len(args)
    for i, a in enumerate(args):
        if i in spread:
            inputs[i] = _Input(a.shape, spread[i].placements, _wraps_batch(a))
        elif isinstance(a, Tensor):
            inputs[i] = _Input(a.shape, None, False)
    allows_empty = operator.whole_dims == 0 and operator.dim_labels is None
    mesh = _Same(next(iter(spread.values())).device_mesh)
    facts = rules.name, _labels(rules, args), tuple(inputs), allows_empty, hasattr(operator.forward, "is_identity"), mesh
    try:
        return _Plan.shared(*facts)
    except TypeError:  # sizes that are symbols have no hash
        return _Plan(*facts)


class _Same:
    """An object that equals itself alone: a mesh may equal one whose processes have ended."""

    def __init__(self, it: Any) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it


class _Plan:
    """The placements of the inputs and outputs of a call."""

    def __init__(
        self,
        name: str,
        labels: _Labels,
        inputs: tuple[_Input | None, ...],
        allows_empty: bool,
        is_identity: bool,
        mesh: _Same,
    ) -> None:
        self.name, self.inputs, self.mesh = name, inputs, mesh.it
        self.labels, self.output = labels
        self.sizes = self._sizes()
        # Under a batching transform further down, a placement may be that of a batch dimension: then everything is whole.
        self.split: list[Label] = [None] * self.mesh.ndim
        self.strided: dict[int, Any] = {}
        if not any(a.is_batched for a in inputs if a):
            self._choose()
            if not allows_empty:
                self._drop_empty()
        # The value of an identity is a partial sum if its input is, unless there is another tensor: that may be split, and each
        # rank would count a derivative that depends on it as its own part.
        self.parts: list[Any] = [None] * self.mesh.ndim
        first = inputs[0]
        if is_identity and not any(inputs[1:]) and first and first.placements is not None and not first.is_batched:
            self.parts = [
                p if p.is_partial() and label is None else None for p, label in zip(first.placements, self.split, strict=True)
            ]
        over = tuple([m for m, label in enumerate(self.split) if label == ROW])
        self.row = _row(mesh, over, self.sizes[ROW]) if over and not _is_outside(self.mesh) else None
        self.shards = [None if a is None else self._layout_of(i, a) for i, a in enumerate(inputs)]
        self.wholes: dict[Any, Layout] = {}

    shared: Callable[..., "_Plan"]

    def _sizes(self) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for labels, a in zip(self.labels, self.inputs, strict=True):
            for label, n in zip(labels, a.shape if a else (), strict=True):
                if label is not None and n != 1 and sizes.setdefault(label, n) != n:
                    shapes = [tuple(a.shape) for a in self.inputs if a]
                    raise ValueError(f"{self.name}: the shapes of the inputs do not broadcast, got {shapes}.")
        return sizes

    def _label(self, i: int, d: int) -> Label:
        """The label of a dimension that can be split."""
        a = self.inputs[i]
        return self.labels[i][d] if a and a.shape[d] > 1 else None

    def _choose(self) -> None:
        """Choose splits: each mesh dimension splits the dimension that it splits of the largest tensor, if allowed."""
        spread = [(i, a) for i, a in enumerate(self.inputs) if a and a.placements is not None]
        for i, a in sorted(spread, key=lambda item: -item[1].shape.numel()):
            for m, p in enumerate(a.placements or ()):
                if not _is_shard(p) or self.split[m] is not None or (label := self._label(i, p.dim)) is None:
                    continue
                if not isinstance(p, Shard):  # strided, of a tensor that was split twice: as it is, or not at all
                    if any(placements != a.placements for placements in self._having(label)):
                        continue
                    self.strided[m] = p
                self.split[m] = label

    def _having(self, label: int) -> list[Placements | None]:
        """The placements of the tensors that have a dimension with a label."""
        found = [(i, a) for i, a in enumerate(self.inputs) if a]
        return [a.placements for i, a in found if any(self._label(i, d) == label for d in range(len(a.shape)))]

    def _drop_empty(self) -> None:
        """Do not split dimensions so small that a rank gets an empty shard, for which not every operator has a value."""
        smallest = dict(self.sizes)
        for m, label in enumerate(self.split):
            if label is not None:
                k = self.mesh.size(m)
                last = smallest[label] - -(-smallest[label] // k) * (k - 1)
                if last > 0:
                    smallest[label] = last
                else:
                    self.split[m] = None

    def _layout_of(self, i: int, a: _Input) -> "Layout":
        """The layout of an argument in the call."""
        use: list[Any] = []
        gradient: list[Any] = []
        for m, label in enumerate(self.split):
            d = next((d for d in range(len(a.shape)) if label is not None and self._label(i, d) == label), None)
            if d is not None:
                use.append(self._shard(m, d))
                gradient.append(use[-1])
            elif i == 0 and self.parts[m] is not None:
                use.append(self.parts[m])
                gradient.append(Replicate())
            else:  # each rank has the gradient of its part of the outputs
                use.append(Replicate())
                gradient.append(Replicate() if label is None else Partial())
        whole = (Replicate(),) * self.mesh.ndim if a.placements is None or a.is_batched else _summed(a.placements)
        return Layout(self.mesh, a.shape, tuple(use), whole, tuple(gradient))

    def shard_of(self, i: int, a: Tensor) -> Tensor:
        """The local tensor of an argument in the layout of the call."""
        given: Any = self.inputs[i]
        if given.placements is None:
            a = ToWhole.apply(a, Layout.everywhere(self.mesh, a.shape))
        return ToShards.apply(a, self.shards[i])

    def whole_of(self, y: Tensor) -> Tensor:
        """The distributed tensor from an output, which is its shard."""
        try:
            layout = self.wholes.get(y.shape) or self.wholes.setdefault(y.shape, self._layout_from(y))
        except TypeError:  # as in `_plan`
            layout = self._layout_from(y)
        return ToWhole.apply(y, layout)

    def _layout_from(self, y: Tensor) -> "Layout":
        """The layout of an output whose shard is ``y``."""
        labels = self.output
        if labels[-1:] == (ROW,) and y.ndim == len(labels) - 1:  # a number of each row
            labels = labels[:-1]
        if y.ndim < len(labels):
            raise RuntimeError(
                f"{self.name}: an output must have the {len(self.output)} dimensions that its inputs share, got shape "
                f"{tuple(y.shape)}. See `whole_dims` of fullgrad.Function."
            )
        shape, held, gradient = list(y.shape), [], []
        for m, label in enumerate(self.split):
            if self.parts[m] is not None:
                held.append(self.parts[m])
            elif label is None or label not in labels:
                held.append(Replicate())
            else:
                d = labels.index(label)
                shape[d] = self.sizes[label]
                held.append(self._shard(m, d))
            # Each rank has a part of what follows from the gradient of a row's number, see `counted_once`.
            gradient.append(Partial() if label == ROW and held[-1].is_replicate() else _summed((held[-1],))[0])
        placements = tuple(held)
        return Layout(self.mesh, torch.Size(shape), placements, placements, tuple(gradient))

    def _shard(self, m: int, d: int) -> Any:
        return Shard(d) if m not in self.strided else type(self.strided[m])(d, split_factor=self.strided[m].split_factor)


_Plan.shared = functools.lru_cache(maxsize=1024)(_Plan)


def _is_outside(mesh: Any) -> bool:
    """Whether this rank is not part of a mesh. It then computes with meta tensors of the whole shape, sends nothing and gets
    empty tensors, as from torch's operations.
    """
    return mesh.get_coordinate() is None


def _is_shard(p: Any) -> bool:
    return hasattr(p, "dim") and not p.is_partial() and not p.is_replicate()


def _wraps_batch(a: Tensor) -> bool:
    while torch_private.is_wrapped(a):
        if torch_private.is_batched(a):
            return True
        a = torch_private.get_unwrapped(a)
    return False


def _summed(placements: Placements) -> Placements:
    """The layout of a gradient, which is replicated where the tensor is a partial sum."""
    return tuple([Replicate() if p.is_partial() else p for p in placements])


def _moved(placements: Placements, by: int) -> Placements:
    """The layout of a tensor with ``by`` more dimensions in front."""
    return tuple(
        [
            p
            if not _is_shard(p)
            else Shard(p.dim + by)
            if isinstance(p, Shard)
            else type(p)(p.dim + by, split_factor=p.split_factor)
            for p in placements
        ]
    )


# --- Between the whole and the shards, each the derivative of the other ---------------------------------------------------

# Where a gradient has another layout than the value, torch's own from_local and local_map change it by an operation without a
# derivative: second derivatives are silently lost.


class Layout:
    """How a tensor of a ``shape`` lies on a mesh: the placements of the ``shards`` with which the ranks compute, of the
    ``whole``, and of the ``gradient`` of the shards.
    """

    def __init__(self, mesh: Any, shape: Any, shards: Placements, whole: Placements, gradient: Placements) -> None:
        self.mesh, self.shape, self.shards, self.whole, self.gradient = mesh, shape, shards, whole, gradient
        self.specs: dict[Any, Any] = {}

    @staticmethod
    def everywhere(mesh: Any, shape: Any) -> "Layout":
        """The layout of a tensor that is the same on every rank."""
        same = (Replicate(),) * mesh.ndim
        return Layout(mesh, shape, same, same, same)

    @functools.cached_property
    def of_shards(self) -> "Layout":
        """The layout of the gradient of the shards."""
        return Layout(self.mesh, self.shape, self.gradient, self.whole, self.gradient)

    @functools.cached_property
    def of_whole(self) -> "Layout":
        """The layout of the gradient of the whole; each rank has the whole gradient of a partial sum."""
        return Layout(self.mesh, self.shape, _summed(self.shards), _summed(self.whole), self.gradient)

    def batched(self, n: int) -> "Layout":
        """The layout of a tensor with a batch in front."""
        moved = [_moved(placements, 1) for placements in (self.shards, self.whole, self.gradient)]
        return Layout(self.mesh, torch.Size((n, *self.shape)), *moved)


class _Conversion:
    """An operator between distributed tensors and shards, which it handles itself. (Its base cannot be `fullgrad.Function`, which
    imports this folder.)
    """

    recompute_in_backward, runs_code, takes_zeros = False, False, False
    distributes_itself = True
    constant_types = (Layout,)
    apply: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        cls.apply = staticmethod(_dispatch.connect(Rules(cls)))


def _keep_layout(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.set_materialize_grads(False)
    ctx.layout = inputs[1]


class ToShards(_Conversion):
    """The local tensor of a distributed one. Its gradient is a shard, or a partial sum."""

    @staticmethod
    def forward(x: Tensor, layout: Layout) -> Tensor:
        spread: Any = x
        if not isinstance(x, DTensor):  # autograd batched it without calling the vmap rule
            raise NotImplementedError(
                "fullgrad: the cotangents of distributed tensors cannot be batched by `is_grads_batched=True`. Use "
                "torch.func.vmap of torch.func.vjp."
            )
        if _is_outside(layout.mesh):
            return torch.empty(layout.shape, dtype=x.dtype, device="meta")
        local = (spread if spread.placements == layout.shards else spread.redistribute(placements=layout.shards)).to_local()
        local = local.wait() if hasattr(local, "wait") else local  # a collective that is still under way
        return local.detach()

    setup_context = staticmethod(_keep_layout)

    @staticmethod
    def vjp(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, None]:
        return None if g is None else ToWhole.apply(g, ctx.layout.of_shards), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        return ToShards.apply(t, ctx.layout)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, layout: Layout) -> tuple[Tensor, int]:
        return ToShards.apply(x.movedim(in_dims[0], 0), layout.batched(info.batch_size)), 0


class _Sharing:
    """The ranks that share a row: the dimensions of a mesh that split it."""

    def __init__(self, mesh: Any, over: tuple[int, ...]) -> None:
        self.mesh, self.over = mesh, over


class Total(_Conversion):
    """The sum of plain tensors over ranks. The gradient is the sum of the gradients of all ranks, which use it on their parts."""

    constant_types = (_Sharing,)

    @staticmethod
    def forward(x: Tensor, sharing: _Sharing) -> Tensor:
        total = x.detach().clone(memory_format=torch.contiguous_format)
        for m in sharing.over:
            dist.all_reduce(total, group=sharing.mesh.get_group(m))
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.sharing = inputs[1]

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return Total.apply(g, ctx.sharing), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        return Total.apply(t, ctx.sharing)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, sharing: _Sharing) -> tuple[Tensor, int]:
        return Total.apply(x.movedim(in_dims[0], 0), sharing), 0


class ToWhole(_Conversion):
    """The distributed tensor from its local ones. ``gradient`` is the layout of the gradient of its gradient: a partial sum for
    the gradient of a bound that shards share, else the same on every rank, as for an identity of partial sums.
    """

    @staticmethod
    def forward(y: Tensor, layout: Layout) -> Tensor:
        outside = _is_outside(layout.mesh)
        local = torch.empty(0, dtype=y.dtype, device=layout.mesh.device_type) if outside else y.detach()
        whole: Any = torch_private.distributed_tensor(local, layout, _strides(y, layout.shape))
        return whole if layout.shards == layout.whole else whole.redistribute(placements=layout.whole)

    setup_context = staticmethod(_keep_layout)

    @staticmethod
    def vjp(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, None]:
        return None if g is None else ToShards.apply(g, ctx.layout.of_whole), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> Tensor:
        return ToWhole.apply(t, ctx.layout)

    @staticmethod
    def vmap(info: Any, in_dims: Any, y: Tensor, layout: Layout) -> tuple[Tensor, int]:
        return ToWhole.apply(y.movedim(in_dims[0], 0), layout.batched(info.batch_size)), 0


def _strides(y: Tensor, shape: Any) -> tuple[int, ...]:
    """The strides of the whole, in the order of those of a shard."""
    dims, strides, step = list(reversed(range(y.ndim))), [0] * y.ndim, 1
    if not y.is_contiguous():
        dims.sort(key=y.stride)
    for d in dims:
        strides[d], step = step, step * max(shape[d], 1)
    return tuple(strides)


# --- Noise ----------------------------------------------------------------------------------------------------------------


def has_own_noise(x: Tensor) -> bool:
    """Whether torch offsets the random numbers of shards, which it does on CUDA only. Elsewhere each rank draws its own."""
    return isinstance(x, DTensor) and x.device.type == "cuda"


def noise(x: Tensor, front: int, draw: Callable[[Generator | None], Tensor], generator: Generator | None) -> Tensor:
    """Noise by ``draw`` for all elements of a distributed tensor, with ``front`` more dimensions in front, laid out as the
    tensor.

    Each rank draws all numbers from the state of the first rank's generator: so shards differ, replicas are equal, and if all
    ranks have one seed the numbers are those of one process. The cost is one broadcast of a generator's state.
    """
    spread: Any = torch_private.innermost(x)
    mesh = spread.device_mesh
    same = (Replicate(),) * mesh.ndim
    to = same if _wraps_batch(x) else _moved(_summed(spread.placements), front)
    source = generator or _default_generator(x.device)
    state = source.get_state()
    y = draw(generator)  # even if it is not used, so that every rank's generator advances alike
    if not _is_outside(mesh):
        with torch_private.without_transforms():
            first = state.to(mesh.device_type, copy=True)
            for m in range(mesh.ndim):
                dist.broadcast(first, group_src=0, group=mesh.get_group(m))
            first = first.to(state.device)
            other = None if torch.equal(first, state) else Generator(x.device).set_state(first)
        if other is not None:
            y = draw(other)
    return ToWhole.apply(y, Layout(mesh, y.shape, same, to, to)).detach()


def _default_generator(device: torch.device) -> Generator:
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    return module.default_generators[module.current_device() if device.index is None else device.index]


# --- Reductions -----------------------------------------------------------------------------------------------------------


def over_ranks(x: Tensor, dims: tuple[int, ...], part: Callable[[Tensor], Tensor], whole: Callable[[Tensor], Any]) -> Any:
    """The tensors ``whole(parts)``, where ``parts`` are ``part(shard)`` of the ranks that share a row, behind one another.

    The tensors keep ``dims`` with size 1. Both functions are plain differentiable code. The ranks send one gather.
    """
    spread: Any = torch_private.innermost(x)
    mesh = spread.device_mesh
    held = (Replicate(),) * mesh.ndim if _wraps_batch(x) else _summed(spread.placements)
    parts = part(ToShards.apply(x, Layout(mesh, x.shape, held, held, held))).unsqueeze(0)
    shared = [_is_shard(p) and p.dim in dims for p in held]
    shape = torch.Size([1 if d in dims else n for d, n in enumerate(x.shape)])
    rest = tuple([Replicate() if over else p for p, over in zip(held, shared, strict=True)])
    if any(shared) and not _is_outside(mesh):
        ranks = torch.Size([mesh.size(m) for m, over in enumerate(shared) if over]).numel()
        total, all_parts = torch.Size((ranks, parts.shape[1], *shape)), _moved(rest, 2)
        own = tuple([Shard(0) if over else p for p, over in zip(_moved(held, 2), shared, strict=True)])
        parts = ToWhole.apply(parts, Layout(mesh, total, own, all_parts, own))
        parts = ToShards.apply(parts, Layout(mesh, total, all_parts, all_parts, all_parts))
    return tuple([ToWhole.apply(y, Layout(mesh, shape, rest, rest, rest)) for y in whole(parts)])


class Extremes(_Conversion):
    r"""The smallest and the largest element of a distributed tensor over some dimensions, which are kept with size 1.

    .. math::
        D\, t = \frac{\sum_{x_i = y} t_i}{\sum_{x_i = y} 1}

    for both. Each rank sends two numbers for each row of its shard. They are gathered, as a reduction by collective operations
    loses a NaN (gloo's compares with it). Saved: the input and the outputs.
    """

    @staticmethod
    def forward(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, ...]:
        def both(shard: Tensor) -> Tensor:
            if all(shard.shape[d] for d in dims):
                return torch.stack([shard.amin(dims, keepdim=True), -shard.amax(dims, keepdim=True)])
            return shard.new_full((2, *[1 if d in dims else n for d, n in enumerate(shard.shape)]), torch.inf)

        low, high = over_ranks(x, dims, both, lambda parts: parts.amin(0).unbind())
        return low, -high

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.dims = inputs[1]
        ctx.save_for_backward(inputs[0], *output)
        ctx.save_for_forward(inputs[0], *output)

    @staticmethod
    def vjp(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        x, *extremes = ctx.saved_tensors
        parts = [g * _share(x, y, ctx.dims) for g, y in zip(cotangents, extremes, strict=True)]
        return parts[0] + parts[1], None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: None) -> tuple[Tensor, ...]:
        x, *extremes = ctx.saved_tensors
        return tuple([(t * _share(x, y, ctx.dims)).sum(ctx.dims, keepdim=True) for y in extremes])

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, dims: tuple[int, ...]) -> tuple[Any, tuple[int, int]]:
        return Extremes.apply(x.movedim(in_dims[0], 0), tuple([d + 1 for d in dims])), (0, 0)


def _share(x: Tensor, y: Tensor, dims: tuple[int, ...]) -> Tensor:
    """1 / n for each of the n elements that equal the extreme, else 0."""
    tied = (x == y).to(x.dtype)
    return tied / tied.sum(dims, keepdim=True)


# --- Operation by operation -----------------------------------------------------------------------------------------------


def _operation_by_operation(rules: Rules, args: Sequence[Any], spread: dict[int, Any]) -> Any:
    """The operator's own rules on distributed tensors. The tensors that they make are the same on every rank."""
    if not (torch_private.transforms_active() or hasattr(rules.operator.forward, "is_identity")):
        args = [without_parts(a) if i in spread else a for i, a in enumerate(args)]
    with _explained(rules.operator, [t.placements for t in spread.values()]), _replicating():
        return _whole_call(rules.operator)(tuple(args))


def without_parts(a: Tensor) -> Tensor:
    """The distributed tensor without partial sums, whose numbers torch would read as this rank's part, and without a split
    dimension of one element, whose reductions have no rule in torch.
    """
    spread: Any = torch_private.innermost(a)
    to = [Replicate() if _is_shard(p) and spread.shape[p.dim] == 1 else p for p in _summed(spread.placements)]
    return a if list(spread.placements) == to else _laid_out(a, tuple(to))


def with_whole_rows(a: Tensor, dim: int) -> Tensor:
    """The distributed tensor without partial sums, no rank of which has parts of rows along ``dim``."""
    spread: Any = torch_private.innermost(a)
    split = [_is_shard(p) and p.dim == dim % max(a.ndim, 1) for p in spread.placements]
    to = [Replicate() if over else p for p, over in zip(_summed(spread.placements), split, strict=True)]
    return a if list(spread.placements) == to else _laid_out(a, tuple(to))


def reshaped(a: Tensor, shape: Sequence[int]) -> Tensor:
    """``a.reshape(shape)`` of a distributed tensor. torch neither joins nor splits a dimension with uneven shards: the tensor is
    then gathered, as are cotangents in another layout.
    """
    try:
        y = a.reshape(shape)
    except RuntimeError:
        spread: Any = torch_private.innermost(a)
        y = _laid_out(a, (Replicate(),) * spread.device_mesh.ndim).reshape(shape)
    spread = torch_private.innermost(y)
    return _laid_out(y, _summed(spread.placements))


def _laid_out(a: Tensor, to: Placements) -> Tensor:
    """A distributed tensor in another layout without partial sums; its gradient keeps the layout of ``a``."""
    spread: Any = torch_private.innermost(a)
    mesh, own = spread.device_mesh, _summed(spread.placements)
    if _wraps_batch(a):
        to = own = (Replicate(),) * mesh.ndim
    return ToWhole.apply(ToShards.apply(a, Layout(mesh, a.shape, to, own, to)), Layout(mesh, a.shape, to, to, to))


@functools.cache
def _whole_call(operator: Any) -> Callable[[tuple[Any, ...]], Any]:
    call, _ = _dispatch.dispatch(_WholeRules(operator))
    return call


class _WholeRules(Rules):
    """The rules of an operator whose derivatives treat the tensors that they create as replicated."""

    def __init__(self, operator: Any) -> None:
        super().__init__(operator)
        self.backward, self.jvp = _on_whole(operator, self.backward), _on_whole(operator, self.jvp)
        self.meets_distributed = False


def _on_whole(operator: Any, rule: Any) -> Any:
    def on_whole(ctx: Any, *args: Any) -> Any:
        spread = {i: torch_private.innermost(a) for i, a in enumerate(args) if isinstance(a, Tensor)}
        spread = {i: t for i, t in spread.items() if isinstance(t, DTensor)}
        args = tuple([without_parts(a) if i in spread else a for i, a in enumerate(args)])
        with _explained(operator, [t.placements for t in spread.values()]), _replicating():
            return rule(ctx, *args)

    return on_whole


# Parts of torch's messages where it has no rule for an operation, or meets a plain tensor.
_NO_RULE = ("sharding strategy", "Sharding propagation failed", "mixed torch.Tensor and DTensor")


@contextlib.contextmanager
def _explained(operator: Any, placements: Sequence[Any]) -> Iterator[None]:
    """A context that adds to torch's error what the author of an operator can do about it."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if _is_declared(operator) or not any(text in str(error) for text in _NO_RULE):
            raise
        found = ", ".join(str(p) for p in placements)
        way_out = (
            "Lay them out otherwise before the call, by x.redistribute(placements=...); torch has rules for Replicate()."
            if operator.__module__.startswith("fullgrad.")
            else "Declare by `whole_dims` which dimensions a rank must have whole, and the operator runs on shards (see "
            "fullgrad.Function), or write it as a fullgrad.Elementwise."
        )
        raise NotImplementedError(
            f"{operator.__name__}: torch has no rule for an operation on tensors placed as {found}. {way_out}"
        ) from error


@contextlib.contextmanager
def _replicating() -> Iterator[None]:
    if torch_private.replicates_plain_tensors():  # torch's context would switch it off at its end
        yield
        return
    with implicit_replication():
        yield
