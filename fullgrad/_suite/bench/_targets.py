"""The comparisons that have a target, each written as users write it: ``python -m fullgrad bench targets``."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

import fullgrad
from fullgrad._suite.bench import _compiled as chains
from fullgrad._suite.bench import _composites, _rivals
from fullgrad._suite.bench._choices import choices
from fullgrad._suite.bench._comparison import Comparison
from fullgrad._suite.bench._grids import grids
from fullgrad._suite.bench._measure import Statement, peak_bytes
from fullgrad._suite.bench._peers import load
from fullgrad._suite.bench._surrogates import surrogates

SMALL, BATCH, LARGE = 16, (64, 256), 4_000_000
OLD_STYLE = "old-style Function"
SPIKINGJELLY = "spikingjelly"

Operator = Callable[..., Any]
# The name of a rival, the operator, and the largest allowed ratio of our time to its time.
Rival = tuple[str, Operator, float | None]


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def old_style_round(x: Tensor) -> Tensor:
    """The straight-through estimator as most people write it."""
    return _Round.apply(x)


def targets(device: str = "cpu", quick: bool = False) -> Iterator[Comparison]:
    """All comparisons with targets; if ``quick``, those of elementwise operators."""
    yield from _small(device)
    yield from _transforms(device)
    yield from _network(device)
    yield from _large(device)
    if quick:
        return
    yield from _compiled(device)
    yield from _order(device)
    yield from choices(device)
    yield from grids(device)
    yield from surrogates(device)
    if device == "cpu":
        yield from _rivals.rivals()
        yield from _isotonic()


def _compare(
    operator: str,
    what: str,
    n: int,
    statement: str,
    names: dict[str, Any],
    ours: Operator,
    rivals: Sequence[Rival],
    turns: str = "",
) -> Comparison:
    """A comparison of a statement in which ``f`` stands for the operators."""

    def case(f: Operator) -> Statement:
        return Statement(statement, names | {"f": f})

    return Comparison(
        operator=operator,
        what=what,
        n=n,
        dtype="float32",
        ours=case(ours),
        rivals={name: case(f) for name, f, _ in rivals},
        targets={name: target for name, _, target in rivals if target is not None},
        turns=turns,
    )


def _spikingjelly(name: str, target: float | None = None) -> list[Rival]:
    """spikingjelly's operator of this name, if the package is installed."""
    f = load(f"spikingjelly.activation_based.quantize:{name}")
    return [] if f is None else [(SPIKINGJELLY, f, target)]


def _small(device: str) -> Iterator[Comparison]:
    """16 elements: the cost of a call, whatever it computes."""
    x, g = torch.randn(SMALL, device=device), torch.randn(SMALL, device=device)
    names = {"x": x.clone().requires_grad_(), "g": g, "grad": torch.autograd.grad}
    clamp = "f(x, -1.0, 1.0)"
    for operator, call, ours, plain, there, back in (
        ("round", "f(x)", fullgrad.round, ("torch.round", torch.round, 1.3), [], [
            ("torch.relu", torch.relu, 1.15), (OLD_STYLE, old_style_round, 1.0), *_spikingjelly("round", 1.0)]),
        ("clamp", clamp, fullgrad.clamp, ("torch.clamp", torch.clamp, 1.3), [("torch.clamp", torch.clamp, None)], [
            ("torch.clamp", torch.clamp, 1.1), *_spikingjelly("clamp", 0.75)]),
    ):  # fmt: skip
        yield _compare(operator, "no gradient", SMALL, call, {"x": x}, ours, [plain], "small")
        yield _compare(operator, "forward", SMALL, call, names, ours, there or [("torch.relu", torch.relu, None)], "small")
        yield _compare(operator, "forward+backward", SMALL, f"grad({call}, x, g)", names, ours, back, "small")


def _transforms(device: str) -> Iterator[Comparison]:
    """Comparisons under torch.func. Transforms are made once, as in training; gradients are of a sum, per row under vmap."""
    names = {"x": torch.randn(BATCH, device=device), "t": torch.randn(BATCH, device=device), "jvp": torch.func.jvp}
    n = BATCH[0] * BATCH[1]

    def unit(f: Operator) -> Operator:
        return lambda x: f(x, -1.0, 1.0)

    def total(f: Operator) -> Operator:
        return lambda x: f(x).sum()

    row = names | {"x": torch.randn(BATCH[1], device=device)}
    for operator, ours, name, rival, per_sample in (
        ("round", fullgrad.round, "torch.relu", torch.relu, 1.3),
        ("clamp", unit(fullgrad.clamp), "torch.clamp", unit(torch.clamp), 1.05),
    ):
        for what, statement, transform, target in (
            ("vmap", "f(x)", vmap, None),
            ("grad", "f(x)", lambda f: grad(total(f)), None),
            ("vmap(grad)", "f(x)", lambda f: vmap(grad(total(f))), per_sample),
            ("jvp", "jvp(f, (x,), (t,))", lambda f: f, None),
        ):
            yield _compare(operator, what, n, statement, names, transform(ours), [(name, transform(rival), target)], "transforms")
        there, back = (hessian(total(f)) for f in (ours, rival))
        yield _compare(operator, "hessian", BATCH[1], "f(x)", row, there, [(name, back, None)], "hessian")


def _network(device: str) -> Iterator[Comparison]:
    """Per-sample gradients of a quantized network, next to those of one with native activations."""
    from fullgrad._suite.bench._network import networks

    ours, native, arguments = networks(device)
    names = dict(zip("abc", arguments, strict=False))
    statement = f"f({', '.join(names)})"
    yield _compare("ten quantized layers", "vmap(grad)", 64, statement, names, ours, [("native activations", native, 1.25)])


def _large(device: str) -> Iterator[Comparison]:
    """4 million elements: passes over memory."""
    wide = torch.rand(LARGE, device=device).mul_(4).sub_(2).requires_grad_()
    unit, g = torch.rand(LARGE, device=device, requires_grad=True), torch.randn(LARGE, device=device)
    clamp: Rival = ("torch.clamp", torch.clamp, 0.3)
    for operator, call, x, ours, rivals in (
        ("round", "f(x)", wide, fullgrad.round, [("torch.relu", torch.relu, None), *_spikingjelly("round")]),
        ("clamp", "f(x, -1.0, 1.0)", wide, fullgrad.clamp, [clamp, *_spikingjelly("clamp", 0.45)]),
        ("step_quantize", "f(x, 0.25)", wide, fullgrad.step_quantize, _spikingjelly("step_quantize", 0.8)),
        ("k_bit_quantize", "f(x, 4)", unit, fullgrad.k_bit_quantize, _spikingjelly("k_bit_quantize", 0.75)),
    ):
        names = {"x": x, "g": g, "grad": torch.autograd.grad}
        yield _compare(operator, "forward+backward", LARGE, f"grad({call}, x, g)", names, ours, rivals, "large")
    rounding = Statement("grad(f(x), x, g)", {"f": fullgrad.soft_round, "x": wide, "g": g, "grad": torch.autograd.grad})
    clamping = Statement("grad(f(x, -1.0, 1.0), x, g)", {**rounding.names, "f": torch.clamp})
    yield Comparison(
        operator="soft_round",
        what="forward+backward",
        n=LARGE,
        dtype="float32",
        ours=rounding,
        rivals={"torch.clamp": clamping},
        targets={"torch.clamp": 0.3},
        turns="large",
    )


def _compiled(device: str) -> Iterator[Comparison]:
    """A chain of six operators, compiled, next to the same by the detach trick and with a clamp in the old style."""
    x, g = torch.randn(LARGE, device=device).requires_grad_(), torch.randn(LARGE, device=device)
    compiled = functools.partial(torch.compile, fullgraph=True)
    rivals = [("detach trick", compiled(chains.composite), 0.15), ("old-style clamp", compiled(chains.old_style), 0.15)]
    names = {"x": x, "g": g, "grad": torch.autograd.grad}
    ours = compiled(chains.quantize)
    yield _compare("six operators", "compiled", LARGE, "grad(f(x), x, g)", names, ours, rivals, "compiled")


# --- Order statistics -------------------------------------------------------------------------------------------------


def _sorted(x: Tensor, **options: Any) -> Tensor:
    return fullgrad.sort_st(x, method="softsort", **options).values


def _hard_rank(x: Tensor) -> Tensor:
    return (torch.argsort(torch.argsort(x, descending=True)) + 1).to(x.dtype)


def _with_matrices() -> dict[str, tuple[Operator, Operator]]:
    """Straight-through operators, and the same as composites."""

    def composite(name: str, method: str, hard: Operator) -> Operator:
        relaxation = _composites.relaxation(name, method)
        assert relaxation is not None
        composite = _composites.straight(hard, relaxation)
        return lambda x: composite(x, 0.1)

    return {
        "sort_st softsort": (_sorted, composite("sort", "softsort", lambda x: torch.sort(x).values)),
        "rank_st neuralsort": (fullgrad.rank_st, composite("rank", "neuralsort", _hard_rank)),
        "rank_st sigmoid": (lambda x: fullgrad.rank_st(x, method="sigmoid"), composite("rank", "sigmoid", _hard_rank)),
    }


def _row(n: int, device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(n, generator=generator).to(device) for _ in range(2))
    return {"x": x.requires_grad_(), "g": g, "grad": torch.autograd.grad}


def _order(device: str) -> Iterator[Comparison]:
    backward = "grad(f(x), x, g)"
    for name, (ours, composite) in _with_matrices().items():
        for n in (256, 1024, 4096):
            target = 1 / 50 if name.startswith("sort") and n == 4096 else None
            yield _compare(
                name, "forward+backward", n, backward, _row(n, device), ours, [("composite", composite, target)], f"{name} {n}"
            )
    n = 1_000_000
    names = _row(n, device)
    sort = Statement("f(x)", names | {"f": torch.sort, "x": names["x"].detach()})
    for options in ({"softness": 1e-6}, {"softness": 0.1}, {"softness": 10.0}, {"mode": "c0"}, {"mode": "c1"}, {"mode": "c2"}):
        (word, value), (most,) = *options.items(), [8.0 if "softness" in options else None]
        ours = functools.partial(_sorted, **options)
        yield Comparison(
            operator=f"sort_st softsort, {word} {value}",
            what="forward+backward",
            n=n,
            dtype="float32",
            ours=Statement(backward, names | {"f": ours}),
            rivals={"torch.sort, forward": sort},
            targets={} if most is None else {"torch.sort, forward": most},
            turns="sort",
        )
    n = 65_536
    names = _row(n, device)
    forwards: dict[str, tuple[Operator, Operator]] = {
        "max_st": (fullgrad.max_st, torch.max),
        "max_st dim": (lambda x: fullgrad.max_st(x, 0), lambda x: torch.max(x, 0)),
        "min_st": (fullgrad.min_st, torch.min),
        "argmax_st": (lambda x: fullgrad.argmax_st(x, 0), lambda x: torch.nn.functional.one_hot(torch.argmax(x, 0), len(x))),
        "median_st": (fullgrad.median_st, torch.median),
        "quantile_st": (lambda x: fullgrad.quantile_st(x, 0.3), lambda x: torch.quantile(x, 0.3)),
        "sort_st": (fullgrad.sort_st, torch.sort),
        "topk_st": (lambda x: fullgrad.topk_st(x, 10), lambda x: torch.topk(x, 10)),
        "rank_st": (fullgrad.rank_st, _hard_rank),
    }
    for name, (ours, plain) in forwards.items():
        for what, x in (("forward", names["x"]), ("no gradient", names["x"].detach())):
            yield _compare(name, what, n, "f(x)", names | {"x": x}, ours, [("plain torch", plain, 1.2)], name)


def _isotonic() -> Iterator[Comparison]:
    """The regression of fast_soft_sort next to torchsort's C++ kernels, on what soft sorts and ranks regress on."""
    from fullgrad.soft.order.kernels.isotonic import isotonic

    quadratic, entropic = (load(f"torchsort.isotonic_cpu:{name}") for name in ("isotonic_l2", "isotonic_kl"))
    if quadratic is None:
        return
    rows, n = 256, 1024
    generator = torch.Generator().manual_seed(0)
    places = torch.linspace(1, 0, n).expand(rows, n).contiguous()
    data = {
        "normal": torch.randn(rows, n, generator=generator).sort(descending=True).values,
        "uniform": torch.rand(rows, n, generator=generator).sort(descending=True).values,
    }
    for softness in (0.001, 0.01, 0.1, 1.0, 10.0):
        for kind, v in data.items():
            for what, u, w in (("sort", places / softness, v), ("rank", v / softness, places * (n - 1) + 1)):
                for mode, rival in (("c0", lambda u, w: quadratic(u - w)), ("smooth", entropic)):
                    yield _compare(
                        f"isotonic regression {mode}, {what} of {kind} rows, softness {softness:g}",
                        "no gradient",
                        rows * n,
                        "f(u, w)",
                        {"u": u, "w": w},
                        functools.partial(isotonic, mode=mode),
                        [("torchsort", rival, 10.0)],
                    )


# --- What is not a time --------------------------------------------------------------------------------------------------


def facts(device: str = "cpu") -> Iterator[dict[str, Any]]:
    """Bytes, compilation and the cache of compiled graphs: a name, ours, the rival's, and the largest allowed ratio of each."""
    for name, (ours, composite) in _with_matrices().items():
        held = [peak_bytes(Statement("grad(f(x), x, g)", _row(16_384, device) | {"f": f}), device) for f in (ours, composite)]
        target = 1 / 500 if name.startswith("sort") else 1 / 100
        yield _fact(f"{name}, n = 16,384, forward+backward: peak bytes", held[0], "composite", held[1], target)
    x = torch.rand(LARGE, device=device, requires_grad=True)
    names = {"x": x, "g": torch.ones_like(x), "grad": torch.autograd.grad}
    for name, call in (("step_quantize", "f(x, 0.25)"), ("k_bit_quantize", "f(x, 4)")):
        statement = Statement(f"grad({call}, x, g)", names | {"f": getattr(fullgrad, name)})
        yield _fact(
            f"{name}, n = 4,000,000, forward+backward: peak bytes", peak_bytes(statement, device), "an output", x.nbytes, 1.001
        )
    kept = [sum(chains.saved(f, x.detach()[:4096].requires_grad_()).values()) for f in (chains.quantize, chains.composite)]
    yield _fact("six operators, compiled: bytes per element kept for the backward", kept[0], "detach trick", kept[1], 1)
    if device == "cpu":
        seconds = chains.compile_seconds()
        yield _fact("20 operators: seconds to compile", seconds["ours"], "torch's own operators", seconds["torch"], 1.3)
        first, again = chains.cached_seconds()
        hits = again.get("autograd_cache_hit", 0)
        what = f"20 operators: seconds to compile in the next process, {hits:.0f} hit of torch's cache"
        yield _fact(what, again["seconds"], "the first process", first["seconds"], 1)
        for fact in _rivals.facts():
            yield _fact(*fact)


def _fact(what: str, ours: float, rival: str, theirs: float, target: float) -> dict[str, Any]:
    return {"what": what, "ours": ours, "rival": rival, "theirs": theirs, "target": target, "holds": ours <= target * theirs}
