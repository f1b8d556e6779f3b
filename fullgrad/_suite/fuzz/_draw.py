"""Programs as Hypothesis draws and shrinks them."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from fullgrad._suite.fuzz._laws import FORWARD, MODES, WAYS
from fullgrad._suite.fuzz._program import (
    BY_NAME,
    IN_THE_UNIT_INTERVAL,
    LAYOUTS,
    SPECIAL,
    Program,
    Step,
    common_shape,
    is_elementwise,
    rank,
)

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_STEPS = ("grad", "jvp", "vmap", "vjp", "jacrev", "jacfwd")
# The weights with which laws are drawn, 1 by default: a graph takes a second, the rest milliseconds.
_WEIGHTS = {"value": 80, "ways": 80, "layouts": 60, "loop": 80, "nesting": 120, "adjoint": 40, "orders": 40, "precision": 40}
# Laws of higher derivatives, which need float64 and few elements.
_HIGHER = ("nesting", "orders", "compiled")
# Laws that hold where no number is on a bound or a tie.
_GENERIC = (*_HIGHER, "precision")
# The largest number of transforms.
_DEPTH = {"loop": 1, "compiled": 2, "nesting": 3}


@functools.cache
def names() -> list[str]:
    """The cases that may be drawn: no kernels, which users do not call, and no operators that draw random numbers."""
    return [name for name, case in BY_NAME.items() if case.covers and not _is_random(name)]


def _is_random(name: str) -> bool:
    case = BY_NAME[name]
    return bool(case.draws) and not torch.equal(case.op(*case.tensors), case.op(*case.tensors))


def laws_by_weight(laws: Sequence[str]) -> list[str]:
    """The laws, repeated by their weights."""
    return [law for law in laws for _ in range(_WEIGHTS.get(law, 1))]


@st.composite
def programs(draw: Any, names: Sequence[str], laws: Sequence[str], device: str = "cpu") -> Program:
    """A program of one of the cases and laws. Simple choices come first, so that failures shrink to them."""
    law = draw(st.sampled_from(laws))
    name = draw(st.sampled_from(names))
    case = BY_NAME[name]
    dtypes = ("float64",) if law in (*_HIGHER, "adjoint") else _DTYPES[1:] if law == "precision" else _DTYPES
    layout = draw(st.sampled_from(LAYOUTS)) if law in ("layouts", "value") else LAYOUTS[0]
    modes = {"value": tuple(MODES), "ways": tuple(WAYS)}.get(law, ("plain",))
    if not case.has_tangent or layout == "expanded":  # torch makes no dual number of such a tensor
        modes = tuple([m for m in modes if m != "jvp"])
    special = SPECIAL if case.tensors[0].amin() < 0 else IN_THE_UNIT_INTERVAL
    place = st.tuples(st.integers(0, 20), st.sampled_from(special))
    return Program(
        case=name,
        law=law,
        sizes=_draw_sizes(draw, name, law),
        seed=draw(st.integers(0, 999)),
        specials=() if law in _GENERIC else tuple(draw(st.lists(place, max_size=4))),
        dtype=draw(st.sampled_from(dtypes)),
        layout=layout,
        steps=_draw_steps(draw, name, law),
        mode=draw(st.sampled_from(modes)),
        device=device,
    )


def _draw_sizes(draw: Any, name: str, law: str) -> tuple[int, ...] | None:
    case, count = BY_NAME[name], rank(name)
    if not count or not draw(st.booleans()):
        return None
    size = st.integers(1, 3) if law in _HIGHER else st.sampled_from([1, 2, 3, 5, 0, 17])
    if is_elementwise(case):
        count = draw(st.integers(0, 3 if law in _HIGHER else 4))
    sizes = draw(st.lists(size, min_size=count, max_size=count))
    if law in _HIGHER and case.of == "rows":  # many surrogates are written for rows of one length
        sizes[-1] = common_shape(case)[-1]
    return tuple(sizes)


def _draw_steps(draw: Any, name: str, law: str) -> tuple[Step, ...]:
    case = BY_NAME[name]
    kinds = ("vmap",) if law == "loop" else tuple([k for k in _STEPS if case.has_tangent or k not in FORWARD])
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, _DEPTH[law])) if law in _DEPTH else 0):
        kind = draw(st.sampled_from(kinds))
        if kind.startswith("jac") and any(s.name.startswith("jac") for s in steps):
            kind = "grad"  # a Jacobian of a Jacobian has more elements than a program should have
        steps.append(Step(kind, draw(st.integers(-1, len(case.tensors) - 1)), draw(st.integers(0, 3))))
    return tuple(steps)
