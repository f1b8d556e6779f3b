"""Derivatives of a function of a vector, by the name of their transforms."""

import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

X = torch.tensor([[0.3, -1.2, 2.0], [1.0, 0.5, -0.7]], dtype=torch.float64)


def _transforms(f):
    def loss(x):
        return (f(x) ** 3).sum()

    def double_backward():
        x = X[0].clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return g, torch.autograd.grad((g**2).sum(), x)

    return {
        "value": lambda: f(X[0]),
        "grad": lambda: grad(loss)(X[0]),
        "jvp": lambda: jvp(f, (X[0],), (X[1],))[1],
        "vmap": lambda: vmap(f)(X),
        "jacfwd": lambda: jacfwd(f)(X[0]),
        "jacrev": lambda: jacrev(f)(X[0]),
        "hessian": lambda: hessian(loss)(X[0]),
        "jacrev(jacrev)": lambda: jacrev(jacrev(loss))(X[0]),
        "jacfwd(jacfwd)": lambda: jacfwd(jacfwd(loss))(X[0]),
        "vmap(grad)": lambda: vmap(grad(loss))(X),
        "vmap(hessian)": lambda: vmap(hessian(loss))(X),
        "grad(vmap)": lambda: grad(lambda x: vmap(loss)(x).sum())(X),
        "vmap(vmap(grad))": lambda: vmap(vmap(grad(loss), 1), 1)(torch.stack([X, 2 * X, X + 1, X - 1]).movedim(-1, 0)),
        "grad(grad)": lambda: grad(lambda x: grad(loss)(x).square().sum())(X[0]),
        "double backward": double_backward,
    }


NAMES = list(_transforms(None))


def derivative(name, f):
    """One of the derivatives of a function."""
    return _transforms(f)[name]()
