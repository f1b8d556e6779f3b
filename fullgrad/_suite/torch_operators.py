"""torch's own operators, judged: each way of asking for a derivative, alone and inside of `fullgrad.completing`.

The truth is a fit of values in float64, which asks no derivative of torch; that of a batch is the truth of each of its samples.
`tries` is the list of what is tried.
"""

import contextlib
import functools
import itertools
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

import fullgrad
from fullgrad._suite.torch_samples import GRADIENTS, MAY_DIFFER, MAY_RAISE, NOT_AT_UNITS, Operator, Sample

aten = torch.ops.aten
WRONG = "wrong"
# Reverse and forward mode, in every nesting to the third order; the last letter is the outermost.
NESTINGS = [kinds for order in (1, 2, 3) for kinds in itertools.product("rf", repeat=order)]
ORDERS = ("", "first", "second", "third")


class Found(NamedTuple):
    """The samples that were judged, and by what was tried `WRONG` with the numbers, or the error, alone and inside."""

    samples: int
    alone: dict[str, str]
    inside: dict[str, str]


class Try(NamedTuple):
    """A computation with its name, and whether its result is right: the result of the check is what is wrong, or nothing."""

    kind: str
    run: Callable[[], Any]
    check: Callable[[Any], str]


class Truth(NamedTuple):
    """A derivative, and how far it may be off."""

    value: float
    error: float

    @property
    def is_known(self) -> bool:
        return self.error <= 1e-4 * max(1.0, abs(self.value))

    def check(self, found: Any) -> str:
        """Tell how far a number is off, or nothing."""
        near = 1e-5 * max(1.0, abs(self.value)) + 10 * self.error
        return "" if abs(float(found) - self.value) <= near else f"{WRONG}: {float(found):.6g} for {self.value:.6g}"


def issues() -> dict[str, int]:
    """torch's public issues, by the name of an operator."""
    return {
        "cdist": 83510,
        "cholesky_inverse": 198017,
        "cholesky_solve": 196694,
        "cumprod": 196701,
        "linalg.det": 196696,
        "linalg.householder_product": 196698,
        "linalg.slogdet": 196697,
        "linalg.solve": 192540,
        "linalg.solve_ex": 192540,
        "logdet": 196697,
        "nn.functional.batch_norm": 196699,
        "nn.functional.grid_sample": 34704,
        "nn.functional.instance_norm": 196699,
        "nn.functional.layer_norm": 196700,
        "nn.functional.scaled_dot_product_attention": 116350,
        "scatter_reduce.prod": 196702,
    }


def judged(op: Operator, count: int) -> Found:
    """Try everything on the first ``count`` samples of an operator that can be judged."""
    found = Found(0, {}, {})
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        of_samples = [(sample, tried) for sample in op.samples(count) if (tried := list(tries(sample)))]
        every = [tried for sample, of in of_samples for tried in of if not _may_differ(op, sample, tried.kind)]
        values: dict[int, Any] = {}  # torch's own under transforms, next to which those inside are judged, as are gradients
        for i, tried in enumerate(every):
            if tried.kind.startswith("value"):
                with contextlib.suppress(Exception):
                    values[i] = tried.run()
            elif not tried.kind.startswith("gradient") and tried.kind not in found.alone and (said := _said(op, tried)):
                found.alone[tried.kind] = said
        with fullgrad.completing():
            for i, tried in enumerate(every):
                if tried.kind not in found.inside and (said := _said(op, tried, values.get(i))):
                    found.inside[tried.kind] = said
    return found._replace(samples=len(of_samples))


def _said(op: Operator, tried: Try, value: Sequence[Tensor] | None = None) -> str:
    try:
        found = tried.run()
        if value is None:
            return tried.check(found)
        same = [v.shape for v in found] == [v.shape for v in value]
        is_torchs = same and all(torch.equal(a, b) for a, b in zip(_bits(found), _bits(value), strict=True))
        return "" if is_torchs else tried.check(found)
    except Exception as error:
        text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
        return "" if any(where.search(op.name) and words.search(text) for where, words, _ in MAY_RAISE) else text


def _bits(values: Sequence[Tensor]) -> list[Tensor]:
    """The bytes of values, by which NaN is NaN."""
    flat = [v.resolve_conj().resolve_neg().reshape(-1).clone(memory_format=torch.contiguous_format) for v in values]
    return [v.view(torch.uint8) for v in flat]


def _may_differ(op: Operator, sample: Sample, kind: str) -> bool:
    return any(d.operators.search(op.name) and d.kinds.search(kind) and d.of(sample) for d in MAY_DIFFER)


# --- What is tried ------------------------------------------------------------------------------------------------------------


def tries(sample: Sample) -> Iterator[Try]:
    """Everything that is tried on a sample, where the truth is known."""
    problem = Problem.of(sample)
    if problem is None:
        return
    every = problem.differentiated
    for of in _subsets(every):
        named = "" if of == every else ", others constant"
        for loss in ("a nonlinear loss", "a sum"):
            yield from _derivatives(problem, of, loss, named)
        yield from _batches(problem, of, named)
    yield from _values(problem)
    yield from _hurt(problem)
    yield from _beside_nan(problem)


def _subsets(every: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All, each alone up to four, and the first two."""
    found = [every, *[(i,) for i in every[:4]], every[:2]]
    return list(dict.fromkeys(found))


def _derivatives(problem: "Problem", of: tuple[int, ...], loss: str, named: str) -> Iterator[Try]:
    """Each nesting of ``torch.func``, and plain eager code, to the third order."""
    truths, is_first = problem.truths(of, loss), of == problem.differentiated and loss == "a nonlinear loss"
    for kinds in [*NESTINGS, "e", "ee", "eee"]:
        if truths[len(kinds)].is_known and (is_first or len(kinds) < 3 or kinds in ("eee", ("f", "f", "f"))):
            kind = f"{title(kinds)} of {loss}{named}"
            yield Try(kind, lambda kinds=kinds: problem.derivative(of, loss, kinds), truths[len(kinds)].check)


def _batches(problem: "Problem", of: tuple[int, ...], named: str) -> Iterator[Try]:
    """Two unequal samples: each subset of the inputs batched, by first and last dimensions; directions, and cotangents, alone."""
    n, everything = len(problem.inputs), tuple(range(len(problem.inputs)))
    subsets = [everything, *([(i,) for i in everything[:4]] if of == problem.differentiated else [of])]
    losses = [(where, "a nonlinear loss") for where in dict.fromkeys(subsets)]
    if of == problem.differentiated:
        losses += [(("directions",), "a nonlinear loss"), (("cotangents",), "a weighted sum"), (everything, "a sum")]
        losses += [((*everything, "directions", "cotangents"), "a nonlinear loss")]
    for k, (where, loss) in enumerate(losses):
        other = problem.other(where)
        if other is None:
            continue
        pair = [problem, other]
        truths = [p.truths(of, loss) for p in pair]
        parts = [w for w in where if isinstance(w, str)]
        what = " and ".join(
            (["inputs"] if len(where) == n + len(parts) else ["one input"] if len(where) > len(parts) else []) + parts
        )
        for kinds in [(), *NESTINGS]:
            # All nestings of the first subset, and half of those of second order of each other one.
            if len(kinds) == 3 and (k > 0 or len(set(kinds)) > 1 or of != problem.differentiated):
                continue
            if len(kinds) == 2 and k > 0 and (len(set(kinds)) > 1) == bool(k % 2):
                continue
            known = [t[len(kinds)] for t in truths]
            if all(t.is_known for t in known):
                yield Try(
                    f"vmap of {title(kinds)} of {loss}, {what} batched{named}",
                    functools.partial(_batched, pair, where, of, loss, kinds),
                    lambda found, known=known: "; ".join(filter(None, [t.check(v) for t, v in zip(known, found, strict=True)])),
                )


def _values(problem: "Problem") -> Iterator[Try]:
    """Values under transforms, in every dtype and at every unit: not further from float64 than torch's own by 4 units."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for name, change in _changes(problem) if dtype.itemsize > 2 else [("", CHANGES[""])]:
            changed = problem.changed(change, dtype)
            if changed is None:
                continue
            own = changed.plain()
            truth = own if dtype == torch.float64 else changed.changed(None, torch.float64).plain()
            if own is None or truth is None:
                continue
            check = lambda found, own=own, truth=truth: _same_values(found, own, truth)  # noqa: E731
            told = f"value{name}, {str(dtype).removeprefix('torch.')}"
            for way in ("jvp", "vmap"):
                yield Try(f"{told}, under {way}", lambda way=way, p=changed: p.value(way), check)


def _hurt(problem: "Problem") -> Iterator[Try]:
    """Gradients at every unit, at ties and next to NaN: torch's own of eager code, or of `GRADIENTS`, where these are numbers."""
    function, terms = GRADIENTS.get(problem.sample.name, (None, None))
    for name, change in _changes(problem):
        changed = problem.changed(change, torch.float64)
        own = None if changed is None else changed.with_function(function).gradients(is_eager=True)
        if changed is None or own is None:
            continue
        xs = [changed.inputs[i] for i in changed.differentiated]
        size = max([_most(y) for y in changed.plain() or ()])
        noise = [torch.full_like(g, 1e-14 * size / max(1e-30, _most(x))) for g, x in zip(own, xs, strict=True)]
        if terms is not None:
            noise = [torch.full_like(n, 1e-16 * _most(n)) for n in changed.with_function(terms).gradients(is_eager=True)]
        elif "numbers" not in name:  # kinks, where numbers nearby have other gradients
            nearby = problem.changed(lambda x, change=change: change(x) * (1 + 4e-16 * torch.randn_like(x)), torch.float64)
            others = nearby.gradients(is_eager=True) or own
            noise = [n.clamp(max=1e-6 * _most(a)) + _apart(a, b) for n, a, b in zip(noise, own, others, strict=True)]
        yield Try(
            f"gradient{name}", lambda p=changed: p.gradients(), lambda found, own=own, n=noise: _same_gradients(found, own, n)
        )
        if " with " in name:  # rules of batches are others
            yield Try(f"gradient{name}, in a batch", lambda p=changed: (p.gradients(), p.gradients(is_batched=True)), _same_nan)


def _most(x: Tensor) -> float:
    """The largest size of a finite number."""
    return float(x.abs().nan_to_num(0, 0, 0).max()) if x.numel() else 0.0


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """How far numbers are apart, at least as far as half of the others."""
    found = (a - b).abs()
    at = found.isfinite()
    return found.maximum(found[at].median()) if at.any() else found


def _beside_nan(problem: "Problem") -> Iterator[Try]:
    """NaN in one sample of a batch stays there."""
    spoiled, everything = problem.changed(_with_nan, torch.float64), tuple(range(len(problem.inputs)))
    of = problem.differentiated
    if spoiled is None:
        return
    if spoiled.plain() is None or not all(v.isfinite().all() for v in problem.outputs):
        return
    for kinds in [kinds for kinds in NESTINGS if len(kinds) < 3]:
        truth = problem.truths(of, "a nonlinear loss")[len(kinds)]
        if truth.is_known:
            yield Try(
                f"vmap of {title(kinds)}, beside a sample with NaN",
                lambda kinds=kinds: _batched([problem, spoiled], everything, of, "a nonlinear loss", kinds)[0],
                truth.check,
            )


def _with_nan(x: Tensor) -> Tensor:
    y = x.contiguous().clone()
    y.view(-1)[-1:] = math.nan  # of nothing there is none
    return y


def _with_infinity(x: Tensor) -> Tensor:
    y = x.contiguous().clone()
    y.view(-1)[:1] = math.inf
    return y


def _of_unlike_scales(x: Tensor) -> Tensor:
    return x * torch.logspace(8, 0, max(x.numel(), 1), dtype=x.dtype)[: x.numel()].reshape(x.shape)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    " at 1e-30": lambda x: x * 1e-30,
    " at 1e-6": lambda x: x * 1e-6,
    " at 1e6": lambda x: x * 1e6,
    " at 1e30": lambda x: x * 1e30,
    " of unlike scales": _of_unlike_scales,
    " of whole numbers": lambda x: x.round(),
    " of equal numbers": lambda x: x.flatten()[:1].expand(x.numel()).reshape(x.shape).clone(),
    " with NaN": _with_nan,
    " with infinity": _with_infinity,
}


def _changes(problem: "Problem") -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    return [(name, change) for name, change in CHANGES.items() if not name or not NOT_AT_UNITS.search(problem.sample.name)]


# --- How it is computed -------------------------------------------------------------------------------------------------------


def title(kinds: Sequence[str]) -> str:
    """The nesting in words, the outermost first."""
    if not kinds:
        return "the value"
    if kinds[0] == "e":
        return f"eager {ORDERS[len(kinds)]} derivative"
    return " over ".join({"r": "reverse", "f": "forward"}[k] for k in reversed(kinds))


def forward(f: Callable[..., Tensor], vs: Sequence[Tensor]) -> Callable[..., Tensor]:
    """The derivative along directions, by forward mode."""
    return lambda *xs: jvp(f, xs, tuple(vs))[1]


def reverse(f: Callable[..., Tensor], vs: Sequence[Tensor]) -> Callable[..., Tensor]:
    """The derivative along directions, by reverse mode."""
    return lambda *xs: _paired(grad(f, tuple(range(len(xs))))(*xs), vs)


def eager(f: Callable[..., Tensor], vs: Sequence[Tensor]) -> Callable[..., Tensor]:
    """The derivative along directions, by plain ``torch.autograd``."""

    def derivative(*xs: Tensor) -> Tensor:
        leaves = [x if x.requires_grad else x.detach().requires_grad_() for x in xs]
        y = f(*leaves)
        if not y.requires_grad:
            return torch.zeros_like(y)
        gradients = torch.autograd.grad(y, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        return _paired(gradients, vs)

    return derivative


STEPS = {"f": forward, "r": reverse, "e": eager}


def _paired(gradients: Sequence[Tensor], vs: Sequence[Tensor]) -> Tensor:
    return _total([(g.conj() * v).real.sum() if v.is_complex() else (g * v).sum() for g, v in zip(gradients, vs, strict=True)])


def _total(terms: Sequence[Tensor]) -> Tensor:
    """The sum, without a number as its first term, which costs forward mode a tensor of zeros: 1 ms each."""
    return functools.reduce(torch.add, terms)


def _real(outputs: Sequence[Tensor]) -> list[Tensor]:
    return [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in outputs]


class Problem(NamedTuple):
    """A sample with inputs, the inputs that have a derivative, three directions for each, and cotangents of its outputs."""

    sample: Sample
    inputs: tuple[Tensor, ...]
    differentiated: tuple[int, ...]
    outputs: tuple[Tensor, ...]
    where: tuple[int, ...]  # the outputs that have a derivative
    directions: tuple[tuple[Tensor, ...], ...]
    cotangents: tuple[Tensor, ...]
    memory: dict[Any, Any]

    @staticmethod
    def of(sample: Sample) -> "Problem | None":
        """The problem of a sample, or None if it has no derivative or does not bear the call."""
        inputs = tuple([v.detach() for v in sample.inputs])
        leaves = [v.clone().requires_grad_(i in sample.differentiated) for i, v in enumerate(inputs)]
        try:
            results = sample.outputs(*leaves)
        except Exception:  # a sample that shows an error, or an input of ours by which torch has no gradient
            if not sample.is_ours:
                return None
            results = sample.outputs(*inputs)
        where = tuple([i for i, y in enumerate(results) if y.requires_grad and y.numel()])
        if not where and sample.is_ours:  # whose derivative torch should have
            where = tuple(range(len(results)))
        if not where:
            return None
        generator = torch.Generator().manual_seed(zlib.crc32(sample.name.encode()))

        def drawn(v: Tensor) -> Tensor:
            if not (v.is_floating_point() or v.is_complex()) or not v.numel():
                return v
            own = torch.randn(v.shape, dtype=v.dtype, generator=generator)
            size = float(v.abs().mean()) or 1.0
            return own / max(1.0, float(own.abs().max())) * min(max(size, 0.1), 10.0)

        directions = tuple([tuple([drawn(v) for v in inputs]) for _ in range(3)])
        outputs = tuple([results[i].detach() for i in where])
        cotangents = tuple([torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in _real(outputs)])
        found = Problem(sample, inputs, sample.differentiated, outputs, where, directions, cotangents, {})
        plain = found.plain()
        same = plain is not None and all(torch.allclose(a, b, equal_nan=True) for a, b in zip(outputs, plain, strict=True))
        return found if same else None

    def with_function(self, function: Callable[..., Tensor] | None) -> "Problem":
        """The problem of another function of the same tensors, if there is one."""
        if function is None:
            return self
        return self._replace(sample=self.sample._replace(outputs=lambda *xs: [function(*xs)]), where=(0,))

    def results(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs that have a derivative."""
        found = self.sample.outputs(*inputs)
        return [found[i] for i in self.where]

    def plain(self) -> tuple[Tensor, ...] | None:
        """torch's own values, or None."""
        try:
            with torch.no_grad():
                return tuple(self.results(*self.inputs))
        except Exception:
            return None

    def filled(self, of: Sequence[int], xs: Sequence[Tensor]) -> list[Tensor]:
        """The inputs with others in some places."""
        own = list(self.inputs)
        for i, x in zip(of, xs, strict=True):
            own[i] = x
        return own

    def loss(self, name: str, outputs: Sequence[Tensor]) -> Tensor:
        """A scalar of the outputs."""
        parts = _real(outputs)
        if name == "a sum":
            return _total([y.sum() for y in parts])
        if name == "a weighted sum":
            return _total([(y * c).sum() for y, c in zip(parts, self.cotangents, strict=True)])
        sizes = self.memory.setdefault("sizes", [max(1.0, float(y.abs().max())) for y in _real(self.outputs)])
        angles = [aten.add.Scalar(aten.mul.Scalar(y, 0.7 / s), 0.3) for y, s in zip(parts, sizes, strict=True)]
        return _total([a.sin().mul(c).sum() for a, c in zip(angles, self.cotangents, strict=True)])

    def derivative(self, of: tuple[int, ...], loss: str, kinds: Sequence[str]) -> Tensor:
        """The derivative of a loss by some inputs, the others constant, along a direction for each step."""

        def f(*xs: Tensor) -> Tensor:
            return self.loss(loss, self.results(*self.filled(of, xs)))

        for kind, vs in zip(kinds, self.directions, strict=False):
            f = STEPS[kind](f, [vs[i] for i in of])
        return f(*[self.inputs[i] for i in of]).detach()

    def truths(self, of: tuple[int, ...], loss: str) -> list[Truth]:
        """The derivatives of orders 0 to 3, by fits of values in plain code."""
        if (of, loss) not in self.memory:
            soft, shift = self.sample.surrogate, [torch.zeros(())] * len(self.outputs)
            if soft is not None:
                shift = [a - b for a, b in zip(self.outputs, soft(*self.inputs), strict=True)]

            def f(*xs: Tensor) -> Tensor:
                inputs = self.filled(of, xs)
                outputs = self.results(*inputs) if soft is None else [a + b for a, b in zip(soft(*inputs), shift, strict=True)]
                return self.loss(loss, outputs)

            directions = [[vs[i] for i in of] for vs in self.directions]
            self.memory[of, loss] = fitted(f, [self.inputs[i] for i in of], directions)
        return self.memory[of, loss]

    def other(self, where: Sequence[Any]) -> "Problem | None":
        """An unequal problem: some inputs are others of like sizes, or the directions, or the cotangents."""
        key = "other", tuple(where)
        if key in self.memory:
            return self.memory[key]
        directions = tuple([tuple([-0.6 * v.flip(0) if v.ndim else 0.6 * v for v in vs]) for vs in self.directions])
        found = None
        for low in (1.0, 0.8):
            inputs = [_unequal(v, low) if i in where else v for i, v in enumerate(self.inputs)]
            found = self._replace(
                inputs=tuple(inputs),
                directions=directions if "directions" in where else self.directions,
                cotangents=tuple([0.5 - c for c in self.cotangents]) if "cotangents" in where else self.cotangents,
                memory={"sizes": self.memory.get("sizes") or [max(1.0, float(y.abs().max())) for y in _real(self.outputs)]},
            )
            outputs = found.plain()
            if outputs is not None and [y.shape for y in outputs] == [y.shape for y in self.outputs]:
                found = found._replace(outputs=outputs)
                break
            found = None
        self.memory[key] = found
        return found

    def changed(self, change: Callable[[Tensor], Tensor] | None, dtype: torch.dtype) -> Any:
        """The problem with changed inputs of another dtype, or None where torch does not bear it."""

        def cast(v: Tensor) -> Tensor:
            if not v.is_floating_point():
                return v
            return v.to(dtype) if change is None else change(v.double()).to(dtype)

        if any(v.is_complex() for v in self.inputs) or (self.sample.has_dtype and dtype != torch.float64):
            return None
        own = [cast(v) for v in self.inputs]
        return self._replace(
            inputs=tuple(own), cotangents=tuple([c.to(dtype) for c in self.cotangents]), memory=dict(self.memory)
        )

    def value(self, way: str) -> tuple[Tensor, ...]:
        """The values under a transform."""
        of = self.differentiated
        xs = tuple([self.inputs[i] for i in of])

        def f(*xs: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.results(*self.filled(of, xs)))

        if way == "jvp":
            return jvp(f, xs, tuple([torch.ones_like(x) for x in xs]))[0]
        return tuple([y[0] for y in vmap(f, randomness="same")(*[x.unsqueeze(0) for x in xs])])

    def gradients(self, is_eager: bool = False, is_batched: bool = False) -> Any:
        """The gradients of a weighted sum, also of a batch of one."""
        of = self.differentiated

        def f(*xs: Tensor) -> Tensor:
            return self.loss("a weighted sum", self.results(*self.filled(of, xs)))

        slopes, xs = grad(f, tuple(range(len(of)))), [self.inputs[i] for i in of]
        if is_batched:
            return tuple([g[0] for g in vmap(slopes, randomness="same")(*[x.unsqueeze(0) for x in xs])])
        if not is_eager:
            return slopes(*xs)
        leaves = [self.inputs[i].clone().requires_grad_() for i in of]
        try:
            return torch.autograd.grad(f(*leaves), leaves, allow_unused=True, materialize_grads=True)
        except Exception:
            return None


def _unequal(v: Tensor, low: float) -> Tensor:
    """Another tensor of like numbers: floating ones a little larger or smaller, others at other places."""
    if not v.is_floating_point() and not v.is_complex():
        return v.roll(1, -1) if v.ndim else v
    steps = torch.arange(v.numel(), dtype=torch.float64).reshape(v.shape)
    return (v * (low + 0.07 + 0.06 * (1.3 * steps).sin()).to(v.dtype)).detach()


def _batched(pair: Sequence[Problem], where: Sequence[Any], *derivative: Any) -> Tensor:
    """A derivative on each sample of a batch, whose parts are batched by first and last dimensions in turn."""
    first, k = pair[0], [i for i in where if isinstance(i, int)]
    has_directions, has_cotangents = "directions" in where, "cotangents" in where

    def flat(p: Problem) -> list[Tensor]:
        directions = [v for vs in p.directions for v in vs] if has_directions else []
        return [*[p.inputs[i] for i in k], *directions, *(p.cotangents if has_cotangents else ())]

    def one(*own: Tensor) -> Tensor:
        rest = iter(own)
        problem = first._replace(inputs=tuple(first.filled(k, [next(rest) for _ in k])))
        if has_directions:
            problem = problem._replace(directions=tuple([tuple([next(rest) for _ in vs]) for vs in first.directions]))
        if has_cotangents:
            problem = problem._replace(cotangents=tuple(rest))
        return problem.derivative(*derivative)

    parts = list(zip(*[flat(p) for p in pair], strict=True))
    dims = tuple([-(i % 2) for i in range(len(parts))])
    stacked = [torch.stack(vs, d) for vs, d in zip(parts, dims, strict=True)]
    return vmap(one, in_dims=dims, randomness="same")(*stacked)


# --- The truth ----------------------------------------------------------------------------------------------------------------

_COUNT = 11
_NODES = torch.cos(torch.linspace(0, math.pi, _COUNT, dtype=torch.float64))
_NODES[_COUNT // 2] = 0
_AT = _NODES.tolist()
_WEIGHTS = torch.linalg.inv(_NODES[:, None] ** torch.arange(_COUNT, dtype=torch.float64))[:4] * torch.tensor(
    [[1.0], [1.0], [2.0], [6.0]], dtype=torch.float64
)


# The value, and the derivatives along u, along u and v, and along u, v and w, of those on the four lines.
_MIXED = torch.tensor(
    [[1, 0, 0, 0], [1 / 2, 0, 0, 1 / 2], [1 / 8, 1 / 8, -1 / 8, -1 / 8], [1 / 24, -1 / 24, -1 / 24, 1 / 24]], dtype=torch.float64
)


def fitted(f: Callable[..., Tensor], xs: Sequence[Tensor], directions: Sequence[Sequence[Tensor]]) -> list[Truth]:
    """The derivatives of orders 0 to 3 along one, two and three directions: those of polynomials through values on four lines.

    Each is computed in two radii, whose difference is its error. The fits are of degree 10, so that the error of rounding is
    some 1e-10 where the function is smooth.
    """
    best = [Truth(math.nan, math.inf)] * 4
    for radius in (0.05, 0.01, 0.002):
        try:
            with torch.no_grad():
                large, small = [_on_lines(f, xs, directions, r) for r in (radius, radius / 2)]
        except Exception:  # a function that does not bear other numbers
            continue
        for order, weights in enumerate(_MIXED):
            # The error is that of each line: an error that all lines have is not seen in their differences.
            value = float(weights @ (large + small)[:, order]) / 2
            error = float(weights.abs() @ (large - small)[:, order].abs())
            if error < best[order].error:
                best[order] = Truth(value, error)
        if all(t.error <= 1e-7 * max(1.0, abs(t.value)) for t in best):
            break
    # At a kink differences of one order may be those of a smooth function, but those of the next one are not.
    is_rough = [not t.error <= 1e-2 * max(1.0, abs(t.value)) for t in best]
    unknown = {1, 2, 3} if is_rough[2] else {2, 3} if is_rough[3] else ()
    return [t._replace(error=math.inf) if k in unknown else t for k, t in enumerate(best)]


def _on_lines(f: Any, xs: Any, directions: Any, radius: float) -> Tensor:
    """The derivatives of orders 0 to 3 on four lines: u + v + w, u + v - w, u - v + w, u - v - w."""
    u, v, w = directions
    rows = []
    for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        line = [p + a * q + b * r for p, q, r in zip(u, v, w, strict=True)]
        values = [float(f(*[x + radius * t * d for x, d in zip(xs, line, strict=True)])) for t in _AT]
        rows.append(_WEIGHTS @ torch.tensor(values, dtype=torch.float64) / radius ** torch.arange(4))
    return torch.stack(rows)


def _same_values(found: Sequence[Tensor], own: Sequence[Tensor], truth: Sequence[Tensor]) -> str:
    for a, b, t in zip(*[_real(values) for values in (found, own, truth)], strict=True):
        if not a.is_floating_point() or not a.numel():
            continue
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{WRONG}: {a.dtype} of shape {tuple(a.shape)} for {b.dtype} of shape {tuple(b.shape)}"
        info, at = torch.finfo(b.dtype), b.isfinite()
        a, b, t = a.double(), b.double(), t.double()
        absolute = ((b - t).abs() * at).nan_to_num(0, 0, 0)
        relative = (absolute / t.abs()).nan_to_num(0, 0, 0).max()
        near = torch.maximum(relative * t.abs(), absolute.max()) + 4 * info.eps * t.abs().clamp(min=info.tiny)
        if own is truth:  # of float64 nothing is known that is nearer
            near = near + 64 * info.eps * (b.abs() * at).nan_to_num(0, 0, 0).max()
        is_right = ((a - t).abs() <= near) | (a == b) | (a.isnan() & b.isnan()) | (~at & t.isfinite())
        if not is_right.all():
            i = int((~is_right).flatten().nonzero()[0])
            return f"{WRONG}: {float(a.flatten()[i]):.8g} for torch's {float(b.flatten()[i]):.8g}"
    return ""


def _same_nan(found: Sequence[Sequence[Tensor]]) -> str:
    """Tell where gradients of a batch of one are no numbers and those without a batch are, or the other way around."""
    for one, of_batch in zip(*found, strict=True):
        if (differs := one.isnan() != of_batch.isnan()).any():
            return f"{WRONG}: {of_batch[differs][0]} for {one[differs][0]} without a batch"
    return ""


def _same_gradients(found: Sequence[Tensor], own: Sequence[Tensor], noise: Sequence[Tensor]) -> str:
    for a, b, n in zip(found, own, noise, strict=True):
        at = b.isfinite()
        size = _most(b)
        near = 1e-7 * b.abs() + 1e-10 * size + 1000 * n.nan_to_num(math.inf)
        is_right = ((a - b).abs() <= near) | ~at
        if not is_right.all():
            i = int((~is_right).flatten().nonzero()[0])
            return f"{WRONG}: {float(a.flatten()[i]):.8g} for torch's eager {float(b.flatten()[i]):.8g}"
    return ""
