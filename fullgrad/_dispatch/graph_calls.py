"""Calls of other packages' classes in compiled code: one that is caught is one node of the graph.

Dynamo traces into a Function, and below transforms it drops the rules. What `interception` catches it puts into the graph
instead, as a function that AOTAutograd traces with its rules.
"""

import functools
import inspect
from typing import Any

import torch

from fullgrad._dispatch.interception import catcher
from fullgrad._dispatch.torch_private import dynamo_names, mark_for_dynamo, transforms_active

_TorchFunction: Any = torch.autograd.Function


@functools.cache
def catch_in_graphs(module: str, *path: str) -> Any:
    """Teach Dynamo, now or as soon as it is imported. What it traces is guarded on a value: the attribute of a module."""

    def teach() -> None:
        names = dynamo_names()
        variable = names.AutogradFunctionVariable
        inline = variable.call_method

        def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name != "apply":
                return inline(self, tx, name, args, kwargs)
            source = functools.reduce(names.AttrSource, path, tx.import_source(module))
            names.install_guard(source.make_guard(names.GuardBuilder.EQUALS_MATCH))
            cls = self.fn_cls
            # Without transforms, Dynamo's own way is right for a class that it takes.
            needed = transforms_active() or cls.jvp is not _TorchFunction.jvp or inspect.ismethod(cls.forward)
            how = catcher.how(cls, needed)
            return inline(self, tx, name, args, kwargs) if how is None else _node(names, tx, cls, how, args, kwargs)

        variable.call_method = call_method
        names.reset_code_caches()  # code that was compiled before is not guarded

    mark_for_dynamo(lambda teach: teach(), teach)
    return teach  # the cache keeps it, `mark_for_dynamo` does not


def _node(names: Any, tx: Any, cls: Any, how: Any, args: Any, kwargs: Any) -> Any:
    """The call in the graph. Objects and functions among the arguments are part of the node, and guarded."""
    call, fixed = catcher.as_function(cls, how), {}
    for key, a in [*enumerate(args), *kwargs.items()]:
        value = a.value if hasattr(a, "value") else getattr(a, "fn", None)
        if value is not None and not _fits_into_graph(a):
            if a.source is not None:
                names.install_guard(a.source.make_guard(names.GuardBuilder.ID_MATCH))
            fixed[key] = value
    n, named = len(args), {k: v for k, v in fixed.items() if isinstance(k, str)}

    def node(*some: Any, **others: Any) -> Any:
        remaining = iter(some)
        return call(*[fixed[i] if i in fixed else next(remaining) for i in range(n)], **others, **named)

    node.__name__ = node.__qualname__ = call.__name__
    given = names.proxy_args_kwargs(
        [a for i, a in enumerate(args) if i not in fixed], {k: a for k, a in kwargs.items() if k not in fixed}
    )
    return names.wrap_fx_proxy(tx=tx, proxy=tx.output.create_proxy("call_function", node, *given))


def _fits_into_graph(variable: Any) -> bool:
    """Whether an argument is a tensor or a number, or a container of them."""
    try:
        proxy = variable.as_proxy()
    except NotImplementedError:
        return False
    return isinstance(proxy, torch.fx.Proxy) or not callable(proxy)
