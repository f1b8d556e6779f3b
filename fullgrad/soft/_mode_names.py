"""The modes of relaxations."""

from typing import Literal, get_args

SoftMode = Literal["smooth", "c0", "c1", "c2"]
Mode = Literal["hard", "smooth", "c0", "c1", "c2"]
# Steps and functions made of steps have the mode "laplace" too.
StepMode = Literal["smooth", "c0", "c1", "c2", "laplace"]
AnyStepMode = Literal["hard", "smooth", "c0", "c1", "c2", "laplace"]
SOFT_MODES: tuple[str, ...] = get_args(SoftMode)
MODES: tuple[str, ...] = get_args(Mode)
STEP_MODES: tuple[str, ...] = get_args(StepMode)
ANY_STEP_MODES: tuple[str, ...] = get_args(AnyStepMode)
