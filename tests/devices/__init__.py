"""A second device for machines that have none: "second:0" and "second:1", on the memory of the CPU, with CUDA's rules.

`register` builds it, once, in half a minute; `tests.devices.plugin` is the plugin by which pytest runs the suite's checks on it.
"""

import contextlib
import functools
import os
import pathlib
import re
import sys
import types
import warnings
from collections.abc import Iterator

import torch

NAME = "second"


def _special_operations() -> tuple[list[str], list[str]]:
    """Operations of torch's list: those whose kernels may meet tensors of two devices, and those that are one kernel on CUDA
    though other devices get them in steps.
    """
    import torchgen

    text = (pathlib.Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml").read_text()
    several, single = [], []
    for entry in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        name = "aten::" + entry.partition("(")[0].strip()
        if re.search(r"^\s+device_check: NoCheck", entry, re.MULTILINE):
            several.append(name)
        keys = {key.strip() for line in re.findall(r"^    ([\w, ]+): \w+", entry, re.MULTILINE) for key in line.split(",")}
        returns, is_view = entry.partition("->")[2].splitlines()[0], re.search(r"Tensor\(a( -> \*)?\)", entry)
        if {"CUDA", "CompositeExplicitAutograd"} <= keys and not is_view and "Tensor" in returns:
            single.append(name)
    return several, single


class _Device(contextlib.AbstractContextManager):
    """Sets the current device for a block."""

    def __init__(self, device):
        index = torch.device(device).index if isinstance(device, (str, torch.device)) else device
        self.index = -1 if index is None else index

    def __enter__(self):
        self.before = register().current_device()
        if self.index >= 0:
            register().set_device(self.index)

    def __exit__(self, *_):
        register().set_device(self.before)


@functools.cache
def register() -> types.ModuleType:
    """Give torch the device, and return the extension. This needs a C++ compiler and ninja."""
    from torch.utils import cpp_extension

    # ninja, where it is installed beside this Python
    os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    torch.utils.rename_privateuse1_backend(NAME)
    source = pathlib.Path(__file__).parent / "second.cpp"
    extension = cpp_extension.load("fullgrad_second_device", [str(source)], extra_cflags=["-O1", "-Wno-deprecated"])

    def index_of(device):
        index = device if isinstance(device, int) else torch.device(device).index
        return extension.current_device() if index is None or index < 0 else index

    generator = lambda device=NAME: extension.default_generator(index_of(device))  # noqa: E731
    module = types.ModuleType(f"torch.{NAME}")
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _initialized=True,
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        device_count=lambda: 2,
        current_device=extension.current_device,
        set_device=lambda device: extension.set_device(index_of(device)),
        device=_Device,
        synchronize=lambda device=None: None,
        default_generators=tuple(extension.default_generator(i) for i in range(2)),
        manual_seed_all=lambda seed: [extension.default_generator(i).manual_seed(seed) for i in range(2)] and None,
        manual_seed=lambda seed: generator().manual_seed(seed) and None,
        get_rng_state=lambda device=NAME: generator(device).get_state(),
        set_rng_state=lambda new_state, device=NAME: generator(device).set_state(new_state),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    )
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    extension.register(*_special_operations())
    return extension


@contextlib.contextmanager
def log() -> Iterator[list[tuple[str, str, int]]]:
    """A list that holds, after the block, each "launch", "wait" or "upload" in it, with the operation and its elements. Blocks
    do not nest.
    """
    entries: list[tuple[str, str, int]] = []
    register().start_log()
    try:
        yield entries
    finally:
        entries += register().end_log()


def is_registered() -> bool:
    """Whether torch has the second device."""
    return bool(register.cache_info().currsize)


def accelerator() -> str | None:
    """The second device where torch has it, or else a GPU where there is one."""
    return NAME if is_registered() else "cuda" if torch.cuda.is_available() else None


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Raise, in the block, where the host waits for the accelerator."""
    if is_registered():
        mode, before = register().forbid_waiting, register().forbid_waiting(True)
    else:
        mode, before = torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            mode("error")
    try:
        yield
    finally:
        mode(before)
