"""`VectorQuantizer`: a codebook that learns, with its loss."""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import embedding

from fullgrad._core import checks
from fullgrad._core.opmath import HALF, to_opmath
from fullgrad._dispatch import at_least, check_devices, holds, transforms_active, unscriptable
from fullgrad.quantizers._vector_quantize import GRADIENTS, vector_quantize
from fullgrad.safe import normalize

DISTANCES = ("euclidean", "cosine")
_LARGEST = 2**31 - 1  # size of a dimension


@unscriptable
class VectorQuantizer(nn.Module):
    r"""Round vectors to the rows of a codebook, which learns by a loss or by moving averages.

    .. math::
        i = \operatorname{argmin}_j \lVert x - c_j \rVert, \qquad y = c_i, \qquad
        \text{loss} = \operatorname{mean}\, (\bar x - c_i)^2 + \beta \operatorname{mean}\, (x - \bar c_i)^2

    where a bar means without a derivative, and the derivative of *y* is that of :func:`fullgrad.quantizers.vector_quantize`. The
    codebook is a parameter, which learns by the first term of the loss alone. With ``decay`` it is a buffer, and the first term
    is left out: in training each call moves the rows, after their use, to averages of the vectors that chose them,

    .. math::
        n_j \leftarrow d\, n_j + (1 - d) \sum_t [\,i_t = j\,], \qquad s_j \leftarrow d\, s_j + (1 - d) \sum_t [\,i_t = j\,]\, x_t,
        \qquad c_j = s_j \Big/ \frac{(n_j + \epsilon) \sum n}{\sum n + m \epsilon}

    for *m* rows. A row whose average count :math:`n_j` falls below ``dead_below`` then becomes a vector of the call, drawn by
    torch's generator: no vector twice in a call, so that with more such rows than vectors some wait for the next call. Vectors
    with NaN or infinity take no part in averages. A call with an empty input leaves averages as they are: counts do not decay.

    The value, the indices, the loss and all derivatives are functions of the input and the codebook; only the averages are a side
    effect, as those of ``nn.BatchNorm1d``. They are moved under ``torch.no_grad`` and in compiled code too. They cannot be moved
    under ``vmap``, ``grad`` or another transform of ``torch.func``, which raises: call ``.eval()``, or pass ``update=False``.
    `torch.utils.checkpoint.checkpoint` calls a module twice: averages would move twice, and the second call would see other rows
    than the first. Leave the quantizer outside of what is checkpointed, or pass ``update=False``; :func:`fullgrad.checkpoint`
    raises. Ranks of a distributed job do not exchange their averages.

    Args:
        num_codes: How many rows the codebook has.
        dim: The size of a vector.
        beta: The weight of the term that commits the vectors to their rows, not negative.
        decay: How much of the averages a call keeps, from 0 to less than 1, such as 0.99; None for a parameter.
        dead_below: The average count below which a row is replaced, 0 for never; it needs ``decay``.
        eps: A small count :math:`\epsilon` added to each, with ``decay``.
        gradient: The gradient of the vectors, ``"identity"`` or ``"rotation"``.
        distance: ``"euclidean"``, or ``"cosine"``: the row whose direction is nearest to that of the vector. The value is that
            row, of its own length.

    Attributes:
        codebook: The rows, of shape (num_codes, dim); at first uniform between ``-1 / num_codes`` and ``1 / num_codes``.
            :meth:`initialize` takes them from vectors.
        counts, sums: With ``decay``, the averages :math:`n` and :math:`s`; at first 1 and the codebook.

    Shape:
        The input is (…, dim). The call returns ``(values, indices, loss)``: a tensor like the input, integers of shape (…), and a
        number, in float32 for half precision.

    Raises:
        TypeError: A size is not an integer, or a factor not a number.
        ValueError: A size is not positive, a factor out of its range, ``dead_below`` without ``decay``, or ``gradient`` is
            unknown; in a call, vectors have another size.
        RuntimeError: In a call, a tensor is not on the device of the codebook, or the averages would be moved under a transform,
            or are in half precision, which is too coarse.

    Example:
        >>> import torch, fullgrad
        >>> _ = torch.manual_seed(0)
        >>> quantizer = fullgrad.nn.VectorQuantizer(16, 4, decay=0.9, dead_below=0.1)
        >>> x = torch.randn(32, 4, requires_grad=True)
        >>> values, indices, loss = quantizer(x)
        >>> values.shape, indices.shape
        (torch.Size([32, 4]), torch.Size([32]))
        >>> (values.square().mean() + loss).backward()
        >>> values, indices, _ = quantizer.eval()(x)
        >>> torch.equal(values, quantizer.decode(indices))
        True

    Source: van den Oord, Vinyals, Kavukcuoglu, https://arxiv.org/abs/1711.00937; Łańcucki et al.,
    https://arxiv.org/abs/2005.08520; ``vector_quantize_pytorch.VectorQuantize``.
    """

    codebook: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(
        self,
        num_codes: int,
        dim: int,
        beta: float = 0.25,
        *,
        decay: float | None = None,
        dead_below: float = 0.0,
        eps: float = 1e-5,
        gradient: str = "identity",
        distance: str = "euclidean",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = "VectorQuantizer"
        self.num_codes = checks.positive_integer(name, "num_codes", num_codes, _LARGEST)
        self.dim = checks.positive_integer(name, "dim", dim, _LARGEST)
        checks.non_negative_number(name, "beta", beta)
        checks.non_negative_number(name, "dead_below", dead_below)
        checks.non_negative_number(name, "eps", eps)
        checks.choice(name, "gradient", gradient, GRADIENTS)
        checks.choice(name, "distance", distance, DISTANCES)
        if decay is not None:
            checks.non_negative_number(name, "decay", decay)
            if not decay < 1:
                raise ValueError(f"{name}: `decay` must be less than 1, got {decay}.")
            if not (decay or eps):
                raise ValueError(
                    f"{name}: `eps` must be positive with decay=0, as a row that no vector chooses has no mean, got {eps}."
                )
        elif dead_below:
            raise ValueError(
                f"{name}: `dead_below` needs the averages that `decay` keeps, got decay=None; write decay=0.99, or dead_below=0."
            )
        self.beta, self.decay, self.dead_below, self.eps = beta, decay, dead_below, eps
        self.gradient, self.distance = gradient, distance
        rows = torch.empty(self.num_codes, self.dim, device=device, dtype=dtype)
        if decay is None:
            self.codebook = nn.Parameter(rows)
        else:
            self.register_buffer("codebook", rows)
            self.register_buffer("counts", torch.empty(self.num_codes, device=device, dtype=dtype))
            self.register_buffer("sums", torch.empty_like(rows))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the codebook, and forget the averages."""
        self._begin(self.codebook.uniform_(-1 / self.num_codes, 1 / self.num_codes))

    @torch.no_grad()
    def initialize(self, x: Tensor, iterations: int = 10, generator: Generator | None = None) -> None:
        """Take the codebook from vectors: some of them, drawn without repetition, moved by k-means.

        Args:
            x: Of shape (…, dim), with at least as many vectors as the codebook has rows.
            iterations: How often the rows are moved to the means of the vectors next to them.
            generator: The generator that draws; None for torch's own.

        Raises:
            ValueError: There are too few vectors, or they have another size.
        """
        x = self._rows(x)
        if x.shape[0] < self.num_codes:
            raise ValueError(f"VectorQuantizer.initialize: `x` must have at least {self.num_codes} vectors, got {x.shape[0]}.")
        device = x.device if generator is None else generator.device
        codes = x[torch.randperm(x.shape[0], generator=generator, device=device)[: self.num_codes].to(x.device)]
        for _ in range(iterations):
            counts, sums = self._totals(x, self._nearest(x, codes))
            codes = torch.where(counts.unsqueeze(-1) > 0, sums / counts.clamp(min=1).unsqueeze(-1), codes)
        self._begin(self.codebook.copy_(codes))

    def _begin(self, codebook: Tensor) -> None:
        if self.decay is not None:
            self.counts.fill_(1)
            self.sums.copy_(codebook)

    def forward(self, x: Tensor, *, update: bool = True, indices: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The rows, their indices, and the loss.

        Args:
            x: The vectors, of shape (…, dim).
            update: Whether the averages move, in training.
            indices: The row of each vector, such as codes that were drawn, as in
                :func:`fullgrad.quantizers.vector_quantize`; None for the nearest.
        """
        checks.real_tensor("VectorQuantizer", "x", x)
        if x.is_nested:
            raise TypeError("VectorQuantizer: `x` must not be a nested tensor; call the module on its .values().")
        check_devices("VectorQuantizer", ("codebook", "x", "indices"), (self.codebook, x, indices))
        moves = self.training and update and self.decay is not None
        if moves:
            self._check_movable()
        # The averages change the codebook in place, after the call saved it.
        codebook = self.codebook.clone() if moves and self.gradient == "rotation" else self.codebook
        if indices is None and self.distance == "cosine":
            indices = self._nearest(x, self.codebook)
        values, indices = vector_quantize(x, codebook, gradient=self.gradient, indices=indices)
        rows, wide = to_opmath(embedding(indices, self.codebook), x if x.is_floating_point() else x.to(values.dtype))
        count = at_least(wide.numel(), 1)  # no vectors have the loss 0
        loss = (wide - rows.detach()).square().sum() / count * self.beta
        if self.decay is None:
            loss = loss + (wide.detach() - rows).square().sum() / count
        if moves and holds(x.numel() != 0):
            with torch.no_grad():
                self._move(self._rows(x), indices.reshape(-1))
        return values, indices, loss

    def _nearest(self, x: Tensor, codebook: Tensor) -> Tensor:
        """The row of each vector."""
        if self.distance == "cosine":
            x, codebook = [normalize(v.detach().to(torch.promote_types(v.dtype, torch.float32))) for v in (x, codebook)]
        return vector_quantize(x, codebook)[1]

    def decode(self, indices: Tensor) -> Tensor:
        """The rows of the codebook at integers of any shape, with the derivative of the rows."""
        return embedding(indices, self.codebook)

    def _check_movable(self) -> None:
        if transforms_active():
            raise RuntimeError(
                "VectorQuantizer: the averages of `decay` cannot be moved under a transform such as vmap or grad; call .eval() "
                "on the module, or pass update=False."
            )
        if self.counts.dtype in HALF:
            raise RuntimeError(
                f"VectorQuantizer: the averages of `decay` must be float32 or float64, got {self.counts.dtype}, too coarse for "
                "small steps; call .float() on the module: its input may be in half precision."
            )

    def _rows(self, x: Tensor) -> Tensor:
        """Vectors as a matrix without a derivative, in the dtype of the codebook."""
        checks.real_tensor("VectorQuantizer", "x", x)
        if x.ndim == 0 or not holds(x.shape[-1] == self.dim):
            raise ValueError(f"VectorQuantizer: `x` must have {self.dim} in its last dimension, got shape {tuple(x.shape)}.")
        return x.detach().reshape(-1, self.dim).to(self.codebook.dtype)

    def _totals(self, x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """How many finite vectors chose each row, and their sums."""
        is_finite = x.isfinite().all(-1)
        counts = x.new_zeros(self.num_codes).index_add(0, indices, is_finite.to(x.dtype))
        sums = x.new_zeros(self.num_codes, self.dim).index_add(0, indices, torch.where(is_finite.unsqueeze(-1), x, 0))
        return counts, sums

    def _move(self, x: Tensor, indices: Tensor) -> None:
        decay: Any = self.decay
        counts, sums = self._totals(x, indices)
        counts, sums = torch.lerp(counts, self.counts, decay), torch.lerp(sums, self.sums, decay)
        total = counts.sum()
        smoothed = (counts + self.eps) / (total + self.num_codes * self.eps) * total
        codes = sums / smoothed.unsqueeze(-1)
        if self.dead_below:
            # Sizes do not depend on numbers, so that the host need not wait: each dead row has a place among the finite vectors.
            order = torch.randperm(x.shape[0], device=x.device)
            is_finite = x[order].isfinite().all(-1)
            order = order[torch.argsort(is_finite.to(torch.uint8), descending=True, stable=True)]
            is_dead = counts < self.dead_below
            place = is_dead.cumsum(0) - 1
            is_new = is_dead & (place < is_finite.sum())
            drawn = x[order[place.clamp(0, x.shape[0] - 1)]]
            codes = torch.where(is_new.unsqueeze(-1), drawn, codes)
            counts = torch.where(is_new, self.dead_below, counts)
            sums = torch.where(is_new.unsqueeze(-1), drawn * self.dead_below, sums)
        self.counts.copy_(counts)
        self.sums.copy_(sums)
        self.codebook.copy_(codes)

    def extra_repr(self) -> str:
        """The sizes, and the arguments that are not as by default."""
        defaults = {"beta": 0.25, "decay": None, "dead_below": 0.0, "eps": 1e-5, "gradient": "identity", "distance": "euclidean"}
        shown = [f"{key}={getattr(self, key)!r}" for key, v in defaults.items() if getattr(self, key) != v]
        return ", ".join([str(self.num_codes), str(self.dim), *shown])
