"""`Generated`: methods that a base class writes into an operator's class, made again where the class is unpickled.

Pickle has classes by name. Cloudpickle takes those of a script by value: it makes an empty class, and then sets its attributes.
"""

from typing import Any


class Generated(staticmethod):  # pyright: ignore[reportMissingTypeArgument]
    """A static method that ``__init_subclass__`` has made, of things that cannot be pickled."""

    def __reduce__(self) -> Any:
        return Pending, ()


class Pending:
    """A `Generated` of a class that was unpickled. When one is asked for, the class is whole, and all are made."""

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        owner, name = next((c, n) for c in cls.__mro__ for n, v in c.__dict__.items() if v is self)
        for other in [n for n, v in owner.__dict__.items() if isinstance(v, Pending)]:
            delattr(owner, other)
        owner.__init_subclass__()
        return getattr(cls, name)


def is_generated(cls: type, name: str) -> bool:
    """Whether a base class has made an attribute, or it has none."""
    found = next((c.__dict__[name] for c in cls.__mro__ if name in c.__dict__), None)
    return found is None or isinstance(found, Generated)
