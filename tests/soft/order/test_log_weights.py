"""Properties of `return_log_probs`: the logarithms of the weights, which stay finite where weights underflow."""

import itertools

import pytest
import torch
from torch.func import grad, hessian, vmap

from fullgrad import soft
from fullgrad.testing._subject import close, like

pytestmark = pytest.mark.short

METHODS = pytest.mark.parametrize("method", ["softsort", "neuralsort"])


def rows(*shape, seed=0):
    return like(torch.empty(shape, dtype=torch.float64), seed)


@METHODS
def test_they_are_the_logarithms_of_the_weights(method):
    """Along every dimension or of all elements, standardized or not, of integers and of numbers without dimensions."""
    x = rows(3, 5)
    for standardize, dim, flag in itertools.product((True, False), (0, -1, None), (True, False)):
        options = {"method": method, "standardize": standardize, "softness": 0.3}
        for function in (soft.argmax, soft.argmin):
            expected = function(x, dim, flag, **options).log()
            close(function(x, dim, flag, **options, return_log_probs=True), expected)
        close(soft.argsort(x, dim, flag, **options, return_log_probs=True), soft.argsort(x, dim, flag, **options).log())
    for small in (torch.tensor(2), torch.tensor([3, 1, 2])):
        for function in (soft.argmax, soft.argmin, soft.argsort):
            found = function(small, method=method, return_log_probs=True)
            close(found, function(small, method=method).log(), rtol=1e-4, atol=1e-4)
    assert soft.argsort(x[:, :0], method=method, return_log_probs=True).shape == (3, 0, 0)


@METHODS
def test_the_likelihood_of_an_order_is_finite_and_has_a_gradient(method):
    """Where all weights of the right order underflow, its gradient brings scores into that order, per sample, too."""
    x, order = torch.tensor([[0.0, 4.0, 9.0], [5.0, 1.0, 2.0]], dtype=torch.float64), torch.tensor([2, 0, 1])

    def loss(x):
        places = soft.argsort(x, descending=True, softness=1e-4, method=method, return_log_probs=True)
        return -places.gather(-1, order.unsqueeze(-1)).sum()

    assert soft.argsort(x, descending=True, softness=1e-4, method=method)[0].gather(-1, order.unsqueeze(-1)).prod() == 0
    assert all(loss(row).isfinite() for row in x)
    g = vmap(grad(loss))(x)
    close(g, torch.stack([grad(loss)(row) for row in x]))
    assert g.isfinite().all()
    assert g[0].abs().sum() > 0
    assert hessian(loss)(x[0]).isfinite().all()


def test_infinite_elements_have_a_weight_of_zero():
    """Minus infinity, which is masked, has the logarithm minus infinity and no gradient; others are as without it."""
    x = torch.tensor([1.0, -torch.inf, 2.0], dtype=torch.float64)
    options = {"standardize": False, "softness": 0.3, "return_log_probs": True}
    found = soft.argmax(x, -1, **options)
    close(found[[0, 2]], soft.argmax(x[[0, 2]], -1, **options))
    assert found[1] == -torch.inf
    g = grad(lambda x: soft.argmax(x, -1, **options)[0])(x)
    close(g[[0, 2]], grad(lambda x: soft.argmax(x, -1, **options)[0])(x[[0, 2]]))
    assert g[1] == 0


@pytest.mark.parametrize("name", ["argmax", "argmin", "argsort"])
def test_errors_name_the_rule(name):
    """Weights that may be 0 have no logarithm."""
    function, x = getattr(soft, name), torch.ones(3)
    with pytest.raises(ValueError, match=f"^{name}: `mode` must be 'smooth' with `return_log_probs`, .* got 'c0'"):
        function(x, mode="c0", return_log_probs=True)
    with pytest.raises(ValueError, match=f"^{name}: `method` must be 'softsort' or 'neuralsort' with .* got 'ot'"):
        function(x, method="ot", return_log_probs=True)
    with pytest.raises(TypeError, match=f"^{name}: `return_log_probs` must be"):
        function(x, return_log_probs=1)
