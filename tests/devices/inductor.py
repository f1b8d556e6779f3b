"""The Triton code that torch.compile writes for an H100, for the second device, run by Triton's interpreter.

``TRITON_INTERPRET=1 python -m tests.devices.inductor 0 10`` compiles each tenth elementwise case, from the first on, and prints a
line of JSON for each. It uses private names of inductor: `register` raises ImportError or AttributeError where they have changed.
"""

import json
import os
import re
import sys
import types
from unittest import mock

import torch

from tests import devices

_H100 = types.SimpleNamespace(
    name="second",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    total_memory=80 << 30,
)


def _exchange(index):
    second = devices.register()
    before = second.current_device()
    if index >= 0:
        second.set_device(index)
    return before


def register() -> None:
    """Let inductor write Triton kernels for the second device, and let Triton's interpreter run them."""
    import triton
    from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
    from torch._inductor import scheduler, utils
    from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides
    from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget

    second = devices.register()
    module = getattr(torch, devices.NAME)

    class Interface(DeviceInterface):
        device = module.device

        class Worker:
            set_device = staticmethod(module.set_device)
            current_device = staticmethod(second.current_device)
            get_device_properties = staticmethod(lambda device=None: _H100)

        current_device = staticmethod(second.current_device)
        set_device = staticmethod(module.set_device)
        device_count = staticmethod(module.device_count)
        is_available = staticmethod(lambda: True)
        get_raw_stream = staticmethod(lambda index: 0)
        synchronize = staticmethod(lambda device=None: None)
        get_device_properties = staticmethod(lambda device=None: _H100)
        get_compute_capability = staticmethod(lambda device=None: 90)
        is_bf16_supported = staticmethod(lambda including_emulation=False: True)
        is_triton_capable = staticmethod(lambda device=None: True)
        raise_if_triton_unavailable = staticmethod(lambda device=None: None)
        exchange_device = staticmethod(_exchange)
        maybe_exchange_device = staticmethod(_exchange)

    class Overrides(DeviceOpOverrides):
        def import_get_raw_stream_as(self, name):
            return f"{name} = lambda index: 0"

        def set_device(self, device_idx):
            return f"torch.{devices.NAME}.set_device({device_idx})"

        def synchronize(self):
            return f"torch.{devices.NAME}.synchronize()"

        def device_guard(self, device_idx):
            return f"torch.{devices.NAME}.device({device_idx})"

        def current_stream(self):
            return "None"

    module.Scheduling, module.PythonWrapperCodegen = TritonScheduling, PythonWrapperCodegen
    module.CppWrapperCodegen, module.WrapperFxCodegen = CppWrapperGpu, WrapperFxCodegen
    for name in (devices.NAME, *[f"{devices.NAME}:{i}" for i in range(2)]):
        register_interface_for_device(name, Interface)
    register_device_op_overrides(devices.NAME, Overrides())
    utils.GPU_TYPES.append(devices.NAME)
    scheduler.has_triton = lambda *_: True  # it knows CUDA and its like by name
    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=second.current_device,
        set_current_device=module.set_device,
        get_current_stream=lambda device=None: 0,
        get_active_torch_device=lambda: torch.device(devices.NAME),
        get_device_interface=lambda: module,
        map_python_to_cpp_type=lambda kind: "void*",
    )
    triton.runtime.driver.set_active(driver)
    triton_helpers.set_driver_to_gpu = lambda: None
    triton_helpers.libdevice = _library()


def _library():
    """CUDA's library of functions of numbers, which Triton's interpreter lacks, by numpy and torch."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def by_torch(function):
        return lambda *a: function(*[torch.from_numpy(np.ascontiguousarray(v)) for v in a]).numpy()

    same = (
        "rint floor ceil trunc exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh fmod copysign nextafter hypot"
    )
    functions = {name: getattr(np, name) for name in (*same.split(), "hypot", "isnan", "isinf", "signbit", "ldexp")}
    functions |= {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "pow": np.power, "fabs": np.abs}
    functions |= {"nearbyint": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x), "finitef": np.isfinite, "isfinited": np.isfinite}
    functions |= {"llrint": lambda x: np.rint(x).astype(np.int64)}
    functions |= {"round": lambda x: np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)}
    functions |= {"ilogb": lambda x: np.where(x == 0, -(2**31), np.frexp(x)[1] - 1).astype(np.int32)}
    functions |= {name: by_torch(getattr(torch.special, name)) for name in ("erf", "erfc", "erfinv", "erfcx")}
    functions |= {"normcdfinv": by_torch(torch.special.ndtri), "lgamma": by_torch(torch.lgamma)}
    kinds = {np.dtype(n): getattr(tl, n) for n in ("float16", "float32", "float64", "int64", "int32")}

    class Library:
        def __getattr__(self, name):
            function = functions[name]

            def call(*args):
                tensors = [a for a in args if isinstance(a, tl.tensor)]
                kind = tensors[0].handle.data.dtype
                with np.errstate(all="ignore"):
                    y = np.asarray(function(*[a.handle.data if isinstance(a, tl.tensor) else kind.type(a) for a in args]))
                y = y.astype(np.int32) if y.dtype == bool else y
                dtype = kinds[y.dtype]
                is_block = any(t.type.is_block() for t in tensors)
                return tl.tensor(TensorHandle(y, dtype), tl.block_type(dtype, list(y.shape)) if is_block else dtype)

            return call

    return Library()


def found(case) -> dict:
    """How many kernels a case has compiled, forward and backward, and how far what they compute is from eager code."""
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    inputs = [v.float().to(devices.NAME) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in case.inputs]
    inputs = [v.to(devices.NAME) if isinstance(v, torch.Tensor) else v for v in inputs]
    where = [i for i, v in enumerate(inputs) if isinstance(v, torch.Tensor) and v.is_floating_point()]

    def run(operator):
        given = [v.clone().requires_grad_() if i in where else v for i, v in enumerate(inputs)]
        y = operator(*given)
        g = torch.linspace(0.5, 2, y.numel()).reshape(y.shape).to(y.device, y.dtype)
        leaves = [given[i] for i in where]
        return y.detach(), *torch.autograd.grad(y, leaves, g, allow_unused=True)

    compiled = torch.compile(lambda *v: case.operator(*v), fullgraph=True, dynamic=False)
    results, codes = run_and_get_code(run, compiled)
    both = list(zip(results, run(case.operator), strict=True))
    pairs = [(a.cpu(), b.cpu()) for a, b in both if a is not None and b is not None]
    return {
        "name": case.name,
        "kernels": [len(re.findall(r"= async_compile\.triton\(", code)) for code in codes],
        "parameters": len(where) - 1,
        "equal": all((a is None) == (b is None) for a, b in both)
        and all(torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs),
    }


def main(first: int, step: int) -> None:
    import torch._functorch.config
    import torch._inductor.config

    from fullgrad._suite.cases import CASES

    register()
    elementwise = [c for c in CASES if c.elementwise and c.of == "elements" and not c.exhaustive]
    off = mock.patch.object
    with off(torch._inductor.config, "fx_graph_cache", False), off(torch._functorch.config, "enable_autograd_cache", False):
        for case in elementwise[first::step]:
            print(json.dumps(found(case)), flush=True)


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") == "1", "Triton reads it when it is imported"
    main(*map(int, sys.argv[1:]))
