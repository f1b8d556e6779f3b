"""``is_grads_batched``, which still uses torch's legacy vmap, in a thread such as autograd has for each device but the CPU.

Such a thread is given the dispatch keys of the caller, and not the level of its legacy vmap.
"""

import threading

import pytest
import torch

from fullgrad._suite.cases import CASES
from fullgrad.testing._subject import close

LEVEL = 1


def in_thread_of_a_device(function):
    """The result of a function in such a thread, and whether the thread then has the key of legacy vmap, as it must."""
    found = []

    def run():
        torch._C._dispatch_tls_set_dispatch_key_included("VmapMode", True)
        try:
            found.append(function())
            found.append(torch._C._dispatch_tls_is_dispatch_key_included("VmapMode"))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found


@pytest.mark.short
@pytest.mark.parametrize("case", [c for c in CASES if not (c.exhaustive or c.long)], ids=lambda c: c.name)
def test_batched_cotangents(case):
    """The gradients of a batch of cotangents are those of one after another."""
    leaves = case.leaves()
    y = case.op(*leaves)
    cotangents = torch.randn(3, *y.shape, dtype=y.dtype)
    pull = lambda g: torch.autograd.grad(y, leaves, g, retain_graph=True, materialize_grads=True)  # noqa: E731
    expected = [torch.stack(parts) for parts in zip(*map(pull, cotangents), strict=True)]
    found, has_key = in_thread_of_a_device(lambda: pull(torch._add_batch_dim(cotangents, 0, LEVEL)))
    assert has_key
    for a, e in zip(found, expected, strict=True):
        close(torch._remove_batch_dim(a, LEVEL, len(cotangents), 0), e)
