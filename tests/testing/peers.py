"""The kit on published Functions of other packages, and on torch's own way: ``python -m tests.peers > docs/peers.md``.

Each is called as its users call it, with the derivative that it claims as its surrogate. Packages that are not
installed are left out.
"""

import datetime
import importlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fullgrad._suite.cases._case import numbers, straight_through
from fullgrad.testing import GROUPS, Report, check_operator
from fullgrad.testing._report import FAILED, PASSED

X = numbers(4, 3)


@dataclass(frozen=True)
class Peer:
    """A published operator: its module, how to call it, and its claimed derivative."""

    package: str
    name: str
    path: str
    call: Callable[[Any], Callable[..., Any]]
    inputs: tuple[Any, ...]
    surrogate: Callable[..., Any]
    value: Callable[..., Any]


def _round(x):
    return straight_through(torch.round(x), x)


def _spike_sigmoid(x):
    return straight_through((x >= 0).to(x.dtype), torch.sigmoid(4.0 * x))


def _spike_fast_sigmoid(x):
    return straight_through((x > 0).to(x.dtype), x / (1 + 25 * x.abs()))


def _quantize(x):
    return straight_through(torch.round(x / 0.3) * 0.3, x)


def _double_gradient(x):
    return straight_through(x, 2.0 * x)


SJ, SNN, BREVITAS, UNIT = "spikingjelly", "snntorch", "brevitas", "unit_scaling"
PEERS = [
    Peer("fullgrad", "round", "fullgrad:round", lambda f: f, (X,), _round, torch.round),
    Peer("fullgrad", "clamp", "fullgrad:clamp", lambda f: f, (X, -1.0, 1.5), torch.clamp, torch.clamp),
    Peer("detach trick", "round", "tests.peers:_round", lambda f: f, (X,), _round, torch.round),
    Peer(SJ, "quantize.round", "spikingjelly.activation_based.quantize:round", lambda f: f, (X,), _round, torch.round),
    Peer(
        SJ,
        "quantize.clamp",
        "spikingjelly.activation_based.quantize:clamp",
        lambda f: f,
        (X, -1.0, 1.5),
        torch.clamp,
        torch.clamp,
    ),
    Peer(
        SJ,
        "quantize.step_quantize",
        "spikingjelly.activation_based.quantize:step_quantize",
        lambda f: lambda x: f(x, 0.3),
        (X,),
        _quantize,
        lambda x: torch.round(x / 0.3) * 0.3,
    ),
    Peer(
        SJ,
        "surrogate.Sigmoid",
        "spikingjelly.activation_based.surrogate:Sigmoid",
        lambda f: f(alpha=4.0),
        (X,),
        _spike_sigmoid,
        lambda x: (x >= 0).to(x.dtype),
    ),
    Peer(
        SNN,
        "surrogate.fast_sigmoid",
        "snntorch.surrogate:fast_sigmoid",
        lambda f: f(slope=25),
        (X,),
        _spike_fast_sigmoid,
        lambda x: (x > 0).to(x.dtype),
    ),
    Peer(BREVITAS, "round_ste", "brevitas.function.ops_ste:round_ste", lambda f: f, (X,), _round, torch.round),
    Peer(
        BREVITAS,
        "scalar_clamp_ste",
        "brevitas.function.ops_ste:scalar_clamp_ste",
        lambda f: lambda x: f(x, -1.0, 1.5),
        (X,),
        lambda x: straight_through(torch.clamp(x, -1.0, 1.5), x),
        lambda x: torch.clamp(x, -1.0, 1.5),
    ),
    Peer(UNIT, "scale_bwd", "unit_scaling.scale:scale_bwd", lambda f: lambda x: f(x, 2.0), (X,), _double_gradient, lambda x: x),
]


def reports() -> Iterator[tuple[Peer, str, Report]]:
    """The report of every peer that is installed, and its package's version."""
    for peer in PEERS:
        module, _, attribute = peer.path.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except ImportError:
            continue
        package = importlib.import_module(module.split(".")[0])
        version = getattr(package, "__version__", "") if peer.package != "detach trick" else torch.__version__
        if peer.package == SJ:
            version = importlib.metadata.version(SJ)
        report = check_operator(peer.call(found), *peer.inputs, surrogate=peer.surrogate, value=peer.value, raise_exception=False)
        yield peer, version, report


def table() -> str:
    """The table in Markdown."""
    lines = [
        "# Other packages under the same checks",
        "",
        f"Made by `python -m tests.peers` on {datetime.date.today()}, torch {torch.__version__},",
        f"python {platform.python_version()}, CPU. A cell says how many of the group's applicable checks passed. An operator of",
        "another package may be right in all that its authors promise; few promise transforms, nested forward mode, compilation.",
        "",
        "| package | operator | " + " | ".join(GROUPS) + " | all |",
        "|---|---|" + "---|" * (len(GROUPS) + 1),
    ]
    for peer, version, report in reports():
        cells = []
        for group in (*GROUPS, None):
            passed, failed = report.count(PASSED, group), report.count(FAILED, group)
            cells.append(f"{passed}/{passed + failed}" if passed + failed else "-")
        lines.append(f"| {peer.package} {version} | `{peer.name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import logging

    logging.disable(logging.ERROR)
    print(table(), end="")
