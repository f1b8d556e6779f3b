"""``python -m tests.mutants FILE_OR_FOLDER…``."""

import argparse
import contextlib
import importlib.abc
import importlib.util
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch

from tests.mutants.changes import mutants

ROOT = Path(__file__).parents[2]
SECONDS = 900
# What a mutant is asked first: most fall at once.
FIRST = ("value_is_exact", "backward", "func_jvp", "value_of_special_numbers", "func_hessian", "vmap_equals_loop")
# What it is asked last, of few cases: each takes seconds.
TRACED = (
    "compile_forward_and_backward",
    "compile_dynamic_shapes",
    "compile_vmap_of_grad",
    "compile_jvp",
    "make_fx_of_transforms",
)
TRACED_CASES = 6
# Where a family's functions are tested beside its own folder.
BESIDE = {"rounding": ["quantizers"]}
# The tests of all functions: names in errors, keywords, kernels, random shapes.
OF_ALL = (
    "tests/property",
    "tests/test_kernels.py",
    "tests/test_public.py",
    "tests/test_errors.py",
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


def _cases_of(path):
    """Which everyday cases run a line of a function of the file."""
    from fullgrad._suite.cases import CASES
    from fullgrad.testing._subject import scalar

    used = []
    for case in [c for c in CASES if not c.exhaustive]:
        seen = False

        def profile(frame, event, argument):
            nonlocal seen
            seen = seen or frame.f_code.co_filename == str(path)

        sys.setprofile(profile)
        try:
            leaves = case.leaves()
            y = scalar(case.op)(*leaves)
            torch.autograd.grad(y, leaves, allow_unused=True)
        finally:
            sys.setprofile(None)
        if seen:
            used.append(case.name)
    return used


def _failing_check(names, checks):
    """The first of some checks that fails, of the cases."""
    from fullgrad._suite.cases import CASES
    from fullgrad.testing._check_operator import run_check
    from fullgrad.testing._report import FAILED
    from tests.test_transforms import applies

    cases = [c for c in CASES if c.name in names]
    for check in checks:
        for case in cases:
            if applies(case, check):
                result = run_check(check, case)
                if result.status == FAILED:
                    return f"{case.name}: {check}: {result.message}"
    return None


def _failing_test(path, *options):
    """Whether a test of the family fails, or one of those of all operators."""
    family = path.relative_to(ROOT / "fullgrad").parts[0].removeprefix("_")
    folders = [Path("tests") / name for name in (family, *BESIDE.get(family, ())) if (ROOT / "tests" / name).exists()]
    if not options:
        folders += OF_ALL
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        failed = pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", "-W", "ignore", *options, *map(str, folders)])
    return None if failed in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else f"tests: {failed!r}"


def _failures(path, names):
    """What catches the mutant, or None, at each stage: eager checks and short tests; traced checks of few cases; long tests."""
    from fullgrad.testing import CHECKS, GROUPS

    eager = sorted((c for c in CHECKS if c not in GROUPS["tracing"]), key=lambda c: FIRST.index(c) if c in FIRST else len(FIRST))
    yield _failing_check(names, eager) or _failing_test(path)
    yield _failing_check(names[:TRACED_CASES], TRACED)
    yield _failing_test(path, "--long")


def _run(path, source, names, stages, connection):
    signal.alarm(SECONDS)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if source is not None:
        sys.meta_path.insert(0, _Mutated(_module(path), path, source))
    try:
        if names is None:
            connection.send(_cases_of(path))
            return
        for result in itertools.islice(_failures(path, names), stages):
            connection.send(result)
            if result is not None:
                return
    except BaseException as error:  # while it was imported
        connection.send(f"{type(error).__name__}: {error}")


def _in_child(path, source, names, stages=None):
    """What a process of its own found, at the last stage that it came to; that it did not finish the first is found as well."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(path, source, names, stages, sender))
    child.start()
    sender.close()
    result = "died, or took too long"
    with contextlib.suppress(EOFError):
        while True:
            result = receiver.recv()
    child.join()
    return result


def main():
    """Each file's mutants, or a sample of them, and the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, help="at most so many of each file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = [f for p in options.paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
    score, proved = {}, set()
    for path in [f.resolve() for f in files]:
        names = _in_child(path, None, None)
        found = list(mutants(path.read_text()))
        assert not isinstance(names, str), f"{path}: {names}"
        if not names or not found:
            continue
        # The long tests are those of all files of a folder.
        failure = _in_child(path, path.read_text(), names, 1 if path.parent in proved else None)
        assert failure is None, f"{path}: without a change, {failure}"
        proved.add(path.parent)
        chosen = random.Random(0).sample(found, min(options.sample or len(found), len(found)))
        survivors = [(line, what) for line, what, source in sorted(chosen) if _in_child(path, source, names) is None]
        name = str(path.relative_to(ROOT))
        score[name] = {"mutants": len(chosen), "caught": len(chosen) - len(survivors), "survivors": survivors}
        print(f"{name}: {len(chosen) - len(survivors)} of {len(chosen)}", flush=True)
        for line, what in survivors:
            print(f"    {line}: {what}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(score, indent=1) + "\n")
    total, caught = (sum(s[key] for s in score.values()) for key in ("mutants", "caught"))
    print(f"caught {caught} of {total}: {caught / max(total, 1):.1%}")


if __name__ == "__main__":
    main()
