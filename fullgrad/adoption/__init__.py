"""Other packages' Functions, made right under every transform: `adopt` one class, or every class called while `adopting`."""

from fullgrad._core.public import make_public
from fullgrad.adoption._adopt import adopt, adopting

__all__ = ["adopt", "adopting"]

make_public(__name__, "fullgrad")
