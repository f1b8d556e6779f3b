"""`root`, `fixed_point` and `argmin`: solvers whose results have the derivative of the equation that they solve."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._dispatch import is_differentiating, is_traced, pytree
from fullgrad._engine.call import Call, Result
from fullgrad._engine.checks import check_pair
from fullgrad._engine.closure import Closure
from fullgrad._engine.operator import Made, P, R
from fullgrad._engine.values import METHODS, values_by
from fullgrad.implicit._checks import check_kinds, like_init
from fullgrad.implicit._linear_solve import check_linear_solve
from fullgrad.implicit._residual import Stated, by_equation, left_of_fixed_point, left_of_root, look


def root(
    f: Callable[..., Any],
    *,
    linear_solve: str | Callable[..., Tensor] | None = None,
    vmap_method: str = "sequential",
    has_aux: bool = False,
    tol: float | None = 1e-3,
    like: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    r"""A decorator for solvers of :math:`f(z, x) = 0`, by which their results are differentiable.

    .. math::
        f(z(x), x) = 0, \qquad D(x) = -\left(\frac{\partial f}{\partial z}\right)^{-1} \frac{\partial f}{\partial x}

    at every order and under every transform: the linear equations of a derivative are solved by an operator, whose derivatives
    are solutions of such equations again. The solver is any code; nothing that it does is recorded, so memory does not grow with
    its iterations. It is called as ``solver(init, *args)`` and the equation as ``f(solution, *args)``, with the same keywords.
    There is no derivative by ``init``, which may be None.

    The solution is a tensor or any structure of tensors of one dtype; ``f`` returns the same structure. Arguments are any
    structure of tensors, modules and constants. Parameters of modules and other tensors that ``f`` closes over get derivatives,
    too. ``f`` is torch code, draws no random numbers, and is batched by `torch.func.vmap` for a batch of solutions.

    Float32 solutions have derivatives with an error of about ``1e-6`` times the condition of the Jacobian by a dense solver, and
    ``1e-5`` times it by an iterative one. Saved: the tensors among the arguments, and the solution.

    Args:
        f: The equation: its left-hand side, as a function of the solution and the arguments of the solver.
        linear_solve: How the linear equations of the derivative are solved. ``"dense"``: by the Jacobian and its LU factors, made
            once for all derivatives of a call, and kept as long as its result. ``"cg"``, for symmetric positive definite
            Jacobians, ``"normal_cg"`` and ``"gmres"`` use products with the Jacobian alone, each sample of a batch until its own
            residual is small. A function ``(matvec, b) -> w`` takes and returns vectors in the last dimension, a batch in the
            others, as `fullgrad.implicit.cg` does. By default it is dense for up to 512 unknowns, and above by GMRES.
        vmap_method: How ``vmap`` calls the solver. ``"sequential"``: sample by sample, on plain tensors; ``"broadcast"``: once,
            on plain tensors with a dimension more in front of each, batched or not; ``"map"``: inside `torch.func.vmap`, for
            torch code, such as `fullgrad.implicit.newton`.
        has_aux: Whether the solver returns a pair of the solution and something else, which has no derivative.
        tol: A solution is looked at: where a residual is larger than ``tol`` times the change of ``f`` from a solution of 0 to
            this one, by the slope at it, a warning says so. The residual of an iterative ``linear_solve`` is looked at, too. The
            host waits for the device, as it does once for each derivative, to learn whether the matrix is singular. None leaves
            both looks out, and compiled code the first. An iterative ``linear_solve`` stops where it did before: for another
            tolerance give it as ``functools.partial(fullgrad.implicit.cg, tol=1e-3)``.
        like: For compiled code where the result of the solver is not like ``init``: a function of the same arguments that returns
            empty tensors like the result.

    Returns:
        The decorator. The solver that it returns pickles by its name, or if its parts do.

    Raises:
        TypeError: An argument is not callable. When called: the solution has tensors of several dtypes or of integers, or is not
            like ``init``, or ``f`` returns another structure.
        ValueError: A name is not one of the choices. When called: ``f`` returns another shape.
        RuntimeError: When called: the solver changes an argument in place. When a derivative is taken: the Jacobian is singular,
            or an iterative solver fails.
        NotImplementedError: When called: ``f`` draws random numbers.

    Example:
        >>> import torch, fullgrad
        >>> @fullgrad.implicit.root(lambda z, x: z**3 + z - x)
        ... def solve(init, x):
        ...     z = init
        ...     for _ in range(30):
        ...         z = z - (z**3 + z - x) / (3 * z**2 + 1)
        ...     return z
        >>> x, init = torch.tensor(10.0), torch.tensor(1.0)
        >>> solve(init, x)
        tensor(2.)
        >>> torch.func.grad(solve, 1)(init, x)  # 1 / 13
        tensor(0.0769)
        >>> torch.func.hessian(solve, 1)(init, x)  # -12 / 13**3
        tensor(-0.0055)

    Source: the implicit function theorem; Blondel et al., Efficient and modular implicit differentiation,
    https://arxiv.org/abs/2105.15183; ``jaxopt.implicit_diff.custom_root``, ``jax.lax.custom_root``.
    """
    return _decorator("root", f, linear_solve, "gmres", "implicit", vmap_method, has_aux, tol, like)


def fixed_point(
    f: Callable[..., Any],
    *,
    linear_solve: str | Callable[..., Tensor] | None = None,
    derivative: str | tuple[str, int] = "implicit",
    vmap_method: str = "sequential",
    has_aux: bool = False,
    tol: float | None = 1e-3,
    like: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    r"""A decorator for solvers of :math:`z = f(z, x)`, such as the equilibrium of a network or of an iteration.

    .. math::
        z(x) = f(z(x), x), \qquad D(x) = \left(I - \frac{\partial f}{\partial z}\right)^{-1} \frac{\partial f}{\partial x}

    All else is as in :func:`fullgrad.implicit.root`, with :math:`z - f(z, x)` as the equation.

    Args:
        f: The function whose fixed point is found, of the solution and the arguments of the solver.
        linear_solve: As in :func:`root`.
        derivative: ``"implicit"`` declares the derivative above. ``"one_step"`` leaves the inverse out, which is the derivative
            of one iteration from the fixed point; ``("neumann", k)`` takes the first terms of its series,
            :math:`\sum_{i=0}^{k} (\partial f/\partial z)^i`. Both are cheaper and not exact; their derivatives are those of
            what they declare.
        vmap_method: As in :func:`root`.
        has_aux: As in :func:`root`.
        tol: As in :func:`root`.
        like: As in :func:`root`.

    Returns:
        The decorator.

    Raises:
        TypeError: As in :func:`root`.
        ValueError: As in :func:`root`.
        RuntimeError: As in :func:`root`.
        NotImplementedError: As in :func:`root`.

    Example:
        >>> import torch, fullgrad
        >>> @fullgrad.implicit.fixed_point(lambda z, x: torch.cos(x * z))
        ... def solve(init, x):
        ...     z = init
        ...     for _ in range(100):
        ...         z = torch.cos(x * z)
        ...     return z
        >>> torch.func.grad(solve, 1)(torch.tensor(0.5), torch.tensor(1.0))
        tensor(-0.2975)

    Source: Bai, Kolter, Koltun, Deep equilibrium models, https://arxiv.org/abs/1909.01377; Bolte, Pauwels, Vaiter, One-step
    differentiation of iterative algorithms, https://arxiv.org/abs/2305.13768; ``jaxopt.implicit_diff.custom_fixed_point``.
    """
    return _decorator("fixed_point", f, linear_solve, "gmres", derivative, vmap_method, has_aux, tol, like)


def argmin(
    objective: Callable[..., Tensor],
    *,
    linear_solve: str | Callable[..., Tensor] | None = None,
    vmap_method: str = "sequential",
    has_aux: bool = False,
    tol: float | None = 1e-3,
    like: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    r"""A decorator for minimizers of :math:`h(z, x)` in z, such as a fit whose hyperparameters are learned.

    .. math::
        z(x) = \operatorname{argmin}_z h(z, x), \qquad
        D(x) = -\left(\frac{\partial^2 h}{\partial z^2}\right)^{-1} \frac{\partial^2 h}{\partial z\,\partial x}

    All else is as in :func:`fullgrad.implicit.root`, with the gradient of the objective as the equation. Above 512 unknowns the
    linear equations are solved by conjugate gradients, with Hessian-vector products.

    Args:
        objective: A function of the solution and the arguments of the solver, which returns a scalar.
        linear_solve: As in :func:`root`.
        vmap_method: As in :func:`root`.
        has_aux: As in :func:`root`.
        tol: As in :func:`root`.
        like: As in :func:`root`.

    Returns:
        The decorator.

    Raises:
        TypeError: As in :func:`root`.
        ValueError: As in :func:`root`.
        RuntimeError: As in :func:`root`.
        NotImplementedError: As in :func:`root`.

    Example:
        >>> import torch, fullgrad
        >>> a, y = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), torch.tensor([1.0, 2.0, 4.0])
        >>> @fullgrad.implicit.argmin(lambda w, ridge: (a @ w - y).square().sum() + ridge * w.square().sum())
        ... def fit(init, ridge):
        ...     return torch.linalg.solve(a.mT @ a + ridge * torch.eye(2), a.mT @ y)
        >>> torch.func.jacrev(fit, 1)(None, torch.tensor(1.0))
        tensor([-0.0667, -0.1778])

    Source: ``jaxopt.implicit_diff.custom_root`` of an optimality condition.
    """
    return _decorator("argmin", objective, linear_solve, "cg", "implicit", vmap_method, has_aux, tol, like)


def _decorator(kind: str, f: Any, linear_solve: Any, otherwise: str, derivative: Any, method: str, *rest: Any) -> Any:
    name = f"implicit.{kind}"
    if not callable(f):
        raise TypeError(f"{name}: the function must be callable, got a value of type {type(f).__name__}.")
    check_linear_solve(name, linear_solve)
    checks.choice(name, "vmap_method", method, METHODS)
    terms = {"implicit": None, "one_step": 0}.get(derivative, -1) if isinstance(derivative, str) else -1
    if isinstance(derivative, tuple) and len(derivative) == 2 and derivative[0] == "neumann":
        terms = derivative[1]
    if terms is not None and (not isinstance(terms, int) or terms < 0):
        raise ValueError(f'{name}: `derivative` must be "implicit", "one_step" or ("neumann", k), got {derivative!r}.')

    def decorator(*solver: Any) -> Any:
        if len(solver) != 1:
            raise TypeError(
                f"{name} of a function is a decorator of solvers, got {len(solver)} arguments. The function that it gets first "
                f"is the equation, not the solver: write {name}(f)(solver)(init, *args)."
            )
        return Root(kind, f, linear_solve, otherwise, terms, method, *rest, *solver)

    return decorator


class Root(Made[P, R]):
    """A solver with the derivative of its equation."""

    def __init__(self, *made_of: Any) -> None:
        kind, f, linear_solve, otherwise, terms, self.method, self.has_aux, tol, self.like, solver = made_of
        super().__init__(f"implicit.{kind}", solver)
        self.made_of, self.kind, self.given = made_of, f"implicit.{kind}", f
        left = {"root": left_of_root, "fixed_point": left_of_fixed_point, "argmin": None}[kind]
        self.stated = Stated(self.label, f, left, linear_solve, otherwise, tol, terms)

    def parts(self) -> list[Any]:
        return [self.function, self.given]

    def called_below(self) -> list[Any]:
        return [] if self.method == "map" else [self.function]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args:
            raise TypeError(f"{self.label} is called with `init` first, by position.")
        if is_differentiating():
            return Solution(self, args, kwargs).result()
        # A tracer has no numbers for a solver, and none to look at.
        traced = is_traced(*Call([*args, kwargs]).tensors)
        if traced and self.method != "map" and not torch.jit.is_tracing():
            return Solution(self, args, kwargs).value()
        value_alone = self.stated.tol is None or traced or torch.jit.is_tracing()
        return self.function(*args, **kwargs) if value_alone else Solution(self, args, kwargs).result()


class Solution:
    """One call, and its derivative."""

    def __init__(self, owner: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.owner, self.label, self.rest = owner, owner.label, (*args[1:], kwargs)
        self.call = Call([*args, kwargs])
        self.count = self.call.parts[0].count  # the tensors of `init`
        # The structure of `init` alone: a tracer calls `like` again when this call is over.
        self.init = pytree.tree_map(lambda v: v if v is None else 0.0, args[0])
        self.closure = Closure(owner.label, owner.given, objects=self.call.objects())
        check_kinds(self.label, self.call.tensors)

    def value(self) -> Any:
        """The result of the call, without a derivative."""
        solution, aux = self._solve()
        return self._with(solution.whole(), aux)

    def result(self) -> Any:
        """The result of the call, with the derivative of its equation."""
        owner, (solution, aux) = self.owner, self._solve()
        z, tensors, k = solution.release(), self.call.release(), self.count
        by, v = by_equation(owner.stated, self.closure, solution, z, self.rest, tensors[k:])
        if owner.stated.tol is not None:
            name = "gradient" if owner.stated.left is None else "equation"
            look(by.equation, name, owner.stated.tol, tensors[:k], z, v)
        self.rest = ()  # so that autograd alone keeps tensors
        return self._with(solution.tree(by.declared(z, v)), aux)

    def _with(self, solution: Any, aux: Any) -> Any:
        return (solution, aux) if self.owner.has_aux else solution

    # --- The solver -----------------------------------------------------------------------------------------------------

    def _solve(self) -> tuple[Result, Any]:
        """The solution, and what else the solver returned, both without a derivative."""
        owner, closure = self.owner, Closure(self.label, self.owner.function, objects=self.call.objects())

        def run(function: Callable[..., Any], *given: Tensor) -> Result:
            found = self.call.run(lambda *args: function(*args[:-1], **args[-1]), given)
            label = f"{self.label}: by `has_aux` the solver"
            solution, aux = check_pair(label, "(solution, aux)", found) if owner.has_aux else (found, None)
            result = Result((like_init(self.label, solution, self.init, given[: self.count]), aux), self.label)
            result.tensors = [y.clone() if y.is_inference() else y.detach() for y in result.tensors]
            return result

        def like(*given: Tensor) -> Result:
            if owner.like is None and (owner.has_aux or not self.count):
                raise RuntimeError(
                    f"{self.label}: compiled code, and a batch of no samples, must know what the solver returns, and it is not "
                    "`init`. State it by `like`, a function of the same arguments that returns empty tensors like the result."
                )
            return run(owner.like or (lambda init, *_, **__: init), *given)

        solver, symbols = functools.partial(run, owner.function), self.call.symbols()
        solution, aux = values_by(closure, owner.method, solver, like, self.call.tensors, symbols).whole()
        return Result(solution), aux
