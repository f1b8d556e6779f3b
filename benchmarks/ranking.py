"""Losses of rankings on one data set: NDCG@10 of new queries after training, and what a step takes by the length of lists.

The data set is made here, in the form of web search: queries of 20 to 120 documents with 46 features, and relevance from 0 to 4,
mostly 0. The other losses are written down from their papers. ``python benchmarks/ranking.py`` prints the table.
"""

import math
import time

import torch
from torch import Tensor, nn

from fullgrad import losses, soft

FEATURES, LONGEST = 46, 120


def queries(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, relevance, and a mask of the documents that exist."""
    rule, draw = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    a, b = [torch.randn(FEATURES, 8, generator=rule) / FEATURES**0.5 for _ in range(2)]
    x = torch.randn(count, LONGEST, FEATURES, generator=draw) + torch.randn(count, 1, FEATURES, generator=draw)
    utility = (torch.tanh(x @ a) * (x @ b)).sum(-1) + 0.7 * torch.randn(count, LONGEST, generator=draw)
    valid = torch.arange(LONGEST) < torch.randint(20, LONGEST + 1, (count, 1), generator=draw)
    standing = torch.where(valid, utility, -torch.inf).argsort(-1, descending=True).argsort(-1) / valid.sum(-1, keepdim=True)
    relevance = sum((standing < share).long() for share in (0.45, 0.2, 0.08, 0.02))
    return x, torch.where(valid, relevance, 0), valid


def listmle(s: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    """The likelihood of the right order under Plackett and Luce (Xia et al. 2008); equal ones in random order."""
    order = (y + torch.rand(y.shape)).masked_fill(~valid, -torch.inf).argsort(-1, descending=True)
    s, valid = s.gather(-1, order).masked_fill(~valid.gather(-1, order), -1e9), valid.gather(-1, order)
    return ((s.flip(-1).logcumsumexp(-1).flip(-1) - s) * valid).sum(-1).mean()


def approx_ndcg(s: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    """NDCG of ranks by sigmoids of all pairs, of unit width (Qin et al. 2010)."""
    pairs = torch.sigmoid(s.unsqueeze(-2) - s.unsqueeze(-1)) * valid.unsqueeze(-2)
    rank, gain = 0.5 + pairs.sum(-1), torch.where(valid, 2.0**y - 1, 0)
    places = torch.arange(s.shape[-1]) + 2.0
    best = (gain.sort(-1, descending=True).values / places.log2()).sum(-1).clamp(min=1e-9)
    return (1 - (gain / torch.log2(1 + rank)).sum(-1) / best).mean()


def soft_rank_correlation(s: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    """Spearman's correlation with the ranks of torchsort, of strength 1, row by row where lists differ in length."""
    found = []
    for row, target, n in zip(s, y, valid.sum(-1).tolist(), strict=True):
        r = soft.rank(row[:n], -1, float(max(n - 1, 1)), "c0", "fast_soft_sort", descending=False, standardize=False)
        q = target[:n].float()
        r, q = r - r.mean(), q - q.mean()
        found.append(1 - (r * q).sum() / (r.norm() * q.norm()).clamp(min=1e-9))
    return torch.stack(found).mean()


LOSSES = {
    "losses.ndcg": lambda s, y, v: losses.ndcg(s, y, gain="exponential", mask=v),
    "losses.ndcg, k=10": lambda s, y, v: losses.ndcg(s, y, 10, gain="exponential", mask=v),
    "losses.spearman": lambda s, y, v: losses.spearman(s, y, mask=v),
    "losses.listnet": lambda s, y, v: losses.listnet(s, y, mask=v),
    "losses.lambda_loss": lambda s, y, v: losses.lambda_loss(s, y, gain="exponential", mask=v),
    "losses.lambda_loss, lambdarank": lambda s, y, v: losses.lambda_loss(s, y, gain="exponential", scheme="lambdarank", mask=v),
    "ListMLE": listmle,
    "ApproxNDCG": approx_ndcg,
    "ranks of torchsort": soft_rank_correlation,
    "squared error": lambda s, y, v: ((s - y).square() * v).sum() / v.sum(),
}


def quality(loss, seed: int, train, test, steps: int = 300) -> float:
    """NDCG@10 of new queries."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    x, y, valid = train
    for _ in range(steps):
        some = torch.randint(len(x), (16,))
        optimizer.zero_grad()
        loss(net(x[some]).squeeze(-1), y[some], valid[some]).backward()
        optimizer.step()
    x, y, valid = test
    with torch.no_grad():
        s = net(x).squeeze(-1)
        return 1 - losses.ndcg(s, y, 10, gain="exponential", mask=valid, softness=1e-6, mode="hard", reduction="mean").item()


def step(loss, n: int) -> tuple[float, float]:
    """Milliseconds and MB that are kept for the backward, of rows of n numbers, 4,096 in all."""
    rows = max(4096 // n, 1)
    s, y = torch.randn(rows, n, requires_grad=True), torch.randint(5, (rows, n))
    valid, kept, best = torch.ones(rows, n, dtype=torch.bool), {}, math.inf
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.update({t.data_ptr(): t.nbytes}) or t, lambda t: t):
        loss(s, y, valid).backward()
    for _ in range(5):
        start = time.perf_counter()
        loss(s, y, valid).backward()
        best = min(best, time.perf_counter() - start)
    return best * 1e3, sum(kept.values()) / 1e6


def main() -> None:
    torch.set_num_threads(1)
    train, test = queries(600, 1), queries(400, 2)
    lengths = (16, 256, 4096)
    print(f"| loss | NDCG@10 | {' | '.join(f'{n}: ms, MB' for n in lengths)} |\n|---|---|{'---|' * len(lengths)}")
    for name, loss in LOSSES.items():
        found = [quality(loss, seed, train, test) for seed in range(3)]
        mean = sum(found) / len(found)
        spread = (max(found) - min(found)) / 2
        costs = " | ".join("{:.1f}, {:.1f}".format(*step(loss, n)) for n in lengths)
        print(f"| {name} | {mean:.3f} ± {spread:.3f} | {costs} |", flush=True)


if __name__ == "__main__":
    main()
