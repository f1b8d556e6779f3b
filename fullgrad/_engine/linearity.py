r"""A numerical test whether a function is linear and differentiable, so that autograd can transpose it.

The transpose of a linear function :math:`L` is its derivative's, taken at a point that is not special: not at 0, which code may
leave out. Transposed twice at a random :math:`v`, the function must give :math:`L(h)` for random :math:`h` of several magnitudes,
with zeros among them, and for 0. A function that clips at more than the largest magnitude, or rounds to a dtype as autograd's
gradient of that conversion does, passes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fullgrad._dispatch import below_transforms, innermost, vjp
from fullgrad._engine.generators import same_draws

_SCALES = (1e-3, 1.0, 1e4)  # clipping or normalizing shows at one of them
_OF_HALF = (1e-3, 1.0, 1e2)  # float16 ends at 65504
GENERIC = 0.7  # a number that no code treats specially


def is_linear(
    function: Callable[..., Sequence[Tensor]], arguments: Sequence[Tensor], precisions: Sequence[torch.dtype] | None = None
) -> bool:
    """Whether a function is linear in all its arguments together, which are tensors like the given ones, up to rounding: that of
    its results, or of other dtypes for each.
    """
    outputs = lambda *v: tuple(function(*v))  # noqa: E731

    def drawn() -> list[list[Tensor]]:
        scales = _OF_HALF if any(a.dtype == torch.float16 for a in arguments) else _SCALES
        hs = [[scale * torch.randn_like(a) for a in arguments] for scale in (1.0, *scales)]
        return hs + [[torch.where(torch.rand_like(h.abs()) < share, h, 0) for h in hs[2]] for share in (0.5, 0.0)]

    # A function may close over tensors of transforms, below which the numbers are drawn, as in vmap they may not be.
    v, *hs = below_transforms(drawn)
    with same_draws():
        values, push = vjp(outputs, *v)
    with same_draws():  # each call of the function begins with the same state
        cotangents = below_transforms(lambda: [torch.randn(y.shape, dtype=y.dtype, device=y.device) for y in values])
        again = vjp(push, tuple(cotangents))[1]
    for h in hs:
        with same_draws():  # the function may draw: the same numbers each time
            expected = outputs(*h)
        if any(map(_differs, again(tuple(h))[0], expected, precisions or [y.dtype for y in expected])):
            return False
    return True


def _differs(found: Tensor, expected: Tensor, precision: torch.dtype) -> bool:
    """Whether tensors differ by more than rounding in a dtype. Nonfinite elements are skipped: eager double backward has them."""
    if not found.numel():
        return False
    both = found.isfinite() & expected.isfinite()
    error, size = [torch.where(both, v.abs(), 0) for v in (found - expected, expected)]
    differs = (error > min(1e3 * torch.finfo(precision).eps, 0.1) * size.amax()).any()
    return bool(innermost(differs).any())
