"""`with_reference`: a kernel with the derivative of its mathematics."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fullgrad._core import checks
from fullgrad._dispatch import in_legacy_vmap, is_differentiating, is_traced, pytree
from fullgrad._engine.call import Call, Result
from fullgrad._engine.changes import Surroundings
from fullgrad._engine.checks import check_like, check_result, gradients_of
from fullgrad._engine.closure import Closure, Refusing
from fullgrad._engine.copies import frozen
from fullgrad._engine.differentiated import is_differentiated, may_differ
from fullgrad._engine.operator import Made, P, R
from fullgrad._engine.rule import Maybe, Rule, declared
from fullgrad._engine.transpose import by_reference, scattered, transpose
from fullgrad._engine.values import METHODS, values_by


def with_reference(
    kernel: Callable[P, R],
    reference: Callable[..., Any],
    *,
    backward: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    nondiff_outnums: int | Sequence[int] = (),
    vmap_method: str = "sequential",
    like: Callable[..., Any] | None = None,
) -> Callable[P, R]:
    r"""A kernel with the derivative of its mathematics.

    .. math::
        y = k(x), \qquad D(x) = r'(x)

    at every order and under every transform: the value is the kernel's, which may be any code (a call into CUDA, C++ or numpy),
    and the derivative that of ``reference``, plain torch code for the same function. ``backward``, if there is one, is the
    kernel of the first derivative in reverse mode, and ``jvp`` that in forward mode; their own derivatives are again those of the
    reference. So training calls kernels alone, and Hessians call the reference. Saved: the tensors among the arguments, and the
    results for ``backward`` and ``jvp``.

    A tensor that both functions use besides their arguments, such as a parameter of a module, gets its derivative from the
    reference; ``backward`` and ``jvp`` are then left out.

    Args:
        kernel: A function of any structure of tensors and constants, which returns one.
        reference: A function of the same arguments with the same result, up to rounding.
        backward: ``backward(inputs, outputs, grads)`` gets the positional arguments as a tuple, the result, and a structure like
            it of gradients: for a result that is one tensor, one tensor and no tuple. It returns a tuple with the gradient of
            each positional argument, of its shape, or None for 0.
        jvp: ``jvp(inputs, outputs, tangents)`` gets the positional arguments as a tuple, the result, and a tuple with the tangent
            of each positional argument, or None where it has none. It returns a structure like the result of tangents, in which
            None is 0.
        nondiff_outnums: Positions, among the tensors of the result, of those that have no derivative; ``reference`` may return
            None there.
        vmap_method: How ``vmap`` calls kernels. ``"sequential"``: sample by sample; ``"broadcast"``: once, with a dimension more
            in front of each tensor. In both they get plain tensors, and are one node of compiled code. ``"map"``: inside
            `torch.func.vmap`, for kernels made of torch's operators, which compiled code traces.
        like: A function of the same arguments, which returns empty tensors like the result, for compiled code, instead of
            ``reference``.

    Returns:
        The operator, a function of the same arguments. It has ``kernel``'s name, and pickles by it or if its parts do.

    Raises:
        TypeError: A function is not callable. Where a call is differentiated: ``kernel`` returns an array of floats,
            or no floating tensor. When a derivative is taken: a result of ``reference``, ``backward`` or ``jvp`` differs in
            structure or dtype.
        ValueError: ``vmap_method`` is another string. When a derivative is taken: a result differs in shape.
        RuntimeError: When called: a kernel changes an argument in place. When a derivative is taken: ``reference`` uses a tensor
            that needs a derivative, and that could not be known in the forward; or it draws random numbers and the kernel is
            called on plain tensors.

    Example:
        >>> import numpy, torch, fullgrad
        >>> def kernel(x):
        ...     return torch.as_tensor(numpy.logaddexp(x.numpy(), 0))
        >>> softplus = fullgrad.with_reference(kernel, torch.nn.functional.softplus)
        >>> x = torch.tensor([0.0, 1.0])
        >>> softplus(x)
        tensor([0.6931, 1.3133])
        >>> torch.func.vmap(torch.func.grad(torch.func.grad(softplus)))(x)
        tensor([0.2500, 0.1966])

    Source: the design is fullgrad's own; ``jax.pure_callback`` has the same ways to batch.
    """
    optional = {name: f for name, f in (("backward", backward), ("jvp", jvp), ("like", like)) if f is not None}
    checks.callables("with_reference", kernel=kernel, reference=reference, **optional)
    checks.choice("with_reference", "vmap_method", vmap_method, METHODS)
    constant = (nondiff_outnums,) if isinstance(nondiff_outnums, int) else tuple(nondiff_outnums)
    if not all(isinstance(i, int) and i >= 0 for i in constant):
        raise TypeError(f"with_reference: `nondiff_outnums` must be integers of at least 0, got {nondiff_outnums!r}.")
    return WithReference(kernel, reference, backward, constant, vmap_method, like, jvp)


class WithReference(Made[P, R]):
    """The operator that `with_reference` returns."""

    kind = "with_reference"

    def __init__(
        self, kernel: Any, reference: Any, backward: Any, constant: tuple[int, ...], method: str, like: Any, jvp: Any = None
    ) -> None:
        super().__init__(self.kind, kernel)
        self.made_of = kernel, reference, backward, constant, method, like, jvp
        self.reference, self.backward, self.constant, self.method, self.like, self.jvp = self.made_of[1:]

    def parts(self) -> list[Any]:
        return [self.function, self.reference, self.backward, self.jvp]

    def called_below(self) -> list[Any]:
        return [] if self.method == "map" else [self.function, self.reference]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call([*args, kwargs])
        # A tracer has no numbers for a kernel, whether or not it records a derivative.
        if not is_differentiating() and (self.method == "map" or not is_traced(*call.tensors)):
            return self.function(*args, **kwargs)
        return _Reference(self, call).result()

    def check_differentiated(self, result: Result) -> None:
        """Refuse the result of a differentiated call whose derivative would be lost."""
        check_result(self.label, result, self.constant)

    def compared(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The operator and the reference, without results that have no derivative, which the reference may leave out."""
        if not self.constant:
            return self, self.reference

        def of(function: Callable[..., Any]) -> Callable[..., Any]:
            def without_constant(*args: Any, **kwargs: Any) -> Any:
                leaves = [v for v in pytree.tree_leaves(function(*args, **kwargs)) if v is None or isinstance(v, Tensor)]
                return tuple([v for i, v in enumerate(leaves) if i not in self.constant])

            return without_constant

        return of(self), of(self.reference)


class _Reference:
    """One call, and its derivative."""

    def __init__(self, owner: WithReference, call: Call) -> None:
        self.owner, self.call, self.count, self.reference = owner, call, len(call.tensors), frozen(owner.reference)
        self.closure = Closure(
            owner.label, owner.function, owner.reference, objects=call.objects(), draws_again=owner.method == "map"
        )
        self.structure: Any = None  # of the result, for a rule
        self.kinds = [(may_differ(t), t.shape, t.dtype) for t in call.tensors]

    def result(self) -> Any:
        """The result of the call."""
        owner = self.owner
        self.structure = self._forward(self.call.tensors)
        self.closure.hold_unused()
        of_keywords = self.call.split(self.call.tensors)[-1]
        noted, self.captured = self.closure.release()
        inputs = [*self.call.release(), *noted]
        if not is_differentiated(inputs):
            return self.structure.whole()
        owner.check_differentiated(self.structure)
        values = self.structure.release()
        self.where = [i for i, y in enumerate(values) if may_differ(y) and i not in owner.constant]
        self.like, self.inputs = [(values[i].shape, values[i].dtype) for i in self.where], len(inputs)
        rule, kept = by_reference(self.again), []
        kernels = {name: f for name, f in (("backward", owner.backward), ("jvp", owner.jvp)) if f is not None}
        if kernels and self.inputs == self.count:
            name = next(iter(kernels))
            if is_differentiated(of_keywords):
                kind = "gradients" if name == "backward" else "tangents"
                raise TypeError(f"{owner.label} has a `{name}`, which gives {kind} of positional arguments only.")
            surroundings = Surroundings(f"{owner.label}: `{name}`", *kernels.values(), *self.closure.objects)
            rule, kept = Rule(self.pull, self.push).within(surroundings), list(values)
        for i, y in zip(self.where, declared(rule, [values[i] for i in self.where], [*inputs, *kept]), strict=True):
            values[i] = y
        return self.structure.tree(values)

    def again(self, *all: Tensor) -> list[Tensor]:
        """The differentiable results of the reference, by the tensors of the call and those that were noted."""
        label = f"{self.owner.label}: the result of `reference`"
        tree = self.captured.again(functools.partial(self._of, self.reference), all[: self.count], all[self.count :])
        leaves = self.structure.flattened(tree, label)
        self.captured.replay.check(leaves)
        for i, (shape, dtype) in zip(self.where, self.like, strict=True):
            check_like(label, "the kernel's", leaves[i], shape, dtype)
        return [leaves[i] for i in self.where]

    def pull(self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor], needs: Sequence[bool]) -> Maybe:
        """The gradients by `backward`, whose derivative is that of the reference's gradients."""
        m = self.inputs
        if self._uses_reference(self.owner.backward):
            return [*by_reference(self.again).pull(inputs[:m], cotangents, needs[:m]), *[None] * (len(inputs) - m)]
        where = tuple([i for i, (floating, _, _) in enumerate(self.kinds) if floating and needs[i]])
        label = f"{self.owner.label}: `backward`"

        def value(*given: Tensor) -> Result:
            grads = self._backward(given[:m], given[m : len(inputs)], given[len(inputs) :])
            return Result([torch.zeros_like(given[i]) if grads[i] is None else checked(i, given[i], grads[i]) for i in where])

        def checked(i: int, x: Tensor, g: Any) -> Tensor:
            """A gradient that is like its argument, of which compiled code knows no more than that it should be."""
            return check_like(f"{label}: a gradient", "its argument", g, x.shape, self.kinds[i][2], or_none=True)

        def of_reference(*all: Tensor) -> Sequence[Tensor]:
            return transpose(self.again, all[:m], where)(*all[m:])

        like = lambda *given: Result([given[i] for i in where])  # noqa: E731
        gradients = self._by_kernel(Refusing(label, self.owner.backward), value, like, inputs, cotangents, of_reference)
        return scattered(len(inputs), where, gradients)

    def push(self, inputs: Sequence[Tensor], tangents: Maybe, like: Sequence[Any]) -> Sequence[Tensor]:
        """The tangents by `jvp`, whose derivative is that of the reference's, for inputs that the results follow."""
        m, n = self.inputs, len(inputs)
        if self._uses_reference(self.owner.jvp):
            return by_reference(self.again).push(inputs[:m], tangents[:m], like)
        where = tuple([i for i, t in enumerate(tangents[:m]) if t is not None])
        label = f"{self.owner.label}: `jvp`"

        def value(*all: Tensor) -> Result:
            pairs = zip(self._jvp(all[:m], all[m:n], scattered(m, where, all[n:])), results(*all).tensors, strict=True)
            return Result(
                [
                    torch.zeros_like(y)
                    if t is None
                    else check_like(f"{label}: a tangent", "its result", t, y.shape, y.dtype, or_none=True)
                    for t, y in pairs
                ]
            )

        def results(*all: Tensor) -> Result:
            return Result([all[m + i] for i in self.where])

        def of_reference(*all: Tensor) -> Sequence[Tensor]:
            return by_reference(self.again).push(all[:m], scattered(m, where, all[m:]), like)

        moving = [t for t in tangents[:m] if t is not None]
        return self._by_kernel(Refusing(label, self.owner.jvp), value, results, inputs, moving, of_reference)

    def _uses_reference(self, kernel: Any) -> bool:
        """Whether there is no kernel; or a batch of cotangents, which no kernel can take, or compiled autograd, which traces what
        a backward does.
        """
        return kernel is None or is_dynamo_compiling() or in_legacy_vmap()

    def _by_kernel(
        self, closure: Refusing, value: Any, like: Any, inputs: Sequence[Tensor], more: Sequence[Tensor], of_reference: Any
    ) -> Sequence[Tensor]:
        """The results of a kernel of inputs and more tensors, with the derivative of those that the reference has for them."""

        def again(*all: Tensor) -> Result:
            with self.captured.replay.again():
                return value(*all)

        given = [*inputs[: self.inputs], *more]
        values = values_by(closure, self.owner.method, again, like, [*inputs, *more], self._symbols()).release()
        return declared(by_reference(of_reference), values, given) if is_differentiated(given) else values

    def _jvp(self, x: Sequence[Tensor], y: Sequence[Tensor], tangents: Maybe) -> list[Any]:
        """The tangents of the differentiable results, or None, as `jvp` returns them."""
        jvp: Any = self.owner.jvp
        outputs, given = self.structure.tree(y), self.call.beside(tangents)[:-1]
        found = self.call.run(lambda *args: jvp(args[:-1], outputs, given), x)
        if found is None:
            return [None] * len(self.where)
        leaves = self.structure.flattened(found, f"{self.owner.label}: the result of `jvp`")
        return [leaves[i] for i in self.where]

    def _forward(self, tensors: Sequence[Tensor]) -> Result:
        def value(kernel: Callable[..., Any], *given: Tensor) -> Result:
            return Result(self._of(kernel, *given), self.owner.label)

        def like(*given: Tensor) -> Result:
            return Result(self._of(self.owner.like or self.owner.reference, *given))

        with self.closure.unchanged():
            run = functools.partial(value, self.owner.function)
            return values_by(self.closure, self.owner.method, run, like, tensors, self._symbols())

    def _symbols(self) -> list[Any]:
        return [*self.call.symbols(), *(self.structure.symbols() if self.structure is not None else ())]

    def _of(self, function: Callable[..., Any], *tensors: Tensor) -> Any:
        return self.call.run(lambda *args: function(*args[:-1], **args[-1]), tensors)

    def _backward(self, x: Sequence[Tensor], y: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Maybe:
        backward: Any = self.owner.backward
        outputs, label = self.structure.tree(y), self.owner.label
        grads = self.structure.tree(scattered(len(y), tuple(self.where), cotangents), None)
        found = self.call.run(lambda *args: backward(args[:-1], outputs, grads), x)
        return gradients_of(f"{label}: `backward`", label, self.call, range(len(self.call.parts) - 1), found)
