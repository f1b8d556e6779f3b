"""Units and offsets: every function of numbers gives in float32 and half precision what it gives in float64, anywhere."""

import pytest
import torch
from torch.func import jvp

import fullgrad
from fullgrad import soft
from fullgrad.soft.order.methods import PERMUTATION_METHODS, RANK_METHODS, SORT_METHODS

MODES = ("smooth", "c0", "c1", "c2")
ALPHA = {"smooth": 1.0, "c0": 2.0, "c1": 1.5, "c2": 4 / 3}
# Up to these offsets multiples of 1/8 are numbers of the dtype.
OFFSETS = {torch.float32: 2.0**20, torch.float16: 128.0, torch.bfloat16: 16.0}
UNITS = {torch.float32: (1.0, 2.0**-10, 2.0**20), torch.float16: (1.0, 2.0**-8), torch.bfloat16: (1.0, 2.0**20)}
SOFTNESS = 0.11
OTHER = torch.tensor([0.5, -1.25, 1.75, 0.0, -0.375, 1.125, -1.5, 0.25, 2.0], dtype=torch.float64)


def statistics(kind, **names):
    """Order statistics by all of their methods."""

    def one(f, method, more):
        def call(x, s, mode, unit, offset, standardize):
            y = f(x, **more, softness=s if not standardize else SOFTNESS, mode=mode, method=method, standardize=standardize)
            return y if isinstance(y, torch.Tensor) else y[0]

        return call

    for name, (methods, more) in names.items():
        for method in methods:
            yield f"{name} {method}", (kind, one(getattr(fullgrad if name.endswith("_st") else soft, name), method, more))


Q = {"q": 0.37}
# The kind of each, and a function of x, the softness, the mode, the unit and the offset: "values" have the unit and the offset of
# x, "scaled" the unit of an x without an offset, "weights" neither, "steps" neither of an x without an offset.
ORDER = {
    **dict(
        statistics(
            "values",
            sort=(SORT_METHODS, {}),
            topk=(SORT_METHODS, {"k": 2}),
            max=(SORT_METHODS, {}),
            min=(SORT_METHODS, {}),
            median=(SORT_METHODS, {}),
            quantile=(SORT_METHODS, Q),
            sort_st=(SORT_METHODS, {}),
        )
    ),
    **dict(
        statistics(
            "weights",
            argsort=(PERMUTATION_METHODS, {}),
            argmax=(PERMUTATION_METHODS, {}),
            argmin=(PERMUTATION_METHODS, {}),
            argmedian=(PERMUTATION_METHODS, {}),
            argquantile=(PERMUTATION_METHODS, Q),
            rank=(RANK_METHODS, {}),
        )
    ),
}


def compared(name, **more):
    def call(x, s, mode, unit, offset):
        return getattr(soft, name)(x, (OTHER * unit + offset).to(x.dtype), s, mode=mode, epsilon=0.0, **more)

    return "weights", call


def of_other(x):
    """Numbers of the row's dtype to compare it with."""
    return (OTHER.abs() / 2).to(x.dtype)


OTHERS = {
    **{name: compared(name) for name in ("greater", "greater_equal", "less", "less_equal", "eq", "not_equal")},
    "isclose": compared("isclose", rtol=0.0, atol=0.0),
    "clamp": ("values", lambda x, s, mode, unit, offset: soft.clamp(x, offset - unit, offset + 0.75 * unit, s, mode)),
    "clamp gated": ("values", lambda x, s, mode, unit, offset: soft.clamp(x, offset - unit, offset + unit, s, mode, gated=True)),
    "proj_simplex": ("weights", lambda x, s, mode, unit, offset: soft.proj_simplex(x, -1, s, mode)),
    "proj_capped_simplex": ("weights", lambda x, s, mode, unit, offset: soft.proj_capped_simplex(x, 3.5, -1, s, mode)),
    "topk_mask_st": ("weights", lambda x, s, mode, unit, offset: fullgrad.topk_mask_st(x, 3, -1, s, mode)),
    "proj_permutahedron": ("weights", lambda x, s, mode, unit, offset: soft.proj_permutahedron(x, OTHER.to(x.dtype), s, mode)),
    "proj_transport_polytope": (
        "weights",
        lambda x, s, mode, unit, offset: soft.proj_transport_polytope(
            x.view(3, 3), x.new_full((3,), 0.25), x.new_tensor([0.25, 0.375, 0.125]), s, mode
        ),
    ),
    # Without a softness the unit is that of the exponential: these see numbers in units of 1.
    "entmax": ("own unit", lambda x, s, mode, unit, offset: soft.entmax(x, ALPHA[mode])),
    "entmax 1.3": ("own unit", lambda x, s, mode, unit, offset: soft.entmax(x, 1.3)),
    "proj_ball": ("scaled", lambda x, s, mode, unit, offset: soft.proj_ball(x, unit)),
    "sparsemax": ("own unit", lambda x, s, mode, unit, offset: soft.sparsemax(x)),
    "normmax": ("own unit", lambda x, s, mode, unit, offset: soft.normmax(x, 2.0)),
    "subset_marginals": ("own unit", lambda x, s, mode, unit, offset: soft.subset_marginals(x, 3)),
    "entmax_loss": ("own unit", lambda x, s, mode, unit, offset: soft.entmax_loss(x[None], torch.tensor([3]), ALPHA[mode])),
    "normmax_loss": ("own unit", lambda x, s, mode, unit, offset: soft.normmax_loss(x[None], torch.tensor([3]), 2.0)),
    "round": ("integers", lambda x, s, mode, unit, offset: soft.round(x, SOFTNESS, mode)),
    **{
        name: ("steps", lambda x, s, mode, unit, offset, name=name: getattr(soft, name)(x, s, mode))
        for name in ("sigmoidal", "heaviside")
    },
    "sign": ("steps", lambda x, s, mode, unit, offset: soft.sign(x, s, mode)),
    **{
        name: ("scaled", lambda x, s, mode, unit, offset, name=name: getattr(soft, name)(x, s, mode))
        for name in ("abs", "relu", "softrelu")
    },
    "relu gated": ("scaled", lambda x, s, mode, unit, offset: soft.relu(x, s, mode, gated=True)),
    "histogram": ("weights", lambda x, s, mode, unit, offset: soft.histogram(x, 5, offset - unit, offset + unit, None, s, mode)),
    "where": ("values", lambda x, s, mode, unit, offset: soft.where(of_other(x), x, x.flip(0))),
    "take": ("values", lambda x, s, mode, unit, offset: soft.take(x, x.new_full((2, 8), 0.125) @ torch.eye(8, 9).to(x), -1)),
    "take_along_dim": ("values", lambda x, s, mode, unit, offset: soft.take_along_dim(x, torch.eye(9).to(x)[:4], -1)),
    "index_select": ("values", lambda x, s, mode, unit, offset: soft.index_select(x, torch.eye(9).to(x)[2], 0)),
    "narrow": ("values", lambda x, s, mode, unit, offset: soft.narrow(x, torch.eye(9).to(x)[2], 3)),
}
# Functions of truth values, which are in [0, 1].
TRUTH = {
    "all": soft.all,
    "any": soft.any,
    "logical_and": lambda x: soft.logical_and(x, x.flip(0)),
    "logical_or": lambda x: soft.logical_or(x, x.flip(0)),
    "logical_xor": lambda x: soft.logical_xor(x, x.flip(0)),
    "logical_not": soft.logical_not,
}
ALIASES = {"gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "ne": "not_equal", "equal": "eq"}


@pytest.mark.short
def test_every_public_function_is_here():
    """Every public function is here, under its name or that of an alias."""
    covered = {name.split()[0] for name in (*ORDER, *OTHERS, *TRUTH)}
    assert {ALIASES.get(name, name) for name in soft.__all__} <= covered
    assert all(getattr(soft, name) is getattr(soft, other) for name, other in ALIASES.items())


def numbers(n):
    """Distinct multiples of 1/8."""
    places = torch.randperm(4 * n, generator=torch.Generator().manual_seed(n))[:n]
    return (places - 2 * n).double() * (0.25 if n < 16 else 0.125) / 2


def derivatives(f, x):
    """The value, the gradient and the tangent, in float64."""
    leaf = x.clone().requires_grad_()
    y = f(leaf)
    g = ((5 * torch.arange(y.numel()) % 7 + 1) / 4).view(y.shape).to(y.dtype)
    (gradient,) = torch.autograd.grad(y, leaf, g)
    t = ((3 * torch.arange(x.numel()) % 5 - 2) / 4).view(x.shape).to(x.dtype)
    return y.detach().double(), gradient.double(), jvp(f, (x,), (t,))[1].double()


def check(kind, f, x, dtype, unit, offset, digits=256):
    """Compare ``f(x, unit, offset)`` in a dtype with float64 without the offset, up to some roundings."""
    moved = (unit * (x + offset)).to(dtype)
    assert torch.equal(moved.double(), unit * (x + offset)), "the number is one of the dtype"
    found = derivatives(lambda x: f(x, unit, unit * offset), moved)
    expected = derivatives(lambda x: f(x, unit, 0.0), unit * x)
    eps, rounding = torch.finfo(dtype).eps, digits * torch.finfo(torch.float32).eps
    place = unit * offset if kind in ("values", "integers") else 0.0
    in_unit = kind in ("values", "scaled", "integers")
    # Where there is next to nothing, the scale is a part of what a step in the unit of x has.
    scales = [unit if in_unit else 0.1, *[0.1 if in_unit else 0.1 / unit] * 2]
    for what, y, z, least in zip(("value", "gradient", "tangent"), found, expected, scales, strict=True):
        at = place if what == "value" else 0.0
        error = float((y - at - z).abs().max())
        allowed = (rounding + 4 * eps) * max(float(z.abs().max()), least) + eps * at
        assert error <= allowed, f"{what} in unit {unit} at {offset}: off by {error:.1e}, {allowed:.1e} is allowed"


def cases(dtype, has_unit):
    """Modes, units and offsets: for float32 every mode far from 0, else the smooth one, in every unit."""
    far = OFFSETS[dtype]
    yield from ((mode, 1.0, far) for mode in (MODES if dtype == torch.float32 else MODES[:1]))
    yield from (("smooth", unit, far) for unit in (UNITS[dtype][1:] if has_unit else ()))


@pytest.mark.sampled(of=3)
@pytest.mark.parametrize("dtype", OFFSETS, ids=str)
@pytest.mark.parametrize("name", ORDER)
def test_order_statistics_in_any_unit_anywhere(name, dtype):
    """Value, gradient and tangent are right, standardized or not."""
    kind, f = ORDER[name]
    for standardize in (True, False):
        # What fills up the rows of a network is 1 beyond them, in any unit.
        for mode, unit, offset in cases(dtype, standardize or "sorting_network" not in name):
            # Of numbers that are not standardized the values of fast_soft_sort in c1 and c2 depend on the offset.
            if standardize or not ("fast_soft_sort" in name and mode in ("c1", "c2") and kind == "values"):
                call = lambda x, u, b, m=mode, z=standardize: f(x, SOFTNESS * u, m, u, b, z)  # noqa: E731
                check(kind, call, numbers(9), dtype, unit, offset, 4096 if "neuralsort" in name else 512)


@pytest.mark.short(of=3)
@pytest.mark.parametrize("dtype", OFFSETS, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_projections_and_relaxations_in_any_unit_anywhere(name, dtype):
    """Value, gradient and tangent are right."""
    kind, f = OTHERS[name]
    for mode, unit, offset in cases(dtype, kind not in ("own unit", "integers")):
        call = lambda x, u, b, m=mode: f(x, SOFTNESS * u, m, u, b)  # noqa: E731
        check(kind, call, numbers(9), dtype, unit, 0.0 if kind in ("steps", "scaled") else offset)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("method", ["softsort", "neuralsort"])
@pytest.mark.parametrize("mode", ["smooth", "c1"])
def test_long_rows_far_from_0(mode, method):
    """Scans, windows and blocks are right. The scores of neuralsort, and their rounding, grow with the row's length."""
    for kind, f in (("values", soft.sort), ("weights", soft.rank)):
        for standardize, softness in ((True, 0.3), (False, 30.0)):

            def call(x, unit, offset, f=f, z=standardize, s=softness):
                y = f(x, softness=s, mode=mode, method=method, standardize=z)
                return y if isinstance(y, torch.Tensor) else y[0]

            check(kind, call, numbers(600), torch.float32, 1.0, 2.0**18, 2**15 if method == "neuralsort" else 2**11)
