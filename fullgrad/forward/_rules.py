"""How curves pass through functions: linear ones part by part, products by Leibniz, elementwise functions by Faa di Bruno, a few
by the rule of their tangents, and every other one by nested `torch.func.jvp` of the one call.

The tables name torch's functions. They make curves fast; a function that they lack is right without them.
"""

import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fullgrad._core.elementwise import Elementwise
from fullgrad._core.opmath import any_half, to_opmath
from fullgrad._dispatch import innermost, is_alias_of, without_question
from fullgrad.forward._curve import Call, Curve, Total, Unknown, computes, is_curve, is_floating, leaves_of, nested, of_each, part


@computes
def apply(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a function with curves among its arguments."""
    kind = getattr(func, "operator", None)
    if kind is not None or not _is_of_torch(func):
        call = Call(func, args, kwargs)
        if kind is Total:
            return _linear(call)
        is_elementwise = isinstance(kind, type) and issubclass(kind, Elementwise) and len(call.where) == 1
        return _elementwise(call) if is_elementwise else nested(call)
    name = func.__name__
    if name in ("__get__", "__set__"):
        return _attribute(func.__self__.__name__, name, *args)
    if name in _REVERSED:
        func, args = _REVERSED[name], args[::-1]
    elif name in _DUNDERS:
        func = _DUNDERS[name]
    if func.__name__ in _OF_PYTHON:
        return Call(func, args, kwargs).of(0)
    name = func.__name__.strip("_") if func.__name__.startswith("__") else func.__name__
    if name in _REFUSED or kwargs.get("out") is not None:
        raise Unknown(f"{name}: a value that moves along a curve has no such function.")
    if getattr(func, "__module__", None) == F.__name__ and _asks(func):
        return without_question(func)(*args, **kwargs)
    if args and name in _FORMULAS and (found := _FORMULAS[name](*args, **kwargs)) is not NotImplemented:
        return found
    if name.partition(".")[0].endswith("_"):
        name = name.partition(".")[0]  # of an overload of torch.ops.aten
    call = Call(func, args, kwargs, name)
    if not args:  # keywords have another order than the tables know
        return _other(call)
    if name == "setitem" or name.endswith("_"):
        return _in_place(call)
    if name in _CONSTANT:
        return call.of(0)
    if name in _LINEAR:
        return _linear(call)
    if name in _RULES and call.where == [0]:
        return _by_rule(call)
    if name in _MULTILINEAR:
        return _multilinear(call)
    is_elementwise = name in _ELEMENTWISE and len(call.where) == 1 and not call.known[0][0].dtype.is_complex
    return _elementwise(call) if is_elementwise else _other(call)


def _is_of_torch(func: Any) -> bool:
    module = getattr(func, "__module__", None) or "torch"
    return module.partition(".")[0] == "torch" and hasattr(func, "__name__")


def _attribute(name: str, access: str, curve: Any, *value: Any) -> Any:
    """An attribute of a tensor, which is that of the value, or a linear function."""
    if access == "__set__":
        raise Unknown(f"{name}: the attribute of a value that moves along a curve cannot be set.")
    if name == "real" and not curve.dtype.is_complex:  # itself, as of any tensor
        return curve
    if name in ("T", "mT", "H", "mH", "real", "imag"):
        return Curve([getattr(p, name) for p in curve.filled], curve.scope)
    return getattr(curve.known[0].detach() if name == "data" else curve.known[0], name)


def _asks(func: Any) -> bool:
    """Whether a function is written in Python and asks its arguments for overrides."""
    return any(n.startswith("has_torch_function") for n in getattr(getattr(func, "__code__", None), "co_names", ()))


# --- Rules ----------------------------------------------------------------------------------------------------------------


def _other(call: Call) -> Any:
    """A function that no table has. One that returns a view is linear, and each part is a view, which code may write into."""
    found = nested(call)
    curves = [v for v in leaves_of(found) if is_curve(v)]
    given = [_plain(known[0]) for known in call.known]
    is_view = bool(curves) and all(any(is_alias_of(_plain(v), x) for x in given) for v in curves)
    return _linear(call) if is_view else found


def _plain(value: Any) -> Tensor:
    """The value of curves in curves, below all transforms."""
    while is_curve(value):
        value = value.known[0]
    return innermost(value)


def _linear(call: Call) -> Any:
    """The function of every part; constants that it adds have no derivative."""
    value, adds = call.of(0), call.name in _ADDS
    if adds and len(call.where) == 1 and len(call.leaves) == 2 and value.shape == call.known[0][0].shape:
        change = torch.neg if call.name in ("sub", "subtract") and call.where == [1] else torch.clone
        return Curve([value, *of_each(lambda p: _like(change(p), value), call.known[0][1:])], call.scope)
    zeros = [torch.zeros_like(v) if is_floating(v) else 0 if adds and isinstance(v, Number) else v for v in call.leaves]
    if "alpha" in call.kwargs:
        zeros[-1 - list(reversed(call.kwargs)).index("alpha")] = call.kwargs["alpha"]
    # A view of zeros must be a view of those of its curve, which code may write into.
    may_view = call.name not in _SUMS
    moves = [may_view or any(known[k] is not None for known in call.known) for k in range(1, call.scope.order + 1)]
    found = [call.of(k, zeros) if m else None for k, m in enumerate(moves, 1)]
    return call.result([value, *[_like(y, value) if adds and y is not None else y for y in found]])


def _multilinear(call: Call) -> Any:
    """Leibniz' rule."""

    def derivative(k: int) -> Any:
        own, shared = [], []
        for orders in itertools.product(range(k + 1), repeat=len(call.known)):
            factors = [known[j] for known, j in zip(call.known, orders, strict=True)]
            if sum(orders) == k and all(f is not None for f in factors):
                ways = math.factorial(k) // math.prod(map(math.factorial, orders))
                term = call(factors)
                (shared if call.scope.shares(k) and max(orders) < k else own).append(term if ways == 1 else term * ways)
        return _sum(own + ([call.scope.total(_sum(shared))] if shared else []))

    return call.result([derivative(k) for k in range(call.scope.order + 1)])


def _elementwise(call: Call) -> Any:
    """Faa di Bruno's rule, with the derivatives of the function at the value."""
    (x,), scope = call.known, call.scope
    slopes, products = _slopes(call, x[0]), {}

    def derivative(k: int) -> Any:
        pairs = [(m, s, _bell(x, k, m, products)) for m, s in enumerate(slopes[1 : k + 1], 1) if s is not None]
        return _sum([s * (scope.total(b) if scope.shares(k) and m > 1 else b) for m, s, b in pairs if b is not None])

    return call.result([slopes[0], *[derivative(k) for k in range(1, scope.order + 1)]])


def _bell(x: Sequence[Any], k: int, m: int, products: dict[tuple[int, ...], Any]) -> Any:
    """The sum over the partitions of k elements into m sets; products of parts of x are computed once."""
    terms = []
    for sizes in [sizes for sizes in _sizes(k, m) if all(x[i] is not None for i in sizes)]:
        ways = math.factorial(k) // math.prod([math.factorial(i) ** n * math.factorial(n) for i, n in Counter(sizes).items()])
        term = _product(x, sizes, products)
        terms.append(term if ways == 1 else term * ways)
    return _sum(terms)


@functools.cache
def _sizes(k: int, m: int, least: int = 1) -> list[tuple[int, ...]]:
    """The sizes of m sets of k elements in all, ascending."""
    if m == 1:
        return [(k,)]
    return [(i, *rest) for i in range(least, k // m + 1) for rest in _sizes(k - i, m - 1, i)]


def _product(x: Sequence[Any], sizes: tuple[int, ...], products: dict[tuple[int, ...], Any]) -> Any:
    if len(sizes) == 1:
        return x[sizes[0]]
    if sizes not in products:
        products[sizes] = _product(x, sizes[:-1], products) * x[sizes[-1]]
    return products[sizes]


def _sum(terms: Sequence[Any]) -> Any:
    """The sum, None without terms."""
    return functools.reduce(operator.add, terms) if terms else None


def _slopes(call: Call, x: Any) -> list[Any]:
    """The function of one curve at x and its derivatives, by formula or by nested `jvp`; None from the first on that is 0."""
    order, constants = call.scope.order, call.leaves[1:]
    formula = None if hasattr(call.func, "operator") else _SLOPES.get(call.name)
    if formula is None or call.where != [0] or any(isinstance(c, Tensor) for c in constants):
        inner = call.scope.within(order)
        line = Curve([x, torch.ones_like(x), *[None] * (order - 1)], inner)
        found = nested(Call(lambda v: call([v]), [line], {}))
        return [part(found, k, inner) for k in range(order + 1)]
    found, (first, second) = [call([x])], formula
    found.append(first(x, found[0], *constants))
    if found[1] is not None and order > 1 and second is not None:
        found.append(second(x, found[0], found[1], *constants))
    while found[-1] is not None and len(found) <= order:  # that of order k + 1 is the derivative of order k of the first
        k = len(found) - 1
        scope = call.scope.within(k)
        moving = [x, torch.ones_like(x), *[None] * (k - 1)]
        s = first(Curve(moving, scope), Curve(found[: k + 1], scope), *constants)
        found.append(s.known[k] if is_curve(s) and s.scope is scope else None)
    return [*found, *[None] * (order + 1 - len(found))]


def _by_rule(call: Call) -> Any:
    """A function with a rule for tangents, y' = rule(x, y, x'): the curve of order k is that of order k - 1 of the rule."""
    (x,), scope = call.curves, call.scope
    rule = lambda *v: _RULES[call.name](*v, *call.args[1:], **call.kwargs)  # noqa: E731
    y = [call.of(0)]
    for k in range(1, scope.order + 1):
        within, shares = scope.within(k - 1), scope.shares(k) and k > 1
        if k == 1:
            found = rule(x[0], y[0], x[1])
        else:
            tangents = [*x[1:k], torch.zeros_like(x[0])] if shares else x[1 : k + 1]
            found = rule(Curve(x[:k], within), Curve(y, within), Curve(tangents, within)).filled[k - 1]
        y = [*y, scope.total(found) + rule(x[0], y[0], x[k]) if shares else found]
    return Curve([_like(p, y[0]) for p in y], scope)


def _in_place(call: Call) -> Any:
    target, name = call.args[0], call.name[:-1] if call.name != "setitem" else "setitem"
    if not (is_curve(target) and target.scope is call.scope):
        raise Unknown(f"{call.name}: a value that moves along a curve would be written into one that does not.")
    if name == "setitem":
        _, index, value = call.args
        for k, p in enumerate(target.filled):
            p[index] = part(value, k, call.scope)
        return None
    function = getattr(Tensor, name, None) or getattr(torch, name, None) or getattr(F, name, None)
    function = _WRITTEN.get(name, function)
    if function is None:
        raise Unknown(f"{call.name}: a value that moves along a curve has no such function.")
    # A derivative may keep what is read, which is written to.
    read = target if name in _LINEAR or name in _REBOUND else target.clone()
    value = function(*[read if a is target else a for a in call.args], **call.kwargs)
    parts = [part(value, k, call.scope) for k in range(call.scope.order + 1)]
    if name in _REBOUND:
        target.known = parts
        return target
    for p, given in zip(target.filled, parts, strict=True):  # in place, since the parts of a view are views
        p.copy_(given) if isinstance(given, Tensor) else p.fill_(given)
    return target


# --- Tables ---------------------------------------------------------------------------------------------------------------

# What a backward or a state needs, which a curve has not.
_REFUSED = {
    *("backward", "grad", "register_hook", "retain_grad", "requires_grad_", "set_", "resize_", "share_memory_"),
    *("_make_dual", "_unpack_dual"),
}
# What writes numbers that are not a function of what was there, and what makes a tensor another view of its memory.
_WRITTEN: dict[str, Any] = {
    **{"copy": lambda t, v, *_: v, "fill": lambda t, v: v, "zero": lambda t: 0},
    **dict.fromkeys(("requires_grad", "normal", "bernoulli")),
}
_REBOUND = {"t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze", "as_strided", "detach"}
_SIGNS = {"truediv": "div", "mod": "remainder", **{name: name for name in ("add", "sub", "mul", "div", "pow", "matmul")}}
_DUNDERS: dict[str, Any] = {f"__{name}__": getattr(Tensor, function) for name, function in _SIGNS.items()}
_DUNDERS |= {f"__i{name}__": getattr(Tensor, f"{f}_") for name, f in _SIGNS.items() if name != "matmul"}
_REVERSED: dict[str, Any] = {f"__r{name}__": getattr(torch, function) for name, function in _SIGNS.items()}


def _names(text: str) -> set[str]:
    return set(text.split())


_CONSTANT = _names(
    """lt le gt ge eq ne less greater equal not_equal less_equal greater_equal logical_and logical_or logical_xor
    logical_not isnan isinf isfinite isposinf isneginf isclose allclose argmax argmin argsort sign floor ceil round trunc
    heaviside detach zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_full new_empty
    new_tensor size dim numel nelement ndimension stride is_contiguous element_size is_floating_point is_complex
    is_same_size item tolist any all count_nonzero nonzero bernoulli get_device is_pinned is_tensor is_nonzero numpy
    dim_order storage_offset data_ptr untyped_storage result_type can_cast floor_divide long byte bool int short char"""
)
# Methods of Python, which see the value: x.float() is another function than float(x).
_OF_PYTHON = {f"__{name}__" for name in ("bool", "len", "int", "float", "index", "complex", "contains", "format", "array")}
_ADDS = {"add", "sub", "subtract", "where", "masked_fill"}  # numbers too
_SUMS = _ADDS | {"sum", "mean"}
_LINEAR = _SUMS | _names(
    """neg negative positive trace cumsum diff reshape view view_as reshape_as flatten unflatten ravel permute
    transpose t swapaxes swapdims movedim moveaxis squeeze unsqueeze expand expand_as broadcast_to repeat tile
    repeat_interleave cat concat concatenate stack hstack vstack dstack chunk split tensor_split unbind narrow select
    getitem index_select gather take_along_dim masked_select take roll flip fliplr flipud rot90 tril triu diag diagonal
    diag_embed diagflat contiguous clone to type type_as double float half bfloat16 cpu cuda real imag conj avg_pool1d avg_pool2d
    avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d pixel_shuffle pixel_unshuffle unfold fold
    upsample_bilinear2d upsample_nearest2d view_as_real view_as_complex fft_fft fft_ifft fft_rfft fft_irfft meshgrid
    broadcast_tensors scatter_add index_add embedding"""
)
_MULTILINEAR = _names(
    """mul multiply matmul mm bmm mv dot vdot inner outer ger kron cross tensordot einsum linear conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d"""
)


def _power(x: Any, y: Any, n: Any) -> Any:
    return None if n == 0 else torch.ones_like(x) if n == 1 else x ** (n - 1) * n


# The slope of a function of x whose value is y, and the second one, with the first one s, where it is short.
_SLOPES: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "exp": (lambda x, y: y, lambda x, y, s: y),
    "expm1": (lambda x, y: y + 1, lambda x, y, s: s),
    "log": (lambda x, y: x.reciprocal(), lambda x, y, s: -s * s),
    "log1p": (lambda x, y: (x + 1).reciprocal(), lambda x, y, s: -s * s),
    "sin": (lambda x, y: x.cos(), lambda x, y, s: -y),
    "cos": (lambda x, y: -x.sin(), lambda x, y, s: -y),
    "tan": (lambda x, y: y * y + 1, lambda x, y, s: 2 * y * s),
    "tanh": (lambda x, y: 1 - y * y, lambda x, y, s: -2 * y * s),
    "sinh": (lambda x, y: x.cosh(), lambda x, y, s: y.clone()),
    "cosh": (lambda x, y: x.sinh(), lambda x, y, s: y.clone()),
    "sigmoid": (lambda x, y: y * (1 - y), lambda x, y, s: s * (1 - 2 * y)),
    "silu": (lambda x, y: (s := x.sigmoid()) * (1 + x * (1 - s)), lambda x, y, s: (r := x.sigmoid()) * (1 - r) * (2 + x - 2 * y)),
    "erf": (lambda x, y: (-x * x).exp() * (2 / math.sqrt(math.pi)), lambda x, y, s: -2 * x * s),
    "sqrt": (lambda x, y: y.reciprocal() * 0.5, lambda x, y, s: -s / (2 * x)),
    "rsqrt": (lambda x, y: y * y * y * -0.5, None),
    "reciprocal": (lambda x, y: -y * y, lambda x, y, s: -2 * y * s),
    "square": (lambda x, y: x * 2, lambda x, y, s: torch.full_like(x, 2.0)),
    "pow": (_power, None),
    "relu": (lambda x, y: 1 - (x <= 0).to(x.dtype), lambda x, y, s: None),  # 1 at NaN, as torch's
    "abs": (lambda x, y: x.sign(), lambda x, y, s: None),
    "absolute": (lambda x, y: x.sign(), lambda x, y, s: None),
}
_ELEMENTWISE = set(_SLOPES) | _names(
    """asin acos atan asinh acosh atanh arcsin arccos arctan erfc erfinv lgamma digamma polygamma log2 log10 exp2 sinc logit
    gelu elu selu celu softplus log_sigmoid mish hardswish hardtanh leaky_relu relu6 threshold softshrink hardshrink clamp
    clip clamp_min clamp_max nan_to_num special_erf special_expit"""
)


def _softmax_tangent(x: Any, y: Any, v: Any, dim: Any = None, *_: Any, **__: Any) -> Any:
    return y * (v - (y * v).sum(dim, keepdim=True))


def _log_softmax_tangent(x: Any, y: Any, v: Any, dim: Any = None, *_: Any, **__: Any) -> Any:
    return v - (y.exp() * v).sum(dim, keepdim=True)


def _logsumexp_tangent(x: Any, y: Any, v: Any, dim: Any, keepdim: bool = False) -> Any:
    return (x.softmax(dim) * v).sum(dim, keepdim=keepdim) if isinstance(dim, int) else _many_logsumexp(x, v, dim, keepdim)


def _many_logsumexp(x: Any, v: Any, dim: Any, keepdim: bool) -> Any:
    return ((x - x.logsumexp(dim, True)).exp() * v).sum(dim, keepdim=keepdim)


# The rules for tangents v of functions of x whose value is y.
_RULES: dict[str, Callable[..., Any]] = {
    "softmax": _softmax_tangent,
    "log_softmax": _log_softmax_tangent,
    "logsumexp": _logsumexp_tangent,
    "inverse": lambda x, y, v: -(y @ v @ y),
    "linalg_inv": lambda x, y, v: -(y @ v @ y),
    "logdet": lambda x, y, v: (x.inverse().mT * v).sum((-1, -2)),
}


def _in_opmath(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A formula in float32 where torch's own kernel computes in it: squares and sums overflow in half precision."""

    @functools.wraps(formula)
    def rounded_once(*args: Any, **kwargs: Any) -> Any:
        if not any_half(*args, *kwargs.values()):
            return formula(*args, **kwargs)
        x = args[0]
        with torch.autocast(x.device.type, enabled=False):
            y = formula(*to_opmath(*args), **dict(zip(kwargs, to_opmath(*kwargs.values()), strict=True)))
            return y if y is NotImplemented else y.to(x.dtype)

    return rounded_once


@_in_opmath
def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        return NotImplemented
    logits = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is None:
        return F.dropout(logits.softmax(-1), dropout_p) @ value
    is_left_out = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask == -math.inf
    is_empty = is_left_out.all(-1, keepdim=True)  # of which torch's attention is 0
    logits = logits.masked_fill(is_left_out, -math.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
    weights = logits.masked_fill(is_empty, 0.0).softmax(-1).masked_fill(is_empty, 0.0)
    return F.dropout(weights, dropout_p) @ value


@_in_opmath
def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    dims = tuple(range(-len(normalized_shape), 0))
    centered = x - x.mean(dims, keepdim=True)
    y = centered * (centered.square().mean(dims, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return _like(y, x)  # also of weights of another dtype


@_in_opmath
def _norm(
    x: Any, p: Any = None, dim: Any = None, keepdim: bool = False, out: Any = None, dtype: Any = None, ord: Any = None
) -> Any:
    if p not in (None, 2, "fro") or ord not in (None, 2) or dtype is not None or x.is_complex():
        return NotImplemented
    square = (x * x).sum(dim, keepdim=keepdim)
    is_zero = square == 0  # torch's convention: the derivatives are 0 there
    return (square + is_zero.to(square.dtype)).sqrt().masked_fill(is_zero, 0.0)


def _biased(function: Any, dims: int = 0) -> tuple[str, Callable[..., Any]]:
    def formula(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
        if bias is None:
            return NotImplemented
        if not is_curve(weight) and not is_curve(bias):  # affine in x: one kernel for the value
            value = function(x.known[0], weight, bias, *args, **kwargs)
            others = of_each(lambda p: function(p, weight, None, *args, **kwargs), x.known[1:])
            first = next((y for y in others if y is not None), value)
            return Curve([_like(value, first), *others], x.scope)
        y = function(x, weight, None, *args, **kwargs)
        return y + _like(bias, y).reshape(-1, *[1] * dims)

    return function.__name__, formula


def _like(x: Any, y: Any) -> Any:
    """In the dtype of another tensor: torch's autocast leaves some functions out in a vmap."""
    return x if x.dtype == y.dtype else x.to(y.dtype)


def _bilinear(x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    result = torch.einsum("...i,oij,...j->...o", x, weight, y)
    return result if bias is None else result + bias


def _div(a: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    if rounding_mode is not None:
        return NotImplemented
    if is_curve(other) and (not is_curve(a) or a.scope.depth <= other.scope.depth):
        return a * other.reciprocal()
    return Curve(of_each(lambda p: p / other, a.known), a.scope)


def _pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return Curve([F.pad(x.known[0], pad, mode, value), *of_each(lambda p: F.pad(p, pad, mode), x.known[1:])], x.scope)


def _dropout(x: Any, p: float, train: bool) -> Any:
    return x * F.dropout(torch.ones_like(x), p) if train and p else x  # itself, as of any tensor


_FORMULAS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _attention,
    "layer_norm": _layer_norm,
    "div": _div,
    "divide": _div,
    "true_divide": _div,
    "dropout": _dropout,
    "norm": _norm,
    "linalg_vector_norm": lambda x, ord=None, *args, **more: _norm(x, ord, *args, **more),
    "linalg_norm": lambda x, ord=None, *args, **more: _norm(x, ord, *args, **more) if ord is None else NotImplemented,
    "pad": _pad,
    "iter": lambda x: iter(x.unbind(0)),
    "repr": repr,
    "deepcopy": lambda x, memo: x.clone(),
    **dict([_biased(F.linear), *[_biased(getattr(F, f"conv{t}{d}d"), d) for t in ("", "_transpose") for d in (1, 2, 3)]]),
    "bilinear": _bilinear,
}
