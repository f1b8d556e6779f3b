"""Solutions of equations: solvers of any kind, with the derivative of the implicit function theorem at every order."""

from fullgrad._core.public import explained, make_public
from fullgrad.implicit._linear_algorithms import cg, gmres
from fullgrad.implicit._root import argmin, fixed_point, root
from fullgrad.implicit._root_algorithms import anderson, bisection, newton
from fullgrad.implicit._root_vjp import root_jvp, root_vjp
from fullgrad.implicit._solve import solve

__all__ = ["anderson", "argmin", "bisection", "cg", "fixed_point", "gmres", "newton", "root", "root_jvp", "root_vjp", "solve"]

_SOLVER = "it is a decorator of a solver, write {}(f)(solver)(init, *args)"
argmin = explained(argmin, _SOLVER.format("argmin"))
fixed_point = explained(fixed_point, _SOLVER.format("fixed_point"))
root = explained(root, _SOLVER.format("root"))
make_public(__name__)
