"""`FunctionModule`: the base of the modules, and the class of a function, made from its signature."""

import inspect
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fullgrad._dispatch import unscriptable

# Arguments of the call and not of the constructor: they change with the input, or cannot be copied.
_CALL_ONLY = ("noise", "generator")
# A reference to a neighbor of the function, which is not a neighbor of the class.
_REFERENCE = re.compile(r":(func|class|meth):`(\w+|[A-Z]\w*\.\w+)`")


@unscriptable
class FunctionModule(nn.Module):
    """A function of tensors with the rest of its arguments: the base of the modules of :mod:`fullgrad.nn`.

    The arguments are attributes. One that is an ``nn.Parameter`` is a parameter of the module, another tensor a buffer; numbers
    and strings are plain attributes, which may be changed between calls.

    Raises:
        TypeError: An argument is missing or unknown; ``learnable`` names one that takes no tensor, or that is not a number or a
            floating tensor.
        ValueError: ``learnable`` has a name that is not an argument.
    """

    _function: ClassVar[Callable[..., Any]]
    _arguments: ClassVar[Mapping[str, inspect.Parameter]]
    # Whether the function has an argument ``training``, which is the module's own.
    _takes_training: ClassVar[bool]

    def _keep(self, args: tuple[Any, ...], kwargs: dict[str, Any], learnable: Sequence[str]) -> None:
        """The body of the constructors."""
        super().__init__()
        name = type(self).__name__
        try:
            bound = inspect.Signature([*self._arguments.values()]).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}.") from None
        bound.apply_defaults()
        learnable = (learnable,) if isinstance(learnable, str) else tuple(learnable)
        for learned in learnable:
            if learned not in self._arguments:
                raise ValueError(f"{name}: `learnable` must be among {', '.join(self._arguments)}, got {learned!r}.")
            if not _takes_tensors(self._arguments[learned]):
                among = ", ".join(k for k, p in self._arguments.items() if _takes_tensors(p)) or "none"
                raise TypeError(f"{name}: `learnable` must name arguments that may be tensors ({among}), got {learned!r}.")
        for key, value in bound.arguments.items():
            if key in learnable:
                setattr(self, key, _as_parameter(name, key, value))
            elif isinstance(value, Tensor) and not isinstance(value, (nn.Parameter, nn.Buffer)):
                self.register_buffer(key, value)
            else:
                setattr(self, key, value)

    def forward(self, *inputs: Any, **others: Any) -> Any:
        """Call the function with the inputs and the arguments of the module. ``others``, such as ``noise``, are passed on."""
        arguments = {name: getattr(self, name) for name in self._arguments}
        if self._takes_training:
            arguments["training"] = self.training
        return self._function(*inputs, **{**arguments, **others})

    def extra_repr(self) -> str:
        """The arguments that differ from their defaults."""
        values = {name: getattr(self, name) for name in self._arguments}
        shown = [f"{k}={_shown(v)}" for k, v in values.items() if isinstance(v, Tensor) or v != self._arguments[k].default]
        return ", ".join(shown)


def kept_arguments(function: Callable[..., Any], inputs: int) -> dict[str, inspect.Parameter]:
    """The arguments of the constructor: those after the inputs, without those of the call."""
    rest = [*inspect.signature(function).parameters.values()][inputs:]
    return {p.name: p for p in rest if p.name not in (*_CALL_ONLY, "training")}


def module_of(function: Callable[..., Any], path: str, name: str, inputs: int, module: str) -> type[FunctionModule]:
    """The class of a function with a public path; the first ``inputs`` arguments are the inputs of a call."""
    parameters, kept = [*inspect.signature(function).parameters], kept_arguments(function, inputs)

    def __init__(self: FunctionModule, *args: Any, learnable: Sequence[str] = (), **kwargs: Any) -> None:
        self._keep(args, kwargs, learnable)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    last = inspect.signature(__init__).parameters["learnable"]
    init: Any = __init__
    init.__signature__ = inspect.Signature([own, *kept.values(), last], return_annotation=None)
    init.__qualname__ = f"{name}.__init__"
    body = {
        "__init__": init,
        "__doc__": _docstring(function, path, name, parameters[:inputs], kept),
        "__module__": module,
        "_function": staticmethod(function),
        "_arguments": kept,
        "_takes_training": "training" in parameters,
    }
    return type(name, (FunctionModule,), body)


def _docstring(function: Any, path: str, name: str, inputs: list[str], kept: Mapping[str, inspect.Parameter]) -> str:
    """The docstring of the class, with the first sentence and the arguments of the function's docstring."""
    text = inspect.getdoc(function) or ""
    first = " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    section = re.search(r"\nArgs:\n((?:    .*\n|\n)*)", text + "\n")
    entries = re.split(r"\n(?=    \w+: )", "\n" + section[1]) if section else []
    described = [entry.rstrip() for entry in entries if entry.strip().partition(":")[0] in kept]
    given, called = ", ".join([*kept][:1] + ["…"] * (len(kept) > 1)), ", ".join(inputs)
    lines = [
        f"{first}, as a module.",
        "",
        f"``{name}({given})({called})`` is :func:`{path}` of ``{called}``, where the value and the derivative are stated.",
        "",
        "Args:",
        *described,
        "    learnable: Names of arguments that learn: a number becomes a parameter of the default dtype, a tensor is copied.",
    ]
    return _REFERENCE.sub(rf":\1:`\2 <{path.rpartition('.')[0]}.\2>`", "\n".join(lines))


def _takes_tensors(parameter: inspect.Parameter) -> bool:
    return "Tensor" in str(parameter.annotation)


def _as_parameter(name: str, key: str, value: Any) -> nn.Parameter:
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor) and value.is_floating_point():
        return nn.Parameter(value.detach().clone())
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return nn.Parameter(torch.tensor(float(value)))
    raise TypeError(f"{name}: `{key}` must be a number or a floating tensor to be learnable, got {_shown(value)}.")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{'Parameter' if isinstance(value, nn.Parameter) else 'tensor'} of shape {tuple(value.shape)}"
    return repr(value)
