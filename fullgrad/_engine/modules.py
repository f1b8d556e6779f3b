"""The tensors of modules by name, in whose places others stand while code runs, and the modes in which modules are."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def run_with_states(states: Sequence[tuple[nn.Module, dict[str, Tensor]]], run: Callable[[], Any]) -> Any:
    """``run()`` while modules have other tensors, by name, at every place where they have the ones that are replaced.

    `torch.func.functional_call` would leave a module that is in two places with the other tensors:
    https://github.com/pytorch/pytorch/issues/164759.
    """
    if not states:
        return run()
    new = {id(old): named[name] for module, named in states for name, old in state_of(module).items() if name in named}
    own = {id(part): part for module, _ in states for part in module.modules()}
    places = [
        (part, tensors, name, old, new[id(old)])
        for part in own.values()
        for tensors in (part._parameters, part._buffers)
        for name, old in tensors.items()
        if id(old) in new
    ]
    try:
        for _, tensors, name, _, value in places:
            tensors[name] = value  # pyright: ignore[reportArgumentType]
        result = run()
        assigned = [(part, name) for part, tensors, name, _, value in places if tensors.get(name) is not value]
        if assigned:
            kinds = ", ".join(dict.fromkeys(f"A {type(part).__name__} assigns {name}" for part, name in assigned))
            training = any(part.training for part, _ in assigned)
            raise RuntimeError(
                f"{kinds} when an operator made of functions calls it, which would be lost. Let the call take such a state as an "
                "argument and return the new one, and call a module that keeps it besides, as neurons of snntorch do, by "
                "torch.func.functional_call(module, dict(module.named_buffers()), args), which puts it back"
                f"{'; or call .eval() if it is assigned in training alone' if training else ''}."
            )
        return result
    finally:
        for _, tensors, name, old, _ in places:
            tensors[name] = old  # pyright: ignore[reportArgumentType]


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, by name."""
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in state.items():
        if is_lazy(tensor):
            raise RuntimeError(
                f"A {type(module).__name__} has no size yet for its {name}. Call it once before an operator made of functions "
                "does."
            )
    return state


def modes_of(module: nn.Module) -> list[tuple[nn.Module, bool]]:
    """The parts of a module, and whether each is in training mode."""
    return [(part, part.training) for part in module.modules()]


def check_modes(noted: Sequence[tuple[nn.Module, bool]]) -> None:
    """Refuse modules whose mode has changed since a call, which another call would not repeat."""
    for part, training in noted:
        if part.training is not training:
            before, now = ("training", "evaluation") if training else ("evaluation", "training")
            raise RuntimeError(
                f"A {type(part).__name__} was in {before} mode when an operator made of functions called it, and is in {now} "
                "mode when its derivative calls it again. Take the derivative first, or change the mode before the call."
            )
