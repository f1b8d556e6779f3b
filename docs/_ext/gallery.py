"""How the gallery runs examples: each as in a new process, with few seeds where it takes them."""

from typing import Any

import torch

SEEDS = {"digits": 1, "ranking": 2}


def fresh(conf: dict[str, Any], name: str) -> None:
    """What an example sets of torch is gone for the next one, and for the pictures."""
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    torch.manual_seed(0)


def arguments(conf: dict[str, Any], variables: dict[str, Any]) -> list[str]:
    """The arguments of an example's command line."""
    seeds = next((n for name, n in SEEDS.items() if variables["src_file"].endswith(f"{name}.py")), None)
    return [] if seeds is None else ["--seeds", str(seeds)]
