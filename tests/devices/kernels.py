"""``python -m tests.devices.kernels``: launches of kernels on the second device, as a page and as what the test compares with.

On a device the time of a call of a few thousand elements is that of its launches. The sizes are fixed: 128 rows of 32 numbers.
"""

import json
import math
import pathlib
import warnings
from typing import Any

import torch

from fullgrad._suite.bench._operators import bound, enlarged, rivals, tensors
from fullgrad._suite.cases import CASES
from tests import devices

N, ROW = 4096, 32
FOUND = pathlib.Path(__file__).with_name("kernels.json")
PAGE = pathlib.Path(__file__).parents[2] / "docs/kernels.md"
ROWS = """\
## Rows in one kernel

On a GPU for which torch has Triton, these are one launch each way, in eager code, of rows that are contiguous (others are
copied first), and the host waits for nothing. Memory is that of inputs and outputs; there are no atomics, so the same call
gives the same bits, also under `torch.use_deterministic_algorithms(True)`. Half precision is computed in float32 and rounded
once. The kernels have been compiled for an A100 and an H100 and compared with the formulas by Triton's interpreter, but not run
on a GPU yet; `python benchmarks/gpu_rows.py` does that, in four minutes.

| one kernel for a row | launches |
|---|---|
| soft.sparsemax | 1 + 1 |
| soft.entmax | 1 + 1 |
| soft.entmax, any alpha | 1 + 1 |
| soft.entmax, alpha that learns | 1 + 2 |
| soft.normmax | 1 + 1 |
| soft.proj_simplex c0, c1, c2 | 1 + 1 |
| soft.proj_capped_simplex | 1 + 1 |
| topk_mask_st | 2 + 1 |
| soft.max, min, by softsort | 1 + 2 |
| soft.argmax, argmin, by softsort | 1 + 1 |
| soft.sort, either method | 1 + 1 |
| soft.argsort | 1 + 1 |
| soft.topk | 1 + 1 |
| soft.median | 1 + 2 |
| soft.quantile | 1 + 1 |
| soft.rank, by neuralsort, softsort and sigmoids | 1 + 1 |

Two launches have reasons. The gradient of an exponent that learns is summed over the rows, which no one program sees. `max`,
`min` and `median` return weights, too, for which torch makes a gradient of zeros if they are not used. The ones of `topk_mask_st`
are where `torch.topk` finds them, which breaks ties, and are written by a kernel. Hard values of the other straight-through
versions are torch's; their gradients are the kernels of the relaxations.

When they run:

- *Where*: CUDA tensors of the four floating dtypes; projections, `max` and `min` by softsort of rows up to 4,096, which
  registers hold; what compares pairs of elements up to 1,024. Softsort in smooth mode is sorted in registers up to 1,024, in
  float32 and half precision, without weights and standardized; otherwise its pairs are compared. Longer rows have the
  formulas: n² pairs of one row on one of 132 multiprocessors take longer than torch's sort, and a thread that sorts a
  row of 2,048 takes 243 of the 255 registers that there are.
- *Few long rows*: if rows of more than 128 whose pairs are compared are fewer than the multiprocessors, eight programs share
  each, and every loop over a row is a launch of its own, as the next one needs the sums of all. Each program adds what the others
  have stored, in one order, where atomic additions would give other bits each time. Values take one to three launches, gradients
  two to five, and 64 numbers for each element are kept between them. Tangents, and softsort in registers, have one program a row.
- *Isotonic regression* of rows up to 64, in `smooth` and `c0`, is one launch: the values of all stretches of neighbors fit into
  registers, and the solution is a smallest of largest ones, so there is no search for blocks. `sort`, `rank`, `spearman` and the
  other functions by `fast_soft_sort`, and `proj_permutahedron`, then wait for nothing; the launches around it are torch's.
- *What*: softness, `standardize`, modes and outputs of any kind, with a softness that is a number and one quantile; ranks by
  sigmoids standardized alone. Values and first derivatives, also below `vmap`, `grad` and `jvp`. Derivatives of a higher order,
  those with respect to a softness, and subclasses of tensors have the formulas.
- *The first call* of each kind compiles a kernel, for about a second, for some seconds if it sorts long rows; Triton keeps it on
  the disk.
- *Compiled code*: the formulas, in which thresholds of projections and isotonic regression are nodes with one kernel. Order
  statistics have no node: each operator would need a schema, and another one for its derivative.
- *Not*: with `FULLGRAD_TRITON=0` in the environment, for bug reports, as with `FULLGRAD_FAST=0`, which turns all faster
  versions off. If Triton is missing, or a kernel does not compile, the formulas run, with one warning.
- *Formulas alone*: `ot`, hundreds of steps over a plan; isotonic regression of longer rows, whose n² stretches no registers
  hold, and in which each step waits for the one before; that in `c1` and `c2`, where the value of a stretch is a root to be
  found. Sorting networks, lapsum and the scans of rows longer than 1,024 wait for nothing as they are: a network in one kernel
  would keep n log² n / 2 numbers of each row for its derivative, and long rows share the time of a launch among many elements.

"""
HEAD = """\
# Kernels

On a device, a call of a few thousand elements takes the time of its launches. The table counts them, forward + backward, for 128
rows of {row} float32 numbers in eager code, next to the composite of torch operators that a user would write. They are counted
on the second device of the tests (PrivateUse1). "Waits" are the times that the host waits for a number; where an operator waits,
its docstring says so. Solvers of equations wait in each iteration and are not counted.

The geometric mean of all launches over the composite's is {mean:.2f}, of {count} operators that have one. A test counts both
again; `python -m tests.devices.kernels` writes this page.

{rows}## Operations of torch

Where there are more launches than in the composite:

- *Order statistics by softsort and neuralsort*: the composite standardizes rows in 7 launches, ours in 39. Infinite elements take
  no part in the statistics, a row far from 0 loses no digit, and large numbers do not overflow. The derivative of a
  straight-through version computes the relaxation again, where the composite keeps n numbers for each element.
- *`clip_grad_norm`*: the norm is taken in a unit in which it neither overflows nor underflows, and has a derivative at 0.
- *`codebook_quantize`, `power_of_two`*: the backward finds the level of each number again, where the composite saves it.
- *Smooth `sigmoidal`, `heaviside`, `greater`, `greater_equal`*: a second gate, so that the slope is not 0 where the value rounds
  to 1.
- *`xlogy`*: the slope by y is a quotient that is 0 at 0, and its derivatives are, too.
- *`norm` of all elements*: the unit of the elements, in which it neither overflows nor underflows.
- *`lower_bound`, `upper_bound` with a tensor as the bound*: both gradients compare anew; the composite saves one comparison.
- *`custom_gradient`, `custom_jvp`*: the composite's backward is written by hand; theirs is found from the rule.
- *`spearman`, `ndcg`*: their ranks are sums over a sorted row, in its unit, and equal targets share theirs; a row
  without a correlation or a gain has a loss and a derivative.
- *`listnet`, `lambda_loss`*: a row with a NaN, without an element or without a difference has a loss and a derivative, and
  gains are scaled so that no sum overflows.
- *`relaxed_bernoulli`, `hard_concrete`, `bernoulli_logits_st`, `fsq`, `binarize`, `ternarize`, `logical_or`, `clamp_by_linear`,
  `affine_k_bit_quantize`, `perturbed`, `fenchel_young_loss`, a `sigmoid` that learns*: not looked into.

| operator | launches | composite | waits |
|---|---|---|---|"""
# Launches of solvers depend on numbers.
COUNTED = [case for case in CASES if not case.exhaustive and not case.name.startswith("implicit.")]


def counts(case: Any) -> dict[str, list[int]]:
    """Launches forward and backward, and waits and uploads in both, of a case and of its composite."""
    inputs = enlarged(case, N, ROW, torch.float32, devices.NAME)
    found = {}
    composite = {name: f for name, f in rivals(case, inputs, N * ROW).items() if name == "composite"}
    for name, function in {"ours": case.operator, **composite}.items():
        try:
            found[name] = _counts_of(bound(function, inputs), tensors(inputs))
        except Exception:
            if name == "ours":
                raise
            continue  # plain code that does not run on this device
    return found


def _counts_of(function: Any, inputs: list[torch.Tensor]) -> list[int]:
    leaves = [v.clone().requires_grad_() for v in inputs]
    for _ in range(2):  # tables are made once
        with devices.log() as forward:
            y = function(*leaves)
        g = torch.ones_like(y)
        with devices.log() as backward:
            if y.requires_grad:
                torch.autograd.grad(y, leaves, g, allow_unused=True)
    launches = [sum(kind == "launch" for kind, *_ in entries) for entries in (forward, backward)]
    return [*launches, *[sum(kind == other for kind, *_ in forward + backward) for other in ("wait", "upload")]]


def page(found: dict[str, dict[str, list[int]]]) -> str:
    """The table, and the mean ratio to the composites."""
    ratios = [sum(r["ours"][:2]) / sum(r["composite"][:2]) for r in found.values() if "composite" in r and sum(r["ours"][:2])]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    lines = [HEAD.format(row=ROW, mean=mean, count=len(ratios), rows=ROWS)]
    for name, row in found.items():
        cells = [f"{row[who][0]} + {row[who][1]}" if who in row else "" for who in ("ours", "composite")]
        lines.append(f"| {name} | {' | '.join(cells)} | {row['ours'][2] or ''} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Count everything and write both files."""
    warnings.simplefilter("ignore")
    devices.register()
    found = {case.name: counts(case) for case in COUNTED}
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
    FOUND.write_text(f'{{"torch": "{torch.__version__.split("+")[0]}", "counts": {{\n{rows}\n}}}}\n')
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
