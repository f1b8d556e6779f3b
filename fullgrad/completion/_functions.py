"""Functions and operators in Python that torch calls, where torch.func refuses them or their second derivatives are wrong."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental import const_fold
from torch.nn import functional

from fullgrad._dispatch import (
    active_transforms,
    chunked_losses,
    dirichlet_function,
    forward_mode_is_on,
    is_compiling,
    renew_written,
    transforms_active,
    transforms_module,
    vmap_module,
    with_one_sample,
    without_samples,
)
from fullgrad._engine.call import flattened
from fullgrad.completion._completing import with_formula
from fullgrad.completion._registry import ATTRIBUTES
from fullgrad.functions import custom_jvp


@custom_jvp
def _with_derivative(concentration: Tensor, x: Tensor) -> Tensor:
    return x.clone()


@_with_derivative.defjvp
def _tangent(primals: Any, tangents: Any) -> tuple[Tensor, Tensor]:
    """The derivative that torch's backward transposes; it has none itself, of which torch says so."""
    concentration, x = primals
    total = concentration.sum(-1, keepdim=True).expand_as(concentration)
    parts = torch._dirichlet_grad(x, concentration, total) * tangents[0]
    return _with_derivative(concentration, x), parts - x * parts.sum(-1, keepdim=True)


def _dirichlet(original: Callable[..., Any]) -> Callable[..., Any]:
    """A sample of the Dirichlet distribution, of which that of the beta distribution is one number."""

    def drawn(concentration: Tensor) -> Tensor:
        if not (transforms_active() or forward_mode_is_on()):
            return original(concentration)
        return _with_derivative(concentration, torch._sample_dirichlet(concentration.detach()))

    return staticmethod(drawn)


def _chunked_loss(original: Callable[..., Any], has_reduction: bool) -> Callable[..., Any]:
    """Cross entropy by chunks: torch's numbers and gradient in eager code, where the second derivative is silently wrong."""

    def loss(x: Tensor, weight: Tensor, target: Tensor, bias: Any, of_classes: Any, *options: Any) -> Any:
        reduction, ignored, smoothing = options[:3] if has_reduction else ("none", options[0], 0.0)

        def formula(*tensors: Any) -> Tensor:
            x, weight, target, bias, of_classes = tensors
            return functional.cross_entropy(
                functional.linear(x, weight, bias), target, of_classes, None, ignored, None, reduction, smoothing
            )

        def own(*tensors: Any) -> Tensor:
            if not has_reduction:
                return original(*tensors, *options)
            return original(*tensors, *options[:-4], True, *options[-3:])[0]  # its graph is kept

        tensors = x, weight, target, bias, of_classes
        if transforms_active() or forward_mode_is_on():
            y = formula(*tensors)
        else:
            y = with_formula(own, formula, tensors, {}, has_first=True)
        return (y,) if has_reduction else y

    return loss


def _variance(original: property) -> property:
    """The variance of Student's t distribution, of which torch selects numbers by a mask, as many as each sample has."""

    def variance(self: Any) -> Tensor:
        if "Vmap" not in active_transforms():
            return original.fget(self)  # pyright: ignore[reportOptionalCall]
        is_finite = self.df > 2
        df = torch.where(is_finite, self.df, 3)
        others = torch.where((self.df <= 2) & (self.df > 1), torch.inf, torch.nan).to(df.dtype)
        return torch.where(is_finite, self.scale.square() * df / (df - 2), others)

    return property(variance, doc=original.__doc__)


def _of_no_samples(original: Callable[..., Any]) -> Callable[..., Any]:
    """`vmap` over no samples is that over one, which is left out: torch has no rule for some operators, and guesses sizes."""

    def mapped(function: Any, in_dims: Any, out_dims: Any, randomness: str, chunk_size: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and any(isinstance(v, Tensor) and 0 in v.shape for v in flattened(args)[0]):
            with contextlib.suppress(Exception):  # torch has the words
                given = with_one_sample(function, in_dims, args)
                if given is not None:
                    return without_samples(original(function, in_dims, out_dims, randomness, None, *given, **kwargs), out_dims)
        return original(function, in_dims, out_dims, randomness, chunk_size, *args, **kwargs)

    return mapped


def _disallowed(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.func.linearize` computes constants once, before what writes to them. It asks for the function that does so here,
    as Dynamo must not see it.
    """

    def disallowed(function: Callable[..., Any]) -> Callable[..., Any]:
        found = original(function)
        if function is not const_fold.split_const_subgraphs:
            return found

        def split(module: Any, *args: Any, **kwargs: Any) -> Any:
            renew_written(module)
            return found(module, *args, **kwargs)

        return split

    return disallowed


def _replaces(owner: Any, name: str, replaced: Callable[..., Any], *args: Any) -> None:
    if hasattr(owner, name):
        ATTRIBUTES.append((owner, name, replaced(getattr(owner, name), *args)))


_replaces(torch.distributions.StudentT, "variance", _variance)
_replaces(vmap_module, "vmap_impl", _of_no_samples)
_replaces(transforms_module, "lazy_dynamo_disallow", _disallowed)
_replaces(dirichlet_function, "apply", _dirichlet)
_losses = chunked_losses()
_replaces(_losses, "_linear_cross_entropy_batch_chunked", _chunked_loss, True)
_replaces(_losses, "_linear_cross_entropy_batch_chunked_no_reduction", _chunked_loss, False)
