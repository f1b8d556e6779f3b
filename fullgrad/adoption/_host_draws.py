"""Random numbers of Python and numpy in the code of a class: ``randomness`` holds for them, which `torch.vmap` does not see."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from fullgrad._dispatch import transforms_active, vmaps_share_draws, vmaps_that_draw_differently
from fullgrad._engine.batch import DRAWS
from fullgrad._engine.random_states import host_marks, host_states
from fullgrad.adoption._tensors import Drew

_calm: Any = weakref.WeakKeyDictionary()  # for each class, its rules that have run in a batch, and drew nothing


def not_drawing(cls: Any, name: str, rule: str) -> contextlib.AbstractContextManager[Any]:
    """A context for one rule of a class, which raises if it draws one number for all samples where they are to differ."""
    is_free = not transforms_active() or vmaps_share_draws()
    return contextlib.nullcontext() if is_free else _not_drawing(cls, name, rule)


@contextlib.contextmanager
def _not_drawing(cls: Any, name: str, rule: str) -> Iterator[None]:
    states = host_marks if rule in _calm.get(cls, ()) else host_states
    before = states()
    yield
    if states() == before:
        _calm.setdefault(cls, set()).add(rule)
        return
    if vmaps_that_draw_differently():
        raise Drew(f"{name} draws other numbers from Python or numpy for each sample")
    raise Drew(DRAWS.format(name, " of Python or numpy"))
