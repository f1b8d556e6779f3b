"""Checks of clauses 2, 3 and 5: the declared derivative and its derivatives, under every transform."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad, functional
from torch.autograd.gradcheck import GradcheckError
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

from fullgrad._core.recomputed import without_aux
from fullgrad.forward import jet
from fullgrad.testing._registry import check
from fullgrad.testing._subject import NotApplicable, Subject, close, gradients_of, like, scalar, slopes_of

# --- reverse ----------------------------------------------------------------------------------------------------------


@check("reverse")
def backward(s: Subject) -> None:
    """``backward`` puts the declared gradient into ``.grad``, and adds to what is there."""
    leaves = s.leaves()
    for _ in range(2):
        scalar(s.op)(*leaves).backward()
    close(slopes_of(leaves), tuple(2 * g for g in s.gradients(s.reference)))


@check("reverse")
def each_input_alone(s: Subject) -> None:
    """The gradient is right when one input alone requires it, and the cotangent stays as it is."""
    others = s.leaves()
    z = s.reference(*others)
    expected = gradients_of(z, others, like(z, 7))
    for i in s.argnums:
        leaves = [t.clone().requires_grad_(j == i) for j, t in enumerate(s.tensors)]
        y = s.op(*leaves)
        g = like(y, 7)
        close(gradients_of(y, leaves[i : i + 1], g), (expected[i],))
        if not torch.equal(g, like(y, 7)):
            raise AssertionError(f"the backward for input {i} alone changes the cotangent in place, which belongs to the caller")


@check("reverse")
def func_grad(s: Subject) -> None:
    """``torch.func.grad``."""
    s.compare(lambda f: grad(scalar(f), s.argnums), reference_transform=lambda f: lambda *x: s.gradients(f))


@check("reverse")
def func_vjp(s: Subject) -> None:
    """``torch.func.vjp``, the returned function called after its level has ended."""

    def pull(f):
        def run(*tensors: Tensor):
            y, back = without_aux(vjp(f, *tensors))
            return y, back(like(y, 7))

        return run

    def eagerly(f):
        def run(*tensors: Tensor):
            leaves = s.leaves()
            y = f(*leaves)
            return y.detach(), gradients_of(y, leaves, like(y, 7))

        return run

    s.compare(pull, reference_transform=eagerly)


@check("reverse")
def func_jacrev(s: Subject) -> None:
    """``torch.func.jacrev``."""
    s.compare(lambda f: jacrev(f, s.argnums), reference_transform=_jacobian)


@check("reverse")
def batched_cotangents(s: Subject) -> None:
    """``torch.autograd.grad(is_grads_batched=True)``."""

    leaves, others = s.leaves(), s.leaves()
    y, z = s.op(*leaves), s.reference(*others)
    batched = gradients_of(y, leaves, torch.stack([like(y, i) for i in range(3)]), is_grads_batched=True)
    loop = [gradients_of(z, others, like(z, i), retain_graph=True) for i in range(3)]
    close(batched, _stacked(loop))


# --- forward ----------------------------------------------------------------------------------------------------------


@check("forward")
def dual_numbers(s: Subject) -> None:
    """``torch.autograd.forward_ad``, with all tangents and with each alone."""
    for alone in (None, *s.argnums):
        directions = [t if alone in (None, i) else torch.zeros_like(t) for i, t in enumerate(s.tangents())]

        def tangent(f, alone=alone, directions=directions):
            def run(*tensors: Tensor):
                with forward_ad.dual_level():
                    pairs = zip(tensors, directions, strict=True)
                    duals = [forward_ad.make_dual(x, t) if alone in (None, i) else x for i, (x, t) in enumerate(pairs)]
                    y, t = forward_ad.unpack_dual(f(*duals))
                    return y, torch.zeros_like(y) if t is None else t

            return run

        s.compare(
            tangent, reference_transform=lambda f, directions=directions: lambda *x: functional.jvp(f, x, tuple(directions))
        )


@check("forward")
def tangents_are_not_shared(s: Subject) -> None:
    """An in-place operation on the output leaves the tangents of the inputs alone."""
    with forward_ad.dual_level():
        tangents = s.tangents()
        y = s.op(*[forward_ad.make_dual(x, t) for x, t in zip(s.tensors, tangents, strict=True)])
        try:
            y.mul_(3)
        except RuntimeError:
            return  # an output that is a view of its input refuses
    close(tangents, s.tangents())


@check("forward")
def func_jvp(s: Subject) -> None:
    """``torch.func.jvp``."""
    tangents = s.tangents()
    s.compare(lambda f: lambda *x: jvp(f, x, tangents), reference_transform=lambda f: lambda *x: functional.jvp(f, x, tangents))


@check("forward")
def func_jacfwd(s: Subject) -> None:
    """``torch.func.jacfwd``."""
    s.compare(lambda f: jacfwd(f, s.argnums), reference_transform=_jacobian)


@check("forward")
def func_linearize(s: Subject) -> None:
    """``torch.func.linearize`` at two tangents, against eager forward mode, since to linearize the surrogate takes long."""
    tangents = [s.tangents(seed) for seed in (1, 5)]
    y, tangent_map = linearize(s.op, *s.tensors)
    eagerly = jvp if s.surrogate is not None else functional.jvp
    expected = [eagerly(s.reference, s.tensors, t)[1] for t in tangents]
    close((y, *(tangent_map(*t) for t in tangents)), (s.reference(*s.tensors), *expected))


@check("forward")
def adjoint(s: Subject) -> None:
    """``<g, J t> == <J^T g, t>`` for the operator's own rules."""
    if not s.linear:
        raise NotApplicable("the map of the cotangent is not linear")
    y, back = without_aux(vjp(s.op, *s.tensors))
    g, t = like(y, 3), s.tangents()
    _, forward = without_aux(jvp(s.op, s.tensors, t))
    close((g * forward).sum(), torch.stack([(a * b).sum() for a, b in zip(back(g), t, strict=True)]).sum())


# --- second and third order -------------------------------------------------------------------------------------------


@check("second order")
def create_graph(s: Subject) -> None:
    """``torch.autograd.grad(create_graph=True)``, differentiated again."""

    def twice(f):
        def run(*tensors: Tensor):
            leaves = s.leaves()
            first = gradients_of(scalar(f)(*leaves), leaves, create_graph=True)
            parts = [(g.sin() * like(g, i)).sum() for i, g in enumerate(first)] + [0 * leaf.sum() for leaf in leaves]
            return torch.autograd.grad(torch.stack(parts).sum(), leaves)

        return run

    def through_jacobian(f):
        return lambda *x: grad(lambda *y: torch.stack(_wave(grad(scalar(f), s.argnums)(*y))).sum(), s.argnums)(*x)

    s.compare(twice, reference_transform=through_jacobian)


@check("second order")
def func_hessian(s: Subject) -> None:
    """``torch.func.hessian``: forward over reverse."""
    s.compare(lambda f: hessian(scalar(f), s.argnums), reference_transform=_hessian)


@check("second order")
def reverse_over_reverse(s: Subject) -> None:
    """``jacrev(jacrev(f))``."""
    s.compare(lambda f: jacrev(jacrev(scalar(f), s.argnums), s.argnums), reference_transform=_hessian)


@check("second order")
def reverse_over_forward(s: Subject) -> None:
    """``jacrev(jacfwd(f))``."""
    _forward_inside(s)
    s.compare(lambda f: jacrev(jacfwd(scalar(f), s.argnums), s.argnums), reference_transform=_hessian)


@check("second order", issue=197867)
def forward_over_forward(s: Subject) -> None:
    """``jacfwd(jacfwd(f))``."""
    _forward_inside(s)
    s.compare(lambda f: jacfwd(jacfwd(scalar(f), s.argnums), s.argnums), reference_transform=_hessian)


@check("second order")
def jvp_of_grad(s: Subject) -> None:
    """The Hessian-vector product ``jvp(grad(f))``."""
    tangents = s.tangents()
    s.compare(
        lambda f: lambda *x: jvp(grad(scalar(f), s.argnums), x, tangents)[1],
        reference_transform=lambda f: lambda *x: functional.hvp(scalar(f), x, tangents)[1],
    )


@check("second order")
def grad_of_jvp(s: Subject) -> None:
    """The gradient of a directional derivative, ``grad(jvp(f))``."""
    _forward_inside(s)
    tangents = s.tangents()
    s.compare(
        lambda f: grad(lambda *x: jvp(scalar(f), x, tangents)[1], s.argnums),
        reference_transform=lambda f: lambda *x: functional.vhp(scalar(f), x, tangents)[1],
    )


def _jacobian(f):
    """The Jacobian by eager reverse mode, a row at a time."""
    return lambda *x: functional.jacobian(f, x)


def _hessian(f):
    """The Hessian by eager reverse mode, applied twice."""
    return lambda *x: functional.hessian(scalar(f), x)


def _wave(gradients) -> list[Tensor]:
    return [(g.sin() * like(g, i)).sum() for i, g in enumerate(gradients)]


def _forward_inside(s: Subject) -> None:
    """Skip a check that mixes modes if forward mode has another derivative than reverse mode and no surrogate is given."""
    if not s.linear and s.surrogate is None:
        raise NotApplicable("the map of the cotangent is not linear, and no surrogate was given")


def _nested(s: Subject, *modes: str):
    """Nested directional derivatives of a scalar, each by the mode that is named; cheap at every order."""

    def nest(f):
        g = scalar(f)
        for i, mode in enumerate(modes):
            g = _directional(g, s.tangents(10 * i + 1), mode)
        return g

    return nest


def _directional(f, directions, mode: str):
    """The derivative of a scalar function along directions, by forward, by reverse, or by eager reverse mode."""

    def eager(*x: Tensor):
        leaves = [t if t.requires_grad else t.detach().requires_grad_() for t in x]
        gradients = torch.autograd.grad(f(*leaves), leaves, create_graph=True, materialize_grads=True)
        return torch.stack([(g * t).sum() for g, t in zip(gradients, directions, strict=True)]).sum()

    if mode == "eager":
        return eager
    if mode == "forward":
        return lambda *x: jvp(f, x, directions)[1]
    argnums = tuple(range(len(directions)))
    return lambda *x: torch.stack([(g * t).sum() for g, t in zip(grad(f, argnums)(*x), directions, strict=True)]).sum()


def _third(s: Subject, *modes: str) -> None:
    s.compare(_nested(s, *modes), reference_transform=lambda f: lambda *x: _nested(s, "eager", "eager", "eager")(f)(*x).detach())


@check("third order")
def three_of_reverse(s: Subject) -> None:
    """Reverse over reverse over reverse."""
    _third(s, "reverse", "reverse", "reverse")


@check("third order", issue=197867)
def three_of_forward(s: Subject) -> None:
    """Forward over forward over forward."""
    _forward_inside(s)
    _third(s, "forward", "forward", "forward")


@check("third order", issue=197867)
def three_mixed(s: Subject) -> None:
    """The six mixed nestings of three."""
    _forward_inside(s)
    f, r = "forward", "reverse"
    for modes in ((f, f, r), (f, r, f), (r, f, f), (f, r, r), (r, f, r), (r, r, f)):
        _third(s, *modes)


@check("third order")
def along_a_curve(s: Subject) -> None:
    """`fullgrad.forward.jet`: the derivatives to order 3 along a line, against nested ones."""
    _forward_inside(s)
    tangents = s.tangents()
    zeros = [torch.zeros_like(t) for t in tangents]
    _, found = jet(scalar(s.op), s.tensors, [[t, z, z] for t, z in zip(tangents, zeros, strict=True)])
    f, mode = scalar(s.reference), "eager" if s.surrogate is None else "forward"
    for derivative in found:
        f = _directional(f, tangents, mode)
        close(derivative, f(*s.tensors).detach())


# --- numbers ----------------------------------------------------------------------------------------------------------


@check("gradcheck")
def gradcheck(s: Subject) -> None:
    """``torch.autograd.gradcheck`` of the operator's own rules with smooth forwards, in both modes and batched."""
    _numerically(s, torch.autograd.gradcheck, check_forward_ad=True, check_batched_forward_grad=True)


@check("gradcheck")
def gradgradcheck(s: Subject) -> None:
    """``torch.autograd.gradgradcheck`` of the same, in both orders of modes; a cotangent map is taken as it is."""
    _numerically(s, torch.autograd.gradgradcheck, check_fwd_over_rev=True, check_rev_over_rev=True)


@check("gradcheck")
def gradient_by_differences(s: Subject) -> None:
    """Without a surrogate, ``gradgradcheck`` with the forward as it is: if a rule reads a rounded value or a sample from its own
    saved output, second derivatives agree with each other but are wrong.

    A surrogate, or an adopted class, says what the derivative holds constant or passes straight through.
    """
    if s.surrogate is not None or hasattr(s.operator, "adopted_class"):
        raise NotApplicable("the surrogate has the second derivative")
    if s.smooth_forwards == {}:
        raise NotApplicable("the derivative is the true one: gradgradcheck has the forward as it is")
    try:
        torch.autograd.gradgradcheck(s.op, s.leaves())
    except GradcheckError as error:
        raise AssertionError(
            "pass `surrogate=`: without it second derivatives are compared with differences of the operator's own first one, "
            f"which a rule that holds rounded values constant, such as that of a quantizer's scale, does not match: {error}"
        ) from None


def _numerically(s: Subject, function, **options) -> None:
    if s.smooth_forwards is None and (s.linear or function is torch.autograd.gradcheck):
        raise NotApplicable("no smooth function with this derivative was given to take numerical differences of")
    leaves = iter(s.leaves())
    inputs = tuple(next(leaves) if i in s.diff_argnums else v for i, v in enumerate(s.inputs))

    def operator(*arguments: Any) -> Any:
        y: Any = s.operator(*arguments)
        return y if isinstance(y, Tensor) else tuple([v for v in y if isinstance(v, Tensor) and v.is_floating_point()])

    with s.smooth():
        function(operator, inputs, check_batched_grad=True, check_undefined_grad=True, **options)


# --- batches ----------------------------------------------------------------------------------------------------------


def _loop(f, batch, dims):
    size = next(t.shape[d] for t, d in zip(batch, dims, strict=True) if d is not None)
    return [f(*[t if d is None else t.select(d, i) for t, d in zip(batch, dims, strict=True)]) for i in range(size)]


def _stacked(results):
    if isinstance(results[0], Tensor):
        return torch.stack(results)
    return tuple(_stacked(list(r)) for r in zip(*results, strict=True))


def _looped(f):
    """A loop over the samples in front, which ``vmap(f)`` must equal."""
    return lambda *batch: torch.stack(_loop(f, batch, (0,) * len(batch)))


def _of_each(s: Subject, transform):
    """A transform of a function of the differentiable inputs, as one of a function that takes constant tensors behind them."""
    n = len(s.diff_argnums)
    return lambda f: lambda *x: transform(lambda *y: f(*y, *x[n:]))(*x[:n])


def _against_loop(s: Subject, transform, dims_list) -> None:
    for dims in dims_list:
        full = s.batch_with_constants() if len(dims) > len(s.diff_argnums) else s.batch()
        batch = tuple(t[0] if d is None else t.movedim(0, d) for t, d in zip(full, dims, strict=True))
        f = _of_each(s, transform)(s.op)
        close(vmap(f, in_dims=dims)(*batch), _stacked(_loop(f, batch, dims)))


def _batches(s: Subject, size: int = 3) -> list[tuple[Tensor, ...]]:
    """The batch of the differentiable inputs alone, and, if there are constant tensors, one with a sample of these for each."""
    return [s.batch(size=size), *([s.batch_with_constants(size)] if s.batches_constants else [])]


def _all_dims(s: Subject) -> list[tuple[int | None, ...]]:
    """In front for the inputs of each of `_batches`."""
    return [(0,) * len(batch) for batch in _batches(s)]


def _mixed_dims(s: Subject) -> list[tuple[int | None, ...]]:
    """The dimensions of each pattern: of the differentiable inputs alone, and together with those of the constant tensors."""
    n, m = len(s.diff_argnums), len(s.constant_argnums)
    dims = _patterns(n)
    if s.batches_constants:
        of_all = [(*d, *c) for d in ((0,) * n, (None,) * n) for c in _patterns(m)]
        dims += [*of_all, *[(*d, *(0,) * m) for d in _patterns(n)]]
    return list(dict.fromkeys(dims))


def _patterns(n: int) -> list[tuple[int | None, ...]]:
    """Every argument batched, in front, behind; and each pattern of None that leaves something to batch."""
    dims: list[tuple[int | None, ...]] = [(0,) * n, (-1,) * n]
    for i in range(n if n > 1 else 0):
        dims.append(tuple(None if j == i else 0 for j in range(n)))
        dims.append(tuple(-1 if j == i else None for j in range(n)))
    return dims


@check("batching")
def vmap_equals_loop(s: Subject) -> None:
    """``vmap(op)`` equals the loop for ``in_dims`` in front, behind, and None for any: parameters per sample or shared, and
    indices and masks, too.
    """
    _against_loop(s, lambda f: f, _mixed_dims(s))


@check("batching")
def vmap_out_dims_and_chunks(s: Subject) -> None:
    """``out_dims`` and ``chunk_size`` of ``vmap``."""
    for batch in _batches(s, 4):
        expected = _stacked(_loop(s.op, batch, (0,) * len(batch)))
        close(vmap(s.op, out_dims=-1)(*batch), expected.movedim(0, -1))
        close(vmap(s.op, chunk_size=3)(*batch), expected)


@check("batching")
def nested_vmap(s: Subject) -> None:
    """``vmap(vmap(op))`` with different dimensions at the two levels, and constant tensors at both or at one of them."""
    outer = tuple(stack_of.movedim(0, -1) for stack_of in s.batch(size=2))
    batch = tuple(torch.stack([t, t * 1.01, t * 0.99]) for t in outer)
    expected = torch.stack([torch.stack([s.op(*[b[i].select(-1, j) for b in batch]) for j in range(2)]) for i in range(3)])
    close(vmap(vmap(s.op, in_dims=-1))(*batch), expected)
    if not s.batches_constants:
        return
    n = len(batch)
    constants = [c.unflatten(0, (3, 2)) for c in s.batch_with_constants(6)[n:]]
    m, rows = len(constants), range(3)
    for first, second in ((0, 0), (0, None), (None, 0)):  # the dimensions of the constants at the levels
        all_of = [c[:, :1] if second is None else c[:1] if first is None else c for c in constants]
        given = [c[:, 0] if second is None else c[0] if first is None else c for c in constants]
        samples = [[[c.expand(3, 2, *c.shape[2:])[i, j] for c in all_of] for j in range(2)] for i in rows]
        expected = [torch.stack([s.op(*[b[i].select(-1, j) for b in batch], *samples[i][j]) for j in range(2)]) for i in rows]
        inner = vmap(s.op, in_dims=(*(-1,) * n, *(second,) * m))
        close(vmap(inner, in_dims=(*(0,) * n, *(first,) * m))(*batch, *given), torch.stack(expected))


@check("batching")
def vmap_of_grad(s: Subject) -> None:
    """Per-sample gradients, ``vmap(grad(f))``, with shared and with per-sample parameters."""
    _against_loop(s, lambda f: grad(scalar(f), s.argnums), _mixed_dims(s))


@check("batching")
def per_sample_norms(s: Subject) -> None:
    """Norms of per-sample gradients, by `fullgrad.per_sample`, of a product with a matrix that the operator makes of parameters.

    If the operator is elementwise, they are computed from its slope at each element.
    """
    from fullgrad import per_sample  # it is not needed for other checks

    def loss(f):
        def of_sample(params: tuple[Tensor, ...], x: Tensor) -> Tensor:
            y = f(*params)
            return torch.nn.functional.linear(x, y).square().sum() if y.ndim == 2 else (x * y).square().sum()

        return of_sample

    y = s.reference(*s.tensors)
    data = torch.stack([like(y.new_zeros(y.shape[-1:] if y.ndim == 2 else y.shape), seed) for seed in range(2)])
    expected = []
    for x in data:
        leaves = s.leaves()
        found = gradients_of(loss(s.reference)(leaves, x), leaves)
        expected.append([g.square().sum() for g in found])
    norms = per_sample.norms(loss(s.op), squared=True, by_parameter=True)(s.tensors, data)
    close(tuple(norms), tuple(torch.stack(n) for n in zip(*expected, strict=True)))


@check("batching")
def vmap_of_vjp(s: Subject) -> None:
    """Per-sample cotangents, pulled back after the level of `torch.func.vjp` has ended: a rule may use a transform itself."""

    def pulled(f):
        def run(*tensors: Tensor):
            y, back = without_aux(vjp(f, *tensors))
            return back(torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape).cos())

        return run

    _against_loop(s, pulled, _mixed_dims(s))


@check("batching")
def grad_of_vmap(s: Subject) -> None:
    """``grad`` of a loss over a ``vmap``."""
    for batch in _batches(s):
        close(grad(scalar(vmap(s.op)), s.argnums)(*batch), grad(scalar(_looped(s.reference)), s.argnums)(*batch))


@check("batching")
def vmap_of_jvp(s: Subject) -> None:
    """``vmap(jvp(f))``, and ``jvp`` of a ``vmap``."""
    tangents = s.tangents()
    _against_loop(s, lambda f: lambda *x: jvp(f, x, tangents), _all_dims(s))
    batched_tangents = tuple(like(t, i) for i, t in enumerate(s.batch()))
    push = _of_each(s, lambda f: lambda *x: jvp(f, x, batched_tangents))
    for batch in _batches(s):
        close(push(vmap(s.op))(*batch), push(_looped(s.reference))(*batch))


@check("batching")
def vmap_of_hessian(s: Subject) -> None:
    """``vmap(hessian(f))``, and forward over forward per sample."""
    _against_loop(s, lambda f: hessian(scalar(f), s.argnums), _all_dims(s))
    _against_loop(s, lambda f: jacfwd(jacfwd(scalar(f), s.argnums), s.argnums), _all_dims(s))


@check("batching")
def vmap_of_backward(s: Subject) -> None:
    """A graph recorded through ``vmap``: ordinary autograd outside, the batch inside."""

    def gradients(f, batch):
        n = len(s.diff_argnums)
        leaves = [t.clone().requires_grad_() for t in batch[:n]]
        return gradients_of(scalar(f)(*leaves, *batch[n:]), leaves)

    for batch in _batches(s):
        close(gradients(vmap(s.op), batch), gradients(_looped(s.reference), batch))
