"""How an operator reaches torch. Almost all use of torch's internals is in this folder.

* `functorch` and `fallback` are the two dispatches; `signature` makes the ``apply`` of both.
* `rules` checks the arguments and results of the author's rules, `derivatives` prepares ``vjp`` and ``jvp`` for the engine.
* `state` tells what torch is doing; `forward_marks` and `compile_cache` hold what an author may declare; `nodes` makes nodes of
  graphs; `trees` maps structures.
* `in_place` has `repeatable`, a context for code that writes in place, which a tracer records.
* `unknown` compares sizes and numbers that depend on data.
* `inference` has the transforms of torch 2.11 leave inference mode, as later ones do.
* `overrides` makes the public functions honor ``__torch_function__``, `jagged` makes them take nested tensors.
* `distributed` runs operators on torch's distributed tensors; it is imported on the first one. `split_rows` has the sums of rows
  that several ranks share.
* `interception` and `graph_calls` catch the calls of other packages' Functions, in eager and in compiled code.
* `torch_private` has torch's private names.
"""

from typing import Any

from fullgrad._dispatch import fallback, functorch
from fullgrad._dispatch.compile_cache import recomputed
from fullgrad._dispatch.forward_marks import alias, is_identity, pure, saves_nothing
from fullgrad._dispatch.graph_calls import catch_in_graphs
from fullgrad._dispatch.in_place import renew_written, repair_folded, repeatable
from fullgrad._dispatch.inference import outside_inference_mode, refuse_lost_derivatives, vjp
from fullgrad._dispatch.interception import (
    call_operator,
    catcher,
    intercept,
    intercept_checkpoints,
    intercept_functions,
    intercept_operators,
    may_be_differentiated,
    operator_value,
    torch_function,
)
from fullgrad._dispatch.jagged import is_jagged, of_one_instance, uses_last_dims
from fullgrad._dispatch.nodes import effect, is_traced, opaque
from fullgrad._dispatch.overrides import (
    Moving,
    check_devices,
    is_override,
    make_overridable,
    overrides_in,
    overrides_nothing,
    unscriptable,
    without_question,
)
from fullgrad._dispatch.rules import Rules, VmapInfo, in_place_message
from fullgrad._dispatch.split_rows import (
    finite_extremes,
    of_parts,
    of_ranks,
    ranks_before,
    row_largest,
    row_length,
    row_sum,
    row_totals,
    rows_are_split,
)
from fullgrad._dispatch.state import (
    active_transforms,
    any_distributed,
    are_differentiated,
    can_look,
    can_read_numbers,
    can_reuse_buffers,
    can_skip_autograd,
    can_view_bits,
    clone_if_view,
    drawing_as_before,
    forward_mode_is_on,
    has_data,
    has_tangent,
    in_legacy_vmap,
    is_differentiating,
    is_distributed,
    is_tracing,
    is_unrecorded,
    legacy_detach,
    tangent_levels,
    unwrap_legacy_batched,
    vmaps_share_draws,
    vmaps_that_draw_differently,
    with_memory,
)
from fullgrad._dispatch.state import current as current
from fullgrad._dispatch.state import watchers as watchers
from fullgrad._dispatch.torch_private import (
    DISPATCH,
    LOST,
    MISSING,
    RNN_REFRESH,
    RNN_WEIGHTS,
    STAYS_IN_INFERENCE_MODE,
    FakeTensorMode,
    SingleLevelFunction,
    TorchDispatchMode,
    add_legacy_dim,
    alone_at_level,
    becomes_writable,
    below_transforms,
    chunked_losses,
    compile_again,
    counted_jvps,
    current_level,
    defined_operator,
    dirichlet_function,
    dynamo_is_imported,
    first_sample,
    flex_attention_by,
    forget_kernels,
    forget_rules,
    get_unwrapped,
    give_rnn_weights,
    guard_on,
    has_ended,
    innermost,
    is_alias_of,
    is_batched,
    is_below_autograd,
    is_compiling,
    is_computed_since,
    is_exporting,
    is_forward_mode,
    is_operator,
    is_recorded,
    is_wrapped,
    is_wrapper_subclass,
    is_zero_tensor,
    leaf_of,
    leave_to_python,
    level_of,
    make_dual,
    makes_constants,
    mark_for_dynamo,
    of_each_sample,
    onnx_opset,
    operator_database,
    operator_names,
    operator_of_class,
    output_metadata,
    outside_dynamo,
    outside_dynamo_later,
    outside_legacy_vmap,
    outside_saved_tensor_hooks,
    overload_of,
    place_of_operator,
    preserved_keys,
    pytree,
    records_in_place,
    registered_autograd,
    release_guards,
    replace_higher_order,
    require_grad,
    requires_grad_at,
    retains_graph,
    rnn_names,
    running_backward,
    sees_functions,
    sequence_number,
    set_forward_mode,
    single_level,
    stop_graph_caches,
    symbolic_zeros,
    take_rnn_weights,
    torch_kernel,
    traced_below,
    traced_class,
    transforms_active,
    transforms_are_hidden,
    transforms_module,
    unpack_dual,
    unpacked,
    unseen_by_dynamo,
    usual_keys,
    vmap_module,
    with_one_sample,
    without_modes,
    without_samples,
    wrapper_tensor,
    writable,
)
from fullgrad._dispatch.trees import ordered, tree_map_pairs, tree_map_with_path
from fullgrad._dispatch.unknown import (
    at_least,
    has_shape,
    holds,
    is_float,
    is_known,
    number_or_tensor,
    perhaps,
    same_shape,
    square_root,
    surely,
)

connect = functorch.connect if DISPATCH == "functorch" else fallback.connect


def distributed_module() -> Any:
    """The module `distributed`, imported late: it imports torch.distributed.tensor, which takes a second."""
    from fullgrad._dispatch import distributed

    return distributed


Rules.run_distributed = lambda rules, args: distributed_module().run(rules, args)
