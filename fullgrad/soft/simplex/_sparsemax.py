"""`sparsemax`."""

from torch import Tensor

from fullgrad.soft.simplex._entmax import entmax_of, floating_rows


def sparsemax(x: Tensor, dim: int = -1) -> Tensor:
    r"""The Euclidean projection onto the simplex: weights that are 0 beyond a threshold.

    .. math::
        p = \arg\min_{p \ge 0,\ \sum p = 1} \|p - x\|^2 = [x - \theta]_+, \qquad
        D\, t = [\,p > 0\,] \Bigl(t - \frac{\langle [\,p > 0\,], t \rangle}{\sum [\,p > 0\,]}\Bigr)

    :func:`entmax` with :math:`\alpha = 2`. The derivative is the true one; higher ones are 0. Saved: the value.

    On a device the host waits for the rounds that find the threshold.

    Args:
        x: Any shape; floating, or integer (which gives the default dtype).
        dim: The dimension along which the weights sum to 1.

    Returns:
        A tensor of the shape of ``x``, NaN and infinity as in :func:`entmax`.

    Raises:
        TypeError: ``x`` is not a real tensor.
        IndexError: ``x`` has no such dimension.

    Example:
        >>> import torch, fullgrad
        >>> fullgrad.soft.sparsemax(torch.tensor([1.0, 0.6, -1.0]))
        tensor([0.7000, 0.3000, 0.0000])

    Source: Martins, Astudillo, https://arxiv.org/abs/1602.02068; ``entmax.sparsemax``.
    """
    return entmax_of(floating_rows("sparsemax", x, dim), 2.0, dim)
