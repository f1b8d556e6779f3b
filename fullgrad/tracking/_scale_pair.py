"""`ScalePair`: the recorded scales of one tensor."""

from typing import Any

from torch import Tensor

from fullgrad._core.records import Recorder
from fullgrad._dispatch import has_data

Scale = float | Tensor | None


def _field(name: str, doc: str) -> Any:
    """A property whose number stays on the device until it is read."""

    def assign(pair: "ScalePair", scale: Scale) -> None:
        pair._fields[name] = scale

    return property(lambda pair: pair._read(name), assign, doc=doc)


class ScalePair(Recorder):
    r"""The scale of a tensor in the forward pass, of its gradient, and of its tangent.

    A field reads as a float, as a tensor of one number per sample if the tensor was tracked under ``vmap``, or as None if
    nothing was recorded. The number stays on its device until the field is read. Pairs are equal when their fields are.

    .. math::
        s = \operatorname{std}(x), \qquad s_{\mathrm{backward}} = \operatorname{std}(\partial L / \partial x), \qquad
        s_{\mathrm{tangent}} = \operatorname{std}(t)

    or another statistic that `ScaleTracker` was given. Nothing else is kept alive, neither ``x`` nor a graph.

    Args:
        forward: The scale of the value.
        backward: The scale of the gradient.
        tangent: The scale of the tangent.

    Raises:
        RuntimeError: A field is read that was recorded from a tensor without data: on the meta device, or by a tracer whose graph
            has not run yet.

    Example:
        >>> import torch, fullgrad
        >>> pair = fullgrad.ScalePair()
        >>> x = torch.tensor([1.0, 3.0], requires_grad=True)
        >>> y = fullgrad.ScaleTracker.track(x, pair)
        >>> print(pair)
        (-> 1.41, <- n/a)
        >>> (y**2).sum().backward()
        >>> print(pair)
        (-> 1.41, <- 2.83)

    Source: ``unit_scaling.utils.ScalePair``.
    """

    def __init__(self, forward: Scale = None, backward: Scale = None, tangent: Scale = None) -> None:
        super().__init__()
        self._fields: dict[str, Any] = {"forward": forward, "backward": backward, "tangent": tangent}

    forward: Scale = _field("forward", "The scale of the value.")
    backward: Scale = _field("backward", "The scale of the gradient.")
    tangent: Scale = _field("tangent", "The scale of the tangent.")

    def put(self, field: str, value: Tensor) -> None:
        """Record a value, to be read later."""
        self._fields[field] = value.detach() if has_data(value) else _NO_DATA

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain numbers, lists of them, or None."""
        return {name: v.tolist() if isinstance(v := self._read(name), Tensor) else v for name in self._fields}

    def _read(self, name: str) -> Scale:
        value = self._fields[name]
        if value is _NO_DATA:
            raise RuntimeError(
                f"ScalePair: `{name}` was recorded from a tensor without data, on the meta device or by a tracer whose graph has "
                "not run yet."
            )
        if isinstance(value, Tensor) and value.ndim == 0:
            value = self._fields[name] = float(value)
        return value

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, ScalePair) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # fields change

    def __str__(self) -> str:
        tangent = "" if self._fields["tangent"] is None else f", ~ {text(self.tangent)}"
        return f"(-> {text(self.forward)}, <- {text(self.backward)}{tangent})"

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items() if value is not None)
        return f"ScalePair({fields})"


def text(scale: Scale) -> str:
    """A scale with three digits; for samples, the first three of them."""
    if scale is None:
        return "n/a"
    if isinstance(scale, Tensor):
        numbers = [f"{n:.3}" for n in scale.flatten()[:3].tolist()]
        return f"[{', '.join(numbers)}{', …' if scale.numel() > 3 else ''}]"
    return f"{scale:.3}"


_NO_DATA = object()
