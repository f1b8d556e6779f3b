"""Tensors drawn by Hypothesis."""

import numpy
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NUMPY = {torch.float16: numpy.float16, torch.bfloat16: numpy.float32, torch.float32: numpy.float32, torch.float64: numpy.float64}

dtypes = st.sampled_from(FLOATING)
# Sizes 0 and 1 and the 0-dim tensor among them.
shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def layouts(draw, tensor: Tensor) -> Tensor:
    """The same numbers in another memory layout: permuted, strided, expanded where that changes nothing, channels-last."""
    kind = draw(st.sampled_from(["as it is", "permuted", "strided", "channels last"]))
    if kind == "permuted" and tensor.ndim > 1:
        order = draw(st.permutations(range(tensor.ndim)))
        inverse = sorted(range(tensor.ndim), key=order.__getitem__)
        return tensor.permute(order).contiguous().permute(inverse)
    if kind == "strided":
        return torch.stack((tensor, tensor), -1)[..., 1]
    if kind == "channels last" and tensor.ndim == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


@st.composite
def tensors(draw, dtype=None, shape=shapes, any_number: bool = True) -> Tensor:
    """Tensors of any numbers, or with ``any_number=False`` of moderate ones with few digits: ties and halves are common."""
    dtype = draw(dtypes) if dtype is None else dtype
    kind = _NUMPY[dtype]
    width = numpy.dtype(kind).itemsize * 8
    if any_number:
        elements = st.one_of(st.floats(width=width), st.integers(-12, 12).map(lambda n: kind(n / 4)))
    else:
        elements = st.integers(-16, 16).map(lambda n: kind(n / 8))
    array = draw(npst.arrays(kind, shape, elements=elements))
    return draw(layouts(torch.from_numpy(numpy.array(array)).to(dtype)))
