"""``python -m tests.mutants FILE_OR_FOLDER…``."""

import argparse
import contextlib
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

import pytest
import torch

from tests.mutants.changes import mutants

ROOT = Path(__file__).parents[2]
SECONDS = 300
# What a mutant is asked first: most fall at once.
FIRST = ("value_is_exact", "backward", "func_jvp", "value_of_special_numbers", "func_hessian", "vmap_equals_loop")


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


def _failing_check(names):
    """The first check that fails, of the cases."""
    from fullgrad._suite.cases import CASES
    from fullgrad.testing import CHECKS, GROUPS
    from fullgrad.testing._check_operator import run_check
    from fullgrad.testing._report import FAILED
    from tests.test_transforms import applies

    checks = sorted((c for c in CHECKS if c not in GROUPS["tracing"]), key=lambda c: FIRST.index(c) if c in FIRST else len(FIRST))
    cases = [c for c in CASES if c.name in names]
    for check in checks:
        for case in cases:
            if applies(case, check):
                result = run_check(check, case)
                if result.status == FAILED:
                    return f"{case.name}: {check}: {result.message}"
    return None


def _failing_test(path):
    """Whether a test of the family fails, or one of those of all operators."""
    family = Path("tests") / path.relative_to(ROOT / "fullgrad").parts[0]
    folders = [folder for folder in (family, Path("tests/property"), Path("tests/test_kernels.py")) if (ROOT / folder).exists()]
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        failed = pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", "-W", "ignore", *map(str, folders)])
    return f"tests: {failed!r}" if failed else None


def _run(path, source, names, connection):
    signal.alarm(SECONDS)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if source is not None:
        sys.meta_path.insert(0, _Mutated(_module(path), path, source))
    try:
        result = _cases_of(path) if names is None else _failing_check(names) or _failing_test(path)
    except BaseException as error:  # while it was imported
        result = f"import: {type(error).__name__}" if names is not None else error
    connection.send(result)


def _in_child(path, source, names):
    """What a process of its own found; that it took too long, or died, is found as well."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(path, source, names, sender))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return "died, or took too long"
    finally:
        child.join()


def main():
    """Each file's mutants, or a sample of them, and the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, help="at most so many of each file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = [f for p in options.paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
    score = {}
    for path in [f.resolve() for f in files]:
        names = _in_child(path, None, None)
        found = list(mutants(path.read_text()))
        if not names or not found:
            continue
        assert _in_child(path, path.read_text(), names) is None, f"{path}: the checks fail without a change"
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
