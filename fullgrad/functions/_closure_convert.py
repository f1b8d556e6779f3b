"""`closure_convert`: a function without captured tensors, and these tensors."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core import checks
from fullgrad._engine.call import Call, Result
from fullgrad._engine.closure import Closure
from fullgrad._engine.copies import frozen
from fullgrad._engine.operator import label_of
from fullgrad._engine.values import plain_values


def closure_convert(f: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], list[Tensor]]:
    r"""A function whose captured tensors are arguments, and these tensors.

    .. math::
        g(x, t) = f_t(x), \qquad D(x, t) = \frac{\partial f_t(x)}{\partial (x, t)}

    For a custom rule about a function of somebody else: the tensors that ``f`` captures and that require a gradient, have a
    tangent, or belong to a transform, such as the parameters of a module, become arguments of g, so that a rule returns their
    gradients, too. Others stay as they are; that they stay the same is checked. ``f`` is called once to find the tensors.
    Saved: nothing; g is plain differentiable code.

    Args:
        f: A function of any structure of tensors, modules and constants, made of torch's operators.
        args: Example arguments, as ``f`` will get them.

    Returns:
        The pair ``(g, tensors)``: ``g(*args, *tensors)`` is ``f(*args)``, and draws the random numbers that the call for the
        example drew.

    Raises:
        TypeError: ``f`` is not callable.
        NotImplementedError: Compiled code calls it.
        RuntimeError: ``f`` changes an argument in place. When g is called: it captures a tensor that the first call did not use,
            or one that was changed in place since.

    Example:
        >>> import torch, fullgrad
        >>> scale = torch.tensor(3.0, requires_grad=True)
        >>> g, tensors = fullgrad.closure_convert(lambda x: scale * x, torch.tensor(2.0))
        >>> g(torch.tensor(2.0), *tensors)
        tensor(6., grad_fn=<MulBackward0>)
        >>> torch.func.grad(g, (0, 1))(torch.tensor(2.0), torch.tensor(5.0))
        (tensor(5.), tensor(2.))

    Source: ``jax.closure_convert``.
    """
    checks.callables("closure_convert", f=f)
    name = label_of("closure_convert", f)
    if is_dynamo_compiling():
        raise NotImplementedError(f"{name}: compiled code cannot look for captured tensors; call closure_convert outside of it.")
    call = Call(args)
    closure = Closure(name, f, objects=call.objects())

    def value(function: Any, *given: Tensor) -> Result:
        return Result(call.run(function, given), name)

    plain_values(closure, functools.partial(value, f), call.tensors)
    call.release()
    (tensors, captured), later, count = closure.release(), frozen(f), len(args)
    total = count + len(tensors)

    @functools.wraps(f)
    def converted(*args: Any) -> Any:
        if len(args) != total:
            raise TypeError(f"{name} takes {count} arguments and {total - count} captured tensors, got {len(args)} in all.")
        own = Call(args[:count])
        return captured.again(lambda *given: own.run(later, given), own.tensors, args[count:])

    return converted, tensors
