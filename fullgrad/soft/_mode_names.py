"""The modes of relaxations."""

from typing import Literal, get_args

SoftMode = Literal["smooth", "c0", "c1", "c2"]
Mode = Literal["hard", "smooth", "c0", "c1", "c2"]
SOFT_MODES: tuple[str, ...] = get_args(SoftMode)
MODES: tuple[str, ...] = get_args(Mode)
