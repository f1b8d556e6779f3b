"""`checkpoint`: a function whose derivative computes it again from its inputs."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from fullgrad._core import checks
from fullgrad._dispatch import current, is_differentiating, is_exporting, refuse_lost_derivatives, transforms_active
from fullgrad._engine.call import Call, Result
from fullgrad._engine.checks import check_result
from fullgrad._engine.closure import Closure
from fullgrad._engine.copies import frozen
from fullgrad._engine.differentiated import is_differentiated
from fullgrad._engine.operator import P, R, label_of
from fullgrad._engine.rule import apart, declared
from fullgrad._engine.transpose import recomputed
from fullgrad._engine.values import plain_values
from fullgrad._engine.watching import shown


def checkpoint(f: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    r"""A function that saves its inputs alone, and is computed again where its derivative is.

    .. math::
        y = f(x), \qquad D(x) = f'(x)

    of every order and under every transform, where `torch.utils.checkpoint.checkpoint` has ``backward`` alone: in a stack of
    blocks under ``vmap(grad(…))`` the inputs of the blocks are kept, and nothing between them. Saved: the tensors among the
    arguments, and those that ``f`` uses besides and that need a derivative, such as the parameters of its module.

    ``f`` draws the same random numbers again, and computes under the same autocast. Arguments and results are any structure. In
    compiled code it is `torch.utils.checkpoint.checkpoint`, and under a transform there ``f`` itself: the compiler decides what
    is kept.

    Args:
        f: A function or module, made of torch's operators. Its derivative calls it again, so it must not have other effects.
        args: Its arguments.
        kwargs: Its arguments by keyword.

    Returns:
        The result of ``f``.

    Raises:
        TypeError: ``f`` is not callable, or returns an array of floats, or floats without a tensor, where it is differentiated.
        RuntimeError: ``f`` changes an argument or a buffer in place, as a `torch.nn.BatchNorm1d` in training does; or it uses a
            tensor that needs a derivative in code that cannot be seen: as an argument of another package's Function, or of a
            transform.

    Example:
        >>> import torch, fullgrad
        >>> def block(x):
        ...     return torch.sin(x * x)
        >>> def loss(x):
        ...     return fullgrad.checkpoint(block, x).sum()
        >>> torch.func.vmap(torch.func.grad(loss))(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        tensor([[ 0.0000,  1.0806],
                [-2.6146, -5.4668]])

    Source: Chen, Xu, Zhang, Guestrin, https://arxiv.org/abs/1604.06174; ``torch.utils.checkpoint``, ``jax.checkpoint``.
    """
    checks.callables("checkpoint", f=f)
    if is_dynamo_compiling():  # torch's own knows no transforms, under which a compiler decides what is kept
        if transforms_active() or is_exporting():
            return f(*args, **kwargs)
        return torch_checkpoint(f, *args, use_reentrant=False, **kwargs)
    if current.curves or not is_differentiating():  # along a curve all that is computed is of a derivative, and kept
        return f(*args, **kwargs)
    name = label_of("checkpoint", f)
    refuse_lost_derivatives(name)
    call = Call([args, kwargs])
    closure = Closure(name, f, objects=call.objects())

    def run(function: Any, *tensors: Tensor) -> Result:
        return Result(call.run(lambda args, kwargs: function(*args, **kwargs), tensors), name)

    of_now = frozen(f)
    result, n = plain_values(closure, functools.partial(run, f), call.tensors), len(call.tensors)
    noted, captured = closure.release()
    inputs = [*call.release(), *noted]
    if not is_differentiated(inputs):
        return result.tree(shown(apart(result.release(), inputs)))
    check_result(name, result, is_plain=True)

    def again(*all: Tensor) -> list[Tensor]:
        results = captured.again(functools.partial(run, of_now), all[:n], all[n:]).tensors
        captured.replay.check(results)
        return results

    return result.tree(declared(recomputed(again), result.release(), inputs))
