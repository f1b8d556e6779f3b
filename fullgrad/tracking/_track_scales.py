"""`track_scales`: the scales of every module's output."""

import contextlib
import functools
import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._core.records import found_for_graph
from fullgrad._dispatch import tree_map_with_path
from fullgrad.tracking._scale_pair import ScalePair, text
from fullgrad.tracking._scale_tracker import track
from fullgrad.tracking._statistics import Statistic, check_statistic


@contextlib.contextmanager
def track_scales(module: nn.Module, stat: Statistic = "std") -> Iterator["ModuleScales"]:
    r"""Record the scale of the output of every submodule, of its gradient and of its tangent, while the context is open.

    .. math::
        s_m = \operatorname{std}(y_m), \qquad s_{m,\mathrm{backward}} = \operatorname{std}(\partial L / \partial y_m)

    for the output :math:`y_m` of every module :math:`m`, whatever its operators and the structure of its output: each floating
    tensor in the output gets a `ScalePair`. Values and derivatives are unchanged. Under ``vmap``, ``jvp`` and repeated calls the
    numbers mean the same as for `ScaleTracker`: the last record stays, so a loop over steps may run inside. A backward after the
    context has closed is recorded too.

    The gradient of an output is the one that arrives from its users: after a :func:`fullgrad.scale_bwd` that the next module
    applies to it. Outputs are copied, so that a following in-place module works as it does without tracking. The module is
    left as it was found, also after an exception. No graph is kept alive.

    Args:
        module: Any module.
        stat: The statistic, as for `ScaleTracker`.

    Returns:
        A context manager that gives a `ModuleScales`.

    Raises:
        TypeError: ``module`` is not a module.
        ValueError: ``stat`` is unknown.

    Example:
        >>> import torch, fullgrad
        >>> layers = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(inplace=True))
        >>> _ = torch.nn.init.eye_(layers[0].weight)
        >>> with fullgrad.track_scales(layers) as scales:
        ...     layers(torch.tensor([[1.0, 3.0]])).square().sum().backward()
        >>> print(scales)
        module  forward  backward
        0          1.41      2.83
        1          1.41      2.83
        (all)      1.41      2.83

    Source: ``unit_scaling.utils.analyse_module``.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"track_scales: `module` must be a module, got a value of type {type(module).__name__}.")
    check_statistic("track_scales", stat)
    scales = ModuleScales()
    word = f"record {next(_COUNT)}"
    _RECORDS[word] = scales
    with contextlib.ExitStack() as restore:
        for name, submodule in module.named_modules():
            # Not a hook: code that was compiled before would silently ignore it and record nothing. A forward on the instance
            # is guarded.
            own = submodule.__dict__.get("forward")
            name = ".".join(part for part in name.split(".") if part != "_orig_mod")  # torch.compile's wrapper
            submodule.__dict__["forward"] = _tracked(submodule.forward, name or "(all)", word, stat)
            restore.callback(_restore, submodule, own)
        yield scales


class ModuleScales(Mapping[str, ScalePair]):
    r"""The record of `track_scales`: a mapping from the names of modules to pairs, in the order of execution.

    The module itself is called ``(all)``. An output of several tensors has a pair for each, such as ``rnn[0]`` and ``rnn[1]``.
    The mapping prints as a table.

    .. math::
        m \mapsto (s_m,\ s_{m,\mathrm{backward}},\ s_{m,\mathrm{tangent}})

    Raises:
        KeyError: No output of that name was recorded.

    Example:
        >>> import torch, fullgrad
        >>> with fullgrad.track_scales(torch.nn.Identity()) as scales:
        ...     pass
        >>> len(scales), scales.to_dict()
        (0, {})

    Source: ``unit_scaling.analysis``.
    """

    def __init__(self) -> None:
        self._pairs: dict[str, ScalePair] = {}

    def __getitem__(self, name: str) -> ScalePair:
        if name not in self._pairs:
            raise KeyError(f"{name!r} was not recorded; there are {', '.join(map(repr, self._pairs)) or 'no outputs'}.")
        return self._pairs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def pair(self, name: str) -> ScalePair:
        """The pair of an output, made when it is first seen."""
        if name not in self._pairs:
            self._pairs[name] = ScalePair()
        return self._pairs[name]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain numbers: ``{module: {"forward": …, "backward": …, "tangent": …}}``, with lists where there are samples."""
        return {name: pair.to_dict() for name, pair in self._pairs.items()}

    def __str__(self) -> str:
        fields = ["forward", "backward"] + ["tangent"] * any(pair.tangent is not None for pair in self._pairs.values())
        rows = [["module", *fields]]
        rows += [[name, *[text(getattr(pair, field)) for field in fields]] for name, pair in self._pairs.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, axes: Any = None, names: Iterable[str] | None = None) -> Any:
        """Draw forward and backward scales by depth on a logarithmic axis; for samples, the median and the range.

        Args:
            axes: matplotlib axes to draw on; None for a new figure.
            names: The outputs to draw, in this order; None for all, in the order of execution.

        Returns:
            The axes; ``axes.figure.savefig(path)`` writes the picture.

        Raises:
            ImportError: matplotlib is not installed.
            KeyError: An output of that name was not recorded.
        """
        pairs = {name: self[name] for name in (self if names is None else names)}
        if axes is None:
            try:
                from matplotlib.figure import Figure
            except ImportError as error:
                raise ImportError('ModuleScales.plot needs matplotlib: pip install "fullgrad[plot]"') from error
            axes = Figure(figsize=(max(5.0, 0.35 * len(pairs)), 4), layout="constrained").subplots()
        depth = range(len(pairs))
        for field, color in (("forward", "#0072B2"), ("backward", "#D55E00"), ("tangent", "#009E73")):
            scales = [getattr(pair, field) for pair in pairs.values()]
            if all(scale is None for scale in scales):
                continue
            samples = [torch.tensor([torch.nan]) if s is None else torch.as_tensor(s).flatten().float().cpu() for s in scales]
            axes.plot(depth, [s.median().item() for s in samples], "o-", color=color, markersize=4, label=field)
            if any(s.numel() > 1 for s in samples):
                low, high = [s.amin().item() for s in samples], [s.amax().item() for s in samples]
                axes.fill_between(depth, low, high, color=color, alpha=0.2, linewidth=0)
        axes.set_yscale("log")
        axes.set_xticks(depth, list(pairs), rotation=90, fontsize="small")
        axes.set(xlabel="module, in the order of execution", ylabel="scale")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        return axes


def _tracked(forward: Any, name: str, word: str, stat: Statistic) -> Any:
    """A module's ``forward`` with the floating tensors of its output replaced by tracked copies."""

    @functools.wraps(forward)
    def tracked_forward(*args: Any, **kwargs: Any) -> Any:
        def replace(path: str, leaf: Any) -> Any:
            if not (isinstance(leaf, Tensor) and leaf.is_floating_point()):
                return leaf
            return track(leaf, found_for_graph(_pair_in, word, name + path), stat, copy=True)

        return tree_map_with_path(replace, forward(*args, **kwargs))

    return tracked_forward


def _restore(module: nn.Module, own: Any) -> None:
    del module.__dict__["forward"]
    if own is not None:
        module.__dict__["forward"] = own


def _pair_in(word: str, name: str) -> ScalePair:
    return _RECORDS[word].pair(name)


# Records by unique words, unlike addresses, which may be reused: compiled code is guarded by its word.
_RECORDS: weakref.WeakValueDictionary[str, ModuleScales] = weakref.WeakValueDictionary()
_COUNT = itertools.count()
