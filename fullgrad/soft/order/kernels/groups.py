"""Groups of neighbors in a row: where they begin, and sums over them."""

import torch
from torch import Tensor


def last_marked(marks: Tensor) -> Tensor:
    """For each place of a row the last one up to it which is marked, or 0."""
    places = torch.arange(marks.shape[-1], device=marks.device)
    return torch.cummax(torch.where(marks, places, 0), -1).values


def tie_bounds(a: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last index of the group of equal elements around each element of an ascending row."""
    a, n = a.detach(), a.shape[-1]
    step, edge = a[..., 1:] != a[..., :-1], torch.ones_like(a[..., :1], dtype=torch.bool)
    ends = torch.cat((step, edge), -1)
    return last_marked(torch.cat((edge, step), -1)), n - 1 - last_marked(ends.flip(-1)).flip(-1)


def group_sums(x: Tensor, first: Tensor) -> Tensor:
    """The sum over the group of each element, given the first index of it: a linear map with a constant structure."""
    index = first.expand(x.shape)
    return torch.zeros_like(x).scatter_add(-1, index, x).gather(-1, index)
