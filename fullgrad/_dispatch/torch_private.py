"""The private names of torch that fullgrad uses: why no public name will do, and what happens when a name is gone.

* `_required`: without the name forward mode would be silently zero, so the import of fullgrad fails and says so.
* `_functorch`: without the name the fallback is used (`fullgrad._dispatch.fallback`), slower but as right; `MISSING` lists it.
* `_optional`: without the name a safe default is used and something small is lost; `LOST` says what.

``tests/dispatch/test_fallback.py`` reports all three.
"""

import contextlib
import functools
import importlib.abc
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch._functorch.config
import torch._guards
import torch._library.autograd
import torch._library.custom_ops
import torch._ops
import torch._subclasses
import torch.fx.traceback
import torch.nested._internal.nested_tensor
import torch.utils._device
import torch.utils._python_dispatch
import torch.utils._pytree
from torch import Tensor

MISSING: list[str] = []
LOST: dict[str, str] = {}


def _look_up(path: str) -> Any:
    """The object at a dotted path below ``torch``, or None."""
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _required(path: str) -> Any:
    found = _look_up(path)
    if found is None:
        raise ImportError(
            f"fullgrad cannot be right on torch {torch.__version__}: torch.{path} is gone, and without it forward "
            "mode over a custom derivative is silently zero. Please open an issue on fullgrad and name your torch version."
        )
    return found


def _functorch(path: str, *methods: str) -> Any:
    """The object at a path, whose missing methods are listed too."""
    found = _look_up(path)
    if found is None:
        MISSING.append(f"torch.{path}")
    MISSING.extend(f"torch.{path}.{name}" for name in methods if found is not None and not hasattr(found, name))
    return found


def _optional(path: str, default: Any, lost: str) -> Any:
    found = _look_up(path)
    if found is None:
        LOST[f"torch.{path}"] = lost
        return default
    return found


# --- Names that both dispatches need --------------------------------------------------------------------------------------

# Whether any torch.func transform is active, which decides between the plain call and the dispatch under transforms.
transforms_active = _required("_C._are_functorch_transforms_active")

# Autograd calls a Function's jvp with forward mode switched off. Under nested forward mode the rule itself has to be
# differentiated, so it is switched on again (https://github.com/pytorch/pytorch/issues/197867).
set_forward_mode = _required("_C._set_fwd_grad_enabled")
is_forward_mode = _required("_C._is_fwd_grad_enabled")

# Saved tensors still carry the tangent of the level that is being differentiated; its primal is needed. The public
# `forward_ad.unpack_dual` reads a level kept in Python that compiled code does not set.
unpack_dual = _required("_VF._unpack_dual")

# The function by which torch's transforms leave inference mode. Without it, as in torch 2.11, they stay in it.
STAYS_IN_INFERENCE_MODE: bool = _look_up("_functorch.eager_transforms._disable_inference_mode") is None

# --- Names of the functorch dispatch --------------------------------------------------------------------------------------

# The interpreter stack: which transform is on top, and how to step below it. torch's own dispatch of Functions
# (`custom_function_call`) does the same through pytrees and one new class per call.
peek = _functorch("_C._functorch.peek_interpreter_stack")
pop = _functorch("_C._functorch.pop_dynamic_layer_stack")
push = _functorch("_C._functorch.push_dynamic_layer_stack")
TransformType = _functorch("_C._functorch.TransformType", "Grad", "Jvp", "Vmap", "Functionalize")
RandomnessType = _functorch("_C._functorch.RandomnessType", "__members__")
_functorch("_C._functorch.CInterpreter", "key", "level")
GradInterpreter = _functorch("_C._functorch.CGradInterpreterPtr", "lift", "prevGradMode")
JvpInterpreter = _functorch("_C._functorch.CJvpInterpreterPtr", "lift", "prevFwdGradMode")
VmapInterpreter = _functorch("_C._functorch.CVmapInterpreterPtr", "level", "batchSize", "randomness")
FunctionalizeInterpreter = _functorch("_C._functorch.CFunctionalizeInterpreterPtr", "level", "functionalizeAddBackViews")

# Between a tensor of one level and the tensor that it wraps.
unwrap_for_grad = _functorch("_C._functorch._unwrap_for_grad")
wrap_for_grad = _functorch("_C._functorch._wrap_for_grad")
unwrap_batched = _functorch("_C._functorch._unwrap_batched")
add_batch_dim = _functorch("_C._functorch._add_batch_dim")
unwrap_functional = _functorch("_C._functorch._unwrap_functional_tensor")
wrap_functional = _functorch("_C._functorch._wrap_functional_tensor")
is_functional = _functorch("_is_functional_tensor")
sync = _functorch("_sync")

# A function returned by torch.func.vjp sees tensors whose level has ended. torch's operators unwrap them, Functions do not.
unwrap_if_dead = _functorch("_C._functorch.unwrap_if_dead")

# A Function that differentiates at one level only, which is what a transform needs, and the switch that permits its use.
SingleLevelFunction = _functorch("autograd.function._SingleLevelFunction")
get_single_level = _functorch("_C._functorch.get_single_level_autograd_function_allowed")
set_single_level = _functorch("_C._functorch.set_single_level_autograd_function_allowed")

# The grad mode without the context manager, which costs more than a small operation.
set_grad = _functorch("_C._set_grad_enabled")

# The public Function.apply binds an `inspect.signature` at every call of a Function that has a setup_context: 7 of 10 us.
_FunctionBase = _functorch("_C._FunctionBase", "apply")

# The class per Function that the engine runs in the backward; its two methods look the rules up at each call.
_functorch("autograd.Function._backward_cls", "apply", "apply_jvp", "mark_dirty", "save_for_forward")

DISPATCH: str = "fallback" if MISSING or os.environ.get("FULLGRAD_DISPATCH") == "fallback" else "functorch"

# Since torch 2.15 the C code of apply unwraps the tensors of ended levels itself.
APPLY_UNWRAPS: bool = (
    _FunctionBase is not None and torch.autograd.Function.__dict__.get("apply") is _FunctionBase.__dict__["apply"]
)


def bind_apply(function: Any, backward: Any, jvp: Any, methods: Mapping[str, Any]) -> Any:
    """``function.apply`` from C, with the rules called by the engine directly, without torch's Python code in between.

    ``backward`` makes the backward, given a function that installs a later one. ``methods`` replace methods of ``ctx``.
    """
    context = function._backward_cls
    context.apply, context.apply_jvp = backward(functools.partial(setattr, context, "apply")), jvp
    for name, method in methods.items():
        setattr(context, name, method)
    return _FunctionBase.__dict__["apply"].__get__(None, function)


# --- Names with a safe default: eager state -------------------------------------------------------------------------------


class _UnknownLevel:
    """A stand-in for `forward_ad` without a level: one may always be open."""

    _current_level = 0


# Whether eager code is inside `forward_ad.dual_level()`: its `_current_level` is not negative. It has no public name.
forward_ad: Any = torch.autograd.forward_ad
if _optional("autograd.forward_ad._current_level", None, "operators without a gradient are slower") is None:
    forward_ad = _UnknownLevel

# Which transforms are active, outermost first: torch.export of a vmap is right, of a derivative it is not.
interpreters = _optional("_C._functorch.get_interpreter_stack", None, "torch.export of a vmap is refused")

# How many dispatch modes are on: a tracer is one of them. In-place operations that a tracer records are run again and again on
# what torch.func.linearize treats as constants, a silently wrong second call.
dispatch_modes = _optional("_C._len_torch_dispatch_stack", lambda: 1, "temporaries are not reused, scales take the graph's way")

# Forward mode requires that the tangent of a view has the view's layout; that of another output may have any.
is_view = _optional("Tensor._is_view", lambda tensor: True, "outputs that are no view are copied")

# A backward whose graph is not retained frees what the operator has kept, as torch frees what was saved.
retains_graph = _optional(
    "_C._autograd._get_current_graph_task_keep_graph", lambda: True, "memory of a completed operator stays until its graph goes"
)

# Which backward is running: one that a hook runs inside of another has a number of its own.
running_backward = _optional(
    "_C._current_graph_task_id",
    lambda: 0,
    "`per_sample` counts weights twice where a hook of the loss differentiates through them",
)

# Forward mode has zeros without memory, which torch's own operators take. Code of users may read memory, at their address 0.
is_zero_tensor = _optional("Tensor._is_zerotensor", lambda tensor: False, "a kernel of users may get zeros without memory")

# Their products with a number are such zeros, too, which torch has no public name for.
symbolic_zeros = _optional("_efficientzerotensor", torch.zeros, "zeros that have memory take time, and are as right")

# A symbolic zero may become a tensor with memory only if no view shares its storage: the view would not follow.
_uses_of_storage = _optional("_C._storage_Use_Count", None, "torch's formulas of some tangents raise, as outside of completing")

# A tracer's tensors without numbers: AOTAutograd wraps one in the other.
_NO_NUMBERS = "a pair may hold a tensor without data, whose reading fails with torch's words"
FakeTensor = _optional("_subclasses.FakeTensor", (), _NO_NUMBERS)
FunctionalTensor = _optional("_subclasses.functional_tensor.FunctionalTensor", (), _NO_NUMBERS)

# torch.autograd.grad(is_grads_batched=True) still uses torch's legacy vmap, which the interpreter stack does not show. A thread
# inside it has its dispatch key. Autograd's thread of a device gets the keys of the caller, but not the level.
_LEGACY_VMAP = "is_grads_batched cannot be tracked: what reuses buffers raises there"
is_legacy_batched = _optional("_C._functorch.is_legacy_batchedtensor", lambda tensor: False, _LEGACY_VMAP)
_key_is_included = _optional("_C._dispatch_tls_is_dispatch_key_included", lambda key: False, _LEGACY_VMAP)
_include_key = _optional("_C._dispatch_tls_set_dispatch_key_included", None, _LEGACY_VMAP)
_VMAP_MODE = _optional("_C._parse_dispatch_key", lambda name: None, _LEGACY_VMAP)("VmapMode")
_enter_legacy_vmap = _optional("_C._vmapmode_increment_nesting", None, _LEGACY_VMAP)
_leave_legacy_vmap = _optional("_C._vmapmode_decrement_nesting", None, _LEGACY_VMAP)
_remove_legacy_dim = _optional("_remove_batch_dim", None, _LEGACY_VMAP)
_add_legacy_dim = _optional("_add_batch_dim", None, _LEGACY_VMAP)


# Whether torch's legacy vmap is active in this thread: on the hot path.
in_legacy_vmap: Callable[[], bool] = functools.partial(_key_is_included, _VMAP_MODE)


# Whether `vmap` takes views of the bits of numbers; in torch 2.11 it raises.
batches_views_of_bits = _optional("_C._dispatch_has_kernel_for_dispatch_key", lambda *names: True, "vmap of bits may raise")(
    "aten::view.dtype", "FuncTorchBatched"
)


def remove_legacy_dim(tensor: Tensor) -> Tensor:
    """A tensor of the innermost legacy vmap with its batch as dim 0."""
    return _remove_legacy_dim(tensor, _legacy_level() or 1, 1, 0)


def add_legacy_dim(tensor: Tensor) -> Tensor:
    """A tensor whose dim 0 is the batch of the innermost legacy vmap, as one of its samples."""
    return _add_legacy_dim(tensor, 0, _legacy_level() or 1)


@contextlib.contextmanager
def outside_legacy_vmap() -> Iterator[None]:
    """A context in which no legacy vmap is active."""
    level = _legacy_level()
    for _ in range(level):
        _leave_legacy_vmap()
    _include_key("VmapMode", False)
    try:
        yield
    finally:
        for _ in range(level):
            _enter_legacy_vmap()
        _include_key("VmapMode", True)


def _legacy_level() -> int:
    level = _enter_legacy_vmap() - 1
    _leave_legacy_vmap()
    if level == 0:  # a device's thread, which has no level; leaving removed its key
        _include_key("VmapMode", True)
    return level


# `FunctionCtx.mark_dirty` leaves its tensors there; the fallback refuses them, as the functorch dispatch refuses the call.
_optional("_C._FunctionBase.dirty_tensors", None, "in the fallback an operator that changes its input fails with torch's words")


def dirty_tensors(ctx: Any) -> Any:
    """The tensors that ``setup_context`` has marked as dirty."""
    return getattr(ctx, "dirty_tensors", None)


def output_metadata(ctx: Any) -> Any:
    """Shape, dtype and device of each output of the call that made ``ctx``, which is a node of the graph; torch's own zeros for
    cotangents have them. They have no public name.
    """
    return ctx._input_metadata


# Whether torch.jit.trace is active; `torch.jit.is_tracing` says the same through two more calls.
jit_tracing_state = _optional("_C._get_tracing_state", lambda: None, "torch.jit.trace of an operator fails its own check")


def is_exporting() -> bool:
    """`torch.compiler.is_exporting`, which in torch 2.11 is true in all code that is compiled."""
    found = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.compiler.is_exporting() if found is None else found


def onnx_opset() -> int:
    """The version of operators that a running `torch.onnx.export` asks for, or 0. torch says that it runs, and its version stands
    in a frame of the exporter alone; a node of a later version would fail. Unknown is 0, with nodes of the first version.
    """
    exporter = sys.modules.get("torch.onnx._internal.exporter._compat")
    code = getattr(getattr(exporter, "export_compat", None), "__code__", None)
    if code is None or not torch.onnx.is_in_onnx_export():
        return 0
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            found = frame.f_locals.get("opset_version")
            return found if isinstance(found, int) else 0
        frame = frame.f_back
    return 0


# A method that torch.jit.script calls before it reads a function's source. Without it the error is torch's own.
SCRIPT_HOOK = "__prepare_scriptable__"

# The modes that override functions: `torch.set_default_device` is one, which affects only functions that create tensors.
_OVERRIDE = "a function of fullgrad is one function to every mode, `torch.set_default_device` included, and takes longer there"
_modes_are_on = _optional("_C._is_torch_function_mode_enabled", lambda: True, _OVERRIDE)
_count_of_modes = _optional("_C._len_torch_function_stack", lambda: 2, _OVERRIDE)
_mode_at = _optional("_C._get_function_stack_at", None, _OVERRIDE)
_DefaultDevice = _optional("utils._device.DeviceContext", (), _OVERRIDE)

# The ``__torch_function__`` of a type that opts out of overriding, such as `torch.nn.Parameter`.
no_torch_function = _optional("_C._disabled_torch_function_impl", None, "what opts out of overriding has results of its own type")


# Dynamo treats a tensor as overriding even where an override has switched that off.
subclasses_override = _optional(
    "_C._is_torch_function_enabled", lambda: True, "compiled code cannot call an override of a subclass"
)


def has_function_mode() -> bool:
    """Whether a mode overrides functions of torch that do not create tensors. The mode of the default device comes first."""
    return _modes_are_on() and (_count_of_modes() > 1 or not isinstance(_mode_at(0), _DefaultDevice))


def sees_functions(mode: Any) -> bool:
    """Whether a mode overrides functions of torch now: it steps aside while it handles one."""
    return _modes_are_on() and (_mode_at is None or any(_mode_at(i) is mode for i in range(_count_of_modes())))


# A jagged tensor from its buffer. torch's public function refuses to be traced, this one does not.
to_jagged = _optional(
    "nested._internal.nested_tensor.nested_view_from_values_offsets",
    torch.nested.nested_tensor_from_jagged,
    "some compiled operators of jagged tensors raise",
)

# --- Names with a safe default: dispatch keys -----------------------------------------------------------------------------

# A transform that runs a composite operator of torch.library, whose code may call ours, hides the dispatch keys of the
# transforms below. There is no public way to read or to set the keys of a thread.
_COMPOSITE = "an operator inside a composite torch.library operator raises under nested transforms"
_key_is_excluded = _optional("_C._dispatch_tls_is_dispatch_key_excluded", None, _COMPOSITE)
_excluded_keys = _optional("_C._dispatch_tls_local_exclude_set", None, _COMPOSITE)
_included_keys = _optional("_C._dispatch_tls_local_include_set", None, _COMPOSITE)
_ForceKeys = _optional("_C._ForceDispatchKeyGuard", None, _COMPOSITE)
_KeySet = _optional("_C.DispatchKeySet", None, _COMPOSITE)
_TRANSFORMS = _optional("_C.DispatchKey.FuncTorchDynamicLayerFrontMode", None, _COMPOSITE)
_KEYS: dict[str, Any] = _optional("_C.DispatchKey.__members__", {}, _COMPOSITE)
# Keys that code other than the transform may have switched off: autocast, and handlers written in Python.
_KEPT = [key for name, key in _KEYS.items() if name.startswith("Autocast") or name in ("Python", "PythonDispatcher")]


def transforms_are_hidden() -> bool:
    """Whether the keys of this thread hide the transforms on the stack from operators."""
    return _COMPOSITE not in LOST.values() and _key_is_excluded(_TRANSFORMS)


def restored_keys() -> Any:
    """A context with the dispatch keys that were in force outside of the composite operator."""
    included, excluded, kept = _included_keys(), _excluded_keys(), _KeySet(_TRANSFORMS).remove(_TRANSFORMS)
    for key in _KEPT:
        if excluded.has(key):
            kept = kept.add(key)
    return _ForceKeys(included, kept)


# Higher-order operators, such as `torch.cond`, trace their branches below autograd.
_AUTOGRAD = _optional("_C.DispatchKey.AutogradFunctionality", None, "an operator made of functions in torch.cond raises")


def is_below_autograd() -> bool:
    """Whether the keys of this thread hide autograd, as in inference mode."""
    return _AUTOGRAD is not None and _key_is_excluded is not None and _key_is_excluded(_AUTOGRAD)


_VIEWS = _optional("_C.DispatchKey.ADInplaceOrView", None, "a `torch.linspace` kept from before completing loses its derivative")


def makes_constants() -> bool:
    """Whether the keys of this thread are those of torch's functions in Python that make tensors without a graph."""
    return _VIEWS is not None and _key_is_excluded is not None and _key_is_excluded(_VIEWS)


def usual_keys() -> Any:
    """A context in which code of a custom operator may use autograd and transforms, whose keys torch hides from it."""
    return restored_keys() if _COMPOSITE not in LOST.values() else contextlib.nullcontext()


# --- Names with a safe default: hooks for saved tensors -------------------------------------------------------------------

# Inside saved-tensor hooks autograd would show them what code below an operator saves, and transforms refuse to work.
_HOOKS = "code below all transforms fails, or is seen, inside saved-tensor hooks"
_top_hooks = _optional("_C._autograd._top_saved_tensors_default_hooks", lambda _: None, _HOOKS)
_pop_hooks = _optional("_C._autograd._pop_saved_tensors_default_hooks", None, _HOOKS)
_push_hooks = _optional("_C._autograd._push_saved_tensors_default_hooks", None, _HOOKS)


@contextlib.contextmanager
def outside_saved_tensor_hooks() -> Iterator[None]:
    """A context in which autograd saves without the hooks of the user."""
    found = []
    while (hooks := _top_hooks(False)) is not None:
        found.append(hooks)
        _pop_hooks()
    try:
        yield
    finally:
        for hooks in reversed(found):
            _push_hooks(*hooks)


# --- Names with a safe default: distributed tensors -----------------------------------------------------------------------


def replicates_plain_tensors() -> bool:
    """Whether ``torch.distributed.tensor.experimental.implicit_replication()`` is on. torch has no public query, and the context
    switches the mode off at its end even if it was on before. Looked up late, since it needs torch.distributed.tensor.
    """
    dispatcher = getattr(sys.modules["torch.distributed.tensor"].DTensor, "_op_dispatcher", None)
    return getattr(dispatcher, "_allow_implicit_replication", False)


def distributed_tensor(local: Tensor, layout: Any, strides: tuple[Any, ...]) -> Tensor:
    """The distributed tensor without a gradient whose local tensor this is. torch's public `DTensor.from_local` describes the
    tensor anew at each call, in 30 us; the description of the first one is kept in ``layout.specs``.
    """
    kind = sys.modules["torch.distributed.tensor"].DTensor
    key = None if any(type(n) is not int for n in (*strides, *layout.shape)) else (local.dtype, strides)
    spec = layout.specs.get(key)
    if spec is not None:
        return kind(local, spec, requires_grad=False)
    whole = kind.from_local(local, layout.mesh, layout.shards, run_check=False, shape=layout.shape, stride=strides)
    if key is not None:
        layout.specs[key] = getattr(whole, "_spec", None)
    return whole


# --- Names with a safe default: compilation -------------------------------------------------------------------------------

# Notes that a tracer puts on each node of a graph, those of `torch.utils.checkpoint` among them.
_optional("fx.traceback.current_meta", None, "compiled backwards keep masks that they could compute again")


def node_notes() -> dict[str, Any]:
    """The notes for the nodes that are traced now; torch may replace the dict."""
    return getattr(torch.fx.traceback, "current_meta", {})


def mark_cacheable(functions: Mapping[str, str]) -> None:
    """Tell torch's cache of compiled graphs which functions may be in a graph, by name, and a key for the version of each.

    AOTAutograd does not cache a graph with an unknown function, so ours must be named in inductor's config. If inductor is not
    imported there is nothing to do. The config gets a new dict, since torch does not notice a change of the old one.
    """
    config: Any = sys.modules.get("torch._inductor.config")
    known = getattr(config, "unsafe_marked_cacheable_functions", None)
    if known is not None and not functions.items() <= known.items():
        config.unsafe_marked_cacheable_functions = {**known, **functions}


# torch.compiler's marks import torch._dynamo, which takes seconds. Dynamo reads the marks when it traces, so they are made at the
# end of its import, with which `torch.compile` begins: only code that compiles waits.
_DYNAMO = "torch._dynamo"
_marks: weakref.WeakKeyDictionary[Any, Callable[[Any], Any]] = weakref.WeakKeyDictionary()


def dynamo_is_imported() -> bool:
    """Whether Dynamo is imported; without it nothing is compiled."""
    return _DYNAMO in sys.modules


def mark_for_dynamo(mark: Callable[[Any], Any], function: Any) -> Any:
    """``mark(function)``, at once if Dynamo is imported, else at its import."""
    if dynamo_is_imported():
        return mark(function)
    if not any(isinstance(finder, _DynamoFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DynamoFinder())
    _marks[function] = mark
    return function


def is_recorded() -> bool:
    """Whether a tracer records calls in a graph, which makes them again. Other dispatch modes see a call once."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = getattr(module, "get_proxy_mode", lambda: module)
    return mode() is not None or jit_tracing_state() is not None


def recorded_graph() -> Any:
    """The graph of `torch.fx` in which operations are recorded as they are, with those that write in place; None without one."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = getattr(module, "get_proxy_mode", lambda: None)() if records_in_place() else None
    return getattr(getattr(mode, "tracer", None), "graph", None)


def written_by(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of an overload of an operator that it writes."""
    if not isinstance(op, operator_class) or not op._schema.is_mutable:
        return []
    of_names = {a.name: kwargs.get(a.name) for a in op._schema.arguments}
    of_names.update(zip(of_names, args, strict=False))
    return [of_names[a.name] for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def aliases_first(op: Any) -> bool:
    """Whether the result of an overload of an operator may be its first argument, or a view of it."""
    arguments = op._schema.arguments if isinstance(op, operator_class) else ()
    return bool(arguments) and arguments[0].alias_info is not None


_disabled = functools.cache(torch.compiler.disable)


def traced_below(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """A list of the function as compiled code calls it: one node, in and out of which any structure may go, and which AOTAutograd
    traces. Dynamo's `nonstrict_trace` makes it, once Dynamo is imported. Where the node is refused, the graph breaks and the
    function runs: Dynamo would then compile frame by frame of it, in which `is_tracing` would be true here and false there.
    """
    node = [function]

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        with counted_jvps():
            return function(*args, **kwargs)

    def mark(_: Any) -> None:
        node[0] = torch._dynamo.nonstrict_trace(_disabled(counted))

    mark_for_dynamo(mark, function)
    return node


transforms_module: Any = _optional(
    "_functorch.eager_transforms",
    SimpleNamespace(JVP_NESTING=0),
    "a jvp in a node of a compiled jvp may raise, and `linearize` inside completing is wrong for code that writes in place",
)


@contextlib.contextmanager
def counted_jvps() -> Iterator[None]:
    """A context in which torch counts all jvps that are active, and their dual level. It does so in Python, where the jvps of a
    graph that runs do not count, nor the level that `torch.func.linearize` or the user has opened: the next one would open a
    second level, which raises and leaves the first one open.
    """
    before = transforms_module.JVP_NESTING, forward_ad._current_level
    active = [i.key().name for i in (interpreters() if interpreters else None) or ()].count("Jvp") or int(before[1] >= 0)
    if active > before[0]:
        transforms_module.JVP_NESTING, forward_ad._current_level = active, max(0, before[1])
    try:
        yield
    finally:
        transforms_module.JVP_NESTING, forward_ad._current_level = before


def outside_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a graph break, and without compilation of its frames: Dynamo mistakes the ``ctx`` of an adopted class for
    torch's, and cannot read an integer of numpy.
    """
    return _disabled(function) if dynamo_is_imported() else function


def outside_dynamo_later(function: Callable[..., Any], reason: str | None = None) -> list[Callable[..., Any]]:
    """A list of the function as compiled code calls it, with a graph break, once Dynamo is imported; torch tells the reason."""
    found = [function]

    def mark(function: Any) -> None:
        found[0] = torch.compiler.disable(function, reason=reason)

    mark_for_dynamo(mark, function)
    return found


def unseen_by_dynamo(function: Callable[..., Any]) -> Any:
    """Decorator for a function that makes an operator: compiled code runs it, after a graph break. Dynamo would go on to compile
    each function below, `inspect` and `re` with them, which takes minutes and raises in torch.
    """
    found = outside_dynamo_later(function, "an operator is made: make it outside of compiled code")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return found[0](*args, **kwargs)

    return call


class _DynamoFinder(importlib.abc.MetaPathFinder):
    """Finds Dynamo through the other finders, and makes the waiting marks at the end of its import."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _DYNAMO:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_mark(module: Any) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                marks = [*_marks.items()]
                _marks.clear()
                for function, mark in marks:
                    mark(function)

            spec.loader.exec_module = execute_and_mark
        return spec


# An operator that a graph must keep and run in order although nothing uses its output, forward and backward.
ordered_effect = _optional("library.EffectType.ORDERED", None, "scale tracking inside torch.compile raises")

# --- Names with a safe default: structures and the kit --------------------------------------------------------------------

# Structures of tensors, as torch.func takes them. torch has no public name for its pytrees.
pytree: Any = torch.utils._pytree

# A tensor without memory, as curves are to torch: no public name makes one.
wrapper_tensor = _optional("Tensor._make_wrapper_subclass", None, "fullgrad.forward computes by nested jvp alone")

# Tensors without data for the kit; torch documents them under this name only.
FakeTensorMode = _optional("_subclasses.FakeTensorMode", None, "fullgrad.testing does not run")

# A context that restores the dispatch keys of a thread at its end.
preserved_keys = _optional("_C._PreserveDispatchKeyGuard", contextlib.nullcontext, "a failed trace may spoil the next check")


def release_guards(error: BaseException) -> None:
    """Clear the frames that an error keeps alive, without a change of the thread's dispatch keys.

    torch names tensors in its errors. Where it cannot print one, inside a transform, the guard in `torch._tensor_str._str` lives
    on in the error's frames. When garbage collection frees them in the middle of other work, the guard restores the keys of that
    transform: autograd is off from then on.
    """
    chain: list[BaseException | None] = [error]
    with preserved_keys():
        for one in chain:
            if one is not None:
                traceback.clear_frames(one.__traceback__)
                chain += [e for e in (one.__cause__, one.__context__) if e not in chain]


# The mode by which the kit measures the work of a backward, under the path that torch documents.
TorchDispatchMode = _optional("utils._python_dispatch.TorchDispatchMode", None, "fullgrad.testing does not run")

_DispatchMode: Any = TorchDispatchMode or object

# --- Names of `fullgrad.adopt` ----------------------------------------------------------------------------------------------

_ADOPT = "fullgrad.adopt is not available"

# The base of Function, and the function behind its classmethod `apply`: packages keep `SomeFunction.apply` in variables, where no
# attribute can be replaced, but the code of the function can. Since torch 2.15 `apply` is C code, which calls two functions.
function_module: Any = torch.autograd.function
# The two functions that the C code of `apply` calls since torch 2.15: one binds arguments, one dispatches in transforms.
bind_arguments: Any = getattr(function_module, "_bind_default_args", None)
call_in_transforms: Any = getattr(function_module, "_call_custom_function_call", None)

# Operators of torch.library: calls of `torch.ops` are two methods in Python, whose code is replaced like that of ``apply``, and
# what a package has registered for autograd is in no public place.
operator_class: Any = torch._ops.OpOverload
operator_packet: Any = torch._ops.OpOverloadPacket
higher_order_operator: Any = torch._ops.HigherOrderOperator
_OPERATORS = "operators of torch.library are not adopted"
_opdefs = _optional("_library.custom_ops.OPDEFS", {}, _OPERATORS)
_CustomOp = _optional("library.CustomOpDef", (), _OPERATORS)
_has_kernel = _optional("_C._dispatch_has_kernel_for_dispatch_key", lambda *names: True, _OPERATORS)
_resolve_packet = _optional("_C._jit_resolve_packet", None, _OPERATORS)
_all_operators = _optional("_C._dispatch_get_all_op_names", None, "names that `adopting` cannot find are not refused")
_AUTOGRAD_KEYS = ("Autograd", "AutogradCPU", "AutogradCUDA", "AutogradXPU", "AutogradMPS", "AutogradPrivateUse1", "AutogradOther")


def is_operator(value: Any) -> bool:
    """Whether a value is an operator of torch.library: a definition, an overload, or a packet of overloads."""
    return isinstance(value, (_CustomOp, operator_class, operator_packet))


def operator_names() -> list[str] | None:
    """The names of all registered operators, ``namespace.name``, which torch lists in no public place; None if it cannot tell."""
    return None if _all_operators is None else [name.replace("::", ".") for name in _all_operators()]


def overload_of(op: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
    """The overload that an operator's call means; None if torch has to say what is wrong with the arguments."""
    if isinstance(op, _CustomOp):
        return op._opoverload
    if isinstance(op, operator_class):
        return op
    names = op.overloads()
    if len(names) > 1:
        try:
            names = [_resolve_packet(op._qualified_op_name, *args, **kwargs or {}) or "default"]
        except RuntimeError:
            return None
    return getattr(op, names[0])


def defined_operator(overload: Any) -> Any:
    """The function that `torch.library.custom_op` made an operator of, if it did."""
    function: Any = getattr(_opdefs.get(overload._schema.name), "_init_fn", None)
    if getattr(function, "__module__", "") == "torch._library.triton":  # what `triton_op` puts around the function
        return dict(zip(function.__code__.co_freevars, [c.cell_contents for c in function.__closure__], strict=True)).get("fn")
    return function


class Registered(SimpleNamespace):
    """The rules of an operator of torch.library for autograd, ``setup_context`` and ``backward``; or how it lacks them."""

    setup_context = backward = None
    has_kernel = False  # a kernel for autograd of its own, which nobody can read
    is_composite = False  # operators that autograd differentiates


def registered_autograd(overload: Any) -> Registered:
    """The rules that are registered for an operator now."""
    name = overload._schema.name
    info = _opdefs.get(name) if overload._overloadname == "default" else None
    full = name if overload._overloadname == "default" else f"{name}.{overload._overloadname}"
    has_kernel = any(_has_kernel(full, key) for key in _AUTOGRAD_KEYS)
    if info is None and has_kernel and not _is_torch(name):
        info = _info_of(overload, full)
    if info is not None:
        return Registered(setup_context=info._setup_context_fn, backward=info._backward_fn)
    return Registered(has_kernel=has_kernel, is_composite=not has_kernel and _has_kernel(full, "CompositeImplicitAutograd"))


# The namespaces of torch itself, which has its own rules, or none, for what is in them.
_TORCH = frozenset(
    "_c10d_functional _c10d_functional_autograd _dtensor _quantized _test aoti_torch aten bucketing c10d c10d_functional "  # noqa: SIM905
    "compiled_autograd cuda debugprims export fsdp higher_order inductor mkl mkldnn mkldnn_prepacked mtia onednn prepacked prim "
    "prims profiler quantized quantized_decomposed rngprims sparse static_runtime streams symm_mem triton xnnpack".split()
)


def _is_torch(name: str) -> bool:
    return name.partition("::")[0] in _TORCH


def is_custom(overload: Any) -> bool:
    """Whether an operator is of another package than torch and fullgrad."""
    namespace = overload._schema.name.partition("::")[0]
    return namespace not in _TORCH and namespace != "fullgrad"


def operator_of_class(cls: Any) -> Any:
    """The operator for which torch has made a Function, whose class is that of a node; None of another class."""
    rule = cls.__dict__.get("backward")
    rule = rule.__func__ if isinstance(rule, staticmethod) else rule
    while rule is not None and getattr(rule, "__module__", "") == "torch._library.autograd":
        cells = dict(zip(rule.__code__.co_freevars, [c.cell_contents for c in rule.__closure__ or ()], strict=True))
        if "op" in cells:
            return cells["op"]
        rule = cells.get("orig_backward")
    return None


def place_of_operator(overload: Any) -> tuple[str, int]:
    """The file and the line where an operator is defined; an empty name where torch does not know."""
    function = defined_operator(overload)
    if function is not None and hasattr(function, "__code__"):
        return function.__code__.co_filename, function.__code__.co_firstlineno
    said = [line for line in _dump(overload._schema.name).splitlines() if line.startswith("debug: registered at ")]
    file, _, line = said[0].removeprefix("debug: registered at ").rpartition(":") if said else ("", "", "")
    return (file, int(line)) if line.isdigit() else ("", 0)


_infos: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_dump = _optional("_C._dispatch_dump", lambda name: "", _OPERATORS)


def _info_of(overload: Any, full: str) -> Any:
    """The rules that `torch.library.register_autograd` was given for an operator of a `torch.library.Library` or of C++.

    The kernel alone has it, in a variable. A kernel that is written in Python is called with tensors without numbers, and
    stopped where it would call the operator itself: its variables are then on the stack.
    """
    if overload not in _infos:
        kernels = [line for line in _dump(full).splitlines() if line.startswith("Autograd")]
        is_python = all(any(sign in line for sign in (".py:", "<string>:", "<stdin>:", "<ipython")) for line in kernels)
        _infos[overload] = below_transforms(lambda: _found_info(overload)) if is_python else None
    return _infos[overload]


def _found_info(overload: Any) -> Any:
    if TorchDispatchMode is None:
        return None
    arguments = overload._schema.arguments
    given = [_example(a) for a in arguments if not a.kwarg_only]
    named = {a.name: _example(a) for a in arguments if a.kwarg_only}
    mode = _Stopping()
    with contextlib.suppress(Exception), torch.inference_mode(False), torch.enable_grad(), mode:
        overload._op(*given, **named)
    return mode.info


class _Stop(Exception):
    """The end of a call that was made to look at its kernel."""


class _Stopping(_DispatchMode):
    """Stops a call below autograd, and keeps what its kernel has in the variable ``info``."""

    info: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports Dynamo, which takes seconds

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == torch._library.autograd.__file__ and "info" in frame.f_code.co_freevars:
                self.info = frame.f_locals["info"]
                raise _Stop
            frame = frame.f_back
        raise _Stop


def _example(argument: Any) -> Any:
    """A value for an argument of an operator: a tensor of no element, or what its type has."""
    kind = str(argument.type)
    if "Tensor" in kind:
        tensor = torch.empty(0, requires_grad=True)
        return [tensor] if kind.startswith("List") else tensor
    if argument.has_default_value():
        return argument.default_value
    values: dict[str, Any] = {"int": 0, "float": 0.0, "bool": False, "str": "", "number": 0}
    return values.get(kind, [] if kind.startswith("List") else None)


# A level that makes the C code of torch 2.15's `apply` dispatch, and that is left before anything runs: see `interception`.
_enter_vmap = _optional("_C._functorch._vmap_increment_nesting", None, _ADOPT)
leave_level = _optional("_C._functorch._vmap_decrement_nesting", None, _ADOPT)


def enter_level(size: int = 1, randomness: str = "error") -> None:
    """Enter a ``vmap``, in which nothing is batched, until `leave_level`."""
    _enter_vmap(size, randomness)


# A class may save what it needs only where an input requires a gradient; inside a transform torch refuses the attribute.
_is_requires_grad_allowed = _optional("_C._functorch.get_inplace_requires_grad_allowed", None, _ADOPT)
_allow_requires_grad = _optional("_C._functorch.set_inplace_requires_grad_allowed", None, _ADOPT)

# Whether a tensor belongs to a transform, whether that transform is a vmap, and the tensor inside.
_level = _optional("_C._functorch.maybe_get_level", None, "tensors that a function closes over are not converted")
is_wrapped = _optional("_C._functorch.is_functorch_wrapped_tensor", None, _ADOPT)
is_batched = _optional("_C._functorch.is_batchedtensor", None, _ADOPT)
get_unwrapped = _optional("_C._functorch.get_unwrapped", None, _ADOPT)
_batch_dim = _optional("_C._functorch.maybe_get_bdim", None, _ADOPT)

# Tensor subclasses in Python, which transforms do not see through, and the modes of a tracer.
is_wrapper_subclass = _optional("utils._python_dispatch.is_traceable_wrapper_subclass", None, _ADOPT)
without_modes = _optional("utils._python_dispatch._disable_current_modes", None, _ADOPT)

# A collective inside a transform works on plain tensors, whose memory it reads: the transform would wrap them.
without_transforms = _optional(
    "_C._DisableFuncTorch", contextlib.nullcontext, "noise of distributed tensors raises inside a transform"
)

# Autograd's symbolic zeros, which refuse in-place operations; and whether two tensors share memory.
_optional("Tensor._is_zerotensor", None, _ADOPT)
_is_alias_of = _optional("_C._is_alias_of", None, _ADOPT)


def is_alias_of(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors may share memory. Dynamo cannot tell."""
    return torch.compiler.is_dynamo_compiling() or _is_alias_of(one, other)


# Autograd numbers its nodes: whether a tensor was computed since a moment.
_CLOSURES = "a solver that differentiates by torch.func.grad takes its results for tensors that it closes over"
sequence_number = _optional("_C._autograd._get_sequence_nr", lambda: sys.maxsize, _CLOSURES)


def is_computed_since(number: int, tensor: Tensor) -> bool:
    """Whether a tensor with a gradient was computed since `sequence_number` gave a number, in this thread."""
    node = tensor.grad_fn
    # A node that no operation made has the largest number, as that of an input where AOTAutograd traces.
    return node is not None and number <= node._sequence_nr() < 2**64 - 1


def innermost(tensor: Tensor) -> Tensor:
    """The tensor below all transforms."""
    while is_wrapped(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def current_level() -> int:
    """The level of the innermost transform, 0 without one."""
    return peek().level() if transforms_active() and peek is not None else 0


def level_of(tensor: Tensor) -> int:
    """The level of the transform to which a tensor belongs, 0 without one or if it has ended."""
    return max(0, _level(tensor)) if _level is not None else 0


def has_ended(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a transform that has ended; torch refuses to compute with it."""
    return _level is not None and _level(tensor) < -1  # -1: of none


def requires_grad_at(tensor: Tensor, level: int) -> bool:
    """Whether a tensor requires a gradient at the level of a transform, or below all transforms, which is level 0."""
    while is_wrapped(tensor) and level_of(tensor) > level:
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad and level_of(tensor) == level


def first_sample(tensor: Tensor) -> Tensor:
    """The tensor below all transforms, of the first sample of each batch."""
    dims: list[int] = []
    while is_wrapped(tensor):
        if is_batched(tensor):
            dims.append(_batch_dim(tensor))
        tensor = get_unwrapped(tensor)
    for dim in reversed(dims):  # a dimension of a batch does not count those of outer transforms
        # Of an empty batch, zeros.
        tensor = tensor.select(dim, 0) if tensor.shape[dim] else tensor.new_zeros([*tensor.shape[:dim], *tensor.shape[dim + 1 :]])
    return tensor.detach()


def below_transforms(function: Callable[[], Any]) -> Any:
    """``function()`` below all transforms, which it may use itself."""
    if pop is None or not transforms_active():
        return function()
    layer = pop()
    try:
        return below_transforms(function)
    finally:
        push(layer)


_neg_view = _optional("_neg_view", torch.neg, "a tangent of an imaginary part is not written through")
_without_key: Any = _optional(
    "_C._ExcludeDispatchKeyGuard", None, "vmap of imaginary parts of conjugates raises, as outside of completing"
)


def of_each_sample(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """A function of single elements that makes a view of a tensor of a batch, in a kernel of `vmap`."""
    batched = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)
    with _without_key(batched):
        return add_batch_dim(function(get_unwrapped(tensor)), _batch_dim(tensor), level_of(tensor))


# Where `torch.func.vmap` calls its implementation, which has functions of the dimensions of a batch.
_NO_SAMPLES = "vmap over no samples raises for some operators, as outside of completing"
vmap_module: Any = _optional("_functorch.apis", None, _NO_SAMPLES)
_processed: Any = _optional("_functorch.vmap._process_batched_inputs", None, _NO_SAMPLES)
_leaves_of: Any = _optional("_functorch.vmap._broadcast_to_and_flatten", None, _NO_SAMPLES)


def with_one_sample(function: Callable[..., Any], in_dims: Any, args: Sequence[Any]) -> Sequence[Any] | None:
    """Arguments of `vmap` with a sample of ones, or of integers that are 0, if there is none; None if there are some."""
    size, dims, leaves, spec = _processed(in_dims, args, function)
    if size:
        return None

    def of_one(v: Any, dim: int | None) -> Any:
        if dim is None:
            return v
        fill = 1 if v.is_floating_point() or v.is_complex() else 0
        shape = list(v.shape)
        shape[dim] = 1
        return v.new_full(shape, fill)

    return pytree.tree_unflatten([of_one(v, dim) for v, dim in zip(leaves, dims, strict=True)], spec)


def without_samples(found: Any, out_dims: Any) -> Any:
    """Results of `vmap` without the samples."""
    leaves, spec = pytree.tree_flatten(found)
    dims = _leaves_of(out_dims, spec)
    return pytree.tree_unflatten([v if dim is None else v.narrow(dim, 0, 0) for v, dim in zip(leaves, dims, strict=True)], spec)


def becomes_writable(tensor: Tensor) -> bool:
    """Whether a symbolic zero, which no other tensor shares but the one that it is a view of, has become zeros with memory."""
    base = tensor._base if tensor._is_view() else None
    shared = [tensor] if base is None else [base, tensor]
    # These tensors, and the object here.
    if _uses_of_storage is None or _uses_of_storage(tensor.untyped_storage()._cdata) > len(shared) + 1:
        return False
    if not all(is_zero_tensor(v) for v in shared):
        return False
    places = [v.storage_offset() + 1 + sum((n - 1) * k for n, k in zip(v.shape, v.stride(), strict=True)) for v in shared]
    size = max(0, *[n * v.element_size() for n, v in zip(places, shared, strict=True)])
    memory = torch.zeros(-(-size // shared[0].element_size()), dtype=shared[0].dtype, device=tensor.device)
    for v in shared:
        own = memory.view(v.dtype).as_strided(v.shape, v.stride(), v.storage_offset())
        own = own.conj() if v.is_conj() else own
        v.data = _neg_view(own) if v.is_neg() else own
    return True


def writable(tensor: Tensor | None) -> Tensor | None:
    """The tensor, or a copy of a symbolic zero, which refuses in-place operations."""
    return tensor.clone() if tensor is not None and innermost(tensor)._is_zerotensor() else tensor


def leaf_of(tensor: Tensor) -> Tensor:
    """A leaf with the numbers of a tensor, which requires a gradient. Torch lets none of inference mode require one outside."""
    return (tensor.clone() if tensor.is_inference() else tensor.detach()).requires_grad_()


def require_grad(tensor: Tensor) -> None:
    """``tensor.requires_grad_()``, also inside a transform."""
    allowed = _is_requires_grad_allowed()
    _allow_requires_grad(True)
    try:
        tensor.requires_grad_()
    finally:
        _allow_requires_grad(allowed)


def traced_class() -> Any:
    """A context in which a tracer accepts the code of an adopted class: it may have sizes that depend on data and are not
    returned, and use tensors that it reaches through an object or a closure, which are constants of the graph.
    """
    mode = torch._guards.detect_fake_mode() if dispatch_modes() else None
    return contextlib.nullcontext() if mode is None else _lenient(mode)


_lift = torch.ops.aten.lift_fresh_copy.default
_LIFTS = (_lift, torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)


@contextlib.contextmanager
def _lenient(mode: Any) -> Iterator[None]:
    with mode.shape_env.ignore_fresh_unbacked_symbols() if mode.shape_env else contextlib.nullcontext(), _Lifting():
        try:
            yield
        except Exception as error:
            release_guards(error)
            raise


class _Lifting(_DispatchMode):
    """Lifts tensors with data to constants, as a tracer does with results of `torch.tensor`."""

    supports_higher_order_operators = True  # Triton kernels

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = args, kwargs or {}
        if operator not in _LIFTS:
            args, kwargs = pytree.tree_map_only(Tensor, self._lifted, (args, kwargs))
        return operator(*args, **kwargs)

    def _lifted(self, tensor: Tensor) -> Tensor:
        has_data = getattr(type(tensor), "__torch_dispatch__", None) is getattr(Tensor, "__torch_dispatch__", None)
        return _lift(tensor) if has_data else tensor


# AOTAutograd's tracer replaces in-place operations itself.
_functional_mode = _optional("_C._TorchDispatchModeKey.FUNCTIONAL", None, _ADOPT)
_dispatch_mode = _optional("_C._get_dispatch_mode", None, _ADOPT)


def records_in_place() -> bool:
    """Whether a tracer is on that records in-place operations as they are."""
    return dispatch_modes() > 0 and _dispatch_mode(_functional_mode) is None


_tracing_context = _optional(
    "_guards.TracingContext.try_get", lambda: None, "compiled code on torch 2.11 and 2.12 has eager formulas"
)


def _compiles_or_traces() -> bool:
    return torch.compiler.is_compiling() or _tracing_context() is not None


# torch 2.11 and 2.12 do not say that they compile while AOTAutograd traces what Dynamo found, and with it every rule.
_says_so = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
is_compiling = torch.compiler.is_compiling if _says_so else _compiles_or_traces


def dynamo_names() -> Any:
    """Dynamo's names for making nodes and guards, and the class whose method it calls for ``SomeFunction.apply``."""
    import torch._dynamo.exc
    import torch._dynamo.guards
    import torch._dynamo.source
    import torch._dynamo.symbolic_convert
    import torch._dynamo.trace_rules
    import torch._dynamo.variables.builder
    import torch._dynamo.variables.misc
    import torch._dynamo.variables.torch

    return SimpleNamespace(
        AttrSource=torch._dynamo.source.AttrSource,
        DictGetItemSource=torch._dynamo.source.DictGetItemSource,
        GetItemSource=torch._dynamo.source.GetItemSource,
        GlobalSource=torch._dynamo.source.GlobalSource,
        tracing=torch._dynamo.symbolic_convert.tls,
        AutogradFunctionVariable=torch._dynamo.variables.misc.AutogradFunctionVariable,
        GuardBuilder=torch._dynamo.guards.GuardBuilder,
        TorchInGraphFunctionVariable=torch._dynamo.variables.torch.TorchInGraphFunctionVariable,
        forget_rules=torch._dynamo.trace_rules.get_torch_obj_rule_map.cache_clear,
        install_guard=torch._dynamo.guards.install_guard,
        proxy_args_kwargs=torch._dynamo.utils.proxy_args_kwargs,
        reset_code_caches=torch._dynamo.reset_code_caches,
        unimplemented=torch._dynamo.exc.unimplemented,
        wrap_fx_proxy=torch._dynamo.variables.builder.wrap_fx_proxy,
    )


def guard_on(make: Callable[[], Any], attribute: str) -> None:
    """Guard the code that Dynamo traces, if it does, on the attribute of an object, which is made for that."""
    if not dynamo_is_imported():
        return
    names = dynamo_names()
    tx = getattr(names.tracing, "current_tx", None)
    if tx is not None:
        source = names.AttrSource(names.GlobalSource(tx.output.install_global_by_id("fullgrad_reads", make())), attribute)
        names.install_guard(source.make_guard(names.GuardBuilder.EQUALS_MATCH))


# --- Names for `completing` ------------------------------------------------------------------------------------------------


# torch enters the rules of batches that it has in Python at the first vmap, in place of those that are there.
_enter_batch_rules: Any = _optional(
    "_functorch.vmap.lazy_load_decompositions", lambda: None, "a gradient of smooth_l1_loss in a batch may lose NaN"
)


def torch_kernel(op: Any, key: str) -> Callable[..., Any]:
    """torch's own kernel of an operator at a dispatch key, a function of the set of keys and the arguments."""
    if key == "FuncTorchBatched":
        _enter_batch_rules()
    return torch.library.get_kernel(op, key).call_boxed


# torch.func refuses it, a Function of the old style: no transform takes samples of Dirichlet's and the beta distribution.
dirichlet_function: Any = _optional(
    "distributions.dirichlet._Dirichlet", None, "rsample of torch.distributions.Dirichlet and Beta raises inside of completing"
)


def chunked_losses() -> Any:
    """The module where torch has cross entropy by chunks, in custom operators that torch.func refuses, or None."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("torch.nn.modules.linear_cross_entropy")
    return None


# The public `forward_ad.make_dual` needs a level kept in Python, which transforms have but compiled code does not set.
make_dual = _required("_VF._make_dual")


def unpacked(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tensor without its tangent at the level that a kernel processes, and the tangent."""
    return unpack_dual(tensor, level=0)


def alone_at_level(tensor: Tensor) -> Tensor:
    """The tensor without a derivative at the level that a kernel processes, with those of the levels below."""
    if not is_wrapped(tensor) or unwrap_for_grad is None or wrap_for_grad is None:
        return tensor.detach()
    level = current_level()
    return wrap_for_grad(unwrap_for_grad(tensor, level), level)


@contextlib.contextmanager
def single_level() -> Iterator[None]:
    """Let a Function be applied that differentiates at the level that a kernel processes."""
    if get_single_level is None or set_single_level is None:
        yield
        return
    before = get_single_level()
    set_single_level(True)
    try:
        yield
    finally:
        set_single_level(before)


def operator_database() -> list[Any]:
    """torch's descriptions of its operators with samples of their inputs (OpInfo), which its own tests use."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


_frames = _optional("_C._dynamo.eval_frame", None, "Dynamo looks at kernels of ours that run between its graphs, and warns")


def leave_to_python(kernel: Callable[..., Any]) -> None:
    """Let Dynamo not look at a kernel that runs between its graphs. It cannot trace the call of torch's kernel, and warns."""
    if _frames is not None:
        strategy = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)
        _frames.set_code_exec_strategy(kernel.__code__, strategy)


def forget_kernels(changed: Sequence[Any]) -> None:
    """Forget the kernels that torch found for operators while it traced, as they are other ones now."""
    for op in changed:
        op._dispatch_cache.clear()


def compile_again() -> None:
    """Forget compiled code."""
    if dynamo_is_imported():
        dynamo_names().reset_code_caches()


def forget_rules() -> None:
    """Let Dynamo find torch's functions by their names again, where others are in their places or were."""
    if dynamo_is_imported():
        dynamo_names().forget_rules()


# torch's caches of graphs, on disk and elsewhere, whose keys know nothing of changed kernels. A setting holds for the thread that
# sets it (from torch 2.13 on), and not against an environment variable; what such a variable forces holds for all.
_CACHES = ("enable_autograd_cache", "enable_remote_autograd_cache")


def stop_graph_caches() -> Callable[[], None]:
    """Let no graph go to torch's caches, in no thread; the result makes it as it was."""
    config: Any = torch._functorch.config
    settings = [config._config[name] for name in _CACHES]
    before = [setting.env_value_force for setting in settings]
    for setting in settings:
        setting.env_value_force = False

    def start() -> None:
        for setting, value in zip(settings, before, strict=True):
            setting.env_value_force = value

    return start


_FLOW = "control flow and flex_attention are as in torch inside completing"


def python_functions() -> dict[str, Any]:
    """torch's functions in Python that call a compiler, which takes no tensors of transforms. Packages keep them in variables,
    where no attribute can be replaced, but their code can.
    """
    names = ("cond", "while_loop", "map", "scan", "associative_scan")
    found = {name: _optional(f"_higher_order_ops.{name}", None, _FLOW) for name in names}
    found["flex_attention"] = flex_attention_module().flex_attention
    return {name: function for name, function in found.items() if isinstance(function, FunctionType)}


def forget_signatures(functions: Sequence[Any]) -> None:
    """Forget the arguments that Dynamo has noted for functions, whose code is another one now."""
    noted = getattr(sys.modules.get("torch._dynamo.variables.functions"), "_spec_cache", None)
    if noted:
        for function in functions:
            noted.pop(function, None)


def flex_attention_module() -> Any:
    """The module of flexible attention, whose function checks arguments and then calls an operator by a compiler."""
    import torch.nn.attention.flex_attention

    return torch.nn.attention.flex_attention


@contextlib.contextmanager
def _no_compilation() -> Iterator[str]:
    yield "eager"


def flex_attention_by(function: Any, operator: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function with another operator, which is not compiled, and with gradients on every device."""
    names = dict(function.__globals__)
    checked = names["_validate_device"]

    def validate_device(*tensors: Tensor) -> None:
        checked(*[t.detach() for t in tensors])

    names.update(
        flex_attention_hop=operator,
        _validate_device=validate_device,
        _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=True,
        setup_compilation_env=_no_compilation,
    )
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def replace_higher_order(
    kernels: Mapping[str, Callable[..., Any]], is_on: Callable[[], bool], is_differentiated: Callable[[], bool]
) -> Callable[[], None]:
    """Give torch's higher-order operators, by name, other code, which is called where ``is_on`` says so: under transforms and, if
    ``is_differentiated`` says so, for autograd, whose tangents torch loses. The result takes it away again.
    """
    autograd = torch._C.DispatchKey.Autograd
    operators: list[Any] = [getattr(torch.ops.higher_order, name, None) for name in kernels]
    found = [(op, k) for op, k in zip(operators, kernels.values(), strict=True) if autograd in getattr(op, "py_kernels", {})]
    before = [(op, dict(op.functorch_table), op.py_kernels[autograd]) for op, _ in found]

    def under_transform(kernel: Callable[..., Any], own: dict[Any, Any], kind: Any) -> Callable[..., Any]:
        def rule(interpreter: Any, *args: Any, **kwargs: Any) -> Any:
            # Where torch has no rule this is torch's error, that of a missing key.
            return kernel(*args, **kwargs) if is_on() else own[kind](interpreter, *args, **kwargs)

        return rule

    def of_autograd(kernel: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (kernel if is_on() and is_differentiated() else own)(*args, **kwargs)

    for (op, kernel), (_, rules, own) in zip(found, before, strict=True):
        for kind in (TransformType.Grad, TransformType.Jvp, TransformType.Vmap):
            op.functorch_table[kind] = under_transform(kernel, rules, kind)
        op.py_kernels[autograd] = of_autograd(kernel, own)
    forget_kernels([op for op, _ in found])

    def undo() -> None:
        for op, rules, own in before:
            op.functorch_table = rules
            op.py_kernels[autograd] = own
        forget_kernels([op for op, _ in found])

    return undo


# --- Layers whose weights are quantized, `fullgrad.nn.quantize_` -------------------------------------------------------------

# torch's RNNs compute with a list of their weights, an attribute of the first name, which a method of the second brings up to
# date before each forward: it compares each weight with the one before. Where weights are quantized in each call, the list is a
# property of the class, and the method does nothing. Without the attribute `take_rnn_weights` raises.
RNN_WEIGHTS, RNN_REFRESH = "_flat_weights", "_update_flat_weights"


def rnn_names(layer: Any) -> list[str]:
    """The names of the weights of an RNN, in the order of its list."""
    return layer._flat_weights_names


def take_rnn_weights(layer: Any) -> None:
    """Take the list of weights from an RNN whose class will have it."""
    del layer.__dict__[RNN_WEIGHTS]


def give_rnn_weights(layer: Any) -> None:
    """Give an RNN the list of its weights."""
    setattr(layer, RNN_WEIGHTS, [getattr(layer, name, None) for name in rnn_names(layer)])
