"""``python -m tests.mutants FILE_OR_FOLDER…``."""

import argparse
import contextlib
import functools
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import random
import signal
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.mutants.changes import mutants, mutated

ROOT = Path(__file__).parents[2]
SECONDS = 1200
# What a mutant is asked first: most fall at once.
FIRST = ("value_is_exact", "backward", "func_jvp", "value_of_special_numbers", "func_hessian", "vmap_equals_loop")
# What tells the files that a case runs.
USED = ("backward", "func_jvp", "vmap_equals_loop")
# What it is asked last, of few cases: each takes seconds.
TRACED = (
    "compile_forward_and_backward",
    "compile_dynamic_shapes",
    "compile_vmap_of_grad",
    "compile_jvp",
    "make_fx_of_transforms",
)
TRACED_CASES = 6
# Of a file that many cases run, how many are asked first.
CASES_AT_ONCE = 24
# Where the functions of a family, or of a file, are tested beside the folder or the file of their name.
BESIDE = {
    "rounding": ["quantizers"],
    "adoption": ["adopting"],
    "_batching.py": ["test_elementwise.py", "dispatch/test_vmap.py", "property"],
    "_buffers.py": ["test_kernels.py", "test_pieces.py", "soft"],
    "_checks.py": ["rounding", "sampling", "spikes", "tracking"],
    "_elementwise.py": ["test_pieces.py", "functions"],
    "_function.py": ["dispatch"],
    "_half_precision.py": ["test_pieces.py", "soft"],
    "_inputs.py": ["soft", "sampling"],
    "_kernels.py": ["test_pieces.py"],
    "_neighbors.py": ["test_kernels.py", "rounding", "spikes"],
    "_noise.py": ["sampling", "quantizers", "distributed"],
    "_public.py": ["ecosystem/test_overrides.py"],
    "_recompute.py": ["functions", "soft", "sampling"],
    "_recomputed.py": ["soft", "sampling"],
    "_dispatch/compile_cache.py": ["test_compiled_graphs.py", "test_compiled.py"],
    "_dispatch/distributed.py": ["distributed"],
    "_dispatch/forward_marks.py": ["gradients"],
    "_dispatch/graph_calls.py": ["adopting"],
    "_dispatch/interception.py": ["adopting"],
    "_dispatch/jagged.py": ["ecosystem/test_jagged.py"],
    "_dispatch/nodes.py": ["ecosystem/test_fx.py", "tracking"],
    "_dispatch/overrides.py": ["ecosystem/test_overrides.py"],
    "_dispatch/rules.py": ["ecosystem/test_jagged.py"],
    "_dispatch/state.py": ["tracking"],
    "_dispatch/torch_private.py": ["adopting", "ecosystem/test_overrides.py", "tracking"],
    "_dispatch/trees.py": ["functions"],
}
# The same, of tests that take minutes.
FAR = {
    "dispatch": [
        "test_compiled.py",
        "test_compiled_graphs.py",
        "test_elementwise.py",
        "ecosystem",
        "tracking",
        "adopting",
        "distributed",
    ]
}
# pytest cannot rewrite the assertions of what the kit's checks have imported, of which it warns, and a warning is an error.
IMPORTED_BEFORE = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
# The tests of all functions: keywords, kernels, random shapes.
OF_ALL = (
    "tests/property",
    "tests/test_kernels.py",
    "tests/test_pieces.py",
    "tests/test_public.py",
    "tests/ecosystem/test_keywords.py",
)


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from another source."""

    def __init__(self, name, path, source):
        self.name, self.path, self.source = name, str(path), source

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        is_package = self.path.endswith("__init__.py")
        return importlib.util.spec_from_file_location(
            name, self.path, loader=self, submodule_search_locations=[str(Path(self.path).parent)] if is_package else None
        )

    def get_filename(self, name):
        return self.path

    def get_data(self, path):
        return self.source.encode()

    def path_stats(self, path):
        raise OSError  # no bytecode


def _module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _cases_of_files():
    """The cases that run a line of each file's functions, backward, forward or in a batch: default ones, and all others."""
    from fullgrad._suite.cases import CASES
    from fullgrad.testing._check_operator import run_check

    everyday, variants, seen = {}, {}, set()

    def profile(frame, event, argument):
        seen.add(frame.f_code.co_filename)

    for case in CASES:
        seen.clear()
        sys.setprofile(profile)
        try:
            for check in USED[:1] if case.exhaustive else USED:
                run_check(check, case)
        finally:
            sys.setprofile(None)
        for file in seen:
            (variants if case.exhaustive else everyday).setdefault(file, []).append(case.name)
    return everyday, variants


def _few(names, count):
    """A number of the names, spread over the list."""
    return names[:: max(1, -(-len(names) // count))]


class Checks(NamedTuple):
    """Some checks of the kit, on some cases."""

    cases: tuple
    checks: tuple

    def failure(self):
        """The first check that fails, alone, and its message."""
        from fullgrad._suite.cases import CASES
        from fullgrad.testing._check_operator import run_check
        from fullgrad.testing._report import FAILED
        from tests.test_transforms import applies

        cases = [c for c in CASES if c.name in self.cases]
        for check in self.checks:
            for case in cases:
                if applies(case, check):
                    result = run_check(check, case)
                    if result.status == FAILED:
                        return Checks((case.name,), (check,)), f"{case.name}: {check}: {result.message}"
        return None


class Tests(NamedTuple):
    """Some of the suite's tests."""

    paths: tuple
    options: tuple = ()

    def failure(self):
        """The first test that fails."""
        command = ["-x", "-q", "-n0", "-p", "no:cacheprovider", *IMPORTED_BEFORE, *self.options, *self.paths]
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            failed = pytest.main(command)
        return None if failed in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else (self, f"tests: {failed!r}")


def _stages(path, names, variants, at_once):
    """Eager checks and the family's short tests; then the other tests, and traced checks of few cases."""
    from fullgrad.testing import CHECKS, GROUPS
    from tests.test_transforms import CHEAP

    inside = path.relative_to(ROOT / "fullgrad")
    family = inside.parts[0].removeprefix("_").removesuffix(".py")
    places = (family, f"test_{family}.py", *BESIDE.get(family, ()), *BESIDE.get(inside.as_posix(), ()))
    folders = tuple(f"tests/{name}" for name in places if (ROOT / "tests" / name).exists())
    eager = sorted((c for c in CHECKS if c not in GROUPS["tracing"]), key=lambda c: FIRST.index(c) if c in FIRST else len(FIRST))
    yield Checks(tuple(_few(names, CASES_AT_ONCE)), tuple(eager))
    yield Checks(tuple(variants), CHEAP)
    yield Tests((*folders, "tests/test_errors.py"))
    if not at_once:
        for name in FAR.get(family, ()):
            yield Tests((f"tests/{name}",))
        yield Tests(OF_ALL)
        yield Checks(tuple(names), tuple(eager))
        yield Checks(tuple(_few(names, TRACED_CASES)), TRACED)
        if folders:
            yield Tests(folders, ("--long",))


def _ask(path, source, stages, connection):
    signal.alarm(SECONDS)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if path.name == "fallback.py":  # which nothing else runs
        os.environ["FULLGRAD_DISPATCH"] = "fallback"
    if source is not None:
        sys.meta_path.insert(0, _Mutated(_module(path), path, source))
    try:
        for stage in stages():
            result = stage.failure()
            if result is not None:
                connection.send(result)
                return
        connection.send((None, None))
    except BaseException as error:  # while it was imported
        connection.send((None, f"{type(error).__name__}: {error}"))


def _in_child(function, *arguments):
    """The result of a function in a child process that imports all of fullgrad anew."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=function, args=(*arguments, sender))
    child.start()
    sender.close()
    result = None, "died, or took too long"
    with contextlib.suppress(EOFError):
        result = receiver.recv()
    child.join()
    return result


def _is_caught(path, source, stages, proved):
    """Whether the mutant fails something, which passes without the change."""
    what, failure = _in_child(_ask, path, source, stages)
    if failure is None:
        return False
    # Where it is not known what fails, as when a module is not imported or takes too long, all has to pass: once for a file.
    key, asked = (path, stages) if what is None else (what, lambda: [what])
    if key not in proved:
        _, without = _in_child(_ask, path, None, asked)
        assert without is None, f"{path}: without a change, {without}"
        proved.add(key)
    return True


def _chosen(files, options):
    """The mutants of each file that run: all, or those that were drawn."""
    found = {path: mutants(path.read_text()) for path in files}
    if options.survivors:
        survived = json.loads(options.survivors.read_text())
        for path in files:
            left = survived.get(str(path.relative_to(ROOT)), {}).get("survivors", ())
            found[path] = [m for m in found[path] if [m.line, m.what] in left]
    if options.draw:
        every = [(path, m) for path in files for m in found[path]]
        drawn = set(random.Random(options.seed).sample(every, min(options.draw, len(every))))
        found = {path: [m for m in found[path] if (path, m) in drawn] for path in files}
    if options.sample:
        found = {path: random.Random(options.seed).sample(ms, min(options.sample, len(ms))) for path, ms in found.items()}
    return {path: sorted(ms) for path, ms in found.items() if ms}


def main():
    """Run each file's mutants, or a sample of them, and print the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, help="at most so many of each file")
    parser.add_argument("--draw", type=int, help="so many of all files together, each mutant as likely as another")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--at-once", action="store_true", help="only the eager checks and the short tests of the family")
    parser.add_argument("--survivors", type=Path, help="only those that survived in this JSON file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = [f.resolve() for p in options.paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
    everyday, variants = _in_child(lambda connection: connection.send(_cases_of_files()))
    score, proved = {}, set()
    for path, chosen in _chosen(files, options).items():
        name, source = str(path.relative_to(ROOT)), path.read_text()
        names = (everyday.get(str(path), []), variants.get(str(path), []))
        stages = functools.partial(_stages, path, *names, options.at_once)
        survivors = [m for m in chosen if not _is_caught(path, mutated(source, m), stages, proved)]
        score[name] = {
            "mutants": len(chosen),
            "caught": len(chosen) - len(survivors),
            "survivors": [(mutant.line, mutant.what) for mutant in survivors],
        }
        print(f"{name}: {len(chosen) - len(survivors)} of {len(chosen)}", flush=True)
        for mutant in survivors:
            print(f"    {mutant.line}: {mutant.what}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(score, indent=1) + "\n")
    total, caught = (sum(s[key] for s in score.values()) for key in ("mutants", "caught"))
    print(f"caught {caught} of {total}: {caught / max(total, 1):.1%}")


if __name__ == "__main__":
    main()
