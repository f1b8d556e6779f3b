"""`together`: many subjects as one, so that the cost of a graph is paid once for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fullgrad.testing import CHECKS, GROUPS
from fullgrad.testing._subject import Subject, TorchLimit, scalar


@dataclass(frozen=True)
class _Together(Subject):
    """A subject whose single input is all inputs of others, flat, and whose output is all their outputs, flat.

    The input is flat because a Hessian with respect to N inputs has N^2 blocks.
    """

    subjects: tuple[Subject, ...] = ()

    def batch(self, dim: int = 0, size: int = 3, which: Sequence[bool] | None = None) -> tuple[Tensor, ...]:
        """The batches of the subjects, made separately: elements of one must not become inputs of another."""
        batches = [s.batch(0, size) for s in self.subjects]
        return (torch.cat([t.reshape(size, -1) for batch in batches for t in batch], 1).movedim(0, dim),)


@dataclass(frozen=True)
class _Summed(Subject):
    """A subject whose inputs are those of others, in their shapes, and whose output is one number."""

    subjects: tuple[Subject, ...] = ()

    def repeated(self, size: int) -> tuple[Tensor, ...]:
        """The repeated inputs of each subject, which may have different numbers of rows."""
        return tuple(t for s in self.subjects for t in s.repeated(size))


def together(subjects: Sequence[Subject]) -> Subject:
    """One subject made of many, so that a check of it checks each in one graph."""
    subjects = tuple(subjects)

    def each(functions: Sequence[Callable[..., Tensor]]) -> Callable[[Tensor], Tensor]:
        def outputs(flat: Tensor) -> Tensor:
            return torch.cat([f(*tensors).flatten() for f, tensors in zip(functions, _split(flat, shapes), strict=True)])

        return outputs

    shapes = [[t.shape for t in s.tensors] for s in subjects]
    exact = all(s.value is not None for s in subjects)
    return _Together(
        operator=each([s.op for s in subjects]),
        inputs=(torch.cat([t.flatten() for s in subjects for t in s.tensors]),),
        surrogate=each([s.reference for s in subjects]),
        value=each([s.bind(s.value) for s in subjects if s.value is not None]) if exact else None,
        linear=all(s.linear for s in subjects),
        subjects=subjects,
    )


def _split(flat: Tensor, shapes: Sequence[Sequence[torch.Size]]) -> list[list[Tensor]]:
    """The inputs of each subject, from one flat tensor."""
    pieces = iter(flat.split([shape.numel() for row in shapes for shape in row]))
    return [[next(pieces).reshape(shape) for shape in row] for row in shapes]


def summed(subjects: Sequence[Subject]) -> Subject:
    """One subject made of many that keeps the shapes of their inputs, for checks that change sizes."""
    counts = [len(s.tensors) for s in subjects]

    def total(functions: Sequence[Callable[..., Tensor]]) -> Callable[..., Tensor]:
        def sum_of_scalars(*tensors: Tensor) -> Tensor:
            result, start = torch.zeros((), dtype=torch.float64), 0
            for f, n in zip(functions, counts, strict=True):
                result = result + scalar(f)(*tensors[start : start + n])
                start += n
            return result

        return sum_of_scalars

    return _Summed(
        operator=total([s.op for s in subjects]),
        inputs=tuple(t for s in subjects for t in s.tensors),
        surrogate=total([s.reference for s in subjects]),
        subjects=tuple(subjects),
    )


# The checks that trace, except for compiling the operator itself and with other numbers: the joint operator is another function,
# of tensors alone.
TOGETHER = [name for name in GROUPS["tracing"] if name not in ("compile_the_operator_itself", "compile_changing_numbers")]
# The checks in which sizes change.
_DYNAMIC = {"compile_dynamic_shapes"}


def in_one_graph(name: str, subjects: Sequence[Subject]) -> Subject:
    """The subjects as one for a check."""
    return (summed if name in _DYNAMIC else together)(subjects)


def check_together(name: str, subjects: Sequence[Subject]) -> None:
    """Check all subjects at once; if that fails, one after the other, to find the wrong one.

    Raises:
        AssertionError: A subject fails alone, or all pass alone and fail together.
    """
    try:
        CHECKS[name](in_one_graph(name, subjects))
    except Exception as error:
        limited = []
        for s in subjects:
            try:
                CHECKS[name](s)
            except TorchLimit as limit:
                limited.append(limit)
            except Exception as wrong:
                raise AssertionError(f"{getattr(s, 'name', s.operator)}: {wrong}") from wrong
        if not (limited and isinstance(error, TorchLimit)):
            raise
