"""torch's own operators whose derivatives are wrong or missing, where a source calls them by a name of torch."""

import ast
from collections import deque
from collections.abc import Iterable, Iterator

from fullgrad.audit._comments import is_ignored
from fullgrad.audit._sources import Tree, trees
from fullgrad.audit._values import values
from fullgrad.completion import operators

# What people call, by the operator that it comes to.
_CALLS = {
    "native_layer_norm": "layer_norm LayerNorm TransformerEncoderLayer TransformerDecoderLayer Transformer",
    "native_group_norm": "group_norm GroupNorm",
    "native_batch_norm": (
        "batch_norm BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm instance_norm InstanceNorm1d InstanceNorm2d InstanceNorm3d"
    ),
    "scaled_dot_product_attention": "scaled_dot_product_attention MultiheadAttention",
    "_linalg_det": "det logdet",
    "_linalg_slogdet": "slogdet",
    "_linalg_solve_ex": "solve solve_ex tensorsolve",
    "cholesky_inverse": "cholesky_inverse",
    "cholesky_solve": "cholesky_solve",
    "linalg_householder_product": "householder_product",
    "ormqr": "ormqr",
    "cumprod": "cumprod",
    "glu": "glu GLU",
    "hardsigmoid": "hardsigmoid Hardsigmoid",
    "huber_loss": "huber_loss HuberLoss",
    "soft_margin_loss": "soft_margin_loss SoftMarginLoss",
    "multi_margin_loss": "multi_margin_loss MultiMarginLoss",
    "multilabel_margin_loss_forward": "multilabel_margin_loss MultiLabelMarginLoss",
    "_cdist_forward": "cdist",
    "_pdist_forward": "pdist",
    "grid_sampler_2d": "grid_sample",
    "_embedding_bag": "embedding_bag EmbeddingBag",
    "scatter_reduce.two": "scatter_reduce",
    "index_reduce": "index_reduce",
    "segment_reduce": "segment_reduce",
    "lstm.input": "LSTM GRU RNN",
}
_OPERATOR = {name: operator for operator, names in _CALLS.items() for name in names.split()}
Found = dict[str, tuple[str, list[str]]]
_OWNERS = {"torch", "nn", "F", "functional", "linalg"}


def torch_operators(targets: Iterable[str]) -> Found:
    """The names under which sources call such operators, with what torch lacks and the places. Nothing is imported or run."""
    found: Found = {}
    for target in targets:
        for tree, label in trees(target):
            add_operators(tree, label, found)
    return found


def add_operators(tree: Tree, file: str, found: Found) -> None:
    """Add those that a module calls where a derivative goes through them."""
    lacking = operators()
    for name, call in _calls(tree.module):
        lacks = lacking.get(f"aten::{_OPERATOR[name]}")
        if lacks is not None and not is_ignored(tree.comments, "torch operator", call.lineno, call.end_lineno):
            found.setdefault(name, (lacks, []))[1].append(f"{file}:{call.lineno}")


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"
        for alias in node.names
    }
    for node in _walk_without(tree, values(tree)):
        if not isinstance(node, ast.Call):
            continue
        function, name = node.func, None
        if isinstance(function, ast.Name):
            name = imported.get(function.id)
        elif isinstance(function, ast.Attribute) and ast.unparse(function.value).rpartition(".")[2] in _OWNERS:
            name = function.attr
        if name in _OPERATOR:
            yield str(name), node


def _walk_without(tree: ast.Module, left_out: set[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a tree in the order of `ast.walk`, without some functions."""
    nodes: deque[ast.AST] = deque([tree])
    while nodes:
        node = nodes.popleft()
        yield node
        nodes += [child for child in ast.iter_child_nodes(node) if child not in left_out]
