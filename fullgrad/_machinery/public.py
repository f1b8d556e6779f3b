"""The torch lane: an operator through the public ``torch.autograd.Function.apply``.

It is the fallback when a private name of the own lane is missing. Slower, and right in the same places but for
``torch.func.functionalize``, which torch refuses for every custom Function.
"""

from typing import Any

import torch
from torch import Tensor

from fullgrad._machinery import names
from fullgrad._machinery.rules import Apply, Rules

_SOURCE = """
def apply({parameters}):
    return __in_graph({arguments}) if __compiling() else __call(({arguments},))
"""


def connect(rules: Rules) -> Apply:
    """The operator's ``apply``."""
    twin: Any = type(
        rules.name,
        (torch.autograd.Function,),
        {
            "forward": staticmethod(rules.forward),
            "setup_context": staticmethod(rules.setup_context),
            "backward": staticmethod(rules.backward),
            "jvp": staticmethod(rules.jvp),
            "vmap": staticmethod(rules.vmap),
        },
    )

    def call(args: tuple[Any, ...]) -> Any:
        for a in args:
            if not isinstance(a, Tensor):
                rules.check_argument(a)
        if torch.compiler.is_exporting():
            return rules.export(args)
        if names.transforms_active() and not torch.is_grad_enabled():
            # torch switches grad mode on again for the levels below the first. Views made without it need no
            # gradient at any level and keep their tangents, which is what no_grad means for torch's own operators.
            args = tuple(a.view_as(a) if isinstance(a, Tensor) else a for a in args)
        return rules.restore(twin.apply(*args))

    namespace = {"__call": call, "__compiling": torch.compiler.is_dynamo_compiling, "__in_graph": rules.as_graph_node(call)}
    rules.write_out(_SOURCE, namespace)
    return namespace["apply"]
