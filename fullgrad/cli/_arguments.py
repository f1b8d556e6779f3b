"""The arguments of every command, and what can be refused of them at once: nothing here imports torch, which takes seconds."""

import argparse
import importlib.util
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

from fullgrad import __version__
from fullgrad._suite.bench._words import DTYPES, FAST, SOFTTORCH, TARGETS, WAYS
from fullgrad.audit._sources import sources
from fullgrad.cli import _names
from fullgrad.cli._errors import UsageError, check_names, did_you_mean
from fullgrad.cli._output import add_json

# What may stand in the place of an operator's name.
GROUPS = (TARGETS, SOFTTORCH, FAST)
SIZES = (16, 16_384, 4_000_000)
# The most that a line may take: seconds, and GiB of memory.
MOST_SECONDS, QUICK_MOST_SECONDS, MOST_GIB = 300.0, 10.0, 4.0
OF_YOUR_OWN = "`python -m fullgrad audit FILE --run` checks classes of your own"


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    found = argparse.ArgumentParser(prog="python -m fullgrad", description="Declared gradients, proved on this machine.")
    found.add_argument("--version", action="version", version=f"fullgrad {__version__}")
    added = found.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add in (_adopt, _audit, _bench, _check, _diagnose, _fuzz, _list, _plot, _torch):
        add(added)
    return found


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (found,) = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options, unless they are wrong in a way that their text shows."""
    made = parser()
    named, known = [a for a in arguments[:1] if not a.startswith("-")], commands(made)
    check_names(named, known, "command", f"the commands are {', '.join(known)}")
    options = made.parse_args(arguments)
    if "refuse" in options:
        options.refuse(options)
    return options


def _adopt(commands: Any) -> None:
    parser = commands.add_parser("adopt", help="other packages' Functions, before and after fullgrad.adopt")
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages or classes; by default all that are installed")
    add_json(parser, "the results, next to those that are in it,")
    parser.add_argument("--table", action="store_true", help="print the table of a file and run nothing")
    parser.set_defaults(refuse=_refuse_adopt)


def _audit(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="what breaks in the Functions, detach tricks and gradient hooks of other code, and what replaces them",
        epilog="A comment `# fullgrad: ignore` silences what is found on its line; `# fullgrad: ignore[KIND, KIND]` does so for "
        "these kinds alone: Function, operator, detach trick, hook, in place, torch operator.",
    )
    parser.add_argument("targets", nargs="+", metavar="PACKAGE_OR_FILE", help="installed packages, folders or files")
    add_json(parser, "a list of findings")
    parser.add_argument("--run", dest="probe", action="store_true", help="also import the Functions, and probe them")
    parser.set_defaults(refuse=_refuse_audit)


def _bench(commands: Any) -> None:
    parser = commands.add_parser("bench", help="time and memory next to torch, composites and other packages")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"operators, {', '.join(GROUPS)}; default: operators, {TARGETS}")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help=f"elements (default: {' '.join(map(str, SIZES))})")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"], help="of the numbers (default: float32)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="what to ask of an operator (default: all)")
    parser.add_argument("--variants", action="store_true", help="every mode and method of an operator, not only the first")
    parser.add_argument("--one-row", action="store_true", help="order statistics of one row; else rows are short beyond 4,096")
    parser.add_argument("--memory", action="store_true", help="peaks of memory, too")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="for each statement, beyond five calls (default: 0.2)")
    parser.add_argument("--quick", action="store_true", help="under two minutes: small sizes, few calls, nothing compiled")
    limits = f"(default: {MOST_SECONDS:g} s; {QUICK_MOST_SECONDS:g} with --quick)", f"(default: {MOST_GIB:g} GiB; on Linux)"
    parser.add_argument("--most-seconds", type=_positive, metavar="S", help=f"skip a line that takes longer {limits[0]}")
    parser.add_argument("--most-memory", type=_positive, metavar="GIB", help=f"skip a line that takes more {limits[1]}")
    add_json(parser, "the numbers")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time and memory against n, with the fitted exponents")
    parser.set_defaults(refuse=_refuse_bench)


def _check(commands: Any) -> None:
    parser = commands.add_parser("check", help="prove operators: every check, on this machine's torch and devices")
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators, or module:callable of your own; by default all")
    parser.add_argument("--device", action="append", help="a device; may be repeated; by default the CPU, and CUDA where present")
    parser.add_argument("--backend", default="aot_eager", help="the backend of torch.compile (default: %(default)s)")
    parser.add_argument("--checks", action="append", metavar="CHECK", help="a check or a group of checks; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="leaves out the slow checks and, without names, all but one case of each operator"
    )
    parser.add_argument("--surrogate", metavar="MODULE:CALLABLE", help="for your own: plain torch code with its derivative")
    parser.add_argument(
        "--shape",
        action="append",
        metavar="N,N",
        help="for your own: the shape of an input; repeat it for several (default: 4,3)",
    )
    parser.add_argument("--inputs", metavar="MODULE:CALLABLE", help="for your own, instead of shapes: returns the inputs")
    parser.add_argument("-v", "--verbose", action="store_true", help="print errors in full, with where they were raised")
    add_json(parser, "every result")
    parser.set_defaults(refuse=_refuse_check)


def _diagnose(commands: Any) -> None:
    parser = commands.add_parser(
        "diagnose", help="a model: where its gradient ends, what raises or is wrong, the line that mends it"
    )
    parser.add_argument("model", metavar="MODULE:MODEL", help="a module, or a function that returns one; also FILE.py:MODEL")
    parser.add_argument(
        "--batch",
        required=True,
        metavar="MODULE:BATCH",
        help="a tensor, a tuple or dict of arguments, or a function that returns one",
    )
    parser.add_argument(
        "--loss",
        metavar="MODULE:LOSS",
        help="a function of the output (default: the sum of the squared distances to random numbers)",
    )
    parser.add_argument("--output", default="diagnose.html", metavar="FILE", help="the page (default: %(default)s)")
    add_json(parser, "the findings")
    parser.set_defaults(refuse=_refuse_diagnose)


def _fuzz(commands: Any) -> None:
    parser = commands.add_parser("fuzz", help="draw shapes, numbers, layouts, dtypes and nestings, and look for wrong results")
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators; by default all")
    parser.add_argument("--laws", nargs="+", metavar="LAW", help=f"of {', '.join(_names.laws())} (default: all)")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--minutes", type=float, metavar="N", help="how long (default: 1)")
    amount.add_argument("--cases", type=int, metavar="N", help="how many programs, instead")
    parser.add_argument("--seed", type=int, help="of what is drawn (default: today's date)")
    parser.add_argument("--device", default="cpu", help="a device that has float64 (default: %(default)s)")
    add_json(parser, "the counts and the failures")
    parser.set_defaults(refuse=_refuse_fuzz)


def _list(commands: Any) -> None:
    commands.add_parser("list", help="families and operators, one line each")


def _plot(commands: Any) -> None:
    parser = commands.add_parser("plot", help="value, declared derivative and second derivative in one picture")
    parser.add_argument("names", nargs="+", metavar="NAME", help="operators; several overlay")
    parser.add_argument("-o", "--output", type=Path, default=Path("fullgrad.png"), help="the picture (default: %(default)s)")
    parser.add_argument("--range", nargs=2, type=float, default=(-3.0, 3.0), metavar=("LOW", "HIGH"), help="of x (default: -3 3)")
    parser.set_defaults(refuse=_refuse_plot)


def _torch(commands: Any) -> None:
    parser = commands.add_parser("torch", help="torch's own operators: derivatives that are wrong or missing, and completed")
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators, as torch's tests name them (default: all)")
    parser.add_argument(
        "--samples", type=int, default=2, metavar="N", help="the most that torch has of each operator (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: %(default)s)")
    add_json(parser, "what was found")
    parser.set_defaults(refuse=_refuse_torch)


# --- What the text of arguments shows ------------------------------------------------------------------------------------


def _refuse_adopt(options: argparse.Namespace) -> None:
    if options.table and options.json in (None, "-"):
        raise UsageError("--table needs --json FILE.")
    known = _names.words("_suite/published/_functions.py")
    unknown = [name for name in options.names if not {*name.split(".")} <= {*known}]
    check_names(unknown, known, "package or class of the list", OF_YOUR_OWN)


def _refuse_audit(options: argparse.Namespace) -> None:
    try:
        for target in options.targets:
            next(sources(target), None)
    except FileNotFoundError as error:
        raise UsageError(str(error)) from None


def _refuse_bench(options: argparse.Namespace) -> None:
    _names.check_operators(options.names, f"public operator, nor one of {', '.join(GROUPS)}", GROUPS)


def _refuse_check(options: argparse.Namespace) -> None:
    own = [name for name in options.names if ":" in name]
    _names.check_operators([name for name in options.names if name not in own], "public operator, nor MODULE:CALLABLE")
    groups = _names.checks()
    known = [*groups, *(check for checks in groups.values() for check in checks)]
    check_names(options.checks or (), known, "check or group of checks", f"the groups are {', '.join(groups)}")
    given = [f"--{option}" for option in ("surrogate", "inputs", "shape") if getattr(options, option)]
    if given and not own:
        raise UsageError(f"{given[0]} is for a callable of your own, MODULE:CALLABLE; the cases of public operators have theirs.")
    for text in options.shape or ():
        shape(text)
    for path in (*own, options.surrogate, options.inputs):
        if path is not None:
            _refuse_module(path, path.partition(":")[0], "cannot be loaded: No module named")


def shape(text: str) -> list[int]:
    """The sizes of ``--shape``."""
    try:
        sizes = [int(n) for n in text.split(",")]
    except ValueError:
        sizes = [-1]
    if min(sizes) < 0:
        raise UsageError(f"--shape must be sizes with commas between, got {text!r}.")
    return sizes


def _refuse_module(path: str, module: str, told: str, end: str = ".") -> None:
    """Refuse a module of which not even the outermost package is there; the current directory counts."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    first = module.partition(".")[0]
    if first not in sys.modules and (not first or importlib.util.find_spec(first) is None):
        raise UsageError(f"{path} {told} {first!r}{end}")


def _refuse_diagnose(options: argparse.Namespace) -> None:
    output = Path(options.output)
    if not output.parent.is_dir():
        raise UsageError(f"{output} cannot be written: there is no folder {output.parent}.")
    for path in (options.model, options.batch, options.loss):
        if path is None:
            continue
        name, _, attribute = path.rpartition(":")
        if not name or not attribute:
            raise UsageError(f"{path} must be MODULE:NAME or FILE.py:NAME, such as mypackage.models:model.")
        if name.endswith(".py"):
            refuse_file(Path(name))
        else:
            near = did_you_mean(name, [f.stem for f in Path().glob("*.py")])
            _refuse_module(name, name, "cannot be imported: No module named", near or "; a file is FILE.py:NAME.")


def refuse_file(file: Path) -> None:
    """Refuse a file that is not there, and suggest those with a name close to it."""
    if not file.is_file():
        near = [f.name for f in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UsageError(f"there is no file {file}{did_you_mean(file.name, near) or '.'}")


def _refuse_fuzz(options: argparse.Namespace) -> None:
    _names.check_operators(options.names, "operator that fuzz draws")
    laws = _names.laws()
    check_names(options.laws or (), laws, "law", f"the laws are {', '.join(laws)}")


def _refuse_plot(options: argparse.Namespace) -> None:
    _names.check_operators(options.names, "operator")


def _refuse_torch(options: argparse.Namespace) -> None:
    known = _names.of_torch()
    check_names(
        [name for name in options.names if re.split("[.,]", name)[0] not in known],
        [name for name in known if len(name) < 40],
        "operator of the samples",
        "torch.testing._internal.common_methods_invocations has them, and fullgrad/_suite/torch_samples.py",
    )


def _positive(text: str) -> float:
    """A positive number."""
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return float(text)
