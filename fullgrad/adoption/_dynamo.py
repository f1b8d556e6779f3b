"""Compiled code: an adopted call as one node of the graph.

Dynamo traces into a Function, and below transforms it drops the rules. Where a scope is open it puts the adopted call into the
graph instead, which AOTAutograd traces with its rules. What it traces is guarded on what the scopes adopt.
"""

import functools
import inspect
from typing import Any

import torch

from fullgrad._dispatch import dynamo_names, mark_for_dynamo, transforms_active
from fullgrad.adoption import _scope

_TorchFunction: Any = torch.autograd.Function
operator_of: Any = None  # `fullgrad.adoption._adopt` fills it in


def as_node(function: Any) -> Any:
    """The function as one node, which Dynamo does not trace into."""
    return mark_for_dynamo(torch.compiler.allow_in_graph, function)


@functools.cache
def install() -> None:
    """Teach Dynamo to ask which classes are adopted, now or as soon as it is imported."""
    mark_for_dynamo(lambda teach: teach(), _teach)


def _teach() -> None:
    torch_names = dynamo_names()
    variable = torch_names.AutogradFunctionVariable
    inline = variable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name != "apply":
            return inline(self, tx, name, args, kwargs)
        source = torch_names.AttrSource(torch_names.AttrSource(tx.import_source(_scope.__name__), "state"), "key")
        torch_names.install_guard(source.make_guard(torch_names.GuardBuilder.EQUALS_MATCH))
        options, cls = _scope.options_for(self.fn_cls), self.fn_cls
        # Without transforms, Dynamo's own way is right for a class that it takes.
        needed = transforms_active() or cls.jvp is not _TorchFunction.jvp or inspect.ismethod(cls.forward)
        if options is None or not (needed or options.strict):
            return inline(self, tx, name, args, kwargs)
        return _node(torch_names, tx, cls, options, args, kwargs)

    variable.call_method = call_method
    torch_names.reset_code_caches()  # code that was compiled before is not guarded


def _node(torch_names: Any, tx: Any, cls: Any, options: Any, args: Any, kwargs: Any) -> Any:
    """The adopted call in the graph. Objects and functions among the arguments are part of the node, and guarded."""
    call, fixed = operator_of(cls, options), {}
    for key, a in [*enumerate(args), *kwargs.items()]:
        value = a.value if hasattr(a, "value") else getattr(a, "fn", None)
        if value is not None and not _fits_into_graph(a):
            if a.source is not None:
                torch_names.install_guard(a.source.make_guard(torch_names.GuardBuilder.ID_MATCH))
            fixed[key] = value
    n, named = len(args), {k: v for k, v in fixed.items() if isinstance(k, str)}

    def node(*some: Any, **others: Any) -> Any:
        remaining = iter(some)
        return call(*[fixed[i] if i in fixed else next(remaining) for i in range(n)], **others, **named)

    node.__name__ = node.__qualname__ = call.__name__
    given = torch_names.proxy_args_kwargs(
        [a for i, a in enumerate(args) if i not in fixed], {k: a for k, a in kwargs.items() if k not in fixed}
    )
    return torch_names.wrap_fx_proxy(tx=tx, proxy=tx.output.create_proxy("call_function", node, *given))


def _fits_into_graph(variable: Any) -> bool:
    """Whether an argument is a tensor or a number, or a container of them."""
    try:
        proxy = variable.as_proxy()
    except NotImplementedError:
        return False
    return isinstance(proxy, torch.fx.Proxy) or not callable(proxy)
