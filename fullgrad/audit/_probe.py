"""`probe`: the checks of the kit on a found Function, as it is and adopted, if its inputs can be guessed."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad.audit._find import Finding
from fullgrad.testing._check_operator import run_check
from fullgrad.testing._report import FAILED, NOT_APPLICABLE
from fullgrad.testing._subject import Subject

# The checks, by their names in the table.
PROBES = {
    "backward": "backward",
    "func.grad": "func_grad",
    "vmap": "vmap_equals_loop",
    "jvp": "func_jvp",
    "Hessian": "func_hessian",
    "compiled": "compile_grad",
}


def probe(finding: Finding) -> dict[str, str]:
    """The result of each probe before and after adoption, as ``"fails -> passes"``, or why there is none.

    The module of the class is imported, and the class called.
    """
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            cls = getattr(_module(finding.file), finding.name)
    except Exception as error:
        return {"not run": f"cannot be imported: {type(error).__name__}: {error}"[:120]}
    logging.getLogger("torch").setLevel(logging.ERROR)
    inputs = next(filter(None, (_tried(cls, guess) for guess in _guesses(cls))), None)
    if inputs is None:
        return {"not run": "its inputs cannot be guessed"}
    if _draws(cls, inputs):
        return {"not run": "it draws random numbers"}
    found = {}
    own = Subject(cls.apply, inputs, None, cls.apply, max_saved_bytes=None)
    adopted = Subject(fullgrad.adopt(cls), inputs, None, cls.apply, max_saved_bytes=None)
    for name, check in PROBES.items():
        before, after = run_check(check, own), run_check(check, adopted)
        # For a class without a tangent, a check of tangents is not applicable; torch raises all the same.
        words = {FAILED: "fails", NOT_APPLICABLE: "-"}
        found[name] = f"{words.get(before.status, 'passes')} -> {words.get(after.status, 'passes')}"
    return found


def _module(file: str) -> Any:
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    first = name.partition(".")[0]
    if first and importlib.util.find_spec(first) is not None:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location("fullgrad_audited", file)
    if spec is None or spec.loader is None:
        raise ImportError(file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Words in the names of arguments, and the number of such an argument.
_NUMBERS = (("bit", 4), ("min|low|neg|qn", -8), ("max|high|pos|qp", 7), ("dim|axis", -1))


def _guesses(cls: Any) -> Iterator[tuple[Any, ...]]:
    """A tensor, and for the other arguments without a default a number, an integer, a tensor or True each; or a tensor for the
    second one, of one number, or of one for each row or channel, and numbers by their names for the rest.
    """
    generator = torch.Generator().manual_seed(0)
    x, image = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (2, 3, 4, 4))]
    parameters = [*inspect.signature(cls.forward).parameters.values()]
    parameters = parameters[cls.setup_context is torch.autograd.Function.setup_context :]
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    tensor = functools.partial(torch.full, fill_value=0.5, dtype=torch.float64)
    for filler in (1.0, 2, tensor((4,)), True):
        yield (x, *[filler] * (len(needed) - 1))
        if len(needed) <= 1:
            return
    numbers = [next((n for words, n in _NUMBERS if re.search(words, p.name.lower())), 1.0) for p in needed[2:]]
    for first, shapes in ((x, ((), (1,), (4,), (3, 1), (3,))), (image, ((3,), (3, 1, 1), (1, 3, 1, 1)))):
        for shape in shapes:
            yield (first, tensor(shape), *numbers)
            yield (first, *[tensor(shape)] * (len(needed) - 1))


def _tried(cls: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The inputs, if the class has a value and a gradient for them; in the dtype of the value, as many step functions fix it."""
    x = inputs[0]
    try:
        y, _ = _value_and_gradient(cls, inputs)
        if isinstance(y, Tensor) and y.is_floating_point() and y.dtype != x.dtype:
            inputs = tuple(v.to(y.dtype) if isinstance(v, Tensor) else v for v in inputs)
            y, _ = _value_and_gradient(cls, inputs)
    except Exception:
        return None
    return inputs if isinstance(y, Tensor) and y.is_floating_point() else None


def _value_and_gradient(cls: Any, inputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    x = inputs[0].clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = cls.apply(x, *inputs[1:])
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]


def _draws(cls: Any, inputs: tuple[Any, ...]) -> bool:
    first, second = (_value_and_gradient(cls, inputs) for _ in range(2))
    return not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
