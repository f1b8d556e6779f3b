"""torch's own operators with all their derivatives: inside `completing`, whole models are right under every transform."""

from fullgrad.completion._completing import completing
from fullgrad.completion._completing import operators as operators

__all__ = ["completing"]
