"""`FunctionModule`: the base of the modules, and the class of a function, made from its signature."""

import inspect
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._core import checks
from fullgrad._core.public import refuse_keywords
from fullgrad._dispatch import unscriptable

# Arguments of the call and not of the constructor: they change with the input, or cannot be copied.
_CALL_ONLY = ("noise", "generator")
# A reference to a neighbor of the function, which is not a neighbor of the class.
_REFERENCE = re.compile(r":(func|class|meth):`(\w+|[A-Z]\w*\.\w+)`")


@unscriptable
class FunctionModule(nn.Module):
    """A function of tensors with arguments of it: the module of any function, and the base of the modules of :mod:`fullgrad.nn`.

    ``FunctionModule(f, width=2.0)(x)`` is ``f(x, width=2.0)``, and its derivative is that of ``f``. The arguments are attributes.
    One that is an ``nn.Parameter`` is a parameter of the module, another tensor a buffer; numbers and strings are plain
    attributes, which may be changed between calls. An argument ``training`` of the function is that of the module.

    Args:
        function: Any function whose first argument is the input of a call; a module becomes a part of this one.
        learnable: Names of arguments that learn: a number becomes a parameter of the default dtype, a tensor is copied.
        **arguments: Arguments of the function by name. The call takes the others.

    Raises:
        TypeError: ``function`` is not callable; an argument is missing or unknown; ``learnable`` names one that takes no tensor,
            or that is not a number or a floating tensor.
        ValueError: ``learnable`` names what is not an argument; an argument has the name of an attribute of ``nn.Module``.

    Example:
        >>> import torch, fullgrad
        >>> spike = fullgrad.spikes.from_slope(lambda u: 1 / (1 + u**4))
        >>> module = fullgrad.nn.FunctionModule(spike, threshold=torch.zeros(3, 1), learnable="threshold")
        >>> module
        FunctionModule(spike, threshold=Parameter of shape (3, 1))
        >>> module(torch.randn(3, 8)).sum().backward()
        >>> module.threshold.grad.shape
        torch.Size([3, 1])
    """

    # A class of :mod:`fullgrad.nn` has these as its own; a module of any function has them in itself.
    _function: Callable[..., Any]
    _arguments: Mapping[str, inspect.Parameter]
    # Whether the function has an argument ``training``, which is the module's own.
    _takes_training: bool
    # Names the function where the class does not.
    _label: str = ""

    def __init__(self, function: Callable[..., Any], /, *, learnable: Sequence[str] = (), **arguments: Any) -> None:
        super().__init__()
        checks.function("FunctionModule", "function", function)
        self._label = getattr(function, "__name__", repr(function))
        self._function = function
        self._arguments = {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in arguments}
        known = _after_the_input(function, self._arguments)
        self._takes_training = any(p.name == "training" for p in known)
        try:
            inspect.Signature(known).bind_partial(**arguments)
        except TypeError as error:
            raise TypeError(f"FunctionModule: {self._label} {error}.") from None
        for name in arguments:
            if hasattr(self, name):
                raise ValueError(f"FunctionModule: arguments must not be named as attributes of nn.Module, got {name!r}.")
        self._keep(arguments, learnable)

    def _keep(self, arguments: Mapping[str, Any], learnable: Sequence[str]) -> None:
        """Make attributes, parameters and buffers of the arguments."""
        name = type(self).__name__
        among = ", ".join(k for k, p in self._arguments.items() if _takes_tensors(p)) or "none"
        if isinstance(learnable, Tensor) or not isinstance(learnable, Iterable):
            raise TypeError(f"{name}: `learnable` must be a name, or a list of names, among {among}, got {_shown(learnable)}.")
        learnable = (learnable,) if isinstance(learnable, str) else tuple(learnable)
        for learned in learnable:
            if learned not in self._arguments:
                raise ValueError(f"{name}: `learnable` must be among {among}, got {learned!r}.")
            if not _takes_tensors(self._arguments[learned]):
                raise TypeError(f"{name}: `learnable` must name arguments that may be tensors ({among}), got {learned!r}.")
        for key, value in arguments.items():
            if key in learnable:
                if key == "scale":
                    others = [p.name for p in _after_the_input(self._function, self._arguments)]
                    for count in ("bits", "levels"):
                        if count in others:
                            checks.no_count(name, key, value, count)
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
        """The function, if the class does not name it, and the arguments that are not as by default."""
        values = {name: getattr(self, name) for name in self._arguments}
        shown = [f"{k}={_shown(v)}" for k, v in values.items() if isinstance(v, Tensor) or v != self._arguments[k].default]
        return ", ".join([self._label] * bool(self._label) + shown)


def _after_the_input(function: Callable[..., Any], given: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters of a function but for the first, or those given where it has no signature, as some functions of C."""
    try:
        return [*inspect.signature(function).parameters.values()][1:]
    except ValueError:
        return [*given.values()]


def kept_arguments(function: Callable[..., Any], inputs: int) -> dict[str, inspect.Parameter]:
    """The arguments of the constructor: those after the inputs, without those of the call."""
    rest = [*inspect.signature(function).parameters.values()][inputs:]
    return {p.name: p for p in rest if p.name not in (*_CALL_ONLY, "training")}


def module_of(
    function: Callable[..., Any], path: str, name: str, inputs: int, module: str, learned: tuple[str, ...] = ()
) -> type[FunctionModule]:
    """The class of a function with a public path; the first ``inputs`` arguments are the inputs of a call. The arguments
    ``learned`` that are not None learn by default.
    """
    parameters, kept = [*inspect.signature(function).parameters], kept_arguments(function, inputs)
    signature = inspect.Signature([*kept.values()])

    def __init__(self: FunctionModule, *args: Any, learnable: Sequence[str] = learned, **kwargs: Any) -> None:
        nn.Module.__init__(self)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            refuse_keywords(type(self).__name__, [*kept], {name: v for name, v in kwargs.items() if name not in kept})
            raise TypeError(f"{type(self).__name__}: {error}.") from None
        bound.apply_defaults()
        given = bound.arguments
        self._keep(given, [key for key in learned if given[key] is not None] if learnable is learned else learnable)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    last = inspect.signature(__init__).parameters["learnable"]
    init: Any = __init__
    init.__signature__ = inspect.Signature([own, *kept.values(), last], return_annotation=None)
    init.__qualname__ = f"{name}.__init__"
    body = {
        "__init__": init,
        "__doc__": _docstring(function, path, name, parameters[:inputs], kept, learned),
        "__module__": module,
        "_function": staticmethod(function),
        "_arguments": kept,
        "_takes_training": "training" in parameters,
    }
    return type(name, (FunctionModule,), body)


def _docstring(
    function: Any, path: str, name: str, inputs: list[str], kept: Mapping[str, inspect.Parameter], learned: tuple[str, ...]
) -> str:
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
        "    learnable: Names of arguments that learn: a number becomes a parameter of the default dtype, a tensor is copied."
        + f" By default {' and '.join(f'``{key}``' for key in learned)}; ``()`` for none." * bool(learned),
    ]
    return _REFERENCE.sub(rf":\1:`\2 <{path.rpartition('.')[0]}.\2>`", "\n".join(lines))


def _takes_tensors(parameter: inspect.Parameter) -> bool:
    return parameter.annotation is parameter.empty or "Tensor" in str(parameter.annotation)


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
