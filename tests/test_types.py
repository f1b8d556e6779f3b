"""mypy and pyright accept a right program of a user, and find each wrong line of a wrong one."""

import re
import subprocess
import sys

import pytest

PROGRAM = """
from typing import Any

import torch
from torch import Tensor

import fullgrad
from fullgrad import implicit, nn, quantizers, soft, spikes


class Spike(fullgrad.Elementwise):
    reads = {0: (0,)}

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def vjp_term(i: int, v: Tensor, x: Tensor) -> Tensor:
        return v * torch.sigmoid(x)


class Heaviside(fullgrad.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def vjp(ctx: Any, g: Tensor) -> Tensor:
        return torch.where(ctx.saved_tensors[0].abs() < 1, g, 0)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return torch.where(ctx.saved_tensors[0].abs() < 1, t, 0)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        return Heaviside.apply(x), in_dims[0]


x = torch.randn(3)
y: Tensor = fullgrad.round(x) + fullgrad.clamp(x, min_value=-1.0) + soft.relu(x) + spikes.atan(x)
z: Tensor = Spike.apply(x) + Heaviside.apply(x) + quantizers.lsq(x, torch.tensor(0.1))
step: Tensor = fullgrad.straight_through(torch.sign, torch.tanh)(x)
layer = torch.nn.Sequential(nn.Round(), nn.Clamp(-1.0, 1.0), nn.soft.Round(0.2, learnable="softness"))
own = nn.FunctionModule(soft.relu, softness=0.2, learnable="softness")
probability: Tensor = nn.soft.Any()(x)


@fullgrad.custom_jvp
def scaled(x: Tensor, factor: float = 1.0) -> Tensor:
    return x * factor


@scaled.defjvp
def rule(primals: tuple[Tensor, float], tangents: tuple[Tensor, float]) -> tuple[Tensor, Tensor]:
    return scaled(*primals), scaled(tangents[0], primals[1])


@fullgrad.custom_vjp(nondiff_argnums=(1,))
def power(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return x**n, x


@fullgrad.custom_gradient
def square(x: Tensor) -> tuple[Tensor, Any]:
    return x * x, lambda g: 2 * x * g


class Cell:
    @fullgrad.custom_vjp
    def step(self, x: Tensor, width: float) -> Tensor:
        return x * width


@implicit.root(lambda z, x: z * z - x)
def sqrt(init: Tensor | None, x: Tensor) -> Tensor:
    return x.sqrt()


first, second = power(x, 2)
values: list[Tensor] = [scaled(x, factor=2.0), square(x), first, second, Cell().step(x, width=1.0), sqrt(None, x)]
values += [fullgrad.checkpoint(scaled, x, factor=2.0), fullgrad.with_reference(torch.sin, torch.sin)(x)]
"""
WRONG = [
    "fullgrad.rund(x)",
    "soft.srot(x)",
    "quantizers.lqs(x, 0.1)",
    "fullgrad.clamp(x, minimum=0.0)",
    "Spike.aply(x)",
    "spikes.Spike(spikes.atan)",
    "quantizers.Quantizer(quantizers.lsq, scale=0.1)",
    "nn.FunctionModule(soft.relu, learnable=1)",
    "nn.SoftRound()",
    "nn.soft.Rund()",
    "nn.soft.ReLU(width=0.2)",
    "scaled(x, fctor=2.0)",
    'power(x, "2")',
    "number: int = scaled(x)",
    "square(x, x)",
    "Cell().step(x)",
    "sqrt(x)",
    "fullgrad.checkpoint(scaled, x, fctor=2.0)",
]
CHECKERS = {
    "mypy": (["mypy", "--strict"], r":(\d+): error"),
    "pyright": (["basedpyright", "--pythonpath", sys.executable, "--level", "error"], r":(\d+):\d+ - error"),
}


@pytest.mark.long
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_what_is_wrong_and_no_more(checker, tmp_path):
    """Users' classes pass, documented overrides included; names and arguments that do not exist are found."""
    command, pattern = CHECKERS[checker]
    pytest.importorskip(command[0])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "".join(f"{line}\n" for line in WRONG))
    run = subprocess.run([sys.executable, "-m", *command, program], capture_output=True, text=True)
    first = PROGRAM.count("\n") + 1
    assert {int(n) for n in re.findall(pattern, run.stdout)} == {*range(first, first + len(WRONG))}, run.stdout + run.stderr
