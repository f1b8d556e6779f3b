"""Cases of the family `sampling`: each operator with given noise, and with noise that it draws.

The noise is a constant that depends on the shape alone, or an input with a derivative where the surrogate contains it. In every
surrogate the sample is a constant.
"""

from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad import sampling, soft
from fullgrad._suite.cases._case import Case, numbers, straight_through
from fullgrad.sampling._bernoulli_logits_st import BernoulliLogitsST
from fullgrad.sampling._bernoulli_st import BernoulliST
from fullgrad.sampling._binary_st import BinaryST
from fullgrad.sampling._gumbel_topk import GumbelTopK
from fullgrad.sampling._k_subset_st import KSubsetST
from fullgrad.sampling._poisson_st import PoissonST
from fullgrad.sampling._softmax_sample import SoftmaxSample
from fullgrad.sampling._ternary_st import TernaryST
from fullgrad.testing._subject import by_cotangent_map

X, ROWS = numbers(4, 3, scale=0.8, seed=3), numbers(2, 4, seed=3)
PROBS = torch.sigmoid(X)
TAU = torch.tensor(0.7, dtype=torch.float64)
HALF = (torch.float16, torch.bfloat16)


# --- Noise ---------------------------------------------------------------------------------------------------------------


def uniform(x: Tensor, *sizes: int) -> Tensor:
    """Numbers between 0 and 1 that depend on the shape alone."""
    shape = (*sizes, *x.shape)
    dtype = torch.float32 if x.dtype in HALF else x.dtype
    count = 1
    for n in shape:
        count = count * n
    return 0.5 + 0.45 * torch.cos(2.3 * torch.arange(count, dtype=torch.float64, device=x.device)).to(dtype).reshape(shape)


def gumbel(x: Tensor, *sizes: int) -> Tensor:
    """The numbers of `uniform` as Gumbel noise."""
    return -torch.log(-torch.log(uniform(x, *sizes)))


U, G = uniform(X), gumbel(ROWS)


def _opmath(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF else x


# --- Values and surrogates -----------------------------------------------------------------------------------------------


def _less(u: Tensor, p: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(p.isnan(), torch.nan, (u < p).double()).to(dtype)


def _one_hot(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Ones at the largest scores, NaN where the softmax is NaN; contiguous, as torch's own."""
    y = (scores == scores.amax(-1, keepdim=True)) + 0 * torch.softmax(scores, -1)
    return y.to(dtype).contiguous()


def _sample(x: Tensor, noise: Tensor | None = None, tau: Any = 1.0) -> Tensor:
    x = x.detach()
    return _one_hot(_opmath(x) / tau + (gumbel(x) if noise is None else noise.detach()), x.dtype)


def _bernoulli(p: Tensor) -> Tensor:
    return _less(uniform(p), p, p.dtype)


def _bernoulli_logits(x: Tensor, *_: Any) -> Tensor:
    return _less(uniform(x), torch.sigmoid(_opmath(x)), x.dtype)


def _binary(x: Tensor) -> Tensor:
    return 2 * _less(uniform(x), (_opmath(x) + 1) / 2, x.dtype) - 1


def _ternary(x: Tensor) -> Tensor:
    return torch.sign(x) * _less(uniform(x), x.abs(), x.dtype)


def _relaxed(x: Tensor, tau: Any, u: Tensor) -> Tensor:
    return torch.sigmoid((x - torch.logit(u)) / tau)


def _hard_concrete(x: Tensor, tau: Any, u: Tensor) -> Tensor:
    return torch.clamp(_relaxed(x, tau, u) * 1.2 - 0.1, 0, 1)


def _gapped(x: Tensor, tau: Any, gap: Any) -> Tensor:
    sample, y = _sample(x), x.detach()
    top = y.amax(-1, keepdim=True)
    q = (torch.softmax(y, -1) * sample).sum(-1, keepdim=True) * (1 - 1e-5)
    gap = -torch.log(1 - q) / q if gap == "probs" else gap
    return torch.softmax((x + torch.where(sample > 0, top - y, -torch.relu(y - top + gap))) / tau, -1)


def _rao(x: Tensor, tau: Any, samples: int) -> Tensor:
    """The value with exponential variables, as in the paper: the variable of the sample has the rate of all."""
    noise, y = gumbel(x, samples + 1), x.detach()
    e, total = torch.exp(-noise[1:]), torch.exp(y).sum(-1, keepdim=True)
    sample = _sample(y, noise[0])
    first = (e * sample).sum(-1, keepdim=True) / total
    g = -torch.log(torch.where(sample > 0, first, e / torch.exp(y) + first))
    return torch.softmax((x + g - y) / tau, -1).mean(0)


def _subsets(x: Tensor) -> Tensor:
    """The marginals of two elements, from all pairs."""
    w = torch.exp(x)
    pairs = w.unsqueeze(-1) * w.unsqueeze(-2) * (1 - torch.eye(x.shape[-1], dtype=x.dtype, device=x.device))
    return pairs.sum(-1) / (pairs.sum((-2, -1)) / 2).unsqueeze(-1)


def _topk_weights(x: Tensor, noise: Tensor, tau: Any, k: int) -> Tensor:
    scores, total = x + noise, torch.zeros_like(x)
    for _ in range(k):
        a = torch.softmax(scores / tau, -1)
        scores, total = scores + torch.log(1 - a), total + a
    return total


def _k_hot(scores: Tensor, k: int) -> Tensor:
    return (scores >= scores.sort(-1, descending=True).values[..., k - 1 : k]).to(scores.dtype)


def _sinkhorn(x: Tensor, tau: Any, noise: Tensor) -> Tensor:
    """The doubly stochastic matrix, two by two, in closed form."""
    s = (x + noise) / tau
    a = torch.sigmoid((s[..., 0, 0] + s[..., 1, 1] - s[..., 0, 1] - s[..., 1, 0]) / 2)
    return torch.stack((torch.stack((a, 1 - a), -1), torch.stack((1 - a, a), -1)), -2)


def _softsort(x: Tensor, noise: Tensor, tau: Any) -> Tensor:
    s = x + noise
    return torch.softmax(-(s.sort(-1, descending=True).values.unsqueeze(-1) - s.unsqueeze(-2)).abs() / tau, -1)


def _permutation(x: Tensor, noise: Tensor) -> Tensor:
    s = (x + noise).detach()
    return (s.sort(-1, descending=True).values.unsqueeze(-1) == s.unsqueeze(-2)).to(x.dtype)


# --- The cases -----------------------------------------------------------------------------------------------------------

_REPLACED = {fullgrad.ReplaceGrad: lambda value, surrogate: surrogate.clone()}


def _case(name: str, operator: Any, inputs: tuple[Any, ...], surrogate: Any, words: str = "", **options: Any) -> Case:
    """The case of an operator with given noise; the function of the family, called with the other inputs, draws it."""
    value = options.get("value")
    draws = options.pop("draws", sampling.uniform_like if name in _OF_UNIFORM else sampling.gumbel_like)
    random = options.pop("random", getattr(sampling, name))

    def hard(*a: Any) -> Tensor:
        assert value is not None
        return straight_through(value(*[v.detach() if isinstance(v, Tensor) else v for v in a]), surrogate(*a))

    return Case(
        name=f"sampling.{name}{' ' * bool(words)}{words}",
        covers=(f"sampling.{name}",),
        operator=operator,
        inputs=inputs,
        surrogate=options.pop("as_is", hard if value is not None else surrogate),
        elementwise=False,
        draws=False if draws is None else lambda x, *_, generator=None: draws(x, generator=generator),
        random_operator=random,
        max_saved_bytes=options.pop("max_saved_bytes", 8),
        of=options.pop("of", "elements" if name in _OF_UNIFORM and name != "k_subset_st" else "rows"),
        **options,
    )


_OF_UNIFORM = (
    *("bernoulli_st", "bernoulli_logits_st", "relaxed_bernoulli", "hard_concrete", "binary_st", "ternary_st", "poisson_st"),
    "k_subset_st",
)


def _clone(x: Tensor, *_: Any) -> Tensor:
    return x.clone()


def _clamped(x: Tensor, *_: Any) -> Tensor:
    return torch.clamp(x, -1, 1)


RARE = (torch.tensor([0.001], dtype=torch.float64),)
RARE_LOGIT = (torch.tensor([-6.9], dtype=torch.float64),)


def _elements() -> list[Case]:
    st, logits_st = sampling.bernoulli_st, sampling.bernoulli_logits_st
    relaxed = lambda x, tau, u: sampling.relaxed_bernoulli(x, tau, noise=u)  # noqa: E731
    return [
        _case(
            "bernoulli_st",
            lambda p: st(p, noise=uniform(p)),
            (PROBS,),
            _clone,
            value=_bernoulli,
            smooth_forwards={BernoulliST: _clone},
            max_saved_bytes=0,
            options={"rare": (RARE, lambda p: p)},
        ),
        _case(
            "bernoulli_logits_st",
            lambda x, tau: logits_st(x, tau, noise=uniform(x)),
            (X, TAU),
            lambda x, tau: torch.sigmoid(x / tau),
            value=_bernoulli_logits,
            smooth_forwards={BernoulliLogitsST: lambda x, tau, u: torch.sigmoid(x / tau)},
            max_saved_bytes=0,
            options={"rare": ((*RARE_LOGIT, TAU), lambda x, tau: torch.sigmoid(x))},
        ),
        _case(
            "bernoulli_logits_st",
            lambda x, tau, u: logits_st(x, tau, "relaxed", noise=u),
            (X, TAU, U),
            lambda x, tau, u: straight_through((u < torch.sigmoid(x)).to(x.dtype).detach(), _relaxed(x, tau, u)),
            words="relaxed",
            smooth_forwards=_REPLACED,
            random=lambda x, tau, **noise: logits_st(x, tau, "relaxed", **noise),
            random_inputs=(X, TAU),
            max_saved_bytes=None,
            exhaustive=True,
        ),
        _case(
            "bernoulli_logits_st",
            lambda x: logits_st(x, gradient="identity", noise=uniform(x)),
            (X,),
            _clone,
            words="identity",
            value=_bernoulli_logits,
            random=lambda x, **noise: logits_st(x, gradient="identity", **noise),
            smooth_forwards=_REPLACED,
            exhaustive=True,
        ),
        _case(
            "relaxed_bernoulli",
            relaxed,
            (X, TAU, U),
            _relaxed,
            smooth_forwards={},
            random=lambda x, tau, **noise: sampling.relaxed_bernoulli(x, tau, **noise),
            random_inputs=(X, TAU),
            max_saved_bytes=None,
            long=True,
        ),
        _case(
            "hard_concrete",
            lambda x, tau, u: sampling.hard_concrete(x, tau, noise=u),
            (X, TAU, U),
            _hard_concrete,
            smooth_forwards={},
            random=lambda x, tau, **noise: sampling.hard_concrete(x, tau, **noise),
            random_inputs=(X, TAU),
            max_saved_bytes=None,
            long=True,
        ),
        _case(
            "hard_concrete_l0",
            sampling.hard_concrete_l0,
            (X, TAU),
            lambda x, tau: torch.sigmoid(x - tau * torch.log(torch.tensor(0.1 / 1.1, dtype=x.dtype))),
            smooth_forwards={},
            draws=None,
            max_saved_bytes=None,
            long=True,
        ),
        _case(
            "binary_st",
            lambda x: sampling.binary_st(x, noise=uniform(x)),
            (X,),
            _clamped,
            value=_binary,
            smooth_forwards={BinaryST: _clamped},
            max_saved_bytes=0,
        ),
        _case(
            "ternary_st",
            lambda x: sampling.ternary_st(x, noise=uniform(x)),
            (X,),
            _clamped,
            value=_ternary,
            smooth_forwards={TernaryST: _clamped},
            max_saved_bytes=0,
            long=True,
        ),
        _case(
            "poisson_st",
            lambda x: sampling.poisson_st(x, noise=uniform(x)),
            (8 * PROBS,),
            lambda x: straight_through(sampling.poisson_st(x.detach(), noise=uniform(x)), x),
            smooth_forwards={PoissonST: _clone},
            max_saved_bytes=0,
        ),
    ]


def _softmax_sample(sample: Tensor, x: Tensor, index: Tensor | None, tau: Any, gap: Any, dim: int) -> Tensor:
    return torch.softmax(x / tau, dim)


def _rows() -> list[Case]:
    categorical, rao = sampling.categorical_st, sampling.gumbel_rao
    softmax = lambda x, tau: torch.softmax(x / tau, -1)  # noqa: E731
    soft_topk = lambda x, noise, tau: _topk_weights(x, noise, tau, 2)  # noqa: E731
    return [
        _case(
            "categorical_st",
            lambda x, tau: categorical(x, tau, noise=gumbel(x)),
            (ROWS, TAU),
            softmax,
            value=lambda x, tau: _sample(x),
            smooth_forwards={SoftmaxSample: _softmax_sample},
            options={"rare": ((torch.tensor([-6.9, 0.0], dtype=torch.float64), TAU), lambda x, tau: torch.softmax(x, -1))},
        ),
        _case(
            "categorical_st",
            lambda x: categorical(x, sample_tau=2.0, gradient="identity", noise=gumbel(x)),
            (ROWS,),
            _clone,
            words="identity",
            value=lambda x: _sample(x, tau=2.0),
            smooth_forwards=_REPLACED,
            random=lambda x, **noise: categorical(x, sample_tau=2.0, gradient="identity", **noise),
            exhaustive=True,
        ),
        _case(
            "gumbel_softmax",
            lambda x, tau, noise: sampling.gumbel_softmax(x, tau, noise=noise),
            (ROWS, TAU, G),
            lambda x, tau, noise: torch.softmax((x + noise) / tau, -1),
            smooth_forwards={},
            random=lambda x, tau, **noise: sampling.gumbel_softmax(x, tau, **noise),
            random_inputs=(ROWS, TAU),
            max_saved_bytes=0,
        ),
        _case(
            "gumbel_softmax",
            lambda x: sampling.gumbel_softmax(x, 0.7, True, noise=gumbel(x)),
            (ROWS,),
            lambda x: torch.softmax((x + gumbel(x)) / 0.7, -1),
            words="hard",
            value=_sample,
            smooth_forwards=_REPLACED,
            random=lambda x, **noise: sampling.gumbel_softmax(x, 0.7, True, **noise),
            long=True,
        ),
        _case(
            "reinmax",
            lambda x: sampling.reinmax(x, 0.8, noise=gumbel(x)),
            (ROWS,),
            None,
            value=_sample,
            as_is=None,
            random=lambda x, **noise: sampling.reinmax(x, 0.8, **noise),
        ),
        _case(
            "gapped_st",
            lambda x, tau: sampling.gapped_st(x, tau, 1.0, noise=gumbel(x)),
            (ROWS, TAU),
            lambda x, tau: _gapped(x, tau, 1.0),
            value=lambda x, tau: _sample(x),
            long=True,
        ),
        _case(
            "gapped_st",
            lambda x, tau: sampling.gapped_st(x, tau, "probs", noise=gumbel(x)),
            (ROWS, TAU),
            lambda x, tau: _gapped(x, tau, "probs"),
            words="probs",
            value=lambda x, tau: _sample(x),
            random=lambda x, tau, **noise: sampling.gapped_st(x, tau, "probs", **noise),
            exhaustive=True,
        ),
        _case(
            "gumbel_rao",
            lambda x, tau: rao(x, tau, 3, noise=gumbel(x, 4)),
            (ROWS, TAU),
            lambda x, tau: _rao(x, tau, 3),
            value=lambda x, tau: _sample(x, gumbel(x, 4)[0]),
            draws=lambda x, generator: sampling.gumbel_like(x, (4,), generator=generator),
            random=lambda x, tau, **noise: rao(x, tau, 3, **noise),
            max_saved_bytes=None,
            long=True,
        ),
        _case(
            "k_subset_st",
            lambda x: sampling.k_subset_st(x, 2, noise=uniform(x)),
            (ROWS,),
            lambda x: straight_through(sampling.k_subset_st(x.detach(), 2, noise=uniform(x)), _subsets(x)),
            smooth_forwards={KSubsetST: lambda x, u, k: soft.subset_marginals(x, k)},
            random=lambda x, **noise: sampling.k_subset_st(x, 2, **noise),
        ),
        _case(
            "gumbel_topk",
            lambda x, noise, tau: sampling.gumbel_topk(x, 2, tau, noise=noise),
            (ROWS, G, TAU),
            soft_topk,
            smooth_forwards={},
            random=lambda x, tau, **noise: sampling.gumbel_topk(x, 2, tau, **noise),
            random_inputs=(ROWS, TAU),
        ),
        _case(
            "gumbel_topk",
            lambda x, noise, tau: sampling.gumbel_topk(x, 2, tau, True, noise=noise),
            (ROWS, G, TAU),
            lambda x, noise, tau: straight_through(_k_hot((x + noise).detach(), 2), soft_topk(x, noise, tau)),
            words="hard",
            smooth_forwards={GumbelTopK: lambda x, noise, tau, k, hard: GumbelTopK.relaxed(x, noise, tau, k, hard)},
            random=lambda x, tau, **noise: sampling.gumbel_topk(x, 2, tau, True, **noise),
            random_inputs=(ROWS, TAU),
            exhaustive=True,
        ),
        _case(
            "imle_topk",
            lambda x: sampling.imle_topk(x, 2, 1.5, noise=gumbel(x)),
            (ROWS,),
            None,
            as_is=by_cotangent_map(_imle_map, lambda x: _k_hot(x.detach() + gumbel(x), 2)),
            linear=False,
            has_tangent=False,
            random=lambda x, **noise: sampling.imle_topk(x, 2, 1.5, **noise),
        ),
        _case(
            "gumbel_sinkhorn",
            lambda x, tau, noise: sampling.gumbel_sinkhorn(x, tau, noise=noise),
            (ROWS[:1].reshape(1, 2, 2), TAU, G[:1].reshape(1, 2, 2)),
            _sinkhorn,
            smooth_forwards={},
            random=lambda x, tau, **noise: sampling.gumbel_sinkhorn(x, tau, **noise),
            random_inputs=(ROWS[:1].reshape(1, 2, 2), TAU),
            max_saved_bytes=None,
            of="matrices",
            long=True,
        ),
        _case(
            "plackett_luce_st",
            lambda x, noise, tau: sampling.plackett_luce_st(x, tau, noise=noise),
            (ROWS, G, TAU),
            lambda x, noise, tau: straight_through(_permutation(x, noise), _softsort(x, noise, tau)),
            random=lambda x, tau, **noise: sampling.plackett_luce_st(x, tau, **noise),
            random_inputs=(ROWS, TAU),
            max_saved_bytes=None,
            long=True,
        ),
    ]


def _imle_map(g: Tensor, x: Tensor) -> Tensor:
    score = x.detach() + gumbel(x)
    return (_k_hot(score, 2) - _k_hot(score - 1.5 * g.detach(), 2)) / 1.5


CASES: list[Case] = [*_elements(), *_rows()]
