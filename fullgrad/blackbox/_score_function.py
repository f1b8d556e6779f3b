"""`score_function`."""

import torch
from torch import Tensor

from fullgrad._core import checks
from fullgrad._core.opmath import cast, to_opmath
from fullgrad._dispatch import at_least, has_shape, holds, of_one_instance
from fullgrad.blackbox._mean_of_draws import moved

_BASELINES = ("leave_one_out",)


@of_one_instance
def score_function(cost: Tensor, log_prob: Tensor, baseline: str | None = "leave_one_out") -> Tensor:
    r"""The mean cost of samples, with the derivatives of every order that their probabilities give.

    .. math::
        y = \frac1S \sum_{i=1}^S c_i, \qquad D = \frac1S \sum_{i=1}^S (c_i - b_i) \nabla \log p_i + \nabla c_i

    The mean is that of :math:`(c_i - b_i)\,\exp(\log p_i - \bot(\log p_i)) + b_i`, where :math:`\bot` stops the derivative: plain
    torch code, whose derivatives of every order are unbiased estimators of those of the expected cost, under every transform.
    A cost may depend on the parameters itself. The baseline :math:`b_i` is the mean of the other costs, derivatives included,
    which leaves all expectations as they are. Saved: what torch saves.

    Args:
        cost: The costs of S samples in the first dimension, any shape behind it; floating. Costs that are differentiable keep
            their derivative.
        log_prob: The logarithm of the probability of each sample, with its derivative by the parameters; the shape of ``cost``,
            or the first dimensions of it, such as ``(S,)`` for the sum over all draws of a sample. Samples themselves are
            constants, as from `torch.distributions`' ``sample``.
        baseline: ``"leave_one_out"``, where there is more than one sample; None for no baseline.

    Returns:
        A tensor of the shape of a sample's cost, and the dtype of ``cost``.

    Raises:
        TypeError: ``cost`` or ``log_prob`` is not a floating tensor.
        ValueError: ``cost`` has no dimension of samples or no sample, ``log_prob`` has another shape, or ``baseline`` is not one
            of the choices.

    Example:
        >>> import torch, fullgrad
        >>> samples = torch.tensor([1.0, 1.0, 0.0, 1.0])
        >>> def expected(logit):
        ...     log_prob = torch.distributions.Bernoulli(logits=logit).log_prob(samples)
        ...     return fullgrad.blackbox.score_function((samples - 0.25) ** 2, log_prob)
        >>> torch.func.grad_and_value(expected)(torch.tensor(0.0))
        (tensor(0.1250), tensor(0.4375))

    Source: Foerster, Farquhar, Al-Shedivat, Rocktäschel, Xing, Whiteson, DiCE, https://arxiv.org/abs/1802.05098; Kool, van Hoof,
    Welling, Buy 4 REINFORCE samples, get a baseline for free, https://openreview.net/forum?id=r1lgTGL5DE.
    """
    name = "score_function"
    checks.floating_tensor(name, "cost", cost)
    checks.floating_tensor(name, "log_prob", log_prob)
    if baseline is not None:
        checks.choice(name, "baseline", baseline, (*_BASELINES, None))
    if not cost.ndim or not holds(cost.shape[0] != 0):
        raise ValueError(
            f"{name}: `cost` must have the samples in its first dimension, and at least one, got shape {tuple(cost.shape)}."
        )
    if not log_prob.ndim or not has_shape(log_prob.shape, cost.shape[: log_prob.ndim]):
        raise ValueError(
            f"{name}: `log_prob` must have the shape of `cost`, {tuple(cost.shape)}, or the first dimensions of it, got "
            f"{tuple(log_prob.shape)}; sum it over the other ones."
        )
    c, log_p = to_opmath(cost, log_prob)
    log_p = log_p.reshape([*log_p.shape, *[1] * (c.ndim - log_p.ndim)])
    box = torch.exp(moved(log_p))
    b = (c.sum(0) - c) / at_least(c.shape[0] - 1, 1) if baseline is not None else None
    weighted = c * box if b is None else (c - b) * box + b
    return cast(weighted.mean(0), cost.dtype)
