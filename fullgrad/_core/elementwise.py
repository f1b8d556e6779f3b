"""`Elementwise`: the base class of operators given by their partial derivatives."""

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fullgrad._core import pieces
from fullgrad._core.batching import check_elementwise, elementwise
from fullgrad._core.function import Function, check_static, saves_nothing
from fullgrad._core.generated import Generated, is_generated
from fullgrad._core.opmath import HALF, cast, to_opmath
from fullgrad._core.pieces import is_large, terms_in_pieces
from fullgrad._dispatch import Rules, is_tracing, same_shape, unseen_by_dynamo

__all__ = ["Elementwise"]


class Elementwise(Function):
    r"""An operator that treats every element alike and broadcasts its inputs, given by its partial derivatives.

    .. math::
        y = f(x_0, x_1, \dots), \qquad \mathrm{vjp}(g)_i = D_i\,g, \qquad \mathrm{jvp}(t) = \sum_i D_i\,t_i

    :math:`D_i` is the declared partial derivative with respect to input :math:`i`, one number per element. A subclass writes

    * ``forward(*inputs)``, the value: one tensor, of the shape to which the inputs broadcast;
    * ``reads``, a mapping from the position of each differentiable input to the positions of the inputs that its partial
      derivative reads; or a function of the inputs that returns it, where constants among them decide;
    * ``vjp_term(i, v, *inputs)``, which returns :math:`D_i\,v`, or None where that is 0. Inputs that ``reads[i]`` does not name
      may be None.

    If the partial derivatives share work, it may write ``vjp_terms(needed, v, *inputs)`` instead, all terms at once: one entry
    for each input, None where ``needed`` is false for it. A backward calls it once.

    ``in_pieces = True`` says that terms are of single elements, with no sum and no number of elements in them: a backward of
    large tensors on the CPU then computes them piece by piece, in the cache; ``in_pieces = "half"`` does so in half precision
    alone, for terms of few steps. ``opmath = True`` computes terms of half precision in float32, and rounds once.

    The base has the other rules. It saves the inputs that are read and nothing else, computes the terms that are needed, and
    sums a gradient to the shape of its input. An input that is not in ``reads`` is a constant, such as a number of bits.
    An input that is in ``reads`` may be a number, which has no derivative.

    ``vjp_term`` is plain torch code without in-place operations. It is differentiated itself, so derivatives of every order
    follow from it. Compiled code on the CPU computes it in the backward and keeps no masks (``recompute_in_backward``).

    Raises:
        TypeError: When a class is defined whose ``reads`` does not fit the parameters of ``forward``.

    Example:
        >>> import torch, fullgrad
        >>> class Spike(fullgrad.Elementwise):
        ...     '''1 where x > threshold, else 0; the derivative is that of a sigmoid of x - threshold.'''
        ...     reads = {0: (0, 1), 1: (0, 1)}
        ...     @staticmethod
        ...     def forward(x, threshold=0.0):
        ...         return (x > threshold).to(x.dtype)
        ...     @staticmethod
        ...     def vjp_term(i, v, x, threshold):
        ...         s = torch.sigmoid(x - threshold)
        ...         return v * s * (1 - s) if i == 0 else -v * s * (1 - s)
        >>> x = torch.tensor([-1.0, 0.5, 2.0])
        >>> Spike.apply(x, 1.0)
        tensor([0., 0., 1.])
        >>> torch.func.grad(lambda threshold: Spike.apply(x, threshold).sum())(torch.tensor(1.0))
        tensor(-0.5366)
    """

    recompute_in_backward = True
    whole_dims = 0
    in_pieces: ClassVar[bool | str] = False
    opmath = False

    reads: ClassVar[Mapping[int, Sequence[int]] | Callable[..., Mapping[int, Sequence[int]]]]

    @unseen_by_dynamo
    def __init_subclass__(cls, **kwargs: Any) -> None:
        check_static(cls, ("forward", *_RULES, "vmap", "vjp_term", "vjp_terms", "to_opmath"))
        # Rules that a class or a family writes are kept; rules made for a parent are made again.
        missing = [name for name in _RULES if is_generated(cls, name)]
        if hasattr(cls, "forward") and missing:
            made = _rules(cls, *_checked_definition(cls))
            for name in missing:
                setattr(cls, name, Generated(made[name]))
        super().__init_subclass__(**kwargs)

    @classmethod
    def vjp_term(cls, i: int, v: Tensor, *inputs: Any, **_: Any) -> Tensor | None:  # an override names its inputs
        """The declared partial derivative with respect to input ``i``, times ``v``."""
        return cls.vjp_terms([k == i for k in range(len(inputs))], v, *inputs)[i]

    @classmethod
    def vjp_terms(cls, needed: Sequence[bool], v: Tensor, *inputs: Any, **_: Any) -> Sequence[Tensor | None]:
        """``vjp_term`` of every input for which ``needed`` is true, None for the others."""
        return [cls.vjp_term(i, v, *inputs) if n else None for i, n in enumerate(needed)]

    @classmethod
    def to_opmath(cls, v: Tensor, *inputs: Any) -> list[Any]:
        """The arguments of the terms with ``opmath``: half precision as float32."""
        return to_opmath(v, *inputs)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int | None]:
        return elementwise(cls, in_dims, args)


_RULES = ("setup_context", "vjp", "jvp")


def _checked_definition(cls: Any) -> tuple[tuple[str, ...], Any]:
    """The names of the inputs, and ``reads``, of a class whose definition fits together."""
    parameters = inspect.signature(cls.forward).parameters.values()
    names, reads = tuple([p.name for p in parameters]), getattr(cls, "reads", None)
    if not (isinstance(reads, Mapping) or callable(reads)) or not reads:
        raise TypeError(f"{cls.__name__} lacks `reads`: the inputs that each partial derivative reads, such as {{0: (0,)}}.")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise TypeError(f"{cls.__name__}.forward must name its inputs, as `reads` counts them, got {[*map(str, parameters)]}.")
    if not (_writes(cls, "vjp_term") or _writes(cls, "vjp_terms")):
        raise TypeError(f"{cls.__name__} lacks `vjp_term`: the partial derivatives, as a function of (i, v, {', '.join(names)}).")
    return names, reads if callable(reads) else _checked_reads(cls, names, reads)


def _writes(cls: Any, name: str) -> bool:
    """Whether a class has a method of its own in place of that of `Elementwise`."""
    return getattr(getattr(cls, name), "__func__", None) is not getattr(Elementwise, name).__func__


def _checked_reads(cls: Any, names: tuple[str, ...], reads: Any) -> dict[int, tuple[int, ...]]:
    if not all(isinstance(positions, Sequence) for positions in reads.values()):
        raise TypeError(
            f"{cls.__name__}.reads must map positions to tuples of positions, such as {{0: (0,)}}, got {dict(reads)}."
        )
    found = {i: (i, *positions) for i, positions in reads.items()}
    if not all(isinstance(j, int) and 0 <= j < len(names) for positions in found.values() for j in positions):
        raise TypeError(f"{cls.__name__}.reads must count the {len(names)} inputs of forward from 0, got {dict(reads)}.")
    return {i: tuple(positions) for i, positions in reads.items()}


def _rules(cls: Any, names: tuple[str, ...], reads: Any) -> dict[str, Callable[..., Any]]:
    """``setup_context``, ``vjp`` and ``jvp`` of a class, as plain functions: a loop or a class method is slow in small calls."""
    make = (
        _one_input_rules
        if len(names) == 1 and not callable(reads)
        else _save_nothing_rules
        if reads == {0: ()}
        else _several_input_rules
    )
    setup_context, *derivatives = make(cls, names, reads)  # pyright: ignore[reportArgumentType]
    if not cls.__module__.startswith("fullgrad."):  # the suite checks ours, whose small calls would pay for it
        setup_context = _refusing_sums(cls, setup_context)
        derivatives = [_telling_what_is_unread(cls, rule) for rule in derivatives]
    return dict(zip(_RULES, (setup_context, *derivatives), strict=True))


def _refusing_sums(cls: Any, setup_context: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, which refuses an output that lacks the shape of an input."""

    @functools.wraps(setup_context)
    def refusing(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        for v in inputs:
            if isinstance(v, Tensor):
                check_elementwise(cls, v.shape, output.shape)
        setup_context(ctx, inputs, output)

    return refusing


def _telling_what_is_unread(cls: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule whose error says what to do, where a partial derivative got None for an input that ``reads`` does not name."""

    @functools.wraps(rule)
    def telling(ctx: Any, *args: Any) -> Any:
        try:
            return rule(ctx, *args)
        except (TypeError, AttributeError) as error:
            if "NoneType" not in str(error):
                raise
            raise TypeError(
                f"{cls.__name__}: a partial derivative failed: {error}. It gets None for each input that `reads` does not name; "
                f"`reads` is {cls.reads}."
            ) from error

    return telling


def _schedule(cls: Any, count: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The terms of any call, piece by piece or whole, in float32 or as they are; and the first of them alone, in the dtype of
    the cotangent or tangent.
    """
    term, terms, opmath = cls.vjp_term, cls.vjp_terms, cls.to_opmath if cls.opmath else None
    all_in_pieces, half_in_pieces = cls.in_pieces is True, bool(cls.in_pieces)
    shares_work, first_alone = _writes(cls, "vjp_terms"), (True, *(False,) * (count - 1))

    # This is the hot path: `is_large` is asked where it may be true.

    def scheduled(needed: Sequence[bool], v: Tensor, inputs: Sequence[Any]) -> Sequence[Tensor | None]:
        may = (all_in_pieces or (half_in_pieces and v.dtype in HALF)) and v.__class__ is Tensor and v.numel() > pieces.PIECE
        found = terms_in_pieces(terms, needed, v, inputs, opmath) if may and is_large(v, inputs) else None
        return terms(needed, *((v, *inputs) if opmath is None else opmath(v, *inputs))) if found is None else found

    def first(v: Tensor, inputs: Sequence[Any]) -> Tensor | None:
        if (all_in_pieces and v.__class__ is Tensor and v.numel() > pieces.PIECE) or (opmath is not None and v.dtype in HALF):
            part = scheduled(first_alone, v, inputs)[0]
            return part if part is None else cast(part, v.dtype)
        return terms(first_alone, v, *inputs)[0] if shares_work else term(0, v, *inputs)

    return scheduled, first


def _one_input_rules(cls: Any, names: tuple[str, ...], reads: dict[int, tuple[int, ...]]) -> tuple[Callable[..., Any], ...]:
    if not reads[0]:
        term = cls.vjp_term
        return saves_nothing, lambda ctx, g: term(0, g, None), lambda ctx, t: _or_zero(term(0, t, None), t)
    _, first = _schedule(cls, 1)

    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    def vjp(ctx: Any, g: Tensor) -> Tensor | None:
        return first(g, ctx.saved_tensors)

    return setup_context, vjp, lambda ctx, t: _or_zero(vjp(ctx, t), t)


def _save_nothing_rules(cls: Any, names: tuple[str, ...], reads: dict[int, tuple[int, ...]]) -> tuple[Callable[..., Any], ...]:
    """The rules of a class that reads nothing: a first input, and constants."""
    term, nothing = cls.vjp_term, (None,) * len(names)
    first_alone = (True, *(False,) * (len(names) - 1))

    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad != first_alone:
            _refuse(cls, names, ctx.needs_input_grad.index(True, 1))
        return term(0, g, *nothing), *nothing[1:]

    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        for i, t in enumerate(tangents):
            if i and t is not None:
                _refuse(cls, names, i)
        return _or_zero(term(0, tangents[0], *nothing), tangents[0])

    return saves_nothing, vjp, jvp


class _Plan(NamedTuple):
    """The tensors that a call keeps, as positions; the types of its inputs, and which need a gradient, decide."""

    needs: tuple[bool, ...]
    reads: Mapping[int, Sequence[int]]
    tensors: list[int]
    needed: list[int]
    backward: list[int]
    forward: list[int]
    pick_backward: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    pick_forward: Callable[[tuple[Any, ...]], tuple[Any, ...]]


def _several_input_rules(cls: Any, names: tuple[str, ...], reads: Any) -> tuple[Callable[..., Any], ...]:
    term, no_other_gradients = cls.vjp_term, (None,) * (len(names) - 1)
    varies = callable(reads)
    fixed: dict[int, tuple[int, ...]] = {} if varies else reads
    saves_first = varies or 0 in fixed.get(0, ())
    scalar_types, has_one_more = Rules.SCALAR_TYPES.union(cls.constant_types), len(names) == 2
    are_scalars = scalar_types.issuperset
    scheduled, first = _schedule(cls, len(names))

    @functools.lru_cache(maxsize=256)
    def plan_of(needs: tuple[bool, ...], varying: tuple[tuple[int, Sequence[int]], ...], *types: type) -> _Plan:
        reads = _checked_reads(cls, names, dict(varying)) if varies else fixed
        tensors = [i for i, kind in enumerate(types) if issubclass(kind, Tensor)]
        needed = [i for i, wanted in enumerate(needs) if wanted]
        for i in needed:
            if i not in reads:
                _refuse(cls, names, i)
        read, could = (sorted({j for i in some for j in reads.get(i, ())} & {*tensors}) for some in (needed, tensors))
        return _Plan(needs, reads, tensors, needed, read, could, _picker(read), _picker(could))

    # This is the hot path, where each attribute of ctx costs: `kept` has everything but the tensors. It is a tuple of numbers if
    # the first input is the only tensor, which then has the shape and dtype of the output.

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        numbers, now = inputs[1:], reads(*inputs) if varies else fixed
        if 0 in now and numbers[0].__class__ in scalar_types and (has_one_more or are_scalars(map(type, numbers))):
            ctx.kept = numbers
            if saves_first:
                saved = inputs[0] if 0 in now[0] else None
                ctx.save_for_backward(saved)
                ctx.save_for_forward(saved)
            return
        plan = plan_of(ctx.needs_input_grad, tuple(now.items()) if varies else (), *map(type, inputs))
        shape, traced = output.shape, is_tracing()
        for i in plan.needed:
            part = inputs[i].shape
            if part and (traced or part != shape):
                check_elementwise(cls, part, shape)
        others = [*inputs]
        for i in plan.tensors:
            others[i] = None
        ctx.kept = [plan, others, shape, output.dtype]
        ctx.save_for_backward(*plan.pick_backward(inputs))
        ctx.save_for_forward(*plan.pick_forward(inputs))

    def inputs_and_output(ctx: Any, positions: list[int]) -> list[Any]:
        inputs = ctx.kept[1].copy()
        for j, t in zip(positions, ctx.saved_tensors):  # noqa: B905
            inputs[j] = t
        return inputs

    # Autograd sums a gradient to the shape of its input and converts it to the input's dtype.

    def vjp(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.kept
        if kept.__class__ is tuple:
            return first(g, (ctx.saved_tensors[0] if saves_first else None, *kept)), *no_other_gradients
        plan, _, shape, _ = kept
        gradients = scheduled(plan.needs, g, inputs_and_output(ctx, plan.backward))
        if len(gradients) != len(names):
            raise TypeError(
                f"{cls.__name__}.vjp_terms must return one entry for each of {len(names)} inputs, got {len(gradients)}."
            )
        traced = is_tracing()
        for part in gradients:
            if part is not None and (traced or part.shape != shape):
                check_elementwise(cls, part.shape, shape)
        return tuple(gradients)

    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        if ctx.kept.__class__ is tuple:
            return _or_zero(vjp(ctx, tangents[0])[0], tangents[0])  # pyright: ignore[reportArgumentType]
        plan, _, shape, dtype = ctx.kept
        inputs, total = inputs_and_output(ctx, plan.forward), None
        for i, t in enumerate(tangents):
            if t is not None:
                part = (
                    term(i, *(cls.to_opmath(t, *inputs) if cls.opmath else (t, *inputs)))
                    if i in plan.reads
                    else _refuse(cls, names, i)
                )
                total = part if total is None else total if part is None else total + part
        if total is None:
            return next(t for t in tangents if t is not None).new_zeros(shape, dtype=dtype)
        total = cast(total, dtype)
        return total if same_shape(total.shape, shape) else total.expand(shape)

    return setup_context, vjp, jvp


def _or_zero(tangent: Tensor | None, given: Any) -> Any:
    """A tangent; zeros for None, of the shape of the only tensor, which is that of the output."""
    return torch.zeros_like(given) if tangent is None else tangent


def _picker(positions: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that returns the items at some positions, in a fifth of the time of a loop over one or two."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return operator.itemgetter(slice(positions[0], positions[0] + 1) if positions else slice(0))


def _refuse(cls: Any, names: tuple[str, ...], i: int) -> Any:
    raise TypeError(f"{cls.__name__}: `{names[i]}` is a constant, which `reads` does not name, got one with a derivative.")
