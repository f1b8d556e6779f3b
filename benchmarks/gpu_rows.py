"""Are the kernels of `fullgrad._fast.gpu` right on this GPU, and how long do they take? ``python benchmarks/gpu_rows.py``.

1. Every kernel is compared with the formulas in float64, in several processes, as compiling takes longest.
2. Two calls give the same bits.
3. Forward + backward, the median of CUDA events: with kernels, by the formulas, torch.sort, adasplash's entmax and torchsort's
   ranks if they are installed, a copy of the same bytes; and the peak of memory that a call adds.
4. The composite of torch operators that a user would compile, for as long as there is time.

All ends within ``--budget`` seconds, 225 by default: a case that would not fit, as the longest of its step so far, is named as
skipped, and one that still runs at the end as unfinished. Results are printed as they are found, and the JSON is written anew
after each; a case that fails is a line, not the end. ``--interpret`` runs tiny rows by Triton's interpreter on a CPU: it shows
that the script runs.
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import traceback

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--interpret", action="store_true", help="tiny rows on a CPU, by Triton's interpreter")
PARSER.add_argument("--small", action="store_true", help="the first size alone")
PARSER.add_argument("--budget", type=float, default=225.0, help="seconds for all")
PARSER.add_argument("--json", default="gpu_rows.json")
PARSER.add_argument("--part", type=int, help=argparse.SUPPRESS)  # a process of the checks
PARSER.add_argument("--start", type=float, default=time.time(), help=argparse.SUPPRESS)  # when the first process started
ARGS = PARSER.parse_args()
START = ARGS.start
if ARGS.interpret:
    os.environ["FULLGRAD_TRITON"] = "interpret"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import torch  # noqa: E402

import fullgrad  # noqa: E402
from fullgrad import soft  # noqa: E402
from fullgrad._fast import gpu  # noqa: E402
from fullgrad._suite.bench._composites import relaxation  # noqa: E402
from tests.gpu.comparison import FUNCTIONS, careful_rows, compare, formulas  # noqa: E402

if ARGS.interpret:
    from tests.gpu import interpreter

    interpreter.make_fast()
DEVICE = "cpu" if ARGS.interpret else "cuda"
SIZES = ((4, 10), (1, 5000)) if ARGS.interpret else ((64, 1000), (4096, 128), (131_072, 32), (4096, 1000), (1, 50_000))
PROCESSES = 2 if ARGS.interpret else min(14, os.cpu_count() or 1)
CHECKING = 0.45 * ARGS.budget
RESULTS = {"checks": {"right": 0, "wrong": []}, "times": [], "compiled": [], "failed": [], "skipped": [], "unfinished": []}
# The seconds that the end takes, and that a first case is expected to take; the longest case of each step; processes of checks.
END, FIRST = 4.0, 3.0
LONGEST, CHILDREN = {}, []


def left():
    """The seconds that are left."""
    return ARGS.budget - (time.time() - START)


def write():
    """Write what there is."""
    pathlib.Path(ARGS.json).write_text(json.dumps(RESULTS, indent=1))


@contextlib.contextmanager
def case(step, name, until=0.0):
    """Whether a case of a step fits into the time that is left before ``until``; if it does not, it is named as skipped."""
    start, name = time.time(), f"{step}: {name}"
    fits = left() - until - END > LONGEST.get(step, FIRST)
    RESULTS["unfinished" if fits else "skipped"].append(name)
    if not fits:
        print(f"skipped, {left():.0f} s left: {name}", file=sys.stderr if ARGS.part is not None else sys.stdout, flush=True)
    try:
        yield fits
    finally:
        if fits:
            RESULTS["unfinished"].remove(name)
            LONGEST[step] = max(LONGEST.get(step, 0.0), time.time() - start)


def stop():
    """The end of the budget, in whatever case: write what there is, and leave."""
    for child in CHILDREN:
        child.kill()
    write()
    print(f"no time left, unfinished: {RESULTS['unfinished']}", flush=True)
    os._exit(0)


def short(error):
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# --- Checks -------------------------------------------------------------------------------------------------------------


def check_part(part):
    """Compare some functions, and print what was found so far after each."""
    right, wrong = 0, []
    names = (
        ["sparsemax", "sort neuralsort smooth", "max softsort smooth", "rank sigmoid c1"] if ARGS.interpret else list(FUNCTIONS)
    )
    for i, name in enumerate(names[part::PROCESSES]):
        for n, dtype in ((16, torch.float32), (257, torch.float32), (33, (torch.float64, torch.bfloat16)[i % 2])):
            if n > (16 if ARGS.interpret else gpu.LONGEST_OF_SQUARES if "fast_soft_sort" in name else n):
                continue
            full = f"{name}, rows of {n}, {dtype}"
            with case("check", full, ARGS.budget - CHECKING) as fits:
                if fits:
                    try:
                        # The order of ties in a long row, and its infinities, are not those of the formula.
                        x = careful_rows(n) if n < 100 else torch.randn(4, n)
                        compare(name, FUNCTIONS[name], x.to(DEVICE), -1, dtype)
                        right += 1
                    except Exception as error:
                        wrong.append(f"{full}: {short(error)}")
            print(json.dumps([right, wrong, RESULTS["skipped"]]), flush=True)
    print(json.dumps([right, wrong, RESULTS["skipped"]]))


def check():
    """All parts at once."""
    options = ["--budget", str(ARGS.budget), "--start", str(START), *["--interpret"] * ARGS.interpret]
    command = [sys.executable, __file__, *options, "--part"]
    CHILDREN[:] = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(PROCESSES)
    ]
    found, skipped = RESULTS["checks"], RESULTS["skipped"]
    for i, child in enumerate(CHILDREN):
        late = []
        try:
            out, err = child.communicate(timeout=max(0.1, left() - ARGS.budget + 1.1 * CHECKING))
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            late = [f"check: what process {i} had not compared"]
        try:
            right, wrong, without_time = json.loads(out.splitlines()[-1])
        except (ValueError, IndexError) as error:
            right, without_time = 0, []
            wrong = [] if late else [f"process {i}: {short(error)} {err[-500:]}"]
        found["right"], found["wrong"] = found["right"] + right, found["wrong"] + wrong
        skipped += without_time + late
        print(*wrong, *late, sep="\n", end="\n" * bool(wrong or late), flush=True)
        write()
    print(
        f"{found['right']} right, {len(found['wrong'])} wrong, {len(skipped)} without time; {time.time() - START:.0f} s",
        flush=True,
    )


def same_bits():
    """Two calls of each kind are the same, bit for bit, also where torch is to be deterministic."""
    torch.use_deterministic_algorithms(True)
    x = torch.randn(*((4, 9) if ARGS.interpret else (5000, 100)), device=DEVICE)
    RESULTS["same bits"] = {}
    for name in ("entmax 1.75", "proj_capped_simplex smooth", "sort neuralsort smooth", "rank neuralsort smooth", "argmedian"):
        f = FUNCTIONS.get(name, lambda x, dim: soft.argmedian(x, dim))
        with case("same bits", name) as fits:
            if not fits:
                continue
            try:
                first, second = (both_ways(lambda x, f=f: f(x, -1), x)()[0] for _ in range(2))
                RESULTS["same bits"][name] = torch.equal(first, second)
            except Exception as error:
                RESULTS["same bits"][name] = short(error)
    torch.use_deterministic_algorithms(False)
    print("the same bits twice:", RESULTS["same bits"], flush=True)


# --- Times --------------------------------------------------------------------------------------------------------------


def timed(make, least=0.08):
    """The median time of a call in microseconds, and what it adds to the memory at its peak in MB; or what it raised."""
    try:
        call = make()
        for _ in range(1 if ARGS.interpret else 3):
            call()
        if ARGS.interpret:
            start = time.perf_counter()
            call()
            return {"us": (time.perf_counter() - start) * 1e6}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / 1e6
        times, end = [], time.time() + least
        while time.time() < end or len(times) < 5:
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            call()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) * 1e3)
        return {"us": sorted(times)[len(times) // 2], "MB": peak}
    except Exception as error:
        if not ARGS.interpret:
            torch.cuda.empty_cache()
        return {"error": short(error)}


def both_ways(f, x):
    """Forward and backward by autograd."""
    leaf = x.detach().clone().requires_grad_()
    g = torch.ones_like(f(x.detach()))
    return lambda: torch.autograd.grad(f(leaf), leaf, g)


def floor(x):
    """The memory that both ways move at least: a read and a write, then two reads and a write."""
    y, z = torch.empty_like(x), torch.empty_like(x)
    return lambda: (y.copy_(x), torch.add(x, y, out=z))


def adasplash(x):
    return importlib.import_module("adasplash").triton_entmax(x, alpha=1.5)


def torchsort(x):
    return importlib.import_module("torchsort").soft_rank(x)


def entries():
    """Names, functions, the method of the composite if there is one, and a rival."""
    yield "sparsemax", soft.sparsemax, None, None
    yield "entmax 1.5", soft.entmax, None, adasplash
    yield "entmax 1.3", lambda x: soft.entmax(x, 1.3), None, None
    yield "normmax", soft.normmax, None, None
    yield "proj_capped_simplex", lambda x: soft.proj_capped_simplex(x, 4), None, None
    yield "topk_mask_st", lambda x: fullgrad.topk_mask_st(x, 4), None, None
    yield "max", lambda x: soft.max(x, -1).values, ("max", "softsort"), None
    for method in ("neuralsort", "softsort"):
        yield f"sort {method}", lambda x, m=method: soft.sort(x, method=m, return_indices=False).values, ("sort", method), None
    yield "topk neuralsort", lambda x: soft.topk(x, 4, return_indices=False).values, None, None
    yield "median neuralsort", lambda x: soft.median(x, -1).values, None, None
    yield "quantile neuralsort", lambda x: soft.quantile(x, 0.9, -1), None, None
    for method in ("neuralsort", "softsort", "sigmoid"):
        yield (
            f"rank {method}",
            lambda x, m=method: soft.rank(x, -1, method=m),
            ("rank", method),
            None,
        )
    yield "rank fast_soft_sort", lambda x: soft.rank(x, -1, method="fast_soft_sort"), None, torchsort


def shown(result):
    """A time, or the beginning of an error."""
    return f"{result['us']:12.0f}" if "us" in result else f"{result.get('error', '')[:11]:>12s}"


def times():
    """Each function at each size; rows too long for kernels show that both columns are formulas."""
    columns = ("kernels", "formulas", "torch.sort", "rival", "floor")
    print(f"{'forward + backward, us':36s}" + "".join(f"{c:>12s}" for c in columns), flush=True)
    for rows, n in SIZES[: 1 if ARGS.small else None]:
        x = torch.randn(rows, n, device=DEVICE)
        sort, least = timed(lambda x=x: both_ways(lambda x: x.sort(-1).values, x)), timed(lambda x=x: floor(x))
        for name, f, _, rival in entries():
            full = f"{name} {rows} x {n}"
            with case("times", full) as fits:
                if not fits:
                    continue
                line = {"name": name, "size": [rows, n], "torch.sort": sort, "floor": least}
                line["kernels"] = timed(lambda x=x, f=f: both_ways(f, x))
                with formulas():
                    line["formulas"] = timed(lambda x=x, f=f: both_ways(f, x))
                line["rival"] = timed(lambda x=x, f=rival: both_ways(f, x)) if rival else {}
                RESULTS["times"].append(line)
                print(f"{full:36s}" + "".join(shown(line[c]) for c in columns), flush=True)
            write()


def compiled():
    """The composites, compiled."""
    for rows, n in SIZES[:3]:
        x = torch.randn(rows, n, device=DEVICE)
        for name, _, of, _ in entries():
            composite = relaxation(*of) if of else None
            if composite is None:
                continue
            with case("compiled", f"{name} {rows} x {n}") as fits:
                if not fits:
                    continue
                torch.compiler.reset()
                f = torch.compile(lambda x, f=composite: f(x, 0.1))
                line = {"name": name, "size": [rows, n], "composite": timed(lambda x=x, f=f: both_ways(f, x))}
                RESULTS["compiled"].append(line)
                print(f"{name + f' {rows} x {n}':36s}{shown(line['composite'])} compiled composite", flush=True)
            write()


def main():
    """All steps; one that fails is told."""
    import triton

    timer = threading.Timer(max(0.0, left() - END / 2), stop)
    timer.daemon = True
    timer.start()
    card = "Triton's interpreter" if ARGS.interpret else torch.cuda.get_device_name()
    RESULTS["machine"] = f"{card}, torch {torch.__version__}, Triton {triton.__version__}"
    print(RESULTS["machine"], flush=True)
    for step in (check, same_bits, times, *[compiled] * (not ARGS.interpret)):
        try:
            step()
        except Exception as error:
            RESULTS["failed"].append(f"{step.__name__}: {short(error)}")
            traceback.print_exc()
        write()
    timer.cancel()
    RESULTS["kernels that failed"] = gpu._failed
    write()
    print(f"{time.time() - START:.0f} s in all")


if __name__ == "__main__":
    main() if ARGS.part is None else check_part(ARGS.part)
