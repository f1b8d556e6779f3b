"""A module for every function of :mod:`fullgrad.soft`: ``fullgrad.nn.soft.Sort`` is :func:`fullgrad.soft.sort`."""

from fullgrad._core.public import list_public
from fullgrad.nn._classes import classes

_FOUND = classes(__name__)
globals().update(_FOUND)

__all__ = sorted(_FOUND)  # pyright: ignore[reportUnsupportedDunderAll]

list_public(__name__)
