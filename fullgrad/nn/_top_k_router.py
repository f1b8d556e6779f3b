"""`TopKRouter`: the router of a mixture of experts."""

from typing import Any

import torch
from torch import Tensor, nn

from fullgrad._core import checks
from fullgrad._core.opmath import cast, to_opmath
from fullgrad._dispatch import at_least, holds, unscriptable
from fullgrad.soft._mode_names import STEP_MODES, StepMode
from fullgrad.soft.simplex._topk_mask_st import topk_mask_st

_LARGEST = 2**31 - 1  # size of a dimension


@unscriptable
class TopKRouter(nn.Module):
    r"""Choose k experts for each token, with weights, and a loss that balances the experts.

    .. math::
        z = W x, \qquad m = [\,i \in \operatorname{topk} z\,], \qquad w = \frac{e^z m}{\sum_j e^{z_j} m_j} \quad\text{or}\quad
        w = \operatorname{softmax}(z)\, m, \qquad
        \text{loss} = \alpha\, n \sum_i f_i P_i + \beta \operatorname{mean} \Bigl(\log \sum_j e^{z_j}\Bigr)^2

    with :math:`f_i` the share of expert *i* in the choices, a constant, and :math:`P_i` the mean over tokens of its probability
    :math:`\operatorname{softmax}(z)_i`. The first weights, which add up to 1, are Mixtral's, the second those of Switch. The loss
    of balance is :math:`\alpha` where all experts are chosen equally often, at any k; the one of Mixtral in ``transformers`` is k
    times as large.

    The derivative is the true one of the weights for the experts that are chosen, and the choice has none. With a softness the
    choice has that of :func:`fullgrad.topk_mask_st`, so that experts that were not chosen get a gradient too, where the loss
    depends on their weight: where their output is computed. Logits in half precision are computed with in float32, and weights
    rounded once; the loss stays in float32. A weight below the smallest number of its dtype is 0, and its expert still in the
    indices. Under ``vmap`` the loss of a sample is the balance of its own tokens.

    Args:
        dim: The size of a token.
        num_experts: How many experts there are.
        k: How many experts each token is given.
        normalize: Whether the weights of a token add up to 1; None where k is more than 1.
        balance_weight: The factor :math:`\alpha` of the loss of balance, not negative.
        z_weight: The factor :math:`\beta` of the loss of large logits, not negative.
        softness: The width of the choice in its derivative, in the unit of the logits: None for a choice without one; else a
            number.
        mode: The shape of the choice in its derivative, as in :func:`fullgrad.topk_mask_st`.

    Attributes:
        gate: ``nn.Linear(dim, num_experts, bias=False)``. Another module may be put in its place, such as ``nn.Identity()``,
            with which the input of a call is the logits.

    Shape:
        The input is (…, dim). The call returns ``(weights, indices, loss)``: weights of shape (…, num_experts), 0 but for k of
        each token; their places of shape (…, k), those of the largest weight first; and a number.

    Raises:
        TypeError: A size is not an integer, or a factor not a number.
        ValueError: A size is not positive, k is more than ``num_experts``, a factor is negative, ``softness`` is not positive,
            ``mode`` is unknown, or the weights would be 1 whatever the logits are: ``normalize`` for one expert without a
            softness. In a call, the logits do not have ``num_experts`` in their last dimension.

    Example:
        >>> import torch, fullgrad
        >>> _ = torch.manual_seed(0)
        >>> router = fullgrad.nn.TopKRouter(8, num_experts=4, k=2)
        >>> experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        >>> x = torch.randn(6, 8)
        >>> weights, indices, loss = router(x)
        >>> (weights != 0).sum(-1)
        tensor([2, 2, 2, 2, 2, 2])
        >>> y = torch.zeros_like(x)
        >>> for i, expert in enumerate(experts):
        ...     chosen = (indices == i).any(-1)
        ...     y[chosen] += weights[chosen, i, None] * expert(x[chosen])
        >>> (y.square().mean() + loss).backward()

    Source: Fedus, Zoph, Shazeer, https://arxiv.org/abs/2101.03961; Jiang et al., https://arxiv.org/abs/2401.04088; for the loss
    of large logits Zoph et al., https://arxiv.org/abs/2202.08906.
    """

    def __init__(
        self,
        dim: int,
        num_experts: int,
        k: int = 2,
        *,
        normalize: bool | None = None,
        balance_weight: float = 0.01,
        z_weight: float = 0.0,
        softness: float | None = None,
        mode: StepMode = "smooth",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = "TopKRouter"
        self.dim = checks.positive_integer(name, "dim", dim, _LARGEST)
        self.num_experts = checks.positive_integer(name, "num_experts", num_experts, _LARGEST)
        self.k = checks.positive_integer(name, "k", k, self.num_experts)
        checks.non_negative_number(name, "balance_weight", balance_weight)
        checks.non_negative_number(name, "z_weight", z_weight)
        if softness is not None:
            checks.positive_number(name, "softness", softness)
        checks.choice(name, "mode", mode, STEP_MODES)
        self.normalize = k > 1 if normalize is None else bool(normalize)
        if self.normalize and self.k == 1 and softness is None and self.num_experts > 1:
            raise ValueError(
                f"{name}: `normalize` makes the weight of one expert 1, from which the gate learns nothing; "
                "write normalize=False, or give a softness."
            )
        self.balance_weight, self.z_weight = balance_weight, z_weight
        self.softness = softness
        self.mode: StepMode = mode
        self.gate: nn.Module = nn.Linear(self.dim, self.num_experts, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights of the experts, the places of those chosen, and the loss."""
        checks.floating_tensor("TopKRouter", "x", x)
        if x.is_nested:
            raise TypeError("TopKRouter: `x` must not be a nested tensor; call the module on its .values().")
        logits = self.gate(x)
        if logits.ndim == 0 or not holds(logits.shape[-1] == self.num_experts):
            raise ValueError(
                f"TopKRouter: the logits must have {self.num_experts} numbers in the last dimension, "
                f"got shape {tuple(logits.shape)}."
            )
        (z,) = to_opmath(logits)
        probabilities = torch.softmax(z, -1)
        if self.softness is None:
            indices = z.topk(self.k, -1).indices
            chosen = torch.zeros_like(z, dtype=torch.bool).scatter(-1, indices, True)
            weights = torch.softmax(torch.where(chosen, z, -torch.inf), -1) if self.normalize else probabilities * chosen
        else:
            mask = topk_mask_st(z, self.k, -1, self.softness, self.mode)
            chosen = mask.detach() > 0
            indices = torch.where(chosen, z.detach(), -torch.inf).topk(self.k, -1).indices
            weights = (torch.exp(z - z.detach().amax(-1, keepdim=True)) if self.normalize else probabilities) * mask
            if self.normalize:
                weights = weights / weights.sum(-1, keepdim=True)
        return cast(weights, logits.dtype), indices, self._loss(z, probabilities, chosen)

    def _loss(self, z: Tensor, probabilities: Tensor, chosen: Tensor) -> Tensor:
        n = self.num_experts
        count = at_least(z.numel() // n, 1)  # no tokens have the loss 0
        shares = chosen.reshape(-1, n).to(z.dtype).sum(0) / (count * self.k)
        loss = (shares * (probabilities.reshape(-1, n).sum(0) / count)).sum() * (n * self.balance_weight)
        return loss + torch.logsumexp(z, -1).square().sum() / count * self.z_weight if self.z_weight else loss

    def extra_repr(self) -> str:
        """The sizes, and the arguments that are not as by default."""
        shown = [str(self.dim), f"num_experts={self.num_experts}", f"k={self.k}"]
        shown += [f"normalize={self.normalize}"] if self.normalize != (self.k > 1) else []
        defaults = {"balance_weight": 0.01, "z_weight": 0.0, "softness": None, "mode": "smooth"}
        return ", ".join(shown + [f"{key}={getattr(self, key)!r}" for key, v in defaults.items() if getattr(self, key) != v])
