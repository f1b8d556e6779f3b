"""Cases of the family `quantizers`: each operator with parameters that learn, and as variants with numbers, channels and blocks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fullgrad import quantizers
from fullgrad._suite.cases._case import Case, numbers, straight_through
from fullgrad.quantizers import _fake_quantize

X = numbers(4, 3)
SCALE = torch.tensor([[0.5], [0.31], [0.83], [0.62]], dtype=torch.float64)
ZERO_POINT = torch.tensor([-0.7, 0.3, 1.2], dtype=torch.float64)


def in_compute_dtype(value):
    """A value whose arithmetic is that of float32 for half precision, rounded once, with parameters converted to it."""

    def plain(x: Tensor, *rest: Any) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        return value(wide, *[t.to(wide.dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for t in rest]).to(
            x.dtype
        )

    return plain


def constant(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def rounded_through(x: Tensor) -> Tensor:
    return straight_through(torch.round(x), x)


# --- fake_quantize -------------------------------------------------------------------------------------------------------

LOW, HIGH = -3, 4


def _code(x: Tensor, s: Any, z: Any, inside: str, reciprocal: bool, round_z: bool) -> tuple[Tensor, Any, Tensor]:
    """The code before it is clamped, the zero point, and where the gradient passes; with their straight-through derivatives."""
    v = x * (1 / s) if reciprocal else x / s
    if round_z and isinstance(z, Tensor):
        z = straight_through(torch.clamp(torch.round(z), LOW, HIGH), z)
    r = rounded_through(v) + z if round_z else rounded_through(v + z)
    inner = {"rounded": r, "exact": v + z, "all": torch.zeros_like(v)}[inside]
    return r, z, (inner >= LOW) & (inner <= HIGH) if inside != "all" else torch.ones_like(v, dtype=torch.bool)


def _fake(name: str, inputs: tuple[Any, ...], inside: str = "rounded", *, dim: int | None = None, **options: Any) -> Case:
    reciprocal, round_z = options.pop("reciprocal", True), options.pop("round_z", True)

    def aligned(t: Any) -> Any:
        return t.view(-1, 1) if dim is not None and isinstance(t, Tensor) and t.ndim else t

    def operator(x: Tensor, s: Any, z: Any) -> Tensor:
        return quantizers.fake_quantize(
            x, s, z, LOW, HIGH, dim=dim, inside=inside, reciprocal=reciprocal, round_zero_point=round_z
        )

    @in_compute_dtype
    def value(x: Tensor, s: Any, z: Any) -> Tensor:
        s, z = aligned(s), aligned(z)
        if reciprocal:
            v = x * (1 / s if isinstance(s, Tensor) else 1 / torch.full((), s, dtype=x.dtype))
        else:
            v = x / s
        if round_z and isinstance(z, Tensor):
            z = torch.clamp(torch.round(z), LOW, HIGH)
        r = torch.round(v) + z if round_z else torch.round(v + z)
        return (torch.clamp(r, LOW, HIGH) - z) * s

    def surrogate(x: Tensor, s: Any, z: Any) -> Tensor:
        r, z, inner = _code(x, aligned(s), aligned(z), inside, reciprocal, round_z)
        clamped = torch.clamp(r, LOW, HIGH).detach()
        through = straight_through(clamped, r) if inside == "all" else r
        return (torch.where(inner, through, clamped) - z) * aligned(s)

    def smooth(x: Tensor, s: Any, z: Any, *_: Any) -> Tensor:
        r, _, inner = _code(x, s, z, inside, reciprocal, round_z)
        zero = 0 * (s + z)
        return torch.where(inner, x + zero, (torch.clamp(r, LOW, HIGH).detach() - z) * s)

    def smooth_residual(x: Tensor, s: Any, z: Any, *_: Any) -> Tensor:
        r, _, inner = _code(x, s, z, inside, reciprocal, round_z)
        return torch.where(inner, 0 * r, torch.clamp(r, LOW, HIGH).detach() - z)

    return Case(
        name=name,
        covers=("quantizers.fake_quantize",),
        operator=operator,
        inputs=inputs,
        surrogate=surrogate,
        value=value,
        smooth_forwards={
            _fake_quantize.FakeQuantize: smooth,
            _fake_quantize.FakeQuantizeEverywhere: lambda x, *rest: x.clone(),
            _fake_quantize.FakeQuantizeResidual: smooth_residual,
        },
        **options,
    )


def _fakes() -> Iterator[Case]:
    yield _fake("quantizers.fake_quantize", (X, SCALE, ZERO_POINT))
    yield _fake("quantizers.fake_quantize everywhere", (X, 0.5, 1), "all")
    for inside in ("rounded", "exact", "all"):
        yield _fake(f"quantizers.fake_quantize by numbers, {inside}", (X, 0.5, 1), inside, exhaustive=True, reciprocal=False)
        yield _fake(f"quantizers.fake_quantize by tensors, {inside}", (X, SCALE, 0.3), inside, exhaustive=True, round_z=False)
        yield _fake(
            f"quantizers.fake_quantize by channel, {inside}",
            (X, SCALE[:, 0], 1),
            inside,
            dim=0,
            exhaustive=True,
            reciprocal=False,
        )


CASES = [*_fakes()]
