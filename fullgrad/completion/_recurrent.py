"""Recurrent networks, step by step: a step's formulas, and the walk through layers, directions and time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullgrad.completion._registry import NO_BATCH, completes

# A step takes the input's part of the gates, the states, and the weights and biases of the states.
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Sequence[Tensor]], State]


def _linear(x: Tensor, parameters: Sequence[Tensor], of: int) -> Tensor:
    """The affine function of the input (0) or of the state (1)."""
    y = x @ parameters[of].mT
    return y + parameters[2 + of] if len(parameters) >= 4 else y


def _lstm_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    i, f, g, o = (given + _linear(state[0], parameters, 1)).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    hidden = torch.sigmoid(o) * torch.tanh(cell)
    return (hidden @ parameters[-1].mT if len(parameters) % 2 else hidden), cell


def _gru_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    (given_r, given_z, given_n), (r, z, n) = given.chunk(3, -1), _linear(state[0], parameters, 1).chunk(3, -1)
    z = torch.sigmoid(given_z + z)
    new = torch.tanh(given_n + torch.sigmoid(given_r + r) * n)
    return ((1 - z) * new + z * state[0],)


def _tanh_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    return (torch.tanh(given + _linear(state[0], parameters, 1)),)


def _relu_step(given: Tensor, state: State, parameters: Sequence[Tensor]) -> State:
    return (torch.relu(given + _linear(state[0], parameters, 1)),)


def _walked(
    step: Step,
    x: Tensor,
    states: Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The outputs of all steps, and the last states, of each layer and direction in turn."""
    directions = 2 if bidirectional else 1
    has_projection = len(states) == 2 and states[0].shape[-1] != states[1].shape[-1]
    count = (4 if has_biases else 2) + has_projection
    x = x.transpose(0, 1) if batch_first else x
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            own, state = parameters[k * count : (k + 1) * count], tuple([s[k] for s in states])
            given, found = _linear(x, own, 0).unbind(0), []
            for part in reversed(given) if direction else given:
                state = step(part, state, own)
                found.append(state[0])
            outputs.append(torch.stack(found[::-1] if direction else found))
            last.append(state)
        x = torch.cat(outputs, -1)
        if train and dropout and layer < num_layers - 1:
            x = functional.dropout(x, dropout)
    return (x.transpose(0, 1) if batch_first else x), *[torch.stack(parts) for parts in zip(*last, strict=True)]


@completes("lstm.input", NO_BATCH, batched=True)
def _lstm(x: Tensor, states: Sequence[Tensor], *args: Any) -> tuple[Tensor, ...]:
    return _walked(_lstm_step, x, states, *args)


@completes("gru.input", NO_BATCH, batched=True)
def _gru(x: Tensor, state: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return _walked(_gru_step, x, (state,), *args)


@completes("rnn_tanh.input", NO_BATCH, batched=True)
def _rnn_tanh(x: Tensor, state: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return _walked(_tanh_step, x, (state,), *args)


@completes("rnn_relu.input", NO_BATCH, batched=True)
def _rnn_relu(x: Tensor, state: Tensor, *args: Any) -> tuple[Tensor, ...]:
    return _walked(_relu_step, x, (state,), *args)
