"""Checks of operators that draw: one draw for the value and every derivative, and under ``vmap`` as ``randomness`` says."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, grad_and_value, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from fullgrad._core.recomputed import without_aux
from fullgrad.testing._registry import check
from fullgrad.testing._subject import NotApplicable, Subject, close, gradients_of, like, scalar, slopes_of

# Number of samples that differ only in their noise: enough that some values differ.
_COPIES = 24


def drawing(s: Subject) -> tuple[Subject, Callable[..., Any], Callable[..., Tensor] | None]:
    """The drawing subject; its operator as a function of the differentiable inputs, ``noise`` and ``generator``; and the function
    of the inputs that draws the noise of a call, or None if the operator takes no noise.
    """
    if not s.draws:
        raise NotApplicable("the operator draws no random numbers")
    if s.random_operator is not None:
        inputs = s.inputs if s.random_inputs is None else s.random_inputs
        s = replace(s, operator=s.random_operator, inputs=inputs, random_operator=None, random_inputs=None)

    def bound(*tensors: Tensor, **kwargs: Any) -> Tensor:
        arguments = list(s.inputs)
        for i, t in zip(s.diff_argnums, tensors, strict=True):
            arguments[i] = t
        return s.operator(*arguments, **kwargs)

    return s, bound, None if isinstance(s.draws, bool) else s.bind(s.draws)


def generators() -> list[torch.Generator]:
    """torch's own generators, of the CPU and of each device of the accelerator."""
    found = [torch.default_generator]
    if torch.accelerator.is_available():
        torch.empty(0, device=torch.accelerator.current_accelerator())  # before its first tensor a device may have no generator
        found += getattr(torch.get_device_module(), "default_generators", ())
    return found


def _states(others: tuple[torch.Generator, ...] = ()) -> list[Tensor]:
    return [g.get_state() for g in (*generators(), *others)]


def _same(states: list[Tensor], others: list[Tensor]) -> bool:
    return all(map(torch.equal, states, others))


@contextlib.contextmanager
def _from_a_seed() -> Iterator[None]:
    """A context with the same random numbers each time, on every device; it restores the generators at its end."""
    found = generators()
    before = [g.get_state() for g in found]
    try:
        for g in found:
            g.manual_seed(12345)
        yield
    finally:
        for g, state in zip(found, before, strict=True):
            g.set_state(state)


def seeded(function: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
    """The result of a function from the same random numbers at each call; the generators are restored."""
    with _from_a_seed():
        return function(*arguments, **kwargs)


def _states_after(function: Callable[..., Any], *arguments: Any, generator: torch.Generator | None = None) -> list[Tensor]:
    """The states of all generators, and of a given one, after a function that starts from the same random numbers."""
    with _from_a_seed():
        given = () if generator is None else (generator.manual_seed(12345),)
        function(*arguments)
        return _states(given)


def _derivatives(s: Subject, f: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The name and function of each kind of derivative of a function of the differentiable inputs."""
    total = scalar(f)

    def second(*x: Tensor) -> None:
        leaves = [t.clone().requires_grad_() for t in x]
        gradients = gradients_of(total(*leaves), leaves, create_graph=True)
        of_gradients = [g.sin().sum() for g in gradients if g.requires_grad]
        if of_gradients:
            torch.autograd.grad(torch.stack(of_gradients).sum(), leaves, allow_unused=True)

    def tangent(*x: Tensor) -> None:
        jvp(f, x, s.tangents())

    yield "reverse mode", grad(total, s.argnums)
    for kind, derivative in (("a second derivative", second), ("forward mode", tangent)):
        try:
            seeded(derivative, *s.tensors)
        except RuntimeError:  # the operator has no such derivative
            continue
        yield kind, derivative


def _derivatives_draw_nothing(s: Subject, f: Callable[..., Any], generator: torch.Generator | None = None) -> None:
    """Check that each derivative leaves the generators in the same state as the value alone."""
    expected = _states_after(f, *s.tensors, generator=generator)
    for kind, derivative in _derivatives(s, f):
        if not _same(_states_after(derivative, *s.tensors, generator=generator), expected):
            raise AssertionError(f"a derivative draws random numbers of its own: {kind}")


def _copies(tensors: tuple[Tensor, ...], *sizes: int) -> tuple[Tensor, ...]:
    return tuple(t.expand(*sizes, *t.shape) for t in tensors)


def _samples(batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    return list(zip(*[t.unbind(0) for t in batch], strict=True))


def _all_equal(y: Tensor, dim: int) -> bool:
    first = y.narrow(dim, 0, 1).expand_as(y)
    return bool(((y == first) | (y.isnan() & first.isnan())).all())


@check("randomness")
def randomness_error_raises(s: Subject) -> None:
    """``vmap`` with the default ``randomness`` raises for batched and unbatched inputs, but not if noise is given."""
    s, f, noise = drawing(s)
    for batch, call in ((s.batch(), f), ((torch.zeros(3),), lambda _: f(*s.tensors))):
        try:
            vmap(call)(*batch)
        except RuntimeError as error:
            if "random" not in str(error):
                raise
        else:
            raise AssertionError("vmap(randomness='error') draws numbers in silence")
    if noise is not None:
        given = seeded(noise, *s.tensors)
        close(vmap(lambda *x: f(*x, noise=given))(*s.batch()), torch.stack([f(*x, noise=given) for x in _samples(s.batch())]))


@check("randomness")
def randomness_same_is_one_draw(s: Subject) -> None:
    """``randomness="same"`` gives each sample the value and gradient of a call on that sample alone."""
    s, f, _ = drawing(s)
    batch = s.batch()
    for g in (f, grad(scalar(f), s.argnums)):
        actual = seeded(vmap(g, randomness="same"), *batch)
        expected = [seeded(g, *x) for x in _samples(batch)]
        close(actual, _stacked(expected))


def _stacked(results: list[Any]) -> Any:
    return torch.stack(results) if isinstance(results[0], Tensor) else tuple(map(torch.stack, zip(*results, strict=True)))


@check("randomness")
def randomness_different_is_a_draw_each(s: Subject) -> None:
    """``randomness="different"`` gives each sample its own noise, in one draw for the whole batch."""
    s, f, noise = drawing(s)
    batch = s.batch()
    copies = _copies(s.tensors, _COPIES)
    if _all_equal(seeded(vmap(f, randomness="different"), *copies), 0):
        raise AssertionError(f"{_COPIES} equal samples have one value: there is one draw")
    if noise is None:
        return
    one, size = seeded(noise, *s.tensors), batch[0].shape[0]
    noises = seeded(vmap(noise, randomness="different"), *batch)
    assert noises.shape == (size, *one.shape), f"noise of shape {tuple(noises.shape)} for {size} samples of {tuple(one.shape)}"
    flat = noises.flatten(1)
    assert all(not torch.equal(flat[i], flat[j]) for i in range(size) for j in range(i)), "two samples have the same noise"
    actual = seeded(vmap(f, randomness="different"), *batch)
    after, expected = (_states_after(vmap(g, randomness="different"), *batch) for g in (f, noise))
    assert _same(after, expected), "the operator draws more than its noise, or less"
    close(actual, torch.stack([f(*x, noise=n) for x, n in zip(_samples(batch), noises, strict=True)]))


@check("randomness")
def randomness_of_nested_vmaps(s: Subject) -> None:
    """Unbatched inputs, ``in_dims``, and all four pairs of two nested ``vmap``."""
    s, f, _ = drawing(s)
    for randomness in ("same", "different"):
        in_front = seeded(vmap(f, randomness=randomness), *s.batch())
        behind = seeded(vmap(f, in_dims=-1, randomness=randomness), *s.batch(-1))
        close(behind, in_front)
    size = _COPIES // 2
    one = seeded(f, *s.tensors)
    for inputs in ((), s.tensors):  # unbatched, and batched at both levels
        for outer in ("same", "different"):
            for inner in ("same", "different"):
                batch = (torch.zeros(size, size), *_copies(inputs, size, size))

                def call(_: Tensor, *x: Tensor) -> Tensor:
                    return f(*(x or s.tensors))

                y = seeded(vmap(vmap(call, randomness=inner), randomness=outer), *batch)
                for dim, randomness in ((0, outer), (1, inner)):
                    if _all_equal(y, dim) != (randomness == "same"):
                        found = "different" if randomness == "same" else "all equal"
                        raise AssertionError(
                            f"vmap {outer!r} of vmap {inner!r}, inputs {'batched' if inputs else 'unbatched'}: "
                            f"the samples of the {'inner' if dim else 'outer'} one are {found}"
                        )
                if outer == inner == "same":
                    close(y[0, 0], one)


@check("randomness")
def one_draw_in_value_and_derivatives(s: Subject) -> None:
    """Value, gradient and tangent share one draw, and a derivative draws nothing; ``linearize`` with given noise."""
    s, f, noise = drawing(s)
    x, tangents = s.tensors, s.tangents()
    _derivatives_draw_nothing(s, f)
    y = seeded(f, *x)
    reference = f if noise is None else lambda *x: f(*x, noise=given)
    given = None if noise is None else seeded(noise, *x)
    close(seeded(reference, *x), y)
    expected = seeded(grad(scalar(reference), s.argnums), *x)
    # Reverse mode, in eager code, by torch.func, and traced.
    leaves = s.leaves()
    total = seeded(scalar(f), *leaves)
    gradients = gradients_of(total, leaves, create_graph=True)
    close(tuple(g.detach() for g in gradients), expected)
    value = scalar(lambda *_: y)(*x)
    close(seeded(grad_and_value(scalar(f), s.argnums), *x), (expected, value))
    pulled, back = without_aux(seeded(vjp, f, *x))
    close(pulled, y)
    cotangent = like(y, 7)
    first = back(cotangent)
    close(back(cotangent), first)
    close(first, seeded(lambda: without_aux(vjp(reference, *x))[1](cotangent)))
    graph = seeded(make_fx(grad(scalar(f), s.argnums)), *x)
    close(seeded(graph, *x), expected)
    # Forward mode.
    tangent = None
    with contextlib.suppress(NotImplementedError):  # the operator may have no tangent
        tangent = seeded(jvp, reference, x, tangents)
    if tangent is None:
        return
    close(seeded(jvp, f, x, tangents), tangent)
    with forward_ad.dual_level():
        dual = seeded(f, *[forward_ad.make_dual(a, t) for a, t in zip(x, tangents, strict=True)])
        primal, of_dual = forward_ad.unpack_dual(dual)
        close((primal, torch.zeros_like(primal) if of_dual is None else of_dual), tangent)
    if noise is not None:  # the function that torch's linearize returns draws again at each call
        start, push = seeded(linearize, reference, *x)
        close((start, push(*tangents)), tangent)
        close(push(*tangents), tangent[1])


@check("randomness")
def checkpoint_draws_again_the_same(s: Subject) -> None:
    """``torch.utils.checkpoint``, both kinds: the recomputed forward has the same noise."""
    s, f, _ = drawing(s)
    expected = seeded(grad(scalar(f), s.argnums), *s.tensors)
    for reentrant in (False, True):
        leaves = s.leaves()

        def run(*x: Tensor, reentrant: bool = reentrant) -> None:
            scalar(lambda *y: checkpoint(f, *y, use_reentrant=reentrant))(*x).backward()

        seeded(run, *leaves)
        close(slopes_of(leaves), expected)


@check("randomness")
def compiled_draws_once(s: Subject) -> None:
    """Compiled in one graph: new numbers at each call, one draw for value and gradient, samples as ``randomness`` says."""
    s, f, noise = drawing(s)

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        torch.compiler.reset()
        return torch.compile(function, backend=s.options.get("backend", "aot_eager"), fullgraph=True)

    copies = _copies(s.tensors, _COPIES)
    for randomness in ("same", "different"):
        y = seeded(compiled(lambda *x, r=randomness: vmap(f, randomness=r)(*x)), *copies)
        if _all_equal(y, 0) != (randomness == "same"):
            raise AssertionError(f"compiled vmap(randomness={randomness!r}) draws {'one' if randomness != 'same' else 'more'}")
    run = compiled(lambda *x: vmap(f, randomness="different")(*x))
    if torch.equal(*(seeded(lambda: (run(*copies), run(*copies))))):
        raise AssertionError("two calls of compiled code draw the same numbers")
    if noise is None:
        return

    def with_noise(*x: Tensor) -> Any:
        n = noise(*x)
        return grad_and_value(scalar(lambda *y: f(*y, noise=n)), s.argnums)(*x), f(*x, noise=n), n

    result, y, n = seeded(compiled(with_noise), *s.tensors)
    close(y, f(*s.tensors, noise=n))
    close(result, grad_and_value(scalar(lambda *x: f(*x, noise=n)), s.argnums)(*s.tensors))


@check("randomness")
def given_noise_draws_nothing(s: Subject) -> None:
    """With ``noise`` or a ``generator``, torch's own generators stay unchanged, on every device and in derivatives too; a given
    generator draws the same numbers as torch's would, and nothing in a derivative.
    """
    s, f, noise = drawing(s)
    if noise is None:
        raise NotApplicable("the operator takes no noise")
    x = s.tensors
    given, y = seeded(noise, *x), seeded(f, *x)
    close(seeded(f, *x, noise=given), y)
    generator = torch.Generator(x[0].device)

    def by_generator(*x: Tensor) -> Tensor:
        return f(*x, generator=generator)

    moved = "torch's own generator moves though noise or a generator is given"
    untouched = _states_after(lambda: None)
    for function in (lambda *x: f(*x, noise=given), by_generator):
        assert _same(_states_after(function, *x, generator=generator)[:-1], untouched), moved
        _derivatives_draw_nothing(s, function, generator)
    drawn = seeded(f, *x, generator=generator.manual_seed(12345))
    if x[0].device.type == "cpu":
        close(drawn, y)
    close(seeded(f, *x, generator=generator.manual_seed(12345)), drawn)


@check("randomness")
def strides_do_not_change_the_draw(s: Subject) -> None:
    """Inputs with other strides, such as transposed ones, get the same noise as contiguous ones."""
    s, f, _ = drawing(s)
    expected = seeded(f, *s.tensors)
    layouts = (
        lambda t: t.mT.contiguous().mT if t.ndim >= 2 else t,
        lambda t: torch.stack((t, -t), -1)[..., 0],
        lambda t: t.flip(0).contiguous().flip(0) if t.ndim else t,
    )
    for layout in layouts:
        close(seeded(f, *map(layout, s.tensors)), expected)


@check("randomness")
def rare_events_in_half_precision(s: Subject) -> None:
    """In half precision the mean of a million draws of a rare event is right: noise in float16 or bfloat16 has too few values.

    The option ``rare`` has inputs, and a function of them in float64 that returns the mean of the value, which is 0 or 1.
    """
    if "rare" not in s.options:
        raise NotApplicable("no inputs with a rare event were given")
    (_, f, _), (inputs, mean) = drawing(s), s.options["rare"]
    n = 1_000_000
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        rounded = [t.to(dtype) for t in inputs]
        expected = mean(*[t.double() for t in rounded])
        y = seeded(f, *[t.expand(n, *t.shape) if t.ndim else t for t in rounded]).double().mean(0)
        error = (expected * (1 - expected) / n).sqrt()
        if bool(((y - expected).abs() > 5 * error).any()):
            raise AssertionError(f"{dtype}: the mean of {n} draws is {y.tolist()}, expected {expected.tolist()}")
