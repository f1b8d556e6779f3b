"""The second device: its rules are those of CUDA, so that it finds what fails there and passes on the CPU."""

import pytest
import torch

from tests import devices

pytestmark = pytest.mark.skipif(not devices.is_registered(), reason="runs with -p tests.devices.plugin")


def on(index=0, *values):
    return torch.tensor(values or (1.0, 2.0, 3.0)).to(f"{devices.NAME}:{index}")


def test_fresh_memory_is_garbage():
    """Memory that nobody wrote is neither 0 nor what it was before."""
    assert (torch.empty(64, dtype=torch.uint8, device=devices.NAME).cpu() == 0xFB).all()


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(3)[None]], ids=["CPU", "CPU, matrix"])
def test_tensors_of_two_devices_do_not_meet(other):
    """Tensors of the CPU, or of another index, are refused; a number on the CPU is not."""
    for tensor in (other, on(1)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            on(0) + tensor
    assert (on(0) + torch.tensor(1.0)).device == on(0).device


def test_launches_waits_and_uploads_are_logged():
    """The log has launches, waits and uploads in order, with their operations."""
    with devices.log() as entries:
        x = on(0)
        (x * 2).sum().item()
    assert [kind for kind, *_ in entries] == ["upload", "launch", "launch", "wait"]
    assert entries[1] == ("launch", "aten::mul.out", 3)


def by_mask(x):
    x[x > 1] = x[x > 1]


WAITS = [torch.Tensor.cpu, torch.Tensor.tolist, lambda x: bool(x.sum() > 0), torch.nonzero, lambda x: x[x > 1], by_mask]


def test_logs_do_not_nest():
    """A log inside a log raises, and the outer one goes on."""
    with devices.log() as entries:
        with pytest.raises(RuntimeError, match="one log at a time"), devices.log():
            pass
        on(0)
    assert [kind for kind, *_ in entries] == ["upload"]


@pytest.mark.parametrize("wait", WAITS)
def test_waiting_may_be_an_error(wait):
    """Waiting for numbers, for their count, or for a copy may raise."""
    x = on(0)
    with devices.no_waiting():
        x * 2
        with pytest.raises(RuntimeError, match="the host waits for the device"):
            wait(x)
    wait(x)


def test_each_has_a_generator():
    """Each index has a generator, independent of the CPU's and of the other index's."""
    before = torch.get_rng_state()
    torch.manual_seed(0)
    first = torch.rand(3, device=f"{devices.NAME}:0").cpu()
    torch.manual_seed(0)
    torch.rand(3, device=f"{devices.NAME}:1")
    assert torch.equal(torch.rand(3, device=f"{devices.NAME}:0").cpu(), first)
    torch.manual_seed(0)
    assert not torch.equal(torch.rand(3), first)
    torch.set_rng_state(before)


def test_autograd_has_a_thread_for_it():
    """Autograd runs hooks in a thread for the device."""
    import threading

    threads = []
    x = on(0).requires_grad_()
    x.register_hook(lambda g: threads.append(threading.get_ident()))
    (x * 2).sum().backward()
    assert threads != [threading.get_ident()]
