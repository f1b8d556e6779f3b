"""``python -m tests.gpu.compiled``: compile kernels for NVIDIA cards without one, and write compiled.json.

80 is an A100, 90 an H100. The file has of each kernel warps of a program, registers and bytes of stack of a thread, and shared
memory.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import warnings

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from fullgrad._fast.gpu import LONGEST_OF_PAIRS, isotonic, pairs, thresholds

FOUND = pathlib.Path(__file__).with_name("compiled.json")
TARGETS = (80, 90)


@contextlib.contextmanager
def compiling(target):
    """A list of what calls of kernels compile; they launch nothing."""
    found, gpu = [], GPUTarget("cuda", target, 32)
    driver = types.SimpleNamespace(
        get_current_target=lambda: gpu,
        get_current_device=lambda: 0,
        set_current_device=lambda device: None,
        get_current_stream=lambda device=None: 0,
        get_active_torch_device=lambda: torch.device("cpu"),
    )
    triton.runtime.driver.set_active(driver)
    before = JITFunction.__getitem__
    JITFunction.__getitem__ = lambda self, grid: lambda *a, **k: found.append(self.run(*a, grid=grid, warmup=True, **k))
    try:
        yield found
    finally:
        JITFunction.__getitem__ = before


def resources(kernel):
    """Warps, registers, the stack (bytes that a thread spills) and shared memory."""
    assert not re.search(r"\b(atom|red)\.", kernel.asm["ptx"]), "an atomic operation: sums have no fixed order"
    # (The tool does not see the shared memory that a launch asks for.)
    tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        pathlib.Path(path).write_bytes(kernel.asm["cubin"])
        text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("REG", "STACK"))
    return [kernel.metadata.num_warps, registers, stack, kernel.metadata.shared]


def kernels():
    """Names and calls of each kernel, at the lengths of rows that a warp shares, and that several share."""
    # (bfloat16 is loaded and stored alone: one family has it.)
    for n, dtype in ((32, torch.float32), (1000, torch.float32), (1000, torch.bfloat16), (1000, torch.float64)):
        x = torch.zeros(64, n, dtype=dtype)
        one, brief = x[:, :1].contiguous(), dtype != torch.float32
        end = f", rows of {n} {str(dtype)[6:]}"
        families = (("simplex", "c1"), ("entmax", ""), ("normmax", ""), ("capped", "smooth"), ("topk", "c1"))
        for family, mode in families if not brief else families[1:4:2] if dtype == torch.float64 else families[3:4]:
            for what in ("value", "along"):
                name = f"{family} {mode} {what}".replace("  ", " ") + end
                yield name, lambda x=x, what=what, of=(family, mode): thresholds.run(x, what, 0.7, *of, 0.1, x)
        for family in () if brief else ("entmax", "normmax"):
            yield f"{family} both{end}", lambda x=x, f=family, a=one: thresholds.run(x, "both", a, f, "", 1.0, x)
        if dtype == torch.float32:
            yield f"mask{end}", lambda x=x, one=one: thresholds.run(x, "mask", one.long())
        statistics = (("neuralsort", "sort", "smooth"), ("softsort", "sort", "c1"), ("neuralsort", "rank", "smooth"),
                      ("sigmoid", "rank", "smooth"), ("largest", "max", "smooth"))  # fmt: skip
        for method, output, mode in statistics if not brief else statistics[:1] if dtype == torch.float64 else ():
            for what in ("value", "vjp") if n > 32 else ("value", "vjp", "jvp"):
                v = () if what == "value" else (one if output == "max" and what == "vjp" else x,)
                shape = one.shape if output == "max" and what != "vjp" else x.shape
                options = {
                    "method": method,
                    "mode": mode,
                    "softness": 0.1,
                    "rank": output == "rank",
                    "count": 1 if output == "max" else n,
                }
                yield (
                    f"{output} {method} {mode} {what}{end}",
                    lambda x=x, shape=shape, w=what, v=v, o=options: pairs.run(x, shape, w, *v, **o),
                )
    for n, mode in ((32, "smooth"), (64, "c0"), (64, "smooth")):
        x = torch.zeros(64, n)
        yield f"isotonic {mode}, rows of {n}", lambda x=x, mode=mode: isotonic.run(x, x, mode)
    # Few long rows: each phase.
    multiprocessors, pairs.multiprocessors = pairs.multiprocessors, lambda x: 132
    x = torch.zeros(64, 1000)
    for method in ("neuralsort", "sigmoid"):
        for what, v in (("value", ()), ("vjp", (x,))):
            rank = {"method": method, "mode": "smooth", "softness": 0.1, "rank": True}
            yield (
                f"rank {method} smooth {what}, shared rows of 1000",
                lambda x=x, w=what, v=v, o=rank: pairs.run(x, x.shape, w, *v, **o),
            )
    pairs.multiprocessors = multiprocessors
    for n in (32, LONGEST_OF_PAIRS):
        x = torch.zeros(64, n)
        for rank in (n == 32,):
            for what, v in (("value", ()), ("vjp", (x,))):
                name = f"{'rank' if rank else 'sort'} softsort by scans {what}, rows of {n}"
                yield (
                    name,
                    lambda x=x, w=what, v=v, rank=rank: pairs.run(
                        x, x.shape, w, *v, method="softsort", mode="smooth", softness=0.1, rank=rank
                    ),
                )


def compile_all(target):
    """What each kernel takes. A process has one target: Triton remembers it."""
    found = {}
    for name, call in kernels():
        with compiling(target) as made:
            call()
        for i, kernel in enumerate(made):
            assert kernel.metadata.target.arch == target
            found[f"{name}, launch {i + 1}" if len(made) > 1 else name] = resources(kernel)
    return {"triton": triton.__version__, "target": target, "kernels": found}


def compiled(target, **variables):
    """`compile_all` in a process of its own, without the interpreter."""
    kept = {k: v for k, v in os.environ.items() if k not in ("FULLGRAD_TRITON", "TRITON_INTERPRET")}
    command = [sys.executable, "-m", "tests.gpu.compiled", str(target)]
    done = subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def written(found):
    """The table as JSON, a kernel a line."""
    tables = [",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in one["kernels"].items()) for one in found]
    parts = [f'"{one["target"]}": {{\n{table}\n}}' for one, table in zip(found, tables, strict=True)]
    return f'{{"triton": "{found[0]["triton"]}", "kernels": {{\n' + ",\n".join(parts) + "\n}}\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:]:
        print(json.dumps(compile_all(int(sys.argv[1]))))
    else:
        FOUND.write_text(written([compiled(target) for target in TARGETS]))
