"""Our soft operators next to those of the published softtorch, called as its users call them, at everyday sizes."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

import fullgrad
from fullgrad._suite.bench._comparison import PEER, Comparison
from fullgrad._suite.bench._measure import Statement
from fullgrad._suite.bench._operators import BACKWARD, COMPILED, FORWARD, JVP, PER_SAMPLE, function_of_its_own
from fullgrad._suite.bench._peers import load

INSTALL = "pip install --no-deps --ignore-requires-python softtorch==0.1.1 torchopt POT optree graphviz; pip install numba"
ROWS = ((10,), (64, 10), (64, 100), (256, 32), (16, 256), (1, 1024))
ELEMENTS = ((16,), (64, 256), (1024, 1024))
# Compiling takes seconds for each operator and shape, so only order statistics of one shape are compiled.
COMPILED_ROWS = ((64, 100),)

# The arguments of each after the tensor.
ORDER: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("sort", "argsort", "rank", "max", "min", "argmax", "median")},
    "quantile": {"q": 0.3},
    "topk": {"k": 3},
}
_ELEMENTWISE: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("abs", "relu", "round", "sign", "heaviside"), ()),
    **dict.fromkeys(("greater", "greater_equal", "less", "less_equal", "eq", "not_equal", "isclose"), (0.3,)),
    "clamp": (-1.0, 1.0),
}


NAMES = tuple([ours for name in (*ORDER, *_ELEMENTWISE) for ours in (f"soft.{name}", f"{name}_st")])


def is_of_rows(ours: str) -> bool:
    """Whether an operator is an order statistic."""
    return ours.removeprefix("soft.").removesuffix("_st") in ORDER


def softtorch(ours: str, ways: Sequence[str]) -> Iterator[Comparison]:
    """One comparison of an operator for each shape and way. If the rival raises, the comparison has no rival and says so."""
    theirs = ours.removeprefix("soft.")
    name = theirs.removesuffix("_st")
    pair = [_function(operator, name) for operator in (_ours(ours), load(f"softtorch:{theirs}"))]
    for way in ways:
        for shape in _shapes(name, way):
            statements = _statements(pair, way, shape)
            if statements:
                yield Comparison(
                    operator=ours,
                    what=f"{way} {shape}" + (": softtorch raises" if len(statements) == 1 else ""),
                    n=torch.Size(shape).numel(),
                    dtype="float32",
                    ours=statements[0],
                    rivals=dict(zip([PEER], statements[1:], strict=False)),
                )


def _shapes(name: str, way: str) -> Sequence[tuple[int, ...]]:
    if way == COMPILED:
        return COMPILED_ROWS if name in ORDER else ()
    return ROWS if name in ORDER else ELEMENTS


def _ours(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), fullgrad)


def _function(operator: Any, name: str) -> Callable[[Tensor], Tensor]:
    """The operator as a function of a tensor: along the last dimension, or with its numbers as tensors without dimensions."""
    how = {"dim": -1, **ORDER[name]} if name in ORDER else {}
    others = [torch.tensor(v) for v in _ELEMENTWISE.get(name, ())]
    return lambda x: y if isinstance(y := operator(x, *others, **how), Tensor) else y[0]


def _statements(pair: Sequence[Callable[[Tensor], Tensor]], way: str, shape: tuple[int, ...]) -> list[Statement]:
    """Ours and the rival's, or ours alone if the rival raises; none for an unknown way."""
    torch.manual_seed(0)
    statements = []
    for f in pair:
        x = torch.randn(shape)
        leaf, g = x.clone().requires_grad_(), torch.randn_like(f(x))
        if way == COMPILED:
            f = torch.compile(function_of_its_own(f), dynamic=False)
        if way == FORWARD:
            statement = Statement("f(x)", {"f": f, "x": leaf})
        elif way in (BACKWARD, COMPILED):
            statement = Statement("grad(f(x), x, g)", {"f": f, "x": leaf, "g": g, "grad": torch.autograd.grad})
        elif way == JVP:
            statement = Statement("jvp(f, (x,), (t,))", {"f": f, "x": x, "t": torch.randn_like(x), "jvp": jvp})
        elif way == PER_SAMPLE:
            per_sample = vmap(grad(lambda row, f=f: f(row).square().sum()))
            statement = Statement("f(x)", {"f": per_sample, "x": x if x.ndim > 1 else x.unsqueeze(0)})
        else:
            return []
        try:
            exec(statement.code, dict(statement.names))
        except Exception:
            if not statements:
                raise
            break
        statements.append(statement)
    return statements
