"""The comparisons of an operator, made from its case: enlarged inputs, every way of calling it, and every rival.

The rivals are the plain torch operator (the case's ``value``), the composite (its ``surrogate``: the detach trick for a
straight-through operator), the operator of another package, and the floor: a copy, and with a gradient two reads and a write.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fullgrad._suite.bench import _composites
from fullgrad._suite.bench._comparison import COMPOSITE, FLOOR, PEER, PLAIN, Comparison
from fullgrad._suite.bench._measure import Statement, saved_bytes
from fullgrad._suite.bench._peers import peer
from fullgrad._suite.bench._words import BACKWARD, COMPILED, FORWARD, JVP, NO_GRADIENT, PER_SAMPLE, WAYS
from fullgrad._suite.cases import CASES
from fullgrad._suite.cases._case import Case

Function = Callable[..., Tensor]

# The number of elements from which on a call costs its passes over memory.
LARGE = 2**16
# All elements are one row of an order statistic up to this many; beyond, rows are short, as some methods take n^2 time.
ONE_ROW, SHORT_ROW = 4096, 32
# Operators whose surrogate is not a composite: one holds a window for every place, two record nothing, one is a closed form for
# two by two.
NO_COMPOSITE = ("soft.narrow", "ScaleTracker", "track_scales", "sampling.gumbel_sinkhorn")
# The most numbers in a matrix of a composite that is still run: half a GiB in float32.
MATRICES = 2**27


def chosen(names: Sequence[str], variants: bool) -> list[Case]:
    """The cases of these names, or of every public operator; with ``variants``, every way of calling them."""
    firsts = {next(c.name for c in CASES if name in c.covers) for case in CASES for name in case.covers}

    def wanted(case: Case) -> bool:
        if names and not set(case.covers) & set(names):
            return False
        return variants or not case.exhaustive or case.name in firsts

    return [c for c in CASES if c.name in names or wanted(c)]


def comparisons(
    case: Case, n: int, dtype: torch.dtype, device: str, ways: Sequence[str], memory: bool = False, one_row: bool = False
) -> Iterator[Comparison]:
    """One comparison for each way. With ``one_row``, order statistics are those of a single row of any length."""
    row = n if one_row or n <= ONE_ROW else SHORT_ROW
    inputs = enlarged(case, n, row, dtype, device)
    operator = {"ours": case.operator, **rivals(case, inputs, n * row)}
    leaves = tuple(v.clone().requires_grad_() for v in tensors(inputs))
    functions = {who: bound(f, inputs) for who, f in operator.items()}
    kept = {}
    if {FORWARD, BACKWARD} & set(ways):
        kept = {who: saved_bytes(f, leaves) / n for who, f in functions.items() if who != PLAIN}
    for way in ways:
        if way == JVP and not case.has_tangent:
            continue
        statements = {}
        for who, function in functions.items():
            plainly = (NO_GRADIENT, FORWARD, BACKWARD) if COMPOSITE in functions else WAYS
            if who == PLAIN and way not in plainly:
                continue
            if who == PEER and way in (PER_SAMPLE, JVP):
                continue  # other packages have no rules for it; see docs/peers.md
            try:
                statements[who] = _statement(way, function, leaves, case, n, row)
            except Exception:
                if who == "ours":
                    raise
                continue  # plain code that torch cannot compile does not stop the others
        if way in (NO_GRADIENT, FORWARD, BACKWARD) and n >= LARGE:
            statements[FLOOR] = _statement(way, _copy, leaves[:1], case, n, row)
        yield Comparison(
            operator=case.name,
            what=way,
            n=n,
            dtype=str(dtype).removeprefix("torch."),
            ours=statements.pop("ours"),
            rivals=statements,
            saved=kept if way in (FORWARD, BACKWARD) else {},
            memory=memory and way == BACKWARD,
            turns=f"{case.name} {n} {dtype}",
        )


def rivals(case: Case, inputs: Sequence[Any], matrices: int) -> dict[str, Callable[..., Any]]:
    """The rivals of a case, by name, without those whose matrices would exceed the limit."""
    found: dict[str, Callable[..., Any]] = {}
    # A value that is its input is not an operation of torch at all.
    if case.value is not None and case.value(*inputs) is not inputs[0]:
        found[PLAIN] = case.value
    composite = case.surrogate
    if case.of in ("rows", "matrices"):
        composite = _with_matrices(case) if matrices <= MATRICES else None
    if composite is not None and composite is not case.value and case.name not in NO_COMPOSITE:
        found[COMPOSITE] = composite
    other = peer(case.name)
    if other is not None:
        found[PEER] = other[1]
    return found


def _with_matrices(case: Case) -> Callable[..., Any] | None:
    name, *how = case.name.split()
    if len(how) != 2 or how[1] != "smooth":
        return None
    relaxation = _composites.relaxation(name.removeprefix("soft.").removesuffix("_st"), how[0])
    if relaxation is None or case.value is None:
        return relaxation
    value = case.value
    return _composites.straight(lambda x: value(x, None), relaxation)


# --- Inputs -----------------------------------------------------------------------------------------------------------


def enlarged(case: Case, n: int, row: int, dtype: torch.dtype, device: str) -> list[Any]:
    """The inputs of a case with n elements in the first: every dimension takes the size that it has there.

    The numbers lie between two of the case's own, drawn at random, so a range or a sign that an input must have is kept.
    """
    generator = torch.Generator().manual_seed(0)
    shape, target = case.inputs[0].shape, _shape(case, n, row)
    sizes = {1: 1, **dict(zip(shape, target, strict=True))}

    def draw(v: Tensor) -> Tensor:
        size = [sizes.get(d, d) for d in v.shape]
        ends = v.flatten().double()[torch.randint(v.numel(), (2, *size), generator=generator)]
        return torch.lerp(ends[0], ends[1], torch.rand(size, generator=generator, dtype=torch.float64)).to(device, dtype)

    return [draw(v) if isinstance(v, Tensor) and v.is_floating_point() else v for v in case.inputs]


def _shape(case: Case, n: int, row: int) -> tuple[int, ...]:
    if case.of == "rows":
        return n // row, row
    side = max(d for d in range(1, int(n**0.5) + 1) if n % d == 0)
    if case.of == "matrices":
        batch = case.inputs[0].ndim - 2
        return (*[1] * batch, n // side, side)
    return n // side, side


def tensors(inputs: Sequence[Any]) -> list[Tensor]:
    """The inputs that are differentiated."""
    return [v for v in inputs if isinstance(v, Tensor) and v.is_floating_point()]


def bound(operator: Callable[..., Any], inputs: Sequence[Any]) -> Function:
    """The operator as a function of its differentiable inputs with one output: the first, the values, if there are several."""
    places = [i for i, v in enumerate(inputs) if isinstance(v, Tensor) and v.is_floating_point()]
    rest = tuple(inputs[1:])

    def replaced(*differentiable: Tensor) -> Any:
        arguments = list(inputs)
        for i, t in zip(places, differentiable, strict=True):
            arguments[i] = t
        return operator(*arguments)

    def first(x: Tensor) -> Any:
        return operator(x, *rest)

    call: Callable[..., Any] = replaced if places != [0] else first if rest else operator
    if isinstance(call(*tensors(inputs)), Tensor):
        return call
    return lambda *differentiable: call(*differentiable)[0]


# --- Statements -------------------------------------------------------------------------------------------------------


def _copy(x: Tensor) -> Tensor:
    return _Copy.apply(x)


class _Copy(torch.autograd.Function):
    """The floor of an elementwise operator: a copy, and in the backward two reads and a write."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


def _statement(way: str, function: Function, leaves: tuple[Tensor, ...], case: Case, n: int, row: int) -> Statement:
    x = tuple(v.detach() for v in leaves)
    if way == NO_GRADIENT:
        return _call("f", function, x)
    if way == FORWARD:
        return _call("f", function, leaves)
    if way in (BACKWARD, COMPILED):
        if way == COMPILED:
            function = torch.compile(function_of_its_own(function), fullgraph=True, dynamic=False)
        # Contiguous and of the value's own strides, as a following layer gives it.
        g = torch.ones_like(function(*leaves), memory_format=torch.contiguous_format)
        names: dict[str, Any] = {"g": torch.randn_like(g), "leaves": leaves, "grad": torch.autograd.grad}
        call = _call("f", function, leaves)
        return Statement(f"grad({call.code}, leaves, g)", {**call.names, **names})
    if way == JVP:
        return Statement("jvp(f, x, t)", {"jvp": torch.func.jvp, "f": function, "x": x, "t": tuple(map(torch.randn_like, x))})
    samples = 64 if n >= 1024 else 4
    size = max(n // samples, 1)
    inputs = enlarged(case, size, min(row, size), x[0].dtype, str(x[0].device))
    batch = tuple(v.expand(samples, *v.shape).contiguous() for v in tensors(inputs))
    per_sample = vmap(grad(lambda *a: function(*a).sum(), argnums=tuple(range(len(batch)))))
    return _call("f", per_sample, batch)


def function_of_its_own(function: Function) -> Function:
    """A function with its own code object: torch.compile counts how often it compiles the same code, and gives up. The code is
    of a file, as torch 2.11 wraps others in one function.
    """
    namespace: dict[str, Any] = {"function": function}
    exec(compile("def own(*inputs):\n    return function(*inputs)", __file__, "exec"), namespace)
    return namespace["own"]


def _call(name: str, function: Function, arguments: tuple[Tensor, ...]) -> Statement:
    """The call as a user writes it, without the cost of unpacking."""
    names = {f"x{i}": v for i, v in enumerate(arguments)}
    return Statement(f"{name}({', '.join(names)})", {name: function, **names})
