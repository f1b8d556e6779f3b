"""The table of variances in docs/families/blackbox.md: ``python docs/variances.py``.

Every row estimates the gradient of an expected cost: of the best of five elements under noise, or of a random class. All take 16
calls of the solver. A cost is a number for each element, without and with 10 added to all of them. The variance is
the sum over elements, divided by the squared norm of the expected gradient; the mean of all trials is the expectation.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap

from fullgrad import blackbox

X = torch.tensor([0.0, 0.5, 1.0, -0.5, 0.3], dtype=torch.float64)
COST = torch.tensor([1.0, -1.0, 0.5, 2.0, 0.0], dtype=torch.float64)
CALLS, TRIALS = 16, 20_000

Cost = Callable[[Tensor], Tensor]


def best(x: Tensor) -> Tensor:
    return (x == x.amax(-1, keepdim=True)).to(x.dtype)


def of_noise(samples: int, distribution: str = "normal") -> Callable[[Cost, Tensor], Tensor]:
    """The mean of means over so many draws, each of which has the other draws of its mean as baseline."""

    def expected(cost: Cost, x: Tensor) -> Tensor:
        options = {"samples": samples, "distribution": distribution, "vmap_method": "map"}
        means = [blackbox.perturbed(lambda x: cost(best(x)), x, **options) for _ in range(CALLS // samples)]
        return torch.stack(means).mean()

    return expected


def of_pairs(cost: Cost, x: Tensor) -> Tensor:
    return blackbox.smoothed(lambda x: cost(best(x)), x, samples=CALLS // 2, vmap_method="map")


def of_classes(baseline: str | None) -> Callable[[Cost, Tensor], Tensor]:
    def expected(cost: Cost, x: Tensor) -> Tensor:
        log_p = torch.log_softmax(x, -1)
        classes = torch.multinomial(log_p.detach().exp(), CALLS, replacement=True)
        return blackbox.score_function(cost(torch.eye(5, dtype=x.dtype)[classes]), log_p.gather(-1, classes), baseline)

    return expected


ROWS: dict[str, Callable[[Cost, Tensor], Tensor]] = {
    "`perturbed`, normal noise, 16 times one draw": of_noise(1),
    "`perturbed`, normal noise, 16 draws": of_noise(CALLS),
    "`smoothed`, 8 pairs": of_pairs,
    "`perturbed`, Gumbel noise, 16 times one draw": of_noise(1, "gumbel"),
    "`perturbed`, Gumbel noise, 16 draws": of_noise(CALLS, "gumbel"),
    "`score_function`, no baseline": of_classes(None),
    "`score_function`, the other samples as baseline": of_classes("leave_one_out"),
}


def relative_variance(estimator: Callable[[Cost, Tensor], Tensor], shift: float, trials: int = TRIALS) -> float:
    """The variance of the gradient of an estimator, over the squared norm of its mean."""
    torch.manual_seed(0)
    found = vmap(grad(lambda x: estimator(lambda y: y @ COST + shift, x)), randomness="different")(X.expand(trials, 5))
    return (found.var(0).sum() / found.mean(0).square().sum()).item()


def main() -> None:
    print("| estimator | cost | cost + 10 |\n|---|---|---|")
    for name, estimator in ROWS.items():
        print(f"| {name} | {relative_variance(estimator, 0.0):.2g} | {relative_variance(estimator, 10.0):.2g} |", flush=True)


if __name__ == "__main__":
    main()
