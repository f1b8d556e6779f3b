"""The formulas on torch's own samples of arguments: their values and gradients in every dtype are those of torch alone."""

import pytest
import torch
from torch.func import jvp, vjp

import fullgrad
from fullgrad._dispatch import operator_database, pytree

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch is too old for it"),
]
NAMES = (
    *(f"nn.functional.{name}" for name in ("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm", "glu")),
    *(f"nn.functional.{name}" for name in ("scaled_dot_product_attention", "hardsigmoid", "huber_loss", "soft_margin_loss")),
    *(
        f"nn.functional.{name}"
        for name in ("multi_margin_loss", "multilabel_margin_loss", "pdist", "grid_sample", "embedding_bag")
    ),
    *(f"linalg.{name}" for name in ("det", "slogdet", "solve", "solve_ex", "tensorsolve", "householder_product")),
    *("logdet", "cholesky", "cholesky_inverse", "cholesky_solve", "ormqr", "cdist", "mvlgamma", "logaddexp", "prod", "cumprod"),
    *("scatter_reduce", "index_reduce", "_segment_reduce"),
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Numbers are compared with the error of a sum of products, in which a few digits cancel; torch's kernels have constants of
# float32, such as a sixth, in float64 too.
FACTOR = {torch.float16: 32, torch.bfloat16: 32, torch.float32: 300, torch.float64: 1e9}


def close(found, expected, dtype):
    for a, b in zip(found, expected, strict=True):
        size = torch.nan_to_num(b.detach(), 0, 0, 0).abs().max().item() if b.numel() else 0
        if dtype == torch.float16:  # in which torch overflows between steps
            a = torch.where(b.isfinite(), a, b)
        bound = FACTOR[dtype] * torch.finfo(dtype).eps
        torch.testing.assert_close(a, b, rtol=bound, atol=bound * max(1.0, size), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(name, dtype):
    """Of a tangent's value, and of a gradient, on each sample that torch itself computes."""
    # torch takes seconds to describe its operators.
    described = [op for op in operator_database() if op.name == name and dtype in op.supported_dtypes("cpu")]
    if not described:
        pytest.skip("torch has no kernel for the dtype")
    samples = [(op, sample) for op in described for sample in op.sample_inputs("cpu", dtype, requires_grad=True)]
    seen = 0
    for op, sample in samples:
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        where = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor) and v.requires_grad]
        leaves = [v.detach() if isinstance(v, torch.Tensor) else v for v in leaves]

        def f(*xs, op=op, leaves=leaves, spec=spec, where=where):
            own = [v.clone() if isinstance(v, torch.Tensor) else v for v in leaves]
            for i, x in zip(where, xs, strict=True):
                own[i] = x
            first, args, kwargs = pytree.tree_unflatten(own, spec)
            results = pytree.tree_leaves(op.gradcheck_wrapper(op.op, first, *args, **kwargs))
            return tuple(y for y in results if y.is_floating_point())

        xs = tuple(leaves[i] for i in where)
        if not xs:
            continue
        try:
            expected, pull = vjp(f, *xs)
            again = f(*xs)
            gradients = pull(tuple(torch.ones_like(y) for y in expected))
        except (RuntimeError, NotImplementedError):
            continue  # what torch alone does not compute
        if not all(torch.equal(a, b) or a.isnan().any() for a, b in zip(expected, again, strict=True)):
            continue  # it draws
        seen += 1
        with fullgrad.completing():
            values = jvp(f, xs, tuple(torch.ones_like(x) for x in xs))[0]
            found, pull = vjp(f, *xs)
            close(values, expected, dtype)
            close(found, expected, dtype)
            if op.name != "index_reduce" or dtype not in (
                torch.float16,
                torch.bfloat16,
            ):  # where torch counts a tie that is left out
                close(pull(tuple(torch.ones_like(y) for y in found)), gradients, dtype)
    assert seen
