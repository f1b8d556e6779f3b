"""Robust regression by medians and trimmed means of squared residuals: errors of the parameters, torch and straight-through.

python benchmarks/robust.py
"""

import torch

import fullgrad

TRUE = torch.tensor([2.0, -1.0, 0.5])
N, KEPT, STEPS, SEEDS = 100, 55, 300, 3


def far_outliers(g):
    """Noise of 0.05, and 40 of 100 points far above the others."""
    noise = 0.05 * torch.randn(N, generator=g)
    noise[:40] += 20 + 10 * torch.randn(40, generator=g).abs()
    return noise


def cauchy(g):
    """Noise with heavy tails."""
    return 0.1 * torch.empty(N).cauchy_(generator=g)


def sorted_st(r, **kwargs):
    return fullgrad.sort_st(r, **kwargs).values[:KEPT].mean()


def median_st(r, **kwargs):
    return fullgrad.median_st(r, dim=-1, **kwargs).values


def own_unit(r):
    return {"method": "softsort", "standardize": False, "softness": float(r.detach().median())}


LOSSES = {
    "torch.median": torch.median,
    "torch.sort, trimmed": lambda r: r.sort().values[:KEPT].mean(),
    "median_st": median_st,
    "sort_st, trimmed": sorted_st,
    "sort_st, softsort, 0.01": lambda r: sorted_st(r, method="softsort", softness=0.01),
    "median_st, softness of the median": lambda r: median_st(r, **own_unit(r)),
    "sort_st, softness of the median": lambda r: sorted_st(r, **own_unit(r)),
}


def error(loss, noise, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.cat([torch.randn(N, 2, generator=g), torch.ones(N, 1)], 1)
    y = x @ TRUE + noise(g)
    w = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([w], 0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss((y - x @ w).square()).backward()
        optimizer.step()
        scheduler.step()
    return float((w.detach() - TRUE).norm())


if __name__ == "__main__":
    for name, loss in LOSSES.items():
        errors = [[error(loss, noise, seed) for seed in range(SEEDS)] for noise in (far_outliers, cauchy)]
        print("|", name, "|", " | ".join(f"{min(e):.3f} to {max(e):.3f}" for e in errors), "|", flush=True)
