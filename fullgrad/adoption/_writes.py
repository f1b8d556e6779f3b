"""Writes in the code of a class that `torch.vmap` refuses: ``g[mask] = value``, and writes into a tensor that the code has made.

The first has a shape that depends on numbers, as has a value ``2 * h[mask]``; the second writes a batch into memory of one
sample. Both have an equivalent: a `torch.where`, and a new tensor of the whole batch. Code that fails in a batch is run once
more with these.
"""

import contextlib
import contextvars
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fullgrad._dispatch import current_level, get_unwrapped, is_batched, is_wrapped
from fullgrad.adoption._tensors import Drew, Refused

T = TypeVar("T")
# Functions that make a tensor of new memory. None draws random numbers, which have a meaning of their own in a batch.
_NEW = {torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.clone, Tensor.clone}
_NEW |= {getattr(torch, f"{name}_like") for name in ("zeros", "ones", "empty", "full")}
_NEW |= {getattr(Tensor, f"new_{name}") for name in ("zeros", "ones", "empty", "full")}
_NUMBERS = (bool, int, float, complex)
# Functions of each number, and of pairs of them, that finite numbers take at 1.
_ELEMENTWISE = ("add", "sub", "mul", "div", "truediv", "pow", "neg", "abs", "sign", "exp", "log", "sqrt", "square", "reciprocal")
_ELEMENTWISE += ("sin", "cos", "tanh", "sigmoid", "relu", "clamp", "round", "maximum", "minimum", "clone", "detach")
_writers: Any = weakref.WeakSet()  # classes whose code is known to need this
# The mode of the code that runs. Other modes on torch's stack are those of classes that call its class.
_acting: contextvars.ContextVar["Writes | None"] = contextvars.ContextVar("fullgrad.adoption.writes", default=None)


class Writes(TorchFunctionMode):
    """Makes these writes possible for code of some tensors, some of which are batched."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.level = current_level()
        with writing(None):
            ones = [t.new_ones((), dtype=torch.bool) for t in tensors if t is not None and is_wrapped(t)]
        self.one = functools.reduce(torch.logical_and, ones) if ones else None  # batched wherever one of the tensors is
        self.is_batch = self.one is not None and _has_batch(self.one)
        # How masks were made, so that ``x > 0`` is known again; the masks; and how often something was changed in place.
        self.made: dict[int, Any] = {}
        self.masks: list[Any] = []
        self.changes = 0

    def batched(self, tensor: Tensor) -> Tensor:
        """A copy that has memory for each sample."""
        if self.one is None or current_level() != self.level:
            return tensor
        return torch.where(self.one, tensor, tensor)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _acting.get() is not self:
            return function(*args, **kwargs)
        if function in _NEW and not kwargs.get("requires_grad") and "out" not in kwargs:
            return self.batched(function(*args, **kwargs))
        if function is Tensor.__getitem__ and self.is_batch and _is_mask(args[1]):
            return _Chosen.of(args[0], args[1], self.key(args[1]))
        name = function.__name__
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
            key = self.key(args[1]) if name == "__setitem__" and _is_mask(args[1]) else None
            self.changes += name != "__invert__"
            if (
                function is Tensor.__setitem__
                and self.is_batch
                and (masked := _masked(args[0], args[1], args[2], key)) is not None
            ):
                target, mask, value = masked
                return target.copy_(torch.where(mask, value, target))
            if function is Tensor.__setitem__ and isinstance(args[2], _Chosen):
                return function(*args[:2], args[2].alone())
        result = function(*args, **kwargs)
        if self.is_batch and not kwargs and _is_mask(result) and all(isinstance(v, (Tensor, *_NUMBERS)) for v in args):
            own = tuple([self.key(v) if isinstance(v, Tensor) else (type(v), v) for v in args])
            self.made[id(result)] = self.changes, name, own
            self.masks.append((result, args))  # as long as their identities are used
        return result

    def key(self, tensor: Tensor) -> Any:
        """A key that masks share which are made in one way from the same tensors, with nothing changed in between."""
        return self.made.get(id(tensor), (self.changes, id(tensor)))


class _Chosen:
    """``tensor[mask]`` in a batch, where it is no tensor: the numbers at all places, with 1 where the mask is not true, so that
    functions of them are finite there. Other functions of it take the tensor, which there is if the mask is that of all samples.
    """

    def __init__(self, mask: Tensor, numbers: Tensor, key: Any) -> None:
        self.mask, self.key = mask, key
        self.numbers = torch.where(mask.reshape(*mask.shape, *[1] * (numbers.ndim - mask.ndim)), numbers, 1)

    @classmethod
    def of(cls, tensor: Tensor, mask: Tensor, key: Any) -> "_Chosen":
        """The numbers of a tensor."""
        if mask.shape != tensor.shape[: mask.ndim]:
            raise IndexError(f"a mask of shape {tuple(mask.shape)} does not fit a tensor of shape {tuple(tensor.shape)}")
        return cls(mask, tensor, key)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__
        if not name.startswith("__"):
            _check_not_in_place(name, args[0] if args else None)
        name = name.removeprefix("__").removesuffix("__")
        chosen = [v for v in args if isinstance(v, _Chosen)]
        given = [v.numbers if isinstance(v, _Chosen) else v for v in args]
        is_one = all(v.key == chosen[0].key and v.numbers.shape == chosen[0].numbers.shape for v in chosen)
        known = all(isinstance(v, (_Chosen, *_NUMBERS)) or (isinstance(v, Tensor) and not v.ndim) for v in args)
        if {name, name.removeprefix("r")}.isdisjoint(_ELEMENTWISE) or kwargs or not (is_one and known):
            return function(*[v.alone() if isinstance(v, _Chosen) else v for v in args], **(kwargs or {}))
        return cls(chosen[0].mask, function(*given), chosen[0].key)

    def __getattr__(self, name: str) -> Any:
        _check_not_in_place(name, self)
        return functools.partial(getattr(torch, name), self) if name in _ELEMENTWISE else getattr(self.alone(), name)

    def __bool__(self) -> bool:
        return bool(self.alone())

    def alone(self) -> Tensor:
        """The numbers that the mask selects, at which `torch.vmap` raises if the samples have other masks."""
        with writing(None):
            return self.numbers[self.mask]


def _operator(name: str) -> Any:
    of_tensors = getattr(Tensor, name)
    return lambda *args: _Chosen.__torch_function__(of_tensors, (), args)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(_Chosen, f"__{_name}__", _operator(f"__{_name}__"))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_Chosen, f"__{_name}__", lambda self, other, name=f"__{_name}__": getattr(self.alone(), name)(other))


def _check_not_in_place(name: str, target: Any) -> None:
    """Refuse a function in place, which would write into a copy."""
    if isinstance(target, _Chosen) and name.endswith("_") and not name.endswith("__"):
        raise NotImplementedError(f"vmap does not take {name} of what a mask has selected")


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool and index.ndim > 0


def _has_batch(tensor: Tensor) -> bool:
    while is_wrapped(tensor):
        if is_batched(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


def _masked(target: Tensor, index: Any, value: Any, key: Any = None) -> tuple[Tensor, Tensor, Any] | None:
    """The part of a tensor that ``target[index] = value`` writes to, a mask and a value that broadcast with it; None for other
    indices than one mask among slices and numbers, and for values of one number for each place in the mask.
    """
    index = index if isinstance(index, tuple) else (index,)
    masks = [i for i, item in enumerate(index) if isinstance(item, Tensor)]
    known = (Tensor, slice, int, EllipsisType)
    if len(masks) != 1 or not all(isinstance(item, known) and not isinstance(item, bool) for item in index):
        return None
    mask, before, after = index[masks[0]], index[: masks[0]], index[masks[0] + 1 :]
    if mask.dtype != torch.bool or not mask.ndim:
        return None
    part = target[(*before, *[slice(None)] * mask.ndim, *after)]
    # The dimensions of the part before the mask, and those after it.
    consumed = mask.ndim + sum(item is not Ellipsis for item in (*before, *after))
    lead = sum(target.ndim - consumed if item is Ellipsis else isinstance(item, slice) for item in before)
    rest = part.ndim - lead - mask.ndim
    if mask.shape != part.shape[lead : lead + mask.ndim]:
        return None
    if isinstance(value, _Chosen):
        if value.key != key or len(index) > 1 or value.numbers.shape != part.shape:
            return _masked(target, index, value.alone())
        value = value.numbers.to(part.dtype)
    elif isinstance(value, Tensor):
        if value.ndim == rest + 1 and value.shape[0] == 1 and not lead:
            value = value[0]
        if value.ndim > (0 if lead or len(index) > 1 else rest):
            return None
        value = value.to(part.dtype)
    elif not isinstance(value, _NUMBERS):
        return None
    return part, mask.reshape(*mask.shape, *[1] * rest), value


def writes_of(cls: Any, tensors: Sequence[Tensor | None]) -> Writes | None:
    """The mode for code of a class, if it is known to need it, or is tried with it."""
    return Writes(tensors) if cls in _writers else None


def writing(writes: Writes | None) -> contextlib.AbstractContextManager[Any]:
    """A context for the code of a class, with a mode or without."""
    return contextlib.nullcontext() if writes is None and _acting.get() is None else _writing(writes)


@contextlib.contextmanager
def _writing(writes: Writes | None) -> Iterator[None]:
    token = _acting.set(writes)
    try:
        with writes or contextlib.nullcontext():
            yield
    finally:
        _acting.reset(token)


def with_writes(cls: Any, run: Callable[[], T], is_worth_it: Callable[[Exception], bool]) -> T:
    """``run()``, and once more with `Writes` if it fails, and this is worth it."""
    try:
        return run()
    except Exception as error:
        if isinstance(error, (Refused, Drew)) or cls in _writers or not is_worth_it(error):
            raise
        _writers.add(cls)
        try:
            return run()
        except Exception as second:
            _writers.discard(cls)
            raise (second if isinstance(second, Refused) else error) from None
