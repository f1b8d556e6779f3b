"""``python -m fullgrad diagnose``: where a model's gradient ends, what raises or is wrong, and the line that mends it."""

import argparse
import copy
import dataclasses
import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._dispatch import pytree
from fullgrad.cli._arguments import refuse_file
from fullgrad.cli._errors import UsageError, did_you_mean
from fullgrad.cli._output import Signs, write_json
from fullgrad.diagnosis._diagnose import diagnose, with_gradients
from fullgrad.diagnosis._flow import copied, kept, lacks, squares
from fullgrad.diagnosis._page import called, page
from fullgrad.nn._batches import arguments_of


def run(options: argparse.Namespace) -> int:
    """Write the page and print a line for each finding; the exit status is 1 if there are any."""
    output = Path(options.output)
    with Signs("diagnose") as step, torch.random.fork_rng():
        torch.manual_seed(0)
        step("the model")
        model, loss = _model(options.model), squares
        args, kwargs = with_gradients(model, *arguments_of(model, _batch(options.batch)))
        if options.loss is not None:
            loss = _loaded(options.loss)
            if not callable(loss):
                raise UsageError(f"{options.loss} is of type {type(loss).__name__}, and must be a function of the output.")
        _try(model, args, kwargs, loss, options)
        try:
            found = diagnose(model, args, kwargs, loss, step)
        except (RuntimeError, NotImplementedError) as error:
            if not lacks(error):
                raise
            raise UsageError(f"the backward of {options.loss or 'the loss'} raises: {_told(error)}") from None
    output.write_text(page(options.model, found), encoding="utf-8")
    for f in found.findings:
        others = f" and {len(f.layers) - 1} more" if len(f.layers) > 1 else ""
        more = f" -> {f.line}" if f.line else f" (at {f.place})" if f.place else ""
        print(f"{called(f.layer)}{others}: {f.kind}: {f.what}{more}")
    count = len(found.findings)
    print(f"{count or 'no'} finding{'s' * (count != 1)}; wrote {output}")
    for note in found.notes:
        print(f"note: {note}")
    write_json(options, dataclasses.asdict(found))
    return int(bool(count))


def _model(path: str) -> nn.Module:
    """The model, or a copy of one that lives in the user's module."""
    found = _loaded(path)
    is_made = not isinstance(found, nn.Module) and callable(found)
    if is_made:
        try:
            found = found()
        except Exception as error:
            raise UsageError(f"{path} cannot be called without arguments: {_told(error)}") from None
    found = getattr(found, "_orig_mod", found)  # of torch.compile
    if not isinstance(found, nn.Module) or isinstance(found, torch.jit.ScriptModule):
        what = "returns" if is_made else "is"
        raise UsageError(f"{path} {what} a {type(found).__name__}, and must be a torch.nn.Module or a function that returns one.")
    if is_made:
        return found
    try:
        return copy.deepcopy(found)
    except Exception as error:
        raise UsageError(f"{path} cannot be copied: {_told(error)}; name a function that returns the model.") from None


def _batch(path: str) -> Any:
    found = _loaded(path)
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise UsageError(f"{path} cannot be called without arguments: {_told(error)}") from None
    if not isinstance(found, (Tensor, tuple, list, dict)):
        raise UsageError(f"{path} is of type {type(found).__name__}, and must be a tensor, or a tuple or dict of arguments.")
    return found


def _try(model: nn.Module, args: Any, kwargs: Any, loss: Any, options: argparse.Namespace) -> None:
    """Tell errors of the model, of the loss, and of their backward in one line."""
    with kept(model), torch.enable_grad():
        try:
            output = model(*copied(args), **copied(kwargs))
        except Exception as error:
            raise UsageError(f"{options.model} raises with {options.batch}: {_told(error)}") from None
        try:
            total = loss(output)
        except Exception as error:
            raise UsageError(f"{options.loss or 'the loss'} raises with the output of {options.model}: {_told(error)}") from None
        if options.loss is None and not any(isinstance(v, Tensor) for v in pytree.tree_leaves(output)):
            raise UsageError(f"{options.model} returns a {type(output).__name__} without tensors; pass --loss, a function of it.")
        if not isinstance(total, Tensor) or total.numel() != 1 or not total.is_floating_point():
            found = (
                f"a tensor of shape {tuple(total.shape)}, {total.dtype}" if isinstance(total, Tensor) else type(total).__name__
            )
            raise UsageError(f"{options.loss or 'the loss'} must return one floating number as a tensor, got {found}.")
        try:
            if total.requires_grad:
                total.backward()
        except Exception as error:
            if lacks(error):  # a finding
                return
            raise UsageError(f"the backward of {options.model} raises with {options.batch}: {_told(error)}") from None


def _loaded(path: str) -> Any:
    """The object that MODULE:NAME or FILE.py:NAME says; the current directory counts."""
    name, _, attribute = path.rpartition(":")
    module = _of_file(Path(name)) if name.endswith(".py") else _of_name(name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [n for n in dir(found) if not n.startswith("_")]
            told = did_you_mean(part, known) or f"; it has {', '.join(known[:12])}{', …' if len(known) > 12 else ''}."
            raise UsageError(f"{name} has no {part}{told}")
        found = getattr(found, part)
    return found


@functools.cache
def _of_file(file: Path) -> ModuleType:
    refuse_file(file)
    spec = importlib.util.spec_from_file_location(f"fullgrad_diagnosed_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # by which the source of its classes is found
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return _imported(lambda: spec.loader.exec_module(module) or module, str(file))  # type: ignore[union-attr]


def _of_name(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    return _imported(lambda: importlib.import_module(name), name)


def _imported(load: Any, name: str) -> ModuleType:
    try:
        return load()
    except ModuleNotFoundError as error:
        near = [f.stem for f in Path().glob("*.py")]
        told = did_you_mean(name, near) if error.name and name.startswith(error.name) else ""
        raise UsageError(f"{name} cannot be imported: {error}{told or '; a file is FILE.py:NAME.'}") from None
    except Exception as error:
        raise UsageError(f"{name} cannot be imported: {_told(error)}") from None


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
