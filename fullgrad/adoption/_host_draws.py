"""Random numbers of Python and numpy in the code of a class: ``randomness`` holds for them, which `torch.vmap` does not see."""

import contextlib
from collections.abc import Iterator

from fullgrad._dispatch import transforms_active, vmaps_share_draws, vmaps_that_draw_differently
from fullgrad._engine.batch import DRAWS
from fullgrad._engine.random_states import host_states
from fullgrad.adoption._tensors import Drew


@contextlib.contextmanager
def not_drawing(name: str) -> Iterator[None]:
    """A context for a rule of a class, which raises if it draws one number for all samples where they are to differ."""
    before = None if not transforms_active() or vmaps_share_draws() else host_states()
    yield
    if before is None or host_states() == before:
        return
    if vmaps_that_draw_differently():
        raise Drew(f"{name} draws other numbers from Python or numpy for each sample")
    raise Drew(DRAWS.format(name, " of Python or numpy"))
