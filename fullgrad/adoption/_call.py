"""`Call`: the questions that `Adopted` asks a call."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from fullgrad.adoption._scope import Options
from fullgrad.adoption._tensors import Maybe


class Call:
    """A call as pure functions of tensors: of a class (`ClassCall`), of an operator of torch.library (`OperatorCall`), of a plain
    function (`Plain`), or a batch of one of these (`Batched`).

    `forward` runs once, below all transforms. It returns the outputs, and then the other tensors that a derivative uses. Before
    it only the attributes of the first group are known, after it those of the second, too.
    """

    name: str  # in messages, profiles and graphs
    cls: Any  # that is called: what is known of it holds for each of its calls
    code: Any  # that is known to run in a batch, or not to
    options: Options
    sample: Any  # the call of one sample, below all batches
    needed: Any  # for each tensor, whether it needs a derivative
    refusal: str  # why there is no derivative
    in_place: str  # the message about a forward that changes an input
    has_jvp: bool  # whether it has tangents of its own
    in_forward_mode: bool  # whether tangents may be asked for
    verdict: str | None  # how tangents come from its backward, if that is not to be tried
    args: Any  # the arguments, with a `Slot` for each tensor; of a call whose backward is tried

    count: int  # the number of outputs
    free: Sequence[int]  # the outputs that have a derivative
    used: set[int]  # the inputs and results that a derivative uses
    lost: Collection[int]  # results that depend on inputs, and are constants in a derivative
    materialize: bool  # whether a missing cotangent or tangent is zero
    record: Any  # what a call keeps besides tensors, which must be the same for each sample

    def forward(self, *tensors: Any) -> Sequence[Tensor | None]:
        """The outputs, and then the other tensors that a derivative uses."""
        raise NotImplementedError

    def backward(self, flat: Maybe, cotangents: Maybe, needs: Sequence[bool]) -> Sequence[Tensor | None]:
        """A gradient or None for each input, by the inputs and results, in the order of the call."""
        raise NotImplementedError

    def jvp(self, flat: Maybe, tangents: Maybe) -> Sequence[Tensor | None]:
        """A tangent or None for each output, by the inputs and results, in the order of the call."""
        raise NotImplementedError

    def in_front(self, *tensors: Tensor) -> Maybe:
        """The inputs as results have them, whose batch is in front."""
        return tensors
