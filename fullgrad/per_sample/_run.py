"""A loss over a batch: its arguments, and the run that delivers each parameter's contributions."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.autocast import without_autocast
from fullgrad._dispatch import (
    are_differentiated,
    current_level,
    forward_mode_is_on,
    is_distributed,
    is_exporting,
    is_tracing,
    outside_inference_mode,
    perhaps,
    pytree,
    transforms_active,
)
from fullgrad.per_sample._calls import Calls
from fullgrad.per_sample._contributions import Contribution, Dense, opmath
from fullgrad.per_sample._record import Record

# As many samples are run first, where the size of chunks is to be chosen.
_FIRST = 8


class Loss:
    """A loss of one sample, and how it is applied to a batch.

    Args:
        name: The function that was called, for errors.
        loss: A function of parameters and one sample.
        in_dims, chunk_size, randomness: As of ``torch.func.vmap``; ``in_dims`` counts the parameters first.
        has_aux: Whether the loss returns a pair, of which the second part is passed on.
    """

    def __init__(self, name: str, loss: Any, in_dims: Any, chunk_size: Any, randomness: str, has_aux: bool) -> None:
        checks.function(name, "loss", loss)
        checks.choice(name, "randomness", randomness, ("error", "different", "same"))
        checks.flag(name, "has_aux", has_aux)
        if in_dims is not None and not (isinstance(in_dims, tuple) and in_dims and in_dims[0] is None):
            raise ValueError(
                f"{name}: `in_dims` must be a tuple that begins with None, as all samples share the parameters, got {in_dims!r}."
            )
        if chunk_size is not None and (not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1):
            raise ValueError(f"{name}: `chunk_size` must be None or a positive integer, got {chunk_size!r}.")
        self.name, self.loss, self.in_dims, self.chunk_size = name, loss, in_dims, chunk_size
        self.randomness, self.has_aux = randomness, has_aux

    def parameters(self, params: Any) -> list[Tensor]:
        """The tensors of a tree of parameters."""
        leaves = pytree.tree_leaves(params)
        for leaf in leaves:
            if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
                found = f"dtype {leaf.dtype}" if isinstance(leaf, Tensor) else f"a {type(leaf).__name__}"
                way_out = "pass others in a closure"
                if isinstance(leaf, torch.nn.Module):
                    way_out = "pass dict(model.named_parameters()), which the loss gives to torch.func.functional_call"
                raise TypeError(f"{self.name}: each parameter must be a floating tensor, got {found}; {way_out}.")
            if is_distributed(leaf):
                raise NotImplementedError(
                    f"{self.name}: a parameter is a DTensor, whose per-sample gradients lie on several ranks: pass plain "
                    "tensors, such as its `full_tensor()`, and add the sums of the ranks yourself."
                )
        if not leaves:
            raise ValueError(f"{self.name}: there are no parameters.")
        return leaves

    def dims(self, batch: Sequence[Any]) -> tuple[Any, ...]:
        """The batch dimensions of the arguments after the parameters."""
        if self.in_dims is None:
            return (0,) * len(batch)
        if len(self.in_dims) != len(batch) + 1:
            raise ValueError(
                f"{self.name}: `in_dims` must have one entry for each of {len(batch) + 1} arguments, got {self.in_dims!r}."
            )
        return self.in_dims[1:]

    def run(
        self,
        params: Any,
        batch: Sequence[Any],
        finish: Callable[[slice, int, Contribution], None],
        after: Callable[[slice], Any] = lambda samples: None,
        may_chunk: bool = True,
    ) -> Any:
        """Call ``finish`` with the contributions to each parameter of each chunk of samples, and ``after`` after each chunk.

        Without a ``chunk_size`` it is chosen by what samples take, if ``may_chunk`` and if no sample draws: other chunks would
        draw other numbers. Returns what the loss returns besides.
        """
        leaves, spec = self.parameters(params), pytree.tree_flatten(params)[1]
        dims = self.dims(batch)
        if is_exporting() or torch.jit.is_tracing():
            raise NotImplementedError(
                f"{self.name}: torch.export and torch.jit.trace keep no derivative. Compile the call with torch.compile, or "
                "trace it with make_fx."
            )
        size, device = self.size(batch)
        self._check_sizes(params, batch, dims)
        if not size:  # torch's vmap takes no empty batch in many functions
            after(slice(0, 0))
            return self._aux_of_none(params, batch, dims, device) if self.has_aux else ()
        if torch.compiler.is_dynamo_compiling():
            return self._compiled(params, batch, dims, slice(0, size), device, finish, after)
        tensors = [v for v in pytree.tree_leaves((params, batch)) if isinstance(v, Tensor)]
        may_record = transforms_active() or any(v.requires_grad for v in tensors)
        is_forward, done, taken = forward_mode_is_on(), 0, [0]

        def of_sample(marker: Tensor, *sample: Any) -> Any:
            nonlocal done
            record = Record([p.shape for p in leaves], marker, is_forward, lambda k, found: finish(samples, k, found))
            samples = slice(done, done + record.size)
            done = samples.stop

            def of_way(way: Tensor) -> Any:
                record.level = current_level()
                entered = [record.enter(k, p, way) for k, p in enumerate(leaves)]
                with Calls(record):
                    result = self._called(pytree.tree_unflatten(entered, spec), sample)
                value, aux = self._value_and_aux(result)
                record.ends_in(value)
                return value, aux

            try:
                with outside_inference_mode():
                    found: Any = torch.func.vjp(of_way, torch.zeros((), device=device), has_aux=True)
                    value, pull, aux = found
                    is_recorded = torch.is_grad_enabled() and (may_record or are_differentiated([value])[0])
                    with torch.set_grad_enabled(is_recorded), record.delivering():
                        pull(torch.ones_like(value), retain_graph=is_recorded)
            finally:
                record.close()
            taken[0] = record.taken
            with without_autocast(device.type):
                after(samples)
            return marker, aux

        def of_batch(batch: Sequence[Any], chunk_size: int | None) -> Any:
            markers = torch.zeros(self.size(batch)[0], device=device)
            mapped: Any = torch.func.vmap(of_sample, (0, *dims), randomness=self.randomness, chunk_size=chunk_size)
            try:
                return mapped(markers, *batch)[1]
            except RuntimeError as error:
                if "data-dependent control flow" not in str(error):
                    raise
                raise RuntimeError(
                    f"{self.name}: the loss reads a number of its sample, by `item()`, an `if` or a condition on a mask, which "
                    "differs between samples. Use `torch.where`; give models of transformers that look at their padding an "
                    "attention mask of four dimensions, (1, 1, queries, keys), which they take as it is."
                ) from error

        if self.chunk_size is not None or not may_chunk or self.randomness != "error" or size <= _FIRST:
            return of_batch(batch, self.chunk_size)
        # What the first samples take tells how many of the others are cheaper together.
        part = lambda first, count: _mapped(dims, tuple(batch), lambda leaf, dim: leaf.narrow(dim, first, count))  # noqa: E731
        aux = of_batch(part(0, _FIRST), None)
        left, each = size - _FIRST, max(1, taken[0] // _FIRST)
        most = max(_FIRST, 4 + 3 * sum([p.numel() * p.element_size() for p in leaves]) // each)
        others = of_batch(part(_FIRST, left), -(-left // -(-left // most)))
        return pytree.tree_map(lambda first, other: torch.cat([first, other]), aux, others)

    def _compiled(self, params: Any, batch: Any, dims: Any, samples: slice, device: Any, finish: Any, after: Any) -> Any:
        """The same by plain per-sample gradients: graphs of torch.compile do not show which calls have which parameters."""
        gradient = torch.func.grad(self.loss, has_aux=self.has_aux)
        of_batch: Any = torch.func.vmap(gradient, (None, *dims), randomness=self.randomness, chunk_size=self.chunk_size)
        found = of_batch(params, *batch)
        found, aux = found if self.has_aux else (found, ())
        with without_autocast(device.type):
            for k, g in enumerate(pytree.tree_leaves(found)):
                finish(samples, k, Dense(g))
            after(samples)
        return aux

    def _aux_of_none(self, params: Any, batch: Any, dims: Any, device: torch.device) -> Any:
        """The auxiliary results of no samples, whose shapes and dtypes are those of a sample of zeros."""
        one = _mapped(dims, tuple(batch), _zeros_of_one)
        own = pytree.tree_map(torch.clone, params)  # the loss may write into them
        of_sample = lambda *sample: self._value_and_aux(self.loss(own, *sample))[1]  # noqa: E731
        draws = self.randomness != "error"
        devices = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(devices, device_type=device.type) if draws and not is_tracing() else contextlib.nullcontext():
            aux = torch.func.vmap(of_sample, dims, randomness=self.randomness)(*one)
        return pytree.tree_map(lambda leaf: leaf[:0], aux)

    def _called(self, params: Any, sample: Sequence[Any]) -> Any:
        """The loss of a sample, whose error says if the loss takes the parameters last."""
        try:
            return self.loss(params, *sample)
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            if not self._takes_parameters_last(params, sample):
                raise
            raise TypeError(
                f"{self.name}: the loss is called as loss(params, *sample), and takes the parameters last."
            ) from error

    def _takes_parameters_last(self, params: Any, sample: Sequence[Any]) -> bool:
        try:
            return isinstance(self.loss(*sample, params), (Tensor, tuple))
        except Exception:
            return False

    def _check_sizes(self, params: Any, batch: Sequence[Any], dims: Any) -> None:
        """Require one number of samples of all arguments, with what is wrong if the parameters are among them."""
        found = [(dim, leaf) for dim, leaf in _leaves_with_dims(dims, tuple(batch)) if isinstance(leaf, Tensor)]
        sizes = [leaf.shape[dim] for dim, leaf in found if -leaf.ndim <= dim < leaf.ndim]  # vmap refuses others
        if all(perhaps(size == sizes[0]) for size in sizes):
            return
        told = ", ".join(map(str, sizes))
        is_parameter = [isinstance(v, dict) or _has_parameters(v) for v in (params, *batch)]
        if True in is_parameter[1:] and not is_parameter[0]:
            told += f": argument {is_parameter.index(True)} looks like the parameters, which come first, (params, *batch)"
        raise ValueError(f"{self.name}: the arguments after the parameters must have one number of samples, got {told}.")

    def _value_and_aux(self, result: Any) -> tuple[Tensor, Any]:
        if self.has_aux and not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"{self.name}: with `has_aux` the loss must return a pair, got a {type(result).__name__}.")
        value, aux = result if self.has_aux else (result, ())
        if not isinstance(value, Tensor):
            raise TypeError(f"{self.name}: the loss must return a tensor, got a {type(value).__name__}.")
        if value.ndim or not value.is_floating_point():
            raise ValueError(
                f"{self.name}: the loss must return one floating number, as it is that of one sample, got shape "
                f"{tuple(value.shape)} and dtype {value.dtype}."
            )
        return value, aux

    def size(self, batch: Sequence[Any]) -> tuple[int, torch.device]:
        """The number of samples, and where they are."""
        for dim, leaf in _leaves_with_dims(self.dims(batch), tuple(batch)):
            if isinstance(leaf, Tensor) and leaf.ndim:
                if not -leaf.ndim <= dim < leaf.ndim:
                    raise ValueError(
                        f"{self.name}: `in_dims` has {dim} for a tensor of shape {tuple(leaf.shape)}, whose dimensions are "
                        f"{-leaf.ndim} to {leaf.ndim - 1}."
                    )
                return leaf.shape[dim], leaf.device
        raise ValueError(f"{self.name}: no argument after the parameters has a batch.")


def _has_parameters(tree: Any) -> bool:
    return any(isinstance(leaf, torch.nn.Parameter) for leaf in pytree.tree_leaves(tree))


def _leaves_with_dims(dims: Any, tree: Any) -> Iterator[tuple[int, Any]]:
    """The leaves of a tree with a batch dimension; ``dims`` may stop above them, as in vmap."""
    if isinstance(dims, int):
        yield from ((dims, leaf) for leaf in pytree.tree_leaves(tree))
    elif isinstance(dims, dict) and isinstance(tree, dict):
        for key, dim in dims.items():
            yield from _leaves_with_dims(dim, tree.get(key))
    elif isinstance(dims, (tuple, list)) and isinstance(tree, (tuple, list)):
        for dim, part in zip(dims, tree, strict=False):
            yield from _leaves_with_dims(dim, part)


def _zeros_of_one(leaf: Tensor, dim: int) -> Tensor:
    """A batch of one sample of zeros."""
    return leaf.new_zeros([1 if d == dim % leaf.ndim else n for d, n in enumerate(leaf.shape)])


def _mapped(dims: Any, tree: Any, function: Callable[[Tensor, int], Tensor]) -> Any:
    """A tree with a function applied to the leaves that have a batch dimension, and to that."""
    if isinstance(dims, int):  # vmap refuses what is no tensor
        return pytree.tree_map(lambda leaf: function(leaf, dims) if isinstance(leaf, Tensor) and leaf.ndim else leaf, tree)
    if isinstance(dims, dict):
        return {key: _mapped(dims[key], part, function) for key, part in tree.items()}
    if isinstance(dims, (tuple, list)):
        parts = [_mapped(dim, part, function) for dim, part in zip(dims, tree, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def real_dtype(leaf: Tensor) -> torch.dtype:
    """The dtype of a norm."""
    return leaf.dtype.to_real() if leaf.is_complex() else leaf.dtype


def result_dtype(leaves: Sequence[Tensor]) -> torch.dtype:
    """The dtype of norms: that of the parameters, real."""
    return functools.reduce(torch.promote_types, [real_dtype(leaf) for leaf in leaves])


def root(squares: Tensor) -> Tensor:
    """The root, whose derivative at 0 is 0."""
    is_zero = squares == 0
    return torch.where(is_zero, squares, squares.masked_fill(is_zero, 1).sqrt())


class Squares:
    """The squared norms of each parameter's gradients, chunk by chunk, in at least float32."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self.leaves, self.now = leaves, {}
        self.chunks: list[list[Tensor]] = [[] for _ in leaves]

    def add(self, k: int, squared: Tensor) -> None:
        """Note those of a parameter in a chunk."""
        self.now[k] = squared

    def after(self, samples: slice) -> list[Tensor]:
        """The squares of the chunk that ends, of all parameters."""
        found = []
        for k, leaf in enumerate(self.leaves):
            squared = self.now.pop(k, None)
            if squared is None:  # the loss does not depend on it
                squared = opmath(leaf.detach().new_zeros(())).new_zeros(samples.stop - samples.start)
            self.chunks[k].append(squared)
            found.append(squared)
        return found

    def of_each(self) -> list[Tensor]:
        """The squares of all samples, for each parameter."""
        return [torch.cat(chunks) for chunks in self.chunks]


def total(squares: Sequence[Tensor]) -> Tensor:
    """The squared norms over all parameters."""
    return functools.reduce(torch.add, [s.to(squares[0].device) for s in squares])
