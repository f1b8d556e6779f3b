"""Forward mode: tangents that are constants, diagonals, Laplacians, and derivatives along curves."""

from fullgrad._core.public import make_public
from fullgrad.forward._diagonals import divergence, ggn_diagonal, hessian_diagonal, jacobian_diagonal
from fullgrad.forward._jet import jet, taylor
from fullgrad.forward._jvp import jvp
from fullgrad.forward._laplacian import laplacian
from fullgrad.forward._sparse import sparse_hessian, sparse_jacobian

__all__ = [
    "divergence",
    "ggn_diagonal",
    "hessian_diagonal",
    "jacobian_diagonal",
    "jet",
    "jvp",
    "laplacian",
    "sparse_hessian",
    "sparse_jacobian",
    "taylor",
]

make_public(__name__)
