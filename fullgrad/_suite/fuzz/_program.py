"""`Program`: one drawn call of an operator, and the tensors that it makes."""

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fullgrad._suite.cases import CASES
from fullgrad._suite.cases._case import Case

BY_NAME = {case.name: case for case in CASES}
# Values that may replace an element of the first input: ties, bounds, halves, the ends of the dtypes.
SPECIAL = (
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    2.5,
    float("inf"),
    -float("inf"),
    float("nan"),
    "tiny",
    "subnormal",
    "max",
    "tie",
)
IN_THE_UNIT_INTERVAL = (0.0, 0.5, 1.0, "tiny", "tie")
LAYOUTS = ("contiguous", "permuted", "strided", "expanded", "offset", "channels last")


class Step(NamedTuple):
    """One of several nested transforms: its name, its input, -1 for all, and the position of a batch."""

    name: str
    argument: int = 0
    in_dim: int = 0

    def in_dims(self, x: Sequence[Tensor]) -> tuple[int | None, ...]:
        """The batch dimension of each input, or of the one that the step names; None for the others."""
        batched = [self.argument in (-1, i) for i in range(len(x))]
        return tuple(self.in_dim % (t.ndim + 1) if b else None for t, b in zip(x, batched, strict=True))


@dataclass(frozen=True)
class Program:
    """A drawn program: an operator, a law that must hold, and everything that determines the inputs.

    Args:
        case: The name of a case, which is an operator with its parameters.
        law: The name of a function of `LAWS`.
        sizes: The sizes of the dimensions to which the inputs broadcast; None for those of the case.
        seed: The seed of the numbers.
        specials: Indices, modulo the number of elements, and the values there.
        dtype: The dtype of all inputs.
        layout: The memory layout of the first input.
        steps: The nested transforms, from the inside out.
        mode: The mode around the call.
        device: The device of all inputs.
    """

    case: str
    law: str
    sizes: tuple[int, ...] | None = None
    seed: int = 0
    specials: tuple[tuple[int, Any], ...] = ()
    dtype: str = "float64"
    layout: str = "contiguous"
    steps: tuple[Step, ...] = ()
    mode: str = "plain"
    device: str = "cpu"

    @property
    def subject(self) -> Case:
        """The case of that name."""
        return BY_NAME[self.case]

    def tensors(self) -> tuple[Tensor, ...]:
        """The differentiable inputs."""
        case, generator = self.subject, torch.Generator().manual_seed(self.seed)
        dtype = getattr(torch, self.dtype)
        made = [
            _numbers(t, _shape(case, t, self.sizes), generator, is_first=i == 0).to(dtype) for i, t in enumerate(case.tensors)
        ]
        return tuple(t.to(self.device) for t in (_laid_out(self._with_specials(made[0]), self.layout), *made[1:]))

    def text(self) -> str:
        """The program as a few lines of code that run by themselves."""
        default = Program(self.case, self.law)
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = [
            f"{name}={value!r}" for name, value in given.items() if value != getattr(default, name) or name in ("case", "law")
        ]
        inputs = [f"#   {line}" for t in self.tensors() for line in f"{t!r}"[:400].splitlines()]
        return "\n".join(
            [
                "from math import inf, nan",
                "from fullgrad._suite.fuzz import Program, Step, check",
                f"# {self.case} of",
                *inputs,
                f"check(Program({', '.join(changed)}))",
            ]
        )

    def _with_specials(self, x: Tensor) -> Tensor:
        flat = x.flatten()
        for index, value in self.specials if x.numel() else ():
            flat[index % x.numel()] = _special(value, flat)
        return flat.reshape(x.shape)


def is_elementwise(case: Case) -> bool:
    """Whether inputs may have any number of dimensions."""
    return case.of == "elements" and case.elementwise


def common_shape(case: Case) -> tuple[int, ...]:
    """The shape to which the inputs broadcast."""
    return torch.broadcast_shapes(*[t.shape for t in case.tensors])


@functools.cache
def rank(name: str) -> int:
    """The number of dimensions to which the inputs broadcast; 0 if they do not broadcast, or their shapes are fixed."""
    case = BY_NAME[name]
    others = [v for i, v in enumerate(case.inputs) if isinstance(v, Tensor) and i not in case.diff_argnums]
    if case.of == "matrices" or others or any(_holds_tensor(f) for f in (case.operator, case.surrogate)):
        return 0
    try:
        return len(common_shape(case))
    except RuntimeError:
        return 0


def _holds_tensor(function: Any) -> bool:
    """Whether a function closes over a tensor, whose shape is that of the case's inputs."""
    if isinstance(function, functools.partial):
        return any(isinstance(v, Tensor) for v in (*function.args, *function.keywords.values())) or _holds_tensor(function.func)
    if not inspect.isfunction(function):
        return False
    return any(
        isinstance(v, Tensor) or (callable(v) and _holds_tensor(v)) for v in inspect.getclosurevars(function).nonlocals.values()
    )


def _shape(case: Case, tensor: Tensor, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of an input: its dimensions of size 1 stay so if those of other inputs are larger."""
    if sizes is None:
        return tuple(tensor.shape)
    common = common_shape(case)
    shape: list[int] = []
    for i, n in enumerate(reversed(sizes)):
        if i < len(common):
            if i >= tensor.ndim:
                break
            shape.append(1 if tensor.shape[-1 - i] == 1 and common[-1 - i] != 1 else n)
        elif tensor.ndim == len(common) and len(common):
            shape.append(n)
    return tuple(reversed(shape))


def _numbers(own: Tensor, shape: tuple[int, ...], generator: torch.Generator, is_first: bool) -> Tensor:
    """Numbers of an input of this shape, in the range of the case's own, which shows the domain."""
    low, high = own.amin().item(), own.amax().item()
    if is_first and low < 0:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    if is_first:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    chosen = torch.randint(own.numel(), shape, generator=generator)
    return own.flatten()[chosen] * (1 + 0.01 * torch.rand(shape, generator=generator, dtype=torch.float64))


def _special(value: Any, flat: Tensor) -> Any:
    limits = torch.finfo(flat.dtype)
    named = {"tiny": limits.tiny, "subnormal": limits.tiny / 4, "max": limits.max, "tie": flat[0].clone()}
    return named.get(value, value)


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers, or those of the first row in all rows, in another layout in memory."""
    if layout == "permuted" and x.ndim > 1:
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "strided":
        return torch.stack((x, x), -1)[..., 1]
    if layout == "expanded" and x.ndim and x.shape[0]:
        return x[:1].expand(x.shape)
    if layout == "offset":
        return torch.cat((x.new_zeros(1), x.flatten()))[1:].reshape(x.shape) if x.numel() else x
    if layout == "channels last" and x.ndim == 4:
        return x.to(memory_format=torch.channels_last)
    return x
